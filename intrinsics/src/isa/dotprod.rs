//! NEON with dot products of bytes (FEAT_DotProd), by assembly: the intrinsics are not stable.

/// The tile macro of DotProd for `i8`: four signed bytes per lane.
#[macro_export]
macro_rules! tile_dotprod_i8 {
    // SAFETY: as in the `f32` row; activations may lie at any byte.
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vdupq_n_s32(
        unsafe { $p.wrapping_add($i).cast::<i32>().read_unaligned() })) };
    // SAFETY (2 arms): works on registers only, of a CPU that has the instruction.
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) c, in(vreg) $b,
            in(vreg) $a, options(pure, nomem, nostack, preserves_flags)) };
        c }};
    (VFMA_LANE $k:literal, $a:expr, $b:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!(concat!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[", $k, "]"), inout(vreg) c,
            in(vreg) $b, in(vreg) $a, options(pure, nomem, nostack, preserves_flags)) };
        c }};
    (COMPUTE $($verb:tt)*) => { $crate::tile_neon_f32!(COMPUTE_OF tile_dotprod_i8 $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_neon_f32!($($verb)*) };
}

/// The tile macro of DotProd for blocks of weights.
#[macro_export]
macro_rules! tile_dotprod_block {
    // Four columns at once, by the lanes of one vector: a load instead of four, and no registers for what
    // LLVM would load before its turn.
    (DOTS VFMA $($verb:tt)*) => { $crate::tile_neon_block!(DOTS VFMA $($verb)*) };
    (DOTS $verb:ident $a:ident [$v:tt x 4] += $b:ident * $x:ident, $g:expr) => {
        let x = $crate::tile_neon_f32!(VLOAD $x, $g);
        $crate::each!(j in $v {
            $a[0][j] = $crate::tile_neon_f32!(VKEEP $crate::tile_dotprod_i8!(VFMA_LANE 0, x, $b[j], $a[0][j]));
            $a[1][j] = $crate::tile_neon_f32!(VKEEP $crate::tile_dotprod_i8!(VFMA_LANE 1, x, $b[j], $a[1][j]));
            $a[2][j] = $crate::tile_neon_f32!(VKEEP $crate::tile_dotprod_i8!(VFMA_LANE 2, x, $b[j], $a[2][j]));
            $a[3][j] = $crate::tile_neon_f32!(VKEEP $crate::tile_dotprod_i8!(VFMA_LANE 3, x, $b[j], $a[3][j]));
        }); };
    (VDOT $w:expr, $x:expr, $c:expr) => {
        $crate::tile_neon_f32!(VKEEP $crate::tile_dotprod_i8!(VFMA $x, $w, $c)) };
    (VDOTU $w:expr, $x:expr, $c:expr) => { $crate::tile_dotprod_block!(VDOT $w, $x, $c) };
    (DOTS $($verb:tt)*) => { $crate::tile_default!(tile_dotprod_block DOTS $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_neon_block!($($verb)*) };
}
