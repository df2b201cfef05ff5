//! NEON with multiply-adds of f16 into `f32` (FEAT_FP16 and FEAT_FHM), by assembly: the intrinsics are
//! not stable.

/// The tile macro of FEAT_FHM for `f16`: pairs, each product exact and each sum rounded once to `f32`, as
/// if the operands had been converted before.
#[macro_export]
macro_rules! tile_neonfp16_f16 {
    // SAFETY: as in the `f32` row; activations may lie at any element.
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vdupq_n_s32(
        unsafe { $p.wrapping_add($i).cast::<i32>().read_unaligned() })) };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::tile_neonfp16_f16!(VFMA_LANE 0, $a, $b, $c) };
    // SAFETY: works on registers only, of a CPU that has the instructions. The lane's register is one of
    // the first 16.
    (VFMA_LANE $k:literal, $a:expr, $b:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!(
            "fmlal {0:v}.4s, {1:v}.4h, {2:v}.h[{lo}]", "fmlal2 {0:v}.4s, {1:v}.4h, {2:v}.h[{hi}]",
            inout(vreg) c, in(vreg) $b, in(vreg_low16) $a, lo = const 2 * $k, hi = const 2 * $k + 1,
            options(pure, nomem, nostack, preserves_flags)) };
        c }};
    (COMPUTE $($verb:tt)*) => { $crate::tile_neon_f32!(COMPUTE_OF tile_neonfp16_f16 $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_neon_f32!($($verb)*) };
}
