//! AVX-512 VNNI: AVX-512F with dot products of bytes.

/// The tile macro of AVX-512 VNNI for `i8`: `u8` activations, `i8` weights, four per lane.
#[macro_export]
macro_rules! tile_avx512vnni_i8 {
    // SAFETY: as in the `f32` row; activations may lie at any byte.
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_set1_epi32(
        unsafe { $p.wrapping_add($i).cast::<i32>().read_unaligned() })) };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_dpbusd_epi32(
        $crate::arch::_mm512_castps_si512($c), $crate::arch::_mm512_castps_si512($a),
        $crate::arch::_mm512_castps_si512($b))) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_avx512vnni_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx512_f32!($($verb)*) };
}
