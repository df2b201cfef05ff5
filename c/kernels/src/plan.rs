//! What kernels of floats have in common, and what those of bytes: where operands are, and how weights and
//! what follows the sums share one packed operand. What is left to each operator is to say its sizes and to
//! call its plan.

use core::ffi::c_void;

use tilewright_kernels::{Bytes, Dtype, KernelError, QuantColumns};

use crate::kernel::{Plan, Weights, tw_kernel_sizes, tw_operands};

/// Elements of what a plan reads and writes. Those of `x` and `y` are floats or bytes; a result of bytes may
/// be of another type.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lens {
    pub(crate) x: usize,
    /// Words of packed weights.
    pub(crate) weights: usize,
    /// Words of what follows the sums: the bias, and of bytes the factors.
    pub(crate) columns: usize,
    pub(crate) y: usize,
    /// Words.
    pub(crate) scratch: usize,
}

impl Lens {
    /// Words of weights with the gap after them: what follows begins on a cache line.
    fn second(&self) -> usize {
        self.weights.next_multiple_of(16)
    }

    /// Bytes of operands with elements of so many bytes.
    fn bytes(&self, x: usize, y: usize, residual: bool) -> tw_kernel_sizes {
        tw_kernel_sizes {
            x: x * self.x,
            packed: 4 * (self.second() + self.columns),
            y: y * self.y,
            residual: if residual { y * self.y } else { 0 },
            scratch: 4 * self.scratch,
        }
    }

    /// Both parts of the packed operand.
    fn split<'a>(&self, packed: &'a mut [i32]) -> (&'a mut [i32], &'a mut [i32]) {
        let (weights, columns) = packed.split_at_mut(self.second());
        (&mut weights[..self.weights], columns)
    }

    fn at(&self, from: &tw_operands) -> At {
        let weights = from.packed.cast::<i32>();
        let columns = weights.wrapping_add(self.second());
        At {
            x: from.x,
            weights,
            columns,
            #[cfg(feature = "alloc")]
            residual: from.residual.cast(),
            y: from.y,
            scratch: from.scratch.cast(),
        }
    }
}

/// Where the operands of a run are. What a plan does not want is NULL or no operand.
pub(crate) struct At {
    pub(crate) x: *const c_void,
    pub(crate) weights: *const i32,
    pub(crate) columns: *const i32,
    #[cfg(feature = "alloc")]
    pub(crate) residual: *const f32,
    pub(crate) y: *mut c_void,
    pub(crate) scratch: *mut i32,
}

/// A plan for bytes.
pub(crate) trait BytePlan {
    /// What errors call it.
    const OP: &'static str;

    fn lens(&self) -> Lens;

    /// Packs weights and what follows the sums. A plan without them is not asked to.
    fn pack(
        &self,
        _weights: Bytes<'_>,
        _zero_points: &[i32],
        _columns: &QuantColumns<'_>,
        _to: (&mut [i32], &mut [i32]),
    ) -> Result<(), KernelError> {
        Ok(())
    }

    /// Runs all of it.
    ///
    /// # Safety
    /// Operands have the elements that [`lens`](Self::lens) says, and what is written overlaps nothing.
    unsafe fn run(&self, at: &At);
}

/// A kernel of bytes: a plan, and what weights are packed with.
pub(crate) struct Quantized<P> {
    pub(crate) plan: P,
    /// The type of the weights.
    pub(crate) w: Dtype,
    pub(crate) x_zero_point: i32,
    /// Columns or output channels.
    pub(crate) columns: usize,
    /// The type of the result.
    pub(crate) y: Dtype,
}

impl<P: BytePlan> Plan for Quantized<P> {
    fn sizes(&self) -> tw_kernel_sizes {
        self.plan.lens().bytes(1, self.y.size(), false)
    }

    fn aligned(&self) -> [usize; 2] {
        [1, self.y.size()]
    }

    fn pack(&self, weights: &Weights<'_>, to: &mut [i32]) -> Result<(), KernelError> {
        let w = if self.w == Dtype::I8 {
            Bytes::I8(weights.elements(P::OP)?)
        } else {
            Bytes::U8(weights.elements(P::OP)?)
        };
        let columns = QuantColumns {
            bias: weights.bias(P::OP, self.columns)?,
            zero_point: self.x_zero_point,
            scales: weights.scales,
            shifts: &[],
        };
        self.plan.pack(w, weights.zero_points, &columns, self.plan.lens().split(to))
    }

    unsafe fn run(&self, from: &tw_operands) {
        // SAFETY: the operands have the bytes that `sizes` says, so the elements that `lens` does.
        unsafe { self.plan.run(&self.plan.lens().at(from)) }
    }
}

#[cfg(feature = "alloc")]
pub(crate) use floats::{FloatPlan, Floats, floats, packs_weights_and_bias};

#[cfg(feature = "alloc")]
mod floats {
    use super::*;

    /// A plan for floats.
    pub(crate) trait FloatPlan {
        /// What errors call it.
        const OP: &'static str;

        fn lens(&self) -> Lens;

        /// Packs weights and bias. A plan without them is not asked to.
        fn pack(
            &self,
            _weights: &[f32],
            _bias: &[f32],
            _to: (&mut [f32], &mut [f32]),
        ) -> Result<(), KernelError> {
            Ok(())
        }

        /// Runs all of it.
        ///
        /// # Safety
        /// Operands have the elements that [`lens`](Self::lens) says, and what is written overlaps nothing.
        unsafe fn run(&self, at: &At);
    }

    /// The packing of a [`FloatPlan`] that has weights and a bias, which plans call alike.
    macro_rules! packs_weights_and_bias {
        () => {
            fn pack(
                &self,
                weights: &[f32],
                bias: &[f32],
                to: (&mut [f32], &mut [f32]),
            ) -> Result<(), tilewright_kernels::KernelError> {
                self.pack_weights(weights, to.0)?;
                self.pack_bias(bias, to.1)
            }
        };
    }
    pub(crate) use packs_weights_and_bias;

    /// A kernel of floats.
    pub(crate) struct Floats<P> {
        pub(crate) plan: P,
        /// Columns or output channels.
        pub(crate) columns: usize,
        /// Whether something is added to the result.
        pub(crate) residual: bool,
    }

    impl<P: FloatPlan> Plan for Floats<P> {
        fn sizes(&self) -> tw_kernel_sizes {
            self.plan.lens().bytes(4, 4, self.residual)
        }

        fn aligned(&self) -> [usize; 2] {
            [4, 4]
        }

        fn pack(&self, weights: &Weights<'_>, to: &mut [i32]) -> Result<(), KernelError> {
            let (w, bias) = self.plan.lens().split(to);
            let to = (floats(w), floats(bias));
            self.plan.pack(weights.elements(P::OP)?, weights.bias(P::OP, self.columns)?, to)
        }

        unsafe fn run(&self, from: &tw_operands) {
            // SAFETY: the operands have the bytes that `sizes` says, so the elements that `lens` does.
            unsafe { self.plan.run(&self.plan.lens().at(from)) }
        }
    }

    /// Words as floats.
    pub(crate) fn floats(words: &mut [i32]) -> &mut [f32] {
        // SAFETY: both have four bytes, the same alignment, and any bits are a value.
        unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }
}
