//! Values between the elements of a tensor.

use core::fmt;
use core::ops::{Deref, Range};

use tilewright_kernels::C_BLOCK;

use crate::graph::{GraphError, Info, Layout, Step};

/// Positions along one axis and their weights: up to four taps, more are left out. There is one of these for each
/// axis of each sample, so they lie in no memory of their own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taps {
    taps: [(Option<usize>, f64); 4],
    len: usize,
}

impl Deref for Taps {
    type Target = [(Option<usize>, f64)];

    fn deref(&self) -> &Self::Target {
        &self.taps[..self.len]
    }
}

impl FromIterator<(Option<usize>, f64)> for Taps {
    fn from_iter<I: IntoIterator<Item = (Option<usize>, f64)>>(taps: I) -> Self {
        let mut out = Self::default();
        for (tap, from) in out.taps.iter_mut().zip(taps) {
            *tap = from;
            out.len += 1;
        }
        out
    }
}

/// Calls `read` with the elements that the product of the taps of all axes names, and the products of their
/// weights; absent positions and weights of 0 are left out.
pub(super) fn spread(dims: &[usize], taps: &[Taps], read: &mut dyn FnMut(usize, f64)) {
    along(dims, taps, (0, 1.0), read);
}

fn along(dims: &[usize], taps: &[Taps], from: (usize, f64), read: &mut dyn FnMut(usize, f64)) {
    let Some((first, rest)) = taps.split_first() else { return read(from.0, from.1) };
    let stride: usize = dims[1..].iter().product();
    for &(at, weight) in first.iter() {
        if let Some(at) = at.filter(|_| weight != 0.0) {
            along(&dims[1..], rest, (from.0 + at * stride, from.1 * weight), read);
        }
    }
}

/// A whole position as an index, if it lies on the axis.
pub(super) fn inside(at: f64, extent: usize) -> Option<usize> {
    (at >= 0.0 && at < extent as f64).then_some(at as usize)
}

/// Planes of the operand that are read at the same places.
pub(super) struct Planes {
    /// Picture and first channel of the operand.
    pub(super) from: (usize, usize),
    /// Picture and first channel of the result.
    pub(super) to: (usize, usize),
    /// How many there are.
    pub(super) count: usize,
}

/// What each element of a result reads of a plane of the first operand, with which weights.
pub(super) trait Sampler: fmt::Debug + Send + Sync {
    /// The planes of part `part`.
    ///
    /// # Errors
    ///
    /// Those of data that name no plane.
    ///
    /// # Safety
    ///
    /// As of [`Step::run`]; the part is of the step.
    #[allow(unsafe_code)]
    unsafe fn planes(&self, src: &[*const u8], part: usize) -> Result<Planes, GraphError>;

    /// Calls `read` with the elements that element `point` of the planes of a part reads, at most [`READS`], all
    /// inside of the plane.
    ///
    /// # Safety
    ///
    /// As of [`Step::run`]; part and point are of the step.
    #[allow(unsafe_code)]
    unsafe fn reads(
        &self,
        src: &[*const u8],
        part: usize,
        point: usize,
        read: &mut dyn FnMut(usize, f32),
    );
}

/// Elements that a point may read: four along each of three axes.
const READS: usize = 64;

/// Planes whose sums are formed side by side, as each waits for the one before it.
const TOGETHER: usize = 8;

/// Points of a unit.
const CHUNK: usize = 16;

/// Weighted sums of elements of f32 planes, for all channels of a part at once.
#[derive(Debug)]
pub(super) struct SampleStep {
    name: &'static str,
    sampler: Box<dyn Sampler>,
    parts: usize,
    /// Channels of the operand and the result, those of full blocks if there are lanes.
    channels: [usize; 2],
    /// Elements of a plane of the operand, and of the result.
    area: usize,
    points: usize,
    lanes: usize,
}

impl SampleStep {
    /// The step for operand `x` and result `y`, both `[n, c, spatial...]` and in one layout; blocked ones if
    /// all parts begin and end with blocks. `None` if a plane is too large.
    pub(super) fn boxed(
        name: &'static str,
        sampler: Box<dyn Sampler>,
        parts: usize,
        [x, y]: [&Info; 2],
    ) -> Option<Box<dyn Step>> {
        let lanes = if y.layout == Layout::Blocked { C_BLOCK } else { 1 };
        let area = |info: &Info| info.dims[2..].iter().product::<usize>();
        let channels = [x, y].map(|info| info.dims[1].next_multiple_of(lanes));
        u32::try_from(area(x)).ok()?;
        let (area, points) = (area(x), area(y));
        Some(Box::new(Self { name, sampler, parts, channels, area, points, lanes }))
    }
}

impl Step for SampleStep {
    fn kernel(&self) -> String {
        format!("{}_f32_{}", self.name, self.lanes)
    }

    fn units(&self) -> usize {
        self.parts * self.points.div_ceil(CHUNK)
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let mut reads = [(0u32, 0.0f32); CHUNK * READS];
        let mut ends = [0; CHUNK];
        let chunks = self.points.div_ceil(CHUNK);
        for unit in units {
            let (part, first) = (unit / chunks, unit % chunks * CHUNK);
            let count = CHUNK.min(self.points - first);
            let mut len = 0;
            for (i, end) in ends[..count].iter_mut().enumerate() {
                let mut read = |at: usize, weight: f32| {
                    reads[len] = (at as u32, weight);
                    len += 1;
                };
                // SAFETY: operands as the caller promises; part and point are below their counts.
                unsafe { self.sampler.reads(src, part, first + i, &mut read) };
                *end = len;
            }
            // SAFETY: operands as the caller promises; the part is below their count.
            let Planes { from, to, count: planes } = unsafe { self.sampler.planes(src, part)? };
            let plane = |i: usize, (n, c): (usize, usize)| n * self.channels[i] + c;
            let mut i = 0;
            while i < planes {
                let together = if self.lanes == 1 && planes - i >= TOGETHER { TOGETHER } else { 1 };
                let planes = self.lanes * together;
                let (x, y) = ((plane(0, from) + i) * self.area, (plane(1, to) + i) * self.points);
                // SAFETY: planes of a part lie in operand and result, of whole blocks if there are lanes.
                let (x, y) = unsafe {
                    let y = dst.cast::<f32>().add(y + first * self.lanes);
                    (
                        core::slice::from_raw_parts(
                            src[0].cast::<f32>().add(x),
                            self.area * planes,
                        ),
                        y,
                    )
                };
                let mut start = 0;
                for (point, &end) in ends[..count].iter().enumerate() {
                    let reads = &reads[start..end];
                    start = end;
                    // SAFETY: these points of the result's planes are of this unit alone.
                    unsafe {
                        let y = y.add(point * self.lanes);
                        match (self.lanes, together) {
                            (C_BLOCK, _) => y.cast::<[f32; C_BLOCK]>().write(pixel(x, reads)),
                            (_, TOGETHER) => {
                                for (i, sum) in points(x, self.area, reads).into_iter().enumerate()
                                {
                                    y.add(i * self.points).write(sum);
                                }
                            }
                            _ => y.write(
                                reads.iter().fold(0.0f32, |y, &(at, w)| y + w * x[at as usize]),
                            ),
                        }
                    }
                }
                i += planes;
            }
        }
        Ok(())
    }
}

/// The sums for all channels of a block.
fn pixel(x: &[f32], reads: &[(u32, f32)]) -> [f32; C_BLOCK] {
    let mut sums = [0.0; C_BLOCK];
    for &(at, weight) in reads {
        let x = &x[at as usize * C_BLOCK..][..C_BLOCK];
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * x);
    }
    sums
}

/// The sums for a point of planes that lie behind each other.
fn points(x: &[f32], area: usize, reads: &[(u32, f32)]) -> [f32; TOGETHER] {
    let mut sums = [0.0; TOGETHER];
    for &(at, weight) in reads {
        let x = &x[at as usize..][..(TOGETHER - 1) * area + 1];
        (0..TOGETHER).for_each(|i| sums[i] += weight * x[i * area]);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::grid_sample::{GridMode, GridPadding, GridSample};
    use crate::graph::ops::elements::as_defined;
    use crate::tensor::Tensor;

    #[test]
    fn planes_one_by_one_and_side_by_side() {
        let nearest = GridSample {
            mode: GridMode::Nearest,
            padding: GridPadding::Zeros,
            align_corners: false,
        };
        for channels in [1, 8, 19] {
            let x: Vec<f32> = (0..2 * channels * 15).map(|i| i as f32).collect();
            let x = Tensor::from_slice(&[2, channels, 3, 5], &x).unwrap();
            let at: Vec<f32> = (0..2 * 21 * 2).map(|i| (i * 29 % 41) as f32 / 16.0 - 1.3).collect();
            let at = Tensor::from_slice(&[2, 3, 7, 2], &at).unwrap();
            assert_eq!(as_defined(&nearest, &[x, at]), "grid_sample_f32_1");
        }
    }
}
