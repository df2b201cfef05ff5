//! What some detectors say of a thing beside its box: an angle, key points, or which pixels it has.

use std::borrow::Cow;

use super::image::Placement;
use crate::tensor::{Tensor, TensorError};

/// What stands behind box and class of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// One number: the angle by which the box is turned around its middle, in radians, from columns towards rows.
    Angle,
    /// Key points, each of two (column, row) or three numbers (and its score).
    Keypoints {
        /// Key points of a candidate.
        count: usize,
        /// Numbers of a key point, 2 or 3.
        numbers: usize,
    },
    /// As many numbers as another output, `[1, numbers, h, w]`, has planes. A pixel belongs to the thing if the sum
    /// of the planes, each times its number, is positive there (YOLACT, <https://arxiv.org/abs/1904.02689>).
    Mask,
}

/// Pixels of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Rows and columns of the picture.
    pub size: [usize; 2],
    /// Lengths of runs of pixels outside and inside in turn, from the first column to the last, from top to bottom in
    /// each: the uncompressed run lengths of COCO.
    pub runs: Vec<usize>,
}

impl Mask {
    /// Columns and rows of the pixels inside.
    pub fn pixels(&self) -> impl Iterator<Item = [usize; 2]> {
        let height = self.size[0].max(1);
        let mut end = 0;
        let ends = self.runs.iter().map(move |run| {
            end += run;
            (end - run, end)
        });
        let inside = ends.skip(1).step_by(2).flat_map(|(first, end)| first..end);
        inside.map(move |i| [i / height, i % height])
    }

    fn push(&mut self, inside: bool, count: usize) {
        if count == 0 {
            return;
        }
        // The first run is one of pixels outside.
        let last_is_inside = self.runs.len().is_multiple_of(2);
        match self.runs.last_mut() {
            Some(run) if last_is_inside == inside => *run += count,
            None if inside => self.runs.extend([0, count]),
            _ => self.runs.push(count),
        }
    }
}

/// A box that is turned, in pixels of the input.
pub(super) struct Rotated {
    middle: [f32; 2],
    size: [f32; 2],
    /// Its direction.
    cos: f32,
    sin: f32,
}

impl Rotated {
    pub(super) fn new([l, t, r, b]: [f32; 4], angle: f32) -> Self {
        let (sin, cos) = angle.sin_cos();
        Self { middle: [(l + r) / 2.0, (t + b) / 2.0], size: [r - l, b - t], cos, sin }
    }

    /// Columns and rows of its corners, one after the other around it.
    pub(super) fn corners(&self) -> [[f32; 2]; 4] {
        let [w, h] = self.size.map(|n| n / 2.0);
        [[w, h], [w, -h], [-w, -h], [-w, h]].map(|[x, y]| {
            let [middle_x, middle_y] = self.middle;
            [middle_x + x * self.cos - y * self.sin, middle_y + x * self.sin + y * self.cos]
        })
    }

    /// The upright box around it.
    pub(super) fn edges(&self) -> [f32; 4] {
        let [w, h] = self.size.map(|n| n.abs() / 2.0);
        let (cos, sin) = (self.cos.abs(), self.sin.abs());
        let [x, y] = self.middle;
        let [half_w, half_h] = [w * cos + h * sin, w * sin + h * cos];
        [x - half_w, y - half_h, x + half_w, y + half_h]
    }

    /// How much alike two boxes are as normal distributions, 1 less Hellinger's distance (ProbIoU,
    /// <https://arxiv.org/abs/2106.06072>), which is what such detectors are trained with.
    pub(super) fn overlap(&self, other: &Self) -> f32 {
        const TINY: f32 = 1e-7;
        let covariance = |r: &Self| {
            let [w, h] = r.size.map(|n| n * n / 12.0);
            let (cos, sin) = (r.cos * r.cos, r.sin * r.sin);
            [w * cos + h * sin, w * sin + h * cos, (w - h) * r.cos * r.sin]
        };
        let determinant = |[a, b, c]: [f32; 3]| a * b - c * c;
        let (first, second) = (covariance(self), covariance(other));
        let [a, b, c] = [0, 1, 2].map(|i| first[i] + second[i]);
        let [x, y] = [0, 1].map(|i| self.middle[i] - other.middle[i]);
        let both = determinant([a, b, c]);
        let apart = (a * y * y + b * x * x - 2.0 * c * x * y) / (both + TINY) / 4.0;
        let each = determinant(first).max(0.0) * determinant(second).max(0.0);
        let unlike = (both / (4.0 * each.sqrt() + TINY) + TINY).ln() / 2.0;
        let distance = (apart + unlike).clamp(TINY, 100.0);
        1.0 - (1.0 - (-distance).exp() + TINY).sqrt()
    }
}

/// Key points of a candidate in pixels of the picture; `unit` is what 1 stands for in pixels of the input.
pub(super) fn keypoints(
    values: &[f32],
    numbers: usize,
    unit: [f32; 2],
    placement: &Placement,
) -> Vec<[f32; 3]> {
    let point = |p: &[f32]| {
        let [x, y] = placement.in_picture([p[0] * unit[0], p[1] * unit[1]]);
        [x, y, p.get(2).copied().unwrap_or(1.0)]
    };
    values.chunks_exact(numbers).map(point).collect()
}

/// Planes whose sums are masks.
pub(super) struct Prototypes<'a> {
    pub(super) count: usize,
    height: usize,
    width: usize,
    values: Cow<'a, [f32]>,
}

impl<'a> Prototypes<'a> {
    /// The first output `[1, count, height, width]`.
    pub(super) fn find(outputs: &[&'a Tensor]) -> Result<Option<Self>, TensorError> {
        for output in outputs {
            if let [1, count, height, width] = output.dims()[..] {
                let values = output.as_slice::<f32>()?;
                return Ok(Some(Self { count, height, width, values }));
            }
        }
        Ok(None)
    }

    /// The pixels of a picture inside of `edges` for which the sum of planes is positive, between their elements by
    /// linear interpolation.
    pub(super) fn mask(
        &self,
        numbers: &[f32],
        edges: [f32; 4],
        placement: &Placement,
        [width, height]: [usize; 2],
    ) -> Mask {
        // Pixels whose first corner is inside, as detectors of this kind are trained.
        let [left, top, right, bottom] = edges.map(|v| v.ceil() as usize);
        let (columns, rows) = (left..right.min(width), top..bottom.min(height));
        let mut mask = Mask { size: [height, width], runs: Vec::new() };
        if columns.is_empty() || rows.is_empty() || self.values.is_empty() {
            mask.push(false, width * height);
            return mask;
        }
        let taps = |pixels: &core::ops::Range<usize>, axis: usize, extent: usize| {
            let step = extent as f32 / placement.size[axis] as f32;
            let tap = |pixel: usize| {
                let at = (pixel as f32 + 0.5) * placement.scale[axis] + placement.offset[axis];
                let at = (at * step - 0.5).clamp(0.0, (extent - 1) as f32);
                (at as usize, at.fract())
            };
            pixels.clone().map(tap).collect::<Vec<_>>()
        };
        let (xs, ys) = (taps(&columns, 0, self.width), taps(&rows, 1, self.height));
        let range = |taps: &[(usize, f32)], extent: usize| {
            taps[0].0..(taps[taps.len() - 1].0 + 2).min(extent)
        };
        // Only what the box needs of the sum, row by row.
        let (used_x, used_y) = (range(&xs, self.width), range(&ys, self.height));
        let mut sums = vec![0f32; used_x.len() * used_y.len()];
        for (plane, number) in self.values.chunks_exact(self.height * self.width).zip(numbers) {
            for (sums, y) in sums.chunks_exact_mut(used_x.len()).zip(used_y.clone()) {
                let row = &plane[y * self.width..][used_x.clone()];
                sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v * number);
            }
        }
        mask.push(false, columns.start * height);
        for (x, between_x) in xs {
            mask.push(false, rows.start);
            let x = x - used_x.start;
            let next_x = (x + 1).min(used_x.len() - 1);
            for &(y, between_y) in &ys {
                let y = y - used_y.start;
                let next_y = (y + 1).min(used_y.len() - 1);
                let at = |y: usize| {
                    let row = &sums[y * used_x.len()..];
                    row[x] + (row[next_x] - row[x]) * between_x
                };
                mask.push(at(y) + (at(next_y) - at(y)) * between_y > 0.0, 1);
            }
            mask.push(false, height - rows.end);
        }
        mask.push(false, (width - columns.end) * height);
        mask
    }
}

impl Placement {
    /// Where a point of the input lies in the picture.
    pub(super) fn in_picture(&self, at: [f32; 2]) -> [f32; 2] {
        [0, 1].map(|i| (at[i] - self.offset[i]) / self.scale[i])
    }
}

#[cfg(test)]
mod tests {
    use super::super::detect::{Corners, Detect, Form};
    use super::*;

    /// A picture of 8 x 4 pixels in the middle of an input of 8 x 8.
    const PLACEMENT: Placement = Placement { size: [8, 8], scale: [1.0; 2], offset: [0.0, 2.0] };

    fn detect(form: Form, more: More) -> Detect {
        Detect {
            form,
            corners: Corners::Middle,
            fractions: false,
            background: None,
            threshold: 0.5,
            overlap: 0.4,
            labels: vec!["thing".into()],
            more: Some(more),
        }
    }

    #[test]
    fn masks_are_sums_of_planes_inside_of_boxes() {
        // The left half is positive in one plane, the lower half in the other.
        let planes = [[1f32, -1.0, 1.0, -1.0], [-1.0, -1.0, 1.0, 1.0]];
        let planes = Tensor::from_slice(&[1, 2, 2, 2], planes.as_flattened()).unwrap();
        let rows = [
            [4f32, 4.0, 6.0, 8.0, 0.9, 1.0, 0.0],
            [4.0, 4.0, 2.0, 4.0, 0.3, 0.0, 1.0],
            [7.0, 4.0, 2.0, 4.0, 0.8, 0.0, 1.0],
        ];
        let rows = Tensor::from_slice(&[1, 3, 7], rows.as_flattened()).unwrap();
        let found = detect(Form::Yolo, More::Mask).read(&[&rows, &planes], &PLACEMENT, [8, 4]);
        let found = found.unwrap();
        let [left, lower] = &found[..] else { panic!("{found:?}") };
        // Columns 1 to 3 of four rows, after one column outside.
        let mask = left.mask.clone().unwrap();
        assert_eq!(mask, Mask { size: [4, 8], runs: vec![4, 12, 16] });
        assert_eq!(mask.pixels().next(), Some([1, 0]));
        assert_eq!(mask.pixels().last(), Some([3, 3]));
        assert_eq!(lower.mask.as_ref().unwrap().runs, [26, 2, 2, 2]);
        assert!(detect(Form::Yolo, More::Mask).read(&[&rows], &PLACEMENT, [8, 4]).is_err());
    }

    #[test]
    fn masks_that_begin_with_the_first_pixel_and_boxes_without_pixels() {
        let planes = Tensor::from_slice(&[1, 1, 1, 1], &[1f32]).unwrap();
        let prototypes = Prototypes::find(&[&planes]).unwrap().unwrap();
        let mask = |edges| prototypes.mask(&[1.0], edges, &PLACEMENT, [8, 4]).runs;
        assert_eq!(mask([0.0, 0.0, 8.0, 4.0]), [0, 32]);
        assert_eq!(mask([3.0, 1.0, 3.0, 4.0]), [32]);
        let none = Tensor::from_slice(&[1, 1, 0, 4], &[0f32; 0]).unwrap();
        let prototypes = Prototypes::find(&[&none]).unwrap().unwrap();
        assert_eq!(prototypes.mask(&[1.0], [0.0, 0.0, 8.0, 4.0], &PLACEMENT, [8, 4]).runs, [32]);
    }

    #[test]
    fn key_points_lie_in_the_picture() {
        let rows = [[4f32, 4.0, 2.0, 2.0, 0.9, 0.0, 1.0, 3.0, 0.5, 6.0, 5.0, 0.25]];
        let rows = Tensor::from_slice(&[1, 1, 12], rows.as_flattened()).unwrap();
        let more = More::Keypoints { count: 2, numbers: 3 };
        let found = detect(Form::BoxScoreClass, more).read(&[&rows], &PLACEMENT, [8, 4]).unwrap();
        assert_eq!(found[0].keypoints, [[1.0, 1.0, 0.5], [6.0, 3.0, 0.25]]);
        let more = More::Keypoints { count: 3, numbers: 2 };
        let found = detect(Form::BoxScoreClass, more).read(&[&rows], &PLACEMENT, [8, 4]).unwrap();
        assert_eq!(found[0].keypoints[0], [1.0, 1.0, 1.0]);
        let more = More::Keypoints { count: 2, numbers: 2 };
        assert!(detect(Form::BoxScoreClass, more).read(&[&rows], &PLACEMENT, [8, 4]).is_err());
    }

    #[test]
    fn turned_boxes_overlap_as_they_lie() {
        let eighth = core::f32::consts::FRAC_PI_4;
        let rows = [
            [4f32, 4.0, 4.0, 1.0, 0.9, eighth],
            // The same, with the sides changed about.
            [4.0, 4.0, 1.0, 4.0, 0.8, 3.0 * eighth],
            // Across it.
            [4.0, 4.0, 4.0, 1.0, 0.7, -eighth],
        ];
        let rows = Tensor::from_slice(&[1, 3, 6], rows.as_flattened()).unwrap();
        let found = detect(Form::Yolo, More::Angle).read(&[&rows], &PLACEMENT, [8, 4]).unwrap();
        let scores: Vec<f32> = found.iter().map(|d| d.score).collect();
        assert_eq!(scores, [0.9, 0.7]);
        let reach = 2.5 * eighth.cos();
        let [left, _, right, _] = found[0].edges;
        assert!((left - (4.0 - reach)).abs() < 1e-5 && (right - (4.0 + reach)).abs() < 1e-5);
        let far = (2.0 - 0.5) * eighth.cos();
        let [x, y] = found[0].corners[0];
        assert!((x - (4.0 + far)).abs() < 1e-5 && (y - (2.0 + reach)).abs() < 1e-5);
    }

    #[test]
    fn unlike_boxes_have_no_overlap_and_equal_ones_all() {
        let box_ = |x: f32, angle| Rotated::new([x, 0.0, x + 4.0, 2.0], angle);
        assert!(box_(0.0, 0.3).overlap(&box_(0.0, 0.3)) > 0.999);
        assert!(box_(0.0, 0.3).overlap(&box_(100.0, 0.3)) < 1e-3);
    }
}
