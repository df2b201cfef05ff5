//! Attention by a memory of fixed size, which forgets: the gated delta rule (Yang et al. 2024, "Gated delta
//! networks"), by which it is corrected, and that of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"), by which
//! it is only added to.
//!
//! A head remembers values by keys in a matrix. Each token scales it by a decay, perhaps reads what it holds for its
//! key, adds a share of the token's value, or of what differs from that, and reads the result for its query.
//! Elements of a value know nothing of each other: those of a panel of them stay in the nearest cache for all tokens.

use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// What a token adds to the matrix of a head for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaRule {
    /// A share of how its value differs from what is remembered; head `h` has the queries and keys of head
    /// `h % key_heads`.
    Corrected,
    /// A share of its value; neighbouring heads have the same queries and keys.
    Added,
}

/// Sizes of a rule over some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaParams {
    /// What is added.
    pub rule: DeltaRule,
    /// Tokens, one behind the other.
    pub tokens: usize,
    /// Heads of values, each with a matrix.
    pub heads: usize,
    /// Heads of queries and keys, which divide those of the values.
    pub key_heads: usize,
    /// Elements of a query or key.
    pub keys: usize,
    /// Elements of a value.
    pub values: usize,
    /// Distance of the heads' matrices, in elements.
    pub stride: usize,
}

impl DeltaParams {
    /// Elements of a matrix: a row per element of a key in each panel, of which the last may be padded. The
    /// largest number there is if it is larger.
    pub fn matrix(&self) -> usize {
        let values = self.values.checked_next_multiple_of(PANEL);
        values.unwrap_or(usize::MAX).saturating_mul(self.keys)
    }

    /// The head of queries and keys of a head of values.
    fn key_head(&self, head: usize) -> usize {
        match self.rule {
            DeltaRule::Corrected => head % self.key_heads,
            DeltaRule::Added => head / (self.heads / self.key_heads),
        }
    }

    /// Where a matrix has what it remembers of an element of a value, for one of a key.
    pub fn at(&self, key: usize, value: usize) -> usize {
        (value / PANEL * self.keys + key) * PANEL + value % PANEL
    }
}

/// Where the operands lie.
#[derive(Clone, Copy, Debug)]
pub struct DeltaOperands {
    /// Queries `[tokens, key_heads * keys]`.
    pub q: *const f32,
    /// Keys of the same shape.
    pub k: *const f32,
    /// Values `[tokens, heads * values]`.
    pub v: *const f32,
    /// Factors of the matrices `[tokens, heads]`.
    pub decay: *const f32,
    /// Shares of what is added `[tokens, heads]`.
    pub rate: *const f32,
    /// Matrices of all heads, `stride` apart: zeros before the first token, and behind the elements of a
    /// value always.
    pub state: *mut f32,
    /// Results `[tokens, heads * values]`.
    pub y: *mut f32,
}

/// A rule for fixed sizes.
#[derive(Clone, Debug)]
pub struct DeltaPlan {
    isa: Isa,
    params: DeltaParams,
    kernel: DeltaFn,
    name: &'static str,
}

const OP: &str = "delta";

/// Elements of a value that lie together: as many as the widest tile computes.
const PANEL: usize = 32;

impl DeltaPlan {
    /// Plans a rule.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] for heads that no head of keys divides and matrices that overlap,
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &DeltaParams) -> Result<Self, KernelError> {
        isa.require()?;
        let p = params;
        let wrong = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        if p.key_heads == 0 || !p.heads.is_multiple_of(p.key_heads) {
            return wrong("key_heads", "a divisor of the heads");
        }
        if checked_len(OP, &[p.matrix()])? > p.stride && p.heads > 1 {
            return wrong("stride", "at least the elements of a matrix");
        }
        checked_len(OP, &[p.heads, p.stride.max(p.values)])?;
        checked_len(OP, &[p.tokens, p.key_heads, p.keys])?;
        checked_len(OP, &[p.tokens, p.heads, p.values.max(1)])?;
        let (kernel, name) = kernel(isa);
        Ok(Self { isa, params: *p, kernel, name })
    }

    /// Elements of the operands in their order, and of the result: queries, keys, values, decay, rate,
    /// matrices.
    pub fn operand_len(&self, i: usize) -> usize {
        let p = &self.params;
        match i {
            0 | 1 => p.tokens * p.key_heads * p.keys,
            3 | 4 => p.tokens * p.heads,
            5 if p.heads > 0 => (p.heads - 1) * p.stride + p.matrix(),
            5 => 0,
            _ => p.tokens * p.heads * p.values,
        }
    }

    /// The sizes.
    pub fn params(&self) -> &DeltaParams {
        &self.params
    }

    /// Independent units of work: the heads of the values.
    pub fn units(&self) -> usize {
        self.params.heads
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.name
    }

    /// Computes some units.
    ///
    /// # Safety
    ///
    /// * The operands have [`operand_len`](Self::operand_len) readable elements, matrices and result
    ///   writable ones; none overlaps these two.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, o: &DeltaOperands, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        for head in units {
            // SAFETY: the ISA is available; the head's parts lie in the operands of the caller.
            unsafe { (self.kernel)(&self.params, o, head) };
        }
    }

    /// Computes all units on this thread. Operands in the order of [`operand_len`](Self::operand_len).
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(
        &self,
        [q, k, v, decay, rate]: [&[f32]; 5],
        state: &mut [f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        let lens = [
            ("q", q.len()),
            ("k", k.len()),
            ("v", v.len()),
            ("decay", decay.len()),
            ("rate", rate.len()),
            ("state", state.len()),
            ("y", y.len()),
        ];
        for (i, (name, len)) in lens.into_iter().enumerate() {
            check_len(OP, name, self.operand_len(i), len)?;
        }
        let [q, k, v, decay, rate] = [q, k, v, decay, rate].map(<[f32]>::as_ptr);
        let (state, y) = (state.as_mut_ptr(), y.as_mut_ptr());
        let o = DeltaOperands { q, k, v, decay, rate, state, y };
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(&o, 0..self.units()) };
        Ok(())
    }
}

/// Computes all tokens of a head.
///
/// # Safety
/// The CPU has the instructions; the operands are as [`DeltaPlan::run`] says, and have that head.
type DeltaFn = unsafe fn(&DeltaParams, &DeltaOperands, usize);

macro_rules! delta_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::{each, $tile as tile};

            const L: usize = $l;
            pub(super) const KERNEL: (DeltaFn, &str) =
                (head, concat!("delta_f32_", $l, "_", stringify!($isa_name)));
            delta_tile! { $l $feat }
        }
    };
}

/// The tile by the lanes of a vector: keys, each with sums of its own, and vectors of values.
macro_rules! delta_tile {
    (16 $feat:tt) => {
        delta_head! { [4 2] $feat }
    };
    (8 $feat:tt) => {
        delta_head! { [2 4] $feat }
    };
    ($l:tt $feat:tt) => {
        delta_head! { [1 8] $feat }
    };
}

macro_rules! delta_head {
    ([$u:tt $v:tt] [$($f:tt)*]) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn head(p: &DeltaParams, o: &DeltaOperands, head: usize) {
            let key_head = p.key_head(head);
            for first in (0..p.values).step_by($v * L) {
                let panel = o.state.wrapping_add(head * p.stride + first / PANEL * PANEL * p.keys + first % PANEL);
                // Elements of the values in vector `j`.
                let inside = |j: usize| (p.values - first).saturating_sub(j * L).min(L);
                for token in 0..p.tokens {
                    let key = (token * p.key_heads + key_head) * p.keys;
                    let (q, k) = (o.q.wrapping_add(key), o.k.wrapping_add(key));
                    let at = token * p.heads + head;
                    let value = at * p.values + first;
                    let (v, y) = (o.v.wrapping_add(value), o.y.wrapping_add(value));
                    let decay = o.decay.wrapping_add(at);
                    let (decay, rate) = (tile!(VSPLAT decay, 0), tile!(VSPLAT o.rate.wrapping_add(at), 0));
                    // What the matrix holds for the key, before it decays.
                    let mut held = tile!(ZEROS [[tile!(VTYPE); $v]; $u]);
                    if p.rule == DeltaRule::Corrected {
                        delta_keys! { p.keys, [$u $v], panel, |i, u, j, s| {
                            held[u][j] = tile!(VFMA tile!(VSPLAT k, i), tile!(VLOAD s, j), held[u][j]);
                        } }
                    }
                    let mut change = delta_sums!(held, [$u $v]);
                    each!(j in $v {
                        let (v, n) = (v.wrapping_add(j * L), inside(j));
                        let v = if n == L {
                            tile!(VLOAD v, 0)
                        } else if n > 0 {
                            tile!(VLOAD_TAIL v, n)
                        } else {
                            tile!(VZERO)
                        };
                        change[j] = tile!(VMUL rate, tile!(VSUB v, tile!(VMUL decay, change[j])));
                    });
                    let mut read = tile!(ZEROS [[tile!(VTYPE); $v]; $u]);
                    delta_keys! { p.keys, [$u $v], panel, |i, u, j, s| {
                        let x = tile!(VMUL decay, tile!(VLOAD s, j));
                        let x = tile!(VFMA tile!(VSPLAT k, i), change[j], x);
                        tile!(VSTORE s, j, x);
                        read[u][j] = tile!(VFMA tile!(VSPLAT q, i), x, read[u][j]);
                    } }
                    let read = delta_sums!(read, [$u $v]);
                    each!(j in $v {
                        let (y, n) = (y.wrapping_add(j * L), inside(j));
                        if n == L {
                            tile!(VSTORE y, 0, read[j]);
                        } else if n > 0 {
                            tile!(VSTORE_TAIL y, n, read[j]);
                        }
                    });
                }
            }
        }
    };
}

/// Does something with each vector of a panel: for key `i`, with sums of number `u`, at `s`.
macro_rules! delta_keys {
    ($keys:expr, [$u:tt $v:tt], $panel:ident, |$i:ident, $su:ident, $j:ident, $s:ident| $body:block) => {
        let mut at = 0;
        while $keys - at >= $u {
            each!($su in $u {
                let $i = at + $su;
                let $s = $panel.wrapping_add($i * PANEL);
                each!($j in $v { $body });
            });
            at += $u;
        }
        while at < $keys {
            let ($i, $su) = (at, 0);
            let $s = $panel.wrapping_add($i * PANEL);
            each!($j in $v { $body });
            at += 1;
        }
    };
}

/// The sums of all keys.
macro_rules! delta_sums {
    ($sums:ident, [$u:tt $v:tt]) => {{
        let mut all = $sums[0];
        each!(u in $u {
            if u > 0 {
                each!(j in $v { all[j] = tile!(VADD all[j], $sums[u][j]); });
            }
        });
        all
    }};
}

tilewright_intrinsics::for_each_tile!(delta_row);

fn kernel(isa: Isa) -> (DeltaFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNEL;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNEL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Guarded, Numbers, Place, assert_close, skip};
    use std::vec;

    /// Results and matrices from the definition.
    fn reference(p: &DeltaParams, x: [&[f32]; 5], state: &mut [f64]) -> vec::Vec<f64> {
        let [q, k, v, decay, rate] = x;
        let mut y = vec![0.0; v.len()];
        for at in 0..p.tokens * p.heads {
            let (token, head) = (at / p.heads, at % p.heads);
            let key_head = match p.rule {
                DeltaRule::Corrected => head % p.key_heads,
                DeltaRule::Added => head * p.key_heads / p.heads,
            };
            let key = (token * p.key_heads + key_head) * p.keys;
            for value in 0..p.values {
                let s = |i: usize| head * p.stride + p.at(i, value);
                let read = |state: &[f64], x: &[f32]| -> f64 {
                    (0..p.keys).map(|i| state[s(i)] * f64::from(x[key + i])).sum()
                };
                (0..p.keys).for_each(|i| state[s(i)] *= f64::from(decay[at]));
                let v = f64::from(v[at * p.values + value]);
                let held = if p.rule == DeltaRule::Corrected { read(state, k) } else { 0.0 };
                let change = f64::from(rate[at]) * (v - held);
                (0..p.keys).for_each(|i| state[s(i)] += f64::from(k[key + i]) * change);
                y[at * p.values + value] = read(state, q);
            }
        }
        y
    }

    fn check(isa: Isa, p: DeltaParams, place: Place) {
        let plan = DeltaPlan::new(isa, &p).unwrap();
        let mut numbers = Numbers::new((p.tokens * 31 + p.keys * 7 + p.values) as u64);
        let mut x = [0, 1, 2, 3, 4].map(|i| numbers.floats(plan.operand_len(i)));
        // Keys have length 1, as for models: others make the matrices grow without end.
        for key in x[1].chunks_exact_mut(p.keys.max(1)) {
            let length = key.iter().map(|x| x * x).sum::<f32>().sqrt();
            key.iter_mut().for_each(|x| *x /= length.max(1e-3));
        }
        for i in [3, 4] {
            x[i].iter_mut().for_each(|x| *x = x.abs());
        }
        let mut first = vec![0.0; plan.operand_len(5)];
        for (head, value) in (0..p.heads).flat_map(|h| (0..p.values).map(move |v| (h, v))) {
            let drawn = numbers.floats(p.keys);
            (0..p.keys).for_each(|key| first[head * p.stride + p.at(key, value)] = drawn[key]);
        }
        let guarded = [0, 1, 2, 3, 4].map(|i| Guarded::new(&x[i], place));
        let mut state = Guarded::new(&first, place);
        let mut y = Guarded::output(plan.operand_len(6), place);
        let [q, k, v, decay, rate] = [0, 1, 2, 3, 4].map(|i| guarded[i].as_ptr());
        let (states, results) = (state.as_mut_ptr(), y.as_mut_ptr());
        let o = DeltaOperands { q, k, v, decay, rate, state: states, y: results };
        for unit in (0..plan.units()).rev() {
            // SAFETY: operands of the plan's lengths, units of the plan, one thread.
            unsafe { plan.run(&o, unit..unit + 1) };
        }
        let mut exact_state: vec::Vec<f64> = first.iter().map(|&s| f64::from(s)).collect();
        let exact = reference(&p, [&x[0], &x[1], &x[2], &x[3], &x[4]], &mut exact_state);
        let allowed = 1e-6 * (p.keys as f64 + 4.0) * (1.0 + p.tokens as f64).sqrt();
        for (i, (&y, &exact)) in y.iter().zip(&exact).enumerate() {
            assert_close(y, exact, allowed, (plan.kernel_name(), p, i));
        }
        for (i, (&s, &exact)) in state.iter().zip(&exact_state).enumerate() {
            assert_close(s, exact, allowed, (plan.kernel_name(), p, "state", i));
        }
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            #[test]
            fn $id() {
                if skip(Isa::$isa) {
                    return;
                }
                let sizes = [
                    (1, 16, 4),
                    (5, 1, 1),
                    (3, 7, 5),
                    (2, 33, 9),
                    (9, 64, 8),
                    (0, 8, 4),
                    (2, 0, 4),
                    (2, 16, 0),
                ];
                for (i, (tokens, keys, values)) in sizes.into_iter().enumerate() {
                    for (rule, heads, key_heads) in [
                        (DeltaRule::Corrected, 1, 1),
                        (DeltaRule::Corrected, 4, 2),
                        (DeltaRule::Added, 6, 2),
                    ] {
                        let p =
                            DeltaParams { rule, tokens, heads, key_heads, keys, values, stride: 0 };
                        let stride = p.matrix() + 16;
                        check(Isa::$isa, DeltaParams { stride, ..p }, Place::ALL[i % 3]);
                    }
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let rule = DeltaRule::Corrected;
        let p =
            DeltaParams { rule, tokens: 1, heads: 2, key_heads: 1, keys: 3, values: 2, stride: 96 };
        let wrong = |p: DeltaParams| DeltaPlan::new(Isa::Scalar, &p).unwrap_err();
        let e = wrong(DeltaParams { key_heads: 0, ..p });
        assert!(matches!(e, KernelError::InvalidParam { param: "key_heads", .. }), "{e:?}");
        let e = wrong(DeltaParams { stride: 95, ..p });
        assert!(matches!(e, KernelError::InvalidParam { param: "stride", .. }), "{e:?}");
        for huge in [
            DeltaParams { keys: usize::MAX, ..p },
            DeltaParams { values: usize::MAX, ..p },
            DeltaParams { tokens: usize::MAX / 4, ..p },
            DeltaParams { heads: usize::MAX / 8, ..p },
        ] {
            assert!(matches!(wrong(huge), KernelError::TooLarge { .. }), "{huge:?}");
        }
        let plan = DeltaPlan::new(Isa::Scalar, &p).unwrap();
        let (x, v, n) = ([0.0; 3], [0.0; 4], [0.0; 2]);
        let operands = [&x[..], &x, &v, &n, &n];
        assert!(plan.compute(operands, &mut [0.0; 192], &mut [0.0; 4]).is_ok());
        assert!(plan.compute(operands, &mut [0.0; 191], &mut [0.0; 4]).is_err());
        assert!(plan.compute(operands, &mut [0.0; 192], &mut [0.0; 3]).is_err());
    }
}
