//! Branches and loops: `If`, `Loop` and `Scan`, whose bodies are run one by one.

use super::flow::{Driver, Live, Runner};
use super::model::{Body, Node};
use super::ops::{enough, truth};
use crate::graph::GraphError;
use crate::import::NodeError;
use crate::tensor::{AlignedBytes, DType, Storage, Tensor, TensorError};

/// Most bytes that the results of the iterations of a loop may have together.
const MAX_STACKED: usize = 1 << (if usize::BITS > 32 { 31 } else { 28 });

/// Runs a node with bodies.
pub(super) fn run<R: Runner>(
    driver: &mut Driver<'_, '_, R>,
    node: &Node,
    inputs: &[Option<Tensor>],
    around: &Live,
    error: &dyn Fn(NodeError) -> R::Error,
) -> Result<Vec<Tensor>, R::Error> {
    let body = |name: &str| node.body(name).ok_or_else(|| error(NodeError::unsupported(name)));
    match node.row.name {
        "If" => {
            let condition = inputs.first().and_then(Option::as_ref);
            let condition = condition.ok_or_else(|| error(NodeError::NoInput(0)))?;
            let chosen = truth(condition).map_err(error)?;
            let body = body(if chosen { "then_branch" } else { "else_branch" })?;
            let results = driver.body(body, Vec::new(), around)?;
            enough(results.len(), node.outputs.len()).map_err(error)?;
            Ok(results)
        }
        "Loop" => Loop::new(node, body("body")?, inputs).map_err(error)?.run(driver, around, error),
        _ => {
            let scan = Scan::new(node, body("body")?, inputs).map_err(error)?;
            if *node.row.opsets().start() == 8 {
                scan.run_batch(driver, around, error)
            } else {
                scan.run(driver, &scan.states.clone(), &scan.scanned.clone(), around, error)
            }
        }
    }
}

/// A loop with a trip count, a condition, and values that iterations hand on.
struct Loop<'a> {
    body: &'a Body,
    trips: i64,
    /// Whether the first iteration takes place; `None` if only the trip count counts.
    condition: Option<bool>,
    carried: Vec<Tensor>,
    outputs: usize,
}

impl<'a> Loop<'a> {
    fn new(node: &Node, body: &'a Body, inputs: &[Option<Tensor>]) -> Result<Self, NodeError> {
        let opt = |i: usize| inputs.get(i).and_then(Option::as_ref);
        let trips = match opt(0) {
            Some(t) => *ints(t).first().ok_or_else(|| NodeError::invalid("no trip count"))?,
            None => i64::MAX,
        };
        let condition = opt(1).map(truth).transpose()?;
        let carried: Option<Vec<Tensor>> = inputs.iter().skip(2).cloned().collect();
        let carried = carried.ok_or(NodeError::NoInput(2))?;
        let outputs = node.outputs.len();
        let fits = body.inputs.len() == carried.len() + 2
            && body.outputs.len() == outputs + 1
            && outputs >= carried.len();
        if !fits {
            return Err(NodeError::invalid(format!(
                "a body with {} inputs and {} outputs for {} values and {outputs} results",
                body.inputs.len(),
                body.outputs.len(),
                carried.len()
            )));
        }
        Ok(Self { body, trips, condition, carried, outputs })
    }

    fn run<R: Runner>(
        self,
        driver: &mut Driver<'_, '_, R>,
        around: &Live,
        error: &dyn Fn(NodeError) -> R::Error,
    ) -> Result<Vec<Tensor>, R::Error> {
        let count = self.carried.len();
        let mut stacks: Vec<Stack> = (count..self.outputs).map(|_| Stack::default()).collect();
        let mut carried = self.carried;
        let mut go_on = self.condition.unwrap_or(true);
        let flag = Tensor::from_bytes(DType::Bool, &[], &[1]).map_err(|e| error(tensor(e)))?;
        let inputs = |i: i64, carried: Vec<Tensor>| -> Result<Vec<Tensor>, R::Error> {
            let number = Tensor::from_slice(&[], &[i]).map_err(|e| error(tensor(e)))?;
            let mut inputs = Vec::with_capacity(2 + carried.len());
            inputs.extend([number, flag.clone()]);
            inputs.extend(carried);
            Ok(inputs)
        };
        let mut i = 0;
        while go_on && i < self.trips {
            let mut results = driver.body(self.body, inputs(i, carried)?, around)?.into_iter();
            let condition = results.next().ok_or_else(|| error(NodeError::NoInput(1)))?;
            go_on = truth(&condition).map_err(error)?;
            carried = results.by_ref().take(count).collect();
            for (stack, t) in stacks.iter_mut().zip(results) {
                stack.push(t).map_err(error)?;
            }
            i += 1;
        }
        let mut shapes = Vec::new();
        if i == 0 && !stacks.is_empty() {
            shapes =
                shapes_without(driver, self.body, inputs(0, carried.clone())?, count + 1, around);
        }
        for (k, stack) in stacks.into_iter().enumerate() {
            carried.push(stack.join(0, false, shapes.get(k)).map_err(error)?);
        }
        Ok(carried)
    }
}

/// A loop over the parts of tensors along an axis.
struct Scan<'a> {
    body: &'a Body,
    states: Vec<Tensor>,
    scanned: Vec<Tensor>,
    /// Axis, and whether it goes from the last part to the first.
    axes: Vec<(i64, bool)>,
    stacked: Vec<(i64, bool)>,
}

impl<'a> Scan<'a> {
    fn new(node: &Node, body: &'a Body, inputs: &[Option<Tensor>]) -> Result<Self, NodeError> {
        let batched = *node.row.opsets().start() == 8;
        if batched && inputs.first().is_some_and(Option::is_some) {
            return Err(NodeError::unsupported("sequence_lens"));
        }
        let given: Option<Vec<Tensor>> =
            inputs.iter().skip(usize::from(batched)).cloned().collect();
        let mut states = given.ok_or(NodeError::NoInput(0))?;
        let count = node.attrs.int("num_scan_inputs").and_then(|n| usize::try_from(n).ok());
        let at = count.filter(|&n| n > 0).and_then(|n| states.len().checked_sub(n));
        let (Some(at), outputs) = (at, node.outputs.len()) else {
            return Err(NodeError::invalid("num_scan_inputs and the number of inputs"));
        };
        let scanned = states.split_off(at);
        let fits = body.inputs.len() == states.len() + scanned.len()
            && body.outputs.len() == outputs
            && outputs >= states.len();
        if !fits {
            return Err(NodeError::invalid(format!(
                "a body with {} inputs and {} outputs for {} states, {} inputs and {outputs} results",
                body.inputs.len(),
                body.outputs.len(),
                states.len(),
                scanned.len()
            )));
        }
        let list = |axes: &str, directions: &str, n: usize| {
            let values = |name: &str| match node.attrs.ints(name) {
                Some(v) if v.len() == n => Ok(v.to_vec()),
                Some(v) => Err(NodeError::invalid(format!("{name} has {} of {n}", v.len()))),
                None => Ok(vec![0; n]),
            };
            let pairs = values(axes)?.into_iter().zip(values(directions)?);
            Ok::<_, NodeError>(pairs.map(|(axis, d)| (axis, d != 0)).collect())
        };
        let directions = if batched { "directions" } else { "scan_input_directions" };
        let axes = list("scan_input_axes", directions, scanned.len())?;
        let stacks = outputs - states.len();
        let stacked = list("scan_output_axes", "scan_output_directions", stacks)?;
        Ok(Self { body, states, scanned, axes, stacked })
    }

    fn run<R: Runner>(
        &self,
        driver: &mut Driver<'_, '_, R>,
        states: &[Tensor],
        scanned: &[Tensor],
        around: &Live,
        error: &dyn Fn(NodeError) -> R::Error,
    ) -> Result<Vec<Tensor>, R::Error> {
        let mut states = states.to_vec();
        let count = states.len();
        let mut axes = Vec::new();
        let mut length = None;
        for (t, &(axis, back)) in scanned.iter().zip(&self.axes) {
            let dims = t.dims();
            let axis = super::build::axis(axis, dims.len()).map_err(error)?;
            let extent = dims.get(axis).copied().unwrap_or(0);
            if length.is_some_and(|l| l != extent) {
                return Err(error(NodeError::invalid("scanned axes have different lengths")));
            }
            length = Some(extent);
            axes.push((axis, back));
        }
        let length = length.unwrap_or(0);
        let mut stacks: Vec<Stack> = self.stacked.iter().map(|_| Stack::default()).collect();
        for i in 0..length {
            let parts = scanned.iter().zip(&axes);
            let parts = parts.map(|(t, &(axis, back))| {
                part(t, axis, if back { length - 1 - i } else { i }).map_err(error)
            });
            let inputs = states.into_iter().map(Ok).chain(parts).collect::<Result<_, _>>()?;
            let mut results = driver.body(self.body, inputs, around)?.into_iter();
            states = results.by_ref().take(count).collect();
            for (stack, t) in stacks.iter_mut().zip(results) {
                stack.push(t).map_err(error)?;
            }
        }
        let mut shapes = Vec::new();
        if length == 0 && !stacks.is_empty() {
            let parts = scanned.iter().zip(&axes).map(|(t, &(axis, _))| {
                let mut dims = t.dims();
                dims.remove(axis);
                Tensor::zeros(t.dtype(), &dims).map_err(|e| error(tensor(e)))
            });
            let inputs = states.iter().cloned().map(Ok).chain(parts).collect::<Result<_, _>>()?;
            shapes = shapes_without(driver, self.body, inputs, count, around);
        }
        for (k, (stack, &(axis, back))) in stacks.into_iter().zip(&self.stacked).enumerate() {
            let rank = stack.dims(shapes.get(k)).1.len();
            let axis = super::build::axis(axis, rank + 1).map_err(error)?;
            states.push(stack.join(axis, back, shapes.get(k)).map_err(error)?);
        }
        Ok(states)
    }

    /// Operator set 8: the first axis of everything is a batch.
    fn run_batch<R: Runner>(
        &self,
        driver: &mut Driver<'_, '_, R>,
        around: &Live,
        error: &dyn Fn(NodeError) -> R::Error,
    ) -> Result<Vec<Tensor>, R::Error> {
        let all = || self.states.iter().chain(&self.scanned);
        let batch = all().next().and_then(|t| t.dims().first().copied()).unwrap_or(0);
        if all().any(|t| t.dims().first() != Some(&batch)) {
            return Err(error(NodeError::invalid("batches differ")));
        }
        let mut stacks: Vec<Stack> = Vec::new();
        stacks.resize_with(self.body.outputs.len(), Stack::default);
        for b in 0..batch {
            let parts = |list: &[Tensor]| {
                list.iter().map(|t| part(t, 0, b).map_err(error)).collect::<Result<Vec<_>, _>>()
            };
            let (states, scanned) = (parts(&self.states)?, parts(&self.scanned)?);
            let results = self.run(driver, &states, &scanned, around, error)?;
            for (stack, t) in stacks.iter_mut().zip(results) {
                stack.push(t).map_err(error)?;
            }
        }
        stacks.into_iter().map(|s| s.join(0, false, None).map_err(error)).collect()
    }
}

/// Types and shapes of the results that iterations would have where there is none, but for the first `skip`: as the
/// body says, or, where it leaves something open, as an iteration on these inputs finds.
fn shapes_without<R: Runner>(
    driver: &mut Driver<'_, '_, R>,
    body: &Body,
    inputs: Vec<Tensor>,
    skip: usize,
    around: &Live,
) -> Vec<(DType, Vec<usize>)> {
    let results = match body.is_open(skip) {
        true => driver.body(body, inputs, around).unwrap_or_default(),
        false => Vec::new(),
    };
    let declared = body.declared.iter().enumerate().skip(skip);
    let shape = |(i, declared): (usize, &Option<_>)| match results.get(i) {
        Some(t) => (t.dtype(), t.dims()),
        None => declared.clone().unwrap_or((DType::F32, Vec::new())),
    };
    declared.map(shape).collect()
}

/// Results of iterations, of one type and shape, that become one tensor.
#[derive(Default)]
struct Stack {
    parts: Vec<Tensor>,
    bytes: usize,
}

impl Stack {
    fn push(&mut self, t: Tensor) -> Result<(), NodeError> {
        if let Some(first) = self.parts.first()
            && (first.dtype(), first.dims()) != (t.dtype(), t.dims())
        {
            let (a, b) = (first.dims(), t.dims());
            return Err(NodeError::invalid(format!(
                "results of iterations differ: {a:?} and {b:?}"
            )));
        }
        self.bytes = self.bytes.saturating_add(t.bytes().len());
        if self.bytes > MAX_STACKED {
            return Err(NodeError::unsupported(format!(
                "a loop with {} bytes of results",
                self.bytes
            )));
        }
        self.parts.push(t);
        Ok(())
    }

    /// The shape of a part: of those there are, or as declared.
    fn dims(&self, declared: Option<&(DType, Vec<usize>)>) -> (DType, Vec<usize>) {
        match (self.parts.first(), declared) {
            (Some(t), _) => (t.dtype(), t.dims()),
            (None, Some(declared)) => declared.clone(),
            (None, None) => (DType::F32, Vec::new()),
        }
    }

    /// The parts along a new axis, if `back` the last one first.
    fn join(
        self,
        axis: usize,
        back: bool,
        declared: Option<&(DType, Vec<usize>)>,
    ) -> Result<Tensor, NodeError> {
        let (dtype, mut dims) = self.dims(declared);
        let count = self.parts.len();
        if count == 0 {
            dims.insert(axis.min(dims.len()), 0);
            return Tensor::zeros(dtype, &dims).map_err(tensor);
        }
        let Some((before, after)) = dims.split_at_checked(axis) else {
            return Err(NodeError::invalid(format!("axis {axis} of results {dims:?}")));
        };
        let outer: usize = before.iter().product();
        let run = after.iter().product::<usize>() * dtype.block_bytes();
        let mut out = AlignedBytes::zeroed(self.bytes).map_err(tensor)?;
        if run > 0 {
            for (o, row) in out.chunks_exact_mut(run * count).enumerate().take(outer) {
                for (i, to) in row.chunks_exact_mut(run).enumerate() {
                    let from = if back { count - 1 - i } else { i };
                    let from =
                        self.parts.get(from).and_then(|t| t.bytes().get(o * run..(o + 1) * run));
                    to.copy_from_slice(from.unwrap_or_default());
                }
            }
        }
        dims.insert(axis, count);
        Tensor::from_storage(dtype, &dims, Storage::owned(out)).map_err(tensor)
    }
}

/// Part `i` of a tensor along an axis, which goes.
fn part(t: &Tensor, axis: usize, i: usize) -> Result<Tensor, NodeError> {
    let mut dims = t.dims();
    let outside = || NodeError::invalid(format!("part {i} of axis {axis} of {:?}", t.dims()));
    let extent = dims.get(axis).copied().filter(|&n| i < n).ok_or_else(outside)?;
    let outer: usize = dims.iter().take(axis).product();
    let run = dims.iter().skip(axis + 1).product::<usize>() * t.dtype().block_bytes();
    dims.remove(axis);
    let mut out = AlignedBytes::zeroed(outer * run).map_err(tensor)?;
    if run > 0 {
        for (o, to) in out.chunks_exact_mut(run).enumerate() {
            let from = (o * extent + i) * run;
            to.copy_from_slice(t.bytes().get(from..from + run).ok_or_else(outside)?);
        }
    }
    Tensor::from_storage(t.dtype(), &dims, Storage::owned(out)).map_err(tensor)
}

fn ints(t: &Tensor) -> Vec<i64> {
    super::data::to_i64s(t).map(|v| v.into_owned()).unwrap_or_default()
}

fn tensor(e: TensorError) -> NodeError {
    NodeError::Graph(GraphError::from(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_stacks_are_inverse() {
        let v: Vec<f32> = (0..24u8).map(f32::from).collect();
        let t = Tensor::from_slice(&[2, 3, 4], &v).unwrap();
        for axis in 0..3 {
            let mut stack = Stack::default();
            let n = t.dims()[axis];
            for i in 0..n {
                stack.push(part(&t, axis, i).unwrap()).unwrap();
            }
            let joined = stack.join(axis, false, None).unwrap();
            assert_eq!((joined.dims(), joined.bytes()), (t.dims(), t.bytes()));
            assert!(part(&t, axis, n).is_err());
        }
        let mut stack = Stack::default();
        stack.push(part(&t, 0, 0).unwrap()).unwrap();
        assert!(stack.push(part(&t, 1, 0).unwrap()).is_err());
        let empty = Stack::default().join(0, false, Some(&(DType::I64, vec![0, 2]))).unwrap();
        assert_eq!((empty.dtype(), empty.dims()), (DType::I64, vec![0, 0, 2]));
    }
}
