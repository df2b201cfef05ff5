//! The tensors of a file as operands of graphs.

use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::LlmError;
use crate::Error;
use crate::graph::ConstCache;
use crate::import::gguf::Gguf;
use crate::order::sort;
use crate::tensor::block::dequantize;
use crate::tensor::{AlignedBytes, DType, Storage, Tensor};

/// Largest vector that is copied out of the file: where its pages are touched, the system brings in many more
/// (on Linux up to 2 MiB), which all count as memory of this program.
const VECTOR: usize = 1 << 20;

/// Tensors by name, matrices in the memory of the file. Each is made once, so that what is derived from it is
/// found again.
pub(super) struct Weights {
    tensors: HashMap<String, Tensor>,
    /// Runs of rows of them: where a file keeps several matrices in one.
    parts: Mutex<HashMap<(String, usize, usize), Tensor>>,
    /// The names of those that a graph has taken.
    taken: Mutex<HashSet<String>>,
    cache: Arc<ConstCache>,
}

impl Weights {
    pub(super) fn new(gguf: &Gguf, cache: Arc<ConstCache>) -> Result<Self, Error> {
        let mut tensors = HashMap::new();
        for t in gguf.tensors() {
            let dims: Vec<usize> = t.dims.iter().rev().copied().collect();
            let mut tensor = Tensor::from_storage(t.dtype, &dims, t.storage())?;
            // Vectors are added and multiplied in f32.
            if dims.len() < 2 && t.dtype != DType::F32 && t.dtype.is_float() {
                let mut wide = vec![0f32; t.elements()];
                dequantize(t.dtype, &t.data, &mut wide)?;
                tensor = Tensor::from_slice(&dims, &wide)?;
            } else if dims.len() < 2 && t.data.len() <= VECTOR {
                let mut own = AlignedBytes::zeroed(t.data.len())?;
                tensor.storage().read_at(0, &mut own)?;
                tensor = Tensor::from_storage(t.dtype, &dims, Storage::owned(own))?;
            }
            cache.keep(tensor.storage());
            tensors.insert(t.name.clone(), tensor);
        }
        Ok(Self { tensors, parts: Mutex::default(), taken: Mutex::default(), cache })
    }

    /// Whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A tensor, whatever its extents.
    pub(super) fn any(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// A tensor of the given extents, slowest first.
    pub(super) fn get(&self, name: &str, dims: &[usize]) -> Result<Tensor, Error> {
        let tensor =
            self.tensors.get(name).ok_or_else(|| LlmError::MissingTensor(name.to_owned()))?;
        let found = tensor.dims();
        if found != dims {
            let reversed = |dims: &[usize]| dims.iter().rev().copied().collect();
            let (expected, found) = (reversed(dims), reversed(&found));
            return Err(LlmError::TensorShape { tensor: name.to_owned(), expected, found }.into());
        }
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        Ok(tensor.clone())
    }

    /// Says of a tensor, if there is one of this name, that no graph needs it.
    pub(super) fn pass_over(&self, name: &str) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    /// The tensors that no graph has taken, in order: what they hold would not count, whatever it is. Not
    /// among them are factors of rotary positions, which models have for contexts that are not asked for, and
    /// those of blocks of these numbers.
    pub(super) fn left_over(&self, unused: Range<usize>) -> Vec<&str> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_factor = |name: &str| name.contains("rope_freqs") || name.contains("rope_factors_");
        let is_unused = |name: &str| {
            let block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
            block.and_then(|n| n.parse().ok()).is_some_and(|n| unused.contains(&n))
        };
        let expected = |name: &str| taken.contains(name) || is_factor(name) || is_unused(name);
        let names = self.tensors.keys().map(String::as_str);
        let mut names: Vec<&str> = names.filter(|name| !expected(name)).collect();
        sort(&mut names, Ord::cmp);
        names
    }

    /// `count` rows from `first` on of a tensor of the given extents, without a copy.
    pub(super) fn rows(
        &self,
        name: &str,
        dims: &[usize],
        first: usize,
        count: usize,
    ) -> Result<Tensor, Error> {
        let whole = self.get(name, dims)?;
        let key = (name.to_owned(), first, count);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get(&key) {
            return Ok(part.clone());
        }
        let part_dims: Vec<usize> = [&[count], &dims[1..]].concat();
        // Rows are whole blocks, so a part of the rows is a part of the bytes.
        let row = whole.bytes().len() / dims[0].max(1);
        let storage = whole.storage().part(first * row..(first + count) * row)?;
        let part = Tensor::from_storage(whole.dtype(), &part_dims, storage)?;
        self.cache.keep(part.storage());
        parts.insert(key, part.clone());
        Ok(part)
    }

    /// Bytes of the matrices that take part in products: not of one that rows are only looked up in.
    pub(super) fn matrix_bytes(&self) -> usize {
        let tied = !self.has("output.weight");
        let is_looked_up = |name: &str| match name {
            "token_embd.weight" => !tied,
            name => name == "per_layer_token_embd.weight",
        };
        let matrices = self.tensors.iter().filter(|(_, t)| t.dims().len() >= 2);
        let used = matrices.filter(|(name, _)| !is_looked_up(name));
        used.map(|(_, t)| t.bytes().len()).sum()
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> usize {
        self.tensors.values().map(|t| t.bytes().len()).sum()
    }
}
