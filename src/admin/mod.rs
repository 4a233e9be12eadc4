//! Options, annotations, the coordinator, and the functions and views of the schema `mixedcc`.

pub mod annotate;
pub mod coordinator;
pub mod history;
pub mod options;
pub mod report;
pub mod sql;
pub mod versions;
