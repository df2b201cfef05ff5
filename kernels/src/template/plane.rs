//! Depthwise convolution and max pooling of plain tensors, `[n, c, h, w]`.
//!
//! Where a network's input or output is next to such an op, two conversions to blocks and back cost
//! more than the op itself. Here the vectors run along the rows of one channel. The usual windows
//! have kernels that read the rows where they lie (`plane_direct`). For all others some input rows
//! at a time are copied into scratch memory with their padding (`plane_slide` and `plane_tile`), and
//! those of stride 2 into two halves, so that all taps of neighbouring pixels are neighbours; the
//! copies stay in the first-level cache.

use super::depthwise::DepthwiseParams;
use super::plane_direct;
use super::plane_slide;
use super::plane_tile::{PlaneArgs, PlaneKernel, PlaneKernels, kernels};
use super::pool::{PoolOp, PoolParams};
use super::unary::{self, UnaryKernel};
use super::window::{Window, WindowSizes};
use crate::epilogue::TileActivation;
use crate::error::{check_len, checked_len};
use crate::{Epilogue, Isa, KernelError};
use alloc::boxed::Box;
use alloc::{vec, vec::Vec};
use core::ops::Range;

const OP: &str = "plane";
/// Elements of the copied rows of a block, about: half of a usual first-level cache.
const BLOCK: usize = 6 * 1024;
/// Output columns from which on copying pays, where no kernel slides over the copies.
const COPY_WIDTH: usize = 32;
/// Widest row, with its padding.
const MAX_ROW: usize = 16 * 1024;
/// Output elements of a unit, about.
const UNIT: usize = 8 * 1024;
/// Output rows of a block if nothing is copied, and its elements, about: what stays in the
/// first-level cache while strips of it are computed side by side.
const DIRECT_ROWS: usize = 56;
const DIRECT_BLOCK: usize = 4096;

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

/// What is the same for all tiles.
#[derive(Clone, Debug)]
pub(crate) struct PlaneShape {
    pub(crate) sizes: WindowSizes,
    pub(crate) copies: Copies,
    pub(crate) activation: TileActivation,
}

/// Where copied rows lie; nothing if a kernel copies none. Distances are in elements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// Between two copied rows.
    pub(crate) row: usize,
    /// Between the halves of a copied row, if the stride is 2.
    pub(crate) phase: usize,
    /// Offset of each filter column in a copied row.
    pub(crate) taps: Box<[usize]>,
}

impl PlanePlan {
    /// Plans a max pooling.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] for averages, horizontal strides above 2 and very long rows,
    /// [`KernelError::InvalidParam`] if a size is 0 or the output size is not what the others give,
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn max_pool(isa: Isa, p: &PoolParams) -> Result<Self, KernelError> {
        if p.op != PoolOp::Max {
            return Err(KernelError::Unsupported { op: OP, what: "averages" });
        }
        let sizes = WindowSizes::from(p);
        let none = Epilogue::default();
        Self::new(isa, sizes, false, none, |all| all.max)
    }

    /// Plans a depthwise convolution.
    ///
    /// # Errors
    ///
    /// As [`max_pool`](Self::max_pool); [`KernelError::Unsupported`] for a residual.
    pub fn depthwise(isa: Isa, p: &DepthwiseParams) -> Result<Self, KernelError> {
        let sizes = WindowSizes::from(p);
        Self::new(isa, sizes, true, p.epilogue, |all| all.dw)
    }

    /// Whether a max pooling of plain tensors is faster here than between two conversions, on the
    /// kernels of blocks.
    pub fn max_pool_pays(p: &PoolParams) -> bool {
        p.op == PoolOp::Max && pays(&WindowSizes::from(p), false)
    }

    /// The same of a depthwise convolution.
    pub fn depthwise_pays(p: &DepthwiseParams) -> bool {
        !p.epilogue.residual && pays(&WindowSizes::from(p), true)
    }

    fn new(
        isa: Isa,
        sizes: WindowSizes,
        weighted: bool,
        epilogue: Epilogue,
        family: impl Fn(&'static PlaneKernels) -> &'static [PlaneKernel],
    ) -> Result<Self, KernelError> {
        isa.require()?;
        // The same sizes make sense as on blocked tensors; those of a pooling may be rounded up.
        Window::new(OP, sizes, !weighted, 1)?;
        let s = &sizes;
        let unsupported = |what| Err(KernelError::Unsupported { op: OP, what });
        if !fits_copies(s) {
            return unsupported("a horizontal stride above 2 or rows this long");
        }
        if epilogue.residual {
            return unsupported("a residual");
        }
        let x_len = checked_len(OP, &[s.n, s.c, s.input[0], s.input[1]])?;
        let y_len = checked_len(OP, &[s.n, s.c, s.output[0], s.output[1]])?;
        let [h, w] = s.output;
        let direct = plane_direct::kernels(isa).of(s, weighted);
        let (kernel, copies, blocks) = match direct {
            Some(kernel) => {
                let rows = (DIRECT_BLOCK / w).clamp(1, DIRECT_ROWS);
                (kernel, None, h.div_ceil(rows))
            }
            None => {
                let slide = plane_slide::of(isa, s).filter(|_| weighted);
                let (kernel, copies, blocks) = Copies::new(s, slide, family(kernels(isa)))?;
                (kernel, Some(copies), blocks)
            }
        };
        let planes_per_unit = (UNIT / (h * w)).clamp(1, s.n * s.c);

        let (activation, after) = match epilogue.activation.short_in_tile() {
            Some(activation) => (activation, None),
            None => (TileActivation::None, unary::activation_kernel(isa, epilogue.activation)),
        };
        let shape = PlaneShape { sizes, copies: copies.unwrap_or_default(), activation };
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
        self.input_rows(self.shape.sizes.output[0].div_ceil(self.blocks)) * self.shape.copies.row
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
        input_rows(&self.shape.sizes, rows)
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
        // Copied rows are those of one plane; kernels that copy none take several at once, which costs
        // less than one by one: all of them if nobody reads them again, else what stays in the cache.
        let most = if self.shape.copies.row > 0 {
            1
        } else if self.after.is_none() && w <= self.kernel.info.c_ob() {
            usize::MAX
        } else {
            DIRECT_BLOCK / 2 / (h * w)
        };
        for unit in units {
            let (group, part) = (unit / shared, unit % shared);
            let first = group * self.planes_per_unit;
            let end = (first + self.planes_per_unit).min(s.n * s.c);
            let blocks = if shared == 1 { 0..self.blocks } else { part..part + 1 };
            let mut plane = first;
            while plane < end {
                let channel = plane % s.c;
                let planes = most.clamp(1, (end - plane).min(s.c - channel));
                for block in blocks.clone() {
                    let rows = block * h / self.blocks..(block + 1) * h / self.blocks;
                    let args = PlaneArgs {
                        planes,
                        x: x.wrapping_add(plane * s.input[0] * s.input[1]),
                        weights: weights.wrapping_add(channel * s.kernel[0] * s.kernel[1]),
                        bias: bias.wrapping_add(channel),
                        y: y.wrapping_add(plane * h * w),
                        scratch,
                        rows: rows.clone(),
                    };
                    // SAFETY: the ISA is available; planes, channels and rows lie in the operands
                    // that the caller vouches for, and the scratch memory has the rows of a block.
                    unsafe { (self.kernel.run)(&self.shape, &args) };
                    let Some(after) = &self.after else { continue };
                    for plane in plane..plane + planes {
                        let out = y.wrapping_add((plane * h + rows.start) * w);
                        // SAFETY: the rows just written; in place.
                        unsafe { after.call(out, out, rows.len() * w) };
                    }
                }
                plane += planes;
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

/// Whether there are kernels for these windows: their rows may be copied.
pub(super) fn fits_copies(s: &WindowSizes) -> bool {
    let reach = s.dilation[1].saturating_mul(s.kernel[1]);
    let wide = [s.pads[1], s.pads[3], reach].iter().fold(s.input[1], |n, &m| n.saturating_add(m));
    matches!(s.stride[1], 1 | 2) && wide <= MAX_ROW
}

/// Whether they beat conversions and the kernels of blocks. Those that copy do so in long rows: in
/// others the cost of preparing a row shows.
fn pays(s: &WindowSizes, convolution: bool) -> bool {
    if cfg!(feature = "few-kernels") {
        return false;
    }
    let width = plane_slide::pays_from(s).filter(|_| convolution).unwrap_or(COPY_WIDTH);
    !s.output.contains(&0)
        && fits_copies(s)
        && (s.output[1] >= width || plane_direct::is_there(s, convolution))
}

/// Input rows that a block of output rows reads.
pub(super) fn input_rows(s: &WindowSizes, rows: usize) -> usize {
    (rows - 1) * s.stride[0] + s.dilation[0] * (s.kernel[0] - 1) + 1
}

impl Copies {
    /// Chooses a kernel that copies, unless one slides, where it copies to, and the number of blocks of rows.
    fn new(
        s: &WindowSizes,
        slide: Option<PlaneKernel>,
        list: &'static [PlaneKernel],
    ) -> Result<(PlaneKernel, Self, usize), KernelError> {
        let [h, w] = s.output;
        if let Some(kernel) = slide {
            let copies = Self::of(s, kernel.lanes())?;
            let blocks = copies.blocks(s, 1, 1);
            return Ok((kernel, copies, blocks));
        }
        // The widest tile that the map fills, of as many rows as there are.
        let fits = |k: &&PlaneKernel| h >= k.info.w_ob() && (w > k.lanes() || k.info.c_vec() == 1);
        let kernel = *list.iter().find(fits).unwrap_or(&list[list.len() - 1]);
        let copies = Self::of(s, kernel.info.c_ob())?;
        let blocks = copies.blocks(s, kernel.info.w_ob(), 1);
        Ok((kernel, copies, blocks))
    }

    /// Where rows are copied to for tiles of `wide` columns.
    pub(super) fn of(s: &WindowSizes, wide: usize) -> Result<Self, KernelError> {
        // Tap `k` of pixel `i` is element `i * stride + k * dilation` of the padded row, which is
        // element `i + that / stride` of the half that its remainder names.
        let stride = s.stride[1];
        let offsets = (0..s.kernel[1]).map(|k| k * s.dilation[1]);
        let last = s.dilation[1] * (s.kernel[1] - 1) / stride;
        let phase = s.output[1].next_multiple_of(wide) + last;
        // A row that is a multiple of 4 KiB would fall on the cache sets of the one before.
        let phase = phase.next_multiple_of(16) + 16;
        let taps = offsets.map(|o| o % stride * phase + o / stride).collect();
        let row = phase * stride;
        checked_len(OP, &[s.c, input_rows(s, s.output[0]), row])?;
        Ok(Self { row, phase, taps })
    }

    /// Blocks of output rows whose copies of so many planes stay in the cache: equal ones, none lower than
    /// `step` rows.
    pub(super) fn blocks(&self, s: &WindowSizes, step: usize, planes: usize) -> usize {
        let h = s.output[0];
        let mut block = step;
        while block + step <= h && planes * input_rows(s, block + step) * self.row <= BLOCK {
            block += step;
        }
        h.div_ceil(block).min(h / step)
    }
}

impl PlaneKernel {
    /// Elements of a vector.
    fn lanes(&self) -> usize {
        self.info.c_ob() / self.info.c_vec()
    }
}
