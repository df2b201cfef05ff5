//! Pixels that become channels, and channels that become pixels.

use super::{NodeCx, OpRow, Outputs};
use crate::graph::TensorId;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

const ONE: (u8, u8) = (1, 1);
const ORDERS: &[&str] = &["DCR", "CRD"];

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "DepthToSpace",
        ONE,
        &[Attr::int("blocksize").required(), Attr::string("mode").since(11).one_of(ORDERS)],
        depth_to_space,
    ),
    OpRow::new(
        "SpaceToDepth",
        ONE,
        &[Attr::int("blocksize").required(), Attr::string("mode").since(28).one_of(ORDERS)],
        space_to_depth,
    ),
];

/// `[n, c, h, w]` and the block size.
fn picture(cx: &NodeCx<'_>, x: TensorId) -> Result<([usize; 4], usize), NodeError> {
    let dims = cx.dims(x);
    let block = build::extent(cx.int("blocksize", 0), "blocksize")?;
    match dims[..] {
        [n, c, h, w] if block > 0 => Ok(([n, c, h, w], block)),
        _ => Err(NodeError::invalid(format!("x {dims:?} with blocks of {block}"))),
    }
}

fn uneven(dims: [usize; 4], block: usize) -> NodeError {
    NodeError::invalid(format!("x {dims:?} does not divide into blocks of {block}"))
}

fn depth_to_space(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (dims @ [n, c, h, w], b) = picture(cx, x)?;
    let area = b.checked_mul(b).filter(|&a| c.is_multiple_of(a));
    let area = area.ok_or_else(|| uneven(dims, b))?;
    let depth = c / area;
    let y = if cx.string("mode", "DCR") == "DCR" {
        let y = cx.reshape(x, &[n, b, b, depth, h, w])?;
        cx.transpose(y, &[0, 3, 4, 1, 5, 2])?
    } else {
        let y = cx.reshape(x, &[n, depth, b, b, h, w])?;
        cx.transpose(y, &[0, 1, 4, 2, 5, 3])?
    };
    let (Some(h), Some(w)) = (h.checked_mul(b), w.checked_mul(b)) else {
        return Err(uneven(dims, b));
    };
    Ok(vec![cx.reshape(y, &[n, depth, h, w])?])
}

fn space_to_depth(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (dims @ [n, c, h, w], b) = picture(cx, x)?;
    if !h.is_multiple_of(b) || !w.is_multiple_of(b) {
        return Err(uneven(dims, b));
    }
    let depth = b.checked_mul(b).and_then(|a| a.checked_mul(c));
    let depth = depth.ok_or_else(|| uneven(dims, b))?;
    let y = cx.reshape(x, &[n, c, h / b, b, w / b, b])?;
    let crd = cx.string("mode", "DCR") == "CRD";
    let y = cx.transpose(y, if crd { &[0, 1, 3, 5, 2, 4] } else { &[0, 3, 5, 1, 2, 4] })?;
    Ok(vec![cx.reshape(y, &[n, depth, h / b, w / b])?])
}
