//! The operators: one table of rows, and the functions that build graph operations.
//!
//! To add an operator, write its function in the file of its kind and its row beside it. A row says
//! which versions of the operator set it serves, how many inputs and outputs a node may have, and
//! every attribute with its type; what a row does not name is reported when a model is loaded.

use core::ops::RangeInclusive;

use super::attr::{Attr, Attrs};
use super::build::NodeCx;
use crate::graph::TensorId;
use crate::import::{DataError, NodeError};
use crate::tensor::Tensor;

mod activation;
mod algebra;
mod arithmetic;
mod attention;
mod cast;
mod constant;
mod contrib;
mod contrib_attention;
mod contrib_diffusion;
mod contrib_experts;
mod contrib_grouped;
mod contrib_more;
mod contrib_quantized;
mod contrib_rotary;
mod control;
mod conv;
mod conv_transpose;
mod depth;
mod dynamic;
mod host;
mod indexing;
mod loss;
mod math;
mod matmul;
mod ml;
mod ml_svm;
mod ml_trees;
mod normalize;
mod norms;
mod old;
mod pad;
mod pool;
mod quantize;
mod random;
mod range;
mod recent;
mod recurrent;
mod reduce;
mod resize;
mod sampling;
mod select;
pub(super) mod sequence;
mod shape;
mod signal;
mod slice;
#[cfg(test)]
mod tests;
mod text;
mod unroll;
mod volume;
mod windows;

pub(super) use control::{enough, truth};
pub(super) use host::HostCx;
pub(super) use ml::ZIP_MAP;

/// What a build function gives: the outputs of the node.
type Outputs = Result<Vec<TensorId>, NodeError>;

/// What a function that computes a node gives: the outputs of the node.
pub(super) type Tensors = Result<Vec<Tensor>, NodeError>;

/// One operator in a range of operator sets.
pub(super) struct OpRow {
    /// The operator.
    pub(super) name: &'static str,
    /// Its domain; empty is ONNX itself.
    pub(super) domain: &'static str,
    /// First and last operator set. There are hundreds of rows: small numbers are small.
    opsets: (u8, u8),
    /// Fewest and most inputs; [`MANY`] for any number.
    inputs: (u8, u8),
    /// Fewest and most outputs.
    outputs: (u8, u8),
    /// Outputs that are computed; others must not be used.
    computed_outputs: u8,
    /// Inputs whose values must be known when the graph is built.
    pub(super) known: &'static [usize],
    /// Attributes.
    pub(super) attrs: &'static [Attr],
    /// Computes the node by itself, where the shapes of results depend on what is in the operands.
    pub(super) host: Option<fn(&HostCx<'_>) -> Tensors>,
    /// Builds the node.
    pub(super) build: fn(&mut NodeCx<'_>) -> Outputs,
}

impl OpRow {
    /// An operator of all operator sets, with one output.
    const fn new(
        name: &'static str,
        inputs: (u8, u8),
        attrs: &'static [Attr],
        build: fn(&mut NodeCx<'_>) -> Outputs,
    ) -> Self {
        Self {
            name,
            domain: "",
            opsets: (1, u8::MAX),
            inputs,
            outputs: (1, 1),
            computed_outputs: 1,
            known: &[],
            attrs,
            host: None,
            build,
        }
    }

    /// As [`OpRow::new`], for results whose shapes depend on what is in the operands.
    const fn on_host(
        name: &'static str,
        inputs: (u8, u8),
        attrs: &'static [Attr],
        compute: fn(&HostCx<'_>) -> Tensors,
    ) -> Self {
        Self { host: Some(compute), ..Self::new(name, inputs, attrs, host::fold) }
    }

    /// The domain, with operator sets of its own.
    const fn domain(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }

    /// The first operator set.
    const fn since(self, since: u8) -> Self {
        Self { opsets: (since, self.opsets.1), ..self }
    }

    /// The last operator set.
    const fn until(self, until: u8) -> Self {
        Self { opsets: (self.opsets.0, until), ..self }
    }

    /// Up to `most` outputs, of which the first `computed` are computed.
    const fn outputs(self, most: u8, computed: u8) -> Self {
        Self { outputs: (1, most), computed_outputs: computed, ..self }
    }

    /// Inputs whose values must be known when the graph is built.
    const fn known(self, known: &'static [usize]) -> Self {
        Self { known, ..self }
    }

    /// The operator sets.
    pub(super) fn opsets(&self) -> RangeInclusive<i64> {
        i64::from(self.opsets.0)..=match self.opsets.1 {
            u8::MAX => i64::MAX,
            last => i64::from(last),
        }
    }

    /// How many inputs a node may have.
    pub(super) fn inputs(&self) -> RangeInclusive<usize> {
        usize::from(self.inputs.0)..=most(self.inputs.1)
    }

    /// How many outputs a node may have.
    pub(super) fn outputs_allowed(&self) -> RangeInclusive<usize> {
        usize::from(self.outputs.0)..=most(self.outputs.1)
    }

    /// How many outputs are computed; others must not be used.
    pub(super) fn computed_outputs(&self) -> usize {
        most(self.computed_outputs)
    }

    /// Whether the result depends on the shape of the input only.
    pub(super) fn is_about_shapes(&self) -> bool {
        matches!(self.name, "Shape" | "Size" | "SequenceLength")
    }

    /// Whether the node, once all that it reads is there, can be run by itself.
    pub(super) fn runs_alone(&self) -> bool {
        /// Operators that only move elements, to shapes that an operand says.
        const MOVE: [&str; 9] = [
            "ConstantOfShape",
            "Expand",
            "Range",
            "Reshape",
            "Slice",
            "Split",
            "Squeeze",
            "Tile",
            "Unsqueeze",
        ];
        self.host.is_some() || control::has_bodies(self) || MOVE.contains(&self.name)
    }

    /// Whether the node is a constant, which the loader reads itself.
    pub(super) fn is_constant(&self) -> bool {
        self.name == "Constant"
    }
}

impl core::fmt::Debug for OpRow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

/// Any number of inputs or outputs.
const MANY: u8 = u8::MAX;

/// A number of inputs or outputs.
fn most(number: u8) -> usize {
    if number == MANY { usize::MAX } else { usize::from(number) }
}

/// Files of rows, in sets that features add. Of a file that a build lacks there are the names alone.
macro_rules! table {
    (always [$($base:ident)*] $($feature:tt [$($file:ident)*])*) => {
        /// The table.
        const TABLE: &[&[OpRow]] = &[
            $($base::ROWS,)*
            $($(if cfg!(feature = $feature) { $file::ROWS } else { &[] },)*)*
        ];

        /// Features that the build lacks, and operators that they would add, each followed by a space.
        const ABSENT: &[(&str, &[u8])] = &[$($((
            $feature,
            if cfg!(feature = $feature) {
                &[]
            } else {
                const { &names::<{ names_len($file::ROWS) }>($file::ROWS) }
            },
        ),)*)*];
    };
}

table! {
    always [
        activation arithmetic cast constant conv matmul normalize pad pool reduce shape slice
    ]
    "ops-int8" [quantize]
    "ops-more" [
        algebra attention contrib contrib_attention contrib_diffusion contrib_experts contrib_grouped
        contrib_more contrib_quantized contrib_rotary conv_transpose depth indexing loss math ml ml_svm ml_trees norms old random range recent
        recurrent resize sampling select signal text windows
    ]
    "ops-control" [control dynamic sequence]
}

/// Bytes of the names of operators, each followed by a space.
#[expect(
    clippy::indexing_slicing,
    reason = "it is a constant: what is out of bounds does not compile"
)]
const fn names_len(rows: &[OpRow]) -> usize {
    let (mut len, mut i) = (0, 0);
    while i < rows.len() {
        len += rows[i].name.len() + 1;
        i += 1;
    }
    len
}

/// The names of operators, each followed by a space: one text, as a table of texts is several times as large.
#[expect(
    clippy::indexing_slicing,
    reason = "it is a constant: what is out of bounds does not compile"
)]
const fn names<const LEN: usize>(rows: &[OpRow]) -> [u8; LEN] {
    let (mut names, mut at, mut i) = ([b' '; LEN], 0, 0);
    while i < rows.len() {
        let (name, mut j) = (rows[i].name.as_bytes(), 0);
        while j < name.len() {
            names[at] = name[j];
            (at, j) = (at + 1, j + 1);
        }
        (at, i) = (at + 1, i + 1);
    }
    names
}

/// All rows of this build.
pub(super) fn rows() -> impl Iterator<Item = &'static OpRow> {
    TABLE.iter().copied().flatten()
}

/// An operator that this build lacks and another has: its name, and the feature that adds it.
pub(super) fn absent(name: &str) -> Option<(&'static str, &'static str)> {
    ABSENT.iter().find_map(|&(feature, names)| {
        let found = names.split(|&b| b == b' ').find(|n| *n == name.as_bytes())?;
        Some((core::str::from_utf8(found).ok()?, feature))
    })
}

/// The row of an operator in an operator set of a domain.
pub(super) fn find(domain: &str, name: &str, opset: i64) -> Option<&'static OpRow> {
    rows().find(|r| r.domain == domain && r.name == name && r.opsets().contains(&opset))
}

/// The value of a `Constant` node; `None` if no supported attribute gives one.
pub(super) fn constant_value(attrs: &Attrs) -> Option<Result<Tensor, DataError>> {
    constant::value(attrs)
}
