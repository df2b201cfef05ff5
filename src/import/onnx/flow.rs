//! Runs what a graph for concrete shapes cannot say: stages one after the other, nodes whose results
//! have shapes that depend on data, branches and loops.
//!
//! The order of things is here; who plans and runs a stage is a [`Runner`], which the importer knows
//! nothing more of.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::data::{computed, narrowed};
use super::load::not_built;
use super::model::{Body, Node, OnnxModel, ValueId};
use super::ops::HostCx;
use super::repeat;
use super::stage::{After, Nodes, Stage, StageKey};
use crate::graph::{Context, GraphError};
use crate::import::{ImportError, NodeError};
use crate::tensor::{DType, Tensor};

/// Plans and runs stages.
pub trait Runner {
    /// What can go wrong.
    type Error: From<ImportError>;

    /// Runs the stage of `key` on `inputs`, with a plan made before for an equal key or one of the
    /// graph that `build` makes; gives the results of the stage and what comes after it. Leaves of
    /// the graph have positions in `inputs` as names.
    ///
    /// # Errors
    /// Those of `build`, and what planning and running refuse.
    fn run(
        &mut self,
        key: &StageKey,
        inputs: &[&Tensor],
        build: &dyn Fn(&mut Context) -> Result<Stage, ImportError>,
    ) -> Result<(Vec<Tensor>, Arc<After>), Self::Error>;
}

/// Bodies that a run of a model may run: after more, which take half a minute even if each does
/// nothing, a loop is taken for one that does not end.
const MAX_BODIES: u64 = 1 << 24;

/// Values by number.
pub(super) type Live = BTreeMap<ValueId, Tensor>;

impl OnnxModel {
    /// Runs what comes after the first stage, of which `results` are what it computed on `inputs`;
    /// gives the outputs in the model's order.
    ///
    /// # Errors
    /// Those of the stages, and of nodes that refuse their operands.
    pub fn resume<R: Runner>(
        &self,
        runner: &mut R,
        inputs: &[&Tensor],
        results: Vec<Tensor>,
        after: &After,
    ) -> Result<Vec<Tensor>, R::Error> {
        if !cfg!(feature = "ops-control") {
            let what = "shapes that depend on what the model computes";
            return Err(not_built(what, "ops-control").into());
        }
        // One by one: `collect` would sort them first, 3 KB of code for each type.
        let mut live = Live::new();
        for ((info, &value), t) in self.inputs.iter().zip(&self.graph.inputs).zip(inputs) {
            if computed(info.dtype) == info.dtype {
                live.insert(value, (*t).clone());
            }
        }
        let mut driver = Driver { model: self, runner, bodies: 0 };
        driver.settle(&self.graph, &mut live, results, after)?;
        let outputs = driver.finish(&self.graph, live, after.next.clone())?;
        let declared = outputs.into_iter().zip(&self.outputs).map(|(t, info)| {
            let half = computed(info.dtype) != info.dtype && t.dtype() == DType::F32;
            if half { narrowed(&t, info.dtype) } else { Ok(t) }
        });
        declared.map(|t| t.map_err(|e| ImportError::from(GraphError::from(e)).into())).collect()
    }
}

/// Runs the graphs of a model.
pub(super) struct Driver<'m, 'r, R> {
    model: &'m OnnxModel,
    runner: &'r mut R,
    /// Bodies run so far.
    bodies: u64,
}

impl<R: Runner> Driver<'_, '_, R> {
    /// Runs a body on its inputs and on what it reads of `around`, the values of the graph around
    /// it; gives its outputs.
    pub(super) fn body(
        &mut self,
        body: &Body,
        inputs: Vec<Tensor>,
        around: &Live,
    ) -> Result<Vec<Tensor>, R::Error> {
        self.bodies += 1;
        if self.bodies > MAX_BODIES {
            return Err(missing("a loop that does not end"));
        }
        let captures = body.captures.iter();
        let mut live = Live::new();
        live.extend(captures.filter_map(|v| Some((*v, around.get(v)?.clone()))));
        live.extend(body.inputs.iter().copied().zip(inputs));
        self.finish(body, live, body.all.clone())
    }

    /// Runs the nodes of a graph that are left, and gives the graph's outputs.
    fn finish(
        &mut self,
        graph: &Body,
        mut live: Live,
        mut next: Arc<Nodes>,
    ) -> Result<Vec<Tensor>, R::Error> {
        // A stage in which nothing is built finds out which values must be known in the next.
        let mut idle = false;
        while !next.is_empty() {
            let key = StageKey::new(graph, &next, &live, &self.model.shaping);
            let inputs: Option<Vec<&Tensor>> =
                key.given.iter().map(|g| live.get(&g.value)).collect();
            let inputs = inputs.unwrap_or_default();
            let build = |ctx: &mut Context| self.model.stage(ctx, graph, &key);
            let (results, after) = self.runner.run(&key, &inputs, &build)?;
            if after.built + after.alone.len() == 0 {
                if let Some(why) = after.why.clone().filter(|_| idle) {
                    return Err(why.into());
                }
                if idle {
                    return Err(missing("a node that waits for a value in vain"));
                }
                idle = true;
            } else {
                idle = false;
            }
            self.settle(graph, &mut live, results, &after)?;
            next = after.next.clone();
        }
        let mut outputs = Vec::with_capacity(graph.outputs.len());
        for &v in &graph.outputs {
            let value = self.value(&live, v).ok_or_else(|| missing("an output without a value"))?;
            outputs.push(value.clone());
        }
        Ok(outputs)
    }

    /// Takes over what a stage computed, and runs the nodes that run by themselves then.
    fn settle(
        &mut self,
        graph: &Body,
        live: &mut Live,
        results: Vec<Tensor>,
        after: &After,
    ) -> Result<(), R::Error> {
        live.extend(after.computed.iter().copied().zip(results));
        live.extend(after.constants.iter().cloned());
        for (value, same) in &after.aliases {
            if let Some(t) = live.get(same).cloned() {
                live.insert(*value, t);
            }
        }
        for node in after.alone.iter().filter_map(|&i| graph.nodes.get(i)) {
            let results = self.node(node, live)?;
            for (value, t) in node.outputs.iter().zip(results) {
                live.extend(value.map(|v| (v, t)));
            }
        }
        // Behind the last stage all go at once.
        if !after.next.is_empty() {
            live.retain(|v, _| after.keep.contains(v));
        }
        Ok(())
    }

    fn value<'v>(&'v self, live: &'v Live, value: ValueId) -> Option<&'v Tensor> {
        live.get(&value).or_else(|| self.model.constant(value))
    }

    /// Runs one node by itself.
    fn node(&mut self, node: &Node, live: &Live) -> Result<Vec<Tensor>, R::Error> {
        let inputs: Vec<Option<Tensor>> =
            node.inputs.iter().map(|v| self.value(live, (*v)?).cloned()).collect();
        let there = inputs.iter().zip(&node.inputs).all(|(t, v)| t.is_some() == v.is_some());
        let error = |source: NodeError| {
            R::Error::from(ImportError::Node {
                node: node.name.to_string(),
                op: node.row.name,
                source,
            })
        };
        if !there {
            return Err(error(NodeError::invalid("an operand has no value")));
        }
        if node.row.host.is_some() {
            return HostCx::new(node, &inputs).compute().map_err(error);
        }
        if node.bodies.is_empty() {
            return self.model.compute(node, &inputs).map_err(error);
        }
        repeat::run(self, node, &inputs, live, &error)
    }
}

fn missing<E: From<ImportError>>(what: &'static str) -> E {
    let e = GraphError::Unsupported { op: "run", what: what.to_owned() };
    ImportError::from(e).into()
}
