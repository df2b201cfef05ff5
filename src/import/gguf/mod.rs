//! GGUF files: metadata and tensors, checked and mapped.
//!
//! Versions 2 and 3, little endian, in one file or several (`split.count`). Source of the format:
//! `docs/gguf.md` of ggml. Opening a file checks all that can be checked without knowing which model it
//! is: lengths, counts, types, extents, that data lie inside the file, aligned and apart. No data are
//! read.

mod cursor;
mod error;
mod metadata;
mod split;
mod tensors;
mod types;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

pub use error::{GgufError, TensorFault};
pub use metadata::{Array, Metadata, Strings, Value, ValueType};
pub use types::dtype;

use super::ImportError;
use super::map::{Mapping, open_and_map};
use super::missing::MissingList;
use crate::tensor::{DType, Storage};
use cursor::Cursor;
use split::Split;

/// Most entries of the metadata; models have some dozens.
const MAX_ENTRIES: u64 = 1 << 16;

/// Most tensors of a file; models have some thousands.
const MAX_TENSORS: u64 = 1 << 20;

/// Alignment of data where the metadata name none.
const ALIGNMENT: u32 = 32;

/// The largest alignment that is believed.
const MAX_ALIGNMENT: u32 = 64 << 10;

/// A model in GGUF files.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    parts: usize,
    metadata: Metadata,
    tensors: Vec<GgufTensor>,
    index: HashMap<String, usize>,
    mappings: Vec<Mapping>,
}

/// A tensor of a GGUF file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GgufTensor {
    /// Its name, unique in the model.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Extents as in the file, fastest first: a matrix of `n` rows and `k` columns has `[k, n]`. At
    /// most four; none for a single number.
    pub dims: Vec<usize>,
    /// Its data, contiguous, in the file's memory; aligned in the file, not necessarily for anything
    /// wider than a byte.
    pub data: Bytes,
    /// The file that has the data, and where they begin in it.
    source: Option<(Arc<File>, u64)>,
}

impl GgufTensor {
    /// The data as the storage of a tensor, with a new identity for each call.
    pub fn storage(&self) -> Storage {
        match &self.source {
            Some((file, offset)) => Storage::file(self.data.clone(), file.clone(), *offset),
            None => Storage::shared(self.data.clone()),
        }
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

impl Gguf {
    /// Opens a file, and the other files of the model when it is one part of several. The files are
    /// mapped; nobody may shorten them while the model is in use.
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Empty`], [`ImportError::Gguf`], or
    /// [`ImportError::Unsupported`] with all types of tensors that are not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImportError> {
        let path = path.as_ref();
        let mut missing = MissingList::default();
        let given = Part::open(path, &mut missing)?;
        let split = given.split;
        let mut given = Some(given);
        let mut parts = Vec::new();
        for no in 0..split.count {
            let part = match given.take_if(|_| no == split.no) {
                Some(part) => part,
                None => Part::open_sibling(&split.sibling(path, no)?, no, &mut missing)?,
            };
            parts.push(part);
        }
        Self::join(parts, missing)
    }

    /// Reads the bytes of a model in one file.
    ///
    /// # Errors
    /// As [`Gguf::open`], without [`ImportError::Io`].
    pub fn from_bytes(bytes: Bytes) -> Result<Self, ImportError> {
        Self::from_parts([bytes])
    }

    /// Reads the bytes of a model in several files, all of them and in their order.
    ///
    /// # Errors
    /// As [`Gguf::from_bytes`].
    pub fn from_parts(parts: impl IntoIterator<Item = Bytes>) -> Result<Self, ImportError> {
        let mut missing = MissingList::default();
        let read = |bytes: Bytes| Part::read(&bytes, None, &mut missing);
        let parts = parts.into_iter().map(read).collect::<Result<_, _>>()?;
        Self::join(parts, missing)
    }

    fn join(parts: Vec<Part>, missing: MissingList) -> Result<Self, ImportError> {
        let summary: Vec<_> = parts.iter().map(|p| (p.split, &p.metadata, p.count)).collect();
        split::check(&summary)?;
        missing.finish()?;
        let count = parts.len();
        let mappings = parts.iter().filter_map(|part| part.mapping.clone()).collect();
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else { return Err(ImportError::Empty) };
        let mut joined = Self {
            version: first.version,
            parts: count,
            metadata: first.metadata,
            tensors: Vec::new(),
            index: HashMap::new(),
            mappings,
        };
        for tensor in first.tensors.into_iter().chain(parts.flat_map(|p| p.tensors)) {
            if joined.index.insert(tensor.name.clone(), joined.tensors.len()).is_some() {
                let fault = TensorFault::Twice;
                return Err(GgufError::Tensor { tensor: tensor.name, fault }.into());
            }
            joined.tensors.push(tensor);
        }
        Ok(joined)
    }

    /// Version of the format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Number of files.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Keys and values, those of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Lets go of the memory that those data take which were touched, as far as they lie in mapped files: what is
    /// touched again is read again.
    pub fn let_go(&self) {
        self.mappings.iter().for_each(Mapping::let_go);
    }

    /// The files as they are mapped; none where bytes were given.
    #[cfg(feature = "llm")]
    pub(crate) fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// All tensors in the order of the files. A file with a vocabulary only has none.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.index.get(name).and_then(|&i| self.tensors.get(i))
    }
}

/// One file of a model.
struct Part {
    version: u32,
    metadata: Metadata,
    split: Split,
    tensors: Vec<GgufTensor>,
    /// Tensors in the file, unsupported ones too.
    count: usize,
    mapping: Option<Mapping>,
}

impl Part {
    fn open(path: &Path, missing: &mut MissingList) -> Result<Self, ImportError> {
        let (mapping, file) = open_and_map(path)?;
        let bytes = mapping.as_ref().map_or_else(Bytes::new, Mapping::bytes);
        Ok(Self { mapping, ..Self::read(&bytes, Some(Arc::new(file)), missing)? })
    }

    /// Another part than the one that was named.
    fn open_sibling(
        path: &Path,
        no: usize,
        missing: &mut MissingList,
    ) -> Result<Self, ImportError> {
        Self::open(path, missing).map_err(|e| match e {
            ImportError::Gguf(source) => {
                GgufError::Part { part: no + 1, source: Box::new(source) }.into()
            }
            ImportError::Empty => split::fault(no, "the file is empty"),
            e => e,
        })
    }

    fn read(
        bytes: &Bytes,
        file: Option<Arc<File>>,
        missing: &mut MissingList,
    ) -> Result<Self, ImportError> {
        if bytes.is_empty() {
            return Err(ImportError::Empty);
        }
        let mut cursor = Cursor::new(bytes);
        let version = version(&mut cursor)?;
        let tensors = cursor.u64("the header")?;
        let entries = cursor.u64("the header")?;
        let metadata = Metadata::read(&mut cursor, entries)?;
        let split = Split::of(&metadata)?;
        let alignment = alignment(&metadata)?;
        let tensors = tensors::read(&mut cursor, tensors)?;
        let count = tensors.len();
        // The padding before the data may be absent where there are no data.
        let start = cursor.at().next_multiple_of(alignment).min(bytes.len());
        let data = tensors::Data { bytes: bytes.slice(start..), start: start as u64, file };
        let tensors = tensors::place(tensors, &data, alignment, missing)?;
        Ok(Self { version, metadata, split, tensors, count, mapping: None })
    }
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.magic()?;
    if magic != *b"GGUF" {
        return Err(GgufError::Magic(magic));
    }
    match cursor.u32("the header")? {
        version @ 2..=3 => Ok(version),
        // Small numbers look like this when their bytes are in the other order.
        swapped if swapped != 0 && swapped & 0xffff == 0 => Err(GgufError::BigEndian),
        version => Err(GgufError::Version(version)),
    }
}

fn alignment(metadata: &Metadata) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    let found = match metadata.get(KEY) {
        None => ALIGNMENT,
        Some(Value::Integer { kind: ValueType::U32, value }) => {
            u32::try_from(*value).unwrap_or_default()
        }
        Some(other) => {
            let found = other.type_name();
            return Err(GgufError::ValueType { key: KEY.into(), expected: "u32", found });
        }
    };
    if !found.is_power_of_two() || found > MAX_ALIGNMENT {
        let reason = format!("{found} is not a power of two of at most {MAX_ALIGNMENT}");
        return Err(metadata::invalid(KEY, reason));
    }
    Ok(found as usize)
}
