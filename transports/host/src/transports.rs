//! All plugins of a process: which are used, and why the others are not.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hcomm_transport_abi::TransportV1;
use hcomm_types::{Error, ErrorKind, Result};

use crate::ReduceKernel;
use crate::bell::Bell;
use crate::find::{Folder, Found, Trusted, search};
use crate::load::{self, LoadError};
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

impl Selection {
    /// Whether a transport of this name is wanted.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|wanted| wanted == name),
            Self::Except(names) => names.iter().all(|unwanted| unwanted != name),
        }
    }
}

impl FromStr for Selection {
    type Err = SelectionError;

    /// Reads `shm,roce` or `^tcp,roce`. An empty text selects all.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (list, except) = match text.strip_prefix('^') {
            Some(list) => (list, true),
            None if text.is_empty() => return Ok(Self::All),
            None => (text, false),
        };
        let names = list
            .split(',')
            .map(|name| match name.trim() {
                "" => Err(SelectionError(format!("`{text}` has an empty name in it"))),
                name if name.contains('^') => Err(SelectionError(format!(
                    "`{text}`: a `^` stands once, before the first name, and holds for all"
                ))),
                name => Ok(name.to_owned()),
            })
            .collect::<Result<_, _>>()?;
        Ok(if except {
            Self::Except(names)
        } else {
            Self::Only(names)
        })
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(names) => f.write_str(&names.join(",")),
            Self::Except(names) => write!(f, "^{}", names.join(",")),
        }
    }
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
    pub path: Vec<PathBuf>,
    /// Tables linked into the program, used where no file of the same name was found.
    pub linked: Vec<&'static TransportV1>,
    /// Reduce kernel for plugins.
    pub reduce: ReduceKernel,
}

impl LoadOptions {
    /// All transports from the usual folders.
    #[must_use]
    pub const fn new(linked: Vec<&'static TransportV1>, reduce: ReduceKernel) -> Self {
        Self {
            selection: Selection::All,
            path: Vec::new(),
            linked,
            reduce,
        }
    }

    /// As the texts of `HCOMM_TRANSPORTS` and `HCOMM_TRANSPORT_PATH` say, where they are set.
    ///
    /// # Errors
    /// `InvalidArgument` for a selection that is not understood.
    pub fn parse(
        selection: Option<&str>,
        path: Option<&str>,
        linked: Vec<&'static TransportV1>,
        reduce: ReduceKernel,
    ) -> Result<Self> {
        let mut options = Self::new(linked, reduce);
        if let Some(selection) = selection {
            options.selection = selection.parse().map_err(|error: SelectionError| {
                Error::new(ErrorKind::InvalidArgument, error.to_string())
                    .hint("write `shm,roce` for only these, `^tcp` for all but these")
            })?;
        }
        if let Some(path) = path {
            // An empty part would mean the current folder, which nobody meant.
            options.path = std::env::split_paths(path)
                .filter(|folder| !folder.as_os_str().is_empty())
                .collect();
        }
        Ok(options)
    }
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
    /// What else is to be known: that it stands in for one that was refused.
    pub note: Option<String>,
}

/// Used, or not.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Loaded, checked, initialised.
    Used(&'static Plugin),
    /// Not used; the sentence says why.
    Refused(String),
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.name, self.source)?;
        match &self.outcome {
            Outcome::Used(_) => f.write_str("used")?,
            Outcome::Refused(why) => write!(f, "not used: {why}")?,
        }
        match &self.note {
            Some(note) => write!(f, "; {note}"),
            None => Ok(()),
        }
    }
}

/// All plugins of this process.
#[derive(Clone, Debug)]
pub struct Transports {
    candidates: Vec<Candidate>,
    folders: Vec<Folder>,
}

impl Transports {
    /// Looks for plugins, loads those that are wanted, checks and initialises them. A plugin is
    /// initialised once in a process: loading again gives the same ones. Any thread.
    ///
    /// # Errors
    /// `Plugin` if one that was asked for by name does not work, with the reasons of all its
    /// candidates; `LimitReached` if there is nothing left to make the bell of.
    pub fn load(options: &LoadOptions) -> Result<Self> {
        // Every plugin needs it, so its error is not one of a plugin.
        Bell::process()?;
        let (folders, found) = search(&options.path, &Trusted::of_this_process());
        let mut loading = Loading {
            options,
            candidates: Vec::new(),
            used: HashMap::new(),
        };
        for file in &found {
            loading.file(file);
        }
        for &table in &options.linked {
            loading.linked(table);
        }
        let transports = Self {
            candidates: loading.candidates,
            folders,
        };
        if let Selection::Only(names) = &options.selection {
            for name in names {
                if transports.plugin(name).is_none() {
                    return Err(transports.missing(name));
                }
            }
        }
        Ok(transports)
    }

    /// Every candidate, in the order in which they were looked at.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The plugins that are used, in the same order.
    pub fn used(&self) -> impl Iterator<Item = &'static Plugin> {
        self.candidates
            .iter()
            .filter_map(|candidate| match candidate.outcome {
                Outcome::Used(plugin) => Some(plugin),
                Outcome::Refused(_) => None,
            })
    }

    /// The plugin of this name, if it is used.
    #[must_use]
    pub fn plugin(&self, name: &str) -> Option<&'static Plugin> {
        self.used().find(|plugin| plugin.name() == name)
    }

    /// The folders that were looked into, in order, each with the reason if it could not be read.
    pub fn folders(&self) -> impl Iterator<Item = (&Path, Option<&str>)> {
        self.folders
            .iter()
            .map(|folder| (folder.path.as_path(), folder.unreadable.as_deref()))
    }

    fn missing(&self, name: &str) -> Error {
        let reasons: Vec<String> = self
            .candidates
            .iter()
            .filter(|candidate| candidate.name == name)
            .map(ToString::to_string)
            .collect();
        let folders: Vec<String> = self
            .folders()
            .map(|(path, unreadable)| match unreadable {
                Some(why) => format!("{} ({why})", path.display()),
                None => path.display().to_string(),
            })
            .collect();
        if reasons.is_empty() {
            Error::new(
                ErrorKind::Plugin,
                format!(
                    "transport `{name}` was asked for by name, and there is no libhcomm_transport_{name}.so in [{}]",
                    folders.join(", ")
                ),
            )
            .hint("name its folder in HCOMM_TRANSPORT_PATH")
        } else {
            Error::new(
                ErrorKind::Plugin,
                format!(
                    "transport `{name}` was asked for by name and does not work: {}",
                    reasons.join("; ")
                ),
            )
            .hint("`hcomm transports` shows all candidates")
        }
    }
}

/// Candidates as they are looked at.
struct Loading<'a> {
    options: &'a LoadOptions,
    candidates: Vec<Candidate>,
    /// Where the used one of each name came from.
    used: HashMap<String, Source>,
}

impl Loading<'_> {
    fn file(&mut self, found: &Found) {
        let source = Source::SharedObject(found.path.clone());
        let outcome = match (self.unwanted(&found.name), self.used.get(&found.name)) {
            (Some(why), _) => Outcome::Refused(why),
            (None, Some(winner)) => Outcome::Refused(format!("shadowed by {winner}")),
            (None, None) => self.outcome(&found.name, load::file(found, self.options.reduce)),
        };
        self.add(found.name.clone(), source, outcome, None);
    }

    fn linked(&mut self, table: &'static TransportV1) {
        let name = load::linked_name(table).unwrap_or_else(|_| "?".to_owned());
        let outcome = match (self.unwanted(&name), self.used.get(&name)) {
            (Some(why), _) => Outcome::Refused(why),
            (None, Some(winner)) => Outcome::Refused(format!("{winner} was found")),
            (None, None) => self.outcome(&name, load::linked(table, self.options.reduce)),
        };
        let mut note = None;
        if matches!(outcome, Outcome::Used(_)) {
            // Only files that were refused can stand before it: a used one would have won.
            for file in self.candidates.iter_mut().filter(|file| file.name == name) {
                file.note = Some("the linked one is used instead".to_owned());
                note = Some(format!("stands in for {}, which was refused", file.source));
            }
        }
        self.add(name, Source::Linked, outcome, note);
    }

    /// Why a candidate of this name is not wanted.
    fn unwanted(&self, name: &str) -> Option<String> {
        let selection = &self.options.selection;
        (!selection.wants(name)).then(|| format!("not among `{selection}`"))
    }

    fn outcome(&self, name: &str, result: Result<&'static Plugin, LoadError>) -> Outcome {
        match result {
            Ok(plugin) => Outcome::Used(plugin),
            Err(error) => {
                let asked_for = matches!(self.options.selection, Selection::Only(_));
                // Whoever asked for it by name gets the error itself.
                if error.is_expected() || asked_for {
                    tracing::debug!(plugin = name, %error, "a transport is not used");
                } else {
                    tracing::info!(plugin = name, %error, "a transport is refused");
                }
                Outcome::Refused(error.to_string())
            }
        }
    }

    fn add(&mut self, name: String, source: Source, outcome: Outcome, note: Option<String>) {
        if let Outcome::Used(plugin) = outcome {
            tracing::debug!(plugin = %name, %source, version = plugin.version(), "a transport is used");
            self.used.insert(name.clone(), source.clone());
        }
        self.candidates.push(Candidate {
            name,
            source,
            outcome,
            note,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_reads_and_prints_the_same() {
        for (text, selection) in [
            (
                "shm,roce",
                Selection::Only(vec!["shm".into(), "roce".into()]),
            ),
            ("^tcp", Selection::Except(vec!["tcp".into()])),
            (
                "^tcp,roce",
                Selection::Except(vec!["tcp".into(), "roce".into()]),
            ),
        ] {
            assert_eq!(text.parse(), Ok(selection.clone()));
            assert_eq!(selection.to_string(), text);
        }
        assert_eq!("".parse(), Ok(Selection::All));
        assert_eq!(" shm , tcp".parse::<Selection>(), "shm,tcp".parse());
    }

    #[test]
    fn a_selection_that_is_not_understood_is_an_error() {
        for text in ["shm,", ",", "^", "^tcp,^roce", "shm,^tcp"] {
            let error = text.parse::<Selection>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_selection_wants_what_it_says() {
        let wants = |text: &str, name| text.parse::<Selection>().unwrap().wants(name);
        assert!(wants("", "shm"));
        assert!(wants("shm,tcp", "tcp") && !wants("shm,tcp", "roce"));
        assert!(!wants("^shm,tcp", "tcp") && wants("^shm,tcp", "roce"));
    }
}
