//! A 1 x 1 convolution of blocked tensors, which is a matrix product without im2col: pixels are rows of
//! A, in blocks of 16 channels where they lie, the packed weights are B. For
//! [`ConvPlan`](super::conv::ConvPlan).

use super::conv::{ConvParams, InputLayout, Operands};
use super::matmul::{MatmulForm, MatmulParams, MatmulPlan, kernels};
use super::matmul_cut::has_blocks;
use crate::{C_BLOCK, Choice, Isa, KernelError};
use alloc::vec::Vec;
use core::ops::Range;

/// Such a convolution ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    isa: Isa,
    plan: MatmulPlan,
}

impl Product {
    /// Whether a convolution is one that an instruction set has tiles for.
    pub(crate) fn supports(isa: Isa, p: &ConvParams) -> bool {
        has_blocks(kernels(isa))
            && p.kernel == [1, 1]
            && p.stride == [1, 1]
            && p.pads == [0; 4]
            && p.groups == 1
            && !p.transposed
            && p.input == InputLayout::Blocked
    }

    /// Plans a convolution that is [supported](Self::supports), with a choice or by the rules.
    pub(crate) fn new(
        isa: Isa,
        p: &ConvParams,
        choice: Option<&Choice>,
    ) -> Result<Self, KernelError> {
        let params = product(p);
        let plan = match choice {
            Some(choice) => MatmulPlan::with_choice(isa, &params, choice)?,
            None => MatmulPlan::new(isa, &params)?,
        };
        Ok(Self { isa, plan })
    }

    /// The choices of [`new`](Self::new), that of the rules first.
    pub(crate) fn candidates(isa: Isa, p: &ConvParams) -> Result<Vec<Choice>, KernelError> {
        MatmulPlan::candidates(isa, &product(p))
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn choice(&self) -> Choice {
        self.plan.choice()
    }

    pub(crate) fn weights_len(&self) -> usize {
        self.plan.weights_len()
    }

    pub(crate) fn scratch_len(&self) -> usize {
        self.plan.scratch_len()
    }

    pub(crate) fn units(&self) -> usize {
        self.plan.units()
    }

    pub(crate) fn kernel_name(&self) -> &'static str {
        self.plan.kernel_name()
    }

    pub(crate) fn pack_weights(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        self.plan.pack_weights(src, dst)
    }

    /// From now on planes of the output have so many pixels.
    pub(crate) fn set_pixels(&mut self, pixels: usize) {
        self.plan.params.c_row = pixels * C_BLOCK;
    }

    /// Runs some units.
    ///
    /// # Safety
    ///
    /// As [`ConvPlan::run`](super::conv::ConvPlan::run).
    pub(crate) unsafe fn run(&self, x: &Operands, scratch: *mut f32, units: Range<usize>) {
        // SAFETY: the extents of the product are those of the convolution.
        unsafe { self.plan.run(x.x, x.weights, x.bias, x.residual, x.y, scratch, units) }
    }
}

/// The product that a convolution is.
fn product(p: &ConvParams) -> MatmulParams {
    let pixels = p.h_in * p.w_in;
    let planes = |channels: usize| channels.div_ceil(C_BLOCK) * pixels * C_BLOCK;
    MatmulParams {
        batch: p.n,
        a_row: pixels * C_BLOCK,
        a_batch: planes(p.c_in),
        c_row: pixels * C_BLOCK,
        c_batch: planes(p.c_out),
        form: MatmulForm::Blocked,
        epilogue: p.epilogue,
        ..MatmulParams::new(pixels, p.c_in, p.c_out).b_transposed()
    }
}
