//! Maximum and average pooling of bytes, blocked, exact.
//!
//! A maximum compares bytes: signed ones are flipped to unsigned ones and back.
//!
//! For an average, bytes are converted to `f32` as they are loaded, and the tiles are those of the
//! pooling of floats. It is `clamp(round(s as f32 * (scale / n)) + y_zero_point)`: `s` is the exact sum
//! of the pixels less their zero point, `n` the number of pixels that count, and `scale` that of the
//! input over that of the output. Quotient and product are rounded to `f32`, the result to the nearest
//! integer, ties to even (ONNX Runtime: `QLinearAveragePool`, `QLinearGlobalAveragePool`).

use super::pool::{PoolOp, PoolParams};
use super::qmatmul::{check_type, check_zero_points};
use super::window::{ByteWindow, Window, WindowArgs, WindowKernel, WindowSizes};
use super::window_kernel::*;
use crate::error::{check_len, checked_len};
use crate::quant::{Bytes, QuantOutput, QuantResult};
use crate::{C_BLOCK, Dtype, Isa, KernelError, KernelInfo};
use core::ops::Range;

pub use super::qwindow_reference::pool as reference;

const OP: &str = "qpool";

/// Sizes, types and attributes of a pooling of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QpoolParams {
    /// Sizes and attributes. A maximum over no pixel is the least number of the type.
    pub pool: PoolParams,
    /// Type of input and output: [`Dtype::I8`] or [`Dtype::U8`].
    pub dtype: Dtype,
    /// Of an average: the zero point of the input. Padding that counts is that.
    pub x_zero_point: i32,
    /// Of an average: the zero point of the output.
    pub y_zero_point: i32,
    /// Of an average: the scale of the input over that of the output; finite.
    pub scale: f32,
}

impl QpoolParams {
    /// Input and output with one scale and zero point, which then need not be known but for padding that
    /// counts.
    pub fn new(pool: PoolParams, dtype: Dtype) -> Self {
        Self { pool, dtype, x_zero_point: 0, y_zero_point: 0, scale: 1.0 }
    }
}

/// A pooling of bytes of fixed sizes.
#[derive(Clone, Debug)]
pub struct QpoolPlan {
    params: QpoolParams,
    isa: Isa,
    window: Window,
    kernels: [WindowKernel<u8>; 2],
    global: Option<GlobalKernel>,
    bytes: ByteWindow,
}

/// Pixels of a unit of the global kernel, about.
const GLOBAL_UNIT: usize = 2048;

impl QpoolPlan {
    /// Plans a pooling.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if a size is 0, the output size is not what the others give, type,
    /// zero point or scale are not as said, or the window of an average has so many pixels (from 65794
    /// on) that a sum may not be exact; [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, p: &QpoolParams) -> Result<Self, KernelError> {
        isa.require()?;
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        let output = match p.dtype {
            Dtype::I8 => QuantOutput::i8(p.y_zero_point.clamp(-128, 127) as i8),
            Dtype::U8 => QuantOutput::u8(p.y_zero_point.clamp(0, 255) as u8),
            _ => return invalid("type", "i8 or u8"),
        };
        check_zero_points(OP, p.dtype, &[p.x_zero_point, p.y_zero_point])?;
        if !p.scale.is_finite() {
            return invalid("scale", "finite");
        }
        let all = kernels(isa);
        let is_max = p.pool.op == PoolOp::Max;
        let list = if is_max { all.max } else { all.average };
        let sizes = WindowSizes::from(&p.pool);
        let mut window = Window::new(OP, sizes, true, list.len())?;
        let is_global = p.pool.kernel == sizes.input
            && p.pool.dilation == [1, 1]
            && sizes.output == [1, 1]
            && p.pool.pads == [0; 4];
        if let PoolOp::Average { count_include_pad } = p.pool.op {
            if checked_len(OP, &p.pool.kernel)? > (1 << 24) / 255 {
                return invalid("window", "so small that every sum is exact");
            }
            window.count_taps(count_include_pad);
        }
        let bytes = ByteWindow::new(p.dtype, p.x_zero_point, p.scale, output).unwrap_or_default();
        let global = (is_global && !is_max).then_some(all.global_average);
        let kernels = window.kernels(list);
        Ok(Self { params: *p, isa, window, kernels, global, bytes })
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &QpoolParams {
        &self.params
    }

    /// Bytes of the input.
    pub fn x_len(&self) -> usize {
        self.window.x_len
    }

    /// Bytes of the output.
    pub fn y_len(&self) -> usize {
        self.window.y_len
    }

    /// Planes of a unit of the global kernel.
    fn per_unit(&self) -> usize {
        let s = &self.window.sizes;
        (GLOBAL_UNIT / (s.input[0] * s.input[1])).max(1)
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        match &self.global {
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
        self.global.map_or(self.kernels[1].info, |g| g.info).name
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x` is readable for [`x_len`](Self::x_len) bytes, `y` writable for [`y_len`](Self::y_len); they
    ///   do not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const u8, y: *mut u8, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let s = &self.window.sizes;
        let [x_plane, y_plane] = [s.input, s.output].map(|[h, w]| h * w * C_BLOCK);
        let args = |plane: usize, rows| WindowArgs {
            x: x.wrapping_add(plane * x_plane),
            weights: core::ptr::null(),
            bias: core::ptr::null(),
            residual: core::ptr::null(),
            y: y.wrapping_add(plane * y_plane),
            rows,
            run: 0,
            channels: self.window.channels(plane),
            bytes: self.bytes,
        };
        if let Some(global) = &self.global {
            let per_unit = self.per_unit();
            for plane in units.start * per_unit..(units.end * per_unit).min(self.window.planes()) {
                // SAFETY: the ISA is available; the plane and its pixel lie in the operands, which
                // the caller owns.
                unsafe { (global.run)(&self.window, &args(plane, 0..1)) };
            }
            return;
        }
        self.window.for_each(units, |plane, rows| {
            // SAFETY: the ISA is available; planes and rows lie in the operands, which the caller
            // owns, by construction of the units.
            unsafe { self.window.run(&self.kernels, args(plane, rows)) };
        });
    }

    /// Computes `y` from `x` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if it
    /// has another type than the plan was made for.
    pub fn compute(&self, x: Bytes<'_>, mut y: QuantResult<'_>) -> Result<(), KernelError> {
        let (dtype, y, y_len) = y.parts();
        check_type(OP, "type of the input", self.params.dtype, x.dtype())?;
        check_type(OP, "type of the output", self.params.dtype, dtype)?;
        check_len(OP, "input", self.x_len(), x.len())?;
        check_len(OP, "output", self.y_len(), y_len)?;
        // SAFETY: types and lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y, 0..self.units()) };
        Ok(())
    }
}

/// A microkernel that reduces a plane to a pixel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalKernel {
    pub(crate) info: KernelInfo,
    run: super::window::WindowFn<u8>,
}

/// The microkernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct QpoolKernels {
    pub(crate) max: &'static [&'static [WindowKernel<u8>]],
    pub(crate) average: &'static [&'static [WindowKernel<u8>]],
    pub(crate) global_average: GlobalKernel,
}

macro_rules! qpool_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            mod max {
                use super::*;
                window_kernels! { qmax "qmax_pool", $tile $isa $isa_name $l [$($f)*], [[2 2] [3 2]] }
            }
            mod average {
                use super::*;
                window_kernels! { qaccum "qaverage_pool", $tile $isa $isa_name $l [$($f)*], [] }
            }
            pub(super) const KERNELS: QpoolKernels = QpoolKernels {
                max: max::KERNELS,
                average: average::KERNELS,
                global_average: GlobalKernel {
                    info: KernelInfo {
                        name: concat!("qglobal_average_pool_i8_8x", $l, "_", stringify!($isa_name)),
                        op: "qglobal_average_pool", isa: Isa::$isa, dtype: Dtype::I8,
                        tile: crate::Tile { rows: 1, w_ob: 1, c_vec: 1, c_ob: $l, unroll: 8 }.packed(),
                    },
                    run: global_average,
                },
            };

            $(#[target_feature(enable = $f)])*
            unsafe fn global_average(g: &Window, args: &WindowArgs<u8>) {
                use tilewright_intrinsics::{$tile as tile, each};
                let pixels = g.sizes.input[0] * g.sizes.input[1];
                let step = C_BLOCK;
                for lane in window_lanes!(qaccum args) {
                    let mut a = args.x.wrapping_add(lane);
                    tile!(DEF t [1 x 8 x 1]);
                    for _ in 0..pixels / 8 {
                        window_tap!(qaccum t 8 args a step a 0, 8);
                        a = a.wrapping_add(8 * C_BLOCK);
                    }
                    let rest = pixels % 8;
                    window_tap!(qaccum t 8 args a step a 0, rest);
                    each!(i in 4 { t[i][0] = tile!(VADD t[i][0], t[i + 4][0]); });
                    let sum = tile!(VADD tile!(VADD t[0][0], t[1][0]), tile!(VADD t[2][0], t[3][0]));
                    let factor = args.bytes.scale / pixels as f32;
                    let z = window_requantize!(args, tile!(VMUL sum, tile!(VSET factor)));
                    let y = args.y.wrapping_add(lane);
                    tile!(VSTORE8 y, z);
                }
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(qpool_row);

/// The microkernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> QpoolKernels {
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
