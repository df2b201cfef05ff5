//! Products of block-quantised weights with `f32` activations: the matrices of language models.
//!
//! `y[i, r] = sum over c of x[i, c] * w[r, c]` for weights `[n, k]` as GGUF files have them and
//! activations `[m, k]`. Activations are quantised to signed bytes first, 32 of them with one scale; the
//! sums of products of a group are exact integers, and only the sum over groups is rounded. Those of floats, and of
//! [`BlockFormat::U4`], stay as they are. How units are shared out does not change a result.

mod few;
mod format;
mod gather;
mod grid;
mod pack;
mod quantize;
#[cfg(test)]
mod reference;
mod step;
#[cfg(test)]
mod tests;
mod tile;
mod turns;
mod unpack;

pub use format::BlockFormat;
pub(crate) use tile::own;

use crate::detect::{follows_streams, reads_streams};
use crate::error::{check_len, checked_len};
use crate::{Isa, KernelError};
use core::ops::Range;
use quantize::{PrepareArgs, Record};
use tile::{BlockArgs, BlockKernel, BlockRow, SINGLES, row};
use unpack::UnpackFn;

const OP: &str = "block_matmul";

/// Sizes and format of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockMatmulParams {
    /// Rows of activations and of the result.
    pub m: usize,
    /// Rows of weights, elements of a row of the result.
    pub n: usize,
    /// Elements of a row of weights: a multiple of [`BlockFormat::elements`].
    pub k: usize,
    /// How the weights are stored.
    pub format: BlockFormat,
    /// Whether a number is added to each element of a row of the result.
    pub bias: bool,
}

impl BlockMatmulParams {
    /// Without a bias.
    pub fn new(m: usize, n: usize, k: usize, format: BlockFormat) -> Self {
        Self { m, n, k, format, bias: false }
    }
}

/// A product ready to run, in two steps: [`prepare`](Self::prepare) quantises the activations into the
/// workspace, [`run`](Self::run) multiplies. No unit of the second starts before all of the first are
/// done.
///
/// ```
/// use tilewright_kernels::{BlockFormat, BlockMatmulParams, BlockMatmulPlan, Isa};
///
/// let params = BlockMatmulParams::new(1, 1, 32, BlockFormat::Q8_0);
/// let plan = BlockMatmulPlan::new(Isa::Scalar, &params)?;
/// let mut block = vec![2u8; 34];
/// block[..2].copy_from_slice(&0x3800u16.to_le_bytes()); // a scale of 0.5
/// let mut packed = vec![0; plan.packed_bytes()];
/// plan.pack(0..plan.panels(), &block, &mut packed)?;
/// let (mut workspace, mut scratch) = (vec![0.0; plan.workspace_len()], vec![0.0; plan.scratch_len()]);
/// let mut y = [0.0];
/// plan.compute(&[3.0; 32], &packed, &[], &mut workspace, &mut scratch, &mut y)?;
/// assert!((y[0] - 96.0).abs() < 1e-4);
/// # Ok::<(), tilewright_kernels::KernelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockMatmulPlan {
    params: BlockMatmulParams,
    row: &'static BlockRow,
    way: Way,
    record: Record,
    x_len: usize,
    y_len: usize,
    packed: usize,
    in_place: bool,
    /// Whether the machine needs no help with a stream of weights.
    follows: bool,
    /// Whether it reads several of them faster.
    streams: bool,
}

/// How panels are multiplied.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// As they are packed.
    Packed(&'static [BlockKernel]),
    /// Taken apart first, into so many vectors of floats and words per 32 steps of the reduction; perhaps with a
    /// kernel that reads a packed panel for a single column.
    Unpacked {
        unpack: UnpackFn,
        kernels: &'static [BlockKernel],
        vectors: usize,
        single: Option<&'static BlockKernel>,
    },
}

impl Way {
    fn of(row: &'static BlockRow, format: BlockFormat) -> Self {
        let format = format.held();
        let Some(unpack) = (row.unpack)(format) else {
            return Self::Packed(match format {
                BlockFormat::F32 => row.f32,
                BlockFormat::F16 => row.f16,
                BlockFormat::Bf16 => row.bf16,
                BlockFormat::Q4_0 => row.q4_0,
                _ => row.q8_0,
            });
        };
        let single = SINGLES.iter().position(|&single| single == format);
        let single = match (single, format) {
            (Some(i), _) => row.singles.get(i).map(|kernels| &kernels[0]),
            (None, BlockFormat::Q8_0) => Some(&row.q8_0[0]),
            (None, _) => Some(&row.q4_0[0]),
        };
        let (kernels, vectors) = match format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 | BlockFormat::Q5_0 => (row.g32, 9),
            BlockFormat::Iq4Nl | BlockFormat::Iq4Xs | BlockFormat::Mxfp4 => (row.g32, 9),
            BlockFormat::Q1_0 | BlockFormat::Q2_0 => (row.g32, 9),
            BlockFormat::Q3K | BlockFormat::Q6K | BlockFormat::Iq3S => (row.g16, 10),
            BlockFormat::Q2K => (row.g16m, 12),
            BlockFormat::U4 => (row.f32, 32),
            _ => (row.g32m, 10),
        };
        Self::Unpacked { unpack, kernels, vectors, single }
    }

    fn kernels(self) -> &'static [BlockKernel] {
        match self {
            Self::Packed(kernels) | Self::Unpacked { kernels, .. } => kernels,
        }
    }

    /// The kernel of a single column of panels as they are packed.
    fn single(self) -> Option<&'static BlockKernel> {
        match self {
            Self::Packed(kernels) => Some(&kernels[0]),
            Self::Unpacked { single, .. } => single,
        }
    }

    /// What so many columns become.
    fn record(self, row: &BlockRow, format: BlockFormat, m: usize) -> Record {
        format.record(row.bias, m == 1 && self.single().is_some())
    }
}

impl BlockMatmulPlan {
    /// Checks the parameters and chooses the kernels.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`], [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &BlockMatmulParams) -> Result<Self, KernelError> {
        isa.require()?;
        let &BlockMatmulParams { m, n, k, format, .. } = params;
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        if m == 0 || n == 0 || k == 0 {
            return invalid("size", "at least 1");
        }
        if !k.is_multiple_of(format.elements()) {
            return invalid("k", "a multiple of the elements of a block");
        }
        let row = row(isa);
        let (x_len, y_len) = (checked_len(OP, &[m, k])?, checked_len(OP, &[m, n])?);
        let rows = n.checked_next_multiple_of(row.lanes).ok_or(KernelError::TooLarge { op: OP })?;
        let packed = checked_len(OP, &[rows, k / format.elements(), format.held_bytes()])?;
        let way = Way::of(row, format);
        let record = way.record(row, format, m);
        // The workspace has at most a tile more columns than there are, of at most two words per
        // element; scratch memory has two panels.
        let columns = m.saturating_add(way.kernels()[1].info.w_ob());
        checked_len(OP, &[columns, k, 2])?;
        checked_len(OP, &[row.lanes, k, 2])?;
        let (params, in_place) = (*params, false);
        // Of whole floats there is so little arithmetic that asking early is what takes time.
        let plain = format == BlockFormat::F32;
        let follows = follows_streams() || (plain && reads_streams());
        let streams = !plain && reads_streams();
        Ok(Self { params, row, way, record, x_len, y_len, packed, in_place, follows, streams })
    }

    /// As [`new`](Self::new), with weights as the file has them: each unit brings its rows into panels in
    /// scratch memory, which stay in a cache until they are multiplied. The result is the same. A single
    /// column times floats takes the rows as they lie; its sums are added up in another order.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn in_place(isa: Isa, params: &BlockMatmulParams) -> Result<Self, KernelError> {
        let plan = Self::new(isa, params)?;
        let packed = params.n * plan.row_bytes();
        Ok(Self { packed, in_place: true, ..plan })
    }

    /// The product of the same weights with other rows of activations: from 1 to as many as this plan has.
    pub fn with_rows(&self, m: usize) -> Self {
        debug_assert!((1..=self.params.m).contains(&m));
        let BlockMatmulParams { n, k, format, .. } = self.params;
        Self {
            params: BlockMatmulParams { m, ..self.params },
            record: self.way.record(self.row, format, m),
            x_len: m * k,
            y_len: m * n,
            ..self.clone()
        }
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &BlockMatmulParams {
        &self.params
    }

    /// Elements of the activations `[m, k]`.
    pub fn x_len(&self) -> usize {
        self.x_len
    }

    /// Elements of the result `[m, n]`.
    pub fn y_len(&self) -> usize {
        self.y_len
    }

    /// Bytes of the weights that [`run`](Self::run) reads: those of the file, but for formats of fewer than four bits
    /// whose blocks are larger when they are packed ([`BlockFormat::held_bytes`]), and for a last panel of
    /// fewer rows, which is filled up then. They depend on the instruction set, the format,
    /// `n` and `k`, not on `m`.
    pub fn packed_bytes(&self) -> usize {
        self.packed
    }

    /// Panels of the packed weights: what can be packed independently, each a contiguous part of the
    /// source and of the packed weights.
    pub fn panels(&self) -> usize {
        self.params.n.div_ceil(self.row.lanes)
    }

    /// Rows of a panel.
    pub fn panel_rows(&self) -> usize {
        self.row.lanes
    }

    /// Bytes of a packed panel.
    pub fn panel_bytes(&self) -> usize {
        let format = self.params.format;
        self.row.lanes * (self.params.k / format.elements() * format.held_bytes())
    }

    /// Bytes of the rows of a panel in the source.
    pub fn source_bytes(&self) -> usize {
        self.row.lanes * self.row_bytes()
    }

    /// Bytes of a row of the source.
    // Like others here: copies in each caller took 2 KB, and calls cost nothing beside a panel.
    #[inline(never)]
    pub fn row_bytes(&self) -> usize {
        self.params.k / self.params.format.elements() * self.params.format.bytes()
    }

    /// Words of the workspace, which holds the quantised activations.
    pub fn workspace_len(&self) -> usize {
        self.tile_at(self.tiles())
    }

    /// What [`prepare`](Self::prepare) makes of its operand: plans for one instruction set that say the
    /// same here write the same workspace.
    pub fn workspace_form(&self) -> impl core::fmt::Debug + PartialEq + use<> {
        let (m, k) = (self.params.m, self.params.k);
        (m, k, self.columns(), self.record, self.workspace_len())
    }

    /// Words of scratch memory that each thread needs in [`run`](Self::run).
    pub fn scratch_len(&self) -> usize {
        self.unit_panels()
            * (self.packed_len() + if self.as_packed() { 0 } else { self.unpacked_len() })
    }

    /// Whether panels are multiplied as they are packed.
    fn as_packed(&self) -> bool {
        matches!(self.way, Way::Packed(_)) || (self.params.m == 1 && self.way.single().is_some())
    }

    /// The kernel that takes rows of the file.
    fn rows(&self) -> Option<&'static BlockKernel> {
        let [f32, f16, bf16] = &self.row.rows;
        match self.params.format {
            _ if !self.in_place || self.params.m > 1 => None,
            BlockFormat::F32 => Some(f32),
            BlockFormat::F16 => Some(f16),
            BlockFormat::Bf16 => Some(bf16),
            _ => None,
        }
    }

    /// Words of a panel that is packed when it is used.
    fn packed_len(&self) -> usize {
        if self.in_place && self.rows().is_none() { self.panel_bytes().div_ceil(4) } else { 0 }
    }

    /// Words of a panel taken apart.
    fn unpacked_len(&self) -> usize {
        match self.way {
            Way::Packed(_) => 0,
            Way::Unpacked { vectors, .. } => self.params.k / 32 * vectors * self.row.lanes,
        }
    }

    /// Elements of the bias.
    pub fn bias_len(&self) -> usize {
        if self.params.bias { self.params.n } else { 0 }
    }

    /// Independent units of [`prepare`](Self::prepare).
    pub fn prepare_units(&self) -> usize {
        self.tiles()
    }

    /// Independent units of [`run`](Self::run).
    pub fn units(&self) -> usize {
        self.panels().div_ceil(self.unit_panels())
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        if let Some(rows) = self.rows() {
            return rows.info.name;
        }
        match (self.way, self.params.m) {
            (Way::Unpacked { single: Some(single), .. }, 1) => single.info.name,
            (way, 1) => way.kernels()[0].info.name,
            (way, _) => way.kernels()[self.unit_panels()].info.name,
        }
    }

    /// Rows of activations in a unit of [`prepare`](Self::prepare), but for the last one.
    pub fn columns(&self) -> usize {
        self.way.kernels()[1].info.w_ob()
    }

    /// Panels in a unit: two where many columns share what is loaded, one where they are read from
    /// memory for few of them, because two streams at a time are slower than one (but see
    /// [`takes_turns`](Self::takes_turns)).
    #[inline(never)]
    fn unit_panels(&self) -> usize {
        if self.params.m > self.columns() { self.way.kernels().len() - 1 } else { 1 }
    }

    /// Tiles of columns: all have as many columns as the kernels, but one may have a single one.
    fn tiles(&self) -> usize {
        self.params.m.div_ceil(self.columns())
    }

    /// Columns that exist in a tile, and columns that it has.
    fn tile_columns(&self, tile: usize) -> [usize; 2] {
        let exist = (self.params.m - tile * self.columns()).min(self.columns());
        [exist, if exist == 1 { 1 } else { self.columns() }]
    }

    /// Where a tile begins in the workspace.
    #[inline(never)]
    fn tile_at(&self, tile: usize) -> usize {
        let columns = match tile.checked_sub(1) {
            Some(last) if tile == self.tiles() => {
                last * self.columns() + self.tile_columns(last)[1]
            }
            _ => tile * self.columns(),
        };
        let [words, steps] = self.record.words();
        columns * (self.params.k / steps) * words
    }

    /// Runs all units on this thread, on packed weights. `bias` is empty if the plan has none.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short.
    pub fn compute(
        &self,
        x: &[f32],
        weights: &[u8],
        bias: &[f32],
        workspace: &mut [f32],
        scratch: &mut [f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "x", self.x_len, x.len())?;
        check_len(OP, "packed weights", self.packed, weights.len())?;
        check_len(OP, "bias", self.bias_len(), bias.len())?;
        check_len(OP, "workspace", self.workspace_len(), workspace.len())?;
        check_len(OP, "scratch", self.scratch_len(), scratch.len())?;
        check_len(OP, "y", self.y_len, y.len())?;
        let workspace = workspace.as_mut_ptr();
        let operands = BlockOperands {
            weights: weights.as_ptr(),
            bias: bias.as_ptr(),
            workspace,
            scratch: scratch.as_mut_ptr(),
            y: y.as_mut_ptr(),
        };
        // SAFETY: each operand has the length that the plan asks for, what is written is borrowed
        // mutably and so overlaps nothing, and `new` checked that the CPU has the instructions.
        unsafe {
            self.prepare(x.as_ptr(), workspace, 0..self.prepare_units());
            self.run(&operands, 0..self.units());
        }
        Ok(())
    }

    /// Quantises some of the activations. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x` is readable for [`x_len`](Self::x_len) elements, `workspace` writable for
    ///   [`workspace_len`](Self::workspace_len) words, both aligned, and they do not overlap.
    /// * `units` lies in `0..self.prepare_units()`, and no other thread runs one of them.
    pub unsafe fn prepare(&self, x: *const f32, workspace: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.prepare_units());
        for tile in units {
            let args = PrepareArgs {
                x: x.wrapping_add(tile * self.columns() * self.params.k),
                k: self.params.k,
                records: workspace.wrapping_add(self.tile_at(tile)),
                columns: self.tile_columns(tile),
                record: self.record,
                paired: self.row.paired,
            };
            // SAFETY: the columns of a tile exist, and its records lie in the workspace.
            unsafe { (self.row.prepare)(&args) };
        }
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * The operands are as [`BlockOperands`] says.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`.
    pub unsafe fn run(&self, operands: &BlockOperands, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let each = self.unit_panels();
        let panels = units.start * each..(units.end * each).min(self.panels());
        // SAFETY: the caller vouches for the operands, and nobody else runs these panels.
        unsafe { self.run_panels(operands, panels) };
    }

    /// As [`run`](Self::run) for some panels, whatever units they belong to.
    ///
    /// # Safety
    ///
    /// * The operands are as [`BlockOperands`] says.
    /// * `panels` lies in `0..self.panels()`, and no other thread runs one of them on this `y`.
    pub unsafe fn run_panels(&self, operands: &BlockOperands, panels: Range<usize>) {
        debug_assert!(panels.end <= self.panels());
        let mut done = 0;
        if self.takes_turns() {
            // SAFETY: the caller's duties are those of this call.
            done = unsafe { self.turns(operands, panels.clone()) };
        }
        let (each, panels) = (self.unit_panels(), panels.start + done..panels.end);
        for first in panels.clone().step_by(each) {
            let panels = first..(first + each).min(panels.end);
            // SAFETY: the panels exist, and the operands are those that the caller vouches for.
            unsafe { self.unit(operands, panels) };
        }
    }

    /// What is added to a row and those behind it.
    fn bias_at(&self, operands: &BlockOperands, row: usize) -> *const f32 {
        if self.params.bias { operands.bias.wrapping_add(row) } else { core::ptr::null() }
    }

    /// Multiplies one or two panels.
    ///
    /// # Safety
    ///
    /// As for [`run`](Self::run).
    #[inline(never)]
    unsafe fn unit(&self, operands: &BlockOperands, panels: Range<usize>) {
        let (lanes, bytes) = (self.row.lanes, self.panel_bytes());
        let each = if self.in_place { self.source_bytes() } else { bytes };
        let mut packed = operands.weights.wrapping_add(panels.start * each);
        let mut scratch = operands.scratch;
        if let Some(kernel) = self.rows() {
            let row = panels.start * lanes;
            let args = BlockArgs {
                w: packed,
                panel: self.row_bytes(),
                x: operands.workspace,
                blocks: self.params.k,
                codes: None,
                bias: self.bias_at(operands, row),
                o: operands.y.wrapping_add(row),
                o_step: self.params.n,
                columns: 1,
                tail: lanes.min(self.params.n - row),
                ahead: if self.follows { 0 } else { kernel.ahead },
                sums: core::ptr::null_mut(),
                last: true,
            };
            // SAFETY: the rows of the panel, the column and the results exist, and the caller vouches
            // for the memory; `new` checked that the CPU has the instructions.
            return unsafe { (kernel.run)(&args) };
        }
        if self.in_place {
            // SAFETY: the weights have the rows of the panels, and scratch memory these panels.
            unsafe { self.pack_here(packed, scratch, panels.clone()) };
            packed = scratch.cast();
            scratch = scratch.wrapping_add(panels.len() * self.packed_len());
        }
        let bytes = if self.in_place { self.packed_len() * 4 } else { bytes };
        let blocks = self.params.k / self.params.format.held().elements();
        let codes = self.params.format.codes();
        let (kernels, single, w, panel, steps) = match self.way {
            Way::Packed(kernels) => (kernels, &kernels[0], packed, bytes, blocks),
            Way::Unpacked { kernels, single: Some(single), .. } if self.as_packed() => {
                (kernels, single, packed, bytes, blocks)
            }
            Way::Unpacked { unpack, kernels, .. } => {
                let len = self.unpacked_len();
                for i in 0..panels.len() {
                    let to = scratch.wrapping_add(i * len);
                    // SAFETY: the panel has these blocks, and scratch memory the vectors of two.
                    unsafe { unpack(packed.wrapping_add(i * bytes), to, blocks, codes) };
                }
                let steps = self.params.k / self.record.words()[1];
                (kernels, &kernels[0], scratch.cast_const().cast(), len * 4, steps)
            }
        };
        for tile in 0..self.tiles() {
            let [columns, wide] = self.tile_columns(tile);
            // Of a single column there is only the kernel for one panel.
            let step = if wide == 1 { 1 } else { panels.len() };
            let kernel = if wide == 1 { single } else { &kernels[step] };
            for i in (0..panels.len()).step_by(step) {
                let row = (panels.start + i) * lanes;
                let end = (row + step * lanes).min(self.params.n);
                let args = BlockArgs {
                    w: w.wrapping_add(i * panel),
                    panel,
                    x: operands.workspace.wrapping_add(self.tile_at(tile)),
                    blocks: steps,
                    codes,
                    bias: self.bias_at(operands, row),
                    o: operands.y.wrapping_add(tile * self.columns() * self.params.n + row),
                    o_step: self.params.n,
                    columns,
                    tail: end - row - (step - 1) * lanes,
                    ahead: if self.follows || self.in_place { 0 } else { kernel.ahead },
                    sums: core::ptr::null_mut(),
                    last: true,
                };
                // SAFETY: the panels, the tile and the results exist, and the caller vouches for
                // the memory; `new` checked that the CPU has the instructions.
                unsafe { (kernel.run)(&args) };
            }
        }
    }
}

/// Where the operands of [`BlockMatmulPlan::run`] lie. All but the weights are aligned to 4, and what is
/// written overlaps nothing else.
#[derive(Clone, Copy, Debug)]
pub struct BlockOperands {
    /// Readable for [`BlockMatmulPlan::packed_bytes`], packed by a plan that differs in `m` and `bias` only,
    /// or as the file has them for a plan that takes them in place.
    pub weights: *const u8,
    /// Readable for [`BlockMatmulPlan::bias_len`] elements.
    pub bias: *const f32,
    /// What all units of [`BlockMatmulPlan::prepare`] of the same plan wrote.
    pub workspace: *const f32,
    /// Writable for [`BlockMatmulPlan::scratch_len`] words, initialised, used by no other thread.
    pub scratch: *mut f32,
    /// Writable for [`BlockMatmulPlan::y_len`] elements.
    pub y: *mut f32,
}
