//! Labels for the output of a classifier.

use super::TaskError;
use crate::tensor::Tensor;

/// A label with its score.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The label.
    pub label: String,
    /// The network's score, as it is: a probability, a logit, whatever the network gives.
    pub score: f32,
}

/// The `count` labels with the highest scores, best first; of equals the lower class first.
///
/// `output` has one f32 score per label, in any shape with extents of one around.
///
/// # Errors
/// [`TaskError::InvalidShape`] for another number of scores, [`TaskError::Tensor`] for another
/// type.
pub fn best(output: &Tensor, labels: &[String], count: usize) -> Result<Vec<Scored>, TaskError> {
    let scores = output.as_slice::<f32>()?;
    if scores.len() != labels.len() {
        return Err(TaskError::InvalidShape { dims: output.dims(), classes: labels.len() });
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // NaN is the worst score, whatever its sign.
    let key = |i: usize| if scores[i].is_nan() { f32::NEG_INFINITY } else { scores[i] };
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    let best = order.into_iter().take(count);
    Ok(best.map(|i| Scored { label: labels[i].clone(), score: scores[i] }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_scores_come_first() {
        let labels = ["cat", "dog", "ox", "eel"].map(String::from);
        let output = Tensor::from_slice(&[1, 4, 1], &[0.1f32, 0.5, f32::NAN, 0.5]).unwrap();
        let found = best(&output, &labels, 3).unwrap();
        let names: Vec<&str> = found.iter().map(|s| s.label.as_str()).collect();
        assert_eq!(names, ["dog", "eel", "cat"]);
        assert!(best(&output, &labels[..3], 3).is_err());
    }
}
