use super::*;

#[test]
fn einsum() {
    let of = |equation: &str, inputs: &[Tensor]| {
        run("Einsum", 12, &[("equation", A::S(equation))], inputs)
    };
    let (a, b) = (count(&[2, 3]), count(&[3, 2]));
    let product = [10.0, 13.0, 28.0, 40.0];
    close(&of("ij,jk->ik", &[a.clone(), b.clone()]).unwrap(), &[2, 2], &product);
    close(&of("ij, jk", &[a.clone(), b.clone()]).unwrap(), &[2, 2], &product);
    close(
        &of("...j,jk->k...", &[a.clone(), b.clone()]).unwrap(),
        &[2, 2],
        &[10.0, 28.0, 13.0, 40.0],
    );
    close(&of("ij->", &[a.clone()]).unwrap(), &[], &[15.0]);
    close(&of("ij->ji", &[a.clone()]).unwrap(), &[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    close(&of("ii->i", &[count(&[2, 2])]).unwrap(), &[2], &[0.0, 3.0]);
    close(&of("i,j->ij", &[count(&[2]), count(&[2])]).unwrap(), &[2, 2], &[0.0, 0.0, 0.0, 1.0]);
    close(
        &of("i,i,i->i", &[count(&[3]), count(&[3]), count(&[3])]).unwrap(),
        &[3],
        &[0.0, 1.0, 8.0],
    );
    // Each of two operands with its axes in any order, and axes of a batch.
    for equation in [
        "ab,cb->ac",
        "ba,bc->ca",
        "abc,dc->dab",
        "abcd,abed->abce",
        "abce,abed->abcd",
        "abcd,aebd->abce",
        "abcd,dce->eab",
        "bac,ac->cb",
        "a,ba->b",
        "abcdef,abcdgf->abcdeg",
    ] {
        let (terms, y) = equation.split_once("->").unwrap();
        let (left, right) = terms.split_once(',').unwrap();
        let extent = |c: char| 2 + usize::from(c as u8 - b'a') % 3;
        let dims = |term: &str| term.chars().map(extent).collect::<Vec<_>>();
        let operands = [count(&dims(left)), count(&dims(right))];
        let letters: Vec<char> = ('a'..='g').filter(|&c| terms.contains(c)).collect();
        let mut want = vec![0.0f32; dims(y).iter().product()];
        let all: usize = letters.iter().map(|&c| extent(c)).product();
        for i in 0..all {
            let at = |term: &str| {
                let (mut rest, mut place) = (i, 0);
                let places: Vec<usize> = letters
                    .iter()
                    .map(|&c| {
                        let own = rest % extent(c);
                        rest /= extent(c);
                        own
                    })
                    .collect();
                for c in term.chars() {
                    let own = letters.iter().position(|&l| l == c).unwrap();
                    place = place * extent(c) + places[own];
                }
                place
            };
            want[at(y)] += (at(left) * at(right)) as f32;
        }
        close(&of(equation, &operands).unwrap(), &dims(y), &want);
    }
    for bad in
        ["ij", "ij,jk->iz", "ij,jk->ii", "ijk,jk->i", "i1,jk", "ij,jk,kl->i", "->", "", ",->"]
    {
        assert!(of(bad, &[a.clone(), b.clone()]).is_err(), "{bad}");
    }
    assert!(of("ij,ij->ij", &[a, b]).is_err());
    let bytes = |v: &[i8]| Tensor::from_slice(&[v.len()], v).unwrap();
    let y = of("i,i->", &[bytes(&[100, 2]), bytes(&[2, 3])]).unwrap();
    assert_eq!(y.as_slice::<i8>().unwrap()[..], [-50]);
}

#[test]
fn quantised_products() {
    let bytes = |dims: &[usize], v: &[u8]| Tensor::from_slice(dims, v).unwrap();
    let (a, b) = (bytes(&[1, 2], &[3, 5]), bytes(&[2, 1], &[2, 4]));
    let zero = |v| bytes(&[], &[v]);
    let y = run("MatMulInteger", 10, &[], &[a.clone(), b.clone(), zero(1), zero(2)]).unwrap();
    assert_eq!(y.as_slice::<i32>().unwrap()[..], [8]);
    let scale = |v| f32s(&[], &[v]);
    let inputs =
        [a.clone(), scale(0.5), zero(1), b.clone(), scale(2.0), zero(2), scale(4.0), zero(10)];
    let y = run("QLinearMatMul", 10, &[], &inputs).unwrap();
    assert_eq!(y.bytes(), [12]);
    let y = run("MatMulInteger", 10, &[], &[a.clone(), b.clone(), bytes(&[3], &[0; 3])]);
    assert!(y.is_err() && run("MatMulInteger", 10, &[], &[count(&[1, 2]), b]).is_err());
    let x = f32s(&[3], &[0.0, 2.0, -1.0]);
    let y = run_all("DynamicQuantizeLinear", 11, &[], &[Some(x)], 3).unwrap();
    assert_eq!(y[0].bytes(), [85, 255, 0]);
    close(&y[1], &[], &[3.0 / 255.0]);
    assert_eq!(y[2].bytes(), [85]);
}

#[test]
fn windows_of_signals() {
    let size = Tensor::from_slice(&[], &[4i64]).unwrap();
    let y = run("HannWindow", 17, &[], &[size.clone()]).unwrap();
    close(&y, &[4], &[0.0, 0.5, 1.0, 0.5]);
    let y = run("HannWindow", 17, &[("periodic", A::I(0))], &[size]).unwrap();
    close(&y, &[4], &[0.0, 0.75, 0.75, 0.0]);
    for size in [-1i64, i64::MAX] {
        let size = Tensor::from_slice(&[], &[size]).unwrap();
        assert!(run("HannWindow", 17, &[], &[size]).is_err());
    }
    let one = |v: i64| Tensor::from_slice(&[], &[v]).unwrap();
    let stft = |step: i64, length: i64| {
        let inputs = [Some(count(&[1, 4, 1])), Some(one(step)), None, Some(one(length))];
        Ok::<_, ImportError>(run_all("STFT", 17, &[], &inputs, 1)?.remove(0))
    };
    close(&stft(2, 2).unwrap(), &[1, 2, 2, 2], &[1.0, 0.0, -1.0, 0.0, 5.0, 0.0, -1.0, 0.0]);
    let flat = [Some(f32s(&[1, 2], &[1.0, 3.0])), Some(one(1)), None, Some(one(2))];
    let flat = run_all("STFT", 17, &[], &flat, 1).unwrap().remove(0);
    close(&flat, &[1, 1, 2, 2], &[4.0, 0.0, -2.0, 0.0]);
    assert!(stft(0, 2).is_err() && stft(1, 5).is_err() && stft(1, -1).is_err());
    let mel = |bins: i64, high: f32| {
        let rate = one(8192);
        run(
            "MelWeightMatrix",
            17,
            &[],
            &[one(bins), one(16), rate, f32s(&[], &[0.0]), f32s(&[], &[high])],
        )
    };
    assert_eq!(mel(8, 4096.0).unwrap().dims(), [9, 8]);
    assert!(mel(8, 1e9).is_err() && mel(i64::MAX, 4096.0).is_err() && mel(8, f32::NAN).is_err());
}

#[test]
fn sampled_pictures() {
    let x = count(&[1, 1, 2, 2]);
    let grid = f32s(&[1, 1, 2, 2], &[-1.0, -1.0, 5.0, 5.0]);
    let sample =
        |attrs: &[(&str, A<'_>)]| run("GridSample", 20, attrs, &[x.clone(), grid.clone()]).unwrap();
    let corners = || ("align_corners", A::I(1));
    close(&sample(&[corners()]), &[1, 1, 1, 2], &[0.0, 0.0]);
    close(&sample(&[corners(), ("padding_mode", A::S("border"))]), &[1, 1, 1, 2], &[0.0, 3.0]);
    // The border is what each element that the filter reads is moved to, not the position.
    let row = f32s(&[1, 1, 1, 4], &[0.0, 1.0, 0.0, 0.0]);
    let at = f32s(&[1, 1, 2, 2], &[-1.2, 0.0, -1e30, 0.0]);
    let cubic = [corners(), ("mode", A::S("cubic")), ("padding_mode", A::S("border"))];
    let y = run("GridSample", 20, &cubic, &[row, at]).unwrap();
    close(&y, &[1, 1, 1, 2], &[-0.11025, 0.0]);
    let boxes = f32s(&[1, 4], &[0.0, 0.0, 2.0, 2.0]);
    let align = |picture: i64, boxes: &Tensor| {
        run("RoiAlign", 16, &[], &[x.clone(), boxes.clone(), i64s(&[picture])])
    };
    close(&align(0, &boxes).unwrap(), &[1, 1, 1, 1], &[1.5]);
    assert!(align(1, &boxes).is_err());
    assert!(align(0, &f32s(&[1, 4], &[0.0, 0.0, 1e30, 1e30])).is_err());
    let boxes = f32s(&[1, 5], &[0.0, 0.0, 0.0, 1.0, 1.0]);
    let shape = [("pooled_shape", A::Is(&[1, 2]))];
    let y = run("MaxRoiPool", 7, &shape, &[x.clone(), boxes]).unwrap();
    close(&y, &[1, 1, 1, 2], &[2.0, 3.0]);
    let y = run("MaxRoiPool", 7, &shape, &[x, f32s(&[1, 5], &[2.0, 0.0, 0.0, 1.0, 1.0])]);
    assert!(y.is_err());
}

#[test]
fn random_numbers_have_limits() {
    assert!(run("RandomNormal", 22, &[("shape", A::Is(&[i64::MAX]))], &[]).is_err());
    assert!(run("RandomNormal", 22, &[("shape", A::Is(&[-1]))], &[]).is_err());
    assert!(run("Multinomial", 22, &[("sample_size", A::I(-1))], &[count(&[1, 2])]).is_err());
    let y = run("Multinomial", 22, &[("sample_size", A::I(5))], &[f32s(&[1, 2], &[0.0, 99.0])]);
    assert_eq!(y.unwrap().as_slice::<i32>().unwrap()[..], [1; 5]);
}

#[test]
fn weights_of_four_bits_are_for_dequantisation_only() {
    use crate::graph::Context;
    use crate::import::onnx::OnnxModel;
    use crate::import::onnx::proto::{GraphProto, TensorProto};
    use crate::import::onnx::testing::{model, node, tensor, value};
    let four = |name: &str, dims: &[i64], raw: &'static [u8]| TensorProto {
        name: Some(name.into()),
        data_type: Some(22),
        dims: dims.to_vec(),
        raw_data: Some(raw.into()),
        ..Default::default()
    };
    let graph = |more: &str| GraphProto {
        node: vec![
            node("DequantizeLinear", &["w", "s", "z"], &["y"], &[("axis", A::I(0))]),
            node(more, &["w"], &["u"], &[]),
        ],
        initializer: vec![
            four("w", &[2, 2], &[0x8f, 0x07]),
            four("z", &[2], &[0x10]),
            tensor("s", &f32s(&[2], &[1.0, 0.5])),
        ],
        output: vec![value("y", DType::F32)],
        ..Default::default()
    };
    let mut g = graph("Identity");
    g.node.truncate(1);
    let m = OnnxModel::from_proto(model(21, g), None).unwrap();
    let mut cx = Context::new();
    let y = m.instantiate(&mut cx, &[], &[]).unwrap()[0];
    close(cx.constant_value(y).unwrap(), &[2, 2], &[-1.0, -8.0, 3.0, -0.5]);
    let e = OnnxModel::from_proto(model(21, graph("Identity")), None).unwrap_err();
    assert!(e.to_string().contains("int4"), "{e}");
}

/// A branch elsewhere in the graph does not matter; one that reads them as numbers does.
#[test]
#[cfg(feature = "ops-control")]
fn weights_of_four_bits_beside_and_in_branches() {
    use crate::graph::Context;
    use crate::import::onnx::OnnxModel;
    use crate::import::onnx::proto::{AttributeProto, GraphProto, TensorProto};
    use crate::import::onnx::testing::{model, node, tensor, value};
    use prost::Message;
    let load = |inside: &str, outside: bool| {
        let branch = GraphProto {
            node: vec![node(inside, &["w", "s"], &["v"], &[])],
            output: vec![value("v", DType::F32)],
            ..Default::default()
        };
        let mut choice = node("If", &["yes"], &["y"], &[]);
        choice.attribute = ["then_branch", "else_branch"]
            .map(|name| AttributeProto {
                name: Some(name.into()),
                r#type: Some(5),
                g: Some(branch.encode_to_vec().into()),
                ..Default::default()
            })
            .to_vec();
        let mut nodes = vec![choice];
        if outside {
            nodes.push(node("Identity", &["w"], &["u"], &[]));
        }
        let graph = GraphProto {
            node: nodes,
            initializer: vec![
                TensorProto {
                    name: Some("w".into()),
                    data_type: Some(22),
                    dims: vec![3],
                    raw_data: Some((&[0x8f, 0x07][..]).into()),
                    ..Default::default()
                },
                tensor("s", &f32s(&[], &[0.5])),
                tensor("yes", &Tensor::zeros(DType::Bool, &[]).unwrap()),
            ],
            output: vec![value("y", DType::F32)],
            ..Default::default()
        };
        OnnxModel::from_proto(model(21, graph), None)
    };
    let mut cx = Context::new();
    let y = load("DequantizeLinear", false).unwrap().instantiate(&mut cx, &[], &[]).unwrap()[0];
    close(cx.constant_value(y).unwrap(), &[3], &[-0.5, -4.0, 3.5]);
    for (inside, outside) in [("DequantizeLinear", true), ("Mul", false)] {
        let e = load(inside, outside).unwrap_err();
        assert!(e.to_string().contains("int4"), "{inside}: {e}");
    }
}

/// A row of four numbers in a block of 32 may be of four bytes or of four nibbles: the type in the file says it.
#[test]
fn tables_of_four_bits_with_short_rows() {
    use crate::graph::Context;
    use crate::import::onnx::OnnxModel;
    use crate::import::onnx::proto::{GraphProto, TensorProto};
    use crate::import::onnx::testing::{model, node, tensor, value};
    let attrs = [("bits", A::I(4)), ("block_size", A::I(32))];
    let mut look_up = node("GatherBlockQuantized", &["w", "at", "s"], &["y"], &attrs);
    look_up.domain = Some("com.microsoft".into());
    let graph = GraphProto {
        node: vec![look_up],
        initializer: vec![
            TensorProto {
                name: Some("w".into()),
                data_type: Some(21),
                dims: vec![2, 4],
                raw_data: Some((&[0x10, 0x32, 0x54, 0x76][..]).into()),
                ..Default::default()
            },
            tensor("at", &i64s(&[1])),
            tensor("s", &f32s(&[2, 1], &[1.0, 0.5])),
        ],
        output: vec![value("y", DType::F32)],
        ..Default::default()
    };
    let mut proto = model(21, graph);
    proto.opset_import.push(crate::import::onnx::proto::OperatorSetIdProto {
        domain: Some("com.microsoft".into()),
        version: Some(1),
    });
    let m = OnnxModel::from_proto(proto, None).unwrap();
    let mut cx = Context::new();
    let y = m.instantiate(&mut cx, &[], &[]).unwrap()[0];
    close(cx.constant_value(y).unwrap(), &[1, 4], &[2.0, 2.5, 3.0, 3.5]);
}

#[test]
fn pictures_of_bytes_are_resampled_and_rounded() {
    let linear = [("mode", A::S("linear")), ("coordinate_transformation_mode", A::S("asymmetric"))];
    let of = |x: Tensor| {
        let inputs = [Some(x), None, Some(f32s(&[1], &[2.0]))];
        run_all("Resize", 19, &linear, &inputs, 1).unwrap().remove(0)
    };
    let y = of(Tensor::from_slice(&[2], &[10u8, 255]).unwrap());
    assert_eq!(y.bytes(), [10, 132, 255, 255]);
    let y = of(Tensor::from_slice(&[2], &[0.0f64, 1e-9]).unwrap());
    assert_eq!(y.as_slice::<f64>().unwrap()[..], [0.0, 0.5e-9, 1e-9, 1e-9]);
}
