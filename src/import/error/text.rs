//! What errors say.

use core::fmt;

use super::{DataError, ImportError, InputError, Missing, MissingKind, NodeError, StructureError};

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, reason } => write!(f, "cannot read {}: {reason}", path.display()),
            Self::Empty => f.write_str("the file is empty"),
            Self::Decode(reason) => write!(f, "not an ONNX file, or a damaged one: {reason}"),
            Self::Structure(e) => e.fmt(f),
            Self::Data { tensor, source } => write!(f, "tensor \"{tensor}\": {source}"),
            Self::Unsupported(missing) => {
                f.write_str("the model needs what is not supported: ")?;
                for (i, m) in missing.iter().enumerate() {
                    write!(f, "{}{m}", if i == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            Self::Input { input, source } => write!(f, "input \"{input}\": {source}"),
            Self::Node { node, op, source } => write!(f, "{op} node \"{node}\": {source}"),
            Self::Graph(e) => e.fmt(f),
            #[cfg(feature = "gguf")]
            Self::Gguf(e) => e.fmt(f),
        }
    }
}

impl fmt::Display for StructureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGraph => f.write_str("not an ONNX model: it has no graph"),
            Self::IrVersion { found: 0, .. } => {
                f.write_str("not an ONNX model: it has no IR version")
            }
            Self::IrVersion { found, oldest, newest } => {
                write!(f, "IR version {found} is not supported, only {oldest} to {newest}")
            }
            Self::NoOpset => f.write_str("the model names no version of the ONNX operator set"),
            Self::Opset { found, oldest, newest } => {
                write!(f, "operator set {found} is not supported, only {oldest} to {newest}")
            }
            Self::OpsetTwice(domain) => {
                write!(f, "the model names two versions of operator set \"{domain}\"")
            }
            Self::NoOutputs => f.write_str("the graph has no outputs"),
            Self::NoName(what) => write!(f, "{what} has no name"),
            Self::DuplicateName(name) => write!(f, "value \"{name}\" is defined twice"),
            Self::NoProducer { value, reader } => {
                write!(f, "{reader} needs value \"{value}\", which nothing produces")
            }
            Self::TooDeep(most) => {
                write!(f, "more than {most} graphs or calls are inside each other")
            }
            Self::TooMuchCode(most) => {
                write!(f, "the functions of the model become more than {most} bytes")
            }
            Self::Cycle(nodes) => write!(f, "nodes wait for each other: {}", nodes.join(" -> ")),
            Self::NegativeDim { value, dim } => {
                write!(f, "value \"{value}\" has an extent of {dim}")
            }
            Self::Arity { node, op, what, found, least, most } => {
                write!(f, "{op} node \"{node}\" has {found} {what}, ")?;
                match (least, most) {
                    (l, &usize::MAX) => write!(f, "expected at least {l}"),
                    (l, m) if l == m => write!(f, "expected {l}"),
                    (l, m) => write!(f, "expected {l} to {m}"),
                }
            }
            Self::Sequence { node, op, input, value, wanted: false } => write!(
                f,
                "{op} node \"{node}\": input {input} (\"{value}\") is a sequence, expected a tensor \
                 (SequenceAt and ConcatFromSequence make one)"
            ),
            Self::Sequence { node, op, input, value, .. } => write!(
                f,
                "{op} node \"{node}\": input {input} (\"{value}\") is a tensor, expected a sequence \
                 (SequenceConstruct and SplitToSequence make one)"
            ),
            Self::Mixed { node, op, value } => write!(
                f,
                "{op} node \"{node}\": value \"{value}\" is a sequence in one place and a tensor in \
                 another"
            ),
            Self::AttributeType { node, op, attribute, expected, found } => write!(
                f,
                "{op} node \"{node}\": attribute \"{attribute}\" must be {expected}, found {found}"
            ),
            Self::NoAttribute { node, op, attribute } => {
                write!(f, "{op} node \"{node}\" lacks attribute \"{attribute}\"")
            }
        }
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(name) => write!(f, "element type {name} is not supported"),
            Self::Segment => f.write_str("segments of tensors are not supported"),
            Self::NegativeDim(dims) => write!(f, "shape {dims:?} has a negative extent"),
            Self::Count { dims, expected, found } => {
                write!(f, "shape {dims:?} needs {expected} elements, found {found}")
            }
            Self::Ambiguous => f.write_str("the elements are given in more than one field"),
            Self::WrongField { field, dtype } => {
                write!(f, "elements of type {dtype} cannot be in {field}")
            }
            Self::Range { value, dtype } => write!(f, "element {value} does not fit {dtype}"),
            Self::External { reason } => write!(f, "external data: {reason}"),
            Self::Tensor(e) => e.fmt(f),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        let (n, users) = (self.count, self.users.join(", "));
        let more = if n > self.users.len() { ", ..." } else { "" };
        write!(f, " ({n}x: {users}{more})")
    }
}

impl fmt::Display for MissingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator { domain, op, .. } if !domain.is_empty() => {
                write!(f, "operator {op} of {domain}")
            }
            Self::Operator { op, opset, .. } => write!(f, "operator {op} (opset {opset})"),
            Self::NotBuilt { what, feature } => {
                write!(f, "{what}, which only a build with the feature `{feature}` has")
            }
            Self::Attribute { op, attribute, opset } => {
                write!(f, "attribute {attribute} of {op} (opset {opset})")
            }
            Self::AttributeValue { op, attribute, value } => {
                write!(f, "{attribute} = {value} of {op}")
            }
            Self::Output { op, index } => write!(f, "output {index} of {op}"),
            Self::Type(name) => write!(f, "type {name}"),
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { known } => {
                write!(f, "the model has no such input, only {}", known.join(", "))
            }
            Self::NotGiven => f.write_str("not given"),
            Self::Twice => f.write_str("given twice"),
            Self::Rank { found, expected } => {
                write!(f, "expected shape {expected}, found {found:?}")
            }
            Self::Extent { axis, found, expected } => {
                write!(f, "expected shape {expected}, found {found:?} (axis {axis} differs)")
            }
            Self::Symbol { symbol, found, expected } => {
                write!(f, "extent \"{symbol}\" is {found} here and {expected} elsewhere")
            }
        }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInput(i) => write!(f, "input {i} is absent"),
            Self::NotConstant { input, value } => write!(
                f,
                "input {input} (\"{value}\") must be known before the run, but is computed by it"
            ),
            Self::Inside { node, op, source } => write!(f, "in {op} node \"{node}\": {source}"),
            Self::Invalid(what) => f.write_str(what),
            Self::Unsupported(what) => write!(f, "{what} is not supported"),
            Self::Graph(e) => e.fmt(f),
        }
    }
}
