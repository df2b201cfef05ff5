//! `cargo xtask install`: the C libraries, the header, and what build systems ask for, under a prefix.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, finish, frames, target_dir};

const USAGE: &str = "\
usage: cargo xtask install --prefix DIR [--features LIST] [--target TRIPLE] [--kernels] [--small]
  LIST     of tilewright-c: ops-all,all-isas,llm,opencl,rknn (the default), or less of it: avx2 for one
           instruction set, no ops-all for networks of usual operators (docs/c.md has the list)
  TRIPLE   static library only, with the linker, objcopy and ar of that target
  --kernels   also libtilewright-kernels.a, with nothing of the standard library and without models
  --small     fewer bytes: plans are made more slowly, and kernels run within a percent as fast";

/// What is installed, and where.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    pub(crate) prefix: PathBuf,
    pub(crate) features: String,
    pub(crate) target: Option<String>,
    pub(crate) kernels: bool,
    pub(crate) small: bool,
}

impl Install {
    pub(crate) fn new(prefix: PathBuf) -> Self {
        Self {
            prefix,
            features: "ops-all,all-isas,llm,opencl,rknn".into(),
            target: None,
            kernels: false,
            small: false,
        }
    }
}

/// The command.
///
/// # Errors
/// Wrong arguments; the command that failed.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut args = args.iter();
    let mut install = Install::new(PathBuf::new());
    while let Some(arg) = args.next() {
        let mut value = || args.next().cloned().ok_or(format!("install: {arg} wants a value"));
        match &arg[..] {
            "--prefix" => install.prefix = value()?.into(),
            "--features" => install.features = value()?,
            "--target" => install.target = Some(value()?),
            "--kernels" => install.kernels = true,
            "--small" => install.small = true,
            _ => return Err(USAGE.into()),
        }
    }
    if install.prefix.as_os_str().is_empty() {
        return Err(USAGE.into());
    }
    // Files under the prefix name it, so it must not depend on where somebody stands.
    install.prefix = std::path::absolute(&install.prefix).map_err(|e| format!("install: {e}"))?;
    install.run()
}

impl Install {
    /// Builds and installs.
    ///
    /// # Errors
    /// The command that failed.
    pub(crate) fn run(&self) -> Result<(), String> {
        let version = version()?;
        let major = version.split('.').next().unwrap_or("0");
        let built = self.build(major)?;
        let lib = self.folder("lib")?;
        self.one_object(&built.join("libtilewright_c.a"), &lib.join("libtilewright.a"))?;
        if self.target.is_none() {
            let file = format!("libtilewright.so.{version}");
            copy(&built.join("libtilewright_c.so"), &lib.join(&file))?;
            link(&file, &lib.join(format!("libtilewright.so.{major}")))?;
            link(&file, &lib.join("libtilewright.so"))?;
        }
        copy(Path::new("include/tilewright.h"), &self.folder("include")?.join("tilewright.h"))?;
        write(
            &self.folder("lib/pkgconfig")?.join("tilewright.pc"),
            &self.package("tilewright", "networks and language models", &version),
        )?;
        let cmake = self.folder("lib/cmake/tilewright")?;
        write(&cmake.join("tilewright-config.cmake"), CMAKE)?;
        let text = CMAKE_VERSION.replace("@VERSION@", &version);
        write(&cmake.join("tilewright-config-version.cmake"), &text)?;
        if self.kernels {
            self.kernels(&version)?;
        }
        Ok(())
    }

    /// The library of kernels alone.
    ///
    /// # Errors
    /// The command that failed.
    pub(crate) fn kernels(&self, version: &str) -> Result<(), String> {
        let of_models = |f: &&str| matches!(*f, "llm" | "opencl" | "rknn") || f.starts_with("ops-");
        let isas: Vec<&str> = self.features.split(',').filter(|f| !of_models(f)).collect();
        let isas = isas.join(",").replace("all-isas", "sse41,avxvnni,avx512bf16,amx,neonbf16");
        let features = format!("library,alloc,{isas}");
        let built = kernels_library(&features, self.target.as_deref())?;
        let to = self.folder("lib")?.join("libtilewright-kernels.a");
        self.one_object(&built, &to)?;
        write(
            &self.folder("lib/pkgconfig")?.join("tilewright-kernels.pc"),
            &self.package("tilewright-kernels", "kernels of products and convolutions", version),
        )
    }

    fn build(&self, major: &str) -> Result<PathBuf, String> {
        let profile = if self.small { "small" } else { "release" };
        let mut build = cargo();
        build.args(["rustc", "--quiet", "--profile", profile, "-p", "tilewright-c", "--lib"]);
        build.args(["--no-default-features", "--features", &self.features]);
        let mut folder = target_dir();
        match &self.target {
            Some(target) => {
                build.args(["--target", target, "--crate-type", "staticlib"]);
                folder.push(target);
            }
            None => {
                let soname = format!("link-arg=-Wl,-soname,libtilewright.so.{major}");
                build.args(["--crate-type", "staticlib,cdylib", "--", "-C", &soname]);
                if self.small && cfg!(target_os = "linux") {
                    frames::link_without(&mut build)?;
                }
            }
        }
        if self.small {
            // What is said of how to unwind functions is a quarter shorter where frames have pointers.
            let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
            build.env("RUSTFLAGS", format!("{flags} -C force-frame-pointers=yes"));
        }
        finish(&mut build)?;
        Ok(folder.join(profile))
    }

    /// Makes one object of a static library, whose only names are those of the interface: so that it and
    /// another library of Rust can be in one program. Sections stay as they are, for linkers to drop.
    fn one_object(&self, from: &Path, to: &Path) -> Result<(), String> {
        let tool = |name: &str| {
            let prefix = match self.target.as_deref() {
                Some("aarch64-unknown-linux-gnu") => "aarch64-linux-gnu-",
                Some("thumbv7em-none-eabihf") => "arm-none-eabi-",
                _ => "",
            };
            Command::new(format!("{prefix}{name}"))
        };
        let object = to.with_extension("o");
        finish(tool("ld").args(["-r", "--whole-archive"]).arg(from).arg("-o").arg(&object))?;
        // Bitcode of the standard library is of no use to others, and `ar` with a plugin for an older LLVM
        // fails at it.
        let bitcode = ["--remove-section=.llvmbc", "--remove-section=.llvmcmd"];
        let names = ["--wildcard", "--keep-global-symbol=tw_*"];
        let mut copy = tool("objcopy");
        copy.args(bitcode).args(names);
        let code = if self.small { self.returns() } else { &[] };
        frames::leave_out(&mut copy, &mut tool("objdump"), &object, code)?;
        finish(copy.arg(&object))?;
        // There if it was needed.
        let _ = fs::remove_file(frames::body(&object));
        if to.exists() {
            fs::remove_file(to).map_err(|e| format!("{}: {e}", to.display()))?;
        }
        finish(tool("ar").arg("rcs").arg(to).arg(&object))?;
        fs::remove_file(&object).map_err(|e| format!("{}: {e}", object.display()))
    }

    /// What returns success, for the processor that the library is for; nothing if that is another.
    fn returns(&self) -> &'static [u8] {
        match self.target.as_deref() {
            None => frames::RETURNS,
            Some(target) if target.starts_with("aarch64") => frames::RETURNS_ON_ARM,
            Some(_) => &[],
        }
    }

    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.prefix.join(name);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }

    /// A pkg-config file, which finds its prefix from its own place.
    fn package(&self, name: &str, what: &str, version: &str) -> String {
        format!(
            "prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n\
             Name: {name}\nDescription: {what} on small machines\nVersion: {version}\n\
             Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -l{name}\nLibs.private: -lpthread -ldl -lm\n"
        )
    }
}

/// Builds the library of kernels alone; where it is.
///
/// # Errors
/// The command that failed.
pub(crate) fn kernels_library(features: &str, target: Option<&str>) -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["rustc", "--quiet", "--profile", "c", "-p", "tilewright-c-kernels", "--lib"]);
    build.args(["--no-default-features", "--features", features]);
    let mut folder = target_dir();
    if let Some(target) = target {
        build.args(["--target", target]);
        folder.push(target);
    }
    finish(build.args(["--crate-type", "staticlib"]))?;
    Ok(folder.join("c/libtilewright_c_kernels.a"))
}

/// The version of the workspace.
pub(crate) fn version() -> Result<String, String> {
    let text = fs::read_to_string("Cargo.toml").map_err(|e| format!("Cargo.toml: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.strip_suffix('"'));
    version.map(str::to_owned).ok_or("install: Cargo.toml has no version".into())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    // What is there may be mapped by a program that runs: it is replaced, not written to.
    let _ = fs::remove_file(to);
    fs::copy(from, to).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(unix)]
fn link(to: &str, at: &Path) -> Result<(), String> {
    let _ = fs::remove_file(at);
    std::os::unix::fs::symlink(to, at).map_err(|e| format!("{}: {e}", at.display()))
}

#[cfg(not(unix))]
fn link(to: &str, at: &Path) -> Result<(), String> {
    copy(&at.with_file_name(to), at)
}

/// Targets `tilewright::tilewright`, the shared library (the static one where there is no other), and
/// `tilewright::static`.
const CMAKE: &str = r#"get_filename_component(_tilewright "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(THREADS_PREFER_PTHREAD_FLAG ON)
include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(NOT TARGET tilewright::static)
  add_library(tilewright::static STATIC IMPORTED)
  set_target_properties(tilewright::static PROPERTIES
    IMPORTED_LOCATION "${_tilewright}/lib/libtilewright.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_tilewright}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
if(NOT TARGET tilewright::tilewright)
  if(EXISTS "${_tilewright}/lib/libtilewright.so")
    add_library(tilewright::tilewright SHARED IMPORTED)
    set_target_properties(tilewright::tilewright PROPERTIES
      IMPORTED_LOCATION "${_tilewright}/lib/libtilewright.so"
      INTERFACE_INCLUDE_DIRECTORIES "${_tilewright}/include")
  else()
    add_library(tilewright::tilewright INTERFACE IMPORTED)
    set_target_properties(tilewright::tilewright PROPERTIES
      INTERFACE_LINK_LIBRARIES tilewright::static)
  endif()
endif()
set(tilewright_FOUND TRUE)
"#;

/// Before version 1 a minor version may break what was there.
const CMAKE_VERSION: &str = r#"set(PACKAGE_VERSION "@VERSION@")
set(PACKAGE_VERSION_COMPATIBLE FALSE)
set(PACKAGE_VERSION_EXACT FALSE)
if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
elseif(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION
    AND PACKAGE_FIND_VERSION_MAJOR EQUAL 0 AND PACKAGE_FIND_VERSION_MINOR EQUAL 1)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"#;
