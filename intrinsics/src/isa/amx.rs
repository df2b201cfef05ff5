//! AMX: products of tiles of bytes, 16 rows of 64.
//!
//! Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18. The compiler has no
//! names for these instructions yet and knows nothing of the registers, which keep what they hold between two blocks of
//! assembly.

/// The tile macro of AMX: what it has beside that of AVX-512 VNNI.
#[macro_export]
macro_rules! tile_amx_tiles {
    // Sums are registers 0 to 3, of two pieces by two vectors; 4 and 5 are of the pieces, 6 and 7 of the weights.
    (TILES <- $rows:expr, $words:expr) => {{
        #[repr(C, align(64))]
        struct Shapes { palette: u8, start: u8, unused: [u8; 14], bytes: [u16; 16], rows: [u8; 16] }
        let mut shapes = Shapes { palette: 1, start: 0, unused: [0; 14], bytes: [0; 16], rows: [0; 16] };
        let (rows, words): (usize, usize) = ($rows, $words);
        for i in 0..8 {
            shapes.bytes[i] = if i == 4 || i == 5 { words as u16 * 4 } else { 64 };
            shapes.rows[i] = if i < 6 { rows as u8 } else { words as u8 };
        }
        // SAFETY: reads the 64 bytes of the shapes, which are of those that the CPU has: 8 registers of up to 16 rows
        // of 64 bytes.
        unsafe { core::arch::asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
    }};
    // SAFETY: gives the registers back, which nothing else uses.
    (TILES_DONE) => { unsafe { core::arch::asm!("tilerelease", options(nostack, nomem)) } };
    // SAFETY: the verb's caller owns what the addresses lead to; the registers have their shapes.
    (TILES $sums:expr, $v:expr, $two:expr; $a:expr, $step:expr, $segments:expr, $count:expr, $words:expr; $b:expr) => {{
        let (a, sums): ([*const f32; 2], [*mut f32; 2]) = ($a, $sums);
        let (segments, b): (&[isize], *const f32) = ($segments, $b);
        let (vectors, two): (usize, bool) = ($v, $two);
        let range = segments.as_ptr_range();
        let far = [a[0].cast::<u8>(), a[1].cast(), range.end.cast(), sums[0].cast(), sums[1].cast()];
        let words: usize = $words;
        unsafe {
            core::arch::asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "mov {n}, [{segment}]",
                "add {segment}, 8",
                "mov {p}, [{far}]",
                "lea {p}, [{p} + 4 * {n}]",
                "mov {q}, [{far} + 8]",
                "lea {q}, [{q} + 4 * {n}]",
                "mov {n}, {count}",
                "3:",
                "tileloadd tmm4, [{p} + {step}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tdpbusd tmm0, tmm4, tmm6",
                "test {flags:e}, 1",
                "jz 4f",
                "tileloadd tmm5, [{q} + {step}]",
                "tdpbusd tmm2, tmm5, tmm6",
                "4:",
                "test {flags:e}, 2",
                "jz 5f",
                "tileloadd tmm7, [{b} + {row} + 64]",
                "tdpbusd tmm1, tmm4, tmm7",
                "test {flags:e}, 1",
                "jz 5f",
                "tdpbusd tmm3, tmm5, tmm7",
                "5:",
                "add {p}, {a_next}",
                "add {q}, {a_next}",
                "add {b}, {b_next}",
                "dec {n}",
                "jnz 3b",
                "cmp {segment}, [{far} + 16]",
                "jne 2b",
                "mov {p}, [{far} + 24]",
                "mov {q}, [{far} + 32]",
                "tilestored [{p} + {row}], tmm0",
                "test {flags:e}, 2",
                "jz 6f",
                "tilestored [{p} + {row} + 64], tmm1",
                "6:",
                "test {flags:e}, 1",
                "jz 7f",
                "tilestored [{q} + {row}], tmm2",
                "test {flags:e}, 2",
                "jz 7f",
                "tilestored [{q} + {row} + 64], tmm3",
                "7:",
                far = in(reg) far.as_ptr(),
                segment = inout(reg) range.start => _,
                b = inout(reg) b => _,
                step = in(reg) 4 * $step,
                row = in(reg) 64 * vectors,
                count = in(reg) $count,
                a_next = in(reg) 4 * words,
                b_next = in(reg) 64 * words * vectors,
                flags = in(reg) usize::from(two) | vectors & 2,
                n = out(reg) _, p = out(reg) _, q = out(reg) _,
                options(nostack),
            );
        }
    }};
    ($($verb:tt)*) => { $crate::tile_avx512vnni_i8!($($verb)*) };
}
