//! The embedded text-line reader on pictures that its training has not seen.
//!
//! `models/textline/heldout` has the pictures and `labels.tsv`: file, `clean` or `damaged`, text.

#![cfg(feature = "cli")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use tilewright::io::picture;
use tilewright::task::{self, Decoder, Input, Output, Task, line_image};
use tilewright::{Model, Session, SessionOptions, Tensor};

/// Fewest single-character edits that turn `a` into `b`.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[test]
fn edit_distance_by_hand() {
    let distance = |a: &str, b: &str| {
        edit_distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
    };
    assert_eq!(
        [("", "abc"), ("kitten", "sitting"), ("same", "same"), ("ab", "ba")]
            .map(|(a, b)| distance(a, b)),
        [3, 3, 0, 2]
    );
}

#[test]
fn character_error_rate_on_the_held_out_lines() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/textline");
    let model = Arc::new(Model::load(folder.join("textline.onnx")).unwrap());
    let task = Task::from_metadata(model.metadata()).unwrap();
    let Some(Input::LineImage { height }) = task.input else { panic!("input {:?}", task.input) };
    let Some(Output::Text { ctc, decoder }) = task.output else { panic!("no text") };
    assert_eq!(decoder, Decoder::Greedy);
    let input = model.inputs()[0].name.clone();
    let mut session = Session::new(model, SessionOptions::default()).unwrap();

    // Per sort: lines, edits and characters.
    let mut sums: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    let labels = fs::read_to_string(folder.join("heldout/labels.tsv")).unwrap();
    for label in labels.lines() {
        let [file, sort, text] =
            label.splitn(3, '\t').collect::<Vec<_>>().try_into().expect("three columns");
        let file = fs::read(folder.join("heldout").join(file)).unwrap();
        let line = line_image::prepare(&picture::read(&file).unwrap(), height);
        let x = Tensor::from_slice(&[1, 1, line.height, line.width], &line.values).unwrap();
        let outputs = session.run(&[(&input, x)]).unwrap();
        let read = task::read_text(&outputs[0].1, &ctc, decoder).unwrap().text;
        let expected: Vec<char> = text.chars().collect();
        let [lines, edits, characters] = sums.entry(sort.to_owned()).or_default();
        *lines += 1;
        *edits += edit_distance(&expected, &read.chars().collect::<Vec<_>>());
        *characters += expected.len();
    }
    let lines: usize = sums.values().map(|s| s[0]).sum();
    assert!(lines >= 200, "only {lines} lines");
    // The goals of the project for this set.
    for (sort, limit) in [("clean", 0.5), ("damaged", 1.0)] {
        let [lines, edits, characters] = sums[sort];
        let rate = 100.0 * edits as f64 / characters as f64;
        println!(
            "{sort}: {lines} lines, {edits} edits in {characters} characters, CER {rate:.3} %"
        );
        assert!(rate <= limit, "{sort}: character error rate {rate:.3} %, at most {limit} %");
    }
}
