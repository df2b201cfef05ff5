//! `tilewright batch`: a network on every case of a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tilewright::{Session, Tensor};

use super::args::{BatchArgs, Format};
use super::model::{self, Network};
use super::output::{self, OutputDir};
use super::report::{self, Table};
use super::{Failure, inputs};
use crate::order::sort;

#[derive(Serialize)]
struct Json {
    cases: Vec<Case>,
}

/// What became of a case.
#[derive(Serialize)]
struct Case {
    case: String,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_us: Option<f64>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Unsupported,
    Failed,
}

/// Why a case has no result.
struct Problem {
    status: Status,
    message: String,
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self { status: Status::Failed, message: failure.to_string() }
    }
}

impl From<tilewright::Error> for Problem {
    fn from(error: tilewright::Error) -> Self {
        let unsupported = model::is_unsupported(&error);
        let status = if unsupported { Status::Unsupported } else { Status::Failed };
        Self { status, message: Failure::from(error).to_string() }
    }
}

/// The command.
pub(super) fn batch(args: &BatchArgs) -> Result<(), Failure> {
    let network = Network::load(Some(&args.model))?;
    let folders = case_folders(&args.cases, network.model.inputs().is_empty())?;
    let mut session = network.session(&args.machine, false)?;
    let root = args.output_dir.as_deref().map(OutputDir::open).transpose()?;

    let progress = progress_bar(folders.len());
    let mut cases = Vec::with_capacity(folders.len());
    for folder in &folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        progress.set_message(name.clone());
        let target = args.output_dir.as_ref().map_or_else(|| folder.clone(), |d| d.join(&name));
        let result = run_case(&network, &mut session, folder, &target);
        cases.push(match result {
            Ok(seconds) => {
                Case { case: name, status: Status::Ok, message: None, time_us: Some(seconds * 1e6) }
            }
            Err(Problem { status, message }) => {
                Case { case: name, status, message: Some(message), time_us: None }
            }
        });
        progress.inc(1);
    }
    progress.finish_and_clear();
    drop(root);

    let bad = cases.iter().filter(|c| c.status != Status::Ok).count();
    let total = cases.len();
    match args.format {
        Format::Json => report::print_json(&Json { cases })?,
        Format::Text => report::print(&text(&cases))?,
    }
    if bad > 0 {
        return Err(Failure(format!("{bad} of {total} cases have no result")));
    }
    Ok(())
}

/// Sub-folders with at least one input file, or all if the network `takes_nothing`, by name.
fn case_folders(dir: &Path, takes_nothing: bool) -> Result<Vec<PathBuf>, Failure> {
    let fail = |e| Failure::new(format!("cannot read {}", dir.display()), e);
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() && (takes_nothing || !input_files(&path)?.is_empty()) {
            folders.push(path);
        }
    }
    sort(&mut folders, Ord::cmp);
    if folders.is_empty() {
        return Err(Failure(format!(
            "no sub-folder of {} has files input_0.npy or input_0.pb",
            dir.display()
        )));
    }
    Ok(folders)
}

/// Files `input_N.npy` and `input_N.pb` with their numbers, in order.
fn input_files(folder: &Path) -> Result<Vec<(usize, PathBuf)>, Failure> {
    let fail = |e| Failure::new(format!("cannot read {}", folder.display()), e);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let number = path.file_name().and_then(|n| n.to_str()).and_then(|name| {
            let stem = name.strip_suffix(".npy").or_else(|| name.strip_suffix(".pb"))?;
            stem.strip_prefix("input_")?.parse().ok()
        });
        files.extend(number.map(|n: usize| (n, path)));
    }
    sort(&mut files, Ord::cmp);
    Ok(files)
}

/// Seconds that the run took.
fn run_case(
    network: &Network,
    session: &mut Session,
    folder: &Path,
    target: &Path,
) -> Result<f64, Problem> {
    let known = network.model.inputs();
    let mut given: Vec<(&str, Tensor)> = Vec::new();
    for (number, path) in input_files(folder)? {
        let Some(info) = known.get(number) else {
            let count = known.len();
            let message =
                format!("{}: the model has only {count} inputs, counted from 0", path.display());
            return Err(Failure(message).into());
        };
        let tensor = inputs::read_array(&path).map_err(|e| Failure::new(path.display(), e))?;
        given.push((&info.name, tensor));
    }
    session.prepare(&given)?;
    let mut out = OutputDir::open(target)?;
    let start = Instant::now();
    let outputs = session.run(&given)?;
    let seconds = start.elapsed().as_secs_f64();
    let names: Vec<String> = (0..outputs.len()).map(|i| format!("output_{i}")).collect();
    let named = names.iter().zip(&outputs).map(|(name, (output, tensor))| {
        (name.as_str(), tensor, output::texts(&network.model, output, tensor))
    });
    out.write(&named.collect::<Vec<_>>())?;
    Ok(seconds)
}

/// On a terminal; elsewhere it draws nothing.
fn progress_bar(cases: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} cases, {eta} left  {msg}");
    let bar = ProgressBar::new(cases as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn text(cases: &[Case]) -> String {
    let mut table = Table::new(&["case", "status", ">time", "message"]);
    for Case { case, status, message, time_us } in cases {
        let status = match status {
            Status::Ok => "ok",
            Status::Unsupported => "unsupported",
            Status::Failed => "failed",
        };
        let time = time_us.map_or_else(|| "-".into(), |t| report::duration(t / 1e6));
        table.row([case.clone(), status.into(), time, message.clone().unwrap_or_default()]);
    }
    let count = |status| cases.iter().filter(|c| c.status == status).count();
    table.text()
        + &format!(
            "{} cases: {} ok, {} unsupported, {} failed\n",
            cases.len(),
            count(Status::Ok),
            count(Status::Unsupported),
            count(Status::Failed)
        )
}
