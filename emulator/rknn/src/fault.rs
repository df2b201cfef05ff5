//! Faults on demand: `site[:filter...]:action`, several with `;` between them.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::thread;

/// Calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    Create,
    CreateMem,
    FromFd,
    SetIo,
    CoreMask,
    Run,
    Sync,
    Query,
    Destroy,
}

/// A call, as filters see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) site: Site,
    pub(crate) core: Option<u32>,
    pub(crate) shape: Option<[i32; 3]>,
    pub(crate) kind: Option<i32>,
}

impl Call {
    pub(crate) fn of(site: Site) -> Self {
        Self { site, core: None, shape: None, kind: None }
    }
}

/// How a result is damaged although the call succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// All elements are zero.
    Zero,
    /// The memory keeps what it held.
    Stale,
    /// Not a number; of integers the largest.
    Nan,
    /// One element is another.
    Flip,
    /// The first two rows are exchanged.
    SwapRows,
    /// All elements are doubled.
    Scale,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    Code(i32),
    Null,
    /// Does not return for this long; `None` for ever.
    Hang(Option<Duration>),
    Slow(Duration),
    /// The process dies by a signal.
    Crash,
    /// The process ends.
    Exit,
    Wrong(Wrong),
    /// This and all later allocations fail.
    Oom,
    /// This and all later calls say that the device is gone.
    Dead,
}

/// One fault of the list.
#[derive(Debug)]
pub(crate) struct Fault {
    site: Site,
    nth: Option<u64>,
    every: Option<u64>,
    after: Option<u64>,
    core: Option<u32>,
    shape: Option<[i32; 3]>,
    kind: Option<i32>,
    probability: Option<f64>,
    heal: Option<u64>,
    action: Action,
    calls: AtomicU64,
    hits: AtomicU64,
}

impl Fault {
    /// What this call meets, if the fault is one of it.
    pub(crate) fn strikes(&self, call: &Call, random: impl FnOnce() -> f64) -> Option<Action> {
        let shape = |[a, b, c]: [i32; 3]| {
            let same = |(want, is): (i32, i32)| want == 0 || want == is;
            call.shape.is_some_and(|[x, y, z]| [(a, x), (b, y), (c, z)].into_iter().all(same))
        };
        let concerns = self.site == call.site
            && self.core.is_none_or(|core| call.core == Some(core))
            && self.kind.is_none_or(|kind| call.kind == Some(kind))
            && self.shape.is_none_or(shape);
        if !concerns {
            return None;
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.nth.is_none_or(|n| number == n)
            && self.every.is_none_or(|n| number.is_multiple_of(n))
            && self.after.is_none_or(|n| number > n)
            && self.probability.is_none_or(|p| random() < p);
        if !now {
            return None;
        }
        let hit = self.hits.fetch_add(1, Ordering::Relaxed) + 1;
        self.heal.is_none_or(|most| hit <= most).then_some(self.action)
    }
}

/// Faults of a list.
pub(crate) fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(one).collect()
}

fn one(text: &str) -> Result<Fault, String> {
    let bad = |what: &str| format!("the fault `{text}` {what}");
    let mut parts = text.split(':').map(str::trim);
    let site = match parts.next().unwrap_or_default() {
        "create" => Site::Create,
        "create_mem" => Site::CreateMem,
        "from_fd" => Site::FromFd,
        "set_io" => Site::SetIo,
        "core_mask" => Site::CoreMask,
        "run" => Site::Run,
        "sync" => Site::Sync,
        "query" => Site::Query,
        "destroy" => Site::Destroy,
        other => return Err(bad(&format!("is at the unknown site `{other}`"))),
    };
    let mut fault = Fault {
        site,
        nth: None,
        every: None,
        after: None,
        core: None,
        shape: None,
        kind: None,
        probability: None,
        heal: None,
        action: Action::Null,
        calls: AtomicU64::new(0),
        hits: AtomicU64::new(0),
    };
    let mut action = None;
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let number = || value.parse::<u64>().map_err(|_| bad(&format!("needs a number: {part}")));
        let core = || number().map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        match name {
            "nth" => fault.nth = Some(number()?),
            "every" => fault.every = Some(number()?.max(1)),
            "after" => fault.after = Some(number()?),
            "heal" => fault.heal = Some(number()?),
            "core" => fault.core = Some(core()?),
            "type" => fault.kind = Some(signed(value).ok_or_else(|| bad("has a bad type"))?),
            "p" => fault.probability = Some(value.parse().map_err(|_| bad("has a bad p"))?),
            "shape" => {
                let sizes: Option<Vec<i32>> = value.split('x').map(signed).collect();
                let sizes = sizes.and_then(|s| s.try_into().ok());
                fault.shape = Some(sizes.ok_or_else(|| bad("has a shape other than MxKxN"))?);
            }
            _ => action = Some(self::action(name, value).ok_or_else(|| bad(&said(part)))?),
        }
    }
    fault.action = action.ok_or_else(|| bad("has no action"))?;
    Ok(fault)
}

fn said(part: &str) -> String {
    format!("has an unknown part: {part}")
}

fn signed(text: &str) -> Option<i32> {
    text.parse().ok()
}

fn action(name: &str, value: &str) -> Option<Action> {
    let time = || value.parse().ok().map(Duration::from_millis);
    Some(match name {
        "rc" => Action::Code(signed(value)?),
        "null" => Action::Null,
        "hang" => Action::Hang(time().filter(|t| !t.is_zero())),
        "slow" => Action::Slow(time()?),
        "crash" => Action::Crash,
        "exit" => Action::Exit,
        "oom" => Action::Oom,
        "dead" => Action::Dead,
        "wrong" => Action::Wrong(match value {
            "zero" => Wrong::Zero,
            "stale" => Wrong::Stale,
            "nan" => Wrong::Nan,
            "flip1" => Wrong::Flip,
            "swaprows" => Wrong::SwapRows,
            "scale" => Wrong::Scale,
            _ => return None,
        }),
        _ => return None,
    })
}

/// Waits, for ever without a time.
pub(crate) fn hang(time: Option<Duration>) {
    match time {
        Some(time) => thread::sleep(time),
        None => loop {
            thread::sleep(Duration::from_secs(3600));
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(fault: &str, calls: usize) -> Vec<bool> {
        let faults = parse(fault).unwrap();
        let call =
            Call { core: Some(1), shape: Some([1, 32, 64]), kind: Some(2), ..Call::of(Site::Run) };
        (0..calls).map(|_| faults[0].strikes(&call, || 0.5).is_some()).collect()
    }

    #[test]
    fn filters_choose_calls() {
        assert_eq!(strikes("run:nth=2:rc=-1", 3), [false, true, false]);
        assert_eq!(strikes("run:every=2:rc=-1", 4), [false, true, false, true]);
        assert_eq!(strikes("run:after=1:rc=-1", 3), [false, true, true]);
        assert_eq!(strikes("run:heal=2:rc=-1", 3), [true, true, false]);
        assert_eq!(strikes("run:core=0:rc=-1", 1), [false]);
        assert_eq!(strikes("run:core=1:shape=0x32x0:type=2:rc=-1", 1), [true]);
        assert_eq!(strikes("run:shape=2x0x0:rc=-1", 1), [false]);
        assert_eq!(strikes("run:p=0.6:rc=-1", 1), [true]);
        assert_eq!(strikes("create:rc=-1", 1), [false]);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["runs:null", "run", "run:nth=x:null", "run:wrong=odd", "run:shape=1x2:null"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse(" ; ").unwrap().len(), 0);
        assert_eq!(parse("run:hang=0").unwrap()[0].action, Action::Hang(None));
    }
}
