//! Graphs on an OpenCL device, against the references of the operators and against the CPU.
//!
//! The device is the one that `TILEWRIGHT_OPENCL_DEVICE` names, or the first; without one the tests pass and
//! say so, unless `TILEWRIGHT_EXPECT_OPENCL` is set.
#![cfg(feature = "opencl")]

#[path = "opencl/bytes.rs"]
mod bytes;
#[path = "opencl/faults.rs"]
mod faults;
#[path = "opencl/grid.rs"]
mod grid;
#[cfg(feature = "llm")]
#[path = "opencl/llm.rs"]
mod llm;
#[path = "opencl/movement.rs"]
mod movement;
#[path = "opencl/networks.rs"]
mod networks;
#[path = "support/onnx.rs"]
mod onnx;
#[path = "opencl/tuning.rs"]
mod tuning;
#[path = "opencl/windows.rs"]
mod windows;

use std::sync::Arc;

use tilewright::backend::cpu::Executor;
use tilewright::backend::opencl::{OpenClDevice, OpenClError, Options, Vendor};
use tilewright::graph::{Context, Device, TensorId};
use tilewright::{DType, Isa, Tensor};

/// The defaults of the tests: no files of built kernels, which would hide what is wrong with them.
/// `TILEWRIGHT_TEST_SHAPE` shapes kernels as for GPUs of a vendor: what they compute may be looked at anywhere.
fn options() -> Options {
    let shaped_for = std::env::var("TILEWRIGHT_TEST_SHAPE").ok().map(|name| match &*name {
        "nvidia" => Vendor::Nvidia,
        "amd" => Vendor::Amd,
        "intel" => Vendor::Intel,
        "mali" => Vendor::Mali,
        "adreno" => Vendor::Adreno,
        _ => panic!("TILEWRIGHT_TEST_SHAPE is {name}, which is no vendor"),
    });
    Options { cache: None, log: |_| {}, shaped_for, ..Options::from_env().unwrap() }
}

/// A device, or `None` where there is none.
fn open(options: Options) -> Option<Arc<OpenClDevice>> {
    match OpenClDevice::open(&options) {
        Ok(device) => Some(Arc::new(device)),
        Err(e @ (OpenClError::Library { .. } | OpenClError::NoDevice { .. })) => {
            assert!(std::env::var_os("TILEWRIGHT_EXPECT_OPENCL").is_none(), "{e}");
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The device that tests share which do not count what it does.
fn shared() -> Option<Arc<OpenClDevice>> {
    static DEVICE: std::sync::OnceLock<Option<Arc<OpenClDevice>>> = std::sync::OnceLock::new();
    DEVICE.get_or_init(|| open(options())).clone()
}

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let value = |i: u32| (i.wrapping_add(seed << 16).wrapping_mul(0x9E37_79B9) >> 20) as f32;
    (0..count as u32).map(|i| value(i) / 2048.0 - 1.0).collect()
}

fn tensor(dims: &[usize], seed: u32) -> Tensor {
    Tensor::from_slice(dims, &noise(dims.iter().product(), seed)).unwrap()
}

/// A graph of one operand list, on the device: those that `constant` says are constants there.
fn on_device(
    device: &Arc<OpenClDevice>,
    src: &[Tensor],
    constant: &dyn Fn(usize) -> bool,
    build: &dyn Fn(&mut Context, &[TensorId]) -> TensorId,
) -> Tensor {
    let mut cx = Context::new();
    let mut given = Vec::new();
    let ids: Vec<TensorId> = src
        .iter()
        .enumerate()
        .map(|(i, t)| match constant(i) {
            true => cx.constant(t.clone()).unwrap(),
            false => {
                given.push((i.to_string(), t));
                cx.input(&i.to_string(), t.dtype(), &t.dims()).unwrap()
            }
        })
        .collect();
    let y = build(&mut cx, &ids);
    let mut executor =
        Executor::new(Isa::best(), 1).unwrap().with_device(Some(device.clone() as Arc<dyn Device>));
    let plan = executor.plan(&mut cx, &[y]).unwrap();
    for node in plan.nodes() {
        assert!(node.kernel.starts_with("opencl"), "{} is not computed by a kernel", node.op);
    }
    let by_name = |name: &str| given.iter().find(|(n, _)| n == name).unwrap().1;
    let order: Vec<&Tensor> = plan.input_names().map(by_name).collect();
    executor.run(&plan, &order, None).unwrap().remove(0)
}

/// The same from the definitions of the operators: of constants everything is computed at once.
fn reference(src: &[Tensor], build: &dyn Fn(&mut Context, &[TensorId]) -> TensorId) -> Tensor {
    let mut cx = Context::new();
    let ids: Vec<TensorId> = src.iter().map(|t| cx.constant(t.clone()).unwrap()).collect();
    let y = build(&mut cx, &ids);
    cx.constant_value(y).unwrap().clone()
}

/// Compares f32 within `bound` times the larger of 1 and the reference's magnitude, anything else exactly.
fn assert_close(found: &Tensor, expected: &Tensor, bound: f32, what: &str) {
    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()), "{what}");
    if found.dtype() != DType::F32 {
        assert_eq!(found.bytes(), expected.bytes(), "{what}");
        return;
    }
    let (found, expected) = (found.as_slice::<f32>().unwrap(), expected.as_slice::<f32>().unwrap());
    for (i, (a, b)) in found.iter().zip(&*expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan());
        let close = (a - b).abs() <= bound * b.abs().max(1.0);
        assert!(same || close, "{what}, element {i}: {a}, expected {b}");
    }
}
