//! Rounding and square root without a math library, for the scalar macro on bare targets.

/// `a * b + c`, rounded twice: the fused form is a library call where the target has no FMA.
#[inline(always)]
pub fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    a * b + c
}

/// An operation on two lanes, as it is.
#[inline(always)]
pub fn lanewise<F: Fn(u32, u32) -> u32>(f: F) -> F {
    f
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

/// The value of an IEEE binary16.
#[inline(always)]
pub fn f32_from_f16(h: u16) -> f32 {
    // As an f32 with the exponent's bias of f16, then scaled: that is exact for denormals too.
    let (sign, rest) = (u32::from(h & 0x8000) << 16, u32::from(h & 0x7fff) << 13);
    let scaled = (f32::from_bits(rest) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(sign | scaled | special)
}

/// The nearest IEEE binary16, ties to even; NaN stays NaN, too large becomes infinite.
#[inline(always)]
pub fn f16_from_f32(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let bits = x.to_bits() & 0x7fff_ffff;
    // Adding 1/2 rounds a number below 2^-14 to a multiple of 2^-24, in the last bits.
    let small = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = bits.wrapping_add(0xc800_0fff + ((bits >> 13) & 1)) >> 13;
    let large = if bits > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let rest = if bits < 0x3880_0000 { small } else { normal };
    (sign | if bits >= 0x477f_f000 { large } else { rest }) as u16
}

/// The nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
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

    #[test]
    fn halves_round_to_nearest_even() {
        // Each f16 is itself again, and the middle between two goes to the even one.
        for h in 0..=u16::MAX {
            let x = super::f32_from_f16(h);
            if x.is_nan() {
                assert!(super::f32_from_f16(super::f16_from_f32(x)).is_nan());
                continue;
            }
            assert_eq!(super::f16_from_f32(x), h);
            let above = super::f32_from_f16(h + 1);
            if above.is_finite() && h & 0x7fff < 0x7bff {
                let even = if h & 1 == 0 { h } else { h + 1 };
                let middle = ((f64::from(x) + f64::from(above)) / 2.0) as f32;
                assert_eq!(super::f16_from_f32(middle), even, "{h:x}");
                let nearer = f32::from_bits(middle.to_bits() - 1);
                assert_eq!(super::f16_from_f32(nearer), h, "{h:x}");
            }
        }
        assert_eq!(super::f32_from_f16(0x0001), 2.0f32.powi(-24));
        assert_eq!(super::f32_from_f16(0x3c01), 1.0 + 2.0f32.powi(-10));
        assert_eq!(super::f32_from_f16(0xfc00), f32::NEG_INFINITY);
        assert_eq!(super::f16_from_f32(65519.0), 0x7bff);
        assert_eq!(super::f16_from_f32(-65520.0), 0xfc00);
        assert_eq!(super::bf16_from_f32(1.0 + 2.0f32.powi(-8)), 0x3f80);
        assert_eq!(super::bf16_from_f32(1.0 + 3.0 * 2.0f32.powi(-8)), 0x3f82);
        assert_eq!(super::bf16_from_f32(f32::MAX), 0x7f80);
        assert_eq!(super::bf16_from_f32(f32::from_bits(0x7f80_0001)), 0x7fc0);
    }
}
