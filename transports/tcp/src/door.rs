//! The door of a device: who connects, says who he is, and is let in or not.

use std::os::fd::OwnedFd;

use rustix::event::epoll;

use crate::channel::Verdict;
use crate::device::{DOOR, DeviceCore};
use crate::socket::{Incoming, accept, has_ended};
use crate::wire::Hello;

/// Connections that were not let in yet. Behind them the oldest have to go, and dial again.
const MAX_STRANGERS: usize = 256;
/// Connections taken in one turn.
const MAX_ACCEPTS: usize = 64;
/// Who has not said who he is after so long has nothing to say.
const PATIENCE_NS: u64 = 10_000_000_000;

/// The listener, and those who came in.
#[derive(Debug)]
pub(crate) struct Door {
    listener: OwnedFd,
    strangers: Vec<Stranger>,
}

/// A connection of somebody.
#[derive(Debug)]
struct Stranger {
    socket: OwnedFd,
    says: Incoming<{ Hello::BYTES }>,
    /// Kept until the end that it names knows whom to expect.
    hello: Option<Hello>,
    since_ns: u64,
}

impl Door {
    pub(crate) const fn new(listener: OwnedFd) -> Self {
        Self {
            listener,
            strangers: Vec::new(),
        }
    }

    pub(crate) const fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    /// Takes who knocks, listens to all, and lets in whom an end waits for.
    pub(crate) fn turn(&mut self, device: &DeviceCore) {
        for _ in 0..MAX_ACCEPTS {
            let Some(socket) = accept(&self.listener) else {
                break;
            };
            // One that cannot be watched is looked at whenever there is a turn.
            let _ = device.watch(&socket, DOOR, epoll::EventFlags::IN);
            if self.strangers.len() >= MAX_STRANGERS {
                self.strangers.remove(0);
            }
            self.strangers.push(Stranger {
                socket,
                says: Incoming::new(),
                hello: None,
                since_ns: device.host.now_ns(),
            });
        }
        let mut at = 0;
        while let Some(stranger) = self.strangers.get_mut(at) {
            match stranger.turn(device) {
                Next::Stays => at += 1,
                // Closing it also takes it out of what is watched.
                Next::Leaves => drop(self.strangers.remove(at)),
                Next::Enters(hello, channel) => {
                    let Stranger { socket, .. } = self.strangers.remove(at);
                    device.unwatch(&socket);
                    channel.let_in(socket, &hello);
                }
            }
        }
    }
}

enum Next {
    Stays,
    Leaves,
    Enters(Hello, std::sync::Arc<crate::channel::ChannelInner>),
}

impl Stranger {
    fn turn(&mut self, device: &DeviceCore) -> Next {
        if self.hello.is_none() {
            match self.says.receive(&self.socket) {
                Ok(Some(bytes)) => match Hello::decode(bytes) {
                    Some(hello) => self.hello = Some(hello),
                    None => return Next::Leaves,
                },
                Ok(None) => {
                    let age_ns = device.host.now_ns().saturating_sub(self.since_ns);
                    return if age_ns > PATIENCE_NS {
                        Next::Leaves
                    } else {
                        Next::Stays
                    };
                }
                Err(_) => return Next::Leaves,
            }
        }
        let Some(hello) = self.hello.as_ref().filter(|h| h.to.device == device.token) else {
            return Next::Leaves;
        };
        let Some(channel) = device.channel(hello.to.channel) else {
            return Next::Leaves;
        };
        match channel.judge(hello) {
            Verdict::Expected => Next::Enters(hello.clone(), channel),
            Verdict::NotYet if has_ended(&self.socket) == Ok(false) => Next::Stays,
            Verdict::NotYet | Verdict::Wrong => Next::Leaves,
        }
    }
}
