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
    // SAFETY: the mask keeps the access to the pixels that it has.
    (VWORDS8 $p:expr, $mask:expr, $pad:expr, $flip:expr) => {{
        let x = $crate::arch::_mm512_xor_si512($crate::arch::_mm512_castps_si512($flip), unsafe {
            $crate::arch::_mm512_mask_loadu_epi32($crate::arch::_mm512_castps_si512($pad), $mask, $p.cast()) });
        let quads = $crate::arch::_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        let bytes = $crate::arch::_mm512_set4_epi32(0x0f0b_0703, 0x0e0a_0602, 0x0d09_0501, 0x0c08_0400);
        let mut x = $crate::arch::_mm512_permutexvar_epi32(quads, x);
        // SAFETY: no instruction; the vector passes as it is. Otherwise LLVM makes eleven of the two.
        unsafe { core::arch::asm!("/* {0} */", inout(zmm_reg) x, options(pure, nomem, nostack, preserves_flags)) };
        $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_shuffle_epi8(x, bytes)) }};
    (VHALVES $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_mask_blend_epi16(
        0x5555_5555, $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b))) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_avx512vnni_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx512_f32!($($verb)*) };
}

/// The tile macro of AVX-512 VNNI for blocks of weights.
#[macro_export]
macro_rules! tile_avx512vnni_block {
    (BIASED) => { true };
    (VDOT $w:expr, $x:expr, $c:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_dpbusd_epi32(
        $crate::arch::_mm512_castps_si512($c), $crate::arch::_mm512_castps_si512($w),
        $crate::arch::_mm512_castps_si512($x))) };
    (VDOTU $w:expr, $x:expr, $c:expr) => { $crate::tile_avx512vnni_block!(VDOT $w, $x, $c) };
    // SAFETY: the verb's caller owns 16 halves there.
    (VLOADB16 $p:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_slli_epi32::<16>(
        $crate::arch::_mm512_cvtepu16_epi32(unsafe { $crate::arch::_mm256_loadu_si256($p.cast()) }))) };
    (VAND $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_and_si512(
        $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b))) };
    (VOR $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_or_si512(
        $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b))) };
    (VXOR $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_xor_si512(
        $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b))) };
    // SAFETY: the verb's caller owns 16 bytes at each place.
    (VQUADS $p:expr, $far:expr) => {{
        let p: *const u8 = $p;
        let quad = |i: usize| unsafe { $crate::arch::_mm_loadu_ps(p.wrapping_add(i * $far).cast()) };
        let x = $crate::arch::_mm512_castps128_ps512(quad(0));
        let x = $crate::arch::_mm512_insertf32x4::<1>(x, quad(1));
        let x = $crate::arch::_mm512_insertf32x4::<2>(x, quad(2));
        $crate::arch::_mm512_insertf32x4::<3>(x, quad(3)) }};
    // By constants, which become part of the instruction.
    (VSHL $x:expr, $n:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_sllv_epi32(
        $crate::arch::_mm512_castps_si512($x), $crate::arch::_mm512_set1_epi32(($n) as i32))) };
    (VSHR $x:expr, $n:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_srlv_epi32(
        $crate::arch::_mm512_castps_si512($x), $crate::arch::_mm512_set1_epi32(($n) as i32))) };
    // SAFETY: a table has 16 bytes.
    (VTABLE $t:expr, $x:expr) => {{
        let table: &[u8; 16] = $t;
        let table = unsafe { $crate::arch::_mm_loadu_si128(table.as_ptr().cast()) };
        $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_shuffle_epi8(
            $crate::arch::_mm512_broadcast_i32x4(table), $crate::arch::_mm512_castps_si512($x))) }};
    (DOTS $($verb:tt)*) => { $crate::tile_default!(tile_avx512vnni_block DOTS $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx512_f32!($($verb)*) };
}
