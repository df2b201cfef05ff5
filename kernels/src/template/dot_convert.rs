//! Elements as words: what a dot product reads.

use super::dot_tile::DotRow;
use crate::Dtype;
use tilewright_intrinsics::dtype::Word;
use tilewright_intrinsics::soft;

/// What must be added to a byte of the left operand so that the words of a row can hold it: signed
/// bytes gain 128 where the row takes unsigned ones, unsigned lose 128 where it takes signed ones.
pub(crate) const fn left_shift(from: Dtype, word: Word) -> i32 {
    match (word, from) {
        (Word::U8x4 | Word::U8x4Saturating | Word::U8x4Pairs, Dtype::I8) => 128,
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

/// In which word of a row of a panel, and where in it, a part of the word of column `n` lies.
pub(crate) fn place(row: &DotRow, n: usize, part: usize) -> (usize, usize) {
    if !row.word.in_halves() {
        return (n, part);
    }
    let half = n / row.lanes * row.lanes * 2 + part * row.lanes + n % row.lanes;
    (half / 2, half % 2)
}

/// Packs a panel of so many columns, of which the first `columns` exist, word by word.
///
/// Per word, `words` has where its first element in column 0 lies and how many it has; the next
/// element is `part_step` further, the next column `n_step`. `element` is the value there in column
/// `n`, in the range of what the words hold, and `sum` is told of each. Words that there are not
/// become zero.
pub(crate) fn pack_panel(
    row: &DotRow,
    width: usize,
    columns: usize,
    words: impl Iterator<Item = (usize, usize)>,
    steps: [usize; 2],
    element: impl Fn(usize, usize) -> i32,
    sum: impl FnMut(usize, i32),
    dst: &mut [i32],
) {
    match row.word.side_by_side() {
        1 => pack_words(1, row, width, columns, words, steps, element, sum, dst),
        _ => pack_words(2, row, width, columns, words, steps, element, sum, dst),
    }
}

/// [`pack_panel`] for so many words of a column side by side. Inlined, as the number is a constant there; where elements
/// take longer, one code for all instruction sets is enough.
#[inline(always)]
pub(crate) fn pack_words(
    side: usize,
    row: &DotRow,
    width: usize,
    columns: usize,
    words: impl Iterator<Item = (usize, usize)>,
    [part_step, n_step]: [usize; 2],
    element: impl Fn(usize, usize) -> i32,
    mut sum: impl FnMut(usize, i32),
    dst: &mut [i32],
) {
    let bits = 32 / row.word.group();
    let mask = u32::MAX >> (32 - bits);
    // Whether a word's elements lie in it and its group is two.
    let plain = bits == 16 && !row.word.in_halves();
    let mut filled = 0;
    for (i, (first, parts)) in words.enumerate() {
        let dst = &mut dst[i / side * side * width..][..side * width];
        if i % side == 0 {
            dst.fill(0);
            filled += dst.len();
        }
        for n in 0..columns {
            let at = first + n * n_step;
            if bits == 8 && parts == 4 {
                let x = [0, 1, 2, 3].map(|part| element(at + part * part_step, n));
                sum(n, x[0] + x[1] + x[2] + x[3]);
                dst[n * side + i % side] = i32::from_ne_bytes(x.map(|x| x as u8));
                continue;
            }
            if plain && parts == 2 {
                let x = [0, 1].map(|part| element(at + part * part_step, n));
                sum(n, x[0] + x[1]);
                dst[n * side + i % side] = i32::from_le(x[0] & 0xffff | x[1] << 16);
                continue;
            }
            for part in 0..parts {
                let x = element(at + part * part_step, n);
                sum(n, x);
                let (word, part) = place(row, n, part);
                let found = &mut dst[word * side + i % side];
                // As if little-endian: the first element has the lowest address.
                let x = ((x as u32 & mask) << (bits * part)) as i32;
                *found = i32::from_le(i32::to_le(*found) | x);
            }
        }
    }
    dst[filled..].fill(0);
}

/// Words for each column of a panel, behind its packed words, for what [`split`] takes from them.
pub(crate) const fn spare_words(word: Word, k_words: usize) -> usize {
    // As many weights, how many, and two numbers of each; a panel has 8 columns at least.
    if word.saturates() { k_words + (2 * k_words + 1).div_ceil(8) } else { 0 }
}

/// Takes from a packed panel of rows that saturate what neighbours have too much: `spare` gets the rest of the
/// weights of such words, their number, and of each the segment and the word in it, of so many `words` per segment.
pub(crate) fn split(panel: &mut [i32], width: usize, words: usize, spare: &mut [i32]) {
    let (rests, list) = spare.split_at_mut(panel.len());
    let (number, list) = list.split_at_mut(1);
    let mut found = list.as_chunks_mut::<2>().0.iter_mut().zip(rests.chunks_exact_mut(width));
    number[0] = 0;
    for (i, step) in panel.chunks_exact_mut(width).enumerate() {
        if !step.iter().fold(false, |any, word| any | saturates(*word)) {
            continue;
        }
        if let Some((at, rest)) = found.next() {
            number[0] += 1;
            *at = [(i / words) as i32, (i % words) as i32];
            for (word, rest) in step.iter_mut().zip(rest) {
                let x = word.to_ne_bytes().map(|x| x as i8);
                let half = if saturates(*word) { x.map(|x| x / 2) } else { [0; 4] };
                *word = i32::from_ne_bytes(core::array::from_fn(|i| (x[i] - half[i]) as u8));
                *rest = i32::from_ne_bytes(half.map(|x| x as u8));
            }
        }
    }
}

/// Whether products of these four bytes and of any others may add up to more than 16 bits hold, two by two. Those of
/// neighbours with different signs do not.
fn saturates(word: i32) -> bool {
    let x = word.to_ne_bytes().map(|x| i32::from(x as i8));
    (x[0] + x[1]).abs() > 128 || (x[2] + x[3]).abs() > 128
}

/// The bit by which signed and unsigned bytes that are 128 apart differ.
const FLIP: u8 = 0x80;

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
            Word::U8x4 | Word::U8x4Saturating | Word::U8x4Pairs | Word::S8x4 => {
                let dst = dst.cast::<u8>();
                if left_shift(from, word) == 0 {
                    src.copy_to_nonoverlapping(dst, n);
                } else {
                    // Eight at a time, even where compilers are asked for small code and leave loops as
                    // they are.
                    let flips = u64::from_ne_bytes([FLIP; 8]);
                    for i in 0..n / 8 {
                        let eight = src.cast::<u64>().add(i).read_unaligned() ^ flips;
                        dst.cast::<u64>().add(i).write_unaligned(eight);
                    }
                    for i in n / 8 * 8..n {
                        *dst.add(i) = *src.add(i) ^ FLIP;
                    }
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
            Word::F16x2Halves | Word::Bf16x2 => src.copy_to_nonoverlapping(dst.cast(), 2 * n),
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
    if !matches!(from, Dtype::I8 | Dtype::U8) {
        return 0;
    }
    // SAFETY: `n` bytes are readable.
    let bytes = unsafe { core::slice::from_raw_parts(src, n) };
    // Signed numbers are unsigned ones less 128 when their first bit is flipped.
    let (flip, shift) = if from == Dtype::I8 { (FLIP, -128) } else { (0, 0) };
    let shift = left_shift(from, word).wrapping_add(shift);
    byte_sum(bytes, flip).wrapping_add(shift.wrapping_mul(n as i32))
}

/// The sum modulo 2^32 of bytes with the bits of `flip` flipped, eight at a time as in [`convert`].
#[inline(always)]
fn byte_sum(bytes: &[u8], flip: u8) -> i32 {
    const EVEN_BYTES: u64 = 0x00ff_00ff_00ff_00ff;
    const EVEN_PAIRS: u64 = 0x0000_ffff_0000_ffff;
    let flips = u64::from_ne_bytes([flip; 8]);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = rest.iter().fold(0u32, |sum, x| sum.wrapping_add(u32::from(x ^ flip)));
    // A pair of bytes adds up to 510 to one of four sums of 16 bits.
    for words in words.chunks(128) {
        let mut sums = 0u64;
        for word in words {
            let x = u64::from_ne_bytes(*word) ^ flips;
            sums += (x & EVEN_BYTES) + (x >> 8 & EVEN_BYTES);
        }
        let sums = (sums & EVEN_PAIRS) + (sums >> 16 & EVEN_PAIRS);
        sum = sum.wrapping_add(sums as u32).wrapping_add((sums >> 32) as u32);
    }
    sum as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn split_words_add_up_and_do_not_saturate() {
        for width in [8, 16] {
            let (count, columns) = (20, width);
            let bytes = |i: usize, part: usize| match (i / columns, part) {
                // Steps of small weights, of the ends of the range, of any.
                (0..7, _) => (i + part) % 129 / 2,
                (7..10, _) => [127, 128, 0, 255][(i + part) % 4],
                _ => i * 37 + part * 91,
            } as u8;
            let word = |i| i32::from_ne_bytes(core::array::from_fn(|part| bytes(i, part)));
            let before: Vec<i32> = (0..count * columns).map(word).collect();
            let mut panel = before.clone();
            let mut spare = alloc::vec![7; width * spare_words(Word::U8x4Saturating, count)];
            split(&mut panel, width, 5, &mut spare);
            let list = &spare[count * width..];
            assert!((3..14).contains(&list[0]), "{}", list[0]);
            let mut sums: Vec<[i32; 4]> = Vec::new();
            let signed = |word: i32| word.to_ne_bytes().map(|x| i32::from(x as i8));
            panel.iter().for_each(|word| sums.push(signed(*word)));
            for i in 0..list[0] as usize {
                let step = list[1 + 2 * i] as usize * 5 + list[2 + 2 * i] as usize;
                for n in 0..width {
                    let rest = spare[i * width + n];
                    assert!(!saturates(rest));
                    let rest = signed(rest);
                    sums[step * width + n].iter_mut().zip(rest).for_each(|(sum, x)| *sum += x);
                }
            }
            assert!(panel.iter().all(|word| !saturates(*word)));
            assert!(before.iter().zip(&sums).all(|(word, sum)| signed(*word) == *sum));
        }
    }

    #[test]
    fn sums_of_bytes() {
        for n in (0..40).chain([1023, 1024, 1025, 3000]) {
            for fill in [0u8, 0x7f, 0x80, 0xff, 1] {
                // All alike, where sums are largest, and all different.
                for step in [0, 37] {
                    let x: Vec<u8> = (0..n).map(|i| fill.wrapping_add((i * step) as u8)).collect();
                    let unsigned: i32 = x.iter().map(|x| i32::from(*x)).sum();
                    let signed: i32 = x.iter().map(|x| i32::from(*x as i8)).sum();
                    for word in [Word::U8x4, Word::S8x4, Word::S16x2] {
                        for (from, sum) in [(Dtype::U8, unsigned), (Dtype::I8, signed)] {
                            // SAFETY: there are as many bytes.
                            let found = unsafe { row_sum(from, word, x.as_ptr(), n) };
                            let want = sum + left_shift(from, word) * n as i32;
                            assert_eq!(found, want, "{from:?} {word:?} {n} {fill} {step}");
                        }
                    }
                }
            }
        }
    }
}
