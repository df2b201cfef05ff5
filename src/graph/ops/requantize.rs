//! What operators on bytes have in common: how sums of products become results.

use std::sync::Arc;

use tilewright_kernels::{Bytes, Dtype, QmatmulPlan, QuantColumns, QuantOutput};

use crate::graph::{GraphError, LowerCx, View, ViewMut};
use crate::tensor::{AlignedBytes, DType, Tensor};

/// How sums of products of bytes become a result: `clamp(round(sum * scale) + zero)`, the product in
/// f32, ties to even; or `sum * scale` as f32, or the sums themselves.
///
/// A sum is that of all `(x - x_zero) * (w - w_zero)`, and of the bias.
#[derive(Clone, Debug, PartialEq)]
pub struct Requantize {
    /// Zero point of the activations, and what pads them.
    pub x_zero: i32,
    /// Zero points of the weights: one per output channel, one for all, or none for 0.
    pub w_zeros: Vec<i32>,
    /// Factors of the sums, one per output channel or one for all; none for sums.
    pub scales: Vec<f32>,
    /// Type of the result: `i8`, `u8`, `f32`, or `i32` for sums.
    pub to: DType,
    /// What 0 becomes, for bytes.
    pub zero: i32,
    /// Bounds of the result, for bytes: those of the type, or of an activation.
    pub bounds: [i32; 2],
}

impl Requantize {
    /// Checks types and lengths for `k` output channels.
    pub(super) fn check(&self, op: &'static str, k: usize) -> Result<(), GraphError> {
        let invalid = |attribute, reason: &str| {
            Err(GraphError::InvalidAttribute { op, attribute, reason: reason.to_owned() })
        };
        let range = match self.to {
            DType::I8 => [-128, 127],
            DType::U8 => [0, 255],
            DType::I32 | DType::F32 => [i32::MIN, i32::MAX],
            other => return Err(GraphError::UnsupportedDType { op, dtype: other }),
        };
        let [low, high] = self.bounds;
        let bytes = range[1] <= 255;
        if bytes && (low > high || low < range[0] || high > range[1]) {
            return invalid("bounds", "must be in order and in the range of the type");
        }
        if bytes && !(range[0]..=range[1]).contains(&self.zero) {
            return invalid("zero point", "must be in the range of the type");
        }
        let fits = |len: usize| len == 1 || len == k;
        if self.to != DType::I32 && !fits(self.scales.len()) {
            return invalid("scales", "must be one, or one per output channel");
        }
        if !self.w_zeros.is_empty() && !fits(self.w_zeros.len()) {
            return invalid("zero points", "must be one, or one per output channel");
        }
        if self.scales.iter().any(|s| !s.is_finite()) {
            return invalid("scales", "must be finite");
        }
        Ok(())
    }

    /// Zero point of the weights of output channel `k`.
    pub(super) fn w_zero(&self, k: usize) -> i32 {
        match self.w_zeros[..] {
            [] => 0,
            [one] => one,
            _ => self.w_zeros[k],
        }
    }

    /// Writes the result of every sum, which `sum` gives by its position with its output channel.
    ///
    /// # Errors
    /// [`GraphError::Unsupported`] for a sum that leaves the range of `i32`.
    pub(super) fn write(
        &self,
        op: &'static str,
        dst: &mut ViewMut<'_>,
        sum: impl Fn(usize) -> (i64, usize),
    ) -> Result<(), GraphError> {
        let scaled = |i: usize| -> Result<f32, GraphError> {
            let (sum, k) = sum(i);
            let scale = if self.scales.len() == 1 { self.scales[0] } else { self.scales[k] };
            Ok(checked(op, sum)? as f32 * scale)
        };
        let integer = |i: usize| -> Result<i32, GraphError> {
            let [low, high] = self.bounds;
            // The conversion saturates, so the sum is made in a wider type.
            let value = scaled(i)?.round_ties_even() as i32;
            Ok((i64::from(value) + i64::from(self.zero)).clamp(low.into(), high.into()) as i32)
        };
        match self.to {
            DType::I32 => {
                for (i, y) in dst.slice::<i32>(op)?.iter_mut().enumerate() {
                    *y = checked(op, sum(i).0)?;
                }
            }
            DType::F32 => {
                for (i, y) in dst.slice::<f32>(op)?.iter_mut().enumerate() {
                    *y = scaled(i)?;
                }
            }
            DType::I8 => {
                for (i, y) in dst.slice::<i8>(op)?.iter_mut().enumerate() {
                    *y = integer(i)? as i8;
                }
            }
            _ => {
                for (i, y) in dst.slice::<u8>(op)?.iter_mut().enumerate() {
                    *y = integer(i)? as u8;
                }
            }
        }
        Ok(())
    }

    /// What kernels call this.
    pub(super) fn output(&self) -> QuantOutput {
        output(self.to, self.zero, self.bounds)
    }

    /// What follows the sums, with a bias.
    pub(super) fn columns<'a>(&'a self, bias: &'a [i32]) -> QuantColumns<'a> {
        QuantColumns { bias, zero_point: self.x_zero, scales: &self.scales, shifts: &[] }
    }

    /// How many signed bytes add up to a weight less its zero point.
    pub(super) fn terms(&self, w: &Tensor) -> usize {
        let least = if w.dtype() == DType::I8 { -128 } else { 0 };
        let zeros = if self.w_zeros.is_empty() { &[0][..] } else { &self.w_zeros };
        let far =
            |zero: &i32| (least - zero).min(-(least + 255 - zero + 1)).unsigned_abs() as usize;
        // From -128 to 127 one is enough, from -256 to 254 two.
        match zeros.iter().map(far).max().unwrap_or(128) {
            0..=128 => 1,
            129..=255 => 2,
            _ => 3,
        }
    }
}

/// Whether an instruction set heeds that the weights, operand 1, are small, and they are: see [`few_far`].
pub(super) fn small(cx: &LowerCx<'_>, zeros: &[i32]) -> Result<bool, GraphError> {
    if !QmatmulPlan::heeds_small(cx.isa) {
        return Ok(false);
    }
    // Once for all plans: to look at weights takes as long as to multiply by them.
    let known = cx.pack(1, &format!("small {zeros:?}"), 1, &|w, known| {
        known[0] = few_far(w, zeros).into();
        Ok(())
    })?;
    Ok(known[0] != 0)
}

/// The same of the right operand of a product, of whose unsigned bytes 128 are taken.
pub(super) fn small_b(cx: &LowerCx<'_>) -> Result<bool, GraphError> {
    small(cx, if cx.src[1].dtype == DType::I8 { &[] } else { &[128] })
}

/// Whether few weights are beyond -64 to 64, less their zero points, one per row of `w` or one or none for all: at
/// most one in 16, as of weights that are scaled by the largest of a whole tensor.
fn few_far(w: &Tensor, zeros: &[i32]) -> bool {
    let flip = if w.dtype() == DType::I8 { 0x80 } else { 0 };
    let bytes = w.bytes();
    let rows = bytes.chunks(bytes.len().div_ceil(zeros.len().max(1)).max(1));
    let far = rows.enumerate().map(|(i, row)| {
        let zero = zeros.get(i).copied().unwrap_or(0) + flip;
        row.iter().filter(|x| (i32::from(**x ^ flip as u8) - zero).abs() > 64).count()
    });
    far.sum::<usize>() * 16 <= bytes.len()
}

pub(super) fn checked(op: &'static str, sum: i64) -> Result<i32, GraphError> {
    i32::try_from(sum).map_err(|_| GraphError::Unsupported {
        op,
        what: "sums that 32 bits do not hold".to_owned(),
    })
}

/// The type of bytes as kernels name it.
pub(super) fn kernel_type(dtype: DType) -> Dtype {
    if dtype == DType::I8 { Dtype::I8 } else { Dtype::U8 }
}

/// What kernels call a result of this type, zero point and bounds.
pub(super) fn output(to: DType, zero: i32, bounds: [i32; 2]) -> QuantOutput {
    let [min, max] = bounds;
    match to {
        DType::I8 => QuantOutput::I8 { zero_point: zero as i8, min: min as i8, max: max as i8 },
        DType::U8 => QuantOutput::U8 { zero_point: zero as u8, min: min as u8, max: max as u8 },
        DType::F32 => QuantOutput::F32,
        _ => QuantOutput::I32,
    }
}

/// Whether elements are bytes.
pub(crate) fn is_bytes(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

/// A tensor's elements as signed or unsigned bytes.
pub(super) fn as_bytes(tensor: &Tensor) -> Bytes<'_> {
    match tensor.dtype() {
        DType::I8 => Bytes::I8(bytemuck::cast_slice(tensor.bytes())),
        _ => Bytes::U8(tensor.bytes()),
    }
}

/// Element `i` of bytes.
pub(super) fn byte(view: &View<'_>, i: usize) -> i64 {
    integer(view.bytes[i], view.dtype).into()
}

/// The number that a byte is.
pub(super) fn integer(byte: u8, dtype: DType) -> i32 {
    if dtype == DType::I8 { i32::from(byte as i8) } else { byte.into() }
}

/// Words in memory of their own.
pub(super) fn words(
    count: usize,
    fill: impl FnOnce(&mut [i32]) -> Result<(), GraphError>,
) -> Result<Arc<AlignedBytes>, GraphError> {
    let mut out = AlignedBytes::zeroed(count * size_of::<i32>())?;
    fill(bytemuck::cast_slice_mut(&mut out))?;
    Ok(Arc::new(out))
}

/// The values of a constant bias, if there is one.
pub(super) fn bias(cx: &LowerCx<'_>, i: Option<usize>) -> Result<Vec<i32>, GraphError> {
    let Some(value) = i.and_then(|i| cx.values[i]) else { return Ok(Vec::new()) };
    Ok(value.as_slice::<i32>()?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quant(w_zeros: &[i32]) -> Requantize {
        Requantize {
            x_zero: 0,
            w_zeros: w_zeros.to_vec(),
            scales: vec![0.5],
            to: DType::I8,
            zero: 1,
            bounds: [-128, 127],
        }
    }

    #[test]
    fn terms_cover_every_distance() {
        let signed = Tensor::from_slice(&[1], &[0i8]).unwrap();
        let unsigned = Tensor::from_slice(&[1], &[0u8]).unwrap();
        assert_eq!(quant(&[]).terms(&signed), 1);
        assert_eq!(quant(&[0, 1]).terms(&signed), 2);
        assert_eq!(quant(&[-1]).terms(&signed), 2);
        assert_eq!(quant(&[128]).terms(&unsigned), 1);
        assert_eq!(quant(&[127]).terms(&unsigned), 2);
        assert_eq!(quant(&[0]).terms(&unsigned), 3);
        assert_eq!(quant(&[255]).terms(&unsigned), 2);
    }

    #[test]
    fn small_weights_are_few_beyond_64() {
        let signed = |far: usize, x: i8| {
            let bytes: Vec<i8> = (0..64).map(|i| if i < far { x } else { -64 }).collect();
            Tensor::from_slice(&[4, 16], &bytes).unwrap()
        };
        assert!(few_far(&signed(4, 65), &[]) && few_far(&signed(4, -128), &[]));
        assert!(!few_far(&signed(5, 65), &[]) && !few_far(&signed(5, -65), &[]));
        let unsigned = Tensor::from_slice(&[2, 2], &[3u8, 67, 135, 255]).unwrap();
        assert!(few_far(&unsigned, &[40, 195]));
        assert!(!few_far(&unsigned, &[100, 195]) && !few_far(&unsigned, &[]));
        assert!(!few_far(&unsigned, &[128]));
    }

    #[test]
    fn results_are_rounded_to_even_and_bounded() {
        let mut bytes = [0u8; 4];
        let dims = [4];
        let mut dst = ViewMut { dtype: DType::I8, dims: &dims, bytes: &mut bytes };
        let sums = [1i64, 3, 400, -400];
        quant(&[]).write("test", &mut dst, |i| (sums[i], 0)).unwrap();
        assert_eq!(bytes.map(|b| b as i8), [1, 3, 127, -128]);
        let mut dst = ViewMut { dtype: DType::I8, dims: &dims, bytes: &mut bytes };
        assert!(quant(&[]).write("test", &mut dst, |_| (1 << 40, 0)).is_err());
        assert!(Requantize { bounds: [5, 4], ..quant(&[]) }.check("test", 3).is_err());
        assert!(Requantize { scales: vec![1.0; 2], ..quant(&[]) }.check("test", 3).is_err());
        assert!(Requantize { to: DType::F64, ..quant(&[]) }.check("test", 3).is_err());
    }
}
