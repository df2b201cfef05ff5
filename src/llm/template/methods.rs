//! Methods of Python's texts that templates call, and the library for templates does not have or not with all arguments.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

/// Calls a method of a text, as Python 3 does.
///
/// # Errors
/// [`ErrorKind::UnknownMethod`] if it is none of those here; what is wrong with the arguments.
pub(super) fn call(value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else { return Err(ErrorKind::UnknownMethod.into()) };
    let argument = || from_args(arguments).map(|(argument,): (&str,)| argument);
    Ok(match method {
        "split" => split(text, arguments, false)?,
        "rsplit" => split(text, arguments, true)?,
        "partition" => partition(text, argument()?, false)?,
        "rpartition" => partition(text, argument()?, true)?,
        "removeprefix" => text.strip_prefix(argument()?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(argument()?).unwrap_or(text).into(),
        "index" => match text.find(argument()?) {
            Some(at) => text[..at].chars().count().into(),
            None => return Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        },
        _ => return Err(ErrorKind::UnknownMethod.into()),
    })
}

fn no_separator() -> Error {
    Error::new(ErrorKind::InvalidOperation, "empty separator")
}

/// `partition` and `rpartition`: what is before a text, the text, what is behind it.
fn partition(text: &str, at: &str, from_end: bool) -> Result<Value, Error> {
    if at.is_empty() {
        return Err(no_separator());
    }
    let found = if from_end { text.rfind(at) } else { text.find(at) };
    let none = if from_end { 0 } else { text.len() };
    let (start, end) = found.map_or((none, none), |start| (start, start + at.len()));
    Ok([&text[..start], &text[start..end], &text[end..]].into_iter().collect())
}

/// `split` and `rsplit`: at a text or at white space, at most so many times, from the beginning or the end on.
fn split(text: &str, arguments: &[Value], from_end: bool) -> Result<Value, Error> {
    let (at, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(arguments)?;
    let at = at.map_or_else(|| named.get("sep"), |at| Ok(Some(at)))?;
    let most = most.map_or_else(|| named.get("maxsplit"), |most| Ok(Some(most)))?;
    named.assert_all_used()?;
    // No number, or one below zero: as often as there is something to split at.
    let parts =
        most.and_then(|n: i64| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut list: Vec<&str> = match at {
        Some("") => return Err(no_separator()),
        Some(at) if from_end => text.rsplitn(parts, at).collect(),
        Some(at) => text.splitn(parts, at).collect(),
        None => words(text, parts, from_end),
    };
    if from_end {
        list.reverse();
    }
    Ok(list.into_iter().collect())
}

/// What is between white space, the last of `parts` with all that is left.
fn words(text: &str, parts: usize, from_end: bool) -> Vec<&str> {
    let trim = if from_end { str::trim_end } else { str::trim_start };
    let (mut list, mut rest) = (Vec::new(), trim(text));
    while !rest.is_empty() {
        let at = match list.len() + 1 < parts {
            true if from_end => rest.rfind(char::is_whitespace),
            true => rest.find(char::is_whitespace),
            false => None,
        };
        let Some(at) = at else {
            list.push(rest);
            break;
        };
        let (before, behind) = rest.split_at(at);
        let (word, others) =
            if from_end { (behind.trim_start(), before) } else { (before, behind) };
        list.push(word);
        rest = trim(others);
    }
    list
}
