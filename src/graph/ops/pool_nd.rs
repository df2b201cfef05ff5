//! Pooling over any number of spatial dimensions, in all types, and where maxima are.

use super::cast::Number;
use super::elements::{checked_count, expect_dtype, floats, unravel, write_floats};
use super::windows::Windows;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::DType;

/// How a window becomes one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolNdKind {
    /// The largest value; padding never wins.
    Max,
    /// The position of the first largest value in the whole operand (`i64`), its rows counted
    /// along the last dimension, or along the first spatial one if `columns`.
    Position {
        /// Whether the first spatial dimension is the fastest.
        columns: bool,
    },
    /// The mean; `include_pad` counts padding cells as zeros instead of leaving them out.
    Average {
        /// Whether padding counts.
        include_pad: bool,
    },
    /// The root of the sum of powers of magnitudes.
    Norm {
        /// The power.
        p: u32,
    },
}

/// Pooling of `x [n, c, spatial...]`, as ONNX `MaxPool`, `AveragePool` and `LpPool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolNd {
    /// What is computed.
    pub kind: PoolNdKind,
    /// The windows.
    pub windows: Windows,
}

const OP: &str = "pool_nd";

impl PoolNd {
    /// The position in the operand, with the spatial dimensions the other way round.
    fn by_columns(spatial: &[usize], position: usize) -> usize {
        let area: usize = spatial.iter().product();
        let mut at = vec![0; spatial.len()];
        unravel(position % area, spatial, &mut at);
        let column = at.iter().zip(spatial).rev().fold(0, |sum, (a, d)| sum * d + a);
        position / area * area + column
    }

    /// Position and value of the largest element of each window.
    fn maxima<T: Number + PartialOrd>(
        &self,
        dims: &[usize],
        x: &[T],
        f: &mut dyn FnMut(Option<usize>),
    ) {
        let spatial = &dims[2..];
        let (area, windows) =
            (spatial.iter().product::<usize>(), self.windows.count.iter().product::<usize>());
        let mut at = vec![0; spatial.len()];
        for i in 0..dims[0] * dims[1] * windows {
            unravel(i % windows, &self.windows.count, &mut at);
            let first = i / windows * area;
            let mut best: Option<usize> = None;
            self.windows.for_each(&at, spatial, &mut |_, cell| {
                if best.is_none_or(|b| x[first + cell] > x[b]) {
                    best = Some(first + cell);
                }
            });
            f(best);
        }
    }

    fn sums(&self, x: &View<'_>) -> Result<Vec<f64>, GraphError> {
        let (values, spatial) = (floats(x, OP)?, &x.dims[2..]);
        let windows: usize = self.windows.count.iter().product();
        let area: usize = spatial.iter().product();
        let mut at = vec![0; spatial.len()];
        let mut out = Vec::new();
        for i in 0..x.dims[0] * x.dims[1] * windows {
            unravel(i % windows, &self.windows.count, &mut at);
            let first = i / windows * area;
            let (mut sum, mut count) = (0.0, 0usize);
            self.windows.for_each(&at, spatial, &mut |_, cell| {
                let v = values[first + cell];
                sum += match self.kind {
                    PoolNdKind::Norm { p } => v.abs().powf(f64::from(p)),
                    _ => v,
                };
                count += 1;
            });
            out.push(match self.kind {
                PoolNdKind::Norm { p } => sum.powf(1.0 / f64::from(p)),
                PoolNdKind::Average { include_pad: true } => {
                    let cells = (0..at.len())
                        .map(|d| self.windows.inside_padding(d, at[d], spatial[d]) as f64);
                    sum / cells.product::<f64>()
                }
                _ => sum / count as f64,
            });
        }
        Ok(out)
    }
}

impl Operator for PoolNd {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "x")?;
        let x = &src[0];
        let most = matches!(self.kind, PoolNdKind::Max | PoolNdKind::Position { .. });
        expect_dtype(OP, x, |d| d.is_float() || (most && d != DType::Bool))?;
        if x.dims.len() < 3 {
            let rule = "x must have spatial dimensions";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims)]));
        }
        self.windows.check(OP, &x.dims[2..])?;
        let dims = [&x.dims[..2], &self.windows.count].concat();
        checked_count(OP, &dims)?;
        let position = matches!(self.kind, PoolNdKind::Position { .. });
        Ok(Info::plain(if position { DType::I64 } else { x.dtype }, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, dims) = (&src[0], src[0].dims);
        match self.kind {
            PoolNdKind::Max => with_element!(x.dtype, OP, T => {
                let (x, mut out) = (x.slice::<T>(OP)?, Vec::new());
                let low = if T::FLOAT { T::from_float(f64::NEG_INFINITY) } else { T::LEAST };
                self.maxima(dims, x, &mut |at| out.push(at.map_or(low, |at| x[at])));
                dst.slice::<T>(OP)?.copy_from_slice(&out);
                Ok(())
            }),
            PoolNdKind::Position { columns } => with_element!(x.dtype, OP, T => {
                let mut out = Vec::new();
                self.maxima(dims, x.slice::<T>(OP)?, &mut |at| {
                    let at = at.unwrap_or(0);
                    let at = if columns { Self::by_columns(&dims[2..], at) } else { at };
                    out.push(at as i64);
                });
                dst.slice::<i64>(OP)?.copy_from_slice(&out);
                Ok(())
            }),
            _ => write_floats(dst, OP, self.sums(x)?),
        }
    }

    fn macs(&self, _src: &[Info], dst: &Info) -> u64 {
        let cells = self.windows.size.iter().fold(1u64, |n, &s| n.saturating_mul(s as u64));
        cells.saturating_mul(dst.elements() as u64)
    }
}
