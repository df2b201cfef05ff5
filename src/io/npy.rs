//! NumPy's array files (`.npy`), format versions 1 to 3.
//!
//! Reading accepts both byte orders and both element orders; the result is always in native byte
//! order and C order. Sizes in the header are compared with the bytes that are there before
//! anything is allocated. Object arrays, records, strings and complex numbers are refused.

use core::fmt;

use crate::tensor::{DType, Shape, Tensor, TensorError};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read; NumPy's own limit is lower.
const MAX_HEADER: usize = 1 << 16;

/// Why bytes are not a readable `.npy` file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NpyError {
    /// The magic bytes are missing.
    InvalidMagic,
    /// The file ends inside the header, or the header is longer than 64 KiB.
    InvalidHeaderLength,
    /// The header is not the dictionary that NumPy writes.
    InvalidHeader {
        /// Where in the header, in bytes.
        offset: usize,
        /// What was expected there.
        expected: &'static str,
    },
    /// The shape asks for another number of data bytes than the file has.
    InvalidLength {
        /// Extents, slowest first.
        dims: Vec<usize>,
        /// Bytes that the shape and type ask for.
        expected: usize,
        /// Bytes behind the header.
        found: usize,
    },
    /// A format version that does not exist yet.
    UnsupportedVersion(u8, u8),
    /// An element type without an equivalent here.
    UnsupportedType(String),
    /// The shape or the memory for it is impossible.
    Tensor(TensorError),
}

impl fmt::Display for NpyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidMagic => f.write_str("not a .npy file: it does not start with \\x93NUMPY"),
            Self::InvalidHeaderLength => f.write_str("the .npy header is cut off or too long"),
            Self::InvalidHeader { offset, expected } => {
                write!(f, "the .npy header is damaged at byte {offset}: expected {expected}")
            }
            Self::InvalidLength { dims, expected, found } => {
                write!(f, "shape {dims:?} needs {expected} bytes of data, found {found}")
            }
            Self::UnsupportedVersion(major, minor) => {
                write!(f, ".npy version {major}.{minor} is not supported, only 1.0 to 3.0")
            }
            Self::UnsupportedType(descr) => write!(
                f,
                "element type {descr} is not supported (only bool, integers and f16, f32, f64)"
            ),
            Self::Tensor(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for NpyError {}

impl From<TensorError> for NpyError {
    fn from(e: TensorError) -> Self {
        Self::Tensor(e)
    }
}

/// The tensor in the bytes of a `.npy` file.
///
/// # Errors
/// Every [`NpyError`]; no memory is allocated beyond the size of `bytes`.
pub fn read(bytes: &[u8]) -> Result<Tensor, NpyError> {
    let (header, data) = split(bytes)?;
    let Header { descr, fortran_order, dims } = Parser { text: header, at: 0 }.header()?;
    let (dtype, swapped) = element_type(&descr)?;
    let shape = Shape::contiguous(dtype, &dims).map_err(TensorError::from)?;
    let expected = shape.bytes(dtype);
    if data.len() != expected {
        return Err(NpyError::InvalidLength { dims, expected, found: data.len() });
    }
    let size = dtype.block_bytes();
    if !fortran_order && !swapped && dtype != DType::Bool {
        return Ok(Tensor::from_bytes(dtype, &dims, data)?);
    }
    let mut out = if fortran_order { to_c_order(data, &dims, size) } else { data.to_vec() };
    if swapped {
        out.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool {
        out.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Ok(Tensor::from_bytes(dtype, &dims, &out)?)
}

/// The `.npy` file, version 1.0 in C order, for a tensor of a plain type.
///
/// NumPy has no bfloat16, so such tensors are written as f32, which holds every value exactly.
///
/// # Errors
/// [`NpyError::UnsupportedType`] for block-quantised tensors.
pub fn write(tensor: &Tensor) -> Result<Vec<u8>, NpyError> {
    let widened: Vec<u8>;
    let (code, data) = match tensor.dtype() {
        DType::F32 => ("f4", tensor.bytes()),
        DType::F16 => ("f2", tensor.bytes()),
        DType::F64 => ("f8", tensor.bytes()),
        DType::I8 => ("i1", tensor.bytes()),
        DType::U8 => ("u1", tensor.bytes()),
        DType::I16 => ("i2", tensor.bytes()),
        DType::U16 => ("u2", tensor.bytes()),
        DType::I32 => ("i4", tensor.bytes()),
        DType::U32 => ("u4", tensor.bytes()),
        DType::I64 => ("i8", tensor.bytes()),
        DType::U64 => ("u8", tensor.bytes()),
        DType::Bool => ("b1", tensor.bytes()),
        DType::BF16 => {
            let values = tensor.as_slice::<half::bf16>()?;
            widened = values.iter().flat_map(|v| v.to_f32().to_ne_bytes()).collect();
            ("f4", widened.as_slice())
        }
        other => return Err(NpyError::UnsupportedType(other.to_string())),
    };
    let order = match (code.ends_with('1'), cfg!(target_endian = "big")) {
        (true, _) => '|',
        (false, false) => '<',
        (false, true) => '>',
    };
    Ok(file(&format!("{order}{code}"), &tensor.dims(), data))
}

/// The `.npy` file of texts in C order, of NumPy's type `<U` for the longest of them. NumPy takes zeros at the end
/// of a text for filling.
///
/// # Errors
/// [`NpyError::InvalidLength`] if there are not as many texts as `dims` say.
pub fn write_texts(dims: &[usize], texts: &[&str]) -> Result<Vec<u8>, NpyError> {
    let longest = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
    let wanted = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
    if texts.len() != wanted {
        let bytes = |n: usize| n.saturating_mul(4 * longest);
        let (expected, found) = (bytes(wanted), bytes(texts.len()));
        return Err(NpyError::InvalidLength { dims: dims.to_vec(), expected, found });
    }
    let filled = |text: &&str| {
        let chars = text.chars().map(u32::from).chain(core::iter::repeat(0)).take(longest);
        chars.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
    };
    let data: Vec<u8> = texts.iter().flat_map(filled).collect();
    Ok(file(&format!("<U{longest}"), dims, &data))
}

/// Version 1.0, with `data` after the header.
fn file(descr: &str, dims: &[usize], data: &[u8]) -> Vec<u8> {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    let comma = if dims.len() == 1 { "," } else { "" };
    let mut header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        dims.join(", ")
    );
    // Magic, version and length take 10 bytes; data start at a multiple of 64.
    let total = (10 + header.len() + 1).next_multiple_of(64);
    header.push_str(&" ".repeat(total - 11 - header.len()));
    header.push('\n');
    let mut out = Vec::with_capacity(total + data.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    // At most 8 dimensions of 20 digits fit a header of some hundred bytes.
    out.extend_from_slice(&(header.len() as u16).to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

/// Header text and data.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), NpyError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(NpyError::InvalidMagic)?;
    let cut = NpyError::InvalidHeaderLength;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(cut.clone())?;
    let (length, rest) = match version {
        [1, 0] => {
            let (n, rest) = rest.split_first_chunk::<2>().ok_or(cut.clone())?;
            (usize::from(u16::from_le_bytes(*n)), rest)
        }
        [2 | 3, 0] => {
            let (n, rest) = rest.split_first_chunk::<4>().ok_or(cut.clone())?;
            (usize::try_from(u32::from_le_bytes(*n)).map_err(|_| cut.clone())?, rest)
        }
        &[major, minor] => return Err(NpyError::UnsupportedVersion(major, minor)),
    };
    if length > MAX_HEADER {
        return Err(cut);
    }
    rest.split_at_checked(length).ok_or(cut)
}

/// Our type for NumPy's code, and whether bytes must be swapped.
fn element_type(descr: &str) -> Result<(DType, bool), NpyError> {
    let unsupported = || NpyError::UnsupportedType(format!("'{descr}'"));
    let (order, code) = match descr.as_bytes().first() {
        Some(b'<' | b'>' | b'|' | b'=') => descr.split_at(1),
        _ => ("=", descr),
    };
    let dtype = match code {
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "i1" => DType::I8,
        "u1" => DType::U8,
        "i2" => DType::I16,
        "u2" => DType::U16,
        "i4" => DType::I32,
        "u4" => DType::U32,
        "i8" => DType::I64,
        "u8" => DType::U64,
        "b1" | "?" => DType::Bool,
        _ => return Err(unsupported()),
    };
    let foreign = if cfg!(target_endian = "little") { ">" } else { "<" };
    Ok((dtype, order == foreign && dtype.block_bytes() > 1))
}

/// Elements of `size` bytes from first-index-fastest to last-index-fastest order.
fn to_c_order(data: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    if data.is_empty() {
        return out;
    }
    let mut index = vec![0usize; dims.len()];
    loop {
        let element =
            index.iter().zip(dims).rev().fold(0usize, |offset, (&i, &extent)| offset * extent + i);
        out.extend_from_slice(&data[element * size..][..size]);
        // Count up, last axis first; done when every axis wraps.
        let mut axis = dims.len();
        loop {
            if axis == 0 {
                return out;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

struct Header {
    descr: String,
    fortran_order: bool,
    dims: Vec<usize>,
}

/// Reads the header, a Python dictionary literal with three known keys.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn header(mut self) -> Result<Header, NpyError> {
        let (mut descr, mut fortran_order, mut dims) = (None, None, None);
        self.expect(b'{', "'{'")?;
        while !self.eat(b'}') {
            let at = self.at;
            let key = self.string()?;
            self.expect(b':', "':'")?;
            match key.as_str() {
                "descr" if self.peek() == Some(b'[') => {
                    return Err(NpyError::UnsupportedType("record".into()));
                }
                "descr" => descr = Some(self.string()?),
                "fortran_order" => fortran_order = Some(self.boolean()?),
                "shape" => dims = Some(self.tuple()?),
                _ => return self.fail_at(at, "'descr', 'fortran_order' or 'shape'"),
            }
            if !self.eat(b',') {
                self.expect(b'}', "',' or '}'")?;
                break;
            }
        }
        if self.peek().is_some() {
            return self.fail("the end of the header");
        }
        match (descr, fortran_order, dims) {
            (Some(descr), Some(fortran_order), Some(dims)) => {
                Ok(Header { descr, fortran_order, dims })
            }
            _ => self.fail("all of 'descr', 'fortran_order' and 'shape'"),
        }
    }

    fn fail<T>(&self, expected: &'static str) -> Result<T, NpyError> {
        self.fail_at(self.at, expected)
    }

    fn fail_at<T>(&self, offset: usize, expected: &'static str) -> Result<T, NpyError> {
        Err(NpyError::InvalidHeader { offset, expected })
    }

    /// Next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, name: &'static str) -> Result<(), NpyError> {
        if self.eat(byte) { Ok(()) } else { self.fail(name) }
    }

    fn string(&mut self) -> Result<String, NpyError> {
        let quote = match self.peek() {
            Some(q @ (b'\'' | b'"')) => q,
            _ => return self.fail("a string"),
        };
        let rest = &self.text[self.at + 1..];
        let Some(len) = rest.iter().position(|&b| b == quote) else {
            return self.fail("a closed string");
        };
        self.at += len + 2;
        Ok(String::from_utf8_lossy(&rest[..len]).into_owned())
    }

    fn boolean(&mut self) -> Result<bool, NpyError> {
        self.peek();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        self.fail("True or False")
    }

    fn tuple(&mut self) -> Result<Vec<usize>, NpyError> {
        self.expect(b'(', "'('")?;
        let mut dims = Vec::new();
        while !self.eat(b')') {
            self.peek();
            let digits = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
            let number = core::str::from_utf8(&self.text[self.at..self.at + digits])
                .ok()
                .and_then(|s| s.parse().ok());
            let Some(number) = number else {
                return self.fail("an extent that fits this machine");
            };
            dims.push(number);
            self.at += digits;
            // Python 2 wrote long integers with a suffix.
            self.eat(b'L');
            if !self.eat(b',') {
                self.expect(b')', "',' or ')'")?;
                break;
            }
        }
        Ok(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version 1.0 file as NumPy writes it.
    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes()].concat();
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(data);
        out
    }

    fn of(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Result<Tensor, NpyError> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}   \n");
        read(&file(&header, data))
    }

    #[test]
    fn writes_and_reads_every_plain_type() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_plain() && *d != DType::BF16) {
            for dims in [&[][..], &[3], &[2, 3], &[2, 0, 3]] {
                let count = dims.iter().product::<usize>() * dtype.block_bytes();
                let data: Vec<u8> = (0..count).map(|i| (i % 2) as u8).collect();
                let tensor = Tensor::from_bytes(dtype, dims, &data).unwrap();
                let bytes = write(&tensor).unwrap();
                assert_eq!((bytes.len() - count) % 64, 0);
                let back = read(&bytes).unwrap();
                assert_eq!((back.dtype(), back.dims()), (dtype, dims.to_vec()));
                assert_eq!(back.bytes(), data);
            }
        }
    }

    #[test]
    fn texts_are_written_as_numpy_does() {
        // numpy.save of numpy.array([["a", "\u00e9\U0001f600"]]).
        let bytes = write_texts(&[1, 2], &["a", "\u{e9}\u{1f600}"]).unwrap();
        let (header, data) = split(&bytes).unwrap();
        let text = core::str::from_utf8(header).unwrap();
        assert!(text.starts_with("{'descr': '<U2', 'fortran_order': False, 'shape': (1, 2), }"));
        assert_eq!(data, [b'a', 0, 0, 0, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0x00, 0xf6, 0x01, 0]);
        let empty = write_texts(&[1], &[""]).unwrap();
        assert_eq!(split(&empty).unwrap().1, [0; 4]);
        let wrong = NpyError::InvalidLength { dims: vec![3], expected: 12, found: 4 };
        assert_eq!(write_texts(&[3], &["a"]).unwrap_err(), wrong);
    }

    #[test]
    fn bfloat16_is_written_as_f32() {
        let values = [half::bf16::from_f32(1.5), half::bf16::NEG_INFINITY];
        let tensor = Tensor::from_slice(&[2], &values).unwrap();
        let back = read(&write(&tensor).unwrap()).unwrap();
        assert_eq!(back.as_slice::<f32>().unwrap()[..], [1.5, f32::NEG_INFINITY]);
    }

    #[test]
    fn big_endian_is_swapped() {
        let t = of(">i4", "False", "(2,)", &[0, 0, 1, 2, 255, 255, 255, 254]).unwrap();
        assert_eq!(t.as_slice::<i32>().unwrap()[..], [258, -2]);
        let t = of(">f8", "False", "()", &1.25f64.to_be_bytes()).unwrap();
        assert_eq!(t.as_slice::<f64>().unwrap()[..], [1.25]);
    }

    #[test]
    fn fortran_order_is_transposed() {
        let t = of("|u1", "True", "(2, 3)", &[0, 3, 1, 4, 2, 5]).unwrap();
        assert_eq!((t.dims(), t.bytes()), (vec![2, 3], &[0, 1, 2, 3, 4, 5][..]));
        let t = of(">u2", "True", "(2, 1, 2)", &[0, 1, 0, 3, 0, 2, 0, 4]).unwrap();
        assert_eq!(t.as_slice::<u16>().unwrap()[..], [1, 2, 3, 4]);
        assert!(of("<f4", "True", "(0, 3)", &[]).unwrap().bytes().is_empty());
    }

    #[test]
    fn bool_bytes_become_zero_or_one() {
        let t = of("|b1", "False", "(3,)", &[0, 1, 7]).unwrap();
        assert_eq!(t.bytes(), [0, 1, 1]);
    }

    #[test]
    fn hostile_headers_are_errors() {
        let huge = of("<f4", "False", "(4611686018427387904, 4)", &[0; 16]);
        assert!(matches!(huge, Err(NpyError::Tensor(TensorError::Shape(_)))), "{huge:?}");
        let absent = of("<f4", "False", "(1000000000000,)", &[0; 16]);
        assert!(matches!(absent, Err(NpyError::InvalidLength { found: 16, .. })));
        let long = of("<f4", "False", "(99999999999999999999999,)", &[]);
        assert!(matches!(long, Err(NpyError::InvalidHeader { .. })));
        assert!(matches!(of("<f4", "False", "(-1,)", &[]), Err(NpyError::InvalidHeader { .. })));
        assert!(matches!(of("<f4", "Maybe", "(1,)", &[0; 4]), Err(NpyError::InvalidHeader { .. })));
        assert!(matches!(of("<c8", "False", "(1,)", &[0; 8]), Err(NpyError::UnsupportedType(_))));
        assert!(matches!(of("|O", "False", "(1,)", &[0; 8]), Err(NpyError::UnsupportedType(_))));
        assert!(matches!(of("é", "False", "(1,)", &[0; 8]), Err(NpyError::UnsupportedType(_))));
        let record = file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", &[]);
        assert_eq!(read(&record).unwrap_err(), NpyError::UnsupportedType("record".into()));
        let missing = file("{'descr': '<f4', 'shape': (1,)}", &[0; 4]);
        assert!(matches!(read(&missing), Err(NpyError::InvalidHeader { .. })));
        assert_eq!(read(b"").unwrap_err(), NpyError::InvalidMagic);
        assert_eq!(read(b"\x93NUMPY\x09\x00").unwrap_err(), NpyError::UnsupportedVersion(9, 0));
        let four_gib = b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'";
        assert_eq!(read(four_gib).unwrap_err(), NpyError::InvalidHeaderLength);
    }

    #[test]
    fn no_truncation_or_byte_change_panics() {
        let tensor = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let good = write(&tensor).unwrap();
        for end in 0..good.len() {
            assert!(read(&good[..end]).is_err());
        }
        for at in 0..good.len() {
            for value in [0, b'(', b'\'', b'9', 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = read(&bad);
            }
        }
    }
}
