//! What the pool saves, measured: lists of requests, answered by the pool and by the driver.

use core::hint::black_box;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::sys::Mem;
use super::{OpenClDevice, OpenClError, Shared};

/// A request for memory, in a list of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Memory under a number: of so many bytes.
    Take(usize, usize),
    /// The memory with this number is given back.
    Give(usize),
}

impl Request {
    /// A recorded list: lines of `+ number bytes` and `- number`, and `#` before comments. `None` if a line is
    /// something else, or gives back what was not taken.
    pub fn list(text: &str) -> Option<Vec<Self>> {
        let mut held = std::collections::HashSet::new();
        let request = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = words.get(1)?.parse().ok()?;
            match words[..] {
                ["+", _, bytes] => {
                    held.insert(number).then_some(Self::Take(number, bytes.parse().ok()?))
                }
                ["-", _] => held.remove(&number).then_some(Self::Give(number)),
                _ => None,
            }
        };
        text.lines().filter(|line| !line.starts_with('#')).map(request).collect()
    }
}

/// How long requests take, each list several times, as sums.
#[derive(Clone, Copy, Debug)]
pub struct AllocationTimes {
    /// By the pool when it meets them for the first time: it gets slabs from the driver.
    pub first: Duration,
    /// By the pool from then on.
    pub pool: Duration,
    /// By `clCreateBuffer` and `clReleaseMemObject`.
    pub driver: Duration,
    /// The same until the memory is there, as drivers may find it only when it is first used: all of it is
    /// written, and what that takes where memory was used before is subtracted.
    pub driver_used: Duration,
    /// By nothing but a lock that nobody else wants, once for each request: what no allocator that threads
    /// share can be faster than.
    pub lock: Duration,
}

/// Answers requests by `take`; what was not given back is, in the end.
fn answer<T>(
    requests: &[Request],
    mut take: impl FnMut(usize) -> Result<T, OpenClError>,
) -> Result<Duration, OpenClError> {
    let number = |request: &Request| match *request {
        Request::Take(number, _) | Request::Give(number) => number + 1,
    };
    let count = requests.iter().map(number).max().unwrap_or(0);
    let mut held: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let begin = Instant::now();
    for request in requests {
        match *request {
            Request::Take(number, bytes) => held[number] = Some(take(bytes)?),
            Request::Give(number) => held[number] = None,
        }
    }
    drop(held);
    Ok(begin.elapsed())
}

impl OpenClDevice {
    /// How long it takes to answer requests, `rounds` times each way but the first. Memory of the pool that
    /// nobody uses goes back to the device before.
    ///
    /// # Errors
    /// Too little memory.
    pub fn allocation_times(
        &self,
        requests: &[Request],
        rounds: usize,
    ) -> Result<AllocationTimes, OpenClError> {
        let Shared { pool, queue, context, .. } = &*self.shared;
        let bytes = |request: &Request| match *request {
            Request::Take(_, bytes) => bytes,
            Request::Give(_) => 0,
        };
        let zeros = vec![0u8; requests.iter().map(bytes).max().unwrap_or(0)];
        let write =
            |memory: &Mem, bytes: usize| queue.submit(|s| s.write_now(memory, 0, &zeros[..bytes]));
        let from_pool = |bytes| pool.take(bytes);
        let from_driver = |bytes| Mem::new(context, bytes);
        let lock = Mutex::new(0usize);
        let locked = |bytes| {
            *black_box(&lock).lock().unwrap_or_else(PoisonError::into_inner) += bytes;
            Ok(())
        };
        let written_from_pool = |bytes| {
            let region = pool.take(bytes)?;
            write(region.memory(), bytes).map(|()| region)
        };
        let written_from_driver = |bytes| {
            let memory = Mem::new(context, bytes)?;
            write(&memory, bytes).map(|()| memory)
        };
        pool.trim();
        let first = answer(requests, from_pool)?;
        // Whoever comes first after this finds memory that was used.
        answer(requests, written_from_pool)?;
        answer(requests, from_driver)?;
        let [mut here, mut driver, mut used, mut reused, mut locks] = [Duration::ZERO; 5];
        for _ in 0..rounds {
            here += answer(requests, from_pool)?;
            driver += answer(requests, from_driver)?;
            locks += answer(requests, locked)?;
        }
        // These take longer: as many rounds as write some 256 MiB.
        let written: usize = requests.iter().map(bytes).sum();
        let few = ((256 << 20) / written.max(1)).clamp(1, rounds.max(1));
        for _ in 0..few {
            used += answer(requests, written_from_driver)?;
            reused += answer(requests, written_from_pool)?;
        }
        let all = |time: Duration| time.mul_f64(rounds as f64 / few as f64);
        let driver_used = (all(used) + here).saturating_sub(all(reused));
        Ok(AllocationTimes { first, pool: here, driver, driver_used, lock: locks * 2 })
    }
}
