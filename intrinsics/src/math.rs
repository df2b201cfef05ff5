//! Elementary functions on one vector, derived from the primitive arms.
//!
//! `tile!(MATH NAME x ...)` evaluates the function `NAME` in every lane of `x` on any instruction
//! set: range reductions and polynomials are written once, here. Arguments are expressions and are
//! evaluated once. Coefficients are minimax fits made for this file (relative error of the result,
//! `f64` arithmetic, rounded to `f32`). Accuracy bounds, in units in the last place (ulp) of the
//! result, hold on every instruction set and are tested against `f64` in `tilewright-kernels`
//! (`template::unary`), on all values of f16 and bf16 among others:
//!
//! | verb | value | bound | special cases |
//! |---|---|---|---|
//! | `EXP x` | e^x | 2 ulp, gradual underflow | NaN -> NaN, -inf -> 0, x > 88.72 -> inf |
//! | `EXP_WEIGHT x` | e^x, x <= 88, a weight of softmax | 2 ulp, 0 below 2^-126.5 | NaN -> NaN, -inf -> 0 |
//! | `EXP2_WEIGHT x` | 2^x, x in [-127, 127] or as `VSCALABLE` leaves it, likewise | 2 ulp, 0 below 2^-126.5 | NaN -> NaN |
//! | `EXP2_BF16 x` | 2^x, x likewise, to be rounded to bf16 | 7.6e-5 of the value, 0 below 2^-126.5 | NaN -> NaN |
//! | `EXPM1 x` | e^x - 1 | 3 ulp | NaN -> NaN, -inf -> -1 |
//! | `LOG x` | ln x | 2 ulp | 0 -> -inf, x < 0 -> NaN, denormals exact |
//! | `LOG1P01 x` | ln(1 + x), x in [0, 1] | 3 ulp | NaN -> NaN |
//! | `TANH x` | tanh x | 4 ulp | +-inf -> +-1, NaN -> NaN |
//! | `SIGMOID x` | 1 / (1 + e^-x) | 4 ulp, gradual underflow | NaN -> NaN |
//! | `SILU x` | x sigmoid(x) | 5 ulp | NaN -> NaN, -inf -> NaN |
//! | `GELU x`, `GELU_TANH x` | x/2 (1 + erf(x/sqrt 2)), x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) | 5 ulp of max(1, abs x) | NaN -> NaN |
//! | `ERF x` | erf x | 4 ulp | +-inf -> +-1, NaN -> NaN |
//! | `SIN x`, `COS x` | sin x, cos x, x in [-8192, 8192] | 3 ulp | NaN -> NaN, -0 -> -0 |
//! | `ATAN x` | arc tangent of x | 3 ulp | +-inf -> +-pi/2, NaN -> NaN |
//!
//! `CLAMP01 x` is `max(0, min(1, x))` with NaN kept. `EXP_NEG_ABS x` is e^-|x|. `EXP_IN x` is `EXP` for arguments already known to be in [-104, 89] (or NaN), without the clamp.
//!
//! Weights of softmax beside 1 are 0 where they would be subnormal: Intel's processors take over a hundred cycles for
//! each instruction that meets such a number, and a mask of -100 (Swin) makes all that it hides ones.

/// Evaluates one elementary function of the table in this module's documentation.
///
/// Reached as `tile!(MATH NAME x)`; the first argument is the tile macro of the instruction set.
#[macro_export]
macro_rules! tile_math {
    // x clamped so that VSCALE's exponent stays in range; `VMAX lo, x` keeps a NaN.
    ($m:ident EXP $x:expr) => {{
        let hi = $crate::$m!(VSET 89.0f32);
        let lo = $crate::$m!(VSET -104.0f32);
        let x = $crate::$m!(VMAX lo, $crate::$m!(VMIN hi, $x));
        $crate::tile_math!($m EXP_IN x)
    }};
    // n is -127 from 126.5 ln 2 on, and so at the bound.
    ($m:ident EXP_WEIGHT $x:expr) => {{
        let lo = $crate::$m!(VSET -88.1f32);
        let x = $crate::$m!(VSCALABLE lo, $x);
        let (n, p) = $crate::tile_math!($m EXP_PARTS x);
        let p = $crate::$m!(VADD p, $crate::$m!(VSET 1.0f32));
        $crate::$m!(VSCALE_OR0 p, n)
    }};
    ($m:ident EXP_IN $x:expr) => {{
        let x = $x;
        let (n, p) = $crate::tile_math!($m EXP_PARTS x);
        let p = $crate::$m!(VADD p, $crate::$m!(VSET 1.0f32));
        $crate::$m!(VSCALE p, n)
    }};
    // 2^n * 2^r with x = n + r, which is exact.
    ($m:ident EXP2_WEIGHT $x:expr) => {{
        let x = $x;
        let n = $crate::$m!(VROUND x);
        let r = $crate::$m!(VSUB x, n);
        let p = $crate::tile_math!($m POLY r [0.001_326_471_5, 0.009_671_513, 0.055_507_34, 0.240_222_42,
            0.693_147, 1.0]);
        $crate::$m!(VSCALE_OR0 p, n)
    }};
    ($m:ident EXP2_BF16 $x:expr) => {{
        let x = $x;
        let n = $crate::$m!(VROUND x);
        let r = $crate::$m!(VSUB x, n);
        let p = $crate::tile_math!($m POLY r [0.055_171_67, 0.242_611_12, 0.693_261, 0.999_928_06]);
        $crate::$m!(VSCALE_OR0 p, n)
    }};
    // (n, e^r - 1) with x = n ln 2 + r, n integer, |r| <= ln 2 / 2.
    ($m:ident EXP_PARTS $x:ident) => {{
        let n = $crate::$m!(VROUND $crate::$m!(VMUL $x, $crate::$m!(VSET core::f32::consts::LOG2_E)));
        // ln 2 in two parts; the upper one has 9 bits, so n times it is exact.
        let r = $crate::$m!(VFMA n, $crate::$m!(VSET -0.693_359_4f32), $x);
        let r = $crate::$m!(VFMA n, $crate::$m!(VSET 2.121_944_4e-4f32), r);
        let q = $crate::tile_math!($m POLY r [0.001_395_060_2, 0.008_368_953, 0.041_666_206, 0.166_665_18, 0.5]);
        let p = $crate::$m!(VFMA $crate::$m!(VMUL r, r), q, r);
        (n, p)
    }};
    // 2 * (p * 2^(n - 1) + (2^(n - 1) - 1/2)): exact p for n = 0, no overflow for n = 128.
    ($m:ident EXPM1 $x:expr) => {{
        let lo = $crate::$m!(VSET -20.0f32);
        let x = $crate::$m!(VMAX lo, $x);
        let hi = $crate::$m!(VSET 89.0f32);
        let x = $crate::$m!(VMIN hi, x);
        let (n, p) = $crate::tile_math!($m EXP_PARTS x);
        let s = $crate::$m!(VPOW2 $crate::$m!(VSUB n, $crate::$m!(VSET 1.0f32)));
        let y = $crate::$m!(VFMA p, s, $crate::$m!(VSUB s, $crate::$m!(VSET 0.5f32)));
        $crate::$m!(VADD y, y)
    }};
    ($m:ident LOG $x:expr) => {{
        let x = $x;
        let zero = $crate::$m!(VZERO);
        // Denormals are scaled into the normal range by 2^24.
        let small = $crate::$m!(VGT $crate::$m!(VSET f32::MIN_POSITIVE), x);
        let n = $crate::$m!(VSEL small, $crate::$m!(VMUL x, $crate::$m!(VSET 16_777_216.0f32)), x);
        let bias = $crate::$m!(VSEL small, $crate::$m!(VSET -24.0f32), zero);
        let y = $crate::tile_math!($m LOG_IN n, bias);
        // inf and NaN pass through; zero gives -inf, negative numbers NaN.
        let finite = $crate::$m!(VGT $crate::$m!(VSET f32::INFINITY), x);
        let y = $crate::$m!(VSEL finite, y, x);
        let pole = $crate::$m!(VADD x, $crate::$m!(VSET f32::NEG_INFINITY));
        let low = $crate::$m!(VSEL $crate::$m!(VGT zero, x), $crate::$m!(VSET f32::NAN), pole);
        $crate::$m!(VSEL $crate::$m!(VGT x, zero), y, low)
    }};
    // ln(x) + bias * ln 2 for positive normal x.
    ($m:ident LOG_IN $x:ident, $bias:ident) => {{
        let m = $crate::$m!(VMANT $x);
        let e = $crate::$m!(VADD $crate::$m!(VEXPO $x), $bias);
        let one = $crate::$m!(VSET 1.0f32);
        let half = $crate::$m!(VSET 0.5f32);
        let big = $crate::$m!(VGT m, $crate::$m!(VSET core::f32::consts::SQRT_2));
        let m = $crate::$m!(VSEL big, $crate::$m!(VMUL m, half), m);
        let e = $crate::$m!(VSEL big, $crate::$m!(VADD e, one), e);
        let f = $crate::$m!(VSUB m, one);
        let p = $crate::tile_math!($m POLY f [0.069_155_72, -0.117_902_96, 0.118_731_33, -0.123_842_8,
            0.142_186_31, -0.166_692_54, 0.200_022_28, -0.249_999_87, 0.333_333_1]);
        let s = $crate::$m!(VMUL f, f);
        let y = $crate::$m!(VMUL $crate::$m!(VMUL s, f), p);
        let y = $crate::$m!(VFMA e, $crate::$m!(VSET -2.121_944_4e-4f32), y);
        let y = $crate::$m!(VFMA s, $crate::$m!(VSET -0.5f32), y);
        $crate::$m!(VFMA e, $crate::$m!(VSET 0.693_359_4f32), $crate::$m!(VADD f, y))
    }};
    // ln(u) with u = 1 + x rounded, plus what the rounding lost: (x - (u - 1)) / u, whose divisor
    // only needs two digits (3/2 - u/2 is within 13 % of 1/u on [1, 2]).
    ($m:ident LOG1P01 $x:expr) => {{
        let x = $x;
        let one = $crate::$m!(VSET 1.0f32);
        let zero = $crate::$m!(VZERO);
        let u = $crate::$m!(VADD x, one);
        let lost = $crate::$m!(VSUB x, $crate::$m!(VSUB u, one));
        let w = $crate::$m!(VFMA u, $crate::$m!(VSET -0.5f32), $crate::$m!(VSET 1.5f32));
        $crate::$m!(VFMA lost, w, $crate::tile_math!($m LOG_IN u, zero))
    }};
    // (e^2a - 1) / (e^2a + 1) with a = |x|, which is 1 beyond 10.
    ($m:ident TANH $x:expr) => {{
        let x = $x;
        let a = $crate::$m!(VMIN $crate::$m!(VSET 10.0f32), $crate::$m!(VABS x));
        let e = $crate::tile_math!($m EXPM1 $crate::$m!(VADD a, a));
        let y = $crate::$m!(VDIV e, $crate::$m!(VADD e, $crate::$m!(VSET 2.0f32)));
        $crate::$m!(VCOPYSIGN y, x)
    }};
    // With e = e^x: e / (1 + e), which is 1 from e^17 on, and e where that is small.
    ($m:ident SIGMOID $x:expr) => {{
        let x = $crate::$m!(VMIN $crate::$m!(VSET 30.0f32), $x);
        let x = $crate::$m!(VMAX $crate::$m!(VSET -104.0f32), x);
        let e = $crate::tile_math!($m EXP_IN x);
        $crate::$m!(VDIV e, $crate::$m!(VADD e, $crate::$m!(VSET 1.0f32)))
    }};
    ($m:ident EXP_NEG_ABS $x:ident) => {{
        let a = $crate::$m!(VMIN $crate::$m!(VSET 104.0f32), $crate::$m!(VABS $x));
        let a = $crate::$m!(VNEG a);
        $crate::tile_math!($m EXP_IN a)
    }};
    // x P(x^2) up to 0.925, 1 - e^-(t R(t)) above; erf(4) rounds to 1.
    ($m:ident ERF $x:expr) => {{
        let x = $x;
        let a = $crate::$m!(VABS x);
        let s = $crate::$m!(VMUL x, x);
        let p = $crate::tile_math!($m POLY s [8.215_427e-5, -0.000_810_596_6, 0.005_197_797_4, -0.026_858_104,
            0.112_836_726, -0.376_126_32, core::f32::consts::FRAC_2_SQRT_PI]);
        let small = $crate::$m!(VMUL x, p);
        let t = $crate::$m!(VMIN $crate::$m!(VSET 4.0f32), a);
        let r = $crate::tile_math!($m POLY t [1.043_290_4e-5, -0.000_314_856_1, 0.003_610_334_1, -0.023_694_55,
            0.106_159_03, 0.635_198_06, 1.128_637_1]);
        let e = $crate::$m!(VNEG $crate::$m!(VMUL t, r));
        let big = $crate::$m!(VSUB $crate::$m!(VSET 1.0f32), $crate::tile_math!($m EXP_IN e));
        let far = $crate::$m!(VGT a, $crate::$m!(VSET 0.925f32));
        $crate::$m!(VSEL far, $crate::$m!(VCOPYSIGN big, x), small)
    }};
    // (-1)^k sin(|x| - k pi), k the nearest integer; the sign of x is that of 0, too.
    ($m:ident SIN $x:expr) => {{
        let x = $x;
        let a = $crate::$m!(VABS x);
        let k = $crate::$m!(VROUND $crate::$m!(VMUL a, $crate::$m!(VSET core::f32::consts::FRAC_1_PI)));
        let y = $crate::tile_math!($m SIN_TURNED a, k, k);
        $crate::$m!(VMUL y, $crate::$m!(VCOPYSIGN $crate::$m!(VSET 1.0f32), x)) }};
    // sin(|x| + pi / 2) = (-1)^k sin(|x| - (k - 1/2) pi).
    ($m:ident COS $x:expr) => {{
        let a = $crate::$m!(VABS $x);
        let half = $crate::$m!(VSET 0.5f32);
        let k = $crate::$m!(VFMA a, $crate::$m!(VSET core::f32::consts::FRAC_1_PI), half);
        let k = $crate::$m!(VROUND k);
        $crate::tile_math!($m SIN_TURNED a, $crate::$m!(VSUB k, half), k) }};
    // (-1)^k sin(a - h pi) for h in [0, 2608] in halves, a - h pi in [-pi/2, pi/2].
    ($m:ident SIN_TURNED $a:ident, $h:expr, $k:ident) => {{
        let h = $h;
        // pi in four parts; the first three have 11 bits, so h times them is exact.
        let r = $crate::$m!(VFMA h, $crate::$m!(VSET -3.140_625f32), $a);
        let r = $crate::$m!(VFMA h, $crate::$m!(VSET -9.675_026e-4f32), r);
        let r = $crate::$m!(VFMA h, $crate::$m!(VSET -1.509_906_7e-7f32), r);
        let r = $crate::$m!(VFMA h, $crate::$m!(VSET -5.126_688e-12f32), r);
        let s = $crate::$m!(VMUL r, r);
        let p = $crate::tile_math!($m POLY s [2.605_631_2e-6, -0.000_198_095_4, 0.008_333_066,
            -0.166_666_6]);
        let y = $crate::$m!(VFMA $crate::$m!(VMUL r, s), p, r);
        let even = $crate::$m!(VFLOOR $crate::$m!(VMUL $k, $crate::$m!(VSET 0.5f32)));
        let odd = $crate::$m!(VFMA even, $crate::$m!(VSET -2.0f32), $k);
        $crate::$m!(VMUL y, $crate::$m!(VFMA odd, $crate::$m!(VSET -2.0f32), $crate::$m!(VSET 1.0f32))) }};
    // pi / 2 - atan(1 / a) where a = |x| > 1.
    ($m:ident ATAN $x:expr) => {{
        let x = $x;
        let one = $crate::$m!(VSET 1.0f32);
        let a = $crate::$m!(VABS x);
        let far = $crate::$m!(VGT a, one);
        let t = $crate::$m!(VSEL far, $crate::$m!(VDIV one, a), a);
        let s = $crate::$m!(VMUL t, t);
        let p = $crate::tile_math!($m POLY s [-0.001_793_621_8, 0.010_914_606, -0.031_177_847, 0.057_957_593,
            -0.084_034_5, 0.109_521_86, -0.142_642_42, 0.199_985_49, -0.333_333]);
        let p = $crate::$m!(VMUL $crate::$m!(VMUL t, s), p);
        let near = $crate::$m!(VADD t, p);
        // pi / 2 is the constant less 4.4e-8; t before what is small beside it.
        let rest = $crate::$m!(VADD p, $crate::$m!(VSET 4.371_139e-8f32));
        let turned = $crate::$m!(VADD rest, t);
        let turned = $crate::$m!(VSUB $crate::$m!(VSET core::f32::consts::FRAC_PI_2), turned);
        $crate::$m!(VCOPYSIGN $crate::$m!(VSEL far, turned, near), x) }};
    ($m:ident SILU $x:expr) => {{
        let x = $x;
        $crate::$m!(VMUL x, $crate::tile_math!($m SIGMOID x)) }};
    // x/2 (1 + e) with e = erf(x / sqrt 2) to 3e-7: t P(t^2) for |t| up to 5.5, with a polynomial in a number
    // of [-1, 1] whose terms do not cancel. It ends above 1, so that e is 1 from there on.
    ($m:ident GELU $x:expr) => {{
        let x = $x;
        let one = $crate::$m!(VSET 1.0f32);
        let below = $crate::$m!(VSET -1.0f32);
        let t = $crate::$m!(VMAX $crate::$m!(VSET -5.515_433f32), x);
        let t = $crate::$m!(VMIN $crate::$m!(VSET 5.515_433f32), t);
        let u = $crate::$m!(VFMA $crate::$m!(VMUL t, t), $crate::$m!(VSET 0.065_746_22f32), below);
        let p = $crate::tile_math!($m POLY u [0.001_128_598_8, -0.002_858_612_5, 0.002_093_702_3, -0.002_460_376_4,
            0.008_660_867, -0.015_663_734, 0.021_187_134, -0.029_546_788, 0.040_760_446, -0.052_324_023,
            0.064_140_975, -0.077_439_35, 0.095_239_47, -0.127_994_48, 0.256_385_62]);
        let e = $crate::$m!(VMAX below, $crate::$m!(VMUL t, p));
        let e = $crate::$m!(VMIN one, e);
        let half = $crate::$m!(VMUL x, $crate::$m!(VSET 0.5f32));
        $crate::$m!(VFMA half, e, half) }};
    // 1/2 (1 + tanh u) = sigmoid(2 u).
    ($m:ident GELU_TANH $x:expr) => {{
        let x = $x;
        let z = $crate::$m!(VMUL $crate::$m!(VMUL x, x), x);
        let u = $crate::$m!(VMUL x, $crate::$m!(VSET 1.595_769_2f32));
        let u = $crate::$m!(VFMA z, $crate::$m!(VSET 0.071_354_814f32), u);
        $crate::$m!(VMUL x, $crate::tile_math!($m SIGMOID u)) }};
    ($m:ident CLAMP01 $x:expr) => {
        $crate::$m!(VMAX $crate::$m!(VZERO), $crate::$m!(VMIN $crate::$m!(VSET 1.0f32), $x)) };
    // Horner's scheme, highest coefficient first.
    ($m:ident POLY $x:ident [$c:expr, $($r:expr),+]) => {{
        let p = $crate::$m!(VSET $c);
        $(let p = $crate::$m!(VFMA p, $x, $crate::$m!(VSET $r));)+
        p
    }};
    ($m:ident $verb:ident $($r:tt)*) => { compile_error!(concat!("tile_math lacks ", stringify!($verb))); };
}
