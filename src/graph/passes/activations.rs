//! Recognition of activations in the operators that exporters write them in.

use tilewright_kernels::template::binary::BinaryOp;

use super::super::ops::unary::{Unary, UnaryOp};
use super::super::{Context, GraphError, Op, TensorId};
use super::pattern::{binary, close, scalar, unary};
use crate::tensor::DType;

/// Factors that a product is taken apart into, at most.
const FACTORS: usize = 5;

/// Makes one operator of each of these, whatever the order of the factors:
///
/// - SiLU: `x * sigmoid(x)`, and with a factor inside (1.702: QuickGELU);
/// - hard swish: `x * hard_sigmoid(x)` with 1/6 and 1/2, `x * clip(x + 3, 0, 6) / 6`;
/// - Mish: `x * tanh(softplus(x))`;
/// - GELU: `x * 0.5 * (1 + erf(x / sqrt(2)))`, `x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
///
/// Results change by rounding only. What else reads the parts still finds them.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_activations(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    for id in cx.build_forward(outputs)? {
        if let Some((op, x)) = activation(cx, id) {
            cx.rewrite(id, Op::Unary(Unary::new(op)), vec![x])?;
        }
    }
    Ok(())
}

/// The activation that a product is, and of what.
fn activation(cx: &Context, id: TensorId) -> Option<(UnaryOp, TensorId)> {
    if cx.dtype(id) != DType::F32 {
        return None;
    }
    // Of factors as they stand, as x may be a product, too; and of all there are.
    let direct = binary(cx, id, BinaryOp::Mul).and_then(|pair| gated(cx, id, pair, 1.0));
    direct.or_else(|| {
        let whole = product(cx, id)?;
        gated(cx, id, whole.others.try_into().ok()?, whole.constant as f32)
    })
}

/// The activation that the product of two factors and a number is, whichever of them is x.
fn gated(
    cx: &Context,
    id: TensorId,
    [a, b]: [TensorId; 2],
    factor: f32,
) -> Option<(UnaryOp, TensorId)> {
    [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        if cx.dims(x) != cx.dims(id) {
            return None;
        }
        gated_by(cx, x, gate, factor).map(|op| (op, x))
    })
}

/// The activation that `x * gate * factor` is, if the gate is the one of an activation.
fn gated_by(cx: &Context, x: TensorId, gate: TensorId, factor: f32) -> Option<UnaryOp> {
    if close(factor, 1.0) {
        let Op::Unary(function) = cx.record(gate).op() else { return None };
        let of = unary(cx, gate, function.op)?;
        return match function.op {
            UnaryOp::Sigmoid => swish(cx, x, of),
            UnaryOp::HardSigmoid { alpha, beta } if close(alpha, 1.0 / 6.0) && beta == 0.5 => {
                (of == x).then_some(UnaryOp::HardSwish)
            }
            UnaryOp::Tanh => (unary(cx, of, UnaryOp::Softplus)? == x).then_some(UnaryOp::Mish),
            _ => None,
        };
    }
    if close(factor, 1.0 / 6.0) {
        let clipped = unary(cx, gate, UnaryOp::Clip { min: 0.0, max: 6.0 })?;
        return (plus(cx, clipped, 3.0)? == x).then_some(UnaryOp::HardSwish);
    }
    if !close(factor, 0.5) {
        return None;
    }
    let inner = plus(cx, gate, 1.0)?;
    if let Some(scaled) = unary(cx, inner, UnaryOp::Erf) {
        let scaled = product(cx, scaled)?;
        let root = close(scaled.constant as f32, core::f64::consts::FRAC_1_SQRT_2);
        return (root && scaled.others == [x]).then_some(UnaryOp::Gelu);
    }
    let cubic = unary(cx, inner, UnaryOp::Tanh)?;
    is_cubic(cx, cubic, x).then_some(UnaryOp::GeluTanh)
}

/// `x` times the sigmoid of `inner`, if that is `x` or a multiple of it.
fn swish(cx: &Context, x: TensorId, inner: TensorId) -> Option<UnaryOp> {
    if inner == x {
        return Some(UnaryOp::SILU);
    }
    let [a, b] = binary(cx, inner, BinaryOp::Mul)?;
    let alpha = if a == x { scalar(cx, b)? } else { scalar(cx, a).filter(|_| b == x)? };
    (cx.dims(inner) == cx.dims(x)).then_some(UnaryOp::Silu { alpha })
}

/// Whether `id` is `sqrt(2 / pi) * (x + 0.044715 * x^3)`, or with x before the parenthesis.
fn is_cubic(cx: &Context, id: TensorId, x: TensorId) -> bool {
    let Some(scaled) = product(cx, id) else { return false };
    if !close(scaled.constant as f32, (2.0 / core::f64::consts::PI).sqrt()) {
        return false;
    }
    let power = |id: TensorId, times: usize| {
        product(cx, id).is_some_and(|p| {
            close(p.constant as f32, 0.044_715)
                && p.others.len() == times
                && p.others.iter().all(|&o| o == x)
        })
    };
    match scaled.others[..] {
        [sum] => binary(cx, sum, BinaryOp::Add)
            .is_some_and(|[a, b]| (a == x && power(b, 3)) || (b == x && power(a, 3))),
        [a, b] if a == x => plus(cx, b, 1.0).is_some_and(|p| power(p, 2)),
        [a, b] if b == x => plus(cx, a, 1.0).is_some_and(|p| power(p, 2)),
        _ => false,
    }
}

/// The operand that a constant is added to.
fn plus(cx: &Context, id: TensorId, constant: f64) -> Option<TensorId> {
    let [a, b] = binary(cx, id, BinaryOp::Add)?;
    let is = |id| scalar(cx, id).is_some_and(|v| close(v, constant));
    match (is(a), is(b)) {
        (false, true) => Some(a),
        (true, false) => Some(b),
        _ => None,
    }
}

/// A product's constant factor, and the others.
struct Product {
    constant: f64,
    others: Vec<TensorId>,
}

/// Takes products, quotients by constants, squares and cubes apart. `None` if that is many factors.
fn product(cx: &Context, id: TensorId) -> Option<Product> {
    let (mut constant, mut others, mut open) = (1.0, Vec::new(), vec![id]);
    while let Some(id) = open.pop() {
        if open.len() + others.len() > FACTORS {
            return None;
        }
        if let Some(value) = scalar(cx, id) {
            constant *= f64::from(value);
        } else if let Some(factors) = binary(cx, id, BinaryOp::Mul) {
            open.extend(factors);
        } else if let Some((x, divisor)) =
            binary(cx, id, BinaryOp::Div).and_then(|[x, by]| Some((x, scalar(cx, by)?)))
        {
            constant /= f64::from(divisor);
            open.push(x);
        } else if let Some(x) = unary(cx, id, UnaryOp::Square) {
            open.extend([x, x]);
        } else if let Some(x) = binary(cx, id, BinaryOp::Pow)
            .and_then(|[x, by]| scalar(cx, by).filter(|&v| v == 3.0).map(|_| x))
        {
            open.extend([x; 3]);
        } else {
            others.push(id);
        }
    }
    Some(Product { constant, others })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ops::binary::Binary;
    use crate::graph::ops::conv::Conv;
    use crate::tensor::Tensor;
    use tilewright_kernels::Activation;

    struct Net(Context);

    impl Net {
        fn number(&mut self, value: f32) -> TensorId {
            self.0.constant(Tensor::from_slice(&[], &[value]).unwrap()).unwrap()
        }

        fn with(&mut self, op: BinaryOp, x: TensorId, value: f32) -> TensorId {
            let value = self.number(value);
            self.pair(op, x, value)
        }

        fn pair(&mut self, op: BinaryOp, a: TensorId, b: TensorId) -> TensorId {
            self.0.op(Binary::new(op), &[a, b]).unwrap()
        }

        fn unary(&mut self, op: UnaryOp, x: TensorId) -> TensorId {
            self.0.op(Unary::new(op), &[x]).unwrap()
        }

        fn found(mut self, y: TensorId, x: TensorId) -> Option<UnaryOp> {
            use_activations(&mut self.0, &[y]).unwrap();
            let record = self.0.record(y);
            match record.op() {
                Op::Unary(u) if record.src() == [x] => Some(u.op),
                _ => None,
            }
        }
    }

    fn net() -> (Net, TensorId) {
        let mut cx = Context::new();
        let x = cx.input("x", DType::F32, &[2, 3]).unwrap();
        (Net(cx), x)
    }

    /// The form with the error function; the half stands in front, behind, or at x.
    fn with_erf(half: usize, divisor: f32) -> Option<UnaryOp> {
        let (mut n, x) = net();
        let inner = n.with(BinaryOp::Div, x, divisor);
        let inner = n.unary(UnaryOp::Erf, inner);
        let sum = n.with(BinaryOp::Add, inner, 1.0);
        let y = match half {
            0 => {
                let x = n.with(BinaryOp::Mul, x, 0.5);
                n.pair(BinaryOp::Mul, x, sum)
            }
            1 => {
                let y = n.pair(BinaryOp::Mul, x, sum);
                n.with(BinaryOp::Mul, y, 0.5)
            }
            _ => {
                let y = n.pair(BinaryOp::Mul, sum, x);
                n.with(BinaryOp::Div, y, 2.0)
            }
        };
        n.found(y, x)
    }

    #[test]
    fn error_function_in_any_order() {
        let root = core::f32::consts::SQRT_2;
        for half in 0..3 {
            assert_eq!(with_erf(half, root), Some(UnaryOp::Gelu), "{half}");
        }
        assert_eq!(with_erf(0, 1.5), None);
    }

    /// QuickGELU, the factor on either side.
    #[test]
    fn factor_inside() {
        for first in [false, true] {
            let (mut n, x) = net();
            let factor = n.number(1.702);
            let inner = if first { [factor, x] } else { [x, factor] };
            let inner = n.pair(BinaryOp::Mul, inner[0], inner[1]);
            let gate = n.unary(UnaryOp::Sigmoid, inner);
            let y = n.pair(BinaryOp::Mul, x, gate);
            assert_eq!(n.found(y, x), Some(UnaryOp::Silu { alpha: 1.702 }));
        }
    }

    #[test]
    fn tanh_form() {
        for (factor, wanted) in [(0.044_715, Some(UnaryOp::GeluTanh)), (0.05, None)] {
            let (mut n, x) = net();
            let cube = n.with(BinaryOp::Pow, x, 3.0);
            let cube = n.with(BinaryOp::Mul, cube, factor);
            let sum = n.pair(BinaryOp::Add, x, cube);
            let inner = n.with(BinaryOp::Mul, sum, (2.0 / core::f32::consts::PI).sqrt());
            let inner = n.unary(UnaryOp::Tanh, inner);
            let sum = n.with(BinaryOp::Add, inner, 1.0);
            let half = n.with(BinaryOp::Mul, x, 0.5);
            let y = n.pair(BinaryOp::Mul, half, sum);
            assert_eq!(n.found(y, x), wanted);
        }
    }

    /// `x` times functions of it, in either order, where `x` is a product itself.
    #[test]
    fn gates_of_the_same_tensor() {
        let sixth = |beta| UnaryOp::HardSigmoid { alpha: 1.0 / 6.0, beta };
        for (gates, wanted) in [
            (&[UnaryOp::Sigmoid][..], Some(UnaryOp::SILU)),
            (&[sixth(0.5)], Some(UnaryOp::HardSwish)),
            (&[sixth(0.4)], None),
            (&[UnaryOp::Softplus, UnaryOp::Tanh], Some(UnaryOp::Mish)),
            (&[UnaryOp::Sigmoid, UnaryOp::Tanh], None),
            (&[UnaryOp::Tanh], None),
        ] {
            for first in [false, true] {
                let (mut n, x) = net();
                let x = n.pair(BinaryOp::Mul, x, x);
                let gate = gates.iter().fold(x, |y, &op| n.unary(op, y));
                let y = if first { [gate, x] } else { [x, gate] };
                let y = n.pair(BinaryOp::Mul, y[0], y[1]);
                assert_eq!(n.found(y, x), wanted, "{gates:?}");
            }
        }
    }

    /// What YOLO's exporters write behind each convolution is part of it.
    #[test]
    fn convolutions_have_their_gate_inside() {
        let (mut n, x) = (Net(Context::new()), [1, 2, 4, 4]);
        let x = n.0.input("x", DType::F32, &x).unwrap();
        let weights = Tensor::zeros(DType::F32, &[3, 2, 3, 3]).unwrap();
        let weights = n.0.constant(weights).unwrap();
        let y = n.0.op(Conv::default(), &[x, weights]).unwrap();
        let gate = n.unary(UnaryOp::Sigmoid, y);
        let y = n.pair(BinaryOp::Mul, y, gate);
        crate::graph::passes::optimize(&mut n.0, &[y], 1).unwrap();
        let Op::Conv(conv) = n.0.record(y).op() else { panic!("a convolution") };
        assert_eq!(conv.activation, Activation::Silu { alpha: 1.0 });
    }

    /// Hard swish as it was written before it was an operator, the sixth at the clipped sum or behind all.
    #[test]
    fn hard_swish_of_its_parts() {
        for (max, at_the_sum) in [(6.0, true), (6.0, false), (5.0, true)] {
            let (mut n, x) = net();
            let sum = n.with(BinaryOp::Add, x, 3.0);
            let mut y = n.unary(UnaryOp::Clip { min: 0.0, max }, sum);
            if at_the_sum {
                y = n.with(BinaryOp::Div, y, 6.0);
            }
            y = n.pair(BinaryOp::Mul, x, y);
            if !at_the_sum {
                y = n.with(BinaryOp::Mul, y, 1.0 / 6.0);
            }
            assert_eq!(n.found(y, x), (max == 6.0).then_some(UnaryOp::HardSwish));
        }
    }

    #[test]
    fn another_tensor_is_not_taken_for_x() {
        let (mut n, x) = net();
        let z = n.unary(UnaryOp::Relu, x);
        let gate = n.unary(UnaryOp::Sigmoid, z);
        let other = n.pair(BinaryOp::Mul, x, gate);
        let inner = n.with(BinaryOp::Div, z, core::f32::consts::SQRT_2);
        let inner = n.unary(UnaryOp::Erf, inner);
        let sum = n.with(BinaryOp::Add, inner, 1.0);
        let y = n.pair(BinaryOp::Mul, x, sum);
        let y = n.with(BinaryOp::Mul, y, 0.5);
        let y = n.pair(BinaryOp::Add, y, other);
        use_activations(&mut n.0, &[y]).unwrap();
        assert!(matches!(n.0.record(other).op(), Op::Binary(_)));
        let [y, _] = n.0.record(y).src()[..] else { panic!("a sum") };
        assert_eq!(n.found(y, x), None);
    }
}
