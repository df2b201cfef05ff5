//! Convolutions and pooling.

use std::borrow::Cow;
use std::sync::Arc;

use super::codes::Function;
use super::matmul::{Gemm, gemm};
use super::{Arg, Call, Lower, Lowered, Result, args, codes, ints, spread};
use crate::backend::opencl::programs::CONV;
use crate::backend::opencl::trial::Operands;
use crate::backend::opencl::workload::{self, Kind};
use crate::backend::opencl::{OpenClError, Region, Shared};
use crate::graph::Way;
use crate::graph::ops::conv::Conv;
use crate::graph::ops::pool::{Pool, PoolKind};
use crate::tensor::Tensor;

/// Steps of a sum that a work-item of a GPU had better compute alone.
const SHORT: usize = 64;

/// Work-items of a group that pools or moves.
const POOL_GROUP: usize = 16;

/// Weights in panels of `w_ob` rows, one element of each row behind the other; rows that there are not
/// are 0. Groups of `k` rows of `len` elements begin panels of their own.
pub(super) fn panels(
    weights: &[f32],
    groups: usize,
    k: usize,
    len: usize,
    w_ob: usize,
) -> Vec<f32> {
    let of_group = k.div_ceil(w_ob) * w_ob * len;
    let mut out = vec![0f32; groups * of_group];
    for (row, values) in weights.chunks_exact(len.max(1)).enumerate().take(groups * k) {
        let (group, row) = (row / k, row % k);
        let at = group * of_group + row / w_ob * w_ob * len + row % w_ob;
        for (i, v) in values.iter().enumerate() {
            out[at + i * w_ob] = *v;
        }
    }
    out
}

/// Panels of a constant, on the device.
fn packed(
    shared: &Arc<Shared>,
    value: &Tensor,
    [groups, k, len, w_ob]: [usize; 4],
) -> core::result::Result<Option<Arc<Region>>, OpenClError> {
    let Ok(weights) = value.as_slice::<f32>() else { return Ok(None) };
    let pack = || {
        let panels = panels(&weights, groups, k, len, w_ob);
        Cow::Owned(bytemuck::cast_slice(&panels).to_vec())
    };
    shared.packed(value, &format!("panels {groups} {k} {len} {w_ob}"), pack).map(Some)
}

pub(super) fn conv(op: &Conv, cx: &Lower<'_>) -> Result {
    let Some(activation) = codes::activation(op.activation).filter(|_| cx.all_f32()) else {
        return Ok(None);
    };
    let s = op.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
    let g = op.groups;
    let (c, k) = (s.c / g, s.k / g);
    let [[h, w], [o_h, o_w], [f_h, f_w]] = [s.input, s.output, s.window];
    let [top, left, ..] = op.pads;
    let bias = if op.bias { Arg::Src(2) } else { Arg::Absent };
    let added = op.residual_operand().map_or(Arg::Absent, Arg::Src);
    let taps = c * f_h * f_w;
    let window = [h, w, o_h, o_w, f_h, f_w, op.stride[0], op.stride[1], op.dilation[0]];
    let Some(window) = ints(window) else { return Ok(None) };
    let Some(place) = ints([op.dilation[1], top, left]) else { return Ok(None) };
    let flags = [Arg::Int(op.bias.into()), Arg::Int(op.residual.into())];
    let Some(channels) = ints([g, c, k]) else { return Ok(None) };
    if op.transposed.is_some() {
        let operands = [Arg::Src(0), Arg::Src(1), bias, added, Arg::Dst];
        let args = args![operands, channels, window, place, flags, activation.numbers()];
        let (global, local) = cx.spread([o_w, o_h, s.n * s.k], POOL_GROUP);
        let definitions = format!("{} {}", cx.vec(1), activation.definition());
        let kernel = "conv_transposed";
        return Ok(Some(Call { family: CONV, definitions, kernel, args, global, local }.into()));
    }
    let vec = cx.vector_for(o_w.next_power_of_two());
    let stride = steps(op.stride[1]);
    let pointwise = [f_h, f_w] == [1, 1] && op.stride == [1; 2] && op.pads == [0; 4];
    let depthwise = c == 1;
    // Rows that fill a vector less than by half are better computed as one, and on GPUs long sums of few tiles: a
    // product shares them out.
    let shape = cx.shared.shape;
    let tiles = s.n * g * k.div_ceil(shape.w_ob) * o_h * o_w.div_ceil(vec);
    let enough = shape.lanes == 1 || taps <= SHORT || 4 * tiles >= cx.shared.info.enough_items();
    let direct = depthwise || (!pointwise && 2 * o_w > shape.vec && k > 1 && enough);
    if direct && let Some(value) = cx.values[1] {
        let sizes = workload::Conv {
            n: s.n,
            groups: g,
            c,
            k,
            input: s.input,
            output: s.output,
            window: s.window,
            stride: op.stride,
            dilation: op.dilation,
            pads: [top, left],
        };
        let way = cx.way(Kind::Conv(sizes));
        let panels = [g, k, taps, way.tile[0]];
        let Some(weights) = packed(cx.shared, value, panels)? else { return Ok(None) };
        let operands = [Arg::Src(0), Arg::Memory(weights), bias, added, Arg::Dst];
        let args = args![operands, channels, window, place, flags, activation.numbers()];
        return Ok(Some(direct_by(&sizes, &way, activation, args).into()));
    }
    // As a product of weights and windows.
    let pixels = o_h * o_w;
    let is_packed = cx.values[1].is_some();
    let (batch, m, n) = (s.n * g, k, pixels);
    let way = cx.way(Kind::Gemm { batch, m, n, k: taps, packed: is_packed });
    let w_ob = way.tile[0];
    let weights = match cx.values[1] {
        Some(value) => match packed(cx.shared, value, [g, k, taps, w_ob])? {
            Some(weights) => Arg::Memory(weights),
            None => return Ok(None),
        },
        None => Arg::Src(1),
    };
    let mut lowered = Lowered::default();
    let columns = if pointwise {
        Arg::Src(0)
    } else {
        let elements = s.n * g * taps * pixels;
        let Some(images) = ints([s.n, g * c]).filter(|_| i32::try_from(elements * 4).is_ok())
        else {
            return Ok(None);
        };
        lowered.temps.push(elements * size_of::<f32>());
        let operands = [Arg::Src(0), Arg::Temp(0)];
        let args = args![operands, images, window, place];
        let items = [o_w.div_ceil(vec), o_h, s.n * g * taps];
        let (global, local) = cx.spread(items, POOL_GROUP);
        let definitions = format!("-DVEC={vec} -DSTRIDE={stride}");
        let kernel = "windows";
        lowered.calls.push(Call { family: CONV, definitions, kernel, args, global, local });
        Arg::Temp(0)
    };
    let product = Gemm {
        a: weights,
        b: columns,
        bias,
        added,
        packed: is_packed,
        way,
        batch,
        inner: g,
        sizes: [k, pixels, taps],
        a_steps: [0, if is_packed { k.div_ceil(w_ob) * w_ob * taps } else { k * taps }],
        b_steps: [g * taps * pixels, taps * pixels],
        bias_kind: i32::from(op.bias),
        bias_step: k,
        has_added: op.residual,
        activation,
    };
    let Some(call) = gemm(product) else { return Ok(None) };
    lowered.calls.push(call);
    Ok(Some(lowered))
}

/// A distance of windows along a row, as kernels know it: 0 for one that they have no code for.
fn steps(stride: usize) -> usize {
    if stride <= 2 { stride } else { 0 }
}

fn direct_by(sizes: &workload::Conv, way: &Way, function: Function, args: Vec<Arg>) -> Call {
    let ([o_h, o_w], Way { vec, tile: [c_ob, _], .. }) = (sizes.output, *way);
    let items = [o_w.div_ceil(vec), o_h, sizes.n * sizes.groups * sizes.k.div_ceil(c_ob)];
    let (global, local) = spread(items, way.group);
    let definitions = format!(
        "-DVEC={vec} -DC_OB={c_ob} -DSTRIDE={} {}",
        steps(sizes.stride[1]),
        function.definition()
    );
    Call { family: CONV, definitions, kernel: "conv", args, global, local }
}

/// A convolution computed in some way, to be measured: without bias, activation and sum.
pub(in crate::backend::opencl) fn trial(
    sizes: &workload::Conv,
    way: &Way,
    operands: &Operands,
) -> Option<Call> {
    let workload::Conv { groups, c, k, input: [h, w], output: [o_h, o_w], window, .. } = *sizes;
    let (stride, dilation, [top, left]) = (sizes.stride, sizes.dilation, sizes.pads);
    let memory = |region: &Arc<Region>| Arg::Memory(region.clone());
    let (x, weights) = (memory(&operands.x), memory(&operands.weights[0]));
    let args = args![
        [x, weights, Arg::Absent, Arg::Absent, memory(&operands.results[0])],
        ints([groups, c, k, h, w, o_h, o_w, window[0], window[1], stride[0], stride[1]])?,
        ints([dilation[0], dilation[1], top, left])?,
        [Arg::Int(0), Arg::Int(0)],
        Function::default().numbers(),
    ];
    Some(direct_by(sizes, way, Function::default(), args))
}

pub(super) fn pool(op: &Pool, cx: &Lower<'_>) -> Result {
    if !cx.all_f32() {
        return Ok(None);
    }
    let spatial = |d: &[usize]| if d.len() == 3 { [1, d[2]] } else { [d[2], d[3]] };
    let (input, output) = (spatial(&cx.src[0].dims), spatial(&cx.dst.dims));
    let planes = cx.dst.dims[0] * cx.dst.dims[1];
    let kind = match op.kind {
        PoolKind::Max => 0,
        PoolKind::Average { include_pad: false } => 1,
        PoolKind::Average { include_pad: true } => 2,
    };
    let [[h, w], [o_h, o_w], [f_h, f_w]] = [input, output, op.window];
    let ([s_h, s_w], [d_h, d_w], [top, left, bottom, right]) = (op.stride, op.dilation, op.pads);
    let sizes = [planes, h, w, o_h, o_w, f_h, f_w, s_h, s_w, d_h, d_w, top, left, bottom, right];
    let Some(sizes) = ints(sizes) else { return Ok(None) };
    let args = args![[Arg::Src(0), Arg::Dst], sizes, [Arg::Int(kind)]];
    let (global, local) = cx.spread([o_w, o_h, planes], POOL_GROUP);
    let definitions = cx.vec(1);
    Ok(Some(Call { family: CONV, definitions, kernel: "pool", args, global, local }.into()))
}

#[cfg(test)]
mod tests {
    use super::panels;

    #[test]
    fn panels_hold_rows_side_by_side() {
        let weights: Vec<f32> = (0..12).map(|v| v as f32).collect();
        // Two groups of three rows of two elements, two rows to a panel.
        let want = [0., 2., 1., 3., 4., 0., 5., 0., 6., 8., 7., 9., 10., 0., 11., 0.];
        assert_eq!(panels(&weights, 2, 3, 2, 2), want);
    }
}
