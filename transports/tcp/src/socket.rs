//! TCP sockets: how they are made, and what is asked of them.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, bind, connect,
    getsockname, ipproto, socket_with,
};

use crate::sys::widen;

/// An idle connection is asked after so long, and then so often. There is no limit for one on which
/// bytes wait: the system would end it as well when the peer lives and its window is full, as that of
/// a rank that computes for a minute. What has not come by then is the business of the deadline of
/// whoever waits.
const IDLE: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASKS: u32 = 10;
/// Receive window to begin with. It would grow by itself, but late: a message longer than it takes
/// several turns of a round trip, and those that go to and fro hardly make it grow.
const WINDOW_BYTES: i32 = 4 << 20;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A listener at this address, at a port of the system's choice if the port is 0.
pub(crate) fn listen(at: &SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let listener = new(at)?;
    // Of whoever connects, too: one that has begun with pacing goes on with it, whatever it is told.
    choose_congestion(&listener);
    widen(&listener, WINDOW_BYTES);
    bind(&listener, at)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let address = local(&listener);
    Ok((listener, address))
}

/// Who has connected, if anybody.
pub(crate) fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = accept_with(listener, flags).ok()?;
    prepare(&socket).ok()?;
    Some(socket)
}

/// A socket that has begun to connect.
pub(crate) fn dial(from: &SocketAddr, to: &SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new(to)?;
    prepare(&socket)?;
    // From the address of the device: that decides the interface.
    bind(&socket, from)?;
    match connect(&socket, to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Whether it is connected by now.
pub(crate) fn is_connected(socket: &OwnedFd, to: &SocketAddr) -> Result<bool, Errno> {
    match connect(socket, to) {
        Ok(()) | Err(Errno::ISCONN) => Ok(true),
        Err(Errno::ALREADY | Errno::INPROGRESS | Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

fn new(at: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

fn prepare(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, IDLE)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, ASKS)?;
    choose_congestion(socket);
    widen(socket, WINDOW_BYTES);
    Ok(())
}

/// Takes `cubic` where the system would take `bbr`: that one paces what it sends, which suits long
/// ways through queues of others; between hosts side by side a message of 1 MiB takes four times as
/// long. What else an operator has chosen stays. Only of use before the socket is connected.
fn choose_congestion(socket: &OwnedFd) {
    if congestion(socket).starts_with("bbr") {
        // Not every kernel has it; then the other one stays.
        let _ = sockopt::set_tcp_congestion(socket, "cubic");
    }
}

/// Name of the congestion control in use; empty if the system does not say.
pub(crate) fn congestion(socket: &OwnedFd) -> String {
    sockopt::tcp_congestion(socket).unwrap_or_default()
}

/// The own end's address.
pub(crate) fn local(socket: &OwnedFd) -> SocketAddr {
    getsockname(socket)
        .ok()
        .and_then(|address| SocketAddr::try_from(address).ok())
        .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))
}

/// Sends a few bytes on a fresh connection, whose buffer has room for them.
pub(crate) fn send_all(socket: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(socket, bytes, flags)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(Errno::NOBUFS),
    }
}

/// A text of known length that arrives bit by bit.
#[derive(Debug)]
pub(crate) struct Incoming<const N: usize> {
    bytes: [u8; N],
    got: usize,
}

impl<const N: usize> Incoming<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            got: 0,
        }
    }

    /// The text, once it is there; nothing behind it is taken off the socket.
    ///
    /// # Errors
    /// `CONNRESET` at the end of the stream, and what else the system says.
    pub(crate) fn receive(&mut self, socket: &OwnedFd) -> Result<Option<&[u8; N]>, Errno> {
        while self.got < N {
            let rest = &mut self.bytes[self.got..];
            match rustix::net::recv(socket, rest, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Errno::CONNRESET),
                Ok((bytes, _)) => self.got += bytes,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(&self.bytes))
    }
}

/// Whether the stream has ended, with nothing left to be read.
///
/// # Errors
/// What the system says.
pub(crate) fn has_ended(socket: &OwnedFd) -> Result<bool, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match rustix::net::recv(socket, &mut [0; 1][..], flags) {
        Ok((bytes, _)) => Ok(bytes == 0),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}
