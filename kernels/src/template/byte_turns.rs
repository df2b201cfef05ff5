//! Transposed bytes: rows become columns.

use crate::{Dtype, Isa, KernelError};
use tilewright_intrinsics::each;

/// Bytes of a side of what a kernel transposes at a time.
const SIDE: usize = 16;

/// What transposes bytes on an instruction set.
#[derive(Clone, Copy, Debug)]
pub struct ByteTurns {
    /// None for machines without vectors, and in builds of few kernels.
    kernel: Option<TurnFn>,
}

impl ByteTurns {
    /// For machines that nothing is known of.
    pub const PORTABLE: Self = Self { kernel: None };

    /// Those for `isa`.
    ///
    /// # Errors
    ///
    /// [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa) -> Result<Self, KernelError> {
        isa.require()?;
        let kernel = if cfg!(feature = "few-kernels") { None } else { kernel(isa) };
        Ok(Self { kernel })
    }

    /// Copies rows of `row` bytes, which in the source are columns: a row's bytes are `step` apart, rows are
    /// neighbours. In `dst`, which ends with the last of them or before the next, rows are `apart` bytes apart, and
    /// `src` reaches as far.
    ///
    /// # Panics
    ///
    /// Where `src` ends before, and where rows are none or overlap.
    pub fn transpose(&self, row: usize, src: &[u8], step: usize, dst: &mut [u8], apart: usize) {
        let rows = dst.len().div_ceil(apart);
        // Fewer rows than 16 are those of a block, whose channels are not all used.
        let fits = row >= SIDE && rows > 0 && reach(row, step, rows.max(SIDE)) <= src.len();
        let Some(kernel) = self.kernel.filter(|_| fits) else {
            return portable(row, src, step, dst, apart);
        };
        assert!(apart >= row && dst.len() >= (rows - 1) * apart + row, "rows beside one another");
        // SAFETY: the ISA is available; 16 or more columns, of 16 or more bytes, and rows lie in the slices.
        unsafe { run(kernel, src, [step, row], dst, [apart, rows]) };
    }

    /// [`transpose`](Self::transpose) of up to 16 columns to rows of 16 bytes without a gap, filled up with zeros.
    ///
    /// # Panics
    ///
    /// For other numbers of columns, and where `src` ends before the last one.
    pub fn fill_rows(&self, columns: usize, src: &[u8], step: usize, dst: &mut [u8]) {
        assert!((1..=SIDE).contains(&columns), "a row has up to 16 bytes");
        let rows = dst.len() / SIDE;
        let Some(kernel) = self.kernel.filter(|_| rows >= SIDE) else {
            if columns < SIDE {
                dst.fill(0);
            }
            return portable(columns, src, step, dst, SIDE);
        };
        assert!(reach(columns, step, rows) <= src.len(), "columns as long as there are rows");
        // SAFETY: as above, with room for 16 bytes in each row.
        unsafe { run(kernel, src, [step, columns], dst, [SIDE, rows]) };
    }
}

/// Where the last of some columns, of so many bytes, ends.
fn reach(columns: usize, step: usize, bytes: usize) -> usize {
    (columns - 1).saturating_mul(step).saturating_add(bytes)
}

/// Calls a kernel, with zeros and a place for what is not needed.
///
/// # Safety
///
/// As [`TurnFn`] says of slices of which these are the columns and rows: how far apart, and how many.
unsafe fn run(kernel: TurnFn, src: &[u8], columns: [usize; 2], dst: &mut [u8], rows: [usize; 2]) {
    let (zeros, mut unused) = ([0; SIDE], [0; SIDE]);
    // SAFETY: as the caller promises; these two have 16 bytes.
    unsafe {
        let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
        kernel(src, columns, dst, rows, zeros.as_ptr(), unused.as_mut_ptr());
    }
}

/// `(src, [step, columns], dst, [apart, rows], zeros, unused)`: byte `j` of column `i`, `src[i * step + j]`, becomes
/// byte `i` of row `j`, `dst[j * apart + i]`. Columns that are not there are read from `zeros`, rows that are not there
/// written to `unused`: parameters, as the compiler would make branches of what it knows.
///
/// # Safety
///
/// The CPU has the instructions. There are a column and a row or more, and 16 or more of either; columns have as many
/// readable bytes as there are rows, and 16 or more; rows as many writable bytes as there are columns, and 16 or more,
/// in which no other begins. Of fewer columns than 16, zeros fill rows up. 16 bytes are readable at `zeros`, and
/// writable at `unused`.
type TurnFn = unsafe fn(*const u8, [usize; 2], *mut u8, [usize; 2], *const u8, *mut u8);

macro_rules! turn_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [], lanes 1, $($rest:tt)*) => {};
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            $(#[target_feature(enable = $f)])*
            pub(super) unsafe fn turn(
                src: *const u8,
                [step, columns]: [usize; 2],
                dst: *mut u8,
                [apart, rows]: [usize; 2],
                zeros: *const u8,
                unused: *mut u8,
            ) {
                let (down, across) = (rows.div_ceil(SIDE), columns.div_ceil(SIDE));
                // The last square of a side ends where that ends.
                let place = |i: usize, n: usize| (i * SIDE).min(n.saturating_sub(SIDE));
                // An iterator over both sides would take as long as a square.
                let (mut r, mut c) = (0, 0);
                while r < down {
                    let (row, column) = (place(r, rows), place(c, columns));
                    (r, c) = if c + 1 < across { (r, c + 1) } else { (r + 1, 0) };
                    let x = src.wrapping_add(column * step + row);
                    let y = dst.wrapping_add(row * apart + column);
                    let mut t = [tile!(BYTES_SPLAT 0); SIDE];
                    each!(i in 16 {
                        let x = if i < columns { x.wrapping_add(i * step) } else { zeros };
                        t[i] = tile!(BYTES_LOAD x);
                    });
                    // Each round takes the first and the second half in turns: vectors are numbered by one bit of bytes,
                    // and these by one of vectors, more.
                    each!(_round in 4 {
                        let from = t;
                        each!(i in 8 {
                            t[2 * i] = tile!(BYTES_ZIP_LO from[i], from[i + 8]);
                            t[2 * i + 1] = tile!(BYTES_ZIP_HI from[i], from[i + 8]);
                        });
                    });
                    each!(i in 16 {
                        let y = if i < rows { y.wrapping_add(i * apart) } else { unused };
                        tile!(BYTES_STORE y, t[i]);
                    });
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(turn_row);

fn kernel(isa: Isa) -> Option<TurnFn> {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [], lanes 1, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return None;
            }
        };
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return Some($id::turn);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    None
}

/// [`ByteTurns::transpose`] of any sizes, for all machines.
fn portable(row: usize, src: &[u8], step: usize, dst: &mut [u8], apart: usize) {
    let rows = dst.len().div_ceil(apart);
    let mut first = 0;
    for size in [8, 4, 1] {
        while rows - first >= size {
            let mut at = 0;
            while at < row {
                let (src, dst) = (&src[first + at * step..], &mut dst[first * apart + at..]);
                at += match (size, row - at) {
                    (8, 8..) => turn_block(8, src, step, dst, apart),
                    (4.., 4..) => {
                        let second = if size == 8 { &[0, 4][..] } else { &[0] };
                        for &k in second {
                            turn_block(4, &src[k..], step, &mut dst[k * apart..], apart);
                        }
                        4
                    }
                    _ => {
                        (0..size).for_each(|k| dst[k * apart] = src[k]);
                        1
                    }
                };
            }
            first += size;
        }
    }
}

/// Transposes a block: `n` columns, 8 or 4, of as many bytes become as many rows. Gives `n`. Inlined, as the number is a
/// constant there.
#[inline(always)]
fn turn_block(n: usize, src: &[u8], step: usize, dst: &mut [u8], row: usize) -> usize {
    const INSIDE: &str = "columns have as many bytes";
    let mut words = [0u64; 8];
    each!(k in 8 { if k < n {
        let src = &src[k * step..];
        words[k] = match n {
            8 => u64::from_le_bytes(*src.first_chunk().expect(INSIDE)),
            _ => u32::from_le_bytes(*src.first_chunk().expect(INSIDE)).into(),
        };
    } });
    transpose_words(&mut words);
    each!(k in 8 { if k < n {
        let (dst, bytes) = (&mut dst[k * row..], words[k].to_le_bytes());
        match n {
            8 => dst[..8].copy_from_slice(&bytes),
            _ => dst[..4].copy_from_slice(&bytes[..4]),
        }
    } });
    n
}

/// Byte `k` of word `i` becomes byte `i` of word `k`, by exchanging halves of ever smaller squares.
#[inline(always)]
fn transpose_words(w: &mut [u64; 8]) {
    macro_rules! exchange {
        ($apart:literal, $low:literal) => {
            each!(i in 8 { if i & $apart == 0 {
                let differ = ((w[i] >> (8 * $apart)) ^ w[i | $apart]) & $low;
                w[i | $apart] ^= differ;
                w[i] ^= differ << (8 * $apart);
            } });
        };
    }
    exchange!(4, 0x0000_0000_ffff_ffff);
    exchange!(2, 0x0000_ffff_0000_ffff);
    exchange!(1, 0x00ff_00ff_00ff_00ff);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Numbers, Place, skip};
    use crate::testing_bytes::Buffer;

    /// Rows by the definition, and zeros or what was there before behind them.
    fn check(turns: ByteTurns, [columns, rows]: [usize; 2], more: usize, place: Place) {
        let (step, apart) = (rows + more, columns + more);
        let x = Numbers::new((columns * 70 + rows) as u64).bytes((columns - 1) * step + rows);
        let x = Buffer::new(&x, place);
        let mut y = Buffer::output((rows - 1) * apart + columns, place);
        y.fill(7);
        turns.transpose(columns, &x, step, &mut y, apart);
        for (at, &y) in y.iter().enumerate() {
            let (row, column) = (at / apart, at % apart);
            let expected = if column < columns { x[column * step + row] } else { 7 };
            assert_eq!(y, expected, "{columns} {rows} {more} at {at}");
        }
        if columns > SIDE {
            return;
        }
        let mut y = Buffer::output(rows * SIDE, place);
        turns.fill_rows(columns, &x, step, &mut y);
        for (at, &y) in y.iter().enumerate() {
            let (row, column) = (at / SIDE, at % SIDE);
            let expected = if column < columns { x[column * step + row] } else { 0 };
            assert_eq!(y, expected, "{columns} {rows} at {at}");
        }
    }

    fn check_all(turns: ByteTurns) {
        let sides = [1, 2, 4, 7, 8, 11, 15, 16, 17, 24, 31, 33, 64];
        for (i, columns) in sides.into_iter().enumerate() {
            for (j, rows) in sides.into_iter().enumerate() {
                check(turns, [columns, rows], (i + j) % 3 * 9, Place::ALL[j % 3]);
            }
        }
    }

    #[test]
    fn portable_rows_become_columns() {
        check_all(ByteTurns::PORTABLE);
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            mod $id {
                use super::*;

                #[test]
                fn rows_become_columns() {
                    if !skip(Isa::$isa) {
                        check_all(ByteTurns::new(Isa::$isa).unwrap());
                    }
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);
}
