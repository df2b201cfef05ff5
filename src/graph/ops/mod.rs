//! The operators: one file each, with attributes, shape rule, reference and choice of kernel.
//!
//! An operator is a value that holds its attributes and implements [`Operator`]. Adding one means
//! writing its file and naming it in the list at the end of this one, in the set of a feature. Importers
//! then need one row to reach it.

mod byte_product;
pub(crate) mod elements;
mod kv_attention_steps;
mod plan_step;
mod plane;
mod quantization;
pub mod requantize;
mod sampling;
pub mod windows;

use super::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};

/// What a graph needs to know of an operator.
///
/// Operands are contiguous: the planner puts a [`cont::Cont`] in front of operands that are not.
/// All shapes are slowest first.
pub trait Operator {
    /// Name in errors, profiles and listings.
    fn name(&self) -> &'static str;

    /// Type, shape and layout of the result.
    ///
    /// # Errors
    /// Operand types, shapes or attributes that the operator does not allow.
    fn infer(&self, src: &[Info]) -> Result<Info, GraphError>;

    /// The reference: computes the result from its definition, on operands in
    /// [`Layout::Plain`]. Also folds constants, and computes where [`Operator::lower`] has no
    /// kernel.
    ///
    /// # Errors
    /// Types without an implementation, and data (indices) that are out of range.
    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError>;

    /// The kernel that computes the operator for these operands, or `None` to use the reference. The result
    /// has elements: others need no step.
    ///
    /// # Errors
    /// Parameters that a kernel refuses.
    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let _ = cx;
        Ok(None)
    }

    /// In which layouts the operator wants its operands, and gives its result.
    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let _ = cx;
        LayoutRule::Plain
    }

    /// Whether it reads no more of its first operand than the result has: some rows of a table.
    fn looks_up(&self) -> bool {
        false
    }

    /// Multiply-adds for these operands; 0 for operators that only move or map elements.
    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let _ = (src, dst);
        0
    }
}

/// What an operator sees when it states its wish for layouts.
pub struct RuleCx<'a> {
    /// The operands, in the layouts they have now.
    pub src: &'a [Info],
    /// The result.
    pub dst: &'a Info,
    /// Which operands are constants.
    pub constant: &'a [bool],
    /// Whether all that read the result would have it plain. Costs as much as its readers have operands.
    pub plain_result: &'a dyn Fn() -> bool,
}

/// An operator's wish for layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutRule {
    /// All operands and the result are plain.
    Plain,
    /// The listed operands must have these layouts (the others stay plain); the result is in
    /// [`Layout::Blocked`].
    Blocked(Vec<(usize, Layout)>),
    /// Element by element: if one of the listed operands is blocked, the others of the list are
    /// made so and the result is blocked; otherwise all is plain.
    Follow(Vec<usize>),
}

macro_rules! ops {
    ($($feature:tt { $($file:ident :: $name:ident),* $(,)? })*) => {
        $($(pub mod $file;)*)*

        /// An operator with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is documented at the type it holds")]
        #[non_exhaustive]
        pub enum Op {
            /// Data from outside: an input, a constant, a parameter.
            Leaf,
            /// Another tensor's data under other extents and strides.
            View(&'static str),
            $($($name($file::$name),)*)*
        }

        impl Op {
            /// The operator's behaviour; `None` for leaves and views, which compute nothing.
            pub fn operator(&self) -> Option<&dyn Operator> {
                match self {
                    Self::Leaf | Self::View(_) => None,
                    $($(Self::$name(op) => Some(built!($feature $name op)),)*)*
                }
            }
        }

        $($(impl From<$file::$name> for Op {
            fn from(op: $file::$name) -> Self { Self::$name(op) }
        })*)*
    };
}

impl Op {
    /// Name in errors, profiles and listings.
    pub fn name(&self) -> &'static str {
        match self.operator() {
            Some(op) => op.name(),
            None => match self {
                Self::View(what) => what,
                _ => "leaf",
            },
        }
    }
}

/// Checks the number of operands.
pub(crate) fn expect_operands(
    op: &'static str,
    src: &[Info],
    range: core::ops::RangeInclusive<usize>,
    expected: &'static str,
) -> Result<(), GraphError> {
    if range.contains(&src.len()) {
        Ok(())
    } else {
        Err(GraphError::OperandCount { op, expected, found: src.len() })
    }
}

/// The behaviour of an operator: its own, or that of one that the build lacks. Its code is then nobody's,
/// and left out.
macro_rules! built {
    (always $name:ident $op:ident) => {
        $op
    };
    ($feature:tt $name:ident $op:ident) => {
        if cfg!(feature = $feature) {
            $op
        } else {
            &Absent { op: stringify!($name), feature: $feature }
        }
    };
}

/// An operator whose feature this build lacks: it is refused where it is built.
#[derive(Debug)]
struct Absent {
    op: &'static str,
    feature: &'static str,
}

impl Absent {
    fn error<T>(&self) -> Result<T, GraphError> {
        Err(GraphError::NotBuilt { what: self.op, feature: self.feature })
    }
}

impl Operator for Absent {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, _src: &[Info]) -> Result<Info, GraphError> {
        self.error()
    }

    fn eval(&self, _src: &[View<'_>], _dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        self.error()
    }
}

ops! {
    always {
        binary::Binary,
        cast::Cast,
        concat::Concat,
        cont::Cont,
        conv::Conv,
        conv_pool::ConvPool,
        matmul::MatMul,
        pad::Pad,
        pool::Pool,
        reduce::Reduce,
        relayout::Relayout,
        softmax::Softmax,
        unary::Unary,
    }
    "ops-int8" {
        dequantize::Dequantize,
        fake_quantize::FakeQuantize,
        lookup::Lookup,
        qbinary::QBinary,
        qconv::QConv,
        qmatmul::QMatMul,
        qpool::QPool,
        quant_range::QuantRange,
        quantize::Quantize,
        scaled_matmul::ScaledMatMul,
    }
    "ops-more" {
        accumulate::Accumulate,
        arg_reduce::ArgReduce,
        attention::Attention,
        best::Best,
        bit_cast::BitCast,
        bits::Bits,
        bits_to_blocks::BitsToBlocks,
        block_matmul::BlockMatMul,
        col2im::Col2Im,
        compare::Compare,
        conv_nd::ConvNd,
        coupling::Coupling,
        deform_columns::DeformColumns,
        det::Det,
        dft::Dft,
        embedding::Embedding,
        expert_order::ExpertOrder,
        experts::Experts,
        extend::Extend,
        gather::Gather,
        gather_elements::GatherElements,
        gather_nd::GatherNd,
        glu::Glu,
        grid_sample::GridSample,
        inverse::Inverse,
        kv_attention::KvAttention,
        kv_conv::KvConv,
        kv_delta::KvDelta,
        linear_attention::LinearAttention,
        math::Math,
        nibbles_to_blocks::NibblesToBlocks,
        nll_loss::NllLoss,
        norm::Norm,
        one_hot::OneHot,
        pool_nd::PoolNd,
        random::Random,
        recurrent::Recurrent,
        resize::Resize,
        reverse_sequence::ReverseSequence,
        roi_align::RoiAlign,
        roi_pool::RoiPool,
        rope::Rope,
        rope_table::RopeTable,
        scatter_elements::ScatterElements,
        scatter_nd::ScatterNd,
        select::Select,
        special::Special,
        tf_idf::TfIdf,
        topk::TopK,
        trees::Trees,
        trilu::Trilu,
        unpack_bits::UnpackBits,
    }
}
