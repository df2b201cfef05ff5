//! The program `tilewright`.

#![deny(unsafe_code)]

mod cli;
mod order;

fn main() -> std::process::ExitCode {
    cli::main()
}
