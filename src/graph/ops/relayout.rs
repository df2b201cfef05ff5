//! Changes of layout. Passes insert them; importers never do.

use core::ops::Range;

use tilewright_kernels::template::layout::{LayoutOp, LayoutParams, LayoutPlan};
use tilewright_kernels::template::layout_bytes::{ByteLayoutOp, ByteLayoutPlan};

use super::plan_step::PlanStep;
use super::requantize::is_bytes;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Brings a tensor of rank 2 or more into another layout: of f32 and i32 any, of bytes from plain to
/// blocked and back and to interleaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relayout {
    /// The layout of the result.
    pub to: Layout,
}

impl Operator for Relayout {
    fn name(&self) -> &'static str {
        match self.to {
            Layout::Plain => "to_plain",
            Layout::Blocked => "to_blocked",
            Layout::Interleaved => "to_interleaved",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=1, "1")?;
        if !has_layouts(src[0].dtype) {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype: src[0].dtype });
        }
        Ok(Info { layout: self.to, ..src[0].clone() })
    }

    fn eval(&self, _src: &[View<'_>], _dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        Err(GraphError::Unsupported { op: self.name(), what: "a reference".to_owned() })
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let op = match (cx.src[0].layout, self.to) {
            (Layout::Plain, Layout::Blocked) => LayoutOp::NchwToBlocked,
            (Layout::Blocked, Layout::Plain) => LayoutOp::BlockedToNchw,
            (Layout::Plain, Layout::Interleaved) => LayoutOp::NchwToNhwc,
            (Layout::Interleaved, Layout::Plain) => LayoutOp::NhwcToNchw,
            (Layout::Interleaved, Layout::Blocked) => LayoutOp::NhwcToBlocked,
            (Layout::Blocked, Layout::Interleaved) => LayoutOp::BlockedToNhwc,
            (from, to) => {
                let what = format!("from {from} to {to}");
                return Err(GraphError::Unsupported { op: self.name(), what });
            }
        };
        let (n, c, space) = cx.dst.ncs();
        let of_bytes = match op {
            _ if is_word(cx.dst.dtype) => None,
            LayoutOp::NchwToBlocked if BYTES => Some(ByteLayoutOp::Block),
            LayoutOp::BlockedToNchw if BYTES => Some(ByteLayoutOp::Unblock),
            LayoutOp::NchwToNhwc if BYTES => Some(ByteLayoutOp::Interleave),
            _ => {
                let what = format!("{} from {} to {}", cx.dst.dtype, cx.src[0].layout, self.to);
                return Err(GraphError::Unsupported { op: self.name(), what });
            }
        };
        if n * c * space == 0 {
            return Ok(Some(Box::new(Nothing)));
        }
        if let Some(op) = of_bytes {
            return Ok(Some(Box::new(PlanStep(ByteLayoutPlan::new(cx.isa, op, [n, c, space])?))));
        }
        let params = LayoutParams { op, n, c, h: 1, w: space };
        Ok(Some(Box::new(PlanStep(LayoutPlan::new(cx.isa, &params)?))))
    }
}

/// What there is to do for an empty tensor.
struct Nothing;

impl Step for Nothing {
    fn kernel(&self) -> String {
        "none".to_owned()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        _src: &[*const u8],
        _dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        Ok(())
    }
}

/// Whether this build has operators that take bytes in other layouts than the plain one.
const BYTES: bool = cfg!(feature = "ops-int8");

/// Whether tensors of a type may have another layout than the plain one.
pub(in crate::graph) fn has_layouts(dtype: DType) -> bool {
    is_word(dtype) || is_bytes(dtype)
}

/// Whether the kernel that moves f32 serves the type, whose bits it does not look at.
pub(in crate::graph) fn is_word(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32)
}
