//! Conformance tests of rotary position embeddings.

use super::rope::{RopeParams, RopePlan, RopeStyle};
use crate::testing::{Guarded, Numbers, Place, assert_close, skip};
use crate::{Isa, KernelError};

fn check(isa: Isa, p: RopeParams, place: Place) {
    let plan = RopePlan::new(isa, &p).unwrap();
    let mut numbers = Numbers::new((p.rows * 31 + p.size) as u64);
    let x = numbers.floats(plan.operand_len(0));
    let table = numbers.floats(plan.table_len());
    let (gx, gt) = (Guarded::new(&x, place), Guarded::new(&table, place));
    let mut y = Guarded::output(plan.operand_len(1), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gx.as_ptr(), gt.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    let pairs = p.rotated / 2;
    for row in 0..p.rows {
        for head in 0..p.heads {
            let x = &x[row * p.strides[0] + head * p.size..][..p.size];
            for (i, &same) in x.iter().enumerate() {
                let found = y[row * p.strides[1] + head * p.size + i];
                if i >= p.rotated {
                    assert_eq!(found, same);
                    continue;
                }
                let (pair, other, sign) = match (p.style, i) {
                    (RopeStyle::Interleaved, i) => {
                        (i / 2, i ^ 1, if i % 2 == 0 { -1.0 } else { 1.0 })
                    }
                    (RopeStyle::Half, i) if i < pairs => (i, i + pairs, -1.0),
                    (RopeStyle::Half, i) => (i - pairs, i - pairs, 1.0),
                };
                let [cos, sin] =
                    [pair, pairs + pair].map(|at| f64::from(table[row * p.rotated + at]));
                let exact = f64::from(same) * cos + sign * f64::from(x[other]) * sin;
                // Each product and their sum are at most 1 and 2, rounded once each.
                let allowed = 2.0 * f64::from(f32::EPSILON);
                assert_close(found, exact, allowed, (plan.kernel_name(), p, row, head, i));
            }
        }
    }
    if p.strides[0] == p.strides[1] {
        let mut again = Guarded::new(&x, place);
        let both = again.as_mut_ptr();
        // SAFETY: as above, in place.
        unsafe { plan.run(both, gt.as_ptr(), both, 0..plan.units()) };
        for (a, b) in again.iter().zip(y.iter()).filter(|(_, b)| !b.is_nan()) {
            assert_eq!(a, b);
        }
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        #[test]
        fn $id() {
            if skip(Isa::$isa) {
                return;
            }
            let shapes = [
                [1, 1, 2, 2],
                [3, 2, 64, 64],
                [2, 5, 80, 20],
                [4, 1, 7, 6],
                [1, 3, 13, 0],
                [2, 2, 300, 270],
                [5, 3, 48, 48],
                [130, 1, 96, 32],
            ];
            for style in [RopeStyle::Interleaved, RopeStyle::Half] {
                for (i, [rows, heads, size, rotated]) in shapes.into_iter().enumerate() {
                    let row = heads * size;
                    let p = RopeParams { style, rows, heads, size, rotated, strides: [row; 2] };
                    check(Isa::$isa, p, Place::ALL[i % 3]);
                    check(
                        Isa::$isa,
                        RopeParams { strides: [row + 3, row + 1], ..p },
                        Place::ALL[(i + 1) % 3],
                    );
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

#[test]
fn odd_and_long_rotations_and_overlaps_are_refused() {
    let style = RopeStyle::Half;
    let p = RopeParams { style, rows: 2, heads: 2, size: 8, rotated: 8, strides: [16; 2] };
    let refused = |p: RopeParams| match RopePlan::new(Isa::Scalar, &p) {
        Err(KernelError::InvalidParam { param, .. }) => param,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(RopeParams { rotated: 7, ..p }), "rotated");
    assert_eq!(refused(RopeParams { rotated: 10, ..p }), "rotated");
    assert_eq!(refused(RopeParams { strides: [15, 16], ..p }), "strides");
    let plan = RopePlan::new(Isa::Scalar, &p).unwrap();
    assert!(plan.compute(&[0.0; 32], &[0.0; 15], &mut [0.0; 32]).is_err());
    assert!(plan.compute(&[0.0; 32], &[0.0; 16], &mut [0.0; 32]).is_ok());
}
