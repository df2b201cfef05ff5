//! InternLM 2 and 3: as Llama, once the file has a matrix for each of queries, keys and values.

use super::{Arch, llama};

pub(super) const INTERNLM2: Arch = Arch { name: "internlm2", ..llama::LLAMA };
