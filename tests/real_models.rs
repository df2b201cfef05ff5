//! Networks that others made, against the results of another runtime.
//!
//! The models lie beside the repository, or where `TILEWRIGHT_MODELS` says; without them the tests
//! pass and say so. `manifest.json` there lists model, input, preparation, expected output and
//! tolerance. Cases of f16 models are left out.

#![cfg(feature = "cli")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tilewright::io::npy;
use tilewright::{DType, Dim, Model, Session, SessionOptions, Tensor};

/// Runs of a batched case of bytes, at most.
const MAX_INT8: usize = 64;

/// Runs of a batched case, at most; all samples are run where labels are counted.
const MAX_SAMPLES: usize = 16;

fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models");
    let folder = std::env::var_os("TILEWRIGHT_MODELS").map_or(beside, PathBuf::from);
    if folder.join("manifest.json").is_file() {
        return Some(folder);
    }
    println!("skipped: no models in {}", folder.display());
    None
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn load(path: &Path) -> Array {
    let tensor = npy::read(&fs::read(path).unwrap()).unwrap();
    let values = match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().unwrap().to_vec(),
        DType::U8 => tensor.as_slice::<u8>().unwrap().iter().map(|v| f32::from(*v)).collect(),
        DType::I8 => tensor.as_slice::<i8>().unwrap().iter().map(|v| f32::from(*v)).collect(),
        DType::F16 => tensor.as_slice::<half::f16>().unwrap().iter().map(|v| v.to_f32()).collect(),
        other => panic!("{} holds {other}", path.display()),
    };
    Array { dims: tensor.dims(), values }
}

/// Values with their shape, slowest first.
#[derive(Clone)]
struct Array {
    dims: Vec<usize>,
    values: Vec<f32>,
}

impl Array {
    /// The array whose element at an index is the one at `source(index)` here.
    fn gather(&self, dims: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> Self {
        let count = dims.iter().product();
        let mut index = vec![0; dims.len()];
        let values = (0..count)
            .map(|flat: usize| {
                let mut rest = flat;
                for (i, d) in index.iter_mut().zip(&dims).rev() {
                    *i = rest % d;
                    rest /= d;
                }
                let at = source(&index);
                self.values[at.iter().zip(&self.dims).fold(0, |o, (i, d)| o * d + i)]
            })
            .collect();
        Self { dims, values }
    }

    /// The preparation that the manifest describes: crop, layout, channels, sub, div.
    fn prepared(self, steps: &Value) -> Self {
        let mut array = self;
        if let (Some(rows), Some(columns)) = (pair(&steps["crop_rows"]), pair(&steps["crop_cols"]))
        {
            let mut dims = array.dims.clone();
            let at = dims.len() - 2;
            (dims[at], dims[at + 1]) = (rows[1] - rows[0], columns[1] - columns[0]);
            array = array.gather(dims, |i| {
                let mut i = i.to_vec();
                i[at] += rows[0];
                i[at + 1] += columns[0];
                i
            });
        }
        let channel_axis = match steps["layout"].as_str() {
            Some("HWC->1CHW") => {
                let [h, w, c] = array.dims[..] else { panic!("a picture has three axes") };
                array = array.gather(vec![1, c, h, w], |i| vec![i[2], i[3], i[1]]);
                1
            }
            Some("NHWC->NCHW") => {
                let [n, h, w, c] = array.dims[..] else { panic!("pictures have four axes") };
                array = array.gather(vec![n, c, h, w], |i| vec![i[0], i[2], i[3], i[1]]);
                1
            }
            Some("HW->11HW") => {
                array.dims.splice(0..0, [1, 1]);
                array.dims.len() - 1
            }
            None => array.dims.len() - 1,
            Some(other) => panic!("layout {other}"),
        };
        if let Some(channels) = steps["channels"].as_str() {
            assert_eq!(channels, "RGB->BGR");
            array = array.clone().gather(array.dims.clone(), |i| {
                let mut i = i.to_vec();
                i[channel_axis] = 2 - i[channel_axis];
                i
            });
        }
        let inner: usize = array.dims[channel_axis + 1..].iter().product();
        let channels = array.dims[channel_axis];
        for (key, op) in [("sub", (|v, p| v - p) as fn(f32, f32) -> f32), ("div", |v, p| v / p)] {
            let per_channel = |channel: usize| match &steps[key] {
                Value::Null => None,
                Value::Array(list) => list[channel].as_f64(),
                one => one.as_f64(),
            };
            for (i, value) in array.values.iter_mut().enumerate() {
                if let Some(p) = per_channel(i / inner % channels) {
                    *value = op(*value, p as f32);
                }
            }
        }
        array
    }

    /// `parts` as one, along the first axis.
    fn batch(parts: &[Self]) -> Self {
        let mut dims = parts[0].dims.clone();
        dims[0] = parts.len();
        Self { dims, values: parts.iter().flat_map(|p| p.values.iter().copied()).collect() }
    }

    /// The parts along the first axis.
    fn samples(&self) -> Vec<Self> {
        let size = self.values.len() / self.dims[0];
        let mut dims = self.dims.clone();
        dims[0] = 1;
        let chunks = self.values.chunks_exact(size);
        chunks.map(|c| Self { dims: dims.clone(), values: c.to_vec() }).collect()
    }
}

fn pair(value: &Value) -> Option<[usize; 2]> {
    let at = |i: usize| usize::try_from(value.get(i)?.as_u64()?).ok();
    Some([at(0)?, at(1)?])
}

/// Sessions by model file; a session keeps its plans.
#[derive(Default)]
struct Sessions(HashMap<PathBuf, Session>);

impl Sessions {
    fn of(&mut self, model: &Path) -> &mut Session {
        self.0.entry(model.to_path_buf()).or_insert_with(|| {
            let model = Arc::new(Model::load(model).unwrap());
            Session::new(model, SessionOptions::default()).unwrap()
        })
    }

    fn run(&mut self, model: &Path, input: &str, x: &Array, output: &str) -> Vec<f32> {
        let x = Tensor::from_slice(&x.dims, &x.values).unwrap();
        let outputs = self.of(model).run(&[(input, x)]).unwrap();
        let found = outputs.iter().find(|(name, _)| name == output).unwrap();
        found.1.as_slice::<f32>().unwrap().into_owned()
    }

    fn run_i8(&mut self, model: &Path, input: &str, x: &Array, output: &str) -> Vec<i8> {
        let values: Vec<i8> = x.values.iter().map(|v| *v as i8).collect();
        let x = Tensor::from_slice(&x.dims, &values).unwrap();
        let outputs = self.of(model).run(&[(input, x)]).unwrap();
        let found = outputs.iter().find(|(name, _)| name == output).unwrap();
        found.1.as_slice::<i8>().unwrap().into_owned()
    }
}

fn argmax(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap()
}

#[test]
fn every_f32_case_agrees_with_the_reference_runtime() {
    let Some(folder) = folder() else { return };
    let manifest = json(&folder.join("manifest.json"));
    let mut sessions = Sessions::default();
    let (mut cases, mut worst) = (0, Vec::new());
    for case in manifest["cases"].as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let model = text("model");
        if model.contains("int8") || case["preprocess"]["dtype"] != "f32" {
            continue;
        }
        let dir = folder.join(text("dir"));
        let x = load(&dir.join(text("input_file"))).prepared(&case["preprocess"]);
        let expected = load(&dir.join(text("expected_file")));
        let inputs = if case["batched"] == true { x.samples() } else { vec![x] };
        let mut found = Vec::new();
        for x in inputs.iter().take(MAX_SAMPLES) {
            found.extend(sessions.run(&dir.join(model), text("input"), x, text("output")));
        }
        assert!(found.len() <= expected.values.len(), "{model}: too many values");
        let pairs = || found.iter().zip(&expected.values);
        let error = pairs().map(|(a, b)| f64::from((a - b).abs())).fold(0f64, f64::max);
        let largest = expected.values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let tolerance = case["tolerance"]["abs"].as_f64().unwrap()
            + case["tolerance"]["rel"].as_f64().unwrap_or(0.0) * f64::from(largest);
        println!(
            "{}/{model} {}: off by {error:.3e}, at most {tolerance:.1e}",
            text("dir"),
            text("output")
        );
        if error.is_nan() || error > tolerance || found.iter().any(|v| v.is_nan()) {
            worst.push(format!("{model} {}: off by {error:.3e}", text("output")));
        }
        cases += 1;
    }
    assert!(cases >= 16, "only {cases} cases");
    assert!(worst.is_empty(), "{worst:#?}");
}

#[test]
fn every_int8_case_agrees_with_the_reference_runtime_and_runs_on_integers() {
    let Some(folder) = folder() else { return };
    let manifest = json(&folder.join("manifest.json"));
    let mut sessions = Sessions::default();
    let cases: Vec<&Value> = manifest["cases"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|case| case["model"].as_str().unwrap().contains("int8"))
        .collect();
    assert!(cases.len() >= 4, "only {} cases", cases.len());
    for case in cases {
        let text = |key: &str| case[key].as_str().unwrap();
        let dir = folder.join(text("dir"));
        let model = dir.join(text("model"));
        let x = load(&dir.join(text("input_file"))).prepared(&case["preprocess"]);
        let expected = load(&dir.join(text("expected_file"))).samples();
        let (mut equal, mut furthest) = (0, 0f32);
        for (x, expected) in x.samples().iter().zip(&expected).take(MAX_INT8) {
            let found = sessions.run_i8(&model, text("input"), x, text("output"));
            let found: Vec<f32> = found.into_iter().map(f32::from).collect();
            equal += usize::from(argmax(&found) == argmax(&expected.values));
            let pairs = found.iter().zip(&expected.values);
            furthest = pairs.map(|(a, b)| (a - b).abs()).fold(furthest, f32::max);
        }
        println!(
            "{}: {equal} of {} alike, at most {furthest} steps",
            text("model"),
            expected.len()
        );
        match case["tolerance"]["abs_lsb"].as_f64() {
            Some(_) => assert!(furthest <= 1.0, "{}: {furthest} steps", text("model")),
            None => {
                let least = case["tolerance"]["min_agreement"].as_f64().unwrap();
                assert!(
                    equal as f64 >= least * expected.len().min(MAX_INT8) as f64,
                    "{}",
                    text("model")
                );
            }
        }
        // Only what stands before and behind the network is computed in floats.
        let sample = &x.samples()[0];
        let values: Vec<i8> = sample.values.iter().map(|v| *v as i8).collect();
        let sample = Tensor::from_slice(&sample.dims, &values).unwrap();
        let plan = sessions.of(&model).prepare(&[(text("input"), sample)]).unwrap();
        let in_floats: Vec<&str> = plan
            .nodes
            .iter()
            .filter(|n| n.dtype == DType::F32 && n.macs > 0)
            .map(|n| n.name.as_str())
            .collect();
        assert!(in_floats.is_empty(), "{}: {in_floats:?} in floats", text("model"));
    }
}

/// A session plans for each batch anew, and what it packed of weights for one may serve the next.
#[test]
fn batches_of_many_sizes_in_one_session_give_what_single_samples_do() {
    let Some(folder) = folder() else { return };
    let manifest = json(&folder.join("manifest.json"));
    let mut models = 0;
    for case in manifest["cases"].as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let bytes = text("model").contains("int8");
        if case["batched"] != true || !(bytes || case["preprocess"]["dtype"] == "f32") {
            continue;
        }
        let dir = folder.join(text("dir"));
        let samples = load(&dir.join(text("input_file"))).prepared(&case["preprocess"]).samples();
        let (mut together, mut alone) = (Sessions::default(), Sessions::default());
        let inputs = together.of(&dir.join(text("model"))).model().inputs();
        if matches!(inputs[0].dims.as_deref(), Some([Dim::Fixed(_), ..])) {
            continue;
        }
        let run = |sessions: &mut Sessions, x: &Array| match bytes {
            true => {
                let y = sessions.run_i8(&dir.join(text("model")), text("input"), x, text("output"));
                y.into_iter().map(f32::from).collect()
            }
            false => sessions.run(&dir.join(text("model")), text("input"), x, text("output")),
        };
        for count in [1, 3, 2, 7, 1, 4, 3] {
            let batch = &samples[..count.min(samples.len())];
            let found = run(&mut together, &Array::batch(batch));
            let single: Vec<f32> = batch.iter().flat_map(|x| run(&mut alone, x)).collect();
            let largest = single.iter().fold(0f32, |m, v| m.max(v.abs()));
            let allowed = if bytes { 0.0 } else { 1e-5 * largest };
            assert_eq!(found.len(), single.len(), "{}", text("model"));
            for (a, b) in found.iter().zip(&single) {
                let apart = (a - b).abs();
                assert!(apart <= allowed, "{} in a batch of {count}: {a}, not {b}", text("model"));
            }
        }
        models += 1;
    }
    assert!(models >= 8, "only {models} models");
}

/// Samples whose best class is the label.
fn right(
    sessions: &mut Sessions,
    folder: &Path,
    [dir, model, input, images, output]: [&str; 5],
    steps: &Value,
    labels: &[usize],
) -> usize {
    let dir = folder.join(dir);
    let x = load(&dir.join(images)).prepared(steps);
    let samples = x.samples();
    assert_eq!(samples.len(), labels.len());
    let correct = samples
        .iter()
        .zip(labels)
        .filter(|(x, label)| argmax(&sessions.run(&dir.join(model), input, x, output)) == **label);
    correct.count()
}

#[test]
fn labelled_samples_are_classified_as_well_as_by_the_reference_runtime() {
    let Some(folder) = folder() else { return };
    let mut sessions = Sessions::default();
    let plain = Value::Null;
    let numbers = |list: &Value| -> Vec<usize> {
        list.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
    };

    let labels = numbers(&json(&folder.join("mlperftiny-resnet8/labels.json"))["labels"]);
    let case = ["mlperftiny-resnet8", "resnet8_f32.onnx", "input_1", "images_u8.npy", "Identity"];
    let count = right(&mut sessions, &folder, case, &plain, &labels);
    assert!(count >= 180, "resnet8: {count} of 200, the reference has 180");

    let labels = numbers(&json(&folder.join("mnist-cnn/labels.json"))["labels"]);
    for model in ["mnist-8.onnx", "mnist-8-fused.onnx"] {
        let case = ["mnist-cnn", model, "Input3", "images_u8.npy", "Plus214_Output_0"];
        let count = right(&mut sessions, &folder, case, &plain, &labels);
        assert!(count >= 199, "{model}: {count} of 200, the reference has 199");
    }

    let samples = json(&folder.join("mlperftiny-vww/labels.json"));
    let labels: Vec<usize> = samples["samples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["person"].as_u64().unwrap() as usize)
        .collect();
    let case = ["mlperftiny-vww", "vww_f32.onnx", "input_1", "images_u8.npy", "Identity"];
    let count = right(&mut sessions, &folder, case, &serde_json::json!({ "div": 255 }), &labels);
    assert!(count >= 23, "vww: {count} of 25, the reference has 23");

    // Bald eagle, pelican and twice a cat; the fifth photo has no class of its own.
    let tops = json(&folder.join("squeezenet/labels.json"));
    let expected: Vec<usize> = tops
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["top5"][0][0].as_u64().unwrap() as usize)
        .collect();
    let steps = serde_json::json!({
        "layout": "NHWC->NCHW", "channels": "RGB->BGR", "sub": [104, 117, 123]
    });
    let case = ["squeezenet", "squeezenet_f32.onnx", "data_0", "images_u8.npy", "softmaxout_1"];
    let count = right(&mut sessions, &folder, case, &steps, &expected);
    assert_eq!(count, expected.len(), "squeezenet");
}

/// Speech, 32 ms at a time, with the state handed on for 625 steps.
#[test]
fn a_recurrent_detector_follows_the_reference_runtime_through_20_seconds() {
    const RATE: i64 = 16_000;
    const CHUNK: usize = 512;
    const CONTEXT: usize = 64;
    let Some(folder) = folder() else { return };
    let folder = folder.join("silero-vad");
    let wav = tilewright::io::wav::read(&fs::read(folder.join("speech_20s.wav")).unwrap()).unwrap();
    let expected = load(&folder.join("expected_probs.npy")).values;
    let first_state = load(&folder.join("expected_state_after_first_chunk.npy")).values;
    let samples = wav.samples;
    assert_eq!(samples.len() / CHUNK, expected.len());
    for file in ["silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx"] {
        let model = Arc::new(Model::load(folder.join(file)).unwrap());
        let mut session = Session::new(model, SessionOptions::default()).unwrap();
        let mut state = Tensor::zeros(DType::F32, &[2, 1, 128]).unwrap();
        let mut window = vec![0f32; CONTEXT + CHUNK];
        let (mut worst, mut off_state) = (0f32, 0f32);
        for (i, (chunk, expected)) in samples.chunks_exact(CHUNK).zip(&expected).enumerate() {
            window.copy_within(CHUNK.., 0);
            window[CONTEXT..].copy_from_slice(chunk);
            let input = Tensor::from_slice(&[1, window.len()], &window).unwrap();
            let rate = Tensor::from_slice(&[], &[RATE]).unwrap();
            let inputs = [("input", input), ("state", state), ("sr", rate)];
            let mut outputs = session.run(&inputs).unwrap();
            state = outputs.remove(1).1;
            let found = outputs[0].1.as_slice::<f32>().unwrap()[0];
            worst = worst.max((found - expected).abs());
            assert!(found.is_finite());
            if i == 0 {
                let found = state.as_slice::<f32>().unwrap();
                let off = found.iter().zip(&first_state).map(|(a, b)| (a - b).abs());
                off_state = off.fold(0f32, f32::max);
            }
        }
        println!("{file}: off by {worst:.3e}, the first state by {off_state:.3e}");
        assert!(worst <= 1e-3 && off_state <= 1e-4, "{file}: off by {worst}, {off_state}");
    }
}
