//! The preparation of line pictures gives what the training script's preparation gives.

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
