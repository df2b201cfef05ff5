//! An instruction set of two lanes, in plain Rust: the example of `docs/porting.md`.

/// The tile macro of the toy for `f32`: two lanes. See the crate documentation.
#[macro_export]
macro_rules! tile_toy_f32 {
    (LANES) => { 2usize };
    (STEPS) => { $crate::steps::One };
    (VTYPE) => { [f32; 2] };
    (VZERO) => { [0.0f32; 2] };
    (VSET $x:expr) => { [$x; 2] };
    // SAFETY (5 memory arms): the verb's caller owns the elements that the index reaches; a tail
    // touches its first `n <= 2` elements only.
    (VLOAD $p:expr, $i:expr) => { unsafe { $p.wrapping_add($i * 2).cast::<[f32; 2]>().read_unaligned() } };
    (VLOAD_TAIL $p:expr, $n:expr) => {{
        let mut x = [0.0f32; 2];
        unsafe { core::ptr::copy_nonoverlapping($p, x.as_mut_ptr(), $n) };
        x }};
    (VSPLAT $p:expr, $i:expr) => { [unsafe { *$p.wrapping_add($i) }; 2] };
    (VSTORE $p:expr, $i:expr, $x:expr) => {
        unsafe { $p.wrapping_add($i * 2).cast::<[f32; 2]>().write_unaligned($x) } };
    (VSTORE_TAIL $p:expr, $n:expr, $x:expr) => {{
        let x = $x;
        unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), $p, $n) } }};
    (VPREFETCH $p:expr, $i:expr) => {};
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::tile_toy_f32!(ZIP
        $crate::tile_toy_f32!(VMUL $a, $b), $c, |x, y| x + y) };
    (VADD $a:expr, $b:expr) => { $crate::tile_toy_f32!(ZIP $a, $b, |x, y| x + y) };
    (VSUB $a:expr, $b:expr) => { $crate::tile_toy_f32!(ZIP $a, $b, |x, y| x - y) };
    (VMUL $a:expr, $b:expr) => { $crate::tile_toy_f32!(ZIP $a, $b, |x, y| x * y) };
    (VDIV $a:expr, $b:expr) => { $crate::tile_toy_f32!(ZIP $a, $b, |x, y| x / y) };
    (VMAX $a:expr, $b:expr) => { $crate::tile_toy_f32!(ZIP $a, $b, |x, y| if x > y { x } else { y }) };
    (VMIN $a:expr, $b:expr) => { $crate::tile_toy_f32!(ZIP $a, $b, |x, y| if x < y { x } else { y }) };
    (VSQRT $x:expr) => { $crate::tile_toy_f32!(MAP $x, $crate::soft::sqrt) };
    (VROUND $x:expr) => { $crate::tile_toy_f32!(MAP $x, $crate::soft::round) };
    (VFLOOR $x:expr) => { $crate::tile_toy_f32!(MAP $x, $crate::soft::floor) };
    (VABS $x:expr) => { $crate::tile_toy_f32!(MAP $x, |x| f32::from_bits(x.to_bits() & 0x7fff_ffff)) };
    (VCOPYSIGN $x:expr, $s:expr) => { $crate::tile_toy_f32!(ZIP $x, $s, |x, s|
        f32::from_bits(x.to_bits() & 0x7fff_ffff | s.to_bits() & 0x8000_0000)) };
    (VGT $a:expr, $b:expr) => {{ let (a, b) = ($a, $b); [a[0] > b[0], a[1] > b[1]] }};
    (VSEL $m:expr, $a:expr, $b:expr) => {{
        let (m, a, b) = ($m, $a, $b);
        [if m[0] { a[0] } else { b[0] }, if m[1] { a[1] } else { b[1] }] }};
    (VPOW2 $n:expr) => { $crate::tile_toy_f32!(MAP $n, |n| f32::from_bits(((n as i32 + 127) << 23) as u32)) };
    (VEXPO $x:expr) => { $crate::tile_toy_f32!(MAP $x, |x| ((x.to_bits() >> 23) as i32 - 127) as f32) };
    (VMANT $x:expr) => { $crate::tile_toy_f32!(MAP $x, |x|
        f32::from_bits(x.to_bits() & 0x007f_ffff | 0x3f80_0000)) };
    (TRANSPOSE $t:ident) => {{
        let (a, b) = ($t[0][0], $t[1][0]);
        ($t[0][0], $t[1][0]) = ([a[0], b[0]], [a[1], b[1]]); }};
    // What this file shares between its own arms.
    (MAP $x:expr, $f:expr) => {{ let (x, f): ([f32; 2], fn(f32) -> f32) = ($x, $f); [f(x[0]), f(x[1])] }};
    (ZIP $a:expr, $b:expr, $f:expr) => {{
        let (a, b, f): ([f32; 2], [f32; 2], fn(f32, f32) -> f32) = ($a, $b, $f);
        [f(a[0], b[0]), f(a[1], b[1])] }};
    ($($verb:tt)*) => { $crate::tile_default!(tile_toy_f32 $($verb)*) };
}
