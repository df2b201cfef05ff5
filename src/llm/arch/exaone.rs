//! EXAONE 3 and 3.5: as Llama, with halves that turn together.

use super::{Arch, qwen2};

pub(super) const EXAONE: Arch = Arch { name: "exaone", ..qwen2::QWEN2 };
