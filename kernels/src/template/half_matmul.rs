//! Matrix product of f16 or bf16, row-major, batched, summed in `f32`.
//!
//! Where the instruction set multiplies pairs of them, both operands stay as they are; elsewhere
//! they become `f32`, B when it is packed, A in a pass before the product. Products of pairs are
//! rounded as the instruction does: AVX-512 BF16 takes denormals for zero.

use super::dot::{WordOperands, WordProduct, check_sizes};
use super::dot_convert::place;
use super::dot_tile::{Finish, row};
use super::matmul_params::MatmulParams;
use super::unary::{UnaryKernel, post_kernel};
use crate::epilogue::TileActivation;
use crate::error::check_len;
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;
use tilewright_intrinsics::dtype::Word;

pub use super::half_matmul_reference::reference;

const OP: &str = "half_matmul";

/// Sizes and types of a product of 16-bit floats.
#[derive(Clone, Debug, PartialEq)]
pub struct HalfMatmulParams {
    /// Sizes and strides, in elements. The epilogue has no residual; where the result is not `f32`,
    /// its activation is none, ReLU, clip or leaky ReLU.
    pub sizes: MatmulParams,
    /// Type of A and B: [`Dtype::F16`] or [`Dtype::Bf16`].
    pub dtype: Dtype,
    /// Type of C: [`Dtype::F32`], [`Dtype::F16`] or [`Dtype::Bf16`], rounded to nearest even.
    pub output: Dtype,
}

impl HalfMatmulParams {
    /// Dense matrices `[m, k] * [k, n]` with a result in `f32`.
    pub fn new(m: usize, k: usize, n: usize, dtype: Dtype) -> Self {
        Self { sizes: MatmulParams::new(m, k, n), dtype, output: Dtype::F32 }
    }
}

/// Where the result goes.
#[derive(Debug)]
pub enum HalfResult<'a> {
    /// `f32`.
    F32(&'a mut [f32]),
    /// The bits of f16 or bf16, as the plan says.
    Half(&'a mut [u16]),
}

/// A product of 16-bit floats ready to run, in two steps: [`run_convert`](Self::run_convert) brings A
/// into the form that the kernels read, unless [`scratch_len`](Self::scratch_len) is 0, and
/// [`run`](Self::run) multiplies. No unit of the second starts before all of the first are done.
#[derive(Clone, Debug)]
pub struct HalfMatmulPlan {
    params: HalfMatmulParams,
    product: WordProduct,
    finish: Finish,
    post: Option<UnaryKernel>,
    converts: bool,
    lens: [usize; 3],
}

impl HalfMatmulPlan {
    /// Checks the parameters and chooses the kernels.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`], [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`];
    /// [`KernelError::Unsupported`] for an activation that needs a result in `f32`.
    pub fn new(isa: Isa, params: &HalfMatmulParams) -> Result<Self, KernelError> {
        isa.require()?;
        let s = &params.sizes;
        let lens = check_sizes(OP, s)?;
        let invalid = |expected| KernelError::InvalidParam { op: OP, param: "type", expected };
        if !matches!(params.dtype, Dtype::F16 | Dtype::Bf16) {
            return Err(invalid("f16 or bf16"));
        }
        let in_tile = s.epilogue.activation.in_tile();
        let activation = in_tile.unwrap_or(TileActivation::None);
        let finish = match params.output {
            Dtype::F32 => Finish::Float(activation),
            Dtype::F16 => Finish::F16(activation),
            Dtype::Bf16 => Finish::Bf16(activation),
            _ => return Err(invalid("f32, f16 or bf16")),
        };
        if in_tile.is_none() && params.output != Dtype::F32 {
            let what = "this activation of a result that is not f32";
            return Err(KernelError::Unsupported { op: OP, what });
        }
        let product = WordProduct::new(s, row(isa, params.dtype), None, OP)?;
        let dense = [s.k, s.a_row, s.a_batch].iter().all(|n| n.is_multiple_of(2));
        let apart = s.m < 8 || !s.a_row.is_multiple_of(2048);
        let direct = product.row.word != Word::F32x1 && dense && apart;
        let post = post_kernel(isa, s.epilogue.activation)?;
        Ok(Self { params: params.clone(), product, finish, post, converts: !direct, lens })
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &HalfMatmulParams {
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

    /// Elements that C spans.
    pub fn c_len(&self) -> usize {
        self.lens[2]
    }

    /// Words of the packed B, of all products.
    pub fn weights_len(&self) -> usize {
        self.product.packed() * self.product.b_count()
    }

    /// Elements of the packed bias.
    pub fn bias_len(&self) -> usize {
        self.product.columns
    }

    /// Words of the converted A, 0 if it is read where it lies.
    pub fn scratch_len(&self) -> usize {
        if self.converts { self.product.a_rows() * self.product.a_stride } else { 0 }
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

    /// Packs the plain B, given as the bits of its elements.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `b` or `dst` is too short.
    pub fn pack_weights(&self, b: &[u16], dst: &mut [i32]) -> Result<(), KernelError> {
        check_len(OP, "b", self.b_len(), b.len())?;
        check_len(OP, "packed b", self.weights_len(), dst.len())?;
        // SAFETY: both lengths were checked, and `dst` is borrowed mutably.
        unsafe { self.run_pack(b.as_ptr(), dst.as_mut_ptr(), 0..self.pack_units()) };
        Ok(())
    }

    /// Packs some panels of the plain B: for a B that is known only at run time.
    ///
    /// # Safety
    ///
    /// * `b` is readable and aligned for [`b_len`](Self::b_len) elements, `dst` writable and aligned
    ///   for [`weights_len`](Self::weights_len) words, and they do not overlap.
    /// * `units` lies in `0..self.pack_units()`, and no other thread packs one of them.
    pub unsafe fn run_pack(&self, b: *const u16, dst: *mut i32, units: Range<usize>) {
        debug_assert!(units.end <= self.pack_units());
        let (p, count) = (&self.params.sizes, self.product.division.panels());
        let (k_step, n_step) = if p.b_transposed { (1, p.b_row) } else { (p.b_row, 1) };
        let pairs = self.product.row.word != Word::F32x1;
        for unit in units {
            let (batch, panel) = (unit / count, self.product.division.panel(unit % count));
            let first = batch * p.b_batch + panel.column * n_step;
            let at = batch * self.product.packed() + panel.column * self.product.k_words;
            let words = dst.wrapping_add(at);
            let columns = panel.width.min(p.n - panel.column);
            // SAFETY: row `k < K` and columns `< N` lie in the plain B, whose extent `new`
            // computed; the panel has `k_words * width` words.
            unsafe {
                words.write_bytes(0, self.product.k_words * panel.width);
                for k in 0..p.k {
                    let from = b.add(first + k * k_step);
                    for n in 0..columns {
                        let x = *from.add(n * n_step);
                        if pairs {
                            let (word, part) = place(self.product.row, n, k % 2);
                            let at = (k / 2 * panel.width + word) * 2 + part;
                            *words.cast::<u16>().add(at) = x;
                        } else {
                            *words.cast::<f32>().add(k * panel.width + n) = self.value(x);
                        }
                    }
                }
            }
        }
    }

    /// The value of an operand's element.
    fn value(&self, bits: u16) -> f32 {
        if self.params.dtype == Dtype::F16 {
            tilewright_intrinsics::soft::f32_from_f16(bits)
        } else {
            f32::from_bits(u32::from(bits) << 16)
        }
    }

    /// Copies the bias `[n]` and fills it up with zeros. An empty `src` means no bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_bias(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "packed bias", self.bias_len(), dst.len())?;
        let n = if src.is_empty() { 0 } else { self.params.sizes.n };
        check_len(OP, "bias", n, src.len())?;
        dst[..n].copy_from_slice(&src[..n]);
        dst[n..self.bias_len()].fill(0.0);
        Ok(())
    }

    /// Runs all units on this thread, on a packed B and bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if the
    /// result has another type than the plan was made for.
    pub fn compute(
        &self,
        a: &[u16],
        weights: &[i32],
        bias: &[f32],
        scratch: &mut [i32],
        c: HalfResult<'_>,
    ) -> Result<(), KernelError> {
        let (c, c_len) = match (c, self.params.output) {
            (HalfResult::F32(c), Dtype::F32) => (c.as_mut_ptr().cast(), c.len()),
            (HalfResult::Half(c), Dtype::F16 | Dtype::Bf16) => (c.as_mut_ptr().cast(), c.len()),
            (_, output) => {
                let (param, expected) = ("type of c", output.name());
                return Err(KernelError::InvalidParam { op: OP, param, expected });
            }
        };
        check_len(OP, "a", self.a_len(), a.len())?;
        check_len(OP, "packed b", self.weights_len(), weights.len())?;
        check_len(OP, "packed bias", self.bias_len(), bias.len())?;
        check_len(OP, "scratch", self.scratch_len(), scratch.len())?;
        check_len(OP, "c", self.c_len(), c_len)?;
        let (a, scratch) = (a.as_ptr(), scratch.as_mut_ptr());
        // SAFETY: each operand has the type and the length that the plan asks for, scratch and `c`
        // are borrowed mutably and so overlap none, and `new` checked that the CPU has the
        // instructions.
        unsafe {
            self.run_convert(a, scratch, 0..self.convert_units());
            self.run(a, scratch, weights.as_ptr(), bias.as_ptr(), c, 0..self.units());
        }
        Ok(())
    }

    /// Converts some rows of A. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `a` is readable and aligned for [`a_len`](Self::a_len) elements, `scratch` writable and
    ///   aligned for [`scratch_len`](Self::scratch_len) words, and they do not overlap.
    /// * `units` lies in `0..self.convert_units()`, and no other thread runs one of them.
    pub unsafe fn run_convert(&self, a: *const u16, scratch: *mut i32, units: Range<usize>) {
        debug_assert!(units.end <= self.convert_units());
        let null = core::ptr::null_mut();
        // SAFETY: the scratch memory has the words of all rows.
        unsafe { self.product.convert(self.params.dtype, a.cast(), scratch.cast(), null, units) };
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `a` is readable for [`a_len`](Self::a_len) elements, or is not read if there is scratch
    ///   memory; `scratch` holds [`scratch_len`](Self::scratch_len) words that all units of
    ///   [`run_convert`](Self::run_convert) wrote; `weights` and `bias` are readable for
    ///   [`weights_len`](Self::weights_len) and [`bias_len`](Self::bias_len), packed by this plan;
    ///   `c` is writable for [`c_len`](Self::c_len) elements of the output type. All are aligned.
    /// * `c` overlaps no other operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `c`.
    pub unsafe fn run(
        &self,
        a: *const u16,
        scratch: *const i32,
        weights: *const i32,
        bias: *const f32,
        c: *mut u8,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let (s, product) = (&self.params.sizes, &self.product);
        let (a, a_step, a_batch) = if self.converts {
            (scratch.cast(), product.a_stride, s.m * product.a_stride)
        } else {
            (a.cast(), s.a_row / 2, s.a_batch / 2)
        };
        let operands = WordOperands {
            a,
            a_step,
            a_batch: if s.a_batch == 0 { 0 } else { a_batch },
            row_sums: core::ptr::null(),
            b: weights.cast(),
            offset: core::ptr::null(),
            b_batch: if s.b_batch == 0 { 0 } else { product.packed() },
            epilogue: bias,
            epilogue_batch: 0,
            c,
        };
        // SAFETY: the operands are those that the caller vouches for.
        unsafe { product.run(&operands, self.finish, self.post.as_ref(), units) };
    }
}
