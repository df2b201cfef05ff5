//! Models made in tests: one operator with constant inputs, computed while the graph is built.

use super::OnnxModel;
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, attribute_type as t, type_proto,
};
use crate::graph::Context;
use crate::import::ImportError;
use crate::tensor::{DType, Tensor};

/// An attribute's value.
#[allow(clippy::large_enum_variant, reason = "a few of them in tests")]
#[derive(Clone)]
pub(super) enum A<'a> {
    I(i64),
    F(f32),
    S(&'a str),
    Is(&'a [i64]),
    Fs(&'a [f32]),
    Ss(&'a [&'a str]),
    T(TensorProto),
}

/// An attribute message.
pub(super) fn attribute(name: &str, value: &A<'_>) -> AttributeProto {
    let mut a = AttributeProto { name: Some(name.into()), ..Default::default() };
    a.r#type = Some(match value {
        A::I(v) => {
            a.i = Some(*v);
            t::INT
        }
        A::F(v) => {
            a.f = Some(*v);
            t::FLOAT
        }
        A::S(v) => {
            a.s = Some(v.as_bytes().to_vec().into());
            t::STRING
        }
        A::Is(v) => {
            a.ints = v.to_vec();
            t::INTS
        }
        A::Fs(v) => {
            a.floats = v.to_vec();
            t::FLOATS
        }
        A::Ss(v) => {
            a.strings = v.iter().map(|s| s.as_bytes().to_vec().into()).collect();
            t::STRINGS
        }
        A::T(v) => {
            a.t = Some(v.clone());
            t::TENSOR
        }
    });
    a
}

/// A tensor's type as ONNX numbers it.
fn number(dtype: DType) -> i32 {
    (1..20).find(|&n| super::proto::data_type::to_dtype(n) == Some(dtype)).unwrap()
}

/// A tensor message.
pub(super) fn tensor(name: &str, value: &Tensor) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: value.dims().iter().map(|&d| i64::try_from(d).unwrap()).collect(),
        data_type: Some(number(value.dtype())),
        raw_data: Some(value.bytes().to_vec().into()),
        ..Default::default()
    }
}

/// A node message.
pub(super) fn node(
    op: &str,
    inputs: &[&str],
    outputs: &[&str],
    attrs: &[(&str, A<'_>)],
) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| (*s).into()).collect(),
        output: outputs.iter().map(|s| (*s).into()).collect(),
        attribute: attrs.iter().map(|(n, v)| attribute(n, v)).collect(),
        ..Default::default()
    }
}

/// A value of a type, of unknown shape.
pub(super) fn value(name: &str, dtype: DType) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(number(dtype)), shape: None };
    let kind = TypeProto { value: Some(type_proto::Value::Tensor(tensor)) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(kind) }
}

/// A model message around a graph.
pub(super) fn model(opset: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(opset) }],
        graph: Some(graph),
        ..Default::default()
    }
}

/// Computes one node on constants; `None` inputs are absent.
pub(super) fn run_all(
    op: &str,
    opset: i64,
    attrs: &[(&str, A<'_>)],
    inputs: &[Option<Tensor>],
    outputs: usize,
) -> Result<Vec<Tensor>, ImportError> {
    run_of("", op, opset, attrs, inputs, outputs)
}

/// As [`run_all`], with an operator of a domain, in the operator set `opset` of that.
pub(super) fn run_of(
    domain: &str,
    op: &str,
    opset: i64,
    attrs: &[(&str, A<'_>)],
    inputs: &[Option<Tensor>],
    outputs: usize,
) -> Result<Vec<Tensor>, ImportError> {
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let given = inputs.iter().zip(&names);
    let given: Vec<&str> = given.map(|(t, n)| if t.is_some() { n.as_str() } else { "" }).collect();
    let results: Vec<String> = (0..outputs).map(|i| format!("y{i}")).collect();
    let outs: Vec<&str> = results.iter().map(String::as_str).collect();
    let constants = inputs.iter().zip(&names).filter_map(|(t, n)| Some(tensor(n, t.as_ref()?)));
    let node = NodeProto { domain: Some(domain.into()), ..node(op, &given, &outs, attrs) };
    let graph = GraphProto {
        node: vec![node],
        initializer: constants.collect(),
        output: outs.iter().map(|n| value(n, DType::F32)).collect(),
        ..Default::default()
    };
    let mut file = model(if domain.is_empty() { opset } else { 21 }, graph);
    if !domain.is_empty() {
        let own = OperatorSetIdProto { domain: Some(domain.into()), version: Some(opset) };
        file.opset_import.push(own);
    }
    let model = OnnxModel::from_proto(file, None)?;
    let mut ctx = Context::new();
    let ids = model.instantiate(&mut ctx, &[], &[])?;
    Ok(ids.iter().map(|&id| ctx.constant_value(id).unwrap().clone()).collect())
}

/// As [`run_all`], for one output.
pub(super) fn run(
    op: &str,
    opset: i64,
    attrs: &[(&str, A<'_>)],
    inputs: &[Tensor],
) -> Result<Tensor, ImportError> {
    let inputs: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
    Ok(run_all(op, opset, attrs, &inputs, 1)?.remove(0))
}

/// A tensor of f32.
pub(super) fn f32s(dims: &[usize], v: &[f32]) -> Tensor {
    Tensor::from_slice(dims, v).unwrap()
}

/// A list of i64.
pub(super) fn i64s(v: &[i64]) -> Tensor {
    Tensor::from_slice(&[v.len()], v).unwrap()
}

/// A tensor of f32 that counts from 0.
pub(super) fn count(dims: &[usize]) -> Tensor {
    let v: Vec<f32> = (0..dims.iter().product::<usize>()).map(|i| i as f32).collect();
    f32s(dims, &v)
}

/// Shape and elements of a tensor of f32.
pub(super) fn parts(t: &Tensor) -> (Vec<usize>, Vec<f32>) {
    (t.dims(), t.as_slice::<f32>().unwrap().to_vec())
}
