//! Devices for remote memory access: their ports, addresses, and counters that tell of trouble.

use hcomm_topo::{HostFacts, InfinibandDevice, InfinibandPort};

use super::finding::Finding;
use super::host::Host;

/// Counters of a port that stay at zero while all is well, and what they mean.
const TROUBLE: [(&str, &str); 12] = [
    ("counters/symbol_error", "bits arrive wrong: the cable"),
    (
        "counters/link_downed",
        "the line was lost: the cable or the switch",
    ),
    (
        "counters/link_error_recovery",
        "the line had to be trained again: the cable",
    ),
    ("counters/port_rcv_errors", "broken packets: the cable"),
    (
        "counters/port_xmit_discards",
        "packets thrown away: a crowded or dead line",
    ),
    (
        "counters/local_link_integrity_errors",
        "bits arrive wrong: the cable",
    ),
    (
        "hw_counters/out_of_sequence",
        "packets lost on the way: flow control (PFC) of the switches",
    ),
    (
        "hw_counters/packet_seq_err",
        "packets lost on the way: flow control (PFC) of the switches",
    ),
    (
        "hw_counters/local_ack_timeout_err",
        "no answer in time: a dead peer, or lost packets",
    ),
    (
        "hw_counters/rnr_nak_retry_err",
        "a receiver was not ready for too long",
    ),
    (
        "hw_counters/rx_icrc_encapsulated",
        "broken packets: the cable, or different MTUs",
    ),
    ("hw_counters/req_cqe_error", "requests that failed"),
];

/// Counters of congestion that works as it should, shown for information.
const CONGESTION: [&str; 3] = [
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "rp_cnp_handled",
];

/// `has_transport`: whether a plugin that is in use speaks to such devices.
pub(super) fn check(host: &Host<'_>, facts: &HostFacts, has_transport: bool) -> Vec<Finding> {
    const CHECK: &str = "rdma";
    if facts.infiniband.is_empty() {
        return vec![Finding::ok(
            CHECK,
            "devices",
            "none; tcp reaches other hosts without",
        )];
    }
    let mut findings = Vec::new();
    if !has_transport {
        findings.push(
            Finding::note(
                CHECK,
                "transport",
                "no plugin for these devices is in use; tcp is taken instead",
            )
            .fix("name the folder of a plugin for them in HCOMM_TRANSPORT_PATH"),
        );
    }
    for device in &facts.infiniband {
        let firmware = device.firmware.as_deref().unwrap_or("unknown");
        let place = device.pci.as_deref().unwrap_or("made of software");
        let seen = format!("firmware {firmware}, {place}, {} ports", device.ports.len());
        findings.push(Finding::ok(CHECK, &device.name, seen));
        for port in &device.ports {
            findings.push(state(host, device, port));
            findings.extend(counters(host, device, port));
        }
    }
    findings
}

fn folder(device: &InfinibandDevice, port: &InfinibandPort) -> String {
    format!(
        "/sys/class/infiniband/{}/ports/{}",
        device.name, port.number
    )
}

fn state(host: &Host<'_>, device: &InfinibandDevice, port: &InfinibandPort) -> Finding {
    const CHECK: &str = "rdma_port";
    let subject = format!("{} port {}", device.name, port.number);
    let rate = port.bits_per_s.map_or_else(
        || "unknown rate".to_owned(),
        |bits| format!("{} Gbit/s", bits / 1_000_000_000),
    );
    let layer = if port.ethernet {
        "Ethernet"
    } else {
        "InfiniBand"
    };
    let version_2 = port.gids.iter().filter(|gid| gid.version_2).count();
    let seen = format!(
        "{layer}, {rate}, {} GIDs ({version_2} of RoCE v2)",
        port.gids.len()
    );
    if !port.active {
        let of = |name: &str| host.text(&format!("{}/{name}", folder(device, port)));
        let state = of("state").unwrap_or_else(|| "not active".to_owned());
        let physical = of("phys_state").map_or(String::new(), |state| format!(", {state}"));
        Finding::warning(CHECK, &subject, format!("{state}{physical}; {seen}"))
            .expected("ACTIVE")
            .fix(if port.ethernet {
                "bring its network interface up (`rdma link`), look at the cable"
            } else {
                "look at the cable; INIT means that no subnet manager is there"
            })
    } else if port.ethernet && version_2 == 0 {
        Finding::warning(CHECK, &subject, seen)
            .expected("a GID of RoCE v2, which routers let pass")
            .fix("give its network interface an IP address")
    } else if port.gids.is_empty() {
        Finding::warning(CHECK, &subject, seen)
            .expected("a GID")
            .fix("look at the subnet manager (`ibstat`, `sminfo`)")
    } else {
        Finding::ok(CHECK, &subject, seen)
    }
}

fn counters(host: &Host<'_>, device: &InfinibandDevice, port: &InfinibandPort) -> Vec<Finding> {
    const CHECK: &str = "rdma_counters";
    let folder = folder(device, port);
    let subject = format!("{} port {}", device.name, port.number);
    let of = |name: &str| host.number(&format!("{folder}/{name}"));
    let mut seen = Vec::new();
    let mut meanings = Vec::new();
    let mut read = 0;
    for (name, meaning) in TROUBLE {
        let Some(count) = of(name) else { continue };
        read += 1;
        if count > 0 {
            seen.push(format!(
                "{} {count}",
                name.rsplit('/').next().unwrap_or(name)
            ));
            if !meanings.contains(&meaning) {
                meanings.push(meaning);
            }
        }
    }
    let mut findings = Vec::new();
    if !seen.is_empty() {
        findings.push(
            Finding::warning(CHECK, &subject, seen.join(", "))
                .expected("0, or the same as at the last look")
                .fix(meanings.join("; ")),
        );
    } else if read > 0 {
        findings.push(Finding::ok(
            CHECK,
            &subject,
            format!("{read} counters of trouble are 0"),
        ));
    }
    let crowded: Vec<String> = CONGESTION
        .iter()
        .filter_map(|name| Some((name, of(&format!("hw_counters/{name}"))?)))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !crowded.is_empty() {
        findings.push(Finding::note(
            "rdma_congestion",
            &subject,
            crowded.join(", "),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use hcomm_topo::Gid;

    use super::super::finding::Verdict;
    use super::super::host::recorded::Recorded;
    use super::super::network::tests::facts;
    use super::*;

    fn port(number: u8, active: bool, version_2: bool) -> InfinibandPort {
        InfinibandPort {
            number,
            active,
            ethernet: true,
            bits_per_s: Some(100_000_000_000),
            gids: vec![Gid {
                index: 0,
                gid: "fe80::1".parse().unwrap(),
                version_2,
                interface: None,
            }],
        }
    }

    #[test]
    fn ports_and_counters_that_tell_of_trouble_are_found() {
        let mut facts = facts(Vec::new());
        let system = Recorded::default();
        let none = check(&Host::new(&system, 1, 1), &facts, false);
        assert_eq!((none.len(), none[0].verdict), (1, Ok));

        facts.infiniband = vec![InfinibandDevice {
            name: "mlx5_0".to_owned(),
            pci: Some("0000:3b:00.0".to_owned()),
            firmware: Some("20.1".to_owned()),
            ports: vec![
                port(1, true, true),
                port(2, false, true),
                port(3, true, false),
            ],
        }];
        let folder = "/sys/class/infiniband/mlx5_0/ports";
        let files = [
            (format!("{folder}/1/counters/symbol_error"), "3"),
            (format!("{folder}/1/hw_counters/out_of_sequence"), "0"),
            (format!("{folder}/1/hw_counters/np_cnp_sent"), "9"),
            (format!("{folder}/2/state"), "1: DOWN"),
            (format!("{folder}/2/phys_state"), "3: Disabled"),
            (format!("{folder}/3/counters/symbol_error"), "0"),
        ];
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let system = Recorded::new(&files);
        let findings = check(&Host::new(&system, 1, 1), &facts, false);
        let all: Vec<(&str, &str, Verdict)> = findings
            .iter()
            .map(|f| (f.check.as_str(), f.subject.as_str(), f.verdict))
            .collect();
        use Verdict::{Note, Ok, Warning};
        assert_eq!(
            all,
            [
                ("rdma", "transport", Note),
                ("rdma", "mlx5_0", Ok),
                ("rdma_port", "mlx5_0 port 1", Ok),
                ("rdma_counters", "mlx5_0 port 1", Warning),
                ("rdma_congestion", "mlx5_0 port 1", Note),
                ("rdma_port", "mlx5_0 port 2", Warning),
                ("rdma_port", "mlx5_0 port 3", Warning),
                ("rdma_counters", "mlx5_0 port 3", Ok),
            ]
        );
        assert!(findings[5].seen.starts_with("1: DOWN, 3: Disabled"));
    }
}
