//! Rings and mappings: heavy traffic stays on fast links, and what is said about it is true.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::fs;
use std::path::PathBuf;

use hcomm_topo::{Advice, AdviceError, Allowed, GroupKind, Message, RankGraph, Segment, load};
use hcomm_types::{Protocol, Rank};
use proptest::prelude::*;

fn cluster(name: &str) -> RankGraph {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clusters");
    let text = fs::read_to_string(folder.join(name).with_extension("json")).unwrap();
    load(&text, None).unwrap().graph
}

fn kinds(list: &[(&str, u32, u64)]) -> Vec<GroupKind> {
    let kind = |(name, size, weight): &(&str, u32, u64)| GroupKind {
        name: (*name).to_owned(),
        size: *size,
        weight: *weight,
    };
    list.iter().map(kind).collect()
}

fn ranks(list: &[u32]) -> Vec<Rank> {
    list.iter().copied().map(Rank).collect()
}

fn all(graph: &RankGraph) -> Vec<Rank> {
    (0..graph.size()).map(Rank).collect()
}

const BYTES: u64 = 64 << 20;

fn advise(graph: &RankGraph, list: &[(&str, u32, u64)], mapping: &[Rank]) -> Advice {
    let advice = graph.advise(&kinds(list), mapping, BYTES).unwrap();
    let mut sorted = advice
        .better
        .as_ref()
        .unwrap_or(&advice.given)
        .ranks
        .clone();
    sorted.sort_unstable();
    let mut wanted = mapping.to_vec();
    wanted.sort_unstable();
    assert_eq!(sorted, wanted, "each rank has one position");
    advice
}

#[test]
fn a_group_over_pcie_is_recognised_and_a_better_mapping_is_found() {
    let graph = cluster("cards4x4");
    let list = [("dp", 2, 10), ("tp", 4, 100)];
    // With dp counted first, groups of tp are 0,2,4,6 and 1,3,5,7.
    let advice = advise(&graph, &list, &all(&graph));
    let tp = &advice.given.paces[1];
    assert_eq!(tp.rings, [ranks(&[0, 2, 4, 6]), ranks(&[1, 3, 5, 7])]);
    let slowest = tp.slowest.as_ref().unwrap();
    assert_eq!(slowest.link.as_ref().unwrap().protocol, Protocol::Pcie);
    // Two rings cross on one wire, each way.
    assert!(matches!(
        slowest.wire,
        Some(Segment::Up(_) | Segment::Down(_))
    ));
    assert_eq!((slowest.messages, slowest.bytes_per_s), (2, 12_000_000_000));
    assert_eq!(tp.links_bytes_per_s, (30_000_000_000, 24_000_000_000));
    // 6/4 of the bytes at 12 GB/s, and 6 times the latency of PCIe with two switches on the way.
    let latency = slowest.link.as_ref().unwrap().latency_ns;
    let wanted = BYTES * 3 / 2 / 12 + 6 * latency;
    assert!(tp.time_ns.unwrap().abs_diff(wanted) <= 2, "{tp:?}");

    let better = advice.better.unwrap();
    assert_eq!(better.ranks, ranks(&[0, 4, 1, 5, 2, 6, 3, 7]));
    let tp = &better.paces[1];
    assert_eq!(
        tp.slowest.as_ref().unwrap().link.as_ref().unwrap().protocol,
        Protocol::Hccs
    );
    assert_eq!(tp.rings[1], ranks(&[4, 5, 6, 7]));

    // The better one is the best that there is to say.
    let again = advise(&graph, &list, &better.ranks);
    assert_eq!(again.better, None);
    // With tp counted first the ranks lie right already.
    let list = [("tp", 4, 100), ("dp", 2, 10)];
    assert_eq!(advise(&graph, &list, &all(&graph)).better, None);
}

#[test]
fn rings_cross_slow_links_as_seldom_as_they_can() {
    let graph = cluster("cards4x4");
    let ring = graph.ring_order(&ranks(&[0, 4, 1, 5, 2, 6, 3, 7]));
    let crossings = (0..8).filter(|at| (ring[*at].0 < 4) != (ring[(at + 1) % 8].0 < 4));
    assert_eq!(crossings.count(), 2, "{ring:?}");
    let odd = cluster("odd");
    // Of the ring of five, along its cables.
    let ring = odd.ring_order(&ranks(&[0, 1, 2, 3, 4]));
    for at in 0..5 {
        let link = &odd.links(ring[at], ring[(at + 1) % 5])[0];
        assert_eq!(link.hops, 1, "{ring:?}");
    }
    let pods = cluster("superpod384");
    let ring = pods.ring_order(&ranks(&[17, 0, 33, 1, 16, 32]));
    let far = (0..6).filter(|at| !pods.same_host(ring[*at], ring[(at + 1) % 6]));
    assert_eq!(far.count(), 3, "{ring:?}");
}

#[test]
fn rails_are_kept_and_a_shuffled_job_is_put_in_order() {
    let graph = cluster("rails1024");
    let list = [("tp", 8, 100), ("dp", 128, 10)];
    let first = advise(&graph, &list, &all(&graph));
    let tp = &first.given.paces[0];
    assert_eq!(tp.links_bytes_per_s, (28_000_000_000, 28_000_000_000));
    // Rings of dp stay on their rails: nobody shares a port.
    assert!(
        first.given.paces[1]
            .rings
            .iter()
            .all(|ring| { ring.iter().all(|rank| rank.0 % 8 == ring[0].0 % 8) })
    );
    // Dealt out like cards, each group of tp is on eight hosts.
    let dealt: Vec<Rank> = (0..1024).map(|at| Rank(at % 8 * 128 + at / 8)).collect();
    let advice = advise(&graph, &list, &dealt);
    let better = advice.better.unwrap();
    assert!(
        better.paces[0]
            .rings
            .iter()
            .all(|ring| { ring.iter().all(|rank| graph.same_host(*rank, ring[0])) })
    );
    let (was, now) = (&advice.given.paces[0], &better.paces[0]);
    assert!(
        was.time_ns.unwrap() > 2 * now.time_ns.unwrap(),
        "{:?}",
        was.slowest
    );
}

#[test]
fn a_hand_drawn_cluster_gets_groups_on_its_fast_links() {
    let graph = cluster("odd");
    let torn = ranks(&[0, 5, 1, 6, 3, 7, 2, 4]);
    let advice = advise(&graph, &[("tp", 2, 100), ("dp", 4, 1)], &torn);
    // The fast pair is together, and no pair is torn between the two hosts but for one too many.
    let best = advice.better.unwrap();
    let together = |a: u32, b: u32| {
        let rings = &best.paces[0].rings;
        rings
            .iter()
            .any(|ring| ring.contains(&Rank(a)) && ring.contains(&Rank(b)))
    };
    assert!(together(1, 3), "{:?}", best.paces[0].rings);
    let torn = best.paces[0]
        .rings
        .iter()
        .filter(|ring| !graph.same_host(ring[0], ring[1]));
    assert_eq!(torn.count(), 1);
}

/// Two ranks on two switches, by ports of these speeds and latencies.
fn two_ports(ports: &[(f64, u64)]) -> RankGraph {
    let switches: Vec<String> = (0..ports.len())
        .map(|at| format!("{{\"name\": \"s{at}\"}}"))
        .collect();
    let ports: Vec<String> = ports
        .iter()
        .enumerate()
        .map(|(at, (gigabytes, latency))| {
            format!(
                "{{\"protocol\": \"roce\", \"switch\": \"s{at}\", \"gb_per_s\": {gigabytes}, \
                 \"latency_ns\": {latency}}}"
            )
        })
        .collect();
    let text = format!(
        "{{\"format\": \"hcomm-cluster\", \"version\": 1, \"switches\": [{}], \"nodes\": [{{\"name\": \
         \"n{{node}}\", \"count\": 2, \"ranks\": 1, \"ports\": [{}]}}]}}",
        switches.join(","),
        ports.join(",")
    );
    load(&text, None).unwrap().graph
}

#[test]
fn links_of_a_pair_are_used_together_where_that_helps() {
    let of = |graph: &RankGraph, bytes| -> Vec<(u64, u64)> {
        let shares = graph.links_together(Rank(0), Rank(1), bytes, &Allowed::All);
        shares
            .iter()
            .map(|it| (it.link.bytes_per_s / 1_000_000_000, it.bytes))
            .collect()
    };
    let twins = two_ports(&[(10.0, 1000), (10.0, 1000)]);
    assert_eq!(of(&twins, 1000), [(10, 500), (10, 500)]);
    // A second latency is not worth a few bytes.
    let uneven = two_ports(&[(10.0, 1000), (30.0, 20_000)]);
    assert_eq!(of(&uneven, 1000), [(10, 1000)]);
    assert_eq!(of(&uneven, 10_000_000), [(10, 2_642_500), (30, 7_357_500)]);
    // Of two protocols over one port there is only one at a time.
    let mesh = cluster("mesh8");
    let shares = mesh.links_together(Rank(0), Rank(1), 1 << 20, &Allowed::All);
    assert_eq!(shares.len(), 1);
    // HCCS and PCIe have nothing in common.
    let cards = cluster("cards4x4");
    let shares = cards.links_together(Rank(0), Rank(1), 64 << 20, &Allowed::All);
    assert_eq!(shares.len(), 2);
    let alone = cards.links_together(Rank(0), Rank(1), 64 << 20, &"hccs".parse().unwrap());
    assert_eq!(alone.len(), 1);
    assert_eq!(cards.links_together(Rank(0), Rank(9), 1, &Allowed::All), []);
}

#[test]
fn divisions_follow_what_joins_ranks() {
    let names = |graph: &RankGraph, ranks| -> Vec<(String, (usize, usize))> {
        let found = graph.groupings(ranks).into_iter();
        found.map(|it| (it.name.clone(), it.sizes())).collect()
    };
    let of = |name: &str, size| (name.to_owned(), (size, size));
    // One host, one net: the meshes are what is left.
    let cards = cluster("cards4x4");
    assert_eq!(names(&cards, 8), [of("plane 0 of layer 0", 4)]);
    assert_eq!(cards.groupings(8)[0].groups, [0, 0, 0, 0, 1, 1, 1, 1]);
    // Rows and columns.
    let rack = cluster("rack64");
    assert_eq!(
        names(&rack, 64),
        [of("plane 0 of layer 0", 8), of("plane 1 of layer 0", 8)]
    );
    assert_eq!(rack.groupings(65)[0].sizes(), (1, 64));
    assert_eq!(rack.groupings(65)[1].sizes(), (1, 8));
    assert_eq!(
        rack.groupings(64)[1].groups[..9],
        [0, 1, 2, 3, 4, 5, 6, 7, 0]
    );
    let pods = cluster("superpod384");
    assert_eq!(names(&pods, 768), [of("hosts", 16), of("packages", 2)]);
    // Rails are groups, too.
    let rails = cluster("rails1024");
    assert_eq!(names(&rails, 1024)[0], of("hosts", 8));
    assert_eq!(cluster("laptop").groupings(2), []);
}

#[test]
fn groups_that_do_not_fit_are_refused() {
    let graph = cluster("mesh8");
    let error = graph
        .advise(&kinds(&[("tp", 3, 1)]), &all(&graph), 1)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "groups of tp=3 make 3 positions, there are 8 ranks"
    );
    let twice = graph.advise(&kinds(&[("tp", 2, 1)]), &ranks(&[1, 1]), 1);
    assert!(matches!(
        twice,
        Err(AdviceError::Mapping { what: "twice", .. })
    ));
    let beyond = graph.advise(&kinds(&[("tp", 2, 1)]), &ranks(&[1, 8]), 1);
    assert!(matches!(
        beyond,
        Err(AdviceError::Mapping { rank: Rank(8), .. })
    ));
    // One rank to a group has nobody to wait for.
    let pace = graph.pace(&[ranks(&[3])], BYTES);
    assert_eq!((pace.time_ns, pace.slowest), (Some(0), None));
}

/// How much each edge of a tree in this order meets on the wires: the bytes over the fullest wire, in the
/// time that they take there.
fn slowest_edge_of_tree(graph: &RankGraph, order: &[Rank], bytes: u64) -> f64 {
    let mut wires = std::collections::BTreeMap::<Segment, u64>::new();
    let mut longest = 0.0f64;
    for child in 1..order.len() {
        let (a, b) = (order[child], order[(child - 1) / 2]);
        for (from, to) in [(a, b), (b, a)] {
            let links = graph.links(from, to);
            longest = longest.max(bytes as f64 / links[0].bytes_per_s as f64);
            for wire in graph.path(&links[0]) {
                *wires.entry(wire).or_default() += bytes;
            }
        }
    }
    let times = wires
        .into_iter()
        .map(|(wire, bytes)| bytes as f64 / graph.capacity(wire) as f64);
    times.fold(longest, f64::max)
}

#[test]
fn a_tree_has_slow_ranks_at_its_ends_and_heavy_edges_on_fast_links() {
    let mixed = cluster("mixed");
    let order = mixed.tree_order(&all(&mixed), BYTES);
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, all(&mixed));
    // The two ranks behind the slow port are below each other, and the upper one alone is joined to others.
    let slow = ranks(&[20, 21]);
    let crossing = (1..22)
        .filter(|child| slow.contains(&order[*child]) != slow.contains(&order[(child - 1) / 2]));
    assert_eq!(crossing.count(), 1, "{order:?}");
    let port = BYTES as f64 / 1.25e9;
    let time = |order: &[Rank]| slowest_edge_of_tree(&mixed, order, BYTES);
    assert!((time(&order) / port - 1.0).abs() < 0.01, "{order:?}");
    assert!(time(&all(&mixed)) > 1.9 * port);

    let odd = cluster("odd");
    let order = odd.tree_order(&all(&odd), BYTES);
    let time = |order: &[Rank]| slowest_edge_of_tree(&odd, order, BYTES);
    // Twice over the port of 5 GB/s; no tree of two children gets on with once.
    assert!(time(&order) <= BYTES as f64 * 2.0 / 5e9 * 1.01, "{order:?}");
    assert!(time(&all(&odd)) > 1.4 * time(&order));
}

#[test]
fn a_tree_of_many_ranks_has_few_edges_between_nodes() {
    let rails = cluster("rails1024");
    let order = rails.tree_order(&all(&rails), BYTES);
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, all(&rails));
    let apart = |a: Rank, b: Rank| rails.host_of(a) != rails.host_of(b);
    let edges = |order: &[Rank]| {
        let between = (1..1024).filter(|child| apart(order[*child], order[(child - 1) / 2]));
        between.count()
    };
    // 128 nodes; in the order of numbers hardly two ranks of an edge are on one.
    assert!(edges(&order) < 400, "{}", edges(&order));
    assert!(edges(&all(&rails)) > 900);
}

#[test]
fn an_order_fits_the_messages_that_are_sent() {
    // Two heavy pairs that would cross between the meshes.
    let graph = cluster("cards4x4");
    let message = |from, to, bytes| Message { from, to, bytes };
    let messages = [
        message(0, 4, BYTES),
        message(1, 5, BYTES),
        message(0, 1, 1000),
    ];
    let order = graph.order_for(&all(&graph), &messages);
    for heavy in &messages[..2] {
        let (a, b) = (order[heavy.from as usize], order[heavy.to as usize]);
        assert_eq!(graph.links(a, b)[0].protocol, Protocol::Hccs, "{order:?}");
    }
    // Nothing to send: by place.
    assert_eq!(
        graph.order_for(&ranks(&[5, 1, 4, 0]), &[]),
        ranks(&[0, 1, 4, 5])
    );
}

proptest! {
    /// All bytes go, and none later than by the best link.
    #[test]
    fn together_is_never_slower_than_the_best_alone(
        ports in proptest::collection::vec((0.1f64..100.0, 0u64..50_000), 1..5),
        bytes in 0u64..1 << 34,
    ) {
        let graph = two_ports(&ports);
        let shares = graph.links_together(Rank(1), Rank(0), bytes, &Allowed::All);
        prop_assert_eq!(shares.iter().map(|share| share.bytes).sum::<u64>(), bytes);
        let end = shares.iter().map(|share| share.link.predict_ns(share.bytes)).max().unwrap();
        let links = graph.links(Rank(1), Rank(0));
        let best = links.iter().map(|link| link.predict_ns(bytes)).min().unwrap();
        prop_assert!(end <= best, "{end} {best} {shares:?}");
        prop_assert!(shares.len() == 1 || end < best);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever the mapping: what is said to be better is, by the same count.
    #[test]
    fn advice_is_never_worse(
        seed in proptest::collection::vec(any::<u32>(), 8),
        which in 0usize..3,
        swapped in any::<bool>(),
    ) {
        let graph = cluster(["cards4x4", "odd", "mesh8"][which]);
        let mut mapping = all(&graph);
        mapping.sort_by_key(|rank| (seed[rank.index()], *rank));
        let mut list = vec![("tp", 4, 100), ("dp", 2, 10)];
        if swapped {
            list.swap(0, 1);
        }
        let advice = advise(&graph, &list, &mapping);
        if let Some(better) = &advice.better {
            let kinds = kinds(&list);
            let given = advice.given.weighted_ns(&kinds).unwrap_or(u128::MAX);
            prop_assert!(better.weighted_ns(&kinds).unwrap() < given);
        }
        for pace in &advice.given.paces {
            let slowest = pace.slowest.as_ref().unwrap();
            prop_assert!(slowest.bytes_per_s <= pace.links_bytes_per_s.1);
        }
    }
}
