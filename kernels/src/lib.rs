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
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

#[allow(unsafe_code)]
pub mod bench;
#[allow(unsafe_code)]
pub mod bench_attention;
#[allow(unsafe_code)]
pub mod bench_block;
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
mod workload;

#[cfg(test)]
mod testing;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing_bytes;

pub use choice::{Algorithm, Choice, ParseChoiceError};
pub use detect::Isa;
pub use epilogue::{Activation, Epilogue};
pub use error::KernelError;
pub use quant::{Bytes, QuantColumns, QuantOutput, QuantResult};
pub use registry::KernelInfo;
pub use template::attention::{AttentionOperands, AttentionParams, AttentionPlan};
pub use template::attention_layout::CacheType;
pub use template::binary::{BinaryOp, BinaryParams, BinaryPlan};
pub use template::block::{BlockFormat, BlockMatmulParams, BlockMatmulPlan, BlockOperands};
pub use template::conv::{ConvParams, ConvPlan, InputLayout};
pub use template::conv_pool::{ConvPoolParams, ConvPoolPlan};
pub use template::depthwise::{DepthwiseParams, DepthwisePlan};
pub use template::glu::{GluOp, GluParams, GluPlan};
pub use template::half_matmul::{HalfMatmulParams, HalfMatmulPlan, HalfResult};
pub use template::layout::{LayoutOp, LayoutParams, LayoutPlan, blocked_len};
pub use template::lookup::LookupPlan;
pub use template::matmul::{MatmulParams, MatmulPlan};
pub use template::norm::{NormAffine, NormOp, NormParams, NormPlan};
pub use template::pool::{PoolOp, PoolParams, PoolPlan};
pub use template::qconv::{QconvParams, QconvPlan};
pub use template::qdepthwise::{QdepthwiseParams, QdepthwisePlan};
pub use template::qelement::{DequantizePlan, QaddParams, QaddPlan, QuantizeParams, QuantizePlan};
pub use template::qmatmul::{QmatmulParams, QmatmulPlan};
pub use template::qpool::{QpoolParams, QpoolPlan};
pub use template::reduce::{ReduceOp, ReduceParams, ReducePlan};
pub use template::rope::{RopeParams, RopePlan, RopeStyle};
pub use template::separable::{SeparableParams, SeparablePlan};
pub use template::softmax::{SoftmaxParams, SoftmaxPlan};
pub use template::unary::{UnaryKernel, UnaryOp, UnaryParams, UnaryPlan};
pub use tilewright_intrinsics::dtype::Dtype;
pub use workload::{ParseWorkloadError, WorkPlan, Workload};

/// Channels per block of a blocked tensor, on every instruction set.
pub const C_BLOCK: usize = 16;
