//! The thread that owns a core: contexts, memory and packed weights live and end with it.

use core::ops::Range;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::chip::{Chip, Numbers};
use super::pack::{PackedA, PackedB, ends, is_marked, mark, pack_b, unpack_c, wrong_row};
use super::sys::{Context, Library, Memory, Which};
use super::{RknnError, Rows};
use tilewright_kernels::Isa;

/// Most contexts of a core, each with two pieces of memory.
const CONTEXTS: usize = 64;

/// Rows, columns and types of the context through which memory is allocated.
const ALLOCATOR: [usize; 3] = [32, 32, 32];

/// What of a product one core computes.
pub(super) struct Job {
    pub(super) weight: u64,
    pub(super) source: Arc<dyn Rows>,
    pub(super) numbers: Numbers,
    /// Activations per segment of K.
    pub(super) a: Arc<Vec<PackedA>>,
    pub(super) segments: Arc<Vec<Range<usize>>>,
    pub(super) slices: Vec<Range<usize>>,
    pub(super) rows: usize,
    pub(super) bucket: usize,
    /// Whether results are compared with their check sums.
    pub(super) verify: bool,
    pub(super) reply: Sender<Reply>,
}

/// Rows by columns of a slice, the sum over all segments, scaled.
pub(super) struct Piece {
    pub(super) columns: Range<usize>,
    pub(super) values: Vec<f32>,
}

impl Piece {
    /// Copies it to its columns of a result with `n`.
    pub(super) fn copy(&self, n: usize, y: &mut [f32]) {
        let columns = self.columns.start..self.columns.end.min(n);
        for (row, y) in self.values.chunks(self.columns.len()).zip(y.chunks_mut(n)) {
            y[columns.clone()].copy_from_slice(&row[..columns.len()]);
        }
    }
}

/// What a core answers.
pub(super) struct Reply {
    pub(super) core: usize,
    pub(super) outcome: Result<Vec<Piece>, RknnError>,
    /// Of weights that were packed for it: squares of what rounding changed, and of the elements.
    pub(super) lost: [f64; 2],
}

/// What the owner says when it has started: texts of the versions, if the library tells them.
pub(super) type Started = Result<Option<[String; 2]>, RknnError>;

/// What a thread is for, and with what.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) chip: &'static Chip,
    pub(super) core: usize,
    /// Most bytes of packed weights.
    pub(super) budget: usize,
    /// Address spaces, and most bytes of packed weights in each.
    pub(super) domains: usize,
    pub(super) domain_bytes: usize,
    /// Instruction set of the kernels that pack.
    pub(super) isa: Isa,
}

/// A handle on the thread. Dropping it ends the thread when its last job is done, and waits for
/// that, unless the core has been given up.
pub(super) struct Owner {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Owner {
    /// Starts the thread. The receiver gets one message.
    pub(super) fn start(
        library: Arc<Library>,
        settings: Settings,
    ) -> Result<(Self, Receiver<Started>), RknnError> {
        let core = settings.core;
        let (jobs, work) = mpsc::channel::<Job>();
        let (ready, started) = mpsc::channel();
        let body = move || {
            let mut core = match Core::new(library, settings) {
                Ok(core) => core,
                Err(e) => {
                    let _ = ready.send(Err(e));
                    return;
                }
            };
            let _ = ready.send(Ok(core.allocators[0].versions()));
            while let Some(job) = soon(&work).or_else(|| work.recv().ok()) {
                let outcome = core.product(&job);
                // The activations are the caller's again before it hears of the result.
                let reply = job.reply.clone();
                drop(job);
                // Whoever asked may have given up.
                let lost = core::mem::take(&mut core.lost);
                let _ = reply.send(Reply { core: core.settings.core, outcome, lost });
            }
        };
        let builder = thread::Builder::new().name(format!("rknn-core-{core}"));
        let thread = crate::spawn::thread(builder, body).map_err(|_| RknnError::Unavailable)?;
        Ok((Self { jobs: Some(jobs), thread: Some(thread) }, started))
    }

    /// Hands a job over; gives it back if the thread has ended.
    pub(super) fn send(&self, job: Job) -> Result<(), RknnError> {
        let jobs = self.jobs.as_ref().ok_or(RknnError::Unavailable)?;
        jobs.send(job).map_err(|_| RknnError::Unavailable)
    }

    /// Whether it was left to itself.
    pub(super) fn is_given_up(&self) -> bool {
        self.thread.is_none()
    }

    /// Leaves the thread to itself, with all that it owns: the NPU may still write there.
    pub(super) fn abandon(&mut self) {
        self.thread = None;
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been answered for by the missing reply.
            let _ = thread.join();
        }
    }
}

/// How long a thread that waits for a product looks for it before it sleeps. Products of a layer follow each other
/// closely, and to be woken takes longer than this where cores sleep deeply, or are somebody else's meanwhile.
const LOOKED_FOR: Duration = Duration::from_micros(20);

/// A message that comes soon. Others may use the core meanwhile.
fn soon<T>(from: &Receiver<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        match from.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Empty) if begin.elapsed() < LOOKED_FOR => thread::yield_now(),
            Err(_) => return None,
        }
    }
}

/// Which packed weights: tensor, first row, first column, form.
type Key = (u64, Range<usize>, Range<usize>, Numbers);

struct Stored {
    memory: Memory,
    domain: usize,
    packed: PackedB,
    used: u64,
}

struct Bound {
    // Before the memory, which it is bound to.
    context: Context,
    a: Memory,
    c: Memory,
    b: Option<Key>,
    used: u64,
}

/// Shape, form, and address space of a context.
type Form = ([usize; 3], Numbers, usize);

/// What the thread owns. Fields end in this order: allocators outlive what they allocated.
struct Core {
    contexts: HashMap<Form, Bound>,
    weights: HashMap<Key, Stored>,
    /// One per address space, with the bytes of weights there.
    allocators: Vec<Context>,
    stored_in: Vec<usize>,
    lost: [f64; 2],
    library: Arc<Library>,
    settings: Settings,
    stored: usize,
    clock: u64,
}

impl Core {
    fn new(library: Arc<Library>, settings: Settings) -> Result<Self, RknnError> {
        let mask = (settings.chip.cores > 1).then_some(settings.core);
        let allocator =
            |domain| Context::new(&library, ALLOCATOR, Numbers::F16.code(), mask, domain);
        let allocators = (0..settings.domains).map(allocator).collect::<Result<Vec<_>, _>>()?;
        let (contexts, weights) = (HashMap::new(), HashMap::new());
        let (stored_in, lost) = (vec![0; settings.domains], [0.0; 2]);
        let (stored, clock) = (0, 0);
        Ok(Self {
            contexts,
            weights,
            allocators,
            stored_in,
            lost,
            library,
            settings,
            stored,
            clock,
        })
    }

    fn product(&mut self, job: &Job) -> Result<Vec<Piece>, RknnError> {
        let slice = |columns: &Range<usize>| {
            let mut values = vec![0f32; job.rows * columns.len()];
            for (a, segment) in job.a.iter().zip(job.segments.iter()) {
                self.run(job, a, segment, columns, &mut values)?;
            }
            Ok(Piece { columns: columns.clone(), values })
        };
        job.slices.iter().map(slice).collect()
    }

    /// Adds the product of one segment to the result of one slice.
    fn run(
        &mut self,
        job: &Job,
        a: &PackedA,
        segment: &Range<usize>,
        columns: &Range<usize>,
        values: &mut [f32],
    ) -> Result<(), RknnError> {
        self.clock += 1;
        let (clock, numbers) = (self.clock, job.numbers);
        let key = (job.weight, segment.clone(), columns.clone(), numbers);
        let domain = self.store(&key, &*job.source)?;
        let form = ([job.bucket, segment.len(), columns.len()], numbers, domain);
        self.open(form)?;
        let (Some(bound), Some(weight)) =
            (self.contexts.get_mut(&form), self.weights.get_mut(&key))
        else {
            unreachable!("both have just been made");
        };
        (bound.used, weight.used) = (clock, clock);
        if bound.b.as_ref() != Some(&key) {
            bound.b = None;
            bound.context.bind(&weight.memory, Which::B)?;
            weight.memory.flush()?;
            bound.b = Some(key);
        }
        bound.a.bytes_mut()[..a.bytes.len()].copy_from_slice(&a.bytes);
        bound.context.bind(&bound.a, Which::A)?;
        bound.a.flush()?;
        let blocks = self.settings.chip.blocks(numbers);
        let (rows, n) = (job.rows, columns.len());
        let ends = ends(rows, job.bucket, n, numbers, blocks);
        if job.verify {
            mark(bound.c.bytes_mut(), ends.clone(), numbers);
            bound.c.flush()?;
        }
        bound.context.run(&bound.a, &weight.memory, &mut bound.c)?;
        if job.verify && is_marked(bound.c.bytes(), ends, numbers) {
            return Err(RknnError::WrongResult { core: self.settings.core, row: 0 });
        }
        let c = unpack_c(bound.c.bytes(), rows, job.bucket, n, numbers, blocks);
        let wrong = if job.verify { wrong_row(a, &weight.packed, &c, n) } else { None };
        if let Some(row) = wrong {
            return Err(RknnError::WrongResult { core: self.settings.core, row });
        }
        for ((row, out), &scale) in c.chunks(n).zip(values.chunks_mut(n)).zip(&a.scales) {
            for ((out, &c), &column) in out.iter_mut().zip(row).zip(&weight.packed.scales) {
                *out += c * scale * column;
            }
        }
        Ok(())
    }

    /// Makes sure that weights are packed in memory of the NPU; in which address space they are.
    fn store(&mut self, key: &Key, source: &dyn Rows) -> Result<usize, RknnError> {
        if let Some(stored) = self.weights.get(key) {
            return Ok(stored.domain);
        }
        let (_, k, n, numbers) = key;
        let bytes = numbers.bytes(k.len() * n.len());
        if bytes > self.settings.budget.min(self.settings.domain_bytes) {
            return Err(RknnError::Memory { needed: bytes });
        }
        self.evict(self.settings.budget - bytes);
        let (domain, mut memory) = match self.place(bytes)? {
            Some(found) => found,
            None => {
                // Less than was thought: what fits now is the budget from here on.
                self.evict(self.stored / 4 * 3);
                let found = self.place(bytes)?.ok_or(RknnError::Memory { needed: bytes })?;
                self.settings.budget = self.stored + bytes;
                found
            }
        };
        let blocks = self.settings.chip.blocks(*numbers);
        let packed = pack_b(self.settings.isa, source, k, n, *numbers, blocks, memory.bytes_mut())?;
        self.lost.iter_mut().zip(packed.lost).for_each(|(all, more)| *all += more);
        self.stored += bytes;
        self.stored_in[domain] += bytes;
        self.weights.insert(key.clone(), Stored { memory, domain, packed, used: self.clock });
        Ok(domain)
    }

    /// Memory in the first address space that has some.
    fn place(&self, bytes: usize) -> Result<Option<(usize, Memory)>, RknnError> {
        let room = self.settings.domain_bytes - bytes;
        for (domain, allocator) in self.allocators.iter().enumerate() {
            if self.stored_in[domain] <= room {
                match allocator.memory(bytes) {
                    Ok(memory) => return Ok(Some((domain, memory))),
                    Err(RknnError::Memory { .. }) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(None)
    }

    /// Lets weights go, those first that were used longest ago, until `most` bytes are left.
    fn evict(&mut self, most: usize) {
        while self.stored > most {
            let oldest = self.weights.iter().min_by_key(|(_, stored)| stored.used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            for bound in self.contexts.values_mut().filter(|b| b.b.as_ref() == Some(&key)) {
                bound.b = None;
            }
            if let Some(gone) = self.weights.remove(&key) {
                self.stored -= gone.memory.bytes().len();
                self.stored_in[gone.domain] -= gone.memory.bytes().len();
            }
        }
    }

    /// Makes sure that there is a context of a form.
    fn open(&mut self, form: Form) -> Result<(), RknnError> {
        let (shape, numbers, domain) = form;
        if self.contexts.contains_key(&form) {
            return Ok(());
        }
        if self.contexts.len() >= CONTEXTS {
            let oldest = self.contexts.iter().min_by_key(|(_, bound)| bound.used);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.contexts.remove(&key);
            }
        }
        let core = (self.settings.chip.cores > 1).then_some(self.settings.core);
        let mut context = Context::new(&self.library, shape, numbers.code(), core, domain)?;
        check(&context, self.settings.chip, shape, numbers)?;
        let attrs = *context.attrs();
        let allocator = &self.allocators[domain];
        let a = allocator.memory(attrs.a.bytes())?;
        let c = allocator.memory(attrs.c.bytes())?;
        context.bind(&c, Which::C)?;
        let bound = Bound { context, a, c, b: None, used: self.clock };
        self.contexts.insert(form, bound);
        Ok(())
    }
}

/// The library must want the layouts that we pack.
fn check(
    context: &Context,
    chip: &Chip,
    [m, k, n]: [usize; 3],
    numbers: Numbers,
) -> Result<(), RknnError> {
    let (attrs, b) = (context.attrs(), chip.blocks(numbers));
    let a_dims = vec![k / b.a, m, b.a];
    let b_dims = vec![n.div_ceil(b.sn), k.div_ceil(b.sk), b.sn, b.sk];
    let c_dims = vec![n / b.c, m, b.c];
    let all = [('A', a_dims, &attrs.a), ('B', b_dims, &attrs.b), ('C', c_dims, &attrs.c)];
    for (matrix, dims, attr) in all {
        let elements = dims.iter().product::<usize>();
        let bytes = match matrix {
            'C' => elements * numbers.result_bytes(),
            _ => numbers.bytes(elements),
        };
        let expected: Vec<u32> = dims.iter().map(|&d| d as u32).collect();
        if attr.dims() != expected || attr.bytes() != bytes {
            let found = attr.dims().to_vec();
            return Err(RknnError::Layout { matrix, expected, found });
        }
    }
    Ok(())
}
