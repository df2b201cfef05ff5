//! Convolutions and pools over volumes, made of those over pictures, which have kernels.
//!
//! A volume is a row of pictures: depth joins the batch where windows are taken over height and
//! width, and height and width are one axis where they are taken over depth.

use tilewright_kernels::template::binary::BinaryOp;

use super::NodeCx;
use super::select::take;
use crate::graph::TensorId;
use crate::graph::ops::conv::Conv;
use crate::graph::ops::pad::Pad;
use crate::graph::ops::pool::{Pool, PoolKind};
use crate::graph::ops::windows::Windows;
use crate::import::NodeError;
use crate::tensor::DType;

/// The value of each of three spatial dimensions, of depth first.
type Three = [usize; 3];

/// Most taps of depth: each may become an operation of its own.
const TAPS: usize = 32;

/// Most pictures of all taps, of which each has a number.
const PICTURES: usize = 1 << 20;

/// Windows over three dimensions.
struct Volume {
    size: Three,
    stride: Three,
    dilation: Three,
    before: Three,
    after: Three,
    count: Three,
}

impl Volume {
    fn of(w: &Windows) -> Option<Self> {
        let three = |list: &[usize]| Three::try_from(list).ok();
        Some(Self {
            size: three(&w.size)?,
            stride: three(&w.stride)?,
            dilation: three(&w.dilation)?,
            before: three(&w.before)?,
            after: three(&w.after)?,
            count: three(&w.count)?,
        })
    }

    /// Whether these pictures of a result are few enough to be numbered, tap by tap.
    fn is_small(&self, seats: usize) -> bool {
        let [taps, ..] = self.size;
        taps <= TAPS && seats.checked_mul(taps).is_some_and(|n| n <= PICTURES)
    }

    /// Cells from the first of a window to one past its last.
    fn reach(&self, i: usize) -> Option<usize> {
        let (size, dilation) = (*self.size.get(i)?, *self.dilation.get(i)?);
        size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)
    }

    /// Whether windows take one cell of height and width, and all of them.
    fn is_depth_only(&self) -> bool {
        let [_, h, w] = self.size;
        let [_, down, right] = self.stride;
        let ([_, top, left], [_, bottom, end]) = (self.before, self.after);
        [h, w, down, right] == [1; 4] && [top, left, bottom, end] == [0; 4]
    }

    /// The convolution over depth, of height and width as one axis.
    fn deep(&self, groups: usize) -> Conv {
        let ([stride, ..], [dilation, ..]) = (self.stride, self.dilation);
        let pads = [self.before[0], 0, self.after[0], 0];
        Conv { stride: [stride, 1], dilation: [dilation, 1], pads, groups, ..Conv::default() }
    }

    /// The convolution over height and width.
    fn flat(&self, groups: usize) -> Conv {
        let ([_, down, right], [_, h, w]) = (self.stride, self.dilation);
        let ([_, top, left], [_, bottom, end]) = (self.before, self.after);
        let pads = [top, left, bottom, end];
        Conv { stride: [down, right], dilation: [h, w], pads, groups, ..Conv::default() }
    }
}

/// The five extents of a tensor of f32 that has elements.
fn five(cx: &NodeCx<'_>, x: TensorId) -> Option<[usize; 5]> {
    let dims = <[usize; 5]>::try_from(cx.dims(x)).ok()?;
    (cx.dtype(x) == DType::F32 && !dims.contains(&0)).then_some(dims)
}

/// A convolution of `src` (x, weights, perhaps a bias) over three dimensions of f32; `None` for what
/// is to be computed by its definition.
pub(super) fn convolution(
    cx: &mut NodeCx<'_>,
    src: &[TensorId],
    windows: &Windows,
    groups: usize,
) -> Result<Option<TensorId>, NodeError> {
    let &[x, w, ref bias @ ..] = src else { return Ok(None) };
    let (Some(v), Some(xd), Some(wd)) = (Volume::of(windows), five(cx, x), five(cx, w)) else {
        return Ok(None);
    };
    let ([n, c, depth, height, width], [k, part, taps, wh, ww]) = (xd, wd);
    let [seats, oh, ow] = v.count;
    if groups == 0 || part.checked_mul(groups) != Some(c) || v.count.contains(&0) {
        return Ok(None);
    }
    if v.is_depth_only() {
        let x = cx.reshape(x, &[n, c, depth, height * width])?;
        let w = cx.reshape(w, &[k, part, taps, 1])?;
        let src: Vec<TensorId> = [x, w].into_iter().chain(bias.iter().copied()).collect();
        let y = cx.op(Conv { bias: !bias.is_empty(), ..v.deep(groups) }, &src)?;
        return Ok(Some(cx.reshape(y, &[n, k, seats, oh, ow])?));
    }
    if !v.is_small(seats) {
        return Ok(None);
    }
    let ([before, ..], [after, ..]) = (v.before, v.after);
    let x = if before == 0 && after == 0 { x } else { pad(cx, x, 2, before, after)? };
    let planes = cx.transpose(x, &[0, 2, 1, 3, 4])?;
    let batch = n * seats;
    // Taps of depth are channels if these are few; else pictures of each tap are convolved and added,
    // which takes less memory.
    let y = if taps > 1 && groups == 1 && c < k {
        let mut at = Vec::new();
        for seat in 0..seats {
            at.extend((0..taps).map(|t| seat * v.stride[0] + t * v.dilation[0]));
        }
        let planes = take(cx, planes, 1, at.iter().copied(), at.len())?;
        let x = cx.reshape(planes, &[batch, taps * c, height, width])?;
        let w = cx.transpose(w, &[0, 2, 1, 3, 4])?;
        let w = cx.reshape(w, &[k, taps * c, wh, ww])?;
        let src: Vec<TensorId> = [x, w].into_iter().chain(bias.iter().copied()).collect();
        cx.op(Conv { bias: !bias.is_empty(), ..v.flat(1) }, &src)?
    } else {
        let mut sum = None;
        for t in 0..taps {
            let x = cx.slice(planes, 1, t * v.dilation[0], seats, v.stride[0])?;
            let x = cx.reshape(x, &[batch, c, height, width])?;
            let w = cx.slice(w, 2, t, 1, 1)?;
            let w = cx.reshape(w, &[k, part, wh, ww])?;
            let bias = if t == 0 { bias } else { &[] };
            let src: Vec<TensorId> = [x, w].into_iter().chain(bias.iter().copied()).collect();
            let y = cx.op(Conv { bias: !bias.is_empty(), ..v.flat(groups) }, &src)?;
            sum = Some(match sum {
                Some(sum) => cx.binary(BinaryOp::Add, y, sum)?,
                None => y,
            });
        }
        let Some(sum) = sum else { return Ok(None) };
        sum
    };
    let y = cx.reshape(y, &[n, seats, k, oh, ow])?;
    Ok(Some(cx.transpose(y, &[0, 2, 1, 3, 4])?))
}

/// A transposed convolution over three dimensions of f32 with these extents of the result; `None` for
/// what is to be computed by its definition.
///
/// Each picture is spread by all taps of depth at once; a picture of the result is the sum of those
/// that fall on it.
pub(super) fn transposed(
    cx: &mut NodeCx<'_>,
    src: &[TensorId],
    windows: &Windows,
    output: &[usize],
    groups: usize,
) -> Result<Option<TensorId>, NodeError> {
    let &[x, w, ref bias @ ..] = src else { return Ok(None) };
    let (Some(v), Some(xd), Some(wd)) = (Volume::of(windows), five(cx, x), five(cx, w)) else {
        return Ok(None);
    };
    let ([n, c, depth, height, width], [from, part, taps, wh, ww]) = (xd, wd);
    let Ok([seats, oh, ow]) = Three::try_from(output) else { return Ok(None) };
    // What the two rules of padding leave over at the ends of height and width.
    let extra = |i: usize, input: usize, output: usize| {
        let full = (input - 1).checked_mul(*v.stride.get(i)?)?.checked_add(v.reach(i)?)?;
        output.checked_add(*v.before.get(i)?)?.checked_add(*v.after.get(i)?)?.checked_sub(full)
    };
    let (Some(down), Some(right)) = (extra(1, height, oh), extra(2, width, ow)) else {
        return Ok(None);
    };
    if from != c || groups == 0 || !c.is_multiple_of(groups) || output.contains(&0) {
        return Ok(None);
    }
    if !v.is_small(seats) {
        return Ok(None);
    }
    let (Some(k), Some(spread)) = (part.checked_mul(groups), part.checked_mul(taps)) else {
        return Ok(None);
    };
    let planes = cx.transpose(x, &[0, 2, 1, 3, 4])?;
    let planes = cx.reshape(planes, &[n * depth, c, height, width])?;
    let w = cx.transpose(w, &[0, 2, 1, 3, 4])?;
    let w = cx.reshape(w, &[c, spread, wh, ww])?;
    let op = Conv { transposed: Some([down, right]), ..v.flat(groups) };
    let z = cx.op(op, &[planes, w])?;
    let z = cx.reshape(z, &[n, depth, groups, taps, part, oh, ow])?;
    let z = cx.transpose(z, &[0, 1, 3, 2, 4, 5, 6])?;
    let z = cx.reshape(z, &[n, depth * taps, k, oh, ow])?;
    // For each picture of the result, those that fall on it.
    let falling: Vec<Vec<usize>> = (0..seats)
        .map(|seat| {
            let cells = (0..taps).filter_map(|t| {
                let cell = (seat + v.before[0]).checked_sub(t * v.dilation[0])?;
                let (plane, rest) = (cell / v.stride[0], cell % v.stride[0]);
                (rest == 0 && plane < depth).then_some(plane * taps + t)
            });
            cells.collect()
        })
        .collect();
    let most = falling.iter().map(Vec::len).max().unwrap_or(0);
    let none = depth * taps;
    // A picture of zeros for where fewer fall.
    let complete = falling.iter().all(|f| f.len() == most) && most > 0;
    let z = if complete { z } else { pad(cx, z, 1, 0, 1)? };
    let mut y = None;
    for i in 0..most.max(1) {
        let at: Vec<usize> = falling.iter().map(|f| f.get(i).copied().unwrap_or(none)).collect();
        let part = take(cx, z, 1, at.iter().copied(), at.len())?;
        y = Some(match y {
            Some(y) => cx.binary(BinaryOp::Add, y, part)?,
            None => part,
        });
    }
    let Some(mut y) = y else { return Ok(None) };
    if let &[bias] = bias {
        let bias = cx.reshape(bias, &[k, 1, 1])?;
        y = cx.binary(BinaryOp::Add, y, bias)?;
    }
    Ok(Some(cx.transpose(y, &[0, 2, 1, 3, 4])?))
}

/// A pool over three dimensions of f32; `None` for others. Maxima of maxima are maxima, and so it is
/// with means: how many cells of a window count is a product over the dimensions.
pub(super) fn pool(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    windows: &Windows,
    kind: PoolKind,
    ceil: bool,
) -> Result<Option<TensorId>, NodeError> {
    let (Some(v), Some(dims)) = (Volume::of(windows), five(cx, x)) else { return Ok(None) };
    let [n, c, depth, height, width] = dims;
    let ([seats, oh, ow], [taps, h, w]) = (v.count, v.size);
    let ([top, left], [bottom, end]) = ([v.before[1], v.before[2]], [v.after[1], v.after[2]]);
    let x = cx.reshape(x, &[n, c * depth, height, width])?;
    let flat = Pool {
        kind,
        window: [h, w],
        stride: [v.stride[1], v.stride[2]],
        dilation: [v.dilation[1], v.dilation[2]],
        pads: [top, left, bottom, end],
        ceil,
    };
    let y = cx.op(flat, &[x])?;
    let y = cx.reshape(y, &[n, c, depth, oh * ow])?;
    let deep = Pool {
        kind,
        window: [taps, 1],
        stride: [v.stride[0], 1],
        dilation: [v.dilation[0], 1],
        pads: [v.before[0], 0, v.after[0], 0],
        ceil,
    };
    let y = cx.op(deep, &[y])?;
    Ok(Some(cx.reshape(y, &[n, c, seats, oh, ow])?))
}

/// Zeros at both ends of an axis.
fn pad(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    axis: usize,
    before: usize,
    after: usize,
) -> Result<TensorId, NodeError> {
    let zero = cx.scalar(DType::F32, 0.0)?;
    let at = |n: usize| (0..cx.rank(x)).map(|i| if i == axis { n } else { 0 }).collect();
    let op = Pad { before: at(before), after: at(after) };
    cx.op(op, &[x, zero])
}
