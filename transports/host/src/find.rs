//! Where plugin files are looked for, and which of them may be trusted.
//!
//! Loading a library runs its code, so a file counts only if nobody but root, this user and the
//! owner of the running program could have put it there.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A folder that was looked into, or could not be.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Why nothing was found there, if it could not be read.
    pub(crate) unreadable: Option<String>,
}

/// A file with the name of a plugin.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The `<name>` of `libhcomm_transport_<name>.so`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Which file it really is, if it may be loaded.
    pub(crate) file: Result<FileId, Untrusted>,
}

/// Identity of a file, whatever its names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Why a file is not loaded whatever is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Untrusted {
    #[error("{}: {error}", .path.display())]
    Unreadable { path: PathBuf, error: String },
    #[error("{} is not a regular file but {found}", .path.display())]
    NotAFile { path: PathBuf, found: &'static str },
    #[error(
        "{} is writable for everybody (mode {mode:04o}); take that away with `chmod o-w`",
        .path.display()
    )]
    WorldWritable { path: PathBuf, mode: u32 },
    #[error(
        "{} belongs to user {owner}; expected root, this user or the program's owner ({trusted})",
        .path.display()
    )]
    Owner {
        path: PathBuf,
        owner: u32,
        trusted: Trusted,
    },
}

/// The users whose files may be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trusted(BTreeSet<u32>);

impl Trusted {
    /// Root, the effective user, the owner of the running program.
    pub(crate) fn of_this_process() -> Self {
        let mut users = BTreeSet::from([0, rustix::process::geteuid().as_raw()]);
        // Without /proc the other two have to do.
        users.extend(fs::metadata("/proc/self/exe").map(|program| program.uid()));
        Self(users)
    }

    /// # Errors
    /// `WorldWritable`, `Owner`.
    fn check(&self, path: &Path, metadata: &Metadata) -> Result<(), Untrusted> {
        const OTHERS_WRITE: u32 = 0o002;
        const STICKY: u32 = 0o1000;
        let mode = metadata.mode() & 0o7777;
        // In a sticky folder everybody may add files but nobody can replace those of others, and
        // a file's own owner is looked at as well.
        let kept_apart = metadata.is_dir() && mode & STICKY != 0;
        if mode & OTHERS_WRITE != 0 && !kept_apart {
            return Err(Untrusted::WorldWritable {
                path: path.to_owned(),
                mode,
            });
        }
        if !self.0.contains(&metadata.uid()) {
            return Err(Untrusted::Owner {
                path: path.to_owned(),
                owner: metadata.uid(),
                trusted: self.clone(),
            });
        }
        Ok(())
    }

    /// Looks at the file itself, behind all links, and at the folder it lies in.
    fn check_file(&self, path: &Path) -> Result<FileId, Untrusted> {
        let unreadable = |error: io::Error| Untrusted::Unreadable {
            path: path.to_owned(),
            error: error.to_string(),
        };
        let real = path.canonicalize().map_err(unreadable)?;
        let metadata = fs::metadata(&real).map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Untrusted::NotAFile {
                path: path.to_owned(),
                found: if metadata.is_dir() {
                    "a folder"
                } else {
                    "a device, pipe or socket"
                },
            });
        }
        for folder in [path.parent(), real.parent()].into_iter().flatten() {
            self.check(folder, &fs::metadata(folder).map_err(unreadable)?)?;
        }
        self.check(path, &metadata)?;
        Ok(FileId::of(&metadata))
    }
}

impl fmt::Display for Trusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, user) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{user}")?;
        }
        Ok(())
    }
}

/// Looks into the folders of `explicit`, then into the usual ones. Files come in the order in
/// which they win; one that is reached twice comes once.
pub(crate) fn search(explicit: &[PathBuf], trusted: &Trusted) -> (Vec<Folder>, Vec<Found>) {
    let mut seen = BTreeSet::new();
    let (mut folders, mut found) = (Vec::new(), Vec::new());
    let usual = usual_folders();
    for (folder, is_explicit) in explicit
        .iter()
        .map(|folder| (folder, true))
        .chain(usual.iter().map(|folder| (folder, false)))
    {
        match files_of(folder) {
            Ok(files) => {
                folders.push(Folder {
                    path: folder.clone(),
                    unreadable: None,
                });
                for (name, path) in files {
                    let file = trusted.check_file(&path);
                    if file.as_ref().map_or(true, |&id| seen.insert(id)) {
                        found.push(Found { name, path, file });
                    }
                }
            }
            // Most of the usual folders do not exist, and need not.
            Err(error)
                if is_explicit
                    || !matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
            {
                tracing::warn!(folder = %folder.display(), %error, "no transports from here");
                folders.push(Folder {
                    path: folder.clone(),
                    unreadable: Some(error.to_string()),
                });
            }
            Err(_) => {}
        }
    }
    (folders, found)
}

/// Plugin files of a folder with their names, sorted by name.
fn files_of(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str().and_then(plugin_name) {
            files.push((name.to_owned(), entry.path()));
        }
    }
    files.sort();
    Ok(files)
}

/// The `<name>` of `libhcomm_transport_<name>.so`.
fn plugin_name(file: &str) -> Option<&str> {
    file.strip_prefix("libhcomm_transport_")?
        .strip_suffix(".so")
        .filter(|name| !name.is_empty())
}

/// `hcomm/` beside our own library or program, `../lib/hcomm/` from the program, and the build's
/// folder when the program was not installed.
fn usual_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let program = std::env::current_exe().ok();
    if let Some(beside) = own_object().or_else(|| program.clone()) {
        folders.extend(beside.parent().map(|folder| folder.join("hcomm")));
    }
    if let Some(folder) = program.as_deref().and_then(Path::parent) {
        folders.extend(folder.parent().map(|prefix| prefix.join("lib/hcomm")));
        folders.extend(build_folders(folder));
    }
    folders
}

/// The file this code was loaded from: the program, or a library that links us in.
fn own_object() -> Option<PathBuf> {
    let here = own_object as fn() -> Option<PathBuf> as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    object_at(&maps, here)
}

/// The file mapped at `address`, from the text of `/proc/self/maps`.
fn object_at(maps: &str, address: usize) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = line.find('/').map(|at| PathBuf::from(&line[at..]))?;
        (start..end).contains(&address).then_some(path)
    })
}

/// Where cargo puts libraries, when the program lies where cargo puts programs, tests or examples.
/// `deps` comes first: a library that was only built for a test is fresh there alone.
fn build_folders(program_folder: &Path) -> Vec<PathBuf> {
    let profile = match program_folder.file_name().and_then(|name| name.to_str()) {
        Some("deps" | "examples") => program_folder.parent(),
        _ => Some(program_folder),
    };
    profile
        .filter(|profile| {
            profile.join(".fingerprint").is_dir() || profile.join(".cargo-lock").is_file()
        })
        .map(|profile| vec![profile.join("deps"), profile.to_owned()])
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_gives_the_name_of_the_plugin() {
        assert_eq!(plugin_name("libhcomm_transport_shm.so"), Some("shm"));
        for other in [
            "libhcomm_transport_.so",
            "libhcomm_transport.so",
            "libhcomm_transport_shm.so.1",
            "libhcomm_transport_shm.rlib",
            "hcomm_transport_shm.so",
        ] {
            assert_eq!(plugin_name(other), None, "{other}");
        }
    }

    #[test]
    fn the_object_at_an_address_is_read_from_the_maps() {
        let maps = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/program
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
7f0000002000-7f0000003000 r-xp 00001000 08:02 42  /opt/with space/libhcomm.so
7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0   [stack]
";
        assert_eq!(
            object_at(maps, 0x7f00_0000_2abc),
            Some("/opt/with space/libhcomm.so".into())
        );
        assert_eq!(object_at(maps, 0x45_1fff), Some("/usr/bin/program".into()));
        assert_eq!(object_at(maps, 0x45_2000), None);
        assert_eq!(object_at(maps, 0x7ffc_0000_0000), None);
    }

    #[test]
    fn our_own_object_is_this_test_program() {
        assert_eq!(
            own_object().unwrap().canonicalize().unwrap(),
            std::env::current_exe().unwrap().canonicalize().unwrap()
        );
    }

    #[test]
    fn a_file_of_a_stranger_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libhcomm_transport_x.so");
        fs::write(&file, b"x").unwrap();
        assert!(Trusted::of_this_process().check_file(&file).is_ok());
        // Nobody else has files in reach of every test, so trust somebody else instead.
        let others = Trusted(BTreeSet::from([u32::MAX - 1]));
        let error = others.check_file(&file).unwrap_err();
        let owner = fs::metadata(&file).unwrap().uid();
        assert_eq!(
            error.to_string(),
            format!(
                "{} belongs to user {owner}; expected root, this user or the program's owner (4294967294)",
                folder.path().display()
            )
        );
    }

    #[test]
    fn the_build_folder_is_known_by_what_cargo_leaves_there() {
        let target = tempfile::tempdir().unwrap();
        let profile = target.path().join("debug");
        fs::create_dir_all(profile.join("deps")).unwrap();
        assert!(build_folders(&profile).is_empty());
        fs::create_dir(profile.join(".fingerprint")).unwrap();
        for program_folder in [
            profile.clone(),
            profile.join("deps"),
            profile.join("examples"),
        ] {
            assert_eq!(
                build_folders(&program_folder),
                [profile.join("deps"), profile.clone()]
            );
        }
    }
}
