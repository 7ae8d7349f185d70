//! What a rank says about itself, and the list of all of them.

use std::fmt;
use std::net::SocketAddr;

use hcomm_types::{HostId, ProcessId, Rank};

use crate::codec::{Malformed, Reader, Writer};
use crate::job_key::{JobKey, SessionId};

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
    pub library_version: String,
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
    pub settings: Vec<(String, String)>,
    /// What the layers above want everybody to know about it.
    pub facts: Vec<u8>,
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
            library_version: LIBRARY_VERSION.to_owned(),
            process,
            host_name: host_name.to_owned(),
            host_id,
            mesh: Vec::new(),
            settings: Vec::new(),
            facts: Vec::new(),
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        // Rank, size, versions and names come first: a later protocol version keeps them there,
        // so that a disagreement of versions can be told with names.
        writer.u32(self.rank.0).u32(self.size);
        writer.text(&self.library_version).text(&self.host_name);
        writer.u32(self.process.pid).u64(self.process.token);
        writer.u32(self.local_rank.unwrap_or(u32::MAX));
        writer.text(&self.host_id.0);
        writer.length(self.mesh.len());
        for &address in &self.mesh {
            writer.address(address);
        }
        writer.length(self.settings.len());
        for (name, value) in &self.settings {
            writer.text(name).text(value);
        }
        writer.bytes(&self.facts);
    }

    /// The part that is the same in every protocol version; the rest stays empty.
    pub(super) fn read_names(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let rank = Rank(reader.u32("rank")?);
        let size = reader.u32("size")?;
        let library_version = reader.text("library version")?.to_owned();
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
        let names = Self::read_names(reader)?;
        let local_rank = reader.u32("local rank")?;
        let host_id = HostId(reader.text("host id")?.to_owned());
        let mesh = (0..reader.count(7, "mesh addresses")?)
            .map(|_| reader.address("mesh address"))
            .collect::<Result<_, _>>()?;
        let settings = (0..reader.count(8, "settings")?)
            .map(|_| {
                let name = reader.text("setting")?.to_owned();
                Ok((name, reader.text("setting")?.to_owned()))
            })
            .collect::<Result<_, _>>()?;
        let facts = reader.bytes("facts")?.to_vec();
        Ok(Self {
            local_rank: (local_rank != u32::MAX).then_some(local_rank),
            host_id,
            mesh,
            settings,
            facts,
            ..names
        })
    }
}

/// Body of a hello: who it is, and a token that tells this attempt from another of the same rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) attempt: u64,
    pub(super) member: Member,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.attempt);
        self.member.write(&mut writer);
        writer.into_bytes()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let attempt = reader.u64("attempt")?;
        let member = Member::read(&mut reader)?;
        reader.end("hello")?;
        Ok(Self { attempt, member })
    }

    /// As far as every protocol version can.
    pub(super) fn decode_names(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let attempt = reader.u64("attempt")?;
        let member = Member::read_names(&mut reader)?;
        Ok(Self { attempt, member })
    }
}

/// All ranks of a communicator: what start-up ends with, the same on every rank.
#[derive(Clone, PartialEq, Eq)]
pub struct Roster {
    session: SessionId,
    members: Vec<Member>,
    key: JobKey,
}

impl Roster {
    /// From its parts, for communicators that need no bootstrap of their own.
    ///
    /// # Panics
    /// If the members are not in the order of their ranks.
    #[must_use]
    pub fn new(session: SessionId, members: Vec<Member>, key: JobKey) -> Self {
        assert!(
            members.iter().enumerate().all(|(i, m)| m.rank.index() == i),
            "the members of a roster are in the order of their ranks"
        );
        Self {
            session,
            members,
            key,
        }
    }

    /// Number of the communicator.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// The ranks, in their order.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        Rank::from_index(self.members.len()).0
    }

    /// The key of the job.
    #[must_use]
    pub const fn key(&self) -> &JobKey {
        &self.key
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(&self.session.0).length(self.members.len());
        for member in &self.members {
            member.write(&mut writer);
        }
        writer.into_bytes()
    }

    pub(super) fn decode(body: &[u8], key: JobKey) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let session = SessionId(reader.array("session")?);
        let members: Vec<_> = (0..reader.count(48, "roster")?)
            .map(|_| Member::read(&mut reader))
            .collect::<Result<_, _>>()?;
        reader.end("roster")?;
        if members.iter().enumerate().any(|(i, m)| m.rank.index() != i) {
            return Err(Malformed("roster"));
        }
        Ok(Self::new(session, members, key))
    }

    /// Fills in the addresses that rank 0 could not know of itself.
    pub(super) fn place_root(&mut self, at: std::net::IpAddr) {
        if let Some(root) = self.members.first_mut() {
            place(root, at);
        }
    }
}

/// Puts the address that others see in the place of an unspecified one.
pub(super) fn place(member: &mut Member, seen: std::net::IpAddr) {
    for address in &mut member.mesh {
        if address.ip().is_unspecified() {
            address.set_ip(seen);
        }
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster")
            .field("session", &self.session)
            .field("size", &self.members.len())
            .finish_non_exhaustive()
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
            settings: vec![("A".to_owned(), "1".to_owned())],
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
    fn a_smallest_member_is_as_long_as_the_count_assumes() {
        let mut writer = Writer::new();
        Member {
            library_version: String::new(),
            ..Member::new(
                Rank(0),
                1,
                ProcessId { pid: 0, token: 0 },
                "",
                HostId(String::new()),
            )
        }
        .write(&mut writer);
        assert_eq!(writer.into_bytes().len(), 48);
    }

    #[test]
    fn hello_and_roster_go_both_ways() {
        let hello = Hello {
            attempt: 9,
            member: member(1),
        };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello.clone()));
        let names = Hello::decode_names(&hello.encode()).unwrap().member;
        assert_eq!(
            (names.rank, names.size, &*names.host_name),
            (Rank(1), 2, "node")
        );
        let key = JobKey::public();
        let roster = Roster::new(SessionId([3; 16]), vec![member(0), member(1)], key.clone());
        assert_eq!(Roster::decode(&roster.encode(), key), Ok(roster));
    }

    #[test]
    fn a_roster_out_of_order_is_malformed() {
        let mut writer = Writer::new();
        writer.raw(&[0; 16]).length(1);
        member(1).write(&mut writer);
        let roster = Roster::decode(&writer.into_bytes(), JobKey::public());
        assert_eq!(roster, Err(Malformed("roster")));
    }

    proptest! {
        #[test]
        fn changed_and_cut_bodies_never_panic(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
            let mut body = Roster::new(SessionId([3; 16]), vec![member(0), member(1)], JobKey::public()).encode();
            let at = at.index(body.len());
            body[at] = byte;
            let _ = Roster::decode(&body, JobKey::public());
            let cut = cut.index(body.len());
            prop_assert!(Roster::decode(&body[..cut], JobKey::public()).is_err());
        }
    }
}
