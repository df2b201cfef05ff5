//! Tests of the real program.

#![cfg(all(feature = "cli", feature = "llm"))]

mod bad_input;
mod commands;
mod gguf;
mod llm;
#[cfg(all(feature = "rknn", target_os = "linux"))]
mod npu;
mod support;
mod tasks;
mod tune;
