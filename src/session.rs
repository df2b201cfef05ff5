//! Models and the sessions that run them.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use crate::Error;
use crate::backend::cpu::{Executor, Plan};
use crate::graph::{Choices, ConstCache, Context, passes};
use crate::import::onnx::{OnnxModel, ValueInfo};
use crate::tensor::{DType, Tensor};
use crate::tune::{Table, TableError, Tuning};
use tilewright_kernels::{Isa, Workload};

/// Plans a session keeps, one per combination of input shapes; the one unused longest goes first.
const MAX_PLANS: usize = 16;

/// Most bytes of an input whose values decide about shapes: a new plan is made for each value.
const MAX_KNOWN: usize = 4096;

/// A network, loaded and checked. Sessions share its weights.
pub struct Model {
    onnx: OnnxModel,
    cache: Arc<ConstCache>,
}

impl Model {
    /// Loads an ONNX file. Weights are read in place from the mapped file, which must not change
    /// while the model is in use.
    ///
    /// # Errors
    /// [`Error::Import`] if the file cannot be read, is not ONNX, or holds something that is not
    /// supported; the message then lists all of it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(Self::new(OnnxModel::load(path.as_ref())?))
    }

    /// Reads an ONNX model from memory. `base_dir` is where files with external data are looked
    /// for; without it they are an error.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_bytes(
        bytes: impl Into<bytes::Bytes>,
        base_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        Ok(Self::new(OnnxModel::from_bytes(bytes.into(), base_dir)?))
    }

    fn new(onnx: OnnxModel) -> Self {
        Self { onnx, cache: Arc::default() }
    }

    /// Name of the graph; may be empty.
    pub fn name(&self) -> &str {
        self.onnx.name()
    }

    /// Inputs that a run must be given.
    pub fn inputs(&self) -> &[ValueInfo] {
        self.onnx.inputs()
    }

    /// Outputs, in the order in which a run gives them.
    pub fn outputs(&self) -> &[ValueInfo] {
        self.onnx.outputs()
    }

    /// Free key-value pairs of the file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.onnx.metadata()
    }

    /// Elements of the float constants that the outputs depend on.
    pub fn parameters(&self) -> usize {
        self.onnx
            .constants()
            .filter(|(_, t)| t.dtype().is_float())
            .map(|(_, t)| t.shape().elements())
            .sum()
    }
}

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
}

struct Entry {
    shapes: Vec<Vec<usize>>,
    /// Values of the inputs that decide about shapes.
    known: Vec<Tensor>,
    plan: Plan,
    /// For each leaf of the plan, the model input it is.
    order: Vec<usize>,
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
    /// Bytes of the constants in use, before packing.
    pub weight_bytes: usize,
    /// Elements of the model's float constants.
    pub parameters: usize,
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
    /// [`Error::Kernel`] if the instruction set asked for is not available, [`Error::Graph`] if
    /// threads cannot be started.
    pub fn new(model: Arc<Model>, options: SessionOptions) -> Result<Self, Error> {
        let isa = match options.isa {
            Some(isa) => isa,
            None => Isa::select()?,
        };
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let (table, table_problem) = match options.tuning {
            Tuning::Off => (None, None),
            Tuning::Table(table) => (Some(table), None),
            Tuning::User => match Table::default_path().map(|path| Table::load(&path)) {
                Some(Ok(table)) => (Some(Arc::new(table)), None),
                Some(Err(problem)) => (None, Some(problem)),
                None => (None, None),
            },
        };
        let executor = Executor::new(isa, options.threads.unwrap_or_else(cores))?
            .with_choices(table.map(|table| table as Arc<dyn Choices>));
        let profile = options.profile;
        Ok(Self { model, executor, profile, table_problem, plans: VecDeque::new() })
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
        let entry = self.entry(&given)?;
        let leaves: Vec<&Tensor> = entry.order.iter().map(|&i| given[i]).collect();
        let entry = self.plans.front_mut().expect("just planned");
        let times = self.profile.then_some(&mut entry.times[..]);
        let results = self.executor.run(&entry.plan, &leaves, times)?;
        entry.runs += 1;
        Ok(self.model.outputs().iter().map(|o| o.name.clone()).zip(results).collect())
    }

    /// Plans the model for the shapes of these inputs without running it.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn prepare(&mut self, inputs: &[(&str, Tensor)]) -> Result<PlanInfo, Error> {
        let given = self.in_model_order(inputs)?;
        let parameters = self.model.parameters();
        let plan = &self.entry(&given)?.plan;
        let nodes = plan.nodes().map(|n| NodeInfo {
            name: n.name.clone(),
            op: n.op.clone(),
            kernel: n.kernel.clone(),
            dtype: n.info.dtype,
            layout: n.info.layout.to_string(),
            dims: n.info.dims.clone(),
            macs: n.macs,
            threads: n.threads,
            workload: n.workload.clone(),
        });
        Ok(PlanInfo {
            nodes: nodes.collect(),
            macs: plan.macs(),
            arena_bytes: plan.arena_bytes(),
            weight_bytes: plan.weight_bytes(),
            parameters,
        })
    }

    /// Time per operation of the plan used last, in its order; empty unless the session profiles.
    pub fn profile(&self) -> Vec<ProfileRow> {
        let Some(entry) = self.plans.front().filter(|_| self.profile) else { return Vec::new() };
        let rows = entry.plan.nodes().zip(&entry.times).map(|(n, time)| ProfileRow {
            name: n.name.clone(),
            op: n.op.clone(),
            kernel: n.kernel.clone(),
            seconds: time.as_secs_f64(),
            calls: entry.runs,
            macs: n.macs,
        });
        rows.collect()
    }

    /// The inputs in the model's order, each there once and of its declared type.
    fn in_model_order<'a>(&self, inputs: &'a [(&str, Tensor)]) -> Result<Vec<&'a Tensor>, Error> {
        let known = self.model.inputs();
        for (i, (name, _)) in inputs.iter().enumerate() {
            if !known.iter().any(|k| k.name == *name) {
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
                let (_, value) =
                    inputs.iter().find(|(name, _)| *name == info.name).ok_or_else(|| {
                        Error::MissingInput {
                            name: info.name.clone(),
                            dtype: info.dtype,
                            shape: info.shape_text(),
                        }
                    })?;
                if value.dtype() != info.dtype {
                    return Err(Error::InputType {
                        name: info.name.clone(),
                        expected: info.dtype,
                        found: value.dtype(),
                    });
                }
                Ok(value)
            })
            .collect()
    }

    /// The plan for the shapes of `given`, moved or put to the front.
    fn entry(&mut self, given: &[&Tensor]) -> Result<&Entry, Error> {
        let shapes: Vec<Vec<usize>> = given.iter().map(|t| t.dims()).collect();
        let onnx = &self.model.onnx;
        let decides = |i: usize| onnx.needs_value(i) && given[i].bytes().len() <= MAX_KNOWN;
        let known: Vec<usize> = (0..given.len()).filter(|&i| decides(i)).collect();
        let same = |e: &Entry| {
            let mut pairs = e.known.iter().zip(&known);
            e.shapes == shapes && pairs.all(|(t, &i)| t.bytes() == given[i].bytes())
        };
        if let Some(i) = self.plans.iter().position(same) {
            let entry = self.plans.remove(i).expect("position is inside");
            self.plans.push_front(entry);
        } else {
            let entry = self.plan(shapes, known, given)?;
            self.plans.truncate(MAX_PLANS - 1);
            self.plans.push_front(entry);
        }
        Ok(&self.plans[0])
    }

    fn plan(
        &self,
        shapes: Vec<Vec<usize>>,
        known: Vec<usize>,
        given: &[&Tensor],
    ) -> Result<Entry, Error> {
        let inputs = self.model.inputs();
        let values: Vec<(&str, &Tensor)> =
            known.iter().map(|&i| (inputs[i].name.as_str(), given[i])).collect();
        let named: Vec<(&str, &[usize])> =
            inputs.iter().zip(&shapes).map(|(i, s)| (i.name.as_str(), &s[..])).collect();
        let mut cx = Context::with_cache(self.model.cache.clone());
        let mut outputs = self.model.onnx.instantiate(&mut cx, &named, &values)?;
        for output in &mut outputs {
            *output = cx.cont(*output)?;
        }
        passes::fuse(&mut cx, &outputs)?;
        let plan = self.executor.plan(&mut cx, &outputs)?;
        let order = plan
            .input_names()
            .map(|name| inputs.iter().position(|i| i.name == name).expect("leaves are inputs"))
            .collect();
        let times = vec![Duration::ZERO; plan.nodes().count()];
        let known = known.iter().map(|&i| given[i].clone()).collect();
        Ok(Entry { shapes, known, plan, order, times, runs: 0 })
    }
}
