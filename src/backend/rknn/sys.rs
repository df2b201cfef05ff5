//! The interface of the NPU's run-time library, opened at run time: the only unsafe code of this
//! backend. What it gives out is safe to use: contexts and memory end with their owners, and are
//! owned by the thread that made them.
#![allow(unsafe_code, reason = "the interface is one of C")]

use core::ffi::{c_char, c_void};
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, offset_of};
use core::ptr::NonNull;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{RknnError, file_at};

/// Memory that CPU and NPU see.
#[repr(C)]
struct RawMemory {
    virt_addr: *mut c_void,
    phys_addr: u64,
    fd: i32,
    offset: i32,
    size: u32,
    flags: u32,
    private: *mut c_void,
}

/// What the library tells of a matrix.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attr {
    name: [u8; 256],
    n_dims: u32,
    dims: [u32; 16],
    size: u32,
    kind: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attrs {
    pub(super) a: Attr,
    pub(super) b: Attr,
    pub(super) c: Attr,
}

/// What a context is asked for. Versions before 2.0 read 24 bytes, in which the layouts are 32-bit
/// numbers: the same bytes, as long as the fields between are zero.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    m: i32,
    k: i32,
    n: i32,
    kind: i32,
    b_layout: i16,
    b_quant: i16,
    ac_layout: i16,
    ac_quant: i16,
    domain: i32,
    rest: [u8; 36],
}

const _: () = {
    assert!(size_of::<usize>() != 8 || size_of::<RawMemory>() == 40);
    assert!(offset_of!(RawMemory, size) - offset_of!(RawMemory, offset) == 4);
    assert!(size_of::<Attr>() == 332 && offset_of!(Attr, dims) == 260);
    assert!(offset_of!(Attr, size) == 324 && size_of::<Attrs>() == 996);
    assert!(size_of::<Request>() == 64 && offset_of!(Request, ac_layout) == 20);
    assert!(offset_of!(Request, b_layout) == 16 && offset_of!(Request, domain) == 24);
};

/// Layouts that the NPU computes in without moving elements.
const NATIVE: i16 = 1;

const TO_DEVICE: i32 = 1;
const FROM_DEVICE: i32 = 2;
const QUERY_SDK_VERSION: i32 = 5;

type Create = unsafe extern "C" fn(*mut u64, *mut Request, *mut Attrs) -> i32;
type Bind = unsafe extern "C" fn(u64, *mut RawMemory, *mut Attr) -> i32;
type OfContext = unsafe extern "C" fn(u64) -> i32;
type SetMask = unsafe extern "C" fn(u64, u32) -> i32;
type CreateMemory = unsafe extern "C" fn(u64, u32) -> *mut RawMemory;
type DestroyMemory = unsafe extern "C" fn(u64, *mut RawMemory) -> i32;
type Sync = unsafe extern "C" fn(u64, *mut RawMemory, i32) -> i32;
type Query = unsafe extern "C" fn(u64, i32, *mut c_void, u32) -> i32;

/// Which symbols there are, and with them which structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// 1.6 and before.
    V1,
    /// 2.0.
    V2_0,
    /// 2.1 and later.
    V2_1,
}

/// The library, never closed: it has threads of its own.
pub(super) struct Library {
    path: PathBuf,
    interface: Interface,
    create: Create,
    bind: Bind,
    run: OfContext,
    destroy: OfContext,
    create_memory: CreateMemory,
    destroy_memory: DestroyMemory,
    sync: Sync,
    set_mask: Option<SetMask>,
    query: Option<Query>,
    /// Calls that make or end something come one at a time.
    gate: Mutex<()>,
}

impl Library {
    /// Opens a library and looks its symbols up.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, RknnError> {
        let fail = |reason: String| RknnError::Library { path: path.to_owned(), reason };
        // SAFETY: opening runs the library's constructors, which is what its user asks for.
        let library = unsafe { libloading::Library::new(path) };
        let library = ManuallyDrop::new(library.map_err(|e| fail(e.to_string()))?);
        let lacks = |name: &str| fail(format!("it has no symbol `{name}`"));
        macro_rules! symbol {
            ($name:literal, $kind:ty) => {{
                // SAFETY: the type is the function's by the interface. The library is never closed.
                unsafe { library.get::<$kind>($name) }.ok().map(|symbol| *symbol)
            }};
        }
        macro_rules! required {
            ($name:literal, $kind:ty) => {
                symbol!($name, $kind).ok_or_else(|| lacks($name))?
            };
        }
        let has_dynamic = symbol!("rknn_matmul_create_dynamic_shape", *const c_char).is_some();
        let has_dyn = symbol!("rknn_matmul_create_dyn_shape", *const c_char).is_some();
        let interface = match (has_dynamic, has_dyn) {
            (true, _) => Interface::V2_1,
            (false, true) => Interface::V2_0,
            (false, false) => Interface::V1,
        };
        let create = required!("rknn_matmul_create", Create);
        Ok(Arc::new(Self {
            path: file_at(create as usize).unwrap_or_else(|| path.to_owned()),
            interface,
            create,
            bind: required!("rknn_matmul_set_io_mem", Bind),
            run: required!("rknn_matmul_run", OfContext),
            destroy: required!("rknn_matmul_destroy", OfContext),
            create_memory: required!("rknn_create_mem", CreateMemory),
            destroy_memory: required!("rknn_destroy_mem", DestroyMemory),
            sync: required!("rknn_mem_sync", Sync),
            set_mask: symbol!("rknn_matmul_set_core_mask", SetMask),
            query: symbol!("rknn_query", Query),
            gate: Mutex::new(()),
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn interface(&self) -> Interface {
        self.interface
    }

    fn gate(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a code becomes: anything but 0 is a failure.
fn check(call: &'static str, code: i32) -> Result<(), RknnError> {
    if code == 0 { Ok(()) } else { Err(RknnError::Call { call, code }) }
}

/// Products of one shape on one core. Not shared and not sent: the thread that made it uses it.
pub(super) struct Context {
    library: Arc<Library>,
    handle: u64,
    attrs: Attrs,
    /// What A, B and C are bound to.
    bound: [*mut RawMemory; 3],
    here: PhantomData<*mut ()>,
}

impl Context {
    /// A context for `[m, k]` by `[k, n]` in native layouts; `kind` is the number of the types. `core`
    /// of several; `None` where the chip has one only. Memory is bound to contexts of its own `domain`.
    pub(super) fn new(
        library: &Arc<Library>,
        [m, k, n]: [usize; 3],
        kind: i32,
        core: Option<usize>,
        domain: usize,
    ) -> Result<Self, RknnError> {
        let size = |x: usize| {
            i32::try_from(x).map_err(|_| RknnError::Sizes { expected: i32::MAX as usize, found: x })
        };
        let mut request = Request {
            m: size(m)?,
            k: size(k)?,
            n: size(n)?,
            kind,
            b_layout: NATIVE,
            b_quant: 0,
            ac_layout: NATIVE,
            ac_quant: 0,
            domain: size(domain)?,
            rest: [0; 36],
        };
        let attr = Attr { name: [0; 256], n_dims: 0, dims: [0; 16], size: 0, kind: 0 };
        let mut attrs = Attrs { a: attr, b: attr, c: attr };
        let mut handle = 0;
        let gate = library.gate();
        // SAFETY: three valid records, zeroed where nothing is asked.
        let code = unsafe { (library.create)(&raw mut handle, &raw mut request, &raw mut attrs) };
        check("rknn_matmul_create", code)?;
        drop(gate);
        let (library_of, bound) = (library.clone(), [core::ptr::null_mut(); 3]);
        let context = Self { library: library_of, handle, attrs, bound, here: PhantomData };
        if let (Some(core), Some(set_mask)) = (core, library.set_mask) {
            // SAFETY: the context is alive.
            check("rknn_matmul_set_core_mask", unsafe { set_mask(handle, 1 << core) })?;
        }
        Ok(context)
    }

    pub(super) fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// Memory in the domain of this context.
    pub(super) fn memory(&self, bytes: usize) -> Result<Memory, RknnError> {
        let fail = || RknnError::Memory { needed: bytes };
        let size = u32::try_from(bytes).ok().filter(|&s| s > 0).ok_or_else(fail)?;
        let gate = self.library.gate();
        // SAFETY: the context is alive.
        let raw = unsafe { (self.library.create_memory)(self.handle, size) };
        drop(gate);
        let raw = NonNull::new(raw).ok_or_else(fail)?;
        // SAFETY: a record of the library's, which lives until it is destroyed.
        let (address, offset, has) =
            unsafe { ((*raw.as_ptr()).virt_addr, (*raw.as_ptr()).offset, (*raw.as_ptr()).size) };
        let start = NonNull::new(address.cast::<u8>())
            .filter(|_| has >= size && offset >= 0)
            // SAFETY: the data begin so many bytes behind the start of the buffer.
            .map(|start| unsafe { start.add(offset as usize) });
        if let Some(start) = start {
            // SAFETY: so many bytes, which nobody else knows yet. What fresh memory holds is not said.
            unsafe { start.write_bytes(0, bytes) };
        }
        let library = self.library.clone();
        let memory = Memory { library, context: self.handle, raw, start, bytes };
        memory.start.is_some().then_some(memory).ok_or_else(fail)
    }

    /// Binds memory to a matrix of this context.
    pub(super) fn bind(&mut self, memory: &Memory, matrix: Which) -> Result<(), RknnError> {
        let attr = match matrix {
            Which::A => &mut self.attrs.a,
            Which::B => &mut self.attrs.b,
            Which::C => &mut self.attrs.c,
        };
        self.bound[matrix as usize] = core::ptr::null_mut();
        if memory.bytes < attr.size as usize {
            return Err(RknnError::Sizes { expected: attr.size as usize, found: memory.bytes });
        }
        // SAFETY: context and memory are alive, the memory is large enough.
        let code = unsafe { (self.library.bind)(self.handle, memory.raw.as_ptr(), &raw mut *attr) };
        // What cannot be mapped is too much memory.
        match check("rknn_matmul_set_io_mem", code) {
            Err(RknnError::Call { code: -4, .. }) => {
                return Err(RknnError::Memory { needed: memory.bytes });
            }
            other => other?,
        }
        self.bound[matrix as usize] = memory.raw.as_ptr();
        Ok(())
    }

    /// Computes with what was bound, and makes the CPU see the result.
    pub(super) fn run(&mut self, a: &Memory, b: &Memory, c: &mut Memory) -> Result<(), RknnError> {
        // Bound earlier and dropped since, memory would not be there.
        if self.bound != [a, b, c].map(|memory| memory.raw.as_ptr()) {
            return Err(RknnError::Call { call: "rknn_matmul_run", code: -8 });
        }
        // SAFETY: the matrices are bound to these, which live; nobody reads `c` meanwhile.
        check("rknn_matmul_run", unsafe { (self.library.run)(self.handle) })?;
        c.sync(FROM_DEVICE)
    }

    /// The texts of the versions of library and driver.
    pub(super) fn versions(&self) -> Option<[String; 2]> {
        let mut texts = [0u8; 512];
        // SAFETY: the context is alive, the answer has 512 bytes.
        let code = unsafe {
            (self.library.query?)(self.handle, QUERY_SDK_VERSION, texts.as_mut_ptr().cast(), 512)
        };
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        (code == 0).then(|| [text(&texts[..256]), text(&texts[256..])])
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _gate = self.library.gate();
        // SAFETY: the context is alive, and no run is under way: a run borrows it.
        unsafe { (self.library.destroy)(self.handle) };
    }
}

/// The matrices of a product.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    A,
    B,
    C,
}

impl Attr {
    pub(super) fn dims(&self) -> &[u32] {
        &self.dims[..(self.n_dims as usize).min(16)]
    }

    pub(super) fn bytes(&self) -> usize {
        self.size as usize
    }
}

/// Memory that CPU and NPU see.
pub(super) struct Memory {
    library: Arc<Library>,
    context: u64,
    raw: NonNull<RawMemory>,
    /// `None` only in a value that is dropped at once.
    start: Option<NonNull<u8>>,
    bytes: usize,
}

impl Memory {
    pub(super) fn bytes(&self) -> &[u8] {
        match self.start {
            // SAFETY: so many bytes, mapped until the memory is destroyed. Of what is bound the
            // NPU writes only the result, in `Context::run`, which borrows it for writing.
            Some(start) => unsafe { core::slice::from_raw_parts(start.as_ptr(), self.bytes) },
            None => &[],
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.start {
            // SAFETY: as above, and borrowed for writing.
            Some(start) => unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), self.bytes) },
            None => &mut [],
        }
    }

    /// Makes the NPU see what was written.
    pub(super) fn flush(&mut self) -> Result<(), RknnError> {
        self.sync(TO_DEVICE)
    }

    fn sync(&mut self, mode: i32) -> Result<(), RknnError> {
        // SAFETY: the memory is alive.
        let code = unsafe { (self.library.sync)(self.context, self.raw.as_ptr(), mode) };
        check("rknn_mem_sync", code)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _gate = self.library.gate();
        // SAFETY: the memory is alive; its owner keeps the context that it was made with until later.
        unsafe { (self.library.destroy_memory)(self.context, self.raw.as_ptr()) };
    }
}
