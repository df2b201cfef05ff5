//! Rotary positions: the angles of a graph's tokens, and heads that turn by them.

use super::Builder;
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::{Rope, RopeStyle};
use crate::graph::ops::rope_table::{Growth, RopeTable};
use crate::llm::config::{Config, Scaling};
use crate::tensor::Tensor;

impl Builder<'_> {
    /// The angles of the positions as the metadata and `rope_freqs` say.
    pub(super) fn rope_table(&mut self) -> Result<TensorId, Error> {
        self.grown_table(None)
    }

    /// As [`Builder::rope_table`], for queries that grow.
    pub(super) fn grown_table(&mut self, growth: Option<Growth>) -> Result<TensorId, Error> {
        let factors = self.factors("rope_freqs.weight")?;
        self.factored_table(factors.as_deref(), growth)
    }

    /// The angles of the positions as the metadata say; `factors` divide those of each pair.
    pub(super) fn factored_table(
        &mut self,
        factors: Option<&[f32]>,
        growth: Option<Growth>,
    ) -> Result<TensorId, Error> {
        let rope = &self.config().rope;
        let angles = Config::angles(rope.rotated, rope.base, &rope.scaling, factors);
        self.table(&angles, &rope.scaling, growth)
    }

    /// The angles of layers with a window, where the context of the training was not extended.
    pub(super) fn near_table(&mut self) -> Result<TensorId, Error> {
        let (rope, scaling) = (&self.config().rope, Scaling::Linear(1.0));
        let base = rope.base_window.unwrap_or(rope.base);
        let angles = Config::angles(rope.rotated_window, base, &scaling, None);
        self.table(&angles, &scaling, None)
    }

    fn table(
        &mut self,
        angles: &[f64],
        scaling: &Scaling,
        growth: Option<Growth>,
    ) -> Result<TensorId, Error> {
        let angles = self.constant("", Tensor::from_slice(&[angles.len()], angles)?)?;
        let positions = self.positions();
        let magnitude = self.config().magnitude(scaling);
        self.op("rope_table", RopeTable { magnitude, growth }, &[positions, angles])
    }

    /// Factors of the angles that a tensor holds, if it is there.
    pub(super) fn factors(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        if !self.weights().has(name) {
            return Ok(None);
        }
        let factors = self.weights().get(name, &[self.config().rope.rotated / 2])?;
        Ok(Some(factors.as_slice::<f32>()?.to_vec()))
    }

    /// Turns heads of `size` elements by the angles of a table.
    pub(super) fn rope(
        &mut self,
        x: TensorId,
        table: TensorId,
        style: RopeStyle,
        size: usize,
    ) -> Result<TensorId, Error> {
        self.op("rope", Rope { style, size }, &[x, table])
    }
}
