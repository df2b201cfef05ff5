//! `tilewright tune`, tuning tables, and what `bench --kernels` says of limits.

use crate::support::{Bench, F32, Ran, model, node, tensor};
use prost::Message;
use tilewright::Isa;
use tilewright::import::onnx::proto::ModelProto;
use tilewright::tune::{Entry, Key, Table, Workload};

/// The convolution of [`net`], as tables name it.
const CONV: &str = "conv f32 1x32x6x6 to 48 window 3x3";

/// A convolution and a product of constant weights.
fn net() -> ModelProto {
    let weights = tensor("w", &[48, 32, 3, 3], &[0.01; 48 * 32 * 9]);
    let columns = tensor("b", &[4, 8], &[0.5; 32]);
    let nodes = vec![node("Conv", &["x", "w"], &["c"]), node("MatMul", &["c", "b"], &["y"])];
    let x = [Some(1), Some(32), Some(6), Some(6)];
    model(&[("x", F32, &x)], &["y"], nodes, vec![weights, columns])
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench
        .model("m.onnx", &net())
        .write("list.txt", format!("# sizes\n\n{CONV}  # one\nmatmul 2x3x4\n"));
    bench
}

impl Bench {
    fn tune(&self, args: &[&str]) -> Ran {
        let own = ["tune", "--threads", "1", "--budget", "0.05", "--table", "t.txt"];
        self.run(&[&own, args].concat())
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

#[test]
fn tuning_writes_a_table_and_shows_what_it_gained() {
    let bench = bench();
    let json = bench.tune(&["m.onnx", "--format", "json"]).json();
    let rows = json["workloads"].as_array().unwrap();
    let ops: Vec<&str> = rows.iter().map(|r| r["workload"].as_str().unwrap()).collect();
    assert_eq!(ops, [CONV, "matmul f32 192x4x8"]);
    for row in rows {
        assert!(row["before"]["time_us"].as_f64() >= row["after"]["time_us"].as_f64(), "{row}");
        assert!(row["gain"].as_f64().unwrap() >= 1.0 && row["candidates"].as_u64() >= Some(1));
    }
    assert!(json["analytic_over_tuned"].as_f64().unwrap() >= 1.0);
    assert!(json["model"]["after_us"].as_f64().unwrap() > 0.0);
    for key in ["cpu", "isa", "threads", "table"] {
        assert!(!json[key].is_null(), "{key} in {json}");
    }
    let text = bench.text("t.txt");
    assert!(text.starts_with("tilewright tuning table, format 1\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" | 1 | ")).count(), 2);

    // A list adds to the table; what is there and not understood stays.
    bench.write("t.txt", text.clone() + "a remark\n");
    let shown = bench.tune(&["--shapes", "list.txt"]).done();
    for word in ["operation", "before", "after", "gain", "geometric mean", "written to t.txt"] {
        assert!(shown.contains(word), "{shown}");
    }
    let longer = bench.text("t.txt");
    assert!(longer.contains("\na remark\n") && longer.contains("matmul f32 2x3x4"), "{longer}");
    assert_eq!(longer.matches(CONV).count(), 1);
    // The program takes it, and leaves no other files.
    bench.npy("x.npy", &[1, 32, 6, 6], &[1.0; 32 * 36]);
    for command in [
        &["run", "m.onnx", "--input", "x.npy", "--table", "t.txt"][..],
        &["run", "m.onnx", "--input", "x.npy", "--no-table"],
        &["bench", "m.onnx", "--time", "0", "--table", "t.txt"],
    ] {
        let ran = bench.run(command);
        assert_eq!(ran.stderr, "");
        ran.done();
    }
    assert_eq!(bench.list("."), ["list.txt", "m.onnx", "t.txt", "x.npy"]);
}

#[test]
fn a_session_computes_as_the_table_says() {
    let bench = bench();
    let isa = Isa::select().unwrap();
    let workload: Workload = CONV.parse().unwrap();
    let inspect = |table: &str| {
        let mut command = bench.command();
        let args = ["inspect", "m.onnx", "--format", "json"];
        command.env("TILEWRIGHT_TUNE_TABLE", bench.path(table)).args(args);
        let json = Ran::from(command.output().unwrap()).json();
        let nodes = json["nodes"].as_array().unwrap();
        let conv = nodes.iter().find(|n| n["op"] == "conv").unwrap();
        conv["kernel"].as_str().unwrap().to_owned()
    };
    for choice in workload.candidates(isa).unwrap() {
        let mut table = Table::new();
        let entry = Entry { choice, time_us: 1.0, analytic_us: 1.0 };
        table.insert(Key::here(isa, 1, &workload), entry);
        table.save(&bench.path("t.txt")).unwrap();
        let kernel = workload.plan(isa, &choice).unwrap().kernel_name();
        assert_eq!(inspect("t.txt"), kernel, "{choice}");
    }
    // A choice that does not fit is as good as none.
    let own = workload.candidates(isa).unwrap()[0];
    bench.write("t.txt", bench.text("t.txt").replace(" chunk ", " chunk 7"));
    assert_eq!(inspect("t.txt"), workload.plan(isa, &own).unwrap().kernel_name());
}

#[test]
fn verify_says_what_no_longer_holds() {
    let bench = bench();
    bench.tune(&["--shapes", "list.txt"]).done();
    let good = bench.text("t.txt");
    // Nothing takes this long.
    let lines: Vec<String> = good
        .lines()
        .map(|line| match line.rsplit_once(" | ") {
            Some((key, _)) if line.contains(CONV) => format!("{key} | 900000.0 us, 900000.0 us"),
            _ => line.to_owned(),
        })
        .collect();
    bench.write("t.txt", lines.join("\n") + "\n");
    let ran = bench.tune(&["--verify", "--format", "json"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("of 2 entries of t.txt do not hold"), "{}", ran.stderr);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let conv = &json["checked"][0];
    assert_eq!((&conv["workload"], &conv["holds"]), (&CONV.into(), &false.into()));
    assert!(conv["why"].as_str().unwrap().ends_with(" % less than in the table"), "{conv}");
    // A choice that does not exist, and a table that has nothing for this machine.
    bench.write("t.txt", good.replace(" chunk ", " chunk 7"));
    let ran = bench.tune(&["--verify"]);
    assert!(ran.status == Some(1) && ran.stdout.contains("no such choice"), "{}", ran.stdout);
    bench.write("t.txt", good.replace(tilewright::tune::cpu_model(), "Abacus 1/2/3"));
    let error = bench.tune(&["--verify"]).error();
    assert!(error.contains("no entry to verify"), "{error}");
}

#[test]
fn damaged_tables_are_reported_and_left_alone() {
    let bench = bench();
    bench.write("t.txt", "Dear reader, this is a letter.");
    let ran = bench.run(&["bench", "m.onnx", "--time", "0", "--table", "t.txt"]);
    assert!(ran.stderr.starts_with("note: tuning table t.txt, line 1: "), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1);
    ran.done();
    let error = bench.tune(&["--shapes", "list.txt"]).error();
    assert!(error.contains("not overwritten"), "{error}");
    assert_eq!(bench.text("t.txt"), "Dear reader, this is a letter.");
    let error = bench.tune(&["--verify"]).error();
    assert!(error.contains("line 1"), "{error}");
    // One of ours that is damaged makes place for a new one.
    bench.write("t.txt", "tilewright tuning table, format 77\nfuture\n");
    let ran = bench.tune(&["--shapes", "list.txt"]);
    assert!(ran.stderr.contains("moved to t.txt.bad"), "{}", ran.stderr);
    ran.done();
    assert!(bench.text("t.txt.bad").ends_with("future\n"));
    let error = bench.run(&["bench", "m.onnx", "--table", "none.txt"]).error();
    assert!(error.contains("none.txt"), "{error}");
}

#[test]
fn the_table_is_in_the_cache_folder_unless_the_environment_says_otherwise() {
    let bench = bench();
    let tune = |variable: &str, value: &str| {
        let mut command = bench.command();
        command.env_remove("TILEWRIGHT_TUNE_TABLE").env("XDG_CACHE_HOME", bench.path("cache"));
        command.env(variable, value).args(["tune", "--shapes", "list.txt", "--budget", "0"]);
        Ran::from(command.output().unwrap())
    };
    if cfg!(target_os = "linux") {
        let folder = bench.path("deep/cache");
        assert!(tune("XDG_CACHE_HOME", folder.to_str().unwrap()).done().contains("tune.txt"));
        assert!(bench.path("deep/cache/tilewright/tune.txt").exists());
    }
    tune("TILEWRIGHT_TUNE_TABLE", "own.txt").done();
    assert!(bench.path("own.txt").exists() && !bench.path("cache").exists());
    let error = tune("TILEWRIGHT_TUNE_TABLE", "off").error();
    assert!(error.contains("--table"), "{error}");
}

#[test]
fn lists_that_are_wrong_are_refused_by_line() {
    let bench = bench();
    bench.write("bad.txt", "matmul 1x2x3\nconv 3 by 3\n").write("empty.txt", "# nothing\n");
    let error = bench.tune(&["--shapes", "bad.txt"]).error();
    assert!(error.contains("bad.txt, line 2: expected an op like"), "{error}");
    assert!(bench.tune(&["--shapes", "none.txt"]).error().contains("none.txt"));
    assert!(bench.tune(&["--shapes", "empty.txt"]).error().contains("nothing to tune"));
    bench.write("huge.txt", "conv 9999999999x9999999999x99999999999 to 99999999999 window 3\n");
    assert!(bench.tune(&["--shapes", "huge.txt"]).error().contains("conv"));
    assert!(!bench.path("t.txt").exists());
    let list = bench.tune(&["--shapes", "bad.txt", "m.onnx"]);
    assert_eq!(list.status, Some(2));
    let broken = net().encode_to_vec();
    bench.write("m.onnx", &broken[..broken.len() / 2]);
    assert!(bench.tune(&["m.onnx"]).error().contains("m.onnx"));
}

#[test]
fn kernels_are_shown_under_their_roofline() {
    let bench = bench();
    let args = ["bench", "--kernels", "conv3x3/128x6x256", "--roofline", "r.svg", "--format"];
    let json = bench.run(&[&args[..], &["json"]].concat()).json();
    let memory = json["memory"].as_array().unwrap();
    assert!(memory.len() > 1 && memory.iter().all(|l| l["gb_s"].as_f64().unwrap() > 0.0), "{json}");
    assert!(memory.last().unwrap()["bytes"].is_null());
    let kernel = &json["kernels"][0];
    for key in ["intensity", "bound_gflops", "share_of_bound"] {
        assert!(kernel[key].as_f64().unwrap() > 0.0, "{key} in {kernel}");
    }
    assert!(kernel["level"].is_string());
    let svg = bench.text("r.svg");
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("<polyline") && svg.contains("conv3x3 128 x 6 x 256"), "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let lone = bench.run(&["bench", "m.onnx", "--roofline", "r.svg"]);
    assert_eq!(lone.status, Some(2));
}

#[test]
#[cfg(feature = "opencl")]
fn devices_are_tuned_into_the_same_table() {
    let bench = bench();
    bench.write("device.txt", "gemm 1x4x32x8 # one\nrows q8_0 1x1x32x64 round\n");
    let args = ["--backend", "opencl", "--format", "json"];
    let ran = bench.tune(&[&args[..], &["m.onnx"]].concat());
    if ran.stderr.contains("OpenCL library") || ran.stderr.contains("OpenCL has no device") {
        assert!(std::env::var_os("TILEWRIGHT_EXPECT_OPENCL").is_none(), "{}", ran.stderr);
        return println!("skipped: {}", ran.stderr);
    }
    let json = ran.json();
    assert_eq!(json["isa"], "opencl");
    let rows = json["workloads"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{json}");
    for row in rows {
        assert!(row["candidates"].as_u64() >= Some(2), "{row}");
        assert!(row["gain"].as_f64().unwrap() >= 1.0, "{row}");
    }
    assert!(json["model"]["after_us"].as_f64().unwrap() > 0.0);
    // A list adds to the table, and the CPU's entries stand beside those of the device.
    bench.tune(&["--device", "0", "--shapes", "device.txt"]).done();
    bench.tune(&["--shapes", "list.txt"]).done();
    let table = Table::load(&bench.path("t.txt")).unwrap();
    assert_eq!((table.device_entries().count(), table.entries().count()), (4, 2));
    let run = ["bench", "m.onnx", "--time", "0", "--table", "t.txt", "--backend", "opencl"];
    let ran = bench.run(&run);
    assert!(!ran.stderr.contains("t.txt"), "{}", ran.stderr);
    ran.done();
    let json = bench.tune(&[&args[..], &["--verify"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["checked"].as_array().unwrap().len(), 4, "{json}");
    assert_eq!(json["not_for_this_machine"], 2);
    // Another driver's entries are not for this one; a damaged line is said.
    let text = bench.text("t.txt");
    let name = json["cpu"].as_str().unwrap();
    bench.write("t.txt", text.replace(name, &format!("{name}.1")));
    let error = bench.tune(&["--backend", "opencl", "--verify"]).error();
    assert!(error.contains("no entry to verify for this device"), "{error}");
    let line =
        1 + text.lines().position(|l| l.contains("| opencl | ") && !l.starts_with('#')).unwrap();
    bench.write("t.txt", text.replace("unroll", "roll"));
    let ran = bench.run(&run);
    let said = format!("note: tuning table t.txt, line {line}: not an entry of a device");
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    bench.write("t.txt", text);
    let error = bench.tune(&["--backend", "rknn", "m.onnx"]).error();
    assert!(error.contains("nothing to tune"), "{error}");
    let error = bench.tune(&["--backend", "cpu", "--device", "0", "m.onnx"]).error();
    assert!(error.contains("--device 0"), "{error}");
    let error = bench.tune(&["--device", "0", "--shapes", "list.txt"]).error();
    assert!(error.contains("list.txt, line 3: expected a kernel of an OpenCL device"), "{error}");
}
