//! The Rust door, from the host's side: the only file here that knows abi_stable.
//!
//! A plugin written in Rust carries the layout of every type it was built against. Comparing it
//! with ours refuses a plugin built against edited tables, and says where they differ, even where
//! sizes and versions agree.

use std::path::Path;

use abi_stable::abi_stability::StableAbi;
use abi_stable::abi_stability::abi_checking::{
    AbiInstability, AbiInstabilityError, AbiInstabilityErrors, check_layout_compatibility,
};
use abi_stable::library::{LibHeader, LibraryError, lib_header_from_path};
use abi_stable::type_layout::TLFieldOrFunction;
use hcomm_transport_abi::{RustDoorRef, TransportV1};

/// Why the Rust door is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DoorError {
    #[error("built against other types: {0}")]
    Types(String),
    #[error("{0}")]
    Library(String),
    #[error("the Rust door and `hcomm_transport_v1` lead to different tables")]
    OtherTable,
}

/// Compares the types behind the Rust door of a loaded library with ours, if it has such a door.
/// Returns whether it has.
///
/// # Errors
/// The first place where they differ; all of them go to the log at debug level.
pub(crate) fn check(path: &Path, table: &'static TransportV1) -> Result<bool, DoorError> {
    let header = match lib_header_from_path(path) {
        Ok(header) => header,
        Err(LibraryError::GetSymbolError { .. }) => return Ok(false),
        Err(error) => return Err(library(path, &error)),
    };
    let door = header
        .init_root_module::<RustDoorRef>()
        .map_err(|error| match error {
            LibraryError::AbiInstability(_) => types(path, header),
            error => library(path, &error),
        })?;
    if std::ptr::eq(door.transport_v1()(), table) {
        Ok(true)
    } else {
        Err(DoorError::OtherTable)
    }
}

fn types(path: &Path, header: &LibHeader) -> DoorError {
    let compared = header
        .layout()
        .map(|layout| check_layout_compatibility(<RustDoorRef as StableAbi>::LAYOUT, layout));
    let Some(Err(differences)) = compared else {
        return DoorError::Types("a difference that does not show a second time".to_owned());
    };
    tracing::debug!(path = %path.display(), "the plugin's types differ:\n{differences}");
    DoorError::Types(first_place(&differences))
}

/// Where the first difference is, as a path from the table down, and what it is.
fn first_place(differences: &AbiInstabilityErrors) -> String {
    // A difference deep inside shows in each type around it as well; the deepest says most.
    let Some(first) = differences
        .errors
        .iter()
        .filter(|error| !error.errs.is_empty())
        .max_by_key(|error| error.stack_trace.len())
    else {
        return "an unnamed place".to_owned();
    };
    format!("{}: {}", place(first), what(first))
}

/// The names of fields, entries and arguments on the way; the type behind an entry repeats the
/// entry's name, and a reference is a step called `0`.
fn place(error: &AbiInstabilityError) -> String {
    let mut names: Vec<&str> = error
        .stack_trace
        .iter()
        .map(|step| match step.expected {
            TLFieldOrFunction::Field(field) => field.name(),
            TLFieldOrFunction::Function(function) => function.name.as_str(),
        })
        .filter(|&name| name != "0" && name != "__returns")
        .collect();
    names.dedup();
    names.join(".")
}

fn what(error: &AbiInstabilityError) -> String {
    let sentence = match error.errs.first() {
        None => String::new(),
        Some(AbiInstability::Name(types)) => {
            format!("type {}; expected {}", types.found, types.expected)
        }
        Some(AbiInstability::Package(packages)) => {
            format!(
                "a type of package {}; expected {}",
                packages.found, packages.expected
            )
        }
        Some(AbiInstability::Size(bytes)) => {
            format!("{} bytes; expected {}", bytes.found, bytes.expected)
        }
        Some(AbiInstability::FieldCountMismatch(fields)) => {
            format!("{} fields; expected {}", fields.found, fields.expected)
        }
        Some(other) => format!("{other:?}"),
    };
    one_line(&sentence)
}

fn library(path: &Path, error: &LibraryError) -> DoorError {
    let text = error.to_string();
    tracing::debug!(path = %path.display(), "the Rust door does not open:{text}");
    DoorError::Library(one_line(&text))
}

/// The text without line breaks, cut where it gets too long for a report.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 300;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
