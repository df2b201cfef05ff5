//! Printing: results to standard output, notes to standard error.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;

use super::Failure;

const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Prints a result. Styles are left out where they are not wanted (`NO_COLOR`, files, pipes). A
/// reader that has gone away is not an error.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout();
    match out.write_all(harmless(text).as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new("cannot write the result", e))
        }
        _ => Ok(()),
    }
}

/// Prints one object on one line.
pub(super) fn print_json(object: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(object)?;
    // Left of control characters are those above ASCII, and they stand in strings.
    let escape = |c: char| format!("\\u{:04x}", u32::from(c));
    print(&(with_escapes(&text, char::is_control, escape) + "\n"))
}

/// Text from a file on one line: control characters, which a terminal would obey, escaped.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    with_escapes(text, char::is_control, |c| c.escape_default().to_string())
}

/// Text of which only line breaks and our own styles are more than characters.
fn harmless(text: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed("");
    for (i, part) in text.split(BOLD).enumerate() {
        for (j, part) in part.split(PLAIN).enumerate() {
            out += ["", PLAIN, BOLD][if j > 0 { 1 } else { 2 * usize::from(i > 0) }];
            let control = |c: char| c.is_control() && c != '\n';
            out += with_escapes(part, control, |c| c.escape_default().to_string());
        }
    }
    out
}

fn with_escapes(
    text: &str,
    which: impl Fn(char) -> bool,
    escape: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&which) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if which(c) { escape(c) } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// One line on standard error; there is nobody to tell when that fails.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(text));
}

/// Text that stands out on a terminal.
pub(super) fn bold(text: &str) -> String {
    format!("{BOLD}{text}{PLAIN}")
}

/// Rows of text in aligned columns under bold heads.
pub(super) struct Table {
    columns: Vec<Column>,
}

struct Column {
    head: &'static str,
    numbers: bool,
    cells: Vec<String>,
}

impl Table {
    /// Columns by their heads; a head that begins with `>` is one of numbers, aligned right.
    pub(super) fn new(heads: &[&'static str]) -> Self {
        let column = |head: &&'static str| {
            let plain = head.trim_start_matches('>');
            Column { head: plain, numbers: plain.len() < head.len(), cells: Vec::new() }
        };
        Self { columns: heads.iter().map(column).collect() }
    }

    /// One more row.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.cells.push(visible(&cell).into_owned());
        }
    }

    /// The lines, each ended.
    pub(super) fn text(&self) -> String {
        let length = |text: &str| text.chars().count();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .map(|c| c.cells.iter().map(|t| length(t)).max().unwrap_or(0).max(length(c.head)))
            .collect();
        let rows = self.columns.first().map_or(0, |c| c.cells.len());
        let line = |cell: &dyn Fn(&Column) -> String| {
            let mut line = String::new();
            for (column, &width) in self.columns.iter().zip(&widths) {
                let text = cell(column);
                let pad = " ".repeat(width - length(&text));
                let (before, after) =
                    if column.numbers { (pad, String::new()) } else { (String::new(), pad) };
                line.push_str(&before);
                line.push_str(&text);
                line.push_str(&after);
                line.push_str("  ");
            }
            line.truncate(line.trim_end().len());
            line
        };
        let mut out = bold(&line(&|c| c.head.to_owned()));
        out.push('\n');
        for i in 0..rows {
            out.push_str(&line(&|c| c.cells[i].clone()));
            out.push('\n');
        }
        out
    }
}

/// Text that may stand in an element or an attribute of an SVG file.
pub(super) fn escaped(text: &str) -> String {
    visible(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A duration in a unit that fits.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 999.5e-6 => format!("{:.1} µs", s * 1e6),
        s if s < 0.9995 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// A count with a unit prefix: `1.24 M`.
pub(super) fn count(value: f64) -> String {
    match value {
        v if v < 1e3 => format!("{v}"),
        v if v < 1e6 => format!("{:.1} k", v / 1e3),
        v if v < 1e9 => format!("{:.2} M", v / 1e6),
        v => format!("{:.2} G", v / 1e9),
    }
}

/// Bytes in a binary unit.
pub(super) fn bytes(value: usize) -> String {
    match value as f64 {
        v if v < 1024.0 => format!("{v} B"),
        v if v < 1024.0 * 1024.0 => format!("{:.1} KiB", v / 1024.0),
        v if v < 1024.0 * 1024.0 * 1024.0 => format!("{:.1} MiB", v / 1024.0 / 1024.0),
        v => format!("{:.1} GiB", v / 1024.0 / 1024.0 / 1024.0),
    }
}

/// A value of a tensor with about five digits.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs();
    if !(1e-4..1e7).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let decimals = (4.0 - magnitude.log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// What is said of nodes that no plan has yet.
pub(super) fn waiting(nodes: usize) -> String {
    format!("{nodes} more nodes are planned in a run: shapes depend on what it computes")
}

/// Extents as `[1, 3, 8]`.
pub(super) fn shape(dims: &[usize]) -> String {
    format!("{dims:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.25, "-0.25"),
            (1234.5678, "1234.6"),
            (0.000123456, "0.000123"),
            (1e-9, "1.000e-9"),
            (2.5e9, "2.500e9"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!((duration(2.5e-6), duration(0.0123)), ("2.5 µs".into(), "12.30 ms".into()));
        assert_eq!((bytes(2048), count(1.5e6)), ("2.0 KiB".into(), "1.50 M".into()));
    }

    #[test]
    fn control_characters_are_seen_and_not_obeyed() {
        assert_eq!(visible("a\u{1b}[2Jb\n\u{9b}é"), "a\\u{1b}[2Jb\\n\\u{9b}é");
        let text = format!("{}\n\u{1b}]0;x\u{7}{}", bold("b"), bold("\r"));
        assert_eq!(harmless(&text), format!("{}\n\\u{{1b}}]0;x\\u{{7}}{}", bold("b"), bold("\\r")));
        assert_eq!(harmless("plain\n"), "plain\n");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["name", ">time"]);
        table.row(["é".into(), "1".into()]);
        table.row(["longer".into(), "20000".into()]);
        let lines = ["\u{1b}[1mname     time\u{1b}[0m", "é           1", "longer  20000", ""];
        assert_eq!(table.text(), lines.join("\n"));
    }
}
