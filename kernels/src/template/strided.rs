//! Copies of elements of any size that lie apart.

use super::byte_turns::ByteTurns;

/// Whether this build has loops of their own for elements of usual sizes.
const MORE: bool = !cfg!(feature = "few-kernels");

/// What is written of a block before its lines are gone through once more.
const TILE_BYTES: usize = 16 << 10;

/// Copies rows of `row` elements of `size` bytes to `dst`, which they fill: in the source rows are `across` bytes
/// apart, and elements `step`. Bytes that lie in columns are transposed by `turns`.
///
/// # Panics
///
/// For rows of no bytes, and where `src` ends before.
pub fn copy_strided(
    turns: ByteTurns,
    size: usize,
    row: usize,
    src: &[u8],
    apart: [usize; 2],
    dst: &mut [u8],
) {
    if MORE && size == 1 && apart[0] == 1 && row >= 4 && apart[1] > 0 && dst.len() >= 4 * row {
        return turns.transpose(row, src, apart[1], dst, row);
    }
    if let (true, 4, [4, step]) = (MORE, size, apart) {
        match row {
            2 => return interleave::<2>(src, step, dst),
            3 => return interleave::<3>(src, step, dst),
            4 => return interleave::<4>(src, step, dst),
            _ => {}
        }
    }
    match size {
        1 if MORE => gather(1, row, src, apart, dst),
        2 if MORE => gather(2, row, src, apart, dst),
        4 if MORE => gather(4, row, src, apart, dst),
        8 if MORE => gather(8, row, src, apart, dst),
        _ => gather(size, row, src, apart, dst),
    }
}

/// [`copy_strided`], inlined, as the size is a constant where it is called.
#[inline(always)]
fn gather(size: usize, row: usize, src: &[u8], [across, step]: [usize; 2], dst: &mut [u8]) {
    let bytes = size * row;
    if step == 0 && row > 1 {
        for (j, line) in dst.chunks_exact_mut(bytes).enumerate() {
            let element = &src[j * across..][..size];
            line.chunks_exact_mut(size).for_each(|out| out.copy_from_slice(element));
        }
        return;
    }
    if MORE && step == 2 * size {
        // As pairs, without looking at where each element lies, so that several are copied at once.
        for (j, line) in dst.chunks_exact_mut(bytes).enumerate() {
            let (pairs, last) = src[j * across..][..2 * bytes - size].split_at(2 * (bytes - size));
            let (outs, end) = line.split_at_mut(bytes - size);
            end.copy_from_slice(last);
            let pairs = outs.chunks_exact_mut(size).zip(pairs.chunks_exact(2 * size));
            pairs.for_each(|(out, pair)| out.copy_from_slice(&pair[..size]));
        }
        return;
    }
    // The longer loop inside, as rows of channels that become pixels have few elements; over lines that stay in the
    // first-level cache.
    let lines = if MORE { (TILE_BYTES / bytes).min(dst.len() / bytes) } else { 0 };
    if (2..lines).contains(&row) {
        for (tile, dst) in dst.chunks_mut(lines * bytes).enumerate() {
            let src = &src[tile * lines * across..];
            for i in 0..row {
                for (j, line) in dst.chunks_exact_mut(bytes).enumerate() {
                    let at = j * across + i * step;
                    line[i * size..][..size].copy_from_slice(&src[at..][..size]);
                }
            }
        }
        return;
    }
    for (j, line) in dst.chunks_exact_mut(bytes).enumerate() {
        for (i, out) in line.chunks_exact_mut(size).enumerate() {
            out.copy_from_slice(&src[j * across + i * step..][..size]);
        }
    }
}

/// Elements of `N` sources that lie `step` bytes apart, four bytes each, in turns: channels that become pixels.
#[inline(always)]
fn interleave<const N: usize>(src: &[u8], step: usize, dst: &mut [u8]) {
    let (outs, _) = dst.as_chunks_mut::<4>();
    let lines = outs.len() / N;
    let from: [&[[u8; 4]]; N] = core::array::from_fn(|i| &src[i * step..].as_chunks().0[..lines]);
    for (out, j) in outs.chunks_exact_mut(N).zip(0..lines) {
        for (out, from) in out.iter_mut().zip(from) {
            *out = from[j];
        }
    }
}

/// Copies elements of `size` bytes: element `at[i]` of `src` becomes element `i` of `dst`.
///
/// # Panics
///
/// For elements of no bytes, and where `src` ends before one of those that are chosen.
pub fn copy_chosen(size: usize, at: &[usize], src: &[u8], dst: &mut [u8]) {
    match size {
        4 => choose(4, at, src, dst),
        8 if MORE => choose(8, at, src, dst),
        12 if MORE => choose(12, at, src, dst),
        64 if MORE => choose(64, at, src, dst),
        _ => choose(size, at, src, dst),
    }
}

/// [`copy_chosen`], inlined, as the size is a constant where it is called.
#[inline(always)]
fn choose(size: usize, at: &[usize], src: &[u8], dst: &mut [u8]) {
    for (out, at) in dst.chunks_exact_mut(size).zip(at) {
        out.copy_from_slice(&src[at * size..][..size]);
    }
}

/// Copies elements of `size` bytes to `dst`, which they fill, each of them `times` times.
///
/// # Panics
///
/// For elements of no bytes, and for no copies.
pub fn copy_repeated(size: usize, times: usize, src: &[u8], dst: &mut [u8]) {
    match (size, times) {
        (4, 2) if MORE => repeat(4, 2, src, dst),
        (4, _) if MORE => repeat(4, times, src, dst),
        (64, _) if MORE => repeat(64, times, src, dst),
        _ => repeat(size, times, src, dst),
    }
}

/// [`copy_repeated`], inlined, as above.
#[inline(always)]
fn repeat(size: usize, times: usize, src: &[u8], dst: &mut [u8]) {
    for (outs, element) in dst.chunks_exact_mut(size * times).zip(src.chunks_exact(size)) {
        outs.chunks_exact_mut(size).for_each(|out| out.copy_from_slice(element));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn every_second_element_up_to_the_last_of_the_source() {
        for size in [1, 2, 3, 4, 8, 16] {
            for (lines, row) in [(1, 1), (1, 2), (3, 7), (40, 33), (5, 70)] {
                for step in [2 * size, 3 * size] {
                    let across = (row - 1) * step + size + 5;
                    let src: Vec<u8> = (0..(lines - 1) * across + across - 5)
                        .map(|i| (i * 7 % 251) as u8)
                        .collect();
                    let mut dst = vec![0; lines * row * size];
                    copy_strided(ByteTurns::PORTABLE, size, row, &src, [across, step], &mut dst);
                    let elements = (0..lines * row)
                        .flat_map(|i| &src[i / row * across + i % row * step..][..size]);
                    assert!(elements.eq(&dst), "{size} {lines} {row} {step}");
                }
            }
        }
    }

    #[test]
    fn sources_in_turns() {
        for (row, lines) in [(2, 1), (2, 37), (3, 20), (4, 41), (5, 9)] {
            let step = 4 * lines + 12;
            let src: Vec<u8> =
                (0..(row - 1) * step + 4 * lines).map(|i| (i * 7 % 251) as u8).collect();
            let mut dst = vec![0; 4 * row * lines];
            copy_strided(ByteTurns::PORTABLE, 4, row, &src, [4, step], &mut dst);
            let elements = (0..row * lines).flat_map(|i| &src[i % row * step + i / row * 4..][..4]);
            assert!(elements.eq(&dst), "{row} {lines}");
        }
    }

    #[test]
    fn chosen_and_repeated_elements() {
        for size in [1, 2, 4, 5, 8, 12, 64] {
            let src: Vec<u8> = (0..9 * size).map(|i| (i * 7 % 251) as u8).collect();
            let element = |i: usize| &src[i * size..][..size];
            for times in [1, 2, 3] {
                let mut dst = vec![0; 9 * times * size];
                copy_repeated(size, times, &src, &mut dst);
                assert!((0..9 * times).flat_map(|i| element(i / times)).eq(&dst), "{size} {times}");
            }
            let at: Vec<usize> = (0..31).map(|i| i * i % 9).collect();
            let mut dst = vec![0; 31 * size];
            copy_chosen(size, &at, &src, &mut dst);
            assert!(at.iter().flat_map(|&i| element(i)).eq(&dst), "{size}");
        }
    }
}
