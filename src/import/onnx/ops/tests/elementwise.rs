use super::*;

#[test]
fn arithmetic_broadcasts() {
    let (a, b) = (f32s(&[2, 1], &[1.0, 2.0]), f32s(&[3], &[10.0, 20.0, 40.0]));
    let with = |op| run(op, 13, &[], &[a.clone(), b.clone()]).unwrap();
    close(&with("Add"), &[2, 3], &[11.0, 21.0, 41.0, 12.0, 22.0, 42.0]);
    close(&with("Sub"), &[2, 3], &[-9.0, -19.0, -39.0, -8.0, -18.0, -38.0]);
    close(&with("Mul"), &[2, 3], &[10.0, 20.0, 40.0, 20.0, 40.0, 80.0]);
    close(&with("Div"), &[2, 3], &[0.1, 0.05, 0.025, 0.2, 0.1, 0.05]);
    let scalar = run("Add", 7, &[], &[a.clone(), f32s(&[], &[1.0])]).unwrap();
    close(&scalar, &[2, 1], &[2.0, 3.0]);
    let none = run("Mul", 7, &[], &[f32s(&[0, 3], &[]), b]).unwrap();
    assert_eq!(none.dims(), [0, 3]);
    assert!(run("Add", 7, &[], &[a, f32s(&[2, 2, 2], &[0.0; 8])]).is_ok());
    assert!(run("Add", 7, &[], &[f32s(&[2], &[0.0; 2]), f32s(&[3], &[0.0; 3])]).is_err());
}

#[test]
fn variadic_arithmetic() {
    let x = [f32s(&[2], &[1.0, 5.0]), f32s(&[2], &[4.0, 2.0]), f32s(&[1], &[3.0])];
    close(&run("Max", 13, &[], &x).unwrap(), &[2], &[4.0, 5.0]);
    close(&run("Min", 8, &[], &x).unwrap(), &[2], &[1.0, 2.0]);
    close(&run("Sum", 13, &[], &x).unwrap(), &[2], &[8.0, 10.0]);
    close(&run("Mean", 13, &[], &x).unwrap(), &[2], &[8.0 / 3.0, 10.0 / 3.0]);
    close(&run("Sum", 13, &[], &x[..1]).unwrap(), &[2], &[1.0, 5.0]);
}

#[test]
fn power_takes_any_exponent_type() {
    let x = f32s(&[3], &[1.0, 2.0, 3.0]);
    close(&run("Pow", 13, &[], &[x.clone(), i64s(&[2])]).unwrap(), &[3], &[1.0, 4.0, 9.0]);
    let e = f32s(&[3], &[0.5, 3.0, -1.0]);
    close(&run("Pow", 7, &[], &[x.clone(), e]).unwrap(), &[3], &[1.0, 8.0, 1.0 / 3.0]);
    let square = f32s(&[1, 1], &[2.0]);
    close(&run("Pow", 13, &[], &[x, square]).unwrap(), &[1, 3], &[1.0, 4.0, 9.0]);
}

#[test]
fn functions_of_one_tensor() {
    let x = f32s(&[3], &[-1.0, 0.0, 2.0]);
    let with = |op, opset, attrs: &[(&str, A<'_>)]| run(op, opset, attrs, &[x.clone()]).unwrap();
    close(&with("Relu", 7, &[]), &[3], &[0.0, 0.0, 2.0]);
    close(&with("LeakyRelu", 7, &[]), &[3], &[-0.01, 0.0, 2.0]);
    close(&with("LeakyRelu", 16, &[("alpha", A::F(0.5))]), &[3], &[-0.5, 0.0, 2.0]);
    close(&with("Sigmoid", 13, &[]), &[3], &[0.268_941_43, 0.5, 0.880_797_1]);
    close(&with("HardSigmoid", 7, &[]), &[3], &[0.3, 0.5, 0.9]);
    let steep = [("alpha", A::F(1.0)), ("beta", A::F(0.0))];
    close(&with("HardSigmoid", 22, &steep), &[3], &[0.0, 0.0, 1.0]);
    close(&with("HardSwish", 14, &[]), &[3], &[-1.0 / 3.0, 0.0, 5.0 / 3.0]);
    close(&with("Tanh", 13, &[]), &[3], &[-0.761_594_2, 0.0, 0.964_027_6]);
    close(&with("Exp", 7, &[]), &[3], &[0.367_879_45, 1.0, 7.389_056]);
    close(&with("Neg", 13, &[]), &[3], &[1.0, 0.0, -2.0]);
    close(&with("Abs", 13, &[]), &[3], &[1.0, 0.0, 2.0]);
    close(&with("Sign", 9, &[]), &[3], &[-1.0, 0.0, 1.0]);
    close(&with("Erf", 9, &[]), &[3], &[-0.842_700_8, 0.0, 0.995_322_3]);
    close(&with("Gelu", 20, &[]), &[3], &[-0.158_655_26, 0.0, 1.954_499_7]);
    let tanh = [("approximate", A::S("tanh"))];
    close(&with("Gelu", 20, &tanh), &[3], &[-0.158_808, 0.0, 1.954_597_7]);
    close(&with("Elu", 7, &[]), &[3], &[-0.632_120_56, 0.0, 2.0]);
    close(&with("Softplus", 7, &[]), &[3], &[0.313_261_7, core::f32::consts::LN_2, 2.126_928]);
    close(&with("Softsign", 7, &[]), &[3], &[-0.5, 0.0, 2.0 / 3.0]);
    close(&with("Swish", 24, &[]), &[3], &[-0.268_941_43, 0.0, 1.761_594_2]);
    close(&with("Swish", 24, &[("alpha", A::F(2.0))]), &[3], &[-0.119_202_92, 0.0, 1.964_027_5]);
    close(&with("ThresholdedRelu", 10, &[]), &[3], &[0.0, 0.0, 2.0]);
    close(&with("Selu", 7, &[]), &[3], &[-1.111_330_7, 0.0, 2.101_402]);
    let x = f32s(&[4], &[0.25, 1.0, 4.0, 2.5]);
    let with = |op, opset| run(op, opset, &[], &[x.clone()]).unwrap();
    close(&with("Sqrt", 13), &[4], &[0.5, 1.0, 2.0, 1.581_138_8]);
    close(&with("Log", 13), &[4], &[-1.386_294_4, 0.0, 1.386_294_4, 0.916_290_7]);
    close(&with("Reciprocal", 13), &[4], &[4.0, 1.0, 0.25, 0.4]);
    close(&with("Floor", 13), &[4], &[0.0, 1.0, 4.0, 2.0]);
    close(&with("Ceil", 13), &[4], &[1.0, 1.0, 4.0, 3.0]);
    close(&with("Round", 11), &[4], &[0.0, 1.0, 4.0, 2.0]);
}

#[test]
fn clip_in_both_forms() {
    let x = f32s(&[3], &[-2.0, 0.5, 9.0]);
    let bounds = [("min", A::F(-1.0)), ("max", A::F(1.0))];
    close(&run("Clip", 7, &bounds, &[x.clone()]).unwrap(), &[3], &[-1.0, 0.5, 1.0]);
    close(&run("Clip", 6 + 1, &[], &[x.clone()]).unwrap(), &[3], &[-2.0, 0.5, 9.0]);
    let one = |v| f32s(&[], &[v]);
    let both = [x.clone(), one(-1.0), one(1.0)];
    close(&run("Clip", 13, &[], &both).unwrap(), &[3], &[-1.0, 0.5, 1.0]);
    let above = [Some(x.clone()), None, Some(one(1.0))];
    let y = run_all("Clip", 11, &[], &above, 1).unwrap();
    close(&y[0], &[3], &[-2.0, 0.5, 1.0]);
    // The upper bound wins.
    close(&run("Clip", 13, &[], &[x.clone(), one(2.0), one(1.0)]).unwrap(), &[3], &[1.0; 3]);
    let integers =
        run("Clip", 13, &[], &[i64s(&[-5, 5]), Tensor::from_slice(&[], &[0i64]).unwrap()]);
    assert_eq!(ints(&integers.unwrap()), [0, 5]);
    // Attributes are gone from opset 11 on, and inputs did not exist before.
    assert!(matches!(run("Clip", 11, &bounds, &[x.clone()]), Err(ImportError::Unsupported(_))));
    assert!(matches!(run("Clip", 10, &[], &both), Err(ImportError::Structure(_))));
}

#[test]
fn prelu_broadcasts_its_slope_only() {
    let x = f32s(&[1, 2, 2], &[-1.0, 1.0, -2.0, -4.0]);
    let slope = f32s(&[2, 1], &[0.5, 0.25]);
    let y = run("PRelu", 9, &[], &[x.clone(), slope]).unwrap();
    close(&y, &[1, 2, 2], &[-0.5, 1.0, -0.5, -1.0]);
    let y = run("PRelu", 16, &[], &[x.clone(), f32s(&[1], &[0.1])]).unwrap();
    close(&y, &[1, 2, 2], &[-0.1, 1.0, -0.2, -0.4]);
    let e = run("PRelu", 16, &[], &[x, f32s(&[2, 1, 1], &[0.1, 0.2])]).unwrap_err();
    assert!(matches!(node_error(e), NodeError::Invalid(_)));
}

#[test]
fn comparison_and_choice() {
    let (a, b) = (i64s(&[1, 2, 3]), i64s(&[2]));
    let with = |op| run(op, 13, &[], &[a.clone(), b.clone()]).unwrap().bytes().to_vec();
    assert_eq!(with("Equal"), [0, 1, 0]);
    assert_eq!(with("Less"), [1, 0, 0]);
    assert_eq!(with("Greater"), [0, 0, 1]);
    assert_eq!(with("LessOrEqual"), [1, 1, 0]);
    assert_eq!(with("GreaterOrEqual"), [0, 1, 1]);
    let c = Tensor::from_bytes(DType::Bool, &[3], &[1, 0, 1]).unwrap();
    assert_eq!(run("Not", 7, &[], &[c.clone()]).unwrap().bytes(), [0, 1, 0]);
    assert_eq!(ints(&run("Where", 9, &[], &[c, a, b]).unwrap()), [1, 2, 3]);
}

#[test]
fn casts() {
    let x = f32s(&[2], &[1.7, -1.7]);
    let y = run("Cast", 13, &[("to", A::I(7))], &[x.clone()]).unwrap();
    assert_eq!(ints(&y), [1, -1]);
    let y = run("CastLike", 15, &[], &[x.clone(), flag(true)]).unwrap();
    assert_eq!((y.dtype(), y.bytes()), (DType::Bool, &[1u8, 1][..]));
    // Strings and 8-bit floats are listed at load.
    for to in [8, 17, 0, 1000, i64::MAX] {
        let e = run("Cast", 13, &[("to", A::I(to))], &[x.clone()]);
        assert!(matches!(e, Err(ImportError::Unsupported(_))), "{to}");
    }
}

#[test]
fn dequantization_of_constants() {
    let x = Tensor::from_slice(&[2, 2], &[0u8, 1, 2, 255]).unwrap();
    let zero = |v: &[u8]| Tensor::from_slice(&[v.len()], v).unwrap();
    let all = [x.clone(), f32s(&[], &[2.0]), Tensor::from_slice(&[], &[1u8]).unwrap()];
    let y = run("DequantizeLinear", 10, &[], &all).unwrap();
    close(&y, &[2, 2], &[-2.0, 0.0, 2.0, 508.0]);
    let rows = [x.clone(), f32s(&[2], &[1.0, 10.0]), zero(&[0, 1])];
    let y = run("DequantizeLinear", 13, &[], &rows).unwrap();
    close(&y, &[2, 2], &[0.0, 0.0, 2.0, 2540.0]);
    let y = run("DequantizeLinear", 13, &[("axis", A::I(-2))], &rows).unwrap();
    close(&y, &[2, 2], &[0.0, 1.0, 10.0, 2540.0]);
    let blocks = [x.clone(), f32s(&[2, 1], &[1.0, 10.0])];
    let y = run("DequantizeLinear", 21, &[("block_size", A::I(2))], &blocks).unwrap();
    close(&y, &[2, 2], &[0.0, 1.0, 20.0, 2550.0]);
    let bias = Tensor::from_slice(&[2], &[-3i32, 70_000]).unwrap();
    let y = run("DequantizeLinear", 13, &[("axis", A::I(0))], &[bias, f32s(&[], &[0.5])]).unwrap();
    close(&y, &[2], &[-1.5, 35_000.0]);
    let out = [("output_dtype", A::I(10))];
    let y = run("DequantizeLinear", 23, &out, &[x.clone(), f32s(&[], &[0.5])]).unwrap();
    // Half precision inside the network is computed in single precision.
    close(&y, &[2, 2], &[0.0, 0.5, 1.0, 127.5]);
    assert!(run("DequantizeLinear", 13, &[], &[x, f32s(&[3], &[1.0; 3])]).is_err());
}

#[test]
fn powers_of_integers_and_signs_of_unsigned_ones() {
    let of = |v: &[i32]| Tensor::from_slice(&[v.len()], v).unwrap();
    let y = run("Pow", 15, &[], &[of(&[4, 2, -2]), f32s(&[3], &[0.5, -1.0, 3.0])]).unwrap();
    assert_eq!(y.as_slice::<i32>().unwrap()[..], [2, 0, -8]);
    let x = Tensor::from_slice(&[2], &[0u64, u64::MAX]).unwrap();
    assert_eq!(run("Sign", 13, &[], &[x.clone()]).unwrap().as_slice::<u64>().unwrap()[..], [0, 1]);
    let y = run("Abs", 13, &[], &[x.clone()]).unwrap();
    assert_eq!(y.as_slice::<u64>().unwrap()[..], [0, u64::MAX]);
    assert!(run("Neg", 13, &[], &[x]).is_err());
}
