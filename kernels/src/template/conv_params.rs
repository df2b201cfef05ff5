//! Sizes and attributes of convolutions.

use crate::{Activation, Epilogue, KernelError};

const OP: &str = "conv";

/// Layout of a convolution's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputLayout {
    /// `[n, ceil(c / 16), h, w, 16]`.
    #[default]
    Blocked,
    /// `[n, h, w, c]`: for network inputs of few channels.
    Interleaved,
}

/// Sizes and attributes of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvParams {
    /// Images.
    pub n: usize,
    /// Input channels, over all groups.
    pub c_in: usize,
    /// Output channels, over all groups.
    pub c_out: usize,
    /// Groups; divides both channel counts. Where a group does not fill blocks of 16 output (and,
    /// blocked, input) channels, a tile of 16 outputs reads the channels of all groups that it
    /// touches, those of the others with weight zero: that costs their time, and an infinity or NaN
    /// in one of them makes the result NaN.
    pub groups: usize,
    /// Input height.
    pub h_in: usize,
    /// Input width.
    pub w_in: usize,
    /// Output height; must follow from the other sizes.
    pub h_out: usize,
    /// Output width.
    pub w_out: usize,
    /// Filter height and width.
    pub kernel: [usize; 2],
    /// Stride, vertical and horizontal; of the output if transposed.
    pub stride: [usize; 2],
    /// Dilation, vertical and horizontal.
    pub dilation: [usize; 2],
    /// Padding: top, left, bottom, right.
    pub pads: [usize; 4],
    /// Whether this is a transposed convolution.
    pub transposed: bool,
    /// Layout of the input. The output is always blocked.
    pub input: InputLayout,
    /// Whether Winograd's algorithm may be used. It computes 3 x 3 filters at stride 1 from sums and
    /// differences of the inputs of a tile: with normally distributed operands no result differs from
    /// the exact one by more than 2e-5 times the root mean square of the outputs, about as with plain
    /// f32 sums. But the error is relative to the largest inputs near an output, not to its own
    /// window, and an infinity or NaN may make all 16 outputs of each 6 x 6 tile that sees it NaN. Of
    /// bytes it is exact.
    pub winograd: bool,
    /// What follows the reduction.
    pub epilogue: Epilogue,
}

impl ConvParams {
    /// A convolution of a blocked `x = [n, c, h, w]` with stride 1, no padding, one group.
    pub fn new(x: [usize; 4], c_out: usize, kernel: [usize; 2]) -> Self {
        let [n, c_in, h_in, w_in] = x;
        Self {
            n,
            c_in,
            c_out,
            groups: 1,
            h_in,
            w_in,
            h_out: 0,
            w_out: 0,
            kernel,
            stride: [1, 1],
            dilation: [1, 1],
            pads: [0; 4],
            transposed: false,
            input: InputLayout::Blocked,
            winograd: true,
            epilogue: Epilogue::default(),
        }
        .inferred()
    }

    /// With these strides.
    #[must_use]
    pub fn stride(self, stride: [usize; 2]) -> Self {
        Self { stride, ..self }.inferred()
    }

    /// With these dilations.
    #[must_use]
    pub fn dilation(self, dilation: [usize; 2]) -> Self {
        Self { dilation, ..self }.inferred()
    }

    /// With this padding: top, left, bottom, right.
    #[must_use]
    pub fn pads(self, pads: [usize; 4]) -> Self {
        Self { pads, ..self }.inferred()
    }

    /// With this number of groups.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// Reading `[n, h, w, c]`.
    #[must_use]
    pub fn interleaved(self) -> Self {
        Self { input: InputLayout::Interleaved, ..self }
    }

    /// As transposed convolution, without output padding.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { transposed: true, ..self }.inferred()
    }

    /// With this output size, where a transposed convolution leaves a choice.
    #[must_use]
    pub fn output(self, h_out: usize, w_out: usize) -> Self {
        Self { h_out, w_out, ..self }
    }

    /// Computed as defined, not by Winograd's algorithm.
    #[must_use]
    pub fn direct(self) -> Self {
        Self { winograd: false, ..self }
    }

    /// With this epilogue.
    #[must_use]
    pub fn epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    /// With the output size that follows from the rest; 0 where there is none.
    #[must_use]
    pub fn inferred(self) -> Self {
        let size = |input: usize, i: usize| self.output_size(input, i).unwrap_or(0);
        let (h_out, w_out) = (size(self.h_in, 0), size(self.w_in, 1));
        Self { h_out, w_out, ..self }
    }

    /// Output size along axis `i` (0 vertical, 1 horizontal), without output padding.
    fn output_size(&self, input: usize, i: usize) -> Option<usize> {
        let span = self.dilation[i].checked_mul(self.kernel[i].checked_sub(1)?)?.checked_add(1)?;
        let pad = self.pads[i].checked_add(self.pads[i + 2])?;
        if self.transposed {
            let full = input.checked_sub(1)?.checked_mul(self.stride[i])?.checked_add(span)?;
            return full.checked_sub(pad);
        }
        let room = input.checked_add(pad)?.checked_sub(span)?;
        Some(room.checked_div(self.stride[i])? + 1)
    }

    /// The parameters of kernels that have none for one channel per group.
    pub(super) fn check(&self) -> Result<(), KernelError> {
        self.check_sizes()?;
        let depthwise = self.groups > 1 && self.c_in == self.groups && self.c_out == self.groups;
        if depthwise && !self.transposed {
            let what = "one channel per group (use depthwise)";
            return Err(KernelError::Unsupported { op: OP, what });
        }
        Ok(())
    }

    pub(super) fn check_sizes(&self) -> Result<(), KernelError> {
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        let sizes = [self.n, self.c_in, self.c_out, self.h_in, self.w_in, self.groups];
        if sizes.contains(&0) || self.kernel.contains(&0) {
            return invalid("size", "at least 1");
        }
        if self.stride.contains(&0) || self.dilation.contains(&0) {
            return invalid("stride and dilation", "at least 1");
        }
        if !self.c_in.is_multiple_of(self.groups) || !self.c_out.is_multiple_of(self.groups) {
            return invalid("groups", "a divisor of both channel counts");
        }
        let sizes = [(self.h_in, self.h_out), (self.w_in, self.w_out)];
        for (i, (input, output)) in sizes.iter().enumerate() {
            let least = self.output_size(*input, i).unwrap_or(0);
            let extra = if self.transposed { self.stride[i].max(self.dilation[i]) - 1 } else { 0 };
            if *output == 0 || *output < least || *output - least > extra {
                return invalid("output size", "what input, filter, stride and padding give");
            }
        }
        if matches!(self.epilogue.activation, Activation::LeakyRelu { alpha } if !alpha.is_finite())
        {
            return invalid("alpha", "finite");
        }
        Ok(())
    }
}
