//! Values between the elements of a tensor.

/// Positions along one axis and their weights: up to four taps.
pub(super) type Taps = Vec<(Option<usize>, f64)>;

/// The weighted sum over the product of taps of all axes; absent positions count as 0.
pub(super) fn sample(x: &[f64], dims: &[usize], taps: &[Taps]) -> f64 {
    let Some((first, rest)) = taps.split_first() else { return x[0] };
    let stride: usize = dims[1..].iter().product();
    let tap = |&(at, weight): &(Option<usize>, f64)| match at {
        Some(at) if weight != 0.0 => weight * sample(&x[at * stride..], &dims[1..], rest),
        _ => 0.0,
    };
    first.iter().map(tap).sum()
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
