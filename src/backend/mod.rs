//! Where graphs run.

pub mod cpu;
#[cfg(feature = "rknn")]
pub mod rknn;
