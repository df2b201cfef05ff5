//! The roofline plot: speed over arithmetic intensity, both logarithmic, under the limits that the
//! peak of the core and the bandwidths of its memories set.

use core::fmt::Write;

use super::kernels::Json;
use super::report::escaped;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 600.0;

/// Left, top, right and bottom of the plot.
const FRAME: [f64; 4] = [80.0, 60.0, 760.0, 530.0];

/// Colours of ops, distinct also for colour-blind people (Okabe and Ito's).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// A logarithmic axis.
struct Axis {
    /// Least and greatest value, powers of the base.
    range: [f64; 2],
    base: f64,
    /// Where they are drawn.
    place: [f64; 2],
}

impl Axis {
    /// An axis that covers these values.
    fn new(values: impl Iterator<Item = f64> + Clone, base: f64, place: [f64; 2]) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min).log(base).floor();
        let greatest = values.fold(0.0, f64::max).log(base).ceil().max(least + 1.0);
        Self { range: [base.powf(least), base.powf(greatest)], base, place }
    }

    fn at(&self, value: f64) -> f64 {
        let [low, high] = self.range.map(f64::ln);
        let [from, to] = self.place;
        from + (value.ln() - low) / (high - low) * (to - from)
    }

    fn ticks(&self) -> Vec<f64> {
        let count = (self.range[1] / self.range[0]).log(self.base).round() as i32;
        (0..=count).map(|i| self.range[0] * self.base.powi(i)).collect()
    }
}

/// The plot of all kernels whose intensity is known.
pub(super) fn svg(result: &Json) -> String {
    let rows: Vec<_> =
        result.kernels.iter().filter_map(|r| Some((r, r.intensity?, r.gflops))).collect();
    // Each roof is seen from a point well below the peak.
    let ridges = result.memory.iter().map(|level| result.peak_gflops / level.gb_s);
    let [left, top, right, bottom] = FRAME;
    let x = Axis::new(rows.iter().map(|r| r.1).chain(ridges).chain([0.25]), 2.0, [left, right]);
    let y = Axis::new(
        rows.iter().map(|r| r.2).chain([result.peak_gflops, result.peak_gflops / 30.0]),
        10.0,
        [bottom, top],
    );
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = draw(&mut out, result, &rows, &x, &y);
    out
}

fn draw(
    out: &mut String,
    result: &Json,
    rows: &[(&super::kernels::Row, f64, f64)],
    x: &Axis,
    y: &Axis,
) -> core::fmt::Result {
    let [left, top, right, bottom] = FRAME;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"30\" font-size=\"16\">Kernels on {}, one thread, peak {:.0} \
         GFLOP/s</text>",
        escaped(result.isa),
        result.peak_gflops
    )?;
    for tick in x.ticks() {
        let at = x.at(tick);
        writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
            bottom + 18.0
        )?;
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            left - 8.0,
            at + 4.0
        )?;
    }
    let middle = (left + right) / 2.0;
    writeln!(
        out,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">FLOP per byte of operands and \
         result</text>\n<text transform=\"translate(22 {}) rotate(-90)\" \
         text-anchor=\"middle\">GFLOP/s</text>",
        bottom + 42.0,
        (top + bottom) / 2.0
    )?;
    for (i, level) in result.memory.iter().enumerate() {
        // From the lower left corner of the frame to the peak.
        let floor = (y.range[0] / level.gb_s).max(x.range[0]);
        let ridge = (result.peak_gflops / level.gb_s).max(floor);
        let points = [floor, ridge, x.range[1].max(ridge)].map(|i| {
            format!("{:.1},{:.1}", x.at(i), y.at((i * level.gb_s).min(result.peak_gflops)))
        });
        let name = format!("{} {:.0} GB/s", level.name, level.gb_s);
        // Caches may be as fast as each other: their names stand side by side.
        let label = floor * 1.5f64.powi(i as i32);
        writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#555\"><title>{name}</title></polyline>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\" font-size=\"10\">{name}</text>",
            points.join(" "),
            x.at(label) + 4.0,
            y.at((label * level.gb_s).min(result.peak_gflops)) - 6.0,
        )?;
    }
    let mut ops: Vec<&str> = Vec::new();
    for (row, intensity, gflops) in rows {
        let op = ops.iter().position(|op| *op == row.op).unwrap_or_else(|| {
            ops.push(&row.op);
            ops.len() - 1
        });
        let [a, b, c] = row.shape;
        let title = format!(
            "{} {a} x {b} x {c}, {}: {gflops:.1} GFLOP/s, {:.1} % of the peak",
            row.op,
            row.algorithm,
            row.share_of_peak * 100.0
        );
        writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\" fill-opacity=\"0.7\">\
             <title>{}</title></circle>",
            x.at(*intensity),
            y.at(*gflops),
            COLOURS[op % COLOURS.len()],
            escaped(&title)
        )?;
    }
    for (i, op) in ops.iter().enumerate() {
        let at = top + 20.0 * i as f64;
        writeln!(
            out,
            "<circle cx=\"{}\" cy=\"{at:.1}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{:.1}\">{}\
             </text>",
            right + 20.0,
            COLOURS[i % COLOURS.len()],
            right + 32.0,
            at + 4.0,
            escaped(op)
        )?;
    }
    out.push_str("</svg>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_cover_their_values_by_whole_steps() {
        let axis = Axis::new([3.0, 40.0].into_iter(), 2.0, [0.0, 100.0]);
        assert_eq!(axis.range, [2.0, 64.0]);
        assert_eq!(axis.ticks(), [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        assert!((axis.at(2.0) - 0.0).abs() < 1e-9 && (axis.at(64.0) - 100.0).abs() < 1e-9);
        assert_eq!(escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
    }
}
