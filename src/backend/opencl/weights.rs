//! Constants on the device: uploaded once, shared by all plans that read them, gone with the last.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::{OpenClError, Region, Shared, lock};
use crate::tensor::Tensor;

/// Constants by the identity of their data, and what was made of them.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<(u64, String), Weak<Region>>>);

impl Shared {
    /// A constant as it is.
    pub(super) fn constant(&self, value: &Tensor) -> Result<Arc<Region>, OpenClError> {
        self.packed(value, "as it is", || Cow::Borrowed(value.bytes()))
    }

    /// What `pack` makes of a constant; `format` tells packings of one constant apart.
    pub(super) fn packed<'a>(
        &self,
        value: &'a Tensor,
        format: &str,
        pack: impl FnOnce() -> Cow<'a, [u8]>,
    ) -> Result<Arc<Region>, OpenClError> {
        let key = (value.storage().id(), format!("{format} {:?}", value.dims()));
        let mut all = lock(&self.weights.0);
        if let Some(kept) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(kept);
        }
        let bytes = pack();
        let region = Arc::new(self.pool.take(bytes.len())?);
        self.queue.submit(|s| s.write_now(region.memory(), 0, &bytes))?;
        all.retain(|_, kept| kept.strong_count() > 0);
        all.insert(key, Arc::downgrade(&region));
        Ok(region)
    }
}
