//! Commands for language models. The files lie beside the repository, or where `TILEWRIGHT_MODELS`
//! says; without them tests that need one pass and say so.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::support::{Bench, Ran};
use serde_json::{Value, json};

fn models() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models");
    let folder = std::env::var_os("TILEWRIGHT_MODELS").map_or(beside, PathBuf::from);
    let there = folder.join("stories260k").is_dir();
    if !there {
        println!("skipped: no language models in {}", folder.display());
    }
    there.then_some(folder)
}

/// A small model, and what it should do.
fn story() -> Option<(String, Value)> {
    let folder = models()?.join("stories260k");
    let expected = std::fs::read(folder.join("expected.json")).unwrap();
    let model = folder.join("stories260k.f32.gguf").canonicalize().unwrap();
    Some((model.to_str().unwrap().to_owned(), serde_json::from_slice(&expected).unwrap()))
}

fn piped(bench: &Bench, args: &[&str], input: &[u8]) -> Ran {
    use std::io::Write;
    let mut command = bench.command();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that fails early does not read.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap().into()
}

#[test]
fn the_embedded_model_generates() {
    let bench = Bench::new();
    let args = ["generate", "-p", "The", "-n", "8", "--format", "json", "--seed", "3"];
    let json = bench.run(&args).json();
    for key in [
        "prompt_tokens",
        "tokens",
        "text",
        "stop",
        "prompt_tok_s",
        "decode_tok_s",
        "load_ms",
        "backend",
    ] {
        assert!(!json[key].is_null(), "{key} in {json}");
    }
    assert!(json["tokens"].as_array().unwrap().len() <= 8);
    let again = bench.run(&args).json();
    assert_eq!((&again["tokens"], &again["text"]), (&json["tokens"], &json["text"]));
}

#[test]
fn greedy_text_is_the_expected_one() {
    let Some((model, expected)) = story() else { return };
    let bench = Bench::new();
    let prompt = expected["prompt"].as_str().unwrap();
    let ids =
        &expected["models"]["stories260k.f32.gguf"]["greedy_tokens"].as_array().unwrap()[..24];
    let args = ["generate", &model, "-p", prompt, "-n", "24", "--temp", "0", "--ignore-eos"];
    let json = bench.run(&[&args[..], &["--format", "json"]].concat()).json();
    assert_eq!(json["tokens"].as_array().unwrap(), ids);
    assert_eq!(json["prompt_tokens"], expected["prompt_tokens"]);
    assert_eq!((&json["stop"], &json["backend"]), (&json!("length"), &json!("cpu")));
    let text = json["text"].as_str().unwrap();
    assert_eq!(text, ", there was a little girl named Lily. She loved to play outside in the p");
    // As text: what is generated on standard output, all else elsewhere.
    let ran = bench.run(&args);
    assert!(
        ran.stderr.contains("tokens/s") && ran.stderr.contains("first token"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.done(), format!("{text}\n"));
    // The same tokens from ids and through a pipe.
    let ids =
        ["generate", &model, "--prompt-tokens", "1,403,407,261,378", "-n", "24", "--temp", "0"];
    assert_eq!(bench.run(&ids).done(), format!("{text}\n"));
    let pipe = ["generate", &model, "-p", "-", "-n", "24", "--temp", "0"];
    assert_eq!(piped(&bench, &pipe, prompt.as_bytes()).done(), format!("{text}\n"));
}

#[test]
fn generation_stops_where_it_should() {
    let Some((model, _)) = story() else { return };
    let bench = Bench::new();
    let base = ["generate", &model, "-p", "Once upon a time", "--temp", "0", "--format", "json"];
    let run = |more: &[&str]| bench.run(&[&base[..], more].concat());
    let json = run(&["--stop", "named", "--stop", "zzz"]).json();
    assert_eq!(json["text"], ", there was a little girl ");
    assert_eq!(json["stop"], "stop string");
    // A token with a bias of minus infinity never comes, one with a large one at once.
    let json = run(&["-n", "3", "--logit-bias", "432=-inf"]).json();
    assert_ne!(json["tokens"][0], 432);
    let said = run(&["--logit-bias", "4294967295=1"]).error();
    assert!(said.contains("4294967295"), "{said}");
    let json = run(&["--logit-bias", "2=1000"]).json();
    assert_eq!(
        (&json["stop"], &json["tokens"], &json["text"]),
        (&json!("eos"), &json!([]), &json!(""))
    );
    let json = run(&["--logit-bias", "2=1000", "--ignore-eos", "-n", "3"]).json();
    assert_eq!((&json["stop"], &json["tokens"]), (&json!("length"), &json!([2, 2, 2])));
    // The context's end is one, unless half of it is forgotten.
    let json = run(&["--ctx", "16", "-n", "40"]).json();
    let made = json["tokens"].as_array().unwrap().len();
    assert_eq!((&json["stop"], made), (&json!("context full"), 12));
    let json = run(&["--ctx", "16", "-n", "40", "--context-shift"]).json();
    assert_eq!(json["tokens"].as_array().unwrap().len(), 40);
    let error = run(&["--ctx", "4"]).error();
    assert!(error.contains("context of 4 tokens"), "{error}");
}

#[test]
fn logits_are_written_for_every_position() {
    let Some((model, _)) = story() else { return };
    let bench = Bench::new();
    let args = ["generate", &model, "--prompt-tokens", "1,403,407,261,378", "-n", "0"];
    let args = [&args[..], &["--logits", "l.npy", "--format", "json"]].concat();
    let json = bench.run(&args).json();
    assert_eq!((&json["tokens"], &json["text"]), (&json!([]), &json!("")));
    let values = bench.values("l.npy");
    assert_eq!(values.len(), 5 * 512);
    let best = (0..512).max_by(|a, b| values[4 * 512 + a].total_cmp(&values[4 * 512 + b]));
    assert_eq!(best, Some(432));
    let error = bench.run(&["generate", &model, "-p", "x", "--logits", "no/such/l.npy"]).error();
    assert!(error.contains("no/such"), "{error}");
}

#[test]
fn tokens_are_shown_and_counted() {
    let Some((model, _)) = story() else { return };
    let bench = Bench::new();
    let args = ["tokenize", &model, "hello world", "--format", "json"];
    let json = bench.run(&args).json();
    assert_eq!(json["tokens"], json!([1, 281, 306, 414, 263, 304, 341]));
    assert_eq!(json["pieces"][1], " he");
    let args = ["tokenize", &model, "-", "--no-special", "--format", "json"];
    let json = piped(&bench, &args, b"\n\nNew line\ttab").json();
    assert_eq!(
        json["tokens"],
        json!([410, 13, 13, 458, 411, 424, 278, 271, 411, 12, 413, 412, 430])
    );
    let error = piped(&bench, &args, b"ab\xffcd").error();
    assert_eq!(error, "standard input is not text in UTF-8: byte 2 cannot be read");
    let text = bench.run(&["tokenize", &model, "a"]).done();
    assert!(text.contains("261"), "{text}");
    // A vocabulary is enough.
    let vocabulary =
        models().unwrap().join("tokenizers/ggml-vocab-gpt-2.gguf").canonicalize().unwrap();
    let args = ["tokenize", vocabulary.to_str().unwrap(), "Hello", "--format", "json"];
    assert_eq!(bench.run(&args).json()["tokens"], json!([15496]));
    let args = ["generate", vocabulary.to_str().unwrap(), "-p", "x"];
    assert!(!bench.run(&args).error().is_empty());
}

#[test]
fn perplexity_is_the_recorded_one() {
    let Some((model, expected)) = story() else { return };
    let bench = Bench::new();
    bench.write("t.txt", expected["nll_text"].as_str().unwrap());
    let json = bench.run(&["perplexity", &model, "t.txt", "--format", "json"]).json();
    let nll = expected["models"]["stories260k.f32.gguf"]["mean_nll"].as_f64().unwrap();
    assert!((json["nll"].as_f64().unwrap() - nll).abs() < 1e-3, "{json}");
    assert!((json["perplexity"].as_f64().unwrap() - nll.exp()).abs() < 4e-3, "{json}");
    bench.write("e.txt", "");
    assert!(bench.run(&["perplexity", &model, "e.txt"]).error().contains("too few tokens"));
}

#[test]
fn models_are_measured() {
    let Some((model, _)) = story() else { return };
    let bench = Bench::new();
    let args = ["bench", &model, "--time", "0", "--prompt-length", "8", "--generate-length", "4"];
    let json = bench.run(&[&args[..], &["--format", "json", "--threads", "1"]].concat()).json();
    assert!(json["pp"]["8"].as_f64().unwrap() > 0.0 && json["tg"]["4"].as_f64().unwrap() > 0.0);
    assert_eq!(json["threads"], 1);
    assert!(bench.run(&args).done().contains("tokens/s"));
}

#[test]
fn conversations_go_through_a_pipe() {
    let Some((model, _)) = story() else { return };
    let bench = Bench::new();
    let args = ["chat", &model, "-n", "5", "--temp", "0"];
    let ran = piped(&bench, &args, b"Hello\n/no\n/system Be brief.\nTwo \\\nlines\n/exit\nnever\n");
    assert!(
        ran.stderr.contains("no chat template") && ran.stderr.contains("no command /no"),
        "{}",
        ran.stderr
    );
    assert!(!ran.done().is_empty());
    let args = ["chat", &model, "--ctx", "32"];
    let ran = piped(&bench, &args, "word ".repeat(100).as_bytes());
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("too many for a context of 32"), "{}", ran.stderr);
}

#[test]
fn wrong_use_and_wrong_files_are_one_line() {
    let bench = Bench::new();
    bench.write("x.gguf", "GGUF and nothing else");
    for args in [
        &["generate", "x.gguf", "-p", "x"][..],
        &["generate", "none.gguf", "-p", "x"],
        &["tokenize", "x.gguf", "x"],
        &["chat", "x.gguf"],
        &["bench", "x.gguf"],
        &["generate", "--prompt-tokens", "4000000000"],
        &["generate", "-p", "x", "--ctx", "16777216", "--memory-limit", "1M"],
    ] {
        assert!(!bench.run(args).error().is_empty(), "{args:?}");
    }
    for args in [
        &["generate"][..],
        &["generate", "-p", "x", "--prompt-tokens", "1"],
        &["generate", "--prompt-tokens", "1,x"],
        &["generate", "-p", "x", "--logit-bias", "5"],
        &["generate", "-p", "x", "--backend", "none"],
        &["perplexity", "x.gguf", "x.gguf", "--ctx", "2"],
        &["tokenize", "x.gguf"],
    ] {
        assert_eq!(bench.run(args).status, Some(2), "{args:?}");
    }
    let usage = bench.run(&["perplexity", "x.gguf", "x.gguf", "--ctx", "2"]).usage();
    assert!(usage.contains("Usage: tilewright perplexity "), "{usage}");
}

#[test]
fn numbers_with_a_minus_reach_their_options() {
    let bench = Bench::new();
    for (option, value, word) in [
        ("--temp", "-1", "0 or more"),
        ("--top-p", "0", "above 0"),
        ("--min-p", "2", "from 0 to 1"),
        ("--top-k", "-3", "whole number"),
        ("--repeat-penalty", "-1", "above 0"),
        ("--presence-penalty", "nan", "a number"),
        ("-n", "-1", "whole number"),
        ("--logit-bias", "-1=1", "a token and a number"),
        ("--prompt-tokens", "-1,5", "a token"),
        ("--threads", "-1", "1..=1024"),
    ] {
        let prompt: &[&str] = if option == "--prompt-tokens" { &[] } else { &["-p", "x"] };
        let said = bench.run(&[&["generate", option, value], prompt].concat()).usage();
        assert!(said.contains(word), "{option} {value}: {said}");
    }
    let args =
        ["generate", "-p", "x", "-n", "1", "--presence-penalty", "-5", "--logit-bias", "5=-2"];
    bench.run(&args).done();
}
