//! Communicators: membership, and the collective operations on it.

mod batch;
mod blocking;
mod messages;
mod queued;
mod request;

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Deref;

use hcomm_ctrl::Membership;
use hcomm_data::{Buffers, Engine, Label, MessageLink, Program, Slice, Thread, Turn};
use hcomm_types::{DataType, Error, ErrorKind, Rank, Reduction, Result};

use crate::algorithms::Handshake;
use crate::cost::{Chooser, Machine, Site, Terms};
use crate::fingerprint;
use crate::given::{self, Given};
use crate::plan::{Buffer, Count, Operation, Plan, Shape};
use crate::planner::{Bound, Planner, Way};

pub use batch::{BatchItem, BatchSlice};
pub use request::Request;

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
    /// Collectives.
    calls: Cell<u64>,
    /// The fingerprint of the latest collective, which has those of all before in it.
    history: Cell<u64>,
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
    /// Those of [`Membership::thread`]; `InvalidArgument`, on all ranks, if the tuning file of rank 0
    /// is none.
    pub fn new(membership: Membership) -> Result<Self> {
        let main = membership.thread(1)?;
        membership.describe_calls_by(fingerprint::describe);
        let deterministic = membership.settings().deterministic();
        let chooser = Chooser::of(&membership)?;
        let messages = (0..membership.size()).map(|_| OnceCell::new()).collect();
        Ok(Self {
            messages,
            handshakes: Cell::new(false),
            membership,
            main,
            workers: RefCell::new(Vec::new()),
            planner: RefCell::new(Planner::new(chooser, deterministic)),
            halves: Cell::new(0),
            calls: Cell::new(0),
            history: Cell::new(0),
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

    /// Runs any operation on bytes: what the typed calls above come down to. `call` is its name in
    /// errors.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if shape, communicator and buffers do not fit.
    #[inline]
    pub fn execute(
        &self,
        call: &'static str,
        shape: &Shape,
        mut buffers: Buffers<'_>,
    ) -> Result<()> {
        self.run_blocking(shape, &mut buffers)
            .map_err(|error| self.tell_of(call, shape, error))
    }

    /// Takes the algorithm of this name for every operation that it can plan from now on; `None`
    /// goes back to the choice of the cost model. All ranks must ask for the same at the same place in
    /// their calls. Before one for messages comes or goes (`handshake`, `pair`), all messages must have been
    /// received; a [`barrier`](Self::barrier) makes sure.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is not known.
    pub fn force_algorithm(&self, name: Option<&str>) -> Result<()> {
        self.planner.borrow_mut().force(name)?;
        self.handshakes.set(name == Some(Handshake::NAME));
        Ok(())
    }

    /// Lets collectives of more than a few cache lines flow over so many threads, from 1 to 4, each
    /// with a part of every buffer; `None` leaves it to the cost model. It is for those of even counts, by
    /// whatever algorithm but in packets. All ranks must ask for the same at the same place in their
    /// calls.
    ///
    /// # Errors
    /// `InvalidArgument` for another number.
    pub fn force_flows(&self, flows: Option<u32>) -> Result<()> {
        self.planner.borrow_mut().force_flows(flows)
    }

    /// Takes this plan from now on for the collective that it is for, and for that one only: shape,
    /// counts and [`in_place`](Shape::in_place) must be the same. Other calls go on as before;
    /// `None` ends it. The plan is proven here. All ranks must ask for the same plan at the same
    /// place in their calls; a call in which they have different ones ends in a `Mismatch`.
    ///
    /// # Errors
    /// `InvalidArgument`, with the reason and without any other effect, for a plan that is wrong,
    /// for a message, for other ranks, not synchronising, has credits, writes to input or output of
    /// another rank (or reads there, and not all ranks can), waits for thread notifies on its first thread, or needs more threads, notifies
    /// or scratch memory than there are, or packets where not all ranks map each other's memory.
    /// Also why a channel that it needs cannot be made.
    pub fn use_plan(&self, plan: Option<&Plan>) -> Result<()> {
        let take = || {
            self.membership.check_usable()?;
            let given = plan
                .map(|plan| Given::new(plan, &self.membership))
                .transpose()?;
            if let Some(given) = &given {
                let parts = given.bound.threads();
                self.workers(Engine::Cpu, parts.saturating_sub(1))
                    .map_err(|error| given::refusal(error.detail()))?;
            }
            self.planner.borrow_mut().give(given);
            Ok(())
        };
        take().map_err(|error| self.tell("use_plan", error))
    }

    /// Name of the algorithm that a shape gets; `stream`, which is none, if it goes by messages; for a [plan](Self::use_plan) what it calls itself.
    ///
    /// # Errors
    /// `InvalidArgument` if a forced one cannot plan it.
    pub fn algorithm(&self, shape: &Shape) -> Result<String> {
        let planner = self.planner.borrow();
        if let Some(given) = planner.given(shape) {
            return Ok(given.algorithm.clone());
        }
        Ok(planner.choose(shape, &self.membership)?.name().to_owned())
    }

    /// How long the way of a shape that is taken should take by the [cost model](crate::cost), in
    /// nanoseconds; `None` if that is not known. With a [plan](Self::use_plan) it is that plan's.
    ///
    /// # Errors
    /// As [`algorithm`](Self::algorithm).
    pub fn predicted_ns(&self, shape: &Shape) -> Result<Option<f64>> {
        let planner = self.planner.borrow();
        planner.predicted_ns(shape, &self.membership)
    }

    /// Takes these costs from now on, instead of those of start-up. All ranks must take the same at
    /// the same place in their calls.
    pub fn use_costs(&self, machine: &Machine) {
        self.planner.borrow_mut().use_costs(machine.clone());
    }

    /// What holds for this communicator in the [cost model](crate::cost).
    #[must_use]
    pub fn costs(&self) -> (Machine, Site, Terms) {
        let planner = self.planner.borrow();
        let chooser = planner.chooser();
        // Who cannot find out cannot do it.
        let lends = self.membership.lends_all().unwrap_or(false);
        let terms = planner.terms_if(&self.membership, false, lends);
        (chooser.machine().clone(), chooser.site().clone(), terms)
    }

    /// A shape for this communicator. `count` is in the operation's own counting, see [`Shape`].
    #[must_use]
    pub fn shape(
        &self,
        operation: Operation,
        count: impl Into<Elements>,
        dtype: DataType,
        redop: impl Into<Reduction>,
        in_place: bool,
    ) -> Shape {
        Shape {
            operation,
            ranks: self.size(),
            count: count.into().0,
            dtype,
            redop: redop.into(),
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
        let input_offset = shape.home(rank, Buffer::Input).1;
        let output_offset = shape.home(rank, Buffer::Output).1;
        let buffers = Buffers::InPlace {
            buffer,
            input_offset: input_offset as usize,
            input_bytes: shape.input_bytes(rank) as usize,
            output_offset: output_offset as usize,
            output_bytes: shape.output_bytes(rank) as usize,
        };
        self.execute(call, shape, buffers)
    }

    fn run_blocking(&self, shape: &Shape, buffers: &mut Buffers<'_>) -> Result<()> {
        self.membership.check_usable()?;
        // Held while it runs: nobody plans meanwhile.
        let planner = self.planner.borrow();
        if let Some(bound) = planner.latest(shape) {
            self.check_bytes(shape, buffers)?;
            return self.run_bound(shape, bound, buffers);
        }
        drop(planner);
        self.run_new(shape, buffers)
    }

    /// An operation that is not like the one before.
    #[cold]
    fn run_new(&self, shape: &Shape, buffers: &mut Buffers<'_>) -> Result<()> {
        self.check_shape(shape)?;
        self.check_bytes(shape, buffers)?;
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
        let bound = self.planner.borrow_mut().program(shape, &self.membership)?;
        self.run_bound(shape, &bound, buffers)
    }

    #[inline]
    fn run_bound(&self, shape: &Shape, bound: &Bound, buffers: &mut Buffers<'_>) -> Result<()> {
        if bound.is_empty {
            return Ok(());
        }
        let fingerprint = self.begin(bound, &self.main)?;
        self.membership.used_here();
        let blocking = || self.membership.blocking();
        let program = match &bound.way {
            Way::Program(program) => program,
            Way::Streams(links) => {
                return self.stream(shape, links, fingerprint, buffers);
            }
        };
        let (turn, workers) = self.take_turn(shape, bound, program, &self.main)?;
        if !workers.is_empty() && !self.main.is_idle() {
            fork(&self.main, &workers)?;
        }
        self.main.run_blocking_with(
            &workers,
            program,
            buffers,
            turn,
            fingerprint,
            None,
            blocking,
        )
    }

    #[inline]
    fn check_bytes(&self, shape: &Shape, buffers: &Buffers<'_>) -> Result<()> {
        buffers.check()?;
        let (input, output) = buffers.lengths();
        check_bytes(shape, self.rank(), input, output)
    }

    /// Any collective at the end of a thread, also those with counts of their own: what the calls
    /// above come down to. `call` is its name in errors.
    ///
    /// # Errors
    /// `InvalidArgument` if shape, communicator and slices do not fit; the thread's error if it has
    /// failed before.
    pub fn execute_on(
        &self,
        call: &'static str,
        thread: &Thread,
        shape: &Shape,
        input: &Slice,
        output: &Slice,
    ) -> Result<Request> {
        self.note_use(thread);
        let put = || {
            self.membership.check_usable()?;
            self.check_shape(shape)?;
            check_bytes(shape, self.rank(), input.bytes(), output.bytes())?;
            self.check_owned(thread)?;
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
            let bound = self.planner.borrow_mut().program(shape, &self.membership)?;
            if bound.is_empty {
                return Ok(());
            }
            if bound.threads() > 1 {
                // Refused before anybody counts the call.
                turn_of(thread)?;
            }
            let fingerprint = self.begin(&bound, thread)?;
            match &bound.way {
                Way::Program(program) => {
                    let (turn, workers) = self.take_turn(shape, &bound, program, thread)?;
                    fork(thread, &workers)?;
                    thread.run_team(&workers, program, input, output, turn, fingerprint)?;
                    join(thread, &workers)
                }
                Way::Streams(links) => {
                    let label = label(shape, fingerprint);
                    if shape.operation.root() != Some(self.rank()) {
                        return links
                            .iter()
                            .try_for_each(|link| thread.recv(link, output, label));
                    }
                    links
                        .iter()
                        .try_for_each(|link| thread.send(link, input, label))?;
                    if shape.in_place {
                        Ok(())
                    } else {
                        thread.copy(output, input)
                    }
                }
            }
        };
        put()
            .map(|()| Request::new(call, self.rank(), thread.mark()))
            .map_err(|error| self.tell(call, error))
    }

    /// Notes which OS thread drives what is put on a thread.
    fn note_use(&self, thread: &Thread) {
        match thread.engine() {
            Engine::Cpu => self.membership.used_here(),
            _ => self.membership.used_by_worker(),
        }
    }

    fn check_owned(&self, thread: &Thread) -> Result<()> {
        if self.membership.owns(thread) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            "the thread belongs to another communicator",
        ))
    }

    /// Begins an operation on a thread, after those before it: from here on all ranks count it.
    /// Returns its fingerprint, zero if nobody looks.
    #[inline]
    fn begin(&self, bound: &Bound, thread: &Thread) -> Result<u64> {
        self.follow(thread)?;
        if !bound.takes_half && matches!(bound.way, Way::Program(_)) {
            // A message says itself what it is.
            return Ok(0);
        }
        let fingerprint = fingerprint::after(self.history.get(), bound.words[2]);
        self.history.set(fingerprint);
        let number = self.calls.get() + 1;
        self.calls.set(number);
        self.membership.note_call(number, bound.words);
        Ok(fingerprint)
    }

    /// What a program needs besides: its turn, and threads for all its parts but the first.
    #[inline]
    fn take_turn(
        &self,
        shape: &Shape,
        bound: &Bound,
        program: &Program,
        thread: &Thread,
    ) -> Result<(Turn, Vec<Thread>)> {
        let parts = program.threads.len();
        let workers = self.workers(thread.engine(), parts.saturating_sub(1))?;
        Ok((self.turn(shape, bound.takes_half), workers))
    }

    /// Sends the root's input to others, or receives it, as messages of this call.
    fn stream(
        &self,
        shape: &Shape,
        links: &[MessageLink],
        fingerprint: u64,
        buffers: &mut Buffers<'_>,
    ) -> Result<()> {
        let label = label(shape, fingerprint);
        let send = |input: &[u8]| {
            links.iter().try_for_each(|link| {
                let blocking = || self.membership.blocking();
                self.main.send_blocking(link, input, label, None, blocking)
            })
        };
        let receive = |output: &mut [u8]| {
            links.iter().try_for_each(|link| {
                let blocking = || self.membership.blocking();
                self.main.recv_blocking(link, output, label, None, blocking)
            })
        };
        let is_root = shape.operation.root() == Some(self.rank());
        match buffers {
            Buffers::Separate { input, output } if is_root => {
                send(input)?;
                output.copy_from_slice(input);
                Ok(())
            }
            Buffers::Separate { output, .. } => receive(output),
            Buffers::InPlace {
                buffer,
                input_offset,
                input_bytes,
                output_offset,
                output_bytes,
            } => {
                // Inside the buffer: checked before the call was counted.
                let output = *output_offset..*output_offset + *output_bytes;
                if !is_root {
                    return receive(&mut buffer[output]);
                }
                let input = *input_offset..*input_offset + *input_bytes;
                send(&buffer[input.clone()])?;
                if input != output {
                    buffer.copy_within(input, output.start);
                }
                Ok(())
            }
        }
    }

    /// Collectives follow each other in call order. On one thread that is so by itself. One that is
    /// put on another thread first waits there for a notify that the thread before it records when
    /// it has come that far.
    fn follow(&self, thread: &Thread) -> Result<()> {
        let mut latest = self.latest.borrow_mut();
        if let Some(other) = latest.as_ref() {
            if other.is_same(thread) {
                return Ok(());
            }
            if let Some(cause) = other.poisoned() {
                return Err(cause);
            }
            if !other.is_idle() {
                let turn = turn_of(thread)?;
                other.record_thread(thread, turn)?;
                thread.wait_thread(turn)?;
            }
        }
        *latest = Some(thread.clone());
        Ok(())
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
        let had = workers.len();
        while workers.len() < count {
            let one = self
                .membership
                .thread_on(engine, hcomm_types::MAX_NOTIFIES_PER_THREAD);
            match one {
                Ok(one) => workers.push(one),
                Err(error) => {
                    // Too few are of no use, and others may want them.
                    workers.truncate(had);
                    return Err(error);
                }
            }
        }
        Ok(workers[..count].to_vec())
    }

    fn check_shape(&self, shape: &Shape) -> Result<()> {
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

    /// [`tell`](Self::tell) of an operation that may be another one on other ranks.
    #[cold]
    fn tell_of(&self, call: &'static str, shape: &Shape, error: Error) -> Error {
        let error = self.tell(call, error);
        match shape.operation {
            Operation::SendRecv { .. } => error,
            _ => self.membership.complete_mismatch(error),
        }
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

/// Parts of a program on other threads begin when the thread of the call has come to it.
fn fork(thread: &Thread, others: &[Thread]) -> Result<()> {
    others.iter().try_for_each(|other| {
        let turn = turn_of(other)?;
        thread.record_thread(other, turn)?;
        other.wait_thread(turn)
    })
}

/// What is put on the thread from now on comes after all parts of a program.
fn join(thread: &Thread, others: &[Thread]) -> Result<()> {
    others.iter().try_for_each(|other| {
        let turn = turn_of(thread)?;
        other.record_thread(thread, turn)?;
        thread.wait_thread(turn)
    })
}

/// The notify of a thread that says that its turn has come: the last one, which
/// [`Communicator::thread`] adds for that.
fn turn_of(thread: &Thread) -> Result<u32> {
    thread.notifies().checked_sub(1).and_then(|last| u32::try_from(last).ok()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            "the operation goes over several threads, and this one has no notify to wait for the others",
        )
        .hint("make threads with `Communicator::thread`")
    })
}

/// What messages of a call say that they are.
fn label(shape: &Shape, fingerprint: u64) -> Label {
    // Never that of a message of the user.
    Label::new(shape.dtype, fingerprint as u32 | 1)
}

/// Elements as [`Communicator::shape`] takes them: a number, or a [`Count`].
#[derive(Clone, Debug)]
pub struct Elements(Count);

impl From<usize> for Elements {
    fn from(count: usize) -> Self {
        Self(Count::Even(count as u64))
    }
}

impl From<Count> for Elements {
    fn from(count: Count) -> Self {
        Self(count)
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
                Operation::AllReduce
                    | Operation::AllGather
                    | Operation::ReduceScatter
                    | Operation::AllToAll
            );
        if takes_part && have as u64 != need {
            return Err(wrong_length(shape, rank, what, need, have));
        }
    }
    Ok(())
}

#[cold]
fn wrong_length(shape: &Shape, rank: Rank, what: &str, need: u64, have: usize) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{shape}: the {what} of rank {rank} has {need} bytes, {have} were given"),
    )
}
