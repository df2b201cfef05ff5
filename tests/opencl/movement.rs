//! Operators that move or choose elements.

use tilewright::graph::ops::concat::Concat;
use tilewright::graph::ops::cont::Cont;
use tilewright::graph::ops::gather::Gather;
use tilewright::graph::ops::lookup::Lookup;
use tilewright::graph::ops::pad::Pad;
use tilewright::graph::ops::resize::Resize;
use tilewright::graph::ops::select::Select;
use tilewright::{DType, Tensor};

use super::grid::{check, op};
use super::*;

#[test]
fn elements_are_moved() {
    let Some(device) = shared() else { return };
    for dtype in [DType::F32, DType::I8, DType::I64, DType::F16] {
        let dims = [3, 4, 5, 2];
        let bytes: Vec<u8> =
            (0..dtype.bytes_of(120).unwrap()).map(|i| (i * 37 % 251) as u8).collect();
        let x = Tensor::from_bytes(dtype, &dims, &bytes).unwrap();
        for axes in [[0, 2, 1, 3], [3, 2, 1, 0], [1, 0, 3, 2]] {
            check(
                &device,
                &format!("transpose {axes:?}"),
                0.0,
                core::slice::from_ref(&x),
                &|cx, src| {
                    let t = cx.transpose(src[0], &axes).unwrap();
                    cx.op(Cont, &[t]).unwrap()
                },
            );
        }
        check(&device, "slice", 0.0, core::slice::from_ref(&x), &|cx, src| {
            let t = cx.slice(src[0], 2, 1, 2, 2).unwrap();
            cx.op(Cont, &[t]).unwrap()
        });
        let other = Tensor::from_bytes(dtype, &dims, &bytes).unwrap();
        for axis in 0..4 {
            let build = op(Concat { axis });
            check(&device, &format!("concat {axis}"), 0.0, &[x.clone(), other.clone()], &build);
        }
        let value = Tensor::from_bytes(dtype, &[], &bytes[..dtype.bytes_of(1).unwrap()]).unwrap();
        let build = op(Pad { before: vec![1, 0, 2, 0], after: vec![0, 3, 1, 1] });
        check(&device, "pad", 0.0, &[x, value], &build);
    }
}

#[test]
fn elements_are_chosen() {
    let Some(device) = shared() else { return };
    // Indices that a run brings along are the CPU's, which says what is wrong with them.
    let gather = |x: &Tensor, indices: Tensor, axis: usize| {
        let (src, build) = ([x.clone(), indices], op(Gather { axis }));
        let found = on_device(&device, &src, &|i| i == 1, &build);
        assert_close(&found, &reference(&src, &build), 0.0, "gather");
    };
    for dtype in [DType::F32, DType::U8, DType::I64, DType::F16] {
        let elements = |dims: &[usize], seed: usize| {
            let len = dtype.bytes_of(dims.iter().product()).unwrap();
            let bytes: Vec<u8> = (0..len).map(|i| ((i + seed) * 37 % 251) as u8).collect();
            Tensor::from_bytes(dtype, dims, &bytes).unwrap()
        };
        let x = elements(&[3, 4, 5], 0);
        for (axis, indices) in [(0, vec![2, 0, -1]), (1, vec![3, 3, -4, 1, 0]), (2, vec![4])] {
            let indices = Tensor::from_slice(&[indices.len()], &indices).unwrap();
            gather(&x, indices, axis);
        }
        let single = Tensor::from_slice(&[], &[-2i32]).unwrap();
        gather(&x, single, 1);
        for (c, a, b) in [
            (&[3, 4, 5][..], &[3, 4, 5][..], &[3, 4, 5][..]),
            (&[4, 1], &[3, 1, 5], &[]),
            (&[3, 1, 1], &[], &[4, 5]),
        ] {
            let bits: Vec<u8> =
                (0..c.iter().product()).map(|i: usize| (i * i % 3 == 1).into()).collect();
            let bits = Tensor::from_bytes(DType::Bool, c, &bits).unwrap();
            check(&device, "where", 0.0, &[bits, elements(a, 1), elements(b, 2)], &op(Select));
        }
    }
    let table: Box<[u8; 256]> = Box::new(core::array::from_fn(|i| (i * 77 % 253) as u8));
    for (from, to) in [(DType::U8, DType::I8), (DType::I8, DType::U8)] {
        let bytes: Vec<u8> = (0..300).map(|i| (i * 7) as u8).collect();
        let x = Tensor::from_bytes(from, &[3, 100], &bytes).unwrap();
        check(&device, "lookup", 0.0, &[x], &op(Lookup { table: table.clone(), to }));
    }
    for axis in 0..3 {
        let x = tensor(&[3, 4, 5], 1);
        let index = vec![2, 1, 0, 0, u32::MAX, 0, 1, 2];
        let weight = vec![0.25, 0.75, 1.0, 0.0, 0.0, 0.0, -0.5, 1.5];
        let resize = Resize { axis, taps: 2, index, weight, fill: 3.0 };
        check(&device, "resize", 1e-6, core::slice::from_ref(&x), &op(resize.clone()));
        let nearest = Resize { taps: 1, ..resize };
        let nearest = Resize { weight: vec![1.0; 8], ..nearest };
        check(&device, "nearest", 0.0, &[x], &op(nearest));
    }
}
