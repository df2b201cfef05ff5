//! Where graphs run.

pub mod cpu;
#[cfg(feature = "opencl")]
pub mod opencl;
#[cfg(feature = "rknn")]
pub mod rknn;
