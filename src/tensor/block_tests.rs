use super::*;

/// Random blocks and their values, from the Python package `gguf`: `tests/block_vectors.py`.
const VECTORS: &[u8] = include_bytes!("../../tests/data/blocks.bin");

const TYPES: [DType; 24] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::MXFP4,
    DType::IQ1_S,
    DType::IQ1_M,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
    DType::TQ1_0,
    DType::TQ2_0,
    DType::Q1_0,
    DType::Q2_0,
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn values_are_those_of_ggml() {
    let mut rest = VECTORS;
    for dtype in TYPES {
        let (blocks, after) = rest.split_at(dtype.bytes_of(512).unwrap());
        let (expected, after) = after.split_at(512 * 4);
        rest = after;
        let mut found = vec![f32::NAN; 512];
        dequantize(dtype, blocks, &mut found).unwrap();
        for (i, (found, expected)) in found.iter().zip(floats(expected)).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{dtype} {i}: {found} {expected}");
        }
    }
    let (values, expected) = rest.split_at(8 * 32 * 4);
    let mut found = vec![0; expected.len()];
    quantize_q8_0(&floats(values), &mut found).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn plain_floats_are_converted_and_integers_refused() {
    let mut out = [0.0; 2];
    dequantize(DType::F16, &[0x00, 0x3c, 0x01, 0x00], &mut out).unwrap();
    assert_eq!(out, [1.0, 2f32.powi(-24)]);
    dequantize(DType::BF16, &[0x80, 0x3f, 0x00, 0xc0], &mut out).unwrap();
    assert_eq!(out, [1.0, -2.0]);
    dequantize(DType::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], &mut out).unwrap();
    assert_eq!(out, [1.0, -2.0]);
    assert_eq!(
        dequantize(DType::I8, &[1, 2], &mut out),
        Err(TensorError::DType { expected: DType::F32, found: DType::I8 })
    );
}

#[test]
fn lengths_must_match() {
    let length = |r: Result<(), TensorError>| matches!(r, Err(TensorError::Length { .. }));
    assert!(length(dequantize(DType::Q4_0, &[0; 18], &mut [0.0; 31])));
    assert!(length(dequantize(DType::Q4_0, &[0; 17], &mut [0.0; 32])));
    assert!(length(dequantize(DType::Q4_K, &[0; 144], &mut [0.0; 32])));
    assert!(length(quantize_q8_0(&[0.0; 33], &mut [0; 34])));
    assert_eq!(dequantize(DType::Q6_K, &[], &mut []), Ok(()));
}

#[test]
fn activations_of_types_with_a_minimum_carry_their_sum() {
    let x: [f32; 32] = core::array::from_fn(|i| i as f32 - 3.0);
    let block = quantize_q8_1(&x);
    // 28 / 127 = 0.220...; the elements are multiples of its inverse.
    let d = 28.0f32 / 127.0;
    assert_eq!(block.d, f16::from_f32(d));
    let q: Vec<i8> = (0..32).map(|i| ((i as f32 - 3.0) * (1.0 / d)).round() as i8).collect();
    assert_eq!(block.q[..], q[..]);
    let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
    assert_eq!(block.s, f16::from_f32(d * sum as f32));
}

#[test]
fn the_largest_of_256_becomes_minus_127() {
    let mut x = [0.0; 256];
    x[7] = 2.0;
    x[16] = -2.0;
    x[17] = 1.0;
    let block = quantize_q8_k(&x);
    assert_eq!((block.d, block.q[7], block.q[16], block.q[17]), (-2.0 / 127.0, -127, 127, -64));
    assert_eq!(block.sums[..3], [-127, 63, 0]);
    let zero = quantize_q8_k(&[0.0; 256]);
    assert_eq!((zero.d, zero.q, zero.sums), (0.0, [0; 256], [0; 16]));
}
