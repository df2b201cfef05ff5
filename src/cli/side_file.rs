//! Files that say of a network what its metadata do not.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use tilewright::task::keys;

use super::Failure;

/// Largest file that is read: labels of a hundred thousand classes fit.
const MAX_BYTES: usize = 8 << 20;

/// What all keys begin with; files may leave it out.
const PREFIX: &str = "tilewright.";

/// The entries of a JSON file and of a file of labels, under the names of metadata entries.
pub(super) fn entries(
    entries: Option<&Path>,
    labels: Option<&Path>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    if let Some(path) = entries {
        let text = read(path)?;
        found = parse(&text).map_err(|e| Failure::new(path.display(), e))?;
    }
    if let Some(path) = labels {
        found.insert(keys::LABELS.to_owned(), read(path)?);
    }
    Ok(found)
}

/// A mistake in the entries of a file.
pub(super) fn wrong(path: Option<&Path>, error: &tilewright::task::TaskError) -> Failure {
    match path {
        Some(path) => Failure::new(path.display(), error),
        None => Failure(error.to_string()),
    }
}

/// A text that people write or tools make for them; what says no size of itself, such as a device,
/// is not read for ever.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    let fail =
        |e: &dyn core::fmt::Display| Failure::new(format!("cannot read {}", path.display()), e);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| fail(&e))?;
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    if bytes.len() > MAX_BYTES {
        return Err(fail(&format!("it is larger than {} MiB", MAX_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| fail(&"it is not text in UTF-8"))
}

/// Refuses what has no end, or waits for somebody, where a file is read by its size. That there is
/// none is no mistake.
pub(super) fn check_regular(path: &Path) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            Err(Failure::new(path.display(), "it is not a regular file"))
        }
        _ => Ok(()),
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, Failure> {
    let object: BTreeMap<String, Value> = serde_json::from_str(text)?;
    let mut found = BTreeMap::new();
    for (key, value) in object {
        let name = if key.starts_with(PREFIX) { key.clone() } else { format!("{PREFIX}{key}") };
        if !keys::ALL.contains(&name.as_str()) {
            let known: Vec<&str> =
                keys::ALL.iter().map(|k| k.strip_prefix(PREFIX).unwrap_or(k)).collect();
            return Err(Failure(format!("there is no entry `{key}`, only: {}", known.join(", "))));
        }
        let text = match &value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Array(items) => list(items).ok_or_else(|| {
                Failure(format!("`{key}` must list only strings or only numbers"))
            })?,
            _ => return Err(Failure(format!("`{key}` must be a string, a number or a list"))),
        };
        found.insert(name, text);
    }
    Ok(found)
}

/// A list in the form of metadata: labels a line each, numbers between commas.
fn list(items: &[Value]) -> Option<String> {
    let strings: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
    let numbers = || {
        let number = |v: &Value| v.is_number().then(|| v.to_string());
        items.iter().map(number).collect::<Option<Vec<String>>>()
    };
    match strings {
        Some(lines) => Some(lines.join("\n")),
        None => numbers().map(|n| n.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_numbers_become_metadata() {
        let text = r#"{"labels": ["a", "b c"], "input.mean": [1, 2.5, 3],
                       "tilewright.detect.threshold": 0.25, "input": "image"}"#;
        let found = parse(text).unwrap();
        let expected = [
            ("tilewright.detect.threshold", "0.25"),
            ("tilewright.input", "image"),
            ("tilewright.input.mean", "1,2.5,3"),
            ("tilewright.labels", "a\nb c"),
        ];
        assert!(found.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("{", "EOF"),
            (r#"{"inptu": "image"}"#, "inptu"),
            (r#"{"labels": [1, "a"]}"#, "labels"),
            (r#"{"labels": {}}"#, "labels"),
        ] {
            let message = parse(text).unwrap_err().0;
            assert!(message.contains(part), "{message}");
        }
    }
}
