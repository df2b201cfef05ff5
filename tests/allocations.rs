//! A run takes its memory from the arena that was planned ahead.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::alloc::System;
use std::sync::Arc;

use tilewright::{DType, Model, Session, SessionOptions, Tensor};

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ON.load(Ordering::Relaxed) {
            CALLS.fetch_add(1, Ordering::Relaxed);
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_run_allocates_its_outputs_and_no_intermediate_tensor() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/textline/textline.onnx");
    let model = Arc::new(Model::load(path).unwrap());
    let options = SessionOptions { threads: Some(2), ..SessionOptions::default() };
    let mut session = Session::new(model.clone(), options).unwrap();
    let name = model.inputs()[0].name.clone();
    let x = Tensor::zeros(DType::F32, &[1, 1, 32, 400]).unwrap();
    let inputs = [(name.as_str(), x)];
    let plan = session.prepare(&inputs).unwrap();
    let first = session.run(&inputs).unwrap();
    let output_bytes: usize = first.iter().map(|(_, t)| t.bytes().len()).sum();

    ON.store(true, Ordering::SeqCst);
    let second = session.run(&inputs).unwrap();
    ON.store(false, Ordering::SeqCst);

    let (calls, bytes) = (CALLS.load(Ordering::SeqCst), BYTES.load(Ordering::SeqCst));
    assert_eq!(second[0].1.bytes(), first[0].1.bytes());
    // Names, shapes and the copies of outputs (asked for, then made); nothing per operation.
    assert!(calls < 30 && calls < plan.nodes.len(), "{calls} calls, {} steps", plan.nodes.len());
    assert!(bytes < 2 * output_bytes + 4096, "{bytes} bytes, outputs {output_bytes}");
}
