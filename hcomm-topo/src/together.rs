//! Several links of a pair at once, when that is faster than the best alone.

use hcomm_types::Rank;

use crate::choice::Allowed;
use crate::graph::RankGraph;
use crate::link::Link;

/// A link, and how many bytes of a message go over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkShare {
    /// The link.
    pub link: Link,
    /// Its part of the message.
    pub bytes: u64,
}

impl RankGraph {
    /// Over which links a message of so many bytes goes from `a` to `b`, and how many of them over each:
    /// the best link alone, or with others that leave and arrive by ports and devices of their own, if
    /// all are through earlier then. Never later than the best alone; empty where nothing joins them.
    ///
    /// Links that end together waste nothing: with latencies α and speeds β, all end at
    /// (n + Σ αβ) / Σ β, and a link takes part if its latency is less than that.
    #[must_use]
    pub fn links_together(
        &self,
        a: Rank,
        b: Rank,
        bytes: u64,
        allowed: &Allowed,
    ) -> Vec<LinkShare> {
        let mut links = self.links_allowed(a, b, allowed);
        let of_size = |link: &Link| (link.last_resort, link.predict_ns(bytes));
        links.sort_by_key(of_size);
        let Some(best) = links.first().cloned() else {
            return Vec::new();
        };
        let alone = best.predict_ns(bytes);
        let only = vec![LinkShare {
            link: best.clone(),
            bytes,
        }];
        let mut apart: Vec<Link> = Vec::new();
        for link in links {
            let meets = apart.iter().any(|other| self.meet(other, &link));
            if !meets && link.bytes_per_s > 0 && link.last_resort == best.last_resort {
                apart.push(link);
            }
        }
        // Those with small latencies first: whoever is slower than the end takes no part.
        apart.sort_by_key(|link| (link.latency_ns, link.id()));
        let (mut taken, mut end_ns) = (0, f64::INFINITY);
        for count in 1..=apart.len() {
            let speed = |link: &Link| link.bytes_per_s as f64 / 1e9;
            let all: f64 = apart[..count].iter().map(speed).sum();
            let delayed = apart[..count]
                .iter()
                .map(|link| link.latency_ns as f64 * speed(link));
            let end = (bytes as f64 + delayed.sum::<f64>()) / all;
            if apart[count - 1].latency_ns as f64 >= end {
                break;
            }
            (taken, end_ns) = (count, end);
        }
        if taken < 2 {
            return only;
        }
        let mut left = bytes;
        let mut shares: Vec<LinkShare> = Vec::new();
        for link in apart.into_iter().take(taken) {
            let time = end_ns - link.latency_ns as f64;
            let part = (time * link.bytes_per_s as f64 / 1e9) as u64;
            let part = part.min(left);
            left -= part;
            shares.push(LinkShare { link, bytes: part });
        }
        // What rounding leaves goes over the fastest.
        if let Some(fastest) = shares.iter_mut().max_by_key(|share| share.link.bytes_per_s) {
            fastest.bytes += left;
        }
        shares.retain(|share| share.bytes > 0);
        let ends = shares
            .iter()
            .map(|share| share.link.predict_ns(share.bytes));
        if shares.len() < 2 || ends.max().unwrap_or(u64::MAX) >= alone {
            return only;
        }
        shares
    }

    /// Whether two links of one pair take something from each other.
    fn meet(&self, one: &Link, other: &Link) -> bool {
        let (ways, others) = (self.path(one), self.path(other));
        if ways.is_empty() || others.is_empty() {
            // Nothing is known but the devices.
            let device = |rank: Rank, number: u32| {
                let endpoint = self.endpoints(rank).get(number as usize);
                endpoint.map(|endpoint| (&endpoint.transport, &endpoint.device))
            };
            return device(one.from, one.from_endpoint) == device(other.from, other.from_endpoint)
                || device(one.to, one.to_endpoint) == device(other.to, other.to_endpoint);
        }
        ways.iter().any(|part| others.contains(part))
    }
}
