//! The bodies of the element-wise functions.

/// Calls `$then! { $args; rows }` with one row per function: kernel name, variant of
/// [`UnaryOp`](super::unary::UnaryOp), vectors per pass of the loop, and the value as an expression
/// of the vector `x` and the parameters `a` and `b`, all lanes equal.
macro_rules! unary_list {
    ($then:ident $($args:tt)*) => { $then! { $($args)*;
        relu Relu x 4 |x, a, b| tile!(VMAX tile!(VZERO), x);
        leaky_relu LeakyRelu x 4 |x, a, b| tile!(VSEL tile!(VGT x, tile!(VZERO)), x, tile!(VMUL x, a));
        clip Clip x 4 |x, a, b| tile!(VMIN b, tile!(VMAX a, x));
        sigmoid Sigmoid x 2 |x, a, b| tile!(MATH SIGMOID x);
        hard_sigmoid HardSigmoid x 4 |x, a, b| tile!(MATH CLAMP01 tile!(VFMA x, a, b));
        hard_swish HardSwish x 4 |x, a, b| tile!(VMUL x, tile!(MATH CLAMP01
            tile!(VFMA x, tile!(VSET 1.0f32 / 6.0), tile!(VSET 0.5f32))));
        tanh Tanh x 2 |x, a, b| tile!(MATH TANH x);
        exp Exp x 2 |x, a, b| tile!(MATH EXP x);
        log Log x 2 |x, a, b| tile!(MATH LOG x);
        sqrt Sqrt x 4 |x, a, b| tile!(VSQRT x);
        reciprocal Reciprocal x 4 |x, a, b| tile!(VDIV tile!(VSET 1.0f32), x);
        neg Neg x 4 |x, a, b| tile!(VNEG x);
        abs Abs x 4 |x, a, b| tile!(VABS x);
        floor Floor x 4 |x, a, b| tile!(VFLOOR x);
        ceil Ceil x 4 |x, a, b| tile!(VNEG tile!(VFLOOR tile!(VNEG x)));
        round Round x 4 |x, a, b| tile!(VROUND x);
        sign Sign x 4 |x, a, b| tile!(VSEL tile!(VGT x, tile!(VZERO)), tile!(VSET 1.0f32),
            tile!(VSEL tile!(VGT tile!(VZERO), x), tile!(VSET -1.0f32), x));
        square Square x 4 |x, a, b| tile!(VMUL x, x);
        erf Erf x 2 |x, a, b| tile!(MATH ERF x);
        gelu Gelu x 2 |x, a, b| tile!(MATH GELU x);
        gelu_tanh GeluTanh x 2 |x, a, b| tile!(MATH GELU_TANH x);
        silu Silu x 2 |x, a, b| tile!(VMUL x, tile!(MATH SIGMOID tile!(VMUL a, x)));
        softplus Softplus x 2 |x, a, b| {
            let e = tile!(MATH EXP_NEG_ABS x);
            tile!(VADD tile!(VMAX tile!(VZERO), x), tile!(MATH LOG1P01 e))
        };
        softsign Softsign x 4 |x, a, b| tile!(VDIV x, tile!(VADD tile!(VSET 1.0f32), tile!(VABS x)));
        // tanh(ln(1 + e)) = n / (n + 2) with n = e (e + 2), which is 1 beyond e^30.
        mish Mish x 2 |x, a, b| {
            let e = tile!(MATH EXP tile!(VMIN tile!(VSET 30.0f32), x));
            let n = tile!(VMUL e, tile!(VADD e, tile!(VSET 2.0f32)));
            tile!(VMUL x, tile!(VDIV n, tile!(VADD n, tile!(VSET 2.0f32))))
        };
        elu Elu x 2 |x, a, b| {
            let e = tile!(VMUL a, tile!(MATH EXPM1 x));
            tile!(VSEL tile!(VGT x, tile!(VZERO)), x, e)
        };
        celu Celu x 2 |x, a, b| {
            let e = tile!(VMUL a, tile!(MATH EXPM1 tile!(VMUL x, b)));
            tile!(VSEL tile!(VGT x, tile!(VZERO)), x, e)
        };
        selu Selu x 2 |x, a, b| {
            let e = tile!(VMUL a, tile!(MATH EXPM1 x));
            tile!(VSEL tile!(VGT x, tile!(VZERO)), tile!(VMUL x, b), e)
        };
        sin Sin x 2 |x, a, b| tile!(MATH SIN x);
        cos Cos x 2 |x, a, b| tile!(MATH COS x);
        atan Atan x 2 |x, a, b| tile!(MATH ATAN x);
        thresholded_relu ThresholdedRelu x 4 |x, a, b| tile!(VSEL tile!(VGT x, a), x, tile!(VZERO));
        affine Affine x 4 |x, a, b| tile!(VFMA x, a, b);
    } };
}
pub(crate) use unary_list;
