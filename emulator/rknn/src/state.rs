//! Contexts, memory and what has been counted.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::abi::{
    CTX_INVALID, DEVICE_UNAVAILABLE, FAIL, INPUT_INVALID, IoAttr, MALLOC_FAIL, MatmulInfo,
    OUTPUT_INVALID, PARAM_INVALID, Shape, TensorAttr,
};
use crate::chip::{Element, Layout, Matrices, Matrix, Version};
use crate::compute::{self, Dense};
use crate::config::{Config, Snapshot, Sync};
use crate::fault::{Action, Call, Fault, Site, Wrong, hang};
use crate::memory::Buffer;

/// Domains that there are.
const DOMAINS: i32 = 16;

/// Numbers of buffers begin behind those that a process has anyway.
const FIRST_FD: i32 = 100;

/// What `rknn_emu_counter` tells, by number.
pub(crate) const COUNTERS: usize = 7;
pub(crate) const CONTEXTS: usize = 0;
pub(crate) const MEMORIES: usize = 1;
pub(crate) const BYTES: usize = 2;
pub(crate) const RUNS: usize = 3;
pub(crate) const VIOLATIONS: usize = 4;
pub(crate) const CREATES: usize = 5;
pub(crate) const BINDS: usize = 6;

/// A piece of memory that the caller has.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: usize,
    pub(crate) size: usize,
    /// Whether it is a view of another's buffer.
    pub(crate) view: bool,
}

/// A matrix of a context, bound to memory.
struct Binding {
    piece: Piece,
    matrix: Matrix,
    /// What was there when it was bound, if runs use that.
    snapshot: Option<Vec<u8>>,
    /// The elements of the snapshot.
    dense: Option<Dense>,
}

#[derive(Default)]
struct Bindings {
    current: usize,
    all: [Option<Binding>; 3],
}

/// A context.
pub(crate) struct Ctx {
    kind: i32,
    pub(crate) domain: i32,
    per_channel: bool,
    shapes: Vec<Matrices>,
    mask: AtomicU32,
    busy: AtomicBool,
    bindings: Mutex<Bindings>,
    scales: Mutex<[f32; 3]>,
}

/// Everything behind the interface.
pub(crate) struct State {
    pub(crate) config: Config,
    contexts: Mutex<HashMap<u64, Arc<Ctx>>>,
    pieces: Mutex<HashMap<usize, Piece>>,
    next: AtomicU64,
    random: AtomicU64,
    out_of_memory: AtomicBool,
    dead: AtomicBool,
    counters: [AtomicI64; COUNTERS],
    cores: [Mutex<()>; 3],
    active: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            random: AtomicU64::new(config.seed.max(1)),
            config,
            contexts: Mutex::default(),
            pieces: Mutex::default(),
            next: AtomicU64::new(1),
            out_of_memory: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            counters: Default::default(),
            cores: Default::default(),
            active: AtomicUsize::new(0),
        }
    }

    pub(crate) fn counter(&self, which: usize) -> i64 {
        self.counters.get(which).map_or(-1, |c| c.load(Ordering::Relaxed))
    }

    pub(crate) fn add(&self, which: usize, by: i64) {
        self.counters[which].fetch_add(by, Ordering::Relaxed);
    }

    /// A breach of the contract: counted, or the end.
    fn violation(&self, what: &str) {
        self.add(VIOLATIONS, 1);
        eprintln!("rknn emulator: {what}");
        if self.config.strict {
            std::process::abort();
        }
    }

    /// A number from 0 to 1, of a generator by xor and shifts.
    fn draw(&self) -> f64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        (x >> 11) as f64 / (1u64 << 53) as f64
    }

    /// What the call meets: nothing, a code to return, or a damage of its result.
    pub(crate) fn meet(&self, call: &Call) -> Result<Option<Wrong>, i32> {
        if self.dead.load(Ordering::Relaxed) {
            return Err(DEVICE_UNAVAILABLE);
        }
        // Each counts the call, whatever another does with it.
        let struck = |fault: &Fault| fault.strikes(call, || self.draw());
        let actions: Vec<Action> = self.config.faults.iter().filter_map(struck).collect();
        let mut damage = None;
        for action in actions {
            match action {
                Action::Code(code) => return Err(code),
                Action::Null => return Err(MALLOC_FAIL),
                Action::Hang(time) => hang(time),
                Action::Slow(time) => std::thread::sleep(time),
                Action::Crash => std::process::abort(),
                Action::Exit => std::process::exit(3),
                Action::Wrong(wrong) => damage = Some(wrong),
                Action::Oom => self.out_of_memory.store(true, Ordering::Relaxed),
                Action::Dead => {
                    self.dead.store(true, Ordering::Relaxed);
                    return Err(DEVICE_UNAVAILABLE);
                }
            }
        }
        Ok(damage)
    }

    pub(crate) fn context(&self, ctx: u64) -> Result<Arc<Ctx>, i32> {
        lock(&self.contexts).get(&ctx).cloned().ok_or(CTX_INVALID)
    }

    /// Makes a context of one or more shapes.
    pub(crate) fn create(
        &self,
        info: &MatmulInfo,
        shapes: &[Shape],
        io: &mut [IoAttr],
    ) -> Result<u64, i32> {
        let config = &self.config;
        let sizes = shapes.first().map(|s| [s.m, s.k, s.n]);
        self.meet(&Call { shape: sizes, kind: Some(info.kind), ..Call::of(Site::Create) })?;
        if config.no_device {
            return Err(DEVICE_UNAVAILABLE);
        }
        let old = config.version == Version::V1_6;
        let domain = if old { 0 } else { info.domain };
        let b_quant = if old { 0 } else { info.b_quant };
        // Only per group there is a product of bytes with a result of floats.
        let quantised = (0..=5).contains(&b_quant) && !(info.kind == 9 && b_quant < 4);
        let known = (0..DOMAINS).contains(&domain) && (old || info.ac_quant == 0) && quantised;
        let same_b = shapes.iter().all(|s| (s.k, s.n) == (shapes[0].k, shapes[0].n));
        if !known || !same_b {
            return Err(PARAM_INVALID);
        }
        let matrices = |shape: &Shape| {
            let info = MatmulInfo { shape: *shape, ..*info };
            config.chip.matrices(&info, config.version, config.any_n).filter(Matrices::fit)
        };
        let shapes: Option<Vec<Matrices>> = shapes.iter().map(matrices).collect();
        let shapes = shapes.filter(|s| !s.is_empty()).ok_or(PARAM_INVALID)?;
        shapes.iter().zip(io).for_each(|(shape, io)| shape.describe(io));
        // A handle that fits 32 bits would hide callers that cut it.
        let handle = (self.next.fetch_add(1, Ordering::Relaxed) << 33) | 0x5a5a;
        let ctx = Ctx {
            kind: info.kind,
            domain,
            per_channel: matches!(b_quant, 2 | 3),
            shapes,
            mask: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            bindings: Mutex::default(),
            scales: Mutex::new([1.0; 3]),
        };
        lock(&self.contexts).insert(handle, Arc::new(ctx));
        self.add(CONTEXTS, 1);
        self.add(CREATES, 1);
        Ok(handle)
    }

    pub(crate) fn destroy(&self, ctx: u64) -> Result<(), i32> {
        self.meet(&Call::of(Site::Destroy))?;
        let ctx = lock(&self.contexts).remove(&ctx).ok_or(CTX_INVALID)?;
        if ctx.busy.load(Ordering::Relaxed) {
            self.violation("a context was destroyed while it ran");
        }
        self.add(CONTEXTS, -1);
        Ok(())
    }

    pub(crate) fn set_mask(&self, ctx: u64, mask: u32) -> Result<(), i32> {
        let ctx = self.context(ctx)?;
        self.meet(&Call { core: core_of(mask), ..ctx.call(Site::CoreMask) })?;
        let one = self.config.chip.cores > 1 && core_of(mask) < Some(self.config.chip.cores);
        if mask != 0 && !(one && mask.is_power_of_two()) {
            ctx.mask.store(0, Ordering::Relaxed);
            return Err(FAIL);
        }
        ctx.mask.store(mask, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set_shape(&self, ctx: u64, shape: &Shape) -> Result<(), i32> {
        let ctx = self.context(ctx)?;
        let found = ctx.shapes.iter().position(|s| s.shape() == *shape).ok_or(PARAM_INVALID)?;
        lock(&ctx.bindings).current = found;
        Ok(())
    }

    /// The scale of one matrix.
    pub(crate) fn with_scale<R>(
        &self,
        ctx: u64,
        name: u8,
        f: impl FnOnce(&mut f32) -> R,
    ) -> Result<R, i32> {
        let ctx = self.context(ctx)?;
        let which = name.wrapping_sub(b'A');
        lock(&ctx.scales).get_mut(usize::from(which)).map(f).ok_or(PARAM_INVALID)
    }

    /// Memory of so many bytes in the domain of a context.
    pub(crate) fn allocate(&self, domain: i32, bytes: u64) -> Result<Piece, i32> {
        self.meet(&Call::of(Site::CreateMem))?;
        if self.out_of_memory.load(Ordering::Relaxed) || bytes == 0 {
            return Err(MALLOC_FAIL);
        }
        let pieces = lock(&self.pieces);
        let owned = || pieces.values().filter(|p| !p.view);
        let used = |of: Option<i32>| -> u64 {
            owned().filter(|p| of.is_none_or(|d| p.buffer.domain == d)).map(|p| p.size as u64).sum()
        };
        let full = self.config.fd_limit > 0 && owned().count() >= self.config.fd_limit;
        if full
            || used(None).saturating_add(bytes) > self.config.memory
            || used(Some(domain)).saturating_add(bytes) > self.config.domain_memory
        {
            return Err(MALLOC_FAIL);
        }
        drop(pieces);
        let size = usize::try_from(bytes).map_err(|_| MALLOC_FAIL)?;
        let fd = FIRST_FD + (self.next.fetch_add(1, Ordering::Relaxed) & 0xff_ffff) as i32;
        let buffer = Buffer::new(size, fd, domain).ok_or(MALLOC_FAIL)?;
        self.add(BYTES, size as i64);
        Ok(Piece { buffer: Arc::new(buffer), offset: 0, size, view: false })
    }

    /// A view of memory that was allocated here.
    pub(crate) fn view(&self, fd: i32, offset: i32, size: u32) -> Result<Piece, i32> {
        self.meet(&Call::of(Site::FromFd))?;
        let offset = usize::try_from(offset).map_err(|_| PARAM_INVALID)?;
        let size = size as usize;
        let pieces = lock(&self.pieces);
        let buffer = pieces.values().find(|p| p.buffer.fd == fd).map(|p| p.buffer.clone());
        let fits = |b: &Arc<Buffer>| offset.checked_add(size).is_some_and(|end| end <= b.size);
        let buffer = buffer.filter(|b| size > 0 && fits(b)).ok_or(PARAM_INVALID)?;
        Ok(Piece { buffer, offset, size, view: true })
    }

    /// Remembers memory by the address of its record.
    pub(crate) fn keep(&self, address: usize, piece: Piece) {
        lock(&self.pieces).insert(address, piece);
        self.add(MEMORIES, 1);
    }

    pub(crate) fn piece(&self, address: usize) -> Result<Piece, i32> {
        lock(&self.pieces).get(&address).cloned().ok_or(PARAM_INVALID)
    }

    /// Lets go of memory.
    pub(crate) fn forget(&self, address: usize) -> Result<(), i32> {
        let piece = lock(&self.pieces).remove(&address).ok_or(PARAM_INVALID)?;
        if !piece.buffer.is_intact() {
            self.violation("bytes around a piece of memory were written");
        }
        if !piece.view {
            piece.buffer.freed.store(true, Ordering::Relaxed);
            self.add(BYTES, -(piece.size as i64));
        }
        self.add(MEMORIES, -1);
        Ok(())
    }

    pub(crate) fn synchronise(&self, piece: &Piece, to: bool, from: bool) -> Result<(), i32> {
        self.meet(&Call::of(Site::Sync))?;
        if self.config.sync != Sync::Lenient {
            if to {
                piece.buffer.flush(piece.offset, piece.size);
            }
            if from {
                piece.buffer.invalidate(piece.offset, piece.size);
            }
        }
        Ok(())
    }

    pub(crate) fn bind(&self, ctx: u64, piece: Piece, attr: &TensorAttr) -> Result<(), i32> {
        let ctx = self.context(ctx)?;
        self.meet(&ctx.call(Site::SetIo))?;
        let mut bindings = lock(&ctx.bindings);
        let all = &ctx.shapes[bindings.current];
        let mut io =
            IoAttr { a: TensorAttr::default(), b: TensorAttr::default(), c: TensorAttr::default() };
        all.describe(&mut io);
        let same = |own: &TensorAttr| {
            let dims = own.n_dims as usize;
            (own.name, own.n_dims, own.size) == (attr.name, attr.n_dims, attr.size)
                && own.dims[..dims] == attr.dims[..dims]
        };
        let which = [io.a, io.b, io.c].iter().position(same).ok_or(PARAM_INVALID)?;
        let matrix = [all.a, all.b, all.c][which];
        if piece.size < matrix.bytes() {
            return Err(PARAM_INVALID);
        }
        if piece.buffer.domain != ctx.domain {
            return Err(FAIL);
        }
        let input = which < 2;
        if input && self.config.sync == Sync::Bind {
            piece.buffer.flush(piece.offset, matrix.bytes());
        }
        let copied = match self.config.snapshot {
            Snapshot::Always => true,
            Snapshot::Normal => matrix.layout != Layout::Native,
            Snapshot::Never => false,
        };
        let snapshot = (input && copied && self.config.compute)
            .then(|| piece.buffer.cpu(piece.offset, matrix.bytes()));
        bindings.all[which] = Some(Binding { piece, matrix, snapshot, dense: None });
        self.add(BINDS, 1);
        Ok(())
    }

    pub(crate) fn run(&self, handle: u64) -> Result<(), i32> {
        let ctx = self.context(handle)?;
        if ctx.busy.swap(true, Ordering::Acquire) {
            self.violation("a context ran on two threads at once");
            return Err(FAIL);
        }
        let core = core_of(ctx.mask.load(Ordering::Relaxed)).unwrap_or(0);
        let queue = lock(&self.cores[core as usize]);
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        let begin = Instant::now();
        let outcome = self.run_on(&ctx, core);
        if let (Ok(()), Some(latency)) = (outcome, &self.config.latency) {
            let bindings = lock(&ctx.bindings);
            let all = &ctx.shapes[bindings.current];
            let elements = all.b.rows * all.b.columns;
            wait_until(begin + latency.time(all.a.rows, elements, all.b.bytes(), active));
        }
        self.active.fetch_sub(1, Ordering::Relaxed);
        drop(queue);
        ctx.busy.store(false, Ordering::Release);
        outcome
    }

    fn run_on(&self, ctx: &Ctx, core: u32) -> Result<(), i32> {
        let damage = self.meet(&Call { core: Some(core), ..ctx.call(Site::Run) })?;
        let mut bindings = lock(&ctx.bindings);
        let all = ctx.shapes[bindings.current];
        let [a, b, c] = &mut bindings.all;
        let expected = [(a, all.a), (b, all.b), (c, all.c)];
        let codes = [INPUT_INVALID, INPUT_INVALID, OUTPUT_INVALID];
        let mut bound = Vec::with_capacity(3);
        for ((binding, matrix), code) in expected.into_iter().zip(codes) {
            let binding = binding.as_mut().filter(|b| b.matrix == matrix).ok_or(code)?;
            if binding.piece.buffer.is_freed() {
                self.violation("a run met memory that had been destroyed");
                return Err(FAIL);
            }
            bound.push(binding);
        }
        self.add(RUNS, 1);
        if !self.config.compute {
            return Ok(());
        }
        let float = all.a.element == Element::F16;
        let [a, b, c] = bound.try_into().unwrap_or_else(|_| unreachable!("three matrices"));
        let (a, b) = (self.read(a, float), self.read(b, float));
        let mut sums = compute::product(&all, &a, &b);
        let mut written = true;
        let zeros = ctx.kind == 9 || (ctx.kind == 2 && ctx.per_channel);
        if self.config.quirks && zeros {
            written = compute::damage(&mut sums, all.c.columns, Wrong::Zero);
        }
        if let Some(damage) = damage {
            written = compute::damage(&mut sums, all.c.columns, damage);
        }
        if written {
            let [sa, sb, sc] = *lock(&ctx.scales);
            let scale = if all.c.element == Element::I8 { sa * sb / sc } else { sa * sb };
            let (buffer, offset) = (&c.piece.buffer, c.piece.offset);
            let mut bytes = vec![0; all.c.bytes()];
            compute::write(&all.c, &sums, scale, &mut bytes);
            match self.config.sync {
                Sync::Lenient => buffer.write_cpu(offset, &bytes),
                Sync::Strict => buffer.write_device(offset, &bytes),
                Sync::Bind => {
                    buffer.write_device(offset, &bytes);
                    buffer.write_cpu(offset, &bytes);
                }
            }
        }
        Ok(())
    }

    /// The elements that a run sees.
    fn read(&self, binding: &mut Binding, float: bool) -> Dense {
        let Piece { buffer, offset, .. } = &binding.piece;
        let bytes = binding.matrix.bytes();
        match (&binding.snapshot, &mut binding.dense) {
            (Some(_), Some(dense)) => dense.clone(),
            (Some(snapshot), dense) => {
                dense.insert(compute::dense(&binding.matrix, snapshot, float)).clone()
            }
            (None, _) => {
                let bytes = match self.config.sync {
                    Sync::Lenient => buffer.cpu(*offset, bytes),
                    _ => buffer.of_device(*offset, bytes),
                };
                compute::dense(&binding.matrix, &bytes, float)
            }
        }
    }
}

impl Ctx {
    fn call(&self, site: Site) -> Call {
        let Shape { m, k, n } = self.shapes[0].shape();
        let core = core_of(self.mask.load(Ordering::Relaxed)).or(Some(0));
        Call { site, core, shape: Some([m, k, n]), kind: Some(self.kind) }
    }
}

/// The core of a mask of one.
fn core_of(mask: u32) -> Option<u32> {
    (mask != 0).then(|| mask.trailing_zeros())
}

/// Sleeping alone is not exact to the microsecond.
fn wait_until(end: Instant) {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > Duration::from_micros(200) {
            std::thread::sleep(left - Duration::from_micros(150));
        } else {
            std::thread::yield_now();
        }
    }
}
