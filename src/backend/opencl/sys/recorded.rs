//! Kernels that the driver records once, to be submitted together: `cl_khr_command_buffer`, version 0.9.
#![allow(unsafe_code, reason = "the interface is one of C")]

use core::ffi::{CStr, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::objects::Launch;
use super::queue::Queue;
use super::{Api, Device, Handle, SUCCESS, check};
use crate::backend::opencl::OpenClError;

type Create = unsafe extern "system" fn(u32, *const Handle, *const u64, *mut i32) -> Handle;
type OfOne = unsafe extern "system" fn(Handle) -> i32;
type Kernel = unsafe extern "system" fn(
    Handle,
    Handle,
    *const c_void,
    Handle,
    u32,
    *const usize,
    *const usize,
    *const usize,
    u32,
    *const u32,
    *mut u32,
    *mut Handle,
) -> i32;
type Enqueue =
    unsafe extern "system" fn(u32, *mut Handle, Handle, u32, *const Handle, *mut Handle) -> i32;

/// The functions of the extension.
#[derive(Clone, Copy)]
pub(in super::super) struct Recorder {
    create: Create,
    release: OfOne,
    finalize: OfOne,
    kernel: Kernel,
    enqueue: Enqueue,
}

impl Recorder {
    /// Those of a device that has the extension; `None` if the driver lacks one.
    pub(in super::super) fn of(device: &Device) -> Option<Self> {
        let find = |name: &CStr| {
            // SAFETY: the platform is one that the library gave; the text ends with a 0.
            let found = unsafe { (device.api.get_extension)(device.platform, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let [create, release] =
            [find(c"clCreateCommandBufferKHR")?, find(c"clReleaseCommandBufferKHR")?];
        let [finalize, kernel] =
            [find(c"clFinalizeCommandBufferKHR")?, find(c"clCommandNDRangeKernelKHR")?];
        let enqueue = find(c"clEnqueueCommandBufferKHR")?;
        // SAFETY: the driver gave these addresses for these names, whose types are those of the extension's
        // header.
        let [release, finalize] =
            unsafe { [release, finalize].map(|f| transmute::<Handle, OfOne>(f)) };
        // SAFETY: as above.
        let create = unsafe { transmute::<Handle, Create>(create) };
        // SAFETY: as above.
        let kernel = unsafe { transmute::<Handle, Kernel>(kernel) };
        // SAFETY: as above.
        let enqueue = unsafe { transmute::<Handle, Enqueue>(enqueue) };
        Some(Self { create, release, finalize, kernel, enqueue })
    }
}

/// Kernels in their order, with their arguments.
pub(in super::super) struct Recorded {
    api: Arc<Api>,
    recorder: Recorder,
    handle: Handle,
    /// What they are and what they read and write.
    launches: Vec<Arc<Launch>>,
}

// SAFETY: OpenCL's functions may be called from any thread; what was recorded is not changed any more.
unsafe impl Send for Recorded {}
// SAFETY: as above.
unsafe impl Sync for Recorded {}

impl Recorded {
    /// Records kernels for a queue, whose commands are done in order.
    pub(in super::super) fn new(
        recorder: Recorder,
        queue: &Queue,
        launches: Vec<Arc<Launch>>,
    ) -> Result<Self, OpenClError> {
        let api = queue.raw.api.clone();
        api.gate("clCreateCommandBufferKHR")?;
        let mut code = SUCCESS;
        // SAFETY: there is one queue, which lives; there are no properties.
        let handle = unsafe { (recorder.create)(1, &queue.raw.handle, ptr::null(), &mut code) };
        check("clCreateCommandBufferKHR", code)?;
        api.live.objects.fetch_add(1, Ordering::Relaxed);
        let made = Self { api, recorder, handle, launches };
        for launch in &made.launches {
            let call = "clCommandNDRangeKernelKHR";
            made.api.gate(call)?;
            let local = launch.local.as_ref().map_or(ptr::null(), |l| l.as_ptr());
            // SAFETY: who made the launch answers for what the kernel reads and writes; sizes are three each;
            // kernel and memory live as long as what is recorded, which keeps the launch.
            check(call, unsafe {
                (recorder.kernel)(
                    handle,
                    ptr::null_mut(),
                    ptr::null(),
                    launch.kernel.handle,
                    3,
                    ptr::null(),
                    launch.global.as_ptr(),
                    local,
                    0,
                    ptr::null(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            })?;
        }
        made.api.gate("clFinalizeCommandBufferKHR")?;
        // SAFETY: the handle is this object's.
        check("clFinalizeCommandBufferKHR", unsafe { (recorder.finalize)(handle) })?;
        Ok(made)
    }

    /// How many kernels there are.
    pub(super) fn len(&self) -> usize {
        self.launches.len()
    }

    /// Submits them to the queue they were recorded for. The caller waits for that queue before this ends, and
    /// before it submits them again.
    pub(super) fn enqueue(&self) -> Result<(), OpenClError> {
        let call = "clEnqueueCommandBufferKHR";
        self.api.gate(call)?;
        // SAFETY: the handle is this object's, and complete; no other queue is named.
        check(call, unsafe {
            (self.recorder.enqueue)(
                0,
                ptr::null_mut(),
                self.handle,
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: the handle is this object's, and nobody uses it any more.
        unsafe { (self.recorder.release)(self.handle) };
        self.api.live.objects.fetch_sub(1, Ordering::Relaxed);
    }
}
