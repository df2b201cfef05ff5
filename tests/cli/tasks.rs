//! Pictures and sounds in, labels and boxes out, with real networks where they are at hand.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tilewright::io::npy;

use super::support::{Bench, Ran};

/// The folder of a real network, or `None` where there is none.
fn model(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models");
    let folder = std::env::var_os("TILEWRIGHT_MODELS").map_or(beside, PathBuf::from).join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: there is no {}", folder.display());
    None
}

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn faces_are_found_and_drawn() {
    let Some(folder) = model("ultraface-320") else { return };
    let scratch = Bench::new();
    let task = scratch.path("faces.json");
    let entries = r#"{"input": "image", "input.range": "0..255", "input.mean": 127, "input.std": 128,
        "task": "detect", "detect.form": "boxes-scores", "detect.background": 0,
        "detect.threshold": 0.7, "detect.overlap": 0.3, "labels": ["background", "face"]}"#;
    fs::write(&task, entries).unwrap();
    let expected = json(&fs::read(folder.join("detections.json")).unwrap());
    for (file, network) in [("13.jpg", "version-RFB-320"), ("2.jpg", "version-slim-320")] {
        let drawn = scratch.path("drawn.png");
        let picture = folder.join(file);
        let (network_file, task) = (folder.join(format!("{network}.onnx")), path(&task));
        let run = scratch.run(&[
            "run",
            path(&network_file),
            "--task",
            task,
            "--input",
            path(&picture),
            "--draw",
            path(&drawn),
            "--format",
            "json",
        ]);
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        let found = json(run.stdout.as_bytes());
        assert!(found["drawing"] == path(&drawn) && found["outputs"][0]["file"].is_null());
        let found = found["detections"].as_array().unwrap();
        let expected = expected["detections"][format!("{file} {network}")].as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{file}");
        for face in expected {
            let numbers = |v: &Value| -> Vec<f64> {
                v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).take(4).collect()
            };
            let wanted = numbers(face);
            // Decoders and resizers of pictures differ a little.
            let near = |d: &Value| {
                numbers(&d["box"]).iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 3.0)
            };
            assert!(found.iter().any(near), "{file}: {wanted:?} in {found:?}");
        }
        let [original, with_boxes] = [&picture, &drawn].map(|p| image::open(p).unwrap().to_rgb8());
        assert_eq!(original.dimensions(), with_boxes.dimensions());
        assert!(original != with_boxes);
    }
    // What cannot be drawn is said before anything is computed.
    let network = folder.join("version-RFB-320.onnx");
    let refused = scratch.path("refused.png");
    let run = scratch.run(&["run", path(&network), "--draw", path(&refused)]);
    assert_eq!((run.status, refused.exists()), (Some(1), false));
}

#[test]
fn photos_get_labels() {
    let Some(folder) = model("squeezenet") else { return };
    let scratch = Bench::new();
    let images = npy::read(&fs::read(folder.join("images_u8.npy")).unwrap()).unwrap();
    let labels = json(&fs::read(folder.join("labels.json")).unwrap());
    // A file beside the network is found without being named.
    let network = scratch.path("squeezenet.onnx");
    fs::copy(folder.join("squeezenet_f32.onnx"), &network).unwrap();
    let entries = r#"{"input": "image", "input.range": "0..255", "input.channels": "bgr",
        "input.mean": [104, 117, 123], "input.fit": "crop:1", "labels": "imagenet"}"#;
    let picture = scratch.path("photo.png");
    let best = |named: bool| -> (String, f64) {
        let run = scratch.run(&["run", path(&network), "--input", path(&picture)]);
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        let Ran { stdout: out, stderr: note, .. } = run;
        assert_eq!(note.contains("ImageNet"), !named, "{note}");
        assert_eq!(out.lines().count(), 7, "{out}");
        let (score, label) = out.lines().nth(1).unwrap().trim().split_once("  ").unwrap();
        (label.to_owned(), score.parse().unwrap())
    };
    for (i, pixels) in images.as_slice::<u8>().unwrap().chunks_exact(224 * 224 * 3).enumerate() {
        image::save_buffer(&picture, pixels, 224, 224, image::ExtendedColorType::Rgb8).unwrap();
        fs::write(network.with_extension("task.json"), entries).unwrap();
        let (label, score) = best(true);
        let expected = &labels[i]["top5"][0];
        assert!(expected[1].as_str().unwrap().contains(&label), "{label} instead of {expected}");
        assert!((score - expected[2].as_f64().unwrap()).abs() < 1e-3, "{score}: {expected}");
        fs::remove_file(network.with_extension("task.json")).unwrap();
    }
    // Without it, the network is taken for what it looks like.
    let (label, score) = best(false);
    // So is one of halves.
    fs::copy(folder.join("squeezenet_f16.onnx"), &network).unwrap();
    let (half, rounded) = best(false);
    assert!(half == label && (rounded - score).abs() < 0.02, "{half} {rounded} {label} {score}");
    fs::copy(folder.join("squeezenet_f32.onnx"), &network).unwrap();
    fs::write(network.with_extension("task.json"), r#"{"input": "image", "input.fit": 7}"#)
        .unwrap();
    let run = scratch.run(&["run", path(&network), "--input", path(&picture)]);
    let message = run.stderr;
    assert!(run.status == Some(1) && message.contains("squeezenet.task.json"), "{message}");
}

#[test]
fn words_are_heard() {
    let Some(folder) = model("mlperftiny-kws") else { return };
    let scratch = Bench::new();
    let task = scratch.path("words.json");
    let entries = r#"{"input": "mfcc", "input.rate": 16000, "input.length": 16000,
        "input.normalize": "peak", "input.frame": 480, "input.step": 320, "input.fft": 512,
        "input.mels": 40, "input.band": "20..4000", "input.coefficients": 10,
        "labels": ["Down", "Go", "Left", "No", "Off", "On", "Right", "Stop", "Up", "Yes", "Silence",
                   "Unknown"]}"#;
    fs::write(&task, entries).unwrap();
    let network = folder.join("kws_f32.onnx");
    for (sound, word) in
        [("yes", "Yes"), ("no", "Go"), ("noise", "Unknown"), ("silence", "Silence")]
    {
        let sound = folder.join(format!("{sound}_1000ms.wav"));
        let run = scratch.run(&[
            "run",
            path(&network),
            "--task",
            path(&task),
            "--input",
            path(&sound),
            "--format",
            "json",
        ]);
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!(json(run.stdout.as_bytes())["labels"][0]["label"], word, "{}", sound.display());
    }
}
