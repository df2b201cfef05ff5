//! Where a tensor is not zero.

use super::unsupported;
use crate::graph::{GraphError, with_element};
use crate::tensor::{AlignedBytes, DType, Storage, Tensor};
use bytemuck::cast_slice_mut;

/// The indices of all elements that are not zero, in row-major order, as ONNX `NonZero` (opset 13):
/// `i64 [rank, count]`. A scalar counts as a list of one.
///
/// # Errors
/// Types without a zero of their own, and lack of memory.
pub fn nonzero(x: &Tensor) -> Result<Tensor, GraphError> {
    const OP: &str = "nonzero";
    if !x.dtype().is_plain() {
        return unsupported(OP, x.dtype());
    }
    let mut dims = x.dims();
    if dims.is_empty() {
        dims.push(1);
    }
    with_element!(x.dtype(), OP, T => {
        let zero = <T as num_like::Zero>::ZERO;
        let v = x.as_slice::<T>()?;
        let count = v.iter().filter(|v| **v != zero).count();
        let shape = [dims.len(), count];
        // Of many axes this is much larger than the operand.
        let bytes = dims.len().saturating_mul(count).saturating_mul(size_of::<i64>());
        let mut out = AlignedBytes::zeroed(bytes)?;
        let places: &mut [i64] = cast_slice_mut(&mut out);
        let found = v.iter().enumerate().filter(|(_, v)| **v != zero);
        for (i, (flat, _)) in found.enumerate() {
            let mut rest = flat;
            for (axis, &extent) in dims.iter().enumerate().rev() {
                places[axis * count + i] = (rest % extent) as i64;
                rest /= extent;
            }
        }
        Ok(Tensor::from_storage(DType::I64, &shape, Storage::owned(out))?)
    })
}

/// The zero of each element type.
mod num_like {
    pub(super) trait Zero {
        const ZERO: Self;
    }

    macro_rules! zeros {
        ($($t:ty: $zero:expr),*) => { $(impl Zero for $t { const ZERO: Self = $zero; })* };
    }

    zeros!(f32: 0.0, f64: 0.0, half::f16: half::f16::ZERO, half::bf16: half::bf16::ZERO, i8: 0,
        u8: 0, i16: 0, u16: 0, i32: 0, u32: 0, i64: 0, u64: 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn indices_are_in_order() {
        let x = Tensor::from_slice(&[2, 3], &[0f32, 5.0, f32::NAN, -0.0, 0.0, 1.0]).unwrap();
        let y = nonzero(&x).unwrap();
        assert_eq!(y.dims(), [2, 3]);
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [0, 0, 1, 1, 2, 2]);
        let one = nonzero(&Tensor::from_slice(&[], &[7i32]).unwrap()).unwrap();
        assert_eq!((one.dims(), one.as_slice::<i64>().unwrap().to_vec()), (vec![1, 1], vec![0]));
        let none = nonzero(&Tensor::zeros(DType::Bool, &[4, 2]).unwrap()).unwrap();
        assert_eq!(none.dims(), [2, 0]);
        assert_eq!(nonzero(&Tensor::zeros(DType::U8, &[0]).unwrap()).unwrap().dims(), [1, 0]);
    }
}
