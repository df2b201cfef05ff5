//! Packed panels into bytes and floats, which few kernels then serve.
//!
//! Where there are many columns, taking a panel apart once costs little beside multiplying it; where
//! there is one, formats that have no kernel of their own are read in this way, too.

use super::grid::Codes;

/// A function that takes a panel apart: `blocks` packed blocks at the first address into 32 steps of the
/// reduction each, or 256, at the second: floats of scales and minima, then words; or floats alone. The last argument
/// says what codes stand for, if the blocks have codes.
///
/// # Safety
///
/// The CPU has the instructions of the row. The first address is readable for the blocks, the second
/// writable for as many vectors as the kind of the format has, aligned to 4.
pub(crate) type UnpackFn = unsafe fn(*const u8, *mut f32, usize, Option<&Codes>);

/// Takes a block apart. `$p` is where it lies, `$o` where its vectors go; both move on.
macro_rules! block_unpack {
    (grid $p:ident -> $o:ident, $codes:ident) => {
        let Some(codes) = $codes else { return };
        let d = tile!(VMUL block_step! { half $p }, tile!(VSET codes.factor));
        let mut bits = block_step! { odd_scales $p };
        let low = tile!(VSETU 0x0f0f_0f0f);
        $p = $p.wrapping_add(10 * LANES);
        for _ in 0..8 {
            each!(h in 2 { tile!(VSTORE $o, h, tile!(VMUL d, block_step! { next_odd bits[h] })); });
            each!(g in 4 {
                let word = tile!(VWORDS $p.wrapping_add(4 * g * LANES));
                tile!(VSTORE $o, (2 + g), tile!(VTABLE &codes.values, tile!(VAND word, low)));
                let high = tile!(VAND tile!(VSHR word, 4), low);
                tile!(VSTORE $o, (6 + g), tile!(VTABLE &codes.values, high));
            });
            block_unpack! { next $p, 16 -> $o, 10 }
        }
    };
    (q1_0 $p:ident -> $o:ident, $codes:ident) => { few_bits! { q1_0 $p -> $o } };
    (q2_0 $p:ident -> $o:ident, $codes:ident) => { few_bits! { q2_0 $p -> $o } };
    ($kind:ident $p:ident -> $o:ident, $codes:ident) => { block_unpack! { $kind $p -> $o } };
    (q8_0 $p:ident -> $o:ident) => {
        block_unpack! { halves 1, $p -> $o }
        each!(g in 8 { tile!(VSTORE $o, (1 + g), tile!(VWORDS $p.wrapping_add((2 + 4 * g) * LANES))); });
        block_unpack! { next $p, 34 -> $o, 9 }
    };
    (q4_0 $p:ident -> $o:ident) => {
        block_unpack! { halves 1, $p -> $o }
        block_unpack! { nibbles $p, 2 -> $o, 1 }
        block_unpack! { next $p, 18 -> $o, 9 }
    };
    (q4_1 $p:ident -> $o:ident) => {
        block_unpack! { halves 2, $p -> $o }
        block_unpack! { nibbles $p, 4 -> $o, 2 }
        block_unpack! { next $p, 20 -> $o, 10 }
    };
    (q5_0 $p:ident -> $o:ident) => {
        block_unpack! { halves 1, $p -> $o }
        block_unpack! { fives $p, 2 -> $o, 1 }
        block_unpack! { next $p, 22 -> $o, 9 }
    };
    (q5_1 $p:ident -> $o:ident) => {
        block_unpack! { halves 2, $p -> $o }
        block_unpack! { fives $p, 4 -> $o, 2 }
        block_unpack! { next $p, 24 -> $o, 10 }
    };
    (iq4_nl $p:ident -> $o:ident) => {
        block_unpack! { halves 1, $p -> $o }
        block_unpack! { looked_up TABLE, $p, 2 -> $o, 1 }
        block_unpack! { next $p, 18 -> $o, 9 }
    };
    (mxfp4 $p:ident -> $o:ident) => {
        tile!(VSTORE $o, 0, block_step! { exponent $p });
        block_unpack! { looked_up FLOATS, $p, 1 -> $o, 1 }
        block_unpack! { next $p, 17 -> $o, 9 }
    };
    (iq4_xs $p:ident -> $o:ident) => {
        let d = block_step! { half $p };
        let mut bits = block_step! { bits_of_six $p };
        $p = $p.wrapping_add(8 * LANES);
        for _ in 0..8 {
            tile!(VSTORE $o, 0, tile!(VMUL d, block_step! { next_of_six bits }));
            block_unpack! { looked_up TABLE, $p, 0 -> $o, 1 }
            block_unpack! { next $p, 16 -> $o, 9 }
        }
    };
    (u4 $p:ident -> $o:ident) => {
        let (scale, offset) = (tile!(VWORDS $p), tile!(VWORDS $p.wrapping_add(4 * LANES)));
        for g in 0..4 {
            let word = tile!(VWORDS $p.wrapping_add((8 + 4 * g) * LANES));
            // Not in place, as a product of one column does: parts of small scales would lose digits.
            each!(i in 8 {
                let q = block_step! { nibble tile!(VSHR word, (4 * i as u32)), 0 };
                tile!(VSTORE $o, i, tile!(VFMA q, scale, offset));
            });
            $o = $o.wrapping_add(8 * LANES);
        }
        $p = $p.wrapping_add(24 * LANES);
    };
    (q4_k $p:ident -> $o:ident) => {
        block_unpack! { six_bits $p -> $o }
        let low = tile!(VSETU 0x0f0f_0f0f);
        for q in 0..4 {
            let (p, o) = ($p.wrapping_add((16 + 32 * q) * LANES), $o.wrapping_add(20 * q * LANES));
            each!(g in 8 {
                let word = tile!(VWORDS p.wrapping_add(4 * g * LANES));
                tile!(VSTORE o, (2 + g), tile!(VAND word, low));
                tile!(VSTORE o, (12 + g), tile!(VAND tile!(VSHR word, 4), low));
            });
        }
        block_unpack! { next $p, 144 -> $o, 80 }
    };
    (q5_k $p:ident -> $o:ident) => {
        block_unpack! { six_bits $p -> $o }
        let low = tile!(VSETU 0x0f0f_0f0f);
        for g in 0..8 {
            let (p, o) = ($p.wrapping_add((16 + 4 * g) * LANES), $o.wrapping_add(g * LANES));
            let bits = tile!(VWORDS p);
            each!(q in 4 {
                let word = tile!(VWORDS p.wrapping_add((32 + 32 * q) * LANES));
                let even = block_step! { bit (2 * q) of bits, 4 };
                let odd = block_step! { bit (2 * q + 1) of bits, 4 };
                tile!(VSTORE o, (20 * q + 2), tile!(VOR tile!(VAND word, low), even));
                tile!(VSTORE o, (20 * q + 12), tile!(VOR tile!(VAND tile!(VSHR word, 4), low), odd));
            });
        }
        block_unpack! { next $p, 176 -> $o, 80 }
    };
    (q6_k $p:ident -> $o:ident) => {
        let d = tile!(VMUL block_step! { half $p }, tile!(VSET 1.0 / 16_777_216.0));
        for q in 0..4 {
            let o = $o.wrapping_add(20 * q * LANES);
            let word = tile!(VWORDS $p.wrapping_add((2 + 4 * q) * LANES));
            each!(i in 4 {
                let scale = tile!(VMUL block_step! { signed word, i }, d);
                tile!(VSTORE o, (i / 2 * 10 + i % 2), scale);
            });
        }
        let (low, high) = (tile!(VSETU 0x0f0f_0f0f), tile!(VSETU 0x3030_3030));
        for g in 0..16 {
            let o = $o.wrapping_add((g / 8 * 40 + g % 8) * LANES);
            let p = $p.wrapping_add((18 + 12 * g) * LANES);
            let (even, odd) = (tile!(VWORDS p.wrapping_add(4 * LANES)), tile!(VWORDS p.wrapping_add(8 * LANES)));
            let w = block_step! { six [tile!(VWORDS p), even, odd] low, high };
            each!(k in 4 { tile!(VSTORE o, (k * 10 + 2), w[k]); });
        }
        block_unpack! { next $p, 210 -> $o, 80 }
    };
    (q2_k $p:ident -> $o:ident) => {
        let d = block_step! { half $p };
        let least = tile!(VSUB tile!(VZERO), block_step! { half $p.wrapping_add(2 * LANES) });
        let (four, two) = (tile!(VSETU 0x0f0f_0f0f), tile!(VSETU 0x0303_0303));
        for q in 0..4 {
            let o = $o.wrapping_add(24 * q * LANES);
            let word = tile!(VWORDS $p.wrapping_add((4 + 4 * q) * LANES));
            each!(i in 4 {
                let scale = block_step! { unsigned tile!(VAND word, four), i };
                let min = block_step! { unsigned tile!(VAND tile!(VSHR word, 4), four), i };
                tile!(VSTORE o, (i / 2 * 12 + i % 2), tile!(VMUL scale, d));
                tile!(VSTORE o, (i / 2 * 12 + 2 + i % 2), tile!(VMUL min, least));
            });
        }
        for g in 0..16 {
            let o = $o.wrapping_add((g / 8 * 48 + g % 8) * LANES);
            let word = tile!(VWORDS $p.wrapping_add((20 + 4 * g) * LANES));
            each!(k in 4 {
                let w = tile!(VAND tile!(VSHR word, (2 * k as u32)), two);
                tile!(VSTORE o, (k * 12 + 4), w);
            });
        }
        block_unpack! { next $p, 84 -> $o, 96 }
    };
    (q3_k $p:ident -> $o:ident) => {
        let (d, two) = (block_step! { half $p }, tile!(VSETU 0x0303_0303));
        each!(q in 4 {
            let scales = block_step! { scales_of_six $p, (q / 2), (q % 2) };
            each!(i in 4 {
                let scale = tile!(VSUB block_step! { unsigned scales, i }, tile!(VSET 32.0));
                tile!(VSTORE $o, (20 * q + i / 2 * 10 + i % 2), tile!(VMUL scale, d));
            });
        });
        // As where they are multiplied, by a loop in which all shifts are by numbers that are known.
        for g in 0..8 {
            let (p, o) = ($p.wrapping_add(4 * g * LANES), $o.wrapping_add(g * LANES));
            let bits = tile!(VWORDS p.wrapping_add(14 * LANES));
            each!(h in 2 {
                let word = tile!(VWORDS p.wrapping_add((46 + 32 * h) * LANES));
                each!(k in 4 {
                    let low = tile!(VAND tile!(VSHR word, (2 * k as u32)), two);
                    let high = block_step! { bit (4 * h + k) of bits, 2 };
                    tile!(VSTORE o, ((4 * h + k) * 10 + 2), tile!(VOR low, high));
                });
            });
        }
        block_unpack! { next $p, 110 -> $o, 80 }
    };

    // The parts of those above.
    (halves $n:tt, $p:ident -> $o:ident) => {
        each!(i in $n { tile!(VSTORE $o, i, block_step! { half $p.wrapping_add(2 * i * LANES) }); });
    };
    (nibbles $p:ident, $at:tt -> $o:ident, $to:tt) => {
        let low = tile!(VSETU 0x0f0f_0f0f);
        each!(g in 4 {
            let word = tile!(VWORDS $p.wrapping_add(($at + 4 * g) * LANES));
            tile!(VSTORE $o, ($to + g), tile!(VAND word, low));
            tile!(VSTORE $o, ($to + 4 + g), tile!(VAND tile!(VSHR word, 4), low));
        });
    };
    (looked_up $table:ident, $p:ident, $at:tt -> $o:ident, $to:tt) => {
        let low = tile!(VSETU 0x0f0f_0f0f);
        each!(g in 4 {
            let word = tile!(VWORDS $p.wrapping_add(($at + 4 * g) * LANES));
            tile!(VSTORE $o, ($to + g), tile!(VTABLE &$table, tile!(VAND word, low)));
            let high = tile!(VAND tile!(VSHR word, 4), low);
            tile!(VSTORE $o, ($to + 4 + g), tile!(VTABLE &$table, high));
        });
    };
    (fives $p:ident, $at:tt -> $o:ident, $to:tt) => {
        let low = tile!(VSETU 0x0f0f_0f0f);
        let bits = tile!(VWORDS $p.wrapping_add($at * LANES));
        each!(g in 4 {
            let word = tile!(VWORDS $p.wrapping_add(($at + 4 + 4 * g) * LANES));
            let first = block_step! { bit g of bits, 4 };
            let second = block_step! { bit (g + 4) of bits, 4 };
            tile!(VSTORE $o, ($to + g), tile!(VOR tile!(VAND word, low), first));
            tile!(VSTORE $o, ($to + 4 + g), tile!(VOR tile!(VAND tile!(VSHR word, 4), low), second));
        });
    };
    // Scales and minima of eight groups of 32.
    (six_bits $p:ident -> $o:ident) => {
        let d = block_step! { half $p };
        let least = tile!(VSUB tile!(VZERO), block_step! { half $p.wrapping_add(2 * LANES) });
        each!(h in 2 {
            let (scales, minima) = block_step! { six_bits $p.wrapping_add(4 * LANES), h };
            each!(i in 4 {
                let at = 10 * (4 * h + i);
                tile!(VSTORE $o, at, tile!(VMUL block_step! { unsigned scales, i }, d));
                tile!(VSTORE $o, (at + 1), tile!(VMUL block_step! { unsigned minima, i }, least));
            });
        });
    };
    (pairs $o:ident, 9) => { tile!(PAIR_WORDS $o.wrapping_add(LANES)); };
    (pairs $o:ident, 10) => { tile!(PAIR_WORDS $o.wrapping_add(2 * LANES)); };
    // Without an instruction set of pairs there is nothing to do.
    (pairs $o:ident, 80) => { for _g in 0..8 { tile!(PAIR_WORDS $o.wrapping_add((10 * _g + 2) * LANES)); } };
    (pairs $o:ident, 96) => { for _g in 0..8 { tile!(PAIR_WORDS $o.wrapping_add((12 * _g + 4) * LANES)); } };
    (next $p:ident, $bytes:tt -> $o:ident, $vectors:tt) => {
        block_unpack! { pairs $o, $vectors }
        $p = $p.wrapping_add($bytes * LANES);
        $o = $o.wrapping_add($vectors * LANES);
    };
}
pub(super) use block_unpack;
