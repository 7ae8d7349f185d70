//! Network interfaces: which would be used and why, and what their state and counters tell; the
//! name of the host.

use std::net::IpAddr;

use hcomm_topo::{Family, HostFacts, Interface, InterfaceFilter, InterfaceKind};

use super::finding::Finding;
use super::host::Host;

/// Most interfaces that are shown: a host of containers has hundreds.
const MAX_SHOWN: usize = 24;

pub(super) fn check(host: &Host<'_>, facts: &HostFacts, filter: &InterfaceFilter) -> Vec<Finding> {
    let mut findings = Vec::new();
    let chosen = match facts.pick_interface(filter, Family::default()) {
        Ok(pick) => {
            findings.push(chosen(&pick.why, pick.interface, pick.address, host));
            Some(pick.interface.name.clone())
        }
        Err(error) => {
            findings.push(
                Finding::error("interface", "the one to use", error.to_string()).fix(
                    "bring an interface up and give it an address (`ip link`, `ip address`), or change HCOMM_SOCKET_IFNAME",
                ),
            );
            None
        }
    };
    for interface in facts.interfaces.iter().take(MAX_SHOWN) {
        let is_chosen = chosen.as_deref() == Some(&interface.name);
        findings.push(state(interface, filter, is_chosen));
        if !interface.loopback && interface.up {
            findings.extend(speed(host, interface, is_chosen));
            findings.extend(counters(host, interface));
        }
    }
    if let Some(more) = facts.interfaces.len().checked_sub(MAX_SHOWN + 1) {
        let seen = format!("{} more are not shown", more + 1);
        findings.push(Finding::note("interface", "others", seen));
    }
    findings.extend(same_network(facts, filter));
    findings.extend(name_of_host(host, &facts.name));
    findings
}

fn chosen(why: &str, interface: &Interface, address: IpAddr, host: &Host<'_>) -> Finding {
    const CHECK: &str = "interface";
    const SUBJECT: &str = "the one to use";
    if interface.loopback || address.is_loopback() {
        // One host needs no other.
        let make = if host.ranks > host.local_ranks {
            Finding::error
        } else {
            Finding::warning
        };
        make(CHECK, SUBJECT, why)
            .expected("an interface that other hosts reach; ranks of this host find each other")
            .fix("bring one up and give it an address (`ip link set NAME up`), or change HCOMM_SOCKET_IFNAME")
    } else if !interface.running {
        Finding::error(CHECK, SUBJECT, format!("{why}; it has no carrier"))
            .fix("plug the cable in, or choose another with HCOMM_SOCKET_IFNAME")
    } else {
        Finding::ok(CHECK, SUBJECT, why)
    }
}

/// Whether an interface can be used, and if not, why.
fn state(interface: &Interface, filter: &InterfaceFilter, is_chosen: bool) -> Finding {
    const CHECK: &str = "interface";
    let addresses: Vec<String> = interface
        .addresses
        .iter()
        .map(|address| format!("{}/{}", address.ip, address.prefix_bits))
        .collect();
    let mut seen = match addresses.as_slice() {
        [] => "no address".to_owned(),
        some => some.join(" "),
    };
    seen += &format!(", MTU {}", interface.mtu_bytes);
    let name = &interface.name;
    if !filter.matches(name) {
        let seen = seen + ", left out by HCOMM_SOCKET_IFNAME";
        Finding::note(CHECK, name, seen)
    } else if !interface.up {
        let seen = seen + ", down";
        if addresses.is_empty() {
            Finding::note(CHECK, name, seen)
        } else {
            Finding::warning(CHECK, name, seen)
                .expected("up, since it has an address")
                .fix(format!("`ip link set {name} up`"))
        }
    } else if !interface.running && !interface.loopback {
        let seen = seen + ", no carrier";
        // A bridge without members is usual: of containers, say.
        if addresses.is_empty() || interface.kind == InterfaceKind::Bridge {
            Finding::note(CHECK, name, seen)
        } else {
            Finding::warning(CHECK, name, seen)
                .expected("a carrier, since it has an address")
                .fix(format!(
                    "look at the cable and the switch's port (`ethtool {name}`), or leave it out: HCOMM_SOCKET_IFNAME=^{name}"
                ))
        }
    } else {
        let seen = if is_chosen { seen + ", used" } else { seen };
        Finding::ok(CHECK, name, seen)
    }
}

/// What both ends of the cable have agreed on, and by which driver.
fn speed(host: &Host<'_>, interface: &Interface, is_chosen: bool) -> Option<Finding> {
    const CHECK: &str = "link_speed";
    const GIGABIT: u64 = 1_000_000_000;
    let name = &interface.name;
    let of = |file: &str| host.text(&format!("/sys/class/net/{name}/{file}"));
    let driver = host
        .link(&format!("/sys/class/net/{name}/device/driver"))
        .map_or(String::new(), |driver| format!(", driver {driver}"));
    let half = of("duplex").as_deref() == Some("half");
    let Some(speed) = interface.speed_bits_per_s else {
        return (is_chosen || half)
            .then(|| Finding::note(CHECK, name, format!("the driver does not tell{driver}")));
    };
    let seen = format!("{} Mbit/s{driver}", speed / 1_000_000);
    Some(if half {
        Finding::warning(CHECK, name, seen + ", one direction at a time")
            .expected("full duplex")
            .fix(format!(
                "set both ends to negotiate: `ethtool -s {name} autoneg on`"
            ))
    } else if speed < GIGABIT {
        Finding::warning(CHECK, name, seen)
            .expected("1000 Mbit/s or more; cables with a broken pair fall back to 100")
            .fix(format!("change the cable, look at `ethtool {name}`"))
    } else if speed >= 10 * GIGABIT && interface.mtu_bytes < 9000 {
        Finding::note(CHECK, name, format!("{seen}, MTU {}", interface.mtu_bytes))
            .expected("MTU 9000 saves work at this speed, if all ends and switches have it")
            .fix(format!("`ip link set {name} mtu 9000` everywhere"))
    } else {
        Finding::ok(CHECK, name, seen)
    })
}

/// Packets that were lost or broken.
fn counters(host: &Host<'_>, interface: &Interface) -> Option<Finding> {
    const CHECK: &str = "link_errors";
    let name = &interface.name;
    let of = |file: &str| host.number(&format!("/sys/class/net/{name}/statistics/{file}"));
    let packets = of("rx_packets")? + of("tx_packets")?;
    let mut seen = Vec::new();
    let mut bad = 0;
    for file in [
        "rx_errors",
        "tx_errors",
        "rx_crc_errors",
        "rx_missed_errors",
        "rx_dropped",
        "tx_dropped",
        "collisions",
    ] {
        let count = of(file).unwrap_or(0);
        if count > 0 {
            seen.push(format!("{file} {count}"));
            bad += count;
        }
    }
    // One in 10,000 halves what TCP achieves over a distance.
    Some(if bad == 0 {
        Finding::ok(CHECK, name, format!("none in {packets} packets"))
    } else if bad > packets / 10_000 {
        Finding::warning(CHECK, name, format!("{} in {packets} packets", seen.join(", ")))
            .expected("less than one in 10,000")
            .fix(format!(
                "look at the cable, the switch's port and the ring's size (`ethtool -S {name}`, `ethtool -g {name}`); drops may be old: compare with a later look"
            ))
    } else {
        Finding::note(
            CHECK,
            name,
            format!("{} in {packets} packets", seen.join(", ")),
        )
    })
}

/// Two interfaces with one network: packets for one may arrive at, or leave by, the other.
fn same_network(facts: &HostFacts, filter: &InterfaceFilter) -> Vec<Finding> {
    let mut found = Vec::new();
    let usable = |interface: &&Interface| {
        interface.up && !interface.loopback && filter.matches(&interface.name)
    };
    let usable: Vec<&Interface> = facts.interfaces.iter().filter(usable).collect();
    for (at, one) in usable.iter().enumerate() {
        for other in &usable[at + 1..] {
            let shared = one.addresses.iter().find(|a| {
                !is_link_local(a.ip)
                    && other.addresses.iter().any(|b| {
                        a.prefix_bits == b.prefix_bits && in_one_network(a.ip, b.ip, a.prefix_bits)
                    })
            });
            if let Some(shared) = shared {
                let subject = format!("{} and {}", one.name, other.name);
                let seen = format!(
                    "both in the network of {}/{}",
                    shared.ip, shared.prefix_bits
                );
                found.push(
                    Finding::warning("routes", &subject, seen)
                        .expected("a network of its own for each: else all packets may leave through one of them")
                        .fix("give them different networks, or set net.ipv4.conf.all.arp_ignore=1, arp_announce=2 and a rule for each source address"),
                );
            }
        }
    }
    found
}

/// Whether two addresses are of one network.
pub(super) fn in_one_network(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let (a, b, width) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let outside = u32::from(bits.min(width));
    let shift = u32::from(width) - outside;
    a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
}

/// Whether an address holds on one cable only.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// A host whose name leads to the loopback must not be told to others by that name.
fn name_of_host(host: &Host<'_>, name: &str) -> Option<Finding> {
    let hosts = host.text("/etc/hosts")?;
    let mut addresses = Vec::new();
    for line in hosts.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            continue;
        };
        if words.any(|word| word == name) {
            addresses.push(address);
        }
    }
    let (check, subject) = ("host_name", format!("{name} in /etc/hosts"));
    let seen = match addresses.as_slice() {
        [] => "not there; the name service is asked".to_owned(),
        some => some
            .iter()
            .map(IpAddr::to_string)
            .collect::<Vec<_>>()
            .join(" "),
    };
    let all_lead_back = !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback);
    Some(if all_lead_back && host.ranks > host.local_ranks {
        Finding::warning(check, &subject, seen)
            .expected("an address that other hosts reach, if rank 0 is told by this name")
            .fix("name rank 0 by an address: HCOMM_ROOT=address:port; or correct /etc/hosts")
    } else if all_lead_back {
        Finding::note(check, &subject, seen)
            .expected("an address that other hosts reach; name rank 0 by address on several hosts")
    } else {
        Finding::ok(check, &subject, seen)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use hcomm_topo::{InterfaceAddress, discover};

    use super::super::finding::Verdict;
    use super::super::host::recorded::Recorded;
    use super::*;

    /// An interface that is up, with these addresses of /24.
    pub(in crate::doctor) fn interface(index: u32, name: &str, ips: &[&str]) -> Interface {
        let addresses = ips.iter().map(|ip| InterfaceAddress {
            ip: ip.parse().unwrap(),
            prefix_bits: 24,
        });
        Interface {
            name: name.to_owned(),
            index,
            kind: InterfaceKind::Ethernet,
            mac: None,
            addresses: addresses.collect(),
            mtu_bytes: 1500,
            up: true,
            running: true,
            loopback: name == "lo",
            point_to_point: false,
            default_route: false,
            speed_bits_per_s: None,
            numa_node: None,
        }
    }

    /// Facts of a host with these interfaces.
    pub(in crate::doctor) fn facts(interfaces: Vec<Interface>) -> HostFacts {
        let system = Recorded::new(&[("/proc/sys/kernel/hostname", "node1")]);
        let mut facts = discover(&system).unwrap_or_else(|error| panic!("{error}"));
        facts.interfaces = interfaces;
        facts
    }

    fn of<'a>(findings: &'a [Finding], check: &str, subject: &str) -> &'a Finding {
        findings
            .iter()
            .find(|finding| finding.check == check && finding.subject == subject)
            .unwrap_or_else(|| panic!("no {check} of {subject}: {findings:#?}"))
    }

    #[test]
    fn the_chosen_one_is_told_with_the_reason_and_so_are_the_others() {
        let mut eth0 = interface(2, "eth0", &["192.0.2.1"]);
        eth0.default_route = true;
        let mut down = interface(3, "eth1", &["198.51.100.1"]);
        down.up = false;
        let mut unplugged = interface(4, "eth2", &["203.0.113.1"]);
        unplugged.running = false;
        let mut docker = interface(5, "docker0", &["172.17.0.1"]);
        (docker.kind, docker.running) = (InterfaceKind::Bridge, false);
        let facts = facts(vec![
            interface(1, "lo", &["127.0.0.1"]),
            eth0,
            down,
            unplugged,
            docker,
        ]);
        let system = Recorded::default();
        let filter = InterfaceFilter::all();
        let findings = check(&Host::new(&system, 2, 4), &facts, &filter);
        let chosen = of(&findings, "interface", "the one to use");
        assert_eq!(chosen.verdict, Verdict::Ok);
        assert!(
            chosen.seen.starts_with("eth0 (192.0.2.1) is up"),
            "{}",
            chosen.seen
        );
        assert!(chosen.seen.contains("eth1 is down"), "{}", chosen.seen);
        for (name, verdict) in [
            ("lo", Verdict::Ok),
            ("eth0", Verdict::Ok),
            ("eth1", Verdict::Warning),
            ("eth2", Verdict::Warning),
            ("docker0", Verdict::Note),
        ] {
            assert_eq!(of(&findings, "interface", name).verdict, verdict, "{name}");
        }
        // By name all may be left out.
        let findings = check(&Host::new(&system, 2, 4), &facts, &"ib".parse().unwrap());
        assert_eq!(
            of(&findings, "interface", "the one to use").verdict,
            Verdict::Error
        );
    }

    #[test]
    fn the_loopback_alone_is_enough_for_one_host_only() {
        let facts = facts(vec![interface(1, "lo", &["127.0.0.1"])]);
        let system = Recorded::new(&[("/etc/hosts", "127.0.1.1 node1.site node1 # by Debian\n")]);
        for (ranks, verdict, named) in [
            (2, Verdict::Warning, Verdict::Note),
            (4, Verdict::Error, Verdict::Warning),
        ] {
            let findings = check(
                &Host::new(&system, 2, ranks),
                &facts,
                &InterfaceFilter::all(),
            );
            assert_eq!(
                of(&findings, "interface", "the one to use").verdict,
                verdict
            );
            assert_eq!(
                of(&findings, "host_name", "node1 in /etc/hosts").verdict,
                named
            );
        }
    }

    #[test]
    fn speed_and_counters_tell_of_a_bad_cable() {
        let mut eth0 = interface(2, "eth0", &["192.0.2.1"]);
        eth0.speed_bits_per_s = Some(100_000_000);
        let mut eth1 = interface(3, "eth1", &["192.0.2.2"]);
        eth1.speed_bits_per_s = Some(25_000_000_000);
        let file = |name: &str| format!("/sys/class/net/eth0/statistics/{name}");
        let files = [
            (file("rx_packets"), "10000"),
            (file("tx_packets"), "10000"),
            (file("rx_crc_errors"), "50"),
            (
                "/sys/class/net/eth0/device/driver".to_owned(),
                "../../../bus/pci/drivers/e1000",
            ),
        ];
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let system = Recorded::new(&files);
        let facts = facts(vec![eth0, eth1]);
        let findings = check(&Host::new(&system, 2, 2), &facts, &InterfaceFilter::all());
        let speed = of(&findings, "link_speed", "eth0");
        assert_eq!(speed.verdict, Verdict::Warning);
        assert_eq!(speed.seen, "100 Mbit/s, driver e1000");
        assert_eq!(of(&findings, "link_speed", "eth1").verdict, Verdict::Note);
        let errors = of(&findings, "link_errors", "eth0");
        assert_eq!(errors.verdict, Verdict::Warning);
        assert!(errors.seen.starts_with("rx_crc_errors 50 in 20000"));
        // Both have addresses of one network.
        assert_eq!(
            of(&findings, "routes", "eth0 and eth1").verdict,
            Verdict::Warning
        );
    }

    #[test]
    fn networks_are_compared_by_their_bits() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(in_one_network(ip("10.0.0.1"), ip("10.0.0.254"), 24));
        assert!(!in_one_network(ip("10.0.0.1"), ip("10.0.1.1"), 24));
        assert!(in_one_network(ip("10.0.0.1"), ip("192.0.2.1"), 0));
        assert!(in_one_network(ip("fd00::1"), ip("fd00::2"), 64));
        assert!(!in_one_network(ip("fd00::1"), ip("10.0.0.1"), 0));
        assert!(!in_one_network(ip("fd00::1"), ip("fd00::2"), 128));
    }
}
