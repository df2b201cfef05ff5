//! Depthwise and pointwise convolution in one pass: a unit computes some rows of the depthwise one, all
//! channels, to memory that stays in the L2 cache, and the pointwise one reads them there.
//!
//! It pays where memory is slow beside the core and the tensor between the two does not fit the cache.
//! Measured at one thread of a Zen 5 (L2 cache of 1 MB, AVX-512): 128 channels to 128 at 56 x 56 took 0.95
//! to 0.97 of the time of the two ops, the other blocks of MobileNet v1 and v2 from 0.97 to 1.05, whole nets
//! the same time. The graph does not use it.

use super::conv::{ConvParams, ConvPlan};
use super::depthwise::{DepthwiseParams, DepthwisePlan};
use crate::error::{check_len, checked_len};
use crate::{C_BLOCK, Epilogue, Isa, KernelError};
use alloc::vec;
use core::ops::Range;

const OP: &str = "separable convolution";

/// Bytes of the rows between the convolutions that a unit keeps: half of an L2 cache of 1 MB.
const KEPT: usize = 512 << 10;

/// Sizes and attributes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeparableParams {
    /// The depthwise convolution, without a residual.
    pub depthwise: DepthwiseParams,
    /// Output channels of the pointwise one.
    pub c_out: usize,
    /// What happens to its results.
    pub epilogue: Epilogue,
}

/// A depthwise and a pointwise convolution of fixed sizes. Weights and biases are packed by its
/// [parts](Self::parts).
#[derive(Clone, Debug)]
pub struct SeparablePlan {
    depthwise: DepthwisePlan,
    pointwise: ConvPlan,
    params: SeparableParams,
    /// Rows of a unit: a divisor of the output rows.
    rows: usize,
    /// Elements of the rows that a unit keeps, and of an image of the output.
    kept: usize,
    y_image: usize,
}

impl SeparablePlan {
    /// Plans both.
    ///
    /// # Errors
    ///
    /// Those of the two plans; [`KernelError::Unsupported`] for a depthwise convolution with a residual.
    pub fn new(isa: Isa, params: &SeparableParams) -> Result<Self, KernelError> {
        let d = &params.depthwise;
        if d.epilogue.residual {
            let what = "a residual between the convolutions";
            return Err(KernelError::Unsupported { op: OP, what });
        }
        let depthwise = DepthwisePlan::new(isa, d)?;
        let blocks = d.c.div_ceil(C_BLOCK);
        let row = checked_len(OP, &[blocks, d.w_out, C_BLOCK])?;
        let most = KEPT / (row * size_of::<f32>());
        let rows = (1..=d.h_out.min(most)).rev().find(|rows| d.h_out.is_multiple_of(*rows));
        let rows = rows.unwrap_or(1);
        let conv = ConvParams::new([1, d.c, rows, d.w_out], params.c_out, [1, 1]);
        let mut pointwise = ConvPlan::new(isa, &conv.epilogue(params.epilogue))?;
        pointwise.set_rows(d.h_out);
        let planes = params.c_out.div_ceil(C_BLOCK);
        checked_len(OP, &[d.n, planes, d.h_out, d.w_out, C_BLOCK])?;
        let y_image = planes * d.h_out * d.w_out * C_BLOCK;
        Ok(Self { depthwise, pointwise, params: *params, rows, kept: rows * row, y_image })
    }

    /// The two convolutions, which pack their weights and biases. The second is that of the rows of a
    /// unit.
    pub fn parts(&self) -> (&DepthwisePlan, &ConvPlan) {
        (&self.depthwise, &self.pointwise)
    }

    /// Elements of the output, and of the residual.
    pub fn y_len(&self) -> usize {
        self.y_image * self.params.depthwise.n
    }

    /// Elements of scratch memory that each thread needs.
    pub fn scratch_len(&self) -> usize {
        self.kept + self.pointwise.scratch_len()
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.depthwise.n * (self.params.depthwise.h_out / self.rows)
    }

    /// The kernels that do the work.
    pub fn kernel_names(&self) -> [&'static str; 2] {
        [self.depthwise.kernel_name(), self.pointwise.kernel_name()]
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x` is readable for as many elements as the depthwise convolution says; `filters` are packed
    ///   weights and bias of that one, then of the pointwise one; `residual` is readable for
    ///   [`y_len`](Self::y_len) elements if the epilogue has one (else it is not read); `y` is readable and
    ///   writable for `y_len`, `scratch` for [`scratch_len`](Self::scratch_len).
    /// * `y` and `scratch` overlap no other operand, except that `residual` may be `y` itself if the chunk
    ///   of the pointwise convolution's choice holds all its input channels.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`, or uses this
    ///   `scratch`.
    pub unsafe fn run(
        &self,
        x: *const f32,
        filters: [*const f32; 4],
        residual: *const f32,
        y: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let d = &self.params.depthwise;
        let (slabs, rest) = (d.h_out / self.rows, scratch.wrapping_add(self.kept));
        let [weights, bias, point_weights, point_bias] = filters;
        for unit in units {
            let (image, first) = (unit / slabs, unit % slabs * self.rows);
            let rows = first..first + self.rows;
            // SAFETY: the rows exist, and fit the part of scratch memory that is for them.
            unsafe { self.depthwise.run_rows(x, weights, bias, scratch, image, rows) };
            let at = image * self.y_image + first * d.w_out * C_BLOCK;
            let residual =
                if self.params.epilogue.residual { residual.wrapping_add(at) } else { residual };
            let (y, all) = (y.wrapping_add(at), 0..self.pointwise.units());
            // SAFETY: the input are the rows that were just written. Planes of the output are as far
            // apart as those of the whole, so these rows of it are written; so with the residual. The
            // rest of the scratch memory is as long as asked for.
            unsafe {
                self.pointwise.run(scratch, point_weights, point_bias, residual, y, rest, all)
            };
        }
    }

    /// Runs all units on this thread, with scratch memory of its own.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, or the residual is missing.
    pub fn compute(
        &self,
        x: &[f32],
        filters: [&[f32]; 4],
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        let (d, p) = self.parts();
        let lens = [d.weights_len(), d.bias_len(), p.weights_len(), p.bias_len()];
        check_len(OP, "input", d.x_len(), x.len())?;
        for (filter, len) in filters.iter().zip(lens) {
            check_len(OP, "packed weights or bias", len, filter.len())?;
        }
        check_len(OP, "output", self.y_len(), y.len())?;
        let mut added = core::ptr::null();
        if self.params.epilogue.residual {
            let residual = residual.unwrap_or(&[]);
            check_len(OP, "residual", self.y_len(), residual.len())?;
            added = residual.as_ptr();
        }
        let mut scratch = vec![0.0; self.scratch_len()];
        let (y, scratch, filters) =
            (y.as_mut_ptr(), scratch.as_mut_ptr(), filters.map(<[f32]>::as_ptr));
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), filters, added, y, scratch, 0..self.units()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;
    use crate::testing::{Guarded, Numbers, Place, skip};

    /// What the two ops give one after the other, each tested against its reference. The reduction of
    /// each output is the same, so the bits are.
    fn check(isa: Isa, params: &SeparableParams, place: Place) {
        let plan = SeparablePlan::new(isa, params).unwrap();
        let d = &params.depthwise;
        let conv = ConvParams::new([d.n, d.c, d.h_out, d.w_out], params.c_out, [1, 1]);
        let conv = ConvPlan::new(isa, &conv.epilogue(params.epilogue)).unwrap();
        let (first, second) = plan.parts();
        let mut numbers = Numbers::new((d.c * 31 + d.h_out) as u64);
        let x = numbers.floats(first.x_len());
        let residual = params.epilogue.residual.then(|| numbers.floats(plan.y_len()));
        let mut filters =
            [first.weights_len(), first.bias_len(), second.weights_len(), second.bias_len()]
                .map(|len| vec![0.0; len]);
        let taps = d.kernel[0] * d.kernel[1];
        first.pack_weights(&numbers.floats(d.c * taps), &mut filters[0]).unwrap();
        first.pack_bias(&numbers.floats(d.c), &mut filters[1]).unwrap();
        let pointwise = numbers.floats(d.c * params.c_out);
        second.pack_weights(&pointwise, &mut filters[2]).unwrap();
        second.pack_bias(&numbers.floats(params.c_out), &mut filters[3]).unwrap();
        let mut packed = vec![0.0; conv.weights_len()];
        conv.pack_weights(&pointwise, &mut packed).unwrap();
        let (mut between, mut expected) = (vec![0.0; first.y_len()], vec![0.0; plan.y_len()]);
        first.compute(&x, &filters[0], &filters[1], None, &mut between).unwrap();
        conv.compute(&between, &packed, &filters[3], residual.as_deref(), &mut expected).unwrap();
        let x = Guarded::new(&x, place);
        let filters = filters.map(|values| Guarded::new(&values, place));
        let residual = residual.map(|values| Guarded::new(&values, place));
        let added = residual.as_ref().map_or(core::ptr::null(), |r| r.as_ptr());
        let mut y = Guarded::output(plan.y_len(), place);
        let mut scratch = Guarded::output(plan.scratch_len(), place);
        for unit in (0..plan.units()).rev() {
            let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
            let filters = filters.each_ref().map(|f| f.as_ptr());
            // SAFETY: operands of the plan's lengths, units of the plan, one thread.
            unsafe { plan.run(x.as_ptr(), filters, added, y, scratch, unit..unit + 1) };
        }
        let planes = params.c_out.div_ceil(C_BLOCK);
        for (i, (y, exact)) in y.iter().zip(&expected).enumerate() {
            let channel = i / C_BLOCK / d.w_out / d.h_out % planes * C_BLOCK + i % C_BLOCK;
            let same = channel >= params.c_out || y.to_bits() == exact.to_bits();
            assert!(same, "{y} not {exact} at {i}: {isa} {params:?}");
        }
    }

    const SHAPES: [[usize; 3]; 5] =
        [[16, 16, 6], [20, 40, 7], [3, 5, 4], [300, 24, 5], [96, 16, 90]];

    fn shapes(isa: Isa, list: &[[usize; 3]]) {
        let clip = Activation::Clip { min: 0.0, max: 6.0 };
        for (i, &[c, c_out, size]) in list.iter().enumerate() {
            for (stride, residual) in [(1, false), (2, false), (1, true)] {
                let depthwise = DepthwiseParams {
                    n: 1 + i % 2,
                    c,
                    h_in: size * stride,
                    w_in: (size + 3) * stride,
                    h_out: size,
                    w_out: size + 3,
                    kernel: [3, 3],
                    stride: [stride; 2],
                    dilation: [1, 1],
                    pads: [1, 1, 2 - stride, 2 - stride],
                    epilogue: Epilogue { activation: clip, residual: false },
                };
                let epilogue = Epilogue { activation: Activation::HardSwish, residual };
                check(isa, &SeparableParams { depthwise, c_out, epilogue }, Place::ALL[i % 3]);
            }
        }
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            mod $id {
                use super::*;

                #[test]
                fn is_the_two_convolutions_one_after_the_other() {
                    if !skip(Isa::$isa) {
                        shapes(Isa::$isa, &SHAPES);
                    }
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);

    /// For Miri, which is some thousand times slower.
    #[test]
    fn small_shapes() {
        for isa in Isa::available() {
            shapes(isa, &[[3, 5, 2]]);
        }
    }
}
