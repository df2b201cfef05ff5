//! Scores of rows as weights of softmax: `f32` in place, or bf16, whose exponential need not be as exact.

use super::attention_layout::GROUP;
use super::attention_tile::Weigh;
use super::softmax::FAR;

macro_rules! weigh_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, f32, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        weigh_functions! { single $id $tile $feat $l }
    };
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, bf16, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        weigh_functions! { pairs $id $tile $feat $l }
    };
    ($($of_another_type:tt)*) => {};
}

/// Vectors of scores that become a vector of weights.
macro_rules! step {
    (single) => {
        1
    };
    (pairs) => {
        2
    };
}

/// The exponential.
macro_rules! weight {
    (single $x:expr) => {
        tile!(MATH EXP2_WEIGHT $x)
    };
    (pairs $x:expr) => {
        tile!(MATH EXP2_BF16 $x)
    };
}

/// Stores as vector `$i` of weights what ends with `$x[$last]`.
macro_rules! store {
    (single $p:expr, $i:expr, $x:expr, $last:expr) => {
        tile!(VSTORE $p, $i, $x[$last])
    };
    (pairs $p:expr, $i:expr, $x:expr, $last:expr) => {
        tile!(VSTORE $p, $i, tile!(VROW16 $x[$last - 1], $x[$last]))
    };
}

/// Zeroes the first `$lo` weights of a row, and those from `$hi` on up to `$len`.
macro_rules! hide {
    (single $p:expr, $lo:expr, $hi:expr, $len:expr) => {
        hide!(@ $p, $lo, $hi, $len)
    };
    (pairs $p:expr, $lo:expr, $hi:expr, $len:expr) => {
        hide!(@ $p.cast::<u16>(), $lo, $hi, $len)
    };
    (@ $p:expr, $lo:expr, $hi:expr, $len:expr) => {{
        let p = $p;
        // SAFETY: the row has `len` elements.
        unsafe {
            p.write_bytes(0, $lo);
            p.add($hi).write_bytes(0, $len - $hi);
        }
    }};
}

macro_rules! weigh_functions {
    ($mode:ident $id:ident $tile:ident [$($f:tt)*] $l:tt) => {
        #[allow(clippy::modulo_one, reason = "scalar code has one lane")]
        #[allow(clippy::approx_constant, reason = "a coefficient of a polynomial is near ln 2")]
        pub(crate) mod $id {
            use super::*;
            use tilewright_intrinsics::{$tile as tile, each};

            const L: usize = $l;
            const STEP: usize = step!($mode);

            /// The elements of the vectors that some of the elements `lo..hi` lie in.
            fn whole(lo: usize, hi: usize) -> (usize, usize) {
                if lo < hi { (lo / (STEP * L) * (STEP * L), hi.next_multiple_of(STEP * L)) } else { (lo, lo) }
            }

            /// Sets those before `lo` and from `hi` on to a number.
            ///
            /// # Safety
            /// They are writable.
            unsafe fn outside(s: *mut f32, lo: usize, hi: usize, x: f32) {
                let (at, end) = whole(lo, hi);
                // SAFETY: the caller's duties.
                unsafe {
                    for j in at..lo { *s.add(j) = x; }
                    for j in hi..end { *s.add(j) = x; }
                }
            }

            /// # Safety
            /// That of `WeighFn`.
            $(#[target_feature(enable = $f)])*
            pub(crate) unsafe fn weigh(w: &Weigh) {
                for first in (0..w.rows).step_by(L) {
                    let rows = (w.rows - first).min(L);
                    let mut bounds = [(0usize, 0usize); L];
                    let mut lanes = [f32::NEG_INFINITY; L * L];
                    for i in 0..rows {
                        // SAFETY: there are bounds for each row.
                        let (lo, hi) = unsafe { (*w.lo.add(first + i), *w.hi.add(first + i)) };
                        let seen = |at: u32| (at as usize).saturating_sub(w.start).min(w.len);
                        let (lo, hi) = (seen(lo), seen(hi));
                        bounds[i] = (lo, hi);
                        let s = w.s.wrapping_add((first + i) * w.stride);
                        if w.cap != 0.0 {
                            let cap = tile!(VSET w.cap);
                            for j in lo / L..hi.div_ceil(L) {
                                let x = tile!(VLOAD s, j);
                                tile!(VSTORE s, j, tile!(VMUL cap, tile!(MATH TANH x)));
                            }
                        }
                        let (mut at, end) = whole(lo, hi);
                        // SAFETY: the row has as many elements, a multiple of 16.
                        unsafe { outside(s, lo, hi, f32::NEG_INFINITY) };
                        let mut parts = [tile!(VSET f32::NEG_INFINITY); 4];
                        while at + 4 * L <= end {
                            let s = s.wrapping_add(at);
                            each!(k in 4 { parts[k] = tile!(VMAX parts[k], tile!(VLOAD s, k)); });
                            at += 4 * L;
                        }
                        let most = tile!(VMAX parts[0], parts[1]);
                        let mut most = tile!(VMAX most, tile!(VMAX parts[2], parts[3]));
                        while at < end {
                            most = tile!(VMAX most, tile!(VLOAD s.wrapping_add(at), 0));
                            at += L;
                        }
                        let p = lanes.as_mut_ptr();
                        tile!(VSTORE p, i, most);
                    }
                    // Lane by lane the maxima of a vector's worth of rows.
                    let mut t = tile!(ZEROS [[tile!(VTYPE); 1]; L]);
                    let p = lanes.as_ptr();
                    each!(i in $l { t[i][0] = tile!(VLOAD p, i); });
                    tile!(TRANSPOSE t);
                    let (most, alpha) = (w.most.wrapping_add(first), w.alpha.wrapping_add(first));
                    let before = tile!(VLOAD most, 0);
                    let mut now = before;
                    each!(i in $l { now = tile!(VMAX t[i][0], now); });
                    let far = tile!(VSET FAR);
                    let change = tile!(VMAX far, tile!(VSUB before, now));
                    tile!(VSTORE most, 0, now);
                    tile!(VSTORE alpha, 0, tile!(MATH EXP2_WEIGHT change));
                    for (i, &(lo, hi)) in bounds.iter().enumerate().take(rows) {
                        let s = w.s.wrapping_add((first + i) * w.stride);
                        let weights = w.p.wrapping_add((first + i) * (w.stride / STEP));
                        let sums = w.sums.wrapping_add((first + i) * GROUP);
                        // SAFETY: there is a maximum for each row; the row has as many elements.
                        unsafe {
                            let most = *most.add(i);
                            // Far below it, however large it is, and finite.
                            outside(s, lo, hi, (most - 200.0 - most.abs()).max(f32::MIN));
                        }
                        let most = tile!(VSPLAT most, i);
                        let mut sum = tile!(VMUL tile!(VSPLAT alpha, i), tile!(VLOAD sums, 0));
                        let mut other = tile!(VZERO);
                        let (mut at, end) = whole(lo, hi);
                        // Two sums and four vectors at a time, as each is a long chain. Elements without a
                        // key have 0.
                        while at + 4 * L <= end {
                            let (from, to) = (s.wrapping_add(at), weights.wrapping_add(at / STEP));
                            let mut x = [sum; 4];
                            each!(k in 4 {
                                let y = tile!(VSCALABLE far, tile!(VSUB tile!(VLOAD from, k), most));
                                x[k] = weight!($mode y);
                                if k % 2 == 0 { sum = tile!(VADD sum, x[k]); } else { other = tile!(VADD other, x[k]); }
                                if (k + 1) % STEP == 0 { store!($mode to, k / STEP, x, k); }
                            });
                            at += 4 * L;
                        }
                        sum = tile!(VADD sum, other);
                        while at < end {
                            let (from, to) = (s.wrapping_add(at), weights.wrapping_add(at / STEP));
                            let mut x = [sum; STEP];
                            each!(k in 2 {
                                if k < STEP {
                                    let y = tile!(VSCALABLE far, tile!(VSUB tile!(VLOAD from, k), most));
                                    x[k] = weight!($mode y);
                                    sum = tile!(VADD sum, x[k]);
                                }
                            });
                            store!($mode to, 0, x, STEP - 1);
                            at += STEP * L;
                        }
                        tile!(VSTORE sums, 0, sum);
                        hide!($mode weights, lo, hi, w.len);
                    }
                }
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(weigh_row, any);
