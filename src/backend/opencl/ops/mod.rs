//! Operators as kernels with arguments.

pub(super) mod attention;
mod bytes;
mod codes;
pub(super) mod conv;
mod elements;
pub(super) mod matmul;
mod movement;
mod rows;

use std::sync::Arc;

use super::programs::Family;
use super::workload::{self, Kind, MANY, Workload};
use super::{Region, Shared, lock};
use crate::graph::{Choices, GraphError, Info, Op, Way};
use crate::tensor::{DType, Shape, Tensor};

/// An argument of a kernel.
pub(super) enum Arg {
    /// Operand `i`, wherever it lies.
    Src(usize),
    /// Operand `i` from some byte of it on.
    Part(usize, usize),
    /// The result, of several the first.
    Dst,
    /// Result `i` of several.
    Other(usize),
    /// Scratch memory `i` of the operation.
    Temp(usize),
    /// Memory that was made ready at planning time.
    Memory(Arc<Region>),
    /// Memory that the kernel does not touch.
    Absent,
    /// A number.
    Int(i32),
    /// A number.
    Float(f32),
    /// Bytes of the work-group's memory.
    Local(usize),
    /// The last argument of kernels that have all numbers in one structure: those behind the places of their
    /// operands.
    Numbers(Vec<u8>),
}

/// One kernel with its arguments.
pub(super) struct Call {
    pub(super) family: Family,
    pub(super) definitions: String,
    pub(super) kernel: &'static str,
    pub(super) args: Vec<Arg>,
    pub(super) global: [usize; 3],
    pub(super) local: Option<[usize; 3]>,
}

/// What must hold of the numbers of an operand: all in `0..limit`.
#[derive(Clone, Copy)]
pub(super) struct Check {
    pub(super) operand: usize,
    pub(super) limit: usize,
    pub(super) op: &'static str,
}

/// What an operation becomes.
#[derive(Default)]
pub(super) struct Lowered {
    pub(super) calls: Vec<Call>,
    /// Bytes of scratch memory.
    pub(super) temps: Vec<usize>,
    pub(super) check: Option<Check>,
    /// Memory that must stay while the plan does, beside that of arguments.
    pub(super) keep: Vec<Arc<dyn core::any::Any + Send + Sync>>,
}

impl From<Call> for Lowered {
    fn from(call: Call) -> Self {
        Self { calls: vec![call], ..Self::default() }
    }
}

impl From<Vec<Call>> for Lowered {
    fn from(calls: Vec<Call>) -> Self {
        Self { calls, ..Self::default() }
    }
}

/// What an operator sees of its place in the graph.
pub(super) struct Lower<'a> {
    pub(super) shared: &'a Arc<Shared>,
    /// Who is asked before kernels are shaped by rules.
    pub(super) choices: Option<&'a dyn Choices>,
    pub(super) src: &'a [Info],
    pub(super) shapes: &'a [Shape],
    pub(super) values: &'a [Option<&'a Tensor>],
    pub(super) dst: &'a Info,
}

/// `None`: no kernel computes this.
pub(super) type Result = core::result::Result<Option<Lowered>, GraphError>;

impl Lower<'_> {
    fn all_f32(&self) -> bool {
        self.src.iter().chain([self.dst]).all(|i| i.dtype == DType::F32)
    }

    /// The definitions of a kernel for vectors of `vec` elements.
    fn vec(&self, vec: usize) -> String {
        format!("-DVEC={vec}")
    }

    /// The longest vector that a row of `len` elements fills.
    fn vector_for(&self, len: usize) -> usize {
        workload::vector(self.shared.shape.vec, len)
    }

    /// Work-items of groups that share nothing: on processors at most `processors` of them.
    fn spread(&self, items: [usize; 3], processors: usize) -> ([usize; 3], Option<[usize; 3]>) {
        let gpu = self.shared.shape.lanes > 1;
        spread(items, if gpu { self.shared.info.group(MANY) } else { processors })
    }

    /// Numbers that come with an operator, on the device.
    fn upload<T: bytemuck::Pod>(
        &self,
        values: &[T],
    ) -> core::result::Result<Arc<Region>, GraphError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let region = Arc::new(self.shared.pool.take(bytes.len())?);
        self.shared.queue.submit(|s| s.write_now(region.memory(), 0, bytes))?;
        Ok(region)
    }

    /// How a kernel is shaped: as a table says, if it can be shaped so, else by rules.
    fn way(&self, kind: Kind) -> Way {
        let workload = Workload(kind);
        let Shared { shape, info, identity, asked, .. } = &**self.shared;
        let mut asked = lock(asked);
        if !asked.contains(&workload) {
            asked.push(workload);
        }
        drop(asked);
        let units = usize::try_from(info.units).unwrap_or(usize::MAX);
        let known = self.choices.and_then(|c| c.way(identity, units, &workload.to_string()));
        let usual = || workload.usual(shape, info);
        known.filter(|way| workload.allows(way, info)).unwrap_or_else(usual)
    }
}

/// Work-items of groups that share nothing: a few per group, so that a group is worth its start.
fn spread(items: [usize; 3], most: usize) -> ([usize; 3], Option<[usize; 3]>) {
    let first = items[0].next_power_of_two().min(most);
    let second = (most / first).min(items[1].next_power_of_two()).max(1);
    let local = [first, second, 1];
    let global =
        [items[0].next_multiple_of(local[0]), items[1].next_multiple_of(local[1]), items[2]];
    (global, Some(local))
}

/// Sizes as the kernels take them; `None` if one does not fit.
fn ints<const N: usize>(sizes: [usize; N]) -> Option<[Arg; N]> {
    if sizes.iter().any(|&s| i32::try_from(s).is_err()) {
        return None;
    }
    Some(sizes.map(|s| Arg::Int(s as i32)))
}

/// Numbers of 32 bits as the structure of a kernel has them.
fn numbers(all: Vec<Arg>) -> [Arg; 1] {
    let bytes = all.into_iter().flat_map(|arg| match arg {
        Arg::Int(v) => v.to_ne_bytes(),
        Arg::Float(v) => v.to_ne_bytes(),
        _ => unreachable!("operands stand before the structure"),
    });
    [Arg::Numbers(bytes.collect())]
}

/// Arguments out of groups of them.
macro_rules! args {
    ($($group:expr),* $(,)?) => {{
        let mut all: Vec<$crate::backend::opencl::ops::Arg> = Vec::new();
        $(all.extend($group);)*
        all
    }};
}
use args;

/// Whether a tensor has elements, and no more than kernels count, in 32 bits.
pub(super) fn fits(info: &Info) -> bool {
    info.elements() > 0 && info.stored_bytes().is_some_and(|b| b <= i32::MAX as usize)
}

/// The kernels of an operation; `None` if there are none for it.
pub(super) fn lower(op: &Op, cx: &Lower<'_>) -> Result {
    let weights = |i: usize| cx.values.get(i).is_some_and(Option::is_some);
    let empty_or_fits = |info: &Info| info.elements() == 0 || fits(info);
    let all = cx.src.iter().enumerate().all(|(i, s)| weights(i) || empty_or_fits(s));
    if !all || !fits(cx.dst) {
        return Ok(None);
    }
    match op {
        Op::Unary(op) => elements::unary(op, cx),
        Op::Binary(op) => elements::binary(op, cx),
        Op::Glu(op) => elements::glu(op, cx),
        Op::Rope(op) => elements::rope(op, cx),
        Op::Cont(_) => movement::cont(cx),
        Op::Concat(op) => movement::concat(op, cx),
        Op::Pad(op) => movement::pad(op, cx),
        Op::Gather(op) => movement::gather(op, cx),
        Op::Select(_) => movement::select(cx),
        Op::Lookup(op) => movement::lookup(op, cx),
        Op::Softmax(op) => rows::softmax(op, cx),
        Op::Norm(op) => rows::norm(op, cx),
        Op::Reduce(op) => rows::reduce(op, cx),
        Op::Resize(op) => rows::resize(op, cx),
        Op::Best(op) => rows::best(op, cx),
        Op::Conv(op) => conv::conv(op, cx),
        Op::Pool(op) => conv::pool(op, cx),
        Op::MatMul(op) => matmul::matmul(op, cx),
        Op::BlockMatMul(op) => matmul::block_matmul(op, cx),
        Op::Embedding(_) => matmul::embedding(cx),
        Op::Attention(op) => attention::plain(op, cx),
        Op::KvAttention(op) => attention::cached(op, cx),
        Op::QConv(op) => bytes::conv(op, cx),
        Op::QMatMul(op) => bytes::matmul(op, cx),
        Op::QBinary(op) => bytes::binary(op, cx),
        Op::QPool(op) => bytes::pool(op, cx),
        Op::Quantize(op) => bytes::quantize(op, cx),
        Op::Dequantize(op) => bytes::dequantize(op, cx),
        _ => Ok(None),
    }
}
