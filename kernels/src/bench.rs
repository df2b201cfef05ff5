//! What benches measure: typical shapes for each op, and a loop that shows the peak of the core.
//!
//! `cargo bench` and `tilewright bench --kernels` time the same [`cases`] and compare them with
//! the same [`peak`]. Clocks are the caller's business.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::hint::black_box;
use core::ops::{Deref, DerefMut};

pub use crate::Dtype;
use crate::{ConvParams, ConvPlan, Isa, KernelError, MatmulParams, MatmulPlan};

/// SMaLL's 18 shapes, all 3 x 3, stride 1, same padding: input channels, height = width, output
/// channels.
const CONV_3X3: [[usize; 3]; 18] = [
    [16, 48, 16],
    [32, 24, 32],
    [32, 48, 32],
    [64, 24, 64],
    [128, 12, 128],
    [16, 48, 32],
    [32, 24, 64],
    [64, 12, 128],
    [128, 6, 256],
    [128, 24, 128],
    [256, 12, 256],
    [512, 12, 512],
    [1024, 6, 1024],
    [32, 208, 64],
    [64, 104, 128],
    [128, 52, 256],
    [256, 26, 512],
    [512, 13, 1024],
];

/// Pointwise convolutions, in the same terms.
const CONV_1X1: [[usize; 3]; 3] = [[64, 56, 128], [256, 14, 512], [512, 14, 512]];

/// Products `m, k, n` with a constant B, packed before.
const MATMUL: [[usize; 3]; 17] = [
    [1, 640, 128],
    [1, 128, 640],
    [1, 2048, 2048],
    [1, 4096, 4096],
    [4, 2048, 2048],
    [4, 4096, 4096],
    [32, 1024, 1024],
    [32, 2048, 2048],
    [32, 4096, 4096],
    [64, 64, 64],
    [96, 96, 96],
    [128, 128, 128],
    [256, 256, 256],
    [512, 512, 512],
    [768, 768, 768],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
];

/// Products of which neither operand is known before.
const PRODUCT: [[usize; 3]; 8] = [
    [64, 64, 64],
    [96, 96, 96],
    [128, 128, 128],
    [256, 256, 256],
    [512, 512, 512],
    [768, 768, 768],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
];

/// One op of one shape, ready to run on one thread. Operands are allocated when it runs first.
pub struct Case {
    /// The op with its window: `conv3x3`, `matmul` (B packed before), `product` (B packed by the run).
    pub op: String,
    /// Sizes: input channels, height = width and output channels; m, k and n; or, of attention, rows,
    /// positions and the elements of a head.
    pub shape: [usize; 3],
    /// The kernel that its plan chose.
    pub kernel: &'static str,
    /// The type of what it multiplies, whose [`peak_of`] bounds it.
    pub dtype: Dtype,
    /// Floating-point operations of one run, two per multiply-add. Those on padding are counted,
    /// as is usual for comparisons, though kernels skip them.
    pub flop: f64,
    /// Bytes of the plain operands and the result, each counted once: what must move at least. 0
    /// where they are not known.
    pub bytes: f64,
    /// Bytes that runs cycle through, so that operands come from where they come from in use: as many
    /// as [`bytes`](Self::bytes) unless there are several sets of operands.
    pub resident: f64,
    pub(crate) run: Box<dyn FnMut()>,
}

impl Case {
    /// `<op>/<shape>/<kernel>`
    pub fn name(&self) -> String {
        let [a, b, c] = self.shape;
        format!("{}/{a}x{b}x{c}/{}", self.op, self.kernel)
    }

    /// Does the work once.
    pub fn run(&mut self) {
        (self.run)();
    }
}

/// The cases for an instruction set.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have it.
pub fn cases(isa: Isa) -> Result<Vec<Case>, KernelError> {
    let wide = CONV_3X3.iter().map(|&shape| conv(isa, shape, 3, true));
    let direct = CONV_3X3.iter().map(|&shape| conv(isa, shape, 3, false));
    let pointwise = CONV_1X1.iter().map(|&shape| conv(isa, shape, 1, true));
    let constant = MATMUL.iter().map(|&shape| matmul(isa, shape, true));
    let plain = PRODUCT.iter().map(|&shape| matmul(isa, shape, false));
    wide.chain(direct).chain(pointwise).chain(constant).chain(plain).collect()
}

/// [`cases`], and those of bytes, bf16, block-quantised weights and attention.
///
/// # Errors
/// As [`cases`].
pub fn all_cases(isa: Isa) -> Result<Vec<Case>, KernelError> {
    let mut all = cases(isa)?;
    all.extend(crate::bench_dot::cases(isa)?);
    all.extend(crate::bench_block::cases(isa)?);
    all.extend(crate::bench_attention::cases(isa)?);
    Ok(all)
}

/// [`peak`] of a type.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have the instruction set.
pub fn peak_of(isa: Isa, dtype: Dtype, steps: usize) -> Result<f64, KernelError> {
    match dtype {
        Dtype::F32 => peak(isa, steps),
        _ => crate::bench_dot::peak(isa, dtype, steps),
    }
}

/// An operand that begins at a cache line, as those of a session do.
pub struct Operand {
    data: Vec<f32>,
    start: usize,
}

impl Operand {
    /// So many elements, each a function of its index.
    pub fn new(len: usize, value: impl Fn(usize) -> f32) -> Self {
        let mut data = Vec::<f32>::with_capacity(len + 16);
        let start = data.as_ptr().align_offset(64).min(16);
        data.resize(start, 0.0);
        data.extend((0..len).map(value));
        Self { data, start }
    }
}

impl Deref for Operand {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[self.start..]
    }
}

impl DerefMut for Operand {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..]
    }
}

fn filled(len: usize) -> Operand {
    Operand::new(len, |i| (i % 17) as f32 * 0.125 - 1.0)
}

/// A convolution as the rule chooses it, or without Winograd's algorithm.
fn conv(isa: Isa, shape: [usize; 3], window: usize, winograd: bool) -> Result<Case, KernelError> {
    let [c_in, size, c_out] = shape;
    let params =
        ConvParams::new([1, c_in, size, size], c_out, [window, window]).pads([window / 2; 4]);
    let plan = ConvPlan::new(isa, &ConvParams { winograd, ..params })?;
    let kernel = plan.kernel_name();
    let mut operands = None;
    let bytes = 4.0 * ((c_in + c_out) * size * size + c_in * c_out * window * window) as f64;
    Ok(Case {
        op: format!("conv{window}x{window}{}", if winograd { "" } else { "_direct" }),
        shape,
        kernel,
        dtype: Dtype::F32,
        flop: (2 * c_in * size * size * c_out * window * window) as f64,
        bytes,
        resident: bytes,
        run: Box::new(move || {
            let (x, weights, bias, y, scratch) = operands.get_or_insert_with(|| {
                let [x, w, b] = [plan.x_len(), plan.weights_len(), plan.bias_len()].map(filled);
                (x, w, b, filled(plan.y_len()), filled(plan.scratch_len()))
            });
            let (x, w, b) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
            let (y, scratch) = (black_box(y).as_mut_ptr(), scratch.as_mut_ptr());
            // SAFETY: the operands have the lengths that the plan asks for, and the plan has no
            // residual.
            unsafe { plan.run(x, w, b, core::ptr::null(), y, scratch, 0..plan.units()) };
        }),
    })
}

fn matmul(isa: Isa, shape: [usize; 3], constant: bool) -> Result<Case, KernelError> {
    let [m, k, n] = shape;
    let plan = MatmulPlan::new(isa, &MatmulParams::new(m, k, n))?;
    let kernel = plan.kernel_name();
    let mut operands = None;
    let bytes = 4.0 * (m * k + k * n + m * n) as f64;
    Ok(Case {
        op: if constant { "matmul" } else { "product" }.into(),
        shape,
        kernel,
        dtype: Dtype::F32,
        flop: (2 * m * k * n) as f64,
        bytes,
        resident: bytes,
        run: Box::new(move || {
            let (a, b, bias, c, scratch) = operands.get_or_insert_with(|| {
                let (b, scratch) = match constant {
                    true => (plan.weights_len(), plan.scratch_len()),
                    false => (plan.b_len(), plan.plain_scratch_len()),
                };
                let [a, b, bias] = [plan.a_len(), b, plan.bias_len()].map(filled);
                (a, b, bias, filled(plan.c_len()), filled(scratch))
            });
            let (a, b, bias, none) = (a.as_ptr(), b.as_ptr(), bias.as_ptr(), core::ptr::null());
            let (c, scratch, all) = (c.as_mut_ptr(), scratch.as_mut_ptr(), 0..plan.units());
            // SAFETY: the operands have the lengths that the plan asks for and belong to this
            // closure, and the plan was made for an instruction set that the CPU has.
            unsafe {
                match constant {
                    true => plan.run(a, b, bias, none, black_box(c), scratch, all),
                    false => plan.run_plain(a, b, bias, none, black_box(c), scratch, all),
                }
            }
        }),
    })
}

macro_rules! peak_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], $($rest:tt)*) => {
        mod $id {
            /// Twelve chains of FMA, which hide the latency of any core: `12 * LANES * 2` FLOP per
            /// step.
            ///
            /// # Safety
            ///
            /// The CPU has the instructions of the row.
            $(#[target_feature(enable = $f)])*
            pub(super) unsafe fn chains(steps: usize, factor: f32) -> f32 {
                use tilewright_intrinsics::$tile as tile;
                let (a, b) = (tile!(VSET factor), tile!(VSET 0.5));
                tile!(DEF t [1 x 12 x 1]);
                for _ in 0..steps {
                    tilewright_intrinsics::each!(i in 12 { t[i][0] = tile!(VFMA t[i][0], a, b); });
                }
                let mut sum = tile!(VZERO);
                tilewright_intrinsics::each!(i in 12 { sum = tile!(VADD sum, t[i][0]); });
                let mut lanes = [0.0f32; tile!(LANES)];
                let p = lanes.as_mut_ptr();
                tile!(VSTORE p, 0, sum);
                lanes.iter().sum()
            }

            /// Sums a whole number of groups of eight vectors.
            ///
            /// # Safety
            ///
            /// The CPU has the instructions of the row.
            $(#[target_feature(enable = $f)])*
            pub(super) unsafe fn read(data: &[f32], ahead: usize) -> f32 {
                use tilewright_intrinsics::$tile as tile;
                // Not every instruction set has a prefetch.
                let _ = ahead;
                tile!(DEF t [1 x 8 x 1]);
                for group in data.chunks_exact(8 * tile!(LANES)) {
                    let p = group.as_ptr();
                    tilewright_intrinsics::each!(i in 8 {
                        t[i][0] = tile!(VADD t[i][0], tile!(VLOAD p, i));
                        if i * tile!(LANES) % 16 == 0 { tile!(VPREFETCH p, (i * tile!(LANES) + ahead)); }
                    });
                }
                let mut sum = tile!(VZERO);
                tilewright_intrinsics::each!(i in 8 { sum = tile!(VADD sum, t[i][0]); });
                let mut lanes = [0.0f32; tile!(LANES)];
                let p = lanes.as_mut_ptr();
                tile!(VSTORE p, 0, sum);
                lanes.iter().sum()
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(peak_row);

/// Runs `steps` steps of a loop that does nothing but independent multiply-adds in registers;
/// returns the floating-point operations done.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have the instruction set.
pub fn peak(isa: Isa, steps: usize) -> Result<f64, KernelError> {
    isa.require()?;
    let isa = isa.serving(Dtype::F32);
    let mut lanes = 0;
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                lanes = tilewright_intrinsics::$tile!(LANES);
                // SAFETY: `require` has checked that the CPU has the instruction set.
                black_box(unsafe { $id::chains(black_box(steps), black_box(0.5)) });
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    Ok((steps * 12 * 2 * lanes) as f64)
}

/// Reads operands from memory and does nothing else but add them up: the bound of what streams them.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have the instruction set.
pub fn read(isa: Isa, data: &[f32]) -> Result<f32, KernelError> {
    isa.require()?;
    let isa = isa.serving(Dtype::F32);
    // Without arithmetic there is time for nothing else where one stream is slow.
    let plain = crate::detect::follows_streams() || crate::detect::reads_streams();
    let ahead = if plain { 0 } else { 2048 };
    let mut sum = 0.0;
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                // SAFETY: `require` has checked that the CPU has the instruction set.
                sum = unsafe { $id::read(black_box(data), ahead) };
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    Ok(black_box(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_instruction_set_has_cases_and_a_peak() {
        for isa in Isa::available() {
            assert!(peak(isa, 10).unwrap() > 0.0);
            assert_eq!(read(isa, &[0.5; 256]).unwrap(), 128.0);
            let mut cases = cases(isa).unwrap();
            let all = cases.iter_mut().filter(|c| c.shape == [128, 6, 256]);
            let names: Vec<String> = all
                .map(|case| {
                    case.run();
                    case.name()
                })
                .collect();
            assert!(names[0].starts_with("conv3x3/128x6x256/winograd_f32"), "{names:?}");
            assert!(names[1].starts_with("conv3x3_direct/128x6x256/conv_f32"), "{names:?}");
            let small = cases.iter().find(|c| c.shape == [128, 6, 256]).unwrap();
            assert_eq!(small.bytes, 4.0 * (384.0 * 36.0 + 128.0 * 256.0 * 9.0));
        }
    }
}
