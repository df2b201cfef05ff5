//! From the nodes of a loaded model to graphs for concrete shapes, as far as shapes are known.
//!
//! A graph has plain numbers for shapes. Where a shape depends on what a run computes, building
//! stops: the nodes that can be built make a [`Stage`], which is planned and run like any graph;
//! with its results known, building goes on. A model without such nodes is one stage.

use core::ops::Deref;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};

use super::budget::Budget;
use super::build::NodeCx;
use super::data::computed;
use super::model::{Body, Node, OnnxModel, ValueId};
use super::shaping::Shaping;
use crate::graph::ops::cast::Cast;
use crate::graph::{Context, GraphError, TensorId};
use crate::import::error::fit;
use crate::import::{ImportError, NodeError};
use crate::tensor::{DType, Tensor};

/// What has been built.
#[derive(Debug)]
pub struct Stage {
    /// What the stage is to compute.
    pub outputs: Vec<TensorId>,
    /// What comes after it; `None` if `outputs` are those of the model.
    pub after: Option<After>,
}

/// What to do when a stage has run.
#[derive(Debug, Default)]
pub struct After {
    /// The value that each output of the stage is.
    pub(super) computed: Vec<ValueId>,
    /// Values that building found out.
    pub(super) constants: Vec<(ValueId, Tensor)>,
    /// Values that are the same as others that were there before.
    pub(super) aliases: Vec<(ValueId, ValueId)>,
    /// Nodes to run then, each by itself.
    pub(super) alone: Vec<usize>,
    /// The nodes of the stages after that.
    pub(super) next: Arc<Nodes>,
    /// The values that are needed then.
    pub(super) keep: HashSet<ValueId>,
    /// Nodes that were built.
    pub(super) built: usize,
    /// Why the first of the others was not.
    pub(super) why: Option<ImportError>,
}

impl After {
    /// Number of nodes that were not built.
    pub fn waiting(&self) -> usize {
        self.alone.len() + self.next.len()
    }
}

/// Positions of nodes of a graph, in order.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    list: Vec<usize>,
    /// The values that graphs of them read, by number, and whether shapes depend on the content. Found out
    /// once: iterations of a loop begin with the same nodes.
    reads: OnceLock<Vec<(ValueId, bool)>>,
}

impl Nodes {
    pub(super) fn new(list: Vec<usize>) -> Arc<Self> {
        Arc::new(Self { list, reads: OnceLock::new() })
    }

    /// What is in `reads`, of `graph`, whose nodes they are; `shaping` is that of the model.
    fn reads(&self, graph: &Body, shaping: &Shaping) -> &[(ValueId, bool)] {
        self.reads.get_or_init(|| {
            let mut wanted = BTreeMap::new();
            for node in self.iter().filter_map(|&i| graph.nodes.get(i)) {
                if node.row.host.is_some() {
                    continue;
                }
                for v in node.reads() {
                    wanted.entry(v).or_insert(false);
                }
                // Others can be run by themselves, which needs no plan for each content.
                if !node.runs_alone() {
                    let known = node.known().iter();
                    let known = known.filter_map(|&i| node.inputs.get(i).copied().flatten());
                    wanted.extend(known.map(|v| (v, true)));
                }
                // What follows from shapes alone makes shapes here as well.
                wanted.extend(node.reads().filter(|&v| shaping.carries(v)).map(|v| (v, true)));
                // Its bodies are built with it.
                if node.inline {
                    let decides = |v: &ValueId| shaping.decides(*v);
                    let reads = node.bodies.iter().flat_map(|_| node.reads());
                    wanted.extend(reads.filter(decides).map(|v| (v, true)));
                }
            }
            wanted.into_iter().collect()
        })
    }
}

impl Deref for Nodes {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.list
    }
}

/// What tells stages apart: the nodes, and what is known of the values they read.
#[derive(Clone, Debug)]
pub struct StageKey {
    pub(super) graph: usize,
    pub(super) nodes: Arc<Nodes>,
    pub(super) given: Vec<Given>,
}

/// A value that a stage reads.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) value: ValueId,
    dtype: DType,
    dims: Vec<usize>,
    /// The content, where shapes depend on it.
    known: Option<Tensor>,
}

impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        let content = |g: &Self| g.known.as_ref().map(|t| t.storage().clone());
        (self.value, self.dtype, &self.dims) == (other.value, other.dtype, &other.dims)
            && content(self).as_deref() == content(other).as_deref()
    }
}

impl PartialEq for StageKey {
    fn eq(&self, other: &Self) -> bool {
        let nodes = Arc::ptr_eq(&self.nodes, &other.nodes) || **self.nodes == **other.nodes;
        self.graph == other.graph && nodes && self.given == other.given
    }
}

impl StageKey {
    /// The key of the stage of `nodes`, when `live` values are there.
    pub(super) fn new(
        graph: &Body,
        nodes: &Arc<Nodes>,
        live: &BTreeMap<ValueId, Tensor>,
        shaping: &Shaping,
    ) -> Self {
        let wanted = nodes.reads(graph, shaping).iter();
        let given = wanted.filter_map(|&(value, must)| {
            let tensor = live.get(&value)?;
            let (dtype, dims) = (tensor.dtype(), tensor.dims());
            Some(Given { value, dtype, dims, known: must.then(|| tensor.clone()) })
        });
        Self { graph: graph.id, nodes: nodes.clone(), given: given.collect() }
    }
}

/// What a value has become.
#[derive(Clone)]
pub(super) enum Built {
    Tensor(TensorId),
    /// A sequence is a list of tensors of which everybody knows the length: no graph has one.
    Sequence(Arc<[TensorId]>),
}

/// What values have become.
pub(super) struct Values(Vec<Option<Built>>);

impl Values {
    fn new(model: &OnnxModel) -> Self {
        Self(vec![None; model.values.len()])
    }

    pub(super) fn get(&self, value: ValueId) -> Option<TensorId> {
        match self.built(value)? {
            Built::Tensor(id) => Some(*id),
            Built::Sequence(_) => None,
        }
    }

    pub(super) fn built(&self, value: ValueId) -> Option<&Built> {
        self.0.get(value)?.as_ref()
    }

    pub(super) fn set(&mut self, value: ValueId, id: TensorId) {
        self.set_built(value, Built::Tensor(id));
    }

    pub(super) fn set_built(&mut self, value: ValueId, built: Built) {
        if let Some(slot) = self.0.get_mut(value) {
            *slot = Some(built);
        }
    }

    /// Whether the value is there, or a constant of the model.
    fn has(&self, model: &OnnxModel, value: ValueId) -> bool {
        self.built(value).is_some() || model.constant(value).is_some()
    }

    fn is_sequence(&self, value: ValueId) -> bool {
        matches!(self.built(value), Some(Built::Sequence(_)))
    }

    /// The tensor of a value. Constants enter the graph when they are read first, with storage that
    /// is the same each time, so what is derived from them is computed once.
    pub(super) fn resolve(
        &mut self,
        model: &OnnxModel,
        ctx: &mut Context,
        value: ValueId,
    ) -> Result<Option<TensorId>, GraphError> {
        if let Some(id) = self.get(value) {
            return Ok(Some(id));
        }
        let Some(tensor) = model.constant(value) else { return Ok(None) };
        ctx.cache().keep(tensor.storage());
        let stored = ctx.constant(tensor.clone())?;
        let id = converted(ctx, stored, computed(tensor.dtype()))?;
        if let Some(name) = model.values.get(value) {
            ctx.share_name(id, fit(name));
        }
        self.set(value, id);
        Ok(Some(id))
    }
}

/// Nodes of a graph, as far as they could be built.
struct Partial<'a> {
    values: Values,
    /// Those that were, with their positions.
    built: Vec<(usize, &'a Node)>,
    /// The positions of the others.
    waiting: HashSet<usize>,
    /// Why the first of them was not.
    why: Option<ImportError>,
}

/// Adds a node to the graph.
pub(super) fn build_node(
    model: &OnnxModel,
    ctx: &mut Context,
    node: &Node,
    values: &mut Values,
    budget: &mut Budget,
) -> Result<(), NodeError> {
    for &value in node.inputs.iter().flatten() {
        values.resolve(model, ctx, value)?;
    }
    let before = ctx.len();
    let outputs = (node.row.build)(&mut NodeCx { ctx, node, model, values, budget })?;
    ctx.name_since(before, &node.name);
    for (&value, &id) in node.outputs.iter().zip(&outputs) {
        if let Some(value) = value {
            values.set(value, id);
        }
    }
    Ok(())
}

impl OnnxModel {
    /// Builds the graph for inputs of the given shapes (slowest first), in `ctx`; gives the
    /// outputs in the model's order.
    ///
    /// An input of which the values are given becomes a constant; inputs that
    /// [need it](OnnxModel::needs_value) must be, or nodes whose shapes depend on them are an error.
    ///
    /// Constants enter the graph with storage that is the same in each call, and are registered
    /// with the context's cache, so what is derived from them is computed once.
    ///
    /// # Errors
    /// [`ImportError::Input`] if the inputs do not fit, [`ImportError::Node`] if a node cannot be
    /// built for them, be it because shapes depend on what the model computes.
    pub fn instantiate(
        &self,
        ctx: &mut Context,
        inputs: &[(&str, &[usize])],
        known: &[(&str, &Tensor)],
    ) -> Result<Vec<TensorId>, ImportError> {
        let stage = self.begin(ctx, inputs, known)?;
        match stage.after.and_then(|after| after.why) {
            None => Ok(stage.outputs),
            Some(why) => Err(why),
        }
    }

    /// As [`OnnxModel::instantiate`], as far as shapes are known. The rest is for
    /// [`OnnxModel::resume`].
    ///
    /// # Errors
    /// As [`OnnxModel::instantiate`], save that what a stage computes may decide about shapes.
    pub fn begin(
        &self,
        ctx: &mut Context,
        inputs: &[(&str, &[usize])],
        known: &[(&str, &Tensor)],
    ) -> Result<Stage, ImportError> {
        self.check_inputs(inputs)?;
        let mut values = Values::new(self);
        let mut given = Vec::new();
        for (info, &value) in self.inputs.iter().zip(&self.graph.inputs) {
            let dims = inputs.iter().find(|(name, _)| *name == info.name);
            let dims = dims.map_or(&[][..], |(_, dims)| *dims);
            let leaf = match known.iter().find(|(name, _)| *name == info.name) {
                Some((_, t)) if t.dtype() == info.dtype && t.dims() == dims => {
                    ctx.constant((*t).clone())?
                }
                _ => ctx.input(&info.name, info.dtype, dims)?,
            };
            let id = converted(ctx, leaf, computed(info.dtype))?;
            if id == leaf {
                given.push((value, id));
            }
            values.set(value, id);
        }
        let nodes = &self.graph.all;
        let partial = self.build(ctx, &self.graph, nodes, values)?;
        if !partial.waiting.is_empty() {
            let (values, after) = self.after(ctx, &self.graph, nodes, partial, &given);
            return self.dense(ctx, &values, after);
        }
        let mut values = partial.values;
        let mut outputs = Vec::new();
        for (info, &value) in self.outputs.iter().zip(&self.graph.outputs) {
            // Loading made sure that each output has a producer.
            let Some(id) = values.resolve(self, ctx, value)? else { continue };
            let half = computed(info.dtype) != info.dtype && ctx.dtype(id) == DType::F32;
            outputs.push(if half { converted(ctx, id, info.dtype)? } else { id });
        }
        Ok(Stage { outputs, after: None })
    }

    /// Computes a node by itself, from operands that are all there.
    pub(super) fn compute(
        &self,
        node: &Node,
        inputs: &[Option<Tensor>],
    ) -> Result<Vec<Tensor>, NodeError> {
        let (mut ctx, mut values) = (Context::new(), Values::new(self));
        for (&value, t) in node.inputs.iter().zip(inputs) {
            if let (Some(value), Some(t)) = (value, t) {
                let stored = ctx.constant(t.clone())?;
                values.set(value, converted(&mut ctx, stored, computed(t.dtype()))?);
            }
        }
        let mut budget = Budget::of_run();
        build_node(self, &mut ctx, node, &mut values, &mut budget)?;
        let result = |v: ValueId| values.get(v).and_then(|id| ctx.constant_value(id)).cloned();
        let outputs = node.outputs.iter().map(|v| match v {
            Some(v) => result(*v).ok_or_else(|| NodeError::unsupported("a result of no value")),
            // Nobody wants it.
            None => Ok(Tensor::zeros(DType::U8, &[0]).map_err(GraphError::from)?),
        });
        outputs.collect()
    }

    /// Builds the stage of a key. Its leaves have the positions of their values in the key as names.
    pub(super) fn stage(
        &self,
        ctx: &mut Context,
        graph: &Body,
        key: &StageKey,
    ) -> Result<Stage, ImportError> {
        let mut values = Values::new(self);
        let mut given = Vec::new();
        for (i, g) in key.given.iter().enumerate() {
            let id = match &g.known {
                Some(value) => ctx.constant(value.clone())?,
                None => ctx.input(&i.to_string(), g.dtype, &g.dims)?,
            };
            given.push((g.value, id));
            values.set(g.value, id);
        }
        let partial = self.build(ctx, graph, &key.nodes, values)?;
        let (values, after) = self.after(ctx, graph, &key.nodes, partial, &given);
        self.dense(ctx, &values, after)
    }

    /// Builds those of `nodes` that can be built.
    fn build<'a>(
        &self,
        ctx: &mut Context,
        graph: &'a Body,
        nodes: &[usize],
        mut values: Values,
    ) -> Result<Partial<'a>, ImportError> {
        let width = |t: &Tensor| computed(t.dtype()).block_bytes();
        let stored = self.constants.iter().map(|(_, t)| t.shape().elements() * width(t));
        let mut budget = Budget::new(stored.fold(0usize, usize::saturating_add));
        let (mut waiting, mut built, mut why) = (HashSet::new(), Vec::new(), None);
        ctx.reserve(2 * nodes.len());
        for (&i, node) in nodes.iter().filter_map(|i| Some((i, graph.nodes.get(*i)?))) {
            if !node.reads().all(|v| values.has(self, v)) {
                waiting.insert(i);
                continue;
            }
            match build_node(self, ctx, node, &mut values, &mut budget) {
                Ok(()) => built.push((i, node)),
                Err(source) => {
                    let waits = source.waits();
                    let error = ImportError::Node {
                        node: node.name.to_string(),
                        op: node.row.name,
                        source,
                    };
                    if !waits {
                        return Err(error);
                    }
                    why.get_or_insert(error);
                    waiting.insert(i);
                }
            }
        }
        Ok(Partial { values, built, waiting, why })
    }

    /// What comes after what was built. `given` are the values that are there when the stage has run anyway.
    fn after(
        &self,
        ctx: &Context,
        graph: &Body,
        nodes: &[usize],
        partial: Partial<'_>,
        given: &[(ValueId, TensorId)],
    ) -> (Values, After) {
        let Partial { values, built, mut waiting, why } = partial;
        let mut after = After { why, ..After::default() };
        // What is made of the model's constants alone, whatever the inputs.
        let mut fixed = HashSet::new();
        for (_, node) in &built {
            let outputs = || node.outputs.iter().flatten().copied();
            let alone = node.row.host.is_some() || !node.bodies.is_empty();
            let alone = alone || outputs().any(|v| values.is_sequence(v));
            if !alone && node.reads().all(|v| self.constant(v).is_some() || fixed.contains(&v)) {
                fixed.extend(outputs());
            }
        }
        // Stages hand on tensors only, and what they hand on is an operand like any other, no constant for
        // kernels to pack: of sequences and of constants that are read later, all that leads to them is
        // built again then.
        let apart = |v: &ValueId| values.is_sequence(*v) || fixed.contains(v);
        let mut again: HashSet<ValueId> = HashSet::new();
        for node in waiting.iter().filter_map(|&i: &usize| graph.nodes.get(i)) {
            // Others than graphs take what is handed on.
            let by_graph = node.row.host.is_none() && (node.inline || node.bodies.is_empty());
            let again_for = |v: &ValueId| values.is_sequence(*v) || by_graph && fixed.contains(v);
            again.extend(node.reads().filter(again_for));
        }
        after.built = built.len();
        for (i, node) in built.into_iter().rev() {
            if node.outputs.iter().flatten().any(|v| again.contains(v)) {
                again.extend(node.reads().filter(apart));
                waiting.insert(i);
                after.built -= 1;
            }
        }
        // What runs by itself can do so as soon as all that it reads is there.
        let mut later = HashSet::new();
        let mut next = Vec::new();
        let waiting = nodes.iter().filter(|i| waiting.contains(i));
        for (i, node) in waiting.filter_map(|&i| Some((i, graph.nodes.get(i)?))) {
            let made = node.outputs.iter().flatten().any(|v| fixed.contains(v));
            if node.runs_alone() && !made && !node.reads().any(|v| later.contains(&v)) {
                after.alone.push(i);
            } else {
                // What is made of constants is there now, too.
                if !made {
                    later.extend(node.outputs.iter().flatten().copied());
                }
                next.push(i);
            }
        }
        after.next = Nodes::new(next);
        let later = after.next.iter().filter_map(|&i| graph.nodes.get(i));
        after.keep = later.flat_map(Node::reads).chain(graph.outputs.iter().copied()).collect();
        let alone = after.alone.iter().filter_map(|&i| graph.nodes.get(i)).flat_map(Node::reads);
        let needed: HashSet<ValueId> = after.keep.iter().copied().chain(alone).collect();
        let mut leaves = vec![None; ctx.len()];
        for &(value, id) in given {
            if let Some(leaf) = leaves.get_mut(id.index()) {
                *leaf = Some(value);
            }
        }
        for value in (0..self.values.len()).filter(|value| needed.contains(value)) {
            let Some(id) = values.get(value) else { continue };
            let leaf = leaves.get(id.index()).copied().flatten();
            if leaf == Some(value) || self.constant(value).is_some() {
                continue;
            }
            if let Some(leaf) = leaf {
                after.aliases.push((value, leaf));
            } else if let Some(t) = ctx.constant_value(id) {
                after.constants.push((value, t.clone()));
            } else {
                after.computed.push(value);
            }
        }
        (values, after)
    }

    /// The stage that computes what is needed after it.
    fn dense(
        &self,
        ctx: &mut Context,
        values: &Values,
        after: After,
    ) -> Result<Stage, ImportError> {
        let ids = after.computed.iter().filter_map(|&v| values.get(v));
        let outputs = ids.map(|id| ctx.cont(id)).collect::<Result<_, _>>()?;
        Ok(Stage { outputs, after: Some(after) })
    }
}

/// The tensor in another element type; itself if it has the type.
fn converted(ctx: &mut Context, id: TensorId, to: DType) -> Result<TensorId, GraphError> {
    if ctx.dtype(id) == to { Ok(id) } else { ctx.op(Cast { to }, &[id]) }
}
