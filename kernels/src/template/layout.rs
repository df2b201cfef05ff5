//! Conversions between blocked, plain and interleaved activations.
//!
//! Plain to blocked or interleaved and back are matrix transposes, done in squares of
//! `LANES x LANES` in registers; interleaved to blocked and back are copies of rows. Edges use
//! partial vectors.

use crate::error::{check_len, checked_len};
use crate::{C_BLOCK, Dtype, Isa, KernelError};
use core::ops::Range;

/// A conversion; the names say from which layout to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutOp {
    /// `[n, c, h, w]` to `[n, ceil(c / 16), h, w, 16]`.
    NchwToBlocked,
    /// `[n, ceil(c / 16), h, w, 16]` to `[n, c, h, w]`.
    BlockedToNchw,
    /// `[n, h, w, c]` to `[n, ceil(c / 16), h, w, 16]`.
    NhwcToBlocked,
    /// `[n, ceil(c / 16), h, w, 16]` to `[n, h, w, c]`.
    BlockedToNhwc,
    /// `[n, c, h, w]` to `[n, h, w, c]`: transposes `n` matrices of `c` rows.
    NchwToNhwc,
    /// `[n, h, w, c]` to `[n, c, h, w]`: transposes `n` matrices of `h * w` rows.
    NhwcToNchw,
}

/// Sizes of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutParams {
    /// From which layout to which.
    pub op: LayoutOp,
    /// Images.
    pub n: usize,
    /// Channels.
    pub c: usize,
    /// Rows.
    pub h: usize,
    /// Columns.
    pub w: usize,
}

/// Elements of a blocked tensor `[n, ceil(c / 16), h, w, 16]`, or `None` if they overflow.
pub fn blocked_len(n: usize, c: usize, h: usize, w: usize) -> Option<usize> {
    checked_len("layout", &[n, c.div_ceil(C_BLOCK), h, w, C_BLOCK]).ok()
}

/// A conversion of fixed sizes.
#[derive(Clone, Debug)]
pub struct LayoutPlan {
    params: LayoutParams,
    isa: Isa,
    kernels: LayoutKernels,
    x_len: usize,
    y_len: usize,
    /// Independent matrices.
    batches: usize,
    /// Pixels per image, and per unit.
    pixels: usize,
    chunk: usize,
}

/// Most elements that a unit moves, about: 64 KiB read and written.
const UNIT: usize = 8192;

/// Units per image and block of channels are a multiple of this, so that few threads get equal shares;
/// matrices of fewer elements are not divided.
const SHARES: usize = 4;
const WHOLE: usize = 2048;

impl LayoutPlan {
    /// Plans a conversion.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`] if an element count overflows, [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &LayoutParams) -> Result<Self, KernelError> {
        isa.require()?;
        let &LayoutParams { op, n, c, h, w } = params;
        let plain = checked_len("layout", &[n, c, h, w])?;
        let blocked = checked_len("layout", &[n, c.div_ceil(C_BLOCK), h, w, C_BLOCK])?;
        let (x_len, y_len, per_block) = match op {
            LayoutOp::NchwToBlocked | LayoutOp::NhwcToBlocked => (plain, blocked, true),
            LayoutOp::BlockedToNchw | LayoutOp::BlockedToNhwc => (blocked, plain, true),
            LayoutOp::NchwToNhwc | LayoutOp::NhwcToNchw => (plain, plain, false),
        };
        let (batches, width) =
            if per_block { (n * c.div_ceil(C_BLOCK), C_BLOCK) } else { (n, c.max(1)) };
        let pixels = if plain == 0 { 0 } else { h * w };
        let chunk = if pixels.saturating_mul(width) <= WHOLE {
            pixels.max(1)
        } else {
            let units = pixels.div_ceil((UNIT / width).max(C_BLOCK)).next_multiple_of(SHARES);
            pixels.div_ceil(units).next_multiple_of(C_BLOCK)
        };
        Ok(Self {
            params: *params,
            isa,
            kernels: kernels(isa),
            x_len,
            y_len,
            batches,
            pixels,
            chunk,
        })
    }

    /// Elements of the source.
    pub fn x_len(&self) -> usize {
        self.x_len
    }

    /// Elements of the destination.
    pub fn y_len(&self) -> usize {
        self.y_len
    }

    /// Independent units of work: pixels first, so that a range of them is a part of the image with
    /// all its channels, as convolutions divide it.
    pub fn units(&self) -> usize {
        self.batches * self.pixels.div_ceil(self.chunk)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        match self.params.op {
            LayoutOp::NhwcToBlocked | LayoutOp::BlockedToNhwc => self.kernels.copy_name,
            LayoutOp::NchwToNhwc if self.params.c == WOVEN => self.kernels.weave_name,
            _ => self.kernels.transpose_name,
        }
    }

    /// Converts units `units`. Lanes past the channels of a blocked destination become 0.
    ///
    /// # Safety
    ///
    /// * `x` has [`x_len`](Self::x_len) readable elements, `y` [`y_len`](Self::y_len) writable
    ///   ones; they do not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    #[inline]
    pub unsafe fn run(&self, x: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let LayoutParams { op, c, .. } = self.params;
        let (hw, per_batch) = (self.pixels, self.pixels.div_ceil(self.chunk));
        let blocks = c.div_ceil(C_BLOCK);
        // Matrices of one image.
        let matrices = (self.batches / self.params.n.max(1)).max(1);
        for unit in units {
            let (image, unit) = (unit / (matrices * per_batch), unit % (matrices * per_batch));
            let (batch, p0) = (image * matrices + unit % matrices, unit / matrices * self.chunk);
            let pixels = self.chunk.min(hw - p0);
            // Of the batch (n, block) in a blocked tensor, and of its first channel in a plain one.
            let at_block = (batch * hw + p0) * C_BLOCK;
            let (image, c0) = (batch / blocks, batch % blocks * C_BLOCK);
            let lanes = (c - c0.min(c)).min(C_BLOCK);
            let (plain, mixed) = ((image * c + c0) * hw + p0, (image * hw + p0) * c + c0);
            let (at_plain, at_mixed) = (batch * c * hw + p0, (batch * hw + p0) * c);
            let (x_at, y_at, job) = match op {
                LayoutOp::NchwToBlocked => (
                    plain,
                    at_block,
                    Job { rows: lanes, cols: pixels, out: C_BLOCK, x: hw, y: C_BLOCK },
                ),
                LayoutOp::BlockedToNchw => (
                    at_block,
                    plain,
                    Job { rows: pixels, cols: lanes, out: pixels, x: C_BLOCK, y: hw },
                ),
                LayoutOp::NhwcToBlocked => (
                    mixed,
                    at_block,
                    Job { rows: pixels, cols: lanes, out: C_BLOCK, x: c, y: C_BLOCK },
                ),
                LayoutOp::BlockedToNhwc => (
                    at_block,
                    mixed,
                    Job { rows: pixels, cols: lanes, out: lanes, x: C_BLOCK, y: c },
                ),
                LayoutOp::NchwToNhwc => {
                    (at_plain, at_mixed, Job { rows: c, cols: pixels, out: c, x: hw, y: c })
                }
                LayoutOp::NhwcToNchw => {
                    (at_mixed, at_plain, Job { rows: pixels, cols: c, out: pixels, x: c, y: hw })
                }
            };
            let kernel = match op {
                LayoutOp::NhwcToBlocked | LayoutOp::BlockedToNhwc => self.kernels.copy,
                LayoutOp::NchwToNhwc if c == WOVEN => self.kernels.weave,
                _ => self.kernels.transpose,
            };
            // SAFETY: the plan was made for an available ISA; the rows and columns of a unit lie in
            // the operands by construction of the offsets, and the caller owns the operands.
            unsafe { kernel(x.wrapping_add(x_at), y.wrapping_add(y_at), &job) };
        }
    }

    /// Converts `x` into `y` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len("layout", "x", self.x_len, x.len())?;
        check_len("layout", "y", self.y_len, y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// Rows of a matrix that are woven instead of transposed in squares, which would be empty for the most
/// part: the channels of colour pictures.
const WOVEN: usize = 3;

/// Transposes [`WOVEN`] rows of `cols` elements, `x_row` apart. Compilers make shuffles of it.
///
/// # Safety
///
/// The rows are readable at `x`, as many elements writable at `y`; they do not overlap.
#[inline(always)]
unsafe fn weave(x: *const f32, y: *mut f32, cols: usize, x_row: usize) {
    // SAFETY: the caller's duties.
    let (rows, out) = unsafe {
        let row = |c: usize| core::slice::from_raw_parts(x.wrapping_add(c * x_row), cols);
        let rows: [&[f32]; WOVEN] = core::array::from_fn(row);
        (rows, core::slice::from_raw_parts_mut(y, cols * WOVEN))
    };
    let (out, _) = out.as_chunks_mut::<WOVEN>();
    for (i, pixel) in out.iter_mut().enumerate() {
        *pixel = core::array::from_fn(|c| rows[c][i]);
    }
}

/// What a kernel moves: `rows` rows of `cols` elements, `x` elements apart in the source.
///
/// A transpose writes `cols` rows of `out >= rows` elements, a copy `rows` rows of `out >= cols`
/// elements, `y` elements apart; elements past the source's are 0.
pub(crate) struct Job {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) out: usize,
    pub(crate) x: usize,
    pub(crate) y: usize,
}

/// # Safety
///
/// The CPU has the instructions; the rows of the job are readable at the first pointer and
/// writable at the second.
pub(crate) type LayoutFn = unsafe fn(*const f32, *mut f32, &Job);

/// # Safety
///
/// The CPU has the instructions. Nothing is read.
pub(crate) type FetchFn = unsafe fn(*const f32, &Job);

/// The kernels of one instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutKernels {
    pub(crate) transpose: LayoutFn,
    pub(crate) copy: LayoutFn,
    /// A transpose of [`WOVEN`] rows whose results lie without gaps.
    weave: LayoutFn,
    /// Asks for the rows of a job to be in the first-level cache soon.
    pub(crate) fetch: FetchFn,
    transpose_name: &'static str,
    copy_name: &'static str,
    weave_name: &'static str,
}

macro_rules! layout_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        pub(crate) mod $id {
            use super::{Job, LayoutKernels};
            use tilewright_intrinsics::{$tile as tile, each};

            pub(super) const KERNELS: LayoutKernels = LayoutKernels {
                transpose,
                copy,
                weave,
                fetch,
                transpose_name: concat!("transpose_f32_", $l, "x", $l, "_", stringify!($isa_name)),
                copy_name: concat!("copy_rows_f32_", $l, "_", stringify!($isa_name)),
                weave_name: concat!("weave_f32_", $l, "_", stringify!($isa_name)),
            };

            $(#[target_feature(enable = $f)])*
            pub(crate) unsafe fn transpose(x: *const f32, y: *mut f32, job: &Job) {
                let (x_row, y_row) = (job.x, job.y);
                for c in (0..job.cols).step_by($l) {
                    let cols = (job.cols - c).min($l);
                    for r in (0..job.out).step_by($l) {
                        let (rows, out) = (job.rows.saturating_sub(r), (job.out - r).min($l));
                        let xs = x.wrapping_add(r * x_row + c);
                        let ys = y.wrapping_add(c * y_row + r);
                        tile!(DEF t [$l x 1 x 1]);
                        if cols == $l {
                            each!(i in $l { if i < rows {
                                t[i][0] = tile!(VLOAD xs.wrapping_add(i * x_row), 0);
                            } });
                        } else {
                            each!(i in $l { if i < rows {
                                t[i][0] = tile!(VLOAD_TAIL xs.wrapping_add(i * x_row), cols);
                            } });
                        }
                        tile!(TRANSPOSE t);
                        if out == $l {
                            each!(i in $l { if i < cols {
                                tile!(VSTORE ys.wrapping_add(i * y_row), 0, t[i][0]);
                            } });
                        } else {
                            each!(i in $l { if i < cols {
                                tile!(VSTORE_TAIL ys.wrapping_add(i * y_row), out, t[i][0]);
                            } });
                        }
                    }
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn weave(x: *const f32, y: *mut f32, job: &Job) {
                debug_assert!([job.rows, job.out, job.y] == [super::WOVEN; 3]);
                // SAFETY: the caller's duties.
                unsafe { super::weave(x, y, job.cols, job.x) }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn fetch(x: *const f32, job: &Job) {
                for r in 0..job.rows {
                    let x = x.wrapping_add(r * job.x);
                    for c in (0..job.cols).step_by(16) {
                        tile!(VPREFETCH x, c);
                        let _ = (x, c);
                    }
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn copy(x: *const f32, y: *mut f32, job: &Job) {
                let whole = job.cols.min(job.out) / $l * $l;
                for r in 0..job.rows {
                    let (xs, ys) = (x.wrapping_add(r * job.x), y.wrapping_add(r * job.y));
                    let mut c = 0;
                    while c + 2 * $l <= whole {
                        each!(i in 2 {
                            let at = c + i * $l;
                            tile!(VSTORE ys.wrapping_add(at), 0, tile!(VLOAD xs.wrapping_add(at), 0));
                        });
                        c += 2 * $l;
                    }
                    if c < whole {
                        tile!(VSTORE ys.wrapping_add(c), 0, tile!(VLOAD xs.wrapping_add(c), 0));
                    }
                }
                for c in (whole..job.out).step_by($l) {
                    let (cols, out) = (job.cols.saturating_sub(c), job.out - c);
                    for r in 0..job.rows {
                        let (xs, ys) = (x.wrapping_add(r * job.x + c), y.wrapping_add(r * job.y + c));
                        let v = if cols >= $l { tile!(VLOAD xs, 0) } else { tile!(VLOAD_TAIL xs, cols) };
                        if out >= $l {
                            tile!(VSTORE ys, 0, v);
                        } else {
                            tile!(VSTORE_TAIL ys, out, v);
                        }
                    }
                }
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(layout_row);

/// The conversion kernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> LayoutKernels {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNELS
}
