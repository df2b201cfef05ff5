//! Objects of the library: they end with their owners, and are counted while they live.
#![allow(unsafe_code, reason = "the interface is one of C")]

use core::ffi::{c_char, c_void};
use core::ptr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::ffi::CString;
use std::sync::Arc;

use super::{
    Api, BUFFER_CREATE_TYPE_REGION, Device, Handle, MEM_READ_ONLY, MEM_READ_WRITE,
    MEM_USE_HOST_PTR, PROFILING_END, PROFILING_START, PROGRAM_BINARIES, PROGRAM_BINARY_SIZES,
    PROGRAM_BUILD_LOG, SUCCESS, check,
};
use crate::backend::opencl::OpenClError;
use crate::tensor::Tensor;

macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $release:ident) => {
        $(#[$doc])*
        pub(in super::super) struct $name {
            pub(super) api: Arc<Api>,
            pub(super) handle: Handle,
        }

        // SAFETY: OpenCL's functions may be called from any thread; setting the arguments of a kernel, the
        // exception, takes the kernel by a mutable reference.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            pub(super) fn new(
                api: &Arc<Api>,
                call: &'static str,
                make: impl FnOnce(&Api, &mut i32) -> Handle,
            ) -> Result<Self, OpenClError> {
                api.gate(call)?;
                let mut code = SUCCESS;
                let handle = make(api, &mut code);
                check(call, code)?;
                if handle.is_null() {
                    return Err(OpenClError::Call { call, code: -6 });
                }
                api.live.objects.fetch_add(1, Ordering::Relaxed);
                Ok(Self { api: api.clone(), handle })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the handle is this object's, and nobody uses it any more.
                unsafe { (self.api.$release)(self.handle) };
                self.api.live.objects.fetch_sub(1, Ordering::Relaxed);
            }
        }
    };
}

object!(
    /// What buffers, programs and queues of a device belong to.
    Context, release_context
);
object!(RawQueue, release_queue);
object!(RawMem, release_mem);
object!(
    /// Kernels, built for one device.
    Program, release_program
);
object!(RawKernel, release_kernel);
object!(
    /// A command that was submitted, to ask for its time.
    Event, release_event
);

impl Event {
    /// How long the device was busy with the command, once that is done.
    pub(super) fn time(&self) -> Duration {
        let at = |what: u32| {
            let mut nanoseconds = 0u64;
            let to = (&raw mut nanoseconds).cast();
            // SAFETY: there is room for the 8 bytes that are asked for.
            let code = unsafe {
                (self.api.get_event_times)(self.handle, what, size_of::<u64>(), to, ptr::null_mut())
            };
            if code == SUCCESS { nanoseconds } else { 0 }
        };
        Duration::from_nanos(at(PROFILING_END).saturating_sub(at(PROFILING_START)))
    }
}

impl Context {
    pub(in super::super) fn of(device: &Device) -> Result<Self, OpenClError> {
        const PLATFORM: isize = 0x1084;
        let properties = [PLATFORM, device.platform as isize, 0];
        Self::new(&device.api, "clCreateContext", |api, code| {
            // SAFETY: the list of properties ends with a 0; there is one device; nobody is notified.
            unsafe {
                (api.create_context)(
                    properties.as_ptr(),
                    1,
                    &device.device,
                    None,
                    ptr::null_mut(),
                    code,
                )
            }
        })
    }
}

/// Memory of the device: a buffer, or a part of one, which it keeps.
pub(in super::super) struct Mem {
    pub(super) raw: RawMem,
    pub(super) bytes: usize,
    whole: Option<Arc<Mem>>,
    /// Whose bytes it is, if it has none of its own.
    lent: Option<Tensor>,
}

impl Mem {
    /// A buffer of `bytes` bytes, not 0.
    pub(in super::super) fn new(context: &Context, bytes: usize) -> Result<Self, OpenClError> {
        let raw = RawMem::new(&context.api, "clCreateBuffer", |api, code| {
            // SAFETY: the context lives; the buffer has memory of its own.
            unsafe {
                (api.create_buffer)(context.handle, MEM_READ_WRITE, bytes, ptr::null_mut(), code)
            }
        })?;
        context.api.live.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
        Ok(Self { raw, bytes, whole: None, lent: None })
    }

    /// The bytes of a tensor, not 0, where they lie: of no use but for a device that shares the memory of the
    /// host. Kernels only read them.
    pub(in super::super) fn of(context: &Context, value: &Tensor) -> Result<Self, OpenClError> {
        let (bytes, lent) = (value.bytes().len(), Some(value.clone()));
        let host = value.bytes().as_ptr().cast_mut().cast();
        let raw = RawMem::new(&context.api, "clCreateBuffer", |api, code| {
            let flags = MEM_READ_ONLY | MEM_USE_HOST_PTR;
            // SAFETY: the context lives; the bytes do as long as the buffer, which keeps the tensor, and
            // nobody writes them: not who shares the tensor, and not a device by these flags.
            unsafe { (api.create_buffer)(context.handle, flags, bytes, host, code) }
        })?;
        Ok(Self { raw, bytes, whole: None, lent })
    }

    /// A part of a buffer.
    pub(in super::super) fn part(
        whole: &Arc<Self>,
        at: usize,
        bytes: usize,
    ) -> Result<Self, OpenClError> {
        if at.checked_add(bytes).is_none_or(|end| end > whole.bytes) || whole.whole.is_some() {
            return Err(OpenClError::Call { call: "clCreateSubBuffer", code: -30 });
        }
        let region = [at, bytes];
        let raw = RawMem::new(&whole.raw.api, "clCreateSubBuffer", |api, code| {
            // SAFETY: the region, two sizes, lies inside the buffer, which lives as long as its part.
            unsafe {
                (api.create_sub_buffer)(
                    whole.raw.handle,
                    MEM_READ_WRITE,
                    BUFFER_CREATE_TYPE_REGION,
                    region.as_ptr().cast(),
                    code,
                )
            }
        })?;
        Ok(Self { raw, bytes, whole: Some(whole.clone()), lent: None })
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        if self.whole.is_none() && self.lent.is_none() {
            self.raw.api.live.bytes.fetch_sub(self.bytes as i64, Ordering::Relaxed);
        }
    }
}

impl Program {
    /// Builds kernels from their source.
    pub(in super::super) fn from_source(
        context: &Context,
        device: &Device,
        file: &'static str,
        source: &str,
        options: &str,
    ) -> Result<Self, OpenClError> {
        let program = Self::new(&context.api, "clCreateProgramWithSource", |api, code| {
            let (start, length) = (source.as_ptr().cast::<c_char>(), source.len());
            // SAFETY: there is one text, of that length.
            unsafe { (api.create_program)(context.handle, 1, &start, &length, code) }
        })?;
        program.build(device, file, options)?;
        Ok(program)
    }

    /// Takes kernels that were built before.
    pub(in super::super) fn from_binary(
        context: &Context,
        device: &Device,
        file: &'static str,
        binary: &[u8],
        options: &str,
    ) -> Result<Self, OpenClError> {
        let mut status = SUCCESS;
        let program = Self::new(&context.api, "clCreateProgramWithBinary", |api, code| {
            let (start, length) = (binary.as_ptr(), binary.len());
            // SAFETY: there is one device, with one binary of that length.
            unsafe {
                (api.create_binary)(
                    context.handle,
                    1,
                    &device.device,
                    &length,
                    &start,
                    &mut status,
                    code,
                )
            }
        })?;
        check("clCreateProgramWithBinary", status)?;
        program.build(device, file, options)?;
        Ok(program)
    }

    fn build(&self, device: &Device, file: &'static str, options: &str) -> Result<(), OpenClError> {
        let text = CString::new(options).unwrap_or_default();
        self.api.gate("clBuildProgram")?;
        // SAFETY: there is one device; the text ends with a 0; the call returns when it is done.
        let code = unsafe {
            (self.api.build_program)(
                self.handle,
                1,
                &device.device,
                text.as_ptr(),
                None,
                ptr::null_mut(),
            )
        };
        if code == SUCCESS {
            return Ok(());
        }
        let log = self.log(device).unwrap_or_default();
        if code != -11 || log.is_empty() {
            return check("clBuildProgram", code);
        }
        Err(OpenClError::Build { file, options: options.to_owned(), log })
    }

    fn log(&self, device: &Device) -> Option<String> {
        let get = self.api.get_build_info;
        let mut size = 0;
        // SAFETY: only the size is asked for.
        let code = unsafe {
            get(self.handle, device.device, PROGRAM_BUILD_LOG, 0, ptr::null_mut(), &mut size)
        };
        if code != SUCCESS || size > 1 << 20 {
            return None;
        }
        let mut bytes = vec![0u8; size];
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: there is room for the size that the library told.
        let code = unsafe {
            get(self.handle, device.device, PROGRAM_BUILD_LOG, size, to, ptr::null_mut())
        };
        let text = String::from_utf8_lossy(&bytes);
        (code == SUCCESS).then(|| text.trim_end_matches('\0').chars().take(4000).collect())
    }

    /// The kernels as the driver keeps them.
    pub(in super::super) fn binary(&self) -> Result<Vec<u8>, OpenClError> {
        let api = &self.api;
        api.gate("clGetProgramInfo")?;
        let mut size = 0usize;
        // SAFETY: there is one device, hence one size.
        let code = unsafe {
            (api.get_program_info)(
                self.handle,
                PROGRAM_BINARY_SIZES,
                size_of::<usize>(),
                (&raw mut size).cast(),
                ptr::null_mut(),
            )
        };
        check("clGetProgramInfo", code)?;
        let mut binary = vec![0u8; size];
        let mut start = binary.as_mut_ptr();
        // SAFETY: there is one device, hence one pointer, to as many bytes as the library told.
        let code = unsafe {
            (api.get_program_info)(
                self.handle,
                PROGRAM_BINARIES,
                size_of::<*mut u8>(),
                (&raw mut start).cast(),
                ptr::null_mut(),
            )
        };
        check("clGetProgramInfo", code)?;
        Ok(binary)
    }
}

/// An argument of a kernel.
pub(in super::super) enum Value {
    /// Memory, and where in it an operand begins, in bytes: two arguments.
    Memory(Arc<Mem>, u64),
    /// A number.
    Int(i32),
    /// A number.
    Float(f32),
    /// So many bytes of the work-group's memory.
    Local(usize),
    /// One structure of where the operands before it begin, which then are one argument each, and of these
    /// numbers.
    Numbers(Vec<u8>),
}

/// A kernel with its arguments, over so many work-items.
pub(in super::super) struct Launch {
    pub(super) kernel: RawKernel,
    pub(super) global: [usize; 3],
    pub(super) local: Option<[usize; 3]>,
    /// How a profile calls it.
    pub(super) label: Arc<str>,
    /// What the kernel reads and writes.
    _memory: Vec<Arc<Mem>>,
}

impl Launch {
    /// A kernel of a program with its arguments.
    ///
    /// # Safety
    /// With these arguments and work-items, the kernel reads and writes only inside the memory of its
    /// arguments.
    pub(in super::super) unsafe fn new(
        program: &Program,
        name: &str,
        values: Vec<Value>,
        global: [usize; 3],
        local: Option<[usize; 3]>,
    ) -> Result<Self, OpenClError> {
        let text = CString::new(name).unwrap_or_default();
        let kernel = RawKernel::new(&program.api, "clCreateKernel", |api, code| {
            // SAFETY: the text ends with a 0.
            unsafe { (api.create_kernel)(program.handle, text.as_ptr(), code) }
        })?;
        let mut index = 0;
        let mut set = |size: usize, value: *const c_void| {
            program.api.gate("clSetKernelArg")?;
            // SAFETY: the value has as many bytes as said, or is null for memory of the work-group; the
            // kernel is not shared yet.
            let code = unsafe { (program.api.set_kernel_arg)(kernel.handle, index, size, value) };
            index += 1;
            check("clSetKernelArg", code)
        };
        let mut memory = Vec::new();
        let together = values.iter().any(|value| matches!(value, Value::Numbers(_)));
        let mut places: Vec<u8> = Vec::new();
        for value in values {
            match value {
                Value::Memory(mem, at) => {
                    set(size_of::<Handle>(), (&raw const mem.raw.handle).cast())?;
                    match together {
                        true => places.extend(at.to_ne_bytes()),
                        false => set(size_of::<u64>(), (&raw const at).cast())?,
                    }
                    memory.push(mem);
                }
                Value::Numbers(numbers) => {
                    places.extend(numbers);
                    // As C has it, for a structure that begins with numbers of 64 bits.
                    places.resize(places.len().next_multiple_of(size_of::<u64>()), 0);
                    set(places.len(), places.as_ptr().cast())?;
                }
                Value::Int(v) => set(size_of::<i32>(), (&raw const v).cast())?,
                Value::Float(v) => set(size_of::<f32>(), (&raw const v).cast())?,
                Value::Local(bytes) => set(bytes, ptr::null())?,
            }
        }
        Ok(Self { kernel, global, local, label: "".into(), _memory: memory })
    }

    /// With the name by which its time is added up.
    pub(in super::super) fn named(self, label: &str) -> Self {
        Self { label: label.into(), ..self }
    }
}
