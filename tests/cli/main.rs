//! Tests of the real program.

#![cfg(feature = "cli")]

mod bad_input;
mod commands;
mod gguf;
mod llm;
mod support;
mod tasks;
mod tune;
