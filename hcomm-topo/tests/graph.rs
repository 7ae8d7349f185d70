//! The graph over mixed hosts: queries, choices, dump and load.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::path::PathBuf;
use std::sync::Arc;

use hcomm_topo::{
    Allowed, EndpointFacts, GraphError, HostFacts, InstanceId, Layer, NoLink, RankFacts, RankGraph,
    Reach, RecordedSystem, Refusal, TopologyType, discover,
};
use hcomm_types::{Address, Error, ErrorKind, HostId, Location, ProcessId, Protocol, Rank};
use proptest::prelude::*;

fn host(number: u32) -> Arc<HostFacts> {
    let names = ["small_vm", "two_sockets", "bare_container"];
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folder = fixtures.join(names[number as usize % names.len()]);
    let mut facts = discover(&RecordedSystem::new(folder)).unwrap();
    facts.id = HostId(format!("host-{number}"));
    facts.name = format!("node{number}");
    Arc::new(facts)
}

fn endpoint(protocol: Protocol, reach: Reach, address: Address) -> EndpointFacts {
    EndpointFacts {
        protocol,
        address,
        location: Location::Host,
        reach,
        latency_ns: 10_000,
        bytes_per_s: 1_000_000_000,
        transport: protocol.name().to_owned(),
        device: format!("{protocol}0"),
    }
}

fn shm() -> EndpointFacts {
    EndpointFacts {
        latency_ns: 300,
        bytes_per_s: 10_000_000_000,
        ..endpoint(Protocol::Shm, Reach::Host, Address::Id(0))
    }
}

fn in_process() -> EndpointFacts {
    EndpointFacts {
        latency_ns: 50,
        bytes_per_s: 20_000_000_000,
        ..endpoint(Protocol::Loop, Reach::Process, Address::Id(0))
    }
}

fn tcp(ip: &str) -> EndpointFacts {
    endpoint(
        Protocol::Tcp,
        Reach::Network,
        Address::Ip(ip.parse().unwrap()),
    )
}

fn roce(ip: &str) -> EndpointFacts {
    EndpointFacts {
        latency_ns: 2_000,
        bytes_per_s: 12_000_000_000,
        ..endpoint(
            Protocol::Roce,
            Reach::Network,
            Address::Ip(ip.parse().unwrap()),
        )
    }
}

fn device(endpoint: EndpointFacts) -> EndpointFacts {
    EndpointFacts {
        location: Location::Device {
            physical_id: 3,
            super_device_id: 0,
            server_id: 0,
            super_pod_id: 0,
        },
        ..endpoint
    }
}

fn rank(
    number: u32,
    host: &Arc<HostFacts>,
    token: u64,
    endpoints: Vec<EndpointFacts>,
) -> RankFacts {
    RankFacts {
        rank: Rank(number),
        process: ProcessId {
            pid: u32::try_from(token).unwrap(),
            token,
        },
        host: Arc::clone(host),
        local_rank: 0,
        endpoints,
    }
}

/// Two hosts: ranks 0 and 1 in one process, 2 beside them, 3 and 4 on the other host.
fn two_hosts() -> RankGraph {
    let (a, b) = (host(0), host(1));
    let all = |ip: &str| vec![shm(), in_process(), tcp(ip)];
    RankGraph::build(vec![
        rank(3, &b, 30, all("192.0.2.7")),
        rank(1, &a, 10, all("192.0.2.2")),
        rank(0, &a, 10, all("192.0.2.2")),
        rank(4, &b, 40, all("192.0.2.7")),
        rank(2, &a, 20, all("192.0.2.2")),
    ])
    .unwrap()
}

/// The two ranks alone, on hosts of their own or on one.
fn two_ranks(same_host: bool, a: Vec<EndpointFacts>, b: Vec<EndpointFacts>) -> RankGraph {
    let hosts = (host(0), host(u32::from(!same_host)));
    RankGraph::build(vec![rank(0, &hosts.0, 1, a), rank(1, &hosts.1, 2, b)]).unwrap()
}

fn refusals(graph: &RankGraph, allowed: &Allowed) -> Vec<Refusal> {
    match graph.choose(Rank(0), Rank(1), allowed) {
        Err(NoLink::Refused(pair)) => pair.refused.into_iter().map(|link| link.refusal).collect(),
        other => panic!("expected no link, got {other:?}"),
    }
}

#[test]
fn layers_hold_instances_and_ranks() {
    let graph = two_hosts();
    assert_eq!(graph.size(), 5);
    assert_eq!(
        graph.layers().collect::<Vec<_>>(),
        [Layer::HOST, Layer::NETWORK]
    );
    let hosts: Vec<_> = graph
        .instances(Layer::HOST)
        .iter()
        .map(|i| (i.id, i.name.as_str(), i.ranks.len()))
        .collect();
    assert_eq!(
        hosts,
        [(InstanceId(0), "node0", 3), (InstanceId(1), "node1", 2)]
    );
    assert_eq!(
        graph.ranks_by_layer(Layer::HOST, Rank(4)),
        [Rank(3), Rank(4)]
    );
    assert_eq!(graph.ranks_by_layer(Layer::NETWORK, Rank(4)).len(), 5);
    assert_eq!(
        graph.topology_type(Layer::HOST, InstanceId(0)),
        Some(TopologyType::Mesh)
    );
    assert_eq!(
        graph.topology_type(Layer::NETWORK, InstanceId(0)),
        Some(TopologyType::Switched)
    );
    assert_eq!(graph.endpoints(Rank(2)).len(), 3);
    assert_eq!(graph.layer_of(Rank(0), Rank(3)), Some(Layer::NETWORK));
}

#[test]
fn queries_outside_the_graph_are_empty() {
    let graph = two_hosts();
    let outside = Rank(5);
    assert!(graph.endpoints(outside).is_empty() && graph.rank(outside).is_none());
    assert!(graph.links(Rank(0), outside).is_empty() && graph.links(outside, outside).is_empty());
    assert!(graph.ranks_by_layer(Layer::NETWORK, outside).is_empty());
    assert!(graph.ranks_by_layer(Layer(2), Rank(0)).is_empty());
    assert_eq!(graph.topology_type(Layer(7), InstanceId(0)), None);
    assert_eq!(graph.topology_type(Layer::HOST, InstanceId(2)), None);
    let error = graph.choose(outside, Rank(0), &Allowed::All).unwrap_err();
    assert_eq!(
        error,
        NoLink::UnknownRank {
            rank: outside,
            size: 5
        }
    );
}

#[test]
fn one_host_has_one_layer() {
    let graph = two_ranks(true, vec![shm()], vec![shm()]);
    assert_eq!(graph.layers().collect::<Vec<_>>(), [Layer::HOST]);
    let alone = RankGraph::build(vec![rank(0, &host(0), 1, vec![])]).unwrap();
    assert_eq!(
        alone.topology_type(Layer::HOST, InstanceId(0)),
        Some(TopologyType::Single)
    );
}

#[test]
fn the_nearest_reach_wins() {
    let graph = two_hosts();
    let chosen = |a, b| graph.choose(Rank(a), Rank(b), &Allowed::All).unwrap().link;
    assert_eq!(chosen(0, 1).protocol, Protocol::Loop);
    assert_eq!(chosen(1, 2).protocol, Protocol::Shm);
    let far = chosen(3, 0);
    assert_eq!(
        (far.protocol, far.layer, far.hops),
        (Protocol::Tcp, Layer::NETWORK, 2)
    );
    assert_eq!(
        (far.from, far.to, far.id().as_str()),
        (Rank(3), Rank(0), "0.2-3.2")
    );
    assert_eq!(graph.links(Rank(0), Rank(1)).len(), 3);
    assert_eq!(graph.links_at(Layer::HOST, Rank(0), Rank(3)), []);
    assert_eq!(graph.links_at(Layer::NETWORK, Rank(0), Rank(3)).len(), 1);
}

#[test]
fn process_reach_goes_by_token_not_by_number() {
    let one = host(0);
    let facts = |token| RankFacts {
        process: ProcessId { pid: 7, token },
        ..rank(
            u32::try_from(token).unwrap(),
            &one,
            token,
            vec![in_process()],
        )
    };
    let graph = RankGraph::build(vec![facts(0), facts(1)]).unwrap();
    assert_eq!(refusals(&graph, &Allowed::All), [Refusal::OtherProcess]);
    assert_eq!(
        graph.topology_type(Layer::HOST, InstanceId(0)),
        Some(TopologyType::Partial)
    );
}

#[test]
fn host_reach_ends_at_the_host() {
    let graph = two_ranks(false, vec![shm()], vec![shm()]);
    assert_eq!(refusals(&graph, &Allowed::All), [Refusal::OtherHost]);
    assert_eq!(
        graph.topology_type(Layer::NETWORK, InstanceId(0)),
        Some(TopologyType::Partial)
    );
}

#[test]
fn addresses_must_meet() {
    let only = |a: &str, b: &str, same_host| two_ranks(same_host, vec![tcp(a)], vec![tcp(b)]);
    let links = |a, b, same_host| only(a, b, same_host).links(Rank(0), Rank(1));
    let refused = |a, b| refusals(&only(a, b, false), &Allowed::All).remove(0);

    assert_eq!(links("192.0.2.1", "198.51.100.9", false).len(), 1);
    assert_eq!(
        links("::ffff:192.0.2.1", "192.0.2.9", false).len(),
        1,
        "the same family inside"
    );
    assert!(matches!(
        refused("192.0.2.1", "2001:db8::1"),
        Refusal::OtherFamily { .. }
    ));
    assert!(matches!(
        refused("127.0.0.1", "127.0.0.1"),
        Refusal::Loopback { .. }
    ));
    assert!(matches!(
        refused("192.0.2.1", "127.0.1.1"),
        Refusal::Loopback { .. }
    ));
    assert_eq!(links("127.0.0.1", "127.0.0.1", true).len(), 1);
    assert!(matches!(
        refused("0.0.0.0", "192.0.2.1"),
        Refusal::NoPeerAddress { .. }
    ));
    assert!(matches!(
        refused("ff02::1", "2001:db8::1"),
        Refusal::NoPeerAddress { .. }
    ));
    assert!(matches!(
        refused("fe80::1", "2001:db8::1"),
        Refusal::OtherScope { .. }
    ));
    assert!(matches!(
        refused("172.17.0.1", "172.17.0.1"),
        Refusal::SameAddress { .. }
    ));
    assert_eq!(links("172.17.0.1", "172.17.0.1", true).len(), 1);
    let link_local = links("169.254.1.1", "169.254.1.2", false);
    assert!(link_local.len() == 1 && link_local[0].last_resort);
}

#[test]
fn loopback_ends_at_the_network_namespace() {
    let outer = host(0);
    let inner = Arc::new(HostFacts {
        network_namespace: Some("net:[1]".to_owned()),
        ..HostFacts::clone(&outer)
    });
    let graph = RankGraph::build(vec![
        rank(0, &outer, 1, vec![tcp("127.0.0.1"), tcp("192.0.2.2")]),
        rank(1, &inner, 2, vec![tcp("127.0.0.1"), tcp("192.0.2.3")]),
    ])
    .unwrap();
    // Memory is not shared across it, either: each counts as a host.
    let hosts = graph.instances(Layer::HOST);
    assert_eq!(hosts.len(), 2);
    assert_ne!(hosts[0].name, hosts[1].name);
    let links: Vec<_> = graph
        .links(Rank(0), Rank(1))
        .iter()
        .map(hcomm_topo::Link::id)
        .collect();
    assert_eq!(links, ["0.1-1.1"]);
}

#[test]
fn a_network_of_both_hosts_comes_before_a_router() {
    let with_networks = |number: u32, networks: &[(&str, u8)]| {
        let interfaces = networks.iter().map(|(ip, prefix_bits)| {
            let text = format!(
                r#"{{"name":"eth0","index":2,"kind":"ethernet","mtu_bytes":1500,"up":true,
                "running":true,"loopback":false,"point_to_point":false,
                "addresses":[{{"ip":"{ip}","prefix_bits":{prefix_bits}}}]}}"#
            );
            serde_json::from_str(&text).unwrap()
        });
        Arc::new(HostFacts {
            interfaces: interfaces.collect(),
            ..HostFacts::clone(&host_like(number))
        })
    };
    let here = with_networks(0, &[("10.1.0.1", 16), ("10.2.0.1", 24)]);
    let there = with_networks(1, &[("10.3.0.2", 16), ("10.2.0.2", 24)]);
    let graph = RankGraph::build(vec![
        rank(0, &here, 1, vec![tcp("10.1.0.1"), tcp("10.2.0.1")]),
        rank(1, &there, 2, vec![tcp("10.3.0.2"), tcp("10.2.0.2")]),
    ])
    .unwrap();
    let links = graph.links(Rank(0), Rank(1));
    let hops: Vec<_> = links.iter().map(|link| (link.id(), link.hops)).collect();
    assert_eq!(hops[0], ("0.1-1.1".to_owned(), 2));
    assert!(hops.len() == 4 && hops[1..].iter().all(|(_, hops)| *hops == 3));
    assert!(links[1].latency_ns > links[0].latency_ns);
}

#[test]
fn link_local_is_the_last_resort_however_fast() {
    let fast = |ip| EndpointFacts {
        latency_ns: 1,
        ..tcp(ip)
    };
    let graph = two_ranks(
        false,
        vec![fast("fe80::1"), tcp("192.0.2.1")],
        vec![fast("fe80::2"), tcp("192.0.2.2")],
    );
    let choice = graph.choose(Rank(1), Rank(0), &Allowed::All).unwrap();
    assert_eq!(choice.link.id(), "0.1-1.1");
    assert!(
        choice.why.contains("rests on a link-local address"),
        "{}",
        choice.why
    );
}

#[test]
fn a_protocol_ends_only_where_it_may() {
    let graph = two_ranks(true, vec![device(shm())], vec![shm()]);
    let expected = Refusal::IllegalLocation {
        protocol: Protocol::Shm,
        place: "device",
    };
    assert_eq!(refusals(&graph, &Allowed::All), [expected]);
    let hccs = endpoint(Protocol::Hccs, Reach::Host, Address::Id(1));
    let graph = two_ranks(true, vec![hccs.clone()], vec![hccs.clone()]);
    assert!(graph.links(Rank(0), Rank(1)).is_empty());
    let graph = two_ranks(true, vec![device(hccs.clone())], vec![device(hccs)]);
    assert_eq!(graph.links(Rank(0), Rank(1)).len(), 1);
}

#[test]
fn the_shorter_reach_of_two_ends_counts() {
    let near = EndpointFacts {
        reach: Reach::Host,
        ..tcp("192.0.2.2")
    };
    let graph = two_ranks(false, vec![tcp("192.0.2.1")], vec![near]);
    assert_eq!(refusals(&graph, &Allowed::All), [Refusal::OtherHost]);
}

#[test]
fn plugins_of_two_makers_do_not_meet() {
    let other = EndpointFacts {
        transport: "vendor_roce".to_owned(),
        ..roce("192.0.2.2")
    };
    let graph = two_ranks(false, vec![roce("192.0.2.1")], vec![other]);
    assert!(matches!(
        &refusals(&graph, &Allowed::All)[..],
        [Refusal::OtherTransport { .. }]
    ));
}

#[test]
fn the_list_of_transports_is_obeyed() {
    let graph = two_hosts();
    let chosen = |allowed: &str| {
        let allowed = allowed.parse().unwrap();
        graph
            .choose(Rank(0), Rank(1), &allowed)
            .map(|choice| choice.link.protocol)
    };
    assert_eq!(chosen(""), Ok(Protocol::Loop));
    assert_eq!(chosen("shm,tcp"), Ok(Protocol::Shm));
    assert_eq!(chosen("^loop,shm"), Ok(Protocol::Tcp));
    assert_eq!(chosen("^loop,^shm"), Ok(Protocol::Tcp));
    assert!(chosen("roce").is_err());
    for wrong in ["shm,", "^", "shm,^tcp", "a b", ",", "^^shm"] {
        assert!(wrong.parse::<Allowed>().is_err(), "{wrong}");
    }
    for text in ["", "shm,tcp", "^tcp,loop"] {
        assert_eq!(text.parse::<Allowed>().unwrap().to_string(), text);
    }
}

#[test]
fn a_choice_says_what_was_passed_over() {
    let a = vec![shm(), tcp("192.0.2.1"), tcp("192.0.2.2"), roce("192.0.2.1")];
    let b = vec![shm(), tcp("192.0.2.1"), in_process()];
    let graph = two_ranks(true, a, b);
    let choice = graph.choose(Rank(0), Rank(1), &Allowed::All).unwrap();
    assert_eq!(
        choice.why,
        "shm (shm0 to shm0) moves 128 KiB in 13.4 µs, the best of 3 links; passed over: \
         tcp (2 links) takes 141.0 µs, roce because rank 1 has no roce endpoint, \
         loop because rank 0 has no loop endpoint"
    );
    assert_eq!(
        graph.choose(Rank(1), Rank(0), &Allowed::All).unwrap().why,
        choice.why
    );
}

#[test]
fn equals_go_to_the_lower_protocol_number() {
    let fast_tcp = EndpointFacts {
        latency_ns: 300,
        bytes_per_s: 10_000_000_000,
        ..tcp("192.0.2.1")
    };
    let both = vec![fast_tcp, shm()];
    let graph = two_ranks(true, both.clone(), both);
    let choice = graph.choose(Rank(0), Rank(1), &Allowed::All).unwrap();
    assert_eq!(choice.link.protocol, Protocol::Shm);
    assert!(
        choice.why.contains("its protocol comes later"),
        "{}",
        choice.why
    );
}

#[test]
fn costs_are_those_of_the_slower_end() {
    let slow = EndpointFacts {
        latency_ns: 7_000,
        bytes_per_s: 500,
        ..tcp("192.0.2.9")
    };
    let graph = two_ranks(false, vec![tcp("192.0.2.1")], vec![slow]);
    let link = graph.links(Rank(0), Rank(1)).remove(0);
    assert_eq!((link.latency_ns, link.bytes_per_s), (10_000, 500));
    assert_eq!(link.predict_ns(1), 10_000 + 2_000_000);
    assert_eq!(link.predict_ns(0), 10_000);
    assert_eq!(link.predict_ns(u64::MAX), u64::MAX);
    let unknown = hcomm_topo::Link {
        bytes_per_s: 0,
        ..link
    };
    assert_eq!(unknown.predict_ns(1), u64::MAX);
}

#[test]
fn no_link_tells_everything() {
    let graph = two_ranks(
        false,
        vec![shm(), tcp("127.0.0.1")],
        vec![shm(), tcp("192.0.2.2"), roce("192.0.2.2")],
    );
    let error = graph.choose(Rank(1), Rank(0), &Allowed::All).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no link between rank 0 and rank 1; \
         rank 0 on node0 has 0.0 (shm by transport shm on shm0, id 0x0, at the host, reach host), \
         0.1 (tcp by transport tcp on tcp0, 127.0.0.1, at the host, reach network); \
         rank 1 on node1 has 1.0 (shm by transport shm on shm0, id 0x0, at the host, reach host), \
         1.1 (tcp by transport tcp on tcp0, 192.0.2.2, at the host, reach network), \
         1.2 (roce by transport roce on roce0, 192.0.2.2, at the host, reach network); \
         refused: 0.0-1.0 (shm) because it reaches only ranks of the same host, \
         0.1-1.1 (tcp) because 127.0.0.1 is a loopback address, and the other rank is on another \
         host or network namespace, 1.2 (roce) because rank 0 has no roce endpoint"
    );
    let outer = Error::from(error);
    assert_eq!(outer.culprits(), [Rank(0), Rank(1)]);

    let empty = two_ranks(true, vec![], vec![]);
    let error = empty.choose(Rank(0), Rank(1), &Allowed::All).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("rank 1 on node0 has no endpoint"),
        "{error}"
    );
}

#[test]
fn contradictions_are_errors() {
    let (a, b) = (host(0), host(1));
    let build = |facts| RankGraph::build(facts).unwrap_err();
    assert_eq!(build(vec![]), GraphError::Empty);
    let twice = build(vec![rank(0, &a, 1, vec![]), rank(0, &b, 2, vec![])]);
    assert_eq!(
        twice.to_string(),
        "rank 0 is claimed twice: by process 1 on node0 and by process 2 on node1"
    );
    assert_eq!(Error::from(twice).kind(), ErrorKind::Mismatch);
    let gap = build(vec![
        rank(0, &a, 1, vec![]),
        rank(4_000_000_000, &a, 2, vec![]),
    ]);
    assert!(matches!(
        gap,
        GraphError::MissingRank {
            missing: Rank(1),
            count: 2,
            ..
        }
    ));
    let split = build(vec![rank(0, &a, 1, vec![]), rank(1, &b, 1, vec![])]);
    assert!(matches!(
        split,
        GraphError::SplitProcess {
            a: Rank(0),
            b: Rank(1),
            ..
        }
    ));
    let mut pretender = rank(1, &a, 1, vec![]);
    pretender.process.pid = 99;
    let split = build(vec![rank(0, &a, 1, vec![]), pretender]);
    assert!(
        split
            .to_string()
            .ends_with("processes 1 on node0 and 99 on node0"),
        "{split}"
    );
}

#[test]
fn ranks_of_a_host_share_its_facts() {
    let separate = |number| {
        rank(
            number,
            &Arc::new(HostFacts::clone(&host(0))),
            number.into(),
            vec![shm()],
        )
    };
    let graph = RankGraph::build((0..4).map(separate).collect()).unwrap();
    let first = &graph.rank(Rank(0)).unwrap().host;
    assert!(
        graph
            .ranks()
            .iter()
            .all(|facts| Arc::ptr_eq(&facts.host, first))
    );
}

#[test]
fn thousands_of_ranks_are_no_square() {
    let hosts: Vec<_> = (0..2048).map(host_like).collect();
    let facts = (0..16_384u32).map(|number| {
        let node = number / 8;
        let ip = format!("10.{}.{}.{}", node / 256, node % 256, number % 8 + 1);
        rank(
            number,
            &hosts[node as usize],
            number.into(),
            vec![shm(), tcp(&ip)],
        )
    });
    let graph = RankGraph::build(facts.collect()).unwrap();
    assert_eq!(
        graph.topology_type(Layer::NETWORK, InstanceId(0)),
        Some(TopologyType::Switched)
    );
    assert_eq!(graph.instances(Layer::HOST).len(), 2048);
    let choice = graph.choose(Rank(16_383), Rank(0), &Allowed::All).unwrap();
    assert_eq!(choice.link.protocol, Protocol::Tcp);
}

fn host_like(number: u32) -> Arc<HostFacts> {
    Arc::new(HostFacts {
        id: HostId(format!("host-{number}")),
        name: format!("node{number}"),
        cores: vec![],
        numa_nodes: vec![],
        caches: vec![],
        interfaces: vec![],
        pci: vec![],
        infiniband: vec![],
        network_namespace: None,
        notes: vec![],
    })
}

#[test]
fn json_reads_back_and_other_texts_are_refused_with_the_place() {
    let graph = two_hosts();
    let text = graph.to_json();
    assert_eq!(RankGraph::from_json(&text), Ok(graph));
    assert_eq!(
        text.matches("\"name\": \"node0\"").count(),
        1,
        "a host is written once"
    );

    let version = text.replacen("\"version\": 1", "\"version\": 2", 1);
    assert!(matches!(
        RankGraph::from_json(&version),
        Err(GraphError::Version { version: 2, .. })
    ));
    let unknown_host = text.replacen("\"host\": 1", "\"host\": 9", 1);
    assert_eq!(
        RankGraph::from_json(&unknown_host),
        Err(GraphError::UnknownHost {
            rank: Rank(3),
            host: 9,
            hosts: 2
        })
    );
    let protocol = text.replacen("\"protocol\": \"shm\"", "\"protocol\": \"smh\"", 1);
    let line = 1 + protocol
        .lines()
        .position(|line| line.contains("smh"))
        .unwrap();
    let Err(GraphError::Json {
        line: found,
        problem,
        ..
    }) = RankGraph::from_json(&protocol)
    else {
        panic!("a protocol that does not exist");
    };
    assert_eq!(found, line);
    assert!(problem.contains("`smh`"), "{problem}");
    for garbage in ["", "{", "[]", "null", "\"hcomm-rank-graph\"", "{}"] {
        assert!(
            matches!(RankGraph::from_json(garbage), Err(GraphError::Json { .. })),
            "{garbage}"
        );
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(
        RankGraph::from_json(&deep),
        Err(GraphError::Json { .. })
    ));
}

#[test]
fn the_drawing_has_hosts_ranks_and_links() {
    let dot = two_hosts().to_dot();
    assert!(dot.starts_with("graph hcomm {") && dot.ends_with("}\n"));
    assert_eq!(dot.matches("subgraph cluster_").count(), 2);
    assert!(dot.contains("r0 -- r1 [label=\"loop 20.0 GB/s\"]"), "{dot}");
    assert!(
        dot.contains("r3 -- network [ltail=cluster_1, label=\"tcp\"]"),
        "{dot}"
    );

    let named = Arc::new(HostFacts {
        name: "a\"b\\c\nd".to_owned(),
        ..HostFacts::clone(&host(0))
    });
    let many = (0..9).map(|number| rank(number, &named, number.into(), vec![shm()]));
    let dot = RankGraph::build(many.collect()).unwrap().to_dot();
    assert!(dot.contains(r#"label="a\"b\\c d";"#), "{dot}");
    assert!(dot.contains("r8 -- h0;"), "{dot}");
}

fn any_endpoint() -> impl Strategy<Value = EndpointFacts> {
    const IPS: [&str; 8] = [
        "192.0.2.1",
        "192.0.2.2",
        "127.0.0.1",
        "169.254.0.9",
        "2001:db8::1",
        "fe80::2",
        "::1",
        "0.0.0.0",
    ];
    let address = prop_oneof![
        4 => prop::sample::select(&IPS).prop_map(|ip| Address::Ip(ip.parse().unwrap())),
        1 => (0u64..3).prop_map(Address::Id),
        1 => any::<[u8; 16]>().prop_map(Address::Eid),
    ];
    (
        prop::sample::select(&[
            Protocol::Shm,
            Protocol::Tcp,
            Protocol::Roce,
            Protocol::Hccs,
            Protocol::Loop,
        ]),
        prop::sample::select(&[Reach::Process, Reach::Host, Reach::Network]),
        address,
        any::<bool>(),
        0u64..3,
        0u64..3,
        prop::sample::select(&["plugin", "other"]),
    )
        .prop_map(
            |(protocol, reach, address, at_device, latency, speed, transport)| {
                let made = EndpointFacts {
                    latency_ns: latency * 1000,
                    bytes_per_s: speed * 1_000_000_000,
                    transport: transport.to_owned(),
                    ..endpoint(protocol, reach, address)
                };
                if at_device { device(made) } else { made }
            },
        )
}

/// Up to 9 ranks on up to 4 hosts in up to 5 processes a host, in any order.
fn any_facts() -> impl Strategy<Value = Vec<RankFacts>> {
    let one = (
        0u32..4,
        0u64..5,
        prop::collection::vec(any_endpoint(), 0..4),
    );
    prop::collection::vec(one, 1..10).prop_flat_map(|list| {
        let facts: Vec<_> = (0..)
            .zip(list)
            .map(|(number, (node, process, endpoints))| {
                rank(
                    number,
                    &host(node),
                    u64::from(node) * 10 + process,
                    endpoints,
                )
            })
            .collect();
        Just(facts).prop_shuffle()
    })
}

/// Ranks that are mostly alike, so that most instances are joined, and the rest barely not.
fn similar_facts() -> impl Strategy<Value = Vec<RankFacts>> {
    const PAIRS: [[&str; 2]; 4] = [
        ["192.0.2.1", "192.0.2.1"],
        ["192.0.2.1", "127.0.0.1"],
        ["192.0.2.1", "169.254.0.9"],
        ["192.0.2.1", "2001:db8::1"],
    ];
    const SOME: [Reach; 3] = [Reach::Process, Reach::Host, Reach::Network];
    let all = (
        prop::sample::select(&SOME),
        prop::sample::select(&PAIRS),
        any::<bool>(),
        any::<bool>(),
    );
    let one = (0u32..2, 0u64..2, prop::bool::weighted(0.3), any::<bool>());
    (all, prop::collection::vec(one, 2..6)).prop_map(|((reach, ips, places, spaces), list)| {
        let made = (0..)
            .zip(list)
            .map(|(number, (node, process, odd, apart))| {
                let mut own = HostFacts::clone(&host_like(node));
                own.network_namespace = Some(format!("net:[{}]", u32::from(spaces && apart)));
                let only = EndpointFacts {
                    reach,
                    ..roce(ips[usize::from(odd)])
                };
                let only = EndpointFacts {
                    // RoCE ends anywhere, TCP only at hosts.
                    protocol: if places { Protocol::Tcp } else { only.protocol },
                    ..only
                };
                let only = if places && odd { device(only) } else { only };
                let token = u64::from(node) * 2 + process;
                rank(number, &Arc::new(own), token, vec![only])
            });
        made.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn choices_are_symmetric_best_and_the_same_everywhere(facts in any_facts()) {
        let graph = RankGraph::build(facts.clone()).unwrap();
        let mut reversed = facts;
        reversed.reverse();
        let elsewhere = RankGraph::build(reversed).unwrap();
        prop_assert_eq!(&graph, &elsewhere);

        for a in (0..graph.size()).map(Rank) {
            for b in (0..graph.size()).map(Rank) {
                let (there, back) = (graph.links(a, b), graph.links(b, a));
                prop_assert_eq!(there.len(), back.len());
                for (one, other) in there.iter().zip(&back) {
                    prop_assert_eq!(one.id(), other.id());
                    prop_assert_eq!((one.from, one.to), (other.to, other.from));
                    prop_assert_eq!(&graph.endpoints(a)[one.from_endpoint as usize].transport, &one.transport);
                    prop_assert_eq!(one.layer == Layer::HOST, graph.ranks_by_layer(Layer::HOST, a).contains(&b));
                }
                match (graph.choose(a, b, &Allowed::All), elsewhere.choose(b, a, &Allowed::All)) {
                    (Ok(one), Ok(other)) => {
                        prop_assert_eq!(&one.why, &other.why);
                        prop_assert_eq!(one.link.id(), other.link.id());
                        let cost = |link: &hcomm_topo::Link| {
                            (link.last_resort, link.predict_ns(hcomm_topo::REFERENCE_BYTES))
                        };
                        prop_assert_eq!(there.iter().map(cost).min(), Some(cost(&one.link)));
                    }
                    (Err(one), Err(other)) => {
                        prop_assert!(there.is_empty());
                        prop_assert_eq!(one, other);
                    }
                    (one, other) => prop_assert!(false, "{one:?} against {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_graph_goes_through_json(facts in any_facts()) {
        let graph = RankGraph::build(facts).unwrap();
        prop_assert_eq!(RankGraph::from_json(&graph.to_json()), Ok(graph));
    }

    #[test]
    fn a_changed_or_cut_dump_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = two_hosts().to_json().into_bytes();
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        if let Ok(graph) = RankGraph::from_json(&String::from_utf8_lossy(&bytes)) {
            // Whatever is accepted is a whole graph: it answers, draws and reads back.
            let _ = graph.choose(Rank(0), Rank(3), &Allowed::All);
            let _ = graph.to_dot();
            prop_assert_eq!(RankGraph::from_json(&graph.to_json()), Ok(graph));
        }
        bytes.truncate(cut.index(bytes.len() - 4));
        prop_assert!(RankGraph::from_json(&String::from_utf8_lossy(&bytes)).is_err());
    }

    #[test]
    fn any_text_is_refused(text in "\\PC{0,200}|[\\[\\]{}:,\"0-9a-z]{0,200}") {
        prop_assert!(RankGraph::from_json(&text).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn the_topology_type_agrees_with_every_pair(
        facts in prop_oneof![1 => any_facts(), 9 => similar_facts()],
    ) {
        let graph = RankGraph::build(facts).unwrap();
        for layer in graph.layers() {
            for instance in graph.instances(layer) {
                let joined = instance.ranks.iter().all(|&a| {
                    instance.ranks.iter().all(|&b| {
                        a == b
                            || graph.layer_of(a, b) != Some(layer)
                            || !graph.links_at(layer, a, b).is_empty()
                    })
                });
                let expected = match (instance.ranks.len(), joined, layer) {
                    (1, ..) => TopologyType::Single,
                    (_, false, _) => TopologyType::Partial,
                    (_, true, Layer::HOST) => TopologyType::Mesh,
                    (_, true, _) => TopologyType::Switched,
                };
                prop_assert_eq!(graph.topology_type(layer, instance.id), Some(expected));
            }
        }
    }
}
