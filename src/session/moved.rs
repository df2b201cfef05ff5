//! Models whose weights stay on a device.

use core::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Model, Session, SessionOptions};
use crate::Error;
use crate::backend::cpu::Plan;
use crate::graph::Device;
use crate::import::onnx::Dim;
use crate::tensor::Tensor;

/// Where a model was moved to.
pub(super) struct Moved {
    pub(super) device: Arc<dyn Device>,
    /// What keeps its constants there, for all plans made so far.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Moved {
    /// Keeps the constants of a plan where they are.
    pub(super) fn keep(&self, plan: &Plan) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for more in plan.kept() {
            if !kept.iter().any(|k| Arc::ptr_eq(k, &more)) {
                kept.push(more);
            }
        }
    }
}

impl Model {
    /// This model on a device: its sessions are computed there, unless their options name another device.
    /// The weights are moved once and stay there as long as the model does, not only while it has sessions:
    /// now, or, if inputs have extents that the file leaves open or values that decide about shapes, with the
    /// first plan of a session.
    ///
    /// ```no_run
    /// # #[cfg(feature = "opencl")] {
    /// use std::sync::Arc;
    /// use tilewright::backend::opencl::{OpenClDevice, Options};
    /// use tilewright::{Model, Session, SessionOptions};
    ///
    /// let device = Arc::new(OpenClDevice::open(&Options::from_env()?)?);
    /// let model = Arc::new(Model::load("model.onnx")?.to(device)?);
    /// let mut session = Session::new(model, SessionOptions::default())?;
    /// # }
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What planning there meets, lack of memory among it.
    pub fn to(&self, device: Arc<dyn Device>) -> Result<Self, Error> {
        let moved = Some(Arc::new(Moved { device, kept: Mutex::default() }));
        let model = Self { moved, ..self.clone() };
        if let Some(inputs) = model.known_inputs()? {
            let named: Vec<(&str, Tensor)> =
                inputs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
            let options = SessionOptions { threads: Some(1), ..SessionOptions::default() };
            Session::new(Arc::new(model.clone()), options)?.prepare(&named)?;
        }
        Ok(model)
    }

    /// Zeros for the inputs, if the file says all that plans depend on.
    fn known_inputs(&self) -> Result<Option<Vec<(String, Tensor)>>, Error> {
        let mut all = Vec::new();
        for (i, input) in self.inputs().iter().enumerate() {
            let known = |dim: &Dim| match dim {
                Dim::Fixed(extent) => Some(*extent),
                Dim::Symbol(_) | Dim::Unknown => None,
            };
            let dims: Option<Vec<usize>> =
                input.dims.as_ref().and_then(|dims| dims.iter().map(known).collect());
            let Some(dims) = dims.filter(|_| !self.onnx.needs_value(i)) else { return Ok(None) };
            all.push((input.name.clone(), Tensor::zeros(input.dtype, &dims)?));
        }
        Ok(Some(all))
    }
}
