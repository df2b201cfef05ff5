//! Products of a graph as steps on the NPU.

use core::fmt;
use core::ops::Range;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{Npu, Numbers, RknnError, Rows, Weights, lock};
use crate::graph::ops::unary::activate;
use crate::graph::{Device, GraphError, LowerCx, Op, Step};
use crate::tensor::block::dequantize;
use crate::tensor::{DType, Tensor};
use tilewright_kernels::Activation;

/// An NPU that takes products with constant weights out of graphs: `matmul` of f32, and
/// `block_matmul` with weights of every type that can be brought to f32.
pub struct RknnDevice {
    npu: Arc<Npu>,
    /// Weights by the identity of their data, whether they hold columns as rows, and their type: plans for other
    /// numbers of rows use the same.
    weights: Mutex<HashMap<(u64, bool, DType), Weights>>,
}

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
        let (columns_are_rows, bias, residual, activation) = match op {
            Op::MatMul(op) => {
                let residual = op.residual.then_some(2 + usize::from(op.bias));
                (op.transposed_b, op.bias, residual, op.activation)
            }
            Op::BlockMatMul(op) => (true, op.bias, None, Activation::None),
            _ => return None,
        };
        let tensor = cx.values.get(1).copied().flatten()?;
        let &[first, second] = &tensor.dims()[..] else { return None };
        let (k, n) = if columns_are_rows { (second, first) } else { (first, second) };
        let floats = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
        let readable = if columns_are_rows {
            floats || !tensor.dtype().is_plain()
        } else {
            tensor.dtype() == DType::F32
        };
        let f32s = cx.src[0].dtype == DType::F32 && cx.dst.dtype == DType::F32;
        let rows = cx.src[0].elements().checked_div(k)?;
        if !readable || !f32s || !self.npu.takes(rows, k, n) {
            return None;
        }
        let bias = match bias {
            true => Some(elements(cx.values[2]?)?),
            false => None,
        };
        let matrix = || Matrix { tensor: tensor.clone(), columns_are_rows, k, n };
        let key = (tensor.storage().id(), columns_are_rows, tensor.dtype());
        let mut all = lock(&self.weights);
        let known = all.entry(key).or_insert_with(|| Weights::new(matrix()));
        // Two shapes of the same data are two matrices.
        let weights = if known.sizes() == (k, n) { known.clone() } else { Weights::new(matrix()) };
        Some(Product { weights, rows, k, n, bias, residual, activation })
    }
}

impl Device for RknnDevice {
    fn take(&self, op: &Op, cx: &LowerCx<'_>, cpu: Box<dyn Step>) -> Box<dyn Step> {
        match self.product(op, cx) {
            Some(product) => Box::new(OnNpu { npu: self.npu.clone(), product, cpu }),
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
}

/// One product with what is applied to it.
struct Product {
    weights: Weights,
    rows: usize,
    k: usize,
    n: usize,
    bias: Option<Vec<f32>>,
    /// Which operand is added.
    residual: Option<usize>,
    activation: Activation,
}

/// Computes a product on the NPU, and on the CPU if it fails there.
struct OnNpu {
    npu: Arc<Npu>,
    product: Product,
    cpu: Box<dyn Step>,
}

impl Step for OnNpu {
    fn kernel(&self) -> String {
        let numbers = match self.npu.numbers() {
            Numbers::F16 => "f16",
            Numbers::I8 => "i8",
        };
        format!("rknn_matmul_{numbers}")
    }

    fn scratch_bytes(&self) -> usize {
        self.cpu.scratch_bytes()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0 || Some(i) == self.product.residual || self.cpu.reads(i)
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        self.cpu.before()
    }

    #[allow(unsafe_code, reason = "operands are pointers; see the contract")]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Product { weights, rows, k, n, bias, residual, activation } = &self.product;
        // SAFETY: the first operand is `[rows, k]` of f32, aligned and whole by contract.
        let x = unsafe { core::slice::from_raw_parts(src[0].cast::<f32>(), rows * k) };
        // SAFETY: the result is `[rows, n]` of f32 and overlaps no operand, as this step may overwrite
        // none; this is its only unit.
        let y = unsafe { core::slice::from_raw_parts_mut(dst.cast::<f32>(), rows * n) };
        if self.npu.multiply(weights, x, y).is_err() {
            // The NPU has noted why. SAFETY: the caller's promises are those that the CPU's step asks
            // for, whose operands, scratch memory and steps before it this one has taken over.
            return unsafe { self.cpu.run(src, dst, scratch, 0..self.cpu.units()) };
        }
        if let Some(bias) = bias {
            for y in y.chunks_exact_mut(*n) {
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
        if let Some(operand) = residual {
            // SAFETY: it has the result's shape and type, by the operator's rule.
            let more =
                unsafe { core::slice::from_raw_parts(src[*operand].cast::<f32>(), rows * n) };
            y.iter_mut().zip(more).for_each(|(y, r)| *y += r);
        }
        if *activation != Activation::None {
            y.iter_mut().for_each(|y| *y = activate(*activation, *y));
        }
        Ok(())
    }
}
