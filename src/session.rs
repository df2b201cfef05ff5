//! Models and the sessions that run them.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::Error;
use crate::backend::cpu::{Executor, Inputs, Plan};
use crate::graph::{Context, Device, GraphError, Op, TensorId, passes};
use crate::import::onnx::{After, ValueInfo};
use crate::tensor::{DType, Tensor, available_memory};
use crate::tune::{TableError, Tuning};
pub use model::Model;
use moved::Moved;
use staged::{StageRunner, Stages};
use tilewright_kernels::{Isa, Workload};

mod model;
mod moved;
mod staged;

/// Plans a session keeps, one per combination of input shapes; the one unused longest goes first.
const MAX_PLANS: usize = 16;

/// Most bytes of an input whose values decide about shapes: a new plan is made for each value.
const MAX_KNOWN: usize = 4096;

/// How a session runs.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Threads; `None` for one per core.
    pub threads: Option<usize>,
    /// Instruction set; `None` for the best of this machine, or what `TILEWRIGHT_ISA` says.
    pub isa: Option<Isa>,
    /// Whether to time each operation.
    pub profile: bool,
    /// Table that says how operations are computed best.
    pub tuning: Tuning,
    /// Bytes that a run may take for intermediate tensors, results and packed weights; `None` for
    /// 80 % of what the machine has free when the session is made.
    pub memory_limit: Option<usize>,
    /// Device that takes the operations it can; the CPU computes the others, and what fails there. `None`
    /// for the one that the model was moved to, if it was.
    pub device: Option<Arc<dyn Device>>,
}

/// Runs a model. A session keeps threads, memory and a plan for each combination of input shapes
/// it has met; after the first run with a combination, only copies of inputs and outputs allocate.
///
/// ```no_run
/// use std::sync::Arc;
/// use tilewright::{Model, Session, SessionOptions, Tensor};
///
/// let model = Arc::new(Model::load("model.onnx")?);
/// let mut session = Session::new(model, SessionOptions::default())?;
/// let x = Tensor::from_slice(&[1, 3, 224, 224], &vec![0f32; 3 * 224 * 224])?;
/// for (name, value) in session.run(&[("x", x)])? {
///     println!("{name}: {:?}", value.dims());
/// }
/// # Ok::<(), tilewright::Error>(())
/// ```
pub struct Session {
    model: Arc<Model>,
    executor: Executor,
    profile: bool,
    table_problem: Option<TableError>,
    plans: VecDeque<Entry>,
    /// Of a model whose shapes depend on what it computes, what comes after the plans.
    stages: Stages,
}

struct Entry {
    shapes: Vec<Vec<usize>>,
    /// Number and value of the inputs that decide about shapes.
    known: Vec<(usize, Tensor)>,
    plan: Plan,
    /// For each leaf of the plan, the model input it is.
    order: Vec<usize>,
    /// What comes after the plan; `None` if its results are those of the model.
    after: Option<Arc<After>>,
    times: Vec<Duration>,
    runs: u64,
}

/// What planning found out about a model with given input shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInfo {
    /// The operations in order.
    pub nodes: Vec<NodeInfo>,
    /// Multiply-adds of one run.
    pub macs: u64,
    /// Bytes that inputs and intermediate tensors take.
    pub arena_bytes: usize,
    /// The largest sum of tensors of the arena that must exist at one time: no arena is smaller.
    pub arena_bound: usize,
    /// Bytes of the constants in use, before packing.
    pub weight_bytes: usize,
    /// Bytes of the packed weights of the model.
    pub packed_bytes: usize,
    /// Bytes of constants that were computed or copied out of the file.
    pub constant_bytes: usize,
    /// Most bytes that a run takes: arena, scratch memory of all threads, results, packed weights and
    /// the other constants; not the mapped file.
    pub peak_bytes: usize,
    /// Elements of the model's float constants.
    pub parameters: usize,
    /// Nodes of the file that no plan has yet, because shapes depend on what a run computes.
    pub waiting: usize,
}

/// One operation of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeInfo {
    /// The tensor it computes.
    pub name: String,
    /// The operator.
    pub op: String,
    /// The kernel.
    pub kernel: String,
    /// Element type of the result.
    pub dtype: DType,
    /// Layout of the result.
    pub layout: String,
    /// Extents of the result, slowest first.
    pub dims: Vec<usize>,
    /// Multiply-adds.
    pub macs: u64,
    /// Bytes of operands and result, each counted once.
    pub bytes: usize,
    /// Operations of the plan whose results it reads.
    pub inputs: Vec<usize>,
    /// Threads that share it.
    pub threads: usize,
    /// What a tuner can measure, if there is more than one way of computing it.
    pub workload: Option<Workload>,
}

/// Time spent in one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRow {
    /// The tensor it computes.
    pub name: String,
    /// The operator.
    pub op: String,
    /// The kernel.
    pub kernel: String,
    /// Seconds over all calls.
    pub seconds: f64,
    /// Calls.
    pub calls: u64,
    /// Multiply-adds of one call.
    pub macs: u64,
}

impl Session {
    /// A session on the CPU.
    ///
    /// # Errors
    /// [`Error::Kernel`] if `TILEWRIGHT_ISA` names none that is available, [`Error::Graph`] if the instruction set asked
    /// for is not, or threads cannot be started.
    pub fn new(model: Arc<Model>, options: SessionOptions) -> Result<Self, Error> {
        let isa = match options.isa {
            Some(isa) => isa,
            None => Isa::select()?,
        };
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let (choices, table_problem) = options.tuning.choices();
        let most = || available_memory().map_or(usize::MAX, |free| free / 5 * 4);
        let executor = Executor::new(isa, options.threads.unwrap_or_else(cores))?
            .with_memory_limit(options.memory_limit.unwrap_or_else(most))
            .with_device(options.device.or_else(|| model.moved.as_ref().map(|m| m.device.clone())))
            .with_choices(choices);
        let profile = options.profile;
        let (plans, stages) = (VecDeque::new(), Stages::default());
        Ok(Self { model, executor, profile, table_problem, plans, stages })
    }

    /// Why the user's tuning table is not used, if it cannot be.
    pub fn table_problem(&self) -> Option<&TableError> {
        self.table_problem.as_ref()
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.executor.isa()
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.executor.threads()
    }

    /// Runs the model once on named inputs; gives name and value of each output.
    ///
    /// # Errors
    /// Inputs that are unknown, missing or do not fit; what planning and the operators refuse.
    pub fn run(&mut self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, Error> {
        let given = self.in_model_order(inputs)?;
        let mut results = self.executor.spare();
        self.run_given(&given, &mut results)?;
        if self.plans.front().is_some_and(|e| e.after.is_none()) {
            self.executor.keep(&results);
        }
        Ok(self.model.outputs().iter().map(|o| o.name.clone()).zip(results).collect())
    }

    /// As [`Session::run`], for callers to whom each microsecond counts: `inputs` in the order of
    /// [`Model::inputs`], `results` in that of [`Model::outputs`]. Memory of tensors in `results` that
    /// have the right type and shape, and of which there is no clone, is written again. So a run with
    /// the shapes and the `results` of the run before allocates nothing and takes no lock, unless
    /// shapes depend on what the model computes.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use tilewright::{DType, Model, Session, SessionOptions, Tensor};
    /// # let model = Arc::new(Model::load("model.onnx")?);
    /// # let mut session = Session::new(model, SessionOptions::default())?;
    /// let mut x = Tensor::zeros(DType::F32, &[1, 16])?;
    /// let mut results = Vec::new();
    /// loop {
    ///     x.bytes_mut().expect("there is no clone").fill(0);
    ///     session.run_into(&[&x], &mut results)?;
    /// }
    /// # #[allow(unreachable_code)]
    /// # Ok::<(), tilewright::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::run`]; what `results` hold is then unspecified.
    pub fn run_into(&mut self, inputs: &[&Tensor], results: &mut Vec<Tensor>) -> Result<(), Error> {
        let known = self.model.inputs();
        if inputs.len() > known.len() {
            let name = format!("number {}", known.len() + 1);
            let known = known.iter().map(|k| k.name.clone()).collect();
            return Err(Error::UnknownInput { name, known });
        }
        for (i, info) in known.iter().enumerate() {
            check_type(info, inputs.get(i).copied())?;
        }
        self.run_given(inputs, results)
    }

    /// Runs the model on its inputs in order, which have its types.
    fn run_given(&mut self, given: &[&Tensor], results: &mut Vec<Tensor>) -> Result<(), Error> {
        self.entry(given)?;
        let Entry { plan, order, after, times, runs, .. } = &mut self.plans[0];
        let times = self.profile.then_some(&mut times[..]);
        *runs += 1;
        match plan.outputs() {
            // Nothing may come before the first stage that needs data.
            0 => results.clear(),
            _ => self.executor.run_into(
                plan,
                Inputs { given, order: Some(order) },
                results,
                times,
            )?,
        }
        if let Some(after) = after.clone() {
            self.stages.begin();
            let mut runner = StageRunner {
                executor: &mut self.executor,
                stages: &mut self.stages,
                cache: &self.model.cache,
                moved: self.model.moved.as_deref(),
                profile: self.profile,
            };
            let first = core::mem::take(results);
            *results = self.model.onnx.resume(&mut runner, given, first, &after)?;
        }
        Ok(())
    }

    /// Plans the model for the shapes of these inputs without running it. Where shapes depend on
    /// what a run computes, what is planned is the part before, and what the last run met after it.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn prepare(&mut self, inputs: &[(&str, Tensor)]) -> Result<PlanInfo, Error> {
        let given = self.in_model_order(inputs)?;
        let parameters = self.model.parameters();
        self.entry(&given)?;
        let waiting = self.plans[0].after.as_ref().map_or(0, |a| a.waiting());
        let plans: Vec<&Plan> = self.used().map(|(plan, ..)| plan).collect();
        let packed_bytes = self.model.cache.packed_bytes();
        let constant_bytes = self.model.cache.folded_bytes();
        let threads = self.executor.threads();
        let run_bytes = plans.iter().map(|p| p.run_bytes(threads)).max().unwrap_or(0);
        let mut first = 0;
        let nodes = plans.iter().flat_map(|p| {
            let from = first;
            first += p.nodes().count();
            p.nodes().map(move |n| (from, n))
        });
        let nodes = nodes.map(|(from, n)| NodeInfo {
            name: n.name.clone(),
            op: n.op.clone(),
            kernel: n.kernel.clone(),
            dtype: n.info.dtype,
            layout: n.info.layout.to_string(),
            dims: n.info.dims.clone(),
            macs: n.macs,
            bytes: n.bytes,
            inputs: n.inputs.iter().map(|i| i + from).collect(),
            threads: n.threads,
            workload: n.workload.clone(),
        });
        Ok(PlanInfo {
            nodes: nodes.collect(),
            macs: plans.iter().map(|p| p.macs()).sum(),
            arena_bytes: plans.iter().map(|p| p.arena_bytes()).max().unwrap_or(0),
            arena_bound: plans.iter().map(|p| p.arena_bound()).max().unwrap_or(0),
            weight_bytes: plans.iter().map(|p| p.weight_bytes()).sum(),
            packed_bytes,
            constant_bytes,
            peak_bytes: run_bytes.saturating_add(packed_bytes).saturating_add(constant_bytes),
            parameters,
            waiting,
        })
    }

    /// The operations of the model for the shapes of these inputs, as they were read and before any
    /// pass: what depends on constants only is folded already. Where shapes depend on what a run
    /// computes, those before.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn graph(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<NodeInfo>, Error> {
        let given = self.in_model_order(inputs)?;
        let dims: Vec<Vec<usize>> = given.iter().map(|t| t.dims()).collect();
        let known = self.model.inputs();
        let named: Vec<(&str, &[usize])> =
            known.iter().zip(&dims).map(|(i, s)| (i.name.as_str(), &s[..])).collect();
        let decides =
            |i: &usize| self.model.onnx.needs_value(*i) && given[*i].bytes().len() <= MAX_KNOWN;
        let values: Vec<(&str, &Tensor)> =
            (0..given.len()).filter(decides).map(|i| (known[i].name.as_str(), given[i])).collect();
        let mut cx = Context::with_cache(self.model.cache.clone());
        cx.keep_quantized();
        let stage = self.model.onnx.begin(&mut cx, &named, &values)?;
        Ok(described(&cx, &cx.build_forward(&stage.outputs)?))
    }

    /// The plan used last, and if it is only the beginning, those of the stages of the last run; with
    /// the times of their operations and the number of runs.
    fn used(&self) -> impl Iterator<Item = (&Plan, &[Duration], u64)> {
        let first = self.plans.front();
        let staged = first.is_some_and(|e| e.after.is_some());
        let more = self.stages.last_run().filter(move |_| staged);
        let more = more.map(|e| (&e.plan, &e.times[..], e.runs));
        first.map(|e| (&e.plan, &e.times[..], e.runs)).into_iter().chain(more)
    }

    /// Time per operation of the plan used last, in its order, and of the stages after it; empty
    /// unless the session profiles.
    pub fn profile(&self) -> Vec<ProfileRow> {
        let used = self.used().filter(|_| self.profile);
        let rows = used.flat_map(|(plan, times, calls)| {
            plan.nodes().zip(times).map(move |(n, time)| ProfileRow {
                name: n.name.clone(),
                op: n.op.clone(),
                kernel: n.kernel.clone(),
                seconds: time.as_secs_f64(),
                calls,
                macs: n.macs,
            })
        });
        rows.collect()
    }

    /// The inputs in the model's order, each there once and of its declared type.
    fn in_model_order<'a>(&self, inputs: &'a [(&str, Tensor)]) -> Result<Vec<&'a Tensor>, Error> {
        let known = self.model.inputs();
        for (i, (name, _)) in inputs.iter().enumerate() {
            let called = |k: &ValueInfo| k.name == *name;
            if !known.iter().any(called) {
                if self.model.defaults().iter().any(called) {
                    return Err(Error::DefaultInput((*name).to_owned()));
                }
                let known = known.iter().map(|k| k.name.clone()).collect();
                return Err(Error::UnknownInput { name: (*name).to_owned(), known });
            }
            if inputs[..i].iter().any(|(other, _)| other == name) {
                return Err(Error::RepeatedInput((*name).to_owned()));
            }
        }
        known
            .iter()
            .map(|info| {
                let given = inputs.iter().find(|(name, _)| *name == info.name);
                check_type(info, given.map(|(_, value)| value))
            })
            .collect()
    }

    /// The plan for the shapes of `given`, moved or put to the front.
    fn entry(&mut self, given: &[&Tensor]) -> Result<&Entry, Error> {
        let same = |e: &Entry| {
            e.shapes.iter().zip(given).all(|(dims, t)| t.shape().has_dims(dims))
                && e.known.iter().all(|(i, t)| t.bytes() == given[*i].bytes())
        };
        match self.plans.iter().position(same) {
            Some(0) => {}
            Some(i) => {
                let entry = self.plans.remove(i).expect("position is inside");
                self.plans.push_front(entry);
            }
            None => {
                let entry = self.plan(given)?;
                self.plans.truncate(MAX_PLANS - 1);
                self.plans.push_front(entry);
            }
        }
        Ok(&self.plans[0])
    }

    fn plan(&self, given: &[&Tensor]) -> Result<Entry, Error> {
        let (onnx, inputs) = (&self.model.onnx, self.model.inputs());
        let shapes: Vec<Vec<usize>> = given.iter().map(|t| t.dims()).collect();
        let decides = |i: &usize| onnx.needs_value(*i) && given[*i].bytes().len() <= MAX_KNOWN;
        let known: Vec<usize> = (0..given.len()).filter(decides).collect();
        let values: Vec<(&str, &Tensor)> =
            known.iter().map(|&i| (inputs[i].name.as_str(), given[i])).collect();
        let named: Vec<(&str, &[usize])> =
            inputs.iter().zip(&shapes).map(|(i, s)| (i.name.as_str(), &s[..])).collect();
        let mut cx = Context::with_cache(self.model.cache.clone());
        cx.keep_quantized();
        let stage = onnx.begin(&mut cx, &named, &values)?;
        let plan = planned(&self.executor, &mut cx, stage.outputs, self.model.moved.as_deref())?;
        let order = plan
            .input_names()
            .map(|name| inputs.iter().position(|i| i.name == name).expect("leaves are inputs"))
            .collect();
        let times = vec![Duration::ZERO; plan.nodes().count()];
        drop(cx);
        self.model.cache.release();
        // Copies, so that the caller may write into the tensors again.
        let copy = |&i: &usize| {
            let t = given[i];
            Ok((i, Tensor::from_bytes(t.dtype(), &t.dims(), t.bytes())?))
        };
        let known = known.iter().map(copy).collect::<Result<_, GraphError>>()?;
        let after = stage.after.map(Arc::new);
        Ok(Entry { shapes, known, plan, order, after, times, runs: 0 })
    }
}

/// What was given for an input, if it has the declared type.
fn check_type<'a>(info: &ValueInfo, given: Option<&'a Tensor>) -> Result<&'a Tensor, Error> {
    let value = given.ok_or_else(|| Error::MissingInput {
        name: info.name.clone(),
        dtype: info.dtype,
        shape: info.shape_text(),
    })?;
    if value.dtype() != info.dtype {
        let (name, expected, found) = (info.name.clone(), info.dtype, value.dtype());
        return Err(Error::InputType { name, expected, found });
    }
    Ok(value)
}

/// The records of a graph that compute something or look at what does.
fn described(cx: &Context, order: &[TensorId]) -> Vec<NodeInfo> {
    let mut number = std::collections::HashMap::new();
    let mut nodes = Vec::new();
    for &id in order {
        let record = cx.record(id);
        if record.value().is_some() || *record.op() == Op::Leaf {
            continue;
        }
        let src: Vec<_> = record.src().iter().map(|&s| cx.record(s).info()).collect();
        let info = record.info();
        let bytes = src.iter().chain([&info]).filter_map(|i| i.stored_bytes()).sum();
        number.insert(id, nodes.len());
        nodes.push(NodeInfo {
            name: record.name().to_owned(),
            op: record.op().name().to_owned(),
            kernel: String::new(),
            dtype: info.dtype,
            layout: info.layout.to_string(),
            macs: record.op().operator().map_or(0, |op| op.macs(&src, &info)),
            dims: info.dims,
            bytes,
            inputs: record.src().iter().filter_map(|s| number.get(s).copied()).collect(),
            threads: 0,
            workload: None,
        });
    }
    nodes
}

/// The plan that computes `outputs`.
fn planned(
    executor: &Executor,
    cx: &mut Context,
    mut outputs: Vec<TensorId>,
    moved: Option<&Moved>,
) -> Result<Plan, GraphError> {
    for output in &mut outputs {
        *output = cx.cont(*output)?;
    }
    // Fusing neighbours pays where there are few threads, and a device has many.
    let threads = if executor.leaves_the_cpu() { usize::MAX } else { executor.threads() };
    passes::optimize(cx, &outputs, threads)?;
    let plan = executor.plan(cx, &outputs)?;
    if let Some(moved) = moved {
        moved.keep(&plan);
    }
    Ok(plan)
}
