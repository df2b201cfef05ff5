//! Conformance of the product of 16-bit floats, for every instruction set.

use super::half_matmul::{HalfMatmulParams, HalfMatmulPlan, HalfResult, reference};
use super::half_matmul_reference::value;
use super::matmul::MatmulParams;
use crate::testing::{Numbers, Place, assert_close, skip, tolerance};
use crate::testing_bytes::Buffer;
use crate::{Activation, Dtype, Isa};
use alloc::{vec, vec::Vec};
use tilewright_intrinsics::soft;

fn halves(dtype: Dtype, x: &[f32]) -> Vec<u16> {
    let round = if dtype == Dtype::F16 { soft::f16_from_f32 } else { soft::bf16_from_f32 };
    x.iter().map(|x| round(*x)).collect()
}

fn to_bytes(x: &[u16]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn check(isa: Isa, p: &HalfMatmulParams, exact: bool) {
    let plan = HalfMatmulPlan::new(isa, p).unwrap();
    let s = &p.sizes;
    let mut numbers = Numbers::new((s.m * 31 + s.n * 7 + s.k) as u64);
    let mut some = |len| if exact { numbers.integers(len) } else { numbers.floats(len) };
    let (a, b) = (halves(p.dtype, &some(plan.a_len())), halves(p.dtype, &some(plan.b_len())));
    let bias = if s.m.is_multiple_of(3) { vec![] } else { some(s.n) };
    let (mut w, mut packed_bias) = (vec![0; plan.weights_len()], vec![0.0; plan.bias_len()]);
    plan.pack_weights(&b, &mut w).unwrap();
    plan.pack_bias(&bias, &mut packed_bias).unwrap();
    let guarded = Buffer::new(&to_bytes(&a), Place::PageEnd);
    let mut scratch = Buffer::output(plan.scratch_len() * 4, Place::PageEnd);
    let size = p.output.size();
    let mut run = |reversed: bool| {
        let mut c = Buffer::output(plan.c_len() * size, Place::PageEnd);
        let (a, scratch) = (guarded.as_ptr().cast(), scratch.as_mut_ptr().cast());
        // SAFETY: the operands have the lengths that the plan asks for, and are aligned.
        unsafe {
            plan.run_convert(a, scratch, 0..plan.convert_units());
            for unit in 0..plan.units() {
                let unit = if reversed { plan.units() - 1 - unit } else { unit };
                let (w, b) = (w.as_ptr(), packed_bias.as_ptr());
                plan.run(a, scratch, w, b, c.as_mut_ptr(), unit..unit + 1);
            }
        }
        c
    };
    let c = run(false);
    let mut written = vec![false; plan.c_len()];
    for (i, exact_sum) in reference(p, &a, &b, &bias).into_iter().enumerate() {
        let at = i / s.n / s.m * s.c_batch + i / s.n % s.m * s.c_row + i % s.n;
        let relu = s.epilogue.activation == Activation::Relu;
        let expected = if relu { exact_sum.max(0.0) } else { exact_sum };
        let bits = |i: usize| u32::from_ne_bytes([c[i], c[i + 1], c[i + 2], c[i + 3]]);
        let (found, rounding) = match p.output {
            Dtype::F32 => (f64::from(f32::from_bits(bits(4 * at))), 0.0),
            half => {
                let x = u16::from_ne_bytes([c[2 * at], c[2 * at + 1]]);
                (value(half, x), if half == Dtype::F16 { 1.0 / 2048.0 } else { 1.0 / 256.0 })
            }
        };
        let sums = if exact { 0.0 } else { tolerance(Dtype::F32, s.k + 2) };
        let allowed = sums + expected.abs() * rounding;
        assert_close(found as f32, expected, allowed, (plan.kernel_name(), at, p));
        written[at] = true;
    }
    assert!((0..c.len()).all(|i| written[i / size] || c[i] == Buffer::FILL), "{p:?}");
    assert!(c[..] == run(true)[..], "{p:?}");
}

fn vary(p: HalfMatmulParams, i: usize) -> HalfMatmulParams {
    let dtype = [Dtype::Bf16, Dtype::F16][i % 2];
    HalfMatmulParams { dtype, output: [Dtype::F32, Dtype::Bf16, Dtype::F16][i / 2 % 3], ..p }
}

fn sizes(isa: Isa) {
    let mut i = 0;
    for m in [1, 2, 4, 5, 6, 11, 12, 13, 14, 25] {
        for n in [1, 7, 16, 31, 32, 33, 64, 65, 130] {
            for k in [1, 2, 5, 8, 37] {
                i += 1;
                let p = vary(HalfMatmulParams::new(m, k, n, Dtype::F16), i);
                check(isa, &p, true);
                check(isa, &p, false);
            }
        }
    }
}

fn strides_and_batches(isa: Isa) {
    for (i, (m, n)) in [(1, 1), (3, 16), (17, 45)].into_iter().enumerate() {
        for k in [12, 13] {
            let p = MatmulParams::new(m, k, n);
            let all = [
                MatmulParams { a_row: 20, b_row: n + 3, c_row: n + 5, ..p.clone() },
                MatmulParams { b_row: 15, ..p.clone().b_transposed() },
                p.clone().batch(3),
                MatmulParams { b_batch: 0, ..p.clone().batch(4) },
                MatmulParams { a_batch: 0, c_batch: m * n + 9, ..p.batch(2) },
            ];
            for (j, mut sizes) in all.into_iter().enumerate() {
                if j % 2 == 0 {
                    sizes.epilogue.activation = Activation::Relu;
                }
                for kind in [i + j, i + j + 1] {
                    let p = HalfMatmulParams {
                        sizes: sizes.clone(),
                        dtype: Dtype::F16,
                        output: Dtype::F32,
                    };
                    check(isa, &vary(p, kind), true);
                }
            }
        }
    }
}

fn specials(isa: Isa) {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let p = HalfMatmulParams::new(5, 3, 19, dtype);
            let plan = HalfMatmulPlan::new(isa, &p).unwrap();
            let (mut a, b) = (halves(dtype, &[1.0; 15]), halves(dtype, &[1.0; 57]));
            a[7] = halves(dtype, &[special])[0];
            let (mut w, bias) = (vec![0; plan.weights_len()], vec![0.0; plan.bias_len()]);
            plan.pack_weights(&b, &mut w).unwrap();
            let (mut c, mut scratch) = (vec![0.0f32; 95], vec![0; plan.scratch_len()]);
            plan.compute(&a, &w, &bias, &mut scratch, HalfResult::F32(&mut c)).unwrap();
            for (i, (c, exact)) in c.iter().zip(reference(&p, &a, &b, &[])).enumerate() {
                assert_close(*c, exact, 0.0, (special, i));
            }
        }
    }
}

#[test]
fn every_instruction_set_conforms() {
    for isa in Isa::ALL.into_iter().filter(|isa| !skip(*isa)) {
        let own = |dtype| super::dot_tile::row(isa, dtype).kernels[0].info.isa == isa;
        if own(Dtype::F16) || own(Dtype::Bf16) {
            sizes(isa);
            strides_and_batches(isa);
            specials(isa);
        }
    }
}
