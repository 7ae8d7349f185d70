//! What a rank says about itself.

use std::net::SocketAddr;
use std::sync::Arc;

use hcomm_types::{HostId, ProcessId, Rank};

use crate::codec::{Malformed, Reader, Writer};
use crate::job_key::SessionId;

/// Version of this library, compared between ranks.
pub const LIBRARY_VERSION: &str = env!("CARGO_PKG_VERSION");

/// One rank, as it presents itself at start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub rank: Rank,
    /// How many ranks it believes there are.
    pub size: u32,
    /// Its number among the ranks of its host, if its launcher says.
    pub local_rank: Option<u32>,
    /// Version of its library.
    pub library_version: Arc<str>,
    /// Its process.
    pub process: ProcessId,
    /// Its host, as people call it.
    pub host_name: String,
    /// Its host, as processes recognise it.
    pub host_id: HostId,
    /// Where it accepts links of the mesh, best first. An unspecified IP address stands for the
    /// one that its connection to the root came from.
    pub mesh: Vec<SocketAddr>,
    /// Settings on which all ranks must agree, as name and value.
    pub settings: Arc<[(String, String)]>,
    /// What may differ between ranks, but is rarely meant to: rank 0 warns of it. Only rank 0 learns
    /// it.
    pub varying: Vec<(String, String)>,
    /// What the layers above want everybody to know about it.
    pub facts: Vec<u8>,
    /// What they want everybody to know about its host: what several ranks say alike travels once.
    pub host_facts: Arc<[u8]>,
}

impl Member {
    /// A rank of this library with nothing more to say; fill in the rest.
    #[must_use]
    pub fn new(
        rank: Rank,
        size: u32,
        process: ProcessId,
        host_name: &str,
        host_id: HostId,
    ) -> Self {
        Self {
            rank,
            size,
            local_rank: None,
            library_version: LIBRARY_VERSION.into(),
            process,
            host_name: host_name.to_owned(),
            host_id,
            mesh: Vec::new(),
            settings: Arc::new([]),
            varying: Vec::new(),
            facts: Vec::new(),
            host_facts: Arc::new([]),
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        // Rank, size, versions and names come first: a later protocol version keeps them there,
        // so that a disagreement of versions can be told with names.
        writer.u32(self.rank.0).u32(self.size);
        writer.text(&self.library_version).text(&self.host_name);
        writer.u32(self.process.pid).u64(self.process.token);
        self.write_rest(writer);
        write_pairs(writer, &self.settings);
        write_pairs(writer, &self.varying);
        writer.bytes(&self.host_facts);
    }

    /// The part that is the same in every protocol version; the rest stays empty.
    pub(super) fn read_names(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let rank = Rank(reader.u32("rank")?);
        let size = reader.u32("size")?;
        let library_version = reader.text("library version")?.into();
        let host_name = reader.text("host name")?.to_owned();
        let process = ProcessId {
            pid: reader.u32("process number")?,
            token: reader.u64("process token")?,
        };
        Ok(Self {
            library_version,
            ..Self::new(rank, size, process, &host_name, HostId(String::new()))
        })
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut member = Self::read_names(reader)?;
        member.read_rest(reader)?;
        member.settings = read_pairs(reader)?.into();
        member.varying = read_pairs(reader)?;
        member.host_facts = reader.bytes("host facts")?.into();
        Ok(member)
    }

    /// Bytes of the shortest entry.
    pub(super) const SMALLEST_ENTRY_BYTES: usize = 32;

    /// What others do not know: rank, what is said of its host, and what all ranks have in common, are
    /// left out.
    pub(super) fn write_entry(&self, writer: &mut Writer) {
        writer.text(&self.host_name);
        writer.u32(self.process.pid).u64(self.process.token);
        self.write_rest(writer);
    }

    /// Reads an entry; what all ranks have in common is taken from `own`.
    pub(super) fn read_entry(
        reader: &mut Reader<'_>,
        rank: Rank,
        own: &Self,
    ) -> Result<Self, Malformed> {
        let host_name = reader.text("host name")?.to_owned();
        let process = ProcessId {
            pid: reader.u32("process number")?,
            token: reader.u64("process token")?,
        };
        let mut member = Self {
            library_version: Arc::clone(&own.library_version),
            settings: Arc::clone(&own.settings),
            ..Self::new(rank, own.size, process, &host_name, HostId(String::new()))
        };
        member.read_rest(reader)?;
        Ok(member)
    }

    fn write_rest(&self, writer: &mut Writer) {
        writer.u32(self.local_rank.unwrap_or(u32::MAX));
        writer.text(&self.host_id.0);
        writer.length(self.mesh.len());
        for &address in &self.mesh {
            writer.address(address);
        }
        writer.bytes(&self.facts);
    }

    fn read_rest(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let local_rank = reader.u32("local rank")?;
        self.local_rank = (local_rank != u32::MAX).then_some(local_rank);
        self.host_id = HostId(reader.text("host id")?.to_owned());
        self.mesh = (0..reader.count(7, "mesh addresses")?)
            .map(|_| reader.address("mesh address"))
            .collect::<Result<_, _>>()?;
        self.facts = reader.bytes("facts")?.to_vec();
        Ok(())
    }
}

fn write_pairs(writer: &mut Writer, pairs: &[(String, String)]) {
    writer.length(pairs.len());
    for (name, value) in pairs {
        writer.text(name).text(value);
    }
}

fn read_pairs(reader: &mut Reader<'_>) -> Result<Vec<(String, String)>, Malformed> {
    (0..reader.count(8, "settings")?)
        .map(|_| {
            let name = reader.text("setting")?.to_owned();
            Ok((name, reader.text("setting")?.to_owned()))
        })
        .collect()
}

/// Body of a hello: who it is, and a token that tells this attempt from another of the same rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) attempt: u64,
    pub(super) member: Member,
    /// Port at which it accepts ranks below it; 0 if it does not.
    pub(super) port: u16,
    /// The rank that it was to hang below and cannot, and why.
    pub(super) orphaned_by: Option<(Rank, String)>,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.attempt);
        self.member.write(&mut writer);
        writer.u16(self.port);
        let (parent, why) = self
            .orphaned_by
            .as_ref()
            .map_or((u32::MAX, ""), |(parent, why)| (parent.0, why));
        writer.u32(parent).text(why);
        writer.into_bytes()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let attempt = reader.u64("attempt")?;
        let member = Member::read(&mut reader)?;
        let port = reader.u16("hello")?;
        let parent = reader.u32("hello")?;
        let why = reader.text("hello")?.to_owned();
        reader.end("hello")?;
        Ok(Self {
            attempt,
            member,
            port,
            orphaned_by: (parent != u32::MAX).then_some((Rank(parent), why)),
        })
    }

    /// As far as every protocol version can.
    pub(super) fn decode_names(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let attempt = reader.u64("attempt")?;
        let member = Member::read_names(&mut reader)?;
        Ok(Self {
            attempt,
            member,
            port: 0,
            orphaned_by: None,
        })
    }
}

/// Body of a place: where in the tree a rank hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) session: SessionId,
    /// The rank above; rank 0 stands for this very connection.
    pub(super) parent: Rank,
    /// Where that one accepts connections of the tree.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Place {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(&self.session.0).u32(self.parent.0);
        writer.length(self.addresses.len());
        for &address in &self.addresses {
            writer.address(address);
        }
        writer.into_bytes()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let session = SessionId(reader.array("place")?);
        let parent = Rank(reader.u32("place")?);
        let addresses = (0..reader.count(7, "place")?)
            .map(|_| reader.address("place"))
            .collect::<Result<_, _>>()?;
        reader.end("place")?;
        Ok(Self {
            session,
            parent,
            addresses,
        })
    }
}

/// Puts the address that others see in the place of an unspecified one.
pub(super) fn place(addresses: &mut [SocketAddr], seen: std::net::IpAddr) {
    for address in addresses {
        if address.ip().is_unspecified() {
            address.set_ip(seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(rank: u32) -> Member {
        Member {
            local_rank: rank.checked_sub(1),
            mesh: vec!["0.0.0.0:5".parse().unwrap(), "[::1]:6".parse().unwrap()],
            settings: [("A".to_owned(), "1".to_owned())].into(),
            varying: vec![("B".to_owned(), "2".to_owned())],
            host_facts: [9, 8].into(),
            facts: vec![1, 2, 3],
            ..Member::new(
                Rank(rank),
                2,
                ProcessId { pid: 7, token: 8 },
                "node",
                HostId("boot".to_owned()),
            )
        }
    }

    #[test]
    fn a_smallest_entry_is_as_long_as_the_count_assumes() {
        let mut writer = Writer::new();
        Member::new(
            Rank(0),
            1,
            ProcessId { pid: 0, token: 0 },
            "",
            HostId(String::new()),
        )
        .write_entry(&mut writer);
        assert_eq!(writer.into_bytes().len(), Member::SMALLEST_ENTRY_BYTES);
    }

    #[test]
    fn hello_and_place_go_both_ways() {
        for orphaned_by in [None, Some((Rank(4), "it is gone".to_owned()))] {
            let hello = Hello {
                attempt: 9,
                member: member(1),
                port: 77,
                orphaned_by,
            };
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello.clone()));
            let names = Hello::decode_names(&hello.encode()).unwrap().member;
            assert_eq!(
                (names.rank, names.size, &*names.host_name),
                (Rank(1), 2, "node")
            );
        }
        let place = Place {
            session: SessionId([3; 16]),
            parent: Rank(2),
            addresses: member(1).mesh,
        };
        assert_eq!(Place::decode(&place.encode()), Ok(place));
    }

    proptest! {
        #[test]
        fn changed_and_cut_bodies_never_panic(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
            let hello = Hello { attempt: 9, member: member(1), port: 1, orphaned_by: None };
            let mut body = hello.encode();
            let at = at.index(body.len());
            body[at] = byte;
            let _ = Hello::decode(&body);
            let _ = Place::decode(&body);
            let cut = cut.index(body.len());
            prop_assert!(Hello::decode(&body[..cut]).is_err());
        }
    }
}
