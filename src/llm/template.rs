//! Chat templates: from the messages of a conversation to the text that a model was trained on.
//!
//! Files carry a Jinja template. It runs with the settings that the programs it was written for have
//! (blocks trimmed, Python's methods on strings and lists, `raise_exception`, `strftime_now`, `tojson`
//! as Python writes JSON), and with limits on steps, depth and length: a template is data from a file.

mod jinja;
mod json;
mod limits;
mod methods;

use core::fmt;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Environment, Error, ErrorKind, Value, context};

use super::channels::without_thoughts;
use super::tokenizer::Tokenizer;
use crate::import::ImportError;
use crate::import::gguf::Metadata;

/// Steps that a template may take: real ones need some hundred per message.
const FUEL: u64 = 2_000_000;

/// Calls inside each other.
const DEPTH: usize = 100;

/// Bytes of the longest result.
const MAX_BYTES: usize = 64 << 20;

/// Name of the template in messages.
const NAME: &str = "chat_template";

/// The format that most models without a template of their own understand.
const CHATML: &str = "\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}";

/// Something said in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TemplateError {
    /// The entry of the metadata is no text.
    Metadata(ImportError),
    /// It is not written as a template, or something in it went wrong.
    Template(String),
    /// It refuses the conversation, and says why.
    Refused(String),
    /// It does not come to an end.
    Endless,
    /// Its result, or a text on the way to it, is too long.
    TooLong,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata(e) => e.fmt(f),
            Self::Template(what) => write!(f, "the model's chat template cannot be used: {what}"),
            Self::Refused(why) => write!(f, "the model's chat template refuses this: {why}"),
            Self::Endless => {
                write!(f, "the model's chat template does not come to an end within {FUEL} steps")
            }
            Self::TooLong => {
                write!(f, "the model's chat template cannot be used: {}", limits::TOO_LONG)
            }
        }
    }
}

impl core::error::Error for TemplateError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Metadata(e) => Some(e),
            _ => None,
        }
    }
}

impl From<ImportError> for TemplateError {
    fn from(e: ImportError) -> Self {
        Self::Metadata(e)
    }
}

/// Before what a template says itself when it refuses.
const REFUSED: &str = "refused: ";

impl From<Error> for TemplateError {
    fn from(e: Error) -> Self {
        if e.kind() == ErrorKind::OutOfFuel {
            return Self::Endless;
        }
        let detail = e.detail().unwrap_or_default();
        if detail == limits::TOO_LONG {
            return Self::TooLong;
        }
        if let Some(why) = detail.strip_prefix(REFUSED) {
            return Self::Refused(shortened(why));
        }
        let line = e.line().map(|l| format!(" in line {l}")).unwrap_or_default();
        let colon = if detail.is_empty() { "" } else { ": " };
        Self::Template(format!("{}{colon}{}{line}", e.kind(), shortened(detail)))
    }
}

/// The beginning of what a template says, which may be as long as it likes.
fn shortened(said: &str) -> String {
    const MOST: usize = 400;
    match said.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &said[..end]),
        None => said.to_owned(),
    }
}

/// The template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    /// Whether the model's texts have channels.
    channels: bool,
    is_fallback: bool,
}

impl ChatTemplate {
    /// The template of a file, or ChatML if it has none.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn from_gguf(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let source = metadata.str("tokenizer.chat_template")?.filter(|s| !s.is_empty());
        let mut this = Self::new(source.unwrap_or(CHATML), tokenizer)?;
        this.is_fallback = source.is_none();
        Ok(this)
    }

    /// A template from its source.
    ///
    /// # Errors
    /// [`TemplateError::Template`] if it is not written as a template.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let mut environment = Environment::empty();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_recursion_limit(DEPTH);
        jinja::install(&mut environment);
        limits::install(&mut environment);
        environment.add_function("raise_exception", raise);
        environment
            .add_function("strftime_now", |format: &str| strftime(format, SystemTime::now()));
        environment.add_filter("tojson", json::tojson);
        // As Jinja reads a template.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let (source, longest) = limits::checked(&without_marks(&source))?;
        // A step writes no more than the longest text between tags, which nobody counts.
        let steps = limits::MAX_TOTAL / longest.max(1) as u64;
        environment.set_fuel(Some(FUEL.min(steps)));
        environment.add_template_owned(NAME, source)?;
        let text = |id: Option<u32>| {
            id.map(|id| String::from_utf8_lossy(tokenizer.piece(id)).into_owned())
                .unwrap_or_default()
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let channels = tokenizer.channels().is_some();
        Ok(Self { environment, bos, eos, channels, is_fallback: false })
    }

    /// Whether the file had no template, so that ChatML is used.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// The text of a conversation, with the beginning of the model's next message behind it. What looks
    /// like a special token in it is meant as one, so what people say should be changed by
    /// [`Tokenizer::shield`] before.
    ///
    /// # Errors
    /// [`TemplateError`] if the template refuses the conversation, or does not come to an end.
    pub fn render(&self, messages: &[Message]) -> Result<String, TemplateError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|m| {
                let answers = self.channels && m.role == "assistant";
                let content = if answers { without_thoughts(&m.content) } else { &m.content };
                context! { role => m.role.as_str(), content => content }
            })
            .collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => Value::from(()),
            documents => Value::from(()),
        };
        let mut out = Limited { bytes: Vec::new(), full: false };
        let template = self.environment.get_template(NAME)?;
        let result = template.render_captured_to(context, &mut out);
        if out.full {
            return Err(TemplateError::TooLong);
        }
        result?;
        String::from_utf8(out.bytes).map_err(|e| TemplateError::Template(e.to_string()))
    }
}

/// Bytes up to a limit.
struct Limited {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_BYTES {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Some templates mark what the model is trained on with `{% generation %}`; the marks become blocks
/// that do nothing, white space around them as they say.
fn without_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |e| e + 2);
        let (tag, after) = tag.split_at(end);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        match inner.trim_matches(['-', '+', ' ', '\t', '\n']) {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

fn raise(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSED}{message}")))
}

/// A date and time as C's `strftime` writes it, in UTC and English.
fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[month as usize - 1];
    let week_day = DAYS[((days + 4) % 7) as usize];
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = rest.next();
        let plain = code == Some('-');
        if plain {
            code = rest.next();
        }
        let two = |n: u64| if plain { n.to_string() } else { format!("{n:02}") };
        out += &match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => week_day.to_owned(),
            Some('a') => week_day[..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            other => {
                let what = format!("strftime_now does not know %{}", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        };
    }
    Ok(out)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Year, month and day of a number of days after 1 January 1970, by counting from 1 March of the year
/// 0, so that leap days come last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds, format| {
            strftime(format, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap_or_default()
        };
        assert_eq!(at(0, "%A %d %B %Y %T"), "Thursday 01 January 1970 00:00:00");
        assert_eq!(at(951_782_400, "%F %a"), "2000-02-29 Tue");
        assert_eq!(at(1_709_251_199, "%e %b %y, %I:%M %p"), "29 Feb 24, 11:59 PM");
        assert_eq!(at(4_107_542_400, "%-d.%-m.%Y%%"), "1.3.2100%");
        assert!(strftime("%Q", UNIX_EPOCH).is_err());
    }

    #[test]
    fn marks_become_blocks_that_do_nothing() {
        let source = "a{%- generation -%}b{% endgeneration %}{% set generation = 1 %}";
        let expected = "a{%- if true -%}b{% endif %}{% set generation = 1 %}";
        assert_eq!(without_marks(source), expected);
        assert_eq!(without_marks("{% x"), "{% x");
    }
}
