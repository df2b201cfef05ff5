//! What references share: positions, indices, and elements as numbers.

use std::borrow::Cow;

use super::cast::Number;
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::DType;

/// Elements between neighbours along each axis of a dense tensor, slowest first.
pub(super) fn strides(dims: &[usize]) -> Vec<usize> {
    let mut out = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        out[i - 1] = out[i] * dims[i];
    }
    out
}

/// The indices along each axis of element `i` of a dense tensor.
pub(super) fn unravel(mut i: usize, dims: &[usize], at: &mut [usize]) {
    for (at, &d) in at.iter_mut().zip(dims).rev() {
        *at = i % d;
        i /= d;
    }
}

/// Where row `row` (along the last axis) of a dense tensor of extents `dims` begins in one of the given
/// strides, at position 0 of `axis`; and the distance there of the row's elements, other than along `axis`.
pub(super) fn row_start(
    mut row: usize,
    dims: &[usize],
    strides: &[usize],
    axis: usize,
) -> (usize, usize) {
    let (mut start, last) = (0, dims.len().saturating_sub(1));
    for (i, &extent) in dims[..last].iter().enumerate().rev() {
        start += if i == axis { 0 } else { row % extent * strides[i] };
        row /= extent;
    }
    (start, usize::from(axis != last))
}

/// Extents before an axis, of it, and behind it, each as one number.
pub(super) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    let (outer, inner) = (&dims[..axis], &dims[axis + 1..]);
    (outer.iter().product(), dims[axis], inner.iter().product())
}

/// The elements as f64. Integers beyond 2^53 lose low bits.
pub(super) fn floats(x: &View<'_>, op: &'static str) -> Result<Vec<f64>, GraphError> {
    with_element!(x.dtype, op, T => {
        Ok(x.slice::<T>(op)?.iter().map(|v| v.to_float()).collect())
    })
}

/// Writes f64 values, rounded (of integer types: truncated and saturated) to the result's type.
pub(super) fn write_floats(
    dst: &mut ViewMut<'_>,
    op: &'static str,
    values: impl IntoIterator<Item = f64>,
) -> Result<(), GraphError> {
    // Behind a pointer, as what follows is code for each type.
    fn write(
        dst: &mut ViewMut<'_>,
        op: &'static str,
        values: &mut dyn Iterator<Item = f64>,
    ) -> Result<(), GraphError> {
        with_element!(dst.dtype, op, T => {
            dst.slice::<T>(op)?.iter_mut().zip(values).for_each(|(y, v)| *y = T::from_float(v));
            Ok(())
        })
    }
    write(dst, op, &mut values.into_iter())
}

/// The low 64 bits of the elements of a type that is no float; those of `u64` are the same with and without a sign.
pub(super) fn low_bits(x: &View<'_>, op: &'static str) -> Result<Vec<i64>, GraphError> {
    with_element!(x.dtype, op, T => Ok(x.slice::<T>(op)?.iter().map(|v| v.to_int()).collect()))
}

/// The same, in the order of the numbers: the sign of u64 is flipped.
pub(super) fn in_order(x: &View<'_>, op: &'static str) -> Result<Vec<i64>, GraphError> {
    let mut numbers = low_bits(x, op)?;
    if x.dtype == DType::U64 {
        numbers.iter_mut().for_each(|v| *v ^= i64::MIN);
    }
    Ok(numbers)
}

/// Floats of up to 32 bits and integers of up to 16 as f32, which holds them exactly.
pub(super) fn narrow<'a>(x: &View<'a>, op: &'static str) -> Result<Cow<'a, [f32]>, GraphError> {
    Ok(Cow::Owned(match x.dtype {
        DType::F16 => x.slice::<half::f16>(op)?.iter().map(|v| v.to_f32()).collect(),
        DType::BF16 => x.slice::<half::bf16>(op)?.iter().map(|v| v.to_f32()).collect(),
        DType::I8 => x.slice::<i8>(op)?.iter().map(|&v| v.into()).collect(),
        DType::U8 => x.slice::<u8>(op)?.iter().map(|&v| v.into()).collect(),
        DType::I16 => x.slice::<i16>(op)?.iter().map(|&v| v.into()).collect(),
        DType::U16 => x.slice::<u16>(op)?.iter().map(|&v| v.into()).collect(),
        _ => return Ok(Cow::Borrowed(x.slice::<f32>(op)?)),
    }))
}

/// Writes the low bits of integers to the result's type.
pub(super) fn write_low_bits(
    dst: &mut ViewMut<'_>,
    op: &'static str,
    values: &[i64],
) -> Result<(), GraphError> {
    with_element!(dst.dtype, op, T => {
        dst.slice::<T>(op)?.iter_mut().zip(values).for_each(|(y, &v)| *y = T::from_int(v));
        Ok(())
    })
}

/// The elements of a tensor of integers.
pub(super) fn integers(x: &View<'_>, op: &'static str) -> Result<Vec<i64>, GraphError> {
    if x.dtype.is_float() || x.dtype == DType::U64 {
        return Err(GraphError::UnsupportedDType { op, dtype: x.dtype });
    }
    low_bits(x, op)
}

/// Integers in the total order of floats, as [`f32::total_cmp`] has it.
pub(crate) fn rank(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    // Below 0 the other way round.
    bits ^ ((bits >> 31) & i32::MAX)
}

/// Whether it is NaN.
pub(super) fn is_nan<T: PartialOrd>(x: &T) -> bool {
    x.partial_cmp(x).is_none()
}

/// The larger of two numbers, NaN if either is, as kernels have it.
pub(super) fn maximum<T: PartialOrd>(a: T, b: T) -> T {
    if a > b || is_nan(&a) { a } else { b }
}

/// The smaller of two numbers, NaN if either is, as kernels have it.
pub(super) fn minimum<T: PartialOrd>(a: T, b: T) -> T {
    if a < b || is_nan(&a) { a } else { b }
}

/// An index counted from the front; negative ones count from the end.
#[inline]
pub(crate) fn position(op: &'static str, index: i64, extent: usize) -> Result<usize, GraphError> {
    let at = if index < 0 { index.wrapping_add(extent as i64) } else { index };
    // What is below 0 is larger than any extent.
    if (at as u64) < extent as u64 { Ok(at as usize) } else { Err(out_of_range(op, index, extent)) }
}

#[cold]
fn out_of_range(op: &'static str, index: i64, extent: usize) -> GraphError {
    GraphError::IndexOutOfRange { op, index, extent }
}

/// Refuses operands of other types than `allowed`.
pub(super) fn expect_dtype(
    op: &'static str,
    x: &Info,
    allowed: impl Fn(DType) -> bool,
) -> Result<(), GraphError> {
    if x.dtype.is_plain() && allowed(x.dtype) {
        Ok(())
    } else {
        Err(GraphError::UnsupportedDType { op, dtype: x.dtype })
    }
}

/// The types that hold indices.
pub(super) fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

/// Integers of any width, without `bool`.
pub(super) fn is_integer(dtype: DType) -> bool {
    dtype.is_plain() && !dtype.is_float() && dtype != DType::Bool
}

/// The element count, or an error if it does not fit an address.
pub(super) fn checked_count(op: &'static str, dims: &[usize]) -> Result<usize, GraphError> {
    let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    count.ok_or_else(|| GraphError::mismatch(op, "sizes must not overflow", &[("shape", dims)]))
}

/// Computes an operator on operands that a plan does not know, on one thread and on three, and compares the
/// bytes with those of the definition. Gives the names of the kernels.
#[cfg(test)]
pub(super) fn as_defined<T: Clone + Into<crate::graph::Op>>(
    op: &T,
    operands: &[crate::tensor::Tensor],
) -> String {
    use crate::backend::cpu::Executor;
    use crate::graph::Context;

    let mut cx = Context::new();
    let ids: Vec<_> = operands.iter().map(|t| cx.constant(t.clone()).unwrap()).collect();
    let wanted = cx.op(op.clone(), &ids).unwrap();
    let wanted = cx.constant_value(wanted).expect("all operands are constants");
    let mut kernels = String::new();
    for threads in [1, 3] {
        let mut cx = Context::new();
        let named = operands.iter().enumerate();
        let input = |(i, t): (usize, &crate::tensor::Tensor)| {
            cx.input(&i.to_string(), t.dtype(), &t.dims())
        };
        let ids: Vec<_> = named.map(input).collect::<Result<_, _>>().unwrap();
        let y = cx.op(op.clone(), &ids).unwrap();
        let mut executor = Executor::new(tilewright_kernels::Isa::best(), threads).unwrap();
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        let given: Vec<_> = operands.iter().collect();
        let got = executor.run(&plan, &given, None).unwrap();
        assert_eq!(got[0].dims(), wanted.dims());
        assert!(got[0].bytes() == wanted.bytes(), "on {threads} threads");
        kernels = plan.nodes().map(|node| node.kernel.as_str()).collect::<Vec<_>>().join(" ");
    }
    kernels
}
