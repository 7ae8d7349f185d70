//! Several messages in one call.

use std::sync::Arc;

use hcomm_data::{Buffers, Exchange, MessageLink, Slice, Thread};
use hcomm_types::{DataType, Element, Error, ErrorKind, Rank, Result};

use super::queued::whole_elements;
use super::{Communicator, Request, fork, join, turn_of};
use crate::plan::Shape;
use crate::planner::Bound;

/// A message of [`Communicator::batch_send_recv`].
#[derive(Debug)]
pub struct BatchItem<'a> {
    peer: Rank,
    dtype: DataType,
    memory: Memory<'a>,
}

#[derive(Debug)]
enum Memory<'a> {
    Sent(&'a [u8]),
    Received(&'a mut [u8]),
}

impl<'a> BatchItem<'a> {
    /// Sends `data` to a rank.
    #[must_use]
    pub fn send<T: Element>(data: &'a [T], to: Rank) -> Self {
        Self {
            peer: to,
            dtype: T::DATA_TYPE,
            memory: Memory::Sent(bytemuck::cast_slice(data)),
        }
    }

    /// Receives `data`, as many elements, from a rank.
    #[must_use]
    pub fn recv<T: Element>(data: &'a mut [T], from: Rank) -> Self {
        Self {
            peer: from,
            dtype: T::DATA_TYPE,
            memory: Memory::Received(bytemuck::cast_slice_mut(data)),
        }
    }
}

/// A message of [`Communicator::batch_send_recv_on`].
#[derive(Clone, Debug)]
pub struct BatchSlice {
    peer: Rank,
    dtype: DataType,
    sends: bool,
    slice: Slice,
}

impl BatchSlice {
    /// Sends a slice to a rank.
    #[must_use]
    pub const fn send(slice: Slice, to: Rank, dtype: DataType) -> Self {
        Self {
            peer: to,
            dtype,
            sends: true,
            slice,
        }
    }

    /// Receives a slice from a rank.
    #[must_use]
    pub const fn recv(slice: Slice, from: Rank, dtype: DataType) -> Self {
        Self {
            peer: from,
            dtype,
            sends: false,
            slice,
        }
    }
}

/// What is told of a message to put all of a batch in order.
struct Header {
    peer: Rank,
    dtype: DataType,
    sends: bool,
    bytes: usize,
}

/// The messages of a batch, by their places in it.
struct Order {
    headers: Vec<Header>,
    /// To other ranks, the nearest after this one first.
    sends: Vec<usize>,
    /// From other ranks, the nearest before this one first.
    receives: Vec<usize>,
    /// From this rank to itself: what is sent, and where it goes.
    own: Vec<(usize, usize)>,
}

impl Communicator {
    /// Sends and receives several messages in one call; returns when all are done. What is sent and
    /// what is received go on beside each other, each one after the other, the nearest rank first,
    /// and messages between two ranks in the order in which they stand here. So whatever all ranks
    /// exchange comes to its end if each names it in one call, in whatever order. A message to this
    /// rank itself is received in the same batch. Others may be taken by a [`recv`](Self::recv) or
    /// come from a [`send`](Self::send), as long as these wait for nothing that stands later here;
    /// but not where the algorithm `handshake` is forced, which is not for batches.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`recv`](Self::recv); `InvalidArgument` if there is no such
    /// rank, or if what this rank sends to itself is not what it receives from itself: nothing has
    /// been sent then. `LimitReached`, which ends the communicator, if there is no thread left for
    /// what is received.
    pub fn batch_send_recv(&self, items: &mut [BatchItem<'_>]) -> Result<()> {
        self.exchange(items)
            .map_err(|error| self.tell("batch_send_recv", error))
    }

    /// [`batch_send_recv`](Self::batch_send_recv) at the end of a thread.
    ///
    /// # Errors
    /// Those of `batch_send_recv`; the thread's error if it has failed before.
    pub fn batch_send_recv_on(&self, thread: &Thread, items: &[BatchSlice]) -> Result<Request> {
        let call = "batch_send_recv_on";
        self.exchange_on(thread, items)
            .map(|()| Request::new(call, self.rank(), thread.mark()))
            .map_err(|error| self.tell(call, error))
    }

    fn exchange(&self, items: &mut [BatchItem<'_>]) -> Result<()> {
        self.membership.check_usable()?;
        let headers = items.iter().map(|item| Header {
            peer: item.peer,
            dtype: item.dtype,
            sends: matches!(item.memory, Memory::Sent(_)),
            bytes: match &item.memory {
                Memory::Sent(data) => data.len(),
                Memory::Received(data) => data.len(),
            },
        });
        let order = self.order(headers.collect())?;
        let ways = order.ways(self)?;
        for &(from, to) in &order.own {
            copy_own(items, from, to);
        }
        let mut memories: Vec<Option<&mut Memory<'_>>> = items
            .iter_mut()
            .map(|item| Some(&mut item.memory))
            .collect();
        let mut pick = |list: &[usize]| {
            let mut picked = Vec::with_capacity(list.len());
            for &index in list {
                let memory = memories[index].take();
                let way = &ways[index];
                picked.extend(memory.and_then(|memory| self.exchanged(way.as_ref()?, memory)));
            }
            picked
        };
        let (first, second) = (pick(&order.sends), pick(&order.receives));
        if first.is_empty() && second.is_empty() {
            return Ok(());
        }
        let other = &self.workers(self.main.engine(), 1)?[0];
        self.membership.used_here();
        self.follow(&self.main)?;
        if !self.main.is_idle() {
            fork(&self.main, std::slice::from_ref(other))?;
        }
        let blocking = || self.membership.blocking();
        self.main.exchange(first, other, second, None, blocking)
    }

    /// A message as the data plane takes it; `None` if there is nothing to do for it.
    fn exchanged<'w>(
        &self,
        way: &'w (Shape, Way<'_>),
        memory: &'w mut Memory<'_>,
    ) -> Option<Exchange<'w>> {
        let (shape, way) = way;
        let label = shape.dtype.into();
        Some(match (way, memory) {
            (Way::Link(link), Memory::Sent(data)) => Exchange::Send { link, data, label },
            (Way::Link(link), Memory::Received(data)) => Exchange::Recv { link, data, label },
            (Way::Plan(bound), memory) => Exchange::Run {
                program: bound.program()?,
                buffers: match memory {
                    Memory::Sent(input) => Buffers::Separate {
                        input,
                        output: &mut [],
                    },
                    Memory::Received(output) => Buffers::Separate { input: &[], output },
                },
                turn: self.turn(shape, false),
            },
        })
    }

    fn exchange_on(&self, thread: &Thread, items: &[BatchSlice]) -> Result<()> {
        self.membership.check_usable()?;
        self.check_owned(thread)?;
        let headers = items.iter().map(|item| Header {
            peer: item.peer,
            dtype: item.dtype,
            sends: item.sends,
            bytes: item.slice.bytes(),
        });
        let order = self.order(headers.collect())?;
        let ways = order.ways(self)?;
        let others = if order.receives.is_empty() {
            Vec::new()
        } else {
            turn_of(thread)?;
            self.workers(thread.engine(), 1)?
        };
        self.note_use(thread);
        self.follow(thread)?;
        fork(thread, &others)?;
        for &(from, to) in &order.own {
            thread.copy(&items[to].slice, &items[from].slice)?;
        }
        let nothing = self.buffer().sub(0..0)?;
        let put = |thread: &Thread, list: &[usize]| {
            list.iter().try_for_each(|&index| {
                let item = &items[index];
                match &ways[index] {
                    Some((shape, Way::Link(link))) if item.sends => {
                        thread.send(link, &item.slice, shape.dtype)
                    }
                    Some((shape, Way::Link(link))) => thread.recv(link, &item.slice, shape.dtype),
                    Some((shape, Way::Plan(bound))) => bound.program().map_or(Ok(()), |program| {
                        let (input, output) = if item.sends {
                            (item.slice.clone(), nothing.clone())
                        } else {
                            (nothing.clone(), item.slice.clone())
                        };
                        let turn = self.turn(shape, false);
                        thread.run(program, 0, input, output, turn, 0)
                    }),
                    None => Ok(()),
                }
            })
        };
        put(thread, &order.sends)?;
        if let Some(other) = others.first() {
            put(other, &order.receives)?;
        }
        join(thread, &others)
    }

    /// Checks the messages of a batch, and puts them in order. Whoever is the nearest comes first on
    /// both sides: of all messages that are not done, the one that goes the least far stands first
    /// at its sender and at its receiver, so it goes on.
    fn order(&self, headers: Vec<Header>) -> Result<Order> {
        let (me, ranks) = (self.rank(), self.size());
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if let Some(index) = headers.iter().position(|header| header.peer.0 >= ranks) {
            let peer = headers[index].peer;
            return refuse(format!(
                "message {index} of the batch: there is no rank {peer} among {ranks}"
            ));
        }
        let places = |sends: bool, own: bool| {
            let is_one = |header: &Header| header.sends == sends && (header.peer == me) == own;
            let all = headers.iter().enumerate();
            let found = all.filter(|(_, header)| is_one(header));
            found.map(|(index, _)| index).collect::<Vec<usize>>()
        };
        let (mut sends, mut receives) = (places(true, false), places(false, false));
        let distance = |from: Rank, to: Rank| (to.0 + ranks - from.0) % ranks;
        sends.sort_by_key(|index| distance(me, headers[*index].peer));
        receives.sort_by_key(|index| distance(headers[*index].peer, me));
        let (from, to) = (places(true, true), places(false, true));
        if from.len() != to.len() {
            return refuse(format!(
                "rank {me} sends itself {} messages and receives {} of them",
                from.len(),
                to.len()
            ));
        }
        let own: Vec<(usize, usize)> = from.into_iter().zip(to).collect();
        for &(from, to) in &own {
            let (sent, received) = (&headers[from], &headers[to]);
            if (sent.dtype, sent.bytes) != (received.dtype, received.bytes) {
                return refuse(format!(
                    "rank {me} sends itself {} bytes of {} (message {from} of the batch) and expects \
                     {} of {} (message {to})",
                    sent.bytes, sent.dtype, received.bytes, received.dtype
                ));
            }
        }
        Ok(Order {
            headers,
            sends,
            receives,
            own,
        })
    }
}

/// How a message goes.
enum Way<'c> {
    /// Over a message link.
    Link(&'c MessageLink),
    /// By a plan.
    Plan(Arc<Bound>),
}

impl Order {
    /// How each message goes; `None` for those of this rank to itself.
    fn ways<'c>(&self, comm: &'c Communicator) -> Result<Vec<Option<(Shape, Way<'c>)>>> {
        let me = comm.rank();
        let mut peers: Vec<Rank> = self.headers.iter().map(|header| header.peer).collect();
        peers.retain(|peer| *peer != me);
        peers.sort_unstable();
        peers.dedup();
        comm.membership.ensure_links(&peers)?;
        let way = |header: &Header| {
            if header.peer == me {
                return Ok(None);
            }
            let (from, to) = if header.sends {
                (me, header.peer)
            } else {
                (header.peer, me)
            };
            let count = whole_elements(header.bytes, header.dtype)?;
            let shape = comm.message("batch_send_recv", from, to, count, header.dtype)?;
            let way = match comm.messages_for(&shape)? {
                Some((link, _)) => Way::Link(link),
                None => Way::Plan(
                    comm.planner
                        .borrow_mut()
                        .program(&shape, &comm.membership)?,
                ),
            };
            Ok(Some((shape, way)))
        };
        self.headers.iter().map(way).collect()
    }
}

/// What a rank sends to itself.
fn copy_own(items: &mut [BatchItem<'_>], from: usize, to: usize) {
    let Ok([sent, received]) = items.get_disjoint_mut([from, to]) else {
        return;
    };
    if let (Memory::Sent(data), Memory::Received(target)) = (&sent.memory, &mut received.memory) {
        target.copy_from_slice(data);
    }
}
