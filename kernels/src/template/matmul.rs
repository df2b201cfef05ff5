//! Matrix product `C = A * B + bias` (ONNX `Gemm`, `MatMul`), row-major, batched.
//!
//! B is packed in panels of columns, `[panel][k][columns of the panel]`, which a tile of a few rows
//! of A reads as one stream. The fewer rows there are, the wider the panels: one row needs many
//! vectors to keep the FMA units busy. Columns past the last full vector are masked, never padded
//! in memory.
//!
//! Where the rows of A are short they are read where they lie. Else the loops are those of Goto and
//! van de Geijn (Anatomy of high-performance matrix multiplication, 2008): K is cut into blocks, the
//! rows of A into blocks that are packed tile by tile, and C is visited once per block of K.
//! `matmul_cut` has the rules, `matmul_run` the loops, `matmul_tile` the microkernels.

use super::dot_division::widest;
use super::layout::{self, LayoutKernels};
use super::matmul_cut::{Tiling, candidates, exists, has_blocks, near};
use super::unary::{UnaryKernel, post_kernel};
use crate::epilogue::TileActivation;
use crate::error::{check_extents, check_len, checked_len};
use crate::{Algorithm, Choice, Isa, KernelError};
use alloc::{vec, vec::Vec};
use core::ops::Range;

pub use super::matmul_params::{MatmulForm, MatmulParams};
pub use super::matmul_reference::reference;
pub(crate) use super::matmul_tile::kernels;

const OP: &str = "matmul";

/// Units that a product is cut into, at least, as far as it has tiles.
const PARTS: usize = 32;
/// Elements of A up to which a B that is packed at run time is packed panel by panel.
const PLAIN_A: usize = 1 << 21;
/// Elements of B that are then packed at a time, if a panel is not more.
const SMALL_GROUP: usize = 1 << 12;
/// Elements that are packed at a time for a larger A.
const GROUP: usize = 1 << 21;
/// Elements that kernels prefetch past the end of their B: no other thread's scratch memory may lie
/// there, or the cores fight for its cache lines.
const AHEAD: usize = 2048;
/// Threads that share out rows have their own part of the image in all layers, and so in their caches; those
/// that share out panels read half of the weights each. That is worth it for weights so many times as large.
pub(crate) const SHARED_PANELS: usize = 8;

/// A matrix product ready to run.
#[derive(Clone, Debug)]
pub struct MatmulPlan {
    pub(crate) params: MatmulParams,
    pub(crate) copies: LayoutKernels,
    pub(crate) tiling: Tiling,
    pub(crate) choice: Choice,
    /// Tiles of rows per pass over B, and over one that is packed at run time.
    pub(crate) block: usize,
    pub(crate) plain_block: usize,
    /// Panels whose B is packed at a time, if it is not constant.
    pub(crate) group: usize,
    /// Units per (product, panel).
    pub(crate) parts: usize,
    /// Whether threads share out a packed B, else the rows of A.
    pub(crate) by_panels: bool,
    pub(crate) activation: TileActivation,
    /// The activation, if the tiles do not do it in registers.
    pub(crate) post: Option<UnaryKernel>,
    /// Whether all rows are one tile over all of K, and nothing but its call is to be done per panel of a
    /// packed B: a layer of a single input takes so little time that deciding what to do shows.
    pub(crate) single: bool,
    /// Whether the rows of a panel of a plain B can wait in the first-level cache where they lie.
    pub(crate) near: bool,
    lens: [usize; 3],
    /// Elements of one packed B.
    pub(crate) packed: usize,
}

impl MatmulPlan {
    /// Checks the parameters and chooses how to compute the product.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`], [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &MatmulParams) -> Result<Self, KernelError> {
        Self::for_rows(isa, params, false)
    }

    /// As [`new`](Self::new); for a B that is packed once for products of `any` number of rows: one that does not stay in
    /// the caches near a core has panels of one width for all of them.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn for_rows(isa: Isa, params: &MatmulParams, any: bool) -> Result<Self, KernelError> {
        let lens = check(isa, params)?;
        let kernels = kernels(isa);
        let bytes = if any { lens[1].saturating_mul(size_of::<f32>()) } else { 0 };
        let choice = candidates(params, kernels, widest(bytes, kernels.iter().map(|k| &k.info)))[0];
        Self::made(isa, params, &choice, lens)
    }

    /// The ways of computing the product, that of [`new`](Self::new) first.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn candidates(isa: Isa, params: &MatmulParams) -> Result<Vec<Choice>, KernelError> {
        check(isa, params)?;
        Ok(candidates(params, kernels(isa), usize::MAX))
    }

    /// Plans with a given choice: `tile` is `[1, most rows, columns]` of a tile, `chunk` the length of
    /// the reduction between two visits of C (a multiple of 16, or `k`), `block` the rows of A that
    /// one pass over B serves.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`KernelError::InvalidParam`] if the choice does not fit.
    pub fn with_choice(
        isa: Isa,
        params: &MatmulParams,
        choice: &Choice,
    ) -> Result<Self, KernelError> {
        let lens = check(isa, params)?;
        let [one, rows, columns] = choice.tile;
        let lanes = kernels(isa)[0].info.c_ob() / kernels(isa)[0].info.c_vec();
        let algorithm = choice.algorithm == Algorithm::Direct
            || choice.algorithm == Algorithm::Packed && !params.blocked();
        let tile = one == 1
            && exists(params, kernels(isa), rows, columns)
            && rows <= params.m
            && columns <= params.columns().next_multiple_of(lanes);
        let Choice { chunk, block, .. } = *choice;
        // Partial sums lie in C, so a transposed one has none.
        let cut = params.form != MatmulForm::Transposed && (16..params.k).contains(&chunk);
        let chunk = chunk == params.k || cut && chunk % 16 == 0;
        if !(algorithm && tile && chunk && (1..=params.m).contains(&block)) {
            let expected = "one of the candidates of this product";
            return Err(KernelError::InvalidParam { op: OP, param: "choice", expected });
        }
        Self::made(isa, params, choice, lens)
    }

    fn made(
        isa: Isa,
        p: &MatmulParams,
        choice: &Choice,
        lens: [usize; 3],
    ) -> Result<Self, KernelError> {
        let [_, rows, columns] = choice.tile;
        let tiling = Tiling::new(p, isa, [rows, columns]);
        let packed = tiling.panels.iter().map(|panel| panel.width).sum::<usize>() * p.k;
        let block = (choice.block / rows).max(1);
        // Panel by panel, if then A is packed once and comes from the L3 cache at worst.
        let again = choice.algorithm == Algorithm::Packed && choice.chunk < p.k;
        let small = !again && p.m.saturating_mul(p.k) <= PLAIN_A;
        let elements = if small { SMALL_GROUP } else { GROUP };
        let group = (elements / choice.chunk / columns).max(1);
        let by_panels = p.blocked() && packed / SHARED_PANELS > p.m.saturating_mul(p.k);
        let activation = p.epilogue.activation.in_tile().unwrap_or(TileActivation::None);
        let post = post_kernel(isa, p.epilogue.activation)?;
        let single = matches!(p.form, MatmulForm::Usual | MatmulForm::RowBias)
            && (choice.algorithm, choice.chunk, tiling.count()) == (Algorithm::Direct, p.k, 1)
            && tiling.panels.iter().all(|panel| tiling.alike(panel, 0) == 1)
            && !p.a_transposed
            && post.is_none();
        Ok(Self {
            copies: layout::kernels(isa),
            choice: *choice,
            block,
            plain_block: if small { tiling.count() } else { block },
            group,
            parts: PARTS.div_ceil(p.batch * tiling.panels.len()).min(tiling.count()),
            activation,
            post,
            single,
            near: near(p, choice.chunk, columns),
            lens,
            packed,
            by_panels,
            tiling,
            params: p.clone(),
        })
    }

    /// How it computes the product.
    pub fn choice(&self) -> Choice {
        self.choice
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
        match self.params.form {
            MatmulForm::RowBias => self.params.m,
            _ => self.packed / self.params.k,
        }
    }

    /// Elements of scratch memory that each thread needs to [`run`](Self::run).
    pub fn scratch_len(&self) -> usize {
        self.packed_a_len(self.block) + self.turned_len(self.block)
    }

    /// Elements of scratch memory that each thread needs to [`run_plain`](Self::run_plain).
    pub fn plain_scratch_len(&self) -> usize {
        let panels = self.group.min(self.tiling.panels.len());
        let others = self.packed_a_len(self.plain_block) + self.turned_len(self.plain_block);
        others + panels * self.widest() * self.choice.chunk + AHEAD
    }

    fn widest(&self) -> usize {
        self.tiling.panels.iter().map(|panel| panel.width).max().unwrap_or(0)
    }

    /// Elements of the results of so many tiles of a panel, if they are transposed.
    pub(crate) fn turned_len(&self, tiles: usize) -> usize {
        let rows = tiles.saturating_mul(self.choice.tile[1]).min(self.params.m);
        if self.params.form == MatmulForm::Transposed { rows * self.widest() } else { 0 }
    }

    /// Elements of so many packed tiles of A.
    pub(crate) fn packed_a_len(&self, tiles: usize) -> usize {
        let rows = tiles.saturating_mul(self.choice.tile[1]).min(self.params.m);
        match self.choice.algorithm {
            Algorithm::Packed => rows * self.choice.chunk.next_multiple_of(16),
            _ => 0,
        }
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.batch * self.tiling.panels.len() * self.parts
    }

    /// Independent units of packing B.
    pub fn pack_units(&self) -> usize {
        self.tiling.panels.len() * if self.params.b_batch == 0 { 1 } else { self.params.batch }
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        let pieces = self.tiling.pieces(&self.tiling.panels[0], self.tiling.count() / 2);
        pieces[0].1.info.name
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

    /// Packs some panels of the plain B.
    ///
    /// # Safety
    ///
    /// * `src` is readable for [`b_len`](Self::b_len) elements, `dst` writable for
    ///   [`weights_len`](Self::weights_len), and they do not overlap.
    /// * `units` lies in `0..self.pack_units()`, and no other thread packs one of them.
    pub unsafe fn run_pack(&self, src: *const f32, dst: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.pack_units());
        let panels = self.tiling.panels.len();
        for unit in units {
            let (batch, panel) = (unit / panels, unit % panels);
            let src = src.wrapping_add(batch * self.params.b_batch);
            let at = batch * self.packed + self.tiling.panels[panel].column * self.params.k;
            // SAFETY: this panel and all of K lie in a plain B, whose extent `check` computed; the
            // packed form has the panels one after the other, `K * width` elements each.
            unsafe { self.pack_b(src, dst.wrapping_add(at), 0..self.params.k, panel..panel + 1) };
        }
    }

    /// Copies the bias, `[n]` or as [`MatmulForm`] says, and fills it up with zeros. An empty `src` means no bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_bias(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "packed bias", self.bias_len(), dst.len())?;
        let n = if self.params.form == MatmulForm::RowBias { self.params.m } else { self.params.n };
        let n = if src.is_empty() { 0 } else { n };
        check_len(OP, "bias", n, src.len())?;
        dst[..n].copy_from_slice(&src[..n]);
        dst[n..self.bias_len()].fill(0.0);
        Ok(())
    }

    /// Runs all units on this thread, on a packed B and bias. Allocates the scratch memory.
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
        let mut scratch = vec![0.0; self.scratch_len()];
        let (a, w, b) = (a.as_ptr(), weights.as_ptr(), bias.as_ptr());
        let (c, scratch) = (c.as_mut_ptr(), scratch.as_mut_ptr());
        // SAFETY: each operand has the length that the plan asks for, `c` is borrowed mutably and
        // so overlaps none, and `check` found that the CPU has the instructions.
        unsafe { self.run(a, w, b, added, c, scratch, 0..self.units()) };
        Ok(())
    }
}

/// Checks the parameters; the extents of A, B and C.
fn check(isa: Isa, p: &MatmulParams) -> Result<[usize; 3], KernelError> {
    isa.require()?;
    p.check()?;
    check_extents(OP, &[p.m, p.n, p.k])?;
    if p.blocked() && !has_blocks(kernels(isa)) {
        let what = "blocks, on an instruction set without tiles of 16 columns";
        return Err(KernelError::Unsupported { op: OP, what });
    }
    let matrix = |rows: usize, stride: usize, width: usize, batch: usize| {
        let one = checked_len(OP, &[rows - 1, stride])?.checked_add(width);
        let all = checked_len(OP, &[p.batch - 1, batch])?;
        let len =
            one.and_then(|one| one.checked_add(all)).ok_or(KernelError::TooLarge { op: OP })?;
        checked_len(OP, &[len])
    };
    let [c_rows, c_width] = p.c_size();
    let [a_rows, a_width] = p.a_size();
    let (b_rows, b_width) = if p.b_transposed { (p.n, p.k) } else { (p.k, p.n) };
    // Packed operands are up to a tile larger.
    let padded = |size: usize| size + 1024;
    checked_len(OP, &[padded(p.n), padded(p.k), p.batch])?;
    checked_len(OP, &[padded(p.m), padded(p.k)])?;
    Ok([
        matrix(a_rows, p.a_row, a_width, p.a_batch)?,
        matrix(b_rows, p.b_row, b_width, p.b_batch)?,
        matrix(c_rows, p.c_row, c_width, p.c_batch)?,
    ])
}
