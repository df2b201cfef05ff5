//! Loading networks, and what they run on.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use tilewright::graph::Device;
use tilewright::import::ImportError;
use tilewright::task::{Output, Task, keys, ultralytics};
use tilewright::tune::{Table, Tuning};
use tilewright::{DType, Error, Model, Session, SessionOptions};

use super::args::MachineArgs;
use super::{Failure, chosen_isa, embedded, inputs, report, side_file};

/// Backends of this build.
const BACKENDS: &[&str] = match (cfg!(feature = "opencl"), cfg!(feature = "rknn")) {
    (true, true) => &["cpu", "opencl", "rknn"],
    (true, false) => &["cpu", "opencl"],
    (false, true) => &["cpu", "rknn"],
    (false, false) => &["cpu"],
};

/// A network with what its metadata say.
pub(super) struct Network {
    /// How results name it.
    pub(super) name: String,
    pub(super) model: Arc<Model>,
    pub(super) task: Task,
    pub(super) is_embedded: bool,
    /// Whether labels are all that is said of its task.
    only_labels: bool,
}

impl Network {
    /// The network in a file, or the embedded one. A file beside it may say more of its task.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, Failure> {
        Self::with_task(path, None, None)
    }

    /// As [`Network::load`], with files that say more of its task: entries as in metadata, instead of
    /// those of the file beside it, and labels.
    pub(super) fn with_task(
        path: Option<&Path>,
        entries: Option<&Path>,
        labels: Option<&Path>,
    ) -> Result<Self, Failure> {
        let (name, model) = match path {
            Some(path) => (path.display().to_string(), load_file(path)?),
            None => (embedded::NAME.to_owned(), Model::from_bytes(embedded::MODEL, None)?),
        };
        let beside = path.map(|p| p.with_extension("task.json")).filter(|p| p.is_file());
        let entries = entries.or(beside.as_deref());
        let more = side_file::entries(entries, labels)?;
        let outputs: Vec<_> = model.outputs().iter().map(inputs::extents).collect();
        let mut metadata = ultralytics::entries(model.metadata(), &outputs);
        metadata.extend(model.metadata().clone());
        metadata.extend(more.iter().map(|(k, v)| (k.clone(), v.clone())));
        let only_labels =
            keys::ALL.iter().all(|k| metadata.contains_key(*k) == (*k == keys::LABELS));
        let task = match Task::from_metadata(&metadata) {
            Ok(task) => task,
            // Somebody has just written that file, and should hear what is wrong with it.
            Err(e) if !more.is_empty() => return Err(side_file::wrong(entries.or(labels), &e)),
            Err(e) => {
                report::note(&format!("note: {e}; the outputs are shown as they are"));
                Task::default()
            }
        };
        Ok(Self { name, model: Arc::new(model), task, is_embedded: path.is_none(), only_labels })
    }

    /// Takes a network that says nothing of its task for a usual one, if it looks like it. Labels, if
    /// it has any, stay its own.
    pub(super) fn guess_task(&mut self) {
        let ([input], [output]) = (self.model.inputs(), self.model.outputs()) else { return };
        let says_more = self.task != Task::default() && !self.only_labels;
        let floats = [DType::F32, DType::F16, DType::BF16];
        if says_more || !floats.contains(&input.dtype) || !floats.contains(&output.dtype) {
            return;
        }
        if let Some(mut task) = Task::guess(&inputs::extents(input), &inputs::extents(output)) {
            report::note(
                "note: the network does not say what its input and output mean; it is taken for an \
                 ImageNet classifier with the usual preparation (--task FILE says otherwise, see \
                 `tilewright run --help`)",
            );
            if let (Some(Output::Labels { labels, .. }), Some(Output::Labels { labels: own, .. })) =
                (&mut task.output, self.task.output.take())
            {
                *labels = own;
            }
            self.task = task;
        }
    }

    /// Makes inputs of those constants of the network that `NAME=FILE` names and that it lists as
    /// inputs, too: they are defaults.
    pub(super) fn ask_for(&mut self, given: &[String]) -> Result<(), Failure> {
        let defaults = self.model.defaults();
        let named = |text: &String| {
            let at = |(i, _)| defaults.iter().find(|d| d.name == text[..i]);
            text.match_indices('=').find_map(at).map(|d| d.name.clone())
        };
        let names: Vec<String> = given.iter().filter_map(named).collect();
        if names.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.model = Arc::new(self.model.with_inputs(&names)?);
        Ok(())
    }

    /// A session for it; unknown backends are refused. A tuning table that cannot be used is
    /// reported, and not used.
    pub(super) fn session(&self, machine: &MachineArgs, profile: bool) -> Result<Session, Failure> {
        let isa = Some(chosen_isa()?);
        let device = device(&machine.backend, machine.device.as_deref())?;
        let threads = machine.threads.map(usize::from);
        let memory_limit = machine.memory_limit;
        let tuning = machine.tuning()?;
        let options = SessionOptions { threads, isa, profile, tuning, memory_limit, device };
        let session = Session::new(self.model.clone(), options)?;
        if let Some(problem) = session.table_problem() {
            report::note(&format!("note: {problem}; it is not used"));
        }
        Ok(session)
    }
}

impl MachineArgs {
    /// The tuning table. One that is named must exist; a damaged one is reported, and not used.
    fn tuning(&self) -> Result<Tuning, Failure> {
        let Some(path) = &self.table else {
            return Ok(if self.no_table { Tuning::Off } else { Tuning::User });
        };
        if !path.exists() {
            return Err(Failure(format!("there is no tuning table {}", path.display())));
        }
        side_file::check_regular(path)?;
        match Table::load(path) {
            Ok(table) => Ok(Tuning::Table(Arc::new(table))),
            Err(problem) => {
                report::note(&format!("note: {problem}; it is not used"));
                Ok(Tuning::Off)
            }
        }
    }
}

/// Whether a backend exists here.
pub(super) fn check_backend(name: &str) -> Result<(), Failure> {
    if BACKENDS.contains(&name) {
        return Ok(());
    }
    Err(Failure(format!(
        "there is no backend `{name}` in this build, only: {}",
        BACKENDS.join(", ")
    )))
}

/// The device of a backend; `None` for the processor. All sessions of the program share it.
pub(super) fn device(name: &str, which: Option<&str>) -> Result<Option<Arc<dyn Device>>, Failure> {
    check_backend(name)?;
    if let Some(which) = which.filter(|_| name != "opencl") {
        return Err(Failure(format!(
            "--device {which} is for --backend opencl; the backend {name} has no devices to choose"
        )));
    }
    #[cfg(feature = "opencl")]
    if name == "opencl" {
        return Ok(Some(opencl(which)?));
    }
    #[cfg(feature = "rknn")]
    if name == "rknn" {
        use std::sync::OnceLock;

        use tilewright::backend::rknn::{Npu, Options, RknnDevice};
        static DEVICE: OnceLock<Arc<RknnDevice>> = OnceLock::new();
        let device = match DEVICE.get() {
            Some(device) => device,
            None => {
                let options = Options::from_env()?;
                super::npu::before_use(&options)?;
                let npu = Arc::new(Npu::open(options)?);
                DEVICE.get_or_init(|| Arc::new(RknnDevice::new(npu)))
            }
        };
        return Ok(Some(device.clone()));
    }
    Ok(None)
}

/// What is said before the instruction set: the device that computes what it can.
pub(super) fn device_before(backend: &str) -> String {
    if backend == "cpu" { String::new() } else { format!("{backend} and ") }
}

/// The OpenCL device. All sessions of the program share it.
#[cfg(feature = "opencl")]
pub(super) fn opencl(
    which: Option<&str>,
) -> Result<Arc<tilewright::backend::opencl::OpenClDevice>, Failure> {
    use std::sync::Mutex;

    use tilewright::backend::opencl::{OpenClDevice, Options};
    static DEVICE: Mutex<Option<Arc<OpenClDevice>>> = Mutex::new(None);
    let mut device = DEVICE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(device) = &*device {
        return Ok(device.clone());
    }
    let options = Options::from_env()?;
    let asked = which.map(str::to_owned).or(options.device);
    let options =
        Options { device: asked, log: |text| report::note(&format!("note: {text}")), ..options };
    Ok(device.insert(Arc::new(OpenClDevice::open(&options)?)).clone())
}

/// Whether the network or its operators ask for something that is right, but not supported.
pub(super) fn is_unsupported(error: &Error) -> bool {
    use tilewright::graph::GraphError;
    use tilewright::import::NodeError;
    fn in_graph(error: &GraphError) -> bool {
        match error {
            GraphError::Unsupported { .. } | GraphError::UnsupportedDType { .. } => true,
            GraphError::At { source, .. } => in_graph(source),
            _ => false,
        }
    }
    match error {
        Error::Import(ImportError::Unsupported(_)) => true,
        Error::Import(ImportError::Node { source, .. }) => match source {
            NodeError::Unsupported(_) => true,
            NodeError::Graph(e) => in_graph(e),
            _ => false,
        },
        Error::Import(ImportError::Graph(e)) | Error::Graph(e) => in_graph(e),
        _ => false,
    }
}

fn load_file(path: &Path) -> Result<Model, Failure> {
    if let Some(other) = other_kind(path) {
        return Err(Failure::new(path.display(), other));
    }
    Model::load(path).map_err(|e| describe(path, &e))
}

/// What a file is that is no network, and what it is for, as far as its first bytes show.
fn other_kind(path: &Path) -> Option<String> {
    let mut begin = [0; 8];
    // A pipe would lose these bytes.
    let file = path.is_file().then(|| File::open(path).ok()).flatten();
    file?.read_exact(&mut begin).ok()?;
    if begin.starts_with(b"GGUF") {
        let commands = match cfg!(feature = "llm") {
            true => "`tilewright generate` and `chat` run language models, `inspect` shows it",
            false => "`tilewright inspect` shows it; this build runs no language models",
        };
        return Some(format!("it is a GGUF file, expected an ONNX network; {commands}"));
    }
    let is_picture = begin == *b"\x89PNG\r\n\x1a\n" || begin.starts_with(&[0xff, 0xd8, 0xff]);
    is_picture.then(|| {
        "it is a picture, expected an ONNX network; a picture is an input: `tilewright run \
         [NETWORK] --input FILE`"
            .into()
    })
}

/// The error with the file's name, once.
fn describe(path: &Path, error: &Error) -> Failure {
    match error {
        Error::Import(ImportError::Io { .. }) => Failure(error.to_string()),
        _ => Failure::new(path.display(), error),
    }
}
