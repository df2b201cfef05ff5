//! Models in several files: which part a file is, what the others are called, and whether they belong
//! together.

use std::path::{Path, PathBuf};

use super::{GgufError, Metadata, Value};
use crate::import::ImportError;

/// What the metadata of a part say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The part, from 0.
    pub(super) no: usize,
    /// The number of parts.
    pub(super) count: usize,
    /// The number of tensors of all parts, if the part says it.
    tensors: Option<u64>,
}

impl Split {
    pub(super) fn of(metadata: &Metadata) -> Result<Self, ImportError> {
        let number = |key| Ok::<_, ImportError>(metadata.u32(key)?.map(|n| n as usize));
        let no = number("split.no")?.unwrap_or(0);
        let count = number("split.count")?.unwrap_or(0).max(1);
        if no >= count {
            return Err(fault(no, format!("the model has only {count} parts")));
        }
        Ok(Self { no, count, tensors: metadata.u64("split.tensors.count")? })
    }

    /// The name of part `other` when this part is at `path`.
    pub(super) fn sibling(&self, path: &Path, other: usize) -> Result<PathBuf, ImportError> {
        let own = self.suffix(self.no);
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        match name.strip_suffix(&own) {
            Some(stem) => Ok(path.with_file_name(format!("{stem}{}", self.suffix(other)))),
            None => Err(fault(
                self.no,
                format!("its name does not end in {own}, so the other parts cannot be found"),
            )),
        }
    }

    fn suffix(&self, no: usize) -> String {
        format!("-{:05}-of-{:05}.gguf", no + 1, self.count)
    }
}

pub(super) fn fault(no: usize, reason: impl Into<String>) -> ImportError {
    GgufError::Split { part: no + 1, reason: reason.into() }.into()
}

/// Whether two values are the same, one that is NaN and itself too.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

/// Checks that parts, each with its number of tensors, are all parts of one model, in their order.
pub(super) fn check(parts: &[(Split, &Metadata, usize)]) -> Result<(), ImportError> {
    let Some(&(first, common, _)) = parts.first() else { return Ok(()) };
    if parts.len() != first.count {
        let given = parts.len();
        return Err(fault(first.no, format!("{given} of {} parts are given", first.count)));
    }
    let tensors: usize = parts.iter().map(|&(_, _, tensors)| tensors).sum();
    for (no, &(split, metadata, _)) in parts.iter().enumerate() {
        if (split.no, split.count) != (no, first.count) {
            let (found, of) = (split.no + 1, split.count);
            return Err(fault(no, format!("the file says it is part {found} of {of}")));
        }
        if let Some(expected) = split.tensors.filter(|&n| first.count > 1 && n != tensors as u64) {
            let reason =
                format!("the model should have {expected} tensors, all parts have {tensors}");
            return Err(fault(no, reason));
        }
        // Only the first part has all metadata; what others repeat must be the same.
        let differs = |&(key, value): &(&str, &Value)| {
            key != "split.no" && common.get(key).is_some_and(|v| !same(v, value))
        };
        if let Some((key, _)) = metadata.iter().find(differs) {
            return Err(fault(no, format!("{key} differs from that of the first part")));
        }
    }
    Ok(())
}
