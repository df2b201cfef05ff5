//! The ggml that has loaded us: the functions that we call, and the check that its structures are those
//! that we know.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::ffi::CString;
use std::sync::OnceLock;

use crate::abi::{
    Backend, Buffer, BufferCalls, BufferType, Device, Graph, MUL_MAT, NO_WORK, Reg, Slots, Tensor,
    VERSIONS,
};

/// Bytes that ggml puts before each tensor.
const OBJECT: usize = 32;

/// Functions of the host.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    /// Version of its interface, one of those that are known.
    pub(crate) version: c_int,
    pub(crate) slots: Slots,
    pub(crate) is_host: unsafe extern "C" fn(*mut BufferType) -> bool,
    pub(crate) graph_n_nodes: unsafe extern "C" fn(*mut Graph) -> c_int,
    pub(crate) graph_node: unsafe extern "C" fn(*mut Graph, c_int) -> *mut Tensor,
    pub(crate) buffer_init:
        unsafe extern "C" fn(*mut BufferType, BufferCalls, *mut c_void, usize) -> *mut Buffer,
    type_size: unsafe extern "C" fn(c_int) -> usize,
    block_size: unsafe extern "C" fn(c_int) -> i64,
}

static HOST: OnceLock<Result<Host, String>> = OnceLock::new();

/// The host, found and checked once.
///
/// # Errors
/// Why this is no host for us, in a clause.
pub(crate) fn host() -> Result<Host, String> {
    HOST.get_or_init(|| {
        // SAFETY: `find` only gives out functions of the names and types that ggml.h and ggml-backend.h
        // declare.
        unsafe { find() }
    })
    .clone()
}

/// Handles of the shared objects in this process.
fn objects() -> Vec<*mut c_void> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: the record is valid during the call, `names` is the vector below.
        let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: the loader's name of the object, ended by a zero.
            names.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: the function gets the vector that it expects.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    let open = |name: &CString| {
        // The program itself has no name.
        let name = if name.is_empty() { ptr::null() } else { name.as_ptr() };
        // SAFETY: what is loaded already is not loaded again, so no code runs.
        unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
    };
    names.iter().map(open).filter(|handle| !handle.is_null()).collect()
}

/// # Safety
/// The functions in the process with ggml's names have the types that its headers declare.
unsafe fn find() -> Result<Host, String> {
    let objects = objects();
    let symbol = |name: &CStr| {
        // SAFETY: a handle of an object, and a name.
        let look = |&handle: &*mut c_void| unsafe { libc::dlsym(handle, name.as_ptr()) };
        let mut found: Vec<*mut c_void> =
            objects.iter().map(look).filter(|address| !address.is_null()).collect();
        found.sort_unstable();
        found.dedup();
        let text = name.to_string_lossy();
        match found[..] {
            [] => Err(format!(
                "this llama.cpp hides `{text}`, so its version cannot be checked; use one with shared \
                 libraries"
            )),
            [one] => Ok(one),
            _ => Err(format!("there are {} copies of ggml in this process", found.len())),
        }
    };
    macro_rules! function {
        ($name:literal, $kind:ty) => {{
            let address = symbol($name)?;
            // SAFETY: the function's type, by the caller's word.
            unsafe { core::mem::transmute::<*mut c_void, $kind>(address) }
        }};
    }
    let op_name = function!(c"ggml_op_name", unsafe extern "C" fn(c_int) -> *const c_char);
    for (number, name) in NO_WORK.into_iter().chain([MUL_MAT]) {
        // SAFETY: there are more operations than these in every version.
        let found = unsafe { CStr::from_ptr(op_name(number)) }.to_string_lossy();
        if found != name {
            return Err(format!("its operation {number} is {found}, not {name}"));
        }
    }
    let overhead = function!(c"ggml_tensor_overhead", unsafe extern "C" fn() -> usize);
    // SAFETY: it takes nothing.
    let found = unsafe { overhead() };
    if found != size_of::<Tensor>() + OBJECT {
        return Err(format!(
            "its tensors have {found} bytes, not {}",
            size_of::<Tensor>() + OBJECT
        ));
    }
    let count = function!(c"ggml_backend_dev_count", unsafe extern "C" fn() -> usize);
    let get = function!(c"ggml_backend_dev_get", unsafe extern "C" fn(usize) -> *mut Device);
    let reg =
        function!(c"ggml_backend_dev_backend_reg", unsafe extern "C" fn(*mut Device) -> *mut Reg);
    let memory_of = function!(
        c"ggml_backend_dev_buffer_type",
        unsafe extern "C" fn(*mut Device) -> *mut BufferType
    );
    let allocate = function!(
        c"ggml_backend_buft_alloc_buffer",
        unsafe extern "C" fn(*mut BufferType, usize) -> *mut Buffer
    );
    let free = function!(c"ggml_backend_buffer_free", unsafe extern "C" fn(*mut Buffer));
    let init = function!(
        c"ggml_backend_dev_init",
        unsafe extern "C" fn(*mut Device, *const c_char) -> *mut Backend
    );
    let end = function!(c"ggml_backend_free", unsafe extern "C" fn(*mut Backend));
    let owner = function!(
        c"ggml_backend_buft_get_device",
        unsafe extern "C" fn(*mut BufferType) -> *mut Device
    );
    let is_host =
        function!(c"ggml_backend_buft_is_host", unsafe extern "C" fn(*mut BufferType) -> bool);
    let version;
    // SAFETY: the last device is the CPU, or another of the host's own; what is made of it is ended here.
    unsafe {
        let Some(last) = count().checked_sub(1) else {
            return Err("it has no CPU backend yet; load that first".to_owned());
        };
        let device = get(last);
        version = (*reg(device)).api_version;
        if !VERSIONS.contains(&version) {
            return Err(format!(
                "it has version {version} of the interface for backends; this plug-in knows {VERSIONS:?}"
            ));
        }
        let slots = Slots::of(version);
        let differs = |what: &str| Err(format!("its {what} is laid out in another way"));
        if (*device).reg != reg(device) || ((*device).get_buffer_type)(device) != memory_of(device)
        {
            return differs("record of devices");
        }
        let buft = memory_of(device);
        // The CPU's buffers are in its memory, and their function for that is the last one.
        let functions = [slots.get_name, slots.alloc_buffer, slots.get_alignment, slots.is_host];
        if functions.iter().any(|&slot| (*buft).slots[slot].is_null())
            || !is_host(buft)
            || (*buft).slots[slots.device] != owner(buft).cast_const().cast()
        {
            return differs("record of buffer types");
        }
        let buffer = allocate(buft, 4096);
        if buffer.is_null() {
            return Err("it has no memory".to_owned());
        }
        let same = (*buffer).buft == buft && (*buffer).size >= 4096 && (*buffer).size < 1 << 20;
        free(buffer);
        if !same {
            return differs("record of buffers");
        }
        let backend = init(device, ptr::null());
        if backend.is_null() {
            return Err("its device cannot be used".to_owned());
        }
        let same = (*backend).device == device;
        end(backend);
        if !same {
            return differs("record of backends");
        }
    }
    Ok(Host {
        version,
        slots: Slots::of(version),
        is_host,
        graph_n_nodes: function!(c"ggml_graph_n_nodes", unsafe extern "C" fn(*mut Graph) -> c_int),
        graph_node: function!(
            c"ggml_graph_node",
            unsafe extern "C" fn(*mut Graph, c_int) -> *mut Tensor
        ),
        buffer_init: function!(
            c"ggml_backend_buffer_init",
            unsafe extern "C" fn(*mut BufferType, BufferCalls, *mut c_void, usize) -> *mut Buffer
        ),
        type_size: function!(c"ggml_type_size", unsafe extern "C" fn(c_int) -> usize),
        block_size: function!(c"ggml_blck_size", unsafe extern "C" fn(c_int) -> i64),
    })
}

impl Host {
    /// Elements and bytes of a block of the element type with this number, which ggml has.
    pub(crate) fn block(&self, kind: c_int) -> (i64, usize) {
        // SAFETY: both look a number up in a table.
        unsafe { ((self.block_size)(kind), (self.type_size)(kind)) }
    }
}
