//! Depthwise convolution and max pooling of plain tensors, `[n, c, h, w]`.
//!
//! The kernels of blocked tensors are faster, but where a network's input or output is next to such
//! an op, two conversions cost more than the op itself. Here the vectors run along the rows of one
//! channel. Some input rows at a time are copied into scratch memory with their padding, and those
//! of stride 2 into two halves, so that all taps of neighbouring pixels are neighbours; the copies
//! stay in the first-level cache. A tile is several output rows high, since a row that was loaded
//! serves up to three of them.

use super::depthwise::DepthwiseParams;
use super::plane_tile::{PlaneArgs, PlaneKernel, PlaneKernels, kernels};
use super::pool::{PoolOp, PoolParams};
use super::unary::{self, UnaryKernel, UnaryOp};
use super::window::{Window, WindowSizes};
use crate::epilogue::TileActivation;
use crate::error::{check_len, checked_len};
use crate::{Epilogue, Isa, KernelError};
use alloc::boxed::Box;
use alloc::{vec, vec::Vec};
use core::ops::Range;

const OP: &str = "plane";
/// Elements of the copied rows of a block: half of a usual first-level cache.
const BLOCK: usize = 6 * 1024;
/// Widest copied row.
const MAX_ROW: usize = 16 * 1024;
/// Output elements of a unit, about.
const UNIT: usize = 8 * 1024;

/// A depthwise convolution or max pooling of fixed sizes on plain tensors.
#[derive(Clone, Debug)]
pub struct PlanePlan {
    isa: Isa,
    kernel: PlaneKernel,
    shape: PlaneShape,
    /// Blocks of output rows in a plane; those of one share the copied rows.
    blocks: usize,
    /// Planes of a unit.
    planes_per_unit: usize,
    after: Option<UnaryKernel>,
    weighted: bool,
    x_len: usize,
    y_len: usize,
}

/// What is the same for all tiles. Distances are in elements.
#[derive(Clone, Debug)]
pub(crate) struct PlaneShape {
    pub(crate) sizes: WindowSizes,
    /// Between two copied rows.
    pub(crate) row: usize,
    /// Between the halves of a copied row, if the stride is 2.
    pub(crate) phase: usize,
    /// Offset of each filter column in a copied row.
    pub(crate) taps: Box<[usize]>,
    /// What stands for padding.
    pub(crate) outside: f32,
    pub(crate) activation: TileActivation,
}

impl PlanePlan {
    /// Plans a max pooling.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] for averages and for what [`supports`](Self::supports) denies,
    /// [`KernelError::InvalidParam`] if a size is 0 or the output size is not what the others give,
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn max_pool(isa: Isa, p: &PoolParams) -> Result<Self, KernelError> {
        if p.op != PoolOp::Max {
            return Err(KernelError::Unsupported { op: OP, what: "averages" });
        }
        let sizes = WindowSizes::from(p);
        let none = Epilogue::default();
        Self::new(isa, sizes, true, f32::NEG_INFINITY, none, |all| all.max)
    }

    /// Plans a depthwise convolution.
    ///
    /// # Errors
    ///
    /// As [`max_pool`](Self::max_pool); [`KernelError::Unsupported`] for a residual.
    pub fn depthwise(isa: Isa, p: &DepthwiseParams) -> Result<Self, KernelError> {
        let sizes = WindowSizes::from(p);
        let usual = p.kernel == [3, 3] && p.stride == [1, 1] && p.dilation == [1, 1];
        Self::new(isa, sizes, false, 0.0, p.epilogue, |all| if usual { all.dw3 } else { all.dw })
    }

    /// Whether there are kernels for windows at this horizontal stride on rows of this width.
    pub fn supports(stride: [usize; 2], w_in: usize, pads: [usize; 4], reach: usize) -> bool {
        let wide = w_in.saturating_add(pads[1]).saturating_add(pads[3]).saturating_add(reach);
        matches!(stride[1], 1 | 2) && wide <= MAX_ROW
    }

    fn new(
        isa: Isa,
        sizes: WindowSizes,
        ceil: bool,
        outside: f32,
        epilogue: Epilogue,
        family: impl Fn(&'static PlaneKernels) -> &'static [PlaneKernel],
    ) -> Result<Self, KernelError> {
        isa.require()?;
        // The same sizes make sense as on blocked tensors.
        Window::new(OP, sizes, ceil, 1)?;
        let s = &sizes;
        let unsupported = |what| Err(KernelError::Unsupported { op: OP, what });
        let reach = s.dilation[1] * (s.kernel[1] - 1) + 1;
        if !Self::supports(s.stride, s.input[1], s.pads, reach) {
            return unsupported("a horizontal stride above 2 or rows this long");
        }
        if epilogue.residual {
            return unsupported("a residual");
        }
        let x_len = checked_len(OP, &[s.n, s.c, s.input[0], s.input[1]])?;
        let y_len = checked_len(OP, &[s.n, s.c, s.output[0], s.output[1]])?;

        let list = family(kernels(isa));
        let [h, w] = s.output;
        // The widest tile that the map fills, of as many rows as there are.
        let fits = |k: &&PlaneKernel| h >= k.info.w_ob && (w > k.lanes() || k.info.c_vec == 1);
        let kernel = *list.iter().find(fits).unwrap_or(&list[list.len() - 1]);

        // Tap `k` of pixel `i` is element `i * stride + k * dilation` of the padded row, which is
        // element `i + that / stride` of the half that its remainder names.
        let stride = s.stride[1];
        let offsets = (0..s.kernel[1]).map(|k| k * s.dilation[1]);
        let last = (reach - 1) / stride;
        let phase = w.next_multiple_of(kernel.info.c_ob) + last;
        // A row that is a multiple of 4 KiB would fall on the cache sets of the one before.
        let phase = phase.next_multiple_of(16) + 16;
        let taps = offsets.map(|o| o % stride * phase + o / stride).collect();
        let row = phase * stride;
        let span = s.dilation[0] * (s.kernel[0] - 1) + 1;
        let input_rows = |rows: usize| (rows - 1) * s.stride[0] + span;
        let step = kernel.info.w_ob;
        let mut block = step;
        while block + step <= h && input_rows(block + step) * row <= BLOCK {
            block += step;
        }
        // Equal blocks, none lower than the tile.
        let blocks = h.div_ceil(block).min(h / step);
        checked_len(OP, &[input_rows(h.div_ceil(blocks)), row])?;
        let planes_per_unit = (UNIT / (h * w)).clamp(1, s.n * s.c);

        let in_tile = epilogue.activation.in_tile();
        let after = match in_tile {
            Some(_) => None,
            None => UnaryOp::from_activation(epilogue.activation),
        };
        let after = after.map(|op| unary::kernel(isa, op));
        let activation = in_tile.unwrap_or(TileActivation::None);
        let weighted = outside == 0.0;
        let shape = PlaneShape { sizes, row, phase, taps, outside, activation };
        Ok(Self { isa, kernel, shape, blocks, planes_per_unit, after, weighted, x_len, y_len })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.kernel.info.name
    }

    /// Elements of the input.
    pub fn x_len(&self) -> usize {
        self.x_len
    }

    /// Elements of the output.
    pub fn y_len(&self) -> usize {
        self.y_len
    }

    /// Elements of the weights, `[c, f_h, f_w]`; 0 for a pooling.
    pub fn weights_len(&self) -> usize {
        let s = &self.shape.sizes;
        if self.weighted { s.c * s.kernel[0] * s.kernel[1] } else { 0 }
    }

    /// Elements of the bias; 0 for a pooling.
    pub fn bias_len(&self) -> usize {
        if self.weighted { self.shape.sizes.c } else { 0 }
    }

    /// Elements of scratch memory that each thread needs.
    pub fn scratch_len(&self) -> usize {
        self.input_rows(self.shape.sizes.output[0].div_ceil(self.blocks)) * self.shape.row
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        let s = &self.shape.sizes;
        (s.n * s.c).div_ceil(self.planes_per_unit) * self.shared()
    }

    /// Units that share a plane.
    fn shared(&self) -> usize {
        if self.planes_per_unit == 1 { self.blocks } else { 1 }
    }

    fn input_rows(&self, rows: usize) -> usize {
        let s = &self.shape.sizes;
        (rows - 1) * s.stride[0] + s.dilation[0] * (s.kernel[0] - 1) + 1
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` have [`x_len`](Self::x_len), [`weights_len`](Self::weights_len)
    ///   and [`bias_len`](Self::bias_len) readable elements, `scratch` has
    ///   [`scratch_len`](Self::scratch_len) writable ones that no other thread uses.
    /// * `y` has [`y_len`](Self::y_len) writable elements and overlaps no operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
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
        let s = &self.shape.sizes;
        let (h, w) = (s.output[0], s.output[1]);
        let shared = self.shared();
        for unit in units {
            let (group, part) = (unit / shared, unit % shared);
            let first = group * self.planes_per_unit;
            let blocks = if shared == 1 { 0..self.blocks } else { part..part + 1 };
            for plane in first..(first + self.planes_per_unit).min(s.n * s.c) {
                let channel = plane % s.c;
                for block in blocks.clone() {
                    let rows = block * h / self.blocks..(block + 1) * h / self.blocks;
                    let out = y.wrapping_add((plane * h + rows.start) * w);
                    let args = PlaneArgs {
                        x: x.wrapping_add(plane * s.input[0] * s.input[1]),
                        weights: weights.wrapping_add(channel * s.kernel[0] * s.kernel[1]),
                        bias: bias.wrapping_add(channel),
                        y: y.wrapping_add(plane * h * w),
                        scratch,
                        rows: rows.clone(),
                    };
                    // SAFETY: the ISA is available; plane, channel and rows lie in the operands
                    // that the caller vouches for, and the scratch memory has the rows of a block.
                    unsafe { (self.kernel.run)(&self.shape, &args) };
                    if let Some(after) = &self.after {
                        // SAFETY: the rows just written; in place.
                        unsafe { after.call(out, out, rows.len() * w) };
                    }
                }
            }
        }
    }

    /// Computes `y` on this thread. For a pooling, `weights` and `bias` are empty; an empty bias of
    /// a convolution is 0.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: &[f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "x", self.x_len, x.len())?;
        check_len(OP, "weights", self.weights_len(), weights.len())?;
        let zeros = if bias.is_empty() { vec![0.0; self.bias_len()] } else { Vec::new() };
        let bias = if bias.is_empty() { &zeros[..] } else { bias };
        check_len(OP, "bias", self.bias_len(), bias.len())?;
        check_len(OP, "y", self.y_len, y.len())?;
        let mut scratch = vec![0.0; self.scratch_len()];
        let (x, w, b) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
        let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x, w, b, y, scratch, 0..self.units()) };
        Ok(())
    }
}

impl PlaneKernel {
    /// Elements of a vector.
    fn lanes(&self) -> usize {
        self.info.c_ob / self.info.c_vec
    }
}
