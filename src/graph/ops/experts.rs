//! Products in which each row meets matrices that were chosen for it (mixtures of experts, Shazeer et al. 2017).

use core::ops::Range;
use core::{ptr, slice};
use std::sync::Arc;

use tilewright_kernels::{BlockMatmulParams, BlockMatmulPlan, BlockOperands};

use super::block_matmul::{Weights, dot, ready};
use super::elements::expect_dtype;
use super::embedding::{dequantize_row, has_rows};
use super::expert_order::{check, put};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;
use crate::tensor::block::format;

/// `x * w[e]^T` of each row and each expert `e` that was chosen for it.
///
/// Operands: `x` of f32; `w [experts, n, k]` of f32, f16, bf16 or a block-quantised type; `chosen [m, c]` of `i64`, the
/// numbers of experts; perhaps a bias `[experts, n]` of f32, of which each product gets the row of its expert. `x` is
/// `[m, k]`, or `[m * c, k]` if it is ordered. Result: `[m * c, n]` of f32, in the order that
/// [`ExpertOrder`](super::expert_order::ExpertOrder) gives: all rows of an expert behind each other.
///
/// Kernels may round the activations as [`BlockMatMul`](super::block_matmul::BlockMatMul) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Whether `x` is a result of this op for the same choice, in the order of the results.
    pub ordered: bool,
}

const OP: &str = "experts";

impl Operator for Experts {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=4, "x, weights, what is chosen and perhaps a bias")?;
        let (x, w, chosen) = (&src[0], &src[1], &src[2]);
        expect_dtype(OP, x, |d| d == DType::F32)?;
        if !has_rows(w.dtype) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: w.dtype });
        }
        expect_dtype(OP, chosen, |d| d == DType::I64)?;
        let fits = match (&x.dims[..], &w.dims[..], &chosen.dims[..]) {
            (&[rows, k], &[_, _, kw], &[m, c]) => {
                k == kw && rows == if self.ordered { m.saturating_mul(c) } else { m }
            }
            _ => false,
        };
        if !fits {
            let rule = "x must have a row for each choice, or for all of one row, and the extent of the weights";
            let shapes = [("x", &x.dims[..]), ("w", &w.dims), ("chosen", &chosen.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        if let Some(bias) = src.get(3) {
            expect_dtype(OP, bias, |d| d == DType::F32)?;
            if bias.dims != w.dims[..2] {
                let shapes = [("bias", &bias.dims[..]), ("w", &w.dims)];
                return Err(GraphError::mismatch(OP, "bias must have a row per expert", &shapes));
            }
        }
        Ok(Info::plain(DType::F32, vec![chosen.elements(), w.dims[1]]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let &[experts, n, k] = src[1].dims else { unreachable!("`infer` has looked at it") };
        let (x, chosen) = (src[0].slice::<f32>(OP)?, src[2].slice::<i64>(OP)?);
        let bias = src.get(3).map(|bias| bias.slice::<f32>(OP)).transpose()?;
        let each = self.each(src[2].dims);
        let (mut ends, mut order) = (vec![0; experts], vec![0; chosen.len()]);
        put(OP, chosen, &mut ends, |slot, place| order[place as usize] = slot)?;
        let y = dst.slice::<f32>(OP)?;
        let mut row = vec![0f32; k];
        for (place, &slot) in order.iter().enumerate() {
            let at = each.map_or(place, |each| slot / each);
            let expert = check(OP, chosen[slot], experts)?;
            for col in 0..n {
                dequantize_row(src[1].dtype, src[1].bytes, expert * n + col, &mut row)?;
                let more = bias.map_or(0.0, |bias| bias[expert * n + col]);
                y[place * n + col] = dot(&x[at * k..][..k], &row, more);
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (&[experts, n, k], rows) = (&cx.src[1].dims[..], cx.dst.dims[0]) else {
            return Ok(None);
        };
        let (Some(format), Some(source)) = (format(cx.src[1].dtype), cx.values[1]) else {
            return Ok(None);
        };
        if k == 0 || experts == 0 {
            return Ok(None);
        }
        let bias = cx.src.len() > 3;
        let params = BlockMatmulParams { bias, ..BlockMatmulParams::new(rows, n, k, format) };
        let (plan, weights) = ready(cx, source, &params, experts)?;
        let bytes = match weights {
            Weights::Packed(_) => plan.packed_bytes(),
            Weights::File(_) => n * plan.row_bytes(),
        };
        let each = self.each(&cx.src[2].dims);
        let shared = Shared { plan, experts, each };
        Ok(Some(Box::new(Products { shared: Arc::new(shared), weights, bytes })))
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let k = src[0].dims.last().copied().unwrap_or(0);
        (dst.elements() as u64).saturating_mul(k as u64)
    }
}

impl Experts {
    /// How many choices there are for each row of `x`, unless its rows are in the order of the results.
    fn each(&self, chosen: &[usize]) -> Option<usize> {
        (!self.ordered).then(|| chosen.last().copied().unwrap_or(1).max(1))
    }
}

/// Panels of a unit: of as many the largest kernel makes use.
const PANELS: usize = 2;

/// What both steps know.
struct Shared {
    /// For all rows, of which an expert has some.
    plan: BlockMatmulPlan,
    experts: usize,
    /// See [`Experts::each`].
    each: Option<usize>,
}

impl Shared {
    fn rows(&self) -> usize {
        self.plan.params().m
    }

    /// Words before the activations: of each expert how many rows it has.
    fn counts(&self) -> usize {
        self.experts.next_multiple_of(16)
    }

    /// Words for the activations of all experts, however rows are shared out: tiles have unused columns then.
    fn workspace_len(&self) -> usize {
        let (rows, columns) = (self.rows(), self.plan.columns());
        let single = self.plan.with_rows(1).workspace_len();
        let tile = self.plan.with_rows(columns.min(rows)).workspace_len();
        let unused = rows.min(self.experts).saturating_mul(columns - 1);
        rows.saturating_add(unused).saturating_mul(single.max(tile.div_ceil(columns.min(rows))))
    }

    /// Calls with each expert that has rows, its plan, its first row and where its activations begin.
    fn with_rows(
        &self,
        counts: impl Iterator<Item = usize>,
        mut call: impl FnMut(usize, &BlockMatmulPlan, usize, usize),
    ) {
        let (mut row, mut at) = (0, self.counts());
        for (expert, count) in counts.enumerate() {
            if count > 0 {
                let plan = self.plan.with_rows(count);
                call(expert, &plan, row, at);
                (row, at) = (row + count, at + plan.workspace_len());
            }
        }
    }
}

/// Runs the plans of experts. Their activations are quantised by the step before.
struct Products {
    shared: Arc<Shared>,
    weights: Weights,
    /// Bytes of an expert's weights.
    bytes: usize,
}

impl Step for Products {
    fn kernel(&self) -> String {
        let plan = &self.shared.plan;
        let usual = plan.params().m.div_ceil(self.shared.experts);
        plan.with_rows(usual).kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.shared.plan.panels().div_ceil(PANELS)
    }

    fn scratch_bytes(&self) -> usize {
        let plan = &self.shared.plan;
        plan.scratch_len().max(plan.with_rows(1).scratch_len()) * size_of::<f32>()
    }

    // The step before reads the activations.
    fn reads(&self, i: usize) -> bool {
        i >= 2
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let words = self.shared.workspace_len().saturating_add(self.shared.counts());
        let bytes = words.saturating_mul(size_of::<f32>());
        Some((Box::new(Prepare(self.shared.clone())), bytes))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let shared = &*self.shared;
        let words: *const u32 = src[src.len() - 1].cast();
        // SAFETY: the step before has written how many rows each expert has.
        let counts = unsafe { slice::from_raw_parts(words, shared.experts) };
        let panels = units.start * PANELS..(units.end * PANELS).min(shared.plan.panels());
        let n = shared.plan.params().n;
        let counts = counts.iter().map(|&count| count as usize);
        let bias = if shared.plan.params().bias { src[3].cast::<f32>() } else { ptr::null() };
        shared.with_rows(counts, |expert, plan, row, at| {
            let operands = BlockOperands {
                weights: self.weights.as_ptr().wrapping_add(expert * self.bytes),
                bias: if bias.is_null() { bias } else { bias.wrapping_add(expert * n) },
                workspace: words.wrapping_add(at).cast(),
                scratch: scratch.cast(),
                y: dst.cast::<f32>().wrapping_add(row * n),
            };
            // SAFETY: the counts add up to the rows of the result, or are 0 where a choice was wrong, so the rows of
            // the expert exist; the step before has written all of its workspace, which begins where the others'
            // end; weights and bias, if any, are those of as many experts; scratch memory is enough for any number of rows; the
            // rest is as the caller promises.
            unsafe { plan.run_panels(&operands, panels.clone()) };
        });
        Ok(())
    }
}

/// Brings the activations of each expert into the form that its kernel reads. A unit is an expert.
struct Prepare(Arc<Shared>);

impl Step for Prepare {
    fn kernel(&self) -> String {
        "quantize_rows".to_owned()
    }

    fn shared(&self) -> Option<String> {
        let Shared { plan, experts, each } = &*self.0;
        // Experts with one row may have it in another form.
        let forms = [plan.workspace_form(), plan.with_rows(1).workspace_form()];
        Some(format!("{experts} {each:?} {forms:?}"))
    }

    fn units(&self) -> usize {
        self.0.experts
    }

    // Who has which rows, and as many rows as are quantised together.
    fn scratch_bytes(&self) -> usize {
        let Shared { plan, experts, .. } = &*self.0;
        let tile = plan.columns().saturating_mul(plan.params().k);
        (self.0.rows() + experts).saturating_add(tile) * size_of::<f32>()
    }

    fn reads(&self, i: usize) -> bool {
        i != 1 && i != 3
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let shared = &*self.0;
        let (rows, experts, k) = (shared.rows(), shared.experts, shared.plan.params().k);
        let (columns, x) = (shared.plan.columns(), src[0].cast::<f32>());
        // SAFETY: there is a choice for each row of the result, and scratch memory for what comes here, which all
        // numbers are valid for.
        let (chosen, ends, order) = unsafe {
            let words = scratch.cast::<u32>();
            (
                slice::from_raw_parts(src[2].cast::<i64>(), rows),
                slice::from_raw_parts_mut(words, experts),
                slice::from_raw_parts_mut(words.wrapping_add(experts), rows),
            )
        };
        let outcome = put(OP, chosen, ends, |slot, place| order[place as usize] = slot as u32);
        if outcome.is_err() {
            // The next step runs all the same: no expert has rows then.
            ends.fill(0);
        }
        let tile = scratch.cast::<f32>().wrapping_add(experts + rows);
        let (ends, order) = (&*ends, &*order);
        let count =
            |expert: usize| (ends[expert] - expert.checked_sub(1).map_or(0, |e| ends[e])) as usize;
        for expert in units.clone() {
            // SAFETY: the word of this expert, which no other unit writes.
            unsafe { *dst.cast::<u32>().wrapping_add(expert) = count(expert) as u32 };
        }
        shared.with_rows((0..units.end).map(count), |expert, plan, first, at| {
            if expert < units.start {
                return;
            }
            let workspace = dst.cast::<f32>().wrapping_add(at);
            for unit in 0..plan.prepare_units() {
                let from = unit * columns;
                let mut rows = x.wrapping_add((first + from) * k);
                if let Some(each) = shared.each {
                    let count = columns.min(plan.params().m - from);
                    for (i, &slot) in order[first + from..][..count].iter().enumerate() {
                        let row = x.wrapping_add(slot as usize / each * k);
                        // SAFETY: the row exists, as all choices are of one, and the memory has as many as a
                        // tile has.
                        unsafe { ptr::copy_nonoverlapping(row, tile.wrapping_add(i * k), k) };
                    }
                    rows = tile;
                }
                // The plan begins with the tile of its unit.
                let begin = rows.wrapping_sub(from * k);
                // SAFETY: the rows of the tile exist, and so does its part of the workspace, which is nobody else's;
                // the rest is as the caller promises.
                unsafe { plan.prepare(begin, workspace, unit..unit + 1) };
            }
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::super::expert_order::ExpertOrder;
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::Context;
    use crate::tensor::Tensor;
    use tilewright_kernels::Isa;

    fn noise(n: usize, by: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * by + 3) % 31) as f32 / 16.0 - 0.9).collect()
    }

    /// A choice for `m` rows, such that experts have none, one and many.
    fn chosen(m: usize, c: usize, experts: usize) -> Vec<i64> {
        let at = |i: usize| (i / c * i / c + i % c * 3 + i / c / 5) % (experts - 1);
        let mut chosen: Vec<i64> = (0..m * c).map(|i| at(i) as i64).collect();
        // The last expert has one row at most.
        chosen[0] = experts as i64 - 1;
        chosen
    }

    #[test]
    fn kernels_compute_what_the_reference_does() {
        let (experts, k) = (7, 64);
        let floats =
            |n: usize| Tensor::from_slice(&[experts, n, k], &noise(experts * n * k, 7)).unwrap();
        // Blocks of which all numbers are whole, as those of activations are then.
        let blocks = |n: usize| {
            let blocks = (0..experts * n * k / 32).flat_map(|b| {
                let scale = half::f16::from_f32(0.25 + (b % 3) as f32).to_le_bytes();
                scale.into_iter().chain((0..32).map(move |i| ((b * 7 + i * 5) % 11) as u8))
            });
            let bytes: Vec<u8> = blocks.collect();
            Tensor::from_bytes(DType::Q8_0, &[experts, n, k], &bytes).unwrap()
        };
        let sizes = [(1, 1, 5), (1, 3, 40), (9, 2, 33), (40, 3, 70), (23, 1, 33)];
        let all = sizes.iter().flat_map(|&(m, c, n)| [(m, c, n, floats(n)), (m, c, n, blocks(n))]);
        for (m, c, n, w) in all {
            let chosen = Tensor::from_slice(&[m, c], &chosen(m, c, experts)).unwrap();
            for ordered in [false, true] {
                let (rows, op) = (if ordered { m * c } else { m }, Experts { ordered });
                // Of each 32 one is the largest that bytes hold.
                let mut x: Vec<f32> =
                    noise(rows * k, 5).iter().map(|x| (x * 16.0).round()).collect();
                x.iter_mut().step_by(32).for_each(|x| *x = 127.0);
                let x = Tensor::from_slice(&[rows, k], &x).unwrap();
                let bias = Tensor::from_slice(&[experts, n], &noise(experts * n, 11)).unwrap();
                // Without a bias where experts are chosen once.
                let src = if c == 1 { vec![&x, &w, &chosen] } else { vec![&x, &w, &chosen, &bias] };
                let mut folded = Context::new();
                let ids: Vec<_> =
                    src.iter().map(|&t| folded.constant(t.clone()).unwrap()).collect();
                let y = folded.op(op, &ids).unwrap();
                let want = folded.constant_value(y).unwrap();
                for (isa, threads) in Isa::available().flat_map(|isa| [(isa, 1), (isa, 2)]) {
                    let mut cx = Context::new();
                    let x_in = cx.input("x", DType::F32, &[rows, k]).unwrap();
                    let of = cx.input("chosen", DType::I64, &[m, c]).unwrap();
                    let mut ids = vec![x_in, cx.constant(w.clone()).unwrap(), of];
                    ids.extend(src.get(3).map(|&bias| cx.constant(bias.clone()).unwrap()));
                    let y = cx.op(op, &ids).unwrap();
                    let mut executor = Executor::new(isa, threads).unwrap();
                    let plan = executor.plan(&mut cx, &[y]).unwrap();
                    let found = executor.run(&plan, &[&x, &chosen][..], None).unwrap();
                    let found = found[0].as_slice::<f32>().unwrap();
                    let want = want.as_slice::<f32>().unwrap();
                    let both = found.iter().zip(want.iter());
                    let most = both.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(most < 2e-3, "{isa:?} {m} {c} {n} {rows}: {most}");
                }
            }
        }
    }

    #[test]
    fn what_is_chosen_must_be_there() {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[1, 2], &[1f32, 2.0]).unwrap()).unwrap();
        let w =
            cx.constant(Tensor::from_slice(&[2, 1, 2], &[1f32, 0.0, 0.0, 1.0]).unwrap()).unwrap();
        let mut one = |dims: &[usize], of: &[i64]| {
            let of = cx.constant(Tensor::from_slice(dims, of).unwrap()).unwrap();
            let y = cx.op(Experts { ordered: false }, &[x, w, of])?;
            let order = cx.op(ExpertOrder { experts: 2 }, &[of])?;
            let order = cx.constant_value(order).unwrap().as_slice::<i32>().unwrap().to_vec();
            Ok::<_, GraphError>((
                cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec(),
                order,
            ))
        };
        // By experts: of the first one slot 1, of the second slots 0 and 2.
        assert_eq!(one(&[1, 3], &[1, 0, 1]).unwrap(), (vec![1.0, 2.0, 2.0], vec![1, 0, 2]));
        assert!(one(&[1, 1], &[2]).is_err());
        assert!(one(&[1, 1], &[-1]).is_err());
        assert!(one(&[2, 2], &[0, 0, 0, 0]).is_err(), "x has one row");
    }

    #[test]
    fn what_is_chosen_when_it_runs_must_be_there() {
        let (experts, k, n) = (3, 32, 40);
        let w = Tensor::from_slice(&[experts, n, k], &noise(experts * n * k, 7)).unwrap();
        let x = Tensor::from_slice(&[5, k], &noise(5 * k, 5)).unwrap();
        for threads in [1, 2] {
            let mut cx = Context::new();
            let x_in = cx.input("x", DType::F32, &[5, k]).unwrap();
            let of = cx.input("chosen", DType::I64, &[5, 2]).unwrap();
            let w = cx.constant(w.clone()).unwrap();
            let y = cx.op(Experts { ordered: false }, &[x_in, w, of]).unwrap();
            let mut executor = Executor::new(Isa::best(), threads).unwrap();
            let plan = executor.plan(&mut cx, &[y]).unwrap();
            for (wrong, at) in [(3, 0), (-1, 4), (i64::MAX, 9), (i64::MIN, 5)] {
                let mut chosen = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0];
                let good = Tensor::from_slice(&[5, 2], &chosen).unwrap();
                chosen[at] = wrong;
                let bad = Tensor::from_slice(&[5, 2], &chosen).unwrap();
                let first = executor.run(&plan, &[&x, &good][..], None).unwrap();
                assert!(executor.run(&plan, &[&x, &bad][..], None).is_err(), "{wrong} at {at}");
                let again = executor.run(&plan, &[&x, &good][..], None).unwrap();
                assert_eq!(first[0].bytes(), again[0].bytes());
            }
        }
    }
}
