//! The program, as it is called by people and scripts.

use crate::support::{Bench, F32, U8, model, node, relu, tensor, with_metadata};
use prost::Message;
use std::process::Stdio;
use tilewright::import::onnx::proto::{TensorProto, type_proto};

#[test]
fn embedded_model_reads_the_embedded_picture() {
    let bench = Bench::new();
    let text = bench.run(&["run"]).done();
    for word in ["text", "confidence", "time", " on "] {
        assert!(text.contains(word), "{text}");
    }
    let json = bench.run(&["run", "--format", "json", "--threads", "1"]).json();
    assert!(json["text"].is_string() && json["confidence"].is_number());
    assert_eq!((&json["threads"], &json["model"]), (&1.into(), &"textline (embedded)".into()));
    let output = &json["outputs"][0];
    for key in ["name", "dtype", "shape", "min", "max", "mean"] {
        assert!(!output[key].is_null(), "{key} in {json}");
    }
    assert!(json["time_us"].as_f64().unwrap() > 0.0 && json["isa"].is_string());
    let beam = bench.run(&["run", "--beam", "4", "--format", "json"]).json();
    assert!(beam["text"].is_string());
}

#[test]
fn outputs_are_written_under_safe_names() {
    let bench = Bench::new();
    let nodes = vec![node("Relu", &["x"], &["a/b:0"]), node("Neg", &["x"], &["-y_.2"])];
    let twice = model(&[("x", F32, &[None, Some(2)])], &["a/b:0", "-y_.2"], nodes, vec![]);
    bench.model("m.onnx", &twice).npy("x.npy", &[1, 2], &[-1.0, 2.0]);
    let args =
        ["run", "m.onnx", "--input", "x=x.npy", "--output-dir", "deep/out", "--format", "json"];
    let json = bench.run(&args).json();
    assert_eq!(bench.list("deep/out"), ["-y_.2.npy", "a_b_0.npy"]);
    assert_eq!(bench.values("deep/out/a_b_0.npy"), [0.0, 2.0]);
    assert_eq!(bench.values("deep/out/-y_.2.npy"), [1.0, -2.0]);
    assert_eq!(json["outputs"][0]["name"], "a/b:0");
    assert_eq!(json["outputs"][1]["min"], -2.0);
    assert_eq!(json["outputs"][1]["shape"], serde_json::json!([1, 2]));
    // One input needs no name, and the text form shows each output.
    let text = bench.run(&["run", "m.onnx", "--input", "x.npy"]).done();
    assert!(text.contains("a/b:0") && text.contains("[1, 2]"), "{text}");
}

#[test]
fn inputs_come_from_every_kind_of_array() {
    let bench = Bench::new();
    bench.model("m.onnx", &relu());
    bench.write("x.pb", tensor("x", &[1, 3], &[1.0, -1.0, 3.0]).encode_to_vec());
    let json = bench.run(&["run", "m.onnx", "--input", "x=x.pb", "--format", "json"]).json();
    assert_eq!(
        (&json["outputs"][0]["max"], &json["outputs"][0]["min"]),
        (&3.0.into(), &0.0.into())
    );
    // Fortran order, big-endian.
    let header = "{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3), }\n";
    let values: Vec<u8> =
        [1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0].iter().flat_map(|v| v.to_be_bytes()).collect();
    let length = (header.len() as u16).to_le_bytes();
    let file = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &values].concat();
    bench
        .write("f.npy", file)
        .run(&["run", "m.onnx", "--input", "f.npy", "--output-dir", "."])
        .done();
    assert_eq!(bench.values("y.npy"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn pictures_and_sounds_fit_inputs_that_are_clear() {
    let bench = Bench::new();
    let picture = image::RgbImage::from_fn(4, 2, |x, _| image::Rgb([x as u8 * 85, 0, 255]));
    picture.save(bench.path("p.png")).unwrap();
    let nchw = [Some(1), Some(3), Some(2), Some(4)];
    bench.model(
        "f.onnx",
        &model(&[("x", F32, &nchw)], &["y"], vec![node("Relu", &["x"], &["y"])], vec![]),
    );
    let error = bench.run(&["run", "f.onnx", "--input", "p.png"]).error();
    assert!(error.contains("--pixel-range"), "{error}");
    let args = ["run", "f.onnx", "--input", "p.png", "--pixel-range", "-1..1", "--format", "json"];
    assert_eq!(bench.run(&args).json()["outputs"][0]["max"], 1.0);
    let bytes = model(&[("x", U8, &nchw)], &["y"], vec![node("Identity", &["x"], &["y"])], vec![]);
    bench.model("u.onnx", &bytes);
    let json = bench.run(&["run", "u.onnx", "--input", "p.png", "--format", "json"]).json();
    assert_eq!(json["outputs"][0]["dtype"], "u8");
    assert_eq!(json["outputs"][0]["max"], 255.0);
    bench.model("m.onnx", &relu());
    let error = bench.run(&["run", "m.onnx", "--input", "p.png", "--pixel-range", "0..1"]).error();
    assert!(error.contains("[1, c, h, w]"), "{error}");

    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut sound = hound::WavWriter::create(bench.path("s.wav"), spec).unwrap();
    [0i16, 16384, -32768].iter().for_each(|s| sound.write_sample(*s).unwrap());
    sound.finalize().unwrap();
    let json = bench.run(&["run", "m.onnx", "--input", "s.wav", "--format", "json"]).json();
    assert_eq!(json["outputs"][0]["max"], 0.5);
}

#[test]
fn metadata_give_text_and_labels_to_any_model() {
    let bench = Bench::new();
    let scores = tensor("scores", &[1, 3, 3], &[0., 9., 0., 9., 0., 0., 0., 0., 9.]);
    let nodes = vec![node("Add", &["x", "scores"], &["y"])];
    let reader = model(&[("x", F32, &[Some(1), Some(1), Some(1)])], &["y"], nodes, vec![scores]);
    let entries = [
        ("tilewright.task", "ctc"),
        ("tilewright.ctc.charset", "aé"),
        ("tilewright.ctc.blank", "0"),
    ];
    bench.model("ctc.onnx", &with_metadata(reader, &entries));
    bench.npy("one.npy", &[1, 1, 1], &[0.0]);
    let args = ["run", "ctc.onnx", "--input", "one.npy", "--format", "json"];
    assert_eq!(bench.run(&args).json()["text"], "aé");
    let labelled = with_metadata(relu(), &[("tilewright.labels", "cat\ndog\nox")]);
    bench.model("labels.onnx", &labelled).npy("x.npy", &[1, 3], &[0.25, -1.0, 0.5]);
    let args = ["run", "labels.onnx", "--input", "x.npy", "--format", "json"];
    let labels = bench.run(&args).json()["labels"].clone();
    assert_eq!(labels[0], serde_json::json!({"label": "ox", "score": 0.5}));
    assert_eq!(labels.as_array().unwrap().len(), 3);
    // Metadata of some later version are no reason to refuse the model.
    bench.model("new.onnx", &with_metadata(relu(), &[("tilewright.task", "telepathy")]));
    let ran = bench.run(&["run", "new.onnx", "--input", "x.npy"]);
    assert!(ran.stderr.contains("telepathy"), "{}", ran.stderr);
    assert!(ran.done().contains('y'));
    let error = bench.run(&["run", "labels.onnx", "--input", "x.npy", "--beam", "2"]).error();
    assert!(error.contains("--beam"), "{error}");
}

#[test]
fn detectors_of_ultralytics_need_no_entries() {
    let bench = Bench::new();
    // Six numbers (box, two classes) of eight candidates, whatever the picture; one is above 0.25.
    let mut rows = [0f32; 48];
    for (k, v) in [2.0, 2.0, 2.0, 1.0, 0.1, 0.3].into_iter().enumerate() {
        rows[k * 8 + 5] = v;
    }
    let mut shape = tensor("shape", &[3], &[]);
    (shape.data_type, shape.int64_data) = (Some(7), vec![1, 6, 8]);
    let constants = vec![shape, tensor("zero", &[1], &[0.0]), tensor("rows", &[1, 6, 8], &rows)];
    let nodes = vec![
        node("Reshape", &["images", "shape"], &["a"]),
        node("Mul", &["a", "zero"], &["b"]),
        node("Add", &["b", "rows"], &["output0"]),
    ];
    let inputs = [("images", F32, &[Some(1), Some(3), None, None][..])];
    let detector = model(&inputs, &["output0"], nodes, constants);
    let entries = [
        ("task", "detect"),
        ("stride", "4"),
        ("imgsz", "[4, 4]"),
        ("names", "{0: 'cat', 1: 'dog'}"),
    ];
    bench.model("net.onnx", &with_metadata(detector.clone(), &entries));
    image::RgbImage::new(8, 4).save(bench.path("p.png")).unwrap();
    let args = ["run", "net.onnx", "--input", "p.png", "--draw", "d.png", "--format", "json"];
    let found = bench.run(&args).json()["detections"].clone();
    let mut expected =
        serde_json::json!([{"label": "dog", "class": 1, "box": [2.0, 1.0, 6.0, 3.0]}]);
    expected[0]["score"] = found[0]["score"].clone();
    assert_eq!(found, expected);
    assert!((found[0]["score"].as_f64().unwrap() - 0.3).abs() < 1e-6);
    assert!(bench.path("d.png").exists());
    // What a file beside the network says is stronger.
    bench.write("net.task.json", r#"{"detect.threshold": 0.5}"#);
    let ran = bench.run(&["run", "net.onnx", "--input", "p.png"]);
    assert!(ran.done().contains("nothing detected"));
    // Names that cannot be read are no names.
    let entries = [entries[0], entries[1], entries[2], ("names", "{0: 'cat'")];
    bench.model("other.onnx", &with_metadata(detector, &entries));
    let error = bench.run(&["run", "other.onnx", "--input", "p.png"]).error();
    assert!(error.contains("--pixel-range"), "{error}");
}

#[test]
fn graphs_are_written_before_and_after() {
    let bench = Bench::new();
    let args = ["inspect", "--before", "a.json", "--after", "b.json"];
    bench.run(&args).done();
    let nodes = |name: &str| -> Vec<serde_json::Value> {
        let text = std::fs::read(bench.path(name)).unwrap();
        let graph: serde_json::Value = serde_json::from_slice(&text).unwrap();
        graph["nodes"].as_array().unwrap().clone()
    };
    let (before, after) = (nodes("a.json"), nodes("b.json"));
    assert!(before.len() > after.len(), "{} {}", before.len(), after.len());
    let is = |op: &'static str| move |n: &&serde_json::Value| n["op"] == op;
    assert!(before.iter().any(|n| n["op"] == "relu") && !after.iter().any(|n| n["op"] == "relu"));
    assert_eq!(before.iter().filter(is("conv")).count(), after.iter().filter(is("conv")).count());
    for (nodes, has_kernel) in [(before, false), (after, true)] {
        for (i, node) in nodes.iter().enumerate() {
            assert_eq!(node["kernel"].is_string(), has_kernel, "{node}");
            let inputs = node["inputs"].as_array().unwrap();
            assert!(inputs.iter().all(|j| j.as_u64().unwrap() < i as u64), "{node}");
        }
    }
    for (file, beginning) in [("g.dot", "digraph"), ("g.svg", "<svg"), ("g.txt", "%0 = conv()")] {
        bench.run(&["inspect", "--after", file]).done();
        let text = std::fs::read_to_string(bench.path(file)).unwrap();
        assert!(text.starts_with(beginning), "{file}: {}", &text[..80]);
    }
    let wrong = bench.run(&["inspect", "--after", "graph.png"]);
    assert_eq!(wrong.status, Some(2), "{}", wrong.stderr);
}

#[test]
fn explain_says_why_and_what_would_help() {
    let bench = Bench::new();
    let args = ["explain", "--measure", "--time", "0", "--format", "json"];
    let found = bench.run(&args).json();
    let nodes = found["nodes"].as_array().unwrap();
    assert!(nodes.len() > 10);
    for node in nodes {
        for key in ["name", "op", "kernel", "dtype", "layout", "bound"] {
            assert!(node[key].is_string(), "{key} of {node}");
        }
        for key in ["estimated_us", "measured_us", "share_of_bound"] {
            assert!(node[key].as_f64().is_some_and(|v| v >= 0.0), "{key} of {node}");
        }
    }
    let moves = |n: &&serde_json::Value| n["op"] == "to_interleaved";
    let moved = nodes.iter().find(moves).expect("columns of the picture come one after another");
    assert!(moved["why_not_faster"].as_str().unwrap().contains("layouts"), "{moved}");
    assert!(!found["advice"].as_array().unwrap().is_empty());
    // In words, and without running it.
    let text = bench.run(&["explain", "--threads", "1"]).done();
    assert!(text.contains("what would help most") && text.contains("add --measure"), "{text}");
}

#[test]
fn nodes_that_no_plan_has_are_said() {
    let bench = Bench::new();
    // The output has as many columns as there are numbers that are not 0, which a run computes.
    let nodes = vec![node("NonZero", &["x"], &["found"]), node("Relu", &["found"], &["y"])];
    bench.model("m.onnx", &model(&[("x", F32, &[Some(4)])], &["y"], nodes, vec![]));
    let said = "more nodes are planned in a run";
    for command in ["inspect", "explain"] {
        let text = bench.run(&[command, "m.onnx"]).done();
        assert!(text.contains(said) && !text.contains("-0"), "{text}");
        let found = bench.run(&[command, "m.onnx", "--format", "json"]).json();
        assert_eq!(found["waiting_nodes"], 2, "{found}");
        assert!(!bench.run(&[command]).done().contains(said));
    }
}

#[test]
fn profile_shows_time_per_operator() {
    let bench = Bench::new();
    let text = bench.run(&["run", "--profile"]).done();
    for word in ["operator", "GFLOP/s", "share", "total", "100.0 %"] {
        assert!(text.contains(word), "{text}");
    }
    let json = bench.run(&["run", "--profile", "--format", "json"]).json();
    let rows = json["profile"].as_array().unwrap();
    let shares: f64 = rows.iter().map(|r| r["share"].as_f64().unwrap()).sum();
    assert!(rows.len() > 10 && (shares - 1.0).abs() < 1e-6);
}

#[test]
fn batch_runs_every_case_and_reports_the_bad_ones() {
    let bench = Bench::new();
    bench.model("m.onnx", &relu());
    bench.npy("cases/a/input_0.npy", &[1, 3], &[1.0, -2.0, 3.0]);
    bench.npy("cases/b/input_0.npy", &[1, 4], &[0.0; 4]);
    bench.write("cases/c/input_0.pb", tensor("x", &[2, 3], &[1.0; 6]).encode_to_vec());
    bench.write("cases/d/input_0.npy", "not an array").write("cases/readme.txt", "-");
    std::fs::create_dir(bench.path("cases/empty")).unwrap();
    let args = ["batch", "m.onnx", "--cases", "cases", "--output-dir", "out", "--format", "json"];
    let ran = bench.run(&args);
    assert_eq!(
        (ran.status, ran.stderr.as_str()),
        (Some(1), "error: 2 of 4 cases have no result\n")
    );
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let cases = json["cases"].as_array().unwrap();
    let status: Vec<&str> = cases.iter().map(|c| c["status"].as_str().unwrap()).collect();
    assert_eq!(status, ["ok", "failed", "ok", "failed"]);
    assert!(cases[0]["time_us"].is_number() && cases[0]["case"] == "a");
    assert!(cases[1]["message"].is_string() && cases[3]["message"].is_string());
    assert_eq!(bench.values("out/a/output_0.npy"), [1.0, 0.0, 3.0]);
    assert_eq!(bench.list("out"), ["a", "c"]);
    assert_eq!(bench.list("cases/a"), ["input_0.npy"]);
    // Beside the inputs, and with success.
    std::fs::remove_dir_all(bench.path("cases/b")).unwrap();
    std::fs::remove_dir_all(bench.path("cases/d")).unwrap();
    let text = bench.run(&["batch", "m.onnx", "--cases", "cases"]).done();
    assert!(text.contains("2 ok, 0 unsupported, 0 failed"), "{text}");
    assert_eq!(bench.list("cases/c"), ["input_0.pb", "output_0.npy"]);
    let error = bench.run(&["batch", "m.onnx", "--cases", "out/a"]).error();
    assert!(error.contains("input_0.npy"), "{error}");
}

#[test]
fn labels_of_classes_come_out_as_texts() {
    const I64: i32 = 7;
    const STRING: i32 = 8;
    let bench = Bench::new();
    let labels = TensorProto {
        name: Some("labels".into()),
        dims: vec![3],
        data_type: Some(STRING),
        string_data: ["no", "größer", ""].iter().map(|s| s.as_bytes().to_vec().into()).collect(),
        ..TensorProto::default()
    };
    let gather = node("Gather", &["labels", "x"], &["y"]);
    let mut network = model(&[("x", I64, &[None])], &["y"], vec![gather], vec![labels]);
    let output = network.graph.as_mut().and_then(|g| g.output[0].r#type.as_mut()?.value.as_mut());
    let Some(type_proto::Value::Tensor(tensor)) = output else { panic!("an output of a type") };
    tensor.elem_type = Some(STRING);
    bench.model("m.onnx", &network);
    let which = tilewright::Tensor::from_slice(&[3], &[1i64, 2, 0]).unwrap();
    bench.write("x.npy", tilewright::io::npy::write(&which).unwrap());
    let args = ["run", "m.onnx", "--input", "x.npy", "--output-dir", "out"];
    let text = bench.run(&args).done();
    assert!(text.contains("text  [3]      -    -     -  \"größer\" \"\" \"no\""), "{text}");
    let json = bench.run(&[&args[..], &["--format", "json"]].concat()).done();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let output = &json["outputs"][0];
    assert_eq!(output["texts"], serde_json::json!(["größer", "", "no"]));
    assert!(output["dtype"] == "text" && output["min"].is_null());
    let file = std::fs::read(bench.path("out/y.npy")).unwrap();
    assert_eq!(file, tilewright::io::npy::write_texts(&[3], &["größer", "", "no"]).unwrap());
    bench.write("cases/a/input_0.npy", tilewright::io::npy::write(&which).unwrap());
    bench.run(&["batch", "m.onnx", "--cases", "cases"]).done();
    assert_eq!(std::fs::read(bench.path("cases/a/output_0.npy")).unwrap(), file);
    let text = bench.run(&["inspect", "m.onnx", "--shape", "3"]).done();
    assert!(text.contains("outputs       y text"), "{text}");
}

#[test]
fn bench_inspect_and_doctor_print_their_keys() {
    let bench = Bench::new();
    bench.model("m.onnx", &relu());
    let args = ["bench", "m.onnx", "--shape", "2,3", "--time", "0.01", "--format", "json"];
    let json = bench.run(&args).json();
    for key in ["model", "isa", "threads", "runs", "median_us", "min_us", "gflops"] {
        assert!(!json[key].is_null(), "{key} in {json}");
    }
    // As the table writes it.
    let json =
        bench.run(&["bench", "--kernels", "conv3x3/128 x 6 x 256", "--format", "json"]).json();
    assert!(json["peak_gflops"].as_f64().unwrap() > 0.0);
    let kernel = &json["kernels"][0];
    for key in ["op", "dtype", "shape", "algorithm", "median_us", "gflops", "share_of_peak"] {
        assert!(!kernel[key].is_null(), "{key} in {json}");
    }
    let json = bench.run(&["inspect", "m.onnx", "--format", "json"]).json();
    for key in
        ["model", "inputs", "outputs", "nodes", "parameters", "macs", "arena_bytes", "weight_bytes"]
    {
        assert!(!json[key].is_null(), "{key} in {json}");
    }
    assert_eq!(
        json["inputs"][0],
        serde_json::json!({"name": "x", "dtype": "f32", "shape": ["d0", 3]})
    );
    assert!(bench.run(&["inspect"]).done().contains("a line of text, 32 rows high"));
    let json = bench.run(&["doctor", "--format", "json"]).json();
    for key in ["cpu", "isas", "opencl", "rknn", "advice"] {
        assert!(!json[key].is_null(), "{key} in {json}");
    }
    assert!(json["isas"].as_array().unwrap().contains(&"scalar".into()));
}

#[test]
fn usage_errors_have_status_two_and_help_teaches() {
    let bench = Bench::new();
    for args in [
        &[][..],
        &["fly"],
        &["run", "--frobnicate"],
        &["run", "--threads", "0"],
        &["run", "--threads", "many"],
        &["run", "--format", "xml"],
        &["run", "--beam", "0"],
        &["run", "--pixel-range", "1"],
        &["run", "--draw", "found.jpg"],
        &["inspect", "--shape", "x"],
        &["inspect", "--shape", "x=1,-2"],
        &["batch", "m.onnx"],
        &["bench", "m.onnx", "--kernels"],
        &["inspect", "a.onnx", "b.onnx"],
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.status, Some(2), "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}");
    }
    for command in ["run", "batch", "bench", "tune", "inspect"] {
        let help = bench.run(&[command, "--help"]).done();
        assert!(help.contains("Example"), "{help}");
    }
    assert!(bench.run(&["--help"]).done().contains("NO_COLOR"));
    assert!(bench.run(&["--version"]).done().starts_with("tilewright 0."));
}

#[test]
fn styles_are_for_terminals_that_want_them() {
    let bench = Bench::new();
    bench.model("m.onnx", &relu());
    // A pipe is no terminal; asked for styles all the same, it gets them, unless NO_COLOR is set.
    let args = ["inspect", "m.onnx"];
    assert!(!bench.run(&args).done().contains('\u{1b}'));
    let output = |no_color: &str| {
        let mut command = bench.command();
        command.env("CLICOLOR_FORCE", "1").env("NO_COLOR", no_color).args(args);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(output("").contains('\u{1b}'));
    assert!(!output("1").contains('\u{1b}'));
}

#[test]
fn instruction_set_follows_the_environment() {
    let bench = Bench::new();
    bench.model("m.onnx", &relu()).npy("x.npy", &[1, 3], &[1.0; 3]);
    let with = |isa: &str| {
        let mut command = bench.command();
        command
            .env("TILEWRIGHT_ISA", isa)
            .args(["run", "m.onnx", "--input", "x.npy", "--format", "json"]);
        crate::support::Ran::from(command.output().unwrap())
    };
    assert_eq!(with("scalar").json()["isa"], "scalar");
    assert!(with("mmx").error().contains("TILEWRIGHT_ISA: unknown instruction set \"mmx\""));
}

#[cfg(unix)]
#[test]
fn a_reader_that_went_away_is_not_an_error() {
    let bench = Bench::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child =
        bench.command().args(["inspect"]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let status = child.wait().unwrap();
    let mut stderr = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
}

#[cfg(unix)]
#[test]
fn outputs_go_into_pipes_and_behind_links() {
    let bench = Bench::new();
    bench.model("m.onnx", &relu()).npy("x.npy", &[1, 3], &[1.0; 3]).write("out/old.npy", "old");
    std::os::unix::fs::symlink("old.npy", bench.path("out/y.npy")).unwrap();
    bench.run(&["run", "m.onnx", "--input", "x.npy", "-o", "out"]).done();
    assert!(bench.path("out/y.npy").is_symlink());
    assert_eq!(bench.values("out/old.npy"), [1.0; 3]);
    assert_eq!(bench.list("out"), ["old.npy", "y.npy"]);
    // Standard output itself, as what stands before the rest of the output.
    std::os::unix::fs::symlink("/dev/stdout", bench.path("graph.txt")).unwrap();
    let shown = bench.run(&["inspect", "m.onnx", "--shape", "1,3", "--after", "graph.txt"]).done();
    assert!(bench.path("graph.txt").is_symlink());
    let (graph, rest) = shown.split_once("model ").unwrap();
    assert!(graph.contains("relu") && rest.contains("relu"), "{shown}");
    let shown = std::fs::File::create(bench.path("shown")).unwrap();
    let args = ["inspect", "m.onnx", "--shape", "1,3", "--after", "graph.txt"];
    assert!(bench.command().args(args).stdout(shown).status().unwrap().success());
    assert!(std::fs::read_to_string(bench.path("shown")).unwrap().starts_with(graph));
    if cfg!(target_os = "linux") {
        std::fs::remove_file(bench.path("graph.txt")).unwrap();
        std::os::unix::fs::symlink("/dev/full", bench.path("graph.txt")).unwrap();
        let error = bench.run(&args).error();
        assert!(error.contains("graph.txt") && error.contains("space"), "{error}");
    }
}

#[test]
fn terminals_obey_no_name_of_a_file() {
    let bench = Bench::new();
    let name = "\u{1b}]0;owned\u{7}\u{1b}[2J";
    let nodes = vec![node("Relu", &[name], &[&format!("{name}y")])];
    let output = format!("{name}y");
    bench.model("m.onnx", &model(&[(name, F32, &[Some(3)])], &[&output], nodes, vec![]));
    bench.npy("x.npy", &[3], &[1.0; 3]);
    for args in [&["run", "m.onnx", "--input", "x.npy", "--profile"][..], &["inspect", "m.onnx"]] {
        let mut command = bench.command();
        command.env("CLICOLOR_FORCE", "1").env("NO_COLOR", "").args(args);
        let shown = crate::support::Ran::from(command.output().unwrap()).done();
        assert!(shown.contains("\\u{1b}[2J"), "{shown:?}");
        assert!(!shown.contains("\u{1b}]") && !shown.contains("\u{1b}[2J"), "{shown:?}");
    }
    let args = ["run", "m.onnx", "--input", "x.npy", "--format", "json"];
    assert_eq!(bench.run(&args).json()["outputs"][0]["name"], output.as_str());
}

#[test]
fn labels_of_ones_own_leave_the_usual_preparation() {
    let bench = Bench::new();
    let nodes = vec![
        node("GlobalAveragePool", &["x"], &["mean"]),
        node("Flatten", &["mean"], &["flat"]),
        node("MatMul", &["flat", "weights"], &["y"]),
    ];
    let weights = tensor("weights", &[3, 1000], &[0.25; 3000]);
    let inputs = [("x", F32, &[Some(1), Some(3), Some(8), Some(8)][..])];
    let labels: String = (0..1000).map(|i| format!("thing {i}\n")).collect();
    let mut network = model(&inputs, &["y"], nodes, vec![weights]);
    // The helper leaves the shapes of outputs out.
    let scores = model(&[("y", F32, &[Some(1), Some(1000)])], &[], vec![], vec![]);
    network.graph.as_mut().unwrap().output = scores.graph.unwrap().input;
    bench.model("m.onnx", &network).write("l.txt", labels);
    image::save_buffer(bench.path("p.png"), &[9; 192], 8, 8, image::ExtendedColorType::Rgb8)
        .unwrap();
    let run = |more: &[&str]| {
        let args = ["run", "m.onnx", "--input", "p.png", "--format", "json"];
        bench.run(&[&args[..], more].concat()).json()
    };
    let (usual, own) = (run(&[]), run(&["--labels", "l.txt"]));
    assert_eq!(usual["outputs"], own["outputs"]);
    assert_eq!(usual["labels"][0]["score"], own["labels"][0]["score"]);
    assert_eq!(own["labels"][0]["label"], "thing 0");
}

/// Constants that a file lists among its inputs are defaults: a run may be given others, and says so if
/// it cannot use them.
#[test]
fn a_default_gives_way_to_what_a_run_is_given() {
    let bench = Bench::new();
    let inputs = [("x", F32, &[Some(2)][..]), ("w", F32, &[Some(2)][..])];
    let nodes = vec![node("Add", &["x", "w"], &["y"])];
    let mut m = model(&inputs, &["y"], nodes, vec![tensor("w", &[2], &[1.0, 2.0])]);
    bench.model("m.onnx", &m).npy("x.npy", &[2], &[10.0, 20.0]).npy("v.npy", &[2], &[3.0, 4.0]);
    bench.run(&["run", "m.onnx", "--input", "x.npy", "--output-dir", "a"]).done();
    assert_eq!(bench.values("a/y.npy"), [11.0, 22.0]);
    let run = |w: &str, out: &str| {
        bench.run(&["run", "m.onnx", "--input", "x=x.npy", "--input", w, "--output-dir", out])
    };
    run("w=v.npy", "b").done();
    assert_eq!(bench.values("b/y.npy"), [13.0, 24.0]);
    bench.npy("long.npy", &[3], &[0.0; 3]);
    assert!(run("w=long.npy", "c").error().contains("\"w\": expected shape [2], found [3]"));
    // In version 3 of the format all constants are among the inputs.
    m.ir_version = Some(3);
    bench.model("m.onnx", &m);
    assert!(run("w=v.npy", "c").error().contains("no input `w`"));
    bench.run(&["run", "m.onnx", "--input", "x.npy", "--output-dir", "c"]).done();
    assert_eq!(bench.values("c/y.npy"), [11.0, 22.0]);
}

/// Symbols would be an eighth of the program, which people carry to small machines.
#[cfg(all(target_os = "linux", not(debug_assertions)))]
#[test]
fn a_released_program_has_no_symbols() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_tilewright")).unwrap();
    assert!(program.starts_with(b"\x7fELF"));
    assert!(!program.windows(8).any(|name| name == b".symtab\0"));
}
