//! The order of nodes.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::import::StructureError;
use crate::import::error::short;

/// Cycles longer than this are cut in messages.
const NAMED: usize = 12;

/// Sorts nodes so that each comes after those it needs, and otherwise as they were.
///
/// `needs[i]` lists the nodes that node `i` needs (repetitions allowed).
///
/// # Errors
/// [`StructureError::Cycle`], with the names of the nodes on one cycle.
pub(super) fn sort(
    needs: &[Vec<usize>],
    name: impl Fn(usize) -> String,
) -> Result<Vec<usize>, StructureError> {
    let mut waiting: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    for (i, list) in needs.iter().enumerate() {
        for &n in list {
            if let Some(users) = users.get_mut(n) {
                users.push(i);
            }
        }
    }
    let ready = waiting.iter().enumerate().filter(|(_, w)| **w == 0).map(|(i, _)| Reverse(i));
    let mut ready: BinaryHeap<_> = ready.collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &user in users.get(i).into_iter().flatten() {
            if let Some(w) = waiting.get_mut(user) {
                *w -= 1;
                if *w == 0 {
                    ready.push(Reverse(user));
                }
            }
        }
    }
    if order.len() == needs.len() {
        return Ok(order);
    }
    Err(StructureError::Cycle(name_cycle(needs, &waiting, name)))
}

/// Follows needs among waiting nodes until one comes again.
fn name_cycle(
    needs: &[Vec<usize>],
    waiting: &[usize],
    name: impl Fn(usize) -> String,
) -> Vec<String> {
    let is_waiting = |i: &usize| waiting.get(*i).is_some_and(|&w| w > 0);
    let mut seen_at = vec![usize::MAX; needs.len()];
    let mut path = Vec::new();
    let mut at = (0..needs.len()).find(|i| is_waiting(i));
    while let Some(i) = at {
        let Some(seen) = seen_at.get_mut(i) else { break };
        if *seen != usize::MAX {
            path.drain(..*seen);
            break;
        }
        *seen = path.len();
        path.push(i);
        at = needs.get(i).and_then(|list| list.iter().copied().find(|n| is_waiting(n)));
    }
    // The path goes from a node to one it needs; data flow the other way.
    path.reverse();
    let mut names: Vec<String> = path.iter().take(NAMED).map(|&i| short(&name(i))).collect();
    match path.first() {
        _ if path.len() > NAMED => names.push("...".into()),
        Some(&first) => names.push(short(&name(first))),
        None => {}
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_input_stays_as_it_is() {
        let needs = [vec![], vec![0, 0], vec![0], vec![1, 2]];
        assert_eq!(sort(&needs, |i| i.to_string()).unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn unsorted_input_is_sorted() {
        let needs = [vec![2], vec![0], vec![3], vec![]];
        assert_eq!(sort(&needs, |i| i.to_string()).unwrap(), [3, 2, 0, 1]);
    }

    #[test]
    fn a_cycle_is_named_without_the_way_to_it() {
        // 0 waits for the cycle 1 -> 2 -> 3 -> 1.
        let needs = [vec![1], vec![3], vec![1], vec![2]];
        let StructureError::Cycle(names) = sort(&needs, |i| format!("n{i}")).unwrap_err() else {
            panic!("not a cycle");
        };
        assert_eq!(names.len(), 4);
        assert_eq!(names[0], names[3]);
        assert!(names.contains(&"n1".into()) && !names.contains(&"n0".into()));
        let itself = sort(&[vec![0]], |_| "self".into()).unwrap_err();
        assert_eq!(itself, StructureError::Cycle(vec!["self".into(), "self".into()]));
    }

    #[test]
    fn long_chains_need_no_stack() {
        let needs: Vec<Vec<usize>> =
            (0..200_000).map(|i: usize| i.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(sort(&needs, |i| i.to_string()).unwrap().len(), 200_000);
    }
}
