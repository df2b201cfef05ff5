//! Powers, in `f64` without a math library.

/// Each of `base` to the power of its exponent, in place of that.
// In a function of its own, as it would be written out for each vector of each loop.
#[inline(never)]
pub(super) fn powers<const LANES: usize>(base: &[f32; LANES], exponents: &mut [f32; LANES]) {
    for (y, x) in exponents.iter_mut().zip(base) {
        *y = pow(*x, *y);
    }
}

/// `x` to the power `y`, as IEEE 754 `pow` has its special cases, within 1 ulp.
// A call costs little beside it. Where it was inlined into each lane of each loop, those took 300 KB.
#[inline(never)]
pub(super) fn pow(x: f32, y: f32) -> f32 {
    if y == 2.0 {
        return x * x;
    }
    if y == 0.0 || x == 1.0 {
        return 1.0;
    }
    if x.is_nan() || y.is_nan() {
        return f32::NAN;
    }
    let a = x.abs();
    // From 2^24 on every f32 is an even integer.
    let huge = y.abs() >= 16_777_216.0;
    let whole = huge || (y as i32) as f32 == y;
    let odd = !huge && whole && y as i32 & 1 == 1;
    let negative = x.is_sign_negative();
    let magnitude = if negative && !whole && a > 0.0 && a < f32::INFINITY {
        f32::NAN
    } else if a == 1.0 {
        1.0
    } else if a == 0.0 || a.is_infinite() || y.is_infinite() {
        // Grows without bound, or vanishes.
        if (a > 1.0) == (y > 0.0) { f32::INFINITY } else { 0.0 }
    } else {
        exp2(f64::from(y) * log2(f64::from(a)))
    };
    if negative && odd { -magnitude } else { magnitude }
}

/// The binary logarithm of a positive normal number, to about 2^-52 of its size.
fn log2(x: f64) -> f64 {
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)).
    let shifted = x.to_bits().wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let e = (shifted as i64) >> 52;
    let m = f64::from_bits((shifted & 0x000f_ffff_ffff_ffff) + 0x3fe6_a09e_667f_3bcd);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    // Powers of z up to 0.0295^11 / 23.
    let mut sum = 0.0;
    for k in (0..12u32).rev() {
        sum = sum * z + 1.0 / f64::from(2 * k + 1);
    }
    e as f64 + 2.0 * s * sum * core::f64::consts::LOG2_E
}

/// `2^t`, rounded to `f32` once.
fn exp2(t: f64) -> f32 {
    let t = t.clamp(-200.0, 200.0);
    // Adding 1.5 * 2^52 leaves the nearest integer in the low bits.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let n = (t + SHIFT) - SHIFT;
    let r = (t - n) * core::f64::consts::LN_2;
    let mut sum = 1.0;
    for k in (1..15u32).rev() {
        sum = 1.0 + sum * r / f64::from(k);
    }
    (sum * f64::from_bits(((n as i64 + 1023) << 52) as u64)) as f32
}
