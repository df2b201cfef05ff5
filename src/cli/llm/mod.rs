//! Commands for language models.

pub(super) mod args;
pub(super) mod bench;
pub(super) mod chat;
pub(super) mod generate;
pub(super) mod perplexity;
pub(super) mod tokenize;

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use tilewright::import::ImportError;
use tilewright::import::gguf::Gguf;
use tilewright::llm::tokenizer::Tokenizer;
use tilewright::llm::{Llm, LlmOptions, Progress, SamplerOptions, Session};
use tilewright::{DType, Error};

use super::{Failure, chosen_isa, embedded, model, output, report};
use args::{CacheType, LlmArgs, SamplingArgs};

/// A model that is ready to generate.
pub(super) struct Ready {
    /// How results name it.
    pub(super) name: String,
    pub(super) llm: Llm,
    pub(super) tokenizer: Tokenizer,
    pub(super) session: Session,
    pub(super) load: Duration,
}

impl Ready {
    /// Loads the model of a file, or the embedded one, with room for `context` tokens if the
    /// arguments do not say. With `soon`, the first result matters more than the others.
    pub(super) fn load(
        path: Option<&Path>,
        args: &LlmArgs,
        context: Option<usize>,
        soon: bool,
    ) -> Result<Self, Failure> {
        chosen_isa()?;
        let device = model::device(&args.backend, args.device.as_deref())?;
        let start = Instant::now();
        let progress = ProgressBar::new_spinner().with_message("loading");
        progress.enable_steady_tick(Duration::from_millis(100));
        let bar = progress.clone();
        // A larger file takes so long to repack that it has to be seen.
        let small = |path| std::fs::metadata(path).is_ok_and(|file| file.len() <= LATER);
        let repack_later = soon && path.is_some_and(small);
        let options = LlmOptions {
            threads: args.threads.map(usize::from),
            context: args.ctx.map(|n| n as usize).or(context),
            cache_type: match args.cache_type {
                CacheType::F16 => DType::F16,
                CacheType::F32 => DType::F32,
                CacheType::Q8 => DType::Q8_0,
            },
            bf16: args.bf16,
            no_repack: args.no_repack,
            repack_later,
            memory_limit: args.memory_limit,
            device,
            progress: (!repack_later).then(|| {
                Progress::new(move |done, all| {
                    if bar.length().is_none() {
                        bar.set_length(all as u64);
                        bar.set_style(packing());
                    }
                    bar.set_position(done as u64);
                })
            }),
            ..LlmOptions::default()
        };
        let name = path.map_or(embedded::LANGUAGE_NAME.to_owned(), |p| p.display().to_string());
        let llm = match path {
            Some(path) => Llm::load(path, options).map_err(|e| describe(path, &e))?,
            None => Llm::from_bytes(embedded::LANGUAGE, options)?,
        };
        if let Some(problem) = llm.table_problem() {
            report::note(&format!("note: {problem}; it is not used"));
        }
        let named = |e: &dyn core::fmt::Display| Failure::new(&name, e);
        let (tokenizer, session) = begin(&llm, args.threads).map_err(|e| named(&e))?;
        let vocabulary = llm.config().vocabulary;
        if tokenizer.len() > vocabulary {
            let tokens = tokenizer.len();
            return Err(named(&format!(
                "the tokenizer has {tokens} tokens, but the model only {vocabulary}"
            )));
        }
        progress.finish_and_clear();
        warn(&tokenizer);
        Ok(Self { name, llm, tokenizer, session, load: start.elapsed() })
    }

    /// Text into tokens; one that is no token of the model is an error when it is used.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        // What ends a text is no part of a prompt.
        let mut tokens = Vec::new();
        tokens.extend(self.tokenizer.bos().filter(|_| self.tokenizer.add_bos()));
        tokens.extend(self.tokenizer.encode(text, true));
        tokens
    }
}

/// The vocabulary and the first session of a model. Neither needs the other, so where more than one
/// thread may be used they are made at the same time.
fn begin(llm: &Llm, threads: Option<u16>) -> Result<(Tokenizer, Session), Error> {
    std::thread::scope(|scope| {
        let tokenizer = || llm.tokenizer();
        let helper = (threads != Some(1)).then(std::thread::Builder::new);
        match helper.map(|helper| helper.spawn_scoped(scope, tokenizer)) {
            Some(Ok(helper)) => {
                let session = llm.session();
                let tokenizer = helper.join().expect("a vocabulary is made or refused")?;
                Ok((tokenizer, session?))
            }
            // One after the other takes longer.
            Some(Err(_)) | None => Ok((tokenizer()?, llm.session()?)),
        }
    })
}

/// Bytes of a file up to which repacking may wait until there is a first result, and is then not shown.
const LATER: u64 = 2 << 30;

/// What a terminal shows while weights are repacked.
fn packing() -> ProgressStyle {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The vocabulary of a file that may have nothing else.
pub(super) fn vocabulary(path: &Path) -> Result<Tokenizer, Failure> {
    let gguf = Gguf::open(path).map_err(|e| describe(path, &Error::Import(e)))?;
    let tokenizer = Tokenizer::from_gguf(gguf.metadata());
    let tokenizer = tokenizer.map_err(|e| Failure::new(path.display(), e))?;
    warn(&tokenizer);
    Ok(tokenizer)
}

fn warn(tokenizer: &Tokenizer) {
    for warning in tokenizer.warnings() {
        report::note(&format!("note: {warning}"));
    }
}

/// The error with the file's name, once.
fn describe(path: &Path, error: &Error) -> Failure {
    match error {
        Error::Import(ImportError::Io { .. }) => Failure(error.to_string()),
        _ => Failure::new(path.display(), error),
    }
}

impl SamplingArgs {
    /// The sampler's options; a seed is drawn if none is given.
    pub(super) fn options(&self) -> SamplerOptions {
        SamplerOptions {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.repeat_last_n,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }
}

fn random_seed() -> u64 {
    use core::hash::BuildHasher;
    use std::hash::RandomState;
    // Short enough to be typed in again.
    RandomState::new().hash_one(Instant::now()) >> 32
}

/// All of standard input, which must be text.
pub(super) fn read_stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|e| Failure::new("cannot read standard input", e))?;
    text("standard input", bytes)
}

/// Bytes that must be text.
pub(super) fn text(what: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure(format!("{what} is not text in UTF-8: byte {at} cannot be read"))
    })
}

/// Text that is shown as it comes. A reader that has gone away is not an error, but the end.
pub(super) fn show(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::new("cannot write the text", e)),
    }
}

/// What Ctrl-C does: the first one sets the flag of what is running, one where nothing runs, or a
/// second one, leaves.
pub(super) struct Interrupts;

static RUNNING: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

fn interrupted() {
    let running = RUNNING.lock().map(|r| r.clone()).unwrap_or_default();
    if running.is_none_or(|flag| flag.swap(true, Ordering::Relaxed)) {
        if std::io::stderr().is_terminal() {
            let _ = writeln!(std::io::stderr());
        }
        output::forget();
        std::process::exit(1);
    }
}

impl Interrupts {
    pub(super) fn handle() -> Result<Self, Failure> {
        output::on_interrupt(interrupted).map_err(|e| Failure::new("cannot handle Ctrl-C", e))?;
        Ok(Self)
    }

    /// While `work` runs, Ctrl-C sets its flag; says whether it did.
    pub(super) fn during<T>(&self, flag: &Arc<AtomicBool>, work: impl FnOnce() -> T) -> (T, bool) {
        let set = |running| {
            if let Ok(mut slot) = RUNNING.lock() {
                *slot = running;
            }
        };
        set(Some(flag.clone()));
        let result = work();
        set(None);
        (result, flag.swap(false, Ordering::Relaxed))
    }
}

/// Tokens per second; 0 if there were none.
pub(super) fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64().max(1e-9) }
}
