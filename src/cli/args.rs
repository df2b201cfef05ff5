//! What can be written on the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  tilewright run                                   read the embedded picture of a line of text
  tilewright run --input photo.png                 read a picture of your own
  tilewright run net.onnx --input x.npy --output-dir out
                                                   run any supported network, keep its outputs
  tilewright bench net.onnx --threads 1            measure it
  tilewright tune net.onnx                         find out how it runs fastest here
  tilewright doctor                                what this machine can do

Environment:
  TILEWRIGHT_ISA=scalar|avx2|avx512|neon|...       use no better instruction set than this one
  TILEWRIGHT_TUNE_TABLE=FILE|off                   tuning table to use instead of the user's own
  NO_COLOR=1                                       plain text on terminals

Exit status: 0 done; 1 it failed, with one line on standard error; 2 bad usage.
Results go to standard output, everything else to standard error.";

/// Runs neural networks on the processor.
#[derive(Parser, Debug)]
#[command(name = "tilewright", version, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Run a network on an input and show the result
    Run(RunArgs),
    /// Run a network on every case of a folder
    Batch(BatchArgs),
    /// Measure a network, or single kernels
    Bench(BenchArgs),
    /// Find out by measurement how operations run fastest here, and remember it
    Tune(TuneArgs),
    /// Show what a network consists of and how it would run here
    Inspect(InspectArgs),
    /// Show what this machine can do, and what to improve
    Doctor(DoctorArgs),
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The embedded network reads one line of printed text from a picture of any size and colour. A \
network whose metadata name a task (see the README) is prepared and shown the same way; any other \
network's outputs are summarised.

Inputs:
  .npy             an array, used as it is: type and shape must be the input's
  .pb              an ONNX TensorProto, used as it is
  .png .jpg .jpeg  a picture: prepared as the network's metadata say; else it must fit an input
                   [1, c, h, w] or [1, h, w, c] with 1 or 3 channels, and is resized to it
  .wav             a sound: samples from -1 to 1 for an input [n] or [1, n]

Examples:
  tilewright run
  tilewright run --input photo.jpg --beam 16
  tilewright run net.onnx --input left=a.npy --input right=b.npy --output-dir out
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
A network runs on random numbers; extents that it leaves open are 1 for the first axis and 224 for \
others, unless --shape says something else. The embedded network runs on its embedded picture. \
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
    /// ONNX file; without it the embedded text-line reader
    #[arg(conflicts_with = "kernels")]
    pub(super) model: Option<PathBuf>,
    /// Measure kernels whose names contain FILTER, or all
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "")]
    pub(super) kernels: Option<String>,
    /// Draw kernels under the roofline of this core, as SVG
    #[arg(long, value_name = "FILE", requires = "kernels", conflicts_with = "model")]
    pub(super) roofline: Option<PathBuf>,
    /// Shape of an input; repeat for several, `SHAPE` alone is enough for one
    #[arg(long = "shape", value_name = "[NAME=]SHAPE", conflicts_with = "kernels")]
    pub(super) shapes: Vec<String>,
    /// Time for measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(super) time: f64,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
There are several ways of computing a convolution or a matrix product: algorithms, tiles, blocks. \
Without a table the program chooses by rules; `tune` measures all ways for the shapes of a network \
(or of a list) in turns, drops those that are clearly slower, and writes the fastest into a table. \
Every later run on the same kind of processor, with as many threads, uses it. A quiet machine gives \
better tables; other work only makes the search longer.

The table is a text file, by default in your cache folder. It can be read, edited, deleted, and \
shipped beside a model; `run`, `batch` and `bench` take --table FILE and --no-table. With --verify \
its entries are measured again: the exit status is 1 if a choice is now more than 10 % slower than \
the fastest, or its time more than 10 % off.

A list has one operation per line, `#` begins a comment:
  conv 64x24x24 to 64 window 3 pad 1               input channels x height x width to channels
  conv 1x32x224x224 to 64 window 3x3 stride 2x2 pad 0,0,1,1 dilation 2 groups 4
  matmul 32x1024x1024                              m x k x n; also: transposed, batch 8

Examples:
  tilewright tune net.onnx --budget 120
  tilewright tune net.onnx --shape 1,3,480,640 --threads 1 --table net.tune.txt
  tilewright tune --shapes list.txt --format json
  tilewright tune --verify")]
pub(super) struct TuneArgs {
    /// ONNX file; without it the embedded text-line reader, or with --verify the whole table
    pub(super) model: Option<PathBuf>,
    /// File with a list of operations, instead of a network
    #[arg(long = "shapes", value_name = "FILE", conflicts_with = "model")]
    pub(super) shapes_file: Option<PathBuf>,
    /// Shape of an input; repeat for several, `SHAPE` alone is enough for one
    #[arg(long = "shape", value_name = "[NAME=]SHAPE", conflicts_with = "shapes_file")]
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
    /// Threads to tune for; without it one per core
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The list of steps is for one shape of the inputs: extents that the network leaves open are 1 for \
the first axis and 224 for others, unless --shape says something else.

Examples:
  tilewright inspect net.onnx
  tilewright inspect net.onnx --shape 1,3,480,640 --format json")]
pub(super) struct InspectArgs {
    /// ONNX file; without it the embedded text-line reader
    pub(super) model: Option<PathBuf>,
    /// Shape of an input; repeat for several, `SHAPE` alone is enough for one
    #[arg(long = "shape", value_name = "[NAME=]SHAPE")]
    pub(super) shapes: Vec<String>,
    /// Form of the result
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(clap::Args, Debug)]
pub(super) struct DoctorArgs {
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
    /// Backend to run on
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub(super) backend: String,
    /// Tuning table to use instead of the user's own; `tilewright tune` makes them
    #[arg(long, value_name = "FILE", conflicts_with = "no_table")]
    pub(super) table: Option<PathBuf>,
    /// Use no tuning table
    #[arg(long)]
    pub(super) no_table: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// For people
    #[default]
    Text,
    /// One object, for programs
    Json,
}

fn pixel_range(text: &str) -> Result<[f32; 2], String> {
    tilewright::task::image::parse_range(text)
        .ok_or_else(|| "expected two numbers, such as 0..1 or -1..1".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=3600.0).contains(s));
    seconds.ok_or_else(|| "expected a number of seconds from 0 to 3600".into())
}
