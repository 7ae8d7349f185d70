//! Builds the graphs of large clusters, and prints how long that takes and how much memory.
//!
//! `cargo run --release -p hcomm-topo --example scale` builds 1,024, 8,192 and 16,384 ranks: nodes of
//! 8 in a mesh, a rail for each, leaves of 32 nodes, spines, a core. Each is described by a page of
//! text, as files are; then a million links are asked for.

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
        // Kept to the end, so that the next one cannot take its memory.
        std::mem::forget(graph);
    }
    Ok(())
}

/// Memory of this process, as the kernel counts it; 0 where it does not tell.
fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * 4096
}
