//! Granite 3 with experts.

use super::{Arch, granite};

pub(super) const GRANITEMOE: Arch =
    Arch { name: "granitemoe", adjust: |_| {}, build: granite::build };
