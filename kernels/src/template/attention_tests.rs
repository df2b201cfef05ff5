//! Conformance tests of attention over a cache.

use super::attention::{AttentionOperands, AttentionParams, AttentionPlan};
use super::attention_layout::CacheType;
use super::attention_reference::{attend, cached};
use crate::testing::{Guarded, Numbers, Place, assert_close, skip, tolerance};
use crate::testing_bytes::Buffer;
use crate::{Dtype, Isa, KernelError};
use alloc::{vec, vec::Vec};
use core::ptr;

/// Runs all stages, units from the last to the first, each on its own.
fn run(plan: &AttentionPlan, o: &AttentionOperands, place: Place) {
    let mut scratch = Guarded::output(plan.scratch_bytes() / 4, place);
    let mut parts = Guarded::output(plan.parts_bytes() / 4, place);
    // SAFETY: operands of the plan's lengths, units of the plan, one thread.
    unsafe {
        for unit in (0..plan.store_units()).rev() {
            plan.run_store(o, unit..unit + 1);
        }
        for unit in (0..plan.part_units()).rev() {
            scratch.fill(f32::NAN);
            plan.run_parts(o, parts.as_mut_ptr(), scratch.as_mut_ptr(), unit..unit + 1);
        }
        for unit in (0..plan.units()).rev() {
            scratch.fill(f32::NAN);
            plan.run(o, parts.as_ptr(), scratch.as_mut_ptr(), unit..unit + 1);
        }
    }
}

/// Numbers that all types of cache hold exactly: a run of 32 has a 127, and all are integers / 64.
fn exact(numbers: &mut Numbers, rows: usize, row: usize, head: usize) -> Vec<f32> {
    let mut x = numbers.floats(rows * row);
    for (i, x) in x.iter_mut().enumerate() {
        *x = if (i % row % head).is_multiple_of(32) { 127.0 } else { (*x * 127.0).trunc() } / 64.0;
    }
    x
}

/// Stores `past` positions at once, then runs `p.rows` more, and compares all rows of all heads.
fn check(isa: Isa, p: AttentionParams, past: usize, place: Place, with_sinks: bool) {
    let total = past + p.rows;
    let plan = AttentionPlan::new(isa, &p).unwrap();
    let before = AttentionPlan::new(isa, &AttentionParams { rows: past.max(2), ..p }).unwrap();
    let mut numbers = Numbers::new((total * 131 + p.size) as u64);
    let mut q = vec![f32::NAN; total * p.strides[0]];
    let (mut k, mut v) =
        (vec![f32::NAN; total * p.strides[1]], vec![f32::NAN; total * p.strides[2]]);
    let fill = |all: &mut [f32], stride: usize, rows: Vec<f32>, len: usize| {
        for (row, x) in all.chunks_exact_mut(stride).zip(rows.chunks_exact(len)) {
            row[..len].copy_from_slice(x);
        }
    };
    let (kn, vn) = (p.kv_heads * p.size, p.kv_heads * p.values);
    fill(&mut q, p.strides[0], numbers.floats(total * p.heads * p.size), p.heads * p.size);
    fill(&mut k, p.strides[1], exact(&mut numbers, total, kn, p.size), kn);
    fill(&mut v, p.strides[2], exact(&mut numbers, total, vn, p.values), vn);

    let mut cache = Buffer::output(plan.cache_bytes(), place);
    cache.fill(0xff);
    let positions: Vec<i32> = (0..total as i32).collect();
    plan.check_positions(&positions[past..]).unwrap();
    let new =
        |all: &[f32], stride: usize, len: usize| Guarded::new(&all[past * stride..][..len], place);
    let (gq, gk) = (new(&q, p.strides[0], plan.q_len()), new(&k, p.strides[1], plan.k_len()));
    let gv = new(&v, p.strides[2], plan.v_len());
    let mut y = Guarded::output(plan.y_len(), place);
    // Below all scores, among them, above them.
    let sinks: Vec<f32> = (0..p.heads).map(|h| [0.5, -300.0, 2.0, 9.0, 300.0][h % 5]).collect();
    let guarded = Guarded::new(&sinks, place);
    let ops = AttentionOperands {
        q: q.as_ptr(),
        k: k.as_ptr(),
        v: v.as_ptr(),
        positions: positions.as_ptr(),
        sinks: if with_sinks { guarded.as_ptr() } else { ptr::null() },
        cache: cache.as_mut_ptr(),
        y: y.as_mut_ptr(),
    };
    if past > 0 {
        // SAFETY: operands of the plan's lengths, one thread.
        unsafe { before.run_store(&ops, 0..before.store_units()) };
    }
    let ops = AttentionOperands {
        q: gq.as_ptr(),
        k: gk.as_ptr(),
        v: gv.as_ptr(),
        positions: positions[past..].as_ptr(),
        ..ops
    };
    run(&plan, &ops, place);

    let rows = |all: &[f32], stride: usize, head: usize, len: usize| -> Vec<Vec<f64>> {
        let row = |at: usize| cached(p.cache, &all[at * stride + head * len..][..len]);
        (0..total).map(row).collect()
    };
    let eps = f64::from(f32::EPSILON);
    // The error of a score, in which numbers are up to 2 (soft-caps add that of tanh), makes a
    // relative error of weights; sums of weights and of values round once per step.
    let score = 2.0 * tolerance(Dtype::F32, p.size) * f64::from(p.scale)
        + 8.0 * eps * f64::from(p.soft_cap);
    let mut allowed = 2.0 * (2.0 * score + eps * ((total as f64).sqrt() + 16.0));
    if p.bf16 && p.rows > 1 {
        // Half a unit of 8 digits in each factor.
        let half = 2f64.powi(-8);
        allowed += 2.0 * half * (1.0 + 2.0 * (p.size as f64).sqrt() * f64::from(p.scale));
    }
    for kv in 0..p.kv_heads {
        let keys = rows(&k, p.strides[1], kv, p.size);
        let values = rows(&v, p.strides[2], kv, p.values);
        for row in 0..p.rows {
            for head in kv * p.heads / p.kv_heads..(kv + 1) * p.heads / p.kv_heads {
                let q = &gq[row * p.strides[0] + head * p.size..][..p.size];
                let sink = with_sinks.then(|| sinks[head]);
                let exact = attend(&p, q, past + row, sink, &keys, &values);
                let y = &y[row * p.strides[3] + head * p.values..];
                for (c, exact) in exact.into_iter().enumerate() {
                    let what = (plan.kernel_name(), p, past, row, head, c);
                    assert_close(y[c], exact, allowed, what);
                }
            }
        }
    }
    // Between the rows nothing is written.
    for (i, y) in y.iter().enumerate() {
        assert!(y.is_nan() == (i % p.strides[3] >= p.heads * p.values), "{i}: {y}");
    }
}

const CACHES: [CacheType; 3] = [CacheType::F32, CacheType::F16, CacheType::Q8_0];

/// Rows, heads, kv heads, size, values, positions before, window.
const SHAPES: [[usize; 7]; 18] = [
    [1, 1, 1, 1, 1, 0, 0],
    [1, 2, 1, 64, 64, 0, 1],
    [1, 4, 2, 64, 64, 40, 0],
    [1, 7, 1, 80, 48, 129, 0],
    [1, 3, 3, 17, 33, 700, 0],
    [1, 8, 1, 128, 128, 600, 300],
    [1, 6, 2, 32, 32, 31, 5],
    [2, 4, 4, 16, 16, 0, 0],
    [5, 6, 2, 13, 21, 9, 3],
    [13, 4, 1, 64, 64, 130, 0],
    [33, 2, 2, 80, 80, 0, 0],
    [150, 4, 1, 64, 64, 20, 0],
    [97, 3, 1, 96, 112, 200, 64],
    [20, 2, 1, 128, 128, 300, 1],
    [40, 10, 1, 32, 64, 120, 0],
    [260, 2, 2, 16, 16, 5, 0],
    [30, 2, 1, 64, 64, 560, 0],
    [59, 3, 1, 48, 112, 610, 70],
];

fn params([rows, heads, kv_heads, size, values, past, window]: [usize; 7]) -> AttentionParams {
    let p = AttentionParams::new(rows, [heads, kv_heads, size], past + rows);
    let strides = [heads * size + 3, kv_heads * size, kv_heads * values + 1, heads * values + 2];
    AttentionParams { values, window, strides, ..p }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        #[test]
        fn $id() {
            if skip(Isa::$isa) {
                return;
            }
            for (i, shape) in SHAPES.into_iter().enumerate() {
                for (j, cache) in CACHES.into_iter().enumerate() {
                    let p = AttentionParams { cache, ..params(shape) };
                    check(Isa::$isa, p, shape[5], Place::ALL[(i + j) % 3], i % 3 != j);
                    let soft = AttentionParams { soft_cap: 0.5, scale: 0.3, ..p };
                    if i % 3 == j {
                        check(Isa::$isa, soft, shape[5], Place::ALL[(i + j + 1) % 3], i % 2 == 0);
                        check(Isa::$isa, p, shape[5], Place::ALL[(i + j + 2) % 3], true);
                    }
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

#[test]
fn rows_rounded_to_bf16() {
    for isa in Isa::ALL {
        if super::attention_unpack::half_kernels(isa).is_none() || skip(isa) {
            continue;
        }
        for (i, shape) in SHAPES.into_iter().enumerate().filter(|(_, shape)| shape[0] > 1) {
            for (j, cache) in CACHES.into_iter().enumerate() {
                let p = AttentionParams { cache, bf16: true, ..params(shape) };
                check(isa, p, shape[5], Place::ALL[(i + j) % 3], (i + j) % 2 == 0);
            }
        }
    }
}

/// A key whose weight would be subnormal has none, however large its value.
#[test]
fn far_scores_have_no_weight() {
    for isa in Isa::available() {
        for (rows, cache) in [(1, CacheType::F32), (1, CacheType::F16), (2, CacheType::F32)] {
            let all =
                AttentionParams { scale: 1.0, cache, ..AttentionParams::new(2, [1, 1, 1], 2) };
            let plan = AttentionPlan::new(isa, &AttentionParams { rows, ..all }).unwrap();
            let store = AttentionPlan::new(isa, &all).unwrap();
            let (q, k, v) = ([1.0f32; 2], [0.0f32, -97.0], [1.0f32, 6e4]);
            let large = if cache == CacheType::F32 { [1.0, 3e38] } else { v };
            let mut memory = Buffer::output(plan.cache_bytes(), Place::ALL[0]);
            let mut y = [f32::NAN; 2];
            let operands = AttentionOperands {
                q: q.as_ptr(),
                k: k.as_ptr(),
                v: large.as_ptr(),
                positions: [0, 1].as_ptr(),
                sinks: ptr::null(),
                cache: memory.as_mut_ptr(),
                y: y.as_mut_ptr(),
            };
            // SAFETY: operands of the plan's lengths, one thread.
            unsafe { store.run_store(&operands, 0..store.store_units()) };
            let now = 2 - rows;
            let operands = AttentionOperands {
                k: k[now..].as_ptr(),
                v: large[now..].as_ptr(),
                positions: [0, 1][now..].as_ptr(),
                ..operands
            };
            run(&plan, &operands, Place::ALL[1]);
            assert_eq!(y[rows - 1], 1.0, "{isa:?} {rows} {cache:?}");
        }
    }
}

/// What a key that is not a number makes of a row, whatever lies beside it.
#[test]
fn scores_that_are_no_numbers_stay_none() {
    for (isa, cache) in
        Isa::available().flat_map(|isa| [(isa, CacheType::F32), (isa, CacheType::F16)])
    {
        let p = AttentionParams { cache, ..AttentionParams::new(3, [1, 1, 1], 3) };
        let plan = AttentionPlan::new(isa, &p).unwrap();
        for k in [[6e4f32, f32::NAN, 1.0], [f32::INFINITY, f32::NAN, 1.0], [f32::NAN, -6e4, 6e4]] {
            let (q, v) = ([3e33f32; 3], [1.0f32; 3]);
            let mut memory = Buffer::output(plan.cache_bytes(), Place::ALL[0]);
            let mut y = [0.0f32; 3];
            let operands = AttentionOperands {
                q: q.as_ptr(),
                k: k.as_ptr(),
                v: v.as_ptr(),
                positions: [0, 1, 2].as_ptr(),
                sinks: ptr::null(),
                cache: memory.as_mut_ptr(),
                y: y.as_mut_ptr(),
            };
            run(&plan, &operands, Place::ALL[1]);
            assert!(y[2].is_nan(), "{isa:?} {cache:?} {k:?}: {y:?}");
        }
    }
}

#[test]
fn bad_parameters_and_positions_are_refused() {
    let p = AttentionParams::new(2, [4, 2, 8], 10);
    let refused = |p: AttentionParams| match AttentionPlan::new(Isa::Scalar, &p) {
        Err(KernelError::InvalidParam { param, .. }) => param,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(AttentionParams { heads: 3, ..p }), "heads");
    assert_eq!(refused(AttentionParams { kv_heads: 0, ..p }), "heads");
    assert_eq!(refused(AttentionParams { size: 0, ..p }), "size");
    assert_eq!(refused(AttentionParams { capacity: 0, ..p }), "capacity");
    assert_eq!(refused(AttentionParams { scale: f32::NAN, ..p }), "scale");
    assert_eq!(refused(AttentionParams { soft_cap: -1.0, ..p }), "soft_cap");
    assert_eq!(refused(AttentionParams { strides: [31, 16, 16, 32], ..p }), "strides");
    let huge = AttentionParams {
        kv_heads: 1 << (usize::BITS - 4),
        heads: 1 << (usize::BITS - 4),
        strides: [1 << (usize::BITS - 4); 4],
        ..p
    };
    assert!(matches!(AttentionPlan::new(Isa::Scalar, &huge), Err(KernelError::TooLarge { .. })));
    let plan = AttentionPlan::new(Isa::Scalar, &p).unwrap();
    assert!(plan.check_positions(&[0]).is_err());
    assert!(plan.check_positions(&[0, 10]).is_err());
    assert!(plan.check_positions(&[-1, 1]).is_err());
    assert!(plan.check_positions(&[3, 9]).is_ok());
}
