//! Folders with plugins in them, and loading from them.

use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hcomm_transport::{Candidate, LoadOptions, Outcome, Plugin, Source, Transports};
use hcomm_transport_abi::{STATUS_OK, STATUS_UNSUPPORTED};

/// Where the C transport is that is written against the header alone.
pub(crate) const C_SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/tests/c");

/// A text long enough that the system's loader reads it as far as its first bytes.
pub(crate) const NOT_A_LIBRARY: &[u8] = &[b'x'; 4096];

/// A folder of our own that is trusted.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Path of the plugin `name` in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(format!("libhcomm_transport_{name}.so"))
    }

    /// Puts a copy of the built plugin `built` there as `name`.
    pub(crate) fn copy(&self, built: &str, name: &str) -> PathBuf {
        let file = self.file(name);
        fs::copy(built_plugin(built), &file).unwrap();
        file
    }

    /// Puts a file with this content there as the plugin `name`.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let file = self.file(name);
        fs::write(&file, content).unwrap();
        file
    }

    /// Compiles C into the plugin `name`.
    pub(crate) fn compile(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let file = self.file(name);
        compile(
            &self.path().join(format!("{name}.c")),
            source,
            &file,
            arguments,
        );
        file
    }
}

/// Compiles C into a library; warnings are errors.
pub(crate) fn compile(file: &Path, source: &str, library: &Path, arguments: &[&str]) {
    fs::write(file, source).unwrap();
    let output = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O1",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
        ])
        .args(["-Wall", "-Wextra", "-Werror"])
        .args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/include")])
        .args(["-I", C_SOURCES])
        .arg("-o")
        .arg(library)
        .arg(file)
        .args(arguments)
        .output()
        .expect("cc runs: install build-essential");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cc: {said}");
}

/// The library that cargo built beside this test program.
pub(crate) fn built_plugin(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let file = program
        .parent()
        .unwrap()
        .join(format!("libhcomm_transport_{name}.so"));
    assert!(file.is_file(), "{} is not built", file.display());
    file
}

/// Options to load from these folders first.
pub(crate) fn options(folders: &[&Folder]) -> LoadOptions {
    let mut options = LoadOptions::new(Vec::new(), sum_of_i32);
    options.path = folders
        .iter()
        .map(|folder| folder.path().to_owned())
        .collect();
    options
}

/// The candidate that came from this file.
pub(crate) fn candidate<'a>(transports: &'a Transports, file: &Path) -> &'a Candidate {
    transports
        .candidates()
        .iter()
        .find(|candidate| candidate.source == Source::SharedObject(file.to_owned()))
        .unwrap_or_else(|| panic!("{} is no candidate of {transports:?}", file.display()))
}

/// Why a candidate is not used.
pub(crate) fn refusal(candidate: &Candidate) -> &str {
    match &candidate.outcome {
        Outcome::Refused(why) => why,
        Outcome::Used(_) => panic!("it is used: {candidate}"),
    }
}

/// The plugin of a candidate that is used.
pub(crate) fn plugin(candidate: &Candidate) -> &'static Plugin {
    match &candidate.outcome {
        Outcome::Used(plugin) => plugin,
        Outcome::Refused(_) => panic!("it is not used: {candidate}"),
    }
}

/// A reduce kernel that knows one type and operation.
pub(crate) unsafe extern "C" fn sum_of_i32(
    dst: *mut c_void,
    a: *const c_void,
    b: *const c_void,
    count: u64,
    dtype: u32,
    redop: u32,
) -> i32 {
    if (dtype, redop) != (2, 0) {
        return STATUS_UNSUPPORTED;
    }
    for index in 0..count as usize {
        // SAFETY: the kernel's contract: all three hold `count` elements.
        unsafe {
            let sum = a
                .cast::<i32>()
                .add(index)
                .read_unaligned()
                .wrapping_add(b.cast::<i32>().add(index).read_unaligned());
            dst.cast::<i32>().add(index).write_unaligned(sum);
        }
    }
    STATUS_OK
}
