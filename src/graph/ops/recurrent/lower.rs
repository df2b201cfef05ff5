//! Recurrent layers on the CPU: for each step of time a product with packed weights, then the gates
//! with vector kernels.

use core::ops::Range;
use core::ptr;
use std::sync::Arc;

use tilewright_kernels::{MatmulParams, MatmulPlan, UnaryKernel, UnaryOp, Workload};

use super::{Cell, Function, Operands, Recurrent, Sizes, length};
use crate::graph::{GraphError, LowerCx, Step};
use crate::tensor::{AlignedBytes, DType};

/// Sequences of a batch that one unit takes at least: fewer would read the weights too often.
const ROWS: usize = 4;

/// Most units per direction.
const BLOCKS: usize = 8;

/// The step of a layer whose recurrent weights are known; else the reference computes it.
pub(super) fn lower(op: &Recurrent, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
    let dims: Vec<&[usize]> = cx.src.iter().map(|s| &s.dims[..]).collect();
    let size = op.sizes(&dims)?;
    let at = op.operands();
    let known = cx.values[at.weights].is_some();
    if cx.dst.dtype != DType::F32 || size.batch * size.hidden == 0 || !known {
        return Ok(None);
    }
    // The division depends on the batch only, so that results do not on the number of threads.
    if !op.functions.iter().flatten().all(|f| f.op.has_kernel()) {
        return Ok(None);
    }
    let fits = |&n: &usize| size.batch.is_multiple_of(n) && size.batch / n >= ROWS;
    let blocks = (1..=BLOCKS).rev().find(fits).unwrap_or(1);
    let rows = size.batch / blocks;
    let gates = match op.cell {
        // The last gate multiplies with a state that the gate before has damped.
        Cell::Gru { reset_after: false } => [0..2, 2..3].to_vec(),
        _ => core::iter::once(0..size.gates).collect(),
    };
    let products = gates
        .into_iter()
        .map(|gates| Product::new(cx, &size, at.weights, rows, gates))
        .collect::<Result<_, _>>()?;
    let functions = op.functions.iter().map(|list| {
        list.iter()
            .map(|&f| Ok(Gate { kernel: UnaryKernel::new(cx.isa, f.op)?, function: f }))
            .collect()
    });
    let functions = functions.collect::<Result<_, GraphError>>()?;
    Ok(Some(Box::new(Layer { op: op.clone(), size, at, rows, blocks, products, functions })))
}

/// Packed weights of some gates.
struct Product {
    plan: MatmulPlan,
    /// Per direction.
    weights: Vec<Arc<AlignedBytes>>,
    /// Zeros.
    bias: AlignedBytes,
}

impl Product {
    fn new(
        cx: &LowerCx<'_>,
        size: &Sizes,
        operand: usize,
        rows: usize,
        gates: Range<usize>,
    ) -> Result<Self, GraphError> {
        let (n, h) = (gates.len() * size.hidden, size.hidden);
        let params = MatmulParams::new(rows, h, n).b_transposed();
        let plan = cx.tuned(
            &Workload::matmul(&params),
            |choice| MatmulPlan::with_choice(cx.isa, &params, choice),
            || MatmulPlan::new(cx.isa, &params),
        )?;
        let width = plan.choice().tile[2];
        let weights = (0..size.directions)
            .map(|d| {
                let format = format!("recurrent {} x{width} {gates:?} of {d}", cx.isa.name());
                let start = (d * size.gates + gates.start) * h * h;
                cx.pack_f32(operand, &format, plan.weights_len(), &|from, to| {
                    Ok(plan.pack_weights(&from[start..][..n * h], to)?)
                })
            })
            .collect::<Result<_, _>>()?;
        let bias = AlignedBytes::zeroed(plan.bias_len() * size_of::<f32>())?;
        Ok(Self { plan, weights, bias })
    }

    /// `c = a * weights`, on this thread. `a` has a row per sequence.
    fn run(&self, direction: usize, a: &[f32], c: &mut [f32], scratch: &mut [f32]) {
        assert!(
            a.len() >= self.plan.a_len()
                && c.len() >= self.plan.c_len()
                && scratch.len() >= self.plan.scratch_len()
        );
        let (weights, bias) = (self.weights[direction].as_ptr(), self.bias.as_ptr());
        let (c, scratch) = (c.as_mut_ptr(), scratch.as_mut_ptr());
        let units = 0..self.plan.units();
        #[allow(unsafe_code)]
        // SAFETY: the lengths were checked, weights and bias were packed for this plan; the slices
        // do not overlap; this thread runs all units. Lowering checked the CPU.
        unsafe {
            self.plan.run(a.as_ptr(), weights.cast(), bias.cast(), ptr::null(), c, scratch, units);
        }
    }
}

/// A function with its kernel.
struct Gate {
    kernel: UnaryKernel,
    function: Function,
}

impl Gate {
    /// Replaces arguments by results.
    fn apply(&self, x: &mut [f32]) {
        let Function { op, before, after } = self.function;
        if before.to_bits() != 1.0f32.to_bits() {
            x.iter_mut().for_each(|v| *v *= before);
        }
        if op != (UnaryOp::Affine { scale: 1.0, shift: 0.0 }) {
            let p = x.as_mut_ptr();
            #[allow(unsafe_code)]
            // SAFETY: the slice is source and destination; the kernel checked the CPU.
            unsafe {
                self.kernel.call(p, p, x.len());
            }
        }
        if after.to_bits() != 1.0f32.to_bits() {
            x.iter_mut().for_each(|v| *v *= after);
        }
    }
}

/// A layer. A unit is a part of the batch in one direction.
struct Layer {
    op: Recurrent,
    size: Sizes,
    at: Operands,
    /// Sequences of a unit.
    rows: usize,
    /// Units per direction.
    blocks: usize,
    products: Vec<Product>,
    functions: Vec<Vec<Gate>>,
}

/// What a unit works on, all of its own sequences.
struct Unit<'a> {
    direction: usize,
    bias: &'a [f32],
    peepholes: &'a [f32],
    /// States, a row per sequence.
    h: &'a mut [f32],
    /// Cell states; empty if there are none.
    c: &'a mut [f32],
    /// Sums of the gates, a row per sequence.
    sums: &'a mut [f32],
    /// A row of a state per sequence.
    rest: &'a mut [f32],
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

fn add_product(x: &mut [f32], a: &[f32], b: &[f32]) {
    for ((x, a), b) in x.iter_mut().zip(a).zip(b) {
        *x += a * b;
    }
}

impl Layer {
    fn clip(&self, x: &mut [f32]) {
        if let Some(c) = self.op.clip {
            // NaN stays NaN.
            x.iter_mut().for_each(|v| {
                *v = if *v > c {
                    c
                } else if *v < -c {
                    -c
                } else {
                    *v
                }
            });
        }
    }

    /// Elements of a row of sums.
    fn width(&self) -> usize {
        self.size.gates * self.size.hidden
    }

    /// The new state of sequence `row`, from the sums of the first product.
    fn cell(&self, u: &mut Unit<'_>, row: usize, gates: &[f32]) {
        let n = self.size.hidden;
        let functions = &self.functions[u.direction];
        let first = self.products[0].plan.params().n;
        let sums = &mut u.sums[row * first..][..first];
        let h = &mut u.h[row * n..][..n];
        match self.op.cell {
            Cell::Rnn => {
                add(sums, gates);
                self.clip(sums);
                functions[0].apply(sums);
                h.copy_from_slice(sums);
            }
            Cell::Gru { reset_after } => {
                let (damping, new) = sums.split_at_mut(2 * n);
                add(damping, gates);
                self.clip(damping);
                functions[0].apply(damping);
                let (update, reset) = damping.split_at(n);
                let rest = &mut u.rest[row * n..][..n];
                if reset_after {
                    add(new, u.bias);
                    rest.copy_from_slice(&gates[2 * n..]);
                    add_product(rest, reset, new);
                    self.clip(rest);
                    functions[1].apply(rest);
                    mix(h, update, rest);
                } else {
                    rest.fill(0.0);
                    add_product(rest, reset, h);
                }
            }
            Cell::Lstm { coupled } => {
                add(sums, gates);
                let c = &mut u.c[row * n..][..n];
                let (input, more) = sums.split_at_mut(n);
                let (output, more) = more.split_at_mut(n);
                let (forget, new) = more.split_at_mut(n);
                let peephole = |x: &mut [f32], gate: usize, c: &[f32]| {
                    if let Some(p) = u.peepholes.get(gate * n..(gate + 1) * n) {
                        add_product(x, p, c);
                    }
                };
                peephole(input, 0, c);
                peephole(forget, 2, c);
                for x in [&mut *input, &mut *forget, &mut *new] {
                    self.clip(x);
                }
                functions[0].apply(input);
                if coupled {
                    forget.iter_mut().zip(&*input).for_each(|(f, i)| *f = 1.0 - i);
                } else {
                    functions[0].apply(forget);
                }
                functions[1].apply(new);
                for (((c, f), i), x) in c.iter_mut().zip(forget).zip(input).zip(new) {
                    *c = *f * *c + *i * *x;
                }
                peephole(output, 1, c);
                self.clip(output);
                functions[0].apply(output);
                h.copy_from_slice(c);
                functions[2].apply(h);
                h.iter_mut().zip(output).for_each(|(h, o)| *h *= *o);
            }
        }
    }

    /// The new state of sequence `row` of a GRU, from the sums of the second product.
    fn last_gate(&self, u: &mut Unit<'_>, row: usize, gates: &[f32]) {
        let n = self.size.hidden;
        let (damping, new) = u.sums.split_at_mut(self.rows * 2 * n);
        let new = &mut new[row * n..][..n];
        add(new, &gates[2 * n..]);
        self.clip(new);
        self.functions[u.direction][1].apply(new);
        mix(&mut u.h[row * n..][..n], &damping[row * 2 * n..][..n], new);
    }
}

/// `h = (1 - update) * new + update * h`.
fn mix(h: &mut [f32], update: &[f32], new: &[f32]) {
    for ((h, z), x) in h.iter_mut().zip(update).zip(new) {
        *h = (1.0 - z) * x + z * *h;
    }
}

impl Step for Layer {
    fn kernel(&self) -> String {
        self.products[0].plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.size.directions * self.blocks
    }

    fn scratch_bytes(&self) -> usize {
        let product = self.products.iter().map(|p| p.plan.scratch_len()).max().unwrap_or(0);
        (self.rows * (self.width() + self.size.hidden) + product) * size_of::<f32>()
    }

    fn reads(&self, i: usize) -> bool {
        i != self.at.weights
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Sizes { time, batch, directions, hidden: n, .. } = self.size;
        let (rows, width) = (self.rows, self.width());
        // SAFETY: the scratch memory has these bytes, and is this thread's.
        let scratch = unsafe {
            core::slice::from_raw_parts_mut(
                scratch.cast::<f32>(),
                self.scratch_bytes() / size_of::<f32>(),
            )
        };
        let (sums, scratch) = scratch.split_at_mut(rows * width);
        let (rest, scratch) = scratch.split_at_mut(rows * n);
        // SAFETY: the caller vouches for whole operands; these parts lie inside them.
        let part = |i: Option<usize>, start: usize, len: usize| unsafe {
            let at = i.map(|i| src[i].cast::<f32>().add(start));
            at.map_or(&[][..], |p| core::slice::from_raw_parts(p, len))
        };
        for unit in units {
            let (d, b0) = (unit / self.blocks, unit % self.blocks * rows);
            let at = |t: usize| ((t * directions + d) * batch + b0) * n;
            // SAFETY: the rows of this unit lie in the result, and no other unit has them; the rows
            // of different steps of time do not overlap.
            let out = |t: usize| unsafe {
                core::slice::from_raw_parts_mut(dst.cast::<f32>().add(at(t)), rows * n)
            };
            let h = out(time);
            let c = if self.op.cell.states() == 2 { out(time + 1) } else { &mut [][..] };
            for (state, operand) in [(&mut *h, self.at.state), (&mut *c, self.at.cell_state)] {
                match part(operand, at(0), state.len()) {
                    [] => state.fill(0.0),
                    initial => state.copy_from_slice(initial),
                }
            }
            let (bias, peepholes) =
                (part(self.at.bias, d * n, n), part(self.at.peepholes, d * 3 * n, 3 * n));
            let mut u = Unit { direction: d, bias, peepholes, h, c, sums, rest };
            let steps = |row: usize| match self.at.lengths {
                // SAFETY: there is a length per sequence.
                Some(i) => length(unsafe { *src[i].cast::<i32>().add(b0 + row) }, time),
                None => Ok(time),
            };
            let mut longest = 0;
            for row in 0..rows {
                longest = longest.max(steps(row)?);
            }
            for i in 0..longest {
                self.products[0].run(d, u.h, u.sums, scratch);
                for second in 0..self.products.len() {
                    if second == 1 {
                        self.products[1].run(d, u.rest, &mut u.sums[rows * 2 * n..], scratch);
                    }
                    for row in 0..rows {
                        let len = steps(row)?;
                        if i >= len {
                            continue;
                        }
                        let t = if self.op.reverse[d] { len - 1 - i } else { i };
                        let gates = part(Some(d), (t * batch + b0 + row) * width, width);
                        if second == 0 {
                            self.cell(&mut u, row, gates);
                        } else {
                            self.last_gate(&mut u, row, gates);
                        }
                        if second + 1 == self.products.len() {
                            out(t)[row * n..][..n].copy_from_slice(&u.h[row * n..][..n]);
                        }
                    }
                }
            }
            for row in 0..rows {
                for t in steps(row)?..time {
                    out(t)[row * n..][..n].fill(0.0);
                }
            }
        }
        Ok(())
    }
}
