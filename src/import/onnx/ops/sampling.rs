//! Sampling of pictures at computed positions.

use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::ops::grid_sample::{GridMode, GridPadding, GridSample};
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::roi_align::RoiAlign;
use crate::graph::ops::roi_pool::RoiPool;
use crate::graph::{GraphError, Info};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::{DType, Tensor};

pub(super) const PADDING: Attr =
    Attr::string("padding_mode").one_of(&["zeros", "border", "reflection"]);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("AffineGrid", (2, 2), &[Attr::int("align_corners")], affine_grid)
        .since(20)
        .known(&[1]),
    OpRow::new(
        "GridSample",
        (2, 2),
        &[
            Attr::int("align_corners"),
            Attr::string("mode").one_of(&["bilinear", "nearest", "bicubic"]),
            PADDING,
        ],
        grid_sample,
    )
    .since(16)
    .until(19),
    OpRow::new(
        "GridSample",
        (2, 2),
        &[
            Attr::int("align_corners"),
            Attr::string("mode").one_of(&["linear", "nearest", "cubic"]),
            PADDING,
        ],
        grid_sample,
    )
    .since(20),
    OpRow::new(
        "MaxRoiPool",
        (2, 2),
        &[Attr::ints("pooled_shape").required(), Attr::float("spatial_scale")],
        max_roi_pool,
    ),
    OpRow::new(
        "RoiAlign",
        (3, 3),
        &[
            Attr::string("coordinate_transformation_mode")
                .since(16)
                .one_of(&["half_pixel", "output_half_pixel"]),
            Attr::string("mode").one_of(&["avg", "max"]),
            Attr::int("output_height"),
            Attr::int("output_width"),
            Attr::int("sampling_ratio"),
            Attr::float("spatial_scale"),
        ],
        roi_align,
    )
    .since(10),
];

pub(super) fn grid_sample(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, grid) = (cx.input(0)?, cx.input(1)?);
    let mode = match cx.string("mode", "linear").as_str() {
        "nearest" => GridMode::Nearest,
        "cubic" | "bicubic" => GridMode::Cubic,
        _ => GridMode::Linear,
    };
    let padding = match cx.string("padding_mode", "zeros").as_str() {
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        _ => GridPadding::Zeros,
    };
    let align_corners = cx.flag("align_corners", false);
    Ok(vec![cx.op(GridSample { mode, padding, align_corners }, &[x, grid])?])
}

/// Positions from -1 to 1, the fastest dimension first, mapped by a matrix per batch.
fn affine_grid(cx: &mut NodeCx<'_>) -> Outputs {
    let theta = cx.input(0)?;
    let size = cx.ints_input(1)?.ok_or(NodeError::NoInput(1))?;
    let size = size.iter().map(|&d| build::extent(d, "size")).collect::<Result<Vec<_>, _>>()?;
    let dims = cx.dims(theta);
    let (Some(spatial), Some(&batch)) = (size.get(2..), size.first()) else {
        return Err(NodeError::invalid(format!("size {size:?}")));
    };
    let rank = spatial.len();
    if !(2..=3).contains(&rank) || dims != [batch, rank, rank + 1] {
        return Err(NodeError::invalid(format!("theta {dims:?} for size {size:?}")));
    }
    let points = spatial.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let points = points.ok_or_else(|| NodeError::invalid(format!("size {size:?} is too large")))?;
    cx.spend(&Info::plain(DType::F64, vec![points, rank + 1]))?;
    let align = cx.flag("align_corners", false);
    #[allow(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    let coordinate = |i: usize, extent: usize| {
        let (i, n) = (i as f64, extent as f64);
        match (align, extent) {
            // One element lies in the middle.
            (true, 1) => 0.0,
            (true, _) => 2.0 * i / (n - 1.0) - 1.0,
            (false, _) => (2.0 * i + 1.0) / n - 1.0,
        }
    };
    let mut grid: Vec<f64> = Vec::with_capacity(points * (rank + 1));
    for point in 0..points {
        let mut rest = point;
        for &extent in spatial.iter().rev() {
            grid.push(coordinate(rest % extent, extent));
            rest /= extent;
        }
        grid.push(1.0);
    }
    let grid = Tensor::from_slice(&[points, rank + 1], &grid).map_err(GraphError::from)?;
    let grid = cx.constant(grid)?;
    let grid = cast::to(cx, grid, cx.dtype(theta))?;
    let grid = cx.expand(grid, &[batch, points, rank + 1])?;
    let product = MatMul { transposed_b: true, ..MatMul::default() };
    let y = cx.op(product, &[grid, theta])?;
    let shape = [&[batch], spatial, &[rank]].concat();
    Ok(vec![cx.reshape(y, &shape)?])
}

fn roi_align(cx: &mut NodeCx<'_>) -> Outputs {
    let src = cx.inputs()?;
    let old = cx.opset() < 16;
    let coordinates = cx.string("coordinate_transformation_mode", "half_pixel");
    let op = RoiAlign {
        output: [
            build::extent(cx.int("output_height", 1), "output_height")?,
            build::extent(cx.int("output_width", 1), "output_width")?,
        ],
        samples: build::extent(cx.int("sampling_ratio", 0), "sampling_ratio")?,
        scale: cx.float("spatial_scale", 1.0),
        half_pixel: !old && coordinates == "half_pixel",
        max: cx.string("mode", "avg") == "max",
    };
    Ok(vec![cx.op(op, &src)?])
}

fn max_roi_pool(cx: &mut NodeCx<'_>) -> Outputs {
    let src = cx.inputs()?;
    let shape = cx.ints("pooled_shape").unwrap_or_default();
    let &[rows, columns] = &shape[..] else {
        return Err(NodeError::invalid(format!("pooled_shape {shape:?}")));
    };
    let output = [build::extent(rows, "pooled_shape")?, build::extent(columns, "pooled_shape")?];
    let scale = cx.float("spatial_scale", 1.0);
    Ok(vec![cx.op(RoiPool { output, scale }, &src)?])
}
