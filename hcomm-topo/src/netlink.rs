//! The kernel's list of interfaces and addresses, over a `NETLINK_ROUTE` socket.
//!
//! One dump of links, one of addresses, joined by interface index. The parser trusts nothing:
//! every length is checked, and a message that does not hold together ends the dump with an
//! error.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

use crate::interface::{Interface, InterfaceAddress, InterfaceKind};

/// All interfaces of this network namespace.
pub(crate) fn interfaces() -> io::Result<Vec<Interface>> {
    let kernel = SocketAddrNetlink::new(0, 0);
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE is protocol 0
    )?;
    // The kernel answers within the call; a sandbox that swallows the request must not hang us.
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
    bind(&socket, &kernel)?;

    let mut sequence = 0;
    let mut dump_whole = |request| {
        // A list that changed while it was read is marked by the kernel; read it again.
        for _ in 0..8 {
            sequence += 1;
            let (messages, interrupted) = dump(&socket, kernel, request, sequence)?;
            if !interrupted {
                return Ok(messages);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "the list of interfaces changed during each of 8 attempts to read it",
        ))
    };
    let links = dump_whole(RTM_GETLINK)?;
    let addresses = dump_whole(RTM_GETADDR)?;
    Ok(join(&links, &addresses)?)
}

// Numbers of linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/if.h and
// linux/if_arp.h. They are kernel ABI.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLA_TYPE_MASK: u16 = 0x3fff;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFF_UP: u32 = 0x1;
const IFF_POINTOPOINT: u32 = 0x10;
const IFF_RUNNING: u32 = 0x40;
const IFF_LOOPBACK: u32 = 0x8;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Bytes of `nlmsghdr`, of `ifinfomsg`, of `ifaddrmsg`, of an attribute's header.
const HEADER: usize = 16;
const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const ATTRIBUTE: usize = 4;

/// The kernel never makes a dump message longer than 32 KiB; twice that is plenty.
const BUFFER: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NetlinkError {
    #[error("netlink message at byte {at}: length {length} does not fit the {left} bytes left")]
    Length {
        at: usize,
        length: usize,
        left: usize,
    },
    #[error("netlink message of type {kind}: {length} bytes are too few for its fixed part")]
    Short { kind: u16, length: usize },
    #[error("netlink attribute {kind}: length {length} does not fit the {left} bytes left")]
    Attribute {
        kind: u16,
        length: usize,
        left: usize,
    },
    #[error("netlink message of {length} bytes was cut to {BUFFER}")]
    Truncated { length: usize },
}

impl From<NetlinkError> for io::Error {
    fn from(error: NetlinkError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// One message without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: Vec<u8>,
}

/// Asks for a list and reads to its end. The flag says that the list changed meanwhile.
fn dump(
    socket: &OwnedFd,
    kernel: SocketAddrNetlink,
    request: u16,
    sequence: u32,
) -> io::Result<(Vec<Message>, bool)> {
    // `ifinfomsg` and `ifaddrmsg` of zeros ask for every interface and family.
    let payload = [0; IFINFOMSG];
    let bytes = encode(request, NLM_F_REQUEST | NLM_F_DUMP, sequence, &payload);
    sendto(socket, &bytes, SendFlags::empty(), &kernel)?;

    let mut buffer = vec![0; BUFFER];
    let mut list = Vec::new();
    let mut interrupted = false;
    loop {
        let received =
            rustix::io::retry_on_intr(|| recvfrom(socket, buffer.as_mut_slice(), RecvFlags::TRUNC));
        let (filled, length, sender) = match received {
            Ok((filled, length, sender)) => (filled, length, sender),
            Err(rustix::io::Errno::AGAIN) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the kernel did not answer a netlink request within 2 s",
                ));
            }
            Err(error) => return Err(error.into()),
        };
        let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        if sender.is_none_or(|sender| sender.pid() != 0) {
            continue; // any process may write to a netlink socket; only the kernel is port 0
        }
        if length > filled {
            return Err(NetlinkError::Truncated { length }.into());
        }
        for message in messages(&buffer[..length])? {
            if message.sequence != sequence {
                continue;
            }
            interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.kind {
                NLMSG_DONE => return Ok((list, interrupted)),
                NLMSG_ERROR => {
                    let code = i32::from_ne_bytes(fixed(&message)?);
                    return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                }
                _ => list.push(message),
            }
        }
    }
}

fn encode(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + payload.len()).expect("requests are small");
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// Cuts a datagram into messages.
fn messages(bytes: &[u8]) -> Result<Vec<Message>, NetlinkError> {
    let mut list = Vec::new();
    let mut at = 0;
    while bytes.len() - at >= HEADER {
        let left = bytes.len() - at;
        let length = u32_at(bytes, at) as usize;
        if length < HEADER || length > left {
            return Err(NetlinkError::Length { at, length, left });
        }
        list.push(Message {
            kind: u16_at(bytes, at + 4),
            flags: u16_at(bytes, at + 6),
            sequence: u32_at(bytes, at + 8),
            payload: bytes[at + HEADER..at + length].to_vec(),
        });
        at = (at + length.next_multiple_of(4)).min(bytes.len());
    }
    Ok(list)
}

/// The attributes of a block: number and data.
fn attributes(mut bytes: &[u8]) -> Result<Vec<(u16, &[u8])>, NetlinkError> {
    let mut list = Vec::new();
    while bytes.len() >= ATTRIBUTE {
        let length = usize::from(u16_at(bytes, 0));
        let kind = u16_at(bytes, 2) & NLA_TYPE_MASK;
        let left = bytes.len();
        if length < ATTRIBUTE || length > left {
            return Err(NetlinkError::Attribute { kind, length, left });
        }
        list.push((kind, &bytes[ATTRIBUTE..length]));
        bytes = &bytes[length.next_multiple_of(4).min(left)..];
    }
    Ok(list)
}

/// Puts addresses to their links.
fn join(links: &[Message], addresses: &[Message]) -> Result<Vec<Interface>, NetlinkError> {
    let mut interfaces = BTreeMap::new();
    for message in links.iter().filter(|m| m.kind == RTM_NEWLINK) {
        let interface = parse_link(message)?;
        interfaces.insert(interface.index, interface);
    }
    let mut second_choice = Vec::new();
    for message in addresses.iter().filter(|m| m.kind == RTM_NEWADDR) {
        let Some(found) = parse_address(message)? else {
            continue;
        };
        if found.passing {
            second_choice.push(found);
        } else if let Some(interface) = interfaces.get_mut(&found.index) {
            interface.addresses.push(found.address);
        }
    }
    // Addresses that will go away come last, whatever the kernel's order.
    for found in second_choice {
        if let Some(interface) = interfaces.get_mut(&found.index) {
            interface.addresses.push(found.address);
        }
    }
    Ok(interfaces.into_values().collect())
}

fn parse_link(message: &Message) -> Result<Interface, NetlinkError> {
    let fixed_part: [u8; IFINFOMSG] = fixed(message)?;
    let hardware = u16_at(&fixed_part, 2);
    let flags = u32_at(&fixed_part, 8);
    let index = u32_at(&fixed_part, 4);
    let mut interface = Interface {
        name: String::new(),
        index,
        kind: InterfaceKind::from_hardware(hardware),
        mac: None,
        addresses: Vec::new(),
        mtu_bytes: 0,
        up: flags & IFF_UP != 0,
        running: flags & IFF_RUNNING != 0,
        loopback: flags & IFF_LOOPBACK != 0,
        point_to_point: flags & IFF_POINTOPOINT != 0,
        default_route: false,
        speed_bits_per_s: None,
        numa_node: None,
    };
    for (kind, data) in attributes(&message.payload[IFINFOMSG..])? {
        match kind {
            IFLA_IFNAME => interface.name = text(data),
            IFLA_MTU if data.len() == 4 => interface.mtu_bytes = u32_at(data, 0),
            IFLA_ADDRESS if data.len() == 6 && data.iter().any(|&byte| byte != 0) => {
                let bytes: Vec<_> = data.iter().map(|byte| format!("{byte:02x}")).collect();
                interface.mac = Some(bytes.join(":"));
            }
            IFLA_LINKINFO => {
                for (kind, data) in attributes(data)? {
                    if kind == IFLA_INFO_KIND {
                        interface.kind = interface.kind.refined(&text(data));
                    }
                }
            }
            _ => {}
        }
    }
    if interface.name.is_empty() {
        interface.name = format!("if{index}");
    }
    Ok(interface)
}

struct FoundAddress {
    index: u32,
    address: InterfaceAddress,
    /// Temporary or deprecated.
    passing: bool,
}

/// The address of a message; none if the family is unknown or the address cannot be used.
fn parse_address(message: &Message) -> Result<Option<FoundAddress>, NetlinkError> {
    let fixed_part: [u8; IFADDRMSG] = fixed(message)?;
    let family = fixed_part[0];
    let mut flags = u32::from(fixed_part[2]);
    let index = u32_at(&fixed_part, 4);
    let (mut local, mut address) = (None, None);
    for (kind, data) in attributes(&message.payload[IFADDRMSG..])? {
        match kind {
            IFA_LOCAL => local = ip(family, data),
            IFA_ADDRESS => address = ip(family, data),
            IFA_FLAGS if data.len() == 4 => flags = u32_at(data, 0),
            _ => {}
        }
    }
    // On a point-to-point link IFA_ADDRESS is the other side; IFA_LOCAL is always ours.
    let Some(ip) = local.or(address) else {
        return Ok(None);
    };
    let unusable = flags & IFA_F_DADFAILED != 0
        || flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0;
    if unusable {
        return Ok(None);
    }
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    Ok(Some(FoundAddress {
        index,
        address: InterfaceAddress {
            ip,
            prefix_bits: fixed_part[1].min(longest),
        },
        passing: flags & (IFA_F_TEMPORARY | IFA_F_DEPRECATED) != 0,
    }))
}

fn ip(family: u8, data: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
        _ => None,
    }
}

fn text(data: &[u8]) -> String {
    let end = data.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&data[..end.unwrap_or(data.len())]).into_owned()
}

/// The first `N` bytes of a message.
fn fixed<const N: usize>(message: &Message) -> Result<[u8; N], NetlinkError> {
    message
        .payload
        .first_chunk()
        .copied()
        .ok_or(NetlinkError::Short {
            kind: message.kind,
            length: message.payload.len(),
        })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ATTRIBUTE + data.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn link(index: u32, name: &str, flags: u32, hardware: u16, kind: Option<&str>) -> Vec<u8> {
        let mut payload = vec![0, 0];
        payload.extend(hardware.to_ne_bytes());
        payload.extend(index.to_ne_bytes());
        payload.extend(flags.to_ne_bytes());
        payload.extend([0; 4]);
        payload.extend(attribute(IFLA_IFNAME, format!("{name}\0").as_bytes()));
        payload.extend(attribute(IFLA_MTU, &1500u32.to_ne_bytes()));
        payload.extend(attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 0x1f]));
        if let Some(kind) = kind {
            let inner = attribute(IFLA_INFO_KIND, format!("{kind}\0").as_bytes());
            payload.extend(attribute(IFLA_LINKINFO | 0x8000, &inner));
        }
        encode(RTM_NEWLINK, 2, 7, &payload)
    }

    fn address(index: u32, family: u8, flags: u32, attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut payload = vec![family, 24, 0, 0];
        payload.extend(index.to_ne_bytes());
        for (kind, data) in attributes {
            payload.extend(attribute(*kind, data));
        }
        payload.extend(attribute(IFA_FLAGS, &flags.to_ne_bytes()));
        encode(RTM_NEWADDR, 2, 7, &payload)
    }

    fn sample_links() -> Vec<u8> {
        let up = IFF_UP | IFF_RUNNING;
        [
            link(1, "lo", up | IFF_LOOPBACK, 772, None),
            link(2, "eth0", up, 1, None),
            link(5, "wg0", up | IFF_POINTOPOINT, 65534, Some("wireguard")),
            link(6, "docker0", IFF_UP, 1, Some("bridge")),
            encode(RTM_NEWLINK + 1, 0, 7, &[0; IFINFOMSG]), // RTM_DELLINK: not of a dump
        ]
        .concat()
    }

    fn sample_addresses() -> Vec<u8> {
        let v6 = |last: u16| {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
                .octets()
                .to_vec()
        };
        [
            address(1, AF_INET, 0, &[(IFA_ADDRESS, vec![127, 0, 0, 1])]),
            address(2, AF_INET6, IFA_F_TEMPORARY, &[(IFA_ADDRESS, v6(9))]),
            address(2, AF_INET6, 0, &[(IFA_ADDRESS, v6(2))]),
            address(2, AF_INET6, IFA_F_TENTATIVE, &[(IFA_ADDRESS, v6(3))]),
            address(2, AF_INET6, IFA_F_DADFAILED, &[(IFA_ADDRESS, v6(4))]),
            address(
                5,
                AF_INET,
                0,
                &[
                    (IFA_ADDRESS, vec![10, 0, 0, 1]),
                    (IFA_LOCAL, vec![10, 0, 0, 2]),
                ],
            ),
            address(2, 77, 0, &[(IFA_ADDRESS, vec![1, 2, 3])]),
            address(99, AF_INET, 0, &[(IFA_ADDRESS, vec![10, 9, 9, 9])]),
        ]
        .concat()
    }

    fn parse(links: &[u8], addresses: &[u8]) -> Result<Vec<Interface>, NetlinkError> {
        join(&messages(links)?, &messages(addresses)?)
    }

    #[test]
    fn a_dump_becomes_interfaces() {
        let list = parse(&sample_links(), &sample_addresses()).unwrap();
        let names: Vec<_> = list.iter().map(|i| (i.index, i.name.as_str())).collect();
        assert_eq!(names, [(1, "lo"), (2, "eth0"), (5, "wg0"), (6, "docker0")]);
        let [lo, eth0, wg0, docker0] = &list[..] else {
            panic!("four interfaces: {list:?}");
        };

        assert!(lo.loopback && lo.kind == InterfaceKind::Loopback);
        assert_eq!(eth0.mac.as_deref(), Some("02:00:00:00:00:1f"));
        assert_eq!((eth0.mtu_bytes, eth0.up, eth0.running), (1500, true, true));
        let ips: Vec<_> = eth0.addresses.iter().map(|a| a.ip.to_string()).collect();
        assert_eq!(
            ips,
            ["fd00::2", "fd00::9"],
            "passing last, unusable left out"
        );
        assert_eq!(wg0.kind, InterfaceKind::Tunnel);
        assert!(wg0.point_to_point);
        assert_eq!(
            wg0.addresses[0].ip,
            IpAddr::from(Ipv4Addr::new(10, 0, 0, 2)),
            "our side of a point-to-point link, not the other"
        );
        assert_eq!(docker0.kind, InterfaceKind::Bridge);
        assert!(docker0.up && !docker0.running);
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        let mut short = sample_links();
        short[0..4].copy_from_slice(&8u32.to_ne_bytes());
        assert!(matches!(
            messages(&short),
            Err(NetlinkError::Length {
                at: 0,
                length: 8,
                ..
            })
        ));
        let mut long = sample_links();
        long[0..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(matches!(messages(&long), Err(NetlinkError::Length { .. })));

        let mut attribute = link(2, "eth0", IFF_UP, 1, None);
        attribute[HEADER + IFINFOMSG..][..2].copy_from_slice(&2u16.to_ne_bytes());
        assert!(matches!(
            parse(&attribute, &[]),
            Err(NetlinkError::Attribute { length: 2, .. })
        ));
        let stub = encode(RTM_NEWLINK, 0, 7, &[0; 8]);
        assert_eq!(
            parse(&stub, &[]),
            Err(NetlinkError::Short {
                kind: RTM_NEWLINK,
                length: 8
            })
        );
    }

    #[test]
    fn the_kernel_answers() {
        let list = interfaces().expect("a Linux kernel lists its interfaces");
        for interface in &list {
            assert!(interface.index > 0 && !interface.name.is_empty());
        }
        // Every network namespace has its own `lo`.
        assert!(list.iter().any(|interface| interface.loopback));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            links in proptest::collection::vec(any::<u8>(), 0..300),
            addresses in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = parse(&links, &addresses);
        }

        #[test]
        fn a_changed_or_cut_dump_is_read_without_panic(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let (mut links, mut addresses) = (sample_links(), sample_addresses());
            for (at, byte) in changes {
                *at.get_mut(&mut links) = byte;
                *at.get_mut(&mut addresses) = byte;
            }
            links.truncate(cut.index(links.len() + 1));
            let _ = parse(&links, &addresses);
            addresses.truncate(cut.index(addresses.len() + 1));
            let _ = parse(&sample_links(), &addresses);
        }

        #[test]
        fn a_longer_list_only_adds(index in 7u32..1000, name in "[a-z]{1,15}") {
            let mut links = sample_links();
            let before = parse(&links, &sample_addresses()).unwrap();
            links.extend(link(index, &name, IFF_UP, 1, None));
            let after = parse(&links, &sample_addresses()).unwrap();
            prop_assert_eq!(after.len(), before.len() + 1);
            prop_assert!(before.iter().all(|interface| after.contains(interface)
                || interface.index == index));
            prop_assert!(after.iter().any(|i| i.index == index && i.name == name));
        }
    }
}
