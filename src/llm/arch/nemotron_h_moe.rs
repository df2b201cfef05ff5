//! Nemotron 3 with experts: Nemotron-H, of which more is in the file.

use super::{Arch, nemotron_h};

pub(super) const NEMOTRON_H_MOE: Arch =
    Arch { name: "nemotron_h_moe", adjust: nemotron_h::adjust, build: nemotron_h::build };
