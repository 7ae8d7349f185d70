//! One connection of a try, and the door at which it knocks.
//!
//! A small message goes each way, then a large one: a place on the way that drops large packets
//! without a word shows as small ones that pass and large ones that do not.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use hcomm_types::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use serde::{Deserialize, Serialize};

use super::Place;

/// How long a connection, a small and a large message may take.
const CONNECT: Duration = Duration::from_secs(2);
const SMALL: Duration = Duration::from_secs(2);
const LARGE: Duration = Duration::from_secs(4);

const HELLO: [u8; 8] = *b"hcommdoc";
const LARGE_BYTES: usize = 256 << 10;

/// Guests at one moment; more are turned away.
const MAX_GUESTS: usize = 256;

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// All went through.
    Reached {
        connect_us: u64,
        /// Largest packet on the way, as far as the kernel knows.
        mtu_bytes: Option<u32>,
        /// The large message, and an answer.
        large_us: u64,
    },
    /// No connection, because of this.
    NotConnected { why: String, silent: bool },
    /// Connected, but not even a small message came back.
    NoAnswer { why: String },
    /// A small message came back, the large one never did.
    LargeLost { mtu_bytes: Option<u32>, why: String },
}

/// Connects from one address to another, and sends.
pub(super) fn try_out(from: IpAddr, to: SocketAddr) -> Outcome {
    let begun = Instant::now();
    let stream = match connect_from(from, to) {
        Ok(stream) => stream,
        Err(error) => {
            return Outcome::NotConnected {
                silent: error.kind() == ErrorKind::TimedOut,
                why: words(&error, CONNECT),
            };
        }
    };
    let connect_us = micros(begun);
    if let Err(error) = answered(&stream, &HELLO, SMALL) {
        return Outcome::NoAnswer {
            why: words(&error, SMALL),
        };
    }
    let begun = Instant::now();
    let sent = answered(&stream, &vec![0x5a; LARGE_BYTES], LARGE);
    let large_us = micros(begun);
    // Only now the kernel knows what the way has told.
    let mtu_bytes = match to {
        SocketAddr::V4(_) => sockopt::ip_mtu(&stream),
        SocketAddr::V6(_) => sockopt::ipv6_mtu(&stream),
    };
    let mtu_bytes = mtu_bytes.ok();
    match sent {
        Ok(()) => Outcome::Reached {
            connect_us,
            mtu_bytes,
            large_us,
        },
        Err(error) => Outcome::LargeLost {
            mtu_bytes,
            why: words(&error, LARGE),
        },
    }
}

fn micros(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn words(error: &io::Error, limit: Duration) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("no answer in {limit:?}"),
        _ => error.to_string(),
    }
}

/// Sends, and waits for the answer.
fn answered(mut stream: &TcpStream, data: &[u8], limit: Duration) -> io::Result<()> {
    stream.set_write_timeout(Some(limit))?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(data)?;
    let mut answer = [0; HELLO.len()];
    stream.read_exact(&mut answer)?;
    if answer == HELLO {
        Ok(())
    } else {
        Err(io::Error::new(
            ErrorKind::InvalidData,
            "somebody else listens there",
        ))
    }
}

/// A connection from one of our addresses.
fn connect_from(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::new(from, 0))?;
    match connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let until = Instant::now() + CONNECT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
    }
    sockopt::socket_error(&socket)??;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Listeners of a rank, one an address.
pub(super) struct Door {
    places: Vec<Place>,
    listeners: Vec<TcpListener>,
    guests: AtomicUsize,
}

/// Ends the service when it is dropped.
pub(super) struct Serving {
    _end: UnixStream,
}

impl Door {
    /// Listens at each place, at ports that the system chooses. Places at which nobody can listen
    /// are left out.
    pub(super) fn open(places: Vec<Place>) -> Self {
        let mut door = Self {
            places: Vec::new(),
            listeners: Vec::new(),
            guests: AtomicUsize::new(0),
        };
        for mut place in places {
            let opened = TcpListener::bind((place.ip, 0)).and_then(|listener| {
                listener.set_nonblocking(true)?;
                place.port = listener.local_addr()?.port();
                Ok(listener)
            });
            if let Ok(listener) = opened {
                door.places.push(place);
                door.listeners.push(listener);
            }
        }
        door
    }

    /// Where it can be reached.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Answers whoever knocks, until the handle is dropped; each guest has a deadline.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub(super) fn serve<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<Serving> {
        let (end, heard) =
            UnixStream::pair().map_err(|error| Error::system("making a pair of sockets", error))?;
        scope.spawn(move || {
            loop {
                let mut wanted: Vec<PollFd<'_>> = self
                    .listeners
                    .iter()
                    .map(|one| PollFd::new(one, PollFlags::IN))
                    .collect();
                wanted.push(PollFd::new(&heard, PollFlags::IN));
                match poll(&mut wanted, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(_) => return,
                }
                // The other end is closed.
                if wanted
                    .pop()
                    .is_some_and(|heard| !heard.revents().is_empty())
                {
                    return;
                }
                for listener in &self.listeners {
                    let Ok((stream, _)) = listener.accept() else {
                        continue;
                    };
                    if self.guests.fetch_add(1, Ordering::Relaxed) < MAX_GUESTS {
                        scope.spawn(move || {
                            // Who knocks finds out by itself what went wrong.
                            let _ = host(&stream);
                            self.guests.fetch_sub(1, Ordering::Relaxed);
                        });
                    } else {
                        self.guests.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        });
        Ok(Serving { _end: end })
    }
}

/// The other side of [`try_out`].
fn host(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SMALL))?;
    stream.set_write_timeout(Some(SMALL))?;
    let mut hello = [0; HELLO.len()];
    stream.read_exact(&mut hello)?;
    if hello != HELLO {
        return Ok(());
    }
    stream.write_all(&HELLO)?;
    let until = Instant::now() + LARGE;
    let mut left = LARGE_BYTES;
    let mut piece = vec![0; 64 << 10];
    while left > 0 {
        let time = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
        let at_most = left.min(piece.len());
        match stream.read(&mut piece[..at_most])? {
            0 => return Ok(()),
            bytes => left -= bytes,
        }
    }
    stream.write_all(&HELLO)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn loopback() -> Place {
        Place {
            interface: "lo".to_owned(),
            ip: HERE,
            prefix_bits: 8,
            mtu_bytes: 65536,
            port: 0,
        }
    }

    #[test]
    fn a_door_answers_and_a_closed_port_refuses() {
        let door = Door::open(vec![loopback()]);
        let to = SocketAddr::new(HERE, door.places()[0].port);
        std::thread::scope(|scope| {
            let _serving = door.serve(scope).unwrap();
            match try_out(HERE, to) {
                Outcome::Reached { mtu_bytes, .. } => assert!(mtu_bytes.unwrap() >= 1500),
                other => panic!("{other:?}"),
            }
            // A stranger is let go, and others are served after it.
            let mut stranger = TcpStream::connect(to).unwrap();
            stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            assert!(matches!(try_out(HERE, to), Outcome::Reached { .. }));
        });
        drop(door);
        match try_out(HERE, to) {
            Outcome::NotConnected { silent, why } => assert!(!silent, "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_does_not_answer_or_swallows_the_large_message_is_told_apart() {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let silent = scope.spawn(|| try_out(HERE, to));
            let _held = listener.accept().unwrap();
            assert!(matches!(silent.join().unwrap(), Outcome::NoAnswer { .. }));

            let swallowed = scope.spawn(|| try_out(HERE, to));
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; HELLO.len()];
            stream.read_exact(&mut hello).unwrap();
            stream.write_all(&HELLO).unwrap();
            assert!(matches!(
                swallowed.join().unwrap(),
                Outcome::LargeLost { .. }
            ));
        });
    }
}
