//! Lists of words as vectors.

use std::collections::HashMap;

use super::{NodeCx, OpRow, Outputs};
use crate::graph::ops::tf_idf::TfIdf;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

// `pool_strings` goes with inputs of strings, which are not supported.
pub(super) const ROWS: &[OpRow] = &[OpRow::new(
    "TfIdfVectorizer",
    (1, 1),
    &[
        Attr::int("max_gram_length").required(),
        Attr::int("max_skip_count").required(),
        Attr::int("min_gram_length").required(),
        Attr::string("mode").required().one_of(&["TF", "IDF", "TFIDF"]),
        Attr::ints("ngram_counts").required(),
        Attr::ints("ngram_indexes").required(),
        Attr::ints("pool_int64s"),
        Attr::floats("weights"),
    ],
    tf_idf,
)
.since(9)];

/// Columns of the result at most.
const MOST: usize = 1 << 24;

/// The pool has all sequences of one element, then those of two, ...; `ngram_counts` says where
/// each length begins.
fn tf_idf(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let elements = cx.ints("pool_int64s").unwrap_or_default();
    let columns = cx.ints("ngram_indexes").unwrap_or_default();
    let columns = columns.iter().map(|&c| build::extent(c, "ngram_indexes"));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let starts = cx.ints("ngram_counts").unwrap_or_default();
    let starts = starts.iter().map(|&c| build::extent(c, "ngram_counts"));
    let starts = starts.collect::<Result<Vec<_>, _>>()?;
    let (mut pool, mut column) = (HashMap::new(), columns.iter());
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(elements.len());
        let part = elements.get(start..end).filter(|p| p.len().is_multiple_of(i + 1));
        let part = part.ok_or_else(|| {
            NodeError::invalid(format!("ngram_counts {starts:?} of a pool of {}", elements.len()))
        })?;
        for sequence in part.chunks_exact(i + 1) {
            let &column = column.next().ok_or_else(|| {
                NodeError::invalid("ngram_indexes has fewer elements than the pool has sequences")
            })?;
            pool.insert(sequence.to_vec(), column);
        }
    }
    let count = columns.iter().max().map_or(0, |&most| most.saturating_add(1));
    if count > MOST {
        return Err(NodeError::unsupported(format!("{count} columns")));
    }
    let length = |name: &str| build::extent(cx.int(name, 0), name);
    let lengths = (length("min_gram_length")?, length("max_gram_length")?);
    let skips = length("max_skip_count")?;
    let mode = cx.string("mode", "TF");
    let weights = match mode.as_str() {
        "TF" => Vec::new(),
        _ => cx.floats("weights").unwrap_or_default(),
    };
    let op = TfIdf { pool, columns: count, lengths, skips, once: mode == "IDF", weights };
    Ok(vec![cx.op(op, &[x])?])
}
