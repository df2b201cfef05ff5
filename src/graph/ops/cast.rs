//! Conversion between element types.

use bytemuck::Pod;
use half::{bf16, f16};

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::{DType, Element};

/// Converts each element to another plain type.
///
/// Floats become integers by dropping the fraction and saturating (NaN gives 0); integers become
/// smaller integers by keeping the low bits; anything but zero becomes true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The type of the result.
    pub to: DType,
}

const OP: &str = "cast";

impl Operator for Cast {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        for dtype in [src[0].dtype, self.to] {
            if !dtype.is_plain() {
                return Err(GraphError::UnsupportedDType { op: OP, dtype });
            }
        }
        Ok(Info::plain(self.to, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        with_element!(src[0].dtype, OP, S => {
            let x = src[0].slice::<S>(OP)?;
            if self.to == DType::Bool {
                let y = dst.slice::<u8>(OP)?;
                y.iter_mut().zip(x).for_each(|(y, x)| *y = u8::from(!x.is_zero()));
                return Ok(());
            }
            with_element!(self.to, OP, T => {
                convert::<S, T>(x, dst.slice::<T>(OP)?);
                Ok(())
            })
        })
    }
}

fn convert<S: Number, T: Number>(x: &[S], y: &mut [T]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = if S::FLOAT { T::from_float(x.to_float()) } else { T::from_int(x.to_int()) };
    }
}

/// Element types as numbers.
pub(super) trait Number: Element + Pod {
    const FLOAT: bool;
    /// The least integer; 0 for floats.
    const LEAST: Self;
    fn to_float(self) -> f64;
    fn to_int(self) -> i128;
    fn from_float(v: f64) -> Self;
    fn from_int(v: i128) -> Self;
    fn is_zero(self) -> bool {
        if Self::FLOAT { self.to_float() == 0.0 } else { self.to_int() == 0 }
    }
}

macro_rules! numbers {
    ($($t:ty: $float:literal, $least:expr, $wide:expr, $int:expr, $from_float:expr, $from_int:expr;)*) => { $(
        impl Number for $t {
            const FLOAT: bool = $float;
            const LEAST: Self = $least;
            fn to_float(self) -> f64 { $wide(self) }
            fn to_int(self) -> i128 { $int(self) }
            fn from_float(v: f64) -> Self { $from_float(v) }
            fn from_int(v: i128) -> Self { $from_int(v) }
        }
    )* };
}
macro_rules! primitive_numbers {
    ($($t:ty: $float:literal $least:expr),*) => { numbers! { $(
        $t: $float, $least, |x| x as f64, |x| x as i128, |v| v as $t, |v| v as $t;
    )* } };
}
primitive_numbers! {
    f32: true 0.0, f64: true 0.0, i8: false i8::MIN, u8: false 0, i16: false i16::MIN,
    u16: false 0, i32: false i32::MIN, u32: false 0, i64: false i64::MIN, u64: false 0
}
numbers! {
    f16: true, f16::ZERO, f64::from, |x: f16| x.to_f64() as i128, f16::from_f64, |v| f16::from_f64(v as f64);
    bf16: true, bf16::ZERO, f64::from, |x: bf16| x.to_f64() as i128, bf16::from_f64, |v| bf16::from_f64(v as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn cast(x: Tensor, to: DType) -> Tensor {
        let mut cx = Context::new();
        let x = cx.constant(x).unwrap();
        let y = cx.op(Cast { to }, &[x]).unwrap();
        cx.constant_value(y).unwrap().clone()
    }

    #[test]
    fn floats_to_integers_truncate_and_saturate() {
        let x = [1.9f32, -1.9, 300.0, -300.0, f32::NAN, f32::INFINITY];
        let x = Tensor::from_slice(&[6], &x).unwrap();
        let y = cast(x.clone(), DType::I8);
        assert_eq!(y.as_slice::<i8>().unwrap()[..], [1, -1, 127, -128, 0, 127]);
        let y = cast(x, DType::Bool);
        assert_eq!(y.bytes(), [1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn integers_keep_low_bits_and_floats_round_once() {
        let x = Tensor::from_slice(&[3], &[257i64, -1, i64::MAX]).unwrap();
        assert_eq!(cast(x.clone(), DType::U8).as_slice::<u8>().unwrap()[..], [1, 255, 255]);
        assert_eq!(cast(x, DType::F32).as_slice::<f32>().unwrap()[2], i64::MAX as f32);
        let x = Tensor::from_slice(&[2], &[0.1f32, 65520.0]).unwrap();
        let y = cast(x, DType::F16);
        assert_eq!(y.as_slice::<f16>().unwrap()[..], [f16::from_f32(0.1), f16::INFINITY]);
        let flags = Tensor::from_bytes(DType::Bool, &[2], &[0, 1]).unwrap();
        assert_eq!(cast(flags, DType::F32).as_slice::<f32>().unwrap()[..], [0.0, 1.0]);
    }
}
