//! As much of OpenCL and of CLBlast as it takes to run a product and a convolution there.

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::ptr;
use core::time::Duration;
use std::time::Instant;

use libloading::Library;

use super::Outcome;

type Handle = *mut c_void;

macro_rules! functions {
    ($name:ident { $($field:ident = $symbol:ident($($t:ty),* $(,)?) -> $r:ty;)* }) => {
        struct $name { $($field: unsafe extern "C" fn($($t),*) -> $r,)* }

        impl $name {
            fn load(library: &Library) -> Outcome<Self> {
                // SAFETY: the types are those of the headers; the library is never closed.
                $(let $field = unsafe { *library.get(stringify!($symbol))? };)*
                Ok(Self { $($field,)* })
            }
        }
    };
}

functions! { Cl {
    platforms = clGetPlatformIDs(u32, *mut Handle, *mut u32) -> i32;
    devices = clGetDeviceIDs(Handle, u64, u32, *mut Handle, *mut u32) -> i32;
    context = clCreateContext(*const isize, u32, *const Handle, *const c_void, *mut c_void, *mut i32) -> Handle;
    queue = clCreateCommandQueue(Handle, Handle, u64, *mut i32) -> Handle;
    buffer = clCreateBuffer(Handle, u64, usize, *mut c_void, *mut i32) -> Handle;
    release = clReleaseMemObject(Handle) -> i32;
    write = clEnqueueWriteBuffer(Handle, Handle, u32, usize, usize, *const c_void, u32, *const c_void, *mut c_void) -> i32;
    read = clEnqueueReadBuffer(Handle, Handle, u32, usize, usize, *mut c_void, u32, *const c_void, *mut c_void) -> i32;
} }

functions! { Blast {
    gemm = CLBlastSgemm(i32, i32, i32, usize, usize, usize, f32, Handle, usize, usize, Handle, usize, usize, f32, Handle, usize, usize, *mut Handle, *mut c_void) -> i32;
    gemv = CLBlastSgemv(i32, i32, usize, usize, f32, Handle, usize, usize, Handle, usize, usize, f32, Handle, usize, usize, *mut Handle, *mut c_void) -> i32;
    convgemm = CLBlastSconvgemm(i32, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, Handle, usize, Handle, usize, Handle, usize, *mut Handle, *mut c_void) -> i32;
} }

const ROW_MAJOR: i32 = 101;
const AS_IT_IS: i32 = 111;
const TRANSPOSED: i32 = 112;
const CROSS_CORRELATION: i32 = 151;

fn check(call: &str, code: i32) -> Outcome {
    if code == 0 { Ok(()) } else { Err(format!("{call} gives {code}").into()) }
}

/// A device with the functions to use it.
pub(super) struct ClBlast {
    cl: Cl,
    blast: Blast,
    context: Handle,
    queue: Handle,
}

enum Kind {
    /// m, n, k.
    Product([usize; 3]),
    /// Channels, extent, results, window, stride, padding.
    Convolution([usize; 6]),
}

/// An operation with its memory on the device.
pub(super) struct Operation {
    kind: Kind,
    x: Handle,
    w: Handle,
    y: Handle,
}

impl ClBlast {
    /// The device with this number, if CLBlast is installed.
    pub(super) fn open(index: usize) -> Outcome<Option<Self>> {
        // SAFETY: opening runs the constructors of these libraries, which is what is asked for.
        let opened =
            unsafe { Library::new("libclblast.so.1").or_else(|_| Library::new("libclblast.so")) };
        let Ok(blast) = opened else { return Ok(None) };
        // SAFETY: as above.
        let cl = unsafe { Library::new("libOpenCL.so.1")? };
        // Drivers have threads of their own.
        let (cl, blast) = (ManuallyDrop::new(cl), ManuallyDrop::new(blast));
        let (cl, blast) = (Cl::load(&cl)?, Blast::load(&blast)?);
        let (mut platforms, mut count) = ([ptr::null_mut(); 16], 0);
        // SAFETY: there is room for as many handles as are asked for.
        check("clGetPlatformIDs", unsafe {
            (cl.platforms)(16, platforms.as_mut_ptr(), &mut count)
        })?;
        let mut all = Vec::new();
        for &platform in &platforms[..count as usize] {
            let (mut devices, mut count) = ([ptr::null_mut(); 32], 0);
            // SAFETY: as above; the platform is one that the library gave.
            let code = unsafe {
                (cl.devices)(platform, 0xffff_ffff, 32, devices.as_mut_ptr(), &mut count)
            };
            if code == 0 {
                all.extend_from_slice(&devices[..count as usize]);
            }
        }
        let device = *all.get(index).ok_or("the device is gone")?;
        let mut code = 0;
        // SAFETY: one device of the library's; nobody is notified.
        let context = unsafe {
            (cl.context)(ptr::null(), 1, &device, ptr::null(), ptr::null_mut(), &mut code)
        };
        check("clCreateContext", code)?;
        // SAFETY: context and device live.
        let queue = unsafe { (cl.queue)(context, device, 0, &mut code) };
        check("clCreateCommandQueue", code)?;
        Ok(Some(Self { cl, blast, context, queue }))
    }

    fn memory(&self, count: usize) -> Outcome<Handle> {
        let mut code = 0;
        // SAFETY: the context lives; the buffer has memory of its own.
        let memory =
            unsafe { (self.cl.buffer)(self.context, 1, count * 4, ptr::null_mut(), &mut code) };
        check("clCreateBuffer", code)?;
        Ok(memory)
    }

    fn send(&self, memory: Handle, values: &[f32]) -> Outcome {
        let (bytes, from) = (size_of_val(values), values.as_ptr().cast());
        // SAFETY: the buffer has that many bytes; the call waits until they were read.
        check("clEnqueueWriteBuffer", unsafe {
            (self.cl.write)(self.queue, memory, 1, 0, bytes, from, 0, ptr::null(), ptr::null_mut())
        })
    }

    fn operation(&self, kind: Kind, w: &[f32], x: usize, y: usize) -> Outcome<Operation> {
        let [x, w_memory, y] = [self.memory(x)?, self.memory(w.len())?, self.memory(y)?];
        self.send(w_memory, w)?;
        Ok(Operation { kind, x, w: w_memory, y })
    }

    /// A product of `[m, k]` with weights `[k, n]`.
    pub(super) fn product(&self, [m, n, k]: [usize; 3], w: &[f32]) -> Outcome<Operation> {
        self.operation(Kind::Product([m, n, k]), w, m * k, m * n)
    }

    /// A convolution of one picture, by channels.
    pub(super) fn convolution(&self, of: [usize; 6], w: &[f32]) -> Outcome<Operation> {
        let [c, extent, n, window, stride, pad] = of;
        let out = (extent + 2 * pad - window) / stride + 1;
        self.operation(Kind::Convolution(of), w, c * extent * extent, n * out * out)
    }

    /// Sends activations, computes, and gets the result.
    pub(super) fn run(&mut self, op: &Operation, x: &[f32], y: &mut [f32]) -> Outcome<Duration> {
        let begin = Instant::now();
        self.send(op.x, x)?;
        let (queue, none) = (&raw mut self.queue, ptr::null_mut());
        match op.kind {
            Kind::Product([1, n, k]) => {
                // SAFETY: the buffers hold the matrix and both vectors; the queue lives.
                check("CLBlastSgemv", unsafe {
                    (self.blast.gemv)(
                        ROW_MAJOR, TRANSPOSED, k, n, 1.0, op.w, 0, n, op.x, 0, 1, 0.0, op.y, 0, 1,
                        queue, none,
                    )
                })?;
            }
            Kind::Product([m, n, k]) => {
                // SAFETY: the buffers hold the three matrices; the queue lives.
                check("CLBlastSgemm", unsafe {
                    (self.blast.gemm)(
                        ROW_MAJOR, AS_IT_IS, AS_IT_IS, m, n, k, 1.0, op.x, 0, k, op.w, 0, n, 0.0,
                        op.y, 0, n, queue, none,
                    )
                })?;
            }
            Kind::Convolution([c, extent, n, window, stride, pad]) => {
                // SAFETY: the buffers hold picture, weights and result; the queue lives.
                check("CLBlastSconvgemm", unsafe {
                    (self.blast.convgemm)(
                        CROSS_CORRELATION,
                        c,
                        extent,
                        extent,
                        window,
                        window,
                        pad,
                        pad,
                        stride,
                        stride,
                        1,
                        1,
                        n,
                        1,
                        op.x,
                        0,
                        op.w,
                        0,
                        op.y,
                        0,
                        queue,
                        none,
                    )
                })?;
            }
        }
        let (bytes, to) = (size_of_val(y), y.as_mut_ptr().cast());
        // SAFETY: the buffer has that many bytes; the call waits until they are there.
        check("clEnqueueReadBuffer", unsafe {
            (self.cl.read)(self.queue, op.y, 1, 0, bytes, to, 0, ptr::null(), ptr::null_mut())
        })?;
        Ok(begin.elapsed())
    }
}

impl Operation {
    /// Gives the memory back.
    pub(super) fn end(self, device: &ClBlast) {
        for memory in [self.x, self.w, self.y] {
            // SAFETY: nobody uses it any more.
            unsafe { (device.cl.release)(memory) };
        }
    }
}
