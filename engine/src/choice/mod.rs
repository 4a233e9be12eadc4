//! The choice of protocols: which one runs a partition's load best, and whether it really did.
//!
//! Every interval the coordinator takes a reading of each partition's counters. Two readings make a
//! load: its features and the cost of a transaction ([`Load`]). The model predicts from the
//! features the costs under all protocols ([`Model`]). Rules exclude protocols for reasons that
//! throughput does not show ([`allowed`]). A partition is switched if another protocol is better by
//! a margin in several successive intervals. Then the cost is compared with that of before, and the
//! switch is taken back if the cost grew. The result corrects later predictions for loads like this
//! one ([`Learned`]). See the README beside this file.

mod blame;
mod chooser;
mod decide;
mod decision;
mod features;
mod learned;
mod model;
mod publish;
mod settings;
mod trial;

#[cfg(all(test, not(loom)))]
mod tests;

pub use chooser::{Asked, Chooser};
pub use decide::{allowed, Peer, State};
pub use decision::{Decision, Status};
pub use features::{distance, place, Cost, Load, Reading, FEATURES, NAMES};
pub use learned::{Blackboard, Correction, Learned, Lesson, LESSONS, WORDS as LESSON_WORDS};
pub use model::{Model, BUILT_IN};
pub use publish::{Published, Shown};
pub use settings::{Role, Settings};
