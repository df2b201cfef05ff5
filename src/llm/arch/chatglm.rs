//! GLM 3, GLM 4 of 2024 and GLM-Edge: as Llama, with one matrix for queries, keys and values, whose biases are there, and
//! one for gate and up; of each head a part turns.

use super::{Arch, llama};

pub(super) const CHATGLM: Arch = Arch { name: "chatglm", ..llama::LLAMA };
