//! Conformance of `plane` with the definition, on plain tensors.

use super::depthwise::DepthwiseParams;
use super::plane::PlanePlan;
use super::pool::{PoolOp, PoolParams};
use crate::testing::{
    Guarded, Numbers, Place, activation_error, assert_close, maximum, skip, tolerance,
};
use crate::{Activation, Dtype, Epilogue, Isa, KernelError};
use alloc::vec::Vec;

/// A window: rows and columns, strides, dilations, pads.
#[derive(Clone, Copy, Debug)]
struct Shape {
    n: usize,
    c: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pads: [usize; 4],
    up: bool,
}

const USUAL: Shape = Shape {
    n: 1,
    c: 2,
    input: [9, 17],
    kernel: [3, 3],
    stride: [1, 1],
    dilation: [1, 1],
    pads: [1; 4],
    up: false,
};

impl Shape {
    fn output(&self, axis: usize) -> usize {
        let span = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
        let padded = self.input[axis] + self.pads[axis] + self.pads[axis + 2];
        let more = if self.up { self.stride[axis] - 1 } else { 0 };
        (padded + more - span) / self.stride[axis] + 1
    }

    fn pool(&self) -> PoolParams {
        PoolParams {
            op: PoolOp::Max,
            n: self.n,
            c: self.c,
            h_in: self.input[0],
            w_in: self.input[1],
            h_out: self.output(0),
            w_out: self.output(1),
            kernel: self.kernel,
            stride: self.stride,
            dilation: self.dilation,
            pads: self.pads,
        }
    }

    fn depthwise(&self, activation: Activation) -> DepthwiseParams {
        DepthwiseParams {
            n: self.n,
            c: self.c,
            h_in: self.input[0],
            w_in: self.input[1],
            h_out: self.output(0),
            w_out: self.output(1),
            kernel: self.kernel,
            stride: self.stride,
            dilation: self.dilation,
            pads: self.pads,
            epilogue: Epilogue { activation, residual: false },
        }
    }

    /// Number of the filter tap and input of each tap in the image of output pixel `(y, x)` of a
    /// plane.
    fn taps(self, plane: usize, y: usize, x: usize) -> impl Iterator<Item = (usize, usize)> {
        let [h, w] = self.input;
        (0..self.kernel[0] * self.kernel[1]).filter_map(move |tap| {
            let (r, s) = (tap / self.kernel[1], tap % self.kernel[1]);
            let row = (y * self.stride[0] + r * self.dilation[0]).checked_sub(self.pads[0])?;
            let column = (x * self.stride[1] + s * self.dilation[1]).checked_sub(self.pads[1])?;
            (row < h && column < w).then_some((tap, (plane * h + row) * w + column))
        })
    }
}

fn run(plan: &PlanePlan, x: &[f32], weights: &[f32], bias: &[f32], place: Place) -> Vec<f32> {
    let [gx, gw, gb] = [x, weights, bias].map(|values| Guarded::new(values, place));
    let mut y = Guarded::output(plan.y_len(), place);
    let mut scratch = Guarded::output(plan.scratch_len(), Place::Aligned);
    for unit in (0..plan.units()).rev() {
        let (x, w, b) = (gx.as_ptr(), gw.as_ptr(), gb.as_ptr());
        let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(x, w, b, y, scratch, unit..unit + 1) };
    }
    y.to_vec()
}

fn check_max(isa: Isa, shape: Shape, place: Place) {
    let plan = PlanePlan::max_pool(isa, &shape.pool()).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
    let mut x = Numbers::new(shape.input[1] as u64).floats(plan.x_len());
    // All negative, so that zeros from padding would show, and some that are no numbers.
    x.iter_mut().for_each(|v| *v = *v / 2.0 - 1.0);
    x.iter_mut().step_by(31).for_each(|v| *v = f32::NAN);
    let y = run(&plan, &x, &[], &[], place);
    let (h, w) = (shape.output(0), shape.output(1));
    for (i, found) in y.iter().enumerate() {
        let taps = shape.taps(i / (h * w), i / w % h, i % w);
        let exact = taps.fold(f64::NEG_INFINITY, |m, (_, at)| maximum(m, x[at].into()));
        assert_close(*found, exact, 0.0, (plan.kernel_name(), shape, i));
    }
}

fn check_depthwise(isa: Isa, shape: Shape, activation: Activation, place: Place) {
    let params = shape.depthwise(activation);
    let plan = PlanePlan::depthwise(isa, &params).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
    let mut numbers = Numbers::new((shape.input[0] * 31 + shape.input[1]) as u64);
    let [x, weights, bias] =
        [plan.x_len(), plan.weights_len(), plan.bias_len()].map(|len| numbers.floats(len));
    let y = run(&plan, &x, &weights, &bias, place);
    let (h, w, count) = (shape.output(0), shape.output(1), shape.kernel[0] * shape.kernel[1]);
    for (i, &found) in y.iter().enumerate() {
        let (plane, channel) = (i / (h * w), i / (h * w) % shape.c);
        let taps = shape.taps(plane, i / w % h, i % w);
        let product = |(tap, at): (usize, usize)| {
            f64::from(x[at]) * f64::from(weights[channel * count + tap])
        };
        let sum = f64::from(bias[channel]) + taps.map(product).sum::<f64>();
        let (exact, more) = match activation {
            Activation::None => (sum, 0.0),
            Activation::Relu => (maximum(sum, 0.0), 0.0),
            Activation::Clip { min, max } => (sum.clamp(f64::from(min), f64::from(max)), 0.0),
            Activation::LeakyRelu { alpha } => {
                (if sum > 0.0 { sum } else { f64::from(alpha) * sum }, 0.0)
            }
            _ => (sum.tanh(), activation_error(1.0)),
        };
        let allowed = tolerance(Dtype::F32, count + 1) + more;
        assert_close(found, exact, allowed, (plan.kernel_name(), shape, i));
    }
}

fn windows(isa: Isa) {
    // Widths around one and two vectors of each instruction set, heights around those of tiles.
    for input in [
        [1, 1],
        [3, 3],
        [4, 8],
        [5, 9],
        [7, 7],
        [8, 15],
        [9, 16],
        [12, 17],
        [14, 14],
        [3, 33],
        [11, 70],
    ] {
        for (i, place) in Place::ALL.into_iter().enumerate() {
            let shape = Shape { input, c: 1 + i, n: 1 + i % 2, ..USUAL };
            check_max(isa, shape, place);
            check_depthwise(isa, shape, Activation::None, place);
            let shape = Shape { stride: [2, 2], ..shape };
            check_max(isa, shape, place);
            check_depthwise(isa, shape, Activation::None, place);
        }
    }
}

fn attributes(isa: Isa) {
    for kernel in [[1, 1], [2, 2], [3, 2], [5, 5], [1, 7], [4, 3]] {
        for stride in [[1, 1], [2, 2], [1, 2], [3, 1], [4, 2]] {
            for dilation in [[1, 1], [2, 3]] {
                for (pads, up) in
                    [([0; 4], false), ([0; 4], true), ([2, 1, 0, 3], false), ([1, 2, 1, 1], true)]
                {
                    let shape =
                        Shape { input: [13, 21], kernel, stride, dilation, pads, up, ..USUAL };
                    check_max(isa, shape, Place::PageEnd);
                    check_depthwise(
                        isa,
                        Shape { up: false, ..shape },
                        Activation::None,
                        Place::PageEnd,
                    );
                }
            }
        }
    }
}

fn epilogues(isa: Isa) {
    for activation in [
        Activation::Relu,
        Activation::Clip { min: -0.5, max: 0.25 },
        Activation::LeakyRelu { alpha: 0.125 },
        Activation::Tanh,
    ] {
        for input in [[9, 33], [8, 5]] {
            check_depthwise(isa, Shape { input, ..USUAL }, activation, Place::Aligned);
        }
    }
}

/// Large enough for several blocks of rows in a plane.
fn blocks(isa: Isa) {
    let shape = Shape { input: [61, 300], c: 1, ..USUAL };
    check_max(isa, shape, Place::Misaligned);
    check_depthwise(isa, shape, Activation::None, Place::Misaligned);
    let plan = PlanePlan::max_pool(isa, &shape.pool()).unwrap();
    assert!(plan.units() > 1);
}

/// The windows that are read in place: every width up to several vectors, every combination of pads.
fn in_place(isa: Isa) {
    for w in 1..=130 {
        let (h, i) = (w * 7 % 10 + 1, w % 16);
        let pads = [i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3];
        for (pads, place) in [(pads, Place::PageEnd), ([1; 4], Place::ALL[w % 3])] {
            let shape = Shape { input: [h, w], c: 1 + w % 3, pads, ..USUAL };
            let fits = |k: usize| (0..2).all(|i| shape.input[i] + pads[i] + pads[i + 2] >= k);
            if fits(3) {
                check_depthwise(isa, shape, Activation::Relu, place);
                check_max(isa, Shape { stride: [2, 2], ..shape }, place);
            }
            let two = Shape { stride: [2, 2], kernel: [2, 2], ..shape };
            if fits(2) {
                check_max(isa, two, place);
                // The only window may be larger than the padded image.
                check_max(isa, Shape { stride: [2, 2], up: true, ..shape }, place);
            }
            check_max(isa, Shape { up: true, ..two }, place);
            if h >= 2 && w >= 2 {
                check_max(isa, Shape { pads: [0; 4], ..two }, place);
            }
        }
    }
    let usual = USUAL.depthwise(Activation::None);
    assert!(PlanePlan::depthwise_pays(&usual));
    assert_eq!(PlanePlan::depthwise(isa, &usual).unwrap().scratch_len(), 0);
    assert!(!PlanePlan::depthwise_pays(&DepthwiseParams { pads: [2, 1, 0, 1], ..usual }));
}

/// Filters of five and seven rows: every width up to several strips, some with rows of padding alone.
fn slides(isa: Isa) {
    let activations =
        [Activation::None, Activation::Relu, Activation::Clip { min: -0.5, max: 0.25 }];
    for w in 1..=130 {
        for (kernel, pads) in [
            ([5, 5], [2; 4]),
            ([7, 7], [3; 4]),
            ([5, 1 + w % 4], [w % 5, w % 3, w % 4, 3]),
            ([7, 1 + w % 7], [7 + w % 2, w % 7, 9, 6]),
        ] {
            let shape = Shape { input: [w * 7 % 20 + 1, w], kernel, pads, c: 1 + w % 3, ..USUAL };
            let shape = Shape { stride: [1, 1 + w / 3 % 2], ..shape };
            if (0..2).all(|i| shape.input[i] + pads[i] + pads[i + 2] >= kernel[i]) {
                check_depthwise(isa, shape, activations[w % 3], Place::ALL[w % 3]);
            }
        }
    }
    let shape = Shape { input: [150, 260], kernel: [7, 7], pads: [3; 4], c: 1, ..USUAL };
    check_depthwise(isa, shape, Activation::None, Place::PageEnd);
}

macro_rules! suite {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;
            suite! { tests $isa windows attributes epilogues blocks in_place slides }
        }
    };
    (tests $isa:ident $($name:ident)*) => { $(
        #[test]
        fn $name() {
            if !skip(Isa::$isa) {
                super::$name(Isa::$isa);
            }
        }
    )* };
}
tilewright_intrinsics::for_each_tile!(suite);

#[test]
fn what_has_no_kernel_is_refused_by_name() {
    let average = PoolParams { op: PoolOp::Average { count_include_pad: false }, ..USUAL.pool() };
    let wide = Shape { stride: [1, 3], ..USUAL }.pool();
    for params in [average, wide] {
        let refused = PlanePlan::max_pool(Isa::Scalar, &params);
        assert!(
            matches!(refused, Err(KernelError::Unsupported { op: "plane", .. })),
            "{refused:?}"
        );
    }
    let mut params = USUAL.depthwise(Activation::None);
    params.epilogue.residual = true;
    assert!(PlanePlan::depthwise(Isa::Scalar, &params).is_err());
    let params = PoolParams { w_out: 4, ..USUAL.pool() };
    let refused = PlanePlan::max_pool(Isa::Scalar, &params);
    assert!(matches!(refused, Err(KernelError::InvalidParam { .. })), "{refused:?}");
    let plan = PlanePlan::max_pool(Isa::Scalar, &USUAL.pool()).unwrap();
    let (x, mut y) = (Vec::new(), Vec::new());
    assert!(matches!(plan.compute(&x, &[], &[], &mut y), Err(KernelError::InvalidLength { .. })));
}
