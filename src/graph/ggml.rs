//! Builder methods under ggml's names and with ggml's conventions: extents fastest first.

use tilewright_kernels::template::binary::BinaryOp;

use super::ops::binary::Binary;
use super::ops::matmul::MatMul;
use super::ops::unary::{Unary, UnaryOp};
use super::{Context, GraphError, Operator, TensorId};
use crate::tensor::{DType, MAX_DIMS, ShapeError};

impl Context {
    /// A leaf with extents `ne`, fastest first.
    ///
    /// # Errors
    /// A shape that is not possible.
    pub fn new_tensor(&mut self, dtype: DType, ne: &[usize]) -> Result<TensorId, GraphError> {
        let dims: Vec<usize> = ne.iter().rev().copied().collect();
        self.input("", dtype, &dims)
    }

    /// `a + b`; `b` is repeated along each dimension of `a`.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] unless `a`'s extents are multiples of `b`'s.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, GraphError> {
        self.repeating(BinaryOp::Add, a, b)
    }

    /// `a - b`, with `b` repeated as in [`Context::add`].
    ///
    /// # Errors
    /// As [`Context::add`].
    pub fn sub(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, GraphError> {
        self.repeating(BinaryOp::Sub, a, b)
    }

    /// `a * b`, with `b` repeated as in [`Context::add`].
    ///
    /// # Errors
    /// As [`Context::add`].
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, GraphError> {
        self.repeating(BinaryOp::Mul, a, b)
    }

    /// `a / b`, with `b` repeated as in [`Context::add`].
    ///
    /// # Errors
    /// As [`Context::add`].
    pub fn div(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, GraphError> {
        self.repeating(BinaryOp::Div, a, b)
    }

    /// `a` as often as it takes to fill `like`'s extents.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] unless `like`'s extents are multiples of `a`'s.
    pub fn repeat(&mut self, a: TensorId, like: TensorId) -> Result<TensorId, GraphError> {
        let (from, to) = (*self.record(a).shape(), *self.record(like).shape());
        if !from.can_repeat_to(&to) {
            return Err(GraphError::mismatch(
                "repeat",
                "each extent must divide that of the result",
                &[("operand", &from.dims()), ("result", &to.dims())],
            ));
        }
        // Each repeated dimension of extent d becomes [times, d]; `times` broadcasts.
        let rank = to.rank().max(from.rank());
        let (mut split, mut wide) = (Vec::new(), Vec::new());
        for i in (0..rank).rev() {
            let (d, target) = (from.ne()[i], to.ne()[i]);
            if d != target && d != 1 {
                split.extend([1, d]);
                wide.extend([target / d, d]);
            } else {
                split.push(d);
                wide.push(target);
            }
        }
        if split.len() > MAX_DIMS {
            let source = ShapeError::TooManyDims(split.len());
            return Err(GraphError::Shape { op: "repeat", source });
        }
        let split = self.reshape(a, &split)?;
        let wide = self.expand(split, &wide)?;
        let dense = self.cont(wide)?;
        self.reshape(dense, &to.dims())
    }

    /// ggml's matrix product: contracts the fastest dimension of both. `a` has ne `[k, m]`, `b`
    /// has `[k, n, ...]`; the result `[m, n, ...]`. `a` is shared by groups of matrices of `b`.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] if the contraction lengths differ or `b`'s outer extents are not
    /// multiples of `a`'s; [`GraphError::Unsupported`] if `a` is transposed.
    pub fn mul_mat(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, GraphError> {
        let (sa, sb) = (*self.record(a).shape(), *self.record(b).shape());
        if sa.is_transposed() {
            let what = "a transposed first operand".to_owned();
            return Err(GraphError::Unsupported { op: "mul_mat", what });
        }
        let outer = (2..MAX_DIMS).all(|i| sa.ne()[i] != 0 && sb.ne()[i].is_multiple_of(sa.ne()[i]));
        if sa.ne()[0] != sb.ne()[0] || !outer {
            return Err(GraphError::mismatch(
                "mul_mat",
                "ne[0] must be equal and the outer extents of b multiples of a's",
                &[("a", &sa.dims()), ("b", &sb.dims())],
            ));
        }
        let at_least_2 = |dims: Vec<usize>| match dims[..] {
            [] => vec![1, 1],
            [d] => vec![1, d],
            _ => dims,
        };
        let (mut adims, bdims) = (at_least_2(sa.dims()), at_least_2(sb.dims()));
        let mut a = self.reshape(a, &adims)?;
        let b = self.reshape(b, &bdims)?;
        // Matrix i of b takes matrix i / (b.ne / a.ne) of a: neighbours share, unlike in `repeat`.
        for i in 2..bdims.len() {
            let own = sa.ne()[i];
            let times = sb.ne()[i] / own;
            if own != 1 && times != 1 {
                adims
                    .splice(0..0, core::iter::repeat_n(1, bdims.len().saturating_sub(adims.len())));
                let axis = adims.len() - 1 - i;
                let mut split = adims.clone();
                split.insert(axis + 1, 1);
                let mut wide = split.clone();
                wide[axis + 1] = times;
                let view = self.reshape(a, &split)?;
                let view = self.expand(view, &wide)?;
                adims[axis] = own * times;
                a = self.reshape(view, &adims)?;
            }
        }
        // Row j of the result is row j of b times a^T.
        self.op(MatMul { transposed_b: true, ..MatMul::default() }, &[b, a])
    }

    /// The plain matrix product of `a [m, n]` and `b [n, p]` in row terms.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] if the inner extents differ.
    pub fn matmul_mn(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, GraphError> {
        self.op(MatMul::default(), &[a, b])
    }

    /// The larger of `x` and 0; NaN stays NaN.
    ///
    /// # Errors
    /// Types without this function.
    pub fn relu(&mut self, a: TensorId) -> Result<TensorId, GraphError> {
        self.op(Unary::new(UnaryOp::Relu), &[a])
    }

    /// GELU in its tanh form, computed exactly (ggml's CPU path looks it up in half precision).
    ///
    /// # Errors
    /// Types without this function.
    pub fn gelu(&mut self, a: TensorId) -> Result<TensorId, GraphError> {
        self.op(Unary::new(UnaryOp::GeluTanh), &[a])
    }

    /// `x * factor`.
    ///
    /// # Errors
    /// Types without this function.
    pub fn scale(&mut self, a: TensorId, factor: f32) -> Result<TensorId, GraphError> {
        self.op(Unary::new(UnaryOp::Affine { scale: factor, shift: 0.0 }), &[a])
    }

    /// Dimensions in another order: source dimension `i` becomes dimension `axes[i]`, fastest
    /// first. Copies nothing.
    ///
    /// # Errors
    /// [`GraphError::Shape`] if `axes` is not a permutation of `0..axes.len()`, or is shorter than
    /// the rank.
    pub fn permute(&mut self, a: TensorId, axes: &[usize]) -> Result<TensorId, GraphError> {
        let n = axes.len();
        let bad = || GraphError::Shape {
            op: "permute",
            source: ShapeError::BadPermutation(axes.to_vec()),
        };
        let dims = self.dims(a);
        if n < dims.len() || n > MAX_DIMS {
            return Err(bad());
        }
        let mut full = vec![1; n - dims.len()];
        full.extend(&dims);
        // Result axis axes[i] comes from source i; both counted from the fastest, while
        // `transpose` wants the source of each result axis counted from the slowest.
        let mut order = vec![usize::MAX; n];
        for (i, &to) in axes.iter().enumerate() {
            let slot = (n - 1).checked_sub(to).and_then(|j| order.get_mut(j)).ok_or_else(bad)?;
            *slot = n - 1 - i;
        }
        let mut strides = vec![0; n - dims.len()];
        strides.extend(self.record(a).shape().strides());
        let wide = self.view(a, &full, &strides, 0)?;
        self.transpose(wide, &order).map_err(|_| bad())
    }

    fn repeating(
        &mut self,
        op: BinaryOp,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, GraphError> {
        let (sa, sb) = (*self.record(a).shape(), *self.record(b).shape());
        if !sb.can_repeat_to(&sa) {
            return Err(GraphError::mismatch(
                Operator::name(&Binary::new(op)),
                "each extent of b must divide that of a",
                &[("a", &sa.dims()), ("b", &sb.dims())],
            ));
        }
        let broadcasts = (0..MAX_DIMS).all(|i| sb.ne()[i] == 1 || sb.ne()[i] == sa.ne()[i]);
        let b = if broadcasts { b } else { self.repeat(b, a)? };
        self.op(Binary::new(op), &[a, b])
    }
}
