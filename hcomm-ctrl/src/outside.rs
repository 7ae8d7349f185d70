//! What the control plane sees of the outside: network, random bytes, and how to wait.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use hcomm_transport::{SystemWaiter, WaitPolicy, Waiter};
use hcomm_types::Result;

use crate::bootstrap::{Member, Part};
use crate::membership::lock;
use crate::net::{Network, TcpNetwork};

/// Source of random bytes.
pub trait Random: Send + Sync {
    /// Fills all of `buffer`.
    fn fill(&self, buffer: &mut [u8]);
}

/// Random bytes of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    /// # Panics
    /// If the operating system has no random bytes: a key made without them would protect nobody.
    fn fill(&self, buffer: &mut [u8]) {
        getrandom::fill(buffer).expect("the operating system gives random bytes");
    }
}

/// Network and random bytes. A simulation hands in its own. Cheap to clone.
#[derive(Clone)]
pub struct Outside {
    /// Where sockets come from.
    pub network: Arc<dyn Network>,
    /// Where keys and nonces come from.
    pub random: Arc<dyn Random>,
    /// What ranks of one process are told alike, they hold once.
    pub(crate) interned: Arc<Interned>,
}

/// Lists of ranks, by the digest of what was said.
#[derive(Default)]
pub(crate) struct Interned(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    parts: HashMap<[u8; 32], Weak<Part>>,
    whole: HashMap<[u8; 32], Weak<[Member]>>,
}

impl Interned {
    pub(crate) fn part(&self, digest: &[u8; 32]) -> Option<Arc<Part>> {
        lock(&self.0).parts.get(digest)?.upgrade()
    }

    pub(crate) fn keep_part(&self, digest: [u8; 32], part: &Arc<Part>) {
        let mut lists = lock(&self.0);
        lists.parts.retain(|_, part| part.strong_count() > 0);
        lists.parts.insert(digest, Arc::downgrade(part));
    }

    pub(crate) fn whole(&self, digest: [u8; 32]) -> Option<Arc<[Member]>> {
        lock(&self.0).whole.get(&digest)?.upgrade()
    }

    pub(crate) fn keep_whole(&self, digest: [u8; 32], whole: &Arc<[Member]>) {
        let mut lists = lock(&self.0);
        lists.whole.retain(|_, whole| whole.strong_count() > 0);
        lists.whole.insert(digest, Arc::downgrade(whole));
    }
}

impl Outside {
    /// The real ones.
    #[must_use]
    pub fn system() -> Self {
        Self::new(Arc::new(TcpNetwork), Arc::new(SystemRandom))
    }

    /// From its parts.
    #[must_use]
    pub fn new(network: Arc<dyn Network>, random: Arc<dyn Random>) -> Self {
        Self {
            network,
            random,
            interned: Arc::default(),
        }
    }

    pub(crate) fn nonce(&self) -> [u8; 16] {
        let mut nonce = [0; 16];
        self.random.fill(&mut nonce);
        nonce
    }

    pub(crate) fn number(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Everything outside that a membership depends on. A simulation hands in its own.
#[derive(Clone)]
pub struct Surroundings {
    /// Network and random bytes.
    pub outside: Outside,
    /// Makes the waiter, with its clock, once it is known how many ranks share the host's cores.
    pub waiter: Arc<MakeWaiter>,
}

/// Makes a waiter of a given patience.
pub type MakeWaiter = dyn Fn(WaitPolicy) -> Result<Arc<dyn Waiter>> + Send + Sync;

impl Surroundings {
    /// The real ones.
    #[must_use]
    pub fn system() -> Self {
        Self {
            outside: Outside::system(),
            waiter: Arc::new(|policy| Ok(Arc::new(SystemWaiter::new(policy)?))),
        }
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Surroundings")
    }
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outside")
    }
}
