//! Powers, in `f64` without a math library.

/// Each of `base` to the power of its exponent, in place of that. Where all of them are finite and no base is 0 there
/// is little to decide, and a compiler that knows vectors makes vectors of it.
#[inline(always)]
pub(super) fn powers<const LANES: usize>(base: &[f32; LANES], exponents: &mut [f32; LANES]) {
    let usual = |x: f32, y: f32| (x != 0.0) & (x.abs() < f32::INFINITY) & (y.abs() < f32::INFINITY);
    let unusual: u32 = base.iter().zip(&*exponents).map(|(x, y)| u32::from(!usual(*x, *y))).sum();
    if unusual == 0 {
        for (y, x) in exponents.iter_mut().zip(base) {
            let power = signed(*x, *y, positive(x.abs(), *y));
            *y = if *y == 2.0 { x * x } else { power };
        }
    } else {
        for (y, x) in exponents.iter_mut().zip(base) {
            *y = pow(*x, *y);
        }
    }
}

/// The power `y` of `x` of the size `magnitude`: of a negative number a negative one if `y` is odd, none if it is no
/// integer.
#[inline(always)]
fn signed(x: f32, y: f32, magnitude: f32) -> f32 {
    let (odd, fraction) = parity(y);
    let flipped = if odd { -magnitude } else { magnitude };
    let below = if fraction { f32::NAN } else { flipped };
    if x < 0.0 { below } else { magnitude }
}

/// Whether a number is odd, and whether it is no integer.
#[inline(always)]
fn parity(y: f32) -> (bool, bool) {
    // From 2^23 on every f32 is an integer.
    let whole = |y: f64| (y.abs() >= 8_388_608.0) | ((y + SHIFT) - SHIFT == y);
    let y = f64::from(y);
    let (half, fraction) = (!whole(y * 0.5), !whole(y));
    (half & !fraction, fraction)
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
    let (odd, fraction) = parity(y);
    let negative = x.is_sign_negative();
    let magnitude = if negative && fraction && a > 0.0 && a < f32::INFINITY {
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

/// A polynomial, highest coefficient first; in steps of two, half of which do not wait for the others.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: &[f64; N], x: f64) -> f64 {
    let square = x * x;
    let pairs = coefficients.chunks_exact(2);
    pairs.fold(0.0, |sum, pair| sum * square + (pair[0] * x + pair[1]))
}

/// The binary logarithm of a positive normal number, to about 2^-44 of its size: the first term left out is
/// 0.0295^8 / 17.
#[inline(always)]
fn log2(x: f64) -> f64 {
    /// The bits of sqrt(1/2).
    const LOWEST: u64 = 0x3fe6_a09e_667f_3bcd;
    /// 1/15, 1/13, ..., 1.
    const COEFFICIENTS: [f64; 8] = {
        let mut c = [1.0; 8];
        let mut k = 0;
        while k < 8 {
            c[k] = 1.0 / (15 - 2 * k) as f64;
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
    let sum = polynomial(&COEFFICIENTS, z);
    e + 2.0 * s * sum * core::f64::consts::LOG2_E
}

/// `2^t` to about 2^-46 of its size, rounded to `f32`.
#[inline(always)]
fn exp2(t: f64) -> f32 {
    /// 1/11!, 1/10!, ..., 1.
    const COEFFICIENTS: [f64; 12] = {
        let mut c = [1.0; 12];
        let mut k = 11;
        while k > 0 {
            c[k - 1] = c[k] / (12 - k) as f64;
            k -= 1;
        }
        c
    };
    let t = t.clamp(-200.0, 200.0);
    let shifted = t + SHIFT;
    let r = (t - (shifted - SHIFT)) * core::f64::consts::LN_2;
    let sum = polynomial(&COEFFICIENTS, r);
    (sum * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)) as f32
}
