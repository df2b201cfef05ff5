//! Attention, with and without a cache.

use core::any::Any;
use std::sync::Arc;

use super::{Arg, Call, Check, Lower, Lowered, Result, args, ints, spread};
use crate::backend::opencl::programs::ATTENTION;
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
    over_cache(op, cx, None)
}

/// Attention whose queries and keys are turned before: operands are queries, keys, values, positions and the
/// table of angles.
pub(in crate::backend::opencl) fn turned(op: &KvAttention, rope: &Rope, cx: &Lower<'_>) -> Result {
    over_cache(op, cx, Some(rope))
}

fn over_cache(op: &KvAttention, cx: &Lower<'_>, rope: Option<&Rope>) -> Result {
    let shape = *op.cache.shape();
    if !takes(&shape) {
        return Ok(None);
    }
    let half = if shape.dtype == DType::F16 { " -DHALF_CACHE" } else { "" };
    let made = op.cache.resident(|| Ok(Arc::new(DeviceCache::new(cx.shared, &shape)?)))?;
    let cache = made.as_any().downcast_ref::<DeviceCache>();
    let Some(cache) = cache.filter(|c| Arc::ptr_eq(&c.shared, cx.shared)) else {
        let what = "a cache that another device keeps".to_owned();
        return Err(GraphError::Unsupported { op: "kv_attention", what });
    };
    let (keys, values) = (cache.keys.clone(), cache.values.clone());
    let rows = cx.dst.dims[0];
    let definitions =
        format!("-DVEC=4 -DKEY={} -DVALUE={}{half}", shape.key_size, shape.value_size);
    let mut calls = Vec::new();
    let mut temps = Vec::new();
    let queries = match rope {
        Some(rope) => {
            let rotated = cx.src[4].dims[1];
            let sizes = ints([rows, op.heads, shape.heads, shape.capacity, rotated]);
            let Some(sizes) = sizes else { return Ok(None) };
            let operands = [0, 1, 2, 3, 4].map(Arg::Src);
            let caches = [Arg::Memory(keys.clone()), Arg::Memory(values.clone())];
            let half_split = Arg::Int(matches!(rope.style, RopeStyle::Half).into());
            let args = args![operands, [Arg::Temp(0)], caches, sizes, [half_split]];
            let elements = (shape.key_size - rotated / 2).max(shape.value_size);
            let (global, local) = spread([elements, op.heads + 2 * shape.heads, rows], GROUP);
            let (definitions, kernel) = (definitions.clone(), "turn_and_keep");
            calls.push(Call { family: ATTENTION, definitions, kernel, args, global, local });
            temps.push(rows * op.heads * shape.key_size * size_of::<f32>());
            Arg::Temp(0)
        }
        None => {
            let sizes = |size| ints([rows, shape.heads, size, shape.capacity]);
            let parts = [(1, shape.key_size, keys.clone()), (2, shape.value_size, values.clone())];
            for (operand, size, memory) in parts {
                let Some(sizes) = sizes(size) else { return Ok(None) };
                let args = args![[Arg::Src(operand), Arg::Src(3), Arg::Memory(memory)], sizes];
                let (global, local) = spread([size, shape.heads, rows], GROUP);
                let (definitions, kernel) = (definitions.clone(), "keep");
                calls.push(Call { family: ATTENTION, definitions, kernel, args, global, local });
            }
            Arg::Src(0)
        }
    };
    let window = op.window.unwrap_or(0).min(shape.capacity);
    let Some(sizes) = ints([rows, op.heads, shape.heads, shape.capacity, window]) else {
        return Ok(None);
    };
    let operands = [queries, Arg::Src(3), Arg::Memory(keys), Arg::Memory(values), Arg::Dst];
    let numbers = [Arg::Float(op.scale), Arg::Float(op.softcap.unwrap_or(0.0))];
    let args = args![operands, sizes, numbers];
    let (global, local) = spread([op.heads, rows, 1], 1);
    let kernel = "attention_cached";
    calls.push(Call { family: ATTENTION, definitions, kernel, args, global, local });
    let check = Some(Check { operand: 3, limit: shape.capacity, op: "kv_attention" });
    let keep: Vec<Arc<dyn Any + Send + Sync>> = vec![op.cache.clone()];
    Ok(Some(Lowered { check, keep, temps, ..calls.into() }))
}

pub(super) fn plain(op: &Attention, cx: &Lower<'_>) -> Result {
    if !cx.all_f32() || op.size.max(op.values) > MOST {
        return Ok(None);
    }
    // A mask that broadcasts to [batch, heads, queries, keys].
    let (has_mask, steps) = match cx.src.get(3) {
        None => (false, [0; 3]),
        Some(mask) => {
            let mut dims = [1; 4];
            let Some(missing) = 4usize.checked_sub(mask.dims.len()) else { return Ok(None) };
            dims[missing..].copy_from_slice(&mask.dims);
            let full = [op.batch, op.heads, op.queries, op.keys];
            let fits = dims.iter().zip(&full).all(|(d, f)| *d == 1 || d == f);
            if !fits || dims[3] != op.keys {
                return Ok(None);
            }
            let step = |i: usize| if dims[i] == 1 { 0 } else { dims[i + 1..].iter().product() };
            (true, [step(0), step(1), step(2)])
        }
    };
    let rows = op.rows;
    let sizes = ints([op.heads, op.queries, op.keys]);
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
    ]);
    let (Some(sizes), Some(places), Some(steps)) = (sizes, places, ints(steps)) else {
        return Ok(None);
    };
    let mask = if has_mask { Arg::Src(3) } else { Arg::Absent };
    let from = |i: usize| Arg::Part(i, rows[i].offset * size_of::<f32>());
    let args = args![
        [from(0), from(1), from(2), mask, Arg::Dst],
        sizes,
        places,
        [Arg::Int(has_mask.into())],
        steps,
        [Arg::Float(op.scale)]
    ];
    let (global, local) = spread([op.heads, op.queries, op.batch], 1);
    let definitions = format!("-DVEC=4 -DKEY={} -DVALUE={}", op.size, op.values);
    let kernel = "attention_plain";
    Ok(Some(Call { family: ATTENTION, definitions, kernel, args, global, local }.into()))
}
