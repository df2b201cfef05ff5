//! Detections drawn on a picture.

use core::convert::Infallible;
use std::io::Cursor;
use std::path::Path;

use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::iso_8859_1::{FONT_6X10, FONT_10X20};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{Circle, Line, PrimitiveStyle, Rectangle};
use embedded_graphics::text::{Baseline, Text};
use image::{ImageFormat, RgbImage};
use tilewright::io::Picture;
use tilewright::task::detect::Detection;
use tilewright::task::outline::Mask;

use super::Failure;
use super::output::Pending;

/// Colours of classes (Okabe and Ito's, which colour-blind people can tell apart).
const COLOURS: [[u8; 3]; 7] = [
    [230, 159, 0],
    [86, 180, 233],
    [0, 158, 115],
    [240, 228, 66],
    [0, 114, 178],
    [213, 94, 0],
    [204, 121, 167],
];

/// Pictures with a shorter side below this many pixels get thin lines and small letters.
const SMALL: u32 = 480;

/// Key points with a lower score are not drawn.
const SURE: f32 = 0.25;

/// The picture with a box and a label for each detection, as a PNG file to be.
pub(super) fn write(
    path: &Path,
    picture: &Picture,
    found: &[Detection],
) -> Result<Pending, Failure> {
    let image = draw(picture, found)?;
    let mut bytes = Cursor::new(Vec::new());
    image
        .write_to(&mut bytes, ImageFormat::Png)
        .map_err(|e| Failure::new(format!("cannot encode {}", path.display()), e))?;
    Pending::new(path, bytes.get_ref())
}

fn draw(picture: &Picture, found: &[Detection]) -> Result<RgbImage, Failure> {
    let samples = picture.samples.chunks_exact(picture.channels).flat_map(|pixel| match *pixel {
        [grey] => [grey; 3],
        [r, g, b, alpha] => [r, g, b].map(|v| {
            // Over white, as the network sees it.
            (255 - (255 - u32::from(v)) * u32::from(alpha) / 255) as u8
        }),
        _ => [pixel[0], pixel[1], pixel[2]],
    });
    let [width, height] = [picture.width, picture.height].map(|n| n as u32);
    let image = RgbImage::from_raw(width, height, samples.collect());
    let mut canvas = Canvas(image.ok_or(Failure("the picture has no pixels".into()))?);
    let small = width.min(height) < SMALL;
    let (line, font) = if small { (1, &FONT_6X10) } else { (3, &FONT_10X20) };
    for Detection { class, label, score, edges, corners, keypoints, mask } in found {
        let colour = COLOURS[class % COLOURS.len()];
        for [x, y] in mask.iter().flat_map(Mask::pixels) {
            if let Some(pixel) = canvas.0.get_pixel_mut_checked(x as u32, y as u32) {
                pixel.0 = core::array::from_fn(|i| pixel.0[i].midpoint(colour[i]));
            }
        }
        let [r, g, b] = colour;
        let colour = Rgb888::new(r, g, b);
        let [left, top, right, bottom] = *edges;
        let upright = [[left, top], [right, top], [right, bottom], [left, bottom]];
        let [left, top] = [left, top].map(pixel);
        let text = format!("{label} {score:.2}");
        let size = Size::new(
            font.character_size.width * text.chars().count() as u32,
            font.character_size.height,
        );
        // Above the box where there is room, else inside it.
        let above = top - size.height as i32;
        let at = Point::new(left, if above >= 0 { above } else { top });
        let stroke = PrimitiveStyle::with_stroke(colour, line);
        let point = |x: f32, y: f32| Point::new(pixel(x), pixel(y));
        let corners = if corners.is_empty() { &upright[..] } else { corners };
        for (i, &[x, y]) in corners.iter().enumerate() {
            let [next_x, next_y] = corners[(i + 1) % corners.len()];
            let side = Line::new(point(x, y), point(next_x, next_y));
            let Ok(()) = side.into_styled(stroke).draw(&mut canvas);
        }
        for &[x, y, _] in keypoints.iter().filter(|[.., score]| *score >= SURE) {
            let dot = Circle::with_center(point(x, y), 2 * line + 1);
            let Ok(()) = dot.into_styled(PrimitiveStyle::with_fill(colour)).draw(&mut canvas);
        }
        let Ok(()) = Rectangle::new(at, size)
            .into_styled(PrimitiveStyle::with_fill(colour))
            .draw(&mut canvas);
        let style = MonoTextStyle::new(font, Rgb888::BLACK);
        let Ok(_) = Text::with_baseline(&text, at, style, Baseline::Top).draw(&mut canvas);
    }
    Ok(canvas.0)
}

/// A place that can be drawn at, however far outside it is.
fn pixel(at: f32) -> i32 {
    at.round().clamp(-1e5, 1e5) as i32
}

/// A picture to draw on.
struct Canvas(RgbImage);

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.0.width(), self.0.height())
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(
        &mut self,
        pixels: I,
    ) -> Result<(), Infallible> {
        for Pixel(at, colour) in pixels {
            let place = u32::try_from(at.x).ok().zip(u32::try_from(at.y).ok());
            if let Some(pixel) = place.and_then(|(x, y)| self.0.get_pixel_mut_checked(x, y)) {
                pixel.0 = [colour.r(), colour.g(), colour.b()];
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detection(class: usize, edges: [f32; 4]) -> Detection {
        Detection {
            class,
            label: "cat".into(),
            score: 0.5,
            edges,
            corners: Vec::new(),
            keypoints: Vec::new(),
            mask: None,
        }
    }

    #[test]
    fn boxes_are_drawn_and_cut_off() {
        let picture = Picture { width: 40, height: 30, channels: 1, samples: vec![100; 1200] };
        let image = draw(&picture, &[detection(1, [5.0, 12.0, 60.0, 25.0])]).unwrap();
        assert_eq!(image.get_pixel(5, 20).0, COLOURS[1]);
        assert_eq!(image.get_pixel(20, 25).0, COLOURS[1]);
        assert_eq!(image.get_pixel(20, 20).0, [100; 3]);
        assert_eq!(image.get_pixel(2, 28).0, [100; 3]);
    }

    #[test]
    fn turned_boxes_points_and_masks_are_drawn() {
        let picture = Picture { width: 40, height: 40, channels: 1, samples: vec![100; 1600] };
        let turned = Detection {
            corners: vec![[20.0, 20.0], [35.0, 35.0], [20.0, 50.0], [5.0, 35.0]],
            keypoints: vec![[20.0, 30.0, 0.9], [24.0, 30.0, 0.1], [f32::NAN, 1e30, 0.9]],
            ..detection(2, [5.0, 20.0, 35.0, 40.0])
        };
        let image = draw(&picture, &[turned]).unwrap();
        assert_eq!(image.get_pixel(30, 30).0, COLOURS[2]);
        assert_eq!(image.get_pixel(20, 30).0, COLOURS[2]);
        assert_eq!(image.get_pixel(24, 30).0, [100; 3]);
        assert_eq!(image.get_pixel(5, 38).0, [100; 3]);
        // The pixel of the column 1 and the row 35.
        let mask = Mask { size: [40, 40], runs: vec![75, 1, 1524] };
        let masked = Detection { mask: Some(mask), ..detection(0, [1.0, 10.0, 30.0, 39.0]) };
        let image =
            draw(&picture, &[Detection { edges: [9.0, 9.0, 30.0, 39.0], ..masked }]).unwrap();
        let [r, g, b] = COLOURS[0].map(|v| v.midpoint(100));
        assert_eq!(image.get_pixel(1, 35).0, [r, g, b]);
        assert_eq!(image.get_pixel(2, 35).0, [100; 3]);
    }
}
