//! Copies, and choices of what is copied.

use super::elements::joined;
use super::{Arg, Call, Lower, Lowered, Result, args, ints};
use crate::backend::opencl::programs::COPY;
use crate::graph::ops::concat::Concat;
use crate::graph::ops::elements::position;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::lookup::Lookup;
use crate::graph::ops::pad::Pad;
use crate::tensor::DType;

/// Work-items of a group of copies.
const GROUP: usize = 64;

/// Dimensions that the kernel walks.
const LOOPS: usize = 6;

/// The kernels' type for elements of so many bytes.
fn word(dtype: DType) -> Option<(&'static str, usize)> {
    if !dtype.is_plain() {
        return None;
    }
    let bytes = dtype.block_bytes();
    let name = match bytes {
        1 => "uchar",
        2 => "ushort",
        4 => "uint",
        8 => "ulong",
        _ => return None,
    };
    Some((name, bytes))
}

/// A copy of elements: extents with the strides of both sides, in elements, slowest first. `shift` is where
/// the result begins.
fn copy(
    cx: &Lower<'_>,
    from: Arg,
    shift: usize,
    dims: &[usize],
    x: &[usize],
    y: &[usize],
) -> Option<Call> {
    let (name, _) = word(cx.dst.dtype)?;
    let mut loops: Vec<[usize; 3]> = Vec::new();
    for ((&d, &x), &y) in dims.iter().zip(x).zip(y) {
        match loops.last_mut() {
            _ if d == 1 => {}
            Some(last) if last[1] == x * d && last[2] == y * d => *last = [last[0] * d, x, y],
            _ => loops.push([d, x, y]),
        }
    }
    let missing = LOOPS.checked_sub(loops.len())?;
    let part = |which: usize, absent: usize| {
        let mut all = [absent; LOOPS];
        loops.iter().enumerate().for_each(|(i, l)| all[missing + i] = l[which]);
        all
    };
    let dims = part(0, 1);
    let (d, x, y) = (ints(dims)?, ints(part(1, 0))?, ints(part(2, 0))?);
    let (global, local) = cx.spread([dims[5], dims[4], dims[..4].iter().product()], GROUP);
    let args = args![[from, Arg::Dst, Arg::Int(i32::try_from(shift).ok()?)], d, x, y];
    let definitions = format!("{} -DT={name}", cx.vec(1));
    Some(Call { family: COPY, definitions, kernel: "copy", args, global, local })
}

/// Strides of a dense tensor, in elements.
fn dense(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}

pub(super) fn cont(cx: &Lower<'_>) -> Result {
    let Some((_, bytes)) = word(cx.dst.dtype) else { return Ok(None) };
    let (dims, strides) = (cx.shapes[0].dims(), cx.shapes[0].strides());
    if strides.iter().zip(&dims).any(|(s, d)| *d > 1 && !s.is_multiple_of(bytes)) {
        return Ok(None);
    }
    let x: Vec<usize> = strides.iter().map(|s| s / bytes).collect();
    Ok(copy(cx, Arg::Src(0), 0, &dims, &x, &dense(&dims)).map(Lowered::from))
}

pub(super) fn concat(op: &Concat, cx: &Lower<'_>) -> Result {
    let y = dense(&cx.dst.dims);
    let (mut at, mut calls) = (0, Vec::new());
    for (i, src) in cx.src.iter().enumerate() {
        if src.elements() > 0 {
            let shift = at * y[op.axis];
            let Some(call) = copy(cx, Arg::Src(i), shift, &src.dims, &dense(&src.dims), &y) else {
                return Ok(None);
            };
            calls.push(call);
        }
        at += src.dims[op.axis];
    }
    Ok(Some(calls.into()))
}

pub(super) fn pad(op: &Pad, cx: &Lower<'_>) -> Result {
    let (Some((name, _)), Some([n])) = (word(cx.dst.dtype), ints([cx.dst.elements()])) else {
        return Ok(None);
    };
    let (global, local) = cx.spread([cx.dst.elements(), 1, 1], GROUP);
    let args = vec![Arg::Src(1), Arg::Dst, n];
    let definitions = format!("{} -DT={name}", cx.vec(1));
    let fill = Call { family: COPY, definitions, kernel: "fill", args, global, local };
    let (x, y) = (dense(&cx.src[0].dims), dense(&cx.dst.dims));
    if cx.src[0].elements() == 0 {
        return Ok(Some(fill.into()));
    }
    let shift = op.before.iter().zip(&y).map(|(before, step)| before * step).sum();
    let inside = copy(cx, Arg::Src(0), shift, &cx.src[0].dims, &x, &y);
    Ok(inside.map(|inside| vec![fill, inside].into()))
}

/// Slices along an axis by indices that are known while planning. What a run knows only then might not fit.
pub(super) fn gather(op: &Gather, cx: &Lower<'_>) -> Result {
    let (Some((name, _)), Some(indices)) = (word(cx.dst.dtype), cx.values[1]) else {
        return Ok(None);
    };
    let (dims, extent) = (&cx.src[0].dims, cx.src[0].dims[op.axis]);
    let place = |i: i64| position("gather", i, extent).ok().and_then(|i| i32::try_from(i).ok());
    let places: Option<Vec<i32>> = match indices.dtype() {
        DType::I32 => indices.as_slice::<i32>()?.iter().map(|&i| place(i.into())).collect(),
        _ => indices.as_slice::<i64>()?.iter().map(|&i| place(i)).collect(),
    };
    let Some(places) = places else { return Ok(None) };
    let [outer, inner]: [usize; 2] =
        [&dims[..op.axis], &dims[op.axis + 1..]].map(|d| d.iter().product());
    let row = places.len() * inner;
    let Some(sizes) = ints([outer, extent, inner, row]) else { return Ok(None) };
    let memory = Arg::Memory(cx.upload(&places)?);
    let args = args![[Arg::Src(0), memory, Arg::Dst], sizes];
    let (global, local) = cx.spread([row, outer, 1], GROUP);
    let definitions = format!("{} -DT={name}", cx.vec(1));
    Ok(Some(Call { family: COPY, definitions, kernel: "gather", args, global, local }.into()))
}

pub(super) fn select(cx: &Lower<'_>) -> Result {
    let shapes = joined(&cx.dst.dims, [0, 1, 2].map(|i| &cx.src[i].dims[..]));
    let (Some((name, _)), Some((dims, steps))) = (word(cx.dst.dtype), shapes) else {
        return Ok(None);
    };
    let [c, a, b] = steps.map(ints);
    let (Some(d), Some(c), Some(a), Some(b)) = (ints(dims), c, a, b) else { return Ok(None) };
    let args = args![[Arg::Src(0), Arg::Src(1), Arg::Src(2), Arg::Dst], d, c, a, b];
    let (global, local) = cx.spread([dims[3], dims[2], dims[0] * dims[1]], GROUP);
    let definitions = format!("{} -DT={name}", cx.vec(1));
    Ok(Some(Call { family: COPY, definitions, kernel: "choose", args, global, local }.into()))
}

pub(super) fn lookup(op: &Lookup, cx: &Lower<'_>) -> Result {
    let n = cx.dst.elements();
    let Some([n_arg]) = ints([n]) else { return Ok(None) };
    let table = Arg::Memory(cx.upload(&op.table[..])?);
    let args = vec![Arg::Src(0), table, Arg::Dst, n_arg];
    let (global, local) = cx.spread([n, 1, 1], GROUP);
    let definitions = format!("{} -DT=uchar", cx.vec(1));
    Ok(Some(Call { family: COPY, definitions, kernel: "look_up", args, global, local }.into()))
}
