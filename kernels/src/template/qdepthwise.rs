//! Depthwise convolution of bytes (ONNX `QLinearConv` with a group per channel), blocked, exact.
//!
//! Bytes are converted to `f32` as they are loaded, less their zero point, so that padding is 0 as in
//! the convolution of floats, whose tiles these are. Every sum is an integer that `f32` holds: sizes
//! for which one may not be are refused. The bias is added in two parts, of which the second is a
//! multiple of 256, so that sum and bias are rounded to `f32` once, as the definition does.
//!
//! Where the instruction set has products of bytes, of pairs of 16 bits or of single ones that suit the filter,
//! `qdepthwise_dot`, `qdepthwise_pairs` and `qdepthwise_wide` compute the same sums as integers.

use super::depthwise::DepthwiseParams;
use super::qdepthwise_dot::{self, PLACES};
use super::qmatmul::{check_columns, check_type, check_zero_points, column};
use super::window::{ByteWindow, Window, WindowArgs, WindowKernel, WindowSizes};
use super::window_kernel::*;
use super::{qdepthwise_pairs, qdepthwise_wide};
use crate::error::{check_len, checked_len};
use crate::quant::{Bytes, QuantColumns, QuantOutput, QuantResult};
use crate::{Activation, C_BLOCK, Dtype, Isa, KernelError, KernelInfo};
use core::ops::Range;

pub use super::qwindow_reference::depthwise as reference;

const OP: &str = "qdepthwise";

/// Sizes, types and attributes of a depthwise convolution of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QdepthwiseParams {
    /// Sizes and attributes. The epilogue has neither residual nor activation: the bounds of the output
    /// are the activation.
    pub conv: DepthwiseParams,
    /// Type of the input: [`Dtype::I8`] or [`Dtype::U8`].
    pub x: Dtype,
    /// Zero point of the input, in the range of its type: what pads the image.
    pub x_zero_point: i32,
    /// Type of the weights.
    pub w: Dtype,
    /// How many signed bytes add up to a weight less its zero point, as of
    /// [`QconvParams`](crate::QconvParams): 1 if all are in the range of `i8`, for which there may be
    /// faster kernels, else 2 or 3.
    pub terms: usize,
    /// The output: [`QuantOutput::I8`] or [`QuantOutput::U8`].
    pub output: QuantOutput,
}

/// A depthwise convolution of bytes of fixed sizes.
#[derive(Clone, Debug)]
pub struct QdepthwisePlan {
    params: QdepthwiseParams,
    isa: Isa,
    window: Window,
    kernels: [WindowKernel<u8>; 2],
    bytes: ByteWindow,
    way: Way,
}

/// What the kernels multiply.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Floats,
    /// Words of four bytes.
    Dots,
    /// Words of two integers of 16 bits, whose products are added up.
    Pairs,
    /// Integers of 16 bits, whose products are not.
    Wide,
}

/// Numbers per channel that follow the sums: the two parts of the bias, and the scale.
const COLUMNS: usize = 3;

impl QdepthwisePlan {
    /// Plans a convolution.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if a size is 0, the output size is not what the others give, a
    /// type or zero point is not one of bytes, or the filter so large (from 259 taps on) that a sum may
    /// not be exact; [`KernelError::Unsupported`] for a residual, an activation and an output that is not
    /// bytes; [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, p: &QdepthwiseParams) -> Result<Self, KernelError> {
        isa.require()?;
        let unsupported = |what| Err(KernelError::Unsupported { op: OP, what });
        p.output.check(OP)?;
        if p.conv.epilogue.residual {
            return unsupported("a residual");
        }
        if p.conv.epilogue.activation != Activation::None {
            return unsupported("an activation but the bounds of the output");
        }
        if [p.x, p.w].iter().any(|t| !matches!(t, Dtype::I8 | Dtype::U8)) {
            return Err(KernelError::InvalidParam { op: OP, param: "type", expected: "i8 or u8" });
        }
        check_zero_points(OP, p.x, &[p.x_zero_point])?;
        let Some(bytes) = ByteWindow::new(p.x, p.x_zero_point, 0.0, p.output) else {
            return unsupported("an output that is not bytes");
        };
        let taps = checked_len(OP, &p.conv.kernel)?;
        if taps > ((1 << 24) - 256) / (255 * 255) {
            let (param, expected) = ("filter size", "so small that every sum is exact");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        if !(1..=3).contains(&p.terms) {
            return Err(KernelError::InvalidParam {
                op: OP,
                param: "terms",
                expected: "1, 2 or 3",
            });
        }
        let sizes = WindowSizes::from(&p.conv);
        let usual = sizes.dilation[1] == 1 && sizes.stride[1] <= 2;
        let ways = [
            (Way::Dots, p.terms == 1 && sizes.kernel == [3, 3], qdepthwise_dot::kernels(isa)),
            (Way::Pairs, true, qdepthwise_pairs::kernels(isa, &sizes)),
            (Way::Wide, true, qdepthwise_wide::kernels(isa, &sizes)),
        ];
        for (way, fits, kernels) in ways {
            if usual && fits && !kernels.is_empty() {
                let window = Window::new(OP, sizes, false, kernels.len())?;
                let kernels = window.runs.map(|run| kernels[run.width - 1][sizes.stride[1] - 1]);
                return Ok(Self { params: *p, isa, window, kernels, bytes, way });
            }
        }
        let kernels = kernels(isa);
        let window = Window::new(OP, sizes, false, kernels.len())?;
        let kernels = window.kernels(kernels);
        Ok(Self { params: *p, isa, window, kernels, bytes, way: Way::Floats })
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &QdepthwiseParams {
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

    /// Elements of the packed weights.
    pub fn weights_len(&self) -> usize {
        self.window.sizes.c.div_ceil(C_BLOCK) * self.block_words()
    }

    /// Elements of the packed weights of a block of channels.
    fn block_words(&self) -> usize {
        let kernel = self.window.sizes.kernel;
        match self.way {
            Way::Floats => kernel[0] * kernel[1] * C_BLOCK,
            Way::Dots => qdepthwise_dot::BLOCK_WORDS,
            Way::Pairs => qdepthwise_pairs::block_words(kernel),
            Way::Wide => qdepthwise_wide::block_words(kernel[0] * kernel[1]),
        }
    }

    /// Elements of what follows the sums.
    pub fn columns_len(&self) -> usize {
        self.window.sizes.c.next_multiple_of(C_BLOCK) * COLUMNS
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.window.units()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.kernels[1].info.name
    }

    /// Packs weights `[c, 1, f_h, f_w]`. Their zero points are one per channel, one for all, or none
    /// for 0.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] for
    /// bytes of another sign, zero points outside the range of the type, and with one term for a weight
    /// that less its zero point is not in the range of `i8`.
    pub fn pack_weights(
        &self,
        w: Bytes<'_>,
        zero_points: &[i32],
        dst: &mut [f32],
    ) -> Result<(), KernelError> {
        let s = &self.window.sizes;
        let taps = s.kernel[0] * s.kernel[1];
        check_type(OP, "type of the weights", self.params.w, w.dtype())?;
        check_len(OP, "weights", s.c * taps, w.len())?;
        check_len(OP, "packed weights", self.weights_len(), dst.len())?;
        check_zero_points(OP, self.params.w, zero_points)?;
        if zero_points.len() > 1 {
            check_len(OP, "zero points of the weights", s.c, zero_points.len())?;
        }
        let weight = |c: usize, tap: usize| {
            let zero = match zero_points {
                [] => 0,
                [one] => *one,
                own => own.get(c).copied().unwrap_or(0),
            };
            if c < s.c { w.get(c * taps + tap) - zero } else { 0 }
        };
        let all = || (0..s.c).flat_map(|c| (0..taps).map(move |tap| (c, tap)));
        if self.params.terms == 1 && all().any(|(c, tap)| i8::try_from(weight(c, tap)).is_err()) {
            let (param, expected) = ("weight", "a sum of as many signed bytes as said");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        let words = self.block_words();
        // The kernels of integers multiply unsigned bytes.
        let flip = if self.params.x == Dtype::I8 { 128 } else { 0 };
        let zero = self.params.x_zero_point + flip;
        for (i, y) in dst[..self.weights_len()].iter_mut().enumerate() {
            let (block, row, lane) = (i / words, i % words / C_BLOCK, i % C_BLOCK);
            let of = |c: usize, tap: usize| weight(block * C_BLOCK + c, tap);
            let channel =
                if self.way == Way::Pairs { qdepthwise_pairs::channel(lane) } else { lane };
            let word = match self.way {
                Way::Floats => (of(lane, row) as f32).to_bits() as i32,
                _ if (row + 1) * C_BLOCK == words => {
                    -zero * (0..taps).map(|tap| of(channel, tap)).sum::<i32>()
                }
                Way::Dots => {
                    let (filter_row, place) = (row / PLACES, row % PLACES);
                    qdepthwise_dot::word(
                        [0, 1, 2].map(|k| of(lane, filter_row * 3 + k) as i8),
                        place,
                    )
                }
                Way::Pairs => qdepthwise_pairs::word(s.kernel, |tap| of(channel, tap), row),
                Way::Wide => qdepthwise_wide::word(taps, of, i % words),
            };
            *y = f32::from_bits(word as u32);
        }
        Ok(())
    }

    /// Prepares what follows the sums. The zero point of `columns` is that of the plan's parameters;
    /// its shifts are not used.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] for an operand that is too short, [`KernelError::InvalidParam`]
    /// for another zero point or a scale that is not finite.
    pub fn pack_columns(
        &self,
        columns: &QuantColumns<'_>,
        dst: &mut [f32],
    ) -> Result<(), KernelError> {
        let (p, c) = (&self.params, self.window.sizes.c);
        check_len(OP, "columns", self.columns_len(), dst.len())?;
        check_columns(OP, c, p.output, p.x, columns)?;
        if columns.zero_point != p.x_zero_point {
            let (param, expected) = ("zero point", "that of the plan");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        dst[..self.columns_len()].fill(0.0);
        for k in 0..c {
            let bias = columns.bias.get(k).copied().unwrap_or(0);
            let (low, at) = (bias & 255, k / C_BLOCK * COLUMNS * C_BLOCK + k % C_BLOCK);
            // 23 bits and a power of two: both parts are exact.
            dst[at] = if self.way == Way::Floats { low as f32 } else { f32::from_bits(low as u32) };
            dst[at + C_BLOCK] = (i64::from(bias) - i64::from(low)) as f32;
            dst[at + 2 * C_BLOCK] = column(columns, k).0;
        }
        Ok(())
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x` is readable for [`x_len`](Self::x_len) bytes; `weights` and `columns` have
    ///   [`weights_len`](Self::weights_len) and [`columns_len`](Self::columns_len) readable elements,
    ///   prepared by this plan.
    /// * `y` is writable for [`y_len`](Self::y_len) bytes and overlaps no operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(
        &self,
        x: *const u8,
        weights: *const f32,
        columns: *const f32,
        y: *mut u8,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let s = &self.window.sizes;
        let [x_plane, y_plane] = [s.input, s.output].map(|[h, w]| h * w * C_BLOCK);
        let blocks = s.c.div_ceil(C_BLOCK);
        self.window.for_each(units, |plane, rows| {
            let block = plane % blocks;
            let args = WindowArgs {
                x: x.wrapping_add(plane * x_plane),
                weights: weights.wrapping_add(block * self.block_words()),
                bias: columns.wrapping_add(block * COLUMNS * C_BLOCK),
                residual: core::ptr::null(),
                y: y.wrapping_add(plane * y_plane),
                rows,
                run: 0,
                channels: self.window.channels(plane),
                bytes: self.bytes,
            };
            // SAFETY: the ISA is available; planes and rows lie in the operands, which the caller
            // owns, by construction of the units.
            unsafe { self.window.run(&self.kernels, args) };
        });
    }

    /// Computes `y` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if it
    /// has another type than the plan was made for.
    pub fn compute(
        &self,
        x: Bytes<'_>,
        weights: &[f32],
        columns: &[f32],
        mut y: QuantResult<'_>,
    ) -> Result<(), KernelError> {
        let (dtype, y, y_len) = y.parts();
        check_type(OP, "type of the input", self.params.x, x.dtype())?;
        check_type(OP, "type of the output", self.params.output.dtype(), dtype)?;
        check_len(OP, "input", self.x_len(), x.len())?;
        check_len(OP, "packed weights", self.weights_len(), weights.len())?;
        check_len(OP, "columns", self.columns_len(), columns.len())?;
        check_len(OP, "output", self.y_len(), y_len)?;
        let (weights, columns) = (weights.as_ptr(), columns.as_ptr());
        // SAFETY: types and lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), weights, columns, y, 0..self.units()) };
        Ok(())
    }
}

/// The microkernels of integers of an instruction set or of its bases, in lists per tile width.
pub(crate) fn integers(isa: Isa) -> impl Iterator<Item = &'static [WindowKernel<u8>]> {
    let sums = qdepthwise_pairs::all(isa).into_iter().chain(qdepthwise_wide::all(isa)).flatten();
    qdepthwise_dot::kernels(isa).iter().chain(sums).copied()
}

macro_rules! qdepthwise_row {
    // The usual windows have kernels of integers there.
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 8, $($rest:tt)*) => {
        qdepthwise_row! { @ $id $tile $isa $isa_name 8 $feat [] }
    };
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, $($rest:tt)*) => {
        qdepthwise_row! { @ $id $tile $isa $isa_name 16 $feat [] }
    };
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        qdepthwise_row! { @ $id $tile $isa $isa_name $l $feat [[3 1] [3 2]] }
    };
    (@ $id:ident $tile:ident $isa:ident $isa_name:ident $l:tt $feat:tt $sizes:tt) => {
        mod $id {
            use super::*;
            window_kernels! { qdw "qdepthwise", $tile $isa $isa_name $l $feat, $sizes }
        }
    };
}

tilewright_intrinsics::for_each_tile!(qdepthwise_row);

/// The microkernels of one instruction set, a list per tile width.
pub(crate) fn kernels(isa: Isa) -> &'static [&'static [WindowKernel<u8>]] {
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
