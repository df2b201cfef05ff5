//! Boxes that do not overlap better ones.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::GraphError;
use crate::graph::ops::elements::rank;
use crate::tensor::Tensor;

/// Parameters of [`non_max_suppression`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonMaxSuppression {
    /// Whether boxes are centre, width and height instead of two corners.
    pub center_point: bool,
    /// Most boxes per batch and class.
    pub most: usize,
    /// Boxes that share more of their union with a better one than this are left out.
    pub iou: f32,
    /// Least score, exclusive; `None` for any.
    pub score: Option<f32>,
}

const OP: &str = "non_max_suppression";

/// The boxes to keep, best first per batch and class, as ONNX `NonMaxSuppression` (opset 11).
///
/// `boxes` is `f32 [batch, count, 4]`, `scores` `f32 [batch, classes, count]`; the result `i64
/// [kept, 3]`: batch, class, box. Of equal scores the box that comes first is better; a score that is
/// not a number is never kept.
///
/// # Errors
/// Operands of other types or shapes, lack of memory.
pub fn non_max_suppression(
    boxes: &Tensor,
    scores: &Tensor,
    p: &NonMaxSuppression,
) -> Result<Tensor, GraphError> {
    let (b, s) = (boxes.dims(), scores.dims());
    let (&[batches, count, 4], &[score_batches, classes, score_count]) = (&b[..], &s[..]) else {
        return Err(mismatch(&b, &s));
    };
    if (batches, count) != (score_batches, score_count) {
        return Err(mismatch(&b, &s));
    }
    let (corners, scores) = (boxes.as_slice::<f32>()?, scores.as_slice::<f32>()?);
    let corners: Vec<[f32; 4]> = corners
        .chunks_exact(4)
        .map(|c| ordered([c[0], c[1], c[2], c[3]], p.center_point))
        .collect();
    let mut kept: Vec<i64> = Vec::new();
    if p.most == 0 || count == 0 {
        return Ok(Tensor::from_slice(&[0, 3], &kept)?);
    }
    for (i, scores) in scores.chunks_exact(count).enumerate() {
        let (batch, class) = (i / classes, i % classes);
        let corners = &corners[batch * count..][..count];
        let enough = |s: f32| p.score.map_or(!s.is_nan(), |least| s > least);
        // Most of the order is seldom asked for.
        let ranked = (0..count).filter(|&j| enough(scores[j]));
        let mut ranked: BinaryHeap<_> = ranked.map(|j| (rank(scores[j]), Reverse(j))).collect();
        let mut chosen = Chosen::of(ranked.iter().map(|(_, Reverse(j))| &corners[*j]));
        while chosen.count < p.most {
            let Some((_, Reverse(j))) = ranked.pop() else { break };
            if chosen.leave(&corners[j], p.iou) {
                chosen.push(&corners[j]);
                kept.extend([batch as i64, class as i64, j as i64]);
            }
        }
    }
    Ok(Tensor::from_slice(&[kept.len() / 3, 3], &kept)?)
}

fn mismatch(boxes: &[usize], scores: &[usize]) -> GraphError {
    let rule = "boxes must be [batch, count, 4] and scores [batch, classes, count]";
    GraphError::mismatch(OP, rule, &[("boxes", boxes), ("scores", scores)])
}

/// Lower and upper corner.
fn ordered(b: [f32; 4], center_point: bool) -> [f32; 4] {
    if center_point {
        let [x, y, w, h] = b;
        [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
    } else {
        [b[0].min(b[2]), b[1].min(b[3]), b[0].max(b[2]), b[1].max(b[3])]
    }
}

/// Boxes that were chosen, by where they lie, in groups that a compiler makes vectors of: most of the time goes into
/// comparing.
struct Chosen {
    buckets: Vec<Bucket>,
    /// Where the first bucket begins, and buckets per element.
    low: f32,
    scale: f32,
    count: usize,
}

/// Boxes whose centres are neighbours along the first axis.
#[derive(Clone)]
struct Bucket {
    /// The least of their lower and the largest of their upper corners.
    bounds: [f32; 4],
    groups: Vec<[[f32; GROUP]; 4]>,
    count: usize,
}

const GROUP: usize = 16;

/// Most buckets; and candidates that one is worth.
const BUCKETS: usize = 64;
const PER_BUCKET: usize = 128;

impl Chosen {
    /// None of `candidates`, of which the boxes to come are.
    fn of<'a>(candidates: impl Iterator<Item = &'a [f32; 4]>) -> Self {
        let (mut low, mut high, mut count) = (f32::INFINITY, f32::NEG_INFINITY, 0);
        for b in candidates {
            (low, high, count) = (low.min(b[0]), high.max(b[2]), count + 1);
        }
        let buckets = (count / PER_BUCKET).clamp(1, BUCKETS);
        let bounds = [f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
        let bucket = Bucket { bounds, groups: Vec::new(), count: 0 };
        Self { buckets: vec![bucket; buckets], low, scale: buckets as f32 / (high - low), count: 0 }
    }

    fn push(&mut self, b: &[f32; 4]) {
        // What is no number falls into the first.
        let at = ((b[0] + b[2]) / 2.0 - self.low) * self.scale;
        let last = self.buckets.len() - 1;
        let bucket = &mut self.buckets[(at as usize).min(last)];
        let at = bucket.count % GROUP;
        if at == 0 {
            bucket.groups.push([[f32::NAN; GROUP]; 4]);
        }
        if let Some(group) = bucket.groups.last_mut() {
            group.iter_mut().zip(b).for_each(|(list, &v)| list[at] = v);
        }
        for (i, (bound, &v)) in bucket.bounds.iter_mut().zip(b).enumerate() {
            *bound = if i < 2 { bound.min(v) } else { bound.max(v) };
        }
        bucket.count += 1;
        self.count += 1;
    }

    /// Whether no chosen box shares more than `iou` of the union with `b`.
    fn leave(&self, b: &[f32; 4], iou: f32) -> bool {
        if iou < 0.0 {
            // All share more.
            return self.count == 0;
        }
        let meets = |g: &[f32; 4]| g[0] < b[2] && b[0] < g[2] && g[1] < b[3] && b[1] < g[3];
        let near = self.buckets.iter().filter(|bucket| meets(&bucket.bounds));
        near.flat_map(|bucket| &bucket.groups).all(|g| {
            // Most pairs lie apart.
            let [x0, y0, x1, y1] = g;
            let mut near = [0u32; GROUP];
            for i in 0..GROUP {
                near[i] = u32::from(x0[i] < b[2]) & u32::from(b[0] < x1[i]);
                near[i] &= u32::from(y0[i] < b[3]) & u32::from(b[1] < y1[i]);
            }
            let mut boxes = (0..GROUP).filter(|&i| near[i] != 0).map(|i| g.map(|list| list[i]));
            boxes.all(|a| overlap(&a, b) <= iou)
        })
    }
}

/// What two boxes share, relative to their union; 0 for boxes without area.
fn overlap(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let area = |b: &[f32; 4]| (b[2] - b[0]) * (b[3] - b[1]);
    let sides = [0, 1].map(|i| (a[i + 2].min(b[i + 2]) - a[i].max(b[i])).max(0.0));
    let shared = sides[0] * sides[1];
    let union = area(a) + area(b) - shared;
    if area(a) <= 0.0 || area(b) <= 0.0 || union <= 0.0 { 0.0 } else { shared / union }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: NonMaxSuppression =
        NonMaxSuppression { center_point: false, most: 3, iou: 0.5, score: Some(0.0) };

    fn boxes() -> Tensor {
        let v = [
            0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 1.0, 0.9, 0.0, -0.1, 0.0, 10.0, 1.0, 11.0, 0.0,
            10.1, 1.0, 11.1, 0.0, 100.0, 1.0, 101.0,
        ];
        Tensor::from_slice(&[1, 6, 4], &v.map(|x: f64| x as f32)).unwrap()
    }

    fn kept(scores: &[f32; 6], p: &NonMaxSuppression) -> Vec<i64> {
        let scores = Tensor::from_slice(&[1, 1, 6], scores).unwrap();
        let y = non_max_suppression(&boxes(), &scores, p).unwrap();
        y.as_slice::<i64>().unwrap().chunks(3).map(|c| c[2]).collect()
    }

    #[test]
    fn the_best_of_each_heap_remain() {
        let scores = [0.9, 0.75, 0.6, 0.95, 0.5, 0.3];
        assert_eq!(kept(&scores, &P), [3, 0, 5]);
        assert_eq!(kept(&scores, &NonMaxSuppression { most: 2, ..P }), [3, 0]);
        assert_eq!(kept(&scores, &NonMaxSuppression { score: Some(0.4), ..P }), [3, 0]);
        assert_eq!(kept(&scores, &NonMaxSuppression { most: 0, ..P }), [0i64; 0]);
        assert_eq!(
            kept(&[0.5; 6], &NonMaxSuppression { most: 9, iou: 1.0, ..P }),
            [0, 1, 2, 3, 4, 5]
        );
        assert_eq!(kept(&[f32::NAN; 6], &NonMaxSuppression { score: None, ..P }), [0i64; 0]);
    }

    /// As many that more groups than one are full, against a plain comparison of all pairs.
    #[test]
    fn many_boxes() {
        let count = 2000usize;
        let at = |i: usize, by: usize, n: usize| (i * by % n) as f32 / 7.0;
        let list: Vec<[f32; 4]> = (0..count)
            .map(|i| {
                let (x, y) = (at(i, 37, 101), at(i, 53, 89));
                [x, y, x + 1.0 + at(i, 11, 13), y + 1.0 + at(i, 17, 19)]
            })
            .collect();
        let scores: Vec<f32> = (0..count).map(|i| (i * 7919 % 1009) as f32 / 1009.0).collect();
        let boxes = Tensor::from_slice(&[1, count, 4], &list.concat()).unwrap();
        let given = Tensor::from_slice(&[1, 1, count], &scores).unwrap();
        for iou in [0.0, 0.2, 0.5, 0.9] {
            let p = NonMaxSuppression { most: count, iou, ..P };
            let mut order: Vec<usize> = (0..count).filter(|&i| scores[i] > 0.0).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let shares = |a: &[f32; 4], b: &[f32; 4]| {
                let side = |i: usize| (a[i + 2].min(b[i + 2]) - a[i].max(b[i])).max(0.0);
                let (both, area) =
                    (side(0) * side(1), |b: &[f32; 4]| (b[2] - b[0]) * (b[3] - b[1]));
                both / (area(a) + area(b) - both)
            };
            let mut wanted: Vec<usize> = Vec::new();
            for i in order {
                if wanted.iter().all(|&k| shares(&list[k], &list[i]) <= iou) {
                    wanted.push(i);
                }
            }
            assert!(wanted.len() > 2 * GROUP, "{}", wanted.len());
            let y = non_max_suppression(&boxes, &given, &p).unwrap();
            let y: Vec<usize> =
                y.as_slice::<i64>().unwrap().chunks(3).map(|c| c[2] as usize).collect();
            assert_eq!(y, wanted);
        }
    }

    #[test]
    fn shapes_are_checked() {
        let scores = Tensor::from_slice(&[1, 1, 5], &[0f32; 5]).unwrap();
        assert!(non_max_suppression(&boxes(), &scores, &P).is_err());
        assert!(non_max_suppression(&scores, &boxes(), &P).is_err());
        let ints = Tensor::from_slice(&[1, 1, 6], &[0i32; 6]).unwrap();
        assert!(non_max_suppression(&boxes(), &ints, &P).is_err());
    }
}
