//! `cargo xtask asm --page`: the loop of one microkernel, as the book shows it.

use std::fs;
use std::process::Command;

use super::{Kernel, X86};

/// The chapter with the listing, and the lines between which it stands.
const PAGE: &str = "docs/kernels.md";
const BEGIN: &str = "<!-- made by `cargo xtask asm --page` -->\n";
const END: &str = "<!-- end of the listing -->\n";

/// For which of the models.
pub(super) const MODEL: &str = "x86-64";

/// The microkernel: four rows of a product by two vectors of 16 columns.
const SHOWN: [&str; 3] = ["matmul_tile", "avx512_f32", "4x2"];

/// Writes the listing into the chapter.
///
/// # Errors
/// If the kernels do not build, or the chapter cannot be written.
pub(super) fn write(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("asm --page: unknown arguments {args:?}"));
    }
    let model = super::baseline(X86).filter(|model| model.name == MODEL);
    let text = super::assembly(model.ok_or("asm --page: its model is not there")?)?;
    let listing = listing(&super::kernels(&text), &compiler()?)?;
    let page = fs::read_to_string(PAGE).map_err(|e| format!("{PAGE}: {e}"))?;
    let (head, _, tail) = parts(&page)?;
    fs::write(PAGE, format!("{head}{BEGIN}{listing}{END}{tail}"))
        .map_err(|e| format!("{PAGE}: {e}"))?;
    print!("{listing}");
    Ok(())
}

/// What is wrong with the listing in the chapter: of the compiler that made it, it must be the same; of
/// another, nothing can be said.
pub(super) fn check(kernels: &[Kernel<'_>]) -> Option<String> {
    let stale = || -> Result<bool, String> {
        let page = fs::read_to_string(PAGE).map_err(|e| format!("{PAGE}: {e}"))?;
        let (_, shown, _) = parts(&page)?;
        let compiler = compiler()?;
        if !shown.contains(&compiler) {
            println!("!!! asm: {PAGE} is of another compiler than {compiler}: not compared");
            return Ok(false);
        }
        Ok(shown != listing(kernels, &compiler)?)
    };
    match stale() {
        Ok(false) => None,
        Ok(true) => Some(format!("{PAGE}: a stale listing, run `cargo xtask asm --page`")),
        Err(e) => Some(e),
    }
}

/// What stands before the listing, the listing, what stands behind it.
fn parts(page: &str) -> Result<(&str, &str, &str), String> {
    let missing = || format!("{PAGE}: no line {}", BEGIN.trim());
    let (head, rest) = page.split_once(BEGIN).ok_or_else(missing)?;
    let (shown, tail) = rest.split_once(END).ok_or_else(missing)?;
    Ok((head, shown, tail))
}

/// Such as `rustc 1.95.0`.
fn compiler() -> Result<String, String> {
    let output = Command::new("rustc").arg("--version").output();
    let output = output.map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

/// The hot loop with labels by number, and what it consists of.
fn listing(kernels: &[Kernel<'_>], compiler: &str) -> Result<String, String> {
    let [op, row, tile] = SHOWN;
    let shown = |k: &&Kernel<'_>| (k.op, k.row, k.tile, k.single) == (op, row, tile, false);
    let kernel = kernels.iter().find(shown).ok_or("asm: the kernel of the chapter is not there")?;
    let (hot, lines) = kernel.hot_lines().ok_or("asm: the kernel of the chapter has no loop")?;
    let (mut labels, mut code) = (Vec::new(), String::new());
    for line in lines {
        // Notes of the compiler about loops.
        let line = line.split_once('#').map_or(*line, |(code, _)| code).trim();
        let mut words: Vec<String> = Vec::new();
        for word in line.split_whitespace() {
            let name = word.trim_end_matches([':', ',']);
            if name.starts_with(".LBB") {
                let at = labels.iter().position(|known| *known == name).unwrap_or_else(|| {
                    labels.push(name);
                    labels.len() - 1
                });
                words.push(word.replace(name, &(at + 1).to_string()));
            } else {
                words.push(word.into());
            }
        }
        let Some((first, rest)) = words.split_first() else { continue };
        code += &match first.ends_with(':') {
            true => format!("{first}\n"),
            false => format!("    {first:<14} {}\n", rest.join(" ")),
        };
    }
    Ok(format!(
        "```asm\n{code}```\n\n{} instructions, of which {} are multiply-adds and {} touch the stack \
         ({compiler}).\n",
        hot.instructions, hot.fmas, hot.stack
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_the_hot_loop_with_short_labels() {
        let symbol = "_ZN18tilewright_kernels8template11matmul_tile10avx512_f328tile_4x217h0123456789abcdefE";
        let text = format!(
            "{symbol}:\n\tpushq\t%rbx\n.LBB7_3:\n\tvfmadd231ps\t(%rax){{1to16}}, %zmm1, %zmm2 # note\n\
             \taddq\t$8, %rax\n\tjne\t.LBB7_3\n.Lfunc_end0:\n"
        );
        let found = listing(&crate::asm::kernels(&text), "rustc 1.0").unwrap();
        assert_eq!(
            found,
            "```asm\n1:\n    vfmadd231ps    (%rax){1to16}, %zmm1, %zmm2\n    addq           $8, %rax\n    \
             jne            1\n```\n\n3 instructions, of which 1 are multiply-adds and 0 touch the stack \
             (rustc 1.0).\n"
        );
        assert!(listing(&[], "rustc 1.0").is_err());
    }
}
