//! Llama in f64, of which nothing is rounded but what the kernels round on purpose: activations that
//! meet block-quantised weights, to 8 bits with one f32 scale for 32. Written from the papers, with
//! nothing of the library but its reader and its formulas of block types.

use std::path::Path;

use tilewright::import::gguf::Gguf;
use tilewright::tensor::block::dequantize;

/// A matrix `[n, k]`, and whether its blocks are quantised.
struct Matrix {
    rows: Vec<Vec<f64>>,
    quantised: bool,
}

/// The model of a file.
pub(crate) struct Simulation {
    gguf: Gguf,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    epsilon: f64,
}

impl Simulation {
    /// Opens a file of architecture llama without scalings.
    pub(crate) fn open(path: &Path) -> Self {
        let gguf = Gguf::open(path).unwrap();
        let number = |key: &str| gguf.metadata().u32(key).unwrap().unwrap() as usize;
        let (layers, heads) = (number("llama.block_count"), number("llama.attention.head_count"));
        let kv_heads = number("llama.attention.head_count_kv");
        let epsilon = gguf.metadata().f32("llama.attention.layer_norm_rms_epsilon").unwrap();
        Self { layers, heads, kv_heads, epsilon: f64::from(epsilon.unwrap()), gguf }
    }

    fn matrix(&self, name: &str) -> Matrix {
        let tensor = self.gguf.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.elements()];
        dequantize(tensor.dtype, &tensor.data, &mut values).unwrap();
        let rows = values.chunks_exact(tensor.dims[0]);
        let rows = rows.map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect();
        Matrix { rows, quantised: tensor.dtype.block_elems() > 1 }
    }

    /// The logits of the last token.
    pub(crate) fn last_logits(&self, tokens: &[u32]) -> Vec<f64> {
        let embedding = self.matrix("token_embd.weight");
        let mut x: Vec<Vec<f64>> =
            tokens.iter().map(|&t| embedding.rows[t as usize].clone()).collect();
        for layer in 0..self.layers {
            let get = |name: &str| self.matrix(&format!("blk.{layer}.{name}.weight"));
            let (q, k, v) = (get("attn_q"), get("attn_k"), get("attn_v"));
            let h = self.norms(&x, &get("attn_norm"));
            let turn = |position, row: Vec<f64>| turned(position, row, q.rows.len() / self.heads);
            let products =
                |m: &Matrix| h.iter().map(|h| product(h, m)).enumerate().collect::<Vec<_>>();
            let queries: Vec<_> = products(&q).into_iter().map(|(i, row)| turn(i, row)).collect();
            let keys: Vec<_> = products(&k).into_iter().map(|(i, row)| turn(i, row)).collect();
            let values: Vec<_> = products(&v).into_iter().map(|(_, row)| row).collect();
            let output = get("attn_output");
            for (i, query) in queries.iter().enumerate() {
                let attended = self.attended(query, &keys[..=i], &values[..=i]);
                add(&mut x[i], &product(&attended, &output));
            }
            let h = self.norms(&x, &get("ffn_norm"));
            let (gate, up, down) = (get("ffn_gate"), get("ffn_up"), get("ffn_down"));
            for (x, h) in x.iter_mut().zip(&h) {
                let (gate, up) = (product(h, &gate), product(h, &up));
                let h: Vec<_> =
                    gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                add(x, &product(&h, &down));
            }
        }
        let last = self.norms(&x[tokens.len() - 1..], &self.matrix("output_norm.weight"));
        product(&last[0], &embedding)
    }

    fn norms(&self, rows: &[Vec<f64>], scale: &Matrix) -> Vec<Vec<f64>> {
        let one = |row: &Vec<f64>| {
            let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let by = 1.0 / (square + self.epsilon).sqrt();
            row.iter().zip(&scale.rows[0]).map(|(x, s)| x * by * s).collect()
        };
        rows.iter().map(one).collect()
    }

    fn attended(&self, query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
        let size = query.len() / self.heads;
        let mut out = vec![0.0; query.len()];
        for (head, out) in out.chunks_exact_mut(size).enumerate() {
            let query = &query[head * size..][..size];
            let part = head / (self.heads / self.kv_heads) * size;
            let score = |key: &Vec<f64>| dot(query, &key[part..][..size]) / (size as f64).sqrt();
            let scores: Vec<_> = keys.iter().map(|key| score(key).exp()).collect();
            let sum: f64 = scores.iter().sum();
            for (score, value) in scores.iter().zip(values) {
                for (out, value) in out.iter_mut().zip(&value[part..]) {
                    *out += score / sum * value;
                }
            }
        }
        out
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn product(x: &[f64], matrix: &Matrix) -> Vec<f64> {
    let x = if matrix.quantised { rounded(x) } else { x.to_vec() };
    matrix.rows.iter().map(|row| dot(&x, row)).collect()
}

/// Groups of 32 as integers up to 127 times a scale of f32.
fn rounded(x: &[f64]) -> Vec<f64> {
    let group = |x: &[f64]| {
        let most = x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let scale = f64::from((most / 127.0) as f32);
        x.iter().map(|x| (x * 127.0 / most).round_ties_even() * scale).collect::<Vec<_>>()
    };
    x.chunks_exact(32).flat_map(group).collect()
}

/// Adjacent pairs of each head turned by the position, over 10000 to the share of the pair.
fn turned(position: usize, mut row: Vec<f64>, size: usize) -> Vec<f64> {
    for (i, pair) in row.chunks_exact_mut(2).enumerate() {
        let share = (2 * i % size) as f64 / size as f64;
        let (sin, cos) = (position as f64 * 10_000f64.powf(-share)).sin_cos();
        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
    }
    row
}
