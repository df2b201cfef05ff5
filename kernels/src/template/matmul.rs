//! Matrix product `C = A * B + bias` (ONNX `Gemm`, `MatMul`), row-major, batched.
//!
//! B is packed in panels of columns, `[panel][k][columns of the panel]`, which a tile of a few rows
//! of A reads as one stream. The fewer rows there are, the wider the panels: one row needs many
//! vectors to keep the FMA units busy. Columns past the last full vector are masked, never padded
//! in memory.

use super::conv::post_kernel;
use super::conv_geometry::{cost, cut};
use super::matmul_tile::{MatmulKernel, TileArgs};
use super::unary::UnaryKernel;
use crate::epilogue::TileActivation;
use crate::error::{check_len, checked_len};
use crate::{Activation, Algorithm, Choice, Epilogue, Isa, KernelError};
use alloc::vec::Vec;
use core::ops::Range;

pub use super::matmul_reference::reference;
pub(crate) use super::matmul_tile::kernels;

const OP: &str = "matmul";

/// Sizes and strides of a matrix product.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulParams {
    /// Products that share the sizes.
    pub batch: usize,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// Elements from a row of A to the next, at least `k`.
    pub a_row: usize,
    /// Elements from the A of one product to that of the next; 0 if they share it.
    pub a_batch: usize,
    /// Elements from a row of the plain B to the next.
    pub b_row: usize,
    /// Whether the plain B is stored as `[n, k]`.
    pub b_transposed: bool,
    /// Elements from one plain B to the next; 0 if all products share it.
    pub b_batch: usize,
    /// Elements from a row of C to the next, at least `n`.
    pub c_row: usize,
    /// Elements from one C to the next, at least `m * c_row` if there are several.
    pub c_batch: usize,
    /// What follows the reduction. The residual has the shape and strides of C.
    pub epilogue: Epilogue,
}

impl MatmulParams {
    /// One product of dense matrices `[m, k] * [k, n]`.
    pub fn new(m: usize, k: usize, n: usize) -> Self {
        Self {
            batch: 1,
            m,
            n,
            k,
            a_row: k,
            a_batch: 0,
            b_row: n,
            b_transposed: false,
            b_batch: 0,
            c_row: n,
            c_batch: 0,
            epilogue: Epilogue::default(),
        }
    }

    /// With B stored as `[n, k]`, dense.
    #[must_use]
    pub fn b_transposed(self) -> Self {
        Self { b_transposed: true, b_row: self.k, ..self }
    }

    /// With this many products of dense matrices, each with its own A, B and C.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        let (a, b, c) = (self.m * self.a_row, self.k * self.n, self.m * self.c_row);
        Self { batch, a_batch: a, b_batch: b, c_batch: c, ..self }
    }

    /// With this epilogue.
    #[must_use]
    pub fn epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    fn check(&self) -> Result<(), KernelError> {
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        if [self.batch, self.m, self.n, self.k].contains(&0) {
            return invalid("size", "at least 1");
        }
        let b_width = if self.b_transposed { self.k } else { self.n };
        if self.a_row < self.k || self.c_row < self.n || self.b_row < b_width {
            return invalid("row stride", "at least the row length");
        }
        let c_size = self.m.checked_mul(self.c_row).ok_or(KernelError::TooLarge { op: OP })?;
        if self.batch > 1 && self.c_batch < c_size {
            return invalid("c_batch", "at least the size of one C");
        }
        if matches!(self.epilogue.activation, Activation::LeakyRelu { alpha } if !alpha.is_finite())
        {
            return invalid("alpha", "finite");
        }
        Ok(())
    }
}

/// Some columns of B, side by side in the packed form.
#[derive(Clone, Debug)]
struct Panel {
    /// First column.
    column: usize,
    /// Columns in the packed form, a multiple of the lanes.
    width: usize,
    /// Columns of its last vector that exist.
    tail: usize,
    /// Index in `MatmulPlan::rows`.
    rows: usize,
}

/// A matrix product ready to run.
#[derive(Clone, Debug)]
pub struct MatmulPlan {
    params: MatmulParams,
    kernels: &'static [MatmulKernel],
    panels: Vec<Panel>,
    /// Per panel width: (first row, kernel) of each tile.
    rows: Vec<Vec<(usize, usize)>>,
    /// Units per (product, panel).
    parts: usize,
    activation: TileActivation,
    /// The activation, if the tiles do not do it in registers.
    post: Option<UnaryKernel>,
    lens: [usize; 3],
    packed: usize,
}

impl MatmulPlan {
    /// Checks the parameters and chooses the kernels.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`], [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &MatmulParams) -> Result<Self, KernelError> {
        isa.require()?;
        params.check()?;
        let p = params;
        let matrix = |rows: usize, stride: usize, width: usize, batch: usize| {
            let one = checked_len(OP, &[rows - 1, stride])?.checked_add(width);
            let all = checked_len(OP, &[p.batch - 1, batch])?;
            let len =
                one.and_then(|one| one.checked_add(all)).ok_or(KernelError::TooLarge { op: OP })?;
            checked_len(OP, &[len])
        };
        let (b_rows, b_width) = if p.b_transposed { (p.n, p.k) } else { (p.k, p.n) };
        let lens = [
            matrix(p.m, p.a_row, p.k, p.a_batch)?,
            matrix(b_rows, p.b_row, b_width, p.b_batch)?,
            matrix(p.m, p.c_row, p.n, p.c_batch)?,
        ];
        let padded = p.n.checked_add(1024).ok_or(KernelError::TooLarge { op: OP })?;
        checked_len(OP, &[padded, p.k, p.batch])?;

        let kernels = kernels(isa);
        let (panels, rows) = divide(p, kernels);
        let packed = panels.iter().map(|panel| panel.width).sum::<usize>() * p.k;
        let most = rows.iter().map(Vec::len).max().unwrap_or(1);
        let parts = usize::div_ceil(32, p.batch * panels.len()).min(most);
        let activation = p.epilogue.activation.in_tile().unwrap_or(TileActivation::None);
        let post = post_kernel(isa, p.epilogue.activation)?;
        Ok(Self { params: p.clone(), kernels, panels, rows, parts, activation, post, lens, packed })
    }

    /// The ways of computing this, the one that `new` chooses first.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn candidates(isa: Isa, params: &MatmulParams) -> Result<Vec<Choice>, KernelError> {
        Ok(alloc::vec![Self::new(isa, params)?.choice()])
    }

    /// The plan that computes this in the way given.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`KernelError::InvalidParam`] if `choice` is no candidate.
    pub fn with_choice(
        isa: Isa,
        params: &MatmulParams,
        choice: &Choice,
    ) -> Result<Self, KernelError> {
        let plan = Self::new(isa, params)?;
        let (param, expected) = ("choice", "one of the candidates");
        let refused = KernelError::InvalidParam { op: OP, param, expected };
        if plan.choice() == *choice { Ok(plan) } else { Err(refused) }
    }

    /// The way in which it computes.
    pub fn choice(&self) -> Choice {
        let rows = &self.rows[self.panels[0].rows];
        let info = &self.kernels[rows[rows.len() / 2].1].info;
        let tile = [info.rows, info.w_ob, info.c_ob];
        Choice { algorithm: Algorithm::Direct, tile, chunk: self.params.k, block: 0 }
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &MatmulParams {
        &self.params
    }

    /// Elements that A spans.
    pub fn a_len(&self) -> usize {
        self.lens[0]
    }

    /// Elements that the plain B spans.
    pub fn b_len(&self) -> usize {
        self.lens[1]
    }

    /// Elements that C (and the residual) spans.
    pub fn c_len(&self) -> usize {
        self.lens[2]
    }

    /// Elements of the packed B, of all products.
    pub fn weights_len(&self) -> usize {
        self.packed * if self.params.b_batch == 0 { 1 } else { self.params.batch }
    }

    /// Elements of the packed bias.
    pub fn bias_len(&self) -> usize {
        self.packed / self.params.k
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.batch * self.panels.len() * self.parts
    }

    /// Independent units of packing B.
    pub fn pack_units(&self) -> usize {
        self.panels.len() * if self.params.b_batch == 0 { 1 } else { self.params.batch }
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        let rows = &self.rows[self.panels[0].rows];
        self.kernels[rows[rows.len() / 2].1].info.name
    }

    /// Packs the plain B.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_weights(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "b", self.b_len(), src.len())?;
        check_len(OP, "packed b", self.weights_len(), dst.len())?;
        // SAFETY: both lengths were checked, and `dst` is borrowed mutably.
        unsafe { self.run_pack(src.as_ptr(), dst.as_mut_ptr(), 0..self.pack_units()) };
        Ok(())
    }

    /// Packs some panels of the plain B: for a B that is known only at run time.
    ///
    /// # Safety
    ///
    /// * `src` is readable for [`b_len`](Self::b_len) elements, `dst` writable for
    ///   [`weights_len`](Self::weights_len), and they do not overlap.
    /// * `units` lies in `0..self.pack_units()`, and no other thread packs one of them.
    pub unsafe fn run_pack(&self, src: *const f32, dst: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.pack_units());
        let p = &self.params;
        let (k_step, n_step) = if p.b_transposed { (1, p.b_row) } else { (p.b_row, 1) };
        for unit in units {
            let (batch, panel) = (unit / self.panels.len(), &self.panels[unit % self.panels.len()]);
            let src = src.wrapping_add(batch * p.b_batch + panel.column * n_step);
            let dst = dst.wrapping_add(batch * self.packed + panel.column * p.k);
            let columns = panel.width.min(p.n - panel.column);
            for k in 0..p.k {
                let (from, to) = (src.wrapping_add(k * k_step), dst.wrapping_add(k * panel.width));
                // SAFETY: row `k < K` and columns `< N` lie in the plain B, whose extent `new`
                // computed; the packed panel has `K * width` elements.
                unsafe {
                    if n_step == 1 {
                        from.copy_to_nonoverlapping(to, columns);
                    } else {
                        for n in 0..columns {
                            *to.add(n) = *from.add(n * n_step);
                        }
                    }
                    to.add(columns).write_bytes(0, panel.width - columns);
                }
            }
        }
    }

    /// Copies the bias `[n]` and fills it up with zeros. An empty `src` means no bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_bias(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "packed bias", self.bias_len(), dst.len())?;
        let n = if src.is_empty() { 0 } else { self.params.n };
        check_len(OP, "bias", n, src.len())?;
        dst[..n].copy_from_slice(&src[..n]);
        dst[n..self.bias_len()].fill(0.0);
        Ok(())
    }

    /// Runs all units on this thread, on a packed B and bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, or the residual is missing.
    pub fn compute(
        &self,
        a: &[f32],
        weights: &[f32],
        bias: &[f32],
        residual: Option<&[f32]>,
        c: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "a", self.a_len(), a.len())?;
        check_len(OP, "packed b", self.weights_len(), weights.len())?;
        check_len(OP, "packed bias", self.bias_len(), bias.len())?;
        check_len(OP, "c", self.c_len(), c.len())?;
        let mut added = core::ptr::null();
        if self.params.epilogue.residual {
            let residual = residual.unwrap_or(&[]);
            check_len(OP, "residual", self.c_len(), residual.len())?;
            added = residual.as_ptr();
        }
        let (a, w, b) = (a.as_ptr(), weights.as_ptr(), bias.as_ptr());
        // SAFETY: each operand has the length that the plan asks for, `c` is borrowed mutably and
        // so overlaps none, and `new` checked that the CPU has the instructions.
        unsafe { self.run(a, w, b, added, c.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `a`, `weights` and `bias` are readable for [`a_len`](Self::a_len),
    ///   [`weights_len`](Self::weights_len) and [`bias_len`](Self::bias_len) elements, `residual`
    ///   for [`c_len`](Self::c_len) if the epilogue has one (else it is not read); `c` is writable
    ///   for `c_len`. Any element alignment will do.
    /// * `c` overlaps no other operand, except that `residual` may be `c` itself.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `c`.
    pub unsafe fn run(
        &self,
        a: *const f32,
        weights: *const f32,
        bias: *const f32,
        residual: *const f32,
        c: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        debug_assert!(!a.is_null() && !weights.is_null() && !bias.is_null() && !c.is_null());
        debug_assert!(!self.params.epilogue.residual || !residual.is_null());
        let p = &self.params;
        let packed = if p.b_batch == 0 { 0 } else { self.packed };
        for unit in units {
            let (unit, part) = (unit / self.parts, unit % self.parts);
            let (batch, panel) = (unit / self.panels.len(), &self.panels[unit % self.panels.len()]);
            let rows = &self.rows[panel.rows];
            let tiles = part * rows.len() / self.parts..(part + 1) * rows.len() / self.parts;
            for &(row, kernel) in &rows[tiles] {
                let out = batch * p.c_batch + row * p.c_row + panel.column;
                let added = p.epilogue.residual.then(|| residual.wrapping_add(out));
                let args = TileArgs {
                    a: a.wrapping_add(batch * p.a_batch + row * p.a_row),
                    b: weights.wrapping_add(batch * packed + panel.column * p.k),
                    bias: bias.wrapping_add(panel.column),
                    residual: added.unwrap_or(core::ptr::null()),
                    o: c.wrapping_add(out),
                    a_row: p.a_row,
                    o_row: p.c_row,
                    k: p.k,
                    tail: panel.tail,
                    activation: self.activation,
                };
                // SAFETY: the tile's rows and columns exist in A and C, the panel has its width
                // in the packed operands, and `new` checked the ISA.
                unsafe { (self.kernels[kernel].run)(&args) };
                let Some(post) = &self.post else { continue };
                for i in 0..self.kernels[kernel].info.w_ob {
                    let o = args.o.wrapping_add(i * p.c_row);
                    // SAFETY: this is a row of the tile just written.
                    unsafe { post.call(o, o, panel.width.min(p.n - panel.column)) };
                }
            }
        }
    }
}

/// Cuts the columns into panels and, for each panel width, the rows into tiles. Of the widest
/// panel widths it takes the one whose total cost is least.
fn divide(p: &MatmulParams, kernels: &[MatmulKernel]) -> (Vec<Panel>, Vec<Vec<(usize, usize)>>) {
    let lanes = kernels[0].info.c_ob / kernels[0].info.c_vec;
    let mut widths: Vec<usize> = kernels.iter().map(|k| k.info.c_ob).collect();
    widths.sort_unstable_by(|a, b| b.cmp(a));
    widths.dedup();
    // For each width: the row tiles, and what one panel costs per reduction step.
    let cuts: Vec<_> = widths
        .iter()
        .map(|&width| {
            let of_width = || kernels.iter().enumerate().filter(move |(_, k)| k.info.c_ob == width);
            let pieces: Vec<_> = of_width().map(|(_, k)| (k.info.w_ob, cost(&k.info))).collect();
            let (heights, cost) = cut(p.m, &pieces);
            let mut row = 0;
            let tiles = heights.into_iter().map(|height| {
                let kernel = of_width().find(|(_, k)| k.info.w_ob == height).map_or(0, |(i, _)| i);
                row += height;
                (row - height, kernel)
            });
            (tiles.collect::<Vec<_>>(), cost)
        })
        .collect();
    let panels_from = |widest: usize| {
        let (mut panels, mut total, mut column) = (Vec::new(), 0, 0);
        while column < p.n {
            let left = (p.n - column).div_ceil(lanes) * lanes;
            let rows =
                (widest..widths.len()).find(|&i| widths[i] <= left).unwrap_or(widths.len() - 1);
            let width = widths[rows];
            let tail = lanes - (column + width).saturating_sub(p.n);
            panels.push(Panel { column, width, tail, rows });
            total += cuts[rows].1;
            column += width;
        }
        (panels, total)
    };
    let candidates = (0..widths.len()).map(panels_from);
    let (panels, _) = candidates.min_by_key(|(_, total)| *total).unwrap_or_default();
    (panels, cuts.into_iter().map(|(tiles, _)| tiles).collect())
}
