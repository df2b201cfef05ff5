//! Convolutions and pooling of floats.

use core::ffi::c_char;
#[cfg(feature = "alloc")]
use core::ffi::c_void;

use tilewright_kernels::Epilogue;
use tilewright_kernels::template::conv_params::{ConvParams, InputLayout};

use crate::error::Fail;
use crate::kernel::activation;

/// Sizes of what moves a window over pictures: convolutions and pooling. The output has
/// `(h + pads - dilation * (kernel - 1) - 1) / stride + 1` rows, rounded down, and as many columns by the
/// same formula; a function `tw_window_output` says them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_window {
    /// `sizeof (tw_window)`.
    pub size: usize,
    /// Pictures.
    pub n: usize,
    /// Channels of the input.
    pub c_in: usize,
    /// Channels of the output; of depthwise convolutions and pooling those of the input, or 0.
    pub c_out: usize,
    /// Rows of the input.
    pub h: usize,
    /// Columns of the input.
    pub w: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Pixels from a window to the next, down and to the right; 0 for 1.
    pub stride: [usize; 2],
    /// Pixels between neighbouring taps, down and to the right; 0 for 1.
    pub dilation: [usize; 2],
    /// Pixels around the input: top, left, bottom, right. Zeros for convolutions (the zero point for those of
    /// bytes); left out by pooling.
    pub pads: [usize; 4],
    /// Of convolutions: groups of channels that do not see each other; 0 for 1.
    pub groups: usize,
    /// Name of an instruction set; NULL for the best one.
    pub isa: *const c_char,
    /// 1 if the input of a convolution is `[n][h][w][c]`, for networks' first layers; for kernels of bytes at
    /// most 12 channels. Else it is blocked: `[n][c / 16 rounded up][h][w][16]`. Outputs always are; see
    /// `tw_block`.
    pub interleaved: i32,
    /// A `tw_activation`, for convolutions; of kernels of bytes only for results of type `TW_F32`.
    pub activation: i32,
    /// What the activation calls so.
    pub low: f32,
    /// What the activation calls so.
    pub high: f32,
    /// 1 to add a residual, blocked as the output, before the activation. Not for kernels of bytes.
    pub residual: i32,
    /// 1 if an average counts padding too.
    pub count_padding: i32,
}

impl tw_window {
    fn one(n: usize) -> usize {
        n.max(1)
    }

    pub(crate) fn stride(&self) -> [usize; 2] {
        self.stride.map(Self::one)
    }

    pub(crate) fn dilation(&self) -> [usize; 2] {
        self.dilation.map(Self::one)
    }

    pub(crate) fn epilogue(&self) -> Result<Epilogue, Fail> {
        let activation = activation(self.activation, self.low, self.high)?;
        Ok(Epilogue { activation, residual: self.residual != 0 })
    }

    /// As a convolution. What makes no sense is for the plan to refuse.
    pub(crate) fn conv(&self) -> Result<ConvParams, Fail> {
        let x = [self.n, self.c_in, self.h, self.w];
        let params = ConvParams::new(x, self.c_out, self.kernel)
            .stride(self.stride())
            .dilation(self.dilation())
            .pads(self.pads)
            .groups(Self::one(self.groups))
            .epilogue(self.epilogue()?);
        let input =
            if self.interleaved != 0 { InputLayout::Interleaved } else { InputLayout::Blocked };
        Ok(ConvParams { input, ..params })
    }

    /// Channels, if those of the output are as many.
    #[cfg(feature = "alloc")]
    pub(crate) fn channels(&self) -> Result<usize, Fail> {
        if ![0, self.c_in].contains(&self.c_out) {
            return Err(Fail::Argument("c_out", "0 or as many as c_in"));
        }
        if self.interleaved != 0 {
            return Err(Fail::Argument(
                "interleaved",
                "0 but for convolutions that are not depthwise",
            ));
        }
        Ok(self.c_in)
    }
}

/// Rows and columns of the output. Gives `TW_INVALID_ARGUMENT` if the window does not fit the input.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `window` is NULL or as its type says; `rows` and `columns` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_window_output(
    window: *const tw_window,
    rows: *mut usize,
    columns: *mut usize,
) -> crate::tw_status {
    crate::error::call(|| {
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        let p = unsafe { crate::kernel::given(window, "window") }?.conv()?;
        if p.h_out == 0 || p.w_out == 0 {
            return Err(Fail::Argument(
                "kernel",
                "at least 1, and no larger than the padded input",
            ));
        }
        if rows.is_null() || columns.is_null() {
            return Err(Fail::Null("rows or columns"));
        }
        // SAFETY: as the caller promises.
        unsafe {
            rows.write(p.h_out);
            columns.write(p.w_out);
        }
        Ok(())
    })
}

#[cfg(feature = "alloc")]
pub use floats::*;

#[cfg(feature = "alloc")]
mod floats {
    use super::*;
    use tilewright_kernels::{
        ConvPlan, DepthwiseParams, DepthwisePlan, PoolOp, PoolParams, PoolPlan,
    };

    use crate::kernel::{given, isa, make, tw_kernel};
    use crate::plan::{At, FloatPlan, Floats, Lens, packs_weights_and_bias};
    use crate::status::tw_status;

    impl tw_window {
        pub(crate) fn depthwise(&self) -> Result<DepthwiseParams, Fail> {
            let c = self.channels()?;
            let ConvParams { n, h_in, w_in, h_out, w_out, epilogue, .. } = self.conv()?;
            let (kernel, pads) = (self.kernel, self.pads);
            let (stride, dilation) = (self.stride(), self.dilation());
            Ok(DepthwiseParams {
                n,
                c,
                h_in,
                w_in,
                h_out,
                w_out,
                kernel,
                stride,
                dilation,
                pads,
                epilogue,
            })
        }

        pub(crate) fn pool(&self, op: i32) -> Result<PoolParams, Fail> {
            let op = match op {
                0 => PoolOp::Max,
                1 => PoolOp::Average { count_include_pad: self.count_padding != 0 },
                n => return Err(Fail::Number("op", n)),
            };
            if self.activation != 0 || self.residual != 0 {
                return Err(Fail::Argument("activation and residual", "0 for pooling"));
            }
            let p = self.depthwise()?;
            let DepthwiseParams { n, c, h_in, w_in, h_out, w_out, .. } = p;
            let (kernel, stride, dilation, pads) = (p.kernel, p.stride, p.dilation, p.pads);
            Ok(PoolParams { op, n, c, h_in, w_in, h_out, w_out, kernel, stride, dilation, pads })
        }
    }

    /// What becomes of the pixels of a window.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum tw_pooling {
        /// The largest.
        TW_MAX = 0,
        /// The mean.
        TW_AVERAGE = 1,
    }

    /// Makes a kernel of a convolution of floats, of any number of groups but as many as channels (see
    /// `tw_depthwise_new`). 3 x 3 filters at stride 1 may be computed by Winograd's algorithm.
    /// `memory` and errors are as at `tw_sgemm_new`.
    ///
    /// Any thread may call it, several at a time.
    ///
    /// # Safety
    /// `window` is NULL or as its type says; `memory` is NULL or writable for `bytes` bytes; `out` is NULL or
    /// writable.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn tw_conv_new(
        window: *const tw_window,
        memory: *mut c_void,
        bytes: usize,
        out: *mut *mut tw_kernel,
    ) -> tw_status {
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        unsafe {
            make(memory, bytes, out, || {
                let window = given(window, "window")?;
                let params = window.conv()?;
                let plan = ConvPlan::new(isa(window.isa)?, &params)?;
                let residual = params.epilogue.residual;
                Ok(Floats { plan, columns: params.c_out, residual })
            })
        }
    }

    impl FloatPlan for ConvPlan {
        const OP: &'static str = "conv";

        fn lens(&self) -> Lens {
            Lens {
                x: self.x_len(),
                weights: self.weights_len(),
                columns: self.bias_len(),
                y: self.y_len(),
                scratch: self.scratch_len(),
            }
        }

        packs_weights_and_bias! {}

        unsafe fn run(&self, at: &At) {
            let (x, weights, bias) = (at.x.cast(), at.weights.cast(), at.columns.cast());
            let (y, scratch, units) = (at.y.cast(), at.scratch.cast(), 0..self.units());
            // SAFETY: as the caller promises.
            unsafe { self.run(x, weights, bias, at.residual, y, scratch, units) };
        }
    }

    /// Makes a kernel of a depthwise convolution of floats: each channel has a filter of its own. `groups` is
    /// not read. `memory` and errors are as at `tw_sgemm_new`.
    ///
    /// Any thread may call it, several at a time.
    ///
    /// # Safety
    /// As `tw_conv_new`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn tw_depthwise_new(
        window: *const tw_window,
        memory: *mut c_void,
        bytes: usize,
        out: *mut *mut tw_kernel,
    ) -> tw_status {
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        unsafe {
            make(memory, bytes, out, || {
                let window = given(window, "window")?;
                let params = window.depthwise()?;
                let plan = DepthwisePlan::new(isa(window.isa)?, &params)?;
                let residual = params.epilogue.residual;
                Ok(Floats { plan, columns: params.c, residual })
            })
        }
    }

    impl FloatPlan for DepthwisePlan {
        const OP: &'static str = "depthwise";

        fn lens(&self) -> Lens {
            Lens {
                x: self.x_len(),
                weights: self.weights_len(),
                columns: self.bias_len(),
                y: self.y_len(),
                scratch: 0,
            }
        }

        packs_weights_and_bias! {}

        unsafe fn run(&self, at: &At) {
            let (x, weights, bias) = (at.x.cast(), at.weights.cast(), at.columns.cast());
            // SAFETY: as the caller promises.
            unsafe { self.run(x, weights, bias, at.residual, at.y.cast(), 0..self.units()) };
        }
    }

    /// Makes a kernel of a pooling of floats. `op` is a `tw_pooling`; `memory` and errors are as at
    /// `tw_sgemm_new`.
    ///
    /// Any thread may call it, several at a time.
    ///
    /// # Safety
    /// As `tw_conv_new`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn tw_pool_new(
        window: *const tw_window,
        op: i32,
        memory: *mut c_void,
        bytes: usize,
        out: *mut *mut tw_kernel,
    ) -> tw_status {
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        unsafe {
            make(memory, bytes, out, || {
                let window = given(window, "window")?;
                let plan = PoolPlan::new(isa(window.isa)?, &window.pool(op)?)?;
                Ok(Floats { plan, columns: 0, residual: false })
            })
        }
    }

    impl FloatPlan for PoolPlan {
        const OP: &'static str = "pool";

        fn lens(&self) -> Lens {
            Lens { x: self.x_len(), y: self.y_len(), ..Default::default() }
        }

        unsafe fn run(&self, at: &At) {
            // SAFETY: as the caller promises.
            unsafe { self.run(at.x.cast(), at.y.cast(), 0..self.units()) };
        }
    }
}
