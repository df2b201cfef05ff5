//! Sorting where time does not matter: the sorts of the standard library are 3 to 4 KB of code for each type
//! and order, this one is half of one, and the same for all.

use core::cmp::Ordering;

/// Sorts indices of anything; equal ones stay in their order.
#[inline(never)]
pub(crate) fn sort_indices(
    indices: &mut [usize],
    compare: &mut dyn FnMut(usize, usize) -> Ordering,
) {
    let mut merged = Vec::with_capacity(indices.len());
    let mut run = 1;
    // Runs of one index are sorted; two neighbours become one of twice the length.
    while run < indices.len() {
        merged.clear();
        for pair in indices.chunks(2 * run) {
            let (mut left, mut right) = pair.split_at(run.min(pair.len()));
            while let (&[l, ref rest_l @ ..], &[r, ref rest_r @ ..]) = (left, right) {
                if compare(l, r).is_le() {
                    merged.push(l);
                    left = rest_l;
                } else {
                    merged.push(r);
                    right = rest_r;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        indices.copy_from_slice(&merged);
        run *= 2;
    }
}

/// Sorts `items`; equal ones stay in their order.
pub(crate) fn sort<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let mut from: Vec<usize> = (0..items.len()).collect();
    sort_indices(&mut from, &mut |a, b| compare(&items[a], &items[b]));
    // Each cycle of places, once.
    for first in 0..from.len() {
        let mut to = first;
        loop {
            let next = core::mem::replace(&mut from[to], to);
            if next == first {
                break;
            }
            items.swap(to, next);
            to = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_sorted_and_equal_ones_stay() {
        for count in 0..60 {
            let items = |seed: usize| (0..count).map(move |i| ((i * seed + 3) % 17, i));
            for seed in [0, 1, 5, 7919] {
                let mut found: Vec<_> = items(seed).collect();
                sort(&mut found, |a, b| b.0.cmp(&a.0));
                let mut want: Vec<_> = items(seed).collect();
                want.sort_by_key(|item| (core::cmp::Reverse(item.0), item.1));
                assert_eq!(found, want);
            }
        }
    }
}
