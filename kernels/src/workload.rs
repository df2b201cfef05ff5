//! Ops that can be computed in several ways, as tuners measure them and tuning tables name them.
//!
//! A [`Workload`] is an op with its sizes and without what does not decide how fast a choice is
//! relative to another: epilogue, strides between rows, values. Its text is the key of a tuning
//! table and a line of a list of shapes:
//!
//! ```
//! use tilewright_kernels::Workload;
//!
//! for text in [
//!     "conv f32 1x64x24x24 to 64 window 3x3 pad 1,1,1,1",
//!     "conv f32 1x3x224x224 to 32 window 3x3 stride 2x2 pad 1,1,1,1 interleaved",
//!     "conv f32 1x64x56x56 to 128 window 1x1 plain",
//!     "matmul f32 32x1024x1024",
//! ] {
//!     assert_eq!(text.parse::<Workload>().unwrap().to_string(), text);
//! }
//! // A list may be written shorter.
//! let short: Workload = "conv 64x24x24 to 64 window 3 pad 1".parse().unwrap();
//! assert_eq!(short.to_string(), "conv f32 1x64x24x24 to 64 window 3x3 pad 1,1,1,1");
//! ```

use crate::template::pointwise::PointwisePlan;
use crate::{Choice, ConvParams, ConvPlan, Epilogue, InputLayout, Isa, KernelError};
use crate::{MatmulParams, MatmulPlan};
use core::fmt;
use core::ops::Range;
use core::str::{FromStr, SplitAsciiWhitespace};

/// An op with its sizes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Workload {
    /// A convolution, without its epilogue.
    Conv(ConvParams),
    /// A 1 x 1 convolution between plain tensors, without its epilogue.
    Pointwise(ConvParams),
    /// A product of dense matrices with a packed B, without its epilogue.
    Matmul(MatmulParams),
}

impl Workload {
    /// The workload of a convolution.
    pub fn conv(params: &ConvParams) -> Self {
        Self::Conv(params.clone().epilogue(Epilogue::default()))
    }

    /// The workload of a 1 x 1 convolution between plain tensors.
    pub fn pointwise(params: &ConvParams) -> Self {
        let input = InputLayout::default();
        Self::Pointwise(ConvParams { input, ..params.clone().epilogue(Epilogue::default()) })
    }

    /// The workload of a matrix product.
    pub fn matmul(params: &MatmulParams) -> Self {
        let p = params;
        let mut plain = MatmulParams::new(p.m, p.k, p.n);
        if p.b_transposed {
            plain = plain.b_transposed();
        }
        Self::Matmul(if p.batch > 1 { plain.batch(p.batch) } else { plain })
    }

    /// Every way of computing it, the one that the plan would choose first.
    ///
    /// # Errors
    ///
    /// [`KernelError`] for sizes that no plan takes, or an instruction set that is not available.
    pub fn candidates(&self, isa: Isa) -> Result<alloc::vec::Vec<Choice>, KernelError> {
        match self {
            Self::Conv(p) => ConvPlan::candidates(isa, p),
            Self::Pointwise(p) => PointwisePlan::candidates(isa, p),
            Self::Matmul(p) => MatmulPlan::candidates(isa, p),
        }
    }

    /// The plan that computes it in one of these ways.
    ///
    /// # Errors
    ///
    /// As [`candidates`](Self::candidates), and [`KernelError::InvalidParam`] for a choice that is
    /// none for these sizes.
    pub fn plan(&self, isa: Isa, choice: &Choice) -> Result<WorkPlan, KernelError> {
        Ok(match self {
            Self::Conv(p) => WorkPlan::Conv(ConvPlan::with_choice(isa, p, choice)?),
            Self::Pointwise(p) => WorkPlan::Pointwise(PointwisePlan::with_choice(isa, p, choice)?),
            Self::Matmul(p) => WorkPlan::Matmul(MatmulPlan::with_choice(isa, p, choice)?),
        })
    }

    /// Floating-point operations of the definition, two per multiply-add, those on padding counted.
    pub fn flop(&self) -> f64 {
        2.0 * match self {
            Self::Conv(p) | Self::Pointwise(p) => {
                let outer = if p.transposed { [p.h_in, p.w_in] } else { [p.h_out, p.w_out] };
                let taps = product(&p.kernel) * product(&outer);
                product(&[p.n, p.c_in, p.c_out]) * taps / p.groups as f64
            }
            Self::Matmul(p) => product(&[p.batch, p.m, p.n, p.k]),
        }
    }

    /// Bytes of operands and result, each counted once: what must move at least.
    pub fn bytes(&self) -> f64 {
        let elements = match self {
            Self::Conv(p) | Self::Pointwise(p) => {
                let x = product(&[p.n, p.c_in, p.h_in, p.w_in]);
                let y = product(&[p.n, p.c_out, p.h_out, p.w_out]);
                let [f_h, f_w] = p.kernel;
                x + y + product(&[p.c_in, p.c_out, f_h, f_w]) / p.groups as f64
            }
            Self::Matmul(p) => {
                let [m, n, k] = [p.m, p.n, p.k].map(|size| size as f64);
                p.batch as f64 * (m * k + k * n + m * n)
            }
        };
        elements * size_of::<f32>() as f64
    }
}

/// The product of sizes that nobody has checked.
fn product(sizes: &[usize]) -> f64 {
    sizes.iter().map(|&size| size as f64).product()
}

/// A plan for a [`Workload`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WorkPlan {
    /// Of a convolution.
    Conv(ConvPlan),
    /// Of a 1 x 1 convolution between plain tensors.
    Pointwise(PointwisePlan),
    /// Of a matrix product.
    Matmul(MatmulPlan),
}

impl WorkPlan {
    /// Elements of input, packed weights, packed bias and output.
    pub fn lens(&self) -> [usize; 4] {
        match self {
            Self::Conv(p) => [p.x_len(), p.weights_len(), p.bias_len(), p.y_len()],
            Self::Pointwise(p) => [p.x_len(), p.weights_len(), p.bias_len(), p.y_len()],
            Self::Matmul(p) => [p.a_len(), p.weights_len(), p.bias_len(), p.c_len()],
        }
    }

    /// Elements of scratch memory that each thread needs.
    pub fn scratch_len(&self) -> usize {
        match self {
            Self::Conv(p) => p.scratch_len(),
            Self::Pointwise(p) => p.scratch_len(),
            Self::Matmul(p) => p.scratch_len(),
        }
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        match self {
            Self::Conv(p) => p.units(),
            Self::Pointwise(p) => p.units(),
            Self::Matmul(p) => p.units(),
        }
    }

    /// The share of all work that each range of units that is run by itself repeats.
    pub fn repeated(&self) -> f64 {
        match self {
            Self::Conv(p) => p.repeated(),
            Self::Pointwise(_) | Self::Matmul(_) => 0.0,
        }
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        match self {
            Self::Conv(p) => p.kernel_name(),
            Self::Pointwise(p) => p.kernel_name(),
            Self::Matmul(p) => p.kernel_name(),
        }
    }

    /// Runs some units.
    ///
    /// # Safety
    ///
    /// * The operands are readable, `y` is writable, for as many elements as [`lens`](Self::lens)
    ///   says, `scratch` for [`scratch_len`](Self::scratch_len); `y` and `scratch` overlap nothing.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y` or
    ///   uses this `scratch`.
    #[allow(unsafe_code)]
    pub unsafe fn run(
        &self,
        x: *const f32,
        weights: *const f32,
        bias: *const f32,
        y: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        let none = core::ptr::null();
        debug_assert!(self.scratch_len() == 0 || !scratch.is_null());
        match self {
            // SAFETY: as the caller promises; workloads have no residual.
            Self::Conv(p) => unsafe { p.run(x, weights, bias, none, y, scratch, units) },
            // SAFETY: as above.
            Self::Pointwise(p) => unsafe { p.run(x, weights, bias, none, y, scratch, units) },
            // SAFETY: as above.
            Self::Matmul(p) => unsafe { p.run(x, weights, bias, none, y, scratch, units) },
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conv(p) => fmt_conv(p, f),
            Self::Pointwise(p) => {
                fmt_conv(p, f)?;
                f.write_str(" plain")
            }
            Self::Matmul(p) => {
                write!(f, "matmul f32 {}x{}x{}", p.m, p.k, p.n)?;
                if p.batch > 1 {
                    write!(f, " batch {}", p.batch)?;
                }
                f.write_str(if p.b_transposed { " transposed" } else { "" })
            }
        }
    }
}

fn fmt_conv(p: &ConvParams, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "conv f32 {}x{}x{}x{} to {}", p.n, p.c_in, p.h_in, p.w_in, p.c_out)?;
    write!(f, " window {}x{}", p.kernel[0], p.kernel[1])?;
    for (word, [v, h]) in [("stride", p.stride), ("dilation", p.dilation)] {
        if [v, h] != [1, 1] {
            write!(f, " {word} {v}x{h}")?;
        }
    }
    if p.pads != [0; 4] {
        let [top, left, bottom, right] = p.pads;
        write!(f, " pad {top},{left},{bottom},{right}")?;
    }
    if p.groups != 1 {
        write!(f, " groups {}", p.groups)?;
    }
    if p.transposed {
        f.write_str(" transposed")?;
    }
    let usual = p.clone().inferred();
    if [p.h_out, p.w_out] != [usual.h_out, usual.w_out] {
        write!(f, " output {}x{}", p.h_out, p.w_out)?;
    }
    f.write_str(if p.input == InputLayout::Interleaved { " interleaved" } else { "" })
}

/// A text that is no [`Workload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseWorkloadError;

impl fmt::Display for ParseWorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected an op like `conv 64x24x24 to 64 window 3x3 pad 1` or `matmul 32x1024x1024`",
        )
    }
}

impl core::error::Error for ParseWorkloadError {}

/// Numbers between `separator`s: at most `N`, their count with them.
fn numbers<const N: usize>(text: &str, separator: char) -> Option<([usize; N], usize)> {
    let (mut values, mut count) = ([0; N], 0);
    for part in text.split(separator) {
        *values.get_mut(count)? = part.parse().ok()?;
        count += 1;
    }
    Some((values, count))
}

/// `3x3`, or `3` for both.
fn pair(text: Option<&str>) -> Option<[usize; 2]> {
    match numbers::<2>(text?, 'x')? {
        ([a, _], 1) => Some([a, a]),
        (both, _) => Some(both),
    }
}

fn parse_conv(extents: &str, mut words: SplitAsciiWhitespace<'_>) -> Option<Workload> {
    let x = match numbers::<4>(extents, 'x')? {
        (x, 4) => x,
        ([c, h, w, _], 3) => [1, c, h, w],
        _ => return None,
    };
    (words.next()? == "to").then_some(())?;
    let c_out = words.next()?.parse().ok()?;
    (words.next()? == "window").then_some(())?;
    let mut p = ConvParams::new(x, c_out, pair(words.next())?);
    let (mut output, mut plain) = (None, false);
    while let Some(word) = words.next() {
        p = match word {
            "plain" => {
                plain = true;
                p
            }
            "stride" => p.stride(pair(words.next())?),
            "dilation" => p.dilation(pair(words.next())?),
            "pad" => p.pads(match numbers::<4>(words.next()?, ',')? {
                (pads, 4) => pads,
                ([all, ..], 1) => [all; 4],
                _ => return None,
            }),
            "groups" => p.groups(words.next()?.parse().ok()?),
            "transposed" => p.transposed(),
            "interleaved" => p.interleaved(),
            "output" => {
                output = Some(pair(words.next())?);
                p
            }
            _ => return None,
        };
    }
    if let Some([h, w]) = output {
        p = p.output(h, w);
    }
    Some(if plain { Workload::pointwise(&p) } else { Workload::Conv(p) })
}

fn parse_matmul(extents: &str, mut words: SplitAsciiWhitespace<'_>) -> Option<Workload> {
    let (m, k, n) = match numbers::<3>(extents, 'x')? {
        ([m, k, n], 3) => (m, k, n),
        _ => return None,
    };
    // Strides of a batch are products of two of these.
    m.checked_mul(k).and(m.checked_mul(n)).and(k.checked_mul(n))?;
    let (mut batch, mut transposed) = (1, false);
    while let Some(word) = words.next() {
        match word {
            "batch" => batch = words.next()?.parse().ok()?,
            "transposed" => transposed = true,
            _ => return None,
        }
    }
    Some(Workload::matmul(&MatmulParams {
        batch,
        b_transposed: transposed,
        ..MatmulParams::new(m, k, n)
    }))
}

impl FromStr for Workload {
    type Err = ParseWorkloadError;

    fn from_str(text: &str) -> Result<Self, ParseWorkloadError> {
        let parse = || {
            let mut words = text.split_ascii_whitespace();
            let op = words.next()?;
            let mut extents = words.next()?;
            if extents == "f32" {
                extents = words.next()?;
            }
            match op {
                "conv" => parse_conv(extents, words),
                "matmul" => parse_matmul(extents, words),
                _ => None,
            }
        };
        parse().ok_or(ParseWorkloadError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn what_is_written_is_read_again() {
        let conv = ConvParams::new([2, 24, 13, 12], 40, [3, 5]).stride([2, 1]).dilation([1, 2]);
        let conv = conv.pads([0, 1, 2, 3]).groups(4);
        let up = ConvParams::new([1, 16, 4, 4], 8, [3, 3]).stride([2, 2]).transposed();
        let list = [
            Workload::conv(&conv),
            Workload::conv(&up.clone().output(10, 10)),
            Workload::conv(&up),
            Workload::conv(&ConvParams::new([1, 3, 8, 8], 8, [1, 1]).interleaved()),
            Workload::pointwise(&ConvParams::new([2, 24, 13, 12], 40, [1, 1])),
            Workload::matmul(&MatmulParams::new(1, 640, 128).b_transposed()),
            Workload::matmul(&MatmulParams::new(7, 5, 3).batch(4)),
        ];
        for workload in list {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "conv",
            "conv f32 1x64x24 to",
            "conv f32 64x24 to 64 window 3",
            "conv f32 1x1x64x24x24 to 64 window 3",
            "conv f32 64x24x24 to 64 window 3x3x3",
            "conv f32 64x24x24 to 64 window 3 pad 1,1",
            "conv f32 64x24x24 to 64 window 3 relu",
            "conv f16 64x24x24 to 64 window 3",
            "matmul f32 1x2",
            "matmul f32 1x2x3 transposed 1",
            "matmul f32 1x2x-3",
            "matmul f32 99999999999x99999999999x3",
            "matmul f32 0x99999999999x99999999999 batch 2",
        ] {
            assert_eq!(text.parse::<Workload>(), Err(ParseWorkloadError), "{text}");
        }
    }

    #[test]
    fn hostile_sizes_are_errors_of_the_plan() {
        for text in [
            "conv f32 0x0x0x0 to 0 window 0",
            "conv 4294967295x4294967295x4294967295 to 4294967295 window 3",
            "conv 16x8x8 to 16 window 3 stride 0 dilation 0 groups 0",
            "conv 16x8x8 to 16 window 4294967295 dilation 4294967295",
            "conv 16x8x8 to 16 window 3 output 9999999x1",
            "conv 16x8x8 to 16 window 3 plain",
            "conv 4294967295x4294967295x4294967295 to 4294967295 window 1 plain",
            "matmul 0x0x0 batch 0",
        ] {
            let workload: Workload = text.parse().unwrap();
            assert!(workload.candidates(Isa::Scalar).is_err(), "{text}");
        }
    }

    #[test]
    fn every_candidate_has_a_plan_that_makes_the_same_choice() {
        for text in [
            "conv 32x6x6 to 48 window 3 pad 1",
            "conv 24x9x9 to 70 window 1 plain",
            "matmul 9x33x70",
            "matmul 1x8x9 batch 2",
        ] {
            let workload: Workload = text.parse().unwrap();
            for isa in Isa::available() {
                let candidates = workload.candidates(isa).unwrap();
                assert!(!candidates.is_empty());
                for choice in candidates {
                    assert!(workload.plan(isa, &choice).unwrap().units() > 0);
                }
            }
        }
        let conv: Workload = "conv 16x4x4 to 16 window 1".parse().unwrap();
        assert_eq!((conv.flop(), conv.bytes()), (2.0 * 4096.0, 4.0 * (512.0 + 256.0)));
    }
}
