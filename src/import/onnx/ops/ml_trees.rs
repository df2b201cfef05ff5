//! Ensembles of trees of the domain `ai.onnx.ml`, as converters of scikit-learn, LightGBM and XGBoost write them.
//!
//! Source: ONNX, domain `ai.onnx.ml`, versions 1 and 3; for what labels and scores of two classes are, of which the
//! text says nothing, ONNX Runtime.

use std::collections::{HashMap, HashSet};

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::ml::{POST_TRANSFORM, best_label, labels_of_two, numeric, row, transformed};
use super::{NodeCx, OpRow, Outputs};
use crate::graph::ops::concat::Concat;
use crate::graph::ops::trees::{Aggregate, Node, Test, Trees};
use crate::graph::{GraphError, TensorId};
use crate::import::NodeError;
use crate::import::error::short;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::order::sort_indices;
use crate::tensor::{DType, Tensor};

/// The attributes of both operators, then those of one.
macro_rules! attrs {
    ($($own:expr),* $(,)?) => {
        &[
            Attr::floats("base_values"),
            Attr::tensor("base_values_as_tensor").since(3),
            Attr::ints("nodes_falsenodeids"),
            Attr::ints("nodes_featureids"),
            // About speed.
            Attr::floats("nodes_hitrates"),
            Attr::tensor("nodes_hitrates_as_tensor").since(3),
            Attr::ints("nodes_missing_value_tracks_true"),
            Attr::strings("nodes_modes"),
            Attr::ints("nodes_nodeids"),
            Attr::ints("nodes_treeids"),
            Attr::ints("nodes_truenodeids"),
            Attr::floats("nodes_values"),
            Attr::tensor("nodes_values_as_tensor").since(3),
            POST_TRANSFORM,
            $($own,)*
        ]
    };
}

pub(super) const ROWS: &[OpRow] = &[
    row(
        "TreeEnsembleClassifier",
        (1, 1),
        attrs![
            Attr::ints("class_ids"),
            Attr::ints("class_nodeids"),
            Attr::ints("class_treeids"),
            Attr::floats("class_weights"),
            Attr::tensor("class_weights_as_tensor").since(3),
            Attr::ints("classlabels_int64s"),
        ],
        classifier,
    )
    .outputs(2, 2),
    row(
        "TreeEnsembleRegressor",
        (1, 1),
        attrs![
            Attr::string("aggregate_function").one_of(&["SUM", "AVERAGE", "MIN", "MAX"]),
            Attr::int("n_targets"),
            Attr::ints("target_ids"),
            Attr::ints("target_nodeids"),
            Attr::ints("target_treeids"),
            Attr::floats("target_weights"),
            Attr::tensor("target_weights_as_tensor").since(3),
        ],
        regressor,
    ),
];

/// A list of numbers, of which there are two forms.
fn numbers(cx: &NodeCx<'_>, name: &str) -> Result<Vec<f64>, NodeError> {
    let Some(t) = cx.tensor(&format!("{name}_as_tensor")) else {
        return Ok(cx.floats(name).unwrap_or_default().into_iter().map(f64::from).collect());
    };
    match t.dtype() {
        DType::F32 => {
            Ok(t.as_slice::<f32>().map_err(GraphError::from)?.iter().map(|&v| v.into()).collect())
        }
        DType::F64 => Ok(t.as_slice::<f64>().map_err(GraphError::from)?.to_vec()),
        dtype => Err(NodeError::unsupported(format!("{name}_as_tensor of {dtype}"))),
    }
}

/// The weights that leaves have.
struct Weights {
    /// Tree, node and column of each.
    places: Vec<((i64, i64), usize)>,
    values: Vec<f64>,
}

/// The weights that attributes of a prefix say.
fn weights(cx: &NodeCx<'_>, prefix: &str) -> Result<Weights, NodeError> {
    let ints = |name: &str| cx.ints(&format!("{prefix}_{name}")).unwrap_or_default();
    let (trees, nodes, columns) = (ints("treeids"), ints("nodeids"), ints("ids"));
    let values = numbers(cx, &format!("{prefix}_weights"))?;
    let count = values.len();
    if [trees.len(), nodes.len(), columns.len()] != [count; 3] {
        let what = format!("lists of {prefix} with different lengths");
        return Err(NodeError::invalid(what));
    }
    let columns: Result<Vec<usize>, NodeError> =
        columns.into_iter().map(|c| build::extent(c, prefix)).collect();
    let places = trees.into_iter().zip(nodes).zip(columns?).collect();
    Ok(Weights { places, values })
}

/// The trees of the node.
fn trees(
    cx: &NodeCx<'_>,
    weights: Weights,
    columns: usize,
    aggregate: Aggregate,
) -> Result<Trees, NodeError> {
    let ints = |name: &str| cx.ints(name).unwrap_or_default();
    let (ids, treeids) = (ints("nodes_nodeids"), ints("nodes_treeids"));
    let (yes, no) = (ints("nodes_truenodeids"), ints("nodes_falsenodeids"));
    let (features, splits) = (ints("nodes_featureids"), numbers(cx, "nodes_values")?);
    let modes = cx.strings("nodes_modes").unwrap_or_default();
    let mut missing = ints("nodes_missing_value_tracks_true");
    missing.resize(ids.len().max(missing.len()), 0);
    let lengths = [
        treeids.len(),
        yes.len(),
        no.len(),
        features.len(),
        splits.len(),
        modes.len(),
        missing.len(),
    ];
    if lengths.iter().any(|&n| n != ids.len()) {
        return Err(NodeError::invalid("lists of nodes with different lengths"));
    }
    let keys: Vec<(i64, i64)> = treeids.into_iter().zip(ids).collect();
    let places: HashMap<(i64, i64), usize> =
        keys.iter().enumerate().map(|(i, &key)| (key, i)).collect();
    if places.len() != keys.len() {
        return Err(NodeError::invalid("two nodes of a tree with one number"));
    }
    // The weights of a leaf side by side.
    let mut order: Vec<usize> = (0..weights.values.len()).collect();
    let key = |i: usize| weights.places.get(i).map(|(key, _)| *key);
    sort_indices(&mut order, &mut |a, b| key(a).cmp(&key(b)));
    let mut sorted = Vec::new();
    let mut ranges: Vec<((i64, i64), (usize, usize))> = Vec::new();
    for i in order {
        let (Some(&(key, column)), Some(&weight)) = (weights.places.get(i), weights.values.get(i))
        else {
            continue;
        };
        let first = sorted.len();
        sorted.push((column, weight));
        match ranges.last_mut().filter(|(last, _)| *last == key) {
            Some((_, range)) => range.1 = sorted.len(),
            None => ranges.push((key, (first, sorted.len()))),
        }
    }
    let mut nodes = Vec::new();
    let mut children = HashSet::new();
    let all = keys.iter().zip(&modes).zip(features.iter().zip(&splits));
    for (((key, mode), (&feature, &split)), (children_of, &missing)) in
        all.zip(yes.iter().zip(&no).zip(&missing))
    {
        let test = match mode.as_str() {
            "LEAF" => {
                let at = ranges.binary_search_by_key(key, |range| range.0).ok();
                let (start, end) = at.and_then(|at| ranges.get(at)).map_or((0, 0), |range| range.1);
                nodes.push(Node::Leaf { start, end });
                continue;
            }
            "BRANCH_LEQ" => Test::LessOrEqual,
            "BRANCH_LT" => Test::Less,
            "BRANCH_GTE" => Test::GreaterOrEqual,
            "BRANCH_GT" => Test::Greater,
            "BRANCH_EQ" => Test::Equal,
            "BRANCH_NEQ" => Test::NotEqual,
            other => return Err(NodeError::unsupported(format!("nodes_modes {}", short(other)))),
        };
        let child = |id: i64| {
            places
                .get(&(key.0, id))
                .copied()
                .ok_or_else(|| NodeError::invalid(format!("tree {} has no node {id}", key.0)))
        };
        let (yes, no) = (child(*children_of.0)?, child(*children_of.1)?);
        children.extend([yes, no]);
        let feature = build::extent(feature, "nodes_featureids")?;
        nodes.push(Node::Branch { test, feature, split, yes, no, missing: missing != 0 });
    }
    let roots: Vec<usize> = (0..nodes.len()).filter(|i| !children.contains(i)).collect();
    let count = keys.iter().map(|k| k.0).collect::<HashSet<_>>().len();
    let trees = Trees::new(nodes, roots.clone(), sorted, columns, aggregate);
    let trees = trees.filter(|_| roots.len() == count);
    trees.ok_or_else(|| NodeError::invalid("nodes that do not form a tree of each number"))
}

/// Plus the values that columns begin with, if there are some.
fn based(cx: &mut NodeCx<'_>, y: TensorId, base: &[f64]) -> Result<TensorId, NodeError> {
    if base.is_empty() {
        return Ok(y);
    }
    #[allow(clippy::cast_possible_truncation, reason = "results are f32")]
    let base: Vec<f32> = base.iter().map(|&v| v as f32).collect();
    let base = Tensor::from_slice(&[base.len()], &base).map_err(GraphError::from)?;
    let base = cx.constant(base)?;
    cx.binary(BinaryOp::Add, y, base)
}

fn regressor(cx: &mut NodeCx<'_>) -> Outputs {
    let targets = build::extent(cx.int("n_targets", 1), "n_targets")?;
    let aggregate = match cx.string("aggregate_function", "SUM").as_str() {
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        _ => Aggregate::Sum,
    };
    let (weights, base) = (weights(cx, "target")?, numbers(cx, "base_values")?);
    if !base.is_empty() && base.len() != targets {
        let what = format!("{} base_values for {targets} targets", base.len());
        return Err(NodeError::invalid(what));
    }
    let op = trees(cx, weights, targets, aggregate)?;
    let x = numeric(cx)?;
    let y = cx.op(op, &[x])?;
    let y = based(cx, y, &base)?;
    Ok(vec![transformed(cx, y)?])
}

fn classifier(cx: &mut NodeCx<'_>) -> Outputs {
    let labels = cx.ints("classlabels_int64s").unwrap_or_default();
    let (mut weights, base) = (weights(cx, "class")?, numbers(cx, "base_values")?);
    let named: HashSet<usize> = weights.places.iter().map(|(_, c)| *c).collect();
    let x = numeric(cx)?;
    // Two classes with weights of each are classes like any others.
    if labels.len() != 2 || named.len() > 1 {
        if labels.is_empty() || !base.is_empty() && base.len() != labels.len() {
            let (n, b) = (labels.len(), base.len());
            return Err(NodeError::invalid(format!("{n} classlabels_int64s with {b} base_values")));
        }
        let op = trees(cx, weights, labels.len(), Aggregate::Sum)?;
        let scores = cx.op(op, &[x])?;
        let scores = based(cx, scores, &base)?;
        let label = best_label(cx, scores, &labels)?;
        return Ok(vec![label, transformed(cx, scores)?]);
    }
    // Of two classes converters write one score. Where it is called that of the first, the other follows from it.
    let second = named.contains(&1);
    if base.len() > usize::from(!second) {
        let what = format!("two classes with weights of one and {} base_values", base.len());
        return Err(NodeError::unsupported(what));
    }
    weights.places.iter_mut().for_each(|(_, column)| *column = 0);
    let shares = weights.values.iter().all(|&w| w >= 0.0);
    let op = trees(cx, weights, 1, Aggregate::Sum)?;
    let score = cx.op(op, &[x])?;
    let score = based(cx, score, &base)?;
    let label = labels_of_two(cx, score, if shares { 0.5 } else { 0.0 }, &labels)?;
    let post = cx.string("post_transform", "NONE");
    let rest = UnaryOp::Affine { scale: -1.0, shift: if shares { 1.0 } else { 0.0 } };
    let other = match (second, post.as_str()) {
        (true, _) => UnaryOp::Affine { scale: 0.0, shift: 0.0 },
        (false, "LOGISTIC") => UnaryOp::Neg,
        (false, _) => rest,
    };
    let other = cx.unary(other, score)?;
    let both = cx.op(Concat { axis: 1 }, &[other, score])?;
    // One score has no softmax.
    let plain = !second && post == "SOFTMAX";
    Ok(vec![label, if plain { both } else { transformed(cx, both)? }])
}
