//! What was derived from constants, kept for the next plan of the same model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::GraphError;
use crate::tensor::{AlignedBytes, Storage, Tensor};

/// Folded constants and packed weights by the identity of what they were derived from.
///
/// A model keeps one. Each new input shape builds the graph anew; what depends on weights only is
/// then found here instead of being computed and packed again. Results of constants that were not
/// registered with [`ConstCache::keep`] (shapes, scalars that an instantiation makes) are not
/// kept, so the cache does not grow with the number of plans.
#[derive(Default)]
pub struct ConstCache(Mutex<Maps>);

#[derive(Default)]
struct Maps {
    kept: std::collections::HashSet<u64>,
    folded: HashMap<(String, Vec<u64>), Tensor>,
    packed: HashMap<(String, u64), Arc<AlignedBytes>>,
}

impl ConstCache {
    /// Declares that a storage lives as long as the cache, so that what is derived from it may be
    /// kept.
    pub fn keep(&self, storage: &Storage) {
        self.maps().kept.insert(storage.id());
    }

    /// Bytes of packed weights.
    pub fn packed_bytes(&self) -> usize {
        self.maps().packed.values().map(|p| p.len()).sum()
    }

    /// The result of `make`, or of an earlier call with the same key on the same operands.
    pub(crate) fn folded(
        &self,
        key: &str,
        operands: &[&Tensor],
        make: impl FnOnce() -> Result<Tensor, GraphError>,
    ) -> Result<Tensor, GraphError> {
        let ids: Vec<u64> = operands.iter().map(|t| t.storage().id()).collect();
        let shapes: Vec<_> = operands.iter().map(|t| (t.dtype(), t.dims())).collect();
        let key = (format!("{key} {shapes:?}"), ids);
        {
            let maps = self.maps();
            if let Some(found) = maps.folded.get(&key) {
                return Ok(found.clone());
            }
        }
        let made = make()?;
        let mut maps = self.maps();
        if key.1.iter().all(|id| maps.kept.contains(id)) {
            maps.kept.insert(made.storage().id());
            maps.folded.insert(key, made.clone());
        }
        Ok(made)
    }

    /// Packed weights: the result of `make`, or of an earlier call with the same format and
    /// source.
    pub(crate) fn packed(
        &self,
        format: String,
        source: &Storage,
        make: impl FnOnce() -> Result<AlignedBytes, GraphError>,
    ) -> Result<Arc<AlignedBytes>, GraphError> {
        let key = (format, source.id());
        if let Some(found) = self.maps().packed.get(&key) {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        let mut maps = self.maps();
        if maps.kept.contains(&source.id()) {
            maps.packed.insert(key, made.clone());
        }
        Ok(made)
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        // The maps are whole between any two statements, so a panic elsewhere does not spoil them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
