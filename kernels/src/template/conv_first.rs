//! Convolution of a plain image of a few channels to at most 8: what many small networks begin with.
//!
//! Vectors of blocks would have half of their lanes empty, and the image would have to be interleaved
//! before. Here they run along the pixels of an output row, one for each output channel, as in `plane`,
//! whose copies of input rows these kernels read: with their padding, and in two halves if the stride is
//! 2. The result is blocked, by transposes in registers. Sums are taken in the order of `conv_direct`.

use super::conv::{ConvParams, check};
use super::plane::{Copies, PlaneShape, fits_copies, input_rows};
use super::plane_tile;
use super::unary::{UnaryKernel, post_kernel};
use super::window::WindowSizes;
use crate::epilogue::TileActivation;
use crate::error::check_len;
use crate::{C_BLOCK, Dtype, Isa, KernelError, KernelInfo};
use alloc::vec;
use core::ops::Range;

const OP: &str = "conv_first";
/// Most input channels.
const C_IN: usize = 4;
/// Output channels of a tile; those that a convolution lacks have weights of 0.
const C_OUT: usize = 8;
/// Least columns of the output: of fewer, copying the rows costs too much.
const COLUMNS: usize = 16;

/// Such a convolution of fixed sizes: `x` is `[n, c_in, h_in, w_in]`, `y` blocked.
#[derive(Clone, Debug)]
pub struct FirstConvPlan {
    isa: Isa,
    kernel: &'static FirstKernel,
    shape: PlaneShape,
    c_out: usize,
    /// Blocks of output rows of an image; those of one share the copied rows.
    blocks: usize,
    after: Option<UnaryKernel>,
    x_len: usize,
    y_len: usize,
}

/// A block of output rows of an image.
pub(crate) struct FirstArgs {
    x: *const f32,
    weights: *const f32,
    bias: *const f32,
    /// The first output of the image.
    y: *mut f32,
    /// Where rows are copied to.
    scratch: *mut f32,
    rows: Range<usize>,
}

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * The image has the sizes that the shape says; `x` is readable, `y` writable in the rows of the call,
///   which no other thread writes; there are 8 weights per tap and channel, and 8 biases.
/// * `scratch` is writable for the input rows of the block, of all channels, times the distance of copied
///   rows.
type FirstFn = unsafe fn(&PlaneShape, &FirstArgs);

/// A microkernel and what it is.
#[derive(Debug)]
struct FirstKernel {
    info: KernelInfo,
    run: FirstFn,
}

impl FirstConvPlan {
    /// Whether this build has these kernels, and they are faster than those of blocks. The input counts as
    /// plain, whatever [`ConvParams::input`] says.
    pub fn pays(p: &ConvParams) -> bool {
        !cfg!(feature = "few-kernels") && p.w_out >= COLUMNS && Self::supports(p)
    }

    fn supports(p: &ConvParams) -> bool {
        p.c_in <= C_IN
            && p.c_out <= C_OUT
            && p.groups == 1
            && !p.transposed
            && !p.epilogue.residual
            && fits_copies(&sizes(p))
    }

    /// Plans a convolution.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] for more than 4 input or 8 output channels, groups, a residual,
    /// horizontal strides above 2 and very long rows, [`KernelError::InvalidParam`] if
    /// sizes or attributes make no sense, [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, p: &ConvParams) -> Result<Self, KernelError> {
        let p = p.clone().interleaved();
        let (x_len, y_len) = check(isa, &p)?;
        if !Self::supports(&p) {
            let what =
                "more channels, groups, a residual, a horizontal stride above 2 or rows this long";
            return Err(KernelError::Unsupported { op: OP, what });
        }
        // Tiles that overlap least, and of those the widest; only the narrowest may be wider than a row.
        let list = kernels(isa);
        let fits = |k: &&FirstKernel| k.info.c_vec() == 1 || k.info.w_ob() <= p.w_out;
        let columns = |k: &&FirstKernel| p.w_out.next_multiple_of(k.info.w_ob());
        let kernel = list.iter().filter(fits).min_by_key(columns).unwrap_or(&list[0]);
        let sizes = sizes(&p);
        let copies = Copies::of(&sizes, kernel.info.w_ob())?;
        let blocks = copies.blocks(&sizes, 1, p.c_in);
        let activation = p.epilogue.activation.in_tile().unwrap_or(TileActivation::None);
        Ok(Self {
            isa,
            kernel,
            shape: PlaneShape { sizes, copies, activation },
            c_out: p.c_out,
            blocks,
            after: post_kernel(isa, p.epilogue.activation)?,
            x_len,
            y_len,
        })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.kernel.info.name
    }

    /// Elements of the input.
    pub fn x_len(&self) -> usize {
        self.x_len
    }

    /// Elements of the output, with the lanes past `c_out`.
    pub fn y_len(&self) -> usize {
        self.y_len
    }

    /// Elements of the packed weights, `[f_h, f_w, c_in, 8]`.
    pub fn weights_len(&self) -> usize {
        let s = &self.shape.sizes;
        s.kernel[0] * s.kernel[1] * s.c * C_OUT
    }

    /// Elements of the packed bias.
    pub fn bias_len(&self) -> usize {
        C_OUT
    }

    /// Elements of scratch memory that each thread needs.
    pub fn scratch_len(&self) -> usize {
        let s = &self.shape.sizes;
        s.c * input_rows(s, s.output[0].div_ceil(self.blocks)) * self.shape.copies.row
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.shape.sizes.n * self.blocks
    }

    /// Packs weights `[c_out, c_in, f_h, f_w]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn pack_weights(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        let s = &self.shape.sizes;
        let taps = s.kernel[0] * s.kernel[1];
        check_len(OP, "weights", self.c_out * s.c * taps, src.len())?;
        check_len(OP, "packed weights", self.weights_len(), dst.len())?;
        for (i, y) in dst[..self.weights_len()].iter_mut().enumerate() {
            let (tap, c, k) = (i / C_OUT / s.c, i / C_OUT % s.c, i % C_OUT);
            *y = if k < self.c_out { src[(k * s.c + c) * taps + tap] } else { 0.0 };
        }
        Ok(())
    }

    /// Copies the bias `[c_out]` and fills it up with zeros. An empty `src` means no bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn pack_bias(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        let n = if src.is_empty() { 0 } else { self.c_out };
        check_len(OP, "bias", n, src.len())?;
        check_len(OP, "packed bias", C_OUT, dst.len())?;
        dst[..n].copy_from_slice(&src[..n]);
        dst[n..C_OUT].fill(0.0);
        Ok(())
    }

    /// Computes units `units`. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` have [`x_len`](Self::x_len), [`weights_len`](Self::weights_len) and
    ///   [`bias_len`](Self::bias_len) readable elements, `scratch` has
    ///   [`scratch_len`](Self::scratch_len) writable ones that no other thread uses.
    /// * `y` has [`y_len`](Self::y_len) writable elements and overlaps no operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(
        &self,
        x: *const f32,
        weights: *const f32,
        bias: *const f32,
        y: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let s = &self.shape.sizes;
        let [h, w] = s.output;
        for unit in units {
            let (image, block) = (unit / self.blocks, unit % self.blocks);
            let rows = block * h / self.blocks..(block + 1) * h / self.blocks;
            let y = y.wrapping_add(image * h * w * C_BLOCK);
            let x = x.wrapping_add(image * s.c * s.input[0] * s.input[1]);
            let args = FirstArgs { x, weights, bias, y, scratch, rows: rows.clone() };
            // SAFETY: the ISA is available; image and rows lie in the operands that the caller vouches
            // for, and the scratch memory has the rows of a block.
            unsafe { (self.kernel.run)(&self.shape, &args) };
            if let Some(after) = &self.after {
                let out = y.wrapping_add(rows.start * w * C_BLOCK);
                // SAFETY: the rows just written; in place.
                unsafe { after.call(out, out, rows.len() * w * C_BLOCK) };
            }
        }
    }

    /// Computes `y` on this thread, with scratch memory of its own.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: &[f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "x", self.x_len, x.len())?;
        check_len(OP, "packed weights", self.weights_len(), weights.len())?;
        check_len(OP, "packed bias", self.bias_len(), bias.len())?;
        check_len(OP, "y", self.y_len, y.len())?;
        let mut scratch = vec![0.0; self.scratch_len()];
        let (x, w, b) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
        let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x, w, b, y, scratch, 0..self.units()) };
        Ok(())
    }
}

fn sizes(p: &ConvParams) -> WindowSizes {
    WindowSizes {
        n: p.n,
        c: p.c_in,
        input: [p.h_in, p.w_in],
        output: [p.h_out, p.w_out],
        kernel: p.kernel,
        stride: p.stride,
        dilation: p.dilation,
        pads: p.pads,
    }
}

macro_rules! first_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        #[allow(clippy::modulo_one, reason = "scalar code has one lane")]
        mod $id {
            use super::*;
            use plane_tile::$id::copy_rows;
            pub(super) const KERNELS: &[FirstKernel] =
        first_kernels!($tile $isa $isa_name $feat $l);
        }
    };
}

/// The vectors per channel of an instruction set's tiles, as many as registers hold, by its lanes.
macro_rules! first_kernels {
    ($tile:ident $isa:ident $isa_name:ident $feat:tt 16) => {
        first_kernels!(@ $tile $isa $isa_name $feat 16 [3 2 1])
    };
    ($tile:ident $isa:ident $isa_name:ident $feat:tt 4) => {
        first_kernels!(@ $tile $isa $isa_name $feat 4 [2 1])
    };
    ($tile:ident $isa:ident $isa_name:ident $feat:tt $l:tt) => {
        first_kernels!(@ $tile $isa $isa_name $feat $l [1])
    };
    (@ $tile:ident $isa:ident $isa_name:ident $feat:tt $l:tt [$($v:tt)*]) => {
        &[$({
            first_kernel! { $tile $feat $l $v }
            FirstKernel {
                info: KernelInfo {
                    name: concat!("conv_first_f32_8x", $v, "x", $l, "_", stringify!($isa_name)),
                    op: OP,
                    isa: Isa::$isa,
                    dtype: Dtype::F32,
                    tile: crate::Tile { rows: 1, w_ob: $v * $l, c_vec: $v, c_ob: C_OUT, unroll: 1 }.packed(),
                },
                run: kernel,
            }
        }),*]
    };
}

/// One microkernel: its name is `kernel`, to be put in a block of its own.
macro_rules! first_kernel {
    ($tile:ident [$($f:tt)*] $l:tt $v:tt) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &PlaneShape, args: &FirstArgs) {
            use tilewright_intrinsics::{$tile as tile, each};
            const L: usize = $l;
            const WIDE: usize = $v * L;
            let s = &g.sizes;
            let [h_in, w_in] = s.input;
            let w_out = s.output[1];
            let plane = input_rows(s, args.rows.len()) * g.copies.row;
            for c in 0..s.c {
                let (x, scratch) = (args.x.wrapping_add(c * h_in * w_in), args.scratch.wrapping_add(c * plane));
                // SAFETY: of each channel the input is readable, and there is room for the rows.
                unsafe { copy_rows(g, x, scratch, &args.rows, 0.0) };
            }
            let (row_step, filter_step) = (s.stride[0] * g.copies.row, s.dilation[0] * g.copies.row);
            // The last tile of a row overlaps the one before it.
            let last_column = w_out.saturating_sub(WIDE);
            for y in 0..args.rows.len() {
                let out = args.y.wrapping_add((args.rows.start + y) * w_out * C_BLOCK);
                let a = args.scratch.cast_const().wrapping_add(y * row_step);
                let mut x = 0;
                loop {
                    let (a, o) = (a.wrapping_add(x), out.wrapping_add(x * C_BLOCK));
                    let (bias, mut b) = (args.bias, args.weights);
                    tile!(DEF t [1 x 8 x $v]);
                    each!(i in 8 {
                        let start = tile!(VSPLAT bias, i);
                        each!(j in $v { t[i][j] = start; });
                    });
                    for k in 0..s.kernel[0] {
                        for tap in &g.copies.taps {
                            for c in 0..s.c {
                                let a = a.wrapping_add(c * plane + k * filter_step + tap);
                                let mut pixels = tile!(ZEROS [tile!(VTYPE); $v]);
                                each!(j in $v { pixels[j] = tile!(VLOAD a, j); });
                                each!(i in 8 {
                                    let w = tile!(VSPLAT b, i);
                                    each!(j in $v { t[i][j] = tile!(VFMA pixels[j], w, t[i][j]); });
                                });
                                b = b.wrapping_add(C_OUT);
                            }
                        }
                    }
                    match g.activation {
                        TileActivation::None => {}
                        TileActivation::Relu => { tile!(RELU t [1 x 8 x $v]); }
                        TileActivation::Clamp { lo, hi } => { tile!(CLAMP t [1 x 8 x $v] lo, hi); }
                        TileActivation::Leaky { alpha } => { tile!(LEAKY t [1 x 8 x $v] alpha); }
                    }
                    let mut narrow = [0.0f32; if $v == 1 { L * C_BLOCK } else { 0 }];
                    let whole = $v > 1 || w_out >= L;
                    let to = if whole { o } else { narrow.as_mut_ptr() };
                    first_store!(tile t to $l $v);
                    if !whole {
                        // SAFETY: a row of the output.
                        unsafe { o.copy_from_nonoverlapping(to, w_out * C_BLOCK) };
                    }
                    if x >= last_column {
                        break;
                    }
                    x = (x + WIDE).min(last_column);
                }
            }
        }
    };
}

/// Stores a tile as blocks of channels: the vectors that hold any of the first 8.
macro_rules! first_store {
    ($tile:ident $t:ident $o:ident $l:tt $v:tt) => {
        let zero = $tile!(VZERO);
        tilewright_intrinsics::each!(j in $v {
            for group in 0..C_OUT.div_ceil(L) {
                let mut u = [[zero; 1]; L];
                tilewright_intrinsics::each!(i in $l {
                    if group * L + i < C_OUT { u[i][0] = $t[group * L + i][j]; }
                });
                $tile!(TRANSPOSE u);
                tilewright_intrinsics::each!(i in $l {
                    let o = $o.wrapping_add((j * L + i) * C_BLOCK + group * L);
                    $tile!(VSTORE o, 0, u[i][0]);
                });
            }
        });
    };
}

tilewright_intrinsics::for_each_tile!(first_row);

/// The microkernels of one instruction set.
fn kernels(isa: Isa) -> &'static [FirstKernel] {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNELS
}

#[cfg(test)]
mod tests {
    use super::super::conv::reference;
    use super::*;
    use crate::testing::{
        Guarded, Numbers, Place, activation_error, assert_close, maximum, skip, tolerance,
    };
    use crate::{Activation, Epilogue};

    fn check(isa: Isa, p: &ConvParams, place: Place) {
        let plan = FirstConvPlan::new(isa, p).unwrap_or_else(|e| panic!("{p:?}: {e}"));
        let mut numbers = Numbers::new((p.w_in * 31 + p.c_out) as u64);
        let count = p.c_in * p.kernel[0] * p.kernel[1];
        let [x, weights, bias] =
            [plan.x_len(), p.c_out * count, p.c_out].map(|len| numbers.floats(len));
        let mut packed = Guarded::output(plan.weights_len(), place);
        let mut packed_bias = Guarded::output(plan.bias_len(), place);
        plan.pack_weights(&weights, &mut packed).unwrap();
        plan.pack_bias(&bias, &mut packed_bias).unwrap();
        let gx = Guarded::new(&x, place);
        let mut y = Guarded::output(plan.y_len(), place);
        let mut scratch = Guarded::output(plan.scratch_len(), Place::Aligned);
        for unit in (0..plan.units()).rev() {
            let (x, w, b) = (gx.as_ptr(), packed.as_ptr(), packed_bias.as_ptr());
            let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
            // SAFETY: operands of the plan's lengths, units of the plan, one thread.
            unsafe { plan.run(x, w, b, y, scratch, unit..unit + 1) };
        }
        let exact = reference(p, &x, &weights, &bias);
        let pixels = p.h_out * p.w_out;
        let costly = p.epilogue.activation.in_tile().is_none();
        for (i, &found) in y.iter().enumerate() {
            let (image, pixel, k) = (i / C_BLOCK / pixels, i / C_BLOCK % pixels, i % C_BLOCK);
            if k >= p.c_out {
                continue;
            }
            let sum = exact[(image * p.c_out + k) * pixels + pixel];
            let exact = match p.epilogue.activation {
                Activation::None => sum,
                Activation::Relu => maximum(sum, 0.0),
                Activation::Clip { min, max } => sum.clamp(f64::from(min), f64::from(max)),
                Activation::LeakyRelu { alpha } if sum < 0.0 => f64::from(alpha) * sum,
                Activation::LeakyRelu { .. } => sum,
                _ => sum.tanh(),
            };
            let allowed =
                tolerance(Dtype::F32, count + 1) + if costly { activation_error(1.0) } else { 0.0 };
            assert_close(found, exact, allowed, (plan.kernel_name(), p, i));
        }
        let mut again = Guarded::output(plan.y_len(), place);
        plan.compute(&gx, &packed, &packed_bias, &mut again).unwrap();
        assert!(y.iter().zip(&*again).all(|(a, b)| a.to_bits() == b.to_bits()), "{p:?}");
    }

    fn shapes(isa: Isa) {
        let activations = [
            Activation::None,
            Activation::Relu,
            Activation::Clip { min: -0.5, max: 0.75 },
            Activation::LeakyRelu { alpha: 0.1 },
            Activation::Tanh,
        ];
        // Channels, input, outputs, filter, stride, pads: rows of one and more tiles, whole and not.
        let shapes = [
            ([3, 96, 96], 8, [3, 3], [2, 2], [0, 0, 1, 1]),
            ([3, 20, 33], 8, [3, 3], [1, 1], [1, 1, 1, 1]),
            ([1, 7, 16], 1, [3, 3], [1, 1], [1, 1, 1, 1]),
            ([4, 9, 70], 5, [5, 2], [2, 2], [2, 0, 1, 1]),
            ([2, 5, 130], 3, [1, 7], [1, 2], [0, 3, 0, 2]),
            ([1, 40, 50], 7, [4, 10], [2, 1], [3, 0, 0, 9]),
            ([3, 6, 300], 4, [1, 1], [3, 1], [0, 0, 0, 0]),
            ([2, 3, 18], 8, [3, 3], [1, 1], [9, 0, 9, 0]),
            ([3, 4, 5], 8, [3, 3], [2, 2], [1, 1, 1, 1]),
        ];
        for (i, (x, c_out, kernel, stride, pads)) in shapes.into_iter().enumerate() {
            let p = ConvParams::new([1 + i % 2, x[0], x[1], x[2]], c_out, kernel);
            let p = p.stride(stride).pads(pads);
            let epilogue = Epilogue { activation: activations[i % 5], residual: false };
            check(isa, &p.clone().epilogue(epilogue), Place::ALL[i % 3]);
            check(isa, &p, Place::PageEnd);
        }
        let wide = ConvParams::new([1, 2, 12, 60], 6, [3, 3]).dilation([2, 3]).pads([2, 3, 2, 3]);
        check(isa, &wide, Place::PageEnd);
    }

    #[test]
    fn what_it_does_not_take_is_refused() {
        let p = ConvParams::new([1, 3, 32, 32], 8, [3, 3]);
        assert!(FirstConvPlan::pays(&p) != cfg!(feature = "few-kernels"));
        assert!(!FirstConvPlan::pays(&ConvParams::new([1, 3, 32, 17], 8, [3, 3])));
        let residual = Epilogue { residual: true, ..Epilogue::default() };
        let others = [
            ConvParams::new([1, 5, 32, 32], 8, [3, 3]),
            ConvParams::new([1, 3, 32, 32], 9, [3, 3]),
            ConvParams::new([1, 4, 32, 64], 8, [3, 3]).groups(2),
            p.clone().stride([1, 3]),
            p.clone().transposed(),
            p.clone().epilogue(residual),
        ];
        for p in others {
            let refused = FirstConvPlan::new(Isa::Scalar, &p);
            assert!(matches!(refused, Err(KernelError::Unsupported { .. })), "{p:?}");
        }
        let plan = FirstConvPlan::new(Isa::Scalar, &p).unwrap();
        assert!(plan.pack_weights(&[0.0; 8 * 27 - 1], &mut vec![0.0; 8 * 27]).is_err());
        assert!(plan.pack_bias(&[0.0; 7], &mut [0.0; 8]).is_err());
        let (w, b) = (vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
        let (x, mut y) = (vec![0.0; plan.x_len()], vec![0.0; plan.y_len()]);
        assert!(plan.compute(&x[1..], &w, &b, &mut y).is_err());
        assert!(plan.compute(&x, &w, &b, &mut y[1..]).is_err());
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            #[test]
            fn $id() {
                if !skip(Isa::$isa) {
                    shapes(Isa::$isa);
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);
}
