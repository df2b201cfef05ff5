//! Elements as words: what a dot product reads.

use super::dot_tile::DotRow;
use crate::Dtype;
use tilewright_intrinsics::dtype::Word;
use tilewright_intrinsics::soft;

/// What must be added to a byte of the left operand so that the words of a row can hold it: signed
/// bytes gain 128 where the row takes unsigned ones, unsigned lose 128 where it takes signed ones.
pub(crate) const fn left_shift(from: Dtype, word: Word) -> i32 {
    match (word, from) {
        (Word::U8x4, Dtype::I8) => 128,
        (Word::S8x4, Dtype::U8) => -128,
        _ => 0,
    }
}

/// What must be added to a byte of the right operand: words hold signed ones.
pub(crate) const fn right_shift(from: Dtype) -> i32 {
    match from {
        Dtype::U8 => -128,
        _ => 0,
    }
}

/// Where element `k` of column `n` of the right operand lies in a packed panel of so many columns,
/// counted in elements as the words hold them.
pub(crate) fn right_at(row: &DotRow, width: usize, k: usize, n: usize) -> usize {
    let group = row.word.group();
    let (first, part) = (k / group * width * group, k % group);
    match row.word {
        Word::S16x2Halves => {
            let (vector, lane) = (n / row.lanes, n % row.lanes);
            first + (vector * group + part) * row.lanes + lane
        }
        _ => first + n * group + part,
    }
}

/// Writes `n` elements at `src` as words at `dst`, padded with zeros to a whole word. Integers are
/// shifted by [`left_shift`].
///
/// # Safety
///
/// `src` is readable for `n` elements of type `from`, `dst` writable for `n.div_ceil(group)` words,
/// and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn convert(from: Dtype, word: Word, src: *const u8, dst: *mut f32, n: usize) {
    let words = n.div_ceil(word.group());
    if words == 0 {
        return;
    }
    // SAFETY: the last word is the caller's; what of it holds no element becomes zero here.
    unsafe { dst.add(words - 1).write_unaligned(0.0) };
    // SAFETY: each arm reads `n` elements of `from` and writes `n` parts of a word.
    unsafe {
        match word {
            Word::U8x4 | Word::S8x4 => {
                let (flip, dst) =
                    (if left_shift(from, word) == 0 { 0 } else { 0x80 }, dst.cast::<u8>());
                for i in 0..n {
                    *dst.add(i) = *src.add(i) ^ flip;
                }
            }
            Word::S16x2 | Word::S16x2Halves => {
                let dst = dst.cast::<i16>();
                if from == Dtype::I8 {
                    for i in 0..n {
                        *dst.add(i) = i16::from(*src.add(i) as i8);
                    }
                } else {
                    for i in 0..n {
                        *dst.add(i) = i16::from(*src.add(i));
                    }
                }
            }
            Word::Bf16x2 => src.copy_to_nonoverlapping(dst.cast(), 2 * n),
            _ => {
                let src = src.cast::<u16>();
                if from == Dtype::F16 {
                    for i in 0..n {
                        *dst.add(i) = soft::f32_from_f16(*src.add(i));
                    }
                } else {
                    for i in 0..n {
                        *dst.add(i) = f32::from_bits(u32::from(*src.add(i)) << 16);
                    }
                }
            }
        }
    }
}

/// The sum of `n` bytes, each shifted by [`left_shift`]; 0 for floats.
///
/// # Safety
///
/// `src` is readable for `n` elements of type `from`.
#[inline(always)]
pub(crate) unsafe fn row_sum(from: Dtype, word: Word, src: *const u8, n: usize) -> i32 {
    let mut sum = 0i32;
    for i in 0..n {
        // SAFETY: `i < n` bytes are readable where the elements are bytes.
        sum = sum.wrapping_add(match from {
            Dtype::I8 => i32::from(unsafe { *src.add(i) } as i8),
            Dtype::U8 => i32::from(unsafe { *src.add(i) }),
            _ => return 0,
        });
    }
    sum.wrapping_add(left_shift(from, word).wrapping_mul(n as i32))
}
