//! The callbacks of the access method, by family.

pub mod analyze;
pub mod dml;
pub mod fetch;
pub mod handler;
pub mod index;
pub mod relation;
pub mod sample;
pub mod scan;
pub mod tablespace;
pub mod vacuum;
