//! GGUF files that bytes decide about: mostly right, with a few fields that are not.

use arbitrary::{Result, Unstructured};
use tilewright::import::ImportError;
use tilewright::import::gguf::{Gguf, Value};
use tilewright::tensor::block;

#[path = "gguf_file.rs"]
mod written;
pub(crate) use written::*;

/// Numbers of more types of values.
pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 2;
pub(crate) const BOOL: u32 = 7;
pub(crate) const U64: u32 = 10;

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
