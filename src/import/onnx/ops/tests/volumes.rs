//! Windows over three dimensions, which are computed over two at a time (f64, which is computed by
//! the definition, says what f32 must give).

use super::*;

/// Small integers that do not repeat soon.
fn numbers(dims: &[usize]) -> Vec<f64> {
    let n = dims.iter().product::<usize>();
    (0..n).map(|i| ((i * 7 + i / 5) % 13) as f64 - 6.0).collect()
}

#[allow(clippy::cast_possible_truncation, reason = "small integers")]
fn both(op: &str, attrs: &[(&str, A<'_>)], operands: &[&[usize]]) {
    let wide: Vec<Tensor> =
        operands.iter().map(|d| Tensor::from_slice(d, &numbers(d)).unwrap()).collect();
    let narrow: Vec<Tensor> = operands
        .iter()
        .map(|d| f32s(d, &numbers(d).iter().map(|&v| v as f32).collect::<Vec<_>>()))
        .collect();
    let want = run(op, 19, attrs, &wide).unwrap();
    let want: (Vec<usize>, Vec<f32>) =
        (want.dims().to_vec(), want.as_slice::<f64>().unwrap().iter().map(|&v| v as f32).collect());
    close(&run(op, 19, attrs, &narrow).unwrap(), &want.0, &want.1);
}

#[test]
fn convolutions() {
    let x: &[usize] = &[2, 4, 5, 6, 7];
    for (w, k, groups) in [
        ([3, 4, 3, 3, 3], 3, 1),
        ([6, 4, 3, 2, 1], 6, 1),
        ([4, 1, 2, 3, 3], 4, 4),
        ([6, 2, 3, 1, 2], 6, 2),
        ([5, 4, 1, 3, 3], 5, 1),
        ([3, 4, 3, 1, 1], 3, 1),
        ([6, 2, 1, 1, 1], 6, 2),
    ] {
        let operands: [&[usize]; 3] = [x, &w, &[k]];
        let group = || ("group", A::I(groups));
        both("Conv", &[group()], &operands);
        both("Conv", &[group()], &operands[..2]);
        both("Conv", &[group(), ("pads", A::Is(&[1, 0, 2, 2, 1, 0]))], &operands);
        both("Conv", &[group(), ("strides", A::Is(&[2, 1, 3]))], &operands);
        both("Conv", &[group(), ("auto_pad", A::S("SAME_LOWER"))], &operands);
        let far = [("dilations", A::Is(&[2, 2, 1])), ("strides", A::Is(&[1, 2, 2]))];
        let [dilations, strides] = far;
        both("Conv", &[group(), dilations, strides, ("pads", A::Is(&[2; 6]))], &operands);
    }
}

#[test]
fn transposed_convolutions() {
    let x: &[usize] = &[2, 4, 3, 2, 3];
    for (w, k, groups) in [
        ([4, 3, 3, 3, 3], 3, 1),
        ([4, 3, 2, 2, 2], 3, 1),
        ([4, 1, 2, 3, 1], 4, 4),
        ([4, 2, 1, 2, 3], 4, 2),
    ] {
        let operands: [&[usize]; 3] = [x, &w, &[k]];
        let group = || ("group", A::I(groups));
        let two = || ("strides", A::Is(&[2; 3]));
        both("ConvTranspose", &[group()], &operands);
        both("ConvTranspose", &[group(), two()], &operands[..2]);
        both("ConvTranspose", &[group(), two(), ("output_padding", A::Is(&[1; 3]))], &operands);
        both("ConvTranspose", &[group(), two(), ("output_shape", A::Is(&[6, 5, 7]))], &operands);
        both("ConvTranspose", &[group(), two(), ("auto_pad", A::S("SAME_UPPER"))], &operands);
        let far = [("dilations", A::Is(&[2, 1, 3])), ("strides", A::Is(&[3, 1, 2]))];
        let [dilations, strides] = far;
        let pads = ("pads", A::Is(&[0, 0, 1, 1, 0, 0]));
        both("ConvTranspose", &[group(), dilations, strides, pads], &operands);
    }
}

#[test]
fn pools() {
    let x: &[&[usize]] = &[&[2, 3, 5, 6, 7]];
    for op in ["MaxPool", "AveragePool"] {
        let size = || ("kernel_shape", A::Is(&[3, 2, 3]));
        let pads = || ("pads", A::Is(&[1, 0, 1, 1, 1, 0]));
        let strides = || ("strides", A::Is(&[2, 3, 2]));
        both(op, &[size()], x);
        both(op, &[size(), pads(), strides()], x);
        both(op, &[size(), pads(), strides(), ("ceil_mode", A::I(1))], x);
        both(op, &[size(), strides(), ("auto_pad", A::S("SAME_UPPER"))], x);
        both(op, &[size(), ("dilations", A::Is(&[2, 1, 2]))], x);
        if op == "AveragePool" {
            let all = || ("count_include_pad", A::I(1));
            both(op, &[size(), pads(), strides(), all()], x);
            both(op, &[size(), pads(), strides(), all(), ("ceil_mode", A::I(1))], x);
        }
    }
}

/// What would take a number per picture and tap is left to the definition, and so are extents of 0.
#[test]
fn extremes() {
    both("Conv", &[], &[&[1, 1, 40, 2, 2], &[1, 1, 40, 2, 2]]);
    both("Conv", &[], &[&[0, 1, 3, 2, 2], &[1, 1, 2, 2, 2]]);
    both("ConvTranspose", &[], &[&[1, 1, 1, 2, 2], &[1, 1, 40, 2, 2]]);
    let operands = [count(&[1, 1, 2, 2, 2]), count(&[2, 1, 2, 2, 2])];
    for pads in [1 << 40, i64::MAX / 2, i64::MAX] {
        let pads = [pads, 0, 0, 0, 0, 0];
        for op in ["Conv", "ConvTranspose"] {
            assert!(run(op, 19, &[("pads", A::Is(&pads))], &operands).is_err(), "{op} {pads:?}");
        }
    }
}
