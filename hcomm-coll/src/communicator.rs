//! Communicators: membership, and the collective operations on it.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Deref;
use std::sync::Arc;

use hcomm_ctrl::Membership;
use hcomm_data::{Buffers, Engine, MessageLink, Program, Slice, Thread, Turn};
use hcomm_types::{DataType, Element, Error, ErrorKind, Rank, ReduceOp, Result};

use crate::algorithms::{Handshake, Params};
use crate::plan::{Operation, Shape};
use crate::planner::Planner;

/// A rank's handle of a communicator.
///
/// It dereferences to [`Membership`], which has rank, size, graph, memory and channels. Blocking
/// operations return when the result is there; those named `…_on` are put at the end of a
/// [`Thread`] and return at once.
///
/// All ranks call the same collectives in the same order. Operations on one communicator follow
/// each other in call order; different communicators know nothing of each other.
///
/// `Communicator` is `Send` and not `Sync`: it may move to another OS thread, and one OS thread at
/// a time uses it.
///
/// # Errors
/// Every operation fails with `Timeout`, `PeerLost` or `Aborted` when its peers do not come, are
/// gone, or gave up; the error names them. `WouldDeadlock` says that the calling OS thread seems to
/// hold other ranks of the same `init_all`, which it would have to drive itself. After any of these
/// the communicator is of no use: every later call returns the first cause, also when the
/// operation was one on a thread. `InvalidArgument` leaves it as it was.
#[derive(Debug)]
pub struct Communicator {
    membership: Membership,
    main: Thread,
    /// Threads for the parts of programs but the first, by the engine that drives them.
    workers: RefCell<Vec<(Engine, Vec<Thread>)>>,
    planner: RefCell<Planner>,
    /// Operations that took a half.
    halves: Cell<u64>,
    /// The thread that the latest collective was put on.
    latest: RefCell<Option<Thread>>,
    /// By rank, once it was asked for: the message link, where there is one.
    messages: Box<[OnceCell<Option<MessageLink>>]>,
    /// Whether messages over message links ask and are granted before they come, as in the
    /// algorithm `handshake` of all other links.
    handshakes: Cell<bool>,
}

impl Deref for Communicator {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}

impl Communicator {
    /// Adds the collectives to a membership.
    ///
    /// # Errors
    /// Those of [`Membership::thread`].
    pub fn new(membership: Membership) -> Result<Self> {
        let main = membership.thread(1)?;
        let messages = (0..membership.size()).map(|_| OnceCell::new()).collect();
        Ok(Self {
            messages,
            handshakes: Cell::new(false),
            membership,
            main,
            workers: RefCell::new(Vec::new()),
            planner: RefCell::new(Planner::default()),
            halves: Cell::new(0),
            latest: RefCell::new(None),
        })
    }

    /// A new in-order queue for this communicator, driven by its caller, with `notifies` notifies
    /// for its user and one more, the last, with which collectives follow each other from thread to
    /// thread.
    ///
    /// # Errors
    /// `LimitReached` beyond 40 threads, or beyond 640 notifies with that one.
    pub fn thread(&self, notifies: usize) -> Result<Thread> {
        self.thread_on(Engine::Cpu, notifies)
    }

    /// [`thread`](Self::thread), driven by its caller or by a worker: an OS thread of the library
    /// that runs what is put on the thread while its user does something else.
    ///
    /// # Errors
    /// Those of `thread`; for a worker also `InvalidArgument` for a core that may not be used, and
    /// `LimitReached` if no OS thread can be had.
    pub fn thread_on(&self, engine: Engine, notifies: usize) -> Result<Thread> {
        self.membership
            .thread_on(engine, notifies.saturating_add(1))
    }

    /// Every rank gets the element-wise combination of all ranks' inputs.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths differ.
    pub fn all_reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let shape = self.shape(Operation::AllReduce, output.len(), T::DATA_TYPE, op, false);
        self.execute("all_reduce", &shape, separate(input, output))
    }

    /// [`all_reduce`](Self::all_reduce) with the result where the input was.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let shape = self.shape(Operation::AllReduce, buffer.len(), T::DATA_TYPE, op, true);
        self.execute_in_place("all_reduce", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Every rank gets all ranks' inputs, one after the other in rank order: `output` is `size`
    /// times as long as `input`.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let shape = self.shape(
            Operation::AllGather,
            input.len(),
            T::DATA_TYPE,
            ReduceOp::Sum,
            false,
        );
        self.execute("all_gather", &shape, separate(input, output))
    }

    /// [`all_gather`](Self::all_gather) with the input in its place of the output: the `rank`-th
    /// of `size` equal parts.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the buffer has no `size` equal parts.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.part_of("all_gather", buffer.len())?;
        let shape = self.shape(
            Operation::AllGather,
            count,
            T::DATA_TYPE,
            ReduceOp::Sum,
            true,
        );
        self.execute_in_place("all_gather", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Rank *i* gets the *i*-th part of the element-wise combination of all ranks' inputs: `input`
    /// is `size` times as long as `output`.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let shape = self.shape(
            Operation::ReduceScatter,
            output.len(),
            T::DATA_TYPE,
            op,
            false,
        );
        self.execute("reduce_scatter", &shape, separate(input, output))
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with the result in its place of the input: the
    /// `rank`-th of `size` equal parts. The other parts keep what they had.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the buffer has no `size` equal parts.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let count = self.part_of("reduce_scatter", buffer.len())?;
        let shape = self.shape(Operation::ReduceScatter, count, T::DATA_TYPE, op, true);
        self.execute_in_place("reduce_scatter", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Every rank's buffer becomes that of the root.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if there is no such root.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let operation = Operation::Broadcast { root };
        let shape = self.shape(operation, buffer.len(), T::DATA_TYPE, ReduceOp::Sum, true);
        self.execute_in_place("broadcast", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        let shape = self.shape(Operation::Barrier, 0, DataType::U8, ReduceOp::Sum, false);
        self.execute(
            "barrier",
            &shape,
            Buffers::Separate {
                input: &[],
                output: &mut [],
            },
        )
    }

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

    /// Runs any operation on bytes: what the typed calls above come down to. `call` is its name in
    /// errors.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if shape, communicator and buffers do not fit.
    pub fn execute(&self, call: &'static str, shape: &Shape, buffers: Buffers<'_>) -> Result<()> {
        self.run_blocking(shape, buffers)
            .map_err(|error| self.tell(call, error))
    }

    /// [`all_reduce`](Self::all_reduce) at the end of a thread. The same slice twice means: in
    /// place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn all_reduce_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<()> {
        let count = self.elements("all_reduce_on", output, dtype)?;
        let in_place = same_memory(input, output);
        let shape = self.shape(Operation::AllReduce, count, dtype, op, in_place);
        self.enqueue("all_reduce_on", thread, &shape, input, output)
    }

    /// [`all_gather`](Self::all_gather) at the end of a thread. An input that is the rank's own
    /// part of the output means: in place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn all_gather_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
    ) -> Result<()> {
        let count = self.elements("all_gather_on", input, dtype)?;
        let in_place = self.own_part(output, input);
        let shape = self.shape(Operation::AllGather, count, dtype, ReduceOp::Sum, in_place);
        self.enqueue("all_gather_on", thread, &shape, input, output)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) at the end of a thread. An output that is the
    /// rank's own part of the input means: in place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn reduce_scatter_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<()> {
        let count = self.elements("reduce_scatter_on", output, dtype)?;
        let in_place = self.own_part(input, output);
        let shape = self.shape(Operation::ReduceScatter, count, dtype, op, in_place);
        self.enqueue("reduce_scatter_on", thread, &shape, input, output)
    }

    /// [`broadcast`](Self::broadcast) at the end of a thread.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such root; the thread's error if it has failed before.
    pub fn broadcast_on(
        &self,
        thread: &Thread,
        buffer: &Slice,
        root: Rank,
        dtype: DataType,
    ) -> Result<()> {
        let count = self.elements("broadcast_on", buffer, dtype)?;
        let shape = self.shape(
            Operation::Broadcast { root },
            count,
            dtype,
            ReduceOp::Sum,
            true,
        );
        self.enqueue("broadcast_on", thread, &shape, buffer, buffer)
    }

    /// [`barrier`](Self::barrier) at the end of a thread.
    ///
    /// # Errors
    /// The thread's error if it has failed before.
    pub fn barrier_on(&self, thread: &Thread) -> Result<()> {
        let shape = self.shape(Operation::Barrier, 0, DataType::U8, ReduceOp::Sum, false);
        let nothing = self.buffer().sub(0..0)?;
        self.enqueue("barrier_on", thread, &shape, &nothing, &nothing)
    }

    /// [`send`](Self::send) at the end of a thread.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such rank; the thread's error if it has failed before.
    pub fn send_on(&self, thread: &Thread, data: &Slice, to: Rank, dtype: DataType) -> Result<()> {
        let count = self.elements("send_on", data, dtype)?;
        let shape = self.message("send_on", self.rank(), to, count, dtype)?;
        self.enqueue("send_on", thread, &shape, data, &self.buffer().sub(0..0)?)
    }

    /// [`recv`](Self::recv) at the end of a thread.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such rank; the thread's error if it has failed before.
    pub fn recv_on(
        &self,
        thread: &Thread,
        data: &Slice,
        from: Rank,
        dtype: DataType,
    ) -> Result<()> {
        let count = self.elements("recv_on", data, dtype)?;
        let shape = self.message("recv_on", from, self.rank(), count, dtype)?;
        self.enqueue("recv_on", thread, &shape, &self.buffer().sub(0..0)?, data)
    }

    /// Takes the algorithm of this name for every operation that it can plan from now on; `None`
    /// goes back to the rule. All ranks must ask for the same at the same place in their calls.
    /// Before one for messages comes or goes (`handshake`, `pair`), all messages must have been
    /// received; a [`barrier`](Self::barrier) makes sure.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is not known.
    pub fn force_algorithm(&self, name: Option<&str>) -> Result<()> {
        self.planner.borrow_mut().force(name)?;
        self.handshakes.set(name == Some(Handshake::NAME));
        Ok(())
    }

    /// Name of the algorithm that a shape gets.
    ///
    /// # Errors
    /// `InvalidArgument` if a forced one cannot plan it.
    pub fn algorithm(&self, shape: &Shape) -> Result<&'static str> {
        let params = Params {
            scratch_bytes: self.layout().half_bytes(),
            slice_bytes: u64::MAX,
        };
        let packets = self.membership.maps_all();
        Ok(self
            .planner
            .borrow()
            .choose(shape, &params, packets)?
            .name())
    }

    /// A shape for this communicator. `count` is in the operation's own counting, see [`Shape`].
    #[must_use]
    pub fn shape(
        &self,
        operation: Operation,
        count: usize,
        dtype: DataType,
        redop: ReduceOp,
        in_place: bool,
    ) -> Shape {
        Shape {
            operation,
            ranks: self.size(),
            count: count as u64,
            dtype,
            redop,
            in_place,
        }
    }

    /// Leaves the communicator, after everything put on its threads is done.
    ///
    /// # Errors
    /// What was still going on and failed.
    pub fn close(self) -> Result<()> {
        let pending = self.membership.synchronize(None);
        let closed = self.membership.close();
        pending.and(closed).map_err(|error| error.in_call("close"))
    }

    fn execute_in_place(&self, call: &'static str, shape: &Shape, buffer: &mut [u8]) -> Result<()> {
        let rank = self.rank();
        let (input_offset, output_offset) = match shape.operation {
            Operation::AllGather => (shape.part(rank).start, 0),
            Operation::ReduceScatter => (0, shape.part(rank).start),
            _ => (0, 0),
        };
        let buffers = Buffers::InPlace {
            buffer,
            input_offset: input_offset as usize,
            input_bytes: shape.input_bytes(rank) as usize,
            output_offset: output_offset as usize,
            output_bytes: shape.output_bytes(rank) as usize,
        };
        self.execute(call, shape, buffers)
    }

    fn run_blocking(&self, shape: &Shape, buffers: Buffers<'_>) -> Result<()> {
        self.check_shape(shape)?;
        self.check_lengths(shape, &buffers)?;
        if let Some((link, sends)) = self.messages_for(shape)? {
            return match (sends, buffers) {
                (true, Buffers::Separate { input, .. }) => self.send_over(link, input, shape.dtype),
                (false, Buffers::Separate { output, .. }) => {
                    self.recv_over(link, output, shape.dtype)
                }
                (_, Buffers::InPlace { .. }) => Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "a message has a buffer of its own",
                )),
            };
        }
        let Some(begun) = self.begin(shape, &self.main)? else {
            return Ok(());
        };
        let _blocking = self.membership.blocking();
        let Begun {
            workers,
            program,
            turn,
        } = &begun;
        self.main
            .run_blocking(workers, program, buffers, *turn, [0; 2], None)
    }

    fn enqueue(
        &self,
        call: &'static str,
        thread: &Thread,
        shape: &Shape,
        input: &Slice,
        output: &Slice,
    ) -> Result<()> {
        match thread.engine() {
            Engine::Cpu => self.membership.used_here(),
            _ => self.membership.used_by_worker(),
        }
        let put = || {
            self.check_shape(shape)?;
            check_bytes(shape, self.rank(), input.bytes(), output.bytes())?;
            if !self.membership.owns(thread) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "the thread belongs to another communicator",
                ));
            }
            if let Some((link, sends)) = self.messages_for(shape)? {
                self.follow(thread)?;
                if self.handshakes.get() {
                    let nothing = self.buffer().sub(0..0)?;
                    if sends {
                        thread.send(link, &nothing, shape.dtype)?;
                        thread.recv(link, &nothing, shape.dtype)?;
                    } else {
                        thread.recv(link, &nothing, shape.dtype)?;
                        thread.send(link, &nothing, shape.dtype)?;
                    }
                }
                return if sends {
                    thread.send(link, input, shape.dtype)
                } else {
                    thread.recv(link, output, shape.dtype)
                };
            }
            let Some(Begun {
                workers,
                program,
                turn,
            }) = self.begin(shape, thread)?
            else {
                return Ok(());
            };
            thread.run_team(&workers, &program, input, output, turn, [0; 2])
        };
        put().map_err(|error| self.tell(call, error))
    }

    /// The message link to a peer, if it is known that there is one.
    #[inline]
    fn known_messages(&self, peer: Rank) -> Option<&MessageLink> {
        self.messages.get(peer.index())?.get()?.as_ref()
    }

    /// The message link that an operation uses, and whether this rank sends; `None` for all but
    /// messages of this rank over links that are mapped.
    fn messages_for(&self, shape: &Shape) -> Result<Option<(&MessageLink, bool)>> {
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

    fn send_over(&self, link: &MessageLink, input: &[u8], dtype: DataType) -> Result<()> {
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

    fn recv_over(&self, link: &MessageLink, output: &mut [u8], dtype: DataType) -> Result<()> {
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

    /// What an operation needs to run on a thread, after those before it; `None` if this rank has
    /// nothing to do. From here on all ranks count it.
    fn begin(&self, shape: &Shape, thread: &Thread) -> Result<Option<Begun>> {
        let bound = self.planner.borrow_mut().program(shape, &self.membership)?;
        if bound.is_empty() {
            return Ok(None);
        }
        self.follow(thread)?;
        let parts = bound.program.threads.len();
        let workers = self.workers(thread.engine(), parts.saturating_sub(1))?;
        let turn = self.turn(shape, bound.takes_half);
        Ok(Some(Begun {
            workers,
            program: Arc::clone(&bound.program),
            turn,
        }))
    }

    /// Collectives follow each other in call order. On one thread that is so by itself. One that is
    /// put on another thread first waits there for a notify that the thread before it records when
    /// it has come that far.
    fn follow(&self, thread: &Thread) -> Result<()> {
        let mut latest = self.latest.borrow_mut();
        if let Some(other) = latest.as_ref().filter(|other| !other.is_same(thread)) {
            if let Some(cause) = other.poisoned() {
                return Err(cause);
            }
            if !other.is_idle() {
                let turn = self.turn_of(thread)?;
                other.record_thread(thread, turn)?;
                thread.wait_thread(turn)?;
            }
        }
        *latest = Some(thread.clone());
        Ok(())
    }

    /// The notify of a thread that says that its turn has come: the last one, which
    /// [`thread`](Self::thread) adds for that.
    fn turn_of(&self, thread: &Thread) -> Result<u32> {
        thread.notifies().checked_sub(1).and_then(|last| u32::try_from(last).ok()).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                "the previous operation is under way on another thread, and this one has no notify to wait for it",
            )
            .hint("make threads with `Communicator::thread`")
        })
    }

    /// The operation's number, and where its scratch memory begins in every rank's communicator
    /// buffer.
    fn turn(&self, shape: &Shape, takes_half: bool) -> Turn {
        if let Operation::SendRecv { from, .. } = shape.operation {
            return self.layout().inbox(from).into();
        }
        let before = self.halves.get();
        if takes_half {
            self.halves.set(before + 1);
        }
        Turn {
            scratch_base: self.layout().half(before),
            sequence: before + 1,
        }
    }

    /// Threads that go on as the first one does: where a worker drives it, it drives them, too.
    fn workers(&self, engine: Engine, count: usize) -> Result<Vec<Thread>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut workers = self.workers.borrow_mut();
        let at = workers
            .iter()
            .position(|(known, _)| *known == engine)
            .unwrap_or_else(|| {
                workers.push((engine, Vec::new()));
                workers.len() - 1
            });
        let workers = &mut workers[at].1;
        while workers.len() < count {
            workers.push(
                self.membership
                    .thread_on(engine, hcomm_types::MAX_NOTIFIES_PER_THREAD)?,
            );
        }
        Ok(workers[..count].to_vec())
    }

    fn check_shape(&self, shape: &Shape) -> Result<()> {
        self.membership.check_usable()?;
        shape
            .validate()
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        if shape.ranks != self.size() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a shape for {} ranks on a communicator of {}",
                    shape.ranks,
                    self.size()
                ),
            ));
        }
        Ok(())
    }

    fn check_lengths(&self, shape: &Shape, buffers: &Buffers<'_>) -> Result<()> {
        let (input, output) = match buffers {
            Buffers::Separate { input, output } => (input.len(), output.len()),
            Buffers::InPlace {
                input_bytes,
                output_bytes,
                ..
            } => (*input_bytes, *output_bytes),
        };
        check_bytes(shape, self.rank(), input, output)
    }

    fn message(
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

    fn part_of(&self, call: &'static str, elements: usize) -> Result<usize> {
        let size = self.size() as usize;
        if elements.is_multiple_of(size) {
            return Ok(elements / size);
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{elements} elements have no {size} equal parts"),
        )
        .in_call(call)
        .at_rank(self.rank()))
    }

    fn elements(&self, call: &'static str, slice: &Slice, dtype: DataType) -> Result<usize> {
        if slice.bytes().is_multiple_of(dtype.size()) {
            return Ok(slice.bytes() / dtype.size());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{} bytes are no whole number of {dtype} elements",
                slice.bytes()
            ),
        )
        .in_call(call)
        .at_rank(self.rank()))
    }

    fn own_part(&self, whole: &Slice, part: &Slice) -> bool {
        whole
            .offset()
            .checked_add(self.rank().index() * part.bytes())
            .is_some_and(|offset| whole.region().is_same(part.region()) && offset == part.offset())
    }

    /// Completes an error, and tells the peers if it concerns them. What was refused before
    /// anything began does not.
    fn tell(&self, call: &'static str, error: Error) -> Error {
        let error = error.in_call(call).at_rank(self.rank());
        let refused = matches!(
            error.kind(),
            ErrorKind::InvalidArgument | ErrorKind::OutOfBounds
        );
        if !refused || self.membership.check_usable().is_err() {
            self.membership.give_up(&error);
        }
        error
    }
}

/// An operation about to run.
struct Begun {
    /// Threads for all parts of the program but the first.
    workers: Vec<Thread>,
    program: Arc<Program>,
    turn: Turn,
}

fn separate<'a, T: Element>(input: &'a [T], output: &'a mut [T]) -> Buffers<'a> {
    Buffers::Separate {
        input: bytemuck::cast_slice(input),
        output: bytemuck::cast_slice_mut(output),
    }
}

/// Buffers are exactly as long as the shape says; where a rank has no part in an operation,
/// anything goes.
fn check_bytes(shape: &Shape, rank: Rank, input: usize, output: usize) -> Result<()> {
    for (what, have, need) in [
        ("input", input, shape.input_bytes(rank)),
        ("output", output, shape.output_bytes(rank)),
    ] {
        let takes_part = need != 0
            || matches!(
                shape.operation,
                Operation::AllReduce | Operation::AllGather | Operation::ReduceScatter
            );
        if takes_part && have as u64 != need {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{shape}: the {what} of rank {rank} has {need} bytes, {have} were given"),
            ));
        }
    }
    Ok(())
}

fn same_memory(a: &Slice, b: &Slice) -> bool {
    a.region().is_same(b.region()) && a.offset() == b.offset() && a.bytes() == b.bytes()
}
