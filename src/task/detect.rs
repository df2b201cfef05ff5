//! Boxes out of the outputs of detectors.
//!
//! Detectors differ in how their outputs are laid out; [`Form`] names the usual ways. Whatever the
//! form, candidates below a score are dropped, and of those of one class that overlap the best is
//! kept (greedy non-maximum suppression). What a detector says beside box and class is [`More`].

use super::TaskError;
use super::image::Placement;
use super::outline::{self, Mask, More, Prototypes, Rotated};
use crate::order::sort;
use crate::tensor::Tensor;

/// Most candidates that are compared with each other.
const MAX_CANDIDATES: usize = 4096;

/// How a detector lays out its outputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Two outputs: boxes `[1, n, 4]` and scores `[1, n, classes]`.
    BoxesScores,
    /// One output, `[1, 4 + classes, n]` or its transpose, as YOLOv8's.
    Yolo,
    /// One output, `[1, n, 5 + classes]`: box, confidence that there is anything, one score per
    /// class, as YOLOv5's.
    YoloConfidence,
    /// One output, `[1, anchors * (5 + classes), h, w]` before any activation, as YOLOv2's. Sizes
    /// of the anchors are in cells.
    YoloGrid(Vec<[f32; 2]>),
    /// One output, `[1, n, 6]`: box, score and class number, as of detectors that choose among their boxes
    /// themselves.
    BoxScoreClass,
}

/// What the four numbers of a box are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corners {
    /// Left, top, right, bottom.
    Edges,
    /// Column and row of the middle, width, height.
    Middle,
    /// Top, left, bottom, right.
    EdgesRowsFirst,
}

/// How detections are read from outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Detect {
    /// Layout of the outputs.
    pub form: Form,
    /// Meaning of a box's numbers.
    pub corners: Corners,
    /// Whether they are fractions of the input's size, instead of pixels.
    pub fractions: bool,
    /// A class that stands for nothing.
    pub background: Option<usize>,
    /// Least score.
    pub threshold: f32,
    /// Greatest overlap (intersection over union) of two boxes of one class.
    pub overlap: f32,
    /// Names of the classes, the background's included; may be empty.
    pub labels: Vec<String>,
    /// What stands behind these numbers of a candidate.
    pub more: Option<More>,
}

/// Something found in a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// Number of its class.
    pub class: usize,
    /// The class's name, or its number.
    pub label: String,
    /// From 0 to 1, if the network's scores are.
    pub score: f32,
    /// Left, top, right and bottom, in pixels of the picture, not beyond its edges.
    pub edges: [f32; 4],
    /// Corners of a box that is turned, column and row of each, one after the other around it; empty for others. They
    /// may lie outside of the picture.
    pub corners: Vec<[f32; 2]>,
    /// Column, row and score (1 where there is none) of each key point.
    pub keypoints: Vec<[f32; 3]>,
    /// The pixels that belong to it, where the detector says so.
    pub mask: Option<Mask>,
}

/// A box with its class, in pixels of the input.
struct Candidate {
    class: usize,
    score: f32,
    edges: [f32; 4],
    turned: Option<Rotated>,
    /// The numbers behind box and class.
    more: Vec<f32>,
}

impl Candidate {
    /// Intersection over union, or what stands for it where boxes are turned.
    fn overlap(&self, other: &Self) -> f32 {
        match (&self.turned, &other.turned) {
            (Some(a), Some(b)) => a.overlap(b),
            _ => overlap(&self.edges, &other.edges),
        }
    }
}

impl Detect {
    /// What is in a picture of `width` x `height` pixels that lay at `placement` in the input, best
    /// first.
    ///
    /// # Errors
    /// [`TaskError::InvalidDetections`] if the outputs do not have the form, [`TaskError::Tensor`]
    /// if they are not f32.
    pub fn read(
        &self,
        outputs: &[&Tensor],
        placement: &Placement,
        [width, height]: [usize; 2],
    ) -> Result<Vec<Detection>, TaskError> {
        let mut found = match &self.form {
            Form::BoxesScores => self.boxes_scores(outputs, placement)?,
            Form::Yolo => self.rows(outputs, placement, false)?,
            Form::YoloConfidence => self.rows(outputs, placement, true)?,
            Form::YoloGrid(anchors) => self.grid(outputs, placement, anchors)?,
            Form::BoxScoreClass => self.chosen(outputs, placement)?,
        };
        // NaN never passes the threshold, so this order is total.
        sort(&mut found, |a, b| b.score.total_cmp(&a.score));
        found.truncate(MAX_CANDIDATES);
        let prototypes = self.prototypes(outputs)?;
        let mut detections = Vec::new();
        for candidate in suppress(found, self.overlap) {
            let Candidate { class, score, edges: [l, t, r, b], turned, more } = candidate;
            let [[l, t], [r, b]] = [[l, t], [r, b]].map(|at| placement.in_picture(at));
            let [left, right] = [l, r].map(|x| x.clamp(0.0, width as f32));
            let [top, bottom] = [t, b].map(|y| y.clamp(0.0, height as f32));
            let edges = [left, top, right, bottom];
            let corners = turned.map(|box_| box_.corners().map(|at| placement.in_picture(at)));
            let keypoints = match self.more {
                Some(More::Keypoints { numbers, .. }) => {
                    let unit = self.unit(placement);
                    outline::keypoints(&more, numbers, unit, placement)
                }
                _ => Vec::new(),
            };
            let mask =
                prototypes.as_ref().map(|p| p.mask(&more, edges, placement, [width, height]));
            let label = self.labels.get(class).cloned().unwrap_or_else(|| class.to_string());
            let corners = corners.into_iter().flatten().collect();
            detections.push(Detection { class, label, score, edges, corners, keypoints, mask });
        }
        Ok(detections)
    }

    /// The other output of a detector that knows which pixels belong to a candidate.
    fn prototypes<'a>(&self, outputs: &[&'a Tensor]) -> Result<Option<Prototypes<'a>>, TaskError> {
        if self.more != Some(More::Mask) {
            return Ok(None);
        }
        let missing = || self.invalid(outputs, "an output [1, numbers, h, w] of masks");
        Prototypes::find(outputs)?.ok_or_else(missing).map(Some)
    }

    /// How many numbers stand behind box and class.
    fn more(&self, outputs: &[&Tensor]) -> Result<usize, TaskError> {
        Ok(match self.more {
            None => 0,
            Some(More::Angle) => 1,
            Some(More::Keypoints { count, numbers }) => count * numbers,
            Some(More::Mask) => self.prototypes(outputs)?.map_or(0, |p| p.count),
        })
    }

    /// A candidate of the numbers of its box and of those behind.
    fn candidate(
        &self,
        (class, score): (usize, f32),
        box_: [f32; 4],
        more: Vec<f32>,
        placement: &Placement,
    ) -> Candidate {
        let edges = self.edges(box_, placement);
        let angle = more.first().filter(|_| self.more == Some(More::Angle));
        let turned = angle.map(|angle| Rotated::new(edges, *angle));
        let edges = turned.as_ref().map_or(edges, Rotated::edges);
        Candidate { class, score, edges, turned, more }
    }

    fn invalid(&self, outputs: &[&Tensor], expected: &'static str) -> TaskError {
        let dims = outputs.iter().map(|t| t.dims()).collect();
        TaskError::InvalidDetections { dims, expected }
    }

    /// The class of the best score that is not the background's, if it passes.
    fn best(&self, scores: impl Iterator<Item = f32>) -> Option<(usize, f32)> {
        let real = scores.enumerate().filter(|(class, _)| Some(*class) != self.background);
        let best = real.fold(None, |best: Option<(usize, f32)>, (class, score)| match best {
            Some((_, least)) if score <= least || score.is_nan() => best,
            _ if score.is_nan() => best,
            _ => Some((class, score)),
        });
        best.filter(|(_, score)| *score >= self.threshold)
    }

    /// Pixels of the input per unit of its columns and rows.
    fn unit(&self, placement: &Placement) -> [f32; 2] {
        placement.size.map(|n| if self.fractions { n as f32 } else { 1.0 })
    }

    /// Edges in pixels of the input.
    fn edges(&self, b: [f32; 4], placement: &Placement) -> [f32; 4] {
        let [width, height] = self.unit(placement);
        let [l, t, r, b] = match self.corners {
            Corners::Edges => b,
            Corners::EdgesRowsFirst => [b[1], b[0], b[3], b[2]],
            Corners::Middle => {
                let [x, y, w, h] = b;
                [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
            }
        };
        [l * width, t * height, r * width, b * height]
    }

    fn boxes_scores(
        &self,
        outputs: &[&Tensor],
        placement: &Placement,
    ) -> Result<Vec<Candidate>, TaskError> {
        let expected = "boxes [1, n, 4] and scores [1, n, classes]";
        let fail = || self.invalid(outputs, expected);
        let matrix = |t: &Tensor| match t.dims()[..] {
            [1, n, c] | [n, c] => Some((n, c)),
            _ => None,
        };
        let pairs = outputs.iter().flat_map(|a| outputs.iter().map(move |b| (a, b)));
        let (boxes, scores, n, classes) = pairs
            .filter_map(|(a, b)| {
                let ((n, four), (m, classes)) = (matrix(a)?, matrix(b)?);
                let distinct = !core::ptr::eq(*a, *b);
                (distinct && n == m && four == 4 && classes > 0).then_some((a, b, n, classes))
            })
            // A detector of four classes: boxes come first.
            .next()
            .ok_or_else(fail)?;
        let (boxes, scores) = (boxes.as_slice::<f32>()?, scores.as_slice::<f32>()?);
        let mut found = Vec::new();
        for i in 0..n {
            let row = scores[i * classes..][..classes].iter().copied();
            if let Some(best) = self.best(row) {
                let b = [0, 1, 2, 3].map(|k| boxes[i * 4 + k]);
                found.push(self.candidate(best, b, Vec::new(), placement));
            }
        }
        Ok(found)
    }

    fn rows(
        &self,
        outputs: &[&Tensor],
        placement: &Placement,
        confidence: bool,
    ) -> Result<Vec<Candidate>, TaskError> {
        let expected = if confidence { "[1, n, 5 + classes]" } else { "[1, 4 + classes, n]" };
        let first = if confidence { 5 } else { 4 };
        let fail = || self.invalid(outputs, expected);
        let output = outputs.iter().find(|t| t.dims().len() == 3).ok_or_else(fail)?;
        let [1, a, b] = output.dims()[..] else { return Err(fail()) };
        let more = self.more(outputs)?;
        // Rows are candidates; without names of the classes, there are more candidates than numbers.
        let width = first + self.labels.len() + more;
        let last = match (self.labels.is_empty(), a == width, b == width) {
            (false, _, true) => true,
            (false, true, false) => false,
            (true, ..) => b < a,
            _ => return Err(fail()),
        };
        let (n, width) = if last { (a, b) } else { (b, a) };
        if width <= first + more {
            return Err(fail());
        }
        let scores = first..width - more;
        let values = output.as_slice::<f32>()?;
        let at = |i: usize, k: usize| if last { values[i * width + k] } else { values[k * n + i] };
        let mut found = Vec::new();
        for i in 0..n {
            let any = if confidence { at(i, 4) } else { 1.0 };
            if let Some(best) = self.best(scores.clone().map(|k| any * at(i, k))) {
                let b = [0, 1, 2, 3].map(|k| at(i, k));
                let more = (scores.end..width).map(|k| at(i, k)).collect();
                found.push(self.candidate(best, b, more, placement));
            }
        }
        Ok(found)
    }

    fn chosen(
        &self,
        outputs: &[&Tensor],
        placement: &Placement,
    ) -> Result<Vec<Candidate>, TaskError> {
        let fail = || self.invalid(outputs, "[1, n, 6]: box, score and class");
        let output = outputs.iter().find(|t| t.dims().len() == 3).ok_or_else(fail)?;
        let width = 6 + self.more(outputs)?;
        if !matches!(output.dims()[..], [1, _, last] if last == width) {
            return Err(fail());
        }
        let values = output.as_slice::<f32>()?;
        let mut found = Vec::new();
        for row in values.chunks_exact(width) {
            let (score, class) = (row[4], row[5]);
            if score >= self.threshold && class >= 0.0 && Some(class as usize) != self.background {
                let b = [0, 1, 2, 3].map(|k| row[k]);
                let best = (class as usize, score);
                found.push(self.candidate(best, b, row[6..].to_vec(), placement));
            }
        }
        Ok(found)
    }

    fn grid(
        &self,
        outputs: &[&Tensor],
        placement: &Placement,
        anchors: &[[f32; 2]],
    ) -> Result<Vec<Candidate>, TaskError> {
        let fail = || self.invalid(outputs, "[1, anchors * (5 + classes), h, w]");
        let output = outputs.first().ok_or_else(fail)?;
        let [1, channels, h, w] = output.dims()[..] else { return Err(fail()) };
        let each = channels / anchors.len().max(1);
        if each <= 5 || each * anchors.len() != channels {
            return Err(fail());
        }
        let values = output.as_slice::<f32>()?;
        let sigmoid = |v: f32| 1.0 / (1.0 + (-v).exp());
        let cell = [placement.size[0] as f32 / w as f32, placement.size[1] as f32 / h as f32];
        let mut found = Vec::new();
        for (a, anchor) in anchors.iter().enumerate() {
            for i in 0..h * w {
                let at = |k: usize| values[(a * each + k) * h * w + i];
                let greatest = (5..each).map(at).fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = (5..each).map(|k| (at(k) - greatest).exp()).sum();
                let any = sigmoid(at(4));
                let scores = (5..each).map(|k| any * (at(k) - greatest).exp() / sum);
                if let Some((class, score)) = self.best(scores) {
                    let x = ((i % w) as f32 + sigmoid(at(0))) * cell[0];
                    let y = ((i / w) as f32 + sigmoid(at(1))) * cell[1];
                    let half = [2, 3].map(|k| at(k).exp() * anchor[k - 2] * cell[k - 2] / 2.0);
                    let edges = [x - half[0], y - half[1], x + half[0], y + half[1]];
                    found.push(Candidate { class, score, edges, turned: None, more: Vec::new() });
                }
            }
        }
        Ok(found)
    }
}

/// The candidates, best first, without those that overlap a better one of their class.
fn suppress(candidates: Vec<Candidate>, most: f32) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        let hidden = |k: &Candidate| k.class == candidate.class && k.overlap(&candidate) > most;
        if candidate.edges.iter().all(|v| v.is_finite()) && !kept.iter().any(hidden) {
            kept.push(candidate);
        }
    }
    kept
}

/// Intersection over union.
fn overlap(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let area = |e: &[f32; 4]| (e[2] - e[0]).max(0.0) * (e[3] - e[1]).max(0.0);
    let both = [a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])];
    let union = area(a) + area(b) - area(&both);
    if union > 0.0 { area(&both) / union } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(form: Form) -> Detect {
        Detect {
            form,
            corners: Corners::Edges,
            fractions: true,
            background: None,
            threshold: 0.5,
            overlap: 0.4,
            labels: ["cat", "dog"].map(String::from).to_vec(),
            more: None,
        }
    }

    /// A picture of 200 x 100 pixels stretched to an input of 100 x 100.
    const PLACEMENT: Placement =
        Placement { size: [100, 100], scale: [0.5, 1.0], offset: [0.0; 2] };

    #[test]
    fn overlapping_boxes_of_a_class_are_one() {
        let boxes = [
            [0.1f32, 0.1, 0.5, 0.5],
            [0.12, 0.1, 0.5, 0.5],
            [0.1, 0.1, 0.5, 0.5],
            [0.6, 0.6, 1.2, 0.9],
            [0.0, 0.0, 0.1, 0.1],
        ];
        let scores = [[0.7f32, 0.1], [0.9, 0.2], [0.1, 0.6], [0.0, 0.8], [0.4, f32::NAN]];
        let boxes = Tensor::from_slice(&[1, 5, 4], boxes.as_flattened()).unwrap();
        let scores = Tensor::from_slice(&[1, 5, 2], scores.as_flattened()).unwrap();
        let detect = detect(Form::BoxesScores);
        for outputs in [[&boxes, &scores], [&scores, &boxes]] {
            let found = detect.read(&outputs, &PLACEMENT, [200, 100]).unwrap();
            let names: Vec<&str> = found.iter().map(|d| d.label.as_str()).collect();
            assert_eq!(names, ["cat", "dog", "dog"]);
            assert_eq!(found[0].edges, [24.0, 10.0, 100.0, 50.0]);
            // Cut off at the picture's edge.
            assert_eq!(found[1].edges[2], 200.0);
        }
        assert!(detect.read(&[&scores], &PLACEMENT, [200, 100]).is_err());
    }

    #[test]
    fn yolo_rows_are_read_both_ways_round() {
        // Middle, size, two classes; three candidates.
        let rows =
            [[50f32, 50.0, 20.0, 10.0, 0.9, 0.0], [0.0; 6], [10.0, 10.0, 4.0, 4.0, 0.0, 0.6]];
        let columns: Vec<f32> = (0..18).map(|i| rows[i % 3][i / 3]).collect();
        let detect = Detect { corners: Corners::Middle, fractions: false, ..detect(Form::Yolo) };
        let a = Tensor::from_slice(&[1, 3, 6], rows.as_flattened()).unwrap();
        let b = Tensor::from_slice(&[1, 6, 3], &columns).unwrap();
        for output in [a, b] {
            let found = detect.read(&[&output], &PLACEMENT, [200, 100]).unwrap();
            assert_eq!(found.len(), 2);
            assert_eq!(found[0].edges, [80.0, 45.0, 120.0, 55.0]);
            assert_eq!((found[1].label.as_str(), found[1].score), ("dog", 0.6));
        }
        let other = Tensor::from_slice(&[1, 3, 7], &[0f32; 21]).unwrap();
        assert!(detect.read(&[&other], &PLACEMENT, [200, 100]).is_err());
    }

    #[test]
    fn grids_of_anchors_are_decoded() {
        // One anchor, two classes, one row of two cells; the second cell holds a dog.
        let mut values = [0f32; 14];
        for (k, v) in [0.0, 0.0, 0.0, 0.0, 9.0, -9.0, 9.0].into_iter().enumerate() {
            values[k * 2 + 1] = v;
            values[k * 2] = if k == 4 { -9.0 } else { 0.0 };
        }
        let output = Tensor::from_slice(&[1, 7, 1, 2], &values).unwrap();
        let detect = detect(Form::YoloGrid(vec![[1.0, 0.5]]));
        let found = detect.read(&[&output], &PLACEMENT, [200, 100]).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].label, "dog");
        // The middle of the second cell of 50 x 100; the anchor is 50 x 50 of the input.
        assert_eq!(found[0].edges, [100.0, 25.0, 200.0, 75.0]);
    }
}
