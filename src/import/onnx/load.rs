//! From the bytes of a file to a checked model.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use prost::Message;

use super::attr::Attrs;
use super::data::{External, computed, constant, tensor_from_proto, unpacked};
use super::model::{Body, Dim, Node, OnnxModel, ValueId, ValueInfo};
use super::proto::{
    GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, data_type, dimension,
    type_proto,
};
use super::texts::{self, Texts};
use super::{NEWEST_IR, NEWEST_OPSET, OLDEST_IR, OLDEST_OPSET};
use super::{functions, invariants, ops, sequences, shaping};
use crate::import::error::short;
use crate::import::map::map_file;
use crate::import::missing::MissingList;
use crate::import::{DataError, ImportError, Missing, MissingKind, StructureError};
use crate::tensor::{DType, Tensor};
use body::Scope;

mod body;
mod untyped;

impl OnnxModel {
    /// Loads a file. Constants stay in the mapped file, and in the files beside it that it names.
    ///
    /// # Errors
    /// Any [`ImportError`] but those of inputs and nodes. What is not supported comes as one
    /// [`ImportError::Unsupported`] that lists all of it.
    pub fn load(path: &Path) -> Result<Self, ImportError> {
        let mapping = map_file(path)?.ok_or(ImportError::Empty)?;
        let proto = decoded(mapping.bytes())?;
        Self::from_message(proto, External::of_file(path.parent(), Some(mapping)))
    }

    /// Loads a model from memory. `folder` is where external data are looked for; without one they
    /// are refused.
    ///
    /// # Errors
    /// As [`OnnxModel::load`].
    pub fn from_bytes(bytes: Bytes, folder: Option<&Path>) -> Result<Self, ImportError> {
        if bytes.is_empty() {
            return Err(ImportError::Empty);
        }
        Self::from_proto(decoded(bytes)?, folder)
    }

    /// Checks a decoded message.
    ///
    /// # Errors
    /// As [`OnnxModel::load`].
    pub fn from_proto(proto: ModelProto, folder: Option<&Path>) -> Result<Self, ImportError> {
        Self::from_message(proto, External::new(folder))
    }

    fn from_message(mut proto: ModelProto, external: External) -> Result<Self, ImportError> {
        let found = proto.ir_version.unwrap_or(0);
        if cfg!(feature = "ops-control") {
            functions::inline(&mut proto)?;
        } else if !proto.functions.is_empty() {
            return Err(not_built("functions of the model", "ops-control"));
        }
        let Some(mut graph) = proto.graph else { return Err(StructureError::NoGraph.into()) };
        if !(OLDEST_IR..=NEWEST_IR).contains(&found) {
            let e = StructureError::IrVersion { found, oldest: OLDEST_IR, newest: NEWEST_IR };
            return Err(e.into());
        }
        let mut opsets: BTreeMap<String, i64> = BTreeMap::new();
        for o in proto.opset_import {
            let domain = domain_name(o.domain.as_deref());
            let version = o.version.unwrap_or(0);
            if opsets.insert(domain.to_owned(), version).is_some_and(|v| v != version) {
                return Err(StructureError::OpsetTwice(short(domain)).into());
            }
        }
        // Who uses operators of other domains only need not name a version of ONNX's; nodes that do are
        // refused where they are met.
        let opset = match opsets.get("") {
            Some(&opset) => opset,
            None if opsets.is_empty() => return Err(StructureError::NoOpset.into()),
            None => NEWEST_OPSET,
        };
        let opset = readable(opset)?;
        let producer = [proto.producer_name, proto.producer_version];
        let producer: Vec<String> =
            producer.into_iter().flatten().filter(|s| !s.is_empty()).collect();
        // One by one: collecting sorts first, by code that is larger than the rest of this function.
        let mut metadata = BTreeMap::new();
        for entry in proto.metadata_props {
            metadata.insert(entry.key.unwrap_or_default(), entry.value.unwrap_or_default());
        }
        let mut loader = Loader::new(found, opset, opsets, external);
        // Without their operators nothing makes texts of them again.
        let texts = if cfg!(feature = "ops-more") {
            texts::number(&mut graph, &mut loader.missing)
        } else {
            Texts::default()
        };
        let mut model = loader.graph(graph)?;
        model.texts = texts;
        model.producer = producer.join(" ");
        model.metadata = metadata;
        Ok(model)
    }
}

/// The version of ONNX's operators, if it is one that is read.
fn readable(opset: i64) -> Result<i64, StructureError> {
    let (oldest, newest) = (OLDEST_OPSET, NEWEST_OPSET);
    if (oldest..=newest).contains(&opset) {
        return Ok(opset);
    }
    Err(StructureError::Opset { found: opset, oldest, newest })
}

fn decoded(bytes: Bytes) -> Result<ModelProto, ImportError> {
    ModelProto::decode(bytes).map_err(|e| ImportError::Decode(e.to_string()))
}

/// The error of a model that needs what this build lacks.
pub(super) fn not_built(what: &'static str, feature: &'static str) -> ImportError {
    let kind = MissingKind::NotBuilt { what, feature };
    ImportError::Unsupported(vec![Missing { kind, count: 1, users: Vec::new() }])
}

pub(super) fn domain_name(domain: Option<&str>) -> &str {
    match domain.unwrap_or_default() {
        "ai.onnx" => "",
        other => other,
    }
}

/// The name of a node, or one made from its operator and its place.
pub(super) fn node_name(p: &NodeProto, index: usize) -> String {
    match p.name.as_deref() {
        Some(name) if !name.is_empty() => short(name),
        _ => format!("{}#{index}", short(p.op_type.as_deref().unwrap_or_default())),
    }
}

/// A type that inputs and outputs cannot have, with what to do.
const SEQUENCE: &str = "sequence, which is inside networks only (tensors enter and leave them one by one, or \
                        joined by ConcatFromSequence)";

/// The version of the format since which an input that is a constant, too, is a default. Before, all
/// constants are inputs.
const FIRST_WITH_DEFAULTS: i64 = 4;

/// Whether tensors of a type of the format are computed as f32.
fn is_half(number: Option<i32>) -> bool {
    number.and_then(data_type::to_dtype).is_some_and(|t| computed(t) != t)
}

/// Who gives a value its content.
#[derive(Clone, Copy, PartialEq)]
enum Producer {
    Nobody,
    Outside,
    /// A node of a graph.
    Node {
        graph: usize,
        index: usize,
    },
}

struct Loader {
    /// Version of the format.
    ir: i64,
    opset: i64,
    opsets: BTreeMap<String, i64>,
    external: External,
    missing: MissingList,
    /// The graph being read, and those around it, outermost first.
    scopes: Vec<Scope>,
    /// Graphs met so far.
    graphs: usize,
    values: Vec<Arc<str>>,
    producers: Vec<Producer>,
    constants: Vec<(ValueId, Tensor)>,
    /// Inputs that have a constant of the same name, and may be given another one.
    defaults: Vec<(ValueInfo, ValueId)>,
    /// Constants that are of halves in the file, which are computed as f32.
    narrow: Vec<(ValueId, DType)>,
    /// Whether anything is.
    halves: bool,
    /// Constants of four or two bits per element in the file.
    few_bits: Vec<ValueId>,
    /// Outputs of which the file does not say the type.
    untyped: Vec<usize>,
    /// Values that the outputs of their graph depend on.
    wanted: Vec<bool>,
}

impl Loader {
    fn new(ir: i64, opset: i64, opsets: BTreeMap<String, i64>, external: External) -> Self {
        Self {
            ir,
            opset,
            opsets,
            external,
            missing: MissingList::default(),
            scopes: Vec::new(),
            graphs: 0,
            values: Vec::new(),
            producers: Vec::new(),
            constants: Vec::new(),
            defaults: Vec::new(),
            narrow: Vec::new(),
            halves: false,
            few_bits: Vec::new(),
            untyped: Vec::new(),
            wanted: Vec::new(),
        }
    }

    fn graph(mut self, graph: GraphProto) -> Result<OnnxModel, ImportError> {
        let id = self.open(&graph, &[])?;
        self.initializers(&graph)?;
        let (inputs, input_ids) = self.inputs(&graph.input)?;
        let nodes = self.nodes(&graph.node)?;
        let (outputs, output_ids) = self.outputs(&graph.output, &nodes)?;
        self.check_producers(&graph.node, &nodes, &output_ids)?;
        self.check_unsupported_outputs(&nodes, &output_ids);
        let mut body = self.close(id, input_ids, output_ids, nodes)?;
        self.missing.finish()?;
        let is_sequence = sequences::mark(&mut body, &self.values)?;
        let mut missing = MissingList::default();
        for (info, &value) in outputs.iter().zip(&body.outputs) {
            if is_sequence.get(value) == Some(&true) {
                let user = format!("output {}", short(&info.name));
                missing.add(MissingKind::Type(SEQUENCE.into()), &user);
            }
        }
        missing.finish()?;
        let wanted = self.wanted;
        let mut constants = vec![None; wanted.len()];
        for (value, tensor) in self.constants {
            if let (Some(true), Some(place)) = (wanted.get(value), constants.get_mut(value)) {
                *place = Some(tensor);
            }
        }
        invariants::resolve(&mut body, &|v| matches!(constants.get(v), Some(Some(_))));
        let constants = constants.into_iter().enumerate();
        let shaping = shaping::shaping(&body, &inputs, self.values.len());
        let (defaults, default_values) = self.defaults.into_iter().unzip();
        let mut model = OnnxModel {
            name: graph.name.unwrap_or_default(),
            producer: String::new(),
            metadata: BTreeMap::new(),
            texts: Texts::default(),
            opset: self.opset,
            inputs,
            defaults,
            default_values,
            shaping,
            outputs,
            values: self.values,
            constants: constants.filter_map(|(v, tensor)| Some((v, tensor?))).collect(),
            few_bits: self.few_bits,
            graph: body,
            scalars: Mutex::default(),
        };
        untyped::infer(&mut model, &self.untyped, &self.narrow, self.halves)?;
        Ok(model)
    }

    /// The number of a value, which need not have a producer yet.
    fn value(&mut self, name: &str) -> ValueId {
        self.lookup(name).unwrap_or_else(|| self.declare(name))
    }

    /// Gives a value its only producer.
    fn define(
        &mut self,
        name: &str,
        by: Producer,
        what: &'static str,
    ) -> Result<ValueId, StructureError> {
        if name.is_empty() {
            return Err(StructureError::NoName(what));
        }
        let id = self.value(name);
        match self.producers.get_mut(id) {
            Some(slot @ Producer::Nobody) => *slot = by,
            _ => return Err(StructureError::DuplicateName(short(name))),
        }
        Ok(id)
    }

    /// A constant; one of few bits per element only if it is `scaled`.
    fn initializer(&mut self, p: &TensorProto, scaled: bool) -> Result<(), ImportError> {
        let name = p.name.as_deref().unwrap_or_default();
        let id = self.define(name, Producer::Outside, "an initializer")?;
        let few_bits = if scaled { unpacked(p, &mut self.external) } else { None };
        self.few_bits.extend(few_bits.is_some().then_some(id));
        let tensor = few_bits.unwrap_or_else(|| tensor_from_proto(p, &mut self.external));
        if let Some(dtype) = p.data_type.filter(|n| is_half(Some(*n))).and_then(data_type::to_dtype)
        {
            self.narrow.push((id, dtype));
            self.halves = true;
        }
        match tensor.and_then(|t| Ok(constant(t)?)) {
            Ok(tensor) => self.constants.push((id, tensor)),
            Err(DataError::Type(t)) => self.missing.add(MissingKind::Type(t), &short(name)),
            Err(source) => return Err(ImportError::Data { tensor: short(name), source }),
        }
        Ok(())
    }

    fn inputs(
        &mut self,
        list: &[ValueInfoProto],
    ) -> Result<(Vec<ValueInfo>, Vec<ValueId>), ImportError> {
        let (mut infos, mut ids) = (Vec::new(), Vec::new());
        let constants: HashSet<ValueId> = self.constants.iter().map(|c| c.0).collect();
        let mut seen = HashSet::new();
        for p in list {
            let name = p.name.as_deref().unwrap_or_default();
            if name.is_empty() {
                return Err(StructureError::NoName("an input").into());
            }
            let id = self.value(name);
            if !seen.insert(id) {
                return Err(StructureError::DuplicateName(short(name)).into());
            }
            // Old files list constants as inputs, too.
            if constants.contains(&id) {
                // Small builds keep the constant.
                if cfg!(feature = "ops-control") {
                    self.default(p, id)?;
                }
                continue;
            }
            if self.producers.get(id) == Some(&Producer::Outside) {
                continue; // A constant that is refused already.
            }
            self.define(name, Producer::Outside, "an input")?;
            if let Some(info) = self.value_info(p, "input")? {
                infos.push(info);
                ids.push(id);
            }
        }
        Ok((infos, ids))
    }

    /// Newer ones list constants that a run may be given others for.
    fn default(&mut self, p: &ValueInfoProto, id: ValueId) -> Result<(), StructureError> {
        let tensor = match p.r#type.as_ref().and_then(|t| t.value.as_ref()) {
            Some(type_proto::Value::Tensor(t)) if self.ir >= FIRST_WITH_DEFAULTS => t,
            _ => return Ok(()),
        };
        if tensor.elem_type.and_then(data_type::to_dtype).is_some() {
            let info = self.value_info(p, "input")?;
            self.defaults.extend(info.map(|info| (info, id)));
        }
        Ok(())
    }

    fn outputs(
        &mut self,
        list: &[ValueInfoProto],
        nodes: &[Node],
    ) -> Result<(Vec<ValueInfo>, Vec<ValueId>), ImportError> {
        if list.is_empty() {
            return Err(StructureError::NoOutputs.into());
        }
        let (mut infos, mut ids) = (Vec::new(), Vec::new());
        // A value may be there twice: cells of recurrent networks return their state and, as it is, what they make.
        for p in list {
            let name = p.name.as_deref().unwrap_or_default();
            if name.is_empty() {
                return Err(StructureError::NoName("an output").into());
            }
            let id = self.value(name);
            ids.push(id);
            if untyped::is_untyped(p) {
                self.untyped.push(infos.len());
                let name = name.to_owned();
                infos.push(ValueInfo { name, dtype: DType::F32, dims: None });
                continue;
            }
            let maps = match self.producers.get(id) {
                Some(&Producer::Node { index, .. }) => nodes.get(index),
                _ => None,
            };
            if maps.is_some_and(|node| node.row.name == ops::ZIP_MAP) {
                infos.push(ValueInfo { name: name.to_owned(), dtype: DType::F32, dims: None });
                continue;
            }
            infos.extend(self.value_info(p, "output")?);
        }
        Ok((infos, ids))
    }

    /// Type and shape of an input or output; `None` if the type is not supported.
    fn value_info(
        &mut self,
        p: &ValueInfoProto,
        what: &str,
    ) -> Result<Option<ValueInfo>, StructureError> {
        let name = p.name.clone().unwrap_or_default();
        let user = format!("{what} {}", short(&name));
        let tensor = match p.r#type.as_ref().and_then(|t| t.value.as_ref()) {
            Some(type_proto::Value::Tensor(t)) => t,
            other => {
                let kind = match other {
                    Some(type_proto::Value::Sequence(_)) => SEQUENCE,
                    other => other.map_or(untyped::NOT_GIVEN, type_proto::Value::kind),
                };
                self.missing.add(MissingKind::Type(kind.into()), &user);
                return Ok(None);
            }
        };
        let number = tensor.elem_type.unwrap_or(0);
        self.halves |= is_half(tensor.elem_type);
        let Some(dtype) = data_type::to_dtype(number) else {
            self.missing.add(MissingKind::Type(data_type::name(number)), &user);
            return Ok(None);
        };
        let dim = |d: &super::proto::Dimension| match &d.value {
            None => Ok(Dim::Unknown),
            Some(dimension::Value::Symbol(s)) if s.is_empty() => Ok(Dim::Unknown),
            Some(dimension::Value::Symbol(s)) => Ok(Dim::Symbol(s.clone())),
            &Some(dimension::Value::Fixed(n)) => usize::try_from(n)
                .map(Dim::Fixed)
                .map_err(|_| StructureError::NegativeDim { value: short(&name), dim: n }),
        };
        let dims = match &tensor.shape {
            Some(shape) => Some(shape.dim.iter().map(dim).collect::<Result<Vec<_>, _>>()?),
            None => None,
        };
        Ok(Some(ValueInfo { name, dtype, dims }))
    }

    /// All nodes but those that are constants or not supported. Node `i` of the result is
    /// [`Producer::Node`]`(i)`.
    fn nodes(&mut self, list: &[NodeProto]) -> Result<Vec<Node>, ImportError> {
        let mut nodes = Vec::new();
        for (index, p) in list.iter().enumerate() {
            let op = p.op_type.as_deref().unwrap_or_default();
            let name = node_name(p, index);
            let domain = domain_name(p.domain.as_deref());
            // Exporters forget domains of which there is only one version.
            let own = p.opset.filter(|_| cfg!(feature = "ops-control"));
            let opset = match own.or_else(|| self.opsets.get(domain).copied()) {
                Some(opset) => opset,
                None if domain.is_empty() => return Err(StructureError::NoOpset.into()),
                None => 1,
            };
            let standard = match own {
                Some(own) if domain.is_empty() => readable(own)?,
                _ => self.opset,
            };
            let Some(row) = ops::find(domain, op, opset) else {
                let kind = match ops::absent(op) {
                    Some((what, feature)) => MissingKind::NotBuilt { what, feature },
                    None => MissingKind::Operator { domain: short(domain), op: short(op), opset },
                };
                self.missing.add(kind, &name);
                for output in p.output.iter().filter(|o| !o.is_empty()) {
                    self.define(output, Producer::Outside, "an output")?;
                }
                continue;
            };
            for (what, found, allowed) in [
                ("inputs", p.input.len(), row.inputs()),
                ("outputs", p.output.len(), row.outputs_allowed()),
            ] {
                if !allowed.contains(&found) {
                    let (least, most) = allowed.into_inner();
                    let e = StructureError::Arity {
                        node: name,
                        op: row.name,
                        what,
                        found,
                        least,
                        most,
                    };
                    return Err(e.into());
                }
            }
            let attrs = Attrs::read(p, &name, row, opset, &mut self.external, &mut self.missing)?;
            if row.is_constant() {
                self.constant_node(p, &name, &attrs)?;
                continue;
            }
            // What makes halves.
            if cfg!(feature = "ops-control") {
                let value = attrs.tensor("value").map(Tensor::dtype);
                self.halves |= value.is_some_and(|t| computed(t) != t);
                let casts = ["to", "dtype"].iter().filter_map(|a| attrs.int(a));
                self.halves |=
                    casts.filter_map(|n| i32::try_from(n).ok()).any(|n| is_half(Some(n)));
            }
            let bodies = self.bodies(p, &name, row)?;
            let graph = self.scopes.last().map_or(0, |s| s.graph);
            let producer = Producer::Node { graph, index: nodes.len() };
            let mut outputs = Vec::new();
            for output in &p.output {
                outputs.push(match output.as_str() {
                    "" => None,
                    name => Some(self.define(name, producer, "an output")?),
                });
            }
            let inputs = p.input.iter().map(|n| (!n.is_empty()).then(|| self.value(n))).collect();
            let (name, opset) = (name.into(), standard);
            nodes.push(Node { name, row, opset, inputs, outputs, attrs, bodies, inline: false });
        }
        Ok(nodes)
    }

    /// A `Constant` node is an initializer written in another way.
    fn constant_node(
        &mut self,
        p: &NodeProto,
        node: &str,
        attrs: &Attrs,
    ) -> Result<(), ImportError> {
        let name = p.output.first().map(String::as_str).unwrap_or_default();
        let id = self.define(name, Producer::Outside, "a constant")?;
        let value = ops::constant_value(attrs);
        if let Some(Ok(t)) = &value
            && computed(t.dtype()) != t.dtype()
        {
            self.narrow.push((id, t.dtype()));
            self.halves = true;
        }
        match value.map(|t| t.and_then(|t| Ok(constant(t)?))) {
            Some(Ok(value)) => self.constants.push((id, value)),
            Some(Err(source)) => return Err(ImportError::Data { tensor: short(name), source }),
            // The attribute is there but refused, and listed as missing.
            None if !p.attribute.is_empty() => {}
            None => {
                let node = node.to_owned();
                let e = StructureError::NoAttribute { node, op: "Constant", attribute: "value" };
                return Err(e.into());
            }
        }
        Ok(())
    }

    fn check_producers(
        &self,
        protos: &[NodeProto],
        nodes: &[Node],
        outputs: &[ValueId],
    ) -> Result<(), StructureError> {
        // Values of graphs around this one may come later in the file.
        let first = self.scopes.last().map_or(0, |s| s.first);
        let nobody = |v: ValueId| v >= first && self.producers.get(v) == Some(&Producer::Nobody);
        let name = |v: ValueId| self.values.get(v).map_or_else(String::new, |n| short(n));
        for node in nodes {
            if let Some(&v) = node.inputs.iter().flatten().find(|v| nobody(**v)) {
                let reader = format!("{} node \"{}\"", node.row.name, node.name);
                return Err(StructureError::NoProducer { value: name(v), reader });
            }
        }
        // Inputs of nodes that are not supported have no number unless someone else uses them.
        for p in protos {
            for input in p.input.iter().filter(|i| !i.is_empty()) {
                if self.lookup(input).is_none_or(nobody) {
                    let reader =
                        format!("node \"{}\"", short(p.name.as_deref().unwrap_or_default()));
                    return Err(StructureError::NoProducer { value: short(input), reader });
                }
            }
        }
        match outputs.iter().find(|v| nobody(**v)) {
            Some(&v) => {
                Err(StructureError::NoProducer { value: name(v), reader: "the output".into() })
            }
            None => Ok(()),
        }
    }

    /// Optional outputs that are not computed must not be read.
    fn check_unsupported_outputs(&mut self, nodes: &[Node], outputs: &[ValueId]) {
        let reads = nodes.iter().flat_map(|n| n.inputs.iter().flatten());
        let read: HashSet<ValueId> = reads.chain(outputs).copied().collect();
        for node in nodes {
            let computed = node.row.computed_outputs();
            for (index, output) in node.outputs.iter().enumerate().skip(computed) {
                if output.is_some_and(|v| read.contains(&v)) {
                    let kind = MissingKind::Output { op: node.row.name, index };
                    self.missing.add(kind, &node.name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
