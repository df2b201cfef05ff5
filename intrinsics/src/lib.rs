//! What one tile step means on each instruction set.
//!
//! A kernel keeps an output tile in registers: `R` rows of `W` pixels (or rows of a matrix), each
//! of `V` vectors. It is DEFined, initialised (`ZERO`, `BIAS`, `LOAD`), updated in a loop
//! (`COMPUTE`), finished (`ADD`, `RELU`, ...) and `STORE`d. Each of these verbs is an arm of
//! one macro per (instruction set, element type), `tile_<isa>_<dtype>!`, which the templates of
//! the kernels crate call without knowing which one it is.
//!
//! # Two levels of arms
//!
//! * `V*` arms are primitives on one vector. Every ISA file has all of them, in the same order.
//! * Verbs act on a whole tile. [`tile_default!`](crate::tile_default) derives them from the `V*`
//!   arms; an ISA overrides one only if it has something better (NEON: multiply by lane).
//!
//! | arm | value |
//! |---|---|
//! | `LANES`, `STEPS` | elements per vector; the type of [`steps`] that addresses pixels |
//! | `VTYPE` | the vector type |
//! | `VZERO`, `VSET x` | all lanes 0; all lanes `x` |
//! | `VLOAD p, i`, `VSTORE p, i, x` | vector `i` of the array at `p`, any alignment |
//! | `VLOAD_TAIL p, n`, `VSTORE_TAIL p, n, x` | the first `n <= LANES` elements at `p`; loaded lanes from `n` on are 0; no byte beyond is touched |
//! | `VSTREAM p, i, x`, `VSTREAMED` | as `VSTORE`, past the caches if the machine can do that, at a multiple of a vector's size; all of these before any later store (by default `VSTORE`, and nothing) |
//! | `VSPLAT p, i` | element `i` of the array at `p` in all lanes |
//! | `VPREFETCH p, i` | hint that element `i` will be read soon; never faults |
//! | `VFMA a, b, c` | `a * b + c`, rounded once (scalar: twice) |
//! | `VADD`, `VSUB`, `VMUL`, `VDIV` | the IEEE operation per lane |
//! | `VMAX a, b`, `VMIN a, b` | `a > b ? a : b`, `a < b ? a : b`: `b` if a lane of either is NaN |
//! | `VSQRT x` | the square root, correctly rounded |
//! | `VROUND x`, `VFLOOR x` | to the nearest integer (ties to even); to the one below |
//! | `VABS x`, `VCOPYSIGN x, s` | without its sign; with the sign of `s` |
//! | `VGT a, b`, `VSEL m, a, b` | a mask of `a > b`; `m ? a : b` |
//! | `VPOW2 n` | `2^n` for an integer `n` in -126..=127; unless there is a `VSCALE_OR0`, 0 for -127 |
//! | `VEXPO x`, `VMANT x` | `e` and `m` of `x = m * 2^e` with `1 <= m < 2`, for positive normal `x` |
//! | `TRANSPOSE t` | transposes a tile of `LANES` rows of one vector |
//! | `VITOF x` | lanes of `i32` bits as floats, rounded to nearest even |
//! | `VIMLA a, b, c` | `a * b + c` of lanes of `i32` bits, modulo 2^32 |
//! | `VLOAD8 p, m, z`, `VLOAD8_TAIL p, n, m, z` | the `LANES` bytes at `p`, or the first `n`, each as the float whose bits are those of `m` xor the byte, less `z`: with `m` 2^23 this is the byte less `z - 2^23`, with bit 7 flipped too it takes signed bytes plus 128; lanes from `n` on hold anything |
//! | `VSTORE8 p, x`, `VSTORE8_TAIL p, n, x` | lanes that are integers from -128 to 255, or the first `n`, as bytes at `p` |
//! | `VWORDS8 p, m, z, f`, `VHALVES a, b` | rows of 16 words of four unsigned bytes only: lane `c` has bytes `c`, `16 + c`, `32 + c`, `48 + c` at `p`, those of `z` where the mask `m` has no bit for their 4 bytes, which are not touched then; all bits of `f` are flipped; the lower halves of the words of `b` and the upper ones of `a` |
//! | `VWIDE8 p, f` | rows of words of two 16-bit integers: the `2 * LANES` bytes at `p`, unsigned, with the bits of `f` flipped |
//! | `VADD16`, `VSUB16`; `VIADD`, `VISUB`, `VISHR x, n` | sums and differences of 16-bit integers; of 32-bit ones, modulo their size, and these divided by `2^n`, downwards |
//! | `VZIP_LO a, b`, `VZIP_HI a, b` | rows of 4 or 8 words of two 16-bit integers only: words of their elements, of the lower and of the upper halves of all quads |
//! | `VZIPPED16 a, b`, `VSTORE_ZIPPED8 p, x, l, z` | the same rows only: lanes in that order, rounded, as 16-bit integers, -32768 for smaller ones; these, but no less than `l`, plus `z`, as `2 LANES` bytes at `p` |
//! | `WIDE8 p, f`, `WIDE16 p` | rows of 4 words of two 16-bit integers in halves only: the 16 bytes at `p`, unsigned, with all bits of `f` flipped, as 16-bit integers; 16 of those at `p` |
//! | `WIDE_MLA t, x, w`, `WIDE_STORE p, t, b, z` | the same rows only: adds the 16 products of those to the four vectors `t`; these, rounded and no less than `b[0]` nor more than `b[1]`, plus `z`, as 16 bytes at `p` |
//! | `VHIDDEN p` | the pointer `p`, so that what was loaded there is loaded again |
//!
//! # Rows of dot products
//!
//! A row for another type than `f32` multiplies *words*: 32 bits with consecutive elements of the
//! reduction, as [`dtype::Word`] lists them. Its macro takes every arm from the `f32` row of its
//! instruction set but `VFMA a, b, c`, which adds the products of the elements of two words per
//! lane, and `COMPUTE`, which must be derived with that `VFMA`. Lanes of integer rows are `i32`
//! bits in vectors of the type for floats: they are loaded, splat and stored as such, and only
//! `VFMA`, `VIMLA` and `VITOF` look into them.
//!
//! # Rows of tiles
//!
//! A row for `tiles` is of a machine whose registers hold matrices: up to 16 rows of 16 words of four bytes. Operands are
//! those of words of bytes, `U8x4`, of whose row the macro takes all arms but these:
//!
//! | arm | effect |
//! |---|---|
//! | `TILES <- r, w` | shapes the registers of this thread for pieces of `r` rows and steps of `w` words |
//! | `TILES s, v, two; a, step, segments, n, w; p` | the sums of one or, if `two`, two pieces by `v` vectors, 1 or 2, at `s[0]` and `s[1]`: of each of the segments, at least one, `n` steps, at least one, of `w` words, from the rows at `a[0]` and `a[1]`, `step` words apart, and the panel `p` |
//! | `TILES_DONE` | gives the registers back |
//!
//! # Rows of block-quantised weights
//!
//! A row for `block` has all arms of the `f32` row of its instruction set, and these on lanes that hold
//! 32 bits, which defaults derive lane by lane:
//!
//! | arm | value |
//! |---|---|
//! | `BIASED` | whether `VDOT` takes bytes of weights as unsigned, so that signed ones are stored plus 128 |
//! | `VDOT w, x, c` | `c` plus the products of the four bytes of a lane of weights and of activations, which are signed and not -128 |
//! | `VDOTU w, x, c` | the same for weights from 0 to 127 |
//! | `HALVED` | whether such sums of small weights take less as sums of two products in 16 bits each: `VPAIRS16 w, x, c` adds to those of `c`, of weights up to 3 and eight words at most, and `VSUM16 a, c` is `c` plus both sums of each lane |
//! | `DOTS verb a [v x c] += b * x, g` | one of both for `v` vectors of weights `b` and `c` columns, whose words are those from `g * c` on at `x`, added to `a[c][v]`; with `VFMA`, floats |
//! | `PAIRED` | whether `DOTS` takes words of weights as `PAIR_WORDS` leaves them, and those of two steps and two of several columns side by side |
//! | `STREAMS` | how many panels of weights a single column of activations multiplies in turns, on machines that read several streams faster than one |
//! | `PAIR_WORDS p` | brings the eight vectors of words at `p` into the order of `DOTS` |
//! | `START a [v x c] <- x, i` | declares sums for `DOTS` that begin with the `c` numbers from `i * c` on at `x`; `PAIR a [c x v]` brings them to a vector of rows per column |
//! | `VWORDS p` | the vector of words at the bytes `p`, any alignment |
//! | `VLOADB16 p` | `LANES` bf16 at `p`, any alignment, as floats |
//! | `VQUADS p, n` | four words at `p`, at `p + n` bytes and so on, side by side, any alignment; not for vectors of one lane |
//! | `VAND x, y`, `VOR x, y`, `VXOR x, y`, `VSETU n` | bits; all lanes the bits of `n` |
//! | `VSHL x, n`, `VSHR x, n` | bits moved by `n`, a `u32` below 32 that may be known at run time only, zeros from the other side |
//! | `VTABLE t, x` | each byte (0 to 15) of `x` becomes that byte of the 16 at `t` |
//!
//! | verb | effect |
//! |---|---|
//! | `DEF t [R x W x V]` | declares the tile, all zero |
//! | `ZEROS [VTYPE; n]` | vectors beside a tile, all zero, as an array (of arrays) that stays in registers at any level of optimisation, which `[x; n]` does not |
//! | `ZERO t [R x W x V]` | all zero again |
//! | `FILL t [R x W x V] x` | all lanes of all pixels `x` |
//! | `BIAS t [R x W x V] <- b` | each pixel becomes the `V` vectors at `b` |
//! | `LOAD t [R x W x V] <- o[row, step, plane]` | reads partial results back from the output |
//! | `ADD t [R x W x V] += o[row, step, plane]` | adds a tile from memory (a residual) |
//! | `RELU t [R x W x V]` | `max(0, t)`, NaN stays NaN |
//! | `CLAMP t [R x W x V] lo hi` | `min(max(t, lo), hi)`, NaN stays NaN |
//! | `LEAKY t [R x W x V] alpha` | `max(t, 0) + alpha * min(t, 0)` |
//! | `STORE t [R x W x V] -> o[row, step, plane]` | writes the tile |
//! | `ADD t [W x V; n] += o[row, plane]`, `STORE t [W x V; n] -> o[row]` | the same for rows of a matrix whose last vector has only `n <= LANES` elements |
//! | `PAIR t [W x V]` | to and from the form in which `COMPUTE` has the sums, if that is not a row of vectors per pixel |
//! | `OUTER t [W x V] += a * b` | integer lanes: word `i` at `a` times the vectors at `b` |
//! | `DEQUANT t [W x V] <- scale, shift` | integer lanes become `float(t) * scale + shift`, rounded twice |
//! | `SCALE t [W x V] <- scale` | integer lanes become `float(t) * scale` |
//! | `NARROW t [W x V] lo, hi, zero -> o[step, plane]`, `NARROW t [W x V; n] lo, hi, zero -> o[step]` | `STORE8` of `round(clamp(t, lo, hi)) + zero`, ties to even; any byte from `lo + zero` to `hi + zero` for NaN; the bounds are integers, and bytes when `zero` is added |
//! | `STORE8 t [W x V] -> o[step, plane]`, `STORE8 t [W x V; n] -> o[step]` | `STORE` of lanes that are bytes |
//! | `LOAD_STRIDED t [1 x W x V] <- a[step]` | pixel `i` becomes the vectors at `a + i * step` |
//! | `STEP s <- n` | declares the distance of two pixels, `n` elements, as the next three take it |
//! | `POINT p [R x W] <- a[row, s]` | declares the activation pointers of a tile |
//! | `ADVANCE p [R x W] by n` | moves all of them by `n` elements |
//! | `COMPUTE conv t [R x W x V x U] += p[s] * b if m` | `U` reduction steps: broadcast activation times weight vectors, for the pixels whose bit is set in `m` |
//! | `DRAIN t [R x W x V] += p[s, next] * b[row], y i one => { .. }` | the last `DRAIN_STEPS` reduction steps (0: there is nothing to gain), pixel by pixel, the activations of two steps `next` elements apart and the vectors `row`; the block finishes and stores pixel `(y, i)`, the tile `one [1 x 1 x V]` |
//! | `COMPUTE near t [1 x W x V] += p[s] * b if m` | one step of the same, without asking for what follows `b` |
//! | `COMPUTE dw t [1 x W x V] += a[step] * b if lo, hi` | activation vectors times weight vectors, for the pixels `lo..hi` |
//! | `COMPUTE max t [1 x W x V] <- a[step] if lo, hi` | `t = max(a, t)` for the pixels `lo..hi` |
//! | `COMPUTE accum t [1 x W x V] += a[step] if lo, hi` | `t = t + a` for the pixels `lo..hi` |
//! | `COMPUTE dw_row t [W x S / D] += a * b if lo, hi` | one window row of `S` taps at distance `D` in blocked layout; of the columns at `a`, the first and last `S / 2` are 0 unless they lie in `lo..hi` (signed) |
//! | `COMPUTE dw_columns t [W x S] += a * b if lo, hi` | the same at distance 1, each column read just before it is used: what `dw_row` may be where registers hold no row |
//! | `COMPUTE max_row`, `COMPUTE accum_row` | the same for `max` (columns outside are `LEAST`) and sums |
//! | `a as (m, z)` | in place of the activations `a` of `dw`, its rows and `accum`: bytes, as `VLOAD8` reads them |
//! | `a as (f)` | in place of those of `max` and `max_row`: the bytes of pixels, each a vector, with the bits of `f` flipped |
//! | `LEAST`, `LEAST (f)` | what a maximum begins with: -inf; of bytes, 0 |
//! | `BYTES_LOAD p`, `BYTES_STORE p, x`, `BYTES_SPLAT n`, `BYTES_XOR a, b`, `BYTES_MAX a, b` | the 16 bytes of a pixel, at any alignment or all the same; their bits; the larger of each two, unsigned |
//! | `BYTES_ZIP_LO a, b`, `BYTES_ZIP_HI a, b` | the first, the last eight of `a` and of `b` in turns |
//! | `LOOKUP x, t => y` | the 64 bytes at `y` become those of the 256 at `t` that the bytes at `x` number; `y` may be `x` |
//! | `VEVEN a, b`, `VODD a, b` | every other lane of `a`, then of `b`, from the first or the second on |
//! | `VPREV a, b`, `VNEXT a, b` | the last lane of `a`, then all of `b` but the last; all of `a` but the first, then the first of `b` |
//! | `VLOAD_OR p, n, x` | the first `n <= LANES` elements at `p`, and `x` in the other lanes |
//! | `VLOAD_PART p, m, n` | elements `m..n` of the `LANES` at `p` in their lanes, 0 in the others, which are not touched |
//! | `VLOAD16 p`, `VSTORE16 p, x` | the `LANES` IEEE binary16 at `p`, any alignment, as floats; floats as the nearest binary16, ties to even, too large ones infinite |
//! | `VPAIR16 a, b`, `VROW16 a, b` | rows of words of two bf16 only: words of a lane of `a` and that of `b`; words of neighbouring lanes, those of `a` before those of `b` |
//! | `VKEEP x` | `x`, computed where it stands in the source, so that it is not loaded for long before |
//! | `VMAXIMUM a, b`, `VMINIMUM a, b` | the larger and the smaller; NaN if a lane of either is (IEEE 754-2019 `maximum` and `minimum`, but for the sign of 0) |
//! | `VSCALABLE lo, x` | `max(lo, x)`, NaN for NaN; where `VSCALE_OR0` takes any `n`, `x` |
//! | `VSCALE_OR0 x, n` | `x * 2^n` for an integer `n` in -126..=127, 0 for what is less as `VSCALABLE` leaves it, NaN for NaN |
//! | `VNEG x`, `VSCALE x, n`, `LANES_OF x` | `-x`; `x * 2^n` for an integer `n` in -250..=250; the lanes as an array |
//! | `MATH f x` | an elementary function: see `math.rs` |
//!
//! Addresses are in elements. Vector `j` of pixel `(y, i)` of an output is at `o + y * row +
//! i * step + (j * LANES / 16) * plane + j * LANES % 16`: a blocked tensor has its planes of 16
//! channels `plane` elements apart, a matrix row has `plane = 16`. Extents are literals, so that
//! [`each!`](crate::each!) unrolls every loop and the tile never has an address.
//!
//! # How to add an instruction set
//!
//! One file in `isa/`, with the `V*` arms and the last line that forwards everything else to
//! `tile_default!`, and one row in `table.rs` with a line per element type. Everything else is made
//! from the row: the module, the enum of the kernels crate, detection, kernels, tests and benches.
#![no_std]

pub mod dtype;

mod default;
mod each;
mod isa;
mod math;
pub mod steps;
mod table;

#[doc(hidden)]
pub mod soft;

/// The vendor intrinsics of the target, as the macros of this crate name them.
#[doc(hidden)]
pub mod arch {
    #[cfg(target_arch = "aarch64")]
    pub use core::arch::aarch64::*;
    #[cfg(target_arch = "wasm32")]
    pub use core::arch::wasm32::*;
    #[cfg(target_arch = "x86_64")]
    pub use core::arch::x86_64::*;
}

/// The number of each lane, for comparing with a count.
#[doc(hidden)]
pub static IOTA: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

#[cfg(all(feature = "avx2", target_arch = "x86_64"))]
#[doc(hidden)]
pub static AVX2_TAIL: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
