//! Text from the output of a network trained with connectionist temporal classification.
//!
//! Every step of the output has a score per class: one class is the blank, the others are
//! characters. A text's probability is the sum over all ways to spread its characters over the
//! steps (Graves et al., "Connectionist Temporal Classification", 2006). [`Ctc::greedy`] takes the
//! best class of each step; [`Ctc::beam`] follows the most probable beginnings of texts, which may
//! find a better text where steps are uncertain.

use std::collections::HashMap;

use super::TaskError;
use crate::order::sort;

/// Classes whose probability is below this part of the step's best are not followed by the beam
/// search (natural logarithm).
const BEAM_MARGIN: f64 = 15.0;

/// The classes of a network: a character each, and the blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ctc {
    characters: Vec<char>,
    blank: usize,
}

/// A text read from an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The text.
    pub text: String,
    /// The text's probability under the network, as the geometric mean per character (0 to 1).
    pub confidence: f64,
}

/// Natural logarithms of class probabilities, one row per step.
#[derive(Clone, Debug)]
pub struct LogProbs {
    classes: usize,
    values: Vec<f64>,
}

impl LogProbs {
    /// From a network's scores, `classes` per step. Rows that are probabilities already (none
    /// negative, sums of one) are used as they are; otherwise every row goes through softmax,
    /// which leaves log-probabilities unchanged.
    ///
    /// # Errors
    /// [`TaskError::InvalidScores`] if a score is NaN or infinite, or the rows are not whole.
    pub fn from_scores(scores: &[f32], classes: usize) -> Result<Self, TaskError> {
        let whole = classes > 0 && scores.len().is_multiple_of(classes);
        if !whole || scores.iter().any(|s| s.is_nan() || *s == f32::INFINITY) {
            return Err(TaskError::InvalidScores { scores: scores.len(), classes });
        }
        let rows = || scores.chunks_exact(classes);
        let sum = |row: &[f32]| row.iter().copied().map(f64::from).sum::<f64>();
        let probabilities =
            rows().all(|r| r.iter().all(|s| *s >= 0.0) && (sum(r) - 1.0).abs() < 1e-3);
        let mut values = Vec::with_capacity(scores.len());
        for row in rows() {
            let row = row.iter().copied().map(f64::from);
            if probabilities {
                values.extend(row.map(f64::ln));
            } else {
                let top = row.clone().fold(f64::NEG_INFINITY, f64::max);
                let total = top + row.clone().map(|s| (s - top).exp()).sum::<f64>().ln();
                if !total.is_finite() {
                    return Err(TaskError::InvalidScores { scores: scores.len(), classes });
                }
                values.extend(row.map(|s| s - total));
            }
        }
        Ok(Self { classes, values })
    }

    fn steps(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.classes)
    }
}

impl Ctc {
    /// Classes from the characters of `charset`, in class order, with the blank as class `blank`.
    ///
    /// # Errors
    /// [`TaskError::InvalidMetadata`] if `blank` is beyond the characters.
    pub fn new(charset: &str, blank: usize) -> Result<Self, TaskError> {
        let characters: Vec<char> = charset.chars().collect();
        if blank > characters.len() || characters.is_empty() {
            return Err(TaskError::InvalidMetadata {
                key: super::keys::CTC_BLANK,
                value: blank.to_string(),
                expected: "a class number, at most the number of characters",
            });
        }
        Ok(Self { characters, blank })
    }

    /// Number of classes, the blank included.
    pub fn classes(&self) -> usize {
        self.characters.len() + 1
    }

    /// The best class of every step; repetitions are one, blanks are dropped.
    ///
    /// # Panics
    /// If the scores have another number of classes.
    pub fn greedy(&self, log_probs: &LogProbs) -> Decoded {
        assert_eq!(log_probs.classes, self.classes(), "scores of this network");
        let mut classes = Vec::new();
        let mut last = self.blank;
        for step in log_probs.steps() {
            // The first of equal classes.
            let best = (0..step.len()).rev().max_by(|&a, &b| step[a].total_cmp(&step[b]));
            let best = best.unwrap_or(self.blank);
            if best != last && best != self.blank {
                classes.push(best);
            }
            last = best;
        }
        self.decoded(&classes, log_probs)
    }

    /// The most probable text that a search over the `width` best beginnings finds. It may take a
    /// few milliseconds per line and hundred beginnings.
    ///
    /// # Panics
    /// If the scores have another number of classes, or `width` is zero.
    pub fn beam(&self, log_probs: &LogProbs, width: usize) -> Decoded {
        assert_eq!(log_probs.classes, self.classes(), "scores of this network");
        assert!(width > 0, "a beam has at least one beginning");
        let mut tree = Tree::default();
        let mut beams = vec![Beam { node: 0, blank: 0.0, character: f64::NEG_INFINITY }];
        for step in log_probs.steps() {
            let best = step.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let followed: Vec<usize> = (0..step.len())
                .filter(|&c| c != self.blank && step[c] > best - BEAM_MARGIN)
                .collect();
            let mut next = Next::default();
            for beam in &beams {
                let last = tree.class(beam.node);
                next.at(beam.node).add_blank(beam.total() + step[self.blank]);
                if let Some(last) = last {
                    next.at(beam.node).add_character(beam.character + step[last]);
                }
                for &class in &followed {
                    // A repeated character needs a blank between.
                    let before = if last == Some(class) { beam.blank } else { beam.total() };
                    if before > f64::NEG_INFINITY {
                        let node = tree.child(beam.node, class);
                        next.at(node).add_character(before + step[class]);
                    }
                }
            }
            beams = next.beams;
            sort(&mut beams, |a, b| b.total().total_cmp(&a.total()).then(a.node.cmp(&b.node)));
            beams.truncate(width);
        }
        self.decoded(&tree.classes(beams[0].node), log_probs)
    }

    fn decoded(&self, classes: &[usize], log_probs: &LogProbs) -> Decoded {
        let text = classes.iter().map(|&c| self.characters[c - usize::from(c > self.blank)]);
        let log = self.log_probability(classes, log_probs) / classes.len().max(1) as f64;
        Decoded { text: text.collect(), confidence: log.exp().min(1.0) }
    }

    /// Logarithm of the probability of a sequence of classes: the forward algorithm.
    fn log_probability(&self, classes: &[usize], log_probs: &LogProbs) -> f64 {
        // blank, class, blank, class, ..., blank
        let symbols = 2 * classes.len() + 1;
        let class = |s: usize| if s.is_multiple_of(2) { self.blank } else { classes[s / 2] };
        let mut now = vec![f64::NEG_INFINITY; symbols];
        now[0] = 0.0;
        let mut before_first_step = true;
        for step in log_probs.steps() {
            let last = now.clone();
            for s in 0..symbols {
                let mut sum = last[s];
                if s > 0 && !before_first_step {
                    sum = log_add(sum, last[s - 1]);
                    if s % 2 == 1 && s > 1 && class(s) != class(s - 2) {
                        sum = log_add(sum, last[s - 2]);
                    }
                } else if s == 1 {
                    // A text may begin with its first character.
                    sum = 0.0;
                }
                now[s] = sum + step[class(s)];
            }
            before_first_step = false;
        }
        let end = now[symbols - 1];
        if symbols > 1 { log_add(end, now[symbols - 2]) } else { end }
    }
}

/// A beginning of a text, with the logarithms of the probabilities that it ends in a blank and in
/// its last character.
struct Beam {
    node: u32,
    blank: f64,
    character: f64,
}

impl Beam {
    fn total(&self) -> f64 {
        log_add(self.blank, self.character)
    }

    fn add_blank(&mut self, log: f64) {
        self.blank = log_add(self.blank, log);
    }

    fn add_character(&mut self, log: f64) {
        self.character = log_add(self.character, log);
    }
}

/// The beginnings after a step, each once.
#[derive(Default)]
struct Next {
    beams: Vec<Beam>,
    index: HashMap<u32, usize>,
}

impl Next {
    fn at(&mut self, node: u32) -> &mut Beam {
        let index = *self.index.entry(node).or_insert_with(|| {
            let none = f64::NEG_INFINITY;
            self.beams.push(Beam { node, blank: none, character: none });
            self.beams.len() - 1
        });
        &mut self.beams[index]
    }
}

/// All beginnings that were met: node 0 is empty, every other has a parent and a last class.
#[derive(Default)]
struct Tree {
    nodes: Vec<(u32, usize)>,
    children: HashMap<(u32, usize), u32>,
}

impl Tree {
    fn class(&self, node: u32) -> Option<usize> {
        let index = (node as usize).checked_sub(1)?;
        Some(self.nodes[index].1)
    }

    fn child(&mut self, parent: u32, class: usize) -> u32 {
        *self.children.entry((parent, class)).or_insert_with(|| {
            self.nodes.push((parent, class));
            self.nodes.len() as u32
        })
    }

    fn classes(&self, mut node: u32) -> Vec<usize> {
        let mut classes = Vec::new();
        while let Some(index) = (node as usize).checked_sub(1) {
            let (parent, class) = self.nodes[index];
            classes.push(class);
            node = parent;
        }
        classes.reverse();
        classes
    }
}

/// `ln(exp(a) + exp(b))`
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities of `rows`, blank first.
    fn log_probs(rows: &[[f32; 3]]) -> LogProbs {
        LogProbs::from_scores(rows.as_flattened(), 3).unwrap()
    }

    /// Adds the probability of every path to the text it stands for.
    fn all_texts(ctc: &Ctc, log_probs: &LogProbs) -> HashMap<Vec<usize>, f64> {
        let mut paths = vec![(Vec::new(), 0.0)];
        for step in log_probs.steps() {
            paths = paths
                .iter()
                .flat_map(|(path, p)| {
                    step.iter()
                        .enumerate()
                        .map(move |(c, log)| ([&path[..], &[c]].concat(), p + log))
                })
                .collect();
        }
        let mut texts = HashMap::new();
        for (mut path, log) in paths {
            path.dedup();
            path.retain(|&c| c != ctc.blank);
            *texts.entry(path).or_insert(0.0) += f64::exp(log);
        }
        texts
    }

    #[test]
    fn greedy_collapses_repetitions_and_drops_blanks() {
        let ctc = Ctc::new("ab", 0).unwrap();
        let (blank, a, b) = ([0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]);
        assert_eq!(ctc.greedy(&log_probs(&[a, a, blank, a, b, b])).text, "aab");
        assert_eq!(ctc.greedy(&log_probs(&[blank, blank])).text, "");
        assert_eq!(ctc.greedy(&log_probs(&[])).text, "");
        let last = Ctc::new("ab", 2).unwrap();
        assert_eq!(last.greedy(&log_probs(&[blank, b, a, blank])).text, "aba");
    }

    #[test]
    fn beam_prefers_the_text_with_more_paths() {
        // Greedy reads blank, blank; but "a" has three paths: aa, a-, -a.
        let ctc = Ctc::new("ab", 0).unwrap();
        let p = log_probs(&[[0.6, 0.4, 0.0], [0.6, 0.4, 0.0]]);
        let greedy = ctc.greedy(&p);
        assert!(greedy.text.is_empty() && (greedy.confidence - 0.36).abs() < 1e-6);
        let found = ctc.beam(&p, 4);
        assert_eq!(found.text, "a");
        assert!((found.confidence - 0.64).abs() < 1e-6);
    }

    #[test]
    fn beam_and_confidence_agree_with_all_paths() {
        let mut seed = 7u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 40) as f32 / (1u64 << 24) as f32 * 6.0 - 3.0
        };
        for steps in 1..7 {
            for blank in 0..3 {
                let ctc = Ctc::new("ab", blank).unwrap();
                let scores: Vec<f32> = (0..steps * 3).map(|_| random()).collect();
                let p = LogProbs::from_scores(&scores, 3).unwrap();
                let texts = all_texts(&ctc, &p);
                for (text, probability) in &texts {
                    let log = ctc.log_probability(text, &p);
                    assert!((log.exp() - probability).abs() < 1e-9, "{text:?}");
                }
                let (best, probability) = texts.iter().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
                let found = ctc.beam(&p, 1000);
                assert_eq!(found.text, ctc.decoded(best, &p).text);
                let length = best.len().max(1) as f64;
                assert!((found.confidence - probability.powf(1.0 / length)).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn scores_may_be_logits_or_probabilities() {
        let probabilities = LogProbs::from_scores(&[0.25, 0.75], 2).unwrap();
        let logits = LogProbs::from_scores(&[1.0, 1.0 + 3f32.ln()], 2).unwrap();
        for (a, b) in probabilities.values.iter().zip(&logits.values) {
            assert!((a - b).abs() < 1e-6);
        }
    }

    #[test]
    fn impossible_scores_and_classes_are_errors() {
        assert!(LogProbs::from_scores(&[0.5, f32::NAN], 2).is_err());
        assert!(LogProbs::from_scores(&[f32::NEG_INFINITY; 2], 2).is_err());
        assert!(LogProbs::from_scores(&[0.5; 3], 2).is_err());
        assert!(LogProbs::from_scores(&[], 0).is_err());
        assert!(Ctc::new("ab", 3).is_err() && Ctc::new("", 0).is_err());
    }
}
