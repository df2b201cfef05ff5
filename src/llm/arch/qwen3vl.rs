//! Qwen 3 VL, its text part: as Qwen 3. The positions of a text are the same in every section of its heads.

use super::{Arch, qwen3};

pub(super) const QWEN3VL: Arch = Arch { name: "qwen3vl", ..qwen3::QWEN3 };
