//! Conversions between element types.

use super::{NodeCx, OpRow, Outputs};
use crate::graph::TensorId;
use crate::graph::ops::cast::Cast;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::data::computed;
use crate::import::onnx::proto::data_type;
use crate::tensor::DType;

// `saturate` and `round_mode` are about 8-bit floats, which are not supported.
pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "Cast",
        (1, 1),
        &[
            Attr::int("to").required().only(&[1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16]),
            Attr::int("saturate").since(19),
            Attr::string("round_mode").since(24),
        ],
        cast,
    )
    .since(6),
    OpRow::new(
        "CastLike",
        (2, 2),
        &[Attr::int("saturate").since(19), Attr::string("round_mode").since(24)],
        cast_like,
    )
    .since(15),
];

/// The tensor in another element type; itself if it has the type.
pub(super) fn to(cx: &mut NodeCx<'_>, x: TensorId, dtype: DType) -> Result<TensorId, NodeError> {
    if cx.dtype(x) == dtype { Ok(x) } else { cx.op(Cast { to: dtype }, &[x]) }
}

/// The element type with an ONNX number, as it is computed.
pub(super) fn dtype_of(number: i64) -> Result<DType, NodeError> {
    i32::try_from(number)
        .ok()
        .and_then(data_type::to_dtype)
        .map(computed)
        .ok_or_else(|| NodeError::unsupported(format!("element type number {number}")))
}

fn cast(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dtype = dtype_of(cx.int("to", 0))?;
    Ok(vec![to(cx, x, dtype)?])
}

fn cast_like(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, like) = (cx.input(0)?, cx.input(1)?);
    let dtype = cx.dtype(like);
    Ok(vec![to(cx, x, dtype)?])
}
