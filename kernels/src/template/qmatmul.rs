//! Matrix product of bytes (ONNX `MatMulInteger`, `QLinearMatMul`), row-major, batched, exact.
//!
//! With shifted bytes `a' = a + s` and `b' = b + t`, as the instruction set multiplies them, and
//! zero points shifted alike, the sum over k of `(a - za) * (b - zb)` is
//! `sum(a' b') - za' * sum(b') - zb' * sum(a') + K za' zb'`: the kernel computes the first term, the
//! second and the last are part of the bias, and the third is added in the epilogue where B has a
//! zero point.

use super::dot::{WordOperands, WordProduct, check_sizes};
use super::dot_convert::{left_shift, pack_panel, right_shift, spare_words, split};
use super::dot_pieces::{self, Shape};
use super::dot_tile::{Finish, bytes_row};
use super::matmul_params::MatmulParams;
use super::unary::{UnaryKernel, post_kernel};
use crate::epilogue::TileActivation;
use crate::error::{check_len, checked_len};
use crate::quant::{Bytes, QuantColumns, QuantOutput, QuantResult};
use crate::{Activation, Dtype, Isa, KernelError};
use core::ops::Range;
use core::slice;

#[cfg(any(feature = "alloc", test))]
pub use super::qmatmul_reference::reference;

const OP: &str = "qmatmul";

/// Sizes, types and attributes of a product of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct QmatmulParams {
    /// Sizes and strides, in elements. The epilogue has no residual, and an activation only for
    /// [`QuantOutput::F32`].
    pub sizes: MatmulParams,
    /// Type of A: [`Dtype::I8`] or [`Dtype::U8`].
    pub a: Dtype,
    /// Type of B.
    pub b: Dtype,
    /// Whether B has a zero point that may differ from 0.
    pub b_zero_point: bool,
    /// Whether few elements of B, signed or less 128, some in a hundred, are beyond -64 to 64. Results are the
    /// same: it is for instruction sets that add up neighbouring products in 16 bits, and need more steps where these
    /// could saturate.
    pub small: bool,
    /// Type of C.
    pub output: QuantOutput,
}

impl QmatmulParams {
    /// Dense matrices `[m, k] * [k, n]`, B signed and without a zero point, C of sums.
    pub fn new(m: usize, k: usize, n: usize, a: Dtype) -> Self {
        let sizes = MatmulParams::new(m, k, n);
        Self { sizes, a, b: Dtype::I8, b_zero_point: false, small: false, output: QuantOutput::I32 }
    }

    fn check(&self) -> Result<(), KernelError> {
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        self.output.check(OP)?;
        if [self.a, self.b].iter().any(|t| !matches!(t, Dtype::I8 | Dtype::U8)) {
            return invalid("type", "i8 or u8");
        }
        if self.output != QuantOutput::F32 && self.sizes.epilogue.activation != Activation::None {
            return invalid("activation", "absent unless the result is f32");
        }
        // The distance of a byte and its zero point is at most 255.
        let b_most = if self.b_zero_point || self.b == Dtype::U8 { 255 } else { 128 };
        if self.sizes.k > i32::MAX as usize / (255 * b_most) {
            return invalid("k", "so small that no sum leaves the range of i32");
        }
        Ok(())
    }
}

/// A product of bytes ready to run.
///
/// A run is two steps: [`run_convert`](Self::run_convert) brings A into the form that the kernels
/// read, unless [`scratch_len`](Self::scratch_len) is 0, and [`run`](Self::run) multiplies. No unit
/// of the second starts before all of the first are done.
#[derive(Clone, Debug)]
pub struct QmatmulPlan {
    params: QmatmulParams,
    product: WordProduct,
    finish: Finish,
    post: Option<UnaryKernel>,
    /// Whether A must be converted.
    converts: bool,
    /// Whether the sums of A's rows are needed.
    sums: bool,
    lens: [usize; 3],
}

impl QmatmulPlan {
    /// Checks the parameters and chooses the kernels.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`], also for a `k` with which a sum may overflow;
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &QmatmulParams) -> Result<Self, KernelError> {
        isa.require()?;
        let lens = check_sizes(OP, &params.sizes)?;
        params.check()?;
        let s = &params.sizes;
        let rows = s.m.saturating_mul(s.batch);
        let shape = Shape { rows, line: s.m, bytes: s.k, depth: s.k, columns: s.n };
        let pieces = dot_pieces::kernels(isa, &shape);
        let product = WordProduct::new(s, bytes_row(isa, params.small), pieces, OP)?;
        let row = product.row;
        let sums = params.b_zero_point || params.b == Dtype::U8;
        // Whole rows of words, which the kernels may read where they are. Rows a multiple of 4 KiB
        // apart share the sets of the L1 cache: it pays to copy them.
        let whole = 4 * product.k_words == s.k && product.behind() == 0;
        let dense = whole && [s.a_row, s.a_batch].iter().all(|n| n.is_multiple_of(4));
        let bytes = row.word.group() == 4;
        let apart = s.m < 8 || !s.a_row.is_multiple_of(4096);
        let direct = bytes && dense && apart && !sums && left_shift(params.a, row.word) == 0;
        let activation = s.epilogue.activation.in_tile().unwrap_or(TileActivation::None);
        let finish = Finish::of(params.output, activation);
        let post = post_kernel(isa, s.epilogue.activation)?;
        checked_len(OP, &[product.packed() + 2 * product.columns, s.batch])?;
        Ok(Self { params: params.clone(), product, finish, post, converts: !direct, sums, lens })
    }

    /// Whether an instruction set has other kernels of bytes for [`small`](QmatmulParams::small) weights, so that it is
    /// worth looking at these.
    pub fn heeds_small(isa: Isa) -> bool {
        bytes_row(isa, true).word.saturates()
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &QmatmulParams {
        &self.params
    }

    /// Bytes that A spans.
    pub fn a_len(&self) -> usize {
        self.lens[0]
    }

    /// Bytes that the plain B spans.
    pub fn b_len(&self) -> usize {
        self.lens[1]
    }

    /// Elements that C spans.
    pub fn c_len(&self) -> usize {
        self.lens[2]
    }

    /// Words of the packed B, of all products, with the sums of its columns.
    pub fn weights_len(&self) -> usize {
        self.b_words() * self.product.b_count()
    }

    /// Words of what follows the sums, of all products.
    pub fn columns_len(&self) -> usize {
        3 * self.product.columns * self.product.b_count()
    }

    /// Words of the converted A, 0 if it is read where it lies.
    pub fn scratch_len(&self) -> usize {
        let (product, sums) = (&self.product, usize::from(self.sums));
        let words = product.a_rows() * (product.a_stride + sums);
        if self.converts { words + product.behind() * product.a_stride } else { 0 }
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.product.units()
    }

    /// Independent units of converting A.
    pub fn convert_units(&self) -> usize {
        if self.converts { self.product.convert_units() } else { 0 }
    }

    /// Independent units of packing B.
    pub fn pack_units(&self) -> usize {
        self.product.division.panels() * self.product.b_count()
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        self.product.kernel_name()
    }

    /// What the order of the packed B depends on, the width of the panels and the kernels: plans that differ in the number
    /// of rows only, and agree in this, share it.
    pub fn packing(&self) -> (usize, &'static str) {
        (self.product.division.width(), self.product.row.kernels[0].info.name)
    }

    /// Words of the packed B of one product: panels, sums of columns, factors of the sums of rows.
    fn b_words(&self) -> usize {
        self.product.packed() + 2 * self.product.columns
    }

    /// Packs the plain B. Its zero points are one per column, one for all, or none for 0.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `b` or `dst` is too short or the zero points are neither
    /// of those numbers, [`KernelError::InvalidParam`] for bytes of another sign, zero points that
    /// are not announced or outside the range of the type.
    pub fn pack_weights(
        &self,
        b: Bytes<'_>,
        zero_points: &[i32],
        dst: &mut [i32],
    ) -> Result<(), KernelError> {
        let p = &self.params;
        check_type(OP, "type of b", p.b, b.dtype())?;
        check_len(OP, "b", self.b_len(), b.len())?;
        check_len(OP, "packed b", self.weights_len(), dst.len())?;
        self.check_zeros(zero_points)?;
        // SAFETY: the lengths were checked, and `dst` is borrowed mutably.
        unsafe { self.run_pack(b.as_ptr(), zero_points, dst.as_mut_ptr(), 0..self.pack_units()) };
        Ok(())
    }

    fn check_zeros(&self, zero_points: &[i32]) -> Result<(), KernelError> {
        let p = &self.params;
        if zero_points.len() > 1 {
            check_len(OP, "zero points of b", p.sizes.n, zero_points.len())?;
        }
        check_zero_points(OP, p.b, zero_points)?;
        if !p.b_zero_point && zero_points.iter().any(|z| *z != 0) {
            let (param, expected) = ("zero point of b", "0 unless it is announced");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        Ok(())
    }

    /// Checks what [`run_pack`](Self::run_pack) and [`run_columns`](Self::run_columns) are going to get.
    ///
    /// # Errors
    ///
    /// Those of [`pack_weights`](Self::pack_weights) and [`pack_columns`](Self::pack_columns) about zero
    /// points and columns.
    pub fn check_run(
        &self,
        zero_points: &[i32],
        columns: &QuantColumns<'_>,
    ) -> Result<(), KernelError> {
        let p = &self.params;
        self.check_zeros(zero_points)?;
        check_columns(OP, p.sizes.n, p.output, p.a, columns)
    }

    /// Packs some panels of the plain B: for a B that is known only at run time.
    ///
    /// # Safety
    ///
    /// * `b` is readable for [`b_len`](Self::b_len) bytes, `dst` writable and aligned for
    ///   [`weights_len`](Self::weights_len) words, and they do not overlap.
    /// * [`check_run`](Self::check_run) accepts `zero_points`.
    /// * `units` lies in `0..self.pack_units()`, and no other thread packs one of them.
    pub unsafe fn run_pack(
        &self,
        b: *const u8,
        zero_points: &[i32],
        dst: *mut i32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.pack_units());
        let (p, count) = (&self.params.sizes, self.product.division.panels());
        let (k_step, n_step) = if p.b_transposed { (1, p.b_row) } else { (p.b_row, 1) };
        let shift = right_shift(self.params.b);
        let row = self.product.row;
        let flip = if shift == 0 { 0 } else { 0x80 };
        for unit in units {
            let (batch, panel) = (unit / count, self.product.division.panel(unit % count));
            let first = batch * p.b_batch + panel.column * n_step;
            let dst = dst.wrapping_add(batch * self.b_words());
            let words = dst.wrapping_add(panel.column * self.product.k_words);
            let sums = dst.wrapping_add(self.product.packed() + panel.column);
            let offsets = sums.wrapping_add(self.product.columns);
            let columns = panel.width.min(p.n - panel.column);
            let group = row.word.group();
            let places = (0..p.k).step_by(group).map(|k| (first + k * k_step, group.min(p.k - k)));
            // SAFETY: the panel has `k_words * width` words, its spare ones, and a sum and an offset per column,
            // which no other unit uses. Row `k < K` and columns `< N` lie in the plain B, whose extent `new`
            // computed.
            unsafe {
                let words = slice::from_raw_parts_mut(words, self.product.k_words * panel.width);
                let sums = slice::from_raw_parts_mut(sums, panel.width);
                sums.fill(0);
                let element = |at: usize, _| i32::from((*b.add(at) ^ flip) as i8);
                let sum = |n: usize, x| sums[n] += x;
                pack_panel(
                    row,
                    panel.width,
                    columns,
                    places,
                    [k_step, n_step],
                    element,
                    sum,
                    words,
                );
                if row.word.saturates() {
                    let spare = dst.wrapping_add(self.product.spare(&panel));
                    let len = panel.width * spare_words(row.word, self.product.k_words);
                    let spare = slice::from_raw_parts_mut(spare, len);
                    split(words, panel.width, self.product.k_words, spare);
                }
                for n in 0..panel.width {
                    let at = if zero_points.len() > 1 { panel.column + n } else { 0 };
                    *offsets.add(n) = -(zero_points.get(at).copied().unwrap_or(0) + shift);
                }
            }
        }
    }

    /// Prepares what follows the sums, from the packed B.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] for an operand that is too short,
    /// [`KernelError::InvalidParam`] for a zero point outside the range of A's type or a scale that is
    /// not finite.
    pub fn pack_columns(
        &self,
        weights: &[i32],
        columns: &QuantColumns<'_>,
        dst: &mut [i32],
    ) -> Result<(), KernelError> {
        let p = &self.params;
        check_len(OP, "packed b", self.weights_len(), weights.len())?;
        check_len(OP, "columns", self.columns_len(), dst.len())?;
        check_columns(OP, p.sizes.n, p.output, p.a, columns)?;
        // SAFETY: the lengths were checked, and `dst` is borrowed mutably.
        unsafe {
            let batches = 0..self.product.b_count();
            self.run_columns(weights.as_ptr(), columns, dst.as_mut_ptr(), batches);
        }
        Ok(())
    }

    /// Products with a B of their own: 1 if all share one. Each has as many of the units of packing.
    pub fn b_count(&self) -> usize {
        self.product.b_count()
    }

    /// Prepares what follows the sums of some products: for a B that is known only at run time.
    ///
    /// # Safety
    ///
    /// * `weights` is readable for [`weights_len`](Self::weights_len) words, those of `batches` packed by
    ///   this plan, `dst` writable for [`columns_len`](Self::columns_len) words; both are aligned and do
    ///   not overlap.
    /// * [`check_run`](Self::check_run) accepts `columns`.
    /// * `batches` lies in `0..self.b_count()`, and no other thread prepares one of them.
    pub unsafe fn run_columns(
        &self,
        weights: *const i32,
        columns: &QuantColumns<'_>,
        dst: *mut i32,
        batches: Range<usize>,
    ) {
        debug_assert!(batches.end <= self.b_count());
        let (p, count) = (&self.params, self.product.columns);
        let zero = columns.zero_point + left_shift(p.a, self.product.row.word);
        for batch in batches {
            let sums = weights.wrapping_add(batch * self.b_words() + self.product.packed());
            let dst = dst.wrapping_add(batch * 3 * count);
            // SAFETY: behind the panels of each packed B there are the sums and the offsets of its
            // columns; each product has three words per column.
            let (sums, dst) = unsafe {
                (slice::from_raw_parts(sums, 2 * count), slice::from_raw_parts_mut(dst, 3 * count))
            };
            for n in 0..count {
                let bias = columns.bias.get(n).copied().unwrap_or(0);
                // offset = -zb', so K za' zb' is -K za' offset. Modulo 2^32, as the sums are.
                let terms = sums[n].wrapping_add((p.sizes.k as i32).wrapping_mul(sums[count + n]));
                dst[n] = bias.wrapping_sub(zero.wrapping_mul(terms));
                let (scale, shift) = column(columns, n);
                dst[count + n] = scale.to_bits() as i32;
                dst[2 * count + n] = shift.to_bits() as i32;
            }
        }
    }

    /// Multiplies the factors of prepared columns by one that is known only at run time, with which A
    /// was quantised. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] for an operand that is too short.
    pub fn scale_columns(&self, factor: f32, columns: &mut [i32]) -> Result<(), KernelError> {
        check_len(OP, "columns", self.columns_len(), columns.len())?;
        let count = self.product.columns;
        for part in columns[..self.columns_len()].chunks_exact_mut(3 * count) {
            for word in &mut part[count..2 * count] {
                *word = (f32::from_bits(*word as u32) * factor).to_bits() as i32;
            }
        }
        Ok(())
    }

    /// Runs all units on this thread, on a packed B and prepared columns.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if it
    /// has another type than the plan was made for.
    pub fn compute(
        &self,
        a: Bytes<'_>,
        weights: &[i32],
        columns: &[i32],
        scratch: &mut [i32],
        mut c: QuantResult<'_>,
    ) -> Result<(), KernelError> {
        let (dtype, c, c_len) = c.parts();
        check_type(OP, "type of a", self.params.a, a.dtype())?;
        check_type(OP, "type of c", self.params.output.dtype(), dtype)?;
        check_len(OP, "a", self.a_len(), a.len())?;
        check_len(OP, "packed b", self.weights_len(), weights.len())?;
        check_len(OP, "columns", self.columns_len(), columns.len())?;
        check_len(OP, "scratch", self.scratch_len(), scratch.len())?;
        check_len(OP, "c", self.c_len(), c_len)?;
        let (a, scratch) = (a.as_ptr(), scratch.as_mut_ptr());
        // SAFETY: each operand has the type and the length that the plan asks for, scratch and `c`
        // are borrowed mutably and so overlap none, and `new` checked that the CPU has the
        // instructions.
        unsafe {
            self.run_convert(a, scratch, 0..self.convert_units());
            self.run(a, scratch, weights.as_ptr(), columns.as_ptr(), c, 0..self.units());
        }
        Ok(())
    }

    /// Converts some rows of A. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `a` is readable for [`a_len`](Self::a_len) bytes, `scratch` writable and aligned for
    ///   [`scratch_len`](Self::scratch_len) words, and they do not overlap.
    /// * `units` lies in `0..self.convert_units()`, and no other thread runs one of them.
    pub unsafe fn run_convert(&self, a: *const u8, scratch: *mut i32, units: Range<usize>) {
        debug_assert!(units.end <= self.convert_units());
        let sums = scratch.wrapping_add(self.product.a_rows() * self.product.a_stride);
        let sums = if self.sums { sums } else { core::ptr::null_mut() };
        // SAFETY: the scratch memory has the words of all rows, and then their sums if needed.
        unsafe { self.product.convert(self.params.a, a, scratch.cast(), sums, units) };
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `a` is readable for [`a_len`](Self::a_len) bytes, or is not read if there is scratch memory;
    ///   `scratch` holds [`scratch_len`](Self::scratch_len) words that all units of
    ///   [`run_convert`](Self::run_convert) wrote; `weights` and `columns` are readable for
    ///   [`weights_len`](Self::weights_len) and [`columns_len`](Self::columns_len) words, prepared
    ///   by this plan; `c` is writable for [`c_len`](Self::c_len) elements of the output type. All
    ///   but `a` are aligned.
    /// * `c` overlaps no other operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `c`.
    pub unsafe fn run(
        &self,
        a: *const u8,
        scratch: *const i32,
        weights: *const i32,
        columns: *const i32,
        c: *mut u8,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let (s, product) = (&self.params.sizes, &self.product);
        let null = core::ptr::null();
        let rows = product.a_rows() * product.a_stride;
        let (a, a_step, a_batch) = if self.converts {
            (scratch.cast(), product.a_stride, s.m * product.a_stride)
        } else {
            (a.cast(), s.a_row / 4, s.a_batch / 4)
        };
        let offset = weights.wrapping_add(product.packed() + product.columns).cast();
        let shared = s.b_batch == 0;
        let operands = WordOperands {
            a,
            a_step,
            a_batch: if s.a_batch == 0 { 0 } else { a_batch },
            row_sums: if self.sums { scratch.wrapping_add(rows).cast() } else { null },
            b: weights.cast(),
            offset: if self.sums { offset } else { null },
            b_batch: if shared { 0 } else { self.b_words() },
            epilogue: columns.cast(),
            epilogue_batch: if shared { 0 } else { 3 * product.columns },
            c,
        };
        // SAFETY: the operands are those that the caller vouches for, at the places where this plan
        // put their parts.
        unsafe { product.run(&operands, self.finish, self.post.as_ref(), units) };
    }
}

pub(crate) fn check_type(
    op: &'static str,
    param: &'static str,
    expected: Dtype,
    found: Dtype,
) -> Result<(), KernelError> {
    if expected == found {
        return Ok(());
    }
    Err(KernelError::InvalidParam { op, param, expected: expected.name() })
}

/// An error unless all zero points are in the range of a type.
pub(crate) fn check_zero_points(
    op: &'static str,
    dtype: Dtype,
    zero_points: &[i32],
) -> Result<(), KernelError> {
    let range = if dtype == Dtype::I8 { -128..=127 } else { 0..=255 };
    if zero_points.iter().all(|z| range.contains(z)) {
        return Ok(());
    }
    let (param, expected) = ("zero point", "in the range of its type");
    Err(KernelError::InvalidParam { op, param, expected })
}

/// Checks what follows the sums of `n` columns.
pub(crate) fn check_columns(
    op: &'static str,
    n: usize,
    output: QuantOutput,
    a: Dtype,
    columns: &QuantColumns<'_>,
) -> Result<(), KernelError> {
    check_zero_points(op, a, &[columns.zero_point])?;
    if !columns.bias.is_empty() {
        check_len(op, "bias", n, columns.bias.len())?;
    }
    if output != QuantOutput::I32 && columns.scales.len() != 1 {
        check_len(op, "scales", n, columns.scales.len())?;
    }
    if !columns.shifts.is_empty() {
        check_len(op, "shifts", n, columns.shifts.len())?;
    }
    if columns.scales.iter().any(|s| !s.is_finite()) {
        let (param, expected) = ("scale", "finite");
        return Err(KernelError::InvalidParam { op, param, expected });
    }
    Ok(())
}

/// Scale and shift of column `n`; 0 for columns that do not exist.
pub(crate) fn column(columns: &QuantColumns<'_>, n: usize) -> (f32, f32) {
    let at = if columns.scales.len() == 1 { 0 } else { n };
    let shift = columns.shifts.get(n).copied().unwrap_or(0.0);
    (columns.scales.get(at).copied().unwrap_or(0.0), shift)
}
