//! The list of instruction sets: one row each.

/// Hands all rows to `$then!`, weakest instruction set first, with what stands before them.
///
/// A row is
///
/// ```text
/// /// What it is, for the documentation of `Isa`.
/// Isa = isa over Base, if cfg, ["target feature" ...] {
///     id: tile macro, dtype, lanes L, c_vec N, unroll U, conv [[R W V] ...], matmul [[W V] ...];
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
/// columns).
#[macro_export]
macro_rules! instruction_sets {
    ($then:path $(, $($args:tt)*)?) => { $then! { $($($args)*)?
        /// Portable code.
        Scalar = scalar over Scalar, if all(), [] {
            scalar_f32: tile_scalar_f32, f32, lanes 1, c_vec 16, unroll 4,
            conv [[1 1 16] [1 2 16]],
            matmul [[1 16] [2 16] [1 4] [1 1]];
        }
        /// Cortex-M4 and M7 with a floating-point unit. The feature says that the machine is one.
        CortexM = cortex_m over Scalar, if all(feature = "cortex-m", target_arch = "arm"), [] {
            cortex_m_f32: tile_cortex_m_f32, f32, lanes 1, c_vec 16, unroll 4,
            conv [[1 1 16]],
            matmul [[1 16] [1 4] [2 4] [4 4] [1 1]];
        }
        /// NEON of AArch64.
        Neon = neon over Scalar, if all(feature = "neon", target_arch = "aarch64"), ["neon"] {
            neon_f32: tile_neon_f32, f32, lanes 4, c_vec 4, unroll 4,
            conv [[1 1 4] [1 2 4] [1 3 4] [1 4 4] [1 5 4] [2 1 4] [4 1 4] [2 2 4]],
            matmul [[1 8] [1 4] [2 4] [3 4] [4 4] [5 4] [1 1] [2 1] [3 1] [4 1] [5 1]];
        }
        /// SIMD of WebAssembly.
        Wasm = wasm over Scalar, if all(feature = "wasm-simd", target_arch = "wasm32"), ["simd128"] {
            wasm_f32: tile_wasm_f32, f32, lanes 4, c_vec 4, unroll 4,
            conv [[1 1 4] [1 2 4] [1 3 4] [2 1 4]],
            matmul [[1 8] [1 4] [2 4] [3 4] [1 1] [2 1] [4 1]];
        }
        /// Relaxed SIMD of WebAssembly.
        WasmRelaxed = wasm_relaxed over Wasm, if all(feature = "wasm-relaxed", target_arch = "wasm32"), ["simd128" "relaxed-simd"] {
            wasm_relaxed_f32: tile_wasm_relaxed_f32, f32, lanes 4, c_vec 4, unroll 4,
            conv [[1 1 4] [1 2 4] [1 3 4] [2 1 4]],
            matmul [[1 8] [1 4] [2 4] [3 4] [1 1] [2 1] [4 1]];
        }
        /// AVX2 with FMA.
        Avx2 = avx2 over Scalar, if all(feature = "avx2", target_arch = "x86_64"), ["avx2" "fma"] {
            avx2_f32: tile_avx2_f32, f32, lanes 8, c_vec 2, unroll 4,
            conv [[1 1 2] [1 2 2] [1 3 2] [1 4 2] [1 5 2] [1 6 2] [4 1 2] [2 2 2] [3 2 2] [2 3 2]],
            matmul [[1 8] [1 4] [2 4] [1 2] [2 2] [3 2] [4 2] [5 2] [6 2] [1 1] [2 1] [3 1] [4 1] [5 1] [6 1]];
        }
        /// AVX-512F.
        Avx512 = avx512 over Avx2, if all(feature = "avx512", target_arch = "x86_64"), ["avx512f"] {
            avx512_f32: tile_avx512_f32, f32, lanes 16, c_vec 1, unroll 2,
            conv [[1 1 2] [1 2 2] [1 3 2] [1 4 2] [1 5 2] [1 6 2] [1 7 2] [1 8 2] [1 9 2] [1 10 2] [1 11 2]
                  [1 12 2] [1 13 2] [4 1 2] [4 2 2] [2 3 2] [2 4 2] [2 5 2] [2 6 2]
                  [1 1 1] [1 2 1] [1 3 1] [1 4 1] [1 5 1] [1 6 1] [1 7 1] [1 8 1] [1 12 1] [1 24 1]],
            matmul [[1 8] [1 4] [2 4] [3 4] [4 4] [1 2] [2 2] [3 2] [4 2] [5 2] [6 2] [7 2] [8 2] [10 2] [11 2]
                    [12 2] [13 2] [1 1] [2 1] [3 1] [4 1] [6 1] [8 1] [12 1]];
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
    ($want:ident $have:ident $($then:tt)*) => {};
}
