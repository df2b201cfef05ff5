//! Models of both kinds.

use core::ffi::{c_char, c_void};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use tilewright_c_kernels::tw_status;

use super::call::{call, given, put, slice, text};
use super::handle::{free, into_handle};
use super::log::{tell, tw_log_level};
use super::options::{Options, tw_options};
use super::status::Failure;
use super::tensor::{Described, tw_tensor_info};
use crate::{Error, Model, ValueInfo};

/// What GGUF files begin with; all others are taken for ONNX.
const GGUF: [u8; 4] = *b"GGUF";

/// A model: a network of an ONNX file, or a language model of a GGUF file. Sessions share its weights.
/// All functions on a model may be called by many threads at once.
pub struct tw_model {
    pub(super) kind: Kind,
    pub(super) inputs: Vec<Described>,
    pub(super) outputs: Vec<Described>,
    metadata: BTreeMap<String, CString>,
    /// What outputs of texts are, by their numbers.
    texts: Vec<CString>,
}

pub(super) enum Kind {
    Network {
        model: Arc<Model>,
        options: Options,
    },
    #[cfg(feature = "llm")]
    Language(super::llm::Language),
}

/// Kinds of models.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tw_model_kind {
    /// No model: NULL was given.
    TW_MODEL_NONE = 0,
    /// Runs in a `tw_session`.
    TW_MODEL_NETWORK = 1,
    /// Runs in a `tw_llm`.
    TW_MODEL_LANGUAGE = 2,
}

/// The bytes given to `tw_model_from_memory` are used where they lie, not copied. They must neither
/// change nor go until the model and all its sessions are freed.
pub const TW_BORROW: u32 = 1;

impl tw_model {
    fn network(model: Result<Model, Error>, options: Options) -> Result<Self, Failure> {
        let model = Arc::new(model?);
        let all =
            |values: &[ValueInfo]| values.iter().map(Described::new).collect::<Result<Vec<_>, _>>();
        let (inputs, mut outputs) = (all(model.inputs())?, all(model.outputs())?);
        tell(tw_log_level::TW_LOG_INFO, || {
            format!("a network of {} inputs and {} outputs", inputs.len(), outputs.len())
        });
        // Entries with a zero byte in them are not texts.
        let mut metadata = BTreeMap::new();
        for (key, value) in model.metadata() {
            if let Ok(value) = CString::new(value.as_str()) {
                metadata.insert(key.clone(), value);
            }
        }
        let mut texts = Vec::new();
        if cfg!(feature = "ops-more")
            && let Some(list) = model.outputs().iter().find_map(|o| model.texts(&o.name))
        {
            // Zeros in them cannot be told.
            let text = |text: &String| CString::new(text.replace('\0', "")).unwrap_or_default();
            texts = list.iter().map(text).collect();
            for (output, info) in outputs.iter_mut().zip(model.outputs()) {
                output.is_text = model.texts(&info.name).is_some();
            }
        }
        Ok(Self { kind: Kind::Network { model, options }, inputs, outputs, metadata, texts })
    }

    #[cfg(feature = "llm")]
    fn language(
        load: impl FnOnce(crate::llm::LlmOptions) -> Result<crate::llm::Llm, Error>,
        options: &Options,
    ) -> Result<Self, Failure> {
        let kind = Kind::Language(super::llm::Language::new(load(options.llm()?)?)?);
        tell(tw_log_level::TW_LOG_INFO, || "a language model".into());
        Ok(Self {
            kind,
            inputs: Vec::new(),
            outputs: Vec::new(),
            metadata: BTreeMap::new(),
            texts: Vec::new(),
        })
    }

    #[cfg(not(feature = "llm"))]
    fn no_language<T>() -> Result<T, Failure> {
        let message = "a GGUF file, but this library was built without the feature `llm`";
        Err(Failure::new(tw_status::TW_UNSUPPORTED, message))
    }

    fn load(path: &Path, options: Options) -> Result<Self, Failure> {
        let mut first = [0; 4];
        // A file that cannot be read, or is shorter, is the importer's to speak of.
        let found = File::open(path).and_then(|mut f| f.read_exact(&mut first));
        if found.is_ok() && first == GGUF {
            #[cfg(feature = "llm")]
            return Self::language(|o| crate::llm::Llm::load(path, o), &options);
            #[cfg(not(feature = "llm"))]
            return Self::no_language();
        }
        Self::network(Model::load(path), options)
    }

    fn from_bytes(bytes: Bytes, options: Options) -> Result<Self, Failure> {
        if bytes.starts_with(&GGUF) {
            #[cfg(feature = "llm")]
            return Self::language(|o| crate::llm::Llm::from_bytes(bytes, o), &options);
            #[cfg(not(feature = "llm"))]
            return Self::no_language();
        }
        Self::network(Model::from_bytes(bytes, None), options)
    }
}

/// Loads a model from a file, whose content tells which kind it is. The file is mapped where that is
/// possible, and must not change while the model or a session of it is in use.
///
/// `options` may be NULL. They hold for all sessions of the model.
///
/// Gives `TW_IO`, `TW_FORMAT`, `TW_UNSUPPORTED`, `TW_OUT_OF_MEMORY` or `TW_INVALID_ARGUMENT`.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `path` is NULL or ends with a zero byte; `options` is NULL or as its type says; `out` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_load(
    path: *const c_char,
    options: *const tw_options,
    out: *mut *mut tw_model,
) -> tw_status {
    call(|| {
        given_out(out)?;
        // SAFETY: as the caller promises.
        let (path, options) = unsafe { (text(path, "path")?, Options::read(options)?) };
        let model = tw_model::load(Path::new(path), options)?;
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", into_handle(model)) }
    })
}

/// Loads a model from `bytes` bytes of memory. They are copied and may be freed after, unless `flags`
/// has `TW_BORROW`. An ONNX model with data in other files cannot be loaded so.
///
/// `options` and errors are as those of `tw_model_load`.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `data` is NULL or readable for `bytes` bytes, with `TW_BORROW` as long as it says; the rest is as
/// at `tw_model_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_from_memory(
    data: *const c_void,
    bytes: usize,
    flags: u32,
    options: *const tw_options,
    out: *mut *mut tw_model,
) -> tw_status {
    call(|| {
        given_out(out)?;
        if flags & !TW_BORROW != 0 {
            return Err(Failure::argument(format!("flags: {flags:#x} has unknown bits")));
        }
        // SAFETY: as the caller promises.
        let (data, options) =
            unsafe { (slice(data.cast::<u8>(), bytes, "data")?, Options::read(options)?) };
        let bytes = if flags & TW_BORROW != 0 {
            // SAFETY: the caller keeps the bytes as long as anything uses them.
            Bytes::from_static(unsafe { core::mem::transmute::<&[u8], &'static [u8]>(data) })
        } else {
            let mut copy = Vec::new();
            copy.try_reserve_exact(data.len()).map_err(|_| {
                let message = format!("no memory for a copy of {} bytes", data.len());
                Failure::new(tw_status::TW_OUT_OF_MEMORY, message)
            })?;
            copy.extend_from_slice(data);
            copy.into()
        };
        let model = tw_model::from_bytes(bytes, options)?;
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", into_handle(model)) }
    })
}

/// Before anything is done, that its result has a place.
pub(super) fn given_out<T>(out: *mut T) -> Result<(), Failure> {
    if out.is_null() { Err(Failure::argument("out is NULL")) } else { Ok(()) }
}

/// Frees a model; sessions of it may go on. NULL is nothing to do.
///
/// No other call may use it then; any thread may be the one that frees it.
///
/// # Safety
/// `model` is NULL or a model that is not freed yet, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_free(model: *mut tw_model) {
    // SAFETY: as the caller promises.
    unsafe { free(model) }
}

/// Which kind a model is; `TW_MODEL_NONE` for NULL.
///
/// Any thread may call it, several at a time.
#[unsafe(no_mangle)]
pub extern "C" fn tw_model_kind_of(model: Option<&tw_model>) -> tw_model_kind {
    match model.map(|m| &m.kind) {
        None => tw_model_kind::TW_MODEL_NONE,
        Some(Kind::Network { .. }) => tw_model_kind::TW_MODEL_NETWORK,
        #[cfg(feature = "llm")]
        Some(Kind::Language(_)) => tw_model_kind::TW_MODEL_LANGUAGE,
    }
}

/// What the metadata of an ONNX file says under `key`: `*value` becomes a text that lives as long as the
/// model, such as `"tilewright.labels"` or `"tilewright.ctc.charset"`. Any thread may call it.
///
/// Gives `TW_NOT_FOUND` if there is no such entry, as always for language models.
///
/// # Safety
/// `model` is NULL or a model; `key` is NULL or ends with a zero byte; `value` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_metadata(
    model: Option<&tw_model>,
    key: *const c_char,
    value: *mut *const c_char,
) -> tw_status {
    call(|| {
        // SAFETY: as the caller promises.
        let key = unsafe { text(key, "key") }?;
        let found = given(model, "model")?.metadata.get(key);
        let found = found.ok_or_else(|| {
            Failure::new(tw_status::TW_NOT_FOUND, format!("the metadata has no {key:?}"))
        })?;
        // SAFETY: as the caller promises.
        unsafe { put(value, "value", found.as_ptr()) }
    })
}

/// Number of inputs of a network; 0 for NULL and for language models.
///
/// Any thread may call it, several at a time.
#[unsafe(no_mangle)]
pub extern "C" fn tw_model_input_count(model: Option<&tw_model>) -> usize {
    model.map_or(0, |m| m.inputs.len())
}

/// Number of outputs of a network; 0 for NULL and for language models.
///
/// Any thread may call it, several at a time.
#[unsafe(no_mangle)]
pub extern "C" fn tw_model_output_count(model: Option<&tw_model>) -> usize {
    model.map_or(0, |m| m.outputs.len())
}

/// Name, type and shape of input `index`. Gives `TW_NOT_FOUND` for an index past the end.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_input(
    model: Option<&tw_model>,
    index: usize,
    out: *mut tw_tensor_info,
) -> tw_status {
    call(|| {
        let found = nth(&given(model, "model")?.inputs, index, "inputs")?;
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", found.info()) }
    })
}

/// Name, type and shape of output `index`. Gives `TW_NOT_FOUND` for an index past the end.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_output(
    model: Option<&tw_model>,
    index: usize,
    out: *mut tw_tensor_info,
) -> tw_status {
    call(|| {
        let found = nth(&given(model, "model")?.outputs, index, "outputs")?;
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", found.info()) }
    })
}

/// For output `index` of a network, if its elements are texts in the file (labels of classes): what the element
/// `number`, an integer of 64 bits, stands for. `*value` becomes a text that lives as long as the model.
///
/// Gives `TW_NOT_FOUND` for an output of numbers, and for an index or a number past the end. Any thread may
/// call it.
///
/// # Safety
/// `model` is NULL or a model; `value` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_output_text(
    model: Option<&tw_model>,
    index: usize,
    number: i64,
    value: *mut *const c_char,
) -> tw_status {
    call(|| {
        let model = given(model, "model")?;
        let output = nth(&model.outputs, index, "outputs")?;
        let texts = if output.is_text { model.texts.as_slice() } else { &[] };
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let found = nth(texts, number, "texts in this output")?;
        // SAFETY: as the caller promises.
        unsafe { put(value, "value", found.as_ptr()) }
    })
}

/// An element, or the error that says how many there are.
pub(super) fn nth<'a, T>(all: &'a [T], index: usize, what: &str) -> Result<&'a T, Failure> {
    all.get(index).ok_or_else(|| {
        let message = format!("index {index}, but there are {} {what}", all.len());
        Failure::new(tw_status::TW_NOT_FOUND, message)
    })
}
