//! What benches of dot products measure: typical shapes of bytes and bf16, and a loop that shows the
//! peak of the core for each type.

use crate::bench::Case;
use crate::{
    ConvParams, Dtype, HalfMatmulParams, HalfMatmulPlan, HalfResult, Isa, KernelError, QconvParams,
    QconvPlan, QmatmulParams, QmatmulPlan, QuantOutput, QuantResult,
};
use alloc::boxed::Box;
use alloc::{vec, vec::Vec};
use core::hint::black_box;

/// Sizes m = k = n, and numbers of rows for products with a matrix of the largest of them.
const SQUARES: [usize; 5] = [128, 256, 512, 1024, 2048];
const ROWS: [usize; 2] = [1, 32];

/// Input channels, height = width, output channels and filter size.
const CONV: [[usize; 4]; 9] = [
    [64, 56, 64, 3],
    [32, 112, 32, 3],
    [256, 14, 256, 3],
    [512, 7, 512, 3],
    [1024, 6, 1024, 3],
    [16, 48, 16, 3],
    [64, 56, 128, 1],
    [256, 14, 512, 1],
    [512, 14, 512, 1],
];

/// The cases for an instruction set: `matmul_i8` (sums of `u8` and `i8` in `i32`), `matmul_i8_small` (the same
/// with small weights), `matmul_i8_q` (both signed, quantised), `conv_i8` (`u8`, quantised) and `matmul_bf16`.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have it.
pub fn cases(isa: Isa) -> Result<Vec<Case>, KernelError> {
    let mut cases = Vec::new();
    for shape in SQUARES.map(|n| [n; 3]).into_iter().chain(ROWS.map(|m| [m, 2048, 2048])) {
        let [m, k, n] = shape;
        let sums = QmatmulParams::new(m, k, n, Dtype::U8);
        let bytes = QmatmulParams { a: Dtype::I8, output: QuantOutput::i8(0), ..sums.clone() };
        let small = QmatmulParams { small: true, ..sums.clone() };
        for (op, p) in [("matmul_i8", sums), ("matmul_i8_q", bytes), ("matmul_i8_small", small)] {
            cases.push(matmul(isa, op, p)?);
        }
        cases.push(half(isa, shape)?);
    }
    for shape in CONV {
        cases.push(conv(isa, shape)?);
    }
    Ok(cases)
}

/// Bytes that differ.
fn filled(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7919 % 251) as u8).collect()
}

fn matmul(isa: Isa, op: &str, p: QmatmulParams) -> Result<Case, KernelError> {
    let plan = QmatmulPlan::new(isa, &p)?;
    let [m, k, n] = [p.sizes.m, p.sizes.k, p.sizes.n];
    let mut operands = None;
    Ok(Case {
        op: op.into(),
        shape: [m, k, n],
        kernel: plan.kernel_name(),
        dtype: Dtype::I8,
        flop: (2 * m * k * n) as f64,
        bytes: 0.0,
        resident: 0.0,
        run: Box::new(move || {
            let (a, words, sums) = operands.get_or_insert_with(|| {
                let lens = [plan.weights_len(), plan.columns_len(), plan.scratch_len()];
                let mut words = lens.map(|n| vec![0x0102_0304; n]);
                if plan.params().small {
                    // Nothing was split.
                    words[0].fill(0);
                }
                (filled(plan.a_len()), words, vec![0; plan.c_len()])
            });
            let [weights, columns, scratch] = words;
            // The operands have the lengths that the plan asks for, and any byte is an `i8`.
            let mut run = |a, c: QuantResult<'_>| {
                let _ = plan.compute(a, weights, columns, scratch, c);
            };
            let signed = plan.params().a == Dtype::I8;
            // SAFETY: the same bytes as signed ones, of which there are fewer than words.
            let (a_signed, bytes) = unsafe {
                let a: &[i8] = core::slice::from_raw_parts(a.as_ptr().cast(), a.len());
                (a, core::slice::from_raw_parts_mut(sums.as_mut_ptr().cast::<i8>(), sums.len()))
            };
            if signed {
                run(crate::Bytes::I8(a_signed), QuantResult::I8(black_box(bytes)));
            } else {
                run(crate::Bytes::U8(a), QuantResult::I32(black_box(sums)));
            }
        }),
    })
}

fn conv(isa: Isa, [c_in, size, c_out, window]: [usize; 4]) -> Result<Case, KernelError> {
    let sizes = ConvParams::new([1, c_in, size, size], c_out, [window, window]);
    let params = QconvParams::new(sizes.pads([window / 2; 4]), Dtype::U8, 3);
    let plan = QconvPlan::new(isa, &QconvParams { output: QuantOutput::u8(3), ..params })?;
    let mut operands = None;
    Ok(Case {
        op: alloc::format!("conv_i8_{window}x{window}"),
        shape: [c_in, size, c_out],
        kernel: plan.kernel_name(),
        dtype: Dtype::I8,
        flop: (2 * c_in * size * size * c_out * window * window) as f64,
        bytes: 0.0,
        resident: 0.0,
        run: Box::new(move || {
            let (x, words, y) = operands.get_or_insert_with(|| {
                let lens =
                    [plan.weights_len(), plan.columns_len(), plan.scratch_len() + plan.local_len()];
                (filled(plan.x_len()), lens.map(|n| vec![0x0102_0304; n]), filled(plan.y_len()))
            });
            let [weights, columns, scratch] = words;
            let y = QuantResult::U8(black_box(y));
            // The operands have the lengths that the plan asks for.
            let _ = plan.compute(crate::Bytes::U8(x), weights, columns, scratch, y);
        }),
    })
}

fn half(isa: Isa, [m, k, n]: [usize; 3]) -> Result<Case, KernelError> {
    let plan = HalfMatmulPlan::new(isa, &HalfMatmulParams::new(m, k, n, Dtype::Bf16))?;
    let mut operands = None;
    Ok(Case {
        op: "matmul_bf16".into(),
        shape: [m, k, n],
        kernel: plan.kernel_name(),
        dtype: Dtype::Bf16,
        flop: (2 * m * k * n) as f64,
        bytes: 0.0,
        resident: 0.0,
        run: Box::new(move || {
            let (a, words, floats) = operands.get_or_insert_with(|| {
                let words = [plan.weights_len(), plan.scratch_len()].map(|n| vec![0x3c00_3c00; n]);
                let floats = [plan.bias_len(), plan.c_len()].map(|n| vec![0.0; n]);
                (vec![0x3c00; plan.a_len()], words, floats)
            });
            let ([weights, scratch], [bias, c]) = (words, floats);
            // The operands have the lengths that the plan asks for.
            let _ = plan.compute(a, weights, bias, scratch, HalfResult::F32(black_box(c)));
        }),
    })
}

macro_rules! peak_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], $($rest:tt)*) => {
        mod $id {
            /// Thirteen chains, which hide a latency of six cycles at two instructions per cycle.
            ///
            /// # Safety
            ///
            /// The CPU has the instructions of the row, and nine vectors are readable at `operand`.
            $(#[target_feature(enable = $f)])*
            pub(super) unsafe fn chains(steps: usize, operand: *const f32) -> f32 {
                use tilewright_intrinsics::$tile as tile;
                tile!(DEF t [1 x 13 x 1]);
                for _ in 0..steps {
                    // Loaded anew, so that no part of the product leaves the loop.
                    let p = core::hint::black_box(operand);
                    // No two products are of the same operands: where adding up is an instruction of its
                    // own, one of both would do.
                    let b = [tile!(VLOAD p, 0), tile!(VLOAD p, 1)];
                    tilewright_intrinsics::each!(i in 13 {
                        let a = tile!(VLOAD p, 2 + i / 2);
                        t[i][0] = tile!(VFMA a, b[i % 2], t[i][0]);
                    });
                }
                let mut lanes = [0.0f32; 13 * tile!(LANES)];
                let p = lanes.as_mut_ptr();
                tilewright_intrinsics::each!(i in 13 { tile!(VSTORE p, i, t[i][0]); });
                lanes.iter().fold(0u32, |x, y| x ^ y.to_bits()) as f32
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(peak_row, i8);
tilewright_intrinsics::for_each_tile!(peak_row, u8);
tilewright_intrinsics::for_each_tile!(peak_row, f16);
tilewright_intrinsics::for_each_tile!(peak_row, bf16);

/// Runs `steps` steps of a loop that does nothing but independent dot products in registers; returns
/// the operations done, two per multiply-add.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have the instruction set;
/// [`KernelError::Unsupported`] for a type without dot products.
pub fn peak(isa: Isa, dtype: Dtype, steps: usize) -> Result<f64, KernelError> {
    isa.require()?;
    if !matches!(dtype, Dtype::I8 | Dtype::F16 | Dtype::Bf16) {
        return Err(KernelError::Unsupported { op: "peak", what: "this type" });
    }
    // A step of pieces takes as long as ten of these.
    if let (Dtype::I8, Some(done)) = (dtype, crate::template::pieces_peak(isa, steps / 8 + 1)) {
        return Ok(done);
    }
    let row = match dtype {
        Dtype::I8 => crate::template::bytes_row(isa, true),
        _ => crate::template::dot_row(isa, dtype),
    };
    let (isa, dtype) = (row.kernels[0].info.isa, row.kernels[0].info.dtype);
    let operand = [0.0f32; 9 * 16];
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $($rest:tt)*) => {
            if isa == Isa::$isa && dtype.name() == stringify!($dtype) {
                // SAFETY: `require` has checked that the CPU has the instruction set, and with it
                // its bases; the operand has as many words as nine of the widest vectors.
                black_box(unsafe { $id::chains(black_box(steps), operand.as_ptr()) });
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, i8);
    tilewright_intrinsics::for_each_tile!(row, u8);
    tilewright_intrinsics::for_each_tile!(row, f16);
    tilewright_intrinsics::for_each_tile!(row, bf16);
    // A lane that takes several words of a column is of several rows, too.
    let products = row.lanes * row.word.group() * row.word.side_by_side();
    Ok((steps * 13 * 2 * products) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_instruction_set_has_cases_and_peaks() {
        for isa in Isa::available() {
            for dtype in [Dtype::I8, Dtype::F16, Dtype::Bf16] {
                assert!(peak(isa, dtype, 10).unwrap() > 0.0);
            }
            let mut cases = cases(isa).unwrap();
            for case in cases.iter_mut().filter(|c| c.flop < 5e6) {
                case.run();
            }
            assert!(cases.iter().any(|c| c.name().starts_with("conv_i8_3x3/16x48x16/dot_")));
        }
    }
}
