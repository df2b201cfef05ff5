//! Decision trees.

use std::sync::Arc;

use super::elements::{expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// The weights of the leaves that each row of a matrix reaches, one per tree, summed up (or the like) per column of
/// the result, as ONNX `TreeEnsembleRegressor` (domain `ai.onnx.ml`). A column that no leaf has a weight for is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Trees {
    /// All nodes. Those of a tree form a tree; [`Trees::new`] makes sure of it.
    nodes: Arc<[Node]>,
    /// The first node of each tree.
    roots: Arc<[usize]>,
    /// Column and weight of what leaves add.
    weights: Arc<[(usize, f64)]>,
    /// Columns of the result.
    columns: usize,
    /// How weights of a column become one.
    aggregate: Aggregate,
    /// Columns of the operand, of which nodes test some.
    features: usize,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// It asks a question.
    Branch {
        /// The question.
        test: Test,
        /// Of which element of the row.
        feature: usize,
        /// What it is compared with.
        split: f64,
        /// The node to go on with if so.
        yes: usize,
        /// The node to go on with if not.
        no: usize,
        /// Whether an element that is not a number goes to `yes` whatever the question.
        missing: bool,
    },
    /// It has the weights of a range.
    Leaf {
        /// The first.
        start: usize,
        /// One past the last.
        end: usize,
    },
}

/// How an element is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are their names")]
pub enum Test {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
}

/// How the weights of a column become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are their names")]
pub enum Aggregate {
    Sum,
    /// The sum over the number of trees.
    Average,
    Min,
    Max,
}

const OP: &str = "trees";

impl Trees {
    /// `None` if a node, a weight or a column is named that is not there, or a node is reached in two ways or in
    /// none.
    pub fn new(
        nodes: Vec<Node>,
        roots: Vec<usize>,
        weights: Vec<(usize, f64)>,
        columns: usize,
        aggregate: Aggregate,
    ) -> Option<Self> {
        let mut features = 0;
        let mut met = vec![false; nodes.len()];
        let mut open = roots.clone();
        while let Some(at) = open.pop() {
            if core::mem::replace(met.get_mut(at)?, true) {
                return None;
            }
            match *nodes.get(at)? {
                Node::Branch { feature, yes, no, .. } => {
                    features = features.max(feature.checked_add(1)?);
                    open.extend([yes, no]);
                }
                Node::Leaf { start, end } => {
                    weights.get(start..end)?;
                }
            }
        }
        let fits = weights.iter().all(|&(column, _)| column < columns) && met.iter().all(|&m| m);
        let (nodes, roots, weights) = (nodes.into(), roots.into(), weights.into());
        fits.then_some(Self { nodes, roots, weights, columns, aggregate, features })
    }

    /// The weights of the leaf that a row reaches.
    fn leaf(&self, mut at: usize, row: &[f64]) -> &[(usize, f64)] {
        loop {
            match self.nodes[at] {
                Node::Leaf { start, end } => return &self.weights[start..end],
                Node::Branch { test, feature, split, yes, no, missing } => {
                    let x = row[feature];
                    let is = match test {
                        Test::LessOrEqual => x <= split,
                        Test::Less => x < split,
                        Test::GreaterOrEqual => x >= split,
                        Test::Greater => x > split,
                        Test::Equal => x == split,
                        Test::NotEqual => x != split,
                    };
                    at = if is || missing && x.is_nan() { yes } else { no };
                }
            }
        }
    }

    fn row(&self, row: &[f64]) -> Vec<f64> {
        let mut out: Vec<Option<f64>> = vec![None; self.columns];
        for &root in self.roots.iter() {
            for &(column, weight) in self.leaf(root, row) {
                let so_far = out[column];
                out[column] = Some(match (so_far, self.aggregate) {
                    (None, _) => weight,
                    (Some(v), Aggregate::Sum | Aggregate::Average) => v + weight,
                    (Some(v), Aggregate::Min) => v.min(weight),
                    (Some(v), Aggregate::Max) => v.max(weight),
                });
            }
        }
        let divisor =
            if self.aggregate == Aggregate::Average { self.roots.len() as f64 } else { 1.0 };
        out.into_iter().map(|v| v.unwrap_or(0.0) / divisor.max(1.0)).collect()
    }
}

impl Operator for Trees {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        expect_dtype(OP, &src[0], |d| matches!(d, DType::F32 | DType::F64))?;
        match src[0].dims[..] {
            [rows, width] if width >= self.features => {
                Ok(Info::plain(DType::F32, vec![rows, self.columns]))
            }
            _ => {
                let rule = "x must be a matrix with all columns that the trees test";
                let shapes = [("x", &src[0].dims[..]), ("columns tested", &[self.features])];
                Err(GraphError::mismatch(OP, rule, &shapes))
            }
        }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, width) = (floats(&src[0], OP)?, src[0].dims[1]);
        let rows = 0..src[0].dims[0];
        write_floats(dst, OP, rows.flat_map(|i| self.row(&x[i * width..][..width])))
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        let rows = src[0].dims.first().copied().unwrap_or(0) as u64;
        rows.saturating_mul(self.nodes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn branch(feature: usize, split: f64, yes: usize, no: usize) -> Node {
        Node::Branch { test: Test::LessOrEqual, feature, split, yes, no, missing: true }
    }

    fn leaf(at: usize) -> Node {
        Node::Leaf { start: at, end: at + 1 }
    }

    #[test]
    fn leaves_add_up() {
        let nodes =
            vec![branch(0, 1.0, 1, 2), leaf(0), leaf(1), branch(1, 0.5, 4, 5), leaf(2), leaf(3)];
        let weights = vec![(0, 1.0), (1, 2.0), (0, 4.0), (1, 8.0)];
        let x = Tensor::from_slice(&[3, 2], &[1.0f32, 0.0, 2.0, 1.0, f32::NAN, 1.0]).unwrap();
        let run = |aggregate| {
            let mut cx = Context::new();
            let op = Trees::new(nodes.clone(), vec![0, 3], weights.clone(), 2, aggregate);
            let x = cx.constant(x.clone()).unwrap();
            let y = cx.op(op.unwrap(), &[x]).unwrap();
            cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec()
        };
        assert_eq!(run(Aggregate::Sum), [5.0, 0.0, 0.0, 10.0, 1.0, 8.0]);
        assert_eq!(run(Aggregate::Average), [2.5, 0.0, 0.0, 5.0, 0.5, 4.0]);
        assert_eq!(run(Aggregate::Min), [1.0, 0.0, 0.0, 2.0, 1.0, 8.0]);
        assert_eq!(run(Aggregate::Max), [4.0, 0.0, 0.0, 8.0, 1.0, 8.0]);
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        let new = |nodes: Vec<Node>, weights: Vec<(usize, f64)>| {
            Trees::new(nodes, vec![0], weights, 1, Aggregate::Sum)
        };
        assert!(new(vec![leaf(0)], vec![(0, 1.0)]).is_some());
        assert!(new(vec![leaf(0)], vec![]).is_none());
        assert!(new(vec![leaf(0)], vec![(1, 1.0)]).is_none());
        assert!(new(vec![branch(0, 0.0, 0, 1), leaf(0)], vec![(0, 1.0)]).is_none());
        assert!(new(vec![branch(0, 0.0, 1, 1), leaf(0)], vec![(0, 1.0)]).is_none());
        assert!(new(vec![branch(0, 0.0, 1, 2), leaf(0)], vec![(0, 1.0)]).is_none());
        let deep = new(vec![branch(7, 0.0, 1, 2), leaf(0), leaf(0)], vec![(0, 1.0)]).unwrap();
        let narrow = [Info::plain(DType::F32, vec![3, 7])];
        assert!(deep.infer(&narrow).is_err());
    }
}
