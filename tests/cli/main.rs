//! Tests of the real program.

#![cfg(feature = "cli")]

mod bad_input;
mod commands;
mod gguf;
mod llm;
#[cfg(all(feature = "rknn", target_os = "linux"))]
mod npu;
mod support;
mod tasks;
mod tune;
