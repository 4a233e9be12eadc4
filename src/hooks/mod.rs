//! Hooks into planner, executor and utility commands.

mod ends;
pub mod executor;
pub mod explain;
pub mod insert;
pub mod parallel;
mod planner;
mod prewarm;
mod reports;
pub mod utility;

use crate::access::{primary, protect, ranges, statements};
use crate::admin::options;
use crate::durable::{live, load};
use crate::paths::tableam::handler;
use crate::state::above::{self, Above};

/// Installs all hooks.
pub fn init() {
    above::init(Above {
        routine: handler::routine(),
        meets: ranges::conditions::meets,
        reached: protect::reached,
        may_sleep: statements::may_sleep,
        initial_map: options::initial_map,
        index_specs: primary::specs,
        committed_specs: primary::specs_of_committed,
        load: load::load,
        catch_up: live::catch_up,
    });
    ends::init();
    planner::init();
    executor::init();
    explain::init();
    crate::access::indexscan::init();
    crate::access::hollow::init();
    utility::init();
    prewarm::init();
    crate::paths::customscan::init();
}
