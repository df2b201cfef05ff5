//! Products of matrices as files have them, one at a time: for those who have their own graphs.

use core::ops::Range;

use super::pool::{Job, Pool};
use crate::graph::GraphError;
use crate::tensor::block::format;
use crate::tensor::{AlignedBytes, DType};
use tilewright_kernels::{BlockMatmulParams, BlockMatmulPlan, BlockOperands, Isa, KernelError};

/// Parts of a phase for each thread, so that one that is late is helped.
const PARTS: usize = 4;

/// Threads, and memory for what products need beside their operands.
pub struct Products {
    pool: Pool,
    isa: Isa,
    workspace: AlignedBytes,
    scratch: AlignedBytes,
}

impl Products {
    /// Starts the threads; 1 starts none.
    ///
    /// # Errors
    /// [`GraphError::Threads`] if the system refuses a thread.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, GraphError> {
        let pool = Pool::new(threads)
            .map_err(|e| GraphError::Threads { threads, reason: e.to_string() })?;
        let (workspace, scratch) = (AlignedBytes::default(), AlignedBytes::default());
        Ok(Self { pool, isa, workspace, scratch })
    }

    /// Threads that share a product.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Whether weights `[n, k]` of this type can be multiplied.
    pub fn takes(isa: Isa, dtype: DType, n: usize, k: usize) -> bool {
        format(dtype).is_some_and(|format| {
            BlockMatmulPlan::in_place(isa, &BlockMatmulParams::new(1, n, k, format)).is_ok()
        })
    }

    /// `y = x * w^T`: `x` is `[m, k]`, `y` `[m, n]`, both row-major; `w` has `n` rows of `k` elements of a
    /// type, as a GGUF file has them. Kernels may round the activations to blocks of 8 bits.
    ///
    /// # Errors
    /// Types and sizes for which there is no kernel, operands of other lengths, lack of memory.
    pub fn multiply(
        &mut self,
        dtype: DType,
        w: &[u8],
        k: usize,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), GraphError> {
        let unsupported = GraphError::UnsupportedDType { op: "product", dtype };
        let format = format(dtype).ok_or(unsupported)?;
        let m = x.len().checked_div(k).unwrap_or(0);
        let n = y.len().checked_div(m).unwrap_or(0);
        let plan = BlockMatmulPlan::in_place(self.isa, &BlockMatmulParams::new(m, n, k, format))?;
        let lengths = [
            ("x", plan.x_len(), x.len()),
            ("y", plan.y_len(), y.len()),
            ("weights", plan.packed_bytes(), w.len()),
        ];
        if let Some((operand, expected, found)) = lengths.into_iter().find(|(_, e, f)| e != f) {
            let op = "product";
            return Err(KernelError::InvalidLength { op, operand, expected, found }.into());
        }
        let each = plan.scratch_len().next_multiple_of(64);
        enlarge(&mut self.workspace, plan.workspace_len())?;
        let threads = self.threads();
        enlarge(&mut self.scratch, each * threads)?;
        let job = Product {
            plan: &plan,
            x: x.as_ptr(),
            operands: BlockOperands {
                weights: w.as_ptr(),
                bias: core::ptr::null(),
                workspace: self.workspace.as_mut_ptr().cast(),
                scratch: self.scratch.as_mut_ptr().cast(),
                y: y.as_mut_ptr(),
            },
            each,
            threads,
        };
        self.pool.run(&job);
        Ok(())
    }
}

fn enlarge(memory: &mut AlignedBytes, floats: usize) -> Result<(), GraphError> {
    let bytes = floats * size_of::<f32>();
    if memory.len() < bytes {
        *memory = AlignedBytes::zeroed(bytes)?;
    }
    Ok(())
}

/// Activations are brought into their form in the first phase, and multiplied in the second.
struct Product<'a> {
    plan: &'a BlockMatmulPlan,
    x: *const f32,
    operands: BlockOperands,
    /// Scratch memory of a thread, in floats.
    each: usize,
    threads: usize,
}

#[allow(unsafe_code, reason = "the pool shares a job among threads")]
// SAFETY: the pointers are to operands that `Products::multiply` borrows until all threads are done; each
// unit of the plan writes bytes of its own, and each thread has its own scratch memory.
unsafe impl Sync for Product<'_> {}

impl Product<'_> {
    fn units(&self, phase: usize) -> usize {
        if phase == 0 { self.plan.prepare_units() } else { self.plan.units() }
    }

    fn part(&self, phase: usize, part: usize) -> Range<usize> {
        let (units, parts) = (self.units(phase), self.parts(phase).0);
        part * units / parts..(part + 1) * units / parts
    }
}

impl Job for Product<'_> {
    fn phases(&self) -> usize {
        2
    }

    fn parts(&self, phase: usize) -> (usize, usize) {
        (self.units(phase).clamp(1, PARTS * self.threads), self.threads)
    }

    fn run(&self, phase: usize, part: usize, thread: usize) {
        let units = self.part(phase, part);
        let scratch = self.operands.scratch.wrapping_add(thread * self.each);
        let operands = BlockOperands { scratch, ..self.operands };
        #[allow(unsafe_code, reason = "kernels take pointers")]
        // SAFETY: `Products::multiply` compared every operand with the plan, which checked the CPU;
        // memory is aligned to 64; parts do not overlap, and the second phase begins when the first is
        // done.
        unsafe {
            match phase {
                0 => self.plan.prepare(self.x, operands.workspace.cast_mut(), units),
                _ => self.plan.run(&operands, units),
            }
        }
    }

    fn end(&self, _phase: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_rows() {
        let mut products = Products::new(Isa::best(), 3).unwrap();
        let (m, n, k) = (5, 37, 48);
        let value = |i: usize| ((i * 37 % 23) as f32 - 11.0) / 8.0;
        let x: Vec<f32> = (0..m * k).map(value).collect();
        let w: Vec<f32> = (0..n * k).map(|i| value(i + 5)).collect();
        let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut y = vec![f32::NAN; m * n];
        products.multiply(DType::F32, &bytes, k, &x, &mut y).unwrap();
        for (i, y) in y.iter().enumerate() {
            let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
            let sum: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            assert!((y - sum).abs() < 1e-3, "{i}: {y} {sum}");
        }
        let short = products.multiply(DType::F32, &bytes[4..], k, &x, &mut y);
        assert!(matches!(short, Err(GraphError::Kernel(_))), "{short:?}");
        assert!(products.multiply(DType::I64, &bytes, k, &x, &mut y).is_err());
        assert!(!Products::takes(Isa::best(), DType::Q8_0, 4, 33));
    }
}
