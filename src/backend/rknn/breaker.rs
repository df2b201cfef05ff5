//! When a core that fails is left alone.

use core::time::Duration;
use std::time::Instant;

use super::RknnError;

/// Failures in a row after which a core rests.
const FAILURES: u32 = 3;

/// How long it rests first, and at most: each time twice as long as before.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// The state of one core.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Breaker {
    /// In use, after so many failures in a row; the next rest.
    Closed { failures: u32, rest: Duration },
    /// Left alone until then; the rest after that.
    Open { until: Instant, rest: Duration },
    /// Never used again, for this reason.
    Broken(RknnError),
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self::Closed { failures: 0, rest: FIRST_REST }
    }

    /// Whether the core may be used. After a rest it may be tried; a single failure then ends it.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        match *self {
            Self::Closed { .. } => true,
            Self::Open { until, rest } if now >= until => {
                *self = Self::Closed { failures: FAILURES - 1, rest };
                true
            }
            Self::Open { .. } | Self::Broken(_) => false,
        }
    }

    /// Why the core is not used any more, if it is not.
    pub(super) fn broken(&self) -> Option<&RknnError> {
        match self {
            Self::Broken(reason) => Some(reason),
            Self::Closed { .. } | Self::Open { .. } => None,
        }
    }

    /// Notes what a product on the core came to.
    pub(super) fn note(&mut self, outcome: Result<(), &RknnError>, now: Instant) {
        let Self::Closed { failures, rest } = *self else { return };
        *self = match outcome {
            Ok(()) => Self::new(),
            Err(e) if e.is_harmless() => return,
            Err(e) if e.is_final() => Self::Broken(e.clone()),
            Err(_) if failures + 1 < FAILURES => Self::Closed { failures: failures + 1, rest },
            Err(_) => Self::Open { until: now + rest, rest: (rest * 2).min(LONGEST_REST) },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_rests_longer_each_time() {
        let (mut breaker, mut now) = (Breaker::new(), Instant::now());
        let failure = RknnError::Call { call: "run", code: -1 };
        for _ in 0..2 {
            breaker.note(Err(&failure), now);
            assert!(breaker.allows(now));
        }
        breaker.note(Err(&RknnError::NotFinite), now);
        assert!(breaker.allows(now), "not the core's fault");
        breaker.note(Err(&failure), now);
        for seconds in [60, 120, 240] {
            assert!(!breaker.allows(now + Duration::from_secs(seconds - 1)));
            now += Duration::from_secs(seconds);
            assert!(breaker.allows(now), "one try");
            breaker.note(Err(&failure), now);
        }
        now += LONGEST_REST;
        assert!(breaker.allows(now));
        breaker.note(Ok(()), now);
        assert_eq!(breaker, Breaker::new());
    }

    #[test]
    fn some_failures_are_final() {
        let mut breaker = Breaker::new();
        breaker.note(Err(&RknnError::Timeout { core: 0, after: Duration::ZERO }), Instant::now());
        assert!(!breaker.allows(Instant::now() + 2 * LONGEST_REST));
    }
}
