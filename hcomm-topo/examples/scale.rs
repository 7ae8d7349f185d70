//! Builds the graphs of large clusters, and prints how long that takes and how much memory.
//!
//! `cargo run --release -p hcomm-topo --example scale` builds 1,024, 8,192 and 16,384 ranks: nodes of
//! 8 in a mesh, a rail for each, leaves of 32 nodes, spines, a core. Each is described by a page of
//! text, as files are; then a million links are asked for. At the end the largest is read from its
//! dump, and from rank tables of all versions.

use std::error::Error;
use std::fs;
use std::time::Instant;

use hcomm_topo::load;
use hcomm_types::Rank;

fn main() -> Result<(), Box<dyn Error>> {
    for nodes in [128u32, 1024, 2048] {
        let pods = nodes.div_ceil(32);
        let text = format!(
            r#"{{"format": "hcomm-cluster", "version": 1,
 "switches": [
  {{"name": "core"}},
  {{"for": {{"rail": 8}}, "name": "spine{{rail}}", "parent": "core", "gb_per_s": 1600}},
  {{"for": {{"pod": {pods}, "rail": 8}}, "name": "leaf{{pod}}.{{rail}}", "parent": "spine{{rail}}",
   "gb_per_s": 200}}],
 "nodes": [
  {{"name": "node{{node}}", "count": {nodes}, "ranks": 8,
   "wires": [{{"protocol": "hccs", "shape": "mesh", "gb_per_s": 28}}],
   "ports": [
    {{"protocol": "roce", "switch": "leaf{{node/32}}.{{device}}", "plane": "{{device}}",
     "gb_per_s": 25}}]}}]}}"#
        );
        let before = resident_bytes();
        let start = Instant::now();
        let graph = load(&text, None)?.graph;
        let built = start.elapsed();
        let after = resident_bytes();
        let start = Instant::now();
        let (mut hops, mut asked) = (0u64, 0u64);
        let mut at = 1u64;
        while asked < 1_000_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pair = [(at >> 40) as u32, (at >> 16) as u32].map(|n| Rank(n % graph.size()));
            hops += graph
                .links(pair[0], pair[1])
                .first()
                .map_or(0, |l| l.hops.into());
            asked += 1;
        }
        println!(
            "{} ranks on {} hosts: built in {} ms, {} MB; {asked} pairs in {} ms, {} hops each",
            graph.size(),
            graph.hosts().len(),
            built.as_millis(),
            after.saturating_sub(before) >> 20,
            start.elapsed().as_millis(),
            hops / asked
        );
        if nodes == 2048 {
            let dump = graph.to_json();
            read_again("its dump", &dump, None)?;
        }
        // Kept to the end, so that the next one cannot take its memory.
        std::mem::forget(graph);
    }
    read_again("a rank table 1.0", &servers(2048, false), None)?;
    read_again("a rank table 1.2", &servers(2048, true), None)?;
    read_again("a rank table 2.0", &levels(2048), Some(&mesh()))?;
    Ok(())
}

fn read_again(what: &str, text: &str, topology: Option<&str>) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let size = load(text, topology)?.graph.size();
    println!(
        "{size} ranks from {what} of {} MB: {} ms",
        text.len() >> 20,
        start.elapsed().as_millis()
    );
    Ok(())
}

/// A rank table 1.0, or 1.2 with super-pods of 48 servers.
fn servers(count: u32, pods: bool) -> String {
    let servers = (0..count).map(|server| {
        let devices = (0..8).map(|device| {
            let rank = server * 8 + device;
            format!(
                "{{\"device_id\":\"{device}\",\"device_ip\":\"10.{device}.{}.{}\",\"rank_id\":\"{rank}\",\
                 \"super_device_id\":\"{rank}\"}}",
                server >> 8,
                server & 255
            )
        });
        let devices: Vec<String> = devices.collect();
        format!(
            "{{\"server_id\":\"s{server}\",\"device\":[{}]}}",
            devices.join(",\n")
        )
    });
    let servers: Vec<String> = servers.collect();
    let list = (0..count.div_ceil(48)).map(|pod| {
        let servers = (pod * 48..(pod * 48 + 48).min(count))
            .map(|server| format!("{{\"server_id\":\"s{server}\"}}"));
        let servers: Vec<String> = servers.collect();
        format!(
            "{{\"super_pod_id\":\"p{pod}\",\"server_list\":[{}]}}",
            servers.join(",")
        )
    });
    let list: Vec<String> = list.collect();
    let pods = if pods {
        format!(",\"super_pod_list\":[{}]", list.join(","))
    } else {
        String::new()
    };
    format!(
        "{{\"status\":\"completed\",\"server_list\":[{}]{pods}}}",
        servers.join(",\n")
    )
}

/// A rank table 2.0: nets of 8 as a topology file says, and one of all.
fn levels(servers: u32) -> String {
    let ranks = (0..servers * 8).map(|rank| {
        let (server, local) = (rank / 8, rank % 8);
        let ports: Vec<String> = (0..8)
            .filter(|port| *port != local)
            .map(|port| format!("\"0/{port}\""))
            .collect();
        format!(
            "{{\"rank_id\":{rank},\"local_id\":{local},\"device_id\":{local},\"level_list\":[\
             {{\"net_layer\":0,\"net_instance_id\":\"s{server}\",\"net_type\":\"TOPO_FILE_DESC\",\
             \"rank_addr_list\":[{{\"addr_type\":\"EID\",\"addr\":\"{rank:032x}\",\"ports\":[{}]}}]}},\
             {{\"net_layer\":1,\"net_instance_id\":\"all\",\"net_type\":\"CLOS\",\"rank_addr_list\":\
             [{{\"addr_type\":\"IPV4\",\"addr\":\"10.{local}.{}.{}\",\"ports\":[\"1/0\"]}}]}}]}}",
            ports.join(","),
            server >> 8,
            server & 255
        )
    });
    let ranks: Vec<String> = ranks.collect();
    format!(
        "{{\"version\":\"2.0\",\"rank_list\":[{}]}}",
        ranks.join(",\n")
    )
}

/// The topology file beside it: 8 in a mesh.
fn mesh() -> String {
    let peers: Vec<String> = (0..8).map(|id| format!("{{\"local_id\":{id}}}")).collect();
    let pairs = (0..8).flat_map(|a| (a + 1..8).map(move |b| (a, b)));
    let edges = pairs.map(|(a, b)| {
        format!(
            "{{\"net_layer\":0,\"link_type\":\"PEER2PEER\",\"protocols\":[\"UB_CTP\"],\"local_a\":{a},\
             \"local_a_ports\":[\"0/{b}\"],\"local_b\":{b},\"local_b_ports\":[\"0/{a}\"]}}"
        )
    });
    let edges: Vec<String> = edges.collect();
    format!(
        "{{\"version\":\"2.0\",\"peer_list\":[{}],\"edge_list\":[{}]}}",
        peers.join(","),
        edges.join(",")
    )
}

/// Memory of this process, as the kernel counts it; 0 where it does not tell.
fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * 4096
}
