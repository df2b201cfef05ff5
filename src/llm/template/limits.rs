//! Limits on what a template makes on its way: a text that is joined to itself doubles, and no number of
//! steps that real templates need keeps it small.
//!
//! [`checked`] puts a filter around every expression that joins something or makes a list, and around all
//! that is kept under a name. The filter, and whoever writes a value, count bytes. Filters whose result can
//! be much longer than what they are given say beforehand how long it will be.

use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::{Kwargs, Object, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::methods;

/// Bytes of the longest text, also of all that is in a list.
const MAX_VALUE: usize = 8 << 20;

/// Bytes of all texts that are kept or written while a template runs.
pub(super) const MAX_TOTAL: u64 = 512 << 20;

/// Joins in one expression: what it makes before it is looked at is so many times the longest text.
const MAX_JOINS: usize = 64;

/// Lists inside each other.
const MAX_DEPTH: usize = 64;

/// Largest number of characters that a filter is asked to fill up to.
const MAX_WIDTH: usize = 9999;

/// What errors say, to be told apart from others.
pub(super) const TOO_LONG: &str = "the texts that it makes are too long";

/// Name of the filter that looks at values.
const CHECK: &str = "tilewright_checked";

fn too_long() -> Error {
    Error::new(ErrorKind::InvalidOperation, TOO_LONG)
}

/// Teaches an environment to count.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter(CHECK, |state: &State<'_, '_>, value: Value| {
        charge(state, &value)?;
        Ok::<_, Error>(value)
    });
    environment.set_formatter(|out, state, value| {
        charge(state, value)?;
        escape_formatter(out, state, value)
    });
    environment.add_filter("built_in_replace", filters::replace);
    environment.add_filter("built_in_join", filters::join);
    environment.add_filter("built_in_indent", filters::indent);
    environment.add_filter("built_in_format", filters::format);
    guard(environment, "replace", "built_in_replace", |a| replaced(&a[0], &a[1..]));
    guard(environment, "join", "built_in_join", |a| joined(&a[0], a.get(1)));
    guard(environment, "indent", "built_in_indent", |a| indented(&a[0], &a[1..]));
    guard(environment, "format", "built_in_format", |a| filled(&a[0]));
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let size = match method {
            "replace" => replaced(value, arguments),
            "join" => arguments.first().map_or(0, |list| joined(list, Some(value))),
            "format" => filled(value),
            _ => 0,
        };
        if size > MAX_VALUE {
            return Err(too_long());
        }
        match methods::call(value, method, arguments) {
            Err(e) if e.kind() == ErrorKind::UnknownMethod => {
                unknown_method_callback(state, value, method, arguments)
            }
            called => called,
        }
    });
}

/// Makes a filter of one that is there, refusing results of too many bytes.
fn guard(
    environment: &mut Environment<'_>,
    name: &'static str,
    built_in: &'static str,
    size: fn(&[Value]) -> usize,
) {
    environment.add_filter(name, move |state: &State<'_, '_>, arguments: Rest<Value>| {
        if !arguments.is_empty() && size(&arguments) > MAX_VALUE {
            return Err(too_long());
        }
        state.apply_filter(built_in, &arguments)
    });
}

/// Bytes of a text with each occurrence of the first argument replaced by the second.
fn replaced(value: &Value, arguments: &[Value]) -> usize {
    let text = |value: Option<&Value>| value.map(ToString::to_string).unwrap_or_default();
    let (whole, from, to) = (value.to_string(), text(arguments.first()), text(arguments.get(1)));
    let count = whole.matches(from.as_str()).count();
    whole.len().saturating_add(count.saturating_mul(to.len()))
}

/// Bytes of a list written out with `joiner` between its elements.
fn joined(list: &Value, joiner: Option<&Value>) -> usize {
    let between = joiner.and_then(Value::as_str).map_or(0, str::len);
    let count = list.as_str().map_or_else(|| list.len(), |text| Some(text.chars().count()));
    let mut left = MAX_VALUE;
    match weigh(list, 0, &mut left) {
        Ok(()) => (MAX_VALUE - left).saturating_add(count.unwrap_or(0).saturating_mul(between)),
        Err(_) => usize::MAX,
    }
}

/// Bytes of a text with as many spaces before each line as one of the arguments may say.
fn indented(value: &Value, arguments: &[Value]) -> usize {
    let mut most = 4;
    for argument in arguments {
        let named = Kwargs::try_from(argument.clone()).ok().filter(|_| argument.is_kwargs());
        let width = match named {
            Some(named) => named.peek::<Option<usize>>("width").ok().flatten(),
            None => argument.as_usize(),
        };
        most = most.max(width.unwrap_or(0));
    }
    let text = value.to_string();
    let lines = text.split('\n').count();
    if most > MAX_WIDTH { usize::MAX } else { text.len().saturating_add(lines * most) }
}

/// More than the longest text, if a text asks for something to be filled up to more than [`MAX_WIDTH`].
fn filled(value: &Value) -> usize {
    let text = value.to_string();
    let wide = text.split(|c: char| !c.is_ascii_digit()).any(|number| number.len() > 4);
    // The width may also be one of the arguments.
    if wide || text.contains('*') { usize::MAX } else { 0 }
}

/// Bytes that were counted.
#[derive(Debug, Default)]
struct Total(AtomicU64);

impl Object for Total {}

/// Counts a value.
fn charge(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let mut left = MAX_VALUE;
    weigh(value, 0, &mut left)?;
    let bytes = (MAX_VALUE - left) as u64;
    let total = state.get_or_set_temp_object(CHECK, Total::default);
    let before = total.0.fetch_add(bytes, Ordering::Relaxed);
    if before.saturating_add(bytes) > MAX_TOTAL { Err(too_long()) } else { Ok(()) }
}

/// Takes the bytes that a value has when it is written out from `left`.
fn weigh(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_long());
    }
    let own = value.as_str().map_or(8, str::len);
    *left = left.checked_sub(own).ok_or_else(too_long)?;
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        for item in value.try_iter()? {
            weigh(&item, depth + 1, left)?;
            if value.kind() == ValueKind::Map {
                weigh(&value.get_item(&item)?, depth + 1, left)?;
            }
        }
    }
    Ok(())
}

/// A template with the filter where it belongs, and the bytes of the longest text between its tags.
///
/// # Errors
/// An expression with too many joins.
pub(super) fn checked(source: &str) -> Result<(String, usize), Error> {
    let (mut out, mut rest, mut longest) = (String::with_capacity(source.len() * 2), source, 0);
    loop {
        let tag = rest
            .match_indices('{')
            .find(|(at, _)| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
        let (between, tag) = rest.split_at(tag.map_or(rest.len(), |(at, _)| at));
        longest = longest.max(between.len());
        out.push_str(between);
        if tag.is_empty() {
            return Ok((out, longest));
        }
        let end =
            if tag.starts_with("{#") { tag.find("#}").map_or(tag.len(), |at| at + 2) } else { 0 };
        out.push_str(&tag[..end]);
        rest = &tag[end..];
        if end == 0 {
            let len = Tag::new(&mut out, rest).read(rest)?;
            let (tag, after) = rest.split_at(len);
            rest = after;
            let word = tag.strip_prefix("{%").unwrap_or_default();
            let word = word.trim_start_matches(['-', '+']).trim_start();
            if word
                .strip_prefix("raw")
                .is_some_and(|w| !w.starts_with(|c: char| c.is_alphanumeric()))
            {
                let len = raw(rest);
                longest = longest.max(len);
                out.push_str(&rest[..len]);
                rest = &rest[len..];
            }
        }
    }
}

/// Bytes up to the tag that ends a part in which nothing is a tag.
fn raw(rest: &str) -> usize {
    let ends =
        |tag: &str| tag[2..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw");
    let mut tags = rest.match_indices("{%").map(|(at, _)| at);
    tags.find(|at| ends(&rest[*at..])).unwrap_or(rest.len())
}

/// A part of a tag that is an expression by itself.
struct Part {
    /// Where it begins in the result.
    start: usize,
    joins: usize,
    /// Whether it is looked at if there are joins in it, and if there are none.
    checked: [bool; 2],
}

/// A tag on its way to the result.
struct Tag<'a> {
    out: &'a mut String,
    /// The part at hand, inside of others.
    parts: Vec<Part>,
    is_block: bool,
}

impl<'a> Tag<'a> {
    fn new(out: &'a mut String, tag: &str) -> Self {
        let part = Part { start: out.len(), joins: 0, checked: [false; 2] };
        Self { out, parts: vec![part], is_block: tag.starts_with("{%") }
    }

    /// Copies the tag that `text` begins with, and gives its bytes.
    fn read(&mut self, text: &str) -> Result<usize, Error> {
        let close = if self.is_block { "%}" } else { "}}" };
        let bytes = text.as_bytes();
        let mut at = 2;
        while matches!(bytes.get(at), Some(b'-' | b'+')) {
            at += 1;
        }
        self.out.push_str(&text[..at]);
        self.begin([false; 2]);
        while let Some(&c) = bytes.get(at) {
            let here = &text[at..];
            let control = usize::from(matches!(c, b'-' | b'+'));
            if self.parts.len() == 1 && here[control..].starts_with(close) {
                self.end()?;
                self.out.push_str(&here[..control + 2]);
                return Ok(at + control + 2);
            }
            let len = match c {
                b'\'' | b'"' => literal(here),
                b'!' | b'<' | b'>' | b'=' if bytes.get(at + 1) == Some(&b'=') => 2,
                _ => here.chars().next().map_or(1, char::len_utf8),
            };
            self.take(c, &here[..len])?;
            at += len;
        }
        Ok(text.len())
    }

    /// One more piece of the tag, which begins with `c`.
    fn take(&mut self, c: u8, piece: &str) -> Result<(), Error> {
        let nested = self.parts.len() > 1;
        match c {
            b'(' | b'[' | b'{' => {
                self.joins(usize::from(c != b'('));
                self.out.push_str(piece);
                self.parts.push(Part { start: self.out.len(), joins: 0, checked: [true, false] });
            }
            b')' | b']' | b'}' if nested => {
                self.end()?;
                self.parts.pop();
                self.out.push_str(piece);
            }
            b',' | b':' => {
                let checked = self.parts.last().map_or([false; 2], |p| p.checked);
                self.end()?;
                self.out.push_str(piece);
                self.begin(checked);
            }
            // What is behind it gets a name.
            b'=' if piece == "=" => {
                self.out.push_str(piece);
                self.begin(if nested { [true, false] } else { [self.is_block; 2] });
            }
            _ => {
                self.joins(usize::from(matches!(c, b'~' | b'+' | b'*')));
                self.out.push_str(piece);
            }
        }
        Ok(())
    }

    fn joins(&mut self, more: usize) {
        if let Some(part) = self.parts.last_mut() {
            part.joins += more;
        }
    }

    fn begin(&mut self, checked: [bool; 2]) {
        let start = self.out.len();
        if let Some(part) = self.parts.last_mut() {
            *part = Part { start, joins: 0, checked };
        }
    }

    /// Puts the filter around the part at hand, if it belongs there.
    fn end(&mut self) -> Result<(), Error> {
        let Some(&Part { start, joins, checked: [with_joins, always] }) = self.parts.last() else {
            return Ok(());
        };
        if joins > MAX_JOINS {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                format!("an expression joins more than {MAX_JOINS} texts or lists"),
            ));
        }
        let whole = self.out.split_off(start);
        let part = whole.trim();
        // Arguments that are a list of arguments begin with a star.
        if part.is_empty() || part.starts_with('*') || !(always || with_joins && joins > 0) {
            self.out.push_str(&whole);
        } else {
            let (before, after) = (whole.len() - whole.trim_start().len(), whole.trim_end().len());
            let _ = write!(self.out, "{}({part})|{CHECK}{}", &whole[..before], &whole[after..]);
        }
        Ok(())
    }
}

/// Bytes of the text in quotes that `text` begins with.
fn literal(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while let Some(&c) = bytes.get(at) {
        at += 1;
        match c {
            b'\\' => at += 1,
            c if c == bytes[0] => return at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_joins_or_is_kept_is_looked_at() {
        let check = |source: &str| checked(source).unwrap().0.replace(CHECK, "c");
        for (source, expected) in [
            ("a {{ b ~ c }} d", "a {{ b ~ c }} d"),
            ("{%- set x = a -%}", "{%- set x = (a)|c -%}"),
            ("{% set x=a ~ '~ %} \\' \"' %}", "{% set x=(a ~ '~ %} \\' \"')|c %}"),
            ("{{ f(a + b, [c], d='e') +}}", "{{ f((a + b)|c, ([c])|c, d='e') +}}"),
            ("{{ {'a': {'b': x ~ y}}}}", "{{ {'a': ({'b': (x ~ y)|c})|c}}}"),
            ("{% if a == b and c != d %}", "{% if a == b and c != d %}"),
            ("{% for m in ms[1:] + x %}", "{% for m in ms[1:] + x %}"),
            ("{{ f(*a, **b) }}{# {{ f(a ~ b) #}", "{{ f(*a, **b) }}{# {{ f(a ~ b) #}"),
            ("{% raw %}{{ (a ~ b) }}{%- endraw %}", "{% raw %}{{ (a ~ b) }}{%- endraw %}"),
            ("{{ (a ~ ", "{{ (a ~ "),
            ("{{ 'é", "{{ 'é"),
        ] {
            assert_eq!(check(source), expected);
        }
        assert_eq!(checked("ab{{ c }}def{# #}").unwrap().1, 3);
        assert!(checked(&format!("{{{{ a{} }}}}", " ~ a".repeat(MAX_JOINS + 1))).is_err());
    }
}
