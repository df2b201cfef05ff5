//! Mamba-2 (Dao and Gu 2024): layers that remember, and do nothing else.

use super::{Arch, nemotron_h, remember};

pub(super) const MAMBA2: Arch =
    Arch { name: "mamba2", adjust: remember::by_adding, build: nemotron_h::build };
