//! Plans made by hand, each wrong in one way (or right where that is not obvious): what the
//! verifier says about them.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

use hcomm_coll::plan::{Credit, Loc, Operation, Plan, PlanFormat, RankPlan, Shape, Task};
use hcomm_coll::verify::{Fault, Finding, verify, verify_all, verify_sequence};
use hcomm_types::{DataType, Rank, ReduceOp};

const ZERO: Rank = Rank(0);
const ONE: Rank = Rank(1);
const TWO: Rank = Rank(2);

/// A plan on two 64-bit elements; each rank has the threads given and 64 bytes of scratch.
fn plan(operation: Operation, ranks: &[&[&[Task]]]) -> Plan {
    let ranks: Vec<RankPlan> = ranks
        .iter()
        .map(|threads| RankPlan {
            threads: threads.iter().map(|tasks| tasks.to_vec()).collect(),
            scratch_bytes: 64,
        })
        .collect();
    Plan {
        format: PlanFormat::V1,
        algorithm: "by hand".to_owned(),
        shape: Shape {
            operation,
            ranks: u32::try_from(ranks.len()).unwrap(),
            count: 2.into(),
            dtype: DataType::I64,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        },
        initial_credits: Vec::new(),
        ranks,
    }
}

fn record(peer: Rank, notify: u32) -> Task {
    Task::Record { peer, notify }
}

fn wait(peer: Rank, notify: u32) -> Task {
    Task::Wait { peer, notify }
}

fn copy(dst: Loc, src: Loc) -> Task {
    Task::Copy {
        dst,
        src,
        bytes: 16,
    }
}

fn write(peer: Rank, dst: Loc, src: Loc, notify: Option<u32>) -> Task {
    Task::Write {
        peer,
        dst,
        src,
        bytes: 16,
        notify,
    }
}

fn read(peer: Rank, dst: Loc, src: Loc) -> Task {
    Task::Read {
        peer,
        dst,
        src,
        bytes: 16,
    }
}

fn refuse(plan: &Plan) -> Finding {
    verify(plan).expect_err("a wrong plan")
}

const FROM_ZERO: Operation = Operation::Broadcast { root: ZERO };
const OWN: Task = Task::Copy {
    dst: Loc::output(0),
    src: Loc::input(0),
    bytes: 16,
};
const OUT: Task = Task::Copy {
    dst: Loc::output(0),
    src: Loc::scratch(0),
    bytes: 16,
};

#[test]
fn ranks_that_wait_for_each_other() {
    let finding = refuse(&plan(
        Operation::Barrier,
        &[
            &[&[wait(ONE, 0), record(ONE, 0)]],
            &[&[wait(ZERO, 0), record(ZERO, 0)]],
        ],
    ));
    assert_eq!(
        finding.to_string(),
        "rank 0, thread 0, task 0 (wait for notify 0 from rank 1): waits for ever: the record \
         stands behind rank 1, thread 0, task 0 (wait for notify 0 from rank 0), which needs a \
         record that stands behind rank 0, thread 0, task 0 again"
    );
}

#[test]
fn a_thread_that_waits_for_its_own_sibling() {
    let thread_wait = Task::ThreadWait { notify: 0 };
    let finding = refuse(&plan(
        Operation::Barrier,
        &[&[
            &[
                thread_wait,
                Task::ThreadRecord {
                    thread: 1,
                    notify: 0,
                },
            ],
            &[
                thread_wait,
                Task::ThreadRecord {
                    thread: 0,
                    notify: 0,
                },
            ],
        ]],
    ));
    assert!(
        matches!(*finding.fault, Fault::Deadlock { .. }),
        "{finding}"
    );
}

/// A notify says that the bytes are there, but only if it comes from the writing thread to the
/// rank written to. Word by way of another rank is faster than the bytes, sometimes.
#[test]
fn word_by_way_of_another_rank_does_not_say_that_bytes_have_landed() {
    let scratch = Loc::scratch(0);
    let roundabout = plan(
        FROM_ZERO,
        &[
            &[&[
                OWN,
                write(ONE, scratch, Loc::input(0), None),
                write(TWO, scratch, Loc::input(0), Some(0)),
                record(ONE, 1),
            ]],
            &[&[wait(TWO, 0), OUT, wait(ZERO, 1)]],
            &[&[wait(ZERO, 0), OUT, record(ONE, 0)]],
        ],
    );
    let finding = refuse(&roundabout);
    assert_eq!(
        finding.to_string(),
        "rank 1, thread 0, task 1 (copy 16 bytes from scratch+0 to output+0): touches bytes 0..16 \
         of the scratch of rank 1 while rank 0, thread 0, task 1 (write 16 bytes from input+0 to \
         scratch+0 of rank 1) may be writing them; no notify orders the two"
    );
    let mut direct = roundabout;
    direct.ranks[1].threads[0].swap(1, 2);
    verify(&direct).unwrap();
}

#[test]
fn the_writer_itself_may_not_look_before_word_comes_back() {
    let (there, back) = (Loc::scratch(0), Loc::scratch(16));
    let tasks = |look_after: usize| {
        let mut tasks = vec![OWN, write(ONE, there, Loc::input(0), Some(0)), wait(ONE, 0)];
        tasks.insert(look_after, read(ONE, back, there));
        tasks
    };
    let other: &[Task] = &[wait(ZERO, 0), OUT, record(ZERO, 0)];
    let early = plan(FROM_ZERO, &[&[&tasks(2)], &[other]]);
    assert!(matches!(*refuse(&early).fault, Fault::Race { .. }));
    verify(&plan(FROM_ZERO, &[&[&tasks(3)], &[other]])).unwrap();
}

#[test]
fn bytes_that_nobody_sees_arrive() {
    let finding = refuse(&plan(
        Operation::Barrier,
        &[
            &[&[
                record(ONE, 0),
                write(ONE, Loc::scratch(0), Loc::scratch(0), None),
                wait(ONE, 0),
            ]],
            &[&[wait(ZERO, 0), record(ZERO, 0)]],
        ],
    ));
    assert!(
        matches!(*finding.fault, Fault::ReadsUnwritten { .. }),
        "{finding}"
    );
    let mut late = plan(
        FROM_ZERO,
        &[
            &[&[
                OWN,
                write(ONE, Loc::scratch(0), Loc::input(0), Some(0)),
                write(ONE, Loc::scratch(16), Loc::input(0), None),
            ]],
            &[&[wait(ZERO, 0), OUT]],
        ],
    );
    let finding = refuse(&late);
    assert!(
        finding
            .to_string()
            .contains("rank 1 never waits for a notify that follows"),
        "{finding}"
    );
    assert_eq!(
        (finding.rank, finding.thread, finding.task),
        (Some(ZERO), Some(0), Some(2))
    );
    late.ranks[0].threads[0].swap(1, 2);
    verify(&late).unwrap();
}

#[test]
fn a_peers_own_buffers_only_between_its_begin_and_its_end() {
    let take = read(ZERO, Loc::output(0), Loc::input(0));
    let good = plan(
        FROM_ZERO,
        &[
            &[&[OWN, record(ONE, 0), wait(ONE, 0)]],
            &[&[wait(ZERO, 0), take, record(ZERO, 0)]],
        ],
    );
    let proof = verify(&good).unwrap();
    assert!(proof.touches_remote_user_buffers && proof.synchronising && proof.quiescent);

    let mut early = good.clone();
    early.ranks[1].threads[0].swap(0, 1);
    assert!(matches!(
        *refuse(&early).fault,
        Fault::BeforeBegin { owner: ZERO, .. }
    ));
    let mut late = good;
    late.ranks[1].threads[0].swap(1, 2);
    assert!(matches!(
        *refuse(&late).fault,
        Fault::AfterEnd { owner: ZERO, .. }
    ));
}

#[test]
fn contributions_once_each_and_of_the_same_element() {
    let (input, output, scratch) = (Loc::input(0), Loc::output(0), Loc::scratch(0));
    let exchange = |rest: &[Task]| {
        let side = |peer| [&[write(peer, scratch, input, Some(0)), wait(peer, 0)], rest].concat();
        let (first, second) = (side(ONE), side(ZERO));
        plan(Operation::AllReduce, &[&[&first], &[&second]])
    };
    let good = Task::Reduce {
        dst: output,
        a: input,
        b: scratch,
        count: 2,
    };
    assert!(
        !verify(&exchange(&[good])).unwrap().same_bits,
        "a + b here, b + a there"
    );

    let twice = exchange(&[
        good,
        Task::Reduce {
            dst: output,
            a: output,
            b: scratch,
            count: 2,
        },
    ]);
    assert!(matches!(*refuse(&twice).fault, Fault::CombinesTwice { .. }));
    let half = exchange(&[Task::Reduce {
        dst: output,
        a: input,
        b: scratch,
        count: 1,
    }]);
    assert_eq!(
        refuse(&half).to_string(),
        "rank 0: bytes 8..16 of the output hold what was there before, but should hold the \
         combined inputs of all ranks from offset 8"
    );
    let crossed = exchange(&[Task::Reduce {
        dst: output,
        a: input,
        b: Loc::scratch(8),
        count: 1,
    }]);
    assert_eq!(
        *refuse(&crossed).fault,
        Fault::CombinesOthers {
            first: 0,
            second: 8
        }
    );
    let alone = exchange(&[copy(output, input)]);
    assert_eq!(
        refuse(&alone).to_string(),
        "rank 0: bytes 0..16 of the output hold the input of rank 0 from offset 0, but should hold \
         the combined inputs of all ranks from offset 0"
    );
    assert_eq!(verify_all(&alone).unwrap_err().len(), 2);
}

#[test]
fn notifies_with_two_ends_and_credits_that_lead_nowhere() {
    let two_waiters = plan(
        Operation::Barrier,
        &[
            &[&[record(ONE, 0), record(ONE, 0)]],
            &[&[wait(ZERO, 0)], &[wait(ZERO, 0)]],
        ],
    );
    assert!(matches!(
        *refuse(&two_waiters).fault,
        Fault::TwoWaiters { .. }
    ));
    let two_recorders = plan(
        Operation::Barrier,
        &[
            &[&[record(ONE, 0)], &[record(ONE, 0)]],
            &[&[wait(ZERO, 0), wait(ZERO, 0)]],
        ],
    );
    assert!(matches!(
        *refuse(&two_recorders).fault,
        Fault::TwoRecorders { .. }
    ));
    let mut credited = plan(
        Operation::Barrier,
        &[
            &[&[wait(ONE, 0), wait(ONE, 0)]],
            &[&[record(ZERO, 0), record(ZERO, 0)]],
        ],
    );
    assert_eq!(verify(&credited).unwrap().notify_capacity, 2);
    credited.initial_credits = vec![Credit {
        recorder: ONE,
        waiter: ZERO,
        notify: 0,
        count: 3,
    }];
    assert_eq!(verify(&credited).unwrap().notify_capacity, 5);
    credited.initial_credits[0].recorder = Rank(7);
    assert!(
        refuse(&credited)
            .to_string()
            .contains("names a rank that is not there")
    );
}

#[test]
fn ranges_that_wrap_around_or_overlap() {
    let far = Loc::scratch(u64::MAX - 3);
    let finding = refuse(&plan(
        Operation::Barrier,
        &[&[&[copy(far, Loc::scratch(0))]]],
    ));
    assert_eq!(
        finding.to_string(),
        "rank 0, thread 0, task 0 (copy 16 bytes from scratch+0 to scratch+18446744073709551612): \
         reaches bytes 18446744073709551612..18446744073709551628 of the scratch of rank 0, which \
         has 64 bytes"
    );
    let onto_itself = plan(
        Operation::Barrier,
        &[&[&[copy(Loc::scratch(8), Loc::scratch(0))]]],
    );
    assert_eq!(*refuse(&onto_itself).fault, Fault::OverlapsItself);
    let input = plan(FROM_ZERO, &[&[&[copy(Loc::input(0), Loc::scratch(0))]]]);
    assert_eq!(*refuse(&input).fault, Fault::WritesInput { owner: ZERO });
    let huge = Task::Reduce {
        dst: Loc::scratch(0),
        a: Loc::scratch(0),
        b: Loc::scratch(0),
        count: u64::MAX,
    };
    assert!(matches!(
        *refuse(&plan(Operation::Barrier, &[&[&[huge]]])).fault,
        Fault::OutOfBounds { .. }
    ));
}

fn packet_write(peer: Rank, line: u32, bytes: u64) -> Task {
    Task::PacketWrite {
        peer,
        line,
        src: Loc::input(0),
        bytes,
    }
}

fn packet_read(peer: Rank, line: u32, bytes: u64) -> Task {
    Task::PacketRead {
        peer,
        dst: Loc::output(0),
        line,
        bytes,
    }
}

/// The root sends a packet; the other one answers with an empty one, if it is to.
fn in_a_packet(answer: bool) -> Plan {
    let mut root = vec![packet_write(ONE, 3, 16), OWN];
    let mut other = vec![packet_read(ZERO, 3, 16)];
    if answer {
        root.push(packet_read(ONE, 0, 0));
        other.push(Task::PacketWrite {
            peer: ZERO,
            line: 0,
            src: Loc::output(0),
            bytes: 0,
        });
    }
    plan(FROM_ZERO, &[&[&root], &[&other]])
}

#[test]
fn a_packet_orders_its_reader_after_its_writer() {
    let proof = verify(&in_a_packet(true)).unwrap();
    assert!(proof.synchronising && proof.quiescent);
    assert_eq!((proof.notifies, proof.notify_capacity), (0, 0));
    // What the writer knew, the reader knows: it may look into the writer's input.
    let told = plan(
        FROM_ZERO,
        &[
            &[&[OWN, packet_write(ONE, 0, 0), packet_read(ONE, 0, 0)]],
            &[&[
                packet_read(ZERO, 0, 0),
                read(ZERO, Loc::output(0), Loc::input(0)),
                Task::PacketWrite {
                    peer: ZERO,
                    line: 0,
                    src: Loc::output(0),
                    bytes: 0,
                },
            ]],
        ],
    );
    verify(&told).unwrap();
    let mut untold = told;
    untold.ranks[1].threads[0].swap(0, 1);
    assert!(matches!(
        *refuse(&untold).fault,
        Fault::BeforeBegin { owner: ZERO, .. }
    ));
}

#[test]
fn a_packet_does_not_say_that_writes_have_landed() {
    let (there, input) = (Loc::scratch(0), Loc::input(0));
    let mut early = plan(
        FROM_ZERO,
        &[
            &[&[OWN, write(ONE, there, input, None), packet_write(ONE, 0, 0)]],
            &[&[packet_read(ZERO, 0, 0), OUT]],
        ],
    );
    assert!(matches!(*refuse(&early).fault, Fault::Race { .. }));
    early.ranks[0].threads[0][2] = record(ONE, 0);
    early.ranks[1].threads[0][0] = wait(ZERO, 0);
    verify(&early).unwrap();
}

#[test]
fn packets_that_do_not_fit_together() {
    let damaged = |damage: &dyn Fn(&mut Plan)| {
        let mut plan = in_a_packet(true);
        damage(&mut plan);
        *refuse(&plan).fault
    };
    let root = |plan: &mut Plan, task: Task| plan.ranks[0].threads[0][0] = task;
    let unsent = damaged(&|plan| root(plan, packet_write(ONE, 4, 16)));
    assert_eq!(unsent, Fault::PacketUnsent { writer: ZERO });
    let untaken = damaged(&|plan| {
        plan.ranks[1].threads[0].remove(0);
    });
    assert_eq!(untaken, Fault::PacketUntaken { reader: ONE });
    let short = damaged(&|plan| root(plan, packet_write(ONE, 3, 8)));
    assert!(matches!(
        short,
        Fault::PacketLength {
            taken: 16,
            sent: 8,
            ..
        }
    ));
    let twice = damaged(&|plan| plan.ranks[0].threads[0].push(packet_write(ONE, 3, 16)));
    assert!(matches!(twice, Fault::LineTwice { line: 3, .. }));
    let beyond = damaged(&|plan| root(plan, packet_write(ONE, 32, 16)));
    assert!(matches!(beyond, Fault::PacketLines { line: 32, .. }));
    let outside = damaged(&|plan| root(plan, packet_write(ONE, 3, 17)));
    assert!(matches!(outside, Fault::OutOfBounds { .. }));
    let stuck = damaged(&|plan| plan.ranks[0].threads[0].rotate_right(1));
    assert!(matches!(stuck, Fault::Deadlock { .. }), "{stuck}");
    let uncounted = damaged(&|plan| {
        plan.shape.operation = Operation::SendRecv {
            from: ZERO,
            to: ONE,
        };
    });
    assert_eq!(uncounted, Fault::PacketUncounted);
}

#[test]
fn a_line_is_not_used_again_before_it_was_read() {
    let answered = in_a_packet(true);
    verify_sequence(&[&answered; 5]).unwrap();
    // Without an answer the root may be two operations ahead.
    let pushed = in_a_packet(false);
    verify_sequence(&[&pushed, &pushed]).unwrap();
    let finding = verify_sequence(&[&pushed, &pushed, &pushed]).unwrap_err();
    assert!(
        matches!(
            *finding.fault,
            Fault::LineInUse {
                writer: ZERO,
                reader: ONE,
                line: 3,
                ..
            }
        ),
        "{finding}"
    );
}
