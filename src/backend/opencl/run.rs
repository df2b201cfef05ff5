//! Runs of planned graphs.

use core::any::Any;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::ops::Check;
use super::program::{OnHost, Place, Planned, Sent, Step, Working};
use super::sys::Submission;
use super::weights::Constant;
use super::{OpenClError, lock};
use crate::backend::cpu::Executor;
use crate::graph::{GraphError, Info, Program, ProgramNode};
use crate::tensor::Tensor;

impl Program for Planned {
    fn inputs(&self) -> &[(String, Info)] {
        &self.inputs
    }

    fn outputs(&self) -> &[(String, Info)] {
        &self.output_infos
    }

    fn nodes(&self) -> &[ProgramNode] {
        &self.nodes
    }

    fn run(
        &self,
        inputs: &[&Tensor],
        results: &mut [Tensor],
        mut times: Option<&mut [Duration]>,
    ) -> Result<(), GraphError> {
        self.check(inputs)?;
        let mut working = lock(&self.host);
        let Working { executor, sent } = &mut *working;
        let mut early: Vec<Tensor> = Vec::with_capacity(self.early.len());
        for (node, step) in &self.early {
            let begin = Instant::now();
            let operands =
                step.operands.iter().map(|(p, info)| Self::known(p, info, inputs, &early));
            let operands: Vec<Tensor> = operands.collect::<Result<_, _>>()?;
            let name = &self.nodes[*node].name;
            let result = Self::compute(executor, step, &operands).map_err(|e| e.at(name))?;
            early.push(result);
            if let Some(times) = &mut times {
                times[*node] += begin.elapsed();
            }
        }
        let mut failed = None;
        let mut to: Vec<&mut [u8]> = Vec::with_capacity(results.len());
        for result in results {
            to.push(result.bytes_mut().expect("results are nobody else's"));
        }
        let early = &early;
        let memory = self.arena.memory();
        let known = |place: &Place, bytes: usize| match place {
            Place::Early(i, _) => &early[*i].bytes()[..bytes],
            Place::Input(i, _) => &inputs[*i].bytes()[..bytes],
            Place::Device(_) | Place::Constant(..) => unreachable!("it is not sent"),
        };
        for (place, at, bytes) in self.sent.iter().flat_map(|sent| &sent.parts) {
            sent[*at..][..*bytes].copy_from_slice(known(place, *bytes));
        }
        let sent = &*sent;
        let submitted = self.shared.queue.submit(|s| {
            if let Some(Sent { at, .. }) = &self.sent {
                s.write(memory, *at, sent)?;
            }
            for (place, at, bytes) in &self.uploads {
                s.write(memory, *at, known(place, *bytes))?;
            }
            let recorded = self.recorded.as_ref().filter(|_| times.is_none());
            if let Some(recorded) = recorded {
                s.replay(recorded)?;
            }
            let one_by_one = if recorded.is_some() { &[] } else { &self.steps[..] };
            for (node, step) in one_by_one {
                let begin = times.is_some().then(Instant::now);
                match step {
                    Step::Kernels(launches) => {
                        launches.iter().try_for_each(|launch| s.launch(launch))?;
                    }
                    Step::Host(step, at) => {
                        let outcome = self.host_step(s, executor, step, *at, inputs, early);
                        if let Err(e) = outcome? {
                            failed = Some(e.at(&self.nodes[*node].name));
                            return Ok(());
                        }
                    }
                }
                if let (Some(times), Some(begin)) = (&mut times, begin) {
                    s.wait()?;
                    times[*node] += begin.elapsed();
                }
            }
            for (output, to) in self.outputs.iter().zip(to) {
                let bytes = to.len();
                match output {
                    Place::Device(at) => s.read(memory, *at, to)?,
                    Place::Constant(root, offset) => {
                        to.copy_from_slice(&self.values[*root].bytes()[*offset..][..bytes]);
                    }
                    Place::Input(i, offset) => {
                        to.copy_from_slice(&inputs[*i].bytes()[*offset..][..bytes]);
                    }
                    Place::Early(i, offset) => {
                        to.copy_from_slice(&early[*i].bytes()[*offset..][..bytes]);
                    }
                }
            }
            Ok(())
        });
        submitted?;
        failed.map_or(Ok(()), Err)
    }

    fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    fn constant_bytes(&self) -> usize {
        self.constants.values().map(Constant::bytes).sum()
    }

    fn kept(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        let constants = self.constants.values().map(Constant::owner);
        constants.chain(self.keep.iter().cloned()).collect()
    }
}

impl Planned {
    /// Computes an operation on the CPU from operands that `get` gives.
    fn compute(
        executor: &mut Executor,
        step: &OnHost,
        operands: &[Tensor],
    ) -> Result<Tensor, GraphError> {
        let given: Vec<&Tensor> = operands.iter().collect();
        let mut results = executor.run(&step.plan, &given, None)?;
        Ok(results.remove(0))
    }

    /// An operand that the host has.
    fn known(
        place: &Place,
        info: &Info,
        inputs: &[&Tensor],
        early: &[Tensor],
    ) -> Result<Tensor, GraphError> {
        let (from, offset) = match place {
            Place::Input(i, offset) => (inputs[*i], *offset),
            Place::Early(i, offset) => (&early[*i], *offset),
            Place::Device(_) | Place::Constant(..) => unreachable!("the host does not have it"),
        };
        let bytes = info.stored_bytes().expect("it has a buffer");
        Ok(Tensor::from_bytes(info.dtype, &info.dims, &from.bytes()[offset..][..bytes])?)
    }

    fn check(&self, inputs: &[&Tensor]) -> Result<(), GraphError> {
        for (input, Check { limit, op, .. }) in &self.checks {
            let numbers = inputs[*input].as_slice::<i32>()?;
            let wrong = numbers.iter().find(|&&n| usize::try_from(n).map_or(true, |n| n >= *limit));
            if let Some(&index) = wrong {
                return Err(GraphError::IndexOutOfRange {
                    op,
                    index: index.into(),
                    extent: *limit,
                });
            }
        }
        Ok(())
    }

    /// One operation on the CPU: waits for its operands, computes, sends its result. The inner result is
    /// what the computation met.
    fn host_step(
        &self,
        s: &mut Submission<'_>,
        executor: &mut Executor,
        step: &OnHost,
        at: usize,
        inputs: &[&Tensor],
        early: &[Tensor],
    ) -> Result<Result<(), GraphError>, OpenClError> {
        let mut operands = Vec::with_capacity(step.operands.len());
        for (place, info) in &step.operands {
            let operand = match place {
                Place::Device(at) => Tensor::zeros(info.dtype, &info.dims)
                    .map_err(GraphError::from)
                    .map(|mut tensor| {
                        let bytes = tensor.bytes_mut().expect("it is new");
                        s.read_now(self.arena.memory(), *at, bytes).map(|()| tensor)
                    }),
                other => Self::known(other, info, inputs, early).map(Ok),
            };
            match operand {
                Ok(tensor) => operands.push(tensor?),
                Err(e) => return Ok(Err(e)),
            }
        }
        match Self::compute(executor, step, &operands) {
            Ok(result) => {
                s.write_now(self.arena.memory(), at, result.bytes())?;
                Ok(Ok(()))
            }
            Err(e) => Ok(Err(e)),
        }
    }
}
