//! Choosing the next token from logits.
//!
//! Steps, in this order: biases; penalties for tokens that came before; then, unless the choice is
//! greedy, the best `top_k`, of these the best that together have probability `top_p`, of these those
//! at least `min_p` times as probable as the best; then a draw at `temperature`. The vocabulary is never
//! sorted: each step selects, in time linear in what it looks at.

use core::cmp::Ordering;
use core::fmt;
use std::collections::{HashMap, VecDeque};

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits before the draw; 0 takes the most probable token, of equal ones the one
    /// with the lowest id.
    pub temperature: f32,
    /// Tokens that may be drawn, the most probable ones; 0 for all.
    pub top_k: usize,
    /// The probability that the tokens which may be drawn have together; 1 for no limit.
    pub top_p: f32,
    /// Smallest probability of a token that may be drawn, as a part of that of the best; 0 for no
    /// limit.
    pub min_p: f32,
    /// Divides positive logits of tokens that came before, and multiplies negative ones; 1 for none.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of tokens that came before.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens as many times as they came before.
    pub frequency_penalty: f32,
    /// How many tokens back the penalties look.
    pub penalty_window: usize,
    /// Added to the logits of single tokens; negative infinity excludes one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Where the random numbers begin: the same options, seed and logits give the same tokens.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// The most probable token each time.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    fn check(&self) -> Result<(), SamplerError> {
        let within = |name, value: f32, ok: bool| {
            if ok { Ok(()) } else { Err(SamplerError::Option { name, value }) }
        };
        let (t, p, m, r) = (self.temperature, self.top_p, self.min_p, self.repeat_penalty);
        within("temperature", t, t >= 0.0 && t.is_finite())?;
        within("top-p", p, p > 0.0 && p <= 1.0)?;
        within("min-p", m, (0.0..=1.0).contains(&m))?;
        within("repeat penalty", r, r > 0.0 && r.is_finite())?;
        let (presence, frequency) = (self.presence_penalty, self.frequency_penalty);
        within("presence penalty", presence, presence.is_finite())?;
        within("frequency penalty", frequency, frequency.is_finite())?;
        for (_, bias) in &self.logit_bias {
            within("logit bias", *bias, *bias < f32::INFINITY)?;
        }
        Ok(())
    }
}

/// Why no token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SamplerError {
    /// An option has a value that means nothing.
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// A logit is NaN or infinite.
    Logit {
        /// The token.
        id: u32,
        /// The logit.
        value: f32,
    },
    /// Every token is excluded, or there is none.
    NoTokens,
}

impl fmt::Display for SamplerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option { name, value } => write!(f, "{value} is not a possible {name}"),
            Self::Logit { id, value } => write!(f, "the logit of token {id} is {value}"),
            Self::NoTokens => f.write_str("there is no token to choose from"),
        }
    }
}

impl core::error::Error for SamplerError {}

/// Most logits that [`Sampler::decisive`] asks for.
const MOST_DECISIVE: usize = 64;

/// Chooses tokens; remembers those that came before, and where the random numbers are.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    random: fastrand::Rng,
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
    candidates: Vec<Candidate>,
    selected: Vec<Candidate>,
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) id: u32,
}

impl Candidate {
    /// The better one first.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

impl Sampler {
    /// A sampler at the beginning of a text.
    ///
    /// # Errors
    /// [`SamplerError::Option`].
    pub fn new(options: SamplerOptions) -> Result<Self, SamplerError> {
        options.check()?;
        let random = fastrand::Rng::with_seed(options.seed);
        Ok(Self {
            options,
            random,
            recent: VecDeque::new(),
            counts: HashMap::new(),
            candidates: Vec::new(),
            selected: Vec::new(),
        })
    }

    /// Notes that a token has come, for the penalties.
    pub fn accept(&mut self, id: u32) {
        if self.options.penalty_window == 0 {
            return;
        }
        if self.recent.len() == self.options.penalty_window
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
        self.recent.push_back(id);
        *self.counts.entry(id).or_default() += 1;
    }

    /// Chooses a token. Biases and penalties are applied to `logits` in place.
    ///
    /// # Errors
    /// [`SamplerError::Logit`] for NaN and positive infinity, [`SamplerError::NoTokens`].
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<u32, SamplerError> {
        check(logits)?;
        self.adjust(logits);
        let best = best(logits).ok_or(SamplerError::NoTokens)?;
        if self.options.temperature == 0.0 {
            return Ok(best.id);
        }
        self.take_best(logits);
        Ok(self.choose(best))
    }

    /// How many of the largest logits decide: [`Sampler::sample_best`] with them is [`Sampler::sample`] with
    /// all. `None` if that depends on others, or on most.
    pub(super) fn decisive(&self) -> Option<usize> {
        let o = &self.options;
        let penalties = (o.repeat_penalty, o.presence_penalty, o.frequency_penalty);
        let as_they_are = o.logit_bias.is_empty() && penalties == (1.0, 0.0, 0.0);
        let count = if o.temperature == 0.0 { 1 } else { o.top_k };
        (as_they_are && (1..=MOST_DECISIVE).contains(&count)).then_some(count)
    }

    /// Chooses among the tokens with the largest logits, the best first.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub(super) fn sample_best(&mut self, best: &[Candidate]) -> Result<u32, SamplerError> {
        let Some(&first) = best.first().filter(|c| c.logit > f32::NEG_INFINITY) else {
            return Err(SamplerError::NoTokens);
        };
        if self.options.temperature == 0.0 {
            return Ok(first.id);
        }
        self.candidates.clear();
        self.candidates.extend(best.iter().filter(|c| c.logit > f32::NEG_INFINITY));
        self.candidates.sort_unstable_by_key(|c| c.id);
        Ok(self.choose(first))
    }

    /// Draws one of the candidates, which are those of the best `top_k`.
    fn choose(&mut self, best: Candidate) -> u32 {
        self.cut_by_sum(best.logit);
        if self.options.min_p > 0.0 {
            let least = best.logit + self.options.min_p.ln();
            self.candidates.retain(|c| c.logit >= least);
        }
        self.draw(best)
    }

    fn adjust(&self, logits: &mut [f32]) {
        let o = &self.options;
        for (id, bias) in &o.logit_bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        if o.repeat_penalty == 1.0 && o.presence_penalty == 0.0 && o.frequency_penalty == 0.0 {
            return;
        }
        for (id, count) in &self.counts {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            let repeated = if *logit > 0.0 { 1.0 / o.repeat_penalty } else { o.repeat_penalty };
            *logit = *logit * repeated - o.presence_penalty - o.frequency_penalty * *count as f32;
        }
    }

    /// The best `top_k` as candidates, ordered by id.
    fn take_best(&mut self, logits: &[f32]) {
        let found = &mut self.candidates;
        found.clear();
        let all = logits.iter().zip(0..).map(|(logit, id)| Candidate { logit: *logit, id });
        let all = all.filter(|c| c.logit > f32::NEG_INFINITY);
        let k = self.options.top_k;
        if k == 0 || k >= logits.len() {
            found.extend(all);
            return;
        }
        // What cannot be among the best any more is not even kept; of equal ones the earlier is better.
        let (room, mut least) = (2 * k + 64, f32::NEG_INFINITY);
        for candidate in all {
            if candidate.logit <= least {
                continue;
            }
            found.push(candidate);
            if found.len() == room {
                found.select_nth_unstable_by(k - 1, Candidate::order);
                found.truncate(k);
                least = found[k - 1].logit;
            }
        }
        if found.len() > k {
            found.select_nth_unstable_by(k - 1, Candidate::order);
            found.truncate(k);
        }
        found.sort_unstable_by_key(|c| c.id);
    }

    /// Leaves the fewest candidates that together have probability `top_p`.
    fn cut_by_sum(&mut self, best: f32) {
        if self.options.top_p >= 1.0 || self.candidates.len() < 2 {
            return;
        }
        let weight = |c: &Candidate| f64::from((c.logit - best).exp());
        let total: f64 = self.candidates.iter().map(weight).sum();
        let mut missing = total * f64::from(self.options.top_p);
        self.selected.clone_from(&self.candidates);
        let mut rest = self.selected.as_mut_slice();
        // The last one needed is in `rest`; halve that until it is alone.
        while rest.len() > 1 {
            let middle = rest.len() / 2;
            rest.select_nth_unstable_by(middle, Candidate::order);
            let (better, worse) = rest.split_at_mut(middle);
            let sum: f64 = better.iter().map(weight).sum();
            if sum >= missing {
                rest = better;
            } else {
                missing -= sum;
                rest = worse;
            }
        }
        if let Some(last) = rest.first().copied() {
            self.candidates.retain(|c| c.order(&last) != Ordering::Greater);
        }
    }

    fn draw(&mut self, best: Candidate) -> u32 {
        let temperature = f64::from(self.options.temperature);
        let weight = |c: &Candidate| (f64::from(c.logit - best.logit) / temperature).exp();
        let total: f64 = self.candidates.iter().map(weight).sum();
        let mut left = self.random.f64() * total;
        for candidate in &self.candidates {
            left -= weight(candidate);
            if left < 0.0 {
                return candidate.id;
            }
        }
        // Only rounding leads here.
        best.id
    }
}

fn check(logits: &[f32]) -> Result<(), SamplerError> {
    // A sum of all would be faster than a search, but overflows.
    match logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
        Some(i) => Err(SamplerError::Logit { id: i as u32, value: logits[i] }),
        None => Ok(()),
    }
}

/// The largest logit, of equal ones that with the lowest id.
fn best(logits: &[f32]) -> Option<Candidate> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let id = logits.iter().position(|x| *x == largest && *x > f32::NEG_INFINITY)?;
    Some(Candidate { logit: largest, id: id as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(options: SamplerOptions) -> Sampler {
        Sampler::new(options).unwrap()
    }

    fn all() -> SamplerOptions {
        SamplerOptions { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() }
    }

    /// How often each of the tokens is drawn.
    fn counts(options: SamplerOptions, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = sampler(options);
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.sample(&mut logits.to_vec()).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_best() {
        let mut greedy = sampler(SamplerOptions::greedy());
        assert_eq!(greedy.sample(&mut [0.0, 2.0, -1.0, 2.0]), Ok(1));
        assert_eq!(greedy.sample(&mut [-0.0, 0.0]), Ok(0));
        assert_eq!(greedy.sample(&mut [f32::NEG_INFINITY, -1e30]), Ok(1));
    }

    #[test]
    fn bad_logits_and_options_are_errors() {
        let mut greedy = sampler(SamplerOptions::greedy());
        let e = greedy.sample(&mut [0.0, f32::NAN]).unwrap_err();
        assert!(matches!(e, SamplerError::Logit { id: 1, .. }));
        assert!(greedy.sample(&mut [f32::INFINITY]).is_err());
        assert_eq!(greedy.sample(&mut []), Err(SamplerError::NoTokens));
        assert_eq!(greedy.sample(&mut [f32::NEG_INFINITY; 3]), Err(SamplerError::NoTokens));
        for bad in [
            SamplerOptions { temperature: -1.0, ..all() },
            SamplerOptions { temperature: f32::NAN, ..all() },
            SamplerOptions { top_p: 0.0, ..all() },
            SamplerOptions { min_p: 1.5, ..all() },
            SamplerOptions { repeat_penalty: 0.0, ..all() },
            SamplerOptions { logit_bias: vec![(0, f32::NAN)], ..all() },
        ] {
            assert!(Sampler::new(bad).is_err());
        }
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_seed() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let counted = counts(all(), &logits, 20_000);
        for (count, p) in counted.iter().zip([0.5, 0.3, 0.2]) {
            assert!((*count as f64 / 20_000.0 - p).abs() < 0.015, "{counted:?}");
        }
        assert_eq!(counted, counts(all(), &logits, 20_000), "the same seed");
        assert_ne!(counted, counts(SamplerOptions { seed: 1, ..all() }, &logits, 20_000));
        // Half the temperature squares the probabilities.
        let cold = counts(SamplerOptions { temperature: 0.5, ..all() }, &logits, 20_000);
        assert!((cold[0] as f64 / 20_000.0 - 0.25 / 0.38).abs() < 0.015, "{cold:?}");
    }

    #[test]
    fn limits_leave_what_they_say() {
        let p = [0.1f32, 0.4, 0.2, 0.05, 0.25];
        let logits = p.map(f32::ln);
        let drawn = |options| -> Vec<usize> {
            let counts = counts(options, &logits, 3000);
            (0..5).filter(|i| counts[*i] > 0).collect()
        };
        assert_eq!(drawn(SamplerOptions { top_k: 2, ..all() }), [1, 4]);
        assert_eq!(drawn(SamplerOptions { top_p: 0.6, ..all() }), [1, 4]);
        assert_eq!(drawn(SamplerOptions { top_p: 0.66, ..all() }), [1, 2, 4]);
        assert_eq!(drawn(SamplerOptions { top_p: 0.01, ..all() }), [1]);
        assert_eq!(drawn(SamplerOptions { min_p: 0.3, ..all() }), [1, 2, 4]);
        assert_eq!(
            drawn(SamplerOptions { logit_bias: vec![(1, f32::NEG_INFINITY)], ..all() }),
            [0, 2, 3, 4]
        );
    }

    #[test]
    fn selecting_is_the_same_as_sorting() {
        let mut random = fastrand::Rng::with_seed(7);
        for n in [1, 2, 63, 1000, 5000] {
            for k in [1, 2, 40, 999, 5000] {
                // Few different values, so that there are ties.
                let logits: Vec<f32> = (0..n).map(|_| random.u8(..) as f32 / 16.0).collect();
                let mut sampler = sampler(SamplerOptions { top_k: k, top_p: 0.7, ..all() });
                let mut sorted: Vec<Candidate> =
                    (0..).zip(&logits).map(|(id, logit)| Candidate { logit: *logit, id }).collect();
                sorted.sort_by(Candidate::order);
                sorted.truncate(k);
                sampler.take_best(&logits);
                let ids = |c: &[Candidate]| c.iter().map(|c| c.id).collect::<Vec<_>>();
                let mut expected = ids(&sorted);
                expected.sort_unstable();
                assert_eq!(ids(&sampler.candidates), expected, "n {n} k {k}");
                let best = sorted[0].logit;
                let weight = |c: &Candidate| f64::from((c.logit - best).exp());
                let total: f64 = sorted.iter().map(weight).sum();
                let mut sum = 0.0;
                let needed = sorted.iter().position(|c| {
                    sum += weight(c);
                    sum >= total * f64::from(0.7f32)
                });
                sampler.cut_by_sum(best);
                let difference = sampler.candidates.len().abs_diff(needed.unwrap_or(n - 1) + 1);
                // Sums in another order may round another way.
                assert!(difference <= 1, "n {n} k {k}");
            }
        }
    }

    #[test]
    fn the_best_are_enough_where_they_decide() {
        let mut random = fastrand::Rng::with_seed(3);
        for options in [
            SamplerOptions::greedy(),
            SamplerOptions::default(),
            SamplerOptions { top_k: 5, top_p: 0.5, min_p: 0.0, ..all() },
        ] {
            let (mut whole, mut part) = (sampler(options.clone()), sampler(options));
            let k = whole.decisive().unwrap();
            for _ in 0..200 {
                let mut logits: Vec<f32> = (0..500).map(|_| random.u8(..) as f32 / 16.0).collect();
                let mut sorted: Vec<Candidate> =
                    (0..).zip(&logits).map(|(id, logit)| Candidate { logit: *logit, id }).collect();
                sorted.sort_by(Candidate::order);
                assert_eq!(part.sample_best(&sorted[..k]), whole.sample(&mut logits));
            }
        }
        let others = [
            SamplerOptions { top_k: 0, ..all() },
            SamplerOptions { top_k: 1000, ..all() },
            SamplerOptions { repeat_penalty: 1.1, ..Default::default() },
            SamplerOptions { logit_bias: vec![(1, 2.0)], ..SamplerOptions::greedy() },
        ];
        for options in others {
            assert_eq!(sampler(options).decisive(), None);
        }
        assert_eq!(sampler(all()).sample_best(&[]), Err(SamplerError::NoTokens));
    }

    #[test]
    fn penalties_look_back_as_far_as_they_should() {
        let options = SamplerOptions {
            temperature: 0.0,
            repeat_penalty: 2.0,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            penalty_window: 3,
            ..SamplerOptions::default()
        };
        let mut sampler = sampler(options);
        for id in [3, 0, 1, 1] {
            sampler.accept(id);
        }
        let mut logits = [2.0, -1.0, 0.0, 1.0];
        sampler.sample(&mut logits).unwrap();
        assert_eq!(logits, [2.0 / 2.0 - 0.75, -2.0 - 1.25, 0.0, 1.0]);
    }
}
