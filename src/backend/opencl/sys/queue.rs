//! Commands, and what they transfer.
#![allow(unsafe_code, reason = "the interface is one of C")]

use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::objects::{Context, Event, Launch, Mem, RawQueue};
use super::recorded::Recorded;
use super::{Api, Device, FALSE, Handle, QUEUE_PROFILING, TRUE, check};
use crate::backend::opencl::{OpenClError, lock};

/// The commands of a device, done in order. One thread submits at a time.
pub(in super::super) struct Queue {
    pub(super) raw: RawQueue,
    turn: Mutex<()>,
    /// Times that the host has waited for the device.
    waits: AtomicU64,
    /// Kernels submitted.
    kernels: AtomicU64,
    /// Bytes that the host has read, and sent.
    read: AtomicU64,
    written: AtomicU64,
    timed: bool,
    /// How long kernels have taken, if that is asked of the device.
    times: Mutex<Times>,
}

/// A kernel by its name, with how often it ran and how long that took in all.
pub(in super::super) type KernelTime = (Arc<str>, u64, Duration);

#[derive(Default)]
struct Times {
    /// Kernels that are done, and whose time is not among the others yet: to ask for it takes time itself.
    done: Vec<(Arc<str>, Event)>,
    of: BTreeMap<Arc<str>, (u64, Duration)>,
}

impl Times {
    fn add_up(&mut self) {
        for (label, event) in self.done.drain(..) {
            let (count, time) = self.of.entry(label).or_default();
            *count += 1;
            *time += event.time();
        }
    }
}

/// Most kernels that are done whose time was not asked for.
const MOST_DONE: usize = 1 << 14;

/// The host's side of a transfer.
enum Host<'a> {
    From(&'a [u8]),
    To(&'a mut [u8]),
}

impl Queue {
    /// A queue; `timed` if it adds up how long kernels take.
    pub(in super::super) fn new(
        context: &Context,
        device: &Device,
        timed: bool,
    ) -> Result<Self, OpenClError> {
        let properties = if timed { QUEUE_PROFILING } else { 0 };
        let raw = RawQueue::new(&context.api, "clCreateCommandQueue", |api, code| {
            // SAFETY: context and device live.
            unsafe { (api.create_queue)(context.handle, device.device, properties, code) }
        })?;
        let [waits, kernels, read, written] = [0; 4].map(AtomicU64::new);
        let (turn, times) = (Mutex::default(), Mutex::default());
        Ok(Self { raw, turn, waits, kernels, read, written, timed, times })
    }

    /// Times that the host has waited, kernels submitted, bytes read, and bytes sent.
    pub(in super::super) fn counts(&self) -> [u64; 4] {
        let all = [&self.waits, &self.kernels, &self.read, &self.written];
        all.map(|count| count.load(Ordering::Relaxed))
    }

    /// Kernels with what they have taken, if that is asked of the device.
    pub(in super::super) fn times(&self) -> Vec<KernelTime> {
        let mut times = lock(&self.times);
        times.add_up();
        times.of.iter().map(|(label, &(count, time))| (label.clone(), count, time)).collect()
    }

    /// Whether it adds up how long kernels take.
    pub(in super::super) fn is_timed(&self) -> bool {
        self.timed
    }

    /// Submits what `work` asks for, and waits until all of it is done, or has failed.
    pub(in super::super) fn submit<'env, R>(
        &'env self,
        work: impl FnOnce(&mut Submission<'env>) -> Result<R, OpenClError>,
    ) -> Result<R, OpenClError> {
        let _turn = lock(&self.turn);
        let mut submission =
            Submission { queue: self, open: false, events: Vec::new(), borrows: PhantomData };
        let result = work(&mut submission);
        // Waits in any case: transfers may still use what the caller lends. Should `work` unwind, the
        // submission's end does.
        let waited = submission.wait();
        result.and_then(|result| waited.map(|()| result))
    }
}

/// Commands of one caller, which borrow what they transfer until [`Queue::submit`] ends.
pub(in super::super) struct Submission<'env> {
    queue: &'env Queue,
    /// Whether there are commands that were not waited for.
    open: bool,
    /// Kernels whose time is wanted.
    events: Vec<(Arc<str>, Event)>,
    borrows: PhantomData<&'env mut &'env ()>,
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if self.open {
            // SAFETY: the queue lives. There is nobody left to tell of a failure.
            unsafe { (self.queue.raw.api.finish_queue)(self.queue.raw.handle) };
        }
    }
}

impl<'env> Submission<'env> {
    fn inside(mem: &Mem, at: usize, bytes: usize, call: &'static str) -> Result<(), OpenClError> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= mem.bytes);
        if fits { Ok(()) } else { Err(OpenClError::Call { call, code: -30 }) }
    }

    /// Sends bytes to the device, some time before the submission ends.
    pub(in super::super) fn write(
        &mut self,
        mem: &Mem,
        at: usize,
        bytes: &'env [u8],
    ) -> Result<(), OpenClError> {
        self.transfer(mem, at, Host::From(bytes), FALSE)
    }

    /// Sends bytes to the device now.
    pub(in super::super) fn write_now(
        &mut self,
        mem: &Mem,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), OpenClError> {
        self.transfer(mem, at, Host::From(bytes), TRUE)
    }

    /// Gets bytes from the device; they are there when the submission ends.
    pub(in super::super) fn read(
        &mut self,
        mem: &Mem,
        at: usize,
        bytes: &'env mut [u8],
    ) -> Result<(), OpenClError> {
        self.transfer(mem, at, Host::To(bytes), FALSE)
    }

    /// Gets bytes from the device, and waits for them.
    pub(in super::super) fn read_now(
        &mut self,
        mem: &Mem,
        at: usize,
        bytes: &mut [u8],
    ) -> Result<(), OpenClError> {
        self.queue.waits.fetch_add(1, Ordering::Relaxed);
        self.transfer(mem, at, Host::To(bytes), TRUE)
    }

    /// Moves bytes between the device and the host. Without `wait` they are in use until the queue was
    /// waited for, which their lifetime must cover.
    fn transfer(
        &mut self,
        mem: &Mem,
        at: usize,
        host: Host<'_>,
        wait: u32,
    ) -> Result<(), OpenClError> {
        let (call, length) = match &host {
            Host::From(bytes) => ("clEnqueueWriteBuffer", bytes.len()),
            Host::To(bytes) => ("clEnqueueReadBuffer", bytes.len()),
        };
        Self::inside(mem, at, length, call)?;
        if length == 0 {
            return Ok(());
        }
        let raw = &self.queue.raw;
        raw.api.gate(call)?;
        self.open = true;
        let (queue, memory, none) = (raw.handle, mem.raw.handle, ptr::null());
        let event = ptr::null_mut();
        let code = match host {
            Host::From(bytes) => {
                self.queue.written.fetch_add(length as u64, Ordering::Relaxed);
                let from = bytes.as_ptr().cast();
                let write = raw.api.enqueue_write;
                // SAFETY: the range lies inside the memory; the bytes are there until the queue was
                // waited for, by their lifetime or because the call waits.
                unsafe { write(queue, memory, wait, at, length, from, 0, none, event) }
            }
            Host::To(bytes) => {
                self.queue.read.fetch_add(length as u64, Ordering::Relaxed);
                let to = bytes.as_mut_ptr().cast();
                let read = raw.api.enqueue_read;
                // SAFETY: as for writing; nobody else has the bytes meanwhile, as they are borrowed
                // mutably.
                unsafe { read(queue, memory, wait, at, length, to, 0, none, event) }
            }
        };
        check(call, code)
    }

    /// Copies bytes on the device.
    pub(in super::super) fn copy(
        &mut self,
        from: &Mem,
        from_at: usize,
        to: &Mem,
        to_at: usize,
        bytes: usize,
    ) -> Result<(), OpenClError> {
        let call = "clEnqueueCopyBuffer";
        Self::inside(from, from_at, bytes, call)?;
        Self::inside(to, to_at, bytes, call)?;
        let raw = &self.queue.raw;
        raw.api.gate(call)?;
        self.open = true;
        // SAFETY: both ranges lie inside their memory.
        check(call, unsafe {
            (raw.api.enqueue_copy)(
                raw.handle,
                from.raw.handle,
                to.raw.handle,
                from_at,
                to_at,
                bytes,
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        })
    }

    /// Runs a kernel.
    pub(in super::super) fn launch(&mut self, launch: &'env Launch) -> Result<(), OpenClError> {
        let (call, raw) = ("clEnqueueNDRangeKernel", &self.queue.raw);
        let local = launch.local.as_ref().map_or(ptr::null(), |l| l.as_ptr());
        self.open = true;
        self.queue.kernels.fetch_add(1, Ordering::Relaxed);
        // SAFETY: who made the launch answers for what the kernel reads and writes; sizes are three each;
        // by its lifetime, it and its memory live until the queue was waited for.
        let enqueue = |api: &Api, event: *mut Handle| unsafe {
            (api.enqueue_kernel)(
                raw.handle,
                launch.kernel.handle,
                3,
                ptr::null(),
                launch.global.as_ptr(),
                local,
                0,
                ptr::null(),
                event,
            )
        };
        if !self.queue.timed {
            raw.api.gate(call)?;
            return check(call, enqueue(&raw.api, ptr::null_mut()));
        }
        let event = Event::new(&raw.api, call, |api, code| {
            let mut event = ptr::null_mut();
            *code = enqueue(api, &mut event);
            event
        })?;
        self.events.push((launch.label.clone(), event));
        Ok(())
    }

    /// Runs kernels that were recorded for this queue.
    pub(in super::super) fn replay(&mut self, recorded: &'env Recorded) -> Result<(), OpenClError> {
        self.open = true;
        self.queue.kernels.fetch_add(recorded.len() as u64, Ordering::Relaxed);
        recorded.enqueue()
    }

    /// Waits for everything submitted so far.
    pub(in super::super) fn wait(&mut self) -> Result<(), OpenClError> {
        if !self.open {
            return Ok(());
        }
        let raw = &self.queue.raw;
        self.queue.waits.fetch_add(1, Ordering::Relaxed);
        let gate = raw.api.gate("clFinish");
        // Even if it is to fail: what is on its way must not outlive what it touches.
        // SAFETY: the queue lives.
        let code = unsafe { (raw.api.finish_queue)(raw.handle) };
        self.open = false;
        let mut times = lock(&self.queue.times);
        times.done.append(&mut self.events);
        if times.done.len() > MOST_DONE {
            times.add_up();
        }
        gate?;
        check("clFinish", code)
    }
}
