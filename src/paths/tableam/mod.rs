//! The callbacks of the access method, by family.

pub mod ahead;
pub mod analyze;
pub mod cluster;
pub mod dml;
pub mod fetch;
pub mod handler;
pub mod index;
pub mod node;
pub mod relation;
pub mod sample;
pub mod scan;
mod shared_scan;
pub mod tablespace;
pub mod vacuum;
