//! The backend's record, its device, and the computation of graphs.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::panic::AssertUnwindSafe;
use core::ptr;
use std::ffi::CString;
use std::panic::catch_unwind;
use std::sync::OnceLock;

use tilewright::import::gguf::dtype;
use tilewright::tensor::available_memory;

use crate::abi::{self, Backend, BufferType, Device, Graph, MUL_MAT, NO_WORK, Props, Reg, Tensor};
use crate::buffer::{alignment, alloc_buffer, buft_name, from_host_ptr, is_host, place};
use crate::host::Host;
use crate::{Engine, Shape, Weights};

/// What there is once in a process: ggml never ends it.
pub(crate) struct Plugin {
    pub(crate) host: Host,
    pub(crate) name: &'static CStr,
    description: CString,
    engine: Box<dyn Engine>,
    guid: [u8; 16],
    /// The records that ggml knows, which point to each other.
    reg: *mut Reg,
    device: *mut Device,
    buft: *mut BufferType,
}

// SAFETY: the records are not written after they were made; all else is `Send` and `Sync`.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    pub(crate) fn buft(&self) -> *mut BufferType {
        self.buft
    }
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// The plug-in. All who call have a record that [`register`] made.
pub(crate) fn plugin() -> &'static Plugin {
    PLUGIN.get().expect("registered before anything can be called")
}

/// What `work` returns, or `otherwise` if it panics.
pub(crate) fn guarded<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(otherwise)
}

/// Makes the records, once.
pub(crate) fn register(host: Host, engine: Box<dyn Engine>) -> *mut Reg {
    let plugin = PLUGIN.get_or_init(|| {
        let device = Box::into_raw(Box::new(Device {
            get_name: device_name,
            get_description: description,
            get_memory: memory,
            get_type: kind,
            get_props: props,
            init_backend,
            get_buffer_type: buffer_type,
            // One that is also the device's own would make llama.cpp put weights in the CPU's instead.
            get_host_buffer_type: ptr::null(),
            buffer_from_host_ptr: if engine.maps() { Some(from_host_ptr) } else { None },
            supports_op,
            supports_buft,
            absent: [ptr::null(); 4],
            reg: ptr::null_mut(),
            context: ptr::null_mut(),
        }));
        let mut slots = [ptr::null(); 10];
        slots[host.slots.get_name] = buft_name as *const c_void;
        slots[host.slots.alloc_buffer] = alloc_buffer as *const c_void;
        slots[host.slots.get_alignment] = alignment as *const c_void;
        slots[host.slots.is_host] = is_host as *const c_void;
        slots[host.slots.device] = device.cast_const().cast();
        let buft = Box::into_raw(Box::new(BufferType { slots }));
        let reg = Box::into_raw(Box::new(Reg {
            api_version: host.version,
            get_name: reg_name,
            get_device_count: device_count,
            get_device,
            get_proc_address,
            context: ptr::null_mut(),
        }));
        // SAFETY: made above, and known to nobody else yet.
        unsafe { (*device).reg = reg };
        let description = CString::new(engine.description()).unwrap_or_default();
        let (name, guid) = (engine.name(), engine.guid());
        Plugin { host, name, description, engine, guid, reg, device, buft }
    });
    plugin.reg
}

unsafe extern "C" fn reg_name(_reg: *mut Reg) -> *const c_char {
    plugin().name.as_ptr()
}

unsafe extern "C" fn device_count(_reg: *mut Reg) -> usize {
    1
}

unsafe extern "C" fn get_device(_reg: *mut Reg, index: usize) -> *mut Device {
    if index == 0 { plugin().device } else { ptr::null_mut() }
}

unsafe extern "C" fn get_proc_address(_reg: *mut Reg, name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: ggml passes text that ends with a zero.
    match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"ggml_backend_set_n_threads" => set_n_threads as *mut c_void,
        _ => ptr::null_mut(),
    }
}

unsafe extern "C" fn set_n_threads(_backend: *mut Backend, threads: c_int) {
    guarded((), || plugin().engine.set_threads(usize::try_from(threads).unwrap_or(1).max(1)));
}

unsafe extern "C" fn device_name(_device: *mut Device) -> *const c_char {
    plugin().name.as_ptr()
}

unsafe extern "C" fn description(_device: *mut Device) -> *const c_char {
    plugin().description.as_ptr()
}

/// Free memory and all memory, in bytes: device and CPU have the same.
fn sizes() -> [usize; 2] {
    let total = || {
        let info = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    };
    let free = available_memory().unwrap_or(0);
    [free, total().unwrap_or(free)]
}

unsafe extern "C" fn memory(_device: *mut Device, free: *mut usize, total: *mut usize) {
    let [has, all] = guarded([0, 0], sizes);
    // SAFETY: two places for the answer.
    unsafe {
        free.write(has);
        total.write(all);
    }
}

unsafe extern "C" fn kind(_device: *mut Device) -> c_int {
    abi::ACCELERATOR
}

unsafe extern "C" fn props(_device: *mut Device, props: *mut Props) {
    let plugin = plugin();
    let [memory_free, memory_total] = guarded([0, 0], sizes);
    let found = Props {
        name: plugin.name.as_ptr(),
        description: plugin.description.as_ptr(),
        memory_free,
        memory_total,
        kind: abi::ACCELERATOR,
        device_id: ptr::null(),
        caps: [false, false, plugin.engine.maps(), false, false],
    };
    // SAFETY: a place for the answer.
    unsafe { props.write(found) };
}

unsafe extern "C" fn buffer_type(_device: *mut Device) -> *mut BufferType {
    plugin().buft
}

/// Whatever the CPU can read.
unsafe extern "C" fn supports_buft(_device: *mut Device, buft: *mut BufferType) -> bool {
    // SAFETY: a buffer type of the host's, which lives as long as the process.
    unsafe { buft == plugin().buft || (plugin().host.is_host)(buft) }
}

unsafe extern "C" fn init_backend(device: *mut Device, _params: *const c_char) -> *mut Backend {
    Box::into_raw(Box::new(Backend {
        guid: &raw const plugin().guid,
        get_name: backend_name,
        free: free_backend,
        absent: [ptr::null(); 10],
        graph_compute,
        absent_too: [ptr::null(); 3],
        device,
        context: ptr::null_mut(),
    }))
}

unsafe extern "C" fn backend_name(_backend: *mut Backend) -> *const c_char {
    plugin().name.as_ptr()
}

unsafe extern "C" fn free_backend(backend: *mut Backend) {
    // SAFETY: made by `init_backend`; ggml frees it once.
    drop(unsafe { Box::from_raw(backend) });
}

fn has_no_work(tensor: &Tensor) -> bool {
    NO_WORK.iter().any(|(op, _)| *op == tensor.op) || tensor.ne.contains(&0)
}

unsafe extern "C" fn supports_op(_device: *mut Device, tensor: *const Tensor) -> bool {
    guarded(false, || {
        // SAFETY: a tensor of the host's with its operands; data are not looked at.
        unsafe {
            let tensor = &*tensor;
            has_no_work(tensor)
                || product(tensor).is_some_and(|p| plugin().engine.supports(&p.shape()))
        }
    })
}

/// Operands of a product, whose data may not be there.
struct Product<'a> {
    w: &'a Tensor,
    x: &'a Tensor,
    y: &'a Tensor,
    dtype: tilewright::DType,
    /// Bytes of a row of weights.
    row: usize,
}

/// What a tensor is, if it is a product of the form that is computed here: weights whose rows follow one
/// another, activations of `f32` whose rows may lie anywhere, a contiguous result.
///
/// # Safety
/// The tensor's operands are null or valid.
unsafe fn product(y: &Tensor) -> Option<Product<'_>> {
    if y.op != MUL_MAT.0 {
        return None;
    }
    // SAFETY: by contract.
    let (w, x) = unsafe { (y.src[0].as_ref()?, y.src[1].as_ref()?) };
    let dtype = dtype(u32::try_from(w.kind).ok()?).ok()?;
    let size = |n: i64| usize::try_from(n).ok();
    let row = dtype.bytes_of(size(w.ne[0])?)?;
    let float = size_of::<f32>();
    let contiguous = |t: &Tensor| {
        let mut distance = float;
        t.ne.iter().zip(t.nb).all(|(&n, nb)| {
            let fits = nb == distance;
            distance = distance.saturating_mul(usize::try_from(n).unwrap_or(usize::MAX));
            fits
        })
    };
    // The host's own idea of a block must be ours.
    let same = plugin().host.block(w.kind) == (dtype.block_elems() as i64, dtype.block_bytes());
    let shapes = w.ne[0] == x.ne[0]
        && y.ne == [w.ne[1], x.ne[1], x.ne[2], x.ne[3]]
        && w.ne.iter().all(|&n| n > 0)
        && x.ne[2] % w.ne[2] == 0
        && x.ne[3] % w.ne[3] == 0;
    let strides = w.nb[0] == dtype.block_bytes() && w.nb[1] == row && x.nb[0] == float;
    let floats = x.kind == abi::F32 && y.kind == abi::F32 && contiguous(y);
    // A hint asks for something more.
    let plain = y.op_params[1] == 0;
    (same && shapes && strides && floats && plain).then_some(Product { w, x, y, dtype, row })
}

impl Product<'_> {
    fn shape(&self) -> Shape<'_> {
        let [k, n] = [self.w.ne[0] as usize, self.w.ne[1] as usize];
        let name = self.y.name.split(|&b| b == 0).next().unwrap_or_default();
        // SAFETY: the buffer of a tensor is null or valid.
        let constant = unsafe {
            let buffer = self.w.buffer.as_ref();
            buffer.is_some_and(|b| b.buft == plugin().buft && b.usage != abi::USAGE_COMPUTE)
        };
        Shape {
            dtype: self.dtype,
            n,
            k,
            rows: self.x.ne[1] as usize,
            batch: (self.x.ne[2] * self.x.ne[3]) as usize,
            constant,
            name: core::str::from_utf8(name).unwrap_or_default(),
        }
    }

    /// Computes all products of the operation.
    ///
    /// # Safety
    /// The operands have data, the result's is written by nobody else.
    unsafe fn compute(&self) -> Result<(), String> {
        let Shape { n, k, rows, dtype, .. } = self.shape();
        let (w, x, y) = (self.w, self.x, self.y);
        // SAFETY: the buffer of a tensor with data is valid.
        let place = unsafe { place(w) };
        let mut gathered = Vec::new();
        for (i3, i2) in (0..x.ne[3]).flat_map(|i3| (0..x.ne[2]).map(move |i2| (i3, i2))) {
            let [w2, w3] = [i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3])].map(|i| i as usize);
            let [i2, i3] = [i2, i3].map(|i| i as usize);
            let at = w2 * w.nb[2] + w3 * w.nb[3];
            let from = i2 * x.nb[2] + i3 * x.nb[3];
            // SAFETY: the matrices exist at the strides that the tensors have, and rows of weights and of
            // the result follow one another; ggml aligns tensors to 16 bytes at least.
            let (bytes, given, result) = unsafe {
                let bytes = core::slice::from_raw_parts(w.data.cast::<u8>().add(at), n * self.row);
                let given = x.data.cast::<u8>().add(from);
                let to = y.data.cast::<u8>().add(i2 * y.nb[2] + i3 * y.nb[3]);
                (bytes, given, core::slice::from_raw_parts_mut(to.cast::<f32>(), rows * n))
            };
            let dense = x.nb[1] == k * size_of::<f32>();
            if !dense {
                gathered.clear();
                for row in 0..rows {
                    // SAFETY: a row of so many elements at its stride.
                    gathered.extend_from_slice(unsafe {
                        core::slice::from_raw_parts(given.add(row * x.nb[1]).cast::<f32>(), k)
                    });
                }
            }
            let x = if dense {
                // SAFETY: all rows, one after the other.
                unsafe { core::slice::from_raw_parts(given.cast::<f32>(), rows * k) }
            } else {
                &gathered[..]
            };
            let place = place.as_ref().map(|(memory, start)| (memory.clone(), start + at));
            plugin().engine.multiply(&Weights { dtype, n, k, bytes, place }, x, result)?;
        }
        Ok(())
    }
}

unsafe extern "C" fn graph_compute(_backend: *mut Backend, graph: *mut Graph) -> c_int {
    guarded(abi::FAILED, || {
        let host = &plugin().host;
        // SAFETY: a graph of the host's, whose tensors have data.
        unsafe {
            let nodes: Vec<&Tensor> = (0..(host.graph_n_nodes)(graph))
                .filter_map(|i| (host.graph_node)(graph, i).cast_const().as_ref())
                .collect();
            // Versions before the flag set none.
            let flagged = nodes.iter().any(|node| node.flags & abi::COMPUTE != 0);
            let wanted = |node: &&&Tensor| !flagged || node.flags & abi::COMPUTE != 0;
            for node in nodes.iter().filter(wanted).filter(|node| !has_no_work(node)) {
                let Some(product) = product(node) else { return abi::FAILED };
                if let Err(reason) = product.compute() {
                    eprintln!("tilewright's plug-in: {reason}");
                    return abi::FAILED;
                }
            }
            abi::SUCCESS
        }
    })
}
