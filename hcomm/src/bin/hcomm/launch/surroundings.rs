//! What ranks find when they start: a port for their root, a key, descriptors.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hcomm_types::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A port of the loopback interface that nobody else is given as long as the descriptor lives,
/// but that rank 0 can listen on: both set SO_REUSEADDR, and this one never listens.
///
/// # Errors
/// If there is none, or the loopback interface is down.
pub(super) fn hold_port() -> Result<(OwnedFd, SocketAddr)> {
    let failed = |error: rustix::io::Errno| {
        Error::system("holding a port of 127.0.0.1 for the ranks", error.into())
    };
    let flags = SocketFlags::CLOEXEC;
    let holder =
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).map_err(failed)?;
    rustix::net::sockopt::set_socket_reuseaddr(&holder, true).map_err(failed)?;
    bind(&holder, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).map_err(failed)?;
    let address = getsockname(&holder).map_err(failed)?;
    let address = SocketAddr::try_from(address).map_err(failed)?;
    // A port can be held though no rank could ever reach it.
    match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
        Err(error) if is_unreachable(&error) => Err(Error::system(
            format!("reaching {address}, as the ranks will"),
            error,
        )
        .hint("the loopback interface is down: `ip link set lo up`")),
        // Refused, as it should be: nobody listens yet.
        _ => Ok((holder, address)),
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable
    )
}

/// The key to give to the ranks: the user's, or one for this job alone. `None` if they are to read
/// the user's file.
///
/// # Errors
/// If the user's choice is not clear.
pub(super) fn job_key(key: Option<OsString>, file: Option<OsString>) -> Result<Option<String>> {
    let invalid = |what: &str| Error::new(ErrorKind::InvalidArgument, what);
    match (key, file) {
        (Some(_), Some(_)) => Err(invalid(
            "both HCOMM_JOB_KEY and HCOMM_JOB_KEY_FILE are set; set one of them",
        )),
        (Some(key), None) => key
            .into_string()
            .map(Some)
            .map_err(|_| invalid("HCOMM_JOB_KEY is no text in UTF-8")),
        (None, Some(_)) => Ok(None),
        (None, None) => {
            let mut bytes = [0u8; 16];
            getrandom::fill(&mut bytes).map_err(|error| {
                Error::new(ErrorKind::System, format!("no random job key: {error}"))
            })?;
            Ok(Some(
                bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            ))
        }
    }
}

/// Makes room for the pipes of so many ranks, as far as the hard limit allows. Returns the soft
/// limit that ranks are to get back: some programs cannot live with a high one.
pub(super) fn make_room(pipes: u64) -> Option<u64> {
    /// What starting a process and this program itself need.
    const OTHERS: u64 = 64;
    let limits = getrlimit(Resource::Nofile);
    let (soft, raised) = raised(&limits, pipes + OTHERS)?;
    setrlimit(Resource::Nofile, raised).ok().map(|()| soft)
}

/// Gives a rank its limit back.
pub(super) fn limit_descriptors(soft: u64) -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limits = Rlimit {
        current: Some(soft),
        maximum,
    };
    setrlimit(Resource::Nofile, limits)
        .map_err(|error| Error::system(format!("limiting descriptors to {soft}"), error.into()))
}

/// The soft limit that is too low, and what to set instead.
fn raised(limits: &Rlimit, needed: u64) -> Option<(u64, Rlimit)> {
    let soft = limits.current?;
    let target = limits.maximum.map_or(needed, |hard| needed.min(hard));
    (soft < target).then(|| {
        let raised = Rlimit {
            current: Some(target),
            maximum: limits.maximum,
        };
        (soft, raised)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn the_held_port_is_free_for_rank_0_and_taken_for_others() {
        let (_holder, address) = hold_port().unwrap();
        // The standard library sets SO_REUSEADDR, as rank 0 does.
        let root = std::net::TcpListener::bind(address).unwrap();
        assert_eq!(root.local_addr().unwrap(), address);
    }

    #[test]
    fn unreachable_is_told_from_refused() {
        let from = |number: rustix::io::Errno| io::Error::from(number);
        assert!(is_unreachable(&from(rustix::io::Errno::NETUNREACH)));
        assert!(!is_unreachable(&from(rustix::io::Errno::CONNREFUSED)));
    }

    #[test]
    fn the_users_key_wins_and_a_file_is_left_to_the_ranks() {
        let text = |text: &str| Some(OsString::from(text));
        let of = |key, file| job_key(key, file);
        assert_eq!(of(text("mine"), None).unwrap().unwrap(), "mine");
        assert_eq!(of(None, text("/some/file")).unwrap(), None);
        assert!(of(text("mine"), text("/some/file")).is_err());
        let no_text = OsString::from_vec(vec![0xff]);
        assert!(of(Some(no_text), None).is_err());
        let made = of(None, None).unwrap().unwrap();
        assert_eq!(made.len(), 32);
        assert_ne!(Some(made), of(None, None).unwrap());
    }

    #[test]
    fn the_soft_limit_is_raised_only_where_needed_and_possible() {
        let limits = |current, maximum| Rlimit { current, maximum };
        let target = |limits, needed| raised(&limits, needed).map(|(_, new)| new.current);
        assert_eq!(target(limits(Some(1024), Some(4096)), 1000), None);
        assert_eq!(
            target(limits(Some(1024), Some(4096)), 2000),
            Some(Some(2000))
        );
        assert_eq!(
            target(limits(Some(1024), Some(4096)), 9000),
            Some(Some(4096))
        );
        assert_eq!(target(limits(Some(1024), Some(1024)), 9000), None);
        assert_eq!(target(limits(Some(1024), None), 9000), Some(Some(9000)));
        assert_eq!(target(limits(None, None), 9000), None);
    }
}
