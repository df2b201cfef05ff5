//! 1 x 1 convolution of plain tensors, `[n, c, h, w]`: per image a matrix product.
//!
//! For such a convolution between plain tensors, two conversions to blocks and back would cost a
//! good part of its own time. Its vectors run along the pixels, `Y = W * X` with the weights as left
//! matrix, or, where the pixels of a map would leave many lanes of the last vector unused, along the
//! output channels, `Y^T = X^T * W^T`, whose results are transposed while they are in the first-level
//! cache. Both are plans of `matmul`.

use super::conv::ConvParams;
use super::matmul::{MatmulForm, MatmulParams, MatmulPlan, kernels};
use super::matmul_cut::plain_cost;
use crate::error::{check_len, checked_len};
use crate::{Choice, Isa, KernelError};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

const OP: &str = "pointwise";
/// Fewest pixels of a map.
const PIXELS: usize = 16;

/// A 1 x 1 convolution of fixed sizes on plain tensors.
#[derive(Clone, Debug)]
pub struct PointwisePlan {
    isa: Isa,
    params: ConvParams,
    product: MatmulPlan,
    x_len: usize,
    y_len: usize,
}

impl PointwisePlan {
    /// Whether a convolution is one for these kernels. Its input counts as plain, whatever
    /// [`ConvParams::input`] says.
    pub fn supports(p: &ConvParams) -> bool {
        p.kernel == [1, 1]
            && p.stride == [1, 1]
            && p.pads == [0; 4]
            && p.groups == 1
            && !p.transposed
            && p.h_in.saturating_mul(p.w_in) >= PIXELS
    }

    /// Plans a convolution.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] for what [`supports`](Self::supports) denies,
    /// [`KernelError::InvalidParam`] if sizes or attributes make no sense,
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, p: &ConvParams) -> Result<Self, KernelError> {
        let product = &products(isa, p)?[0];
        Self::made(isa, p, MatmulPlan::new(isa, product)?)
    }

    /// The ways of computing the convolution, that of [`new`](Self::new) first. The tile of a choice is
    /// `[1, pixels, output channels]`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn candidates(isa: Isa, p: &ConvParams) -> Result<Vec<Choice>, KernelError> {
        let mut list = Vec::new();
        for product in products(isa, p)? {
            let choices = MatmulPlan::candidates(isa, &product)?;
            for choice in choices.iter().map(|choice| turned(choice, product.form)) {
                if !list.contains(&choice) {
                    list.push(choice);
                }
            }
        }
        Ok(list)
    }

    /// Plans with a given choice, one of [`candidates`](Self::candidates).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`KernelError::InvalidParam`] if the choice does not fit.
    pub fn with_choice(isa: Isa, p: &ConvParams, choice: &Choice) -> Result<Self, KernelError> {
        let product = products(isa, p)?.into_iter().find_map(|product| {
            MatmulPlan::with_choice(isa, &product, &turned(choice, product.form)).ok()
        });
        let expected = "one of the candidates of this convolution";
        let refused = KernelError::InvalidParam { op: OP, param: "choice", expected };
        Self::made(isa, p, product.ok_or(refused)?)
    }

    fn made(isa: Isa, p: &ConvParams, product: MatmulPlan) -> Result<Self, KernelError> {
        let x_len = checked_len(OP, &[p.n, p.c_in, p.h_in, p.w_in])?;
        let y_len = checked_len(OP, &[p.n, p.c_out, p.h_in, p.w_in])?;
        Ok(Self { isa, params: p.clone(), product, x_len, y_len })
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &ConvParams {
        &self.params
    }

    /// How it computes the convolution.
    pub fn choice(&self) -> Choice {
        turned(&self.product.choice(), self.product.params().form)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        self.product.kernel_name()
    }

    /// What the order of the packed weights depends on: the width of the panels, 0 if they are those
    /// of the left matrix.
    pub fn packing(&self) -> usize {
        if self.weights_left() { 0 } else { self.product.choice().tile[2] }
    }

    /// Elements of the input.
    pub fn x_len(&self) -> usize {
        self.x_len
    }

    /// Elements of the output, and of the residual.
    pub fn y_len(&self) -> usize {
        self.y_len
    }

    /// Elements of the packed weights.
    pub fn weights_len(&self) -> usize {
        if self.weights_left() { self.product.a_len() } else { self.product.weights_len() }
    }

    /// Elements of the packed bias.
    pub fn bias_len(&self) -> usize {
        self.product.bias_len()
    }

    /// Elements of scratch memory that each thread needs.
    pub fn scratch_len(&self) -> usize {
        match self.weights_left() {
            true => self.product.plain_scratch_len(),
            false => self.product.scratch_len(),
        }
    }

    /// Independent units of work. Neighbouring ones share some of it: give a thread a range.
    pub fn units(&self) -> usize {
        self.product.units()
    }

    fn weights_left(&self) -> bool {
        self.product.params().form == MatmulForm::RowBias
    }

    /// Packs weights `[c_out, c_in]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_weights(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        if !self.weights_left() {
            return self.product.pack_weights(src, dst);
        }
        let len = self.weights_len();
        check_len(OP, "weights", len, src.len())?;
        check_len(OP, "packed weights", len, dst.len())?;
        dst[..len].copy_from_slice(&src[..len]);
        Ok(())
    }

    /// Copies the bias `[c_out]` and fills it up with zeros. An empty `src` means no bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_bias(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        self.product.pack_bias(src, dst)
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` are readable for [`x_len`](Self::x_len),
    ///   [`weights_len`](Self::weights_len) and [`bias_len`](Self::bias_len) elements, `residual`
    ///   for [`y_len`](Self::y_len) if the epilogue has one (else it is not read); `y` is writable
    ///   for `y_len`, `scratch` for [`scratch_len`](Self::scratch_len).
    /// * `y` and `scratch` overlap no other operand, and no other thread uses `scratch`.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`.
    pub unsafe fn run(
        &self,
        x: *const f32,
        weights: *const f32,
        bias: *const f32,
        residual: *const f32,
        y: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        let product = &self.product;
        // SAFETY: input and weights are as long as the product's matrices, plain or as it packed
        // them, the rest is the caller's promise.
        unsafe {
            match self.weights_left() {
                true => product.run_plain(weights, x, bias, residual, y, scratch, units),
                false => product.run(x, weights, bias, residual, y, scratch, units),
            }
        }
    }

    /// Runs all units on this thread, on packed weights and bias. Allocates the scratch memory.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, or the residual is missing.
    pub fn compute(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: &[f32],
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "x", self.x_len, x.len())?;
        check_len(OP, "packed weights", self.weights_len(), weights.len())?;
        check_len(OP, "packed bias", self.bias_len(), bias.len())?;
        check_len(OP, "y", self.y_len, y.len())?;
        let mut added = core::ptr::null();
        if self.product.params().epilogue.residual {
            let residual = residual.unwrap_or(&[]);
            check_len(OP, "residual", self.y_len, residual.len())?;
            added = residual.as_ptr();
        }
        let mut scratch = vec![0.0; self.scratch_len()];
        let (x, w, b) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
        let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
        // SAFETY: each operand has the length that the plan asks for, `y` is borrowed mutably and
        // so overlaps none, and the ISA was checked.
        unsafe { self.run(x, w, b, added, y, scratch, 0..self.units()) };
        Ok(())
    }
}

/// The products that are this convolution, the one that is expected to be faster first.
fn products(isa: Isa, p: &ConvParams) -> Result<Vec<MatmulParams>, KernelError> {
    isa.require()?;
    p.check()?;
    if !PointwisePlan::supports(p) {
        let what = "another window than 1 x 1, or a map of a few pixels";
        return Err(KernelError::Unsupported { op: OP, what });
    }
    let pixels = checked_len(OP, &[p.h_in, p.w_in])?;
    checked_len(OP, &[p.n, p.c_in, pixels])?;
    checked_len(OP, &[p.n, p.c_out, pixels])?;
    let left = MatmulParams {
        b_batch: p.c_in * pixels,
        form: MatmulForm::RowBias,
        ..MatmulParams::new(p.c_out, p.c_in, pixels)
    };
    let right = MatmulParams {
        a_batch: p.c_in * pixels,
        form: MatmulForm::Transposed,
        c_row: pixels,
        ..MatmulParams::new(pixels, p.c_in, p.c_out).a_transposed().b_transposed()
    };
    let cost = |form| plain_cost(form, kernels(isa));
    let forms = if p.epilogue.residual {
        // A transposed result takes none.
        vec![left]
    } else if cost(&left) <= cost(&right) {
        vec![left, right]
    } else {
        vec![right, left]
    };
    let (batch, c_batch) = (p.n, p.c_out * pixels);
    let whole = |form| MatmulParams { batch, c_batch, epilogue: p.epilogue, ..form };
    Ok(forms.into_iter().map(whole).collect())
}

/// A product's choice as the convolution's, and back: rows of the left matrix are pixels or channels.
fn turned(choice: &Choice, form: MatmulForm) -> Choice {
    let [one, rows, columns] = choice.tile;
    let tile = if form == MatmulForm::RowBias { [one, columns, rows] } else { choice.tile };
    Choice { tile, ..*choice }
}
