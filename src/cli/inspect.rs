//! `tilewright inspect`: what a network consists of, and the steps it becomes on this machine.

use serde::Serialize;
use tilewright::task::{Input, Output};
use tilewright::{Dim, NodeInfo, PlanInfo, ValueInfo};

use super::args::{Format, InspectArgs, MachineArgs};
use super::model::Network;
use super::report::{self, Table};
use super::run::borrowed;
use super::{Failure, graph, inputs, inspect_gguf, output};

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    inputs: Vec<JsonValue<'a>>,
    outputs: Vec<JsonValue<'a>>,
    nodes: Vec<JsonNode<'a>>,
    parameters: usize,
    macs: u64,
    arena_bytes: usize,
    arena_bound: usize,
    weight_bytes: usize,
    packed_bytes: usize,
    constant_bytes: usize,
    peak_bytes: usize,
    /// Nodes of the file that no plan has yet: shapes depend on what a run computes.
    waiting_nodes: usize,
    isa: &'static str,
    metadata: &'a std::collections::BTreeMap<String, String>,
}

#[derive(Serialize)]
struct JsonValue<'a> {
    name: &'a str,
    dtype: &'static str,
    /// A number, a symbol, or null; all of it null when the rank is unknown.
    shape: Option<Vec<serde_json::Value>>,
}

#[derive(Serialize)]
struct JsonNode<'a> {
    name: &'a str,
    op: &'a str,
    kernel: &'a str,
    dtype: &'static str,
    layout: &'a str,
    shape: &'a [usize],
    macs: u64,
}

/// The command.
pub(super) fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    if let Some(path) = args.model.as_deref().filter(|path| inspect_gguf::is_gguf(path)) {
        return inspect_gguf::inspect(path, args);
    }
    let network = Network::load(args.model.as_deref())?;
    let machine = MachineArgs { threads: Some(1), backend: "cpu".into(), ..MachineArgs::default() };
    let mut session = network.session(&machine, false)?;
    let given = if network.is_embedded && args.shapes.is_empty() {
        vec![inputs::embedded_input(&network)?]
    } else {
        inputs::random(&network, &args.shapes)?
    };
    let unplanned = |e| inputs::unplanned(&network, &given, &args.shapes, e);
    let plan = session.prepare(&borrowed(&given)).map_err(unplanned)?;
    if let Some(path) = &args.before {
        graph::write(path, &network.name, &session.graph(&borrowed(&given))?)?;
    }
    if let Some(path) = &args.after {
        graph::write(path, &network.name, &plan.nodes)?;
    }
    match args.format {
        Format::Json => report::print_json(&Json {
            model: &network.name,
            inputs: network.model.inputs().iter().map(|i| json_value(&network, i)).collect(),
            outputs: network.model.outputs().iter().map(|o| json_value(&network, o)).collect(),
            nodes: plan.nodes.iter().map(json_node).collect(),
            parameters: plan.parameters,
            macs: plan.macs,
            arena_bytes: plan.arena_bytes,
            arena_bound: plan.arena_bound,
            weight_bytes: plan.weight_bytes,
            packed_bytes: plan.packed_bytes,
            constant_bytes: plan.constant_bytes,
            peak_bytes: plan.peak_bytes,
            waiting_nodes: plan.waiting,
            isa: session.isa().name(),
            metadata: network.model.metadata(),
        }),
        Format::Text => {
            let shapes: Vec<String> = given
                .iter()
                .map(|(name, t)| format!("{} {:?}", report::visible(name), t.dims()))
                .collect();
            report::print(&text(&network, &plan, &shapes.join(", "), session.isa().name()))
        }
    }
}

fn json_value<'a>(network: &Network, info: &'a ValueInfo) -> JsonValue<'a> {
    let dim = |d: &Dim| match d {
        Dim::Fixed(n) => (*n).into(),
        Dim::Symbol(s) => s.as_str().into(),
        Dim::Unknown => serde_json::Value::Null,
    };
    JsonValue {
        name: &info.name,
        dtype: type_name(network, info),
        shape: info.dims.as_ref().map(|dims| dims.iter().map(dim).collect()),
    }
}

/// What elements of an input or output are.
fn type_name(network: &Network, info: &ValueInfo) -> &'static str {
    if network.model.texts(&info.name).is_some() { output::TEXT } else { info.dtype.name() }
}

fn json_node(node: &NodeInfo) -> JsonNode<'_> {
    JsonNode {
        name: &node.name,
        op: &node.op,
        kernel: &node.kernel,
        dtype: node.dtype.name(),
        layout: &node.layout,
        shape: &node.dims,
        macs: node.macs,
    }
}

fn text(network: &Network, plan: &PlanInfo, shapes: &str, isa: &str) -> String {
    let values = |infos: &[ValueInfo]| {
        let text = |i: &ValueInfo| {
            let dtype = type_name(network, i);
            report::visible(&format!("{} {dtype} {}", i.name, i.shape_text())).into_owned()
        };
        infos.iter().map(text).collect::<Vec<_>>().join("\n              ")
    };
    let mut out = format!(
        "model         {}\ninputs        {}\noutputs       {}\n",
        network.name,
        values(network.model.inputs()),
        values(network.model.outputs()),
    );
    if let Some(task) = task_text(network) {
        out.push_str(&format!("task          {task}\n"));
    }
    out.push_str(&format!(
        "parameters    {}\nplanned for   {shapes} on {isa}\nmultiply-adds {}\nweights       {}, {} packed, \
         {} computed\narena         {}, at least {}\npeak          {}\n\n",
        report::count(plan.parameters as f64),
        report::count(plan.macs as f64),
        report::bytes(plan.weight_bytes),
        report::bytes(plan.packed_bytes),
        report::bytes(plan.constant_bytes),
        report::bytes(plan.arena_bytes),
        report::bytes(plan.arena_bound),
        report::bytes(plan.peak_bytes),
    ));
    if plan.waiting > 0 {
        out.push_str(&format!("{}\n\n", report::waiting(plan.waiting)));
    }
    let mut table =
        Table::new(&["operator", "name", "shape", "layout", "kernel", ">multiply-adds"]);
    for node in &plan.nodes {
        let macs = if node.macs == 0 { "-".into() } else { report::count(node.macs as f64) };
        table.row([
            node.op.clone(),
            node.name.clone(),
            format!("{} {}", node.dtype, report::shape(&node.dims)),
            node.layout.clone(),
            node.kernel.clone(),
            macs,
        ]);
    }
    out + &table.text()
}

fn task_text(network: &Network) -> Option<String> {
    let input = match network.task.input {
        Some(Input::LineImage { height }) => format!("a line of text, {height} rows high"),
        Some(Input::Image(_)) => "a picture".to_owned(),
        Some(Input::Sound(..)) => "features of a sound".to_owned(),
        _ => String::new(),
    };
    let output = match &network.task.output {
        Some(Output::Text { ctc, .. }) => format!("text of {} characters", ctc.classes() - 1),
        Some(Output::Labels { labels, .. }) => format!("one of {} labels", labels.len()),
        Some(Output::Detections(_)) => "boxes".to_owned(),
        _ => String::new(),
    };
    match (input.is_empty(), output.is_empty()) {
        (true, true) => None,
        (false, false) => Some(format!("{input} -> {output}")),
        _ => Some(input + &output),
    }
}
