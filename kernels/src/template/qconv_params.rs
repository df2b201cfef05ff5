//! What a convolution of bytes is: [`QconvParams`].

use super::conv_params::{ConvParams, InputLayout};
use super::qmatmul::check_zero_points;
use crate::error::checked_len;
use crate::quant::QuantOutput;
use crate::{Activation, C_BLOCK, Dtype, KernelError};

pub(super) const OP: &str = "qconv";

/// Most channels of an interleaved input.
const FEW: usize = 12;

/// Sizes, types and attributes of a convolution of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct QconvParams {
    /// Sizes and attributes: blocked, or interleaved with up to 12 channels of one group; not
    /// transposed, groups of whole blocks of channels. The epilogue
    /// has no residual; for [`QuantOutput::F32`] its activation may be ReLU, clip or leaky ReLU.
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
    /// Type of the output.
    pub output: QuantOutput,
}

impl QconvParams {
    /// Signed weights without a zero point, an output of sums.
    pub fn new(conv: ConvParams, x: Dtype, x_zero_point: i32) -> Self {
        Self { conv, x, x_zero_point, w: Dtype::I8, terms: 1, output: QuantOutput::I32 }
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        let c = &self.conv;
        c.check()?;
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
        let channels = [c.c_in / c.groups, c.c_out / c.groups];
        if c.groups > 1 && channels.iter().any(|n| !n.is_multiple_of(C_BLOCK)) {
            return unsupported("a group that is not of whole blocks of channels");
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
        let taps = checked_len(OP, &[channels[0], c.kernel[0], c.kernel[1]])?;
        if taps > i32::MAX as usize / (255 * if self.terms > 1 { 255 } else { 128 }) {
            return invalid("filter size", "so small that no sum leaves the range of i32");
        }
        Ok(())
    }
}
