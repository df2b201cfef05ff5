//! Links of the pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::plain::plain;
use crate::{Page, pages, root};

fn events(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES)
}

/// Names of the places in a page: its headings as sites for Git and mdbook name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut seen) = (BTreeSet::new(), BTreeMap::new());
    let mut heading: Option<String> = None;
    for event in events(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let words = heading.take().unwrap_or_default().to_lowercase();
                let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
                let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
                let count = seen.entry(name.clone()).or_insert(0);
                *count += 1;
                found.insert(if *count == 1 { name } else { format!("{name}-{}", *count - 1) });
            }
            _ => {}
        }
    }
    found
}

/// What is wrong with the links of a page.
fn dead(page: &Page) -> Vec<String> {
    let folder = page.path.parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for event in events(&page.text) {
        let (Event::Start(Tag::Link { dest_url, .. }) | Event::Start(Tag::Image { dest_url, .. })) =
            event
        else {
            continue;
        };
        if dest_url.contains("://") || dest_url.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = dest_url.split_once('#').unwrap_or((&dest_url, ""));
        let target = plain(&if file.is_empty() { page.path.clone() } else { folder.join(file) });
        let full = root().join(&target);
        let text = if full.is_file() { fs::read_to_string(&full).ok() } else { None };
        let there = match (anchor, text) {
            ("", _) => full.exists(),
            (anchor, Some(text)) => anchors(&text).contains(anchor),
            _ => false,
        };
        if !there {
            findings.push(format!("{}: dead link {dest_url}", page.path.display()));
        }
    }
    findings
}

#[test]
fn links_and_anchors_lead_somewhere() {
    let findings: Vec<String> = pages().iter().flat_map(dead).collect();
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn dead_links_are_found() {
    let text = "# One `two` (3)!\n[a](#one-two-3) [b](tasks.md#inputs) [c](none.md)\n[d](tasks.md#none)\n\
                `[e](none)` [f](../README.md) [g](https://example.org)\n\n```sh\n[h](none)\n```\n";
    let page = Page { path: "docs/a.md".into(), text: text.into() };
    // The page itself is not there, but its own anchor is looked up in the file.
    let found = dead(&page);
    assert_eq!(
        found,
        [
            "docs/a.md: dead link #one-two-3",
            "docs/a.md: dead link none.md",
            "docs/a.md: dead link tasks.md#none"
        ]
    );
    assert!(anchors(text).contains("one-two-3"), "{:?}", anchors(text));
    assert_eq!(anchors("# A\n# A\n"), ["a", "a-1"].map(String::from).into());
}

#[test]
fn every_page_of_the_book_is_in_its_contents() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<String> = events(&summary)
        .filter_map(|event| match event {
            Event::Start(Tag::Link { dest_url, .. }) => Some(dest_url.to_string()),
            _ => None,
        })
        .collect();
    let there: BTreeSet<String> = pages()
        .iter()
        .filter_map(|page| page.path.strip_prefix("docs").ok())
        .map(|path| path.to_string_lossy().into_owned())
        .filter(|name| name != "SUMMARY.md")
        .collect();
    assert_eq!(listed, there);
}
