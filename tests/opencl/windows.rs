//! Convolutions and pooling, against the references.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::pool::{Pool, PoolKind};
use tilewright_kernels::Activation;

use super::grid::{check, full, op, sum_bound};
use super::*;

pub(super) fn convolutions(device: &Arc<OpenClDevice>, cases: u32) {
    let strategy = (
        (1usize..3, 1usize..4, 1usize..5, 1usize..10),
        (1usize..20, 1usize..40),
        (1usize..4, 1usize..4),
        (1usize..4, 1usize..3),
        proptest::array::uniform4(0usize..3),
        (any::<bool>(), any::<bool>(), 0usize..3),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(
        &strategy,
        |((n, g, c, k), (h, w), (fh, fw), (stride, dilation), pads, (bias, residual, kind))| {
            // Of some cases each channel has a filter of its own, or windows are one pixel.
            let (g, c, k) = match kind {
                1 => (3 * g + 1, 1, 1),
                _ => (g, c, k),
            };
            let (fh, fw) = if kind == 2 { (1, 1) } else { (fh, fw) };
            let conv = Conv {
                stride: [stride, stride],
                dilation: [dilation; 2],
                pads,
                groups: g,
                bias,
                activation: if residual { Activation::Relu } else { Activation::None },
                ..Conv::default()
            };
            let (h, w) = (h + 2 * dilation, w + 2 * dilation);
            let mut src = vec![tensor(&[n, g * c, h, w], 1), tensor(&[g * k, c, fh, fw], 2)];
            if bias {
                src.push(tensor(&[g * k], 3));
            }
            let what = format!("{conv:?} {:?} {:?}", src[0].dims(), src[1].dims());
            let bound = sum_bound(c * fh * fw) * 4.0;
            check(device, &what, bound, &src, &op(conv.clone()));
            if residual {
                let dims = reference(&src, &op(conv.clone())).dims();
                src.push(tensor(&dims, 4));
                check(device, &what, bound, &src, &op(Conv { residual: true, ..conv.clone() }));
            }
            let turned = Conv { transposed: Some([0; 2]), pads: [0; 4], ..conv };
            let mut src =
                vec![tensor(&[n, g * c, h.min(6), w.min(7)], 1), tensor(&[g * c, k, fh, fw], 2)];
            if bias {
                src.push(tensor(&[g * k], 3));
            }
            check(device, &format!("{turned:?}"), bound, &src, &op(turned));
            Ok(())
        },
    );
    outcome.unwrap();
}

#[test]
fn convolutions_of_random_shapes() {
    if let Some(device) = shared() {
        convolutions(&device, if full() { 1500 } else { 96 });
    }
}

#[test]
fn what_a_plan_has_packed_stays_its_own() {
    let Some(device) = open(options()) else { return };
    let build = op(Conv { pads: [1; 4], ..Conv::default() });
    let plan = |seed: u32| {
        let mut cx = Context::new();
        let x = cx.input("x", DType::F32, &[1, 3, 20, 20]).unwrap();
        let w = cx.constant(tensor(&[9, 3, 3, 3], seed)).unwrap();
        let y = build(&mut cx, &[x, w]);
        let executor = Executor::new(Isa::best(), 1).unwrap();
        let mut executor = executor.with_device(Some(device.clone() as Arc<dyn Device>));
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        move || executor.run(&plan, &[&tensor(&[1, 3, 20, 20], 99)], None).unwrap().remove(0)
    };
    // Both before either runs, so that memory given back too early has another owner.
    let (mut first, mut second) = (plan(1), plan(2));
    for (seed, found) in [(1, first()), (2, second())] {
        let src = [tensor(&[1, 3, 20, 20], 99), tensor(&[9, 3, 3, 3], seed)];
        assert_close(&found, &reference(&src, &build), 1e-5, &format!("plan {seed}"));
    }
}

#[test]
fn pooling() {
    let Some(device) = shared() else { return };
    let kinds = [
        PoolKind::Max,
        PoolKind::Average { include_pad: false },
        PoolKind::Average { include_pad: true },
    ];
    for kind in kinds {
        for (h, w) in [(5, 7), (16, 33), (2, 2)] {
            for (window, stride, pads) in [([2, 2], [2, 2], [0; 4]), ([3, 3], [1, 2], [1, 1, 0, 1])]
            {
                for ceil in [false, true] {
                    let pool = Pool { kind, window, stride, dilation: [1; 2], pads, ceil };
                    let x = tensor(&[2, 3, h, w], 5);
                    check(&device, &format!("{pool:?}"), 1e-6, &[x], &op(pool));
                }
            }
            let global = Pool::global(kind, [h, w]);
            check(&device, &format!("{global:?}"), 1e-5, &[tensor(&[1, 5, h, w], 6)], &op(global));
        }
    }
}
