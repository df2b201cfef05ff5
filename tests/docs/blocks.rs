//! Fenced blocks of the pages, by language.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag};

use crate::{pages, root};

/// A fenced block.
pub(crate) struct Block {
    /// Page and line, to name it by.
    pub(crate) place: String,
    /// The page.
    pub(crate) page: String,
    /// What stands behind the fence.
    pub(crate) info: String,
    pub(crate) text: String,
    /// The file that it is quoted from.
    pub(crate) from: Option<String>,
}

impl Block {
    pub(crate) fn language(&self) -> &str {
        self.info.split([',', ' ']).next().unwrap_or("")
    }
}

/// The blocks of all pages.
pub(crate) fn blocks() -> Vec<Block> {
    let mut found = Vec::new();
    for page in pages() {
        let name = page.path.to_string_lossy().into_owned();
        let (mut from, mut open): (Option<String>, Option<Block>) = (None, None);
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        for (event, range) in Parser::new_ext(&page.text, options).into_offset_iter() {
            let line = || page.text[..range.start].lines().count() + 1;
            match event {
                Event::Html(html) => {
                    let quoted = html.trim().strip_prefix("<!-- from ");
                    from = quoted.and_then(|s| s.strip_suffix(" -->")).map(str::to_owned).or(from);
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => info.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    open = Some(Block {
                        place: format!("{name}:{}", line()),
                        page: name.clone(),
                        info,
                        text: String::new(),
                        from: from.take(),
                    });
                }
                Event::Text(text) => {
                    if let Some(block) = &mut open {
                        block.text.push_str(&text);
                    }
                }
                Event::End(pulldown_cmark::TagEnd::CodeBlock) => found.extend(open.take()),
                Event::Start(Tag::Paragraph | Tag::Heading { .. }) => from = None,
                _ => {}
            }
        }
    }
    found
}

#[test]
fn every_block_has_a_language_with_a_check() {
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for block in blocks() {
        let (place, page) = (&block.place, &block.page);
        match block.language() {
            _ if block.from.is_some() => {}
            "rust" => {
                let listed = library.contains(&format!("include_str!(\"../{page}\")"));
                assert!(listed, "{place}: src/lib.rs does not test the programs of this page");
                assert!(
                    !block.info.contains("ignore"),
                    "{place}: untested, and quoted from nowhere"
                );
            }
            "asm" => assert_eq!(page, "docs/kernels.md", "{place}: nothing checks it"),
            "c" | "sh" | "console" | "json" | "text" => {}
            other => panic!("{place}: nothing checks the language {other:?}"),
        }
    }
}

/// Whether the lines stand in the text one after the other, wherever they begin on their lines; `...` stands
/// for any lines.
fn quotes(text: &str, quoted: &str) -> Result<(), String> {
    let file: Vec<&str> = text.lines().map(str::trim).collect();
    // Where the line before stands, and whether lines may be left out behind it.
    let mut at: Option<(usize, bool)> = None;
    for line in quoted.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if ["...", "// ...", "# ..."].contains(&line) {
            at = at.map(|(at, _)| (at, true));
            continue;
        }
        let next = match at {
            None => (0..file.len()).find(|&i| file[i] == line),
            Some((at, true)) => (at + 1..file.len()).find(|&i| file[i] == line),
            Some((at, false)) => {
                let next = (at + 1..file.len()).find(|&i| !file[i].is_empty());
                next.filter(|&i| file[i] == line)
            }
        };
        at = Some((next.ok_or_else(|| format!("there is no such line: {line}"))?, false));
    }
    at.map(|_| ()).ok_or_else(|| "an empty quotation".into())
}

#[test]
fn quotations_stand_in_their_files() {
    let mut quoted = 0;
    for block in blocks() {
        let Some(path) = &block.from else { continue };
        let text = fs::read_to_string(root().join(path))
            .unwrap_or_else(|e| panic!("{}: {path}: {e}", block.place));
        quotes(&text, &block.text).unwrap_or_else(|e| panic!("{}: {path}: {e}", block.place));
        quoted += 1;
    }
    assert!(quoted > 5, "{quoted} quotations");
}

#[test]
fn wrong_quotations_are_found() {
    let text = "one\n  two\n\nthree\nfour\n";
    assert!(quotes(text, "two\nthree\n").is_ok());
    assert!(quotes(text, "one\n...\nfour\n").is_ok());
    assert!(quotes(text, "one\nthree\n").is_err());
    assert!(quotes(text, "four\n...\none\n").is_err());
    assert!(quotes(text, "five\n").is_err() && quotes(text, "").is_err());
}

/// `cargo xtask capi` links and runs those of the guide; a compiler is where Rust programs are linked.
#[test]
fn programs_in_c_compile() {
    let mut compiled = 0;
    for block in blocks().iter().filter(|block| block.language() == "c") {
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]);
        cc.arg("-I").arg(root().join("include")).args(["-x", "c", "-"]);
        let Ok(mut cc) = cc.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
            println!("skipped: there is no cc");
            return;
        };
        cc.stdin.take().unwrap().write_all(block.text.as_bytes()).unwrap();
        let output = cc.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:\n{said}", block.place);
        compiled += 1;
    }
    assert!(compiled > 1);
}
