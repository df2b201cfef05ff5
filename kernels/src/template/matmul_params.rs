//! Sizes and strides of matrix products.

use crate::{Activation, C_BLOCK, Epilogue, KernelError};

const OP: &str = "matmul";

/// How bias and result of a product lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatmulForm {
    /// C is `[m, n]`, with a bias per column.
    #[default]
    Usual,
    /// C is `[m, n]`, with a bias per row.
    RowBias,
    /// C is stored as `[n, m]`, with a bias per stored row. There is no residual.
    Transposed,
    /// A is stored as `[k / 16, m, 16]`, C as `[n / 16, m, 16]`, as the blocked tensors of a 1 x 1
    /// convolution, with a bias per column: their rows are such planes. Lanes of C past column `n` are as
    /// if B and the bias were zero there.
    Blocked,
}

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
    /// Elements from a row (of a blocked one: a plane) of the stored A to the next.
    pub a_row: usize,
    /// Whether A is stored as `[k, m]`.
    pub a_transposed: bool,
    /// Elements from the A of one product to that of the next; 0 if they share it.
    pub a_batch: usize,
    /// Elements from a row of the plain B to the next.
    pub b_row: usize,
    /// Whether the plain B is stored as `[n, k]`.
    pub b_transposed: bool,
    /// Elements from one plain B to the next; 0 if all products share it.
    pub b_batch: usize,
    /// Elements from a row (of a blocked one: a plane) of C, as stored, to the next; at least its length.
    pub c_row: usize,
    /// Elements from one C to the next, at least its size if there are several.
    pub c_batch: usize,
    /// How C lies, and the bias.
    pub form: MatmulForm,
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
            a_transposed: false,
            a_batch: 0,
            b_row: n,
            b_transposed: false,
            b_batch: 0,
            c_row: n,
            c_batch: 0,
            form: MatmulForm::Usual,
            epilogue: Epilogue::default(),
        }
    }

    /// With A stored as `[k, m]`, dense.
    #[must_use]
    pub fn a_transposed(self) -> Self {
        Self { a_transposed: true, a_row: self.m, ..self }
    }

    /// With B stored as `[n, k]`, dense.
    #[must_use]
    pub fn b_transposed(self) -> Self {
        Self { b_transposed: true, b_row: self.k, ..self }
    }

    /// With this many products of dense matrices, each with its own A, B and C.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        let (a, b, c) = (self.m * self.k, self.k * self.n, self.m * self.c_row);
        Self { batch, a_batch: a, b_batch: b, c_batch: c, ..self }
    }

    /// With this epilogue.
    #[must_use]
    pub fn epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    /// Whether A and C lie in blocks.
    pub(super) fn blocked(&self) -> bool {
        self.form == MatmulForm::Blocked
    }

    /// Columns that the kernels compute, but for the rest of a last vector.
    pub(super) fn columns(&self) -> usize {
        if self.blocked() { self.n.next_multiple_of(C_BLOCK) } else { self.n }
    }

    /// Rows of A as stored, and their length.
    pub(super) fn a_size(&self) -> [usize; 2] {
        match self.form {
            MatmulForm::Blocked => [self.k.div_ceil(C_BLOCK), self.m.saturating_mul(C_BLOCK)],
            _ if self.a_transposed => [self.k, self.m],
            _ => [self.m, self.k],
        }
    }

    /// Rows of C as stored, and their length.
    pub(super) fn c_size(&self) -> [usize; 2] {
        match self.form {
            MatmulForm::Transposed => [self.n, self.m],
            MatmulForm::Blocked => [self.n.div_ceil(C_BLOCK), self.m.saturating_mul(C_BLOCK)],
            _ => [self.m, self.n],
        }
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        if [self.batch, self.m, self.n, self.k].contains(&0) {
            return invalid("size", "at least 1");
        }
        let [_, a_width] = self.a_size();
        let b_width = if self.b_transposed { self.k } else { self.n };
        let [c_rows, c_width] = self.c_size();
        if self.a_row < a_width || self.c_row < c_width || self.b_row < b_width {
            return invalid("row stride", "at least the row length");
        }
        if self.form == MatmulForm::Transposed && self.epilogue.residual {
            return Err(KernelError::Unsupported { op: OP, what: "a residual of a transposed C" });
        }
        if self.blocked() && self.a_transposed {
            return Err(KernelError::Unsupported { op: OP, what: "a transposed A in blocks" });
        }
        let c_size = c_rows.checked_mul(self.c_row).ok_or(KernelError::TooLarge { op: OP })?;
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
