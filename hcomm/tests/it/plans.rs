//! Plans that a program brings: used for their shape only, on all ranks, and refused with the
//! reason.

use hcomm::algorithms::{Algorithm, Handshake, MeshPacket, Params, Ring};
use hcomm::plan::{Loc, Operation, Plan, RankPlan, Shape, Task};
use hcomm::{
    Communicator, CpuTs, DataType, Engine, ErrorKind, Options, Rank, ReduceOp, Result, Thread,
};

use crate::team;

const COUNT: usize = 64;

/// The plan that lies beside the examples.
fn example() -> Plan {
    Plan::from_json(include_str!("../../examples/plan_file.json")).unwrap()
}

/// A sum of all ranks' numbers, as long as the example's.
fn sum(comm: &Communicator) -> Result<()> {
    let input: Vec<f32> = (0..COUNT)
        .map(|i| (i as u32 + comm.rank().0) as f32)
        .collect();
    let mut output = vec![-1.0; COUNT];
    comm.all_reduce(&input, &mut output, ReduceOp::Sum)?;
    for (i, element) in output.iter().enumerate() {
        assert_eq!(*element, (2 * i + 1) as f32);
    }
    Ok(())
}

#[test]
fn a_plan_serves_its_shape_and_nothing_else() {
    team::run(2, |comm| {
        let plan = example();
        let in_place = Shape {
            in_place: true,
            ..plan.shape.clone()
        };
        let longer = Shape {
            count: (COUNT as u64 + 1).into(),
            ..plan.shape.clone()
        };
        let usual = comm.algorithm(&plan.shape).unwrap();
        sum(&comm).unwrap();
        comm.use_plan(Some(&plan)).unwrap();
        assert_eq!(comm.algorithm(&plan.shape).unwrap(), "exchange");
        for shape in [&in_place, &longer] {
            assert_ne!(comm.algorithm(shape).unwrap(), "exchange");
        }
        // Three, so that both halves of the scratch memory have their turn; others in between.
        for _ in 0..3 {
            sum(&comm).unwrap();
            comm.barrier().unwrap();
            let mut one = [comm.rank().0];
            comm.all_reduce_in_place(&mut one, ReduceOp::Sum).unwrap();
            assert_eq!(one, [1]);
        }
        comm.use_plan(None).unwrap();
        assert_eq!(comm.algorithm(&plan.shape).unwrap(), usual);
        sum(&comm).unwrap();
        comm.close().unwrap();
    });
}

/// One rank goes by a plan, the other by another plan or by the model's choice.
#[test]
fn ranks_with_different_plans_are_told() {
    for other in [None, Some("renamed")] {
        let errors = team::run(2, move |comm| {
            let mut plan = example();
            if comm.rank() == Rank(0) {
                comm.use_plan(Some(&plan)).unwrap();
            } else if let Some(name) = other {
                plan.algorithm = name.to_owned();
                comm.use_plan(Some(&plan)).unwrap();
            }
            sum(&comm).unwrap_err()
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{other:?}: {error}");
        }
    }
}

/// What all ranks do to carry out `operation` on so many bytes.
fn by_hand(operation: Operation, ranks: Vec<Vec<Task>>) -> Plan {
    let rank = |tasks| RankPlan {
        threads: vec![tasks],
        scratch_bytes: 64,
    };
    Plan {
        shape: Shape {
            operation,
            ranks: 2,
            count: 4.into(),
            dtype: DataType::U8,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        },
        ranks: ranks.into_iter().map(rank).collect(),
        ..example()
    }
}

fn write(peer: Rank, dst: Loc, notify: u32) -> Task {
    Task::Write {
        peer,
        dst,
        src: Loc::input(0),
        bytes: 4,
        notify: Some(notify),
    }
}

const fn copy(dst: Loc, src: Loc) -> Task {
    Task::Copy { dst, src, bytes: 4 }
}

/// Plans that cannot be used, each with a word of the reason.
fn refused() -> Vec<(Plan, &'static str)> {
    let params = Params {
        scratch_bytes: 4096,
        slice_bytes: 1024,
        groups: None,
        flows: 1,
    };
    let (first, second) = (Rank(0), Rank(1));
    let three = Shape {
        ranks: 3,
        ..example().shape
    };
    let three = Ring.plan(&three, &params).unwrap();
    let message = Shape {
        operation: Operation::SendRecv {
            from: first,
            to: second,
        },
        ..example().shape
    };
    let message = Handshake.plan(&message, &params).unwrap();
    let mut wrong = example();
    wrong.ranks[0].threads[0].remove(1);
    let one_way = by_hand(
        Operation::Broadcast { root: first },
        vec![
            vec![
                copy(Loc::output(0), Loc::input(0)),
                write(second, Loc::scratch(0), 0),
            ],
            vec![
                Task::Wait {
                    peer: first,
                    notify: 0,
                },
                copy(Loc::output(0), Loc::scratch(0)),
            ],
        ],
    );
    let meet = |me: Rank, peer: Rank| {
        let own = Loc::output(4 * u64::from(me.0));
        vec![
            Task::Record { peer, notify: 0 },
            Task::Wait { peer, notify: 0 },
            write(peer, own, 1),
            copy(own, Loc::input(0)),
            Task::Wait { peer, notify: 1 },
        ]
    };
    let direct = by_hand(
        Operation::AllGather,
        vec![meet(first, second), meet(second, first)],
    );
    let mut many = example();
    for task in many.ranks.iter_mut().flat_map(|rank| &mut rank.threads[0]) {
        match task {
            Task::Write { notify, .. } => *notify = Some(40),
            Task::Wait { notify, .. } => *notify = 40,
            _ => {}
        }
    }
    let mut large = example();
    large.ranks[1].scratch_bytes = 1 << 40;
    let mut threads = example();
    let tasks = &mut threads.ranks[0].threads;
    let reduce = tasks[0].remove(2);
    tasks[0].push(Task::ThreadWait { notify: 0 });
    tasks[0].push(reduce);
    tasks.push(vec![Task::ThreadRecord {
        thread: 0,
        notify: 0,
    }]);
    vec![
        (three, "for 3 ranks"),
        (message, "message"),
        (wrong, "rank"),
        (one_way, "not synchronising"),
        (direct, "touches input or output"),
        (many, "notif"),
        (large, "HCOMM_BUFFER_BYTES"),
        (threads, "thread 0 of rank 0"),
    ]
}

#[test]
fn a_plan_that_cannot_be_used_is_refused_and_nothing_else_happens() {
    team::run(2, |comm| {
        for (plan, word) in refused() {
            let error = comm.use_plan(Some(&plan)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(word), "{word} in {error}");
        }
        sum(&comm).unwrap();
        comm.close().unwrap();
    });
}

/// The example over a link that maps no memory, and packets, which need one that does.
#[test]
fn packets_are_refused_where_ranks_do_not_map_each_other() {
    let packets = |comm: &Communicator| {
        let params = Params {
            scratch_bytes: comm.layout().half_bytes(),
            slice_bytes: 4096,
            groups: None,
            flows: 1,
        };
        MeshPacket.plan(&example().shape, &params).unwrap()
    };
    let comms = team::run_with(2, &Options::default().transports("delay"), move |comm| {
        let error = comm.use_plan(Some(&packets(&comm))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("has packets"), "{error}");
        comm.use_plan(Some(&example())).unwrap();
        sum(&comm).unwrap();
        // Left when both are through.
        comm
    });
    drop(comms);
    team::run(2, move |comm| {
        comm.use_plan(Some(&packets(&comm))).unwrap();
        for _ in 0..3 {
            sum(&comm).unwrap();
        }
        comm.close().unwrap();
    });
}

/// Two threads on each rank, the first of which hands the second its work.
#[test]
fn a_plan_of_two_threads_runs() {
    let two = |me: u32| {
        let peer = Rank(1 - me);
        let own = Loc::output(4 * u64::from(me));
        let others = Loc::output(4 * u64::from(peer.0));
        RankPlan {
            threads: vec![
                vec![
                    write(peer, Loc::scratch(0), 0),
                    Task::ThreadRecord {
                        thread: 1,
                        notify: 0,
                    },
                    Task::Wait { peer, notify: 0 },
                    copy(others, Loc::scratch(0)),
                ],
                vec![Task::ThreadWait { notify: 0 }, copy(own, Loc::input(0))],
            ],
            scratch_bytes: 4,
        }
    };
    let mut plan = by_hand(Operation::AllGather, Vec::new());
    plan.ranks = vec![two(0), two(1)];
    team::run(2, move |comm| {
        comm.use_plan(Some(&plan)).unwrap();
        for round in 0..5u8 {
            let mine = [comm.rank().0 as u8 * 10 + round; 4];
            let mut all = [0xff; 8];
            comm.all_gather(&mine, &mut all).unwrap();
            assert_eq!(all[..4], [round; 4]);
            assert_eq!(all[4..], [10 + round; 4]);
        }
        // What is put on a thread is done when all its parts are.
        let memory = comm.allocate("memory", 12).unwrap();
        let (own, all) = (memory.sub(0..4).unwrap(), memory.sub(4..12).unwrap());
        for engine in [Engine::Cpu, Engine::CpuTs(CpuTs::worker(0))] {
            let threads = [0, 1].map(|_| comm.thread_on(engine, 0).unwrap());
            for round in 0..50u8 {
                own.copy_from(&[comm.rank().0 as u8 * 100 + round; 4])
                    .unwrap();
                let thread = &threads[usize::from(round % 3 == 0)];
                let request = comm
                    .all_gather_on(thread, &own, &all, DataType::U8)
                    .unwrap();
                request.wait().unwrap();
                let mut found = [0; 8];
                all.copy_to(&mut found).unwrap();
                assert_eq!(found[..4], [round; 4]);
                assert_eq!(found[4..], [100 + round; 4]);
            }
        }
        comm.close().unwrap();
    });
}

#[test]
fn a_plan_with_more_threads_than_are_left_is_refused() {
    let with_threads = |count: usize| {
        let mut plan = example();
        for rank in &mut plan.ranks {
            rank.threads.resize(count, Vec::new());
        }
        plan
    };
    team::run(2, move |comm| {
        let others: Vec<Thread> = (0..10).map(|_| comm.thread(0).unwrap()).collect();
        let error = comm.use_plan(Some(&with_threads(35))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("threads"), "{error}");
        // It holds none of those that are left; this one's threads but one have nothing to do.
        let more: Vec<Thread> = (0..20).map(|_| comm.thread(0).unwrap()).collect();
        drop((others, more));
        comm.use_plan(Some(&with_threads(4))).unwrap();
        for _ in 0..3 {
            sum(&comm).unwrap();
        }
        comm.close().unwrap();
    });
}
