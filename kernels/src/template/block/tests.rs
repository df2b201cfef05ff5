//! Conformance of products of blocks, for every format and row of the table.

use super::reference::{reference, weights};
use super::{BlockFormat, BlockMatmulParams, BlockMatmulPlan, BlockOperands};
use crate::testing::{Guarded, Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use crate::{Isa, KernelError};
use alloc::{vec, vec::Vec};

/// What scales a matrix has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scales {
    /// Powers of two, so that results are exact.
    Exact,
    /// Normal ones of either sign.
    Normal,
    /// Zeros, denormal numbers and the largest.
    Odd,
}

/// Blocks of a matrix: bytes with many at the ends of their range, and scales.
fn matrix(numbers: &mut Numbers, format: BlockFormat, blocks: usize, scales: Scales) -> Vec<u8> {
    let mut bytes = numbers.bytes(blocks * format.bytes());
    let floats = numbers.floats(blocks);
    for (i, block) in bytes.chunks_exact_mut(format.bytes()).enumerate() {
        if matches!(format, BlockFormat::F32 | BlockFormat::Bf16 | BlockFormat::U4) {
            // As many as begin a block, of no more bytes than it has.
            for (j, to) in block.chunks_mut(4).take(2).enumerate() {
                let x: f32 = match scales {
                    Scales::Exact => [1.0, 0.5, -0.5, 2.0, 3.0][(i + j) % 5],
                    Scales::Normal => floats[i] * if j == 0 { 1.0 } else { -7.0 },
                    Scales::Odd => [0.0, 1e-40, -1e-39, 1e10, f32::MIN_POSITIVE][(i + j) % 5],
                };
                to.copy_from_slice(&x.to_le_bytes()[4 - to.len()..]);
            }
            continue;
        }
        if format == BlockFormat::Mxfp4 {
            block[0] = match scales {
                Scales::Exact => [127, 126, 129, 128][i % 4],
                Scales::Normal => 116 + (i * 7 % 13) as u8,
                Scales::Odd => [0, 1, 2, 160, 127, 3][i % 6],
            };
        }
        format.set_halves(block, |j| match scales {
            Scales::Exact => [0x3c00, 0x3800, 0xb800, 0x4000][(i + j) % 4],
            Scales::Normal => {
                0x2000 + ((i * 977 + j * 331) % 0x1000) as u16 + (i % 2 * 0x8000) as u16
            }
            Scales::Odd => [0, 1, 0x8003, 0x7bff, 0x03ff, 0x0400][(i + j) % 6],
        });
    }
    bytes
}

fn activations(numbers: &mut Numbers, len: usize, scales: Scales) -> Vec<f32> {
    let mut x = numbers.floats(len);
    for (i, group) in x.chunks_mut(32).enumerate() {
        match scales {
            // Integers of which the largest is 127 are themselves.
            Scales::Exact => {
                for x in group.iter_mut() {
                    *x = (*x * 127.0).trunc();
                }
                group[i % 32] = if i % 2 == 0 { 127.0 } else { -127.0 };
            }
            Scales::Normal => {}
            Scales::Odd => {
                let size = [1.0, 0.0, 1e-36, 1e20, -1e-20][i % 5];
                group.iter_mut().for_each(|x| *x *= size);
            }
        }
    }
    x
}

fn check(isa: Isa, params: &BlockMatmulParams, scales: Scales, place: Place) {
    let &BlockMatmulParams { m, n, k, format, bias } = params;
    let plan = BlockMatmulPlan::new(isa, params).unwrap();
    let mut numbers = Numbers::new((m * 31 + n * 7 + k) as u64);
    let source = matrix(&mut numbers, format, n * k / format.elements(), scales);
    let x = activations(&mut numbers, m * k, scales);
    let what = (isa, params, scales);

    // Panel by panel is the same as all at once.
    let mut packed = Buffer::output(plan.packed_bytes(), place);
    let guarded = Buffer::new(&source, place);
    let (rows, bytes) = (plan.source_bytes(), plan.panel_bytes());
    for panel in (0..plan.panels()).rev() {
        let end = ((panel + 1) * rows).min(source.len());
        let source = &guarded[panel * rows..end];
        plan.pack(panel..panel + 1, source, &mut packed[panel * bytes..][..bytes]).unwrap();
    }
    let mut whole = vec![0; plan.packed_bytes()];
    plan.pack(0..plan.panels(), &source, &mut whole).unwrap();
    assert_eq!(&packed[..], &whole[..], "{what:?}");

    let x = Guarded::new(&x, place);
    let added: Vec<f32> = (0..plan.bias_len()).map(|i| [0.0, 8.0, -3.0][i % 3]).collect();
    let added = Guarded::new(&added, Place::PageEnd);
    let in_place = BlockMatmulPlan::in_place(isa, params).unwrap();
    let run = |plan: &BlockMatmulPlan, weights: &[u8], reversed: bool| {
        let mut y = Guarded::output(plan.y_len(), place);
        let mut workspace = Guarded::output(plan.workspace_len(), Place::PageEnd);
        let mut scratch = Guarded::output(plan.scratch_len(), Place::Misaligned);
        let order = |unit: usize, units: usize| if reversed { units - 1 - unit } else { unit };
        let (ws, s) = (workspace.as_mut_ptr(), scratch.as_mut_ptr());
        for unit in 0..plan.prepare_units() {
            let unit = order(unit, plan.prepare_units());
            // SAFETY: the operands have the lengths that the plan asks for.
            unsafe { plan.prepare(x.as_ptr(), ws, unit..unit + 1) };
        }
        for unit in 0..plan.units() {
            let unit = order(unit, plan.units());
            let operands = BlockOperands {
                weights: weights.as_ptr(),
                bias: added.as_ptr(),
                workspace: ws,
                scratch: s,
                y: y.as_mut_ptr(),
            };
            // SAFETY: as above; the workspace was prepared.
            unsafe { plan.run(&operands, unit..unit + 1) };
        }
        y
    };
    let y = run(&plan, &packed, false);
    let from_file = run(&in_place, &guarded, true);
    let expected = reference(format, &source, &x, k, n);
    let both = y.iter().zip(&expected).chain(from_file.iter().zip(&expected));
    for (i, (y, [exact, size])) in both.enumerate() {
        let (mut exact, mut size) = (*exact, *size);
        if bias {
            exact += f64::from(added[i % n]);
            size += f64::from(added[i % n]).abs();
        }
        let tolerance = match scales {
            Scales::Exact if size < 8_388_608.0 => 0.0,
            _ => {
                size * (k as f64 / if format.elements() == 1 { 1.0 } else { 16.0 } + 4.0)
                    * f64::from(f32::EPSILON)
                    + 1e-40
            }
        };
        let close = (f64::from(*y) - exact).abs() <= tolerance;
        assert!(close, "{what:?} at {i}: {y} instead of {exact}");
    }
    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&y), bits(&run(&plan, &packed, true)), "{what:?}");
    assert_eq!(bits(&from_file), bits(&run(&in_place, &guarded, false)), "in place {what:?}");
    // A single column times floats is added up in another order.
    if m > 1 || format.elements() > 1 {
        assert_eq!(bits(&y), bits(&from_file), "in place {what:?}");
    }

    let mut row = vec![0.0; k];
    for r in [0, n / 2, n - 1] {
        in_place.row(&guarded, r, &mut row).unwrap();
        let file = row.clone();
        plan.row(&packed, r, &mut row).unwrap();
        assert_eq!(row, file, "{what:?}");
        let blocks =
            source[r * plan.row_bytes()..][..plan.row_bytes()].chunks_exact(format.bytes());
        let exact = blocks.flat_map(|b| weights(format, b));
        for (x, w) in row.iter().zip(exact) {
            let size = (w.scale * f64::from(w.q)).abs() + w.min.abs();
            let error = (f64::from(*x) - (w.scale * f64::from(w.q) + w.min)).abs();
            assert!(error <= 2.0 * size * f64::from(f32::EPSILON), "{what:?}: {x} of {w:?}");
        }
    }
}

fn conformance(isa: Isa, format: BlockFormat) {
    let block = format.elements();
    let mut place = Place::ALL.iter().cycle();
    for (m, n, blocks) in [
        (1, 1, 1),
        (1, 16, 2),
        (1, 37, 3),
        (2, 33, 1),
        (5, 50, 2),
        (6, 32, 3),
        (13, 75, 1),
        (11, 8, 5),
    ] {
        for scales in [Scales::Exact, Scales::Normal, Scales::Odd] {
            let params = BlockMatmulParams { m, n, k: blocks * block, format, bias: blocks == 3 };
            check(isa, &params, scales, *place.next().unwrap());
        }
    }
    for m in 1..=13 {
        check(isa, &BlockMatmulParams::new(m, 19, block, format), Scales::Exact, Place::PageEnd);
    }
    check(isa, &BlockMatmulParams::new(29, 64, 512, format), Scales::Normal, Place::Aligned);
}

macro_rules! conforms {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        #[test]
        fn $id() {
            if skip(Isa::$isa) {
                return;
            }
            for format in BlockFormat::ALL {
                conformance(Isa::$isa, format);
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conforms, block);

#[test]
fn numbers_that_are_not_finite_reach_the_result() {
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let params = BlockMatmulParams::new(2, 3, 64, BlockFormat::Q8_0);
            let plan = BlockMatmulPlan::new(isa, &params).unwrap();
            let mut x = vec![1.0; 128];
            x[64 + 40] = bad;
            let (mut packed, source) = (vec![0; plan.packed_bytes()], vec![0x11; 3 * 68]);
            plan.pack(0..plan.panels(), &source, &mut packed).unwrap();
            let (mut workspace, mut scratch) =
                (vec![0.0; plan.workspace_len()], vec![0.0; plan.scratch_len()]);
            let mut y = [0.0; 6];
            plan.compute(&x, &packed, &[], &mut workspace, &mut scratch, &mut y).unwrap();
            assert!(
                y[..3].iter().all(|y| y.is_finite()) && y[3..].iter().all(|y| y.is_nan()),
                "{y:?}"
            );
        }
    }
}

#[test]
fn bad_sizes_are_errors() {
    let new = |m, n, k| {
        BlockMatmulPlan::new(Isa::Scalar, &BlockMatmulParams::new(m, n, k, BlockFormat::Q4_0))
    };
    for (m, n, k) in [(0, 1, 32), (1, 0, 32), (1, 1, 0), (1, 1, 33)] {
        assert!(matches!(new(m, n, k), Err(KernelError::InvalidParam { .. })), "{m} {n} {k}");
    }
    for (m, n, k) in [
        (usize::MAX, 1, 32),
        (1, usize::MAX, 32),
        (1, 1 << (usize::BITS - 24), 1 << 30),
        (1, 1, usize::MAX & !31),
    ] {
        assert!(matches!(new(m, n, k), Err(KernelError::TooLarge { .. })), "{m} {n} {k}");
    }
    let plan = new(1, 2, 32).unwrap();
    let mut packed = vec![0; plan.packed_bytes()];
    assert!(plan.pack(0..3, &[0; 64], &mut packed).is_err());
    let (last, rows) = (plan.panels(), [0; 128]);
    assert!(plan.pack(last..last + 1, &rows, &mut packed).is_err());
    assert!(plan.pack(last..last, &rows, &mut packed).is_ok());
    assert!(plan.pack(core::ops::Range { start: 1, end: 0 }, &rows, &mut packed).is_err());
    assert!(plan.pack(0..2, &[0; 35], &mut packed).is_err());
    assert!(plan.row(&packed, 2, &mut [0.0; 32]).is_err());
    assert!(plan.row(&packed, 0, &mut [0.0; 31]).is_err());
}

#[test]
fn neither_what_is_fetched_ahead_nor_turns_change_a_result() {
    // Of 8 rows a panel: turns of all panels, the last of them with fewer rows; of all but one or two.
    for (isa, n) in Isa::available().flat_map(|isa| [30, 40, 62, 77].map(|n| (isa, n))) {
        for format in BlockFormat::ALL {
            let params =
                BlockMatmulParams { bias: n > 40, ..BlockMatmulParams::new(1, n, 512, format) };
            let mut plan = BlockMatmulPlan::new(isa, &params).unwrap();
            let mut numbers = Numbers::new(5);
            let source = matrix(&mut numbers, format, n * 512 / format.elements(), Scales::Normal);
            let mut packed = vec![0; plan.packed_bytes()];
            plan.pack(0..plan.panels(), &source, &mut packed).unwrap();
            let x = activations(&mut numbers, 512, Scales::Normal);
            let bias = activations(&mut numbers, plan.bias_len(), Scales::Normal);
            let ways = [(false, false), (true, false), (false, true), (true, true)];
            let results = ways.map(|way| {
                (plan.follows, plan.streams) = way;
                let lens = [plan.workspace_len(), plan.scratch_len(), plan.y_len()];
                let [mut workspace, mut scratch, mut y] = lens.map(|len| vec![0.0f32; len]);
                plan.compute(&x, &packed, &bias, &mut workspace, &mut scratch, &mut y).unwrap();
                y.iter().map(|y| y.to_bits()).collect::<Vec<u32>>()
            });
            assert!(results.iter().all(|y| *y == results[0]), "{isa} {format:?} {n}");
        }
    }
}
