//! `tilewright generate`: text behind a prompt.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use tilewright::Tensor;
use tilewright::io::npy;
use tilewright::llm::{Finish, GenerateOptions, Generation, LlmError, Session};

use super::args::GenerateArgs;
use super::{Interrupts, Ready, rate, read_stdin, show};
use crate::cli::args::Format;
use crate::cli::output::Pending;
use crate::cli::{Failure, report};

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: &'a str,
    stop: &'static str,
    prompt_tok_s: f64,
    decode_tok_s: f64,
    load_ms: f64,
    first_token_ms: Option<f64>,
    seed: u64,
    isa: &'static str,
    threads: usize,
    backend: &'a str,
}

/// The command.
pub(crate) fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    let begin = Instant::now();
    let interrupts = Interrupts::handle()?;
    let prompt = match args.prompt.as_deref() {
        Some("-") => Some(read_stdin()?),
        other => other.map(str::to_owned),
    };
    let mut ready = Ready::load(args.model.as_deref(), &args.machine, None, true)?;
    let tokens = prompt.map_or_else(|| args.prompt_tokens.clone(), |text| ready.encode(&text));
    if tokens.is_empty() {
        return Err(Failure(
            "the prompt is empty, and this model has no token that begins a text: write something \
             with -p"
                .into(),
        ));
    }
    let sampler = args.sampling.options();
    let seed = sampler.seed;
    let options = GenerateOptions {
        sampler,
        max_tokens: Some(args.predict),
        ignore_eos: args.sampling.ignore_eos,
        stop: args.sampling.stop.clone(),
        context_shift: args.sampling.context_shift,
        keep: usize::from(ready.tokenizer.bos() == tokens.first().copied()),
    };
    let start = Instant::now();
    let flag = ready.session.cancel_flag();
    let stream = args.format == Format::Text;
    let Ready { session, tokenizer, .. } = &mut ready;
    let work = || -> Result<Made, Failure> {
        if let Some(path) = &args.logits {
            write_logits(session, &tokens, path)?;
        }
        if args.predict == 0 {
            if args.logits.is_none() {
                session.prompt(&tokens)?;
            }
            return Ok(Made::nothing(start.elapsed()));
        }
        let mut generation = session.generate(tokenizer, &tokens, options)?;
        let prompt_time = start.elapsed();
        Made::from(&mut generation, prompt_time, stream)
    };
    let (made, _) = interrupts.during(&flag, work);
    let made = made?;
    let (load, whole) = (ready.load.as_secs_f64() * 1e3, made.first.map(|t| t - begin));
    let prompt_tok_s = rate(tokens.len(), made.prompt_time);
    let decode_tok_s = rate(made.tokens.len().saturating_sub(1), made.decode_time);
    if stream {
        let (n, m) = (tokens.len(), made.tokens.len());
        let first = whole.map_or_else(String::new, |t| {
            format!(", first token after {}", report::duration(t.as_secs_f64()))
        });
        report::note(&format!(
            "prompt {n} tokens, {prompt_tok_s:.1} tokens/s; generated {m} tokens, {decode_tok_s:.1} \
             tokens/s{first} ({} to load); stopped: {}; seed {seed}",
            report::duration(ready.load.as_secs_f64()),
            reason(&made, args.predict),
        ));
    } else {
        report::print_json(&Json {
            model: &ready.name,
            prompt_tokens: &tokens,
            tokens: &made.tokens,
            text: &made.text,
            stop: reason(&made, args.predict),
            prompt_tok_s,
            decode_tok_s,
            load_ms: load,
            first_token_ms: whole.map(|t| t.as_secs_f64() * 1e3),
            seed,
            isa: ready.session.isa().name(),
            threads: ready.session.threads(),
            backend: &args.machine.backend,
        })?;
    }
    if made.finish == Finish::Cancelled { Err(Failure("interrupted".into())) } else { Ok(()) }
}

/// What a generation gave.
pub(super) struct Made {
    pub(super) tokens: Vec<u32>,
    pub(super) text: String,
    pub(super) finish: Finish,
    /// Whether somebody reads what is shown.
    read: bool,
    pub(super) prompt_time: Duration,
    /// From the first token to the last.
    pub(super) decode_time: Duration,
    pub(super) first: Option<Instant>,
}

impl Made {
    fn nothing(prompt_time: Duration) -> Self {
        Self {
            tokens: Vec::new(),
            text: String::new(),
            finish: Finish::Length,
            read: true,
            prompt_time,
            decode_time: Duration::ZERO,
            first: None,
        }
    }

    /// Takes all tokens of a generation, and shows the text as it comes if that is wanted.
    pub(super) fn from(
        generation: &mut Generation<'_>,
        prompt_time: Duration,
        stream: bool,
    ) -> Result<Self, Failure> {
        let mut made = Self::nothing(prompt_time);
        let mut last = None;
        for token in generation.by_ref() {
            let token = token?;
            last = Some(Instant::now());
            made.first = made.first.or(last);
            made.tokens.push(token.id);
            made.text += &token.text;
            made.read = !stream || show(&token.text)?;
            if !made.read {
                break;
            }
        }
        let rest = generation.rest();
        made.text += &rest;
        if stream && made.read {
            // What follows on a terminal begins on a line of its own.
            let end = if made.text.ends_with('\n') { "" } else { "\n" };
            show(&(rest + end))?;
        }
        made.finish = generation.finish().unwrap_or(Finish::Length);
        let time = made.first.zip(last).map(|(first, last)| last - first);
        made.decode_time = time.unwrap_or_default();
        Ok(made)
    }
}

/// The name of a reason in results.
fn reason(made: &Made, wanted: usize) -> &'static str {
    match made.finish {
        Finish::Eos => "eos",
        Finish::Stop => "stop string",
        Finish::Cancelled => "interrupted",
        _ if !made.read => "nobody reads on",
        _ if made.tokens.len() < wanted => "context full",
        _ => "length",
    }
}

/// Evaluates the prompt and writes the logits behind each of its tokens.
fn write_logits(session: &mut Session, tokens: &[u32], path: &Path) -> Result<(), Failure> {
    // An unwritable place should be known before the work.
    drop(Pending::new(path, &[])?);
    let mut rows: Vec<f32> = Vec::new();
    let vocabulary = session.model().config().vocabulary;
    let room = tokens.len().checked_mul(vocabulary);
    if room.is_none_or(|room| rows.try_reserve_exact(room).is_err()) {
        let (needed, limit) = (room.unwrap_or(usize::MAX), 0);
        return Err(LlmError::ContextMemory { context: tokens.len(), needed, limit }.into());
    }
    session.eval_all(tokens, |_, row| rows.extend_from_slice(row))?;
    let tensor = Tensor::from_slice(&[tokens.len(), vocabulary], &rows)?;
    let path = Pending::new(path, &npy::write(&tensor)?)?.finish()?;
    report::note(&format!("wrote {}", path.display()));
    Ok(())
}
