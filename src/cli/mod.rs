//! The command line. It sees only what the library makes public.

mod args;
mod batch;
mod bench;
#[cfg(feature = "dist")]
mod dist;
mod doctor;
mod draw;
mod embedded;
mod explain;
mod graph;
mod inputs;
mod inspect;
mod inspect_gguf;
mod kernels;
#[cfg(feature = "llm")]
mod llm;
mod model;
#[cfg(feature = "rknn")]
mod npu;
#[cfg(feature = "rknn")]
mod npu_system;
mod opencl;
mod output;
mod report;
mod roofline;
mod run;
mod side_file;
mod tune;
mod tune_subject;

use core::fmt;
use std::panic::{self, PanicHookInfo};
use std::process::ExitCode;

use args::{Args, Command};
use tilewright::Isa;

/// What is written after `error: `: one sentence, lower case, no full stop.
#[derive(Debug)]
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Messages may quote names from files; they stay on one line.
        for c in self.0.chars() {
            if c.is_control() { f.write_str(" ")? } else { write!(f, "{c}")? }
        }
        Ok(())
    }
}

impl<E: core::error::Error> From<E> for Failure {
    fn from(e: E) -> Self {
        Self(e.to_string())
    }
}

impl Failure {
    /// A failure to do something with a named thing.
    fn new(context: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self(format!("{context}: {cause}"))
    }
}

/// The instruction set to use. What is wrong with the one that the environment asks for is said with the name
/// of the variable.
fn chosen_isa() -> Result<Isa, Failure> {
    Isa::select().map_err(|e| Failure::new("TILEWRIGHT_ISA", e))
}

/// Runs the program: status 0 when done, 1 when it failed, 2 for bad usage.
pub(crate) fn main() -> ExitCode {
    panic::set_hook(Box::new(report_panic));
    #[cfg(feature = "dist")]
    if let Some(done) = dist::asked() {
        return done;
    }
    let args = Args::of_process();
    let result = panic::catch_unwind(|| match args.command {
        Command::Run(args) => run::run(&args),
        Command::Batch(args) => batch::batch(&args),
        #[cfg(feature = "llm")]
        Command::Generate(args) => llm::generate::generate(&args),
        #[cfg(feature = "llm")]
        Command::Chat(args) => llm::chat::chat(&args),
        #[cfg(feature = "llm")]
        Command::Tokenize(args) => llm::tokenize::tokenize(&args),
        #[cfg(feature = "llm")]
        Command::Perplexity(args) => llm::perplexity::perplexity(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Doctor(args) => doctor::doctor(&args),
    });
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            report::note(&format!("error: {failure}"));
            ExitCode::FAILURE
        }
        // The hook has said what happened.
        Err(_) => ExitCode::FAILURE,
    }
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let message = info.payload_as_str().unwrap_or("no message");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let text = Failure(format!(
        "internal error at {place}, please report it with the command line: {message}"
    ));
    report::note(&format!("error: {text}"));
    // A build that does not unwind would end as if it had been killed.
    if cfg!(panic = "abort") {
        std::process::exit(1);
    }
}
