//! Whatever changes the meaning of a plan, the verifier rejects.
//!
//! Small plans are damaged at random. Whether that changes the meaning is decided by running the
//! damaged plan in *every* order (a search over all states of the tests' own machine): some order
//! ends in a wrong output, in a deadlock, out of bounds, or with a notify that is not back where
//! it began. All those plans must be rejected. The verifier may reject others, too: it does not
//! accept, for example, a race between two writes of the same value.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

mod machine;
mod shapes;

use std::collections::{BTreeMap, HashSet};

use hcomm_coll::algorithms::{Algorithm, Params, algorithms};
use hcomm_coll::plan::{Buffer, Loc, Operation, Plan, PlanFormat, RankPlan, Shape, Task};
use hcomm_coll::verify::{Finding, Proof, verify};
use hcomm_types::{DataType, Rank, ReduceOp};
use machine::{Machine, Random, State, Wrong};
use shapes::{operations, uneven};

/// States looked at before the search gives up on a plan.
const MOST_STATES: usize = 60_000;

/// What all orders of a plan lead to.
#[derive(Debug, PartialEq)]
enum Meaning {
    Kept {
        /// The largest value of any notify in any order.
        largest_counter: u64,
        /// Whether in some order a rank has ended before another has begun.
        left_early: bool,
    },
    Changed(Wrong),
    /// Too many states.
    Open,
}

fn explore(plan: &Plan) -> Meaning {
    let machine = Machine::new(plan, 7);
    let mut seen: HashSet<State> = HashSet::new();
    let mut open = vec![machine.start()];
    let (mut largest_counter, mut left_early) = (0, false);
    while let Some(state) = open.pop() {
        if seen.len() > MOST_STATES {
            return Meaning::Open;
        }
        largest_counter = machine.largest_counter(&state).max(largest_counter);
        left_early |= machine.someone_left_early(&state);
        let choices = machine.choices(&state);
        if choices.is_empty()
            && let Err(wrong) = machine.check_end(&state)
        {
            return Meaning::Changed(wrong);
        }
        for choice in choices {
            let mut next = state.clone();
            if let Err(wrong) = machine.step(&mut next, choice) {
                return Meaning::Changed(wrong);
            }
            if !seen.contains(&next) {
                open.push(next);
            }
        }
        seen.insert(state);
    }
    Meaning::Kept {
        largest_counter,
        left_early,
    }
}

/// What the proof says about all orders is what the search over all orders has seen.
fn assert_proof_holds(proof: &Proof, meaning: &Meaning, name: &str) {
    match *meaning {
        Meaning::Kept {
            largest_counter,
            left_early,
        } => {
            assert_eq!(proof.notify_capacity, largest_counter, "{name}");
            let all_work = proof.ranks.iter().all(|rank| rank.tasks > 0);
            assert!(proof.synchronising != left_early || !all_work, "{name}");
        }
        Meaning::Open => {}
        Meaning::Changed(_) => panic!("{name}: accepted, but {meaning:?}"),
    }
}

/// Whether a plan has more orders than the search looks at: two rings at once, each rank writing to
/// two others, on three ranks. On two ranks all of them are looked at.
fn has_too_many_orders(algorithm: &dyn Algorithm, shape: &Shape) -> bool {
    algorithm.name() == "ring_bidirectional"
        && shape.ranks > 2
        && (shape.operation == Operation::AllReduce || shape.count.largest() > 2)
}

/// Plans small enough to be run in every order.
fn small_plans() -> Vec<Plan> {
    let mut plans = vec![two_threads()];
    for algorithm in algorithms() {
        for (ranks, counts) in [(2, &[1, 11, 27][..]), (3, &[2, 9][..])] {
            for operation in operations(ranks) {
                for &count in counts {
                    // Each line of a packet arrives by itself: one is enough for three ranks.
                    let packets = ranks > 2 && algorithm.has_packets();
                    let count = if packets { count.min(7) } else { count };
                    for in_place in [false, true] {
                        let shape = Shape {
                            operation,
                            ranks,
                            count: count.into(),
                            dtype: DataType::U64,
                            redop: ReduceOp::Sum.into(),
                            in_place,
                        };
                        let params = Params {
                            scratch_bytes: 384,
                            slice_bytes: 64,
                            // Of one group `hierarchical` makes two steps; here it makes three.
                            groups: Some([3, 0, 3][..ranks as usize].into()),
                            flows: 1,
                        };
                        let uneven = uneven(&shape);
                        for shape in [Some(shape), uneven].into_iter().flatten() {
                            if algorithm.supports(&shape)
                                && !has_too_many_orders(*algorithm, &shape)
                            {
                                plans.push(algorithm.plan(&shape, &params).unwrap());
                            }
                        }
                    }
                }
            }
        }
    }
    plans
}

/// Two threads a rank, joined by a thread notify, that reduce into each other's memory.
fn two_threads() -> Plan {
    let rank = |peer: Rank| {
        let (scratch, input) = (Loc::scratch(0), Loc::input(0));
        let first = vec![
            Task::Copy {
                dst: scratch,
                src: input,
                bytes: 16,
            },
            Task::Record { peer, notify: 0 },
            Task::Wait { peer, notify: 1 },
            Task::ThreadRecord {
                thread: 1,
                notify: 0,
            },
        ];
        let second = vec![
            Task::Wait { peer, notify: 0 },
            Task::WriteReduce {
                peer,
                dst: scratch,
                src: input,
                count: 2,
                notify: Some(1),
            },
            Task::ThreadWait { notify: 0 },
            Task::Copy {
                dst: Loc::output(0),
                src: scratch,
                bytes: 16,
            },
        ];
        RankPlan {
            threads: vec![first, second],
            scratch_bytes: 16,
        }
    };
    Plan {
        format: PlanFormat::V1,
        algorithm: "two_threads".to_owned(),
        shape: Shape {
            operation: Operation::AllReduce,
            ranks: 2,
            count: 2.into(),
            dtype: DataType::U64,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        },
        initial_credits: Vec::new(),
        ranks: vec![rank(Rank(1)), rank(Rank(0))],
    }
}

#[test]
fn the_undamaged_plans_are_right_in_every_order() {
    for plan in small_plans() {
        let name = format!("{} for {}", plan.algorithm, plan.shape);
        let proof = verify(&plan).unwrap_or_else(|finding| panic!("{name}: {finding}"));
        let meaning = explore(&plan);
        assert!(
            matches!(meaning, Meaning::Kept { .. }),
            "{name}: {meaning:?}"
        );
        assert_proof_holds(&proof, &meaning, &name);
    }
}

#[test]
fn every_change_of_meaning_is_rejected() {
    reject_changes(2, 1_200);
}

#[test]
#[ignore = "minutes: for long runs"]
fn every_change_of_meaning_is_rejected_at_length() {
    for seed in 3..13 {
        reject_changes(seed, 5_000);
    }
}

/// Damages plans until `wanted` changes of meaning have been seen.
fn reject_changes(seed: u64, wanted: usize) {
    let plans = small_plans();
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    let mut tried = HashSet::new();
    let mut damaged = HashSet::new();
    while tally.changed < wanted {
        let plan = &plans[random.below(plans.len())];
        let mut mutant = plan.clone();
        let mut kind = mutate(&mut mutant, &mut random);
        if random.below(4) == 0 {
            kind = mutate(&mut mutant, &mut random).and(kind);
        }
        let Some(kind) = kind else { continue };
        if mutant == *plan || !tried.insert(serde_json::to_string(&mutant).unwrap()) {
            continue;
        }
        let verdict = verify(&mutant);
        let meaning = explore(&mutant);
        if let Ok(proof) = &verdict {
            let text = serde_json::to_string_pretty(&mutant).unwrap();
            assert_proof_holds(proof, &meaning, &format!("{kind}: {text}"));
        }
        if matches!(meaning, Meaning::Changed(_)) {
            damaged.insert(plan.algorithm.clone());
        }
        tally.count(kind, verdict.err(), &meaning);
    }
    println!("{tally}");
    assert!(tally.kinds.len() >= 10, "{tally}");
    assert!(tally.faults.len() >= 15, "{tally}");
    for algorithm in algorithms() {
        assert!(
            damaged.contains(algorithm.name()),
            "no {}",
            algorithm.name()
        );
    }
}

#[derive(Default)]
struct Tally {
    tried: usize,
    changed: usize,
    changed_and_rejected: usize,
    kept: usize,
    kept_but_rejected: usize,
    open: usize,
    open_and_accepted: usize,
    kinds: BTreeMap<&'static str, usize>,
    /// How mutants that changed their meaning were found out.
    faults: BTreeMap<String, usize>,
}

impl Tally {
    fn count(&mut self, kind: &'static str, finding: Option<Finding>, meaning: &Meaning) {
        self.tried += 1;
        let accepted = finding.is_none();
        match meaning {
            Meaning::Changed(_) => {
                self.changed += 1;
                self.changed_and_rejected += usize::from(!accepted);
                *self.kinds.entry(kind).or_default() += 1;
                let fault =
                    finding.map_or_else(String::new, |finding| format!("{:?}", finding.fault));
                let name = fault.split([' ', '(']).next().unwrap().to_owned();
                *self.faults.entry(name).or_default() += 1;
            }
            Meaning::Kept { .. } => {
                self.kept += 1;
                self.kept_but_rejected += usize::from(!accepted);
            }
            Meaning::Open => {
                self.open += 1;
                self.open_and_accepted += usize::from(accepted);
            }
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} mutants: {} changed the meaning, of which {} were rejected; {} kept it, of which \
             {} were rejected all the same; {} left open ({} accepted). Changes by kind: {:?}; \
             by finding: {:?}",
            self.tried,
            self.changed,
            self.changed_and_rejected,
            self.kept,
            self.kept_but_rejected,
            self.open,
            self.open_and_accepted,
            self.kinds,
            self.faults
        )
    }
}

/// Damages a plan; says how, or nothing if the place drawn has nothing to damage that way.
fn mutate(plan: &mut Plan, random: &mut Random) -> Option<&'static str> {
    let ranks = plan.ranks.len();
    let rank = random.below(ranks);
    let threads = &mut plan.ranks[rank].threads;
    if threads.is_empty() {
        return None;
    }
    let thread = random.below(threads.len());
    let tasks = &mut threads[thread];
    if tasks.is_empty() {
        return None;
    }
    let index = random.below(tasks.len());
    let other = random.below(tasks.len());
    Some(match random.below(16) {
        0 => {
            tasks.remove(index);
            "drop a task"
        }
        1 => {
            tasks.swap(index, other);
            "swap two tasks"
        }
        2 => {
            let (a, b) = (random.below(3), random.below(3));
            let first = locations(&mut tasks[index]).get(a).map(|loc| loc.offset)?;
            let second = locations(&mut tasks[other]).get(b).map(|loc| loc.offset)?;
            locations(&mut tasks[index])[a].offset = second;
            locations(&mut tasks[other])[b].offset = first;
            "swap two offsets"
        }
        3 => {
            let by = [1, 8, 16, 64, u64::MAX, u64::MAX - 7, u64::MAX - 63][random.below(7)];
            let pick = random.below(3);
            let mut locations = locations(&mut tasks[index]);
            let loc = locations.get_mut(pick)?;
            loc.offset = loc.offset.wrapping_add(by);
            "shift an offset"
        }
        4 => {
            let pick = random.below(5);
            let length = length(&mut tasks[index])?;
            *length = match pick {
                0 => length.wrapping_sub(1),
                1 => *length + 1,
                2 => *length / 2,
                3 => *length * 2,
                _ => length.saturating_sub(8),
            };
            "change a length"
        }
        5 => {
            let task = tasks[index];
            tasks.insert(other, task);
            "duplicate a task"
        }
        6 => {
            let to = Rank::from_index(random.below(ranks + 1));
            match &mut tasks[index] {
                Task::Write { peer, .. }
                | Task::Read { peer, .. }
                | Task::WriteReduce { peer, .. }
                | Task::ReadReduce { peer, .. }
                | Task::PacketWrite { peer, .. }
                | Task::PacketRead { peer, .. }
                | Task::PacketReduce { peer, .. }
                | Task::Record { peer, .. }
                | Task::Wait { peer, .. } => *peer = to,
                _ => return None,
            }
            "redirect to another peer"
        }
        7 => {
            let to = u32::try_from(random.below(3)).unwrap();
            match &mut tasks[index] {
                Task::Write {
                    notify: Some(notify),
                    ..
                }
                | Task::WriteReduce {
                    notify: Some(notify),
                    ..
                }
                | Task::Record { notify, .. }
                | Task::Wait { notify, .. }
                | Task::ThreadRecord { notify, .. }
                | Task::ThreadWait { notify } => *notify = to,
                Task::PacketWrite { line, .. }
                | Task::PacketRead { line, .. }
                | Task::PacketReduce { line, .. } => *line = to * 15,
                _ => return None,
            }
            "redirect to another notify or line"
        }
        8 => {
            let task = tasks.remove(index);
            let to = random.below(threads.len() + 1);
            if to == threads.len() {
                threads.push(Vec::new());
            }
            let at = random.below(threads[to].len() + 1);
            threads[to].insert(at, task);
            "move a task to another thread"
        }
        9 => {
            let pick = random.below(3);
            let to = [Buffer::Input, Buffer::Output, Buffer::Scratch][random.below(3)];
            locations(&mut tasks[index]).get_mut(pick)?.buffer = to;
            "change a buffer"
        }
        10 => {
            match &mut tasks[index] {
                Task::Write { notify, .. } | Task::WriteReduce { notify, .. } => {
                    *notify = if notify.is_some() { None } else { Some(0) };
                }
                Task::PacketReduce { swapped, .. } => *swapped = !*swapped,
                _ => return None,
            }
            "drop or add the notify of a write, swap operands"
        }
        11..=14 => return drop_pair(plan, random),
        _ => {
            // Moves the tasks between two places, as a wrong hand in a generator would.
            let task = tasks.remove(index);
            tasks.insert(other.min(tasks.len()), task);
            "move a task within its thread"
        }
    })
}

/// What a pair of tasks had in common.
#[derive(Clone, Copy)]
enum Dropped {
    Notify(u32),
    Packet(u32),
}

/// Takes a record or a packet away together with a wait for it, so that all notifies still come out even.
fn drop_pair(plan: &mut Plan, random: &mut Random) -> Option<&'static str> {
    let mut waits = Vec::new();
    for (rank, rank_plan) in (0..).map(Rank).zip(&plan.ranks) {
        for (thread, tasks) in rank_plan.threads.iter().enumerate() {
            for (index, task) in tasks.iter().enumerate() {
                match *task {
                    Task::Wait { peer, notify } => {
                        waits.push((rank, thread, index, peer, Dropped::Notify(notify)));
                    }
                    Task::PacketRead { peer, line, .. } | Task::PacketReduce { peer, line, .. } => {
                        waits.push((rank, thread, index, peer, Dropped::Packet(line)));
                    }
                    _ => {}
                }
            }
        }
    }
    if waits.is_empty() {
        return None;
    }
    let (rank, thread, index, peer, dropped) = waits[random.below(waits.len())];
    plan.ranks[rank.index()].threads[thread].remove(index);
    let recorder = &mut plan.ranks.get_mut(peer.index())?.threads;
    let mut records: Vec<(usize, usize)> = Vec::new();
    for (thread, tasks) in recorder.iter().enumerate() {
        for (index, task) in tasks.iter().enumerate() {
            let sends = match (*task, dropped) {
                (Task::PacketWrite { peer, line, .. }, Dropped::Packet(wanted)) => {
                    (peer, line) == (rank, wanted)
                }
                (_, Dropped::Notify(notify)) => task.records() == Some((rank, notify)),
                _ => false,
            };
            if sends {
                records.push((thread, index));
            }
        }
    }
    if records.is_empty() {
        return None;
    }
    let (thread, index) = records[random.below(records.len())];
    match &mut recorder[thread][index] {
        Task::Write { notify, .. } | Task::WriteReduce { notify, .. } => *notify = None,
        _ => {
            recorder[thread].remove(index);
        }
    }
    Some("drop a record and its wait")
}

fn locations(task: &mut Task) -> Vec<&mut Loc> {
    match task {
        Task::Copy { dst, src, .. }
        | Task::Write { dst, src, .. }
        | Task::Read { dst, src, .. }
        | Task::WriteReduce { dst, src, .. } => vec![dst, src],
        Task::PacketWrite { src, .. } => vec![src],
        Task::PacketRead { dst, .. } | Task::Divide { dst, .. } => vec![dst],
        Task::PacketReduce { dst, a, .. } => vec![dst, a],
        Task::Reduce { dst, a, b, .. } => vec![dst, a, b],
        Task::ReadReduce { dst, a, src, .. } => vec![dst, a, src],
        _ => Vec::new(),
    }
}

fn length(task: &mut Task) -> Option<&mut u64> {
    match task {
        Task::Copy { bytes, .. }
        | Task::Write { bytes, .. }
        | Task::Read { bytes, .. }
        | Task::PacketWrite { bytes, .. }
        | Task::PacketRead { bytes, .. } => Some(bytes),
        Task::Reduce { count, .. }
        | Task::Divide { count, .. }
        | Task::WriteReduce { count, .. }
        | Task::ReadReduce { count, .. }
        | Task::PacketReduce { count, .. } => Some(count),
        _ => None,
    }
}
