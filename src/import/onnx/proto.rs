//! The ONNX messages that the importer reads.
//!
//! Declared by hand through prost's derive macros: field numbers and types are facts of the format
//! (ONNX IR, `onnx.proto`), no `.proto` file is vendored. Fields that the importer does not look at
//! are left out, prost skips them. Fields that would make a message recursive (subgraphs, sequence
//! and map types) are kept as undecoded bytes: their presence is seen, their depth costs nothing.
//! Tensor contents are [`Bytes`], so that a message decoded from a mapped file refers to the
//! mapping instead of copying it.

use bytes::Bytes;
use prost::Message;

/// A whole model file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the format, 3 and above.
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    /// The tool that wrote the file.
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    /// The tool's version.
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    /// The network.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Operator sets the network is written in.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Free key-value pairs.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Operators that the model itself defines.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// An operator written in others.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// The operator.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Names of the inputs in the body.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// Names of the outputs in the body.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// The body.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// Operator sets that the body is written in.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// The operator's domain.
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    /// Attributes with defaults.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// Tells functions of one name apart.
    #[prost(string, optional, tag = "13")]
    pub overload: Option<String>,
}

/// Nodes, constants, inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// Operator calls, each after those it needs.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// The graph's name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// Constant tensors.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Inputs; up to IR version 3 constants are listed here too.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Sparse constants, refused.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

/// One operator call.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of the values read; an empty name is an absent optional input.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the values written; an empty name is an unwanted optional output.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The node's name, often empty.
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    /// The operator.
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    /// Attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The operator's domain; empty is ONNX itself.
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    /// Which function of that name, if it is one of the model's.
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
    /// Version of the domain's operators where it may be another than the model's: what a function
    /// names for its body. Not a field of files; the number is none of ONNX's.
    #[prost(int64, optional, tag = "1000")]
    pub opset: Option<i64>,
}

/// One attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// The name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Value of a `FLOAT`.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// Value of an `INT`.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// Value of a `STRING`.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    /// Value of a `TENSOR`.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// Value of a `GRAPH`, undecoded.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub g: Option<Bytes>,
    /// Value of `FLOATS`.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// Value of `INTS`.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Value of `STRINGS`.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// Which of the values counts, see [`attribute_type`].
    #[prost(int32, optional, tag = "20")]
    pub r#type: Option<i32>,
    /// In a function body: the name of the function's attribute that stands here.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
}

/// Values of an attribute's type.
pub mod attribute_type {
    /// One float.
    pub const FLOAT: i32 = 1;
    /// One integer.
    pub const INT: i32 = 2;
    /// One byte string.
    pub const STRING: i32 = 3;
    /// One tensor.
    pub const TENSOR: i32 = 4;
    /// One subgraph.
    pub const GRAPH: i32 = 5;
    /// Floats.
    pub const FLOATS: i32 = 6;
    /// Integers.
    pub const INTS: i32 = 7;
    /// Byte strings.
    pub const STRINGS: i32 = 8;

    /// The printable name.
    pub fn name(value: i32) -> &'static str {
        match value {
            FLOAT => "float",
            INT => "int",
            STRING => "string",
            TENSOR => "tensor",
            GRAPH => "graph",
            FLOATS => "floats",
            INTS => "ints",
            STRINGS => "strings",
            9 => "tensors",
            10 => "graphs",
            11 => "sparse tensor",
            12 => "sparse tensors",
            13 => "type",
            14 => "types",
            _ => "unknown type",
        }
    }
}

/// A tensor: shape, type and elements in one of several fields.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Extents, slowest first.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// Element type, see [`data_type`].
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    /// Part of a larger tensor, refused; undecoded.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub segment: Option<Bytes>,
    /// Elements of `FLOAT` (and pairs of `COMPLEX64`).
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of the integer types up to 32 bits, `BOOL`, and the bits of `FLOAT16`, `BFLOAT16`.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Elements of `STRING`.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// Elements of `INT64`.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// The name.
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    /// All elements, little-endian.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// Elements of `DOUBLE` (and pairs of `COMPLEX128`).
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Elements of `UINT32` and `UINT64`.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// Where the elements are outside this file: `location`, `offset`, `length`.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 when the elements are outside this file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// [`TensorProto::data_location`] of tensors whose elements are in another file.
pub const EXTERNAL: i32 = 1;

/// Values of [`TensorProto::data_type`].
pub mod data_type {
    use crate::tensor::DType;

    /// Names in order of their numbers, from 1.
    const NAMES: [&str; 28] = [
        "float",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "double",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
        "float8e4m3fn",
        "float8e4m3fnuz",
        "float8e5m2",
        "float8e5m2fnuz",
        "uint4",
        "int4",
        "float4e2m1",
        "float8e8m0",
        "uint2",
        "int2",
        "float6e2m3",
        "float6e3m2",
    ];

    /// No type.
    pub const UNDEFINED: i32 = 0;

    /// Integers of 64 bits.
    pub const INT64: i32 = 7;

    /// Texts, of any length.
    pub const STRING: i32 = 8;

    /// The tensor type of a number, if tensors of it can be held.
    pub fn to_dtype(value: i32) -> Option<DType> {
        Some(match value {
            1 => DType::F32,
            2 => DType::U8,
            3 => DType::I8,
            4 => DType::U16,
            5 => DType::I16,
            6 => DType::I32,
            7 => DType::I64,
            9 => DType::Bool,
            10 => DType::F16,
            11 => DType::F64,
            12 => DType::U32,
            13 => DType::U64,
            16 => DType::BF16,
            _ => return None,
        })
    }

    /// The printable name of a number.
    pub fn name(value: i32) -> String {
        let known = usize::try_from(value).ok().and_then(|v| NAMES.get(v.checked_sub(1)?));
        known.map_or_else(|| format!("number {value}"), |n| (*n).to_owned())
    }
}

/// A sparse tensor; only its presence is looked at.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    /// The stored elements; the tensor's name is theirs.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
}

/// Name and type of a graph input or output.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type: of a tensor, or of something that is not supported and stays undecoded.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// Which kind of type.
    #[prost(oneof = "type_proto::Value", tags = "1, 4, 5, 7, 8, 9")]
    pub value: Option<type_proto::Value>,
}

/// Parts of [`TypeProto`].
pub mod type_proto {
    use bytes::Bytes;
    use prost::{Message, Oneof};

    /// The kinds of types.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Value {
        /// A dense tensor.
        #[prost(message, tag = "1")]
        Tensor(Tensor),
        /// A sequence.
        #[prost(bytes = "bytes", tag = "4")]
        Sequence(Bytes),
        /// A map.
        #[prost(bytes = "bytes", tag = "5")]
        Map(Bytes),
        /// A type of some other domain.
        #[prost(bytes = "bytes", tag = "7")]
        Opaque(Bytes),
        /// A sparse tensor.
        #[prost(bytes = "bytes", tag = "8")]
        SparseTensor(Bytes),
        /// A value that may be absent.
        #[prost(bytes = "bytes", tag = "9")]
        Optional(Bytes),
    }

    impl Value {
        /// The printable name of the kind.
        pub fn kind(&self) -> &'static str {
            match self {
                Self::Tensor(_) => "tensor",
                Self::Sequence(_) => "sequence",
                Self::Map(_) => "map",
                Self::Opaque(_) => "opaque type",
                Self::SparseTensor(_) => "sparse tensor",
                Self::Optional(_) => "optional",
            }
        }
    }

    /// Element type and shape of a tensor.
    #[derive(Clone, PartialEq, Message)]
    pub struct Tensor {
        /// Element type, see [`super::data_type`].
        #[prost(int32, optional, tag = "1")]
        pub elem_type: Option<i32>,
        /// The shape; absent when even the rank is unknown.
        #[prost(message, optional, tag = "2")]
        pub shape: Option<super::TensorShapeProto>,
    }
}

/// A shape whose extents may be symbols.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// Extents, slowest first.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// One extent of a shape.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// Number or symbol; absent when unknown.
    #[prost(oneof = "dimension::Value", tags = "1, 2")]
    pub value: Option<dimension::Value>,
}

/// Parts of [`Dimension`].
pub mod dimension {
    use prost::Oneof;

    /// What an extent is given as.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Value {
        /// A number.
        #[prost(int64, tag = "1")]
        Fixed(i64),
        /// A symbol.
        #[prost(string, tag = "2")]
        Symbol(String),
    }
}

/// One operator set.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The domain; empty is ONNX itself.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// The version.
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

/// A key-value pair.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// The value.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}
