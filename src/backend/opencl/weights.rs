//! Constants on the device: uploaded once, shared by all plans that read them, gone with the last. A device
//! that shares the memory of the host reads large ones where they lie.

use core::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::sys::Mem;
use super::{OpenClError, Region, Shared, lock};
use crate::tensor::Tensor;

/// Bytes of a constant that is worth an object of its own.
const LEAST_LENT: usize = 64 << 10;

/// A constant as it is.
#[derive(Clone)]
pub(super) enum Constant {
    /// In memory of the device.
    Sent(Arc<Region>),
    /// In memory of the host.
    Lent(Arc<Mem>, usize),
}

impl Constant {
    pub(super) fn memory(&self) -> &Arc<Mem> {
        match self {
            Self::Sent(region) => region.memory(),
            Self::Lent(memory, _) => memory,
        }
    }

    /// What keeps it there.
    pub(super) fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        match self {
            Self::Sent(region) => region.clone(),
            Self::Lent(memory, _) => memory.clone(),
        }
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Sent(region) => region.bytes(),
            Self::Lent(_, bytes) => *bytes,
        }
    }
}

/// Constants by the identity of their data, and what was made of them.
#[derive(Default)]
pub(super) struct Kept {
    packed: Mutex<HashMap<(u64, String), Weak<Region>>>,
    lent: Mutex<HashMap<u64, Weak<Mem>>>,
}

impl Shared {
    /// A constant as it is.
    pub(super) fn constant(&self, value: &Tensor) -> Result<Constant, OpenClError> {
        let bytes = value.storage().len();
        if !self.lend || bytes < LEAST_LENT {
            let region = self.packed(value, "as it is", || Cow::Borrowed(value.bytes()))?;
            return Ok(Constant::Sent(region));
        }
        let mut all = lock(&self.weights.lent);
        let id = value.storage().id();
        if let Some(memory) = all.get(&id).and_then(Weak::upgrade) {
            return Ok(Constant::Lent(memory, bytes));
        }
        let memory = Arc::new(Mem::of(&self.context, value)?);
        all.retain(|_, kept| kept.strong_count() > 0);
        all.insert(id, Arc::downgrade(&memory));
        Ok(Constant::Lent(memory, bytes))
    }

    /// What `pack` makes of a constant; `format` tells packings of one constant apart.
    pub(super) fn packed<'a>(
        &self,
        value: &'a Tensor,
        format: &str,
        pack: impl FnOnce() -> Cow<'a, [u8]>,
    ) -> Result<Arc<Region>, OpenClError> {
        let key = (value.storage().id(), format!("{format} {:?}", value.dims()));
        let mut all = lock(&self.weights.packed);
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
