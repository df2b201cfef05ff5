use super::*;

#[test]
fn extremes_and_one_hots() {
    let x = f32s(&[2, 3], &[1.0, 3.0, 3.0, 2.0, 0.0, 2.0]);
    let most = |attrs: &[(&str, A<'_>)]| run("ArgMax", 13, attrs, &[x.clone()]).unwrap();
    let along = || ("axis", A::I(1));
    assert_eq!(ints(&most(&[along()])), [1, 0]);
    assert_eq!(most(&[along(), ("keepdims", A::I(0))]).dims(), [2]);
    assert_eq!(ints(&most(&[along(), ("select_last_index", A::I(1))])), [2, 2]);
    assert_eq!(ints(&run("ArgMin", 13, &[], &[x.clone()]).unwrap()), [0, 1, 1]);
    assert!(run("ArgMax", 11, &[("select_last_index", A::I(1))], &[x.clone()]).is_err());
    let y = run("Hardmax", 13, &[], &[x.clone()]).unwrap();
    close(&y, &[2, 3], &[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    let y = run("Hardmax", 7, &[("axis", A::I(0))], &[x]).unwrap();
    close(&y, &[2, 3], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    let hot = |indices: &[i64], depth: i64| {
        let values = f32s(&[2], &[-1.0, 1.0]);
        run("OneHot", 11, &[], &[i64s(indices), i64s(&[depth]), values])
    };
    close(&hot(&[1, -1, 5], 2).unwrap(), &[3, 2], &[-1.0, 1.0, -1.0, 1.0, -1.0, -1.0]);
    assert!(hot(&[1], -1).is_err() && hot(&[1], i64::MAX).is_err());
}

#[test]
fn triangles_and_diagonals() {
    let x = count(&[2, 3]);
    let lower = [("upper", A::I(0))];
    let y = run("Trilu", 14, &lower, &[x.clone(), i64s(&[-1])]).unwrap();
    close(&y, &[2, 3], &[0.0, 0.0, 0.0, 3.0, 0.0, 0.0]);
    let y = run("Trilu", 14, &[], &[x.clone(), i64s(&[i64::MAX])]).unwrap();
    close(&y, &[2, 3], &[0.0; 6]);
    let y = run("EyeLike", 9, &[("k", A::I(1))], &[x.clone()]).unwrap();
    close(&y, &[2, 3], &[0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    assert!(run("EyeLike", 9, &[], &[count(&[2])]).is_err());
    let y = run("CenterCropPad", 18, &[], &[x.clone(), i64s(&[3, 1])]).unwrap();
    close(&y, &[3, 1], &[1.0, 4.0, 0.0]);
    assert!(run("CenterCropPad", 18, &[], &[x, i64s(&[-1, 1])]).is_err());
    let lengths = i64s(&[3, 1]);
    let axes = [("batch_axis", A::I(0)), ("time_axis", A::I(1))];
    let y = run("ReverseSequence", 10, &axes, &[count(&[2, 3]), lengths]).unwrap();
    close(&y, &[2, 3], &[2.0, 1.0, 0.0, 3.0, 4.0, 5.0]);
    assert!(run("ReverseSequence", 10, &axes, &[count(&[2, 3]), i64s(&[4, 1])]).is_err());
}

#[test]
fn scattered_elements() {
    let (x, u) = (count(&[1, 4]), f32s(&[1, 2], &[10.0, 20.0]));
    let at = |v: [i64; 2]| Tensor::from_slice(&[1, 2], &v).unwrap();
    let scatter = |opset, attrs: &[(&str, A<'_>)], v| {
        run("ScatterElements", opset, attrs, &[x.clone(), at(v), u.clone()])
    };
    let along = || ("axis", A::I(1));
    close(&scatter(11, &[along()], [-1, 0]).unwrap(), &[1, 4], &[20.0, 1.0, 2.0, 10.0]);
    let add = [along(), ("reduction", A::S("add"))];
    close(&scatter(18, &add, [1, 1]).unwrap(), &[1, 4], &[0.0, 31.0, 2.0, 3.0]);
    assert!(scatter(11, &add, [1, 1]).is_err() && scatter(11, &[along()], [4, 0]).is_err());
    let cache = count(&[1, 1, 4, 1]);
    let update = f32s(&[1, 1, 2, 1], &[8.0, 9.0]);
    let write = |first: i64, mode: &str| {
        let inputs = [cache.clone(), update.clone(), i64s(&[first])];
        run("TensorScatter", 24, &[("mode", A::S(mode))], &inputs)
    };
    close(&write(1, "linear").unwrap(), &[1, 1, 4, 1], &[0.0, 8.0, 9.0, 3.0]);
    close(&write(3, "circular").unwrap(), &[1, 1, 4, 1], &[9.0, 1.0, 2.0, 8.0]);
    assert!(write(3, "linear").is_err());
}

#[test]
fn losses() {
    let x = f32s(&[2, 2], &[-1.0, -2.0, -3.0, -4.0]);
    let loss = |attrs: &[(&str, A<'_>)], labels: &[i64]| {
        run("NegativeLogLikelihoodLoss", 13, attrs, &[x.clone(), i64s(labels)])
    };
    close(&loss(&[], &[0, 1]).unwrap(), &[], &[2.5]);
    close(&loss(&[("reduction", A::S("none"))], &[1, 0]).unwrap(), &[2], &[2.0, 3.0]);
    let ignoring = [("ignore_index", A::I(-1))];
    close(&loss(&ignoring, &[-1, 1]).unwrap(), &[], &[4.0]);
    assert!(loss(&[], &[-1, 1]).is_err() && loss(&[], &[2, 1]).is_err());
    let y = run_all(
        "SoftmaxCrossEntropyLoss",
        13,
        &[],
        &[Some(f32s(&[1, 2], &[0.0, 0.0])), Some(i64s(&[0]))],
        2,
    );
    let y = y.unwrap();
    close(&y[0], &[], &[2f32.ln()]);
    close(&y[1], &[1, 2], &[-2f32.ln(), -2f32.ln()]);
}

#[test]
fn sequences_of_words() {
    let attrs = |skips: i64, indexes: &'static [i64]| {
        vec![
            ("mode", A::S("TF")),
            ("min_gram_length", A::I(1)),
            ("max_gram_length", A::I(2)),
            ("max_skip_count", A::I(skips)),
            ("ngram_counts", A::Is(&[0, 2])),
            ("ngram_indexes", A::Is(indexes)),
            ("pool_int64s", A::Is(&[5, 7, 5, 7])),
        ]
    };
    let count = |skips, indexes| {
        run("TfIdfVectorizer", 9, &attrs(skips, indexes), &[i64s(&[5, 7, 5, 6, 7])])
    };
    close(&count(0, &[0, 1, 2]).unwrap(), &[3], &[2.0, 2.0, 1.0]);
    close(&count(1, &[2, 1, 0]).unwrap(), &[3], &[2.0, 2.0, 2.0]);
    for bad in [&[0, 1][..], &[0, 1, -1], &[0, 1, i64::MAX]] {
        assert!(count(0, bad).is_err(), "{bad:?}");
    }
}

/// Exporters write the choice of whole slices as an index per element, copies of one per slice.
#[test]
fn indices_of_whole_slices() {
    use crate::graph::{Context, passes};
    use crate::import::onnx::OnnxModel;
    use crate::import::onnx::proto::GraphProto;
    use crate::import::onnx::testing::{model, node, tensor, value};

    // Copies of few are made at once, those of many when all is there.
    for width in [2usize, 9000] {
        // Whole slices along the first axis, part of them, along the second of one picture and of several.
        for (axis, dims, wide, at) in [
            (0, [4, 3, width], [2, 3, width], Tensor::from_slice(&[2, 1, 1], &[-1i64, 1])),
            (0, [4, 3, width], [2, 3, width - 1], Tensor::from_slice(&[2, 1, 1], &[-1i64, 1])),
            (1, [1, 3, width], [1, 2, width], Tensor::from_slice(&[1, 2, 1], &[2i64, 0])),
            (1, [4, 3, width], [4, 2, width], Tensor::from_slice(&[1, 2, 1], &[2i64, 0])),
            (2, [4, 3, width], [4, 3, 2], Tensor::from_slice(&[2], &[0i64, -1])),
        ] {
            let (x, at) = (count(&dims), at.unwrap());
            let along = [("axis", A::I(axis))];
            let graph = GraphProto {
                node: vec![
                    node("Expand", &["at", "shape"], &["wide"], &[]),
                    node("GatherElements", &["x", "wide"], &["y"], &along),
                    node("ScatterElements", &["x", "wide", "u"], &["z"], &along),
                ],
                initializer: vec![
                    tensor("at", &at),
                    tensor("shape", &i64s(&wide.map(|d| d as i64))),
                    tensor("x", &x),
                    tensor(
                        "u",
                        &Tensor::from_slice(&wide, &vec![-5f32; wide.iter().product()]).unwrap(),
                    ),
                ],
                output: vec![value("y", DType::F32), value("z", DType::F32)],
                ..Default::default()
            };
            let model = OnnxModel::from_proto(model(18, graph), None).unwrap();
            let mut cx = Context::new();
            let ids = model.instantiate(&mut cx, &[], &[]).unwrap();
            passes::fold_constants(&mut cx, &ids).unwrap();
            let [y, z] = [ids[0], ids[1]].map(|id| cx.constant_value(id).unwrap());
            let x = x.as_slice::<f32>().unwrap();
            let (mut gathered, mut scattered) = (Vec::new(), x.to_vec());
            for (i, j, k) in (0..wide[0])
                .flat_map(|i| (0..wide[1]).flat_map(move |j| (0..wide[2]).map(move |k| (i, j, k))))
            {
                let mut place = [i, j, k];
                let axis = axis as usize;
                let index = at.as_slice::<i64>().unwrap()[place[axis]];
                place[axis] = index.rem_euclid(dims[axis] as i64) as usize;
                let from = (place[0] * dims[1] + place[1]) * dims[2] + place[2];
                gathered.push(x[from]);
                scattered[from] = -5.0;
            }
            close(y, &wide, &gathered);
            close(z, &dims, &scattered);
        }
    }
}
