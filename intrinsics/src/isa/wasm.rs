//! SIMD of WebAssembly.

/// The tile macro of WebAssembly's SIMD for `f32`: 4 lanes; engines have 16 or 32 registers. See the
/// crate documentation.
#[macro_export]
macro_rules! tile_wasm_f32 {
    (LANES) => { 4usize };
    (STEPS) => { $crate::steps::One };
    (VTYPE) => { $crate::arch::v128 };
    (VZERO) => { $crate::arch::f32x4_splat(0.0) };
    (VSET $x:expr) => { $crate::arch::f32x4_splat($x) };
    // SAFETY (5 memory arms): the verb's caller owns the elements that the index reaches; a tail
    // copies its first `n <= 4` elements one by one.
    (VLOAD $p:expr, $i:expr) => { unsafe { $crate::arch::v128_load($p.wrapping_add($i * 4).cast()) } };
    (VLOAD_TAIL $p:expr, $n:expr) => {{
        let mut x = [0.0f32; 4];
        unsafe { core::ptr::copy_nonoverlapping($p, x.as_mut_ptr(), $n) };
        unsafe { $crate::arch::v128_load(x.as_ptr().cast()) } }};
    (VSPLAT $p:expr, $i:expr) => { unsafe { $crate::arch::v128_load32_splat($p.wrapping_add($i).cast()) } };
    (VSTORE $p:expr, $i:expr, $x:expr) => {
        unsafe { $crate::arch::v128_store($p.wrapping_add($i * 4).cast(), $x) } };
    (VSTORE_TAIL $p:expr, $n:expr, $x:expr) => {{
        let mut x = [0.0f32; 4];
        unsafe { $crate::arch::v128_store(x.as_mut_ptr().cast(), $x) };
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    (VPREFETCH $p:expr, $i:expr) => { let _ = ($p, $i); };
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::f32x4_add($crate::arch::f32x4_mul($a, $b), $c) };
    (VADD $a:expr, $b:expr) => { $crate::arch::f32x4_add($a, $b) };
    (VSUB $a:expr, $b:expr) => { $crate::arch::f32x4_sub($a, $b) };
    (VMUL $a:expr, $b:expr) => { $crate::arch::f32x4_mul($a, $b) };
    (VDIV $a:expr, $b:expr) => { $crate::arch::f32x4_div($a, $b) };
    // Not `pmax` and `pmin`: beside relaxed SIMD, LLVM makes relaxed ones of them, whose NaN differ.
    (VMAX $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        $crate::arch::v128_bitselect(a, b, $crate::arch::f32x4_gt(a, b)) }};
    (VMIN $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        $crate::arch::v128_bitselect(a, b, $crate::arch::f32x4_lt(a, b)) }};
    (VSQRT $x:expr) => { $crate::arch::f32x4_sqrt($x) };
    (VROUND $x:expr) => { $crate::arch::f32x4_nearest($x) };
    (VFLOOR $x:expr) => { $crate::arch::f32x4_floor($x) };
    (VABS $x:expr) => { $crate::arch::f32x4_abs($x) };
    (VCOPYSIGN $x:expr, $s:expr) => {{
        let (x, s) = ($x, $s);
        $crate::arch::v128_bitselect(s, x, $crate::arch::f32x4_splat(-0.0)) }};
    (VGT $a:expr, $b:expr) => { $crate::arch::f32x4_gt($a, $b) };
    (VSEL $m:expr, $a:expr, $b:expr) => {{
        let (m, a, b) = ($m, $a, $b);
        $crate::arch::v128_bitselect(a, b, m) }};
    (VMAXIMUM $a:expr, $b:expr) => { $crate::arch::f32x4_max($a, $b) };
    (VMINIMUM $a:expr, $b:expr) => { $crate::arch::f32x4_min($a, $b) };
    (VPOW2 $n:expr) => { $crate::arch::i32x4_shl($crate::arch::i32x4_add(
        $crate::arch::i32x4_trunc_sat_f32x4($n), $crate::arch::i32x4_splat(127)), 23) };
    (VEXPO $x:expr) => { $crate::arch::f32x4_convert_i32x4($crate::arch::i32x4_sub(
        $crate::arch::u32x4_shr($x, 23), $crate::arch::i32x4_splat(127))) };
    (VMANT $x:expr) => { $crate::arch::v128_or($crate::arch::f32x4_splat(1.0),
        $crate::arch::v128_and($x, $crate::arch::i32x4_splat(0x007f_ffff))) };
    (VPAIR_LO $a:expr, $b:expr) => { $crate::arch::i32x4_shuffle::<0, 4, 1, 5>($a, $b) };
    (VPAIR_HI $a:expr, $b:expr) => { $crate::arch::i32x4_shuffle::<2, 6, 3, 7>($a, $b) };
    (VQUAD_LO $a:expr, $b:expr) => { $crate::arch::i64x2_shuffle::<0, 2>($a, $b) };
    (VQUAD_HI $a:expr, $b:expr) => { $crate::arch::i64x2_shuffle::<1, 3>($a, $b) };
    (VEVEN $a:expr, $b:expr) => { $crate::arch::i32x4_shuffle::<0, 2, 4, 6>($a, $b) };
    (VODD $a:expr, $b:expr) => { $crate::arch::i32x4_shuffle::<1, 3, 5, 7>($a, $b) };
    (VPREV $a:expr, $b:expr) => { $crate::arch::i32x4_shuffle::<3, 4, 5, 6>($a, $b) };
    (VNEXT $a:expr, $b:expr) => { $crate::arch::i32x4_shuffle::<1, 2, 3, 4>($a, $b) };
    (TRANSPOSE $t:ident) => { $crate::tile_default!(tile_wasm_f32 QUADS $t [1]); };
    // Bytes. SAFETY (2 memory arms): as above.
    (VLOAD8 $p:expr, $mask:expr, $zero:expr) => {{
        let x = unsafe { $crate::arch::v128_load32_zero($p.cast()) };
        let x = $crate::arch::u32x4_extend_low_u16x8($crate::arch::u16x8_extend_low_u8x16(x));
        $crate::arch::f32x4_sub($crate::arch::v128_xor(x, $mask), $zero) }};
    // Lanes that hold `i32` bits.
    (VITOF $x:expr) => { $crate::arch::f32x4_convert_i32x4($x) };
    (VIMLA $a:expr, $b:expr, $c:expr) => { $crate::arch::i32x4_add($crate::arch::i32x4_mul($a, $b), $c) };
    // SAFETY (2 memory arms): as above, of bytes.
    (VSTORE8 $p:expr, $x:expr) => {
        unsafe { $p.cast::<i32>().write_unaligned($crate::tile_wasm_f32!(VBYTES $x)) } };
    (VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => {{
        let x = $crate::tile_wasm_f32!(VBYTES $x).to_ne_bytes();
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    // SAFETY (2 memory arms): as above, of the bytes of a pixel.
    (BYTES_LOAD $p:expr) => { unsafe { $crate::arch::v128_load($p.cast()) } };
    (BYTES_STORE $p:expr, $x:expr) => { unsafe { $crate::arch::v128_store($p.cast(), $x) } };
    (BYTES_SPLAT $byte:expr) => { $crate::arch::u8x16_splat($byte) };
    (BYTES_XOR $a:expr, $b:expr) => { $crate::arch::v128_xor($a, $b) };
    (BYTES_MAX $a:expr, $b:expr) => { $crate::arch::u8x16_max($a, $b) };
    (BYTES_ZIP_LO $a:expr, $b:expr) => {
        $crate::arch::u8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>($a, $b) };
    (BYTES_ZIP_HI $a:expr, $b:expr) => {
        $crate::arch::u8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>($a, $b) };
    // The low byte of each lane, side by side.
    (VBYTES $x:expr) => {{
        let x = $crate::arch::i32x4_trunc_sat_f32x4($x);
        $crate::arch::i32x4_extract_lane::<0>(
            $crate::arch::i8x16_shuffle::<0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12>(x, x)) }};
    ($($verb:tt)*) => { $crate::tile_default!(tile_wasm_f32 $($verb)*) };
}

/// The tile macro of WebAssembly's SIMD for `i8`: pairs of `i16`, whose products and sums are exact.
///
/// Relaxed SIMD has nothing better: its dot products of bytes, `i8x16` times `i7x16`, differ between
/// engines as soon as a byte of the second operand has its top bit set, and weights have 8 bits.
#[macro_export]
macro_rules! tile_wasm_i8 {
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::i32x4_add($crate::arch::i32x4_dot_i16x8($a, $b), $c) };
    (VADD16 $a:expr, $b:expr) => { $crate::arch::i16x8_add($a, $b) };
    (VSUB16 $a:expr, $b:expr) => { $crate::arch::i16x8_sub($a, $b) };
    (VIADD $a:expr, $b:expr) => { $crate::arch::i32x4_add($a, $b) };
    (VISUB $a:expr, $b:expr) => { $crate::arch::i32x4_sub($a, $b) };
    (VISHR $x:expr, $n:literal) => { $crate::arch::i32x4_shr($x, $n) };
    // SAFETY: the verb's caller owns 8 bytes there.
    (VWIDE8 $p:expr, $flip:expr) => { $crate::arch::v128_xor($flip,
        unsafe { $crate::arch::u16x8_load_extend_u8x8($p) }) };
    (VZIPPED16 $a:expr, $b:expr) => { $crate::arch::i16x8_narrow_i32x4(
        $crate::arch::i32x4_trunc_sat_f32x4($crate::arch::f32x4_nearest($a)),
        $crate::arch::i32x4_trunc_sat_f32x4($crate::arch::f32x4_nearest($b))) };
    // SAFETY: the verb's caller owns 8 bytes there.
    (VSTORE_ZIPPED8 $p:expr, $x:expr, $lo:expr, $zero:expr) => {{
        let x = $crate::arch::i16x8_add($crate::arch::i16x8_max($x, $lo), $zero);
        let x = $crate::arch::v128_and(x, $crate::arch::i16x8_splat(0xff));
        unsafe { $crate::arch::v128_store64_lane::<0>($crate::arch::u8x16_narrow_i16x8(x, x), $p.cast()) } }};
    (VZIP_LO $a:expr, $b:expr) => { $crate::arch::i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>($a, $b) };
    (VZIP_HI $a:expr, $b:expr) => { $crate::arch::i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>($a, $b) };
    (VQUADS $p:expr, $far:expr) => {{
        let (p, _): (*const u8, usize) = ($p, $far);
        $crate::tile_wasm_f32!(VLOAD p.cast::<f32>(), 0) }};
    (VHIDDEN $p:expr) => { <$crate::tile_wasm_f32!(STEPS)>::hold_pointer($p) };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_wasm_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_wasm_f32!($($verb)*) };
}
