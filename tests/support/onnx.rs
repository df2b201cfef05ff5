//! Small ONNX files for tests.

use tilewright::import::onnx::proto::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, dimension, type_proto,
};

/// ONNX's number of f32.
pub(crate) const F32: i32 = 1;

/// An extent: a number, or a symbol for `None`.
pub(crate) type Extent = Option<i64>;

/// A model of one graph, opset 17.
pub(crate) fn model(
    inputs: &[(&str, i32, &[Extent])],
    outputs: &[&str],
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
) -> ModelProto {
    let opset = OperatorSetIdProto { domain: None, version: Some(17) };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        graph: Some(GraphProto {
            name: Some("test".into()),
            node: nodes,
            initializer: constants,
            input: inputs
                .iter()
                .map(|(name, dtype, dims)| value(name, *dtype, Some(dims)))
                .collect(),
            output: outputs.iter().map(|name| value(name, F32, None)).collect(),
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// One node without attributes.
pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: outputs.iter().map(|s| s.to_string()).collect(),
        name: Some(format!("{}_node", outputs[0])),
        ..NodeProto::default()
    }
}

/// An f32 tensor.
pub(crate) fn tensor(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(F32),
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

fn value(name: &str, dtype: i32, dims: Option<&[Extent]>) -> ValueInfoProto {
    let dim = |(i, d): (usize, &Extent)| Dimension {
        value: Some(match d {
            Some(n) => dimension::Value::Fixed(*n),
            None => dimension::Value::Symbol(format!("d{i}")),
        }),
    };
    let shape = dims.map(|d| TensorShapeProto { dim: d.iter().enumerate().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(dtype), shape };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto { value: Some(type_proto::Value::Tensor(tensor)) }),
    }
}
