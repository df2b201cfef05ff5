//! Relaxed SIMD of WebAssembly: a multiply-add that is one instruction where the host has one.

/// The tile macro of WebAssembly's relaxed SIMD for `f32`. Whether its multiply-add rounds once or
/// twice is the engine's choice. See the crate documentation.
#[macro_export]
macro_rules! tile_wasm_relaxed_f32 {
    (VFMA $a:expr, $b:expr, $c:expr) => { $crate::arch::f32x4_relaxed_madd($a, $b, $c) };
    // What contains VFMA; the elementary functions keep the form whose rounding is known.
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_wasm_relaxed_f32 COMPUTE $($verb)*) };
    (LEAKY $($verb:tt)*) => { $crate::tile_default!(tile_wasm_relaxed_f32 LEAKY $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_wasm_f32!($($verb)*) };
}
