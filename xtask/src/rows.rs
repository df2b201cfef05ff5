//! The table of instruction sets, `intrinsics/src/table.rs`, as the commands here read it.

use std::fs;

/// Where the table is.
pub(crate) const TABLE: &str = "intrinsics/src/table.rs";

/// One row.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    /// The printed name, and that of its file.
    pub(crate) name: String,
    /// The condition under which a build has it.
    pub(crate) cfg: String,
    /// Identifier, element type and the numbers of each line.
    pub(crate) lines: Vec<Line>,
}

/// The kernels of one element type.
#[derive(Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) dtype: String,
    /// All that follows the element type.
    rest: String,
}

impl Line {
    /// The number after a word, for instance `lanes`.
    pub(crate) fn number(&self, word: &str) -> Option<usize> {
        let at = self.rest.find(&format!("{word} "))? + word.len();
        let text = self.rest[at..].trim_start();
        text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())].parse().ok()
    }
}

impl Row {
    /// The target that this row is made for: that of its architecture, or none if it is for all.
    pub(crate) fn target(&self) -> Option<&'static str> {
        let arch = self.cfg.split("target_arch = \"").nth(1)?.split('"').next()?;
        Some(match arch {
            "x86_64" => "x86_64-unknown-linux-gnu",
            "aarch64" => "aarch64-unknown-linux-gnu",
            "wasm32" => "wasm32-unknown-unknown",
            _ => "thumbv7em-none-eabihf",
        })
    }

    /// The Cargo features that its condition names.
    pub(crate) fn cargo_features(&self) -> Vec<&str> {
        let parts = self.cfg.split("feature = \"").skip(1);
        parts.filter_map(|part| part.split('"').next()).collect()
    }
}

/// All rows of the table in the working folder.
///
/// # Errors
/// If it cannot be read, or has no rows.
pub(crate) fn read() -> Result<Vec<Row>, String> {
    let text = fs::read_to_string(TABLE).map_err(|e| format!("{TABLE}: {e}"))?;
    let rows = parse(&text);
    if rows.is_empty() { Err(format!("{TABLE}: no rows found")) } else { Ok(rows) }
}

/// Rows look as the documentation of the table says: `Isa = isa over Base, if cfg, [...] { lines }`.
pub(crate) fn parse(text: &str) -> Vec<Row> {
    let code: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.starts_with("//")).collect();
    let code = code.join(" ");
    let mut rows = Vec::new();
    for part in code.split('}') {
        let Some((head, parts)) = part.rsplit_once('{') else { continue };
        let Some((names, rest)) = head.rsplit_once(" over ") else { continue };
        let name = names.rsplit(" = ").next().unwrap_or("");
        let Some((cfg, _)) = rest.split_once("if ").and_then(|(_, r)| r.rsplit_once(", [")) else {
            continue;
        };
        if name.contains('$') {
            continue;
        }
        let parts = parts.split(';').filter_map(|part| part.split_once(": "));
        let lines = parts.filter_map(|(id, rest)| {
            let mut words = rest.splitn(3, ", ").skip(1);
            let dtype = words.next()?.to_owned();
            Some(Line { id: id.trim().into(), dtype, rest: words.next().unwrap_or("").into() })
        });
        rows.push(Row { name: name.into(), cfg: cfg.into(), lines: lines.collect() });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_are_written() {
        let rows = parse(
            "/// Isa = isa over Base, if cfg, [] {\n\
             Two = two over One, if all(feature = \"f\", target_arch = \"aarch64\"), \n[\"a\" \"b\"] {\n\
             two_f32: tile_two_f32, f32, lanes 4, unroll 2,\n  conv [[1 1 4]];\n\
             two_i8: tile_two_i8, i8, lanes 16;\n}\n",
        );
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].name.as_str(), rows[0].cargo_features()), ("two", vec!["f"]));
        assert_eq!(rows[0].target(), Some("aarch64-unknown-linux-gnu"));
        let lines = &rows[0].lines;
        assert_eq!((lines[0].id.as_str(), lines[0].number("unroll")), ("two_f32", Some(2)));
        assert_eq!((lines[1].dtype.as_str(), lines[1].number("lanes")), ("i8", Some(16)));
    }
}
