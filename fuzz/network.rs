//! Small networks of all operators that can be imported, quantised ones and control flow among them.
//! Bytes decide about everything: inputs, constants, operators, what each reads, attributes.

use std::sync::{Arc, OnceLock};

use arbitrary::{Result, Unstructured};
use prost::Message;
use tilewright::import::onnx::proto::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_type as kind, dimension, type_proto,
};
use tilewright::import::onnx::{Operator, operators};
use tilewright::{DType, Dim, Isa, Model, Session, SessionOptions, Tensor};

/// Bytes that a network may take, so that none is refused by a sanitizer instead.
const MEMORY: usize = 64 << 20;

/// Most nodes of a graph, and of a graph inside a node.
const NODES: [usize; 2] = [12, 4];

/// Type numbers of ONNX: f32 mostly, then what quantised and indexing operators read.
const TYPES: [i32; 8] = [1, 1, 1, 7, 3, 2, 9, 6];

/// Takes a network through loading, shape inference, passes, planning and a run with each instruction
/// set; gives how far it came: 0 to 3 for refused, loaded, planned, run.
pub(crate) fn try_out(bytes: Vec<u8>) -> usize {
    let Ok(model) = Model::from_bytes(bytes, None) else { return 0 };
    let model = Arc::new(model);
    let mut far = 1;
    for isa in [Isa::Scalar, Isa::select().expect("this machine has one")] {
        let options = SessionOptions {
            threads: Some(1),
            isa: Some(isa),
            memory_limit: Some(MEMORY),
            ..SessionOptions::default()
        };
        let mut session = Session::new(model.clone(), options).expect("a session on one thread");
        let tensor = |i: &tilewright::ValueInfo| {
            let extent = |d: &Dim| if let Dim::Fixed(n) = d { *n } else { 2 };
            let dims: Vec<usize> = i.dims.iter().flatten().map(extent).collect();
            filled(i.dtype, &dims)
        };
        let inputs: Vec<(&str, Tensor)> =
            model.inputs().iter().map(|i| (i.name.as_str(), tensor(i))).collect();
        if session.prepare(&inputs).is_ok() {
            far = far.max(if session.run(&inputs).is_ok() { 3 } else { 2 });
        }
    }
    far
}

/// Bytes of ones and twos: small numbers of each type.
fn filled(dtype: DType, dims: &[usize]) -> Tensor {
    let mut t = Tensor::zeros(dtype, dims).expect("inputs are small");
    let size = dtype.block_bytes();
    for (i, element) in t.bytes_mut().expect("it is new").chunks_exact_mut(size).enumerate() {
        match dtype {
            DType::F32 => element.copy_from_slice(&(i as f32 / 4.0 - 1.0).to_le_bytes()),
            _ => element[0] = (i % 3) as u8 & if dtype == DType::Bool { 1 } else { 3 },
        }
    }
    t
}

/// The operators, those for the operator set in use.
fn table() -> &'static [Operator] {
    static TABLE: OnceLock<Vec<Operator>> = OnceLock::new();
    TABLE.get_or_init(|| operators().collect())
}

/// A network that the bytes decide about.
pub(crate) fn network(u: &mut Unstructured<'_>) -> Result<ModelProto> {
    let mut builder = Builder { values: Vec::new(), count: 0 };
    let mut graph = GraphProto { name: Some("g".into()), ..Default::default() };
    for _ in 0..u.int_in_range(1..=3)? {
        let name = builder.fresh();
        graph.input.push(value_info(u, &name)?);
        builder.values.push(name);
    }
    for _ in 0..u.int_in_range(0..=6)? {
        let name = builder.fresh();
        graph.initializer.push(constant(u, &name)?);
        builder.values.push(name);
    }
    builder.nodes(u, &mut graph, 0)?;
    let opset = [13, 18, 21, 23, 11][u.choose_index(5)?];
    let domain = |domain: &str, version| OperatorSetIdProto {
        domain: Some(domain.into()),
        version: Some(version),
    };
    Ok(ModelProto {
        ir_version: Some(8),
        opset_import: vec![domain("", opset), domain("com.microsoft", 1), domain("ai.onnx.ml", 3)],
        graph: Some(graph),
        ..Default::default()
    })
}

struct Builder {
    /// Values that a node may read.
    values: Vec<String>,
    count: usize,
}

impl Builder {
    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("v{}", self.count)
    }

    /// Nodes and outputs of a graph that lies `depth` nodes deep.
    fn nodes(
        &mut self,
        u: &mut Unstructured<'_>,
        graph: &mut GraphProto,
        depth: usize,
    ) -> Result<()> {
        let most = NODES[depth.min(1)];
        for _ in 0..u.int_in_range(1..=most)? {
            let node = self.node(u, depth)?;
            self.values.extend(node.output.iter().cloned());
            graph.node.push(node);
        }
        let outputs = u.int_in_range(1..=2usize)?.min(self.values.len());
        for back in 0..outputs {
            let name = &self.values[self.values.len() - 1 - back];
            graph.output.push(output_info(u, name)?);
        }
        Ok(())
    }

    fn node(&mut self, u: &mut Unstructured<'_>, depth: usize) -> Result<NodeProto> {
        let operator = u.choose(table())?;
        let (least, most) = operator.inputs;
        let mut input = Vec::new();
        for i in 0..u.int_in_range(least..=most.min(least + 3))? {
            let absent = i >= least.max(1) && u.ratio(1, 8)?;
            // Mostly something computed lately, so that graphs are deep.
            let recent = self.values.len().min(4);
            let at = match u.ratio(1, 3)? {
                true => u.choose_index(self.values.len())?,
                false => self.values.len() - 1 - u.choose_index(recent)?,
            };
            input.push(if absent { String::new() } else { self.values[at].clone() });
        }
        let outputs = u.int_in_range(operator.outputs.0..=operator.outputs.1.min(3))?;
        let output = (0..outputs).map(|_| self.fresh()).collect();
        let mut attribute = Vec::new();
        for &(name, type_number, strings) in &operator.attributes {
            if type_number == kind::GRAPH {
                if depth < 2 {
                    attribute.push(self.body(u, name, depth)?);
                }
            } else if u.ratio(1, 2)? {
                attribute.push(attribute_of(u, name, type_number, strings)?);
            }
        }
        Ok(NodeProto {
            input,
            output,
            name: None,
            op_type: Some(operator.name.into()),
            attribute,
            domain: Some(operator.domain.into()),
            ..NodeProto::default()
        })
    }

    /// A graph inside a node, which reads values around it.
    fn body(
        &mut self,
        u: &mut Unstructured<'_>,
        name: &'static str,
        depth: usize,
    ) -> Result<AttributeProto> {
        let outer = self.values.len();
        let mut graph = GraphProto { name: Some(name.into()), ..Default::default() };
        if name == "body" {
            for _ in 0..u.int_in_range(0..=4)? {
                let name = self.fresh();
                graph.input.push(value_info(u, &name)?);
                self.values.push(name);
            }
        }
        self.nodes(u, &mut graph, depth + 1)?;
        self.values.truncate(outer);
        Ok(AttributeProto {
            name: Some(name.into()),
            r#type: Some(kind::GRAPH),
            g: Some(graph.encode_to_vec().into()),
            ..Default::default()
        })
    }
}

fn attribute_of(
    u: &mut Unstructured<'_>,
    name: &str,
    type_number: i32,
    strings: &[&'static str],
) -> Result<AttributeProto> {
    let mut a =
        AttributeProto { name: Some(name.into()), r#type: Some(type_number), ..Default::default() };
    let float =
        |u: &mut Unstructured<'_>| Ok(*u.choose(&[0.0, 1.0, 0.5, 2.0, -1.0, 1e-5, f32::NAN])?);
    let string = |u: &mut Unstructured<'_>| -> Result<String> {
        Ok(if strings.is_empty() { "linear".into() } else { (*u.choose(strings)?).into() })
    };
    let count = u.int_in_range(0..=6)?;
    match type_number {
        kind::INT => a.i = Some(int(u)?),
        kind::FLOAT => a.f = Some(float(u)?),
        kind::STRING => a.s = Some(string(u)?.into_bytes().into()),
        kind::INTS => a.ints = (0..count).map(|_| int(u)).collect::<Result<_>>()?,
        kind::FLOATS => a.floats = (0..count).map(|_| float(u)).collect::<Result<_>>()?,
        kind::STRINGS => {
            let all = (0..count).map(|_| Ok(string(u)?.into_bytes().into()));
            a.strings = all.collect::<Result<_>>()?;
        }
        kind::TENSOR => a.t = Some(constant(u, "")?),
        _ => {}
    }
    Ok(a)
}

/// Small integers mostly: extents, axes, paddings.
fn int(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.int_in_range(0..=15)? {
        15 => *u.choose(&[i64::MIN, i64::MAX, 1 << 31, 1 << 62, -(1 << 31), 65_536])?,
        n => n - 3,
    })
}

fn dims(u: &mut Unstructured<'_>) -> Result<Vec<i64>> {
    let rank = *u.choose(&[4, 4, 3, 2, 1, 0, 5])?;
    (0..rank).map(|_| Ok(*u.choose(&[1, 2, 3, 4, 5, 8, 16, 0])?)).collect()
}

fn constant(u: &mut Unstructured<'_>, name: &str) -> Result<TensorProto> {
    let data_type = *u.choose(&TYPES)?;
    let mut dims = dims(u)?;
    if data_type == 7 || u.ratio(1, 3)? {
        // Shapes, axes, scales and zero points.
        dims.truncate(1);
    }
    let count = dims.iter().product::<i64>();
    let count = usize::try_from(count).unwrap_or(0);
    let mut raw = Vec::new();
    for i in 0..count {
        // After so many elements it is the pattern that counts, and bytes are better spent elsewhere.
        let n = if i < 8 { int(u)? } else { i as i64 % 5 - 2 };
        match data_type {
            1 => raw.extend((n as f32 / 4.0).to_le_bytes()),
            7 => raw.extend(n.to_le_bytes()),
            6 => raw.extend((n as i32).to_le_bytes()),
            9 => raw.push((n & 1) as u8),
            _ => raw.push(n as u8),
        }
    }
    Ok(TensorProto {
        dims,
        data_type: Some(data_type),
        name: (!name.is_empty()).then(|| name.into()),
        raw_data: Some(raw.into()),
        ..Default::default()
    })
}

fn value_info(u: &mut Unstructured<'_>, name: &str) -> Result<ValueInfoProto> {
    let data_type = *u.choose(&TYPES)?;
    let dim = |n| Dimension { value: Some(dimension::Value::Fixed(n)) };
    let shape = TensorShapeProto { dim: dims(u)?.into_iter().map(dim).collect() };
    Ok(typed(name, data_type, Some(shape)))
}

/// An output, of which the type is declared and the shape is not.
fn output_info(u: &mut Unstructured<'_>, name: &str) -> Result<ValueInfoProto> {
    Ok(typed(name, *u.choose(&TYPES)?, None))
}

fn typed(name: &str, data_type: i32, shape: Option<TensorShapeProto>) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(data_type), shape };
    let kind = TypeProto { value: Some(type_proto::Value::Tensor(tensor)) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(kind) }
}
