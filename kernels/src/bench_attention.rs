//! What benches of attention measure: a prompt's last rows, and one row over a long cache.

use crate::bench::{Case, Operand};
use crate::bench_block::RESIDENT;
use crate::{
    AttentionOperands, AttentionParams, AttentionPlan, CacheType, Dtype, Isa, KernelError,
};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::{hint::black_box, ptr};

/// Heads, kv heads and their elements.
const HEADS: [usize; 3] = [32, 8, 64];
/// Positions of the cache, all of them seen by the last row.
const POSITIONS: usize = 4096;
/// Rows of a part of a prompt.
const ROWS: usize = 512;

/// The cases for an instruction set: `attention_f32` and, where it multiplies bf16, `attention_bf16`,
/// of the last rows of a prompt; `attention_decode_<cache>` of one row.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have it.
pub fn cases(isa: Isa) -> Result<Vec<Case>, KernelError> {
    let mut cases = Vec::new();
    for bf16 in [false, true] {
        let params = AttentionParams { bf16, ..AttentionParams::new(ROWS, HEADS, POSITIONS) };
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let case = case(isa, &params, &format!("attention_{}", dtype.name()), dtype)?;
        // Where bf16 changes nothing, one of them is enough.
        if cases.iter().all(|other: &Case| other.kernel != case.kernel) {
            cases.push(case);
        }
    }
    for cache in [CacheType::F16, CacheType::Q8_0, CacheType::F32] {
        let params = AttentionParams { cache, ..AttentionParams::new(1, HEADS, POSITIONS) };
        let op = format!("attention_decode_{}", cache.name());
        cases.push(case(isa, &params, &op, Dtype::F32)?);
    }
    Ok(cases)
}

fn case(isa: Isa, params: &AttentionParams, op: &str, dtype: Dtype) -> Result<Case, KernelError> {
    let (params, rows, past) = (*params, params.rows, params.capacity - params.rows);
    let plan = AttentionPlan::new(isa, &params)?;
    let one = plan.cache_bytes();
    let copies = if rows == 1 { (RESIDENT / one).max(1) } else { 1 };
    let rows_bytes = 4 * (plan.q_len() + plan.k_len() + plan.v_len() + plan.y_len());
    let (mut operands, mut next) = (None, 0);
    Ok(Case {
        op: op.into(),
        shape: [rows, params.capacity, params.size],
        kernel: plan.kernel_name(),
        dtype,
        flop: 4.0 * (params.heads * params.size) as f64 * pairs(past, rows),
        bytes: (one + rows_bytes) as f64,
        resident: copies as f64 * one as f64,
        run: Box::new(move || {
            let (layer, caches) = operands.get_or_insert_with(|| {
                (Layer::of(plan.clone(), past), caches(one / size_of::<f32>() * copies))
            });
            layer.run(caches, next);
            next = (next + 1) % copies;
        }),
    })
}

/// Pairs of a row and a position that it sees, of rows behind `past` positions.
pub fn pairs(past: usize, rows: usize) -> f64 {
    past as f64 * rows as f64 + rows as f64 * (rows + 1) as f64 / 2.0
}

/// Caches of so many words, with halves and bytes whose values are ordinary.
pub fn caches(words: usize) -> Operand {
    Operand::new(words, |i| f32::from_bits(0x3a01_2c03 + (i as u32 & 0xff)))
}

/// A number from -1 to 1.
fn noise(i: usize) -> f32 {
    let x = (i as u32).wrapping_mul(0x9e37_79b9).wrapping_add(0x7f4a_7c15);
    ((x ^ (x >> 15)).wrapping_mul(0x2c1b_3c6d) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// An attention with all that it needs but a cache.
pub struct Layer {
    plan: AttentionPlan,
    x: [Operand; 3],
    positions: Vec<i32>,
    y: Operand,
    scratch: Operand,
    parts: Operand,
}

impl Layer {
    /// Of the rows behind `past` positions.
    ///
    /// # Errors
    /// [`KernelError`] if the parameters or positions are wrong, or the instruction set is not there.
    pub fn new(isa: Isa, params: &AttentionParams, past: usize) -> Result<Self, KernelError> {
        let layer = Self::of(AttentionPlan::new(isa, params)?, past);
        layer.plan.check_positions(&layer.positions)?;
        Ok(layer)
    }

    /// Rows and positions fit the plan's cache.
    fn of(plan: AttentionPlan, past: usize) -> Self {
        let x = [plan.q_len(), plan.k_len(), plan.v_len()].map(|len| Operand::new(len, noise));
        let positions = (past..past + plan.params().rows).map(|at| at as i32).collect();
        let words = [4 * plan.y_len(), plan.scratch_bytes(), plan.parts_bytes()];
        let [y, scratch, parts] = words.map(|bytes| Operand::new(bytes / 4, |_| 0.0));
        Self { plan, x, positions, y, scratch, parts }
    }

    /// Words of a cache.
    pub fn cache_len(&self) -> usize {
        self.plan.cache_bytes() / size_of::<f32>()
    }

    /// Runs on one of the caches that follow each other there.
    ///
    /// # Panics
    /// If there is none of this index.
    pub fn run(&mut self, caches: &mut Operand, index: usize) {
        let len = self.cache_len();
        let cache = caches[index * len..][..len].as_mut_ptr();
        let [q, k, v] = self.x.each_ref().map(|x| x.as_ptr());
        let (y, positions) = (self.y.as_mut_ptr(), self.positions.as_ptr());
        let (sinks, cache) = (ptr::null(), cache.cast());
        let o = AttentionOperands { q, k, v, positions, sinks, cache, y };
        let (scratch, parts) = (self.scratch.as_mut_ptr(), self.parts.as_mut_ptr());
        let plan = &self.plan;
        // SAFETY: the operands have the lengths that the plan asks for and begin at multiples of 64
        // bytes, of which a cache has a whole number; the positions were checked.
        unsafe {
            plan.run_store(&o, 0..plan.store_units());
            plan.run_parts(&o, parts, scratch, 0..plan.part_units());
            plan.run(&o, parts, scratch, 0..plan.units());
        }
        black_box(&mut self.y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_run_on_each_of_their_caches() {
        for isa in Isa::available() {
            let params = AttentionParams::new(1, [4, 2, 32], 64);
            let mut layer = Layer::new(isa, &params, 63).unwrap();
            let mut memory = caches(2 * layer.cache_len());
            layer.run(&mut memory, 1);
            assert!(layer.y.iter().all(|y| y.is_finite() && *y != 0.0));
            assert!(Layer::new(isa, &params, 64).is_err());
        }
    }

    #[test]
    fn cases_differ() {
        for isa in Isa::available() {
            let names: Vec<_> = cases(isa).unwrap().iter().map(Case::name).collect();
            assert!(names[0].starts_with("attention_f32/512x4096x64/"), "{names:?}");
            assert!(names.iter().any(|name| name.starts_with("attention_decode_q8_0/1x4096x64/")));
        }
    }
}
