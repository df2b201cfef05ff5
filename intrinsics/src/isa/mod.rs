//! One file per instruction set.
mod avx2;
mod avx512;
mod neon;
mod scalar;
