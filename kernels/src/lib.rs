//! Kernel templates: in which order the tile steps of `tilewright-intrinsics` run.
//!
//! Each op is one template, instantiated for every row of the table of instruction sets, and has
//! a *plan*: made once for given sizes, it checks everything, chooses kernels and says how long
//! each operand is. A plan runs with raw pointers, on any number of threads, without allocating.
//!
//! ```
//! use tilewright_kernels::{ConvParams, ConvPlan, Isa};
//!
//! let params = ConvParams::new([1, 3, 8, 8], 16, [3, 3]).pads([1, 1, 1, 1]).interleaved();
//! let plan = ConvPlan::new(Isa::Scalar, &params)?;
//! let (mut weights, mut bias) = (vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
//! plan.pack_weights(&[0.5; 16 * 3 * 3 * 3], &mut weights)?;
//! plan.pack_bias(&[1.0; 16], &mut bias)?;
//! let (x, mut y) = ([1.0; 8 * 8 * 3], vec![0.0; plan.y_len()]);
//! plan.compute(&x, &weights, &bias, None, &mut y)?;
//! assert_eq!(y[0], 1.0 + 0.5 * 12.0); // a corner sees 2 x 2 pixels of 3 channels
//! # Ok::<(), tilewright_kernels::KernelError>(())
//! ```
//!
//! # Layouts
//!
//! * blocked: `[n, ceil(c / 16), h, w, 16]`, on every instruction set ([`C_BLOCK`]). Lanes past
//!   `c` hold anything; no op reads them as data of another channel.
//! * interleaved: `[n, h, w, c]`.
//! * plain: `[n, c, h, w]`, and row-major matrices.
//!
//! All sizes and strides are in elements.
//!
//! # Without an allocator
//!
//! Without the feature `alloc` there is neither `std` nor `alloc`, and of the plans those that need no
//! memory of their own: [`QmatmulPlan`], [`QconvPlan`], and those of element-wise and row-wise operators.
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(
    not(any(feature = "alloc", test)),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "for operators that this build lacks"
    )
)]

#[cfg(any(feature = "alloc", test))]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(any(feature = "alloc", test))]
#[allow(unsafe_code)]
pub mod bench;
#[cfg(any(feature = "alloc", test))]
#[allow(unsafe_code)]
pub mod bench_attention;
#[cfg(any(feature = "alloc", test))]
#[allow(unsafe_code)]
pub mod bench_block;
#[cfg(any(feature = "alloc", test))]
#[allow(unsafe_code)]
pub mod bench_dot;
mod choice;
mod detect;
mod epilogue;
mod error;
pub mod pack;
mod quant;
pub mod registry;
#[allow(unsafe_code)]
pub mod template;
#[cfg(any(feature = "alloc", test))]
mod workload;

#[cfg(test)]
mod testing;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing_bytes;

pub use choice::{Algorithm, Choice, ParseChoiceError};
pub use detect::{Isa, IsaNames};
pub use epilogue::{Activation, Epilogue};
pub use error::KernelError;
pub use quant::{Bytes, QuantColumns, QuantOutput, QuantResult};
pub use registry::KernelInfo;
pub(crate) use registry::Tile;
#[cfg(any(feature = "alloc", test))]
pub use template::attention::{AttentionOperands, AttentionParams, AttentionPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::attention_layout::CacheType;
#[cfg(any(feature = "alloc", test))]
pub use template::binary::{BinaryOp, BinaryParams, BinaryPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::block::{BlockFormat, BlockMatmulParams, BlockMatmulPlan, BlockOperands};
pub use template::cells::{CellForm, CellsParams, CellsPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::conv::{ConvParams, ConvPlan, InputLayout};
#[cfg(any(feature = "alloc", test))]
pub use template::conv_pool::{ConvPoolParams, ConvPoolPlan};
pub use template::convert::{Conversion, ConvertPlan};
pub use template::delta::{DeltaOperands, DeltaParams, DeltaPlan, DeltaRule};
#[cfg(any(feature = "alloc", test))]
pub use template::depthwise::{DepthwiseParams, DepthwisePlan};
pub use template::glu::{GluOp, GluParams, GluPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::half_matmul::{HalfMatmulParams, HalfMatmulPlan, HalfResult};
pub use template::layout::{LayoutOp, LayoutParams, LayoutPlan, blocked_len};
pub use template::lookup::LookupPlan;
#[cfg(any(feature = "alloc", test))]
pub use template::matmul::{MatmulParams, MatmulPlan};
pub use template::norm::{NormAffine, NormOp, NormParams, NormPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::pool::{PoolOp, PoolParams, PoolPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::qbinary::{QbinaryOp, QbinaryParams, QbinaryPlan};
pub use template::qconv::{QconvParams, QconvPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::qdepthwise::{QdepthwiseParams, QdepthwisePlan};
#[cfg(any(feature = "alloc", test))]
pub use template::qelement::{DequantizePlan, QuantizeParams, QuantizePlan};
pub use template::qmatmul::{QmatmulParams, QmatmulPlan};
#[cfg(any(feature = "alloc", test))]
pub use template::qpool::{QpoolParams, QpoolPlan};
pub use template::reduce::{ReduceOp, ReduceParams, ReducePlan};
pub use template::rope::{RopeParams, RopePlan, RopeStyle};
#[cfg(any(feature = "alloc", test))]
pub use template::separable::{SeparableParams, SeparablePlan};
pub use template::softmax::{RowWeights, SoftmaxParams, SoftmaxPlan};
pub use template::taps::{TapsParams, TapsPlan};
pub use template::unary::{UnaryKernel, UnaryOp, UnaryParams, UnaryPlan};
pub use tilewright_intrinsics::dtype::Dtype;
#[cfg(any(feature = "alloc", test))]
pub use workload::{ParseWorkloadError, WorkPlan, Workload};

/// Channels per block of a blocked tensor, on every instruction set.
pub const C_BLOCK: usize = 16;
