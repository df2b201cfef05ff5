//! `tilewright perplexity`: how well a model predicts a text.

use std::fs;
use std::path::Path;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;

use super::args::PerplexityArgs;
use super::{Ready, rate, read_stdin, text};
use crate::cli::args::{Format, bad_usage};
use crate::cli::{Failure, report};

/// Tokens of a piece, if nobody says.
const CONTEXT: usize = 512;

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    isa: &'static str,
    threads: usize,
    ctx: usize,
    tokens: usize,
    chunks: usize,
    /// Tokens whose probability counts.
    scored: usize,
    /// Mean of the negative natural logarithms of the probabilities.
    nll: f64,
    perplexity: f64,
    /// Standard error of the perplexity.
    error: f64,
    tok_s: f64,
}

/// Sums over the tokens that count.
#[derive(Default)]
struct Sum {
    nll: f64,
    squares: f64,
    count: usize,
}

impl Sum {
    /// Adds the negative logarithm of the probability of a token.
    fn add(&mut self, logits: &[f32], token: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from((x - max).exp())).sum();
        let Some(logit) = logits.get(token as usize) else { return };
        let nll = sum.ln() - f64::from(logit - max);
        self.nll += nll;
        self.squares += nll * nll;
        self.count += 1;
    }
}

/// Fewest tokens of a piece: of a pair, the half that counts would predict nothing.
const LEAST_CONTEXT: usize = 3;

/// The command.
pub(crate) fn perplexity(args: &PerplexityArgs) -> Result<(), Failure> {
    if let Some(context @ ..LEAST_CONTEXT) = args.machine.ctx.map(|n| n as usize) {
        bad_usage(
            "perplexity",
            format!("--ctx {context} is too short, expected at least {LEAST_CONTEXT} tokens"),
        );
    }
    let text = if args.text == Path::new("-") {
        read_stdin()?
    } else {
        let fail = |e| Failure::new(format!("cannot read {}", args.text.display()), e);
        text(&args.text.display().to_string(), fs::read(&args.text).map_err(fail)?)?
    };
    let mut ready = Ready::load(Some(&args.model), &args.machine, None, false)?;
    let context = args.machine.ctx.map_or(CONTEXT, |n| n as usize).min(ready.session.context());
    if context < LEAST_CONTEXT {
        return Err(Failure(format!(
            "the model has a context of {context} tokens, expected at least {LEAST_CONTEXT}"
        )));
    }
    let tokens = ready.encode(&text);
    let bos = ready.tokenizer.bos().filter(|_| ready.tokenizer.add_bos());
    let (pieces, first) = pieces(&tokens, context, bos);
    if pieces.iter().all(|p| p.len() < 2) {
        return Err(Failure("the text has too few tokens: at least two are needed".into()));
    }
    let progress = ProgressBar::new(pieces.len() as u64);
    let (start, mut sum) = (Instant::now(), Sum::default());
    for piece in &pieces {
        ready.session.truncate(0);
        ready.session.eval_all(piece, |at, logits| {
            if let Some(next) = piece.get(at + 1).filter(|_| at >= first) {
                sum.add(logits, *next);
            }
        })?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    let time = start.elapsed();
    let n = sum.count as f64;
    let nll = sum.nll / n;
    let variance = (sum.squares / n - nll * nll).max(0.0) / (n - 1.0).max(1.0);
    let result = Json {
        model: &ready.name,
        isa: ready.session.isa().name(),
        threads: ready.session.threads(),
        ctx: context,
        tokens: tokens.len(),
        chunks: pieces.len(),
        scored: sum.count,
        nll,
        perplexity: nll.exp(),
        error: variance.sqrt() * nll.exp(),
        tok_s: rate(pieces.iter().map(Vec::len).sum(), time),
    };
    match args.format {
        Format::Json => report::print_json(&result),
        Format::Text => report::print(&format!(
            "perplexity {:.4} ± {:.4}\nmean nll   {:.4}\ntokens     {} of {} counted, {} piece{} of at \
             most {}\nspeed      {:.1} tokens/s\n",
            result.perplexity,
            result.error,
            result.nll,
            result.scored,
            result.tokens,
            result.chunks,
            if result.chunks == 1 { "" } else { "s" },
            result.ctx,
            result.tok_s,
        )),
    }
}

/// The pieces of a text that are predicted by themselves, and the position in each from which on
/// predictions count.
fn pieces(tokens: &[u32], context: usize, bos: Option<u32>) -> (Vec<Vec<u32>>, usize) {
    if tokens.len() < 2 * context {
        let short = tokens.chunks(context).map(<[u32]>::to_vec).collect();
        return (short, 0);
    }
    let piece = |chunk: &[u32]| {
        let mut piece = chunk.to_vec();
        if let (Some(bos), Some(first)) = (bos, piece.first_mut()) {
            *first = bos;
        }
        piece
    };
    (tokens.chunks_exact(context).map(piece).collect(), context / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_into_pieces() {
        let tokens: Vec<u32> = (1..=9).collect();
        assert_eq!(pieces(&tokens, 4, Some(0)), (vec![vec![0, 2, 3, 4], vec![0, 6, 7, 8]], 2));
        assert_eq!(pieces(&tokens, 4, None).0[1], [5, 6, 7, 8]);
        assert_eq!(pieces(&tokens, 100, Some(0)), (vec![tokens.clone()], 0));
        assert_eq!(pieces(&tokens, 5, Some(0)).1, 0);
        // The least context has one prediction that counts.
        let (cut, first) = pieces(&tokens, LEAST_CONTEXT, None);
        assert_eq!((cut[0].len(), first), (LEAST_CONTEXT, LEAST_CONTEXT - 2));
    }

    #[test]
    fn equal_logits_are_equal_probabilities() {
        let mut sum = Sum::default();
        sum.add(&[3.0; 8], 5);
        sum.add(&[-700.0; 8], 0);
        assert!((sum.nll / 2.0 - 8f64.ln()).abs() < 1e-12);
    }
}
