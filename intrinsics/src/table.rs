//! The list of instruction sets: one row each.

/// Hands all rows to `$then!`, weakest instruction set first, with what stands before them.
///
/// A row is
///
/// ```text
/// /// What it is, for the documentation of `Isa`.
/// Isa = isa over Base, if cfg, ["target feature" ...] {
///     id: tile macro, dtype, lanes L, c_vec N, unroll U, conv [[R W V] ...], matmul [[W V] ...],
///     row [[S V] ...] [, rest [[S V] ...]];
/// }
/// ```
///
/// `Isa` becomes a variant of the enum of the kernels crate, `isa` is its printed name and that of
/// its file in `isa/`. A CPU has it if it has all the target features, which are also those that its
/// kernels are compiled with, and what `Base` asks for. Operands of a type for which it has no line
/// of its own are left to the kernels of `Base`; scalar code is its own base. The row vanishes from a
/// build in which `cfg` does not hold; the crates that instantiate kernels forward the features that
/// it names.
///
/// There is one line per element type. Of one for `f32`, `lanes` are the elements of a vector (a
/// divisor of 16), `c_vec` the vectors of 16 channels; `conv` lists the tiles of the convolution
/// (rows, pixels, vectors per pixel), `matmul` those of the matrix product (rows of A, vectors of
/// columns), `row` those of its single rows (partial sums, vectors of columns; one for each width of
/// `matmul`), `rest` narrower ones with as many partial sums as a wide one, for what that leaves. Of one for another type, `dot` lists the tiles of dot products (pixels or rows of A,
/// vectors), and `word` is what 32 bits of the operands hold, a variant of `dtype::Word`; `lanes` are
/// words. One for `tiles` is of machines whose registers hold matrices: pieces of rows by vectors of columns.
/// That for `block` lists the tiles of block-quantised weights (vectors of rows, columns of
/// activations): a single column, many columns of one panel and perhaps of two; first `tiles` of weights taken
/// apart, then `direct` ones of packed bytes and nibbles, which are taken apart for many columns where
/// there is the first tile only, then those of `floats`; and how far ahead of its use a stream of weights is prefetched for a single
/// column, in bytes: of bytes, nibbles, blocks of 256 and floats. 0 is not at all; other distances hold
/// where the machine needs them (`follows_streams` of the kernels).
#[macro_export]
macro_rules! instruction_sets {
    ($then:path $(, $($args:tt)*)?) => { $then! { $($($args)*)?
        /// Portable code.
        Scalar = scalar over Scalar, if all(), [] {
            scalar_f32: tile_scalar_f32, f32, lanes 1, c_vec 16, unroll 1,
            conv [[1 1 16] [1 2 16]],
            matmul [[2 16]], row [[1 16] [1 4] [1 1]];
            scalar_i8: tile_scalar_i8, i8, lanes 1, word U8x4, unroll 1, dot [[1 16] [2 16] [1 4] [1 1]];
            scalar_block: tile_scalar_block, block, lanes 1, tiles [[1 1] [1 4]],
            direct [[1 1]], floats [[1 1] [1 4]], ahead [0 0 0 0];
            scalar_f16: tile_scalar_f32, f16, lanes 1, word F32x1, unroll 1, dot [[1 16] [1 4] [1 1]];
        }
        /// Cortex-M4 and M7 with a floating-point unit. The feature says that the machine is one.
        CortexM = cortex_m over Scalar, if all(feature = "cortex-m", target_arch = "arm"), [] {
            cortex_m_f32: tile_cortex_m_f32, f32, lanes 1, c_vec 16, unroll 4,
            conv [[1 1 16]],
            matmul [[2 4] [4 4]], row [[1 16] [1 4] [1 1]];
            cortex_m_i8: tile_cortex_m_i8, i8, lanes 1, word S16x2, unroll 2, dot [[1 16] [1 4] [2 2] [1 1]];
        }
        /// NEON of AArch64.
        Neon = neon over Scalar, if all(feature = "neon", target_arch = "aarch64"), ["neon"] {
            neon_f32: tile_neon_f32, f32, lanes 4, c_vec 4, unroll 4,
            conv [[1 1 4] [1 2 4] [1 3 4] [1 4 4] [1 5 4] [2 1 4] [4 1 4] [2 2 4]],
            matmul [[2 4] [3 4] [4 4] [5 4] [2 1] [3 1] [4 1] [5 1]], row [[2 8] [4 4] [4 1]],
            rest [[2 4] [2 1]];
            neon_i8: tile_neon_i8, i8, lanes 4, word S16x2Halves, unroll 4,
            dot [[1 8] [1 4] [2 4] [3 4] [4 4] [1 1] [4 1]];
            neon_f16: tile_neon_f32, f16, lanes 4, word F32x1, unroll 4,
            dot [[1 8] [1 4] [2 4] [3 4] [4 4] [5 4] [1 1] [4 1]];
            neon_block: tile_neon_block, block, lanes 4, tiles [[1 1] [1 4] [2 4]],
            direct [[1 1] [1 4] [2 4]], floats [[1 1] [1 8] [2 8]], ahead [0 0 0 0];
        }
        /// NEON with dot products of bytes (FEAT_DotProd).
        DotProd = dotprod over Neon, if all(feature = "dotprod", target_arch = "aarch64"), ["neon" "dotprod"] {
            dotprod_i8: tile_dotprod_i8, i8, lanes 4, word S8x4, unroll 4,
            dot [[1 8] [1 4] [2 4] [3 4] [4 4] [5 4] [1 1] [4 1]];
            dotprod_block: tile_dotprod_block, block, lanes 4, tiles [[1 1] [1 4] [2 4]],
            direct [[1 1] [1 4] [2 4]], floats [[1 1] [1 8] [2 8]], ahead [0 0 0 0];
        }
        /// NEON with multiply-adds of f16 into f32 (FEAT_FP16 and FEAT_FHM).
        NeonFp16 = neonfp16 over DotProd, if all(feature = "neonfp16", target_arch = "aarch64"),
        ["neon" "fp16" "fhm"] {
            neonfp16_f16: tile_neonfp16_f16, f16, lanes 4, word F16x2Halves, unroll 4,
            dot [[1 8] [1 4] [2 4] [3 4] [4 4] [5 4] [1 1] [4 1]];
        }
        /// NEON with matrix products of bytes (FEAT_I8MM).
        I8mm = i8mm over NeonFp16, if all(feature = "i8mm", target_arch = "aarch64"), ["neon" "dotprod" "i8mm"] {
            i8mm_i8: tile_i8mm_i8, i8, lanes 4, word U8x4Pairs, unroll 4,
            dot [[1 8] [1 4] [2 4] [4 4] [1 1] [4 1]];
            i8mm_block: tile_i8mm_block, block, lanes 4, tiles [[1 1] [1 4] [2 4]], direct [[1 1]],
            floats [[1 1] [1 8] [2 8]], ahead [0 0 0 0];
        }
        /// NEON with dot products of bf16 (FEAT_BF16).
        NeonBf16 = neonbf16 over I8mm, if all(feature = "neonbf16", target_arch = "aarch64"), ["neon" "bf16"] {
            neonbf16_bf16: tile_neonbf16_bf16, bf16, lanes 4, word Bf16x2, unroll 4,
            dot [[1 8] [1 4] [2 4] [3 4] [4 4] [5 4] [1 1] [4 1]];
        }
        /// SIMD of WebAssembly.
        Wasm = wasm over Scalar, if all(feature = "wasm-simd", target_arch = "wasm32"), ["simd128"] {
            wasm_f32: tile_wasm_f32, f32, lanes 4, c_vec 4, unroll 4,
            conv [[1 1 4] [1 2 4] [1 3 4] [2 1 4]],
            matmul [[2 4] [3 4] [2 1] [4 1]], row [[1 8] [2 4] [4 1]],
            rest [[1 4] [1 1] [2 1]];
            wasm_i8: tile_wasm_i8, i8, lanes 4, word S16x2, unroll 2, dot [[1 8] [1 4] [2 4] [3 4] [1 1] [4 1]];
            wasm_f16: tile_wasm_f32, f16, lanes 4, word F32x1, unroll 4, dot [[1 8] [1 4] [2 4] [3 4] [1 1] [4 1]];
        }
        /// Relaxed SIMD of WebAssembly.
        WasmRelaxed = wasm_relaxed over Wasm, if all(feature = "wasm-relaxed", target_arch = "wasm32"), ["simd128" "relaxed-simd"] {
            wasm_relaxed_f32: tile_wasm_relaxed_f32, f32, lanes 4, c_vec 4, unroll 4,
            conv [[1 1 4] [1 2 4] [1 3 4] [2 1 4]],
            matmul [[2 4] [3 4] [2 1] [4 1]], row [[1 8] [2 4] [4 1]],
            rest [[1 4] [1 1] [2 1]];
        }
        /// SSE4.1 with SSSE3.
        Sse41 = sse41 over Scalar, if all(feature = "sse41", target_arch = "x86_64"), ["sse4.1" "ssse3"] {
            sse41_f32: tile_sse41_f32, f32, lanes 4, c_vec 4, unroll 4,
            conv [[1 1 4] [1 2 4] [2 1 4]],
            matmul [[2 4] [2 1] [4 1]], row [[1 8] [2 4] [4 1]],
            rest [[1 4] [1 1] [2 1]];
            sse41_i8: tile_sse41_i8, i8, lanes 4, word S16x2, unroll 4, dot [[1 8] [1 4] [2 4] [1 1] [4 1]];
            sse41_f16: tile_sse41_f32, f16, lanes 4, word F32x1, unroll 4, dot [[1 8] [1 4] [2 4] [1 1] [4 1]];
            sse41_block: tile_sse41_block, block, lanes 4, tiles [[1 1] [1 4]], direct [[1 1] [1 4]],
            floats [[1 1] [1 4] [2 4]], ahead [8192 8192 4096 4096];
        }
        /// AVX2 with FMA and F16C.
        Avx2 = avx2 over Sse41, if all(feature = "avx2", target_arch = "x86_64"), ["avx2" "fma" "f16c"] {
            avx2_f32: tile_avx2_f32, f32, lanes 8, c_vec 2, unroll 4,
            conv [[1 1 2] [1 2 2] [1 3 2] [1 4 2] [1 5 2] [1 6 2] [4 1 2] [2 2 2] [3 2 2] [2 3 2]],
            matmul [[2 4] [2 2] [3 2] [4 2] [5 2] [6 2] [2 1] [3 1] [4 1] [5 1] [6 1]],
            row [[1 8] [2 4] [4 2] [8 1]],
            rest [[1 4] [1 2] [1 1] [2 2] [2 1] [4 1]];
            avx2_i8: tile_avx2_i8, i8, lanes 8, word S16x2, unroll 2,
            dot [[1 4] [1 2] [2 2] [4 2] [5 2] [6 2] [1 1] [4 1]];
            avx2_u8: tile_avx2_u8, u8, lanes 8, word U8x4Saturating, unroll 1, dot [[1 2] [4 2] [5 2] [1 1]];
            avx2_f16: tile_avx2_f32, f16, lanes 8, word F32x1, unroll 4,
            dot [[1 8] [1 4] [2 4] [1 2] [2 2] [4 2] [5 2] [6 2] [1 1] [4 1]];
            avx2_block: tile_avx2_block, block, lanes 8, tiles [[1 1] [1 4]], direct [[1 1] [1 4]], floats [[1 1] [1 6] [2 6]],
            ahead [8192 8192 4096 4096];
        }
        /// AVX-VNNI: dot products of bytes in 256 bits.
        AvxVnni = avxvnni over Avx2, if all(feature = "avxvnni", target_arch = "x86_64"), ["avx2" "fma" "f16c" "avxvnni"] {
            avxvnni_i8: tile_avxvnni_i8, i8, lanes 8, word U8x4, unroll 4,
            dot [[1 8] [1 4] [2 4] [1 2] [2 2] [3 2] [4 2] [5 2] [6 2] [1 1] [4 1]];
            avxvnni_block: tile_avxvnni_block, block, lanes 8, tiles [[1 1] [1 3] [2 3]],
            direct [[1 1] [1 3] [2 3]], floats [[1 1] [1 6] [2 6]], ahead [4096 8192 4096 4096];
        }
        /// AVX-512F and BW.
        Avx512 = avx512 over Avx2, if all(feature = "avx512", target_arch = "x86_64"), ["avx512f" "avx512bw"] {
            avx512_f32: tile_avx512_f32, f32, lanes 16, c_vec 1, unroll 2,
            conv [[1 1 2] [1 2 2] [1 3 2] [1 4 2] [1 5 2] [1 6 2] [1 7 2] [1 8 2] [1 9 2] [1 10 2] [1 11 2]
                  [1 12 2] [1 13 2] [4 1 2] [4 2 2] [2 3 2] [2 4 2] [2 5 2] [2 6 2]
                  [1 1 1] [1 2 1] [1 3 1] [1 4 1] [1 5 1] [1 6 1] [1 7 1] [1 8 1] [1 12 1] [1 24 1]],
            matmul [[2 4] [3 4] [4 4] [2 2] [3 2] [4 2] [5 2] [6 2] [7 2] [8 2] [9 2] [11 2] [12 2] [13 2]
                    [2 1] [3 1] [4 1] [6 1] [8 1] [12 1]],
            row [[2 8] [4 4] [4 2] [8 1]],
            rest [[2 4] [2 2] [2 1] [4 1]];
            avx512_i8: tile_avx512_i8, i8, lanes 16, word S16x2, unroll 2,
            dot [[1 4] [2 4] [1 2] [2 2] [4 2] [8 2] [12 2] [1 1] [4 1] [12 1]];
            avx512_f16: tile_avx512_f32, f16, lanes 16, word F32x1, unroll 2,
            dot [[1 8] [1 4] [2 4] [4 4] [1 2] [2 2] [4 2] [8 2] [12 2] [1 1] [4 1] [12 1]];
        }
        /// AVX-512 VNNI: dot products of bytes.
        Avx512Vnni = avx512vnni over Avx512, if all(feature = "avx512vnni", target_arch = "x86_64"),
        ["avx512f" "avx512bw" "avx512vnni"] {
            avx512vnni_i8: tile_avx512vnni_i8, i8, lanes 16, word U8x4, unroll 2,
            dot [[1 8] [1 4] [2 4] [4 4] [6 4] [1 2] [2 2] [3 2] [4 2] [5 2] [6 2] [7 2] [8 2] [10 2] [11 2] [12 2]
                 [13 2] [1 1] [4 1] [12 1]];
            avx512vnni_block: tile_avx512vnni_block, block, lanes 16, tiles [[1 1] [1 5] [2 5]],
            direct [[1 1] [1 5] [2 5]], floats [[1 1] [1 12] [2 12]], ahead [0 4096 6144 6144];
        }
        /// AVX-512 BF16: dot products of bf16.
        Avx512Bf16 = avx512bf16 over Avx512Vnni, if all(feature = "avx512bf16", target_arch = "x86_64"),
        ["avx512f" "avx512bf16"] {
            avx512bf16_bf16: tile_avx512bf16_bf16, bf16, lanes 16, word Bf16x2, unroll 2,
            dot [[1 8] [1 4] [2 4] [4 4] [6 4] [1 2] [2 2] [3 2] [4 2] [6 2] [8 2] [10 2] [11 2] [12 2] [13 2]
                 [1 1] [4 1] [12 1]];
        }
        /// AMX: products of tiles of bytes.
        Amx = amx over Avx512Bf16, if all(feature = "amx", target_arch = "x86_64", target_os = "linux"),
        ["avx512f" "avx512bw" "avx512vnni"] {
            amx_tiles: tile_amx_tiles, tiles, lanes 16, word U8x4, unroll 1, dot [[16 2] [16 1]];
        }
    } };
}

/// Calls `$then!` once per line of the table for an element type, `f32` unless another is given
/// (`any` for all of them), of the instruction sets that this build contains, weakest first:
/// `id: tile macro, Isa, isa, dtype, [target features], ` and then what the line says after the type.
#[macro_export]
macro_rules! for_each_tile {
    ($then:ident) => {
        $crate::for_each_tile! { $then, f32 }
    };
    ($then:ident, $want:ident) => {
        $crate::instruction_sets! { $crate::each_line, $then $want }
    };
}

/// The lines of all rows, each in the form that templates take.
#[doc(hidden)]
#[macro_export]
macro_rules! each_line {
    ($then:ident $want:ident $(
        $(#[$doc:meta])* $isa:ident = $name:ident over $base:ident, if $cfg:meta, $features:tt { $($lines:tt)* }
    )*) => {
        $(
            #[cfg($cfg)]
            $crate::line_if! { $then $want $isa $name $features $($lines)* }
        )*
    };
}

/// The lines of one row that are for the type wanted.
#[doc(hidden)]
#[macro_export]
macro_rules! line_if {
    ($then:ident $want:ident $isa:ident $name:ident $features:tt $(
        $id:ident: $tile:ident, $dtype:ident, $($word:ident $value:tt),* $(,)?;
    )*) => {
        $($crate::same_type! { $want $dtype
            $then! { $id: $tile, $isa, $name, $dtype, $features, $($word $value),* } })*
    };
}

/// What follows two types, if they are the same.
#[doc(hidden)]
#[macro_export]
macro_rules! same_type {
    (any $have:ident $($then:tt)*) => { $($then)* };
    (f32 f32 $($then:tt)*) => { $($then)* };
    (f16 f16 $($then:tt)*) => { $($then)* };
    (bf16 bf16 $($then:tt)*) => { $($then)* };
    (i8 i8 $($then:tt)*) => { $($then)* };
    (u8 u8 $($then:tt)*) => { $($then)* };
    (tiles tiles $($then:tt)*) => { $($then)* };
    (block block $($then:tt)*) => { $($then)* };
    ($want:ident $have:ident $($then:tt)*) => {};
}
