//! Rows that become numbers or other rows.

use tilewright_kernels::template::reduce::ReduceOp;

use super::{Arg, Call, Lower, Lowered, Result, args, ints, spread};
use crate::backend::opencl::programs::{BEST, ROWS};
use crate::graph::ops::best::Best;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::reduce::Reduce;
use crate::graph::ops::resize::Resize;
use crate::graph::ops::softmax::Softmax;

/// Work-items of a group whose rows are theirs alone.
const GROUP: usize = 8;

fn definitions(lanes: usize, vec: usize) -> String {
    format!("-DVEC={vec} -DLANES={lanes}")
}

/// A kernel over rows of `axis` elements that lie `inner` apart. Few long rows are shared by work-items, where those
/// of a group run in step; of many, each has one.
fn over_rows(
    cx: &Lower<'_>,
    kernel: &'static str,
    args: Vec<Arg>,
    [outer, axis, inner]: [usize; 3],
) -> Call {
    let shape = cx.shared.shape;
    let share =
        shape.lanes > 1 && axis >= shape.lanes && outer * inner < cx.shared.info.enough_items();
    let lanes = if share { shape.lanes } else { 1 };
    let (global, local) = match lanes {
        1 => cx.spread([inner, outer, 1], GROUP),
        _ => ([inner * lanes, outer, 1], Some([lanes, 1, 1])),
    };
    Call { family: ROWS, definitions: definitions(lanes, shape.vec), kernel, args, global, local }
}

pub(super) fn softmax(op: &Softmax, cx: &Lower<'_>) -> Result {
    let dims = &cx.src[0].dims;
    let (outer, inner): (usize, usize) =
        (dims[..op.axis].iter().product(), dims[op.axis + 1..].iter().product());
    let sizes = ints([outer, dims[op.axis], inner]).filter(|_| cx.all_f32());
    let Some(sizes) = sizes else { return Ok(None) };
    let args = args![
        [Arg::Src(0), Arg::Dst],
        sizes,
        [Arg::Int(op.log.into()), Arg::Int(op.guarded.into())]
    ];
    Ok(Some(over_rows(cx, "softmax", args, [outer, dims[op.axis], inner]).into()))
}

pub(super) fn norm(op: &Norm, cx: &Lower<'_>) -> Result {
    if !cx.all_f32() {
        return Ok(None);
    }
    let dims = &cx.src[0].dims;
    let (rows, len): (usize, usize) =
        (dims[..op.axis].iter().product(), dims[op.axis..].iter().product());
    let (groups, parts) = match cx.src.get(1) {
        None => (1, 0),
        Some(scale) if op.by_parts => (scale.dims[0], scale.dims[1]),
        Some(_) => (1, len),
    };
    let has_bias = cx.src.len() > 2;
    let Some(sizes) = ints([len, groups, parts]) else { return Ok(None) };
    let operand = |i: usize| if i < cx.src.len() { Arg::Src(i) } else { Arg::Absent };
    let lanes = cx.shared.shape.lanes;
    let args = args![
        [Arg::Src(0), operand(1), operand(2), Arg::Dst, Arg::Local(lanes * size_of::<f32>())],
        sizes,
        [
            Arg::Int(has_bias.into()),
            Arg::Int((op.op == NormOp::Layer).into()),
            Arg::Float(op.epsilon)
        ]
    ];
    let (global, local) = ([lanes, rows, 1], Some([lanes, 1, 1]));
    let definitions = definitions(lanes, cx.vector_for(len));
    Ok(Some(Call { family: ROWS, definitions, kernel: "norm", args, global, local }.into()))
}

pub(super) fn reduce(op: &Reduce, cx: &Lower<'_>) -> Result {
    let kind = match op.op {
        ReduceOp::Sum => 0,
        ReduceOp::Mean => 1,
        ReduceOp::Prod => 2,
        ReduceOp::Max => 3,
        ReduceOp::Min => 4,
        ReduceOp::L1 => 5,
        ReduceOp::L2 => 6,
        ReduceOp::SumSquare => 7,
        _ => return Ok(None),
    };
    let dims = &cx.src[0].dims;
    let (outer, rest) = dims.split_at(op.axis);
    let (axis, inner) = rest.split_at(op.count);
    let [outer, axis, inner]: [usize; 3] = [outer, axis, inner].map(|d| d.iter().product());
    let sizes = ints([outer, axis, inner]).filter(|_| cx.all_f32() && axis > 0);
    let Some(sizes) = sizes else { return Ok(None) };
    let args = args![[Arg::Src(0), Arg::Dst], sizes, [Arg::Int(kind)]];
    Ok(Some(over_rows(cx, "reduce", args, [outer, axis, inner]).into()))
}

pub(super) fn resize(op: &Resize, cx: &Lower<'_>) -> Result {
    let (dims, row) = (&cx.src[0].dims, cx.dst.dims[op.axis]);
    let (outer, inner): (usize, usize) =
        (dims[..op.axis].iter().product(), dims[op.axis + 1..].iter().product());
    let sizes = ints([outer, dims[op.axis], inner, row * inner, op.taps]);
    let Some(sizes) = sizes.filter(|_| cx.all_f32()) else { return Ok(None) };
    // The first index of what lies outside is -1 there.
    let index = Arg::Memory(cx.upload(&op.index)?);
    let weight = Arg::Memory(cx.upload(&op.weight)?);
    let args = args![[Arg::Src(0), index, weight, Arg::Dst], sizes, [Arg::Float(op.fill)]];
    let (global, local) = cx.spread([row * inner, outer, 1], GROUP);
    let definitions = definitions(1, 1);
    Ok(Some(Call { family: ROWS, definitions, kernel: "resize", args, global, local }.into()))
}

/// Most of the largest elements that kernels find: a work-item holds them.
const MOST_BEST: usize = 64;

/// Elements of a row that a work-item looks at, at least, and work-items of a row, at most: on processors, and on
/// GPUs.
const PARTS: [[usize; 2]; 2] = [[1024, 64], [128, 256]];

pub(super) fn best(op: &Best, cx: &Lower<'_>) -> Result {
    let (&[rows, n], k) = (&cx.src[0].dims[..], op.k) else { return Ok(None) };
    let gpu = cx.shared.shape.lanes > 1;
    let [least_part, most_parts] = PARTS[usize::from(gpu)];
    let part = n.div_ceil(most_parts).max(least_part);
    let parts = n.div_ceil(part);
    let Some([n_arg, part, k_arg, parts_arg]) = ints([n, part, k, parts]) else { return Ok(None) };
    if k > MOST_BEST || !cx.all_f32() {
        return Ok(None);
    }
    let definitions = format!("-DVEC=1 -DMOST={}", k.next_power_of_two());
    let (global, local) = cx.spread([parts, rows, 1], 1);
    let of_parts = Call {
        family: BEST,
        definitions: definitions.clone(),
        kernel: "best_of_parts",
        args: vec![Arg::Src(0), Arg::Temp(0), Arg::Temp(1), n_arg, part, k_arg],
        global,
        local,
    };
    let (global, local) = spread([rows, 1, 1], 1);
    let k_arg = Arg::Int(k as i32);
    let of_all = Call {
        family: BEST,
        definitions,
        kernel: "best_of_all",
        args: vec![Arg::Temp(0), Arg::Temp(1), Arg::Dst, parts_arg, k_arg],
        global,
        local,
    };
    let bytes = rows * parts * k * size_of::<f32>();
    Ok(Some(Lowered { calls: vec![of_parts, of_all], temps: vec![bytes; 2], ..Lowered::default() }))
}
