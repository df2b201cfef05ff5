//! What benches of block-quantised weights compare with: a loop that does nothing but read.

use crate::{Dtype, Isa, KernelError};
use core::hint::black_box;

macro_rules! read_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], $($rest:tt)*) => {
        mod $id {
            /// Reads whole steps of eight vectors.
            ///
            /// # Safety
            ///
            /// The CPU has the instructions of the row, and `p` is readable for `steps` of these.
            $(#[target_feature(enable = $f)])*
            pub(super) unsafe fn read(mut p: *const u8, steps: usize) -> f32 {
                use tilewright_intrinsics::$tile as tile;
                const BYTES: usize = 4 * tile!(LANES);
                tile!(DEF t [1 x 8 x 1]);
                for _ in 0..steps {
                    tilewright_intrinsics::each!(i in 8 {
                        t[i][0] = tile!(VOR t[i][0], tile!(VWORDS p.wrapping_add(i * BYTES)));
                    });
                    p = p.wrapping_add(8 * BYTES);
                }
                let mut lanes = [0.0f32; 8 * tile!(LANES)];
                let p = lanes.as_mut_ptr();
                tilewright_intrinsics::each!(i in 8 { tile!(VSTORE p, i, t[i][0]); });
                lanes.iter().fold(0u32, |x, y| x ^ y.to_bits()) as f32
            }
            pub(super) const STEP: usize = 32 * tilewright_intrinsics::$tile!(LANES);
        }
    };
}
tilewright_intrinsics::for_each_tile!(read_row, block);

/// Reads bytes, in order, in the widest vectors, and does nothing else with them; returns how many, as
/// a last part of less than 512 bytes may be left out.
///
/// # Errors
/// [`KernelError`] if this CPU or this build does not have the instruction set.
pub fn read(isa: Isa, bytes: &[u8]) -> Result<usize, KernelError> {
    isa.require()?;
    let served = isa.serving(Dtype::Block);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if served == Isa::$isa {
                let steps = bytes.len() / $id::STEP;
                // SAFETY: `require` has checked that the CPU has the instruction set, and with it its
                // bases; the bytes have these steps.
                black_box(unsafe { $id::read(black_box(bytes).as_ptr(), steps) });
                return Ok(steps * $id::STEP);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, block);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_but_a_part_of_a_step() {
        for isa in Isa::available() {
            let bytes = std::vec![1; 4097];
            assert!(read(isa, &bytes).unwrap() > 4097 - 512);
        }
    }
}
