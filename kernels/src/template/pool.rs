//! Maximum and average pooling of blocked tensors.
//!
//! See `window.rs` for the tiles. A window that is the whole image, giving one pixel, has kernels
//! of its own, with eight partial results.

use super::window::{ByteWindow, Window, WindowArgs, WindowKernel, WindowSizes};
use super::window_kernel::*;
use crate::error::check_len;
use crate::{C_BLOCK, Dtype, Isa, KernelError, KernelInfo};
use core::ops::Range;

/// What becomes of the pixels of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolOp {
    /// The largest; -inf if the window has no pixel in the image, NaN if one of them is NaN.
    Max,
    /// The mean.
    Average {
        /// Whether padding counts in the divisor (as zeros). What lies beyond the padded image (in
        /// a last window when the output size is rounded up) never does. A window that counts
        /// nothing gives 0.
        count_include_pad: bool,
    },
}

/// Sizes and attributes of a pooling, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolParams {
    /// Maximum or average.
    pub op: PoolOp,
    /// Images.
    pub n: usize,
    /// Channels.
    pub c: usize,
    /// Input rows.
    pub h_in: usize,
    /// Input columns.
    pub w_in: usize,
    /// Output rows: `(h_in + pads - dilation * (kernel - 1) - 1) / stride + 1`, rounded up or down.
    pub h_out: usize,
    /// Output columns, by the same formula.
    pub w_out: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Input pixels between neighbouring windows.
    pub stride: [usize; 2],
    /// Input pixels between neighbouring taps.
    pub dilation: [usize; 2],
    /// Pixels around the input: top, left, bottom, right.
    pub pads: [usize; 4],
}

impl From<&PoolParams> for WindowSizes {
    fn from(p: &PoolParams) -> Self {
        Self {
            n: p.n,
            c: p.c,
            input: [p.h_in, p.w_in],
            output: [p.h_out, p.w_out],
            kernel: p.kernel,
            stride: p.stride,
            dilation: p.dilation,
            pads: p.pads,
        }
    }
}

/// A pooling of fixed sizes.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    isa: Isa,
    window: Window,
    kernels: [WindowKernel; 2],
    global: Option<GlobalKernel>,
}

const OP: &str = "pool";
/// Pixels of a unit of the global kernels, about.
const GLOBAL_UNIT: usize = 1024;

impl PoolPlan {
    /// Plans a pooling.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if a size is 0 or the output size is not what the others give,
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, p: &PoolParams) -> Result<Self, KernelError> {
        isa.require()?;
        let sizes = WindowSizes::from(p);
        let all = kernels(isa);
        let mut window = Window::new(OP, sizes, true, all.max.len())?;
        let is_global = p.kernel == sizes.input
            && p.dilation == [1, 1]
            && sizes.output == [1, 1]
            && p.pads == [0; 4];
        let (kernels, global) = match p.op {
            PoolOp::Max => (all.max, all.global_max),
            PoolOp::Average { count_include_pad } => {
                window.count_taps(count_include_pad);
                (all.average, all.global_average)
            }
        };
        let kernels = window.kernels(kernels);
        Ok(Self { isa, window, kernels, global: is_global.then_some(global) })
    }

    /// Elements of the input.
    pub fn x_len(&self) -> usize {
        self.window.x_len
    }

    /// Elements of the output.
    pub fn y_len(&self) -> usize {
        self.window.y_len
    }

    /// Planes of a unit of the global kernels.
    fn per_unit(&self) -> usize {
        let s = &self.window.sizes;
        (GLOBAL_UNIT / (s.input[0] * s.input[1])).max(1)
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        match self.global {
            Some(_) => self.window.planes().div_ceil(self.per_unit()),
            None => self.window.units(),
        }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        match &self.global {
            Some(kernel) => kernel.info.name,
            None => self.kernels[1].info.name,
        }
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x` has [`x_len`](Self::x_len) readable elements, `y` [`y_len`](Self::y_len) writable
    ///   ones; they do not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let s = &self.window.sizes;
        let pixels = s.input[0] * s.input[1];
        let y_plane = s.output[0] * s.output[1] * C_BLOCK;
        if let Some(global) = &self.global {
            let per_unit = self.per_unit();
            for plane in units.start * per_unit..(units.end * per_unit).min(self.window.planes()) {
                let (x, y) =
                    (x.wrapping_add(plane * pixels * C_BLOCK), y.wrapping_add(plane * C_BLOCK));
                // SAFETY: the ISA is available; the plane and its pixel lie in the operands, which
                // the caller owns.
                unsafe { (global.run)(x, pixels, y) };
            }
            return;
        }
        self.window.for_each(units, |plane, rows| {
            let args = WindowArgs {
                x: x.wrapping_add(plane * pixels * C_BLOCK),
                weights: core::ptr::null(),
                bias: core::ptr::null(),
                residual: core::ptr::null(),
                y: y.wrapping_add(plane * y_plane),
                rows,
                run: 0,
                channels: self.window.channels(plane),
                bytes: ByteWindow::default(),
            };
            // SAFETY: the ISA is available; planes and rows lie in the operands, which the caller
            // owns, by construction of the units.
            unsafe { self.window.run(&self.kernels, args) };
        });
    }

    /// Computes `y` from `x` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "x", self.x_len(), x.len())?;
        check_len(OP, "y", self.y_len(), y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// A microkernel that reduces a plane to a pixel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalKernel {
    pub(crate) info: KernelInfo,
    run: GlobalFn,
}

/// # Safety
///
/// The CPU has the instructions; the given number (at least 1) of pixels of 16 channels are
/// readable at the first pointer, one is writable at the second.
type GlobalFn = unsafe fn(*const f32, usize, *mut f32);

/// The microkernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct PoolKernels {
    pub(crate) max: &'static [&'static [WindowKernel]],
    pub(crate) average: &'static [&'static [WindowKernel]],
    pub(crate) global_max: GlobalKernel,
    pub(crate) global_average: GlobalKernel,
}

macro_rules! pool_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            mod max {
                use super::*;
                #[cfg(not(feature = "few-kernels"))]
                window_kernels! { max "max_pool", $tile $isa $isa_name $l $feat, [[2 2] [3 2]] }
                #[cfg(feature = "few-kernels")]
                window_kernels! { widths max "max_pool", $tile $isa $isa_name $l $feat, [[any any]], [1 2] }
            }
            mod average {
                use super::*;
                #[cfg(not(feature = "few-kernels"))]
                window_kernels! { accum "average_pool", $tile $isa $isa_name $l $feat, [[2 2] [3 2]] }
                #[cfg(feature = "few-kernels")]
                window_kernels! { widths accum "average_pool", $tile $isa $isa_name $l $feat, [[any any]], [1 2] }
            }
            global_kernel! { max global_max "global_max_pool", $tile $isa $isa_name $l $feat,
                f32::NEG_INFINITY, |t, x| tile!(VMAXIMUM x, t), |t, n| t }
            global_kernel! { accum global_average "global_average_pool", $tile $isa $isa_name $l $feat,
                0.0, |t, x| tile!(VADD t, x), |t, n| tile!(VDIV t, n) }
            pub(super) const KERNELS: PoolKernels = PoolKernels {
                max: max::KERNELS,
                average: average::KERNELS,
                global_max: GLOBAL_MAX,
                global_average: GLOBAL_AVERAGE,
            };
        }
    };
}

macro_rules! global_kernel {
    ($mode:ident $name:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $l:tt [$($f:tt)*],
     $start:expr, |$t:ident, $x:ident| $join:expr, |$u:ident, $n:ident| $end:expr) => {
        paste::paste! {
            const [<$name:upper>]: GlobalKernel = GlobalKernel {
                info: KernelInfo {
                    name: concat!($op, "_f32_8x", $l, "_", stringify!($isa_name)),
                    op: $op, isa: Isa::$isa, dtype: Dtype::F32,
                    tile: crate::Tile { rows: 1, w_ob: 1, c_vec: 1, c_ob: $l, unroll: 8 }.packed(),
                },
                run: $name,
            };
        }
        $(#[target_feature(enable = $f)])*
        unsafe fn $name(x: *const f32, pixels: usize, y: *mut f32) {
            use tilewright_intrinsics::{$tile as tile, each};
            let step = C_BLOCK;
            for lane in (0..C_BLOCK).step_by(tile!(LANES)) {
                let mut a = x.wrapping_add(lane);
                tile!(DEF t [1 x 8 x 1]);
                tile!(FILL t [1 x 8 x 1] $start);
                for _ in 0..pixels / 8 {
                    window_tap!($mode t 8 x a step a 0, 8);
                    a = a.wrapping_add(8 * C_BLOCK);
                }
                let rest = pixels % 8;
                window_tap!($mode t 8 x a step a 0, rest);
                each!(i in 4 { let ($t, $x) = (t[i][0], t[i + 4][0]); t[i][0] = $join; });
                each!(i in 2 { let ($t, $x) = (t[i][0], t[i + 2][0]); t[i][0] = $join; });
                let ($t, $x) = (t[0][0], t[1][0]);
                let ($u, $n) = ($join, tile!(VSET pixels as f32));
                let _ = $n;
                let z = $end;
                tile!(VSTORE y.wrapping_add(lane), 0, z);
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(pool_row);

/// The microkernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> PoolKernels {
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
