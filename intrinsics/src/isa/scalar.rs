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
    (VPREFETCH $p:expr, $i:expr) => {};
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
    (VPOW2 $n:expr) => { f32::from_bits((($n as i32 + 127) << 23) as u32) };
    (VEXPO $x:expr) => { ((f32::to_bits($x) >> 23) as i32 - 127) as f32 };
    (VMANT $x:expr) => { f32::from_bits(f32::to_bits($x) & 0x007f_ffff | 0x3f80_0000) };
    (TRANSPOSE $t:ident) => {};
    ($($verb:tt)*) => { $crate::tile_default!(tile_scalar_f32 $($verb)*) };
}
