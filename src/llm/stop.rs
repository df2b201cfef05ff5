//! Ends of streamed text: strings that stop it, wherever they are cut into pieces.

/// Looks for strings in a text that comes in pieces. What could still become one of them is held back,
/// and no more than that.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
    hit: bool,
}

impl StopStrings {
    /// Looks for these strings; empty ones are never found.
    #[must_use]
    pub fn new(strings: impl IntoIterator<Item = String>) -> Self {
        let strings = strings.into_iter().filter(|s| !s.is_empty()).collect();
        Self { strings, held: String::new(), hit: false }
    }

    /// What can be shown after one more piece. Once a string is found, that is the text before it, and
    /// nothing comes any more.
    pub fn push(&mut self, piece: &str) -> String {
        if self.hit {
            return String::new();
        }
        self.held.push_str(piece);
        // The one that begins first; of two that begin together it does not matter.
        let found = self.strings.iter().filter_map(|s| self.held.find(s.as_str())).min();
        if let Some(at) = found {
            self.hit = true;
            self.held.truncate(at);
            return core::mem::take(&mut self.held);
        }
        let shown = self.held.len() - self.waiting();
        self.held.drain(..shown).collect()
    }

    /// Whether one of the strings was found.
    #[must_use]
    pub fn hit(&self) -> bool {
        self.hit
    }

    /// What was held back, at the end of the text.
    pub fn finish(&mut self) -> String {
        core::mem::take(&mut self.held)
    }

    /// Bytes at the end of the text that one of the strings begins with.
    fn waiting(&self) -> usize {
        let longest = |stop: &String| {
            let most = (stop.len() - 1).min(self.held.len());
            let begins = |n: &usize| {
                self.held.is_char_boundary(self.held.len() - n)
                    && stop.as_bytes().starts_with(&self.held.as_bytes()[self.held.len() - n..])
            };
            (1..=most).rev().find(begins).unwrap_or(0)
        };
        self.strings.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool, String) {
        let mut stop = StopStrings::new(stops.iter().map(ToString::to_string));
        let shown = pieces.iter().map(|p| stop.push(p)).collect();
        (shown, stop.hit(), stop.finish())
    }

    #[test]
    fn text_is_held_only_as_long_as_it_may_be_a_stop() {
        let (shown, hit, rest) = run(&["END"], &["aE", "N", "E", "NDx", "y"]);
        assert_eq!(shown, ["a", "", "EN", "", ""]);
        assert!(hit && rest.is_empty());
        let (shown, hit, rest) = run(&["END"], &["EN"]);
        assert_eq!((shown[0].as_str(), hit, rest.as_str()), ("", false, "EN"));
    }

    #[test]
    fn several_stops_and_repeated_beginnings() {
        assert_eq!(run(&["aab"], &["aa", "a", "b"]).0, ["", "a", ""]);
        assert_eq!(run(&["x", "\n\n"], &["one\n", "two\n", "\nthree"]).0, ["one", "\ntwo", ""]);
        assert_eq!(run(&["bc", "abcd"], &["abc"]).0, ["a"], "the one that is whole wins");
        assert_eq!(run(&["é!"], &["é", "é", "!"]).0, ["", "é", ""]);
        assert_eq!(run(&[""], &["a"]).0, ["a"]);
    }
}
