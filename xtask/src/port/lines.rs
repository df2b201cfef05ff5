//! The table of lines per instruction set file in the guide.

use std::fs;

use crate::rows;

const GUIDE: &str = "docs/porting.md";
const BEGIN: &str = "<!-- cargo xtask port --lines -->\n";
const END: &str = "<!-- end -->";

/// Writes the table into the guide.
///
/// # Errors
/// If the guide or a file cannot be read or written.
pub(super) fn write() -> Result<(), String> {
    let text = fs::read_to_string(GUIDE).map_err(|e| format!("{GUIDE}: {e}"))?;
    let table = table()?;
    fs::write(GUIDE, replaced(&text, &table)?).map_err(|e| format!("{GUIDE}: {e}"))?;
    print!("{table}");
    Ok(())
}

/// What is wrong with the table in the guide.
pub(crate) fn check() -> Option<String> {
    let text = fs::read_to_string(GUIDE).map_err(|e| format!("{GUIDE}: {e}"));
    let found = text.and_then(|text| Ok(replaced(&text, &table()?)? == text));
    match found {
        Ok(true) => None,
        Ok(false) => Some(format!("{GUIDE}: stale table, run `cargo xtask port --lines`")),
        Err(e) => Some(e),
    }
}

fn replaced(text: &str, table: &str) -> Result<String, String> {
    let missing = || format!("{GUIDE}: no line {}", BEGIN.trim());
    let (head, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
    let (_, tail) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{head}{BEGIN}{table}{END}{tail}"))
}

/// One line per row: file, element types, lines of code without blank lines and comments.
fn table() -> Result<String, String> {
    let mut table = String::from("| instruction set | types | lines |\n|---|---|---:|\n");
    for row in rows::read()? {
        let path = format!("intrinsics/src/isa/{}.rs", row.name);
        let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        let count = text.lines().filter(code).count();
        let types: Vec<&str> = row.lines.iter().map(|line| line.dtype.as_str()).collect();
        table += &format!("| [{}](../{path}) | {} | {count} |\n", row.name, types.join(", "));
    }
    Ok(table)
}
