//! Offsets of intermediate tensors in one arena.

use core::cmp::Reverse;

use crate::order::sort_indices;

/// Alignment of every tensor in the arena.
pub(crate) const ALIGN: usize = 64;

/// Most orders of spans that are tried, and about how many pairs of spans are looked at meanwhile:
/// a few milliseconds.
const TRIES: usize = 200;
const WORK: usize = 2_000_000;

/// Bytes that no further order is tried for: a decoder is planned again for every token.
const ENOUGH: usize = 16 << 10;

/// A piece of memory that must exist from one step to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Bytes.
    pub(crate) bytes: usize,
    /// First step that writes it.
    pub(crate) first: usize,
    /// Last step that needs it.
    pub(crate) last: usize,
}

/// Gives each span an offset so that spans alive at one time do not overlap; returns the offsets
/// and the size of the arena, or `None` if that overflows.
///
/// Spans get their offsets one after the other, each at the lowest free place; what matters is the
/// order. Tried are largest first, which is within a few percent of the best for most networks, and
/// some others; then the order is mended: what ended up on top of the arena goes first. This ends as
/// soon as the arena is about as small as it can be.
pub(crate) fn place(spans: &[Span]) -> Option<(Vec<usize>, usize)> {
    let enough = bound(spans)?.saturating_add(ENOUGH);
    let steps = |s: &Span| (s.last.min(2 * spans.len()).saturating_sub(s.first) + 1) as u128;
    let keys: [&dyn Fn(&Span) -> u128; 4] =
        [&|s| s.bytes as u128, &|s| s.bytes as u128 * steps(s), &|s| steps(s), &|s| {
            u128::MAX - s.first as u128
        }];
    let mut order: Vec<usize> = (0..spans.len()).collect();
    let mut best: Option<(Vec<usize>, usize)> = None;
    let mut best_order = Vec::new();
    for key in keys {
        let rank = |i: usize| (Reverse(key(&spans[i])), Reverse(spans[i].bytes), spans[i].first);
        sort_indices(&mut order, &mut |a, b| rank(a).cmp(&rank(b)));
        let found = in_order(spans, &order)?;
        if best.as_ref().is_none_or(|b| found.1 < b.1) {
            best = Some(found);
            best_order.clone_from(&order);
        }
        if best.as_ref().is_some_and(|b| b.1 <= enough) {
            return best;
        }
    }
    let mut best = best?;
    order = best_order;
    let mut offsets = best.0.clone();
    for round in 0..(WORK / spans.len().pow(2).max(1)).min(TRIES) {
        let top = (0..spans.len()).max_by_key(|&i| offsets[i] + spans[i].bytes)?;
        let at = order.iter().position(|&i| i == top)?;
        // All the way, or half of it: the first alone goes round in circles.
        let to = if round % 2 == 0 { 0 } else { at / 2 };
        order[to..=at].rotate_right(1);
        let found = in_order(spans, &order)?;
        offsets.clone_from(&found.0);
        if found.1 < best.1 {
            best = found;
        }
        if best.1 <= enough {
            break;
        }
    }
    Some(best)
}

/// The largest sum of the bytes of spans that are alive at one time: no arena is smaller.
pub(crate) fn bound(spans: &[Span]) -> Option<usize> {
    // What ends at a step is still there when what begins at the step is, too.
    let event = |i: usize| {
        let (span, ends) = (&spans[i / 2], i % 2 == 1);
        (if ends { span.last } else { span.first }, ends)
    };
    let mut events: Vec<usize> = (0..2 * spans.len()).collect();
    sort_indices(&mut events, &mut |a, b| event(a).cmp(&event(b)));
    let (mut now, mut most) = (0usize, 0);
    for i in events {
        let ((_, ends), bytes) = (event(i), spans[i / 2].bytes);
        now = if ends { now - bytes } else { now.checked_add(bytes)? };
        most = most.max(now);
    }
    Some(most)
}

/// As [`place`], in the order given.
fn in_order(spans: &[Span], order: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut offsets = vec![0; spans.len()];
    // By offset: when each is needed, where it begins, and where the next may. Side by side, as every span
    // walks along all of them.
    let mut placed: Vec<(usize, usize, usize, usize)> = Vec::new();
    let mut size = 0usize;
    for &i in order {
        let span = spans[i];
        let mut at = 0usize;
        // The first gap that fits is the lowest.
        for &(first, last, begin, next) in &placed {
            if span.first > last || first > span.last {
                continue;
            }
            if at.checked_add(span.bytes)? <= begin {
                break;
            }
            at = at.max(next);
        }
        offsets[i] = at;
        let end = at.checked_add(span.bytes)?;
        size = size.max(end);
        let next = end.checked_next_multiple_of(ALIGN)?;
        let position = placed.partition_point(|&(_, _, begin, _)| begin <= at);
        placed.insert(position, (span.first, span.last, at, next));
    }
    Some((offsets, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_is_used_again() {
        let chain: Vec<Span> =
            (0..10).map(|i| Span { bytes: 1000, first: i, last: i + 1 }).collect();
        let (_, size) = place(&chain).unwrap();
        assert_eq!(size, 1024 + 1000);
    }

    #[test]
    fn overflow_is_an_error() {
        let big = Span { bytes: usize::MAX - 10, first: 0, last: 1 };
        assert_eq!(place(&[big, big]), None);
    }

    /// The sums of a few hundred arenas and of their bounds, and how many are as small as their bound: what
    /// the orders that are tried are worth. Better is welcome, worse is a change for the worse.
    #[test]
    fn arenas_are_about_as_small_as_they_can_be() {
        // More than what is not worth another try.
        const UNIT: usize = 2 * ENOUGH;
        let mut state = 7u64;
        let mut next = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let (mut sizes, mut bounds, mut exact) = (0, 0, 0);
        for count in (0..200).map(|i| 4 + i % 30) {
            let span = |_| {
                let first = next(20);
                Span { bytes: UNIT * (1 + next(50)), first, last: first + 1 + next(6) }
            };
            let spans: Vec<Span> = (0..count).map(span).collect();
            let (size, least) = (place(&spans).unwrap().1, bound(&spans).unwrap());
            (sizes, bounds) = (sizes + size, bounds + least);
            exact += usize::from(size == least);
        }
        assert!(
            sizes <= 37_189 * UNIT && bounds == 37_087 * UNIT && exact >= 183,
            "{sizes} {bounds} {exact}"
        );
    }

    proptest! {
        #[test]
        fn spans_alive_together_never_overlap(
            raw in proptest::collection::vec((0usize..5000, 0usize..20, 0usize..6), 0..40)
        ) {
            let spans: Vec<Span> = raw
                .iter()
                .map(|&(bytes, first, length)| Span { bytes, first, last: first + length })
                .collect();
            let (offsets, size) = place(&spans).unwrap();
            // The bound, from its definition.
            let alive = |t: usize| spans.iter().filter(move |s| s.first <= t && t <= s.last);
            let least = (0..30).map(|t| alive(t).map(|s| s.bytes).sum()).max().unwrap_or(0);
            prop_assert_eq!(bound(&spans), Some(least));
            prop_assert!(size >= least);
            for i in 0..spans.len() {
                prop_assert!(offsets[i].is_multiple_of(ALIGN));
                prop_assert!(offsets[i] + spans[i].bytes <= size);
                for j in 0..i {
                    let together =
                        spans[i].first <= spans[j].last && spans[j].first <= spans[i].last;
                    let apart = offsets[i] + spans[i].bytes <= offsets[j]
                        || offsets[j] + spans[j].bytes <= offsets[i];
                    prop_assert!(!together || apart);
                }
            }
        }
    }
}
