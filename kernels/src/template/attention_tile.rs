//! What attention does besides products, on each instruction set: scaling, unpacking of a cache,
//! softmax of rows as far as they are seen, and the sums of a few rows with a cache as it lies.

use super::attention_layout::CacheType;
use super::softmax::FAR;
use crate::{Dtype, Isa};

/// The functions of an instruction set.
pub(crate) struct AttentionKernels {
    /// Of f32 products, for reports.
    pub(crate) name: &'static str,
    /// Elements of a vector.
    pub(crate) lanes: usize,
    pub(crate) scale: ScaleFn,
    /// Columns of a panel of values of a cache without scales.
    pub(crate) width: usize,
    pub(crate) weigh: WeighFn,
    pub(crate) rescale: RescaleFn,
    pub(crate) finish: FinishFn,
    pub(crate) merge: MergeFn,
    /// By type of cache, as what follows.
    pub(crate) unpack_k: [UnpackFn; 3],
    pub(crate) unpack_v: [UnpackFn; 3],
    pub(crate) scores: [ScoresFn; 3],
    pub(crate) values: [ValuesFn; 3],
    pub(crate) store: [StoreFn; 3],
}

/// `n` elements at the first pointer, times a factor, to the second.
///
/// # Safety
/// The CPU has the instructions; so many elements are readable and writable there.
pub(crate) type ScaleFn = unsafe fn(*const f32, *mut f32, usize, f32);

/// Groups of a cache, to become panels of `f32`, or of words of two bf16: of neighbouring elements of a
/// key, of neighbouring positions of values; what of the last one there is not is 0.
pub(crate) struct Unpack<'a> {
    /// The first group.
    pub(crate) src: *const u8,
    /// Bytes of a group.
    pub(crate) group: usize,
    /// Positions; keys are unpacked up to the next multiple of 16.
    pub(crate) count: usize,
    /// Elements of a key, or of a row of values.
    pub(crate) size: usize,
    /// Keys: columns of a panel `[size][width]`. Values: of a panel of the cache.
    pub(crate) width: usize,
    /// Values: the first column and the width of each panel `[rows][width]`.
    pub(crate) panels: &'a [(usize, usize)],
    pub(crate) rows: usize,
    pub(crate) dst: *mut f32,
}

/// # Safety
/// The CPU has the instructions; the groups are readable and the panels writable.
pub(crate) type UnpackFn = unsafe fn(&Unpack<'_>);

/// Scores of some rows for neighbouring keys, to become weights.
pub(crate) struct Weigh {
    /// `rows` rows of `len` scores, in units of `log2 e`, or arguments of the soft-cap's tanh.
    pub(crate) s: *mut f32,
    /// Elements between rows of scores, a multiple of 16; so many are writable in each.
    pub(crate) stride: usize,
    /// The weights, as far from row to row: where the scores are, or elsewhere as bf16.
    pub(crate) p: *mut f32,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    /// Position of the first key.
    pub(crate) start: usize,
    /// Per row: the first position that it sees, and one past the last.
    pub(crate) lo: *const u32,
    pub(crate) hi: *const u32,
    /// Per row, up to a multiple of 16: the greatest score so far, and what sums so far must be
    /// multiplied with.
    pub(crate) most: *mut f32,
    pub(crate) alpha: *mut f32,
    /// Per row 16 sums of weights, of which as many count as a vector has elements.
    pub(crate) sums: *mut f32,
    /// The soft-cap, in units of `log2 e`; 0 for none.
    pub(crate) cap: f32,
}

/// Writes `2^(score - most)` for each score, 0 for those not seen; brings maxima and sums up to date.
///
/// # Safety
/// The CPU has the instructions; the rows and what there is per row are readable and writable.
pub(crate) type WeighFn = unsafe fn(&Weigh);

/// Multiplies each of some rows of a length, a multiple of 16, by its own factor.
///
/// # Safety
/// The CPU has the instructions; rows and factors are readable, rows writable.
pub(crate) type RescaleFn = unsafe fn(*mut f32, *const f32, usize, usize);

/// Writes `n` elements of a row divided by the sum of its weights: `(row, sums, most, y, n)`. NaN if no
/// score was more than the least number.
///
/// # Safety
/// The CPU has the instructions; the row and 16 sums are readable, `n` elements writable at `y`.
pub(crate) type FinishFn = unsafe fn(*const f32, *const f32, f32, *mut f32, usize);

/// Adds up what parts of the keys gave for a row: `(parts, count, step, row, y, n)`. A part is a row
/// of so many elements, then the greatest score and the sum of weights; parts are `step` apart.
///
/// # Safety
/// The CPU has the instructions; the parts are readable, `n` elements writable at `y`.
pub(crate) type MergeFn = unsafe fn(*const f32, usize, usize, usize, *mut f32, usize);

/// Scores of a few rows: rows of queries times groups of keys.
pub(crate) struct Scores {
    /// Scaled queries `[rows][q_row]`.
    pub(crate) q: *const f32,
    pub(crate) q_row: usize,
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) size: usize,
    pub(crate) k: *const u8,
    /// Bytes of a group.
    pub(crate) group: usize,
    pub(crate) groups: usize,
    /// `[rows][s_row]`
    pub(crate) s: *mut f32,
    pub(crate) s_row: usize,
    /// Bytes between what is read and what is fetched.
    pub(crate) ahead: usize,
}

/// # Safety
/// The CPU has the instructions; queries and groups are readable, the scores writable.
pub(crate) type ScoresFn = unsafe fn(&Scores);

/// Sums of values: rows of weights times rows of values, added to the output.
pub(crate) struct Values {
    /// Weights of the positions from the first group's first on, `[rows][p_row]`, a multiple of 16.
    pub(crate) p: *const f32,
    pub(crate) p_row: usize,
    pub(crate) rows: usize,
    pub(crate) v: *const u8,
    /// Bytes of a group.
    pub(crate) group: usize,
    /// First position, and one past the last, from that of the first group on.
    pub(crate) keys: [usize; 2],
    /// Elements of a row of values, a multiple of 16; rows of the output are as far apart.
    pub(crate) size: usize,
    /// Columns of a panel of the cache.
    pub(crate) width: usize,
    pub(crate) o: *mut f32,
    /// Bytes between what is read and what is fetched.
    pub(crate) ahead: usize,
}

/// # Safety
/// The CPU has the instructions; weights and values are readable, the output readable and writable.
pub(crate) type ValuesFn = unsafe fn(&Values);

/// New rows of keys and values: one, or as many as a vector has lanes, for positions that follow each other
/// from a multiple of that on.
pub(crate) struct Store {
    pub(crate) rows: usize,
    /// Between two rows of keys, and of values.
    pub(crate) steps: [usize; 2],
    pub(crate) k: *const f32,
    pub(crate) size: usize,
    /// The groups of the position.
    pub(crate) keys: *mut u8,
    pub(crate) values: *mut u8,
    pub(crate) position: usize,
    pub(crate) v: *const f32,
    pub(crate) v_size: usize,
    /// Elements of a row of values with its padding, and columns of a panel.
    pub(crate) v_row: usize,
    pub(crate) v_width: usize,
}

/// # Safety
/// The CPU has the instructions; the rows are readable, the groups writable.
pub(crate) type StoreFn = unsafe fn(&Store);

pub(crate) const F32: u8 = CacheType::F32 as u8;
pub(crate) const F16: u8 = CacheType::F16 as u8;
pub(crate) const Q8_0: u8 = CacheType::Q8_0 as u8;

/// What softmax starts from: below every score.
pub(crate) const LEAST: f32 = f32::MIN;

/// Most parts of the keys of a head.
pub(crate) const SPLITS: usize = 16;

/// Vector `i` of the 16 elements at `p`, numbers or halves.
macro_rules! cached {
    ($kind:ident, $p:expr, $i:expr) => {
        if $kind == F32 {
            tile!(VLOAD $p.cast::<f32>(), $i)
        } else {
            tile!(VLOAD16 $p.cast::<u16>().wrapping_add($i * tile!(LANES)))
        }
    };
}
pub(crate) use cached;

macro_rules! attention_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        #[allow(clippy::modulo_one, clippy::redundant_locals, reason = "scalar code has one lane")]
        #[allow(clippy::approx_constant, reason = "a coefficient of a polynomial is near ln 2")]
        pub(crate) mod $id {
            use super::*;
            use super::super::attention_decode::$id as decode;
            use super::super::attention_store::$id as stores;
            use super::super::attention_unpack::$id as unpack;
            use super::super::attention_weigh::$id as weights;
            use tilewright_intrinsics::$tile as tile;

            const L: usize = $l;

            pub(crate) const KERNELS: AttentionKernels = AttentionKernels {
                name: concat!("attention_f32_", $l, "_", stringify!($isa_name)),
                lanes: L,
                width: decode::WIDTH,
                weigh: weights::weigh,
                scale, rescale, finish, merge,
                unpack_k: [unpack::keys::<F32>, unpack::keys::<F16>, unpack::keys::<Q8_0>],
                unpack_v: [unpack::values::<F32>, unpack::values::<F16>, unpack::values::<Q8_0>],
                scores: [decode::scores::<F32>, decode::scores::<F16>, decode::scores_q8],
                values: [decode::values::<F32>, decode::values::<F16>, decode::values_q8],
                store: [stores::row::<F32>, stores::row::<F16>, stores::row::<Q8_0>],
            };

            $(#[target_feature(enable = $f)])*
            unsafe fn scale(x: *const f32, y: *mut f32, n: usize, factor: f32) {
                let factor = tile!(VSET factor);
                for i in 0..n / L { tile!(VSTORE y, i, tile!(VMUL factor, tile!(VLOAD x, i))); }
                let (at, rest) = (n / L * L, n % L);
                if rest > 0 {
                    let last = tile!(VMUL factor, tile!(VLOAD_TAIL x.wrapping_add(at), rest));
                    let y = y.wrapping_add(at);
                    tile!(VSTORE_TAIL y, rest, last);
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn rescale(o: *mut f32, alpha: *const f32, rows: usize, size: usize) {
                for row in 0..rows {
                    let (o, factor) = (o.wrapping_add(row * size), tile!(VSPLAT alpha, row));
                    for j in 0..size / L { tile!(VSTORE o, j, tile!(VMUL factor, tile!(VLOAD o, j))); }
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn finish(row: *const f32, sums: *const f32, most: f32, y: *mut f32, n: usize) {
                let sum: f32 = tile!(LANES_OF tile!(VLOAD sums, 0)).iter().sum();
                let factor = if most == LEAST { f32::NAN } else { 1.0 / sum };
                // SAFETY: `n` elements are readable and writable there.
                unsafe { scale(row, y, n, factor) };
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn merge(parts: *const f32, count: usize, step: usize, row: usize, y: *mut f32, n: usize) {
                // SAFETY: a part has two numbers behind its row.
                let end = |part: usize| unsafe {
                    let end = parts.add(part * step + row);
                    [*end, *end.add(1)]
                };
                let mut most = LEAST;
                for part in 0..count { most = if end(part)[0] > most { end(part)[0] } else { most }; }
                let (mut weights, mut sum) = ([0.0; SPLITS], 0.0);
                for (part, weight) in weights.iter_mut().enumerate().take(count) {
                    let [score, weights] = end(part);
                    let x = tile!(VMAX tile!(VSET FAR), tile!(VSET score - most));
                    *weight = tile!(LANES_OF tile!(MATH EXP2_WEIGHT x))[0];
                    sum += *weight * weights;
                }
                let factor = if most == LEAST { f32::NAN } else { 1.0 / sum };
                for i in (0..n).step_by(L) {
                    let mut total = tile!(VZERO);
                    for (part, weight) in weights.iter().enumerate().take(count) {
                        let p = parts.wrapping_add(part * step + i);
                        total = tile!(VFMA tile!(VSET *weight * factor), tile!(VLOAD p, 0), total);
                    }
                    let (y, left) = (y.wrapping_add(i), n - i);
                    if left >= L { tile!(VSTORE y, 0, total) } else { tile!(VSTORE_TAIL y, left, total) }
                }
            }
        }
    };
}

/// What turns a byte into the number that it is as a signed one: see `VLOAD8`.
macro_rules! signed {
    () => {
        (tile!(VSET f32::from_bits(0x4b00_0080)), tile!(VSET 8_388_736.0f32))
    };
}
pub(crate) use signed;

tilewright_intrinsics::for_each_tile!(attention_row);

/// Those of an instruction set that the caller has found available.
pub(crate) fn kernels(isa: Isa) -> &'static AttentionKernels {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return &$id::KERNELS;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    &scalar_f32::KERNELS
}
