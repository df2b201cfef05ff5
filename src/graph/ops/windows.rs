//! Where windows of any number of dimensions go over a tensor.

use crate::graph::GraphError;

/// Windows over spatial dimensions, slowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Cells of a window.
    pub size: Vec<usize>,
    /// Distance of windows.
    pub stride: Vec<usize>,
    /// Distance of cells of a window.
    pub dilation: Vec<usize>,
    /// Cells of padding in front.
    pub before: Vec<usize>,
    /// Cells of padding behind.
    pub after: Vec<usize>,
    /// How many windows there are.
    pub count: Vec<usize>,
}

/// How many windows stand along an axis of `input` cells with so many of padding in front and behind, if each
/// reaches over `reach` cells. With `ceil` the last may reach past the padding, by less than a stride, and does not count
/// if it begins behind the input. `None` if there is none.
pub(crate) fn count_along(
    input: usize,
    [before, after]: [usize; 2],
    reach: usize,
    stride: usize,
    ceil: bool,
) -> Option<usize> {
    let front = input.checked_add(before)?;
    let padded = front.checked_add(after)?;
    let last = match padded.checked_sub(reach) {
        Some(room) if ceil => room.div_ceil(stride),
        Some(room) => return Some(room / stride + 1),
        None if ceil && reach - padded < stride => 0,
        None => return None,
    };
    let counts = last.checked_mul(stride)? < front;
    Some(last + usize::from(counts)).filter(|&count| count > 0)
}

impl Windows {
    /// Checks that all lists have an element per dimension of `input`, that distances and sizes
    /// are not 0, and that no position overflows.
    pub(super) fn check(&self, op: &'static str, input: &[usize]) -> Result<(), GraphError> {
        let lists =
            [&self.size, &self.stride, &self.dilation, &self.before, &self.after, &self.count];
        let complete = !input.is_empty() && lists.iter().all(|l| l.len() == input.len());
        let positive = lists[..3].iter().all(|l| !l.contains(&0));
        let reach = |i: usize| {
            let last = self.count[i].checked_mul(self.stride[i])?;
            let window = self.size[i].checked_mul(self.dilation[i])?;
            let padded = input[i].checked_add(self.before[i])?.checked_add(self.after[i])?;
            last.checked_add(window)?.checked_add(padded).filter(|&n| n <= isize::MAX as usize)
        };
        if complete && positive && (0..input.len()).all(|i| reach(i).is_some()) {
            return Ok(());
        }
        Err(GraphError::InvalidAttribute {
            op,
            attribute: "kernel_shape, strides, dilations, pads",
            reason: "must be positive, not too large, and one per spatial dimension".to_owned(),
        })
    }

    /// Cells of window `at` along dimension `i` that lie inside the input: the first cell's
    /// position in the window, its position in the input, and how many there are.
    pub(super) fn inside(&self, i: usize, at: usize, input: usize) -> (usize, usize, usize) {
        let (start, step, before) = (at * self.stride[i], self.dilation[i], self.before[i]);
        let first = before.saturating_sub(start).div_ceil(step);
        let end = (before + input).saturating_sub(start).div_ceil(step).min(self.size[i]);
        (first, (start + first * step).saturating_sub(before), end.saturating_sub(first))
    }

    /// How many cells of window `at` along dimension `i` lie inside the padded input.
    pub(super) fn inside_padding(&self, i: usize, at: usize, input: usize) -> usize {
        let padded = self.before[i] + input + self.after[i];
        let left = padded.saturating_sub(at * self.stride[i]);
        left.div_ceil(self.dilation[i]).min(self.size[i])
    }

    /// Calls `f(cell of the window, cell of the input)`, both counted row by row, for the cells of
    /// the window at position `at` that lie inside the input.
    pub(super) fn for_each(&self, at: &[usize], input: &[usize], f: &mut dyn FnMut(usize, usize)) {
        let ranges: Vec<_> = (0..input.len()).map(|i| self.inside(i, at[i], input[i])).collect();
        if ranges.iter().any(|r| r.2 == 0) {
            return;
        }
        let mut step = vec![0; input.len()];
        loop {
            let (mut tap, mut cell) = (0, 0);
            for (i, &(first, start, _)) in ranges.iter().enumerate() {
                tap = tap * self.size[i] + first + step[i];
                cell = cell * input[i] + start + step[i] * self.dilation[i];
            }
            f(tap, cell);
            let next = (0..input.len()).rev().find(|&i| step[i] + 1 < ranges[i].2);
            let Some(next) = next else { return };
            step[next] += 1;
            step[next + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_windows() {
        let count = |input, pads, reach, ceil| count_along(input, pads, reach, 2, ceil);
        assert_eq!([count(7, [0, 0], 3, false), count(6, [0, 0], 3, false)], [Some(3), Some(2)]);
        assert_eq!([count(7, [0, 0], 3, true), count(6, [0, 0], 3, true)], [Some(3), Some(3)]);
        // One that would begin in the padding behind does not count.
        assert_eq!([count(3, [0, 1], 1, true), count(4, [0, 1], 2, true)], [Some(2), Some(2)]);
        // The only one may reach past the end, by less than a stride.
        assert_eq!([count(2, [0, 0], 3, true), count(2, [0, 0], 3, false)], [Some(1), None]);
        assert_eq!([count(1, [0, 0], 3, true), count(0, [0, 2], 3, true)], [None, None]);
        assert_eq!(count(usize::MAX, [1, 0], 3, true), None);
    }

    #[test]
    fn cells_inside() {
        let w = Windows {
            size: vec![3],
            stride: vec![2],
            dilation: vec![2],
            before: vec![1],
            after: vec![1],
            count: vec![2],
        };
        w.check("test", &[4]).unwrap();
        let cells = |at: usize| {
            let mut out = Vec::new();
            w.for_each(&[at], &[4], &mut |t, c| out.push((t, c)));
            out
        };
        assert_eq!(cells(0), [(1, 1), (2, 3)]);
        assert_eq!(cells(1), [(0, 1), (1, 3)]);
        assert_eq!((w.inside_padding(0, 0, 4), w.inside_padding(0, 1, 4)), (3, 2));
        for bad in [
            Windows { stride: vec![0], ..w.clone() },
            Windows { size: vec![usize::MAX], ..w.clone() },
            Windows { before: vec![], ..w.clone() },
        ] {
            assert!(bad.check("test", &[4]).is_err());
        }
    }
}
