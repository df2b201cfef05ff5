//! The NPU of Rockchip's chips, emulated, as the program uses it.

use std::fs;
use std::process::Command;

use rknnrt::Instance;

use crate::support::{Bench, Ran, model, node, tensor};

/// The program with an emulated RK3588, whose lock nobody else has.
fn command(bench: &Bench, emulator: &Instance) -> Command {
    let mut command = bench.command();
    command
        .env("TMPDIR", bench.path("."))
        .env("TILEWRIGHT_RKNN_CHIP", "rk3588")
        .env("TILEWRIGHT_RKNN_EMULATOR", "1")
        .env("TILEWRIGHT_RKNN_MIN_ROWS", "16")
        .env("TILEWRIGHT_RKNN_SELF_TEST", "off")
        .env("XDG_CACHE_HOME", bench.path("cache"))
        .env("TILEWRIGHT_RKNN_LIB", emulator.path());
    command
}

fn emulator() -> Instance {
    Instance::new("", None).unwrap()
}

#[test]
fn doctor_tests_the_npu_in_another_process() {
    let (bench, emulator) = (Bench::new(), emulator());
    let run = |fault: &str| {
        let mut command = command(&bench, &emulator);
        command.env("RKNN_EMU_FAULT", fault).args(["doctor", "--format", "json"]);
        Ran::from(command.output().unwrap()).json()["rknn"].clone()
    };
    let good = run("");
    assert_eq!((&good["available"], &good["chip"]), (&true.into(), &"rk3588".into()), "{good}");
    assert_eq!(good["self_test"]["cores"], 3);
    assert_eq!(good["self_test"]["api_version"], "2.3.2 (emulator)");
    let times = good["self_test"]["per_core"].as_array().unwrap();
    assert_eq!(times.len(), 6, "three cores, two types: {good}");
    assert!(good["self_test"]["times"][0]["gflops"].as_f64().unwrap() > 0.0, "{good}");
    let digest = good["self_test"]["library_sha256"].as_str().unwrap();
    let tool = Command::new("sha256sum").arg(emulator.path()).output();
    let same = tool.map_or(true, |said| said.stdout.starts_with(digest.as_bytes()));
    assert!(digest.len() == 64 && same, "{good}");
    assert!(good["kernel"].is_string() && good["open_files"].is_u64(), "{good}");
    for (fault, reason) in [
        ("create:rc=-3", "device unavailable"),
        ("run:wrong=zero", "wrong row"),
        ("run:crash", "self-test: it ended with"),
    ] {
        let bad = run(fault);
        assert_eq!(bad["available"], false, "{bad}");
        assert!(bad["reason"].as_str().unwrap().contains(reason), "{bad}");
    }
    let mut nowhere = command(&bench, &emulator);
    nowhere.env("TILEWRIGHT_RKNN_LIB", "none.so").arg("doctor");
    let ran = Ran::from(nowhere.output().unwrap());
    let said = ran.done();
    assert!(said.contains("rknn              none: "), "{said}");
    assert!(said.contains("set TILEWRIGHT_RKNN_LIB to its path"), "{said}");
}

#[test]
fn a_library_is_tested_before_its_first_use() {
    let (bench, emulator) = (Bench::new(), emulator());
    let run = |fault: &str| {
        let mut command = command(&bench, &emulator);
        command.env_remove("TILEWRIGHT_RKNN_SELF_TEST").env("RKNN_EMU_FAULT", fault);
        command.args(["generate", "-p", "a", "-n", "1", "--backend", "rknn"]);
        Ran::from(command.output().unwrap())
    };
    for fault in ["run:crash", "run:nth=3:wrong=nan"] {
        let bad = run(fault);
        assert_eq!(bad.status, Some(1), "{}", bad.stderr);
        assert!(bad.stderr.contains(", before its first use"), "{}", bad.stderr);
    }
    run("").done();
    // It has passed now, and is not tested again: what fails later is left to the CPU.
    run("run:nth=3:rc=-1").done();
    // One that the loader finds by its name is the file that it finds.
    let library = bench.path("librknnrt.so");
    fs::copy(emulator.path(), &library).unwrap();
    let by_name = |fault: &str| {
        let mut command = command(&bench, &emulator);
        command.env_remove("TILEWRIGHT_RKNN_SELF_TEST").env("RKNN_EMU_FAULT", fault);
        command.env_remove("TILEWRIGHT_RKNN_LIB").env("LD_LIBRARY_PATH", bench.path("."));
        command.args(["generate", "-p", "a", "-n", "1", "--backend", "rknn"]);
        Ran::from(command.output().unwrap())
    };
    by_name("").done();
    by_name("run:nth=3:rc=-1").done();
    // Another file of that name has passed nothing.
    let other = [fs::read(&library).unwrap(), vec![0]].concat();
    fs::write(&library, other).unwrap();
    let bad = by_name("run:nth=3:wrong=nan");
    assert!(bad.stderr.contains(", before its first use"), "{}", bad.stderr);
}

#[test]
fn costs_are_measured_and_used() {
    let (bench, emulator) = (Bench::new(), emulator());
    let mut measure = command(&bench, &emulator);
    measure.args(["doctor", "--npu-costs", "costs.json"]);
    assert!(Ran::from(measure.output().unwrap()).done().contains("npu_macs"));
    let generate = |costs: &str| {
        let mut command = command(&bench, &emulator);
        command.env("TILEWRIGHT_RKNN_COSTS", costs).env_remove("TILEWRIGHT_RKNN_MIN_ROWS");
        command.args(["generate", "-p", "a", "-n", "1", "--backend", "rknn"]);
        Ran::from(command.output().unwrap())
    };
    generate("costs.json").done();
    let refused = generate("m.onnx");
    assert_eq!(refused.status, Some(1));
    assert!(refused.stderr.contains("the table of costs `m.onnx`"), "{}", refused.stderr);
}

#[test]
fn products_run_on_the_npu_and_fall_back() {
    let (bench, emulator) = (Bench::new(), emulator());
    let (m, k, n) = (20, 64, 40);
    let values = |count: usize| (0..count).map(|i| (i * 37 % 19) as f32 - 9.0).collect::<Vec<_>>();
    let w = tensor("w", &[k as i64, n as i64], &values(k * n));
    let dims = [Some(m as i64), Some(k as i64)];
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    bench.model("m.onnx", &model(&[("x", crate::support::F32, &dims)], &["y"], nodes, vec![w]));
    bench.npy("x.npy", &[m, k], &values(m * k));
    let mut results = Vec::new();
    for (backend, fault, warned) in
        [("cpu", "", false), ("rknn", "", false), ("rknn", "run:nth=1:rc=-1", true)]
    {
        let mut command = command(&bench, &emulator);
        command.env("RKNN_EMU_FAULT", fault).args(["run", "m.onnx", "--input", "x.npy"]);
        let ran = command.args(["--backend", backend, "--output-dir", "out"]).output().unwrap();
        let ran = Ran::from(ran);
        assert_eq!(ran.stderr.contains("the CPU computes instead"), warned, "{}", ran.stderr);
        ran.done();
        results.push(bench.values("out/y.npy"));
    }
    // Whole numbers of this size are exact in half precision.
    assert!(results.iter().all(|r| *r == results[0]));
    let mut command = command(&bench, &emulator);
    command.env_remove("TILEWRIGHT_RKNN_EMULATOR");
    let refused = command.args(["run", "m.onnx", "--input", "x.npy", "--backend", "rknn"]);
    let refused = Ran::from(refused.output().unwrap());
    assert_eq!(refused.status, Some(1));
    assert!(refused.stderr.contains("TILEWRIGHT_RKNN_EMULATOR=1"), "{}", refused.stderr);
}
