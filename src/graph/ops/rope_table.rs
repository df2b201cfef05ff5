//! Angles of rotary position embeddings.

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Cosine and sine of the angles of every pair at given positions, computed once for all heads and
/// layers that turn by the same angles.
///
/// Operands: positions `[m]` of `i32`, angles per position `[p]` of f64, one per pair. Result:
/// `[m, 2 * p]` of f32; a row has the cosines of all pairs, then the sines. Angles are computed in
/// double precision, so that far positions lose nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeTable {
    /// Factor of cosines and sines: YaRN's and LongRoPE's attention factor; finite.
    pub magnitude: f32,
    /// What that grows by at far positions, in a table for queries.
    pub growth: Option<Growth>,
}

/// Queries that grow with their position, so that attention to many positions stays sharp: they are multiplied by
/// `1 + scale * ln(1 + floor(position / every))` (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// How much; finite.
    pub scale: f32,
    /// Positions of the training; at least 1.
    pub every: usize,
}

impl Growth {
    fn at(self, position: i32) -> f64 {
        let whole = i64::from(position.max(0)) as u64 / self.every as u64;
        1.0 + f64::from(self.scale) * (whole as f64).ln_1p()
    }
}

const OP: &str = "rope_table";

impl Operator for RopeTable {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "positions and angles")?;
        for (info, dtype) in src.iter().zip([DType::I32, DType::F64]) {
            if info.dtype != dtype {
                return Err(GraphError::UnsupportedDType { op: OP, dtype: info.dtype });
            }
        }
        if self.growth.is_some_and(|g| !g.scale.is_finite() || g.every == 0) {
            let (attribute, reason) =
                ("growth", "its scale must be finite, and positions be there");
            return Err(GraphError::InvalidAttribute { op: OP, attribute, reason: reason.into() });
        }
        if !self.magnitude.is_finite() {
            let (attribute, reason) = ("magnitude", "must be finite".to_owned());
            return Err(GraphError::InvalidAttribute { op: OP, attribute, reason });
        }
        let (&[m], &[pairs]) = (&src[0].dims[..], &src[1].dims[..]) else {
            let shapes = [("positions", &src[0].dims[..]), ("angles", &src[1].dims)];
            return Err(GraphError::mismatch(OP, "operands must be lists", &shapes));
        };
        Ok(Info::plain(DType::F32, vec![m, 2 * pairs]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (positions, angles) = (src[0].slice::<i32>(OP)?, src[1].slice::<f64>(OP)?);
        let rows = dst.slice::<f32>(OP)?.chunks_exact_mut((2 * angles.len()).max(1));
        for (&position, row) in positions.iter().zip(rows) {
            let growth = self.growth.map_or(1.0, |growth| growth.at(position));
            let magnitude = f64::from(self.magnitude) * growth;
            let (cos, sin) = row.split_at_mut(angles.len());
            for ((cos, sin), angle) in cos.iter_mut().zip(sin).zip(angles) {
                let (s, c) = (f64::from(position) * angle).sin_cos();
                (*cos, *sin) = ((c * magnitude) as f32, (s * magnitude) as f32);
            }
        }
        Ok(())
    }
}
