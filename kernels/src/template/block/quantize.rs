//! Activations from floats into the form that kernels read.

/// Brings up to `C` columns into a tile. See [`prepare`].
pub(crate) type PrepareFn = unsafe fn(&PrepareArgs);

/// Operands of it.
pub(crate) struct PrepareArgs {
    /// First column.
    pub(crate) x: *const f32,
    /// Elements of a column, which follow each other.
    pub(crate) k: usize,
    /// First record of the tile.
    pub(crate) records: *mut f32,
    /// Columns that exist, and columns of the tile: those between become zeros.
    pub(crate) columns: [usize; 2],
    /// What records hold.
    pub(crate) record: Record,
    /// Whether words of two steps and of two columns lie side by side, where there are several columns.
    pub(crate) paired: bool,
}

/// What the records of a tile of activations hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Record {
    /// One step of the reduction: an `f32` of each column.
    Float,
    /// 32 steps of a single column: as they are, and their sum.
    FloatSum,
    /// 32 steps: eight words of four signed bytes of each column, word by word; the scale of each column;
    /// `-zero` times the sum of each column's bytes, where sums of products start.
    Zero(i32),
    /// The same with two sums, of 16 bytes each.
    Zero16(i32),
    /// 32 steps: words and scales, and the sums of what the bytes stand for, as `f32`.
    Sum,
    /// The same with two sums, of 16 bytes each.
    Sum16,
}

impl Record {
    /// Words of a record for each column, and the steps of the reduction in it.
    pub(crate) const fn words(self) -> [usize; 2] {
        match self {
            Self::Float => [1, 1],
            Self::FloatSum => [33, 32],
            Self::Zero(_) | Self::Sum => [10, 32],
            Self::Zero16(_) | Self::Sum16 => [11, 32],
        }
    }
}

/// Quantises columns, or copies them. The largest magnitude of 32 becomes 127. A group that is not finite
/// has a scale of NaN, one of numbers below 2^-100 only counts as zeros.
///
/// # Safety
///
/// `x` is readable for `columns[0]` columns of `k`, a multiple of the steps of a record; `records` is
/// writable for all of their records of `columns[1]` columns; both are aligned to 4.
#[inline(always)]
pub(super) unsafe fn prepare(args: &PrepareArgs) {
    let [exist, wide] = args.columns;
    let [words, steps] = args.record.words();
    for c in 0..wide {
        let x = args.x.wrapping_add(if c < exist { c * args.k } else { 0 });
        for b in 0..args.k / steps {
            let out = args.records.wrapping_add(b * words * wide);
            if let Record::Float = args.record {
                // SAFETY: column `c` exists or is not read, and its records are writable.
                unsafe { *out.wrapping_add(c) = if c < exist { *x.wrapping_add(b) } else { 0.0 } };
                continue;
            }
            let (mut bytes, mut scale) = ([0i8; 32], 0.0);
            if c < exist {
                // SAFETY: column `c` exists and has 32 elements there.
                let x = unsafe { &*x.wrapping_add(b * 32).cast::<[f32; 32]>() };
                if let Record::FloatSum = args.record {
                    // SAFETY: the record of the only column has as many words, and one more.
                    unsafe { (*out.cast::<[f32; 32]>(), *out.wrapping_add(32)) = (*x, sum_of(x)) };
                    continue;
                }
                (bytes, scale) = group(x);
            }
            // SAFETY: the record has these words of each column.
            unsafe { write(args, &bytes, scale, out, c) };
        }
    }
}

/// Column `c` of the record at `out`.
///
/// # Safety
///
/// All words of the record are writable and aligned.
#[inline(always)]
unsafe fn write(args: &PrepareArgs, bytes: &[i8; 32], scale: f32, out: *mut f32, c: usize) {
    let (record, wide) = (args.record, args.columns[1]);
    let sum = |bytes: &[i8]| bytes.iter().map(|b| i32::from(*b)).sum::<i32>();
    let whole = |bytes: &[i8], zero: i32| f32::from_bits((-zero * sum(bytes)) as u32);
    let float = |bytes: &[i8]| sum(bytes) as f32 * scale;
    let (first, second) = bytes.split_at(16);
    let sums = match record {
        Record::Zero(zero) => [whole(bytes, zero), 0.0],
        Record::Zero16(zero) => [whole(first, zero), whole(second, zero)],
        Record::Sum | Record::Float | Record::FloatSum => [float(bytes), 0.0],
        Record::Sum16 => [float(first), float(second)],
    };
    let paired = args.paired && wide > 1;
    for (g, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
        // Of steps 2 i and 2 i + 1 those of columns 2 j and 2 j + 1, an even number, in turn.
        let pairs = g / 2 * 2 * wide + c / 2 * 4 + c % 2 * 2 + g % 2;
        let at = if paired { pairs } else { g * wide + c };
        // SAFETY: the first eight words of the columns.
        unsafe { *out.wrapping_add(at).cast() = word.map(|b| b as u8) };
    }
    let out = out.wrapping_add(c);
    // SAFETY: the words behind them; the last one exists where there are two sums.
    unsafe {
        *out.wrapping_add(8 * wide) = scale;
        *out.wrapping_add(9 * wide) = sums[0];
        if record.words()[0] > 10 {
            *out.wrapping_add(10 * wide) = sums[1];
        }
    }
}

/// Of 32 numbers, eight sums at a time.
#[inline(always)]
fn sum_of(x: &[f32; 32]) -> f32 {
    let mut sums = [0.0; 8];
    for x in x.as_chunks::<8>().0 {
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

/// Bytes and scale of 32 numbers.
#[inline(always)]
fn group(x: &[f32; 32]) -> ([i8; 32], f32) {
    // The bits of magnitudes are in their order, NaN above infinity.
    let mut most = 0u32;
    for x in x {
        most = most.max(x.to_bits() & 0x7fff_ffff);
    }
    if most >= 0x7f80_0000 {
        return ([0; 32], f32::NAN);
    }
    let most = f32::from_bits(most);
    if most < f32::from_bits((127 - 100) << 23) {
        return ([0; 32], 0.0);
    }
    // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the last bits.
    let (scale, mut bytes) = (127.0 / most, [0; 32]);
    for (b, x) in bytes.iter_mut().zip(x) {
        *b = (x * scale + 12_582_912.0).to_bits() as i8;
    }
    (bytes, most / 127.0)
}
