//! What goes before and after a network, as its own metadata say.
//!
//! A model file may carry a few `tilewright.*` entries in its metadata. They name the preparation
//! of its input and the meaning of its output; the code here knows no particular model.
//!
//! | key | value |
//! |---|---|
//! | `tilewright.input` | `line-image`: a picture of one line of text; `image`: any picture |
//! | `tilewright.input.height` | rows of a `line-image` |
//! | `tilewright.input.range` | `LOW..HIGH`: the values that an `image`'s samples 0 and 255 become |
//! | `tilewright.task` | `ctc`: text; `classify`: one score per label |
//! | `tilewright.ctc.charset` | the characters in class order, the blank left out |
//! | `tilewright.ctc.blank` | class number of the blank |
//! | `tilewright.ctc.decoder` | `greedy` (default), or `beam:N` |
//! | `tilewright.labels` | one label per line, in class order |

pub mod classify;
pub mod ctc;
pub mod image;
pub mod line_image;
#[cfg(test)]
mod line_image_tests;
pub mod resample;

use core::fmt;
use std::collections::BTreeMap;

use crate::tensor::{Tensor, TensorError};
use ctc::{Ctc, Decoded, LogProbs};

/// Names of the metadata entries.
pub mod keys {
    /// Preparation of the input.
    pub const INPUT: &str = "tilewright.input";
    /// Rows of a prepared line of text.
    pub const INPUT_HEIGHT: &str = "tilewright.input.height";
    /// Values that picture samples 0 and 255 become.
    pub const INPUT_RANGE: &str = "tilewright.input.range";
    /// Meaning of the output.
    pub const TASK: &str = "tilewright.task";
    /// Characters in class order.
    pub const CTC_CHARSET: &str = "tilewright.ctc.charset";
    /// Class number of the blank.
    pub const CTC_BLANK: &str = "tilewright.ctc.blank";
    /// The decoder used when the caller names none.
    pub const CTC_DECODER: &str = "tilewright.ctc.decoder";
    /// Labels in class order, one per line.
    pub const LABELS: &str = "tilewright.labels";
}

/// What a model's metadata say about its input and output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// How a picture becomes the input.
    pub input: Option<Input>,
    /// What the output means.
    pub output: Option<Output>,
}

/// How a picture becomes a model's input.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// A line of text is found in it and scaled to `height` rows ([`line_image`]).
    LineImage {
        /// Rows of the prepared line.
        height: usize,
    },
    /// It is resized and its samples are mapped to `range` ([`image`]).
    Image {
        /// Values for samples 0 and 255.
        range: [f32; 2],
    },
}

/// What a model's output means.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// Text, one score per class and step.
    Text {
        /// The classes.
        ctc: Ctc,
        /// How the model's author reads them.
        decoder: Decoder,
    },
    /// One score per label.
    Labels(Vec<String>),
}

/// How scores become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoder {
    /// The best class of each step.
    Greedy,
    /// A search over that many beginnings.
    Beam(usize),
}

/// Why metadata cannot be followed, or data do not fit them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TaskError {
    /// An entry is missing or has an impossible value.
    InvalidMetadata {
        /// The entry's key.
        key: &'static str,
        /// What it says; empty when it is missing.
        value: String,
        /// What it should say.
        expected: &'static str,
    },
    /// The scores are not finite, or not a whole number of steps.
    InvalidScores {
        /// Number of scores.
        scores: usize,
        /// Classes per step.
        classes: usize,
    },
    /// An output whose shape does not show one score per class.
    InvalidShape {
        /// The shape, slowest first.
        dims: Vec<usize>,
        /// Number of classes.
        classes: usize,
    },
    /// The model's input cannot take a picture.
    UnsupportedInput(String),
    /// Data of the wrong type or size.
    Tensor(TensorError),
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidMetadata { key, value, expected } if value.is_empty() => {
                write!(f, "the model's metadata entry {key} is missing, expected {expected}")
            }
            Self::InvalidMetadata { key, value, expected } => {
                write!(f, "the model's metadata entry {key} is `{value}`, expected {expected}")
            }
            Self::InvalidScores { scores, classes } => {
                write!(f, "{scores} scores are not finite steps of {classes} classes each")
            }
            Self::InvalidShape { dims, classes } => write!(
                f,
                "an output of shape {dims:?} does not have one score for each of {classes} classes"
            ),
            Self::UnsupportedInput(why) => f.write_str(why),
            Self::Tensor(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for TaskError {}

impl From<TensorError> for TaskError {
    fn from(e: TensorError) -> Self {
        Self::Tensor(e)
    }
}

impl Task {
    /// The task that a model's metadata describe; empty when they have no `tilewright.*` entries.
    ///
    /// # Errors
    /// [`TaskError::InvalidMetadata`] for unknown values and missing entries.
    pub fn from_metadata(metadata: &BTreeMap<String, String>) -> Result<Self, TaskError> {
        let entries = Entries(metadata);
        let input = match entries.text(keys::INPUT) {
            None => None,
            Some("line-image") => {
                let height =
                    entries.parse(keys::INPUT_HEIGHT, "a number of rows from 1 to 4096")?;
                let height = height.filter(|h| (1..=4096).contains(h));
                let height = entries.required(keys::INPUT_HEIGHT, height, "a number of rows")?;
                Some(Input::LineImage { height })
            }
            Some("image") => {
                let range = entries.text(keys::INPUT_RANGE).and_then(image::parse_range);
                let range = entries.required(keys::INPUT_RANGE, range, "LOW..HIGH")?;
                Some(Input::Image { range })
            }
            Some(_) => return entries.required(keys::INPUT, None, "line-image or image"),
        };
        let output = match entries.text(keys::TASK) {
            Some("ctc") => Some(entries.ctc()?),
            None | Some("classify") => {
                let labels = entries.text(keys::LABELS);
                labels.map(|text| Output::Labels(text.lines().map(str::to_owned).collect()))
            }
            Some(_) => return entries.required(keys::TASK, None, "ctc or classify"),
        };
        Ok(Self { input, output })
    }
}

/// The text in an output, without white space at its ends: `[1, steps, classes]`, or any order of
/// these with extents of one left out. When steps and classes are equal in number, classes are the last axis.
///
/// # Errors
/// [`TaskError::InvalidShape`], [`TaskError::InvalidScores`], or [`TaskError::Tensor`] when the
/// scores are not f32.
pub fn read_text(output: &Tensor, ctc: &Ctc, decoder: Decoder) -> Result<Decoded, TaskError> {
    let scores = output.as_slice::<f32>()?;
    let classes = ctc.classes();
    let dims: Vec<usize> = output.dims().into_iter().filter(|&d| d != 1).collect();
    let log_probs = match dims[..] {
        [last] | [_, last] if last == classes => LogProbs::from_scores(&scores, classes)?,
        [first, steps] if first == classes => {
            let transposed: Vec<f32> =
                (0..steps * classes).map(|i| scores[i % classes * steps + i / classes]).collect();
            LogProbs::from_scores(&transposed, classes)?
        }
        _ => return Err(TaskError::InvalidShape { dims: output.dims(), classes }),
    };
    let decoded = match decoder {
        Decoder::Greedy => ctc.greedy(&log_probs),
        Decoder::Beam(width) => ctc.beam(&log_probs, width.max(1)),
    };
    Ok(Decoded { text: decoded.text.trim().to_owned(), ..decoded })
}

/// Access to metadata entries.
struct Entries<'a>(&'a BTreeMap<String, String>);

impl<'a> Entries<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).map(String::as_str)
    }

    fn required<T>(
        &self,
        key: &'static str,
        value: Option<T>,
        expected: &'static str,
    ) -> Result<T, TaskError> {
        let found = self.text(key).unwrap_or_default().to_owned();
        value.ok_or(TaskError::InvalidMetadata { key, value: found, expected })
    }

    /// The entry as a number; `None` when it is missing.
    fn parse(&self, key: &'static str, expected: &'static str) -> Result<Option<usize>, TaskError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        self.required(key, text.parse().ok(), expected).map(Some)
    }

    fn ctc(&self) -> Result<Output, TaskError> {
        let charset =
            self.required(keys::CTC_CHARSET, self.text(keys::CTC_CHARSET), "characters")?;
        let blank = self.parse(keys::CTC_BLANK, "a class number")?.unwrap_or(0);
        let decoder = match self.text(keys::CTC_DECODER) {
            None | Some("greedy") => Decoder::Greedy,
            Some(text) => {
                let width = text.strip_prefix("beam:").and_then(|n| n.parse().ok());
                let width = width.filter(|n| (1..=10_000).contains(n));
                Decoder::Beam(self.required(keys::CTC_DECODER, width, "greedy or beam:N")?)
            }
        };
        Ok(Output::Text { ctc: Ctc::new(charset, blank)?, decoder })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn a_text_reader_describes_itself() {
        let task = Task::from_metadata(&metadata(&[
            ("tilewright.input", "line-image"),
            ("tilewright.input.height", "32"),
            ("tilewright.task", "ctc"),
            ("tilewright.ctc.charset", "ab"),
            ("tilewright.ctc.blank", "0"),
            ("tilewright.ctc.decoder", "beam:8"),
            ("author", "someone"),
        ]))
        .unwrap();
        assert_eq!(task.input, Some(Input::LineImage { height: 32 }));
        let ctc = Ctc::new("ab", 0).unwrap();
        assert_eq!(task.output, Some(Output::Text { ctc, decoder: Decoder::Beam(8) }));
    }

    #[test]
    fn models_without_entries_have_no_task() {
        assert_eq!(Task::from_metadata(&metadata(&[("a", "b")])).unwrap(), Task::default());
    }

    #[test]
    fn unknown_and_missing_entries_are_named() {
        for (entries, key) in [
            (&[("tilewright.task", "dance")][..], keys::TASK),
            (&[("tilewright.input", "smell")], keys::INPUT),
            (&[("tilewright.input", "line-image")], keys::INPUT_HEIGHT),
            (
                &[("tilewright.input", "line-image"), ("tilewright.input.height", "0")],
                keys::INPUT_HEIGHT,
            ),
            (&[("tilewright.input", "image"), ("tilewright.input.range", "1")], keys::INPUT_RANGE),
            (&[("tilewright.task", "ctc")], keys::CTC_CHARSET),
            (
                &[
                    ("tilewright.task", "ctc"),
                    ("tilewright.ctc.charset", "a"),
                    (keys::CTC_BLANK, "x"),
                ],
                keys::CTC_BLANK,
            ),
            (
                &[
                    ("tilewright.task", "ctc"),
                    ("tilewright.ctc.charset", "a"),
                    (keys::CTC_DECODER, "beam:0"),
                ],
                keys::CTC_DECODER,
            ),
        ] {
            let error = Task::from_metadata(&metadata(entries)).unwrap_err();
            assert!(
                matches!(error, TaskError::InvalidMetadata { key: found, .. } if found == key),
                "{error}"
            );
        }
    }

    #[test]
    fn text_is_read_from_any_axis_order() {
        let ctc = Ctc::new("ab", 0).unwrap();
        let rows = [[0.1f32, 0.8, 0.1], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]];
        let columns: Vec<f32> = (0..12).map(|i| rows[i % 4][i / 4]).collect();
        for dims in [&[1, 4, 3][..], &[4, 1, 3], &[4, 3]] {
            let output = Tensor::from_slice(dims, rows.as_flattened()).unwrap();
            assert_eq!(read_text(&output, &ctc, Decoder::Greedy).unwrap().text, "ab");
        }
        for dims in [&[1, 3, 4][..], &[1, 3, 1, 4]] {
            let output = Tensor::from_slice(dims, &columns).unwrap();
            assert_eq!(read_text(&output, &ctc, Decoder::Beam(4)).unwrap().text, "ab");
        }
        let output = Tensor::from_slice(&[2, 6], &columns).unwrap();
        let error = read_text(&output, &ctc, Decoder::Greedy).unwrap_err();
        assert_eq!(error, TaskError::InvalidShape { dims: vec![2, 6], classes: 3 });
    }
}
