//! `tilewright chat`: a conversation.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Instant;

use tilewright::llm::{ChatTemplate, Finish, GenerateOptions, Message, SamplerOptions};

use super::args::ChatArgs;
use super::generate::Made;
use super::{Interrupts, Ready, rate, show};
use crate::cli::{Failure, report};

const HELP: &str = "\
/system TEXT   say who the model is, and begin again
/reset         begin again
/exit          leave
/help          show this
A \\ at the end of a line continues the message on the next one.";

/// What ends an answer of a model that ChatML is tried on, if it has no tokens for that.
const CHATML_ENDS: [&str; 2] = ["<|im_end|>", "<|im_start|>"];

/// Fewest tokens of room for an answer, as a part of the context.
const ROOM: usize = 8;

struct Chat<'a> {
    args: &'a ChatArgs,
    ready: Ready,
    template: ChatTemplate,
    sampler: SamplerOptions,
    system: Option<String>,
    messages: Vec<Message>,
    interrupts: Interrupts,
}

/// What a line asks for.
enum Line {
    Say(String),
    System(String),
    Reset,
    Help,
    Exit,
    Unknown(String),
    Nothing,
}

impl Line {
    fn parse(text: &str) -> Self {
        let text = text.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match word {
            "" => Self::Nothing,
            "/system" => Self::System(rest.trim().to_owned()),
            "/reset" => Self::Reset,
            "/help" => Self::Help,
            "/exit" | "/quit" => Self::Exit,
            _ if text.starts_with('/') && rest.is_empty() => Self::Unknown(word.to_owned()),
            _ => Self::Say(text.to_owned()),
        }
    }
}

/// The command.
pub(crate) fn chat(args: &ChatArgs) -> Result<(), Failure> {
    let interrupts = Interrupts::handle()?;
    let ready = Ready::load(Some(&args.model), &args.machine, None, false)?;
    let template = ChatTemplate::from_gguf(ready.llm.metadata(), &ready.tokenizer)
        .map_err(|e| Failure::new(&ready.name, e))?;
    if template.is_fallback() {
        report::note(
            "note: the file has no chat template, so messages are written as ChatML; a model that was \
             not trained on conversations will not answer well",
        );
    }
    let sampler = args.sampling.options();
    let (system, messages) = (args.system.clone(), Vec::new());
    let mut chat = Chat { args, ready, template, sampler, system, messages, interrupts };
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if terminal {
        report::note(&format!("{}: /help shows what can be said", chat.ready.name));
    }
    while let Some(line) = read(terminal)? {
        match Line::parse(&line) {
            Line::Nothing => {}
            Line::Exit => break,
            Line::Help => report::note(HELP),
            Line::Unknown(word) => report::note(&format!("there is no command {word}\n{HELP}")),
            Line::Reset => chat.messages.clear(),
            Line::System(text) => {
                chat.messages.clear();
                chat.system = Some(text).filter(|t| !t.is_empty());
            }
            Line::Say(text) => {
                if !chat.answer(&text, terminal)? {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The next message, several lines of which may belong together; `None` at the end of the input.
fn read(terminal: bool) -> Result<Option<String>, Failure> {
    let mut text = String::new();
    loop {
        if terminal {
            let prompt = if text.is_empty() { "> " } else { ". " };
            let mut out = std::io::stdout();
            let _ = out.write_all(prompt.as_bytes()).and_then(|()| out.flush());
        }
        let mut line = Vec::new();
        let read = std::io::stdin().lock().read_until(b'\n', &mut line);
        if read.map_err(|e| Failure::new("cannot read standard input", e))? == 0 {
            return Ok(Some(text).filter(|t| !t.is_empty()));
        }
        let line = super::text("standard input", line)?;
        let line = line.trim_end_matches(['\n', '\r']);
        match line.strip_suffix('\\') {
            Some(begun) => {
                text += begun;
                text.push('\n');
            }
            None => return Ok(Some(text + line)),
        }
    }
}

impl Chat<'_> {
    /// Says something to the model and shows its answer; false if nobody reads it.
    fn answer(&mut self, text: &str, terminal: bool) -> Result<bool, Failure> {
        self.messages.push(Message::new("user", self.ready.tokenizer.shield(text)));
        let tokens = match self.tokens() {
            Ok(tokens) => tokens,
            Err(failure) => {
                self.messages.pop();
                report::note(&format!("error: {failure}"));
                return if terminal { Ok(true) } else { Err(Failure("there is no answer".into())) };
            }
        };
        let mut stop = self.args.sampling.stop.clone();
        if self.template.is_fallback() {
            stop.extend(CHATML_ENDS.map(str::to_owned));
        }
        let options = GenerateOptions {
            sampler: self.sampler.clone(),
            max_tokens: self.args.predict,
            ignore_eos: self.args.sampling.ignore_eos,
            stop,
            context_shift: self.args.sampling.context_shift,
            keep: 0,
        };
        // Answers to the same words differ, but the conversation can be repeated.
        self.sampler.seed = self.sampler.seed.wrapping_add(1);
        let start = Instant::now();
        let flag = self.ready.session.cancel_flag();
        let Ready { session, tokenizer, .. } = &mut self.ready;
        let before = session.tokens().iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        let work = || -> Result<Option<Made>, Failure> {
            let mut generation = match session.generate(tokenizer, &tokens, options) {
                Err(tilewright::Error::Llm(tilewright::llm::LlmError::Cancelled)) => {
                    return Ok(None);
                }
                other => other?,
            };
            Made::from(&mut generation, start.elapsed(), true).map(Some)
        };
        let (made, _) = self.interrupts.during(&flag, work);
        let Some(made) = made? else {
            self.messages.pop();
            return Ok(true);
        };
        if terminal {
            let first = made.first.map_or(0.0, |t| (t - start).as_secs_f64());
            let decode = rate(made.tokens.len().saturating_sub(1), made.decode_time);
            let end = if made.finish == Finish::Length { "; no more room or tokens" } else { "" };
            report::note(&format!(
                "[{} new tokens, first after {}, then {decode:.1} tokens/s{end}]",
                tokens.len() - before,
                report::duration(first),
            ));
        }
        let answer = self.ready.tokenizer.shield(made.text.trim());
        self.messages.push(Message::new("assistant", answer));
        show("")
    }

    /// The conversation as tokens; its oldest messages are forgotten if there is no room for them.
    fn tokens(&mut self) -> Result<Vec<u32>, Failure> {
        let context = self.ready.session.context();
        loop {
            let system = self
                .system
                .as_ref()
                .map(|text| Message::new("system", self.ready.tokenizer.shield(text)));
            let messages: Vec<Message> = system.into_iter().chain(self.messages.clone()).collect();
            let tokens = self.encode(&self.template.render(&messages)?);
            if tokens.len() + context / ROOM <= context {
                return Ok(tokens);
            }
            // Templates want a user's message to be first, so question and answer go together.
            if self.messages.len() < 3 {
                return Err(Failure(format!(
                    "this message has {} tokens with what belongs around it, too many for a context \
                     of {context}; a larger --ctx may help",
                    tokens.len()
                )));
            }
            self.messages.drain(..2);
            report::note("note: the context is full; the oldest messages are forgotten");
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let tokenizer = &self.ready.tokenizer;
        let tokens = tokenizer.encode(text, true);
        // Most templates write the token that begins a text, some leave that to others.
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        let bos = bos.filter(|bos| tokens.first() != Some(bos));
        bos.into_iter().chain(tokens).collect()
    }
}
