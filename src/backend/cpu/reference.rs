//! Operators without a kernel.

use core::ops::Range;
use std::sync::Arc;

use crate::graph::{GraphError, Info, Op, Step, View, ViewMut};

/// Computes an operator with its reference.
pub(super) struct Reference {
    pub(super) op: Arc<Op>,
    pub(super) src: Vec<Info>,
    pub(super) dst: Info,
}

impl Step for Reference {
    fn kernel(&self) -> String {
        "reference".to_owned()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let bytes = |info: &Info| info.stored_bytes().expect("the tensor has a buffer");
        if bytes(&self.dst) == 0 {
            return Ok(());
        }
        // A run should not allocate, and few operators have more operands than this.
        let mut few = [View { dtype: self.dst.dtype, dims: &[], bytes: &[] }; 8];
        let mut many = Vec::new();
        let views = if src.len() <= few.len() {
            &mut few[..src.len()]
        } else {
            many.resize(src.len(), few[0]);
            &mut many
        };
        for ((slot, info), &p) in views.iter_mut().zip(&self.src).zip(src) {
            // SAFETY: the caller vouches for the whole operand.
            let bytes = unsafe { core::slice::from_raw_parts(p, bytes(info)) };
            *slot = View { dtype: info.dtype, dims: &info.dims, bytes };
        }
        // SAFETY: the caller vouches for the whole result. It overlaps no operand, as this step may
        // overwrite none.
        let bytes = unsafe { core::slice::from_raw_parts_mut(dst, bytes(&self.dst)) };
        let mut result = ViewMut { dtype: self.dst.dtype, dims: &self.dst.dims, bytes };
        self.op.operator().expect("an operator").eval(views, &mut result)
    }
}
