//! Values between the elements of a tensor.

use core::ops::Deref;

/// Positions along one axis and their weights: up to four taps, more are left out. There is one of these for each
/// axis of each sample, so they lie in no memory of their own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taps {
    taps: [(Option<usize>, f64); 4],
    len: usize,
}

impl Deref for Taps {
    type Target = [(Option<usize>, f64)];

    fn deref(&self) -> &Self::Target {
        &self.taps[..self.len]
    }
}

impl FromIterator<(Option<usize>, f64)> for Taps {
    fn from_iter<I: IntoIterator<Item = (Option<usize>, f64)>>(taps: I) -> Self {
        let mut out = Self::default();
        for (tap, from) in out.taps.iter_mut().zip(taps) {
            *tap = from;
            out.len += 1;
        }
        out
    }
}

/// Appends the elements that the product of the taps of all axes names, with the products of their
/// weights; absent positions and weights of 0 are left out.
pub(super) fn spread(dims: &[usize], taps: &[Taps], cells: &mut Vec<(usize, f64)>) {
    append(dims, taps, (0, 1.0), cells);
}

fn append(dims: &[usize], taps: &[Taps], from: (usize, f64), cells: &mut Vec<(usize, f64)>) {
    let Some((first, rest)) = taps.split_first() else { return cells.push(from) };
    let stride: usize = dims[1..].iter().product();
    for &(at, weight) in first.iter() {
        if let Some(at) = at.filter(|_| weight != 0.0) {
            append(&dims[1..], rest, (from.0 + at * stride, from.1 * weight), cells);
        }
    }
}

/// The weighted sum of elements.
pub(super) fn sample(x: &[f64], cells: &[(usize, f64)]) -> f64 {
    cells.iter().fold(0.0, |sum, &(at, weight)| sum + weight * x[at])
}

/// The two neighbours of a position and their weights; neighbours outside of the axis are absent.
pub(super) fn linear(at: f64, extent: usize) -> Taps {
    let low = at.floor();
    let weights = [(low, 1.0 - (at - low)), (low + 1.0, at - low)];
    weights.into_iter().map(|(at, w)| (inside(at, extent), w)).collect()
}

/// A whole position as an index, if it lies on the axis.
pub(super) fn inside(at: f64, extent: usize) -> Option<usize> {
    (at >= 0.0 && at < extent as f64).then_some(at as usize)
}
