//! `peers SECONDS MxKxN...`: one line `crate MxKxN microseconds` per crate and size, f32, one
//! thread, medians.

use std::time::{Duration, Instant};

fn filled(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 17) as f32 * 0.125 - 1.0).collect()
}

fn median(budget: Duration, mut run: impl FnMut()) -> f64 {
    (0..2).for_each(|_| run());
    let (begin, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < 3 || begin.elapsed() < budget {
        let start = Instant::now();
        run();
        samples.push(start.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2] * 1e6
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().and_then(|s| s.parse().ok()).unwrap_or(0.2);
    let budget = Duration::from_secs_f64(seconds);
    for size in args {
        let sizes: Vec<usize> = size.split('x').filter_map(|s| s.parse().ok()).collect();
        let &[m, k, n] = &sizes[..] else { panic!("{size} is not MxKxN") };
        let (a, b, mut c) = (filled(m * k), filled(k * n), filled(m * n));
        let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        let (row, one) = (|n: usize| n as isize, 1);
        let time = median(budget, || {
            // SAFETY: the three matrices are dense and have the lengths that the sizes say.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    c,
                    one,
                    row(n),
                    false,
                    a,
                    one,
                    row(k),
                    b,
                    one,
                    row(n),
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        });
        println!("gemm {size} {time:.3}");
        let time = median(budget, || {
            // SAFETY: as above.
            unsafe {
                matrixmultiply::sgemm(m, k, n, 1.0, a, row(k), 1, b, row(n), 1, 0.0, c, row(n), 1);
            }
        });
        println!("matrixmultiply {size} {time:.3}");
    }
}
