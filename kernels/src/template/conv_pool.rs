//! Convolution and maximum pooling in one pass: a unit computes some rows of the convolution to memory
//! that stays in the L2 cache, and pools them. The output of the convolution, the largest tensor of
//! many networks, is never written as a whole.
//!
//! Windows do not overlap, so that no row is computed twice: with overlapping ones that costs as much as
//! is gained.

use super::conv::{ConvParams, ConvPlan};
use super::pool::{self, PoolOp, PoolParams};
use super::window::{ByteWindow, Window, WindowArgs, WindowKernel, WindowSizes};
use crate::error::{check_len, checked_len};
use crate::{C_BLOCK, Choice, Isa, KernelError};
use alloc::vec;
use core::ops::Range;

const OP: &str = "conv and pool";

/// Bytes of the rows of a convolution that a unit keeps: half of an L2 cache of 1 MB.
const KEPT: usize = 512 << 10;

/// Sizes and attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvPoolParams {
    /// The convolution, without a residual.
    pub conv: ConvParams,
    /// Rows and columns of the window, and its stride. Pixels that do not fill a window are left out.
    pub window: [usize; 2],
}

/// A convolution and a pooling of fixed sizes. Weights and bias are packed by its
/// [convolution](Self::conv).
#[derive(Clone, Debug)]
pub struct ConvPoolPlan {
    conv: ConvPlan,
    window: Window,
    kernels: [WindowKernel; 2],
    /// Output rows of a unit, and units of an image.
    rows: usize,
    slabs: usize,
    /// Elements of one plane of the rows that a unit keeps, and of all of them.
    plane: usize,
    kept: usize,
}

impl ConvPoolPlan {
    /// Plans both; the convolution chooses for itself, among those whose rows can be computed by
    /// themselves.
    ///
    /// # Errors
    ///
    /// Those of [`ConvPlan::new`] and of the pooling; [`KernelError::Unsupported`] for a residual, and
    /// for a convolution that has none (transposed, or of single pixels).
    pub fn new(isa: Isa, params: &ConvPoolParams) -> Result<Self, KernelError> {
        let first = Self::with(isa, params, ConvPlan::new(isa, &params.conv)?);
        let Err(error @ KernelError::Unsupported { .. }) = first else { return first };
        let others = ConvPlan::candidates(isa, &params.conv)?;
        others.iter().find_map(|choice| Self::with_choice(isa, params, choice).ok()).ok_or(error)
    }

    /// Plans both, with a choice for the convolution.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and those of [`ConvPlan::with_choice`].
    pub fn with_choice(
        isa: Isa,
        params: &ConvPoolParams,
        choice: &Choice,
    ) -> Result<Self, KernelError> {
        Self::with(isa, params, ConvPlan::with_choice(isa, &params.conv, choice)?)
    }

    fn with(isa: Isa, params: &ConvPoolParams, mut conv: ConvPlan) -> Result<Self, KernelError> {
        let (c, [down, across]) = (&params.conv, params.window);
        let unsupported = |what| Err(KernelError::Unsupported { op: OP, what });
        if c.epilogue.residual {
            return unsupported("a residual");
        }
        let Some(step) = conv.row_step() else {
            return unsupported("a convolution whose rows depend on each other");
        };
        let size = |n: usize, w: usize| n.checked_div(w).unwrap_or(0);
        let pool = PoolParams {
            op: PoolOp::Max,
            n: c.n,
            c: c.c_out,
            h_in: c.h_out,
            w_in: c.w_out,
            h_out: size(c.h_out, down),
            w_out: size(c.w_out, across),
            kernel: params.window,
            stride: params.window,
            dilation: [1, 1],
            pads: [0; 4],
        };
        let list = pool::kernels(isa).max;
        let window = Window::new(OP, WindowSizes::from(&pool), false, list.len())?;
        let kernels = window.kernels(list);
        // Rows of a unit begin where a window and a tile do.
        let whole = (1..=step).map(|i| i * down).find(|rows| rows.is_multiple_of(step));
        let whole = whole.unwrap_or(step * down);
        let planes = c.c_out.div_ceil(C_BLOCK);
        let bytes = checked_len(OP, &[planes, whole, c.w_out, C_BLOCK])? * size_of::<f32>();
        let most = pool.h_out.div_ceil(whole / down);
        let wholes = (KEPT / bytes).clamp(1, most);
        let rows = wholes * (whole / down);
        conv.set_rows(wholes * whole);
        let plane = wholes * whole * c.w_out * C_BLOCK;
        let kept = checked_len(OP, &[planes, plane])?;
        let slabs = pool.h_out.div_ceil(rows);
        Ok(Self { conv, window, kernels, rows, slabs, plane, kept })
    }

    /// The convolution: it packs weights and bias, and tells what was chosen.
    pub fn conv(&self) -> &ConvPlan {
        &self.conv
    }

    /// Elements of the output.
    pub fn y_len(&self) -> usize {
        self.window.y_len
    }

    /// Elements of scratch memory that each thread needs.
    pub fn scratch_len(&self) -> usize {
        self.kept + self.conv.scratch_len()
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.window.sizes.n * self.slabs
    }

    /// The kernels that do the work.
    pub fn kernel_names(&self) -> [&'static str; 2] {
        [self.conv.kernel_name(), self.kernels[1].info.name]
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` are readable for as many elements as the convolution says, the latter
    ///   two packed by it; `y` is writable for [`y_len`](Self::y_len) elements, `scratch` readable and
    ///   writable for [`scratch_len`](Self::scratch_len). `y` and `scratch` overlap no other operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`, or uses this
    ///   `scratch`.
    pub unsafe fn run(
        &self,
        x: *const f32,
        weights: *const f32,
        bias: *const f32,
        y: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let s = &self.window.sizes;
        let (planes, y_plane) = (s.c.div_ceil(C_BLOCK), s.output[0] * s.output[1] * C_BLOCK);
        let rest = scratch.wrapping_add(self.kept);
        for unit in units {
            let (image, first) = (unit / self.slabs, unit % self.slabs * self.rows);
            let rows = first..(first + self.rows).min(s.output[0]);
            let from = rows.start * s.kernel[0]..rows.end * s.kernel[0];
            let start = from.start * s.input[1] * C_BLOCK;
            // SAFETY: these rows of the convolution exist and fit the part of scratch memory that is for
            // them; the rest of it is as long as the convolution asks for. All else is the caller's
            // promise.
            unsafe { self.conv.run_rows([x, weights, bias], scratch, rest, image, from) };
            for plane in 0..planes {
                let args = WindowArgs {
                    x: scratch.wrapping_add(plane * self.plane).wrapping_sub(start),
                    weights: core::ptr::null(),
                    bias: core::ptr::null(),
                    residual: core::ptr::null(),
                    y: y.wrapping_add((image * planes + plane) * y_plane),
                    rows: rows.clone(),
                    run: 0,
                    channels: self.window.channels(plane),
                    bytes: ByteWindow::default(),
                };
                // SAFETY: the windows of these rows read the rows of the convolution that were just
                // written, from where they lie as if the plane were whole; the ISA is available.
                unsafe { self.window.run(&self.kernels, args) };
            }
        }
    }

    /// Runs all units on this thread, with scratch memory of its own.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short.
    pub fn compute(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: &[f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "input", self.conv.x_len(), x.len())?;
        check_len(OP, "packed weights", self.conv.weights_len(), weights.len())?;
        check_len(OP, "packed bias", self.conv.bias_len(), bias.len())?;
        check_len(OP, "output", self.y_len(), y.len())?;
        let (x, weights, bias) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
        let mut scratch = vec![0.0; self.scratch_len()];
        let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x, weights, bias, y, scratch, 0..self.units()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Guarded, Numbers, Place, skip};
    use crate::{Activation, ConvPlan, Epilogue, PoolPlan};

    /// Bit for bit what the two ops give one after the other, each tested against its reference.
    fn check(isa: Isa, params: &ConvPoolParams, choice: Option<&Choice>, place: Place) {
        let c = &params.conv;
        let plan = match choice {
            Some(choice) => ConvPoolPlan::with_choice(isa, params, choice),
            None => ConvPoolPlan::new(isa, params),
        };
        let plan = plan.unwrap();
        let conv = ConvPlan::with_choice(isa, c, &plan.conv().choice()).unwrap();
        let [down, across] = params.window;
        let sizes = PoolParams {
            op: PoolOp::Max,
            n: c.n,
            c: c.c_out,
            h_in: c.h_out,
            w_in: c.w_out,
            h_out: c.h_out / down,
            w_out: c.w_out / across,
            kernel: params.window,
            stride: params.window,
            dilation: [1, 1],
            pads: [0; 4],
        };
        let pool = PoolPlan::new(isa, &sizes).unwrap();
        let mut numbers = Numbers::new((c.c_in * 31 + c.h_out) as u64);
        let x = numbers.floats(conv.x_len());
        let w = numbers.floats(c.c_out * c.c_in / c.groups * c.kernel[0] * c.kernel[1]);
        let b = numbers.floats(c.c_out);
        let (mut weights, mut bias) = (vec![0.0; conv.weights_len()], vec![0.0; conv.bias_len()]);
        plan.conv().pack_weights(&w, &mut weights).unwrap();
        plan.conv().pack_bias(&b, &mut bias).unwrap();
        let (mut between, mut expected) = (vec![0.0; conv.y_len()], vec![0.0; pool.y_len()]);
        conv.compute(&x, &weights, &bias, None, &mut between).unwrap();
        pool.compute(&between, &mut expected).unwrap();
        let [x, weights, bias] = [&x, &weights, &bias].map(|values| Guarded::new(values, place));
        let mut y = Guarded::output(plan.y_len(), place);
        let mut scratch = Guarded::output(plan.scratch_len(), place);
        for unit in (0..plan.units()).rev() {
            let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
            // SAFETY: operands of the plan's lengths, units of the plan, one thread.
            unsafe {
                plan.run(x.as_ptr(), weights.as_ptr(), bias.as_ptr(), y, scratch, unit..unit + 1)
            };
        }
        for (i, (y, exact)) in y.iter().zip(&expected).enumerate() {
            let exists = i / C_BLOCK / sizes.w_out / sizes.h_out % c.c_out.div_ceil(C_BLOCK)
                * C_BLOCK
                + i % C_BLOCK
                < c.c_out;
            assert!(
                !exists || y.to_bits() == exact.to_bits(),
                "{y} not {exact} at {i}: {isa} {params:?}"
            );
        }
    }

    fn shapes(isa: Isa) {
        let relu = Epilogue { activation: Activation::Relu, residual: false };
        let gelu = Epilogue { activation: Activation::Gelu, residual: false };
        for (i, size) in [2, 5, 8, 13, 30].into_iter().enumerate() {
            let place = Place::ALL[i % 3];
            for (c_in, c_out) in [(3, 16), (17, 40)] {
                let conv = ConvParams::new([1 + i % 2, c_in, size, size + 1], c_out, [3, 3]);
                let conv = conv.pads([1; 4]).epilogue(relu);
                for window in [[2, 2], [2, 1], [3, 2]] {
                    let params = ConvPoolParams { conv: conv.clone(), window };
                    if size < window[0] {
                        continue;
                    }
                    for choice in
                        ConvPlan::candidates(isa, &conv).unwrap().iter().filter(|c| c.tile[0] == 1)
                    {
                        check(isa, &params, Some(choice), place);
                    }
                }
            }
            let conv =
                ConvParams::new([1, 3, size + 5, size + 9], 24, [5, 5]).stride([2, 2]).pads([2; 4]);
            let conv = conv.interleaved().epilogue(gelu);
            let bounded = ConvPlan::candidates(isa, &conv).unwrap();
            if let Some(choice) = bounded.iter().find(|c| c.tile[0] == 1) {
                check(isa, &ConvPoolParams { conv, window: [2, 2] }, Some(choice), place);
            }
        }
        // So large that there are several units.
        let conv = ConvParams::new([1, 3, 70, 230], 60, [3, 3]).pads([1; 4]).epilogue(relu);
        check(isa, &ConvPoolParams { conv, window: [2, 2] }, None, Place::PageEnd);
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            mod $id {
                use super::*;

                #[test]
                fn is_the_two_ops_one_after_the_other() {
                    if !skip(Isa::$isa) {
                        shapes(Isa::$isa);
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
            let conv = ConvParams::new([2, 3, 5, 4], 17, [3, 3]).pads([1; 4]);
            check(isa, &ConvPoolParams { conv, window: [2, 2] }, None, Place::Misaligned);
        }
    }

    #[test]
    fn what_has_no_rows_is_refused() {
        let refused = |conv: ConvParams, window| {
            ConvPoolPlan::new(Isa::Scalar, &ConvPoolParams { conv, window }).is_err()
        };
        let conv = ConvParams::new([1, 16, 8, 8], 16, [3, 3]);
        assert!(!refused(conv.clone(), [2, 2]));
        assert!(refused(conv.clone(), [0, 2]) && refused(conv.clone(), [2, 9]));
        assert!(refused(conv.clone().transposed(), [2, 2]));
        assert!(refused(ConvParams::new([1, 16, 8, 8], 16, [1, 1]), [2, 2]));
        let residual = Epilogue { activation: Activation::None, residual: true };
        assert!(refused(conv.epilogue(residual), [2, 2]));
    }
}
