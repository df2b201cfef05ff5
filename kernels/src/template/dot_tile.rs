//! The microkernel of dot products: `W` pixels or rows of A times `V` vectors of output channels
//! or columns, over a reduction of words, in registers.
//!
//! The reduction is a list of *segments*, stretches of words that all pixels read at the same
//! offset from their own start: one for a matrix product, one per filter row and channel block
//! for a convolution.

use super::dot_convert::{convert, row_sum};
use crate::epilogue::TileActivation;
use crate::quant::QuantOutput;
use crate::{Dtype, Isa, KernelInfo};
use tilewright_intrinsics::dtype::Word;
use tilewright_intrinsics::soft;

/// One tile. Distances are in elements.
pub(crate) struct DotArgs<'a> {
    /// First word of the first pixel.
    pub(crate) a: *const f32,
    /// Words between two pixels.
    pub(crate) step: usize,
    /// Offset of each segment, in words.
    pub(crate) segments: &'a [isize],
    /// Words per segment.
    pub(crate) words: usize,
    /// Packed panel `[segment][word][V * LANES]`.
    pub(crate) b: *const f32,
    /// Words that saturate: what [`split`](super::dot_convert::split) wrote for this panel.
    pub(crate) spare: *const i32,
    /// What the sums start from, `V * LANES` lanes: floats, or `i32` bits for integer words.
    pub(crate) bias: *const f32,
    /// Integer words: factors of the sums, `V * LANES`. Not read for [`Finish::Sums`].
    pub(crate) scale: *const f32,
    /// Integer words: added to the product, `V * LANES`. Read for [`Finish::Float`] only.
    pub(crate) shift: *const f32,
    /// Integer words: per column, what the sum of a row's bytes is multiplied by, `i32` bits, or
    /// null.
    pub(crate) offset: *const f32,
    /// Integer words: the sum of each row's bytes, `i32` bits. Read unless `offset` is null.
    pub(crate) row_sums: *const f32,
    /// First output.
    pub(crate) o: *mut u8,
    /// Between two pixels of the output.
    pub(crate) o_step: usize,
    /// Between two blocks of 16 columns of the output; 16 for a matrix.
    pub(crate) o_plane: usize,
    /// Columns of the last vector that exist, `1..=LANES`; less than `LANES` for a matrix only.
    pub(crate) tail: usize,
    /// What becomes of the sums.
    pub(crate) finish: Finish,
}

/// An operand behind another, unless there is none.
pub(super) fn at(p: *const f32, i: usize) -> *const f32 {
    if p.is_null() { p } else { p.wrapping_add(i) }
}

/// What a tile's sums become when they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Finish {
    /// `i32` as they are. Integer words only.
    Sums,
    /// `f32`: integer sums times scale plus shift; then the activation.
    Float(TileActivation),
    /// `f32` added to what the output holds. Words of floats only.
    Added,
    /// Bytes: `round(clamp(sum * scale, lo, hi)) + zero`. Integer words only.
    Bytes { lo: f32, hi: f32, zero: f32 },
    /// f16 after the activation. Words of floats only.
    F16(TileActivation),
    /// bf16 after the activation. Words of floats only.
    Bf16(TileActivation),
}

impl Finish {
    /// That of an integer op.
    pub(crate) fn of(output: QuantOutput, activation: TileActivation) -> Self {
        match output.range() {
            Some([zero, min, max]) => {
                Self::Bytes { lo: (min - zero) as f32, hi: (max - zero) as f32, zero: zero as f32 }
            }
            None if output == QuantOutput::I32 => Self::Sums,
            None => Self::Float(activation),
        }
    }

    /// Bytes of an element of the output.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Sums | Self::Float(_) | Self::Added => 4,
            Self::F16(_) | Self::Bf16(_) => 2,
            Self::Bytes { .. } => 1,
        }
    }
}

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * For each of `W` pixels and each segment, `words` words at `a + i * step + segment` are
///   readable, at any alignment unless the row's words have a `convert` that must run first.
/// * `b` has `segments * words * V * LANES` readable words, `spare` as many as `spare_words` says for them;
///   `bias`, and as far as `finish` reads them `scale` and `shift`, have `V * LANES`, so has `offset` unless it
///   is null, and then `row_sums` has `W`.
/// * The outputs of each pixel are writable, aligned to their size, and no other thread uses them.
pub(crate) type DotFn = unsafe fn(&DotArgs<'_>);

/// Turns `n` elements at `src` into words at `dst`, padded with zeros to whole words; with the last
/// argument set, returns the sum of bytes as the kernel sees them.
///
/// # Safety
///
/// The CPU has the instructions of the row. `src` is readable for `n` elements of the type, `dst`
/// writable for `n.div_ceil(group)` words.
pub(crate) type ConvertFn = unsafe fn(Dtype, *const u8, *mut f32, usize, bool) -> i32;

/// A microkernel and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DotKernel {
    pub(crate) info: KernelInfo,
    pub(crate) run: DotFn,
}

/// The kernels of one line of the table.
#[derive(Debug)]
pub(crate) struct DotRow {
    pub(crate) lanes: usize,
    pub(crate) word: Word,
    pub(crate) convert: ConvertFn,
    pub(crate) kernels: &'static [DotKernel],
}

macro_rules! dot_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt, word $word:ident,
     unroll $u:tt, dot [$([$w:tt $v:tt])*] $($rest:tt)*) => {
        paste::paste! {
            mod $id {
                use super::*;
                $(dot_kernel! { [<tile_ $w x $v>], $tile, $feat, $word, $w, $v, $u })*
                dot_rare! { $tile, $feat, $word }
                dot_words! { $tile $feat $word }
                pub(super) const ROW: DotRow = DotRow {
                    lanes: $lanes,
                    word: Word::$word,
                    convert: to_words,
                    kernels: &[$(DotKernel {
                        info: KernelInfo {
                            name: concat!("dot_", stringify!($dtype), "_", $w, "x", $crate::template::c_ob!($lanes $v),
                                "_u", $u, "_", stringify!($isa_name)),
                            op: "dot", isa: Isa::$isa, dtype: Dtype::[<$dtype:camel>],
                            tile: crate::Tile { rows: 1, w_ob: $w, c_vec: $v, c_ob: $v * $lanes, unroll: $u }.packed(),
                        },
                        run: [<tile_ $w x $v>],
                    }),*],
                };
            }
        }
    };
}

macro_rules! dot_words {
    ($tile:ident [$($f:tt)*] $word:ident) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn to_words(from: Dtype, src: *const u8, dst: *mut f32, n: usize, sum: bool) -> i32 {
            let done = dot_words!(@ $word $tile from, src, dst, n);
            // SAFETY: the caller's duties are those of this call, and whole words are done.
            unsafe {
                let dst = dst.add(done / Word::$word.group());
                convert(from, Word::$word, src.add(done), dst, n - done);
            }
            // SAFETY: `src` is readable for `n` elements.
            if sum { unsafe { row_sum(from, Word::$word, src, n) } } else { 0 }
        }
    };
    (@ S16x2 $($rest:tt)*) => { dot_words!(@ wide $($rest)*) };
    (@ S16x2Halves $($rest:tt)*) => { dot_words!(@ wide $($rest)*) };
    // Vector by vector, even where compilers are asked for small code and leave loops as they are. Bytes with a sign
    // are those without one less 128 when their first bit is flipped.
    (@ wide $tile:ident $from:ident, $src:ident, $dst:ident, $n:ident) => {{
        use tilewright_intrinsics::$tile as tile;
        const BYTES: usize = 2 * tile!(LANES);
        let sign = tile!(VSET f32::from_bits(if $from == Dtype::I8 { 0x0080_0080 } else { 0 }));
        let whole = $n / BYTES;
        for i in 0..whole {
            let words = tile!(VWIDE8 $src.wrapping_add(i * BYTES), sign);
            tile!(VSTORE $dst, i, tile!(VSUB16 words, sign));
        }
        whole * BYTES
    }};
    (@ $word:ident $($rest:tt)*) => { 0 };
}

macro_rules! dot_kernel {
    ($name:ident, $tile:ident, [$($f:tt)*], $word:ident, $w:tt, $v:tt, $u:tt) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn $name(args: &DotArgs<'_>) {
            use tilewright_intrinsics::$tile as tile;
            const ALL: u32 = (1 << $w) - 1;
            const LANES: usize = tile!(LANES);
            const DRAIN: usize = dot_drain!(steps $word $tile $w * $v);
            let bias = args.bias;
            let mut b = args.b;
            tile!(STEP step <- args.step);
            tile!(DEF t [1 x $w x $v]);
            tile!(BIAS t [1 x $w x $v] <- bias);
            tile!(PAIR t [$w x $v]);
            debug_assert!(args.words.is_multiple_of(Word::$word.step()));
            // The last words of the last segment, if they leave pixel by pixel.
            let mut left = args.segments.len();
            for offset in args.segments {
                let a = args.a.wrapping_offset(*offset);
                let mut k = args.words;
                left -= 1;
                let drains = DRAIN > 0 && left == 0 && k >= DRAIN && dot_drain!(simple args);
                let keep = if drains { DRAIN } else { 0 };
                tile!(POINT p [1 x $w] <- a[0, step]);
                while k - keep >= $u {
                    tile!(COMPUTE conv t [1 x $w x $v x $u] += p[step] * b if ALL);
                    tile!(ADVANCE p [1 x $w] by $u);
                    b = b.wrapping_add($u * $v * LANES);
                    k -= $u;
                }
                while k > keep {
                    tile!(COMPUTE conv t [1 x $w x $v x 1] += p[step] * b if ALL);
                    tile!(ADVANCE p [1 x $w] by 1);
                    b = b.wrapping_add($v * LANES);
                    k -= 1;
                }
                if drains {
                    dot_drain! { $word t [$w x $v] += p[step] * b, args }
                    return;
                }
            }
            if Word::$word.saturates() {
                let (words, size) = (args.segments.len() * args.words, $v * LANES);
                let list = args.spare.wrapping_add(words * size);
                // SAFETY: the number of what was split, and for each two numbers.
                let (count, list) = unsafe {
                    (*list, core::slice::from_raw_parts(list.wrapping_add(1).cast::<[i32; 2]>(), words))
                };
                let mut b = args.spare.cast::<f32>();
                for &[segment, word] in list.iter().take(count as usize) {
                    // A check each, as anyone may have written packed weights.
                    let segment = args.segments.get(segment as usize);
                    let Some(offset) = segment.filter(|_| (word as usize) < args.words) else { break };
                    let a = args.a.wrapping_offset(*offset).wrapping_add(word as usize);
                    tile!(POINT p [1 x $w] <- a[0, step]);
                    tile!(COMPUTE conv t [1 x $w x $v x 1] += p[step] * b if ALL);
                    b = b.wrapping_add(size);
                }
            }
            tile!(PAIR t [$w x $v]);
            dot_finish! { $word $tile t [$w x $v] args }
        }
    };
}

/// The end of a reduction whose pixels leave one by one, as in the kernels of `f32` alone: of words of
/// floats that become `f32`, whole vectors of them.
macro_rules! dot_drain {
    (steps F32x1 $tile:ident $vectors:expr) => { $crate::template::drain_steps!($tile $vectors) };
    (steps Bf16x2 $tile:ident $vectors:expr) => { $crate::template::drain_steps!($tile $vectors) };
    (steps $word:ident $tile:ident $vectors:expr) => { 0usize };
    (simple $args:ident) => {
        $args.tail == LANES
            && match $args.finish {
                Finish::Added => true,
                Finish::Float(activation) => !matches!(activation, TileActivation::Leaky { .. }),
                _ => false,
            }
    };
    (F32x1 $($rest:tt)*) => { dot_drain! { float $($rest)* } };
    (Bf16x2 $($rest:tt)*) => { dot_drain! { float $($rest)* } };
    (float $t:ident [$w:tt x $v:tt] += $p:ident[$s:ident] * $b:ident, $args:ident) => {
        let (o, o_step, o_plane) = ($args.o.cast::<f32>(), $args.o_step, $args.o_plane);
        tile!(DRAIN $t [1 x $w x $v] += $p[$s, 1] * $b[$v * LANES], _row i one => {
            let o = o.wrapping_add(i * o_step);
            match $args.finish {
                Finish::Added => {
                    let o = o.cast_const();
                    tile!(ADD one [1 x 1 x $v] += o[0, 0, o_plane]);
                }
                Finish::Float(TileActivation::Relu) => { tile!(RELU one [1 x 1 x $v]); }
                Finish::Float(TileActivation::Clamp { lo, hi }) => { tile!(CLAMP one [1 x 1 x $v] lo, hi); }
                _ => {}
            }
            tile!(STORE one [1 x 1 x $v] -> o[0, 0, o_plane]);
        });
    };
    ($word:ident $($rest:tt)*) => {};
}

/// What follows the reduction: by kind of word. What is rare goes through memory, by code that all tiles share, and
/// that is as long as that of one of them.
macro_rules! dot_finish {
    (F32x1 $($rest:tt)*) => { dot_finish! { float $($rest)* } };
    (F16x2Halves $($rest:tt)*) => { dot_finish! { float $($rest)* } };
    (Bf16x2 $($rest:tt)*) => { dot_finish! { float $($rest)* } };
    (float $tile:ident $t:ident [$w:tt x $v:tt] $args:ident) => {
        let (o, o_step) = ($args.o.cast::<f32>(), $args.o_step);
        match $args.finish {
            _ if $args.tail != LANES => dot_finish! { rare $t [$w x $v] $args },
            Finish::Float(TileActivation::Leaky { .. }) => dot_finish! { rare $t [$w x $v] $args },
            Finish::Float(activation) => dot_finish! { activate $tile $t [$w x $v] activation },
            Finish::Added => {
                let o = o.cast_const();
                tile!(ADD $t [1 x $w x $v] += o[0, o_step, $args.o_plane]);
            }
            _ => dot_finish! { rare $t [$w x $v] $args },
        }
        tile!(STORE $t [1 x $w x $v] -> o[0, o_step, $args.o_plane]);
    };
    (activate $tile:ident $t:ident [$w:tt x $v:tt] $activation:expr) => {
        match $activation {
            TileActivation::None => {}
            TileActivation::Relu => { tile!(RELU $t [1 x $w x $v]); }
            TileActivation::Clamp { lo, hi } => { tile!(CLAMP $t [1 x $w x $v] lo, hi); }
            // Went another way.
            TileActivation::Leaky { .. } => {}
        }
    };
    (rare $t:ident [$w:tt x $v:tt] $args:ident) => {{
        let mut sums = [0.0f32; $w * $v * LANES];
        let all = sums.as_mut_ptr();
        tile!(STORE $t [1 x $w x $v] -> all[0, $v * LANES, 16]);
        // SAFETY: the caller's duties, for the sums of this tile.
        unsafe { rare(&sums, $v, $args) };
        return;
    }};
    // Integers.
    ($word:ident $tile:ident $t:ident [$w:tt x $v:tt] $args:ident) => {
        if $args.tail != LANES || matches!($args.finish, Finish::Float(TileActivation::Leaky { .. })) {
            dot_finish! { rare $t [$w x $v] $args }
        }
        let (scale, shift) = ($args.scale, $args.shift);
        if !$args.offset.is_null() {
            let (offset, row_sums) = ($args.offset, $args.row_sums);
            tile!(OUTER $t [$w x $v] += row_sums * offset);
        }
        match $args.finish {
            Finish::Bytes { lo, hi, zero } => {
                let (o, o_step) = ($args.o, $args.o_step);
                tile!(SCALE $t [$w x $v] <- scale);
                tile!(NARROW $t [$w x $v] lo, hi, zero -> o[o_step, $args.o_plane]);
                return;
            }
            Finish::Float(activation) => {
                tile!(DEQUANT $t [$w x $v] <- scale, shift);
                dot_finish! { activate $tile $t [$w x $v] activation }
            }
            _ => {}
        }
        let (o, o_step) = ($args.o.cast::<f32>(), $args.o_step);
        tile!(STORE $t [1 x $w x $v] -> o[0, o_step, $args.o_plane]);
    };
}

/// The end of any tile, from memory: its sums, rows of `v` vectors.
macro_rules! dot_rare {
    ($tile:ident, [$($f:tt)*], $word:ident) => {
        $(#[target_feature(enable = $f)])*
        #[inline(never)]
        unsafe fn rare(sums: &[f32], v: usize, args: &DotArgs<'_>) {
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = tile!(LANES);
            for (i, sums) in sums.chunks_exact(v * LANES).enumerate() {
                for (j, x) in sums.chunks_exact(LANES).enumerate() {
                    let n = if j + 1 < v { LANES } else { args.tail };
                    let x = x.as_ptr();
                    tile!(DEF t [1 x 1 x 1]);
                    tile!(LOAD t [1 x 1 x 1] <- x[0, 0, 16]);
                    // Whole planes, or a row of a matrix, whose planes are 16 apart.
                    let out = i * args.o_step + j * LANES / 16 * args.o_plane + j * LANES % 16;
                    let o = args.o.wrapping_add(out * args.finish.size());
                    dot_rare! { $word t i j n o args }
                }
            }
        }
    };
    (F32x1 $($rest:tt)*) => { dot_rare! { float $($rest)* } };
    (F16x2Halves $($rest:tt)*) => { dot_rare! { float $($rest)* } };
    (Bf16x2 $($rest:tt)*) => { dot_rare! { float $($rest)* } };
    (float $t:ident $i:ident $j:ident $n:ident $o:ident $args:ident) => {
        let (row, floats) = (0usize, $o.cast::<f32>());
        match $args.finish {
            Finish::Float(activation) | Finish::F16(activation) | Finish::Bf16(activation) =>
                dot_rare! { activate $t activation },
            _ => {
                let o = floats.cast_const();
                tile!(ADD $t [1 x 1; $n] += o[row, 16]);
            }
        }
        if $args.finish.size() == 4 {
            tile!(STORE $t [1 x 1; $n] -> floats[row]);
            continue;
        }
        let lanes: [f32; LANES] = tile!(LANES_OF $t[0][0]);
        // SAFETY: the outputs are writable and aligned, and used by no other thread.
        let out = unsafe { core::slice::from_raw_parts_mut($o.cast::<u16>(), $n) };
        if let Finish::F16(_) = $args.finish {
            for (o, x) in out.iter_mut().zip(lanes) { *o = soft::f16_from_f32(x); }
        } else {
            for (o, x) in out.iter_mut().zip(lanes) { *o = soft::bf16_from_f32(x); }
        }
    };
    (activate $t:ident $activation:expr) => {
        match $activation {
            TileActivation::None => {}
            TileActivation::Relu => { tile!(RELU $t [1 x 1 x 1]); }
            TileActivation::Clamp { lo, hi } => { tile!(CLAMP $t [1 x 1 x 1] lo, hi); }
            TileActivation::Leaky { alpha } => { tile!(LEAKY $t [1 x 1 x 1] alpha); }
        }
    };
    // Integers.
    ($word:ident $t:ident $i:ident $j:ident $n:ident $o:ident $args:ident) => {
        let column = $j * LANES;
        let (scale, shift) = ($args.scale.wrapping_add(column), $args.shift.wrapping_add(column));
        if !$args.offset.is_null() {
            let (offset, row_sum) = ($args.offset.wrapping_add(column), $args.row_sums.wrapping_add($i));
            tile!(OUTER $t [1 x 1] += row_sum * offset);
        }
        let step = 0usize;
        match $args.finish {
            Finish::Bytes { lo, hi, zero } => {
                tile!(SCALE $t [1 x 1] <- scale);
                tile!(NARROW $t [1 x 1; $n] lo, hi, zero -> $o[step]);
                continue;
            }
            Finish::Float(activation) => {
                tile!(DEQUANT $t [1 x 1] <- scale, shift);
                dot_rare! { activate $t activation }
            }
            _ => {}
        }
        let o = $o.cast::<f32>();
        tile!(STORE $t [1 x 1; $n] -> o[step]);
    };
}

pub(super) use {dot_finish, dot_rare, dot_words};

tilewright_intrinsics::for_each_tile!(dot_row, i8);
tilewright_intrinsics::for_each_tile!(dot_row, u8);
tilewright_intrinsics::for_each_tile!(dot_row, f16);
tilewright_intrinsics::for_each_tile!(dot_row, bf16);

/// The kernels for operands of a type, of an instruction set or of the nearest of its bases. Where there
/// are none that multiply bf16 as it is, those serve that take f16 as `f32`.
pub(crate) fn row(isa: Isa, dtype: Dtype) -> &'static DotRow {
    let served = isa.serving(dtype);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $name:ident, $dtype:ident, $($rest:tt)*) => {
            if served == Isa::$isa && dtype.name() == stringify!($dtype) {
                return &$id::ROW;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, i8);
    tilewright_intrinsics::for_each_tile!(row, f16);
    tilewright_intrinsics::for_each_tile!(row, bf16);
    if dtype != Dtype::Bf16 {
        return &scalar_i8::ROW;
    }
    let halves = row(isa, Dtype::F16);
    match isa.base() {
        Some(base) if halves.word != Word::F32x1 => row(base, Dtype::Bf16),
        _ => halves,
    }
}

/// The kernels for products of bytes. With small weights, of which few neighbours add up to more than 128, those
/// that add up products in 16 bits, if the instruction set has such.
pub(crate) fn bytes_row(isa: Isa, small: bool) -> &'static DotRow {
    let served = isa.serving(Dtype::I8);
    #[allow(unused_macros, reason = "some architectures have no such kernels")]
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if small && served == Isa::$isa {
                return &$id::ROW;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, u8);
    let _ = (small, served);
    row(isa, Dtype::I8)
}

/// The kernels that an instruction set itself has.
pub(crate) fn own(isa: Isa) -> impl Iterator<Item = &'static DotKernel> {
    let rows = [Dtype::I8, Dtype::U8, Dtype::F16, Dtype::Bf16].into_iter().map(move |dtype| {
        let row = if dtype == Dtype::U8 { bytes_row(isa, true) } else { row(isa, dtype) };
        (dtype, row)
    });
    let own = move |(dtype, k): &(Dtype, &DotKernel)| k.info.isa == isa && k.info.dtype == *dtype;
    let all = rows.flat_map(|(dtype, row)| row.kernels.iter().map(move |k| (dtype, k)));
    all.filter(own).map(|(_, k)| k)
}
