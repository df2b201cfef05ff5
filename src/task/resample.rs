//! Antialiased triangle-filter resizing of one plane, as Pillow's `BILINEAR` does it.
//!
//! When shrinking, the triangle is widened by the scale, so that every source pixel counts.
//! Networks trained on pictures that Pillow prepared see the same values here, to within the last
//! bit: coefficients and sums are `f64`, and the plane between the two passes is `f32`.

use crate::tensor::TensorError;

/// Weights of one output pixel: first source index, and one factor per source pixel from there.
struct Window {
    first: usize,
    factors: Vec<f64>,
}

/// `plane` (`height * width` values, rows from the top) resized to `new_height` by `new_width`.
///
/// # Panics
/// If `plane` does not have `height * width` values or a size is zero.
pub fn resize(plane: &[f32], from: [usize; 2], to: [usize; 2]) -> Vec<f32> {
    let [height, width] = from;
    assert_eq!(plane.len(), height * width, "one value per pixel");
    let row = |y: usize, line: &mut [f32]| line.copy_from_slice(&plane[y * width..][..width]);
    into([Vec::new(), Vec::new()], &row, from, to)
}

/// The same of a plane whose rows `row` writes where it is told to, so that only a plane as wide as the result is held
/// beside that.
///
/// # Errors
/// [`TensorError::OutOfMemory`].
///
/// # Panics
/// If a size is zero.
pub fn resize_rows(
    row: &dyn Fn(usize, &mut [f32]),
    from: [usize; 2],
    to: [usize; 2],
) -> Result<Vec<f32>, TensorError> {
    let [narrowed, out] = [from[0].saturating_mul(to[1]), to[0].saturating_mul(to[1])];
    let planes = [reserved(narrowed)?, reserved(if from[0] == to[0] { 0 } else { out })?];
    Ok(into(planes, row, from, to))
}

/// An empty plane with room for so many values.
///
/// # Errors
/// [`TensorError::OutOfMemory`].
pub fn reserved(count: usize) -> Result<Vec<f32>, TensorError> {
    let mut plane = Vec::new();
    let lacks = |_| TensorError::OutOfMemory(count.saturating_mul(size_of::<f32>()));
    plane.try_reserve_exact(count).map_err(lacks)?;
    Ok(plane)
}

/// Both, into a plane of the new width and one of the new size.
fn into(
    [mut narrowed, mut out]: [Vec<f32>; 2],
    row: &dyn Fn(usize, &mut [f32]),
    [height, width]: [usize; 2],
    [new_height, new_width]: [usize; 2],
) -> Vec<f32> {
    assert!(height.min(width).min(new_height).min(new_width) > 0, "a plane has at least one pixel");
    let mut line = vec![0.0; width];
    let across = if new_width == width { Vec::new() } else { windows(width, new_width) };
    for y in 0..height {
        row(y, &mut line);
        if new_width == width {
            narrowed.extend_from_slice(&line);
        } else {
            narrowed.extend(across.iter().map(|w| w.sum(|i| line[i])));
        }
    }
    if new_height == height {
        return narrowed;
    }
    for window in &windows(height, new_height) {
        out.extend((0..new_width).map(|x| window.sum(|y| narrowed[y * new_width + x])));
    }
    out
}

impl Window {
    fn sum(&self, value: impl Fn(usize) -> f32) -> f32 {
        let terms = self.factors.iter().enumerate();
        terms.map(|(i, f)| f64::from(value(self.first + i)) * f).sum::<f64>() as f32
    }
}

fn windows(from: usize, to: usize) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let support = scale.max(1.0);
    (0..to)
        .map(|i| {
            let centre = (i as f64 + 0.5) * scale;
            // Truncation towards zero after adding a half, clamped to the plane.
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let mut factors: Vec<f64> = (first..end)
                .map(|j| (1.0 - ((j as f64 - centre + 0.5) / support).abs()).max(0.0))
                .collect();
            let total: f64 = factors.iter().sum();
            if total != 0.0 {
                factors.iter_mut().for_each(|f| *f /= total);
            }
            Window { first, factors }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubling_and_halving_by_hand() {
        // Centres of the four output pixels lie at -1/4, 1/4, 3/4 and 5/4 of the source grid.
        assert_eq!(resize(&[0.0, 4.0], [1, 2], [1, 4]), [0.0, 1.0, 3.0, 4.0]);
        // A triangle of half-width two over 0 1 2 3: weights 3/4 3/4 1/4 at the edge (normalised).
        let halved = resize(&[0.0, 1.0, 2.0, 3.0], [4, 1], [2, 1]);
        let left = (0.75 * 0.0 + 0.75 * 1.0 + 0.25 * 2.0) / 1.75f32;
        assert!((halved[0] - left).abs() < 1e-6 && (halved[1] - (3.0 - left)).abs() < 1e-6);
    }

    #[test]
    fn a_constant_stays_constant() {
        for (from, to) in [([3, 5], [7, 2]), ([16, 9], [4, 9]), ([5, 5], [5, 6])] {
            let out = resize(&vec![0.25; from[0] * from[1]], from, to);
            assert_eq!(out.len(), to[0] * to[1]);
            assert!(out.iter().all(|v| (v - 0.25).abs() < 1e-6));
        }
    }
}
