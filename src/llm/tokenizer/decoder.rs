//! From tokens to text, piece by piece.

use super::Tokenizer;

/// Turns tokens into text as they come. Bytes that are only the beginning of a character are held
/// back until the rest of it comes; bytes that can no longer become one turn into U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    held: Vec<u8>,
    special: bool,
}

impl Decoder {
    /// A decoder at the beginning of a text, which leaves out control tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder that writes control tokens as they are named in the vocabulary.
    #[must_use]
    pub fn with_special() -> Self {
        Self { held: Vec::new(), special: true }
    }

    /// What can be shown after one more token.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.special || !tokenizer.is_control(id) {
            self.push_bytes(tokenizer.piece(id))
        } else {
            String::new()
        }
    }

    /// What can be shown after some more bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match core::str::from_utf8(rest) {
                Ok(all) => {
                    text.push_str(all);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (good, bad) = rest.split_at(e.valid_up_to());
                    text.push_str(core::str::from_utf8(good).unwrap_or_default());
                    let Some(wrong) = e.error_len() else {
                        rest = bad;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[wrong..];
                }
            }
        }
        let kept = self.held.len() - rest.len();
        self.held.drain(..kept);
        text
    }

    /// What is left at the end of the text: U+FFFD for the beginning of a character that never
    /// became whole.
    pub fn finish(&mut self) -> String {
        let text = if self.held.is_empty() { "" } else { "\u{fffd}" };
        self.held.clear();
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_appear_whole() {
        let mut decoder = Decoder::new();
        let text = "aé漢🦙\u{301}z";
        let mut shown = String::new();
        for byte in text.bytes() {
            let more = decoder.push_bytes(&[byte]);
            assert!(more.chars().count() <= 1);
            shown += &more;
        }
        assert_eq!(shown + &decoder.finish(), text);
    }

    #[test]
    fn bad_bytes_are_replaced_once_known() {
        let mut decoder = Decoder::new();
        assert_eq!(decoder.push_bytes(b"a\xff"), "a\u{fffd}");
        assert_eq!(decoder.push_bytes(b"\xf0\x9f"), "");
        assert_eq!(decoder.push_bytes(b"b"), "\u{fffd}b");
        assert_eq!(decoder.push_bytes(b"\xc3"), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
        assert_eq!(decoder.push_bytes(b"\x80\x80"), "\u{fffd}\u{fffd}");
    }
}
