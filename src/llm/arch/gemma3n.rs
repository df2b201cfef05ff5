//! Gemma 3n, its text part: as Gemma 3, but that several streams of vectors go from layer to layer, of which each layer
//! computes one and predicts the others (alternating updates: Baykal et al. 2023); that beside attention is a product
//! with two thin matrices; that gates of the first layers let the largest through alone; and, as in Gemma 4, that the
//! last layers attend to what earlier ones have kept, and that each layer has a vector for each token.

use core::ops::Range;

use super::{Arch, Builder, Decoder, Place, gemma, gemma3, gemma4};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::binary::Binary;
use crate::graph::ops::block_matmul::BlockMatMul;
use crate::graph::ops::concat::Concat;
use crate::graph::ops::glu::{Glu, GluOp};
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::reduce::{Reduce, ReduceOp};
use crate::graph::ops::unary::UnaryOp;
use crate::llm::{Config, LlmError, WindowPattern};
use crate::tensor::Tensor;
use tilewright_kernels::template::binary::BinaryOp;

pub(super) const GEMMA3N: Arch = Arch { name: "gemma3n", adjust, build };

const BLOCKS: Decoder = Decoder { value_norms: true, ..gemma3::BLOCKS };

/// Streams, layers that keep something, and layers with sparse gates, where a file does not say.
const STREAMS: usize = 4;
const KEEPING: usize = 20;
const SPARSE: usize = 10;

/// As many standard deviations above the mean are 95 % of normal values below.
const SPARSITY: f32 = 1.644_853_6;

fn adjust(config: &mut Config) {
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(5));
    config.rope.base_window.get_or_insert(10_000.0);
    // The norms of queries and keys have learned the scale.
    config.attention_scale = Some(1.0);
    if config.streams == 0 {
        config.streams = STREAMS;
    }
    if config.sharing == 0 {
        config.sharing = config.layers.saturating_sub(KEEPING);
    }
    if config.sparsity.is_empty() {
        config.sparsity = vec![SPARSITY; SPARSE];
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let raw = b.embedding()?;
    let key = format!("{}.embedding_length_per_layer_input", b.config().arch);
    let inputs = gemma4::layer_inputs(b, raw)?.ok_or(LlmError::MissingKey(key))?;
    let tables = [b.near_table()?, b.rope_table()?];
    let first = gemma::scaled(b, raw)?;
    let mut x = spread(b, first)?;
    for layer in 0..b.layers() {
        x = streams_of_layer(b, x, layer, inputs, tables)?;
    }
    let x = merged(b, x)?;
    let x = b.norm(x, BLOCKS.last_norm, BLOCKS.norm)?;
    b.logits(x)
}

/// All streams of a token behind each other: its vector, and what matrices make of it, as long as it is.
fn spread(b: &mut Builder<'_>, first: TensorId) -> Result<TensorId, Error> {
    let others = of_stack(b, first, "altup_proj", 0..b.config().streams - 1)?;
    let others = as_long(b, others, first)?;
    b.op("streams", Concat { axis: 1 }, &[first, others])
}

/// The mean of the first stream and of what matrices make of the others, as long as it is.
fn merged(b: &mut Builder<'_>, x: TensorId) -> Result<TensorId, Error> {
    let Config { embedding: n, streams, .. } = *b.config();
    let first = b.columns(x, 0, n)?;
    let mut sum = first;
    for i in 1..streams {
        let other = b.columns(x, i * n, n)?;
        let other = of_stack(b, other, "altup_unembd_proj", i - 1..i)?;
        let other = as_long(b, other, first)?;
        sum = b.sum("streams", sum, other)?;
    }
    b.scaled(sum, 1.0 / streams as f32)
}

/// Products with some of the matrices of a tensor that has one for each stream but the first.
fn of_stack(
    b: &mut Builder<'_>,
    x: TensorId,
    name: &str,
    which: Range<usize>,
) -> Result<TensorId, Error> {
    let Config { embedding: n, streams, .. } = *b.config();
    let weight = format!("{name}.weight");
    let all = b.weights().rows(&weight, &[streams - 1, n, n], which.start, which.len())?;
    let rows = Tensor::from_storage(all.dtype(), &[which.len() * n, n], all.storage().clone())?;
    let rows = b.constant(&weight, rows)?;
    b.op(name, BlockMatMul::default(), &[x, rows])
}

/// Each vector of `x`, made as long as the one of its token.
fn as_long(b: &mut Builder<'_>, x: TensorId, like: TensorId) -> Result<TensorId, Error> {
    let Config { embedding: n, epsilon, .. } = *b.config();
    let norm = Norm { op: NormOp::Rms, axis: 2, epsilon, by_parts: false };
    let x = b.normed_heads(x, None, "streams", n, norm)?;
    let length = b.op("length", Reduce { op: ReduceOp::L2, axis: 1, count: 1 }, &[like])?;
    let length = b.as_rows(length, 1)?;
    let length = b.scaled(length, 1.0 / (n as f32).sqrt())?;
    b.product("streams", x, length)
}

/// What one layer makes of all streams, `x`, and of the vectors that it has for the tokens.
fn streams_of_layer(
    b: &mut Builder<'_>,
    x: TensorId,
    layer: usize,
    inputs: TensorId,
    tables: [TensorId; 2],
) -> Result<TensorId, Error> {
    let Config { embedding: n, streams, .. } = *b.config();
    let name = |part: &str| format!("blk.{layer}.{part}");

    let first = b.columns(x, 0, n)?;
    let modes = modes(b, first, layer)?;
    let by = b.linear(modes, &name("altup_predict_coef"), streams * streams)?;
    let by = b.split_heads(by, streams)?;
    let vectors = b.split_heads(x, n)?;
    let change = b.op("predicted", MatMul::default(), &[by, vectors])?;
    let change = b.joined_heads(change)?;
    let predicted = b.sum("predicted", x, change)?;
    let active = b.columns(predicted, 0, n)?;

    let h = b.layer_norm(active, layer, "attn_norm", BLOCKS.norm)?;
    let place = Place::near_or_far(b.config(), layer, tables);
    let attended = b.attended_heads(h, layer, &BLOCKS, place)?;
    let attended = b.layer_norm(attended, layer, "post_attention_norm", BLOCKS.norm)?;
    let [h, active, predicted] =
        [b.wanted(layer, h)?, b.wanted(layer, active)?, b.wanted(layer, predicted)?];
    let beside = thin(b, h, layer)?;
    let sum = b.add_scaled(active, attended, 1.0)?;
    let sum = b.add_scaled(sum, beside, 1.0)?;
    let sum = b.scaled(sum, core::f32::consts::FRAC_1_SQRT_2)?;

    let h = b.layer_norm(sum, layer, "ffn_norm", BLOCKS.norm)?;
    let h = feed_forward(b, h, layer)?;
    let h = b.layer_norm(h, layer, "post_ffw_norm", BLOCKS.norm)?;
    let computed = b.add_scaled(sum, h, 1.0)?;

    let news = b.op("corrected", Binary::new(BinaryOp::Sub), &[computed, active])?;
    let modes = self::modes(b, computed, layer)?;
    let by = b.linear(modes, &name("altup_correct_coef"), streams)?;
    let one = b.constant("", Tensor::from_slice(&[1], &[1f32])?)?;
    let by = b.sum("corrected", by, one)?;
    let by = b.split_heads(by, 1)?;
    let corrected = added_by(b, predicted, by, news)?;

    let first = b.columns(corrected, 0, n)?;
    let scale = b.vector(&name("altup_correct_scale.weight"), &[n])?;
    let first = b.product("corrected", first, scale)?;
    let h = b.layer_input(first, layer, inputs)?;
    let mut others = vec![1f32; streams];
    others[0] = 0.0;
    let others = b.constant("", Tensor::from_slice(&[1, streams, 1], &others)?)?;
    added_by(b, corrected, others, h)
}

/// To each stream a vector, as many times as the stream has in `by`, `[tokens or 1, streams, 1]`.
fn added_by(
    b: &mut Builder<'_>,
    x: TensorId,
    by: TensorId,
    vector: TensorId,
) -> Result<TensorId, Error> {
    let vector = b.split_heads(vector, b.config().embedding)?;
    let each = b.product("streams", by, vector)?;
    let each = b.joined_heads(each)?;
    b.sum("streams", x, each)
}

/// What coefficients of predictions and corrections depend on.
fn modes(b: &mut Builder<'_>, x: TensorId, layer: usize) -> Result<TensorId, Error> {
    let Config { embedding: n, streams, .. } = *b.config();
    let x = b.layer_norm(x, layer, "altup_router_norm", NormOp::Rms)?;
    let x = b.scaled(x, 1.0 / n as f32)?;
    let x = b.linear(x, &format!("blk.{layer}.altup_router"), streams)?;
    b.unary("modes", UnaryOp::Tanh, x)
}

/// The product with two thin matrices (learned augmented residual layers: Menghani et al. 2024).
fn thin(b: &mut Builder<'_>, h: TensorId, layer: usize) -> Result<TensorId, Error> {
    let name = format!("blk.{layer}.laurel_l");
    let rank = b.weights().any(&format!("{name}.weight"));
    let rank = rank.and_then(|matrix| matrix.dims().first().copied()).unwrap_or(0);
    let y = b.linear(h, &name, rank)?;
    let y = b.layer_linear(y, layer, "laurel_r")?;
    let y = b.layer_norm(y, layer, "laurel_post_norm", NormOp::Rms)?;
    b.add_scaled(h, y, 1.0)
}

/// The feed-forward network, whose gate is of what is above the mean by some standard deviations, where the layer
/// says so.
fn feed_forward(b: &mut Builder<'_>, h: TensorId, layer: usize) -> Result<TensorId, Error> {
    let Some(&above) = b.config().sparsity.get(layer).filter(|above| above.is_finite()) else {
        return b.gated(h, layer, BLOCKS.gate);
    };
    let n = b.config().feed_forward[layer];
    let [gate, up] = b.gate_and_up(h, layer, "", n)?;
    let by_row = |op| Reduce { op, axis: 1, count: 1 };
    let less = || Binary::new(BinaryOp::Sub);
    let mean = b.op("mean", by_row(ReduceOp::Mean), &[gate])?;
    let mean = b.as_rows(mean, 1)?;
    let gate = b.op("centred", less(), &[gate, mean])?;
    let spread = b.op("spread", by_row(ReduceOp::L2), &[gate])?;
    let spread = b.as_rows(spread, 1)?;
    // Of a sample, whose mean is known from itself.
    let least = b.scaled(spread, above / (n.max(2) as f32 - 1.0).sqrt())?;
    let gate = b.op("sparse", less(), &[gate, least])?;
    let gate = b.unary("sparse", UnaryOp::Relu, gate)?;
    let h = b.op(&format!("blk.{layer}.glu"), Glu { op: GluOp::GeluTanh }, &[gate, up])?;
    b.layer_linear(h, layer, "ffn_down")
}
