//! Tensors out of `TensorProto` messages.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use half::{bf16, f16};
use prost::Message;

use super::proto::{EXTERNAL, StringStringEntryProto, TensorProto, data_type};
use crate::import::error::short;
use crate::import::map::{Mapping, map_file};
use crate::import::{DataError, ImportError};
use crate::tensor::{DType, Element, Shape, Storage, Tensor, TensorError};

/// The files that hold the constants of a model: its own, and those beside it, each mapped once.
#[derive(Default)]
pub struct External {
    folder: Option<PathBuf>,
    own: Option<Arc<Mapping>>,
    /// Places among the files, by where the model says that they are.
    places: HashMap<String, usize>,
    /// `None` for empty ones.
    files: Vec<Option<Arc<Mapping>>>,
}

impl External {
    /// Files are looked for in `folder` and below; without one, references to files are refused.
    pub fn new(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(Into::into), ..Self::default() }
    }

    /// That of a model that lies in a mapped file.
    pub(super) fn of_file(folder: Option<&Path>, own: Option<Mapping>) -> Self {
        Self { own: own.map(Arc::new), ..Self::new(folder) }
    }

    /// Storage over bytes, those of mapped files so that their memory can be let go.
    fn storage(&self, bytes: Bytes) -> Storage {
        let mut mapped = self.own.iter().chain(self.files.iter().flatten());
        match mapped.find(|mapping| mapping.place(&bytes).is_some()) {
            Some(mapping) => Storage::backed(bytes, mapping.clone()),
            None => Storage::shared(bytes),
        }
    }

    fn open(&mut self, location: &str) -> Result<Bytes, DataError> {
        if let Some(known) = self.places.get(location).and_then(|&i| self.files.get(i)) {
            return Ok(known.as_deref().map_or_else(Bytes::new, Mapping::bytes));
        }
        let fail = |reason: String| DataError::External { reason };
        let folder = self
            .folder
            .as_deref()
            .ok_or_else(|| fail("the model does not come from a file".into()))?;
        let relative = Path::new(location);
        let inside =
            relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if location.is_empty() || location.contains('\0') || !inside {
            return Err(fail(format!(
                "location \"{}\" is not a path inside the model's folder",
                short(location)
            )));
        }
        let cannot = |e: std::io::Error| fail(format!("\"{}\": {e}", short(location)));
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let folder = folder.canonicalize().map_err(cannot)?;
        let path = folder.join(relative).canonicalize().map_err(cannot)?;
        // A symbolic link may lead anywhere.
        if !path.starts_with(&folder) {
            return Err(fail(format!(
                "location \"{}\" leads out of the model's folder",
                short(location)
            )));
        }
        let mapping = map_file(&path).map_err(|e| fail(e.to_string()))?;
        let bytes = mapping.as_ref().map_or_else(Bytes::new, Mapping::bytes);
        self.places.insert(location.to_owned(), self.files.len());
        self.files.push(mapping.map(Arc::new));
        Ok(bytes)
    }

    fn read(&mut self, entries: &[StringStringEntryProto]) -> Result<Bytes, DataError> {
        let entry = |key: &str| {
            let found = entries.iter().find(|e| e.key.as_deref() == Some(key));
            found.and_then(|e| e.value.as_deref())
        };
        let fail = |reason: String| DataError::External { reason };
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| fail(format!("{key} \"{}\" is not a number of bytes", short(text)))),
        };
        let file =
            self.open(entry("location").ok_or_else(|| fail("no location is given".into()))?)?;
        let offset = number("offset")?.unwrap_or(0);
        let end = match number("length")? {
            Some(length) => offset.checked_add(length),
            None => Some(file.len()),
        };
        match end {
            Some(end) if offset <= end && end <= file.len() => Ok(file.slice(offset..end)),
            _ => Err(fail(format!(
                "the bytes from {offset} to {} are not inside a file of {} bytes",
                end.map_or_else(|| "infinity".into(), |e| e.to_string()),
                file.len()
            ))),
        }
    }
}

/// Reads one tensor; elements stored as raw bytes are referred to, not copied.
///
/// # Errors
/// Any [`DataError`]. Nothing is allocated before the element count is compared with the shape.
pub fn tensor_from_proto(p: &TensorProto, external: &mut External) -> Result<Tensor, DataError> {
    let number = p.data_type.unwrap_or(0);
    let dtype =
        data_type::to_dtype(number).ok_or_else(|| DataError::Type(data_type::name(number)))?;
    if p.segment.is_some() {
        return Err(DataError::Segment);
    }
    let dims = p
        .dims
        .iter()
        .map(|&d| usize::try_from(d))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| DataError::NegativeDim(p.dims.clone()))?;
    let elements = Shape::contiguous(dtype, &dims).map_err(|e| DataError::Tensor(e.into()))?;
    let elements = elements.elements();
    let source = Source::of(p)?;
    let count = |found: usize| {
        let dims = dims.clone();
        if found == elements {
            Ok(())
        } else {
            Err(DataError::Count { dims, expected: elements, found })
        }
    };
    if p.data_location == Some(EXTERNAL) {
        if source.is_some() {
            return Err(DataError::Ambiguous);
        }
        let bytes = external.read(&p.external_data)?;
        return raw(dtype, &dims, bytes, external);
    }
    match source {
        None => raw(dtype, &dims, Bytes::new(), external),
        Some(Source::Raw(bytes)) => raw(dtype, &dims, bytes.clone(), external),
        Some(Source::F32(v)) if dtype == DType::F32 => {
            count(v.len())?;
            Ok(Tensor::from_slice(&dims, v)?)
        }
        Some(Source::F64(v)) if dtype == DType::F64 => {
            count(v.len())?;
            Ok(Tensor::from_slice(&dims, v)?)
        }
        Some(Source::I64(v)) if dtype == DType::I64 => {
            count(v.len())?;
            Ok(Tensor::from_slice(&dims, v)?)
        }
        Some(Source::U64(v)) if matches!(dtype, DType::U64 | DType::U32) => {
            count(v.len())?;
            match dtype {
                DType::U64 => Ok(Tensor::from_slice(&dims, v)?),
                _ => Ok(Tensor::from_slice(&dims, &narrow::<u64, u32>(v)?)?),
            }
        }
        Some(Source::I32(v)) => count(v.len()).and_then(|()| small(dtype, &dims, v)),
        Some(other) => Err(DataError::WrongField { field: other.field(), dtype }),
    }
}

/// How many bits an element has, if fewer than eight, and whether one is a sign.
fn few_bits(p: &TensorProto) -> Option<(usize, bool)> {
    Some(match p.data_type? {
        21 => (4, false),
        22 => (4, true),
        25 => (2, false),
        26 => (2, true),
        _ => return None,
    })
}

/// Whether an element has four or two bits.
pub(super) fn has_few_bits(p: &TensorProto) -> bool {
    few_bits(p).is_some()
}

/// The numbers of a tensor of two or four bits per element, as `i8` or `u8`; `None` for other types.
/// An operator that asks for the type must not see the result.
///
/// # Errors
/// As [`tensor_from_proto`].
pub(super) fn unpacked(
    p: &TensorProto,
    external: &mut External,
) -> Option<Result<Tensor, DataError>> {
    let (bits, signed) = few_bits(p)?;
    let dtype = if signed { DType::I8 } else { DType::U8 };
    let mut bytes = || {
        let whole = TensorProto { data_type: Some(2), dims: vec![], ..p.clone() };
        let dims: Result<Vec<usize>, _> = p.dims.iter().map(|&d| usize::try_from(d)).collect();
        let dims = dims.map_err(|_| DataError::NegativeDim(p.dims.clone()))?;
        let shape = Shape::contiguous(dtype, &dims).map_err(|e| DataError::Tensor(e.into()))?;
        let elements = shape.elements();
        let packed = elements.checked_mul(bits).map_or(usize::MAX, |b| b.div_ceil(8));
        let dims_of_bytes = i64::try_from(packed).unwrap_or(i64::MAX);
        let whole = TensorProto { dims: vec![dims_of_bytes], ..whole };
        Ok((dims, elements, tensor_from_proto(&whole, external)?))
    };
    let unpack = |(dims, elements, t): (Vec<usize>, usize, Tensor)| {
        let (mask, sign) = ((1u8 << bits) - 1, 1u8 << (bits - 1));
        let number = |byte: &u8, i: usize| {
            let v = byte >> (i * bits) & mask;
            // Two's complement of few bits.
            if signed { (v ^ sign).wrapping_sub(sign) } else { v }
        };
        let numbers = t.bytes().iter().flat_map(|b| (0..8 / bits).map(move |i| number(b, i)));
        let numbers: Vec<u8> = numbers.take(elements).collect();
        Ok(Tensor::from_bytes(dtype, &dims, &numbers)?)
    };
    Some(bytes().and_then(unpack))
}

/// Reads a file that holds one tensor (`TensorProto`), and gives its name and data.
///
/// # Errors
/// [`ImportError::Io`], [`ImportError::Empty`], [`ImportError::Decode`] or [`ImportError::Data`].
pub fn read_tensor_pb(path: &Path) -> Result<(String, Tensor), ImportError> {
    let Some(mapping) = map_file(path)? else { return Err(ImportError::Empty) };
    let proto =
        TensorProto::decode(mapping.bytes()).map_err(|e| ImportError::Decode(e.to_string()))?;
    let name = proto.name.clone().unwrap_or_default();
    match tensor_from_proto(&proto, &mut External::new(path.parent())) {
        Ok(tensor) => Ok((name, tensor)),
        Err(source) => Err(ImportError::Data { tensor: short(&name), source }),
    }
}

/// The one field that holds a tensor's elements.
enum Source<'a> {
    Raw(&'a Bytes),
    F32(&'a [f32]),
    F64(&'a [f64]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U64(&'a [u64]),
}

impl<'a> Source<'a> {
    fn of(p: &'a TensorProto) -> Result<Option<Self>, DataError> {
        fn some<T>(v: &[T]) -> Option<&[T]> {
            (!v.is_empty()).then_some(v)
        }
        let mut found = [
            p.raw_data.as_ref().filter(|b| !b.is_empty()).map(Source::Raw),
            some(&p.float_data).map(Source::F32),
            some(&p.double_data).map(Source::F64),
            some(&p.int32_data).map(Source::I32),
            some(&p.int64_data).map(Source::I64),
            some(&p.uint64_data).map(Source::U64),
        ]
        .into_iter()
        .flatten();
        let first = found.next();
        if found.next().is_some() { Err(DataError::Ambiguous) } else { Ok(first) }
    }

    fn field(&self) -> &'static str {
        match self {
            Self::Raw(_) => "raw_data",
            Self::F32(_) => "float_data",
            Self::F64(_) => "double_data",
            Self::I32(_) => "int32_data",
            Self::I64(_) => "int64_data",
            Self::U64(_) => "uint64_data",
        }
    }
}

/// A tensor over little-endian bytes.
fn raw(
    dtype: DType,
    dims: &[usize],
    bytes: Bytes,
    external: &External,
) -> Result<Tensor, DataError> {
    let width = dtype.block_bytes();
    let bytes = if cfg!(target_endian = "big") && width > 1 {
        let mut swapped = bytes.to_vec();
        swapped.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        Bytes::from(swapped)
    } else if dtype == DType::Bool && bytes.iter().any(|&b| b > 1) {
        bytes.iter().map(|&b| u8::from(b != 0)).collect()
    } else {
        bytes
    };
    Ok(Tensor::from_storage(dtype, dims, external.storage(bytes))?)
}

/// Elements that are stored one per `int32`.
fn small(dtype: DType, dims: &[usize], v: &[i32]) -> Result<Tensor, DataError> {
    let bits = || narrow::<i32, u16>(v);
    Ok(match dtype {
        DType::I32 => Tensor::from_slice(dims, v)?,
        DType::I16 => Tensor::from_slice(dims, &narrow::<i32, i16>(v)?)?,
        DType::U16 => Tensor::from_slice(dims, &bits()?)?,
        DType::I8 => Tensor::from_slice(dims, &narrow::<i32, i8>(v)?)?,
        DType::U8 => Tensor::from_slice(dims, &narrow::<i32, u8>(v)?)?,
        DType::F16 => {
            let halves: Vec<f16> = bits()?.into_iter().map(f16::from_bits).collect();
            Tensor::from_slice(dims, &halves)?
        }
        DType::BF16 => {
            let halves: Vec<bf16> = bits()?.into_iter().map(bf16::from_bits).collect();
            Tensor::from_slice(dims, &halves)?
        }
        DType::Bool => {
            let flags: Vec<u8> = v.iter().map(|&x| u8::from(x != 0)).collect();
            Tensor::from_bytes(dtype, dims, &flags)?
        }
        _ => return Err(DataError::WrongField { field: "int32_data", dtype }),
    })
}

fn narrow<S, T>(v: &[S]) -> Result<Vec<T>, DataError>
where
    S: Copy + TryInto<i64>,
    T: Element + TryFrom<S>,
{
    v.iter()
        .map(|&x| {
            let value = x.try_into().unwrap_or(i64::MAX);
            T::try_from(x).map_err(|_| DataError::Range { value, dtype: T::DTYPE })
        })
        .collect()
}

/// The type that elements of a declared type are computed in: half precision is computed in single
/// precision, and only the network's inputs and outputs keep it.
pub(super) fn computed(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// The tensor in the type it is computed in.
pub(super) fn widened(t: Tensor) -> Result<Tensor, TensorError> {
    match to_f32s(&t) {
        Some(v) if computed(t.dtype()) != t.dtype() => Tensor::from_slice(&t.dims(), &v),
        _ => Ok(t),
    }
}

/// Bytes from which on a constant of the model stays as it is in the file. A graph converts it when it reads it, and
/// lets go of the result once that is packed.
const STAYS: usize = 64 << 10;

/// What shapes are computed from is about as large at most; each plan would align it again.
const NUMBERS: usize = 1 << 10;

/// A constant of the model: in the type it is computed in, unless it is large, and where that can be read, if it
/// is small.
pub(super) fn constant(t: Tensor) -> Result<Tensor, TensorError> {
    let bytes = t.bytes().len();
    let t = if bytes < STAYS { widened(t)? } else { t };
    if bytes <= NUMBERS { t.to_aligned() } else { Ok(t) }
}

/// A tensor of singles in half precision.
pub(super) fn narrowed(t: &Tensor, to: DType) -> Result<Tensor, TensorError> {
    let v = t.as_slice::<f32>()?;
    match to {
        DType::F16 => {
            let halves: Vec<f16> = v.iter().map(|&x| f16::from_f32(x)).collect();
            Tensor::from_slice(&t.dims(), &halves)
        }
        DType::BF16 => {
            let halves: Vec<bf16> = v.iter().map(|&x| bf16::from_f32(x)).collect();
            Tensor::from_slice(&t.dims(), &halves)
        }
        _ => Ok(t.clone()),
    }
}

/// The elements of an integer tensor, widened.
pub(super) fn to_i64s(t: &Tensor) -> Option<Cow<'_, [i64]>> {
    match t.dtype() {
        DType::I64 => t.as_slice::<i64>().ok(),
        DType::I32 => Some(t.as_slice::<i32>().ok()?.iter().map(|&x| i64::from(x)).collect()),
        DType::I16 => Some(t.as_slice::<i16>().ok()?.iter().map(|&x| i64::from(x)).collect()),
        _ => None,
    }
}

/// The elements of a float tensor, as `f32`.
pub(super) fn to_f32s(t: &Tensor) -> Option<Cow<'_, [f32]>> {
    match t.dtype() {
        DType::F32 => t.as_slice::<f32>().ok(),
        DType::F16 => Some(t.as_slice::<f16>().ok()?.iter().map(|x| x.to_f32()).collect()),
        DType::BF16 => Some(t.as_slice::<bf16>().ok()?.iter().map(|x| x.to_f32()).collect()),
        #[allow(clippy::cast_possible_truncation, reason = "attributes of f32 graphs")]
        DType::F64 => Some(t.as_slice::<f64>().ok()?.iter().map(|&x| x as f32).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proto(data_type: i32, dims: &[i64]) -> TensorProto {
        TensorProto { data_type: Some(data_type), dims: dims.to_vec(), ..Default::default() }
    }

    fn read(p: &TensorProto) -> Result<Tensor, DataError> {
        tensor_from_proto(p, &mut External::default())
    }

    #[test]
    fn raw_data_are_shared() {
        let bytes = Bytes::from(vec![1u8, 0, 0, 0, 2, 0, 0, 0]);
        let t = read(&TensorProto { raw_data: Some(bytes.clone()), ..proto(6, &[2]) }).unwrap();
        assert_eq!(t.as_slice::<i32>().unwrap()[..], [1, 2]);
        assert_eq!(t.bytes().as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn typed_fields() {
        let t = read(&TensorProto { float_data: vec![1.5, -2.0], ..proto(1, &[2, 1]) }).unwrap();
        assert_eq!(
            (t.dims(), t.as_slice::<f32>().unwrap().to_vec()),
            (vec![2, 1], vec![1.5, -2.0])
        );
        let t = read(&TensorProto { double_data: vec![0.1], ..proto(11, &[]) }).unwrap();
        assert_eq!(t.as_slice::<f64>().unwrap()[..], [0.1]);
        let t = read(&TensorProto { int64_data: vec![i64::MIN], ..proto(7, &[1]) }).unwrap();
        assert_eq!(t.as_slice::<i64>().unwrap()[..], [i64::MIN]);
        let t = read(&TensorProto { uint64_data: vec![u64::MAX], ..proto(13, &[1]) }).unwrap();
        assert_eq!(t.as_slice::<u64>().unwrap()[..], [u64::MAX]);
        let t = read(&TensorProto { uint64_data: vec![7], ..proto(12, &[1]) }).unwrap();
        assert_eq!(t.as_slice::<u32>().unwrap()[..], [7]);
    }

    #[test]
    fn few_bits() {
        let read = |number: i32, dims: &[i64], raw: &[u8]| {
            let p = TensorProto { raw_data: Some(raw.to_vec().into()), ..proto(number, dims) };
            unpacked(&p, &mut External::default()).unwrap()
        };
        let t = read(22, &[3], &[0x8f, 0x07]).unwrap();
        assert_eq!(t.as_slice::<i8>().unwrap()[..], [-1, -8, 7]);
        assert_eq!(read(21, &[1, 3], &[0x8f, 0x07]).unwrap().bytes(), [15, 8, 7]);
        let t = read(26, &[5], &[0b11_10_01_00, 0b10]).unwrap();
        assert_eq!(t.as_slice::<i8>().unwrap()[..], [0, 1, -2, -1, -2]);
        assert_eq!(read(25, &[2], &[0b1110]).unwrap().bytes(), [2, 3]);
        for (dims, raw) in
            [(&[3][..], &[0][..]), (&[1], &[0, 0]), (&[-1], &[0]), (&[i64::MAX], &[0])]
        {
            assert!(read(22, dims, raw).is_err(), "{dims:?}");
        }
        let small = TensorProto { int32_data: vec![0x8f], ..proto(22, &[2]) };
        let t = unpacked(&small, &mut External::default()).unwrap().unwrap();
        assert_eq!(t.as_slice::<i8>().unwrap()[..], [-1, -8]);
        assert!(unpacked(&proto(17, &[1]), &mut External::default()).is_none());
    }

    #[test]
    fn types_inside_int32() {
        let read = |data_type, v: &[i32]| {
            let n = i64::try_from(v.len()).unwrap();
            read(&TensorProto { int32_data: v.to_vec(), ..proto(data_type, &[n]) })
        };
        assert_eq!(read(2, &[255]).unwrap().as_slice::<u8>().unwrap()[..], [255]);
        assert_eq!(read(3, &[-128]).unwrap().as_slice::<i8>().unwrap()[..], [-128]);
        assert_eq!(read(4, &[65535]).unwrap().as_slice::<u16>().unwrap()[..], [65535]);
        assert_eq!(read(5, &[-3]).unwrap().as_slice::<i16>().unwrap()[..], [-3]);
        assert_eq!(read(9, &[0, 1, 2]).unwrap().bytes(), [0, 1, 1]);
        let half = read(10, &[0x3c00, 0xc000]).unwrap();
        assert_eq!(half.as_slice::<f16>().unwrap()[1], f16::from_f32(-2.0));
        let brain = read(16, &[0x3f80]).unwrap();
        assert_eq!(brain.as_slice::<bf16>().unwrap()[0], bf16::ONE);
        assert_eq!(read(3, &[128]).unwrap_err(), DataError::Range { value: 128, dtype: DType::I8 });
        assert_eq!(read(10, &[-1]).unwrap_err(), DataError::Range { value: -1, dtype: DType::U16 });
        assert!(matches!(read(1, &[0]), Err(DataError::WrongField { .. })));
    }

    #[test]
    fn scalars_and_empty_tensors() {
        assert!(read(&proto(1, &[0, 3])).unwrap().bytes().is_empty());
        assert!(matches!(read(&proto(1, &[])), Err(DataError::Tensor(_))));
        let one = TensorProto { raw_data: Some(vec![9].into()), ..proto(2, &[]) };
        assert_eq!(read(&one).unwrap().dims(), [0usize; 0]);
    }

    #[test]
    fn wrong_tensors_are_refused() {
        let four = || Some(Bytes::from_static(&[0; 4]));
        assert!(matches!(read(&proto(8, &[1])), Err(DataError::Type(t)) if t == "string"));
        assert!(matches!(read(&proto(17, &[1])), Err(DataError::Type(t)) if t == "float8e4m3fn"));
        assert!(matches!(read(&proto(99, &[1])), Err(DataError::Type(t)) if t == "number 99"));
        assert!(matches!(read(&proto(-4, &[1])), Err(DataError::Type(_))));
        assert!(matches!(read(&proto(1, &[-1])), Err(DataError::NegativeDim(_))));
        assert!(matches!(read(&proto(1, &[1 << 62])), Err(DataError::Tensor(_))));
        assert!(matches!(read(&proto(1, &[1; 9])), Err(DataError::Tensor(_))));
        let long = TensorProto { raw_data: four(), ..proto(2, &[3]) };
        assert!(matches!(read(&long), Err(DataError::Tensor(_))));
        let short = TensorProto { float_data: vec![0.0], ..proto(1, &[2]) };
        assert!(matches!(read(&short), Err(DataError::Count { expected: 2, found: 1, .. })));
        let both = TensorProto { raw_data: four(), float_data: vec![0.0], ..proto(1, &[1]) };
        assert_eq!(read(&both).unwrap_err(), DataError::Ambiguous);
        let part = TensorProto { segment: Some(Bytes::new()), raw_data: four(), ..proto(1, &[1]) };
        assert_eq!(read(&part).unwrap_err(), DataError::Segment);
    }

    fn outside(entries: &[(&str, &str)]) -> TensorProto {
        let entry = |&(k, v): &(&str, &str)| StringStringEntryProto {
            key: Some(k.into()),
            value: Some(v.into()),
        };
        TensorProto {
            data_location: Some(EXTERNAL),
            external_data: entries.iter().map(entry).collect(),
            ..proto(2, &[2])
        }
    }

    #[test]
    fn external_data_stay_inside_the_folder() {
        let root = std::env::temp_dir().join(format!("tilewright-data-{}", std::process::id()));
        let folder = root.join("model");
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        std::fs::write(folder.join("sub/w.bin"), [1, 2, 3, 4]).unwrap();
        std::fs::write(root.join("secret"), [1, 2]).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(root.join("secret"), folder.join("link")).unwrap();
        let mut external = External::new(Some(&folder));
        let mut read = |e: &[(&str, &str)]| tensor_from_proto(&outside(e), &mut external);
        let good = read(&[("location", "sub/w.bin"), ("offset", "1"), ("length", "2")]).unwrap();
        assert_eq!(good.bytes(), [2, 3]);
        assert_eq!(read(&[("location", "./sub/w.bin"), ("offset", "2")]).unwrap().bytes(), [3, 4]);
        let absolute = root.join("secret");
        for entries in [
            &[("location", "../secret")][..],
            &[("location", "sub/../../secret")],
            &[("location", absolute.to_str().unwrap())],
            &[("location", "link")],
            &[("location", "sub")],
            &[("location", "missing")],
            &[("location", "")],
            &[("location", "a\0b")],
            &[],
            &[("location", "sub/w.bin"), ("offset", "-1")],
            &[("location", "sub/w.bin"), ("offset", "3"), ("length", "2")],
            &[("location", "sub/w.bin"), ("offset", "5")],
            &[("location", "sub/w.bin"), ("offset", "1"), ("length", "18446744073709551615")],
        ] {
            assert!(matches!(read(entries), Err(DataError::External { .. })), "{entries:?}");
        }
        assert!(matches!(read(&[("location", "sub/w.bin")]), Err(DataError::Tensor(_))));
        let mut nowhere = External::default();
        let e = tensor_from_proto(&outside(&[("location", "sub/w.bin")]), &mut nowhere);
        assert!(matches!(e, Err(DataError::External { .. })));
        std::fs::remove_dir_all(root).unwrap();
    }
}
