//! Rows: their look-up, visibility, and what protects a scan.

pub mod altered;
pub mod changes;
pub mod deferred;
pub mod fetch;
pub mod hollow;
pub mod index_lookup;
pub mod indexscan;
pub mod lock;
pub mod looked;
pub mod lookup;
pub mod mixture;
pub mod packed;
pub mod partitions;
pub mod prefix;
pub mod primary;
pub mod protect;
pub mod quick;
pub mod range;
pub mod ranges;
pub mod rowmarks;
pub mod seqscan;
pub mod statements;
pub mod together;
pub mod tuple;
pub mod visible;
pub mod write;
