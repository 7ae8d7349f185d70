//! What a root hands to the other ranks so that they find it, and the listener behind it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use hcomm_topo::{Family, InterfaceFilter};
use hcomm_types::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::codec::{Reader, Writer, from_hex, to_hex};
use crate::endpoint::this_host;
use crate::job_key::{JobKey, SessionId};
use crate::net::Listener;
use crate::outside::Outside;
use crate::settings::Settings;

const PREFIX: &str = "hcomm1-";
const CHECKSUM_BYTES: usize = 4;
/// More addresses than any host would name.
const MAX_ADDRESSES: usize = 64;

/// Where a root listens, its session and the key of the job: all that another rank needs to join.
/// It serves one communicator.
///
/// `Display` and `FromStr` use one word of letters, digits and a hyphen. That word holds the key:
/// whoever reads it can join. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct RootInfo {
    addresses: Vec<SocketAddr>,
    key: JobKey,
    session: SessionId,
}

impl RootInfo {
    /// Where the root listens, best address first.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its session.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) const fn key(&self) -> &JobKey {
        &self.key
    }
}

impl fmt::Debug for RootInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootInfo")
            .field("addresses", &self.addresses)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for RootInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer::new();
        writer.raw(self.key.as_bytes()).raw(&self.session.0);
        writer.length(self.addresses.len());
        for &address in &self.addresses {
            writer.address(address);
        }
        let mut bytes = writer.into_bytes();
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        write!(f, "{PREFIX}{}", to_hex(&bytes))
    }
}

/// A text that is no [`RootInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRootInfoError {
    /// It is something else.
    #[error("a root info begins with `{PREFIX}` and goes on with hexadecimal digits")]
    NotRootInfo,
    /// It was cut or changed.
    #[error("the root info was cut or changed on its way: its checksum does not fit")]
    Checksum,
    /// It is whole, but says nonsense.
    #[error("the root info is malformed")]
    Malformed,
}

impl From<ParseRootInfoError> for Error {
    fn from(error: ParseRootInfoError) -> Self {
        Self::new(ErrorKind::InvalidArgument, error.to_string())
            .hint("hand the root info of rank 0 to the other ranks unchanged")
            .with_source(error)
    }
}

impl FromStr for RootInfo {
    type Err = ParseRootInfoError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text
            .trim()
            .strip_prefix(PREFIX)
            .and_then(from_hex)
            .ok_or(ParseRootInfoError::NotRootInfo)?;
        let (payload, sum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or(ParseRootInfoError::Checksum)?;
        if checksum(payload) != *sum {
            return Err(ParseRootInfoError::Checksum);
        }
        read(payload).ok_or(ParseRootInfoError::Malformed)
    }
}

fn read(payload: &[u8]) -> Option<RootInfo> {
    let what = "root info";
    let mut reader = Reader::new(payload);
    let key = JobKey::from_bytes(reader.array(what).ok()?);
    let session = SessionId(reader.array(what).ok()?);
    let count = reader.count(7, what).ok()?;
    if !(1..=MAX_ADDRESSES).contains(&count) {
        return None;
    }
    let addresses = (0..count)
        .map(|_| reader.address(what))
        .collect::<Result<Vec<_>, _>>()
        .ok()?;
    reader.end(what).ok()?;
    Some(RootInfo {
        addresses,
        key,
        session,
    })
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let [a, b, c, d, ..] = digest;
    [a, b, c, d]
}

/// A root that already listens: made by rank 0, which hands its [`RootInfo`] to the others and
/// then starts a bootstrap with it. It is used up by that.
pub struct RootListener {
    listener: Box<dyn Listener>,
    info: RootInfo,
}

impl RootListener {
    /// Listens at `bind` (port 0 lets the system choose) and makes key and session. Other ranks
    /// are told `reachable_at`, best first; if that is empty, the address of `bind`. The key is
    /// that of the settings, or else a fresh random one.
    ///
    /// # Errors
    /// The address cannot be listened at, or others cannot connect to it.
    pub fn bind(
        outside: &Outside,
        settings: &Settings,
        bind: SocketAddr,
        reachable_at: &[IpAddr],
    ) -> Result<Self> {
        let listener = outside
            .network
            .listen(bind)
            .map_err(|error| Error::system(format_args!("listen at {bind}"), error))?;
        let local = listener.local_addr();
        let reachable_at = if reachable_at.is_empty() {
            vec![local.ip()]
        } else {
            reachable_at.to_vec()
        };
        if reachable_at.iter().any(|ip| ip.is_unspecified()) || reachable_at.len() > MAX_ADDRESSES {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("others cannot connect to {reachable_at:?}"),
            )
            .hint(format!(
                "name from 1 to {MAX_ADDRESSES} addresses of this host that the other ranks reach"
            )));
        }
        tracing::debug!(%local, "the root listens");
        let info = RootInfo {
            addresses: reachable_at
                .into_iter()
                .map(|ip| SocketAddr::new(ip, local.port()))
                .collect(),
            key: settings
                .job_key()
                .cloned()
                .unwrap_or_else(|| JobKey::random(&*outside.random)),
            session: SessionId::random(&*outside.random),
        };
        Ok(Self { listener, info })
    }

    /// [`bind`](Self::bind) where the other ranks of a job reach this one: at the interface that the
    /// settings pick, and before that, for ranks of this host only, at the loopback address.
    ///
    /// # Errors
    /// Those of `bind`; `InvalidArgument` if the settings allow no interface.
    pub fn bind_picked(settings: &Settings, stays_here: bool) -> Result<Self> {
        let filter: InterfaceFilter = settings.socket_ifname().parse()?;
        let host = this_host()?;
        let picked = host
            .pick_interface(&filter, Family::PreferV4)
            .map(|pick| pick.address);
        let loopback = stays_here.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let mut addresses: Vec<IpAddr> = loopback.into_iter().collect();
        match picked {
            Ok(address) if !addresses.contains(&address) => addresses.push(address),
            Ok(_) => {}
            // Without a network, ranks of one host have the loopback address.
            Err(none) if addresses.is_empty() => return Err(none.into()),
            Err(_) => {}
        }
        let everywhere = if addresses.iter().any(IpAddr::is_ipv6) {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        } else {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        };
        let bind = SocketAddr::new(everywhere, 0);
        Self::bind(&Outside::system(), settings, bind, &addresses)
    }

    /// What the other ranks need.
    #[must_use]
    pub const fn info(&self) -> &RootInfo {
        &self.info
    }

    pub(crate) fn into_parts(self) -> (Box<dyn Listener>, RootInfo) {
        (self.listener, self.info)
    }
}

impl fmt::Debug for RootListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootListener")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info() -> RootInfo {
        RootInfo {
            addresses: vec![
                "10.0.0.1:4000".parse().unwrap(),
                "[2001:db8::1]:4000".parse().unwrap(),
            ],
            key: JobKey::from_text("k"),
            session: SessionId([5; 16]),
        }
    }

    #[test]
    fn it_goes_both_ways_as_one_word_and_debug_hides_the_key() {
        let info = info();
        let token = info.to_string();
        assert!(token.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'));
        assert_eq!(format!(" {token}\n").parse(), Ok(info.clone()));
        let key = to_hex(info.key.as_bytes());
        assert!(token.contains(&key) && !format!("{info:?}").contains(&key[..8]));
    }

    #[test]
    fn a_cut_token_is_told_from_something_else() {
        let token = info().to_string();
        let cut = &token[..token.len() - 2];
        assert_eq!(cut.parse::<RootInfo>(), Err(ParseRootInfoError::Checksum));
        assert_eq!(
            "node0:29500".parse::<RootInfo>(),
            Err(ParseRootInfoError::NotRootInfo)
        );
    }

    #[test]
    fn a_real_listener_tells_its_port() {
        let listener = RootListener::bind(
            &Outside::system(),
            &Settings::default(),
            "127.0.0.1:0".parse().unwrap(),
            &[],
        )
        .unwrap();
        let [address] = listener.info().addresses() else {
            panic!("one address");
        };
        assert_ne!(address.port(), 0);
    }

    proptest! {
        #[test]
        fn a_changed_token_is_refused(at in any::<prop::sample::Index>(), digit in "[0-9a-f]") {
            let token = info().to_string();
            let at = PREFIX.len() + at.index(token.len() - PREFIX.len());
            let mut changed = token.clone();
            changed.replace_range(at..=at, &digit);
            if changed != token {
                prop_assert_eq!(changed.parse::<RootInfo>(), Err(ParseRootInfoError::Checksum));
            }
        }

        #[test]
        fn random_words_never_panic(text in "(hcomm1-)?[0-9a-fA-Fé]{0,60}") {
            let _ = text.parse::<RootInfo>();
        }
    }
}
