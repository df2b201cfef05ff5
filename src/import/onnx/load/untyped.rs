//! Outputs of which the file does not say the type.
use super::{MissingList, Node, OnnxModel, ValueId, ValueInfoProto, data_type};
use crate::graph::Context;
use crate::import::error::short;
use crate::import::onnx::model::Dim;
use crate::import::onnx::proto::type_proto;
use crate::import::{ImportError, MissingKind};
use crate::tensor::DType;

/// What a type is called that nobody knows.
pub(super) const NOT_GIVEN: &str = "that is not given (onnx.shape_inference.infer_shapes adds it)";

/// Extents that are tried for those that the file leaves open: types do not depend on them, but not
/// all fit a network.
const EXTENTS: [usize; 4] = [8, 1, 64, 224];

/// The same for numbers of dimensions.
const RANKS: [usize; 4] = [2, 4, 3, 1];

/// Whether the file does not say what an output is.
pub(super) fn is_untyped(p: &ValueInfoProto) -> bool {
    match p.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        None => true,
        Some(type_proto::Value::Tensor(t)) => t.elem_type.is_none_or(|n| n == data_type::UNDEFINED),
        Some(_) => false,
    }
}

/// Finds the types of some of the outputs: by rules, and where they do not reach, by building the
/// graph. In a model with `halves`, of which `narrow` are constants, an f32 there may stand for one, and
/// the file must say which it is.
///
/// # Errors
/// [`ImportError::Unsupported`] with the outputs that are not found.
pub(super) fn infer(
    model: &mut OnnxModel,
    untyped: &[usize],
    narrow: &[(ValueId, DType)],
    halves: bool,
) -> Result<(), ImportError> {
    if untyped.is_empty() {
        return Ok(());
    }
    // Small builds ask for the type.
    let found = cfg!(feature = "ops-control");
    let ruled = if found { by_rules(model, narrow) } else { Vec::new() };
    let ruled: Vec<Option<DType>> =
        model.graph.outputs.iter().map(|&v| ruled.get(v).copied().flatten()).collect();
    let rule = |i: usize| ruled.get(i).copied().flatten();
    let all = untyped.iter().all(|&i| rule(i).is_some());
    let built = if all || !found { None } else { by_building(model) };
    let built = built.unwrap_or_default();
    let mut missing = MissingList::default();
    for &i in untyped {
        let Some(info) = model.outputs.get_mut(i) else { continue };
        let sure = |&dtype: &DType| !(halves && dtype == DType::F32);
        match rule(i).or_else(|| built.get(i).copied().filter(sure)) {
            Some(dtype) => info.dtype = dtype,
            _ => {
                let user = format!("output {}", short(&info.name));
                missing.add(MissingKind::Type(NOT_GIVEN.into()), &user);
            }
        }
    }
    missing.finish()
}

/// The types of values as far as the operators that models have most give them.
fn by_rules(model: &OnnxModel, narrow: &[(ValueId, DType)]) -> Vec<Option<DType>> {
    let mut types = vec![None; model.values.len()];
    let inputs = model.inputs.iter().zip(&model.graph.inputs).map(|(i, &v)| (v, i.dtype));
    let constants = model.constants.iter().map(|(v, t)| (*v, t.dtype()));
    let narrow = narrow.iter().copied();
    for (value, dtype) in inputs.chain(constants).chain(narrow) {
        if let Some(slot) = types.get_mut(value) {
            *slot = Some(dtype);
        }
    }
    for node in &model.graph.nodes {
        for (i, value) in node.outputs.iter().enumerate() {
            let dtype = by_rule(node, i, &types);
            if let Some(slot) = value.and_then(|v| types.get_mut(v)) {
                *slot = dtype;
            }
        }
    }
    types
}

/// The type of output `i` of a node.
fn by_rule(node: &Node, i: usize, types: &[Option<DType>]) -> Option<DType> {
    let like = |input: usize| {
        let value = node.inputs.get(input).copied().flatten()?;
        types.get(value).copied().flatten()
    };
    let name = node.row.name;
    let is = |names: &str| names.split_ascii_whitespace().any(|n| n == name);
    if !node.row.domain.is_empty() {
        return None;
    }
    if i > 0 {
        return match name {
            "TopK" | "Unique" => Some(DType::I64),
            "GRU" | "LSTM" | "RNN" | "Split" => like(0),
            _ => None,
        };
    }
    if is(BOOLS) {
        Some(DType::Bool)
    } else if is(INDICES) {
        Some(DType::I64)
    } else if is(ALIKE) || name.starts_with("Reduce") {
        like(0)
    } else if is("CastLike SequenceInsert Where") {
        like(1)
    } else if name == "Cast" {
        node.attrs.int("to").and_then(|n| i32::try_from(n).ok()).and_then(data_type::to_dtype)
    } else {
        None
    }
}

/// Operators whose first result is of truth values.
const BOOLS: &str = "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor";

/// Operators whose first result is of positions or numbers of elements.
const INDICES: &str = "ArgMax ArgMin NonMaxSuppression NonZero SequenceLength Shape Size";

/// Operators whose first result has the type of their first operand.
const ALIKE: &str = "Abs Add AveragePool BatchNormalization Ceil Clip Compress Concat ConcatFromSequence Conv \
    ConvTranspose Cos CumSum DepthToSpace Div Dropout Einsum Elu Erf Exp Expand Flatten Floor GRU Gather \
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool GridSample GroupNormalization HardSigmoid \
    HardSwish Identity InstanceNormalization LSTM LayerNormalization LeakyRelu Log LogSoftmax MatMul Max MaxPool \
    Mean Min Mish Mod Mul Neg PRelu Pad Pow RNN Range Reciprocal Relu Reshape Resize Round ScatterElements \
    ScatterND Selu SequenceAt SequenceConstruct SequenceErase Sigmoid Sign Sin Slice Softmax Softplus Softsign \
    SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub Sum Tanh Tile TopK Transpose Trilu Unique Unsqueeze \
    Upsample";

/// The types of all outputs, for the first shapes that the model can be built with.
fn by_building(model: &OnnxModel) -> Option<Vec<DType>> {
    let dims = |i: &super::ValueInfo| i.dims.clone();
    let open = |d: &Dim| !matches!(d, Dim::Fixed(_));
    let any_open = model.inputs.iter().filter_map(dims).flatten().any(|d| open(&d));
    let no_rank = model.inputs.iter().any(|i| i.dims.is_none());
    let extents = EXTENTS.iter().take(if any_open || no_rank { EXTENTS.len() } else { 1 });
    let tries = extents.flat_map(|&extent| {
        RANKS.iter().take(if no_rank { RANKS.len() } else { 1 }).map(move |&r| (extent, r))
    });
    tries.into_iter().find_map(|(extent, rank)| {
        let shape = |info: &super::ValueInfo| match &info.dims {
            None => vec![extent; rank],
            Some(dims) => {
                let size = |d: &Dim| if let Dim::Fixed(n) = d { *n } else { extent };
                dims.iter().map(size).collect()
            }
        };
        let shapes: Vec<Vec<usize>> = model.inputs.iter().map(shape).collect();
        let inputs = model.inputs.iter().zip(&shapes);
        let inputs: Vec<(&str, &[usize])> =
            inputs.map(|(info, dims)| (info.name.as_str(), &dims[..])).collect();
        let mut ctx = Context::new();
        let outputs = model.instantiate(&mut ctx, &inputs, &[]).ok()?;
        Some(outputs.into_iter().map(|id| ctx.dtype(id)).collect())
    })
}
