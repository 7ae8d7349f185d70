//! What the system has set for TCP.

use super::finding::Finding;
use super::host::Host;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let mut findings = vec![congestion(host)];
    findings.extend(buffers(host));
    findings.extend(queue(host));
    findings.extend(ports(host));
    findings.extend(probing(host));
    findings.extend(ecn(host));
    findings.extend(losses(host));
    findings
}

fn congestion(host: &Host<'_>) -> Finding {
    const CHECK: &str = "tcp_congestion";
    const SUBJECT: &str = "who decides how fast TCP sends";
    let available = host.text("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let has_cubic = available.is_some_and(|names| names.split(' ').any(|name| name == "cubic"));
    match host.text("/proc/sys/net/ipv4/tcp_congestion_control") {
        None => Finding::note(CHECK, SUBJECT, "the system does not tell"),
        Some(name) if !name.starts_with("bbr") => Finding::ok(CHECK, SUBJECT, name),
        Some(name) if has_cubic => {
            let seen = format!("{name}, which paces; hcomm's tcp takes cubic instead");
            Finding::ok(CHECK, SUBJECT, seen)
        }
        Some(name) => Finding::warning(
            CHECK,
            SUBJECT,
            format!("{name}: sends at a pace, with pauses of its own"),
        )
        .expected("cubic or dctcp, where latency inside one building counts")
        .fix("`modprobe tcp_cubic`; hcomm's tcp then takes it by itself"),
    }
}

/// Largest buffers that the kernel gives a connection by itself.
fn buffers(host: &Host<'_>) -> Vec<Finding> {
    const CHECK: &str = "tcp_buffers";
    /// One connection at 25 Gbit/s over 1 ms needs about this.
    const WANTED: u64 = 4 << 20;
    let mut findings = Vec::new();
    for (subject, file) in [("receive buffer", "tcp_rmem"), ("send buffer", "tcp_wmem")] {
        let text = host.text(&format!("/proc/sys/net/ipv4/{file}"));
        let largest = text
            .as_deref()
            .and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
        let Some(largest): Option<u64> = largest else {
            continue;
        };
        let seen = format!("up to {largest} bytes");
        findings.push(if largest < WANTED {
            Finding::note(CHECK, subject, seen)
                .expected(format!("{WANTED} or more, for fast or long lines"))
                .fix(format!(
                    "`sysctl net.ipv4.{file}=\"4096 131072 {}\"`",
                    WANTED * 4
                ))
        } else {
            Finding::ok(CHECK, subject, seen)
        });
    }
    findings
}

/// How many ranks may connect at the same moment.
fn queue(host: &Host<'_>) -> Option<Finding> {
    const CHECK: &str = "tcp_queue";
    const SUBJECT: &str = "connections that may wait to be accepted (somaxconn)";
    let length = host.number("/proc/sys/net/core/somaxconn")?;
    let wanted = u64::from(host.ranks).max(128);
    Some(if length < wanted {
        Finding::warning(CHECK, SUBJECT, length.to_string())
            .expected(format!("{wanted} or more for {} ranks", host.ranks))
            .fix(format!("`sysctl net.core.somaxconn={}`; ranks that are turned away try again, which takes time", wanted.max(4096)))
    } else {
        Finding::ok(CHECK, SUBJECT, length.to_string())
    })
}

/// Ports that the system can choose from, and how many it has given away.
fn ports(host: &Host<'_>) -> Option<Finding> {
    const CHECK: &str = "tcp_ports";
    const SUBJECT: &str = "ports that the system chooses from";
    let range = host.text("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut ends = range
        .split_whitespace()
        .filter_map(|n| n.parse::<u64>().ok());
    let (first, last) = (ends.next()?, ends.next()?);
    let count = (last + 1).saturating_sub(first);
    let line = host.line("/proc/net/sockstat", "TCP:").unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let of = |name: &str| -> u64 {
        let at = words.iter().position(|word| *word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok())
            .unwrap_or(0)
    };
    let used = of("inuse") + of("tw");
    let seen = format!("{first} to {last}, {used} sockets are open or just closed");
    // A rank listens and dials each peer, on the safe side over each of several interfaces.
    let needed = u64::from(host.local_ranks) * (8 + 2 * u64::from(host.ranks).min(64));
    Some(if count.saturating_sub(used) < needed {
        Finding::warning(CHECK, SUBJECT, seen)
            .expected(format!("{needed} free ones for {} ranks here", host.local_ranks))
            .fix("`sysctl net.ipv4.ip_local_port_range=\"32768 60999\"`, and end what holds them (`ss -s`)")
    } else {
        Finding::ok(CHECK, SUBJECT, seen)
    })
}

/// Whether TCP finds its way round a place that drops large packets without a word.
fn probing(host: &Host<'_>) -> Option<Finding> {
    let (check, subject) = (
        "tcp_mtu_probing",
        "way out of places that lose large packets",
    );
    Some(match host.number("/proc/sys/net/ipv4/tcp_mtu_probing")? {
        0 => Finding::note(check, subject, "off")
            .expected("1 where routers or tunnels are on the way; `--peers` tries large packets")
            .fix("`sysctl net.ipv4.tcp_mtu_probing=1`"),
        mode => Finding::ok(check, subject, format!("on ({mode})")),
    })
}

fn ecn(host: &Host<'_>) -> Option<Finding> {
    let mode = host.number("/proc/sys/net/ipv4/tcp_ecn")?;
    let words = match mode {
        0 => "off",
        1 => "asked for and given",
        2 => "given when asked for",
        _ => "in a way of its own",
    };
    Some(Finding::ok(
        "tcp_ecn",
        "marks of crowded switches (ECN)",
        format!("{mode}: {words}"),
    ))
}

/// Segments that were sent again since the system started.
fn losses(host: &Host<'_>) -> Option<Finding> {
    let (check, subject) = ("tcp_losses", "segments that had to be sent again");
    let text = host.text("/proc/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let of = |name: &str| -> Option<u64> {
        let at = names.split(' ').position(|one| one == name)?;
        values.split(' ').nth(at)?.parse().ok()
    };
    let (sent, again) = (of("OutSegs")?, of("RetransSegs")?);
    let share = again as f64 * 100.0 / sent.max(1) as f64;
    let seen = format!("{again} of {sent} ({share:.2} %) since the system started");
    Some(if share > 1.0 {
        Finding::warning(check, subject, seen)
            .expected("less than 1 %")
            .fix("look at `link_errors` here and at the switches; `ss -ti` shows which connection loses")
    } else {
        Finding::ok(check, subject, seen)
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::host::recorded::Recorded;
    use super::*;

    const TIGHT: [(&str, &str); 8] = [
        ("/proc/sys/net/ipv4/tcp_congestion_control", "bbr\n"),
        ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t212992\n"),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t33554432\n"),
        ("/proc/sys/net/core/somaxconn", "128\n"),
        ("/proc/sys/net/ipv4/ip_local_port_range", "60000\t60099\n"),
        (
            "/proc/net/sockstat",
            "sockets: used 40\nTCP: inuse 30 orphan 0 tw 40 alloc 1 mem 0\n",
        ),
        ("/proc/sys/net/ipv4/tcp_mtu_probing", "0"),
        (
            "/proc/net/snmp",
            "Ip: A\nIp: 1\nTcp: ActiveOpens OutSegs RetransSegs\nTcp: 5 1000 20\n",
        ),
    ];

    #[test]
    fn tight_settings_are_found() {
        let system = Recorded::new(&TIGHT);
        let findings = check(&Host::new(&system, 4, 256));
        let all: Vec<(&str, Verdict)> = findings
            .iter()
            .map(|finding| (finding.check.as_str(), finding.verdict))
            .collect();
        use Verdict::{Note, Ok, Warning};
        assert_eq!(
            all,
            [
                ("tcp_congestion", Warning),
                ("tcp_buffers", Note),
                ("tcp_buffers", Ok),
                ("tcp_queue", Warning),
                ("tcp_ports", Warning),
                ("tcp_mtu_probing", Note),
                ("tcp_losses", Warning),
            ]
        );
        assert!(
            findings[4].seen.contains("70 sockets"),
            "{}",
            findings[4].seen
        );
    }

    #[test]
    fn usual_settings_are_fine() {
        let system = Recorded::new(&TIGHT).with(&[
            (
                "/proc/sys/net/ipv4/tcp_available_congestion_control",
                "reno cubic bbr",
            ),
            ("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456"),
            ("/proc/sys/net/core/somaxconn", "4096"),
            ("/proc/sys/net/ipv4/ip_local_port_range", "32768 60999"),
            ("/proc/sys/net/ipv4/tcp_mtu_probing", "1"),
            ("/proc/sys/net/ipv4/tcp_ecn", "2"),
            ("/proc/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 1000 2\n"),
        ]);
        for finding in check(&Host::new(&system, 4, 256)) {
            assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
        }
    }
}
