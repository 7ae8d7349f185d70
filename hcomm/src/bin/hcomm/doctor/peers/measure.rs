//! Latency and bandwidth of the links that were chosen, against what the graph believes.

use std::time::{Duration, Instant};

use hcomm::Communicator;
use hcomm_topo::Allowed;
use hcomm_types::{Rank, ReduceOp, Result};

use super::super::finding::Finding;

/// Up to this many ranks all pairs are measured; above, each with the next.
const ALL_PAIRS: usize = 12;

/// Half round trips of 8 bytes.
const TURNS: usize = 100;

/// A message of the bandwidth, and how long all of them should take.
const MESSAGE_BYTES: usize = 1 << 20;
const STREAM: Duration = Duration::from_millis(200);
const MAX_MESSAGES: u64 = 128;

/// What was measured between two ranks.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Half a round trip of 8 bytes.
    latency_ns: f64,
    bytes_per_s: f64,
}

/// Measures, pair after pair so that none is in another's way, and tells at rank 0; elsewhere there
/// is nothing to tell.
///
/// # Errors
/// Those of the communicator: a rank that is lost is named.
pub(super) fn measure(comm: &Communicator, chosen: &[usize]) -> Result<Vec<Finding>> {
    let pairs = pairs(chosen);
    let me = comm.rank().index();
    // Of each pair latency and bandwidth, where the first of it measures; zero elsewhere.
    let mut mine = vec![0.0f64; 2 * pairs.len()];
    for (at, &(a, b)) in pairs.iter().enumerate() {
        comm.barrier()?;
        if me == a {
            let measured = lead(comm, Rank::from_index(b))?;
            mine[2 * at] = measured.latency_ns;
            mine[2 * at + 1] = measured.bytes_per_s;
        } else if me == b {
            follow(comm, Rank::from_index(a))?;
        }
    }
    let mut all = vec![0.0f64; mine.len()];
    comm.reduce(&mine, &mut all, ReduceOp::Sum, Rank(0))?;
    if me != 0 {
        return Ok(Vec::new());
    }
    let graph = comm.graph();
    let allowed: Allowed = hcomm_ctrl::allowed(comm.settings())?;
    let mut findings = Vec::new();
    for (&(a, b), values) in pairs.iter().zip(all.chunks_exact(2)) {
        let host = |rank: usize| {
            let facts = graph.rank(Rank::from_index(rank));
            facts.map_or(String::new(), |facts| format!(" ({})", facts.host.name))
        };
        let subject = format!("rank {a}{} and rank {b}{}", host(a), host(b));
        let measured = Measured {
            latency_ns: values[0],
            bytes_per_s: values[1],
        };
        match graph.choose(Rank::from_index(a), Rank::from_index(b), &allowed) {
            Ok(choice) => {
                let believed = Measured {
                    latency_ns: choice.link.latency_ns as f64,
                    bytes_per_s: choice.link.bytes_per_s as f64,
                };
                findings.extend(judge(&subject, &choice.link.transport, measured, believed));
                findings.push(Finding::ok("link_choice", &subject, choice.why));
            }
            Err(error) => {
                let finding = Finding::error("link_choice", &subject, error.to_string());
                findings.push(finding.fix("see `reach` and `transport`"));
            }
        }
    }
    Ok(findings)
}

fn pairs(chosen: &[usize]) -> Vec<(usize, usize)> {
    let count = chosen.len();
    if count > ALL_PAIRS {
        return chosen.windows(2).map(|two| (two[0], two[1])).collect();
    }
    (0..count)
        .flat_map(|a| (a + 1..count).map(move |b| (a, b)))
        .map(|(a, b)| (chosen[a], chosen[b]))
        .collect()
}

fn lead(comm: &Communicator, peer: Rank) -> Result<Measured> {
    let mut word = [0u8; 8];
    let mut turns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let begun = Instant::now();
        comm.send(&word, peer)?;
        comm.recv(&mut word, peer)?;
        turns.push(begun.elapsed());
    }
    // The first ones find the other side asleep.
    turns.sort_unstable();
    let latency_ns = turns[TURNS / 2].as_nanos() as f64 / 2.0;

    let message = vec![0x5au8; MESSAGE_BYTES];
    let stream = |messages: u64| -> Result<Duration> {
        comm.send(&[messages], peer)?;
        let begun = Instant::now();
        for _ in 0..messages {
            comm.send(&message, peer)?;
        }
        comm.recv(&mut [0u8], peer)?;
        Ok(begun.elapsed())
    };
    // One shows how many there is time for.
    let one = stream(1)?.max(Duration::from_nanos(1));
    let messages = (STREAM.as_nanos() / one.as_nanos()).clamp(1, MAX_MESSAGES.into()) as u64;
    let took = stream(messages)?;
    comm.send(&[0u64], peer)?;
    Ok(Measured {
        latency_ns,
        bytes_per_s: messages as f64 * MESSAGE_BYTES as f64 / took.as_secs_f64(),
    })
}

fn follow(comm: &Communicator, peer: Rank) -> Result<()> {
    let mut word = [0u8; 8];
    for _ in 0..TURNS {
        comm.recv(&mut word, peer)?;
        comm.send(&word, peer)?;
    }
    let mut message = vec![0u8; MESSAGE_BYTES];
    loop {
        let mut messages = [0u64];
        comm.recv(&mut messages, peer)?;
        if messages[0] == 0 {
            return Ok(());
        }
        for _ in 0..messages[0] {
            comm.recv(&mut message, peer)?;
        }
        comm.send(&[0u8], peer)?;
    }
}

/// Far from what the graph believes is what choices of algorithms go wrong by.
fn judge(subject: &str, transport: &str, measured: Measured, believed: Measured) -> [Finding; 2] {
    let micros = |ns: f64| format!("{:.1} us", ns / 1e3);
    let gigabytes = |bytes: f64| format!("{:.2} GB/s", bytes / 1e9);
    let one = |check, seen: String, expected: String, is_far: bool| {
        if is_far {
            Finding::warning(check, subject, seen)
                .expected(format!("about {expected}, as the graph believes"))
                .fix("look at `cores`, `load`, `link_speed` and `link_errors` of both hosts; `hcomm tune` measures the costs by which algorithms are chosen")
        } else {
            Finding::ok(
                check,
                subject,
                format!("{seen}; the graph believes {expected}"),
            )
        }
    };
    let slow = believed.latency_ns > 0.0 && measured.latency_ns > 10.0 * believed.latency_ns;
    let narrow = believed.bytes_per_s > 0.0 && measured.bytes_per_s * 4.0 < believed.bytes_per_s;
    [
        one(
            "latency",
            format!("{} by {transport}", micros(measured.latency_ns)),
            micros(believed.latency_ns),
            slow,
        ),
        one(
            "bandwidth",
            format!("{} by {transport}", gigabytes(measured.bytes_per_s)),
            gigabytes(believed.bytes_per_s),
            narrow,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Verdict;
    use super::*;

    #[test]
    fn pairs_are_all_or_neighbours() {
        assert_eq!(pairs(&[0, 4, 8]), [(0, 4), (0, 8), (4, 8)]);
        let many: Vec<usize> = (0..13).collect();
        assert_eq!((pairs(&many).len(), pairs(&many)[11]), (12, (11, 12)));
    }

    #[test]
    fn far_from_the_belief_is_a_warning() {
        let of = |latency_ns, bytes_per_s| Measured {
            latency_ns,
            bytes_per_s,
        };
        let verdicts = |measured| {
            judge("a and b", "tcp", measured, of(20e3, 2e9)).map(|finding| finding.verdict)
        };
        assert_eq!(verdicts(of(50e3, 1e9)), [Verdict::Ok, Verdict::Ok]);
        assert_eq!(
            verdicts(of(500e3, 1e8)),
            [Verdict::Warning, Verdict::Warning]
        );
        let unknown = judge("a and b", "tcp", of(1e9, 1.0), of(0.0, 0.0));
        assert!(unknown.iter().all(|finding| finding.verdict == Verdict::Ok));
    }
}
