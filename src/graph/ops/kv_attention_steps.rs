//! The kernels of attention over a cache, in two steps.

use core::ops::Range;
use core::{ptr, slice};
use std::sync::Arc;

use tilewright_kernels::{AttentionOperands, AttentionPlan};

use super::kv_attention::{OP, check_position};
use crate::graph::kv_cache::KvCache;
use crate::graph::{GraphError, Step};

/// A stage of a plan. Operands: q, k, v, positions, sinks if there are any, and for the last one what the first has
/// left.
pub(super) struct Stage {
    plan: Arc<AttentionPlan>,
    cache: Arc<KvCache>,
    sinks: bool,
    last: bool,
}

impl Stage {
    /// The last stage, which has the first one before it.
    pub(super) fn last(plan: Arc<AttentionPlan>, cache: Arc<KvCache>, sinks: bool) -> Self {
        Self { plan, cache, sinks, last: true }
    }

    /// Whether the first stage computes parts, of a single row, rather than only store.
    fn in_parts(&self) -> bool {
        self.plan.part_units() > 0
    }
}

impl Step for Stage {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        match (self.last, self.in_parts()) {
            (true, _) => self.plan.units(),
            (false, true) => self.plan.part_units(),
            (false, false) => self.plan.store_units(),
        }
    }

    fn scratch_bytes(&self) -> usize {
        if self.last != self.in_parts() { self.plan.scratch_bytes() } else { 0 }
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let first = || Self {
            plan: self.plan.clone(),
            cache: self.cache.clone(),
            sinks: self.sinks,
            last: false,
        };
        // Storing has no result but that it is done.
        self.last.then(|| (Box::new(first()) as Box<dyn Step>, self.plan.parts_bytes().max(1)))
    }

    fn is_main(&self) -> bool {
        self.in_parts()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let (plan, scratch) = (&self.plan, scratch.cast());
        let positions: *const i32 = src[3].cast();
        // SAFETY: there is a position for each row.
        for &position in unsafe { slice::from_raw_parts(positions, plan.params().rows) } {
            check_position(OP, position, plan.params().capacity)?;
        }
        let o = AttentionOperands {
            q: src[0].cast(),
            k: src[1].cast(),
            v: src[2].cast(),
            positions,
            sinks: if self.sinks { src[4].cast() } else { ptr::null() },
            cache: self.cache.as_ptr(),
            y: if self.last { dst.cast() } else { ptr::null_mut() },
        };
        // SAFETY: the plan was made for the sizes of the operands and of the cache, whose positions have
        // been checked. Only steps of the layer use the cache, and one run at a time; units write what
        // is theirs, and the first stage is complete before the last one begins.
        unsafe {
            match (self.last, self.in_parts()) {
                (true, in_parts) => {
                    let parts = if in_parts { src[src.len() - 1].cast() } else { ptr::null() };
                    plan.run(&o, parts, scratch, units);
                }
                (false, true) => plan.run_parts(&o, dst.cast(), scratch, units),
                (false, false) => plan.run_store(&o, units),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::Context;
    use crate::graph::kv_cache::KvShape;
    use crate::graph::ops::Op;
    use crate::graph::ops::kv_attention::KvAttention;
    use crate::tensor::{DType, Tensor};
    use tilewright_kernels::Isa;

    /// Numbers from -1 to 1 that 8-bit runs of 32 hold, too: 0 to 126 and a 127 in 64ths.
    fn noise(rows: usize, width: usize, seed: usize) -> Tensor {
        let number = |i: usize| match i % 32 {
            0 => 127.0 / 64.0,
            _ => ((i * 7919 + seed * 104_729) % 251) as f32 / 64.0 - 125.0 / 64.0,
        };
        let data: Vec<f32> = (0..rows * width).map(number).collect();
        Tensor::from_slice(&[rows, width], &data).unwrap()
    }

    /// The results of steps of so many rows, one after the other, by the executor or the reference.
    fn steps(
        op: &KvAttention,
        rows: &[usize],
        sinks: bool,
        kernels: Option<(Isa, usize)>,
    ) -> Vec<f32> {
        let shape = *op.cache.shape();
        let widths = [
            op.heads * shape.key_size,
            shape.heads * shape.key_size,
            shape.heads * shape.value_size,
        ];
        let (mut at, mut all) = (0, Vec::new());
        for &rows in rows {
            let mut x: Vec<Tensor> =
                widths.iter().enumerate().map(|(i, &width)| noise(rows, width, at + i)).collect();
            let positions: Vec<i32> = (at as i32..(at + rows) as i32).collect();
            x.push(Tensor::from_slice(&[rows], &positions).unwrap());
            if sinks {
                let sinks: Vec<f32> = (0..op.heads).map(|head| head as f32 - 2.0).collect();
                x.push(Tensor::from_slice(&[op.heads], &sinks).unwrap());
            }
            at += rows;
            let mut cx = Context::new();
            let y = match kernels {
                Some((isa, threads)) => {
                    let inputs: Vec<_> =
                        x.iter().map(|x| cx.input("x", x.dtype(), &x.dims()).unwrap()).collect();
                    let y = cx.op(Op::from(op.clone()), &inputs).unwrap();
                    let mut executor = Executor::new(isa, threads).unwrap();
                    let plan = executor.plan(&mut cx, &[y]).unwrap();
                    let x: Vec<&Tensor> = x.iter().collect();
                    executor.run(&plan, &x, None).unwrap().remove(0)
                }
                None => {
                    let x: Vec<_> = x.into_iter().map(|x| cx.constant(x).unwrap()).collect();
                    let y = cx.op(Op::from(op.clone()), &x).unwrap();
                    cx.constant_value(y).unwrap().clone()
                }
            };
            all.extend_from_slice(&y.as_slice::<f32>().unwrap());
        }
        all
    }

    #[test]
    fn kernels_agree_with_the_reference_on_any_number_of_threads() {
        let rows = [1, 70, 1, 3, 300, 1, 1];
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            for (window, softcap, sinks) in
                [(None, None, false), (Some(33), Some(2.0), false), (Some(90), None, true)]
            {
                let op = || {
                    let shape =
                        KvShape { heads: 2, key_size: 64, value_size: 32, capacity: 400, dtype };
                    let cache = Arc::new(KvCache::new(shape).unwrap());
                    KvAttention { heads: 6, scale: 0.05, softcap, window, bf16: false, cache }
                };
                let want = steps(&op(), &rows, sinks, None);
                for isa in Isa::available() {
                    let one = steps(&op(), &rows, sinks, Some((isa, 1)));
                    for (i, (a, b)) in one.iter().zip(&want).enumerate() {
                        assert!((a - b).abs() < 1e-5, "{isa} {dtype:?} {window:?} {i}: {a} {b}");
                    }
                    assert_eq!(steps(&op(), &rows, sinks, Some((isa, 3))), one, "{isa}");
                }
            }
        }
    }
}
