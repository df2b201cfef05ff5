//! Scores and sums of a few rows with a cache as it lies: what decoding one position does. Bound by
//! memory, so that each group is read once, in the order in which it lies.

use super::attention_layout::{CacheType, GROUP, KEY_RUN, RUN, VALUE_RUN, VALUES, panel_at};
use super::attention_tile::{F16, F32, Scores, Values, cached, signed};

/// Bytes of a row of a group of keys, by type of cache.
const fn key_bytes(kind: u8) -> usize {
    match kind {
        F32 => 4 * GROUP,
        F16 => 2 * GROUP,
        _ => GROUP,
    }
}

macro_rules! decode_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        #[allow(clippy::int_plus_one, reason = "some tiles take one element at a time")]
        pub(crate) mod $id {
            use super::*;
            use tilewright_intrinsics::{each, $tile as tile};

            const L: usize = $l;
            decode_tiles! { $l $feat }
        }
    };
}

/// The tiles by the lanes of a vector: for scores rows, chains of sums per row, their product, and
/// vectors of a group's row; for values rows and vectors, without and with scales. First the columns
/// of a panel of values, which the widest tile takes at once.
macro_rules! decode_tiles {
    (16 $feat:tt) => {
        decode_functions! { $feat 64
        [[4 2 8 1] [2 4 8 1] [1 8 8 1]] [[4 4] [2 4] [1 4] [4 1] [2 1] [1 1]] [[4 2] [2 2] [1 2]] }
    };
    (8 $feat:tt) => {
        decode_functions! { $feat 16
        [[4 1 4 2] [2 2 4 2] [1 4 4 2]] [[4 2] [2 2] [1 2]] [[4 2] [2 2] [1 2]] }
    };
    (4 $feat:tt) => {
        decode_functions! { $feat 16
        [[4 1 4 4] [2 1 2 4] [1 2 2 4]] [[4 4] [2 4] [1 4]] [[4 4] [2 4] [1 4]] }
    };
    (2 $feat:tt) => {
        decode_functions! { $feat 16
        [[2 1 2 8] [1 1 1 8]] [[2 8] [1 8]] [[2 8] [1 8]] }
    };
    (1 $feat:tt) => {
        decode_functions! { $feat 16
        [[1 1 1 16]] [[1 16]] [[1 16]] }
    };
}

macro_rules! decode_functions {
    ([$($f:tt)*] $width:tt [$([$sg:tt $su:tt $sgu:tt $sv:tt])*] [$([$vg:tt $vv:tt])*] [$([$qg:tt $qv:tt])*]) => {
        pub(crate) const WIDTH: usize = $width;

        /// # Safety
        /// That of `ScoresFn`.
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn scores<const KIND: u8>(a: &Scores) {
            for g in 0..a.groups {
                let (k, mut row) = (a.k.wrapping_add(g * a.group), 0);
                $(while a.rows - row >= $sg {
                    let q = a.q.wrapping_add(row * a.q_row);
                    let mut t = tile!(ZEROS [[tile!(VTYPE); $sv]; $sgu]);
                    score_steps! { t, q, a.q_row, a.size, [$sg $su $sv] KIND, k, a.ahead, |p, j| cached!(KIND, p, j) }
                    score_store! { t, a.s.wrapping_add(row * a.s_row + g * GROUP), a.s_row, [$sg $su $sv] }
                    row += $sg;
                })*
            }
        }

        /// # Safety
        /// That of `ScoresFn`.
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn scores_q8(a: &Scores) {
            const KIND: u8 = super::super::attention_tile::Q8_0;
            let (mask, zero) = signed!();
            for g in 0..a.groups {
                let (k, mut row) = (a.k.wrapping_add(g * a.group), 0);
                $(while a.rows - row >= $sg {
                    let mut t = tile!(ZEROS [[tile!(VTYPE); $sv]; $sgu]);
                    for at in (0..a.size).step_by(RUN) {
                        let run = k.wrapping_add(at / RUN * KEY_RUN);
                        let (q, bytes) = (a.q.wrapping_add(row * a.q_row + at), run.wrapping_add(2 * GROUP));
                        let mut x = tile!(ZEROS [[tile!(VTYPE); $sv]; $sgu]);
                        score_steps! { x, q, a.q_row, (a.size - at).min(RUN), [$sg $su $sv] KIND, bytes, a.ahead,
                            |p, j| tile!(VLOAD8 p.wrapping_add(j * L), mask, zero) }
                        each!(j in $sv {
                            let scale = tile!(VLOAD16 run.cast::<u16>().wrapping_add(j * L));
                            each!(i in $sgu { t[i][j] = tile!(VFMA scale, x[i][j], t[i][j]); });
                        });
                    }
                    score_store! { t, a.s.wrapping_add(row * a.s_row + g * GROUP), a.s_row, [$sg $su $sv] }
                    row += $sg;
                })*
            }
        }

        /// # Safety
        /// That of `ValuesFn`.
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn values<const KIND: u8>(a: &Values) {
            let (kind, bytes) = if KIND == F32 { (CacheType::F32, 4) } else { (CacheType::F16, 2) };
            for (g, keys, panel) in visits!(a, a.width) {
                let width = (a.size - panel).min(a.width);
                let v = a.v.wrapping_add(g * a.group + panel_at(kind, panel));
                let mut column = 0;
                while column < width {
                    let (mut row, mut done) = (0, 0);
                    $(while a.rows - row >= $vg && width - column >= $vv * L && (done == 0 || done == $vv * L) {
                        done = $vv * L;
                        let p = a.p.wrapping_add(row * a.p_row + g * VALUES);
                        let o = a.o.wrapping_add(row * a.size + panel + column);
                        let mut t = tile!(ZEROS [[tile!(VTYPE); $vv]; $vg]);
                        each!(i in $vg { each!(j in $vv { t[i][j] = tile!(VLOAD o.wrapping_add(i * a.size), j); }); });
                        for key in keys[0]..keys[1] {
                            let v = v.wrapping_add((key * width + column) * bytes);
                            each!(j in $vv {
                                if j * L * bytes % 64 == 0 { ahead!(a.ahead, v, j * L * bytes); }
                                let x = cached!(KIND, v, j);
                                each!(i in $vg { t[i][j] = tile!(VFMA tile!(VSPLAT p, i * a.p_row + key), x, t[i][j]); });
                            });
                        }
                        each!(i in $vg { each!(j in $vv { tile!(VSTORE o.wrapping_add(i * a.size), j, t[i][j]); }); });
                        row += $vg;
                    })*
                    column += done;
                }
            }
        }

        /// # Safety
        /// That of `ValuesFn`.
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn values_q8(a: &Values) {
            let (mask, zero) = signed!();
            for (g, keys, panel) in visits!(a, RUN) {
                let v = a.v.wrapping_add(g * a.group + panel / RUN * VALUE_RUN);
                let mut column = 0;
                while column < RUN {
                    let (mut row, mut done) = (0, 0);
                    $(while a.rows - row >= $qg {
                        done = $qv * L;
                        let p = a.p.wrapping_add(row * a.p_row + g * VALUES);
                        let o = a.o.wrapping_add(row * a.size + panel + column);
                        let mut weights = [0.0f32; $qg * VALUES];
                        let w = weights.as_mut_ptr();
                        for j in keys[0] / L..keys[1].div_ceil(L) {
                            let scale = tile!(VLOAD16 v.cast::<u16>().wrapping_add(j * L));
                            each!(i in $qg {
                                let p = p.wrapping_add(i * a.p_row);
                                tile!(VSTORE w.wrapping_add(i * VALUES), j, tile!(VMUL scale, tile!(VLOAD p, j)));
                            });
                        }
                        let mut t = tile!(ZEROS [[tile!(VTYPE); $qv]; $qg]);
                        each!(i in $qg { each!(j in $qv { t[i][j] = tile!(VLOAD o.wrapping_add(i * a.size), j); }); });
                        for key in keys[0]..keys[1] {
                            let v = v.wrapping_add(2 * VALUES + key * RUN + column);
                            if key % 2 == 0 { ahead!(a.ahead, v, 0); }
                            each!(j in $qv {
                                let x = tile!(VLOAD8 v.wrapping_add(j * L), mask, zero);
                                each!(i in $qg { t[i][j] = tile!(VFMA tile!(VSPLAT w, i * VALUES + key), x, t[i][j]); });
                            });
                        }
                        each!(i in $qg { each!(j in $qv { tile!(VSTORE o.wrapping_add(i * a.size), j, t[i][j]); }); });
                        row += $qg;
                    })*
                    column += done;
                }
            }
        }
    };
}

/// The panels of the groups of values in the order in which they lie: group, first and last but one
/// position of it, first column.
macro_rules! visits {
    ($a:ident, $width:expr) => {{
        let groups = $a.keys[0] / VALUES..$a.keys[1].div_ceil(VALUES);
        groups.flat_map(|g| {
            let keys = $a.keys.map(|key| key.saturating_sub(g * VALUES).min(VALUES));
            (0..$a.size).step_by($width).map(move |panel| (g, keys, panel))
        })
    }};
}

/// Fetches what will be read from the same stream soon.
macro_rules! ahead {
    ($far:expr, $p:expr, $at:expr) => {
        tile!(VPREFETCH $p.cast::<f32>(), ($far + $at) / 4)
    };
}

/// `n` rows of a group of keys, times as many elements of some rows of queries.
macro_rules! score_steps {
    ($t:ident, $q:ident, $q_row:expr, $n:expr, [$g:tt $u:tt $v:tt] $kind:ident, $k:ident, $far:expr, |$p:ident, $j:ident| $load:expr) => {
        let (n, step, mut at) = ($n, key_bytes($kind), 0);
        while at + $u <= n {
            each!(u in $u {
                let $p = $k.wrapping_add((at + u) * step);
                if u * step % 64 == 0 { ahead!($far, $p, 0); }
                each!($j in $v {
                    let x = $load;
                    each!(i in $g { $t[i * $u + u][$j] =
                        tile!(VFMA tile!(VSPLAT $q, i * $q_row + at + u), x, $t[i * $u + u][$j]); });
                });
            });
            at += $u;
        }
        while at < n {
            let $p = $k.wrapping_add(at * step);
            each!($j in $v {
                let x = $load;
                each!(i in $g { $t[i * $u][$j] =
                    tile!(VFMA tile!(VSPLAT $q, i * $q_row + at), x, $t[i * $u][$j]); });
            });
            at += 1;
        }
    };
}

/// The sums of all chains of each row.
macro_rules! score_store {
    ($t:ident, $s:expr, $s_row:expr, [$g:tt $u:tt $v:tt]) => {
        let s = $s;
        each!(i in $g { each!(j in $v {
            let mut sum = $t[i * $u][j];
            each!(u in $u { if u > 0 { sum = tile!(VADD sum, $t[i * $u + u][j]); } });
            tile!(VSTORE s.wrapping_add(i * $s_row), j, sum);
        }); });
    };
}

tilewright_intrinsics::for_each_tile!(decode_row);
