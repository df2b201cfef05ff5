//! Operators of `com.microsoft` in sizes that do not fit; `tests/onnx_contrib.py` compares what fits.

use super::*;

type Attrs<'a> = Vec<(&'a str, A<'a>)>;

fn ms(op: &str, attrs: &[(&str, A<'_>)], inputs: &[Tensor]) -> Result<Tensor, ImportError> {
    let inputs: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
    Ok(run_of("com.microsoft", op, 1, attrs, &inputs, 1)?.remove(0))
}

fn u8s(dims: &[usize]) -> Tensor {
    let count = u8::try_from(dims.iter().product::<usize>()).unwrap();
    Tensor::from_slice(dims, &(0..count).collect::<Vec<u8>>()).unwrap()
}

fn i32s(dims: &[usize], v: &[i32]) -> Tensor {
    Tensor::from_slice(dims, v).unwrap()
}

#[test]
fn attention_of_bytes() {
    let x = Tensor::from_slice(&[1, 1, 2], &[3u8, 5]).unwrap();
    let w = Tensor::from_slice(&[2, 3], &[1i8, 0, 1, 0, 1, 1]).unwrap();
    let (bias, scale) = (f32s(&[3], &[0.0, 0.0, 0.25]), f32s(&[], &[0.5]));
    let all = |attrs: &[(&str, A<'_>)], change: &dyn Fn(&mut Vec<Option<Tensor>>)| {
        let zero = Tensor::from_slice(&[], &[1u8]).unwrap();
        let given = [&x, &w, &bias, &scale, &scale].map(|t| Some(t.clone()));
        let mut inputs = given.to_vec();
        inputs.extend([None, Some(zero), None, None]);
        change(&mut inputs);
        run_of("com.microsoft", "QAttention", 1, attrs, &inputs, 1)
    };
    let one = [("num_heads", A::I(1))];
    // One token sees itself alone, so that values are the result: (2 + 4) * 0.25 + 0.25.
    close(&all(&one, &|_| {}).unwrap()[0], &[1, 1, 1], &[1.75]);
    for heads in [0, 2, -1, i64::MAX] {
        assert!(all(&[("num_heads", A::I(heads))], &|_| {}).is_err(), "{heads}");
    }
    for (i, bad) in [
        (0, u8s(&[1, 2])),
        (1, u8s(&[3, 3])),
        (1, u8s(&[2, 4])),
        (1, f32s(&[2, 3], &[0.0; 6])),
        (2, f32s(&[4], &[0.0; 4])),
        (4, f32s(&[4], &[0.0; 4])),
        (5, i32s(&[3], &[1, 1, 1])),
        (5, i32s(&[1, 1, 1, 2], &[1, 1])),
        (5, i32s(&[1, 1, 0, 0], &[])),
        (6, Tensor::from_slice(&[], &[1i8]).unwrap()),
        (8, f32s(&[1, 1, 1, 1, 1], &[0.0])),
        (8, f32s(&[2, 1, 2, 1, 1], &[0.0; 4])),
    ] {
        let change = |inputs: &mut Vec<Option<Tensor>>| inputs[i] = Some(bad.clone());
        assert!(all(&one, &change).is_err(), "input {i} {:?}", bad.dims());
    }
}

#[test]
fn packed_heads() {
    let heads = [("num_heads", A::I(2))];
    let run = |dims: &[usize]| ms("MultiHeadAttention", &heads, &[count(dims)]);
    assert_eq!(run(&[1, 1, 2, 3, 2]).unwrap().dims(), [1, 1, 4]);
    for bad in [&[1, 1, 2, 2, 2][..], &[1, 1, 3, 3, 2], &[1, 2, 6], &[1, 1, 12, 1]] {
        assert!(run(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn tables_of_few_bits() {
    let op = "GatherBlockQuantized";
    let attrs = |bits: i64, block: i64, gather: i64, axis: i64| -> Attrs<'_> {
        let names = ["bits", "block_size", "gather_axis", "quantize_axis"];
        names.into_iter().zip([bits, block, gather, axis].map(A::I)).collect()
    };
    let (data, at) = (u8s(&[2, 16]), i64s(&[1]));
    let scales = f32s(&[2, 2], &[1.0, 2.0, 0.5, 1.0]);
    let y = ms(op, &attrs(4, 16, 0, 1), &[data.clone(), at.clone(), scales.clone()]).unwrap();
    // Row 1 begins with byte 16: numbers 0 and 1, of which 8 is the middle.
    let (dims, values) = parts(&y);
    assert_eq!((dims, &values[..3]), (vec![1, 32], &[-4.0, -3.5, -3.5][..]));
    for (attrs, data, scales) in [
        (attrs(4, 0, 0, 1), &data, &scales),
        (attrs(4, -1, 0, 1), &data, &scales),
        (attrs(4, 16, 1, 1), &data, &scales),
        (attrs(4, 16, 0, 2), &data, &scales),
        (attrs(4, 16, 0, 0), &data, &scales),
        (attrs(2, 16, 0, 1), &data, &scales),
        (attrs(8, 16, 0, 1), &data, &scales),
        (attrs(4, i64::MAX, 0, 1), &data, &scales),
        (attrs(4, 16, 0, 1), &u8s(&[]), &scales),
        (attrs(4, 16, 0, 1), &data, &f32s(&[2, 3], &[1.0; 6])),
        (attrs(4, 16, 0, 1), &data, &f32s(&[1, 2], &[1.0; 2])),
        // Of 32 numbers in 4 bits or of 16 in 8: one block in both cases.
        (attrs(4, 64, 0, 1), &data, &f32s(&[2, 1], &[1.0; 2])),
    ] {
        assert!(
            ms(op, &attrs, &[data.clone(), at.clone(), scales.clone()]).is_err(),
            "{:?}",
            scales.dims()
        );
    }
    let outside = [data, i64s(&[2]), scales];
    assert!(ms(op, &attrs(4, 16, 0, 1), &outside).is_err());
}

#[test]
fn weights_in_codes_and_groups() {
    let attrs = |n: i64, k: i64, block: i64| -> Attrs<'_> {
        let names = ["N", "K", "block_size", "quant_type"];
        names.into_iter().zip([n, k, block, 1].map(A::I)).collect()
    };
    let bnb = [f32s(&[1, 4], &[1.0; 4]), u8s(&[4]), f32s(&[1], &[1.0])];
    assert!(ms("MatMulBnb4", &attrs(2, 4, 16), &bnb).is_ok());
    for (n, k, block) in [(3, 4, 16), (2, 4, 0), (2, 4, -1), (i64::MAX, i64::MAX, 16), (-2, 4, 16)]
    {
        assert!(ms("MatMulBnb4", &attrs(n, k, block), &bnb).is_err(), "{n} {k} {block}");
    }
    let run = |groups: &[i32], n: i64, k: i64, block: i64| {
        let names = ["N", "K", "block_size"];
        let attrs: Attrs<'_> = names.into_iter().zip([n, k, block].map(A::I)).collect();
        let given = [f32s(&[1, 4], &[1.0; 4]), u8s(&[1, 2, 1]), f32s(&[2], &[1.0, 2.0])];
        let mut inputs = given.map(Some).to_vec();
        inputs.extend([None, Some(i32s(&[groups.len()], groups))]);
        run_of("com.microsoft", "MatMulNBits", 1, &attrs, &inputs, 1)
    };
    assert_eq!(parts(&run(&[0, 1, 1, 0], 1, 4, 2).unwrap()[0]).1, [-8.0 - 16.0 - 14.0 - 8.0]);
    assert!(run(&[0, 1, 1], 1, 4, 2).is_err());
    assert!(run(&[0, 1, 2, 0], 1, 4, 2).is_err());
    for (n, k, block) in [(1, 4, 0), (1, 4, 3), (0, i64::MAX, 1), (i64::MAX, 4, 2), (1, -4, 2)] {
        assert!(run(&[0, 1, 1, 0], n, k, block).is_err(), "{n} {k} {block}");
    }
    // Blocks of 32, which are multiplied as they are.
    let whole = |x: &[usize], scales: usize, bias: usize, accuracy: i64| {
        let names = ["N", "K", "block_size", "accuracy_level"];
        let attrs: Attrs<'_> = names.into_iter().zip([1, 64, 32, accuracy].map(A::I)).collect();
        let x = f32s(x, &vec![1.0; x.iter().product()]);
        let given = [x, u8s(&[1, 2, 16]), f32s(&[scales], &vec![0.5; scales])];
        let mut inputs = given.map(Some).to_vec();
        inputs.extend([None, None, Some(f32s(&[bias], &vec![1.0; bias]))]);
        run_of("com.microsoft", "MatMulNBits", 1, &attrs, &inputs, 1)
    };
    for accuracy in [0, 4] {
        assert_eq!(whole(&[2, 3, 64], 2, 1, accuracy).unwrap()[0].dims(), [2, 3, 1]);
        assert_eq!(whole(&[0, 64], 2, 1, accuracy).unwrap()[0].dims(), [0, 1]);
        for x in [&[2, 63][..], &[2, 0], &[0, 63], &[], &[128]] {
            assert!(whole(x, 2, 1, accuracy).is_err(), "{x:?}");
        }
        assert!(whole(&[64], 3, 1, accuracy).is_err() && whole(&[64], 2, 2, accuracy).is_err());
    }
}

#[test]
fn pictures_of_other_layouts() {
    let x = count(&[1, 2, 2, 4]);
    let (four, groups) =
        (f32s(&[4], &[1.0; 4]), |n| [("groups", A::I(n)), ("activation", A::I(0))]);
    let norm = |n, affine: &Tensor| {
        ms("GroupNorm", &groups(n), &[x.clone(), affine.clone(), affine.clone()])
    };
    assert!(norm(2, &four).is_ok());
    assert!(norm(3, &four).is_err() && norm(0, &four).is_err() && norm(-1, &four).is_err());
    assert!(norm(2, &f32s(&[2], &[1.0; 2])).is_err());
    let skip = |skip: Tensor, bias: Tensor| {
        ms("SkipGroupNorm", &groups(2), &[x.clone(), four.clone(), four.clone(), skip, bias])
    };
    assert!(skip(f32s(&[1, 4], &[1.0; 4]), four.clone()).is_ok());
    assert!(skip(f32s(&[2, 4], &[1.0; 8]), four.clone()).is_err());
    assert!(skip(f32s(&[1, 4], &[1.0; 4]), count(&[1, 4])).is_err());
    assert!(ms("BiasSplitGelu", &[], &[count(&[2, 3]), f32s(&[3], &[0.0; 3])]).is_err());
    assert!(ms("BiasAdd", &[], &[count(&[2]), count(&[3, 2]), count(&[2])]).is_err());
    assert!(ms("NhwcConv", &[], &[x.clone(), count(&[1, 1, 1, 4])]).is_ok());
    assert!(ms("NhwcConv", &[], &[x.clone(), count(&[1, 4, 1, 1])]).is_err());
    assert!(ms("NhwcConv", &[], &[count(&[1, 2, 4]), count(&[1, 1, 4])]).is_err());
    let crop = |size: &[i32], boxes: &[usize], batch: &[i32]| {
        let boxes = f32s(boxes, &vec![0.5; boxes.iter().product()]);
        let batch = i32s(&[batch.len()], batch);
        ms("CropAndResize", &[], &[x.clone(), boxes, batch, i32s(&[size.len()], size)])
    };
    assert_eq!(crop(&[2, 0], &[1, 4], &[0]).unwrap().dims(), [1, 2, 2, 0]);
    assert!(crop(&[2, 2, 2], &[1, 4], &[0]).is_err() && crop(&[-1, 2], &[1, 4], &[0]).is_err());
    assert!(crop(&[2, 2], &[1, 5], &[0]).is_err() && crop(&[2, 2], &[2, 4], &[0]).is_err());
    assert!(crop(&[2, 2], &[1, 4], &[1]).is_err());
    assert!(crop(&[i32::MAX, i32::MAX], &[1, 4], &[0]).is_err());
    assert!(ms("ExpandDims", &[], &[x.clone(), i32s(&[], &[5])]).is_err());
    assert!(ms("ExpandDims", &[], &[x, i32s(&[2], &[0, 1])]).is_err());
    assert!(ms("CDist", &[], &[count(&[2, 3]), count(&[2, 2])]).is_err());
    assert!(ms("Inverse", &[], &[count(&[2, 3])]).is_err());
}

#[test]
fn experts() {
    let (x, scores) = (count(&[2, 2]), f32s(&[2, 3], &[0.0, 1.0, 2.0, 2.0, 1.0, 0.0]));
    let w = f32s(&[3, 2, 2], &[1.0, 0.0, 0.0, 1.0].repeat(3));
    let run = |k: i64, x: &Tensor, w: &Tensor| {
        let k = [("k", A::I(k)), ("normalize_routing_weights", A::I(1))];
        let inputs =
            [Some(x), Some(&scores), Some(w), None, Some(w)].map(Option::<&Tensor>::cloned);
        run_of("com.microsoft", "MoE", 1, &k, &inputs, 1)
    };
    // All experts change nothing.
    for k in 1..=3 {
        close(&run(k, &x, &w).unwrap()[0], &[2, 2], &[0.0, 1.0, 2.0, 3.0]);
    }
    for k in [0, 4, -1] {
        assert!(run(k, &x, &w).is_err(), "{k}");
    }
    assert!(run(1, &count(&[3, 2]), &w).is_err());
    assert!(run(1, &count(&[2, 3]), &w).is_err());
    assert!(run(1, &x, &count(&[2, 2, 2])).is_err());
    assert!(run(1, &x, &count(&[3, 4])).is_err());
}
