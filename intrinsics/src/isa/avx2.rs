//! AVX2 with FMA.

/// The tile macro of AVX2 and FMA for `f32`: 16 registers of 8 lanes. See the crate documentation.
#[macro_export]
macro_rules! tile_avx2_f32 {
    (LANES) => { 8usize };
    (STEPS) => { $crate::steps::Nine };
    (VTYPE) => { $crate::arch::__m256 };
    (VZERO) => { $crate::arch::_mm256_setzero_ps() };
    (VSET $x:expr) => { $crate::arch::_mm256_set1_ps($x) };
    // SAFETY (5 memory arms): the verb's caller owns the elements that the index reaches; the
    // mask of a tail keeps the access to its first `n` elements.
    (VLOAD $p:expr, $i:expr) => { unsafe { $crate::arch::_mm256_loadu_ps($p.wrapping_add($i * 8)) } };
    (VLOAD_TAIL $p:expr, $n:expr) => {
        unsafe { $crate::arch::_mm256_maskload_ps($p, $crate::tile_avx2_f32!(VMASK $n)) } };
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::_mm256_set1_ps(unsafe { *$p.wrapping_add($i) }) };
    (VSTORE $p:expr, $i:expr, $x:expr) => {
        unsafe { $crate::arch::_mm256_storeu_ps($p.wrapping_add($i * 8), $x) } };
    (VSTORE_TAIL $p:expr, $n:expr, $x:expr) => {
        unsafe { $crate::arch::_mm256_maskstore_ps($p, $crate::tile_avx2_f32!(VMASK $n), $x) } };
    // SAFETY: the verb's caller owns the elements and has aligned them; a fence touches nothing.
    (VSTREAM $p:expr, $i:expr, $x:expr) => {
        unsafe { $crate::arch::_mm256_stream_ps($p.wrapping_add($i * 8), $x) } };
    (VSTREAMED) => { unsafe { $crate::arch::_mm_sfence() } };
    // SAFETY: a prefetch is a hint and may name any address.
    (VPREFETCH $p:expr, $i:expr) => { unsafe {
        $crate::arch::_mm_prefetch::<{ $crate::arch::_MM_HINT_T0 }>($p.wrapping_add($i).cast()) } };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm256_fmadd_ps($a, $b, $c) };
    (VADD $a:expr, $b:expr) => { $crate::arch::_mm256_add_ps($a, $b) };
    (VSUB $a:expr, $b:expr) => { $crate::arch::_mm256_sub_ps($a, $b) };
    (VMUL $a:expr, $b:expr) => { $crate::arch::_mm256_mul_ps($a, $b) };
    (VDIV $a:expr, $b:expr) => { $crate::arch::_mm256_div_ps($a, $b) };
    (VMAX $a:expr, $b:expr) => { $crate::arch::_mm256_max_ps($a, $b) };
    (VMIN $a:expr, $b:expr) => { $crate::arch::_mm256_min_ps($a, $b) };
    (VSQRT $x:expr) => { $crate::arch::_mm256_sqrt_ps($x) };
    (VROUND $x:expr) => { $crate::arch::_mm256_round_ps::<0x08>($x) };
    (VFLOOR $x:expr) => { $crate::arch::_mm256_floor_ps($x) };
    (VABS $x:expr) => { $crate::arch::_mm256_andnot_ps($crate::arch::_mm256_set1_ps(-0.0), $x) };
    (VCOPYSIGN $x:expr, $s:expr) => { $crate::arch::_mm256_or_ps($crate::tile_avx2_f32!(VABS $x),
        $crate::arch::_mm256_and_ps($crate::arch::_mm256_set1_ps(-0.0), $s)) };
    (VGT $a:expr, $b:expr) => { $crate::arch::_mm256_cmp_ps::<{ $crate::arch::_CMP_GT_OQ }>($a, $b) };
    (VSEL $m:expr, $a:expr, $b:expr) => { $crate::arch::_mm256_blendv_ps($b, $a, $m) };
    (VPOW2 $n:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_slli_epi32::<23>(
        $crate::arch::_mm256_add_epi32($crate::arch::_mm256_cvtps_epi32($n), $crate::arch::_mm256_set1_epi32(127)))) };
    (VEXPO $x:expr) => { $crate::arch::_mm256_cvtepi32_ps($crate::arch::_mm256_sub_epi32(
        $crate::arch::_mm256_srli_epi32::<23>($crate::arch::_mm256_castps_si256($x)), $crate::arch::_mm256_set1_epi32(127))) };
    (VMANT $x:expr) => { $crate::arch::_mm256_or_ps($crate::arch::_mm256_set1_ps(1.0), $crate::arch::_mm256_and_ps(
        $x, $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_set1_epi32(0x007f_ffff)))) };
    // Both orders give the same number, or one of them a NaN, which the other does not unmake.
    (VMAXIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::_mm256_or_ps($crate::arch::_mm256_max_ps(a, b), $crate::arch::_mm256_max_ps(b, a)) }};
    (VMINIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::_mm256_or_ps($crate::arch::_mm256_min_ps(a, b), $crate::arch::_mm256_min_ps(b, a)) }};
    (VPAIR_LO $a:expr, $b:expr) => { $crate::arch::_mm256_unpacklo_ps($a, $b) };
    (VPAIR_HI $a:expr, $b:expr) => { $crate::arch::_mm256_unpackhi_ps($a, $b) };
    (VQUAD_LO $a:expr, $b:expr) => { $crate::arch::_mm256_castpd_ps($crate::arch::_mm256_unpacklo_pd(
        $crate::arch::_mm256_castps_pd($a), $crate::arch::_mm256_castps_pd($b))) };
    (VQUAD_HI $a:expr, $b:expr) => { $crate::arch::_mm256_castpd_ps($crate::arch::_mm256_unpackhi_pd(
        $crate::arch::_mm256_castps_pd($a), $crate::arch::_mm256_castps_pd($b))) };
    // Vectors K, 4 + K hold a 2 x 2 matrix of 128-bit quads: transpose it.
    (VEVEN $a:expr, $b:expr) => { $crate::tile_avx2_f32!(HALVES $crate::arch::_mm256_shuffle_ps::<0x88>($a, $b)) };
    (VODD $a:expr, $b:expr) => { $crate::tile_avx2_f32!(HALVES $crate::arch::_mm256_shuffle_ps::<0xdd>($a, $b)) };
    (VPREV $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::tile_avx2_f32!(JOINED 12, b, $crate::tile_avx2_f32!(MIDDLE a, b)) }};
    (VNEXT $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::tile_avx2_f32!(JOINED 4, $crate::tile_avx2_f32!(MIDDLE a, b), a) }};
    // The upper quad of `a` and the lower one of `b`; bytes of two vectors in a row, quad by quad.
    (MIDDLE $a:ident, $b:ident) => { $crate::arch::_mm256_permute2f128_ps::<0x21>($a, $b) };
    (JOINED $n:literal, $hi:expr, $lo:expr) => { $crate::arch::_mm256_castsi256_ps(
        $crate::arch::_mm256_alignr_epi8::<$n>(
            $crate::arch::_mm256_castps_si256($hi), $crate::arch::_mm256_castps_si256($lo))) };
    // SAFETY: the mask keeps the access to these elements.
    (VLOAD_PART $p:expr, $first:expr, $end:expr) => { unsafe { $crate::arch::_mm256_maskload_ps($p,
        $crate::arch::_mm256_andnot_si256(
            $crate::tile_avx2_f32!(VMASK $first), $crate::tile_avx2_f32!(VMASK $end))) } };
    // The pairs 0 2 1 3 in order.
    (HALVES $x:expr) => { $crate::arch::_mm256_castpd_ps(
        $crate::arch::_mm256_permute4x64_pd::<0xd8>($crate::arch::_mm256_castps_pd($x))) };
    (TRANSPOSE $t:ident) => {
        $crate::tile_default!(tile_avx2_f32 QUADS $t [2]);
        $crate::each!(k in 4 {
            let (x, y) = ($t[k][0], $t[4 + k][0]);
            $t[k][0] = $crate::arch::_mm256_permute2f128_ps::<0x20>(x, y);
            $t[4 + k][0] = $crate::arch::_mm256_permute2f128_ps::<0x31>(x, y);
        }); };
    // Of neighbouring windows; those of stride 2 and wider ones are faster tap by tap.
    (COMPUTE dw_row $t:ident [$w:tt x 3 / 1] $($row:tt)*) => {
        $crate::tile_default!(tile_avx2_f32 COMPUTE dw_columns $t [$w x 3] $($row)*) };
    // Lanes that hold `i32` bits.
    (VITOF $x:expr) => { $crate::arch::_mm256_cvtepi32_ps($crate::arch::_mm256_castps_si256($x)) };
    (VIMLA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_add_epi32(
        $crate::arch::_mm256_castps_si256($c), $crate::arch::_mm256_mullo_epi32(
            $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b)))) };
    // SAFETY (3 memory arms): as above, of bytes.
    (VLOAD8 $p:expr, $mask:expr, $zero:expr) => { $crate::arch::_mm256_sub_ps($crate::arch::_mm256_xor_ps(
        $mask, $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_cvtepu8_epi32(
            unsafe { $crate::arch::_mm_loadl_epi64($p.cast()) }))), $zero) };
    (VSTORE8 $p:expr, $x:expr) => { unsafe {
        $crate::arch::_mm_storel_epi64($p.cast(), $crate::tile_avx2_f32!(VBYTES $x)) } };
    (VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => {{
        let mut x = [0u8; 8];
        unsafe { $crate::arch::_mm_storel_epi64(x.as_mut_ptr().cast(), $crate::tile_avx2_f32!(VBYTES $x)) };
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    // Two pixels of 16 channels at a time. The upper bound is taken where a number may be beyond what the conversion
    // holds, the lower one where bytes saturate: they are those less the lower bound.
    (NARROW $t:ident [$w:tt x 2] $($rest:tt)*) => { $crate::tile_avx2_f32!(NARROW_PAIRS $t [$w x 1] $($rest)*) };
    (NARROW $t:ident [$w:tt x 4] $($rest:tt)*) => { $crate::tile_avx2_f32!(NARROW_PAIRS $t [$w x 2] $($rest)*) };
    (NARROW_PAIRS $t:ident [$w:tt x $v:tt] $lo:ident, $hi:ident, $zero:ident -> $o:ident[$step:expr, $plane:expr]) => {
        let hi = $crate::arch::_mm256_set1_ps($hi);
        let above = $crate::arch::_mm256_set1_epi16((-$lo) as i16);
        let least = $crate::arch::_mm256_set1_epi8(($lo + $zero) as i32 as i8);
        let order = $crate::arch::_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        $crate::each!(j in $v { $crate::each!(g in 4 { if g * 2 < $w {
            let (i, next) = (g * 2, usize::min(g * 2 + 1, $w - 1));
            let mut x = [above; 2];
            $crate::each!(k in 2 {
                let t = &$t[if k == 0 { i } else { next }];
                x[k] = $crate::arch::_mm256_adds_epi16(above, $crate::arch::_mm256_packs_epi32(
                    $crate::arch::_mm256_cvtps_epi32($crate::arch::_mm256_min_ps(hi, t[2 * j])),
                    $crate::arch::_mm256_cvtps_epi32($crate::arch::_mm256_min_ps(hi, t[2 * j + 1]))));
            });
            let x = $crate::arch::_mm256_add_epi8($crate::arch::_mm256_packus_epi16(x[0], x[1]), least);
            let x = $crate::arch::_mm256_permutevar8x32_epi32(x, order);
            let (step, o): (usize, *mut u8) = ($step, $o.wrapping_add(j * $plane + i * $step));
            // SAFETY: the verb's caller owns 16 bytes of each pixel of the tile.
            unsafe {
                $crate::arch::_mm_storeu_si128(o.cast(), $crate::arch::_mm256_castsi256_si128(x));
                if next > i { $crate::arch::_mm_storeu_si128(o.wrapping_add(step).cast(),
                    $crate::arch::_mm256_extracti128_si256::<1>(x)); }
            }
        } }); }); };
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
        $crate::arch::_mm256_cvtph_ps(unsafe { $crate::arch::_mm_loadu_si128($p.cast()) }) };
    (VSTORE16 $p:expr, $x:expr) => { unsafe {
        $crate::arch::_mm_storeu_si128($p.cast(), $crate::arch::_mm256_cvtps_ph::<0>($x)) } };
    // The upper four bits of a byte choose one of 16 tables, the lower ones its entry: those of two neighbours are
    // joined by the fifth bit, and so on. SAFETY: the verb's caller owns 64 bytes at `x` and `y`, and 256 at `t`.
    (LOOKUP $x:expr, $t:expr => $y:expr) => { $crate::each!(half in 2 {
        let x = unsafe { $crate::arch::_mm256_loadu_si256($x.wrapping_add(32 * half).cast()) };
        let low = $crate::arch::_mm256_and_si256(x, $crate::arch::_mm256_set1_epi8(15));
        let table = |i: usize| $crate::arch::_mm256_shuffle_epi8($crate::arch::_mm256_broadcastsi128_si256(
            unsafe { $crate::arch::_mm_loadu_si128($t.wrapping_add(16 * i).cast()) }), low);
        let bits = [$crate::arch::_mm256_slli_epi16::<3>(x), $crate::arch::_mm256_slli_epi16::<2>(x),
            $crate::arch::_mm256_slli_epi16::<1>(x)];
        let two = |i: usize| $crate::arch::_mm256_blendv_epi8(table(i), table(i + 1), bits[0]);
        let four = |i: usize| $crate::arch::_mm256_blendv_epi8(two(i), two(i + 2), bits[1]);
        let eight = |i: usize| $crate::arch::_mm256_blendv_epi8(four(i), four(i + 4), bits[2]);
        let y = $crate::arch::_mm256_blendv_epi8(eight(0), eight(8), x);
        unsafe { $crate::arch::_mm256_storeu_si256($y.wrapping_add(32 * half).cast(), y) };
    }); };
    // The low byte of each lane, side by side.
    (VBYTES $x:expr) => {{
        let x = $crate::arch::_mm256_shuffle_epi8($crate::arch::_mm256_cvtps_epi32($x),
            $crate::arch::_mm256_set1_epi32(0x0c08_0400));
        $crate::arch::_mm_unpacklo_epi32(
            $crate::arch::_mm256_castsi256_si128(x), $crate::arch::_mm256_extracti128_si256::<1>(x)) }};
    // SAFETY: no instruction; the vector passes as it is. Otherwise LLVM loads and computes much at once,
    // for which there are not enough registers.
    (VKEEP $x:expr) => {{
        let mut x = $x;
        unsafe { core::arch::asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags)) };
        x }};
    // SAFETY: `n <= 8`, so the eight words from `8 - n` on lie inside the table of 16.
    (VMASK $n:expr) => { $crate::arch::_mm256_loadu_si256(
        $crate::AVX2_TAIL.as_ptr().wrapping_add(8 - $n).cast()) };
    ($($verb:tt)*) => { $crate::tile_default!(tile_avx2_f32 $($verb)*) };
}

/// The tile macro of AVX2 for `i8`: pairs of `i16`, whose products cannot saturate as those of
/// `pmaddubsw` do.
#[macro_export]
macro_rules! tile_avx2_i8 {
    // SAFETY: no instruction; the sum passes as it is. Otherwise LLVM adds the products of several
    // steps first, for which there are not enough registers.
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let mut c = $crate::arch::_mm256_add_epi32($crate::arch::_mm256_castps_si256($c),
            $crate::arch::_mm256_madd_epi16(
                $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b)));
        unsafe { core::arch::asm!("/* {0} */", inout(ymm_reg) c, options(nomem, nostack, preserves_flags)) };
        $crate::arch::_mm256_castsi256_ps(c) }};
    (VADD16 $a:expr, $b:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_add_epi16(
        $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b))) };
    (VSUB16 $a:expr, $b:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_sub_epi16(
        $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b))) };
    (VIADD $a:expr, $b:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_add_epi32(
        $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b))) };
    (VISUB $a:expr, $b:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_sub_epi32(
        $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b))) };
    (VISHR $x:expr, $n:literal) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_srai_epi32::<$n>(
        $crate::arch::_mm256_castps_si256($x))) };
    // SAFETY (2 memory arms): the verb's caller owns 16 bytes there.
    (VWIDE8 $p:expr, $flip:expr) => { $crate::arch::_mm256_xor_ps($flip, $crate::arch::_mm256_castsi256_ps(
        $crate::arch::_mm256_cvtepu8_epi16(unsafe { $crate::arch::_mm_loadu_si128($p.cast()) }))) };
    (VZIPPED16 $a:expr, $b:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_packs_epi32(
        $crate::arch::_mm256_cvtps_epi32($a), $crate::arch::_mm256_cvtps_epi32($b))) };
    (VSTORE_ZIPPED8 $p:expr, $x:expr, $lo:expr, $zero:expr) => {{
        let x = $crate::arch::_mm256_max_epi16(
            $crate::arch::_mm256_castps_si256($x), $crate::arch::_mm256_castps_si256($lo));
        let x = $crate::arch::_mm256_and_si256($crate::arch::_mm256_set1_epi16(0xff),
            $crate::arch::_mm256_add_epi16(x, $crate::arch::_mm256_castps_si256($zero)));
        unsafe { $crate::arch::_mm_storeu_si128($p.cast(), $crate::arch::_mm_packus_epi16(
            $crate::arch::_mm256_castsi256_si128(x), $crate::arch::_mm256_extracti128_si256::<1>(x))) } }};
    (VZIP_LO $a:expr, $b:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_unpacklo_epi16(
        $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b))) };
    (VZIP_HI $a:expr, $b:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_unpackhi_epi16(
        $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b))) };
    (VQUADS $p:expr, $far:expr) => { $crate::tile_avx2_block!(VQUADS $p, $far) };
    (VHIDDEN $p:expr) => { <$crate::tile_avx2_f32!(STEPS)>::hold_pointer($p) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_avx2_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx2_f32!($($verb)*) };
}

/// The tile macro of AVX2 for bytes of which the right ones are cut so that no pair of products saturates.
#[macro_export]
macro_rules! tile_avx2_u8 {
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::tile_avx2_block!(VPAIRS
        $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_castps_si256($b), $c) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_avx2_u8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx2_f32!($($verb)*) };
}

/// The tile macro of AVX2 for blocks of weights. Products of bytes take the sign of the weight from the
/// activation, as `pmaddubsw` has one operand without.
#[macro_export]
macro_rules! tile_avx2_block {
    (BIASED) => { false };
    (STREAMS) => { 4 };
    (VDOT $w:expr, $x:expr, $c:expr) => {{
        let (w, x) = ($crate::arch::_mm256_castps_si256($w), $crate::arch::_mm256_castps_si256($x));
        $crate::tile_avx2_block!(VPAIRS $crate::arch::_mm256_abs_epi8(w), $crate::arch::_mm256_sign_epi8(x, w), $c) }};
    (VDOTU $w:expr, $x:expr, $c:expr) => { $crate::tile_avx2_block!(VPAIRS
        $crate::arch::_mm256_castps_si256($w), $crate::arch::_mm256_castps_si256($x), $c) };
    (HALVED) => { true };
    (VPAIRS16 $w:expr, $x:expr, $c:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_add_epi16(
        $crate::arch::_mm256_castps_si256($c), $crate::arch::_mm256_maddubs_epi16(
            $crate::arch::_mm256_castps_si256($w), $crate::arch::_mm256_castps_si256($x)))) };
    (VSUM16 $a:expr, $c:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_add_epi32(
        $crate::arch::_mm256_castps_si256($c), $crate::arch::_mm256_madd_epi16(
            $crate::arch::_mm256_castps_si256($a), $crate::arch::_mm256_set1_epi16(1)))) };
    (VPAIRS $w:expr, $x:expr, $c:expr) => { $crate::tile_avx2_f32!(VKEEP $crate::arch::_mm256_castsi256_ps(
        $crate::arch::_mm256_add_epi32($crate::arch::_mm256_castps_si256($c), $crate::arch::_mm256_madd_epi16(
            $crate::arch::_mm256_maddubs_epi16($w, $x), $crate::arch::_mm256_set1_epi16(1))))) };
    // SAFETY: the verb's caller owns 8 halves there.
    (VLOADB16 $p:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_slli_epi32::<16>(
        $crate::arch::_mm256_cvtepu16_epi32(unsafe { $crate::arch::_mm_loadu_si128($p.cast()) }))) };
    (VAND $a:expr, $b:expr) => { $crate::arch::_mm256_and_ps($a, $b) };
    (VOR $a:expr, $b:expr) => { $crate::arch::_mm256_or_ps($a, $b) };
    (VXOR $a:expr, $b:expr) => { $crate::arch::_mm256_xor_ps($a, $b) };
    // SAFETY: the verb's caller owns 16 bytes at both places.
    (VQUADS $p:expr, $far:expr) => {{
        let p: *const u8 = $p;
        unsafe { $crate::arch::_mm256_loadu2_m128(p.wrapping_add($far).cast(), p.cast()) } }};
    // By constants, which become part of the instruction.
    (VSHL $x:expr, $n:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_sllv_epi32(
        $crate::arch::_mm256_castps_si256($x), $crate::arch::_mm256_set1_epi32(($n) as i32))) };
    (VSHR $x:expr, $n:expr) => { $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_srlv_epi32(
        $crate::arch::_mm256_castps_si256($x), $crate::arch::_mm256_set1_epi32(($n) as i32))) };
    // SAFETY: a table has 16 bytes.
    (VTABLE $t:expr, $x:expr) => {{
        let table: &[u8; 16] = $t;
        let table = unsafe { $crate::arch::_mm_loadu_si128(table.as_ptr().cast()) };
        $crate::arch::_mm256_castsi256_ps($crate::arch::_mm256_shuffle_epi8(
            $crate::arch::_mm256_broadcastsi128_si256(table), $crate::arch::_mm256_castps_si256($x))) }};
    (DOTS $($verb:tt)*) => { $crate::tile_default!(tile_avx2_block DOTS $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_avx2_f32!($($verb)*) };
}
