//! What can be written on the command line for language models.

use std::path::PathBuf;

use crate::cli::args::{Format, backend, count, size};

/// Where a language model runs, and how.
#[derive(clap::Args, Debug)]
pub(crate) struct LlmArgs {
    /// Threads to use; without it one per core
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Backend to run on: cpu, opencl or rknn
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = backend)]
    pub(crate) backend: String,
    /// Device of the backend, for opencl: its number or a part of its name; `doctor` lists them
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Tokens that the model sees at a time; without it as many as it was trained for, at most 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(crate) ctx: Option<u32>,
    /// Type of the cache of keys and values
    #[arg(long, value_enum, default_value_t)]
    pub(crate) cache_type: CacheType,
    /// Let attention to prompts round to bf16, where the processor is faster so: a little less exact
    #[arg(long)]
    pub(crate) bf16: bool,
    /// Use the weights as they lie in the file: a faster start, and memory that the system can take back;
    /// prompts are as fast, quantised text is generated at half to two thirds of the speed
    #[arg(long)]
    pub(crate) no_repack: bool,
    /// Memory that cache and weights may take, such as 512M or 2G; without it 80 % of what is free
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory_limit: Option<usize>,
}

/// What `bench` measures of a language model.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Language models")]
pub(crate) struct BenchedArgs {
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = Self::LENGTHS.0, value_parser = count, conflicts_with = "kernels")]
    pub(crate) prompt_length: usize,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = Self::LENGTHS.1, value_parser = count, conflicts_with = "kernels")]
    pub(crate) generate_length: usize,
    /// Tokens in the context before those that are measured
    #[arg(long, value_name = "N", default_value_t = Self::LENGTHS.2, value_parser = count, conflicts_with = "kernels")]
    pub(crate) depth: usize,
    /// Type of the cache of keys and values
    #[arg(long, value_enum, default_value_t, conflicts_with = "kernels")]
    pub(crate) cache_type: CacheType,
    /// Let attention to prompts round to bf16, where the processor is faster so: a little less exact
    #[arg(long, conflicts_with = "kernels")]
    pub(crate) bf16: bool,
    /// Use weights as they lie in the file
    #[arg(long, conflicts_with = "kernels")]
    pub(crate) no_repack: bool,
}

impl BenchedArgs {
    /// Whether anything is not as it is without a word.
    pub(crate) fn says_something(&self) -> bool {
        let lengths = (self.prompt_length, self.generate_length, self.depth);
        let flags = self.bf16 || self.no_repack;
        lengths != Self::LENGTHS || self.cache_type != CacheType::default() || flags
    }

    /// Tokens of the prompt, to generate, and before them.
    const LENGTHS: (usize, usize, usize) = (512, 64, 0);
}

/// What `--ctx` is for `perplexity`.
const CTX: &str =
    "Tokens that the model sees at a time; without it 512, or as many as it was trained for";

/// Types of the cache.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CacheType {
    /// Half precision
    #[default]
    F16,
    /// Single precision: twice the memory
    F32,
    /// Blocks of bytes: about half the memory
    #[value(name = "q8_0")]
    Q8,
}

/// How tokens are chosen.
#[derive(clap::Args, Debug)]
pub(crate) struct SamplingArgs {
    /// Randomness: below 1 less, above 1 more than the model was trained for; 0 takes the most
    /// probable token each time
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    pub(crate) temp: f32,
    /// Choose among the K most probable tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, value_parser = count)]
    pub(crate) top_k: usize,
    /// Choose among the most probable tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = top_p)]
    pub(crate) top_p: f32,
    /// Choose among tokens that have this part of the best one's probability
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = min_p)]
    pub(crate) min_p: f32,
    /// Make tokens that came before less probable: divides their logits
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = factor)]
    pub(crate) repeat_penalty: f32,
    /// Subtract this from the logits of tokens that came before
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = finite)]
    pub(crate) presence_penalty: f32,
    /// Subtract this from the logits of tokens, once for each time that they came before
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = finite)]
    pub(crate) frequency_penalty: f32,
    /// How many tokens back the penalties look
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count)]
    pub(crate) repeat_last_n: usize,
    /// Add to the logit of a token (-inf excludes it); repeat for several
    #[arg(long, value_name = "ID=BIAS", value_parser = bias, allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Beginning of the random numbers; the same one gives the same text. Without it another one each
    /// time
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Stop at this text, which is not shown; repeat for several. It is taken as it is: \n is not the end of a
    /// line, which bash writes $'\n'
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Do not stop where the model ends its text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// When the context is full, forget the older half of it and go on
    #[arg(long)]
    pub(crate) context_shift: bool,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Text appears as it is generated; speed and time to the first token are shown at the end, on standard \
error. Ctrl-C stops, with what is there so far.

--prompt-tokens takes ids as they are. --logits writes an array [prompt tokens, vocabulary] of f32, \
one row for the position of each token of the prompt; with -n 0 nothing else is computed. Penalties \
count the prompt too.

Examples:
  tilewright generate -p \"Once upon a time\"
  tilewright generate model.gguf -p \"The capital of France is\" -n 16 --temp 0
  tilewright generate model.gguf -p - --stop \"###\" < prompt.txt
  tilewright generate model.gguf --prompt-tokens 1,5,9 -n 0 --logits logits.npy")]
pub(crate) struct GenerateArgs {
    /// GGUF file; without it the embedded model
    pub(crate) model: Option<PathBuf>,
    /// Text to go on from; `-` reads it from standard input, with the end of its last line. Special tokens
    /// may be written in it
    #[arg(
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "prompt_tokens",
        required_unless_present = "prompt_tokens",
        allow_hyphen_values = true
    )]
    pub(crate) prompt: Option<String>,
    /// Tokens to go on from, such as 1,5,9
    #[arg(long, value_name = "IDS", value_delimiter = ',', num_args = 1, value_parser = token, allow_hyphen_values = true)]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Most tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, value_parser = count)]
    pub(crate) predict: usize,
    /// Write the logits behind each token of the prompt
    #[arg(long, value_name = "FILE.npy")]
    pub(crate) logits: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) machine: LlmArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Each line is a message; a \\ at its end continues it on the next line. What was said before is not \
computed again. When the context is full, the oldest messages are forgotten. Ctrl-C stops an answer, \
and leaves where there is none. Messages may also come through a pipe.

Commands:
  /system TEXT   say who the model is, and begin again
  /reset         begin again
  /exit          leave
  /help          show this

The messages are written as the file's own chat template says; for a file without one, as ChatML.

Example:
  tilewright chat model.gguf --system \"You answer in one sentence.\"")]
pub(crate) struct ChatArgs {
    /// GGUF file
    pub(crate) model: PathBuf,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Most tokens of an answer; without it as many as the context has room for
    #[arg(short = 'n', long, value_name = "N", value_parser = count)]
    pub(crate) predict: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) machine: LlmArgs,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The tokens are those that a prompt of this text becomes, with the one that begins a text where the \
model has one. With --no-special special tokens are neither added nor found: the text is only text.

Examples:
  tilewright tokenize model.gguf \"Hello world\"
  tilewright tokenize vocabulary.gguf - --no-special --format json < text.txt")]
pub(crate) struct TokenizeArgs {
    /// GGUF file; one with nothing but a vocabulary is enough
    pub(crate) model: PathBuf,
    /// The text; `-` reads it from standard input, with the end of its last line
    #[arg(allow_hyphen_values = true)]
    pub(crate) text: String,
    /// Neither add special tokens nor find them in the text
    #[arg(long)]
    pub(crate) no_special: bool,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
How well a model predicts a text: e to the mean of the negative logarithms of the probabilities that \
it gives to each next token. A text of at least twice the context is cut into pieces of the context's \
length, each with the token that begins a text at its beginning, and the second half of each piece \
counts. A shorter one is cut as it is, and all but the first token of each piece count.

Example:
  tilewright perplexity model.gguf text.txt --ctx 256")]
#[command(mut_arg("ctx", |arg| arg.help(CTX).long_help(CTX)))]
pub(crate) struct PerplexityArgs {
    /// GGUF file
    pub(crate) model: PathBuf,
    /// Text file; `-` for standard input
    pub(crate) text: PathBuf,
    #[command(flatten)]
    pub(crate) machine: LlmArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// A number for which `holds`.
fn number(text: &str, holds: impl Fn(f32) -> bool, expected: &str) -> Result<f32, String> {
    let number = text.trim().parse().ok().filter(|x: &f32| x.is_finite() && holds(*x));
    number.ok_or_else(|| format!("expected {expected}"))
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, |x| x >= 0.0, "a number, 0 or more")
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, |x| x > 0.0 && x <= 1.0, "a number above 0, at most 1")
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

fn factor(text: &str) -> Result<f32, String> {
    number(text, |x| x > 0.0, "a number above 0")
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, |_| true, "a number")
}

fn token(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "expected the number of a token".into())
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text
        .split_once('=')
        .and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse::<f32>().ok()?)));
    parts
        .filter(|(_, bias)| *bias < f32::INFINITY)
        .ok_or_else(|| "expected a token and a number, such as 15043=-1.5 or 2=-inf".into())
}
