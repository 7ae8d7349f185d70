//! What a root compares, and the words in which it says what does not fit.

use std::net::SocketAddr;

use hcomm_types::{ErrorKind, Rank};

use super::member::Member;
use super::verdict::Verdict;
use crate::frame::PROTOCOL_VERSION;

/// A rank that wants to come in.
pub(super) struct Claim<'a> {
    pub(super) member: &'a Member,
    pub(super) peer: SocketAddr,
    /// Protocol version of its hello.
    pub(super) version: u16,
    /// Rank by the head of its hello.
    pub(super) claimed: Option<Rank>,
}

/// What speaks against a claim, if anything. `namesake` has its number already, with where it is.
pub(super) fn compare(
    own: &Member,
    claim: &Claim<'_>,
    namesake: Option<(&Member, String)>,
) -> Option<Verdict> {
    let Claim { member, peer, .. } = *claim;
    let (who, root) = (describe(member, peer), describe_root(own));
    let mismatch = |detail: String, hint: &str| {
        Some(Verdict::new(ErrorKind::Mismatch, vec![member.rank], detail).hint(hint))
    };
    let same_build = "start all ranks with the same build of hcomm";
    if claim.version != PROTOCOL_VERSION {
        let detail = format!(
            "{who} speaks bootstrap protocol {} (hcomm {}), {root} speaks {PROTOCOL_VERSION} (hcomm {})",
            claim.version, member.library_version, own.library_version
        );
        return mismatch(detail, same_build);
    }
    if member.library_version != own.library_version {
        let detail = format!(
            "{who} runs hcomm {}, {root} runs hcomm {}",
            member.library_version, own.library_version
        );
        return mismatch(detail, same_build);
    }
    if member.size != own.size {
        let detail = format!(
            "{who} was started for {} ranks, {root} for {}",
            member.size, own.size
        );
        return mismatch(
            detail,
            "start all ranks with the same number of ranks (WORLD_SIZE)",
        );
    }
    if member.rank.0 >= own.size || Some(member.rank) != claim.claimed {
        let detail = format!(
            "{who} is not one of the {} ranks from 0 to {}",
            own.size,
            own.size - 1
        );
        return mismatch(detail, "give each process its own rank (RANK)");
    }
    if let Some((other, at)) = namesake {
        let detail = format!(
            "two processes claim to be rank {}: {}, {at}; and {}, {peer}",
            member.rank,
            place_of(other),
            place_of(member)
        );
        return mismatch(detail, "give each process its own rank (RANK)");
    }
    let (name, ours, theirs) = disagreement(own, member)?;
    mismatch(
        format!("{name} is {theirs} at {who} and {ours} at {root}"),
        &format!("give {name} the same value on all ranks"),
    )
}

/// A rank with a loopback address only, where others on another host have to reach it.
pub(super) fn unreachable(all: &[(&Member, SocketAddr)]) -> Option<Verdict> {
    let only_loopback = |member: &Member| {
        !member.mesh.is_empty() && member.mesh.iter().all(|a| a.ip().is_loopback())
    };
    // With one host there is nothing to compare, which is the usual case of many ranks.
    let (first, _) = all.first()?;
    if all
        .iter()
        .all(|(member, _)| member.host_id == first.host_id)
    {
        return None;
    }
    let (bad, peer) = all.iter().find(|(member, _)| only_loopback(member))?;
    let elsewhere = all.iter().find(|(other, _)| other.host_id != bad.host_id)?;
    Some(
        Verdict::new(
            ErrorKind::Mismatch,
            vec![bad.rank],
            format!(
                "{} offers only {}, which {} on another host cannot reach",
                describe(bad, *peer),
                bad.mesh[0].ip(),
                describe(elsewhere.0, elsewhere.1),
            ),
        )
        .hint("choose a network interface with HCOMM_SOCKET_IFNAME"),
    )
}

/// `rank 3 (host b, pid 7, 10.0.0.3:4444)`
pub(super) fn describe(member: &Member, peer: SocketAddr) -> String {
    format!("rank {} ({}, {peer})", member.rank, place_of(member))
}

/// `rank 0 (host a, pid 6)`
pub(super) fn describe_root(own: &Member) -> String {
    format!("rank {} ({})", own.rank, place_of(own))
}

fn place_of(member: &Member) -> String {
    format!("host {}, pid {}", member.host_name, member.process.pid)
}

/// The first setting that differs: name, our value, theirs.
fn disagreement(own: &Member, other: &Member) -> Option<(String, String, String)> {
    let value = |member: &Member, name: &str| {
        member
            .settings
            .iter()
            .find(|(known, _)| known == name)
            .map_or_else(|| "not set".to_owned(), |(_, value)| value.clone())
    };
    own.settings
        .iter()
        .chain(&other.settings)
        .map(|(name, _)| (name.clone(), value(own, name), value(other, name)))
        .find(|(_, ours, theirs)| ours != theirs)
}
