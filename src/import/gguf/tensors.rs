//! The list of tensors, and where their data are.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

use super::cursor::Cursor;
use super::{GgufError, GgufTensor, MAX_TENSORS, TensorFault, types};
use crate::import::MissingKind;
use crate::import::missing::MissingList;
use crate::order::sort;
use crate::tensor::DType;

/// Most bytes of a name: ggml keeps 64 with the end mark.
const MAX_NAME: usize = 63;

/// Most dimensions.
const MAX_DIMS: u32 = 4;

/// Fewest bytes of an entry: lengths of the name, number of dimensions, type, offset.
const SMALLEST_ENTRY: u64 = 8 + 4 + 4 + 8;

/// A tensor as the list has it.
pub(super) struct Entry {
    name: String,
    /// Fastest first.
    dims: Vec<usize>,
    elements: usize,
    /// Number of the type.
    kind: u32,
    /// From the start of the data.
    offset: u64,
}

pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>, GgufError> {
    cursor.check_count("tensors", count, SMALLEST_ENTRY, MAX_TENSORS)?;
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let entry = Entry::read(cursor)?;
        if !names.insert(entry.name.clone()) {
            return Err(entry.fault(TensorFault::Twice));
        }
        entries.push(entry);
    }
    Ok(entries)
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let name = name(cursor.text("the name of a tensor", 64 << 10)?)?;
        let count = cursor.u32("a tensor")?;
        let fault = |fault| GgufError::Tensor { tensor: name.clone(), fault };
        if count > MAX_DIMS {
            return Err(fault(TensorFault::Dims(count)));
        }
        let mut wide = Vec::new();
        for _ in 0..count {
            wide.push(cursor.u64("a tensor")?);
        }
        if let Some(&extent) = wide.iter().find(|&&d| i64::try_from(d).is_err()) {
            return Err(fault(TensorFault::Extent(extent)));
        }
        // Zero extents do not excuse the others: strides are products of them.
        let product =
            wide.iter().try_fold(1i64, |n, &d| n.checked_mul(i64::try_from(d).ok()?.max(1)));
        let dims: Option<Vec<usize>> = wide.iter().map(|&d| usize::try_from(d).ok()).collect();
        let (Some(_), Some(dims)) = (product.and_then(|n| usize::try_from(n).ok()), dims) else {
            return Err(fault(TensorFault::Elements(wide)));
        };
        let elements = dims.iter().product();
        let (kind, offset) = (cursor.u32("a tensor")?, cursor.u64("a tensor")?);
        Ok(Self { name, dims, elements, kind, offset })
    }

    fn fault(&self, fault: TensorFault) -> GgufError {
        GgufError::Tensor { tensor: self.name.clone(), fault }
    }

    /// Where the data are, from the start of all data: first byte and number of bytes.
    fn place(
        &self,
        dtype: DType,
        alignment: usize,
        available: usize,
    ) -> Result<(usize, usize), GgufError> {
        let row = self.dims.first().copied().unwrap_or(1);
        if !row.is_multiple_of(dtype.block_elems()) {
            return Err(self.fault(TensorFault::Block { row, dtype }));
        }
        let bytes = dtype.bytes_of(self.elements);
        // A size that wraps only once it is rounded up is as wrong as one that wraps before.
        let Some(bytes) = bytes.filter(|n| n.checked_next_multiple_of(alignment).is_some()) else {
            let dims = self.dims.iter().map(|&d| d as u64).collect();
            return Err(self.fault(TensorFault::Elements(dims)));
        };
        let offset = self.offset;
        if !offset.is_multiple_of(alignment as u64) {
            return Err(self.fault(TensorFault::Misaligned { offset, alignment }));
        }
        let start = usize::try_from(offset).ok();
        match start.and_then(|s| Some((s, s.checked_add(bytes)?))) {
            Some((start, end)) if end <= available => Ok((start, bytes)),
            _ => Err(self.fault(TensorFault::Outside { offset, bytes, available })),
        }
    }
}

/// The data of all tensors of a file.
pub(super) struct Data {
    pub(super) bytes: Bytes,
    /// Where they begin in the file.
    pub(super) start: u64,
    pub(super) file: Option<Arc<File>>,
}

/// The tensors of supported types with their parts of `data`; others are noted in `missing`.
pub(super) fn place(
    entries: Vec<Entry>,
    data: &Data,
    alignment: usize,
    missing: &mut MissingList,
) -> Result<Vec<GgufTensor>, GgufError> {
    let mut tensors = Vec::with_capacity(entries.len());
    let mut places = Vec::with_capacity(entries.len());
    for entry in entries {
        let dtype = match types::dtype(entry.kind) {
            Ok(dtype) => dtype,
            Err(name) => {
                missing.add(MissingKind::Type(name), &entry.name);
                continue;
            }
        };
        let (start, bytes) = entry.place(dtype, alignment, data.bytes.len())?;
        if bytes > 0 {
            places.push((start, start + bytes, tensors.len()));
        }
        let source = data.file.clone().map(|file| (file, data.start + start as u64));
        let data = data.bytes.slice(start..start + bytes);
        tensors.push(GgufTensor { name: entry.name, dtype, dims: entry.dims, data, source });
    }
    sort(&mut places, Ord::cmp);
    for (&(_, end, first), &(start, _, second)) in places.iter().zip(places.iter().skip(1)) {
        let (Some(first), Some(second)) = (tensors.get(first), tensors.get(second)) else { break };
        if start < end {
            let fault = TensorFault::Overlap(first.name.clone());
            return Err(GgufError::Tensor { tensor: second.name.clone(), fault });
        }
    }
    Ok(tensors)
}

/// A name that ggml can keep.
fn name(bytes: &[u8]) -> Result<String, GgufError> {
    let reason = match core::str::from_utf8(bytes) {
        Ok("") => "is empty",
        Ok(name) if name.len() <= MAX_NAME => return Ok(name.to_owned()),
        Ok(_) => "has more than 63 bytes",
        Err(_) => "is not UTF-8",
    };
    let tensor = String::from_utf8_lossy(bytes).into_owned();
    Err(GgufError::Tensor { tensor, fault: TensorFault::Name(reason) })
}
