//! The matrix product microkernel: `W` rows of A times a panel of `V` vectors of columns of B,
//! over the whole of K, in registers.

use crate::epilogue::TileActivation;
use crate::{Dtype, Isa, KernelInfo};

/// One tile of a product. Distances are in elements.
pub(crate) struct TileArgs {
    /// First row of A, first column.
    pub(crate) a: *const f32,
    /// Packed panel `[k][V * LANES]`.
    pub(crate) b: *const f32,
    /// Bias of the panel's columns, `V * LANES` elements.
    pub(crate) bias: *const f32,
    /// Residual at the first output, or null; its rows are `o_row` apart.
    pub(crate) residual: *const f32,
    /// First output.
    pub(crate) o: *mut f32,
    /// Between two rows of A.
    pub(crate) a_row: usize,
    /// Between two rows of the output.
    pub(crate) o_row: usize,
    /// Length of the reduction.
    pub(crate) k: usize,
    /// Columns of the last vector that exist, `1..=LANES`.
    pub(crate) tail: usize,
    /// What is done before STORE.
    pub(crate) activation: TileActivation,
}

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * Each of `W` rows at `a` has `k` readable elements; `b` has `k * V * LANES`, `bias` `V * LANES`.
/// * Each of `W` rows at `o` has `(V - 1) * LANES + tail` writable elements that no other thread
///   uses, and so many are readable at `residual` unless it is null.
pub(crate) type TileFn = unsafe fn(&TileArgs);

/// A microkernel and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatmulKernel {
    pub(crate) info: KernelInfo,
    pub(crate) run: TileFn,
}

macro_rules! matmul_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt, c_vec $c_vec:tt,
     unroll $u:tt, conv $conv:tt, matmul [$([$w:tt $v:tt])*] $($rest:tt)*) => {
        paste::paste! {
            mod $id {
                use super::*;
                $(matmul_kernel! { [<tile_ $w x $v>], $tile, $feat, $w, $v, $u })*
                pub(super) const KERNELS: &[MatmulKernel] = &[$(MatmulKernel {
                    info: KernelInfo {
                        name: concat!("matmul_f32_", $w, "x", $crate::template::c_ob!($lanes $v), "_u", $u,
                            "_", stringify!($isa_name)),
                        op: "matmul", isa: Isa::$isa, dtype: Dtype::F32,
                        rows: 1, w_ob: $w, c_vec: $v, c_ob: $v * $lanes, unroll: $u,
                    },
                    run: [<tile_ $w x $v>],
                }),*];
            }
        }
    };
}

macro_rules! matmul_kernel {
    ($name:ident, $tile:ident, [$($f:tt)*], $w:tt, $v:tt, $u:tt) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn $name(args: &TileArgs) {
            use tilewright_intrinsics::$tile as tile;
            const ALL: u32 = (1 << $w) - 1;
            const LANES: usize = tile!(LANES);
            let (a, o_row, tail) = (args.a, args.o_row, args.tail);
            let (o, bias, residual) = (args.o, args.bias, args.residual);
            let mut b = args.b;
            let mut k = args.k;
            tile!(STEP a_row <- args.a_row);
            tile!(DEF t [1 x $w x $v]);
            tile!(BIAS t [1 x $w x $v] <- bias);
            tile!(POINT p [1 x $w] <- a[0, a_row]);
            while k >= $u {
                tile!(COMPUTE conv t [1 x $w x $v x $u] += p[a_row] * b if ALL);
                tile!(ADVANCE p [1 x $w] by $u);
                b = b.wrapping_add($u * $v * LANES);
                k -= $u;
            }
            while k > 0 {
                tile!(COMPUTE conv t [1 x $w x $v x 1] += p[a_row] * b if ALL);
                tile!(ADVANCE p [1 x $w] by 1);
                b = b.wrapping_add($v * LANES);
                k -= 1;
            }
            if !residual.is_null() {
                tile!(ADD t [$w x $v; tail] += residual[o_row]);
            }
            match args.activation {
                TileActivation::None => {}
                TileActivation::Relu => { tile!(RELU t [1 x $w x $v]); }
                TileActivation::Clamp { lo, hi } => { tile!(CLAMP t [1 x $w x $v] lo, hi); }
                TileActivation::Leaky { alpha } => { tile!(LEAKY t [1 x $w x $v] alpha); }
            }
            if tail == LANES {
                tile!(STORE t [1 x $w x $v] -> o[0, o_row, 16]);
            } else {
                tile!(STORE t [$w x $v; tail] -> o[o_row]);
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(matmul_row);

/// The microkernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> &'static [MatmulKernel] {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    &[]
}
