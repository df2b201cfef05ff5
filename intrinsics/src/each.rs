//! Unrolling, in the source.

/// Writes a block `N` times, `N` a literal from 1 to 24: `each!(i in 3 { f(i); })` is
/// `{ let i = 0; f(i); } { let i = 1; f(i); } { let i = 2; f(i); }`.
///
/// What has to do with a tile must be unrolled in the source: the compiler keeps a large `for` loop, at `opt-level`
/// 2 one over a few vectors, and any where it is to save bytes ("s", "z"), and with the loop the tile in memory. This
/// does it with declarative macros only, which is several times faster to compile than a procedural one.
#[macro_export]
macro_rules! each {
    ($i:ident in $n:tt $body:tt) => { $crate::each!($n $i $body) };
    (@ $i:ident $body:tt $($n:literal)*) => { $({ let $i = $n; $body })* };
    (1 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize) };
    (2 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize) };
    (3 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize) };
    (4 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize) };
    (5 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize) };
    (6 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize) };
    (7 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize) };
    (8 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize) };
    (9 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize) };
    (10 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize) };
    (11 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize) };
    (12 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize) };
    (13 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize) };
    (14 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize) };
    (15 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize) };
    (16 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize) };
    (17 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize) };
    (18 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize 17usize) };
    (19 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize 17usize 18usize) };
    (20 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize 17usize 18usize 19usize) };
    (21 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize 17usize 18usize 19usize 20usize) };
    (22 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize 17usize 18usize 19usize 20usize 21usize) };
    (23 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize 17usize 18usize 19usize 20usize 21usize 22usize) };
    (24 $i:ident $body:tt) => { $crate::each!(@ $i $body 0usize 1usize 2usize 3usize 4usize 5usize 6usize 7usize 8usize 9usize 10usize 11usize 12usize 13usize 14usize 15usize 16usize 17usize 18usize 19usize 20usize 21usize 22usize 23usize) };
}
