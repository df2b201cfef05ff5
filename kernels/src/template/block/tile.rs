//! The microkernels: `V` vectors of rows of weights times `C` columns of activations, in registers.
//!
//! # Weights
//!
//! A *panel* is as many rows as a vector has lanes, a row per lane. Its blocks follow each other, and
//! of each block first the scales, as vectors of halves, and then the rest, as vectors of words: four
//! bytes of each row. Nothing is added to the bytes of the file, and a kernel reads them in ascending
//! order without a gap, which is what a memory prefetcher follows. Machines that read several such streams faster
//! than one take turns between a few panels.
//!
//! # Activations
//!
//! Columns are quantised to signed bytes in groups of 32 with one scale, and lie in tiles of `C` columns.
//! [`Record`](super::quantize::Record) says what they look like.

use super::BlockFormat;
use super::few::few_bits;
use super::format::{IQ4_NL, MXFP4};
use super::gather::{GatherFn, block_gather};
use super::grid::Codes;
use super::quantize::{PrepareArgs, PrepareFn, prepare};
use super::step::block_step;
use super::unpack::{UnpackFn, block_unpack};
use crate::{Dtype, Isa, KernelInfo};
use tilewright_intrinsics::each;

/// Operands of one tile.
pub(crate) struct BlockArgs {
    /// First panel.
    pub(crate) w: *const u8,
    /// Bytes between two panels.
    pub(crate) panel: usize,
    /// First record of the tile of activations.
    pub(crate) x: *const f32,
    /// Blocks of the reduction, as the kind of weights has them.
    pub(crate) blocks: usize,
    /// What codes stand for, if the weights are codes.
    #[allow(
        dead_code,
        reason = "scalar code, which some builds have alone, takes codes apart first"
    )]
    pub(crate) codes: Option<&'static Codes>,
    /// What is added to each row, or null.
    pub(crate) bias: *const f32,
    /// First result: row 0 of the first panel, first column.
    pub(crate) o: *mut f32,
    /// Elements between two columns of the result.
    pub(crate) o_step: usize,
    /// Columns that exist, at most `C`.
    pub(crate) columns: usize,
    /// Rows of the last panel that exist, `1..=LANES`.
    pub(crate) tail: usize,
    /// Bytes between weights and those that are fetched with them, for kernels that fetch any.
    pub(crate) ahead: usize,
    /// Sums of the blocks before, with which a single column begins where panels take turns; else null.
    pub(crate) sums: *mut f32,
    /// Whether these blocks are the last ones: if not, sums go back to `sums` and there is no result yet.
    pub(crate) last: bool,
}

/// Vectors of sums of a panel, at most.
pub(super) const SUMS: usize = 4;

/// Sums of all panels that take turns, at most.
pub(super) const SUMMED: usize = 128;

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * `w` is readable for `V` panels of `blocks` blocks, `x` for `blocks` records of a tile of `C`
///   columns, aligned to 4.
/// * `bias` is null or readable for `(V - 1) * LANES + tail` elements, aligned.
/// * `o` is writable for `columns` columns of `(V - 1) * LANES + tail` rows, aligned, and no other
///   thread uses them.
/// * `sums` is null, or readable and writable for `SUMS` vectors, initialised, and [`BlockRow::streams`] is not 1;
///   unless `last`, it is not null.
pub(crate) type BlockFn = unsafe fn(&BlockArgs);

/// A microkernel and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockKernel {
    pub(crate) info: KernelInfo,
    /// What [`BlockArgs::ahead`] is by the table.
    pub(crate) ahead: usize,
    pub(crate) run: BlockFn,
}

/// The kernels of one line of the table. Of each list the tiles are the same: a single column; many
/// columns of one panel; and perhaps of two. Of `q8_0` and `q4_0` there may be the first one only.
#[derive(Debug)]
pub(crate) struct BlockRow {
    /// Rows of a panel.
    pub(crate) lanes: usize,
    /// What weights of 8 bits are stored plus, `0` or `128`.
    pub(crate) bias: i32,
    /// Whether words of two steps and of two columns lie side by side.
    pub(crate) paired: bool,
    /// Most panels that take turns in a kernel of a single column.
    pub(crate) streams: usize,
    pub(crate) q8_0: &'static [BlockKernel],
    pub(crate) q4_0: &'static [BlockKernel],
    pub(crate) g32: &'static [BlockKernel],
    pub(crate) g32m: &'static [BlockKernel],
    pub(crate) g16: &'static [BlockKernel],
    pub(crate) g16m: &'static [BlockKernel],
    /// Of a single column and packed blocks that are taken apart for several, in the order of
    /// [`SINGLES`]. Scalar code has none, and takes blocks apart for one column, too: arithmetic is all that its time
    /// goes to, and kernels without vectors are long.
    pub(crate) singles: &'static [&'static [BlockKernel]],
    pub(crate) f32: &'static [BlockKernel],
    pub(crate) f16: &'static [BlockKernel],
    pub(crate) bf16: &'static [BlockKernel],
    /// Of rows as the file has them, and a single column: floats, halves and bf16. `panel` of the
    /// arguments is the bytes of a row.
    pub(crate) rows: [BlockKernel; 3],
    /// What brings rows of the file into a panel; scalar code has none.
    pub(crate) gather: Option<GatherFn>,
    pub(crate) prepare: PrepareFn,
    pub(crate) unpack: fn(BlockFormat) -> Option<UnpackFn>,
}

/// The formats with a kernel in [`BlockRow::singles`], as panels hold them.
pub(super) const SINGLES: [BlockFormat; 15] = [
    BlockFormat::Q4_1,
    BlockFormat::Q5_0,
    BlockFormat::Q5_1,
    BlockFormat::Iq4Nl,
    BlockFormat::Iq4Xs,
    BlockFormat::Mxfp4,
    BlockFormat::Iq3S,
    BlockFormat::Q2K,
    BlockFormat::Q3K,
    BlockFormat::Q4K,
    BlockFormat::Q5K,
    BlockFormat::Q6K,
    BlockFormat::Q1_0,
    BlockFormat::Q2_0,
    BlockFormat::U4,
];

macro_rules! block_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt,
     tiles $tiles:tt, direct $direct:tt, floats $floats:tt,
     ahead [$far8:tt $far4:tt $far_k:tt $far_f:tt]) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = $lanes;
            const _: () = assert!(tile!(STREAMS) == 1 || tile!(STREAMS) * SUMS * LANES <= SUMMED);
            /// Values as bytes of weights are stored.
            const fn table(values: &[i8; 16]) -> [u8; 16] {
                let (mut table, mut i) = ([0; 16], 0);
                while i < 16 {
                    table[i] = (values[i] as u8).wrapping_add(if tile!(BIASED) { 128 } else { 0 });
                    i += 1;
                }
                table
            }
            /// Of IQ4_NL and IQ4_XS.
            const TABLE: [u8; 16] = table(&IQ4_NL);
            /// Of MXFP4, twice.
            const FLOATS: [u8; 16] = table(&MXFP4);
            pub(super) const ROW: BlockRow = BlockRow {
                lanes: LANES,
                bias: if tile!(BIASED) { 128 } else { 0 },
                paired: tile!(PAIRED),
                streams: tile!(STREAMS),
                q8_0: block_tiles! { $isa $isa_name $lanes $feat q8_0 $far8 $direct },
                q4_0: block_tiles! { $isa $isa_name $lanes $feat q4_0 $far4 $direct },
                g32: block_tiles! { $isa $isa_name $lanes $feat g32 0 $tiles },
                g32m: block_tiles! { $isa $isa_name $lanes $feat g32m 0 $tiles },
                g16: block_tiles! { $isa $isa_name $lanes $feat g16 0 $tiles },
                g16m: block_tiles! { $isa $isa_name $lanes $feat g16m 0 $tiles },
                singles: block_singles! { $lanes [
                    block_tiles! { $isa $isa_name $lanes $feat q4_1 $far4 [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q5_0 $far4 [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q5_1 $far4 [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat iq4_nl $far4 [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat iq4_xs $far_k [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat mxfp4 $far4 [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat grid $far_k [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q2_k $far_k [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q3_k $far_k [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q4_k $far_k [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q5_k $far_k [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q6_k $far_k [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q1_0 $far4 [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat q2_0 $far4 [[1 1]] },
                    block_tiles! { $isa $isa_name $lanes $feat u4 $far4 [[1 1]] },
                ] },
                f32: block_tiles! { $isa $isa_name $lanes $feat f32 $far_f $floats },
                f16: block_tiles! { $isa $isa_name $lanes $feat f16 $far_f $floats },
                bf16: block_tiles! { $isa $isa_name $lanes $feat bf16 $far_f $floats },
                rows: [
                    block_rows! { $isa $isa_name $lanes $feat f32 f32 4 $far_f },
                    block_rows! { $isa $isa_name $lanes $feat f16 half 2 $far_f },
                    block_rows! { $isa $isa_name $lanes $feat bf16 brain 2 $far_f },
                ],
                gather: block_gather! { $lanes $feat },
                prepare: block_fn! { $feat fn columns(args: &PrepareArgs) {
                    // SAFETY: the duties of the caller are those of this call.
                    unsafe { prepare(args) }
                } },
                unpack: |format| {
                    Some(match format {
                        BlockFormat::Q8_0 if ROW.q8_0.len() == 1 => block_unpacker! { $feat q8_0 },
                        BlockFormat::Q4_0 if ROW.q4_0.len() == 1 => block_unpacker! { $feat q4_0 },
                        BlockFormat::Q4_1 => block_unpacker! { $feat q4_1 },
                        BlockFormat::Q5_0 => block_unpacker! { $feat q5_0 },
                        BlockFormat::Q5_1 => block_unpacker! { $feat q5_1 },
                        BlockFormat::Q2K => block_unpacker! { $feat q2_k },
                        BlockFormat::Q3K => block_unpacker! { $feat q3_k },
                        BlockFormat::Q4K => block_unpacker! { $feat q4_k },
                        BlockFormat::Q5K => block_unpacker! { $feat q5_k },
                        BlockFormat::Q6K => block_unpacker! { $feat q6_k },
                        BlockFormat::Iq4Nl => block_unpacker! { $feat iq4_nl },
                        BlockFormat::Iq4Xs => block_unpacker! { $feat iq4_xs },
                        BlockFormat::Mxfp4 => block_unpacker! { $feat mxfp4 },
                        BlockFormat::Iq3S => block_unpacker! { $feat grid },
                        BlockFormat::Q1_0 => block_unpacker! { $feat q1_0 },
                        BlockFormat::Q2_0 => block_unpacker! { $feat q2_0 },
                        BlockFormat::U4 => block_unpacker! { $feat u4 },
                        _ => return None,
                    })
                },
            };
        }
    };
}

/// A function with target features, as an expression.
macro_rules! block_fn {
    ([$($f:tt)*] fn $name:ident($args:ident: $type:ty) $body:block) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn $name($args: $type) $body
        $name
    }};
}

macro_rules! block_unpacker {
    ([$($f:tt)*] $kind:ident) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn unpack(mut p: *const u8, mut o: *mut f32, blocks: usize, codes: Option<&Codes>) {
            let _ = codes;
            for _ in 0..blocks {
                block_unpack! { $kind p -> o, codes }
            }
        }
        unpack as UnpackFn
    }};
}

/// Kernels of a single column, where there are vectors.
macro_rules! block_singles {
    (1 $kernels:tt) => {
        &[]
    };
    ($lanes:tt [$($kernels:expr,)*]) => {{
        const ALL: [&[BlockKernel]; SINGLES.len()] = [$($kernels),*];
        &ALL
    }};
}

/// The kernels of a kind.
macro_rules! block_tiles {
    ($isa:ident $isa_name:ident $lanes:tt $feat:tt $kind:ident $far:tt [$([$v:tt $c:tt])*]) => {
        &[$(BlockKernel {
            info: KernelInfo {
                name: concat!("block_", stringify!($kind), "_", $c, "x", $crate::template::c_ob!($lanes $v),
                    "_u8_", stringify!($isa_name)),
                op: "block", isa: Isa::$isa, dtype: Dtype::Block,
                tile: crate::Tile { rows: 1, w_ob: $c, c_vec: $v, c_ob: $v * $lanes, unroll: 8 }.packed(),
            },
            ahead: $far,
            // `cargo xtask asm` knows kernels by these names.
            run: paste::paste! { block_fn! { $feat fn [<tile_ $kind _ $c x $v>](args: &BlockArgs) {
                block_kernel! { far $far, $kind [$v x $c], args }
            } } },
        }),*]
    };
}

/// The kernel of rows of the file for a type of floats.
macro_rules! block_rows {
    ($isa:ident $isa_name:ident $lanes:tt $feat:tt $kind:ident $load:ident $size:tt $far:tt) => {
        BlockKernel {
            info: KernelInfo {
                name: concat!("block_rows_", stringify!($kind), "_1x1_u8_", stringify!($isa_name)),
                op: "block",
                isa: Isa::$isa,
                dtype: Dtype::Block,
                tile: crate::Tile { rows: 1, w_ob: 1, c_vec: 1, c_ob: 1, unroll: 8 }.packed(),
            },
            ahead: $far,
            run: paste::paste! { block_fn! { $feat fn [<rows_ $kind>](args: &BlockArgs) {
                block_kernel! { far $far, rows $load $size, args }
            } } },
        }
    };
}

/// The body of a kernel.
macro_rules! block_kernel {
    // The table says whether weights are fetched ahead; how far is the machine's business.
    (far 0, rows $load:ident $size:tt, $args:ident) => {
        let _ = $args.ahead;
        block_kernel! { rows $load $size ahead 0, $args }
    };
    (far $far:tt, rows $load:ident $size:tt, $args:ident) => {
        let far = $args.ahead;
        block_kernel! { rows $load $size ahead far, $args }
    };
    (far 0, $kind:ident $tile:tt, $args:ident) => {
        let _ = $args.ahead;
        block_kernel! { $kind $tile ahead 0, $args }
    };
    (far $far:tt, $kind:ident $tile:tt, $args:ident) => {
        // Several columns of floats fetch nothing.
        let _far = $args.ahead;
        block_kernel! { $kind $tile ahead _far, $args }
    };
    (f32 [1 x 1] ahead $far:tt, $args:ident) => { block_kernel! { chains f32 4, ahead $far, $args } };
    (f16 [1 x 1] ahead $far:tt, $args:ident) => { block_kernel! { chains half 2, ahead $far, $args } };
    (bf16 [1 x 1] ahead $far:tt, $args:ident) => { block_kernel! { chains brain 2, ahead $far, $args } };
    // Sums of every fourth step of the reduction, as one addition would wait for the one before.
    (chains $load:ident $size:tt, ahead $far:tt, $args:ident) => {
        let (mut w, mut x, mut k) = ($args.w, $args.x, $args.blocks);
        tile!(DEF f [1 x 4 x 1]);
        block_kernel! { sums 4, f <- $args }
        while k >= 4 {
            each!(i in 4 {
                let b = w.wrapping_add($size * i * LANES);
                if i * $size * LANES % 64 == 0 { block_step! { ahead b, $far } }
                f[i][0] = tile!(VFMA tile!(VSPLAT x, i), block_step! { load $load b }, f[i][0]);
            });
            (w, x, k) = (w.wrapping_add(4 * $size * LANES), x.wrapping_add(4), k - 4);
        }
        while k > 0 {
            f[0][0] = tile!(VFMA tile!(VSPLAT x, 0), block_step! { load $load w }, f[0][0]);
            (w, x, k) = (w.wrapping_add($size * LANES), x.wrapping_add(1), k - 1);
        }
        block_kernel! { sums 4, f -> $args }
        f[0][0] = tile!(VADD tile!(VADD f[0][0], f[1][0]), tile!(VADD f[2][0], f[3][0]));
        block_kernel! { store f [1 x 1] $args }
    };
    // Eight sums of a row, then those of its last elements, fewer than a vector has lanes.
    (rows $load:ident $size:tt ahead $far:tt, $args:ident) => {
        for row in 0..$args.tail {
            let (mut w, mut x) = ($args.w.wrapping_add(row * $args.panel), $args.x);
            tile!(DEF f [1 x 8 x 1]);
            for _ in 0..$args.blocks / (8 * LANES) {
                each!(i in 8 {
                    let b = w.wrapping_add($size * i * LANES);
                    if i * $size * LANES % 64 == 0 { block_step! { ahead b, $far } }
                    f[i][0] = tile!(VFMA tile!(VLOAD x, i), block_step! { load $load b }, f[i][0]);
                });
                (w, x) = (w.wrapping_add(8 * $size * LANES), x.wrapping_add(8 * LANES));
            }
            for _ in 0..$args.blocks % (8 * LANES) / LANES {
                f[0][0] = tile!(VFMA tile!(VLOAD x, 0), block_step! { load $load w }, f[0][0]);
                (w, x) = (w.wrapping_add($size * LANES), x.wrapping_add(LANES));
            }
            each!(i in 4 { f[i][0] = tile!(VADD f[i][0], f[i + 4][0]); });
            let sum = tile!(VADD tile!(VADD f[0][0], f[1][0]), tile!(VADD f[2][0], f[3][0]));
            let mut sum: f32 = tile!(LANES_OF sum).iter().sum();
            for i in 0..$args.blocks - $args.blocks / LANES * LANES {
                let b = w.wrapping_add($size * i);
                // SAFETY: both have `blocks` elements.
                unsafe { sum += *x.wrapping_add(i) * block_step! { one $load b } };
            }
            // SAFETY: there are as many results, and numbers to add to them if any.
            unsafe {
                if !$args.bias.is_null() { sum += *$args.bias.wrapping_add(row) }
                *$args.o.wrapping_add(row) = sum;
            }
        }
    };
    // Of a single column: what blocks before have added up, and what those to come begin with.
    (sums $n:tt, $f:ident <- $args:ident) => {
        let sums = $args.sums;
        if tile!(STREAMS) > 1 && !sums.is_null() { each!(i in $n { $f[i][0] = tile!(VLOAD sums, i); }); }
    };
    (sums $n:tt, $f:ident -> $args:ident) => {
        let sums = $args.sums;
        if tile!(STREAMS) > 1 && !$args.last {
            each!(i in $n { tile!(VSTORE sums, i, $f[i][0]); });
            return;
        }
    };
    (grid [1 x 1] ahead $far:tt, $args:ident) => {
        let Some(codes) = $args.codes else { return };
        block_kernel! { single block_step (grid codes) ahead $far, $args }
    };
    (q1_0 [1 x 1] ahead $far:tt, $args:ident) => { block_kernel! { single few_bits (q1_0) ahead $far, $args } };
    (q2_0 [1 x 1] ahead $far:tt, $args:ident) => { block_kernel! { single few_bits (q2_0) ahead $far, $args } };
    ($kind:ident [1 x 1] ahead $far:tt, $args:ident) => {
        block_kernel! { single block_step ($kind) ahead $far, $args }
    };
    (single $step:ident ($($kind:ident)+) ahead $far:tt, $args:ident) => {
        let (mut w, mut x) = ([$args.w], $args.x);
        tile!(DEF f [1 x 1 x 1]);
        block_kernel! { sums 1, f <- $args }
        for _ in 0..$args.blocks {
            $step! { $($kind)+ [1 x 1] f += w * x ahead $far }
        }
        block_kernel! { sums 1, f -> $args }
        block_kernel! { store f [1 x 1] $args }
    };
    ($kind:ident [$v:tt x $c:tt] ahead $far:tt, $args:ident) => {
        let mut x = $args.x;
        let mut w = [$args.w; $v];
        for (j, w) in w.iter_mut().enumerate() { *w = w.wrapping_add(j * $args.panel); }
        tile!(DEF f [1 x $c x $v]);
        for _ in 0..$args.blocks {
            block_step! { $kind [$v x $c] f += w * x ahead $far }
        }
        block_kernel! { store f [$v x $c] $args }
    };
    (store $f:ident [$v:tt x $c:tt] $args:ident) => {
        let (mut o, last) = ($args.o, $args.tail);
        if !$args.bias.is_null() {
            each!(j in $v {
                let bias = $args.bias.wrapping_add(j * LANES);
                let bias = if j + 1 < $v || last == LANES { tile!(VLOAD bias, 0) } else { tile!(VLOAD_TAIL bias, last) };
                each!(c in $c { $f[c][j] = tile!(VADD $f[c][j], bias); });
            });
        }
        each!(c in $c { if c < $args.columns {
            each!(j in $v {
                let o = o.wrapping_add(j * LANES);
                if j + 1 < $v || last == LANES { tile!(VSTORE o, 0, $f[c][j]); }
                else { tile!(VSTORE_TAIL o, last, $f[c][j]); }
            });
            o = o.wrapping_add($args.o_step);
        } });
        let _ = o;
    };
}

tilewright_intrinsics::for_each_tile!(block_row, block);

/// The kernels of an instruction set or of the nearest of its bases.
pub(crate) fn row(isa: Isa) -> &'static BlockRow {
    let served = isa.serving(Dtype::Block);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if served == Isa::$isa {
                return &$id::ROW;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, block);
    &scalar_block::ROW
}

/// The kernels that an instruction set itself has.
pub(crate) fn own(isa: Isa) -> impl Iterator<Item = KernelInfo> {
    let row = row(isa);
    let many =
        [row.q8_0, row.q4_0, row.g32, row.g32m, row.g16, row.g16m, row.f32, row.f16, row.bf16];
    let all = many.into_iter().chain(row.singles.iter().copied()).flatten().chain(&row.rows);
    all.map(|k| k.info).filter(move |k| k.isa == isa)
}
