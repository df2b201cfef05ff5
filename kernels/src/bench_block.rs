//! What benches of block-quantised weights measure, and what they compare it with: a loop that does
//! nothing but read.

use crate::bench::Case;
use crate::{BlockFormat, BlockMatmulParams, BlockMatmulPlan, Dtype, Isa, KernelError};
use alloc::boxed::Box;
use alloc::{format, vec, vec::Vec};
use core::hint::black_box;

/// Sizes m, k and n: a single column by a large matrix of a language model of a billion parameters,
/// and many by a smaller one.
const SIZES: [[usize; 3]; 2] = [[1, 2048, 8192], [128, 2048, 2048]];

/// Bytes of weights that runs with a single column cycle through: beyond the caches.
pub(crate) const RESIDENT: usize = 128 << 20;

/// The cases for an instruction set: `block_<format>`, whose activations are quantised by the run.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have it.
pub fn cases(isa: Isa) -> Result<Vec<Case>, KernelError> {
    let all = BlockFormat::ALL.into_iter();
    all.flat_map(|format| SIZES.map(|size| case(isa, format, size))).collect()
}

fn case(isa: Isa, format: BlockFormat, [m, k, n]: [usize; 3]) -> Result<Case, KernelError> {
    let plan = BlockMatmulPlan::new(isa, &BlockMatmulParams::new(m, n, k, format))?;
    let one = plan.packed_bytes();
    let copies = if m == 1 { (RESIDENT / one).max(1) } else { 1 };
    let (mut operands, mut next) = (None, 0);
    Ok(Case {
        op: format!("block_{}", format.name()),
        shape: [m, k, n],
        kernel: plan.kernel_name(),
        dtype: if format.elements() == 1 || format == BlockFormat::U4 {
            Dtype::F32
        } else {
            Dtype::I8
        },
        flop: 2.0 * (m * k) as f64 * n as f64,
        bytes: (one + 4 * (m * k + m * n)) as f64,
        resident: copies as f64 * one as f64,
        run: Box::new(move || {
            let (weights, x, words) = operands.get_or_insert_with(|| {
                let x: Vec<f32> = (0..m * k).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
                let lens = [plan.workspace_len(), plan.scratch_len(), plan.y_len()];
                (packed(&plan).repeat(copies), x, lens.map(|len| vec![0.0; len]))
            });
            let ([workspace, scratch, y], weights) = (words, &weights[next * one..][..one]);
            // The operands have the lengths that the plan asks for.
            let _ = plan.compute(black_box(x), weights, &[], workspace, scratch, y);
            black_box(y);
            next = (next + 1) % copies;
        }),
    })
}

/// Weights as the plan takes them, with scales of a usual size: denormal ones would slow the products down.
pub fn packed(plan: &BlockMatmulPlan) -> Vec<u8> {
    let format = plan.params().format;
    let bytes = plan.params().n * plan.row_bytes();
    let mut source: Vec<u8> = (0..bytes).map(|i| (i % 251 * 131 % 251) as u8).collect();
    for (i, block) in source.chunks_exact_mut(format.bytes()).enumerate() {
        format.set_halves(block, |_| 0x2000 + (i % 0x400) as u16);
        if format == BlockFormat::Mxfp4 {
            block[0] = 120;
        }
        if format == BlockFormat::U4 {
            block[..4].copy_from_slice(&0.01f32.to_le_bytes());
            block[4..8].copy_from_slice(&(-0.08f32).to_le_bytes());
        }
    }
    let mut packed = vec![0; plan.packed_bytes()];
    // Both have the lengths of the plan, which has these panels: only one that takes the file's order refuses.
    match plan.pack(0..plan.panels(), &source, &mut packed) {
        Ok(()) => packed,
        Err(_) => source,
    }
}

macro_rules! read_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], $($rest:tt)*) => {
        mod $id {
            /// Reads whole steps of eight vectors.
            ///
            /// # Safety
            ///
            /// The CPU has the instructions of the row, and `p` is readable for `steps` of these.
            $(#[target_feature(enable = $f)])*
            pub(super) unsafe fn read(mut p: *const u8, steps: usize) -> f32 {
                use tilewright_intrinsics::$tile as tile;
                const BYTES: usize = 4 * tile!(LANES);
                tile!(DEF t [1 x 8 x 1]);
                for _ in 0..steps {
                    tilewright_intrinsics::each!(i in 8 {
                        t[i][0] = tile!(VOR t[i][0], tile!(VWORDS p.wrapping_add(i * BYTES)));
                    });
                    p = p.wrapping_add(8 * BYTES);
                }
                let mut lanes = [0.0f32; 8 * tile!(LANES)];
                let p = lanes.as_mut_ptr();
                tilewright_intrinsics::each!(i in 8 { tile!(VSTORE p, i, t[i][0]); });
                lanes.iter().fold(0u32, |x, y| x ^ y.to_bits()) as f32
            }
            pub(super) const STEP: usize = 32 * tilewright_intrinsics::$tile!(LANES);
        }
    };
}
tilewright_intrinsics::for_each_tile!(read_row, block);

/// Reads bytes, in order, in the widest vectors, and does nothing else with them; returns how many, as
/// a last part of less than 512 bytes may be left out.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have the instruction set.
pub fn read(isa: Isa, bytes: &[u8]) -> Result<usize, KernelError> {
    isa.require()?;
    let served = isa.serving(Dtype::Block);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if served == Isa::$isa {
                let steps = bytes.len() / $id::STEP;
                // SAFETY: `require` has checked that the CPU has the instruction set, and with it its
                // bases; the bytes have these steps.
                black_box(unsafe { $id::read(black_box(bytes).as_ptr(), steps) });
                return Ok(steps * $id::STEP);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, block);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_but_a_part_of_a_step() {
        for isa in Isa::available() {
            let bytes = std::vec![1; 4097];
            assert!(read(isa, &bytes).unwrap() > 4097 - 512);
        }
    }

    #[test]
    fn a_single_column_reads_more_than_caches_hold() {
        let cases = cases(Isa::Scalar).unwrap();
        let case = cases.iter().find(|c| c.name().starts_with("block_q4_0/1x2048x8192/")).unwrap();
        assert_eq!(case.resident, 14.0 * 8192.0 * 1152.0);
        let plan = BlockMatmulParams::new(1, 3, 64, BlockFormat::Q8_0);
        let plan = BlockMatmulPlan::new(Isa::Scalar, &plan).unwrap();
        assert!(packed(&plan).iter().any(|&byte| byte != 0));
    }
}
