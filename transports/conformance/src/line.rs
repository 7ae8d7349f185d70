//! How the processes of the suite talk: JSON frames with a length before each, on a socket pair.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Line {
    stream: UnixStream,
    inbox: Vec<u8>,
}

impl Line {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
        })
    }

    /// The conversation with the process that started this one: its standard input is a socket.
    pub(crate) fn of_stdin() -> io::Result<Self> {
        Self::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let len = u32::try_from(body.len()).map_err(io::Error::other)?;
        let mut frame = len.to_le_bytes().to_vec();
        frame.extend(body);
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, None)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A message, if one is here.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end is gone.
    pub(crate) fn try_receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if let Some(message) = self.take()? {
            return Ok(Some(message));
        }
        let mut part = [0; 65536];
        match self.stream.read(&mut part) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.inbox.extend_from_slice(&part[..len]);
                self.take()
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The next message; `None` if none came within `milliseconds`.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        milliseconds: u32,
    ) -> io::Result<Option<T>> {
        if let Some(message) = self.try_receive()? {
            return Ok(Some(message));
        }
        self.wait(PollFlags::IN, Some(milliseconds))?;
        self.try_receive()
    }

    fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some((head, rest)) = self.inbox.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*head) as usize;
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(body)?;
        self.inbox.drain(..4 + len);
        Ok(Some(message))
    }

    fn wait(&self, flags: PollFlags, milliseconds: Option<u32>) -> io::Result<()> {
        let timeout = milliseconds.map(|ms| Timespec {
            tv_sec: i64::from(ms / 1000),
            tv_nsec: i64::from(ms % 1000) * 1_000_000,
        });
        let mut fds = [PollFd::new(&self.stream, flags)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
