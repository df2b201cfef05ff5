//! AVX-VNNI: AVX2 with dot products of bytes.

/// The tile macro of AVX-VNNI for `i8`: `u8` activations, `i8` weights, four per lane.
#[macro_export]
macro_rules! tile_avxvnni_i8 {
    // SAFETY: as in the `f32` row; activations may lie at any byte.
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_set1_epi32(
        unsafe { $p.wrapping_add($i).cast::<i32>().read_unaligned() })) };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_dpbusd_avx_epi32(
        $crate::arch::_mm256_castps_si256($c), $crate::arch::_mm256_castps_si256($a),
        $crate::arch::_mm256_castps_si256($b))) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_avxvnni_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx2_f32!($($verb)*) };
}

/// The tile macro of AVX-VNNI for blocks of weights.
#[macro_export]
macro_rules! tile_avxvnni_block {
    (BIASED) => { true };
    (STREAMS) => { 1 };
    (HALVED) => { false };
    (VDOT $w:expr, $x:expr, $c:expr) => { $crate::tile_avx2_f32!(VKEEP $crate::arch::_mm256_castsi256_ps(
        $crate::arch::_mm256_dpbusd_avx_epi32($crate::arch::_mm256_castps_si256($c),
            $crate::arch::_mm256_castps_si256($w), $crate::arch::_mm256_castps_si256($x)))) };
    (VDOTU $w:expr, $x:expr, $c:expr) => { $crate::tile_avxvnni_block!(VDOT $w, $x, $c) };
    (DOTS $($verb:tt)*) => { $crate::tile_default!(tile_avxvnni_block DOTS $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx2_block!($($verb)*) };
}
