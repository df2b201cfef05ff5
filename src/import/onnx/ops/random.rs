//! Random numbers. They depend on the seed (without one, on the node) only.

use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::ops::random::{Distribution, Random};
use crate::graph::{Info, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::computed;
use crate::tensor::DType;

const ONE: (u8, u8) = (1, 1);
const NONE: (u8, u8) = (0, 0);
const DTYPE: Attr = Attr::int("dtype");
const SEED: Attr = Attr::float("seed");
const SHAPE: Attr = Attr::ints("shape").required();
const MEAN: Attr = Attr::float("mean");
const SCALE: Attr = Attr::float("scale");
const HIGH: Attr = Attr::float("high");
const LOW: Attr = Attr::float("low");

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Bernoulli", ONE, &[DTYPE, SEED], |cx| {
        let x = cx.input(0)?;
        let dims = cx.dims(x);
        made(cx, Distribution::Bernoulli, dims, Some(x), Some(x))
    })
    .since(15),
    OpRow::new("Multinomial", ONE, &[DTYPE, Attr::int("sample_size"), SEED], |cx| {
        let x = cx.input(0)?;
        let samples = build::extent(cx.int("sample_size", 1), "sample_size")?;
        let rows = cx.dims(x).first().copied().unwrap_or(0);
        let dtype = match cx.int("dtype", 6) {
            6 => DType::I32,
            7 => DType::I64,
            number => return Err(NodeError::unsupported(format!("type number {number}"))),
        };
        random(cx, Distribution::Classes, vec![rows, samples], dtype, Some(x))
    })
    .since(7),
    OpRow::new("RandomNormal", NONE, &[DTYPE, MEAN, SCALE, SEED, SHAPE], |cx| {
        let (distribution, dims) = (bell(cx), shape(cx)?);
        made(cx, distribution, dims, None, None)
    }),
    OpRow::new("RandomNormalLike", ONE, &[DTYPE, MEAN, SCALE, SEED], |cx| {
        let x = cx.input(0)?;
        let (distribution, dims) = (bell(cx), cx.dims(x));
        made(cx, distribution, dims, Some(x), None)
    }),
    OpRow::new("RandomUniform", NONE, &[DTYPE, HIGH, LOW, SEED, SHAPE], |cx| {
        let (distribution, dims) = (range(cx), shape(cx)?);
        made(cx, distribution, dims, None, None)
    }),
    OpRow::new("RandomUniformLike", ONE, &[DTYPE, HIGH, LOW, SEED], |cx| {
        let x = cx.input(0)?;
        let (distribution, dims) = (range(cx), cx.dims(x));
        made(cx, distribution, dims, Some(x), None)
    }),
];

fn bell(cx: &NodeCx<'_>) -> Distribution {
    Distribution::Normal { mean: cx.float("mean", 0.0), scale: cx.float("scale", 1.0) }
}

fn range(cx: &NodeCx<'_>) -> Distribution {
    Distribution::Uniform { low: cx.float("low", 0.0), high: cx.float("high", 1.0) }
}

fn shape(cx: &NodeCx<'_>) -> Result<Vec<usize>, NodeError> {
    let shape = cx.ints("shape").unwrap_or_default();
    shape.iter().map(|&d| build::extent(d, "shape")).collect()
}

/// Of the type that an attribute names, else that of `like`, else f32.
fn made(
    cx: &mut NodeCx<'_>,
    distribution: Distribution,
    dims: Vec<usize>,
    like: Option<TensorId>,
    operand: Option<TensorId>,
) -> Outputs {
    let dtype = match (cx.int("dtype", 0), like) {
        (0, Some(like)) => computed(cx.dtype(like)),
        (0, None) => DType::F32,
        (number, _) => cast::dtype_of(number)?,
    };
    random(cx, distribution, dims, dtype, operand)
}

fn random(
    cx: &mut NodeCx<'_>,
    distribution: Distribution,
    dims: Vec<usize>,
    dtype: DType,
    operand: Option<TensorId>,
) -> Outputs {
    // Nothing else limits what a node without operands asks for.
    cx.spend(&Info::plain(dtype, dims.clone()))?;
    let seed = if cx.has("seed") {
        u64::from(cx.float("seed", 0.0).to_bits())
    } else {
        // Two nodes without seeds must differ: FNV-1a of the name.
        let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        cx.name().bytes().fold(0xcbf2_9ce4_8422_2325, step)
    };
    let src: Vec<TensorId> = operand.into_iter().collect();
    Ok(vec![cx.op(Random { distribution, seed, dtype, dims }, &src)?])
}
