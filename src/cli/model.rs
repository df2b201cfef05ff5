//! Loading networks, and what they run on.

use std::path::Path;
use std::sync::Arc;

use tilewright::import::ImportError;
use tilewright::task::Task;
use tilewright::tune::{Table, Tuning};
use tilewright::{Error, Model, Session, SessionOptions};

use super::args::MachineArgs;
use super::{Failure, embedded, report};

/// Backends of this build.
const BACKENDS: &[&str] = &["cpu"];

/// A network with what its metadata say.
pub(super) struct Network {
    /// How results name it.
    pub(super) name: String,
    pub(super) model: Arc<Model>,
    pub(super) task: Task,
    pub(super) is_embedded: bool,
}

impl Network {
    /// The network in a file, or the embedded one.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, Failure> {
        let (name, model) = match path {
            Some(path) => (path.display().to_string(), load_file(path)?),
            None => (embedded::NAME.to_owned(), Model::from_bytes(embedded::MODEL, None)?),
        };
        let task = Task::from_metadata(model.metadata()).unwrap_or_else(|e| {
            report::note(&format!("note: {e}; the outputs are shown as they are"));
            Task::default()
        });
        Ok(Self { name, model: Arc::new(model), task, is_embedded: path.is_none() })
    }

    /// A session for it; unknown backends are refused. A tuning table that cannot be used is
    /// reported, and not used.
    pub(super) fn session(&self, machine: &MachineArgs, profile: bool) -> Result<Session, Failure> {
        machine.check()?;
        let threads = machine.threads.map(usize::from);
        let options = SessionOptions { threads, isa: None, profile, tuning: machine.tuning()? };
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
        match Table::load(path) {
            Ok(table) => Ok(Tuning::Table(Arc::new(table))),
            Err(problem) => {
                report::note(&format!("note: {problem}; it is not used"));
                Ok(Tuning::Off)
            }
        }
    }

    /// Whether the backend exists here.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if BACKENDS.contains(&self.backend.as_str()) {
            return Ok(());
        }
        Err(Failure(format!(
            "there is no backend `{}` in this build, only: {}",
            self.backend,
            BACKENDS.join(", ")
        )))
    }
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
    Model::load(path).map_err(|e| describe(path, &e))
}

/// The error with the file's name, once.
fn describe(path: &Path, error: &Error) -> Failure {
    match error {
        Error::Import(ImportError::Io { .. }) => Failure(error.to_string()),
        _ => Failure::new(path.display(), error),
    }
}
