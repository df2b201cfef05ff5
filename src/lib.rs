//! tilewright runs small networks on small machines.
//!
//! Kernels come from templates and tile macros (the crates `tilewright-kernels` and
//! `tilewright-intrinsics`); this crate adds tensors, graphs, importers and the CPU backend.
//! [`Model`] and [`Session`] are all that running an ONNX file takes; [`graph::Context`] builds
//! graphs by hand.
#![deny(unsafe_code)]

pub mod backend;
#[cfg(feature = "capi")]
pub mod capi;
mod error;
#[cfg(any(feature = "media", feature = "ops-more"))]
mod fft;
pub mod graph;
pub mod import;
pub mod io;
#[cfg(feature = "llm")]
pub mod llm;
mod order;
mod session;
mod spawn;
pub mod task;
pub mod tensor;
pub mod tune;

/// Programs of the pages, as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/networks.md")]
    struct Networks;
    #[doc = include_str!("../docs/language_models.md")]
    struct LanguageModels;
}

pub use error::Error;
pub use import::onnx::{Dim, ValueInfo};
pub use session::{Model, NodeInfo, PlanInfo, ProfileRow, Session, SessionOptions};
pub use tensor::{DType, Tensor};
pub use tilewright_kernels::Isa;
pub use tilewright_kernels::bench as kernel_bench;
