//! Networks as their sessions share them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::moved::Moved;
use crate::Error;
use crate::graph::ConstCache;
use crate::import::onnx::{OnnxModel, ValueInfo};

/// A network, loaded and checked. Sessions share its weights, and so do clones.
#[derive(Clone)]
pub struct Model {
    pub(super) onnx: Arc<OnnxModel>,
    pub(super) cache: Arc<ConstCache>,
    /// The device whose sessions' it is.
    pub(super) moved: Option<Arc<Moved>>,
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
        Self { onnx: Arc::new(onnx), cache: Arc::default(), moved: None }
    }

    /// Name of the graph; may be empty.
    pub fn name(&self) -> &str {
        self.onnx.name()
    }

    /// Inputs that a run must be given.
    pub fn inputs(&self) -> &[ValueInfo] {
        self.onnx.inputs()
    }

    /// Inputs that a run need not be given, as the file has a value for them; [`Model::with_inputs`]
    /// makes inputs of them.
    pub fn defaults(&self) -> &[ValueInfo] {
        self.onnx.defaults()
    }

    /// This model with some of its [`Model::defaults`] as inputs, after those that it has: what a run is
    /// given for them then takes the place of the file's values. A model that was moved to a device must
    /// be moved again.
    ///
    /// # Errors
    /// [`Error::UnknownInput`] for a name that no default has.
    pub fn with_inputs(&self, names: &[&str]) -> Result<Self, Error> {
        if let Some(model) = self.onnx.asking_for(names) {
            return Ok(Self::new(model));
        }
        let known: Vec<String> = self.defaults().iter().map(|d| d.name.clone()).collect();
        let unknown = names.iter().find(|n| !known.iter().any(|k| k == *n));
        let name = unknown.map_or_else(String::new, |n| (*n).to_owned());
        Err(Error::UnknownInput { name, known })
    }

    /// Outputs, in the order in which a run gives them.
    pub fn outputs(&self) -> &[ValueInfo] {
        self.onnx.outputs()
    }

    /// For an output whose elements are texts in the file (labels of classes), these texts: what a run gives
    /// for it are their positions in the list, as integers. `None` for outputs of numbers.
    pub fn texts(&self, output: &str) -> Option<&[String]> {
        self.onnx.texts(output)
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
