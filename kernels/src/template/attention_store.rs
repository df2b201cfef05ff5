//! Writing a position of a cache.

use super::attention_layout::{CacheType, GROUP, KEY_RUN, RUN, VALUE_RUN, VALUES, panel_at};
use super::attention_tile::{F16, F32, Store};
use tilewright_intrinsics::soft;

/// The scale and the bytes of a run, of which what there is not is 0: the greatest is +-127. A NaN
/// makes the scale NaN.
#[inline(always)]
fn quantized(x: &[f32; RUN]) -> (u16, [i8; RUN]) {
    let most = x.iter().fold(0.0f32, |most, x| {
        let x = x.abs();
        if x > most || x.is_nan() { x } else { most }
    });
    let factor = if most > 0.0 { 127.0 / most } else { 0.0 };
    let mut bytes = [0; RUN];
    for (byte, x) in bytes.iter_mut().zip(x) {
        *byte = soft::round(x * factor) as i8;
    }
    (soft::f16_from_f32(most / 127.0), bytes)
}

macro_rules! store_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        pub(crate) mod $id {
            use super::*;
            use tilewright_intrinsics::{$tile as tile, each};

            const L: usize = $l;

            /// # Safety
            /// That of `StoreFn`.
            $(#[target_feature(enable = $f)])*
            pub(crate) unsafe fn row<const KIND: u8>(s: &Store) {
                if KIND != F32 && KIND != F16 {
                    // SAFETY: the caller's duties.
                    return unsafe { bytes(s) };
                }
                // SAFETY: the caller's duties.
                unsafe {
                    if s.rows == L { keys::<KIND>(s) } else { key::<KIND>(s) }
                    values::<KIND>(s);
                }
            }

            /// One row of keys, element by element.
            $(#[target_feature(enable = $f)])*
            unsafe fn key<const KIND: u8>(s: &Store) {
                let halves = KIND == F16;
                let mut lanes = [0.0f32; L];
                let (keys, keys16) = (s.keys.cast::<f32>(), s.keys.cast::<u16>());
                for at in (0..s.size).step_by(L) {
                    let n = (s.size - at).min(L);
                    let x = tile!(VLOAD_TAIL s.k.wrapping_add(at), n);
                    let p = lanes.as_mut_ptr();
                    if halves { tile!(VSTORE16 p.cast::<u16>(), x) } else { tile!(VSTORE p, 0, x) }
                    for i in 0..n {
                        let to = (at + i) * GROUP + s.position % GROUP;
                        // SAFETY: element `at + i` of this position in the panel.
                        unsafe {
                            if halves { *keys16.add(to) = *p.cast::<u16>().add(i) } else { *keys.add(to) = *p.add(i) }
                        }
                    }
                }
            }

            /// As many rows as a vector has lanes: of each element a vector of positions.
            $(#[target_feature(enable = $f)])*
            unsafe fn keys<const KIND: u8>(s: &Store) {
                let mut t = tile!(ZEROS [[tile!(VTYPE); 1]; L]);
                for at in (0..s.size).step_by(L) {
                    let n = (s.size - at).min(L);
                    each!(i in $l { t[i][0] = tile!(VLOAD_TAIL s.k.wrapping_add(i * s.steps[0] + at), n); });
                    tile!(TRANSPOSE t);
                    each!(i in $l { if i < n {
                        let to = (at + i) * GROUP + s.position % GROUP;
                        if KIND == F16 { tile!(VSTORE16 s.keys.cast::<u16>().wrapping_add(to), t[i][0]) }
                        else { let p = s.keys.cast::<f32>().wrapping_add(to); tile!(VSTORE p, 0, t[i][0]) }
                    } });
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn values<const KIND: u8>(s: &Store) {
                for row in 0..s.rows {
                    let v = s.v.wrapping_add(row * s.steps[1]);
                    for at in (0..s.v_row).step_by(L) {
                        let n = s.v_size.saturating_sub(at).min(L);
                        let x = if n > 0 { tile!(VLOAD_TAIL v.wrapping_add(at), n) } else { tile!(VZERO) };
                        let panel = at / s.v_width * s.v_width;
                        let width = (s.v_row - panel).min(s.v_width);
                        let to = (s.position + row) % VALUES * width + at - panel;
                        if KIND == F16 {
                            let values = s.values.wrapping_add(panel_at(CacheType::F16, panel)).cast::<u16>();
                            tile!(VSTORE16 values.wrapping_add(to), x)
                        } else {
                            let values = s.values.wrapping_add(panel_at(CacheType::F32, panel)).cast::<f32>();
                            tile!(VSTORE values.wrapping_add(to), 0, x)
                        }
                    }
                }
            }

            /// Q8_0.
            $(#[target_feature(enable = $f)])*
            unsafe fn bytes(s: &Store) {
                for row in 0..s.rows {
                    let (of_keys, of_values) = ((s.position + row) % GROUP, (s.position + row) % VALUES);
                    let (k, v) = (s.k.wrapping_add(row * s.steps[0]), s.v.wrapping_add(row * s.steps[1]));
                    // SAFETY: the rows and groups of the caller; runs as the layout has them.
                    unsafe {
                        for (i, at) in (0..s.size).step_by(RUN).enumerate() {
                            let (scale, bytes) = run(k.add(at), (s.size - at).min(RUN));
                            let panel = s.keys.add(i * KEY_RUN);
                            *panel.cast::<u16>().add(of_keys) = scale;
                            for (k, byte) in bytes.iter().enumerate() {
                                *panel.add((2 + k) * GROUP + of_keys) = *byte as u8;
                            }
                        }
                        for (i, at) in (0..s.v_row).step_by(RUN).enumerate() {
                            let left = s.v_size.saturating_sub(at).min(RUN);
                            let (scale, bytes) = run(v.wrapping_add(at), left);
                            let panel = s.values.add(i * VALUE_RUN);
                            *panel.cast::<u16>().add(of_values) = scale;
                            let row = panel.add(2 * VALUES + of_values * RUN);
                            row.copy_from_nonoverlapping(bytes.as_ptr().cast(), RUN);
                        }
                    }
                }
            }

            /// A run of `n` elements.
            $(#[target_feature(enable = $f)])*
            unsafe fn run(x: *const f32, n: usize) -> (u16, [i8; RUN]) {
                let mut padded = [0.0; RUN];
                // SAFETY: `n` elements, 32 at most, are readable there.
                unsafe { padded.as_mut_ptr().copy_from_nonoverlapping(x, n) };
                quantized(&padded)
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(store_row);
