//! Structures and numbers of the interface, on systems with pointers of 64 bits.

use core::ffi::c_void;

/// Status codes.
pub(crate) const OK: i32 = 0;
pub(crate) const FAIL: i32 = -1;
pub(crate) const DEVICE_UNAVAILABLE: i32 = -3;
pub(crate) const MALLOC_FAIL: i32 = -4;
pub(crate) const PARAM_INVALID: i32 = -5;
pub(crate) const CTX_INVALID: i32 = -7;
pub(crate) const INPUT_INVALID: i32 = -8;
pub(crate) const OUTPUT_INVALID: i32 = -9;

/// Directions of a synchronisation; both is their union.
pub(crate) const TO_DEVICE: i32 = 1;
pub(crate) const FROM_DEVICE: i32 = 2;

/// Queries that a context answers.
pub(crate) const QUERY_SDK_VERSION: i32 = 5;
pub(crate) const QUERY_MEM_SIZE: i32 = 6;

/// Most shapes of a context.
pub(crate) const MAX_SHAPES: usize = 512;

/// A piece of memory that CPU and device see.
#[repr(C)]
#[derive(Debug)]
pub struct TensorMem {
    /// Where the CPU sees it.
    pub virt_addr: *mut c_void,
    /// Where the device sees it.
    pub phys_addr: u64,
    /// Number of the buffer.
    pub fd: i32,
    /// Bytes from the start of the buffer.
    pub offset: i32,
    /// Bytes.
    pub size: u32,
    /// Who made it.
    pub flags: u32,
    /// The library's own.
    pub priv_data: *mut c_void,
}

/// Shape and type of one matrix.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorAttr {
    /// `A`, `B` or `C`, ended by a zero.
    pub name: [u8; 256],
    /// Extents in use.
    pub n_dims: u32,
    /// Extents, slowest first.
    pub dims: [u32; 16],
    /// Bytes.
    pub size: u32,
    /// Element type.
    pub kind: i32,
}

/// The three matrices of a product.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoAttr {
    /// Activations, `[m, k]`.
    pub a: TensorAttr,
    /// Weights, `[k, n]`.
    pub b: TensorAttr,
    /// Result, `[m, n]`.
    pub c: TensorAttr,
}

/// Sizes of a product.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of A.
    pub m: i32,
    /// Columns of A.
    pub k: i32,
    /// Columns of B.
    pub n: i32,
}

/// What a context is created for. Versions before 2.0 read the first 24 bytes only, and take the
/// layouts for 32-bit numbers, which is the same while the quantisation fields are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatmulInfo {
    /// Sizes.
    pub shape: Shape,
    /// Number of the combination of element types.
    pub kind: i32,
    /// 0 normal, 1 native, 2 transposed.
    pub b_layout: i16,
    /// How B is quantised.
    pub b_quant: i16,
    /// 0 normal, 1 native.
    pub ac_layout: i16,
    /// How A and C are quantised; only 0.
    pub ac_quant: i16,
    /// Address space, 0 to 15.
    pub domain: i32,
    /// Elements per scale along K.
    pub group: i16,
    /// Zeros.
    pub reserved: [u8; 34],
}

/// Scales of one matrix.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantParams {
    /// Which matrix.
    pub name: [u8; 256],
    /// Scales.
    pub scale: *const f32,
    /// How many.
    pub scale_len: i32,
    /// Zero points.
    pub zero: *const i32,
    /// How many.
    pub zero_len: i32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<TensorMem>() == 40 && offset_of!(TensorMem, size) == 24);
    assert!(size_of::<TensorAttr>() == 332 && offset_of!(TensorAttr, size) == 324);
    assert!(size_of::<IoAttr>() == 996 && offset_of!(IoAttr, c) == 664);
    assert!(size_of::<MatmulInfo>() == 64 && offset_of!(MatmulInfo, b_layout) == 16);
    assert!(offset_of!(MatmulInfo, domain) == 24 && offset_of!(MatmulInfo, group) == 28);
    assert!(size_of::<QuantParams>() == 288 && offset_of!(QuantParams, zero) == 272);
};

impl Default for TensorAttr {
    fn default() -> Self {
        Self { name: [0; 256], n_dims: 0, dims: [0; 16], size: 0, kind: 0 }
    }
}
