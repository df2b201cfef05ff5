//! BitNet b1.58 (Ma et al. 2024): as Llama, with norms before the last matrices of attention and of the feed-forward
//! network, whose gate may square what is positive, and matrices of -1, 0 and 1 with a scale in a tensor of its own.

use super::decoder::SQUARED;
use super::{Arch, Builder, Decoder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::{Glu, GluOp};
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::LlmError;

pub(super) const BITNET: Arch = Arch { name: "bitnet", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let squared = match b.config().activation.as_deref() {
        None | Some("silu") => false,
        Some("relu2") => true,
        Some(other) => {
            let (key, found) = ("bitnet.hidden_activation".to_owned(), other.to_owned());
            let expected = "silu or relu2".to_owned();
            return Err(LlmError::Setting { key, found, expected }.into());
        }
    };
    let blocks = Decoder { rope: RopeStyle::Half, sub_norms: Some(squared), ..Decoder::LLAMA };
    b.usual(&blocks)
}

impl Builder<'_> {
    /// The feed-forward network of such a layer.
    pub(super) fn normed_network(
        &mut self,
        x: TensorId,
        layer: usize,
        squared: bool,
    ) -> Result<TensorId, Error> {
        let [gate, up] = self.gate_and_up(x, layer, "", self.config().feed_forward[layer])?;
        let h = if squared {
            let gate = self.activated(gate, SQUARED)?;
            self.product("opened", gate, up)?
        } else {
            self.op("glu", Glu { op: GluOp::Silu }, &[gate, up])?
        };
        let h = self.layer_norm(h, layer, "ffn_sub_norm", NormOp::Rms)?;
        self.layer_linear(h, layer, "ffn_down")
    }
}
