//! Support vector machines of the domain `ai.onnx.ml`.
//!
//! Source: ONNX, domain `ai.onnx.ml`, version 1; for the order of coefficients, of which the text says nothing, LIBSVM.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::ml::{POST_TRANSFORM, best_label, list, numeric, row, transformed};
use super::{NodeCx, OpRow, Outputs, cast, reduce};
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::concat::Concat;
use crate::graph::ops::coupling::Coupling;
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::select::Select;
use crate::graph::{Info, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

const KERNEL: Attr = Attr::string("kernel_type").one_of(&["LINEAR", "POLY", "RBF", "SIGMOID"]);

pub(super) const ROWS: &[OpRow] = &[
    row(
        "SVMClassifier",
        (1, 1),
        &[
            Attr::ints("classlabels_ints"),
            Attr::floats("coefficients").required(),
            Attr::floats("kernel_params"),
            KERNEL,
            Attr::string("post_transform").one_of(&["NONE"]),
            Attr::floats("prob_a"),
            Attr::floats("prob_b"),
            Attr::floats("rho").required(),
            Attr::floats("support_vectors"),
            Attr::ints("vectors_per_class"),
        ],
        svm_classifier,
    )
    .outputs(2, 2),
    row(
        "SVMRegressor",
        (1, 1),
        &[
            Attr::floats("coefficients"),
            Attr::floats("kernel_params"),
            KERNEL,
            Attr::int("n_supports"),
            Attr::int("one_class"),
            POST_TRANSFORM,
            Attr::floats("rho"),
            Attr::floats("support_vectors"),
        ],
        svm_regressor,
    ),
];

/// How the vectors of each class count in the decision between each two classes, the first of which wins above 0:
/// a row per pair. Of a class there are coefficients against each other one, in their order.
fn pairs(of: &[usize], coefficients: &[f32]) -> Option<Vec<f32>> {
    let total = of.iter().try_fold(0usize, |n, &k| n.checked_add(k))?;
    let rows: Vec<&[f32]> = coefficients.chunks(total.max(1)).collect();
    if rows.len() != of.len().checked_sub(1)? || rows.iter().any(|r| r.len() != total) {
        return None;
    }
    let mut starts = vec![0];
    for &k in of {
        starts.push(starts.last()? + k);
    }
    let mut out = Vec::new();
    for i in 0..of.len() {
        for j in i + 1..of.len() {
            let mut line = vec![0.0; total];
            for (class, row) in [(i, j - 1), (j, i)] {
                let range = *starts.get(class)?..*starts.get(class + 1)?;
                line.get_mut(range.clone())?.copy_from_slice(rows.get(row)?.get(range)?);
            }
            out.extend(line);
        }
    }
    Some(out)
}

/// Each two classes are compared, and the one that wins most often is it. Scores are those of the comparisons, or
/// the probabilities that follow from them.
fn svm_classifier(cx: &mut NodeCx<'_>) -> Outputs {
    /// Comparisons are the square of that, and each has a number per class.
    const MOST: usize = 1 << 7;
    let labels = cx.ints("classlabels_ints").unwrap_or_default();
    let of = cx.ints("vectors_per_class").unwrap_or_default();
    if of.is_empty() {
        return Err(NodeError::unsupported("a classifier without vectors_per_class"));
    }
    let of = of.into_iter().map(|n| build::extent(n, "vectors_per_class"));
    let of = of.collect::<Result<Vec<usize>, _>>()?;
    let coefficients = cx.floats("coefficients").unwrap_or_default();
    let vectors = cx.floats("support_vectors").unwrap_or_default();
    let rho = cx.floats("rho").unwrap_or_default();
    let x = numeric(cx)?;
    let x = cast::to(cx, x, DType::F32)?;
    let (classes, dims) = (of.len(), cx.dims(x));
    let &[rows, width] = &dims[..] else { return Err(NodeError::NoInput(0)) };
    let count = of.iter().try_fold(0usize, |n, &k| n.checked_add(k)).unwrap_or(usize::MAX);
    let fits = (2..=MOST).contains(&classes)
        && labels.len() == classes
        && count.checked_mul(width) == Some(vectors.len())
        && rho.len() == classes * (classes - 1) / 2;
    if !fits {
        let (n, r) = (labels.len(), rho.len());
        let what =
            format!("{n} labels, {classes} vectors_per_class and {r} numbers of rho for {dims:?}");
        return Err(NodeError::invalid(what));
    }
    cx.spend(&Info::plain(DType::F32, vec![rho.len(), count]))?;
    let Some(table) = pairs(&of, &coefficients) else {
        let n = coefficients.len();
        return Err(NodeError::invalid(format!("{n} coefficients of {count} vectors")));
    };
    let near = kernel(cx, x, [count, width], &vectors)?;
    let src = [near, list(cx, &[rho.len(), count], &table)?, list(cx, &[rho.len()], &rho)?];
    let product = MatMul { transposed_b: true, bias: true, ..MatMul::default() };
    let scores = cx.op(product, &src)?;
    // Votes: a comparison that the first does not win, the second does.
    let (mut wins, mut start) = (vec![0f32; rho.len() * classes], vec![0f32; classes]);
    let mut lines = wins.chunks_exact_mut(classes);
    for i in 0..classes {
        for j in i + 1..classes {
            if let Some(line) = lines.next() {
                line.iter_mut().enumerate().for_each(|(k, v)| match k {
                    k if k == i => *v = 1.0,
                    k if k == j => *v = -1.0,
                    _ => {}
                });
            }
            start.iter_mut().skip(j).take(1).for_each(|v| *v += 1.0);
        }
    }
    let zero = cx.scalar(DType::F32, 0.0)?;
    let first = cx.op(Compare { op: CompareOp::Less }, &[zero, scores])?;
    let first = cast::to(cx, first, DType::F32)?;
    let src = [first, list(cx, &[rho.len(), classes], &wins)?, list(cx, &[classes], &start)?];
    let votes = cx.op(MatMul { bias: true, ..MatMul::default() }, &src)?;
    let label = best_label(cx, votes, &labels)?;
    match (cx.floats("prob_a"), cx.floats("prob_b")) {
        (Some(a), Some(b)) => {
            let y = cx.op(Coupling { classes, a, b }, &[scores])?;
            Ok(vec![label, y])
        }
        (None, None) if classes == 2 => {
            let scores = cx.reshape(scores, &[rows, 1])?;
            let other = cx.unary(UnaryOp::Neg, scores)?;
            Ok(vec![label, cx.op(Concat { axis: 1 }, &[other, scores])?])
        }
        (None, None) => Ok(vec![label, scores]),
        _ => Err(NodeError::invalid("prob_a goes with prob_b")),
    }
}

/// A sum of kernels of the distances to known rows.
fn svm_regressor(cx: &mut NodeCx<'_>) -> Outputs {
    let x = numeric(cx)?;
    let x = cast::to(cx, x, DType::F32)?;
    let width = cx.dims(x).last().copied().unwrap_or(0);
    let weights = cx.floats("coefficients").unwrap_or_default();
    let vectors = cx.floats("support_vectors").unwrap_or_default();
    let count = build::extent(cx.int("n_supports", 0), "n_supports")?;
    let rho = cx.floats("rho").unwrap_or_default();
    // Without support vectors the kernel is linear, and coefficients are those of columns.
    let wanted = if count > 0 { count } else { width };
    if weights.len() != wanted || count.checked_mul(width) != Some(vectors.len()) || rho.len() != 1
    {
        let (n, v) = (weights.len(), vectors.len());
        let what =
            format!("{n} coefficients and {v} numbers of support_vectors for {count} x {width}");
        return Err(NodeError::invalid(what));
    }
    let near = if count == 0 { x } else { kernel(cx, x, [count, width], &vectors)? };
    let src = [near, list(cx, &[1, wanted], &weights)?, list(cx, &[1], &rho)?];
    let product = MatMul { transposed_b: true, bias: true, ..MatMul::default() };
    let mut y = cx.op(product, &src)?;
    if cx.flag("one_class", false) {
        let (zero, one) = (cx.scalar(DType::F32, 0.0)?, cx.scalar(DType::F32, 1.0)?);
        let minus = cx.scalar(DType::F32, -1.0)?;
        let inside = cx.op(Compare { op: CompareOp::Less }, &[zero, y])?;
        y = cx.op(Select, &[inside, one, minus])?;
    }
    Ok(vec![transformed(cx, y)?])
}

/// How near each row of `x` is to each of the support vectors.
fn kernel(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    [count, width]: [usize; 2],
    vectors: &[f32],
) -> Result<TensorId, NodeError> {
    let params = cx.floats("kernel_params").unwrap_or_default();
    let kind = cx.string("kernel_type", "LINEAR");
    let (gamma, shift, degree) = match params[..] {
        [gamma, shift, degree] => (gamma, shift, degree),
        _ if kind == "LINEAR" => (1.0, 0.0, 1.0),
        _ => return Err(NodeError::invalid(format!("kernel_params {params:?}"))),
    };
    if kind == "RBF" {
        let rows = cx.dims(x).first().copied().unwrap_or(0);
        cx.spend(&Info::plain(DType::F32, vec![count, width]))?;
        let (x, v) = (cx.reshape(x, &[rows, 1, width])?, list(cx, &[1, count, width], vectors)?);
        let apart = cx.binary(BinaryOp::Sub, x, v)?;
        let far = reduce::over(cx, ReduceOp::SumSquare, apart, &[2], false)?;
        let far = cx.unary(UnaryOp::Affine { scale: -gamma, shift: 0.0 }, far)?;
        return cx.unary(UnaryOp::Exp, far);
    }
    let v = list(cx, &[count, width], vectors)?;
    let y = cx.op(MatMul { transposed_b: true, ..MatMul::default() }, &[x, v])?;
    if kind == "LINEAR" {
        return Ok(y);
    }
    let y = cx.unary(UnaryOp::Affine { scale: gamma, shift }, y)?;
    if kind == "SIGMOID" {
        return cx.unary(UnaryOp::Tanh, y);
    }
    let degree = cx.scalar(DType::F32, f64::from(degree))?;
    cx.binary(BinaryOp::Pow, y, degree)
}
