//! NEON with matrix products of bytes (FEAT_I8MM), by assembly: the intrinsics are not stable.

/// The tile macro of I8MM for `i8`: `u8` activations, `i8` weights, products of 2 x 8 by 8 x 2.
///
/// An instruction multiplies eight bytes of two rows by eight of two columns, twice the work of a dot
/// product. Rows 2 i and 2 i + 1 of a tile hold, vector by vector, two columns of both rows and the
/// next two columns of both, until PAIR transposes them; one more row stands beside a last single one.
/// The largest tile is 4 x 16: the vectors of 6 x 16, of three pairs of rows and of weights together
/// are all 32 registers, and most CPU models' schedules of it spill.
#[macro_export]
macro_rules! tile_i8mm_i8 {
    (DEF $t:ident [1 x $w:tt x $v:tt]) => {
        let mut $t = $crate::tile_neon_f32!(ZEROS [[$crate::tile_neon_f32!(VTYPE); $v]; usize::next_multiple_of($w, 2)]); };
    // SAFETY: works on registers only, of a CPU that has the instruction.
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!("usmmla {0:v}.4s, {2:v}.16b, {1:v}.16b", inout(vreg) c, in(vreg) $b,
            in(vreg) $a, options(pure, nomem, nostack, preserves_flags)) };
        c }};
    (COMPUTE conv $t:ident [1 x $w:tt x $v:tt x 4] += $p:ident[$s:ident] * $b:ident if $mask:expr) => {
        $crate::tile_default!(tile_neon_f32 HOLD $p [1 x $w]);
        let mut x = $crate::tile_neon_f32!(ZEROS [[$crate::tile_neon_f32!(VTYPE); 2]; $w]);
        $crate::each!(i in $w { if i % 2 == 0 {
            let a = $crate::tile_neon_f32!(VLOAD $p[0][i], 0);
            let b = $crate::tile_neon_f32!(VLOAD $p[0][if i + 1 < $w { i + 1 } else { i }], 0);
            x[i] = [$crate::tile_neon_f32!(VQUAD_LO a, b), $crate::tile_neon_f32!(VQUAD_HI a, b)];
        } });
        $crate::each!(k in 2 { $crate::each!(j in $v {
            let low = $crate::tile_neon_f32!(VLOAD $b, ((k * $v + j) * 2));
            let high = $crate::tile_neon_f32!(VLOAD $b, ((k * $v + j) * 2 + 1));
            $crate::each!(i in $w { if i % 2 == 0 && $mask & (1 << i) != 0 {
                $t[i][j] = $crate::tile_i8mm_i8!(VFMA x[i][k], low, $t[i][j]);
                $t[i + 1][j] = $crate::tile_i8mm_i8!(VFMA x[i][k], high, $t[i + 1][j]); } });
        }); }); };
    // Reductions are padded to four words.
    (COMPUTE conv $t:ident [1 x $w:tt x $v:tt x 1] $($rest:tt)*) => {};
    (PAIR $t:ident [$w:tt x $v:tt]) => {
        $crate::each!(i in $w { if i % 2 == 0 { $crate::each!(j in $v {
            let (a, b) = ($t[i][j], $t[i + 1][j]);
            $t[i][j] = $crate::tile_neon_f32!(VQUAD_LO a, b);
            $t[i + 1][j] = $crate::tile_neon_f32!(VQUAD_HI a, b);
        }); } }); };
    ($($verb:tt)*) => { $crate::tile_neon_f32!($($verb)*) };
}

/// The tile macro of I8MM for blocks of weights taken apart: products of 2 columns x 8 bytes by 8 bytes
/// x 2 rows. Single columns of packed weights are DotProd's.
///
/// The words of two steps lie side by side: of the eight bytes of four rows the first vector has two, the
/// second the others. Sums `2 i` and `2 i + 1` are two columns by the first two and by the last two rows;
/// a single column stands beside itself.
#[macro_export]
macro_rules! tile_i8mm_block {
    (PAIRED) => { true };
    (PAIR_WORDS $p:expr) => {
        let words = $p;
        $crate::each!(i in 4 {
            let a = $crate::tile_neon_f32!(VLOAD words, (2 * i));
            let b = $crate::tile_neon_f32!(VLOAD words, (2 * i + 1));
            $crate::tile_neon_f32!(VSTORE words, (2 * i), $crate::tile_neon_f32!(VPAIR_LO a, b));
            $crate::tile_neon_f32!(VSTORE words, (2 * i + 1), $crate::tile_neon_f32!(VPAIR_HI a, b));
        }); };
    (DEF $($verb:tt)*) => { $crate::tile_i8mm_i8!(DEF $($verb)*) };
    (START $a:ident [$v:tt x 1] <- $x:ident, $at:expr) => {
        $crate::tile_i8mm_i8!(DEF $a [1 x 1 x $v]);
        let start = $crate::tile_neon_f32!(VSPLAT $x, $at);
        $crate::each!(j in $v { $a[0][j] = start; $a[1][j] = start; }); };
    (START $a:ident [$v:tt x 4] <- $x:ident, $at:expr) => {
        $crate::tile_i8mm_i8!(DEF $a [1 x 4 x $v]);
        let s = $crate::tile_neon_f32!(VLOAD $x, $at);
        let (first, last) = ($crate::tile_neon_f32!(VPAIR_LO s, s), $crate::tile_neon_f32!(VPAIR_HI s, s));
        $crate::each!(c in 4 { $crate::each!(j in $v { $a[c][j] = if c < 2 { first } else { last }; }); }); };
    // SAFETY: works on registers only, of a CPU that has the instruction. Not `pure`, so that products stay
    // in the order in which they stand.
    (VMATRIX $x:expr, $w:expr, $c:expr) => {{
        let mut c = $c;
        unsafe { core::arch::asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) c, in(vreg) $x,
            in(vreg) $w, options(nomem, nostack, preserves_flags)) };
        c }};
    (DOTS VFMA $($verb:tt)*) => { $crate::tile_neon_block!(DOTS VFMA $($verb)*) };
    // SAFETY: the verb's caller owns the words of both steps, at any word.
    (DOTS $verb:ident $a:ident [$v:tt x 1] += $b:ident * $x:ident, $g:expr) => {
        let x = unsafe { $x.wrapping_add($g / 2 * 2).cast::<u64>().read_unaligned() };
        let x = $crate::arch::vreinterpretq_f32_u64($crate::arch::vdupq_n_u64(x));
        $crate::each!(j in $v {
            $a[$g % 2][j] = $crate::tile_i8mm_block!(VMATRIX x, $b[j], $a[$g % 2][j]); }); };
    (DOTS $verb:ident $a:ident [$v:tt x 4] += $b:ident * $x:ident, $g:expr) => {
        let first = $crate::tile_neon_f32!(VLOAD $x, ($g / 2 * 2));
        let last = $crate::tile_neon_f32!(VLOAD $x, ($g / 2 * 2 + 1));
        $crate::each!(j in $v {
            $a[$g % 2][j] = $crate::tile_i8mm_block!(VMATRIX first, $b[j], $a[$g % 2][j]);
            $a[2 + $g % 2][j] = $crate::tile_i8mm_block!(VMATRIX last, $b[j], $a[2 + $g % 2][j]);
        }); };
    (PAIR $($verb:tt)*) => { $crate::tile_i8mm_i8!(PAIR $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_dotprod_block!($($verb)*) };
}
