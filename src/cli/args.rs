//! What can be written on the command line.

use std::path::PathBuf;

use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

#[cfg(feature = "llm")]
use super::llm::args::{ChatArgs, GenerateArgs, PerplexityArgs, TokenizeArgs};

const EXAMPLES: &str = "\
Examples:
  tilewright run                                   read the embedded picture of a line of text
  tilewright run --input photo.png                 read a picture of your own
  tilewright run net.onnx --input x.npy --output-dir out
                                                   run any supported network, keep its outputs
  tilewright bench net.onnx --threads 1            measure it
  tilewright tune net.onnx                         find out how it runs fastest here
  tilewright explain net.onnx --measure            why it is not faster
  tilewright generate -p \"Once upon a time\"        let the embedded language model go on
  tilewright chat model.gguf                       talk to a language model
  tilewright doctor                                what this machine can do

Environment:
  TILEWRIGHT_ISA=scalar|sse41|avx2|avx512|neon|... use no better instruction set than this one
  TILEWRIGHT_TUNE_TABLE=FILE|off                   tuning table to use instead of the user's own
  TILEWRIGHT_OPENCL_DEVICE=NUMBER|NAME             the device, for --backend opencl
  TILEWRIGHT_RKNN_LIB=FILE                         the NPU's run-time library, for --backend rknn
                                                   (more variables: docs/rknn.md)
  NO_COLOR=1                                       plain text on terminals

Exit status: 0 done; 1 it failed, with one line on standard error; 2 bad usage.
Results go to standard output, everything else to standard error.";

/// Those of what the build has.
fn examples() -> String {
    let language =
        |line: &&str| line.starts_with("  tilewright generate") || line.contains("chat model");
    let lines = EXAMPLES.lines().filter(|line| cfg!(feature = "llm") || !language(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Runs neural networks on the processor.
#[derive(Parser, Debug)]
#[command(name = "tilewright", version, after_help = examples(), max_term_width = 100)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

impl Args {
    /// The arguments of this process. Where an option wants a value, `-1` is one, and the option says
    /// what it thinks of it.
    pub(super) fn of_process() -> Self {
        let negative = |arg: Arg| match arg.get_long() {
            Some(_) if arg.get_action().takes_values() => arg.allow_negative_numbers(true),
            _ => arg,
        };
        let command = Self::command().mut_subcommands(|command| command.mut_args(negative));
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|e| e.exit())
    }
}

/// Ends the program for what is wrong with the arguments of `command` together.
#[cfg(feature = "llm")]
pub(super) fn bad_usage(command: &str, what: impl core::fmt::Display) -> ! {
    let mut program = Args::command();
    program.build();
    let command = program.find_subcommand_mut(command).expect("a command of the program");
    command.error(clap::error::ErrorKind::ValueValidation, what).exit()
}

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Run a network on an input and show the result
    Run(RunArgs),
    /// Run a network on every case of a folder
    Batch(BatchArgs),
    /// Go on with a text, by a language model
    #[cfg(feature = "llm")]
    Generate(GenerateArgs),
    /// Talk to a language model
    #[cfg(feature = "llm")]
    Chat(ChatArgs),
    /// Show the tokens of a text
    #[cfg(feature = "llm")]
    Tokenize(TokenizeArgs),
    /// Measure how well a language model predicts a text
    #[cfg(feature = "llm")]
    Perplexity(PerplexityArgs),
    /// Measure a network, a language model, or single kernels
    Bench(BenchArgs),
    /// Find out by measurement how operations run fastest here, and remember it
    Tune(TuneArgs),
    /// Show what a network consists of and how it would run here
    Inspect(InspectArgs),
    /// Say of each operation why it runs as it does here, and what would help most
    Explain(ExplainArgs),
    /// Show what this machine can do, and what to improve
    Doctor(DoctorArgs),
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The embedded network reads one line of printed text from a picture of any size and colour. A \
network whose metadata name a task (docs/tasks.md) is prepared and shown the same way; any other \
network's outputs are summarised.

Inputs:
  .npy             an array, used as it is: type and shape must be the input's
  .pb              an ONNX TensorProto, used as it is
  .png .jpg .jpeg  a picture: prepared as the network's metadata say; else it must fit an input
                   [1, c, h, w] or [1, h, w, c] with 1 or 3 channels, and is resized to it
  .wav             a sound: features as the network's metadata say, else samples from -1 to 1 for
                   an input [n] or [1, n]

A network without metadata that has a picture for an input and 1000 or 1001 scores for an output is \
taken for an ImageNet classifier, and what Ultralytics' exporters write is understood. For others, \
what metadata would say can stand in a file beside the network (net.task.json for net.onnx), one \
JSON object with the same entries:
  {\"input\": \"image\", \"input.range\": \"0..1\", \"input.mean\": [0.485, 0.456, 0.406],
   \"input.std\": [0.229, 0.224, 0.225], \"input.fit\": \"crop:0.875\", \"labels\": [\"cat\", \"dog\"]}
  {\"input\": \"image\", \"input.range\": \"0..1\", \"input.fit\": \"pad:114\", \"task\": \"detect\",
   \"detect.form\": \"yolo\", \"detect.box\": \"middle\", \"detect.unit\": \"pixel\"}

Examples:
  tilewright run
  tilewright run --input photo.jpg --beam 16
  tilewright run resnet18.onnx --input photo.jpg
  tilewright run yolo11n.onnx --input photo.jpg --draw found.png
  tilewright run two.onnx --input left=a.npy --input right=b.npy --output-dir out
  tilewright run net.onnx --input photo.png --pixel-range 0..1 --format json")]
pub(super) struct RunArgs {
    /// ONNX file; without it the embedded text-line reader
    pub(super) model: Option<PathBuf>,
    /// File for an input; repeat for several, `FILE` alone is enough for one
    #[arg(short, long = "input", value_name = "[NAME=]FILE")]
    pub(super) inputs: Vec<String>,
    /// Write every output there as NAME.npy; made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    pub(super) output_dir: Option<PathBuf>,
    /// Values that 0 and 255 of a picture become, for an input of type f32
    #[arg(long, value_name = "LOW..HIGH", value_parser = pixel_range, allow_hyphen_values = true)]
    pub(super) pixel_range: Option<[f32; 2]>,
    /// File with entries that say what the inputs must become and what the outputs mean; without
    /// it NAME.task.json beside NAME.onnx, if there is one
    #[arg(long, value_name = "FILE")]
    pub(super) task: Option<PathBuf>,
    /// Text file with one label per line, in class order
    #[arg(long, value_name = "FILE")]
    pub(super) labels: Option<PathBuf>,
    /// Draw what a detector found on the picture, as PNG
    #[arg(long, value_name = "FILE.png", value_parser = png)]
    pub(super) draw: Option<PathBuf>,
    /// Read text by a search over the N best beginnings instead of step by step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(super) beam: Option<u16>,
    /// Show time, GFLOP/s and share of every operator
    #[arg(long)]
    pub(super) profile: bool,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
A case is a sub-folder with input_0.npy (or .pb), input_1.npy, ... in the order of the network's \
inputs. Its outputs are written as output_0.npy, output_1.npy, ... into that folder, or into a \
folder of the same name under --output-dir. A case that fails does not stop the others; the exit \
status is 1 if any failed.

Example:
  tilewright batch net.onnx --cases cases --output-dir out")]
pub(super) struct BatchArgs {
    /// ONNX file
    pub(super) model: PathBuf,
    /// Folder with one sub-folder per case
    #[arg(long, value_name = "DIR")]
    pub(super) cases: PathBuf,
    /// Write outputs under this folder instead of beside the inputs
    #[arg(short, long, value_name = "DIR")]
    pub(super) output_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
A network runs on random numbers; extents that it leaves open are 1 for the first axis, and for others \
of the same name, and 224 elsewhere, unless --shape says something else. The embedded network runs on its embedded picture. \
With --kernels, single convolutions and products run on one thread, beside a loop that measures the \
peak and one that measures what can be read from each cache and from memory. The bound of a kernel \
is the peak, or what the level that holds its operands and result lets through (the roofline \
model); --roofline draws it.

Examples:
  tilewright bench
  tilewright bench net.onnx --shape 1,3,480,640 --threads 1
  tilewright bench --kernels 3x3 --format json
  tilewright bench --kernels --roofline roofline.svg")]
pub(super) struct BenchArgs {
    /// ONNX or GGUF file; without it the embedded text-line reader
    #[arg(conflicts_with = "kernels")]
    pub(super) model: Option<PathBuf>,
    /// Measure kernels whose operation, shape or name contains FILTER, or all
    #[arg(
        long,
        value_name = "FILTER",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["backend", "device", "table", "no_table", "memory_limit"]
    )]
    pub(super) kernels: Option<String>,
    /// Draw kernels under the roofline of this core, as SVG
    #[arg(long, value_name = "FILE", requires = "kernels", conflicts_with = "model")]
    pub(super) roofline: Option<PathBuf>,
    /// Shape of an input; repeat for several, `SHAPE` alone is enough for one
    #[arg(long = "shape", value_name = "[NAME=]SHAPE", value_parser = shape, conflicts_with = "kernels")]
    pub(super) shapes: Vec<String>,
    /// Time for measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(super) time: f64,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
    // Last: what follows would stand under its heading.
    #[cfg(feature = "llm")]
    #[command(flatten)]
    pub(super) llm: super::llm::args::BenchedArgs,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
There are several ways of computing a convolution or a matrix product: algorithms, tiles, blocks. \
Without a table the program chooses by rules; `tune` measures all ways for the shapes of a network \
(or of a list) in turns, drops those that are clearly slower, and writes the fastest into a table. \
Every later run on the same kind of processor, with as many threads, uses it. A quiet machine gives \
better tables; other work only makes the search longer.

The table is a text file, by default in your cache folder. It can be read, edited, deleted, and \
shipped beside a model; `run`, `batch`, `bench` and `explain` take --table FILE and --no-table. With --verify \
its entries are measured again: the exit status is 1 if a choice is now more than 10 % slower than \
the fastest, or its time more than 10 % off.

With --backend opencl, or --device, the shapes of kernels of an OpenCL device are measured: tiles, \
vectors and work-groups. Entries are for the device and its driver; `run` and `generate` use them \
there.

A list has one operation per line, `#` begins a comment:
  conv 64x24x24 to 64 window 3 pad 1               input channels x height x width to channels
  conv 1x32x224x224 to 64 window 3x3 stride 2x2 pad 0,0,1,1 dilation 2 groups 4
  matmul 32x1024x1024                              m x k x n; also: transposed, batch 8
Of a device it has kernels, as its entries name them:
  gemm 1x128x768x768                               batch x m x n x k; also: packed
  rows q4_K 1x1x2048+512+512x2048 norm round       one token, three matrices with one x; also: gated

Examples:
  tilewright tune net.onnx --budget 120
  tilewright tune net.onnx --shape 1,3,480,640 --threads 1 --table net.tune.txt
  tilewright tune --shapes list.txt --format json
  tilewright tune model.gguf --device 0
  tilewright tune --verify")]
pub(super) struct TuneArgs {
    /// ONNX file, for a device GGUF too; without it the embedded text-line reader, or with --verify the whole
    /// table
    pub(super) model: Option<PathBuf>,
    /// File with a list of operations, instead of a network
    #[arg(long = "shapes", value_name = "FILE", conflicts_with = "model")]
    pub(super) shapes_file: Option<PathBuf>,
    /// Shape of an input; repeat for several, `SHAPE` alone is enough for one
    #[arg(long = "shape", value_name = "[NAME=]SHAPE", value_parser = shape, conflicts_with = "shapes_file")]
    pub(super) shapes: Vec<String>,
    /// Time for measuring, in seconds; less is used where the ranking is clear
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(super) budget: f64,
    /// Table to add to, instead of the user's own
    #[arg(long, value_name = "FILE")]
    pub(super) table: Option<PathBuf>,
    /// Measure what the table says again, and say what no longer holds
    #[arg(long)]
    pub(super) verify: bool,
    /// Backend to tune: cpu or opencl
    #[arg(
        long,
        value_name = "NAME",
        default_value = "cpu",
        value_parser = backend,
        default_value_if("device", clap::builder::ArgPredicate::IsPresent, "opencl")
    )]
    pub(super) backend: String,
    /// Device to tune, for opencl: its number or a part of its name; `doctor` lists them
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// Threads to tune for; without it one per core
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The list of steps is for one shape of the inputs: extents that the network leaves open are 1 for the \
first axis, and for others of the same name, and 224 elsewhere, unless --shape says something else.

--before and --after write the graph as it was read, and as it runs: which tensor goes where. The \
ending of the file says how: .dot for Graphviz, .svg for a drawing, .json, .txt.

Of a GGUF file the metadata and the tensors are shown; no weights are read.

Examples:
  tilewright inspect net.onnx
  tilewright inspect model.gguf
  tilewright inspect net.onnx --before before.svg --after after.svg
  tilewright inspect net.onnx --shape 1,3,480,640 --format json")]
pub(super) struct InspectArgs {
    /// ONNX or GGUF file; without it the embedded text-line reader
    pub(super) model: Option<PathBuf>,
    /// Write the graph as it was read
    #[arg(long, value_name = "FILE", value_parser = super::graph::file)]
    pub(super) before: Option<PathBuf>,
    /// Write the graph as it runs here
    #[arg(long, value_name = "FILE", value_parser = super::graph::file)]
    pub(super) after: Option<PathBuf>,
    /// Shape of an input; repeat for several, `SHAPE` alone is enough for one
    #[arg(long = "shape", value_name = "[NAME=]SHAPE", value_parser = shape)]
    pub(super) shapes: Vec<String>,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
For every operation: its kernel, type and layout, the least time that this machine's peak and the \
bandwidth of the memory that holds its data allow (measured now, on one core), and why no faster way \
was taken. With --measure, the network runs on random numbers, and the time of each operation and the \
share of its bound are shown; algorithms that do fewer operations than the definition, such as \
Winograd's, may exceed 100 %. The summary says what would help most.

Examples:
  tilewright explain net.onnx --measure
  tilewright explain net.onnx --shape 1,3,480,640 --threads 1 --format json")]
pub(super) struct ExplainArgs {
    /// ONNX file; without it the embedded text-line reader
    pub(super) model: Option<PathBuf>,
    /// Shape of an input; repeat for several, `SHAPE` alone is enough for one
    #[arg(long = "shape", value_name = "[NAME=]SHAPE", value_parser = shape)]
    pub(super) shapes: Vec<String>,
    /// Run the network and show measured times
    #[arg(long)]
    pub(super) measure: bool,
    /// Time for measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(super) time: f64,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
pub(super) struct DoctorArgs {
    /// Test the NPU in this process and print what was found
    #[arg(long, hide = true)]
    pub(super) npu_self_test: bool,
    /// Measure what products cost on the NPU and the processor, and write it to FILE
    #[arg(long, value_name = "FILE")]
    pub(super) npu_costs: Option<PathBuf>,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// Where a network runs, and how.
#[derive(clap::Args, Debug, Default)]
pub(super) struct MachineArgs {
    /// Threads to use; without it one per core
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
    /// Backend to run on: cpu, opencl or rknn
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = backend)]
    pub(super) backend: String,
    /// Device of the backend, for opencl: its number or a part of its name; `doctor` lists them
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// Tuning table to use instead of the user's own; `tilewright tune` makes them
    #[arg(long, value_name = "FILE", conflicts_with = "no_table")]
    pub(super) table: Option<PathBuf>,
    /// Use no tuning table
    #[arg(long)]
    pub(super) no_table: bool,
    /// Memory that a run may take, such as 512M or 2G; without it 80 % of what is free
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) memory_limit: Option<usize>,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// For people
    #[default]
    Text,
    /// One object, for programs
    Json,
}

pub(super) fn size(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.strip_suffix(['K', 'k', 'M', 'm', 'G', 'g']) {
        Some(number) => (number, text[number.len()..].to_ascii_uppercase()),
        None => (text, String::new()),
    };
    let shift = match unit.as_str() {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => 0,
    };
    let bytes = number.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a number of bytes, or one with K, M or G behind it".into())
}

/// A backend of this build.
pub(super) fn backend(text: &str) -> Result<String, String> {
    super::model::check_backend(text).map(|()| text.to_owned()).map_err(|e| e.to_string())
}

/// A number of things.
#[cfg(feature = "llm")]
pub(super) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number, 0 or more".into())
}

/// A shape, perhaps behind the name of an input, which may contain anything.
fn shape(text: &str) -> Result<String, String> {
    let (_, extents) = text.rsplit_once('=').unwrap_or(("", text));
    match extents.split([',', 'x']).all(|d| d.trim().parse::<usize>().is_ok()) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{extents}` is not a shape such as 1,3,8,8")),
    }
}

/// A file that does not look like another kind of picture.
fn png(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(other) if !other.eq_ignore_ascii_case("png") => {
            Err("drawings are PNG files: expected a name that ends in .png".into())
        }
        _ => Ok(path),
    }
}

fn pixel_range(text: &str) -> Result<[f32; 2], String> {
    tilewright::task::image::parse_range(text)
        .ok_or_else(|| "expected two numbers, such as 0..1 or -1..1".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=3600.0).contains(s));
    seconds.ok_or_else(|| "expected a number of seconds from 0 to 3600".into())
}
