//! Lists in the pages are those of the program.

use std::fs;

use tilewright::import::gguf;
use tilewright::import::onnx::{operators, supported_operators};

use crate::root;

/// Words between two comments of a page.
fn listed(page: &str, begin: &str, end: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (_, rest) = text.split_once(&format!("<!-- {begin}:")).unwrap();
    let (_, rest) = rest.split_once("-->\n").unwrap();
    let (list, _) = rest.split_once(&format!("<!-- end of {end} -->")).unwrap();
    list.split([',', '\n', ' ']).filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

#[test]
fn operators_in_the_readme_are_those_of_the_importer() {
    let known: Vec<&str> = supported_operators().into_iter().map(|(name, _)| name).collect();
    let listed = listed("README.md", "operators", "operators");
    assert_eq!(listed, known, "the list should read: {}", known.join(", "));
}

#[test]
fn operators_of_other_domains_are_those_of_the_importer() {
    for domain in ["com.microsoft", "ai.onnx.ml"] {
        let mut known: Vec<&str> =
            operators().filter(|op| op.domain == domain).map(|op| op.name).collect();
        known.sort_unstable();
        known.dedup();
        let listed = listed("docs/networks.md", domain, domain);
        assert_eq!(listed, known, "the list of {domain} should read: {}", known.join(", "));
    }
}

#[test]
fn architectures_are_those_of_the_program() {
    let known: Vec<&str> = tilewright::llm::architectures().collect();
    assert_eq!(listed("docs/models.md", "architectures", "architectures"), known);
}

/// Integers and doubles are tensors beside weights.
#[test]
fn types_of_weights_are_those_of_the_program() {
    let known =
        (0..64).filter_map(|number| gguf::dtype(number).ok().map(|dtype| dtype.to_string()));
    let known: Vec<String> = known
        .map(|name| name.to_uppercase())
        .filter(|name| !["I8", "I16", "I32", "I64", "F64"].contains(&&name[..]))
        .collect();
    assert_eq!(listed("docs/models.md", "types", "types"), known);
}
