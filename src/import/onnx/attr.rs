//! Attributes: what operators declare, and the checked values of one node.

use super::data::{External, tensor_from_proto};
use super::ops::OpRow;
use super::proto::{AttributeProto, NodeProto, attribute_type as t};
use crate::import::error::short;
use crate::import::missing::MissingList;
use crate::import::{DataError, ImportError, MissingKind, StructureError};
use crate::tensor::Tensor;

/// An attribute that an operator has.
pub(super) struct Attr {
    name: &'static str,
    kind: i32,
    since: u8,
    until: u8,
    required: bool,
    ints: Option<&'static [i64]>,
    strings: Option<&'static [&'static str]>,
}

impl Attr {
    const fn new(name: &'static str, kind: i32) -> Self {
        Self { name, kind, since: 0, until: u8::MAX, required: false, ints: None, strings: None }
    }

    /// An integer.
    pub(super) const fn int(name: &'static str) -> Self {
        Self::new(name, t::INT)
    }

    /// A list of integers.
    pub(super) const fn ints(name: &'static str) -> Self {
        Self::new(name, t::INTS)
    }

    /// A float.
    pub(super) const fn float(name: &'static str) -> Self {
        Self::new(name, t::FLOAT)
    }

    /// A list of floats.
    pub(super) const fn floats(name: &'static str) -> Self {
        Self::new(name, t::FLOATS)
    }

    /// A string.
    pub(super) const fn string(name: &'static str) -> Self {
        Self::new(name, t::STRING)
    }

    /// A list of strings.
    pub(super) const fn strings(name: &'static str) -> Self {
        Self::new(name, t::STRINGS)
    }

    /// A tensor.
    pub(super) const fn tensor(name: &'static str) -> Self {
        Self::new(name, t::TENSOR)
    }

    /// A graph, which the loader reads itself.
    pub(super) const fn graph(name: &'static str) -> Self {
        Self::new(name, t::GRAPH)
    }

    /// The name of a graph attribute.
    pub(super) fn graph_name(&self) -> Option<&'static str> {
        (self.kind == t::GRAPH).then_some(self.name)
    }

    /// The first operator set that has it.
    pub(super) const fn since(self, since: u8) -> Self {
        Self { since, ..self }
    }

    /// The last operator set that has it.
    pub(super) const fn until(self, until: u8) -> Self {
        Self { until, ..self }
    }

    /// Must be given.
    pub(super) const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// Other integers are not supported.
    pub(super) const fn only(self, ints: &'static [i64]) -> Self {
        Self { ints: Some(ints), ..self }
    }

    /// Other strings are not supported.
    pub(super) const fn one_of(self, strings: &'static [&'static str]) -> Self {
        Self { strings: Some(strings), ..self }
    }

    /// Name, type number and strings that are allowed.
    pub(super) fn parts(&self) -> (&'static str, i32, &'static [&'static str]) {
        (self.name, self.kind, self.strings.unwrap_or_default())
    }

    fn exists(&self, opset: i64) -> bool {
        i64::from(self.since) <= opset && (self.until == u8::MAX || opset <= i64::from(self.until))
    }

    /// The value that is not supported, as text.
    fn refused(&self, value: &Value) -> Option<String> {
        match (value, self.ints, self.strings) {
            (Value::Int(i), Some(ints), _) if !ints.contains(i) => Some(i.to_string()),
            (Value::String(s), _, Some(strings)) if !strings.contains(&s.as_str()) => {
                Some(short(s))
            }
            _ => None,
        }
    }
}

/// The value of an attribute.
#[derive(Clone, Debug)]
enum Value {
    Int(i64),
    Float(f32),
    String(String),
    Tensor(Tensor),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<String>),
    /// It is among the bodies of the node.
    Graph,
}

/// The attributes of one node, all declared by its operator and of the declared type.
#[derive(Clone, Debug, Default)]
pub(super) struct Attrs(Vec<(&'static str, Value)>);

impl Attrs {
    /// Reads and checks the attributes of a node called `node`. What is not supported goes to
    /// `missing`.
    pub(super) fn read(
        p: &NodeProto,
        node: &str,
        row: &'static OpRow,
        opset: i64,
        external: &mut External,
        missing: &mut MissingList,
    ) -> Result<Self, ImportError> {
        let mut out: Vec<(&'static str, Value)> = Vec::new();
        for a in &p.attribute {
            let name = a.name.as_deref().unwrap_or_default();
            // Which inputs the memory of a result may be: never more than a hint, gone since opset 6.
            if name == "consumed_inputs" && opset < 6 && row.domain.is_empty() {
                continue;
            }
            let declared = row.attrs.iter().find(|d| d.name == name && d.exists(opset));
            let Some(declared) = declared.filter(|_| !is_reference(a)) else {
                let attribute = short(name);
                missing.add(MissingKind::Attribute { op: row.name, attribute, opset }, node);
                continue;
            };
            if out.iter().any(|(n, _)| *n == name) {
                return Err(StructureError::DuplicateName(format!("{node}.{}", short(name))).into());
            }
            let kind = kind_of(a);
            if kind != declared.kind {
                return Err(StructureError::AttributeType {
                    node: node.to_owned(),
                    op: row.name,
                    attribute: short(name),
                    expected: t::name(declared.kind),
                    found: t::name(kind),
                }
                .into());
            }
            let value = match value_of(a, kind, external) {
                Ok(value) => value,
                Err(DataError::Type(name)) => {
                    missing.add(MissingKind::Type(name), node);
                    continue;
                }
                Err(source) => {
                    let tensor = format!("{node}.{}", declared.name);
                    return Err(ImportError::Data { tensor, source });
                }
            };
            if let Some(value) = declared.refused(&value) {
                let attribute = declared.name;
                missing.add(MissingKind::AttributeValue { op: row.name, attribute, value }, node);
            }
            out.push((declared.name, value));
        }
        for d in row.attrs.iter().filter(|d| d.required && d.exists(opset)) {
            // One that is present but refused is in the list of what is missing.
            if !p.attribute.iter().any(|a| a.name.as_deref() == Some(d.name)) {
                let node = node.to_owned();
                let e = StructureError::NoAttribute { node, op: row.name, attribute: d.name };
                return Err(e.into());
            }
        }
        Ok(Self(out))
    }

    fn find(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Whether the attribute is given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// An integer.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.find(name) {
            Some(Value::Int(v)) => Some(*v),
            _ => None,
        }
    }

    /// A float.
    pub(super) fn float(&self, name: &str) -> Option<f32> {
        match self.find(name) {
            Some(Value::Float(v)) => Some(*v),
            _ => None,
        }
    }

    /// A string.
    pub(super) fn string(&self, name: &str) -> Option<&str> {
        match self.find(name) {
            Some(Value::String(v)) => Some(v),
            _ => None,
        }
    }

    /// A tensor.
    pub(super) fn tensor(&self, name: &str) -> Option<&Tensor> {
        match self.find(name) {
            Some(Value::Tensor(v)) => Some(v),
            _ => None,
        }
    }

    /// A list of integers.
    pub(super) fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.find(name) {
            Some(Value::Ints(v)) => Some(v),
            _ => None,
        }
    }

    /// A list of strings.
    pub(super) fn strings(&self, name: &str) -> Option<&[String]> {
        match self.find(name) {
            Some(Value::Strings(v)) => Some(v),
            _ => None,
        }
    }

    /// A list of floats.
    pub(super) fn floats(&self, name: &str) -> Option<&[f32]> {
        match self.find(name) {
            Some(Value::Floats(v)) => Some(v),
            _ => None,
        }
    }
}

/// Whether the value is an attribute of a function around the node.
fn is_reference(a: &AttributeProto) -> bool {
    a.ref_attr_name.as_deref().is_some_and(|name| !name.is_empty())
}

/// The declared type, or for files older than the declaration the one that has a value.
fn kind_of(a: &AttributeProto) -> i32 {
    match a.r#type {
        Some(kind) if kind != 0 => kind,
        _ if a.f.is_some() => t::FLOAT,
        _ if a.i.is_some() => t::INT,
        _ if a.s.is_some() => t::STRING,
        _ if a.t.is_some() => t::TENSOR,
        _ if a.g.is_some() => t::GRAPH,
        _ if !a.floats.is_empty() => t::FLOATS,
        _ if !a.ints.is_empty() => t::INTS,
        _ if !a.strings.is_empty() => t::STRINGS,
        _ => 0,
    }
}

/// The value of an attribute whose type is one that operators declare.
fn value_of(a: &AttributeProto, kind: i32, external: &mut External) -> Result<Value, DataError> {
    Ok(match kind {
        t::INT => Value::Int(a.i.unwrap_or_default()),
        t::FLOAT => Value::Float(a.f.unwrap_or_default()),
        t::TENSOR => {
            let empty = Default::default();
            Value::Tensor(tensor_from_proto(a.t.as_ref().unwrap_or(&empty), external)?)
        }
        t::INTS => Value::Ints(a.ints.clone()),
        t::FLOATS => Value::Floats(a.floats.clone()),
        t::STRINGS => {
            let text = |s: &bytes::Bytes| String::from_utf8_lossy(s).into();
            Value::Strings(a.strings.iter().map(text).collect())
        }
        t::GRAPH => Value::Graph,
        _ => Value::String(String::from_utf8_lossy(a.s.as_deref().unwrap_or_default()).into()),
    })
}
