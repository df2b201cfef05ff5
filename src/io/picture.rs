//! PNG and JPEG pictures, decoded to grey or colour bytes.

use core::fmt;
use std::io::Cursor;

use image::codecs::png::PngDecoder;
use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageDecoder, ImageFormat, Limits, RgbImage};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::Picture;

/// Most pixels per side; anything larger is taken for a damaged or hostile header.
const MAX_SIDE: u32 = 32_768;

/// Most bytes a decoder may allocate.
const MAX_BYTES: u64 = 1 << 30;

/// Why bytes are not a readable picture.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PictureError {
    /// Neither a PNG nor a JPEG file.
    InvalidFormat,
    /// The file begins as the named format, but does not decode.
    InvalidData(String),
    /// Larger than the limits of this reader.
    UnsupportedSize(String),
}

impl fmt::Display for PictureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidFormat => f.write_str("neither a PNG nor a JPEG picture"),
            Self::InvalidData(why) => write!(f, "the picture does not decode: {why}"),
            Self::UnsupportedSize(why) => write!(
                f,
                "the picture is too large (at most {MAX_SIDE} pixels a side and {} MiB): {why}",
                MAX_BYTES >> 20
            ),
        }
    }
}

impl core::error::Error for PictureError {}

/// Decodes a PNG or JPEG file. The orientation that a camera noted in it is applied; samples of 16
/// bits are reduced to 8; one-bit and palette pictures are expanded.
///
/// # Errors
/// Every [`PictureError`]; sizes are checked before pixels are allocated.
pub fn read(bytes: &[u8]) -> Result<Picture, PictureError> {
    let (mut decoded, orientation) = match image::guess_format(bytes) {
        Ok(ImageFormat::Png) => png(bytes)?,
        Ok(ImageFormat::Jpeg) => jpeg(bytes)?,
        _ => return Err(PictureError::InvalidFormat),
    };
    decoded.apply_orientation(orientation);
    let (width, height) = (decoded.width() as usize, decoded.height() as usize);
    let alpha = decoded.color().has_alpha();
    let (channels, samples) = match (decoded.color().has_color(), alpha) {
        (false, false) => (1, decoded.into_luma8().into_raw()),
        (true, false) => (3, decoded.into_rgb8().into_raw()),
        (_, true) => (4, decoded.into_rgba8().into_raw()),
    };
    Ok(Picture { width, height, channels, samples })
}

fn png(bytes: &[u8]) -> Result<(DynamicImage, Orientation), PictureError> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_BYTES);
    let mut decoder = PngDecoder::with_limits(Cursor::new(bytes), limits).map_err(explain)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok((DynamicImage::from_decoder(decoder).map_err(explain)?, orientation))
}

/// By its decoder alone: `image` has it twice in a program, and reads the header three times.
fn jpeg(bytes: &[u8]) -> Result<(DynamicImage, Orientation), PictureError> {
    if !has_end(bytes) {
        return Err(PictureError::InvalidData("the JPEG file ends before its end marker".into()));
    }
    // Its own limits have no error of their own.
    let options = DecoderOptions::default().set_strict_mode(false);
    let options = options.set_max_width(usize::MAX).set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let explain = |error: DecodeErrors| PictureError::InvalidData(one_line(&error));
    decoder.decode_headers().map_err(explain)?;
    let none = || PictureError::InvalidData("a JPEG file without a size or colours".into());
    let (width, height) = decoder.dimensions().ok_or_else(none)?;
    let grey = decoder.input_colorspace().ok_or_else(none)? == ColorSpace::Luma;
    let bytes = width as u64 * height as u64 * if grey { 1 } else { 3 };
    if width.max(height) > MAX_SIDE as usize || bytes > MAX_BYTES {
        return Err(PictureError::UnsupportedSize(format!("{width} x {height} pixels")));
    }
    let colours = if grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(decoder.options().jpeg_set_out_colorspace(colours));
    let samples = decoder.decode().map_err(explain)?;
    let (width, height) = (width as u32, height as u32);
    let decoded = if grey {
        GrayImage::from_raw(width, height, samples).map(DynamicImage::ImageLuma8)
    } else {
        RgbImage::from_raw(width, height, samples).map(DynamicImage::ImageRgb8)
    };
    let orientation = decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif));
    Ok((decoded.ok_or_else(none)?, orientation.unwrap_or(Orientation::NoTransforms)))
}

/// Whether a JPEG file is there up to the marker that ends its picture: a decoder would fill what is
/// missing with grey. Markers within parts are those of other pictures; what is behind the end, such
/// as a film, is no part of it.
fn has_end(bytes: &[u8]) -> bool {
    const END: u8 = 0xd9;
    let mut rest = bytes;
    // Coded data have a 0 behind 0xff, or a marker of repeated beginnings; between parts, 0xff fills.
    let begins = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
    while let Some(at) = rest.windows(2).position(begins) {
        let (marker, behind) = (rest[at + 1], &rest[at + 2..]);
        let size = match (marker, behind) {
            (END, _) => return true,
            // Those of the beginning, and of nothing, stand alone.
            (0x01 | 0xd8, _) => 0,
            (_, [high, low, ..]) => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return false,
        };
        rest = behind.get(size..).unwrap_or_default();
    }
    false
}

/// Decoders put line breaks into some messages; a report is one line.
fn one_line(error: &impl fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn explain(error: image::ImageError) -> PictureError {
    let text = one_line(&error);
    match error {
        image::ImageError::Limits(_) => PictureError::UnsupportedSize(text),
        _ => PictureError::InvalidData(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(color: image::ExtendedColorType, width: u32, height: u32, samples: &[u8]) -> Vec<u8> {
        use image::ImageEncoder;
        let mut out = Vec::new();
        image::codecs::png::PngEncoder::new(&mut out)
            .write_image(samples, width, height, color)
            .unwrap();
        out
    }

    #[test]
    fn grey_colour_and_alpha_keep_their_samples() {
        use image::ExtendedColorType::{L8, La8, Rgb8, Rgba8};
        for (color, channels) in [(L8, 1), (Rgb8, 3), (Rgba8, 4)] {
            let samples: Vec<u8> = (0..2 * 3 * channels as u8).map(|i| i * 9).collect();
            let picture = read(&png(color, 3, 2, &samples)).unwrap();
            assert_eq!(picture, Picture { width: 3, height: 2, channels, samples });
        }
        let picture = read(&png(La8, 1, 1, &[7, 100])).unwrap();
        assert_eq!((picture.channels, picture.samples), (4, vec![7, 7, 7, 100]));
    }

    #[test]
    fn what_is_no_picture_is_an_error() {
        assert_eq!(read(b"").unwrap_err(), PictureError::InvalidFormat);
        assert_eq!(read(b"GIF89a\x01\x00\x01\x00").unwrap_err(), PictureError::InvalidFormat);
        let good = png(image::ExtendedColorType::L8, 8, 8, &[5; 64]);
        for end in 8..good.len() - 12 {
            assert!(read(&good[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn jpeg_files_are_whole_or_refused() {
        let mut good = Vec::new();
        let samples: Vec<u8> = (0..64 * 48 * 3u32).map(|i| (i * i / 7) as u8).collect();
        image::codecs::jpeg::JpegEncoder::new(&mut good)
            .encode(&samples, 64, 48, image::ExtendedColorType::Rgb8)
            .unwrap();
        // A small picture within a part, as cameras add it, and something behind the end.
        let size = (good.len() as u16 + 2).to_be_bytes();
        let thumbnail = [&[0xff, 0xe5], &size[..], &good].concat();
        let camera = [&good[..2], &thumbnail, &good[2..], b"film \xff\xda"].concat();
        assert_eq!(read(&camera).unwrap(), read(&good).unwrap());
        for end in [good.len() - 1, good.len() - 2, good.len() / 2, 20] {
            for whole in [&good, &camera] {
                let cut = &whole[..whole.len() - if whole.len() > good.len() { 7 } else { 0 }];
                let cut = &cut[..cut.len() - (good.len() - end)];
                let error = read(cut).unwrap_err().to_string();
                assert!(error.contains("end marker"), "cut at {end}: {error}");
            }
        }
    }

    #[test]
    fn a_huge_header_is_refused_before_allocation() {
        let mut bad = png(image::ExtendedColorType::L8, 1, 1, &[5]);
        bad[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        // The header's checksum is over its type and data.
        let crc = crc32(&bad[12..29]);
        bad[29..33].copy_from_slice(&crc.to_be_bytes());
        assert!(matches!(read(&bad).unwrap_err(), PictureError::UnsupportedSize(_)));
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, &b| {
            (0..8).fold(crc ^ u32::from(b), |c, _| {
                (c >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(c & 1))
            })
        })
    }
}
