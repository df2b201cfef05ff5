//! `tilewright tune`: measure how ops are computed best here, and remember it.

use core::fmt::Display;
use core::str::FromStr;
use core::time::Duration;
use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tilewright::tune::{
    Check, Entry, Key, Report, TOLERANCE, Table as TuningTable, TableError, Tuning,
};
use tilewright::{Session, Tensor};

use super::args::{Format, TuneArgs};
use super::model::Network;
use super::report::{self, Table};
use super::run::borrowed;
use super::tune_subject::{Cpu, Subject, Tasks};
use super::{Failure, inputs, inspect_gguf, output, side_file};

/// Part of the budget that the comparison of the whole model may take.
const MODEL_SHARE: f64 = 0.1;

/// The table is written at least this often, so that little is lost when somebody stops it.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// The command.
pub(super) fn tune(args: &TuneArgs) -> Result<(), Failure> {
    match (args.backend.as_str(), &args.device) {
        #[cfg(feature = "opencl")]
        ("opencl", device) => tune_on(args, super::tune_subject::OpenCl::new(device.as_deref())?),
        (_, Some(which)) => Err(Failure(format!("--device {which} is for --backend opencl"))),
        ("cpu", None) => tune_on(args, Cpu::new(args.threads)?),
        (other, None) => Err(Failure(format!("the backend {other} has nothing to tune"))),
    }
}

fn tune_on(args: &TuneArgs, subject: impl Subject) -> Result<(), Failure> {
    let path = args.table.clone().or_else(TuningTable::default_path).ok_or(Failure(
        "there is no folder for the tuning table (or the environment turns it off); name a file \
         with --table"
            .into(),
    ))?;
    side_file::check_regular(&path)?;
    let path = output::target(&path).map_err(|e| Failure::new(path.display(), e))?;
    let table = if args.verify { TuningTable::load(&path)? } else { writable(&path)? };
    let gguf = args.model.as_deref().filter(|path| inspect_gguf::is_gguf(path));
    let network = match (&args.shapes_file, args.verify && args.model.is_none(), gguf) {
        (Some(_), ..) | (None, true, _) | (.., Some(_)) => None,
        (None, false, None) => Some(Network::load(args.model.as_deref())?),
    };
    let given = network.as_ref().map(|n| given(n, args)).transpose()?;
    let tasks = match (&args.shapes_file, gguf, &network, &given) {
        (Some(file), ..) => Some(read_list(file, subject.threads())?),
        (None, Some(path), ..) => Some(unique(subject.of_language_model(path)?)),
        (None, None, Some(network), Some(given)) => {
            Some(unique(subject.of_network(network, given)?))
        }
        _ => None,
    };
    if args.verify {
        return verify(args, subject, &path, &table, tasks);
    }
    let tasks = tasks.unwrap_or_default();
    if tasks.is_empty() {
        return Err(Failure("nothing to tune: no convolution and no matrix product".into()));
    }
    let model = network.as_ref().zip(given.as_deref());
    measure(args, Run { subject, path, table }, &tasks, model)
}

/// The table to add to. One that is damaged is put aside; a file that is none is left alone.
fn writable(path: &Path) -> Result<TuningTable, Failure> {
    match TuningTable::load(path) {
        Ok(table) => Ok(table),
        Err(e @ TableError::Invalid { .. }) => {
            const OURS: &[u8] = b"tilewright tuning table";
            let mut begin = [0; OURS.len()];
            let file = fs::File::open(path).and_then(|mut f| f.read_exact(&mut begin));
            let ours = file.is_ok() && begin == *OURS;
            if !ours && Some(path) != TuningTable::default_path().as_deref() {
                return Err(Failure(format!("{e}; it is not overwritten")));
            }
            let mut aside = path.as_os_str().to_owned();
            aside.push(".bad");
            fs::rename(path, &aside).map_err(|e| Failure::new(path.display(), e))?;
            let aside = Path::new(&aside).display();
            report::note(&format!("note: {e}; moved to {aside}, beginning a new table"));
            Ok(TuningTable::new())
        }
        Err(e) => Err(e.into()),
    }
}

fn given(network: &Network, args: &TuneArgs) -> Result<Vec<(String, Tensor)>, Failure> {
    if network.is_embedded && args.shapes.is_empty() {
        return Ok(vec![inputs::embedded_input(network)?]);
    }
    inputs::random(network, &args.shapes)
}

/// A list of workloads: one per line, `#` begins a comment.
fn read_list<W: FromStr<Err: Display> + Display>(
    path: &Path,
    threads: usize,
) -> Result<Tasks<W>, Failure> {
    let text = side_file::read(path)?;
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let lines = lines.map(|(i, line)| (i, line.split('#').next().unwrap_or_default().trim()));
    let parsed: Result<Tasks<W>, Failure> = lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(i, line)| {
            let fail = |e: W::Err| Failure::new(format!("{}, line {i}", path.display()), e);
            Ok((line.parse().map_err(fail)?, threads))
        })
        .collect();
    Ok(unique(parsed?))
}

/// Each once, in order.
fn unique<W: Display>(tasks: Tasks<W>) -> Tasks<W> {
    let mut seen = HashSet::new();
    tasks
        .into_iter()
        .filter(|(workload, threads)| seen.insert((workload.to_string(), *threads)))
        .collect()
}

/// Shares a budget out: what one task leaves goes to the others.
struct Budget {
    end: Instant,
    left: usize,
    progress: ProgressBar,
}

impl Budget {
    fn new(seconds: f64, tasks: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
        let progress = ProgressBar::new(tasks as u64);
        progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { end: Instant::now() + Duration::from_secs_f64(seconds), left: tasks, progress }
    }

    /// The time for the next task.
    fn next(&mut self, name: &str) -> Duration {
        self.progress.set_message(name.to_owned());
        let all = self.end.saturating_duration_since(Instant::now());
        let share = all / u32::try_from(self.left.max(1)).unwrap_or(u32::MAX);
        self.left -= 1;
        share
    }
}

struct Run<S> {
    subject: S,
    path: PathBuf,
    table: TuningTable,
}

/// A network with the inputs to run it on.
type Model<'a> = (&'a Network, &'a [(String, Tensor)]);

fn measure<S: Subject>(
    args: &TuneArgs,
    mut run: Run<S>,
    tasks: &[(S::Work, usize)],
    model: Option<Model<'_>>,
) -> Result<(), Failure> {
    run.subject.begin(run.subject.threads())?;
    let for_model = if model.is_some() { MODEL_SHARE * args.budget } else { 0.0 };
    let mut budget = Budget::new(args.budget - for_model, tasks.len());
    let mut saved = Instant::now();
    let mut reports = Vec::with_capacity(tasks.len());
    for (workload, threads) in tasks {
        let name = workload.to_string();
        let time = budget.next(&name);
        let found = run.subject.tune(workload, *threads, time);
        let found = found.map_err(|e| Failure::new(&name, e))?;
        run.subject.insert(&mut run.table, workload, *threads, found.entry());
        if saved.elapsed() > SAVE_EVERY {
            run.table.save(&run.path)?;
            saved = Instant::now();
        }
        reports.push(found);
        budget.progress.inc(1);
    }
    run.table.save(&run.path)?;
    run.subject.end();
    let model = model.map(|model| whole_model(model, &run, for_model)).transpose()?;
    budget.progress.finish_and_clear();
    let rows = tasks.iter().zip(&reports).map(|((w, t), report)| Row::new(w, *t, report));
    let gains = reports.iter().map(|r| r.gain().ln()).sum::<f64>();
    let result = Json {
        cpu: run.subject.name().to_owned(),
        isa: run.subject.isa(),
        threads: run.subject.threads(),
        table: run.path.display().to_string(),
        workloads: rows.collect(),
        analytic_over_tuned: (gains / reports.len() as f64).exp(),
        model,
    };
    match args.format {
        Format::Json => report::print_json(&result),
        Format::Text => report::print(&text(&result)),
    }
}

/// The whole network without and with the table, in turns.
fn whole_model(
    (network, given): Model<'_>,
    run: &Run<impl Subject>,
    seconds: f64,
) -> Result<JsonModel, Failure> {
    let given = borrowed(given);
    let table = std::sync::Arc::new(run.table.clone());
    let mut sessions: Vec<Session> = Vec::new();
    for tuning in [Tuning::Off, Tuning::Table(table)] {
        let mut session = run.subject.session(network, tuning)?;
        session.run(&given)?;
        sessions.push(session);
    }
    let mut best = [f64::INFINITY; 2];
    let begin = Instant::now();
    for round in 0.. {
        for (session, best) in sessions.iter_mut().zip(&mut best) {
            let start = Instant::now();
            session.run(&given)?;
            *best = best.min(start.elapsed().as_secs_f64());
        }
        if round >= 3 && begin.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    let [before_us, after_us] = best.map(|s| s * 1e6);
    Ok(JsonModel { name: network.name.clone(), before_us, after_us })
}

#[derive(Serialize)]
struct Json {
    cpu: String,
    isa: &'static str,
    threads: usize,
    table: String,
    workloads: Vec<Row>,
    analytic_over_tuned: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<JsonModel>,
}

#[derive(Serialize)]
struct JsonModel {
    name: String,
    before_us: f64,
    after_us: f64,
}

#[derive(Serialize)]
struct Row {
    workload: String,
    threads: usize,
    candidates: usize,
    before: JsonChoice,
    after: JsonChoice,
    gain: f64,
    settled: bool,
}

#[derive(Serialize)]
struct JsonChoice {
    choice: String,
    time_us: f64,
}

impl Row {
    fn new<W: Copy + Display>(workload: &impl Display, threads: usize, report: &Report<W>) -> Self {
        let Entry { choice, time_us, analytic_us } = report.entry();
        let first = report.candidates[0].to_string();
        Self {
            workload: workload.to_string(),
            threads,
            candidates: report.candidates.len(),
            before: JsonChoice { choice: first, time_us: analytic_us },
            after: JsonChoice { choice: choice.to_string(), time_us },
            gain: report.gain(),
            settled: !report.ranking.cut_short,
        }
    }
}

fn text(result: &Json) -> String {
    let heads =
        ["operation", ">threads", ">of", "before", ">time", "after", ">time", ">gain", "note"];
    let mut table = Table::new(&heads);
    for row in &result.workloads {
        let same = row.before.choice == row.after.choice;
        table.row([
            row.workload.clone(),
            row.threads.to_string(),
            row.candidates.to_string(),
            row.before.choice.clone(),
            report::duration(row.before.time_us / 1e6),
            if same { "the same".into() } else { row.after.choice.clone() },
            report::duration(row.after.time_us / 1e6),
            format!("{:.2}", row.gain),
            if row.settled { String::new() } else { "unsettled".into() },
        ]);
    }
    let mut out = table.text();
    out.push_str(&format!(
        "\nwithout a table {:.1} % slower in geometric mean, on {} with {} thread{}\n",
        (result.analytic_over_tuned - 1.0) * 100.0,
        result.isa,
        result.threads,
        if result.threads == 1 { "" } else { "s" },
    ));
    if let Some(JsonModel { name, before_us, after_us }) = &result.model {
        out.push_str(&format!(
            "{name}: {} before, {} after\n",
            report::duration(before_us / 1e6),
            report::duration(after_us / 1e6)
        ));
    }
    if result.workloads.iter().any(|row| !row.settled) {
        out.push_str("unsettled: the time was over first; a larger --budget may find better\n");
    }
    out.push_str(&format!("written to {}\n", result.table));
    out
}

#[derive(Serialize)]
struct JsonVerify {
    cpu: String,
    isa: &'static str,
    table: String,
    checked: Vec<VerifyRow>,
    not_for_this_machine: usize,
}

#[derive(Serialize)]
struct VerifyRow {
    workload: String,
    threads: usize,
    choice: String,
    table_us: f64,
    time_us: Option<f64>,
    fastest: Option<String>,
    fastest_us: Option<f64>,
    holds: bool,
    why: String,
}

/// What an entry must be for.
fn what_for(args: &TuneArgs) -> &'static str {
    match args.backend.as_str() {
        "cpu" => "processor, instruction set and version",
        _ => "device, driver and version",
    }
}

/// Measures the entries of a table again, all of this machine or those of some tasks.
fn verify<S: Subject>(
    args: &TuneArgs,
    mut subject: S,
    path: &Path,
    table: &TuningTable,
    tasks: Option<Tasks<S::Work>>,
) -> Result<(), Failure> {
    let (here, skipped) = subject.entries(table);
    let wanted = |key: &Key| {
        tasks.as_ref().is_none_or(|tasks| {
            tasks
                .iter()
                .any(|(w, threads)| *threads == key.threads && w.to_string() == key.workload)
        })
    };
    let chosen: Vec<_> = here.into_iter().filter(|(key, _)| wanted(key)).collect();
    if chosen.is_empty() {
        return Err(Failure(format!(
            "{} has no entry to verify for this {}; run `tilewright tune` first",
            path.display(),
            what_for(args)
        )));
    }
    let threads = chosen.iter().map(|(key, _)| key.threads).max().unwrap_or(1);
    subject.begin(threads)?;
    let mut budget = Budget::new(args.budget, chosen.len());
    let mut checked = Vec::with_capacity(chosen.len());
    for (key, entry) in chosen {
        let time = budget.next(&key.workload);
        let check = match key.workload.parse::<S::Work>() {
            Ok(workload) => subject.check(&workload, key.threads, &entry, time).ok(),
            Err(_) => None,
        };
        checked.push(VerifyRow::new(&key, &entry, check.as_ref()));
        budget.progress.inc(1);
    }
    budget.progress.finish_and_clear();
    let failed = checked.iter().filter(|row| !row.holds).count();
    let all = checked.len();
    let result = JsonVerify {
        cpu: subject.name().to_owned(),
        isa: subject.isa(),
        table: path.display().to_string(),
        checked,
        not_for_this_machine: skipped,
    };
    match args.format {
        Format::Json => report::print_json(&result)?,
        Format::Text => report::print(&verify_text(&result))?,
    }
    if failed > 0 {
        return Err(Failure(format!(
            "{failed} of {all} entries of {} do not hold any more; run `tilewright tune` again",
            path.display()
        )));
    }
    Ok(())
}

impl VerifyRow {
    fn new<W: Copy + Display>(key: &Key, entry: &Entry<W>, check: Option<&Check<W>>) -> Self {
        let time = check.and_then(|c| c.time_us);
        let fastest_us = check.and_then(|c| c.fastest_us);
        let report = check.and_then(|c| c.report.as_ref());
        let fastest = report.map(|r| r.entry().choice.to_string());
        let off = |a: f64, b: f64| a.max(b) / a.min(b) - 1.0 > TOLERANCE;
        let why = match (check, time, fastest_us) {
            (None, ..) => "no such operation".into(),
            (_, Some(time), Some(best)) if off(time, best) => {
                format!("{:.0} % slower than the fastest", (time / best - 1.0) * 100.0)
            }
            (_, Some(time), Some(_)) if off(time, entry.time_us) => {
                let change = (time / entry.time_us - 1.0) * 100.0;
                let which = if change < 0.0 { "less" } else { "more" };
                format!("takes {:.0} % {which} than in the table", change.abs())
            }
            (_, Some(_), _) => String::new(),
            (_, None, _) => "no such choice".into(),
        };
        Self {
            workload: key.workload.clone(),
            threads: key.threads,
            choice: entry.choice.to_string(),
            table_us: entry.time_us,
            time_us: time,
            fastest,
            fastest_us,
            holds: check.is_some_and(|c| c.holds),
            why,
        }
    }
}

fn verify_text(result: &JsonVerify) -> String {
    let mut table =
        Table::new(&["operation", ">threads", "choice", ">in table", ">now", ">fastest", "holds"]);
    let time = |t: Option<f64>| t.map_or_else(|| "-".into(), |us| report::duration(us / 1e6));
    for row in &result.checked {
        table.row([
            row.workload.clone(),
            row.threads.to_string(),
            row.choice.clone(),
            report::duration(row.table_us / 1e6),
            time(row.time_us),
            time(row.fastest_us),
            if row.holds { "yes".into() } else { format!("no: {}", row.why) },
        ]);
    }
    let others = match result.not_for_this_machine {
        0 => String::new(),
        n => {
            format!("{n} entries are for other processors, devices, instruction sets or versions\n")
        }
    };
    table.text() + &others
}
