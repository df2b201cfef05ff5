//! Element by element.

use super::{Arg, Call, Lower, Result, args, codes, ints};
use crate::backend::opencl::programs::ELEMENTS;
use crate::graph::ops::binary::Binary;
use crate::graph::ops::glu::Glu;
use crate::graph::ops::rope::{Rope, RopeStyle};
use crate::graph::ops::unary::Unary;

/// Work-items of a group of element-wise kernels.
const GROUP: usize = 16;

pub(super) fn unary(op: &Unary, cx: &Lower<'_>) -> Result {
    let Some(function) = codes::unary(op.op).filter(|_| cx.all_f32()) else { return Ok(None) };
    let n = cx.dst.elements();
    let vec = cx.vector_for(n);
    let Some([n_arg]) = ints([n]) else { return Ok(None) };
    let (global, local) = cx.spread([n.div_ceil(vec), 1, 1], GROUP);
    let args = args![[Arg::Src(0), Arg::Dst, n_arg], function.numbers()];
    let definitions = format!("{} {}", cx.vec(vec), function.definition());
    Ok(Some(Call { family: ELEMENTS, definitions, kernel: "unary", args, global, local }.into()))
}

pub(super) fn glu(op: &Glu, cx: &Lower<'_>) -> Result {
    let n = cx.dst.elements();
    let vec = cx.vector_for(n);
    let Some([n_arg]) = ints([n]) else { return Ok(None) };
    let (global, local) = cx.spread([n.div_ceil(vec), 1, 1], GROUP);
    let function = codes::Function::gate(op.op);
    let args = args![[Arg::Src(0), Arg::Src(1), Arg::Dst, n_arg], function.numbers()];
    let definitions = format!("{} {}", cx.vec(vec), function.definition());
    Ok(Some(Call { family: ELEMENTS, definitions, kernel: "gated", args, global, local }.into()))
}

/// Extents of a result with the strides of operands that broadcast to it, neighbouring dimensions joined where
/// all operands allow it, as four of each; `None` if there are more. What has two operands repeats one.
pub(super) fn joined(
    dst: &[usize],
    operands: [&[usize]; 3],
) -> Option<([usize; 4], [[usize; 4]; 3])> {
    let strides = operands.map(|dims| {
        let mut strides = vec![0; dst.len()];
        let mut step = 1;
        for (i, &d) in dims.iter().enumerate().rev() {
            if d != 1 {
                strides[i + dst.len() - dims.len()] = step;
            }
            step *= d;
        }
        strides
    });
    let mut loops: Vec<(usize, [usize; 3])> = Vec::new();
    for (i, &extent) in dst.iter().enumerate() {
        if extent == 1 {
            continue;
        }
        let step = core::array::from_fn(|o| strides[o][i]);
        match loops.last_mut() {
            Some((e, s)) if (0..3).all(|o| s[o] == step[o] * extent) => {
                (*e, *s) = (*e * extent, step);
            }
            _ => loops.push((extent, step)),
        }
    }
    let missing = 4usize.checked_sub(loops.len())?;
    let (mut dims, mut steps) = ([1; 4], [[0; 4]; 3]);
    for (i, (extent, step)) in loops.into_iter().enumerate() {
        dims[missing + i] = extent;
        (0..3).for_each(|o| steps[o][missing + i] = step[o]);
    }
    Some((dims, steps))
}

pub(super) fn binary(op: &Binary, cx: &Lower<'_>) -> Result {
    let (Some(kind), Some(activation)) = (codes::binary(op.op), codes::activation(op.activation))
    else {
        return Ok(None);
    };
    let [a, b] = [0, 1].map(|i| &cx.src[i].dims[..]);
    let shapes = joined(&cx.dst.dims, [a, b, b]);
    let Some((dims, [a, b, _])) = shapes.filter(|_| cx.all_f32()) else { return Ok(None) };
    let (Some(d), Some(a), Some(b)) = (ints(dims), ints(a), ints(b)) else { return Ok(None) };
    let vec = cx.vector_for(dims[3]);
    let (global, local) = cx.spread([dims[3].div_ceil(vec), dims[2], dims[0] * dims[1]], GROUP);
    let args = args![[Arg::Src(0), Arg::Src(1), Arg::Dst], d, a, b, activation.numbers()];
    let definitions = format!("{} {} -DPAIR_KIND={kind}", cx.vec(vec), activation.definition());
    Ok(Some(Call { family: ELEMENTS, definitions, kernel: "binary", args, global, local }.into()))
}

pub(super) fn rope(op: &Rope, cx: &Lower<'_>) -> Result {
    let (&[rows, width], &[_, rotated]) = (&cx.src[0].dims[..], &cx.src[1].dims[..]) else {
        return Ok(None);
    };
    let heads = width / op.size;
    let Some(sizes) = ints([rows, heads, op.size, rotated]) else { return Ok(None) };
    let half = matches!(op.style, RopeStyle::Half);
    let args = args![[Arg::Src(0), Arg::Src(1), Arg::Dst], sizes, [Arg::Int(half.into())]];
    let (global, local) = cx.spread([op.size - rotated / 2, heads, rows], GROUP);
    let definitions = cx.vec(cx.shared.shape.vec);
    Ok(Some(Call { family: ELEMENTS, definitions, kernel: "rope", args, global, local }.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_joined_where_both_operands_allow_it() {
        let two = |dst: &[usize], [a, b]: [&[usize]; 2]| {
            joined(dst, [a, b, b]).map(|(dims, [a, b, _])| (dims, [a, b]))
        };
        let (dims, [a, b]) = two(&[2, 3, 4, 5], [&[2, 3, 4, 5], &[2, 3, 4, 5]]).unwrap();
        assert_eq!((dims, a, b), ([1, 1, 1, 120], [0, 0, 0, 1], [0, 0, 0, 1]));
        let (dims, [a, b]) = two(&[2, 3, 4, 5], [&[2, 3, 4, 5], &[3, 1, 1]]).unwrap();
        assert_eq!((dims, a, b), ([1, 2, 3, 20], [0, 60, 20, 1], [0, 0, 1, 0]));
        assert!(two(&[2; 6], [&[2, 1, 2, 1, 2, 1], &[1, 2, 1, 2, 1, 2]]).is_none());
        let (dims, [a, b]) = two(&[7], [&[], &[7]]).unwrap();
        assert_eq!((dims, a, b), ([1, 1, 1, 7], [0; 4], [0, 0, 0, 1]));
    }
}
