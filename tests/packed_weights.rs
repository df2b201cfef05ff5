//! Plans of one model for other sizes of its inputs share what was packed of weights: memory does not grow with every
//! size that was met.

use std::sync::Arc;

use tilewright::backend::cpu::{Executor, compute};
use tilewright::graph::ops::binary::Binary;
use tilewright::graph::ops::cast::Cast;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::qconv::QConv;
use tilewright::graph::ops::qmatmul::QMatMul;
use tilewright::graph::ops::requantize::Requantize;
use tilewright::graph::ops::scaled_matmul::ScaledMatMul;
use tilewright::graph::{ConstCache, Context, Op};
use tilewright::{DType, Isa, Tensor};
use tilewright_kernels::template::binary::BinaryOp;

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// What 8 bits make of weights and activations, and back: sums.
fn sums() -> Requantize {
    let (w_zeros, scales) = (Vec::new(), Vec::new());
    let bounds = [i32::MIN, i32::MAX];
    Requantize { x_zero: 3, w_zeros, scales, to: DType::I32, zero: 0, bounds }
}

/// Bytes of packed weights after the plans for each of the inputs. What is dynamically quantised has a zero point and
/// a scale beside it.
fn packed(isa: Isa, op: &Op, weights: &Tensor, inputs: &[(DType, Vec<usize>)]) -> Vec<usize> {
    let cache = Arc::new(ConstCache::default());
    cache.keep(weights.storage());
    let executor = Executor::new(isa, 1).unwrap();
    let plan = |(dtype, dims): &(DType, Vec<usize>)| {
        let mut cx = Context::with_cache(cache.clone());
        let w = cx.constant(weights.clone()).unwrap();
        let x = cx.input("x", *dtype, dims).unwrap();
        let mut operands = vec![x, w];
        if matches!(op, Op::ScaledMatMul(_)) {
            operands.push(cx.input("zero", *dtype, &[]).unwrap());
            operands.push(cx.input("scale", DType::F32, &[]).unwrap());
        }
        let y = cx.op(op.clone(), &operands).unwrap();
        executor.plan(&mut cx, &[y]).unwrap();
        cache.packed_bytes()
    };
    inputs.iter().map(plan).collect()
}

/// A matrix of bytes or f32 that look random.
fn matrix(dtype: DType, dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    let values = (0..count).map(|i| ((i * 40_503) >> 4) as i8);
    match dtype {
        DType::I8 => Tensor::from_slice(dims, &values.collect::<Vec<_>>()),
        _ => Tensor::from_slice(dims, &values.map(f32::from).collect::<Vec<_>>()),
    }
    .unwrap()
}

#[test]
fn large_matrices_are_packed_once_for_any_number_of_rows() {
    let (k, n) = (520, 2100);
    let inputs = |dtype| [1, 2, 3, 5, 17, 40, 200].map(|rows| (dtype, vec![rows, k])).to_vec();
    let floats = matrix(DType::F32, &[k, n]);
    let bytes = matrix(DType::I8, &[k, n]);
    let of_bytes: [Op; 2] = [
        QMatMul { product: MatMul::default(), quant: sums() }.into(),
        ScaledMatMul { scales: vec![0.5], ..ScaledMatMul::default() }.into(),
    ];
    for isa in isas() {
        let list = packed(isa, &MatMul::default().into(), &floats, &inputs(DType::F32));
        assert!(list[0] >= k * n * 4, "{isa}: {list:?}");
        assert!(list.iter().all(|bytes| *bytes == list[0]), "{isa}: {list:?}");
        for op in &of_bytes {
            let list = packed(isa, op, &bytes, &inputs(DType::U8));
            assert!(list[0] >= k * n, "{isa} {op:?}: {list:?}");
            // Where registers hold matrices, many rows have an order of their own.
            let most = if isa == Isa::Amx { 3 } else { 1 };
            assert!(list.iter().all(|bytes| *bytes <= most * list[0]), "{isa} {op:?}: {list:?}");
        }
    }
}

#[test]
fn small_weights_are_packed_in_few_orders() {
    // One for each width of panels, of which there are up to four.
    let few = |isa: Isa, list: &[usize]| {
        let most = if isa == Isa::Amx { 8 } else { 4 };
        assert!(list[0] > 0 && list.iter().all(|n| *n <= most * list[0]), "{isa}: {list:?}");
        let last = list[list.len() - 1];
        assert!(list[list.len() / 2..].iter().all(|n| *n == last), "{isa}: {list:?}");
    };
    let rows: Vec<_> = (1..80).map(|rows| (DType::U8, vec![rows, 64])).collect();
    let product: Op = QMatMul { product: MatMul::default(), quant: sums() }.into();
    let sizes: Vec<_> =
        (1..40).map(|side| (DType::U8, vec![1, 64, side + 2, side * 2 + 1])).collect();
    let matrix = |dims: &[usize]| matrix(DType::I8, dims);
    for isa in isas() {
        few(isa, &packed(isa, &product, &matrix(&[64, 200]), &rows));
        for (window, pads) in [(1, 0), (3, 1)] {
            let conv = Conv { pads: [pads; 4], ..Conv::default() };
            let weights = matrix(&[80, 64, window, window]);
            few(isa, &packed(isa, &QConv { conv, quant: sums() }.into(), &weights, &sizes));
        }
    }
}

#[test]
fn weights_that_were_converted_are_the_same_for_every_plan() {
    const SIDE: usize = 200;
    let halves: Vec<half::f16> =
        (0..SIDE * SIDE).map(|i| half::f16::from_f32((i % 37) as f32 - 18.0)).collect();
    let halves = Tensor::from_slice(&[SIDE, SIDE], &halves).unwrap();
    let results = |cache: &Arc<ConstCache>, rows: usize| {
        cache.keep(halves.storage());
        let mut cx = Context::with_cache(cache.clone());
        let w = cx.constant(halves.clone()).unwrap();
        let w = cx.op(Cast { to: DType::F32 }, &[w]).unwrap();
        let x = cx.input("x", DType::F32, &[rows, SIDE]).unwrap();
        cx.set_value(x, matrix(DType::F32, &[rows, SIDE])).unwrap();
        let product = cx.op(MatMul::default(), &[x, w]).unwrap();
        // Read by the packing of another order, by a step, by what is computed of it: by the last plans only.
        let turned = MatMul { transposed_b: true, ..MatMul::default() };
        let (add, all) = (Binary::new(BinaryOp::Add), rows > 3);
        let more = if all { vec![cx.op(turned, &[x, w]).unwrap()] } else { Vec::new() };
        let row = cx.slice(x, 0, rows - 1, 1, 1).unwrap();
        let more = if all { [more, vec![cx.op(add, &[w, row]).unwrap()]].concat() } else { more };
        let outputs = [vec![product], more].concat();
        let found = compute(&cx, &outputs, Isa::select().unwrap(), 1).unwrap();
        drop(cx);
        cache.release();
        let bytes: Vec<Vec<u8>> = found.iter().map(|t| t.bytes().to_vec()).collect();
        bytes
    };
    let shared = Arc::default();
    for rows in [1, 2, 3, 4, 5, 1] {
        assert!(results(&shared, rows) == results(&Arc::default(), rows), "{rows} rows");
        assert_eq!(shared.folded_bytes(), 0);
    }
}
