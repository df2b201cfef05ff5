//! `tilewright inspect` of a GGUF file: metadata and tensors. No weights are read.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use serde_json::json;
use tilewright::DType;
use tilewright::import::gguf::{Gguf, GgufTensor, Metadata, Value};

use super::Failure;
use super::args::{Format, InspectArgs};
use super::report::{self, Table};
use crate::order::sort;

/// Elements of an array that are shown; of longer ones only their number.
const ELEMENTS: usize = 16;

/// Characters of a text that are shown in a table.
const CHARACTERS: usize = 60;

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    inputs: serde_json::Value,
    outputs: serde_json::Value,
    /// None: what is computed is known once the model is loaded.
    nodes: [(); 0],
    parameters: usize,
    macs: u64,
    arena_bytes: Option<usize>,
    weight_bytes: usize,
    version: u32,
    parts: usize,
    architecture: Option<&'a str>,
    hyperparameters: BTreeMap<&'a str, serde_json::Value>,
    metadata: BTreeMap<&'a str, serde_json::Value>,
    types: BTreeMap<&'static str, Types>,
    tensors: Vec<JsonTensor<'a>>,
}

#[derive(Serialize)]
struct JsonTensor<'a> {
    name: &'a str,
    dtype: &'static str,
    /// Slowest first.
    shape: Vec<usize>,
    bytes: usize,
}

/// Tensors of one type.
#[derive(Default, Serialize)]
struct Types {
    tensors: usize,
    elements: usize,
    bytes: usize,
}

/// Whether a file begins as GGUF files do.
pub(super) fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let is_file = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    let file = is_file.then(|| std::fs::File::open(path).ok()).flatten();
    let read = file.is_some_and(|mut f| f.read_exact(&mut magic).is_ok());
    (read && magic == *b"GGUF") || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

/// What builds without language models say of one.
#[cfg(not(feature = "llm"))]
pub(super) fn no_language_models(path: &Path) -> Failure {
    let path = path.display();
    Failure(format!("{path}: this build has no language models; build it with the feature `llm`"))
}

/// The command.
pub(super) fn inspect(path: &Path, args: &InspectArgs) -> Result<(), Failure> {
    if args.before.is_some() || args.after.is_some() || !args.shapes.is_empty() {
        return Err(Failure(
            "--before, --after and --shape are for ONNX files; a GGUF file has no graph".into(),
        ));
    }
    let gguf = Gguf::open(path)?;
    let name = path.display().to_string();
    match args.format {
        Format::Json => report::print_json(&json(&name, &gguf)?),
        Format::Text => report::print(&text(&name, &gguf)?),
    }
}

fn json<'a>(name: &'a str, gguf: &'a Gguf) -> Result<Json<'a>, Failure> {
    let metadata = gguf.metadata();
    let architecture = metadata.str("general.architecture")?;
    let values = |prefix: &str| {
        let entry =
            |(key, value): (&'a str, &Value)| Some((key.strip_prefix(prefix)?, json_value(value)));
        let mut values = BTreeMap::new();
        values.extend(metadata.iter().filter_map(entry));
        values
    };
    let tensor = |t: &'a GgufTensor| JsonTensor {
        name: &t.name,
        dtype: t.dtype.name(),
        shape: t.dims.iter().rev().copied().collect(),
        bytes: t.data.len(),
    };
    // One by one: `collect` would sort them first, 3 KB of code for each type.
    let mut kinds = BTreeMap::new();
    kinds.extend(types(gguf).into_iter().map(|(dtype, t)| (dtype.name(), t)));
    Ok(Json {
        model: name,
        inputs: json!([{"name": "tokens", "dtype": "i32", "shape": ["n"]}]),
        outputs: json!([{"name": "logits", "dtype": "f32", "shape": ["n", vocabulary(metadata)]}]),
        nodes: [],
        parameters: gguf.tensors().iter().map(GgufTensor::elements).sum(),
        macs: macs(gguf),
        arena_bytes: None,
        weight_bytes: gguf.tensors().iter().map(|t| t.data.len()).sum(),
        version: gguf.version(),
        parts: gguf.parts(),
        architecture,
        hyperparameters: architecture.map_or_else(BTreeMap::new, |a| values(&format!("{a}."))),
        metadata: values(""),
        types: kinds,
        tensors: gguf.tensors().iter().map(tensor).collect(),
    })
}

fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Integer { value, .. } => match (u64::try_from(*value), i64::try_from(*value)) {
            (Ok(n), _) => n.into(),
            (_, Ok(n)) => n.into(),
            _ => serde_json::Value::Null,
        },
        // By its decimal digits: 1e-5 and not the f64 that is nearest to the f32.
        Value::F32(x) => x.to_string().parse::<f64>().map_or(serde_json::Value::Null, Into::into),
        Value::F64(x) => (*x).into(),
        Value::Bool(x) => (*x).into(),
        Value::String(text) => String::from_utf8_lossy(text).into(),
        Value::Array(array) if array.len() <= ELEMENTS => {
            let texts = array.strings().map(|t| String::from_utf8_lossy(t).into());
            array.values().map(|v| json_value(&v)).chain(texts).collect()
        }
        Value::Array(array) => json!({"type": array.kind().name(), "length": array.len()}),
        _ => serde_json::Value::Null,
    }
}

/// A value on one line of a table.
fn value_text(value: &Value) -> String {
    match value {
        Value::Array(array) if array.len() > ELEMENTS => format!("{} elements", array.len()),
        Value::String(text) => {
            let text = String::from_utf8_lossy(text);
            let mut short: String = text.chars().take(CHARACTERS).collect();
            short = short.escape_debug().to_string();
            if text.chars().nth(CHARACTERS).is_some() { format!("{short}...") } else { short }
        }
        value => json_value(value).to_string(),
    }
}

/// Number of tokens that the model knows, if the file says it.
fn vocabulary(metadata: &Metadata) -> Option<usize> {
    metadata.bytes_list("tokenizer.ggml.tokens").ok().flatten().map(|tokens| tokens.len())
}

/// Multiply-adds of matrices for a token. Looking a row up takes none: the first matrix counts only
/// where it is the last one too.
fn macs(gguf: &Gguf) -> u64 {
    let looked_up = gguf.tensor("output.weight").map(|_| "token_embd.weight");
    let matrices = gguf.tensors().iter().filter(|t| t.dims.len() == 2);
    let used = matrices.filter(|t| Some(t.name.as_str()) != looked_up);
    used.map(|t| t.elements() as u64).sum()
}

fn types(gguf: &Gguf) -> Vec<(DType, Types)> {
    let mut list: Vec<(DType, Types)> = Vec::new();
    for tensor in gguf.tensors() {
        let at = list.iter().position(|(dtype, _)| *dtype == tensor.dtype).unwrap_or_else(|| {
            list.push((tensor.dtype, Types::default()));
            list.len() - 1
        });
        let entry = &mut list[at].1;
        entry.tensors += 1;
        entry.elements += tensor.elements();
        entry.bytes += tensor.data.len();
    }
    sort(&mut list, |(_, a), (_, b)| b.bytes.cmp(&a.bytes));
    list
}

fn text(name: &str, gguf: &Gguf) -> Result<String, Failure> {
    let metadata = gguf.metadata();
    let json = json(name, gguf)?;
    let bits = if json.parameters == 0 {
        String::new()
    } else {
        format!(", {:.2} bits each", json.weight_bytes as f64 * 8.0 / json.parameters as f64)
    };
    let kinds = types(gguf)
        .into_iter()
        .map(|(dtype, t)| format!("{} {dtype} ({})", t.tensors, report::bytes(t.bytes)));
    let kinds: Vec<String> = kinds.collect();
    let mut out = format!(
        "model         {name}\nformat        GGUF version {}, {} file{}\narchitecture  {}\n\
         parameters    {}\nmultiply-adds {} per token\nweights       {}{bits}\ntensors       {}\n\n",
        json.version,
        json.parts,
        if json.parts == 1 { "" } else { "s" },
        report::visible(json.architecture.unwrap_or("not said")),
        report::count(json.parameters as f64),
        report::count(json.macs as f64),
        report::bytes(json.weight_bytes),
        if kinds.is_empty() {
            "none: the file has a vocabulary only".into()
        } else {
            kinds.join(", ")
        },
    );
    let mut table = Table::new(&["key", "type", "value"]);
    for (key, value) in metadata.iter() {
        table.row([key.to_owned(), value.type_name(), value_text(value)]);
    }
    out.push_str(&table.text());
    if !gguf.tensors().is_empty() {
        let mut table = Table::new(&["tensor", "type", "shape", ">bytes"]);
        for tensor in &json.tensors {
            let shape = report::shape(&tensor.shape);
            let bytes = tensor.bytes.to_string();
            table.row([tensor.name.to_owned(), tensor.dtype.into(), shape, bytes]);
        }
        out.push('\n');
        out.push_str(&table.text());
    }
    Ok(out)
}
