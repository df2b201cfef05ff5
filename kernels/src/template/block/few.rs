//! Formats of a bit and of two a value, and ternary ones, which panels hold as the latter.

use super::BlockFormat;
use super::pack::bits_apart;

/// Bytes of a block of Q1_0 or Q2_0: a scale, and four words. In panels, value `4 t + b` of a word lies from bit `t`, or
/// `2 t`, of its byte `b` on: kernels take four values by a shift and a mask.
const BLOCK: usize = 18;

impl BlockFormat {
    /// Brings a block of the file into that form.
    pub(super) fn recode_bits(self, block: &[u8], held: &mut [u8]) {
        if matches!(self, Self::Q1_0 | Self::Q2_0) {
            held[..2].copy_from_slice(&block[..2]);
            let words = block[2..].as_chunks::<4>().0;
            for (word, to) in words.iter().zip(held[2..].as_chunks_mut::<4>().0) {
                let word = u32::from_le_bytes(*word);
                let apart =
                    if self == Self::Q1_0 { bits_apart(word) } else { pairs_transposed(word) };
                *to = apart.to_le_bytes();
            }
            return;
        }
        let scale = if self == Self::Tq2 { [block[64], block[65]] } else { [block[52], block[53]] };
        for (j, held) in held.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            held[..2].copy_from_slice(&scale);
            for (i, to) in held[2..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let four = |t: usize| self.four(block, 64 * j + 16 * i + 4 * t) << (2 * t);
                *to = (four(0) | four(1) | four(2) | four(3)).to_le_bytes();
            }
        }
    }

    /// Four values from `n` on, plus one, in bytes.
    fn four(self, block: &[u8], n: usize) -> u32 {
        let word = |at: usize| [block[at], block[at + 1], block[at + 2], block[at + 3]];
        if self == Self::Tq2 {
            let word = u32::from_le_bytes(word(32 * (n / 128) + n % 32));
            return word >> (n % 128 / 32 * 2) & 0x0303_0303;
        }
        // Five digits of a byte, the last four bytes' four: the first digit of what is left of a fraction.
        let (bytes, digit) = match n {
            0..160 => (word(n % 32), n / 32),
            160..240 => (word(32 + n % 16), (n - 160) / 16),
            _ => (word(48), (n - 240) / 4),
        };
        u32::from_le_bytes(bytes.map(|byte| {
            let rest = byte.wrapping_mul([1, 3, 9, 27, 81][digit]);
            ((u16::from(rest) * 3) >> 8) as u8
        }))
    }

    /// The numbers of held blocks of these formats.
    pub(super) fn values_of_bits(self, held: &[u8], out: &mut [f32]) {
        // A bit stands for two, less one.
        let (bits, size) = if self == Self::Q1_0 { (1, 2.0) } else { (2, 1.0) };
        let mask = (1 << bits) - 1;
        let blocks = held.as_chunks::<BLOCK>().0.iter();
        for (held, out) in blocks.zip(out.chunks_exact_mut(128 / bits)) {
            let d =
                tilewright_intrinsics::soft::f32_from_f16(u16::from_le_bytes([held[0], held[1]]));
            for (n, out) in out.iter_mut().enumerate() {
                let (word, n) = (n * bits / 32, n % (32 / bits));
                let q = held[2 + 4 * word + n % 4] >> (n / 4 * bits) & mask;
                *out = d * (f32::from(q) * size - 1.0);
            }
        }
    }
}

/// The rows and columns of 4 x 4 pairs of bits change places.
fn pairs_transposed(word: u32) -> u32 {
    let apart = |x: u32, by: u32, stay: u32, low: u32| x & stay | x >> by & low | (x & low) << by;
    apart(apart(word, 6, 0xcc33_cc33, 0x00cc_00cc), 12, 0xf0f0_0f0f, 0x0000_f0f0)
}

/// A block of a single column, and a block taken apart, as [`block_step`](super::step::block_step) and
/// [`block_unpack`](super::unpack::block_unpack) have those of other formats.
macro_rules! few_bits {
    // Groups of 32, words of each, and steps of a word.
    (q1_0 $($rest:tt)*) => { few_bits! { [4 1 8 one] $($rest)* } };
    (q2_0 $($rest:tt)*) => { few_bits! { [2 2 4 two] $($rest)* } };
    ([$groups:tt $words:tt $steps:tt $kind:ident]
     [1 x 1] $f:ident += $w:ident * $x:ident ahead $far:tt) => {
        let mut p = $w[0];
        let d = block_step! { half p };
        block_step! { ahead p, $far }
        p = p.wrapping_add(2 * LANES);
        block_step! { times $groups, _i {
            let from = tile!(VSPLAT $x, 9);
            let mut a = if tile!(HALVED) { tile!(VZERO) } else { from };
            each!(h in $words {
                let p = p.wrapping_add(4 * h * LANES);
                let word = tile!(VWORDS p);
                block_step! { ahead p, $far }
                each!(t in $steps {
                    let (b, x) = (few_bits! { $kind t of word }, tile!(VSPLAT $x, ($steps * h + t)));
                    a = if tile!(HALVED) { tile!(VPAIRS16 b, x, a) } else { tile!(VDOTU b, x, a) };
                });
            });
            let a = if tile!(HALVED) { tile!(VSUM16 a, from) } else { a };
            block_step! { group $f += a * d * $x }
            $x = $x.wrapping_add(10);
            p = p.wrapping_add(4 * $words * LANES);
        } }
        $w[0] = p;
    };
    ([$groups:tt $words:tt $steps:tt $kind:ident] $p:ident -> $o:ident) => {
        let d = block_step! { half $p };
        $p = $p.wrapping_add(2 * LANES);
        for _ in 0..$groups {
            tile!(VSTORE $o, 0, d);
            each!(h in $words {
                let word = tile!(VWORDS $p.wrapping_add(4 * h * LANES));
                each!(t in $steps {
                    tile!(VSTORE $o, (1 + $steps * h + t), few_bits! { $kind t of word });
                });
            });
            block_unpack! { next $p, (4 * $words) -> $o, 9 }
        }
    };
    // Values plus one of step `t`.
    (one $t:ident of $word:ident) => { block_step! { bit $t of $word, 1 } };
    (two $t:ident of $word:ident) => {
        tile!(VAND tile!(VSHR $word, (2 * $t as u32)), tile!(VSETU 0x0303_0303))
    };
}
pub(super) use few_bits;
