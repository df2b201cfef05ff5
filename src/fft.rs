//! Discrete Fourier transforms of any length, put together from parts of `rustfft`.
//!
//! Its planner would choose among transforms written out for two dozen lengths, 230 KB of code that
//! spectra of sounds do not need.

use std::sync::Arc;

use rustfft::algorithm::butterflies::{
    Butterfly1, Butterfly2, Butterfly3, Butterfly4, Butterfly5, Butterfly7, Butterfly8,
};
use rustfft::algorithm::{
    BluesteinsAlgorithm, Dft, GoodThomasAlgorithm, GoodThomasAlgorithmSmall, MixedRadix, Radix4,
};
use rustfft::{Fft, FftDirection};

type Transform = Arc<dyn Fft<f32>>;

/// A length with other prime factors than these goes by way of a convolution.
const PRIMES: [usize; 10] = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31];

/// A transform of `length` complex numbers; neither direction scales. One of no numbers does nothing.
pub(crate) fn plan(length: usize, inverse: bool) -> Transform {
    let direction = if inverse { FftDirection::Inverse } else { FftDirection::Forward };
    if length == 0 {
        return Arc::new(Dft::new(0, direction));
    }
    let twos = length.trailing_zeros();
    let mut rest = length >> twos;
    let mut odd: Vec<Transform> = Vec::new();
    for prime in PRIMES {
        while rest.is_multiple_of(prime) {
            rest /= prime;
            let one = of_prime(prime, direction);
            // Powers first: what is multiplied later has no factor in common.
            match odd.pop_if(|power| power.len().is_multiple_of(prime)) {
                Some(power) => odd.push(Arc::new(MixedRadix::new(power, one))),
                None => odd.push(one),
            }
        }
    }
    if rest > 1 {
        let inner = of_power((2 * rest - 1).next_power_of_two().trailing_zeros(), direction);
        odd.push(Arc::new(BluesteinsAlgorithm::new(rest, inner)));
    }
    let Some(odd) = odd.into_iter().reduce(product) else {
        return of_power(twos, direction);
    };
    let two = || Arc::new(Butterfly2::new(direction));
    let base = if twos.is_multiple_of(2) { odd } else { product(odd, two()) };
    if twos < 2 { base } else { Arc::new(Radix4::new_with_base(twos / 2, base)) }
}

/// The transform whose length is the product of those of two that have no factor in common. Nothing is
/// multiplied between them, so that sums that are 0 stay 0.
fn product(a: Transform, b: Transform) -> Transform {
    let plain = |t: &Transform| {
        t.get_outofplace_scratch_len() == 0 && t.get_inplace_scratch_len() <= t.len()
    };
    if plain(&a) && plain(&b) {
        Arc::new(GoodThomasAlgorithmSmall::new(a, b))
    } else {
        Arc::new(GoodThomasAlgorithm::new(a, b))
    }
}

/// The transform of `2^twos` numbers. `Radix4::new` would begin with 16 and 32 numbers, 20 KB of code that is as fast.
fn of_power(twos: u32, direction: FftDirection) -> Transform {
    let (base, numbers): (Transform, u32) = match twos {
        0 => (Arc::new(Butterfly1::new(direction)), 0),
        1 => (Arc::new(Butterfly2::new(direction)), 1),
        _ if twos.is_multiple_of(2) => (Arc::new(Butterfly4::new(direction)), 2),
        _ => (Arc::new(Butterfly8::new(direction)), 3),
    };
    Arc::new(Radix4::new_with_base((twos - numbers) / 2, base))
}

fn of_prime(prime: usize, direction: FftDirection) -> Transform {
    match prime {
        3 => Arc::new(Butterfly3::new(direction)),
        5 => Arc::new(Butterfly5::new(direction)),
        7 => Arc::new(Butterfly7::new(direction)),
        _ => Arc::new(Dft::new(prime, direction)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustfft::num_complex::Complex;

    /// Primes and their powers, alone and together, of each kind.
    #[test]
    fn transforms_of_all_kinds_of_lengths_are_those_of_the_definition() {
        let lengths = (1..=130).chain([
            200,
            243,
            360,
            400,
            441,
            480,
            512,
            625,
            997,
            1000,
            1024,
            2 * 997,
            3 * 31 * 37,
        ]);
        for n in lengths {
            let x: Vec<Complex<f32>> = (0..n)
                .map(|i| {
                    let at = |k: usize| ((i * k + 7) % 101) as f32 / 50.0 - 1.0;
                    Complex::new(at(37), at(59))
                })
                .collect();
            for inverse in [false, true] {
                let fft = plan(n, inverse);
                assert_eq!(fft.len(), n);
                let mut y = x.clone();
                fft.process(&mut y);
                let sign = if inverse { 1.0 } else { -1.0 };
                for (k, y) in y.iter().enumerate() {
                    let mut want = Complex::new(0.0f64, 0.0);
                    for (i, x) in x.iter().enumerate() {
                        let turn = sign * core::f64::consts::TAU * ((i * k) % n) as f64 / n as f64;
                        want += Complex::new(f64::from(x.re), f64::from(x.im))
                            * Complex::from_polar(1.0, turn);
                    }
                    let off = (Complex::new(f64::from(y.re), f64::from(y.im)) - want).norm();
                    assert!(
                        off < 2e-6 * n as f64,
                        "{n}, inverse {inverse}, {k}: {y} and not {want}"
                    );
                }
            }
        }
        assert_eq!(plan(0, false).len(), 0);

        // A ramp's even part is a constant, whose transform has nothing else, to the bit.
        let mut ramp: Vec<Complex<f32>> =
            (0..10).map(|i| Complex::new(i as f32 * 10.0, 0.0)).collect();
        plan(10, false).process(&mut ramp);
        assert_eq!(ramp[5], Complex::new(-50.0, 0.0));
    }
}
