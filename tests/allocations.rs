//! A run takes its memory from the arena that was planned ahead.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::alloc::System;
use std::sync::Arc;

use prost::Message;
use tilewright::import::onnx::proto::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    ValueInfoProto, dimension, type_proto,
};
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

/// Calls of the allocator and bytes asked for meanwhile, on all threads.
fn counted(work: impl FnOnce()) -> (usize, usize) {
    let start = (CALLS.load(Ordering::SeqCst), BYTES.load(Ordering::SeqCst));
    ON.store(true, Ordering::SeqCst);
    work();
    ON.store(false, Ordering::SeqCst);
    (CALLS.load(Ordering::SeqCst) - start.0, BYTES.load(Ordering::SeqCst) - start.1)
}

/// One test, so that no other allocates while this counts.
#[test]
fn a_run_takes_no_memory_that_was_not_planned() {
    outputs_and_no_intermediate_tensor();
    nothing_with_results_of_the_caller();
    #[cfg(feature = "llm")]
    nothing_for_a_token();
}

#[cfg(feature = "llm")]
fn nothing_for_a_token() {
    use tilewright::llm::{Llm, LlmOptions};
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/manual/manual.gguf");
    for threads in [1, 2] {
        let options = LlmOptions { threads: Some(threads), ..LlmOptions::default() };
        let mut session = Llm::load(path, options).unwrap().session().unwrap();
        session.eval(&[1, 2, 3]).unwrap();
        session.eval(&[4]).unwrap();
        let mut sum = 0.0;
        let (calls, _) = counted(|| {
            for token in 5..9 {
                sum += session.eval(&[token]).unwrap()[0];
            }
        });
        assert!(sum.is_finite() && session.position() == 8);
        assert_eq!(calls, 0, "{threads} threads");
    }
}

fn outputs_and_no_intermediate_tensor() {
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

    let mut second = Vec::new();
    let (calls, bytes) = counted(|| second = session.run(&inputs).unwrap());
    assert_eq!(second[0].1.bytes(), first[0].1.bytes());
    // Names, shapes and the copies of outputs (asked for, then made); nothing per operation.
    assert!(calls < 30 && calls < plan.nodes.len(), "{calls} calls, {} steps", plan.nodes.len());
    assert!(bytes < 2 * output_bytes + 4096, "{bytes} bytes, outputs {output_bytes}");
}

/// A hundred small operators in a chain, each of which reads the two results before it.
fn chain() -> Model {
    let value = |name: &str| {
        let dim = |n| Dimension { value: Some(dimension::Value::Fixed(n)) };
        let shape = Some(TensorShapeProto { dim: [1, 1, 8].map(dim).to_vec() });
        let tensor = type_proto::Tensor { elem_type: Some(1), shape };
        let kind = TypeProto { value: Some(type_proto::Value::Tensor(tensor)) };
        ValueInfoProto { name: Some(name.into()), r#type: Some(kind) }
    };
    let name = |i: usize| if i == 0 { "x".to_owned() } else { format!("t{i}") };
    let node = |i: usize| NodeProto {
        op_type: Some(["Tanh", "Add", "Sigmoid", "Max"][i % 4].into()),
        input: (0..=i % 2).map(|back| name(i.saturating_sub(back))).collect(),
        output: vec![name(i + 1)],
        ..Default::default()
    };
    let graph = GraphProto {
        node: (0..100).map(node).collect(),
        name: Some("chain".into()),
        input: vec![value("x")],
        output: vec![value(&name(100))],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: None, version: Some(18) };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        graph: Some(graph),
        ..Default::default()
    };
    Model::from_bytes(model.encode_to_vec(), None).unwrap()
}

fn nothing_with_results_of_the_caller() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/textline/textline.onnx");
    let models =
        [(chain(), vec![1, 1, 8], 100), (Model::load(path).unwrap(), vec![1, 1, 32, 400], 10)];
    for (model, dims, least) in models {
        let model = Arc::new(model);
        for threads in [1, 2] {
            let options = SessionOptions { threads: Some(threads), ..SessionOptions::default() };
            let mut session = Session::new(model.clone(), options).unwrap();
            let mut x = Tensor::zeros(DType::F32, &dims).unwrap();
            let named = [(model.inputs()[0].name.as_str(), x.clone())];
            assert!(session.prepare(&named).unwrap().nodes.len() >= least);
            let expected = session.run(&named).unwrap();
            drop(named);
            let mut results = Vec::new();
            session.run_into(&[&x], &mut results).unwrap();
            let (calls, _) = counted(|| {
                x.bytes_mut().expect("no clone is left").fill(0);
                session.run_into(&[&x], &mut results).unwrap();
            });
            assert_eq!(calls, 0, "{dims:?} on {threads} threads");
            assert_eq!(results.len(), expected.len());
            for (found, (_, expected)) in results.iter().zip(&expected) {
                assert_eq!(found.bytes(), expected.bytes());
            }
            // A result that somebody else still has is left alone.
            let (other, last) = (results[0].clone(), expected[0].1.bytes().to_vec());
            x.bytes_mut().expect("no clone is left").fill(1);
            session.run_into(&[&x], &mut results).unwrap();
            assert_eq!(other.bytes(), last);
        }
    }
}
