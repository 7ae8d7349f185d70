//! Who we are and where rank 0 is, as launchers say it in the environment.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use hcomm_types::{Error, ErrorKind, Rank, Result};

use crate::cluster::Cluster;

/// Which launcher's variables were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `RANK` and `WORLD_SIZE`: torchrun, `hcomm run`.
    Torch,
    /// `OMPI_COMM_WORLD_RANK` and `OMPI_COMM_WORLD_SIZE`: Open MPI's mpirun.
    OpenMpi,
    /// `PMI_RANK` and `PMI_SIZE`: MPICH, Intel MPI and other launchers with PMI.
    Pmi,
    /// `SLURM_PROCID` and `SLURM_NTASKS`: srun.
    Slurm,
    /// `RANK_ID` and `RANK_TABLE_FILE`: whoever has written the rank table.
    RankTable,
}

/// The variables of a rank table.
const RANK_TABLE: (&str, &str) = ("RANK_ID", "RANK_TABLE_FILE");

/// Names of one launcher's variables.
struct Family {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: Option<&'static str>,
}

/// In the order in which they are tried: torchrun under srun sees both families and only its own
/// one counts processes.
const FAMILIES: [Family; 4] = [
    Family {
        launcher: Launcher::Torch,
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: Some("LOCAL_WORLD_SIZE"),
    },
    Family {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    Family {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: Some("MPI_LOCALNRANKS"),
    },
    Family {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: None,
    },
];

impl Launcher {
    /// The variables that say rank and size, the latter by a file if it is a rank table.
    #[must_use]
    pub fn variables(self) -> (&'static str, &'static str) {
        FAMILIES
            .get(self as usize)
            .map_or(RANK_TABLE, |family| (family.rank, family.size))
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = self.variables();
        write!(f, "{rank} and {size}")
    }
}

/// Who this process is, by its launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: u32,
    /// Its number on its host, if the launcher says.
    pub local_rank: Option<u32>,
    /// How many ranks are on its host, if the launcher says.
    pub local_size: Option<u32>,
    /// Whose variables said so.
    pub launcher: Launcher,
}

impl Identity {
    /// Whether the environment of this process has any variable of a launcher: then
    /// [`from_env`](Self::from_env) says who it is, or what is wrong with them.
    #[must_use]
    pub fn is_announced() -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let families = FAMILIES.iter().map(|family| (family.rank, family.size));
        families
            .chain([RANK_TABLE])
            .any(|(rank, size)| set(rank) || set(size))
    }

    /// From the environment of this process.
    ///
    /// # Errors
    /// No launcher's variables, half of them, or values that contradict each other.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// From variables that a closure knows. Variables that are set but empty count as not set.
    ///
    /// # Errors
    /// Those of [`Identity::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let var = |name: &str| var(name).filter(|value| !value.trim().is_empty());
        for family in &FAMILIES {
            match (var(family.rank), var(family.size)) {
                (None, None) => {}
                (Some(rank), Some(size)) => return family.identity(&var, &rank, &size),
                (Some(rank), None) => return Err(half(family.rank, &rank, family.size)),
                (None, Some(size)) => return Err(half(family.size, &size, family.rank)),
            }
        }
        match (var(RANK_TABLE.0), var(RANK_TABLE.1)) {
            (Some(rank), Some(path)) => {
                let rank = number(RANK_TABLE.0, &rank)?;
                return Self::in_table(&Cluster::read(&path)?, Rank(rank));
            }
            (Some(rank), None) => return Err(half(RANK_TABLE.0, &rank, RANK_TABLE.1)),
            (None, Some(path)) => return Err(half(RANK_TABLE.1, &path, RANK_TABLE.0)),
            (None, None) => {}
        }
        Err(invalid("no launcher has said which rank this process is: none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID and RANK_ID is set")
            .hint("start with `hcomm run -n N -- PROGRAM`, torchrun, mpirun or srun; or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; or RANK_ID and RANK_TABLE_FILE"))
    }

    /// A rank of a rank table.
    ///
    /// # Errors
    /// `InvalidArgument` if the table does not have it.
    pub fn in_table(table: &Cluster, rank: Rank) -> Result<Self> {
        let graph = table.graph();
        let facts = graph.rank(rank).ok_or_else(|| {
            invalid(format!(
                "rank {rank} is not in the rank table: ranks go from 0 to {}",
                graph.size() - 1
            ))
        })?;
        Ok(Self {
            rank,
            size: graph.size(),
            local_rank: Some(facts.local_rank),
            local_size: None,
            launcher: Launcher::RankTable,
        })
    }
}

impl Family {
    fn identity(
        &self,
        var: &impl Fn(&str) -> Option<String>,
        rank: &str,
        size: &str,
    ) -> Result<Identity> {
        let optional = |name: Option<&'static str>| -> Result<Option<(&'static str, u32)>> {
            let Some(name) = name else { return Ok(None) };
            var(name)
                .map(|value| Ok((name, number(name, &value)?)))
                .transpose()
        };
        let rank_number = number(self.rank, rank)?;
        let size_number = number(self.size, size)?;
        if size_number == 0 {
            return Err(invalid(format!(
                "{}=0: a job has at least one rank",
                self.size
            )));
        }
        if rank_number >= size_number {
            return Err(invalid(format!(
                "{}={rank_number} and {}={size_number}: ranks go from 0 to {}",
                self.rank,
                self.size,
                size_number - 1
            )));
        }
        let local_rank = optional(Some(self.local_rank))?;
        let local_size = optional(self.local_size)?;
        if let Some((name, local_size)) = local_size
            && (local_size == 0 || local_size > size_number)
        {
            return Err(invalid(format!(
                "{name}={local_size} and {}={size_number}: a host has from 1 to {size_number} of the ranks",
                self.size
            )));
        }
        if let (Some((rank_name, rank)), Some((size_name, size))) = (local_rank, local_size)
            && rank >= size
        {
            return Err(invalid(format!(
                "{rank_name}={rank} and {size_name}={size}: local ranks go from 0 to {}",
                size - 1
            )));
        }
        if let Some((name, local_rank)) = local_rank
            && local_rank >= size_number
        {
            return Err(invalid(format!(
                "{name}={local_rank} and {}={size_number}: local ranks are smaller than the size",
                self.size
            )));
        }
        Ok(Identity {
            rank: Rank(rank_number),
            size: size_number,
            local_rank: local_rank.map(|(_, value)| value),
            local_size: local_size.map(|(_, value)| value),
            launcher: self.launcher,
        })
    }
}

/// Where rank 0 listens during start-up: at a port, or at the first one of several that is free.
/// `Display` and `FromStr` use `host:port` or `host:first-last`, with brackets around IPv6 addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RootAddress {
    host: String,
    port: u16,
    /// As large as `port` if there is only one.
    last: u16,
}

impl RootAddress {
    pub(crate) const EXPECTED: &'static str =
        "host:port, host:first-last or [IPv6 address]:port, with ports from 1 to 65535";

    /// From its parts. The host is a name, or an IP address without brackets.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            last: port,
        }
    }

    /// At the first port from `port` to `last` that is free.
    #[must_use]
    pub fn up_to(mut self, last: u16) -> Self {
        self.last = last.max(self.port);
        self
    }

    /// Name or IP address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port, or the first one of several.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// All ports that it may be, in the order in which they are tried.
    #[must_use]
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.port..=self.last
    }

    /// The address, if the host is not a name.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// By the rule of the environment: `given` (an argument, or `HCOMM_ROOT`) if there is one;
    /// else `MASTER_ADDR` with `MASTER_PORT`, or with the port after it when torchrun's own store
    /// holds that one.
    ///
    /// # Errors
    /// There is no address, or a value is bad.
    pub fn choose(given: Option<&Self>, var: impl Fn(&str) -> Option<String>) -> Result<Self> {
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let var = |name: &str| var(name).filter(|value| !value.trim().is_empty());
        let (host, port) = match (var("MASTER_ADDR"), var("MASTER_PORT")) {
            (Some(host), Some(port)) => (host, port),
            (Some(host), None) => return Err(half("MASTER_ADDR", &host, "MASTER_PORT")),
            (None, Some(port)) => return Err(half("MASTER_PORT", &port, "MASTER_ADDR")),
            (None, None) => {
                return Err(
                    invalid("nothing says where rank 0 listens: neither HCOMM_ROOT nor MASTER_ADDR and MASTER_PORT are set")
                        .hint("set HCOMM_ROOT=host:port to a host that all ranks reach and a port that is free there"),
                );
            }
        };
        let port = port
            .trim()
            .parse::<u16>()
            .ok()
            .filter(|&port| port != 0)
            .ok_or_else(|| invalid(format!("MASTER_PORT={port} is not a port from 1 to 65535")))?;
        let agent_store = var("TORCHELASTIC_USE_AGENT_STORE")
            .is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
        let port = if agent_store || var("TORCHELASTIC_RUN_ID").is_some() {
            port.checked_add(1).ok_or_else(|| {
                invalid(
                    "MASTER_PORT=65535 is held by torchrun's store, and there is no port after it",
                )
                .hint("choose a lower MASTER_PORT, or set HCOMM_ROOT=host:port")
            })?
        } else {
            port
        };
        let host = host.trim();
        let host = host
            .strip_prefix('[')
            .and_then(|inner| inner.strip_suffix(']'))
            .unwrap_or(host);
        Ok(Self::new(host, port))
    }
}

impl fmt::Display for RootAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.parse::<Ipv6Addr>().is_ok() || self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        if self.last > self.port {
            write!(f, "-{}", self.last)?;
        }
        Ok(())
    }
}

/// A text that is no [`RootAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {}", RootAddress::EXPECTED)]
pub struct ParseRootError {
    text: String,
}

impl From<ParseRootError> for Error {
    fn from(error: ParseRootError) -> Self {
        Self::new(ErrorKind::InvalidArgument, error.to_string()).with_source(error)
    }
}

impl FromStr for RootAddress {
    type Err = ParseRootError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseRootError {
            text: text.to_owned(),
        };
        let (host, port) = text.trim().rsplit_once(':').ok_or_else(refuse)?;
        let (first, last) = port.split_once('-').unwrap_or((port, port));
        let port: u16 = first.parse().map_err(|_| refuse())?;
        let last: u16 = last.parse().map_err(|_| refuse())?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(refuse)?,
            // Without brackets it could be an address whose last part was taken for the port.
            None if host.contains(':') => return Err(refuse()),
            None => host,
        };
        if host.is_empty() || port == 0 || last < port || host.chars().any(char::is_whitespace) {
            return Err(refuse());
        }
        Ok(Self::new(host, port).up_to(last))
    }
}

fn number(name: &str, value: &str) -> Result<u32> {
    value
        .trim()
        .parse()
        .map_err(|_| invalid(format!("{name}={value} is not a whole number from 0")))
}

fn half(set: &str, value: &str, missing: &str) -> Error {
    invalid(format!("{set}={value} is set, but {missing} is not")).hint(format!(
        "set both or neither: {set} and {missing} belong together"
    ))
}

fn invalid(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars<'a>(list: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |wanted| {
            list.iter()
                .find(|(name, _)| *name == wanted)
                .map(|(_, value)| (*value).to_owned())
        }
    }

    fn identity(list: &[(&str, &str)]) -> Result<Identity> {
        Identity::from_vars(vars(list))
    }

    #[test]
    fn each_family_is_understood_and_named() {
        for (launcher, list) in [
            (
                Launcher::Torch,
                [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")],
            ),
            (
                Launcher::OpenMpi,
                [
                    ("OMPI_COMM_WORLD_RANK", "3"),
                    ("OMPI_COMM_WORLD_SIZE", "8"),
                    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                ],
            ),
            (
                Launcher::Pmi,
                [
                    ("PMI_RANK", "3"),
                    ("PMI_SIZE", "8"),
                    ("MPI_LOCALRANKID", "1"),
                ],
            ),
            (
                Launcher::Slurm,
                [
                    ("SLURM_PROCID", "3"),
                    ("SLURM_NTASKS", "8"),
                    ("SLURM_LOCALID", "1"),
                ],
            ),
        ] {
            let identity = identity(&list).unwrap();
            assert_eq!(
                (
                    identity.rank,
                    identity.size,
                    identity.local_rank,
                    identity.launcher
                ),
                (Rank(3), 8, Some(1), launcher)
            );
            assert!(launcher.to_string().starts_with(list[0].0));
        }
    }

    #[test]
    fn torchrun_under_srun_counts_as_torchrun() {
        let identity = identity(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("RANK", "9"),
            ("WORLD_SIZE", "16"),
        ])
        .unwrap();
        assert_eq!(
            (identity.rank, identity.launcher),
            (Rank(9), Launcher::Torch)
        );
    }

    #[test]
    fn contradictions_and_halves_are_errors_with_the_values() {
        for (list, words) in [
            (
                &[("RANK", "4"), ("WORLD_SIZE", "4")][..],
                "RANK=4 and WORLD_SIZE=4",
            ),
            (&[("RANK", "0"), ("WORLD_SIZE", "0")], "WORLD_SIZE=0"),
            (&[("RANK", "-1"), ("WORLD_SIZE", "4")], "RANK=-1 is not"),
            (&[("RANK", "x"), ("WORLD_SIZE", "4")], "RANK=x is not"),
            (&[("RANK", "1")], "RANK=1 is set, but WORLD_SIZE is not"),
            (
                &[("WORLD_SIZE", "1")],
                "WORLD_SIZE=1 is set, but RANK is not",
            ),
            (&[("RANK", "1"), ("WORLD_SIZE", "")], "WORLD_SIZE is not"),
            (&[("SLURM_NTASKS", "8")], "SLURM_PROCID is not"),
            (
                &[
                    ("RANK", "1"),
                    ("WORLD_SIZE", "4"),
                    ("LOCAL_RANK", "2"),
                    ("LOCAL_WORLD_SIZE", "2"),
                ],
                "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2",
            ),
            (
                &[
                    ("RANK", "1"),
                    ("WORLD_SIZE", "4"),
                    ("LOCAL_WORLD_SIZE", "5"),
                ],
                "LOCAL_WORLD_SIZE=5",
            ),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "4")],
                "LOCAL_RANK=4",
            ),
            (&[], "no launcher"),
        ] {
            let error = identity(list).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.detail().contains(words), "{error}");
        }
    }

    #[test]
    fn the_root_is_where_the_rule_says() {
        let master = [("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];
        let given: RootAddress = "other:1".parse().unwrap();
        let choose = |given, list: &[(&str, &str)]| RootAddress::choose(given, vars(list));
        assert_eq!(choose(Some(&given), &master).unwrap(), given);
        assert_eq!(choose(None, &master).unwrap().to_string(), "node0:29500");
        for torchrun in [
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RUN_ID", "7"),
        ] {
            let list = [master[0], master[1], torchrun];
            assert_eq!(choose(None, &list).unwrap().port(), 29501);
            let last = [master[0], ("MASTER_PORT", "65535"), torchrun];
            assert!(choose(None, &last).unwrap_err().detail().contains("65535"));
        }
        let own_store = [
            master[0],
            master[1],
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        ];
        assert_eq!(choose(None, &own_store).unwrap().port(), 29500);
    }

    #[test]
    fn no_address_or_a_bad_one_is_an_error_with_the_next_step() {
        let choose = |list: &[(&str, &str)]| RootAddress::choose(None, vars(list)).unwrap_err();
        assert!(choose(&[]).next_step().unwrap().contains("HCOMM_ROOT"));
        assert!(
            choose(&[("MASTER_ADDR", "a")])
                .detail()
                .contains("MASTER_PORT is not")
        );
        for port in ["0", "65536", "x"] {
            let error = choose(&[("MASTER_ADDR", "a"), ("MASTER_PORT", port)]);
            assert!(
                error.detail().contains(&format!("MASTER_PORT={port}")),
                "{error}"
            );
        }
    }

    #[test]
    fn addresses_go_both_ways_and_nonsense_does_not() {
        for text in [
            "node-1.site:29500",
            "10.0.0.1:1",
            "[::1]:65535",
            "[fe80::1%3]:7",
            "node:29500-29509",
            "[::1]:1-2",
        ] {
            assert_eq!(text.parse::<RootAddress>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "::1:5",
            "[::1:5",
            "a b:1",
            "a:5-4",
            "a:1-",
            "a:-1",
            "a:1-65536",
            "a:1-2-3",
        ] {
            assert!(text.parse::<RootAddress>().is_err(), "{text}");
        }
    }
}
