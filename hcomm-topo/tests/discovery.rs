//! Discovery on recorded hosts, on a host that has lost its files, and on this one.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::cell::RefCell;
use std::path::PathBuf;
use std::{fs, io};

use hcomm_topo::{
    CacheKind, DiscoverError, Family, HostFacts, Interface, InterfaceFilter, LiveSystem, PciKind,
    RecordedSystem, System, discover,
};
use hcomm_types::HostId;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn recorded(name: &str) -> HostFacts {
    discover(&RecordedSystem::new(fixture(name))).unwrap()
}

#[test]
fn a_small_virtual_machine() {
    let host = recorded("small_vm");
    assert_eq!(
        host.id,
        HostId("0b6f2c1e-5d43-4a90-8f07-1c9a2e7d3b58".to_owned())
    );
    assert_eq!(host.name, "vm");
    let cores: Vec<_> = host
        .cores
        .iter()
        .map(|c| (c.cpu, c.core, c.package, c.numa_node))
        .collect();
    assert_eq!(
        cores,
        [
            (0, Some(0), Some(0), Some(0)),
            (1, Some(1), Some(0), Some(0))
        ]
    );
    assert_eq!(host.numa_nodes.len(), 1);
    assert_eq!(host.numa_nodes[0].memory_bytes, Some(4 << 30));
    let last_level = host.caches.last().unwrap();
    assert_eq!((last_level.level, last_level.kind), (3, CacheKind::Unified));
    assert_eq!(
        (last_level.bytes, &last_level.cpus),
        (32 << 20, &vec![0, 1])
    );
    assert_eq!(
        host.caches.len(),
        7,
        "private caches twice, the shared one once"
    );
    assert_eq!(host.notes, [""; 0]);

    let pick = host
        .pick_interface(&InterfaceFilter::all(), Family::PreferV4)
        .unwrap();
    assert_eq!(
        (
            pick.interface.name.as_str(),
            pick.address.to_string().as_str()
        ),
        ("eth0", "192.0.2.2")
    );
    let eth0 = pick.interface;
    assert_eq!(
        eth0.speed_bits_per_s, None,
        "-1 means that the driver does not know"
    );
    assert!(eth0.default_route && eth0.index == 4 && eth0.mtu_bytes == 1400);
}

#[test]
fn two_sockets_with_a_network_card_each() {
    let host = recorded("two_sockets");
    assert_eq!(host.cores.len(), 8);
    let siblings: Vec<_> = host
        .cores
        .iter()
        .filter(|c| (c.package, c.core) == (Some(1), Some(0)))
        .map(|c| c.cpu)
        .collect();
    assert_eq!(siblings, [2, 6]);
    assert!(host.cores.iter().all(|core| core.package == core.numa_node));
    assert_eq!(host.numa_nodes[1].cpus, [2, 3, 6, 7]);
    assert_eq!(host.numa_nodes[1].distances, [21, 10]);
    let levels: Vec<_> = host.caches.iter().map(|cache| cache.level).collect();
    assert_eq!(levels, [1, 1, 1, 1, 3, 3]);
    assert_eq!(host.notes, [""; 0]);

    let card = |name: &str| {
        let interface = host.interfaces.iter().find(|i| i.name == name).unwrap();
        (interface.speed_bits_per_s, interface.numa_node)
    };
    assert_eq!(card("eth2"), (Some(200_000_000_000), Some(0)));
    assert_eq!(card("eth3"), (Some(200_000_000_000), Some(1)));
    assert_eq!(card("docker0"), (None, None));

    let pick = |filter: &str, family| {
        let filter = filter.parse().unwrap();
        host.pick_interface(&filter, family)
            .unwrap()
            .address
            .to_string()
    };
    assert_eq!(pick("", Family::PreferV4), "192.0.2.7", "the default route");
    assert_eq!(pick("", Family::OnlyV6), "2001:db8::7");
    assert_eq!(pick("eth", Family::PreferV4), "198.51.100.7");
    assert_eq!(pick("=eth3", Family::PreferV4), "203.0.113.7");
    assert_eq!(pick("^bond,eth", Family::PreferV4), "172.17.0.1");
    assert_eq!(pick("eth3", Family::OnlyV6), "fe80::7:5");
}

#[test]
fn cards_and_their_ports_are_found_where_they_hang() {
    let host = recorded("two_sockets");
    let cards: Vec<_> = host
        .pci
        .iter()
        .map(|card| (card.address.as_str(), card.kind, card.numa_node))
        .collect();
    assert_eq!(
        cards,
        [
            ("0000:3b:00.0", PciKind::Network, Some(0)),
            ("0000:3c:00.0", PciKind::Accelerator, Some(0)),
            ("0000:af:00.0", PciKind::Network, Some(1)),
        ]
    );
    assert_eq!(host.pci[0].interfaces, ["eth2"]);
    assert_eq!(host.pci[0].way, ["pci0000:3a", "0000:3a:00.0"]);
    assert_eq!(host.pci[2].bytes_per_s, Some(16_000_000_000 / 130 * 16 * 8));
    // The accelerator is nearer to the card of its own socket.
    assert_eq!(host.pci[1].hops(&host.pci[0]), Some(4));
    assert_eq!(host.pci[1].hops(&host.pci[2]), None);

    let [first, second] = &host.infiniband[..] else {
        panic!("{:?}", host.infiniband);
    };
    assert_eq!(first.pci.as_deref(), Some("0000:3b:00.0"));
    assert_eq!(first.firmware.as_deref(), Some("22.39.1002"));
    let port = &second.ports[0];
    assert!(port.active && port.ethernet && port.number == 1);
    assert_eq!(port.bits_per_s, Some(200_000_000_000));
    let gids: Vec<_> = port
        .gids
        .iter()
        .map(|gid| (gid.index, gid.version_2, gid.gid.to_ipv4_mapped()))
        .collect();
    assert_eq!(
        gids,
        [(0, false, None), (1, true, Some([203, 0, 113, 7].into()))]
    );
    assert_eq!(port.gids[1].interface.as_deref(), Some("eth3"));
}

#[test]
fn a_container_with_an_empty_sys_is_discovered_with_notes() {
    let host = recorded("bare_container");
    assert_eq!(
        host.id.0,
        "machine:00112233445566778899aabbccddeeff:6f1d2a3b4c5e"
    );
    let cpus: Vec<_> = host
        .cores
        .iter()
        .map(|core| (core.cpu, core.package))
        .collect();
    assert_eq!(cpus, [(0, None), (2, None)], "from /proc/stat");
    assert!(host.numa_nodes.is_empty() && host.caches.is_empty());
    assert_eq!(
        host.pick_interface(&InterfaceFilter::all(), Family::PreferV4)
            .unwrap()
            .interface
            .name,
        "eth0"
    );
    for missing in [
        "boot_id",
        "cpu/online",
        "node/online",
        "cpu*/topology/core_id",
        "cpu*/cache",
        "/sys/class/net",
    ] {
        assert!(
            host.notes.iter().any(|note| note.contains(missing)),
            "{missing}: {:#?}",
            host.notes
        );
    }
}

#[test]
fn facts_go_through_json() {
    for name in ["small_vm", "two_sockets", "bare_container"] {
        let host = recorded(name);
        let text = serde_json::to_string(&host).unwrap();
        assert_eq!(
            serde_json::from_str::<HostFacts>(&text).unwrap(),
            host,
            "{name}"
        );
    }
}

#[test]
fn a_host_without_any_identity_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = discover(&RecordedSystem::new(folder.path())).unwrap_err();
    assert!(matches!(error, DiscoverError::NoIdentity { .. }));
    assert!(error.to_string().contains("boot_id"), "{error}");

    // A name alone is enough, and is said to be little.
    let kernel = folder.path().join("proc/sys/kernel");
    fs::create_dir_all(&kernel).unwrap();
    fs::write(kernel.join("hostname"), "lonely\n").unwrap();
    let host = discover(&RecordedSystem::new(folder.path())).unwrap();
    assert_eq!(host.id.0, "name:lonely");
    assert!(host.notes.iter().any(|note| note.contains("by name alone")));
    assert!(
        host.notes
            .iter()
            .any(|note| note.contains("network interfaces"))
    );
}

#[test]
fn this_host_is_discovered() {
    let host = discover(&LiveSystem).unwrap();
    assert!(!host.id.0.is_empty() && !host.name.is_empty());
    assert!(!host.cores.is_empty(), "{:#?}", host.notes);
    assert_eq!(host.id, discover(&LiveSystem).unwrap().id);
}

/// A recorded system that answers its first calls and fails from a given one on, or fails only
/// the given one.
struct Failing {
    inner: RecordedSystem,
    calls: RefCell<usize>,
    fails: Box<dyn Fn(usize) -> bool>,
}

impl Failing {
    fn new(name: &str, fails: impl Fn(usize) -> bool + 'static) -> Self {
        Self {
            inner: RecordedSystem::new(fixture(name)),
            calls: RefCell::new(0),
            fails: Box::new(fails),
        }
    }

    fn count(&self) -> io::Result<()> {
        let call = *self.calls.borrow();
        *self.calls.borrow_mut() += 1;
        if (self.fails)(call) {
            Err(io::ErrorKind::PermissionDenied.into())
        } else {
            Ok(())
        }
    }
}

impl System for Failing {
    fn read(&self, path: &str) -> io::Result<String> {
        self.count()?;
        self.inner.read(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.count()?;
        self.inner.list(path)
    }
    fn link_target(&self, path: &str) -> io::Result<String> {
        self.count()?;
        self.inner.link_target(path)
    }
    fn host_name(&self) -> io::Result<String> {
        // The one fact that must be there; without it discovery may rightly refuse.
        self.inner.host_name()
    }
    fn interfaces(&self) -> io::Result<Vec<Interface>> {
        self.count()?;
        self.inner.interfaces()
    }
}

#[test]
fn whatever_read_fails_discovery_goes_on() {
    for name in ["small_vm", "two_sockets"] {
        let whole = Failing::new(name, |_| false);
        let facts = discover(&whole).unwrap();
        let calls = *whole.calls.borrow();
        assert!(calls > 20, "{calls}");
        let mut noticed = 0;
        for broken in 0..calls {
            let one = discover(&Failing::new(name, move |call| call == broken)).unwrap();
            noticed += usize::from(one != facts);
            discover(&Failing::new(name, move |call| call >= broken)).unwrap();
        }
        // All but what is unknown on these hosts anyway (speed of a loopback) leaves a trace.
        assert!(noticed * 10 > calls * 8, "{noticed} of {calls}");
    }
}

#[test]
fn files_with_any_content_are_survived() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let interfaces = ["../../etc", "a", "b", "c", "d"].map(|name| {
        format!(
            r#"{{"name":"{name}","index":1,"kind":"other","addresses":[],"mtu_bytes":0,"up":true,
            "running":true,"loopback":false,"point_to_point":false}}"#
        )
    });
    let interfaces = format!("[{}]", interfaces.join(","));
    for (path, text) in [
        ("proc/sys/kernel/hostname", "x\n"),
        ("proc/sys/kernel/random/boot_id", "\0\u{1}../../../etc"),
        ("sys/devices/system/cpu/online", "0-99999999"),
        ("sys/devices/system/node/online", "0"),
        ("sys/devices/system/node/node0/cpulist", ",,,"),
        (
            "sys/devices/system/node/node0/meminfo",
            "MemTotal: 99999999999999999999999 kB",
        ),
        ("proc/stat", "cpu0\ncpux 1\ncpu4294967296 1\n"),
        ("sys/class/net/a/speed", "0"),
        ("sys/class/net/b/speed", "4294967295"),
        ("sys/class/net/c/speed", "fast"),
        ("sys/bus/pci/devices/0000:00:01.0", "../../../../../etc"),
        ("sys/bus/pci/devices/0000:00:02.0", "../../../devices/odd"),
        ("sys/devices/odd/class", "0x020000"),
        ("sys/devices/odd/vendor", "0xfffff"),
        ("sys/class/infiniband/x", "../../devices/odd"),
        ("sys/devices/odd/ports/1/gids/0", "no address"),
        ("sys/devices/odd/ports/900/state", "4: ACTIVE"),
        (
            "sys/devices/odd/ports/1/rate",
            "99999999999999999999 Gb/sec",
        ),
        ("interfaces.json", &interfaces),
    ] {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), text).unwrap();
    }
    let host = discover(&RecordedSystem::new(root)).unwrap();
    assert_eq!(host.id.0, "name:x");
    assert!(host.pci.is_empty(), "{:?}", host.pci);
    let ports = &host.infiniband[0].ports;
    assert!(ports.len() == 1 && ports[0].gids.is_empty() && ports[0].bits_per_s.is_none());
    assert_eq!(
        host.cores.iter().map(|core| core.cpu).collect::<Vec<_>>(),
        [0]
    );
    assert_eq!(host.numa_nodes[0].memory_bytes, None);
    assert_eq!(host.interfaces.len(), 5);
    assert!(host.interfaces.iter().all(|i| i.speed_bits_per_s.is_none()));
    assert!(
        host.notes
            .contains(&"/sys/class/net: 1 of 5 interfaces are not there".to_owned())
    );
}
