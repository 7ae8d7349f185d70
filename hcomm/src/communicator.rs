//! The front door: communicators with shared memory linked in.

use std::ops::Deref;
use std::sync::Arc;

use hcomm_ctrl::{
    Cluster, Identity, Launcher, Membership, RootInfo, RootListener, Settings, Surroundings,
};
use hcomm_transport::{LoadOptions, Transports};
use hcomm_types::{Rank, Result};

/// A rank's handle of a communicator; see [`hcomm_coll::Communicator`] for what it does.
#[derive(Debug)]
pub struct Communicator {
    inner: hcomm_coll::Communicator,
    /// For communicators made from this one.
    transports: Transports,
}

/// What a communicator is made with: settings, and the transports to choose from.
#[derive(Clone, Debug)]
pub struct Options {
    settings: Settings,
}

impl Default for Options {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Options {
    /// Options with these settings.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Options from the `HCOMM_*` variables.
    ///
    /// # Errors
    /// `InvalidArgument` for a variable that is unknown or has a bad value.
    pub fn from_env() -> Result<Self> {
        Settings::from_env().map(Self::new)
    }

    /// Only these transports, or all but these, in the form of `HCOMM_TRANSPORTS`.
    #[must_use]
    pub fn transports(mut self, list: &str) -> Self {
        self.settings = self.settings.with_transports(list);
        self
    }

    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl Deref for Communicator {
    type Target = hcomm_coll::Communicator;

    fn deref(&self) -> &hcomm_coll::Communicator {
        &self.inner
    }
}

impl Communicator {
    /// Joins the communicator of all ranks that a launcher has started: `hcomm run`, torchrun,
    /// mpirun or srun.
    ///
    /// # Errors
    /// `InvalidArgument` if no launcher's variables are set or they contradict each other;
    /// `Timeout`, `Mismatch`, `Refused` or `PeerLost` if the ranks do not find together: on all of
    /// them, with the ranks and values that are to blame.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(&Options::from_env()?)
    }

    /// [`from_env`](Self::from_env) with options instead of the `HCOMM_*` variables.
    ///
    /// # Errors
    /// As `from_env`.
    pub fn from_env_with(options: &Options) -> Result<Self> {
        let identity = Identity::from_env()?;
        if identity.launcher == Launcher::RankTable
            && let Ok(path) = std::env::var("RANK_TABLE_FILE")
        {
            return Self::from_rank_table(&path, identity.rank, options);
        }
        Self::launched_with(&identity, &options.settings, load_transports(options)?)
    }

    /// Joins the communicator of all ranks of a rank table (1.0, 1.2, 2.0; see [`hcomm_topo::load`])
    /// as one of them. Rank 0 listens at the address of `HCOMM_ROOT`, or at that of the table: its
    /// server's `host_ip` and `host_port`, or its `control_plane`; port 60000 if it gives none. What
    /// the table says of wires serves the choice of algorithms, unless there is a file of
    /// `HCOMM_TOPOLOGY`.
    ///
    /// `RANK_TABLE_FILE` and `RANK_ID` do the same for [`from_env`](Self::from_env).
    ///
    /// # Errors
    /// `InvalidArgument` with line, field and value if the file is no rank table, does not have the
    /// rank, or does not say where rank 0 is; else as [`from_env`](Self::from_env). Ranks with
    /// different tables find out at start-up (`Mismatch`).
    pub fn from_rank_table(path: &str, rank: Rank, options: &Options) -> Result<Self> {
        let table = Arc::new(Cluster::read(path)?);
        let identity = Identity::in_table(&table, rank)?;
        let mut settings = options.settings.clone();
        if settings.root().is_none() {
            settings = settings.with_root(table.root_address()?)?;
        }
        let cluster = settings.cluster()?.unwrap_or(table);
        let settings = settings.with_cluster(Some(cluster));
        Self::launched_with(&identity, &settings, load_transports(options)?)
    }

    /// Joins a communicator whose root info rank 0 has made with [`RootListener::bind`] and handed
    /// to the others by other means. Rank 0 uses [`from_root_listener`](Self::from_root_listener).
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_root(info: &RootInfo, rank: Rank, size: u32, options: &Options) -> Result<Self> {
        let transports = load_transports(options)?;
        Self::join_with(info, rank, size, &options.settings, transports)
    }

    /// Joins as rank 0, with the listener behind a root info.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_root_listener(
        listener: RootListener,
        size: u32,
        options: &Options,
    ) -> Result<Self> {
        let transports = load_transports(options)?;
        Self::serve_with(listener, size, &options.settings, transports)
    }

    /// Makes `size` ranks in this process. Give each an OS thread, or keep several on one and use
    /// the `…_on` calls.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn init_all(size: u32) -> Result<Vec<Self>> {
        Self::init_all_with(size, &Options::from_env()?)
    }

    /// [`init_all`](Self::init_all) with options instead of the `HCOMM_*` variables.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn init_all_with(size: u32, options: &Options) -> Result<Vec<Self>> {
        let transports = load_transports(options)?;
        Membership::init_all(
            size,
            &options.settings,
            &transports,
            &Surroundings::system(),
        )
        .map_err(|error| error.in_call("init_all"))?
        .into_iter()
        .map(|membership| Self::finish(Ok(membership), transports.clone()))
        .collect()
    }

    /// Leaves the communicator; see [`hcomm_coll::Communicator::close`].
    ///
    /// # Errors
    /// What was still going on and failed.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }

    /// A new communicator with the settings and transports of this one, as its root. It reads no
    /// tuning file: which rank 0 has one, and whether it can be read there, differs.
    pub(crate) fn serve(&self, listener: RootListener, members: &[Rank]) -> Result<Self> {
        let settings = self.settings_of(members)?;
        let size = members.len() as u32;
        Self::serve_with(listener, size, &settings, self.transports.clone())
    }

    /// The same as another rank.
    pub(crate) fn join(&self, info: &RootInfo, rank: Rank, members: &[Rank]) -> Result<Self> {
        let settings = self.settings_of(members)?;
        let size = members.len() as u32;
        Self::join_with(info, rank, size, &settings, self.transports.clone())
    }

    fn settings_of(&self, members: &[Rank]) -> Result<Settings> {
        let cluster = self.cluster().map(|cluster| cluster.part(members));
        let settings = self.settings().clone().without_tuning();
        Ok(settings.with_cluster(cluster.transpose()?))
    }

    fn launched_with(
        identity: &Identity,
        settings: &Settings,
        transports: Transports,
    ) -> Result<Self> {
        let surroundings = Surroundings::system();
        let joined = Membership::join_launched(identity, settings, &transports, &surroundings);
        Self::finish(joined, transports)
    }

    fn serve_with(
        listener: RootListener,
        size: u32,
        settings: &Settings,
        transports: Transports,
    ) -> Result<Self> {
        let surroundings = Surroundings::system();
        let joined = Membership::serve_root(listener, size, settings, &transports, &surroundings);
        Self::finish(joined, transports)
    }

    fn join_with(
        info: &RootInfo,
        rank: Rank,
        size: u32,
        settings: &Settings,
        transports: Transports,
    ) -> Result<Self> {
        let surroundings = Surroundings::system();
        let joined = Membership::join_root(info, rank, size, settings, &transports, &surroundings);
        Self::finish(joined, transports)
    }

    fn finish(membership: Result<Membership>, transports: Transports) -> Result<Self> {
        let membership = membership.map_err(|error| error.in_call("init"))?;
        Ok(Self {
            inner: hcomm_coll::Communicator::new(membership)?,
            transports,
        })
    }
}

/// Number of ranks that a launcher has started, if one has.
///
/// # Errors
/// `InvalidArgument` if its variables contradict each other.
pub fn launched() -> Result<Option<u32>> {
    if Identity::is_announced() {
        Ok(Some(Identity::from_env()?.size))
    } else {
        Ok(None)
    }
}

/// All transports of this process, as `options` ask for them; shared memory is linked in and
/// stands in where no plugin file of that name is found.
///
/// # Errors
/// `InvalidArgument` for a selection that is not understood; `Plugin` if one that was asked for by
/// name cannot be used.
pub fn load_transports(options: &Options) -> Result<Transports> {
    let settings = &options.settings;
    Transports::load(&LoadOptions::parse(
        settings.transports(),
        settings.transport_path(),
        vec![hcomm_transport_shm::transport_v1()],
        hcomm_data::reduce_kernel,
    )?)
}
