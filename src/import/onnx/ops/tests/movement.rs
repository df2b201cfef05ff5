use super::*;

#[test]
fn reshape_keeps_infers_and_checks() {
    let x = count(&[2, 3, 4]);
    let to = |shape: &[i64]| run("Reshape", 13, &[], &[x.clone(), i64s(shape)]).map(|t| t.dims());
    assert_eq!(to(&[4, -1]).unwrap(), [4, 6]);
    assert_eq!(to(&[0, -1]).unwrap(), [2, 12]);
    assert_eq!(to(&[-1]).unwrap(), [24]);
    assert_eq!(to(&[2, 3, 4, 1]).unwrap(), [2, 3, 4, 1]);
    for bad in [&[5, -1][..], &[-1, -1], &[-2, 12], &[2, 3, 4, 0], &[1 << 62, 4], &[23], &[]] {
        assert!(to(bad).is_err(), "{bad:?}");
    }
    let none = f32s(&[0, 3], &[]);
    let keep = |allow, shape: &[i64]| {
        let allow = [("allowzero", A::I(allow))];
        run("Reshape", 14, &allow, &[none.clone(), i64s(shape)]).map(|t| t.dims())
    };
    assert_eq!(keep(1, &[3, 0]).unwrap(), [3, 0]);
    assert_eq!(keep(0, &[0, 3]).unwrap(), [0, 3]);
    assert_eq!(keep(0, &[-1, 3]).unwrap(), [0, 3]);
    assert!(keep(1, &[0, -1]).is_err());
    assert!(run("Reshape", 13, &[("allowzero", A::I(1))], &[none, i64s(&[0, 3])]).is_err());
}

#[test]
fn flatten_and_transpose() {
    let x = count(&[2, 3, 4]);
    let flat = |opset, axis| run("Flatten", opset, &[("axis", A::I(axis))], &[x.clone()]);
    assert_eq!(flat(7, 1).unwrap().dims(), [2, 12]);
    assert_eq!(flat(7, 0).unwrap().dims(), [1, 24]);
    assert_eq!(flat(13, 3).unwrap().dims(), [24, 1]);
    assert_eq!(flat(13, -1).unwrap().dims(), [6, 4]);
    assert!(flat(13, 4).is_err() && flat(13, i64::MIN).is_err());
    let x = count(&[2, 3]);
    close(
        &run("Transpose", 13, &[], &[x.clone()]).unwrap(),
        &[3, 2],
        &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0],
    );
    let perm = |p: &[i64]| run("Transpose", 13, &[("perm", A::Is(p))], &[x.clone()]);
    close(&perm(&[0, 1]).unwrap(), &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert!(perm(&[0, 0]).is_err() && perm(&[0]).is_err() && perm(&[0, 2]).is_err());
}

#[test]
fn squeeze_and_unsqueeze_in_both_forms() {
    let x = count(&[1, 3, 1]);
    let dims = |r: Result<Tensor, ImportError>| r.unwrap().dims();
    assert_eq!(dims(run("Squeeze", 7, &[], &[x.clone()])), [3]);
    assert_eq!(dims(run("Squeeze", 11, &[("axes", A::Is(&[-1]))], &[x.clone()])), [1, 3]);
    assert_eq!(dims(run("Squeeze", 13, &[], &[x.clone(), i64s(&[0])])), [3, 1]);
    assert!(run("Squeeze", 13, &[], &[x.clone(), i64s(&[1])]).is_err());
    assert_eq!(
        dims(run("Unsqueeze", 7, &[("axes", A::Is(&[0, 4]))], &[x.clone()])),
        [1, 1, 3, 1, 1]
    );
    assert_eq!(dims(run("Unsqueeze", 13, &[], &[x.clone(), i64s(&[-1, 1])])), [1, 1, 3, 1, 1]);
    assert!(run("Unsqueeze", 13, &[], &[x.clone(), i64s(&[1, 1])]).is_err());
    assert!(run("Unsqueeze", 13, &[], &[x.clone(), i64s(&[9])]).is_err());
    let many: Vec<i64> = (0..1000).collect();
    assert!(run("Unsqueeze", 13, &[], &[x, i64s(&many)]).is_err());
}

#[test]
fn slices_in_both_forms() {
    let x = count(&[3, 4]);
    let old = [("starts", A::Is(&[1, -3])), ("ends", A::Is(&[3, i64::MAX]))];
    let y = run("Slice", 9, &old, &[x.clone()]).unwrap();
    close(&y, &[2, 3], &[5.0, 6.0, 7.0, 9.0, 10.0, 11.0]);
    let new = |s: &[i64], e: &[i64], a: &[i64], st: &[i64]| {
        run("Slice", 13, &[], &[x.clone(), i64s(s), i64s(e), i64s(a), i64s(st)])
    };
    close(&new(&[0], &[4], &[1], &[2]).unwrap(), &[3, 2], &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    let y = new(&[-1, -1], &[i64::MIN, 0], &[-1, 0], &[-2, -1]).unwrap();
    close(&y, &[2, 2], &[11.0, 9.0, 7.0, 5.0]);
    assert_eq!(new(&[3], &[1], &[0], &[1]).unwrap().dims(), [0, 4]);
    assert_eq!(new(&[7], &[9], &[1], &[1]).unwrap().dims(), [3, 0]);
    assert!(new(&[0], &[1], &[0], &[0]).is_err());
    assert!(new(&[0, 0], &[1, 1], &[0, 0], &[1, 1]).is_err());
    assert!(new(&[0], &[1], &[2], &[1]).is_err());
    assert!(new(&[0, 0], &[1], &[0], &[1]).is_err());
    let narrow = Tensor::from_slice(&[1], &[1i32]).unwrap();
    let y = run("Slice", 10, &[], &[x.clone(), narrow.clone(), i64s(&[2]), narrow]).unwrap();
    close(&y, &[3, 1], &[1.0, 5.0, 9.0]);
    assert!(run("Slice", 10, &[], &[x, f32s(&[1], &[0.0]), i64s(&[1])]).is_err());
}

#[test]
fn splits_in_three_forms() {
    let x = Some(count(&[2, 5]));
    let sizes = |r: Result<Vec<Tensor>, ImportError>| {
        r.unwrap().iter().map(|t| t.dims()[1]).collect::<Vec<_>>()
    };
    let axis = ("axis", A::I(1));
    let old = [("axis", A::I(1)), ("split", A::Is(&[1, 4]))];
    let y = run_all("Split", 11, &old, &[x.clone()], 2).unwrap();
    close(&y[0], &[2, 1], &[0.0, 5.0]);
    close(&y[1], &[2, 4], &[1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]);
    let listed = [x.clone(), Some(i64s(&[2, 0, 3]))];
    assert_eq!(sizes(run_all("Split", 13, &[axis], &listed, 3)), [2, 0, 3]);
    let counted = [("axis", A::I(-1)), ("num_outputs", A::I(3))];
    assert_eq!(sizes(run_all("Split", 18, &counted, &[x.clone()], 3)), [2, 2, 1]);
    let y = run_all("Split", 13, &[("axis", A::I(0))], &[x.clone()], 2).unwrap();
    close(&y[1], &[1, 5], &[5.0, 6.0, 7.0, 8.0, 9.0]);
    assert!(run_all("Split", 13, &[("axis", A::I(1))], &[x.clone()], 2).is_err());
    assert!(run_all("Split", 18, &counted, &[x.clone()], 2).is_err());
    assert!(run_all("Split", 13, &[("axis", A::I(1))], &listed, 2).is_err());
    let wrong = [x, Some(i64s(&[6, -1]))];
    assert!(run_all("Split", 13, &[("axis", A::I(1))], &wrong, 2).is_err());
}

#[test]
fn concatenation() {
    let (a, b) = (f32s(&[2, 1], &[1.0, 2.0]), f32s(&[2, 2], &[3.0, 4.0, 5.0, 6.0]));
    let with = |axis| run("Concat", 13, &[("axis", A::I(axis))], &[a.clone(), b.clone()]);
    close(&with(1).unwrap(), &[2, 3], &[1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
    close(&with(-1).unwrap(), &[2, 3], &[1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
    assert!(with(0).is_err() && with(2).is_err());
    let one = run("Concat", 7, &[("axis", A::I(0))], &[a.clone()]).unwrap();
    close(&one, &[2, 1], &[1.0, 2.0]);
    let e = run("Concat", 13, &[], &[a, b]).unwrap_err().to_string();
    assert!(e.contains("axis"), "{e}");
}

#[test]
fn pads_in_all_modes() {
    let x = f32s(&[1, 3], &[1.0, 2.0, 3.0]);
    let old = [("pads", A::Is(&[0, 1, 1, 2])), ("value", A::F(9.0))];
    let y = run("Pad", 7, &old, &[x.clone()]).unwrap();
    close(&y, &[2, 6], &[9.0, 1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]);
    let with = |mode: &'static str, pads: &[i64]| {
        run("Pad", 19, &[("mode", A::S(mode))], &[x.clone(), i64s(pads)])
    };
    close(&with("edge", &[0, 1, 0, 2]).unwrap(), &[1, 6], &[1.0, 1.0, 2.0, 3.0, 3.0, 3.0]);
    close(&with("reflect", &[0, 2, 0, 1]).unwrap(), &[1, 6], &[3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
    close(&with("wrap", &[0, 1, 0, 2]).unwrap(), &[1, 6], &[3.0, 1.0, 2.0, 3.0, 1.0, 2.0]);
    close(&with("constant", &[0, -1, 0, 1]).unwrap(), &[1, 3], &[2.0, 3.0, 0.0]);
    assert!(with("constant", &[0, -2, 0, -2]).is_err());
    assert!(with("constant", &[0, 1]).is_err());
    assert!(with("constant", &[0, i64::MAX, 0, 0]).is_err());
    assert!(with("constant", &[0, 1 << 40, 0, 0]).is_err());
    assert!(with("edge", &[0, i64::MIN, 0, 0]).is_err());
    let on_axis = [x.clone(), i64s(&[1, 0]), f32s(&[], &[7.0]), i64s(&[-1])];
    close(&run("Pad", 18, &[], &on_axis).unwrap(), &[1, 4], &[7.0, 1.0, 2.0, 3.0]);
    let on_axis = [x, i64s(&[1, 0]), f32s(&[1], &[7.0]), i64s(&[1])];
    assert!(run("Pad", 13, &[], &on_axis).is_err());
}

#[test]
fn gathers() {
    let x = count(&[2, 3]);
    let with =
        |axis, indices: Tensor| run("Gather", 13, &[("axis", A::I(axis))], &[x.clone(), indices]);
    close(&with(1, i64s(&[2, 0])).unwrap(), &[2, 2], &[2.0, 0.0, 5.0, 3.0]);
    close(&with(0, i64s(&[-1])).unwrap(), &[1, 3], &[3.0, 4.0, 5.0]);
    let scalar = Tensor::from_slice(&[], &[1i64]).unwrap();
    close(&with(-1, scalar).unwrap(), &[2], &[1.0, 4.0]);
    assert!(with(0, i64s(&[2])).is_err() && with(2, i64s(&[0])).is_err());
    assert_eq!(with(0, i64s(&[])).unwrap().dims(), [0, 3]);
}

#[test]
fn expansion_and_tiles() {
    let x = f32s(&[2, 1], &[1.0, 2.0]);
    let y = run("Expand", 8, &[], &[x.clone(), i64s(&[2, 1, 3])]).unwrap();
    close(&y, &[2, 2, 3], &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    close(&run("Expand", 13, &[], &[x.clone(), i64s(&[1])]).unwrap(), &[2, 1], &[1.0, 2.0]);
    assert!(run("Expand", 13, &[], &[x.clone(), i64s(&[3, 1])]).is_err());
    let huge = run("Expand", 13, &[], &[x.clone(), i64s(&[1 << 40, 1, 1])]).unwrap_err();
    assert!(matches!(node_error(huge), NodeError::Unsupported(_)));
    let y = run("Tile", 13, &[], &[x.clone(), i64s(&[2, 2])]).unwrap();
    close(&y, &[4, 2], &[1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
    assert_eq!(run("Tile", 7, &[], &[x.clone(), i64s(&[0, 1])]).unwrap().dims(), [0, 1]);
    assert!(run("Tile", 13, &[], &[x.clone(), i64s(&[1 << 62, 1])]).is_err());
    assert!(run("Tile", 13, &[], &[x, i64s(&[1])]).is_err());
}

#[test]
fn shapes_are_constants() {
    let x = count(&[2, 3, 4]);
    let with =
        |opset, attrs: &[(&str, A<'_>)]| ints(&run("Shape", opset, attrs, &[x.clone()]).unwrap());
    assert_eq!(with(7, &[]), [2, 3, 4]);
    assert_eq!(with(15, &[("start", A::I(1))]), [3, 4]);
    assert_eq!(with(15, &[("start", A::I(-5)), ("end", A::I(-1))]), [2, 3]);
    assert_eq!(with(15, &[("start", A::I(2)), ("end", A::I(1))]), [0i64; 0]);
    let size = run("Size", 13, &[], &[x]).unwrap();
    assert_eq!((size.dims(), ints(&size)), (vec![], vec![24]));
}

#[test]
fn constants_and_ranges() {
    let of = |v: &[i64]| run("ConstantOfShape", 9, &[], &[i64s(v)]);
    close(&of(&[2, 1]).unwrap(), &[2, 1], &[0.0, 0.0]);
    close(&of(&[]).unwrap(), &[], &[0.0]);
    assert_eq!(of(&[0, 2]).unwrap().dims(), [0, 2]);
    assert!(of(&[-1]).is_err() && of(&[1 << 62]).is_err() && of(&[1 << 40]).is_err());
    let value = super::super::super::testing::tensor("v", &i64s(&[7]));
    let y = run("ConstantOfShape", 9, &[("value", A::T(value))], &[i64s(&[2])]).unwrap();
    assert_eq!(ints(&y), [7, 7]);
    let number = |v: i64| Tensor::from_slice(&[], &[v]).unwrap();
    let range = |a, b, d| run("Range", 11, &[], &[number(a), number(b), number(d)]);
    assert_eq!(ints(&range(1, 10, 4).unwrap()), [1, 5, 9]);
    assert_eq!(ints(&range(10, 4, -2).unwrap()), [10, 8, 6]);
    assert_eq!(ints(&range(4, 4, 1).unwrap()), [0i64; 0]);
    assert_eq!(ints(&range(4, 1, 1).unwrap()), [0i64; 0]);
    assert!(range(0, 1, 0).is_err() && range(i64::MIN, i64::MAX, 1).is_err());
    let floats = [f32s(&[], &[0.0]), f32s(&[], &[1.0]), f32s(&[], &[0.3])];
    close(&run("Range", 11, &[], &floats).unwrap(), &[4], &[0.0, 0.3, 0.6, 0.9]);
    // In double precision, which holds what single rounds away.
    let doubles =
        [16_777_216.0, 16_777_219.0, 1.0].map(|v: f64| Tensor::from_slice(&[], &[v]).unwrap());
    let y = run("Range", 11, &[], &doubles).unwrap();
    assert_eq!(y.as_slice::<f64>().unwrap()[..], [16_777_216.0, 16_777_217.0, 16_777_218.0]);
    let never = [f32s(&[], &[0.0]), f32s(&[], &[1.0]), f32s(&[], &[0.0])];
    assert!(run("Range", 11, &[], &never).is_err());
}

#[test]
fn constant_nodes_of_every_form() {
    let with = |opset, name: &str, value| run("Constant", opset, &[(name, value)], &[]);
    close(&with(12, "value_float", A::F(1.5)).unwrap(), &[], &[1.5]);
    close(&with(12, "value_floats", A::Fs(&[1.0, 2.0])).unwrap(), &[2], &[1.0, 2.0]);
    assert_eq!(ints(&with(13, "value_int", A::I(-3)).unwrap()), [-3]);
    assert_eq!(ints(&with(13, "value_ints", A::Is(&[1, 2])).unwrap()), [1, 2]);
    let value = super::super::super::testing::tensor("v", &i64s(&[7]));
    assert_eq!(ints(&with(7, "value", A::T(value)).unwrap()), [7]);
    assert!(matches!(with(9, "value_int", A::I(1)), Err(ImportError::Unsupported(_))));
    assert!(matches!(with(9, "value_string", A::S("x")), Err(ImportError::Unsupported(_))));
    // Texts are numbers inside.
    assert_eq!(ints(&with(13, "value_strings", A::Ss(&["x", "y", "x"])).unwrap()), [0, 1, 0]);
    assert!(matches!(run("Constant", 13, &[], &[]), Err(ImportError::Structure(_))));
}

#[test]
fn identity_and_dropout() {
    let x = Some(count(&[2]));
    close(&run_all("Identity", 7, &[], &[x.clone()], 1).unwrap()[0], &[2], &[0.0, 1.0]);
    let y = run_all("Dropout", 7, &[("ratio", A::F(0.5))], &[x.clone()], 2).unwrap();
    close(&y[0], &[2], &[0.0, 1.0]);
    assert_eq!(y[1].bytes(), [1, 1]);
    let ratio = Some(f32s(&[], &[0.5]));
    let off = [x.clone(), ratio.clone(), Some(flag(false))];
    assert_eq!(run_all("Dropout", 13, &[], &off, 1).unwrap().len(), 1);
    let on = [x, ratio, Some(flag(true))];
    assert!(run_all("Dropout", 13, &[], &on, 1).is_err());
}
