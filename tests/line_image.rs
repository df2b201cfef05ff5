//! The preparation of line pictures gives what the training script's preparation gives.

#![cfg(feature = "media")]

use std::fs;
use std::path::Path;

use tilewright::io::{npy, picture};
use tilewright::task::line_image;

#[test]
fn lines_equal_those_of_the_training_script() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/line_image");
    let mut cases = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "png") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let expected = npy::read(&fs::read(path.with_extension("npy")).unwrap()).unwrap();
        let line = line_image::prepare(&picture::read(&fs::read(&path).unwrap()).unwrap(), 32);
        assert_eq!(expected.dims(), [1, 1, line.height, line.width], "{name}");
        let expected = expected.as_slice::<f32>().unwrap();
        let error = line
            .values
            .iter()
            .zip(expected.iter())
            .map(|(a, b)| (a - b).abs())
            .fold(0f32, f32::max);
        assert!(error < 1e-6, "{name}: off by {error}");
        cases += 1;
    }
    assert!(cases >= 10, "only {cases} cases");
}

/// `prepared.tsv` has the width and the mean of every held-out line as the script prepares it.
#[test]
fn held_out_lines_equal_those_of_the_training_script() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/textline/heldout");
    let rows = fs::read_to_string(folder.join("prepared.tsv")).unwrap();
    for row in rows.lines() {
        let [file, width, mean] = row.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let picture = picture::read(&fs::read(folder.join(file)).unwrap()).unwrap();
        let line = line_image::prepare(&picture, 32);
        assert_eq!(line.width, width.parse::<usize>().unwrap(), "{file}");
        let sum: f64 = line.values.iter().map(|v| f64::from(*v)).sum();
        let error = (sum / line.values.len() as f64 - mean.parse::<f64>().unwrap()).abs();
        assert!(error < 1e-5, "{file}: mean off by {error}");
    }
    assert!(rows.lines().count() >= 200);
}
