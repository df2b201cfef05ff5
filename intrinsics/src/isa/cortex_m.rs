//! Cortex-M4 and M7: a floating-point unit for single numbers of single precision, and
//! multiply-adds of pairs of `i16`, and arithmetic on four bytes at a time.

/// The tile macro of Cortex-M for `f32`: one lane, 32 registers. See the crate documentation.
///
/// Rust has no operands in single-precision registers on targets without double precision, so
/// assembly names registers itself, and a tile passes through memory at each `COMPUTE`: 32 cycles
/// beside the 128 or more of four steps. All else is scalar code.
#[macro_export]
macro_rules! tile_cortex_m_f32 {
    (VSQRT $x:expr) => {{
        let mut x = f32::to_bits($x);
        // SAFETY: arithmetic on registers.
        unsafe { core::arch::asm!("vmov s0, {x}", "vsqrt.f32 s0, s0", "vmov {x}, s0",
            x = inout(reg) x, out("s0") _, options(pure, nomem, nostack, preserves_flags)) };
        f32::from_bits(x) }};
    // The bytes of a pixel, by words. SAFETY (2 memory arms): the verb's caller owns 16 bytes there.
    (BYTES_SPLAT $byte:expr) => { [u32::from_ne_bytes([$byte; 4]); 4] };
    (BYTES_LOAD $p:expr) => { unsafe { $p.cast::<[u32; 4]>().read_unaligned() } };
    (BYTES_STORE $p:expr, $x:expr) => { unsafe { $p.cast::<[u32; 4]>().write_unaligned($x) } };
    (BYTES_XOR $a:expr, $b:expr) => {{ let (mut a, b) = ($a, $b); $crate::each!(i in 4 { a[i] ^= b[i]; }); a }};
    // What is above, or 0, and that again. SAFETY: arithmetic on registers.
    (BYTES_MAX $a:expr, $b:expr) => {{
        let (mut a, b) = ($a, $b);
        $crate::each!(i in 4 { unsafe { core::arch::asm!("uqsub8 {a}, {a}, {b}", "uadd8 {a}, {a}, {b}",
            a = inout(reg) a[i], b = in(reg) b[i], options(pure, nomem, nostack)) }; });
        a }};
    (COMPUTE conv $t:ident [1 x 1 x 16 x 4] += $p:ident[$s:ident] * $b:ident if $m:expr) => {
        if $m & 1 != 0 {
            $crate::tile_cortex_m_f32!(STEPS_OF $t, $p, $b, $crate::tile_cortex_m_f32!(STEP_AT "0"),
                $crate::tile_cortex_m_f32!(STEP_AT "4"), $crate::tile_cortex_m_f32!(STEP_AT "8"),
                $crate::tile_cortex_m_f32!(STEP_AT "12"))
        } };
    // Reduction steps on a tile of 16 accumulators, s0 to s15.
    (STEPS_OF $t:ident, $p:ident, $b:ident, $($step:expr),+) => {{
        let (t, a, b) = ($t[0].as_mut_ptr(), $p[0][0], $b);
        // SAFETY: the tile has 16 numbers; the verb's caller owns one activation and 16 weights
        // per step; all registers written are named.
        unsafe { core::arch::asm!(
            "vldmia {t}, {{s0-s15}}", $($step,)+ "vstmia {t}, {{s0-s15}}",
            t = in(reg) t, a = in(reg) a, b = inout(reg) b => _,
            out("s0") _, out("s1") _, out("s2") _, out("s3") _, out("s4") _, out("s5") _, out("s6") _,
            out("s7") _, out("s8") _, out("s9") _, out("s10") _, out("s11") _, out("s12") _,
            out("s13") _, out("s14") _, out("s15") _, out("s16") _, out("s17") _, out("s18") _,
            out("s19") _, out("s20") _, out("s21") _, out("s22") _, out("s23") _, out("s24") _,
            options(nostack, preserves_flags)) };
    }};
    // The activation at this offset times the next 16 weights.
    (STEP_AT $offset:literal) => { concat!("vldr s24, [{a}, #", $offset, "]\n",
        "vldmia {b}!, {{s16-s23}}\n",
        "vfma.f32 s0, s24, s16\n", "vfma.f32 s1, s24, s17\n", "vfma.f32 s2, s24, s18\n",
        "vfma.f32 s3, s24, s19\n", "vfma.f32 s4, s24, s20\n", "vfma.f32 s5, s24, s21\n",
        "vfma.f32 s6, s24, s22\n", "vfma.f32 s7, s24, s23\n",
        "vldmia {b}!, {{s16-s23}}\n",
        "vfma.f32 s8, s24, s16\n", "vfma.f32 s9, s24, s17\n", "vfma.f32 s10, s24, s18\n",
        "vfma.f32 s11, s24, s19\n", "vfma.f32 s12, s24, s20\n", "vfma.f32 s13, s24, s21\n",
        "vfma.f32 s14, s24, s22\n", "vfma.f32 s15, s24, s23") };
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_cortex_m_f32 COMPUTE $($verb)*) };
    (LEAST $($verb:tt)*) => { $crate::tile_default!(tile_cortex_m_f32 LEAST $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_scalar_f32!($($verb)*) };
}

/// The tile macro of Cortex-M for `i8`: pairs of `i16` and their two products in one instruction.
#[macro_export]
macro_rules! tile_cortex_m_i8 {
    (VFMA $a:expr, $b:expr, $c:expr) => {{
        let (a, b, mut c) = (f32::to_bits($a), f32::to_bits($b), f32::to_bits($c));
        // SAFETY: arithmetic on registers. The sum is modulo 2^32; the flag that says so is unused.
        unsafe { core::arch::asm!("smlad {c}, {a}, {b}, {c}", a = in(reg) a, b = in(reg) b, c = inout(reg) c,
            options(pure, nomem, nostack)) };
        f32::from_bits(c) }};
    (COMPUTE $($verb:tt)*) => { $crate::tile_default!(tile_cortex_m_i8 COMPUTE $($verb)*) };
    ($($verb:tt)*) => { $crate::tile_scalar_f32!($($verb)*) };
}
