//! What a root compares, and the words in which it says what does not fit.

use std::collections::BTreeMap;
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
    None
}

/// The name under which the version of the library is compared.
const VERSION: &str = "the version of hcomm";
/// Ranks and values that one line names before it says how many more there are.
const SHOWN: usize = 8;

/// Whether a rank has other settings than rank 0.
pub(super) fn differs(own: &Member, other: &Member) -> bool {
    own.library_version != other.library_version || own.settings != other.settings
}

/// All that differs between the ranks, by name.
pub(super) fn differences<'a>(
    own: &'a Member,
    others: impl Iterator<Item = (&'a Member, SocketAddr)>,
) -> Verdict {
    let others: Vec<_> = others.collect();
    let all = |member: &'a Member| {
        let version = (VERSION, &*member.library_version);
        let settings = member.settings.iter();
        std::iter::once(version).chain(settings.map(|(name, value)| (&**name, &**value)))
    };
    let (lines, mut culprits) = compare_lists(own, &others, all);
    culprits.sort_unstable();
    culprits.dedup();
    let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
    let hint = match &names[..] {
        [VERSION, ..] => "start all ranks with the same build of hcomm".to_owned(),
        _ => format!("give {} the same value on all ranks", names.join(" and ")),
    };
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    Verdict::new(ErrorKind::Mismatch, culprits, lines.join("; ")).hint(hint)
}

/// Warns of what differs though it may.
pub(super) fn warn_of_varying<'a>(
    own: &'a Member,
    others: impl Iterator<Item = (&'a Member, SocketAddr)>,
) {
    let others: Vec<_> = others
        .filter(|(member, _)| member.varying != own.varying)
        .collect();
    if others.is_empty() {
        return;
    }
    let all = |member: &'a Member| {
        let varying = member.varying.iter();
        varying.map(|(name, value)| (&**name, &**value))
    };
    for (_, line) in compare_lists(own, &others, all).0 {
        tracing::warn!("{line}");
    }
}

/// Who has which value. Rank 0 does not know where its connection would come from.
type ByValue<'a> = BTreeMap<&'a str, Vec<(&'a Member, Option<SocketAddr>)>>;

/// A line for each name under which not all have the same value, and the ranks that differ. What
/// most ranks have counts as right; if as many have another value, what rank 0 has.
fn compare_lists<'a, L: Iterator<Item = (&'a str, &'a str)>>(
    own: &'a Member,
    others: &[(&'a Member, SocketAddr)],
    all: impl Fn(&'a Member) -> L,
) -> (Vec<(&'a str, String)>, Vec<Rank>) {
    const NOT_SET: &str = "not set";
    let mut values = BTreeMap::<&str, ByValue<'_>>::new();
    let mut order = Vec::new();
    let ranks = others.iter().map(|(member, peer)| (*member, Some(*peer)));
    let ranks: Vec<_> = std::iter::once((own, None)).chain(ranks).collect();
    for &(member, peer) in &ranks {
        for (name, value) in all(member) {
            let known = values.entry(name).or_insert_with(|| {
                order.push(name);
                ByValue::new()
            });
            known.entry(value).or_default().push((member, peer));
        }
    }
    let (mut lines, mut culprits) = (Vec::new(), Vec::new());
    for name in order {
        let mut groups = values.remove(name).unwrap_or_default();
        let having: usize = groups.values().map(Vec::len).sum();
        if having < ranks.len() {
            let without = ranks
                .iter()
                .filter(|(member, _)| all(member).all(|(known, _)| known != name));
            groups.entry(NOT_SET).or_default().extend(without);
        }
        let has_root = |group: &[(&Member, _)]| group.iter().any(|(m, _)| m.rank == own.rank);
        let right = groups
            .iter()
            .max_by_key(|(_, group)| (group.len(), has_root(group)))
            .map(|(value, _)| *value);
        let Some(right) = right.filter(|_| groups.len() > 1) else {
            continue;
        };
        let mut odd: Vec<_> = groups
            .iter()
            .filter(|(value, _)| **value != right)
            .flat_map(|(value, group)| group.iter().map(|(m, peer)| (*m, *peer, *value)))
            .collect();
        odd.sort_by_key(|(member, ..)| member.rank);
        culprits.extend(odd.iter().map(|(member, ..)| member.rank));
        let shown = odd.iter().take(SHOWN).map(|(member, peer, value)| {
            let who = peer.map_or_else(|| describe_root(member), |peer| describe(member, peer));
            format!("{value} at {who}")
        });
        let mut line = format!("{name} is {}", shown.collect::<Vec<_>>().join(", "));
        if odd.len() > SHOWN {
            line += &format!(", different at {} more ranks", odd.len() - SHOWN);
        }
        let like = &groups[right];
        line += &match (like.len(), has_root(like)) {
            (1, true) => format!(" and {right} at {}", describe_root(own)),
            (count, true) => format!(" and {right} at all others ({count}, rank 0 among them)"),
            (count, false) => format!(" and {right} at all others ({count})"),
        };
        lines.push((name, line));
    }
    (lines, culprits)
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
