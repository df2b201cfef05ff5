//! Networks at the ends of what integers hold, and tensors of types that have no blocks.

use super::*;

/// A convolution of 5 channels to 4 with such integers as weights and the bias that `bias` makes; quantised by `y`.
fn narrow(
    b: &mut Builder<'_>,
    image: TensorId,
    [x, w]: [f32; 2],
    weight: impl Fn(usize, usize) -> i8,
    bias: impl Fn(&mut Builder<'_>) -> TensorId,
    y: Scale,
) -> TensorId {
    let x = b.scale(x, 0);
    let weights: Vec<i8> = (0..20).map(|i| weight(i / 5, i % 5)).collect();
    let weights = b.constant(Tensor::from_slice(&[4, 5, 1, 1], &weights).unwrap());
    let scale = b.constant(Tensor::from_slice(&[4], &[w; 4]).unwrap());
    let weights = b.cx.op(Dequantize { axis: Some(0), block: 0 }, &[weights, scale]).unwrap();
    let (real, bias) = (b.real(image, x), bias(b));
    let sum = b.cx.op(Conv { bias: true, ..Conv::default() }, &[real, weights, bias]).unwrap();
    b.integer(sum, y)
}

/// Checks that a network gives what its definition gives, up to a step, on every instruction set.
fn near(network: impl Fn(&mut Context, DType, TensorId) -> TensorId) {
    for to in [DType::I8, DType::U8] {
        let (in_numbers, _) = defined(to, &network);
        assert!(in_numbers.iter().max() > in_numbers.iter().min());
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (kernels, found) = computed(isa, to, &network);
            let furthest = found.iter().zip(&in_numbers).map(|(a, b)| (a - b).abs()).max();
            assert!(furthest <= Some(1), "{to} on {isa}: {furthest:?} {kernels:?}");
        }
    }
}

/// The step of the sums is 25 of the result's.
#[test]
fn a_bias_that_sums_are_too_coarse_for_stays_a_number() {
    near(|cx, to, image| {
        let b = &mut Builder { cx, to, seed: 3 };
        let y = b.scale(0.0004, 0);
        let bias = |b: &mut Builder<'_>| {
            b.constant(Tensor::from_slice(&[4], &[-0.5037f32, -1.0049, -1.5021, -0.2513]).unwrap())
        };
        narrow(b, image, [0.01, 1.0], |to, from| i8::from(to == from), bias, y)
    });
}

#[test]
fn a_bias_at_the_ends_of_32_bits_does_not_wrap_around() {
    near(|cx, to, image| {
        let b = &mut Builder { cx, to, seed: 3 };
        let y = b.scale(0.001, 128);
        let bias = |b: &mut Builder<'_>| {
            let values = [i32::MAX, i32::MIN, i32::MAX - 1000, 7];
            let values = b.constant(Tensor::from_slice(&[4], &values).unwrap());
            let scale = b.constant(Tensor::from_slice(&[4], &[0.02f32 * 1e-9; 4]).unwrap());
            b.cx.op(Dequantize { axis: Some(0), block: 0 }, &[values, scale]).unwrap()
        };
        narrow(b, image, [0.02, 1e-9], |_, from| if from < 3 { 50 } else { -70 }, bias, y)
    });
}

#[test]
fn factors_that_are_no_numbers_are_left_to_numbers() {
    near(|cx, to, image| {
        let b = &mut Builder { cx, to, seed: 3 };
        let y = b.scale(1e-39, 7);
        let bias =
            |b: &mut Builder<'_>| b.constant(Tensor::from_slice(&[4], &[0.0f32; 4]).unwrap());
        narrow(
            b,
            image,
            [1.0, 1.0],
            |to, from| if to == from { 1 - 2 * (to as i8 % 2) } else { 0 },
            bias,
            y,
        )
    });
}

/// A 1 x 1 convolution with a stride, large enough to be worth taking its pixels first.
#[test]
fn pixels_that_a_stride_leaves_are_taken_as_bytes() {
    let network = |cx: &mut Context, to: DType, image: TensorId| {
        let b = &mut Builder { cx, to, seed: 9 };
        let (first, second, third) = (b.scale(0.02, 100), b.scale(0.04, 0), b.scale(0.02, 3));
        let y = b.conv((image, first), &[96, 5, 1, 1], Conv::default(), second);
        let apart = Conv { stride: [2, 2], ..Conv::default() };
        b.conv((y, second), &[192, 96, 1, 1], apart, third)
    };
    for to in [DType::I8, DType::U8] {
        let (in_numbers, expected) = defined(to, network);
        let furthest = in_numbers.iter().zip(&expected).map(|(a, b)| (a - b).abs()).max();
        assert!(furthest <= Some(1), "{furthest:?}");
        assert!(expected.iter().max().unwrap() - expected.iter().min().unwrap() > 20);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (kernels, found) = computed(isa, to, network);
            let pools = kernels.iter().filter(|k| k.starts_with("qmax_pool")).count();
            assert_eq!(pools, 1, "{isa}: {kernels:?}");
            assert_eq!(found, expected, "{to} on {isa}");
        }
    }
}

/// Sixteen channels are a block, of numbers and of bytes, but not of 16 bits.
#[test]
fn sixteen_bits_have_no_blocks() {
    for to in [DType::I16, DType::U16] {
        let network = |cx: &mut Context, x: TensorId| {
            let mut b = Builder { cx, to, seed: 5 };
            let (w, _) = b.weights(&[32, 5, 3, 3], 0);
            let y = b.cx.op(Conv { pads: [1; 4], ..Conv::default() }, &[x, w]).unwrap();
            let scale = b.constant(Tensor::from_slice(&[], &[3e-4f32]).unwrap());
            let y = b.cx.op(Quantize { axis: None, block: 0, to }, &[y, scale]).unwrap();
            // Read twice: as it is, and as numbers that are convolved.
            let real = b.cx.op(Dequantize { axis: None, block: 0 }, &[y, scale]).unwrap();
            let flat = b.cx.reshape(y, &[2, 32 * 11 * 9]).unwrap();
            let flat = b.cx.op(Dequantize { axis: None, block: 0 }, &[flat, scale]).unwrap();
            let (w, _) = b.weights(&[16, 32, 1, 1], 0);
            [flat, b.cx.op(Conv::default(), &[real, w]).unwrap(), y]
        };
        let x: Vec<f32> = steps(&image(DType::I8)).iter().map(|&v| v as f32 * 0.0171).collect();
        let x = Tensor::from_slice(&IMAGE, &x).unwrap();
        let numbers = |t: &Tensor| -> Vec<f32> {
            match t.dtype() {
                DType::I16 => t.as_slice::<i16>().unwrap().iter().map(|&v| f32::from(v)).collect(),
                DType::U16 => t.as_slice::<u16>().unwrap().iter().map(|&v| f32::from(v)).collect(),
                _ => t.as_slice::<f32>().unwrap().to_vec(),
            }
        };
        let mut cx = Context::new();
        let id = cx.constant(x.clone()).unwrap();
        let expected = network(&mut cx, id).map(|y| numbers(cx.constant_value(y).unwrap()));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut cx = Context::new();
            cx.keep_quantized();
            let id = cx.input("x", DType::F32, &IMAGE).unwrap();
            let outputs = network(&mut cx, id);
            passes::optimize(&mut cx, &outputs, 2).unwrap();
            let mut executor = Executor::new(isa, 2).unwrap();
            let plan = executor.plan(&mut cx, &outputs).unwrap();
            let found = executor.run(&plan, &[&x], None).unwrap();
            // A step, or what it makes of a sum.
            for ((y, expected), most) in found.iter().zip(&expected).zip([3.1e-4, 1e-3, 1.0]) {
                let far = |(a, b): (f32, &f32)| (a - b).abs() > most;
                assert!(!numbers(y).into_iter().zip(expected).any(far), "{to} on {isa}");
            }
        }
    }
}
