//! Index formulas of the packed layouts, and plain conversions for weights and small tensors.
//!
//! The conversions of activations between ops are kernels, in [`template`](crate::template).

use crate::C_BLOCK;

/// Elements of a blocked tensor `[n, c, h, w]`.
pub const fn blocked_len([n, c, h, w]: [usize; 4]) -> usize {
    n * c.div_ceil(C_BLOCK) * C_BLOCK * h * w
}

/// Index of element `(n, c, h, w)` of a blocked tensor of shape `[_, c, h, w]`.
pub const fn blocked_index(shape: [usize; 4], at: [usize; 4]) -> usize {
    let blocks = shape[1].div_ceil(C_BLOCK);
    let plane = (at[0] * blocks + at[1] / C_BLOCK) * shape[2] + at[2];
    (plane * shape[3] + at[3]) * C_BLOCK + at[1] % C_BLOCK
}

/// Index of element `(n, c, h, w)` of an interleaved tensor of shape `[_, c, h, w]`.
pub const fn interleaved_index(shape: [usize; 4], at: [usize; 4]) -> usize {
    ((at[0] * shape[2] + at[2]) * shape[3] + at[3]) * shape[1] + at[1]
}

/// Index of element `(n, c, h, w)` of a plain tensor of shape `[_, c, h, w]`.
pub const fn plain_index(shape: [usize; 4], at: [usize; 4]) -> usize {
    ((at[0] * shape[1] + at[1]) * shape[2] + at[2]) * shape[3] + at[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_indices_follow_the_formula() {
        let shape = [2, 20, 3, 5];
        assert_eq!(blocked_len(shape), 2 * 32 * 15);
        assert_eq!(blocked_index(shape, [0, 0, 0, 1]), 16);
        assert_eq!(blocked_index(shape, [0, 17, 0, 0]), 3 * 5 * 16 + 1);
        assert_eq!(blocked_index(shape, [1, 19, 2, 4]), ((3 * 3 + 2) * 5 + 4) * 16 + 3);
        assert_eq!(interleaved_index(shape, [1, 19, 2, 4]), blocked_len(shape) / 32 * 20 - 1);
        assert_eq!(plain_index(shape, [1, 19, 2, 4]), 2 * 20 * 15 - 1);
    }
}
