//! Tests for numbers that are none, or infinite.

use super::elements::{expect_dtype, floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Whether each float is one of the chosen special values; the result is `bool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// NaN.
    pub nan: bool,
    /// Positive infinity.
    pub positive: bool,
    /// Negative infinity.
    pub negative: bool,
}

const OP: &str = "special";

impl Operator for Special {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        expect_dtype(OP, &src[0], DType::is_float)?;
        Ok(Info::plain(DType::Bool, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        for (y, x) in dst.bytes.iter_mut().zip(floats(&src[0], OP)?) {
            let found = (self.nan && x.is_nan())
                || (self.positive && x == f64::INFINITY)
                || (self.negative && x == f64::NEG_INFINITY);
            *y = u8::from(found);
        }
        Ok(())
    }
}
