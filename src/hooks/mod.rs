//! Hooks into planner, executor and utility commands.

pub mod executor;
pub mod planner;
pub mod rowmarks;
pub mod utility;

/// Installs all hooks.
pub fn init() {
    planner::init();
    executor::init();
    utility::init();
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    executor::end_transaction();
}
