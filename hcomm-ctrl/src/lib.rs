//! Bootstrap, membership, endpoints, memory, windows, channels, and who is lost.

#![forbid(unsafe_code)]

mod bootstrap;
mod calls;
mod cluster;
mod codec;
mod cores;
mod counters;
mod dial;
mod door;
mod endpoint;
#[cfg(test)]
mod fake_network;
mod frame;
mod group;
mod health;
mod job_key;
mod joining;
mod launch;
mod layout;
mod lending;
mod link_setup;
mod machine;
mod mapped;
mod membership;
mod mesh;
mod net;
mod outside;
mod registered;
mod root_info;
mod settings;
mod tuning;
mod window;
mod wire;

pub use bootstrap::{Bootstrap, LIBRARY_VERSION, MAX_RANKS, Member, Roster, Step};
pub use calls::Call;
pub use cluster::Cluster;
pub use counters::Counters;
pub use frame::PROTOCOL_VERSION;
pub use job_key::{JobKey, SessionId};
pub use launch::{Identity, Launcher, ParseRootError, RootAddress};
pub use machine::{Machine, drive, drive_all};
pub use mesh::{LinkState, MAX_MESSAGE_BYTES, Mesh, MeshListener};
pub use net::{Listener, Network, Stream, TcpNetwork};
pub use outside::{MakeWaiter, Outside, Random, Surroundings, SystemRandom};
pub use root_info::{ParseRootInfoError, RootInfo, RootListener};
pub use settings::{DEFAULT_BUFFER_BYTES, Settings, VARIABLES, Variable};
pub use tuning::Tuning;

pub use health::Blocking;
pub use joining::{EAGER_RANKS, allowed, local_graph};
pub use layout::{Layout, MIN_BUFFER_BYTES, Notifies};
pub use link_setup::{PeerLink, RemoteMemory};
pub use membership::{Aborter, Membership};
pub use registered::Registered;
pub use window::Window;
