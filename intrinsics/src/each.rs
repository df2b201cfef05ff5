//! Unrolling.

/// Writes a block `N` times, `N` a literal from 1 to 24: `each!(i in 3 { f(i); })` is
/// `{ let i = 0; f(i); } { let i = 1; f(i); } { let i = 2; f(i); }`.
///
/// A tile must be unrolled in the source: the compiler keeps a large `for` loop, and with it the
/// tile in memory. This does it with declarative macros only, which is several times faster to
/// compile than a procedural one.
#[macro_export]
macro_rules! each {
    ($i:ident in $n:tt $body:tt) => { $crate::each!($n $i $body) };
    (@ $i:ident $body:tt $($n:literal)*) => { $({ let $i = $n as usize; $body })* };
    (1 $i:ident $body:tt) => { $crate::each!(@ $i $body 0) };
    (2 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1) };
    (3 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2) };
    (4 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3) };
    (5 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4) };
    (6 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5) };
    (7 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6) };
    (8 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7) };
    (9 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8) };
    (10 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9) };
    (11 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10) };
    (12 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11) };
    (13 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12) };
    (14 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13) };
    (15 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14) };
    (16 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (17 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16) };
    (18 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17) };
    (19 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18) };
    (20 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19) };
    (21 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20) };
    (22 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21) };
    (23 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22) };
    (24 $i:ident $body:tt) => { $crate::each!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23) };
}
