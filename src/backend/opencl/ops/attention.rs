//! Attention, with and without a cache.

use core::any::Any;
use std::sync::Arc;

use super::matmul::{self, Together};
use super::{Arg, Call, Check, Lower, Lowered, Result, args, ints, numbers};
use crate::backend::opencl::programs::{ATTENTION, NEXT};
use crate::backend::opencl::{Region, Shared};
use crate::graph::GraphError;
use crate::graph::kv_cache::{KvShape, Resident};
use crate::graph::ops::attention::Attention;
use crate::graph::ops::kv_attention::KvAttention;
use crate::graph::ops::rope::{Rope, RopeStyle};
use crate::tensor::DType;

/// Most elements of a head that kernels hold.
const MOST: usize = 512;

/// Work-items of a group that moves elements.
const GROUP: usize = 64;

/// Most work-items that compute one head of one row together.
const MOST_TOGETHER: usize = 256;

/// Work-items that compute one head of one row: on processors one, whose neighbours would only wait for it.
fn together(shared: &Shared) -> usize {
    if shared.shape.lanes == 1 { 1 } else { shared.info.group(MOST_TOGETHER) }
}

/// A group for every head of every row.
fn groups([heads, rows, batch]: [usize; 3], together: usize) -> ([usize; 3], Option<[usize; 3]>) {
    ([heads * together, rows, batch], Some([together, 1, 1]))
}

/// The definitions of kernels for heads of these sizes.
fn heads([key, value]: [usize; 2], together: usize) -> String {
    let span = value.next_power_of_two().min(together);
    format!("-DKEY={key} -DVALUE={value} -DGROUP={together} -DSPAN={span}")
}

/// Keys and values of a layer on the device: `[heads][capacity][size]` each.
struct DeviceCache {
    shared: Arc<Shared>,
    keys: Arc<Region>,
    values: Arc<Region>,
}

impl DeviceCache {
    fn new(shared: &Arc<Shared>, shape: &KvShape) -> core::result::Result<Self, GraphError> {
        let [keys, values] = shape.planes().expect("the cache exists");
        let take = |bytes| shared.pool.take(bytes).map(Arc::new);
        Ok(Self { shared: shared.clone(), keys: take(keys)?, values: take(values)? })
    }
}

impl Resident for DeviceCache {
    fn copy_from(&self, other: &dyn Resident) -> core::result::Result<(), GraphError> {
        let other = other.as_any().downcast_ref::<Self>();
        let other = other.filter(|o| Arc::ptr_eq(&o.shared, &self.shared));
        let other = other.ok_or_else(|| GraphError::Unsupported {
            op: "kv_cache",
            what: "copying between devices".to_owned(),
        })?;
        self.shared.queue.submit(|s| {
            for (from, to) in [(&other.keys, &self.keys), (&other.values, &self.values)] {
                s.copy(from.memory(), 0, to.memory(), 0, from.bytes())?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whether kernels compute attention over such a cache.
pub(in crate::backend::opencl) fn takes(shape: &KvShape) -> bool {
    let small = shape.key_size.max(shape.value_size) <= MOST;
    let counted = i32::try_from(shape.capacity).is_ok() && i32::try_from(shape.heads).is_ok();
    matches!(shape.dtype, DType::F32 | DType::F16) && small && counted
}

pub(super) fn cached(op: &KvAttention, cx: &Lower<'_>) -> Result {
    // Kernels know no sinks.
    if cx.src.len() > 4 { Ok(None) } else { over_cache(op, cx, None) }
}

/// Whether one kernel computes what `layer` does: on processors, whose cores all have work then.
pub(in crate::backend::opencl) fn takes_layer(shared: &Shared, shape: &KvShape) -> bool {
    let units = usize::try_from(shared.info.units).unwrap_or(usize::MAX).max(1);
    let busy = shape.heads.is_multiple_of(units) || shape.heads / 4 >= units;
    shared.shape.lanes == 1 && busy
}

/// Attention of one row with the products that its queries, keys and values are, and their rotations: operands
/// are those of the products, positions and the table of angles.
pub(in crate::backend::opencl) fn layer(
    products: &Together,
    op: &KvAttention,
    rope: &Rope,
    cx: &Lower<'_>,
) -> Result {
    let (shape, [keys, values]) = (*op.cache.shape(), cache(op, cx)?);
    let Some(first) = matmul::first(products, cx) else { return Ok(None) };
    let [positions, table] = [cx.src.len() - 2, cx.src.len() - 1];
    let half_split = usize::from(matches!(rope.style, RopeStyle::Half));
    let sizes = ints([
        first.length,
        first.has_bias.into(),
        op.heads,
        shape.heads,
        shape.capacity,
        cx.src[table].dims[1],
        half_split,
        op.window.unwrap_or(0).min(shape.capacity),
    ]);
    let Some(sizes) = sizes else { return Ok(None) };
    let floats = [first.epsilon, op.scale, op.softcap.unwrap_or(0.0)].map(Arg::Float);
    let args = args![
        first.operands,
        [Arg::Src(positions), Arg::Src(table)],
        [0, 1, 2].map(Arg::Temp),
        [Arg::Memory(keys), Arg::Memory(values)],
        [Arg::Dst, Arg::Local(first.local)],
        numbers(args![sizes, floats]),
    ];
    let definitions = format!("{} {}", first.definitions, definitions(&shape, 1));
    let (global, local) = groups([shape.heads, 1, 1], 1);
    let call = Call { family: NEXT, definitions, kernel: "next_layer", args, global, local };
    let made = [op.heads * shape.key_size, shape.heads * shape.key_size];
    let made = [made[0], made[1], shape.heads * shape.value_size];
    let temps = made.map(|elements| elements * size_of::<f32>()).to_vec();
    Ok(Some(Lowered { temps, ..over(op, call.into()) }))
}

/// Attention whose queries and keys are turned before: operands are queries, keys, values, positions and the
/// table of angles.
pub(in crate::backend::opencl) fn turned(op: &KvAttention, rope: &Rope, cx: &Lower<'_>) -> Result {
    over_cache(op, cx, Some(rope))
}

/// Keys and values of an operation on this device.
fn cache(op: &KvAttention, cx: &Lower<'_>) -> core::result::Result<[Arc<Region>; 2], GraphError> {
    let made =
        op.cache.resident(|| Ok(Arc::new(DeviceCache::new(cx.shared, op.cache.shape())?)))?;
    let cache = made.as_any().downcast_ref::<DeviceCache>();
    let cache = cache.filter(|c| Arc::ptr_eq(&c.shared, cx.shared));
    let what = || GraphError::Unsupported {
        op: "kv_attention",
        what: "a cache that another device keeps".to_owned(),
    };
    cache.map(|c| [c.keys.clone(), c.values.clone()]).ok_or_else(what)
}

fn over_cache(op: &KvAttention, cx: &Lower<'_>, rope: Option<&Rope>) -> Result {
    let shape = *op.cache.shape();
    if !takes(&shape) {
        return Ok(None);
    }
    let [keys, values] = cache(op, cx)?;
    let (rows, [heads, kv_heads]) = (cx.dst.dims[0], [op.heads, shape.heads]);
    let together = together(cx.shared);
    let definitions = format!("-DVEC=4 {}", definitions(&shape, together));
    let call = |kernel, args, (global, local)| {
        let definitions = definitions.clone();
        Call { family: ATTENTION, definitions, kernel, args, global, local }
    };
    let keys = || Arg::Memory(keys.clone());
    let values = || Arg::Memory(values.clone());
    let window = op.window.unwrap_or(0).min(shape.capacity);
    let scales = || [Arg::Float(op.scale), Arg::Float(op.softcap.unwrap_or(0.0))];
    let (mut calls, mut temps) = (Vec::new(), Vec::new());
    let rotation = rope.map(|rope| {
        let half_split = matches!(rope.style, RopeStyle::Half);
        (cx.src[4].dims[1], half_split)
    });
    match rotation {
        // Nobody but this row reads what it puts into the cache.
        Some((rotated, half_split)) if rows == 1 => {
            let sizes = ints([heads, kv_heads, shape.capacity, rotated, half_split.into(), window]);
            let Some(sizes) = sizes else { return Ok(None) };
            let operands = [0, 1, 2, 3, 4].map(Arg::Src);
            let numbers = numbers(args![sizes, scales()]);
            let args = args![operands, [keys(), values(), Arg::Dst], numbers];
            calls.push(call("attention_next", args, groups([heads, 1, 1], together)));
        }
        Some((rotated, half_split)) => {
            let sizes = ints([rows, heads, kv_heads, shape.capacity, rotated, half_split.into()]);
            let Some(sizes) = sizes else { return Ok(None) };
            let operands = [0, 1, 2, 3, 4].map(Arg::Src);
            let args = args![operands, [Arg::Temp(0), keys(), values()], sizes];
            let elements = (shape.key_size - rotated / 2).max(shape.value_size);
            let items = cx.spread([elements, heads + 2 * kv_heads, rows], GROUP);
            calls.push(call("turn_and_keep", args, items));
            temps.push(rows * heads * shape.key_size * size_of::<f32>());
        }
        None => {
            for (operand, size, memory) in
                [(1, shape.key_size, keys()), (2, shape.value_size, values())]
            {
                let sizes = ints([rows, kv_heads, size, shape.capacity]);
                let Some(sizes) = sizes else { return Ok(None) };
                let args = args![[Arg::Src(operand), Arg::Src(3), memory], sizes];
                calls.push(call("keep", args, cx.spread([size, kv_heads, rows], GROUP)));
            }
        }
    }
    if rotation.is_none() || rows > 1 {
        let sizes = ints([rows, heads, kv_heads, shape.capacity, window]);
        let Some(sizes) = sizes else { return Ok(None) };
        let queries = if rotation.is_some() { Arg::Temp(0) } else { Arg::Src(0) };
        let args = args![[queries, Arg::Src(3), keys(), values(), Arg::Dst], sizes, scales()];
        calls.push(call("attention_cached", args, groups([heads, rows, 1], together)));
    }
    Ok(Some(Lowered { temps, ..over(op, calls.into()) }))
}

/// The definitions of kernels over such a cache.
fn definitions(shape: &KvShape, together: usize) -> String {
    let half = if shape.dtype == DType::F16 { " -DHALF_CACHE" } else { "" };
    heads([shape.key_size, shape.value_size], together) + half
}

/// Kernels over the cache of an operation, which they keep.
fn over(op: &KvAttention, calls: Lowered) -> Lowered {
    let limit = op.cache.shape().capacity;
    let check = Some(Check { operand: 3, limit, op: "kv_attention" });
    Lowered { check, keep: vec![op.cache.clone()], ..calls }
}

pub(super) fn plain(op: &Attention, cx: &Lower<'_>) -> Result {
    if !cx.all_f32() || op.size.max(op.values) > MOST {
        return Ok(None);
    }
    let masks = cx.src[3..].iter().map(|m| mask_steps(op, &m.dims)).collect::<Option<Vec<_>>>();
    let Some(masks) = masks else { return Ok(None) };
    let steps = |i: usize| masks.get(i).copied().unwrap_or([0; 3]);
    let mask = |i: usize| if i < masks.len() { Arg::Src(3 + i) } else { Arg::Absent };
    let rows = op.rows;
    let result = op.result_steps();
    let places = ints([
        rows[0].batch,
        rows[0].head,
        rows[0].row,
        rows[1].batch,
        rows[1].head,
        rows[1].row,
        rows[2].batch,
        rows[2].head,
        rows[2].row,
        result[0],
        result[1],
        result[2],
    ]);
    let ([a, b, c], [d, e, f]) = (steps(0), steps(1));
    let steps = ints([a, b, c, d, e, f]);
    let (Some(sizes), Some(places), Some(steps)) = (ints([op.keys]), places, steps) else {
        return Ok(None);
    };
    let from = |i: usize| Arg::Part(i, rows[i].offset * size_of::<f32>());
    let args = args![
        [from(0), from(1), from(2), mask(0), mask(1), Arg::Dst],
        sizes,
        places,
        [Arg::Int(masks.len() as i32)],
        steps,
        [Arg::Float(op.scale)]
    ];
    let together = together(cx.shared);
    let (global, local) = groups([op.heads, op.queries, op.batch], together);
    let guarded = if op.guarded { " -DGUARDED" } else { "" };
    let definitions = format!("-DVEC=4 {}{guarded}", heads([op.size, op.values], together));
    let kernel = "attention_plain";
    Ok(Some(Call { family: ATTENTION, definitions, kernel, args, global, local }.into()))
}

/// From one batch, head and row of a mask to the next, if it broadcasts to the scores and has all keys.
fn mask_steps(op: &Attention, mask: &[usize]) -> Option<[usize; 3]> {
    let full = [op.batch, op.heads, op.queries, op.keys];
    let mut dims = [1; 4];
    dims[4usize.checked_sub(mask.len())?..].copy_from_slice(mask);
    let fits = dims.iter().zip(&full).all(|(d, f)| *d == 1 || d == f) && dims[3] == op.keys;
    let step = |i: usize| if dims[i] == 1 { 0 } else { dims[i + 1..].iter().product() };
    fits.then(|| [step(0), step(1), step(2)])
}
