//! Graphs of tensors: records, operators, passes and lowering to steps.
//!
//! A [`Context`] holds tensor records. Calling a builder method adds a record that says how the
//! tensor is computed and computes nothing, save when every operand is a constant (then the result
//! is a constant too) or when the context is in immediate mode. [`Context::build_forward`] lists
//! the records an output needs, operands first. Passes rewrite records; a backend lowers each to a
//! [`Step`] and runs the list.
//!
//! The semantics are ggml's, with up to [`crate::tensor::MAX_DIMS`] dimensions; shapes here are
//! written slowest first.

mod cache;
pub mod dynamic;
mod error;
mod ggml;
pub mod kv_cache;
pub mod ops;
pub mod passes;
mod per_record;
mod record;
mod step;
mod view;
mod way;

pub use cache::ConstCache;
pub(crate) use cache::Fold;
pub use error::GraphError;
pub use ops::{LayoutRule, Op, Operator};
pub(crate) use per_record::PerRecord;
pub use record::{Info, Layout, Record};
pub use step::{Choices, Device, Host, LowerCx, Program, ProgramNode, Step};
pub(crate) use view::with_element;
pub use view::{View, ViewMut};
pub use way::{ParseWayError, Way};

use core::fmt;
use std::sync::Arc;

use crate::tensor::{DType, Shape, ShapeError, Tensor};

/// Copies of constant indices that are made at once.
const MOST_COPIES: usize = 1 << 14;

/// Most records one context may hold.
pub const MAX_TENSORS: usize = 1 << 20;

/// Names a tensor record of one [`Context`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(u32);

impl TensorId {
    /// Position of the record in its context.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Computes one tensor of a context at once; how immediate mode reaches a backend.
pub type Evaluator = Arc<dyn Fn(&Context, TensorId) -> Result<Tensor, GraphError> + Send + Sync>;

/// Holds tensor records and builds new ones.
#[derive(Clone, Default)]
pub struct Context {
    records: Vec<Record>,
    cache: Arc<ConstCache>,
    evaluator: Option<Evaluator>,
    keep_quantized: bool,
    /// Views and their dense copies, by view.
    copies: Vec<(TensorId, TensorId)>,
}

impl Context {
    /// An empty context in lazy mode.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty context that shares folded constants and packed weights with others.
    pub fn with_cache(cache: Arc<ConstCache>) -> Self {
        Self { cache, ..Self::default() }
    }

    /// An empty context that computes each tensor when it is built.
    pub fn immediate(evaluator: Evaluator) -> Self {
        Self { evaluator: Some(evaluator), ..Self::default() }
    }

    /// From now on, constants that are dequantised stay integers with a scale, for
    /// [`passes::use_integers`] and [`passes::use_nibbles`] to find; [`passes::fold_constants`] makes numbers of the rest.
    pub fn keep_quantized(&mut self) {
        self.keep_quantized = true;
    }

    /// Makes room for so many records, which a list that grows would copy again and again.
    pub(crate) fn reserve(&mut self, records: usize) {
        self.records.reserve(records.min(MAX_TENSORS));
    }

    /// The shared constants.
    pub fn cache(&self) -> &Arc<ConstCache> {
        &self.cache
    }

    /// The record of a tensor.
    ///
    /// # Panics
    /// If `id` is of another context.
    pub fn record(&self, id: TensorId) -> &Record {
        &self.records[id.index()]
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Element type of a tensor.
    pub fn dtype(&self, id: TensorId) -> DType {
        self.record(id).dtype
    }

    /// Extents of a tensor, slowest first.
    pub fn dims(&self, id: TensorId) -> Vec<usize> {
        self.record(id).shape.dims()
    }

    /// The value of a constant; `None` for everything computed later.
    pub fn constant_value(&self, id: TensorId) -> Option<&Tensor> {
        let record = self.record(id);
        record.value.as_ref().filter(|_| record.constant)
    }

    /// Names a tensor.
    pub fn set_name(&mut self, id: TensorId, name: &str) {
        self.share_name(id, name.into());
    }

    /// The same, with a name that others have too.
    pub(crate) fn share_name(&mut self, id: TensorId, name: Arc<str>) {
        self.records[id.index()].name = name;
    }

    /// Names the tensors made since there were `len` of them, those without a name.
    pub(crate) fn name_since(&mut self, len: usize, name: &Arc<str>) {
        for record in self.records.iter_mut().skip(len).filter(|r| r.name.is_empty()) {
            record.name = name.clone();
        }
    }

    /// A constant. Results that depend on constants only are computed while the graph is built.
    ///
    /// # Errors
    /// [`GraphError::Full`].
    pub fn constant(&mut self, value: Tensor) -> Result<TensorId, GraphError> {
        let (dtype, shape) = (value.dtype(), *value.shape());
        self.push(Record {
            name: Arc::default(),
            dtype,
            shape,
            layout: Layout::Plain,
            op: Arc::new(Op::Leaf),
            src: Vec::new(),
            offset: 0,
            value: Some(value),
            constant: true,
        })
    }

    /// A leaf that gets its data later, by [`Context::set_value`] or from a session's caller.
    ///
    /// # Errors
    /// A shape that is not possible, or [`GraphError::Full`].
    pub fn input(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[usize],
    ) -> Result<TensorId, GraphError> {
        let shape = Shape::contiguous(dtype, dims).map_err(shape_error("input"))?;
        self.push(Record {
            name: name.into(),
            dtype,
            shape,
            layout: Layout::Plain,
            op: Arc::new(Op::Leaf),
            src: Vec::new(),
            offset: 0,
            value: None,
            constant: false,
        })
    }

    /// Gives a leaf its data.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] if type or shape differ from the leaf's, or the tensor is computed.
    pub fn set_value(&mut self, id: TensorId, value: Tensor) -> Result<(), GraphError> {
        let record = &mut self.records[id.index()];
        let same = value.dtype() == record.dtype && value.shape().same_extents(&record.shape);
        if !matches!(*record.op, Op::Leaf) || record.constant || !same {
            return Err(GraphError::mismatch(
                "set_value",
                "type and shape of a leaf and its data must be equal",
                &[(&record.name, &record.shape.dims()), ("data", &value.dims())],
            ));
        }
        record.value = Some(value);
        Ok(())
    }

    /// Adds a tensor computed by `op`. Operands that are not contiguous are copied first; a result
    /// of constants only is computed now.
    ///
    /// # Errors
    /// What the operator's shape rule refuses, [`GraphError::Full`], and in immediate mode what the
    /// computation meets.
    pub fn op(&mut self, op: impl Into<Op>, src: &[TensorId]) -> Result<TensorId, GraphError> {
        self.append(Arc::new(op.into()), src)
    }

    fn append(&mut self, op: Arc<Op>, src: &[TensorId]) -> Result<TensorId, GraphError> {
        let operator = op.operator().expect("leaves and views have builders of their own");
        let src: Vec<TensorId> = if matches!(*op, Op::Cont(_)) {
            src.to_vec()
        } else {
            src.iter().map(|&s| self.cont(s)).collect::<Result<_, _>>()?
        };
        let infos: Vec<Info> = src.iter().map(|&s| self.record(s).info()).collect();
        let info = operator.infer(&infos)?;
        let shape = Shape::contiguous(info.dtype, &info.dims).map_err(shape_error(op.name()))?;
        // Integers with a scale that are constants are weights; passes want to see what they are.
        let kept = self.keep_quantized && matches!(*op, Op::Dequantize(_));
        if !src.is_empty() && !kept && src.iter().all(|&s| self.record(s).constant) {
            let value = self.fold(&op, &src, &info)?;
            return self.constant(value);
        }
        let id = self.push(Record {
            name: Arc::default(),
            dtype: info.dtype,
            shape,
            layout: info.layout,
            op,
            src,
            offset: 0,
            value: None,
            constant: false,
        })?;
        self.evaluate_now(id)?;
        Ok(id)
    }

    /// The same elements under other extents, without a copy where the operand is contiguous.
    ///
    /// # Errors
    /// [`GraphError::Shape`], of a constant [`GraphError::Tensor`], if the element counts differ.
    pub fn reshape(&mut self, id: TensorId, dims: &[usize]) -> Result<TensorId, GraphError> {
        let id = self.cont(id)?;
        let record = self.record(id);
        if let Some(value) = record.value.as_ref().filter(|_| record.constant) {
            let value = value.reshaped(dims)?;
            return self.constant(value);
        }
        let shape = record.shape.reshaped(record.dtype, dims).map_err(shape_error("reshape"))?;
        self.push_view("reshape", id, shape, 0)
    }

    /// Dimensions in another order: result axis `i` is operand axis `axes[i]`. Copies nothing.
    ///
    /// # Errors
    /// [`GraphError::Shape`] if `axes` is not a permutation.
    pub fn transpose(&mut self, id: TensorId, axes: &[usize]) -> Result<TensorId, GraphError> {
        let shape = self.record(id).shape.transposed(axes).map_err(shape_error("transpose"))?;
        self.push_view("transpose", id, shape, 0)
    }

    /// `len` elements of `axis` from `start` on, every `step`-th. Copies nothing.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] if the axis does not reach that far.
    ///
    /// # Panics
    /// If `axis` is not below the rank.
    pub fn slice(
        &mut self,
        id: TensorId,
        axis: usize,
        start: usize,
        len: usize,
        step: usize,
    ) -> Result<TensorId, GraphError> {
        let record = self.record(id);
        let (mut dims, mut strides) = (record.shape.dims(), record.shape.strides());
        let reach = len
            .checked_sub(1)
            .map_or(Some(0), |steps| steps.checked_mul(step)?.checked_add(start)?.checked_add(1));
        if reach.is_none_or(|r| r > dims[axis]) {
            return Err(GraphError::mismatch(
                "slice",
                "start, length and step must stay inside the axis",
                &[("operand", &dims), ("axis, start, length, step", &[axis, start, len, step])],
            ));
        }
        let offset = if len == 0 { 0 } else { start * strides[axis] };
        dims[axis] = len;
        strides[axis] = if len > 1 { strides[axis] * step } else { strides[axis] };
        let shape = Shape::strided(record.dtype, &dims, &strides).map_err(shape_error("slice"))?;
        self.push_view("slice", id, shape, offset)
    }

    /// Broadcasts to `dims` under ONNX's rule. Copies nothing.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] if the extents do not broadcast to `dims`.
    pub fn expand(&mut self, id: TensorId, dims: &[usize]) -> Result<TensorId, GraphError> {
        let record = self.record(id);
        let (from, from_strides) = (record.shape.dims(), record.shape.strides());
        let missing = dims.len().checked_sub(from.len());
        let fits = missing.is_some_and(|m| {
            from.iter().zip(&dims[m..]).all(|(&have, &want)| have == want || have == 1)
        });
        let (Some(missing), true) = (missing, fits) else {
            return Err(GraphError::mismatch(
                "expand",
                "each extent must be 1 or equal",
                &[("operand", &from), ("target", dims)],
            ));
        };
        let mut strides = vec![0; dims.len()];
        for (i, &stride) in from_strides.iter().enumerate() {
            strides[missing + i] = if from[i] == dims[missing + i] { stride } else { 0 };
        }
        let shape = Shape::strided(record.dtype, dims, &strides).map_err(shape_error("expand"))?;
        self.push_view("expand", id, shape, 0)
    }

    /// A view with extents, byte strides (both slowest first) and byte offset as given.
    ///
    /// # Errors
    /// [`GraphError::Shape`] if the view reaches past the operand's data.
    pub fn view(
        &mut self,
        id: TensorId,
        dims: &[usize],
        strides: &[usize],
        offset: usize,
    ) -> Result<TensorId, GraphError> {
        let record = self.record(id);
        let shape = Shape::strided(record.dtype, dims, strides).map_err(shape_error("view"))?;
        let (bytes, available) = (shape.bytes(record.dtype), record.shape.bytes(record.dtype));
        if offset.checked_add(bytes).is_none_or(|end| end > available) {
            return Err(shape_error("view")(ShapeError::ViewOutOfRange {
                offset,
                bytes,
                available,
            }));
        }
        self.push_view("view", id, shape, offset)
    }

    /// The tensor itself if it is contiguous, else a dense copy.
    ///
    /// # Errors
    /// [`GraphError::Full`].
    pub fn cont(&mut self, id: TensorId) -> Result<TensorId, GraphError> {
        if self.record(id).is_contiguous() {
            return Ok(id);
        }
        // What is computed at once may be of a leaf that has another value the next time.
        if self.evaluator.is_some() {
            return self.op(ops::cont::Cont, &[id]);
        }
        match self.copies.binary_search_by_key(&id, |copy| copy.0) {
            Ok(place) => Ok(self.copies[place].1),
            Err(place) => {
                let copy = self.op(ops::cont::Cont, &[id])?;
                self.copies.insert(place, (id, copy));
                Ok(copy)
            }
        }
    }

    /// As [`Context::cont`], in lazy mode whatever this context's mode is.
    pub(crate) fn cont_lazily(&mut self, id: TensorId) -> Result<TensorId, GraphError> {
        self.evaluator = None;
        self.cont(id)
    }

    /// The records that `outputs` need, operands before results, each once: a depth-first walk
    /// from left to right. Tensors that have a value are leaves.
    ///
    /// # Errors
    /// [`GraphError::Cycle`].
    pub fn build_forward(&self, outputs: &[TensorId]) -> Result<Vec<TensorId>, GraphError> {
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![0u8; self.records.len()];
        let mut order = Vec::new();
        // An explicit stack of (record, operands already entered): deep graphs must not overflow
        // the thread's.
        let mut stack: Vec<(TensorId, usize)> = Vec::new();
        for &output in outputs {
            if state[output.index()] == 0 {
                state[output.index()] = OPEN;
                stack.push((output, 0));
            }
            while let Some((id, entered)) = stack.last_mut() {
                let record = &self.records[id.index()];
                let src = if record.value.is_some() { &[][..] } else { &record.src[..] };
                if let Some(&next) = src.get(*entered) {
                    *entered += 1;
                    match state[next.index()] {
                        0 => {
                            state[next.index()] = OPEN;
                            stack.push((next, 0));
                        }
                        OPEN => return Err(GraphError::Cycle(record.name.to_string())),
                        _ => {}
                    }
                } else {
                    state[id.index()] = DONE;
                    order.push(*id);
                    stack.pop();
                }
            }
        }
        Ok(order)
    }

    fn push(&mut self, record: Record) -> Result<TensorId, GraphError> {
        if self.records.len() >= MAX_TENSORS {
            return Err(GraphError::Full(MAX_TENSORS));
        }
        self.records.push(record);
        Ok(TensorId((self.records.len() - 1) as u32))
    }

    fn push_view(
        &mut self,
        what: &'static str,
        of: TensorId,
        shape: Shape,
        offset: usize,
    ) -> Result<TensorId, GraphError> {
        // No elements lie nowhere: their operand may have no bytes either.
        let offset = if shape.is_empty() { 0 } else { offset };
        let source = self.record(of);
        let (dtype, constant, len) = (source.dtype, source.constant, source.shape.elements());
        let id = self.push(Record {
            name: Arc::default(),
            dtype,
            shape,
            layout: Layout::Plain,
            op: Arc::new(Op::View(what)),
            src: vec![of],
            offset,
            value: None,
            constant: false,
        })?;
        // An operator may ask what many indices are copies of; where none does, they are folded when all is there.
        let indices = dtype == DType::I64 && shape.elements() > MOST_COPIES.max(len);
        if constant && !indices {
            // Constants are kept contiguous, so that whoever reads one need not know of strides.
            let value = self.fold_view(of, &shape, offset)?;
            let record = &mut self.records[id.index()];
            *record = Record {
                shape: *value.shape(),
                op: Arc::new(Op::Leaf),
                src: Vec::new(),
                offset: 0,
                value: Some(value),
                constant: true,
                name: Arc::default(),
                dtype,
                layout: Layout::Plain,
            };
        } else {
            self.evaluate_now(id)?;
        }
        Ok(id)
    }

    fn evaluate_now(&mut self, id: TensorId) -> Result<(), GraphError> {
        // Views stay views: their operand has its value already.
        if let Some(evaluator) = self.evaluator.clone()
            && !matches!(*self.record(id).op, Op::View(_))
        {
            let value = evaluator(self, id)?;
            self.records[id.index()].value = Some(value);
        }
        Ok(())
    }

    /// A dense copy of a view of a constant, or the copy made at an earlier time.
    fn fold_view(&self, of: TensorId, shape: &Shape, offset: usize) -> Result<Tensor, GraphError> {
        let source = self.record(of).value.as_ref().expect("a constant has a value");
        let info = Info::plain(source.dtype(), Vec::new());
        self.cache.folded(Fold::View(*shape, offset), &[source], &info)
    }

    /// Computes an operator on constants with its reference, or finds the result of an earlier
    /// time.
    fn fold(&self, op: &Arc<Op>, src: &[TensorId], info: &Info) -> Result<Tensor, GraphError> {
        let values: Vec<&Tensor> =
            src.iter().map(|&s| self.record(s).value.as_ref().expect("constants")).collect();
        self.cache.folded(Fold::Op(op.clone()), &values, info)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("records", &self.records).finish_non_exhaustive()
    }
}

fn shape_error(op: &'static str) -> impl Fn(ShapeError) -> GraphError {
    move |source| GraphError::Shape { op, source }
}
