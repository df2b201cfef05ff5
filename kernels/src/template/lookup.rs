//! Functions of one byte: each byte of the result is the one that a table of 256 has for that of the
//! operand. What a quantised network computes between two tensors of bytes, element by element, is such a
//! function, whatever it was written as, and exact.

use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// Bytes that a kernel takes at a time.
const STEP: usize = 64;

/// Bytes of a unit.
const UNIT: usize = 128 * STEP;

const OP: &str = "lookup";

/// A function of one byte, of a fixed number of bytes.
#[derive(Clone, Debug)]
pub struct LookupPlan {
    isa: Isa,
    len: usize,
    table: [u8; 256],
    kernel: LookupFn,
    name: &'static str,
}

impl LookupPlan {
    /// Plans the function `table` of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, len: usize, table: &[u8; 256]) -> Result<Self, KernelError> {
        isa.require()?;
        let len = checked_len(OP, &[len])?;
        let (kernel, name) = kernel(isa);
        Ok(Self { isa, len, table: *table, kernel, name })
    }

    /// Bytes of the operand and of the result.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.len.div_ceil(UNIT)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.name
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x` has [`len`](Self::len) readable bytes, `y` as many writable ones; they are the same or do not
    ///   overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const u8, y: *mut u8, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let at = units.start * UNIT;
        let len = (units.end * UNIT).min(self.len).saturating_sub(at);
        // SAFETY: the ISA is available; the run lies in the operands, which the caller owns.
        unsafe { (self.kernel)(x.wrapping_add(at), y.wrapping_add(at), len, &self.table) };
    }

    /// Computes `y` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short.
    pub fn compute(&self, x: &[u8], y: &mut [u8]) -> Result<(), KernelError> {
        check_len(OP, "x", self.len, x.len())?;
        check_len(OP, "y", self.len, y.len())?;
        // SAFETY: lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// # Safety
///
/// The CPU has the instructions; so many bytes are readable at the first pointer and writable at the
/// second, which may be the first.
type LookupFn = unsafe fn(*const u8, *mut u8, usize, &[u8; 256]);

macro_rules! lookup_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            pub(super) const KERNEL: (LookupFn, &str) =
                (lookup, concat!("lookup_i8_", stringify!($isa_name)));

            $(#[target_feature(enable = $f)])*
            unsafe fn lookup(x: *const u8, y: *mut u8, len: usize, table: &[u8; 256]) {
                let (t, whole) = (table.as_ptr(), len / STEP * STEP);
                for at in (0..whole).step_by(STEP) {
                    let (x, y) = (x.wrapping_add(at), y.wrapping_add(at));
                    tile!(LOOKUP x, t => y);
                }
                let rest = len - whole;
                if rest > 0 {
                    let mut bytes = [0u8; STEP];
                    // SAFETY: the caller owns `len` bytes at both; the rest is shorter than a step.
                    unsafe { core::ptr::copy_nonoverlapping(x.add(whole), bytes.as_mut_ptr(), rest) };
                    let own = bytes.as_mut_ptr();
                    tile!(LOOKUP own, t => own);
                    // SAFETY: as above.
                    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), y.add(whole), rest) };
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(lookup_row);

fn kernel(isa: Isa) -> (LookupFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNEL;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNEL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Numbers, Place, skip};
    use crate::testing_bytes::Buffer;

    fn check(isa: Isa, len: usize, place: Place) {
        let mut numbers = Numbers::new(len as u64);
        let (x, drawn) = (numbers.bytes(len), numbers.bytes(256));
        let table: [u8; 256] = core::array::from_fn(|i| drawn[i]);
        let plan = LookupPlan::new(isa, len, &table).unwrap();
        let (mut own, mut y) = (Buffer::new(&x, place), Buffer::output(len, place));
        for unit in (0..plan.units()).rev() {
            // SAFETY: operands of the plan's length, units of the plan, one thread.
            unsafe { plan.run(own.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
        }
        for (i, (x, y)) in x.iter().zip(&y[..]).enumerate() {
            assert_eq!(*y, drawn[usize::from(*x)], "{isa} {len} {i}");
        }
        let in_place = own.as_mut_ptr();
        // SAFETY: an operand of the plan's length, the result in its place, one thread.
        unsafe { plan.run(in_place, in_place, 0..plan.units()) };
        assert!(own[..] == y[..]);
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            mod $id {
                use super::*;

                #[test]
                fn every_byte_is_that_of_the_table() {
                    if !skip(Isa::$isa) {
                        (0..200).for_each(|len| check(Isa::$isa, len, Place::ALL[len % 3]));
                        check(Isa::$isa, 2 * UNIT + 65, Place::PageEnd);
                    }
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);

    #[test]
    fn every_number_finds_its_byte() {
        let x: [u8; 256] = core::array::from_fn(|i| i as u8);
        let table = x.map(|b| b.wrapping_mul(7) ^ 0x5a);
        for isa in Isa::available() {
            let mut y = [0; 256];
            let plan = LookupPlan::new(isa, 256, &table).unwrap();
            plan.compute(&x, &mut y).unwrap();
            assert_eq!(y, table, "{isa}");
            assert!(plan.compute(&x[1..], &mut y).is_err());
            assert!(plan.compute(&x, &mut y[1..]).is_err());
        }
    }
}
