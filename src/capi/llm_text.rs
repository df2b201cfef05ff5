//! Text to tokens and back.

use core::ffi::c_char;

use tilewright_c_kernels::tw_status;

use super::call::{call, copy_out, put, slice, text};
use super::llm::Language;
use super::model::tw_model;
use super::status::Failure;
use crate::llm::Message;

/// For `tw_tokenize`: what looks like a token that steers the model is one.
pub const TW_SPECIAL: u32 = 1;

/// For `tw_tokenize`: with the tokens that belong around a text by itself, such as the one that begins
/// it.
pub const TW_WHOLE: u32 = 2;

/// The tokens of `length` bytes of text: `*count` becomes their number, and `tokens`, if it has room
/// for `capacity` of at least as many, the tokens. To ask for the number, pass NULL and 0.
///
/// Gives `TW_BUFFER_TOO_SMALL` (with `*count` set), `TW_INVALID_ARGUMENT` for text that is not UTF-8.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `text` is NULL or readable for `length` bytes; `tokens` is NULL or
/// writable for `capacity` numbers, `count` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tokenize(
    model: Option<&tw_model>,
    text: *const c_char,
    length: usize,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> tw_status {
    call(|| {
        let tokenizer = &Language::of(model)?.tokenizer;
        if flags & !(TW_SPECIAL | TW_WHOLE) != 0 {
            return Err(Failure::argument(format!("flags: {flags:#x} has unknown bits")));
        }
        // SAFETY: as the caller promises.
        let text = unsafe { slice(text.cast::<u8>(), length, "text")? };
        let text =
            core::str::from_utf8(text).map_err(|e| Failure::argument(format!("text: {e}")))?;
        let special = flags & TW_SPECIAL != 0;
        let found = match flags & TW_WHOLE {
            0 => tokenizer.encode(text, special),
            _ => tokenizer.encode_whole(text, special),
        };
        // SAFETY: as the caller promises.
        unsafe { copy_out(&found, tokens, capacity, count) }
    })
}

/// The text of `count` tokens, without those that steer the model: `*length` becomes its bytes, and
/// `text`, if it has room for `capacity` of at least as many, the text, without a zero byte at the end.
/// Bytes outside UTF-8 become U+FFFD. To ask for the length, pass NULL and 0.
///
/// Gives `TW_BUFFER_TOO_SMALL` (with `*length` set).
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `tokens` is NULL or readable for `count` numbers; `text` is NULL or
/// writable for `capacity` bytes, `length` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_detokenize(
    model: Option<&tw_model>,
    tokens: *const u32,
    count: usize,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> tw_status {
    call(|| {
        let tokenizer = &Language::of(model)?.tokenizer;
        // SAFETY: as the caller promises.
        let tokens = unsafe { slice(tokens, count, "tokens")? };
        let found = tokenizer.decode(tokens);
        // SAFETY: as the caller promises.
        unsafe { copy_out(found.as_bytes(), text.cast(), capacity, length) }
    })
}

/// Number of tokens that a language model knows.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_vocabulary(model: Option<&tw_model>, count: *mut usize) -> tw_status {
    call(|| {
        let language = Language::of(model)?;
        // SAFETY: as the caller promises.
        unsafe { put(count, "count", language.tokenizer.len()) }
    })
}

/// Whether a token ends a text: 1 or 0, and 0 for what is no token or no language model.
///
/// Any thread may call it, several at a time.
#[unsafe(no_mangle)]
pub extern "C" fn tw_is_end(model: Option<&tw_model>, token: u32) -> i32 {
    Language::of(model).map_or(0, |language| i32::from(language.tokenizer.is_eog(token)))
}

/// Something said in a conversation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_message {
    /// Who says it: `"system"`, `"user"` or `"assistant"`.
    pub role: *const c_char,
    /// What is said.
    pub content: *const c_char,
}

/// The text of a conversation as the model's chat template has it, with the beginning of the model's
/// next message behind it, to be tokenized with `TW_SPECIAL`. What people said cannot pass for tokens
/// that steer the model. `*length` and `out` are as in `tw_detokenize`.
///
/// Gives `TW_FORMAT` if the template is damaged or refuses the conversation, `TW_BUFFER_TOO_SMALL`
/// (with `*length` set).
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `messages` is NULL or readable for `count` messages, whose strings end
/// with a zero byte; `out` is NULL or writable for `capacity` bytes, `length` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_chat_text(
    model: Option<&tw_model>,
    messages: *const tw_message,
    count: usize,
    out: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> tw_status {
    call(|| {
        let language = Language::of(model)?;
        // SAFETY: as the caller promises.
        let messages = unsafe { slice(messages, count, "messages")? };
        let message = |m: &tw_message| {
            // SAFETY: as the caller promises.
            let (role, content) = unsafe {
                (text(m.role, "messages[i].role")?, text(m.content, "messages[i].content")?)
            };
            Ok(Message::new(role, language.tokenizer.shield(content)))
        };
        let messages = messages.iter().map(message).collect::<Result<Vec<_>, Failure>>()?;
        let found = language
            .template()?
            .render(&messages)
            .map_err(|e| Failure::new(tw_status::TW_FORMAT, e.to_string()))?;
        // SAFETY: as the caller promises.
        unsafe { copy_out(found.as_bytes(), out.cast(), capacity, length) }
    })
}
