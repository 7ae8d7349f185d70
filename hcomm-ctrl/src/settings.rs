//! Settings: what can be chosen, by builder option or by environment variable.

use std::env;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use hcomm_types::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_EXECUTION_TIMEOUT, Error, ErrorKind, Result};

use crate::cluster::Cluster;
use crate::job_key::JobKey;
use crate::launch::RootAddress;

/// One environment variable of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it does, and what is expected as its value.
    pub meaning: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// Names of like variables of HCCL and NCCL, where there are any.
    pub known_as: &'static [&'static str],
}

/// Bytes of the communicator's own buffer when nothing else is asked.
pub const DEFAULT_BUFFER_BYTES: u64 = 16 << 20;

/// Every environment variable that starts with `HCOMM_`. Others with that beginning are errors.
pub const VARIABLES: [Variable; 14] = [
    Variable {
        name: "HCOMM_BUFFER_BYTES",
        meaning: "size of a communicator's own buffer: a number, with K, M or G for powers of 1024; the same on all ranks",
        default: "16M",
        known_as: &["HCCL_BUFFSIZE", "NCCL_BUFFSIZE"],
    },
    Variable {
        name: "HCOMM_CONNECT_TIMEOUT",
        meaning: "how long start-up waits for all ranks: seconds, 0 for no end; the same on all ranks",
        default: "120",
        known_as: &["HCCL_CONNECT_TIMEOUT"],
    },
    Variable {
        name: "HCOMM_DETERMINISTIC",
        meaning: "1: reductions combine in rank order whatever the algorithm, or are refused; the same on all ranks",
        default: "0",
        known_as: &["HCCL_DETERMINISTIC"],
    },
    Variable {
        name: "HCOMM_EXEC_TIMEOUT",
        meaning: "how long an operation waits for its peers: seconds, 0 for no end; the same on all ranks",
        default: "600",
        known_as: &["HCCL_EXEC_TIMEOUT"],
    },
    Variable {
        name: "HCOMM_JOB_KEY",
        meaning: "secret text that proves that a rank belongs to the job; the same on all ranks",
        default: "`hcomm run` and root infos make one; otherwise a key that everybody knows",
        known_as: &[],
    },
    Variable {
        name: "HCOMM_JOB_KEY_FILE",
        meaning: "file that holds the text of HCOMM_JOB_KEY, readable by its owner only",
        default: "none",
        known_as: &[],
    },
    Variable {
        name: "HCOMM_LOG",
        meaning: "which events the command prints: a filter of the form warn,hcomm_ctrl=debug",
        default: "warn",
        known_as: &["ASCEND_GLOBAL_LOG_LEVEL", "NCCL_DEBUG"],
    },
    Variable {
        name: "HCOMM_ROOT",
        meaning: "where rank 0 listens during start-up: host:port or [address]:port; host:first-last for the first free port of several, with a job key",
        default: "MASTER_ADDR with MASTER_PORT, or the port after it under torchrun",
        known_as: &["NCCL_COMM_ID"],
    },
    Variable {
        name: "HCOMM_SOCKET_IFNAME",
        meaning: "network interfaces to use: eth (beginning), ^eth (all but these), =eth0 (exactly)",
        default: "all, best first",
        known_as: &["HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"],
    },
    Variable {
        name: "HCOMM_TOPOLOGY",
        meaning: "how the ranks are wired, for algorithms that work in groups: a rank table, a topology file, or a file of ours; TABLE,TOPOLOGY for two; the same on all ranks",
        default: "the table of RANK_TABLE_FILE, or what is discovered",
        known_as: &["NCCL_TOPO_FILE"],
    },
    Variable {
        name: "HCOMM_TRANSPORTS",
        meaning: "transport plugins to use: shm,roce; or all but some: ^tcp; the same on all ranks",
        default: "all that are found",
        known_as: &["NCCL_NET"],
    },
    Variable {
        name: "HCOMM_TRANSPORT_PATH",
        meaning: "folders with transport plugins, separated by colons",
        default: "hcomm/ beside the library, ../lib/hcomm/ from the program, the build's target folder",
        known_as: &["NCCL_NET_PLUGIN"],
    },
    Variable {
        name: "HCOMM_TUNING",
        meaning: "costs of this machine, a file of `hcomm tune`, by which algorithms are chosen; that of rank 0 holds for all",
        default: "built-in numbers",
        known_as: &["NCCL_TUNER_CONFIG_FILE"],
    },
    Variable {
        name: "HCOMM_WAIT",
        meaning: "how a rank waits: spin (it looks for a moment before it sleeps, where it has a core) or sleep (at once, as others need the cores)",
        default: "spin",
        known_as: &[],
    },
];

/// What a file says about the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Topology {
    /// In files that are not read yet.
    File(String),
    Known(Arc<Cluster>),
}

/// All that can be chosen. Begin with [`Settings::default`] or [`Settings::from_env`] and change
/// what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    connect_timeout: Duration,
    exec_timeout: Duration,
    buffer_bytes: u64,
    deterministic: bool,
    job_key: Option<JobKey>,
    root: Option<RootAddress>,
    socket_ifname: String,
    transports: Option<String>,
    transport_path: Option<String>,
    topology: Option<Topology>,
    tuning: Option<String>,
    sleeping_waits: bool,
    log: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            exec_timeout: DEFAULT_EXECUTION_TIMEOUT,
            buffer_bytes: DEFAULT_BUFFER_BYTES,
            deterministic: false,
            job_key: None,
            root: None,
            socket_ifname: String::new(),
            transports: None,
            transport_path: None,
            topology: None,
            tuning: None,
            sleeping_waits: false,
            log: None,
        }
    }
}

impl Settings {
    /// Settings from the environment of this process.
    ///
    /// # Errors
    /// A variable that begins with `HCOMM_` and is unknown or has a bad value, with what is
    /// expected.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(env::vars_os().map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        }))
    }

    /// Settings from named values. Names that do not begin with `HCOMM_` are passed over.
    ///
    /// # Errors
    /// Those of [`Settings::from_env`].
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut settings = Self::default();
        let mut key_file = None;
        for (name, value) in vars {
            if !name.starts_with("HCOMM_") {
                continue;
            }
            match name.as_str() {
                "HCOMM_BUFFER_BYTES" => settings.buffer_bytes = parse_bytes(&name, &value)?,
                "HCOMM_CONNECT_TIMEOUT" => settings.connect_timeout = parse_seconds(&name, &value)?,
                "HCOMM_DETERMINISTIC" => {
                    settings.deterministic = match value.as_str() {
                        "0" => false,
                        "1" => true,
                        _ => return Err(bad_value(&name, &value, "0 or 1")),
                    };
                }
                "HCOMM_EXEC_TIMEOUT" => settings.exec_timeout = parse_seconds(&name, &value)?,
                "HCOMM_JOB_KEY" => {
                    if value.is_empty() {
                        return Err(bad_value(&name, "", "a secret text that is not empty"));
                    }
                    settings.job_key = Some(JobKey::from_text(&value));
                }
                "HCOMM_JOB_KEY_FILE" => key_file = Some(value),
                "HCOMM_LOG" => settings.log = Some(value),
                "HCOMM_ROOT" => {
                    let root = value
                        .parse()
                        .map_err(|_| bad_value(&name, &value, RootAddress::EXPECTED))?;
                    settings.root = Some(root);
                }
                "HCOMM_SOCKET_IFNAME" => settings.socket_ifname = value,
                "HCOMM_TOPOLOGY" => settings.topology = Some(Topology::File(value)),
                "HCOMM_TRANSPORTS" => settings.transports = Some(value),
                "HCOMM_TRANSPORT_PATH" => settings.transport_path = Some(value),
                "HCOMM_TUNING" => settings.tuning = Some(value),
                "HCOMM_WAIT" => {
                    settings.sleeping_waits = match value.as_str() {
                        "spin" => false,
                        "sleep" => true,
                        _ => return Err(bad_value(&name, &value, "spin or sleep")),
                    };
                }
                _ => return Err(unknown(&name)),
            }
        }
        if let Some(path) = key_file {
            if settings.job_key.is_some() {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("both HCOMM_JOB_KEY and HCOMM_JOB_KEY_FILE={path} are set"),
                )
                .hint("set one of them"));
            }
            settings.job_key = Some(read_key(&path)?);
        }
        Ok(settings)
    }

    /// How long start-up waits for all ranks; zero for no end.
    #[must_use]
    pub const fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// How long an operation waits for its peers; zero for no end.
    #[must_use]
    pub const fn exec_timeout(&self) -> Duration {
        self.exec_timeout
    }

    /// Whether reductions combine in rank order, whatever the algorithm.
    #[must_use]
    pub const fn deterministic(&self) -> bool {
        self.deterministic
    }

    /// Bytes of a communicator's own buffer.
    #[must_use]
    pub const fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    /// The secret of the job, if one was given.
    #[must_use]
    pub const fn job_key(&self) -> Option<&JobKey> {
        self.job_key.as_ref()
    }

    /// Where rank 0 listens, if it was given.
    #[must_use]
    pub const fn root(&self) -> Option<&RootAddress> {
        self.root.as_ref()
    }

    /// Which network interfaces to use, as written; empty for all.
    #[must_use]
    pub fn socket_ifname(&self) -> &str {
        &self.socket_ifname
    }

    /// Which transport plugins to use, as written.
    #[must_use]
    pub fn transports(&self) -> Option<&str> {
        self.transports.as_deref()
    }

    /// Where to look for transport plugins, as written.
    #[must_use]
    pub fn transport_path(&self) -> Option<&str> {
        self.transport_path.as_deref()
    }

    /// What a file says about the cluster: one that was given, or is read now.
    ///
    /// # Errors
    /// Those of [`Cluster::read`].
    pub fn cluster(&self) -> Result<Option<Arc<Cluster>>> {
        match &self.topology {
            None => Ok(None),
            Some(Topology::Known(cluster)) => Ok(Some(Arc::clone(cluster))),
            Some(Topology::File(paths)) => Ok(Some(Arc::new(Cluster::read(paths)?))),
        }
    }

    /// The same, if it has been read.
    pub(crate) fn known_cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.topology {
            Some(Topology::Known(cluster)) => Some(cluster),
            Some(Topology::File(_)) | None => None,
        }
    }

    /// Where the tuning file is, as written.
    #[must_use]
    pub fn tuning(&self) -> Option<&str> {
        self.tuning.as_deref()
    }

    /// The filter of printed events, as written: for the program that prints them, as the command
    /// does. The library only emits events.
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        self.log.as_deref()
    }

    /// Option for `HCOMM_CONNECT_TIMEOUT`.
    #[must_use]
    pub const fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Option for `HCOMM_EXEC_TIMEOUT`.
    #[must_use]
    pub const fn with_exec_timeout(mut self, timeout: Duration) -> Self {
        self.exec_timeout = timeout;
        self
    }

    /// Whether a rank that waits sleeps at once.
    #[must_use]
    pub const fn sleeping_waits(&self) -> bool {
        self.sleeping_waits
    }

    /// Option for `HCOMM_WAIT`: `true` for `sleep`.
    #[must_use]
    pub const fn with_sleeping_waits(mut self, sleeping: bool) -> Self {
        self.sleeping_waits = sleeping;
        self
    }

    /// Option for `HCOMM_DETERMINISTIC`.
    #[must_use]
    pub const fn with_deterministic(mut self, deterministic: bool) -> Self {
        self.deterministic = deterministic;
        self
    }

    /// Option for `HCOMM_BUFFER_BYTES`.
    #[must_use]
    pub const fn with_buffer_bytes(mut self, bytes: u64) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// Option for `HCOMM_JOB_KEY`.
    #[must_use]
    pub fn with_job_key(mut self, key: JobKey) -> Self {
        self.job_key = Some(key);
        self
    }

    /// Option for `HCOMM_JOB_KEY_FILE`.
    ///
    /// # Errors
    /// The file cannot be read, is empty, or may be read by others.
    pub fn with_job_key_file(mut self, path: &str) -> Result<Self> {
        self.job_key = Some(read_key(path)?);
        Ok(self)
    }

    /// Option for `HCOMM_ROOT`.
    ///
    /// # Errors
    /// `HCOMM_ROOT` says something else.
    pub fn with_root(mut self, root: RootAddress) -> Result<Self> {
        match &self.root {
            Some(other) if *other != root => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the root's address is {root} by argument and {other} by HCOMM_ROOT"),
            )
            .hint("give it once, or the same twice")),
            _ => {
                self.root = Some(root);
                Ok(self)
            }
        }
    }

    /// Option for `HCOMM_SOCKET_IFNAME`.
    #[must_use]
    pub fn with_socket_ifname(mut self, filter: impl Into<String>) -> Self {
        self.socket_ifname = filter.into();
        self
    }

    /// Option for `HCOMM_TRANSPORTS`.
    #[must_use]
    pub fn with_transports(mut self, list: impl Into<String>) -> Self {
        self.transports = Some(list.into());
        self
    }

    /// Option for `HCOMM_TRANSPORT_PATH`.
    #[must_use]
    pub fn with_transport_path(mut self, folders: impl Into<String>) -> Self {
        self.transport_path = Some(folders.into());
        self
    }

    /// What is known about the cluster; nothing beyond what is discovered.
    #[must_use]
    pub fn with_cluster(mut self, cluster: Option<Arc<Cluster>>) -> Self {
        self.topology = cluster.map(Topology::Known);
        self
    }

    /// What a file says about the cluster; as in `HCOMM_TOPOLOGY`.
    #[must_use]
    pub fn with_topology(mut self, paths: impl Into<String>) -> Self {
        self.topology = Some(Topology::File(paths.into()));
        self
    }

    /// No tuning file.
    #[must_use]
    pub fn without_tuning(mut self) -> Self {
        self.tuning = None;
        self
    }

    /// Option for `HCOMM_TUNING`.
    #[must_use]
    pub fn with_tuning(mut self, path: impl Into<String>) -> Self {
        self.tuning = Some(path.into());
        self
    }

    /// Option for `HCOMM_LOG`.
    #[must_use]
    pub fn with_log(mut self, filter: impl Into<String>) -> Self {
        self.log = Some(filter.into());
        self
    }

    /// The settings on which all ranks of a communicator must agree, as name and value.
    #[must_use]
    pub fn to_agree_on(&self) -> Arc<[(String, String)]> {
        let not_set = || "not set".to_owned();
        [
            ("HCOMM_BUFFER_BYTES", self.buffer_bytes.to_string()),
            ("HCOMM_CONNECT_TIMEOUT", seconds(self.connect_timeout)),
            (
                "HCOMM_DETERMINISTIC",
                u8::from(self.deterministic).to_string(),
            ),
            ("HCOMM_EXEC_TIMEOUT", seconds(self.exec_timeout)),
            (
                // Both ends of a link choose it for themselves.
                "HCOMM_TRANSPORTS",
                self.transports.clone().unwrap_or_else(not_set),
            ),
            (
                // Wherever a rank found it: what is in it counts. Who has read it knows that.
                "HCOMM_TOPOLOGY",
                match &self.topology {
                    None => not_set(),
                    Some(Topology::File(paths)) => paths.clone(),
                    Some(Topology::Known(cluster)) => {
                        format!("a file with SHA-256 {}...", cluster.digest())
                    }
                },
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

fn seconds(timeout: Duration) -> String {
    timeout.as_secs_f64().to_string()
}

fn bad_value(name: &str, value: &str, expected: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{name}={value} is not {expected}"),
    )
    .hint(format!("set {name} to {expected}, or unset it"))
}

fn unknown(name: &str) -> Error {
    let error = Error::new(
        ErrorKind::InvalidArgument,
        format!("the environment variable {name} is unknown"),
    );
    let closest = VARIABLES
        .iter()
        .min_by_key(|variable| distance(name, variable.name));
    match closest {
        Some(variable) => error.hint(format!("did you mean {}? Else unset it", variable.name)),
        None => error,
    }
}

fn parse_seconds(name: &str, value: &str) -> Result<Duration> {
    value
        .parse::<f64>()
        .ok()
        .filter(|seconds| *seconds >= 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| bad_value(name, value, "a number of seconds, 0 for no end"))
}

fn parse_bytes(name: &str, value: &str) -> Result<u64> {
    let expected = "a number of bytes from 1, with K, M or G for powers of 1024";
    let (digits, shift) = match value.as_bytes().last() {
        Some(b'K' | b'k') => (&value[..value.len() - 1], 10),
        Some(b'M' | b'm') => (&value[..value.len() - 1], 20),
        Some(b'G' | b'g') => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| bad_value(name, value, expected))
}

fn read_key(path: &str) -> Result<JobKey> {
    let failed = |error| Error::system(format_args!("read HCOMM_JOB_KEY_FILE={path}"), error);
    // Mode and contents of one open file: a name could be swapped in between.
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "HCOMM_JOB_KEY_FILE={path} has mode {mode:03o}: others than its owner may use it"
            ),
        )
        .hint(format!("run `chmod 600 {path}`")));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("HCOMM_JOB_KEY_FILE={path} is empty"),
        )
        .hint("put the job's secret text into it"));
    }
    Ok(JobKey::from_text(text))
}

/// Edits (insert, remove, replace) that lead from one text to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<Settings> {
        Settings::from_vars(
            vars.iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned())),
        )
    }

    #[test]
    fn every_variable_of_the_table_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret\n").unwrap();
        let path = file.path().to_str().unwrap();
        for variable in VARIABLES {
            let value = match variable.name {
                "HCOMM_JOB_KEY_FILE" => path,
                "HCOMM_ROOT" => "a:1",
                "HCOMM_DETERMINISTIC" => "1",
                "HCOMM_WAIT" => "sleep",
                _ => "7",
            };
            let settings = from(&[(variable.name, value)]).unwrap();
            assert_ne!(settings, Settings::default(), "{}", variable.name);
        }
        assert!(VARIABLES.is_sorted_by_key(|variable| variable.name));
    }

    #[test]
    fn values_are_parsed_with_their_units() {
        let settings = from(&[
            ("HCOMM_CONNECT_TIMEOUT", "0"),
            ("HCOMM_EXEC_TIMEOUT", "1.5"),
            ("HCOMM_BUFFER_BYTES", "3M"),
            ("HCOMM_ROOT", "[::1]:9"),
            ("PATH", "whatever"),
        ])
        .unwrap();
        assert_eq!(settings.connect_timeout(), Duration::ZERO);
        assert_eq!(settings.exec_timeout(), Duration::from_millis(1500));
        assert_eq!(settings.buffer_bytes(), 3 << 20);
        assert_eq!(settings.root().unwrap().to_string(), "[::1]:9");
    }

    #[test]
    fn bad_values_name_variable_value_and_expectation() {
        for (name, value) in [
            ("HCOMM_CONNECT_TIMEOUT", "-1"),
            ("HCOMM_CONNECT_TIMEOUT", "NaN"),
            ("HCOMM_CONNECT_TIMEOUT", "1e99"),
            ("HCOMM_DETERMINISTIC", "yes"),
            ("HCOMM_WAIT", "block"),
            ("HCOMM_EXEC_TIMEOUT", "ten"),
            ("HCOMM_BUFFER_BYTES", "0"),
            ("HCOMM_BUFFER_BYTES", "16T"),
            ("HCOMM_BUFFER_BYTES", "é"),
            ("HCOMM_BUFFER_BYTES", "99999999999G"),
            ("HCOMM_ROOT", "nohost"),
            ("HCOMM_JOB_KEY", ""),
        ] {
            let error = from(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(
                error.detail().contains(&format!("{name}={value} is not")),
                "{error}"
            );
            assert!(error.next_step().unwrap().contains(name), "{error}");
        }
    }

    #[test]
    fn an_unknown_variable_is_an_error_that_names_the_closest() {
        let error = from(&[("HCOMM_CONECT_TIMEOUT", "1")]).unwrap_err();
        assert!(error.detail().contains("HCOMM_CONECT_TIMEOUT"));
        assert!(error.next_step().unwrap().contains("HCOMM_CONNECT_TIMEOUT"));
    }

    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, "secret\n").unwrap();
        let key = from(&[("HCOMM_JOB_KEY_FILE", path)]).unwrap();
        assert_eq!(key.job_key(), Some(&JobKey::from_text("secret")));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = from(&[("HCOMM_JOB_KEY_FILE", path)]).unwrap_err();
        assert!(error.detail().contains("640"), "{error}");
        assert!(from(&[("HCOMM_JOB_KEY_FILE", "/no/such/file")]).is_err());
        let both = from(&[("HCOMM_JOB_KEY", "a"), ("HCOMM_JOB_KEY_FILE", path)]);
        assert!(both.unwrap_err().detail().contains("both"));
    }

    #[test]
    fn two_root_addresses_that_differ_are_reported() {
        let settings = from(&[("HCOMM_ROOT", "a:1")]).unwrap();
        assert!(settings.clone().with_root("a:1".parse().unwrap()).is_ok());
        let error = settings.with_root("b:2".parse().unwrap()).unwrap_err();
        assert!(
            error
                .detail()
                .contains("b:2 by argument and a:1 by HCOMM_ROOT")
        );
    }
}
