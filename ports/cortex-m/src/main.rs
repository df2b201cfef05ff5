//! Runs the conformance checks of the kernels on a Cortex-M, or an emulated one.
//!
//! Prints `<op>_tests <isa> ok` for each op and instruction set, and ends the emulator with an error
//! at the first wrong result.
#![no_std]
#![no_main]

extern crate alloc;

mod heap;
mod suite;

use cortex_m_semihosting::{debug, hprintln};
use tilewright_kernels::Isa;

#[cortex_m_rt::entry]
fn main() -> ! {
    for isa in Isa::available() {
        for (op, check) in suite::SUITE {
            check(isa);
            hprintln!("{}_tests {} ok", op, isa);
        }
    }
    debug::exit(debug::EXIT_SUCCESS);
    unreachable!("the emulator has ended")
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    hprintln!("{}", info);
    debug::exit(debug::EXIT_FAILURE);
    loop {}
}
