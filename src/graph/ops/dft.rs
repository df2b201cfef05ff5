//! The discrete Fourier transform.

use core::f64::consts::TAU;
use core::ops::Neg;

use super::elements::{around, checked_count, expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
#[cfg(feature = "ops-more")]
use crate::graph::{LowerCx, Step};
use crate::tensor::DType;

/// The transform of an axis, as ONNX `DFT`. The last axis of the operand has the real part of each
/// number, or the real and the imaginary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dft {
    /// The axis, from the slowest; not the last one.
    pub axis: usize,
    /// Elements of the transform: the axis is cut, or continued with zeros.
    pub length: usize,
    /// From frequencies to a signal.
    pub inverse: bool,
    /// Leaves out the frequencies that follow from the others when signals are real. The result of
    /// an inverse transform is real then.
    pub onesided: bool,
}

const OP: &str = "dft";

/// What longer transforms keep beside their operands is made in each run: from the plan on it would be too much of
/// what a model's constants may be.
const LONGEST: usize = 1 << 18;

/// Numbers that a fast transform keeps for each of its elements, at most: for a prime the spectrum of a factor and
/// what a transform of four times the length has itself, complex, and factors of its own. With room.
const KEPT: usize = 24;

impl Dft {
    /// A tensor as large as what a fast transform keeps from the plan on, at most.
    pub(crate) fn kept(&self) -> Info {
        let numbers = if self.length > LONGEST { 0 } else { self.length.saturating_mul(KEPT) };
        Info::plain(DType::F32, vec![numbers])
    }

    /// Extents of the transformed and of the last axis of the result.
    fn extents(&self) -> (usize, usize) {
        match (self.onesided, self.inverse) {
            (true, false) => (self.length / 2 + 1, 2),
            (true, true) => (self.length, 1),
            _ => (self.length, 2),
        }
    }

    /// Real and imaginary part of element `j` of what is transformed, where `number` gives those of an
    /// operand with `extent` elements.
    fn element<T: Copy + Default + Neg<Output = T>>(
        &self,
        j: usize,
        extent: usize,
        number: impl Fn(usize) -> (T, T),
    ) -> (T, T) {
        let given = |j| if j < extent { number(j) } else { Default::default() };
        if !(self.inverse && self.onesided) {
            return given(j);
        }
        // Half of the frequencies mirror the others; those without a mirror are real.
        let mirror = (self.length - j) % self.length;
        if j == mirror {
            (given(j).0, T::default())
        } else if j < mirror {
            given(j)
        } else {
            let (re, im) = given(mirror);
            (re, -im)
        }
    }

    /// One transform of complex numbers.
    fn transform(&self, x: &[(f64, f64)], turns: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let n = self.length;
        let at = |k: usize| {
            // Element j is turned by j k modulo n; a division for each would take longer than all else.
            let mut turn = 0;
            let term = |&(re, im): &(f64, f64)| {
                let (cos, sin) = turns[turn];
                turn += k;
                turn -= if turn >= n { n } else { 0 };
                let sin = if self.inverse { sin } else { -sin };
                (re * cos - im * sin, re * sin + im * cos)
            };
            let sum = x.iter().map(term);
            let (re, im) = sum.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let scale = if self.inverse { 1.0 / n as f64 } else { 1.0 };
            (re * scale, im * scale)
        };
        (0..self.extents().0).map(at).collect()
    }
}

impl Operator for Dft {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d.is_float())?;
        let complex = matches!(x.dims.last(), Some(1 | 2));
        let real = x.dims.last() == Some(&1);
        // Frequencies that are left out follow from the others of a real signal only.
        let fits = !self.onesided || self.inverse || real;
        if !complex || !fits || self.length == 0 || self.axis + 1 >= x.dims.len() {
            let rule = "there must be an axis in front of real and imaginary parts";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims)]));
        }
        let (count, parts) = self.extents();
        let mut dims = x.dims.clone();
        let last = dims.len() - 1;
        (dims[self.axis], dims[last]) = (count, parts);
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, dims) = (floats(&src[0], OP)?, src[0].dims);
        let parts = dims[dims.len() - 1];
        let (outer, extent, inner) = around(&dims[..dims.len() - 1], self.axis);
        let (count, out_parts) = self.extents();
        let turn = |j: usize| {
            let angle = TAU * j as f64 / self.length as f64;
            (libm::cos(angle), libm::sin(angle))
        };
        #[cfg(feature = "ops-more")]
        let fft =
            fast::takes(self, src[0].dtype).then(|| crate::fft::plan(self.length, self.inverse));
        #[cfg(not(feature = "ops-more"))]
        let fft: Option<()> = None;
        let turns: Vec<(f64, f64)> =
            (0..if fft.is_some() { 0 } else { self.length }).map(turn).collect();
        let mut out = vec![0.0; outer * count * inner * out_parts];
        for lane in 0..outer * inner {
            let (o, i) = (lane / inner, lane % inner);
            let number = |j: usize| {
                let at = ((o * extent + j) * inner + i) * parts;
                (x[at], if parts == 2 { x[at + 1] } else { 0.0 })
            };
            let last =
                if self.inverse && self.onesided { self.length } else { extent.min(self.length) };
            let line: Vec<_> = (0..last).map(|j| self.element(j, extent, number)).collect();
            let result = match &fft {
                #[cfg(feature = "ops-more")]
                Some(fft) => fast::transform(self, fft.as_ref(), &line),
                _ => self.transform(&line, &turns),
            };
            for (k, (re, im)) in result.into_iter().enumerate() {
                let at = ((o * count + k) * inner + i) * out_parts;
                out[at] = re;
                if out_parts == 2 {
                    out[at + 1] = im;
                }
            }
        }
        write_floats(dst, OP, out)
    }

    // What `eval` does as well.
    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        #[cfg(feature = "ops-more")]
        if fast::takes(self, dst.dtype) {
            return fast::macs(self, dst);
        }
        let used = src[0].dims[self.axis].min(self.length) as u64;
        (dst.elements() as u64).saturating_mul(used).saturating_mul(2)
    }

    #[cfg(feature = "ops-more")]
    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        fast::lower(self, cx)
    }
}

/// Fast transforms of f32, by `rustfft`: any length takes about `n log n` operations.
#[cfg(feature = "ops-more")]
mod fast {
    use core::ops::Range;
    use std::sync::Arc;

    use rustfft::Fft;
    use rustfft::num_complex::Complex;

    use super::{Dft, KEPT, LONGEST, around};
    use crate::graph::{GraphError, Info, LowerCx, Step};
    use crate::tensor::DType;

    /// The longest: the arithmetic of planning stays within that of addresses.
    const FAST: usize = usize::MAX >> 12;

    pub(super) fn takes(op: &Dft, dtype: DType) -> bool {
        dtype == DType::F32 && op.length <= FAST
    }

    /// `5/2 n log2 n` for each transform, as of radix 2.
    pub(super) fn macs(op: &Dft, dst: &Info) -> u64 {
        let (count, parts) = op.extents();
        let transforms = (dst.elements() / (count * parts).max(1)) as u64;
        let each = op.length as u64 * u64::from(op.length.max(2).ilog2());
        transforms.saturating_mul(each).saturating_mul(5) / 2
    }

    pub(super) fn lower(op: &Dft, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if !takes(op, cx.dst.dtype) {
            return Ok(None);
        }
        let dims = &cx.src[0].dims;
        let parts = dims[dims.len() - 1];
        let (outer, extent, inner) = around(&dims[..dims.len() - 1], op.axis);
        let fft = (op.length <= LONGEST).then(|| crate::fft::plan(op.length, op.inverse));
        Ok(Some(Box::new(Run { op: *op, fft, outer, extent, inner, parts })))
    }

    /// One transform.
    #[allow(clippy::cast_possible_truncation, reason = "numbers come from f32, and become f32")]
    pub(super) fn transform(op: &Dft, fft: &dyn Fft<f32>, x: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let mut line = vec![Complex { re: 0.0, im: 0.0 }; op.length];
        for (to, &(re, im)) in line.iter_mut().zip(x) {
            *to = Complex { re: re as f32, im: im as f32 };
        }
        fft.process(&mut line);
        let scale = if op.inverse { 1.0 / op.length as f64 } else { 1.0 };
        let scaled = |v: &Complex<f32>| (f64::from(v.re) * scale, f64::from(v.im) * scale);
        line[..op.extents().0].iter().map(scaled).collect()
    }

    /// A unit is one transform.
    struct Run {
        op: Dft,
        /// Not that of a long one.
        fft: Option<Arc<dyn Fft<f32>>>,
        outer: usize,
        extent: usize,
        inner: usize,
        parts: usize,
    }

    impl Step for Run {
        fn kernel(&self) -> String {
            format!("dft_f32_{}", self.op.length)
        }

        fn units(&self) -> usize {
            self.outer * self.inner
        }

        fn scratch_bytes(&self) -> usize {
            // Of a long one also what it keeps during the run, which lies elsewhere: memory that is not touched
            // is counted, not taken.
            let work = match &self.fft {
                Some(fft) => fft.get_inplace_scratch_len(),
                None => self.op.length * KEPT,
            };
            (self.op.length + work) * size_of::<Complex<f32>>()
        }

        #[allow(unsafe_code)]
        unsafe fn run(
            &self,
            src: &[*const u8],
            dst: *mut u8,
            scratch: *mut u8,
            units: Range<usize>,
        ) -> Result<(), GraphError> {
            let (op, extent, inner, parts) = (&self.op, self.extent, self.inner, self.parts);
            let (count, out_parts) = op.extents();
            let numbers = self.outer * extent * inner * parts;
            let complex = self.scratch_bytes() / size_of::<Complex<f32>>();
            // SAFETY: the operand has so many f32 and the scratch memory so many complex numbers, of two
            // f32 each; any bits are numbers, and no other thread uses the scratch memory meanwhile.
            let (x, work) = unsafe {
                (
                    core::slice::from_raw_parts(src[0].cast::<f32>(), numbers),
                    core::slice::from_raw_parts_mut(scratch.cast::<Complex<f32>>(), complex),
                )
            };
            let (line, work) = work.split_at_mut(op.length);
            #[allow(clippy::cast_possible_truncation, reason = "a factor, rounded")]
            let scale = if op.inverse { (1.0 / op.length as f64) as f32 } else { 1.0 };
            let made = || crate::fft::plan(op.length, op.inverse);
            let fft = self.fft.clone().unwrap_or_else(made);
            let work = work.get_mut(..fft.get_inplace_scratch_len()).ok_or_else(|| {
                let what = format!("a transform of {} elements", op.length);
                GraphError::Unsupported { op: super::OP, what }
            })?;
            for unit in units {
                let (o, i) = (unit / inner, unit % inner);
                for (j, slot) in line.iter_mut().enumerate() {
                    let (re, im) = op.element(j, extent, |j| {
                        let at = ((o * extent + j) * inner + i) * parts;
                        (x[at], if parts == 2 { x[at + 1] } else { 0.0 })
                    });
                    *slot = Complex { re, im };
                }
                fft.process_with_scratch(line, work);
                for (k, value) in line[..count].iter().enumerate() {
                    let at = ((o * count + k) * inner + i) * out_parts;
                    // SAFETY: the result has `outer` times `count` times `inner` times `out_parts` f32,
                    // and those of this lane are this call's alone.
                    unsafe {
                        let y = dst.cast::<f32>().add(at);
                        y.write(value.re * scale);
                        if out_parts == 2 {
                            y.add(1).write(value.im * scale);
                        }
                    }
                }
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn there_and_back() {
        let x: Vec<f32> = vec![1.0, -2.0, 3.5, 0.25, 4.0];
        let mut cx = Context::new();
        for length in [5usize, 4] {
            let id = cx.constant(Tensor::from_slice(&[1, 5, 1], &x).unwrap()).unwrap();
            let to = Dft { axis: 1, length, inverse: false, onesided: true };
            let y = cx.op(to, &[id]).unwrap();
            assert_eq!(cx.dims(y), [1, 3, 2]);
            let z = cx.op(Dft { inverse: true, ..to }, &[y]).unwrap();
            let z = cx.constant_value(z).unwrap();
            assert_eq!(z.dims(), [1, length, 1]);
            let z = z.as_slice::<f32>().unwrap();
            assert!(z.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{z:?}");
        }
        let id = cx.constant(Tensor::from_slice(&[1, 5, 1], &x).unwrap()).unwrap();
        for (axis, length) in [(2, 4), (1, 0), (1, usize::MAX)] {
            assert!(cx.op(Dft { axis, length, inverse: true, onesided: false }, &[id]).is_err());
        }
    }

    #[cfg(feature = "ops-more")]
    #[test]
    fn long_transforms_are_fast() {
        use crate::backend::cpu::Executor;
        use tilewright_kernels::Isa;

        // A prime, and a length of many kinds; by the definition each would take minutes.
        for length in [262_147usize, 480_000] {
            let place = 12_345;
            let tone =
                |j: usize| ((TAU * ((j * place) % length) as f64 / length as f64).cos()) as f32;
            let x: Vec<f32> = (0..length).map(tone).collect();
            let mut cx = Context::new();
            let id = cx.input("x", DType::F32, &[1, length, 1]).unwrap();
            let to = Dft { axis: 1, length, inverse: false, onesided: true };
            let y = cx.op(to, &[id]).unwrap();
            let z = cx.op(Dft { inverse: true, ..to }, &[y]).unwrap();
            let mut executor = Executor::new(Isa::best(), 2).unwrap();
            let plan = executor.plan(&mut cx, &[y, z]).unwrap();
            let given = Tensor::from_slice(&[1, length, 1], &x).unwrap();
            let results = executor.run(&plan, &[&given], None).unwrap();
            let spectrum = results[0].as_slice::<f32>().unwrap();
            let largest = spectrum.chunks_exact(2).enumerate();
            let largest = largest.max_by(|a, b| a.1[0].total_cmp(&b.1[0])).unwrap();
            assert_eq!(largest.0, place);
            assert!((largest.1[0] / length as f32 - 0.5).abs() < 1e-4, "{largest:?}");
            let back = results[1].as_slice::<f32>().unwrap();
            assert!(back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }

    #[cfg(feature = "ops-more")]
    #[test]
    fn fast_transforms_agree_with_the_definition_on_any_number_of_threads() {
        use crate::backend::cpu::Executor;
        use crate::tensor::DType;
        use tilewright_kernels::Isa;

        // Powers of two, a product, primes that are small and large, 1; shorter and longer operands.
        for (extent, length) in [(64, 64), (60, 60), (400, 512), (7, 5), (211, 211), (3, 1), (2, 2)]
        {
            for (inverse, onesided, parts) in [
                (false, false, 2),
                (false, true, 1),
                (true, false, 1),
                (true, true, 2),
                (true, true, 1),
            ] {
                let dims = [2, extent, 3, parts];
                let elements = dims.iter().product();
                let x: Vec<f32> =
                    (0..elements).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
                // Those of 64 bits are computed by the definition.
                let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let exact = Tensor::from_slice(&dims, &exact).unwrap();
                let x = Tensor::from_slice(&dims, &x).unwrap();
                let op = Dft { axis: 1, length, inverse, onesided };
                let mut cx = Context::new();
                let id = cx.constant(exact).unwrap();
                let want = cx.op(op, &[id]).unwrap();
                let want = cx.constant_value(want).unwrap();
                let want: Vec<f32> =
                    want.as_slice::<f64>().unwrap().iter().map(|&v| v as f32).collect();
                let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
                let mut first: Option<Vec<f32>> = None;
                for threads in [1, 3] {
                    let mut cx = Context::new();
                    let input = cx.input("x", DType::F32, &dims).unwrap();
                    let y = cx.op(op, &[input]).unwrap();
                    let mut executor = Executor::new(Isa::best(), threads).unwrap();
                    let plan = executor.plan(&mut cx, &[y]).unwrap();
                    assert!(plan.nodes().any(|n| n.kernel == format!("dft_f32_{length}")));
                    let found = executor.run(&plan, &[&x], None).unwrap();
                    let found = found[0].as_slice::<f32>().unwrap();
                    let error = found.iter().zip(&want[..]).map(|(a, b)| (a - b).abs());
                    let error = error.fold(0f32, f32::max);
                    assert!(error <= 1e-6 * largest.max(1e-3), "{op:?} of {dims:?}: {error}");
                    let first = first.get_or_insert_with(|| found.to_vec());
                    assert_eq!(found[..], first[..], "{op:?} on {threads} threads");
                }
            }
        }
    }
}
