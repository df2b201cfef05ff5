//! ERNIE 4.5 with experts behind the first layers, and one that all tokens go through beside them.

use super::{Arch, llama};

pub(super) const ERNIE4_5_MOE: Arch = Arch { name: "ernie4_5-moe", ..llama::LLAMA };
