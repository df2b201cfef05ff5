//! From a picture of one line of text to the input of a line reader.
//!
//! The steps are those of `models/textline/prepare.py`, which prepares the training data:
//!
//! 1. Alpha is composited over white.
//! 2. A coloured picture is projected on the principal axis of its colour edges.
//! 3. Paper and ink levels are taken from the histogram; their order gives the polarity. When that
//!    looks like no text, the picture is split in two classes, and its rim decides which is paper.
//! 4. A paper level that drifts along or across the line is evened out, once for dark and once for
//!    light ink, where that gathers the paper's pixels.
//! 5. The shear that packs the rows of ink best levels a sloping line.
//! 6. The box of the text line is cut out, without bits of neighbouring lines.
//! 7. The levels are measured again inside the box.
//! 8. The box and a margin are resized to the network's height.

use super::resample::resize;
use crate::io::Picture;

/// Columns of paper added on the left and on the right.
const SIDE: usize = 8;

/// Widest resized line, before the sides are added.
const MAX_WIDTH: usize = 4096;

/// Steepest slope that is corrected, in 1/128 row per column.
const MAX_SLOPE: i64 = 10;

/// A prepared line: ink is 1, paper is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Rows: the height that was asked for.
    pub height: usize,
    /// Columns: a multiple of four.
    pub width: usize,
    /// `height * width` values from 0 to 1, rows from the top.
    pub values: Vec<f32>,
}

/// The line of text in `picture` at `height` rows. A picture without visible text gives a short
/// blank line.
///
/// # Panics
/// If `height` is zero, or the picture's samples do not fill its size.
pub fn prepare(picture: &Picture, height: usize) -> Line {
    assert!(height > 0, "a line has rows");
    assert_eq!(
        picture.samples.len(),
        picture.width * picture.height * picture.channels,
        "the samples fill the picture"
    );
    cut_out(picture, height).unwrap_or_else(|| {
        let width = 2 * SIDE + 16;
        Line { height, width, values: vec![0.0; height * width] }
    })
}

/// A plane of bytes, rows from the top.
struct Grey {
    width: usize,
    height: usize,
    at: Vec<u8>,
}

/// Paper and ink levels, 0 to 255.
#[derive(Clone, Copy)]
struct Levels {
    paper: i32,
    ink: i32,
}

impl Levels {
    /// At least `twentieths` of 20 parts of the way from paper to ink.
    fn reaches(self, grey: u8, twentieths: i32) -> bool {
        let sign = if self.ink < self.paper { 1 } else { -1 };
        20 * sign * (self.paper - i32::from(grey)) >= twentieths * sign * (self.paper - self.ink)
    }

    fn is_ink(self, grey: u8) -> bool {
        self.reaches(grey, 10)
    }

    fn mask(self, grey: &Grey, twentieths: i32) -> Mask {
        let at = grey.at.iter().map(|&g| self.reaches(g, twentieths)).collect();
        Mask { width: grey.width, height: grey.height, at }
    }

    fn contrast(self) -> i32 {
        (self.ink - self.paper).abs()
    }
}

/// Pixels of ink.
struct Mask {
    width: usize,
    height: usize,
    at: Vec<bool>,
}

/// Rows and columns of the picture, ends exclusive; may reach beyond it after margins are added.
struct Area {
    top: i64,
    bottom: i64,
    left: i64,
    right: i64,
}

fn cut_out(picture: &Picture, height: usize) -> Option<Line> {
    let grey = to_grey(picture);
    if grey.at.is_empty() {
        return None;
    }
    let (grey, levels) = match flattened(&grey) {
        Some(flat) => flat,
        None => {
            let levels = ink_levels(&grey)?;
            (grey, levels)
        }
    };
    let slope = find_slope(&levels.mask(&grey, 10).despeckled());
    let grey = shear(grey, slope, levels.paper);
    let area = levels.mask(&grey, 7).despeckled().text_box()?;
    let levels = box_levels(&grey, &area, levels);
    Some(scale(&grey, with_margins(area), levels, height))
}

fn to_grey(picture: &Picture) -> Grey {
    let (width, height) = (picture.width, picture.height);
    let at = match picture.channels {
        1 => picture.samples.clone(),
        channels => {
            let rgb: Vec<[u8; 3]> = picture
                .samples
                .chunks_exact(channels)
                .map(|p| if channels == 4 { over_white(p) } else { [p[0], p[1], p[2]] })
                .collect();
            if rgb.iter().all(|[r, g, b]| r == g && g == b) {
                rgb.iter().map(|p| p[0]).collect()
            } else {
                project(&rgb, width)
            }
        }
    };
    Grey { width, height, at }
}

fn over_white(pixel: &[u8]) -> [u8; 3] {
    let alpha = u32::from(pixel[3]);
    // A weighted mean of two bytes is a byte.
    [0, 1, 2].map(|i| ((u32::from(pixel[i]) * alpha + 255 * (255 - alpha) + 127) / 255) as u8)
}

/// Projection on the principal axis of the colour edges, stretched to 0..=255.
///
/// Edges are the differences of neighbouring pixels in a row: light and shade drift and JPEG blurs
/// colours, but the letters' edges stay.
fn project(rgb: &[[u8; 3]], width: usize) -> Vec<u8> {
    const LUMA: [f64; 3] = [0.299, 0.587, 0.114];
    let pairs = || rgb.chunks_exact(width).flat_map(|row| row.windows(2));
    let count = pairs().count().max(1) as f64;
    let mut covariance = [[0f64; 3]; 3];
    for pair in pairs() {
        let d: [f64; 3] = core::array::from_fn(|i| f64::from(pair[1][i]) - f64::from(pair[0][i]));
        for i in 0..3 {
            (0..3).for_each(|j| covariance[i][j] += d[i] * d[j]);
        }
    }
    let dot = |a: [f64; 3], b: [f64; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
    let mut axis = LUMA;
    for _ in 0..16 {
        let product = covariance.map(|row| dot(row.map(|c| c / count), axis));
        let norm = dot(product, product).sqrt();
        if norm < 1e-6 {
            axis = LUMA;
            break;
        }
        axis = product.map(|p| p / norm);
    }
    let values = || rgb.iter().map(|p| dot(p.map(f64::from), axis));
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    if high - low < 1e-6 {
        return vec![0; rgb.len()];
    }
    let factor = 255.0 / (high - low);
    values().map(|v| ((v - low) * factor + 0.5).floor() as u8).collect()
}

/// Smallest level whose cumulative count exceeds `share` of 100000 of all.
fn percentile(histogram: &[u64], share: u64) -> i32 {
    let limit = histogram.iter().sum::<u64>() * share / 100_000;
    let mut sum = 0;
    let level = histogram.iter().position(|&count| {
        sum += count;
        sum > limit
    });
    level.unwrap_or(histogram.len()) as i32
}

fn histogram(levels: impl Iterator<Item = u8>) -> [u64; 256] {
    let mut counts = [0; 256];
    levels.for_each(|l| counts[usize::from(l)] += 1);
    counts
}

/// Levels of the whole picture, or `None` when it is blank.
fn ink_levels(grey: &Grey) -> Option<Levels> {
    let counts = histogram(grey.at.iter().copied());
    let paper = percentile(&counts, 50_000);
    let farther = |tail: u64| {
        let (low, high) = (percentile(&counts, tail), percentile(&counts, 100_000 - tail));
        Levels { paper, ink: if paper - low >= high - paper { low } else { high } }
    };
    // At least half of the mask's pixels outlive the removal of lone ones.
    let hangs_together = |levels: Levels| {
        let mask = levels.mask(grey, 10);
        2 * mask.despeckled().count() >= mask.count()
    };
    let (mut levels, extreme) = (farther(500), farther(50));
    if 2 * levels.contrast() < extreme.contrast() && hangs_together(extreme) {
        // A small line on a large sheet: less than 0.5 % is ink.
        levels = extreme;
    } else if !hangs_together(levels) {
        // Salt noise stronger than the ink: the first larger tail that looks like strokes.
        let strokes =
            [2000, 5000].map(farther).into_iter().find(|l| l.ink != paper && hangs_together(*l));
        levels = strokes.unwrap_or(levels);
    }
    if levels.contrast() < 6 {
        return None;
    }
    // Letters cut close may cover so much that the median is theirs or a grey between.
    let near = levels.contrast() / 8;
    let around = (paper - near).max(0) as usize..(paper + near + 1).min(256) as usize;
    let around: u64 = counts[around].iter().sum();
    let pixels = grey.at.len();
    if 20 * levels.mask(grey, 10).count() > 7 * pixels || 10 * around < 3 * pixels as u64 {
        levels = two_classes(grey, &counts);
    }
    (levels.contrast() >= 6).then_some(levels)
}

/// The medians of the two classes that Otsu's threshold makes.
///
/// Paper is the class with the larger mean of five shares: those of the picture and of its four
/// sides. (A side cut through the letters must not decide alone.)
fn two_classes(grey: &Grey, counts: &[u64; 256]) -> Levels {
    let total: u64 = counts.iter().sum();
    let weight: u64 = counts.iter().zip(0..).map(|(count, level)| count * level).sum();
    let (mut below, mut weight_below) = (0, 0);
    let (mut threshold, mut widest) = (0, -1.0);
    for (level, &count) in counts.iter().enumerate() {
        below += count;
        weight_below += count * level as u64;
        if below == 0 || below == total {
            continue;
        }
        let apart = i128::from(weight) * i128::from(below);
        let apart = apart - i128::from(weight_below) * i128::from(total);
        let apart = apart as f64 / total as f64;
        let spread = apart * apart / (below * (total - below)) as f64;
        if spread > widest {
            (threshold, widest) = (level, spread);
        }
    }
    let is_dark = |g: &u8| usize::from(*g) <= threshold;
    let share = |pixels: &mut dyn Iterator<Item = &u8>| {
        let (mut dark, mut all) = (0u64, 0u64);
        for g in pixels {
            dark += u64::from(is_dark(g));
            all += 1;
        }
        dark as f64 / all as f64
    };
    let (width, end) = (grey.width, grey.at.len());
    let shares = share(&mut grey.at.iter())
        + share(&mut grey.at[..width].iter())
        + share(&mut grey.at[end - width..].iter())
        + share(&mut grey.at.iter().step_by(width))
        + share(&mut grey.at[width - 1..].iter().step_by(width));
    let (dark, light) = counts.split_at(threshold + 1);
    let dark = percentile(dark, 50_000);
    let light = percentile(light, 50_000) + threshold as i32 + 1;
    if shares > 2.5 {
        Levels { paper: dark, ink: light }
    } else {
        Levels { paper: light, ink: dark }
    }
}

/// The picture with an even paper level and its levels, or `None` when evening out gains nothing.
///
/// It gains when more pixels lie within an eighth of the contrast of paper than lie in any such
/// range of the picture as it is.
fn flattened(grey: &Grey) -> Option<(Grey, Levels)> {
    let counts = histogram(grey.at.iter().copied());
    let mut best = None;
    let mut most = 0;
    for dark in [true, false] {
        let Some(even) = evened(grey, dark) else { continue };
        let flat = Grey { at: even.iter().map(|v| (*v).clamp(0, 255) as u8).collect(), ..*grey };
        let levels = ink_levels(&flat).filter(|l| (l.ink < l.paper) == dark);
        let Some(levels) = levels else { continue };
        let near = (levels.contrast() / 8).max(2);
        // What was clipped is not gathered.
        let gathered = even.iter().filter(|v| (*v - levels.paper).abs() <= near).count() as u64;
        let ranges = counts.windows(2 * near as usize + 1);
        let before = ranges.map(|range| range.iter().sum::<u64>()).max().unwrap_or(0);
        if gathered > most.max(before) {
            (best, most) = (Some((flat, levels)), gathered);
        }
    }
    best
}

/// The picture less the drift of its paper, not clipped; `None` when it hardly drifts.
///
/// The paper of a part of the picture is the level that 65 % of its pixels, from the ink's side, do
/// not exceed. Along x it is taken in blocks of columns and interpolated linearly between their
/// centres; across, it is a ramp through the centres of the top and the bottom sixth. All paper
/// comes to the level farthest from the ink, so that no ink is clipped.
fn evened(grey: &Grey, dark: bool) -> Option<Vec<i32>> {
    let share = if dark { 65_000 } else { 35_000 };
    let along = drift_along(grey, share);
    let across = drift_across(grey, &along, share);
    let lowest = |drift: &[f64]| drift.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = |drift: &[f64]| drift.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if (highest(&along) - lowest(&along)) + (highest(&across) - lowest(&across)) < 4.0 {
        return None;
    }
    let paper =
        if dark { highest(&along) + highest(&across) } else { lowest(&along) + lowest(&across) };
    let paper = paper.clamp(0.0, 255.0);
    let rows = grey.at.chunks_exact(grey.width).zip(&across);
    let even = rows.flat_map(|(row, across)| {
        let pixels = row.iter().zip(&along);
        pixels
            .map(move |(g, along)| (f64::from(*g) - (along + across) + paper + 0.5).floor() as i32)
    });
    Some(even.collect())
}

/// The level, -255 to 255, that `share` of 100000 of all do not exceed.
fn level_of(levels: impl Iterator<Item = i32>, share: u64) -> i32 {
    let mut counts = [0; 511];
    levels.for_each(|l| counts[(l + 255) as usize] += 1);
    percentile(&counts, share) - 255
}

/// The paper of each column: that of blocks half as wide as the picture is high.
fn drift_along(grey: &Grey, share: u64) -> Vec<f64> {
    let (width, height) = (grey.width, grey.height);
    let count = (2 * width / height.max(16)).max((width / 16).min(6)).max(1);
    let edge = |i: usize| i * width / count;
    let rows = || grey.at.chunks_exact(width);
    let papers: Vec<i32> = (0..count)
        .map(|i| {
            level_of(rows().flat_map(|r| &r[edge(i)..edge(i + 1)]).map(|g| (*g).into()), share)
        })
        .collect();
    let centre = |i: usize| (edge(i) + edge(i + 1)) as f64 / 2.0;
    let paper_at = |x: f64| match (0..count).rfind(|&i| centre(i) <= x) {
        None => f64::from(papers[0]),
        Some(i) if i + 1 == count => f64::from(papers[i]),
        Some(i) => {
            let rise = f64::from(papers[i + 1] - papers[i]) / (centre(i + 1) - centre(i));
            rise * (x - centre(i)) + f64::from(papers[i])
        }
    };
    (0..width).map(|x| paper_at(x as f64 + 0.5)).collect()
}

/// The paper of each row above that of its columns.
fn drift_across(grey: &Grey, along: &[f64], share: u64) -> Vec<f64> {
    let (width, height) = (grey.width, grey.height);
    let sixth = height / 6;
    if height < 12 {
        return vec![0.0; height];
    }
    let rest = |pixels: &[u8]| {
        let rows = pixels.chunks_exact(width).flat_map(|row| row.iter().zip(along));
        level_of(rows.map(|(g, along)| (f64::from(*g) - along + 0.5).floor() as i32), share)
    };
    let (top, bottom) =
        (rest(&grey.at[..sixth * width]), rest(&grey.at[(height - sixth) * width..]));
    // 0 at the centre of the top sixth, 1 at that of the bottom one.
    let at = |y: usize| (y as f64 + 0.5 - sixth as f64 / 2.0) / (height - sixth) as f64;
    (0..height).map(|y| f64::from(top) + f64::from(bottom - top) * at(y)).collect()
}

impl Mask {
    fn count(&self) -> usize {
        self.at.iter().filter(|m| **m).count()
    }

    /// The pixels with at least two of eight neighbours set.
    fn despeckled(&self) -> Self {
        let (width, height) = (self.width, self.height);
        let row = |y: usize| &self.at[y * width..][..width];
        let mut at = vec![false; self.at.len()];
        for y in 0..height {
            let near = y.saturating_sub(1)..(y + 2).min(height);
            for x in (0..width).filter(|&x| row(y)[x]) {
                let span = x.saturating_sub(1)..(x + 2).min(width);
                let around: usize =
                    near.clone().map(|v| row(v)[span.clone()].iter().filter(|m| **m).count()).sum();
                at[y * width + x] = around >= 3;
            }
        }
        Self { width, height, at }
    }

    /// Rows of the main line of text, and the columns in which these rows have ink.
    fn text_box(&self) -> Option<Area> {
        let rows = || self.at.chunks_exact(self.width);
        let profile: Vec<usize> = rows().map(|r| r.iter().filter(|m| **m).count()).collect();
        let peak = profile.iter().copied().max().filter(|&p| p > 0)?;
        let runs = runs(&profile, (1 + peak / 100).min(peak).max(1));
        // The heaviest run; the first of equals.
        let main = (0..runs.len()).rev().max_by_key(|&i| runs[i].mass)?;
        let Run { top: first, bottom: last, .. } = runs[main];
        let tall = last - first;
        // Accents, dots and underlines join the main run, and whatever is very near. A thin run at
        // the picture's edge is a neighbouring line's, a run too far off or as small as a speck is
        // none.
        let (gap, reach, cut) = ((tall * 2 / 5).max(2), (tall * 3 / 5).max(2), tall * 2 / 5);
        let near = (tall / 8).max(1);
        let (mut top, mut bottom) = (first, last);
        let no_speck = |run: &&Run| 200 * run.mass >= tall * tall;
        for run in runs[..main].iter().rev().filter(no_speck) {
            let distance = top - run.bottom;
            let thin_at_edge = run.top == 0 && run.bottom - run.top <= cut;
            let far = distance > gap || first - run.top > reach;
            if distance > near && (far || thin_at_edge) {
                break;
            }
            top = run.top;
        }
        for run in runs[main + 1..].iter().filter(no_speck) {
            let distance = run.top - bottom;
            let thin_at_edge = run.bottom == self.height && run.bottom - run.top <= cut;
            let far = distance > gap || run.bottom - last > reach;
            if distance > near && (far || thin_at_edge) {
                break;
            }
            bottom = run.bottom;
        }
        let inked = |x: &usize| rows().take(bottom).skip(top).any(|r| r[*x]);
        let left = (0..self.width).find(inked)?;
        let right = (0..self.width).rfind(inked)? + 1;
        Some(Area {
            top: top as i64,
            bottom: bottom as i64,
            left: left as i64,
            right: right as i64,
        })
    }
}

/// Neighbouring rows with ink.
#[derive(Clone, Copy)]
struct Run {
    top: usize,
    bottom: usize,
    mass: usize,
}

fn runs(profile: &[usize], least: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (y, &count) in profile.iter().enumerate().filter(|(_, c)| **c >= least) {
        match runs.last_mut() {
            Some(run) if run.bottom == y => {
                run.bottom = y + 1;
                run.mass += count;
            }
            _ => runs.push(Run { top: y, bottom: y + 1, mass: count }),
        }
    }
    runs
}

/// The slope in 1/128 row per column whose sheared rows have the largest sum of squared counts;
/// zero unless another is clearly better.
fn find_slope(mask: &Mask) -> i64 {
    let (width, height) = (mask.width, mask.height);
    let ink = || (0..height * width).filter(|&i| mask.at[i]).map(|i| (i / width, i % width));
    let Some((top, _)) = ink().next() else { return 0 };
    let bottom = ink().fold(top, |_, (y, _)| y);
    let (first, last) = ink().fold((width, 0), |(l, r), (_, x)| (l.min(x), r.max(x)));
    let span = last - first;
    if span < 48 || span < 3 * (bottom - top + 1) {
        return 0;
    }
    let step = 1 + mask.count() / 4096;
    let sample: Vec<(i64, i64)> =
        ink().step_by(step).map(|(y, x)| (y as i64, (x - first) as i64)).collect();
    // Lifts every sheared row above zero.
    let lift = (MAX_SLOPE * span as i64 + 64) / 128;
    let mut counts = vec![0u64; height + 2 * lift as usize + 2];
    let mut score = |k: i64| -> u64 {
        counts.fill(0);
        for &(y, x) in &sample {
            counts[(y + ((k * x + 64) >> 7) + lift) as usize] += 1;
        }
        counts.iter().map(|c| c * c).sum()
    };
    let level = score(0);
    let best = (-MAX_SLOPE..=MAX_SLOPE).map(|k| (score(k), -k.abs(), k)).max();
    best.filter(|&(s, ..)| s * 100 > level * 104).map_or(0, |(.., k)| k)
}

/// Column `x` moved down by `slope * x / 128` rows with linear interpolation, paper outside.
fn shear(grey: Grey, slope: i64, paper: i32) -> Grey {
    if slope == 0 {
        return grey;
    }
    let (width, height) = (grey.width, grey.height);
    let extra = ((slope.unsigned_abs() as usize) * (width - 1)).div_ceil(128);
    let start = if slope > 0 { 0 } else { 128 * extra as i64 };
    let source = |y: i64, x: usize| match usize::try_from(y) {
        Ok(y) if y < height => i64::from(grey.at[y * width + x]),
        _ => i64::from(paper),
    };
    let mut at = Vec::with_capacity((height + extra) * width);
    for y in 0..(height + extra) as i64 {
        for x in 0..width {
            let shift = slope * x as i64 + start;
            let (whole, part) = (shift / 128, shift % 128);
            let mixed = source(y - whole, x) * (128 - part) + source(y - whole - 1, x) * part;
            // A weighted mean of two bytes is a byte.
            at.push(((mixed + 64) / 128) as u8);
        }
    }
    Grey { width, height: height + extra, at }
}

/// Levels measured inside the box; the given ones where the box does not show them.
fn box_levels(grey: &Grey, area: &Area, levels: Levels) -> Levels {
    let (mut inside, mut outside) = ([0u64; 256], [0u64; 256]);
    for y in area.top as usize..area.bottom as usize {
        for &g in &grey.at[y * grey.width..][area.left as usize..area.right as usize] {
            let counts = if levels.is_ink(g) { &mut inside } else { &mut outside };
            counts[usize::from(g)] += 1;
        }
    }
    let paper =
        if outside.iter().any(|&c| c > 0) { percentile(&outside, 50_000) } else { levels.paper };
    // The level that the strongest quarter of the ink pixels reach.
    let ink = percentile(&inside, if levels.ink < levels.paper { 25_000 } else { 75_000 });
    if (ink < paper) != (levels.ink < levels.paper) || ink == paper {
        return levels;
    }
    Levels { paper, ink }
}

/// A sixteenth of the height above and below, a quarter at the sides, at least 8 rows.
fn with_margins(area: Area) -> Area {
    let Area { mut top, mut bottom, left, right } = area;
    let tall = bottom - top;
    let side = ((tall + 2) / 4).max(1);
    let margin = ((tall + 8) / 16).max(1);
    top -= margin;
    bottom += margin;
    let lack = (8 - (bottom - top)).max(0);
    top -= lack / 2;
    bottom += lack - lack / 2;
    Area { top, bottom, left: left - side, right: right + side }
}

fn scale(grey: &Grey, area: Area, levels: Levels, height: usize) -> Line {
    let tall = (area.bottom - area.top) as usize;
    let long = (area.right - area.left) as usize;
    let range = (levels.paper - levels.ink) as f32;
    let mut crop = vec![0f32; tall * long];
    for (row, y) in crop.chunks_exact_mut(long).zip(area.top..) {
        let Some(y) = usize::try_from(y).ok().filter(|&y| y < grey.height) else { continue };
        for (value, x) in row.iter_mut().zip(area.left..) {
            let Some(x) = usize::try_from(x).ok().filter(|&x| x < grey.width) else { continue };
            let amount = (levels.paper as f32 - f32::from(grey.at[y * grey.width + x])) / range;
            *value = amount.clamp(0.0, 1.0);
        }
    }
    let wide = ((long * height * 2 + tall) / (2 * tall)).clamp(8, MAX_WIDTH);
    let resized = resize(&crop, [tall, long], [height, wide]);
    let width = (wide + 2 * SIDE).next_multiple_of(4);
    let mut values = vec![0f32; height * width];
    for (row, line) in values.chunks_exact_mut(width).zip(resized.chunks_exact(wide)) {
        row[SIDE..SIDE + wide].copy_from_slice(line);
    }
    Line { height, width, values }
}
