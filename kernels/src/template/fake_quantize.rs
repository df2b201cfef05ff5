//! Numbers as they are once they were integers.

/// The greatest distance from 0 of bounds of [`fake_quantize`]: up to it numbers of `f32` are all halves of integers.
pub const FAKE_QUANTIZE_FAR: u32 = 1 << 21;

/// `clamp(round(x / scale)) * scale` of each element, ties to even, NaN as 0: what is left of numbers that become
/// integers and numbers again (ONNX `QuantizeLinear`, then `DequantizeLinear`). The bounds are the type's, less
/// the zero point. Without a call and a branch, so that compilers make vectors of it for any processor. Of
/// slices of two lengths the shorter one counts.
pub fn fake_quantize(x: &[f32], y: &mut [f32], scale: f32, bounds: [i32; 2]) {
    // What is added to this is rounded to an integer, ties to even.
    const ROUNDS: f32 = 12_582_912.0;
    let [low, high] = bounds.map(|v| v as f32);
    for (y, &x) in y.iter_mut().zip(x) {
        let q = x / scale;
        let q = if q < low { low } else { q };
        let q = if q > high { high } else { q };
        let q = if q.is_nan() { 0.0 } else { q };
        *y = ((q + ROUNDS) - ROUNDS) * scale;
    }
}
