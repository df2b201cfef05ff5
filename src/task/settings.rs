//! What the `tilewright.*` entries of a model's metadata mean.

use std::collections::BTreeMap;

use super::ctc::Ctc;
use super::detect::{Corners, Detect, Form};
use super::image::{self, Fit, Order, Preparation, Quantization};
use super::outline::More;
use super::{Decoder, Input, Output, TaskError};

/// Most key points of a detection.
const MAX_KEYPOINTS: usize = 1 << 16;

/// Names of the metadata entries.
pub mod keys {
    macro_rules! keys {
        ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
            $($(#[$doc])* pub const $name: &str = concat!("tilewright.", $text);)*

            /// All of them.
            pub const ALL: &[&str] = &[$($name),*];
        };
    }
    keys! {
        /// Preparation of the input.
        INPUT = "input";
        /// Rows of a prepared line of text.
        INPUT_HEIGHT = "input.height";
        /// Size of a picture where the input leaves it open.
        INPUT_SIZE = "input.size";
        /// Values that picture samples 0 and 255 become.
        INPUT_RANGE = "input.range";
        /// What is subtracted from these.
        INPUT_MEAN = "input.mean";
        /// What the rest is divided by.
        INPUT_STD = "input.std";
        /// Order of the colours.
        INPUT_CHANNELS = "input.channels";
        /// How a picture is brought to size.
        INPUT_FIT = "input.fit";
        /// Scale and zero point of an integer input.
        INPUT_QUANTIZATION = "input.quantization";
        /// Samples of a sound per second.
        INPUT_RATE = "input.rate";
        /// Samples of a sound.
        INPUT_LENGTH = "input.length";
        /// What a sound is divided by.
        INPUT_NORMALIZE = "input.normalize";
        /// Samples of a frame.
        INPUT_FRAME = "input.frame";
        /// Samples between two frames.
        INPUT_STEP = "input.step";
        /// Samples of the transform.
        INPUT_FFT = "input.fft";
        /// Magnitudes or their squares.
        INPUT_SPECTRUM = "input.spectrum";
        /// Bands.
        INPUT_MELS = "input.mels";
        /// Edges of the bands in Hz.
        INPUT_BAND = "input.band";
        /// What is added to energies.
        INPUT_FLOOR = "input.floor";
        /// Kind of logarithm.
        INPUT_LOG = "input.log";
        /// Cepstral coefficients.
        INPUT_COEFFICIENTS = "input.coefficients";
        /// Meaning of the output.
        TASK = "task";
        /// Characters in class order.
        CTC_CHARSET = "ctc.charset";
        /// Class number of the blank.
        CTC_BLANK = "ctc.blank";
        /// The decoder used when the caller names none.
        CTC_DECODER = "ctc.decoder";
        /// Labels in class order, one per line.
        LABELS = "labels";
        /// What a classifier's scores are.
        SCORES = "scores";
        /// Layout of a detector's outputs.
        DETECT_FORM = "detect.form";
        /// Numbers behind box and class.
        DETECT_MORE = "detect.more";
        /// Meaning of a box's numbers.
        DETECT_BOX = "detect.box";
        /// Unit of a box's numbers.
        DETECT_UNIT = "detect.unit";
        /// Class of nothing.
        DETECT_BACKGROUND = "detect.background";
        /// Least score.
        DETECT_THRESHOLD = "detect.threshold";
        /// Greatest overlap.
        DETECT_OVERLAP = "detect.overlap";
        /// Sizes of the anchors.
        DETECT_ANCHORS = "detect.anchors";
    }
}

/// Access to metadata entries.
pub(super) struct Entries<'a>(pub(super) &'a BTreeMap<String, String>);

impl<'a> Entries<'a> {
    /// How the input is prepared.
    pub(super) fn input(&self) -> Result<Option<Input>, TaskError> {
        Ok(Some(match self.text(keys::INPUT) {
            None => return Ok(None),
            Some("line-image") => {
                let expected = "a number of rows from 1 to 4096";
                let rows = |t: &str| t.parse().ok().filter(|h| (1..=4096).contains(h));
                Input::LineImage { height: self.needed(keys::INPUT_HEIGHT, expected, rows)? }
            }
            Some("image") => Input::Image(self.image()?),
            #[cfg(feature = "media")]
            Some(kind @ ("log-mel" | "mfcc")) => {
                Input::Sound(self.sound(kind == "mfcc")?, self.quantization()?)
            }
            Some(_) => return self.wrong(keys::INPUT, "line-image, image, log-mel or mfcc"),
        }))
    }

    /// What the output means.
    pub(super) fn output(&self) -> Result<Option<Output>, TaskError> {
        let labels = match self.text(keys::LABELS) {
            Some("imagenet") => Some(imagenet().map(str::to_owned).collect::<Vec<_>>()),
            text => text.map(|text| text.lines().map(str::to_owned).collect()),
        };
        let logits =
            self.one_of(keys::SCORES, "as-is or logits", &[("as-is", false), ("logits", true)])?;
        Ok(match self.text(keys::TASK) {
            Some("ctc") => Some(self.ctc()?),
            Some("detect") => Some(Output::Detections(self.detect(labels.unwrap_or_default())?)),
            None | Some("classify") => labels.map(|labels| Output::Labels { labels, logits }),
            Some(_) => return self.wrong(keys::TASK, "ctc, classify or detect"),
        })
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).map(String::as_str)
    }

    fn wrong<T>(&self, key: &'static str, expected: &'static str) -> Result<T, TaskError> {
        let value = self.text(key).unwrap_or_default().to_owned();
        Err(TaskError::InvalidMetadata { key, value, expected })
    }

    /// An entry as `read` understands it; `None` when it is missing.
    fn optional<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<Option<T>, TaskError> {
        match self.text(key).map(read) {
            Some(None) => self.wrong(key, expected),
            found => Ok(found.flatten()),
        }
    }

    /// An entry that must be there.
    fn needed<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<T, TaskError> {
        match self.optional(key, expected, read)? {
            Some(value) => Ok(value),
            None => self.wrong(key, expected),
        }
    }

    /// One of some words, the first when the entry is missing.
    fn one_of<T: Copy>(
        &self,
        key: &'static str,
        expected: &'static str,
        words: &[(&str, T)],
    ) -> Result<T, TaskError> {
        let read = |text: &str| words.iter().find(|w| w.0 == text).map(|w| w.1);
        Ok(self.optional(key, expected, read)?.unwrap_or(words[0].1))
    }

    #[cfg(feature = "media")]
    fn count(&self, key: &'static str) -> Result<Option<usize>, TaskError> {
        self.optional(key, "a whole number above 0", |t| {
            t.trim().parse().ok().filter(|&n: &usize| n > 0)
        })
    }

    fn number(&self, key: &'static str) -> Result<Option<f32>, TaskError> {
        self.optional(key, "a number", |t| numbers(t).filter(|n| n.len() == 1).map(|n| n[0]))
    }

    fn quantization(&self) -> Result<Option<Quantization>, TaskError> {
        self.optional(keys::INPUT_QUANTIZATION, "SCALE,ZERO_POINT, such as 0.0078,-128", |text| {
            let (scale, zero) = text.split_once(',')?;
            let scale = scale.trim().parse::<f32>().ok().filter(|s| s.is_finite() && *s > 0.0)?;
            let zero_point = zero.trim().parse().ok().filter(|z| (-128..=255).contains(z))?;
            Some(Quantization { scale, zero_point })
        })
    }

    fn image(&self) -> Result<Preparation, TaskError> {
        let channels = |key, expected| {
            self.optional(key, expected, |text| match numbers(text)?[..] {
                [all] => Some([all; 3]),
                [a, b, c] => Some([a, b, c]),
                _ => None,
            })
        };
        let mean = channels(keys::INPUT_MEAN, "one number, or one for each of three channels")?;
        let expected = "one number above 0, or one for each of three channels";
        let std = channels(keys::INPUT_STD, expected)?;
        if std.is_some_and(|std| std.iter().any(|s| *s <= 0.0)) {
            return self.wrong(keys::INPUT_STD, expected);
        }
        let quantization = self.quantization()?;
        let range = self.optional(keys::INPUT_RANGE, "LOW..HIGH", image::parse_range)?;
        let range = match range {
            None if mean.is_none() && std.is_none() && quantization.is_none() => {
                return self.wrong(keys::INPUT_RANGE, "LOW..HIGH");
            }
            None => [0.0, 1.0],
            Some(range) => range,
        };
        let fit = self.optional(keys::INPUT_FIT, "stretch, crop:SHARE or pad:SAMPLE", |text| {
            if text == "stretch" {
                return Some(Fit::Stretch);
            }
            let (how, value) = text.split_once(':')?;
            let value = value.trim().parse::<f32>().ok()?;
            match how {
                "crop" if value > 0.0 && value <= 1.0 => Some(Fit::Crop(value)),
                "pad" if (0.0..=255.0).contains(&value) => Some(Fit::Pad(value)),
                _ => None,
            }
        })?;
        let orders = [("rgb", Order::Rgb), ("bgr", Order::Bgr)];
        Ok(Preparation {
            size: self.optional(keys::INPUT_SIZE, "ROWSxCOLUMNS", pair)?,
            fit: fit.unwrap_or_default(),
            order: self.one_of(keys::INPUT_CHANNELS, "rgb or bgr", &orders)?,
            range: Some(range),
            mean: mean.unwrap_or([0.0; 3]),
            std: std.unwrap_or([1.0; 3]),
            quantization,
        })
    }

    #[cfg(feature = "media")]
    fn sound(&self, cepstral: bool) -> Result<super::sound::Features, TaskError> {
        let needed = |key| match self.count(key)? {
            Some(n) => Ok(n),
            None => self.wrong(key, "a whole number above 0"),
        };
        let rate = self.needed(keys::INPUT_RATE, "samples per second", |t| {
            t.trim().parse().ok().filter(|n| (1..=1_000_000).contains(n))
        })?;
        let frame = needed(keys::INPUT_FRAME)?;
        let fft = self.count(keys::INPUT_FFT)?;
        let mels = needed(keys::INPUT_MELS)?;
        let band = self.optional(keys::INPUT_BAND, "LOW..HIGH in Hz", |text| {
            image::parse_range(text).filter(|[low, high]| *low >= 0.0 && low < high)
        })?;
        let coefficients = self.count(keys::INPUT_COEFFICIENTS)?;
        Ok(super::sound::Features {
            rate,
            length: self.count(keys::INPUT_LENGTH)?,
            normalize: self.one_of(
                keys::INPUT_NORMALIZE,
                "none or peak",
                &[("none", false), ("peak", true)],
            )?,
            frame,
            step: needed(keys::INPUT_STEP)?,
            fft: fft.unwrap_or_else(|| frame.checked_next_power_of_two().unwrap_or(frame)),
            power: self.one_of(
                keys::INPUT_SPECTRUM,
                "magnitude or power",
                &[("magnitude", false), ("power", true)],
            )?,
            mels,
            band: band.unwrap_or([0.0, rate as f32 / 2.0]),
            floor: self.number(keys::INPUT_FLOOR)?.unwrap_or(1e-6),
            decibel: self.one_of(
                keys::INPUT_LOG,
                "natural or decibel",
                &[("natural", false), ("decibel", true)],
            )?,
            coefficients: cepstral.then(|| coefficients.unwrap_or(mels)),
        })
    }

    fn ctc(&self) -> Result<Output, TaskError> {
        let charset = self.needed(keys::CTC_CHARSET, "characters", Some)?;
        let blank = self.optional(keys::CTC_BLANK, "a class number", |t| t.parse().ok())?;
        let decoder = self.optional(keys::CTC_DECODER, "greedy or beam:N", |text| {
            if text == "greedy" {
                return Some(Decoder::Greedy);
            }
            let width = text.strip_prefix("beam:").and_then(|n| n.parse().ok());
            width.filter(|n| (1..=10_000).contains(n)).map(Decoder::Beam)
        })?;
        let ctc = Ctc::new(charset, blank.unwrap_or(0))?;
        Ok(Output::Text { ctc, decoder: decoder.unwrap_or(Decoder::Greedy) })
    }

    fn detect(&self, labels: Vec<String>) -> Result<Detect, TaskError> {
        let expected = "boxes-scores, yolo, yolo-confidence, yolo-grid or box-score-class";
        let form = match self.text(keys::DETECT_FORM) {
            Some("boxes-scores") => Form::BoxesScores,
            Some("yolo") => Form::Yolo,
            Some("yolo-confidence") => Form::YoloConfidence,
            Some("box-score-class") => Form::BoxScoreClass,
            Some("yolo-grid") => {
                let expected = "pairs of widths and heights, W,H,W,H";
                Form::YoloGrid(self.needed(keys::DETECT_ANCHORS, expected, |text| {
                    let numbers = numbers(text)?;
                    let (pairs, rest) = numbers.as_chunks::<2>();
                    rest.is_empty().then(|| pairs.to_vec())
                })?)
            }
            _ => return self.wrong(keys::DETECT_FORM, expected),
        };
        let expected = "mask, keypoints:COUNTxNUMBERS (2 or 3 numbers) or angle";
        let more = self.optional(keys::DETECT_MORE, expected, |text| match text {
            "mask" => Some(More::Mask),
            "angle" => Some(More::Angle),
            _ => {
                let [count, numbers] = pair(text.strip_prefix("keypoints:")?)?;
                (count <= MAX_KEYPOINTS && (2..=3).contains(&numbers))
                    .then_some(More::Keypoints { count, numbers })
            }
        })?;
        if more.is_some() && matches!(form, Form::BoxesScores | Form::YoloGrid(_)) {
            return self.wrong(keys::DETECT_MORE, "none with this form of a detector");
        }
        let corners = [
            ("edges", Corners::Edges),
            ("edges-rows-first", Corners::EdgesRowsFirst),
            ("middle", Corners::Middle),
        ];
        let units = [("fraction", true), ("pixel", false)];
        Ok(Detect {
            form,
            corners: self.one_of(
                keys::DETECT_BOX,
                "edges, edges-rows-first or middle",
                &corners,
            )?,
            fractions: self.one_of(keys::DETECT_UNIT, "fraction or pixel", &units)?,
            background: self
                .optional(keys::DETECT_BACKGROUND, "a class number", |t| t.trim().parse().ok())?,
            threshold: self.number(keys::DETECT_THRESHOLD)?.unwrap_or(0.5),
            overlap: self.number(keys::DETECT_OVERLAP)?.unwrap_or(0.45),
            labels,
            more,
        })
    }
}

/// `AxB`, both above 0.
fn pair(text: &str) -> Option<[usize; 2]> {
    let (a, b) = text.split_once('x')?;
    let number = |text: &str| text.trim().parse().ok().filter(|n| *n > 0);
    Some([number(a)?, number(b)?])
}

/// The 1000 classes of ImageNet's challenge, in the order that everybody uses.
pub(super) fn imagenet() -> impl Iterator<Item = &'static str> {
    include_str!("data/imagenet.txt").lines()
}

/// Finite numbers between commas.
fn numbers(text: &str) -> Option<Vec<f32>> {
    text.split(',').map(|n| n.trim().parse::<f32>().ok().filter(|v| v.is_finite())).collect()
}
