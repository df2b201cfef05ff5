//! `tilewright run`: one run of a network, shown in words.

use core::time::Duration;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use tilewright::io::Picture;
use tilewright::task::classify::Scored;
use tilewright::task::ctc::Decoded;
use tilewright::task::detect::Detection;
use tilewright::task::image::Placement;
use tilewright::task::{self, Decoder, Output, TaskError, classify};
use tilewright::{DType, Model, ProfileRow, Session, Tensor};

use super::args::{Format, RunArgs};
use super::inputs::{self, Inputs};
use super::model::{self, Network};
use super::output::{self, OutputDir, Pending};
use super::report::{self, Table};
use super::{Failure, draw};

/// Labels shown for a classifier.
const LABELS: usize = 5;

/// Values of an output that are shown.
const FIRST_VALUES: usize = 4;

/// A profile is the mean of this many runs, or of those that fit into a second.
const PROFILE_RUNS: u32 = 20;

/// Named tensors.
type Named = Vec<(String, Tensor)>;

/// The command.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let network = network(args)?;
    let decoder = args.beam.map(|n| Decoder::Beam(n.into()));
    if decoder.is_some() && !matches!(network.task.output, Some(Output::Text { .. })) {
        return Err(Failure(
            "--beam is for networks that read text, and this one's metadata do not say that it \
             does"
                .into(),
        ));
    }
    if args.pixel_range.is_some()
        && matches!(network.task.input, Some(task::Input::LineImage { .. }))
    {
        return Err(Failure(
            "--pixel-range is for networks that take pictures as they are, and this one reads lines of text, \
             from any samples"
                .into(),
        ));
    }
    if args.draw.is_some() && !matches!(network.task.output, Some(Output::Detections(_))) {
        return Err(Failure(
            "--draw is for networks that detect things, and this one's metadata do not say that \
             it does (see `tilewright run --help` for saying it in a file)"
                .into(),
        ));
    }
    let Inputs { tensors: inputs, picture } =
        inputs::from_files(&network, &args.inputs, args.pixel_range)?;
    let output_dir = args.output_dir.as_deref().map(OutputDir::open).transpose()?;
    let mut session = network.session(&args.machine, args.profile)?;
    let (outputs, elapsed) = timed_run(&mut session, &inputs)?;
    let reading = Reading::new(network.task.output.as_ref(), decoder, &outputs, picture.as_ref());
    let drawing = args.draw.as_deref().map(|path| match (&picture, &reading.detections) {
        (Some((picture, _)), Some(found)) => draw::write(path, picture, found),
        _ => Err(Failure("--draw needs a picture as input, and outputs that can be read".into())),
    });
    let drawing = drawing.transpose()?;
    let files = write(output_dir, &network.model, &outputs)?;
    let drawing = drawing.map(Pending::finish).transpose()?;
    let profile = if args.profile { profile(&mut session, &inputs)? } else { Vec::new() };
    let backend = args.machine.backend.as_str();
    match args.format {
        Format::Json => {
            let result = Json::new(
                &network, backend, &session, elapsed, &outputs, &files, &reading, &profile,
            );
            let drawing = drawing.map(|file| file.display().to_string());
            report::print_json(&Json { drawing, ..result })
        }
        Format::Text => {
            for file in files.iter().chain(&drawing) {
                report::note(&format!("wrote {}", file.display()));
            }
            report::print(&text(&network, backend, &session, elapsed, &outputs, &reading, &profile))
        }
    }
}

/// The network, with what files and its looks say of its task.
fn network(args: &RunArgs) -> Result<Network, Failure> {
    let (model, task, labels) = (&args.model, &args.task, &args.labels);
    let mut network = Network::with_task(model.as_deref(), task.as_deref(), labels.as_deref())?;
    network.ask_for(&args.inputs)?;
    if inputs::any_picture(&args.inputs) && args.pixel_range.is_none() {
        network.guess_task();
    }
    Ok(network)
}

/// One run; planning is not part of the time.
fn timed_run(session: &mut Session, inputs: &Named) -> Result<(Named, Duration), Failure> {
    let inputs = borrowed(inputs);
    session.prepare(&inputs)?;
    let start = Instant::now();
    let outputs = session.run(&inputs)?;
    Ok((outputs, start.elapsed()))
}

/// Names borrowed, as a session wants them; tensors share their data.
pub(super) fn borrowed(inputs: &[(String, Tensor)]) -> Vec<(&str, Tensor)> {
    inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect()
}

fn profile(session: &mut Session, inputs: &Named) -> Result<Vec<ProfileRow>, Failure> {
    let inputs = borrowed(inputs);
    let start = Instant::now();
    for _ in 1..PROFILE_RUNS {
        if start.elapsed() > Duration::from_secs(1) {
            break;
        }
        session.run(&inputs)?;
    }
    Ok(session.profile())
}

fn write(dir: Option<OutputDir>, model: &Model, outputs: &Named) -> Result<Vec<PathBuf>, Failure> {
    let Some(mut dir) = dir else { return Ok(Vec::new()) };
    let named = outputs.iter().map(|(name, t)| (name.as_str(), t, output::texts(model, name, t)));
    dir.write(&named.collect::<Vec<_>>())
}

/// What the outputs mean, where the network says so.
#[derive(Default)]
struct Reading {
    text: Option<Decoded>,
    labels: Option<Vec<Scored>>,
    detections: Option<Vec<Detection>>,
}

impl Reading {
    fn new(
        output: Option<&Output>,
        decoder: Option<Decoder>,
        outputs: &Named,
        picture: Option<&(Picture, Placement)>,
    ) -> Self {
        let mut reading = Self::default();
        if output.is_none() {
            return reading;
        }
        let outputs = &outputs.iter().map(|(name, t)| (name.clone(), widened(t))).collect();
        let problem = match output {
            Some(Output::Text { ctc, decoder: own }) => {
                let read = |t: &Tensor| task::read_text(t, ctc, decoder.unwrap_or(*own));
                first_fitting(outputs, read).map(|text| reading.text = Some(text)).err()
            }
            Some(Output::Detections(detect)) => {
                let values: Vec<&Tensor> = outputs.iter().map(|(_, t)| t).collect();
                let read = |(picture, placement): &(Picture, Placement)| {
                    detect.read(&values, placement, [picture.width, picture.height])
                };
                // Boxes are pixels of a picture; without one there are only outputs.
                picture.and_then(|p| read(p).map(|found| reading.detections = Some(found)).err())
            }
            Some(Output::Labels { labels, logits }) => {
                let best = |t: &Tensor| classify::best(t, labels, *logits, LABELS);
                first_fitting(outputs, best).map(|found| reading.labels = Some(found)).err()
            }
            _ => None,
        };
        if let Some(error) = problem {
            report::note(&format!("note: {error}; the outputs are shown as they are"));
        }
        reading
    }
}

/// The meaning of the first output that has one.
fn first_fitting<T>(
    outputs: &Named,
    read: impl Fn(&Tensor) -> Result<T, TaskError>,
) -> Result<T, TaskError> {
    let mut tried = outputs.iter().map(|(_, tensor)| read(tensor));
    let first = tried.next().unwrap_or(Err(TaskError::InvalidShape { dims: vec![], classes: 0 }));
    first.or_else(|error| tried.find_map(Result::ok).ok_or(error))
}

/// Extreme and mean values of a tensor, NaN left out.
struct Summary {
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    nans: usize,
    first: Vec<f64>,
}

impl Summary {
    /// Of numbers that stand for texts there is nothing to say.
    fn new(tensor: &Tensor, texts: bool) -> Self {
        let values = if texts { Vec::new() } else { values(tensor) };
        let known = || values.iter().copied().filter(|v| !v.is_nan());
        let count = known().count();
        Self {
            min: known().reduce(f64::min),
            max: known().reduce(f64::max),
            mean: (count > 0).then(|| known().sum::<f64>() / count as f64),
            nans: values.len() - count,
            first: values[..values.len().min(FIRST_VALUES)].to_vec(),
        }
    }
}

/// Halves as f32, which is what meanings are read from; others as they are.
fn widened(tensor: &Tensor) -> Tensor {
    if !matches!(tensor.dtype(), DType::F16 | DType::BF16) {
        return tensor.clone();
    }
    let values: Vec<f32> = values(tensor).into_iter().map(|v| v as f32).collect();
    Tensor::from_slice(&tensor.dims(), &values).unwrap_or_else(|_| tensor.clone())
}

/// The elements as f64, rounded where that cannot hold them; empty for block-quantised types.
fn values(tensor: &Tensor) -> Vec<f64> {
    macro_rules! convert {
        ($t:ty, $f:expr) => {
            tensor.as_slice::<$t>().map(|v| v.iter().map($f).collect()).unwrap_or_default()
        };
    }
    match tensor.dtype() {
        DType::F32 => convert!(f32, |v| f64::from(*v)),
        DType::F64 => convert!(f64, |v| *v),
        DType::F16 => convert!(half::f16, |v| v.to_f64()),
        DType::BF16 => convert!(half::bf16, |v| v.to_f64()),
        DType::I8 => convert!(i8, |v| f64::from(*v)),
        DType::U8 | DType::Bool => convert!(u8, |v| f64::from(*v)),
        DType::I16 => convert!(i16, |v| f64::from(*v)),
        DType::U16 => convert!(u16, |v| f64::from(*v)),
        DType::I32 => convert!(i32, |v| f64::from(*v)),
        DType::U32 => convert!(u32, |v| f64::from(*v)),
        DType::I64 => convert!(i64, |v| *v as f64),
        DType::U64 => convert!(u64, |v| *v as f64),
        _ => Vec::new(),
    }
}

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    isa: &'static str,
    threads: usize,
    backend: &'a str,
    time_us: f64,
    outputs: Vec<JsonOutput<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<JsonLabel<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detections: Option<Vec<JsonDetection<'a>>>,
    /// The file of `--draw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    drawing: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profile: Vec<JsonProfile<'a>>,
}

/// Something found, with its left, top, right and bottom edge in pixels of the picture.
#[derive(Serialize)]
struct JsonDetection<'a> {
    label: &'a str,
    class: usize,
    score: f32,
    r#box: [f32; 4],
    /// Column and row of each corner of a box that is turned.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    corners: &'a [[f32; 2]],
    /// Column, row and score of each.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    keypoints: &'a [[f32; 3]],
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<JsonMask<'a>>,
}

/// Pixels as COCO has them: rows and columns of the picture, and lengths of runs.
#[derive(Serialize)]
struct JsonMask<'a> {
    size: [usize; 2],
    counts: &'a [usize],
}

#[derive(Serialize)]
struct JsonOutput<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: Vec<usize>,
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    nan: usize,
    /// All elements, where they are texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Serialize)]
struct JsonLabel<'a> {
    label: &'a str,
    score: f32,
}

#[derive(Serialize)]
struct JsonProfile<'a> {
    name: &'a str,
    op: &'a str,
    kernel: &'a str,
    time_us: f64,
    gflops: f64,
    share: f64,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl<'a> Json<'a> {
    fn new(
        network: &'a Network,
        backend: &'a str,
        session: &Session,
        elapsed: Duration,
        outputs: &'a Named,
        files: &[PathBuf],
        reading: &'a Reading,
        profile: &'a [ProfileRow],
    ) -> Self {
        let total: f64 = profile.iter().map(seconds_per_call).sum();
        Self {
            model: &network.name,
            isa: session.isa().name(),
            threads: session.threads(),
            backend,
            time_us: elapsed.as_secs_f64() * 1e6,
            outputs: outputs
                .iter()
                .enumerate()
                .map(|(i, (name, tensor))| {
                    let texts = output::texts(&network.model, name, tensor);
                    let Summary { min, max, mean, nans, .. } =
                        Summary::new(tensor, texts.is_some());
                    JsonOutput {
                        name,
                        dtype: if texts.is_some() { output::TEXT } else { tensor.dtype().name() },
                        texts,
                        shape: tensor.dims(),
                        min,
                        max,
                        mean,
                        nan: nans,
                        file: files.get(i).map(|f| f.display().to_string()),
                    }
                })
                .collect(),
            text: reading.text.as_ref().map(|t| t.text.as_str()),
            confidence: reading.text.as_ref().map(|t| t.confidence),
            labels: reading.labels.as_ref().map(|labels| {
                labels.iter().map(|l| JsonLabel { label: &l.label, score: l.score }).collect()
            }),
            detections: reading.detections.as_ref().map(|found| {
                let row = |d: &'a Detection| JsonDetection {
                    label: &d.label,
                    class: d.class,
                    score: d.score,
                    r#box: d.edges,
                    corners: &d.corners,
                    keypoints: &d.keypoints,
                    mask: d.mask.as_ref().map(|m| JsonMask { size: m.size, counts: &m.runs }),
                };
                found.iter().map(row).collect()
            }),
            drawing: None,
            profile: profile
                .iter()
                .map(|row| JsonProfile {
                    name: &row.name,
                    op: &row.op,
                    kernel: &row.kernel,
                    time_us: seconds_per_call(row) * 1e6,
                    gflops: gflops(row),
                    share: seconds_per_call(row) / total,
                })
                .collect(),
        }
    }
}

fn seconds_per_call(row: &ProfileRow) -> f64 {
    row.seconds / row.calls.max(1) as f64
}

fn gflops(row: &ProfileRow) -> f64 {
    2.0 * row.macs as f64 / seconds_per_call(row).max(1e-9) / 1e9
}

fn text(
    network: &Network,
    backend: &str,
    session: &Session,
    elapsed: Duration,
    outputs: &Named,
    reading: &Reading,
    profile: &[ProfileRow],
) -> String {
    let mut out = String::new();
    if let Some(Decoded { text, confidence }) = &reading.text {
        let shown = if text.is_empty() { "(no text)" } else { text };
        out.push_str(&format!("text        {}\n", report::bold(&report::visible(shown))));
        out.push_str(&format!("confidence  {:.1} %\n", confidence * 100.0));
    } else if let Some(labels) = &reading.labels {
        let mut table = Table::new(&[">score", "label"]);
        for Scored { label, score } in labels {
            table.row([report::number((*score).into()), label.clone()]);
        }
        out.push_str(&table.text());
    } else if let Some(found) = &reading.detections {
        out.push_str(&detections_table(found));
    } else {
        out.push_str(&outputs_table(&network.model, outputs));
    }
    out.push_str(&format!(
        "time        {} on {}{} ({} thread{})\n",
        report::duration(elapsed.as_secs_f64()),
        model::device_before(backend),
        session.isa(),
        session.threads(),
        if session.threads() == 1 { "" } else { "s" }
    ));
    if network.is_embedded && reading.text.is_none() {
        // The embedded network reads text; anything else is a defect worth a report.
        out.push_str("the embedded network gave no text\n");
    }
    if !profile.is_empty() {
        out.push('\n');
        out.push_str(&profile_table(profile));
    }
    out
}

fn detections_table(found: &[Detection]) -> String {
    if found.is_empty() {
        return "nothing detected\n".to_owned();
    }
    let mut table = Table::new(&[">score", "label", ">left", ">top", ">right", ">bottom"]);
    for Detection { label, score, edges, .. } in found {
        let [left, top, right, bottom] = edges.map(|v| format!("{v:.0}"));
        let score = report::number((*score).into());
        table.row([score, label.clone(), left, top, right, bottom]);
    }
    table.text()
}

fn outputs_table(model: &Model, outputs: &Named) -> String {
    let mut table = Table::new(&["output", "type", "shape", ">min", ">max", ">mean", "values"]);
    let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), report::number);
    for (name, tensor) in outputs {
        let texts = output::texts(model, name, tensor);
        let summary = Summary::new(tensor, texts.is_some());
        let mut first: Vec<String> = match &texts {
            Some(texts) => texts.iter().take(FIRST_VALUES).map(|t| format!("{t:?}")).collect(),
            None => summary.first.iter().map(|v| report::number(*v)).collect(),
        };
        if tensor.shape().elements() > first.len() {
            first.push("...".into());
        }
        if summary.nans > 0 {
            first.push(format!("({} NaN)", summary.nans));
        }
        table.row([
            name.clone(),
            if texts.is_some() { output::TEXT.to_owned() } else { tensor.dtype().to_string() },
            report::shape(&tensor.dims()),
            shown(summary.min),
            shown(summary.max),
            shown(summary.mean),
            first.join(" "),
        ]);
    }
    table.text()
}

fn profile_table(profile: &[ProfileRow]) -> String {
    let total: f64 = profile.iter().map(seconds_per_call).sum();
    let mut table = Table::new(&["operator", "name", "kernel", ">time", ">GFLOP/s", ">share"]);
    for row in profile {
        let speed = if row.macs == 0 { "-".into() } else { format!("{:.1}", gflops(row)) };
        table.row([
            row.op.clone(),
            row.name.clone(),
            row.kernel.clone(),
            report::duration(seconds_per_call(row)),
            speed,
            format!("{:.1} %", seconds_per_call(row) / total * 100.0),
        ]);
    }
    let macs: u64 = profile.iter().map(|r| r.macs).sum();
    let speed = format!("{:.1}", 2.0 * macs as f64 / total.max(1e-9) / 1e9);
    let name = format!("{} steps", profile.len());
    let all = "100.0 %".into();
    table.row(["total".into(), name, String::new(), report::duration(total), speed, all]);
    table.text()
}
