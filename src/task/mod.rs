//! What goes before and after a network, as its own metadata say.
//!
//! A model file may carry a few `tilewright.*` entries in its metadata. They name the preparation
//! of its input and the meaning of its output; the code here knows no particular model. What other
//! exporters write is brought into that form first ([`ultralytics`]).
//!
//! | key | value |
//! |---|---|
//! | `tilewright.input` | `line-image`: a picture of one line of text; `image`: any picture; `log-mel`, `mfcc`: a sound |
//! | `tilewright.input.height` | rows of a `line-image` |
//! | `tilewright.input.size` | `ROWSxCOLUMNS` of an `image` where the input leaves them open |
//! | `tilewright.input.range` | `LOW..HIGH`: the values that an `image`'s samples 0 and 255 become |
//! | `tilewright.input.mean`, `.std` | one number, or one per channel: subtracted then, and what the rest is divided by |
//! | `tilewright.input.channels` | `rgb` (default) or `bgr` |
//! | `tilewright.input.fit` | `stretch` (default), `crop:SHARE` (the middle, of this share of the shorter side) or `pad:SAMPLE` ([`image::Fit`]) |
//! | `tilewright.input.quantization` | `SCALE,ZERO_POINT` of an i8 or u8 input |
//! | `tilewright.input.rate`, `.frame`, `.step`, `.fft`, `.mels`, `.band` (`LOW..HIGH`) | of a sound's features ([`sound::Features`]) |
//! | `tilewright.input.length`, `.normalize` (`none`, `peak`), `.spectrum` (`magnitude`, `power`), `.log` (`natural`, `decibel`), `.floor`, `.coefficients` | the same, each with a default |
//! | `tilewright.task` | `ctc`: text; `classify`: one score per label; `detect`: boxes |
//! | `tilewright.ctc.charset` | the characters in class order, the blank left out |
//! | `tilewright.ctc.blank` | class number of the blank |
//! | `tilewright.ctc.decoder` | `greedy` (default), or `beam:N` |
//! | `tilewright.labels` | one label per line, in class order; `imagenet` for the 1000 of ImageNet |
//! | `tilewright.scores` | `as-is` (default), or `logits`: a classifier's softmax is taken |
//! | `tilewright.detect.form` | `boxes-scores`, `yolo`, `yolo-confidence`, `yolo-grid` or `box-score-class` ([`detect::Form`]) |
//! | `tilewright.detect.more` | what stands behind box and class: `mask`, `keypoints:COUNTxNUMBERS` or `angle` ([`outline::More`]) |
//! | `tilewright.detect.box` | `edges` (default), `edges-rows-first` or `middle` |
//! | `tilewright.detect.unit` | `fraction` (default) or `pixel`, of the input |
//! | `tilewright.detect.background` | class number of what is nothing |
//! | `tilewright.detect.threshold`, `.overlap` | least score (0.5), greatest overlap of two boxes of a class (0.45) |
//! | `tilewright.detect.anchors` | of a `yolo-grid`: widths and heights in cells, `W,H,W,H,...` |

pub mod classify;
pub mod ctc;
pub mod detect;
pub mod image;
pub mod line_image;
#[cfg(test)]
mod line_image_tests;
pub mod outline;
pub mod resample;
mod settings;
#[cfg(feature = "media")]
pub mod sound;
pub mod ultralytics;

use core::fmt;
use std::collections::BTreeMap;

use crate::tensor::{Tensor, TensorError};
use ctc::{Ctc, Decoded, LogProbs};
pub use settings::keys;

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
    /// It is brought to the input's size and values ([`image`]).
    Image(image::Preparation),
    /// Features of a sound ([`sound`]), quantised for an input of type i8 or u8.
    #[cfg(feature = "media")]
    Sound(sound::Features, Option<image::Quantization>),
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
    Labels {
        /// In class order.
        labels: Vec<String>,
        /// Whether probabilities are the softmax of the scores.
        logits: bool,
    },
    /// Boxes.
    Detections(detect::Detect),
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
    /// Outputs that do not have a detector's form.
    InvalidDetections {
        /// Their shapes, slowest first.
        dims: Vec<Vec<usize>>,
        /// The form.
        expected: &'static str,
    },
    /// The model's input cannot take a picture or a sound.
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
            Self::InvalidDetections { dims, expected } => {
                write!(f, "outputs of shapes {dims:?} are not a detector's, expected {expected}")
            }
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
        let entries = settings::Entries(metadata);
        Ok(Self { input: entries.input()?, output: entries.output()? })
    }

    /// What a network that says nothing, and has one picture-shaped f32 input and one output of
    /// 1000 or 1001 scores, is taken for: a classifier trained on ImageNet, with the preparation
    /// that is usual where channels come first (torchvision's) or last (TensorFlow's).
    ///
    /// `input` is the shape of the input, slowest first, `None` where any extent will do; `scores`
    /// the extents of the output.
    pub fn guess(input: &[Option<usize>], scores: &[Option<usize>]) -> Option<Self> {
        let scores: Vec<usize> = scores.iter().flatten().copied().filter(|&d| d != 1).collect();
        let [classes @ (1000 | 1001)] = scores[..] else { return None };
        let range = [0.0, 1.0];
        let (fit, usual) = (image::Fit::Crop(0.875), image::Preparation::with_range(range));
        let how = match *input {
            [_, Some(3), h, w] if h.is_none_or(|h| h > 3) && w.is_none_or(|w| w > 3) => {
                let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
                image::Preparation { fit, mean, std, ..usual }
            }
            [_, h, w, Some(3)] if h.is_none_or(|h| h > 3) && w.is_none_or(|w| w > 3) => {
                image::Preparation { fit, range: Some([-1.0, 1.0]), ..usual }
            }
            _ => return None,
        };
        // TensorFlow's networks count a background class first.
        let background = (classes == 1001).then_some("background");
        let labels =
            background.into_iter().chain(settings::imagenet()).map(str::to_owned).collect();
        Some(Self {
            input: Some(Input::Image(how)),
            output: Some(Output::Labels { labels, logits: true }),
        })
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
    fn pictures_sounds_and_detectors_describe_themselves() {
        let task = Task::from_metadata(&metadata(&[
            ("tilewright.input", "image"),
            ("tilewright.input.range", "0..255"),
            ("tilewright.input.mean", "104,117,123"),
            ("tilewright.input.std", "2"),
            ("tilewright.input.channels", "bgr"),
            ("tilewright.input.fit", "pad:114"),
            ("tilewright.task", "detect"),
            ("tilewright.detect.form", "yolo-grid"),
            ("tilewright.detect.anchors", "1,2, 3,4"),
            ("tilewright.detect.threshold", "0.25"),
            ("tilewright.labels", "cat\ndog"),
        ]))
        .unwrap();
        let Some(Input::Image(how)) = task.input else { panic!("{task:?}") };
        assert_eq!((how.mean, how.std), ([104.0, 117.0, 123.0], [2.0; 3]));
        assert_eq!((how.fit, how.order), (image::Fit::Pad(114.0), image::Order::Bgr));
        let Some(Output::Detections(detect)) = task.output else { panic!("no detector") };
        assert_eq!(detect.form, detect::Form::YoloGrid(vec![[1.0, 2.0], [3.0, 4.0]]));
        assert_eq!((detect.threshold, detect.labels.len()), (0.25, 2));
    }

    #[test]
    fn only_classifiers_of_imagenet_are_guessed() {
        let first = [None, Some(3), Some(224), Some(224)];
        let task = Task::guess(&first, &[None, Some(1000)]).unwrap();
        let Some(Output::Labels { labels, logits: true }) = task.output else { panic!("labels") };
        assert_eq!((labels.len(), labels[281].as_str()), (1000, "tabby"));
        let last = [Some(1), None, None, Some(3)];
        let task = Task::guess(&last, &[Some(1), Some(1001), Some(1), Some(1)]).unwrap();
        let Some(Output::Labels { labels, .. }) = task.output else { panic!("labels") };
        assert_eq!(labels[1], "tench");
        assert_eq!(Task::guess(&first, &[None, Some(10)]), None);
        assert_eq!(Task::guess(&first, &[Some(1000), Some(1000)]), None);
        assert_eq!(Task::guess(&[None, Some(1000)], &[None, Some(1000)]), None);
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
            (
                &[
                    ("tilewright.input", "image"),
                    ("tilewright.input.range", "0..1"),
                    ("tilewright.input.fit", "crop:0"),
                ],
                keys::INPUT_FIT,
            ),
            (&[("tilewright.input", "image"), ("tilewright.input.std", "1,0,1")], keys::INPUT_STD),
            (&[("tilewright.input", "mfcc")], keys::INPUT_RATE),
            (&[("tilewright.task", "detect")], keys::DETECT_FORM),
            (
                &[("tilewright.task", "detect"), (keys::DETECT_FORM, "yolo-grid")],
                keys::DETECT_ANCHORS,
            ),
            (
                &[
                    ("tilewright.task", "detect"),
                    (keys::DETECT_FORM, "boxes-scores"),
                    (keys::DETECT_MORE, "mask"),
                ],
                keys::DETECT_MORE,
            ),
            (
                &[
                    ("tilewright.task", "detect"),
                    (keys::DETECT_FORM, "yolo"),
                    (keys::DETECT_MORE, "keypoints:17x4"),
                ],
                keys::DETECT_MORE,
            ),
            (
                &[
                    ("tilewright.input", "image"),
                    ("tilewright.input.range", "0..1"),
                    (keys::INPUT_SIZE, "320x0"),
                ],
                keys::INPUT_SIZE,
            ),
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
