//! Rounding and square root without a math library, for the scalar macro on bare targets.

/// `a * b + c`, rounded twice: the fused form is a library call where the target has no FMA.
#[inline(always)]
pub fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    a * b + c
}

/// `x` rounded to an integer, ties to even; NaN and infinities unchanged.
#[inline]
pub fn round(x: f32) -> f32 {
    // From 2^23 on, every f32 is an integer; below, adding it pushes the fraction out.
    const SHIFT: f32 = 8_388_608.0;
    let a = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    if a < SHIFT {
        f32::from_bits(((a + SHIFT) - SHIFT).to_bits() | x.to_bits() & 0x8000_0000)
    } else {
        x
    }
}

/// The largest integer not above `x`; NaN and infinities unchanged.
#[inline]
pub fn floor(x: f32) -> f32 {
    let r = round(x);
    if r > x { r - 1.0 } else { r }
}

/// The square root of `x`, correctly rounded; NaN below zero, -0 for -0.
#[inline]
pub fn sqrt(x: f32) -> f32 {
    if x == 0.0 || x.is_nan() || x == f32::INFINITY {
        return x;
    }
    if x < 0.0 {
        return f32::NAN;
    }
    // Newton's iteration in f64 from an estimate good to 4 %: after four steps the error is below
    // 2^-52, and no square root of an f32 is that close to the middle of two f32 values.
    let d = f64::from(x);
    let mut y = f64::from_bits((d.to_bits() >> 1) + (0x3ff0_0000_0000_0000_u64 >> 1));
    for _ in 0..4 {
        y = 0.5 * (y + d / y);
    }
    y as f32
}

#[cfg(test)]
mod tests {
    extern crate std;

    #[test]
    fn agrees_with_std() {
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            let x = f32::from_bits(bits);
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same(super::sqrt(x), x.sqrt()), "sqrt {x:e}");
            assert!(same(super::round(x), x.round_ties_even()), "round {x:e}");
            assert!(same(super::floor(x), x.floor()), "floor {x:e}");
        }
        for x in [0.0f32, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, f32::MIN_POSITIVE, 1e-45, 8388607.5] {
            assert_eq!(super::round(x).to_bits(), x.round_ties_even().to_bits(), "round {x}");
            assert_eq!(super::floor(x), x.floor(), "floor {x}");
        }
    }
}
