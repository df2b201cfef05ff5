//! Sessions of language models.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tilewright_c_kernels::tw_status;

use super::call::{call, given, put, slice, text};
use super::handle::{Exclusive, free, into_handle};
use super::model::{Kind, given_out, tw_model};
use super::options::sized;
use super::status::Failure;
use crate::Error;
use crate::llm::tokenizer::Tokenizer;
use crate::llm::{
    ChatTemplate, Finish, GenerateOptions, Llm, LlmError, Sampler, SamplerOptions, Session,
};

/// What a model handle keeps of a language model.
pub(super) struct Language {
    llm: Llm,
    pub(super) tokenizer: Arc<Tokenizer>,
    template: OnceLock<ChatTemplate>,
}

impl Language {
    pub(super) fn new(llm: Llm) -> Result<Self, Failure> {
        let tokenizer = Arc::new(llm.tokenizer()?);
        Ok(Self { llm, tokenizer, template: OnceLock::new() })
    }

    /// The chat template, read when it is first needed: many models have none that matters.
    pub(super) fn template(&self) -> Result<&ChatTemplate, Failure> {
        if let Some(template) = self.template.get() {
            return Ok(template);
        }
        let template = ChatTemplate::from_gguf(self.llm.metadata(), &self.tokenizer)
            .map_err(|e| Failure::new(tw_status::TW_FORMAT, e.to_string()))?;
        Ok(self.template.get_or_init(|| template))
    }

    /// The language model behind a handle.
    pub(super) fn of(model: Option<&tw_model>) -> Result<&Self, Failure> {
        match &given(model, "model")?.kind {
            Kind::Language(language) => Ok(language),
            Kind::Network { .. } => {
                Err(Failure::argument("a network runs in a tw_session, and has no tokens"))
            }
        }
    }
}

/// A text in the making: tokens go in, logits come out. Sessions of one model share its weights and
/// may run at the same time; one session does one thing at a time.
pub struct tw_llm {
    inner: Exclusive<Inner>,
    cancel: Arc<AtomicBool>,
}

struct Inner {
    session: Session,
    tokenizer: Arc<Tokenizer>,
    sampling: SamplerOptions,
    sampler: Sampler,
    /// Behind the last token; empty before the first.
    logits: Vec<f32>,
}

impl tw_llm {
    /// Does something that `tw_llm_cancel` may end; the request is then done with.
    fn cancellable(
        &self,
        work: impl FnOnce(&mut Inner) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let result = work(&mut *self.inner.take()?);
        if matches!(&result, Err(f) if f.status == tw_status::TW_CANCELLED) {
            self.cancel.store(false, Ordering::Relaxed);
        }
        result
    }
}

impl Inner {
    fn keep(
        &mut self,
        evaluate: impl FnOnce(&mut Session) -> Result<&[f32], Error>,
    ) -> Result<(), Failure> {
        let before = self.session.tokens().to_vec();
        match evaluate(&mut self.session) {
            Ok(logits) => {
                self.logits.clear();
                self.logits.extend_from_slice(logits);
                Ok(())
            }
            Err(e) => {
                if self.session.tokens() != before {
                    self.logits.clear();
                }
                Err(e.into())
            }
        }
    }
}

/// Makes a session with nothing in its context. The first one of a model repacks the weights.
///
/// Gives `TW_INVALID_ARGUMENT` for a network, `TW_OUT_OF_MEMORY`, `TW_UNSUPPORTED` for an instruction
/// set that the machine lacks.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_new(model: Option<&tw_model>, out: *mut *mut tw_llm) -> tw_status {
    call(|| {
        given_out(out)?;
        let language = Language::of(model)?;
        let session = language.llm.session()?;
        let cancel = session.cancel_flag();
        let sampling = SamplerOptions::greedy();
        let sampler = Sampler::new(sampling.clone()).map_err(|e| Error::from(LlmError::from(e)))?;
        let (tokenizer, logits) = (language.tokenizer.clone(), Vec::new());
        let inner = Inner { session, tokenizer, sampling, sampler, logits };
        let handle = into_handle(tw_llm { inner: Exclusive::new(inner), cancel });
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", handle) }
    })
}

/// Frees a session. NULL is nothing to do.
///
/// No other call may use it then; any thread may be the one that frees it.
///
/// # Safety
/// `llm` is NULL or a session that is not freed yet, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_free(llm: *mut tw_llm) {
    // SAFETY: as the caller promises.
    unsafe { free(llm) }
}

/// Positions that the session keeps, and those in use. Either pointer may be NULL. Gives `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `llm` is NULL or a session; the others are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_context(
    llm: Option<&tw_llm>,
    size: *mut usize,
    used: *mut usize,
) -> tw_status {
    call(|| {
        let inner = given(llm, "llm")?.inner.take()?;
        let values = [(size, inner.session.context()), (used, inner.session.position())];
        for (out, value) in values.into_iter().filter(|(out, _)| !out.is_null()) {
            // SAFETY: as the caller promises.
            unsafe { put(out, "out", value)? };
        }
        Ok(())
    })
}

/// Adds `count` tokens to the context, and computes the logits behind the last one.
///
/// Gives `TW_CONTEXT_FULL` and, for none or for numbers that are no tokens, `TW_INVALID_ARGUMENT`,
/// with nothing changed; `TW_CANCELLED`, with some of the tokens in the context; `TW_NOT_FINITE`,
/// `TW_OUT_OF_MEMORY`, `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `llm` is NULL or a session; `tokens` is NULL or readable for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_eval(
    llm: Option<&tw_llm>,
    tokens: *const u32,
    count: usize,
) -> tw_status {
    call(|| {
        // SAFETY: as the caller promises.
        let tokens = unsafe { slice(tokens, count, "tokens")? };
        given(llm, "llm")?.cancellable(|inner| inner.keep(|s| s.eval(tokens)))
    })
}

/// Makes the context these `count` tokens, and computes the logits behind the last one. The tokens
/// that the context begins with already are not computed again.
///
/// Errors are those of `tw_llm_eval`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// As `tw_llm_eval`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_prompt(
    llm: Option<&tw_llm>,
    tokens: *const u32,
    count: usize,
) -> tw_status {
    call(|| {
        // SAFETY: as the caller promises.
        let tokens = unsafe { slice(tokens, count, "tokens")? };
        given(llm, "llm")?.cancellable(|inner| inner.keep(|s| s.prompt(tokens)))
    })
}

/// Forgets all positions from `position` on, and the logits. Gives `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `llm` is NULL or a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_truncate(llm: Option<&tw_llm>, position: usize) -> tw_status {
    call(|| {
        let mut inner = given(llm, "llm")?.inner.take()?;
        inner.session.truncate(position);
        inner.logits.clear();
        Ok(())
    })
}

/// The logits behind the last token: one number for each token of the vocabulary, valid until the
/// next call on this session.
///
/// Gives `TW_STATE` if there are none, `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `llm` is NULL or a session; `logits` and `count` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_logits(
    llm: Option<&tw_llm>,
    logits: *mut *const f32,
    count: *mut usize,
) -> tw_status {
    call(|| {
        let inner = given(llm, "llm")?.inner.take()?;
        there_are(&inner.logits)?;
        given_out(logits)?;
        // SAFETY: as the caller promises.
        unsafe {
            put(count, "count", inner.logits.len())?;
            put(logits, "logits", inner.logits.as_ptr())
        }
    })
}

fn there_are(logits: &[f32]) -> Result<(), Failure> {
    if !logits.is_empty() {
        return Ok(());
    }
    Err(Failure::new(tw_status::TW_STATE, "there are no logits: nothing was evaluated"))
}

/// How the next token is chosen. Zeros mean: the most probable token each time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_sampling {
    /// `sizeof (tw_sampling)`.
    pub size: usize,
    /// Where the random numbers begin.
    pub seed: u64,
    /// Divides the logits before the draw; 0 takes the most probable token.
    pub temperature: f32,
    /// The probability that the tokens which may be drawn have together; 0 or 1 for no limit.
    pub top_p: f32,
    /// Smallest probability of a token that may be drawn, as a part of that of the best; 0 for none.
    pub min_p: f32,
    /// Divides positive logits of tokens that came before; 0 or 1 for none.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of tokens that came before.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens as many times as they came before.
    pub frequency_penalty: f32,
    /// Tokens that may be drawn, the most probable ones; 0 for all.
    pub top_k: u32,
    /// How many tokens back the penalties look; 0 for 64.
    pub penalty_window: u32,
}

/// Sets how tokens are chosen from now on; NULL: the most probable one each time. What came before is
/// forgotten by the penalties.
///
/// Gives `TW_INVALID_ARGUMENT` for settings that mean nothing, `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `llm` is NULL or a session; `sampling` is NULL or as its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_set_sampling(
    llm: Option<&tw_llm>,
    sampling: *const tw_sampling,
) -> tw_status {
    call(|| {
        // SAFETY: as the caller promises; any bytes are numbers.
        let from = unsafe { sized(sampling, size_of::<tw_sampling>(), "sampling") }?;
        let or = |value: f32, default: f32| if value == 0.0 { default } else { value };
        let options = from.map_or_else(SamplerOptions::greedy, |s| SamplerOptions {
            temperature: s.temperature,
            top_k: s.top_k as usize,
            top_p: or(s.top_p, 1.0),
            min_p: s.min_p,
            repeat_penalty: or(s.repeat_penalty, 1.0),
            presence_penalty: s.presence_penalty,
            frequency_penalty: s.frequency_penalty,
            penalty_window: if s.penalty_window == 0 { 64 } else { s.penalty_window as usize },
            logit_bias: Vec::new(),
            seed: s.seed,
        });
        let mut inner = given(llm, "llm")?.inner.take()?;
        inner.sampler =
            Sampler::new(options.clone()).map_err(|e| Error::from(LlmError::from(e)))?;
        inner.sampling = options;
        Ok(())
    })
}

/// Chooses a token by the logits behind the last one. It is not added to the context.
///
/// Gives `TW_STATE` if there are no logits, `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `llm` is NULL or a session; `token` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_sample(llm: Option<&tw_llm>, token: *mut u32) -> tw_status {
    call(|| {
        let mut inner = given(llm, "llm")?.inner.take()?;
        there_are(&inner.logits)?;
        given_out(token)?;
        let mut logits = inner.logits.clone();
        let id = inner.sampler.sample(&mut logits).map_err(|e| Error::from(LlmError::from(e)))?;
        inner.sampler.accept(id);
        // SAFETY: as the caller promises.
        unsafe { put(token, "token", id) }
    })
}

/// What is generated, and when it ends. Zeros and NULL mean the default of each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_generation {
    /// `sizeof (tw_generation)`.
    pub size: usize,
    /// Most tokens; 0 for as many as the context has room for.
    pub max_tokens: usize,
    /// Texts that end it, and are not part of it.
    pub stop: *const *const c_char,
    /// How many there are.
    pub stop_count: usize,
    /// 1 to go on behind tokens that end a text.
    pub ignore_end: u32,
    /// 1 to forget the older half of the context when it is full, and go on.
    pub context_shift: u32,
    /// Tokens at the beginning that are never forgotten.
    pub keep: usize,
}

/// Why a generation has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tw_finish {
    /// The model ended its text.
    TW_FINISH_END = 0,
    /// There are as many tokens as wanted.
    TW_FINISH_LENGTH = 1,
    /// One of the texts to stop at was found.
    TW_FINISH_STOP = 2,
    /// The callback wanted no more.
    TW_FINISH_CALLBACK = 3,
    /// The context is full.
    TW_FINISH_CONTEXT = 4,
}

/// Is given each token, and the text that can be shown now: `length` bytes of whole UTF-8 characters,
/// perhaps none, without a zero byte at the end, valid during the call. `token` is -1 for text that was
/// held back and comes at the very end. Anything but 0 ends the generation. It must return: neither
/// `longjmp` nor exceptions may pass through. Calls on the same session give `TW_BUSY` in it.
pub type tw_token_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, token: i32, text: *const c_char, length: usize) -> i32,
>;

/// Generates text behind `count` tokens, which become the context as in `tw_llm_prompt`; calls
/// `each` with every token. `generation` may be NULL, and so may `finish`.
///
/// Errors are those of `tw_llm_eval`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `llm` is NULL or a session; `tokens` is NULL or readable for `count` numbers; `generation` is NULL
/// or as its type says; `each` may be called with `user`; `finish` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_llm_generate(
    llm: Option<&tw_llm>,
    tokens: *const u32,
    count: usize,
    generation: *const tw_generation,
    each: tw_token_fn,
    user: *mut c_void,
    finish: *mut i32,
) -> tw_status {
    call(|| {
        let handle = given(llm, "llm")?;
        let each = each.ok_or_else(|| Failure::argument("each is NULL"))?;
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        let (tokens, options) = unsafe { (slice(tokens, count, "tokens")?, read(generation)?) };
        let tell = |token: i32, text: &str| {
            // SAFETY: the caller allows the call; the text is as the type says.
            unsafe { each(user, token, text.as_ptr().cast(), text.len()) != 0 }
        };
        handle.cancellable(|inner| {
            let ended = inner.generate(tokens, options, tell)?;
            if !finish.is_null() {
                // SAFETY: as the caller promises.
                unsafe { put(finish, "finish", ended as i32)? };
            }
            Ok(())
        })
    })
}

impl Inner {
    fn generate(
        &mut self,
        tokens: &[u32],
        options: GenerateOptions,
        tell: impl Fn(i32, &str) -> bool,
    ) -> Result<tw_finish, Failure> {
        self.logits.clear();
        let most = options.max_tokens;
        let options = GenerateOptions { sampler: self.sampling.clone(), ..options };
        let mut generation = self.session.generate(&self.tokenizer, tokens, options)?;
        let mut made = 0;
        for token in generation.by_ref() {
            let token = token?;
            made += 1;
            if tell(token.id.cast_signed(), &token.text) {
                return Ok(tw_finish::TW_FINISH_CALLBACK);
            }
        }
        let finish = generation.finish();
        let rest = generation.rest();
        if !rest.is_empty() && finish != Some(Finish::Cancelled) && tell(-1, &rest) {
            return Ok(tw_finish::TW_FINISH_CALLBACK);
        }
        match finish {
            Some(Finish::Eos) => Ok(tw_finish::TW_FINISH_END),
            Some(Finish::Stop) => Ok(tw_finish::TW_FINISH_STOP),
            Some(Finish::Length) if most.is_some_and(|most| made >= most) => {
                Ok(tw_finish::TW_FINISH_LENGTH)
            }
            Some(Finish::Length) => Ok(tw_finish::TW_FINISH_CONTEXT),
            Some(Finish::Cancelled) | None => Err(Error::from(LlmError::Cancelled).into()),
        }
    }
}

/// # Safety
/// `from` is NULL or as its type says.
unsafe fn read(from: *const tw_generation) -> Result<GenerateOptions, Failure> {
    // SAFETY: as the caller promises; any bytes are numbers and pointers.
    let Some(from) = (unsafe { sized(from, size_of::<tw_generation>(), "generation") })? else {
        return Ok(GenerateOptions::default());
    };
    // SAFETY: as the caller promises.
    let stop = unsafe { slice(from.stop, from.stop_count, "generation.stop") }?;
    // SAFETY: as above, for each of them.
    let one = |&s: &*const c_char| unsafe { text(s, "generation.stop[i]") }.map(str::to_owned);
    Ok(GenerateOptions {
        max_tokens: Some(from.max_tokens).filter(|&n| n > 0),
        ignore_eos: from.ignore_end != 0,
        stop: stop.iter().map(one).collect::<Result<_, _>>()?,
        context_shift: from.context_shift != 0,
        keep: from.keep,
        ..Default::default()
    })
}

/// Ends what the session is doing, from another thread: that call gives `TW_CANCELLED` within a token
/// or a part of a prompt. If it does nothing, the next evaluation ends at once. NULL is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn tw_llm_cancel(llm: Option<&tw_llm>) {
    if let Some(llm) = llm {
        llm.cancel.store(true, Ordering::Relaxed);
    }
}
