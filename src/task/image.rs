//! From any picture to the input of an image network.
//!
//! A picture fits an input of rank 4, f32 or u8, that has an axis of 1 or 3 channels, either
//! second (`[n, c, h, w]`) or last (`[n, h, w, c]`), and takes one picture. Its other two axes,
//! where they are fixed, say the size to which the picture is resized (the whole picture, without
//! keeping its proportions). Samples go to a u8 input as they are; for f32 somebody has to say
//! which values 0 and 255 become, because networks differ in that.

use super::TaskError;
use super::resample::resize;
use crate::io::Picture;
use crate::tensor::{DType, Tensor};

/// Most rows or columns of an input.
const MAX_SIDE: usize = 1 << 15;

/// `LOW..HIGH` as two finite numbers.
pub fn parse_range(text: &str) -> Option<[f32; 2]> {
    let (low, high) = text.split_once("..")?;
    let number = |s: &str| s.trim().parse::<f32>().ok().filter(|v| v.is_finite());
    Some([number(low)?, number(high)?])
}

/// The picture as an input of `dims` (`None` where any extent will do) and `dtype`.
///
/// # Errors
/// [`TaskError::UnsupportedInput`] if it is not clear how the picture fits, or the input is larger
/// than 32768 pixels a side; [`TaskError::Tensor`] if there is no memory for it.
pub fn prepare(
    picture: &Picture,
    dtype: DType,
    dims: &[Option<usize>],
    range: Option<[f32; 2]>,
) -> Result<Tensor, TaskError> {
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
    let [low, high] = match (dtype, range) {
        (DType::U8, _) => [0.0, 255.0],
        (DType::F32, Some(range)) => range,
        (DType::F32, None) => {
            return refuse(
                "the model does not say which values the samples of a picture become; \
                 add --pixel-range LOW..HIGH (often 0..1 or 0..255), or give the input as a .npy \
                 file"
                    .into(),
            );
        }
        (other, _) => {
            return refuse(format!(
                "a picture does not fit an input of type {other}; give the input as a .npy file"
            ));
        }
    };
    let (height, width) = (picture.height, picture.width);
    let (new_height, new_width) = (rows.unwrap_or(height), columns.unwrap_or(width));
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
    let planes: Vec<Vec<f32>> = (0..channels)
        .map(|c| resize(&plane(picture, channels, c), [height, width], [new_height, new_width]))
        .collect();
    let area = new_height * new_width;
    let value = |i: usize| {
        let (c, at) =
            if channels_last { (i % channels, i / channels) } else { (i / area, i % area) };
        planes[c][at]
    };
    let values = (0..channels * area).map(value);
    Ok(if dtype == DType::U8 {
        let bytes: Vec<u8> = values.map(|v| (v + 0.5) as u8).collect();
        Tensor::from_slice(&shape, &bytes)?
    } else {
        let floats: Vec<f32> = values.map(|v| low + v * (high - low) / 255.0).collect();
        Tensor::from_slice(&shape, &floats)?
    })
}

/// One channel, composited over white; a colour picture is reduced to luma for one channel, a grey
/// one repeated for three.
fn plane(picture: &Picture, channels: usize, channel: usize) -> Vec<f32> {
    picture
        .samples
        .chunks_exact(picture.channels)
        .map(|pixel| {
            let sample = |i: usize| {
                let v = f32::from(pixel[i]);
                match pixel.get(3) {
                    Some(&alpha) => 255.0 + (v - 255.0) * f32::from(alpha) / 255.0,
                    None => v,
                }
            };
            match (pixel.len(), channels) {
                (1, _) => sample(0),
                (_, 1) => 0.299 * sample(0) + 0.587 * sample(1) + 0.114 * sample(2),
                _ => sample(channel),
            }
        })
        .collect()
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

    #[test]
    fn channel_order_follows_the_shape() {
        let first = [None, Some(3), Some(1), Some(2)];
        let tensor = prepare(&rgb(), DType::F32, &first, Some([0.0, 1.0])).unwrap();
        assert_eq!(tensor.as_slice::<f32>().unwrap()[..], [0.0, 1.0, 0.2, 0.4, 1.0, 0.0]);
        let last = [Some(1), None, None, Some(3)];
        let tensor = prepare(&rgb(), DType::U8, &last, None).unwrap();
        assert_eq!((tensor.dims(), tensor.bytes()), (vec![1, 1, 2, 3], &rgb().samples[..]));
    }

    #[test]
    fn grey_and_colour_convert() {
        let grey = Picture { width: 1, height: 1, channels: 1, samples: vec![128] };
        let tensor = prepare(&grey, DType::U8, &[None, Some(3), Some(2), Some(2)], None).unwrap();
        assert_eq!(tensor.bytes(), [128; 12]);
        let tensor = prepare(&rgb(), DType::U8, &[None, Some(1), None, None], None).unwrap();
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
            assert!(prepare(&rgb(), DType::F32, dims, range).is_err(), "{dims:?}");
        }
        let nchw = [None, Some(3), None, None];
        assert!(prepare(&rgb(), DType::F32, &nchw, None).is_err());
        assert!(prepare(&rgb(), DType::I64, &nchw, range).is_err());
        let huge = [None, Some(3), Some(1 << 40), Some(1 << 40)];
        assert!(prepare(&rgb(), DType::U8, &huge, None).is_err());
        assert_eq!(parse_range("-1..1.5"), Some([-1.0, 1.5]));
        assert_eq!(
            (parse_range("1"), parse_range("a..b"), parse_range("0..inf")),
            (None, None, None)
        );
    }
}
