//! Where graphs run.

pub mod cpu;
