//! Conversion between element types.

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tilewright_kernels::{Conversion, ConvertPlan};

use super::plan_step::PlanStep;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut, with_element};
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
        if cfg!(feature = "ops-more") && directly(&src[0], dst)? {
            return Ok(());
        }
        let from = with_element!(src[0].dtype, OP, S => Ok(Source::of::<S>()))?;
        let to = with_element!(self.to, OP, T => Ok(Target::of::<T>()))?;
        let to_bool = self.to == DType::Bool;
        // By way of the widest type of their kind, a few at a time: 36 loops in place of one per pair of types.
        let (mut floats, mut ints) = ([0.0; AT_ONCE], [0; AT_ONCE]);
        let sizes = [from.size * AT_ONCE, to.size * AT_ONCE];
        for (x, y) in src[0].bytes.chunks(sizes[0]).zip(dst.bytes.chunks_mut(sizes[1])) {
            match from.read {
                Read::Float(read) => {
                    let n = read(x, &mut floats);
                    if to_bool {
                        y.iter_mut().zip(&floats[..n]).for_each(|(y, &x)| *y = u8::from(x != 0.0));
                    } else {
                        (to.floats)(&floats[..n], y);
                    }
                }
                Read::Int(read) => {
                    let n = read(x, &mut ints);
                    if to_bool {
                        y.iter_mut().zip(&ints[..n]).for_each(|(y, &x)| *y = u8::from(x != 0));
                    } else {
                        (to.ints)(&ints[..n], y);
                    }
                }
                Read::Unsigned if to_bool => {
                    let x: &[u64] = bytemuck::cast_slice(x);
                    y.iter_mut().zip(x).for_each(|(y, &x)| *y = u8::from(x != 0));
                }
                Read::Unsigned => (to.unsigned)(bytemuck::cast_slice(x), y),
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let op = match (cx.src[0].dtype, self.to) {
            _ if !cfg!(feature = "ops-more") => return Ok(None),
            (DType::F32, DType::I32) => Conversion::F32ToI32,
            (DType::F32, DType::I8) => Conversion::F32ToI8,
            (DType::F32, DType::U8) => Conversion::F32ToU8,
            (DType::F32, DType::F16) => Conversion::F32ToF16,
            (DType::F16, DType::F32) => Conversion::F16ToF32,
            _ => return Ok(None),
        };
        Ok(Some(Box::new(PlanStep(ConvertPlan::new(cx.isa, op, cx.dst.elements())?))))
    }
}

/// Converts between the types of pictures, of halves, of indices and of masks in one step, as vectors where the
/// machine has them; `false` for other pairs.
fn directly(x: &View<'_>, y: &mut ViewMut<'_>) -> Result<bool, GraphError> {
    macro_rules! pairs {
        ($($from:ident $s:ty => $to:ident $t:ty: $convert:expr;)*) => {
            match (x.dtype, y.dtype) {
                $((DType::$from, DType::$to) => {
                    let (x, y) = (x.slice::<$s>(OP)?, y.slice::<$t>(OP)?);
                    y.iter_mut().zip(x).for_each(|(y, &x)| *y = $convert(x));
                })*
                (DType::F32, DType::F16) => {
                    y.slice::<f16>(OP)?.convert_from_f32_slice(x.slice::<f32>(OP)?);
                }
                (DType::F16, DType::F32) => {
                    x.slice::<f16>(OP)?.convert_to_f32_slice(y.slice::<f32>(OP)?);
                }
                _ => return Ok(false),
            }
        };
    }
    pairs! {
        BF16 bf16 => F32 f32: bf16::to_f32;
        U8 u8 => F32 f32: f32::from;
        I8 i8 => F32 f32: f32::from;
        Bool u8 => F32 f32: |x| if x == 0 { 0.0 } else { 1.0 };
        I32 i32 => F32 f32: |x| x as f32;
        I64 i64 => F32 f32: |x| x as f32;
        F32 f32 => U8 u8: |x| x as u8;
        F32 f32 => I32 i32: |x| x as i32;
        F32 f32 => I64 i64: |x| x as i64;
        I32 i32 => I64 i64: i64::from;
        I64 i64 => I32 i32: |x| x as i32;
        F32 f32 => Bool u8: |x| u8::from(x != 0.0);
        I64 i64 => Bool u8: |x| u8::from(x != 0);
    }
    Ok(true)
}

/// Elements that are converted at a time.
const AT_ONCE: usize = 64;

/// How elements are read, as many as there are bytes of; how many.
enum Read {
    Float(fn(&[u8], &mut [f64; AT_ONCE]) -> usize),
    Int(fn(&[u8], &mut [i64; AT_ONCE]) -> usize),
    /// As they are: `u64`.
    Unsigned,
}

/// A type that is converted from.
struct Source {
    size: usize,
    read: Read,
}

impl Source {
    fn of<S: Number>() -> Self {
        let read = if S::FLOAT {
            Read::Float(|x, wide| fill::<S, _>(x, wide, S::to_float))
        } else if S::DTYPE == DType::U64 {
            Read::Unsigned
        } else {
            Read::Int(|x, wide| fill::<S, _>(x, wide, S::to_int))
        };
        Self { size: size_of::<S>(), read }
    }
}

fn fill<S: Number, W>(x: &[u8], wide: &mut [W; AT_ONCE], to: impl Fn(S) -> W) -> usize {
    let x: &[S] = bytemuck::cast_slice(x);
    wide.iter_mut().zip(x).for_each(|(wide, &x)| *wide = to(x));
    x.len()
}

/// A type that is converted to.
struct Target {
    size: usize,
    floats: fn(&[f64], &mut [u8]),
    ints: fn(&[i64], &mut [u8]),
    unsigned: fn(&[u64], &mut [u8]),
}

impl Target {
    fn of<T: Number>() -> Self {
        Self {
            size: size_of::<T>(),
            floats: |wide, y| narrow::<T, _>(wide, y, T::from_float),
            ints: |wide, y| narrow::<T, _>(wide, y, T::from_int),
            unsigned: |wide, y| narrow::<T, _>(wide, y, T::from_unsigned),
        }
    }
}

fn narrow<T: Number, W: Copy>(wide: &[W], y: &mut [u8], from: impl Fn(W) -> T) {
    let y: &mut [T] = bytemuck::cast_slice_mut(y);
    y.iter_mut().zip(wide).for_each(|(y, &wide)| *y = from(wide));
}

/// Element types as numbers.
pub(super) trait Number: Element + Pod + PartialOrd {
    const FLOAT: bool;
    /// The least integer; 0 for floats.
    const LEAST: Self;
    fn to_float(self) -> f64;
    /// The low 64 bits.
    fn to_int(self) -> i64;
    fn from_float(v: f64) -> Self;
    fn from_int(v: i64) -> Self;
    fn from_unsigned(v: u64) -> Self;
}

macro_rules! numbers {
    ($($t:ty: $float:literal, $least:expr, $wide:expr, $int:expr, $from_float:expr, $from_int:expr, $from_unsigned:expr;)*) => { $(
        impl Number for $t {
            const FLOAT: bool = $float;
            const LEAST: Self = $least;
            fn to_float(self) -> f64 { $wide(self) }
            fn to_int(self) -> i64 { $int(self) }
            fn from_float(v: f64) -> Self { $from_float(v) }
            fn from_int(v: i64) -> Self { $from_int(v) }
            fn from_unsigned(v: u64) -> Self { $from_unsigned(v) }
        }
    )* };
}
macro_rules! primitive_numbers {
    ($($t:ty: $float:literal $least:expr),*) => { numbers! { $(
        $t: $float, $least, |x| x as f64, |x| x as i64, |v| v as $t, |v| v as $t, |v| v as $t;
    )* } };
}
primitive_numbers! {
    f32: true 0.0, f64: true 0.0, i8: false i8::MIN, u8: false 0, i16: false i16::MIN,
    u16: false 0, i32: false i32::MIN, u32: false 0, i64: false i64::MIN, u64: false 0
}
numbers! {
    f16: true, f16::ZERO, f64::from, |x: f16| x.to_f64() as i64, f16::from_f64, |v| f16::from_f64(v as f64),
        |v| f16::from_f64(v as f64);
    bf16: true, bf16::ZERO, f64::from, |x: bf16| x.to_f64() as i64, bf16::from_f64, |v| bf16::from_f64(v as f64),
        |v| bf16::from_f64(v as f64);
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
        // Once also where f64 is not enough between, and for more than are converted at a time.
        let large = vec![(1u64 << 63) + (1 << 39) + 1; 200];
        let x = Tensor::from_slice(&[200], &large).unwrap();
        let y = cast(x.clone(), DType::F32);
        assert!(y.as_slice::<f32>().unwrap().iter().all(|&y| y == 2f32.powi(63) + 2f32.powi(40)));
        assert_eq!(
            cast(x.clone(), DType::I64).as_slice::<i64>().unwrap()[199],
            i64::MIN + (1 << 39) + 1
        );
        assert_eq!(cast(x, DType::Bool).bytes(), [1; 200]);
        let flags = Tensor::from_bytes(DType::Bool, &[2], &[0, 1]).unwrap();
        assert_eq!(cast(flags, DType::F32).as_slice::<f32>().unwrap()[..], [0.0, 1.0]);
    }

    #[test]
    fn usual_pairs_are_converted_as_all_others() {
        let odd = [
            f32::NAN,
            f32::INFINITY,
            -f32::INFINITY,
            -0.0,
            0.5,
            -0.5,
            1e-8,
            3e9,
            -3e9,
            65519.9,
            1e20,
        ];
        let floats: Vec<f32> =
            odd.into_iter().chain((0..150).map(|i| (i as f32 - 70.3) * 3.7)).collect();
        let ints: Vec<i64> = (0..150).map(|i| (i - 70) * 123_456_789_123).collect();
        let all = |v: &Tensor, to| cast(v.clone(), to);
        let x = Tensor::from_slice(&[floats.len()], &floats).unwrap();
        let (bytes, words) = (all(&x, DType::U8), all(&x, DType::I32));
        let (longs, flags, halves) =
            (all(&x, DType::I64), all(&x, DType::Bool), all(&x, DType::F16));
        for (i, &v) in floats.iter().enumerate() {
            assert_eq!(bytes.as_slice::<u8>().unwrap()[i], v as u8);
            assert_eq!(words.as_slice::<i32>().unwrap()[i], v as i32);
            assert_eq!(longs.as_slice::<i64>().unwrap()[i], v as i64);
            assert_eq!(flags.bytes()[i], u8::from(v != 0.0));
            let (found, wanted) = (halves.as_slice::<f16>().unwrap()[i], f16::from_f32(v));
            assert!(found == wanted || found.is_nan() && v.is_nan(), "{v}");
        }
        let back = all(&halves, DType::F32);
        let same = |(a, b): (&f32, &f16)| *a == b.to_f32() || a.is_nan() && b.is_nan();
        assert!(
            back.as_slice::<f32>()
                .unwrap()
                .iter()
                .zip(halves.as_slice::<f16>().unwrap().iter())
                .all(same)
        );
        for (from, i) in [(&bytes, 20), (&words, 20), (&longs, 20), (&flags, 4)] {
            let whole = all(from, DType::F64);
            let wanted = whole.as_slice::<f64>().unwrap()[i] as f32;
            assert_eq!(all(from, DType::F32).as_slice::<f32>().unwrap()[i], wanted);
        }
        let x = Tensor::from_slice(&[ints.len()], &ints).unwrap();
        let (words, flags) = (all(&x, DType::I32), all(&x, DType::Bool));
        let signed = all(&words, DType::I8);
        for (i, &v) in ints.iter().enumerate() {
            assert_eq!(words.as_slice::<i32>().unwrap()[i], v as i32);
            assert_eq!(flags.bytes()[i], u8::from(v != 0));
            let low = signed.as_slice::<i8>().unwrap()[i];
            assert_eq!(all(&signed, DType::F32).as_slice::<f32>().unwrap()[i], f32::from(low));
            assert_eq!(all(&words, DType::I64).as_slice::<i64>().unwrap()[i], i64::from(v as i32));
        }
    }
}
