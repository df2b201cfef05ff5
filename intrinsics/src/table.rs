//! The list of instruction sets: one row per (ISA, element type).

/// Calls `$then!` once with the row of each (ISA, element type) that this build contains, weakest
/// ISA first.
///
/// A row is `id: macro, Isa, isa, dtype, [target features], lanes L, c_vec N, unroll U, conv [[R W
/// V] ...], matmul [[W V] ...], row [[S V] ...]`. `Isa` names a variant of the kernels crate's enum and `isa` is its
/// printed name, `lanes` are the elements of a vector, `c_vec` the vectors of 16 channels. `conv` lists the tiles of
/// the convolution (rows, pixels, vectors per pixel), `matmul` those of the matrix product (rows
/// of A, vectors of columns), `row` those of its single rows (partial sums, vectors of columns; one
/// for each width of `matmul`). A row whose Cargo feature is off, or whose target this is not,
/// vanishes.
#[macro_export]
macro_rules! for_each_tile {
    ($then:ident) => {
        $crate::row_scalar_f32! { $then }
        $crate::row_neon_f32! { $then }
        $crate::row_avx2_f32! { $then }
        $crate::row_avx512_f32! { $then }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! row_scalar_f32 {
    ($then:ident) => {
        $then! { scalar_f32: tile_scalar_f32, Scalar, scalar, f32, [], lanes 1, c_vec 16, unroll 4,
        conv [[1 1 16] [1 2 16]],
        matmul [[2 16]], row [[1 16] [1 4] [1 1]] }
    };
}

#[cfg(all(feature = "neon", target_arch = "aarch64"))]
#[doc(hidden)]
#[macro_export]
macro_rules! row_neon_f32 {
    ($then:ident) => {
        $then! { neon_f32: tile_neon_f32, Neon, neon, f32, ["neon"], lanes 4, c_vec 4, unroll 4,
        conv [[1 1 4] [1 2 4] [1 3 4] [1 4 4] [1 5 4] [2 1 4] [4 1 4] [2 2 4]],
        matmul [[2 4] [3 4] [4 4] [5 4] [2 1] [3 1] [4 1] [5 1]], row [[2 8] [4 4] [4 1]] }
    };
}

#[cfg(all(feature = "avx2", target_arch = "x86_64"))]
#[doc(hidden)]
#[macro_export]
macro_rules! row_avx2_f32 {
    ($then:ident) => {
        $then! { avx2_f32: tile_avx2_f32, Avx2, avx2, f32, ["avx2,fma"], lanes 8, c_vec 2, unroll 4,
        conv [[1 1 2] [1 2 2] [1 3 2] [1 4 2] [1 5 2] [1 6 2] [4 1 2] [2 2 2] [3 2 2] [2 3 2]],
        matmul [[2 4] [2 2] [3 2] [4 2] [5 2] [6 2] [2 1] [3 1] [4 1] [5 1] [6 1]],
        row [[1 8] [2 4] [4 2] [8 1]] }
    };
}

#[cfg(all(feature = "avx512", target_arch = "x86_64"))]
#[doc(hidden)]
#[macro_export]
macro_rules! row_avx512_f32 {
    ($then:ident) => {
        $then! { avx512_f32: tile_avx512_f32, Avx512, avx512, f32, ["avx512f"], lanes 16, c_vec 1, unroll 2,
            conv [[1 1 2] [1 2 2] [1 3 2] [1 4 2] [1 5 2] [1 6 2] [1 7 2] [1 8 2] [1 9 2] [1 10 2] [1 11 2]
                  [1 12 2] [1 13 2] [4 1 2] [4 2 2] [2 3 2] [2 4 2] [2 5 2] [2 6 2]
                  [1 1 1] [1 2 1] [1 3 1] [1 4 1] [1 5 1] [1 6 1] [1 7 1] [1 8 1] [1 12 1] [1 24 1]],
            matmul [[2 4] [3 4] [4 4] [2 2] [3 2] [4 2] [5 2] [6 2] [7 2] [8 2] [10 2] [11 2] [12 2] [13 2]
                    [2 1] [3 1] [4 1] [6 1] [8 1] [12 1]],
            row [[2 8] [4 4] [4 2] [8 1]] }
    };
}

#[cfg(not(all(feature = "neon", target_arch = "aarch64")))]
#[doc(hidden)]
#[macro_export]
macro_rules! row_neon_f32 {
    ($then:ident) => {};
}

#[cfg(not(all(feature = "avx2", target_arch = "x86_64")))]
#[doc(hidden)]
#[macro_export]
macro_rules! row_avx2_f32 {
    ($then:ident) => {};
}

#[cfg(not(all(feature = "avx512", target_arch = "x86_64")))]
#[doc(hidden)]
#[macro_export]
macro_rules! row_avx512_f32 {
    ($then:ident) => {};
}
