//! Element-wise functions of the bits or remainders of two operands.

use super::binary::{pairs, zip};
use super::elements::{expect_dtype, floats, is_integer, low_bits, write_floats, write_low_bits};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::{DType, broadcast};

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum BitsOp {
    And,
    Or,
    Xor,
    /// `a << b`; 0 if `b` is negative or not below the width.
    ShiftLeft,
    /// `a >> b`, arithmetic for signed types; all sign bits if `b` is negative or not below the
    /// width.
    ShiftRight,
    /// What is left of `a / b` rounded down: has the sign of `b`. Also of floats.
    Modulo,
    /// What is left of `a / b` rounded to zero: has the sign of `a`. Also of floats.
    Remainder,
}

/// Combines elements of one integer type, broadcasting as ONNX does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// How.
    pub op: BitsOp,
}

impl Bits {
    fn is_division(self) -> bool {
        matches!(self.op, BitsOp::Modulo | BitsOp::Remainder)
    }

    /// What is left of a division of floats by `b`, given what C leaves.
    fn of_floats(self, rest: f64, b: f64) -> f64 {
        let other_side = rest != 0.0 && (rest < 0.0) != (b < 0.0);
        match self.op {
            // The rest of nothing has the divisor's sign, too.
            BitsOp::Modulo if rest == 0.0 => 0f64.copysign(b),
            BitsOp::Modulo if other_side => rest + b,
            _ => rest,
        }
    }
}

/// The function on one integer type; `None` for a division by zero.
macro_rules! on {
    ($t:ty, $op:expr) => {
        |a: $t, b: $t| -> Option<$t> {
            let shift = u32::try_from(b).ok().filter(|&b| b < <$t>::BITS);
            #[allow(unused_comparisons, reason = "unsigned types are never negative")]
            Some(match $op {
                BitsOp::And => a & b,
                BitsOp::Or => a | b,
                BitsOp::Xor => a ^ b,
                BitsOp::ShiftLeft => shift.map_or(0, |s| a << s),
                BitsOp::ShiftRight => {
                    a >> shift.unwrap_or(<$t>::BITS - 1)
                        >> match shift {
                            Some(_) => 0,
                            None => 1,
                        }
                }
                _ if b == 0 => return None,
                BitsOp::Remainder => a.wrapping_rem(b),
                BitsOp::Modulo => {
                    let rest = a.wrapping_rem(b);
                    if rest != 0 && (rest < 0) != (b < 0) { rest.wrapping_add(b) } else { rest }
                }
            })
        }
    };
}

impl Operator for Bits {
    fn name(&self) -> &'static str {
        match self.op {
            BitsOp::And => "bitwise_and",
            BitsOp::Or => "bitwise_or",
            BitsOp::Xor => "bitwise_xor",
            BitsOp::ShiftLeft | BitsOp::ShiftRight => "bit_shift",
            BitsOp::Modulo | BitsOp::Remainder => "mod",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 2..=2, "2")?;
        let (a, b) = (&src[0], &src[1]);
        expect_dtype(self.name(), a, |d| is_integer(d) || (self.is_division() && d.is_float()))?;
        expect_dtype(self.name(), b, |d| d == a.dtype)?;
        let dims = broadcast(&a.dims, &b.dims).ok_or_else(|| {
            let rule = "the operands' shapes must broadcast";
            GraphError::mismatch(self.name(), rule, &[("a", &a.dims), ("b", &b.dims)])
        })?;
        Ok(Info::plain(a.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let name = self.name();
        let (dims, results) = ([src[0].dims, src[1].dims, dst.dims], dst.dims.iter().product());
        match src[0].dtype {
            // A rest is exact, in narrow types as in wide ones.
            DType::F32 => zip::<f32>(name, src, dst, |a, b| {
                Some(self.of_floats((a % b).into(), b.into()) as f32)
            }),
            dtype if dtype.is_float() => {
                let (a, b) = (floats(&src[0], name)?, floats(&src[1], name)?);
                let mut y = vec![0.0; results];
                pairs(name, &a, &b, dims, &mut y, |a, b| Some(self.of_floats(a % b, b)))?;
                write_floats(dst, name, y)
            }
            DType::I32 => zip::<i32>(name, src, dst, on!(i32, self.op)),
            DType::I64 => zip::<i64>(name, src, dst, on!(i64, self.op)),
            DType::U64 => zip::<u64>(name, src, dst, on!(u64, self.op)),
            // The low bits of a result are those of the result of 64 bits, and what a narrow type would shift out is
            // above them.
            _ => {
                let (a, b) = (low_bits(&src[0], name)?, low_bits(&src[1], name)?);
                let mut y = vec![0; results];
                pairs(name, &a, &b, dims, &mut y, on!(i64, self.op))?;
                write_low_bits(dst, name, &y)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn run(op: BitsOp, a: Tensor, b: Tensor) -> Result<Tensor, GraphError> {
        let mut cx = Context::new();
        let (a, b) = (cx.constant(a)?, cx.constant(b)?);
        let y = cx.op(Bits { op }, &[a, b])?;
        Ok(cx.constant_value(y).unwrap().clone())
    }

    #[test]
    fn shifts_do_not_wrap() {
        let of = |op, a: &[i8], b: &[i8]| {
            let t = |v: &[i8]| Tensor::from_slice(&[v.len()], v).unwrap();
            run(op, t(a), t(b)).unwrap().as_slice::<i8>().unwrap().to_vec()
        };
        let a = [-128, -128, 127, 127, -1, 1];
        assert_eq!(of(BitsOp::ShiftRight, &a, &[7, 8, 8, -1, 100, 1]), [-1, -1, 0, 0, -1, 0]);
        assert_eq!(of(BitsOp::ShiftLeft, &a, &[1, 8, 1, -1, 7, 7]), [0, 0, -2, 0, -128, -128]);
    }

    #[test]
    fn remainders_have_the_sign_of_divisor_or_dividend() {
        let t = |v: &[i32]| Tensor::from_slice(&[v.len()], v).unwrap();
        let of = |op, a: &[i32], b: &[i32]| Ok::<_, GraphError>(ints(&run(op, t(a), t(b))?));
        fn ints(t: &Tensor) -> Vec<i32> {
            t.as_slice::<i32>().unwrap().to_vec()
        }
        let (a, b) = ([-4, 7, 5, 4, -7, i32::MIN], [2, -3, 8, -2, 3, -1]);
        assert_eq!(of(BitsOp::Modulo, &a, &b).unwrap(), [0, -2, 5, 0, 2, 0]);
        assert_eq!(of(BitsOp::Remainder, &a, &b).unwrap(), [0, 1, 5, 0, -1, 0]);
        assert!(of(BitsOp::Modulo, &[1], &[0]).is_err());
        let f = |v: &[f32]| Tensor::from_slice(&[v.len()], v).unwrap();
        let y = run(BitsOp::Modulo, f(&[-4.5, 7.5]), f(&[2.0, -2.0])).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap()[..], [1.5, -0.5]);
        assert!(run(BitsOp::And, f(&[1.0]), f(&[1.0])).is_err());
        // One divisor for all, of every width.
        let wide = Tensor::from_slice(&[1], &[-3i64]).unwrap();
        let y = run(BitsOp::Modulo, Tensor::from_slice(&[3], &[i64::MIN, 7, -3]).unwrap(), wide);
        assert_eq!(y.unwrap().as_slice::<i64>().unwrap()[..], [-2, -2, 0]);
        let by = Tensor::from_slice(&[1], &[10u64]).unwrap();
        let y = run(BitsOp::Remainder, Tensor::from_slice(&[2], &[u64::MAX, 7]).unwrap(), by);
        assert_eq!(y.unwrap().as_slice::<u64>().unwrap()[..], [5, 7]);
        let (x, by) = (f(&[0.3, -7.5e20, -0.0]), f(&[0.1]));
        let y = run(BitsOp::Remainder, x, by).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap()[..], [0.3 % 0.1f32, -7.5e20 % 0.1f32, -0.0]);
    }
}
