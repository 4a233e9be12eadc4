//! The fast path: rows by the engine's ordered primary index.

pub mod find;
pub mod primary;
pub mod scan;
