//! Nodes that are computed by themselves, because the shapes of their results depend on what is in
//! their operands.

use super::{NodeCx, Outputs, Tensors};
use crate::graph::Info;
use crate::import::NodeError;
use crate::import::error::short;
use crate::import::onnx::model::Node;
use crate::tensor::Tensor;

/// What a function that computes a node works with.
pub(crate) struct HostCx<'a> {
    pub(super) node: &'a Node,
    pub(super) inputs: &'a [Option<Tensor>],
}

impl<'a> HostCx<'a> {
    /// The node and its operands; `None` for absent ones.
    pub(crate) fn new(node: &'a Node, inputs: &'a [Option<Tensor>]) -> Self {
        Self { node, inputs }
    }

    /// Computes the node.
    pub(crate) fn compute(&self) -> Tensors {
        match self.node.row.host {
            Some(compute) => compute(self),
            None => Err(NodeError::unsupported("computing the node by itself")),
        }
    }

    /// An input, if it is there.
    pub(super) fn opt(&self, i: usize) -> Option<&'a Tensor> {
        self.inputs.get(i)?.as_ref()
    }

    /// An input that must be there.
    pub(super) fn input(&self, i: usize) -> Result<&'a Tensor, NodeError> {
        self.opt(i).ok_or(NodeError::NoInput(i))
    }

    /// An integer attribute.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.node.attrs.int(name)
    }
}

/// Computes a node at once if all its operands are constants.
pub(super) fn fold(cx: &mut NodeCx<'_>) -> Outputs {
    let mut inputs = Vec::new();
    for i in 0..cx.input_count() {
        let value = cx.opt(i).map(|id| cx.value(id).cloned());
        if matches!(value, Some(None)) {
            let name = cx.node.inputs.get(i).copied().flatten();
            let name = name.and_then(|v| cx.model.values.get(v));
            let value = name.map_or_else(String::new, |n| short(n));
            return Err(NodeError::NotConstant { input: i, value });
        }
        inputs.push(value.flatten());
    }
    let results = HostCx::new(cx.node, &inputs).compute()?;
    let mut out = Vec::new();
    for t in results {
        cx.spend(&Info::plain(t.dtype(), t.dims()))?;
        out.push(cx.constant(t)?);
    }
    Ok(out)
}
