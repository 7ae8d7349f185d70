//! Graphs from files: the fixtures, the tables of the field, and files that are wrong.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use hcomm_topo::{
    Allowed, InstanceId, Layer, Loaded, NoLink, RankGraph, Refusal, Segment, SourceError,
    TopologyType, load,
};
use hcomm_types::{Address, Protocol, Rank};
use proptest::prelude::*;

const CLUSTERS: [&str; 10] = [
    "mesh8",
    "dies16",
    "cards4x4",
    "rack64",
    "superpod384",
    "rails1024",
    "rails8192",
    "mixed",
    "laptop",
    "odd",
];

fn text(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clusters");
    fs::read_to_string(folder.join(name).with_extension("json")).unwrap()
}

fn cluster(name: &str) -> RankGraph {
    let loaded = load(&text(name), None).unwrap();
    assert_eq!(loaded.notes, [""; 0], "{name}");
    loaded.graph
}

fn sizes(graph: &RankGraph) -> Vec<Vec<usize>> {
    let layers = graph.layers().map(|layer| graph.instances(layer));
    layers
        .map(|nets| nets.iter().map(|net| net.ranks.len()).collect())
        .collect()
}

/// Layer, protocol, hops, GB/s of the link that is chosen.
fn link(graph: &RankGraph, a: u32, b: u32) -> (u8, Protocol, u32, f64) {
    let link = graph.choose(Rank(a), Rank(b), &Allowed::All).unwrap().link;
    let gigabytes = link.bytes_per_s as f64 / 1e9;
    (link.layer.0, link.protocol, link.hops, gigabytes)
}

#[test]
fn a_mesh_of_eight() {
    let graph = cluster("mesh8");
    assert_eq!(sizes(&graph), [[8]]);
    assert_eq!(
        graph.topology_type(Layer(0), InstanceId(0)),
        Some(TopologyType::Mesh)
    );
    assert_eq!(link(&graph, 0, 7), (0, Protocol::Hccs, 1, 28.0));
    assert_eq!(graph.links(Rank(2), Rank(5)).len(), 1);
    // Two links of a rank meet in its port and nowhere else.
    let path = |a, b| graph.path(&graph.links(Rank(a), Rank(b))[0]);
    let (to_1, to_2) = (path(0, 1), path(0, 2));
    assert_eq!(to_1.len(), 3);
    let shared: Vec<&Segment> = to_1.iter().filter(|part| to_2.contains(part)).collect();
    assert_eq!(shared, [&to_1[0]]);
    assert_eq!(graph.capacity(to_1[0]), 7 * 28_000_000_000);
    assert_eq!(graph.capacity(to_1[1]), 28_000_000_000);
    // The way back is another one.
    assert!(path(1, 0).iter().all(|part| !to_1.contains(part)));
}

#[test]
fn paired_dies_take_the_wire_between_them() {
    let graph = cluster("dies16");
    assert_eq!(link(&graph, 2, 3), (0, Protocol::Hccs, 1, 270.0));
    assert_eq!(link(&graph, 1, 2), (0, Protocol::Hccs, 2, 196.0));
    assert_eq!(graph.links(Rank(2), Rank(3)).len(), 2);
    assert_eq!(
        (
            graph.package_of(Rank(2)),
            graph.package_of(Rank(3)),
            graph.package_of(Rank(4))
        ),
        (Some(1), Some(1), Some(2))
    );
    let structures = graph.topology_instances(Layer(0), InstanceId(0));
    let shown: Vec<_> = structures
        .iter()
        .map(|it| (it.plane, it.kind, it.groups.len()))
        .collect();
    assert_eq!(
        shown,
        [(0, TopologyType::Switched, 1), (1, TopologyType::Mesh, 8)]
    );
    assert_eq!(
        graph.topology_type(Layer(0), InstanceId(0)),
        Some(TopologyType::Switched)
    );
}

#[test]
fn cards_of_two_meshes_meet_on_pcie() {
    let graph = cluster("cards4x4");
    assert_eq!(link(&graph, 0, 3), (0, Protocol::Hccs, 1, 30.0));
    assert_eq!(link(&graph, 3, 4), (0, Protocol::Pcie, 4, 24.0));
    assert_eq!(graph.links(Rank(0), Rank(3)).len(), 2);
    // Everything that crosses goes over the same wires.
    let path = |a, b| graph.path(&graph.links(Rank(a), Rank(b))[0]);
    let common: Vec<_> = path(0, 4)
        .into_iter()
        .filter(|p| path(3, 7).contains(p))
        .collect();
    assert!(matches!(common[..], [Segment::Up(_), Segment::Down(_)]));
    let without = graph.choose(Rank(0), Rank(4), &"hccs".parse().unwrap());
    let Err(NoLink::Refused(pair)) = without else {
        panic!("nothing but PCIe joins the two");
    };
    let reasons: Vec<_> = pair.refused.iter().map(|link| &link.refusal).collect();
    assert!(reasons.contains(&&Refusal::NotWired), "{reasons:?}");
}

#[test]
fn a_rack_is_a_mesh_in_two_directions_and_a_spare() {
    let graph = cluster("rack64");
    assert_eq!(sizes(&graph), [vec![64], vec![65]]);
    assert_eq!(
        graph.topology_type(Layer(0), InstanceId(0)),
        Some(TopologyType::Mesh2d)
    );
    let rows = graph.topology_instances(Layer(0), InstanceId(0));
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].groups[0].len(), 8);
    // One row, one column, neither, the spare.
    assert_eq!(link(&graph, 0, 7).0, 0);
    assert_eq!(link(&graph, 0, 56).0, 0);
    assert_eq!(link(&graph, 0, 9), (1, Protocol::UbcTp, 2, 49.0));
    assert_eq!(link(&graph, 0, 64), (1, Protocol::UbcTp, 2, 49.0));
}

#[test]
fn a_super_pod_has_three_layers() {
    let graph = cluster("superpod384");
    assert_eq!(graph.size(), 768);
    let sizes = sizes(&graph);
    assert_eq!(
        (sizes[0].len(), &sizes[1][..], &sizes[2][..]),
        (48, &[768][..], &[768][..])
    );
    assert_eq!(link(&graph, 0, 1).3, 270.0);
    assert_eq!(link(&graph, 0, 15), (0, Protocol::Hccs, 2, 196.0));
    assert_eq!(link(&graph, 0, 16), (1, Protocol::Hccs, 4, 196.0));
    // RoCE is there for who may not use the rest.
    let roce = graph
        .choose(Rank(0), Rank(16), &"roce".parse().unwrap())
        .unwrap();
    assert_eq!(roce.link.layer, Layer(2));
    assert_eq!(graph.links_at(Layer(2), Rank(0), Rank(16)), []);
}

#[test]
fn rails_meet_where_their_switches_do() {
    for (name, ranks, pod) in [("rails1024", 1024, 16 * 8), ("rails8192", 8192, 32 * 8)] {
        let graph = cluster(name);
        assert_eq!(graph.size(), ranks);
        assert_eq!(graph.hosts().len(), ranks as usize / 8);
        // Same node, same leaf, same spine, another rail.
        assert_eq!(link(&graph, 0, 7), (0, Protocol::Hccs, 1, 28.0));
        assert_eq!(link(&graph, 0, 8), (1, Protocol::Roce, 2, 25.0));
        assert_eq!(link(&graph, 0, pod), (1, Protocol::Roce, 4, 25.0));
        assert_eq!(link(&graph, 0, 9), (1, Protocol::Roce, 6, 25.0));
        assert_eq!(
            graph.topology_type(Layer(1), InstanceId(0)),
            Some(TopologyType::Switched)
        );
        let rails = graph.topology_instances(Layer(1), InstanceId(0));
        assert_eq!(rails.len(), 8);
        assert_eq!(rails[3].groups[0].len(), ranks as usize / 8);
        assert!(rails[3].groups[0].iter().all(|rank| rank.0 % 8 == 3));
    }
}

#[test]
fn hosts_of_several_kinds_meet_on_what_they_share() {
    let graph = cluster("mixed");
    assert_eq!(graph.size(), 22);
    assert_eq!(link(&graph, 0, 8), (1, Protocol::Roce, 2, 25.0));
    assert_eq!(link(&graph, 0, 16), (1, Protocol::Roce, 4, 12.5));
    assert_eq!(link(&graph, 0, 21), (1, Protocol::Tcp, 2, 1.25));
    assert_eq!(link(&graph, 20, 21), (0, Protocol::Shm, 2, 10.0));
    // The four behind one card share it.
    let port = |rank| graph.links(Rank(rank), Rank(0))[0].from_port;
    assert!(port(16).is_some());
    assert_eq!(port(16), port(19));
    assert_ne!(port(1), port(2));
}

#[test]
fn an_odd_drawing_and_a_laptop_are_read() {
    let graph = cluster("odd");
    assert_eq!(link(&graph, 0, 1), (0, Protocol::Hccs, 1, 20.0));
    assert_eq!(link(&graph, 1, 3), (0, Protocol::UbMem, 1, 100.0));
    // No cable between 0 and 2: they go through the port of their host and back.
    assert_eq!(link(&graph, 0, 2), (1, Protocol::Roce, 0, 10.0));
    assert_eq!(link(&graph, 4, 5), (1, Protocol::Roce, 2, 5.0));
    assert_eq!(
        graph.topology_instances(Layer(0), InstanceId(0))[0].kind,
        TopologyType::Ring
    );
    let laptop = cluster("laptop");
    assert_eq!(link(&laptop, 0, 1).1, Protocol::Shm);
}

#[test]
fn every_fixture_goes_through_its_dump_and_is_drawn() {
    for name in CLUSTERS {
        let graph = cluster(name);
        let dumped = graph.to_json();
        let again = load(&dumped, None).unwrap().graph;
        assert!(again == graph, "{name}");
        // What is large is dumped once more only where it is quick.
        if graph.size() < 1000 {
            assert_eq!(again.to_json(), dumped, "{name}");
            let pair = (Rank(0), Rank(graph.size() - 1));
            assert_eq!(again.links(pair.0, pair.1), graph.links(pair.0, pair.1));
        }
        let (svg, dot) = (graph.to_svg(), graph.to_dot());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
        assert!(svg.contains("<title>rank 0"), "{name}");
        assert!(dot.matches('{').count() == dot.matches('}').count());
    }
}

/// A table of version 1.0 or 1.2 with so many servers of 8.
fn servers(servers: u32, pods: bool) -> String {
    let mut text = format!(
        "{{\"status\": \"completed\", \"version\": \"{}\", \"server_count\": \"{servers}\",\n\
         \"server_list\": [\n",
        if pods { "1.2" } else { "1.0" }
    );
    for server in 0..servers {
        let comma = if server == 0 { "" } else { ",\n" };
        writeln!(
            text,
            "{comma}{{\"server_id\": \"10.0.0.{server}\", \"host_ip\": \"10.0.0.{server}\", \
             \"vendor\": {{\"x\": [1, null]}}, \"device\": ["
        )
        .unwrap();
        for device in 0..8 {
            let rank = server * 8 + device;
            let comma = if device == 0 { "" } else { ",\n" };
            // Texts and numbers are both written in the field.
            let id = if device % 2 == 0 {
                format!("\"{device}\"")
            } else {
                device.to_string()
            };
            let pod = if pods {
                format!(", \"super_device_id\": \"{rank}\"")
            } else {
                String::new()
            };
            write!(
                text,
                "{comma}  {{\"device_id\": {id}, \"device_ip\": \"192.168.{server}.{device}\", \
                 \"rank_id\": \"{rank}\"{pod}}}"
            )
            .unwrap();
        }
        text += "]}";
    }
    text += "]";
    if pods {
        text += ",\n\"super_pod_list\": [";
        for pod in 0..servers.div_ceil(2) {
            let comma = if pod == 0 { "" } else { ", " };
            let list: Vec<String> = (2 * pod..(2 * pod + 2).min(servers))
                .map(|server| format!("{{\"server_id\": \"10.0.0.{server}\"}}"))
                .collect();
            write!(
                text,
                "{comma}{{\"super_pod_id\": \"pod{pod}\", \"server_list\": [{}]}}",
                list.join(", ")
            )
            .unwrap();
        }
        text += "]";
    }
    text + "}\n"
}

#[test]
fn a_table_of_version_1_0() {
    let Loaded { graph, notes, .. } = load(&servers(2, false), None).unwrap();
    assert_eq!(sizes(&graph), [vec![8, 8], vec![16]]);
    assert_eq!(graph.hosts()[1].name, "10.0.0.1");
    assert_eq!(link(&graph, 0, 7).1, Protocol::Hccs);
    assert_eq!(link(&graph, 0, 8).1, Protocol::Roce);
    let roce = graph.links(Rank(9), Rank(0));
    let address = &graph.endpoints(Rank(9))[roce[0].from_endpoint as usize].address;
    assert_eq!(*address, Address::Ip([192, 168, 1, 1].into()));
    // Hosts reach each other by their own addresses, too.
    let tcp = graph
        .choose(Rank(0), Rank(8), &"tcp".parse().unwrap())
        .unwrap();
    assert_eq!(tcp.link.protocol, Protocol::Tcp);
    assert!(notes.iter().any(|note| note.contains("nominal")));
    assert!(
        notes
            .iter()
            .any(|note| note.contains("HCCS through a switch is assumed"))
    );
}

#[test]
fn a_table_of_version_1_2_has_super_pods() {
    let graph = load(&servers(4, true), None).unwrap().graph;
    assert_eq!(sizes(&graph), [vec![8; 4], vec![16, 16], vec![32]]);
    assert_eq!(graph.instances(Layer(1))[1].name, "pod1");
    let shown = |a, b| {
        let (layer, protocol, ..) = link(&graph, a, b);
        (layer, protocol)
    };
    assert_eq!(shown(0, 1), (0, Protocol::Hccs));
    assert_eq!(shown(0, 8), (1, Protocol::Hccs));
    assert_eq!(shown(0, 16), (2, Protocol::Roce));
}

#[test]
fn the_oldest_form_counts_devices_in_their_order() {
    let text = r#"{"status": "completed", "group_count": "1", "group_list": [{
        "group_name": "workers", "device_count": "2", "instance_count": "1", "instance_list": [{
            "pod_name": "a", "server_id": "10.0.0.1", "devices": [
                {"device_id": "4", "device_ip": "192.168.0.4"},
                {"device_id": "5", "device_ip": "192.168.0.5"}]}]}]}"#;
    let Loaded { graph, notes, .. } = load(text, None).unwrap();
    assert_eq!(graph.size(), 2);
    assert_eq!(graph.rank(Rank(1)).unwrap().local_rank, 5);
    assert!(notes.iter().any(|note| note.contains("numbers no ranks")));
}

/// A topology file of a mesh of so many, with a port to the net each.
fn mesh_file(peers: u32) -> String {
    let list: Vec<String> = (0..peers)
        .map(|id| format!("{{\"local_id\": \"{id}\"}}"))
        .collect();
    let mut edges = Vec::new();
    for a in 0..peers {
        for b in a + 1..peers {
            edges.push(format!(
                "{{\"net_layer\": 0, \"link_type\": \"PEER2PEER\", \"protocols\": [\"UB_CTP\", \
                 \"UB_MEM\"], \"local_a\": \"{a}\", \"local_a_ports\": [\"0/{b}\"], \"local_b\": \
                 \"{b}\", \"local_b_ports\": [\"0/{a}\"], \"topo_type\": \"1DMESH\"}}"
            ));
        }
        edges.push(format!(
            "{{\"net_layer\": 1, \"link_type\": \"PEER2NET\", \"protocols\": [\"UB_CTP\"], \
             \"local_a\": {a}, \"local_a_ports\": [\"1/0\"], \"topo_instance_id\": 0}}"
        ));
    }
    format!(
        "{{\"version\": \"2.0\", \"peer_count\": \"{peers}\", \"peer_list\": [{}],\n\"edge_count\": \
         \"{}\", \"edge_list\": [{}]}}",
        list.join(", "),
        edges.len(),
        edges.join(",\n")
    )
}

/// A table of version 2.0: servers with so many ranks in a net of layer 0 and one of layer 1.
fn levels(servers: u32, each: u32) -> String {
    let mut ranks = Vec::new();
    for rank in 0..servers * each {
        let (server, local) = (rank / each, rank % each);
        let ports: Vec<String> = (0..each)
            .filter(|port| *port != local)
            .map(|port| format!("\"0/{port}\""))
            .collect();
        ranks.push(format!(
            "{{\"rank_id\": {rank}, \"local_id\": {local}, \"device_id\": {local}, \"level_list\": [\n\
             {{\"net_layer\": 0, \"net_instance_id\": \"srv{server}\", \"net_type\": \
             \"TOPO_FILE_DESC\", \"net_attr\": \"\", \"rank_addr_list\": [{{\"addr_type\": \"EID\", \
             \"addr\": \"{rank:032x}\", \"ports\": [{}], \"plane_id\": \"plane0\"}}]}},\n\
             {{\"net_layer\": 1, \"net_instance_id\": \"pod\", \"net_type\": \"CLOS\", \
             \"rank_addr_list\": [{{\"addr_type\": \"IPV4\", \"addr\": \"10.1.{server}.{local}\", \
             \"ports\": [\"1/0\"], \"plane_id\": \"{}\"}}]}}]}}",
            ports.join(", "),
            local % 2
        ));
    }
    format!(
        "{{\"version\": \"2.0\", \"rank_count\": \"{}\", \"rank_list\": [\n{}]}}",
        servers * each,
        ranks.join(",\n")
    )
}

#[test]
fn a_table_of_version_2_0_with_its_topology_file() {
    let Loaded { graph, notes, .. } = load(&levels(2, 4), Some(&mesh_file(4))).unwrap();
    assert_eq!(sizes(&graph), [vec![4, 4], vec![8]]);
    assert_eq!(
        graph.topology_type(Layer(0), InstanceId(1)),
        Some(TopologyType::Mesh)
    );
    // Both protocols over the same ports, with the address of the table.
    let links = graph.links(Rank(4), Rank(6));
    let protocols: BTreeSet<_> = links.iter().map(|link| link.protocol).collect();
    assert_eq!(protocols, [Protocol::UbcCtp, Protocol::UbMem].into());
    assert_eq!(links[0].from_port, links[1].from_port);
    for link in &links {
        let address = &graph.endpoints(Rank(4))[link.from_endpoint as usize].address;
        assert_eq!(*address, Address::Eid(4u128.to_be_bytes()));
        assert_eq!(link.hops, 1);
    }
    // Planes of the outer net are apart.
    assert_eq!(link(&graph, 0, 6).1, Protocol::Roce);
    assert!(graph.choose(Rank(0), Rank(5), &Allowed::All).is_err());
    assert!(notes.iter().all(|note| !note.contains("none is given")));

    let Loaded { graph, notes, .. } = load(&levels(2, 4), None).unwrap();
    assert!(
        notes.iter().any(|note| note.contains("none is given")),
        "{notes:?}"
    );
    assert_eq!(
        graph.topology_type(Layer(0), InstanceId(0)),
        Some(TopologyType::Switched)
    );
}

#[test]
fn a_topology_file_alone_is_a_server() {
    let graph = load(&mesh_file(65), None).unwrap().graph;
    assert_eq!(sizes(&graph), [vec![65], vec![65]]);
    assert_eq!(
        graph.topology_type(Layer(0), InstanceId(0)),
        Some(TopologyType::Mesh)
    );
    assert_eq!(link(&graph, 3, 64).2, 1);
}

#[test]
fn a_topology_file_of_a_rack_has_rows_columns_and_a_spare() {
    let mut edges = Vec::new();
    let pairs = (0..64u32).flat_map(|a| (a + 1..64).map(move |b| (a, b)));
    for (a, b) in pairs.filter(|(a, b)| a / 8 == b / 8 || a % 8 == b % 8) {
        let axis = u32::from(a % 8 == b % 8);
        edges.push(format!(
            "{{\"net_layer\": \"0\", \"link_type\": \"PEER2PEER\", \"protocols\": [\"UB_CTP\"], \
             \"local_a\": {a}, \"local_a_ports\": [\"{axis}/{b}\"], \"local_b\": {b}, \"local_b_ports\": \
             [\"{axis}/{a}\"], \"topo_instance_id\": {axis}, \"topo_type\": \"2DMESH\"}}"
        ));
    }
    for peer in 0..65 {
        edges.push(format!(
            "{{\"net_layer\": 1, \"link_type\": \"PEER2NET\", \"protocols\": [\"UB_TP\"], \
             \"local_a\": {peer}, \"local_a_ports\": [\"9/0\"]}}"
        ));
    }
    let peers: Vec<String> = (0..65)
        .map(|id| format!("{{\"local_id\": {id}}}"))
        .collect();
    let text = format!(
        "{{\"version\": \"2.0\", \"peer_count\": 65, \"peer_list\": [{}], \"edge_count\": {}, \
         \"edge_list\": [{}]}}",
        peers.join(","),
        edges.len(),
        edges.join(",\n")
    );
    let graph = load(&text, None).unwrap().graph;
    assert_eq!(sizes(&graph), [vec![64], vec![65]]);
    assert_eq!(
        graph.topology_type(Layer(0), InstanceId(0)),
        Some(TopologyType::Mesh2d)
    );
    let shown = |a, b| {
        let (layer, protocol, hops, _) = link(&graph, a, b);
        (layer, protocol, hops)
    };
    assert_eq!(shown(0, 7), (0, Protocol::UbcCtp, 1));
    assert_eq!(shown(0, 56), (0, Protocol::UbcCtp, 1));
    assert_eq!(shown(0, 9), (1, Protocol::UbcTp, 2));
    assert_eq!(shown(64, 9), (1, Protocol::UbcTp, 2));
    // Seven ports each way, which a row and a column do not share.
    let port = |b| graph.links(Rank(0), Rank(b))[0].from_port;
    assert_eq!(port(1), port(7));
    assert_ne!(port(1), port(8));
}

fn refused(text: &str) -> SourceError {
    load(text, None).unwrap_err()
}

#[test]
fn wrong_files_are_one_precise_error_each() {
    let table = servers(2, false);
    let twice = refused(&table.replace("\"rank_id\": \"9\"", "\"rank_id\": \"1\""));
    assert_eq!(
        twice.to_string(),
        "line 14: server_list[1].device[1].rank_id is \"1\": the rank is claimed twice, first on line 5"
    );
    let missing = refused(&table.replacen(", \"rank_id\": \"4\"", "", 1));
    assert_eq!(
        missing.to_string(),
        "line 8: server_list[0].device[4].rank_id is nothing: the field is missing"
    );
    let gap = refused(&table.replace("\"rank_id\": \"9\"", "\"rank_id\": \"16\""));
    assert!(gap.problem.contains("rank 9 is missing"), "{gap}");
    let count = refused(&table.replace("\"server_count\": \"2\"", "\"server_count\": 3"));
    assert_eq!(
        count.to_string(),
        "line 1: server_count is 3: the list has 2 servers"
    );
    let unfinished = refused(&table.replace("completed", "initializing"));
    assert_eq!(unfinished.field, "status");
    let address = refused(&table.replace("192.168.1.3", "192.168.1.300"));
    assert_eq!(
        (address.line, address.field.as_str(), address.value.as_str()),
        (
            16,
            "server_list[1].device[3].device_ip",
            "\"192.168.1.300\""
        )
    );

    let mesh = mesh_file(3);
    let unknown = refused(&mesh.replacen("UB_MEM", "NVLINK", 1));
    assert_eq!(
        (unknown.field.as_str(), unknown.value.as_str()),
        ("edge_list[0].protocols[1]", "\"NVLINK\"")
    );
    assert!(unknown.problem.starts_with("unknown protocol"), "{unknown}");
    let nowhere = refused(&mesh.replace("\"local_b\": \"2\"", "\"local_b\": \"9\""));
    assert!(nowhere.problem.contains("no such peer"), "{nowhere}");
    let in_topology = load(&levels(1, 3), Some(&mesh.replace("UB_CTP", "?"))).unwrap_err();
    assert!(in_topology.problem.ends_with("(in the topology file)"));

    let levels = levels(1, 3);
    let eid = refused(&levels.replacen(&format!("{:032x}", 1), "xyz", 1));
    assert_eq!(
        eid.field,
        "rank_list[1].level_list[0].rank_addr_list[0].addr"
    );
    let net = refused(&levels.replacen("\"CLOS\"", "\"TORUS\"", 1));
    assert_eq!(
        net.to_string(),
        "line 4: rank_list[0].level_list[1].net_type is \"TORUS\": TOPO_FILE_DESC and CLOS are known"
    );
}

#[test]
fn wrong_descriptions_are_one_precise_error_each() {
    let rails = text("rails1024");
    let circle = refused(&rails.replace(
        "{\"name\": \"core\"}",
        "{\"name\": \"core\", \"parent\": \"leaf0.0\", \"gb_per_s\": 1}",
    ));
    assert_eq!(circle.field, "switches[0].parent");
    assert!(circle.problem.contains("in a circle"), "{circle}");
    let unknown = refused(&rails.replace("leaf{node/16}", "leaf{node/8}"));
    assert_eq!(
        unknown.to_string(),
        "line 11: nodes[0].ports[0].switch is \"leaf{node/8}.{device}\": no switch leaf8.0 is described"
    );
    let slip = refused(&rails.replace("\"plane\"", "\"plain\""));
    assert!(slip.problem.contains("unknown field"), "{slip}");
    let variable = refused(&rails.replace("{device}\", \"plane\"", "{card}\", \"plane\""));
    assert!(variable.problem.contains("{card}"), "{variable}");
    let illegal = refused(&text("laptop").replace("\"shm\"", "\"hccs\", \"at\": \"host\""));
    assert!(
        illegal.problem.contains("may not end at a host"),
        "{illegal}"
    );
    let twice = refused(&rails.replace("node{node}", "node"));
    assert!(
        twice.problem.contains("there is a node node already"),
        "{twice}"
    );

    // In a dump, too.
    let dump = cluster("odd").to_json();
    let json: serde_json::Value = serde_json::from_str(&dump).unwrap();
    let mut circle = json.clone();
    circle["fabric"]["switches"][0]["parent"] = 1.into();
    circle["fabric"]["switches"][1]["parent"] = 0.into();
    let error = refused(&circle.to_string());
    assert!(error.problem.contains("in a circle"), "{error}");
    for (pointer, value, problem) in [
        ("/fabric/ports/0/switch", 99, "there are"),
        ("/fabric/attached/0/0", 999, "is attached to port 999"),
        ("/fabric/cables/0/b/1", 9, "its ends must be ports"),
        ("/fabric/nets/0/ranks/0", 77, "has rank 77"),
        ("/fabric/nets/0/layer", 8, "the highest is 7"),
    ] {
        let mut wrong = json.clone();
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        let parent = wrong.pointer_mut(parent).unwrap();
        match last.parse::<usize>() {
            Ok(at) => parent[at] = value.into(),
            Err(_) => parent[last] = value.into(),
        }
        let error = refused(&wrong.to_string());
        assert!(error.problem.contains(problem), "{pointer}: {error}");
    }
}

#[test]
fn megabytes_of_garbage_are_one_error() {
    let mut state = 1u64;
    let garbage: String = (0..10_000_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from((state >> 57) as u8 & 0x7f)
        })
        .collect();
    assert_eq!(refused(&garbage).line, 1);
    for (begin, again) in [
        ("", "["),
        ("[", "{\"a\":1},"),
        ("{\"rank_list\":[", "[],"),
        ("\"", "x"),
    ] {
        let text = begin.to_owned() + &again.repeat(10_000_000 / again.len());
        let error = refused(&text);
        assert!(error.line == 1 && error.to_string().len() < 200, "{error}");
    }
}

/// Text with a few changes that leave much of it whole.
fn mutated(text: &str, changes: &[(u16, u8, u8)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (place, kind, value) in changes {
        let at = usize::from(*place) * bytes.len() / 65_536;
        match kind % 4 {
            0 => bytes[at] = *value,
            1 => {
                bytes.remove(at);
            }
            2 => bytes.insert(at, *value),
            _ => {
                // A stretch once more: fields twice, ranks twice.
                let end = (at + usize::from(*value)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What comes out of a changed file is a graph whose queries hold, or an error that is short.
fn survives(text: &str, topology: Option<&str>) {
    match load(text, topology) {
        Ok(Loaded { graph, .. }) => {
            for layer in graph.layers() {
                for net in graph.instances(layer) {
                    assert!(net.ranks.iter().all(|rank| rank.0 < graph.size()));
                }
                let _ = graph.topology_type(layer, InstanceId(0));
            }
            let last = Rank(graph.size() - 1);
            for link in graph.links(Rank(0), last) {
                let path = graph.path(&link);
                assert_eq!(path.is_empty(), link.from_port.is_none(), "{link:?}");
            }
        }
        Err(error) => assert!(error.to_string().len() < 2000, "{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn changed_files_are_graphs_or_errors(
        changes in proptest::collection::vec(any::<(u16, u8, u8)>(), 1..6),
        which in 0usize..7,
    ) {
        let text = match which {
            0 => servers(2, false),
            1 => servers(3, true),
            2 => levels(2, 4),
            3 => mesh_file(4),
            4 => text("odd"),
            5 => text("mixed"),
            _ => cluster("cards4x4").to_json(),
        };
        survives(&mutated(&text, &changes), None);
        if which == 2 {
            survives(&text, Some(&mutated(&mesh_file(4), &changes)));
        }
    }

    #[test]
    fn any_text_is_survived(text in "\\PC{0,200}|[\\[\\]{}\",:0-9a-z ]{0,200}") {
        survives(&text, None);
    }
}
