//! Feed-forward networks of which each token goes through some (mixtures of experts, Shazeer et al. 2017).

use super::Builder;
use super::decoder::SQUARED;
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::binary::Binary;
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::expert_order::ExpertOrder;
use crate::graph::ops::experts::Experts;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::gather_elements::GatherElements;
use crate::graph::ops::glu::{Glu, GluOp};
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::reduce::Reduce;
use crate::graph::ops::select::Select;
use crate::graph::ops::softmax::Softmax;
use crate::graph::ops::topk::TopK;
use crate::graph::ops::unary::UnaryOp;
use crate::llm::{Config, ExpertConfig, LlmError};
use crate::tensor::Tensor;
use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::reduce::ReduceOp;

/// What becomes of the weights with which experts are added up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shares {
    /// Those of the chosen ones are divided by their sum.
    Whole,
    /// They stay what they were among all.
    AsTheyAre,
}

impl Shares {
    /// What the file says.
    pub(super) fn of_file(experts: ExpertConfig) -> Self {
        if experts.normalised { Self::Whole } else { Self::AsTheyAre }
    }
}

/// What both halves of the clamped unit are clamped to.
const LIMIT: f32 = 7.0;

/// The least that shares are divided by.
const LEAST: f32 = 6.103_515_6e-5;

impl Builder<'_> {
    /// The networks of a layer that its router, which reads `routed`, chooses for each token, and the one that all go
    /// through, if there is one.
    pub(super) fn mixture(
        &mut self,
        [x, routed]: [TensorId; 2],
        layer: usize,
        op: GluOp,
        shares: Shares,
    ) -> Result<TensorId, Error> {
        let experts = self.experts()?;
        let logits = self.linear(routed, &format!("blk.{layer}.ffn_gate_inp"), experts.count)?;
        let y = self.chosen_by(logits, x, layer, op, shares)?;
        if !self.has(layer, "ffn_up_shexp.weight") {
            return Ok(y);
        }
        let shared = match experts.squared {
            true => self.plain_by(x, layer, "_shexp", experts.shared, SQUARED)?,
            false => self.gated_by(x, layer, "_shexp", experts.shared, op)?,
        };
        let shared = match self.has(layer, "ffn_gate_inp_shexp.weight") {
            true => self.let_through(x, layer, shared)?,
            false => shared,
        };
        self.add_scaled(y, shared, 1.0)
    }

    /// The network of a layer and those that its router chooses beside it, each with norms of its own (Gemma 4). `x` has
    /// not been normalised, `h` has.
    pub(super) fn beside(
        &mut self,
        x: TensorId,
        h: TensorId,
        layer: usize,
        op: GluOp,
        shares: Shares,
    ) -> Result<TensorId, Error> {
        let own = self.gated(h, layer, op)?;
        let own = self.layer_norm(own, layer, "post_ffw_norm_1", NormOp::Rms)?;
        let epsilon = self.config().epsilon;
        let norm = Norm { op: NormOp::Rms, axis: 1, epsilon, by_parts: false };
        let width = self.config().embedding;
        let routed = self.op("router", norm, &[x])?;
        let routed = self.scaled(routed, 1.0 / (width as f32).sqrt())?;
        let name = format!("blk.{layer}.ffn_gate_inp");
        let scale = self.vector(&format!("{name}.scale"), &[width])?;
        let routed = self.product("router", routed, scale)?;
        let logits = self.linear(routed, &name, self.experts()?.count)?;
        let inside = self.layer_norm(x, layer, "pre_ffw_norm_2", NormOp::Rms)?;
        let y = self.chosen_by(logits, inside, layer, op, shares)?;
        let y = self.layer_norm(y, layer, "post_ffw_norm_2", NormOp::Rms)?;
        self.add_scaled(own, y, 1.0)
    }

    fn experts(&self) -> Result<ExpertConfig, Error> {
        let Config { arch, experts, .. } = self.config();
        let missing = || LlmError::MissingKey(format!("{arch}.expert_count")).into();
        experts.ok_or_else(missing)
    }

    /// The networks that logits of a router choose.
    fn chosen_by(
        &mut self,
        logits: TensorId,
        x: TensorId,
        layer: usize,
        op: GluOp,
        shares: Shares,
    ) -> Result<TensorId, Error> {
        let experts = self.experts()?;
        let (chosen, by) = self.routed(logits, layer, &experts, shares)?;
        self.chosen(x, layer, op, &experts, chosen, by)
    }

    /// As much of what all tokens go through as a number of each token says.
    fn let_through(&mut self, x: TensorId, layer: usize, y: TensorId) -> Result<TensorId, Error> {
        let name = format!("blk.{layer}.ffn_gate_inp_shexp");
        let gate = self.column(x, &name)?;
        let gate = self.unary("open", UnaryOp::Sigmoid, gate)?;
        self.product("gate", y, gate)
    }

    /// The experts of each token, `[tokens, used]`, and their shares, of the same shape.
    fn routed(
        &mut self,
        logits: TensorId,
        layer: usize,
        experts: &ExpertConfig,
        shares: Shares,
    ) -> Result<(TensorId, TensorId), Error> {
        let all = match experts.sigmoid {
            true => self.unary("router", UnaryOp::Sigmoid, logits)?,
            false => {
                let softmax = Softmax { axis: 1, log: false, guarded: false };
                self.op("router", softmax, &[logits])?
            }
        };
        let mut seen = all;
        if self.has(layer, "exp_probs_b.bias") {
            let bias = self.vector(&format!("blk.{layer}.exp_probs_b.bias"), &[experts.count])?;
            seen = self.sum("router", all, bias)?;
        }
        if experts.groups > 1 {
            seen = self.of_groups(seen, experts)?;
        }
        let best = TopK { axis: 1, k: experts.used, largest: true, positions: true };
        let chosen = self.op("router", best, &[seen])?;
        let mut by = self.op("router", GatherElements { axis: 1 }, &[all, chosen])?;
        if shares == Shares::Whole {
            let sum = Reduce { op: ReduceOp::Sum, axis: 1, count: 1 };
            let sum = self.op("router", sum, &[by])?;
            let least = self.constant("", Tensor::from_slice(&[1], &[LEAST])?)?;
            let sum = self.op("router", Binary::new(BinaryOp::Max), &[sum, least])?;
            let sum = self.as_rows(sum, 1)?;
            by = self.op("router", Binary::new(BinaryOp::Div), &[by, sum])?;
        }
        if self.has(layer, "ffn_down_exps.scale") {
            let name = format!("blk.{layer}.ffn_down_exps.scale");
            let scale = self.vector(&name, &[experts.count])?;
            let scale = self.op("router", Gather { axis: 0 }, &[scale, chosen])?;
            by = self.product("router", by, scale)?;
        }
        Ok((chosen, self.scaled(by, experts.scale)?))
    }

    /// What experts are chosen by, but nothing of those of other groups than have the largest sums of two (DeepSeek-AI
    /// 2024, "DeepSeek-V3", section 2.1.2).
    fn of_groups(
        &mut self,
        seen: TensorId,
        &ExpertConfig { groups, groups_used, .. }: &ExpertConfig,
    ) -> Result<TensorId, Error> {
        let by = |op, axis| Reduce { op, axis, count: 1 };
        let best = |axis, k| TopK { axis, k, largest: true, positions: false };
        let each = self.width(seen) / groups;
        let seen = self.split_heads(seen, each)?;
        let two = self.op("groups", best(2, 2), &[seen])?;
        let sums = self.op("groups", by(ReduceOp::Sum, 2), &[two])?;
        let most = self.op("groups", best(1, groups_used), &[sums])?;
        let least = self.op("groups", by(ReduceOp::Min, 1), &[most])?;
        let least = self.as_rows(least, 1)?;
        let chosen = Compare { op: CompareOp::GreaterOrEqual };
        let chosen = self.op("groups", chosen, &[sums, least])?;
        let chosen = self.split_heads(chosen, 1)?;
        let nothing = self.constant("", Tensor::from_slice(&[1], &[f32::NEG_INFINITY])?)?;
        let seen = self.op("groups", Select, &[chosen, seen, nothing])?;
        self.joined_heads(seen)
    }

    /// A product with the matrices of experts, plus their biases, if they have any; of rows of tokens, or of such as are
    /// in the order of experts.
    pub(super) fn of_experts(
        &mut self,
        [x, chosen]: [TensorId; 2],
        ordered: bool,
        name: &str,
        dims: [usize; 3],
    ) -> Result<TensorId, Error> {
        let matrices = self.vector(&format!("{name}.weight"), &dims)?;
        let mut src = vec![x, matrices, chosen];
        let bias = format!("{name}.bias");
        if self.weights().has(&bias) {
            src.push(self.vector(&bias, &dims[..2])?);
        }
        self.op(name, Experts { ordered }, &src)
    }

    /// `min(gate, 7) * sigmoid(1.702 min(gate, 7)) * (clip(up, -7, 7) + 1)`: the unit of GPT-OSS (its `model.py`).
    fn clamped(&mut self, gate: TensorId, up: TensorId) -> Result<TensorId, Error> {
        let gate = self.unary("gate", UnaryOp::Clip { min: f32::MIN, max: LIMIT }, gate)?;
        let gate = self.unary("gate", UnaryOp::Silu { alpha: 1.702 }, gate)?;
        let up = self.unary("up", UnaryOp::Clip { min: -LIMIT, max: LIMIT }, up)?;
        let one = self.constant("", Tensor::from_slice(&[1], &[1.0f32])?)?;
        let up = self.sum("up", up, one)?;
        self.product("glu", gate, up)
    }

    /// The results of experts that were chosen for tokens, added up by their shares.
    fn chosen(
        &mut self,
        x: TensorId,
        layer: usize,
        op: GluOp,
        experts: &ExpertConfig,
        chosen: TensorId,
        by: TensorId,
    ) -> Result<TensorId, Error> {
        let (n, width) = (experts.feed_forward, self.config().embedding);
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps");
        let (gate, up) = if self.has(layer, "ffn_gate_up_exps.weight") {
            let dims = [experts.count, n.saturating_mul(2), width];
            let both = self.of_experts([x, chosen], false, &name("gate_up"), dims)?;
            (Some(self.columns(both, 0, n)?), self.columns(both, n, n)?)
        } else {
            let dims = [experts.count, n, width];
            let gate = match experts.squared {
                true => None,
                false => Some(self.of_experts([x, chosen], false, &name("gate"), dims)?),
            };
            (gate, self.of_experts([x, chosen], false, &name("up"), dims)?)
        };
        let h = match gate {
            Some(gate) if experts.clamped => self.clamped(gate, up)?,
            Some(gate) if experts.rectified => {
                let gate = self.unary("gate", UnaryOp::Relu, gate)?;
                self.product("glu", gate, up)?
            }
            Some(gate) => self.op(&format!("blk.{layer}.glu"), Glu { op }, &[gate, up])?,
            None => self.activated(up, SQUARED)?,
        };
        let y = self.of_experts([h, chosen], true, &name("down"), [experts.count, width, n])?;
        // From the order of experts to that of tokens.
        let order = self.op("experts", ExpertOrder { experts: experts.count }, &[chosen])?;
        let y = self.op("experts", Gather { axis: 0 }, &[y, order])?;
        let by = self.as_rows(by, 1)?;
        let y = self.product("experts", y, by)?;
        let y = self.split_rows(y, experts.used)?;
        self.op("experts", Reduce { op: ReduceOp::Sum, axis: 1, count: 1 }, &[y])
    }
}
