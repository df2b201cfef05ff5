//! The kernels between floats and bytes.

use core::ops::Range;
use std::sync::Arc;

use tilewright_kernels::{DequantizePlan, KernelError, QuantizeParams, QuantizePlan};

use super::requantize::{integer, is_bytes, kernel_type};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step};
use crate::tensor::{AlignedBytes, DType, Tensor};

/// Sizes, scales and zero points of a conversion whose parameters are constants; `None` where there
/// is no kernel.
fn parameters(
    cx: &LowerCx<'_>,
    bytes: &Info,
    floats: &Info,
    axis: Option<usize>,
    block: usize,
) -> Option<(QuantizeParams, Vec<f32>, Vec<i32>)> {
    if !is_bytes(bytes.dtype) || floats.dtype != DType::F32 || block != 0 {
        return None;
    }
    let scales = cx.values[1]?.as_slice::<f32>().ok()?.to_vec();
    let zeros = match cx.src.get(2) {
        Some(_) => integers(cx.values[2]?)?,
        None => Vec::new(),
    };
    let sound = scales.iter().all(|s| s.is_finite() && *s > 0.0);
    let stored = bytes.stored_elements().filter(|&n| n > 0)?;
    let dims = &bytes.dims;
    let [outer, axis, inner] = match axis {
        Some(axis) if bytes.layout == Layout::Plain => {
            let [before, after] = [&dims[..axis], &dims[axis + 1..]].map(|d| d.iter().product());
            [before, dims[axis], after]
        }
        Some(_) => return None,
        None => [1, 1, stored],
    };
    let complete = scales.len() == axis && (zeros.is_empty() || zeros.len() == axis);
    let params = QuantizeParams { outer, axis, inner, dtype: kernel_type(bytes.dtype) };
    (sound && complete).then_some((params, scales, zeros))
}

fn integers(t: &Tensor) -> Option<Vec<i32>> {
    match t.dtype() {
        DType::I8 => Some(t.as_slice::<i8>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        DType::U8 => Some(t.as_slice::<u8>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        _ => None,
    }
}

/// Memory of its own for a plan's parameters.
fn packed(
    len: usize,
    pack: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<Arc<AlignedBytes>, GraphError> {
    let mut out = AlignedBytes::zeroed(len * size_of::<f32>())?;
    pack(bytemuck::cast_slice_mut(&mut out))?;
    Ok(Arc::new(out))
}

/// The kernel that makes bytes of floats.
pub(super) fn lower_quantize(
    cx: &LowerCx<'_>,
    axis: Option<usize>,
    block: usize,
) -> Result<Option<Box<dyn Step>>, GraphError> {
    let found = parameters(cx, cx.dst, &cx.src[0], axis, block);
    let Some((params, scales, zeros)) = found else { return lower_scaled(cx, axis, block) };
    let plan = QuantizePlan::new(cx.isa, &params)?;
    let parameters = packed(plan.parameters_len(), |out| plan.pack(&scales, &zeros, out))?;
    Ok(Some(Box::new(Convert { plan, parameters })))
}

/// The kernel that makes bytes of floats with a scale that is known only at run time.
fn lower_scaled(
    cx: &LowerCx<'_>,
    axis: Option<usize>,
    block: usize,
) -> Result<Option<Box<dyn Step>>, GraphError> {
    let floats = cx.src[..2].iter().all(|x| x.dtype == DType::F32);
    let single = axis.is_none() && block == 0 && cx.src[1..].iter().all(|s| s.elements() == 1);
    let (known, bytes) = (cx.values[1].is_some(), is_bytes(cx.dst.dtype));
    let stored = cx.dst.stored_elements().expect("the result has a buffer");
    if !floats || !single || !bytes || known {
        return Ok(None);
    }
    let dtype = kernel_type(cx.dst.dtype);
    let params = QuantizeParams { outer: 1, axis: 1, inner: stored, dtype };
    Ok(Some(Box::new(Scaled { plan: QuantizePlan::new(cx.isa, &params)?, to: cx.dst.dtype })))
}

/// Reads scale and zero point when it runs.
struct Scaled {
    plan: QuantizePlan,
    to: DType,
}

impl Step for Scaled {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: scale and zero point have one element each, of f32 and of the result's type; the plan
        // was made for operand and result; units and CPU are as the caller promises.
        unsafe {
            let scale = *src[1].cast::<f32>();
            let zero = src.get(2).map_or(0, |zero| integer(**zero, self.to));
            self.plan.run_scaled(src[0].cast(), scale, zero, dst, units)?;
        }
        Ok(())
    }
}

/// The kernel that makes floats of bytes.
pub(super) fn lower_dequantize(
    cx: &LowerCx<'_>,
    axis: Option<usize>,
    block: usize,
) -> Result<Option<Box<dyn Step>>, GraphError> {
    let found = parameters(cx, &cx.src[0], cx.dst, axis, block);
    let Some((params, scales, zeros)) = found else { return Ok(None) };
    let plan = DequantizePlan::new(cx.isa, &params)?;
    let parameters = packed(plan.parameters_len(), |out| plan.pack(&scales, &zeros, out))?;
    Ok(Some(Box::new(Convert { plan, parameters })))
}

struct Convert<P> {
    plan: P,
    parameters: Arc<AlignedBytes>,
}

macro_rules! steps {
    ($($plan:ty),*) => { $(
        impl Step for Convert<$plan> {
            fn kernel(&self) -> String {
                self.plan.kernel_name().to_owned()
            }

            fn units(&self) -> usize {
                self.plan.units()
            }

            fn reads(&self, i: usize) -> bool {
                i == 0
            }

            #[allow(unsafe_code)]
            unsafe fn run(
                &self,
                src: &[*const u8],
                dst: *mut u8,
                _scratch: *mut u8,
                units: Range<usize>,
            ) -> Result<(), GraphError> {
                let parameters = self.parameters.as_ptr().cast();
                // SAFETY: the plan was made for operand and result, and packed the parameters
                // itself; units and CPU are as the caller promises.
                unsafe { self.plan.run(src[0].cast(), parameters, dst.cast(), units) };
                Ok(())
            }
        }
    )* };
}
steps!(QuantizePlan, DequantizePlan);
