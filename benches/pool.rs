//! What sharing work among threads costs: the time that a job of equal parts takes beyond one part.
//!
//! `cargo bench --bench pool [THREADS]` prints minimum, median, 99th percentile and mean, in
//! microseconds. *hot*: one job after the other. *100 us*, *1 ms*: after the caller did something
//! else for so long; after a millisecond the workers sleep. *phase*: each of 100 phases of one job,
//! as the layers of a network.

use core::hint::black_box;
use core::time::Duration;
use std::time::Instant;

use tilewright::Isa;
use tilewright::backend::cpu::Executor;

/// About two microseconds of work that stays in registers.
fn work() {
    let mut x = 1.0f64;
    for _ in 0..600 {
        x = black_box(x * 1.0000001 + 1e-9);
    }
    black_box(x);
}

/// Minimum, median, 99th percentile and mean, in microseconds.
fn statistics(mut samples: Vec<Duration>) -> [f64; 4] {
    samples.sort();
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    let mean = samples.iter().sum::<Duration>() / samples.len() as u32;
    let at = |percent: usize| micros(samples[samples.len() * percent / 100]);
    [micros(samples[0]), at(50), at(99), micros(mean)]
}

fn print(name: &str, all: [f64; 4], alone: [f64; 4]) {
    let [min, median, late, mean] =
        [all[0] - alone[0], all[1] - alone[1], all[2] - alone[1], all[3] - alone[1]];
    println!("{name:8} {min:8.2} {median:8.2} {late:8.2} {mean:8.2}");
}

fn main() {
    let threads = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(2);
    let mut executor = Executor::new(Isa::Scalar, threads).expect("the system has threads");
    let alone = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let alone = statistics((0..3000).map(alone).collect());
    println!("microseconds beyond {:.2} of work on each of {threads} threads", alone[1]);
    println!("{:8} {:>8} {:>8} {:>8} {:>8}", "", "min", "median", "99 %", "mean");
    for (name, idle, count) in [("hot", 0, 5000), ("100 us", 100, 1500), ("1 ms", 1000, 400)] {
        let idle = Duration::from_micros(idle);
        let sample = |_| {
            let start = Instant::now();
            while start.elapsed() < idle {
                core::hint::spin_loop();
            }
            executor.time_sharing(1, &work)
        };
        print(name, statistics((0..count).map(sample).collect()), alone);
    }
    let phases = (0..200).map(|_| executor.time_sharing(100, &work) / 100).collect();
    print("phase", statistics(phases), alone);
}
