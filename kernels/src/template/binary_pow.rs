//! Powers, in `f64` without a math library.

/// Each of `base` to the power of its exponent, in place of that. Where all of them are positive and finite there is
/// nothing to decide, and a compiler that knows vectors makes vectors of it.
#[inline(always)]
pub(super) fn powers<const LANES: usize>(base: &[f32; LANES], exponents: &mut [f32; LANES]) {
    let usual = |x: f32, y: f32| (x > 0.0) & (x < f32::INFINITY) & (y.abs() < f32::INFINITY);
    let pairs = base.iter().zip(&*exponents);
    if pairs.fold(true, |all, (x, y)| all & usual(*x, *y)) {
        for (y, x) in exponents.iter_mut().zip(base) {
            let power = positive(*x, *y);
            *y = if *y == 2.0 { x * x } else { power };
        }
    } else {
        for (y, x) in exponents.iter_mut().zip(base) {
            *y = pow(*x, *y);
        }
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
        positive(a, y)
    };
    if negative && odd { -magnitude } else { magnitude }
}

/// `x` to the power `y`, where both are finite and `x` is positive; 1 for any power of 1, and for the power 0.
#[inline(always)]
fn positive(x: f32, y: f32) -> f32 {
    exp2(f64::from(y) * log2(f64::from(x)))
}

/// Adding 1.5 * 2^52 leaves the nearest integer in the low bits.
const SHIFT: f64 = 6_755_399_441_055_744.0;

/// The binary logarithm of a positive normal number, to about 2^-52 of its size.
#[inline(always)]
fn log2(x: f64) -> f64 {
    /// The bits of sqrt(1/2).
    const LOWEST: u64 = 0x3fe6_a09e_667f_3bcd;
    /// 1/23, 1/21, ..., 1.
    const COEFFICIENTS: [f64; 12] = {
        let mut c = [1.0; 12];
        let mut k = 0;
        while k < 12 {
            c[k] = 1.0 / (23 - 2 * k) as f64;
            k += 1;
        }
        c
    };
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)).
    let shifted = x.to_bits().wrapping_sub(LOWEST);
    let e = ((shifted as i64) >> 52) as u64;
    // No instruction before AVX-512 converts integers of 64 bits.
    let e = f64::from_bits(SHIFT.to_bits().wrapping_add(e)) - SHIFT;
    let m = f64::from_bits((shifted & 0x000f_ffff_ffff_ffff) + LOWEST);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    // Powers of z up to 0.0295^11 / 23.
    let sum = COEFFICIENTS.iter().fold(0.0, |sum, c| sum * z + c);
    e + 2.0 * s * sum * core::f64::consts::LOG2_E
}

/// `2^t`, rounded to `f32` once.
#[inline(always)]
fn exp2(t: f64) -> f32 {
    /// 1/14!, 1/13!, ..., 1.
    const COEFFICIENTS: [f64; 15] = {
        let mut c = [1.0; 15];
        let mut k = 14;
        while k > 0 {
            c[k - 1] = c[k] / (15 - k) as f64;
            k -= 1;
        }
        c
    };
    let t = t.clamp(-200.0, 200.0);
    let shifted = t + SHIFT;
    let r = (t - (shifted - SHIFT)) * core::f64::consts::LN_2;
    let sum = COEFFICIENTS.iter().fold(0.0, |sum, c| sum * r + c);
    (sum * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)) as f32
}
