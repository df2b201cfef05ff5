//! The interface of OpenCL, opened at run time: the only unsafe code of this backend. What it gives
//! out is safe to use: objects end with their owners, and transfers end before what they touch does.
//!
//! Every call passes a gate that tests make fail ([`Faults`]), and every object that lives is counted.
#![allow(unsafe_code, reason = "the interface is one of C")]

use core::ffi::{c_char, c_void};
use core::mem::ManuallyDrop;
use core::ptr;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::path::PathBuf;
use std::sync::Arc;

use super::OpenClError;

mod objects;
mod queue;
mod recorded;

pub(super) use objects::{Context, Launch, Mem, Program, Value};
pub(super) use queue::{Queue, Submission};
pub(super) use recorded::{Recorded, Recorder};

/// A handle of the library.
type Handle = *mut c_void;

const SUCCESS: i32 = 0;
const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
const MEM_READ_WRITE: u64 = 1;
const MEM_READ_ONLY: u64 = 4;
const MEM_USE_HOST_PTR: u64 = 8;
const BUFFER_CREATE_TYPE_REGION: u32 = 0x1220;
const PROGRAM_BINARY_SIZES: u32 = 0x1165;
const PROGRAM_BINARIES: u32 = 0x1166;
const PROGRAM_BUILD_LOG: u32 = 0x1183;
const QUEUE_PROFILING: u64 = 2;
const PROFILING_START: u32 = 0x1282;
const PROFILING_END: u32 = 0x1283;
const TRUE: u32 = 1;
const FALSE: u32 = 0;

/// What is asked of platforms and devices, by the numbers of `cl.h`.
pub(super) mod info {
    pub(in super::super) const PLATFORM_VERSION: u32 = 0x0901;
    pub(in super::super) const PLATFORM_NAME: u32 = 0x0902;
    pub(in super::super) const TYPE: u32 = 0x1000;
    pub(in super::super) const MAX_COMPUTE_UNITS: u32 = 0x1002;
    pub(in super::super) const MAX_WORK_GROUP_SIZE: u32 = 0x1004;
    pub(in super::super) const PREFERRED_VECTOR_WIDTH_FLOAT: u32 = 0x100a;
    pub(in super::super) const MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
    pub(in super::super) const IMAGE_SUPPORT: u32 = 0x1016;
    pub(in super::super) const MEM_BASE_ADDR_ALIGN: u32 = 0x1019;
    pub(in super::super) const GLOBAL_MEM_SIZE: u32 = 0x101f;
    pub(in super::super) const LOCAL_MEM_SIZE: u32 = 0x1023;
    pub(in super::super) const AVAILABLE: u32 = 0x1027;
    pub(in super::super) const COMPILER_AVAILABLE: u32 = 0x1028;
    pub(in super::super) const NAME: u32 = 0x102b;
    pub(in super::super) const VENDOR: u32 = 0x102c;
    pub(in super::super) const DRIVER_VERSION: u32 = 0x102d;
    pub(in super::super) const VERSION: u32 = 0x102f;
    pub(in super::super) const EXTENSIONS: u32 = 0x1030;
    pub(in super::super) const HOST_UNIFIED_MEMORY: u32 = 0x1035;
}

/// Makes calls fail, to test what then happens.
#[derive(Debug, Default)]
pub struct Faults {
    calls: AtomicU64,
    /// The first call that fails; 0 for none.
    first: AtomicU64,
    /// One past the last call that fails.
    end: AtomicU64,
    code: AtomicI64,
}

impl Faults {
    /// Lets call number `first` from now (counted from 1), and `count - 1` more after it, fail with `code`.
    /// A lost device is `u64::MAX` calls.
    pub fn fail(&self, first: u64, count: u64, code: i32) {
        let first = self.calls().saturating_add(first);
        self.code.store(code.into(), Ordering::Relaxed);
        self.end.store(first.saturating_add(count), Ordering::Relaxed);
        self.first.store(first, Ordering::Release);
    }

    /// No call fails any more.
    pub fn clear(&self) {
        self.first.store(0, Ordering::Release);
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn gate(&self, call: &'static str) -> Result<(), OpenClError> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let first = self.first.load(Ordering::Acquire);
        if first != 0 && number >= first && number < self.end.load(Ordering::Relaxed) {
            return Err(OpenClError::Call { call, code: self.code.load(Ordering::Relaxed) as i32 });
        }
        Ok(())
    }
}

/// Objects of the library that live, and the bytes of buffers among them.
#[derive(Debug, Default)]
pub(super) struct Live {
    objects: AtomicI64,
    bytes: AtomicI64,
}

macro_rules! api {
    ($($field:ident = $name:ident($($t:ty),*) -> $r:ty;)*) => {
        /// The functions of the library, which is never closed: drivers have threads of their own.
        pub(super) struct Api {
            $($field: unsafe extern "system" fn($($t),*) -> $r,)*
            faults: Arc<Faults>,
            live: Live,
        }

        impl Api {
            fn load(library: &libloading::Library, faults: Arc<Faults>) -> Result<Self, String> {
                $(let $field = {
                    // SAFETY: the type is that of the function in the headers of OpenCL 1.2; the library
                    // is never closed.
                    let symbol = unsafe {
                        library.get::<unsafe extern "system" fn($($t),*) -> $r>(stringify!($name))
                    };
                    *symbol.map_err(|_| format!("it has no function {}", stringify!($name)))?
                };)*
                Ok(Self { $($field,)* faults, live: Live::default() })
            }
        }
    };
}

type BuildNotify = Option<unsafe extern "system" fn(Handle, *mut c_void)>;
type ContextNotify =
    Option<unsafe extern "system" fn(*const c_char, *const c_void, usize, *mut c_void)>;

api! {
    get_platform_ids = clGetPlatformIDs(u32, *mut Handle, *mut u32) -> i32;
    get_platform_info = clGetPlatformInfo(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    get_device_ids = clGetDeviceIDs(Handle, u64, u32, *mut Handle, *mut u32) -> i32;
    get_device_info = clGetDeviceInfo(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    create_context = clCreateContext(*const isize, u32, *const Handle, ContextNotify, *mut c_void, *mut i32) -> Handle;
    release_context = clReleaseContext(Handle) -> i32;
    create_queue = clCreateCommandQueue(Handle, Handle, u64, *mut i32) -> Handle;
    release_queue = clReleaseCommandQueue(Handle) -> i32;
    create_buffer = clCreateBuffer(Handle, u64, usize, *mut c_void, *mut i32) -> Handle;
    create_sub_buffer = clCreateSubBuffer(Handle, u64, u32, *const c_void, *mut i32) -> Handle;
    release_mem = clReleaseMemObject(Handle) -> i32;
    create_program = clCreateProgramWithSource(Handle, u32, *const *const c_char, *const usize, *mut i32) -> Handle;
    create_binary = clCreateProgramWithBinary(Handle, u32, *const Handle, *const usize, *const *const u8, *mut i32, *mut i32) -> Handle;
    build_program = clBuildProgram(Handle, u32, *const Handle, *const c_char, BuildNotify, *mut c_void) -> i32;
    get_build_info = clGetProgramBuildInfo(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    get_program_info = clGetProgramInfo(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    release_program = clReleaseProgram(Handle) -> i32;
    create_kernel = clCreateKernel(Handle, *const c_char, *mut i32) -> Handle;
    set_kernel_arg = clSetKernelArg(Handle, u32, usize, *const c_void) -> i32;
    release_kernel = clReleaseKernel(Handle) -> i32;
    enqueue_kernel = clEnqueueNDRangeKernel(Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle) -> i32;
    enqueue_read = clEnqueueReadBuffer(Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle) -> i32;
    enqueue_write = clEnqueueWriteBuffer(Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle) -> i32;
    enqueue_copy = clEnqueueCopyBuffer(Handle, Handle, Handle, usize, usize, usize, u32, *const Handle, *mut Handle) -> i32;
    finish_queue = clFinish(Handle) -> i32;
    get_extension = clGetExtensionFunctionAddressForPlatform(Handle, *const c_char) -> Handle;
    get_event_times = clGetEventProfilingInfo(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    release_event = clReleaseEvent(Handle) -> i32;
}

/// Names under which systems have the library.
fn names() -> Vec<PathBuf> {
    let names: &[&str] = if cfg!(target_os = "windows") {
        &["OpenCL.dll"]
    } else if cfg!(target_os = "macos") {
        &["/System/Library/Frameworks/OpenCL.framework/OpenCL"]
    } else {
        &[
            "libOpenCL.so.1",
            "libOpenCL.so",
            "/vendor/lib64/libOpenCL.so",
            "/system/vendor/lib64/libOpenCL.so",
        ]
    };
    names.iter().map(PathBuf::from).collect()
}

impl Api {
    /// Opens the library: the one named, or the first of those that systems have.
    pub(super) fn open(
        library: Option<&PathBuf>,
        faults: Arc<Faults>,
    ) -> Result<Arc<Self>, OpenClError> {
        let tried = library.map_or_else(names, |path| vec![path.clone()]);
        let mut reason = String::new();
        for path in &tried {
            // SAFETY: opening runs the library's constructors, which is what its user asks for.
            match unsafe { libloading::Library::new(path) } {
                Ok(library) => {
                    let library = ManuallyDrop::new(library);
                    let api = Self::load(&library, faults);
                    return api
                        .map(Arc::new)
                        .map_err(|reason| OpenClError::Library { tried, reason });
                }
                Err(e) if reason.is_empty() => reason = e.to_string(),
                Err(_) => {}
            }
        }
        Err(OpenClError::Library { tried, reason })
    }

    pub(super) fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Objects that live, and bytes of buffers.
    pub(super) fn live(&self) -> (i64, i64) {
        (self.live.objects.load(Ordering::Relaxed), self.live.bytes.load(Ordering::Relaxed))
    }

    fn gate(&self, call: &'static str) -> Result<(), OpenClError> {
        self.faults.gate(call)
    }

    /// All devices of all platforms.
    pub(super) fn devices(self: &Arc<Self>) -> Result<Vec<Device>, OpenClError> {
        let mut platforms = [ptr::null_mut(); 16];
        let mut count = 0;
        self.gate("clGetPlatformIDs")?;
        // SAFETY: there is room for as many handles as are asked for.
        let code = unsafe {
            (self.get_platform_ids)(platforms.len() as u32, platforms.as_mut_ptr(), &mut count)
        };
        // Without a driver the loader says so by a code of its own.
        if code == -1001 || (code == SUCCESS && count == 0) {
            return Err(OpenClError::NoDevice { platforms: 0 });
        }
        check("clGetPlatformIDs", code)?;
        let mut found = Vec::new();
        for &platform in platforms.iter().take(count as usize) {
            let mut devices = [ptr::null_mut(); 32];
            let mut count = 0;
            self.gate("clGetDeviceIDs")?;
            // SAFETY: as above; the platform is one that the library gave.
            let code = unsafe {
                (self.get_device_ids)(
                    platform,
                    DEVICE_TYPE_ALL,
                    devices.len() as u32,
                    devices.as_mut_ptr(),
                    &mut count,
                )
            };
            // A platform without a device is no failure of the others.
            if code != SUCCESS {
                continue;
            }
            let of = |&device: &Handle| Device { api: self.clone(), platform, device };
            found.extend(devices.iter().take(count as usize).map(of));
        }
        if found.is_empty() {
            return Err(OpenClError::NoDevice { platforms: count as usize });
        }
        Ok(found)
    }
}

/// What a code becomes.
fn check(call: &'static str, code: i32) -> Result<(), OpenClError> {
    if code == SUCCESS { Ok(()) } else { Err(OpenClError::Call { call, code }) }
}

/// A device of a platform. Handles of platforms and devices live as long as the library.
#[derive(Clone)]
pub(super) struct Device {
    api: Arc<Api>,
    platform: Handle,
    device: Handle,
}

// SAFETY: OpenCL's functions may be called from any thread, save for setting the arguments of one kernel;
// handles are values without a thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// What the library tells of the device (or, for the numbers from 0x900 on, of its platform), as bytes.
    fn bytes(&self, what: u32) -> Option<Vec<u8>> {
        let (get, of) = match what {
            0x0900..0x1000 => (self.api.get_platform_info, self.platform),
            _ => (self.api.get_device_info, self.device),
        };
        self.api.gate("clGetDeviceInfo").ok()?;
        let mut size = 0;
        // SAFETY: only the size is asked for.
        let code = unsafe { get(of, what, 0, ptr::null_mut(), &mut size) };
        if code != SUCCESS || size > 1 << 20 {
            return None;
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: there is room for the size that the library told.
        let code = unsafe { get(of, what, size, bytes.as_mut_ptr().cast(), ptr::null_mut()) };
        (code == SUCCESS).then_some(bytes)
    }

    /// A text; empty where there is none.
    pub(super) fn text(&self, what: u32) -> String {
        let bytes = self.bytes(what).unwrap_or_default();
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
    }

    pub(super) fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// A number of 1, 2, 4 or 8 bytes; 0 where there is none.
    pub(super) fn number(&self, what: u32) -> u64 {
        let bytes = self.bytes(what).unwrap_or_default();
        let mut all = [0; 8];
        all.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
        u64::from_ne_bytes(all)
    }
}
