//! Products of a graph as steps on the NPU.

use core::fmt;
use core::ops::Range;
use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use super::{Npu, Pending, RknnError, Rows, Want, Weights, lock};
use crate::graph::Layout::{self, Interleaved};
use crate::graph::ops::conv::Conv;
use crate::graph::ops::unary::activate;
use crate::graph::{Device, GraphError, LowerCx, Op, Step};
use crate::tensor::block::dequantize;
use crate::tensor::{DType, Tensor};
use tilewright_kernels::{Activation, C_BLOCK};

/// An NPU that takes products with constant weights out of graphs: `matmul` of f32, `conv` with windows of
/// one pixel, and `block_matmul` with weights of every type that can be brought to f32.
pub struct RknnDevice {
    npu: Arc<Npu>,
    /// Plans for other numbers of rows use the same.
    weights: Mutex<Vec<(Key, Weights)>>,
}

/// The identity of data of weights, whether they hold columns as rows, and their type.
type Key = (u64, bool, DType);

impl fmt::Debug for RknnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RknnDevice").field(self.npu.description()).finish()
    }
}

impl RknnDevice {
    /// Takes products for this NPU.
    pub fn new(npu: Arc<Npu>) -> Self {
        Self { npu, weights: Mutex::default() }
    }

    /// The NPU.
    pub fn npu(&self) -> &Arc<Npu> {
        &self.npu
    }

    /// What the step needs, if the operation is one for the NPU.
    fn product(&self, op: &Op, cx: &LowerCx<'_>) -> Option<Product> {
        let mut pixels = None;
        let (columns_are_rows, bias, residual, activation) = match op {
            Op::Conv(op) => {
                pixels = Some(Pixels::of(op, cx)?);
                let residual = op.residual.then_some(2 + usize::from(op.bias));
                (true, op.bias, residual, op.activation)
            }
            Op::MatMul(op) => {
                let residual = op.residual.then_some(2 + usize::from(op.bias));
                (op.transposed_b, op.bias, residual, op.activation)
            }
            Op::BlockMatMul(op) => (true, op.bias, None, Activation::None),
            _ => return None,
        };
        let tensor = cx.values.get(1).copied().flatten()?;
        let dims = tensor.dims();
        let (&[first, second, ..], true) = (&dims[..], dims.iter().skip(2).all(|&n| n == 1)) else {
            return None;
        };
        let (k, n) = if columns_are_rows { (second, first) } else { (first, second) };
        let floats = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
        let readable = if columns_are_rows {
            floats || !tensor.dtype().is_plain()
        } else {
            tensor.dtype() == DType::F32
        };
        let f32s = cx.src[0].dtype == DType::F32 && cx.dst.dtype == DType::F32;
        let rows = cx.src[0].dims.iter().product::<usize>().checked_div(k)?;
        // A product is a picture whose pixels are rows.
        let pixels = pixels.unwrap_or(Pixels { spatial: 1, x: Interleaved, y: Interleaved });
        let stored_bytes = tensor.storage().len();
        let want = Want { rows, k, n, name: None, stored_bytes };
        if !readable || !f32s || cx.src.len() + 5 > MOST || !self.npu.takes(&want) {
            return None;
        }
        let bias = match bias {
            true => Some(elements(cx.values[2]?)?),
            false => None,
        };
        let matrix = || Matrix { tensor: tensor.clone(), columns_are_rows, k, n };
        let key = (tensor.storage().id(), columns_are_rows, tensor.dtype());
        let mut all = lock(&self.weights);
        if all.iter().all(|(of, _)| *of != key) {
            all.push((key, Weights::new(matrix())));
        }
        let (_, known) = all.iter().find(|(of, _)| *of == key)?;
        // Two shapes of the same data are two matrices.
        let weights = if known.sizes() == (k, n) { known.clone() } else { Weights::new(matrix()) };
        Some(Product { weights, pixels, rows, k, n, bias, residual, activation })
    }
}

impl Device for RknnDevice {
    fn take(&self, op: &Op, cx: &LowerCx<'_>, cpu: Box<dyn Step>) -> Box<dyn Step> {
        match self.product(op, cx) {
            Some(product) => {
                let (npu, pending) = (self.npu.clone(), Arc::default());
                let attempt = Attempt { npu, product: Arc::new(product), pending };
                Box::new(Otherwise { attempt, cpu, operands: cx.src.len(), last: true })
            }
            None => cpu,
        }
    }
}

fn elements(tensor: &Tensor) -> Option<Vec<f32>> {
    let mut out = vec![0f32; tensor.shape().elements()];
    dequantize(tensor.dtype(), tensor.bytes(), &mut out).ok()?;
    Some(out)
}

/// A constant tensor of a graph.
struct Matrix {
    tensor: Tensor,
    columns_are_rows: bool,
    k: usize,
    n: usize,
}

impl Rows for Matrix {
    fn k(&self) -> usize {
        self.k
    }

    fn n(&self) -> usize {
        self.n
    }

    fn row(&self, column: usize, out: &mut [f32]) -> Result<(), RknnError> {
        let (dtype, bytes) = (self.tensor.dtype(), self.tensor.bytes());
        if self.columns_are_rows {
            let size = bytes.len() / self.n;
            let row = &bytes[column * size..][..size];
            return dequantize(dtype, row, out).map_err(|e| RknnError::Weights(e.to_string()));
        }
        let (elements, _) = bytes.as_chunks::<4>();
        let column = elements.iter().skip(column).step_by(self.n);
        out.iter_mut().zip(column).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
        Ok(())
    }

    fn rows(&self, columns: Range<usize>, out: &mut [f32]) -> Result<(), RknnError> {
        if self.columns_are_rows {
            let rows = out.chunks_exact_mut(self.k);
            return columns.zip(rows).try_for_each(|(column, out)| self.row(column, out));
        }
        // Whole cache lines are read, a few of them at a time.
        let (elements, _) = self.tensor.bytes().as_chunks::<4>();
        for (at, row) in elements.chunks_exact(self.n).enumerate() {
            for (to, b) in out.iter_mut().skip(at).step_by(self.k).zip(&row[columns.clone()]) {
                *to = f32::from_le_bytes(*b);
            }
        }
        Ok(())
    }

    fn slice(&self, columns: Range<usize>) -> Option<&[f32]> {
        let floats = self.columns_are_rows && self.tensor.dtype() == DType::F32;
        match self.tensor.as_slice::<f32>().ok().filter(|_| floats)? {
            Cow::Borrowed(all) => all.get(columns.start * self.k..columns.end * self.k),
            Cow::Owned(_) => None,
        }
    }
}

/// How rows of a product lie in tensors that are pictures: each is a pixel, of which there are so many in a
/// picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pixels {
    spatial: usize,
    x: Layout,
    y: Layout,
}

impl Pixels {
    /// Those of a convolution with windows of one pixel, if it is one.
    fn of(op: &Conv, cx: &LowerCx<'_>) -> Option<Self> {
        let (x, y) = (cx.src.first()?, cx.dst);
        let window = cx.src.get(1)?.dims.get(2..)?.iter().all(|&n| n == 1);
        let simple = window
            && op.stride == [1; 2]
            && op.pads == [0; 4]
            && op.groups == 1
            && op.transposed.is_none();
        let residual = cx.src.get(2 + usize::from(op.bias)).filter(|_| op.residual);
        if !simple || residual.is_some_and(|r| r.layout != y.layout || r.dtype != DType::F32) {
            return None;
        }
        let spatial = x.dims.get(2..)?.iter().product();
        Some(Self { spatial, x: x.layout, y: y.layout })
    }

    /// Elements of a tensor with so many pixels and channels.
    fn elements(layout: Layout, rows: usize, channels: usize) -> usize {
        match layout {
            Layout::Blocked => rows * channels.next_multiple_of(C_BLOCK),
            Layout::Plain | Interleaved => rows * channels,
        }
    }

    /// Where a channel of a pixel lies.
    fn place(&self, layout: Layout, channels: usize, row: usize, channel: usize) -> usize {
        let (picture, pixel) = (row / self.spatial, row % self.spatial);
        match layout {
            Interleaved => row * channels + channel,
            Layout::Plain => (picture * channels + channel) * self.spatial + pixel,
            Layout::Blocked => {
                let block = picture * channels.div_ceil(C_BLOCK) + channel / C_BLOCK;
                (block * self.spatial + pixel) * C_BLOCK + channel % C_BLOCK
            }
        }
    }
}

/// One product with what is applied to it.
struct Product {
    weights: Weights,
    pixels: Pixels,
    rows: usize,
    k: usize,
    n: usize,
    bias: Option<Vec<f32>>,
    /// Which operand is added.
    residual: Option<usize>,
    activation: Activation,
}

/// Bytes before the result of an attempt, of which the first says whether it is there.
const HEAD: usize = 64;

/// Steps of an attempt.
const STEPS: usize = 2;

/// Most operands of a step, with the results of those before it.
const MOST: usize = 16;

/// A product on the NPU, which is two steps before those of the CPU: one that begins it, as early as its
/// operand is there, and one that waits for it, as late as possible.
#[derive(Clone)]
struct Attempt {
    npu: Arc<Npu>,
    product: Arc<Product>,
    /// What was begun. A run that ends with an error leaves it to the next one, which forgets it.
    pending: Arc<Mutex<Option<Pending>>>,
}

/// Begins an attempt: packs its operand and hands it to the cores.
struct Begin(Attempt);

impl Step for Begin {
    fn kernel(&self) -> String {
        "rknn_begin".to_owned()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0
    }

    fn begins(&self) -> bool {
        true
    }

    #[allow(unsafe_code, reason = "operands are pointers; see the contract")]
    unsafe fn run(
        &self,
        src: &[*const u8],
        _dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Attempt { npu, product, pending } = &self.0;
        let Product { weights, pixels, rows, k, .. } = &**product;
        let count = Pixels::elements(pixels.x, *rows, *k);
        // SAFETY: the first operand is so many elements of f32, aligned and whole by contract.
        let given = unsafe { core::slice::from_raw_parts(src[0].cast::<f32>(), count) };
        let mut gathered = Vec::new();
        let x = if pixels.x == Interleaved {
            given
        } else {
            gathered.reserve_exact(rows * k);
            for row in 0..*rows {
                gathered.extend((0..*k).map(|i| given[pixels.place(pixels.x, *k, row, i)]));
            }
            &gathered[..]
        };
        *lock(pending) = Some(npu.begin(weights, x));
        Ok(())
    }
}

/// Waits for an attempt.
struct Arrive(Attempt);

impl Step for Arrive {
    fn kernel(&self) -> String {
        self.0.kernel()
    }

    fn reads(&self, _i: usize) -> bool {
        false
    }

    fn is_main(&self) -> bool {
        true
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        Some((Box::new(Begin(self.0.clone())), HEAD))
    }

    #[allow(unsafe_code, reason = "operands are pointers; see the contract")]
    unsafe fn run(
        &self,
        _src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Attempt { npu, product, pending } = &self.0;
        // SAFETY: the result has as many bytes as `Otherwise` asked for, this is its only unit, and it
        // overlaps no operand.
        let y = unsafe {
            core::slice::from_raw_parts_mut(dst.add(HEAD).cast::<f32>(), product.rows * product.n)
        };
        let begun = lock(pending).take();
        // The NPU notes why it fails.
        let done = begun.is_some_and(|begun| npu.finish(begun, y).is_ok());
        // SAFETY: the byte before them.
        unsafe { dst.write(u8::from(done)) };
        Ok(())
    }
}

impl Attempt {
    fn kernel(&self) -> String {
        format!("rknn_matmul_{}", self.npu.numbers().name())
    }
}

/// A step of the CPU's that runs, with all of its threads, if the attempt before it failed. Else the last one
/// takes the attempt's result and applies what follows the product.
struct Otherwise {
    attempt: Attempt,
    cpu: Box<dyn Step>,
    /// Operands of the operation; the results of the attempt's two steps come behind them.
    operands: usize,
    /// Whether this step gives the operation's result.
    last: bool,
}

/// Whether the attempt has a result, and the operands without those of its steps.
///
/// # Safety
/// The second operand behind the first `operands` is the result of an attempt.
#[allow(unsafe_code, reason = "operands are pointers")]
unsafe fn without(src: &[*const u8], operands: usize) -> (bool, [*const u8; MOST]) {
    let mut others = [core::ptr::null(); MOST];
    others[..operands].copy_from_slice(&src[..operands]);
    let behind = &src[operands + STEPS..];
    others[operands..operands + behind.len()].copy_from_slice(behind);
    // SAFETY: by contract.
    (unsafe { *src[operands + 1] } == 1, others)
}

impl Step for Otherwise {
    fn kernel(&self) -> String {
        if self.last { self.attempt.kernel() } else { self.cpu.kernel() }
    }

    fn units(&self) -> usize {
        self.cpu.units()
    }

    fn repeated(&self) -> f64 {
        self.cpu.repeated()
    }

    fn scratch_bytes(&self) -> usize {
        self.cpu.scratch_bytes()
    }

    fn reads(&self, i: usize) -> bool {
        let residual = self.attempt.product.residual.filter(|_| self.last);
        i == 0 || Some(i) == residual || self.cpu.reads(i)
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let (attempt, operands) = (self.attempt.clone(), self.operands);
        Some(match self.cpu.before() {
            Some((cpu, bytes)) => (Box::new(Self { attempt, cpu, operands, last: false }), bytes),
            None => {
                let Product { rows, n, .. } = &*attempt.product;
                let bytes = HEAD + rows * n * size_of::<f32>();
                (Box::new(Arrive(attempt)), bytes)
            }
        })
    }

    #[allow(unsafe_code, reason = "operands are pointers; see the contract")]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the first steps before this one are those of an attempt.
        let (done, others) = unsafe { without(src, self.operands) };
        if !done {
            // SAFETY: the caller's promises are those that the CPU's step asks for, whose operands, scratch
            // memory and units these are.
            return unsafe { self.cpu.run(&others[..src.len() - STEPS], dst, scratch, units) };
        }
        if !self.last {
            return Ok(());
        }
        let Product { pixels, rows, n, bias, residual, activation, .. } = &*self.attempt.product;
        let all = self.units();
        let taken = units.start * rows / all..units.end * rows / all;
        let (first, count) = (taken.start * n, taken.len() * n);
        // SAFETY: the result of the attempt is `[rows, n]` of f32 behind its head.
        let from = unsafe {
            let values = src[self.operands + 1].add(HEAD).cast::<f32>();
            core::slice::from_raw_parts(values.add(first), count)
        };
        if pixels.y != Interleaved {
            for (i, value) in from.iter().enumerate() {
                let (row, column) = (taken.start + i / n, i % n);
                let at = pixels.place(pixels.y, *n, row, column);
                let more = bias.as_ref().map_or(0.0, |bias| bias[column]);
                // SAFETY: the operand added, if there is one, lies as the result does, in which this is the
                // place of an element of this unit's rows.
                unsafe {
                    let added = residual.map_or(0.0, |i| *src[i].cast::<f32>().add(at));
                    *dst.cast::<f32>().add(at) = activate(*activation, value + more + added);
                }
            }
            return Ok(());
        }
        // SAFETY: the result is `[rows, n]` of f32 and overlaps no operand, as this step may overwrite
        // none; units have rows of their own.
        let y = unsafe { core::slice::from_raw_parts_mut(dst.cast::<f32>().add(first), count) };
        y.copy_from_slice(from);
        if let Some(bias) = bias {
            for y in y.chunks_exact_mut(*n) {
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
        if let Some(operand) = residual {
            // SAFETY: it has the result's shape and type, by the operator's rule.
            let more = unsafe {
                core::slice::from_raw_parts(src[*operand].cast::<f32>().add(first), count)
            };
            y.iter_mut().zip(more).for_each(|(y, r)| *y += r);
        }
        if *activation != Activation::None {
            y.iter_mut().for_each(|y| *y = activate(*activation, *y));
        }
        Ok(())
    }
}
