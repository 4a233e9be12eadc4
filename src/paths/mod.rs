//! The ways of a statement to the rows.

pub mod bypass;
pub mod customscan;
pub mod native;
pub mod tableam;
