//! NEON (Advanced SIMD) of AArch64.

/// The tile macro of NEON for `f32`: 32 registers of 4 lanes. See the crate documentation.
#[macro_export]
macro_rules! tile_neon_f32 {
    (LANES) => { 4usize };
    (STEPS) => { $crate::steps::Apart };
    (VTYPE) => { $crate::arch::float32x4_t };
    (VZERO) => { $crate::arch::vdupq_n_f32(0.0) };
    (VSET $x:expr) => { $crate::arch::vdupq_n_f32($x) };
    // SAFETY (5 memory arms): the verb's caller owns the elements that the index reaches; a tail
    // copies its first `n <= 4` elements one by one.
    (VLOAD $p:expr, $i:expr) => { unsafe { $crate::arch::vld1q_f32($p.wrapping_add($i * 4)) } };
    (VLOAD_TAIL $p:expr, $n:expr) => {{
        let mut x = [0.0f32; 4];
        unsafe { core::ptr::copy_nonoverlapping($p, x.as_mut_ptr(), $n) };
        unsafe { $crate::arch::vld1q_f32(x.as_ptr()) } }};
    (VSPLAT $p:expr, $i:expr) => { unsafe { $crate::arch::vld1q_dup_f32($p.wrapping_add($i)) } };
    (VSTORE $p:expr, $i:expr, $x:expr) => {
        unsafe { $crate::arch::vst1q_f32($p.wrapping_add($i * 4), $x) } };
    (VSTORE_TAIL $p:expr, $n:expr, $x:expr) => {{
        let mut x = [0.0f32; 4];
        unsafe { $crate::arch::vst1q_f32(x.as_mut_ptr(), $x) };
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    (VPREFETCH $p:expr, $i:expr) => { let _ = ($p, $i); };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::vfmaq_f32($c, $a, $b) };
    (VADD $a:expr, $b:expr) => { $crate::arch::vaddq_f32($a, $b) };
    (VSUB $a:expr, $b:expr) => { $crate::arch::vsubq_f32($a, $b) };
    (VMUL $a:expr, $b:expr) => { $crate::arch::vmulq_f32($a, $b) };
    (VDIV $a:expr, $b:expr) => { $crate::arch::vdivq_f32($a, $b) };
    (VMAX $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::vbslq_f32($crate::arch::vcgtq_f32(a, b), a, b) }};
    (VMIN $a:expr, $b:expr) => {{ let (a, b) = ($a, $b);
        $crate::arch::vbslq_f32($crate::arch::vcltq_f32(a, b), a, b) }};
    (VSQRT $x:expr) => { $crate::arch::vsqrtq_f32($x) };
    (VROUND $x:expr) => { $crate::arch::vrndnq_f32($x) };
    (VFLOOR $x:expr) => { $crate::arch::vrndmq_f32($x) };
    (VABS $x:expr) => { $crate::arch::vabsq_f32($x) };
    (VCOPYSIGN $x:expr, $s:expr) => {
        $crate::arch::vbslq_f32($crate::arch::vdupq_n_u32(0x8000_0000), $s, $x) };
    (VGT $a:expr, $b:expr) => { $crate::arch::vcgtq_f32($a, $b) };
    (VSEL $m:expr, $a:expr, $b:expr) => { $crate::arch::vbslq_f32($m, $a, $b) };
    (VPOW2 $n:expr) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vshlq_n_s32::<23>(
        $crate::arch::vaddq_s32($crate::arch::vcvtq_s32_f32($n), $crate::arch::vdupq_n_s32(127)))) };
    (VEXPO $x:expr) => { $crate::arch::vcvtq_f32_s32($crate::arch::vsubq_s32($crate::arch::vreinterpretq_s32_u32(
        $crate::arch::vshrq_n_u32::<23>($crate::arch::vreinterpretq_u32_f32($x))), $crate::arch::vdupq_n_s32(127))) };
    (VMANT $x:expr) => { $crate::arch::vbslq_f32(
        $crate::arch::vdupq_n_u32(0x007f_ffff), $x, $crate::arch::vdupq_n_f32(1.0)) };
    (VMAXIMUM $a:expr, $b:expr) => { $crate::arch::vmaxq_f32($a, $b) };
    (VMINIMUM $a:expr, $b:expr) => { $crate::arch::vminq_f32($a, $b) };
    (VPAIR_LO $a:expr, $b:expr) => { $crate::arch::vzip1q_f32($a, $b) };
    (VPAIR_HI $a:expr, $b:expr) => { $crate::arch::vzip2q_f32($a, $b) };
    (VQUAD_LO $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_f64($crate::arch::vzip1q_f64(
        $crate::arch::vreinterpretq_f64_f32($a), $crate::arch::vreinterpretq_f64_f32($b))) };
    (VQUAD_HI $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_f64($crate::arch::vzip2q_f64(
        $crate::arch::vreinterpretq_f64_f32($a), $crate::arch::vreinterpretq_f64_f32($b))) };
    (VEVEN $a:expr, $b:expr) => { $crate::arch::vuzp1q_f32($a, $b) };
    (VODD $a:expr, $b:expr) => { $crate::arch::vuzp2q_f32($a, $b) };
    (VPREV $a:expr, $b:expr) => { $crate::arch::vextq_f32::<3>($a, $b) };
    (VNEXT $a:expr, $b:expr) => { $crate::arch::vextq_f32::<1>($a, $b) };
    (TRANSPOSE $t:ident) => { $crate::tile_default!(tile_neon_f32 QUADS $t [1]); };
    // Lanes that hold `i32` bits.
    (VITOF $x:expr) => { $crate::arch::vcvtq_f32_s32($crate::arch::vreinterpretq_s32_f32($x)) };
    (VIMLA $a:expr, $b:expr, $c:expr) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vmlaq_s32(
        $crate::arch::vreinterpretq_s32_f32($c), $crate::arch::vreinterpretq_s32_f32($a),
        $crate::arch::vreinterpretq_s32_f32($b))) };
    // SAFETY (3 memory arms): as above, of bytes.
    (VLOAD8 $p:expr, $mask:expr, $zero:expr) => {{
        let bytes = u64::from(unsafe { $p.cast::<u32>().read_unaligned() });
        let x = $crate::arch::vmovl_u16($crate::arch::vget_low_u16($crate::arch::vmovl_u8($crate::arch::vcreate_u8(bytes))));
        $crate::arch::vsubq_f32($crate::arch::vreinterpretq_f32_u32(
            $crate::arch::veorq_u32(x, $crate::arch::vreinterpretq_u32_f32($mask))), $zero) }};
    (VSTORE8 $p:expr, $x:expr) => {
        unsafe { $p.cast::<u32>().write_unaligned($crate::tile_neon_f32!(VBYTES $x)) } };
    (VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => {{
        let x = $crate::tile_neon_f32!(VBYTES $x).to_ne_bytes();
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    // SAFETY (2 memory arms): as above, of the bytes of a pixel.
    (BYTES_LOAD $p:expr) => { unsafe { $crate::arch::vld1q_u8($p) } };
    (BYTES_STORE $p:expr, $x:expr) => { unsafe { $crate::arch::vst1q_u8($p, $x) } };
    (BYTES_SPLAT $byte:expr) => { $crate::arch::vdupq_n_u8($byte) };
    (BYTES_XOR $a:expr, $b:expr) => { $crate::arch::veorq_u8($a, $b) };
    (BYTES_MAX $a:expr, $b:expr) => { $crate::arch::vmaxq_u8($a, $b) };
    (BYTES_ZIP_LO $a:expr, $b:expr) => { $crate::arch::vzip1q_u8($a, $b) };
    (BYTES_ZIP_HI $a:expr, $b:expr) => { $crate::arch::vzip2q_u8($a, $b) };
    // By assembly: the intrinsics are not stable. SAFETY (2 memory arms): as above, of halves; the
    // instructions work on registers only.
    (VLOAD16 $p:expr) => {{
        let half = $crate::arch::vcreate_u16(unsafe { $p.cast::<u64>().read_unaligned() });
        let x: $crate::arch::float32x4_t;
        unsafe { core::arch::asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) x, in(vreg) half,
            options(pure, nomem, nostack, preserves_flags)) };
        x }};
    (VSTORE16 $p:expr, $x:expr) => {{
        let half: $crate::arch::uint16x4_t;
        unsafe { core::arch::asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) half, in(vreg) $x,
            options(pure, nomem, nostack, preserves_flags)) };
        unsafe { $p.cast::<u64>().write_unaligned($crate::arch::vget_lane_u64::<0>(
            $crate::arch::vreinterpret_u64_u16(half))) } }};
    // The low byte of each lane, side by side.
    (VBYTES $x:expr) => {{
        let x = $crate::arch::vmovn_s32($crate::arch::vcvtnq_s32_f32($x));
        let x = $crate::arch::vmovn_s16($crate::arch::vcombine_s16(x, x));
        $crate::arch::vget_lane_u32::<0>($crate::arch::vreinterpret_u32_s8(x)) }};
    // Four reduction steps from one activation vector per pixel, multiplied lane by lane: a
    // quarter of the loads of the broadcast form, and it does not spill.
    (COMPUTE $($verb:tt)*) => { $crate::tile_neon_f32!(COMPUTE_OF tile_neon_f32 $($verb)*) };
    // Of a row that has a multiplication by lane.
    (COMPUTE_OF $m:ident conv $t:ident [$r:tt x $w:tt x $v:tt x 4] += $p:ident[$s:ident] * $b:ident if $mask:expr) => {
        $crate::tile_default!(tile_neon_f32 HOLD $p [$r x $w]);
        let mut x = $crate::tile_neon_f32!(ZEROS [[$crate::tile_neon_f32!(VTYPE); $w]; $r]);
        $crate::each!(y in $r { $crate::each!(i in $w { if $mask & (1 << (y * $w + i)) != 0 {
            x[y][i] = $crate::tile_neon_f32!(VLOAD $p[y][i], 0); } }); });
        $crate::tile_neon_f32!(BY_LANE $m 0, $t [$r x $w x $v] x, $b if $mask);
        $crate::tile_neon_f32!(BY_LANE $m 1, $t [$r x $w x $v] x, $b if $mask);
        $crate::tile_neon_f32!(BY_LANE $m 2, $t [$r x $w x $v] x, $b if $mask);
        $crate::tile_neon_f32!(BY_LANE $m 3, $t [$r x $w x $v] x, $b if $mask); };
    (COMPUTE_OF $m:ident $($verb:tt)*) => { $crate::tile_default!($m COMPUTE $($verb)*) };
    (VFMA_LANE $k:tt, $a:expr, $b:expr, $c:expr) => { $crate::arch::vfmaq_laneq_f32::<$k>($c, $b, $a) };
    // One weight vector alive at a time: in-order cores' schedules spill otherwise.
    (BY_LANE $m:ident $k:tt, $t:ident [$r:tt x $w:tt x $v:tt] $x:ident, $b:ident if $mask:expr) => {
        $crate::each!(j in $v {
            let w = $crate::tile_neon_f32!(VLOAD $b, ($k * $v + j));
            $crate::each!(y in $r { $crate::each!(i in $w {
                let q = y * $w + i;
                if $mask & (1 << q) != 0 { $t[q][j] = $crate::$m!(VFMA_LANE $k, $x[y][i], w, $t[q][j]); }
            }); });
        }); };
    // SAFETY: no instruction; the vector passes as it is. Otherwise LLVM adds the products of several
    // steps first, and spills them.
    (VKEEP $x:expr) => {{
        let mut x = $x;
        unsafe { core::arch::asm!("/* {0:v} */", inout(vreg) x, options(nomem, nostack, preserves_flags)) };
        x }};
    // Four tables of 64 bytes; numbers beyond one leave what is there.
    // SAFETY: the verb's caller owns 64 bytes at `x` and `y`, and 256 at `t`.
    (LOOKUP $x:expr, $t:expr => $y:expr) => { $crate::each!(i in 4 { unsafe {
        let x = $crate::arch::vld1q_u8($x.wrapping_add(i * 16));
        let mut y = $crate::arch::vdupq_n_u8(0);
        $crate::each!(k in 4 {
            let part = $crate::arch::vld1q_u8_x4($t.wrapping_add(64 * k));
            y = $crate::arch::vqtbx4q_u8(y, part, $crate::arch::vsubq_u8(x, $crate::arch::vdupq_n_u8((64 * k) as u8)));
        });
        $crate::arch::vst1q_u8($y.wrapping_add(i * 16), y);
    } }); };
    ($($verb:tt)*) => { $crate::tile_default!(tile_neon_f32 $($verb)*) };
}

/// The tile macro of NEON for `i8`: pairs of `i16`, multiplied by lane and added as `i32`, which
/// takes fewer instructions than products of bytes whose sums must not overflow.
#[macro_export]
macro_rules! tile_neon_i8 {
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::tile_neon_i8!(VFMA_LANE 0, $a, $b, $c) };
    // By assembly: LLVM would add the products of several steps first, and spill them.
    // SAFETY: works on registers only. The lane's register is one of the first 16.
    (VFMA_LANE $k:literal, $a:expr, $b:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!(
            "smlal {0:v}.4s, {1:v}.4h, {2:v}.h[{lo}]", "smlal2 {0:v}.4s, {1:v}.8h, {2:v}.h[{hi}]",
            inout(vreg) c, in(vreg) $b, in(vreg_low16) $a, lo = const 2 * $k, hi = const 2 * $k + 1,
            options(pure, nomem, nostack, preserves_flags)) };
        c }};
    // SAFETY (2 memory arms): the verb's caller owns 16 bytes, 16 halves there.
    (WIDE8 $p:expr, $flip:expr) => {{
        let x = $crate::arch::veorq_u8(unsafe { $crate::arch::vld1q_u8($p) }, $flip);
        [$crate::arch::vmovl_u8($crate::arch::vget_low_u8(x)), $crate::arch::vmovl_high_u8(x)] }};
    (WIDE16 $p:expr) => { [0, 4].map(|at| unsafe { $crate::arch::vld1q_u16($p.wrapping_add(at).cast()) }) };
    // By assembly, as above. SAFETY: works on registers only.
    (WIDE_MLA $t:expr, $x:expr, $w:expr) => { $crate::each!(j in 2 { unsafe { core::arch::asm!(
        "smlal {0:v}.4s, {2:v}.4h, {3:v}.4h", "smlal2 {1:v}.4s, {2:v}.8h, {3:v}.8h",
        inout(vreg) $t[2 * j], inout(vreg) $t[2 * j + 1], in(vreg) $x[j], in(vreg) $w[j],
        options(pure, nomem, nostack, preserves_flags)) }; }) };
    // SAFETY: the verb's caller owns 16 bytes there.
    (WIDE_STORE $p:expr, $t:expr, $bounds:expr, $zero:expr) => {{
        let [lo, hi, zero] = [$bounds[0], $bounds[1], $zero].map(|v| $crate::arch::vdupq_n_s16(v as i16));
        let half = |a, b| {
            let [a, b] = [$crate::arch::vcvtnq_s32_f32(a), $crate::arch::vcvtnq_s32_f32(b)];
            let x = $crate::arch::vqmovn_high_s32($crate::arch::vqmovn_s32(a), b);
            $crate::arch::vaddq_s16($crate::arch::vminq_s16($crate::arch::vmaxq_s16(x, lo), hi), zero)
        };
        let x = $crate::arch::vmovn_high_s16($crate::arch::vmovn_s16(half($t[0], $t[1])), half($t[2], $t[3]));
        unsafe { $crate::arch::vst1q_s8($p.cast(), x) } }};
    (VADD16 $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_s16($crate::arch::vaddq_s16(
        $crate::arch::vreinterpretq_s16_f32($a), $crate::arch::vreinterpretq_s16_f32($b))) };
    (VSUB16 $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_s16($crate::arch::vsubq_s16(
        $crate::arch::vreinterpretq_s16_f32($a), $crate::arch::vreinterpretq_s16_f32($b))) };
    (VIADD $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vaddq_s32(
        $crate::arch::vreinterpretq_s32_f32($a), $crate::arch::vreinterpretq_s32_f32($b))) };
    (VISUB $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vsubq_s32(
        $crate::arch::vreinterpretq_s32_f32($a), $crate::arch::vreinterpretq_s32_f32($b))) };
    (VISHR $x:expr, $n:literal) => { $crate::arch::vreinterpretq_f32_s32($crate::arch::vshrq_n_s32::<$n>(
        $crate::arch::vreinterpretq_s32_f32($x))) };
    // SAFETY: the verb's caller owns 8 bytes there.
    (VWIDE8 $p:expr, $flip:expr) => { $crate::arch::vreinterpretq_f32_u16($crate::arch::veorq_u16(
        $crate::arch::vreinterpretq_u16_f32($flip),
        $crate::arch::vmovl_u8(unsafe { $crate::arch::vld1_u8($p) }))) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_neon_f32!(COMPUTE_OF tile_neon_i8 $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_neon_f32!($($verb)*) };
}

/// The tile macro of NEON for blocks of weights.
#[macro_export]
macro_rules! tile_neon_block {
    (BIASED) => { false };
    // Two products of -128 at most by 127 fit 16 bits.
    (VDOT $w:expr, $x:expr, $c:expr) => {{
        let (w, x) = ($crate::arch::vreinterpretq_s8_f32($w), $crate::arch::vreinterpretq_s8_f32($x));
        let low = $crate::arch::vmull_s8($crate::arch::vget_low_s8(w), $crate::arch::vget_low_s8(x));
        let pairs = $crate::arch::vpaddq_s16(low, $crate::arch::vmull_high_s8(w, x));
        $crate::tile_neon_f32!(VKEEP $crate::arch::vreinterpretq_f32_s32(
            $crate::arch::vpadalq_s16($crate::arch::vreinterpretq_s32_f32($c), pairs))) }};
    (VDOTU $w:expr, $x:expr, $c:expr) => { $crate::tile_neon_block!(VDOT $w, $x, $c) };
    // SAFETY: the verb's caller owns 4 halves there.
    (VLOADB16 $p:expr) => { $crate::arch::vreinterpretq_f32_u32($crate::arch::vshll_n_u16::<16>(
        unsafe { $crate::arch::vld1_u16($p) })) };
    (VAND $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_u32($crate::arch::vandq_u32(
        $crate::arch::vreinterpretq_u32_f32($a), $crate::arch::vreinterpretq_u32_f32($b))) };
    (VOR $a:expr, $b:expr) => { $crate::arch::vreinterpretq_f32_u32($crate::arch::vorrq_u32(
        $crate::arch::vreinterpretq_u32_f32($a), $crate::arch::vreinterpretq_u32_f32($b))) };
    (VQUADS $p:expr, $far:expr) => {{
        let (p, _): (*const u8, usize) = ($p, $far);
        $crate::tile_neon_f32!(VLOAD p.cast::<f32>(), 0) }};
    // By constants, which become part of the instruction.
    (VSHL $x:expr, $n:expr) => { $crate::arch::vreinterpretq_f32_u32($crate::arch::vshlq_u32(
        $crate::arch::vreinterpretq_u32_f32($x), $crate::arch::vdupq_n_s32(($n) as i32))) };
    (VSHR $x:expr, $n:expr) => { $crate::arch::vreinterpretq_f32_u32($crate::arch::vshlq_u32(
        $crate::arch::vreinterpretq_u32_f32($x), $crate::arch::vdupq_n_s32(-(($n) as i32)))) };
    // SAFETY: a table has 16 bytes.
    (VTABLE $t:expr, $x:expr) => {{
        let table: &[u8; 16] = $t;
        let table = unsafe { $crate::arch::vld1q_u8(table.as_ptr()) };
        $crate::arch::vreinterpretq_f32_u8(
            $crate::arch::vqtbl1q_u8(table, $crate::arch::vreinterpretq_u8_f32($x))) }};
    // By lanes: four columns are one load.
    (DOTS VFMA $a:ident [$v:tt x 8] += $b:ident * $x:ident, $g:expr) => { $crate::each!(q in 2 {
        let x = $crate::tile_neon_f32!(VLOAD $x, (2 * $g + q));
        $crate::each!(j in $v {
            $a[4 * q][j] = $crate::tile_neon_f32!(VFMA_LANE 0, x, $b[j], $a[4 * q][j]);
            $a[4 * q + 1][j] = $crate::tile_neon_f32!(VFMA_LANE 1, x, $b[j], $a[4 * q + 1][j]);
            $a[4 * q + 2][j] = $crate::tile_neon_f32!(VFMA_LANE 2, x, $b[j], $a[4 * q + 2][j]);
            $a[4 * q + 3][j] = $crate::tile_neon_f32!(VFMA_LANE 3, x, $b[j], $a[4 * q + 3][j]);
        }); }); };
    (DOTS $($verb:tt)*) => { $crate::tile_default!(tile_neon_block DOTS $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_neon_f32!($($verb)*) };
}
