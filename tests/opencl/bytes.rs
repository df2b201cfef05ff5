//! Operators on bytes, of all types and with all that is said of zero points and scales: exact.

use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::dequantize::Dequantize;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::pool::{Pool, PoolKind};
use tilewright::graph::ops::qbinary::QBinary;
use tilewright::graph::ops::qconv::QConv;
use tilewright::graph::ops::qmatmul::QMatMul;
use tilewright::graph::ops::qpool::QPool;
use tilewright::graph::ops::quantize::Quantize;
use tilewright::graph::ops::requantize::Requantize;
use tilewright_kernels::QbinaryOp;

use super::grid::{check, full, op, some};
use super::*;

const BYTES: [DType; 2] = [DType::I8, DType::U8];

/// Bytes of all values.
fn bytes(dtype: DType, dims: &[usize], seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    let all: Vec<u8> = (0..count).map(|i| ((i + seed) * 89 % 251 + i / 251) as u8).collect();
    Tensor::from_bytes(dtype, dims, &all).unwrap()
}

fn sums(k: usize) -> Tensor {
    let all: Vec<i32> = (0..k as i32).map(|i| i * 1009 - 5000).collect();
    Tensor::from_slice(&[k], &all).unwrap()
}

/// A number in the range of a type.
fn zero(dtype: DType) -> i32 {
    if dtype == DType::I8 { -3 } else { 131 }
}

/// Ways in which sums of `k` channels become results.
fn endings(x: DType, w: DType, k: usize) -> Vec<Requantize> {
    let each = |v: i32| (0..k as i32).map(|i| v + i % 3).collect::<Vec<i32>>();
    let factors = |n: usize| (0..n).map(|i| 0.0007 + 0.0003 * (i % 5) as f32).collect::<Vec<f32>>();
    let mut all = Vec::new();
    for (to, bounds) in [
        (DType::I8, [-128, 127]),
        (DType::U8, [0, 255]),
        (DType::I8, [-100, 90]),
        (DType::F32, [0, 0]),
        (DType::I32, [0, 0]),
    ] {
        for per_channel in [false, true] {
            let scales = if per_channel { factors(k) } else { factors(1) };
            let w_zeros = if per_channel { each(zero(w)) } else { Vec::new() };
            let is_byte = matches!(to, DType::I8 | DType::U8);
            let scales = if to == DType::I32 { Vec::new() } else { scales };
            let zero_out = if is_byte { zero(to).clamp(bounds[0], bounds[1]) } else { 0 };
            all.push(Requantize { x_zero: zero(x), w_zeros, scales, to, zero: zero_out, bounds });
        }
    }
    all
}

#[test]
fn products_and_windows_of_bytes() {
    let Some(device) = shared() else { return };
    let rows: &[usize] = if full() { &[1, 2, 3, 5, 8, 17, 33] } else { &[1, 5] };
    for (x, w) in BYTES.into_iter().flat_map(|x| BYTES.map(|w| (x, w))) {
        for &m in rows {
            for (n, k) in [(1, 1), (7, 33), (20, 300)] {
                for (i, quant) in endings(x, w, n).into_iter().enumerate() {
                    let (transposed_b, bias) = (i % 2 == 0, i % 3 > 0);
                    let product = MatMul { transposed_b, bias, ..MatMul::default() };
                    let b = if transposed_b { [n, k] } else { [k, n] };
                    let mut src = vec![bytes(x, &[m, k], 1), bytes(w, &b, 2)];
                    src.extend(bias.then(|| sums(n)));
                    let what = format!("{x} {w} {m} {n} {k} {quant:?}");
                    check(&device, &what, 0.0, &src, &op(QMatMul { product, quant }));
                }
            }
        }
        let windows = [([1, 1], 1, 0), ([3, 3], 1, 1), ([3, 2], 2, 1), ([5, 1], 1, 2)];
        for (i, (window, stride, pad)) in some(windows).into_iter().enumerate() {
            for (groups, c, k) in [(1, 5, 6), (3, 2, 4), (7, 1, 1)] {
                for (j, quant) in endings(x, w, groups * k).into_iter().enumerate() {
                    let bias = (i + j) % 3 > 0;
                    let dilation = [1 + usize::from(j % 4 == 3); 2];
                    let (stride, pads) = ([stride; 2], [pad; 4]);
                    let conv = Conv { stride, dilation, pads, groups, bias, ..Conv::default() };
                    let dims = [groups * k, c, window[0], window[1]];
                    let mut src = vec![bytes(x, &[2, groups * c, 11, 9], 1), bytes(w, &dims, 2)];
                    src.extend(bias.then(|| sums(groups * k)));
                    let what = format!("{x} {w} {conv:?} {quant:?}");
                    check(&device, &what, 0.0, &src, &op(QConv { conv, quant }));
                }
            }
        }
    }
}

#[test]
fn bytes_are_added_pooled_and_converted() {
    let Some(device) = shared() else { return };
    for dtype in BYTES {
        for n in [1, 16, 255, 4000] {
            for scales in [[0.02, 0.03, 0.04], [0.5, 0.001, 0.01], [1.0, 1.0, 0.25]] {
                for (other, to, bounds) in [
                    (dtype, dtype, if dtype == DType::I8 { [-128, 127] } else { [0, 255] }),
                    (DType::I8, DType::U8, [100, 230]),
                    (DType::U8, DType::I8, [-7, 101]),
                ] {
                    let zeros = [zero(dtype), zero(other) + 2, zero(to) - 1];
                    let src = [bytes(dtype, &[n], 1), bytes(other, &[n], 77)];
                    for op in [QbinaryOp::Add, QbinaryOp::Mul] {
                        let sum = QBinary { op, scales, zeros, to, bounds };
                        let what = format!("{dtype} {other} {n} {sum:?}");
                        check(&device, &what, 0.0, &src, &self::op(sum));
                    }
                }
            }
        }
        for narrow in [&[2, 5, 1, 1][..], &[3, 4], &[2, 1, 3, 4], &[1, 1, 1, 1], &[2, 5, 1, 4]] {
            for op in [QbinaryOp::Add, QbinaryOp::Mul] {
                let (scales, zeros) = ([0.02, 0.03, 0.01], [zero(dtype); 3]);
                let bounds = if dtype == DType::I8 { [-100, 127] } else { [0, 255] };
                let gate = QBinary { op, scales, zeros, to: dtype, bounds };
                let src = [bytes(dtype, &[2, 5, 3, 4], 1), bytes(dtype, narrow, 77)];
                let what = format!("{dtype} {narrow:?} {gate:?}");
                check(&device, &what, 0.0, &src, &self::op(gate));
            }
        }
        let kinds = [
            PoolKind::Max,
            PoolKind::Average { include_pad: false },
            PoolKind::Average { include_pad: true },
        ];
        for kind in kinds {
            for (window, stride, pads) in [([2, 2], [2, 2], [0; 4]), ([3, 3], [1, 2], [1, 1, 0, 1])]
            {
                for scale in [1.0, 0.37] {
                    let pool = Pool { kind, window, stride, dilation: [1; 2], pads, ceil: false };
                    let pool = QPool { pool, x_zero: zero(dtype), zero: zero(dtype) + 1, scale };
                    let x = bytes(dtype, &[2, 3, 9, 13], 5);
                    check(&device, &format!("{dtype} {pool:?}"), 0.0, &[x], &op(pool));
                }
            }
        }
        // Scales and zero points are constants in every file.
        let constant = |i: usize| i > 0;
        for (axis, extent) in [(None, 1), (Some(0), 3), (Some(1), 5), (Some(2), 7)] {
            let scales: Vec<f32> = (0..extent).map(|i| 0.01 + 0.004 * i as f32).collect();
            let dims: &[usize] = if axis.is_some() { &[extent] } else { &[] };
            let scale = Tensor::from_slice(dims, &scales).unwrap();
            for with_zero in [false, true] {
                let zeros = with_zero.then(|| bytes(dtype, dims, 9));
                let more = || [scale.clone()].into_iter().chain(zeros.clone());
                let src: Vec<Tensor> =
                    [bytes(dtype, &[3, 5, 7], 3)].into_iter().chain(more()).collect();
                let build = op(Dequantize { axis, block: 0 });
                let found = on_device(&device, &src, &constant, &build);
                let what = format!("{dtype} {axis:?} {with_zero}");
                assert_close(&found, &reference(&src, &build), 0.0, &what);
                // Halves between two steps, and what is far outside.
                let mut x: Vec<f32> = (0..105).map(|i| (i as f32 - 50.0) * 0.005).collect();
                (x[0], x[104]) = (1e9, -1e9);
                let x = Tensor::from_slice(&[3, 5, 7], &x).unwrap();
                let src: Vec<Tensor> = [x].into_iter().chain(more()).collect();
                let build = op(Quantize { axis, block: 0, to: dtype });
                let found = on_device(&device, &src, &constant, &build);
                assert_close(&found, &reference(&src, &build), 0.0, &format!("to {what}"));
            }
        }
    }
}
