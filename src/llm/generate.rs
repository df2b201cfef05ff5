//! Text from a model, token by token.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::channels::Channels;
use super::sampler::{Candidate, Sampler, SamplerOptions};
use super::stop::StopStrings;
use super::tokenizer::{Decoder, Tokenizer};
use super::{LlmError, Session};
use crate::Error;

/// What is generated, and when it ends.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Most tokens; `None` for as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// Whether tokens that end a text are like all others.
    pub ignore_eos: bool,
    /// Texts that end it, and are not part of it.
    pub stop: Vec<String>,
    /// When the context is full, forget the older half of all but `keep` tokens and go on.
    pub context_shift: bool,
    /// Tokens at the beginning that are never forgotten.
    pub keep: usize,
}

/// Why a generation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended its text.
    Eos,
    /// There are as many tokens as wanted, or as there is room for.
    Length,
    /// One of the texts to stop at was found.
    Stop,
    /// Somebody set the session's cancel flag.
    Cancelled,
}

/// A token that was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// The text that can be shown now: whole characters, and nothing that may become a text to stop
    /// at. Where a model's texts have channels (GPT-OSS), thoughts stand between `<think>` and
    /// `</think>`. What is held back at the end is [`Generation::rest`].
    pub text: String,
}

/// A text in the making: an iterator of tokens. It ends by itself, or by dropping it; the session's
/// cancel flag ends it from another thread.
pub struct Generation<'a> {
    session: &'a mut Session,
    tokenizer: &'a Tokenizer,
    options: GenerateOptions,
    sampler: Sampler,
    decoder: Decoder,
    channels: Channels,
    stop: StopStrings,
    cancel: Arc<AtomicBool>,
    /// Of the logits the number that is looked at, if that is not all.
    decisive: Option<usize>,
    logits: Vec<f32>,
    best: Vec<Candidate>,
    /// The token that is chosen, but not yet in the context.
    pending: Option<u32>,
    count: usize,
    finish: Option<Finish>,
    /// Whether an error has ended it.
    failed: bool,
}

impl Session {
    /// Generates text behind `prompt`. The context becomes the prompt; what both begin with is not
    /// computed again.
    ///
    /// ```no_run
    /// use tilewright::llm::{GenerateOptions, Llm, LlmOptions};
    ///
    /// let llm = Llm::load("model.gguf", LlmOptions::default())?;
    /// let tokenizer = llm.tokenizer()?;
    /// let mut session = llm.session()?;
    /// let prompt = tokenizer.encode_whole("Once upon a time", true);
    /// let mut generation = session.generate(&tokenizer, &prompt, GenerateOptions::default())?;
    /// for token in generation.by_ref() {
    ///     print!("{}", token?.text);
    /// }
    /// println!("{}", generation.rest());
    /// # Ok::<(), tilewright::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::prompt`]; [`LlmError::Sampler`] for options that mean nothing, [`LlmError::Token`] for a logit bias of
    /// a token that there is not.
    pub fn generate<'a>(
        &'a mut self,
        tokenizer: &'a Tokenizer,
        prompt: &[u32],
        options: GenerateOptions,
    ) -> Result<Generation<'a>, Error> {
        let mut sampler = Sampler::new(options.sampler.clone()).map_err(LlmError::from)?;
        let biased: Vec<u32> = options.sampler.logit_bias.iter().map(|(id, _)| *id).collect();
        if !biased.is_empty() {
            self.model().0.check(&biased)?;
        }
        prompt.iter().for_each(|id| sampler.accept(*id));
        let vocabulary = self.model().config().vocabulary;
        let decisive = sampler.decisive().filter(|k| *k <= vocabulary && self.finds_best());
        let (mut logits, mut best) = (Vec::new(), Vec::new());
        let kept = self.rewind(prompt)?;
        match decisive {
            Some(k) => best.extend_from_slice(self.best(&prompt[kept..], k)?),
            None => logits.extend_from_slice(self.eval(&prompt[kept..])?),
        }
        let (cancel, stop) = (self.cancel_flag(), StopStrings::new(options.stop.clone()));
        Ok(Generation {
            session: self,
            tokenizer,
            options,
            sampler,
            decoder: Decoder::new(),
            channels: Channels::default(),
            stop,
            cancel,
            decisive,
            logits,
            best,
            pending: None,
            count: 0,
            finish: None,
            failed: false,
        })
    }
}

impl Generation<'_> {
    /// Why it has ended, once it has; `None` after an error.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The text that was held back and can be shown at the end.
    pub fn rest(&mut self) -> String {
        let held = self.decoder.finish();
        let mut text = self.stop.push(&held);
        text += &self.stop.finish();
        text
    }

    /// The next token, or why there is none.
    fn step(&mut self) -> Result<Result<Token, Finish>, Error> {
        // The last token allowed may be the one that completes a text to stop at.
        if self.stop.hit() {
            return Ok(Err(Finish::Stop));
        }
        if self.options.max_tokens.is_some_and(|most| self.count >= most) {
            return Ok(Err(Finish::Length));
        }
        if self.cancel.load(Ordering::Relaxed) {
            return Ok(Err(Finish::Cancelled));
        }
        if let Some(id) = self.pending.take() {
            if self.session.position() >= self.session.context() && !self.shift()? {
                return Ok(Err(Finish::Length));
            }
            let evaluated = match self.decisive {
                Some(k) => self.session.best(&[id], k).map(|best| self.best.copy_from_slice(best)),
                None => self.session.eval(&[id]).map(|all| self.logits.copy_from_slice(all)),
            };
            match evaluated {
                Ok(()) => {}
                Err(Error::Llm(LlmError::Cancelled)) => return Ok(Err(Finish::Cancelled)),
                Err(e) => return Err(e),
            }
        }
        let chosen = match self.decisive {
            Some(_) => self.sampler.sample_best(&self.best),
            None => self.sampler.sample(&mut self.logits),
        };
        let id = chosen.map_err(LlmError::from)?;
        if self.tokenizer.is_eog(id) && !self.options.ignore_eos {
            return Ok(Err(Finish::Eos));
        }
        self.sampler.accept(id);
        self.pending = Some(id);
        self.count += 1;
        let text = match self.channels.push(self.tokenizer, id) {
            Some(text) => self.decoder.push_bytes(text.as_bytes()),
            None => self.decoder.push(self.tokenizer, id),
        };
        Ok(Ok(Token { id, text: self.stop.push(&text) }))
    }

    /// Makes room in a full context, if that is wanted and possible. What stays is computed again at
    /// its new place, so that the result is that of a shorter text, not an approximation.
    fn shift(&mut self) -> Result<bool, Error> {
        let tokens = self.session.tokens();
        let keep = self.options.keep.min(tokens.len());
        let forget = (tokens.len() - keep) / 2;
        if !self.options.context_shift || forget == 0 {
            return Ok(false);
        }
        let left: Vec<u32> = [&tokens[..keep], &tokens[keep + forget..]].concat();
        let kept = self.session.rewind(&left)?;
        self.session.fill(&left[kept..])?;
        Ok(true)
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Token, Error>;

    fn next(&mut self) -> Option<Result<Token, Error>> {
        if self.finish.is_some() || self.failed {
            return None;
        }
        match self.step() {
            Ok(Ok(token)) => Some(Ok(token)),
            Ok(Err(finish)) => {
                self.finish = Some(finish);
                None
            }
            Err(e) => {
                self.failed = true;
                Some(Err(e))
            }
        }
    }
}
