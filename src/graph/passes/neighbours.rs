//! Fusion of operators whose tensor between them does not fit the cache: it is then computed and read a
//! few rows at a time.

use super::super::ops::conv::Conv;
use super::super::ops::conv_pool::ConvPool;
use super::super::ops::pool::{Pool, PoolKind};
use super::super::{Context, GraphError, Op, TensorId};
use super::use_counts;
use crate::tensor::DType;

/// Bytes between a convolution and a pooling from which on fusing them pays. At one thread of a Zen 5 with
/// an L2 cache of 1 MB, the two layers of 11 and 5.5 MB of Tiny YOLO take 17 and 6 % less time with AVX-512
/// (with AVX2 5 % each), that of 2.8 MB 10 % more.
const BETWEEN: usize = 4 << 20;

/// Threads beyond which units of so many rows are too few to share.
const THREADS: usize = 4;

/// Joins a convolution with the maximum pooling of windows that do not overlap, if that alone reads it and
/// it was measured to be faster. No bit of a result changes.
///
/// A depthwise convolution is not joined with the pointwise one after it: `kernels` can
/// (`template::separable`), but in MobileNets that took as much time as the two.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn fuse_neighbours(
    cx: &mut Context,
    outputs: &[TensorId],
    threads: usize,
) -> Result<(), GraphError> {
    if threads > THREADS {
        return Ok(());
    }
    let order = cx.build_forward(outputs)?;
    let uses = use_counts(cx, &order, outputs);
    for id in order {
        let fused = match cx.record(id).op() {
            Op::Pool(pool) => with_pool(cx, id, pool, &uses),
            _ => None,
        };
        if let Some((op, src)) = fused {
            cx.rewrite(id, op, src)?;
        }
    }
    Ok(())
}

type Fused = Option<(Op, Vec<TensorId>)>;

/// The convolution that computes the first operand of `id`, if nobody else reads it, its weights and bias
/// are constants, and it is large.
fn producer<'a>(
    cx: &'a Context,
    id: TensorId,
    uses: &[usize],
    least: usize,
) -> Option<(&'a Conv, &'a [TensorId])> {
    let x = *cx.record(id).src().first()?;
    let record = cx.record(x);
    let Op::Conv(conv) = record.op() else { return None };
    let src = record.src();
    let known = src.iter().skip(1).all(|&s| cx.constant_value(s).is_some());
    let info = record.info();
    let large = info.dims.len() == 4 && info.dtype == DType::F32 && info.stored_bytes()? >= least;
    let fits = known && large && uses[x.index()] == 1 && record.value().is_none();
    (fits && !conv.residual && conv.transposed.is_none()).then_some((conv, src))
}

fn with_pool(cx: &Context, id: TensorId, pool: &Pool, uses: &[usize]) -> Fused {
    let (conv, src) = producer(cx, id, uses, BETWEEN)?;
    let apart = pool.stride == pool.window && pool.dilation == [1; 2] && pool.pads == [0; 4];
    let [.., h, w] = cx.dims(*cx.record(id).src().first()?)[..] else { return None };
    let whole =
        !pool.ceil || (h.is_multiple_of(pool.window[0]) && w.is_multiple_of(pool.window[1]));
    // A convolution of single pixels is computed as one row.
    let rows = cx.dims(src[1])[2..] != [1, 1];
    let depthwise = conv.groups > 1 && conv.groups == cx.dims(src[0])[1];
    let fits = pool.kind == PoolKind::Max && apart && whole && rows && !depthwise;
    fits.then(|| (ConvPool { conv: conv.clone(), window: pool.window }.into(), src.to_vec()))
}
