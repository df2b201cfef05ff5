//! Collects what a model needs and the importer lacks, to report all of it at once.

use std::collections::BTreeMap;

use super::{ImportError, Missing, MissingKind};

/// Users named per kind; the rest is counted.
const USERS: usize = 3;

/// Kinds told apart; there are fewer operators and attributes than that in all of ONNX, so only a
/// file made for the purpose has more.
const KINDS: usize = 1024;

/// What is missing so far.
#[derive(Default)]
pub(in crate::import) struct MissingList(BTreeMap<MissingKind, (usize, Vec<String>)>);

impl MissingList {
    /// Notes that `user` needs something.
    pub(in crate::import) fn add(&mut self, kind: MissingKind, user: &str) {
        if self.0.len() >= KINDS && !self.0.contains_key(&kind) {
            return;
        }
        let (count, users) = self.0.entry(kind).or_default();
        *count += 1;
        if users.len() < USERS {
            users.push(user.to_owned());
        }
    }

    /// The error that lists everything, if there is anything.
    pub(in crate::import) fn finish(self) -> Result<(), ImportError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let list = self.0.into_iter();
        let list = list.map(|(kind, (count, users))| Missing { kind, count, users });
        Err(ImportError::Unsupported(list.collect()))
    }
}
