//! One step of the reduction for each kind of weights.

/// Adds a block of all columns to the sums `f`. `tile!` and `LANES` are those of the kernel around it.
///
/// | kind | weights of a vector of rows |
/// |---|---|
/// | `q8_0`, `q4_0` | packed blocks of 32 |
/// | `g32`, `g32m` | unpacked: a scale (and a minimum) as floats, eight words of bytes as `DOTS` takes them |
/// | `g16`, `g16m` | unpacked: two scales (and two minima) of 16 bytes each, eight such words |
/// | `q4_1`, `q5_0`, `q5_1`, `iq4_nl`, `mxfp4` | packed blocks of 32; one vector, one column |
/// | `q2_k` to `q6_k`, `iq4_xs`, `grid` | packed blocks of 256; one vector, one column |
/// | `u4` | packed blocks of 32, whose activations are floats; one vector, one column |
/// | `f32`, `f16`, `bf16` | a vector of floats |
macro_rules! block_step {
    (q8_0 [$v:tt x $c:tt] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let mut s = tile!(ZEROS [tile!(VTYPE); $v]);
        block_step! { first s [$v x $c] <- $w }
        block_step! { ahead $w[0], $far }
        tile!(START a [$v x $c] <- $x, 9);
        each!(g in 8 {
            let at = (2 + 4 * g) * LANES;
            let mut b = tile!(ZEROS [tile!(VTYPE); $v]);
            each!(j in $v { b[j] = tile!(VWORDS $w[j].wrapping_add(at)); });
            block_step! { ahead $w[0].wrapping_add(at), $far }
            block_step! { packed VDOT a [$v x $c] += b * $x, g }
        });
        block_step! { last s [$v x $c] <- $w }
        block_step! { scaled $f [$v x $c] += a * s * $x }
        $x = $x.wrapping_add(10 * $c);
        each!(j in $v { $w[j] = $w[j].wrapping_add(34 * LANES); });
    };
    (q4_0 [$v:tt x $c:tt] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let mut s = tile!(ZEROS [tile!(VTYPE); $v]);
        block_step! { first s [$v x $c] <- $w }
        block_step! { ahead $w[0], $far }
        tile!(START a [$v x $c] <- $x, 9);
        let low = tile!(VSETU 0x0f0f_0f0f);
        each!(g in 4 {
            let at = LANES * (2 + 4 * g);
            let mut b = tile!(ZEROS [tile!(VTYPE); $v]);
            let mut h = tile!(ZEROS [tile!(VTYPE); $v]);
            each!(j in $v {
                let word = tile!(VWORDS $w[j].wrapping_add(at));
                (b[j], h[j]) = (tile!(VAND word, low), tile!(VAND tile!(VSHR word, 4), low));
            });
            block_step! { ahead $w[0].wrapping_add(at), $far }
            block_step! { packed VDOTU a [$v x $c] += b * $x, g }
            // Where there are 16 registers, words are read again for several columns: until here there is
            // none for them.
            block_step! { fence [$v x $c] }
            if LANES <= 8 {
                each!(j in $v { h[j] = tile!(VAND tile!(VSHR tile!(VWORDS $w[j].wrapping_add(at)), 4), low); });
            }
            block_step! { packed VDOTU a [$v x $c] += h * $x, (g + 4) }
        });
        block_step! { last s [$v x $c] <- $w }
        block_step! { scaled $f [$v x $c] += a * s * $x }
        $x = $x.wrapping_add(10 * $c);
        each!(j in $v { $w[j] = $w[j].wrapping_add(18 * LANES); });
    };
    (g32 [$v:tt x $c:tt] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        tile!(START a [$v x $c] <- $x, 9);
        block_step! { words VDOT 0, 4, a [$v x $c] += $w * $x ahead $far }
        block_step! { words VDOT 4, 4, a [$v x $c] += $w * $x ahead $far }
        tile!(PAIR a [$c x $v]);
        block_step! { floats s [$v] <- $w, 0 }
        block_step! { scaled $f [$v x $c] += a * s * $x }
        $x = $x.wrapping_add(10 * $c);
        each!(j in $v { $w[j] = $w[j].wrapping_add(36 * LANES); });
    };
    (g32m [$v:tt x $c:tt] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        tile!(DEF a [1 x $c x $v]);
        block_step! { words VDOTU 0, 8, a [$v x $c] += $w * $x ahead $far }
        block_step! { words VDOTU 4, 8, a [$v x $c] += $w * $x ahead $far }
        tile!(PAIR a [$c x $v]);
        block_step! { floats s [$v] <- $w, 0 }
        block_step! { scaled $f [$v x $c] += a * s * $x }
        block_step! { floats s [$v] <- $w, 1 }
        block_step! { minima $f [$v x $c] += s * $x, 9 }
        $x = $x.wrapping_add(10 * $c);
        each!(j in $v { $w[j] = $w[j].wrapping_add(40 * LANES); });
    };
    (g16 [$v:tt x $c:tt] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        each!(h in 2 {
            tile!(START a [$v x $c] <- $x, (9 + h));
            block_step! { words VDOTU (4 * h), 8, a [$v x $c] += $w * $x ahead $far }
            tile!(PAIR a [$c x $v]);
            block_step! { floats s [$v] <- $w, h }
            block_step! { scaled $f [$v x $c] += a * s * $x }
            block_step! { fence [$v x $c] }
        });
        $x = $x.wrapping_add(11 * $c);
        each!(j in $v { $w[j] = $w[j].wrapping_add(40 * LANES); });
    };
    (g16m [$v:tt x $c:tt] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        each!(h in 2 {
            // Before the sums, where there are registers for them: then neither is moved.
            let mut s = tile!(ZEROS [tile!(VTYPE); $v]);
            if LANES > 8 { each!(j in $v { s[j] = tile!(VWORDS $w[j].wrapping_add(4 * LANES * h)); }); }
            tile!(DEF a [1 x $c x $v]);
            block_step! { words VDOTU (4 * h), 16, a [$v x $c] += $w * $x ahead $far }
            block_step! { summed a [$v x $c] }
            tile!(PAIR a [$c x $v]);
            if LANES <= 8 { each!(j in $v { s[j] = tile!(VWORDS $w[j].wrapping_add(4 * LANES * h)); }); }
            block_step! { scaled $f [$v x $c] += a * s * $x }
            block_step! { floats s [$v] <- $w, (2 + h) }
            block_step! { minima $f [$v x $c] += s * $x, (9 + h) }
            block_step! { summed $f [$v x $c] }
            block_step! { fence [$v x $c] }
        });
        $x = $x.wrapping_add(11 * $c);
        each!(j in $v { $w[j] = $w[j].wrapping_add(48 * LANES); });
    };
    (q4_1 [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let (d, least) = (block_step! { half p }, block_step! { half p.wrapping_add(2 * LANES) });
        block_step! { ahead p, $far }
        let (low, mut a) = (tile!(VSETU 0x0f0f_0f0f), tile!(VZERO));
        each!(g in 4 {
            let p = p.wrapping_add((4 + 4 * g) * LANES);
            let word = tile!(VWORDS p);
            block_step! { ahead p, $far }
            a = tile!(VDOTU tile!(VAND word, low), tile!(VSPLAT $x, g), a);
            a = tile!(VDOTU tile!(VAND tile!(VSHR word, 4), low), tile!(VSPLAT $x, (g + 4)), a);
        });
        block_step! { group $f += a * d * $x }
        $f[0][0] = tile!(VFMA least, tile!(VSPLAT $x, 9), $f[0][0]);
        $x = $x.wrapping_add(10);
        $w[0] = p.wrapping_add(20 * LANES);
    };
    (q5_0 [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let d = block_step! { half p };
        let mut a = tile!(VSPLAT $x, 9);
        block_step! { fives a += p.wrapping_add(2 * LANES) * $x ahead $far }
        block_step! { group $f += a * d * $x }
        $x = $x.wrapping_add(10);
        $w[0] = p.wrapping_add(22 * LANES);
    };
    (q5_1 [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let (d, least) = (block_step! { half p }, block_step! { half p.wrapping_add(2 * LANES) });
        let mut a = tile!(VZERO);
        block_step! { fives a += p.wrapping_add(4 * LANES) * $x ahead $far }
        block_step! { group $f += a * d * $x }
        $f[0][0] = tile!(VFMA least, tile!(VSPLAT $x, 9), $f[0][0]);
        $x = $x.wrapping_add(10);
        $w[0] = p.wrapping_add(24 * LANES);
    };
    (iq4_nl [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let d = block_step! { half p };
        block_step! { ahead p, $far }
        let mut a = tile!(VSPLAT $x, 9);
        block_step! { looked_up TABLE, a += p.wrapping_add(2 * LANES) * $x ahead $far }
        block_step! { group $f += a * d * $x }
        $x = $x.wrapping_add(10);
        $w[0] = p.wrapping_add(18 * LANES);
    };
    (mxfp4 [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let d = block_step! { exponent p };
        block_step! { ahead p, $far }
        let mut a = tile!(VSPLAT $x, 9);
        block_step! { looked_up FLOATS, a += p.wrapping_add(LANES) * $x ahead $far }
        block_step! { group $f += a * d * $x }
        $x = $x.wrapping_add(10);
        $w[0] = p.wrapping_add(17 * LANES);
    };
    (iq4_xs [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        each!(i in 2 { block_step! { ahead p.wrapping_add(4 * i * LANES), $far } });
        let mut bits = block_step! { bits_of_six p };
        tile!(DEF sum [1 x 1 x 1]);
        block_step! { times 8, group {
            let x = $x.wrapping_add(10 * group);
            let mut a = tile!(VSPLAT x, 9);
            block_step! { looked_up TABLE, a += p.wrapping_add((8 + 16 * group) * LANES) * x ahead $far }
            let scale = block_step! { next_of_six bits };
            block_step! { group sum += a * scale * x }
        } }
        $f[0][0] = tile!(VFMA block_step! { half p }, sum[0][0], $f[0][0]);
        $x = $x.wrapping_add(80);
        $w[0] = p.wrapping_add(136 * LANES);
    };
    (grid $codes:ident [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let (p, low) = ($w[0], tile!(VSETU 0x0f0f_0f0f));
        each!(i in 2 { block_step! { ahead p.wrapping_add(4 * i * LANES), $far } });
        let (mut bits, mut sum) = (block_step! { odd_scales p }, tile!(VZERO));
        block_step! { times 8, group {
            let x = $x.wrapping_add(11 * group);
            let mut a = tile!(ZEROS [tile!(VTYPE); 2]);
            each!(h in 2 { a[h] = tile!(VSPLAT x, (9 + h)); });
            each!(g in 4 {
                let p = p.wrapping_add((10 + 16 * group + 4 * g) * LANES);
                let word = tile!(VWORDS p);
                block_step! { ahead p, $far }
                each!(h in 2 {
                    let code = tile!(VAND tile!(VSHR word, (4 * h as u32)), low);
                    a[h] = tile!(VDOTU tile!(VTABLE &$codes.values, code), tile!(VSPLAT x, (g + 4 * h)), a[h]);
                });
            });
            each!(h in 2 {
                let scale = tile!(VMUL block_step! { next_odd bits[h] }, tile!(VSPLAT x, 8));
                sum = tile!(VKEEP tile!(VFMA tile!(VITOF a[h]), scale, sum));
            });
        } }
        $f[0][0] = tile!(VFMA tile!(VMUL block_step! { half p }, tile!(VSET $codes.factor)), sum, $f[0][0]);
        $x = $x.wrapping_add(88);
        $w[0] = p.wrapping_add(138 * LANES);
    };
    (u4 [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let (scale, offset) = (tile!(VWORDS p), tile!(VWORDS p.wrapping_add(4 * LANES)));
        each!(i in 2 { block_step! { ahead p.wrapping_add(4 * i * LANES), $far } });
        // A sum for each place of four bits in sixteen, which stay there: sum `i` is of numbers times 16^i.
        let mut a = tile!(ZEROS [tile!(VTYPE); 4]);
        each!(g in 4 {
            let p = p.wrapping_add((8 + 4 * g) * LANES);
            let low = tile!(VWORDS p);
            let high = tile!(VSHR low, 16);
            block_step! { ahead p, $far }
            each!(i in 8 {
                let q = block_step! { nibble (if i < 4 { low } else { high }), i % 4 };
                a[i % 4] = block_step! { turn tile!(VFMA tile!(VSPLAT $x, (8 * g + i)), q, a[i % 4]) };
            });
        });
        let less = tile!(VSET 1.0 / 16.0);
        let sum = tile!(VFMA tile!(VFMA tile!(VFMA a[3], less, a[2]), less, a[1]), less, a[0]);
        $f[0][0] = tile!(VFMA sum, scale, $f[0][0]);
        $f[0][0] = tile!(VFMA offset, tile!(VSPLAT $x, 32), $f[0][0]);
        $x = $x.wrapping_add(33);
        $w[0] = p.wrapping_add(24 * LANES);
    };
    (q4_k [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        block_step! { of_six $f += p * $x, 16, quarter ahead $far }
        $x = $x.wrapping_add(80);
        $w[0] = p.wrapping_add(144 * LANES);
    };
    (q5_k [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        // The upper bits, which are read again with each quarter.
        each!(i in 8 { block_step! { ahead p.wrapping_add((16 + 4 * i) * LANES), $far } });
        block_step! { of_six $f += p * $x, 48, fifth_quarter ahead $far }
        $x = $x.wrapping_add(80);
        $w[0] = p.wrapping_add(176 * LANES);
    };
    (q2_k [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let (four, two) = (tile!(VSETU 0x0f0f_0f0f), tile!(VSETU 0x0303_0303));
        each!(i in 5 { block_step! { ahead p.wrapping_add(4 * i * LANES), $far } });
        let mut sums = tile!(ZEROS [tile!(VTYPE); 2]);
        block_step! { times 4, part {
            let (h, s) = (part / 2, part % 2);
            let (words, x) = (p.wrapping_add((20 + 16 * part) * LANES), $x.wrapping_add(44 * h));
            let mut a = tile!(ZEROS [tile!(VTYPE); 4]);
            each!(g in 4 {
                let p = words.wrapping_add(4 * g * LANES);
                let word = tile!(VWORDS p);
                block_step! { ahead p, $far }
                let y = x.wrapping_add(4 * s + g);
                each!(k in 4 {
                    let b = tile!(VAND tile!(VSHR word, (2 * k as u32)), two);
                    a[k] = tile!(VDOTU b, tile!(VSPLAT y, (11 * k)), a[k]);
                });
            });
            each!(k in 4 {
                let word = tile!(VWORDS p.wrapping_add((4 + 4 * (2 * h + k / 2)) * LANES + s));
                let scale = block_step! { unsigned tile!(VAND word, four), k % 2 * 2 };
                let scale = tile!(VMUL scale, tile!(VSPLAT x, (11 * k + 8)));
                sums[0] = tile!(VKEEP tile!(VFMA tile!(VITOF a[k]), scale, sums[0]));
                let min = block_step! { unsigned tile!(VAND tile!(VSHR word, 4), four), k % 2 * 2 };
                sums[1] = tile!(VKEEP tile!(VFMA min, tile!(VSPLAT x.wrapping_add(s), (11 * k + 9)), sums[1]));
            });
        } }
        block_step! { scaled_sums $f += sums * p }
        $x = $x.wrapping_add(88);
        $w[0] = p.wrapping_add(84 * LANES);
    };
    (q3_k [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let two = tile!(VSETU 0x0303_0303);
        each!(i in 12 { block_step! { ahead p.wrapping_add(4 * i * LANES), $far } });
        let mut sum = tile!(VZERO);
        // By this loop rather than one over halves of bits, shifts are by numbers that are known.
        block_step! { times 2, s { each!(h in 2 {
            let (words, x) = (p.wrapping_add((46 + 16 * (2 * h + s)) * LANES), $x.wrapping_add(44 * h));
            let upper = p.wrapping_add((14 + 16 * s) * LANES);
            let mut a = tile!(ZEROS [tile!(VTYPE); 4]);
            each!(k in 4 { a[k] = tile!(VSPLAT x.wrapping_add(s), (11 * k + 9)); });
            each!(g in 4 {
                let bits = tile!(VSHR tile!(VWORDS upper.wrapping_add(4 * g * LANES)), (4 * h as u32));
                let p = words.wrapping_add(4 * g * LANES);
                let word = tile!(VWORDS p);
                block_step! { ahead p, $far }
                let y = x.wrapping_add(4 * s + g);
                each!(k in 4 {
                    let low = tile!(VAND tile!(VSHR word, (2 * k as u32)), two);
                    let high = block_step! { bit k of bits, 2 };
                    a[k] = tile!(VDOTU tile!(VOR low, high), tile!(VSPLAT y, (11 * k)), a[k]);
                });
            });
            each!(k in 4 {
                let scales = block_step! { scales_of_six p.wrapping_add(s), h, (k / 2) };
                let scale = tile!(VSUB block_step! { unsigned scales, k % 2 * 2 }, tile!(VSET 32.0));
                let scale = tile!(VMUL scale, tile!(VSPLAT x, (11 * k + 8)));
                sum = tile!(VKEEP tile!(VFMA tile!(VITOF a[k]), scale, sum));
            });
        }); } }
        $f[0][0] = tile!(VFMA block_step! { half p }, sum, $f[0][0]);
        $x = $x.wrapping_add(88);
        $w[0] = p.wrapping_add(110 * LANES);
    };
    (q6_k [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let p = $w[0];
        let (low, high) = (tile!(VSETU 0x0f0f_0f0f), tile!(VSETU 0x3030_3030));
        each!(i in 5 { block_step! { ahead p.wrapping_add(4 * i * LANES), $far } });
        let mut sum = tile!(VZERO);
        block_step! { times 4, part {
            let (h, s) = (part / 2, part % 2);
            let (words, x) = (p.wrapping_add((18 + 48 * part) * LANES), $x.wrapping_add(44 * h));
            let mut a = tile!(ZEROS [tile!(VTYPE); 4]);
            each!(k in 4 { a[k] = tile!(VSPLAT x.wrapping_add(s), (11 * k + 9)); });
            each!(g in 4 {
                let p = words.wrapping_add(12 * g * LANES);
                let bits = tile!(VWORDS p);
                let (even, odd) = (tile!(VWORDS p.wrapping_add(4 * LANES)), tile!(VWORDS p.wrapping_add(8 * LANES)));
                each!(i in 3 { block_step! { ahead p.wrapping_add(4 * i * LANES), $far } });
                let y = x.wrapping_add(4 * s + g);
                let w = block_step! { six [bits, even, odd] low, high };
                each!(k in 4 { a[k] = tile!(VDOTU w[k], tile!(VSPLAT y, (11 * k)), a[k]); });
            });
            each!(k in 4 {
                let word = tile!(VWORDS p.wrapping_add((2 + 4 * (2 * h + k / 2)) * LANES + s));
                let scale = block_step! { signed word, k % 2 * 2 };
                let scale = tile!(VMUL scale, tile!(VSPLAT x, (11 * k + 8)));
                sum = tile!(VKEEP tile!(VFMA tile!(VITOF a[k]), scale, sum));
            });
        } }
        // Signed bytes are taken times 2^24.
        let d = tile!(VMUL block_step! { half p }, tile!(VSET 1.0 / 16_777_216.0));
        $f[0][0] = tile!(VFMA d, sum, $f[0][0]);
        $x = $x.wrapping_add(88);
        $w[0] = p.wrapping_add(210 * LANES);
    };
    // A single column has a kernel of its own.
    (f32 $($rest:tt)*) => { block_step! { float f32 4, $($rest)* } };
    (f16 $($rest:tt)*) => { block_step! { float half 2, $($rest)* } };
    (bf16 $($rest:tt)*) => { block_step! { float brain 2, $($rest)* } };
    (float $load:ident $size:tt, [$v:tt x $c:tt] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let mut b = tile!(ZEROS [tile!(VTYPE); $v]);
        each!(j in $v { b[j] = block_step! { load $load $w[j] }; });
        tile!(DOTS VFMA $f [$v x $c] += b * $x, 0);
        $x = $x.wrapping_add($c);
        each!(j in $v { $w[j] = $w[j].wrapping_add($size * LANES); });
    };

    // The parts of those above.
    // The sum of a single column over a block of 32.
    (group $f:ident += $a:ident * $d:ident * $x:ident) => {
        $f[0][0] = tile!(VFMA tile!(VITOF $a), tile!(VMUL $d, tile!(VSPLAT $x, 8)), $f[0][0]);
    };
    // Bit `i` of each byte of a word, to bit `to`.
    (bit $i:tt of $bits:expr, $to:tt) => {{
        let (i, to) = ($i as u32, $to);
        let moved = if i <= to { tile!(VSHL $bits, (to - i)) } else { tile!(VSHR $bits, (i - to)) };
        tile!(VAND moved, tile!(VSETU (0x0101_0101 << to)))
    }};
    // Values of 5 bits: their upper ones, then words of their lower ones.
    (fives $a:ident += $p:ident.wrapping_add($at:expr) * $x:ident ahead $far:tt) => {
        let (bits, low) = (tile!(VWORDS $p.wrapping_add($at)), tile!(VSETU 0x0f0f_0f0f));
        each!(i in 2 { block_step! { ahead $p.wrapping_add(i * $at), $far } });
        each!(g in 4 {
            let p = $p.wrapping_add($at + (4 + 4 * g) * LANES);
            let word = tile!(VWORDS p);
            block_step! { ahead p, $far }
            let first = block_step! { bit g of bits, 4 };
            let second = block_step! { bit (g + 4) of bits, 4 };
            $a = tile!(VDOTU tile!(VOR tile!(VAND word, low), first), tile!(VSPLAT $x, g), $a);
            let word = tile!(VAND tile!(VSHR word, 4), low);
            $a = tile!(VDOTU tile!(VOR word, second), tile!(VSPLAT $x, (g + 4)), $a);
        });
    };
    // Values that indices of 4 bits stand for.
    (looked_up $table:ident, $a:ident += $p:ident.wrapping_add($at:expr) * $x:ident ahead $far:tt) => {
        let low = tile!(VSETU 0x0f0f_0f0f);
        each!(g in 4 {
            let p = $p.wrapping_add($at + 4 * g * LANES);
            let word = tile!(VWORDS p);
            block_step! { ahead p, $far }
            let b = tile!(VTABLE &$table, tile!(VAND word, low));
            $a = tile!(VDOT b, tile!(VSPLAT $x, g), $a);
            let b = tile!(VTABLE &$table, tile!(VAND tile!(VSHR word, 4), low));
            $a = tile!(VDOT b, tile!(VSPLAT $x, (g + 4)), $a);
        });
    };
    // Eight scales of 6 bits, more by 32: the lower four bits of each in a word, the upper two in the upper half
    // of one. They are taken one after the other.
    (bits_of_six $p:expr) => {{
        let p: *const u8 = $p;
        [tile!(VWORDS p.wrapping_add(4 * LANES)), block_step! { load brain p.wrapping_add(2 * LANES) }]
    }};
    (next_of_six $bits:ident) => {{
        let low = tile!(VAND $bits[0], tile!(VSETU 15));
        let high = tile!(VAND tile!(VSHR $bits[1], 12), tile!(VSETU 48));
        $bits = [tile!(VSHR $bits[0], 4), tile!(VSHR $bits[1], 2)];
        tile!(VSUB tile!(VITOF tile!(VOR low, high)), tile!(VSET 32.0))
    }};
    // Sixteen scales of 4 bits that stand for odd numbers, those of every second sixteen values in a word. They are
    // taken one after the other.
    (odd_scales $p:ident) => {
        [tile!(VWORDS $p.wrapping_add(2 * LANES)), tile!(VWORDS $p.wrapping_add(6 * LANES))]
    };
    (next_odd $bits:expr) => {{
        let scale = tile!(VITOF tile!(VAND $bits, tile!(VSETU 15)));
        $bits = tile!(VSHR $bits, 4);
        tile!(VFMA scale, tile!(VSET 2.0), tile!(VSET 1.0))
    }};
    // Eight groups with scales and minima of 6 bits, whose words begin behind so many bytes of each row.
    (of_six $f:ident += $p:ident * $x:ident, $at:tt, $quarter:ident ahead $far:tt) => {
        let low = tile!(VSETU 0x0f0f_0f0f);
        each!(i in 4 { block_step! { ahead $p.wrapping_add(4 * i * LANES), $far } });
        let mut sums = tile!(ZEROS [tile!(VTYPE); 2]);
        block_step! { times 2, h {
            let (words, x) = ($p.wrapping_add(($at + 64 * h) * LANES), $x.wrapping_add(40 * h));
            let (scales, minima) = block_step! { six_bits $p.wrapping_add(4 * LANES), h };
            each!(q in 2 {
                let mut a = tile!(ZEROS [tile!(VTYPE); 2]);
                each!(g in 8 {
                    let p = words.wrapping_add((32 * q + 4 * g) * LANES);
                    let word = tile!(VWORDS p);
                    block_step! { ahead p, $far }
                    let y = x.wrapping_add(20 * q + g);
                    let [even, odd] = block_step! { $quarter word, low, $p, q, g, h };
                    a[0] = tile!(VDOTU even, tile!(VSPLAT y, 0), a[0]);
                    a[1] = tile!(VDOTU odd, tile!(VSPLAT y, 10), a[1]);
                });
                each!(i in 2 {
                    let y = x.wrapping_add(20 * q + 10 * i);
                    let scale = block_step! { unsigned scales, (2 * q + i) };
                    let min = block_step! { unsigned minima, (2 * q + i) };
                    let scale = tile!(VMUL scale, tile!(VSPLAT y, 8));
                    sums[0] = tile!(VKEEP tile!(VFMA tile!(VITOF a[i]), scale, sums[0]));
                    sums[1] = tile!(VKEEP tile!(VFMA min, tile!(VSPLAT y, 9), sums[1]));
                });
            });
        } }
        block_step! { scaled_sums $f += sums * $p }
    };
    // Sums of a block, which begin with zero so that no block waits for the one before, times its scale and less
    // those of minima times theirs.
    (scaled_sums $f:ident += $sums:ident * $p:ident) => {
        let least = tile!(VSUB tile!(VZERO), block_step! { half $p.wrapping_add(2 * LANES) });
        $f[0][0] = tile!(VFMA block_step! { half $p }, $sums[0], $f[0][0]);
        $f[0][0] = tile!(VFMA least, $sums[1], $f[0][0]);
    };
    // A loop that stays one. What fetches ahead into the first-level cache watches each load by itself, and loses
    // those that step by a half of a page or more: on Zen 5, a block of 2304 bytes without a loop came from memory
    // at 0.86 of the speed of a plain read, as a loop of two parts at 0.96.
    //
    // Where the parts are sixteen weights of each group of 32, words of scales are read from their second byte on
    // for the second part: bytes 0 and 2 are those of the part then.
    (times $n:tt, $i:ident { $($body:tt)* }) => {
        let (mut $i, end) = (0_usize, core::hint::black_box($n));
        while $i < end {
            $($body)*
            $i += 1;
        }
    };
    (quarter $word:ident, $low:ident, $p:ident, $q:tt, $g:tt, $h:ident) => {
        [tile!(VAND $word, $low), tile!(VAND tile!(VSHR $word, 4), $low)]
    };
    (fifth_quarter $word:ident, $low:ident, $p:ident, $q:tt, $g:tt, $h:ident) => {{
        let bits = tile!(VSHR tile!(VWORDS $p.wrapping_add((16 + 4 * $g) * LANES)), (4 * $h as u32));
        let [even, odd] = block_step! { quarter $word, $low, $p, $q, $g, $h };
        let first = block_step! { bit (2 * $q) of bits, 4 };
        let second = block_step! { bit (2 * $q + 1) of bits, 4 };
        [tile!(VOR even, first), tile!(VOR odd, second)]
    }};
    // Word `i` of the two of the first or last eight scales, of 6 bits each, more by 32, behind a half.
    (scales_of_six $p:expr, $half:expr, $i:tt) => {{
        let (p, from): (*const u8, _) = ($p, 4 * $half as u32);
        let word = tile!(VSHR tile!(VWORDS p.wrapping_add((2 + 4 * $i) * LANES)), from);
        let upper = tile!(VSHR tile!(VWORDS p.wrapping_add(10 * LANES)), from);
        let high = tile!(VAND tile!(VSHR upper, (2 * $i as u32)), tile!(VSETU 0x0303_0303));
        tile!(VOR tile!(VAND word, tile!(VSETU 0x0f0f_0f0f)), tile!(VSHL high, 4))
    }};
    (half $p:expr) => {{ let p: *const u8 = $p; tile!(VLOAD16 p.cast::<u16>()) }};
    // Half of two to the power of a byte less 127: bytes in lanes of 2^23, of which a shift leaves those alone.
    (exponent $p:expr) => {{
        let bytes = tile!(VLOAD8 $p, tile!(VSET 8_388_608.0), tile!(VZERO));
        tile!(VMUL tile!(VSHL bytes, 23), tile!(VSET 0.5))
    }};
    (load half $p:expr) => { block_step! { half $p } };
    (load brain $p:expr) => {{ let p: *const u8 = $p; tile!(VLOADB16 p.cast::<u16>()) }};
    // One element.
    (one f32 $p:ident) => { $p.cast::<f32>().read_unaligned() };
    (one half $p:ident) => { tilewright_intrinsics::soft::f32_from_f16($p.cast::<u16>().read_unaligned()) };
    (one brain $p:ident) => { f32::from_bits(u32::from($p.cast::<u16>().read_unaligned()) << 16) };
    (load f32 $p:expr) => { tile!(VWORDS $p) };
    // Scales of packed blocks: of a single column, which is read from memory, in the order in which they
    // lie; of several where they are used, if until then there are no registers for them.
    (first $s:ident [$v:tt x 1] <- $w:ident) => { each!(j in $v { $s[j] = block_step! { half $w[j] }; }); };
    (first $s:ident [$v:tt x $c:tt] <- $w:ident) => {
        if LANES > 8 { each!(j in $v { $s[j] = block_step! { half $w[j] }; }); }
    };
    (last $s:ident [$v:tt x 1] <- $w:ident) => {};
    (last $s:ident [$v:tt x $c:tt] <- $w:ident) => {
        if LANES <= 8 { each!(j in $v { $s[j] = block_step! { half $w[j] }; }); }
    };
    (floats $s:ident [$v:tt] <- $w:ident, $at:expr) => {
        let mut $s = tile!(ZEROS [tile!(VTYPE); $v]);
        each!(j in $v { $s[j] = tile!(VWORDS $w[j].wrapping_add(4 * LANES * $at)); });
    };
    // Four words from `first` on, behind a header of so many bytes of each row.
    (words $verb:ident $first:expr, $header:tt, $a:ident [$v:tt x $c:tt] += $w:ident * $x:ident ahead $far:tt) => {
        each!(g in 4 {
            let at = ($header + 4 * ($first + g)) * LANES;
            let mut b = tile!(ZEROS [tile!(VTYPE); $v]);
            each!(j in $v { b[j] = tile!(VWORDS $w[j].wrapping_add(at)); });
            block_step! { ahead $w[0].wrapping_add(at), $far }
            tile!(DOTS $verb $a [$v x $c] += b * $x, ($first + g));
        });
    };
    // Words of a packed panel, which `DOTS` may take in another order.
    (packed $verb:ident $a:ident [$v:tt x 1] += $b:ident * $x:ident, $g:expr) => {
        let x = tile!(VSPLAT $x, $g);
        each!(j in $v { $a[0][j] = tile!($verb $b[j], x, $a[0][j]); });
    };
    (packed $verb:ident $a:ident [$v:tt x $c:tt] += $b:ident * $x:ident, $g:expr) => {
        tile!(DOTS $verb $a [$v x $c] += $b * $x, $g)
    };
    (scaled $f:ident [$v:tt x $c:tt] += $a:ident * $s:ident * $x:ident) => {
        each!(c in $c {
            let scale = tile!(VSPLAT $x, (8 * $c + c));
            each!(j in $v {
                let sum = tile!(VFMA tile!(VITOF $a[c][j]), tile!(VMUL $s[j], scale), $f[c][j]);
                $f[c][j] = block_step! { turn sum };
            });
        });
    };
    (minima $f:ident [$v:tt x $c:tt] += $s:ident * $x:ident, $at:expr) => {
        each!(c in $c {
            let sum = tile!(VSPLAT $x, ($at * $c + c));
            each!(j in $v { $f[c][j] = block_step! { turn tile!(VFMA $s[j], sum, $f[c][j]) }; });
        });
    };
    // Four scales and four minima of 6 bits, as bytes of a word each, from three words: the first or last four.
    (six_bits $p:expr, $half:expr) => {{
        let p: *const u8 = $p;
        let (a, b) = (tile!(VWORDS p), tile!(VWORDS p.wrapping_add(4 * LANES)));
        if $half == 0 {
            let six = tile!(VSETU 0x3f3f_3f3f);
            (tile!(VAND a, six), tile!(VAND b, six))
        } else {
            let c = tile!(VWORDS p.wrapping_add(8 * LANES));
            let (four, two) = (tile!(VSETU 0x0f0f_0f0f), tile!(VSETU 0x3030_3030));
            let scales = tile!(VOR tile!(VAND c, four), tile!(VAND tile!(VSHR a, 2), two));
            (scales, tile!(VOR tile!(VAND tile!(VSHR c, 4), four), tile!(VAND tile!(VSHR b, 2), two)))
        }
    }};
    // Byte `i` of each lane as a number; times 2^24 if signed.
    (unsigned $x:expr, $i:expr) => { tile!(VITOF tile!(VAND tile!(VSHR $x, (8 * ($i) as u32)), tile!(VSETU 0xff))) };
    (signed $x:expr, $i:expr) => {
        tile!(VITOF tile!(VAND tile!(VSHL $x, (24 - 8 * ($i) as u32)), tile!(VSETU 0xff00_0000))) };
    // Four bits of each lane as a number, times 16^i.
    (nibble $x:expr, $i:expr) => { tile!(VITOF tile!(VAND $x, tile!(VSETU 15 << (4 * ($i) as u32)))) };
    // Words of the four quarters, from two upper bits of all and four lower ones of two each.
    (six [$bits:expr, $even:expr, $odd:expr] $low:ident, $high:ident) => {[
        tile!(VOR tile!(VAND $even, $low), tile!(VAND tile!(VSHL $bits, 4), $high)),
        tile!(VOR tile!(VAND $odd, $low), tile!(VAND tile!(VSHL $bits, 2), $high)),
        tile!(VOR tile!(VAND tile!(VSHR $even, 4), $low), tile!(VAND $bits, $high)),
        tile!(VOR tile!(VAND tile!(VSHR $odd, 4), $low), tile!(VAND tile!(VSHR $bits, 2), $high)),
    ]};
    // In the order of the source, without which 16 registers do not last; all vectors of 16 lanes have 32.
    (turn $sum:expr) => {{ let sum = $sum; if LANES > 8 { sum } else { tile!(VKEEP sum) } }};
    // Sums of several columns have all that stands before, and nothing else is kept until it is added.
    (summed $a:ident [$v:tt x 1]) => {};
    (summed $a:ident [$v:tt x $c:tt]) => {
        each!(c in $c { each!(j in $v { $a[c][j] = tile!(VKEEP $a[c][j]); }); });
    };
    // What follows is not loaded before, where several columns fill all of 16 registers. Where vectors
    // have four lanes, `VKEEP` is enough.
    (fence [$v:tt x 1]) => {};
    (fence [$v:tt x $c:tt]) => {
        if LANES == 8 { core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst) }
    };
    (ahead $p:expr, 0) => {};
    // Between the loads that it stands between: the compiler would gather all prefetches of a block, and
    // a burst of them is as slow as none.
    (ahead $p:expr, $far:tt) => {
        let next: *const f32 = $p.wrapping_add($far).cast();
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        tile!(VPREFETCH next, 0);
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    };
}
pub(super) use block_step;
