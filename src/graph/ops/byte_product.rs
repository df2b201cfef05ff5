//! The steps of convolutions and matrix products of bytes: one that brings the activations into the
//! form that the kernel reads, where that is needed, and one that multiplies.

use core::ops::Range;
use std::sync::Arc;

use tilewright_kernels::{QconvPlan, QmatmulPlan};

use crate::graph::{GraphError, Step};
use crate::tensor::AlignedBytes;

/// A kernel plan of packed weights, columns that follow the sums, and perhaps converted activations.
pub(super) trait ByteProduct: Send + Sync + 'static {
    /// The name of what converts the activations.
    const CONVERT: &str;

    fn kernel_name(&self) -> &'static str;

    fn units(&self) -> usize;

    fn convert_units(&self) -> usize;

    /// Words of the converted activations; 0 if they are read where they lie.
    fn scratch_len(&self) -> usize;

    /// Words of memory that each thread needs for itself.
    fn local_len(&self) -> usize;

    /// # Safety
    /// - `x`, `weights`, `columns` and `y` have the lengths of the plan, which packed weights and
    ///   columns; `converted` was written by all units of [`ByteProduct::run_convert`], if there
    ///   are any; `y` overlaps nothing; `local` is writable for [`ByteProduct::local_len`] words, and no
    ///   other thread uses it.
    /// - `units` lies within `0..self.units()`, and no other thread runs one of them.
    /// - The CPU has the instruction set that the plan was made for.
    #[allow(unsafe_code, reason = "kernels take pointers; the duties are above")]
    unsafe fn run(
        &self,
        x: *const u8,
        converted: *const i32,
        weights: *const i32,
        columns: *const i32,
        y: *mut u8,
        local: *mut i32,
        units: Range<usize>,
    );

    /// # Safety
    /// - `x` has the length of the plan, `converted` is writable for [`ByteProduct::scratch_len`]
    ///   words; they do not overlap.
    /// - `units` lies within `0..self.convert_units()`, and no other thread runs one of them.
    /// - The CPU has the instruction set that the plan was made for.
    #[allow(unsafe_code, reason = "kernels take pointers; the duties are above")]
    unsafe fn run_convert(&self, x: *const u8, converted: *mut i32, units: Range<usize>);
}

macro_rules! plans {
    ($($plan:ty: $convert:literal, |$self:ident, $local:ident| $local_len:expr, ($($argument:expr),*);)*) => { $(
        impl ByteProduct for $plan {
            const CONVERT: &str = $convert;

            fn kernel_name(&self) -> &'static str {
                self.kernel_name()
            }

            fn units(&self) -> usize {
                self.units()
            }

            fn convert_units(&self) -> usize {
                self.convert_units()
            }

            fn scratch_len(&self) -> usize {
                self.scratch_len()
            }

            fn local_len(&$self) -> usize {
                $local_len
            }

            #[allow(unsafe_code)]
            unsafe fn run(
                &self,
                x: *const u8,
                converted: *const i32,
                weights: *const i32,
                columns: *const i32,
                y: *mut u8,
                $local: *mut i32,
                units: Range<usize>,
            ) {
                // SAFETY: the plan's duties are those of this function.
                unsafe { self.run(x, converted, weights, columns, y, $($argument,)* units) }
            }

            #[allow(unsafe_code)]
            unsafe fn run_convert(&self, x: *const u8, converted: *mut i32, units: Range<usize>) {
                // SAFETY: the plan's duties are those of this function.
                unsafe { self.run_convert(x, converted, units) }
            }
        }
    )* };
}
plans! {
    QconvPlan: "pad_bytes", |self, local| self.local_len(), (local);
    QmatmulPlan: "convert_bytes", |self, _local| 0, ();
}

/// Runs a plan that was made for a step's first operand and result, with the weights and columns that
/// it packed.
pub(super) struct Product<P> {
    pub(super) plan: Arc<P>,
    pub(super) weights: Arc<AlignedBytes>,
    pub(super) columns: Arc<AlignedBytes>,
}

impl<P: ByteProduct> Step for Product<P> {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0
    }

    fn scratch_bytes(&self) -> usize {
        self.plan.local_len() * size_of::<i32>()
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let bytes = self.plan.scratch_len() * size_of::<i32>();
        (bytes > 0).then(|| (Box::new(Convert(self.plan.clone())) as Box<dyn Step>, bytes))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // What the step before wrote is the last operand, if there is one.
        let converted = src[src.len() - 1].cast();
        let (weights, columns) = (self.weights.as_ptr().cast(), self.columns.as_ptr().cast());
        // SAFETY: the plan was made for operand and result, and packed weights and columns itself;
        // where it wants converted activations, the step before has written all of them; scratch memory,
        // units and CPU are as the caller promises.
        unsafe { self.plan.run(src[0], converted, weights, columns, dst, scratch.cast(), units) };
        Ok(())
    }
}

/// Brings the activations into the form that the kernel reads.
struct Convert<P>(Arc<P>);

impl<P: ByteProduct> Step for Convert<P> {
    fn kernel(&self) -> String {
        P::CONVERT.to_owned()
    }

    fn units(&self) -> usize {
        self.0.convert_units()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the operand is the plan's, the result as large as it asks for; the rest is as the
        // caller promises.
        unsafe { self.0.run_convert(src[0], dst.cast(), units) };
        Ok(())
    }
}
