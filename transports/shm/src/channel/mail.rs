//! Questions about regions, and answers to them, on the socket of a channel.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hcomm_transport_abi::{
    Fault, STATUS_LIMIT, STATUS_LINK_DOWN, STATUS_OK, STATUS_PEER_LOST, STATUS_STALE_KEY,
};
use rustix::io::Errno;

use super::{ChannelInner, Other, Side, gone};
use crate::device::lock;
use crate::region::RegionCore;
use crate::socket::{Mail, Mailbox, send_frame};
use crate::wire::{Frame, Loan, RegionKind, Token};

/// Questions to the peer that may be without an answer. Few enough for both sockets' buffers, so
/// that two sides that ask and answer at once never block each other.
const MAX_ASKS: usize = 16;
/// Frames heard in one go.
const MAX_FRAMES: usize = 64;

/// What a peer said about a region.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) bytes: u64,
    pub(crate) kind: RegionKind,
    pub(crate) memory: Option<OwnedFd>,
    pub(crate) loan: Option<Loan>,
}

/// Questions and answers on the socket.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) mailbox: Mailbox,
    next_request: u64,
    /// Asked, no answer yet.
    asked: Vec<u64>,
    /// Of those: nobody waits any more.
    abandoned: Vec<u64>,
    answers: Vec<(u64, Answer)>,
    /// An answer of ours that did not fit into the socket. No question is taken before it is out.
    unsent: Option<(Frame, Option<Arc<RegionCore>>)>,
}

impl ChannelInner {
    /// Asks the owner of a region for it; `request` is what to wait for. `None` while there is no
    /// answer.
    pub(crate) fn ask(
        &self,
        number: u64,
        key: &Token,
        request: &mut Option<u64>,
    ) -> Result<Option<Answer>, Fault> {
        let link = self.usable().map_err(gone)?;
        let Side::Other(other) = &link.side else {
            return Err(Fault::invalid("nothing to ask inside one process"));
        };
        let mut control = lock(&self.control);
        let id = match *request {
            Some(id) => id,
            None if control.asked.len() >= MAX_ASKS => return Ok(None),
            None => {
                let id = control.next_request;
                let frame = Frame::Ask {
                    request: id,
                    number,
                    key: *key,
                };
                match send_frame(&other.socket, &frame, &[]) {
                    Ok(true) => {}
                    Ok(false) => return Ok(None),
                    Err(errno) => {
                        self.fail(lost(errno));
                        return Err(gone(lost(errno)));
                    }
                }
                other.mail();
                control.next_request += 1;
                control.asked.push(id);
                *request = Some(id);
                id
            }
        };
        self.listen(other, &mut control);
        let found = control.answers.iter().position(|(of, _)| *of == id);
        match found {
            Some(at) => Ok(Some(control.answers.swap_remove(at).1)),
            None => self.usable().map(|_| None).map_err(gone),
        }
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn abandon(&self, request: u64) {
        let mut control = lock(&self.control);
        control.answers.retain(|(of, _)| *of != request);
        if control.asked.contains(&request) {
            control.abandoned.push(request);
        }
    }

    /// Hears the peer's mail, if the peer says that there is some: one load otherwise.
    pub(crate) fn hear(&self, other: &Other) -> bool {
        let mail = self.own().mail().load(Ordering::Acquire);
        if mail == self.heard.load(Ordering::Relaxed) {
            return false;
        }
        let all = self.listen(other, &mut lock(&self.control));
        if all {
            self.heard.store(mail, Ordering::Relaxed);
        }
        true
    }

    /// Takes frames from the socket and answers them; whether nothing was left.
    fn listen(&self, other: &Other, control: &mut Control) -> bool {
        for _ in 0..MAX_FRAMES {
            if let Some((frame, region)) = control.unsent.take() {
                let memory = region.as_ref().and_then(|region| region.memory());
                let sent = match memory {
                    Some(memory) => send_frame(&other.socket, &frame, &[memory.as_fd()]),
                    None => send_frame(&other.socket, &frame, &[]),
                };
                match sent {
                    Ok(true) => other.mail(),
                    Ok(false) => {
                        control.unsent = Some((frame, region));
                        return false;
                    }
                    Err(errno) => {
                        self.fail(lost(errno));
                        return true;
                    }
                }
            }
            let heard = match control.mailbox.look(&other.socket) {
                Mail::Nothing => return true,
                Mail::Closed => Err(STATUS_PEER_LOST),
                Mail::Failed(errno) => Err(lost(errno)),
                Mail::Garbage => Err(STATUS_LINK_DOWN),
                Mail::Frame(frame, fds) => self.answer(frame, fds, control),
                Mail::Short(Frame::Give {
                    request,
                    bytes,
                    kind,
                    ..
                }) => control.take(
                    request,
                    Answer {
                        status: STATUS_LIMIT,
                        bytes,
                        kind,
                        memory: None,
                        loan: None,
                    },
                ),
                Mail::Short(_) => Err(STATUS_LINK_DOWN),
            };
            if let Err(status) = heard {
                self.fail(status);
                return true;
            }
        }
        false
    }

    fn answer(&self, frame: Frame, fds: Vec<OwnedFd>, control: &mut Control) -> Result<(), i32> {
        match frame {
            Frame::Ask {
                request,
                number,
                key,
            } => {
                let region = self.device.find_region(number, &key);
                let answer = Frame::Give {
                    request,
                    status: region.as_ref().map_or(STATUS_STALE_KEY, |_| STATUS_OK),
                    bytes: region.as_ref().map_or(0, |region| region.bytes()),
                    kind: region
                        .as_ref()
                        .map_or(RegionKind::User, |region| region.kind()),
                    loan: region
                        .as_ref()
                        .filter(|region| region.kind() == RegionKind::User)
                        .and_then(|region| self.lender.get()?.lend(region)),
                };
                control.unsent = Some((answer, region));
                Ok(())
            }
            Frame::Give {
                request,
                status,
                bytes,
                kind,
                loan,
            } => control.take(
                request,
                Answer {
                    status,
                    bytes,
                    kind,
                    memory: fds.into_iter().next(),
                    loan,
                },
            ),
            Frame::Hello(_) | Frame::Welcome(_) => Err(STATUS_LINK_DOWN),
        }
    }
}

impl Control {
    pub(super) fn new() -> Self {
        Self {
            mailbox: Mailbox::new(),
            next_request: 1,
            asked: Vec::new(),
            abandoned: Vec::new(),
            answers: Vec::new(),
            unsent: None,
        }
    }

    /// Notes an answer; one to a question that was not asked breaks the link.
    fn take(&mut self, request: u64, answer: Answer) -> Result<(), i32> {
        let at = self
            .asked
            .iter()
            .position(|&id| id == request)
            .ok_or(STATUS_LINK_DOWN)?;
        self.asked.swap_remove(at);
        match self.abandoned.iter().position(|&id| id == request) {
            Some(at) => drop(self.abandoned.swap_remove(at)),
            None => self.answers.push((request, answer)),
        }
        Ok(())
    }
}

/// What a failing socket says about the channel.
const fn lost(errno: Errno) -> i32 {
    match errno {
        Errno::PIPE | Errno::CONNRESET => STATUS_PEER_LOST,
        _ => STATUS_LINK_DOWN,
    }
}
