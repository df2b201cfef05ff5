//! Parts of a tensor that a condition chooses.

use super::take;
use crate::graph::GraphError;
use crate::tensor::{DType, Tensor};

/// The parts of `x` along `axis` where the condition, of `bool`, is true, as ONNX `Compress`
/// (opset 11); without an axis of all elements in row-major order. The condition may be shorter than
/// the axis. It is a list in ONNX; one of more axes, as Paddle's exporter writes it for `masked_select`,
/// counts in row-major order, as in onnxruntime.
///
/// # Errors
/// A condition that holds no truth values or more than the axis has, an axis that is not there.
pub fn compress(x: &Tensor, condition: &Tensor, axis: Option<usize>) -> Result<Tensor, GraphError> {
    const OP: &str = "compress";
    if condition.dtype() != DType::Bool || !x.dtype().is_plain() {
        let dtype = if x.dtype().is_plain() { condition.dtype() } else { x.dtype() };
        return Err(GraphError::UnsupportedDType { op: OP, dtype });
    }
    let (x, axis) = match axis {
        Some(axis) => (x.clone(), axis),
        None => (x.reshaped(&[x.shape().elements()])?, 0),
    };
    let dims = x.dims();
    if dims.get(axis).is_none_or(|&extent| condition.shape().elements() > extent) {
        let rule = "the condition must not be longer than the axis";
        let chosen = condition.dims();
        return Err(GraphError::mismatch(OP, rule, &[("x", &dims), ("condition", &chosen)]));
    }
    let flags = condition.bytes().iter().enumerate();
    let positions: Vec<usize> = flags.filter(|(_, c)| **c != 0).map(|(i, _)| i).collect();
    take(&x, axis, &positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_along_an_axis_or_all() {
        let x = Tensor::from_slice(&[3, 2], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let flags = |v: &[u8]| Tensor::from_bytes(DType::Bool, &[v.len()], v).unwrap();
        let y = compress(&x, &flags(&[0, 1, 1]), Some(0)).unwrap();
        assert_eq!((y.dims(), y.as_slice::<f32>().unwrap()[0]), (vec![2, 2], 3.0));
        let y = compress(&x, &flags(&[0, 1]), Some(1)).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap()[..], [2.0, 4.0, 6.0]);
        let y = compress(&x, &flags(&[0, 1, 0, 0, 1]), None).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap()[..], [2.0, 5.0]);
        let square = flags(&[0, 1, 0, 0, 1, 0]).reshaped(&[3, 2]).unwrap();
        let y = compress(&x, &square, None).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap()[..], [2.0, 5.0]);
        assert!(compress(&x, &square, Some(0)).is_err());
        assert!(compress(&x, &flags(&[1; 3]), Some(1)).is_err());
        assert!(compress(&x, &flags(&[1]), Some(2)).is_err());
        assert!(compress(&x, &x, None).is_err());
    }
}
