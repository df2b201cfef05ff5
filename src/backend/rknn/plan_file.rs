//! Files that say which products go to the NPU, in the format of `mat_kernel_size.json`: an array `pairs` of
//! objects with `src0` (`row`, `col`: rows of activations, sums), `src1` (sums, columns) and a `name`. Other
//! keys mean nothing.

use std::path::Path;

use serde_json::Value;

use super::planner::{MAX_ROWS, bucket};
use super::{RknnError, Want};

/// The products of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    pairs: Vec<Pair>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    /// Rows, sums, columns; 0 for any.
    sizes: [usize; 3],
    /// May contain `*`; empty for any.
    name: String,
}

impl PlanFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`RknnError::PlanFile`] with what is wrong and where.
    pub fn read(path: &Path) -> Result<Self, RknnError> {
        let fail = |reason: String| RknnError::PlanFile { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        Self::parse(&text).map_err(fail)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let pairs = file.get("pairs").and_then(Value::as_array).ok_or("it has no array `pairs`")?;
        let pair = |(i, pair): (usize, &Value)| {
            let number = |matrix: &str, side: &str| {
                let number = pair.get(matrix).and_then(|m| m.get(side)).and_then(Value::as_u64);
                let number = number.and_then(|n| usize::try_from(n).ok());
                number.ok_or_else(|| format!("pair {i} has no number `{matrix}.{side}`"))
            };
            let [m, k, sums, n] = [
                number("src0", "row")?,
                number("src0", "col")?,
                number("src1", "row")?,
                number("src1", "col")?,
            ];
            if k != sums {
                return Err(format!("pair {i} has {k} columns of `src0`, {sums} rows of `src1`"));
            }
            let name = match pair.get("name") {
                None => String::new(),
                Some(Value::String(name)) => name.clone(),
                Some(other) => return Err(format!("pair {i} has the name {other}, not a text")),
            };
            Ok(Pair { sizes: [m, k, n], name })
        };
        let pairs = pairs.iter().enumerate().map(pair).collect::<Result<_, _>>()?;
        Ok(Self { pairs })
    }

    /// Whether a product is one of them: sums and columns are the same, rows fall into the same bucket, and
    /// the name, where both are known, fits.
    pub(super) fn has(&self, want: &Want<'_>) -> bool {
        let rows = |n: usize| if n > MAX_ROWS { usize::MAX } else { bucket(n) };
        self.pairs.iter().any(|pair| {
            let [m, k, n] = pair.sizes;
            (m == 0 || rows(m) == rows(want.rows))
                && (k == 0 || k == want.k)
                && (n == 0 || n == want.n)
                && (pair.name.is_empty() || want.name.is_none_or(|name| fits(&pair.name, name)))
        })
    }
}

/// Whether a name is that of a pattern, in which `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(rows: usize, k: usize, n: usize, name: Option<&str>) -> Want<'_> {
        Want { rows, k, n, name, stored_bytes: 0 }
    }

    #[test]
    fn pairs_are_a_filter() {
        let plan = PlanFile::parse(
            r#"{"pairs": [
                {"src0": {"row": 1, "col": 2048}, "src1": {"row": 2048, "col": 8192}, "name": "ffn_up-0"},
                {"src0": {"row": 40, "col": 64}, "src1": {"row": 64, "col": 96}, "name": "ffn_*-1*"},
                {"src0": {"row": 0, "col": 0}, "src1": {"row": 0, "col": 7}}
            ], "wrong_pairs": [{}]}"#,
        )
        .unwrap();
        assert!(plan.has(&want(1, 2048, 8192, Some("ffn_up-0"))));
        assert!(plan.has(&want(1, 2048, 8192, None)));
        assert!(!plan.has(&want(1, 2048, 8192, Some("ffn_up-1"))));
        assert!(!plan.has(&want(2, 2048, 8192, Some("ffn_up-0"))));
        assert!(plan.has(&want(33, 64, 96, Some("ffn_gate-12"))), "a row of the same bucket");
        assert!(!plan.has(&want(32, 64, 96, Some("ffn_gate-12"))));
        assert!(!plan.has(&want(64, 64, 96, Some("attn-1"))));
        assert!(plan.has(&want(999, 5, 7, Some("x"))));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("", "EOF"),
            ("{}", "no array"),
            (r#"{"pairs": [{}]}"#, "pair 0 has no number `src0.row`"),
            (r#"{"pairs": [{"src0": {"row": -1}}]}"#, "pair 0 has no number `src0.row`"),
            (
                r#"{"pairs": [{"src0": {"row": 1, "col": 2}, "src1": {"row": 3, "col": 4}}]}"#,
                "pair 0 has 2 columns of `src0`, 3 rows",
            ),
            (
                r#"{"pairs": [{"src0": {"row": 1, "col": 2}, "src1": {"row": 2, "col": 4}, "name": 1}]}"#,
                "pair 0 has the name 1",
            ),
        ] {
            let found = PlanFile::parse(text).unwrap_err();
            assert!(found.contains(reason), "{found}");
        }
    }
}
