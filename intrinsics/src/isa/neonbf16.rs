//! NEON with dot products of bf16 (FEAT_BF16), by assembly: the intrinsics are not stable.

/// The tile macro of FEAT_BF16 for `bf16`: pairs, summed in `f32`.
#[macro_export]
macro_rules! tile_neonbf16_bf16 {
    // SAFETY: as in the `f32` row; activations may lie at any byte.
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vdupq_n_s32(
        unsafe { $p.wrapping_add($i).cast::<i32>().read_unaligned() })) };
    // SAFETY (2 arms): works on registers only, of a CPU that has the instruction.
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!("bfdot {0:v}.4s, {1:v}.8h, {2:v}.8h", inout(vreg) c, in(vreg) $b,
            in(vreg) $a, options(pure, nomem, nostack, preserves_flags)) };
        c }};
    (VFMA_LANE $k:literal, $a:expr, $b:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!(concat!("bfdot {0:v}.4s, {1:v}.8h, {2:v}.2h[", $k, "]"), inout(vreg) c,
            in(vreg) $b, in(vreg) $a, options(pure, nomem, nostack, preserves_flags)) };
        c }};
    // SAFETY (2 arms): works on registers only, of a CPU that has the instructions.
    (VPAIR16 $a:expr, $b:expr) => {{
        let (x, y): ($crate::arch::float32x4_t, $crate::arch::float32x4_t);
        unsafe { core::arch::asm!("bfcvtn {0:v}.4h, {2:v}.4s", "bfcvtn {1:v}.4h, {3:v}.4s",
            "zip1 {0:v}.8h, {0:v}.8h, {1:v}.8h", out(vreg) x, out(vreg) y, in(vreg) $a, in(vreg) $b,
            options(pure, nomem, nostack, preserves_flags)) };
        let _ = y;
        x }};
    (VROW16 $a:expr, $b:expr) => {{
        let mut x = $a;
        unsafe { core::arch::asm!("bfcvtn {0:v}.4h, {0:v}.4s", "bfcvtn2 {0:v}.8h, {1:v}.4s",
            inout(vreg) x, in(vreg) $b, options(pure, nomem, nostack, preserves_flags)) };
        x }};
    (COMPUTE $($verb:tt)*) => { $crate::tile_neon_f32!(COMPUTE_OF tile_neonbf16_bf16 $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_neon_f32!($($verb)*) };
}
