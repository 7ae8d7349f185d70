//! Messages between two ranks.

use hcomm_data::{Buffers, MessageLink, Slice};
use hcomm_types::{DataType, Element, Error, ErrorKind, Rank, ReduceOp, Result};

use super::Communicator;
use crate::plan::{Operation, Shape};

impl Communicator {
    /// Sends to one rank, which calls [`recv`](Self::recv) with as many elements of the same type.
    /// Returns when `data` may be changed: a message for which there is room in the receiver's inbox
    /// for this rank does not wait for the receiver, and there is room for one of
    /// [`inbox_bytes`](hcomm_ctrl::Layout::inbox_bytes) bytes when all before it were received.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if there is no such rank or it is this one;
    /// `Mismatch` if the receiver expected another length or type.
    pub fn send<T: Element>(&self, data: &[T], to: Rank) -> Result<()> {
        let input = bytemuck::cast_slice(data);
        if let Some(link) = self.known_messages(to) {
            return self
                .send_over(link, input, T::DATA_TYPE)
                .map_err(|error| self.tell("send", error));
        }
        let shape = self.message("send", self.rank(), to, data.len(), T::DATA_TYPE)?;
        self.execute(
            "send",
            &shape,
            Buffers::Separate {
                input,
                output: &mut [],
            },
        )
    }

    /// Receives what another rank sends with [`send`](Self::send), of the same length and type.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if there is no such rank or it is this one;
    /// `Mismatch` if the message has another length or type: `data` is as it was then.
    pub fn recv<T: Element>(&self, data: &mut [T], from: Rank) -> Result<()> {
        let count = data.len();
        let output = bytemuck::cast_slice_mut(data);
        if let Some(link) = self.known_messages(from) {
            return self
                .recv_over(link, output, T::DATA_TYPE)
                .map_err(|error| self.tell("recv", error));
        }
        let shape = self.message("recv", from, self.rank(), count, T::DATA_TYPE)?;
        self.execute("recv", &shape, Buffers::Separate { input: &[], output })
    }

    /// [`send`](Self::send) of registered memory.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn send_slice(&self, data: &Slice, to: Rank, dtype: DataType) -> Result<()> {
        let Some(link) = self.known_messages(to) else {
            self.send_on(&self.main, data, to, dtype)?;
            let result = self.main.synchronize(None);
            return result.map_err(|error| self.tell("send_slice", error));
        };
        let send = || {
            self.before_send(link, dtype)?;
            let blocking = || self.membership.blocking();
            self.main
                .send_slice_blocking(link, data, dtype, None, blocking)
        };
        send().map_err(|error| self.tell("send_slice", error))
    }

    /// [`recv`](Self::recv) into registered memory. Where the link maps that memory at the sender,
    /// a long message for which this rank waits is copied once, by the sender.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub fn recv_slice(&self, data: &Slice, from: Rank, dtype: DataType) -> Result<()> {
        let Some(link) = self.known_messages(from) else {
            self.recv_on(&self.main, data, from, dtype)?;
            let result = self.main.synchronize(None);
            return result.map_err(|error| self.tell("recv_slice", error));
        };
        let receive = || {
            self.before_recv(link, dtype, Some(data))?;
            let blocking = || self.membership.blocking();
            self.main
                .recv_slice_blocking(link, data, dtype, None, blocking)
        };
        receive().map_err(|error| self.tell("recv_slice", error))
    }

    /// The message link to a peer, if it is known that there is one.
    #[inline]
    pub(super) fn known_messages(&self, peer: Rank) -> Option<&MessageLink> {
        self.messages.get(peer.index())?.get()?.as_ref()
    }

    /// The message link that an operation uses, and whether this rank sends; `None` for all but
    /// messages of this rank over links that are mapped.
    pub(super) fn messages_for(&self, shape: &Shape) -> Result<Option<(&MessageLink, bool)>> {
        let Operation::SendRecv { from, to } = shape.operation else {
            return Ok(None);
        };
        let (peer, sends) = match self.rank() {
            rank if rank == from => (to, true),
            rank if rank == to => (from, false),
            _ => return Ok(None),
        };
        let Some(known) = self.messages.get(peer.index()) else {
            return Ok(None);
        };
        if known.get().is_none() {
            self.membership.ensure_links(&[peer])?;
            let link = self.membership.link(peer)?.messages;
            known.get_or_init(|| link);
        }
        Ok(known
            .get()
            .and_then(Option::as_ref)
            .map(|link| (link, sends)))
    }

    pub(super) fn send_over(
        &self,
        link: &MessageLink,
        input: &[u8],
        dtype: DataType,
    ) -> Result<()> {
        self.before_send(link, dtype)?;
        let blocking = || self.membership.blocking();
        self.main.send_blocking(link, input, dtype, None, blocking)
    }

    /// What comes before a message at its sender: with `handshake`, it asks and is granted.
    #[inline]
    fn before_send(&self, link: &MessageLink, dtype: DataType) -> Result<()> {
        self.before_message()?;
        if !self.handshakes.get() {
            return Ok(());
        }
        let blocking = || self.membership.blocking();
        (self.main).send_blocking(link, &[], dtype, None, blocking)?;
        (self.main).recv_blocking(link, &mut [], dtype, None, blocking)
    }

    /// The same at its receiver, which takes it into `memory` if that is registered.
    #[inline]
    fn before_recv(
        &self,
        link: &MessageLink,
        dtype: DataType,
        memory: Option<&Slice>,
    ) -> Result<()> {
        self.before_message()?;
        if !self.handshakes.get() {
            return Ok(());
        }
        let blocking = || self.membership.blocking();
        (self.main).recv_blocking(link, &mut [], dtype, None, blocking)?;
        if let Some(memory) = memory {
            link.grant(memory);
        }
        (self.main).send_blocking(link, &[], dtype, None, blocking)
    }

    pub(super) fn recv_over(
        &self,
        link: &MessageLink,
        output: &mut [u8],
        dtype: DataType,
    ) -> Result<()> {
        self.before_recv(link, dtype, None)?;
        let blocking = || self.membership.blocking();
        self.main.recv_blocking(link, output, dtype, None, blocking)
    }

    /// What comes before a message on the communicator's own thread.
    #[inline]
    fn before_message(&self) -> Result<()> {
        self.membership.used_here();
        let follows = match &*self.latest.borrow() {
            None => false,
            Some(latest) => !latest.is_same(&self.main),
        };
        if follows {
            self.follow(&self.main)?;
        }
        Ok(())
    }

    pub(super) fn message(
        &self,
        call: &'static str,
        from: Rank,
        to: Rank,
        count: usize,
        dtype: DataType,
    ) -> Result<Shape> {
        if from == to {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("rank {to} is this rank itself"),
            )
            .in_call(call)
            .at_rank(self.rank()));
        }
        Ok(self.shape(
            Operation::SendRecv { from, to },
            count,
            dtype,
            ReduceOp::Sum,
            false,
        ))
    }
}
