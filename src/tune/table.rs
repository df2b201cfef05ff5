//! Tuning tables: how ops of given sizes are computed best, by measurement.

use core::fmt;
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::graph::{Choices, Way};
use tilewright_kernels::{Choice, Isa, Workload};

use super::cpu_model;

/// First line of every table. A later format changes the number.
const HEADER: &str = "tilewright tuning table, format 1";

/// What follows it in a new table, for people.
const EXPLANATION: &str = "\
# cpu | instruction set | threads | version | op and sizes | how it is computed | time, time as chosen without a table
# OpenCL device and driver | opencl | units | version | kernel and sizes | how it is shaped | time, time as shaped without a table
";

/// What stands for an instruction set in entries of devices.
const DEVICE: &str = "opencl";

/// Version of this library.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Largest file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// Between the fields of a line.
const BAR: &str = " | ";

/// The variable that names the table, or turns it off.
pub const TABLE_VARIABLE: &str = "TILEWRIGHT_TUNE_TABLE";

/// For whom a measurement holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The processor, as [`cpu_model`] names it, or a device with its driver.
    pub cpu: String,
    /// Name of the instruction set; `opencl` for a device.
    pub isa: String,
    /// Threads that share the op; units of a device.
    pub threads: usize,
    /// Version of this library: kernels differ from one to the next.
    pub version: String,
    /// Text of the [`Workload`], or of the device's.
    pub workload: String,
}

impl Key {
    /// The key of a workload on this machine with this library.
    pub fn here(isa: Isa, threads: usize, workload: &Workload) -> Self {
        Self {
            cpu: cpu_model().to_owned(),
            isa: isa.name().to_owned(),
            threads,
            version: VERSION.to_owned(),
            workload: workload.to_string(),
        }
    }

    /// The key of a workload on a device of so many units, which its backend names with the driver, with this
    /// library.
    pub fn on_device(device: &str, units: usize, workload: &str) -> Self {
        Self {
            cpu: device.to_owned(),
            isa: DEVICE.to_owned(),
            threads: units,
            version: VERSION.to_owned(),
            workload: workload.to_owned(),
        }
    }

    /// Whether it is of such a device and this library.
    pub fn is_on_device(&self, device: &str, units: usize) -> bool {
        *self == Self::on_device(device, units, &self.workload)
    }

    /// Whether it is of this machine and this library.
    pub fn is_here(&self, isa: Isa) -> bool {
        self.cpu == cpu_model() && self.isa == isa.name() && self.version == VERSION
    }
}

/// What a tuner found, for the CPU or, with [`Way`], for a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<C = Choice> {
    /// The fastest way.
    pub choice: C,
    /// Its time in microseconds.
    pub time_us: f64,
    /// The time of the way that would be chosen without a table, in microseconds.
    pub analytic_us: f64,
}

/// A tuning table: a text file of one line per entry, which may be edited, shipped and deleted.
///
/// Lines that are not understood are kept when the table is written again.
#[derive(Clone, Debug, Default)]
pub struct Table {
    lines: Vec<Line>,
    /// Position in `lines`.
    index: HashMap<Key, usize>,
}

#[derive(Clone, Debug)]
enum Line {
    Entry(Key, Entry),
    Device(Key, Entry<Way>),
    Other(String),
}

/// A file that is no table.
#[derive(Debug)]
#[non_exhaustive]
pub enum TableError {
    /// It cannot be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is something else, or damaged.
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line that is wrong, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "tuning table {}: {source}", path.display()),
            Self::Invalid { path, line, what } => {
                write!(f, "tuning table {}, line {line}: {what}", path.display())
            }
        }
    }
}

impl core::error::Error for TableError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Invalid { .. } => None,
        }
    }
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// The file that is used when nobody names one: what `TILEWRIGHT_TUNE_TABLE` says, else
    /// `tilewright/tune.txt` in the user's cache folder. `None` if the variable says `off` or
    /// nothing, or if there is no such folder.
    pub fn default_path() -> Option<PathBuf> {
        if let Some(named) = std::env::var_os(TABLE_VARIABLE) {
            return (!named.is_empty() && named != "off").then(|| PathBuf::from(named));
        }
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let absolute = |path: PathBuf| path.is_absolute().then_some(path);
        let cache = if cfg!(windows) {
            folder("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            folder("HOME").map(|home| home.join("Library/Caches"))
        } else {
            let home = || folder("HOME").map(|home| home.join(".cache"));
            folder("XDG_CACHE_HOME").and_then(absolute).or_else(home)
        };
        Some(cache.and_then(absolute)?.join("tilewright").join("tune.txt"))
    }

    /// Reads a table. A file that does not exist is an empty table.
    ///
    /// # Errors
    /// [`TableError`] if the file cannot be read or is no table.
    pub fn load(path: &Path) -> Result<Self, TableError> {
        let io = |source| TableError::Io { path: path.to_path_buf(), source };
        let invalid = |line, what| TableError::Invalid { path: path.to_path_buf(), line, what };
        match fs::metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::new()),
            Err(e) => return Err(io(e)),
            Ok(m) if m.is_dir() => return Err(io(std::io::ErrorKind::IsADirectory.into())),
            Ok(m) if !m.is_file() => return Err(invalid(1, "not a regular file")),
            Ok(m) if m.len() > MAX_BYTES => return Err(invalid(1, "the file is too large")),
            Ok(_) => {}
        }
        let bytes = fs::read(path).map_err(io)?;
        let text = core::str::from_utf8(&bytes).map_err(|e| {
            let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
            invalid(line, "not a text")
        })?;
        Self::parse(text).map_err(|(line, what)| invalid(line, what))
    }

    /// Reads the text of a table; an error says the line, from 1, and what is wrong with it.
    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut lines = text.lines().enumerate();
        if lines.next().is_none_or(|(_, first)| first.trim_end() != HEADER) {
            return Err((1, "not the header of a tuning table of this format"));
        }
        let mut table = Self::new();
        for (i, line) in lines {
            let fields: Vec<&str> = line.split('|').map(str::trim).collect();
            if line.starts_with('#') || fields.len() != 7 {
                // A line of another kind, perhaps of a later version.
                table.lines.push(Line::Other(line.to_owned()));
                continue;
            }
            let on_device = fields[1] == DEVICE;
            let parsed = match on_device {
                true => parse_entry(&fields).map(|(key, entry)| Line::Device(key, entry)),
                false => parse_entry(&fields).map(|(key, entry)| Line::Entry(key, entry)),
            };
            match parsed {
                Some(line) => table.put(line),
                // Another version may know other ways of computing.
                None if fields[3] != VERSION => table.lines.push(Line::Other(line.to_owned())),
                None if on_device => return Err((i + 1, "not an entry of a device")),
                None => return Err((i + 1, "not an entry")),
            }
        }
        Ok(table)
    }

    /// Writes the table; the file is complete at any time. Makes the folder if there is none.
    ///
    /// # Errors
    /// [`TableError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), TableError> {
        let io = |source| TableError::Io { path: path.to_path_buf(), source };
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}.tmp", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let write = || {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(self.to_string().as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        };
        write().map_err(|e| {
            // What is left of a failed attempt is of no use; that there is none is no error.
            let _ = fs::remove_file(&temporary);
            io(e)
        })
    }

    /// The entry of a key.
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        match self.lines.get(*self.index.get(key)?)? {
            Line::Entry(_, entry) => Some(entry),
            _ => None,
        }
    }

    /// Adds an entry, or replaces the one of the same key.
    pub fn insert(&mut self, key: Key, entry: Entry) {
        self.put(Line::Entry(key, entry));
    }

    /// As [`Table::insert`], of a device.
    pub fn insert_on_device(&mut self, key: Key, entry: Entry<Way>) {
        self.put(Line::Device(key, entry));
    }

    fn put(&mut self, line: Line) {
        let (Line::Entry(key, _) | Line::Device(key, _)) = &line else {
            self.lines.push(line);
            return;
        };
        match self.index.get(key) {
            Some(&at) => self.lines[at] = line,
            None => {
                self.index.insert(key.clone(), self.lines.len());
                self.lines.push(line);
            }
        }
    }

    /// All entries of processors, in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.lines.iter().filter_map(|line| match line {
            Line::Entry(key, entry) => Some((key, entry)),
            _ => None,
        })
    }

    /// All entries of devices, in the order of the file.
    pub fn device_entries(&self) -> impl Iterator<Item = (&Key, &Entry<Way>)> {
        self.lines.iter().filter_map(|line| match line {
            Line::Device(key, entry) => Some((key, entry)),
            _ => None,
        })
    }
}

impl Choices for Table {
    fn choice(&self, isa: Isa, threads: usize, workload: &Workload) -> Option<Choice> {
        if self.index.is_empty() {
            return None;
        }
        self.get(&Key::here(isa, threads, workload)).map(|entry| entry.choice)
    }

    fn way(&self, device: &str, units: usize, workload: &str) -> Option<Way> {
        if self.index.is_empty() {
            return None;
        }
        match self.lines.get(*self.index.get(&Key::on_device(device, units, workload))?)? {
            Line::Device(_, entry) => Some(entry.choice),
            _ => None,
        }
    }
}

/// The text of the file.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        if !self.lines.iter().any(|line| matches!(line, Line::Other(_))) {
            f.write_str(EXPLANATION)?;
        }
        for line in &self.lines {
            match line {
                Line::Other(text) => writeln!(f, "{text}")?,
                Line::Entry(key, entry) => write_entry(f, key, entry)?,
                Line::Device(key, entry) => write_entry(f, key, entry)?,
            }
        }
        Ok(())
    }
}

fn write_entry(
    f: &mut fmt::Formatter<'_>,
    key: &Key,
    entry: &Entry<impl fmt::Display>,
) -> fmt::Result {
    let Key { cpu, isa, threads, version, workload } = key;
    let Entry { choice, time_us, analytic_us } = entry;
    writeln!(
        f,
        "{cpu}{BAR}{isa}{BAR}{threads}{BAR}{version}{BAR}{workload}{BAR}{choice}{BAR}\
         {time_us:.3} us, {analytic_us:.3} us"
    )
}

fn parse_entry<C: core::str::FromStr>(fields: &[&str]) -> Option<(Key, Entry<C>)> {
    let &[cpu, isa, threads, version, workload, choice, times] = fields else { return None };
    let (time_us, analytic_us) = times.split_once(',')?;
    let key = Key {
        cpu: cpu.to_owned(),
        isa: isa.to_owned(),
        threads: threads.parse().ok()?,
        version: version.to_owned(),
        workload: workload.to_owned(),
    };
    let (time_us, analytic_us) = (microseconds(time_us)?, microseconds(analytic_us)?);
    Some((key, Entry { choice: choice.parse().ok()?, time_us, analytic_us }))
}

/// A time as tables have it, `12.345 us`: digits, of which a float holds all, with a point among them or not. (The
/// standard library's reader of all that may stand for a number is 20 KB.)
fn microseconds(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix("us")?.trim_end();
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = [whole, part].concat();
    if digits.len() > 15 || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let scale = 10u64.pow(part.len() as u32);
    Some(digits.parse::<u64>().ok()? as f64 / scale as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = concat!(
        "Some CPU 1/2/3 | avx512 | 2 | ",
        env!("CARGO_PKG_VERSION"),
        " | matmul f32 1x2x3 | direct 1x12x32 chunk 256 block 0 | 1.500 us, 2.000 us"
    );

    const DEVICE_ENTRY: &str = concat!(
        "A GPU, driver 1.2 | opencl | 8 | ",
        env!("CARGO_PKG_VERSION"),
        " | rows q8_0 1x1x512x64 | vec 4 tile 1x8 unroll 1 lanes 32 items 4x1 group 1 | 1.500 us, 2.000 us"
    );

    fn key() -> Key {
        Key {
            cpu: "Some CPU 1/2/3".into(),
            isa: "avx512".into(),
            threads: 2,
            version: VERSION.into(),
            workload: "matmul f32 1x2x3".into(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let later = ENTRY.replace(VERSION, "99.0").replace("direct", "magic");
        let text = format!("{HEADER}\n# by hand\n{ENTRY}\n\nanother | kind of line\n{later}\n");
        let mut table = Table::parse(&text).unwrap();
        assert_eq!(table.to_string(), text);
        let entry = *table.get(&key()).unwrap();
        assert_eq!((entry.time_us, entry.analytic_us), (1.5, 2.0));
        // An entry is replaced in its place, a new one comes last, and other lines stay.
        table.insert(key(), Entry { time_us: 1.25, ..entry });
        table.insert(Key { threads: 1, ..key() }, entry);
        let changed = text.replacen("1.500", "1.250", 1) + &ENTRY.replace("| 2 |", "| 1 |") + "\n";
        assert_eq!(table.to_string(), changed);
        assert!(Table::new().to_string().starts_with(&format!("{HEADER}\n# cpu | ")));
    }

    #[test]
    fn damage_is_found() {
        for (text, line) in [
            (String::new(), 1),
            ("PNG\n".into(), 1),
            (HEADER.replace("format 1", "format 2"), 1),
            (format!("{HEADER}\n\n{}", ENTRY.replace("direct", "magic")), 3),
            (format!("{HEADER}\n{}", ENTRY.replace("1.500", "NaN")), 2),
            (format!("{HEADER}\n{}", ENTRY.replace("2.000 us", "2.000")), 2),
            (format!("{HEADER}\n{}", ENTRY.replace("| 2 |", "| two |")), 2),
            (format!("{HEADER}\n{}", ENTRY.replace("avx512", "opencl")), 2),
            (format!("{HEADER}\n{}", DEVICE_ENTRY.replace("vec 4", "vec 0")), 2),
            (format!("{HEADER}\n{}", DEVICE_ENTRY.replace(" group 1", "")), 2),
        ] {
            assert_eq!(Table::parse(&text).unwrap_err().0, line, "{text}");
        }
    }

    #[test]
    fn files_appear_whole_in_folders_that_are_made() {
        let folder = std::env::temp_dir().join(format!("tilewright-table-{}", std::process::id()));
        let path = folder.join("a/b/tune.txt");
        assert_eq!(Table::load(&path).unwrap().entries().count(), 0);
        let table = Table::parse(&format!("{HEADER}\n{ENTRY}\n")).unwrap();
        table.save(&path).unwrap();
        assert_eq!(Table::load(&path).unwrap().to_string(), table.to_string());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let error = Table::load(path.parent().unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Io { .. }), "{error}");
        fs::write(&path, [b"tilewright\n", &[0xff; 9][..]].concat()).unwrap();
        let error = Table::load(&path).unwrap_err().to_string();
        assert!(error.ends_with("line 2: not a text"), "{error}");
        assert!(table.save(&path.join("x")).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_choice_is_for_this_machine_library_and_number_of_threads() {
        let workload: Workload = "matmul 4x5x6".parse().unwrap();
        let isa = Isa::Scalar;
        let here = Key::here(isa, 1, &workload);
        assert!(here.is_here(isa));
        let choice = workload.candidates(isa).unwrap()[0];
        let entry = Entry { choice, time_us: 1.0, analytic_us: 1.0 };
        let mut table = Table::new();
        table.insert(Key { version: "0.0.0".into(), ..here.clone() }, entry);
        assert_eq!(table.choice(isa, 1, &workload), None);
        table.insert(here, entry);
        assert_eq!(table.choice(isa, 1, &workload), Some(choice));
        assert_eq!(table.choice(isa, 2, &workload), None);
    }

    #[test]
    fn a_way_is_for_this_device_driver_and_library() {
        let workload = "rows q8_0 1x1x512x64";
        let mut table = Table::parse(&format!("{HEADER}\n{DEVICE_ENTRY}\n")).unwrap();
        assert_eq!(table.to_string(), format!("{HEADER}\n{EXPLANATION}{DEVICE_ENTRY}\n"));
        let way = table.way("A GPU, driver 1.2", 8, workload).unwrap();
        assert_eq!((way.tile, way.lanes), ([1, 8], 32));
        // The CPU's entries are others, even with the same text.
        assert_eq!((table.entries().count(), table.device_entries().count()), (0, 1));
        assert_eq!(table.way("A GPU, driver 1.3", 8, workload), None);
        assert_eq!(table.way("Another GPU, driver 1.2", 8, workload), None);
        assert_eq!(table.way("A GPU, driver 1.2", 9, workload), None);
        assert_eq!(table.way("A GPU, driver 1.2", 8, "rows q8_0 1x2x512x64"), None);
        let key = Key::on_device("A GPU, driver 1.2", 8, workload);
        let entry = Entry { choice: Way { lanes: 16, ..way }, time_us: 1.0, analytic_us: 2.0 };
        table.insert_on_device(Key { version: "0.0.0".into(), ..key.clone() }, entry);
        assert_eq!(table.way("A GPU, driver 1.2", 8, workload), Some(way));
        table.insert_on_device(key, entry);
        assert_eq!(table.way("A GPU, driver 1.2", 8, workload), Some(entry.choice));
        assert_eq!(table.device_entries().count(), 2);
    }
}
