//! Sums, differences and products of two tensors of bytes, of which one may repeat.

use super::*;

/// A difference or sum and products with what repeats, of scales whose products numbers hold exactly.
fn pairs(cx: &mut Context, to: DType, x: TensorId) -> TensorId {
    let b = &mut Builder { cx, to, seed: 11 };
    let gate = |b: &mut Builder<'_>, dims: &[usize], scale: Scale| {
        let bytes: Vec<u8> = (0..dims.iter().product()).map(|_| (b.random() % 256) as u8).collect();
        let bytes = b.constant(Tensor::from_bytes(b.to, dims, &bytes).unwrap());
        b.real(bytes, scale)
    };
    let apply = |b: &mut Builder<'_>, op: BinaryOp, operands: [TensorId; 2], scale: Scale| {
        let y = b.cx.op(Binary::new(op), &operands).unwrap();
        let y = b.integer(y, scale);
        b.real(y, scale)
    };
    let (first, half) = (b.scale(0.25, 100), b.scale(0.5, 128));
    let x = b.real(x, first);
    // One for each channel and picture, of which the smaller one comes first.
    let pool = Pool::global(PoolKind::Max, [11, 9]);
    let most = b.cx.op(pool, &[x]).unwrap();
    let most = b.integer(most, first);
    let most = b.real(most, first);
    let y = apply(b, BinaryOp::Mul, [most, x], b.scale(16.0, 120));
    // One for each pixel, for each column, for all: which is a table.
    let pixels = gate(b, &[1, 1, 11, 9], half);
    let z = apply(b, BinaryOp::Mul, [y, pixels], b.scale(512.0, 128));
    let columns = gate(b, &[9], b.scale(128.0, 30));
    let z = apply(b, BinaryOp::Sub, [columns, z], b.scale(256.0, 140));
    let one = gate(b, &[1], b.scale(1.0, 3));
    let z = apply(b, BinaryOp::Mul, [z, one], b.scale(512.0, 90));
    let other = b.integer(y, b.scale(32.0, 0));
    let other = b.real(other, b.scale(32.0, 0));
    let y = b.cx.op(Binary::new(BinaryOp::Sub), &[other, z]).unwrap();
    let y = b.cx.op(Unary::new(UnaryOp::Relu), &[y]).unwrap();
    b.integer(y, b.scale(512.0, 100))
}

#[test]
fn what_repeats_is_not_spread() {
    exact(pairs, &[("qmul", 2), ("qadd", 2), ("quantize", 0), ("dequantize", 0), ("reference", 0)]);
}

/// Channels times what a squeeze-and-excitation block makes of their means.
fn excited(cx: &mut Context, to: DType, image: TensorId) -> TensorId {
    let b = &mut Builder { cx, to, seed: 5 };
    let (first, second) = (b.scale(0.02, 100), b.scale(0.03, 0));
    let y = b.conv((image, first), &[24, 5, 3, 3], Conv::default(), second);
    let real = b.real(y, second);
    let mean = Pool::global(PoolKind::Average { include_pad: false }, [9, 7]);
    let mean = b.cx.op(mean, &[real]).unwrap();
    let third = b.scale(0.015, 0);
    let mean = b.integer(mean, third);
    let fourth = b.scale(0.01, 0);
    let few = b.conv((mean, third), &[6, 24, 1, 1], Conv::default(), fourth);
    let few = b.real(few, fourth);
    let (weights, _) = b.weights(&[24, 6, 1, 1], 0);
    let gate = b.cx.op(Conv::default(), &[few, weights]).unwrap();
    let fifth = b.scale(0.04, 128);
    let gate = b.integer(gate, fifth);
    let gate = b.real(gate, fifth);
    let gate = b.cx.op(Unary::new(UnaryOp::Sigmoid), &[gate]).unwrap();
    let sixth = b.scale(1.0 / 256.0, 0);
    let gate = b.integer(gate, sixth);
    let gate = b.real(gate, sixth);
    let y = b.cx.op(Binary::new(BinaryOp::Mul), &[real, gate]).unwrap();
    b.integer(y, b.scale(0.02, 0))
}

#[test]
fn squeeze_and_excitation_stays_bytes() {
    for to in [DType::I8, DType::U8] {
        let (in_numbers, expected) = defined(to, excited);
        let furthest = in_numbers.iter().zip(&expected).map(|(a, b)| (a - b).abs()).max().unwrap();
        assert!(furthest <= 2, "{furthest}");
        assert!(expected.iter().max().unwrap() - expected.iter().min().unwrap() > 100);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (kernels, found) = computed(isa, to, excited);
            let slow = ["reference", "quantize", "dequantize", "mul_", "conv_", "avg_"];
            let is_slow = |k: &String| slow.iter().any(|name| k.starts_with(name));
            assert!(!kernels.iter().any(is_slow), "{isa}: {kernels:?}");
            let products = kernels.iter().filter(|k| k.starts_with("qmul")).count();
            assert_eq!(products, 1, "{isa}: {kernels:?}");
            assert_eq!(found, expected, "{to} on {isa}");
        }
    }
}
