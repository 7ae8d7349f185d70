//! Which network interface to speak through.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hcomm_types::{Error, ErrorKind};

use crate::interface::{Interface, InterfaceKind, is_interface_name, is_link_local};

/// Which interfaces may be used: the value of `HCOMM_SOCKET_IFNAME`.
///
/// | text | meaning |
/// |---|---|
/// | `eth` or `eth,ib` | names that begin with one of these |
/// | `^docker,veth` | names that begin with none of these |
/// | `=eth0` or `=eth0,ib1` | exactly these |
/// | `^=eth0` | all but exactly these |
/// | empty | all |
///
/// The mark stands before the first name and holds for the whole list; it may be repeated.
///
/// ```
/// use hcomm_topo::InterfaceFilter;
/// let filter: InterfaceFilter = "^docker,lo".parse()?;
/// assert!(filter.matches("eth0") && !filter.matches("docker0"));
/// # Ok::<(), hcomm_topo::ParseFilterError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl InterfaceFilter {
    /// Lets every interface pass.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Whether an interface of this name passes.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let named = self.names.iter().any(|listed| {
            if self.exact {
                name == listed
            } else {
                name.starts_with(listed.as_str())
            }
        });
        self.names.is_empty() || named != self.exclude
    }
}

impl fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exclude {
            f.write_str("^")?;
        }
        if self.exact {
            f.write_str("=")?;
        }
        f.write_str(&self.names.join(","))
    }
}

impl FromStr for InterfaceFilter {
    type Err = ParseFilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(Self::all());
        }
        let refuse = |problem: String| ParseFilterError {
            text: text.to_owned(),
            problem,
        };
        let mut filter = Self::all();
        let mut mark = "";
        for (position, item) in trimmed.split(',').enumerate() {
            let item = item.trim();
            let name = item.trim_start_matches(['^', '=']);
            let own_mark = &item[..item.len() - name.len()];
            if !matches!(own_mark, "" | "^" | "=" | "^=") {
                return Err(refuse(format!("`{own_mark}` is no mark")));
            }
            if position == 0 {
                mark = own_mark;
            } else if !own_mark.is_empty() && own_mark != mark {
                let first = if mark.is_empty() { "none" } else { mark };
                return Err(refuse(format!(
                    "`{item}` has the mark {own_mark}, the first name has {first}"
                )));
            }
            if name.is_empty() {
                return Err(refuse("an empty name".to_owned()));
            }
            if !is_interface_name(name) {
                return Err(refuse(format!(
                    "`{name}` cannot be an interface's name (1 to 15 bytes, no space, `/` or `:`)"
                )));
            }
            filter.names.push(name.to_owned());
        }
        filter.exclude = mark.starts_with('^');
        filter.exact = mark.ends_with('=');
        Ok(filter)
    }
}

/// A text that is no [`InterfaceFilter`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` does not choose interfaces: {problem}; write `eth,ib` (prefixes), `^docker` (all but) or `=eth0` (exactly)"
)]
pub struct ParseFilterError {
    /// The text as given.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

impl From<ParseFilterError> for Error {
    fn from(error: ParseFilterError) -> Self {
        Self::new(ErrorKind::InvalidArgument, error.to_string()).with_source(error)
    }
}

/// Which IP version an address should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 if there is one, else IPv6.
    #[default]
    PreferV4,
    /// IPv6 if there is one, else IPv4.
    PreferV6,
    /// IPv4 or nothing.
    OnlyV4,
    /// IPv6 or nothing.
    OnlyV6,
}

impl Family {
    fn admits(self, ip: IpAddr) -> bool {
        match self {
            Self::PreferV4 | Self::PreferV6 => true,
            Self::OnlyV4 => ip.is_ipv4(),
            Self::OnlyV6 => ip.is_ipv6(),
        }
    }

    fn likes(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == matches!(self, Self::PreferV4 | Self::OnlyV4)
    }
}

/// The interface and address that were picked, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick<'a> {
    /// The interface.
    pub interface: &'a Interface,
    /// Its address. A link-local IPv6 address needs the interface's index as scope.
    pub address: IpAddr,
    /// One sentence for people: what spoke for it, and what was passed over.
    pub why: String,
}

/// No interface can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoInterface {
    /// The filter, as text; empty if all were welcome.
    pub filter: String,
    /// Each interface with the reason why not.
    pub refused: Vec<(String, String)>,
}

impl fmt::Display for NoInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no network interface can be used")?;
        if !self.filter.is_empty() {
            write!(f, " (asked for `{}`)", self.filter)?;
        }
        if self.refused.is_empty() {
            return f.write_str(": the system shows none");
        }
        for (position, (name, reason)) in self.refused.iter().enumerate() {
            f.write_str(if position == 0 { ": " } else { ", " })?;
            write!(f, "{name} {reason}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NoInterface {}

impl From<NoInterface> for Error {
    fn from(error: NoInterface) -> Self {
        Self::new(ErrorKind::System, error.to_string())
            .hint("see `ip address`; choose with HCOMM_SOCKET_IFNAME")
            .with_source(error)
    }
}

/// Interfaces that a sentence names: a host of containers has hundreds.
const MAX_EXPLAINED: usize = 8;

/// How well an address leads to other hosts, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Routable,
    Tunnel,
    LinkLocal,
    Loopback,
}

/// Chooses among `interfaces`. Order: what kind of address it is, carrier, family, default route,
/// speed, no bridge, lowest index, first address.
pub(crate) fn pick<'a>(
    interfaces: &'a [Interface],
    filter: &InterfaceFilter,
    family: Family,
) -> Result<Pick<'a>, NoInterface> {
    let mut refused = Vec::new();
    let mut candidates = Vec::new();
    for interface in interfaces {
        match refuse(interface, filter, family) {
            Some(reason) => refused.push((interface.name.clone(), reason)),
            None => candidates.extend(
                interface
                    .addresses
                    .iter()
                    .filter(|address| family.admits(address.ip))
                    .map(|address| (interface, address.ip)),
            ),
        }
    }
    let rank = |&(interface, ip): &(&Interface, IpAddr)| {
        (
            standing(interface, ip),
            !interface.running,
            !family.likes(ip),
            !interface.default_route,
            u64::MAX - interface.speed_bits_per_s.unwrap_or(0),
            interface.kind == InterfaceKind::Bridge,
            interface.index,
        )
    };
    // min_by_key takes the first of equals: the order of an interface's addresses counts.
    let Some((interface, address)) = candidates.iter().copied().min_by_key(rank) else {
        return Err(NoInterface {
            filter: filter.to_string(),
            refused,
        });
    };
    let why = explain(interface, address, &candidates, &refused);
    Ok(Pick {
        interface,
        address,
        why,
    })
}

fn refuse(interface: &Interface, filter: &InterfaceFilter, family: Family) -> Option<String> {
    if !filter.matches(&interface.name) {
        return Some("is not chosen by name".to_owned());
    }
    if !interface.up {
        return Some("is down".to_owned());
    }
    if interface.addresses.is_empty() {
        return Some("has no address".to_owned());
    }
    if !interface.addresses.iter().any(|a| family.admits(a.ip)) {
        let wanted = if family == Family::OnlyV4 { 4 } else { 6 };
        return Some(format!("has no IPv{wanted} address"));
    }
    None
}

fn standing(interface: &Interface, ip: IpAddr) -> Standing {
    if interface.loopback || ip.is_loopback() {
        Standing::Loopback
    } else if is_link_local(ip) {
        Standing::LinkLocal
    } else if interface.kind == InterfaceKind::Tunnel || interface.point_to_point {
        Standing::Tunnel
    } else {
        Standing::Routable
    }
}

fn explain(
    chosen: &Interface,
    address: IpAddr,
    candidates: &[(&Interface, IpAddr)],
    refused: &[(String, String)],
) -> String {
    let own_standing = standing(chosen, address);
    let what = match own_standing {
        Standing::Routable => "is up with a routable address",
        Standing::Tunnel => "is a tunnel; no other interface has a routable address",
        Standing::LinkLocal => "has only a link-local address; no interface has a routable one",
        Standing::Loopback => "is the loopback, which no other host can reach; nothing else is up",
    };
    let mut why = format!("{} ({address}) {what}", chosen.name);
    if chosen.default_route {
        why += " and holds a default route";
    } else if let Some(speed) = chosen.speed_bits_per_s {
        why += &format!(" at {} Mbit/s", speed / 1_000_000);
    }
    let mut passed = Vec::new();
    for &(interface, ip) in candidates {
        let named = passed.iter().any(|(name, _)| *name == interface.name);
        if interface.name == chosen.name || named {
            continue;
        }
        let reason = match standing(interface, ip) {
            Standing::Loopback => "is the loopback",
            Standing::LinkLocal if own_standing < Standing::LinkLocal => "is link-local only",
            Standing::Tunnel if own_standing < Standing::Tunnel => "is a tunnel",
            _ if chosen.running && !interface.running => "has no carrier",
            _ if chosen.default_route && !interface.default_route => "has no default route",
            _ => "comes after it in speed or order",
        };
        passed.push((interface.name.clone(), reason.to_owned()));
    }
    passed.extend(refused.iter().cloned());
    for (position, (name, reason)) in passed.iter().take(MAX_EXPLAINED).enumerate() {
        why += if position == 0 {
            "; passed over: "
        } else {
            ", "
        };
        why += &format!("{name} {reason}");
    }
    if let Some(more) = passed
        .len()
        .checked_sub(MAX_EXPLAINED)
        .filter(|&more| more > 0)
    {
        why += &format!(" and {more} more");
    }
    why
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::interface::InterfaceAddress;

    fn interface(index: u32, name: &str, kind: InterfaceKind, ips: &[&str]) -> Interface {
        Interface {
            name: name.to_owned(),
            index,
            kind,
            mac: None,
            addresses: ips
                .iter()
                .map(|ip| InterfaceAddress {
                    ip: ip.parse().unwrap(),
                    prefix_bits: 24,
                })
                .collect(),
            mtu_bytes: 1500,
            up: true,
            running: true,
            loopback: kind == InterfaceKind::Loopback,
            point_to_point: false,
            default_route: false,
            speed_bits_per_s: None,
            numa_node: None,
        }
    }

    /// A laptop with everything that has misled a library before.
    fn laptop() -> Vec<Interface> {
        use InterfaceKind::{Bridge, Ethernet, Loopback, Tunnel};
        let mut docker = interface(3, "docker0", Bridge, &["172.17.0.1"]);
        docker.running = false;
        let mut eth0 = interface(
            5,
            "eth0",
            Ethernet,
            &["fe80::1", "2001:db8::5", "192.0.2.5"],
        );
        eth0.default_route = true;
        let mut spare = interface(6, "eth1", Ethernet, &["198.51.100.1"]);
        spare.up = false;
        vec![
            interface(1, "lo", Loopback, &["127.0.0.1", "::1"]),
            interface(2, "tun0", Tunnel, &["10.8.0.2"]),
            docker,
            interface(4, "usb0", Ethernet, &["169.254.3.4"]),
            eth0,
            spare,
            interface(7, "ifb0", Ethernet, &[]),
        ]
    }

    fn picked(list: &[Interface], filter: &str, family: Family) -> (String, String) {
        let pick = pick(list, &filter.parse().unwrap(), family).unwrap();
        assert!(
            pick.interface
                .addresses
                .iter()
                .any(|a| a.ip == pick.address)
        );
        (pick.interface.name.clone(), pick.address.to_string())
    }

    #[test]
    fn the_routable_address_wins_and_the_rest_is_explained() {
        let list = laptop();
        let pick = pick(&list, &InterfaceFilter::all(), Family::PreferV4).unwrap();
        assert_eq!(pick.interface.name, "eth0");
        assert_eq!(
            pick.why,
            "eth0 (192.0.2.5) is up with a routable address and holds a default route; \
             passed over: lo is the loopback, tun0 is a tunnel, docker0 has no carrier, \
             usb0 is link-local only, eth1 is down, ifb0 has no address"
        );
    }

    #[test]
    fn family_is_a_wish_or_a_rule() {
        let list = laptop();
        let v6 = ("eth0".to_owned(), "2001:db8::5".to_owned());
        assert_eq!(picked(&list, "", Family::PreferV6), v6);
        assert_eq!(picked(&list, "", Family::OnlyV6), v6);
        assert_eq!(picked(&list, "tun", Family::PreferV6).1, "10.8.0.2");
        let error = pick(&list, &"tun".parse().unwrap(), Family::OnlyV6).unwrap_err();
        assert!(
            error.to_string().contains("tun0 has no IPv6 address"),
            "{error}"
        );
    }

    #[test]
    fn worse_addresses_serve_when_nothing_better_is_left() {
        let list = laptop();
        let name = |filter| picked(&list, filter, Family::PreferV4).0;
        assert_eq!(name("^eth"), "docker0");
        assert_eq!(name("^eth,docker"), "tun0");
        assert_eq!(name("^eth,docker,tun"), "usb0");
        assert_eq!(name("^eth,docker,tun,usb"), "lo");
        assert_eq!(name("=lo"), "lo");
    }

    #[test]
    fn between_equals_speed_and_order_decide() {
        use InterfaceKind::Ethernet;
        let slow = interface(2, "eth0", Ethernet, &["192.0.2.1"]);
        let mut fast = interface(3, "eth1", Ethernet, &["198.51.100.1"]);
        assert_eq!(
            picked(&[fast.clone(), slow.clone()], "", Family::PreferV4).0,
            "eth0"
        );
        fast.speed_bits_per_s = Some(100_000_000_000);
        assert_eq!(picked(&[slow, fast], "", Family::PreferV4).0, "eth1");
    }

    #[test]
    fn carrier_and_wires_come_before_order() {
        use InterfaceKind::{Bridge, Ethernet};
        let name = |list: &[Interface]| picked(list, "", Family::PreferV4).0;
        let last = interface(9, "eth9", Ethernet, &["198.51.100.1"]);
        let mut unplugged = interface(2, "eth2", Ethernet, &["192.0.2.1"]);
        unplugged.running = false;
        unplugged.default_route = true;
        assert_eq!(name(&[unplugged, last.clone()]), "eth9");
        let bridge = interface(3, "br0", Bridge, &["192.0.2.1"]);
        assert_eq!(name(&[bridge, last.clone()]), "eth9");
        let mut one_end = interface(4, "ppp0", InterfaceKind::Other, &["192.0.2.1"]);
        one_end.point_to_point = true;
        assert_eq!(name(&[one_end, last]), "eth9");
    }

    #[test]
    fn a_sentence_stays_short_on_a_host_of_containers() {
        let ends = (1..=100).map(|number| {
            interface(
                number,
                &format!("veth{number}"),
                InterfaceKind::Ethernet,
                &["10.0.0.1"],
            )
        });
        let list: Vec<_> = ends.collect();
        let why = pick(&list, &InterfaceFilter::all(), Family::PreferV4)
            .unwrap()
            .why;
        assert!(why.contains("veth9 ") && !why.contains("veth10 "), "{why}");
        assert!(why.ends_with(" and 91 more"), "{why}");
    }

    #[test]
    fn nothing_usable_says_why_for_each() {
        let list = laptop();
        let error = pick(&list, &"=eth1,ifb0".parse().unwrap(), Family::PreferV4).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`=eth1,ifb0`"), "{text}");
        assert!(text.contains("eth1 is down"), "{text}");
        assert!(text.contains("ifb0 has no address"), "{text}");
        assert!(text.contains("lo is not chosen by name"), "{text}");
        let none = pick(&[], &InterfaceFilter::all(), Family::PreferV4).unwrap_err();
        assert!(none.to_string().ends_with("the system shows none"));
    }

    #[test]
    fn filters_mean_what_the_table_says() {
        let passes =
            |filter: &str, name: &str| filter.parse::<InterfaceFilter>().unwrap().matches(name);
        assert!(passes("", "any") && passes(" ", "any"));
        assert!(passes("eth,ib", "ib0") && !passes("eth,ib", "lo"));
        assert!(passes("^eth,ib", "lo") && !passes("^eth,^ib", "ib0"));
        assert!(passes("=eth0,ib0", "ib0") && !passes("=eth0", "eth01"));
        assert!(passes("^=eth0", "eth01") && !passes("^=eth0", "eth0"));
    }

    #[test]
    fn bad_filters_are_refused_with_the_reason() {
        for (text, reason) in [
            ("eth,", "empty name"),
            ("^", "empty name"),
            ("eth,=eth0", "the first name has none"),
            ("^eth,=eth0", "the first name has ^"),
            ("=^eth0", "is no mark"),
            ("^^eth0", "is no mark"),
            ("eth 0", "cannot be"),
            ("a/b", "cannot be"),
            ("name_of_17_bytes_", "cannot be"),
        ] {
            let error = text.parse::<InterfaceFilter>().unwrap_err();
            assert!(error.problem.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_filter_reads_back_as_itself(text in "[\\^=]{0,2}[a-z0-9.^=, -]{0,24}|\\PC{0,20}") {
            if let Ok(filter) = text.parse::<InterfaceFilter>() {
                prop_assert_eq!(filter.to_string().parse::<InterfaceFilter>(), Ok(filter));
            }
        }

        #[test]
        fn exactly_one_of_a_filter_and_its_opposite_matches(
            list in "[a-c]{1,3}(,[a-c]{1,3}){0,3}",
            name in "[a-c]{1,4}",
        ) {
            for mark in ["", "="] {
                let plain: InterfaceFilter = format!("{mark}{list}").parse().unwrap();
                let opposite: InterfaceFilter = format!("^{mark}{list}").parse().unwrap();
                prop_assert_ne!(plain.matches(&name), opposite.matches(&name));
            }
        }
    }
}
