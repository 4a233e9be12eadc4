//! Hooks into planner, executor and utility commands.

pub mod executor;
pub mod explain;
pub mod indexscan;
pub mod insert;
pub mod lookup;
pub mod planner;
pub mod protect;
pub mod rowmarks;
pub mod seqscan;
pub mod statements;
pub mod utility;

/// Installs all hooks.
pub fn init() {
    planner::init();
    executor::init();
    explain::init();
    indexscan::init();
    utility::init();
    crate::fast::scan::init();
}

/// Forgets what belonged to the subtransactions at `level` and deeper, which abort: their statements
/// did not end.
pub fn abort_subtransactions(level: u32) {
    crate::bypass::abort_subtransactions(level);
    statements::abort_subtransactions(level);
    protect::abort_subtransactions(level);
    crate::altered::abort_subtransactions(level);
}

/// A subtransaction ends well.
pub fn commit_subtransaction(level: u32) {
    crate::bypass::commit_subtransaction(level);
    statements::commit_subtransaction(level);
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    crate::bypass::end_transaction();
    statements::end_transaction();
    protect::end_transaction();
    crate::altered::abort_subtransactions(0);
    crate::keys::conditions::end_transaction();
}
