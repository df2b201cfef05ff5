//! Graphs as files: which operation reads what which gives.

use core::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tilewright::NodeInfo;

use super::Failure;
use super::output::Pending;
use super::report::{self, escaped};

/// Size of a box, and the gaps between boxes, in pixels.
const BOX: [usize; 2] = [210, 44];
const GAP: [usize; 2] = [20, 26];

/// Longest line in a box, in characters.
const CHARS: usize = 32;

/// A file whose ending names a form.
pub(super) fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match form(&path) {
        Some(_) => Ok(path),
        None => Err("expected a file that ends in .dot, .svg, .json or .txt".into()),
    }
}

#[derive(Clone, Copy)]
enum Form {
    Dot,
    Svg,
    Json,
    Text,
}

fn form(path: &Path) -> Option<Form> {
    match path.extension()?.to_str()? {
        "dot" | "gv" => Some(Form::Dot),
        "svg" => Some(Form::Svg),
        "json" => Some(Form::Json),
        "txt" => Some(Form::Text),
        _ => None,
    }
}

/// Writes the graph in the form that the file's ending says.
pub(super) fn write(path: &Path, model: &str, nodes: &[NodeInfo]) -> Result<(), Failure> {
    let text = match form(path) {
        Some(Form::Dot) => dot(model, nodes),
        Some(Form::Svg) => svg(model, nodes),
        Some(Form::Json) => serde_json::to_string_pretty(&json(model, nodes))? + "\n",
        _ => plain(nodes),
    };
    let path = Pending::new(path, text.as_bytes())?.finish()?;
    report::note(&format!("wrote {}", path.display()));
    Ok(())
}

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    nodes: Vec<JsonNode<'a>>,
}

#[derive(Serialize)]
struct JsonNode<'a> {
    name: &'a str,
    op: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    kernel: &'a str,
    dtype: &'static str,
    layout: &'a str,
    shape: &'a [usize],
    macs: u64,
    /// Positions of the nodes whose results it reads.
    inputs: &'a [usize],
}

fn json<'a>(model: &'a str, nodes: &'a [NodeInfo]) -> Json<'a> {
    let node = |n: &'a NodeInfo| JsonNode {
        name: &n.name,
        op: &n.op,
        kernel: &n.kernel,
        dtype: n.dtype.name(),
        layout: &n.layout,
        shape: &n.dims,
        macs: n.macs,
        inputs: &n.inputs,
    };
    Json { model, nodes: nodes.iter().map(node).collect() }
}

/// What stands in a box: the operation, and what it gives.
fn lines(node: &NodeInfo) -> [String; 2] {
    let name = if node.name.is_empty() { String::new() } else { format!(" {}", node.name) };
    let result = format!("{} {} {}", node.dtype, report::shape(&node.dims), node.layout);
    [node.op.clone() + &name, result].map(|line| {
        if line.chars().count() <= CHARS {
            return line;
        }
        line.chars().take(CHARS - 1).chain(['…']).collect()
    })
}

fn plain(nodes: &[NodeInfo]) -> String {
    let mut out = String::new();
    for (i, node) in nodes.iter().enumerate() {
        let from: Vec<String> = node.inputs.iter().map(|i| format!("%{i}")).collect();
        let from = from.join(", ");
        let shape = report::shape(&node.dims);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "%{i} = {}({from}) : {} {shape} {}{}{}{}",
            node.op,
            node.dtype,
            node.layout,
            if node.kernel.is_empty() { "" } else { " " },
            node.kernel,
            if node.name.is_empty() { String::new() } else { format!("  # {}", node.name) },
        );
    }
    out
}

fn dot(model: &str, nodes: &[NodeInfo]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut out = format!(
        "digraph \"{}\" {{\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n",
        quoted(model)
    );
    for (i, node) in nodes.iter().enumerate() {
        let [first, second] = lines(node).map(|line| quoted(&line));
        let _ = writeln!(
            out,
            "  n{i} [label=\"{first}\\n{second}\", tooltip=\"{}\"{}];",
            quoted(&node.kernel),
            if node.macs > 0 { ", style=filled, fillcolor=\"#d5e8f7\"" } else { "" }
        );
        for from in &node.inputs {
            let _ = writeln!(out, "  n{from} -> n{i};");
        }
    }
    out + "}\n"
}

/// Rows of boxes, each below all whose results it reads.
fn svg(model: &str, nodes: &[NodeInfo]) -> String {
    let mut depth: Vec<usize> = Vec::with_capacity(nodes.len());
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        let above = node.inputs.iter().filter_map(|&j| depth.get(j)).max();
        let row = above.map_or(0, |d| d + 1);
        depth.push(row);
        rows.resize(rows.len().max(row + 1), Vec::new());
        rows[row].push(i);
    }
    let widest = rows.iter().map(Vec::len).max().unwrap_or(1);
    let width = widest * (BOX[0] + GAP[0]) + GAP[0];
    let height = rows.len() * (BOX[1] + GAP[1]) + GAP[1];
    let mut places = vec![[0; 2]; nodes.len()];
    for (r, row) in rows.iter().enumerate() {
        let left = (width - row.len() * (BOX[0] + GAP[0])) / 2 + GAP[0] / 2;
        for (c, &i) in row.iter().enumerate() {
            places[i] = [left + c * (BOX[0] + GAP[0]), GAP[1] + r * (BOX[1] + GAP[1])];
        }
    }
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <title>{}</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n",
        escaped(model)
    );
    for (i, node) in nodes.iter().enumerate() {
        let [x, y] = places[i];
        for &from in &node.inputs {
            let Some([from_x, from_y]) = places.get(from) else { continue };
            let (x1, y1, x2) = (from_x + BOX[0] / 2, from_y + BOX[1], x + BOX[0] / 2);
            // What skips rows bends aside, so that it is seen beside the boxes between.
            let bend = if y > y1 + GAP[1] { BOX[0] / 2 + GAP[0] } else { 0 };
            let _ = writeln!(
                out,
                "<path d=\"M{x1} {y1} C{} {} {} {} {x2} {y}\" fill=\"none\" stroke=\"#777\"/>",
                x1 + bend,
                y1 + GAP[1],
                x2 + bend,
                y.saturating_sub(GAP[1]),
            );
        }
    }
    for (node, [x, y]) in nodes.iter().zip(&places) {
        let [first, second] = lines(node).map(|line| escaped(&line));
        let fill = if node.macs > 0 { "#d5e8f7" } else { "#f4f4f4" };
        let _ = writeln!(
            out,
            "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"4\" \
             fill=\"{fill}\" stroke=\"#555\"/><text x=\"{}\" y=\"{}\">{first}</text>\
             <text x=\"{}\" y=\"{}\" fill=\"#444\">{second}</text></g>",
            escaped(&node.kernel),
            BOX[0],
            BOX[1],
            x + 8,
            y + 18,
            x + 8,
            y + 34,
        );
    }
    out + "</svg>\n"
}
