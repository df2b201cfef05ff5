//! Convolutions of few channels as ones of more, whose channels are several pixels of the result.

use super::super::ops::conv::{Conv, Sizes};
use super::super::{Context, GraphError, Op, TensorId};
use crate::tensor::{DType, Tensor};
use tilewright_kernels::Activation;

/// Has convolutions of few channels compute several pixels at once, each a channel (a phase), which become pixels after
/// it: kernels have a lane per channel, and most of them would stay empty. Of a transposed convolution the phases are
/// the results between two inputs; with a stride of 1 it has one, and is a convolution with its windows turned round.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_phases(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    // Transposed convolutions become those of the second round.
    for transposed in [true, false] {
        for id in cx.build_forward(outputs)? {
            let record = cx.record(id);
            let (Op::Conv(op), None) = (record.op(), record.value()) else { continue };
            let (op, src) = (op.clone(), record.src().to_vec());
            let plain = op.groups == 1
                && op.dilation == [1; 2]
                && !op.residual
                && op.activation == Activation::None
                && op.transposed.is_some() == transposed;
            let known = src[1..].iter().map(|&s| cx.constant_value(s).cloned());
            let (true, Some(known)) = (plain, known.collect::<Option<Vec<_>>>()) else { continue };
            if cx.dtype(id) != DType::F32 || cx.dims(id).contains(&0) {
                continue;
            }
            let sizes = op.sizes(&cx.dims(src[0]), &cx.dims(src[1]))?;
            let phases = match op.transposed {
                Some(extra) => Phases::between(&op, &sizes, extra).filter(|p| p.pays(&sizes)),
                None => Phases::of_blocks(&op, &sizes),
            };
            if let Some(phases) = phases {
                phases.write(cx, id, src[0], &sizes, &known)?;
            }
        }
    }
    Ok(())
}

/// The convolution that computes phases.
#[derive(Clone, Copy)]
struct Phases {
    transposed: bool,
    /// Phases, `[h, w]`.
    count: [usize; 2],
    /// Its window, and the distance of windows.
    window: [usize; 2],
    stride: [usize; 2],
    pads: [usize; 4],
    /// Places at which it computes all phases.
    places: [usize; 2],
    /// Results that the first place has too many.
    skip: [usize; 2],
}

/// Lanes of the widest vectors.
const LANES: usize = 16;

/// Fewest channels of an input whose kernels gain: those of few have kernels of their own.
const INPUT: usize = 8;

/// What a kernel has to do for each channel of the input and each place.
fn work(channels: usize, window: [usize; 2]) -> usize {
    channels.div_ceil(LANES).saturating_mul(window[0]).saturating_mul(window[1])
}

impl Phases {
    /// The results of a transposed convolution between two inputs; `None` where its window is smaller than what pads the
    /// input.
    fn between(op: &Conv, sizes: &Sizes, extra: [usize; 2]) -> Option<Self> {
        let count = op.stride;
        let [mut window, mut places, mut skip] = [[0; 2]; 3];
        let mut pads = [0; 4];
        for i in 0..2 {
            window[i] = sizes.window[i].div_ceil(count[i]);
            let begin = op.pads[i];
            let end = begin.checked_add(sizes.output[i].checked_sub(1)?)?;
            let (first, last) = (begin / count[i], end / count[i]);
            // Place `p` reads the inputs `p - window + 1` to `p`.
            pads[i] = (window[i] - 1).checked_sub(first)?;
            let after = last.checked_sub(sizes.input[i].checked_sub(1)?)?;
            pads[i + 2] = Some(after).filter(|&n| n < window[i] + extra[i])?;
            (places[i], skip[i]) = (last - first + 1, begin % count[i]);
        }
        Some(Self { transposed: true, count, window, stride: [1; 2], pads, places, skip })
    }

    /// Whether kernels have less to do than the transposed convolution.
    fn pays(&self, sizes: &Sizes) -> bool {
        let [h, w] = self.count;
        let channels = sizes.k.saturating_mul(h).saturating_mul(w);
        self.count == [1; 2]
            || work(channels, self.window).saturating_mul(4) <= work(sizes.k, sizes.window) * 3
    }

    /// Blocks of pixels of a convolution, if kernels have far less to do for some: of windows of 3 x 3, Winograd's
    /// algorithm leaves as little, but for one channel.
    fn of_blocks(op: &Conv, sizes: &Sizes) -> Option<Self> {
        let by_winograd = sizes.window == [3; 2] && sizes.k > 1;
        if op.stride != [1; 2] || sizes.c < INPUT || by_winograd {
            return None;
        }
        let counts = [[1, 2], [2, 1], [2, 2], [1, 4], [4, 1], [2, 4], [4, 2], [4, 4]];
        let fits = |count: &[usize; 2]| (0..2).all(|i| sizes.output[i] >= count[i]);
        let of = |count: [usize; 2]| {
            let window = [0, 1].map(|i| sizes.window[i] + count[i] - 1);
            let places = [0, 1].map(|i| sizes.output[i].div_ceil(count[i]));
            let mut pads = op.pads;
            for i in 0..2 {
                let read = (places[i] - 1) * count[i] + window[i];
                pads[i + 2] = read - sizes.input[i] - op.pads[i];
            }
            Self { transposed: false, count, window, stride: count, pads, places, skip: [0; 2] }
        };
        let all = |p: &Self| {
            let [h, w] = p.places;
            work(sizes.k * p.count[0] * p.count[1], p.window).saturating_mul(h).saturating_mul(w)
        };
        let best = counts.into_iter().filter(fits).map(of).min_by_key(all)?;
        let before = work(sizes.k, sizes.window)
            .saturating_mul(sizes.output[0])
            .saturating_mul(sizes.output[1]);
        (all(&best).saturating_mul(2) <= before).then_some(best)
    }

    /// Weights `[k, c, window]`, or `[c, k, window]` of a transposed convolution, as `[k * phases, c, window]`.
    fn weights(&self, w: &[f32], sizes: &Sizes) -> Vec<f32> {
        let (count, [rows, columns]) = (self.count, self.window);
        let [h, v] = sizes.window;
        let mut all = vec![0.0; sizes.k * count[0] * count[1] * sizes.c * rows * columns];
        let mut set = |k: usize, c: usize, phase: [usize; 2], [row, column]: [usize; 2], value| {
            let channel = (k * count[0] + phase[0]) * count[1] + phase[1];
            all[((channel * sizes.c + c) * rows + row) * columns + column] = value;
        };
        for (i, &value) in w.iter().enumerate() {
            let (x, y, inner, outer) = (i % v, i / v % h, i / (v * h), i / (v * h));
            if self.transposed {
                let phase = [y % count[0], x % count[1]];
                let at = [rows - 1 - y / count[0], columns - 1 - x / count[1]];
                set(inner % sizes.k, outer / sizes.k, phase, at, value);
            } else {
                for phase in (0..count[0]).flat_map(|a| (0..count[1]).map(move |b| [a, b])) {
                    let at = [y + phase[0], x + phase[1]];
                    set(outer / sizes.c, inner % sizes.c, phase, at, value);
                }
            }
        }
        all
    }

    /// Has `id` show the result of the convolution of `x` with `known` weights, and a bias.
    fn write(
        &self,
        cx: &mut Context,
        id: TensorId,
        x: TensorId,
        sizes: &Sizes,
        known: &[Tensor],
    ) -> Result<(), GraphError> {
        let (count, phases) = (self.count, self.count[0] * self.count[1]);
        // One dimension has no height.
        let rank = cx.dims(id).len() - 2;
        let channels = sizes.k * phases;
        let dims = [&[channels, sizes.c], &self.window[2 - rank..]].concat();
        let weights = self.weights(&known[0].as_slice::<f32>()?, sizes);
        let mut src = vec![x, cx.constant(Tensor::from_slice(&dims, &weights)?)?];
        if let Some(bias) = known.get(1) {
            let bias = bias.as_slice::<f32>()?;
            let bias: Vec<f32> = bias.iter().flat_map(|b| vec![*b; phases]).collect();
            src.push(cx.constant(Tensor::from_slice(&[channels], &bias)?)?);
        }
        let bias = src.len() > 2;
        let op = Conv { stride: self.stride, pads: self.pads, bias, ..Conv::default() };
        if phases == 1 {
            return cx.rewrite(id, op.into(), src);
        }
        let y = cx.op(op, &src)?;
        let [h, w] = self.places;
        let y = cx.reshape(y, &[sizes.n, sizes.k, count[0], count[1], h, w])?;
        let y = cx.transpose(y, &[0, 1, 4, 2, 5, 3])?;
        let mut y = cx.reshape(y, &[sizes.n, sizes.k, h * count[0], w * count[1]])?;
        for i in 0..2 {
            y = cx.slice(y, 2 + i, self.skip[i], sizes.output[i], 1)?;
        }
        let y = cx.cont(y)?;
        cx.rewrite_as_view(id, "reshape", y);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::passes::optimize;
    use tilewright_kernels::Isa;

    fn run(cx: &mut Context, y: TensorId, x: &Tensor) -> Vec<f32> {
        let mut executor = Executor::new(Isa::best(), 1).unwrap();
        let plan = executor.plan(cx, &[y]).unwrap();
        executor.run(&plan, &[x], None).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
    }

    fn is_transposed(cx: &Context, y: TensorId) -> bool {
        let order = cx.build_forward(&[y]).unwrap();
        let of =
            |id: &TensorId| matches!(cx.record(*id).op(), Op::Conv(c) if c.transposed.is_some());
        order.iter().any(of)
    }

    /// Windows larger and smaller than the stride, with padding, uneven sides and cells more.
    #[test]
    fn results_are_the_same() {
        for (x, w, stride, pads, extra) in [
            (&[1, 5, 6, 7][..], &[5, 1, 9, 9][..], [3, 3], [4, 4, 4, 4], [0, 0]),
            (&[2, 3, 5, 4], &[3, 2, 5, 5], [2, 2], [1, 2, 1, 0], [1, 1]),
            (&[1, 4, 5, 6], &[4, 3, 4, 4], [2, 2], [1, 1, 1, 1], [0, 0]),
            (&[1, 3, 5, 6], &[3, 1, 2, 2], [2, 2], [0, 0, 0, 0], [0, 0]),
            (&[1, 2, 4, 5], &[2, 1, 2, 5], [3, 1], [0, 1, 0, 2], [2, 0]),
            (&[1, 3, 7, 5], &[3, 20, 3, 5], [1, 1], [1, 0, 2, 3], [0, 0]),
            (&[2, 4, 9], &[4, 1, 12], [1, 4], [0, 3, 0, 5], [0, 1]),
        ] {
            let [mut plain, mut cx] = [Context::new(), Context::new()];
            let numbers = |dims: &[usize], by: usize| {
                let len = dims.iter().product();
                let values: Vec<f32> = (0..len).map(|i| (i * by % 17) as f32 - 8.0).collect();
                Tensor::from_slice(dims, &values).unwrap()
            };
            let op = Conv { stride, pads, transposed: Some(extra), bias: true, ..Conv::default() };
            let (given, k) = (numbers(x, 5), w[1]);
            let [wanted, y] = [&mut plain, &mut cx].map(|cx| {
                let src = [
                    cx.input("x", DType::F32, x).unwrap(),
                    cx.constant(numbers(w, 7)).unwrap(),
                    cx.constant(numbers(&[k], 3)).unwrap(),
                ];
                cx.op(op.clone(), &src).unwrap()
            });
            let wanted = run(&mut plain, wanted, &given);
            optimize(&mut cx, &[y], 1).unwrap();
            assert!(!is_transposed(&cx, y), "{op:?}");
            let found = run(&mut cx, y, &given);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 0.05;
            assert!(found.iter().zip(&wanted).all(close), "{op:?}\n{found:?}\n{wanted:?}");
        }
    }

    /// Whether a convolution is computed by blocks of pixels, with the same results.
    fn is_by_blocks(x: &[usize], w: &[usize], pads: [usize; 4]) -> bool {
        let numbers = |dims: &[usize], by: usize| {
            let len = dims.iter().product();
            let values: Vec<f32> = (0..len).map(|i| (i * by % 17) as f32 - 8.0).collect();
            Tensor::from_slice(dims, &values).unwrap()
        };
        let mut found = Vec::new();
        for rewrite in [false, true] {
            let mut cx = Context::new();
            let src = [
                cx.input("x", DType::F32, x).unwrap(),
                cx.constant(numbers(w, 7)).unwrap(),
                cx.constant(numbers(&w[..1], 3)).unwrap(),
            ];
            let y = cx.op(Conv { pads, bias: true, ..Conv::default() }, &src).unwrap();
            if rewrite {
                use_phases(&mut cx, &[y]).unwrap();
            }
            found.push((run(&mut cx, y, &numbers(x, 5)), matches!(cx.record(y).op(), Op::Conv(_))));
        }
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 0.05;
        assert!(found[0].0.iter().zip(&found[1].0).all(close), "{x:?} {w:?}");
        !found[1].1
    }

    #[test]
    fn blocks_of_pixels() {
        assert!(is_by_blocks(&[1, 8, 9, 11], &[3, 8, 5, 5], [2, 2, 2, 2]));
        assert!(is_by_blocks(&[2, 9, 7, 6], &[1, 9, 3, 5], [1, 0, 0, 3]));
        assert!(is_by_blocks(&[1, 16, 40], &[1, 16, 7], [0, 3, 0, 3]));
        // Winograd's algorithm; no taps to share; too small; lanes that are full; kernels for few channels.
        assert!(!is_by_blocks(&[1, 8, 9, 11], &[3, 8, 3, 3], [1, 1, 1, 1]));
        assert!(!is_by_blocks(&[1, 8, 9, 11], &[3, 8, 1, 1], [0; 4]));
        assert!(!is_by_blocks(&[1, 8, 5, 5], &[3, 8, 5, 5], [0; 4]));
        assert!(!is_by_blocks(&[1, 8, 9, 11], &[16, 8, 5, 5], [2, 2, 2, 2]));
        assert!(!is_by_blocks(&[1, 3, 9, 11], &[3, 3, 5, 5], [2, 2, 2, 2]));
    }

    #[test]
    fn what_kernels_do_well_stays() {
        for (w, groups, dilation) in
            [([32, 32, 4, 4], 1, [1, 1]), ([4, 2, 4, 4], 2, [1, 1]), ([4, 2, 4, 4], 1, [2, 2])]
        {
            let mut cx = Context::new();
            let x = cx.input("x", DType::F32, &[1, w[0], 8, 8]).unwrap();
            let weights = cx.constant(Tensor::zeros(DType::F32, &w).unwrap()).unwrap();
            let op = Conv {
                stride: [2, 2],
                dilation,
                groups,
                transposed: Some([0, 0]),
                ..Conv::default()
            };
            let y = cx.op(op, &[x, weights]).unwrap();
            optimize(&mut cx, &[y], 1).unwrap();
            assert!(is_transposed(&cx, y), "{w:?} {groups} {dilation:?}");
        }
    }
}
