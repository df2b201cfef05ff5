//! What an operator becomes once it is lowered.

use core::any::Any;
use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use super::{ConstCache, Context, GraphError, Info, Op, TensorId, Way};
use crate::tensor::{AlignedBytes, Shape, Tensor};
use tilewright_kernels::{Choice, Isa, KernelError, Workload};

/// One operation of a plan, ready to run: a kernel with its parameters and packed weights.
///
/// A step is split into units that threads share. It allocates nothing while it runs.
pub trait Step: Send + Sync {
    /// The kernel, as registry, profile and benches name it.
    fn kernel(&self) -> String;

    /// Independent units of work. No two write the same bytes, and the result does not depend on
    /// how they are shared out.
    fn units(&self) -> usize {
        1
    }

    /// The share of all work that each range of units that is run by itself repeats.
    fn repeated(&self) -> f64 {
        0.0
    }

    /// Bytes of scratch memory each thread needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Whether the step reads operand `i` from memory. One that was packed at planning time is not.
    fn reads(&self, i: usize) -> bool {
        let _ = i;
        true
    }

    /// Whether the result may lie in the memory of operand `i`, if both have the same size.
    fn may_overwrite(&self, i: usize) -> bool {
        let _ = i;
        false
    }

    /// Where in the result operand `i` lies as it is, in one piece: bytes from the start. Who plans may have it
    /// computed there, and the step then finds it in its result; without a step if all operands are.
    fn part(&self, i: usize) -> Option<usize> {
        let _ = i;
        None
    }

    /// A step that must be complete before this one begins, and the bytes of its result: it reads the
    /// same operands, and what it writes is an operand of this step, behind the others. It may have
    /// one before it in turn, whose result then comes before its own in the operands of both. Asked
    /// once, when the plan is made.
    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        None
    }

    /// Whether, as a step before another one, it does most of the work of both.
    fn is_main(&self) -> bool {
        false
    }

    /// Whether, as the first step before others, it only begins what somebody else computes, and the next one
    /// waits for it: it runs as soon as operand 0 is there, and the others as late as possible, so that steps
    /// between do not wait. It reads no other operand.
    fn begins(&self) -> bool {
        false
    }

    /// For a step before others: what is computed of the operands that it [reads](Step::reads). Records with the same
    /// of these whose steps before them say the same share that step.
    fn shared(&self) -> Option<String> {
        None
    }

    /// What a tuner could compute in another way, if there is another.
    fn workload(&self) -> Option<Workload> {
        None
    }

    /// Computes `units`.
    ///
    /// # Errors
    /// Data (an index, say) that the operator does not allow. The result is then unspecified.
    ///
    /// # Safety
    /// - Each `src[i]` that [`Step::reads`] points to the whole of operand `i`, `dst` to the whole
    ///   of the result, both as the [`Info`]s that the step was made from say, at addresses that
    ///   are multiples of 64; `scratch` points to [`Step::scratch_bytes`] writable bytes, too.
    /// - `dst` overlaps no operand, save that it may equal one that the step
    ///   [may overwrite](Step::may_overwrite), and that one that is a [part](Step::part) may lie in it as that.
    /// - `units` lies within `0..self.units()`, and no other thread runs one of the same units or
    ///   uses `scratch` meanwhile.
    /// - The CPU has the instruction set that the step was lowered for.
    #[allow(unsafe_code, reason = "kernels take pointers; the duties are above")]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError>;
}

/// Who knows how an op is computed best: a tuning table.
pub trait Choices: Send + Sync {
    /// The best way known for an op that `threads` threads share, if one is known.
    fn choice(&self, isa: Isa, threads: usize, workload: &Workload) -> Option<Choice>;

    /// The best way known for a kernel of a device with so many units, if one is known. Device, with its
    /// driver, and workload are named by the backend.
    fn way(&self, device: &str, units: usize, workload: &str) -> Option<Way> {
        let _ = (device, units, workload);
        None
    }
}

/// A device beside the CPU, asked at planning time for every operation.
pub trait Device: core::fmt::Debug + Send + Sync {
    /// The step that computes an operation there and, should that fail, by `cpu`, the CPU's own step
    /// for it; `cpu` as it is where the device does not take the operation. The new step has the
    /// operands, the scratch memory and the steps before it of `cpu`.
    fn take(&self, op: &Op, cx: &LowerCx<'_>, cpu: Box<dyn Step>) -> Box<dyn Step> {
        let _ = (op, cx);
        cpu
    }

    /// For a device that computes whole graphs: what computes `outputs` there. All tensors are plain.
    /// `choices` is asked before kernels are shaped by rules. `None` from other devices.
    fn program(
        &self,
        cx: &Context,
        outputs: &[TensorId],
        host: Host,
        choices: Option<&dyn Choices>,
    ) -> Option<Result<Box<dyn Program>, GraphError>> {
        let _ = (cx, outputs, host, choices);
        None
    }

    /// Whether [`Device::program`] gives something: layouts of the CPU are then not assigned.
    fn takes_whole_graphs(&self) -> bool {
        false
    }
}

/// What a device may use of the CPU for operations that it does not have.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Instruction set.
    pub isa: Isa,
    /// Threads.
    pub threads: usize,
}

/// A graph made ready on a device.
pub trait Program: Send + Sync {
    /// Names of the leaves that a run is given, with what they are.
    fn inputs(&self) -> &[(String, Info)];

    /// Names of the results, with what they are.
    fn outputs(&self) -> &[(String, Info)];

    /// Its operations in order.
    fn nodes(&self) -> &[ProgramNode];

    /// Computes `results`, which have their sizes and are shared with nobody, from `inputs`, which have
    /// theirs. `times` gets the time of each operation added.
    ///
    /// # Errors
    /// Data that an operator refuses, and what the device meets. What `results` hold is then unspecified.
    fn run(
        &self,
        inputs: &[&Tensor],
        results: &mut [Tensor],
        times: Option<&mut [Duration]>,
    ) -> Result<(), GraphError>;

    /// Bytes on the device for inputs and intermediate tensors.
    fn bytes(&self) -> usize;

    /// Bytes on the device for constants, which other programs may share.
    fn constant_bytes(&self) -> usize;

    /// What keeps its constants on the device: while somebody has it, other programs find them there.
    fn kept(&self) -> Vec<Arc<dyn Any + Send + Sync>>;
}

/// An operation of a [`Program`].
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramNode {
    /// The tensor's name.
    pub name: String,
    /// The operator.
    pub op: String,
    /// The kernel.
    pub kernel: String,
    /// Type and extents of the result.
    pub info: Info,
    /// Multiply-adds.
    pub macs: u64,
    /// Bytes of operands and result, each counted once.
    pub bytes: usize,
    /// Operations whose results it reads.
    pub inputs: Vec<usize>,
}

/// What packs a constant into memory for it.
type Pack<'a, S, T> = dyn Fn(&S, &mut [T]) -> Result<(), GraphError> + 'a;

/// What an operator sees when it chooses its kernel.
pub struct LowerCx<'a> {
    /// Instruction set to use.
    pub isa: Isa,
    /// Threads that will share the step.
    pub threads: usize,
    /// The operands.
    pub src: &'a [Info],
    /// Shapes with strides of the operands; only [`super::ops::cont::Cont`] sees ones that are not
    /// contiguous.
    pub shapes: &'a [Shape],
    /// Values of the operands that are constants.
    pub values: &'a [Option<&'a Tensor>],
    /// The result.
    pub dst: &'a Info,
    /// Where packed weights are kept.
    pub cache: &'a ConstCache,
    /// Who is asked before the plan of a kernel chooses by itself.
    pub choices: Option<&'a dyn Choices>,
}

impl LowerCx<'_> {
    /// The plan for `workload`: as `choices` knows it best, else, or if that choice does not fit,
    /// as the plan chooses by itself.
    ///
    /// # Errors
    /// Those of `otherwise`.
    pub fn tuned<P>(
        &self,
        workload: &Workload,
        with_choice: impl FnOnce(&Choice) -> Result<P, KernelError>,
        otherwise: impl FnOnce() -> Result<P, KernelError>,
    ) -> Result<P, KernelError> {
        // Without tables, what only they ask for is nobody's code.
        let choices = self.choices.filter(|_| cfg!(feature = "tune"));
        let known = choices.and_then(|c| c.choice(self.isa, self.threads, workload));
        known.and_then(|choice| with_choice(&choice).ok()).map_or_else(otherwise, Ok)
    }

    /// Packs a constant operand into `bytes` bytes with `pack(source, packed)`. `format` tells
    /// packings of one source apart.
    ///
    /// # Errors
    /// What `pack` refuses, and lack of memory.
    ///
    /// # Panics
    /// If operand `i` is not a constant.
    pub fn pack(
        &self,
        i: usize,
        format: &str,
        bytes: usize,
        pack: &Pack<'_, Tensor, u8>,
    ) -> Result<Arc<AlignedBytes>, GraphError> {
        let source = self.values[i].expect("a constant operand");
        let format = format!("{format} {:?} {bytes}", source.dims());
        self.cache.packed(format, source.storage(), &mut || {
            source.storage().ready()?;
            let mut out = self.cache.room(bytes)?;
            pack(source, &mut out)?;
            Ok(out)
        })
    }

    /// Packs a constant operand of f32 elements into `len` elements with `pack(source, packed)`.
    /// `format` tells packings of one source apart.
    ///
    /// # Errors
    /// What `pack` refuses, and lack of memory.
    ///
    /// # Panics
    /// If operand `i` is not a constant of f32 elements.
    pub fn pack_f32(
        &self,
        i: usize,
        format: &str,
        len: usize,
        pack: &Pack<'_, [f32], f32>,
    ) -> Result<Arc<AlignedBytes>, GraphError> {
        self.pack(i, format, len * size_of::<f32>(), &|source, out| {
            self.cache.with_f32(source, &mut |from| pack(from, bytemuck::cast_slice_mut(out)))
        })
    }
}
