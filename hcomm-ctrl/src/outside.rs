//! What the control plane sees of the outside: network, random bytes, and how to wait.

use std::fmt;
use std::sync::Arc;

use hcomm_transport::{SystemWaiter, WaitPolicy, Waiter};
use hcomm_types::Result;

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
}

impl Outside {
    /// The real ones.
    #[must_use]
    pub fn system() -> Self {
        Self {
            network: Arc::new(TcpNetwork),
            random: Arc::new(SystemRandom),
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
