//! What is known of a tensor: type, extents, layout, and how it is computed.

use core::fmt;
use std::sync::Arc;

use tilewright_kernels::C_BLOCK;

use super::{Op, TensorId};
use crate::tensor::{DType, Shape, Tensor};

/// Where the elements of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row-major in order of the dimensions.
    Plain,
    /// `[n, ceil(c / 16), spatial..., 16]`: blocks of [`C_BLOCK`] channels. Lanes past the last
    /// channel hold unspecified values.
    Blocked,
    /// `[n, spatial..., c]`.
    Interleaved,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Blocked => "blocked16",
            Self::Interleaved => "interleaved",
        })
    }
}

/// What is known of an operand before any data exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Element type.
    pub dtype: DType,
    /// Extents, slowest first.
    pub dims: Vec<usize>,
    /// Order of the elements in memory.
    pub layout: Layout,
}

impl Info {
    /// A plain tensor.
    pub fn plain(dtype: DType, dims: Vec<usize>) -> Self {
        Self { dtype, dims, layout: Layout::Plain }
    }

    /// Number of elements, without the unused lanes of [`Layout::Blocked`].
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Batch, channels and the product of the other extents, for a tensor of rank 2 or more.
    pub fn ncs(&self) -> (usize, usize, usize) {
        (self.dims[0], self.dims[1], self.dims[2..].iter().product())
    }

    /// Elements the buffer holds, with unused lanes; `None` on overflow.
    pub fn stored_elements(&self) -> Option<usize> {
        if self.layout == Layout::Blocked {
            let (n, c, s) = self.ncs();
            n.checked_mul(c.checked_next_multiple_of(C_BLOCK)?)?.checked_mul(s)
        } else {
            self.dims.iter().try_fold(1usize, |acc, &d| acc.checked_mul(d))
        }
    }

    /// Bytes the buffer holds; `None` on overflow.
    pub fn stored_bytes(&self) -> Option<usize> {
        self.dtype.bytes_of(self.stored_elements()?).filter(|&b| b <= isize::MAX as usize)
    }
}

/// Everything known of one tensor.
#[derive(Clone, Debug)]
pub struct Record {
    pub(super) name: Arc<str>,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) layout: Layout,
    pub(super) op: Arc<Op>,
    pub(super) src: Vec<TensorId>,
    /// Bytes from the start of `src[0]`, for views.
    pub(super) offset: usize,
    pub(super) value: Option<Tensor>,
    pub(super) constant: bool,
}

impl Record {
    /// Name; empty if nobody gave one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents and strides. In a layout other than plain the strides are those of the plain one.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Order of the elements in memory.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How the tensor is computed.
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// The same, for those that outlive the record.
    pub(crate) fn shared_op(&self) -> Arc<Op> {
        self.op.clone()
    }

    /// The operands.
    pub fn src(&self) -> &[TensorId] {
        &self.src
    }

    /// For a view: bytes from the start of its operand.
    pub fn view_offset(&self) -> Option<usize> {
        matches!(*self.op, Op::View(_)).then_some(self.offset)
    }

    /// The data, for constants, leaves that were set, and results in immediate mode.
    pub fn value(&self) -> Option<&Tensor> {
        self.value.as_ref()
    }

    /// Whether this is a leaf that nobody has given data yet.
    pub fn is_unset(&self) -> bool {
        matches!(*self.op, Op::Leaf) && self.value.is_none()
    }

    /// Whether the value is known while the graph is built and never changes.
    pub fn is_constant(&self) -> bool {
        self.constant
    }

    /// Whether the elements lie densely in memory.
    pub fn is_contiguous(&self) -> bool {
        self.shape.is_contiguous(self.dtype)
    }

    /// Type, shape and layout.
    pub fn info(&self) -> Info {
        Info { dtype: self.dtype, dims: self.shape.dims(), layout: self.layout }
    }
}
