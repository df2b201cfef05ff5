//! Attention whose keys and values come from one short vector per token: multi-head latent attention (DeepSeek-AI 2024,
//! "DeepSeek-V2", section 2.1).

use super::{Builder, Decoder, Place};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::concat::Concat;
use crate::llm::LatentConfig;
use crate::tensor::Tensor;

impl Builder<'_> {
    /// What heads make of the vectors of the tokens so far, of the tokens that are wanted.
    ///
    /// Where the file has matrices of each head for that, the vectors themselves are what is kept: queries are brought
    /// to their length, all heads attend to them, and values are made of what comes out. Otherwise keys and values of
    /// each head are kept.
    pub(super) fn latent(
        &mut self,
        h: TensorId,
        layer: usize,
        blocks: &Decoder,
        place: Place,
        latent: LatentConfig,
    ) -> Result<TensorId, Error> {
        let LatentConfig { rank, key_size, value_size, .. } = latent;
        let (heads, turns) = (self.config().heads, self.config().rope.rotated);
        let still = key_size - turns;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let turned = |b: &mut Self, x| match place.table {
            Some(table) => b.rope(x, table, blocks.rope, turns),
            None => Ok(x),
        };
        let q = self.latent_queries(h, layer, blocks, latent)?;
        let [q, q_turned] = self.parts_of_heads(q, [still, turns])?;
        let q_turned = turned(self, q_turned)?;
        let both = self.linear(h, &name("attn_kv_a_mqa"), rank.saturating_add(turns))?;
        let (kept, k_turned) = (self.columns(both, 0, rank)?, self.columns(both, rank, turns)?);
        let k_turned = turned(self, k_turned)?;
        let kept = self.layer_norm(kept, layer, "attn_kv_a_norm", blocks.norm)?;
        let a = if self.has(layer, "attn_k_b.weight") {
            let q = self.by_heads(q, &name("attn_k_b"), [heads, rank, still])?;
            let q = self.joined_parts([q, q_turned], [rank, turns])?;
            let k = self.op(&name("keys"), Concat { axis: 1 }, &[kept, k_turned])?;
            let a = self.attention(layer, q, Some([k, kept]), place.window)?;
            self.by_heads(a, &name("attn_v_b"), [heads, value_size, rank])?
        } else {
            let n = heads.saturating_mul(still.saturating_add(value_size));
            let both = self.linear(kept, &name("attn_kv_b"), n)?;
            let [k, v] = self.parts_of_heads(both, [still, value_size])?;
            // The part that turns is the same for all heads.
            let zeros = Tensor::from_slice(&[heads, turns], &vec![0f32; heads * turns])?;
            let zeros = self.constant("", zeros)?;
            let k_turned = self.split_heads(k_turned, turns)?;
            let k_turned = self.sum(&name("keys"), k_turned, zeros)?;
            let k_turned = self.joined_heads(k_turned)?;
            let k = self.joined_parts([k, k_turned], [still, turns])?;
            let q = self.joined_parts([q, q_turned], [still, turns])?;
            self.attention(layer, q, Some([k, v]), place.window)?
        };
        self.layer_linear(a, layer, "attn_output")
    }

    /// Queries, which may come from a short vector, too.
    fn latent_queries(
        &mut self,
        h: TensorId,
        layer: usize,
        blocks: &Decoder,
        LatentConfig { query_rank, key_size, .. }: LatentConfig,
    ) -> Result<TensorId, Error> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let n = self.config().heads.saturating_mul(key_size);
        if query_rank == 0 || self.has(layer, "attn_q.weight") {
            return self.linear(h, &name("attn_q"), n);
        }
        let q = self.linear(h, &name("attn_q_a"), query_rank)?;
        let q = self.layer_norm(q, layer, "attn_q_a_norm", blocks.norm)?;
        self.linear(q, &name("attn_q_b"), n)
    }

    /// A product of each head with a matrix of its own, `[heads, n, k]`.
    fn by_heads(
        &mut self,
        x: TensorId,
        name: &str,
        dims @ [heads, n, k]: [usize; 3],
    ) -> Result<TensorId, Error> {
        let rows = self.as_rows(x, k)?;
        let count = self.rows(rows);
        let chosen: Vec<i64> = (0..count).map(|row| (row % heads) as i64).collect();
        let chosen = self.constant("", Tensor::from_slice(&[count, 1], &chosen)?)?;
        // Head after head, of each all tokens.
        let y = self.of_experts([rows, chosen], false, name, dims)?;
        self.by_tokens(y, [heads, count / heads, n])
    }

    /// Heads of two tensors, one behind the other.
    fn joined_parts(&mut self, parts: [TensorId; 2], sizes: [usize; 2]) -> Result<TensorId, Error> {
        let [a, b] = parts;
        let (a, b) = (self.split_heads(a, sizes[0])?, self.split_heads(b, sizes[1])?);
        let both = self.op("heads", Concat { axis: 2 }, &[a, b])?;
        self.joined_heads(both)
    }
}
