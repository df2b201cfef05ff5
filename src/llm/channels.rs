//! Texts in parts that have channels: OpenAI's Harmony format, in which GPT-OSS answers.

use super::tokenizer::Tokenizer;

/// What stands before and behind thoughts in the texts of most models.
const THINKS: &str = "<think>\n";
const THOUGHT: &str = "\n</think>\n\n";

/// The channel of thoughts.
const ANALYSIS: &[u8] = b"analysis";

/// Longest name of a channel that is looked at.
const LONGEST: usize = 64;

/// Writes thoughts as other models write theirs, and leaves out what parts begin and end with:
/// `<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B` becomes
/// `<think>\nA\n</think>\n\nB`.
#[derive(Clone, Debug, Default)]
pub(super) struct Channels {
    /// The name of a channel, as far as it is known, while tokens are part of one.
    name: Option<Vec<u8>>,
    /// Whether the part is of thoughts.
    thinks: bool,
}

impl Channels {
    /// What a token stands for, unless that is its own text.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Option<&'static str> {
        let ids = tokenizer.channels()?;
        if id == ids.start || id == ids.channel {
            self.name = Some(Vec::new());
            Some("")
        } else if id == ids.message {
            self.thinks = self.name.take().is_some_and(|name| name.starts_with(ANALYSIS));
            Some(if self.thinks { THINKS } else { "" })
        } else if id == ids.end {
            Some(if core::mem::take(&mut self.thinks) { THOUGHT } else { "" })
        } else {
            let name = self.name.as_mut()?;
            if name.len() < LONGEST {
                name.extend_from_slice(tokenizer.piece(id));
            }
            Some("")
        }
    }
}

/// What of an answer so written stays in a conversation: all but the thoughts, which templates for channels do not know
/// how to find in it. Those of other models do.
pub(super) fn without_thoughts(answer: &str) -> &str {
    let end = THOUGHT.trim_end();
    match answer.rsplit_once(end) {
        Some((_, rest)) => rest.trim_start(),
        None if answer.starts_with(THINKS.trim_end()) => "",
        None => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::tokenizer::Vocabulary;
    use crate::llm::{ChatTemplate, Message};

    /// Tokens: bytes, then those of parts.
    fn tokenizer(last: &'static [u8]) -> Tokenizer {
        let bytes: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
        let mut tokens: Vec<&[u8]> = vec![b"<unk>", b"<s>", b"</s>"];
        tokens.extend(bytes.iter().map(|b| b.as_bytes()));
        let marks: [&[u8]; 6] =
            [b"<|start|>", b"<|channel|>", b"<|message|>", b"<|end|>", b"<|return|>", last];
        tokens.extend(marks);
        let types = [&[2, 3, 3][..], &[6; 256], &[3; 6]].concat();
        Tokenizer::new(&Vocabulary {
            model: "llama",
            scores: Some(vec![0.0; tokens.len()]),
            types: Some(types),
            add_space_prefix: Some(false),
            tokens,
            ..Vocabulary::default()
        })
        .unwrap()
    }

    fn shown(tokenizer: &Tokenizer, text: &str) -> String {
        let mut channels = Channels::default();
        let mut shown = String::new();
        for id in tokenizer.encode(text, true) {
            match channels.push(tokenizer, id) {
                Some(text) => shown += text,
                None => shown += core::str::from_utf8(tokenizer.piece(id)).unwrap(),
            }
        }
        shown
    }

    #[test]
    fn thoughts_are_marked_and_headers_left_out() {
        let t = tokenizer(b"<|call|>");
        let all = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
        assert_eq!(shown(&t, all), "<think>\nSo.\n</think>\n\nYes.");
        let called = "<|channel|>commentary to=functions.f<|message|>{}";
        assert_eq!(shown(&t, called), "{}");
        assert_eq!(shown(&t, "plain<|message|>text<|end|>"), "plaintext");
        assert_eq!(shown(&t, "<|channel|>analysis"), "");
        let long = format!("<|channel|>{}<|message|>x", "final ".repeat(99));
        assert_eq!(shown(&t, &long), "x");
        assert_eq!(without_thoughts("<think>\nSo.\n</think>\n\nYes."), "Yes.");
        assert_eq!(without_thoughts("<think>\nSo.\n</think>"), "");
        assert_eq!(without_thoughts("<think>\nSo"), "");
        assert_eq!(without_thoughts("Yes."), "Yes.");
        // The template of a model whose texts have channels is given answers without thoughts.
        let source = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}";
        let said =
            ["user", "assistant"].map(|role| Message::new(role, "<think>\na\n</think>\n\nb"));
        let text = ChatTemplate::new(source, &t).unwrap().render(&said).unwrap();
        assert_eq!(text, "user<think>\na\n</think>\n\nbassistantb");
        assert!(!t.is_eog(t.encode("<|end|>", true)[0]));
    }

    #[test]
    fn texts_without_channels_are_what_they_are() {
        let t = tokenizer(b"<|other|>");
        assert_eq!(shown(&t, "<|channel|>a<|message|>b"), "<|channel|>a<|message|>b");
        let source = "{{ messages[0].content }}";
        let said = [Message::new("assistant", "<think>\na\n</think>\n\nb")];
        let text = ChatTemplate::new(source, &t).unwrap().render(&said).unwrap();
        assert_eq!(text, said[0].content);
        assert!(t.is_eog(t.encode("<|end|>", true)[0]));
    }
}
