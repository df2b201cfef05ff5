//! Extents and byte strides of a tensor.

use core::fmt;

use super::DType;

/// Largest number of dimensions of a tensor.
pub const MAX_DIMS: usize = 8;

/// Why a shape or a view of one is not possible.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// More than [`MAX_DIMS`] dimensions.
    TooManyDims(usize),
    /// The number of elements or bytes does not fit the address space.
    Overflow(Vec<usize>),
    /// The innermost extent is not a whole number of the type's blocks.
    PartialBlock {
        /// The innermost extent.
        ne0: usize,
        /// The element type.
        dtype: DType,
    },
    /// Axes of a permutation are not distinct or not in range.
    BadPermutation(Vec<usize>),
    /// A reshape changes the number of elements.
    ElementCount {
        /// Extents before, slowest first.
        from: Vec<usize>,
        /// Extents after, slowest first.
        to: Vec<usize>,
    },
    /// A reshape of a tensor whose elements do not lie densely in memory.
    NotContiguous,
    /// A view reaches past the end of what it looks at.
    ViewOutOfRange {
        /// First byte of the view.
        offset: usize,
        /// Bytes the view spans.
        bytes: usize,
        /// Bytes there are.
        available: usize,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyDims(n) => write!(f, "{n} dimensions, at most {MAX_DIMS} are possible"),
            Self::Overflow(dims) => write!(f, "shape {dims:?} has too many elements"),
            Self::PartialBlock { ne0, dtype } => write!(
                f,
                "innermost dimension {ne0} is not a multiple of the {} elements in a {dtype} block",
                dtype.block_elems()
            ),
            Self::BadPermutation(axes) => write!(f, "axes {axes:?} are not a permutation"),
            Self::ElementCount { from, to } => {
                write!(f, "shape {from:?} cannot be reshaped to {to:?}: element counts differ")
            }
            Self::NotContiguous => f.write_str("a reshape needs a contiguous tensor"),
            Self::ViewOutOfRange { offset, bytes, available } => write!(
                f,
                "a view of {bytes} bytes at offset {offset} does not fit into {available} bytes"
            ),
        }
    }
}

impl core::error::Error for ShapeError {}

/// Extents `ne` and byte strides `nb` of a tensor, both fastest dimension first (ggml's order).
///
/// Unused dimensions have extent 1. [`Shape::dims`] gives the extents slowest first, the order of
/// ONNX and NumPy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    ne: [usize; MAX_DIMS],
    nb: [usize; MAX_DIMS],
}

impl Shape {
    /// A contiguous shape from extents in slowest-first order; `[]` is a scalar.
    ///
    /// # Errors
    /// [`ShapeError::TooManyDims`], [`ShapeError::PartialBlock`], or [`ShapeError::Overflow`] when
    /// the elements or bytes do not fit `isize`.
    pub fn contiguous(dtype: DType, dims: &[usize]) -> Result<Self, ShapeError> {
        if dims.len() > MAX_DIMS {
            return Err(ShapeError::TooManyDims(dims.len()));
        }
        let mut ne = [1; MAX_DIMS];
        for (slot, &d) in ne.iter_mut().zip(dims.iter().rev()) {
            *slot = d;
        }
        if !ne[0].is_multiple_of(dtype.block_elems()) {
            return Err(ShapeError::PartialBlock { ne0: ne[0], dtype });
        }
        let mut nb = [0; MAX_DIMS];
        let mut step = Some(dtype.block_bytes());
        for i in 0..MAX_DIMS {
            let overflow = || ShapeError::Overflow(dims.to_vec());
            nb[i] = step.ok_or_else(overflow)?;
            let extent = if i == 0 { ne[0] / dtype.block_elems() } else { ne[i] };
            // An empty dimension makes the tensor empty, but must not hide an overflow elsewhere.
            step = nb[i].checked_mul(extent.max(1)).filter(|&b| b <= isize::MAX as usize);
        }
        step.ok_or_else(|| ShapeError::Overflow(dims.to_vec()))?;
        Ok(Self { rank: dims.len() as u8, ne, nb })
    }

    /// Number of dimensions, 0 for a scalar.
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// Elements per dimension, fastest first, 1 where unused.
    pub fn ne(&self) -> &[usize; MAX_DIMS] {
        &self.ne
    }

    /// Bytes between neighbours per dimension, fastest first. For block types `nb[0]` is the
    /// distance of two blocks.
    pub fn nb(&self) -> &[usize; MAX_DIMS] {
        &self.nb
    }

    /// Extents slowest first, as ONNX and NumPy write them.
    pub fn dims(&self) -> Vec<usize> {
        self.ne[..self.rank()].iter().rev().copied().collect()
    }

    /// Whether the extents are these, slowest first.
    #[inline]
    pub fn has_dims(&self, dims: &[usize]) -> bool {
        let ne = &self.ne[..self.rank()];
        ne.len() == dims.len() && ne.iter().rev().zip(dims).all(|(a, b)| a == b)
    }

    /// Extent of `axis`, counted from the slowest dimension.
    ///
    /// # Panics
    /// If `axis` is not below the rank.
    pub fn dim(&self, axis: usize) -> usize {
        assert!(axis < self.rank(), "axis {axis} of a tensor of rank {}", self.rank);
        self.ne[self.rank() - 1 - axis]
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.ne.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.ne.contains(&0)
    }

    /// Bytes from the first byte to one past the last, following the strides; 0 when empty.
    pub fn bytes(&self, dtype: DType) -> usize {
        if self.is_empty() {
            return 0;
        }
        let outer: usize = (1..MAX_DIMS).map(|i| (self.ne[i] - 1) * self.nb[i]).sum();
        let blocks = self.ne[0] / dtype.block_elems();
        outer + (blocks - 1) * self.nb[0] + dtype.block_bytes()
    }

    /// Whether elements lie densely in memory in order of their dimensions. Strides of dimensions
    /// of extent 1 do not matter.
    pub fn is_contiguous(&self, dtype: DType) -> bool {
        let mut step = dtype.block_bytes();
        for i in 0..MAX_DIMS {
            let extent = if i == 0 { self.ne[0] / dtype.block_elems() } else { self.ne[i] };
            if extent != 1 {
                if self.nb[i] != step {
                    return self.is_empty();
                }
                step *= extent;
            }
        }
        true
    }

    /// Whether the two fastest dimensions are swapped in memory (`nb[0] > nb[1]`).
    pub fn is_transposed(&self) -> bool {
        self.nb[0] > self.nb[1]
    }

    /// Whether strides do not grow from the fastest dimension to the slowest.
    pub fn is_permuted(&self) -> bool {
        self.nb.windows(2).any(|w| w[0] > w[1])
    }

    /// Whether the extents are equal (ranks may differ by leading ones).
    pub fn same_extents(&self, other: &Self) -> bool {
        self.ne == other.ne
    }

    /// ggml's broadcast rule: each extent of `other` is a multiple of this one's.
    pub fn can_repeat_to(&self, other: &Self) -> bool {
        if self.is_empty() {
            return other.is_empty();
        }
        (0..MAX_DIMS).all(|i| other.ne[i].is_multiple_of(self.ne[i]))
    }

    /// The same elements under other extents (slowest first); shares memory.
    ///
    /// # Errors
    /// [`ShapeError::NotContiguous`], [`ShapeError::ElementCount`] or those of
    /// [`Shape::contiguous`].
    pub fn reshaped(&self, dtype: DType, dims: &[usize]) -> Result<Self, ShapeError> {
        if !self.is_contiguous(dtype) {
            return Err(ShapeError::NotContiguous);
        }
        let new = Self::contiguous(dtype, dims)?;
        if new.elements() != self.elements() {
            return Err(ShapeError::ElementCount { from: self.dims(), to: dims.to_vec() });
        }
        Ok(new)
    }

    /// Dimensions in another order: result axis `i` is source axis `axes[i]`, both counted from
    /// the slowest (NumPy's transpose). Shares memory.
    ///
    /// # Errors
    /// [`ShapeError::BadPermutation`].
    pub fn transposed(&self, axes: &[usize]) -> Result<Self, ShapeError> {
        let rank = self.rank();
        let bad = || ShapeError::BadPermutation(axes.to_vec());
        if axes.len() != rank {
            return Err(bad());
        }
        let mut seen = [false; MAX_DIMS];
        let mut out = *self;
        for (i, &axis) in axes.iter().enumerate() {
            if axis >= rank || core::mem::replace(&mut seen[axis], true) {
                return Err(bad());
            }
            out.ne[rank - 1 - i] = self.ne[rank - 1 - axis];
            out.nb[rank - 1 - i] = self.nb[rank - 1 - axis];
        }
        Ok(out)
    }

    /// A shape with extents and byte strides as given, slowest first. Nothing is checked against
    /// memory here; whoever attaches it to data does that with [`Shape::bytes`].
    ///
    /// # Errors
    /// [`ShapeError::TooManyDims`], or [`ShapeError::Overflow`] when the span does not fit `isize`.
    ///
    /// # Panics
    /// If `dims` and `strides` differ in length.
    pub fn strided(dtype: DType, dims: &[usize], strides: &[usize]) -> Result<Self, ShapeError> {
        assert_eq!(dims.len(), strides.len(), "one stride per dimension");
        let mut out = Self::contiguous(dtype, dims)?;
        let mut span = dtype.block_bytes();
        for (i, (&d, &s)) in dims.iter().zip(strides).rev().enumerate() {
            out.nb[i] = s;
            span = d
                .saturating_sub(1)
                .checked_mul(s)
                .and_then(|reach| span.checked_add(reach))
                .filter(|&b| b <= isize::MAX as usize)
                .ok_or_else(|| ShapeError::Overflow(dims.to_vec()))?;
        }
        Ok(out)
    }

    /// Byte strides slowest first, to go with [`Shape::dims`].
    pub fn strides(&self) -> Vec<usize> {
        self.nb[..self.rank()].iter().rev().copied().collect()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape")
            .field("ne", &&self.ne[..self.rank()])
            .field("nb", &&self.nb[..self.rank()])
            .finish()
    }
}

/// The shape two shapes broadcast to under NumPy's and ONNX's rule, slowest first; `None` if they
/// do not fit.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |j| dims[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_fastest_first() {
        let s = Shape::contiguous(DType::F32, &[2, 3, 4]).unwrap();
        assert_eq!(&s.ne()[..4], &[4, 3, 2, 1]);
        assert_eq!(&s.nb()[..4], &[4, 16, 48, 96]);
        assert_eq!(s.bytes(DType::F32), 96);
        assert_eq!(s.dims(), [2, 3, 4]);
        assert_eq!((s.dim(0), s.dim(2)), (2, 4));
    }

    #[test]
    fn block_types_divide_the_innermost_extent() {
        let s = Shape::contiguous(DType::Q8_0, &[3, 64]).unwrap();
        assert_eq!(&s.nb()[..3], &[34, 68, 204]);
        assert_eq!(s.bytes(DType::Q8_0), 204);
        assert!(matches!(
            Shape::contiguous(DType::Q8_0, &[3, 40]),
            Err(ShapeError::PartialBlock { ne0: 40, .. })
        ));
    }

    #[test]
    fn hostile_extents_are_overflow_not_a_wrap() {
        for dims in [&[usize::MAX, 2][..], &[1 << 40, 1 << 40], &[0, usize::MAX, usize::MAX]] {
            assert!(matches!(Shape::contiguous(DType::F32, dims), Err(ShapeError::Overflow(_))));
        }
        assert!(matches!(Shape::contiguous(DType::F32, &[1; 9]), Err(ShapeError::TooManyDims(9))));
    }

    #[test]
    fn transpose_moves_strides_only() {
        let s = Shape::contiguous(DType::F32, &[2, 3, 4]).unwrap();
        let t = s.transposed(&[2, 0, 1]).unwrap();
        assert_eq!(t.dims(), [4, 2, 3]);
        assert_eq!(t.strides(), [4, 48, 16]);
        assert!(!t.is_contiguous(DType::F32) && t.is_permuted());
        assert_eq!(t.bytes(DType::F32), 96);
        assert!(s.transposed(&[0, 0, 1]).is_err() && s.transposed(&[0, 1]).is_err());
        assert!(s.transposed(&[0, 1, 3]).is_err());
    }

    #[test]
    fn ones_do_not_break_contiguity() {
        let s = Shape::contiguous(DType::F32, &[1, 5, 1]).unwrap();
        let t = s.transposed(&[2, 0, 1]).unwrap();
        assert!(t.is_contiguous(DType::F32));
        assert!(s.transposed(&[1, 0, 2]).unwrap().reshaped(DType::F32, &[5]).is_ok());
    }

    #[test]
    fn reshape_refuses_strides_and_counts() {
        let s = Shape::contiguous(DType::F32, &[2, 3]).unwrap();
        assert!(matches!(s.reshaped(DType::F32, &[5]), Err(ShapeError::ElementCount { .. })));
        let t = s.transposed(&[1, 0]).unwrap();
        assert_eq!(t.reshaped(DType::F32, &[6]), Err(ShapeError::NotContiguous));
    }

    #[test]
    fn broadcasting() {
        assert_eq!(broadcast(&[2, 1, 4], &[3, 1]), Some(vec![2, 3, 4]));
        assert_eq!(broadcast(&[], &[3]), Some(vec![3]));
        assert_eq!(broadcast(&[0], &[1]), Some(vec![0]));
        assert_eq!(broadcast(&[2], &[3]), None);
        let (a, b) = (
            Shape::contiguous(DType::F32, &[3]).unwrap(),
            Shape::contiguous(DType::F32, &[2, 6]).unwrap(),
        );
        assert!(a.can_repeat_to(&b) && !b.can_repeat_to(&a));
    }
}
