//! GGUF files written field by field, so that every field can be wrong, and files that bytes decide
//! about: mostly right, with a few fields that are not.

use arbitrary::{Result, Unstructured};
use tilewright::import::ImportError;
use tilewright::import::gguf::{Gguf, Value};
use tilewright::tensor::block;

/// Numbers of types of values.
pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

/// Bytes of a text with its length.
pub(crate) fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// Bytes of an array: the number of its type, its length, its elements.
pub(crate) fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// Bytes of an array of texts.
pub(crate) fn texts<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Vec<u8> {
    let elements: Vec<Vec<u8>> = texts.into_iter().map(text).collect();
    array(STRING, elements.len() as u64, &elements.concat())
}

/// A tensor of the list.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    /// Fastest first.
    pub(crate) dims: Vec<u64>,
    /// Instead of the number of `dims`.
    pub(crate) rank: Option<u32>,
    pub(crate) kind: u32,
    pub(crate) offset: u64,
}

impl Entry {
    pub(crate) fn new(name: &str, kind: u32, dims: &[u64], offset: u64) -> Self {
        Self { name: name.into(), dims: dims.to_vec(), rank: None, kind, offset }
    }
}

/// A file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    /// Instead of the number of `tensors`.
    pub(crate) tensor_count: Option<u64>,
    /// Instead of the number of `metadata`.
    pub(crate) metadata_count: Option<u64>,
    /// Key, number of the type, bytes of the value.
    pub(crate) metadata: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<Entry>,
    /// What the data begin at a multiple of; 0: right after the list.
    pub(crate) alignment: usize,
    pub(crate) data: Vec<u8>,
}

impl File {
    pub(crate) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            metadata_count: None,
            metadata: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }

    /// One more entry of the metadata.
    pub(crate) fn with(mut self, key: &str, kind: u32, value: impl AsRef<[u8]>) -> Self {
        self.metadata.push((key.into(), kind, value.as_ref().to_vec()));
        self
    }

    /// One more entry of the list of tensors.
    pub(crate) fn entry(mut self, entry: Entry) -> Self {
        self.tensors.push(entry);
        self
    }

    /// One more tensor with its data, after those that are there.
    pub(crate) fn tensor(mut self, name: &str, kind: u32, dims: &[u64], data: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment.max(1)), 0);
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(data);
        self.entry(Entry::new(name, kind, dims, offset))
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.metadata_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.metadata {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        for tensor in &self.tensors {
            out.extend(text(&tensor.name));
            out.extend(tensor.rank.unwrap_or(tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment.max(1)), 0);
        out.extend(&self.data);
        out
    }
}

/// Opens a file, reads all of its metadata in every way and the beginning of every tensor; gives
/// whether it was opened.
pub(crate) fn try_out(bytes: Vec<u8>) -> bool {
    let size = bytes.len();
    let gguf = match Gguf::from_bytes(bytes.into()) {
        Ok(gguf) => gguf,
        Err(e) => {
            assert!(e.to_string().len() < 4096, "a long message: {e}");
            assert!(!matches!(e, ImportError::Io { .. }), "{e}");
            return false;
        }
    };
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        assert_eq!(metadata.get(key).map(Value::type_name), Some(value.type_name()));
        let (_, _) = (metadata.u32(key), metadata.u64(key));
        let (_, _, _) = (metadata.f32(key), metadata.bool(key), metadata.str(key));
        let (_, _) = (metadata.f32s(key), metadata.bools(key));
        let (_, _) = (metadata.i32s(key), metadata.u32s(key));
        if let Ok(Some(list)) = metadata.bytes_list(key) {
            let count = list.len();
            assert_eq!(list.count(), count, "{key}");
        }
        if let Value::Array(array) = value {
            let (values, texts) = (array.values().count(), array.strings().count());
            assert_eq!(values + texts, array.len(), "{key}");
        }
    }
    let mut total = 0;
    for tensor in gguf.tensors() {
        assert_eq!(tensor.dtype.bytes_of(tensor.elements()), Some(tensor.data.len()));
        total += tensor.data.len();
        let blocks = tensor.data.len() / tensor.dtype.block_bytes();
        if tensor.dtype.is_float() || !tensor.dtype.is_plain() {
            let count = blocks.min(4);
            let mut values = vec![0.0; count * tensor.dtype.block_elems()];
            let part = &tensor.data[..count * tensor.dtype.block_bytes()];
            let read = block::dequantize(tensor.dtype, part, &mut values);
            assert!(read.is_ok() || tensor.dtype == tilewright::DType::F64);
        }
        assert_eq!(gguf.tensor(&tensor.name).map(|t| &t.dims), Some(&tensor.dims));
    }
    assert!(total <= size, "tensors share bytes");
    true
}

/// Keys that a reader looks at.
const KEYS: [&str; 8] = [
    "general.alignment",
    "general.architecture",
    "split.count",
    "split.no",
    "split.tensors.count",
    "llama.block_count",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
];

/// Numbers of tensor types: those supported, then one that is not, and two that do not exist.
const KINDS: [u32; 22] =
    [0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 24, 25, 26, 27, 28, 30, 23, 4, 99];

/// A file that the bytes decide about.
pub(crate) fn file(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut file = File::new();
    for i in 0..u.int_in_range(0..=5)? {
        let key = match u.ratio(1, 2)? {
            true => u.choose(&KEYS)?.as_bytes().to_vec(),
            false => format!("key.{i}").into_bytes(),
        };
        let (kind, value) = value(u, &key)?;
        file.metadata.push((key, kind, value));
    }
    for i in 0..u.int_in_range(0..=5)? {
        tensor(u, i, &mut file)?;
    }
    if u.ratio(1, 4)? {
        one_fault(u, &mut file)?;
    }
    let mut bytes = file.bytes();
    if u.ratio(1, 8)? {
        bytes.truncate(u.choose_index(bytes.len())?);
    }
    if u.ratio(1, 4)? && !bytes.is_empty() {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    Ok(bytes)
}

/// A value that its key asks for, or one of another type.
fn value(u: &mut Unstructured<'_>, key: &[u8]) -> Result<(u32, Vec<u8>)> {
    if key == b"general.alignment" && u.ratio(7, 8)? {
        let powers = [1u32, 8, 16, 32, 64, 128];
        return Ok((U32, u.choose(&powers)?.to_le_bytes().to_vec()));
    }
    if key.starts_with(b"split") && u.ratio(7, 8)? {
        return Ok((U16, vec![u8::from(key == b"split.count"), 0]));
    }
    let kind = u.int_in_range(0..=13)?;
    let value = match kind {
        BOOL => vec![u.int_in_range(0..=1)?],
        STRING => text(u.bytes(3)?),
        ARRAY => {
            let of = u.int_in_range(0..=12)?;
            match of {
                STRING => texts([u.bytes(2)?, &[], &[0xff; 3]]),
                BOOL => array(of, 2, &[1, 0]),
                of => array(of, 3, &[7; 24][..3 * size(of)]),
            }
        }
        kind => u.bytes(size(kind))?.to_vec(),
    };
    Ok((kind, value))
}

/// Bytes of a number by its type.
fn size(kind: u32) -> usize {
    match kind {
        0 | 1 | BOOL => 1,
        2 | 3 => 2,
        U64..=12 => 8,
        _ => 4,
    }
}

fn tensor(u: &mut Unstructured<'_>, i: usize, file: &mut File) -> Result<()> {
    // Mostly supported types.
    let last = if u.ratio(1, 16)? { KINDS.len() - 1 } else { KINDS.len() - 4 };
    let kind = KINDS[u.int_in_range(0..=last)?];
    // Mostly whole blocks.
    let last = if u.ratio(1, 8)? { 6 } else { 3 };
    let row = [32, 64, 256, 512, 1, 0, 33][u.int_in_range(0..=last)?];
    let mut dims = vec![row];
    for _ in 0..u.int_in_range(0..=3)? {
        dims.push(u.int_in_range(1..=3)?);
    }
    // More bytes than most types need, so that tensors do not touch.
    let data = vec![u.arbitrary()?; dims.iter().product::<u64>() as usize * 8];
    *file = core::mem::replace(file, File::new()).tensor(&format!("t{i}"), kind, &dims, &data);
    Ok(())
}

/// Makes one field wrong.
fn one_fault(u: &mut Unstructured<'_>, file: &mut File) -> Result<()> {
    let wide = [0, 1, 33, u32::MAX.into(), 1 << 62, i64::MAX as u64, 1 << 63, u64::MAX];
    let number = *u.choose(&wide)?;
    let field = u.int_in_range(0..=8)?;
    let index = u.int_in_range(0..=4)?;
    match (field, file.tensors.get_mut(index)) {
        (0, _) => file.tensor_count = Some(number),
        (1, _) => file.metadata_count = Some(number),
        (2, _) => file.version = number as u32,
        (3, _) => file.alignment = (number % 97) as usize,
        (4, Some(tensor)) => tensor.offset = number,
        (5, Some(tensor)) => tensor.rank = Some(number as u32),
        (6, Some(tensor)) => tensor.dims = vec![number, u.arbitrary()?, number],
        (7, Some(tensor)) => tensor.name = b"t0".to_vec(),
        (8, Some(tensor)) => tensor.offset = tensor.offset.saturating_sub(32),
        _ => {}
    }
    Ok(())
}
