//! Rows of the file into a panel, a vector of rows at a time: words by transposing four of each row.

use super::BlockFormat;

/// Brings all blocks of a panel's rows into their packed order: `(rows, row_bytes, to, blocks, format, flip)`,
/// the first row, bytes from one row to the next, the panel, blocks of a row, and what is flipped in each word.
///
/// # Safety
///
/// * The CPU has the instructions of the row of the table.
/// * `rows` is readable for as many rows as a vector has lanes, `row_bytes` apart, of `blocks` blocks of the
///   format as panels hold them; `to` is writable for as many bytes.
pub(crate) type GatherFn = unsafe fn(*const u8, usize, *mut u8, usize, BlockFormat, u32);

/// Where the words of a block go.
pub(crate) struct Order {
    /// Bytes before the first word in a block of the file; the others follow it.
    pub(crate) first: usize,
    /// How many there are, 0 for formats that have fewer than four.
    pub(crate) count: usize,
    /// Packed, the vector of each.
    pub(crate) to: [u8; MOST],
    /// Packed, the vector of single bits; [`MOST`] if there is none.
    pub(crate) fifth: usize,
}

/// More than the words of any block.
const MOST: usize = 56;

impl Order {
    /// Of a format, by the list of its words in packed order.
    pub(crate) const fn of(format: BlockFormat) -> Self {
        let words = format.words();
        let mut order = Self { first: 0, count: 0, to: [0; MOST], fifth: MOST };
        if words.len() < 4 {
            return order;
        }
        order.count = words.len();
        order.first = words[0] as usize;
        let mut i = 0;
        while i < words.len() {
            if (words[i] as usize) < order.first {
                order.first = words[i] as usize;
            }
            i += 1;
        }
        i = 0;
        while i < words.len() {
            let at = words[i] as usize - order.first;
            // What follows the last word of this list is no word of it.
            assert!(at.is_multiple_of(4) && at / 4 < words.len());
            order.to[at / 4] = i as u8;
            if let Some(fifth) = format.fifth_bits()
                && fifth == words[i]
            {
                order.fifth = i;
            }
            i += 1;
        }
        order
    }
}

/// By format.
pub(crate) static ORDERS: [Order; BlockFormat::ALL.len()] = {
    let mut orders = [const { Order::of(BlockFormat::F32) }; BlockFormat::ALL.len()];
    let mut i = 0;
    while i < orders.len() {
        orders[i] = Order::of(BlockFormat::ALL[i]);
        i += 1;
    }
    orders
};

/// The function of an instruction set whose vectors have whole quads of lanes, as an option.
macro_rules! block_gather {
    (1 $feat:tt) => { None };
    ($lanes:tt [$($f:tt)*]) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn gather(
            mut from: *const u8,
            far: usize,
            mut to: *mut u8,
            blocks: usize,
            format: BlockFormat,
            flip: u32,
        ) {
            let order = &crate::template::block::gather::ORDERS[format as usize];
            let (halves, half, bytes) = (format.halves(), format.half_bytes(), format.held_bytes());
            let flip = tile!(VSETU flip);
            // Rows are as many streams; what follows them, as one stream, is the next panel.
            let mut next = from.wrapping_add(LANES * far);
            for _ in 0..blocks {
                for line in (0..bytes * LANES).step_by(64) {
                    tile!(VPREFETCH next.wrapping_add(line).cast::<f32>(), 0);
                }
                for (i, &at) in halves.iter().enumerate() {
                    let scales = to.wrapping_add(half * i * LANES);
                    let row = from.wrapping_add(usize::from(at));
                    if half == 1 {
                        each!(r in $lanes {
                            // SAFETY: the exponent of a block of each row, and its place in the panel.
                            unsafe { *scales.wrapping_add(r) = *row.wrapping_add(r * far) };
                        });
                        continue;
                    }
                    let (scales, row) = (scales.cast::<u16>(), row.cast::<u16>());
                    each!(r in $lanes {
                        // SAFETY: the half of a block of each row, and its place in the panel.
                        unsafe {
                            let half = row.wrapping_byte_add(r * far).read_unaligned();
                            scales.wrapping_add(r).write_unaligned(half);
                        }
                    });
                }
                let words = to.wrapping_add(half * LANES * halves.len()).cast::<f32>();
                // The last four words are perhaps moved twice.
                for quad in 0..order.count.div_ceil(4) {
                    let at = (4 * quad).min(order.count - 4);
                    let p = from.wrapping_add(order.first + 4 * at);
                    let mut t = tile!(ZEROS [[tile!(VTYPE); 1]; 4]);
                    each!(i in 4 { t[i][0] = tile!(VQUADS p.wrapping_add(i * far), 4 * far); });
                    tile!(QUADS t [1]);
                    each!(i in 4 {
                        let x = if tile!(BIASED) { tile!(VXOR t[i][0], flip) } else { t[i][0] };
                        tile!(VSTORE words, usize::from(order.to[at + i]), x);
                    });
                }
                if order.fifth < order.count {
                    let words = words.wrapping_add(order.fifth * LANES);
                    let bits = tile!(VLOAD words.cast_const(), 0);
                    let mut apart = tile!(VZERO);
                    // Of every fourth bit a byte, in steps that halve the gaps between the bits.
                    each!(i in 4 {
                        let x = tile!(VAND tile!(VSHR bits, (i as u32)), tile!(VSETU 0x1111_1111));
                        let x = tile!(VAND tile!(VOR x, tile!(VSHR x, 3)), tile!(VSETU 0x0303_0303));
                        let x = tile!(VAND tile!(VOR x, tile!(VSHR x, 6)), tile!(VSETU 0x000f_000f));
                        let x = tile!(VAND tile!(VOR x, tile!(VSHR x, 12)), tile!(VSETU 0xff));
                        apart = tile!(VOR apart, tile!(VSHL x, (8 * i as u32)));
                    });
                    tile!(VSTORE words, 0, apart);
                }
                from = from.wrapping_add(bytes);
                to = to.wrapping_add(bytes * LANES);
                next = next.wrapping_add(bytes * LANES);
            }
        }
        Some(gather as GatherFn)
    }};
}
pub(super) use block_gather;
