//! From any picture to the input of an image network.
//!
//! A picture fits an input of rank 4, f32, u8 or i8, that has an axis of 1 or 3 channels, either
//! second (`[n, c, h, w]`) or last (`[n, h, w, c]`), and takes one picture. Its other two axes,
//! where they are fixed, say the size to which the picture is brought: stretched, cropped or padded
//! ([`Fit`]). Samples go to a u8 input as they are; for f32 somebody has to say which values 0 and
//! 255 become, because networks differ in that. Then a mean is subtracted and the rest divided by a
//! standard deviation, per channel; an i8 or u8 input with a scale and zero point is quantised.

use half::{bf16, f16};

use super::TaskError;
use super::resample::{reserved, resize_rows};
use crate::io::Picture;
use crate::tensor::{DType, Tensor, TensorError, available_memory};

/// Most rows or columns of an input.
const MAX_SIDE: usize = 1 << 15;

/// `LOW..HIGH` as two finite numbers.
pub fn parse_range(text: &str) -> Option<[f32; 2]> {
    let (low, high) = text.split_once("..")?;
    let number = |s: &str| s.trim().parse::<f32>().ok().filter(|v| v.is_finite());
    Some([number(low)?, number(high)?])
}

/// How a picture is brought to the size of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fit {
    /// All of the picture, without keeping its proportions.
    #[default]
    Stretch,
    /// The middle: the shorter side is scaled so that this share of it is the input's, and what is
    /// outside is cut off. 0.875 is what networks trained on ImageNet mostly want, 1 cuts off
    /// nothing of the shorter side.
    Crop(f32),
    /// All of the picture, in its proportions, in the middle of samples of this value (0 to 255).
    Pad(f32),
}

/// Order of the colours in an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Red first.
    #[default]
    Rgb,
    /// Blue first.
    Bgr,
}

/// How a picture becomes an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preparation {
    /// Rows and columns of the input, where it leaves them open; without it, the picture's own.
    pub size: Option<[usize; 2]>,
    /// How it is brought to size.
    pub fit: Fit,
    /// Order of the colours.
    pub order: Order,
    /// Values that samples 0 and 255 become; without it, integer inputs take samples as they are,
    /// and f32 inputs no picture.
    pub range: Option<[f32; 2]>,
    /// What is subtracted from that, per channel of the input.
    pub mean: [f32; 3],
    /// What that is divided by.
    pub std: [f32; 3],
    /// Scale and zero point of an i8 or u8 input that stands for real values.
    pub quantization: Option<Quantization>,
}

impl Default for Preparation {
    fn default() -> Self {
        Self {
            size: None,
            fit: Fit::default(),
            order: Order::default(),
            range: None,
            mean: [0.0; 3],
            std: [1.0; 3],
            quantization: None,
        }
    }
}

impl Preparation {
    /// Samples 0 to 255 become `range`.
    pub fn with_range(range: [f32; 2]) -> Self {
        Self { range: Some(range), ..Self::default() }
    }
}

/// Integers that stand for real values: `real = scale * (integer - zero_point)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantization {
    /// The step between two integers.
    pub scale: f32,
    /// The integer that stands for 0.
    pub zero_point: i32,
}

impl Quantization {
    /// The integers for real values, rounded to the nearest (halves to even) and saturated to the
    /// type; `None` for types other than i8 and u8.
    ///
    /// # Errors
    /// [`TaskError::Tensor`] if `values` does not have as many elements as `dims`.
    pub fn tensor(
        self,
        dtype: DType,
        dims: &[usize],
        values: &[f32],
    ) -> Option<Result<Tensor, TaskError>> {
        let tensor = match dtype {
            DType::U8 => {
                let v: Vec<u8> = values.iter().map(|&v| self.unsigned(v)).collect();
                Tensor::from_slice(dims, &v)
            }
            DType::I8 => {
                let v: Vec<i8> = values.iter().map(|&v| self.signed(v)).collect();
                Tensor::from_slice(dims, &v)
            }
            _ => return None,
        };
        Some(tensor.map_err(TaskError::from))
    }

    fn unsigned(self, v: f32) -> u8 {
        self.integer(v).clamp(0.0, 255.0) as u8
    }

    fn signed(self, v: f32) -> i8 {
        self.integer(v).clamp(-128.0, 127.0) as i8
    }

    fn integer(self, v: f32) -> f32 {
        (v / self.scale).round_ties_even() + self.zero_point as f32
    }
}

/// Where in an input a picture lies: a pixel at `x` of the picture is at `x * scale + offset` of
/// the input; columns first, rows second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Columns and rows of the input.
    pub size: [usize; 2],
    /// Input pixels per picture pixel.
    pub scale: [f32; 2],
    /// Where the picture begins in the input.
    pub offset: [f32; 2],
}

/// A prepared input.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The input.
    pub tensor: Tensor,
    /// Where the picture lies in it.
    pub placement: Placement,
}

/// The picture as an input of `dims` (`None` where any extent will do) and `dtype`.
///
/// # Errors
/// [`TaskError::UnsupportedInput`] if it is not clear how the picture fits, or the input is larger
/// than 32768 pixels a side; [`TaskError::Tensor`] if preparing it would take more than 80 % of the memory that is
/// free.
pub fn prepare(
    picture: &Picture,
    dtype: DType,
    dims: &[Option<usize>],
    how: &Preparation,
) -> Result<Prepared, TaskError> {
    let refuse = |why: String| Err(TaskError::UnsupportedInput(why));
    let is_channels = |d: Option<usize>| matches!(d, Some(1 | 3));
    let (channels, rows, columns, channels_last) = match *dims {
        [None | Some(1), Some(c), h, w] if is_channels(Some(c)) && !is_channels(w) => {
            (c, h, w, false)
        }
        [None | Some(1), h, w, Some(c)] if is_channels(Some(c)) && !is_channels(h) => {
            (c, h, w, true)
        }
        _ => {
            return refuse(format!(
                "a picture does not fit an input of shape {}: it needs [1, c, h, w] or \
                 [1, h, w, c] with 1 or 3 channels; give the input as a .npy file",
                shape_text(dims)
            ));
        }
    };
    match (dtype, how.range, how.quantization) {
        (DType::F32 | DType::F16 | DType::BF16, Some(_), _) | (DType::U8, None, None) => {}
        (DType::F32 | DType::F16 | DType::BF16, None, _) => {
            return refuse(
                "the model does not say which values the samples of a picture become; \
                 add --pixel-range LOW..HIGH (often 0..1 or 0..255), or give the input as a .npy \
                 file"
                    .into(),
            );
        }
        (DType::U8, Some([0.0, 255.0]), None) => {}
        (DType::U8 | DType::I8, Some(_), Some(_)) => {}
        (DType::U8 | DType::I8, _, _) => {
            return refuse(format!(
                "the input of type {dtype} has no scale and zero point for a picture's values; \
                 give both tilewright.input.range and tilewright.input.quantization, or the input \
                 as a .npy file"
            ));
        }
        (other, ..) => {
            return refuse(format!(
                "a picture does not fit an input of type {other}; give the input as a .npy file"
            ));
        }
    }
    let (height, width) = (picture.height, picture.width);
    let [usual_height, usual_width] = how.size.unwrap_or([height, width]);
    let (new_height, new_width) = (rows.unwrap_or(usual_height), columns.unwrap_or(usual_width));
    if height * width == 0 || new_height.min(new_width) == 0 {
        return refuse("a picture or an input without pixels".into());
    }
    if new_height.max(new_width) > MAX_SIDE {
        return refuse(format!(
            "a picture is not resized to {new_height} rows of {new_width} pixels (at most \
             {MAX_SIDE} each)"
        ));
    }
    let shape = if channels_last {
        [1, new_height, new_width, channels]
    } else {
        [1, channels, new_height, new_width]
    };
    let cut = Cut::new(how.fit, [height, width], [new_height, new_width]);
    let area = new_height * new_width;
    let taken = (channels * area).saturating_mul(dtype.block_bytes()).saturating_add(
        (area + height.saturating_mul(new_width)).saturating_mul(2 * size_of::<f32>()),
    );
    if available_memory().is_some_and(|free| taken > free / 5 * 4) {
        return Err(TensorError::OutOfMemory(taken).into());
    }
    let mut tensor = Tensor::zeros(dtype, &shape)?;
    let [low, high] = how.range.unwrap_or([0.0, 255.0]);
    for c in 0..channels {
        let colour = if how.order == Order::Bgr && channels == 3 { 2 - c } else { c };
        let row = |y: usize, from: usize, line: &mut [f32]| {
            row(picture, y, from, [channels, colour], line);
        };
        let plane = cut.apply(&row, [new_height, new_width])?;
        let to = Channel {
            first: if channels_last { c } else { c * area },
            step: if channels_last { channels } else { 1 },
        };
        let value = |v: f32| (low + v * (high - low) / 255.0 - how.mean[c]) / how.std[c];
        match (dtype, how.quantization) {
            (DType::U8, None) => to.fill(&mut tensor, &plane, &|v| (v + 0.5) as u8),
            (DType::U8, Some(q)) => to.fill(&mut tensor, &plane, &|v| q.unsigned(value(v))),
            (DType::I8, Some(q)) => to.fill(&mut tensor, &plane, &|v| q.signed(value(v))),
            (DType::F16, _) => to.fill(&mut tensor, &plane, &|v| f16::from_f32(value(v))),
            (DType::BF16, _) => to.fill(&mut tensor, &plane, &|v| bf16::from_f32(value(v))),
            _ => to.fill(&mut tensor, &plane, &value),
        }
    }
    Ok(Prepared { tensor, placement: cut.placement([new_height, new_width]) })
}

/// Where the elements of a channel lie in a tensor.
struct Channel {
    first: usize,
    step: usize,
}

impl Channel {
    /// Writes what `value` makes of a plane.
    fn fill<T: bytemuck::Pod>(&self, tensor: &mut Tensor, plane: &[f32], value: &dyn Fn(f32) -> T) {
        // Nobody shares what has just been made.
        let bytes = tensor.bytes_mut().unwrap_or_default();
        let elements = bytemuck::cast_slice_mut::<u8, T>(bytes);
        for (y, &v) in elements[self.first..].iter_mut().step_by(self.step).zip(plane) {
            *y = value(v);
        }
    }
}

/// Which part of a picture is scaled to which part of an input; rows first.
struct Cut {
    /// First and size of the part of the picture.
    from: [[usize; 2]; 2],
    /// First and size of the part of the input.
    to: [[usize; 2]; 2],
    /// What stands around it.
    around: f32,
}

impl Cut {
    fn new(fit: Fit, picture: [usize; 2], input: [usize; 2]) -> Self {
        let whole = |size: [usize; 2]| size.map(|n| [0, n]);
        let all = Self { from: whole(picture), to: whole(input), around: 0.0 };
        let [h, w] = picture.map(|n| n as f64);
        let [new_h, new_w] = input.map(|n| n as f64);
        let middle = |of: usize, part: f64| {
            let part = (part.round() as usize).clamp(1, of);
            [(of - part) / 2, part]
        };
        match fit {
            Fit::Stretch => all,
            Fit::Crop(share) => {
                // Picture pixels per input pixel.
                let step = (h / new_h).min(w / new_w) * f64::from(share);
                let from = [middle(picture[0], new_h * step), middle(picture[1], new_w * step)];
                Self { from, ..all }
            }
            Fit::Pad(around) => {
                let step = (h / new_h).max(w / new_w);
                let to = [middle(input[0], h / step), middle(input[1], w / step)];
                Self { to, around, ..all }
            }
        }
    }

    /// A plane of the input. `row` writes a part of a row of the picture: which row, and its first column.
    fn apply(
        &self,
        row: &dyn Fn(usize, usize, &mut [f32]),
        [rows, columns]: [usize; 2],
    ) -> Result<Vec<f32>, TensorError> {
        let [[top, height], [left, part]] = self.from;
        let [[first_row, new_height], [first_column, new_width]] = self.to;
        let row = |y: usize, line: &mut [f32]| row(top + y, left, line);
        let scaled = resize_rows(&row, [height, part], [new_height, new_width])?;
        if [new_height, new_width] == [rows, columns] {
            return Ok(scaled);
        }
        let mut out = reserved(rows * columns)?;
        out.resize(rows * columns, self.around);
        for (y, row) in scaled.chunks_exact(new_width).enumerate() {
            out[(first_row + y) * columns + first_column..][..new_width].copy_from_slice(row);
        }
        Ok(out)
    }

    fn placement(&self, [rows, columns]: [usize; 2]) -> Placement {
        let [y, x] = [0, 1].map(|i| {
            let scale = self.to[i][1] as f32 / self.from[i][1] as f32;
            (scale, self.to[i][0] as f32 - self.from[i][0] as f32 * scale)
        });
        Placement { size: [columns, rows], scale: [x.0, y.0], offset: [x.1, y.1] }
    }
}

/// Part of a row of one channel from column `from` on, composited over white; a colour picture is reduced to luma for
/// one channel, a grey one repeated for three.
fn row(
    picture: &Picture,
    y: usize,
    from: usize,
    [channels, channel]: [usize; 2],
    line: &mut [f32],
) {
    let pixels = picture.samples.chunks_exact(picture.channels);
    for (v, pixel) in line.iter_mut().zip(pixels.skip(y * picture.width + from)) {
        let sample = |i: usize| {
            let v = f32::from(pixel[i]);
            match pixel.get(3) {
                Some(&alpha) => 255.0 + (v - 255.0) * f32::from(alpha) / 255.0,
                None => v,
            }
        };
        *v = match (pixel.len(), channels) {
            (1, _) => sample(0),
            (_, 1) => 0.299 * sample(0) + 0.587 * sample(1) + 0.114 * sample(2),
            _ => sample(channel),
        };
    }
}

fn shape_text(dims: &[Option<usize>]) -> String {
    let text: Vec<String> =
        dims.iter().map(|d| d.map_or_else(|| "?".into(), |d| d.to_string())).collect();
    format!("[{}]", text.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rgb() -> Picture {
        Picture { width: 2, height: 1, channels: 3, samples: vec![0, 51, 255, 255, 102, 0] }
    }

    fn ready(
        picture: &Picture,
        dtype: DType,
        dims: &[Option<usize>],
        range: Option<[f32; 2]>,
    ) -> Result<Tensor, TaskError> {
        let how = Preparation { range, ..Preparation::default() };
        prepare(picture, dtype, dims, &how).map(|p| p.tensor)
    }

    #[test]
    fn channel_order_follows_the_shape() {
        let first = [None, Some(3), Some(1), Some(2)];
        let tensor = ready(&rgb(), DType::F32, &first, Some([0.0, 1.0])).unwrap();
        assert_eq!(tensor.as_slice::<f32>().unwrap()[..], [0.0, 1.0, 0.2, 0.4, 1.0, 0.0]);
        let last = [Some(1), None, None, Some(3)];
        let tensor = ready(&rgb(), DType::U8, &last, None).unwrap();
        assert_eq!((tensor.dims(), tensor.bytes()), (vec![1, 1, 2, 3], &rgb().samples[..]));
    }

    #[test]
    fn halves_are_rounded_samples() {
        let range = Some([0.0, 1.0]);
        let dims = [None, Some(3), None, None];
        let whole = ready(&rgb(), DType::F32, &dims, range).unwrap();
        let want: Vec<f32> = whole.as_slice::<f32>().unwrap().to_vec();
        let half = ready(&rgb(), DType::F16, &dims, range).unwrap();
        let rounded: Vec<f16> = want.iter().map(|v| f16::from_f32(*v)).collect();
        assert_eq!(half.as_slice::<f16>().unwrap()[..], rounded);
        let brain = ready(&rgb(), DType::BF16, &dims, range).unwrap();
        let rounded: Vec<bf16> = want.iter().map(|v| bf16::from_f32(*v)).collect();
        assert_eq!(brain.as_slice::<bf16>().unwrap()[..], rounded);
        assert!(ready(&rgb(), DType::F16, &dims, None).is_err());
    }

    #[test]
    fn grey_and_colour_convert() {
        let grey = Picture { width: 1, height: 1, channels: 1, samples: vec![128] };
        let tensor = ready(&grey, DType::U8, &[None, Some(3), Some(2), Some(2)], None).unwrap();
        assert_eq!(tensor.bytes(), [128; 12]);
        let tensor = ready(&rgb(), DType::U8, &[None, Some(1), None, None], None).unwrap();
        assert_eq!(tensor.bytes(), [59, 136]);
    }

    #[test]
    fn unclear_inputs_are_refused() {
        let range = Some([0.0, 1.0]);
        for dims in [
            &[Some(10)][..],
            &[Some(1), Some(3), Some(5), Some(3)],
            &[Some(2), Some(3), Some(5), Some(5)],
            &[None, None, None, None],
            &[None, Some(3), Some(0), Some(5)],
        ] {
            assert!(ready(&rgb(), DType::F32, dims, range).is_err(), "{dims:?}");
        }
        let nchw = [None, Some(3), None, None];
        assert!(ready(&rgb(), DType::F32, &nchw, None).is_err());
        assert!(ready(&rgb(), DType::I64, &nchw, range).is_err());
        let huge = [None, Some(3), Some(1 << 40), Some(1 << 40)];
        assert!(ready(&rgb(), DType::U8, &huge, None).is_err());
        assert_eq!(parse_range("-1..1.5"), Some([-1.0, 1.5]));
        assert_eq!(
            (parse_range("1"), parse_range("a..b"), parse_range("0..inf")),
            (None, None, None)
        );
    }

    #[test]
    fn pictures_are_cropped_and_padded_in_their_proportions() {
        // Columns 0 to 7 of a picture twice as wide as high.
        let samples: Vec<u8> = (0..32).map(|i| i % 8).collect();
        let wide = Picture { width: 8, height: 4, channels: 1, samples };
        let dims = [Some(1), Some(1), Some(4), Some(4)];
        let how = Preparation { fit: Fit::Crop(1.0), ..Preparation::with_range([0.0, 255.0]) };
        let cropped = prepare(&wide, DType::F32, &dims, &how).unwrap();
        assert_eq!(cropped.tensor.as_slice::<f32>().unwrap()[..4], [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(cropped.placement.offset, [-2.0, 0.0]);
        let how = Preparation { fit: Fit::Pad(9.0), ..how };
        let padded = prepare(&wide, DType::F32, &dims, &how).unwrap();
        let values = padded.tensor.as_slice::<f32>().unwrap().to_vec();
        assert_eq!((values[0], values[15]), (9.0, 9.0));
        assert!(values[4..12].iter().all(|v| *v < 8.0));
        let Placement { scale, offset, .. } = padded.placement;
        assert_eq!((scale, offset), ([0.5, 0.5], [0.0, 1.0]));
        // Half of the shorter side.
        let how = Preparation { fit: Fit::Crop(0.5), ..how };
        let dims = [Some(1), Some(1), Some(2), Some(2)];
        let middle = prepare(&wide, DType::F32, &dims, &how).unwrap();
        assert_eq!(middle.tensor.as_slice::<f32>().unwrap()[..], [3.0, 4.0, 3.0, 4.0]);
    }

    #[test]
    fn values_are_normalised_and_quantised() {
        let dims = [None, Some(3), Some(1), Some(2)];
        let how = Preparation {
            order: Order::Bgr,
            mean: [0.0, 0.2, 0.0],
            std: [1.0, 0.5, 1.0],
            ..Preparation::with_range([0.0, 1.0])
        };
        let tensor = prepare(&rgb(), DType::F32, &dims, &how).unwrap().tensor;
        let expected = [1.0, 0.0, 0.0, 0.4, 0.0, 1.0];
        for (found, expected) in tensor.as_slice::<f32>().unwrap().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        let quantization = Some(Quantization { scale: 1.0 / 255.0, zero_point: -128 });
        let how = Preparation { quantization, ..Preparation::with_range([0.0, 1.0]) };
        let tensor = prepare(&rgb(), DType::I8, &dims, &how).unwrap().tensor;
        assert_eq!(tensor.as_slice::<i8>().unwrap()[..], [-128, 127, -77, -26, 127, -128]);
        let unclear = Preparation::with_range([0.0, 1.0]);
        assert!(prepare(&rgb(), DType::I8, &dims, &unclear).is_err());
    }
}
