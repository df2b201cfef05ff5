//! Attention by a state that each token updates.

use super::elements::{checked_count, expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// A matrix per head and batch that remembers values by keys, as ONNX `LinearAttention`.
///
/// Operands: queries `[b, t, heads * dk]`, keys `[b, t, kv_heads * dk]`, values
/// `[b, t, kv_heads * dv]`, then as flagged a state `[b, kv_heads, dk, dv]`, the logarithm of a
/// decay `[b, t, kv_heads]` or `[b, t, kv_heads * dk]`, and a rate `[b, t, kv_heads]` or
/// `[b, t, 1]`. The result is flat: the outputs `[b, t, heads * dv]`, then the last state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearAttention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Scale of the outputs.
    pub scale: f32,
    /// Whether there is a state to begin with.
    pub state: bool,
    /// Whether the state decays.
    pub decay: bool,
    /// Whether a value is what differs from the one that is remembered, times a rate.
    pub delta: bool,
}

const OP: &str = "linear_attention";

/// Extents of one call.
struct Sizes {
    batch: usize,
    tokens: usize,
    dk: usize,
    dv: usize,
}

impl LinearAttention {
    fn sizes(&self, src: &[&[usize]]) -> Option<Sizes> {
        let (&[b, t, q], &[kb, kt, k], &[vb, vt, v]) = (src[0], src[1], src[2]) else {
            return None;
        };
        let (h, kv) = (self.heads, self.kv_heads);
        let divides = h > 0 && kv > 0 && h % kv == 0 && q % h == 0 && k % kv == 0 && v % kv == 0;
        if !divides || (kb, kt, vb, vt) != (b, t, b, t) || q / h != k / kv {
            return None;
        }
        let (dk, dv) = (q / h, v / kv);
        let mut rest = src[3..].iter();
        let fits = (!self.state || *rest.next()? == [b, kv, dk, dv])
            && (!self.decay || {
                let d = *rest.next()?;
                d == [b, t, kv] || d == [b, t, kv * dk]
            })
            && (!self.delta || {
                let d = *rest.next()?;
                d == [b, t, kv] || d == [b, t, 1]
            });
        fits.then_some(Sizes { batch: b, tokens: t, dk, dv })
    }
}

impl Operator for LinearAttention {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        let count = 3 + [self.state, self.decay, self.delta].iter().filter(|f| **f).count();
        expect_operands(OP, src, count..=count, "as flagged")?;
        src.iter().try_for_each(|s| expect_dtype(OP, s, |d| d.is_float()))?;
        let dims: Vec<&[usize]> = src.iter().map(|s| &s.dims[..]).collect();
        let Some(s) = self.sizes(&dims) else {
            let rule = "operands must fit the heads";
            let shapes = [("queries", dims[0]), ("keys", dims[1]), ("values", dims[2])];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        };
        let outputs = checked_count(OP, &[s.batch, s.tokens, self.heads, s.dv])?;
        let state = checked_count(OP, &[s.batch, self.kv_heads, s.dk, s.dv])?;
        let total = outputs.saturating_add(state);
        Ok(Info::plain(src[0].dtype, vec![total]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let dims: Vec<&[usize]> = src.iter().map(|s| s.dims).collect();
        let Some(Sizes { batch, tokens, dk, dv }) = self.sizes(&dims) else { return Ok(()) };
        let (q, k, v) = (floats(&src[0], OP)?, floats(&src[1], OP)?, floats(&src[2], OP)?);
        let mut rest = src[3..].iter().peekable();
        let mut next = |flag: bool| rest.next_if(|_| flag).map(|x| floats(x, OP)).transpose();
        let (first, decay, rate) = (next(self.state)?, next(self.decay)?, next(self.delta)?);
        let (h, kv) = (self.heads, self.kv_heads);
        let mut out = vec![0.0; batch * tokens * h * dv];
        let mut states = first.unwrap_or_else(|| vec![0.0; batch * kv * dk * dv]);
        for (lane, state) in states.chunks_exact_mut((dk * dv).max(1)).enumerate() {
            let (b, head) = (lane / kv, lane % kv);
            for t in b * tokens..(b + 1) * tokens {
                let key = &k[(t * kv + head) * dk..][..dk];
                if let Some(decay) = &decay {
                    let width = decay.len() / (batch * tokens) / kv;
                    let of = &decay[(t * kv + head) * width..][..width];
                    for (d, row) in state.chunks_exact_mut(dv).enumerate() {
                        let factor = libm::exp(of[d.min(width - 1)]);
                        row.iter_mut().for_each(|s| *s *= factor);
                    }
                }
                let mut value = v[(t * kv + head) * dv..][..dv].to_vec();
                if let Some(rate) = &rate {
                    let width = rate.len() / (batch * tokens);
                    let rate = rate[t * width + head.min(width - 1)];
                    for (m, value) in value.iter_mut().enumerate() {
                        let known: f64 = (0..dk).map(|d| state[d * dv + m] * key[d]).sum();
                        *value = rate * (*value - known);
                    }
                }
                for (row, key) in state.chunks_exact_mut(dv).zip(key) {
                    row.iter_mut().zip(&value).for_each(|(s, v)| *s += key * v);
                }
                for reader in head * (h / kv)..(head + 1) * (h / kv) {
                    let query = &q[(t * h + reader) * dk..][..dk];
                    for m in 0..dv {
                        let sum: f64 = (0..dk).map(|d| query[d] * state[d * dv + m]).sum();
                        out[(t * h + reader) * dv + m] = f64::from(self.scale) * sum;
                    }
                }
            }
        }
        write_floats(dst, OP, out.into_iter().chain(states))
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        let dv = src[2].dims.last().map_or(0, |&v| v / self.kv_heads.max(1)) as u64;
        (src[0].elements() as u64).saturating_mul(dv).saturating_mul(4)
    }
}
