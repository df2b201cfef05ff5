//! Portable code, for every target: the compiler may vectorise it for the target's baseline.

/// The tile macro of plain Rust for `f32`: one lane. See the crate documentation.
#[macro_export]
macro_rules! tile_scalar_f32 {
    (LANES) => { 1usize };
    (STEPS) => { $crate::steps::One };
    (VTYPE) => { f32 };
    (VZERO) => { 0.0f32 };
    (VSET $x:expr) => { $x };
    // SAFETY (5 memory arms): the verb's caller owns the elements that the index reaches; a tail
    // has `n <= 1` elements.
    (VLOAD $p:expr, $i:expr) => { unsafe { *$p.wrapping_add($i) } };
    (VLOAD_TAIL $p:expr, $n:expr) => { if $n > 0 { unsafe { *$p } } else { 0.0 } };
    (VSPLAT $p:expr, $i:expr) => { unsafe { *$p.wrapping_add($i) } };
    (VSTORE $p:expr, $i:expr, $x:expr) => { unsafe { *$p.wrapping_add($i) = $x } };
    (VSTORE_TAIL $p:expr, $n:expr, $x:expr) => { if $n > 0 { unsafe { *$p = $x } } };
    (VPREFETCH $p:expr, $i:expr) => { let _ = ($p, $i); };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::soft::mul_add($a, $b, $c) };
    (VADD $a:expr, $b:expr) => { core::ops::Add::add($a, $b) };
    (VSUB $a:expr, $b:expr) => { core::ops::Sub::sub($a, $b) };
    (VMUL $a:expr, $b:expr) => { core::ops::Mul::mul($a, $b) };
    (VDIV $a:expr, $b:expr) => { core::ops::Div::div($a, $b) };
    (VMAX $a:expr, $b:expr) => {{ let (a, b) = ($a, $b); if a > b { a } else { b } }};
    (VMIN $a:expr, $b:expr) => {{ let (a, b) = ($a, $b); if a < b { a } else { b } }};
    (VSQRT $x:expr) => { $crate::soft::sqrt($x) };
    (VROUND $x:expr) => { $crate::soft::round($x) };
    (VFLOOR $x:expr) => { $crate::soft::floor($x) };
    (VABS $x:expr) => { f32::from_bits(f32::to_bits($x) & 0x7fff_ffff) };
    (VCOPYSIGN $x:expr, $s:expr) => {
        f32::from_bits(f32::to_bits($x) & 0x7fff_ffff | f32::to_bits($s) & 0x8000_0000) };
    (VGT $a:expr, $b:expr) => { $a > $b };
    (VSEL $m:expr, $a:expr, $b:expr) => { if $m { $a } else { $b } };
    // Both orders give the same number, or one of them a NaN, which the other does not unmake.
    (VMAXIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        f32::from_bits(f32::to_bits(if a > b { a } else { b }) | f32::to_bits(if b > a { b } else { a })) }};
    (VMINIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        f32::from_bits(f32::to_bits(if a < b { a } else { b }) | f32::to_bits(if b < a { b } else { a })) }};
    // Of others anything, as in vectors: softmax asks for them where a NaN hid the largest from it.
    (VPOW2 $n:expr) => { f32::from_bits((($n as i32).wrapping_add(127) << 23) as u32) };
    (VEXPO $x:expr) => { ((f32::to_bits($x) >> 23) as i32 - 127) as f32 };
    (VMANT $x:expr) => { f32::from_bits(f32::to_bits($x) & 0x007f_ffff | 0x3f80_0000) };
    (VEVEN $a:expr, $b:expr) => {{ let _ = $b; $a }};
    (VODD $a:expr, $b:expr) => {{ let _ = $a; $b }};
    (VPREV $a:expr, $b:expr) => {{ let _ = $b; $a }};
    (VNEXT $a:expr, $b:expr) => {{ let _ = $a; $b }};
    (TRANSPOSE $t:ident) => {};
    // A lane that holds `i32` bits.
    (VITOF $x:expr) => { f32::to_bits($x) as i32 as f32 };
    (VIMLA $a:expr, $b:expr, $c:expr) => { f32::from_bits(
        f32::to_bits($a).wrapping_mul(f32::to_bits($b)).wrapping_add(f32::to_bits($c))) };
    // SAFETY (3 memory arms): as above, of bytes.
    (VLOAD8 $p:expr, $mask:expr, $zero:expr) => {
        f32::from_bits(f32::to_bits($mask) ^ u32::from(unsafe { *$p })) - $zero };
    (VSTORE8 $p:expr, $x:expr) => { unsafe { *$p = ($x as i32) as u8 } };
    (VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => { if $n > 0 { unsafe { *$p = ($x as i32) as u8 } } };
    ($($verb:tt)*) => { $crate::tile_default!(tile_scalar_f32 $($verb)*) };
}

/// The tile macro of plain Rust for `i8`: `u8` activations, `i8` weights, four per word.
#[macro_export]
macro_rules! tile_scalar_i8 {
    // SAFETY: as in the `f32` row; activations may lie at any byte.
    (VSPLAT $p:expr, $i:expr) => { unsafe { $p.wrapping_add($i).read_unaligned() } };
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let (a, b) = (f32::to_bits($a).to_ne_bytes(), f32::to_bits($b).to_ne_bytes());
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i] as i8);
        let sum = product(0) + product(1) + product(2) + product(3);
        f32::from_bits((f32::to_bits($c) as i32).wrapping_add(sum) as u32) }};
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_scalar_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_scalar_f32!($($verb)*) };
}

/// The tile macro of plain Rust for blocks of weights: a lane is a row.
#[macro_export]
macro_rules! tile_scalar_block {
    (BIASED) => { false };
    (VDOT $w:expr, $x:expr, $c:expr) => {{
        let (w, x) = (f32::to_bits($w).to_ne_bytes(), f32::to_bits($x).to_ne_bytes());
        let product = |i: usize| i32::from(w[i] as i8) * i32::from(x[i] as i8);
        let sum = product(0) + product(1) + product(2) + product(3);
        f32::from_bits((f32::to_bits($c) as i32).wrapping_add(sum) as u32) }};
    (VDOTU $($verb:tt)*) => { $crate::tile_default!(tile_scalar_block VDOTU $($verb)*) };
    // SAFETY: the verb's caller owns the word.
    (VWORDS $p:expr) => {{ let p: *const u8 = $p; unsafe { p.cast::<f32>().read_unaligned() } }};
    (VAND $a:expr, $b:expr) => { f32::from_bits(f32::to_bits($a) & f32::to_bits($b)) };
    (VOR $a:expr, $b:expr) => { f32::from_bits(f32::to_bits($a) | f32::to_bits($b)) };
    (VSHL $x:expr, $n:expr) => { f32::from_bits(f32::to_bits($x) << $n) };
    (VSHR $x:expr, $n:expr) => { f32::from_bits(f32::to_bits($x) >> $n) };
    (DOTS $($verb:tt)*) => { $crate::tile_default!(tile_scalar_block DOTS $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_scalar_f32!($($verb)*) };
}
