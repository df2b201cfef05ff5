//! Resampling along an axis.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::{Add, Mul, Range};
use std::hash::DefaultHasher;

use tilewright_kernels::template::resample::{Resample, Sums};

use super::concat::stored_dims;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Replaces an axis by weighted sums of its elements (f32 or f64), from a table: element `i` of the
/// result is the sum over `t` of `weight[i * taps + t] * x[index[i * taps + t]]`. Interpolation in
/// several dimensions is a chain of these.
#[derive(Clone, PartialEq)]
pub struct Resize {
    /// The axis, from the slowest.
    pub axis: usize,
    /// Elements that are summed up, not 0.
    pub taps: usize,
    /// Which elements; `u32::MAX` as the first stands for [`Resize::fill`].
    pub index: Vec<u32>,
    /// Their weights.
    pub weight: Vec<f32>,
    /// The value of elements that lie outside of the operand.
    pub fill: f32,
}

const OP: &str = "resize";

impl Resize {
    /// One element of the result: a weighted sum of runs of `x` as long as `y`.
    fn sum<T>(&self, (index, weight): (&[u32], &[f32]), x: &[T], y: &mut [T])
    where
        T: From<f32> + Copy + Add<Output = T> + Mul<Output = T>,
    {
        if index[0] == u32::MAX {
            y.fill(self.fill.into());
            return;
        }
        let len = y.len();
        for (t, (&i, &w)) in index.iter().zip(weight).enumerate() {
            for (y, &x) in y.iter_mut().zip(&x[i as usize * len..][..len]) {
                let part = T::from(w) * x;
                *y = if t == 0 { part } else { *y + part };
            }
        }
    }

    /// The reference on one type.
    fn eval_as<T>(&self, dims: &[usize], x: &[T], y: &mut [T])
    where
        T: From<f32> + Copy + Add<Output = T> + Mul<Output = T>,
    {
        let inner: usize = dims[self.axis + 1..].iter().product();
        let plane = dims[self.axis] * inner;
        let out = self.index.len() / self.taps * inner;
        if out == 0 {
            return;
        }
        for (o, y) in y.chunks_exact_mut(out).enumerate() {
            let x = &x[o * plane..][..plane];
            for (row, y) in self.rows().zip(y.chunks_exact_mut(inner)) {
                self.sum(row, x, y);
            }
        }
    }

    /// Indices and weights of each element of the result.
    fn rows(&self) -> impl Iterator<Item = (&[u32], &[f32])> {
        self.index.chunks_exact(self.taps).zip(self.weight.chunks_exact(self.taps))
    }
}

/// Tables are long: their hash stands for them.
impl fmt::Debug for Resize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hash = DefaultHasher::new();
        self.index.hash(&mut hash);
        self.weight.iter().for_each(|w| w.to_bits().hash(&mut hash));
        f.debug_struct("Resize")
            .field("axis", &self.axis)
            .field("taps", &self.taps)
            .field("output", &(self.index.len() / self.taps.max(1)))
            .field("table", &hash.finish())
            .field("fill", &self.fill)
            .finish()
    }
}

impl Operator for Resize {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        if !matches!(x.dtype, DType::F32 | DType::F64) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: x.dtype });
        }
        let mut dims = x.dims.clone();
        let Some(axis) = dims.get_mut(self.axis) else {
            return Err(GraphError::mismatch(OP, "the axis must exist", &[("x", &x.dims)]));
        };
        let inside =
            |rows: &[u32]| rows[0] == u32::MAX || rows.iter().all(|&i| (i as usize) < *axis);
        let fits = self.taps > 0
            && self.index.len() == self.weight.len()
            && self.index.len().is_multiple_of(self.taps)
            && self.rows().all(|(rows, _)| inside(rows));
        if !fits {
            return Err(GraphError::InvalidAttribute {
                op: OP,
                attribute: "index",
                reason: format!("the table does not fit an axis of {axis}"),
            });
        }
        *axis = self.index.len() / self.taps;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let x = &src[0];
        match x.dtype {
            DType::F32 => self.eval_as(x.dims, x.slice::<f32>(OP)?, dst.slice(OP)?),
            _ => self.eval_as(x.dims, x.slice::<f64>(OP)?, dst.slice(OP)?),
        }
        Ok(())
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        let Some(&axis) = src[0].dims.get(self.axis) else { return 0 };
        let others = src[0].elements().checked_div(axis).unwrap_or(0);
        (others as u64).saturating_mul(self.index.len() as u64)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if cx.dst.dtype != DType::F32 {
            return Ok(None);
        }
        let dims = stored_dims(&cx.src[0]);
        Ok(Some(Box::new(Run {
            op: self.clone(),
            kernels: Resample::new(cx.isa)?,
            outer: dims[..self.axis].iter().product(),
            extent: dims[self.axis],
            inner: dims[self.axis + 1..].iter().product(),
        })))
    }

    /// Pixels can be resampled in any layout.
    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if self.axis >= 2 && cx.src[0].dims.len() >= 3 && cx.src[0].dtype == DType::F32 {
            LayoutRule::Follow(vec![0])
        } else {
            LayoutRule::Plain
        }
    }
}

/// A unit is one element of the resampled axis in one outer position.
struct Run {
    op: Resize,
    kernels: Resample,
    outer: usize,
    extent: usize,
    inner: usize,
}

impl Step for Run {
    fn kernel(&self) -> String {
        self.kernels.kernel_name(self.inner).to_owned()
    }

    fn units(&self) -> usize {
        self.outer * (self.op.index.len() / self.op.taps)
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let (taps, inner) = (self.op.taps, self.inner);
        let (count, plane) = (self.op.index.len() / taps, self.extent * inner);
        let mut unit = units.start;
        while unit < units.end {
            let (outer, first) = (unit / count, unit % count);
            let many = (count - first).min(units.end - unit);
            // SAFETY: the operand has `outer` planes of f32; the result has one run of `inner` per
            // unit, and these are this call's alone; buffers are aligned for f32.
            let (x, y) = unsafe {
                let y = dst.cast::<f32>().add(unit * inner);
                (
                    core::slice::from_raw_parts(src[0].cast::<f32>().add(outer * plane), plane),
                    core::slice::from_raw_parts_mut(y, many * inner),
                )
            };
            let (index, weight) = (&self.op.index[first * taps..], &self.op.weight[first * taps..]);
            let fill = self.op.fill;
            self.kernels.run(&Sums { x, run: inner, taps, index, weight, fill }, y);
            unit += many;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::graph::ops::elements::as_defined;
    use crate::tensor::Tensor;

    #[test]
    fn single_elements_as_by_the_definition() {
        for taps in [1u32, 2, 3, 4] {
            let (extent, count) = (7, 11);
            let at = |i: u32, t: u32| if i == 5 { u32::MAX } else { (i * 5 + t * 3) % extent };
            let all = (0..count).flat_map(|i| (0..taps).map(move |t| (i, t)));
            let op = Resize {
                axis: 2,
                taps: taps as usize,
                index: all.clone().map(|(i, t)| at(i, t)).collect(),
                weight: all.map(|(i, t)| (i + 1) as f32 / (t + 1) as f32).collect(),
                fill: 9.0,
            };
            let x: Vec<f32> = (0..42).map(|i| (i * i % 13) as f32 - 5.5).collect();
            let x = Tensor::from_slice(&[2, 3, 7], &x).unwrap();
            assert_eq!(as_defined(&op, &[x]), "resize_f32_1");
            // Runs, and some for each of three threads.
            let x: Vec<f32> = (0..7 * 37).map(|i| (i * i % 13) as f32 - 5.5).collect();
            let x = Tensor::from_slice(&[1, 1, 7, 37], &x).unwrap();
            assert!(as_defined(&op, &[x]).starts_with("resize_f32_"));
        }
        // Runs of nothing, whose number still follows from the table.
        let op = Resize { axis: 0, taps: 1, index: vec![0; 5], weight: vec![1.0; 5], fill: 0.0 };
        let x = Tensor::from_slice::<f32>(&[1, 0, 4], &[]).unwrap();
        assert_eq!(as_defined(&op, &[x]), "reference");
    }

    #[test]
    fn table_of_weighted_sums() {
        let mut cx = Context::new();
        let x = Tensor::from_slice(&[2, 2, 2], &[1f32, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]);
        let x = cx.constant(x.unwrap()).unwrap();
        let op = Resize {
            axis: 1,
            taps: 2,
            index: vec![0, 0, 0, 1, u32::MAX, u32::MAX],
            weight: vec![1.0, 0.0, 0.25, 0.75, 0.0, 0.0],
            fill: -1.0,
        };
        let y = cx.op(op.clone(), &[x]).unwrap();
        let y = cx.constant_value(y).unwrap();
        assert_eq!(y.dims(), [2, 3, 2]);
        let want = [1.0, 2.0, 2.5, 3.5, -1.0, -1.0, 10.0, 20.0, 25.0, 35.0, -1.0, -1.0];
        assert_eq!(y.as_slice::<f32>().unwrap()[..], want);
        for bad in [
            Resize { index: vec![0, 2], weight: vec![0.5; 2], ..op.clone() },
            Resize { weight: vec![0.5; 2], ..op.clone() },
            Resize { taps: 0, ..op.clone() },
            Resize { axis: 3, ..op },
        ] {
            assert!(cx.op(bad, &[x]).is_err());
        }
    }
}
