//! `cargo xtask tidy`: rules that neither the compiler nor clippy knows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest source file, in lines.
const MAX_LINES: usize = 600;

/// Lines above an `unsafe` block in which its `SAFETY:` comment may begin.
const SAFETY_REACH: usize = 16;

/// Words that code in a folder must not contain: the layer that they belong to lies above it.
const LAYERS: [(&str, &[&str]); 10] = [
    ("intrinsics/src", &["tilewright_kernels", "tilewright::", "tensor", "graph", "onnx", "gguf"]),
    ("kernels/src", &["tilewright::", "tensor", "graph", "onnx", "gguf"]),
    ("src/tensor", &["crate::graph", "crate::import", "crate::backend", "crate::io", "onnx"]),
    ("src/graph", &["crate::import", "crate::io", "crate::task", "onnx", "gguf"]),
    ("src/import", &["crate::backend", "crate::io", "crate::task"]),
    ("src/backend", &["crate::import", "crate::io", "crate::task", "onnx", "gguf"]),
    ("src/io", &["crate::graph", "crate::import", "crate::backend", "crate::task"]),
    ("src/capi", &["crate::backend::cpu", "crate::cli", "tilewright_intrinsics"]),
    ("c/kernels/src", &["tilewright::", "tilewright_intrinsics", "tensor::", "onnx", "gguf"]),
    ("src/cli", &["tilewright_kernels", "tilewright_intrinsics"]),
];

/// Notes to oneself, in pieces so that this file does not contain them.
const LEFTOVERS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("dbg", "!("),
    concat!("todo", "!("),
];

/// Beginnings of paths that exist on one machine only.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// Kinds of text files.
const TEXT: [&str; 7] = ["rs", "toml", "md", "py", "sh", "txt", "run"];

/// A text file of the repository.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|e| e == extension)
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// Checks every rule.
///
/// # Errors
/// All findings, one per line.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("tidy: unknown arguments {args:?}"));
    }
    let mut files = Vec::new();
    collect(Path::new("."), &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut findings = Vec::new();
    for file in &files {
        text_rules(file, &mut findings);
        if file.is("rs") {
            layer_rules(file, &mut findings);
            safety_rules(file, &mut findings);
            if file.text.lines().count() >= MAX_LINES {
                findings.push(format!("{}: {MAX_LINES} lines or more", file.path.display()));
            }
        }
    }
    unused_names(&files, &mut findings);
    findings.extend(crate::port::check_lines());
    dependencies(&files, &mut findings);
    if files.iter().filter(|f| f.is("rs")).count() < 20 {
        findings.push("tidy: hardly any source files found".into());
    }
    if findings.is_empty() {
        println!("tidy: {} files are in order", files.len());
        return Ok(());
    }
    Err(format!("tidy: {} findings\n  {}", findings.len(), findings.join("\n  ")))
}

/// Text files under `folder`, build products and data left out.
fn collect(folder: &Path, files: &mut Vec<File>) -> Result<(), String> {
    let fail = |e| format!("tidy: {}: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let path = path.strip_prefix(".").unwrap_or(&path).to_path_buf();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let skipped = ["target", "out", ".git", "__pycache__", "cache", "venv"];
        if path.is_dir() {
            if !skipped.contains(&name.as_str()) {
                collect(&path, files)?;
            }
        } else if TEXT.iter().any(|t| path.extension().is_some_and(|e| e == *t)) || name == "run" {
            let text =
                fs::read_to_string(&path).map_err(|e| format!("tidy: {}: {e}", path.display()))?;
            files.push(File { path, text });
        }
    }
    Ok(())
}

fn text_rules(file: &File, findings: &mut Vec<String>) {
    for (number, line) in file.lines() {
        let mut find = |what: &str| {
            findings.push(format!("{}:{number}: {what}", file.path.display()));
        };
        if line.ends_with([' ', '\t']) {
            find("white space at the end of the line");
        }
        if line.contains('\t') && file.is("rs") {
            find("a tab");
        }
        if let Some(word) = LEFTOVERS.iter().find(|w| line.contains(**w)) {
            find(word);
        }
        if let Some(path) = MACHINE_PATHS.iter().find(|p| line.contains(**p)) {
            find(&format!("a path of one machine: {path}"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(format!("{}: no line end at the end", file.path.display()));
    }
}

/// The line without its comment, good enough for a search.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn layer_rules(file: &File, findings: &mut Vec<String>) {
    for (folder, words) in LAYERS {
        if !file.path.starts_with(folder) {
            continue;
        }
        for (number, line) in file.lines() {
            let code = code(line).to_lowercase();
            for word in words.iter().filter(|w| contains_word(&code, w)) {
                findings.push(format!("{}:{number}: names `{word}`", file.path.display()));
            }
        }
    }
}

/// Whether `word` stands in `text` and is not a part of a longer word.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !is_part(before) && (word.ends_with("::") || !is_part(after))
    })
}

/// Clippy asks for `SAFETY:` at unsafe blocks, but does not see bodies of macros.
fn safety_rules(file: &File, findings: &mut Vec<String>) {
    let lines: Vec<&str> = file.text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        let code = code(line);
        if !contains_word(code, "unsafe") || !code.contains("unsafe {") || line.contains('"') {
            continue;
        }
        let near = &lines[i.saturating_sub(SAFETY_REACH)..=i];
        if !near.iter().any(|l| l.contains("SAFETY")) {
            let place = format!("{}:{}", file.path.display(), i + 1);
            findings.push(format!("{place}: unsafe block without a SAFETY: comment"));
        }
    }
}

/// Names that the two lower crates export and nobody uses: rustc cannot see that.
fn unused_names(files: &[File], findings: &mut Vec<String>) {
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    let sources = || files.iter().filter(|f| f.is("rs"));
    for file in sources() {
        for word in file.text.split(|c: char| !c.is_alphanumeric() && c != '_') {
            *uses.entry(word).or_default() += 1;
        }
    }
    let shared =
        |f: &&File| f.path.starts_with("intrinsics/src") || f.path.starts_with("kernels/src");
    for file in sources().filter(shared) {
        for (number, line) in file.lines() {
            let rest = line.trim_start();
            let item = [
                "pub fn ",
                "pub unsafe fn ",
                "pub const fn ",
                "pub struct ",
                "pub enum ",
                "pub const ",
                "pub type ",
                "macro_rules! ",
            ];
            let Some(name) = item.iter().find_map(|i| rest.strip_prefix(i)) else { continue };
            let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
            if !name.is_empty() && uses.get(name) == Some(&1) {
                findings.push(format!("{}:{number}: nobody uses `{name}`", file.path.display()));
            }
        }
    }
}

/// Each dependency is used, and named in ARCHITECTURE.md with its reason.
fn dependencies(files: &[File], findings: &mut Vec<String>) {
    let reasons = files.iter().find(|f| f.path == Path::new("ARCHITECTURE.md"));
    let reasons = reasons.map(|f| f.text.as_str()).unwrap_or_default();
    for file in files.iter().filter(|f| f.path.ends_with("Cargo.toml")) {
        let folder = file.path.parent().unwrap_or(Path::new(""));
        let path = file.path.display();
        for name in dependency_names(&file.text) {
            if !reasons.contains(&format!("`{name}`")) && !name.starts_with("tilewright") {
                findings
                    .push(format!("{path}: ARCHITECTURE.md does not say why there is `{name}`"));
            }
            let word = name.replace('-', "_");
            let mut sources = files.iter().filter(|f| f.is("rs") && f.path.starts_with(folder));
            if !sources
                .any(|f| contains_word(&f.text, &word) || f.text.contains(&format!("{word}::")))
            {
                findings.push(format!("{path}: nobody uses `{name}`"));
            }
        }
    }
}

/// Keys of the tables of dependencies.
fn dependency_names(manifest: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut in_table = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_table = line.contains("dependencies]");
            continue;
        }
        let Some((name, _)) = line.split_once('=').filter(|_| in_table) else { continue };
        let name = name.trim().split('.').next().unwrap_or_default();
        if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn layers_are_words_of_code() {
        let mut findings = Vec::new();
        let text = "// a tensor in a comment\nlet graphs = 1;\nuse crate::graph::Tensor;\n";
        layer_rules(&file("kernels/src/a.rs", text), &mut findings);
        assert_eq!(
            findings,
            ["kernels/src/a.rs:3: names `tensor`", "kernels/src/a.rs:3: names `graph`"]
        );
    }

    #[test]
    fn unsafe_blocks_need_a_reason() {
        let mut findings = Vec::new();
        safety_rules(&file("a.rs", "// SAFETY: it is.\nunsafe { f() }\n"), &mut findings);
        safety_rules(&file("a.rs", "// no unsafe { here }\n"), &mut findings);
        assert!(findings.is_empty());
        safety_rules(&file("a.rs", "macro!(unsafe { f() })\n"), &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn leftovers_and_machine_paths_are_found() {
        let mut findings = Vec::new();
        let text = format!("{} later\nopen({}me/x) \n", LEFTOVERS[0], MACHINE_PATHS[1]);
        text_rules(&file("a.py", &text), &mut findings);
        assert_eq!(findings.len(), 3, "{findings:?}");
    }

    #[test]
    fn names_are_used_or_reported() {
        let files = [
            file("kernels/src/a.rs", "pub fn used() {}\npub fn unused() {}\n"),
            file("src/b.rs", "use kernels::used;\n"),
        ];
        let mut findings = Vec::new();
        unused_names(&files, &mut findings);
        assert_eq!(findings, ["kernels/src/a.rs:2: nobody uses `unused`"]);
    }

    #[test]
    fn dependencies_have_users_and_reasons() {
        let files = [
            file("ARCHITECTURE.md", "`used` and `idle` have reasons\n"),
            file(
                "a/Cargo.toml",
                "[dependencies]\nused = \"1\"\nidle.workspace = true\nodd-one = \"2\"\n",
            ),
            file("a/src/lib.rs", "use used::x;\nodd_one::f();\n"),
        ];
        let mut findings = Vec::new();
        dependencies(&files, &mut findings);
        assert_eq!(
            findings,
            [
                "a/Cargo.toml: nobody uses `idle`",
                "a/Cargo.toml: ARCHITECTURE.md does not say why there is `odd-one`",
            ]
        );
    }
}
