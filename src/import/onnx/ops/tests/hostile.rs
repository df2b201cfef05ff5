//! Every operator on operands and attributes that make little sense: errors, never a panic.

use super::super::super::OnnxModel;
use super::super::super::proto::{GraphProto, ModelProto, OperatorSetIdProto, attribute_type};
use super::super::super::testing::{model, node, tensor, value};
use super::super::{OpRow, rows};
use super::*;
use crate::graph::Context;
use crate::import::onnx::NEWEST_OPSET;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.next() % of.len() as u64).unwrap()]
    }

    fn number(&mut self) -> i64 {
        match self.next() % 24 {
            0 => self.pick(&[i64::MAX, i64::MIN, 1 << 40, i64::from(i32::MAX), -7, 1 << 20]),
            1..=3 => -1,
            n => i64::try_from(n % 5).unwrap(),
        }
    }

    fn float(&mut self) -> f32 {
        match self.next() % 16 {
            0 => self.pick(&[f32::NAN, f32::INFINITY, -1e30, 1e30, 1e-30]),
            n => (n as f32 - 6.0) / 3.0,
        }
    }

    fn list(&mut self) -> Vec<i64> {
        (0..self.next() % 6).map(|_| self.number()).collect()
    }

    fn tensor(&mut self) -> Tensor {
        const SHAPES: [&[usize]; 12] = [
            &[],
            &[1],
            &[2],
            &[4],
            &[0],
            &[2, 3],
            &[3, 2],
            &[1, 1, 4],
            &[2, 2, 3],
            &[1, 2, 4, 4],
            &[2, 2, 3, 3],
            &[1, 1, 2, 3, 2],
        ];
        let dims = self.pick(&SHAPES);
        let count = dims.iter().product();
        macro_rules! of {
            ($t:ty) => {{
                let v: Vec<$t> = (0..count).map(|_| self.number() as $t).collect();
                Tensor::from_slice(dims, &v).unwrap()
            }};
        }
        match self.next() % 16 {
            0 => of!(u8),
            1 => of!(i8),
            2 => of!(i32),
            3 => of!(f64),
            4 => of!(u64),
            5 => {
                let v: Vec<u8> =
                    (0..count).map(|_| u8::from(self.next().is_multiple_of(2))).collect();
                Tensor::from_bytes(DType::Bool, dims, &v).unwrap()
            }
            6..=9 => of!(i64),
            _ => {
                let v: Vec<f32> = (0..count).map(|_| self.float()).collect();
                Tensor::from_slice(dims, &v).unwrap()
            }
        }
    }
}

/// A model of one node with random operands and attributes.
fn random_model(row: &OpRow, random: &mut Random) -> ModelProto {
    let (least, most) = row.inputs().into_inner();
    let spread = most.min(least + 5) - least + 1;
    let count = least + usize::try_from(random.next()).unwrap_or(0) % spread;
    let names: Vec<String> = (0..count).map(|i| format!("x{i}")).collect();
    let constants: Vec<_> = names.iter().map(|n| tensor(n, &random.tensor())).collect();
    let absent = |random: &mut Random| random.next().is_multiple_of(12);
    let inputs: Vec<&str> =
        names.iter().map(|n| if absent(random) { "" } else { n.as_str() }).collect();
    let outputs: Vec<String> = (0..row.computed_outputs().min(*row.outputs_allowed().end()).min(3))
        .map(|i| format!("y{i}"))
        .collect();
    let outs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let mut n = node(row.name, &inputs, &outs, &[]);
    n.domain = Some(row.domain.into());
    for attr in row.attrs {
        let (name, kind, strings) = attr.parts();
        if random.next().is_multiple_of(3) {
            continue;
        }
        let (list, floats) = (random.list(), [random.float(), random.float(), random.float()]);
        let text = if strings.is_empty() { "ij,jk->ik" } else { random.pick(strings) };
        let value = match kind {
            attribute_type::INT => A::I(random.number()),
            attribute_type::INTS => A::Is(&list),
            attribute_type::FLOAT => A::F(random.float()),
            attribute_type::FLOATS => A::Fs(&floats),
            attribute_type::TENSOR => A::T(tensor("t", &random.tensor())),
            attribute_type::STRING => A::S(text),
            _ => continue,
        };
        n.attribute.push(super::super::super::testing::attribute(name, &value));
    }
    let graph = GraphProto {
        node: vec![n],
        initializer: constants,
        output: outs.iter().map(|o| value(o, DType::F32)).collect(),
        ..Default::default()
    };
    let (since, until) = row.opsets().into_inner();
    let newest = until.min(NEWEST_OPSET);
    let opset = since.min(newest).max(random.pick(&[7, 13, newest]).min(newest));
    let mut m = model(if row.domain.is_empty() { opset } else { NEWEST_OPSET }, graph);
    if !row.domain.is_empty() {
        let version = Some(1);
        m.opset_import.push(OperatorSetIdProto { domain: Some(row.domain.into()), version });
    }
    m
}

#[test]
fn nonsense_is_an_error_for_every_operator() {
    let mut random = Random(1);
    let mut good = 0;
    for row in rows() {
        for _ in 0..200 {
            let m = random_model(row, &mut random);
            // The message is what is wanted when this panics.
            let text = std::panic::catch_unwind(|| {
                let model = OnnxModel::from_proto(m.clone(), None).ok()?;
                model.instantiate(&mut Context::new(), &[], &[]).ok()
            });
            match text {
                Ok(result) => good += usize::from(result.is_some()),
                Err(_) => panic!("{m:?}"),
            }
        }
    }
    assert!(good > 1000, "only {good} models made sense");
}
