//! Labels for the output of a classifier.

use super::TaskError;
use crate::order::sort_indices;
use crate::tensor::Tensor;

/// A label with its score.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The label.
    pub label: String,
    /// The network's score as it is (a probability, a logit, whatever the network gives), or the
    /// probability that the softmax of all scores gives it.
    pub score: f32,
}

/// The `count` labels with the highest scores, best first; of equals the lower class first.
///
/// `output` has one f32 score per label, in any shape with extents of one around. With `logits`,
/// scores that are not yet probabilities (from 0 to 1, with a sum of 1) are replaced by their
/// softmax.
///
/// # Errors
/// [`TaskError::InvalidShape`] for another number of scores, [`TaskError::Tensor`] for another
/// type.
pub fn best(
    output: &Tensor,
    labels: &[String],
    logits: bool,
    count: usize,
) -> Result<Vec<Scored>, TaskError> {
    let scores = output.as_slice::<f32>()?;
    let softmax = if logits { softmax(&scores) } else { None };
    let scores = softmax.as_deref().unwrap_or(&scores);
    if scores.len() != labels.len() {
        return Err(TaskError::InvalidShape { dims: output.dims(), classes: labels.len() });
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // NaN is the worst score, whatever its sign.
    let key = |i: usize| if scores[i].is_nan() { f32::NEG_INFINITY } else { scores[i] };
    sort_indices(&mut order, &mut |a, b| key(b).total_cmp(&key(a)));
    let best = order.into_iter().take(count);
    Ok(best.map(|i| Scored { label: labels[i].clone(), score: scores[i] }).collect())
}

/// The softmax of scores that are not a distribution already; `None` for ones that are, or are not
/// finite.
fn softmax(scores: &[f32]) -> Option<Vec<f32>> {
    let sum: f64 = scores.iter().map(|s| f64::from(*s)).sum();
    let is_distribution =
        scores.iter().all(|s| (0.0..=1.0).contains(s)) && (sum - 1.0).abs() < 1e-2;
    if is_distribution || !scores.iter().all(|s| s.is_finite()) {
        return None;
    }
    let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp = |s: f32| f64::from(s - greatest).exp();
    let total: f64 = scores.iter().map(|s| exp(*s)).sum();
    Some(scores.iter().map(|s| (exp(*s) / total) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_scores_come_first() {
        let labels = ["cat", "dog", "ox", "eel"].map(String::from);
        let output = Tensor::from_slice(&[1, 4, 1], &[0.1f32, 0.5, f32::NAN, 0.5]).unwrap();
        let found = best(&output, &labels, false, 3).unwrap();
        let names: Vec<&str> = found.iter().map(|s| s.label.as_str()).collect();
        assert_eq!(names, ["dog", "eel", "cat"]);
        assert!(best(&output, &labels[..3], false, 3).is_err());
    }

    #[test]
    fn logits_become_probabilities_once() {
        let labels = ["cat", "dog"].map(String::from);
        let logits = Tensor::from_slice(&[2], &[1000.0f32, 1000.0 + 3f32.ln()]).unwrap();
        let found = best(&logits, &labels, true, 2).unwrap();
        assert!((found[0].score - 0.75).abs() < 1e-4 && (found[1].score - 0.25).abs() < 1e-4);
        let distribution = Tensor::from_slice(&[2], &[0.25f32, 0.75]).unwrap();
        assert_eq!(best(&distribution, &labels, true, 1).unwrap()[0].score, 0.75);
    }
}
