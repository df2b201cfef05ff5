//! Operators of the domain `ai.onnx.ml` on numbers: what stands before and after classical models, and linear ones.
//! Labels are integers: there are no tensors of strings.
//!
//! Source: ONNX, domain `ai.onnx.ml`, versions 1 to 5; for what labels and scores of one column are, of which the text
//! says nothing, ONNX Runtime.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::{MANY, NodeCx, OpRow, Outputs, cast, reduce};
use crate::graph::ops::arg_reduce::ArgReduce;
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::concat::Concat;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::select::Select;
use crate::graph::ops::softmax::Softmax;
use crate::graph::ops::special::Special;
use crate::graph::{GraphError, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::{DType, Element, Tensor};

pub(super) const POST_TRANSFORM: Attr =
    Attr::string("post_transform").one_of(&["NONE", "LOGISTIC", "SOFTMAX"]);

/// A row of the domain.
pub(super) const fn row(
    name: &'static str,
    inputs: (u8, u8),
    attrs: &'static [Attr],
    build: fn(&mut NodeCx<'_>) -> Outputs,
) -> OpRow {
    OpRow::new(name, inputs, attrs, build).domain("ai.onnx.ml").since(1)
}

pub(super) const ROWS: &[OpRow] = &[
    row("ArrayFeatureExtractor", (2, 2), &[], array_feature_extractor),
    row("Binarizer", (1, 1), &[Attr::float("threshold")], |cx| {
        let x = cx.input(0)?;
        let threshold = f64::from(cx.float("threshold", 0.0));
        let threshold = cx.scalar(cx.dtype(x), threshold)?;
        let above = cx.op(Compare { op: CompareOp::Less }, &[threshold, x])?;
        Ok(vec![cast::to(cx, above, cx.dtype(x))?])
    }),
    row("FeatureVectorizer", (1, MANY), &[Attr::ints("inputdimensions")], feature_vectorizer),
    row(
        "Imputer",
        (1, 1),
        &[
            Attr::floats("imputed_value_floats"),
            Attr::ints("imputed_value_int64s"),
            Attr::float("replaced_value_float"),
            Attr::int("replaced_value_int64"),
        ],
        imputer,
    ),
    row(
        "LabelEncoder",
        (1, 1),
        &[
            Attr::float("default_float"),
            Attr::int("default_int64"),
            Attr::floats("keys_floats").since(2),
            Attr::ints("keys_int64s").since(2),
            Attr::floats("values_floats").since(2),
            Attr::ints("values_int64s").since(2),
        ],
        label_encoder,
    )
    .since(2),
    row(
        "LinearClassifier",
        (1, 1),
        &[
            Attr::ints("classlabels_ints"),
            Attr::floats("coefficients").required(),
            Attr::floats("intercepts"),
            // Coefficients are the same either way.
            Attr::int("multi_class"),
            POST_TRANSFORM,
        ],
        linear_classifier,
    )
    .outputs(2, 2),
    row(
        "LinearRegressor",
        (1, 1),
        &[
            Attr::floats("coefficients"),
            Attr::floats("intercepts"),
            POST_TRANSFORM,
            Attr::int("targets"),
        ],
        |cx| {
            let targets = build::extent(cx.int("targets", 1), "targets")?;
            let y = linear(cx, targets)?;
            Ok(vec![transformed(cx, y)?])
        },
    ),
    row("Normalizer", (1, 1), &[Attr::string("norm").one_of(&["MAX", "L1", "L2"])], normalizer),
    row(
        "OneHotEncoder",
        (1, 1),
        &[Attr::ints("cats_int64s").required(), Attr::int("zeros")],
        one_hot_encoder,
    ),
    row("Scaler", (1, 1), &[Attr::floats("offset"), Attr::floats("scale")], |cx| {
        let x = cx.input(0)?;
        let (mut y, width) = (cast::to(cx, x, DType::F32)?, cx.dims(x).last().copied());
        for (name, op) in [("offset", BinaryOp::Sub), ("scale", BinaryOp::Mul)] {
            let Some(values) = cx.floats(name) else { continue };
            if values.len() != 1 && Some(values.len()) != width {
                let (n, x) = (values.len(), cx.dims(x));
                return Err(NodeError::invalid(format!("{n} numbers of {name} for x {x:?}")));
            }
            let values = list(cx, &[values.len()], &values)?;
            y = cx.binary(op, y, values)?;
        }
        Ok(vec![y])
    }),
    row(ZIP_MAP, (1, 1), &[Attr::ints("classlabels_int64s")], zip_map),
];

/// Maps from labels to scores, one per row. They stay what they are made of: a matrix of scores, whose columns are in
/// the order of the labels.
pub(in crate::import::onnx) const ZIP_MAP: &str = "ZipMap";

fn zip_map(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let labels = cx.ints("classlabels_int64s").unwrap_or_default().len();
    let dims = cx.dims(x);
    if !(1..=2).contains(&dims.len()) || dims.last() != Some(&labels) {
        return Err(NodeError::invalid(format!("{labels} labels for scores {dims:?}")));
    }
    Ok(vec![cast::to(cx, x, DType::F32)?])
}

/// A constant from an attribute.
pub(super) fn list<T: Element + bytemuck::NoUninit>(
    cx: &mut NodeCx<'_>,
    dims: &[usize],
    values: &[T],
) -> Result<TensorId, NodeError> {
    cx.constant(Tensor::from_slice(dims, values).map_err(GraphError::from)?)
}

/// The rows of input 0 as floats; one row is a matrix of it.
pub(super) fn numeric(cx: &mut NodeCx<'_>) -> Result<TensorId, NodeError> {
    let x = cx.input(0)?;
    let x = if cx.dtype(x) == DType::F64 { x } else { cast::to(cx, x, DType::F32)? };
    match cx.dims(x)[..] {
        [_, _] => Ok(x),
        [n] => cx.reshape(x, &[1, n]),
        ref dims => Err(NodeError::invalid(format!("x {dims:?} must be a matrix"))),
    }
}

/// Scores as the attribute wants them.
pub(super) fn transformed(cx: &mut NodeCx<'_>, y: TensorId) -> Result<TensorId, NodeError> {
    match cx.string("post_transform", "NONE").as_str() {
        "LOGISTIC" => cx.unary(UnaryOp::Sigmoid, y),
        "SOFTMAX" => cx.op(Softmax::along(1), &[y]),
        _ => Ok(y),
    }
}

/// The label of the best score of each row.
pub(super) fn best_label(
    cx: &mut NodeCx<'_>,
    scores: TensorId,
    labels: &[i64],
) -> Result<TensorId, NodeError> {
    let best = cx.op(ArgReduce { axis: 1, smallest: false, last: false }, &[scores])?;
    let rows = cx.dims(scores).first().copied().unwrap_or(0);
    let best = cx.reshape(best, &[rows])?;
    let labels = list(cx, &[labels.len()], labels)?;
    cx.op(Gather { axis: 0 }, &[labels, best])
}

/// The second label where a score is above a limit, the first elsewhere.
pub(super) fn labels_of_two(
    cx: &mut NodeCx<'_>,
    score: TensorId,
    limit: f64,
    labels: &[i64],
) -> Result<TensorId, NodeError> {
    let limit = cx.scalar(DType::F32, limit)?;
    let above = cx.op(Compare { op: CompareOp::Less }, &[limit, score])?;
    let rows = cx.dims(score).first().copied().unwrap_or(0);
    let above = cx.reshape(above, &[rows])?;
    let at = cast::to(cx, above, DType::I64)?;
    let labels = list(cx, &[labels.len()], labels)?;
    cx.op(Gather { axis: 0 }, &[labels, at])
}

/// `x * coefficients + intercepts`, of `columns` columns.
fn linear(cx: &mut NodeCx<'_>, columns: usize) -> Result<TensorId, NodeError> {
    let x = numeric(cx)?;
    let x = cast::to(cx, x, DType::F32)?;
    let width = cx.dims(x).last().copied().unwrap_or(0);
    let weights = cx.floats("coefficients").unwrap_or_default();
    let bias = cx.floats("intercepts").unwrap_or_default();
    let fits = columns.checked_mul(width) == Some(weights.len());
    if !fits || !(bias.is_empty() || bias.len() == columns) {
        let (n, b) = (weights.len(), bias.len());
        let what = format!("{n} coefficients and {b} intercepts for {width} to {columns} columns");
        return Err(NodeError::invalid(what));
    }
    let mut src = vec![x, list(cx, &[columns, width], &weights)?];
    if !bias.is_empty() {
        src.push(list(cx, &[columns], &bias)?);
    }
    cx.op(MatMul { transposed_b: true, bias: src.len() > 2, ..MatMul::default() }, &src)
}

fn linear_classifier(cx: &mut NodeCx<'_>) -> Outputs {
    let labels = cx.ints("classlabels_ints").unwrap_or_default();
    let x = cx.input(0)?;
    let width = cx.dims(x).last().copied().unwrap_or(0).max(1);
    let columns = cx.floats("coefficients").unwrap_or_default().len() / width;
    if columns == 1 && labels.len() == 2 {
        let score = linear(cx, 1)?;
        let label = labels_of_two(cx, score, 0.0, &labels)?;
        // Of logits the other one is less the score, of shares what is left.
        let logistic = cx.string("post_transform", "NONE") == "LOGISTIC";
        let shift = if logistic { 0.0 } else { 1.0 };
        let other = cx.unary(UnaryOp::Affine { scale: -1.0, shift }, score)?;
        let both = cx.op(Concat { axis: 1 }, &[other, score])?;
        return Ok(vec![label, if logistic { transformed(cx, both)? } else { both }]);
    }
    if columns != labels.len() {
        let n = labels.len();
        return Err(NodeError::unsupported(format!("{columns} scores for {n} classlabels_ints")));
    }
    let scores = linear(cx, columns)?;
    let label = best_label(cx, scores, &labels)?;
    Ok(vec![label, transformed(cx, scores)?])
}

/// Columns that a list names.
fn array_feature_extractor(cx: &mut NodeCx<'_>) -> Outputs {
    let (mut x, at) = (cx.input(0)?, cx.input(1)?);
    if let &[n] = &cx.dims(x)[..] {
        x = cx.reshape(x, &[1, n])?;
    }
    let count = cx.dims(at).iter().product();
    let at = cx.reshape(at, &[count])?;
    let axis = build::axis(-1, cx.rank(x))?;
    Ok(vec![cx.op(Gather { axis }, &[x, at])?])
}

/// Columns of several inputs side by side.
fn feature_vectorizer(cx: &mut NodeCx<'_>) -> Outputs {
    let mut parts = Vec::new();
    let widths = cx.ints("inputdimensions");
    for (i, x) in cx.inputs()?.into_iter().enumerate() {
        let dims = cx.dims(x);
        let (rows, width) = match dims[..] {
            [rows] => (rows, 1),
            [rows, width] => (rows, width),
            _ => return Err(NodeError::invalid(format!("input {i} {dims:?} must be a matrix"))),
        };
        let wanted = widths
            .as_ref()
            .map_or(Some(width), |w| w.get(i).and_then(|&w| usize::try_from(w).ok()));
        if wanted != Some(width) {
            let what = format!("inputdimensions {widths:?} with input {i} {dims:?}");
            return Err(NodeError::unsupported(what));
        }
        let x = cast::to(cx, x, DType::F32)?;
        parts.push(cx.reshape(x, &[rows, width])?);
    }
    Ok(vec![if let [one] = parts[..] { one } else { cx.op(Concat { axis: 1 }, &parts)? }])
}

/// One value is replaced by that of its column.
fn imputer(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (dtype, width) = (cx.dtype(x), cx.dims(x).last().copied());
    let fits = |n: usize| n == 1 || Some(n) == width;
    let (gone, values) = match (cx.floats("imputed_value_floats"), cx.ints("imputed_value_int64s"))
    {
        (Some(v), None) if dtype.is_float() && fits(v.len()) => {
            let replaced = cx.float("replaced_value_float", 0.0);
            let gone = if replaced.is_nan() {
                cx.op(Special { nan: true, positive: false, negative: false }, &[x])?
            } else {
                let replaced = cx.scalar(dtype, f64::from(replaced))?;
                cx.op(Compare { op: CompareOp::Equal }, &[x, replaced])?
            };
            (gone, list(cx, &[v.len()], &v)?)
        }
        (None, Some(v)) if dtype == DType::I64 && fits(v.len()) => {
            let replaced = list(cx, &[], &[cx.int("replaced_value_int64", 0)])?;
            (cx.op(Compare { op: CompareOp::Equal }, &[x, replaced])?, list(cx, &[v.len()], &v)?)
        }
        _ => {
            let x = cx.dims(x);
            return Err(NodeError::invalid(format!("imputed values for x {x:?} of {dtype}")));
        }
    };
    let values = cast::to(cx, values, dtype)?;
    Ok(vec![cx.op(Select, &[gone, values, x])?])
}

/// What a list has for each key of another list. Equal elements are found by comparing with all keys.
fn label_encoder(cx: &mut NodeCx<'_>) -> Outputs {
    /// More keys would take a table.
    const MOST: usize = 1 << 12;
    let x = cx.input(0)?;
    let (keys, count) = match (cx.floats("keys_floats"), cx.ints("keys_int64s")) {
        (Some(keys), None) => (list(cx, &[keys.len()], &keys)?, keys.len()),
        (None, Some(keys)) => (list(cx, &[keys.len()], &keys)?, keys.len()),
        _ => return Err(NodeError::invalid("keys_floats or keys_int64s must be there")),
    };
    let (values, len, default) = match (cx.floats("values_floats"), cx.ints("values_int64s")) {
        (Some(v), None) => {
            let default = cx.float("default_float", -0.0);
            (list(cx, &[v.len()], &v)?, v.len(), list(cx, &[], &[default])?)
        }
        (None, Some(v)) => {
            let default = cx.int("default_int64", -1);
            (list(cx, &[v.len()], &v)?, v.len(), list(cx, &[], &[default])?)
        }
        _ => return Err(NodeError::invalid("values_floats or values_int64s must be there")),
    };
    if count != len || count == 0 || cx.dtype(x) != cx.dtype(keys) {
        let (x, keys) = (cx.dtype(x), cx.dtype(keys));
        let what = format!("{count} keys of {keys} for x of {x}, {len} values");
        return Err(NodeError::invalid(what));
    }
    if count > MOST {
        return Err(NodeError::unsupported(format!("{count} keys (at most {MOST})")));
    }
    let dims = cx.dims(x);
    let column = [&dims[..], &[1]].concat();
    let wide = cx.reshape(x, &column)?;
    let same = cx.op(Compare { op: CompareOp::Equal }, &[wide, keys])?;
    let same = cast::to(cx, same, DType::F32)?;
    let axis = dims.len();
    let at = cx.op(ArgReduce { axis, smallest: false, last: false }, &[same])?;
    let at = cx.reshape(at, &dims)?;
    let found = cx.op(Gather { axis: 0 }, &[values, at])?;
    let most = reduce::over(cx, ReduceOp::Max, same, &[axis], false)?;
    let one = cx.scalar(DType::F32, 1.0)?;
    let known = cx.op(Compare { op: CompareOp::Equal }, &[most, one])?;
    Ok(vec![cx.op(Select, &[known, found, default])?])
}

/// A further dimension with 1 at the place of the category. A value that is no category has only zeros there, or, unless
/// `zeros` says so, ends the run: as an index that is out of range.
fn one_hot_encoder(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let categories = cx.ints("cats_int64s").unwrap_or_default();
    let categories = list(cx, &[categories.len()], &categories)?;
    let x = cast::to(cx, x, DType::I64)?;
    let column = [&cx.dims(x)[..], &[1]].concat();
    let count = cx.dims(categories).first().copied().unwrap_or(0);
    let wide = cx.reshape(x, &column)?;
    let same = cx.op(Compare { op: CompareOp::Equal }, &[wide, categories])?;
    let same = cast::to(cx, same, DType::F32)?;
    if cx.flag("zeros", true) || count == 0 {
        return Ok(vec![same]);
    }
    // 0 for a category, past the end of a list of one for anything else.
    let known = reduce::over(cx, ReduceOp::Max, same, &[column.len() - 1], true)?;
    let unknown = cx.unary(UnaryOp::Affine { scale: -1.0, shift: 1.0 }, known)?;
    let unknown = cast::to(cx, unknown, DType::I64)?;
    let one = list(cx, &[1], &[1.0f32])?;
    let one = cx.op(Gather { axis: 0 }, &[one, unknown])?;
    Ok(vec![cx.binary(BinaryOp::Mul, same, one)?])
}

/// Rows divided by their norm; those of norm 0 stay.
fn normalizer(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let x = cast::to(cx, x, DType::F32)?;
    let axis = build::axis(-1, cx.rank(x))?;
    let op = match cx.string("norm", "MAX").as_str() {
        "L1" => ReduceOp::L1,
        "L2" => ReduceOp::L2,
        _ => ReduceOp::Max,
    };
    let norm = reduce::over(cx, op, x, &[axis], true)?;
    let (zero, one) = (cx.scalar(DType::F32, 0.0)?, cx.scalar(DType::F32, 1.0)?);
    let is_zero = cx.op(Compare { op: CompareOp::Equal }, &[norm, zero])?;
    let norm = cx.op(Select, &[is_zero, one, norm])?;
    Ok(vec![cx.binary(BinaryOp::Div, x, norm)?])
}
