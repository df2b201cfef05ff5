//! Maxima of parts of a picture.

use super::elements::{checked_count, expect_dtype, floats, position, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// Boxes `[r, 5]` (picture, left, top, right, bottom, both ends included) of `x [n, c, h, w]`, each
/// divided into cells of which the largest element is kept, as ONNX `MaxRoiPool`. An empty cell
/// gives 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiPool {
    /// Rows and columns of the result.
    pub output: [usize; 2],
    /// Elements of `x` per unit of the boxes.
    pub scale: f32,
}

const OP: &str = "roi_pool";

impl Operator for RoiPool {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, boxes) = (&src[0], &src[1]);
        expect_dtype(OP, x, |d| d.is_float())?;
        expect_dtype(OP, boxes, |d| d == x.dtype)?;
        if x.dims.len() != 4 || !matches!(boxes.dims[..], [_, 5]) {
            let rule = "there must be five numbers for each box of pictures";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims), ("boxes", &boxes.dims)]));
        }
        let dims = vec![boxes.dims[0], x.dims[1], self.output[0], self.output[1]];
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, boxes) = (floats(&src[0], OP)?, floats(&src[1], OP)?);
        let &[n, c, h, w] = src[0].dims else { return Ok(()) };
        let mut out = Vec::with_capacity(dst.dims.iter().product());
        for roi in boxes.chunks_exact(5) {
            let picture = position(OP, roi[0].max(-1.0) as i64, n)?;
            let corner = |i: usize| (roi[i] * f64::from(self.scale)).round();
            // Begin and end of each cell, inside the picture.
            let axis = |d: usize, extent: usize| -> Vec<(usize, usize)> {
                let (start, cells) = (corner(1 + d), self.output[1 - d]);
                let cell = (corner(3 + d) - start + 1.0).max(1.0) / cells as f64;
                let at = |v: f64| (v + start).clamp(0.0, extent as f64) as usize;
                let ends =
                    |p: usize| (at((p as f64 * cell).floor()), at(((p + 1) as f64 * cell).ceil()));
                (0..cells).map(ends).collect()
            };
            let (rows, columns) = (axis(1, h), axis(0, w));
            for channel in 0..c {
                let plane = &x[(picture * c + channel) * h * w..][..h * w];
                for &(top, bottom) in &rows {
                    for &(left, right) in &columns {
                        let cells = (top..bottom).flat_map(|r| (left..right).map(move |q| (r, q)));
                        let values = cells.map(|(r, q)| plane[r * w + q]);
                        out.push(values.reduce(f64::max).unwrap_or(0.0));
                    }
                }
            }
        }
        write_floats(dst, OP, out)
    }
}
