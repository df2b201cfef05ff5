//! Backends by name.

use std::sync::Arc;

use tilewright_c_kernels::tw_status;

use super::status::Failure;
use crate::graph::Device;

/// Those of this build.
const BACKENDS: &[&str] = &[
    "cpu",
    #[cfg(feature = "opencl")]
    "opencl",
    #[cfg(feature = "rknn")]
    "rknn",
];

/// The device of a backend; `None` for the processor. All models of the process share it.
pub(super) fn device(name: &str) -> Result<Option<Arc<dyn Device>>, Failure> {
    match name {
        "cpu" => Ok(None),
        #[cfg(feature = "opencl")]
        "opencl" => opencl().map(Some),
        #[cfg(feature = "rknn")]
        "rknn" => rknn().map(Some),
        _ if ["opencl", "rknn"].contains(&name) => Err(Failure::new(
            tw_status::TW_UNSUPPORTED,
            format!(
                "the backend {name} is not part of this library, only: {}",
                BACKENDS.join(", ")
            ),
        )),
        _ => Err(Failure::argument(format!(
            "options.backend: there is no backend {name:?}, only: {}",
            BACKENDS.join(", ")
        ))),
    }
}

/// The device that `TILEWRIGHT_OPENCL_DEVICE` and the like choose.
#[cfg(feature = "opencl")]
fn opencl() -> Result<Arc<dyn Device>, Failure> {
    use super::log::{tell, tw_log_level};
    use crate::backend::opencl::{OpenClDevice, OpenClError, Options};
    use std::sync::OnceLock;

    static DEVICE: OnceLock<Arc<OpenClDevice>> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(device.clone());
    }
    let unusable = |e: OpenClError| {
        Failure::new(tw_status::TW_UNSUPPORTED, format!("the backend opencl: {e}"))
    };
    let options = Options::from_env().map_err(unusable)?;
    let log = |text: &str| tell(tw_log_level::TW_LOG_WARNING, || text.to_owned());
    let device = OpenClDevice::open(&Options { log, ..options }).map_err(unusable)?;
    Ok(DEVICE.get_or_init(|| Arc::new(device)).clone())
}

#[cfg(feature = "rknn")]
fn rknn() -> Result<Arc<dyn Device>, Failure> {
    use super::log::{tell, tw_log_level};
    use crate::backend::rknn::{Npu, Options, RknnDevice};
    use std::sync::OnceLock;

    static DEVICE: OnceLock<Arc<RknnDevice>> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(device.clone());
    }
    let unusable = |e: crate::backend::rknn::RknnError| {
        Failure::new(tw_status::TW_UNSUPPORTED, format!("the backend rknn: {e}"))
    };
    let options = Options::from_env().map_err(unusable)?;
    let log = |text: &str| tell(tw_log_level::TW_LOG_WARNING, || text.to_owned());
    let npu = Arc::new(Npu::open(Options { log, ..options }).map_err(unusable)?);
    Ok(DEVICE.get_or_init(|| Arc::new(RknnDevice::new(npu))).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_that_are_not_there_are_told_from_those_that_do_not_exist() {
        assert!(device("cpu").unwrap().is_none());
        let unknown = device("abacus").unwrap_err();
        assert_eq!(unknown.status, tw_status::TW_INVALID_ARGUMENT);
        assert!(unknown.message.contains("abacus") && unknown.message.contains("cpu"));
        if !BACKENDS.contains(&"opencl") {
            assert_eq!(device("opencl").unwrap_err().status, tw_status::TW_UNSUPPORTED);
        }
    }
}
