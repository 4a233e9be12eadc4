//! What PostgreSQL's hooks held before ours were put in. Of the process, written when the library
//! is loaded; our hooks call it.

use crate::pg::local::Local;
use pgrx::pg_sys;

/// One member for each hook of ours. Two parts of us have a hook of the planner.
#[derive(Clone, Copy)]
pub struct Previous {
    /// Sizes of shared memory are asked for.
    pub shmem_request: pg_sys::shmem_request_hook_type,
    /// Shared memory is made, or found.
    pub shmem_startup: pg_sys::shmem_startup_hook_type,
    /// A query is planned: the hook of annotations.
    pub planner_of_annotations: pg_sys::planner_hook_type,
    /// A query is planned: the hook of generic plans.
    pub planner_of_generic_plans: pg_sys::planner_hook_type,
    /// The planner looks at a relation.
    pub relation_info: pg_sys::get_relation_info_hook_type,
    /// The planner makes a relation's paths.
    pub paths: pg_sys::set_rel_pathlist_hook_type,
    /// A statement starts, finishes and ends. (Its run: `compat/executor.rs`.)
    pub start: pg_sys::ExecutorStart_hook_type,
    /// See `start`.
    pub finish: pg_sys::ExecutorFinish_hook_type,
    /// See `start`.
    pub end: pg_sys::ExecutorEnd_hook_type,
    /// EXPLAIN of a query.
    pub explain: pg_sys::ExplainOneQuery_hook_type,
    /// A utility command.
    pub utility: pg_sys::ProcessUtility_hook_type,
    /// An object is made, changed or dropped.
    pub object_access: pg_sys::object_access_hook_type,
    /// Is a call of this function to be told to hooks?
    pub needs_call: pg_sys::needs_fmgr_hook_type,
    /// A function is called.
    pub call: pg_sys::fmgr_hook_type,
}

/// The hooks.
pub static PREVIOUS: Local<Previous> = Local::new(Previous {
    shmem_request: None,
    shmem_startup: None,
    planner_of_annotations: None,
    planner_of_generic_plans: None,
    relation_info: None,
    paths: None,
    start: None,
    finish: None,
    end: None,
    explain: None,
    utility: None,
    object_access: None,
    needs_call: None,
    call: None,
});
