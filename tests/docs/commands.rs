//! Commands of the pages, and of the program's own help.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use tilewright::import::onnx::proto::ModelProto;

use crate::blocks::blocks;
use crate::root;

#[path = "../support/onnx.rs"]
mod onnx;
use onnx::{F32, model, node, tensor};

#[path = "../support/metadata.rs"]
mod metadata;
use metadata::with_metadata;

/// Programs of others, which pages name and nobody checks.
const OTHERS: [&str; 14] = [
    "apt-get",
    "cc",
    "cmake",
    "dpkg",
    "git",
    "less",
    "llama-cli",
    "man",
    "mdbook",
    "perf",
    "rustup",
    "sudo",
    "export",
    "OMP_NUM_THREADS=1",
];

/// A folder with the files that pages name.
struct Place {
    folder: tempfile::TempDir,
    /// An emulated NPU.
    npu: Option<PathBuf>,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), npu: emulator() };
        let program = Path::new(env!("CARGO_BIN_EXE_tilewright"));
        fs::create_dir_all(place.path("target/release")).unwrap();
        std::os::unix::fs::symlink(program, place.path("target/release/tilewright")).unwrap();
        let picture = image::open(root().join("models/textline/sample.png")).unwrap().to_rgb8();
        for name in ["photo.png", "photo.jpg", "street.jpg"] {
            picture.save(place.path(name)).unwrap();
        }
        let array = |name: &str, dims: &[usize]| {
            let values = vec![0.5f32; dims.iter().product()];
            let tensor = tilewright::Tensor::from_slice(dims, &values).unwrap();
            let bytes = tilewright::io::npy::write(&tensor).unwrap();
            let path = place.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        for name in ["x.npy", "a.npy", "b.npy", "cases/one/input_0.npy"] {
            array(name, &[1, 3, 32, 32]);
        }
        let model = |name: &str, model: ModelProto| {
            fs::write(place.path(name), model.encode_to_vec()).unwrap();
        };
        model("net.onnx", network(3));
        model("resnet18.onnx", network(1000));
        model("faces.onnx", detector());
        model("two.onnx", sum());
        model("yolo11n.onnx", yolo("detect"));
        model("yolo11n-seg.onnx", yolo("segment"));
        let task = r#"{"input": "image", "input.range": "0..1", "task": "detect",
            "detect.form": "boxes-scores", "labels": ["background", "face"], "detect.background": 0}"#;
        fs::write(place.path("faces.task.json"), task).unwrap();
        for name in ["model.gguf", "vocabulary.gguf"] {
            fs::copy(root().join("models/manual/manual.gguf"), place.path(name)).unwrap();
        }
        for name in ["text.txt", "prompt.txt"] {
            fs::write(place.path(name), "The function returns a value.\n".repeat(20)).unwrap();
        }
        fs::write(place.path("labels.txt"), "one\ntwo\nthree\n").unwrap();
        fs::write(place.path("list.txt"), "matmul 32x64x64\n").unwrap();
        fs::write(place.path("kernels.txt"), "rows q8_0 1x1x256x256 round\n").unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file of another's model that a command names, brought here if it is on this machine; `false` if not.
    fn fetch(&self, name: &str) -> bool {
        if self.path(name).exists() {
            return true;
        }
        let Some(models) = std::env::var_os("TILEWRIGHT_MODELS") else { return false };
        let mut folders = vec![PathBuf::from(models)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else if entry.file_name() == name {
                    fs::copy(entry.path(), self.path(name)).unwrap();
                    return true;
                }
            }
        }
        false
    }

    /// Runs lines of a shell here; what it printed, or what went wrong.
    fn run(&self, before: &str, line: &str) -> Result<String, String> {
        let bin = self.path("target/release");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let mut sh = Command::new("sh");
        sh.arg("-ec").arg(format!("{before}\n{}", shortened(line))).current_dir(self.folder.path());
        sh.env("PATH", path).env("XDG_CACHE_HOME", self.path("cache"));
        sh.env_remove("TILEWRIGHT_ISA").env_remove("TILEWRIGHT_TUNE_TABLE");
        sh.env("TMPDIR", self.folder.path()).stdin(std::process::Stdio::null());
        if let Some(npu) = &self.npu {
            sh.env("TILEWRIGHT_RKNN_LIB", npu).env("TILEWRIGHT_RKNN_CHIP", "rk3588");
            sh.env("TILEWRIGHT_RKNN_EMULATOR", "1").env("TILEWRIGHT_RKNN_SELF_TEST", "off");
        }
        let begin = std::time::Instant::now();
        let output = sh.output().unwrap();
        println!("{:6.1} s  {line}", begin.elapsed().as_secs_f64());
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        // Where lines of a console show both, what is noted comes first.
        if output.status.success() {
            Ok(format!("{said}{printed}"))
        } else {
            Err(said.into_owned())
        }
    }
}

#[cfg(all(feature = "rknn", target_os = "linux"))]
fn emulator() -> Option<PathBuf> {
    // It lives as long as the tests do.
    let emulator = Box::leak(Box::new(rknnrt::Instance::new("", None).unwrap()));
    Some(emulator.path().into())
}

#[cfg(not(all(feature = "rknn", target_os = "linux")))]
fn emulator() -> Option<PathBuf> {
    None
}

/// The command with less time to measure, as it is not the figures that are tested.
fn shortened(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    for (flag, command) in [("--budget", "tune"), ("--time", "bench"), ("--time", "explain")] {
        if words.get(1) != Some(&command) {
            continue;
        }
        if let Some(at) = words.iter().position(|word| *word == flag) {
            words.drain(at..at + 2);
        }
        words.splice(2..2, [flag, "0.2"]);
    }
    words.join(" ")
}

/// A net of a picture, whatever its size: a convolution and scores.
fn network(scores: i64) -> ModelProto {
    let weights: Vec<f32> = (0..8 * 3 * 9).map(|i| (i % 7) as f32 / 7.0 - 0.5).collect();
    let last: Vec<f32> = (0..8 * scores).map(|i| (i % 11) as f32 / 11.0).collect();
    // A picture is resized to the size that the input has, so it must have one to be an ImageNet's.
    let size = if scores == 1000 { Some(224) } else { None };
    let dims = [Some(1), Some(3), size, size];
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]),
        node("GlobalAveragePool", &["c"], &["p"]),
        node("Flatten", &["p"], &["f"]),
        node("MatMul", &["f", "m"], &["y"]),
    ];
    let constants = vec![tensor("w", &[8, 3, 3, 3], &weights), tensor("m", &[8, scores], &last)];
    let mut net = model(&[("x", F32, &dims)], &["y"], nodes, constants);
    // An ImageNet's scores are known by their shape.
    let scores = model(&[("y", F32, &[Some(1), Some(scores)])], &[], vec![], vec![]);
    net.graph.as_mut().unwrap().output = scores.graph.unwrap().input;
    net
}

/// Four boxes whatever the picture shows.
fn detector() -> ModelProto {
    let nodes = vec![
        node("GlobalAveragePool", &["x"], &["p"]),
        node("Flatten", &["p"], &["f"]),
        node("MatMul", &["f", "two"], &["s"]),
        node("Add", &["s", "scores"], &["all_scores"]),
        node("MatMul", &["f", "four"], &["b"]),
        node("Add", &["b", "boxes"], &["all_boxes"]),
    ];
    let scores = [0.9, 0.1, 0.2, 0.8, 0.7, 0.3, 0.05, 0.95];
    let boxes: Vec<f32> =
        (0..4).flat_map(|i| [0.1, 0.1, 0.5, 0.5].map(|v| v + 0.1 * i as f32)).collect();
    let constants = vec![
        tensor("two", &[3, 2], &[0.0; 6]),
        tensor("scores", &[1, 4, 2], &scores),
        tensor("four", &[3, 4], &[0.0; 12]),
        tensor("boxes", &[1, 4, 4], &boxes),
    ];
    let dims = [Some(1), Some(3), Some(48), Some(64)];
    model(&[("x", F32, &dims)], &["all_boxes", "all_scores"], nodes, constants)
}

/// One thing of two classes, as Ultralytics' exporter lays it out; with a mask of one plane if that is the task.
fn yolo(task: &str) -> ModelProto {
    let found = [16.0, 16.0, 8.0, 12.0, 0.1, 0.9, 1.0];
    let numbers = if task == "segment" { 7 } else { 6 };
    let candidates: Vec<f32> =
        (0..numbers * 8).map(|i| if i % 8 == 3 { found[i / 8] } else { 0.0 }).collect();
    let nodes = vec![
        node("ReduceMean", &["images"], &["mean"]),
        node("Mul", &["mean", "zero"], &["nothing"]),
        node("Squeeze", &["nothing"], &["scalar"]),
        node("Add", &["scalar", "candidates"], &["output0"]),
        node("Add", &["scalar", "plane"], &["output1"]),
    ];
    let constants = vec![
        tensor("zero", &[1], &[0.0]),
        tensor("candidates", &[1, numbers as i64, 8], &candidates),
        tensor("plane", &[1, 1, 8, 8], &[1.0; 64]),
    ];
    let outputs = if task == "segment" { &["output0", "output1"][..] } else { &["output0"] };
    let net = model(
        &[("images", F32, &[Some(1), Some(3), Some(32), Some(32)])],
        outputs,
        nodes,
        constants,
    );
    let names = "{0: 'cat', 1: 'dog'}";
    with_metadata(net, &[("task", task), ("stride", "32"), ("names", names)])
}

/// A sum of two inputs.
fn sum() -> ModelProto {
    let dims = [Some(1), Some(3), Some(32), Some(32)];
    let nodes = vec![node("Add", &["left", "right"], &["y"])];
    model(&[("left", F32, &dims), ("right", F32, &dims)], &["y"], nodes, vec![])
}

/// Commands of a block: lines without comments, those that go on joined.
fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let code = joined.lines().map(|line| line.split(" #").next().unwrap_or("").trim());
    let code = code.filter(|line| !line.is_empty() && !line.starts_with('#'));
    code.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The command as the program's own, if it is one.
fn program(line: &str) -> Option<String> {
    let own = ["target/release/tilewright ", "cargo run --release -- ", "tilewright "];
    let (_, rest) =
        own.iter().find_map(|own| line.split_once(own).filter(|(b, _)| b.is_empty()))?;
    Some(format!("tilewright {rest}"))
}

/// Whether it takes minutes, as drivers build kernels for everything that is tried: `tests/opencl` does that.
fn builds_for_minutes(command: &str) -> bool {
    command.starts_with("tilewright tune")
        && (command.contains("--device") || command.contains("opencl"))
        && std::env::var_os("TILEWRIGHT_DOCS").is_none_or(|how| how != "full")
}

/// Why a command could not run here, if it is for lack of a device.
fn lacks_device(line: &str, npu: bool, error: &str) -> bool {
    let opencl = line.contains("--device") || line.contains("opencl");
    let must = std::env::var_os("TILEWRIGHT_EXPECT_OPENCL").is_some();
    (opencl && !must && error.contains("OpenCL")) || (line.contains("rknn") && !npu)
}

/// Whether a command did what it says, and says that the machine is not what it was: tests run beside others.
fn unsteady(command: &str, error: &str) -> bool {
    command.contains("--verify") && error.contains("do not hold any more")
}

#[test]
fn commands_of_the_program_run() {
    let place = Place::new();
    let (mut run, mut skipped) = (0, 0);
    for block in blocks().iter().filter(|block| block.language() == "sh") {
        let mut before = String::new();
        for line in lines(&block.text) {
            if line.starts_with("export ") && place.npu.is_some() {
                let set = line.split(' ').filter(|word| !word.starts_with("TILEWRIGHT_RKNN_LIB="));
                let set: Vec<&str> = set.collect();
                before += &if set.len() > 1 { set.join(" ") + "\n" } else { String::new() };
                continue;
            }
            let Some(command) = program(&line) else { continue };
            if builds_for_minutes(&command) {
                println!("skipped without TILEWRIGHT_DOCS=full: {command}");
                continue;
            }
            match place.run(&before, &command) {
                Ok(_) => run += 1,
                Err(e) if unsteady(&command, &e) => run += 1,
                Err(e) if lacks_device(&line, place.npu.is_some(), &e) => skipped += 1,
                Err(e) => panic!("{}: {line}\n{e}", block.place),
            }
        }
    }
    println!("{run} commands run, {skipped} skipped for lack of a device");
    assert!(run > 10, "{run} commands");
}

#[test]
fn examples_of_the_help_run() {
    let place = Place::new();
    let help = place.run("", "tilewright --help").unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let names = commands.lines().take_while(|line| line.starts_with("  "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 8, "{names:?}");
    let mut run = 0;
    for name in [""].into_iter().chain(names.into_iter().filter(|name| *name != "help")) {
        let help = place.run("", &format!("tilewright {name} --help")).unwrap();
        let joined = help.replace("\\\n", " ");
        for line in joined.lines().filter_map(|line| line.strip_prefix("  tilewright ")) {
            // Explanations stand behind two spaces.
            let command = format!("tilewright {}", line.split("  ").next().unwrap());
            if builds_for_minutes(&command) {
                continue;
            }
            match place.run("", &command) {
                Ok(_) => run += 1,
                Err(e) if unsteady(&command, &e) => run += 1,
                Err(e) if lacks_device(&command, place.npu.is_some(), &e) => {}
                Err(e) => panic!("help of {name:?}: {command}\n{e}"),
            }
        }
    }
    assert!(run > 20, "{run} examples");
}

/// Words with numbers taken for equal, as they depend on the machine and on the run.
fn words(line: &str) -> Vec<String> {
    let number = |word: &str| word.chars().next_back().is_some_and(|c| c.is_ascii_digit());
    let plain =
        |word: &str| match word.parse::<f64>().is_ok() || (number(word) && word.contains('.')) {
            true => "0".to_owned(),
            false => word.trim_matches(['(', ')']).to_owned(),
        };
    line.split_whitespace().map(plain).collect()
}

#[test]
fn consoles_show_what_commands_print() {
    let place = Place::new();
    for block in blocks().iter().filter(|block| block.language() == "console") {
        let mut parts = block.text.split("$ ").filter(|part| !part.is_empty()).peekable();
        assert!(block.text.starts_with("$ ") && parts.peek().is_some(), "{}", block.place);
        for part in parts {
            let (line, shown) = part.split_once('\n').unwrap_or((part, ""));
            if let Some(file) = line.strip_prefix("cat ") {
                fs::write(place.path(file), shown).unwrap();
                continue;
            }
            let files = line.split(' ').filter(|w| w.ends_with(".onnx") || w.ends_with(".jpg"));
            if let Some(file) = files.clone().find(|file| !place.fetch(file)) {
                println!("skipped: {}: {file} is not on this machine", block.place);
                continue;
            }
            let Some(command) = program(line) else {
                named(line, &block.page).unwrap_or_else(|e| panic!("{}: {e}", block.place));
                continue;
            };
            let printed =
                place.run("", &command).unwrap_or_else(|e| panic!("{}: {e}", block.place));
            let printed: Vec<Vec<String>> = printed.lines().map(words).collect();
            for line in shown.lines() {
                let shown = words(line.split("...").next().unwrap());
                // The instruction set and the threads are the machine's.
                let shown = match shown.first() {
                    Some(word) if word == "time" => &shown[..1],
                    _ => &shown[..],
                };
                let there = printed.iter().any(|words| words.starts_with(shown));
                assert!(there, "{}: {line:?} is not printed: {printed:#?}", block.place);
            }
        }
    }
}

/// What a command of others names must be there: packages, tests, features, scripts, their options.
fn named(line: &str, page: &str) -> Result<(), String> {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let find = |path: &str| {
        [root().join(path), root().join(folder).join(path)].into_iter().find(|path| path.exists())
    };
    for command in line.split(" && ").flat_map(|part| part.split(" | ")) {
        let words: Vec<&str> = command.split(' ').filter(|w| !w.contains("=$")).collect();
        // Settings of the environment before a command.
        let first = words.iter().position(|w| !w.contains('=') || w.contains('/')).unwrap_or(0);
        let (name, words) = (words[first], &words[first + 1..]);
        let value = |flag: &[&str]| {
            let at = words.iter().position(|word| flag.contains(word))?;
            words.get(at + 1).copied()
        };
        match name.rsplit('/').next().unwrap_or(name) {
            "cd" => {
                find(words[0]).ok_or_else(|| format!("{line}: no folder {}", words[0]))?;
            }
            "cargo" => cargo(words).map_err(|e| format!("{line}: {e}"))?,
            "python" | "python3" if words[0] != "-m" => {
                let script = find(words[0]).ok_or_else(|| format!("{line}: no {}", words[0]))?;
                let mut text = fs::read_to_string(&script).unwrap();
                // Options may stand in what a script imports.
                for entry in fs::read_dir(script.parent().unwrap()).unwrap().flatten() {
                    if entry.path().extension().is_some_and(|e| e == "py") {
                        text += &fs::read_to_string(entry.path()).unwrap();
                    }
                }
                for flag in words.iter().filter(|word| word.starts_with("--")) {
                    if !text.contains(&format!("\"{flag}\"")) {
                        return Err(format!("{line}: {} knows no {flag}", words[0]));
                    }
                }
            }
            "pip" => {
                if let Some(file) = value(&["-r"]) {
                    find(file).ok_or_else(|| format!("{line}: no {file}"))?;
                }
            }
            "bash" => {
                find(words[0]).ok_or_else(|| format!("{line}: no {}", words[0]))?;
            }
            "python" | "python3" | "tilewright" => {}
            other if OTHERS.contains(&other) => {}
            other => return Err(format!("{line}: what is {other}?")),
        }
    }
    Ok(())
}

/// What a command of Cargo names.
fn cargo(words: &[&str]) -> Result<(), String> {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    let manifests: String = [
        "",
        "kernels/",
        "intrinsics/",
        "c/kernels/",
        "c/library/",
        "ggml/cpu/",
        "ggml/rknn/",
        "emulator/rknn/",
        "xtask/",
    ]
    .map(|folder| read(&format!("{folder}Cargo.toml")))
    .concat();
    let known = [
        "test",
        "bench",
        "run",
        "build",
        "rustc",
        "install",
        "clippy",
        "fmt",
        "doc",
        "package",
        "deb",
        "deny",
        "machete",
        "hack",
        "cyclonedx",
        "publish",
        "fuzz",
        "xtask",
    ];
    if !known.contains(&words[0]) {
        return Err(format!("cargo knows no {}", words[0]));
    }
    if words[0] == "xtask" && !read("xtask/src/main.rs").contains(&format!("\"{}\" =>", words[1])) {
        return Err(format!("xtask knows no {}", words[1]));
    }
    // What follows two dashes is another program's.
    let own = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    for pair in
        words[..own].windows(2).filter(|pair| words[0] != "xtask" && pair[0].starts_with('-'))
    {
        let there = match pair[0] {
            "-p" => manifests.contains(&format!("name = \"{}\"", pair[1])),
            "--test" => ["tests/NAME.rs", "tests/NAME/main.rs"]
                .iter()
                .any(|path| root().join(path.replace("NAME", pair[1])).exists()),
            "--bench" => ["", "kernels/"]
                .iter()
                .any(|folder| root().join(format!("{folder}benches/{}.rs", pair[1])).exists()),
            "--features" => pair[1].split(',').all(|f| manifests.contains(&format!("\n{f} = "))),
            _ => true,
        };
        if !there {
            return Err(format!("there is no {} {}", pair[0], pair[1]));
        }
    }
    Ok(())
}

#[test]
fn what_other_commands_name_is_there() {
    let mut checked = 0;
    for block in blocks().iter().filter(|block| block.language() == "sh" && block.from.is_none()) {
        for line in lines(&block.text).iter().filter(|line| program(line).is_none()) {
            named(line, &block.page).unwrap_or_else(|e| panic!("{}: {e}", block.place));
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked} commands");
    for wrong in [
        "cargo xtask none",
        "cargo test --test none",
        "cargo bench -p tilewright --features none",
        "python3 tests/none.py",
        "python3 tests/onnx_nodes.py --none",
        "cd none && cargo test",
        "none",
    ] {
        assert!(named(wrong, "README.md").is_err(), "{wrong}");
    }
}

/// Entries for networks.
#[test]
fn entries_are_read_by_the_program() {
    use tilewright::task::{Task, keys};
    let mut read = 0;
    for block in blocks().iter().filter(|block| block.language() == "json") {
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&block.text).unwrap_or_else(|e| panic!("{}: {e}", block.place));
        let text = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let entry = |(key, value): (&String, &serde_json::Value)| {
            let key = format!("tilewright.{key}");
            assert!(keys::ALL.contains(&&key[..]), "{}: {key}", block.place);
            let value = match value {
                serde_json::Value::Array(items) => {
                    let separator = if key == keys::LABELS { "\n" } else { "," };
                    items.iter().map(text).collect::<Vec<_>>().join(separator)
                }
                value => text(value),
            };
            (key, value)
        };
        let entries = object.iter().map(entry).collect();
        Task::from_metadata(&entries).unwrap_or_else(|e| panic!("{}: {e}", block.place));
        read += 1;
    }
    assert!(read > 2);
}
