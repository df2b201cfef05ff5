use super::*;

#[test]
fn reductions_in_both_forms() {
    let x = count(&[2, 3]);
    let old = [("axes", A::Is(&[1])), ("keepdims", A::I(0))];
    close(&run("ReduceMean", 7, &old, &[x.clone()]).unwrap(), &[2], &[1.0, 4.0]);
    close(&run("ReduceSum", 7, &[], &[x.clone()]).unwrap(), &[1, 1], &[15.0]);
    let new = |op, opset, axes: &[i64]| run(op, opset, &[], &[x.clone(), i64s(axes)]);
    close(&new("ReduceSum", 13, &[0]).unwrap(), &[1, 3], &[3.0, 5.0, 7.0]);
    close(&new("ReduceMax", 18, &[-1]).unwrap(), &[2, 1], &[2.0, 5.0]);
    close(&new("ReduceMin", 20, &[0, 1]).unwrap(), &[1, 1], &[0.0]);
    close(&new("ReduceProd", 18, &[0]).unwrap(), &[1, 3], &[0.0, 4.0, 10.0]);
    close(&new("ReduceL1", 18, &[1]).unwrap(), &[2, 1], &[3.0, 12.0]);
    close(&new("ReduceL2", 18, &[0]).unwrap(), &[1, 3], &[3.0, 17f32.sqrt(), 29f32.sqrt()]);
    close(&new("ReduceSumSquare", 18, &[0]).unwrap(), &[1, 3], &[9.0, 17.0, 29.0]);
    close(&new("ReduceLogSum", 18, &[0]).unwrap(), &[1, 3], &[3f32.ln(), 5f32.ln(), 7f32.ln()]);
    let y = new("ReduceLogSumExp", 18, &[1]).unwrap();
    close(&y, &[2, 1], &[2.407_606, 5.407_606]);
    let noop = [("noop_with_empty_axes", A::I(1))];
    let y = run("ReduceSum", 13, &noop, &[x.clone()]).unwrap();
    close(&y, &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    close(&new("ReduceSum", 13, &[]).unwrap(), &[1, 1], &[15.0]);
    // The axes moved from attribute to input.
    assert!(new("ReduceMean", 13, &[0]).is_err());
    assert!(run("ReduceSum", 13, &old, &[x.clone()]).is_err());
    assert!(new("ReduceSum", 13, &[2]).is_err() && new("ReduceSum", 13, &[1, -1]).is_err());
}

#[test]
fn reductions_of_pictures_integers_and_nothing() {
    let x = count(&[1, 2, 2, 2]);
    let space = [("axes", A::Is(&[2, 3])), ("keepdims", A::I(0))];
    close(&run("ReduceMean", 11, &space, &[x.clone()]).unwrap(), &[1, 2], &[1.5, 5.5]);
    close(
        &run("ReduceMax", 11, &[("axes", A::Is(&[1, 3]))], &[x]).unwrap(),
        &[1, 1, 2, 1],
        &[5.0, 7.0],
    );
    let product = run("ReduceProd", 13, &[("keepdims", A::I(0))], &[i64s(&[2, 3, 4])]).unwrap();
    assert_eq!((product.dims(), ints(&product)), (vec![], vec![24]));
    let none = f32s(&[2, 0], &[]);
    let y = run("ReduceSum", 13, &[], &[none.clone(), i64s(&[1])]).unwrap();
    close(&y, &[2, 1], &[0.0, 0.0]);
    let y = run("ReduceMax", 18, &[], &[none, i64s(&[1])]).unwrap();
    close(&y, &[2, 1], &[f32::NEG_INFINITY; 2]);
}

#[test]
fn softmax_changed_its_meaning() {
    let x = f32s(&[1, 2, 2], &[0.0, 3f32.ln(), 0.0, 0.0]);
    // From the axis on up to opset 12, along the axis after that.
    let old = run("Softmax", 11, &[], &[x.clone()]).unwrap();
    close(&old, &[1, 2, 2], &[1.0 / 6.0, 0.5, 1.0 / 6.0, 1.0 / 6.0]);
    let new = run("Softmax", 13, &[], &[x.clone()]).unwrap();
    close(&new, &[1, 2, 2], &[0.25, 0.75, 0.5, 0.5]);
    let middle = run("Softmax", 13, &[("axis", A::I(1))], &[x.clone()]).unwrap();
    close(&middle, &[1, 2, 2], &[0.5, 0.75, 0.5, 0.25]);
    let rows = run("Softmax", 7, &[("axis", A::I(3))], &[x.clone()]).unwrap();
    close(&rows, &[1, 2, 2], &[1.0; 4]);
    let log = run("LogSoftmax", 13, &[("axis", A::I(-1))], &[x.clone()]).unwrap();
    let ln = f32::ln;
    close(&log, &[1, 2, 2], &[ln(0.25), ln(0.75), ln(0.5), ln(0.5)]);
    assert!(run("Softmax", 13, &[("axis", A::I(3))], &[x.clone()]).is_err());
    assert!(run("Softmax", 11, &[("axis", A::I(-4))], &[x]).is_err());
    assert_eq!(run("Softmax", 13, &[], &[f32s(&[2, 0], &[])]).unwrap().dims(), [2, 0]);
    close(&run("Softmax", 13, &[("axis", A::I(0))], &[f32s(&[1], &[5.0])]).unwrap(), &[1], &[1.0]);
}

#[test]
fn products_of_all_ranks() {
    let (m, v) = (count(&[2, 3]), f32s(&[3], &[1.0, 2.0, 3.0]));
    let with = |a: &Tensor, b: &Tensor| run("MatMul", 13, &[], &[a.clone(), b.clone()]);
    close(&with(&m, &v).unwrap(), &[2], &[8.0, 26.0]);
    close(&with(&v, &v).unwrap(), &[], &[14.0]);
    close(&with(&f32s(&[2], &[1.0, 1.0]), &m).unwrap(), &[3], &[3.0, 5.0, 7.0]);
    let batch = count(&[2, 1, 1, 2]);
    let y = with(&batch, &m).unwrap();
    close(&y, &[2, 1, 1, 3], &[3.0, 4.0, 5.0, 9.0, 14.0, 19.0]);
    let y = with(&f32s(&[2], &[1.0, 0.0]), &count(&[2, 2, 2])).unwrap();
    close(&y, &[2, 2], &[0.0, 1.0, 4.0, 5.0]);
    assert!(with(&m, &m).is_err() && with(&m, &f32s(&[], &[1.0])).is_err());
    assert_eq!(with(&f32s(&[0, 3], &[]), &v).unwrap().dims(), [0]);
}

#[test]
fn general_products() {
    let (a, b) = (count(&[2, 3]), count(&[3, 2]));
    let product = [10.0, 13.0, 28.0, 40.0];
    let with = |attrs: &[(&str, A<'_>)], src: &[&Tensor]| {
        let src: Vec<Tensor> = src.iter().map(|t| (*t).clone()).collect();
        run("Gemm", 11, attrs, &src)
    };
    close(&with(&[], &[&a, &b]).unwrap(), &[2, 2], &product);
    let row = f32s(&[2], &[1.0, -1.0]);
    close(&with(&[], &[&a, &b, &row]).unwrap(), &[2, 2], &[11.0, 12.0, 29.0, 39.0]);
    let column = f32s(&[2, 1], &[1.0, -1.0]);
    close(&with(&[], &[&a, &b, &column]).unwrap(), &[2, 2], &[11.0, 14.0, 27.0, 39.0]);
    let one = f32s(&[], &[5.0]);
    close(&with(&[], &[&a, &b, &one]).unwrap(), &[2, 2], &[15.0, 18.0, 33.0, 45.0]);
    let full = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let scaled = [("alpha", A::F(0.5)), ("beta", A::F(2.0))];
    close(&with(&scaled, &[&a, &b, &full]).unwrap(), &[2, 2], &[7.0, 10.5, 20.0, 28.0]);
    close(&with(&scaled, &[&a, &b, &row]).unwrap(), &[2, 2], &[7.0, 4.5, 16.0, 18.0]);
    let both = [("transA", A::I(1)), ("transB", A::I(1))];
    close(
        &with(&both, &[&a, &b]).unwrap(),
        &[3, 3],
        &[3.0, 9.0, 15.0, 4.0, 14.0, 24.0, 5.0, 19.0, 33.0],
    );
    assert!(with(&[], &[&a, &a]).is_err());
    assert!(with(&[], &[&a, &b, &f32s(&[3], &[0.0; 3])]).is_err());
    assert!(with(&[], &[&a, &b, &f32s(&[1, 2, 2], &[0.0; 4])]).is_err());
    assert!(with(&[], &[&count(&[2, 2, 2]), &b]).is_err());
}
