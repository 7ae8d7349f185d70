//! Which addresses of other ranks each rank reaches, from which of its own, and with packets of
//! which size.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::super::finding::Finding;
use super::super::network::in_one_network;
use super::probe::{Outcome, try_out};
use super::{Place, Said, label};

/// Tries of a rank, and at one moment, at most.
const MAX_TRIES: usize = 512;
const AT_ONCE: usize = 128;

/// One try: from a place of one rank to a place of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Try {
    from: usize,
    to: usize,
    here: Place,
    there: Place,
    outcome: Outcome,
}

/// Everything that is to be tried from rank `me`.
fn planned(all: &[Said], chosen: &[usize], me: usize) -> Vec<(usize, Place, Place)> {
    let mut planned = Vec::new();
    for &peer in chosen.iter().filter(|peer| **peer != me) {
        let one_stack = all[me].network == all[peer].network;
        for here in &all[me].places {
            for there in &all[peer].places {
                let is_loopback = here.ip.is_loopback() || there.ip.is_loopback();
                // On one host an address leads to the host itself, whichever the interface is.
                let makes_sense = if one_stack {
                    here.ip == there.ip
                } else {
                    !is_loopback && here.ip != there.ip
                };
                if here.ip.is_ipv4() == there.ip.is_ipv4() && makes_sense {
                    planned.push((peer, here.clone(), there.clone()));
                }
            }
        }
    }
    planned
}

/// Tries everything, many at once.
pub(super) fn try_all(all: &[Said], chosen: &[usize], me: usize) -> Vec<Try> {
    let mut planned = planned(all, chosen, me);
    planned.truncate(MAX_TRIES);
    let mut tries = Vec::new();
    for some in planned.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let running: Vec<_> = some
                .iter()
                .map(|(to, here, there)| {
                    let at = SocketAddr::new(there.ip, there.port);
                    let outcome = scope.spawn(move || try_out(here.ip, at));
                    (*to, here, there, outcome)
                })
                .collect();
            for (to, here, there, outcome) in running {
                let lost = |_| Outcome::NoAnswer {
                    why: "the try ended in a panic".to_owned(),
                };
                tries.push(Try {
                    from: me,
                    to,
                    here: here.clone(),
                    there: there.clone(),
                    outcome: outcome.join().unwrap_or_else(lost),
                });
            }
        });
    }
    tries
}

/// What the tries tell of the ranks that have told theirs.
pub(super) fn check(
    all: &[Said],
    chosen: &[usize],
    tellers: &[usize],
    tries: &[Try],
) -> Vec<Finding> {
    const CHECK: &str = "reach";
    let mut findings = Vec::new();
    for &from in tellers {
        let tried = tries.iter().filter(|one| one.from == from).count();
        let left = planned(all, chosen, from).len().saturating_sub(tried);
        if left > 0 {
            let seen = format!("{tried} ways were tried, {left} were too many");
            let finding = Finding::note(CHECK, &label(all, from), seen);
            findings.push(finding.fix("leave interfaces out by HCOMM_SOCKET_IFNAME"));
        }
        for &to in chosen.iter().filter(|to| **to != from) {
            let between = || tries.iter().filter(|one| one.from == from && one.to == to);
            let subject = format!("{} to {}", label(all, from), label(all, to));
            let reached = |one: &&Try| matches!(one.outcome, Outcome::Reached { .. });
            if between().next().is_none() {
                findings.push(
                    Finding::error(CHECK, &subject, "nothing could be tried")
                        .expected("an address of one family at both")
                        .fix("bring an interface up on both hosts, with an address of the same family"),
                );
            } else if !between().any(|one| reached(&one)) {
                findings.push(
                    Finding::error(CHECK, &subject, "no address is reached from any other; see each")
                        .expected("at least one")
                        .fix("connect the hosts by a network, open the firewall between them for TCP (all ports: they are chosen by the system)"),
                );
            }
            findings.extend(between().map(|one| judge(one, &subject)));
            findings.extend(mismatches(all, from, to));
        }
    }
    findings
}

fn judge(one: &Try, pair: &str) -> Finding {
    const CHECK: &str = "reach";
    let Try { here, there, .. } = one;
    let subject = format!(
        "{pair}, {} {} to {} {} port {}",
        here.interface, here.ip, there.interface, there.ip, there.port
    );
    let same = in_one_network(here.ip, there.ip, here.prefix_bits);
    match &one.outcome {
        Outcome::Reached {
            connect_us,
            mtu_bytes,
            large_us,
        } => {
            let mtu = mtu_bytes.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
            let seen = format!(
                "connected in {connect_us} us, path MTU {mtu}, 256 KiB there in {large_us} us"
            );
            // No packet of IPv4 is larger, whatever the loopback says.
            let least = here.mtu_bytes.min(there.mtu_bytes).min(65535);
            match mtu_bytes {
                Some(mtu) if *mtu < least => Finding::note("path_mtu", &subject, seen).expected(
                    format!("{least}, as both interfaces have: something on the way has less"),
                ),
                _ => Finding::ok(CHECK, &subject, seen),
            }
        }
        // Two networks need not reach each other.
        Outcome::NotConnected { why, .. } if !same => Finding::note(
            CHECK,
            &subject,
            format!("not connected: {why}; they are of different networks"),
        ),
        Outcome::NotConnected { why, silent } => {
            let seen = format!("not connected: {why}");
            let finding = Finding::warning(CHECK, &subject, seen)
                .expected("a connection: both are of one network");
            finding.fix(if *silent {
                "packets are lost: look for a firewall that drops (`nft list ruleset`), at cables, VLANs and the switch"
            } else {
                "look for a firewall that rejects (`nft list ruleset`), and at the routes (`ip route get`)"
            })
        }
        Outcome::NoAnswer { why } => Finding::warning(
            CHECK,
            &subject,
            format!("connected, but a small message was not answered: {why}"),
        )
        .expected("an answer")
        .fix("look for a proxy or firewall that accepts in the other's place"),
        Outcome::LargeLost { mtu_bytes, why } => {
            let mtu = mtu_bytes.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
            Finding::error("path_mtu", &subject, format!("small messages pass, 256 KiB do not: {why}; path MTU {mtu}"))
                .expected("packets as large as the interfaces allow, or a word from whoever drops them")
                .fix("give both interfaces and the switches between the same MTU, or let ICMP pass; meanwhile `sysctl net.ipv4.tcp_mtu_probing=1`")
        }
    }
}

/// Interfaces of one network with different MTUs, each pair of hosts once.
fn mismatches(all: &[Said], from: usize, to: usize) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    if from > to || all[from].network == all[to].network {
        return findings;
    }
    for here in &all[from].places {
        for there in &all[to].places {
            let same = in_one_network(here.ip, there.ip, here.prefix_bits);
            let is_loopback = here.ip.is_loopback() || here.ip == there.ip;
            if !same || is_loopback || here.mtu_bytes == there.mtu_bytes {
                continue;
            }
            let subject = format!(
                "{} {} and {} {}",
                label(all, from),
                here.interface,
                label(all, to),
                there.interface
            );
            if findings.iter().any(|finding| finding.subject == subject) {
                continue;
            }
            let seen = format!("MTU {} and {}", here.mtu_bytes, there.mtu_bytes);
            findings.push(
                Finding::warning("mtu", &subject, seen)
                    .expected("the same in one network: what is larger than the smaller one is lost there")
                    .fix(format!(
                        "`ip link set {} mtu {}` or the other way round",
                        here.interface, there.mtu_bytes
                    )),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Verdict;
    use super::super::tests::said;
    use super::super::worst;
    use super::*;

    fn of(all: &[Said], outcome: impl Fn(&Place, &Place) -> Outcome) -> Vec<Finding> {
        let chosen: Vec<usize> = (0..all.len()).collect();
        let mut tries = Vec::new();
        for &from in &chosen {
            for (to, here, there) in planned(all, &chosen, from) {
                let outcome = outcome(&here, &there);
                tries.push(Try {
                    from,
                    to,
                    here,
                    there,
                    outcome,
                });
            }
        }
        check(all, &chosen, &chosen, &tries)
    }

    fn fine(mtu: u32) -> Outcome {
        Outcome::Reached {
            connect_us: 50,
            mtu_bytes: Some(mtu),
            large_us: 400,
        }
    }

    fn silent() -> Outcome {
        Outcome::NotConnected {
            why: "no answer in 2s".to_owned(),
            silent: true,
        }
    }

    #[test]
    fn each_address_is_tried_from_each_that_may_reach_it() {
        let two = [
            said("a", &["10.0.0.1", "172.17.0.1", "127.0.0.1"]),
            said("b", &["10.0.0.2", "172.17.0.1", "fd00::1"]),
        ];
        let planned = |all: &[Said]| -> Vec<String> {
            let tries = planned(all, &[0, 1], 0);
            tries
                .iter()
                .map(|(_, here, there)| format!("{} {}", here.ip, there.ip))
                .collect()
        };
        // Not to the bridge that both have at the same address, nor from the loopback.
        assert_eq!(
            planned(&two),
            [
                "10.0.0.1 10.0.0.2",
                "10.0.0.1 172.17.0.1",
                "172.17.0.1 10.0.0.2"
            ]
        );
        let one = [two[0].clone(), two[0].clone()];
        assert_eq!(
            planned(&one),
            [
                "10.0.0.1 10.0.0.1",
                "172.17.0.1 172.17.0.1",
                "127.0.0.1 127.0.0.1"
            ]
        );
    }

    #[test]
    fn a_network_that_is_cut_is_an_error_and_two_networks_are_not() {
        let all = [
            said("a", &["10.0.0.1", "10.1.0.1"]),
            said("b", &["10.0.0.2", "10.2.0.1"]),
        ];
        let findings = of(&all, |here, there| {
            if in_one_network(here.ip, there.ip, 24) {
                fine(1500)
            } else {
                silent()
            }
        });
        assert_eq!(worst(&findings), Verdict::Note, "{findings:#?}");
        let findings = of(&all, |_, _| silent());
        assert_eq!(worst(&findings), Verdict::Error);
        let cut: Vec<&Finding> = findings
            .iter()
            .filter(|f| f.verdict == Verdict::Error)
            .collect();
        assert_eq!(cut.len(), 2, "each way once: {cut:#?}");
        assert_eq!(cut[0].subject, "rank 0 (a) to rank 1 (b)");
        // Nothing is said of what a lost rank has tried.
        let findings = check(&all, &[0, 1], &[], &[]);
        assert!(findings.is_empty(), "{findings:#?}");
        let apart = [said("a", &["10.0.0.1"]), said("b", &["fd00::1"])];
        assert_eq!(worst(&of(&apart, |_, _| fine(1500))), Verdict::Error);
    }

    #[test]
    fn packets_that_are_too_large_are_found_in_three_ways() {
        let mut all = [said("a", &["10.0.0.1"]), said("b", &["10.0.0.2"])];
        let checks = |findings: &[Finding]| -> Vec<(String, Verdict)> {
            let bad = findings
                .iter()
                .filter(|finding| finding.verdict != Verdict::Ok);
            bad.map(|finding| (finding.check.clone(), finding.verdict))
                .collect()
        };
        let one = |check: &str, verdict| (check.to_owned(), verdict);
        let less = of(&all, |_, _| fine(1400));
        assert_eq!(
            checks(&less),
            [
                one("path_mtu", Verdict::Note),
                one("path_mtu", Verdict::Note)
            ]
        );
        let lost = of(&all, |_, _| Outcome::LargeLost {
            mtu_bytes: Some(9000),
            why: "no answer in 4s".to_owned(),
        });
        assert!(checks(&lost).contains(&one("path_mtu", Verdict::Error)));
        all[1].places[0].mtu_bytes = 9000;
        assert_eq!(
            checks(&of(&all, |_, _| fine(1500))),
            [one("mtu", Verdict::Warning)]
        );
    }
}
