//! The list of all ranks, and how it travels: in a few parts, so that a rank passes on the beginning
//! before it has the end.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hcomm_types::Rank;
use sha2::{Digest, Sha256};

use super::member::{Member, place};
use crate::codec::{Malformed, Reader, Writer};
use crate::frame::{Body, Frame};
use crate::job_key::{JobKey, SessionId};
use crate::outside::Interned;

/// A part is closed once it has so many bytes, or its share of the whole.
const PART_BYTES: usize = 32 << 10;
/// Parts of a long list, about: more would be more messages, fewer would come later to the last rank.
const PARTS: usize = 8;

/// All ranks of a communicator: what start-up ends with, the same on every rank. Cheap to clone;
/// ranks of one process hold one list together.
#[derive(Clone, PartialEq, Eq)]
pub struct Roster {
    session: SessionId,
    members: Arc<[Member]>,
    key: JobKey,
    /// Where this rank sees rank 0, which cannot know that of itself.
    root_at: Option<IpAddr>,
}

impl Roster {
    /// From its parts, for communicators that need no bootstrap of their own.
    ///
    /// # Panics
    /// If the members are not in the order of their ranks.
    #[must_use]
    pub fn new(session: SessionId, members: Vec<Member>, key: JobKey) -> Self {
        Self::of(session, members.into(), key)
    }

    /// [`new`](Self::new) of a list that several ranks hold.
    pub(super) fn of(session: SessionId, members: Arc<[Member]>, key: JobKey) -> Self {
        assert!(
            members.iter().enumerate().all(|(i, m)| m.rank.index() == i),
            "the members of a roster are in the order of their ranks"
        );
        Self {
            session,
            members,
            key,
            root_at: None,
        }
    }

    /// Number of the communicator.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// The ranks, in their order. Rank 0 does not know the address at which others see it: see
    /// [`mesh_of`](Self::mesh_of).
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Where a rank accepts links of the mesh, as this rank reaches it. Nothing for a rank that
    /// there is not.
    #[must_use]
    pub fn mesh_of(&self, rank: Rank) -> Vec<SocketAddr> {
        let mut mesh = self
            .members
            .get(rank.index())
            .map_or_else(Vec::new, |member| member.mesh.clone());
        if let Some(at) = self.root_at.filter(|_| rank == Rank(0)) {
            place(&mut mesh, at);
        }
        mesh
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

    /// As a rank knows it that sees rank 0 there.
    pub(super) fn seeing_root_at(mut self, at: Option<IpAddr>) -> Self {
        self.root_at = at;
        self
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

/// Some ranks that follow each other, and the body that said so.
#[derive(Debug)]
pub(crate) struct Part {
    first: u32,
    /// Ranks in the whole list.
    total: u32,
    /// Of each rank, where in the tree it hangs.
    parents: Vec<Rank>,
    body: Body,
    /// Where in the body parents end; hosts and entries follow.
    entries_at: usize,
}

/// The list in parts. `parent` says where in the tree a rank hangs.
pub(super) fn split(members: &[Member], parent: impl Fn(Rank) -> Rank) -> Vec<Body> {
    let facts: usize = members.iter().map(|member| member.facts.len()).sum();
    let mut hosts = HashMap::<&[u8], u32>::new();
    let entries = members.len() * 2 * Member::SMALLEST_ENTRY_BYTES;
    let enough = PART_BYTES.max((facts + entries) / PARTS);
    let mut parts = Vec::new();
    let mut rest = members;
    while let Some(first) = rest.first() {
        let (mut entries, mut new_hosts) = (Writer::new(), Vec::new());
        let mut count = 0;
        let mut length = 0;
        for member in rest {
            if length >= enough {
                break;
            }
            let next = Rank::from_index(hosts.len()).0;
            let host = *hosts.entry(&member.host_facts).or_insert_with(|| {
                new_hosts.push(&member.host_facts);
                length += member.host_facts.len();
                next
            });
            let before = entries.length_so_far();
            entries.u32(host);
            member.write_entry(&mut entries);
            count += 1;
            length += entries.length_so_far() - before;
        }
        let mut part = Writer::new();
        part.u32(first.rank.0).length(members.len()).length(count);
        for member in &rest[..count] {
            part.u32(parent(member.rank).0);
        }
        part.length(new_hosts.len());
        for host in new_hosts {
            part.bytes(host);
        }
        part.raw(&entries.into_bytes());
        parts.push(part.into_bytes().into());
        rest = &rest[count..];
    }
    parts
}

impl Part {
    /// From a frame. Ranks of one process that hear the same get the same.
    pub(super) fn read(
        frame: Frame,
        size: u32,
        interned: &Interned,
    ) -> Result<Arc<Self>, Malformed> {
        let what = "list of ranks";
        if let Some(known) = interned.part(frame.digest()) {
            return Ok(known);
        }
        let digest = *frame.digest();
        let body = frame.into_body();
        let mut reader = Reader::new(&body.bytes);
        let first = reader.u32(what)?;
        let total = reader.u32(what)?;
        let count = reader.count(Member::SMALLEST_ENTRY_BYTES + 8, what)?;
        let fits = u32::try_from(count)
            .ok()
            .and_then(|count| first.checked_add(count))
            .is_some_and(|end| end <= total && count > 0);
        if !fits || total != size {
            return Err(Malformed(what));
        }
        let parents = (0..count)
            .map(|_| {
                let parent = reader.u32(what)?;
                (parent < total)
                    .then_some(Rank(parent))
                    .ok_or(Malformed(what))
            })
            .collect::<Result<_, _>>()?;
        let entries_at = body.bytes.len() - reader.rest().len();
        let part = Arc::new(Self {
            first,
            total,
            parents,
            body,
            entries_at,
        });
        interned.keep_part(digest, &part);
        Ok(part)
    }

    /// Its ranks; what all ranks have in common is taken from `own`. `hosts` is what was said of hosts
    /// so far.
    fn read_entries(
        &self,
        own: &Member,
        hosts: &mut Vec<Arc<[u8]>>,
        members: &mut Vec<Member>,
    ) -> Result<(), Malformed> {
        let what = "list of ranks";
        let mut reader = Reader::new(&self.body.bytes[self.entries_at..]);
        for _ in 0..reader.count(4, what)? {
            hosts.push(reader.bytes(what)?.into());
        }
        for rank in (self.first..).take(self.parents.len()) {
            let host = hosts
                .get(reader.u32(what)? as usize)
                .ok_or(Malformed(what))?;
            members.push(Member {
                host_facts: Arc::clone(host),
                ..Member::read_entry(&mut reader, Rank(rank), own)?
            });
        }
        reader.end(what)
    }

    pub(super) fn body(&self) -> Body {
        self.body.clone()
    }
}

/// The parts that have come so far, from the first on.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    parts: Vec<Arc<Part>>,
    next: u32,
}

impl Gathered {
    /// Takes the next part; whether it was that. A part that is there already is passed over.
    pub(super) fn take(&mut self, part: Arc<Part>) -> Result<bool, Malformed> {
        if part.first < self.next {
            return Ok(false);
        }
        if part.first > self.next {
            return Err(Malformed("order of the parts of the list of ranks"));
        }
        self.next += Rank::from_index(part.parents.len()).0;
        self.parts.push(part);
        Ok(true)
    }

    pub(super) fn parts(&self) -> &[Arc<Part>] {
        &self.parts
    }

    /// How many ranks hang below `rank`, directly or further down.
    pub(super) fn below(&self, rank: Rank) -> usize {
        let mut children = HashMap::<Rank, Vec<Rank>>::new();
        let hangs = self.parts.iter().flat_map(|part| {
            let ranks = (part.first..).map(Rank);
            ranks.zip(part.parents.iter().copied())
        });
        for (child, parent) in hangs.filter(|(child, parent)| child != parent) {
            children.entry(parent).or_default().push(child);
        }
        // Taken out as they are met, so that a list with a circle ends as well.
        let mut count = 0;
        let mut open = vec![rank];
        while let Some(next) = open.pop() {
            let found = children.remove(&next).unwrap_or_default();
            count += found.len();
            open.extend(found);
        }
        count
    }

    /// The whole list, once all parts are there; what all ranks have in common is taken from `own`.
    pub(super) fn whole(
        &self,
        own: &Member,
        interned: &Interned,
    ) -> Result<Option<Arc<[Member]>>, Malformed> {
        let Some(first) = self.parts.first().filter(|first| self.next == first.total) else {
            return Ok(None);
        };
        let mut digest = Sha256::new();
        for part in &self.parts {
            digest.update(part.body.digest());
        }
        let digest: [u8; 32] = digest.finalize().into();
        if let Some(known) = interned.whole(digest) {
            return Ok(Some(known));
        }
        let mut members = Vec::with_capacity(first.total as usize);
        let mut hosts = Vec::new();
        for part in &self.parts {
            part.read_entries(own, &mut hosts, &mut members)?;
        }
        let whole: Arc<[Member]> = members.into();
        interned.keep_whole(digest, &whole);
        Ok(Some(whole))
    }
}

#[cfg(test)]
mod tests {
    use hcomm_types::{HostId, ProcessId};
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{self, FrameType};
    use crate::outside::Outside;

    fn member(rank: u32, size: u32) -> Member {
        Member {
            local_rank: rank.checked_sub(1),
            mesh: vec!["0.0.0.0:5".parse().unwrap(), "[::1]:6".parse().unwrap()],
            settings: [("A".to_owned(), "1".to_owned())].into(),
            facts: vec![1; 1000 + rank as usize],
            host_facts: vec![u8::try_from(rank / 30).unwrap(); 3000].into(),
            ..Member::new(
                Rank(rank),
                size,
                ProcessId { pid: 7, token: 8 },
                "node",
                HostId("boot".to_owned()),
            )
        }
    }

    fn chain(rank: Rank) -> Rank {
        Rank(rank.0.saturating_sub(1))
    }

    fn read(body: Body, size: u32) -> Result<Arc<Part>, Malformed> {
        let frame = frame::sealed(FrameType::Roster, body);
        Part::read(frame, size, &Interned::default())
    }

    #[test]
    fn a_list_comes_together_from_its_parts_in_order() {
        let members: Vec<_> = (0..100).map(|rank| member(rank, 100)).collect();
        let bodies = split(&members, chain);
        assert!(bodies.len() > 2, "{} parts", bodies.len());
        let mut gathered = Gathered::default();
        let interned = Interned::default();
        let parts: Vec<_> = bodies
            .into_iter()
            .map(|body| read(body, 100).unwrap())
            .collect();
        assert!(gathered.take(Arc::clone(&parts[1])).is_err());
        for part in &parts {
            assert_eq!(gathered.whole(&members[3], &interned), Ok(None));
            assert_eq!(gathered.take(Arc::clone(part)), Ok(true));
            assert_eq!(gathered.take(Arc::clone(part)), Ok(false));
        }
        let whole = || gathered.whole(&members[3], &interned).unwrap().unwrap();
        let one = whole();
        assert_eq!(one[..], members[..]);
        let host = |rank: usize| &one[rank].host_facts;
        assert!(Arc::ptr_eq(host(31), host(59)) && host(29) != host(31));
        assert_eq!(gathered.below(Rank(60)), 39);
        assert!(Arc::ptr_eq(&one, &whole()));
    }

    #[test]
    fn the_root_is_where_a_rank_sees_it() {
        let roster = Roster::new(
            SessionId([3; 16]),
            vec![member(0, 2), member(1, 2)],
            JobKey::public(),
        );
        let seen = roster.clone().seeing_root_at("10.0.0.9".parse().ok());
        assert_eq!(seen.mesh_of(Rank(0))[0], "10.0.0.9:5".parse().unwrap());
        assert_eq!(seen.mesh_of(Rank(1)), roster.mesh_of(Rank(1)));
        assert!(seen.mesh_of(Rank(2)).is_empty());
    }

    #[test]
    fn ranks_of_one_process_hold_one_list() {
        let outside = Outside::system();
        let members: Vec<_> = (0..3).map(|rank| member(rank, 3)).collect();
        let [body] = &split(&members, chain)[..] else {
            panic!("one part");
        };
        let frame = || frame::sealed(FrameType::Roster, body.clone());
        let [a, b] = [1, 2].map(|_| {
            let interned = &outside.clone().interned;
            Part::read(frame(), 3, interned).unwrap()
        });
        assert!(Arc::ptr_eq(&a, &b));
    }

    proptest! {
        #[test]
        fn changed_and_cut_parts_never_panic(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
            let members: Vec<_> = (0..3).map(|rank| member(rank, 3)).collect();
            let mut body = split(&members, chain)[0].bytes.to_vec();
            let at = at.index(body.len());
            body[at] = byte;
            let whole = |body: &[u8]| {
                let mut gathered = Gathered::default();
                gathered.take(read(body.to_vec().into(), 3)?)?;
                gathered.whole(&members[1], &Interned::default())
            };
            let _ = whole(&body);
            let cut = cut.index(body.len());
            prop_assert!(whole(&body[..cut]).is_err());
        }
    }
}
