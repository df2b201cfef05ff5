//! Resampling along an axis: elements of the result are weighted sums of elements of the operand, each a run of
//! numbers (the channels of a pixel, a row) or a single one.

use crate::{Dtype, Isa, KernelError};

/// What elements of a result are: sums of runs of `x`, each of `run` numbers.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// The operand.
    pub x: &'a [f32],
    /// Numbers in a run.
    pub run: usize,
    /// Runs that are added for each element of the result.
    pub taps: usize,
    /// Which they are, `taps` for each element; [`u32::MAX`] as the first stands for `fill`.
    pub index: &'a [u32],
    /// What they are multiplied by.
    pub weight: &'a [f32],
    /// The value of elements that lie outside of the operand.
    pub fill: f32,
}

impl Sums<'_> {
    /// Single numbers, without vectors. Inlined, as the number of taps is a constant where it is called.
    #[inline(always)]
    fn each(&self, taps: usize, y: &mut [f32]) {
        let rows = self.index.chunks_exact(taps).zip(self.weight.chunks_exact(taps));
        for (y, (index, weight)) in y.iter_mut().zip(rows) {
            if index[0] == u32::MAX {
                *y = self.fill;
                continue;
            }
            let term = |t: usize| weight[t] * self.x[index[t] as usize];
            *y = (1..taps).fold(term(0), |sum, t| sum + term(t));
        }
    }
}

/// The kernels of an instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Resample {
    kernel: SumFn,
    name: &'static str,
}

impl Resample {
    /// Those for `isa`.
    ///
    /// # Errors
    ///
    /// [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa) -> Result<Self, KernelError> {
        isa.require()?;
        let (kernel, name) = kernel(isa);
        Ok(Self { kernel, name })
    }

    /// What adds runs of so many numbers; single ones have code for all machines.
    pub fn kernel_name(&self, run: usize) -> &'static str {
        if run == 1 { "resize_f32_1" } else { self.name }
    }

    /// Computes the elements that fill `y`: runs times their weights, added in that order, each product and sum
    /// rounded.
    ///
    /// # Panics
    ///
    /// For runs or taps of nothing, too few indices or weights, and runs that end behind `x`.
    pub fn run(&self, sums: &Sums<'_>, y: &mut [f32]) {
        let needed = y.len().div_ceil(sums.run) * sums.taps;
        assert!(
            needed <= sums.index.len() && needed <= sums.weight.len(),
            "a run for each element"
        );
        match (sums.run, sums.taps) {
            // As by linear interpolation.
            (1, 2) => sums.each(2, y),
            (1, taps) => sums.each(taps, y),
            // SAFETY: the ISA is available.
            _ => unsafe { (self.kernel)(sums, y) },
        }
    }
}

/// # Safety
///
/// The CPU has the instructions.
type SumFn = unsafe fn(&Sums<'_>, &mut [f32]);

macro_rules! resample_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $lanes:tt,
     $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            pub(super) const KERNEL: (SumFn, &str) =
                (sum, concat!("resize_f32_", $lanes, "_", stringify!($isa_name)));

            $(#[target_feature(enable = $f)])*
            unsafe fn sum(sums: &Sums<'_>, y: &mut [f32]) {
                const LANES: usize = tile!(LANES);
                let (n, taps) = (sums.run, sums.taps);
                let whole = n / LANES;
                let (done, rest) = (whole * LANES, n - whole * LANES);
                let rows = sums.index.chunks_exact(taps).zip(sums.weight.chunks_exact(taps));
                for ((index, weight), y) in rows.zip(y.chunks_exact_mut(n)) {
                    if index[0] == u32::MAX {
                        y.fill(sums.fill);
                        continue;
                    }
                    let run = |t: usize| sums.x[index[t] as usize * n..][..n].as_ptr();
                    let y = y.as_mut_ptr();
                    let (first, scale) = (run(0), tile!(VSET weight[0]));
                    // Two are what nearly all networks have.
                    if let &[_, other] = weight {
                        let (second, other) = (run(1), tile!(VSET other));
                        for i in 0..whole {
                            let sum = tile!(VMUL tile!(VLOAD first, i), scale);
                            let sum = tile!(VADD sum, tile!(VMUL tile!(VLOAD second, i), other));
                            tile!(VSTORE y, i, sum);
                        }
                    } else {
                        for i in 0..whole {
                            let mut sum = tile!(VMUL tile!(VLOAD first, i), scale);
                            for t in 1..taps {
                                let (x, w) = (run(t), tile!(VSET weight[t]));
                                sum = tile!(VADD sum, tile!(VMUL tile!(VLOAD x, i), w));
                            }
                            tile!(VSTORE y, i, sum);
                        }
                    }
                    if rest > 0 {
                        let first = first.wrapping_add(done);
                        let mut sum = tile!(VMUL tile!(VLOAD_TAIL first, rest), scale);
                        for t in 1..taps {
                            let (x, w) = (run(t).wrapping_add(done), tile!(VSET weight[t]));
                            sum = tile!(VADD sum, tile!(VMUL tile!(VLOAD_TAIL x, rest), w));
                        }
                        let y = y.wrapping_add(done);
                        tile!(VSTORE_TAIL y, rest, sum);
                    }
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(resample_row);

fn kernel(isa: Isa) -> (SumFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNEL;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNEL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Guarded, Numbers, Place, skip};
    use alloc::vec::Vec;

    /// By the definition.
    fn reference(s: &Sums<'_>, elements: usize) -> Vec<f32> {
        let element = |e: usize, i: usize| {
            let (index, weight) = (&s.index[e * s.taps..][..s.taps], &s.weight[e * s.taps..]);
            let term = |t: usize| weight[t] * s.x[index[t] as usize * s.run + i];
            let sum = || (1..s.taps).fold(term(0), |sum, t| sum + term(t));
            if index[0] == u32::MAX { s.fill } else { sum() }
        };
        (0..elements * s.run).map(|i| element(i / s.run, i % s.run)).collect()
    }

    fn check(isa: Isa, taps: usize, run: usize, place: Place) {
        let (mut numbers, runs, elements) = (Numbers::new((run * 8 + taps) as u64), 5, 4);
        let mut index: Vec<u32> = (0..elements * taps).map(|t| (t * 3 + run) as u32 % 5).collect();
        index[2 * taps] = u32::MAX;
        let x = Guarded::new(&numbers.floats(runs * run), place);
        let weight = numbers.floats(elements * taps);
        let sums = Sums { x: &x, run, taps, index: &index, weight: &weight, fill: 9.0 };
        let mut y = Guarded::output(elements * run, place);
        Resample::new(isa).unwrap().run(&sums, &mut y);
        assert_eq!(y[..], reference(&sums, elements)[..], "{isa} {taps} {run}");
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            mod $id {
                use super::*;

                #[test]
                fn runs_are_added_by_their_weights() {
                    if !skip(Isa::$isa) {
                        for taps in [1, 2, 3, 4, 7] {
                            (1..70).for_each(|n| check(Isa::$isa, taps, n, Place::ALL[n % 3]));
                        }
                    }
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);

    // Where a panic can be survived, which it cannot on WebAssembly.
    #[cfg(panic = "unwind")]
    #[test]
    fn what_is_not_there_is_not_read() {
        let kernels = Resample::new(Isa::Scalar).unwrap();
        for (run, index, weight) in
            [(3, &[0, 2][..], &[1.0; 2][..]), (1, &[0, 8], &[1.0; 2]), (3, &[0, 1], &[1.0])]
        {
            let fails = std::panic::catch_unwind(|| {
                let sums = Sums { x: &[0.0; 8], run, taps: 2, index, weight, fill: 0.0 };
                kernels.run(&sums, &mut [0.0; 3][..run]);
            });
            assert!(fails.is_err(), "{run} {index:?}");
        }
    }
}
