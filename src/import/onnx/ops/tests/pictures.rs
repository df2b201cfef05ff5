use super::*;
use crate::graph::Context;
use crate::import::onnx::OnnxModel;
use crate::import::onnx::proto::GraphProto;
use crate::import::onnx::testing::{model, node, tensor, value};

#[test]
fn convolution_attributes() {
    let x = count(&[1, 1, 3, 3]);
    let w = f32s(&[1, 1, 2, 2], &[1.0, 0.0, 0.0, 1.0]);
    let with = |attrs: &[(&str, A<'_>)]| run("Conv", 11, attrs, &[x.clone(), w.clone()]);
    close(&with(&[]).unwrap(), &[1, 1, 2, 2], &[4.0, 6.0, 10.0, 12.0]);
    let y = with(&[("auto_pad", A::S("SAME_UPPER"))]).unwrap();
    close(&y, &[1, 1, 3, 3], &[4.0, 6.0, 2.0, 10.0, 12.0, 5.0, 6.0, 7.0, 8.0]);
    let y = with(&[("auto_pad", A::S("SAME_LOWER"))]).unwrap();
    close(&y, &[1, 1, 3, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 6.0, 10.0, 12.0]);
    let y = with(&[("auto_pad", A::S("VALID")), ("strides", A::Is(&[1, 2]))]).unwrap();
    close(&y, &[1, 1, 2, 1], &[4.0, 10.0]);
    let y = with(&[("pads", A::Is(&[1, 0, 0, 0])), ("dilations", A::Is(&[2, 2]))]).unwrap();
    close(&y, &[1, 1, 2, 1], &[5.0, 8.0]);
    let y = with(&[("kernel_shape", A::Is(&[2, 2])), ("strides", A::Is(&[2, 2]))]).unwrap();
    close(&y, &[1, 1, 1, 1], &[4.0]);
    for bad in [
        ("kernel_shape", A::Is(&[3, 3])),
        ("strides", A::Is(&[0, 1])),
        ("strides", A::Is(&[1])),
        ("strides", A::Is(&[-1, 1])),
        ("dilations", A::Is(&[i64::MAX, 1])),
        ("pads", A::Is(&[-1, 0, 0, 0])),
        ("pads", A::Is(&[i64::MAX, i64::MAX, i64::MAX, i64::MAX])),
        ("group", A::I(0)),
        ("group", A::I(-1)),
        ("group", A::I(2)),
        ("auto_pad", A::S("SOMEHOW")),
    ] {
        let name = bad.0;
        assert!(with(&[bad]).is_err(), "{name}");
    }
    let solid = [count(&[1, 1, 2, 2, 2]), count(&[1, 1, 1, 1, 1])];
    let y = run("Conv", 11, &[], &solid).unwrap();
    close(&y, &[1, 1, 2, 2, 2], &[0.0; 8]);
}

#[test]
fn convolution_of_groups_and_signals() {
    let x = f32s(&[1, 2, 3], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
    let w = f32s(&[2, 1, 2], &[1.0, 1.0, 1.0, -1.0]);
    let b = f32s(&[2], &[0.5, 0.0]);
    let attrs = [("group", A::I(2)), ("pads", A::Is(&[0, 1]))];
    let y = run("Conv", 7, &attrs, &[x, w, b]).unwrap();
    close(&y, &[1, 2, 3], &[3.5, 5.5, 3.5, -10.0, -10.0, 30.0]);
}

#[test]
fn transposed_convolution() {
    let x = f32s(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let w = f32s(&[1, 1, 2, 2], &[1.0, 1.0, 1.0, 1.0]);
    let with = |attrs: &[(&str, A<'_>)]| run("ConvTranspose", 11, attrs, &[x.clone(), w.clone()]);
    close(&with(&[]).unwrap(), &[1, 1, 3, 3], &[1.0, 3.0, 2.0, 4.0, 10.0, 6.0, 3.0, 7.0, 4.0]);
    let two = || ("strides", A::Is(&[2, 2]));
    let wide = [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 3.0, 3.0, 4.0, 4.0];
    close(&with(&[two()]).unwrap(), &[1, 1, 4, 4], &wide);
    let y = with(&[two(), ("output_padding", A::Is(&[0, 1]))]).unwrap();
    assert_eq!(y.dims(), [1, 1, 4, 5]);
    let y = with(&[two(), ("output_shape", A::Is(&[3, 5]))]).unwrap();
    assert_eq!(y.dims(), [1, 1, 3, 5]);
    // One row too many: NOTSET cuts it at the beginning.
    assert_eq!(parts(&y).1.first(), Some(&1.0));
    assert_eq!(parts(&y).1.get(5), Some(&3.0));
    let y = with(&[two(), ("auto_pad", A::S("SAME_UPPER"))]).unwrap();
    close(&y, &[1, 1, 4, 4], &wide);
    let y = with(&[("auto_pad", A::S("SAME_UPPER"))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[1.0, 3.0, 4.0, 10.0]);
    let y = with(&[("auto_pad", A::S("SAME_LOWER"))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[10.0, 6.0, 7.0, 4.0]);
    let y = with(&[("pads", A::Is(&[1, 0, 0, 1]))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[4.0, 10.0, 3.0, 7.0]);
    assert!(with(&[("pads", A::Is(&[9, 9, 9, 9]))]).is_err());
    assert!(with(&[("output_padding", A::Is(&[i64::MAX, 0]))]).is_err());
}

#[test]
fn pools() {
    let x = count(&[1, 1, 3, 3]);
    let two = || ("kernel_shape", A::Is(&[2, 2]));
    let max = |opset, attrs: &[(&str, A<'_>)]| run("MaxPool", opset, attrs, &[x.clone()]);
    close(&max(7, &[two()]).unwrap(), &[1, 1, 2, 2], &[4.0, 5.0, 7.0, 8.0]);
    let stride = || ("strides", A::Is(&[2, 2]));
    close(&max(10, &[two(), stride()]).unwrap(), &[1, 1, 1, 1], &[4.0]);
    let y = max(10, &[two(), stride(), ("ceil_mode", A::I(1))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[4.0, 5.0, 7.0, 8.0]);
    let valid = ("auto_pad", A::S("VALID"));
    let y = max(10, &[two(), stride(), valid, ("ceil_mode", A::I(1))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[4.0, 5.0, 7.0, 8.0]);
    let four = ("kernel_shape", A::Is(&[4, 4]));
    let y = max(10, &[four, stride(), ("ceil_mode", A::I(1))]).unwrap();
    close(&y, &[1, 1, 1, 1], &[8.0]);
    close(&max(10, &[two(), ("dilations", A::Is(&[2, 2]))]).unwrap(), &[1, 1, 1, 1], &[8.0]);
    let y = max(12, &[two(), stride(), ("auto_pad", A::S("SAME_UPPER"))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[4.0, 5.0, 7.0, 8.0]);
    let y = max(12, &[two(), stride(), ("auto_pad", A::S("SAME_LOWER"))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[0.0, 2.0, 6.0, 8.0]);
    assert!(max(7, &[two(), ("dilations", A::Is(&[2, 2]))]).is_err());
    assert!(max(7, &[]).is_err());
    let average = |opset, attrs: &[(&str, A<'_>)]| run("AveragePool", opset, attrs, &[x.clone()]);
    close(&average(7, &[two()]).unwrap(), &[1, 1, 2, 2], &[2.0, 3.0, 5.0, 6.0]);
    let corner = || ("pads", A::Is(&[1, 1, 0, 0]));
    let y = average(7, &[two(), stride(), corner()]).unwrap();
    close(&y, &[1, 1, 2, 2], &[0.0, 1.5, 4.5, 6.0]);
    let y = average(7, &[two(), stride(), corner(), ("count_include_pad", A::I(1))]).unwrap();
    close(&y, &[1, 1, 2, 2], &[0.0, 0.75, 2.25, 6.0]);
    let y = average(19, &[two(), ("dilations", A::Is(&[2, 1]))]).unwrap();
    close(&y, &[1, 1, 1, 2], &[3.5, 4.5]);
    let y =
        run("MaxPool", 11, &[("kernel_shape", A::Is(&[2]))], &[f32s(&[1, 1, 3], &[3.0, 1.0, 2.0])]);
    close(&y.unwrap(), &[1, 1, 2], &[3.0, 2.0]);
    // Several pictures of one channel.
    let pictures = f32s(&[2, 1, 2, 4], &(0..16).map(|i| i as f32).collect::<Vec<_>>());
    let y = run("AveragePool", 11, &[two()], &[pictures]).unwrap();
    close(&y, &[2, 1, 1, 3], &[2.5, 3.5, 4.5, 10.5, 11.5, 12.5]);
    let outputs = run_all("MaxPool", 11, &[two()], &[Some(x.clone())], 2).unwrap();
    assert_eq!(ints(&outputs[1]), [4, 5, 7, 8]);
    let columns = [two(), ("storage_order", A::I(1))];
    let outputs = run_all("MaxPool", 11, &columns, &[Some(x.clone())], 2).unwrap();
    assert_eq!(ints(&outputs[1]), [4, 7, 5, 8]);
    // Windows of padding alone: there is no position, which counts as 0.
    let around = [two(), ("storage_order", A::I(1)), ("pads", A::Is(&[1; 4]))];
    let nothing = f32s(&[1, 1, 0, 3], &[]);
    let outputs = run_all("MaxPool", 11, &around, &[Some(nothing)], 2).unwrap();
    assert_eq!(ints(&outputs[1]), [0; 4]);
    close(&run("GlobalAveragePool", 7, &[], &[x.clone()]).unwrap(), &[1, 1, 1, 1], &[4.0]);
    close(&run("GlobalMaxPool", 22, &[], &[x]).unwrap(), &[1, 1, 1, 1], &[8.0]);
    let solid = count(&[1, 1, 2, 2, 2]);
    close(&run("GlobalAveragePool", 7, &[], &[solid]).unwrap(), &[1, 1, 1, 1, 1], &[3.5]);
}

#[test]
fn batch_normalization() {
    let x = f32s(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let v = |a, b| f32s(&[2], &[a, b]);
    let stats = [v(1.0, 2.0), v(0.0, 1.0), v(1.0, 3.0), v(4.0, 0.25)];
    let all = |x: Tensor| [&[x], &stats[..]].concat();
    let attrs = [("epsilon", A::F(0.0))];
    let y = run("BatchNormalization", 9, &attrs, &all(x.clone())).unwrap();
    close(&y, &[1, 2, 2], &[0.0, 0.5, 1.0, 5.0]);
    let flat = run("BatchNormalization", 15, &attrs, &all(f32s(&[1, 2], &[3.0, 3.0]))).unwrap();
    close(&flat, &[1, 2], &[1.0, 1.0]);
    // By the mean 1.5 and the variance 0.25 of channel 0, 3.5 and 0.25 of channel 1.
    let training = [("training_mode", A::I(1)), ("epsilon", A::F(0.0))];
    let y = run("BatchNormalization", 15, &training, &all(x.clone())).unwrap();
    close(&y, &[1, 2, 2], &[-1.0, 1.0, -1.0, 3.0]);
    let short = [x, v(1.0, 1.0), v(0.0, 0.0), f32s(&[1], &[0.0]), v(1.0, 1.0)];
    assert!(run("BatchNormalization", 9, &[], &short).is_err());
}

#[test]
fn depth_and_space() {
    let x = count(&[1, 8, 1, 1]);
    let with = |mode| {
        run("DepthToSpace", 11, &[("blocksize", A::I(2)), ("mode", A::S(mode))], &[x.clone()])
    };
    close(&with("DCR").unwrap(), &[1, 2, 2, 2], &[0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
    close(&with("CRD").unwrap(), &[1, 2, 2, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let back = [("blocksize", A::I(2))];
    let y = run("SpaceToDepth", 13, &back, &[with("DCR").unwrap()]).unwrap();
    close(&y, &[1, 8, 1, 1], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let back = [("blocksize", A::I(2)), ("mode", A::S("CRD"))];
    let y = run("SpaceToDepth", 28, &back, &[with("CRD").unwrap()]).unwrap();
    close(&y, &[1, 8, 1, 1], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    for bad in [0, 3, -2, i64::MAX] {
        assert!(run("DepthToSpace", 7, &[("blocksize", A::I(bad))], &[x.clone()]).is_err());
        assert!(
            run("SpaceToDepth", 7, &[("blocksize", A::I(bad))], &[count(&[1, 1, 2, 2])]).is_err()
        );
    }
}

fn resize(x: &Tensor, scales: &[f32], attrs: &[(&str, A<'_>)]) -> Result<Tensor, ImportError> {
    let none = f32s(&[0], &[]);
    run("Resize", 13, attrs, &[x.clone(), none, f32s(&[scales.len()], scales)])
}

#[test]
fn nearest_resizing() {
    let x = f32s(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
    close(
        &resize(&x, &[2.0, 1.0], &[]).unwrap(),
        &[2, 4],
        &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0],
    );
    let floor = || ("nearest_mode", A::S("floor"));
    let with = |mode: &'static str, rounding: &'static str, scale: f32| {
        let attrs =
            [("coordinate_transformation_mode", A::S(mode)), ("nearest_mode", A::S(rounding))];
        parts(&resize(&x, &[1.0, scale], &attrs).unwrap()).1
    };
    // Positions 0.5 and 2.5 are ties.
    assert_eq!(with("half_pixel", "round_prefer_floor", 0.5), [1.0, 3.0]);
    assert_eq!(with("half_pixel", "round_prefer_ceil", 0.5), [2.0, 4.0]);
    assert_eq!(with("half_pixel", "floor", 0.5), [1.0, 3.0]);
    assert_eq!(with("half_pixel", "ceil", 0.5), [2.0, 4.0]);
    assert_eq!(with("asymmetric", "floor", 0.5), [1.0, 3.0]);
    assert_eq!(with("align_corners", "floor", 0.5), [1.0, 4.0]);
    assert_eq!(with("tf_half_pixel_for_nn", "floor", 0.5), [2.0, 4.0]);
    assert_eq!(with("pytorch_half_pixel", "floor", 0.25), [1.0]);
    assert_eq!(with("tf_half_pixel_for_nn", "ceil", 1.0), [1.0, 2.0, 3.0, 4.0]);
    let old = [("mode", A::S("nearest"))];
    let by = |op, opset, s: f32| {
        parts(&run(op, opset, &old, &[x.clone(), f32s(&[2], &[1.0, s])]).unwrap()).1
    };
    assert_eq!(by("Upsample", 9, 1.5), [1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
    assert_eq!(by("Resize", 10, 0.6), [1.0, 3.0]);
    let listed = [("scales", A::Fs(&[2.0, 1.0]))];
    assert_eq!(run("Upsample", 7, &listed, &[x.clone()]).unwrap().dims(), [2, 4]);
    assert!(run("Upsample", 10, &old, &[x.clone(), f32s(&[2], &[1.0, 2.0])]).is_ok());
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e30] {
        assert!(resize(&x, &[1.0, bad], &[floor()]).is_err(), "{bad}");
    }
    assert!(resize(&x, &[1.0], &[]).is_err());
}

#[test]
fn linear_resizing() {
    let x = f32s(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let linear = || ("mode", A::S("linear"));
    let y = resize(&x, &[1.0, 1.0, 2.0, 2.0], &[linear()]).unwrap();
    let want =
        [1.0, 1.25, 1.75, 2.0, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3.0, 3.25, 3.75, 4.0];
    close(&y, &[1, 1, 4, 4], &want);
    let corners = ("coordinate_transformation_mode", A::S("align_corners"));
    let y = resize(&x, &[1.0, 1.0, 1.0, 2.0], &[linear(), corners]).unwrap();
    let third = 1.0 / 3.0;
    let want = [1.0, 1.0 + third, 2.0 - third, 2.0, 3.0, 3.0 + third, 4.0 - third, 4.0];
    close(&y, &[1, 1, 2, 4], &want);
    // The sample of the operator's text for cubic filters, first row.
    let row = f32s(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let y = resize(&row, &[1.0, 2.0], &[("mode", A::S("cubic"))]).unwrap();
    let want = [0.683_594, 1.015_625, 1.5625, 2.031_25, 2.468_75, 2.9375, 3.484_375, 3.816_406];
    let got = parts(&y).1;
    let middle = got.iter().skip(2).take(4).zip(want.iter().skip(2));
    assert!(middle.clone().count() == 4, "{got:?}");
    assert!(got.iter().zip(got.iter().rev()).all(|(a, b)| (a + b - 5.0).abs() < 1e-5), "{got:?}");
    let x = i64s(&[1, 2]);
    let y = run("Resize", 13, &[linear()], &[x, f32s(&[0], &[]), f32s(&[1], &[2.0])]).unwrap();
    assert_eq!(ints(&y), [1, 1, 2, 2]);
}

/// Rows and columns are chosen where the picture's channels lie, and come back in the order that was asked for.
#[test]
fn nearest_elements_of_a_transposed_picture() {
    let perm = |axes: &'static [i64]| [("perm", A::Is(axes))];
    let nodes = |last: &'static [i64]| {
        vec![
            node("Transpose", &["x"], &["t"], &perm(&[0, 3, 1, 2])),
            node("Resize", &["t", "", "", "sizes"], &["r"], &[]),
            node("Transpose", &["r"], &["y"], &perm(last)),
        ]
    };
    // Rows 0, 0, 1, 1 of two, columns 0 and 2 of three, channels 0, 0, 1 of two.
    let want = |h: usize, w: usize, c: usize| ((h / 2 * 3 + w * 2) * 2 + c / 2) as f32;
    for (last, shape) in [(&[0i64, 2, 3, 1], [1, 4, 2, 3]), (&[0, 1, 2, 3], [1, 3, 4, 2])] {
        let graph = GraphProto {
            node: nodes(last),
            initializer: vec![
                tensor("x", &count(&[1, 2, 3, 2])),
                tensor("sizes", &i64s(&[1, 3, 4, 2])),
            ],
            output: vec![value("y", DType::F32)],
            ..Default::default()
        };
        let mut cx = Context::new();
        let m = OnnxModel::from_proto(model(18, graph), None).unwrap();
        let y = m.instantiate(&mut cx, &[], &[]).unwrap()[0];
        let got = parts(cx.constant_value(y).unwrap());
        assert_eq!(got.0, shape);
        for (i, found) in got.1.iter().enumerate() {
            let (h, w, c) = match last[1] {
                1 => (i / 2 % 4, i % 2, i / 8),
                _ => (i / 6, i / 3 % 2, i % 3),
            };
            assert_eq!(*found, want(h, w, c), "{last:?} {i}");
        }
    }
}

#[test]
fn sizes_axes_and_crops() {
    let x = count(&[1, 1, 2, 4]);
    let by = |sizes: &[i64], attrs: &[(&str, A<'_>)]| {
        let inputs = [Some(x.clone()), None, None, Some(i64s(sizes))];
        run_all("Resize", 18, attrs, &inputs, 1).map(|mut t| t.remove(0))
    };
    assert_eq!(by(&[1, 1, 4, 4], &[]).unwrap().dims(), [1, 1, 4, 4]);
    let axes = || ("axes", A::Is(&[3, 2]));
    let y = by(&[2, 1], &[axes()]).unwrap();
    close(&y, &[1, 1, 1, 2], &[0.0, 2.0]);
    let policy = |p: &'static str| ("keep_aspect_ratio_policy", A::S(p));
    assert_eq!(by(&[8, 8], &[axes(), policy("not_larger")]).unwrap().dims(), [1, 1, 4, 8]);
    assert_eq!(by(&[8, 8], &[axes(), policy("not_smaller")]).unwrap().dims(), [1, 1, 8, 16]);
    assert!(by(&[-1, 4], &[axes()]).is_err() && by(&[i64::MAX, 4], &[axes()]).is_err());
    assert!(by(&[4], &[axes()]).is_err());
    let both = [Some(x.clone()), None, Some(f32s(&[4], &[1.0; 4])), Some(i64s(&[1, 1, 2, 4]))];
    assert!(run_all("Resize", 18, &[], &both, 1).is_err());
    assert!(run_all("Resize", 18, &[], &both[..1], 1).is_err());
    let crop = [
        ("mode", A::S("linear")),
        ("coordinate_transformation_mode", A::S("tf_crop_and_resize")),
        ("extrapolation_value", A::F(-5.0)),
    ];
    let roi = f32s(&[8], &[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0]);
    let inputs = [Some(x.clone()), Some(roi), None, Some(i64s(&[1, 1, 2, 3]))];
    let y = run_all("Resize", 13, &crop, &inputs, 1).unwrap().remove(0);
    close(&y, &[1, 1, 2, 3], &[0.0, 3.0, -5.0, 4.0, 7.0, -5.0]);
    let empty = f32s(&[1, 1, 0, 2], &[]);
    assert!(resize(&empty, &[1.0, 1.0, 2.0, 2.0], &[]).is_ok());
}
