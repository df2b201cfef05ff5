//! Another static library of Rust, which a program may have beside tilewright's: it allocates, has threads
//! and catches a panic.

#![allow(clippy::print_stdout)]

/// The sum of the squares below `n`, by a thread; -1 if that panicked.
#[unsafe(no_mangle)]
pub extern "C" fn twin_squares(n: i32) -> i64 {
    let thread = std::thread::spawn(move || {
        let squares: Vec<i64> = (0..i64::from(n)).map(|i| i * i).collect();
        assert!(!squares.is_empty(), "no squares");
        squares.iter().sum::<i64>()
    });
    thread.join().unwrap_or(-1)
}
