//! SSE4.1 with SSSE3: processors of x86-64 without AVX2.

/// The tile macro of SSE4.1 for `f32`: 16 registers of 4 lanes, and no fused multiply-add. See the crate
/// documentation.
#[macro_export]
macro_rules! tile_sse41_f32 {
    (LANES) => { 4usize };
    (STEPS) => { $crate::steps::Nine };
    (VTYPE) => { $crate::arch::__m128 };
    (VZERO) => { $crate::arch::_mm_setzero_ps() };
    (VSET $x:expr) => { $crate::arch::_mm_set1_ps($x) };
    // SAFETY (5 memory arms): the verb's caller owns the elements that the index reaches; a tail
    // copies its first `n <= 4` elements one by one.
    (VLOAD $p:expr, $i:expr) => { unsafe { $crate::arch::_mm_loadu_ps($p.wrapping_add($i * 4)) } };
    (VLOAD_TAIL $p:expr, $n:expr) => {{
        let mut x = [0.0f32; 4];
        unsafe { core::ptr::copy_nonoverlapping($p, x.as_mut_ptr(), $n) };
        unsafe { $crate::arch::_mm_loadu_ps(x.as_ptr()) } }};
    (VSPLAT $p:expr, $i:expr) => { $crate::arch::_mm_set1_ps(unsafe { *$p.wrapping_add($i) }) };
    (VSTORE $p:expr, $i:expr, $x:expr) => { unsafe { $crate::arch::_mm_storeu_ps($p.wrapping_add($i * 4), $x) } };
    (VSTORE_TAIL $p:expr, $n:expr, $x:expr) => {{
        let mut x = [0.0f32; 4];
        unsafe { $crate::arch::_mm_storeu_ps(x.as_mut_ptr(), $x) };
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    // SAFETY: a prefetch is a hint and may name any address.
    (VPREFETCH $p:expr, $i:expr) => { unsafe {
        $crate::arch::_mm_prefetch::<{ $crate::arch::_MM_HINT_T0 }>($p.wrapping_add($i).cast()) } };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm_add_ps($crate::arch::_mm_mul_ps($a, $b), $c) };
    (VADD $a:expr, $b:expr) => { $crate::arch::_mm_add_ps($a, $b) };
    (VSUB $a:expr, $b:expr) => { $crate::arch::_mm_sub_ps($a, $b) };
    (VMUL $a:expr, $b:expr) => { $crate::arch::_mm_mul_ps($a, $b) };
    (VDIV $a:expr, $b:expr) => { $crate::arch::_mm_div_ps($a, $b) };
    (VMAX $a:expr, $b:expr) => { $crate::arch::_mm_max_ps($a, $b) };
    (VMIN $a:expr, $b:expr) => { $crate::arch::_mm_min_ps($a, $b) };
    (VSQRT $x:expr) => { $crate::arch::_mm_sqrt_ps($x) };
    (VROUND $x:expr) => { $crate::arch::_mm_round_ps::<0x08>($x) };
    (VFLOOR $x:expr) => { $crate::arch::_mm_floor_ps($x) };
    (VABS $x:expr) => { $crate::arch::_mm_andnot_ps($crate::arch::_mm_set1_ps(-0.0), $x) };
    (VCOPYSIGN $x:expr, $s:expr) => { $crate::arch::_mm_or_ps($crate::tile_sse41_f32!(VABS $x),
        $crate::arch::_mm_and_ps($crate::arch::_mm_set1_ps(-0.0), $s)) };
    (VGT $a:expr, $b:expr) => { $crate::arch::_mm_cmpgt_ps($a, $b) };
    (VSEL $m:expr, $a:expr, $b:expr) => { $crate::arch::_mm_blendv_ps($b, $a, $m) };
    (VPOW2 $n:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_slli_epi32::<23>(
        $crate::arch::_mm_add_epi32($crate::arch::_mm_cvtps_epi32($n), $crate::arch::_mm_set1_epi32(127)))) };
    (VEXPO $x:expr) => { $crate::arch::_mm_cvtepi32_ps($crate::arch::_mm_sub_epi32(
        $crate::arch::_mm_srli_epi32::<23>($crate::arch::_mm_castps_si128($x)), $crate::arch::_mm_set1_epi32(127))) };
    (VMANT $x:expr) => { $crate::arch::_mm_or_ps($crate::arch::_mm_set1_ps(1.0), $crate::arch::_mm_and_ps(
        $x, $crate::arch::_mm_castsi128_ps($crate::arch::_mm_set1_epi32(0x007f_ffff)))) };
    // Both orders give the same number, or one of them a NaN, which the other does not unmake.
    (VMAXIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::_mm_or_ps($crate::arch::_mm_max_ps(a, b), $crate::arch::_mm_max_ps(b, a)) }};
    (VMINIMUM $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::_mm_or_ps($crate::arch::_mm_min_ps(a, b), $crate::arch::_mm_min_ps(b, a)) }};
    (VPAIR_LO $a:expr, $b:expr) => { $crate::arch::_mm_unpacklo_ps($a, $b) };
    (VPAIR_HI $a:expr, $b:expr) => { $crate::arch::_mm_unpackhi_ps($a, $b) };
    (VQUAD_LO $a:expr, $b:expr) => { $crate::arch::_mm_movelh_ps($a, $b) };
    (VQUAD_HI $a:expr, $b:expr) => {{ let (a, b) = ($a, $b); $crate::arch::_mm_movehl_ps(b, a) }};
    (VEVEN $a:expr, $b:expr) => { $crate::arch::_mm_shuffle_ps::<0x88>($a, $b) };
    (VODD $a:expr, $b:expr) => { $crate::arch::_mm_shuffle_ps::<0xdd>($a, $b) };
    (VPREV $a:expr, $b:expr) => { $crate::tile_sse41_f32!(JOINED 12, $a, $b) };
    (VNEXT $a:expr, $b:expr) => { $crate::tile_sse41_f32!(JOINED 4, $a, $b) };
    // Bytes of two vectors in a row, from the `n`th on.
    (JOINED $n:literal, $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::_mm_castsi128_ps($crate::arch::_mm_alignr_epi8::<$n>(
            $crate::arch::_mm_castps_si128(b), $crate::arch::_mm_castps_si128(a))) }};
    (TRANSPOSE $t:ident) => { $crate::tile_default!(tile_sse41_f32 QUADS $t [1]); };
    // Lanes that hold `i32` bits.
    (VITOF $x:expr) => { $crate::arch::_mm_cvtepi32_ps($crate::arch::_mm_castps_si128($x)) };
    (VIMLA $a:expr, $b:expr, $c:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_add_epi32(
        $crate::arch::_mm_castps_si128($c), $crate::arch::_mm_mullo_epi32(
            $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b)))) };
    // SAFETY (3 memory arms): as above, of bytes.
    (VLOAD8 $p:expr, $mask:expr, $zero:expr) => { $crate::arch::_mm_sub_ps($crate::arch::_mm_xor_ps(
        $mask, $crate::arch::_mm_castsi128_ps($crate::arch::_mm_cvtepu8_epi32($crate::arch::_mm_cvtsi32_si128(
            unsafe { $p.cast::<i32>().read_unaligned() })))), $zero) };
    (VSTORE8 $p:expr, $x:expr) => {
        unsafe { $p.cast::<i32>().write_unaligned($crate::tile_sse41_f32!(VBYTES $x)) } };
    (VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => {{
        let x = $crate::tile_sse41_f32!(VBYTES $x).to_ne_bytes();
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    // 16 channels of a pixel at a time. The upper bound is taken where a number may be beyond what the conversion
    // holds, the lower one where bytes saturate: they are those less the lower bound.
    (NARROW $t:ident [$w:tt x 4] $($rest:tt)*) => { $crate::tile_sse41_f32!(NARROW_PIXELS $t [$w x 1] $($rest)*) };
    (NARROW $t:ident [$w:tt x 8] $($rest:tt)*) => { $crate::tile_sse41_f32!(NARROW_PIXELS $t [$w x 2] $($rest)*) };
    (NARROW_PIXELS $t:ident [$w:tt x $v:tt] $lo:ident, $hi:ident, $zero:ident -> $o:ident[$step:expr, $plane:expr]) => {
        let hi = $crate::arch::_mm_set1_ps($hi);
        let above = $crate::arch::_mm_set1_epi16((-$lo) as i16);
        let least = $crate::arch::_mm_set1_epi8(($lo + $zero) as i32 as i8);
        $crate::each!(j in $v { $crate::each!(i in $w {
            let mut x = [above; 2];
            $crate::each!(k in 2 {
                let at = 4 * j + 2 * k;
                x[k] = $crate::arch::_mm_adds_epi16(above, $crate::arch::_mm_packs_epi32(
                    $crate::arch::_mm_cvtps_epi32($crate::arch::_mm_min_ps(hi, $t[i][at])),
                    $crate::arch::_mm_cvtps_epi32($crate::arch::_mm_min_ps(hi, $t[i][at + 1]))));
            });
            let x = $crate::arch::_mm_add_epi8($crate::arch::_mm_packus_epi16(x[0], x[1]), least);
            // SAFETY: the verb's caller owns 16 bytes of each pixel of the tile.
            unsafe { $crate::arch::_mm_storeu_si128($o.wrapping_add(j * $plane + i * $step).cast(), x) };
        }); }); };
    // SAFETY (2 memory arms): as above, of the bytes of a pixel.
    (BYTES_LOAD $p:expr) => { unsafe { $crate::arch::_mm_loadu_si128($p.cast()) } };
    (BYTES_STORE $p:expr, $x:expr) => { unsafe { $crate::arch::_mm_storeu_si128($p.cast(), $x) } };
    (BYTES_SPLAT $byte:expr) => { $crate::arch::_mm_set1_epi8($byte as i8) };
    (BYTES_XOR $a:expr, $b:expr) => { $crate::arch::_mm_xor_si128($a, $b) };
    (BYTES_MAX $a:expr, $b:expr) => { $crate::arch::_mm_max_epu8($a, $b) };
    (BYTES_ZIP_LO $a:expr, $b:expr) => { $crate::arch::_mm_unpacklo_epi8($a, $b) };
    (BYTES_ZIP_HI $a:expr, $b:expr) => { $crate::arch::_mm_unpackhi_epi8($a, $b) };
    // The low byte of each lane, side by side.
    (VBYTES $x:expr) => { $crate::arch::_mm_cvtsi128_si32($crate::arch::_mm_shuffle_epi8(
        $crate::arch::_mm_cvtps_epi32($x), $crate::arch::_mm_set1_epi32(0x0c08_0400))) };
    // SAFETY: no instruction; the vector passes as it is. Otherwise LLVM loads and computes much at once,
    // for which there are not enough registers.
    (VKEEP $x:expr) => {{
        let mut x = $x;
        unsafe { core::arch::asm!("/* {0} */", inout(xmm_reg) x, options(nomem, nostack, preserves_flags)) };
        x }};
    // Four reduction steps from one activation vector per pixel, each of whose lanes takes an instruction to spread,
    // where a load of it takes two; and one weight vector alive at a time, as products need registers of their own.
    (COMPUTE $($verb:tt)*) => { $crate::tile_sse41_f32!(COMPUTE_OF tile_sse41_f32 $($verb)*) };
    // Of a row with any multiply-add.
    (COMPUTE_OF $m:ident conv $t:ident [$r:tt x $w:tt x $v:tt x 4] += $p:ident[$s:ident] * $b:ident if $mask:expr) => {
        $s.hold();
        $crate::tile_default!(tile_sse41_f32 HOLD $p [$r x $w]);
        let mut x = $crate::tile_sse41_f32!(ZEROS [[$crate::tile_sse41_f32!(VTYPE); $w]; $r]);
        $crate::each!(y in $r { $crate::each!(i in $w { if $mask & (1 << (y * $w + i)) != 0 {
            let p = $p[y][<$crate::tile_sse41_f32!(STEPS)>::group(i)].wrapping_byte_add($s.at(i));
            x[y][i] = $crate::tile_sse41_f32!(VLOAD p, 0); } }); });
        $crate::tile_sse41_f32!(BY_LANE $m 0, $t [$r x $w x $v] x, $b if $mask);
        $crate::tile_sse41_f32!(BY_LANE $m 1, $t [$r x $w x $v] x, $b if $mask);
        $crate::tile_sse41_f32!(BY_LANE $m 2, $t [$r x $w x $v] x, $b if $mask);
        $crate::tile_sse41_f32!(BY_LANE $m 3, $t [$r x $w x $v] x, $b if $mask); };
    (COMPUTE_OF $m:ident $($verb:tt)*) => { $crate::tile_default!($m COMPUTE $($verb)*) };
    (BY_LANE $m:ident $k:tt, $t:ident [$r:tt x $w:tt x $v:tt] $x:ident, $b:ident if $mask:expr) => {
        let mut one = $x;
        $crate::each!(y in $r { $crate::each!(i in $w { if $mask & (1 << (y * $w + i)) != 0 {
            one[y][i] = $crate::arch::_mm_castsi128_ps($crate::arch::_mm_shuffle_epi32::<{ 0x55 * $k }>(
                $crate::arch::_mm_castps_si128($x[y][i]))); } }); });
        $crate::each!(j in $v {
            let w = $crate::tile_sse41_f32!(VLOAD $b, ($k * $v + j));
            $crate::each!(y in $r { $crate::each!(i in $w {
                let q = y * $w + i;
                if $mask & (1 << q) != 0 { $t[q][j] = $crate::$m!(VFMA one[y][i], w, $t[q][j]); }
            }); });
        }); };
    ($($verb:tt)*) => { $crate::tile_default!(tile_sse41_f32 $($verb)*) };
}

/// The tile macro of SSE4.1 for `i8`: pairs of `i16`, whose products and sums are exact.
#[macro_export]
macro_rules! tile_sse41_i8 {
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::tile_sse41_f32!(VKEEP $crate::arch::_mm_castsi128_ps(
        $crate::arch::_mm_add_epi32($crate::arch::_mm_castps_si128($c), $crate::arch::_mm_madd_epi16(
            $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b))))) };
    (VADD16 $a:expr, $b:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_add_epi16(
        $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b))) };
    (VSUB16 $a:expr, $b:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_sub_epi16(
        $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b))) };
    (VIADD $a:expr, $b:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_add_epi32(
        $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b))) };
    (VISUB $a:expr, $b:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_sub_epi32(
        $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b))) };
    (VISHR $x:expr, $n:literal) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_srai_epi32::<$n>(
        $crate::arch::_mm_castps_si128($x))) };
    // SAFETY: the verb's caller owns 8 bytes there.
    (VWIDE8 $p:expr, $flip:expr) => { $crate::arch::_mm_xor_ps($flip, $crate::arch::_mm_castsi128_ps(
        $crate::arch::_mm_cvtepu8_epi16(unsafe { $crate::arch::_mm_loadl_epi64($p.cast()) }))) };
    (VZIPPED16 $a:expr, $b:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_packs_epi32(
        $crate::arch::_mm_cvtps_epi32($a), $crate::arch::_mm_cvtps_epi32($b))) };
    // SAFETY: the verb's caller owns 8 bytes there.
    (VSTORE_ZIPPED8 $p:expr, $x:expr, $lo:expr, $zero:expr) => {{
        let x = $crate::arch::_mm_max_epi16($crate::arch::_mm_castps_si128($x), $crate::arch::_mm_castps_si128($lo));
        let x = $crate::arch::_mm_and_si128($crate::arch::_mm_set1_epi16(0xff),
            $crate::arch::_mm_add_epi16(x, $crate::arch::_mm_castps_si128($zero)));
        unsafe { $crate::arch::_mm_storel_epi64($p.cast(), $crate::arch::_mm_packus_epi16(x, x)) } }};
    (VZIP_LO $a:expr, $b:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_unpacklo_epi16(
        $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b))) };
    (VZIP_HI $a:expr, $b:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_unpackhi_epi16(
        $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_castps_si128($b))) };
    (VQUADS $p:expr, $far:expr) => { $crate::tile_sse41_block!(VQUADS $p, $far) };
    (VHIDDEN $p:expr) => { <$crate::tile_sse41_f32!(STEPS)>::hold_pointer($p) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_sse41_f32!(COMPUTE_OF tile_sse41_i8 $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_sse41_f32!($($verb)*) };
}

/// The tile macro of SSE4.1 for blocks of weights. Products of bytes take the sign of the weight from the
/// activation, as `pmaddubsw` has one operand without.
#[macro_export]
macro_rules! tile_sse41_block {
    (BIASED) => { false };
    (VDOT $w:expr, $x:expr, $c:expr) => {{
        let (w, x) = ($crate::arch::_mm_castps_si128($w), $crate::arch::_mm_castps_si128($x));
        $crate::tile_sse41_block!(VPAIRS $crate::arch::_mm_abs_epi8(w), $crate::arch::_mm_sign_epi8(x, w), $c) }};
    (VDOTU $w:expr, $x:expr, $c:expr) => { $crate::tile_sse41_block!(VPAIRS
        $crate::arch::_mm_castps_si128($w), $crate::arch::_mm_castps_si128($x), $c) };
    (HALVED) => { true };
    (VPAIRS16 $w:expr, $x:expr, $c:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_add_epi16(
        $crate::arch::_mm_castps_si128($c), $crate::arch::_mm_maddubs_epi16(
            $crate::arch::_mm_castps_si128($w), $crate::arch::_mm_castps_si128($x)))) };
    (VSUM16 $a:expr, $c:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_add_epi32(
        $crate::arch::_mm_castps_si128($c), $crate::arch::_mm_madd_epi16(
            $crate::arch::_mm_castps_si128($a), $crate::arch::_mm_set1_epi16(1)))) };
    (VPAIRS $w:expr, $x:expr, $c:expr) => { $crate::tile_sse41_f32!(VKEEP $crate::arch::_mm_castsi128_ps(
        $crate::arch::_mm_add_epi32($crate::arch::_mm_castps_si128($c), $crate::arch::_mm_madd_epi16(
            $crate::arch::_mm_maddubs_epi16($w, $x), $crate::arch::_mm_set1_epi16(1))))) };
    // SAFETY: the verb's caller owns 4 halves there.
    (VLOADB16 $p:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_slli_epi32::<16>(
        $crate::arch::_mm_cvtepu16_epi32(unsafe { $crate::arch::_mm_loadl_epi64($p.cast()) }))) };
    (VAND $a:expr, $b:expr) => { $crate::arch::_mm_and_ps($a, $b) };
    (VOR $a:expr, $b:expr) => { $crate::arch::_mm_or_ps($a, $b) };
    (VXOR $a:expr, $b:expr) => { $crate::arch::_mm_xor_ps($a, $b) };
    (VQUADS $p:expr, $far:expr) => {{
        let (p, _): (*const u8, usize) = ($p, $far);
        $crate::tile_sse41_f32!(VLOAD p.cast::<f32>(), 0) }};
    // By constants, which become part of the instruction.
    (VSHL $x:expr, $n:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_sll_epi32(
        $crate::arch::_mm_castps_si128($x), $crate::arch::_mm_cvtsi32_si128(($n) as i32))) };
    (VSHR $x:expr, $n:expr) => { $crate::arch::_mm_castsi128_ps($crate::arch::_mm_srl_epi32(
        $crate::arch::_mm_castps_si128($x), $crate::arch::_mm_cvtsi32_si128(($n) as i32))) };
    // SAFETY: a table has 16 bytes.
    (VTABLE $t:expr, $x:expr) => {{
        let table: &[u8; 16] = $t;
        let table = unsafe { $crate::arch::_mm_loadu_si128(table.as_ptr().cast()) };
        $crate::arch::_mm_castsi128_ps($crate::arch::_mm_shuffle_epi8(table, $crate::arch::_mm_castps_si128($x))) }};
    (DOTS $($verb:tt)*) => { $crate::tile_default!(tile_sse41_block DOTS $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_sse41_f32!($($verb)*) };
}
