//! A library with the matrix products of Rockchip's NPU run-time (`librknnrt.so`), computed on the
//! CPU: the same symbols, structures, layouts, sizes and return codes, so that code for the NPU can
//! be tested where there is none.
//!
//! It is written from descriptions of the interface and shares no code with the backend that it
//! tests. What it is comes from variables, read at the first call: `RKNN_EMU_SOC` (`rk3588`,
//! `rk3576`, `rk3568`, `rk3566`, `rk3562`), `_VERSION` and `_DRIVER` (texts), `_NO_DEVICE`,
//! `_STRICT` (a breach of the contract ends the process), `_SYNC` (`strict`, `bind`, `lenient`: what
//! moves data between CPU and device), `_SNAPSHOT` (`always`, `norm`, `never`: whether binding copies
//! A and B), `_QUIRKS`, `_MEM_MB`, `_DOMAIN_MB`, `_FD_LIMIT`, `_RELAX_N` (N above what the manual
//! says), `_COMPUTE` (0: results are not computed), `_LATENCY` (`us,GB/s per core,GB/s in all`: runs
//! take at least the time that a model says), `_FAULT` and `_SEED`.
//!
//! A fault is `site[:filter...]:action`, several with `;` between them. Sites: `create`,
//! `create_mem`, `from_fd`, `set_io`, `core_mask`, `run`, `sync`, `query`, `destroy`. Filters:
//! `nth=N`, `every=N`, `after=N`, `heal=N` (ends after N), `core=C`, `shape=MxKxN` (0 for any),
//! `type=T`, `p=0.01`. Actions: `rc=-4`, `null`, `hang=MS` (0: for ever), `slow=MS`, `crash`, `exit`,
//! `oom`, `dead`, `wrong=zero|stale|nan|flip1|swaprows|scale`.
//!
//! Two symbols are the emulator's own: [`rknn_emu_configure`] and [`rknn_emu_counter`]. Which symbols
//! a library has cannot depend on a variable: [`as_version`] makes an older one of its file.
#![allow(clippy::missing_safety_doc, reason = "the duties are those of the interface emulated")]

mod abi;
mod chip;
mod compute;
mod config;
mod fault;
mod instance;
mod memory;
mod state;

use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use std::sync::{Arc, Mutex, PoisonError};

pub use abi::{IoAttr, MatmulInfo, QuantParams, Shape, TensorAttr, TensorMem};
pub use chip::Version;
pub use instance::Instance;

use abi::{
    FAIL, FROM_DEVICE, MAX_SHAPES, OK, PARAM_INVALID, QUERY_MEM_SIZE, QUERY_SDK_VERSION, TO_DEVICE,
};
use config::Config;
use fault::{Call, Site};
use state::{BYTES, Piece, State};

/// Made by the first call.
static STATE: Mutex<Option<Arc<State>>> = Mutex::new(None);

/// Allocates without a context.
const NO_CONTEXT: u64 = 0x20000;

/// How a piece of memory was made.
const ALLOC_INSIDE: u32 = 1;
const FROM_FD: u32 = 2;

fn with_state<R>(f: impl FnOnce(&State) -> Result<R, i32>) -> Result<R, i32> {
    let state = {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            Some(state) => state.clone(),
            None => {
                let config = Config::from_env().map_err(|problem| {
                    eprintln!("rknn emulator: {problem}");
                    FAIL
                })?;
                state.insert(Arc::new(State::new(config))).clone()
            }
        }
    };
    f(&state)
}

fn code(outcome: Result<(), i32>) -> i32 {
    outcome.err().unwrap_or(OK)
}

/// The symbols that a version does not have.
fn missing(version: Version) -> &'static [&'static str] {
    match version {
        Version::V1_6 => &[
            "rknn_matmul_set_quant_params",
            "rknn_matmul_get_quant_params",
            "rknn_matmul_create_dyn_shape",
            "rknn_matmul_create_dynamic_shape",
            "rknn_matmul_set_dynamic_shape",
            "rknn_B_normal_layout_to_native_layout",
            "rknn_create_mem2",
        ],
        // The converter had other arguments, which this library does not take.
        Version::V2_0 => {
            &["rknn_matmul_create_dynamic_shape", "rknn_B_normal_layout_to_native_layout"]
        }
        Version::V2_1 => &["rknn_matmul_create_dyn_shape"],
    }
}

/// The file of this library with the symbols of another version only: names of the others are
/// changed, so that nobody finds them. The version that it says it is, and the structures that it
/// reads, follow `RKNN_EMU_VERSION`.
pub fn as_version(library: &[u8], version: Version) -> Vec<u8> {
    let mut copy = library.to_vec();
    for name in missing(version) {
        let entry = [b"\0", name.as_bytes(), b"\0"].concat();
        let places: Vec<usize> =
            (0..copy.len()).filter(|&i| copy[i..].starts_with(&entry)).collect();
        for place in places {
            copy[place + 1] = b'x';
        }
    }
    copy
}

/// Makes the emulator anew from lines `RKNN_EMU_NAME=value`; returns -5 for a wrong one. Contexts and
/// memory made before are unknown from then on.
///
/// # Safety
/// `text` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_emu_configure(text: *const c_char) -> i32 {
    // SAFETY: a text with a zero, by contract.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    match Config::from_text(&text) {
        Ok(config) => {
            let state = Some(Arc::new(State::new(config)));
            *STATE.lock().unwrap_or_else(PoisonError::into_inner) = state;
            OK
        }
        Err(problem) => {
            eprintln!("rknn emulator: {problem}");
            PARAM_INVALID
        }
    }
}

/// What was counted: 0 live contexts, 1 live pieces of memory, 2 live bytes, 3 runs, 4 breaches of
/// the contract, 5 contexts made, 6 bindings; -1 for anything else.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_emu_counter(which: i32) -> i64 {
    let which = usize::try_from(which).unwrap_or(usize::MAX);
    with_state(|state| Ok(state.counter(which))).unwrap_or(-1)
}

/// Makes a context for one product.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_matmul_create(
    ctx: *mut u64,
    info: *mut MatmulInfo,
    io: *mut IoAttr,
) -> i32 {
    // SAFETY: as for the function that is called; one record.
    unsafe {
        if info.is_null() {
            return PARAM_INVALID;
        }
        let shape = read_info(info).shape;
        create(ctx, info, &[shape], io)
    }
}

/// The part of the structure that the version knows.
///
/// # Safety
/// `info` points to as many bytes as the version reads.
unsafe fn read_info(info: *const MatmulInfo) -> MatmulInfo {
    let old = with_state(|state| Ok(state.config.version == Version::V1_6)).unwrap_or(false);
    if old {
        let mut copy = [0u8; size_of::<MatmulInfo>()];
        // SAFETY: old versions read 24 bytes; a copy of zeros is a valid structure.
        unsafe {
            ptr::copy_nonoverlapping(info.cast::<u8>(), copy.as_mut_ptr(), 24);
            return copy.as_ptr().cast::<MatmulInfo>().read_unaligned();
        }
    }
    // SAFETY: 64 bytes, by contract.
    unsafe { info.read() }
}

/// # Safety
/// `ctx` and `info` are valid, `io` has a record for each shape.
unsafe fn create(ctx: *mut u64, info: *const MatmulInfo, shapes: &[Shape], io: *mut IoAttr) -> i32 {
    if ctx.is_null() || io.is_null() {
        return PARAM_INVALID;
    }
    // SAFETY: `info` is valid by contract.
    let info = unsafe { read_info(info) };
    // SAFETY: as many records as shapes, by contract; all bytes are valid values.
    let io = unsafe { core::slice::from_raw_parts_mut(io, shapes.len()) };
    code(with_state(|state| {
        let handle = state.create(&info, shapes, io)?;
        // SAFETY: a place for the handle, by contract.
        unsafe { ctx.write(handle) };
        Ok(())
    }))
}

/// # Safety
/// As for the two functions that are made of it.
unsafe fn create_dynamic(
    ctx: *mut u64,
    info: *mut MatmulInfo,
    count: i32,
    shapes: *mut Shape,
    io: *mut IoAttr,
) -> i32 {
    let Some(count) = usize::try_from(count).ok().filter(|n| (1..=MAX_SHAPES).contains(n)) else {
        return PARAM_INVALID;
    };
    if shapes.is_null() || info.is_null() {
        return PARAM_INVALID;
    }
    // SAFETY: `count` shapes and as many records, by contract.
    unsafe {
        let shapes = core::slice::from_raw_parts(shapes, count);
        create(ctx, info, shapes, io)
    }
}

/// Makes a context for several numbers of rows; `io` gets a record for each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_matmul_create_dynamic_shape(
    ctx: *mut u64,
    info: *mut MatmulInfo,
    count: i32,
    shapes: *mut Shape,
    io: *mut IoAttr,
) -> i32 {
    // SAFETY: the same contract.
    unsafe { create_dynamic(ctx, info, count, shapes, io) }
}

/// The same under the name of 2.0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_matmul_create_dyn_shape(
    ctx: *mut u64,
    info: *mut MatmulInfo,
    count: i32,
    shapes: *mut Shape,
    io: *mut IoAttr,
) -> i32 {
    // SAFETY: the same contract.
    unsafe { create_dynamic(ctx, info, count, shapes, io) }
}

/// Chooses one of the shapes of a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_matmul_set_dynamic_shape(ctx: u64, shape: *mut Shape) -> i32 {
    // SAFETY: null or a shape, by contract.
    let Some(shape) = (unsafe { shape.as_ref() }) else { return PARAM_INVALID };
    code(with_state(|state| state.set_shape(ctx, shape)))
}

/// Sets the scale of a matrix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_matmul_set_quant_params(ctx: u64, params: *mut QuantParams) -> i32 {
    // SAFETY: null or parameters, by contract.
    let Some(params) = (unsafe { params.as_ref() }) else { return PARAM_INVALID };
    if params.scale.is_null() || params.scale_len < 1 {
        return PARAM_INVALID;
    }
    // SAFETY: at least one scale, by contract.
    let scale = unsafe { params.scale.read() };
    code(with_state(|state| state.with_scale(ctx, params.name[0], |s| *s = scale)))
}

/// The scale of a matrix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_matmul_get_quant_params(
    ctx: u64,
    params: *mut QuantParams,
    scale: *mut f32,
) -> i32 {
    // SAFETY: null or valid, by contract.
    let (Some(params), Some(scale)) = (unsafe { (params.as_ref(), scale.as_mut()) }) else {
        return PARAM_INVALID;
    };
    code(with_state(|state| state.with_scale(ctx, params.name[0], |s| *scale = *s)))
}

/// Binds a matrix to memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_matmul_set_io_mem(
    ctx: u64,
    mem: *mut TensorMem,
    attr: *mut TensorAttr,
) -> i32 {
    // SAFETY: null or valid, by contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return PARAM_INVALID };
    code(with_state(|state| state.bind(ctx, state.piece(mem.addr())?, attr)))
}

/// Chooses the core.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_matmul_set_core_mask(ctx: u64, mask: u32) -> i32 {
    code(with_state(|state| state.set_mask(ctx, mask)))
}

/// Computes; returns when it is done.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_matmul_run(ctx: u64) -> i32 {
    code(with_state(|state| state.run(ctx)))
}

/// Ends a context.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_matmul_destroy(ctx: u64) -> i32 {
    code(with_state(|state| state.destroy(ctx)))
}

/// Gives the caller memory, or null.
fn hand_out(state: &State, piece: Piece, flags: u32) -> *mut TensorMem {
    let (buffer, offset) = (&piece.buffer, piece.offset);
    let mem = Box::new(TensorMem {
        virt_addr: buffer.address().cast(),
        phys_addr: 0x1_0000_0000 + ((buffer.fd as u64) << 32),
        fd: buffer.fd,
        offset: i32::try_from(offset).unwrap_or(i32::MAX),
        size: u32::try_from(piece.size).unwrap_or(u32::MAX),
        flags,
        priv_data: ptr::null_mut(),
    });
    let mem = Box::into_raw(mem);
    state.keep(mem.addr(), piece);
    mem
}

fn create_mem(ctx: Option<u64>, size: u64) -> *mut TensorMem {
    with_state(|state| {
        let domain = ctx.map_or(Ok(0), |ctx| state.context(ctx).map(|c| c.domain))?;
        Ok(hand_out(state, state.allocate(domain, size)?, ALLOC_INSIDE))
    })
    .unwrap_or(ptr::null_mut())
}

/// Memory of so many bytes, or null.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_create_mem(ctx: u64, size: u32) -> *mut TensorMem {
    create_mem(Some(ctx), size.into())
}

/// As `rknn_create_mem`, of more than 4 GiB and with flags.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_create_mem2(ctx: u64, size: u64, flags: u64) -> *mut TensorMem {
    create_mem((flags & NO_CONTEXT == 0).then_some(ctx), size)
}

/// A view of memory that was made here.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_create_mem_from_fd(
    ctx: u64,
    fd: i32,
    _virt: *mut c_void,
    size: u32,
    offset: i32,
) -> *mut TensorMem {
    with_state(|state| {
        state.context(ctx)?;
        Ok(hand_out(state, state.view(fd, offset, size)?, FROM_FD))
    })
    .unwrap_or(ptr::null_mut())
}

/// Memory by its physical address: there is none here.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_create_mem_from_phys(
    _ctx: u64,
    _phys: u64,
    _virt: *mut c_void,
    _size: u32,
) -> *mut TensorMem {
    ptr::null_mut()
}

/// Ends a piece of memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_destroy_mem(_ctx: u64, mem: *mut TensorMem) -> i32 {
    let outcome = with_state(|state| state.forget(mem.addr()));
    if outcome.is_ok() {
        // SAFETY: it was known, so it came from a box in `hand_out`, and nobody can end it again.
        drop(unsafe { Box::from_raw(mem) });
    }
    code(outcome)
}

/// Makes CPU or device see what the other has written.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_mem_sync(_ctx: u64, mem: *mut TensorMem, mode: i32) -> i32 {
    if !(1..=TO_DEVICE | FROM_DEVICE).contains(&mode) {
        return PARAM_INVALID;
    }
    let (to, from) = (mode & TO_DEVICE != 0, mode & FROM_DEVICE != 0);
    code(with_state(|state| state.synchronise(&state.piece(mem.addr())?, to, from)))
}

/// Texts of the versions, or sizes of memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rknn_query(ctx: u64, command: i32, info: *mut c_void, size: u32) -> i32 {
    code(with_state(|state| {
        state.context(ctx)?;
        state.meet(&Call::of(Site::Query))?;
        let mut answer = vec![0u8; if command == QUERY_SDK_VERSION { 512 } else { 64 }];
        match command {
            QUERY_SDK_VERSION => {
                let api = format!("{} (emulator)", state.config.version_text);
                for (text, half) in [&api, &state.config.driver].into_iter().zip([0, 256]) {
                    let text = &text.as_bytes()[..text.len().min(255)];
                    answer[half..][..text.len()].copy_from_slice(text);
                }
            }
            QUERY_MEM_SIZE => {
                let live = state.counter(BYTES).max(0) as u64;
                answer[8..16].copy_from_slice(&live.to_le_bytes());
            }
            _ => return Err(PARAM_INVALID),
        }
        if info.is_null() || (size as usize) < answer.len() {
            return Err(PARAM_INVALID);
        }
        // SAFETY: the caller has `size` bytes there, at least as many.
        unsafe { ptr::copy_nonoverlapping(answer.as_ptr(), info.cast::<u8>(), answer.len()) };
        Ok(())
    }))
}

/// Puts a row-major B, of one value per byte if it has 4 bits, into the native order.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "its name in the interface")]
pub unsafe extern "C" fn rknn_B_normal_layout_to_native_layout(
    from: *const c_void,
    to: *mut c_void,
    k: i32,
    n: i32,
    info: *const MatmulInfo,
) -> i32 {
    if from.is_null() || to.is_null() || info.is_null() {
        return PARAM_INVALID;
    }
    code(with_state(|state| {
        // SAFETY: valid by contract.
        let info = unsafe { info.read() };
        let shape = Shape { m: 1, k, n };
        let info = MatmulInfo { shape, b_layout: 1, ..info };
        let all = state.config.chip.matrices(&info, state.config.version, true);
        let b = all.ok_or(PARAM_INVALID)?.b;
        let (from, to) = (from.cast::<u8>(), to.cast::<u8>());
        let bits = b.element.bits();
        for row in 0..b.rows {
            for column in 0..b.columns {
                let (i, at) = (row * b.columns + column, b.index(row, column));
                // SAFETY: both have all elements of the matrix, by contract.
                unsafe {
                    if bits >= 8 {
                        let size = bits / 8;
                        ptr::copy_nonoverlapping(from.add(i * size), to.add(at * size), size);
                    } else {
                        let (half, place) = (from.add(i).read() & 15, to.add(at / 2));
                        let shift = 4 * (at % 2);
                        place.write(place.read() & !(15 << shift) | half << shift);
                    }
                }
            }
        }
        Ok(())
    }))
}

/// Models instead of products are not emulated.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_init(
    _ctx: *mut u64,
    _model: *mut c_void,
    _size: u32,
    _flag: u32,
    _extend: *mut c_void,
) -> i32 {
    FAIL
}

/// Models instead of products are not emulated.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_run(_ctx: u64, _extend: *mut c_void) -> i32 {
    FAIL
}

/// Models instead of products are not emulated.
#[unsafe(no_mangle)]
pub extern "C" fn rknn_destroy(_ctx: u64) -> i32 {
    FAIL
}
