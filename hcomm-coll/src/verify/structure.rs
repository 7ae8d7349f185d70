//! What can be seen without running the plan: lengths, bounds, peers, notifies.

use hcomm_types::{MAX_NOTIFIES_PER_THREAD, MAX_PACKET_LINES, MAX_THREADS_PER_COMMUNICATOR, Rank};
use rustc_hash::{FxHashMap, FxHashSet};

use super::finding::OtherTask;
use super::layout::{Lines, Notify, notify_recorded, notify_waited};
use super::{Fault, Finding};
use crate::plan::{Buffer, Loc, Operation, Plan, Task};

/// Findings kept; what comes later is mostly a consequence.
pub(super) const MAX_FINDINGS: usize = 64;

/// Checks the structure of a plan.
pub(super) fn check(plan: &Plan) -> Vec<Finding> {
    if let Err(error) = plan.shape.validate() {
        return vec![Finding::whole(Fault::Shape(error))];
    }
    if plan.ranks.len() != plan.shape.ranks as usize {
        let fault = Fault::RankCount {
            listed: plan.ranks.len(),
            ranks: plan.shape.ranks,
        };
        return vec![Finding::whole(fault)];
    }
    let mut findings = Vec::new();
    for rank in plan.shape.all_ranks() {
        check_rank(plan, rank, &mut findings);
    }
    if findings.is_empty() {
        check_notifies(plan, &mut findings);
        check_packets(plan, &mut findings);
    }
    findings.truncate(MAX_FINDINGS);
    findings
}

fn check_rank(plan: &Plan, rank: Rank, findings: &mut Vec<Finding>) {
    let scratch_bytes = plan.ranks[rank.index()].scratch_bytes;
    if i64::try_from(scratch_bytes).is_err() {
        findings.push(Finding::rank(rank, Fault::TooMuchScratch { scratch_bytes }));
        return;
    }
    let threads = &plan.ranks[rank.index()].threads;
    if threads.len() > MAX_THREADS_PER_COMMUNICATOR {
        let (threads, limit) = (threads.len(), MAX_THREADS_PER_COMMUNICATOR);
        findings.push(Finding::rank(
            rank,
            Fault::TooManyThreads { threads, limit },
        ));
    }
    for (thread, tasks) in threads.iter().enumerate() {
        for (index, task) in tasks.iter().enumerate() {
            if findings.len() >= MAX_FINDINGS {
                return;
            }
            let check = TaskCheck { plan, rank, thread };
            if let Err(fault) = check.task(task) {
                findings.push(Finding::task(rank, thread, index, task, fault));
            }
        }
        let notifies = notifies_waited(rank, thread, tasks);
        if notifies > MAX_NOTIFIES_PER_THREAD {
            let fault = Fault::TooManyNotifies {
                notifies,
                limit: MAX_NOTIFIES_PER_THREAD,
            };
            findings.push(Finding {
                thread: Some(thread),
                ..Finding::rank(rank, fault)
            });
        }
    }
}

/// How many notifies a thread waits for.
pub(crate) fn notifies_waited(rank: Rank, thread: usize, tasks: &[Task]) -> usize {
    let held: FxHashSet<Notify> = tasks
        .iter()
        .filter(|task| !task.is_packet())
        .filter_map(|task| notify_waited(rank, thread, task))
        .collect();
    held.len()
}

struct TaskCheck<'p> {
    plan: &'p Plan,
    rank: Rank,
    thread: usize,
}

impl TaskCheck<'_> {
    fn task(&self, task: &Task) -> Result<(), Fault> {
        if let Some(peer) = task.peer() {
            self.peer(peer)?;
        }
        if let Some((_, notify)) = task.records() {
            index(notify)?;
        }
        if let Some(lines) = Lines::of(self.rank, task, self.plan.shape.element_bytes()) {
            self.lines(&lines)?;
        }
        let me = self.rank;
        match *task {
            Task::Copy { dst, src, bytes } => {
                self.range(me, src, bytes)?;
                self.target(me, dst, bytes)?;
                if self.overlap(dst, src, bytes) {
                    return Err(Fault::OverlapsItself);
                }
            }
            Task::Reduce { dst, a, b, count } => {
                let bytes = self.elements(count);
                for operand in [a, b] {
                    self.range(me, operand, bytes)?;
                    self.aligned(operand)?;
                    self.exact_or_apart(dst, operand, bytes)?;
                }
                self.target(me, dst, bytes)?;
                self.aligned(dst)?;
            }
            Task::Divide { dst, count } => {
                if !self.plan.shape.makes_averages() {
                    return Err(Fault::DividesNoAverage);
                }
                let bytes = self.elements(count);
                self.target(me, dst, bytes)?;
                self.aligned(dst)?;
            }
            Task::Write {
                peer,
                dst,
                src,
                bytes,
                ..
            } => {
                self.range(me, src, bytes)?;
                self.target(peer, dst, bytes)?;
            }
            Task::Read {
                peer,
                dst,
                src,
                bytes,
            } => {
                self.range(peer, src, bytes)?;
                self.target(me, dst, bytes)?;
            }
            Task::WriteReduce {
                peer,
                dst,
                src,
                count,
                ..
            } => {
                let bytes = self.elements(count);
                self.range(me, src, bytes)?;
                self.target(peer, dst, bytes)?;
                self.aligned(src)?;
                self.aligned(dst)?;
            }
            Task::ReadReduce {
                peer,
                dst,
                a,
                src,
                count,
            } => {
                let bytes = self.elements(count);
                self.range(peer, src, bytes)?;
                self.range(me, a, bytes)?;
                self.target(me, dst, bytes)?;
                self.exact_or_apart(dst, a, bytes)?;
                self.aligned(dst)?;
                self.aligned(a)?;
                self.aligned(src)?;
            }
            Task::PacketWrite { src, bytes, .. } => self.payload(src, bytes)?,
            Task::PacketRead { dst, bytes, .. } => {
                self.payload(dst, bytes)?;
                self.written(me, dst)?;
            }
            Task::PacketReduce { dst, a, count, .. } => {
                let bytes = self.elements(count);
                self.range(me, a, bytes)?;
                self.target(me, dst, bytes)?;
                self.exact_or_apart(dst, a, bytes)?;
                self.aligned(dst)?;
                self.aligned(a)?;
            }
            Task::Record { .. } => {}
            Task::Wait { notify, .. } | Task::ThreadWait { notify } => index(notify)?,
            Task::ThreadRecord { thread, notify } => {
                index(notify)?;
                let threads = self.plan.ranks[me.index()].threads.len();
                if thread as usize >= threads || thread as usize == self.thread {
                    return Err(Fault::NoSuchThread { thread, threads });
                }
            }
        }
        Ok(())
    }

    fn lines(&self, lines: &Lines) -> Result<(), Fault> {
        let Operation::SendRecv { .. } = self.plan.shape.operation else {
            if !self.plan.initial_credits.is_empty() {
                return Err(Fault::PacketUncounted);
            }
            let (line, count) = (lines.first, lines.count());
            if u64::from(line).saturating_add(count) > u64::from(MAX_PACKET_LINES) {
                return Err(Fault::PacketLines {
                    line,
                    lines: count,
                    limit: MAX_PACKET_LINES,
                });
            }
            return Ok(());
        };
        Err(Fault::PacketUncounted)
    }

    /// As `range`; a packet may be empty.
    fn payload(&self, loc: Loc, bytes: u64) -> Result<(), Fault> {
        let Loc { buffer, offset } = loc;
        if bytes == 0 && offset <= buffer_bytes(self.plan, self.rank, buffer) {
            return Ok(());
        }
        self.range(self.rank, loc, bytes.max(1))
    }

    fn peer(&self, peer: Rank) -> Result<(), Fault> {
        if peer == self.rank {
            return Err(Fault::OwnPeer);
        }
        let ranks = self.plan.shape.ranks;
        if peer.0 >= ranks {
            Err(Fault::NoSuchPeer { peer, ranks })
        } else {
            Ok(())
        }
    }

    fn elements(&self, count: u64) -> u64 {
        // A product beyond 64 bits is beyond any buffer, too.
        count.saturating_mul(self.plan.shape.element_bytes())
    }

    fn range(&self, owner: Rank, loc: Loc, bytes: u64) -> Result<(), Fault> {
        if bytes == 0 {
            return Err(Fault::NothingToDo);
        }
        let Loc { buffer, offset } = loc;
        let size = buffer_bytes(self.plan, owner, buffer);
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Fault::OutOfBounds {
                owner,
                buffer,
                offset,
                bytes,
                size,
            }),
        }
    }

    /// As `range`, for a place that is written.
    fn target(&self, owner: Rank, loc: Loc, bytes: u64) -> Result<(), Fault> {
        self.range(owner, loc, bytes)?;
        self.written(owner, loc)
    }

    /// What is written goes by the name of output or scratch, also where the input is the same
    /// memory.
    fn written(&self, owner: Rank, loc: Loc) -> Result<(), Fault> {
        if loc.buffer == Buffer::Input {
            return Err(Fault::WritesInput { owner });
        }
        Ok(())
    }

    fn aligned(&self, loc: Loc) -> Result<(), Fault> {
        let element_bytes = self.plan.shape.element_bytes();
        if loc.offset.is_multiple_of(element_bytes) {
            Ok(())
        } else {
            Err(Fault::Unaligned {
                buffer: loc.buffer,
                offset: loc.offset,
                element_bytes,
            })
        }
    }

    /// Where a place of this rank really is.
    fn place(&self, loc: Loc) -> (Buffer, u64) {
        let (home, base) = self.plan.shape.home(self.rank, loc.buffer);
        (home, base.saturating_add(loc.offset))
    }

    fn overlap(&self, a: Loc, b: Loc, bytes: u64) -> bool {
        let ((home, start), (other_home, other_start)) = (self.place(a), self.place(b));
        home == other_home && start.abs_diff(other_start) < bytes
    }

    fn exact_or_apart(&self, dst: Loc, operand: Loc, bytes: u64) -> Result<(), Fault> {
        if self.place(dst) != self.place(operand) && self.overlap(dst, operand, bytes) {
            return Err(Fault::OverlapsItself);
        }
        Ok(())
    }
}

fn index(notify: u32) -> Result<(), Fault> {
    if (notify as usize) < MAX_NOTIFIES_PER_THREAD {
        Ok(())
    } else {
        Err(Fault::NotifyIndex {
            notify,
            limit: MAX_NOTIFIES_PER_THREAD,
        })
    }
}

/// Bytes of a rank's buffer.
pub(super) fn buffer_bytes(plan: &Plan, rank: Rank, buffer: Buffer) -> u64 {
    match buffer {
        Buffer::Input => plan.shape.input_bytes(rank),
        Buffer::Output => plan.shape.output_bytes(rank),
        Buffer::Scratch => plan.ranks[rank.index()].scratch_bytes,
    }
}

type Place = (Rank, usize, usize);

#[derive(Default)]
struct NotifyUse {
    records: u64,
    waits: u64,
    first_record: Option<Place>,
    first_wait: Option<Place>,
    last_record: Option<Place>,
    last_wait: Option<Place>,
}

/// Each notify has one recording and one waiting thread, and as many records as waits.
fn check_notifies(plan: &Plan, findings: &mut Vec<Finding>) {
    let mut notifies: FxHashMap<Notify, NotifyUse> = FxHashMap::default();
    let other = |place| other_task(plan, place);
    for (rank, thread, index, task) in tasks(plan).filter(|(.., task)| !task.is_packet()) {
        let place = (rank, thread, index);
        if let Some(notify) = notify_recorded(rank, task) {
            let used = notifies.entry(notify).or_default();
            used.records += 1;
            let first = *used.first_record.get_or_insert(place);
            used.last_record = Some(place);
            if (first.0, first.1) != (rank, thread) {
                let fault = Fault::TwoRecorders {
                    other: other(first),
                };
                findings.push(Finding::task(rank, thread, index, task, fault));
            }
        }
        if let Some(notify) = notify_waited(rank, thread, task) {
            let used = notifies.entry(notify).or_default();
            used.waits += 1;
            let first = *used.first_wait.get_or_insert(place);
            used.last_wait = Some(place);
            if (first.0, first.1) != (rank, thread) {
                let fault = Fault::TwoWaiters {
                    other: other(first),
                };
                findings.push(Finding::task(rank, thread, index, task, fault));
            }
        }
    }
    let mut unbalanced: Vec<(Place, Fault)> = Vec::new();
    for NotifyUse {
        records,
        waits,
        last_record,
        last_wait,
        ..
    } in notifies.into_values()
    {
        match (last_record, last_wait) {
            (_, Some(place)) if waits > records => {
                unbalanced.push((place, Fault::TooFewRecords { records, waits }));
            }
            (Some(place), _) if records > waits => {
                unbalanced.push((place, Fault::TooFewWaits { records, waits }));
            }
            _ => {}
        }
    }
    report_in_order(plan, unbalanced, findings);
    let mut credited = FxHashSet::default();
    for credit in &plan.initial_credits {
        let ranks = plan.shape.ranks;
        let problem = if credit.recorder.0 >= ranks || credit.waiter.0 >= ranks {
            "names a rank that is not there"
        } else if credit.recorder == credit.waiter {
            "is from a rank to itself"
        } else if credit.notify as usize >= MAX_NOTIFIES_PER_THREAD {
            "names a notify that is not there"
        } else if credit.count == 0 {
            "is zero"
        } else if !credited.insert((credit.recorder, credit.waiter, credit.notify)) {
            "is there twice"
        } else {
            continue;
        };
        findings.push(Finding::whole(Fault::Credit {
            recorder: credit.recorder,
            waiter: credit.waiter,
            notify: credit.notify,
            problem,
        }));
    }
}

fn other_task(plan: &Plan, (rank, thread, index): Place) -> OtherTask {
    let words = plan
        .task(rank, thread, index)
        .map_or_else(String::new, ToString::to_string);
    OtherTask {
        rank,
        thread,
        task: index,
        words,
    }
}

/// Each line is used by one packet, which is sent once and taken once.
fn check_packets(plan: &Plan, findings: &mut Vec<Finding>) {
    let mut used = FxHashMap::default();
    let (mut sent, mut taken) = (FxHashMap::default(), FxHashMap::default());
    for (rank, thread, index, task) in tasks(plan) {
        let Some(lines) = Lines::of(rank, task, plan.shape.element_bytes()) else {
            continue;
        };
        let place = (rank, thread, index);
        let sends = matches!(task, Task::PacketWrite { .. });
        let (writer, reader, first) = (lines.writer, lines.reader, lines.first);
        for line in (first..).take(lines.count() as usize) {
            let before = *used.entry((sends, writer, reader, line)).or_insert(place);
            if before != place {
                let other = other_task(plan, before);
                let fault = Fault::LineTwice { line, other };
                findings.push(Finding::task(rank, thread, index, task, fault));
                return;
            }
        }
        let ends = if sends { &mut sent } else { &mut taken };
        ends.insert((writer, reader, first), (lines.bytes, place));
    }
    let (mut unmatched, mut untaken) = (Vec::new(), Vec::new());
    for (packet, (taken, place)) in &taken {
        match sent.get(packet) {
            None => unmatched.push((*place, Fault::PacketUnsent { writer: packet.0 })),
            Some((sent, sender)) if sent != taken => {
                let (taken, sent) = (*taken, *sent);
                let other = other_task(plan, *sender);
                unmatched.push((*place, Fault::PacketLength { taken, sent, other }));
            }
            Some(_) => {}
        }
    }
    for (packet, (_, place)) in &sent {
        if !taken.contains_key(packet) {
            untaken.push((*place, Fault::PacketUntaken { reader: packet.1 }));
        }
    }
    report_in_order(plan, unmatched, findings);
    report_in_order(plan, untaken, findings);
}

/// Reports what was found in no order of its own, task by task.
fn report_in_order(plan: &Plan, mut faults: Vec<(Place, Fault)>, findings: &mut Vec<Finding>) {
    faults.sort_by_key(|(place, _)| *place);
    findings.extend(
        faults
            .into_iter()
            .filter_map(|((rank, thread, index), fault)| {
                let task = plan.task(rank, thread, index)?;
                Some(Finding::task(rank, thread, index, task, fault))
            }),
    );
}

/// All tasks, rank by rank, thread by thread.
pub(super) fn tasks(plan: &Plan) -> impl Iterator<Item = (Rank, usize, usize, &Task)> {
    plan.ranks.iter().enumerate().flat_map(|(rank, rank_plan)| {
        rank_plan
            .threads
            .iter()
            .enumerate()
            .flat_map(move |(thread, tasks)| {
                tasks
                    .iter()
                    .enumerate()
                    .map(move |(index, task)| (Rank::from_index(rank), thread, index, task))
            })
    })
}
