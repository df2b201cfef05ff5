//! How a product is cut for the NPU: K into segments whose results are added, N into slices that
//! cores share, M into buckets for which contexts exist.

use core::ops::Range;

use super::chip::{Chip, K_UNIT, N_MAX, Numbers};

/// Numbers of rows that contexts are made for; fewer rows are filled with zeros.
const BUCKETS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Most rows of one run.
pub(super) const MAX_ROWS: usize = 512;

/// The bucket of so many rows, which are at most [`MAX_ROWS`].
pub(super) fn bucket(rows: usize) -> usize {
    BUCKETS.into_iter().find(|&b| rows <= b).unwrap_or(MAX_ROWS)
}

/// How K and N are cut. Ranges are those of the padded matrix: the last may reach past its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) segments: Vec<Range<usize>>,
    pub(super) slices: Vec<Range<usize>>,
}

impl Cut {
    /// Cuts a `k` by `n` matrix for so many cores. Both extents are at least 1.
    pub(super) fn new(chip: &Chip, numbers: Numbers, k: usize, n: usize, cores: usize) -> Self {
        let n_unit = chip.n_unit(numbers);
        let k_units = k.div_ceil(K_UNIT);
        let segments = k_units.div_ceil(chip.k_max(numbers) / K_UNIT);
        let n_units = n.div_ceil(n_unit);
        // As many as give each core the same number, of which none is too wide.
        let needed = n_units.div_ceil(N_MAX / n_unit);
        let slices = needed.next_multiple_of(cores.max(1)).min(n_units);
        Self {
            segments: spread(k_units, segments, K_UNIT),
            slices: spread(n_units, slices, n_unit),
        }
    }
}

/// Ranges of `units` units in `parts` parts that differ by one unit at most, larger ones first.
fn spread(units: usize, parts: usize, unit: usize) -> Vec<Range<usize>> {
    let (each, more) = (units / parts, units % parts);
    let start = |i: usize| (i * each + i.min(more)) * unit;
    (0..parts).map(|i| start(i)..start(i + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(chip: &str, k: usize, n: usize, cores: usize) -> (Vec<usize>, Vec<usize>) {
        let cut = Cut::new(Chip::find(Some(chip)).unwrap(), Numbers::F16, k, n, cores);
        let len = |ranges: &[Range<usize>]| ranges.iter().map(ExactSizeIterator::len).collect();
        (len(&cut.segments), len(&cut.slices))
    }

    #[test]
    fn units_are_spread_evenly() {
        assert_eq!(sizes("rk3588", 32, 2048, 3).1, [704, 672, 672]);
        assert_eq!(sizes("rk3588", 32, 8192, 3).1, [2752, 2720, 2720]);
        assert_eq!(sizes("rk3588", 32, 160, 3).1, [64, 64, 32]);
        assert_eq!(sizes("rk3588", 32, 33, 3).1, [32, 32]);
        let vocabulary = sizes("rk3588", 32, 128_256, 3).1;
        assert_eq!((vocabulary.len(), vocabulary[0], vocabulary[32]), (33, 3904, 3872));
        assert_eq!(sizes("rk3588", 11008, 32, 1).0, [5504, 5504]);
        assert_eq!(sizes("rk3576", 11008, 32, 1).0, [3680, 3680, 3648]);
        assert_eq!(sizes("rk3588", 18944, 32, 1).0, [6336, 6304, 6304]);
        assert_eq!(sizes("rk3568", 33, 17, 1), (vec![64], vec![32]));
    }

    #[test]
    fn everything_is_covered_once() {
        for (chip, unit) in [("rk3588", 32), ("rk3576", 32), ("rk3562", 16)] {
            for size in (1..12_000).step_by(37) {
                for cores in 1..=3 {
                    let chip = Chip::find(Some(chip)).unwrap();
                    let cut = Cut::new(chip, Numbers::F16, size, size, cores);
                    for (ranges, unit) in [(&cut.segments, K_UNIT), (&cut.slices, unit)] {
                        assert_eq!(ranges[0].start, 0);
                        assert!(ranges.windows(2).all(|w| w[0].end == w[1].start));
                        assert!(ranges.iter().all(|r| !r.is_empty() && r.len() % unit == 0));
                        assert_eq!(ranges.last().unwrap().end, size.next_multiple_of(unit));
                    }
                    assert!(cut.slices.iter().all(|s| s.len() <= N_MAX));
                }
            }
        }
    }

    #[test]
    fn four_bits_have_short_sums() {
        let chip = Chip::find(Some("rk3588")).unwrap();
        let cut = Cut::new(chip, Numbers::I4, 2048, 200, 3);
        let len = |ranges: &[Range<usize>]| -> Vec<usize> {
            ranges.iter().map(ExactSizeIterator::len).collect()
        };
        assert_eq!((len(&cut.segments), len(&cut.slices)), (vec![512; 4], vec![128, 64, 64]));
    }

    #[test]
    fn rows_have_buckets() {
        assert_eq!([1, 3, 33, 512].map(bucket), [1, 4, 64, 512]);
    }
}
