//! The README says what is true.

use std::fs;
use std::path::Path;

use tilewright::import::onnx::supported_operators;

#[test]
fn operators_in_the_readme_are_those_of_the_importer() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(path).unwrap();
    let (_, rest) = readme.split_once("<!-- operators:").unwrap();
    let (_, rest) = rest.split_once("-->\n").unwrap();
    let (list, _) = rest.split_once("<!-- end of operators -->").unwrap();
    let listed: Vec<&str> = list.split([',', '\n', ' ']).filter(|s| !s.is_empty()).collect();
    let known: Vec<&str> = supported_operators().into_iter().map(|(name, _)| name).collect();
    assert_eq!(listed, known, "the list should read: {}", known.join(", "));
}
