//! Reference and conformance tests of the layout conversions.

use super::layout::{LayoutOp, LayoutParams, LayoutPlan};
use crate::testing::{Guarded, Numbers, Place, skip};
use crate::{C_BLOCK, Isa, KernelError};
use alloc::{vec, vec::Vec};

/// A layout, to index it by its definition.
#[derive(Clone, Copy)]
enum Layout {
    Plain,
    Mixed,
    Blocked,
}

fn layouts(op: LayoutOp) -> (Layout, Layout) {
    match op {
        LayoutOp::NchwToBlocked => (Layout::Plain, Layout::Blocked),
        LayoutOp::BlockedToNchw => (Layout::Blocked, Layout::Plain),
        LayoutOp::NhwcToBlocked => (Layout::Mixed, Layout::Blocked),
        LayoutOp::BlockedToNhwc => (Layout::Blocked, Layout::Mixed),
        LayoutOp::NchwToNhwc => (Layout::Plain, Layout::Mixed),
        LayoutOp::NhwcToNchw => (Layout::Mixed, Layout::Plain),
    }
}

fn index(layout: Layout, p: &LayoutParams, n: usize, c: usize, y: usize, x: usize) -> usize {
    match layout {
        Layout::Plain => ((n * p.c + c) * p.h + y) * p.w + x,
        Layout::Mixed => ((n * p.h + y) * p.w + x) * p.c + c,
        Layout::Blocked => {
            let block = n * p.c.div_ceil(C_BLOCK) + c / C_BLOCK;
            ((block * p.h + y) * p.w + x) * C_BLOCK + c % C_BLOCK
        }
    }
}

/// The destination by the definition; elements that none of the source's become are 0.
fn reference(p: &LayoutParams, x: &[f32], y_len: usize) -> Vec<f32> {
    let (from, to) = layouts(p.op);
    let mut out = vec![0.0; y_len];
    for n in 0..p.n {
        for c in 0..p.c {
            for y in 0..p.h {
                for x_ in 0..p.w {
                    out[index(to, p, n, c, y, x_)] = x[index(from, p, n, c, y, x_)];
                }
            }
        }
    }
    out
}

const OPS: [LayoutOp; 6] = [
    LayoutOp::NchwToBlocked,
    LayoutOp::BlockedToNchw,
    LayoutOp::NhwcToBlocked,
    LayoutOp::BlockedToNhwc,
    LayoutOp::NchwToNhwc,
    LayoutOp::NhwcToNchw,
];

fn check(isa: Isa, params: LayoutParams, place: Place) {
    let plan = LayoutPlan::new(isa, &params).unwrap();
    let mut values = Numbers::new(7).floats(plan.x_len());
    if let (Layout::Blocked, _) = layouts(params.op) {
        // What is past the channels must not arrive anywhere.
        let plane = params.h * params.w * C_BLOCK;
        for (i, v) in values.iter_mut().enumerate() {
            let block = i / plane % params.c.div_ceil(C_BLOCK);
            if block * C_BLOCK + i % C_BLOCK >= params.c {
                *v = f32::NAN;
            }
        }
    }
    let x = Guarded::new(&values, place);
    let mut y = Guarded::output(plan.y_len(), place);
    // Units one by one, backwards: they do not depend on each other.
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(x.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    assert_eq!(&y[..], reference(&params, &values, plan.y_len()), "{params:?} {place:?}");
    let mut z = vec![f32::NAN; plan.y_len()];
    plan.compute(&values, &mut z).unwrap();
    assert_eq!(&y[..], z, "{params:?}");
}

#[test]
fn hand_computed() {
    let params = LayoutParams { op: LayoutOp::NchwToNhwc, n: 1, c: 2, h: 1, w: 3 };
    let plan = LayoutPlan::new(Isa::Scalar, &params).unwrap();
    let mut y = [0.0; 6];
    plan.compute(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut y).unwrap();
    assert_eq!(y, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let plan =
        LayoutPlan::new(Isa::Scalar, &LayoutParams { op: LayoutOp::NchwToBlocked, ..params })
            .unwrap();
    let mut y = [f32::NAN; 48];
    plan.compute(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut y).unwrap();
    assert_eq!(
        y[..18],
        [1.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 5.0]
    );
}

#[test]
fn bad_sizes_are_errors() {
    let params =
        LayoutParams { op: LayoutOp::NchwToBlocked, n: 1 << 30, c: 1 << 30, h: 1 << 30, w: 1 };
    assert_eq!(
        LayoutPlan::new(Isa::Scalar, &params).unwrap_err(),
        KernelError::TooLarge { op: "layout" }
    );
    let plan =
        LayoutPlan::new(Isa::Scalar, &LayoutParams { n: 1, c: 3, h: 2, w: 2, ..params }).unwrap();
    assert!(matches!(
        plan.compute(&[0.0; 11], &mut [0.0; 64]),
        Err(KernelError::InvalidLength { operand: "x", .. })
    ));
    assert!(matches!(
        plan.compute(&[0.0; 12], &mut [0.0; 63]),
        Err(KernelError::InvalidLength { operand: "y", .. })
    ));
    let empty =
        LayoutPlan::new(Isa::Scalar, &LayoutParams { n: 0, c: 3, h: 2, w: 2, ..params }).unwrap();
    assert_eq!(empty.units(), 0);
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn all_conversions() {
                if skip(Isa::$isa) {
                    return;
                }
                for op in OPS {
                    for c in (1..=18).chain([31, 32, 33, 48, 67]) {
                        for (h, w) in [(1, 1), (1, 3), (3, 5), (4, 4), (1, 17), (6, 8), (5, 13)] {
                            let place = Place::ALL[(c + w) % 3];
                            check(Isa::$isa, LayoutParams { op, n: 1 + c % 2, c, h, w }, place);
                        }
                    }
                }
            }

            #[test]
            fn several_units_per_image() {
                if skip(Isa::$isa) {
                    return;
                }
                for op in OPS {
                    for (c, h, w) in [(3, 41, 29), (20, 33, 17), (16, 32, 32), (300, 5, 9)] {
                        for place in Place::ALL {
                            check(Isa::$isa, LayoutParams { op, n: 2, c, h, w }, place);
                        }
                    }
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

/// For Miri, which is some thousand times slower: every border and tail once.
#[test]
fn small_shapes() {
    for isa in Isa::available() {
        for op in [LayoutOp::NchwToBlocked, LayoutOp::BlockedToNchw, LayoutOp::NchwToNhwc] {
            check(isa, LayoutParams { op, n: 2, c: 17, h: 2, w: 3 }, Place::Misaligned);
        }
    }
}
