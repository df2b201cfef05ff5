//! Windows over three dimensions, which are computed over two at a time (f64, which is computed by
//! the definition, says what f32 must give), and windows that bend.

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
        both(op, &[size(), strides(), ("auto_pad", A::S("VALID")), ("ceil_mode", A::I(1))], x);
        let large = ("kernel_shape", A::Is(&[6, 2, 8]));
        both(op, &[large, strides(), ("ceil_mode", A::I(1))], x);
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

/// Windows that bend, against the definition: groups of channels and of offsets, a mask and a bias.
#[test]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
fn bent_windows() {
    let dims: [&[usize]; 5] = [&[2, 4, 4, 5], &[6, 2, 2, 3], &[2, 24, 3, 2], &[6], &[2, 12, 3, 2]];
    let values: Vec<Vec<f64>> = dims.iter().map(|d| numbers(d)).collect();
    let [x, w, bias] = [&values[0], &values[1], &values[3]];
    let offsets: Vec<f64> = values[2].iter().map(|v| v * 0.375).collect();
    let mask: Vec<f64> = values[4].iter().map(|v| v * 0.25).collect();
    let pixel = |plane: usize, y: f64, x_at: f64| {
        let inside = (0.0..4.0).contains(&y) && (0.0..5.0).contains(&x_at);
        if inside { x[plane * 20 + y as usize * 5 + x_at as usize] } else { 0.0 }
    };
    let mut want = Vec::new();
    for i in 0..2 * 6 * 6 {
        let (n, k, point) = (i / 36, i / 6 % 6, i % 6);
        let mut sum = bias[k];
        for j in 0..2 * 6 {
            let (channel, tap) = (k / 3 * 2 + j / 6, j % 6);
            let part = (n * 2 + channel / 2) * 6 + tap;
            let y = (point / 2 + tap / 3 * 2) as f64 - 1.0 + offsets[part * 12 + point];
            let right = (point % 2 * 2 + tap % 3) as f64 + offsets[part * 12 + 6 + point];
            let (top, left, plane) = (y.floor(), right.floor(), n * 4 + channel);
            let (down, across) = (y - top, right - left);
            let value = (1.0 - down) * (1.0 - across) * pixel(plane, top, left)
                + (1.0 - down) * across * pixel(plane, top, left + 1.0)
                + down * (1.0 - across) * pixel(plane, top + 1.0, left)
                + down * across * pixel(plane, top + 1.0, left + 1.0);
            sum += w[(k * 2 + j / 6) * 6 + tap] * mask[part * 6 + point] * value;
        }
        want.push(sum as f32);
    }
    let narrow = |v: &[f64]| v.iter().map(|&v| v as f32).collect::<Vec<f32>>();
    let operands = [x, w, &offsets, bias, &mask].map(|v| narrow(v));
    let operands: Vec<Tensor> = dims.iter().zip(&operands).map(|(d, v)| f32s(d, v)).collect();
    let attrs = [
        ("group", A::I(2)),
        ("offset_group", A::I(2)),
        ("pads", A::Is(&[1, 0, 0, 1])),
        ("strides", A::Is(&[1, 2])),
        ("dilations", A::Is(&[2, 1])),
    ];
    close(&run("DeformConv", 19, &attrs, &operands).unwrap(), &[2, 6, 3, 2], &want);
}
