//! AVX-512 BF16: AVX-512 VNNI with dot products of bf16.

/// The tile macro of AVX-512 BF16 for `bf16`: pairs, summed in `f32`.
#[macro_export]
macro_rules! tile_avx512bf16_bf16 {
    // SAFETY: as in the `f32` row; activations may lie at any byte.
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_set1_epi32(
        unsafe { $p.wrapping_add($i).cast::<i32>().read_unaligned() })) };
    // SAFETY: both types are 512 bits without invalid values.
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let (a, b): ($crate::arch::__m512bh, $crate::arch::__m512bh) =
            unsafe { (core::mem::transmute($a), core::mem::transmute($b)) };
        $crate::arch::_mm512_dpbf16_ps($c, a, b) }};
    (VPAIR16 $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_permutexvar_epi16(
        $crate::arch::_mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
            23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0),
        $crate::arch::_mm512_castps_si512($crate::tile_avx512bf16_bf16!(VROW16 $a, $b)))) };
    // SAFETY: both types are 512 bits without invalid values.
    (VROW16 $a:expr, $b:expr) => {{
        let x = $crate::arch::_mm512_cvtne2ps_pbh($b, $a);
        let x: $crate::arch::__m512 = unsafe { core::mem::transmute(x) };
        x }};
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_avx512bf16_bf16 COMPUTE $($verb)*) };
    (DRAIN $($verb:tt)*) => { $crate::tile_default!(tile_avx512bf16_bf16 DRAIN_BY 4 $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx512_f32!($($verb)*) };
}
