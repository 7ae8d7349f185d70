//! The ring in which memory that cannot be mapped is reached.
//!
//! The ring lies in the segment of the side that owns the memory. Its peer cuts a transfer into
//! pieces and puts each into a slot; the owner applies them in order from its `progress`: it copies
//! a write out of the slot or a read's data into it, and writes what became of the entry. The peer
//! then collects the slot (with the data of a read) and may use it again. The owner never waits
//! for the peer, so two sides that read from each other cannot block each other.
//!
//! Once an entry failed, the owner refuses all behind it, because a notify among them would
//! announce data that never came. The peer begins anew with [`FLAG_FRESH`] after it has collected
//! everything, the failure included.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

use hcomm_transport_abi::{
    CompletionV1, FLAG_NOTIFY, Host, OP_NOTIFY, OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE,
    STATUS_INVALID_ARGUMENT, STATUS_LINK_DOWN, STATUS_OK, STATUS_OUT_OF_BOUNDS, STATUS_STALE_KEY,
};

use crate::device::DeviceCore;
use crate::segment::{Entry, Half, PIECE_BYTES, SLOTS, Segment};
use crate::sys::Span;
use crate::wire::Token;
use crate::word::Word;

/// Flag of an entry: the sender knows of every failure so far.
const FLAG_FRESH: u32 = 1 << 31;

/// A ring as its two sides use it: the one of a segment, or a model's.
pub(crate) trait Ring {
    type Word: Word;
    /// Entries put in.
    fn tail(&self) -> &Self::Word;
    /// Entries taken out.
    fn head(&self) -> &Self::Word;
    fn put_entry(&self, position: u64, entry: &Entry);
    fn take_entry(&self, position: u64) -> Entry;
    /// What became of an entry.
    fn outcome(&self, position: u64) -> &Self::Word;
    /// The first `bytes` bytes of an entry's data.
    fn data(&self, position: u64, bytes: u64) -> Option<Span<'_>>;
}

impl Ring for Segment {
    type Word = AtomicU64;

    fn tail(&self) -> &AtomicU64 {
        self.tail()
    }

    fn head(&self) -> &AtomicU64 {
        self.head()
    }

    fn put_entry(&self, position: u64, entry: &Entry) {
        self.put_entry(position, entry);
    }

    fn take_entry(&self, position: u64) -> Entry {
        self.take_entry(position)
    }

    fn outcome(&self, position: u64) -> &AtomicU64 {
        self.outcome(position)
    }

    fn data(&self, position: u64, bytes: u64) -> Option<Span<'_>> {
        self.data(position, bytes)
    }
}

/// A descriptor on its way through the ring.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) op: u32,
    pub(crate) local: Span<'static>,
    pub(crate) region: u64,
    pub(crate) key: Token,
    pub(crate) offset: u64,
    pub(crate) notify: Option<(u32, [u64; 2])>,
    pub(crate) dtype: u32,
    pub(crate) redop: u32,
    pub(crate) cookie: u64,
    progress: Steps,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    begun: bool,
    issued_bytes: u64,
    outstanding: u32,
    status: i32,
}

/// The requesting half: this side's transfers into the peer's ring.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Entries put in; the peer's view of it is a copy.
    tail: u64,
    /// Entries whose outcome was taken.
    collected: u64,
    pieces: [Piece; SLOTS as usize],
    /// Accepted and not finished; the first has number `first`.
    waiting: VecDeque<Transfer>,
    first: u64,
    /// Number of the transfer that is put in next.
    issuing: u64,
    done: VecDeque<CompletionV1>,
    /// Failures among `done`.
    unreported: usize,
    /// The first of them.
    failure: i32,
    depth: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    transfer: u64,
    at: u64,
    bytes: u64,
}

/// What a call to [`Outbound::pump`] did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pumped {
    pub(crate) collected: bool,
    /// Bytes put into the ring or collected from it; the peer's bell must ring if entries were put.
    pub(crate) staged_bytes: u64,
    pub(crate) issued: bool,
}

impl Outbound {
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            tail: 0,
            collected: 0,
            pieces: [Piece::default(); SLOTS as usize],
            waiting: VecDeque::with_capacity(depth),
            first: 0,
            issuing: 0,
            done: VecDeque::with_capacity(depth),
            unreported: 0,
            failure: STATUS_OK,
            depth,
        }
    }

    /// Takes a transfer if there is room. One that notifies fails at once while an earlier failure
    /// was not polled: it would announce what never came.
    pub(crate) fn accept(&mut self, mut transfer: Transfer) -> bool {
        if self.is_full() {
            return false;
        }
        if transfer.notify.is_some()
            && let Some(status) = self.unreported_failure()
        {
            transfer.progress.status = status;
        }
        self.waiting.push_back(transfer);
        true
    }

    /// Whether no transfer can be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.depth
    }

    /// Accepted transfers that are not finished.
    pub(crate) fn unfinished(&self) -> usize {
        self.waiting.len()
    }

    /// Completions to be polled.
    pub(crate) fn completed(&self) -> usize {
        self.done.len()
    }

    /// Status of the first failure that was not polled yet.
    pub(crate) fn unreported_failure(&self) -> Option<i32> {
        (self.unreported > 0).then_some(self.failure)
    }

    /// Takes what the owner has done and puts in what fits.
    pub(crate) fn pump(&mut self, peer: &Segment, host: Host) -> Result<Pumped, i32> {
        self.pump_by(peer, |transfer, local, data| {
            fetch(transfer, local, data, host)
        })
    }

    /// The same, where `fetch` takes the data of a read.
    fn pump_by(
        &mut self,
        peer: &impl Ring,
        fetch: impl Fn(&Transfer, Span<'_>, Span<'_>) -> i32,
    ) -> Result<Pumped, i32> {
        let mut pumped = Pumped::default();
        self.collect(peer, fetch, &mut pumped)?;
        self.issue(peer, &mut pumped)?;
        Ok(pumped)
    }

    /// Ends everything with `status`: the channel failed.
    pub(crate) fn fail_all(&mut self, status: i32) {
        for transfer in &mut self.waiting {
            if transfer.progress.status == STATUS_OK {
                transfer.progress.status = status;
            }
            transfer.progress.outstanding = 0;
        }
        self.retire();
    }

    pub(crate) fn next_completion(&mut self) -> Option<CompletionV1> {
        let completion = self.done.pop_front()?;
        if completion.status != STATUS_OK {
            self.unreported = self.unreported.saturating_sub(1);
        }
        Some(completion)
    }

    fn collect(
        &mut self,
        peer: &impl Ring,
        fetch: impl Fn(&Transfer, Span<'_>, Span<'_>) -> i32,
        pumped: &mut Pumped,
    ) -> Result<(), i32> {
        let head = peer.head().load(Ordering::Acquire);
        if head.wrapping_sub(self.collected) > self.tail - self.collected {
            return Err(STATUS_LINK_DOWN);
        }
        while self.collected != head {
            let outcome = peer.outcome(self.collected).load(Ordering::Relaxed) as u32;
            let mut status = sanitized(outcome.cast_signed());
            let piece = self.pieces[(self.collected % SLOTS) as usize];
            let index = (piece.transfer - self.first) as usize;
            if let Some(transfer) = self.waiting.get_mut(index) {
                if status == STATUS_OK
                    && transfer.reads()
                    && let Some((data, local)) = peer
                        .data(self.collected, piece.bytes)
                        .zip(transfer.local.part(piece.at, piece.bytes))
                {
                    status = fetch(transfer, local, data);
                    pumped.staged_bytes += piece.bytes;
                }
                transfer.progress.outstanding -= 1;
            }
            if status != STATUS_OK {
                for behind in self.waiting.iter_mut().skip(index) {
                    if behind.progress.status == STATUS_OK {
                        behind.progress.status = status;
                    }
                }
            }
            self.collected += 1;
            pumped.collected = true;
        }
        self.retire();
        Ok(())
    }

    fn issue(&mut self, peer: &impl Ring, pumped: &mut Pumped) -> Result<(), i32> {
        while self.tail - self.collected < SLOTS {
            let index = (self.issuing - self.first) as usize;
            let Some(transfer) = self.waiting.get_mut(index) else {
                break;
            };
            if transfer.is_issued() {
                self.issuing += 1;
                continue;
            }
            let at = transfer.progress.issued_bytes;
            let bytes = PIECE_BYTES.min(transfer.bytes() - at);
            let mut entry = transfer.entry(at, bytes);
            if self.tail == self.collected {
                entry.flags |= FLAG_FRESH;
            }
            if !transfer.reads() {
                let (data, local) = peer
                    .data(self.tail, bytes)
                    .zip(transfer.local.part(at, bytes))
                    .ok_or(STATUS_LINK_DOWN)?;
                data.copy_from(local);
                pumped.staged_bytes += bytes;
            }
            peer.put_entry(self.tail, &entry);
            self.pieces[(self.tail % SLOTS) as usize] = Piece {
                transfer: self.issuing,
                at,
                bytes,
            };
            let steps = &mut transfer.progress;
            steps.begun = true;
            steps.issued_bytes += bytes;
            steps.outstanding += 1;
            self.tail += 1;
            peer.tail().store(self.tail, Ordering::Release);
            pumped.issued = true;
        }
        // Those that failed before they were put in.
        self.retire();
        Ok(())
    }

    /// Turns finished transfers at the front into completions.
    fn retire(&mut self) {
        while let Some(transfer) = self.waiting.front()
            && transfer.progress.outstanding == 0
            && transfer.is_issued()
        {
            let status = transfer.progress.status;
            if status != STATUS_OK {
                if self.unreported == 0 {
                    self.failure = status;
                }
                self.unreported += 1;
            }
            self.done.push_back(CompletionV1 {
                cookie: transfer.cookie,
                status,
                reserved: 0,
            });
            self.waiting.pop_front();
            self.first += 1;
            self.issuing = self.issuing.max(self.first);
        }
    }
}

impl Transfer {
    /// A transfer that has not begun.
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of a descriptor, once"
    )]
    pub(crate) fn new(
        op: u32,
        local: Span<'static>,
        region: u64,
        key: Token,
        offset: u64,
        notify: Option<(u32, [u64; 2])>,
        reduction: (u32, u32),
        cookie: u64,
    ) -> Self {
        Self {
            op,
            local,
            region,
            key,
            offset,
            notify,
            dtype: reduction.0,
            redop: reduction.1,
            cookie,
            progress: Steps::default(),
        }
    }

    /// A notify alone.
    pub(crate) fn notify_only(notify: Option<(u32, [u64; 2])>, cookie: u64) -> Self {
        Self::new(
            OP_NOTIFY,
            Span::EMPTY,
            0,
            [0; 16],
            0,
            notify,
            (0, 0),
            cookie,
        )
    }

    fn bytes(&self) -> u64 {
        self.local.bytes() as u64
    }

    const fn reads(&self) -> bool {
        matches!(self.op, OP_READ | OP_READ_REDUCE)
    }

    /// Nothing of it will be put into the ring any more.
    fn is_issued(&self) -> bool {
        let steps = &self.progress;
        steps.status != STATUS_OK || (steps.begun && steps.issued_bytes == self.bytes())
    }

    /// The entry for `bytes` bytes at `at`; the notify goes with the last one.
    fn entry(&self, at: u64, bytes: u64) -> Entry {
        let last = at + bytes == self.bytes();
        let notify = self.notify.filter(|_| last);
        Entry {
            op: self.op,
            flags: if notify.is_some() { FLAG_NOTIFY } else { 0 },
            region: self.region,
            key: self.key,
            offset: self.offset + at,
            bytes,
            notify: notify.map_or(0, |(index, _)| index),
            dtype: self.dtype,
            redop: self.redop,
            fingerprint: notify.map_or([0; 2], |(_, fingerprint)| fingerprint),
        }
    }
}

/// Takes the data of a read.
fn fetch(transfer: &Transfer, local: Span<'_>, data: Span<'_>, host: Host) -> i32 {
    if transfer.op == OP_READ {
        local.copy_from(data);
        return STATUS_OK;
    }
    let Some(element) = element_bytes(transfer.dtype) else {
        return STATUS_INVALID_ARGUMENT;
    };
    local
        .reduce_from(data, host, element, transfer.dtype, transfer.redop)
        .err()
        .unwrap_or(STATUS_OK)
}

/// The owning half: what peers ask for in this side's ring.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// Entries taken; the copy in the segment is only for the peer.
    head: u64,
    /// Why everything is refused until the peer begins anew.
    refusing: i32,
}

/// What a call to [`Inbound::serve`] did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) entries: u64,
    pub(crate) notifies: u64,
}

impl Inbound {
    /// Applies what stands in the ring, at most once around.
    pub(crate) fn serve(
        &mut self,
        own: &Segment,
        waits: (&Segment, Half),
        device: &DeviceCore,
        host: Host,
    ) -> Result<Served, i32> {
        let mut notifies = 0;
        let entries = self.take(own, |position, entry| {
            apply(entry, own, waits, position, device, host, &mut notifies)
        })?;
        Ok(Served { entries, notifies })
    }

    /// Takes what stands in the ring, at most once around, and hands it to `apply` unless it is to
    /// be refused. Returns how many entries there were.
    fn take(
        &mut self,
        own: &impl Ring,
        mut apply: impl FnMut(u64, &Entry) -> Result<(), i32>,
    ) -> Result<u64, i32> {
        let tail = own.tail().load(Ordering::Acquire);
        let entries = tail.wrapping_sub(self.head);
        if entries > SLOTS {
            return Err(STATUS_LINK_DOWN);
        }
        for _ in 0..entries {
            let entry = own.take_entry(self.head);
            if entry.flags & FLAG_FRESH != 0 {
                self.refusing = STATUS_OK;
            }
            if self.refusing == STATUS_OK
                && let Err(status) = apply(self.head, &entry)
            {
                self.refusing = status;
            }
            own.outcome(self.head)
                .store(u64::from(self.refusing.cast_unsigned()), Ordering::Relaxed);
            self.head = self.head.wrapping_add(1);
            own.head().store(self.head, Ordering::Release);
        }
        Ok(entries)
    }
}

/// Does what one entry asks for. Nothing in it is believed.
fn apply(
    entry: &Entry,
    own: &Segment,
    waits: (&Segment, Half),
    position: u64,
    device: &DeviceCore,
    host: Host,
    notifies: &mut u64,
) -> Result<(), i32> {
    let notify = entry.op == OP_NOTIFY || entry.flags & FLAG_NOTIFY != 0;
    if notify && entry.notify >= own.notifies() {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    if entry.op != OP_NOTIFY {
        let data = own
            .data(position, entry.bytes)
            .ok_or(STATUS_OUT_OF_BOUNDS)?;
        let region = device
            .find_region(entry.region, &entry.key)
            .ok_or(STATUS_STALE_KEY)?;
        // Held while the bytes move: the user may not have the memory back before.
        let open = region.enter().ok_or(STATUS_STALE_KEY)?;
        let part = open
            .span()
            .part(entry.offset, entry.bytes)
            .ok_or(STATUS_OUT_OF_BOUNDS)?;
        match entry.op {
            OP_WRITE => part.copy_from(data),
            OP_READ | OP_READ_REDUCE => data.copy_from(part),
            OP_WRITE_REDUCE => {
                let element = element_bytes(entry.dtype)
                    .filter(|&element| entry.bytes.is_multiple_of(element as u64))
                    .ok_or(STATUS_INVALID_ARGUMENT)?;
                part.reduce_from(data, host, element, entry.dtype, entry.redop)?;
            }
            _ => return Err(STATUS_INVALID_ARGUMENT),
        }
    }
    let (lines, half) = waits;
    if notify && lines.record_served(half, entry.notify, entry.fingerprint) {
        *notifies += 1;
    }
    Ok(())
}

/// Bytes of an element of a data type of the ABI.
pub(crate) const fn element_bytes(dtype: u32) -> Option<usize> {
    Some(match dtype {
        0 | 4 => 1,
        1 | 5 | 8 | 9 => 2,
        2 | 6 | 10 => 4,
        3 | 7 | 11 => 8,
        _ => return None,
    })
}

/// An outcome as a peer may write it: success, or one of the refusals that the owner gives.
const fn sanitized(outcome: i32) -> i32 {
    match outcome {
        STATUS_OK => STATUS_OK,
        -99..=-1 => outcome,
        _ => STATUS_LINK_DOWN,
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::{Arc, Mutex};

    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;
    use crate::device::lock;
    use crate::sys::{Mapping, Touched};
    use crate::word::model::{Modelled, NOTHING, ORDER};

    /// Bytes of each transfer.
    const BYTES: u64 = 8;

    thread_local! {
        /// Bytes of both sides; all threads of a model run on one OS thread. First come the data of
        /// the slots, then the owner's memory, then that of its peer.
        static MEMORY: &'static Mapping = Box::leak(Box::new(Mapping::private(4096).unwrap()));
    }

    const OWNERS: u64 = 1024;
    const PEERS: u64 = 2048;

    fn span(at: u64) -> Span<'static> {
        MEMORY.with(|memory| memory.span().part(at, BYTES).unwrap())
    }

    fn word(at: u64) -> &'static AtomicU64 {
        MEMORY.with(|memory| &memory.words()[at as usize / 8])
    }

    #[derive(Default)]
    struct Slot<const WRONG: u8> {
        entry: Mutex<Option<Entry>>,
        entry_order: Touched,
        data_order: Touched,
        outcome: Modelled<WRONG>,
    }

    #[derive(Default)]
    struct Slots<const WRONG: u8> {
        tail: Modelled<WRONG>,
        head: Modelled<WRONG>,
        slots: [Slot<WRONG>; SLOTS as usize],
    }

    impl<const WRONG: u8> Slots<WRONG> {
        fn slot(&self, position: u64) -> &Slot<WRONG> {
            &self.slots[(position % SLOTS) as usize]
        }
    }

    impl<const WRONG: u8> Ring for Slots<WRONG> {
        type Word = Modelled<WRONG>;

        fn tail(&self) -> &Modelled<WRONG> {
            &self.tail
        }

        fn head(&self) -> &Modelled<WRONG> {
            &self.head
        }

        fn put_entry(&self, position: u64, entry: &Entry) {
            self.slot(position).entry_order.touch();
            *lock(&self.slot(position).entry) = Some(*entry);
        }

        fn take_entry(&self, position: u64) -> Entry {
            self.slot(position).entry_order.touch();
            lock(&self.slot(position).entry).expect("it was put in")
        }

        fn outcome(&self, position: u64) -> &Modelled<WRONG> {
            &self.slot(position).outcome
        }

        fn data(&self, position: u64, bytes: u64) -> Option<Span<'_>> {
            self.slot(position).data_order.touch();
            span(position % SLOTS * BYTES).part(0, bytes)
        }
    }

    /// Transfers in both directions through two slots: one slot is used again. The owner refuses
    /// one of them, if it is told to. What is reported to have come has come, and nothing else.
    fn both_directions<const WRONG: u8>(refused: Option<u64>) {
        const OPS: [u32; 3] = [OP_WRITE, OP_READ, OP_WRITE];
        loom::model(move || {
            for at in 0..OPS.len() as u64 {
                word(OWNERS + at * BYTES).store(100 + at, Ordering::Relaxed);
                word(PEERS + at * BYTES).store(200 + at, Ordering::Relaxed);
            }
            let shared = Arc::new((Slots::<WRONG>::default(), AtomicBool::new(false)));
            let owners = Arc::clone(&shared);
            let owner = thread::spawn(move || {
                let (ring, is_over) = &*owners;
                let mut inbound = Inbound::default();
                let mut applied = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    inbound
                        .take(ring, |position, entry| {
                            if Some(entry.offset / BYTES) == refused {
                                return Err(STATUS_STALE_KEY);
                            }
                            let data = ring.data(position, entry.bytes).unwrap();
                            let own = span(OWNERS + entry.offset);
                            if entry.op == OP_READ {
                                data.copy_from(own);
                            } else {
                                own.copy_from(data);
                            }
                            applied.push(entry.offset / BYTES);
                            Ok(())
                        })
                        .unwrap();
                    thread::yield_now();
                }
                applied
            });
            let (ring, is_over) = &*shared;
            let mut outbound = Outbound::new(OPS.len());
            for (at, op) in (0..).zip(OPS) {
                let local = span(PEERS + at * BYTES);
                let key = Token::default();
                let transfer = Transfer::new(op, local, 1, key, at * BYTES, None, (0, 0), at);
                assert!(outbound.accept(transfer));
            }
            let mut completed = Vec::new();
            loop {
                outbound
                    .pump_by(ring, |_, local, data| {
                        local.copy_from(data);
                        STATUS_OK
                    })
                    .unwrap();
                while let Some(completion) = outbound.next_completion() {
                    completed.push(completion);
                }
                if outbound.unfinished() == 0 {
                    break;
                }
                thread::yield_now();
            }
            is_over.store(true, Ordering::Relaxed);
            let applied = owner.join().unwrap();
            assert_eq!(completed.len(), OPS.len());
            for (at, op) in (0..).zip(OPS) {
                let has_come = match op {
                    OP_READ => word(PEERS + at * BYTES).load(Ordering::Relaxed) == 100 + at,
                    _ => word(OWNERS + at * BYTES).load(Ordering::Relaxed) == 200 + at,
                };
                let is_reported = completed[at as usize].status == STATUS_OK;
                assert_eq!((at, is_reported), (at, has_come));
                assert_eq!((at, is_reported), (at, applied.contains(&at)));
            }
        });
    }

    #[test]
    fn slots_are_read_whole_and_not_used_again_early() {
        both_directions::<NOTHING>(None);
    }

    #[test]
    fn what_is_reported_to_have_come_has_come() {
        both_directions::<NOTHING>(Some(0));
        both_directions::<NOTHING>(Some(1));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_they_are() {
        both_directions::<ORDER>(None);
    }
}
