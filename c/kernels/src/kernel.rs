//! What all kernels have: a handle, sizes, packing, running.

use core::ffi::{c_char, c_void};
use core::ptr;

use tilewright_kernels::{Activation, Isa, KernelError};

use crate::error::{Fail, call, protect};
use crate::sized::sized;
use crate::status::{tw_dtype, tw_status};

/// An operator of fixed sizes, planned once and run any number of times. It does not change: any number
/// of threads may run one kernel at the same time, each with an output and scratch memory of its own.
/// Nothing is allocated in a run.
pub struct tw_kernel {
    ops: &'static Ops,
    sizes: tw_kernel_sizes,
    /// Bytes that `x` and `y` are aligned to.
    aligned: [usize; 2],
    /// Whether the memory is the library's.
    #[cfg(feature = "alloc")]
    owned: bool,
}

/// Bytes of what a kernel reads and writes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tw_kernel_sizes {
    /// The input: A of a product, the pictures of a convolution.
    pub x: usize,
    /// Weights and bias as `tw_kernel_pack` makes them; 0 for pooling.
    pub packed: usize,
    /// The result.
    pub y: usize,
    /// What is added to the result; 0 if nothing is.
    pub residual: usize,
    /// Memory of a run, with no meaning before or after.
    pub scratch: usize,
}

/// Weights as they are stored in files, for `tw_kernel_pack`. What is not needed is NULL and 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_weights {
    /// `sizeof (tw_weights)`.
    pub size: usize,
    /// The elements, of the type that the kernel was made for: `[k][n]` of a product (`[n][k]` if it was
    /// made so), `[c_out][c_in / groups][rows][columns]` of a convolution, `[c][rows][columns]` of a
    /// depthwise one.
    pub w: *const c_void,
    /// How many elements there are.
    pub count: usize,
    /// One number per column or output channel, or NULL: `float`, for kernels of bytes `int32_t`, which
    /// is added to the sums.
    pub bias: *const c_void,
    /// Kernels of bytes: factors of the sums (for a result of bytes: scale of x times scale of w divided by
    /// scale of y), one for all or one per column or output channel. Not needed for `TW_I32`.
    pub scales: *const f32,
    /// How many factors there are.
    pub scale_count: usize,
    /// Kernels of bytes: zero points of the weights, one for all or one per column or output channel, or
    /// NULL for 0.
    pub zero_points: *const i32,
    /// How many zero points there are.
    pub zero_point_count: usize,
}

/// What a kernel is run on. Sizes are in bytes, and at least those of `tw_kernel_sizes_of`. All but bytes
/// are aligned to 4 bytes; 64 is faster.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_operands {
    /// `sizeof (tw_operands)`.
    pub size: usize,
    /// The input.
    pub x: *const c_void,
    /// Its bytes.
    pub x_bytes: usize,
    /// What `tw_kernel_pack` made; NULL for pooling.
    pub packed: *const c_void,
    /// Its bytes.
    pub packed_bytes: usize,
    /// What is added to the result, if the kernel was made so.
    pub residual: *const c_void,
    /// Its bytes.
    pub residual_bytes: usize,
    /// Where the result goes. It overlaps no other operand.
    pub y: *mut c_void,
    /// Its bytes.
    pub y_bytes: usize,
    /// Memory for this run only; NULL if the kernel needs none. It overlaps no other operand.
    pub scratch: *mut c_void,
    /// Its bytes.
    pub scratch_bytes: usize,
}

/// What happens to a result before it is stored.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tw_activation {
    /// Nothing.
    TW_LINEAR = 0,
    /// The larger of `x` and 0; NaN stays NaN.
    TW_RELU = 1,
    /// `min(max(x, low), high)`.
    TW_CLIP = 2,
    /// `x > 0 ? x : low * x`.
    TW_LEAKY_RELU = 3,
    /// `1 / (1 + exp(-x))`.
    TW_SIGMOID = 4,
    /// `tanh(x)`.
    TW_TANH = 5,
    /// `x / (1 + exp(-x))`.
    TW_SILU = 6,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    TW_GELU = 7,
}

/// Bytes of memory that any kernel has room in, if the caller gives it: see `memory` at the functions
/// that make kernels.
pub const TW_KERNEL_BYTES: usize = 8192;

/// What that memory is aligned to.
pub const TW_KERNEL_ALIGN: usize = 8;

pub(crate) fn activation(number: i32, low: f32, high: f32) -> Result<Activation, Fail> {
    Ok(match number {
        0 => Activation::None,
        1 => Activation::Relu,
        2 => Activation::Clip { min: low, max: high },
        3 => Activation::LeakyRelu { alpha: low },
        4 => Activation::Sigmoid,
        5 => Activation::Tanh,
        6 => Activation::Silu { alpha: 1.0 },
        7 => Activation::Gelu,
        n => return Err(Fail::Number("activation", n)),
    })
}

/// What kinds of kernels have in common, as code.
struct Ops {
    /// Checked weights to checked packed memory.
    pack: unsafe fn(*const tw_kernel, &tw_weights, *mut i32) -> Result<(), Fail>,
    run: unsafe fn(*const tw_kernel, &tw_operands),
    drop: unsafe fn(*mut tw_kernel),
}

/// A kind of kernel.
pub(crate) trait Plan: Sized {
    /// Bytes of its operands.
    fn sizes(&self) -> tw_kernel_sizes;

    /// Bytes that input and output are aligned to: those of an element.
    fn aligned(&self) -> [usize; 2];

    /// Packs weights to `dst`, which has all words.
    fn pack(&self, weights: &Weights<'_>, dst: &mut [i32]) -> Result<(), KernelError>;

    /// Runs it.
    ///
    /// # Safety
    /// Operands have the bytes that [`sizes`](Self::sizes) says, are aligned to 4 bytes unless they hold
    /// bytes, and what is written overlaps nothing.
    unsafe fn run(&self, x: &tw_operands);
}

/// A kernel with its plan. The head comes first, so that a pointer to it is one to all.
#[repr(C)]
struct Made<P> {
    head: tw_kernel,
    plan: P,
}

impl<P: Plan> Made<P> {
    const OPS: Ops = Ops { pack: Self::pack, run: Self::run, drop: Self::drop };

    /// # Safety
    /// The kernel is a `Made<P>`.
    unsafe fn plan<'a>(kernel: *const tw_kernel) -> &'a P {
        // SAFETY: as the caller promises; the head is at the beginning.
        unsafe { &(*kernel.cast::<Self>()).plan }
    }

    /// # Safety
    /// The kernel is a `Made<P>`; `to` is aligned and writable for the packed bytes, the pointers in `from`
    /// are readable for their counts.
    unsafe fn pack(kernel: *const tw_kernel, from: &tw_weights, to: *mut i32) -> Result<(), Fail> {
        // SAFETY: as the caller promises. What is written there are integers, whatever lay there.
        unsafe {
            let words = (*kernel).sizes.packed / 4;
            to.write_bytes(0, words);
            let to = core::slice::from_raw_parts_mut(to, words);
            Ok(Self::plan(kernel).pack(&Weights::new(from)?, to)?)
        }
    }

    /// # Safety
    /// As [`Plan::run`]; the kernel is a `Made<P>`.
    unsafe fn run(kernel: *const tw_kernel, x: &tw_operands) {
        // SAFETY: as the caller promises.
        unsafe { Self::plan(kernel).run(x) }
    }

    /// # Safety
    /// The kernel is a `Made<P>`, and nothing uses it after.
    unsafe fn drop(kernel: *mut tw_kernel) {
        let all = kernel.cast::<Self>();
        // SAFETY: as the caller promises; memory of the library came from the same layout.
        unsafe {
            #[cfg(feature = "alloc")]
            if (*kernel).owned {
                ptr::drop_in_place(all);
                alloc::alloc::dealloc(all.cast(), core::alloc::Layout::new::<Self>());
                return;
            }
            ptr::drop_in_place(all);
        }
    }
}

/// Makes a kernel where the caller wants it, or in memory of the library.
///
/// # Safety
/// `memory` is NULL or writable for `bytes` bytes; `out` is NULL or writable.
pub(crate) unsafe fn make<P: Plan>(
    memory: *mut c_void,
    bytes: usize,
    out: *mut *mut tw_kernel,
    plan: impl FnOnce() -> Result<P, Fail>,
) -> tw_status {
    const { assert!(size_of::<Made<P>>() <= TW_KERNEL_BYTES, "the header says another size") };
    const { assert!(align_of::<Made<P>>() <= TW_KERNEL_ALIGN, "the header says another one") };
    call(|| {
        if out.is_null() {
            return Err(Fail::Null("out"));
        }
        let needed = size_of::<Made<P>>();
        if !memory.is_null() {
            if !memory.addr().is_multiple_of(TW_KERNEL_ALIGN) {
                return Err(Fail::Argument("memory", "aligned to TW_KERNEL_ALIGN bytes"));
            }
            if bytes < needed {
                return Err(Fail::Small { what: "memory", needed, found: bytes });
            }
        }
        #[cfg(not(feature = "alloc"))]
        if memory.is_null() {
            return Err(Fail::Argument("memory", "given: this library has no allocator"));
        }
        let plan = plan()?;
        let owned = memory.is_null();
        let place = if owned { own::<Made<P>>()? } else { memory.cast() };
        let (sizes, aligned) = (plan.sizes(), plan.aligned());
        let head = tw_kernel {
            ops: &Made::<P>::OPS,
            sizes,
            aligned,
            #[cfg(feature = "alloc")]
            owned,
        };
        // SAFETY: the place is aligned and has room for it, as was checked; `out` is writable.
        unsafe {
            place.write(Made { head, plan });
            out.write(place.cast());
        }
        Ok(())
    })
}

/// Memory of the library.
fn own<T>() -> Result<*mut T, Fail> {
    #[cfg(feature = "alloc")]
    {
        let layout = core::alloc::Layout::new::<T>();
        // SAFETY: a kernel has a size.
        let found = unsafe { alloc::alloc::alloc(layout) };
        if found.is_null() { Err(Fail::Memory(layout.size())) } else { Ok(found.cast()) }
    }
    #[cfg(not(feature = "alloc"))]
    Err(Fail::Memory(size_of::<T>()))
}

/// Weights with their pointers read.
pub(crate) struct Weights<'a> {
    pub(crate) w: *const c_void,
    pub(crate) count: usize,
    bias: *const c_void,
    pub(crate) scales: &'a [f32],
    pub(crate) zero_points: &'a [i32],
}

impl Weights<'_> {
    /// # Safety
    /// The pointers are NULL or readable for their counts, as long as this is used.
    unsafe fn new(from: &tw_weights) -> Result<Self, Fail> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(Self {
                w: from.w,
                count: from.count,
                bias: from.bias,
                scales: slice(from.scales, from.scale_count, "weights.scales")?,
                zero_points: slice(from.zero_points, from.zero_point_count, "weights.zero_points")?,
            })
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// [`KernelError::InvalidParam`] if they are not aligned to their type.
    pub(crate) fn elements<T: Copy>(&self, op: &'static str) -> Result<&[T], KernelError> {
        elements(self.w, self.count, op, "weights")
    }

    /// `n` elements of the bias, or none.
    pub(crate) fn bias<T: Copy>(&self, op: &'static str, n: usize) -> Result<&[T], KernelError> {
        elements(self.bias, if self.bias.is_null() { 0 } else { n }, op, "bias")
    }
}

fn elements<'a, T: Copy>(
    at: *const c_void,
    count: usize,
    op: &'static str,
    param: &'static str,
) -> Result<&'a [T], KernelError> {
    let at = at.cast::<T>();
    if at.is_null() && count > 0 {
        return Err(KernelError::InvalidParam { op, param, expected: "given" });
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !at.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        let expected = "aligned to its elements, and not larger than memory";
        return Err(KernelError::InvalidParam { op, param, expected });
    }
    // SAFETY: aligned, not NULL, and readable as who gave the weights promised.
    Ok(unsafe { core::slice::from_raw_parts(at, count) })
}

/// `len` values from a pointer, which may be NULL if there are none.
///
/// # Safety
/// `data` is NULL or readable for `len` values that stay as they are for `'a`.
unsafe fn slice<'a, T>(data: *const T, len: usize, name: &'static str) -> Result<&'a [T], Fail> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Fail::Null(name));
    }
    if !data.is_aligned() || len > isize::MAX as usize / size_of::<T>() {
        return Err(Fail::Argument(name, "aligned, and not larger than memory"));
    }
    // SAFETY: not NULL, aligned and of a length that can be; the rest is as the caller promises.
    Ok(unsafe { core::slice::from_raw_parts(data, len) })
}

/// The structure that a function must be given.
///
/// # Safety
/// As [`sized`].
pub(crate) unsafe fn given<T: Copy>(from: *const T, what: &'static str) -> Result<T, Fail> {
    // SAFETY: as the caller promises.
    let found = unsafe { sized(from, size_of::<T>()) };
    found.map_err(|wrong| Fail::Structure(what, wrong))?.ok_or(Fail::Null(what))
}

/// The instruction set of a name, the best one without.
///
/// # Safety
/// `name` is NULL or ends with a zero byte.
pub(crate) unsafe fn isa(name: *const c_char) -> Result<Isa, Fail> {
    if name.is_null() {
        #[cfg(feature = "std")]
        return Ok(Isa::select()?);
        #[cfg(not(feature = "std"))]
        return Ok(Isa::best());
    }
    // SAFETY: as the caller promises.
    let name = unsafe { core::ffi::CStr::from_ptr(name) }.to_bytes();
    let found = Isa::available().find(|isa| isa.name().as_bytes() == name);
    found.ok_or(Fail::Argument("isa", "an instruction set that this machine and this library have"))
}

/// The type that a number from C stands for.
pub(crate) fn is_type(number: i32, dtype: tw_dtype) -> bool {
    number == dtype as i32
}

/// Frees a kernel; what it was packed to and its operands are the caller's. NULL is nothing to do. A kernel
/// in memory of the caller must be freed too: with a library that has an allocator, plans have lists.
///
/// No other call may use it then; any thread may be the one that frees it.
///
/// # Safety
/// `kernel` is NULL or a kernel that is not freed yet, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kernel_free(kernel: *mut tw_kernel) {
    if !kernel.is_null() {
        // SAFETY: as the caller promises.
        let _ = protect(|| unsafe { ((*kernel).ops.drop)(kernel) });
    }
}

/// Bytes of the operands of a kernel. Any thread may call it. Gives `TW_INVALID_ARGUMENT` for NULL.
///
/// # Safety
/// `kernel` is NULL or a kernel; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kernel_sizes_of(
    kernel: Option<&tw_kernel>,
    out: *mut tw_kernel_sizes,
) -> tw_status {
    call(|| {
        let kernel = kernel.ok_or(Fail::Null("kernel"))?;
        if out.is_null() {
            return Err(Fail::Null("out"));
        }
        // SAFETY: as the caller promises.
        unsafe { out.write(kernel.sizes) };
        Ok(())
    })
}

/// Brings weights and bias into the order in which the kernel reads them, once, to `bytes` bytes at
/// `packed`: as many as `tw_kernel_sizes_of` says, aligned to 4 bytes, 64 being faster. They hold for
/// kernels made with the same parameters on the same machine; do not store them. `weights` may be freed
/// after. Any thread may call it.
///
/// Gives `TW_BUFFER_TOO_SMALL` if there are fewer weights or fewer bytes than needed, `TW_INVALID_ARGUMENT`
/// for weights that cannot be, such as zero points out of range; what lies at `packed` is then undefined.
///
/// # Safety
/// `kernel` is NULL or a kernel; `weights` is NULL or as its type says, with pointers that are NULL or
/// readable for as many elements as said, `bias` for one per column or output channel; `packed` is NULL or
/// writable for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kernel_pack(
    kernel: Option<&tw_kernel>,
    weights: *const tw_weights,
    packed: *mut c_void,
    bytes: usize,
) -> tw_status {
    call(|| {
        let kernel = kernel.ok_or(Fail::Null("kernel"))?;
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        let weights = unsafe { given(weights, "weights") }?;
        let needed = kernel.sizes.packed;
        if needed == 0 {
            return Ok(());
        }
        operand("packed", packed, bytes, needed, 4)?;
        // SAFETY: the kernel is what its functions were made for; the memory was checked.
        unsafe { (kernel.ops.pack)(kernel, &weights, packed.cast()) }
    })
}

fn operand(
    what: &'static str,
    at: *const c_void,
    bytes: usize,
    needed: usize,
    align: usize,
) -> Result<(), Fail> {
    if needed == 0 {
        return Ok(());
    }
    if at.is_null() {
        return Err(Fail::Null(what));
    }
    if bytes < needed {
        return Err(Fail::Small { what, needed, found: bytes });
    }
    if !at.addr().is_multiple_of(align) {
        return Err(Fail::Argument(what, "aligned to 4 bytes"));
    }
    Ok(())
}

/// Runs a kernel on the calling thread. It allocates nothing, takes no lock and starts no thread.
///
/// Gives `TW_INVALID_ARGUMENT` for an operand that is NULL, not aligned, or overlaps what is written, and
/// `TW_BUFFER_TOO_SMALL` for one with too few bytes; nothing is then written.
///
/// # Safety
/// `kernel` is NULL or a kernel; `operands` is NULL or as its type says, with memory that is readable (`y`
/// and `scratch` writable) for as many bytes as said; `packed` was made by a kernel of the same parameters;
/// no other thread uses `y` or `scratch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kernel_run(
    kernel: Option<&tw_kernel>,
    operands: *const tw_operands,
) -> tw_status {
    call(|| {
        let kernel = kernel.ok_or(Fail::Null("kernel"))?;
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        let x = unsafe { given(operands, "operands") }?;
        let s = &kernel.sizes;
        operand("x", x.x, x.x_bytes, s.x, kernel.aligned[0])?;
        operand("packed", x.packed, x.packed_bytes, s.packed, 4)?;
        operand("residual", x.residual, x.residual_bytes, s.residual, 4)?;
        operand("y", x.y, x.y_bytes, s.y, kernel.aligned[1])?;
        operand("scratch", x.scratch, x.scratch_bytes, s.scratch, 4)?;
        let all = [
            (x.x.addr(), s.x),
            (x.packed.addr(), s.packed),
            (x.residual.addr(), s.residual),
            (x.scratch.addr(), s.scratch),
            (x.y.addr(), s.y),
        ];
        let apart = |a: (usize, usize), b: (usize, usize)| {
            a.1 == 0 || b.1 == 0 || a.0.wrapping_add(a.1) <= b.0 || b.0.wrapping_add(b.1) <= a.0
        };
        let (read, scratch, y) = (&all[..3], all[3], all[4]);
        if !all[..4].iter().all(|&a| apart(a, y)) || !read.iter().all(|&a| apart(a, scratch)) {
            return Err(Fail::Argument("y and scratch", "memory that no other operand has"));
        }
        if kernel.sizes.residual == 0 && !x.residual.is_null() {
            return Err(Fail::Argument("residual", "NULL, as the kernel was made without"));
        }
        // SAFETY: the operands have the bytes that the kernel wants, and what is written overlaps nothing.
        unsafe { (kernel.ops.run)(kernel, &x) };
        Ok(())
    })
}
