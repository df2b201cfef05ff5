//! Something for some records of a graph.

use core::ops::Index;

use super::TensorId;

/// A map from records, which are numbered without gaps: a list that is looked up by number.
#[derive(Clone, Debug)]
pub(crate) struct PerRecord<T>(Vec<Option<T>>);

impl<T> Default for PerRecord<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> PerRecord<T> {
    pub(crate) fn get(&self, id: TensorId) -> Option<&T> {
        self.0.get(id.index())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: TensorId) -> Option<&mut T> {
        self.0.get_mut(id.index())?.as_mut()
    }

    pub(crate) fn contains(&self, id: TensorId) -> bool {
        self.get(id).is_some()
    }

    /// Where what belongs to a record is, or goes.
    pub(crate) fn slot(&mut self, id: TensorId) -> &mut Option<T> {
        let at = id.index();
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        &mut self.0[at]
    }

    pub(crate) fn insert(&mut self, id: TensorId, value: T) {
        *self.slot(id) = Some(value);
    }

    /// What records have, in their order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    pub(crate) fn remove(&mut self, id: TensorId) -> Option<T> {
        self.0.get_mut(id.index())?.take()
    }
}

impl<T> Index<TensorId> for PerRecord<T> {
    type Output = T;

    fn index(&self, id: TensorId) -> &T {
        self.get(id).expect("the record has its own")
    }
}

impl<T> FromIterator<(TensorId, T)> for PerRecord<T> {
    fn from_iter<I: IntoIterator<Item = (TensorId, T)>>(all: I) -> Self {
        let mut map = Self::default();
        all.into_iter().for_each(|(id, value)| map.insert(id, value));
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::DType;

    #[test]
    fn records_have_what_they_were_given() {
        let mut cx = Context::new();
        let ids = ["a", "b", "c"].map(|name| cx.input(name, DType::F32, &[1]).unwrap());
        let mut map: PerRecord<usize> = [(ids[2], 7), (ids[0], 5)].into_iter().collect();
        assert_eq!((map.get(ids[1]), map[ids[2]]), (None, 7));
        *map.slot(ids[1]).get_or_insert(1) += 1;
        *map.get_mut(ids[0]).unwrap() += 1;
        assert!(map.values().eq(&[6, 2, 7]));
        assert_eq!((map.remove(ids[0]), map.remove(ids[0])), (Some(6), None));
        assert!(!map.contains(ids[0]) && map.contains(ids[1]));
    }
}
