//! Unrolling, in the source.

/// Writes a block `N` times, `N` a literal from 1 to 24: `each!(i in 3 { f(i); })` is
/// `{ let i = 0; f(i); } { let i = 1; f(i); } { let i = 2; f(i); }`.
///
/// What has to do with a tile must be unrolled in the source: the compiler keeps a large `for` loop, at `opt-level`
/// 2 one over a few vectors, and any where it is to save bytes ("s", "z"), and with the loop the tile in memory. This
/// does it with declarative macros only, which is several times faster to compile than a procedural one.
///
/// With elements of one or two arrays of `N` beside the number, or beside `_`: `each!(i, x of (&mut a), y of b in 3
/// { *x = y; })` is `a[i] = b[i]` for each `i`. It takes the arrays apart by a pattern, which the compiler looks at
/// five times as fast as at an index, and kernels have hundreds of thousands of those.
#[macro_export]
macro_rules! each {
    ($i:ident in $n:tt $body:tt) => { $crate::each!($n $i $body) };
    ($i:tt, $x:ident of $a:tt in $n:tt $body:tt) => { $crate::each!(of $n [$i $x $a] $body) };
    ($i:tt, $x:ident of $a:tt, $y:ident of $b:tt in $n:tt $body:tt) => {
        $crate::each!(of $n [$i $x $a $y $b] $body) };
    (@of [$i:tt $x:ident $a:tt] $body:tt $(($p:ident $q:ident $n:literal))*) => {
        { let [$($p),*] = $a; $({ let $i = $n; let $x = $p; $body })* } };
    (@of [$i:tt $x:ident $a:tt $y:ident $b:tt] $body:tt $(($p:ident $q:ident $n:literal))*) => {
        { let [$($p),*] = $a; let [$($q),*] = $b; $({ let $i = $n; let $x = $p; let $y = $q; $body })* } };
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
    (of 1 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize)) };
    (of 2 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize)) };
    (of 3 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize)) };
    (of 4 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize)) };
    (of 5 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize)) };
    (of 6 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize)) };
    (of 7 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize)) };
    (of 8 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize)) };
    (of 9 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize)) };
    (of 10 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize)) };
    (of 11 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize)) };
    (of 12 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize)) };
    (of 13 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize)) };
    (of 14 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize)) };
    (of 15 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize)) };
    (of 16 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize)) };
    (of 17 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize)) };
    (of 18 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize) (p17 q17 17usize)) };
    (of 19 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize) (p17 q17 17usize) (p18 q18 18usize)) };
    (of 20 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize) (p17 q17 17usize) (p18 q18 18usize) (p19 q19 19usize)) };
    (of 21 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize) (p17 q17 17usize) (p18 q18 18usize) (p19 q19 19usize) (p20 q20 20usize)) };
    (of 22 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize) (p17 q17 17usize) (p18 q18 18usize) (p19 q19 19usize) (p20 q20 20usize) (p21 q21 21usize)) };
    (of 23 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize) (p17 q17 17usize) (p18 q18 18usize) (p19 q19 19usize) (p20 q20 20usize) (p21 q21 21usize) (p22 q22 22usize)) };
    (of 24 $($of:tt)*) => { $crate::each!(@of $($of)* (p0 q0 0usize) (p1 q1 1usize) (p2 q2 2usize) (p3 q3 3usize) (p4 q4 4usize) (p5 q5 5usize) (p6 q6 6usize) (p7 q7 7usize) (p8 q8 8usize) (p9 q9 9usize) (p10 q10 10usize) (p11 q11 11usize) (p12 q12 12usize) (p13 q13 13usize) (p14 q14 14usize) (p15 q15 15usize) (p16 q16 16usize) (p17 q17 17usize) (p18 q18 18usize) (p19 q19 19usize) (p20 q20 20usize) (p21 q21 21usize) (p22 q22 22usize) (p23 q23 23usize)) };
}
