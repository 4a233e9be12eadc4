//! Rows: their look-up, visibility, and what protects a scan.

pub mod altered;
pub mod find;
pub mod indexscan;
pub mod lookup;
pub mod primary;
pub mod protect;
pub mod ranges;
pub mod rowmarks;
pub mod seqscan;
pub mod statements;
pub mod tuple;
pub mod visible;
