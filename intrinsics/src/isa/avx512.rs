//! AVX-512F.

/// The tile macro of AVX-512F for `f32`: 32 registers of 16 lanes. See the crate documentation.
#[macro_export]
macro_rules! tile_avx512_f32 {
    (LANES) => { 16usize };
    (STEPS) => { $crate::steps::Nine };
    (VTYPE) => { $crate::arch::__m512 };
    (VZERO) => { $crate::arch::_mm512_setzero_ps() };
    (VSET $x:expr) => { $crate::arch::_mm512_set1_ps($x) };
    // SAFETY (5 memory arms): the verb's caller owns the elements that the index reaches; the
    // mask of a tail keeps the access to its first `n` elements.
    (VLOAD $p:expr, $i:expr) => { unsafe { $crate::arch::_mm512_loadu_ps($p.wrapping_add($i * 16)) } };
    (VLOAD_TAIL $p:expr, $n:expr) => {
        unsafe { $crate::arch::_mm512_maskz_loadu_ps(((1u32 << $n) - 1) as u16, $p) } };
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::_mm512_set1_ps(unsafe { *$p.wrapping_add($i) }) };
    (VSTORE $p:expr, $i:expr, $x:expr) => {
        unsafe { $crate::arch::_mm512_storeu_ps($p.wrapping_add($i * 16), $x) } };
    (VSTORE_TAIL $p:expr, $n:expr, $x:expr) => {
        unsafe { $crate::arch::_mm512_mask_storeu_ps($p, ((1u32 << $n) - 1) as u16, $x) } };
    // SAFETY: a prefetch is a hint and may name any address.
    (VPREFETCH $p:expr, $i:expr) => { unsafe {
        $crate::arch::_mm_prefetch::<{ $crate::arch::_MM_HINT_T0 }>($p.wrapping_add($i).cast()) } };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm512_fmadd_ps($a, $b, $c) };
    (VADD $a:expr, $b:expr) => { $crate::arch::_mm512_add_ps($a, $b) };
    (VSUB $a:expr, $b:expr) => { $crate::arch::_mm512_sub_ps($a, $b) };
    (VMUL $a:expr, $b:expr) => { $crate::arch::_mm512_mul_ps($a, $b) };
    (VDIV $a:expr, $b:expr) => { $crate::arch::_mm512_div_ps($a, $b) };
    (VMAX $a:expr, $b:expr) => { $crate::arch::_mm512_max_ps($a, $b) };
    (VMIN $a:expr, $b:expr) => { $crate::arch::_mm512_min_ps($a, $b) };
    (VSQRT $x:expr) => { $crate::arch::_mm512_sqrt_ps($x) };
    (VROUND $x:expr) => { $crate::arch::_mm512_roundscale_ps::<0x08>($x) };
    (VFLOOR $x:expr) => { $crate::arch::_mm512_roundscale_ps::<0x09>($x) };
    (VABS $x:expr) => { $crate::arch::_mm512_abs_ps($x) };
    (VCOPYSIGN $x:expr, $s:expr) => { $crate::arch::_mm512_castsi512_ps(
        $crate::arch::_mm512_ternarylogic_epi32::<0xd8>($crate::arch::_mm512_castps_si512($x),
            $crate::arch::_mm512_castps_si512($s), $crate::arch::_mm512_set1_epi32(i32::MIN))) };
    (VGT $a:expr, $b:expr) => {
        $crate::arch::_mm512_cmp_ps_mask::<{ $crate::arch::_CMP_GT_OQ }>($a, $b) };
    (VSEL $m:expr, $a:expr, $b:expr) => { $crate::arch::_mm512_mask_blend_ps($m, $b, $a) };
    (VPOW2 $n:expr) => { $crate::arch::_mm512_scalef_ps($crate::arch::_mm512_set1_ps(1.0), $n) };
    (VEXPO $x:expr) => { $crate::arch::_mm512_getexp_ps($x) };
    (VMANT $x:expr) => { $crate::arch::_mm512_getmant_ps::<
        { $crate::arch::_MM_MANT_NORM_1_2 }, { $crate::arch::_MM_MANT_SIGN_SRC }>($x) };
    (VPAIR_LO $a:expr, $b:expr) => { $crate::arch::_mm512_unpacklo_ps($a, $b) };
    (VPAIR_HI $a:expr, $b:expr) => { $crate::arch::_mm512_unpackhi_ps($a, $b) };
    (VQUAD_LO $a:expr, $b:expr) => { $crate::arch::_mm512_castpd_ps($crate::arch::_mm512_unpacklo_pd(
        $crate::arch::_mm512_castps_pd($a), $crate::arch::_mm512_castps_pd($b))) };
    (VQUAD_HI $a:expr, $b:expr) => { $crate::arch::_mm512_castpd_ps($crate::arch::_mm512_unpackhi_pd(
        $crate::arch::_mm512_castps_pd($a), $crate::arch::_mm512_castps_pd($b))) };
    // Vectors K, 4 + K, 8 + K, 12 + K hold a 4 x 4 matrix of 128-bit quads: transpose it.
    (TRANSPOSE $t:ident) => {
        $crate::tile_default!(tile_avx512_f32 QUADS $t [4]);
        $crate::each!(k in 4 {
            let x = $crate::arch::_mm512_shuffle_f32x4::<0x44>($t[k][0], $t[4 + k][0]);
            let y = $crate::arch::_mm512_shuffle_f32x4::<0xee>($t[k][0], $t[4 + k][0]);
            let z = $crate::arch::_mm512_shuffle_f32x4::<0x44>($t[8 + k][0], $t[12 + k][0]);
            let w = $crate::arch::_mm512_shuffle_f32x4::<0xee>($t[8 + k][0], $t[12 + k][0]);
            $t[k][0] = $crate::arch::_mm512_shuffle_f32x4::<0x88>(x, z);
            $t[4 + k][0] = $crate::arch::_mm512_shuffle_f32x4::<0xdd>(x, z);
            $t[8 + k][0] = $crate::arch::_mm512_shuffle_f32x4::<0x88>(y, w);
            $t[12 + k][0] = $crate::arch::_mm512_shuffle_f32x4::<0xdd>(y, w);
        }); };
    // Lanes that hold `i32` bits.
    (VITOF $x:expr) => { $crate::arch::_mm512_cvtepi32_ps($crate::arch::_mm512_castps_si512($x)) };
    (VIMLA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_add_epi32(
        $crate::arch::_mm512_castps_si512($c), $crate::arch::_mm512_mullo_epi32(
            $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b)))) };
    // SAFETY (2 memory arms): as above, of bytes.
    (VSTORE8 $p:expr, $x:expr) => { unsafe { $crate::arch::_mm_storeu_si128($p.cast(),
        $crate::arch::_mm512_cvtepi32_epi8($crate::arch::_mm512_cvtps_epi32($x))) } };
    (VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => { unsafe { $crate::arch::_mm512_mask_cvtepi32_storeu_epi8(
        $p.cast(), ((1u32 << $n) - 1) as u16, $crate::arch::_mm512_cvtps_epi32($x)) } };
    (VEVEN $a:expr, $b:expr) => { $crate::arch::_mm512_permutex2var_ps($a, $crate::arch::_mm512_set_epi32(
        30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), $b) };
    (VODD $a:expr, $b:expr) => { $crate::arch::_mm512_permutex2var_ps($a, $crate::arch::_mm512_set_epi32(
        31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1), $b) };
    (VSCALE $x:expr, $n:expr) => { $crate::arch::_mm512_scalef_ps($x, $n) };
    ($($verb:tt)*) => { $crate::tile_default!(tile_avx512_f32 $($verb)*) };
}
