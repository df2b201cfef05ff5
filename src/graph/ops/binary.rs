//! Element-wise operators of two operands, with broadcasting.

use core::ops::Range;

use tilewright_kernels::template::binary::{BinaryOp, BinaryParams, BinaryPlan};
use tilewright_kernels::{Activation, C_BLOCK};

use super::elements::{floats, integers, maximum, minimum, write_floats, write_low_bits};
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::{AlignedBytes, DType, Element, MAX_DIMS, broadcast};
use std::sync::Arc;

/// `activation(op(a, b))`, broadcasting as ONNX does. Integers wrap around; division of integers
/// truncates, and by zero it is an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Binary {
    /// What is computed.
    pub op: BinaryOp,
    /// Applied to the result; f32 only.
    pub activation: Activation,
}

impl Binary {
    /// The operator without an activation.
    pub fn new(op: BinaryOp) -> Self {
        Self { op, activation: Activation::None }
    }

    /// Whether a kernel computes it for this result.
    fn has_kernel(&self, dst: &Info) -> bool {
        dst.dtype == DType::F32 && self.op.has_kernel()
    }

    /// In a blocked layout: which operand is a constant that repeats over batch and space.
    fn channel_operand(&self, dst: &Info, src: &[Info], constant: &[bool]) -> Option<usize> {
        (0..2).find(|&i| {
            constant[i] && per_channel(&src[i].dims, &dst.dims) && src[1 - i].dims == dst.dims
        })
    }
}

/// Whether `dims` holds one pixel for each channel of `full`, as the factors of a
/// squeeze-and-excitation block do.
pub(super) fn pixel_wide(dims: &[usize], full: &[usize]) -> bool {
    let broadcasts = dims.len() == full.len() && (dims[0] == 1 || dims[0] == full[0]);
    broadcasts && dims[1] == full[1] && dims[2..].iter().all(|&d| d == 1)
}

/// Whether `dims` broadcasts to `full` by repeating over everything but the channel axis.
fn per_channel(dims: &[usize], full: &[usize]) -> bool {
    let Some(missing) = full.len().checked_sub(dims.len()) else { return false };
    dims.iter().enumerate().all(|(i, &d)| d == 1 || (i + missing == 1 && d == full[1]))
}

/// The function from its definition, in double precision.
fn apply(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Min => minimum(a, b),
        BinaryOp::Max => maximum(a, b),
        BinaryOp::Pow => a.powf(b),
        BinaryOp::PRelu => {
            if a > 0.0 {
                a
            } else {
                a * b
            }
        }
        _ => f64::NAN,
    }
}

/// The function of integers, of which the low bits count; `None` if there is none.
fn apply_int(op: BinaryOp, a: i64, b: i64) -> Option<i64> {
    match op {
        BinaryOp::Add => Some(a.wrapping_add(b)),
        BinaryOp::Sub => Some(a.wrapping_sub(b)),
        BinaryOp::Mul => Some(a.wrapping_mul(b)),
        BinaryOp::Div => (b != 0).then(|| a.wrapping_div(b)),
        BinaryOp::Min => Some(a.min(b)),
        BinaryOp::Max => Some(a.max(b)),
        BinaryOp::Pow => u32::try_from(b).ok().map(|b| a.wrapping_pow(b)),
        _ => None,
    }
}

impl Operator for Binary {
    fn name(&self) -> &'static str {
        match self.op {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "sub",
            BinaryOp::Mul => "mul",
            BinaryOp::Div => "div",
            BinaryOp::Min => "min",
            BinaryOp::Max => "max",
            BinaryOp::Pow => "pow",
            BinaryOp::PRelu => "prelu",
            _ => "binary",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 2..=2, "2")?;
        let (a, b) = (&src[0], &src[1]);
        if a.dtype != b.dtype || !a.dtype.is_plain() || a.dtype == DType::Bool {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype: b.dtype });
        }
        let dims = broadcast(&a.dims, &b.dims).ok_or_else(|| {
            let rule = "the operands' shapes must broadcast";
            GraphError::mismatch(self.name(), rule, &[("a", &a.dims), ("b", &b.dims)])
        })?;
        Ok(Info::plain(a.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (name, op) = (self.name(), self.op);
        let dims = [src[0].dims, src[1].dims, dst.dims];
        let results: usize = dst.dims.iter().product();
        let of_ints = |a, b| apply_int(op, a, b);
        macro_rules! wrapping {
            ($t:ty) => {{
                let (a, b) = (src[0].slice::<$t>(name)?, src[1].slice::<$t>(name)?);
                let dims = [src[0].dims, src[1].dims];
                match op {
                    BinaryOp::Add => rows(name, a, b, dims, dst, <$t>::wrapping_add),
                    BinaryOp::Sub => rows(name, a, b, dims, dst, <$t>::wrapping_sub),
                    BinaryOp::Min => rows(name, a, b, dims, dst, <$t>::min),
                    BinaryOp::Max => rows(name, a, b, dims, dst, <$t>::max),
                    _ => rows(name, a, b, dims, dst, <$t>::wrapping_mul),
                }
            }};
        }
        match src[0].dtype {
            DType::F32 => zip::<f32>(name, src, dst, |a, b| {
                let value = apply(op, f64::from(a), f64::from(b)) as f32;
                Some(super::unary::activate(self.activation, value))
            }),
            DType::F64 | DType::F16 | DType::BF16 => {
                let (a, b) = (floats(&src[0], name)?, floats(&src[1], name)?);
                let mut y = vec![0.0; results];
                pairs(name, &a, &b, dims, &mut y, |a, b| Some(apply(op, a, b)))?;
                write_floats(dst, name, y)
            }
            DType::U64 => zip::<u64>(name, src, dst, |a, b| match op {
                BinaryOp::Div => a.checked_div(b),
                BinaryOp::Min => Some(a.min(b)),
                BinaryOp::Max => Some(a.max(b)),
                BinaryOp::Pow => Some(a.wrapping_pow(u32::try_from(b).ok()?)),
                // The same bits as with signs.
                _ => Some(apply_int(op, a as i64, b as i64)? as u64),
            }),
            // What positions and shapes are computed with.
            DType::I64 | DType::I32
                if cfg!(feature = "ops-more")
                    && !matches!(op, BinaryOp::Div | BinaryOp::Pow | BinaryOp::PRelu) =>
            {
                if src[0].dtype == DType::I64 { wrapping!(i64) } else { wrapping!(i32) }
            }
            DType::I32 => zip::<i32>(name, src, dst, |a, b| match op {
                BinaryOp::Div => (b != 0).then(|| a.wrapping_div(b)),
                _ => Some(of_ints(a.into(), b.into())? as i32),
            }),
            DType::I64 => zip::<i64>(name, src, dst, of_ints),
            _ => {
                let (a, b) = (integers(&src[0], name)?, integers(&src[1], name)?);
                let mut y = vec![0; results];
                pairs(name, &a, &b, dims, &mut y, of_ints)?;
                write_low_bits(dst, name, &y)
            }
        }
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if !self.has_kernel(cx.dst) {
            return Ok(None);
        }
        let (mut dims, mut packed) = ([cx.src[0].dims.clone(), cx.src[1].dims.clone()], None);
        if cx.dst.layout == Layout::Blocked {
            let blocks = cx.dst.dims[1].div_ceil(C_BLOCK);
            for (dims, info) in dims.iter_mut().zip(cx.src) {
                if info.layout == Layout::Blocked {
                    let (n, _, space) = info.ncs();
                    *dims = vec![n, blocks, space, C_BLOCK];
                }
            }
            let constant = [cx.values[0].is_some(), cx.values[1].is_some()];
            if let Some(i) = self.channel_operand(cx.dst, cx.src, &constant) {
                dims[i] = vec![1, blocks, 1, C_BLOCK];
                let pack = |from: &[f32], to: &mut [f32]| {
                    if from.len() == 1 {
                        to.fill(from[0]);
                    } else {
                        to[..from.len()].copy_from_slice(from);
                    }
                    Ok(())
                };
                packed = Some((i, cx.pack_f32(i, "channels", blocks * C_BLOCK, &pack)?));
            }
        }
        let [a, b] = &dims;
        let params = BinaryParams { op: self.op, a, b, activation: self.activation };
        Ok(Some(Box::new(Run { plan: BinaryPlan::new(cx.isa, &params)?, packed })))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if !self.has_kernel(cx.dst) || cx.dst.dims.len() < 3 {
            return LayoutRule::Plain;
        }
        let full = |i: usize| cx.src[i].dims == cx.dst.dims;
        let scales = |i: usize| pixel_wide(&cx.src[i].dims, &cx.dst.dims) && !cx.constant[i];
        if (full(0) || scales(0)) && (full(1) || scales(1)) && (full(0) || full(1)) {
            LayoutRule::Follow(vec![0, 1])
        } else if let Some(i) = self.channel_operand(cx.dst, cx.src, cx.constant) {
            LayoutRule::Follow(vec![1 - i])
        } else {
            LayoutRule::Plain
        }
    }
}

/// [`pairs`] of operands and a result of one type.
pub(super) fn zip<T: Element + bytemuck::Pod>(
    op: &'static str,
    src: &[View<'_>],
    dst: &mut ViewMut<'_>,
    f: impl Fn(T, T) -> Option<T>,
) -> Result<(), GraphError> {
    let (a, b) = (src[0].slice::<T>(op)?, src[1].slice::<T>(op)?);
    let dims = [src[0].dims, src[1].dims, dst.dims];
    pairs(op, a, b, dims, dst.slice::<T>(op)?, f)
}

/// Applies `f` to each pair of broadcast elements, of extents of both operands and the result; `None` from it is a
/// division by zero or an exponent out of range.
pub(super) fn pairs<T: Copy>(
    op: &'static str,
    a: &[T],
    b: &[T],
    [a_dims, b_dims, dims]: [&[usize]; 3],
    y: &mut [T],
    f: impl Fn(T, T) -> Option<T>,
) -> Result<(), GraphError> {
    let mut all = true;
    each_row([a_dims, b_dims], dims, y.len(), &mut |at, (a0, da), (b0, db)| {
        for (i, y) in y[at].iter_mut().enumerate() {
            match f(a[a0 + i * da], b[b0 + i * db]) {
                Some(value) => *y = value,
                None => all = false,
            }
        }
    });
    let what = match op {
        "div" | "mod" => "a zero divisor of integers",
        "pow" => "a negative exponent of integers",
        _ => "operands of integers",
    };
    if all { Ok(()) } else { Err(GraphError::Unsupported { op, what: what.to_owned() }) }
}

/// Elements of a row that are looked at together.
const AT_ONCE: usize = 64;

/// Rows of fewer are walked one by one.
const SHORT: usize = 16;

/// The results of `f` for a row. Operands whose elements are 0 apart are one element for all.
fn row<T: Copy, U>(a: &[T], [da, db]: [usize; 2], b: &[T], y: &mut [U], f: impl Fn(T, T) -> U) {
    if y.len() < SHORT {
        y.iter_mut().enumerate().for_each(|(i, y)| *y = f(a[i * da], b[i * db]));
        return;
    }
    let (Some(&first), Some(&second)) = (a.first(), b.first()) else { return };
    let same = ([first; AT_ONCE], [second; AT_ONCE]);
    for (i, y) in y.chunks_mut(AT_ONCE).enumerate() {
        let at = i * AT_ONCE..i * AT_ONCE + y.len();
        let a = if da == 0 { &same.0[..y.len()] } else { &a[at.clone()] };
        let b = if db == 0 { &same.1[..y.len()] } else { &b[at] };
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = f(a, b);
        }
    }
}

/// The results of `f`, which always has one, for all pairs of elements of two tensors of these shapes, by
/// loops that become vectors.
pub(super) fn rows<T: Copy, U: Element + bytemuck::Pod>(
    op: &'static str,
    a: &[T],
    b: &[T],
    dims: [&[usize]; 2],
    dst: &mut ViewMut<'_>,
    f: impl Fn(T, T) -> U + Copy,
) -> Result<(), GraphError> {
    let of = dst.dims;
    let y = dst.slice::<U>(op)?;
    each_row(dims, of, y.len(), &mut |at, (a0, da), (b0, db)| {
        row(&a[a0..], [da, db], &b[b0..], &mut y[at], f);
    });
    Ok(())
}

/// Where an operand's part of a row begins, and how far apart its elements are.
type Elements = (usize, usize);

/// Visits the rows of a result of `all` elements: one code for all types.
fn each_row(
    [a_dims, b_dims]: [&[usize]; 2],
    dims: &[usize],
    all: usize,
    visit: &mut dyn FnMut(Range<usize>, Elements, Elements),
) {
    // Of the same shape they are one row.
    if a_dims == dims && b_dims == dims {
        return visit(0..all, (0, 1), (0, 1));
    }
    let (mut ia, mut ib) = (Broadcast::new(a_dims, dims), Broadcast::new(b_dims, dims));
    let mut len = dims.last().copied().unwrap_or(1).max(1);
    while ia.joins() && ib.joins() {
        len = ia.join().max(1);
        ib.join();
    }
    for at in (0..all).step_by(len) {
        visit(at..at + len, ia.row(at), ib.row(at));
    }
}

/// Maps positions in a broadcast result to positions in an operand.
pub(crate) struct Broadcast {
    /// Extent of the result and stride in the operand, fastest first.
    axes: [(usize, usize); MAX_DIMS],
    rank: usize,
}

impl Broadcast {
    /// For an operand of extents `from` that broadcasts to `to`.
    pub(crate) fn new(from: &[usize], to: &[usize]) -> Self {
        let (mut stride, mut axes) = (1, [(1, 0); MAX_DIMS]);
        for (i, (axis, &extent)) in axes.iter_mut().zip(to.iter().rev()).enumerate() {
            let own = from.len().checked_sub(i + 1).map_or(1, |j| from[j]);
            *axis = (extent, if own == 1 { 0 } else { stride });
            stride *= own;
        }
        Self { axes, rank: to.len() }
    }

    /// For position `i` of the result, at the start of a row: the position in the operand, and
    /// the distance there of the row's elements.
    pub(crate) fn row(&self, i: usize) -> (usize, usize) {
        (self.index(i), if self.rank == 0 { 0 } else { self.axes[0].1 })
    }

    /// Whether the two fastest axes are one to the operand.
    fn joins(&self) -> bool {
        let [(extent, step), (_, next)] = [self.axes[0], self.axes[1]];
        self.rank > 1 && next == extent * step
    }

    /// Makes one axis of the two fastest; its extent.
    fn join(&mut self) -> usize {
        let (extent, step) = self.axes[0];
        self.axes.copy_within(1..self.rank, 0);
        self.rank -= 1;
        self.axes[0] = (self.axes[0].0 * extent, step);
        self.axes[0].0
    }

    /// Position in the operand for position `i` of the result.
    pub(crate) fn index(&self, mut i: usize) -> usize {
        let mut at = 0;
        for &(extent, step) in &self.axes[..self.rank] {
            at += i % extent * step;
            i /= extent;
        }
        at
    }
}

struct Run {
    plan: BinaryPlan,
    /// An operand that was spread over channel blocks ahead.
    packed: Option<(usize, Arc<AlignedBytes>)>,
}

impl Step for Run {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn may_overwrite(&self, _i: usize) -> bool {
        true
    }

    fn reads(&self, i: usize) -> bool {
        self.packed.as_ref().is_none_or(|(p, _)| *p != i)
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let operand = |i: usize| match &self.packed {
            Some((p, bytes)) if *p == i => bytes.as_ptr().cast(),
            _ => src[i].cast(),
        };
        // SAFETY: the plan was made for the operands' and the result's extents, so their buffers
        // have its lengths; units and CPU are as the caller of this function promises.
        unsafe { self.plan.run(operand(0), operand(1), dst.cast(), units) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn ints(op: BinaryOp, a: &[i64], b: &[i64]) -> Result<Vec<i64>, GraphError> {
        let mut cx = Context::new();
        let a = cx.constant(Tensor::from_slice(&[a.len()], a).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(&[b.len()], b).unwrap()).unwrap();
        let y = cx.op(Binary::new(op), &[a, b])?;
        Ok(cx.constant_value(y).unwrap().as_slice().unwrap().to_vec())
    }

    #[test]
    fn integers_wrap_and_refuse_zero_divisors() {
        assert_eq!(ints(BinaryOp::Add, &[i64::MAX], &[1]).unwrap(), [i64::MIN]);
        assert_eq!(ints(BinaryOp::Div, &[-7, i64::MIN], &[2, -1]).unwrap(), [-3, i64::MIN]);
        assert_eq!(ints(BinaryOp::Max, &[-7, i64::MIN], &[2, -1]).unwrap(), [2, -1]);
        assert!(ints(BinaryOp::Div, &[1], &[0]).is_err());
        assert!(ints(BinaryOp::Pow, &[2], &[-1]).is_err());
        let mut cx = Context::new();
        let a = cx.constant(Tensor::from_slice(&[3], &[i8::MIN, 100, -3]).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(&[3], &[-1i8, 3, 5]).unwrap()).unwrap();
        for (op, want) in [
            (BinaryOp::Div, [i8::MIN, 33, 0]),
            (BinaryOp::Mul, [i8::MIN, 44, -15]),
            (BinaryOp::Max, [-1, 100, 5]),
        ] {
            let y = cx.op(Binary::new(op), &[a, b]).unwrap();
            assert_eq!(cx.constant_value(y).unwrap().as_slice::<i8>().unwrap()[..], want);
        }
        let a = cx.constant(Tensor::from_slice(&[2], &[u64::MAX, 1]).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(&[2], &[2u64, 3]).unwrap()).unwrap();
        for (op, want) in [
            (BinaryOp::Div, [u64::MAX / 2, 0]),
            (BinaryOp::Max, [u64::MAX, 3]),
            (BinaryOp::Mul, [u64::MAX - 1, 3]),
        ] {
            let y = cx.op(Binary::new(op), &[a, b]).unwrap();
            assert_eq!(cx.constant_value(y).unwrap().as_slice::<u64>().unwrap()[..], want);
        }
    }

    #[test]
    fn long_rows_of_integers_broadcast() {
        let values = |n: usize| (0..n).map(|i| (i as i32 * 7919) % 1009 - 500).collect::<Vec<_>>();
        for (a_dims, b_dims) in [([2, 100], [2, 100]), ([2, 100], [1, 100]), ([2, 1], [1, 100])] {
            let (a, b) = (values(a_dims.iter().product()), values(b_dims.iter().product()));
            let pick = |v: &[i32], dims: [usize; 2], i: usize, j: usize| {
                v[if dims[0] == 1 { 0 } else { i * dims[1] } + if dims[1] == 1 { 0 } else { j }]
            };
            let mut cx = Context::new();
            let x = cx.constant(Tensor::from_slice(&a_dims, &a).unwrap()).unwrap();
            let y = cx.constant(Tensor::from_slice(&b_dims, &b).unwrap()).unwrap();
            type Function = fn(i32, i32) -> i32;
            let functions: [(BinaryOp, Function); 5] = [
                (BinaryOp::Add, |a, b| a + b),
                (BinaryOp::Sub, |a, b| a - b),
                (BinaryOp::Mul, |a, b| a * b),
                (BinaryOp::Min, i32::min),
                (BinaryOp::Max, i32::max),
            ];
            assert!(cx.op(Binary::new(BinaryOp::PRelu), &[x, y]).is_err());
            for (op, f) in functions {
                let z = cx.op(Binary::new(op), &[x, y]).unwrap();
                let z = cx.constant_value(z).unwrap().as_slice::<i32>().unwrap().to_vec();
                for (at, z) in z.into_iter().enumerate() {
                    let (i, j) = (at / 100, at % 100);
                    assert_eq!(z, f(pick(&a, a_dims, i, j), pick(&b, b_dims, i, j)), "{op:?} {at}");
                }
            }
        }
    }

    #[test]
    fn broadcasting_names_both_shapes() {
        let mut cx = Context::new();
        let a = cx.constant(Tensor::from_slice(&[2, 1], &[1f32, 2.0]).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(&[3], &[10f32, 20.0, 30.0]).unwrap()).unwrap();
        let y = cx.op(Binary::new(BinaryOp::Mul), &[a, b]).unwrap();
        let value = cx.constant_value(y).unwrap();
        assert_eq!(value.dims(), [2, 3]);
        assert_eq!(value.as_slice::<f32>().unwrap()[..], [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]);
        let c = cx.constant(Tensor::from_slice(&[4], &[0f32; 4]).unwrap()).unwrap();
        let text = cx.op(Binary::new(BinaryOp::Add), &[b, c]).unwrap_err().to_string();
        assert!(text.contains("add") && text.contains("[3]") && text.contains("[4]"), "{text}");
    }
}
