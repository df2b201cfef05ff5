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
        let magnitude = f64::from(self.magnitude);
        for (&position, row) in positions.iter().zip(rows) {
            let (cos, sin) = row.split_at_mut(angles.len());
            for ((cos, sin), angle) in cos.iter_mut().zip(sin).zip(angles) {
                let (s, c) = (f64::from(position) * angle).sin_cos();
                (*cos, *sin) = ((c * magnitude) as f32, (s * magnitude) as f32);
            }
        }
        Ok(())
    }
}
