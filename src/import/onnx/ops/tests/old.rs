//! Operators of the first operator sets.

use super::*;

fn floats(
    op: &str,
    opset: i64,
    attrs: &[(&str, A<'_>)],
    inputs: &[Tensor],
) -> (Vec<usize>, Vec<f32>) {
    parts(&run(op, opset, attrs, inputs).unwrap())
}

fn fails(op: &str, opset: i64, attrs: &[(&str, A<'_>)], inputs: &[Tensor]) -> String {
    let e: ImportError = run(op, opset, attrs, inputs).unwrap_err();
    format!("{e:?}")
}

#[test]
fn operands_begin_at_an_axis() {
    let (x, part) = (count(&[2, 3, 2]), f32s(&[3], &[10.0, 20.0, 30.0]));
    let on = ("broadcast", A::I(1));
    let inputs = [x.clone(), part.clone()];
    let want = [10.0, 11.0, 22.0, 23.0, 34.0, 35.0, 16.0, 17.0, 28.0, 29.0, 40.0, 41.0];
    for axis in [1, -2] {
        let (dims, y) = floats("Add", 6, &[on.clone(), ("axis", A::I(axis))], &inputs);
        assert_eq!((dims, &y[..]), (vec![2, 3, 2], &want[..]));
    }
    // Without an axis they are the last; without `broadcast` shapes are the same.
    let inputs = [x.clone(), f32s(&[2], &[10.0, 20.0])];
    let (_, y) = floats("Sub", 1, &[on.clone(), ("consumed_inputs", A::Is(&[0, 0]))], &inputs);
    assert_eq!(y[..3], [-10.0, -19.0, -8.0]);
    assert!(fails("Add", 6, &[], &[x.clone(), part.clone()]).contains("broadcast"));
    assert!(
        fails("Add", 6, &[on.clone(), ("axis", A::I(2))], &inputs_of(&x, &count(&[2, 3])))
            .contains("does not")
    );
    assert!(fails("Mul", 6, &[on.clone()], &[part, x.clone()]).contains("does not"));
    // Attributes that later operator sets do not have.
    assert!(fails("Add", 7, &[on], &[x.clone(), x.clone()]).contains("broadcast"));
    assert!(
        fails("Relu", 6, &[("consumed_inputs", A::Is(&[0]))], &[x]).contains("consumed_inputs")
    );
}

fn inputs_of(a: &Tensor, b: &Tensor) -> [Tensor; 2] {
    [a.clone(), b.clone()]
}

#[test]
fn what_inputs_are_today_were_attributes() {
    let x = count(&[2, 3]);
    let (dims, _) = floats("Reshape", 1, &[("shape", A::Is(&[3, -1]))], &[x.clone()]);
    assert_eq!(dims, [3, 2]);
    let (dims, y) =
        floats("Pad", 1, &[("paddings", A::Is(&[0, 1, 0, 0])), ("value", A::F(7.0))], &[x.clone()]);
    assert_eq!((dims, y[0]), (vec![2, 4], 7.0));
    let (dims, y) = floats("Concat", 3, &[], &[x.clone(), x.clone()]);
    assert_eq!((dims, y[3]), (vec![2, 6], 0.0));
    assert!(fails("Concat", 4, &[], &[x.clone(), x.clone()]).contains("axis"));
    let (dims, y) = floats("Tile", 5, &[], &[x.clone(), f32s(&[1], &[2.0]), f32s(&[1], &[0.0])]);
    assert_eq!((dims, y[6]), (vec![4, 3], 0.0));
    assert!(fails("Tile", 5, &[], &[x.clone(), i64s(&[2, 2]), i64s(&[0])]).contains("one number"));
    let t = run("Cast", 5, &[("to", A::S("INT64"))], &[x.clone()]).unwrap();
    assert_eq!(t.as_slice::<i64>().unwrap()[..3], [0, 1, 2]);
    assert!(fails("Cast", 5, &[("to", A::S("number"))], &[x]).contains("no type"));
    let attrs =
        [("height_scale", A::F(2.0)), ("width_scale", A::F(1.0)), ("mode", A::S("nearest"))];
    let (dims, y) = floats("Upsample", 1, &attrs, &[count(&[1, 1, 2, 2])]);
    assert_eq!((dims, &y[..]), (vec![1, 1, 4, 2], &[0.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0, 3.0][..]));
}

#[test]
fn slopes_are_those_of_channels() {
    let x = f32s(&[1, 2, 2], &[-1.0, 1.0, -1.0, -2.0]);
    let (_, y) = floats("PRelu", 6, &[], &[x.clone(), f32s(&[2], &[0.5, 0.25])]);
    assert_eq!(y, [-0.5, 1.0, -0.25, -0.5]);
    let (_, y) = floats("PRelu", 1, &[], &[x, f32s(&[1], &[0.5])]);
    assert_eq!(y, [-0.5, 1.0, -0.5, -1.0]);
}

#[test]
fn experiments() {
    let x = count(&[1, 2, 2, 3]);
    let (_, y) = floats(
        "ImageScaler",
        1,
        &[("scale", A::F(2.0)), ("bias", A::Fs(&[1.0, -1.0]))],
        &[x.clone()],
    );
    assert_eq!((y[1], y[7]), (3.0, 13.0));
    assert!(fails("ImageScaler", 1, &[("bias", A::Fs(&[1.0]))], &[x.clone()]).contains("1 biases"));
    let (dims, y) = floats("Crop", 1, &[("border", A::Is(&[1, 0, 1, 1]))], &[x.clone()]);
    assert_eq!((dims, y), (vec![1, 2, 1, 1], vec![1.0, 7.0]));
    let (dims, y) = floats(
        "Crop",
        1,
        &[("border", A::Is(&[1, 1, 0, 0])), ("scale", A::Is(&[1, 2]))],
        &[x.clone()],
    );
    assert_eq!((dims, y), (vec![1, 2, 1, 2], vec![4.0, 5.0, 10.0, 11.0]));
    for border in [[2, 0, 2, 0], [0, -1, 0, 0], [0, 0, 0, i64::MIN]] {
        assert!(fails("Crop", 1, &[("border", A::Is(&border))], &[x.clone()]).contains("border"));
    }
    let (_, y) = floats("Affine", 1, &[("alpha", A::F(2.0)), ("beta", A::F(1.0))], &[x.clone()]);
    assert_eq!(y[3], 7.0);
    let (_, y) =
        floats("ScaledTanh", 1, &[("alpha", A::F(2.0)), ("beta", A::F(0.5))], &[x.clone()]);
    assert!((y[2] - 2.0 * 1.0f32.tanh()).abs() < 1e-6);
    let (_, y) =
        floats("ParametricSoftplus", 1, &[("alpha", A::F(2.0)), ("beta", A::F(0.5))], &[x.clone()]);
    assert!((y[2] - 2.0 * 1.0f32.exp().ln_1p()).abs() < 1e-6);
    let inputs = [x, i64s(&[1]), i64s(&[3]), i64s(&[3])];
    assert_eq!(floats("DynamicSlice", 1, &[], &inputs).0, [1, 2, 2, 2]);
}
