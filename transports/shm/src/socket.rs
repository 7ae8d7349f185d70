//! Unix sockets: addresses chosen by the kernel, frames of one length, descriptors beside them.
//! Nothing here blocks.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, getsockname, listen, recvmsg, sendmsg, socket_with,
};

use crate::wire::{FRAME_BYTES, Frame};

/// Most descriptors beside one frame.
const MAX_FDS: usize = 3;
/// Connections that may wait in the kernel.
const BACKLOG: i32 = 128;

/// A listener and its abstract address.
pub(crate) fn open_listener() -> Result<(OwnedFd, Vec<u8>), Errno> {
    let listener = stream()?;
    bind(&listener, &SocketAddrUnix::new_unnamed())?;
    listen(&listener, BACKLOG)?;
    let address = SocketAddrUnix::try_from(getsockname(&listener)?)?;
    let name = address.abstract_name().ok_or(Errno::INVAL)?.to_vec();
    Ok((listener, name))
}

/// A connection to a listener. `Errno::AGAIN` while its queue is full.
pub(crate) fn open_connection(address: &[u8]) -> Result<OwnedFd, Errno> {
    let socket = stream()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(address)?)?;
    Ok(socket)
}

/// The next connection, if there is one.
pub(crate) fn take_connection(listener: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sends a frame; `false` while there is no room.
pub(crate) fn send_frame(
    socket: &OwnedFd,
    frame: &Frame,
    fds: &[BorrowedFd<'_>],
) -> Result<bool, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let bytes = frame.encode();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket, &[IoSlice::new(&bytes)], &mut beside, flags) {
        // So short a message goes whole or not at all.
        Ok(FRAME_BYTES) => Ok(true),
        Ok(_) => Err(Errno::PIPE),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether the other end is closed.
pub(crate) fn is_closed(socket: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
}

/// Puts frames together from what a socket gives.
#[derive(Debug)]
pub(crate) struct Mailbox {
    bytes: [u8; FRAME_BYTES],
    filled: usize,
    fds: Vec<OwnedFd>,
    short: bool,
}

/// What a look into a [`Mailbox`] found.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Nothing whole yet.
    Nothing,
    /// A frame, with exactly the descriptors that belong to it.
    Frame(Frame, Vec<OwnedFd>),
    /// The other end is gone.
    Closed,
    /// A frame whose descriptors this process had no room for.
    Short(Frame),
    /// What came is no frame.
    Garbage,
    /// The system failed.
    Failed(Errno),
}

impl Mailbox {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; FRAME_BYTES],
            filled: 0,
            fds: Vec::new(),
            short: false,
        }
    }

    pub(crate) fn look(&mut self, socket: &OwnedFd) -> Mail {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        // Never more than this frame's rest: the next frame's descriptors stay with it.
        let mut room = [IoSliceMut::new(&mut self.bytes[self.filled..])];
        let message = match recvmsg(socket, &mut room, &mut beside, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Mail::Nothing,
            Err(Errno::CONNRESET | Errno::PIPE) => return Mail::Closed,
            Err(errno) => return Mail::Failed(errno),
        };
        for item in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = item {
                self.fds.extend(fds);
            }
        }
        if message.bytes == 0 {
            return Mail::Closed;
        }
        self.filled += message.bytes;
        // Fewer than were sent: our table of descriptors is full, unless they were too many.
        self.short |= message.flags.contains(ReturnFlags::CTRUNC);
        if self.fds.len() > MAX_FDS {
            return Mail::Garbage;
        }
        if self.filled < FRAME_BYTES {
            return Mail::Nothing;
        }
        self.filled = 0;
        let fds = std::mem::take(&mut self.fds);
        let short = std::mem::take(&mut self.short);
        match Frame::decode(&self.bytes) {
            Some(frame) if short && fds.len() < frame.fds() => Mail::Short(frame),
            Some(frame) if !short && frame.fds() == fds.len() => Mail::Frame(frame, fds),
            _ => Mail::Garbage,
        }
    }
}

fn stream() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
}
