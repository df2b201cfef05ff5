//! Groups of a cache as the panels that products read, of `f32` or of words of two bf16.

use super::attention_layout::{CacheType, GROUP, KEY_RUN, RUN, VALUES, panel_at};
use super::attention_tile::{F16, F32, Q8_0, Unpack, UnpackFn, WeighFn, cached, signed};
use crate::{Dtype, Isa};
use tilewright_intrinsics::soft;

/// What an instruction set that multiplies bf16 has of its own.
pub(crate) struct HalfKernels {
    /// Words of some elements, each times a factor: `(elements, words, count, factor)`.
    pub(crate) words: WordsFn,
    pub(crate) weigh: WeighFn,
    /// By type of cache.
    pub(crate) unpack_k: [UnpackFn; 3],
    pub(crate) unpack_v: [UnpackFn; 3],
}

/// # Safety
/// The CPU has the instructions; so many elements are readable, half as many words, rounded up,
/// writable.
pub(crate) type WordsFn = unsafe fn(*const f32, *mut f32, usize, f32);

macro_rules! unpack_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, f32, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        pub(crate) mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            const L: usize = $l;
            unpack_functions! { single $feat }
        }
    };
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, bf16, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        pub(crate) mod $id {
            use super::*;
            use super::super::attention_weigh::$id as weights;
            use tilewright_intrinsics::$tile as tile;

            const L: usize = $l;
            unpack_functions! { pairs [$($f)*] }

            pub(super) const KERNELS: HalfKernels = HalfKernels {
                words,
                weigh: weights::weigh,
                unpack_k: [keys::<F32>, keys::<F16>, keys::<Q8_0>],
                unpack_v: [values::<F32>, values::<F16>, values::<Q8_0>],
            };

            $(#[target_feature(enable = $f)])*
            unsafe fn words(x: *const f32, y: *mut f32, n: usize, factor: f32) {
                let factor = tile!(VSET factor);
                let mut at = 0;
                while at + 2 * L <= n {
                    let x = x.wrapping_add(at);
                    let (a, b) = (tile!(VMUL factor, tile!(VLOAD x, 0)), tile!(VMUL factor, tile!(VLOAD x, 1)));
                    tile!(VSTORE y.wrapping_add(at / 2), 0, tile!(VROW16 a, b));
                    at += 2 * L;
                }
                if at < n {
                    let (x, y, n) = (x.wrapping_add(at), y.wrapping_add(at / 2), n - at);
                    let (first, second) = (n.min(L), n.saturating_sub(L));
                    let a = tile!(VMUL factor, tile!(VLOAD_TAIL x, first));
                    let b = tile!(VMUL factor, tile!(VLOAD_TAIL x.wrapping_add(first), second));
                    let words = n.div_ceil(2);
                    tile!(VSTORE_TAIL y, words, tile!(VROW16 a, b));
                }
            }
        }
    };
    ($($of_another_type:tt)*) => {};
}

/// One vector as it is, or two as words.
macro_rules! joined {
    (single, $a:expr, $b:expr) => { $a };
    (pairs, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        tile!(VPAIR16 a, b)
    }};
}

/// Elements that become one.
macro_rules! step {
    (single) => {
        1
    };
    (pairs) => {
        2
    };
}

macro_rules! unpack_functions {
    ($mode:ident [$($f:tt)*]) => {
        /// # Safety
        /// That of `UnpackFn`.
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn keys<const KIND: u8>(u: &Unpack<'_>) {
            const STEP: usize = step!($mode);
            let (mask, zero) = signed!();
            for g in 0..u.count.div_ceil(GROUP) {
                let src = u.src.wrapping_add(g * u.group);
                for j in 0..GROUP / L {
                    let column = g * GROUP + j * L;
                    let panel = column / u.width * u.width * u.size.div_ceil(STEP);
                    let dst = u.dst.wrapping_add(panel + column % u.width);
                    macro_rules! element {
                        ($k:expr) => {{
                            let k: usize = $k;
                            if KIND == Q8_0 {
                                let run = src.wrapping_add(k / RUN * KEY_RUN);
                                let bytes = run.wrapping_add((2 + k % RUN) * GROUP + j * L);
                                let scale = tile!(VLOAD16 run.cast::<u16>().wrapping_add(j * L));
                                tile!(VMUL scale, tile!(VLOAD8 bytes, mask, zero))
                            } else {
                                cached!(KIND, src, (k * (GROUP / L) + j))
                            }
                        }};
                    }
                    for k in 0..u.size / STEP {
                        let x = joined!($mode, element!(STEP * k), element!(STEP * k + 1));
                        tile!(VSTORE dst.wrapping_add(k * u.width), 0, x);
                    }
                    if !u.size.is_multiple_of(STEP) {
                        let x = joined!($mode, element!(u.size - 1), tile!(VZERO));
                        tile!(VSTORE dst.wrapping_add(u.size / STEP * u.width), 0, x);
                    }
                }
            }
        }

        /// # Safety
        /// That of `UnpackFn`.
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn values<const KIND: u8>(u: &Unpack<'_>) {
            const STEP: usize = step!($mode);
            let kind = match KIND { F32 => CacheType::F32, F16 => CacheType::F16, _ => CacheType::Q8_0 };
            let (mask, zero) = signed!();
            for &(column, width) in u.panels {
                let panel = column / u.width * u.width;
                let (of, begin) = ((u.size - panel).min(u.width), column - panel);
                let dst = u.dst.wrapping_add(column * u.rows);
                macro_rules! element {
                    ($key:expr, $j:expr) => {{
                        let (key, j): (usize, usize) = ($key, $j);
                        let src = u.src.wrapping_add(key / VALUES * u.group + panel_at(kind, panel));
                        let key = key % VALUES;
                        if KIND == Q8_0 {
                            // SAFETY: the scale of this position and run.
                            let scale = unsafe { *src.cast::<u16>().wrapping_add(key) };
                            let bytes = src.wrapping_add(2 * VALUES + key * RUN + begin + j * L);
                            tile!(VMUL tile!(VSET soft::f32_from_f16(scale)), tile!(VLOAD8 bytes, mask, zero))
                        } else if KIND == F32 {
                            tile!(VLOAD src.cast::<f32>().wrapping_add(key * of + begin), j)
                        } else {
                            tile!(VLOAD16 src.cast::<u16>().wrapping_add(key * of + begin + j * L))
                        }
                    }};
                }
                for key in 0..u.count / STEP {
                    let dst = dst.wrapping_add(key * width);
                    for j in 0..width / L {
                        let x = joined!($mode, element!(STEP * key, j), element!(STEP * key + 1, j));
                        tile!(VSTORE dst, j, x);
                    }
                }
                if !u.count.is_multiple_of(STEP) {
                    let dst = dst.wrapping_add(u.count / STEP * width);
                    for j in 0..width / L {
                        let x = joined!($mode, element!(u.count - 1, j), tile!(VZERO));
                        tile!(VSTORE dst, j, x);
                    }
                }
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(unpack_row, any);

/// Those of an instruction set that multiplies bf16.
pub(crate) fn half_kernels(isa: Isa) -> Option<&'static HalfKernels> {
    let serving = isa.serving(Dtype::Bf16);
    let mut found = None;
    macro_rules! kernels {
        ($id:ident bf16) => {
            Some(&$id::KERNELS)
        };
        ($id:ident $other:ident) => {
            None
        };
    }
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $($rest:tt)*) => {
            if serving == Isa::$isa {
                found = found.or(kernels!($id $dtype));
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, any);
    found
}
