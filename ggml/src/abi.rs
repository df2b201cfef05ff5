//! ggml's structures for backends, versions 2 and 3 of its interface, declared by us.
//!
//! ggml checks only that the number of the version is its own; [`Host`](crate::host::Host) reads that number
//! from a backend of ggml's, and checks where the fields are that this crate touches. Between the two
//! versions only the record of buffer types differs.

use core::ffi::{c_char, c_int, c_void};
use core::mem::offset_of;

/// Versions of the interface that are known here.
pub(crate) const VERSIONS: [c_int; 2] = [2, 3];

/// A backend of which there are devices.
#[repr(C)]
pub(crate) struct Reg {
    pub(crate) api_version: c_int,
    pub(crate) get_name: unsafe extern "C" fn(*mut Reg) -> *const c_char,
    pub(crate) get_device_count: unsafe extern "C" fn(*mut Reg) -> usize,
    pub(crate) get_device: unsafe extern "C" fn(*mut Reg, usize) -> *mut Device,
    pub(crate) get_proc_address: unsafe extern "C" fn(*mut Reg, *const c_char) -> *mut c_void,
    pub(crate) context: *mut c_void,
}

/// A slot that is left empty.
pub(crate) type Empty = *const c_void;

/// A device.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) get_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    pub(crate) get_description: unsafe extern "C" fn(*mut Device) -> *const c_char,
    pub(crate) get_memory: unsafe extern "C" fn(*mut Device, *mut usize, *mut usize),
    pub(crate) get_type: unsafe extern "C" fn(*mut Device) -> c_int,
    pub(crate) get_props: unsafe extern "C" fn(*mut Device, *mut Props),
    pub(crate) init_backend: unsafe extern "C" fn(*mut Device, *const c_char) -> *mut Backend,
    pub(crate) get_buffer_type: unsafe extern "C" fn(*mut Device) -> *mut BufferType,
    pub(crate) get_host_buffer_type: Empty,
    pub(crate) buffer_from_host_ptr:
        Option<unsafe extern "C" fn(*mut Device, *mut c_void, usize, usize) -> *mut Buffer>,
    pub(crate) supports_op: unsafe extern "C" fn(*mut Device, *const Tensor) -> bool,
    pub(crate) supports_buft: unsafe extern "C" fn(*mut Device, *mut BufferType) -> bool,
    /// Offload of single operations, and three functions of events.
    pub(crate) absent: [Empty; 4],
    pub(crate) reg: *mut Reg,
    pub(crate) context: *mut c_void,
}

/// What a device tells of itself.
#[repr(C)]
pub(crate) struct Props {
    pub(crate) name: *const c_char,
    pub(crate) description: *const c_char,
    pub(crate) memory_free: usize,
    pub(crate) memory_total: usize,
    pub(crate) kind: c_int,
    pub(crate) device_id: *const c_char,
    /// Asynchronous, host buffers, buffers from pointers, events, mapped files.
    pub(crate) caps: [bool; 5],
}

/// A device in use.
#[repr(C)]
pub(crate) struct Backend {
    pub(crate) guid: *const [u8; 16],
    pub(crate) get_name: unsafe extern "C" fn(*mut Backend) -> *const c_char,
    pub(crate) free: unsafe extern "C" fn(*mut Backend),
    /// Asynchronous copies, synchronisation, plans of graphs.
    pub(crate) absent: [Empty; 10],
    pub(crate) graph_compute: unsafe extern "C" fn(*mut Backend, *mut Graph) -> c_int,
    /// Events, and the optimisation of graphs.
    pub(crate) absent_too: [Empty; 3],
    pub(crate) device: *mut Device,
    pub(crate) context: *mut c_void,
}

/// Where buffers come from: slots of functions, then device and context, at places that differ between
/// versions. Fewer slots are used than there are here.
#[repr(C)]
pub(crate) struct BufferType {
    pub(crate) slots: [Empty; 10],
}

/// The places of what is used in a [`BufferType`].
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    pub(crate) get_name: usize,
    pub(crate) alloc_buffer: usize,
    pub(crate) get_alignment: usize,
    pub(crate) is_host: usize,
    pub(crate) device: usize,
}

impl Slots {
    /// Of a version that is known. In 3, functions for lists of tensors stand behind those for one.
    pub(crate) fn of(version: c_int) -> Self {
        let [get_alignment, is_host] = if version == 2 { [2, 5] } else { [3, 7] };
        Self { get_name: 0, alloc_buffer: 1, get_alignment, is_host, device: is_host + 1 }
    }
}

/// The functions of a buffer, which the host copies.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BufferCalls {
    pub(crate) free_buffer: unsafe extern "C" fn(*mut Buffer),
    pub(crate) get_base: unsafe extern "C" fn(*mut Buffer) -> *mut c_void,
    pub(crate) init_tensor: Empty,
    pub(crate) memset_tensor: unsafe extern "C" fn(*mut Buffer, *mut Tensor, u8, usize, usize),
    pub(crate) set_tensor:
        unsafe extern "C" fn(*mut Buffer, *mut Tensor, *const c_void, usize, usize),
    pub(crate) get_tensor:
        unsafe extern "C" fn(*mut Buffer, *const Tensor, *mut c_void, usize, usize),
    /// Copies of rows with a distance.
    pub(crate) absent: [Empty; 2],
    pub(crate) cpy_tensor: Empty,
    pub(crate) clear: unsafe extern "C" fn(*mut Buffer, u8),
    pub(crate) reset: Empty,
}

/// Memory that tensors lie in.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) calls: BufferCalls,
    pub(crate) buft: *mut BufferType,
    pub(crate) context: *mut c_void,
    pub(crate) size: usize,
    pub(crate) usage: c_int,
}

/// A tensor.
#[repr(C)]
pub(crate) struct Tensor {
    pub(crate) kind: c_int,
    pub(crate) buffer: *mut Buffer,
    pub(crate) ne: [i64; 4],
    pub(crate) nb: [usize; 4],
    pub(crate) op: c_int,
    pub(crate) op_params: [i32; 16],
    pub(crate) flags: i32,
    pub(crate) src: [*mut Tensor; 10],
    pub(crate) view_src: *mut Tensor,
    pub(crate) view_offs: usize,
    pub(crate) data: *mut c_void,
    pub(crate) name: [u8; 64],
    pub(crate) extra: *mut c_void,
    pub(crate) padding: [u8; 8],
}

/// A graph, of which only the host's functions know more.
#[repr(C)]
pub(crate) struct Graph {
    opaque: [u8; 0],
}

const _: () = {
    assert!(size_of::<Reg>() == 48 && size_of::<Props>() == 56);
    assert!(size_of::<Device>() == 136 && offset_of!(Device, reg) == 120);
    assert!(offset_of!(Device, supports_op) == 9 * 8);
    assert!(size_of::<Backend>() == 152 && offset_of!(Backend, device) == 136);
    assert!(offset_of!(Backend, graph_compute) == 8 + 12 * 8);
    assert!(size_of::<BufferCalls>() == 88 && size_of::<Buffer>() == 120);
    assert!(offset_of!(BufferCalls, clear) == 9 * 8);
    assert!(size_of::<Tensor>() == 336 && offset_of!(Tensor, op_params) == 84);
    assert!(offset_of!(Tensor, src) == 152 && offset_of!(Tensor, data) == 248);
};

/// Kinds of devices.
pub(crate) const ACCELERATOR: c_int = 3;

/// How a computation ends.
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const FAILED: c_int = -1;

/// What a buffer is for: results of a computation.
pub(crate) const USAGE_COMPUTE: c_int = 2;

/// The flag of a tensor that is to be computed.
pub(crate) const COMPUTE: i32 = 16;

/// Number of the element type `f32`.
pub(crate) const F32: c_int = 0;

/// Numbers of operations: those that take no work, and products. They differ between versions of ggml; the
/// host is asked for their names.
pub(crate) const NO_WORK: [(c_int, &str); 5] =
    [(0, "NONE"), (36, "RESHAPE"), (37, "VIEW"), (38, "PERMUTE"), (39, "TRANSPOSE")];
pub(crate) const MUL_MAT: (c_int, &str) = (29, "MUL_MAT");
