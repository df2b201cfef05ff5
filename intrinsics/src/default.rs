//! The verbs, derived from the `V*` arms of an instruction set.

/// Verbs of a tile in terms of the `V*` arms of `$m`. See the crate documentation.
///
/// An ISA macro forwards here what it does not override; nothing else calls this macro.
#[doc(hidden)]
#[macro_export]
macro_rules! tile_default {
    ($m:ident VSTREAM $p:expr, $i:expr, $x:expr) => { $crate::$m!(VSTORE $p, $i, $x) };
    ($m:ident VSTREAMED) => {};
    ($m:ident DEF $t:ident [$r:tt x $w:tt x $v:tt]) => {
        let mut $t = $crate::$m!(ZEROS [[$crate::$m!(VTYPE); $v]; $r * $w]); };
    ($m:ident ZERO $t:ident [$r:tt x $w:tt x $v:tt]) => {
        $t = $crate::$m!(ZEROS [[$crate::$m!(VTYPE); $v]; $r * $w]); };
    // Not `[[x; v]; n]`: compilers that save bytes make a loop of that, and with it keep the tile in memory.
    // SAFETY: vectors are numbers, and bits of zeros are such.
    ($m:ident ZEROS $of:ty) => {{ let zeros: $of = unsafe { core::mem::zeroed() }; zeros }};
    ($m:ident FILL $t:ident [$r:tt x $w:tt x $v:tt] $x:expr) => {
        let x = $crate::$m!(VSET $x);
        $crate::tile_default!($m VECTORS t of $t [$r x $w x $v] { *t = x; }); };
    ($m:ident BIAS $t:ident [$r:tt x $w:tt x $v:tt] <- $b:ident) => {
        let mut x = [$crate::$m!(VZERO); $v];
        $crate::each!(j, x of (&mut x) in $v { *x = $crate::$m!(VLOAD $b, j); });
        $crate::each!(y in $r { $crate::each!(i in $w {
            $crate::each!(_, t of (&mut $t[y * $w + i]), x of x in $v { *t = x; });
        }); }); };
    ($m:ident LOAD $t:ident [$r:tt x $w:tt x $v:tt] <- $o:ident[$row:expr, $step:expr, $plane:expr]) => {
        $crate::each!(y in $r { $crate::each!(i in $w {
            let o = $o.wrapping_add(y * $row + i * $step);
            $crate::each!(j, t of (&mut $t[y * $w + i]) in $v {
                *t = $crate::$m!(VLOAD $crate::tile_default!($m AT o[$plane] j), 0); });
        }); }); };
    ($m:ident ADD $t:ident [$r:tt x $w:tt x $v:tt] += $o:ident[$row:expr, $step:expr, $plane:expr]) => {
        $crate::each!(y in $r { $crate::each!(i in $w {
            let o = $o.wrapping_add(y * $row + i * $step);
            $crate::each!(j, t of (&mut $t[y * $w + i]) in $v {
                *t = $crate::$m!(VADD *t, $crate::$m!(VLOAD $crate::tile_default!($m AT o[$plane] j), 0)); });
        }); }); };
    ($m:ident ADD $t:ident [$w:tt x $v:tt; $n:ident] += $o:ident[$row:expr, $plane:expr]) => {
        $crate::each!(i in $w {
            let o = $o.wrapping_add(i * $row);
            $crate::each!(j, t of (&mut $t[i]) in $v {
                if j < $v - 1 {
                    *t = $crate::$m!(VADD *t, $crate::$m!(VLOAD $crate::tile_default!($m AT o[$plane] j), 0));
                }
            });
            let (j, t) = ($v - 1, &mut $t[i][$v - 1]);
            *t = $crate::$m!(VADD *t, $crate::$m!(VLOAD_TAIL $crate::tile_default!($m AT o[$plane] j), $n));
        }); };
    ($m:ident RELU $t:ident [$r:tt x $w:tt x $v:tt]) => {
        let zero = $crate::$m!(VZERO);
        $crate::tile_default!($m VECTORS t of $t [$r x $w x $v] { *t = $crate::$m!(VMAX zero, *t); }); };
    ($m:ident CLAMP $t:ident [$r:tt x $w:tt x $v:tt] $lo:expr, $hi:expr) => {
        let (lo, hi) = ($crate::$m!(VSET $lo), $crate::$m!(VSET $hi));
        $crate::tile_default!($m VECTORS t of $t [$r x $w x $v] {
            *t = $crate::$m!(VMIN hi, $crate::$m!(VMAX lo, *t)); }); };
    ($m:ident LEAKY $t:ident [$r:tt x $w:tt x $v:tt] $alpha:expr) => {
        let (zero, alpha) = ($crate::$m!(VZERO), $crate::$m!(VSET $alpha));
        $crate::tile_default!($m VECTORS t of $t [$r x $w x $v] {
            let x = *t;
            *t = $crate::$m!(VFMA alpha, $crate::$m!(VMIN zero, x), $crate::$m!(VMAX zero, x)); }); };
    ($m:ident STORE $t:ident [$r:tt x $w:tt x $v:tt] -> $o:ident[$row:expr, $step:expr, $plane:expr]) => {
        $crate::each!(y in $r { $crate::each!(i in $w {
            let o = $o.wrapping_add(y * $row + i * $step);
            $crate::each!(j, t of (&$t[y * $w + i]) in $v {
                $crate::$m!(VSTORE $crate::tile_default!($m AT o[$plane] j), 0, *t); });
        }); }); };
    ($m:ident STORE $t:ident [$w:tt x $v:tt; $n:ident] -> $o:ident[$row:expr]) => {
        $crate::each!(i in $w {
            let o = $o.wrapping_add(i * $row);
            $crate::each!(j, t of (&$t[i]) in $v { if j < $v - 1 { $crate::$m!(VSTORE o, j, *t); } });
            $crate::$m!(VSTORE_TAIL o.wrapping_add(($v - 1) * $crate::$m!(LANES)), $n, $t[i][$v - 1]);
        }); };
    // Rows whose lanes hold `i32` bits until DEQUANT or SCALE makes floats of them.
    ($m:ident PAIR $t:ident [$w:tt x $v:tt]) => {};
    ($m:ident OUTER $t:ident [$w:tt x $v:tt] += $a:ident * $b:ident) => {
        $crate::each!(j in $v {
            let b = $crate::$m!(VLOAD $b, j);
            $crate::each!(i in $w {
                let t = &mut $t[i][j];
                *t = $crate::$m!(VIMLA $crate::$m!(VSPLAT $a, i), b, *t);
            });
        }); };
    ($m:ident DEQUANT $t:ident [$w:tt x $v:tt] <- $scale:ident, $shift:ident) => {
        $crate::each!(j in $v {
            let (scale, shift) = ($crate::$m!(VLOAD $scale, j), $crate::$m!(VLOAD $shift, j));
            $crate::each!(i in $w {
                let t = &mut $t[i][j];
                *t = $crate::$m!(VADD $crate::$m!(VMUL $crate::$m!(VITOF *t), scale), shift);
            });
        }); };
    ($m:ident SCALE $t:ident [$w:tt x $v:tt] <- $scale:ident) => {
        $crate::each!(j in $v {
            let scale = $crate::$m!(VLOAD $scale, j);
            $crate::each!(i in $w {
                let t = &mut $t[i][j];
                *t = $crate::$m!(VMUL $crate::$m!(VITOF *t), scale);
            });
        }); };
    ($m:ident NARROW $t:ident [$w:tt x $v:tt] $lo:ident, $hi:ident, $zero:ident -> $o:ident[$step:expr, $plane:expr]) => {
        $crate::tile_default!($m WHOLE $t [$w x $v] $lo, $hi, $zero);
        $crate::$m!(STORE8 $t [$w x $v] -> $o[$step, $plane]); };
    ($m:ident NARROW $t:ident [$w:tt x $v:tt; $n:ident] $lo:ident, $hi:ident, $zero:ident -> $o:ident[$step:expr]) => {
        $crate::tile_default!($m WHOLE $t [$w x $v] $lo, $hi, $zero);
        $crate::$m!(STORE8 $t [$w x $v; $n] -> $o[$step]); };
    ($m:ident WHOLE $t:ident [$w:tt x $v:tt] $lo:expr, $hi:expr, $zero:expr) => {
        let (lo, hi) = ($crate::$m!(VSET $lo), $crate::$m!(VSET $hi));
        let zero = $crate::$m!(VSET $zero);
        $crate::each!(j in $v { $crate::each!(i in $w {
            let t = &mut $t[i][j];
            let x = $crate::$m!(VMIN hi, $crate::$m!(VMAX lo, *t));
            *t = $crate::$m!(VADD $crate::$m!(VROUND x), zero);
        }); }); };
    ($m:ident STORE8 $t:ident [$w:tt x $v:tt] -> $o:ident[$step:expr, $plane:expr]) => {
        $crate::each!(i in $w {
            let o = $o.wrapping_add(i * $step);
            $crate::each!(j, t of (&$t[i]) in $v {
                $crate::$m!(VSTORE8 $crate::tile_default!($m AT o[$plane] j), *t); });
        }); };
    ($m:ident STORE8 $t:ident [$w:tt x $v:tt; $n:ident] -> $o:ident[$step:expr]) => {
        $crate::each!(i in $w {
            let o = $o.wrapping_add(i * $step);
            $crate::each!(j, t of (&$t[i]) in $v {
                if j < $v - 1 { $crate::$m!(VSTORE8 o.wrapping_add(j * $crate::$m!(LANES)), *t); }
            });
            $crate::$m!(VSTORE8_TAIL o.wrapping_add(($v - 1) * $crate::$m!(LANES)), $n, $t[i][$v - 1]);
        }); };
    ($m:ident LOAD_STRIDED $t:ident [1 x $w:tt x $v:tt] <- $a:ident[$step:expr]) => {
        $crate::each!(i, t of (&mut $t) in $w { $crate::each!(j, t of t in $v {
            *t = $crate::$m!(VLOAD $a.wrapping_add(i * $step), j); }); }); };
    ($m:ident STEP $s:ident <- $n:expr) => {
        let mut $s = <$crate::$m!(STEPS)>::new($n); };
    ($m:ident POINT $p:ident [$r:tt x $w:tt] <- $a:ident[$row:expr, $s:ident]) => {
        let mut $p = [[$a; ($w - 1) / <$crate::$m!(STEPS)>::GROUP + 1]; $r];
        $crate::tile_default!($m POINTERS y i in [$r x $w] {
            $p[y][<$crate::$m!(STEPS)>::group(i)] = $a.wrapping_add(y * $row + i * $s.step()); }); };
    // For the first pixel of every pointer. In the source, as a loop would give the pointers addresses.
    ($m:ident POINTERS $y:ident $i:ident in [$r:tt x $w:tt] $body:block) => {
        $crate::each!($y in $r { $crate::each!($i in $w {
            if <$crate::$m!(STEPS)>::leads($i) $body
        }); }); };
    ($m:ident HOLD $p:ident [$r:tt x $w:tt]) => {
        $crate::tile_default!($m POINTERS y i in [$r x $w] {
            let p = &mut $p[y][<$crate::$m!(STEPS)>::group(i)];
            *p = <$crate::$m!(STEPS)>::hold_pointer(*p); }); };
    ($m:ident ADVANCE $p:ident [$r:tt x $w:tt] by $n:expr) => {
        $crate::tile_default!($m POINTERS y i in [$r x $w] {
            let p = &mut $p[y][<$crate::$m!(STEPS)>::group(i)];
            *p = p.wrapping_add($n); }); };
    ($m:ident COMPUTE conv $t:ident [$r:tt x $w:tt x $v:tt x $u:tt] += $p:ident[$s:ident] * $b:ident if $mask:expr) => {
        $s.hold();
        $crate::tile_default!($m HOLD $p [$r x $w]);
        $crate::each!(k in $u {
            let mut w = [$crate::$m!(VZERO); $v];
            $crate::each!(j, w of (&mut w) in $v {
                *w = $crate::$m!(VLOAD $b, (k * $v + j));
                $crate::tile_default!($m AHEAD $b, k * $v + j);
            });
            $crate::each!(y in $r { $crate::each!(i in $w {
                let q = y * $w + i;
                if $mask & (1 << q) != 0 {
                    let x = $crate::$m!(VSPLAT $p[y][<$crate::$m!(STEPS)>::group(i)]
                        .wrapping_byte_add($s.at(i)), k);
                    $crate::each!(_, t of (&mut $t[q]), w of w in $v { *t = $crate::$m!(VFMA x, w, *t); });
                }
            }); });
        }); };
    // As `conv`, of vectors that are not a stream: nothing is prefetched.
    ($m:ident COMPUTE near $t:ident [1 x $w:tt x $v:tt] += $p:ident[$s:ident] * $b:ident if $mask:expr) => {
        $s.hold();
        $crate::tile_default!($m HOLD $p [1 x $w]);
        let mut w = [$crate::$m!(VZERO); $v];
        $crate::each!(j, w of (&mut w) in $v { *w = $crate::$m!(VLOAD $b, j); });
        $crate::each!(i in $w {
            if $mask & (1 << i) != 0 {
                let x = $crate::$m!(VSPLAT $p[0][<$crate::$m!(STEPS)>::group(i)].wrapping_byte_add($s.at(i)), 0);
                $crate::each!(_, t of (&mut $t[i]), w of w in $v { *t = $crate::$m!(VFMA x, w, *t); });
            }
        }); };
    // The last steps of a reduction pixel by pixel, so that what follows a pixel's sums overlaps with
    // the multiply-adds of the others.
    ($m:ident DRAIN_STEPS) => { 0usize };
    ($m:ident DRAIN $($rest:tt)*) => { $crate::tile_default!($m DRAIN_BY 1 $($rest)*) };
    ($m:ident DRAIN_BY $n:tt $t:ident [$r:tt x $w:tt x $v:tt] += $p:ident[$s:ident, $next:expr] * $b:ident[$b_row:expr],
     $y:ident $i:ident $one:ident => $body:block) => {
        $s.hold();
        $crate::tile_default!($m HOLD $p [$r x $w]);
        let mut w = [[$crate::$m!(VZERO); $v]; $n];
        $crate::each!(k, w of (&mut w) in $n { $crate::each!(j, w of w in $v {
            *w = $crate::$m!(VLOAD $b.wrapping_add(k * $b_row), j); }); });
        $crate::each!($y in $r { $crate::each!($i in $w {
            let mut $one = [$t[$y * $w + $i]];
            $crate::each!(k, w of w in $n {
                let x = $crate::$m!(VSPLAT $p[$y][<$crate::$m!(STEPS)>::group($i)]
                    .wrapping_add(k * $next).wrapping_byte_add($s.at($i)), 0);
                $crate::each!(_, t of (&mut $one[0]), w of w in $v { *t = $crate::$m!(VFMA x, w, *t); });
            });
            $body
        }); }); };
    ($m:ident COMPUTE dw $t:ident [1 x $w:tt x $v:tt] += $a:ident[$step:expr] $(as $bytes:tt)? * $b:ident
     if $lo:expr, $hi:expr) => {
        $crate::each!(j in $v { let b = $crate::$m!(VLOAD $b, j); $crate::each!(i in $w { if ($lo..$hi).contains(&i) {
            let x = $crate::tile_default!($m READ $a.wrapping_add(i * $step), j $(, $bytes)?);
            let t = &mut $t[i][j];
            *t = $crate::$m!(VFMA x, b, *t);
        } }); }); };
    ($m:ident COMPUTE max $t:ident [1 x $w:tt x $v:tt] <- $a:ident[$step:expr] $(as $bytes:tt)? if $lo:expr, $hi:expr) => {
        $crate::each!(i, t of (&mut $t) in $w { $crate::each!(j, t of t in $v { if ($lo..$hi).contains(&i) {
            let x = $crate::tile_default!($m READ $a.wrapping_add(i * $step), j $(, $bytes)?);
            *t = $crate::tile_default!($m LARGER x, *t $(, $bytes)?);
        } }); }); };
    ($m:ident COMPUTE accum $t:ident [1 x $w:tt x $v:tt] += $a:ident[$step:expr] $(as $bytes:tt)? if $lo:expr, $hi:expr) => {
        $crate::each!(i, t of (&mut $t) in $w { $crate::each!(j, t of t in $v { if ($lo..$hi).contains(&i) {
            let x = $crate::tile_default!($m READ $a.wrapping_add(i * $step), j $(, $bytes)?);
            *t = $crate::$m!(VADD *t, x);
        } }); }); };
    // A row of a window: pixel i of the tile reads columns i * d to i * d + s - 1 (s >= d).
    ($m:ident COMPUTE dw_row $t:ident [$w:tt x $s:tt / $d:tt] += $a:ident $(as $bytes:tt)? * $b:ident if $lo:expr, $hi:expr) => {
        let mut x = [$crate::$m!(VZERO); ($w - 1) * $d + $s];
        let mut w = [$crate::$m!(VZERO); $s];
        $crate::each!(k, w of (&mut w) in $s { *w = $crate::$m!(VLOAD $b.wrapping_add(k * 16), 0); });
        $crate::tile_default!($m COLUMNS x [$w x $s / $d] <- $a $(as $bytes)? if $lo, $hi);
        // Tap by tap, so that neighbouring multiply-adds do not wait for each other.
        $crate::each!(k, w of w in $s { $crate::each!(i, t of (&mut $t) in $w { $crate::each!(_, t of t in 1 {
            *t = $crate::$m!(VFMA x[i * $d + k], w, *t); }); }); }); };
    // The same of neighbouring windows, column by column, where registers hold no row of columns beside the sums.
    ($m:ident COMPUTE dw_columns $t:ident [$w:tt x $s:tt] += $a:ident $(as $bytes:tt)? * $b:ident if $lo:expr, $hi:expr) => {
        let mut w = [$crate::$m!(VZERO); $s];
        $crate::each!(k, w of (&mut w) in $s { *w = $crate::$m!(VLOAD $b.wrapping_add(k * 16), 0); });
        $crate::each!(i in $w {
            $crate::tile_default!($m COLUMN $t w i [$w x $s] <- $a $(as $bytes)? if $lo, $hi); });
        $crate::each!(k in $s { if k + 1 < $s {
            $crate::tile_default!($m COLUMN $t w ($w + k) [$w x $s] <- $a $(as $bytes)? if $lo, $hi); } }); };
    // All products of a column that lies in the image.
    ($m:ident COLUMN $t:ident $b:ident $j:tt [$w:tt x $s:tt] <- $a:ident $(as $bytes:tt)? if $lo:expr, $hi:expr) => {
        let j = $j;
        if (j >= $s / 2 || $lo <= j as isize) && (j + $s / 2 < $w + $s - 1 || (j as isize) < $hi) {
            let x = $crate::$m!(VKEEP $crate::tile_default!($m READ $a.wrapping_add(j * 16), 0 $(, $bytes)?));
            $crate::each!(tap, b of $b in $s { if tap <= j && j - tap < $w {
                let t = &mut $t[j - tap][0];
                *t = $crate::$m!(VFMA x, b, *t);
            } });
        } };
    ($m:ident COMPUTE max_row $t:ident [$w:tt x $s:tt / $d:tt] <- $a:ident $(as $bytes:tt)? if $lo:expr, $hi:expr) => {
        let mut x = [$crate::$m!(LEAST $($bytes)?); ($w - 1) * $d + $s];
        $crate::tile_default!($m COLUMNS x [$w x $s / $d] <- $a $(as $bytes)? if $lo, $hi);
        $crate::each!(i in $w { let t = &mut $t[i][0]; $crate::each!(k in $s {
            *t = $crate::tile_default!($m LARGER x[i * $d + k], *t $(, $bytes)?); }); }); };
    ($m:ident COMPUTE accum_row $t:ident [$w:tt x $s:tt / $d:tt] += $a:ident if $lo:expr, $hi:expr) => {
        let mut x = [$crate::$m!(VZERO); ($w - 1) * $d + $s];
        $crate::tile_default!($m COLUMNS x [$w x $s / $d] <- $a if $lo, $hi);
        $crate::each!(i in $w { let t = &mut $t[i][0]; $crate::each!(k in $s {
            *t = $crate::$m!(VADD *t, x[i * $d + k]); }); }); };
    // The first and last s / 2 columns are loaded if they lie in lo..hi, the others always.
    ($m:ident COLUMNS $x:ident [$w:tt x $s:tt / $d:tt] <- $a:ident $(as $bytes:tt)? if $lo:expr, $hi:expr) => {
        $crate::each!(i in $w { $crate::each!(k in $d {
            let j = i * $d + k;
            if (j >= $s / 2 || $lo <= j as isize) && (j + $s / 2 < $x.len() || (j as isize) < $hi) {
                $x[j] = $crate::tile_default!($m READ $a.wrapping_add(j * 16), 0 $(, $bytes)?);
            } }); });
        $crate::each!(k in $s {
            let j = $w * $d + k;
            if j < $x.len() && (j >= $s / 2 || $lo <= j as isize)
                && (j + $s / 2 < $x.len() || (j as isize) < $hi) {
                $x[j] = $crate::tile_default!($m READ $a.wrapping_add(j * 16), 0 $(, $bytes)?);
            } }); };
    // Vector `j` at an address: of numbers, of bytes that become numbers, or the bytes of a pixel.
    ($m:ident READ $p:expr, $j:expr) => { $crate::$m!(VLOAD $p, $j) };
    ($m:ident READ $p:expr, $j:expr, ($mask:ident, $zero:ident)) => {
        $crate::$m!(VLOAD8 $p.wrapping_add($j * $crate::$m!(LANES)), $mask, $zero) };
    ($m:ident READ $p:expr, $j:expr, ($flip:ident)) => { $crate::$m!(BYTES_XOR $crate::$m!(BYTES_LOAD $p), $flip) };
    // The larger of two vectors of numbers or of the bytes of pixels, and the least of all.
    ($m:ident LARGER $a:expr, $b:expr) => { $crate::$m!(VMAXIMUM $a, $b) };
    ($m:ident LARGER $a:expr, $b:expr, $flip:tt) => { $crate::$m!(BYTES_MAX $a, $b) };
    ($m:ident LEAST) => { $crate::$m!(VSET f32::NEG_INFINITY) };
    ($m:ident LEAST $flip:tt) => { $crate::$m!(BYTES_SPLAT 0) };
    // The bytes of a pixel. SAFETY (2 memory arms): the verb's caller owns 16 bytes there.
    ($m:ident BYTES_SPLAT $byte:expr) => { [$byte; 16] };
    ($m:ident BYTES_LOAD $p:expr) => { unsafe { $p.cast::<[u8; 16]>().read() } };
    ($m:ident BYTES_STORE $p:expr, $x:expr) => { unsafe { $p.cast::<[u8; 16]>().write($x) } };
    ($m:ident BYTES_XOR $a:expr, $b:expr) => { $crate::tile_default!($m BYTES core::ops::BitXor::bitxor, $a, $b) };
    ($m:ident BYTES_MAX $a:expr, $b:expr) => { $crate::tile_default!($m BYTES Ord::max, $a, $b) };
    ($m:ident BYTES_ZIP_LO $a:expr, $b:expr) => { $crate::tile_default!($m BYTES_ZIP 0, $a, $b) };
    ($m:ident BYTES_ZIP_HI $a:expr, $b:expr) => { $crate::tile_default!($m BYTES_ZIP 8, $a, $b) };
    ($m:ident BYTES_ZIP $first:literal, $a:expr, $b:expr) => {{
        let (a, b): ([u8; 16], [u8; 16]) = ($a, $b);
        let (mut y, mut i) = ([0u8; 16], 0);
        while i < y.len() {
            y[i] = if i % 2 == 0 { a[$first + i / 2] } else { b[$first + i / 2] };
            i += 1;
        }
        y }};
    ($m:ident BYTES $f:path, $a:expr, $b:expr) => {{
        let (mut a, b): ([u8; 16], [u8; 16]) = ($a, $b);
        let mut i = 0;
        while i < a.len() {
            a[i] = $f(a[i], b[i]);
            i += 1;
        }
        a }};
    // Verbs on vectors.
    // An infinity meets no operand of the other sign, so that NaN comes of NaN alone.
    ($m:ident VMAXIMUM $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        let below = $crate::$m!(VGT $crate::$m!(VSET f32::INFINITY), a);
        $crate::$m!(VSEL below, $crate::$m!(VMAX a, b), $crate::$m!(VADD a, $crate::$m!(VABS b))) }};
    ($m:ident VMINIMUM $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        let above = $crate::$m!(VGT a, $crate::$m!(VSET f32::NEG_INFINITY));
        $crate::$m!(VSEL above, $crate::$m!(VMIN a, b), $crate::$m!(VSUB a, $crate::$m!(VABS b))) }};
    ($m:ident VNEG $x:expr) => { $crate::$m!(VSUB $crate::$m!(VSET -0.0f32), $x) };
    ($m:ident VSCALABLE $lo:expr, $x:expr) => { $crate::$m!(VMAX $lo, $x) };
    ($m:ident VSCALE_OR0 $x:expr, $n:expr) => { $crate::$m!(VMUL $x, $crate::$m!(VPOW2 $n)) };
    // In two steps, so that the product may underflow gradually and the powers stay normal.
    ($m:ident VSCALE $x:expr, $n:expr) => {{
        let (x, n) = ($x, $n);
        let half = $crate::$m!(VFLOOR $crate::$m!(VMUL n, $crate::$m!(VSET 0.5f32)));
        let x = $crate::$m!(VMUL x, $crate::$m!(VPOW2 half));
        $crate::$m!(VMUL x, $crate::$m!(VPOW2 $crate::$m!(VSUB n, half))) }};
    ($m:ident VLOAD_OR $p:expr, $n:expr, $x:expr) => {{
        let count = $crate::IOTA.as_ptr();
        let inside = $crate::$m!(VGT $crate::$m!(VSET $n as f32), $crate::$m!(VLOAD count, 0));
        $crate::$m!(VSEL inside, $crate::$m!(VLOAD_TAIL $p, $n), $crate::$m!(VSET $x)) }};
    ($m:ident LANES_OF $x:expr) => {{
        let mut lanes = [0.0f32; $crate::$m!(LANES)];
        let p = lanes.as_mut_ptr();
        $crate::$m!(VSTORE p, 0, $x);
        lanes }};
    // Bytes lane by lane, for an instruction set that has nothing better.
    ($m:ident VLOAD8 $p:expr, $mask:expr, $zero:expr) => {{
        let mut lanes = $crate::$m!(LANES_OF $mask);
        let bytes: *const u8 = $p;
        let mut i = 0;
        while i < lanes.len() {
            // SAFETY: the verb's caller owns `LANES` bytes there.
            let byte = unsafe { *bytes.wrapping_add(i) };
            lanes[i] = f32::from_bits(f32::to_bits(lanes[i]) ^ byte as u32);
            i += 1;
        }
        let p = lanes.as_ptr();
        $crate::$m!(VSUB $crate::$m!(VLOAD p, 0), $zero) }};
    // SAFETY: the verb's caller owns `n <= LANES` bytes there, and a vector has 16 lanes at most.
    ($m:ident VLOAD8_TAIL $p:expr, $n:expr, $mask:expr, $zero:expr) => {{
        let mut bytes = [0u8; 16];
        unsafe { core::ptr::copy_nonoverlapping($p, bytes.as_mut_ptr(), $n) };
        let p = bytes.as_ptr();
        $crate::$m!(VLOAD8 p, $mask, $zero) }};
    ($m:ident VSTORE8 $p:expr, $x:expr) => { $crate::$m!(VSTORE8_TAIL $p, $crate::$m!(LANES), $x) };
    ($m:ident VSTORE8_TAIL $p:expr, $n:expr, $x:expr) => {{
        let (lanes, bytes, n): (_, *mut u8, usize) = ($crate::$m!(LANES_OF $x), $p, $n);
        let mut i = 0;
        while i < n {
            // SAFETY: the verb's caller owns `n <= LANES` bytes there.
            unsafe { *bytes.wrapping_add(i) = (lanes[i] as i32) as u8 };
            i += 1;
        } }};
    ($m:ident LOOKUP $x:expr, $t:expr => $y:expr) => {{
        let mut i = 0;
        while i < 64 {
            // SAFETY: the verb's caller owns 64 bytes at `x` and `y`, and 256 at `t`.
            unsafe { *$y.wrapping_add(i) = *$t.wrapping_add(usize::from(*$x.wrapping_add(i))) };
            i += 1;
        } }};
    // Halves lane by lane.
    ($m:ident VLOAD16 $p:expr) => {{
        let halves: *const u16 = $p;
        let mut lanes = [0.0f32; $crate::$m!(LANES)];
        let mut i = 0;
        while i < lanes.len() {
            // SAFETY: the verb's caller owns `LANES` halves there.
            lanes[i] = $crate::soft::f32_from_f16(unsafe { halves.wrapping_add(i).read_unaligned() });
            i += 1;
        }
        let p = lanes.as_ptr();
        $crate::$m!(VLOAD p, 0) }};
    ($m:ident VSTORE16 $p:expr, $x:expr) => {{
        let (lanes, halves): (_, *mut u16) = ($crate::$m!(LANES_OF $x), $p);
        let mut i = 0;
        while i < lanes.len() {
            // SAFETY: the verb's caller owns `LANES` halves there.
            unsafe { halves.wrapping_add(i).write_unaligned($crate::soft::f16_from_f32(lanes[i])) };
            i += 1;
        } }};
    ($m:ident VEVEN $a:expr, $b:expr) => { $crate::tile_default!($m EVERY_OTHER 0, $a, $b) };
    ($m:ident VODD $a:expr, $b:expr) => { $crate::tile_default!($m EVERY_OTHER 1, $a, $b) };
    ($m:ident VPREV $a:expr, $b:expr) => { $crate::tile_default!($m JOINED $crate::$m!(LANES) - 1, $a, $b) };
    ($m:ident VNEXT $a:expr, $b:expr) => { $crate::tile_default!($m JOINED 1, $a, $b) };
    // Lanes from `first` on of both vectors in a row.
    ($m:ident JOINED $first:expr, $a:expr, $b:expr) => {{
        let (a, b) = ($crate::$m!(LANES_OF $a), $crate::$m!(LANES_OF $b));
        let mut lanes = [0.0f32; $crate::$m!(LANES)];
        let mut i = 0;
        while i < lanes.len() {
            let at = $first + i;
            lanes[i] = if at < lanes.len() { a[at] } else { b[at - lanes.len()] };
            i += 1;
        }
        let p = lanes.as_ptr();
        $crate::$m!(VLOAD p, 0) }};
    ($m:ident VLOAD_PART $p:expr, $first:expr, $end:expr) => {{
        let mut lanes = [0.0f32; $crate::$m!(LANES)];
        let mut i = $first;
        // SAFETY: the verb's caller owns these elements.
        while i < $end { lanes[i] = unsafe { *$p.wrapping_add(i) }; i += 1; }
        let p = lanes.as_ptr();
        $crate::$m!(VLOAD p, 0) }};
    ($m:ident EVERY_OTHER $first:literal, $a:expr, $b:expr) => {{
        let (a, b) = ($crate::$m!(LANES_OF $a), $crate::$m!(LANES_OF $b));
        let mut lanes = [0.0f32; $crate::$m!(LANES)];
        let mut i = 0;
        while i < lanes.len() {
            let at = 2 * i + $first;
            lanes[i] = if at < lanes.len() { a[at] } else { b[at - lanes.len()] };
            i += 1;
        }
        let p = lanes.as_ptr();
        $crate::$m!(VLOAD p, 0) }};
    // Lanes of 32 bits, one by one.
    ($m:ident VAND $a:expr, $b:expr) => { $crate::tile_default!($m BITS $a, $b, |a, b| a & b) };
    ($m:ident VOR $a:expr, $b:expr) => { $crate::tile_default!($m BITS $a, $b, |a, b| a | b) };
    ($m:ident VXOR $a:expr, $b:expr) => { $crate::tile_default!($m BITS $a, $b, |a, b| a ^ b) };
    ($m:ident VSHL $x:expr, $n:expr) => {{ let x = $x; $crate::tile_default!($m BITS x, x, |a, _b| a << $n) }};
    ($m:ident VSHR $x:expr, $n:expr) => {{ let x = $x; $crate::tile_default!($m BITS x, x, |a, _b| a >> $n) }};
    // Words of two 16-bit integers, and of one of 32 bits, modulo their size.
    ($m:ident VADD16 $a:expr, $b:expr) => { $crate::tile_default!($m BITS $a, $b,
        |a, b| ((a & 0x7fff_7fff) + (b & 0x7fff_7fff)) ^ ((a ^ b) & 0x8000_8000)) };
    ($m:ident VSUB16 $a:expr, $b:expr) => { $crate::tile_default!($m BITS $a, $b,
        |a, b| ((a | 0x8000_8000) - (b & 0x7fff_7fff)) ^ ((a ^ !b) & 0x8000_8000)) };
    ($m:ident VIADD $a:expr, $b:expr) => { $crate::tile_default!($m BITS $a, $b, |a, b| a.wrapping_add(b)) };
    ($m:ident VISUB $a:expr, $b:expr) => { $crate::tile_default!($m BITS $a, $b, |a, b| a.wrapping_sub(b)) };
    ($m:ident VISHR $x:expr, $n:literal) => {{ let x = $x;
        $crate::tile_default!($m BITS x, x, |a, _b| ((a as i32) >> $n) as u32) }};
    ($m:ident VWIDE8 $p:expr, $flip:expr) => {{
        let bytes: *const u8 = $p;
        let mut lanes = $crate::$m!(LANES_OF $flip);
        let mut i = 0;
        while i < lanes.len() {
            // SAFETY: the verb's caller owns two bytes for each lane there.
            let pair = unsafe { [*bytes.wrapping_add(2 * i), *bytes.wrapping_add(2 * i + 1)] };
            let words = pair.map(|x| u16::from(x).to_ne_bytes());
            let words = u32::from_ne_bytes([words[0][0], words[0][1], words[1][0], words[1][1]]);
            lanes[i] = f32::from_bits(f32::to_bits(lanes[i]) ^ words);
            i += 1;
        }
        let p = lanes.as_ptr();
        $crate::$m!(VLOAD p, 0) }};
    ($m:ident VSETU $n:expr) => { $crate::$m!(VSET f32::from_bits($n)) };
    ($m:ident BITS $a:expr, $b:expr, $f:expr) => {{
        let (a, b) = ($crate::$m!(LANES_OF $a), $crate::$m!(LANES_OF $b));
        let mut lanes = [0.0f32; $crate::$m!(LANES)];
        let f = $crate::soft::lanewise($f);
        let mut i = 0;
        while i < lanes.len() {
            lanes[i] = f32::from_bits(f(f32::to_bits(a[i]), f32::to_bits(b[i])));
            i += 1;
        }
        let p = lanes.as_ptr();
        $crate::$m!(VLOAD p, 0) }};
    // Four bytes of the reduction of `$v` vectors of rows by `$c` columns, whose words follow each other.
    ($m:ident DOTS $verb:ident $a:ident [$v:tt x $c:tt] += $b:ident * $x:ident, $g:expr) => {
        $crate::each!(c in $c {
            let x = $crate::$m!(VSPLAT $x, ($g * $c + c));
            $crate::each!(_, a of (&mut $a[c]), b of (&$b) in $v { *a = $crate::$m!($verb *b, x, *a); });
        }); };
    ($m:ident VKEEP $x:expr) => { core::convert::identity($x) };
    ($m:ident PAIRED) => { false };
    ($m:ident STREAMS) => { 1 };
    ($m:ident HALVED) => { false };
    ($m:ident VPAIRS16 $w:expr, $x:expr, $c:expr) => { $c };
    ($m:ident VSUM16 $a:expr, $c:expr) => { $a };
    ($m:ident PAIR_WORDS $p:expr) => {};
    ($m:ident START $a:ident [$v:tt x $c:tt] <- $x:ident, $at:expr) => {
        $crate::$m!(DEF $a [1 x $c x $v]);
        $crate::each!(c in $c {
            let start = $crate::$m!(VSPLAT $x, ($at * $c + c));
            $crate::each!(_, a of (&mut $a[c]) in $v { *a = start; });
        }); };
    ($m:ident VDOTU $w:expr, $x:expr, $c:expr) => { $crate::$m!(VDOT $w, $x, $c) };
    ($m:ident VTABLE $t:expr, $x:expr) => {{
        let x = $x;
        let table: &[u8; 16] = $t;
        $crate::tile_default!($m BITS x, x, |a, _b| u32::from_le_bytes(
            u32::to_le_bytes(a).map(|b| table[usize::from(b & 15)]))) }};
    ($m:ident VLOADB16 $p:expr) => {{
        let mut lanes = [0.0f32; $crate::$m!(LANES)];
        let halves: *const u16 = $p;
        let mut i = 0;
        while i < lanes.len() {
            // SAFETY: the verb's caller owns `LANES` halves there.
            let half = unsafe { halves.wrapping_add(i).read_unaligned() };
            lanes[i] = f32::from_bits((half as u32) << 16);
            i += 1;
        }
        let p = lanes.as_ptr();
        $crate::$m!(VLOAD p, 0) }};
    ($m:ident VWORDS $p:expr) => {{ let p: *const u8 = $p; let p = p.cast::<f32>(); $crate::$m!(VLOAD p, 0) }};
    ($m:ident MATH $($rest:tt)*) => { $crate::tile_math!($m $($rest)*) };
    // 4 x 4 transposes inside each 128-bit quad of `g` groups of four vectors.
    ($m:ident QUADS $t:ident [$g:tt]) => { $crate::each!(i in $g {
        let a = $crate::$m!(VPAIR_LO $t[4 * i][0], $t[4 * i + 1][0]);
        let b = $crate::$m!(VPAIR_HI $t[4 * i][0], $t[4 * i + 1][0]);
        let c = $crate::$m!(VPAIR_LO $t[4 * i + 2][0], $t[4 * i + 3][0]);
        let d = $crate::$m!(VPAIR_HI $t[4 * i + 2][0], $t[4 * i + 3][0]);
        $t[4 * i][0] = $crate::$m!(VQUAD_LO a, c);
        $t[4 * i + 1][0] = $crate::$m!(VQUAD_HI a, c);
        $t[4 * i + 2][0] = $crate::$m!(VQUAD_LO b, d);
        $t[4 * i + 3][0] = $crate::$m!(VQUAD_HI b, d);
    }); };

    // The rest is for the arms above. VECTORS: something with each vector of a tile.
    ($m:ident VECTORS $x:ident of $t:ident [$r:tt x $w:tt x $v:tt] $body:tt) => {
        $crate::each!(y in $r { $crate::each!(i in $w {
            $crate::each!(_, $x of (&mut $t[y * $w + i]) in $v $body);
        }); }); };
    // AT: address of vector `j` of the pixel at `o`.
    ($m:ident AT $o:ident[$plane:expr] $j:ident) => {
        $o.wrapping_add($j * $crate::$m!(LANES) / 16 * $plane + $j * $crate::$m!(LANES) % 16) };
    // AHEAD: prefetch of the weight stream, 8 KiB ahead, once per cache line.
    ($m:ident AHEAD $b:ident, $i:expr) => {
        if ($i) * $crate::$m!(LANES) % 16 == 0 {
            $crate::$m!(VPREFETCH $b, ($i) * $crate::$m!(LANES) + 2048); } };
    ($m:ident $verb:ident $($rest:tt)*) => {
        compile_error!(concat!(stringify!($m), " lacks ", stringify!($verb), " of this form")); };
}
