//! `nets tract|rten MODEL.onnx INPUT THREADS`: loads a network, and then answers lines on standard
//! input. INPUT is a file of the floats of the network's one input. `run OUT` runs it once and writes
//! the floats of its first output to a file; `time SECONDS` prints the microseconds of each run.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;
/// Runs the network and gives its first output.
type Run = Box<dyn FnMut() -> Result<Vec<f32>, Failure>>;

fn tract(model: &Path, input: Vec<f32>) -> Result<Run, Failure> {
    use tract_onnx::prelude::*;
    let model = tract_onnx::onnx().model_for_path(model)?.into_optimized()?.into_runnable()?;
    let shape = model.model().input_fact(0)?.shape.as_concrete().ok_or("a shape that varies")?;
    let input = Tensor::from_shape(shape, &input)?;
    Ok(Box::new(move || {
        let output = model.run(tvec!(input.clone().into()))?;
        Ok(output[0].to_plain_array_view::<f32>()?.iter().copied().collect())
    }))
}

fn rten(model: &Path, input: Vec<f32>, threads: usize) -> Result<Run, Failure> {
    use rten::{Dimension, Model, RunOptions, ThreadPool, ValueOrView};
    use rten_tensor::prelude::*;
    let model = Model::load_file(model)?;
    let node = *model.input_ids().first().ok_or("no input")?;
    let output = *model.output_ids().first().ok_or("no output")?;
    let shape = model.node_info(node).and_then(|info| info.shape()).ok_or("no shape")?;
    let fixed = |d: &Dimension| match d {
        Dimension::Fixed(size) => Ok(*size),
        Dimension::Symbolic(name) => Err(format!("{name} varies")),
    };
    let shape: Vec<usize> = shape.iter().map(fixed).collect::<Result<_, _>>()?;
    let input = rten_tensor::Tensor::from_data(&shape, input);
    let pool = std::sync::Arc::new(ThreadPool::with_num_threads(threads));
    let options = RunOptions::default().with_thread_pool(Some(pool));
    Ok(Box::new(move || {
        let inputs = vec![(node, ValueOrView::from(input.view()))];
        let mut outputs = model.run(inputs, &[output], Some(options.clone()))?;
        let first: rten_tensor::Tensor<f32> = outputs.remove(0).try_into()?;
        Ok(first.to_vec())
    }))
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [runtime, model, input, threads] = &args[..] else {
        return Err("usage: nets tract|rten MODEL.onnx INPUT THREADS".into());
    };
    let bytes = std::fs::read(input)?;
    let input = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let (model, threads) = (Path::new(model), threads.parse()?);
    let mut run = match (runtime.as_str(), threads) {
        ("tract", 1) => tract(model, input)?,
        ("tract", _) => return Err("measured on one thread only".into()),
        ("rten", _) => rten(model, input, threads)?,
        _ => return Err(format!("no runtime {runtime}").into()),
    };
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        match line?.split_once(' ') {
            Some(("run", out)) => {
                let bytes: Vec<u8> = run()?.iter().flat_map(|x| x.to_le_bytes()).collect();
                std::fs::write(out, bytes)?;
                println!("written");
            }
            Some(("time", seconds)) => {
                let budget = Duration::from_secs_f64(seconds.parse()?);
                for _ in 0..2 {
                    run()?;
                }
                let (begin, mut times) = (Instant::now(), Vec::new());
                while times.len() < 3 || (begin.elapsed() < budget && times.len() < 5000) {
                    let start = Instant::now();
                    run()?;
                    times.push(format!("{:.3}", start.elapsed().as_secs_f64() * 1e6));
                }
                println!("{}", times.join(" "));
            }
            _ => return Err("run OUT, or time SECONDS".into()),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
