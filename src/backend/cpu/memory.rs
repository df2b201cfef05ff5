//! Offsets of intermediate tensors in one arena.

/// Alignment of every tensor in the arena.
pub(crate) const ALIGN: usize = 64;

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
/// Largest first, each at the lowest free place: within a few percent of the best order for the
/// graphs of networks, and simple enough to trust.
pub(crate) fn place(spans: &[Span]) -> Option<(Vec<usize>, usize)> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&i| (core::cmp::Reverse(spans[i].bytes), spans[i].first));
    let mut offsets = vec![0; spans.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut size = 0usize;
    for i in order {
        let span = spans[i];
        let mut at = 0usize;
        // `placed` is ordered by offset, so the first gap that fits is the lowest.
        for &j in &placed {
            let other = spans[j];
            if span.first > other.last || other.first > span.last {
                continue;
            }
            if at.checked_add(span.bytes)? <= offsets[j] {
                break;
            }
            at = at.max(offsets[j].checked_add(other.bytes)?.checked_next_multiple_of(ALIGN)?);
        }
        offsets[i] = at;
        size = size.max(at.checked_add(span.bytes)?);
        let position = placed.partition_point(|&j| offsets[j] <= at);
        placed.insert(position, i);
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
