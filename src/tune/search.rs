//! Which of several ways is the fastest, on a machine that does other things as well.
//!
//! Candidates take turns, so that a change of clock or a neighbour's work hits all of them. What
//! disturbs a run only ever makes it slower: a candidate is as fast as its fastest sample, and how
//! far its better samples lie apart says how well that is known. A candidate drops out when its
//! fastest sample is slower than the leader's by more than that. The search ends when one is left,
//! when those that are left are as good as equal, or when the time is over.

use core::time::Duration;
use std::time::Instant;

/// Rounds before the first candidate may drop out, and before candidates may count as equal.
const FIRST_ROUNDS: usize = 4;
const EQUAL_ROUNDS: usize = 12;

/// Relative differences below this are not worth a rule: the first of equals is taken.
const EQUAL: f64 = 0.02;

/// A candidate drops out when it is slower than the leader by this and what is uncertain.
const WORSE: f64 = 0.03;

/// What was measured of one candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Seconds of each sample, ascending.
    samples: Vec<f64>,
}

impl Measured {
    /// Adds a sample, in seconds.
    pub fn add(&mut self, seconds: f64) {
        let at = self.samples.partition_point(|s| *s < seconds);
        self.samples.insert(at, seconds);
    }

    /// Seconds of the fastest sample; infinite if there is none.
    pub fn best(&self) -> f64 {
        self.samples.first().copied().unwrap_or(f64::INFINITY)
    }

    /// How far the fastest quarter of the samples lies apart, relative to the fastest.
    pub fn spread(&self) -> f64 {
        let quarter = self.samples.get(self.samples.len() / 4).copied().unwrap_or(f64::INFINITY);
        (quarter - self.best()) / self.best()
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.samples.len()
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Position of the fastest candidate, the first of those that are as good as equal.
    pub fastest: usize,
    /// What was measured, by candidate. The first and the fastest have been measured to the end.
    pub measured: Vec<Measured>,
    /// Whether the time was over before the ranking was clear.
    pub cut_short: bool,
}

/// Finds the fastest of `count` candidates, which is at least 1. `sample` measures one: it gives
/// the seconds of one run.
///
/// # Errors
/// Those of `sample`.
pub fn search<E>(
    count: usize,
    budget: Duration,
    mut sample: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Ranking, E> {
    let mut measured = vec![Measured::default(); count];
    let mut left: Vec<usize> = (0..count).collect();
    let begin = Instant::now();
    let mut cut_short = false;
    for round in 1.. {
        // The order changes from round to round: what runs after a slow one may suffer from it.
        for turn in 0..left.len() {
            let candidate = left[(turn + round) % left.len()];
            measured[candidate].add(sample(candidate)?);
        }
        let leader = fastest(&left, &measured);
        if round >= FIRST_ROUNDS {
            let limit = |i: usize| {
                let uncertain = measured[leader].spread().max(measured[i].spread());
                // A long look makes up for a restless machine.
                measured[leader].best()
                    * (1.0 + WORSE + uncertain * FIRST_ROUNDS as f64 / round as f64)
            };
            // The first stays: it is what the result is compared with.
            left.retain(|&i| i == 0 || measured[i].best() <= limit(i));
        }
        let worst = left.iter().map(|&i| measured[i].best()).fold(0.0, f64::max);
        let only_first_left = left.len() <= 1 || left == [0, leader];
        let equal = worst <= measured[leader].best() * (1.0 + EQUAL);
        if round >= EQUAL_ROUNDS && (only_first_left || equal) {
            break;
        }
        if begin.elapsed() >= budget {
            cut_short = !only_first_left && !equal;
            break;
        }
    }
    let leader = fastest(&left, &measured);
    let good = |i: &&usize| measured[**i].best() <= measured[leader].best() * (1.0 + EQUAL);
    let fastest = left.iter().find(good).copied().unwrap_or(leader);
    Ok(Ranking { fastest, measured, cut_short })
}

/// The candidate with the fastest sample.
fn fastest(left: &[usize], measured: &[Measured]) -> usize {
    let by_time = |a: &&usize, b: &&usize| measured[**a].best().total_cmp(&measured[**b].best());
    left.iter().min_by(by_time).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::convert::Infallible;

    /// Numbers from 0 to 1 that look random.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f64 / (1u64 << 24) as f64
        }
    }

    fn run(times: &[f64], noise: f64) -> Ranking {
        let mut random = Noise(7);
        let sample = |i: usize| {
            // Sometimes something else runs for much longer.
            let burst = if random.next() > 0.9 { 5.0 } else { 0.0 };
            Ok::<f64, Infallible>(times[i] * (1.0 + noise * random.next() + burst))
        };
        let Ok(ranking) = search(times.len(), Duration::from_millis(200), sample);
        ranking
    }

    #[test]
    fn the_fastest_is_found_under_noise() {
        for noise in [0.0, 0.02, 0.3] {
            assert_eq!(run(&[1.3, 1.1, 1.0, 1.2, 4.0], noise).fastest, 2, "{noise}");
        }
    }

    #[test]
    fn clear_losers_are_not_measured_for_long() {
        let ranking = run(&[1.0, 0.9, 3.0, 1.5], 0.01);
        assert_eq!((ranking.fastest, ranking.cut_short), (1, false));
        let counts: Vec<usize> = ranking.measured.iter().map(Measured::count).collect();
        assert!(counts[2] <= 2 * FIRST_ROUNDS && counts[0] == counts[1], "{counts:?}");
        assert!(counts[1] >= EQUAL_ROUNDS);
    }

    #[test]
    fn among_equals_the_first_is_taken() {
        assert_eq!(run(&[1.0, 0.99, 1.3, 0.995], 0.01).fastest, 0);
        assert_eq!(run(&[1.0], 0.01).measured[0].count(), EQUAL_ROUNDS);
    }

    #[test]
    fn an_empty_budget_means_one_round() {
        let Ok(ranking) = search(3, Duration::ZERO, |i| Ok::<f64, Infallible>(3.0 - i as f64));
        assert_eq!((ranking.fastest, ranking.cut_short), (2, true));
        assert!(ranking.measured.iter().all(|m| m.count() == 1));
    }

    #[test]
    fn errors_end_the_search() {
        let result = search(2, Duration::ZERO, |i| if i == 1 { Err("broken") } else { Ok(1.0) });
        assert_eq!(result, Err("broken"));
    }
}
