//! Keys of rows and bounds of scans as bytes, and partition keys.

pub mod bounds;
pub mod codec;
pub mod describe;
pub mod partkey;
