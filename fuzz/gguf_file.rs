//! GGUF files written field by field, so that every field can be wrong.

/// Numbers of types of values.
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const F32: u32 = 6;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;

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
