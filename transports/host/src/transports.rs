//! All plugins of a process: which are used, and why the others are not.

use hcomm_transport_abi::TransportV1;
use hcomm_types::Result;

use crate::ReduceKernel;
use crate::plugin::{Plugin, Source};

/// Which transports are wanted: `HCOMM_TRANSPORTS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All that work.
    #[default]
    All,
    /// Only these, and each must work: `shm,roce`.
    Only(Vec<String>),
    /// All but these: `^tcp`.
    Except(Vec<String>),
}

/// A selection that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("HCOMM_TRANSPORTS: {0}")]
pub struct SelectionError(pub String);

/// How to find and load plugins.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Which are wanted.
    pub selection: Selection,
    /// Folders to search before the usual ones (`HCOMM_TRANSPORT_PATH`, separated by colons).
    pub path: Vec<std::path::PathBuf>,
    /// Tables linked into the program, used where no file of the same name was found.
    pub linked: Vec<&'static TransportV1>,
    /// Reduce kernel for plugins.
    pub reduce: ReduceKernel,
}

/// What became of one candidate.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name, from the file name or the table.
    pub name: String,
    /// Where it is.
    pub source: Source,
    /// Used, or refused because of what.
    pub outcome: Outcome,
}

/// Used, or not.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Loaded, checked, initialised.
    Used(&'static Plugin),
    /// Not used; the sentence says why.
    Refused(String),
}

/// All plugins of this process.
#[derive(Clone, Debug)]
pub struct Transports {
    candidates: Vec<Candidate>,
}

impl Transports {
    /// stub
    pub fn load(_options: &LoadOptions) -> Result<Self> {
        todo!()
    }
    /// Every candidate, in the order in which they were looked at.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }
}
