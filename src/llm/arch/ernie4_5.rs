//! ERNIE 4.5, the dense ones: as Llama.

use super::{Arch, llama};

pub(super) const ERNIE4_5: Arch = Arch { name: "ernie4_5", ..llama::LLAMA };
