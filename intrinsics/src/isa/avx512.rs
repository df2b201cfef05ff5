//! AVX-512F, and BW for pairs of `i16`.

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
    // SAFETY: the verb's caller owns the elements and has aligned them; a fence touches nothing.
    (VSTREAM $p:expr, $i:expr, $x:expr) => {
        unsafe { $crate::arch::_mm512_stream_ps($p.wrapping_add($i * 16), $x) } };
    (VSTREAMED) => { unsafe { $crate::arch::_mm_sfence() } };
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
    // The instruction gives `b` if either is NaN: where that is `a`, it is kept.
    (VMAXIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::_mm512_mask_max_ps(a, $crate::tile_avx512_f32!(ORDERED a), a, b) }};
    (VMINIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::_mm512_mask_min_ps(a, $crate::tile_avx512_f32!(ORDERED a), a, b) }};
    (ORDERED $a:expr) => { $crate::arch::_mm512_cmp_ps_mask::<{ $crate::arch::_CMP_ORD_Q }>($a, $a) };
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
    // SAFETY (3 memory arms): as above, of bytes.
    (VLOAD8 $p:expr, $mask:expr, $zero:expr) => { $crate::arch::_mm512_sub_ps($crate::arch::_mm512_castsi512_ps(
        $crate::arch::_mm512_xor_si512($crate::arch::_mm512_castps_si512($mask), $crate::arch::_mm512_cvtepu8_epi32(
            unsafe { $crate::arch::_mm_loadu_si128($p.cast()) }))), $zero) };
    (VSTORE8 $p:expr, $x:expr) => { unsafe { $crate::arch::_mm_storeu_si128($p.cast(),
        $crate::arch::_mm512_cvtepi32_epi8($crate::arch::_mm512_cvtps_epi32($x))) } };
    (VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => { unsafe { $crate::arch::_mm512_mask_cvtepi32_storeu_epi8(
        $p.cast(), ((1u32 << $n) - 1) as u16, $crate::arch::_mm512_cvtps_epi32($x)) } };
    // SAFETY (2 memory arms): as above, of the bytes of a pixel.
    (BYTES_LOAD $p:expr) => { unsafe { $crate::arch::_mm_loadu_si128($p.cast()) } };
    (BYTES_STORE $p:expr, $x:expr) => { unsafe { $crate::arch::_mm_storeu_si128($p.cast(), $x) } };
    (BYTES_SPLAT $byte:expr) => { $crate::arch::_mm_set1_epi8($byte as i8) };
    (BYTES_XOR $a:expr, $b:expr) => { $crate::arch::_mm_xor_si128($a, $b) };
    (BYTES_MAX $a:expr, $b:expr) => { $crate::arch::_mm_max_epu8($a, $b) };
    (BYTES_ZIP_LO $a:expr, $b:expr) => { $crate::arch::_mm_unpacklo_epi8($a, $b) };
    (BYTES_ZIP_HI $a:expr, $b:expr) => { $crate::arch::_mm_unpackhi_epi8($a, $b) };
    // SAFETY (2 memory arms): as above, of halves.
    (VLOAD16 $p:expr) => {
        $crate::arch::_mm512_cvtph_ps(unsafe { $crate::arch::_mm256_loadu_si256($p.cast()) }) };
    (VSTORE16 $p:expr, $x:expr) => { unsafe {
        $crate::arch::_mm256_storeu_si256($p.cast(), $crate::arch::_mm512_cvtps_ph::<0x08>($x)) } };
    // Sixty-four bytes at a time. The upper bound is taken where a number may be beyond what the
    // conversion holds, the lower one where bytes saturate: they are those less the lower bound.
    (NARROW $t:ident [$w:tt x $v:tt] $lo:ident, $hi:ident, $zero:ident -> $o:ident[$step:expr, $plane:expr]) => {
        let hi = $crate::arch::_mm512_set1_ps($hi);
        let above = $crate::arch::_mm512_set1_epi16((-$lo) as i16);
        let least = $crate::arch::_mm512_set1_epi8(($lo + $zero) as i32 as i8);
        let order = $crate::arch::_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        $crate::each!(j in $v { $crate::each!(g in 4 { if g * 4 < $w {
            let (i, left) = (g * 4, usize::saturating_sub($w, g * 4));
            let mut x = [above; 4];
            $crate::each!(k in 4 { x[k] = $crate::arch::_mm512_cvtps_epi32(
                $crate::arch::_mm512_min_ps(hi, $t[usize::min(i + k, $w - 1)][j])); });
            let a = $crate::arch::_mm512_adds_epi16($crate::arch::_mm512_packs_epi32(x[0], x[1]), above);
            let b = $crate::arch::_mm512_adds_epi16($crate::arch::_mm512_packs_epi32(x[2], x[3]), above);
            let x = $crate::arch::_mm512_permutexvar_epi32(order, $crate::arch::_mm512_add_epi8(
                $crate::arch::_mm512_packus_epi16(a, b), least));
            let (step, o): (usize, *mut u8) = ($step, $o.wrapping_add(j * $plane + i * $step));
            // SAFETY: the verb's caller owns 16 bytes of each pixel of the tile.
            unsafe { if left > 3 && step == 16 {
                $crate::arch::_mm512_storeu_si512(o.cast(), x);
            } else {
                $crate::arch::_mm_storeu_si128(o.cast(), $crate::arch::_mm512_castsi512_si128(x));
                if left > 1 { $crate::arch::_mm_storeu_si128(o.wrapping_add(step).cast(),
                    $crate::arch::_mm512_extracti32x4_epi32::<1>(x)); }
                if left > 2 { $crate::arch::_mm_storeu_si128(o.wrapping_add(2 * step).cast(),
                    $crate::arch::_mm512_extracti32x4_epi32::<2>(x)); }
                if left > 3 { $crate::arch::_mm_storeu_si128(o.wrapping_add(3 * step).cast(),
                    $crate::arch::_mm512_extracti32x4_epi32::<3>(x)); }
            } }
        } }); }); };
    // 256 bytes are 128 words: the upper seven bits of a byte number the word, the last one its half.
    // SAFETY: the verb's caller owns 64 bytes at `x` and `y`, and 256 at `t`.
    (LOOKUP $x:expr, $t:expr => $y:expr) => { unsafe {
        let x = $crate::arch::_mm512_loadu_si512($x.cast());
        let low = $crate::arch::_mm512_and_si512(x, $crate::arch::_mm512_set1_epi16(0xff));
        let low = $crate::tile_avx512_f32!(LOOKUP_WORDS low, $t);
        let high = $crate::tile_avx512_f32!(LOOKUP_WORDS $crate::arch::_mm512_srli_epi16::<8>(x), $t);
        let y = $crate::arch::_mm512_slli_epi16::<8>(high);
        $crate::arch::_mm512_storeu_si512($y.cast(), $crate::arch::_mm512_mask_blend_epi8(!0 / 3, y, low));
    } };
    // In the lower half of each word the byte of the table that the word numbers.
    (LOOKUP_WORDS $i:expr, $t:expr) => {{
        let part = |i: usize| $crate::arch::_mm512_loadu_si512($t.wrapping_add(64 * i).cast());
        let word = $crate::arch::_mm512_srli_epi16::<1>($i);
        let first = $crate::arch::_mm512_permutex2var_epi16(part(0), word, part(1));
        let last = $crate::arch::_mm512_permutex2var_epi16(part(2), word, part(3));
        let found = $crate::arch::_mm512_mask_blend_epi16($crate::arch::_mm512_movepi16_mask(
            $crate::arch::_mm512_slli_epi16::<8>($i)), first, last);
        let bits = $crate::arch::_mm512_and_si512($i, $crate::arch::_mm512_set1_epi16(1));
        $crate::arch::_mm512_srlv_epi16(found, $crate::arch::_mm512_slli_epi16::<3>(bits)) }};
    (VEVEN $a:expr, $b:expr) => { $crate::arch::_mm512_permutex2var_ps($a, $crate::arch::_mm512_set_epi32(
        30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), $b) };
    (VODD $a:expr, $b:expr) => { $crate::arch::_mm512_permutex2var_ps($a, $crate::arch::_mm512_set_epi32(
        31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1), $b) };
    (VPREV $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_alignr_epi32::<15>(
        $crate::arch::_mm512_castps_si512($b), $crate::arch::_mm512_castps_si512($a))) };
    (VNEXT $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_alignr_epi32::<1>(
        $crate::arch::_mm512_castps_si512($b), $crate::arch::_mm512_castps_si512($a))) };
    // SAFETY: the mask keeps the access to these elements.
    (VLOAD_PART $p:expr, $first:expr, $end:expr) => { unsafe { $crate::arch::_mm512_maskz_loadu_ps(
        (((1u32 << $end) - 1) & !((1u32 << $first) - 1)) as u16, $p) } };
    // SAFETY: no instruction; the vector passes as it is. Otherwise LLVM begins with more than there are
    // registers for.
    (VKEEP $x:expr) => {{
        let mut x = $x;
        unsafe { core::arch::asm!("/* {0} */", inout(zmm_reg) x, options(nomem, nostack, preserves_flags)) };
        x }};
    (VIADD $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_add_epi32(
        $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b))) };
    (VSCALABLE $lo:expr, $x:expr) => {{ let _ = $lo; $x }};
    (VSCALE_OR0 $x:expr, $n:expr) => {{
        let n = $n;
        $crate::arch::_mm512_maskz_scalef_ps($crate::arch::_mm512_cmp_ps_mask::<{ $crate::arch::_CMP_NLT_UQ }>(
            n, $crate::arch::_mm512_set1_ps(-126.0)), $x, n) }};
    (VSCALE $x:expr, $n:expr) => { $crate::arch::_mm512_scalef_ps($x, $n) };
    // Two dozen stores of 64 bytes in a row hold up what follows for 40 cycles, a few none.
    (DRAIN_STEPS) => { 4usize };
    (DRAIN $($rest:tt)*) => { $crate::tile_default!(tile_avx512_f32 DRAIN_BY 4 $($rest)*) };
    ($($verb:tt)*) => { $crate::tile_default!(tile_avx512_f32 $($verb)*) };
}

/// The tile macro of AVX-512 for `i8`: pairs of `i16`, whose products cannot saturate as those of
/// `vpmaddubsw` do.
#[macro_export]
macro_rules! tile_avx512_i8 {
    // SAFETY: no instruction; the sum passes as it is. Otherwise LLVM adds the products of several
    // steps first, for which there are not enough registers.
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let mut c = $crate::arch::_mm512_add_epi32($crate::arch::_mm512_castps_si512($c),
            $crate::arch::_mm512_madd_epi16(
                $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b)));
        unsafe { core::arch::asm!("/* {0} */", inout(zmm_reg) c, options(nomem, nostack, preserves_flags)) };
        $crate::arch::_mm512_castsi512_ps(c) }};
    (VSUB16 $a:expr, $b:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_sub_epi16(
        $crate::arch::_mm512_castps_si512($a), $crate::arch::_mm512_castps_si512($b))) };
    // SAFETY: the verb's caller owns 32 bytes there.
    (VWIDE8 $p:expr, $flip:expr) => { $crate::arch::_mm512_castsi512_ps($crate::arch::_mm512_xor_si512(
        $crate::arch::_mm512_castps_si512($flip),
        $crate::arch::_mm512_cvtepu8_epi16(unsafe { $crate::arch::_mm256_loadu_si256($p.cast()) }))) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_avx512_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx512_f32!($($verb)*) };
}
