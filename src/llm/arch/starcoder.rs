//! StarCoder (Li et al. 2023): as GPT-2, with one head of keys and values.

use super::{Arch, gpt2};

pub(super) const STARCODER: Arch = Arch { name: "starcoder", ..gpt2::GPT2 };
