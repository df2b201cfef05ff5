//! GGUF files that are damaged or made to do harm: reading them gives a model or one error that says
//! what is wrong, never a panic, a long wait or more memory than the file has.
#![cfg(feature = "gguf")]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;
use std::path::Path;

use arbitrary::Unstructured;
use gguf::{ARRAY, BOOL, Entry, F32, File, I32, STRING, U8, U16, U32, U64, array, text, texts};
use tilewright::DType;
use tilewright::import::gguf::{Gguf, GgufError, TensorFault, Value};
use tilewright::import::{ImportError, MissingKind};

#[path = "../fuzz/gguf.rs"]
mod gguf;

thread_local! {
    /// Bytes that this thread has asked for.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get().saturating_add(layout.size())));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads a file; it may ask for some memory more than it has bytes, not for what it says it needs.
fn read(bytes: Vec<u8>) -> Result<Gguf, ImportError> {
    let most = 16 * bytes.len() + 8192;
    let before = BYTES.get();
    let result = Gguf::from_bytes(bytes.into());
    let taken = BYTES.get() - before;
    assert!(taken <= most, "{taken} bytes of memory for a file that may ask for {most}");
    result
}

/// What is wrong with a file.
fn fault(file: &File) -> GgufError {
    match read(file.bytes()) {
        Err(ImportError::Gguf(e)) => e,
        other => panic!("{other:?}"),
    }
}

/// What is wrong with the only bad tensor of a file.
fn tensor_fault(file: &File) -> TensorFault {
    match fault(file) {
        GgufError::Tensor { fault, .. } => fault,
        other => panic!("{other:?}"),
    }
}

/// A file with one tensor of the list, and 4096 bytes of data.
fn one(kind: u32, dims: &[u64], offset: u64) -> File {
    let file = File { data: vec![0; 4096], ..File::new() };
    file.entry(Entry::new("t", kind, dims, offset))
}

/// A small model with all types of values.
fn good() -> File {
    File::new()
        .with("general.architecture", STRING, text("llama"))
        .with("general.alignment", U32, 32u32.to_le_bytes())
        .with("llama.block_count", U32, 2u32.to_le_bytes())
        .with("llama.eps", F32, 1e-5f32.to_le_bytes())
        .with("llama.flag", BOOL, [1])
        .with("llama.big", U64, (1u64 << 40).to_le_bytes())
        .with("llama.heads", ARRAY, array(I32, 2, &[4, 0, 0, 0, 255, 255, 255, 255]))
        .with("llama.windows", ARRAY, array(BOOL, 3, &[1, 0, 1]))
        .with("tokenizer.tokens", ARRAY, texts([&b"a"[..], &[0xff, 0], b""]))
        .with("tokenizer.scores", ARRAY, array(F32, 1, &0.5f32.to_le_bytes()))
        .tensor("a", 0, &[2, 3], &[1; 24])
        .tensor("b", 8, &[64], &[2; 68])
        .tensor("c", 1, &[], &[0, 0x3c])
        .tensor("d", 14, &[256, 2, 1, 1], &[3; 420])
}

#[test]
fn a_good_file_is_read() {
    for version in [2, 3] {
        let gguf = read(File { version, ..good() }.bytes()).unwrap();
        assert_eq!((gguf.version(), gguf.parts()), (version, 1));
        let m = gguf.metadata();
        assert_eq!(m.str("general.architecture").unwrap(), Some("llama"));
        assert_eq!(m.u32("llama.block_count").unwrap(), Some(2));
        assert_eq!(m.u64("llama.big").unwrap(), Some(1 << 40));
        assert_eq!(m.f32("llama.eps").unwrap(), Some(1e-5));
        assert_eq!(m.bool("llama.flag").unwrap(), Some(true));
        assert_eq!(m.i32s("llama.heads").unwrap(), Some(vec![4, -1]));
        assert_eq!(m.bools("llama.windows").unwrap(), Some(vec![true, false, true]));
        assert_eq!(m.f32s("tokenizer.scores").unwrap(), Some(vec![0.5]));
        let tokens: Vec<&[u8]> = m.bytes_list("tokenizer.tokens").unwrap().unwrap().collect();
        assert_eq!(tokens, [&b"a"[..], &[0xff, 0], b""]);
        assert_eq!(m.u32("absent").unwrap(), None);
        assert_eq!(m.iter().next().unwrap().0, "general.architecture");
        let shapes: Vec<_> = gguf.tensors().iter().map(|t| (t.dtype, &t.dims[..])).collect();
        assert_eq!(shapes[..2], [(DType::F32, &[2, 3][..]), (DType::Q8_0, &[64])]);
        assert_eq!(shapes[2..], [(DType::F16, &[][..]), (DType::Q6_K, &[256, 2, 1, 1])]);
        assert_eq!(gguf.tensor("b").unwrap().data[..], [2; 68]);
        assert_eq!(gguf.tensor("c").unwrap().elements(), 1);
        assert!(gguf.tensor("e").is_none());
    }
}

#[test]
fn values_of_another_type_are_errors() {
    let gguf = read(good().bytes()).unwrap();
    let m = gguf.metadata();
    let message = |r: Result<(), ImportError>| r.unwrap_err().to_string();
    assert_eq!(
        message(m.u32("llama.eps").map(drop)),
        "metadata \"llama.eps\" must be an unsigned 32-bit integer, found f32"
    );
    assert_eq!(
        message(m.u32("llama.big").map(drop)),
        "metadata \"llama.big\": 1099511627776 does not fit an unsigned 32-bit integer"
    );
    assert_eq!(
        message(m.u32s("llama.heads").map(drop)),
        "metadata \"llama.heads\": -1 does not fit array of unsigned 32-bit integers"
    );
    assert!(m.f32("llama.block_count").is_err());
    assert!(m.bool("llama.block_count").is_err());
    assert!(m.str("llama.flag").is_err());
    assert!(m.bytes_list("llama.heads").is_err());
    assert!(m.f32s("llama.heads").is_err());
    assert!(m.bools("llama.heads").is_err());
    assert!(m.i32s("llama.windows").is_err());
    let gguf = read(File::new().with("a", STRING, text([0xff])).bytes()).unwrap();
    assert!(message(gguf.metadata().str("a").map(drop)).contains("not UTF-8"));
    assert_eq!(gguf.metadata().bytes("a").unwrap().unwrap()[..], [0xff]);
}

#[test]
fn beginnings_and_changed_bytes_of_a_file_do_no_harm() {
    let bytes = good().bytes();
    for len in 0..bytes.len() {
        assert!(read(bytes[..len].to_vec()).is_err(), "{len} bytes of {}", bytes.len());
    }
    for at in 0..bytes.len() - 600 {
        for value in [0, 1, 7, 0x7f, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            gguf::try_out(bytes);
        }
    }
}

#[test]
fn random_files_are_read_or_refused() {
    let mut opened = 0;
    let mut state = 1u64;
    for number in 0..20_000 {
        let words = core::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
        });
        let noise: Vec<u8> = words.take(40).flatten().collect();
        let bytes = gguf::file(&mut Unstructured::new(&noise)).unwrap();
        let outcome = std::panic::catch_unwind(|| gguf::try_out(bytes));
        opened += usize::from(outcome.unwrap_or_else(|_| panic!("file {number}")));
    }
    println!("{opened} of 20000 were opened");
    assert!((4_000..16_000).contains(&opened), "{opened} say nothing about the others");
}

#[test]
fn other_formats_and_versions_are_named() {
    let found = fault(&File { magic: *b"GGML", ..good() });
    assert_eq!(found, GgufError::Magic(*b"GGML"));
    assert_eq!(found.to_string(), "not a GGUF file: it begins with \"GGML\"");
    let found = fault(&File { version: 1, ..good() });
    assert!(found.to_string().contains("version 1 of GGUF is not supported; convert"), "{found}");
    for version in [0, 4, u32::MAX] {
        assert_eq!(fault(&File { version, ..good() }), GgufError::Version(version));
    }
    let found = fault(&File { version: 3u32.swap_bytes(), ..good() });
    assert_eq!(found, GgufError::BigEndian);
    assert!(found.to_string().contains("convert it with gguf-convert-endian"), "{found}");
    assert!(matches!(read(Vec::new()), Err(ImportError::Empty)));
}

#[test]
fn counts_are_compared_with_the_file() {
    for count in [5, 1 << 20, u32::MAX.into(), 1 << 62, u64::MAX] {
        let file = File { tensor_count: Some(count), alignment: 0, ..File::new() };
        let found = fault(&file);
        assert!(matches!(found, GgufError::Count { what: "tensors", most: 0, .. }), "{found:?}");
        let found = fault(&File { metadata_count: Some(count), ..File::new() });
        assert!(matches!(found, GgufError::Count { what: "metadata entries", .. }), "{found:?}");
    }
    // More than is sensible, though the file has the bytes.
    let file = File { metadata_count: Some((1 << 16) + 1), data: vec![0; 1 << 20], ..File::new() };
    assert!(matches!(fault(&file), GgufError::Count { most: 0x1_0000, .. }));
    let file = File { tensor_count: Some((1 << 20) + 1), data: vec![0; 26 << 20], ..File::new() };
    assert!(matches!(fault(&file), GgufError::Count { most: 0x10_0000, .. }));
}

#[test]
fn texts_are_compared_with_the_file() {
    let with_length = |length: u64| {
        let text = [&length.to_le_bytes()[..], b"abc"].concat();
        File { data: vec![0; 1000], ..File::new() }.with("a", STRING, text)
    };
    assert!(matches!(fault(&with_length(10_000)), GgufError::Truncated { needed: 10_000, .. }));
    for length in [(16 << 20) + 1, 1 << 63, u64::MAX, u64::MAX - 30] {
        let found = fault(&with_length(length));
        assert!(matches!(found, GgufError::Length { found, .. } if found == length), "{found:?}");
        // The same inside an array.
        let elements = [&length.to_le_bytes()[..], &[0; 64]].concat();
        let found = fault(&File::new().with("a", ARRAY, array(STRING, 1, &elements)));
        assert!(matches!(found, GgufError::Length { .. }), "{found:?}");
    }
    let long = "k".repeat(65_536);
    let found = fault(&File::new().with(&long, BOOL, [1]));
    assert!(matches!(found, GgufError::Length { found: 65_536, most: 65_535, .. }), "{found:?}");
    assert!(read(File::new().with(&long[1..], BOOL, [1]).bytes()).is_ok());
}

#[test]
fn arrays_are_compared_with_the_file() {
    for (kind, count) in [
        (U8, 1001),
        (U64, 1 << 61),
        (U64, (1 << 61) + 1),
        (STRING, 200),
        (STRING, u64::MAX),
        (BOOL, 1 << 30),
    ] {
        let found = fault(&File::new().with("a", ARRAY, array(kind, count, &[1; 900])));
        assert!(matches!(found, GgufError::Count { what: "array elements", .. }), "{found:?}");
    }
    let found = fault(&File::new().with("a", ARRAY, array(ARRAY, 1, &array(U8, 1, &[1]))));
    assert_eq!(found.to_string(), "metadata \"a\": arrays of arrays are not supported");
    let empty = read(File::new().with("a", ARRAY, array(U8, 0, &[])).bytes()).unwrap();
    let Some(Value::Array(list)) = empty.metadata().get("a") else { panic!() };
    assert!(list.is_empty() && list.values().next().is_none());
}

#[test]
fn keys_and_types_of_values_are_checked() {
    for (key, reason) in
        [("", "is empty"), ("a b", "is not printable"), ("schlüssel", "is not printable")]
    {
        let found = fault(&File::new().with(key, BOOL, [1])).to_string();
        assert!(found.contains(reason), "{found}");
    }
    let twice = File::new().with("a", BOOL, [1]).with("b", BOOL, [0]).with("a", U8, [3]);
    assert_eq!(fault(&twice).to_string(), "metadata key \"a\" is there twice");
    for file in [
        File::new().with("a", BOOL, [2]),
        File::new().with("a", ARRAY, array(BOOL, 2, &[1, 255])),
        File::new().with("a", 13, [0; 8]),
        File::new().with("a", u32::MAX, [0; 8]),
        File::new().with("a", ARRAY, array(13, 1, &[0; 64])),
    ] {
        assert!(matches!(fault(&file), GgufError::Value { .. }));
    }
}

#[test]
fn alignments_are_powers_of_two() {
    let with =
        |value: u32| good_without_alignment().with("general.alignment", U32, value.to_le_bytes());
    for value in [0, 3, 33, 1 << 17, u32::MAX] {
        let found = fault(&with(value)).to_string();
        assert!(found.contains("not a power of two"), "{found}");
    }
    for value in [1, 64, 4096, 1 << 16] {
        let file = File { alignment: value as usize, ..with(value) };
        assert!(read(file.tensor("a", 0, &[1], &[0; 4]).bytes()).is_ok(), "{value}");
    }
    // An alignment of another type would be read as something else by whoever believes it.
    for (kind, bytes) in [(U64, &[32, 0, 0, 0, 0, 0, 0, 0][..]), (I32, &[32, 0, 0, 0]), (U8, &[32])]
    {
        let found = fault(&File::new().with("general.alignment", kind, bytes));
        assert!(matches!(found, GgufError::ValueType { expected: "u32", .. }), "{found:?}");
    }
}

fn good_without_alignment() -> File {
    File::new().with("general.architecture", STRING, text("llama"))
}

#[test]
fn names_of_tensors_fit_ggml_and_are_unique() {
    let named = |name: &[u8]| {
        let mut file = one(0, &[1], 0);
        file.tensors[0].name = name.to_vec();
        file
    };
    for name in [&b""[..], &[0xff], &[b'n'; 64], &[b'n'; 65_000]] {
        assert!(matches!(tensor_fault(&named(name)), TensorFault::Name(_)));
    }
    assert!(read(named(&[b'n'; 63]).bytes()).is_ok());
    let twice = File::new().tensor("t", 0, &[1], &[0; 4]).tensor("t", 0, &[1], &[0; 4]);
    assert_eq!(tensor_fault(&twice), TensorFault::Twice);
}

#[test]
fn extents_are_checked() {
    assert_eq!(tensor_fault(&one(0, &[1; 5], 0)), TensorFault::Dims(5));
    let mut many = one(0, &[], 0);
    many.tensors[0].rank = Some(u32::MAX);
    assert_eq!(tensor_fault(&many), TensorFault::Dims(u32::MAX));
    assert_eq!(tensor_fault(&one(0, &[1 << 63], 0)), TensorFault::Extent(1 << 63));
    assert_eq!(tensor_fault(&one(0, &[2, u64::MAX], 0)), TensorFault::Extent(u64::MAX));
    for dims in [&[1 << 32, 1 << 31][..], &[1 << 62, 2], &[0, 1 << 62, 4], &[1 << 40; 4]] {
        let found = tensor_fault(&one(0, dims, 0));
        assert!(matches!(found, TensorFault::Elements(_)), "{dims:?} {found:?}");
    }
    for (kind, row, dtype) in
        [(2, 33, DType::Q4_0), (8, 16, DType::Q8_0), (12, 128, DType::Q4_K), (14, 32, DType::Q6_K)]
    {
        // The number of elements is a multiple of the block, the rows are not.
        let found = tensor_fault(&one(kind, &[row, 256], 0));
        assert_eq!(found, TensorFault::Block { row: row as usize, dtype });
    }
    assert_eq!(tensor_fault(&one(2, &[], 0)), TensorFault::Block { row: 1, dtype: DType::Q4_0 });
    for dims in [&[0][..], &[0, 7], &[32, 0, 5]] {
        assert!(read(one(2, dims, 0).bytes()).unwrap().tensors()[0].data.is_empty());
    }
}

#[test]
fn all_unsupported_types_are_named_together() {
    let mut file = File { data: vec![0; 4096], ..File::new() };
    for (i, kind) in [15, 0, 40, 15, 4, 36, 99, 9].into_iter().enumerate() {
        file = file.entry(Entry::new(&format!("t{i}"), kind, &[256], 32 * i as u64));
    }
    let Err(ImportError::Unsupported(missing)) = read(file.bytes()) else { panic!() };
    let names: Vec<_> = missing.iter().map(|m| (&m.kind, m.count)).collect();
    let kind = |name: &str| MissingKind::Type(name.into());
    assert!(names.contains(&(&kind("q8_K"), 2)), "{names:?}");
    assert!(names.contains(&(&kind("nvfp4"), 1)) && names.contains(&(&kind("q8_1"), 1)));
    let text = ImportError::Unsupported(missing).to_string();
    assert!(text.contains("q8_K (2x: t0, t3)"), "{text}");
    assert!(text.contains("q4_2 (no longer part of the format)"), "{text}");
    assert!(text.contains("number 99 (not known)"), "{text}");
}

#[test]
fn data_lie_in_the_file_aligned_and_apart() {
    assert!(read(one(0, &[1016], 32).bytes()).is_ok());
    let found = tensor_fault(&one(0, &[8], 8));
    assert_eq!(found, TensorFault::Misaligned { offset: 8, alignment: 32 });
    for (elements, offset) in [(1025, 0), (1017, 32), (1, 4096), (1, 1 << 40), (1, u64::MAX - 31)] {
        let found = tensor_fault(&one(0, &[elements], offset));
        assert!(matches!(found, TensorFault::Outside { available: 4096, .. }), "{found:?}");
    }
    for (first, second) in [(0, 0), (0, 32), (32, 0), (64, 32)] {
        let file = one(0, &[16], first).entry(Entry::new("u", 0, &[16], second));
        assert!(matches!(tensor_fault(&file), TensorFault::Overlap(_)), "{first} {second}");
    }
    let inside = one(0, &[512], 0).entry(Entry::new("u", 0, &[1], 1024));
    assert_eq!(tensor_fault(&inside), TensorFault::Overlap("t".into()));
    let order = one(0, &[16], 64).entry(Entry::new("u", 0, &[16], 0));
    assert!(read(order.bytes()).is_ok());
    // Tensors without elements have no bytes to share.
    let empty = one(0, &[16], 0).entry(Entry::new("u", 0, &[0], 32));
    assert!(read(empty.bytes()).is_ok());
}

#[test]
fn padding_may_be_absent_at_the_end() {
    let file = File::new().tensor("a", 0, &[3], &[0; 12]);
    assert!(read(file.bytes()).is_ok());
    let vocabulary = File { alignment: 0, ..good_without_alignment() };
    assert!(!vocabulary.bytes().len().is_multiple_of(32));
    let gguf = read(vocabulary.bytes()).unwrap();
    assert!(gguf.tensors().is_empty());
    // Data that would begin after the end.
    let short = File { alignment: 0, ..File::new() }.entry(Entry::new("ab", 0, &[1], 0));
    assert!(!short.bytes().len().is_multiple_of(32));
    assert!(matches!(tensor_fault(&short), TensorFault::Outside { available: 0, .. }));
}

/// Published attacks on other readers of the format.
#[test]
fn known_attacks_are_refused() {
    // 2^64 - 16 bytes, which become 0 when they are rounded up to the alignment.
    let found = tensor_fault(&one(0, &[4, (1 << 30) - 1, (1 << 30) + 1, 1], 0));
    assert!(matches!(found, TensorFault::Elements(_)), "{found:?}");
    // 2^64 bytes.
    let found = tensor_fault(&one(0, &[1 << 62], 0));
    assert!(matches!(found, TensorFault::Elements(_)), "{found:?}");
    // A number of elements that becomes negative.
    let found = tensor_fault(&one(24, &[i64::MAX as u64, 2, 1, 1], 0));
    assert!(matches!(found, TensorFault::Elements(_)), "{found:?}");
    // Padded sizes whose sum wraps, each of which does not.
    let half = 1u64 << 62;
    let file = (0..5).fold(File { data: vec![0; 64], ..File::new() }, |file, i| {
        file.entry(Entry::new(&format!("t{i}"), 24, &[half], half.wrapping_mul(i)))
    });
    assert!(matches!(tensor_fault(&file), TensorFault::Outside { .. }));
    // Some hundred bytes that ask for gigabytes, in every field that has a length.
    let mut small = File::new().with("a", ARRAY, array(STRING, 1 << 29, &[0; 64]));
    assert!(small.bytes().len() <= 160);
    assert!(matches!(fault(&small), GgufError::Count { .. }));
    small.metadata[0].2 = array(U8, 1 << 33, &[0; 64]);
    assert!(matches!(fault(&small), GgufError::Count { .. }));
    small = File { metadata_count: Some(1 << 33), ..File::new() };
    assert!(matches!(fault(&small), GgufError::Count { .. }));
    assert!(matches!(tensor_fault(&one(0, &[1 << 31], 0)), TensorFault::Outside { .. }));
}

/// Parts of a model, `count` of them.
fn parts(count: u16) -> Vec<File> {
    let part = |no: u16| {
        let file = File::new().with("split.no", U16, no.to_le_bytes());
        let file = file.with("split.count", U16, count.to_le_bytes());
        let tensors = i32::from(count).to_le_bytes();
        let file = file.with("split.tensors.count", I32, tensors);
        let file = if no == 0 { file.with("a", STRING, text("x")) } else { file };
        file.tensor(&format!("t{no}"), 0, &[1], &f32::from(no).to_le_bytes())
    };
    (0..count).map(part).collect()
}

fn join(parts: &[File]) -> Result<Gguf, ImportError> {
    Gguf::from_parts(parts.iter().map(|f| f.bytes().into()))
}

#[test]
fn parts_are_joined_if_they_belong_together() {
    let good = parts(3);
    let gguf = join(&good).unwrap();
    assert_eq!((gguf.parts(), gguf.tensors().len()), (3, 3));
    assert_eq!(gguf.tensor("t2").unwrap().data[..], 2f32.to_le_bytes());
    assert_eq!(gguf.metadata().str("a").unwrap(), Some("x"));
    let refused = |change: &dyn Fn(&mut Vec<File>), reason: &str| {
        let mut parts = good.clone();
        change(&mut parts);
        let found = join(&parts).unwrap_err().to_string();
        assert!(found.contains(reason), "{found}");
    };
    refused(&|p| drop(p.pop()), "part 1 of the model: 2 of 3 parts are given");
    refused(&|p| p.truncate(1), "1 of 3 parts");
    refused(&|p| p.swap(1, 2), "part 2 of the model: the file says it is part 3 of 3");
    refused(&|p| p[2] = p[1].clone(), "part 3 of the model: the file says it is part 2 of 3");
    refused(&|p| p[1] = parts(4)[1].clone(), "it is part 2 of 4");
    refused(&|p| drop(p[1].tensors.pop()), "should have 3 tensors, all parts have 2");
    refused(&|p| p[1].tensors[0].name = b"t0".to_vec(), "\"t0\" is there twice");
    refused(
        &|p| p[1] = p[1].clone().with("a", STRING, text("y")),
        "a differs from that of the first",
    );
    refused(&|p| p[2].tensors[0].kind = 21, "iq3_s");
    refused(&|p| p[0].metadata[0].2 = vec![3, 0], "the model has only 3 parts");
    assert!(join(&parts(1)).is_ok());
    assert!(matches!(join(&[]), Err(ImportError::Empty)));
}

/// A folder of its own that goes away with the value.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tilewright-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, file: &File) -> std::path::PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, file.bytes()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_model_in_several_files_opens_from_each() {
    let folder = Folder::new("split");
    let parts = parts(3);
    let name = |no: usize| format!("m-{no:05}-of-00003.gguf");
    let paths: Vec<_> = (0..3).map(|no| folder.write(&name(no + 1), &parts[no])).collect();
    for path in &paths {
        let gguf = Gguf::open(path).unwrap();
        assert_eq!((gguf.parts(), gguf.tensors().len()), (3, 3));
        assert_eq!(gguf.tensor("t1").unwrap().data[..], 1f32.to_le_bytes());
    }
    let message = |path: &Path| Gguf::open(path).unwrap_err().to_string();
    let renamed = folder.write("renamed.gguf", &parts[1]);
    assert!(message(&renamed).contains("does not end in -00002-of-00003.gguf"));
    folder.write(&name(2), &File { version: 9, ..parts[1].clone() });
    assert_eq!(
        message(&paths[0]),
        "part 2 of the model: version 9 of GGUF is not supported, only 2 and 3"
    );
    std::fs::write(&paths[1], b"").unwrap();
    assert_eq!(message(&paths[0]), "part 2 of the model: the file is empty");
    std::fs::remove_file(&paths[1]).unwrap();
    assert!(message(&paths[0]).contains("-00002-of-00003.gguf"));
    assert!(message(&folder.0.join("none.gguf")).starts_with("cannot read"));
    assert!(message(&folder.0).contains("not a regular file"));
}
