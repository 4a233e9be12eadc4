//! Hooks into planner, executor and utility commands.

pub mod executor;
pub mod explain;
pub mod insert;
pub mod planner;
pub mod utility;

/// Installs all hooks.
pub fn init() {
    planner::init();
    executor::init();
    explain::init();
    crate::access::indexscan::init();
    utility::init();
    crate::paths::customscan::init();
}

/// Forgets what belonged to the subtransactions at `level` and deeper, which abort: their
/// statements did not end.
pub fn abort_subtransactions(level: u32) {
    crate::paths::bypass::abort_subtransactions(level);
    crate::access::statements::abort_subtransactions(level);
    crate::access::protect::abort_subtransactions(level);
    crate::access::altered::abort_subtransactions(level);
}

/// A subtransaction ends well.
pub fn commit_subtransaction(level: u32) {
    crate::paths::bypass::commit_subtransaction(level);
    crate::access::statements::commit_subtransaction(level);
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    crate::paths::bypass::end_transaction();
    crate::access::statements::end_transaction();
    crate::access::protect::end_transaction();
    crate::access::altered::abort_subtransactions(0);
    crate::access::ranges::conditions::end_transaction();
}
