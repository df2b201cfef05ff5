//! What a convolution of bytes is: [`QconvParams`].

use super::conv_params::{ConvParams, InputLayout};
use super::qmatmul::check_zero_points;
use crate::error::checked_len;
use crate::quant::{Bytes, QuantOutput};
use crate::{Activation, Dtype, KernelError};
use core::ops::Range;

pub(super) const OP: &str = "qconv";

/// Most channels of an interleaved input.
const FEW: usize = 12;

/// Sizes, types and attributes of a convolution of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct QconvParams {
    /// Sizes and attributes: blocked, or interleaved with up to 12 channels of one group; not
    /// transposed. Groups that are not of whole blocks of channels are computed with zero weights between
    /// them, one block of outputs at a time. The epilogue has no residual; for [`QuantOutput::F32`] its activation may be ReLU, clip or leaky ReLU.
    pub conv: ConvParams,
    /// Type of the input: [`Dtype::I8`] or [`Dtype::U8`].
    pub x: Dtype,
    /// Zero point of the input, in the range of its type: what pads the image.
    pub x_zero_point: i32,
    /// Type of the weights.
    pub w: Dtype,
    /// How many signed bytes add up to a weight less its zero point: 1 if all are in the range of
    /// `i8`, 2 from -256 to 254, 3 for 255 too. That many times the work, unless the instruction set
    /// multiplies wider integers.
    pub terms: usize,
    /// Whether few weights, less their zero points, some in a hundred, are beyond -64 to 64. Results are the same:
    /// it is for instruction sets that add up neighbouring products in 16 bits, and need more steps where these
    /// could saturate.
    pub small: bool,
    /// Type of the output.
    pub output: QuantOutput,
}

impl QconvParams {
    /// Signed weights without a zero point, an output of sums.
    pub fn new(conv: ConvParams, x: Dtype, x_zero_point: i32) -> Self {
        let (w, output) = (Dtype::I8, QuantOutput::I32);
        Self { conv, x, x_zero_point, w, terms: 1, small: false, output }
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        let c = &self.conv;
        c.check_sizes()?;
        self.output.check(OP)?;
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        let unsupported = |what| Err(KernelError::Unsupported { op: OP, what });
        if [self.x, self.w].iter().any(|t| !matches!(t, Dtype::I8 | Dtype::U8)) {
            return invalid("type", "i8 or u8");
        }
        check_zero_points(OP, self.x, &[self.x_zero_point])?;
        if !(1..=3).contains(&self.terms) {
            return invalid("terms", "1, 2 or 3");
        }
        if c.transposed {
            return unsupported("a transposed convolution");
        }
        if c.input == InputLayout::Interleaved && (c.groups != 1 || c.c_in > FEW) {
            return unsupported("an interleaved input of groups or of more than 12 channels");
        }
        if c.epilogue.residual {
            return unsupported("a residual");
        }
        match c.epilogue.activation {
            Activation::None => {}
            _ if self.output != QuantOutput::F32 => {
                return invalid("activation", "absent unless the output is f32");
            }
            other if other.in_tile().is_none() => return unsupported("this activation"),
            _ => {}
        }
        let taps = checked_len(OP, &[c.c_in / c.groups, c.kernel[0], c.kernel[1]])?;
        if taps > i32::MAX as usize / (255 * if self.terms > 1 { 255 } else { 128 }) {
            return invalid("filter size", "so small that no sum leaves the range of i32");
        }
        Ok(())
    }
}

/// Weights and their zero points, one per output channel, one for all, or none for 0. Signed ones are read as
/// unsigned, so that there is one code for both.
pub(super) struct Weights<'a> {
    bytes: &'a [u8],
    /// The bits by which signed bytes differ from unsigned ones that are as many more.
    flip: u8,
    zeros: &'a [i32],
}

impl<'a> Weights<'a> {
    pub(super) fn new(w: Bytes<'a>, zeros: &'a [i32]) -> Self {
        // SAFETY: as many bytes, of which any bits are an unsigned one, for as long as `w` is borrowed.
        let bytes = unsafe { core::slice::from_raw_parts(w.as_ptr(), w.len()) };
        Self { bytes, flip: if w.dtype() == Dtype::I8 { 0x80 } else { 0 }, zeros }
    }

    /// The zero point of an output channel, of which unsigned bytes are less.
    #[inline(always)]
    fn zero(&self, k: usize) -> i32 {
        let zero = match self.zeros {
            [] => 0,
            [one] => *one,
            own => own[k],
        };
        zero + i32::from(self.flip)
    }

    /// The zero point, if it is that of all channels.
    pub(super) fn one_zero(&self) -> Option<i32> {
        (self.zeros.len() < 2).then(|| self.zero(0))
    }

    /// A weight less a zero point that this gave.
    #[inline(always)]
    pub(super) fn less(&self, at: usize, zero: i32) -> i32 {
        i32::from(self.bytes[at] ^ self.flip) - zero
    }

    /// A weight of an output channel less its zero point.
    #[inline(always)]
    pub(super) fn get(&self, at: usize, k: usize) -> i32 {
        self.less(at, self.zero(k))
    }

    /// Whether some weights of an output channel, less its zero point, lie in `low..=low + span`.
    pub(super) fn lie_in(&self, at: Range<usize>, k: usize, low: i32, span: u32) -> bool {
        let (flip, low) = (self.flip, low + self.zero(k));
        let outside = |x: &u8| i32::from(x ^ flip).wrapping_sub(low) as u32 > span;
        // No early return, so that the compiler may vectorise it.
        !self.bytes[at].iter().fold(false, |found, x| found | outside(x))
    }
}
