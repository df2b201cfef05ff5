//! Tests of the preparation of line pictures.

use super::line_image::prepare;
use crate::io::Picture;

fn grey(width: usize, height: usize, at: impl Fn(usize, usize) -> u8) -> Picture {
    let samples = (0..height * width).map(|i| at(i % width, i / width)).collect();
    Picture { width, height, channels: 1, samples }
}

/// Bars of ink, 4 of 10 columns wide, in rows 20 to 40 of 60.
fn bars(paper: u8, ink: u8) -> Picture {
    grey(200, 60, |x, y| {
        if (20..40).contains(&y) && (20..180).contains(&x) && x % 10 < 4 { ink } else { paper }
    })
}

#[test]
fn dark_on_light_and_light_on_dark_are_the_same() {
    let line = prepare(&bars(240, 10), 32);
    assert_eq!(line, prepare(&bars(10, 240), 32));
    assert_eq!((line.height, line.width % 4), (32, 0));
    assert!(line.values.iter().all(|v| (0.0..=1.0).contains(v)));
    assert!(line.values.iter().any(|v| *v > 0.99));
    // 20 rows of ink with a margin of one row on each side; 154 columns, 5 more on each side.
    assert_eq!(line.width, ((164 * 32 + 11) / 22 + 16usize).next_multiple_of(4));
}

#[test]
fn a_sheet_without_text_is_a_blank_line() {
    for picture in [grey(50, 40, |_, _| 200), grey(1, 1, |_, _| 0), grey(0, 0, |_, _| 0)] {
        let line = prepare(&picture, 32);
        assert_eq!((line.width, line.values), (32, vec![0.0; 32 * 32]));
    }
}

#[test]
fn colour_is_projected_and_alpha_is_white() {
    let plain = bars(255, 0);
    let coloured = |channels: usize, paper: &[u8], ink: &[u8]| Picture {
        channels,
        samples: plain
            .samples
            .iter()
            .flat_map(|&g| if g == 255 { paper.to_vec() } else { ink.to_vec() })
            .collect(),
        ..plain.clone()
    };
    let line = prepare(&plain, 32);
    // Red on a green of the same luma, and transparent paper under black ink.
    assert_eq!(prepare(&coloured(3, &[0, 102, 0], &[200, 0, 0]), 32), line);
    assert_eq!(prepare(&coloured(4, &[0, 0, 0, 0], &[0, 0, 0, 255]), 32), line);
    assert_eq!(prepare(&coloured(3, &[9, 9, 9], &[99, 99, 99]), 32), line);
}

#[test]
fn a_sloping_line_is_levelled() {
    let sloping = grey(400, 90, |x, y| {
        let y = y as i64 - (x as i64 * 6) / 128;
        if (20..40).contains(&y) && (20..380).contains(&x) && x % 10 < 4 { 0 } else { 255 }
    });
    let line = prepare(&sloping, 32);
    // Level, the box is 20 to 22 rows high: about 1.4 columns per source column.
    assert!((480..=580).contains(&line.width), "width {}", line.width);
}

#[test]
fn odd_sizes_do_not_panic() {
    for width in 1..20 {
        for height in 1..20 {
            let picture = grey(width, height, |x, y| ((x * 37 + y * 91) % 256) as u8);
            let line = prepare(&picture, 32);
            assert_eq!(line.values.len(), line.height * line.width);
        }
    }
}
