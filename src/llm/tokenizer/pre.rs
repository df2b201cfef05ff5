//! How byte-level vocabularies cut text before merging: one row per way.
//!
//! The patterns are those that the models were trained with (the `pre_tokenizer` in their
//! `tokenizer.json`). They run on automata without backtracking, so the time is linear in the text
//! whatever it is. The one thing in them that such automata lack is `\s+(?!\S)|\s+` at the end: white
//! space, without its last character if something else follows. [`Stage::Words`] is a pattern with
//! that behind it.

use core::ops::Range;

use regex_automata::Input;
use regex_automata::hybrid::regex::{Cache, Regex};

use super::TokenizerError;

/// A way of cutting text. Stages work on the pieces that the ones before them left: what a pattern
/// matches becomes a piece, and so does what lies between two matches.
struct Row {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    stages: &'static [Stage],
    /// A piece that is a token is taken whole, whatever merging would make of it.
    whole: bool,
    /// Whether texts begin with a special token if the file does not say.
    bos: bool,
}

#[derive(Clone, Copy)]
enum Stage {
    /// A pattern.
    Pattern(&'static str),
    /// A pattern, and `\s+(?!\S)|\s+` where it does not match.
    Words(&'static str),
    /// Numbers: their last three digits, the three before them and so on.
    Thousands,
}

use Stage::{Pattern, Thousands, Words};

/// English contractions in both cases.
macro_rules! contractions {
    () => {
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// Chinese characters: what Unicode 15 has in the script Han.
macro_rules! han {
    () => {
        concat!(
            r"\u{2e80}-\u{2e99}\u{2e9b}-\u{2ef3}\u{2f00}-\u{2fd5}\u{3005}\u{3007}\u{3021}-\u{3029}\u{3038}-\u{303b}",
            r"\u{3400}-\u{4dbf}\u{4e00}-\u{9fff}\u{f900}-\u{fa6d}\u{fa70}-\u{fad9}\u{16fe2}\u{16fe3}\u{16ff0}\u{16ff1}",
            r"\u{20000}-\u{2a6df}\u{2a700}-\u{2b739}\u{2b740}-\u{2b81d}\u{2b820}-\u{2cea1}\u{2ceb0}-\u{2ebe0}",
            r"\u{2ebf0}-\u{2ee5d}\u{2f800}-\u{2fa1d}\u{30000}-\u{3134a}\u{31350}-\u{323af}"
        )
    };
}

const GPT2: Stage = Words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const LLAMA3: Stage = Words(concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
));
const DEEPSEEK3: Stage = Words(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
));
const QWEN2: Stage = Words(concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
));

/// Words that end where a capital letter follows a small one, of letters with a condition on each.
macro_rules! cased {
    ($which:expr, $after:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}",
            $which,
            r"]*[\p{Ll}\p{Lm}\p{Lo}\p{M}",
            $which,
            r"]+",
            $after,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}",
            $which,
            r"]+[\p{Ll}\p{Lm}\p{Lo}\p{M}",
            $which,
            r"]*",
            $after
        )
    };
}

const GPT4O: Stage = Words(concat!(
    cased!("", concat!(contractions!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
));

const PLAIN: Row = Row { names: &[], stages: &[], whole: false, bos: false };

const ROWS: &[Row] = &[
    Row {
        names: &["default"],
        stages: &[
            Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
            GPT2,
            Pattern(r"\p{N}+"),
            Pattern("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    Row {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        stages: &[LLAMA3],
        whole: true,
        bos: true,
    },
    Row { names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], stages: &[LLAMA3], ..PLAIN },
    Row {
        names: &[
            "qwen2",
            "stablelm2",
            "deepseek-r1-qwen",
            "megrez",
            "hunyuan",
            "solar-open",
            "grok-2",
            "kormo",
        ],
        stages: &[QWEN2],
        ..PLAIN
    },
    Row {
        names: &["qwen35"],
        stages: &[Words(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        ))],
        ..PLAIN
    },
    Row {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "gigachat",
            "exaone4",
            "mellum",
            "a.x-4.0",
            "modern-bert",
            "granite-docling",
        ],
        stages: &[GPT2],
        ..PLAIN
    },
    Row {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        stages: &[Pattern(r"\p{N}"), GPT2],
        ..PLAIN
    },
    Row {
        names: &["falcon"],
        stages: &[Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, Pattern("[0-9][0-9][0-9]")],
        ..PLAIN
    },
    Row {
        names: &["deepseek-llm"],
        stages: &[
            Pattern(r"[\r\n]"),
            Pattern(concat!(
                r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ",
                r"ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1f7d}ᾀ-ᾴᾶ-ᾼ\u{1fbe}ῂ-ῄῆ-ῌῐ-\u{1fd3}ῖ-\u{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭ",
                r"ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲",
                r"𑢠-𑣟𞤀-𞥃]+"
            )),
            Pattern(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Pattern(r"\s+$"),
            Pattern("[一-龥ࠀ-一가-퟿]+"),
            Pattern(r"\p{N}+"),
        ],
        ..PLAIN
    },
    Row {
        names: &["deepseek-coder"],
        stages: &[
            Pattern(r"[\r\n]"),
            Pattern(r"\s?\p{L}+"),
            Pattern(r"\s?\p{P}+"),
            Pattern("[一-龥ࠀ-一가-퟿]+"),
            Pattern(r"\p{N}"),
        ],
        ..PLAIN
    },
    Row {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        stages: &[Pattern(r"\p{N}{1,3}"), Pattern("[一-龥\u{3040}-ゟ゠-ヿ]+"), DEEPSEEK3],
        ..PLAIN
    },
    Row {
        names: &["afmoe"],
        stages: &[
            Thousands,
            Pattern(
                "[一-\u{9fff}㐀-\u{4dbf}\u{f900}-\u{faff}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}เ-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}\
                က-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}가-\u{d7af}\u{1100}-\u{11ff}]+",
            ),
            DEEPSEEK3,
        ],
        ..PLAIN
    },
    Row { names: &["superbpe"], stages: &[Thousands], ..PLAIN },
    Row {
        names: &["kimi-k2"],
        stages: &[Words(concat!(
            "[",
            han!(),
            "]+|",
            cased!(concat!("&&[^", han!(), "]"), concat!(contractions!(), "?")),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        ))],
        ..PLAIN
    },
    Row {
        names: &["youtu"],
        stages: &[
            Pattern(
                "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\u{303f}︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
            ),
            Words(concat!(
                cased!("", concat!(contractions!(), "?")),
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
            )),
        ],
        ..PLAIN
    },
    Row {
        names: &["tekken"],
        stages: &[Words(concat!(cased!("", ""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"))],
        whole: true,
        bos: true,
    },
    Row { names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"], stages: &[GPT4O], ..PLAIN },
    Row { names: &["tiny_aya", "cohere2moe"], stages: &[Thousands, GPT4O], ..PLAIN },
    Row {
        names: &["minicpm5"],
        stages: &[
            Pattern(r"\p{N}{1,3}"),
            Words(concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            )),
        ],
        whole: true,
        ..PLAIN
    },
    Row {
        names: &["poro-chat", "bloom", "gpt3-finnish"],
        stages: &[Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+")],
        ..PLAIN
    },
    Row {
        names: &["viking"],
        stages: &[Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+"), Pattern(r"\p{N}")],
        ..PLAIN
    },
    Row {
        names: &["seed-coder"],
        stages: &[Words(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        ))],
        ..PLAIN
    },
    Row { names: &["gemma4"], stages: &[Pattern(r"[^\n]+|\n+")], bos: true, ..PLAIN },
    Row {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: &[Words(concat!(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
        ))],
        ..PLAIN
    },
];

/// Cuts text into the pieces within which tokens are made.
#[derive(Debug)]
pub(super) struct Splitter {
    /// The patterns, and whether what they match is cut into threes.
    stages: Vec<(Regex, bool)>,
    whole: bool,
    bos: bool,
}

/// Number of the pattern for white space in [`Stage::Words`].
const WHITE: usize = 1;

impl Splitter {
    /// The one with this name.
    pub(super) fn named(name: &str) -> Result<Self, TokenizerError> {
        let row = ROWS.iter().find(|r| r.names.contains(&name));
        let row = row.ok_or_else(|| TokenizerError::UnsupportedPre(name.to_owned()))?;
        let regex = |stage: &Stage| {
            let regex = match stage {
                Pattern(pattern) => Regex::new(pattern),
                Words(pattern) => Regex::new_many(&[*pattern, r"\s+"]),
                Thousands => Regex::new(r"\p{N}+"),
            };
            let threes = matches!(stage, Thousands);
            regex.map(|regex| (regex, threes)).map_err(|e| TokenizerError::Tables(e.to_string()))
        };
        let stages = row.stages.iter().map(regex).collect::<Result<_, _>>()?;
        Ok(Self { stages, whole: row.whole, bos: row.bos })
    }

    /// Whether a piece that is a token is taken whole.
    pub(super) fn whole_pieces(&self) -> bool {
        self.whole
    }

    /// Whether texts begin with a special token if the file does not say.
    pub(super) fn bos(&self) -> bool {
        self.bos
    }

    /// The pieces, in order; together they are all of `text`.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::from([Range { start: 0, end: text.len() }]);
        for (regex, threes) in &self.stages {
            let mut cut = Vec::with_capacity(pieces.len());
            let mut cache = regex.create_cache();
            for piece in pieces {
                let inside = text.get(piece.clone()).unwrap_or_default();
                let found = Matches { regex, cache: &mut cache, text: inside, at: 0 };
                let mut end = 0;
                for m in found {
                    if m.start > end {
                        cut.push(piece.start + end..piece.start + m.start);
                    }
                    let mut start = m.start;
                    for at in ends_of_threes(inside.get(m.clone()).filter(|_| *threes)) {
                        cut.push(piece.start + start..piece.start + m.start + at);
                        start = m.start + at;
                    }
                    cut.push(piece.start + start..piece.start + m.end);
                    end = m.end;
                }
                if end < inside.len() {
                    cut.push(piece.start + end..piece.end);
                }
            }
            pieces = cut;
        }
        pieces.retain(|p| !p.is_empty());
        pieces
    }
}

/// Where a number is cut, if there is one: so that all its parts but the first have three digits.
fn ends_of_threes(number: Option<&str>) -> impl Iterator<Item = usize> {
    let number = number.unwrap_or_default();
    let digits = number.chars().count();
    let at = number.char_indices().enumerate().skip(1);
    at.filter(move |(i, _)| (digits - i).is_multiple_of(3)).map(|(_, (at, _))| at)
}

/// The matches of a stage in one piece.
struct Matches<'a> {
    regex: &'a Regex,
    cache: &'a mut Cache,
    text: &'a str,
    at: usize,
}

impl Iterator for Matches<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let input = Input::new(self.text).range(self.at..);
        // An error is that the search gave up: at a byte of a pattern that looks at what is a word, or after a number
        // of times that the cache was cleared. There are no such patterns, and no such number is set.
        let found = self.regex.try_search(self.cache, &input).ok()??;
        let mut range = found.range();
        if found.pattern().as_usize() == WHITE && range.end < self.text.len() {
            // Something else follows, and may begin with the last of these characters.
            let last = self.text.get(range.clone())?.chars().next_back()?.len_utf8();
            if range.len() > last {
                range.end -= last;
            }
        }
        // No pattern matches nothing, so this gets on.
        self.at = range.end;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let pieces = Splitter::named(name).unwrap().split(text);
        pieces.into_iter().map(|p| &text[p]).collect()
    }

    #[test]
    fn every_row_works_and_loses_nothing() {
        let text = "Hello,  World's 12345 \n\n x\t\té漢字かな 🦙 a.b!!\r\n  ";
        for name in ROWS.iter().flat_map(|r| r.names) {
            assert_eq!(split(name, text).concat(), text, "{name}");
            assert!(split(name, text).iter().all(|p| !p.is_empty()), "{name}");
            assert!(split(name, "").is_empty());
        }
        let unknown = Splitter::named("no-such").unwrap_err();
        assert_eq!(unknown, TokenizerError::UnsupportedPre("no-such".into()));
    }

    #[test]
    fn known_cuts() {
        assert_eq!(
            split("gpt-2", "I'm 42  cats\n\nx"),
            ["I", "'m", " 42", " ", " cats", "\n", "\n", "x"]
        );
        assert_eq!(
            split("llama-bpe", "I'M 12345\tx  y \n\nz  "),
            ["I", "'M", " ", "123", "45", "\tx", " ", " y", " \n\n", "z", "  "]
        );
        assert_eq!(split("qwen2", "a 123!\n"), ["a", " ", "1", "2", "3", "!\n"]);
        assert_eq!(split("smollm", "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(split("falcon", "x=12345 y"), ["x", "=", "123", "45", " y"]);
        assert_eq!(split("gpt-4o", "helloWorld's  MIX"), ["hello", "World's", " ", " MIX"]);
        assert_eq!(split("tekken", "ABCdef g"), ["ABCdef", " g"]);
        let threes = ["a", " ", "1", "234", "567", " b", "12", "３４5"];
        assert_eq!(split("afmoe", "a 1234567 b12３４5"), threes);
        let han = ["hello", "World", "漢字", "x", " ", "123", "45"];
        assert_eq!(split("kimi-k2", "helloWorld漢字x 12345"), han);
    }

    #[test]
    fn long_runs_take_linear_time() {
        let runs = [" ", "a", "1", "!", "\n", "é", "\n ", " \t", "'", "A a"];
        let start = std::time::Instant::now();
        for row in ROWS {
            let splitter = Splitter::named(row.names[0]).unwrap();
            for run in runs {
                let text = run.repeat(20_000);
                splitter.split(&text);
                splitter.split(&(text + "x"));
            }
        }
        // Quadratic time would take hours.
        assert!(start.elapsed().as_secs() < 600);
    }
}
