//! Bad input: one clear line, status 1, quickly, and nothing half-written.

use core::time::Duration;
use std::time::Instant;

use crate::support::{Bench, F32, model, node, relu, tensor};
use prost::Message;

/// Runs `m.onnx` on `x.npy` into `out`; the error must name `word`, and nothing may be left.
#[track_caller]
fn refused(bench: &Bench, word: &str) {
    let before = bench.list(".");
    let start = Instant::now();
    let error = bench.run(&["run", "m.onnx", "--input", "x=x.npy", "--output-dir", "out"]).error();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(error.contains(word), "{error:?} does not contain {word:?}");
    assert_eq!(bench.list("."), before);
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.model("m.onnx", &relu()).npy("x.npy", &[1, 3], &[1.0, -1.0, 2.0]);
    bench
}

#[test]
fn files_that_are_no_models() {
    let bench = bench();
    let good = relu().encode_to_vec();
    for cut in [1, good.len() / 2, good.len() - 1] {
        refused(bench.write("m.onnx", &good[..cut]), "m.onnx");
    }
    refused(bench.write("m.onnx", ""), "empty");
    refused(bench.write("m.onnx", "Dear reader, this is a letter."), "m.onnx");
    refused(bench.write("m.onnx", [0xff; 4096]), "m.onnx");
    std::fs::remove_file(bench.path("m.onnx")).unwrap();
    refused(&bench, "m.onnx");
    std::fs::create_dir(bench.path("m.onnx")).unwrap();
    refused(&bench, "m.onnx");
}

#[test]
fn graphs_that_make_no_sense() {
    let bench = bench();
    let x = [("x", F32, &[None, Some(3)][..])];
    let cycle = vec![node("Add", &["x", "b"], &["a"]), node("Relu", &["a"], &["b"])];
    refused(bench.model("m.onnx", &model(&x, &["b"], cycle, vec![])), "wait for each other");
    let nodes = || vec![node("Add", &["x", "w"], &["y"])];
    let negative = tensor("w", &[-3], &[1.0; 3]);
    refused(bench.model("m.onnx", &model(&x, &["y"], nodes(), vec![negative])), "negative");
    let absurd = tensor("w", &[1 << 40, 1 << 40], &[1.0; 3]);
    refused(bench.model("m.onnx", &model(&x, &["y"], nodes(), vec![absurd])), "w");
    let huge = tensor("w", &[1 << 45], &[1.0; 3]);
    refused(bench.model("m.onnx", &model(&x, &["y"], nodes(), vec![huge])), "w");
    let short = tensor("w", &[3], &[1.0; 2]);
    refused(bench.model("m.onnx", &model(&x, &["y"], nodes(), vec![short])), "w");
    let dangling = model(&x, &["y"], nodes(), vec![]);
    refused(bench.model("m.onnx", &dangling), "w");
    let negative = [("x", F32, &[Some(-1), Some(3)][..])];
    let nodes = vec![node("Relu", &["x"], &["y"])];
    refused(bench.model("m.onnx", &model(&negative, &["y"], nodes, vec![])), "-1");
}

#[test]
fn everything_that_is_unsupported_is_named_at_once() {
    let bench = bench();
    let nodes = vec![
        node("Conjure", &["x"], &["a"]),
        node("Relu", &["a"], &["b"]),
        node("Divine", &["b"], &["y"]),
    ];
    bench.model("m.onnx", &model(&[("x", F32, &[None, Some(3)])], &["y"], nodes, vec![]));
    refused(&bench, "Conjure");
    refused(&bench, "Divine");
}

#[test]
fn inputs_that_do_not_fit() {
    let bench = bench();
    let fails = |args: &[&str], word: &str| {
        let args = [&["run", "m.onnx", "--output-dir", "out"], args].concat();
        let error = bench.run(&args).error();
        assert!(error.contains(word), "{error:?} does not contain {word:?}");
        assert!(!bench.path("out").exists());
    };
    fails(&[], "`x`");
    fails(&["--input", "z=x.npy"], "`z`");
    fails(&["--input", "x=x.npy", "--input", "x=x.npy"], "twice");
    fails(&["--input", "x=absent.npy"], "absent.npy");
    fails(&["--input", "x=."], "x");
    bench.npy("wide.npy", &[1, 4], &[0.0; 4]);
    fails(&["--input", "wide.npy"], "[1, 4]");
    bench.npy("flat.npy", &[3], &[0.0; 3]);
    fails(&["--input", "flat.npy"], "[3]");
    let double = tilewright::Tensor::from_slice(&[1, 3], &[0f64; 3]).unwrap();
    bench.write("double.npy", tilewright::io::npy::write(&double).unwrap());
    fails(&["--input", "double.npy"], "f64");
    bench.write("x.txt", "1 2 3");
    fails(&["--input", "x.txt"], ".npy");
    let two = [("a", F32, &[Some(1)][..]), ("b", F32, &[Some(1)][..])];
    bench.model("m.onnx", &model(&two, &["y"], vec![node("Add", &["a", "b"], &["y"])], vec![]));
    fails(&["--input", "x.npy"], "a, b");
}

#[test]
fn arrays_pictures_and_sounds_that_are_none() {
    let bench = bench();
    for (name, bytes) in [
        ("a.npy", &b"\x93NUMPY"[..]),
        ("b.npy", b"PK\x03\x04"),
        ("c.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'}"),
        ("d.pb", b"\xff\xff\xff\xff\xff"),
        ("e.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"),
        ("f.jpg", b"\xff\xd8\xff\xe0 not really"),
        ("g.png", b"GIF89a"),
        ("h.wav", b"RIFF\xff\xff\xff\xffWAVEfmt \xff\xff\xff\xff"),
        ("i.npy", b""),
        ("j.pb", b""),
        ("k.png", b""),
        ("l.wav", b""),
    ] {
        let error = bench.write(name, bytes).run(&["run", "m.onnx", "--input", name]).error();
        assert!(error.contains(name), "{error}");
        if name.ends_with("png") || name.ends_with("jpg") {
            let error = bench.run(&["run", "--input", name]).error();
            assert!(error.contains(name), "{error}");
        }
    }
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }";
    let length = (header.len() as u16).to_le_bytes();
    let huge = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &[0; 64]].concat();
    refused(bench.write("x.npy", huge), "1000000");
}

#[test]
fn files_of_other_kinds_are_named_with_what_they_are_for() {
    let bench = bench();
    bench.write("model.gguf", b"GGUF\x03\0\0\0").write("photo.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF");
    for command in ["run", "explain", "batch"] {
        let cases: &[&str] = if command == "batch" { &["--cases", "."] } else { &[] };
        let error = bench.run(&[&[command, "model.gguf"], cases].concat()).error();
        assert!(error.contains("model.gguf: it is a GGUF file"), "{error}");
        let error = bench.run(&[&[command, "photo.jpg"], cases].concat()).error();
        assert!(
            error.contains("photo.jpg: it is a picture") && error.contains("--input"),
            "{error}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn files_without_an_end_are_not_read_for_ever() {
    let bench = bench();
    for option in ["--task", "--labels", "--table"] {
        let args = ["run", "m.onnx", "--input", "x.npy", option, "/dev/zero"];
        let error = bench.run(&args).error();
        assert!(error.contains("/dev/zero"), "{error}");
    }
    for args in [&["--table", "/dev/zero"][..], &["--table", "t", "--shapes", "/dev/zero"]] {
        assert!(bench.run(&[&["tune"], args].concat()).error().contains("/dev/zero"));
    }
}

#[test]
fn folders_that_cannot_be_written() {
    let bench = bench();
    bench.write("file", "-");
    for target in ["file", "file/out", "/proc/out"] {
        let args = ["run", "m.onnx", "--input", "x.npy", "--output-dir", target];
        let error = bench.run(&args).error();
        assert!(error.contains(target), "{error}");
    }
    // A folder where the file should go: nothing else is written either.
    std::fs::create_dir_all(bench.path("out/y.npy")).unwrap();
    bench.run(&["run", "m.onnx", "--input", "x.npy", "--output-dir", "out"]).error();
    assert_eq!(bench.list("out"), ["y.npy"]);
}

#[test]
fn backends_that_do_not_exist() {
    let bench = bench();
    for args in [&["run", "m.onnx", "--input", "x.npy"][..], &["bench", "m.onnx"], &["run"]] {
        let error = bench.run(&[args, &["--backend", "npu"]].concat()).usage();
        assert!(error.contains("npu") && error.contains("cpu"), "{error}");
    }
    let error = bench.run(&["batch", "m.onnx", "--cases", "nowhere"]).error();
    assert!(error.contains("nowhere"), "{error}");
    let error = bench.run(&["bench", "--kernels", "no such kernel"]).error();
    assert!(error.contains("no such kernel"), "{error}");
    let error = bench.run(&["bench", "m.onnx", "--shape", "1,banana"]).usage();
    assert!(error.contains("banana"), "{error}");
    let error = bench.run(&["inspect", "m.onnx", "--shape", "9999999999,9999999999,99"]).error();
    assert!(error.contains('x'), "{error}");
}

#[test]
fn a_plan_that_fails_on_assumed_extents_says_what_was_assumed() {
    let bench = Bench::new();
    let nodes = vec![node("Add", &["x", "c"], &["y"])];
    let constant = vec![tensor("c", &[3], &[1.0; 3])];
    bench.model("m.onnx", &model(&[("x", F32, &[None, None])], &["y"], nodes, constant));
    for command in ["inspect", "bench", "explain"] {
        let error = bench.run(&[command, "m.onnx"]).error();
        assert!(error.contains("x [1, 224]") && error.contains("--shape"), "{error}");
        let error = bench.run(&[command, "m.onnx", "--shape", "1,5"]).error();
        assert!(!error.contains("--shape"), "{error}");
    }
    bench.run(&["inspect", "m.onnx", "--shape", "1,3"]).done();
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    let bench = bench();
    bench.model("m.onnx", &relu());
    let error = bench.run(&["bench", "m.onnx", "--depth", "5"]).error();
    assert!(error.contains("--depth") && error.contains("GGUF"), "{error}");
    let error = bench.run(&["run", "--pixel-range", "0..1"]).error();
    assert!(error.contains("--pixel-range"), "{error}");
    for option in [["--backend", "cpu"], ["--table", "t.txt"], ["--memory-limit", "1G"]] {
        let error = bench.run(&[&["bench", "--kernels", "x"][..], &option].concat()).usage();
        assert!(error.contains(option[0]), "{error}");
    }
}

#[test]
fn more_memory_than_there_is_is_refused_before_it_is_taken() {
    let bench = Bench::new();
    // The outer product of a column with itself.
    let nodes = vec![node("Transpose", &["x"], &["t"]), node("MatMul", &["x", "t"], &["y"])];
    bench.model("outer.onnx", &model(&[("x", F32, &[None, Some(1)])], &["y"], nodes, vec![]));
    let failed = bench.run(&["bench", "outer.onnx", "--shape", "4000000,1"]);
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    assert!(
        failed.stderr.contains("memory") && failed.stderr.contains("limit"),
        "{}",
        failed.stderr
    );
    // A limit of one's own.
    bench.npy("x.npy", &[100, 1], &[1.0; 100]);
    let args = ["run", "outer.onnx", "--input", "x.npy", "--memory-limit"];
    let refused = bench.run(&[&args[..], &["32K"]].concat());
    assert!(refused.status == Some(1) && refused.stderr.contains("32768"), "{}", refused.stderr);
    bench.run(&[&args[..], &["1M"]].concat()).done();
    assert_eq!(bench.run(&[&args[..], &["1X"]].concat()).status, Some(2));
}
