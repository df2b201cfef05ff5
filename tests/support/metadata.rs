//! Metadata of small ONNX files.

use tilewright::import::onnx::proto::{ModelProto, StringStringEntryProto};

/// The model with entries in its metadata.
pub(crate) fn with_metadata(mut model: ModelProto, entries: &[(&str, &str)]) -> ModelProto {
    let entry = |(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.to_string()),
        value: Some(value.to_string()),
    };
    model.metadata_props = entries.iter().map(entry).collect();
    model
}
