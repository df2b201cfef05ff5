//! Small ONNX files and runs of the program, for tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use prost::Message;
use tilewright::import::onnx::proto::ModelProto;

#[path = "../support/onnx.rs"]
mod onnx;
pub(crate) use onnx::{F32, model, node, tensor};

#[path = "../support/metadata.rs"]
mod metadata;
pub(crate) use metadata::with_metadata;

/// ONNX's number of bytes.
pub(crate) const U8: i32 = 2;

/// `y = relu(x)` for x of `[n, 3]`.
pub(crate) fn relu() -> ModelProto {
    model(&[("x", F32, &[None, Some(3)])], &["y"], vec![node("Relu", &["x"], &["y"])], vec![])
}

/// A folder of files, and the program started in it.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

/// What a run of the program gave.
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self
    }

    pub(crate) fn model(&self, name: &str, model: &ModelProto) -> &Self {
        self.write(name, model.encode_to_vec())
    }

    /// An f32 array as `.npy`.
    pub(crate) fn npy(&self, name: &str, dims: &[usize], values: &[f32]) -> &Self {
        let tensor = tilewright::Tensor::from_slice(dims, values).unwrap();
        self.write(name, tilewright::io::npy::write(&tensor).unwrap())
    }

    /// The values of an f32 array.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let tensor = tilewright::io::npy::read(&std::fs::read(self.path(name)).unwrap()).unwrap();
        tensor.as_slice::<f32>().unwrap().to_vec()
    }

    /// Names of all files and folders in a folder.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_tilewright")));
        command.current_dir(self.folder.path()).env_remove("TILEWRIGHT_ISA");
        // What somebody tuned on this machine is no business of tests.
        command.env("TILEWRIGHT_TUNE_TABLE", "off");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command().args(args).output().unwrap())
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Standard output of a run that succeeded.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!(self.status, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// The object that a successful run printed.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        let text = self.done();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// What a run says that was refused for its arguments.
    #[track_caller]
    pub(crate) fn usage(self) -> String {
        assert_eq!(self.status, Some(2), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        self.stderr
    }

    /// The one line on standard error of a run that failed, without `error: `.
    #[track_caller]
    pub(crate) fn error(self) -> String {
        assert_eq!(self.status, Some(1), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.stderr.strip_prefix("error: ").unwrap().trim_end().to_owned()
    }
}
