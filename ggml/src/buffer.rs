//! Memory of weights: ours, or a file's that ggml has mapped; the CPU reads both.

use core::alloc::Layout;
use core::ffi::{c_char, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::{alloc_zeroed, dealloc};
use std::sync::Arc;

use crate::abi::{Buffer, BufferCalls, BufferType, Device, Tensor};
use crate::device::{guarded, plugin};

/// Alignment of memory and of tensors in it.
const ALIGNMENT: usize = 64;

/// A piece of memory. What holds it keeps it from being freed.
pub struct Memory {
    id: u64,
    /// Counts what ggml has written by calls.
    version: AtomicU64,
    start: NonNull<u8>,
    bytes: usize,
    /// How it was allocated; `None` for memory of ggml's.
    layout: Option<Layout>,
}

// SAFETY: it is a piece of memory; who reads it while ggml may write is told so by `Memory::read`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self::at(start, bytes, Some(layout)))
    }

    fn at(start: NonNull<u8>, bytes: usize, layout: Option<Layout>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, version: AtomicU64::new(0), start, bytes, layout }
    }

    /// A number that no other memory has had, and how often ggml has written to it by calls.
    pub fn state(&self) -> (u64, u64) {
        (self.id, self.version.load(Ordering::Acquire))
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// If they are not all in this memory.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), String> {
        if at.checked_add(out.len()).is_none_or(|end| end > self.bytes) {
            return Err(format!("{} bytes from {at} on are outside of the weights", out.len()));
        }
        // SAFETY: these bytes are ours as long as we are. A program that loads weights while it computes
        // with them gets what it asks for: some bytes of both.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr().add(at), out.as_mut_ptr(), out.len())
        };
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated so, and nobody holds it any more.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// The memory of a buffer, if it is one of ours, and where in it a tensor begins.
///
/// # Safety
/// The buffer of the tensor is null or valid.
pub(crate) unsafe fn place(tensor: &Tensor) -> Option<(Arc<Memory>, usize)> {
    // SAFETY: by contract; a buffer of our type has a context of ours, save one of size 0, which is made by
    // the host.
    let memory = unsafe {
        let buffer = tensor.buffer.as_ref().filter(|b| b.buft == plugin().buft())?;
        buffer.context.cast::<Arc<Memory>>().as_ref()?
    };
    let at = (tensor.data as usize).checked_sub(memory.start.as_ptr() as usize)?;
    (at < memory.bytes).then(|| (memory.clone(), at))
}

/// The memory behind a buffer that ggml hands back.
///
/// # Safety
/// The buffer is one that `wrap` made and that has not been freed.
unsafe fn memory<'a>(buffer: *mut Buffer) -> &'a Memory {
    // SAFETY: by contract.
    unsafe { &*(*buffer).context.cast::<Arc<Memory>>() }
}

/// A buffer as ggml has them.
fn wrap(buft: *mut BufferType, memory: Memory) -> *mut Buffer {
    let bytes = memory.bytes;
    let context = Box::into_raw(Box::new(Arc::new(memory)));
    // SAFETY: the host copies the functions; the context is freed by `free_buffer`.
    unsafe { (plugin().host.buffer_init)(buft, CALLS, context.cast(), bytes) }
}

pub(crate) unsafe extern "C" fn alloc_buffer(buft: *mut BufferType, size: usize) -> *mut Buffer {
    guarded(ptr::null_mut(), || Memory::new(size).map_or(ptr::null_mut(), |m| wrap(buft, m)))
}

pub(crate) unsafe extern "C" fn from_host_ptr(
    _device: *mut Device,
    start: *mut c_void,
    size: usize,
    _max_tensor: usize,
) -> *mut Buffer {
    guarded(ptr::null_mut(), || {
        let Some(start) = NonNull::new(start.cast::<u8>()) else { return ptr::null_mut() };
        wrap(plugin().buft(), Memory::at(start, size, None))
    })
}

pub(crate) unsafe extern "C" fn buft_name(_buft: *mut BufferType) -> *const c_char {
    plugin().name.as_ptr()
}

pub(crate) unsafe extern "C" fn alignment(_buft: *mut BufferType) -> usize {
    ALIGNMENT
}

pub(crate) unsafe extern "C" fn is_host(_buft: *mut BufferType) -> bool {
    true
}

const CALLS: BufferCalls = BufferCalls {
    free_buffer,
    get_base,
    init_tensor: ptr::null(),
    memset_tensor,
    set_tensor,
    get_tensor,
    absent: [ptr::null(); 2],
    cpy_tensor: ptr::null(),
    clear,
    reset: ptr::null(),
};

unsafe extern "C" fn free_buffer(buffer: *mut Buffer) {
    // SAFETY: made by `wrap`; ggml frees a buffer once.
    guarded((), || drop(unsafe { Box::from_raw((*buffer).context.cast::<Arc<Memory>>()) }));
}

unsafe extern "C" fn get_base(buffer: *mut Buffer) -> *mut c_void {
    // SAFETY: ggml asks for a buffer that lives.
    unsafe { memory(buffer).start.as_ptr().cast() }
}

unsafe extern "C" fn memset_tensor(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    value: u8,
    offset: usize,
    size: usize,
) {
    // SAFETY: ggml checks that so many bytes from there on are the tensor's, in this buffer.
    unsafe {
        (*tensor).data.cast::<u8>().add(offset).write_bytes(value, size);
        memory(buffer).version.fetch_add(1, Ordering::Release);
    }
}

unsafe extern "C" fn set_tensor(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: ggml checks that so many bytes from there on are the tensor's, in this buffer; `data` may
    // lie there as well.
    unsafe {
        ptr::copy(data.cast::<u8>(), (*tensor).data.cast::<u8>().add(offset), size);
        memory(buffer).version.fetch_add(1, Ordering::Release);
    }
}

unsafe extern "C" fn get_tensor(
    _buffer: *mut Buffer,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: ggml checks that so many bytes from there on are the tensor's.
    unsafe { ptr::copy((*tensor).data.cast::<u8>().add(offset), data.cast::<u8>(), size) };
}

unsafe extern "C" fn clear(buffer: *mut Buffer, value: u8) {
    // SAFETY: ggml clears a buffer that lives and that nobody else uses.
    unsafe {
        let memory = memory(buffer);
        memory.start.as_ptr().write_bytes(value, memory.bytes);
        memory.version.fetch_add(1, Ordering::Release);
    }
}
