//! Running sums and products along an axis.

use super::cast::Number;
use super::elements::{around, expect_dtype};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::DType;

/// Each element becomes the sum (or product) of those up to it along an axis, as ONNX `CumSum` and
/// `CumProd`. Integers wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulate {
    /// The axis, from the slowest.
    pub axis: usize,
    /// Products instead of sums.
    pub product: bool,
    /// Leaves out the element itself.
    pub exclusive: bool,
    /// From the end of the axis to its start.
    pub reverse: bool,
}

const OP: &str = "accumulate";

impl Operator for Accumulate {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d != DType::Bool)?;
        if self.axis >= x.dims.len() {
            return Err(GraphError::mismatch(OP, "the axis must exist", &[("x", &x.dims)]));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (outer, extent, inner) = around(src[0].dims, self.axis);
        with_element!(src[0].dtype, OP, T => {
            let (x, y) = (src[0].slice::<T>(OP)?, dst.slice::<T>(OP)?);
            for lane in 0..outer * inner {
                let first = lane / inner * extent * inner + lane % inner;
                // Floats are kept in f64 and rounded once per element.
                let (mut float, mut int) = if self.product { (1.0, 1) } else { (0.0, 0i64) };
                for step in 0..extent {
                    let step = if self.reverse { extent - 1 - step } else { step };
                    let at = first + step * inner;
                    let before = if T::FLOAT { T::from_float(float) } else { T::from_int(int) };
                    if self.product {
                        float *= x[at].to_float();
                        // Low bits are all that counts.
                        int = int.wrapping_mul(x[at].to_int());
                    } else {
                        float += x[at].to_float();
                        int = int.wrapping_add(x[at].to_int());
                    }
                    let with = if T::FLOAT { T::from_float(float) } else { T::from_int(int) };
                    y[at] = if self.exclusive { before } else { with };
                }
            }
            Ok(())
        })
    }
}
