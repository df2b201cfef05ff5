//! Floats as integers and as halves, element by element.
//!
//! Numbers without their fractions are plain code, which the compiler makes vectors of for each instruction set: `as`
//! saturates, which it does one by one on x86.

use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;
use tilewright_intrinsics::soft;

/// What becomes of each element. Integers are those of a number without its fraction; what is beyond their range
/// becomes the nearest end of it, NaN 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Conversion {
    /// `f32` to `i32`.
    F32ToI32,
    /// `f32` to `i8`.
    F32ToI8,
    /// `f32` to `u8`.
    F32ToU8,
    /// `f32` to the nearest IEEE binary16, ties to even.
    F32ToF16,
    /// IEEE binary16 to `f32`.
    F16ToF32,
}

impl Conversion {
    /// Bytes of an element before and after.
    pub const fn sizes(self) -> [usize; 2] {
        match self {
            Self::F32ToI32 => [4, 4],
            Self::F32ToI8 | Self::F32ToU8 => [4, 1],
            Self::F32ToF16 => [4, 2],
            Self::F16ToF32 => [2, 4],
        }
    }
}

const OP: &str = "convert";

/// Elements of a unit.
const UNIT: usize = 8192;

/// A conversion of a fixed number of elements.
#[derive(Clone, Debug)]
pub struct ConvertPlan {
    isa: Isa,
    op: Conversion,
    len: usize,
    kernel: ConvertFn,
    name: &'static str,
}

impl ConvertPlan {
    /// Plans a conversion of `len` elements.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, op: Conversion, len: usize) -> Result<Self, KernelError> {
        isa.require()?;
        checked_len(OP, &[len])?;
        let (kernel, name) = kernel(isa, op);
        Ok(Self { isa, op, len, kernel, name })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.len.div_ceil(UNIT)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.name
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x` has [`len`](Self::len) readable elements, `y` as many writable ones, of the sizes of the conversion and
    ///   aligned to them; they do not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const u8, y: *mut u8, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let at = units.start * UNIT;
        let len = (units.end * UNIT).min(self.len).saturating_sub(at);
        let [from, to] = self.op.sizes();
        // SAFETY: the ISA is available; the run lies in the operands, which the caller owns.
        unsafe { (self.kernel)(x.wrapping_add(at * from), y.wrapping_add(at * to), len) };
    }

    /// Computes `y` on this thread; both are bytes.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short, [`KernelError::InvalidParam`] if one is not aligned.
    pub fn compute(&self, x: &[u8], y: &mut [u8]) -> Result<(), KernelError> {
        let [from, to] = self.op.sizes();
        check_len(OP, "x", self.len * from, x.len())?;
        check_len(OP, "y", self.len * to, y.len())?;
        if !(x.as_ptr() as usize).is_multiple_of(from) || !(y.as_ptr() as usize).is_multiple_of(to)
        {
            let (param, expected) = ("x and y", "aligned to their elements");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        // SAFETY: lengths and places were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// # Safety
///
/// The CPU has the instructions; so many elements are readable and writable there, aligned and apart.
type ConvertFn = unsafe fn(*const u8, *mut u8, usize);

/// A function that drops fractions: of a type, its least number, the largest float with a whole part of that type, and
/// the first number from which on all are the largest.
macro_rules! truncated {
    ($name:ident $t:ty, $least:literal to $most:literal, $all:literal) => {
        /// # Safety
        /// `n` elements are readable and writable there, aligned and apart.
        #[inline(always)]
        unsafe fn $name(x: *const u8, y: *mut u8, n: usize) {
            let (x, y) = (x.cast::<f32>(), y.cast::<$t>());
            // SAFETY: the caller's duties.
            let (x, y) = unsafe {
                (core::slice::from_raw_parts(x, n), core::slice::from_raw_parts_mut(y, n))
            };
            for (y, &x) in y.iter_mut().zip(x) {
                let number = if x.is_nan() { 0.0 } else { x };
                let within = if number < $least { $least } else { number };
                let within = if within > $most { $most } else { within };
                // SAFETY: a number that `i32` has room for.
                let whole = unsafe { within.to_int_unchecked::<i32>() } as $t;
                *y = if x >= $all { <$t>::MAX } else { whole };
            }
        }
    };
}
truncated! { truncate_i32 i32, -2_147_483_648.0 to 2_147_483_520.0, 2_147_483_648.0 }
truncated! { truncate_i8 i8, -128.0 to 127.0, 127.0 }
truncated! { truncate_u8 u8, 0.0 to 255.0, 255.0 }

macro_rules! convert_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            const L: usize = $l;

            $(#[target_feature(enable = $f)])*
            unsafe fn to_i32(x: *const u8, y: *mut u8, n: usize) {
                // SAFETY: the caller's duties.
                unsafe { truncate_i32(x, y, n) }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn to_i8(x: *const u8, y: *mut u8, n: usize) {
                // SAFETY: the caller's duties.
                unsafe { truncate_i8(x, y, n) }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn to_u8(x: *const u8, y: *mut u8, n: usize) {
                // SAFETY: the caller's duties.
                unsafe { truncate_u8(x, y, n) }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn to_f16(x: *const u8, y: *mut u8, n: usize) {
                let (x, y, whole) = (x.cast::<f32>(), y.cast::<u16>(), n / L * L);
                for at in (0..whole).step_by(L) {
                    let (x, y) = (x.wrapping_add(at), y.wrapping_add(at));
                    tile!(VSTORE16 y, tile!(VLOAD x, 0));
                }
                for at in whole..n {
                    // SAFETY: an element of each.
                    unsafe { *y.add(at) = soft::f16_from_f32(*x.add(at)) };
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn to_f32(x: *const u8, y: *mut u8, n: usize) {
                let (x, y, whole) = (x.cast::<u16>(), y.cast::<f32>(), n / L * L);
                for at in (0..whole).step_by(L) {
                    let (x, y) = (x.wrapping_add(at), y.wrapping_add(at));
                    tile!(VSTORE y, 0, tile!(VLOAD16 x));
                }
                for at in whole..n {
                    // SAFETY: an element of each.
                    unsafe { *y.add(at) = soft::f32_from_f16(*x.add(at)) };
                }
            }

            pub(super) fn kernel(op: Conversion) -> (ConvertFn, &'static str) {
                macro_rules! named {
                    ($what:literal) => { concat!("convert_", $what, "_", stringify!($isa_name)) };
                }
                match op {
                    Conversion::F32ToI32 => (to_i32, named!("i32")),
                    Conversion::F32ToI8 => (to_i8, named!("i8")),
                    Conversion::F32ToU8 => (to_u8, named!("u8")),
                    Conversion::F32ToF16 => (to_f16, named!("f16")),
                    Conversion::F16ToF32 => (to_f32, named!("f32")),
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(convert_row);

fn kernel(isa: Isa, op: Conversion) -> (ConvertFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::kernel(op);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::kernel(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Place, skip};
    use crate::testing_bytes::Buffer;
    use alloc::vec::Vec;

    /// Every 2^16th float, and those around whole numbers and ends of ranges.
    fn floats() -> Vec<f32> {
        let near = (-140..270).flat_map(|i| [i as f32, i as f32 + 0.5, i as f32 - 0.001]);
        let ends = [i32::MAX as f32, i32::MIN as f32, 2_147_483_520.0, -0.0, 1e-45, 65519.9];
        let all: Vec<f32> = (0..1 << 16).map(|i| f32::from_bits(i << 16 | 0x1234)).collect();
        [all, near.collect(), ends.to_vec()].concat()
    }

    /// A plan's result in bytes, unit by unit from the last one on.
    fn converted(isa: Isa, op: Conversion, x: &[u8], place: Place) -> Vec<u8> {
        let [from, to] = op.sizes();
        let plan = ConvertPlan::new(isa, op, x.len() / from).unwrap();
        let (x, mut y) = (Buffer::new(x, place), Buffer::output(plan.len() * to, place));
        for unit in (0..plan.units()).rev() {
            // SAFETY: operands of the plan's length, units of the plan, one thread.
            unsafe { plan.run(x.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
        }
        y.to_vec()
    }

    fn check(isa: Isa, len: usize, place: Place) {
        let x = floats();
        let x = &x[x.len() - len.min(x.len())..];
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let of = |op| converted(isa, op, &bytes, place);
        let ints = of(Conversion::F32ToI32);
        let [signed, unsigned] = [of(Conversion::F32ToI8), of(Conversion::F32ToU8)];
        let halves = of(Conversion::F32ToF16);
        let back = converted(isa, Conversion::F16ToF32, &halves, place);
        for (i, &x) in x.iter().enumerate() {
            let what = (isa, i, x);
            let four = |all: &[u8]| <[u8; 4]>::try_from(&all[4 * i..][..4]).unwrap();
            assert_eq!(i32::from_ne_bytes(four(&ints)), x as i32, "{what:?}");
            assert_eq!((signed[i] as i8, unsigned[i]), (x as i8, x as u8), "{what:?}");
            let half = u16::from_ne_bytes(halves[2 * i..][..2].try_into().unwrap());
            let wide = f32::from_ne_bytes(four(&back));
            if x.is_nan() {
                assert!(soft::f32_from_f16(half).is_nan() && wide.is_nan(), "{what:?}");
            } else {
                assert_eq!(half, soft::f16_from_f32(x), "{what:?}");
                assert_eq!(wide.to_bits(), soft::f32_from_f16(half).to_bits(), "{what:?}");
            }
        }
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            #[test]
            fn $id() {
                if skip(Isa::$isa) {
                    return;
                }
                for (i, len) in [0, 1, 3, 15, 16, 33, 100, usize::MAX].into_iter().enumerate() {
                    check(Isa::$isa, len, Place::ALL[i % 3]);
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);

    #[test]
    fn short_and_misaligned_slices_are_refused() {
        let plan = ConvertPlan::new(Isa::Scalar, Conversion::F32ToU8, 2).unwrap();
        let (mut x, mut y) = ([0.0f32; 3], [0u8; 2]);
        // SAFETY: the bytes of floats.
        let bytes = unsafe { core::slice::from_raw_parts_mut(x.as_mut_ptr().cast::<u8>(), 12) };
        assert!(plan.compute(&bytes[..7], &mut y).is_err());
        assert!(plan.compute(&bytes[..8], &mut y[..1]).is_err());
        assert!(plan.compute(&bytes[1..9], &mut y).is_err());
        assert!(plan.compute(&bytes[4..], &mut y).is_ok());
    }
}
