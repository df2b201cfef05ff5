//! Pooling.

use super::conv::Window;
use super::{NodeCx, OpRow, Outputs, windows};
use crate::graph::TensorId;
use crate::graph::ops::pool::{Pool, PoolKind};
use crate::graph::ops::pool_nd::PoolNdKind;
use crate::graph::ops::reduce::ReduceOp;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

const AUTO_PAD: Attr =
    Attr::string("auto_pad").one_of(&["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]);

const AVERAGE: PoolKind = PoolKind::Average { include_pad: false };

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "AveragePool",
        (1, 1),
        &[
            AUTO_PAD,
            Attr::int("ceil_mode").since(10),
            Attr::int("count_include_pad"),
            Attr::ints("dilations").since(19),
            Attr::ints("kernel_shape").required(),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        |cx| {
            let include_pad = cx.flag("count_include_pad", false);
            pool(cx, PoolKind::Average { include_pad })
        },
    ),
    OpRow::new("GlobalAveragePool", (1, 1), &[], |cx| global(cx, AVERAGE)),
    OpRow::new("GlobalMaxPool", (1, 1), &[], |cx| global(cx, PoolKind::Max)),
    OpRow::new(
        "MaxPool",
        (1, 1),
        &[
            AUTO_PAD,
            Attr::int("ceil_mode").since(10),
            Attr::ints("dilations").since(10),
            Attr::ints("kernel_shape").required(),
            Attr::ints("pads"),
            // About the order of the second output.
            Attr::int("storage_order").since(8),
            Attr::ints("strides"),
        ],
        |cx| {
            let mut out = pool(cx, PoolKind::Max)?;
            if cx.output_count() > 1 {
                let columns = cx.flag("storage_order", false);
                let x = cx.input(0)?;
                out.push(windows::pool(cx, x, PoolNdKind::Position { columns })?);
            }
            Ok(out)
        },
    )
    .outputs(2, 2),
];

fn pool(cx: &mut NodeCx<'_>, kind: PoolKind) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![pool_of(cx, x, kind)?])
}

/// A pool of `x` with the node's attributes.
pub(super) fn pool_of(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    kind: PoolKind,
) -> Result<TensorId, NodeError> {
    let dtype = cx.dtype(x);
    let kernel = match kind {
        PoolKind::Max => matches!(dtype, DType::F32 | DType::F64 | DType::I8 | DType::U8),
        PoolKind::Average { .. } => matches!(dtype, DType::F32 | DType::F64),
    };
    if cx.rank(x) > 4 || !kernel {
        let kind = match kind {
            PoolKind::Max => PoolNdKind::Max,
            PoolKind::Average { include_pad } => PoolNdKind::Average { include_pad },
        };
        return windows::pool(cx, x, kind);
    }
    let size = cx.ints("kernel_shape").unwrap_or_default();
    let size =
        size.iter().map(|&d| build::extent(d, "kernel_shape")).collect::<Result<Vec<_>, _>>()?;
    let mut window = Window::read(cx, &cx.dims(x), &size)?;
    window.resolve_same()?;
    let op = Pool {
        kind,
        window: window.size,
        stride: window.stride,
        dilation: window.dilation,
        pads: window.pads,
        // With derived padding the rounding is part of the derivation.
        ceil: cx.flag("ceil_mode", false) && !windows::same(cx),
    };
    // Pictures of one channel each are channels of one: kernels take sixteen at a time.
    if let [pictures @ (2..), 1, ref map @ ..] = cx.dims(x)[..] {
        let x = cx.reshape(x, &[&[1, pictures], map].concat())?;
        let y = cx.op(op, &[x])?;
        let map = cx.dims(y).split_off(2);
        return cx.reshape(y, &[vec![pictures, 1], map].concat());
    }
    cx.op(op, &[x])
}

fn global(cx: &mut NodeCx<'_>, kind: PoolKind) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![global_of(cx, x, kind)?])
}

/// A pool over the whole map of `x`.
pub(super) fn global_of(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    kind: PoolKind,
) -> Result<TensorId, NodeError> {
    let dims = cx.dims(x);
    let map = match dims[..] {
        [_, _, w] => [1, w],
        [_, _, h, w] => [h, w],
        [_, _, _, _, _, ..] => {
            let op = if kind == PoolKind::Max { ReduceOp::Max } else { ReduceOp::Mean };
            let axes: Vec<usize> = (2..dims.len()).collect();
            return super::reduce::over(cx, op, x, &axes, true);
        }
        _ => return Err(NodeError::invalid(format!("x {dims:?} has no spatial dimension"))),
    };
    cx.op(Pool::global(kind, map), &[x])
}
