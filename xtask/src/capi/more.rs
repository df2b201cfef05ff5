//! Another library of Rust in the same program, the examples under valgrind, and bare metal.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{C, CPP, LANGUAGE, NETWORK, Place, STRICT};
use crate::ci::ISA;
use crate::install::{Install, kernels_library, version};
use crate::legs::has_program;
use crate::{finish, has_target, target_dir};

/// What is written in the picture of `read_text.c`.
pub(super) const LINE: &str = "small machines: 100 % tilewright";

/// What examples say, as far as it is known.
struct Example {
    name: &'static str,
    args: Vec<PathBuf>,
    input: &'static str,
    says: &'static str,
}

impl Place {
    /// A program with two static libraries of Rust.
    pub(super) fn twin(&self) -> Result<(), String> {
        let library = self.folder.join("libtwin.a");
        let mut rustc = Command::new("rustc");
        rustc.args([
            "--edition",
            "2024",
            "-O",
            "--crate-type",
            "staticlib",
            "--crate-name",
            "twin",
        ]);
        finish(rustc.arg("tests/capi/twin/lib.rs").arg("-o").arg(&library))?;
        let library = library.to_string_lossy();
        let source = Path::new("tests/capi/twin/main.c");
        let program = self.compile(source, "gcc", C, true, &[&library])?;
        finish(Command::new(program).arg(NETWORK))
    }

    /// A program whose products an emulated NPU computes. Elsewhere there is no such device.
    pub(super) fn npu(&self) -> Result<(), String> {
        if !cfg!(target_os = "linux") {
            return Ok(());
        }
        finish(crate::cargo().args(["build", "--quiet", "-p", "tilewright-rknn-emulator"]))?;
        let emulator = std::path::absolute(target_dir().join("debug/librknnrt.so"));
        let emulator = emulator.map_err(|e| format!("capi: {e}"))?;
        for (compiler, language, fixed) in [("gcc", C, true), ("g++", CPP, false)] {
            let source = Path::new("tests/capi/npu.c");
            let program = self.compile(source, compiler, language, fixed, &[])?;
            let mut run = Command::new(program);
            run.env("TILEWRIGHT_RKNN_LIB", &emulator).env("TILEWRIGHT_RKNN_CHIP", "rk3588");
            run.env("TILEWRIGHT_RKNN_EMULATOR", "1").env("TILEWRIGHT_RKNN_SELF_TEST", "off");
            // The lock of the NPU, which other tests have emulated too, and what it has noted.
            run.env("TMPDIR", &self.folder).env("XDG_CACHE_HOME", &self.folder);
            super::silent(run.env("TILEWRIGHT_RKNN_MIN_ROWS", "16"))?;
        }
        Ok(())
    }

    /// Each example under valgrind: no wrong access, nothing left behind.
    pub(super) fn examples(&self) -> Result<(), String> {
        let path = |s: &str| PathBuf::from(s);
        let mut examples = vec![
            Example { name: "matmul", args: vec![path("3")], input: "", says: "y[0][0..4]:" },
            Example {
                name: "read_text",
                args: vec![path(NETWORK), path("examples/c/data/line.pgm")],
                input: "",
                says: LINE,
            },
            Example {
                name: "chat",
                args: vec![path(LANGUAGE), path("40")],
                input: "The file system\nA program is\n",
                says: " ",
            },
        ];
        let models = std::env::var_os("TILEWRIGHT_MODELS").map(PathBuf::from);
        let models = models.unwrap_or_else(|| path("../shared/models"));
        if models.is_dir() {
            let folder = models.join("mlperftiny-kws");
            examples.push(Example {
                name: "keywords",
                args: vec![folder.join("kws_f32.onnx"), folder.join("yes_1000ms.wav")],
                input: "",
                says: "yes",
            });
            let folder = models.join("mlperftiny-resnet8");
            let picture = self.folder.join("picture.ppm");
            let labels = self.folder.join("labels.txt");
            let classes = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n";
            fs::write(&labels, classes).map_err(|e| format!("{}: {e}", labels.display()))?;
            first_picture(&folder.join("images_u8.npy"), &picture)?;
            examples.push(Example {
                name: "classify",
                args: vec![folder.join("resnet8_f32.onnx"), labels, picture],
                input: "",
                says: "cat",
            });
        } else {
            println!(
                "!!! capi: SKIPPED: classify.c and keywords.c, for lack of: {}",
                models.display()
            );
        }
        for example in &examples {
            let source = PathBuf::from(format!("examples/c/{}.c", example.name));
            let program = self.compile(&source, "gcc", C, true, &[])?;
            self.under_valgrind(&program, example)?;
        }
        Ok(())
    }

    fn under_valgrind(&self, program: &Path, example: &Example) -> Result<(), String> {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        // What is "possibly" lost are statics of Rust: pointers to counted values point into them.
        command.args([
            "--errors-for-leak-kinds=definite,indirect",
            "--show-leak-kinds=definite,indirect",
        ]);
        command.arg(program).args(&example.args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("valgrind: {e}"))?;
        if let Some(mut input) = child.stdin.take() {
            // One that reads nothing may have ended.
            let _ = input.write_all(example.input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|e| format!("valgrind: {e}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{}: {}", example.name, said.trim_end());
        if !output.status.success() {
            return Err(format!("failed ({}): {command:?}", output.status));
        }
        if !said.contains(example.says) {
            return Err(format!("capi: {} does not say {:?}", example.name, example.says));
        }
        Ok(())
    }
}

/// The first of the pictures `[n, h, w, 3]` of a .npy file, as a PPM.
fn first_picture(from: &Path, to: &Path) -> Result<(), String> {
    let bytes = fs::read(from).map_err(|e| format!("{}: {e}", from.display()))?;
    let head = bytes.get(8..10).map_or(0, |n| usize::from(n[0]) | usize::from(n[1]) << 8) + 10;
    let text = String::from_utf8_lossy(bytes.get(10..head).unwrap_or(&[])).into_owned();
    let shape = text.split("'shape': (").nth(1).and_then(|rest| rest.split(')').next());
    let sizes: Vec<usize> =
        shape.unwrap_or("").split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let [_, h, w, 3] = sizes[..] else {
        return Err(format!("{}: no pictures: {text}", from.display()));
    };
    let pixels = bytes.get(head..head + h * w * 3).ok_or("capi: a short .npy file")?;
    let all = [format!("P6 {w} {h} 255\n").as_bytes(), pixels].concat();
    fs::write(to, all).map_err(|e| format!("{}: {e}", to.display()))
}

/// Most bytes that kernels alone may add to a program.
const KERNELS_BYTES: u64 = 200 << 10;

/// The library of kernels alone: its tests, and what it adds to a program.
///
/// # Errors
/// The command that failed; a program that is too large.
pub(crate) fn kernels_alone() -> Result<(), String> {
    let folder = target_dir().join("capi");
    let mut install = Install::new(folder.join("kernels"));
    install.features = ISA.into();
    install.kernels(&version()?)?;
    let library = install.prefix.join("lib/libtilewright-kernels.a");
    let program = folder.join("kernels-alone");
    let mut command = Command::new("cc");
    command.args(STRICT).args(["-std=c99", "-O1", "-D_POSIX_C_SOURCE=200809L", "-DKERNELS_ONLY"]);
    // That the machine has this is to be found out.
    command.arg(format!("-DISA=\"{ISA}\""));
    command.args(["-Iinclude", "tests/capi/kernels.c"]).arg(&library);
    finish(command.args(["-lpthread", "-lm", "-o"]).arg(&program))?;
    finish(&mut Command::new(&program))?;
    let nothing = folder.join("empty.c");
    fs::write(&nothing, "int main(void) { return 0; }\n").map_err(|e| format!("capi: {e}"))?;
    let with = super::size::linked(Path::new("examples/c/matmul.c"), Some(&library), &folder)?;
    let added = with - super::size::linked(&nothing, None, &folder)?;
    println!("kernels alone add {} KiB to a program", added.div_ceil(1024));
    if added > KERNELS_BYTES && cfg!(target_arch = "x86_64") {
        return Err(format!("capi: kernels alone add {added} bytes, more than {KERNELS_BYTES}"));
    }
    finish(&mut Command::new(folder.join("matmul")))
}

const CORTEX_M: &str = "thumbv7em-none-eabihf";

/// What [`firmware`] needs, of what is not there.
pub(crate) fn firmware_needs() -> Vec<&'static str> {
    let mut lacking = Vec::new();
    if !has_target(CORTEX_M) {
        lacking.push("the Rust target thumbv7em-none-eabihf");
    }
    for program in ["arm-none-eabi-gcc", "qemu-system-arm"] {
        if !has_program(program, &[]) {
            lacking.push(program);
        }
    }
    lacking
}

/// A program in C on an emulated Cortex-M4, with kernels that have neither `std` nor `alloc`; and that the
/// crates build so for other machines without an operating system.
///
/// # Errors
/// The command that failed.
pub(crate) fn firmware() -> Result<(), String> {
    for target in [CORTEX_M, "aarch64-unknown-none", "wasm32-unknown-unknown"] {
        if !has_target(target) {
            println!(
                "!!! capi: SKIPPED: kernels without std on {target}: rustup has no such target"
            );
            continue;
        }
        let mut command = crate::cargo();
        command.args([
            "check",
            "--quiet",
            "-p",
            "tilewright-kernels",
            "-p",
            "tilewright-intrinsics",
        ]);
        command.args(["-p", "tilewright-c-kernels", "--no-default-features", "--target", target]);
        finish(&mut command)?;
    }
    let library = kernels_library("library,cortex-m", Some(CORTEX_M))?;
    let folder = target_dir().join("capi");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let program = folder.join("firmware.elf");
    let mut command = Command::new("arm-none-eabi-gcc");
    command.args(STRICT).args([
        "-std=gnu99",
        "-O1",
        "-ffreestanding",
        "-nostdlib",
        "-nostartfiles",
    ]);
    command.args(["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]);
    command.args([
        "-Wl,--gc-sections,--no-warn-execstack",
        "-Iinclude",
        "-Ttests/capi/firmware.ld",
    ]);
    command.arg("tests/capi/firmware.c").arg(library).args(["-lgcc", "-o"]).arg(&program);
    finish(&mut command)?;
    let mut run = Command::new("qemu-system-arm");
    run.args(["-cpu", "cortex-m4", "-machine", "mps2-an386", "-nographic"]);
    run.args(["-semihosting-config", "enable=on,target=native", "-kernel"]).arg(program);
    finish(&mut run)
}

const ARM: &str = "aarch64-unknown-linux-gnu";

/// The libraries for another architecture, and programs with them on an emulated CPU: linked as a whole, as
/// threads of others hang there.
///
/// # Errors
/// The command that failed.
pub(crate) fn on_arm() -> Result<(), String> {
    let folder = target_dir().join("capi/arm");
    let mut install = Install::new(folder.join("prefix"));
    install.target = Some(ARM.into());
    // Kernels of this architecture have tests of their own there; what is tested here is the border.
    install.features = String::new();
    install.run()?;
    for (name, args) in [("kernels", &[][..]), ("start", &[NETWORK][..])] {
        let program = folder.join(name);
        let mut command = Command::new("aarch64-linux-gnu-gcc");
        command.args(STRICT).args(["-std=c99", "-O1", "-static", "-D_POSIX_C_SOURCE=200809L"]);
        command.arg("-I").arg(install.prefix.join("include")).arg(format!("tests/capi/{name}.c"));
        command.arg("-L").arg(install.prefix.join("lib"));
        command.args(["-ltilewright", "-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
        finish(&mut command)?;
        finish(Command::new("qemu-aarch64").args(["-cpu", "max"]).arg(&program).args(args))?;
    }
    Ok(())
}
