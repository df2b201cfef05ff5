//! Tests of the real program.

#![cfg(feature = "cli")]

mod bad_input;
mod commands;
mod support;
mod tune;
