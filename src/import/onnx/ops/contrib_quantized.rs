//! Operators of the domain `com.microsoft` on integers with scales that stand beside those of ONNX: tables of which
//! rows are looked up, weights in codes of four bits, networks whose channels come last.
//!
//! Source: the texts of the operators in ONNX Runtime.

use tilewright_kernels::template::binary::BinaryOp;

use super::contrib::{by_pixel, read, row, write, write_as};
use super::contrib_attention::{ABSENT, embedded};
use super::{NodeCx, OpRow, Outputs, cast, conv, matmul, pool, quantize, reduce};
use crate::graph::TensorId;
use crate::graph::ops::bits_to_blocks::BitsToBlocks;
use crate::graph::ops::block_matmul::BlockMatMul;
use crate::graph::ops::dequantize::Dequantize;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::pool::PoolKind;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::select::Select;
use crate::graph::ops::unpack_bits::{Code, UnpackBits};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

pub(super) const ROWS: &[OpRow] = &[
    row(
        "GatherBlockQuantized",
        (3, 4),
        &[
            Attr::int("bits").only(&[2, 4, 8]),
            Attr::int("block_size"),
            Attr::int("gather_axis"),
            Attr::int("quantize_axis"),
        ],
        gather_block_quantized,
    ),
    row(
        "MatMulBnb4",
        (3, 3),
        &[
            Attr::int("K").required(),
            Attr::int("N").required(),
            Attr::int("block_size").required(),
            Attr::int("quant_type").required().only(&[0, 1]),
            Attr::int("training_mode"),
            Attr::int("transB").only(&[0, 1]),
        ],
        matmul_bnb4,
    ),
    row("MatMulInteger16", (2, 2), &[], |cx| {
        let (a, b) = (cx.input(0)?, cx.input(1)?);
        let (a, b) = (cast::to(cx, a, DType::I32)?, cast::to(cx, b, DType::I32)?);
        Ok(vec![matmul::product(cx, a, b)?])
    }),
    row(
        "NhwcMaxPool",
        (1, 1),
        &[
            conv::AUTO_PAD,
            Attr::int("ceil_mode"),
            Attr::ints("dilations"),
            Attr::ints("kernel_shape").required(),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        |cx| {
            let x = cx.input(0)?;
            Ok(vec![by_pixel(cx, x, true, |cx, x| pool::pool_of(cx, x, PoolKind::Max))?])
        },
    ),
    row("QEmbedLayerNormalization", (18, 18), &[Attr::float("epsilon")], quantized_embedding)
        .outputs(2, 2),
    row(
        "QLinearConv",
        (8, 9),
        &[
            conv::AUTO_PAD,
            Attr::int("channels_last").only(&[0, 1]),
            Attr::ints("dilations"),
            Attr::int("group"),
            Attr::ints("kernel_shape"),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        |cx| {
            let (x, last) = (cx.input(0)?, cx.flag("channels_last", false));
            Ok(vec![by_pixel(cx, x, last, quantize::qlinear_conv_of)?])
        },
    ),
    row(
        "QLinearReduceMean",
        (4, 5),
        &[Attr::ints("axes").required(), Attr::int("keepdims").required()],
        |cx| {
            let x = read(cx, 0, 1, 2)?;
            let rank = cx.rank(x);
            let given = build::axes(&cx.ints("axes").unwrap_or_default(), rank)?;
            let axes: Vec<usize> =
                (0..rank).filter(|i| given.is_empty() || given.contains(i)).collect();
            let y = reduce::over(cx, ReduceOp::Mean, x, &axes, cx.flag("keepdims", true))?;
            write(cx, y, 3, 4)
        },
    ),
    row("QLinearWhere", (9, 9), &[], |cx| {
        let (yes, no) = (read(cx, 1, 2, 3)?, read(cx, 4, 5, 6)?);
        let condition = cx.input(0)?;
        let y = cx.op(Select, &[condition, yes, no])?;
        write_as(cx, y, 7, 8, 1)
    }),
];

/// Rows of a table in blocks with a scale each. Only those that are looked up are unpacked: vocabularies are large.
fn gather_block_quantized(cx: &mut NodeCx<'_>) -> Outputs {
    let (data, indices, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let dims = cx.dims(data);
    let block = build::extent(cx.int("block_size", 128), "block_size")?;
    let gather = build::axis(cx.int("gather_axis", 0), dims.len())?;
    let axis = build::axis(cx.int("quantize_axis", 1), dims.len())?;
    let bits = build::extent(cx.int("bits", 4), "bits")?;
    let found = cx.dims(scales);
    let (Some(&extent), Some(&blocks)) = (dims.get(axis), found.get(axis)) else {
        return Err(NodeError::invalid(format!("scales {found:?} for data {dims:?}")));
    };
    if block == 0 {
        return Err(NodeError::unsupported("block_size 0"));
    }
    let bytes = cx.dtype(data) == DType::U8 && !cx.has_few_bits(0);
    let packed = extent.checked_mul(8 / bits.clamp(1, 8)).filter(|_| bytes);
    let packed = packed.filter(|n| n.div_ceil(block) == blocks);
    // Nibbles of a type of their own are bytes here; bytes are several nibbles wherever that fits the scales.
    if bits < 8 && packed.is_none() && extent.div_ceil(block) == blocks {
        if axis == gather {
            return Err(NodeError::unsupported(format!(
                "blocks along the axis {gather} of indices"
            )));
        }
        let scales = cast::to(cx, scales, DType::F32)?;
        let mut parts = Vec::new();
        for part in [Some(data), Some(scales), cx.opt(3)].into_iter().flatten() {
            parts.push(cx.op(Gather { axis: gather }, &[part, indices])?);
        }
        // Axes after that of the indices have moved.
        let moved = if axis > gather { (axis + cx.rank(indices)).saturating_sub(1) } else { axis };
        return Ok(vec![cx.op(Dequantize { axis: Some(moved), block }, &parts)?]);
    }
    let (Some(columns), true) = (packed, gather == 0 && axis > 0 && axis + 1 == dims.len()) else {
        let what = format!(
            "data {dims:?} of {} in blocks of {block} along axis {axis}, scales {found:?}, gathered along {gather}",
            cx.dtype(data)
        );
        return Err(NodeError::unsupported(what));
    };
    let scales = cast::to(cx, scales, DType::F32)?;
    let mut parts = Vec::new();
    for part in [Some(data), Some(scales), cx.opt(3)].into_iter().flatten() {
        parts.push(cx.op(Gather { axis: 0 }, &[part, indices])?);
    }
    let &[numbers, ..] = &parts[..] else { return Err(NodeError::NoInput(0)) };
    let mut shape = cx.dims(numbers);
    let outer = shape.len().saturating_sub(1);
    let rows = shape.iter().take(outer).try_fold(1usize, |n, &d| n.checked_mul(d));
    let rows = rows.ok_or_else(|| NodeError::invalid(format!("indices make {shape:?}")))?;
    if !columns.is_multiple_of(block) {
        let what = format!("rows of {columns} numbers in blocks of {block}");
        return Err(NodeError::unsupported(what));
    }
    let y = cx.op(UnpackBits { bits, rows, columns, block, code: Code::Linear }, &parts)?;
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    Ok(vec![cx.reshape(y, &shape)?])
}

/// The product with weights in codes of four bits, a row per output.
fn matmul_bnb4(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, w, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let extent = |cx: &NodeCx<'_>, name: &str| build::extent(cx.int(name, 0), name);
    let op = UnpackBits {
        bits: 4,
        rows: extent(cx, "N")?,
        columns: extent(cx, "K")?,
        block: extent(cx, "block_size")?,
        code: if cx.int("quant_type", 1) == 0 { Code::Fp4 } else { Code::Nf4 },
    };
    let scales = cast::to(cx, scales, DType::F32)?;
    let mut w = cx.op(op, &[w, scales])?;
    if cx.flag("transB", true) {
        w = cx.transpose(w, &[1, 0])?;
    }
    Ok(vec![matmul::product(cx, x, w)?])
}

/// Embeddings that are bytes, each tensor with one scale and one zero point.
fn quantized_embedding(cx: &mut NodeCx<'_>) -> Outputs {
    let axis_free = Dequantize { axis: None, block: 0 };
    let mut tables = Vec::new();
    for (table, scale) in [(2, 8), (3, 9), (4, 10), (5, 11), (6, 12)] {
        let Some(table) = cx.opt(table) else {
            tables.push(None);
            continue;
        };
        // The words are looked up before they become floats: there are many.
        tables.push(Some((table, [cx.input(scale)?, cx.input(scale + 5)?])));
    }
    let &[Some(words), Some(positions), segments, Some(gamma), Some(beta)] = &tables[..] else {
        return Err(NodeError::NoInput(2));
    };
    let look_up = |cx: &mut NodeCx<'_>, (table, [scale, zero]): (TensorId, [TensorId; 2]), at| {
        let rows = cx.op(Gather { axis: 0 }, &[table, at])?;
        cx.op(axis_free, &[rows, scale, zero])
    };
    let plain = |cx: &mut NodeCx<'_>, (x, [scale, zero]): (TensorId, [TensorId; 2])| {
        cx.op(axis_free, &[x, scale, zero])
    };
    let (gamma, beta) = (plain(cx, gamma)?, plain(cx, beta)?);
    let mut out = embedded(
        cx,
        [Some(words), Some(positions), segments],
        [gamma, beta],
        [7, ABSENT],
        look_up,
    )?;
    out.truncate(2);
    Ok(out)
}

/// The product with weights of few bits whose columns belong to blocks that a list names: column `i` to the block
/// `groups[i]`.
pub(super) fn grouped_weights(
    cx: &mut NodeCx<'_>,
    op: UnpackBits,
    [w, scales, groups]: [TensorId; 3],
    zeros: Option<TensorId>,
) -> Result<TensorId, NodeError> {
    let too_large = || NodeError::invalid("N and K are too large");
    let UnpackBits { bits, rows, columns, block, .. } = op;
    let blocks = columns.div_ceil(block.max(1));
    let count = rows.checked_mul(blocks).ok_or_else(too_large)?;
    let (zero, one) = (cx.scalar(DType::F32, 0.0)?, cx.scalar(DType::F32, 1.0)?);
    let [zero, one] = [zero, one].map(|x| cx.expand(x, &[count]));
    let (zero, one) = (zero?, one?);
    let numbers = cx.op(op, &[w, one, zero])?;
    #[allow(clippy::cast_precision_loss, reason = "at most 128")]
    let middle = (1u32 << (bits.clamp(1, 8) - 1)) as f32;
    let zeros = match zeros {
        Some(z) if cx.dtype(z) == DType::U8 => {
            // A row of them is a block that fills its bytes.
            let whole = blocks.checked_next_multiple_of(8 / bits.clamp(1, 8));
            let whole = whole.ok_or_else(too_large)?;
            let op = UnpackBits { columns: blocks, block: whole, ..op };
            let (zero, one) = (cx.slice(zero, 0, 0, rows, 1)?, cx.slice(one, 0, 0, rows, 1)?);
            cx.op(op, &[z, one, zero])?
        }
        Some(z) => cx.reshape(z, &[rows, blocks])?,
        None => {
            let middle = cx.scalar(DType::F32, f64::from(middle))?;
            cx.expand(middle, &[rows, blocks])?
        }
    };
    let scales = cx.reshape(scales, &[rows, blocks])?;
    let given = cx.dims(groups);
    if !matches!(given[..], [n] if n >= columns) {
        return Err(NodeError::invalid(format!("g_idx {given:?} for {columns} columns")));
    }
    let groups = cx.slice(groups, 0, 0, columns, 1)?;
    let [scales, zeros] = [scales, zeros].map(|x| cx.op(Gather { axis: 1 }, &[x, groups]));
    let centred = cx.binary(BinaryOp::Sub, numbers, zeros?)?;
    cx.binary(BinaryOp::Mul, centred, scales?)
}

/// The block-quantised type that holds the weights of a product, if one does: constants in whole blocks, without an
/// order of their own. With an accuracy of 4, activations may be rounded to 8 bits, as ONNX Runtime does then.
pub(super) fn blocks(cx: &NodeCx<'_>, from: UnpackBits) -> Result<Option<DType>, NodeError> {
    let known = [1, 2, 3]
        .into_iter()
        .all(|i| cx.opt(i).is_none_or(|id| cx.ctx.constant_value(id).is_some()));
    if !known || cx.opt(4).is_some() || cx.dims(cx.input(0)?).is_empty() {
        return Ok(None);
    }
    let zeros = cx.opt(3).is_some();
    // Zero points that are floats may be anything.
    let rounded = cx.int("accuracy_level", 0) == 4
        && cx.opt(3).is_none_or(|z| cx.dtype(z) == DType::U8)
        && cx.floats_input(2)?.is_some_and(|scales| BitsToBlocks::has_halves(&scales));
    let fits = |to: &DType| BitsToBlocks { from, to: *to }.fits(zeros);
    let bytes = [DType::Q4_0, DType::Q8_0, DType::Q4_1].into_iter().filter(|_| rounded);
    Ok(bytes.chain([DType::U4]).find(fits))
}

/// The product of `x [..., columns]` and such weights, plus the bias of the node.
pub(super) fn block_product(
    cx: &mut NodeCx<'_>,
    from: UnpackBits,
    to: DType,
    [x, w, scales]: [TensorId; 3],
) -> Result<TensorId, NodeError> {
    let src: Vec<TensorId> = [w, scales].into_iter().chain(cx.opt(3)).collect();
    let w = cx.op(BitsToBlocks { from, to }, &src)?;
    let (mut dims, dtype) = (cx.dims(x), cx.dtype(x));
    let elements: usize = dims.iter().product();
    let k = dims.pop().unwrap_or_default();
    // Of no columns the product refuses whatever there is.
    let rows = elements.checked_div(k).unwrap_or(0);
    let x = cast::to(cx, x, DType::F32)?;
    let mut src = vec![cx.reshape(x, &[rows, k])?, w];
    if let Some(bias) = cx.opt(5) {
        src.push(cast::to(cx, bias, DType::F32)?);
    }
    let y = cx.op(BlockMatMul { bias: src.len() > 2 }, &src)?;
    dims.push(from.rows);
    let y = cx.reshape(y, &dims)?;
    cast::to(cx, y, dtype)
}
