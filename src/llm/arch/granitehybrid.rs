//! Granite 4: as Granite 3, with or without experts, but most layers remember by the rule of Mamba-2 in place of
//! attending.

use super::{Arch, granite, remember};

pub(super) const GRANITEHYBRID: Arch =
    Arch { name: "granitehybrid", adjust: remember::by_adding, build: granite::build };
