//! Products of matrices, and rows chosen by number.

use super::elements::joined;
use super::{Arg, Call, Check, Lower, Lowered, Result, args, codes, ints, spread};
use crate::backend::opencl::programs::{ELEMENTS, GEMM, WEIGHTS};
use crate::graph::ops::block_matmul::BlockMatMul;
use crate::graph::ops::matmul::MatMul;
use crate::tensor::DType;

/// Work-items of a group of products, where they do not share sums.
const GROUP: usize = 32;

/// A product of matrices with contiguous rows; see `cl/gemm.cl`.
pub(super) struct Gemm {
    pub(super) a: Arg,
    pub(super) b: Arg,
    pub(super) bias: Arg,
    pub(super) added: Arg,
    /// Rows of the panels that A was packed in; `None` if it was not.
    pub(super) w_ob: Option<usize>,
    pub(super) batch: usize,
    pub(super) inner: usize,
    /// m, n, k.
    pub(super) sizes: [usize; 3],
    pub(super) a_steps: [usize; 2],
    pub(super) b_steps: [usize; 2],
    pub(super) bias_kind: i32,
    pub(super) bias_step: usize,
    pub(super) has_added: bool,
    pub(super) activation: [Arg; 3],
}

/// How work-items that each compute a large tile are grouped: alone on a processor.
fn tiles(cx: &Lower<'_>, items: [usize; 3]) -> ([usize; 3], Option<[usize; 3]>) {
    if cx.shared.shape.lanes == 1 { (items, Some([1; 3])) } else { spread(items, GROUP) }
}

pub(super) fn gemm(cx: &Lower<'_>, p: Gemm) -> Option<Call> {
    let [m, n, k] = p.sizes;
    let shape = cx.shared.shape;
    let vec = cx.vector_for(n);
    let c_v = shape.c_v.min(n / vec).max(1);
    let w_ob = p.w_ob.unwrap_or_else(|| shape.w_ob.min(m.next_power_of_two()));
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
        p.activation,
    ];
    let packed = if p.w_ob.is_some() { " -DPACKED" } else { "" };
    let unroll = shape.unroll;
    let definitions = format!("-DVEC={vec} -DW_OB={w_ob} -DC_V={c_v} -DUNROLL={unroll}{packed}");
    let items = [m.div_ceil(w_ob), n.div_ceil(c_v * vec), p.batch];
    let (global, local) = tiles(cx, items);
    Some(Call { family: GEMM, definitions, kernel: "gemm", args, global, local })
}

/// A product with weights by rows; see `cl/weights.cl`.
struct Rows {
    format: usize,
    bias: Arg,
    added: Arg,
    batch: usize,
    inner: usize,
    sizes: [usize; 3],
    x_steps: [usize; 2],
    /// In bytes.
    w_steps: [usize; 2],
    has_bias: bool,
    has_added: bool,
    activation: [Arg; 3],
}

fn rows(cx: &Lower<'_>, x: Arg, w: Arg, p: Rows) -> Option<Call> {
    let [m, n, k] = p.sizes;
    let shape = cx.shared.shape;
    let [w_ob, c_ob] = shape.rows;
    let (w_ob, c_ob) = (w_ob.min(m.next_power_of_two()), c_ob.min(n.next_power_of_two()));
    let lanes = shape.lanes;
    let sizes = ints([m, n, k, p.inner])?;
    let [x_steps, w_steps] = [ints(p.x_steps)?, ints(p.w_steps)?];
    let shared = Arg::Local(lanes * size_of::<f32>());
    let args = args![
        [x, w, p.bias, p.added, Arg::Dst, shared],
        sizes,
        x_steps,
        w_steps,
        [Arg::Int(p.has_bias.into()), Arg::Int(p.has_added.into())],
        p.activation,
    ];
    let definitions =
        format!("-DVEC=4 -DFORMAT={} -DW_OB={w_ob} -DC_OB={c_ob} -DLANES={lanes}", p.format);
    let global = [n.div_ceil(c_ob) * lanes, m.div_ceil(w_ob), p.batch];
    let local = Some([lanes, 1, 1]);
    Some(Call { family: WEIGHTS, definitions, kernel: "rows", args, global, local })
}

/// The kernels' number of a format of weights with rows of `k` elements.
fn format(dtype: DType, k: usize) -> Option<usize> {
    let number = match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::Q8_0 => 3,
        DType::Q4_0 => 4,
        DType::Q4_1 => 5,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q4_K => 8,
        DType::Q5_K => 9,
        DType::Q6_K => 10,
        _ => return None,
    };
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
        match joined(&s.batch, [a_batch, b_batch]) {
            Some(([1, 1, outer, inner], [a, b])) => {
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
            format: 0,
            bias,
            added,
            batch,
            inner,
            sizes: [m, s.n, s.k],
            x_steps: a_steps,
            w_steps: b_steps.map(|v| v * size_of::<f32>()),
            has_bias: op.bias,
            has_added: op.residual,
            activation,
        };
        rows(cx, Arg::Src(0), Arg::Src(1), product)
    } else {
        let product = Gemm {
            a: Arg::Src(0),
            b: Arg::Src(1),
            bias,
            added,
            w_ob: None,
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
        gemm(cx, product)
    };
    Ok(call.map(Lowered::from))
}

pub(super) fn block_matmul(op: &BlockMatMul, cx: &Lower<'_>) -> Result {
    let (&[m, k], n) = (&cx.src[0].dims[..], cx.src[1].dims[0]) else { return Ok(None) };
    let Some(format) = format(cx.src[1].dtype, k).filter(|_| k > 0) else { return Ok(None) };
    let activation = [Arg::Int(0), Arg::Float(0.0), Arg::Float(0.0)];
    let product = Rows {
        format,
        bias: if op.bias { Arg::Src(2) } else { Arg::Absent },
        added: Arg::Absent,
        batch: 1,
        inner: 1,
        sizes: [m, n, k],
        x_steps: [0; 2],
        w_steps: [0; 2],
        has_bias: op.bias,
        has_added: false,
        activation,
    };
    // Weights in blocks meet activations of 8 bits, as on the CPU, so that both give the same tokens.
    if cx.src[1].dtype.is_plain() {
        return Ok(rows(cx, Arg::Src(0), Arg::Src(1), product).map(Lowered::from));
    }
    let Some([n]) = ints([m * k]) else { return Ok(None) };
    let (global, local) = spread([m * k / 32, 1, 1], GROUP);
    let round = Call {
        family: ELEMENTS,
        definitions: cx.vec(cx.shared.shape.vec),
        kernel: "round_groups",
        args: vec![Arg::Src(0), Arg::Temp(0), n],
        global,
        local,
    };
    let Some(product) = rows(cx, Arg::Temp(0), Arg::Src(1), product) else { return Ok(None) };
    let temps = vec![m * k * size_of::<f32>()];
    Ok(Some(Lowered { calls: vec![round, product], temps, ..Lowered::default() }))
}

pub(super) fn embedding(cx: &Lower<'_>) -> Result {
    let (&[n, k], &[m]) = (&cx.src[0].dims[..], &cx.src[1].dims[..]) else { return Ok(None) };
    let (Some(format), Some(sizes)) = (format(cx.src[0].dtype, k), ints([n, k])) else {
        return Ok(None);
    };
    let args = args![[Arg::Src(0), Arg::Src(1), Arg::Dst], sizes];
    let definitions = format!("-DVEC=4 -DFORMAT={format} -DW_OB=1 -DC_OB=1 -DLANES=1");
    let (global, local) = ([k.div_ceil(32), m, 1], None);
    let kernel = "embedding";
    let call = Call { family: WEIGHTS, definitions, kernel, args, global, local };
    let check = Some(Check { operand: 1, limit: n, op: "embedding" });
    Ok(Some(Lowered { check, ..call.into() }))
}
