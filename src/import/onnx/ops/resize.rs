//! Resampling of pictures, one axis at a time.
//!
//! Coordinates are computed in f32, as the widely used runtimes do: results of `floor` and of
//! ties depend on it.

use tilewright_kernels::template::unary::UnaryOp;

use super::{NodeCx, OpRow, Outputs, cast, select};
use crate::graph::ops::resize::Resize;
use crate::graph::{Info, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::order::sort_indices;
use crate::tensor::DType;

pub(super) const MODE: Attr = Attr::string("mode").one_of(&["nearest", "linear", "bilinear"]);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Resize", (2, 2), &[MODE], old).since(10).until(10).known(&[1]),
    OpRow::new(
        "Resize",
        (1, 4),
        &[
            Attr::int("antialias").since(18),
            Attr::ints("axes").since(18),
            Attr::string("coordinate_transformation_mode").one_of(&[
                "half_pixel",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
                "align_corners",
                "asymmetric",
                "tf_half_pixel_for_nn",
                "tf_crop_and_resize",
            ]),
            Attr::float("cubic_coeff_a"),
            Attr::int("exclude_outside"),
            Attr::float("extrapolation_value"),
            Attr::string("keep_aspect_ratio_policy").since(18).one_of(&[
                "stretch",
                "not_larger",
                "not_smaller",
            ]),
            Attr::string("mode").one_of(&["nearest", "linear", "cubic"]),
            Attr::string("nearest_mode").one_of(&[
                "round_prefer_floor",
                "round_prefer_ceil",
                "floor",
                "ceil",
            ]),
        ],
        resize,
    )
    .since(11)
    .known(&[1, 2, 3]),
    OpRow::new("Upsample", (1, 1), &[MODE, Attr::floats("scales").required()], old)
        .since(7)
        .until(8),
    OpRow::new("Upsample", (2, 2), &[MODE], old).since(9).known(&[1]),
];

/// The result's longest axis.
const MOST: usize = 1 << 24;

/// How one axis is resampled.
struct Axis {
    axis: usize,
    input: usize,
    output: usize,
    scale: f32,
    /// Whether it is the ratio of the extents, which `scale` is rounded from.
    fits: bool,
    /// Part of the input that `tf_crop_and_resize` takes.
    roi: (f32, f32),
}

/// How all axes are resampled.
struct Mode {
    /// `nearest`, `linear` or `cubic`.
    filter: String,
    coordinates: String,
    /// As `nearest_mode`, or `simple`.
    rounding: String,
    cubic_a: f32,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f32,
}

/// `Upsample`, and `Resize` of opset 10: coordinates are divided by the scale, and rounded down
/// when a picture grows, up when it shrinks.
pub(super) fn old(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let scales = match cx.floats("scales") {
        Some(scales) => scales,
        None if cx.has("height_scale") => {
            vec![1.0, 1.0, cx.float("height_scale", 1.0), cx.float("width_scale", 1.0)]
        }
        None => cx.floats_input(1)?.ok_or(NodeError::NoInput(1))?,
    };
    if scales.len() != dims.len() {
        let what = format!("scales {scales:?} must have one number per extent of {dims:?}");
        return Err(NodeError::invalid(what));
    }
    let mut axes = Vec::new();
    for (axis, (&input, &scale)) in dims.iter().zip(&scales).enumerate() {
        let output = scaled(input, scale)?;
        axes.push(Axis { axis, input, output, scale, fits: false, roi: (0.0, 1.0) });
    }
    let nearest = cx.string("mode", "nearest") == "nearest";
    let mode = Mode {
        filter: if nearest { "nearest" } else { "linear" }.into(),
        coordinates: "asymmetric".into(),
        rounding: "simple".into(),
        cubic_a: 0.0,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    };
    build_axes(cx, x, &axes, &mode)
}

fn resize(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let chosen = match cx.ints("axes") {
        Some(axes) => build::axes(&axes, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    let n = chosen.len();
    let coordinates = cx.string("coordinate_transformation_mode", "half_pixel");
    let roi = match cx.floats_input(1)? {
        Some(roi) if coordinates == "tf_crop_and_resize" => {
            counted("roi (begins and ends)", 2 * n, roi.len())?;
            roi
        }
        None if coordinates == "tf_crop_and_resize" => return Err(NodeError::NoInput(1)),
        _ => Vec::new(),
    };
    let extents: Vec<usize> = chosen.iter().filter_map(|&a| dims.get(a).copied()).collect();
    let (targets, fits) = targets(cx, &extents)?;
    let axes: Vec<Axis> = chosen
        .iter()
        .zip(&extents)
        .zip(&targets)
        .enumerate()
        .map(|(i, ((&axis, &input), &(output, scale)))| {
            let at = |i: usize, default| roi.get(i).copied().unwrap_or(default);
            Axis { axis, input, output, scale, fits, roi: (at(i, 0.0), at(n + i, 1.0)) }
        })
        .collect();
    let mode = Mode {
        filter: cx.string("mode", "nearest"),
        coordinates,
        rounding: cx.string("nearest_mode", "round_prefer_floor"),
        cubic_a: cx.float("cubic_coeff_a", -0.75),
        exclude_outside: cx.flag("exclude_outside", false),
        antialias: cx.flag("antialias", false),
        extrapolation: cx.float("extrapolation_value", 0.0),
    };
    build_axes(cx, x, &axes, &mode)
}

/// Extent and scale of each chosen axis, of which one is given for all; whether scales are the ratios of extents.
fn targets(cx: &NodeCx<'_>, extents: &[usize]) -> Result<(Vec<(usize, f32)>, bool), NodeError> {
    // An empty list is an absent input.
    let scales = cx.floats_input(2)?.filter(|s| !s.is_empty());
    let sizes = cx.ints_input(3)?.filter(|s| !s.is_empty());
    match (scales, sizes) {
        (Some(scales), None) => {
            counted("scales", extents.len(), scales.len())?;
            let targets = extents.iter().zip(&scales).map(|(&d, &s)| Ok((scaled(d, s)?, s)));
            Ok((targets.collect::<Result<_, NodeError>>()?, false))
        }
        (None, Some(sizes)) => {
            counted("sizes", extents.len(), sizes.len())?;
            let sizes = sizes.iter().map(|&s| build::extent(s, "size"));
            let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
            let policy = cx.string("keep_aspect_ratio_policy", "stretch");
            Ok((fitted(extents, &sizes, &policy)?, policy == "stretch"))
        }
        _ => Err(NodeError::invalid("one of scales and sizes must be given")),
    }
}

fn counted(what: &str, expected: usize, found: usize) -> Result<(), NodeError> {
    if found == expected {
        return Ok(());
    }
    Err(NodeError::invalid(format!("{what} must have {expected} elements, found {found}")))
}

/// `floor(extent * scale)`.
fn scaled(extent: usize, scale: f32) -> Result<usize, NodeError> {
    if !(scale > 0.0 && scale.is_finite()) {
        return Err(NodeError::invalid(format!("scale {scale} must be positive")));
    }
    whole((as_f32(extent) * scale).floor())
}

/// Sizes and scales after the aspect ratio is kept as `policy` wants.
fn fitted(
    extents: &[usize],
    sizes: &[usize],
    policy: &str,
) -> Result<Vec<(usize, f32)>, NodeError> {
    let ratios = extents.iter().zip(sizes).map(|(&d, &s)| as_f32(s) / as_f32(d));
    let ratios: Vec<f32> = ratios.collect();
    if policy == "stretch" {
        return sizes.iter().zip(ratios).map(|(&s, r)| Ok((bounded(s)?, r))).collect();
    }
    let pick = if policy == "not_larger" { f32::min } else { f32::max };
    let Some(scale) = ratios.into_iter().reduce(pick) else { return Ok(Vec::new()) };
    // Halves round up.
    extents.iter().map(|&d| Ok((whole((as_f32(d) * scale + 0.5).floor())?, scale))).collect()
}

#[allow(clippy::cast_precision_loss, reason = "extents of pictures are far below 2^24")]
fn as_f32(n: usize) -> f32 {
    n as f32
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "conversions saturate")]
fn whole(v: f32) -> Result<usize, NodeError> {
    bounded(v as usize)
}

fn bounded(n: usize) -> Result<usize, NodeError> {
    if n <= MOST {
        Ok(n)
    } else {
        Err(NodeError::unsupported(format!("an axis of {n} resampled elements")))
    }
}

fn build_axes(cx: &mut NodeCx<'_>, x: TensorId, axes: &[Axis], mode: &Mode) -> Outputs {
    let dtype = cx.dtype(x);
    let crop = mode.coordinates == "tf_crop_and_resize";
    // Positions are chosen of axes in any order: those that are in another one in memory stay where they are.
    if mode.filter == "nearest" && !crop && cx.ctx.record(x).shape().is_permuted() {
        let strides = cx.ctx.record(x).shape().strides();
        let mut order: Vec<usize> = (0..strides.len()).collect();
        sort_indices(&mut order, &mut |a, b| strides.get(b).cmp(&strides.get(a)));
        let place = |axis: usize| order.iter().position(|&a| a == axis).unwrap_or(axis);
        let y = cx.ctx.transpose(x, &order)?;
        let moved = |a: &Axis| Axis { axis: place(a.axis), ..*a };
        let back: Vec<usize> = (0..order.len()).map(place).collect();
        let axes: Vec<Axis> = axes.iter().map(moved).collect();
        if !cx.ctx.record(y).shape().is_permuted() {
            let resized = build_axes(cx, y, &axes, mode)?;
            return resized.into_iter().map(|y| Ok(cx.ctx.transpose(y, &back)?)).collect();
        }
    }
    let mut y = x;
    // On few elements what is slow: the last axis, whose elements are neighbours. So axes that grow come last,
    // and of these the last one first.
    let grows = |a: &&Axis| a.output > a.input && !crop;
    for a in axes.iter().filter(|a| !grows(a)).chain(axes.iter().rev().filter(grows)) {
        if a.input == 0 && a.output != 0 {
            return Err(NodeError::invalid("an empty axis cannot grow"));
        }
        // Where nothing is scaled, the offsets that some modes add do not apply either.
        if a.scale.to_bits() == 1.0f32.to_bits() && a.input == a.output && !crop {
            continue;
        }
        if mode.filter == "nearest" && !crop {
            let at = || (0..a.output).map(|i| nearest(a, mode, i));
            if a.input != a.output || at().enumerate().any(|(i, p)| i != p) {
                y = select::take(cx, y, a.axis, at(), a.output)?;
            }
            continue;
        }
        let taps = Taps::new(cx, a, mode)?;
        if taps.is_identity(a) {
            continue;
        }
        let half = matches!(dtype, DType::F16 | DType::BF16);
        let wide = if half || dtype == DType::F32 { DType::F32 } else { DType::F64 };
        y = cast::to(cx, y, wide)?;
        let op = Resize {
            axis: a.axis,
            taps: taps.count,
            index: taps.index,
            weight: taps.weight,
            fill: mode.extrapolation,
        };
        y = cx.op(op, &[y])?;
    }
    // Integers are rounded once, in the end.
    if !dtype.is_float() && cx.dtype(y) == DType::F64 {
        y = cx.unary(UnaryOp::Round, y)?;
    }
    Ok(vec![cast::to(cx, y, dtype)?])
}

/// The output's extent before it was rounded down to whole elements.
fn resized(a: &Axis) -> f32 {
    let (exact, output) = (a.scale * as_f32(a.input), as_f32(a.output));
    // A scale that comes from the sizes is rounded.
    if (exact - output).abs() <= 1e-4 * output { output } else { exact }
}

/// Where position `i` of the result lies in the input.
fn coordinate(a: &Axis, mode: &str, i: usize) -> f64 {
    let (x, input, output) = (as_f32(i), as_f32(a.input), as_f32(a.output));
    // Whole numbers of halves, over the extent: halfway between two elements is exactly that.
    let exact = |halves: usize| halves as f64 * a.input as f64 / (2.0 * a.output as f64);
    let half_pixel = (x + 0.5) / a.scale - 0.5;
    let y = match mode {
        "half_pixel" | "half_pixel_symmetric" if a.fits => return exact(2 * i + 1) - 0.5,
        "pytorch_half_pixel" if a.fits && a.output > 1 => return exact(2 * i + 1) - 0.5,
        "asymmetric" if a.fits => return exact(2 * i),
        "tf_half_pixel_for_nn" if a.fits => return exact(2 * i + 1),
        "pytorch_half_pixel" if a.output <= 1 => 0.0,
        "half_pixel_symmetric" => {
            // The result is a whole number of pixels; centre the rest.
            let adjustment = output / (a.scale * input);
            input / 2.0 * (1.0 - adjustment) + half_pixel
        }
        "align_corners" if a.output <= 1 => 0.0,
        "align_corners" => x * (input - 1.0) / (resized(a) - 1.0),
        "asymmetric" => x / a.scale,
        "tf_half_pixel_for_nn" => (x + 0.5) / a.scale,
        "tf_crop_and_resize" if a.output <= 1 => 0.5 * (a.roi.0 + a.roi.1) * (input - 1.0),
        "tf_crop_and_resize" => {
            a.roi.0 * (input - 1.0) + x * (a.roi.1 - a.roi.0) * (input - 1.0) / (output - 1.0)
        }
        _ => half_pixel,
    };
    y.into()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "conversions saturate")]
fn nearest(a: &Axis, mode: &Mode, i: usize) -> usize {
    let x = coordinate(a, &mode.coordinates, i);
    let x = match mode.rounding.as_str() {
        "round_prefer_ceil" => (x + 0.5).floor(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "simple" if a.scale < 1.0 => x.ceil(),
        "simple" => x.floor(),
        _ => (x - 0.5).ceil(),
    };
    (x.max(0.0) as usize).min(a.input.saturating_sub(1))
}

/// Which elements of an axis make up each element of the result, and with what weight.
struct Taps {
    count: usize,
    index: Vec<u32>,
    weight: Vec<f32>,
}

impl Taps {
    fn new(cx: &mut NodeCx<'_>, a: &Axis, mode: &Mode) -> Result<Self, NodeError> {
        let radius = match mode.filter.as_str() {
            "nearest" => 0.5f32,
            "linear" => 1.0,
            _ => 2.0,
        };
        // Shrinking with antialiasing widens the filter.
        let squeeze = if mode.antialias { a.scale.min(1.0) } else { 1.0 };
        let first = (-radius / squeeze).floor() + 1.0;
        let count = if mode.filter == "nearest" { 1 } else { whole(2.0 - 2.0 * first)? };
        // An index and a weight per tap.
        cx.spend(&Info::plain(DType::F32, vec![2, a.output, count]))?;
        let crop = mode.coordinates == "tf_crop_and_resize";
        let last = as_f32(a.input) - 1.0;
        let (mut index, mut weight) = (Vec::new(), Vec::new());
        for i in 0..a.output {
            #[allow(clippy::cast_possible_truncation, reason = "weights are f32")]
            let x = coordinate(a, &mode.coordinates, i) as f32;
            if crop && !(0.0..=last).contains(&x) {
                index.resize(index.len() + count, u32::MAX);
                weight.resize(weight.len() + count, 0.0);
                continue;
            }
            if mode.filter == "nearest" {
                index.push(u32::try_from(nearest(a, mode, i)).unwrap_or(0));
                weight.push(1.0);
                continue;
            }
            let base = x.floor();
            let from = weight.len();
            for t in 0..count {
                let offset = first + as_f32(t);
                let at = base + offset;
                let outside = !(0.0..=last).contains(&at);
                let w = if mode.exclude_outside && outside {
                    0.0
                } else {
                    filter(mode, squeeze * (offset - (x - base)))
                };
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                index.push(at.clamp(0.0, last) as u32);
                weight.push(w);
            }
            if mode.exclude_outside || mode.antialias {
                let weights = weight.get_mut(from..).unwrap_or_default();
                let sum: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|w| *w /= sum);
            }
        }
        Ok(Self { count, index, weight })
    }

    fn is_identity(&self, a: &Axis) -> bool {
        let tap = |i: usize| {
            let range = i * self.count..(i + 1) * self.count;
            let taps = self.index.get(range.clone()).zip(self.weight.get(range));
            taps.is_some_and(|(index, weight)| {
                index.iter().zip(weight).all(|(&p, &w)| w == 0.0 || (w == 1.0 && p as usize == i))
                    && weight.contains(&1.0)
            })
        };
        a.input == a.output && (0..a.output).all(tap)
    }
}

/// The filter's value at a distance.
fn filter(mode: &Mode, x: f32) -> f32 {
    let (x, a) = (x.abs(), mode.cubic_a);
    match mode.filter.as_str() {
        "linear" => (1.0 - x).max(0.0),
        _ if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halfway between two elements is exactly that, whatever the extents.
    #[test]
    fn nearest_elements_are_those_of_exact_positions() {
        for (input, output) in (1..50).flat_map(|input| (1..50).map(move |output| (input, output)))
        {
            let scale = as_f32(output) / as_f32(input);
            let a = Axis { axis: 0, input, output, scale, fits: true, roi: (0.0, 1.0) };
            for coordinates in ["asymmetric", "half_pixel"] {
                for rounding in ["round_prefer_ceil", "round_prefer_floor", "floor", "ceil"] {
                    let mode = Mode {
                        filter: "nearest".into(),
                        coordinates: coordinates.into(),
                        rounding: rounding.into(),
                        cubic_a: 0.0,
                        exclude_outside: false,
                        antialias: false,
                        extrapolation: 0.0,
                    };
                    for i in 0..output {
                        // In parts of twice the output's extent.
                        let unit = 2 * output as i64;
                        let at = match coordinates {
                            "asymmetric" => (2 * i * input) as i64,
                            _ => ((2 * i + 1) * input) as i64 - output as i64,
                        };
                        let at = match rounding {
                            "round_prefer_ceil" => (at + unit / 2).div_euclid(unit),
                            "round_prefer_floor" => -(unit / 2 - at).div_euclid(unit),
                            "floor" => at.div_euclid(unit),
                            _ => -(-at).div_euclid(unit),
                        };
                        let exact = at.clamp(0, input as i64 - 1) as usize;
                        let found = nearest(&a, &mode, i);
                        assert_eq!(
                            found, exact,
                            "{i} of {input} to {output} {coordinates} {rounding}"
                        );
                    }
                }
            }
        }
    }
}
