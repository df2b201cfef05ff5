//! The transforms of Winograd's convolution: of the input, of the output, of the weights.
//!
//! `F(m x m, 3 x 3)` computes a tile of `m x m` outputs from `a x a` inputs, `a = m + 2`, with `a * a`
//! multiplications instead of `9 * m * m` (S. Winograd, *Arithmetic Complexity of Computations*,
//! 1980; A. Lavin, S. Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016):
//! `y = A' [(G g G') . (B' d B)] A`. The matrices follow from the points at which the polynomials
//! are evaluated: with the points `p_j`, `N_j = prod_{l != j} (p_j - p_l)` and `P_j(x) =
//! prod_{l != j} (x - p_l)`, row `j` of `A'` transposed has `p_j^i`, of `G` `p_j^k / N_j`, of `B'`
//! the coefficients of `P_j`; the last point is infinity, whose row of `B'` has those of
//! `prod_l (x - p_l)`.
//!
//! * `F(2, 3)`: 0, +-1.
//! * `F(4, 3)`: 0, +-sqrt(1/2), +-sqrt(2). The product of the two pairs is 1, which halves the
//!   rounding error against the usual 0, +-1, +-2.
//!
//! Points in pairs `+-p` share half of their sums: the even and the odd part of each polynomial.
//! The 16 channels of a block lie in the lanes of one or more vectors, so nothing is transposed.

use super::winograd_geometry::Geometry;
use crate::epilogue::TileActivation;
use crate::{C_BLOCK, Dtype, Isa, KernelInfo};
use core::ops::Range;

/// Where an output transform finds its operands.
pub(crate) struct OutputArgs {
    /// The products of one K tile: `[a * a][block][planes][16]`.
    pub(crate) m: *const f32,
    /// Bias of the K tile's channels.
    pub(crate) bias: *const f32,
    /// Residual at the K tile's first plane of image 0, or null.
    pub(crate) residual: *const f32,
    /// Output, likewise.
    pub(crate) y: *mut f32,
    /// Blocks of 16 output channels.
    pub(crate) planes: usize,
}

/// Transforms some tiles of all channel blocks of the input.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * The input is readable for all images of the geometry; the transformed tiles are writable:
///   `a * a` positions of `v_step` elements, and no other thread uses them.
/// * The range lies within the tiles of the geometry and is no longer than its block.
pub(crate) type InputFn = unsafe fn(&Geometry, *const f32, *mut f32, Range<usize>);

/// Transforms the products of some tiles into outputs of one K tile, and finishes them.
///
/// # Safety
///
/// * As for [`InputFn`], with `m` readable for `a * a` positions of `m_step` elements, `bias` for
///   `16 * planes` elements, `residual` (unless it is null) readable and `y` writable for those
///   planes of all images of the geometry.
/// * No other thread uses the outputs of these tiles.
pub(crate) type OutputFn = unsafe fn(&Geometry, &OutputArgs, Range<usize>);

/// Transforms the weights of 16 output channels and one input channel: from `[3 * 3][16]` to
/// `[a * a][16]`.
///
/// # Safety
///
/// The CPU has the instructions of the kernel's ISA.
pub(crate) type WeightsFn = unsafe fn(&[f32; 9 * C_BLOCK], &mut [f32; 36 * C_BLOCK]);

/// The transforms of one algorithm for one instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradKernels {
    pub(crate) info: KernelInfo,
    pub(crate) input: InputFn,
    pub(crate) output: OutputFn,
    pub(crate) weights: WeightsFn,
}

const A: f32 = core::f32::consts::FRAC_1_SQRT_2;
const B: f32 = core::f32::consts::SQRT_2;

/// `B' d` for one column of `a` vectors.
macro_rules! data {
    (2 $tile:ident $d:expr) => {{
        let [d0, d1, d2, d3] = $d;
        use tilewright_intrinsics::$tile as v;
        [v!(VSUB d0, d2), v!(VADD d2, d1), v!(VSUB d2, d1), v!(VSUB d3, d1)]
    }};
    (4 $tile:ident $d:expr) => {{
        let [d0, d1, d2, d3, d4, d5] = $d;
        use tilewright_intrinsics::$tile as v;
        // x^4 - 5/2 x^2 + 1, and the same times x; the pairs +-A: x^4 - 2 x^2 and A (x^3 - 2 x);
        // the pairs +-B: x^4 - 1/2 x^2 and B (x^3 - 1/2 x).
        let first = v!(VFMA v!(VSET -2.5), d2, v!(VADD d0, d4));
        let last = v!(VFMA v!(VSET -2.5), d3, v!(VADD d1, d5));
        let (even_a, odd_a) = (v!(VFMA v!(VSET -2.0), d2, d4), v!(VFMA v!(VSET -2.0), d1, d3));
        let (even_b, odd_b) = (v!(VFMA v!(VSET -0.5), d2, d4), v!(VFMA v!(VSET -0.5), d1, d3));
        [
            first,
            v!(VFMA v!(VSET A), odd_a, even_a),
            v!(VFMA v!(VSET -A), odd_a, even_a),
            v!(VFMA v!(VSET B), odd_b, even_b),
            v!(VFMA v!(VSET -B), odd_b, even_b),
            last,
        ]
    }};
}

/// `A' m` for one column of `a` vectors.
macro_rules! inverse {
    (2 $tile:ident $m:expr) => {{
        let [m0, m1, m2, m3] = $m;
        use tilewright_intrinsics::$tile as v;
        [v!(VADD m0, v!(VADD m1, m2)), v!(VADD v!(VSUB m1, m2), m3)]
    }};
    (4 $tile:ident $m:expr) => {{
        let [m0, m1, m2, m3, m4, m5] = $m;
        use tilewright_intrinsics::$tile as v;
        let (even_a, odd_a) = (v!(VADD m1, m2), v!(VSUB m1, m2));
        let (even_b, odd_b) = (v!(VADD m3, m4), v!(VSUB m3, m4));
        // Powers of A and B: A^2 = 1/2, A^3 = A / 2, B^2 = 2, B^3 = 2 B.
        [
            v!(VADD m0, v!(VADD even_a, even_b)),
            v!(VFMA v!(VSET A), odd_a, v!(VMUL v!(VSET B), odd_b)),
            v!(VFMA v!(VSET 0.5), even_a, v!(VMUL v!(VSET 2.0), even_b)),
            v!(VFMA v!(VSET 0.5 * A), odd_a, v!(VFMA v!(VSET 2.0 * B), odd_b, m5)),
        ]
    }};
}

/// `G g` for three numbers.
#[inline(always)]
fn filter2([g0, g1, g2]: [f64; 3]) -> [f64; 4] {
    let even = 0.5 * (g0 + g2);
    [g0, even + 0.5 * g1, even - 0.5 * g1, g2]
}

/// `G g` for three numbers.
#[inline(always)]
fn filter4([g0, g1, g2]: [f64; 3]) -> [f64; 6] {
    use core::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
    // N is 1, -3/2 twice, 6 twice.
    let (even_a, odd_a) = ((g0 + 0.5 * g2) * (-2.0 / 3.0), g1 * (FRAC_1_SQRT_2 * (-2.0 / 3.0)));
    let (even_b, odd_b) = ((g0 + 2.0 * g2) * (1.0 / 6.0), g1 * (SQRT_2 * (1.0 / 6.0)));
    [g0, even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g2]
}

macro_rules! winograd_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            winograd_kernels! { f2, 2, 4, filter2, $tile, $isa, $isa_name, $feat }
            winograd_kernels! { f4, 4, 6, filter4, $tile, $isa, $isa_name, $feat }
        }
    };
}

macro_rules! winograd_kernels {
    ($name:ident, $m:tt, $a:tt, $filter:ident, $tile:ident, $isa:ident, $isa_name:ident, [$($f:tt)*]) => {
        pub(super) mod $name {
            use super::*;
            use tilewright_intrinsics::{each, $tile as tile};

            pub(in super::super) const KERNELS: WinogradKernels = WinogradKernels {
                info: KernelInfo {
                    name: concat!("winograd_f32_", $m, "x", $m, "x16_u1_", stringify!($isa_name)),
                    op: "winograd", isa: Isa::$isa, dtype: Dtype::F32,
                    tile: crate::Tile { rows: $m, w_ob: $m, c_vec: C_BLOCK / tile!(LANES), c_ob: C_BLOCK, unroll: 1 }.packed(),
                },
                input, output, weights,
            };

            $(#[target_feature(enable = $f)])*
            unsafe fn input(g: &Geometry, x: *const f32, v: *mut f32, tiles: Range<usize>) {
                let row = g.w_in * C_BLOCK;
                for block in 0..g.c_blocks {
                    let mut at = g.tile(tiles.start);
                    for t in 0..tiles.len() {
                        let from = g.window(&at, $a);
                        let x = x.wrapping_add(at.image * g.x_image + block * g.x_plane).wrapping_offset(from.offset);
                        let v = v.wrapping_add(block * g.v_plane + t * C_BLOCK);
                        if from.whole {
                            for part in 0..C_BLOCK / tile!(LANES) {
                                let x = x.wrapping_add(part * tile!(LANES));
                                let v = v.wrapping_add(part * tile!(LANES));
                                let mut w = tile!(ZEROS [[tile!(VTYPE); $a]; $a]);
                                each!(j in $a {
                                    let mut d = tile!(ZEROS [tile!(VTYPE); $a]);
                                    each!(i in $a { d[i] = tile!(VLOAD x.wrapping_add(i * row + j * C_BLOCK), 0); });
                                    let d = data!($m $tile d);
                                    each!(i in $a { w[i][j] = d[i]; });
                                });
                                each!(i in $a {
                                    let d = data!($m $tile w[i]);
                                    each!(j in $a { tile!(VSTORE v.wrapping_add((i * $a + j) * g.v_step), 0, d[j]); });
                                });
                            }
                        } else {
                            for part in 0..C_BLOCK / tile!(LANES) {
                                let x = x.wrapping_add(part * tile!(LANES));
                                let v = v.wrapping_add(part * tile!(LANES));
                                let mut w = tile!(ZEROS [[tile!(VTYPE); $a]; $a]);
                                each!(j in $a { if from.cols & (1 << j) != 0 {
                                    let mut d = tile!(ZEROS [tile!(VTYPE); $a]);
                                    each!(i in $a { if from.rows & (1 << i) != 0 {
                                        d[i] = tile!(VLOAD x.wrapping_add(i * row + j * C_BLOCK), 0);
                                    } });
                                    let d = data!($m $tile d);
                                    each!(i in $a { w[i][j] = d[i]; });
                                } });
                                each!(i in $a {
                                    let d = data!($m $tile w[i]);
                                    each!(j in $a { tile!(VSTORE v.wrapping_add((i * $a + j) * g.v_step), 0, d[j]); });
                                });
                            }
                        }
                        g.advance(&mut at);
                    }
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn output(g: &Geometry, args: &OutputArgs, tiles: Range<usize>) {
                let row = g.w_out * C_BLOCK;
                for plane in 0..args.planes {
                    let mut at = g.tile(tiles.start);
                    for n in 0..tiles.len() {
                        let out = at.image * g.y_image + plane * g.y_plane
                            + ((at.y * g.w_out) + at.x) * $m * C_BLOCK;
                        let (rows, cols) = ($m.min(g.h_out - at.y * $m), $m.min(g.w_out - at.x * $m));
                        for part in 0..C_BLOCK / tile!(LANES) {
                            let lane = part * tile!(LANES);
                            let m = args.m.wrapping_add((n * args.planes + plane) * C_BLOCK + lane);
                            let bias = args.bias.wrapping_add(plane * C_BLOCK + lane);
                            let mut w = tile!(ZEROS [[tile!(VTYPE); $a]; $m]);
                            each!(j in $a {
                                let mut d = tile!(ZEROS [tile!(VTYPE); $a]);
                                each!(i in $a { d[i] = tile!(VLOAD m.wrapping_add((i * $a + j) * g.m_step), 0); });
                                let d = inverse!($m $tile d);
                                each!(i in $m { w[i][j] = d[i]; });
                            });
                            tile!(DEF t [$m x $m x 1]);
                            tile!(BIAS t [$m x $m x 1] <- bias);
                            each!(i in $m {
                                let d = inverse!($m $tile w[i]);
                                each!(j in $m { t[i * $m + j][0] = tile!(VADD t[i * $m + j][0], d[j]); });
                            });
                            let whole = rows == $m && cols == $m;
                            if !args.residual.is_null() {
                                let residual = args.residual.wrapping_add(out + lane);
                                each!(i in $m { each!(j in $m { if whole || i < rows && j < cols {
                                    let r = tile!(VLOAD residual.wrapping_add(i * row + j * C_BLOCK), 0);
                                    t[i * $m + j][0] = tile!(VADD t[i * $m + j][0], r);
                                } }); });
                            }
                            match g.activation {
                                TileActivation::None => {}
                                TileActivation::Relu => { tile!(RELU t [$m x $m x 1]); }
                                TileActivation::Clamp { lo, hi } => { tile!(CLAMP t [$m x $m x 1] lo, hi); }
                                TileActivation::Leaky { alpha } => { tile!(LEAKY t [$m x $m x 1] alpha); }
                            }
                            let o = args.y.wrapping_add(out + lane);
                            if whole {
                                tile!(STORE t [$m x $m x 1] -> o[row, C_BLOCK, 0]);
                            } else {
                                each!(i in $m { each!(j in $m { if i < rows && j < cols {
                                    tile!(VSTORE o.wrapping_add(i * row + j * C_BLOCK), 0, t[i * $m + j][0]);
                                } }); });
                            }
                        }
                        g.advance(&mut at);
                    }
                }
            }

            // One loop over the lanes, which the compiler turns into vectors of f64.
            $(#[target_feature(enable = $f)])*
            unsafe fn weights(taps: &[f32; 9 * C_BLOCK], out: &mut [f32; 36 * C_BLOCK]) {
                for lane in 0..C_BLOCK {
                    let mut w = [[0.0f64; 3]; $a];
                    each!(j in 3 {
                        let g = [0, 3, 6].map(|i| f64::from(taps[(i + j) * C_BLOCK + lane]));
                        let g = $filter(g);
                        each!(i in $a { w[i][j] = g[i]; });
                    });
                    each!(i in $a {
                        let g = $filter(w[i]);
                        each!(j in $a { out[(i * $a + j) * C_BLOCK + lane] = g[j] as f32; });
                    });
                }
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(winograd_row);

/// The transforms of one instruction set: `F(2, 3)`, `F(4, 3)`.
pub(crate) fn kernels(isa: Isa) -> [WinogradKernels; 2] {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return [$id::f2::KERNELS, $id::f4::KERNELS];
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    [scalar_f32::f2::KERNELS, scalar_f32::f4::KERNELS]
}
