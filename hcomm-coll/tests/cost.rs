//! The cost model: against closed forms where nothing but news and wires costs, and what must hold
//! on any machine.

use hcomm_coll::algorithms::{self, Params};
use hcomm_coll::cost::{Chooser, Machine, Prediction, Reach, Site, Terms, predict};
use hcomm_coll::plan::{Operation, Shape};
use hcomm_types::{DataType, Rank, ReduceOp};

const ALPHA_NS: u64 = 1000;
/// 10 GB/s.
const BYTE_PS: u64 = 100;

fn shape(operation: Operation, ranks: u32, count: u64) -> Shape {
    Shape {
        operation,
        ranks,
        count: count.into(),
        dtype: DataType::F32,
        redop: ReduceOp::Sum.into(),
        in_place: matches!(operation, Operation::Broadcast { .. }),
    }
}

fn params(slice_bytes: u64) -> Params {
    Params {
        scratch_bytes: 64 << 20,
        slice_bytes,
        groups: None,
        flows: 1,
    }
}

const TERMS: Terms = Terms {
    scratch_bytes: 7 << 20,
    stream_bytes: 128 << 10,
    deterministic: false,
    lends: true,
};

/// Wires between all ranks, a core for each.
fn wires() -> Site {
    let wire = Reach::Wire {
        latency_ns: ALPHA_NS,
        byte_ps: BYTE_PS,
    };
    Site {
        cores: 4096,
        hosts: None,
        near: wire,
        far: wire,
    }
}

fn time(algorithm: &str, shape: &Shape, machine: &Machine, site: &Site) -> Prediction {
    let plan = algorithms::by_name(algorithm)
        .expect("a built-in algorithm")
        .plan(shape, &params(1 << 30))
        .expect("a plan");
    predict(&plan, machine, site).expect("it ends")
}

fn ideal(algorithm: &str, shape: &Shape) -> u64 {
    time(algorithm, shape, &Machine::ideal(ALPHA_NS as u32), &wires()).total_ps
}

#[track_caller]
fn assert_near(found: u64, expected: u64) {
    let off = found.abs_diff(expected) * 100;
    assert!(
        off <= 2 * expected,
        "predicted {found} ps, expected {expected} ps"
    );
}

#[test]
fn on_an_ideal_machine_algorithms_take_what_the_textbooks_say() {
    let alpha = ALPHA_NS * 1000;
    for ranks in [2_u32, 4, 8] {
        let n = u64::from(ranks);
        let log = u64::from(ranks.ilog2());
        let bytes = 64_000 * 8;
        let beta = bytes * BYTE_PS;
        let all_reduce = shape(Operation::AllReduce, ranks, bytes / 4);
        assert_near(ideal("ring", &all_reduce), 2 * (n - 1) * (alpha + beta / n));
        assert_near(
            ideal("recursive_doubling", &all_reduce),
            log * (alpha + beta),
        );
        assert_near(
            ideal("halving_doubling", &all_reduce),
            2 * log * alpha + 2 * (n - 1) * beta / n,
        );
        assert_near(ideal("mesh_one_shot", &all_reduce), alpha + beta);
        // Each rank contributes a part.
        let all_gather = shape(Operation::AllGather, ranks, bytes / 4 / n);
        assert_near(ideal("ring", &all_gather), (n - 1) * (alpha + beta / n));
        let reduce_scatter = shape(Operation::ReduceScatter, ranks, bytes / 4 / n);
        assert_near(ideal("ring", &reduce_scatter), (n - 1) * (alpha + beta / n));
        let all_to_all = shape(Operation::AllToAll, ranks, bytes / 4 / n);
        // With partners whose numbers add up to the step some rank pauses in each of n steps.
        let steps = if ranks == 2 { 1 } else { n };
        assert_near(ideal("pairwise", &all_to_all), steps * (alpha + beta / n));
        let barrier = shape(Operation::Barrier, ranks, 0);
        assert_near(ideal("mesh_one_shot", &barrier), alpha);
        assert_near(ideal("recursive_doubling", &barrier), log * alpha);
    }
}

#[test]
fn a_larger_size_or_a_longer_way_never_takes_less() {
    let machine = Machine::built_in();
    let mut slower = machine.clone();
    slower.signals.alpha_ns *= 3;
    slower.signals.packet_ns *= 3;
    let mut narrower = machine.clone();
    for costs in [
        &mut narrower.memory.read_ps,
        &mut narrower.memory.write_ps,
        &mut narrower.memory.fetch_ps,
        &mut narrower.memory.offer_ps,
        &mut narrower.memory.put_ps,
    ] {
        costs.iter_mut().for_each(|cost| *cost *= 2);
    }
    for operation in [
        Operation::AllReduce,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllToAll,
        Operation::Broadcast { root: Rank(0) },
    ] {
        for ranks in [2, 4] {
            for algorithm in algorithms::algorithms() {
                let mut before = 0;
                for count in [1_u64, 64, 4096, 64 << 10] {
                    let shape = shape(operation, ranks, count);
                    if !algorithm.supports(&shape) {
                        continue;
                    }
                    let Ok(plan) = algorithm.plan(&shape, &params(256 << 10)) else {
                        continue;
                    };
                    let name = algorithm.name();
                    let time = |machine, cores| {
                        predict(&plan, machine, &Site::mapped(cores))
                            .unwrap()
                            .total_ps
                    };
                    let base = time(&machine, ranks);
                    assert!(base >= before, "{name}: {shape}");
                    assert!(time(&slower, ranks) >= base, "{name}: {shape}, slower news");
                    assert!(
                        time(&narrower, ranks) >= base,
                        "{name}: {shape}, slower memory"
                    );
                    before = base;
                }
            }
        }
    }
}

#[test]
fn the_parts_of_a_time_add_up_to_it() {
    let machine = Machine::built_in();
    for (cores, ranks) in [(4, 4), (2, 4), (2, 8)] {
        for name in ["mesh_one_shot", "mesh_two_shot", "ring", "halving_doubling"] {
            let shape = shape(Operation::AllReduce, ranks, 50_000);
            let found = time(name, &shape, &machine, &Site::mapped(cores));
            let spent = found.spent;
            let sum = spent.waiting_ps
                + spent.moving_ps
                + spent.combining_ps
                + spent.switching_ps
                + spent.calling_ps;
            let off = sum.abs_diff(found.total_ps);
            assert!(
                off * 100 <= found.total_ps,
                "{name} of {ranks} ranks on {cores} cores: {found:?}, in all {sum}"
            );
        }
    }
}

#[test]
fn a_plan_that_hangs_has_no_time() {
    let shape = shape(Operation::AllReduce, 2, 10);
    let one_shot = algorithms::by_name("mesh_one_shot").unwrap();
    let mut plan = one_shot.plan(&shape, &params(1 << 20)).unwrap();
    plan.ranks[1].threads[0].remove(0);
    let stuck = predict(&plan, &Machine::built_in(), &Site::mapped(2)).unwrap_err();
    assert_eq!(stuck.rank, Rank(0));
}

#[test]
fn long_plans_are_predicted_from_short_ones() {
    let chooser = Chooser::new(Machine::built_in(), Site::mapped(4));
    for name in [
        "mesh_two_shot",
        "ring",
        "halving_doubling",
        "ring_bidirectional",
    ] {
        for ranks in [2, 4] {
            // 256 slices.
            let shape = shape(Operation::AllReduce, ranks, 4 << 20);
            let params = Params {
                scratch_bytes: 4 << 20,
                slice_bytes: 64 << 10,
                groups: None,
                flows: 1,
            };
            let algorithm = algorithms::by_name(name).unwrap();
            let short = chooser
                .predict(algorithm, &shape, &params)
                .unwrap()
                .total_ps;
            let plan = algorithm.plan(&shape, &params).unwrap();
            let whole = predict(&plan, chooser.machine(), chooser.site())
                .unwrap()
                .total_ps;
            let off = short.abs_diff(whole) * 100;
            assert!(
                off <= 5 * whole,
                "{name} of {ranks}: {short} instead of {whole}"
            );
        }
    }
}

#[test]
fn what_ranks_may_not_agree_on_has_no_part_in_the_choice() {
    let chooser = || Chooser::new(Machine::built_in(), Site::mapped(2));
    for ranks in [2, 3, 8] {
        for bits in 2..28 {
            let all_reduce = shape(Operation::AllReduce, ranks, (1 << bits) / 4 + 1);
            let in_place = Shape {
                in_place: true,
                ..all_reduce.clone()
            };
            let one = chooser().choose(&all_reduce, &TERMS);
            assert!(one.is_some());
            assert_eq!(one, chooser().choose(&in_place, &TERMS), "{all_reduce}");
        }
    }
}

#[test]
fn deterministic_communicators_take_only_what_combines_in_rank_order() {
    let chooser = Chooser::new(Machine::built_in(), Site::mapped(8));
    let terms = Terms {
        deterministic: true,
        ..TERMS
    };
    for ranks in [3, 8] {
        for bits in 0..26 {
            let shape = shape(Operation::AllReduce, ranks, 1 << bits);
            let means = chooser.choose(&shape, &terms).unwrap();
            let algorithm = algorithms::by_name(means.name).unwrap();
            assert!(
                algorithm.combines_in_rank_order(&shape),
                "{shape}: {means:?}"
            );
        }
    }
}

#[test]
fn between_hosts_it_is_worth_while_to_go_by_groups() {
    let hosts = Site {
        cores: 8,
        hosts: Some([0, 0, 0, 0, 1, 1, 1, 1].into()),
        near: Reach::Mapped,
        far: Reach::Wire {
            latency_ns: 20_000,
            byte_ps: 1000,
        },
    };
    let chooser = Chooser::new(Machine::built_in(), hosts);
    let terms = Terms {
        scratch_bytes: 7 << 20,
        ..TERMS
    };
    let shape = shape(Operation::AllReduce, 8, 16 << 20);
    let comparison = chooser.compare(&shape, &terms);
    let of = |name: &str| {
        let mut all = comparison.candidates.iter();
        all.find(|candidate| candidate.means.name == name)
            .unwrap()
            .prediction
            .total_ps
    };
    assert!(of("hierarchical") < of("mesh_two_shot"), "{comparison:#?}");
    assert!(
        comparison
            .excluded
            .iter()
            .any(|other| other.name == "mesh_packet"),
        "packets need memory that is mapped"
    );
}

/// All ranks of a host share its interface: on one of 1 Gbit/s what crosses it less often is taken.
/// Of powers of two, partners that exchange halves do so as well, for they begin inside a host.
#[test]
fn between_hosts_what_crosses_least_is_chosen() {
    let of_hosts: [(&[u32], &str); 2] = [
        (&[0, 0, 1, 1], "halving_doubling"),
        (&[0, 0, 0, 1, 1, 1], "hierarchical"),
    ];
    for (hosts, expected) in of_hosts {
        let site = Site {
            cores: 4,
            hosts: Some(hosts.into()),
            near: Reach::Mapped,
            far: Reach::Wire {
                latency_ns: 5_000,
                byte_ps: 8000,
            },
        };
        let chooser = Chooser::new(Machine::built_in(), site);
        let shape = shape(Operation::AllReduce, hosts.len() as u32, 16 << 20);
        let terms = Terms {
            scratch_bytes: 7 << 20,
            ..TERMS
        };
        let comparison = chooser.compare(&shape, &terms);
        let of = |name: &str| {
            let mut all = comparison.candidates.iter();
            let found = all.find(|candidate| candidate.means.name == name);
            found.unwrap().prediction.total_ps
        };
        let means = chooser.choose(&shape, &terms).unwrap();
        assert_eq!(means.name, expected);
        assert!(of(expected) * 5 < of("ring") * 4);
        assert!(of("hierarchical") < of("ring"));
    }
}

/// Too many tasks to be run in virtual time, yet some way has to be taken.
#[test]
fn what_cannot_be_predicted_goes_somehow() {
    let chooser = Chooser::new(Machine::built_in(), Site::mapped(8));
    let shape = shape(Operation::AllGather, 2048, 1 << 20);
    let terms = Terms {
        scratch_bytes: 1 << 20,
        ..TERMS
    };
    let means = chooser.choose(&shape, &terms).unwrap();
    assert!(algorithms::by_name(means.name).unwrap().supports(&shape));
}

/// What waits for news most of the time goes faster in several flows.
#[test]
fn large_operations_gain_by_flows_where_news_takes_long() {
    let mut site = wires();
    site.near = Reach::Wire {
        latency_ns: 100_000,
        byte_ps: 80,
    };
    site.far = site.near;
    let machine = Machine::built_in();
    let large = shape(Operation::AllReduce, 3, 16 << 20);
    let ring = algorithms::by_name("ring").unwrap();
    let time = |flows| {
        let params = Params {
            flows,
            ..params(512 << 10)
        };
        let plan = ring.plan(&large, &params).unwrap();
        predict(&plan, &machine, &site).unwrap().total_ps
    };
    assert!(20 * time(4) < 17 * time(1), "{} and {}", time(4), time(1));
}
