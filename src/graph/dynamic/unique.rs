//! The different elements, or parts, of a tensor.

use core::cmp::Ordering;
use std::collections::BTreeMap;

use super::{indices, order, take, unsupported};
use crate::graph::{GraphError, with_element};
use crate::order::sort_indices;
use crate::tensor::Tensor;

/// What [`unique`] found.
#[derive(Clone, Debug)]
pub struct Unique {
    /// The different parts.
    pub values: Tensor,
    /// Where each was met first, `i64`.
    pub first: Tensor,
    /// For each part of the operand, its position in `values`, `i64`.
    pub inverse: Tensor,
    /// How often each is there, `i64`.
    pub counts: Tensor,
}

/// The different parts of `x` along an axis, without one its different elements, as ONNX `Unique`
/// (opset 11): in their natural order (row-major for parts), or as they come.
///
/// # Errors
/// An axis that is not there, types without an order, lack of memory.
pub fn unique(x: &Tensor, axis: Option<usize>, sorted: bool) -> Result<Unique, GraphError> {
    const OP: &str = "unique";
    if !x.dtype().is_plain() {
        return unsupported(OP, x.dtype());
    }
    let (x, axis) = match axis {
        Some(axis) => (x.clone(), axis),
        None => (x.reshaped(&[x.shape().elements()])?, 0),
    };
    let dims = x.dims();
    let Some(&extent) = dims.get(axis) else {
        return Err(GraphError::mismatch(OP, "the axis must exist", &[("x", &dims)]));
    };
    let outer: usize = dims[..axis].iter().product();
    let run: usize = dims[axis + 1..].iter().product();
    // For each part, the group it is in, and for each group its first part.
    let (mut group, mut first) = with_element!(x.dtype(), OP, T => {
        let v = x.as_slice::<T>()?;
        let compare = &|a: usize, b: usize| -> Ordering {
            if (outer, run) == (1, 1) {
                return order(&v[a], &v[b]);
            }
            let of = |i: usize| (0..outer).flat_map(move |o| (o * extent + i) * run..(o * extent + i + 1) * run);
            let mut pairs = of(a).zip(of(b)).map(|(i, j)| order(&v[i], &v[j]));
            pairs.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
        };
        Ok(groups(extent, compare))
    })?;
    if !sorted {
        // One by one: `collect` would sort them first, 3 KB of code for each type.
        let mut met = BTreeMap::new();
        met.extend(first.iter().enumerate().map(|(g, &p)| (p, g)));
        let mut renamed = vec![0; first.len()];
        for (new, &old) in met.values().enumerate() {
            renamed[old] = new;
        }
        group.iter_mut().for_each(|g| *g = renamed[*g]);
        first = met.into_keys().collect();
    }
    let mut counts = vec![0; first.len()];
    group.iter().for_each(|&g| counts[g] += 1);
    Ok(Unique {
        values: take(&x, axis, &first)?,
        first: indices(&first)?,
        inverse: indices(&group)?,
        counts: indices(&counts)?,
    })
}

/// For each of `count` parts the group of those equal to it, and for each group, in order, its first part.
fn groups(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> (Vec<usize>, Vec<usize>) {
    let mut by_value: Vec<usize> = (0..count).collect();
    sort_indices(&mut by_value, &mut |a, b| compare(a, b));
    let (mut group, mut first) = (vec![0; count], Vec::new());
    for (i, &part) in by_value.iter().enumerate() {
        let new = i == 0 || compare(by_value[i - 1], part) != Ordering::Equal;
        if new {
            first.push(part);
        }
        group[part] = first.len() - 1;
    }
    (group, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(t: &Tensor) -> Vec<i64> {
        t.as_slice::<i64>().unwrap().to_vec()
    }

    #[test]
    fn elements_sorted_and_as_they_come() {
        let x = Tensor::from_slice(&[6], &[2f32, 1.0, 1.0, 3.0, 4.0, 3.0]).unwrap();
        let u = unique(&x, None, true).unwrap();
        assert_eq!(u.values.as_slice::<f32>().unwrap()[..], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ints(&u.first), [1, 0, 3, 4]);
        assert_eq!(ints(&u.inverse), [1, 0, 0, 2, 3, 2]);
        assert_eq!(ints(&u.counts), [2, 1, 2, 1]);
        let u = unique(&x, None, false).unwrap();
        assert_eq!(u.values.as_slice::<f32>().unwrap()[..], [2.0, 1.0, 3.0, 4.0]);
        assert_eq!((ints(&u.first), ints(&u.inverse)), (vec![0, 1, 3, 4], vec![0, 1, 1, 2, 3, 2]));
    }

    #[test]
    fn parts_along_an_axis() {
        let x = Tensor::from_slice(&[3, 3], &[1i32, 0, 0, 1, 0, 0, 2, 3, 4]).unwrap();
        let u = unique(&x, Some(0), true).unwrap();
        assert_eq!((u.values.dims(), ints(&u.inverse)), (vec![2, 3], vec![0, 0, 1]));
        let u = unique(&x, Some(1), true).unwrap();
        assert_eq!(ints(&u.first), [1, 2, 0]);
        assert!(unique(&x, Some(2), true).is_err());
        let nothing = Tensor::from_slice::<i64>(&[0], &[]).unwrap();
        assert_eq!(unique(&nothing, None, true).unwrap().values.dims(), [0]);
    }
}
