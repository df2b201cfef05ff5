//! Products of matrices, and rows chosen by number.

use std::sync::Arc;

use super::codes::Function;
use super::elements::joined;
use super::{Arg, Call, Check, Lower, Lowered, Result, args, codes, ints, numbers, spread};
use crate::backend::opencl::programs::{ELEMENTS, GEMM, WEIGHTS};
use crate::backend::opencl::trial::Operands;
use crate::backend::opencl::workload::{self, Kind, Workload};
use crate::backend::opencl::{Region, Shared};
use crate::graph::Way;
use crate::graph::ops::block_matmul::BlockMatMul;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::matmul::MatMul;
use crate::tensor::DType;

/// Work-items of a group that rounds activations.
const GROUP: usize = 32;

/// A product of matrices with contiguous rows; see `cl/gemm.cl`.
pub(super) struct Gemm {
    pub(super) a: Arg,
    pub(super) b: Arg,
    pub(super) bias: Arg,
    pub(super) added: Arg,
    /// Whether A lies in panels of as many rows as a tile of `way` has.
    pub(super) packed: bool,
    pub(super) way: Way,
    pub(super) batch: usize,
    pub(super) inner: usize,
    /// m, n, k.
    pub(super) sizes: [usize; 3],
    pub(super) a_steps: [usize; 2],
    pub(super) b_steps: [usize; 2],
    pub(super) bias_kind: i32,
    pub(super) bias_step: usize,
    pub(super) has_added: bool,
    pub(super) activation: Function,
}

pub(super) fn gemm(p: Gemm) -> Option<Call> {
    let ([m, n, k], Way { vec, tile: [w_ob, c_v], unroll, group, lanes, .. }) = (p.sizes, p.way);
    let sizes = ints([m, n, k, p.inner])?;
    let [a, b] = [ints(p.a_steps)?, ints(p.b_steps)?];
    let args = args![
        [p.a, p.b, p.bias, p.added, Arg::Dst],
        sizes,
        a,
        b,
        [Arg::Int(p.bias_kind)],
        ints([p.bias_step])?,
        [Arg::Int(p.has_added.into())],
        p.activation.numbers(),
    ];
    let packed = if p.packed { " -DPACKED" } else { "" };
    let mut definitions =
        format!("-DVEC={vec} -DW_OB={w_ob} -DC_V={c_v} -DUNROLL={unroll}{packed} ");
    definitions += &p.activation.definition();
    let [down, across] = [m.div_ceil(w_ob), n.div_ceil(c_v * vec)];
    let (global, local) = match [group, lanes] {
        [1, 1] => spread([down, across, p.batch], 1),
        [_, 1] => {
            definitions += " -DACROSS";
            spread([across, down, p.batch], group)
        }
        _ => {
            let tiles = across.next_power_of_two().min(group);
            definitions += &format!(" -DACROSS -DLANES={lanes} -DTILES={tiles}");
            let global = [across.next_multiple_of(tiles), down * lanes, p.batch];
            (global, Some([tiles, lanes, 1]))
        }
    };
    Some(Call { family: GEMM, definitions, kernel: "gemm", args, global, local })
}

/// Products with weights by rows; see `cl/weights.cl`.
struct Rows {
    dtype: DType,
    weights: [Arg; 3],
    biases: [Arg; 3],
    scale: Arg,
    added: Arg,
    results: [Arg; 3],
    batch: usize,
    inner: usize,
    m: usize,
    /// Columns of the results; 0 for one that there is not.
    n: [usize; 3],
    k: usize,
    x_steps: [usize; 2],
    /// In bytes.
    w_steps: [usize; 2],
    has_bias: bool,
    has_added: bool,
    activation: Function,
    gated: bool,
    prepare: usize,
    epsilon: f32,
}

/// What a kernel of products does to its activations first.
const NORM: usize = 1;
const ROUND: usize = 2;

impl Rows {
    /// One product, as it is.
    fn one(dtype: DType, weights: Arg, [m, n, k]: [usize; 3], activation: Function) -> Self {
        Self {
            dtype,
            weights: [weights, Arg::Absent, Arg::Absent],
            biases: [Arg::Absent, Arg::Absent, Arg::Absent],
            scale: Arg::Absent,
            added: Arg::Absent,
            results: [Arg::Dst, Arg::Absent, Arg::Absent],
            batch: 1,
            inner: 1,
            m,
            n: [n, 0, 0],
            k,
            x_steps: [0; 2],
            w_steps: [0; 2],
            has_bias: false,
            has_added: false,
            activation,
            gated: false,
            prepare: 0,
            epsilon: 0.0,
        }
    }

    /// The definitions of kernels for them.
    fn definitions(&self, way: &Way) -> Option<String> {
        let Way { tile: [w_ob, c_ob], lanes, items: [items, turns], .. } = *way;
        let Self { prepare, gated, activation, .. } = *self;
        let tiled = if workload::is_tiled(way) { " -DTILED" } else { "" };
        Some(format!(
            "-DVEC=4 -DFORMAT={} -DW_OB={w_ob} -DC_OB={c_ob} -DLANES={lanes} -DITEMS={items} \
             -DTILES={turns} -DPREPARE={prepare} -DGATED={} {}{tiled}",
            format(self.dtype, self.k)?,
            usize::from(gated),
            activation.definition()
        ))
    }

    /// How a table knows them.
    fn sizes(&self) -> workload::Rows {
        let Self { dtype, batch, m, n, k, prepare, gated, .. } = *self;
        let [norm, round] = [NORM, ROUND].map(|what| prepare & what != 0);
        workload::Rows { dtype, batch, m: m.next_power_of_two(), n, k, norm, round, gated }
    }
}

fn rows(cx: &Lower<'_>, x: Arg, p: Rows) -> Option<Call> {
    let way = cx.way(Kind::Rows(p.sizes()));
    rows_by(&way, x, p)
}

fn rows_by(way: &Way, x: Arg, p: Rows) -> Option<Call> {
    let Way { tile: [w_ob, c_ob], lanes, items: [items, turns], .. } = *way;
    let [n, n1, n2] = p.n;
    let sizes = ints([p.m, n, n1, n2, p.k, p.inner])?;
    let [x_steps, w_steps] = [ints(p.x_steps)?, ints(p.w_steps)?];
    let shared = Arg::Local(p.sizes().local_bytes(way)?);
    let definitions = p.definitions(way)?;
    let args = args![
        [x],
        p.weights,
        p.biases,
        [p.scale, p.added],
        p.results,
        [shared],
        numbers(args![
            sizes,
            x_steps,
            w_steps,
            [Arg::Int(p.has_bias.into()), Arg::Int(p.has_added.into())],
            p.activation.numbers(),
            [Arg::Float(p.epsilon)],
        ]),
    ];
    let tiles = |columns: usize| p.n.iter().map(|n| n.div_ceil(columns)).sum::<usize>();
    let [across, down] = match workload::is_tiled(way) {
        true => {
            let [rows, columns] = workload::tile_of_group(way);
            [tiles(columns), p.m.div_ceil(rows)]
        }
        false => [tiles(c_ob).div_ceil(items * turns), p.m.div_ceil(w_ob)],
    };
    let global = [across * items * lanes, down, p.batch];
    let local = Some([lanes * items, 1, 1]);
    Some(Call { family: WEIGHTS, definitions, kernel: "rows", args, global, local })
}

/// Whether kernels of products prepare so many rows of `k` elements themselves: a tile of them at most, in
/// the memory of a work-group.
pub(in crate::backend::opencl) fn prepares(shared: &Shared, m: usize, k: usize) -> bool {
    let shape = shared.shape;
    let tile = shape.rows[0].min(m.next_power_of_two());
    let bytes = (shape.lanes * shape.items[0] + tile * k) * size_of::<f32>();
    let room = usize::try_from(shared.info.local_memory).unwrap_or(usize::MAX);
    shared.fuse && m <= shape.rows[0] && bytes <= room
}

/// What a call computes beside products with one tensor `x`: see `fuse.rs`. Operands are `x`, the matrices,
/// their biases if there are any, the norm's scale, what is added.
pub(in crate::backend::opencl) struct Together {
    pub(in crate::backend::opencl) matrices: usize,
    pub(in crate::backend::opencl) bias: bool,
    pub(in crate::backend::opencl) norm: Option<f32>,
    pub(in crate::backend::opencl) gate: Option<GluOp>,
    pub(in crate::backend::opencl) sum: bool,
}

/// The products, before it is said how activations are rounded.
fn products(op: &Together, cx: &Lower<'_>) -> Option<Rows> {
    let (&[m, k], dtype) = (&cx.src[0].dims[..], cx.src[1].dtype) else { return None };
    if k == 0 || format(dtype, k).is_none() {
        return None;
    }
    let n = |i: usize| if i < op.matrices { cx.src[1 + i].dims[0] } else { 0 };
    let activation = op.gate.map(Function::gate).unwrap_or_default();
    let mut product = Rows::one(dtype, Arg::Src(1), [m, n(0), k], activation);
    for i in 1..op.matrices {
        product.weights[i] = Arg::Src(1 + i);
    }
    let mut next = 1 + op.matrices;
    if op.bias {
        for i in 0..op.matrices {
            product.biases[i] = Arg::Src(next + i);
        }
        product.has_bias = true;
        next += op.matrices;
    }
    if let Some(epsilon) = op.norm {
        (product.scale, product.epsilon) = (Arg::Src(next), epsilon);
        product.prepare |= NORM;
        next += 1;
    }
    if op.sum {
        (product.added, product.has_added) = (Arg::Src(next), true);
    }
    product.gated = op.gate.is_some();
    if !product.gated {
        for i in 1..op.matrices {
            (product.n[i], product.results[i]) = (n(i), Arg::Other(i));
        }
    }
    Some(product)
}

pub(in crate::backend::opencl) fn together(op: &Together, cx: &Lower<'_>) -> Result {
    let Some(mut product) = products(op, cx) else { return Ok(None) };
    let Rows { dtype, m, k, .. } = product;
    // Weights in blocks meet activations of 8 bits, as on the CPU, so that both give the same tokens.
    if dtype.is_plain() {
        return Ok(rows(cx, Arg::Src(0), product).map(Lowered::from));
    }
    if prepares(cx.shared, m, k) {
        product.prepare |= ROUND;
        return Ok(rows(cx, Arg::Src(0), product).map(Lowered::from));
    }
    let Some([count]) = ints([m * k]) else { return Ok(None) };
    let (global, local) = cx.spread([m * k / 32, 1, 1], GROUP);
    let round = Call {
        family: ELEMENTS,
        definitions: cx.vec(cx.shared.shape.vec),
        kernel: "round_groups",
        args: vec![Arg::Src(0), Arg::Temp(0), count],
        global,
        local,
    };
    let Some(product) = rows(cx, Arg::Temp(0), product) else { return Ok(None) };
    let temps = vec![m * k * size_of::<f32>()];
    Ok(Some(Lowered { calls: vec![round, product], temps, ..Lowered::default() }))
}

/// Products of one row as a kernel has them that goes on with their results: see `cl/next.cl`.
pub(super) struct First {
    pub(super) definitions: String,
    /// The row, matrices, biases and the norm's scale.
    pub(super) operands: Vec<Arg>,
    /// Bytes of a work-group's memory.
    pub(super) local: usize,
    pub(super) length: usize,
    pub(super) has_bias: bool,
    pub(super) epsilon: f32,
}

/// Queries, keys and values of one row, for processors; `None` if there is nothing to prepare.
pub(super) fn first(op: &Together, cx: &Lower<'_>) -> Option<First> {
    let mut product = products(op, cx)?;
    if !product.dtype.is_plain() {
        product.prepare |= ROUND;
    }
    let alone = product.m == 1 && op.matrices == 3 && op.gate.is_none() && !op.sum;
    if product.prepare == 0 || !alone || !prepares(cx.shared, 1, product.k) {
        return None;
    }
    // The columns of a tile as they are for the products alone.
    let alone = cx.way(Kind::Rows(product.sizes()));
    let way = Way { tile: [1, alone.tile[1]], lanes: 1, items: [1; 2], ..alone };
    let (definitions, local) = (product.definitions(&way)?, product.sizes().local_bytes(&way)?);
    let Rows { k: length, has_bias, epsilon, weights, biases, scale, .. } = product;
    let operands = args![[Arg::Src(0)], weights, biases, [scale]];
    Some(First { definitions, operands, local, length, has_bias, epsilon })
}

/// Formats of weights by rows that kernels compute with; their places are the kernels' numbers of them.
pub const WEIGHT_FORMATS: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// The kernels' number of a format of weights with rows of `k` elements.
pub(in crate::backend::opencl) fn format(dtype: DType, k: usize) -> Option<usize> {
    let number = WEIGHT_FORMATS.iter().position(|&known| known == dtype)?;
    k.is_multiple_of(dtype.block_elems()).then_some(number)
}

pub(super) fn matmul(op: &MatMul, cx: &Lower<'_>) -> Result {
    let Some(activation) = codes::activation(op.activation).filter(|_| cx.all_f32()) else {
        return Ok(None);
    };
    let s = op.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
    let (a_dims, b_dims) = (&cx.src[0].dims, &cx.src[1].dims);
    let (a_batch, b_batch) = (&a_dims[..a_dims.len() - 2], &b_dims[..b_dims.len() - 2]);
    let one_matrix = b_batch.iter().all(|&d| d == 1) && a_batch == &s.batch[..];
    let (m, batch, inner, a, b) = if one_matrix {
        (s.m * s.batch.iter().product::<usize>(), 1, 1, [0; 2], [0; 2])
    } else {
        match joined(&s.batch, [a_batch, b_batch, b_batch]) {
            Some(([1, 1, outer, inner], [a, b, _])) => {
                (s.m, outer * inner, inner, [a[2], a[3]], [b[2], b[3]])
            }
            _ => return Ok(None),
        }
    };
    let bias = if op.bias { Arg::Src(2) } else { Arg::Absent };
    let added = op.residual.then(|| 2 + usize::from(op.bias));
    let added = added.map_or(Arg::Absent, Arg::Src);
    if s.k == 0 {
        return Ok(None);
    }
    let (a_steps, b_steps) = (a.map(|v| v * s.m * s.k), b.map(|v| v * s.n * s.k));
    let call = if op.transposed_b {
        let product = Rows {
            biases: [bias, Arg::Absent, Arg::Absent],
            added,
            batch,
            inner,
            x_steps: a_steps,
            w_steps: b_steps.map(|v| v * size_of::<f32>()),
            has_bias: op.bias,
            has_added: op.residual,
            ..Rows::one(DType::F32, Arg::Src(1), [m, s.n, s.k], activation)
        };
        rows(cx, Arg::Src(0), product)
    } else {
        let [n, k] = [s.n, s.k];
        let way = cx.way(Kind::Gemm { batch, m, n, k, packed: false });
        let product = Gemm {
            a: Arg::Src(0),
            b: Arg::Src(1),
            bias,
            added,
            packed: false,
            way,
            batch,
            inner,
            sizes: [m, s.n, s.k],
            a_steps,
            b_steps,
            bias_kind: if op.bias { 2 } else { 0 },
            bias_step: 0,
            has_added: op.residual,
            activation,
        };
        gemm(product)
    };
    Ok(call.map(Lowered::from))
}

pub(super) fn block_matmul(op: &BlockMatMul, cx: &Lower<'_>) -> Result {
    let alone = Together { matrices: 1, bias: op.bias, norm: None, gate: None, sum: false };
    together(&alone, cx)
}

pub(super) fn embedding(cx: &Lower<'_>) -> Result {
    let (&[n, k], &[m]) = (&cx.src[0].dims[..], &cx.src[1].dims[..]) else { return Ok(None) };
    let (Some(format), Some(sizes)) = (format(cx.src[0].dtype, k), ints([n, k])) else {
        return Ok(None);
    };
    let args = args![[Arg::Src(0), Arg::Src(1), Arg::Dst], sizes];
    let definitions = format!(
        "-DVEC=4 -DFORMAT={format} -DW_OB=1 -DC_OB=1 -DLANES=1 -DITEMS=1 -DTILES=1 -DPREPARE=0 -DGATED=0"
    );
    let (global, local) = ([k.div_ceil(32), m, 1], None);
    let kernel = "embedding";
    let call = Call { family: WEIGHTS, definitions, kernel, args, global, local };
    let check = Some(Check { operand: 1, limit: n, op: "embedding" });
    Ok(Some(Lowered { check, ..call.into() }))
}

/// A workload computed in some way, to be measured: without bias, activation and sum.
pub(in crate::backend::opencl) fn trial(
    workload: &Workload,
    way: &Way,
    operands: &Operands,
) -> Option<Call> {
    let memory = |region: &Arc<Region>| Arg::Memory(region.clone());
    let (x, w, y) = (memory(&operands.x), &operands.weights, &operands.results);
    let result_of = |call: Call| {
        let results = call.args.into_iter().map(|arg| match arg {
            Arg::Dst => memory(&y[0]),
            Arg::Other(i) => memory(&y[i]),
            other => other,
        });
        Call { args: results.collect(), ..call }
    };
    match workload.0 {
        Kind::Gemm { batch, m, n, k, packed } => gemm(Gemm {
            a: x,
            b: memory(&w[0]),
            bias: Arg::Absent,
            added: Arg::Absent,
            packed,
            way: *way,
            batch,
            inner: batch,
            sizes: [m, n, k],
            a_steps: [0, if packed { m.div_ceil(way.tile[0]) * way.tile[0] * k } else { m * k }],
            b_steps: [0, k * n],
            bias_kind: 0,
            bias_step: 0,
            has_added: false,
            activation: Function::default(),
        }),
        Kind::Rows(sizes) => {
            let workload::Rows { dtype, batch, m, n, k, norm, round, gated } = sizes;
            let mut product = Rows::one(dtype, memory(&w[0]), [m, n[0], k], Function::default());
            for i in 1..w.len() {
                product.weights[i] = memory(&w[i]);
                if !gated {
                    (product.n[i], product.results[i]) = (n[i], Arg::Other(i));
                }
            }
            (product.batch, product.inner) = (batch, batch);
            product.x_steps = [0, m * k];
            product.w_steps = [0, dtype.bytes_of(n[0] * k)?];
            product.gated = gated;
            product.scale = memory(&operands.scale);
            product.prepare = if norm { NORM } else { 0 } | if round { ROUND } else { 0 };
            rows_by(way, x, product)
        }
        Kind::Conv(_) => None,
    }
    .map(result_of)
}
