//! Programs and libraries without what prints the frames of a panic.
//!
//! The standard library reads debug information for that, 200 KB of code, which a linker cannot know to be of no
//! use: the C library prints nothing, and packages of the program have no debug information.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::finish;

/// Part of the name of the section with the code that prints them.
const FRAMES_OF_PANICS: &str = "16DisplayBacktrace";

/// `Ok(())` in the register of results, and a return.
pub(crate) const RETURNS_ON_ARM: &[u8] = &[0x00, 0x00, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6];

/// The same for the machine that this runs on; nothing where that is neither.
pub(crate) const RETURNS: &[u8] = if cfg!(target_arch = "x86_64") {
    &[0x31, 0xc0, 0xc3]
} else if cfg!(target_arch = "aarch64") {
    RETURNS_ON_ARM
} else {
    &[]
};

/// Set where this program is run as a linker.
const LINKS: &str = "XTASK_LINKS";

/// Has `copy`, an `objcopy` of `object` to itself, make the function that prints the frames of a panic return at once,
/// by `code`: the linker then drops what it alone refers to. `objdump` finds it; whether it is there. The code is read
/// from a file, which [`body`] names, when the copy is made.
///
/// # Errors
/// The command that failed.
pub(crate) fn leave_out(
    copy: &mut Command,
    objdump: &mut Command,
    object: &Path,
    code: &[u8],
) -> Result<bool, String> {
    if code.is_empty() {
        return Ok(false);
    }
    let listed = objdump.args(["-h", "-w"]).arg(object).output();
    let listed = listed.map_err(|e| format!("objdump: {e}"))?.stdout;
    let (body, mut found) = (body(object), false);
    for line in String::from_utf8_lossy(&listed).lines() {
        let mut words = line.split_whitespace().skip(1);
        let (Some(section), Some(bytes)) = (words.next(), words.next()) else { continue };
        let bytes = usize::from_str_radix(bytes, 16).unwrap_or(0);
        let prints = section.starts_with(".text") && section.contains(FRAMES_OF_PANICS);
        if !prints || bytes < code.len() {
            continue;
        }
        // As long as it was, for what is said elsewhere of how to unwind it.
        let mut padded = code.to_vec();
        padded.resize(bytes, 0);
        fs::write(&body, padded).map_err(|e| format!("{}: {e}", body.display()))?;
        copy.arg("--update-section").arg(format!("{section}={}", body.display()));
        copy.arg(format!("--remove-relocations={section}"));
        found = true;
    }
    Ok(found)
}

/// The file with the code for an object, to be removed after the copy.
pub(crate) fn body(object: &Path) -> PathBuf {
    object.with_extension("code")
}

/// Has Cargo link what `build`, a `cargo rustc` whose last arguments go to rustc, makes without them.
///
/// # Errors
/// Where this program is cannot be found out.
pub(crate) fn link_without(build: &mut Command) -> Result<(), String> {
    let this = std::env::current_exe().map_err(|e| format!("xtask: {e}"))?;
    build.env(LINKS, "1").arg(format!("-Clinker={}", this.display()));
    Ok(())
}

/// Whether rustc runs this program, as [`link_without`] has it.
pub(crate) fn links() -> bool {
    std::env::var_os(LINKS).is_some()
}

/// Links with the arguments of rustc.
///
/// # Errors
/// The command that failed.
pub(crate) fn link(arguments: &[String]) -> Result<(), String> {
    for object in
        arguments.iter().map(Path::new).filter(|a| a.extension().is_some_and(|e| e == "o"))
    {
        let mut copy = Command::new("objcopy");
        if leave_out(&mut copy, &mut Command::new("objdump"), object, RETURNS)? {
            finish(copy.arg(object))?;
            let _ = fs::remove_file(body(object));
        }
    }
    finish(Command::new("cc").args(arguments))
}
