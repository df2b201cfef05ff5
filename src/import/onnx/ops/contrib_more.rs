//! Operators of the domain `com.microsoft` that are older than those of ONNX that do the same, and some that ONNX
//! never got.
//!
//! Source: the texts of the operators in ONNX Runtime, and for `CropAndResize` those of TensorFlow.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::contrib::{fused_matmul, row};
use super::{NodeCx, OpRow, Outputs, cast, indexing, pad, range, reduce, sampling};
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::concat::Concat;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::gather_nd::GatherNd;
use crate::graph::ops::grid_sample::{GridMode, GridPadding, GridSample};
use crate::graph::ops::inverse::Inverse;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::select::Select;
use crate::graph::{GraphError, Info, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::{DType, Tensor};

pub(super) const ROWS: &[OpRow] = &[
    row("CDist", (2, 2), &[Attr::string("metric").one_of(&["euclidean", "sqeuclidean"])], cdist),
    row(
        "CropAndResize",
        (4, 4),
        &[Attr::float("extrapolation_value"), Attr::string("mode").one_of(&["bilinear"])],
        crop_and_resize,
    )
    .known(&[3]),
    row("ExpandDims", (2, 2), &[], |cx| {
        let (x, axis) = (cx.input(0)?, indexing::whole(cx, 1, "axis")?);
        let mut dims = cx.dims(x);
        dims.insert(build::axis(axis, dims.len() + 1)?, 1);
        Ok(vec![cx.reshape(x, &dims)?])
    })
    .known(&[1]),
    row("GatherND", (2, 2), &[], |cx| {
        let src = cx.inputs()?;
        Ok(vec![cx.op(GatherNd { batch_dims: 0 }, &src)?])
    }),
    row(
        "GridSample",
        (2, 2),
        &[
            Attr::int("align_corners"),
            Attr::string("mode").one_of(&["bilinear", "nearest", "bicubic"]),
            sampling::PADDING,
        ],
        sampling::grid_sample,
    ),
    row("Inverse", (1, 1), &[], |cx| {
        let x = cx.input(0)?;
        Ok(vec![cx.op(Inverse, &[x])?])
    }),
    row("Pad", (2, 3), &[pad::MODE], pad::pad).known(&[1]),
    row("Range", (2, 3), &[], range::range).known(&[0, 1, 2]),
    row(
        "TransposeMatMul",
        (2, 2),
        &[Attr::float("alpha"), Attr::int("transA"), Attr::int("transB")],
        fused_matmul,
    ),
    row("Trilu", (1, 2), &[Attr::int("upper")], indexing::trilu).known(&[1]),
];

/// The distance of each row of a matrix to each of another.
fn cdist(cx: &mut NodeCx<'_>) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let (ad, bd) = (cx.dims(a), cx.dims(b));
    let (&[n, width], &[m, other]) = (&ad[..], &bd[..]) else {
        return Err(NodeError::invalid(format!("a {ad:?} and b {bd:?} must be matrices")));
    };
    if width != other {
        return Err(NodeError::invalid(format!("rows of a {ad:?} and b {bd:?}")));
    }
    // Differences are exact where rows are alike; squares of sums are not.
    let (a, b) = (cx.reshape(a, &[n, 1, width])?, cx.reshape(b, &[1, m, width])?);
    let apart = cx.binary(BinaryOp::Sub, a, b)?;
    let y = reduce::over(cx, ReduceOp::SumSquare, apart, &[2], false)?;
    let root = cx.string("metric", "sqeuclidean") == "euclidean";
    Ok(vec![if root { cx.unary(UnaryOp::Sqrt, y)? } else { y }])
}

/// `count` numbers from 0 to 1, or the one in the middle. The last is 1 itself: what is beyond is outside.
fn fractions(cx: &mut NodeCx<'_>, count: usize) -> Result<TensorId, NodeError> {
    cx.spend(&Info::plain(DType::F32, vec![count]))?;
    #[allow(clippy::cast_precision_loss, reason = "extents are far below 2^24")]
    let one = |i: usize| if count == 1 { 0.5 } else { i as f32 / (count - 1) as f32 };
    let values: Vec<f32> = (0..count).map(one).collect();
    cx.constant(Tensor::from_slice(&[count], &values).map_err(GraphError::from)?)
}

/// Parts of pictures, from corner to corner, in one size: positions are those of a grid whose corners are aligned.
fn crop_and_resize(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, boxes, batch) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let size = cx.ints_input(3)?.ok_or(NodeError::NoInput(3))?;
    let size =
        size.iter().map(|&d| build::extent(d, "crop_size")).collect::<Result<Vec<_>, _>>()?;
    let (xd, found) = (cx.dims(x), cx.dims(boxes));
    let (&[h, w], &[_, channels, _, _], &[count, 4]) = (&size[..], &xd[..], &found[..]) else {
        let what = format!("x {xd:?}, boxes {found:?} and crop_size {size:?}");
        return Err(NodeError::invalid(what));
    };
    if cx.dims(batch) != [count] {
        let batch = cx.dims(batch);
        return Err(NodeError::invalid(format!("batch_indices {batch:?} for boxes {found:?}")));
    }
    let dtype = cx.dtype(x);
    let (mut places, mut inside) = (Vec::new(), None);
    // The grid has columns before rows.
    for (first, extent, shape) in [(1, w, [1, 1, w]), (0, h, [1, h, 1])] {
        let (start, end) = (cx.slice(boxes, 1, first, 1, 1)?, cx.slice(boxes, 1, first + 2, 1, 1)?);
        let column = [count, 1, 1];
        let (start, end) = (cx.reshape(start, &column)?, cx.reshape(end, &column)?);
        let at = fractions(cx, extent)?;
        let at = cast::to(cx, at, dtype)?;
        let at = cx.reshape(at, &shape)?;
        let back = cx.unary(UnaryOp::Affine { scale: -1.0, shift: 1.0 }, at)?;
        let (near, far) =
            (cx.binary(BinaryOp::Mul, start, back)?, cx.binary(BinaryOp::Mul, end, at)?);
        let place = cx.binary(BinaryOp::Add, near, far)?;
        let (zero, one) = (cx.scalar(dtype, 0.0)?, cx.scalar(dtype, 1.0)?);
        for pair in [[zero, place], [place, one]] {
            let fits = cx.op(Compare { op: CompareOp::LessOrEqual }, &pair)?;
            inside = Some(match inside {
                Some(others) => cx.op(Compare { op: CompareOp::And }, &[others, fits])?,
                None => fits,
            });
        }
        let place = cx.unary(UnaryOp::Affine { scale: 2.0, shift: -1.0 }, place)?;
        let place = cx.expand(place, &[count, h, w])?;
        places.push(cx.reshape(place, &[count, h, w, 1])?);
    }
    let grid = cx.op(Concat { axis: 3 }, &places)?;
    let pictures = cx.op(Gather { axis: 0 }, &[x, batch])?;
    // Positions that rounding moves beyond the edge are those at the edge.
    let op =
        GridSample { mode: GridMode::Linear, padding: GridPadding::Border, align_corners: true };
    let y = cx.op(op, &[pictures, grid])?;
    let inside = inside.ok_or(NodeError::NoInput(1))?;
    let inside = cx.reshape(inside, &[count, 1, h, w])?;
    let outside = cx.scalar(dtype, f64::from(cx.float("extrapolation_value", 0.0)))?;
    let y: TensorId = cx.op(Select, &[inside, y, outside])?;
    cx.expand(y, &[count, channels, h, w]).map(|y| vec![y])
}
