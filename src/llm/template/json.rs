//! The filter `tojson`: values as Python's `json.dumps` writes them, which is what models saw in training.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::{DEPTH, MAX_BYTES, limits};

/// Widest indentation of a level, and longest separator: a list has as many of them as it likes.
const MAX_WIDTH: usize = 16;

/// A value on its way to a text.
struct Json {
    indent: Option<usize>,
    between_items: String,
    behind_key: String,
    is_ascii: bool,
    out: String,
}

/// The filter, with the arguments of `json.dumps` that templates use; characters outside ASCII stay what they are,
/// unless it is told otherwise. Keys are sorted, with `sort_keys` or without.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = kwargs.get::<Option<usize>>("indent")?.map(|n| n.min(MAX_WIDTH));
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let _: Option<bool> = kwargs.get("sort_keys")?;
    let is_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let default = || vec![if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()];
    let separators = <[String; 2]>::try_from(separators.unwrap_or_else(default)).ok();
    let short = separators.filter(|both| both.iter().all(|s| s.len() <= MAX_WIDTH));
    let Some([between_items, behind_key]) = short else {
        let what = format!("tojson: separators must be two texts of at most {MAX_WIDTH} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    };
    let mut json = Json { indent, between_items, behind_key, is_ascii, out: String::new() };
    json.write(value, 0)?;
    Ok(json.out)
}

impl Json {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH || self.out.len() + value.as_str().map_or(0, str::len) > MAX_BYTES {
            return Err(Error::new(ErrorKind::InvalidOperation, limits::TOO_LONG));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::Seq | ValueKind::Iterable => self.all(value, depth, ['[', ']'])?,
            ValueKind::Map => self.all(value, depth, ['{', '}'])?,
            _ => self.text(&value.to_string()),
        }
        Ok(())
    }

    /// The elements of a list, or what a map has under its keys.
    fn all(&mut self, value: &Value, depth: usize, [open, close]: [char; 2]) -> Result<(), Error> {
        self.out.push(open);
        let mut is_first = true;
        for item in value.try_iter()? {
            if !is_first {
                self.out.push_str(&self.between_items);
            }
            is_first = false;
            self.line(depth + 1);
            if value.kind() == ValueKind::Map {
                self.text(&item.to_string());
                self.out.push_str(&self.behind_key);
                self.write(&value.get_item(&item)?, depth + 1)?;
            } else {
                self.write(&item, depth + 1)?;
            }
        }
        if !is_first {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(n) = self.indent {
            self.out.push('\n');
            self.out.extend(core::iter::repeat_n(' ', n * depth));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c >= ' ' && (c.is_ascii() || !self.is_ascii) => self.out.push(c),
                c => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        self.out.push('"');
    }
}
