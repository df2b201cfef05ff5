//! Keys and values.

use std::collections::HashMap;

use bytes::Bytes;

use super::cursor::Cursor;
use super::{GgufError, MAX_ENTRIES};
use crate::import::ImportError;

/// Most bytes of a key.
const MAX_KEY: u64 = (64 << 10) - 1;

/// Most bytes of a text: chat templates have some thousand.
const MAX_TEXT: u64 = 16 << 20;

/// Most elements of an array.
const MAX_ARRAY: u64 = 1 << 30;

/// Fewest bytes of an entry: a key of one byte would be one more, its value at least one.
const SMALLEST_ENTRY: u64 = 8 + 4 + 1;

/// Types of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueType {
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// IEEE single precision.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// Bytes with a length, mostly UTF-8.
    String,
    /// Values of one type.
    Array,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// IEEE double precision.
    F64,
}

impl ValueType {
    /// In the order of their numbers in a file.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, GgufError> {
        let number = cursor.u32("a value type")?;
        let found = usize::try_from(number).ok().and_then(|n| Self::ALL.get(n).copied());
        found.ok_or_else(|| invalid(key, format!("{number} is not the number of a type")))
    }

    /// Bytes of a value, for texts and arrays the fewest there can be.
    const fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }

    /// The printable name: `u32`, `string`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// An integer of a signed or unsigned type of at most 64 bits.
    Integer {
        /// Its type in the file.
        kind: ValueType,
        /// The number.
        value: i128,
    },
    /// An IEEE single.
    F32(f32),
    /// An IEEE double.
    F64(f64),
    /// True or false.
    Bool(bool),
    /// A text, mostly but not necessarily UTF-8.
    String(Bytes),
    /// Values of one type.
    Array(Array),
}

impl Value {
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, GgufError> {
        match ValueType::read(cursor, key)? {
            ValueType::String => {
                let text = cursor.text("a text", MAX_TEXT)?;
                Ok(Self::String(cursor.shared(text)))
            }
            ValueType::Array => Ok(Self::Array(Array::read(cursor, key)?)),
            kind => {
                let bytes = cursor.take(kind.bytes(), "a metadata value")?;
                Self::plain(kind, bytes).ok_or_else(|| invalid(key, "a bool is not 0 or 1"))
            }
        }
    }

    /// A number from its bytes; `None` for a bool that is neither 0 nor 1.
    fn plain(kind: ValueType, bytes: &[u8]) -> Option<Self> {
        match kind {
            ValueType::F32 => Some(Self::F32(f32::from_le_bytes(bytes.try_into().ok()?))),
            ValueType::F64 => Some(Self::F64(f64::from_le_bytes(bytes.try_into().ok()?))),
            ValueType::Bool => match bytes {
                [0] => Some(Self::Bool(false)),
                [1] => Some(Self::Bool(true)),
                _ => None,
            },
            kind => Some(Self::Integer { kind, value: integer(kind, bytes)? }),
        }
    }

    /// The type's printable name: `u32`, `array of string`.
    pub fn type_name(&self) -> String {
        match self {
            Self::Integer { kind, .. } => kind.name().into(),
            Self::F32(_) => "f32".into(),
            Self::F64(_) => "f64".into(),
            Self::Bool(_) => "bool".into(),
            Self::String(_) => "string".into(),
            Self::Array(a) => format!("array of {}", a.kind.name()),
        }
    }
}

/// An integer from its bytes.
fn integer(kind: ValueType, bytes: &[u8]) -> Option<i128> {
    let mut wide = [0; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(wide);
    let shift = 64 - 8 * u32::try_from(bytes.len()).ok().filter(|&n| n > 0)?;
    match kind {
        ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => Some(unsigned.into()),
        ValueType::I8 | ValueType::I16 | ValueType::I32 | ValueType::I64 => {
            Some(((unsigned << shift).cast_signed() >> shift).into())
        }
        _ => None,
    }
}

/// Values of one type, left in the file's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    kind: ValueType,
    count: usize,
    /// The elements as in the file; texts with their lengths.
    bytes: Bytes,
}

impl Array {
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, GgufError> {
        let kind = ValueType::read(cursor, key)?;
        if kind == ValueType::Array {
            return Err(invalid(key, "arrays of arrays are not supported"));
        }
        let count = cursor.u64("an array")?;
        cursor.check_count("array elements", count, kind.bytes(), MAX_ARRAY)?;
        let start = cursor.at();
        match kind {
            ValueType::String => {
                for _ in 0..count {
                    cursor.text("a text of an array", MAX_TEXT)?;
                }
            }
            // No overflow: both are checked against the length of the file.
            kind => {
                let bytes = cursor.take(count * kind.bytes(), "an array")?;
                if kind == ValueType::Bool && bytes.iter().any(|&b| b > 1) {
                    return Err(invalid(key, "a bool is not 0 or 1"));
                }
            }
        }
        let count = usize::try_from(count).map_err(|_| invalid(key, "the array is too long"))?;
        Ok(Self { kind, count, bytes: cursor.since(start) })
    }

    /// The type of the elements.
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements, except texts.
    pub fn values(&self) -> impl Iterator<Item = Value> + '_ {
        let size = usize::try_from(self.kind.bytes()).unwrap_or(usize::MAX);
        let bytes = if self.kind == ValueType::String { &[][..] } else { &self.bytes[..] };
        bytes.chunks_exact(size).filter_map(|b| Value::plain(self.kind, b))
    }

    /// The elements of an array of texts, as bytes; none for an array of anything else.
    pub fn strings(&self) -> Strings<'_> {
        if self.kind == ValueType::String {
            Strings { rest: &self.bytes, left: self.count }
        } else {
            Strings { rest: &[], left: 0 }
        }
    }
}

/// Texts of an array as bytes, in their order.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.rest.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (text, rest) = rest.split_at_checked(len)?;
        (self.rest, self.left) = (rest, self.left.saturating_sub(1));
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// The metadata of a file: unique keys with values, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        cursor.check_count("metadata entries", count, SMALLEST_ENTRY, MAX_ENTRIES)?;
        let mut metadata = Self::default();
        for _ in 0..count {
            let key = key(cursor.text("a metadata key", MAX_KEY)?)?;
            let value = Value::read(cursor, &key)?;
            if metadata.index.insert(key.clone(), metadata.entries.len()).is_some() {
                return Err(GgufError::Key { key, reason: "is there twice" });
            }
            metadata.entries.push((key, value));
        }
        Ok(metadata)
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).and_then(|&i| self.entries.get(i)).map(|(_, value)| value)
    }

    /// An integer of any type that fits 32 bits without a sign.
    ///
    /// # Errors
    /// [`GgufError::ValueType`] or [`GgufError::Value`] (does not fit), as all functions below.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, ImportError> {
        self.integer(key, "an unsigned 32-bit integer")
    }

    /// An integer of any type that fits 64 bits without a sign.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn u64(&self, key: &str) -> Result<Option<u64>, ImportError> {
        self.integer(key, "an unsigned 64-bit integer")
    }

    /// A number in single precision.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, ImportError> {
        self.typed(key, "f32", |v| if let Value::F32(x) = v { Some(*x) } else { None })
    }

    /// True or false.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, ImportError> {
        self.typed(key, "bool", |v| if let Value::Bool(x) = v { Some(*x) } else { None })
    }

    /// A text as bytes.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn bytes(&self, key: &str) -> Result<Option<&Bytes>, ImportError> {
        self.typed(key, "string", |v| if let Value::String(x) = v { Some(x) } else { None })
    }

    /// A text.
    ///
    /// # Errors
    /// As [`Metadata::u32`]; [`GgufError::Value`] if it is not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, ImportError> {
        let Some(bytes) = self.bytes(key)? else { return Ok(None) };
        match core::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(e) => Err(invalid(key, format!("the text is not UTF-8: {e}")).into()),
        }
    }

    /// The texts of an array, as bytes.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn bytes_list(&self, key: &str) -> Result<Option<Strings<'_>>, ImportError> {
        let list = self.array(key, "array of string", |kind| kind == ValueType::String)?;
        Ok(list.map(Array::strings))
    }

    /// An array of numbers in single precision.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, ImportError> {
        let list = self.array(key, "array of f32", |kind| kind == ValueType::F32)?;
        let number = |v| if let Value::F32(x) = v { Some(x) } else { None };
        Ok(list.map(|a| a.values().filter_map(number).collect()))
    }

    /// An array of true or false.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, ImportError> {
        let list = self.array(key, "array of bool", |kind| kind == ValueType::Bool)?;
        let truth = |v| if let Value::Bool(x) = v { Some(x) } else { None };
        Ok(list.map(|a| a.values().filter_map(truth).collect()))
    }

    /// An array of integers of any type that fit 32 bits with a sign.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, ImportError> {
        self.integers(key, "array of signed 32-bit integers")
    }

    /// An array of integers of any type that fit 32 bits without a sign.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, ImportError> {
        self.integers(key, "array of unsigned 32-bit integers")
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        take: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match take(value) {
            Some(found) => Ok(Some(found)),
            None => {
                let (key, found) = (key.to_owned(), value.type_name());
                Err(GgufError::ValueType { key, expected, found }.into())
            }
        }
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<T>, ImportError> {
        let take =
            |v: &Value| if let Value::Integer { value, .. } = v { Some(*value) } else { None };
        let Some(found) = self.typed(key, expected, take)? else { return Ok(None) };
        Ok(Some(fitting(key, expected, found)?))
    }

    fn array(
        &self,
        key: &str,
        expected: &'static str,
        fits: impl Fn(ValueType) -> bool,
    ) -> Result<Option<&Array>, ImportError> {
        self.typed(key, expected, |v| match v {
            Value::Array(a) if fits(a.kind) => Some(a),
            _ => None,
        })
    }

    fn integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<Vec<T>>, ImportError> {
        use ValueType::{Array as Nested, Bool, F32, F64, String};
        let integers = |kind| !matches!(kind, F32 | F64 | Bool | String | Nested);
        let Some(list) = self.array(key, expected, integers)? else { return Ok(None) };
        let number = |v| if let Value::Integer { value, .. } = v { Some(value) } else { None };
        let fit = |found| fitting(key, expected, found);
        Ok(Some(list.values().filter_map(number).map(fit).collect::<Result<_, _>>()?))
    }
}

fn fitting<T: TryFrom<i128>>(
    key: &str,
    expected: &'static str,
    found: i128,
) -> Result<T, GgufError> {
    T::try_from(found).map_err(|_| invalid(key, format!("{found} does not fit {expected}")))
}

/// A key: printable ASCII, not empty.
fn key(bytes: &[u8]) -> Result<String, GgufError> {
    let key = String::from_utf8_lossy(bytes).into_owned();
    let reason = match bytes {
        [] => "is empty",
        _ if !bytes.iter().all(u8::is_ascii_graphic) => "is not printable ASCII",
        _ => return Ok(key),
    };
    Err(GgufError::Key { key, reason })
}

pub(super) fn invalid(key: &str, reason: impl Into<String>) -> GgufError {
    GgufError::Value { key: key.to_owned(), reason: reason.into() }
}
