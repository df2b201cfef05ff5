//! What can be wrong with a GGUF file.

use core::fmt;

use crate::import::error::short;

/// What is wrong with a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    Magic([u8; 4]),
    /// All numbers are big endian.
    BigEndian,
    /// A version that is not read.
    Version(u32),
    /// The file ends inside something.
    Truncated {
        /// What it ends in.
        what: &'static str,
        /// Where that begins, in bytes.
        offset: usize,
        /// Bytes it has.
        needed: u64,
        /// Bytes left in the file.
        left: usize,
    },
    /// There are said to be more of something than the file can hold, or than is sensible.
    Count {
        /// `metadata entries`, `tensors` or `array elements`.
        what: &'static str,
        /// How many there are said to be.
        found: u64,
        /// How many there could be.
        most: u64,
    },
    /// A text is longer than is sensible.
    Length {
        /// What the text is.
        what: &'static str,
        /// Where it begins, in bytes.
        offset: usize,
        /// Its length in bytes.
        found: u64,
        /// The most it may have.
        most: u64,
    },
    /// A key of the metadata is wrong.
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A value of the metadata is wrong in itself.
    Value {
        /// Its key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A value of the metadata has another type than it must have.
    ValueType {
        /// Its key.
        key: String,
        /// The type it must have.
        expected: &'static str,
        /// The type it has.
        found: String,
    },
    /// A tensor is wrong.
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        fault: TensorFault,
    },
    /// The parts of a model that has several files do not belong together.
    Split {
        /// The part, from 1.
        part: usize,
        /// What is wrong.
        reason: String,
    },
    /// Another part than the one that was named is wrong.
    Part {
        /// The part, from 1.
        part: usize,
        /// What is wrong with it.
        source: Box<GgufError>,
    },
}

/// What is wrong with a tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorFault {
    /// The name is empty, not UTF-8 or longer than 63 bytes.
    Name(&'static str),
    /// Another tensor has the same name.
    Twice,
    /// It has more than four dimensions.
    Dims(u32),
    /// An extent has more than 63 bits: a negative number in the reference.
    Extent(u64),
    /// The extents multiply to more than 63 bits can hold, or this machine can address.
    Elements(Vec<u64>),
    /// Rows are not whole blocks of the type.
    Block {
        /// Elements in a row.
        row: usize,
        /// The type.
        dtype: crate::tensor::DType,
    },
    /// The data do not begin at a multiple of the alignment.
    Misaligned {
        /// Where they begin, in bytes from the start of the data.
        offset: u64,
        /// The alignment.
        alignment: usize,
    },
    /// The data reach past the end of the file.
    Outside {
        /// Where they begin, in bytes from the start of the data.
        offset: u64,
        /// Their bytes.
        bytes: usize,
        /// Bytes there are for all tensors.
        available: usize,
    },
    /// The data share bytes with those of another tensor.
    Overlap(String),
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(found) => {
                write!(f, "not a GGUF file: it begins with \"{}\"", found.escape_ascii())
            }
            Self::BigEndian => f.write_str(
                "the file is for big-endian machines; convert it with gguf-convert-endian FILE \
                 little (Python package gguf)",
            ),
            Self::Version(1) => f.write_str(
                "version 1 of GGUF is not supported; convert the model again from its original \
                 with a converter of 2023 or later",
            ),
            Self::Version(found) => {
                write!(f, "version {found} of GGUF is not supported, only 2 and 3")
            }
            Self::Truncated { what, offset, needed, left } => write!(
                f,
                "the file ends inside {what}: at byte {offset} it needs {needed} more bytes, of \
                 which {left} are there"
            ),
            Self::Count { what, found, most } => {
                write!(f, "the file says it has {found} {what}, but can have at most {most}")
            }
            Self::Length { what, offset, found, most } => {
                write!(f, "{what} at byte {offset} has {found} bytes, more than {most}")
            }
            Self::Key { key, reason } => write!(f, "metadata key \"{}\" {reason}", short(key)),
            Self::Value { key, reason } => write!(f, "metadata \"{}\": {reason}", short(key)),
            Self::ValueType { key, expected, found } => {
                write!(f, "metadata \"{}\" must be {expected}, found {found}", short(key))
            }
            Self::Tensor { tensor, fault } => {
                write!(f, "tensor \"{}\" {fault}", short(tensor))
            }
            Self::Split { part, reason } => write!(f, "part {part} of the model: {reason}"),
            Self::Part { part, source } => write!(f, "part {part} of the model: {source}"),
        }
    }
}

impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(reason) => write!(f, "has a name that {reason}"),
            Self::Twice => f.write_str("is there twice"),
            Self::Dims(n) => write!(f, "has {n} dimensions, more than 4"),
            Self::Extent(n) => write!(f, "has an extent of {n}"),
            Self::Elements(dims) => write!(f, "has too many elements: {dims:?}"),
            Self::Block { row, dtype } => {
                let block = dtype.block_elems();
                write!(f, "has rows of {row} elements, but {dtype} comes in blocks of {block}")
            }
            Self::Misaligned { offset, alignment } => {
                write!(f, "has data at offset {offset}, not a multiple of {alignment}")
            }
            Self::Outside { offset, bytes, available } => write!(
                f,
                "has {bytes} bytes at offset {offset}, but the file has {available} bytes of data"
            ),
            Self::Overlap(other) => {
                write!(f, "shares bytes with tensor \"{}\"", short(other))
            }
        }
    }
}

impl core::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Part { source, .. } => Some(source),
            _ => None,
        }
    }
}
