//! Workloads computed in given ways, to be measured.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::ops::{Arg, Call, conv, matmul};
use super::program::launch;
use super::sys::{Launch, Value};
use super::workload::{Kind, MOST_ROWS, Workload};
use super::{OpenClDevice, OpenClError, Region, Shared, lock};
use crate::graph::Way;

/// What operands are filled with: a small normal number, whether it is read as f32, f16, bf16 or as scale and
/// steps of blocks.
const FILL: u8 = 0x3c;

/// The operands of a workload, for all ways of computing it.
pub(super) struct Operands {
    pub(super) x: Arc<Region>,
    pub(super) scale: Arc<Region>,
    pub(super) weights: Vec<Arc<Region>>,
    pub(super) results: Vec<Arc<Region>>,
}

/// A workload with its operands on a device.
pub struct Bench {
    device: Arc<OpenClDevice>,
    workload: Workload,
    operands: Arc<Operands>,
}

/// A [`Bench`] computed in one way.
pub struct Trial {
    way: Way,
    launch: Launch,
    /// Their memory is nobody else's while they live.
    _operands: Arc<Operands>,
}

impl Trial {
    /// The way.
    pub fn way(&self) -> Way {
        self.way
    }
}

/// The product of sizes, in f32 elements.
fn floats(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(size_of::<f32>(), |all, &n| all.checked_mul(n))
}

impl Workload {
    /// Bytes of x, of each matrix of weights and of each result, in panels of any number of rows.
    fn bytes(&self) -> Option<(usize, Vec<usize>, Vec<usize>)> {
        Some(match self.0 {
            Kind::Gemm { batch, m, n, k, .. } => {
                let a = floats(&[batch, m.checked_add(MOST_ROWS)?, k])?;
                (a, vec![floats(&[batch, n, k])?], vec![floats(&[batch, m, n])?])
            }
            Kind::Rows(p) => {
                let matrices = p.n.into_iter().filter(|&n| n > 0);
                let mut weights = Vec::new();
                for n in matrices.clone() {
                    weights.push(p.dtype.bytes_of(n.checked_mul(p.k)?)?.checked_mul(p.batch)?);
                }
                if p.gated {
                    weights.push(weights[0]);
                }
                let results: Option<_> = matrices.map(|n| floats(&[p.batch, p.m, n])).collect();
                (floats(&[p.batch, p.m, p.k])?, weights, results?)
            }
            Kind::Conv(c) => {
                let x = floats(&[c.n, c.groups, c.c, c.input[0], c.input[1]])?;
                let panels = c.k.checked_add(MOST_ROWS)?;
                let weights = floats(&[c.groups, panels, c.c, c.window[0], c.window[1]])?;
                let y = floats(&[c.n, c.groups, c.k, c.output[0], c.output[1]])?;
                (x, vec![weights], vec![y])
            }
        })
    }
}

impl Operands {
    fn new(shared: &Arc<Shared>, workload: &Workload) -> Result<Self, OpenClError> {
        let limit = i32::MAX as usize;
        let too_much = |needed| OpenClError::Memory { needed, used: 0, limit };
        let (x, weights, results) = workload.bytes().ok_or(too_much(usize::MAX))?;
        let take = |bytes: usize| {
            // Kernels count in 32 bits.
            let bytes = Some(bytes).filter(|b| *b <= limit).ok_or(too_much(bytes))?;
            let region = Arc::new(shared.pool.take(bytes.max(1))?);
            let fill = vec![FILL; bytes];
            shared.queue.submit(|s| s.write_now(region.memory(), 0, &fill))?;
            Ok(region)
        };
        let all =
            |bytes: Vec<usize>| bytes.into_iter().map(take).collect::<Result<_, OpenClError>>();
        let scale = match workload.0 {
            Kind::Rows(p) => p.k * size_of::<f32>(),
            _ => 1,
        };
        Ok(Self {
            x: take(x)?,
            scale: take(scale)?,
            weights: all(weights)?,
            results: all(results)?,
        })
    }
}

impl OpenClDevice {
    /// What its plans have asked how to compute, in the order in which it was met.
    pub fn workloads(&self) -> Vec<Workload> {
        lock(&self.shared.asked).clone()
    }

    /// What tuning tables call the device: its name, platform and driver.
    pub fn identity(&self) -> &str {
        &self.shared.identity
    }

    /// Makes a workload ready to be measured.
    ///
    /// # Errors
    /// Lack of memory.
    pub fn bench(self: &Arc<Self>, workload: &Workload) -> Result<Bench, OpenClError> {
        let operands = Arc::new(Operands::new(&self.shared, workload)?);
        Ok(Bench { device: self.clone(), workload: *workload, operands })
    }
}

impl Bench {
    /// Ways that differ in their tiles, the one that is taken without a table first.
    pub fn tiles(&self) -> Vec<Way> {
        let Shared { shape, info, .. } = &*self.device.shared;
        self.workload.tiles(shape, info)
    }

    /// Ways with the tile of `way` that differ otherwise.
    pub fn variants(&self, way: &Way) -> Vec<Way> {
        self.workload.variants(way, &self.device.shared.info)
    }

    /// Builds the kernel of one way.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn trial(&self, way: Way) -> Result<Trial, OpenClError> {
        let shared = &self.device.shared;
        let refused = OpenClError::Call { call: "clEnqueueNDRangeKernel", code: -54 };
        let known = self.workload.allows(&way, &shared.info);
        let call = match self.workload.0 {
            _ if !known => None,
            Kind::Gemm { .. } | Kind::Rows(_) => {
                matmul::trial(&self.workload, &way, &self.operands)
            }
            Kind::Conv(c) => conv::trial(&c, &way, &self.operands),
        };
        let call: Call = call.ok_or(refused)?;
        let memory = |arg| match arg {
            Arg::Memory(region) => Value::Memory(region.memory().clone(), 0),
            Arg::Int(v) => Value::Int(v),
            Arg::Float(v) => Value::Float(v),
            Arg::Local(bytes) => Value::Local(bytes),
            Arg::Numbers(bytes) => Value::Numbers(bytes),
            // Not touched, but something must be there.
            _ => Value::Memory(self.operands.scale.memory().clone(), 0),
        };
        #[allow(unsafe_code, reason = "kernels take memory; the duties are below")]
        // SAFETY: `trial` gives the operands of this workload and its sizes, from which `Workload::bytes` made
        // the operands, for panels of as many rows as any way that is allowed has; kernels stay inside those sizes.
        let launch = unsafe { launch(shared, call, memory) };
        Ok(Trial { way, launch: launch?, _operands: self.operands.clone() })
    }

    /// Computes so many times, and says how long that takes.
    ///
    /// # Errors
    /// What the device meets.
    pub fn time(&self, trial: &Trial, repeats: u32) -> Result<Duration, OpenClError> {
        let begin = Instant::now();
        self.device
            .shared
            .queue
            .submit(|s| (0..repeats).try_for_each(|_| s.launch(&trial.launch)))?;
        Ok(begin.elapsed())
    }
}
