//! `cargo xtask book`: the book as web pages, by mdbook.
//!
//! Pages link to files outside `docs`. Those are brought into the book: other pages as chapters, other
//! files as they are. So it can be read where the repository is not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::legs::has_program;
use crate::plain::plain;
use crate::{finish, target_dir};

/// The pages.
const BOOK: &str = "docs";

/// Where files from outside lie in the book.
const OUTSIDE: &str = "tree";

/// What it needs, of what is not there.
pub(crate) fn needs() -> Vec<&'static str> {
    if has_program("mdbook", &[]) { Vec::new() } else { vec!["mdbook"] }
}

/// Builds the book and checks the links of its pages; says where it is.
///
/// # Errors
/// What mdbook says, or a page or a link that cannot be made.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("book: unknown arguments {args:?}"));
    }
    if !needs().is_empty() {
        return Err(
            "book: there is no mdbook: `cargo install mdbook`, or a package of the system".into()
        );
    }
    let folder =
        std::path::absolute(target_dir().join("book")).map_err(|e| format!("book: {e}"))?;
    let source = folder.join("source");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let chapters = stage(&source)?;
    println!("book: {} pages, {} of them from outside {BOOK}", chapters.0, chapters.1);
    let mut mdbook = Command::new("mdbook");
    finish(mdbook.arg("build").arg(&source).arg("--dest-dir").arg(folder.join("html")))?;
    let dead = dead_links(&folder.join("html"))?;
    if !dead.is_empty() {
        return Err(format!("book:\n  {}", dead.join("\n  ")));
    }
    println!("book: {}", folder.join("html/index.html").display());
    Ok(())
}

/// Puts all pages and what they link to into a folder; how many pages, and how many from outside.
fn stage(source: &Path) -> Result<(usize, usize), String> {
    let mut waiting: Vec<PathBuf> = vec![format!("{BOOK}/book.toml").into()];
    let entries = fs::read_dir(BOOK).map_err(|e| format!("{BOOK}: {e}"))?;
    waiting.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()));
    let mut done: BTreeSet<PathBuf> = BTreeSet::new();
    let mut chapters: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut pages = 0;
    while let Some(path) = waiting.pop() {
        if !done.insert(path.clone()) {
            continue;
        }
        let fail = |e| format!("{}: {e}", path.display());
        let staged = source.join(place(&path));
        fs::create_dir_all(staged.parent().unwrap_or(source)).map_err(fail)?;
        if path.extension().is_none_or(|extension| extension != "md") {
            fs::copy(&path, &staged).map_err(fail)?;
            continue;
        }
        pages += 1;
        let text = fs::read_to_string(&path).map_err(fail)?;
        if !path.starts_with(BOOK) {
            let title = text.lines().find_map(|line| line.strip_prefix("# "));
            chapters.insert(place(&path), title.unwrap_or("a page").to_owned());
        }
        let (text, links) = mended(Path::new("."), &path, &text);
        waiting.extend(links);
        fs::write(&staged, text).map_err(fail)?;
    }
    let summary = source.join("SUMMARY.md");
    let mut text = fs::read_to_string(&summary).map_err(|e| format!("{BOOK}/SUMMARY.md: {e}"))?;
    text += "\n# The project\n\n";
    for (path, title) in &chapters {
        text += &format!("- [{title}]({})\n", path.display());
    }
    fs::write(&summary, text).map_err(|e| format!("{}: {e}", summary.display()))?;
    Ok((pages, chapters.len()))
}

/// Where a file of the repository is in the book.
fn place(path: &Path) -> PathBuf {
    path.strip_prefix(BOOK).map_or_else(|_| Path::new(OUTSIDE).join(path), Path::to_path_buf)
}

/// A page with links that lead from where it is in the book; and the files that they lead to. Folders are
/// named, but not linked to.
fn mended(root: &Path, path: &Path, text: &str) -> (String, Vec<PathBuf>) {
    let here = place(path);
    let (mut result, mut links, mut code) = (String::new(), Vec::new(), false);
    for line in text.split_inclusive('\n') {
        code ^= line.trim_start().starts_with("```");
        let mut parts = line.split("](");
        result.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (target, rest) = part.split_once(')').unwrap_or((part, ""));
            let (file, anchor) =
                target.split_once('#').map_or((target, None), |(f, a)| (f, Some(a)));
            let outside = code || file.is_empty() || file.contains("://") || file.contains(' ');
            let found = plain(&path.parent().unwrap_or(Path::new("")).join(file));
            result.push_str("](");
            if outside || !root.join(&found).is_file() {
                let same = outside || !root.join(&found).is_dir();
                result.push_str(if same { target } else { "#" });
            } else {
                result.push_str(&between(&here, &place(&found)));
                anchor.into_iter().for_each(|anchor| result.push_str(&format!("#{anchor}")));
                links.push(found);
            }
            result.push(')');
            result.push_str(rest);
        }
    }
    (result, links)
}

/// The way from one file of the book to another.
fn between(from: &Path, to: &Path) -> String {
    let up = from.components().count() - 1;
    let way: PathBuf = (0..up).map(|_| "..").collect::<PathBuf>().join(to);
    way.to_string_lossy().into_owned()
}

/// Links of web pages to files that are not there.
fn dead_links(html: &Path) -> Result<Vec<String>, String> {
    let (mut folders, mut dead, mut pages) = (vec![html.to_path_buf()], Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| format!("book: {e}"))?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                pages += 1;
                let text = fs::read_to_string(&path).map_err(|e| format!("book: {e}"))?;
                for part in text.split(" href=\"").skip(1) {
                    let target = part.split(['"', '#', '?']).next().unwrap_or_default();
                    let local =
                        !target.is_empty() && !target.contains(':') && !target.starts_with('/');
                    if local && !folder.join(target).exists() {
                        let page = path.strip_prefix(html).unwrap_or(&path);
                        dead.push(format!("{}: dead link {target}", page.display()));
                    }
                }
            }
        }
    }
    if pages < 10 { Err(format!("book: only {pages} pages were made")) } else { Ok(dead) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_in_the_book() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (text, links) = mended(
            &root,
            Path::new("docs/a.md"),
            "[x](tasks.md#inputs) [y](../README.md#a) [z](https://x.org) [w](../kernels) [n](none.md)\n\
             ```sh\n[v](../README.md)\n```\n",
        );
        assert_eq!(
            text,
            "[x](tasks.md#inputs) [y](tree/README.md#a) [z](https://x.org) [w](#) [n](none.md)\n\
             ```sh\n[v](../README.md)\n```\n"
        );
        assert_eq!(links, [Path::new("docs/tasks.md"), Path::new("README.md")]);
        assert_eq!(between(Path::new("tree/a/b.md"), Path::new("c.md")), "../../c.md");
        assert_eq!(plain(Path::new("docs/../models/./x.md")), Path::new("models/x.md"));
    }
}
