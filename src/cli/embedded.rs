//! What `tilewright run` works on when it is given nothing.

/// Name that stands for the embedded network in results.
pub(super) const NAME: &str = "textline (embedded)";

/// The text-line reader; its model card is in `models/textline`.
pub(super) const MODEL: &[u8] = include_bytes!("../../models/textline/textline.onnx");

/// Name that stands for the embedded picture in messages.
pub(super) const PICTURE_NAME: &str = "the embedded picture";

/// A picture of a line of text.
pub(super) const PICTURE: &[u8] = include_bytes!("../../models/textline/sample.png");

/// Name that stands for the embedded language model in results.
#[cfg(feature = "llm")]
pub(super) const LANGUAGE_NAME: &str = "manual (embedded)";

/// The language model; its model card is in `models/manual`.
#[cfg(feature = "llm")]
pub(super) const LANGUAGE: &[u8] = include_bytes!("../../models/manual/manual.gguf");
