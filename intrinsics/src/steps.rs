//! How the pixels of a tile are addressed.
//!
//! The distance of two pixels is known at run time only. Left alone, LLVM keeps one pointer per
//! pixel, more than x86 has registers, and reloads them from the stack in the hot loop. [`Nine`]
//! serves nine pixels from one pointer and four multiples of the distance through the scaled index
//! of x86, and hides the values from the optimiser, which then cannot precompute the sums.

/// One pointer per pixel, for machines with enough registers.
#[derive(Clone, Copy, Debug)]
pub struct One(usize);

impl One {
    /// Pixels per pointer.
    pub const GROUP: usize = 1;

    /// For pixels `step` elements of 4 bytes apart.
    #[inline(always)]
    pub fn new(step: usize) -> Self {
        Self(step)
    }

    /// The distance of two pixels in elements.
    #[inline(always)]
    pub fn step(&self) -> usize {
        self.0
    }

    /// The pointer that serves pixel `i`.
    #[inline(always)]
    pub fn group(i: usize) -> usize {
        i
    }

    /// Whether pixel `i` is the first that its pointer serves.
    #[inline(always)]
    pub fn leads(_i: usize) -> bool {
        true
    }

    /// Byte offset of pixel `i` from its pointer.
    #[inline(always)]
    pub fn at(&self, _i: usize) -> usize {
        0
    }

    /// Nothing: the optimiser does well.
    #[inline(always)]
    pub fn hold(&mut self) {}

    /// The pointer itself.
    #[inline(always)]
    pub fn hold_pointer(p: *const f32) -> *const f32 {
        p
    }
}

/// One pointer per pixel that the optimiser does not derive from that of another: the loads of AArch64
/// move the register they read from, where a common index would need an instruction.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug)]
pub struct Apart(One);

#[cfg(target_arch = "aarch64")]
impl Apart {
    /// Pixels per pointer.
    pub const GROUP: usize = One::GROUP;

    /// For pixels `step` elements of 4 bytes apart.
    #[inline(always)]
    pub fn new(step: usize) -> Self {
        Self(One::new(step))
    }

    /// The distance of two pixels in elements.
    #[inline(always)]
    pub fn step(&self) -> usize {
        self.0.step()
    }

    /// The pointer that serves pixel `i`.
    #[inline(always)]
    pub fn group(i: usize) -> usize {
        One::group(i)
    }

    /// Whether pixel `i` is the first that its pointer serves.
    #[inline(always)]
    pub fn leads(i: usize) -> bool {
        One::leads(i)
    }

    /// Byte offset of pixel `i` from its pointer.
    #[inline(always)]
    pub fn at(&self, i: usize) -> usize {
        self.0.at(i)
    }

    /// Nothing: only the pointers are hidden.
    #[inline(always)]
    pub fn hold(&mut self) {}

    /// Makes a pointer unknown to the optimiser. Emits no instruction.
    #[inline(always)]
    pub fn hold_pointer(p: *const f32) -> *const f32 {
        hidden(p)
    }
}

/// A pointer that is unknown to the optimiser. Emits no instruction.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "the pointer is passed on, not followed")]
fn hidden(mut p: *const f32) -> *const f32 {
    // SAFETY: an empty instruction sequence that leaves the register as it is.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags));
    }
    p
}

/// One pointer per nine pixels: `[p + {0, s, 2s, 4s, 8s, s3, 2 s3, s5, s7}]`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Nine {
    step: usize,
    /// 1, 3, 5 and 7 times the distance, in bytes.
    odd: [usize; 4],
}

#[cfg(target_arch = "x86_64")]
impl Nine {
    /// Pixels per pointer.
    pub const GROUP: usize = 9;

    /// For pixels `step` elements of 4 bytes apart.
    #[inline(always)]
    pub fn new(step: usize) -> Self {
        Self { step, odd: [4 * step, 12 * step, 20 * step, 28 * step] }
    }

    /// The distance of two pixels in elements.
    #[inline(always)]
    pub fn step(&self) -> usize {
        self.step
    }

    /// The pointer that serves pixel `i`.
    #[inline(always)]
    pub fn group(i: usize) -> usize {
        i / Self::GROUP
    }

    /// Whether pixel `i` is the first that its pointer serves.
    #[inline(always)]
    pub fn leads(i: usize) -> bool {
        i.is_multiple_of(Self::GROUP)
    }

    /// Byte offset of pixel `i` from its pointer.
    #[inline(always)]
    pub fn at(&self, i: usize) -> usize {
        let [one, three, five, seven] = self.odd;
        match i % Self::GROUP {
            0 => 0,
            1 => one,
            2 => one * 2,
            3 => three,
            4 => one * 4,
            5 => five,
            6 => three * 2,
            7 => seven,
            _ => one * 8,
        }
    }

    /// Makes the distances unknown to the optimiser. Emits no instruction.
    #[inline(always)]
    pub fn hold(&mut self) {
        let hide = |mut x: usize| {
            // SAFETY: an empty instruction sequence that leaves the register as it is.
            unsafe {
                core::arch::asm!(
                    "/* {0} */",
                    inout(reg) x,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            x
        };
        let [one, three, five, seven] = self.odd;
        self.odd = [hide(one), hide(three), hide(five), hide(seven)];
    }

    /// Makes a pointer unknown to the optimiser. Emits no instruction.
    #[inline(always)]
    pub fn hold_pointer(p: *const f32) -> *const f32 {
        hidden(p)
    }
}
