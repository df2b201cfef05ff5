//! Qwen 2 VL and 2.5 VL, their text part: as Qwen 2. The positions of a text are the same in every section of its
//! heads.

use super::{Arch, qwen2};

pub(super) const QWEN2VL: Arch = Arch { name: "qwen2vl", ..qwen2::QWEN2 };
