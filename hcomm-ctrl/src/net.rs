//! Sockets behind traits, none of which ever blocks; and the real ones.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::codec::plain_address;

/// Where sockets come from.
pub trait Network: Send + Sync {
    /// Listens at an address; port 0 lets the system choose.
    ///
    /// # Errors
    /// What the system says.
    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>>;

    /// Begins to connect.
    ///
    /// # Errors
    /// What the system says at once; later failures come from [`Stream::connected`].
    fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>>;

    /// The addresses of a host. Numbers are answered at once; a name asks the system's resolver,
    /// which may take its time: the one call here that can block.
    ///
    /// # Errors
    /// What the resolver says.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// A listening socket.
pub trait Listener: Send {
    /// The next connection, if one waits.
    ///
    /// # Errors
    /// What the system says, for example that descriptors have run out.
    fn accept(&mut self) -> io::Result<Option<(Box<dyn Stream>, SocketAddr)>>;

    /// Where it listens, with the port that was chosen.
    fn local_addr(&self) -> SocketAddr;

    /// The descriptor to wait on, if there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A connection.
pub trait Stream: Send {
    /// Reads what is there: `None` if nothing yet, `Some(0)` at the end.
    ///
    /// # Errors
    /// What the system says.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Writes what fits: `None` if nothing does.
    ///
    /// # Errors
    /// What the system says.
    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>>;

    /// Whether connecting has succeeded by now.
    ///
    /// # Errors
    /// That it has failed.
    fn connected(&mut self) -> io::Result<bool>;

    /// The other end.
    fn peer_addr(&self) -> SocketAddr;

    /// The descriptor to wait on, if there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// TCP of this system.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNetwork;

/// Connections that may wait to be accepted; the kernel cuts it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

impl Network for TcpNetwork {
    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let socket = socket(at)?;
        // A port whose last connections are still dying may be used again; one that somebody
        // listens at may not.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        rustix::net::bind(&socket, &at)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = TcpListener::from(socket);
        let local = listener.local_addr()?;
        Ok(Box::new(TcpListening { listener, local }))
    }

    fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let socket = socket(to)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &to) {
            // An interrupted connect goes on in the background like any other.
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Box::new(TcpConnection {
            stream: TcpStream::from(socket),
            peer: to,
        }))
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((host, port).to_socket_addrs()?.collect())
    }
}

/// Listens at all addresses of this host, at a port that the system chooses: with one socket for
/// both IP versions, where there are two.
pub(crate) fn listen_everywhere(network: &dyn Network) -> io::Result<Box<dyn Listener>> {
    let [dual, v4] = [
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
    ]
    .map(|ip| SocketAddr::new(ip, 0));
    network.listen(dual).or_else(|_| network.listen(v4))
}

/// Whether descriptors have run out, here or in the whole system.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

/// The address that accepts connections for every address of this host, in a family.
pub(crate) const fn any_address(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?)
}

struct TcpListening {
    listener: TcpListener,
    local: SocketAddr,
}

impl Listener for TcpListening {
    fn accept(&mut self) -> io::Result<Option<(Box<dyn Stream>, SocketAddr)>> {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    let peer = plain_address(peer);
                    return Ok(Some((Box::new(TcpConnection { stream, peer }), peer)));
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    // A client that left while it waited says nothing about the next one.
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.listener.as_fd())
    }
}

struct TcpConnection {
    stream: TcpStream,
    peer: SocketAddr,
}

impl Stream for TcpConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        without_blocking(|| self.stream.read(buffer))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        without_blocking(|| self.stream.write(bytes))
    }

    fn connected(&mut self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            // Dialling a port of this host that nobody listens at can meet itself, when the system
            // happens to choose that port for our end. It would keep the root from its port.
            Ok(peer) if self.stream.local_addr().is_ok_and(|local| local == peer) => {
                Err(ErrorKind::ConnectionRefused.into())
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
}

fn without_blocking(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(moved) => return Ok(Some(moved)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Ok(None),
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}

impl fmt::Debug for dyn Listener + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.local_addr())
    }
}

impl fmt::Debug for dyn Stream + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.peer_addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(found) = look() {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn tcp_moves_bytes_and_tells_the_end() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(mut listener) = TcpNetwork.listen(host.parse().unwrap()) else {
                assert_ne!(host, "127.0.0.1:0"); // a system without IPv6
                continue;
            };
            assert!(listener.accept().unwrap().is_none());
            let mut client = TcpNetwork.connect(listener.local_addr()).unwrap();
            let (mut server, _) = until(|| listener.accept().unwrap());
            until(|| client.connected().unwrap().then_some(()));
            let mut buffer = [0; 8];
            assert_eq!(server.read(&mut buffer).unwrap(), None);
            assert_eq!(client.write(b"hello").unwrap(), Some(5));
            assert_eq!(until(|| server.read(&mut buffer).unwrap()), 5);
            drop(client);
            assert_eq!(until(|| server.read(&mut buffer).unwrap()), 0);
        }
    }

    #[test]
    fn a_connection_that_meets_itself_counts_as_refused() {
        let free = TcpNetwork.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = free.local_addr();
        drop(free);
        // What the system does by chance: our end gets the port that we dial.
        let socket = socket(at).unwrap();
        rustix::net::bind(&socket, &at).unwrap();
        match rustix::net::connect(&socket, &at) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => panic!("{error}"),
        }
        let stream = TcpStream::from(socket);
        let mut connection = TcpConnection { stream, peer: at };
        let refused = until(|| match connection.connected() {
            Ok(connected) => {
                assert!(!connected);
                None
            }
            Err(error) => Some(error),
        });
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_port_with_a_listener_is_taken_and_one_without_refuses() {
        let listener = TcpNetwork.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = listener.local_addr();
        let taken = TcpNetwork.listen(at).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(listener);
        let mut client = match TcpNetwork.connect(at) {
            Ok(client) => client,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                return;
            }
        };
        let refused = until(|| match client.connected() {
            Ok(connected) => {
                assert!(!connected);
                None
            }
            Err(error) => Some(error),
        });
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
