//! What the functions that build nodes work with.

use std::collections::HashMap;
use std::sync::PoisonError;

use super::budget::Budget;
use super::data::{to_f32s, to_i64s, widened};
use super::model::{Body, Dim, Node, OnnxModel};
use super::stage::{Built, Values, build_node};
use crate::graph::ops::binary::Binary;
use crate::graph::ops::unary::Unary;
use crate::graph::{Context, GraphError, Info, Op, TensorId};
use crate::import::error::short;
use crate::import::{ImportError, InputError, NodeError};
use crate::tensor::{DType, MAX_DIMS, Tensor};
use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

impl OnnxModel {
    /// Compares given input shapes with the declared ones.
    ///
    /// # Errors
    /// [`ImportError::Input`].
    pub fn check_inputs(&self, inputs: &[(&str, &[usize])]) -> Result<(), ImportError> {
        let error = |name: &str, source| Err(ImportError::Input { input: short(name), source });
        for (i, (name, _)) in inputs.iter().enumerate() {
            if !self.inputs.iter().any(|info| info.name == *name) {
                let known = self.inputs.iter().map(|info| short(&info.name)).collect();
                return error(name, InputError::Unknown { known });
            }
            if inputs.iter().take(i).any(|(earlier, _)| earlier == name) {
                return error(name, InputError::Twice);
            }
        }
        let mut symbols: HashMap<&str, usize> = HashMap::new();
        for info in &self.inputs {
            let Some((_, found)) = inputs.iter().find(|(name, _)| *name == info.name) else {
                return error(&info.name, InputError::NotGiven);
            };
            let Some(declared) = &info.dims else { continue };
            let expected = info.shape_text();
            if declared.len() != found.len() {
                let found = found.to_vec();
                return error(&info.name, InputError::Rank { found, expected });
            }
            for (axis, (dim, &extent)) in declared.iter().zip(*found).enumerate() {
                match dim {
                    Dim::Fixed(n) if *n != extent => {
                        let found = found.to_vec();
                        return error(&info.name, InputError::Extent { axis, found, expected });
                    }
                    // Of an empty input nothing is read: exporters give such a state of another length.
                    Dim::Symbol(s) if !found.contains(&0) => {
                        let first = *symbols.entry(s).or_insert(extent);
                        if first != extent {
                            let (symbol, found) = (short(s), extent);
                            let source = InputError::Symbol { symbol, found, expected: first };
                            return error(&info.name, source);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// What a build function works with: its node, and the graph so far.
pub(super) struct NodeCx<'a> {
    pub(super) ctx: &'a mut Context,
    pub(super) node: &'a Node,
    pub(super) model: &'a OnnxModel,
    pub(super) values: &'a mut Values,
    /// What may still be computed now.
    pub(super) budget: &'a mut Budget,
}

/// Scalars that are kept, at most.
const SCALARS: usize = 256;

impl NodeCx<'_> {
    /// The node's name.
    pub(super) fn name(&self) -> &str {
        &self.node.name
    }

    /// Version of ONNX's operators that the node is written in.
    pub(super) fn opset(&self) -> i64 {
        self.node.opset
    }

    // Inputs.

    /// Number of inputs, absent ones included.
    pub(super) fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Number of outputs.
    pub(super) fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// Whether somebody may read output `i`.
    pub(super) fn wants(&self, i: usize) -> bool {
        self.node.outputs.get(i).is_some_and(Option::is_some)
    }

    /// Whether input `i` is a constant of four or two bits per element in the file, which are bytes here.
    pub(super) fn has_few_bits(&self, i: usize) -> bool {
        let value = self.node.inputs.get(i).copied().flatten();
        value.is_some_and(|v| self.model.few_bits.contains(&v))
    }

    /// An input, if it is there.
    pub(super) fn opt(&self, i: usize) -> Option<TensorId> {
        let value = self.node.inputs.get(i).copied().flatten()?;
        self.values.get(value)
    }

    /// What an input has become, which may be a sequence.
    pub(super) fn built(&self, i: usize) -> Result<Built, NodeError> {
        let value = self.node.inputs.get(i).copied().flatten();
        value.and_then(|v| self.values.built(v)).cloned().ok_or(NodeError::NoInput(i))
    }

    /// Gives output `i`, which may be a sequence.
    pub(super) fn give(&mut self, i: usize, built: Built) {
        if let Some(value) = self.node.outputs.get(i).copied().flatten() {
            self.values.set_built(value, built);
        }
    }

    /// An input that must be there.
    pub(super) fn input(&self, i: usize) -> Result<TensorId, NodeError> {
        self.opt(i).ok_or(NodeError::NoInput(i))
    }

    /// All inputs; none may be absent.
    pub(super) fn inputs(&self) -> Result<Vec<TensorId>, NodeError> {
        (0..self.input_count()).map(|i| self.input(i)).collect()
    }

    /// The value of an input that must be known now.
    pub(super) fn constant_input(&self, i: usize) -> Result<Option<Tensor>, NodeError> {
        let Some(id) = self.opt(i) else { return Ok(None) };
        let Some(value) = self.ctx.constant_value(id) else {
            let name = self.node.inputs.get(i).copied().flatten();
            let name = name.and_then(|v| self.model.values.get(v));
            let value = name.map_or_else(String::new, |n| short(n));
            return Err(NodeError::NotConstant { input: i, value });
        };
        Ok(Some(value.clone()))
    }

    /// The elements of an input of integers that must be known now.
    pub(super) fn ints_input(&self, i: usize) -> Result<Option<Vec<i64>>, NodeError> {
        let Some(t) = self.constant_input(i)? else { return Ok(None) };
        if t.dims().len() > 1 {
            let shape = t.dims();
            return Err(NodeError::invalid(format!("input {i} must be a list, found {shape:?}")));
        }
        match to_i64s(&t) {
            Some(v) => Ok(Some(v.into_owned())),
            None => {
                let found = t.dtype();
                Err(NodeError::invalid(format!("input {i} must hold i64 or i32, found {found}")))
            }
        }
    }

    /// The elements of an input of floats that must be known now.
    pub(super) fn floats_input(&self, i: usize) -> Result<Option<Vec<f32>>, NodeError> {
        let Some(t) = self.constant_input(i)? else { return Ok(None) };
        match to_f32s(&t) {
            Some(v) => Ok(Some(v.into_owned())),
            None => {
                let found = t.dtype();
                Err(NodeError::invalid(format!("input {i} must hold floats, found {found}")))
            }
        }
    }

    /// The only element of an input of floats that must be known now.
    pub(super) fn float_input(&self, i: usize) -> Result<Option<f32>, NodeError> {
        match self.floats_input(i)?.as_deref() {
            None => Ok(None),
            Some(&[v]) => Ok(Some(v)),
            Some(v) => {
                let n = v.len();
                Err(NodeError::invalid(format!("input {i} must be one number, found {n}")))
            }
        }
    }

    // Bodies.

    /// The results of a body whose inputs, if it has any, are there already.
    pub(super) fn inline(&mut self, body: &Body) -> Result<Vec<Built>, NodeError> {
        self.budget.build(1 + body.nodes.len() + body.outputs.len())?;
        for node in &body.nodes {
            build_node(self.model, self.ctx, node, self.values, self.budget).map_err(|source| {
                let (node, op) = (node.name.to_string(), node.row.name);
                NodeError::Inside { node, op, source: Box::new(source) }
            })?;
        }
        let mut results = Vec::new();
        for &v in &body.outputs {
            self.values.resolve(self.model, self.ctx, v)?;
            let built = self.values.built(v).cloned();
            results
                .push(built.ok_or_else(|| NodeError::invalid("a result of a body is not there"))?);
        }
        Ok(results)
    }

    // Attributes.

    /// An integer attribute.
    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.node.attrs.int(name).unwrap_or(default)
    }

    /// An integer attribute that is off at 0.
    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        self.int(name, i64::from(default)) != 0
    }

    /// A float attribute.
    pub(super) fn float(&self, name: &str, default: f32) -> f32 {
        self.node.attrs.float(name).unwrap_or(default)
    }

    /// A string attribute.
    pub(super) fn string(&self, name: &str, default: &'static str) -> String {
        self.node.attrs.string(name).unwrap_or(default).to_owned()
    }

    /// A list attribute, if it is there.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.node.attrs.ints(name).map(<[i64]>::to_vec)
    }

    /// A list attribute, if it is there.
    pub(super) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        self.node.attrs.floats(name).map(<[f32]>::to_vec)
    }

    /// A list attribute, if it is there.
    pub(super) fn strings(&self, name: &str) -> Option<Vec<String>> {
        self.node.attrs.strings(name).map(<[String]>::to_vec)
    }

    /// A tensor attribute, if it is there.
    pub(super) fn tensor(&self, name: &str) -> Option<Tensor> {
        self.node.attrs.tensor(name).cloned().and_then(|t| widened(t).ok())
    }

    /// Whether an attribute is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.node.attrs.has(name)
    }

    /// A list that is an attribute in old operator sets and input `i` in new ones.
    pub(super) fn ints_attr_or_input(
        &self,
        name: &str,
        i: usize,
    ) -> Result<Option<Vec<i64>>, NodeError> {
        match self.ints(name) {
            Some(v) => Ok(Some(v)),
            None => self.ints_input(i),
        }
    }

    // The graph.

    /// Extents, slowest first.
    pub(super) fn dims(&self, id: TensorId) -> Vec<usize> {
        self.ctx.dims(id)
    }

    /// Number of dimensions.
    pub(super) fn rank(&self, id: TensorId) -> usize {
        self.ctx.record(id).shape().rank()
    }

    /// Element type.
    pub(super) fn dtype(&self, id: TensorId) -> DType {
        self.ctx.dtype(id)
    }

    /// Value of a tensor that is known now.
    pub(super) fn value(&self, id: TensorId) -> Option<&Tensor> {
        self.ctx.constant_value(id)
    }

    /// A constant that is made for the shapes of this instantiation.
    pub(super) fn constant(&mut self, value: Tensor) -> Result<TensorId, NodeError> {
        Ok(self.ctx.constant(value)?)
    }

    /// Takes a constant that is about to be made from what may be computed now.
    pub(super) fn spend(&mut self, constant: &Info) -> Result<(), NodeError> {
        self.budget.copy(constant)
    }

    /// A constant scalar that depends on the model only; the same one each time.
    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> Result<TensorId, NodeError> {
        let key = (dtype, value.to_bits());
        let mut scalars = self.model.scalars.lock().unwrap_or_else(PoisonError::into_inner);
        let tensor = match scalars.iter().find(|known| known.0 == key) {
            Some((_, t)) => t.clone(),
            None => {
                let t = scalar_tensor(dtype, value)?;
                // As few as operators ask for; a file that needs more has them made again.
                if scalars.len() < SCALARS {
                    scalars.push((key, t.clone()));
                }
                t
            }
        };
        drop(scalars);
        self.ctx.cache().keep(tensor.storage());
        Ok(self.ctx.constant(tensor)?)
    }

    /// Adds an operation.
    pub(super) fn op(
        &mut self,
        op: impl Into<Op>,
        src: &[TensorId],
    ) -> Result<TensorId, NodeError> {
        self.append(op.into(), src)
    }

    fn append(&mut self, op: Op, src: &[TensorId]) -> Result<TensorId, NodeError> {
        if src.iter().all(|&s| self.ctx.constant_value(s).is_some())
            && let Some(operator) = op.operator()
        {
            let infos: Vec<Info> = src.iter().map(|&s| self.ctx.record(s).info()).collect();
            let result = operator.infer(&infos)?;
            self.budget.compute(&op, &infos, &result)?;
        }
        Ok(self.ctx.op(op, src)?)
    }

    /// `f(x)`.
    pub(super) fn unary(&mut self, op: UnaryOp, x: TensorId) -> Result<TensorId, NodeError> {
        self.op(Unary::new(op), &[x])
    }

    /// `f(a, b)` with broadcasting.
    pub(super) fn binary(
        &mut self,
        op: BinaryOp,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, NodeError> {
        self.op(Binary::new(op), &[a, b])
    }

    /// The same elements in another shape.
    pub(super) fn reshape(&mut self, x: TensorId, dims: &[usize]) -> Result<TensorId, NodeError> {
        if self.dims(x) == dims { Ok(x) } else { Ok(self.ctx.reshape(x, dims)?) }
    }

    /// Axes in another order.
    pub(super) fn transpose(&mut self, x: TensorId, axes: &[usize]) -> Result<TensorId, NodeError> {
        if axes.iter().enumerate().all(|(i, &a)| i == a) && axes.len() == self.rank(x) {
            return Ok(x);
        }
        if self.ctx.constant_value(x).is_some() {
            self.budget.copy(&self.ctx.record(x).info())?;
        }
        Ok(self.ctx.transpose(x, axes)?)
    }

    /// Every `step`-th of `len` elements of an axis.
    pub(super) fn slice(
        &mut self,
        x: TensorId,
        axis: usize,
        start: usize,
        len: usize,
        step: usize,
    ) -> Result<TensorId, NodeError> {
        let mut info = self.ctx.record(x).info();
        match info.dims.get_mut(axis) {
            Some(extent) if start == 0 && step == 1 && *extent == len => return Ok(x),
            Some(extent) => *extent = len,
            None => {}
        }
        if self.ctx.constant_value(x).is_some() {
            self.budget.copy(&info)?;
        }
        Ok(self.ctx.slice(x, axis, start, len, step)?)
    }

    /// Broadcast to `dims`, dense.
    pub(super) fn expand(&mut self, x: TensorId, dims: &[usize]) -> Result<TensorId, NodeError> {
        if self.dims(x) == dims {
            return Ok(x);
        }
        if self.ctx.constant_value(x).is_some() {
            self.budget.copy(&Info::plain(self.dtype(x), dims.to_vec()))?;
        }
        Ok(self.ctx.expand(x, dims)?)
    }
}

/// One number of any plain type; floats are rounded, integers saturate.
#[allow(clippy::cast_possible_truncation, reason = "rounding and saturation are wanted")]
pub(super) fn scalar_tensor(dtype: DType, v: f64) -> Result<Tensor, NodeError> {
    use half::{bf16, f16};
    Ok(match dtype {
        DType::F32 => Tensor::from_slice(&[], &[v as f32]),
        DType::F64 => Tensor::from_slice(&[], &[v]),
        DType::F16 => Tensor::from_slice(&[], &[f16::from_f64(v)]),
        DType::BF16 => Tensor::from_slice(&[], &[bf16::from_f64(v)]),
        DType::I8 => Tensor::from_slice(&[], &[v as i8]),
        DType::U8 => Tensor::from_slice(&[], &[v as u8]),
        DType::I16 => Tensor::from_slice(&[], &[v as i16]),
        DType::U16 => Tensor::from_slice(&[], &[v as u16]),
        DType::I32 => Tensor::from_slice(&[], &[v as i32]),
        DType::U32 => Tensor::from_slice(&[], &[v as u32]),
        DType::I64 => Tensor::from_slice(&[], &[v as i64]),
        DType::U64 => Tensor::from_slice(&[], &[v as u64]),
        DType::Bool => Tensor::from_bytes(dtype, &[], &[u8::from(v != 0.0)]),
        _ => return Err(NodeError::unsupported(format!("a scalar of {dtype}"))),
    }
    .map_err(GraphError::from)?)
}

/// An axis counted from the front; negative ones count from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, NodeError> {
    let from_front = if axis < 0 {
        i64::try_from(rank).ok().and_then(|r| axis.checked_add(r))
    } else {
        Some(axis)
    };
    from_front
        .and_then(|a| usize::try_from(a).ok())
        .filter(|&a| a < rank)
        .ok_or_else(|| NodeError::invalid(format!("axis {axis} of a tensor of rank {rank}")))
}

/// Axes counted from the front, each at most once, in the order given.
pub(super) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, NodeError> {
    let mut out = Vec::new();
    if list.len() > rank || rank > 2 * MAX_DIMS {
        let n = list.len();
        return Err(NodeError::invalid(format!("{n} axes of a tensor of rank {rank}")));
    }
    for &a in list {
        let a = axis(a, rank)?;
        if out.contains(&a) {
            return Err(NodeError::invalid(format!("axes {list:?} name axis {a} twice")));
        }
        out.push(a);
    }
    Ok(out)
}

/// An extent or count that must not be negative.
pub(super) fn extent(value: i64, what: &str) -> Result<usize, NodeError> {
    usize::try_from(value).map_err(|_| NodeError::invalid(format!("{what} {value} is negative")))
}
