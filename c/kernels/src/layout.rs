//! Blocked tensors, as convolutions read and write them.

use core::ffi::c_void;

use tilewright_kernels::pack::{blocked_index, blocked_len, interleaved_index, plain_index};

use crate::error::{Fail, call};
use crate::status::tw_status;

/// From `[n][c][h][w]` to blocked; without, from `[n][h][w][c]`.
pub const TW_PLANAR: u32 = 1;

/// From blocked, not to it.
pub const TW_UNBLOCK: u32 = 2;

/// Rearranges `[n][h][w][c]` (or, with `TW_PLANAR`, `[n][c][h][w]`) to blocked,
/// `[n][c / 16 rounded up][h][w][16]`, or back with `TW_UNBLOCK`. Channels that fill up the last block are 0.
/// `element` is the size of an element in bytes, 1 or 4; `shape` is n, c, h, w. A plain tensor has
/// `n * c * h * w` elements, a blocked one `tw_blocked_count`.
///
/// Gives `TW_INVALID_ARGUMENT`, and `TW_BUFFER_TOO_SMALL` if `x` or `y` has fewer bytes. Any thread may
/// call it.
///
/// # Safety
/// `shape` is NULL or four numbers; `x` is NULL or readable for `x_bytes` bytes, `y` NULL or writable for
/// `y_bytes` bytes; they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_block(
    flags: u32,
    element: usize,
    shape: *const usize,
    x: *const c_void,
    x_bytes: usize,
    y: *mut c_void,
    y_bytes: usize,
) -> tw_status {
    call(|| {
        // SAFETY: as the caller promises.
        let shape = unsafe { read_shape(shape) }?;
        if flags & !(TW_PLANAR | TW_UNBLOCK) != 0 {
            return Err(Fail::Argument("flags", "TW_PLANAR and TW_UNBLOCK only"));
        }
        if ![1, 4].contains(&element) {
            return Err(Fail::Argument("element", "1 or 4"));
        }
        let blocked = count(shape)? * element;
        let [n, c, h, w] = shape;
        let plain = n * c * h * w * element;
        let back = flags & TW_UNBLOCK != 0;
        let (from, to) = if back { (blocked, plain) } else { (plain, blocked) };
        for (what, at, needed, found) in
            [("x", x, from, x_bytes), ("y", y.cast_const(), to, y_bytes)]
        {
            if at.is_null() && needed > 0 {
                return Err(Fail::Null(what));
            }
            if found < needed {
                return Err(Fail::Small { what, needed, found });
            }
        }
        let plain = if flags & TW_PLANAR != 0 { plain_index } else { interleaved_index };
        // SAFETY: both have the bytes that were checked, `y` is writable and they do not overlap; all of
        // `y` that is read or left has been written.
        unsafe {
            y.cast::<u8>().write_bytes(0, to);
            for at in indices(shape) {
                let (a, b) = (plain(shape, at) * element, blocked_index(shape, at) * element);
                let (a, b) = if back { (b, a) } else { (a, b) };
                let (from, to) = (x.cast::<u8>().add(a), y.cast::<u8>().add(b));
                // Of a fixed size it is an instruction.
                if element == 4 {
                    core::ptr::copy_nonoverlapping(from, to, 4);
                } else {
                    to.write(from.read());
                }
            }
        }
        Ok(())
    })
}

/// Elements of a blocked tensor of the shape n, c, h, w; 0 for NULL, and for one beyond memory.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `shape` is NULL or four numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_blocked_count(shape: *const usize) -> usize {
    // SAFETY: as the caller promises.
    unsafe { read_shape(shape) }.and_then(count).unwrap_or(0)
}

/// # Safety
/// NULL or four numbers.
unsafe fn read_shape(shape: *const usize) -> Result<[usize; 4], Fail> {
    if shape.is_null() {
        return Err(Fail::Null("shape"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { shape.cast::<[usize; 4]>().read_unaligned() })
}

/// Elements of a blocked tensor, if their bytes can be.
fn count([n, c, h, w]: [usize; 4]) -> Result<usize, Fail> {
    let padded = c.checked_next_multiple_of(tilewright_kernels::C_BLOCK);
    let all = [Some(n), padded, Some(h), Some(w)].into_iter().try_fold(1usize, |all, size| {
        all.checked_mul(size?).filter(|&all| all <= isize::MAX as usize / 8)
    });
    let [n, c, h, w] = all.map(|_| [n, c, h, w]).ok_or(Fail::Argument("shape", "within memory"))?;
    Ok(blocked_len([n, c, h, w]))
}

fn indices([n, c, h, w]: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    (0..n).flat_map(move |n| {
        (0..c).flat_map(move |c| (0..h).flat_map(move |h| (0..w).map(move |w| [n, c, h, w])))
    })
}
