//! Columns of blocks back to a picture.

use super::elements::{
    checked_count, expect_dtype, floats, low_bits, unravel, write_floats, write_low_bits,
};
use super::windows::Windows;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Sums up blocks `[n, c * block cells, blocks]` where they stand in `[n, c, image...]`, as ONNX
/// `Col2Im`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Col2Im {
    /// Spatial extents of the result.
    pub image: Vec<usize>,
    /// The blocks.
    pub windows: Windows,
}

const OP: &str = "col2im";

impl Operator for Col2Im {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d != DType::Bool)?;
        self.windows.check(OP, &self.image)?;
        let cells = checked_count(OP, &self.windows.size)?;
        let blocks = checked_count(OP, &self.windows.count)?;
        let &[n, rows, columns] = &x.dims[..] else {
            let rule = "x must have three dimensions";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims)]));
        };
        if !rows.is_multiple_of(cells) || columns != blocks {
            let rule = "x must have a row per channel and cell, and a column per block";
            let shapes = [("x", &x.dims[..]), ("block", &self.windows.size)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        let dims = [&[n, rows / cells], &self.image[..]].concat();
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let x = &src[0];
        let [blocks, planes] = [x.dims[2], dst.dims[0] * dst.dims[1]];
        // Floats are summed in f64, and integers wrap around.
        match dst.dtype {
            DType::F32 => {
                let add = |a: f64, b: f32| a + f64::from(b);
                write_floats(dst, OP, self.sums(x.slice::<f32>(OP)?, blocks, planes, add))
            }
            dtype if dtype.is_float() => {
                let sums = self.sums(&floats(x, OP)?, blocks, planes, |a: f64, b| a + b);
                write_floats(dst, OP, sums)
            }
            _ => {
                let sums = self.sums(&low_bits(x, OP)?, blocks, planes, i64::wrapping_add);
                write_low_bits(dst, OP, &sums)
            }
        }
    }
}

impl Col2Im {
    /// What the elements of `planes` pictures add up to.
    fn sums<S: Copy, T: Copy + Default>(
        &self,
        x: &[S],
        blocks: usize,
        planes: usize,
        add: impl Fn(T, S) -> T,
    ) -> Vec<T> {
        let area: usize = self.image.iter().product();
        let cells: usize = self.windows.size.iter().product();
        let mut at = vec![0; self.image.len()];
        // Where the elements of each row go, which are the same cells of each plane.
        let mut rows = vec![Vec::new(); cells];
        for block in 0..blocks {
            unravel(block, &self.windows.count, &mut at);
            self.windows.for_each(&at, &self.image, &mut |tap, cell| rows[tap].push((block, cell)));
        }
        let mut sums = vec![T::default(); planes * area];
        for (plane, sums) in sums.chunks_exact_mut(area.max(1)).enumerate() {
            for (tap, row) in rows.iter().enumerate() {
                let x = &x[(plane * cells + tap) * blocks..][..blocks];
                for &(block, cell) in row {
                    sums[cell] = add(sums[cell], x[block]);
                }
            }
        }
        sums
    }
}
