//! Communicators of some of the ranks of another one.

use hcomm_ctrl::{RootInfo, RootListener};
use hcomm_topo::Layer;
use hcomm_types::{Error, ErrorKind, Rank, Result};

use crate::Communicator;

/// What a rank says in a split, as it is gathered: its color (or [`NONE`]), its key, and what all
/// have to say alike.
const WORDS: usize = 3;

/// The color of who takes no part.
const NONE: u64 = u64::MAX;

/// What a rank says instead of a digest if it refuses the list that it was given.
const REFUSED: u64 = u64::MAX;

/// The length of a root info that could not be made; its error follows.
const FAILED: u64 = 1 << 32;

impl Communicator {
    /// Divides the ranks into communicators of their own: all that give the same `color` form one, in
    /// the order of their `key`s, and of their ranks where those are equal. A rank without a color
    /// is in none. All ranks of this communicator call it, at the same place in their calls.
    ///
    /// The new communicators know nothing of this one, nor of each other: each may fail, end or be
    /// used on another OS thread by itself. Settings and transports are those of this one.
    ///
    /// # Errors
    /// Those of [`from_env`](Self::from_env), for all members of a group alike; why the ranks of
    /// this communicator do not come together, see [`hcomm_coll::Communicator`]. Ranks that share an
    /// OS thread cannot call it, as all wait for each other (`WouldDeadlock`).
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        let color = color.map_or(NONE, u64::from);
        self.divide([color, u64::from(key), 0])
            .map_err(|error| error.in_call("split").at_rank(self.rank()))
    }

    /// A communicator of these ranks, numbered in this order. All ranks of this communicator call it
    /// with the same list, those that are not in it, too, and get none.
    ///
    /// # Errors
    /// Those of [`split`](Self::split); `InvalidArgument` for an empty list, a rank that is not
    /// there or is named twice; `Mismatch` on all other ranks if not all name the same list. The
    /// communicator is as it was then.
    pub fn subset(&self, ranks: &[Rank]) -> Result<Option<Self>> {
        let place = ranks.iter().position(|rank| *rank == self.rank());
        let color = place.map_or(NONE, |_| 0);
        let told = [color, place.unwrap_or(0) as u64, digest(ranks)];
        let result = match self.refusal(ranks) {
            None => self.divide(told),
            // Said before anybody waits for a list like it.
            Some(refusal) => self.divide([NONE, 0, REFUSED]).and(Err(refusal)),
        };
        result.map_err(|error| error.in_call("subset").at_rank(self.rank()))
    }

    /// Why a list is none.
    fn refusal(&self, ranks: &[Rank]) -> Option<Error> {
        let refuse = |what: String| Some(Error::new(ErrorKind::InvalidArgument, what));
        if ranks.is_empty() {
            return refuse("a communicator has at least 1 rank".to_owned());
        }
        for (at, rank) in ranks.iter().enumerate() {
            if rank.0 >= self.size() {
                return refuse(format!("there is no rank {rank} among {}", self.size()));
            }
            if ranks[..at].contains(rank) {
                return refuse(format!("rank {rank} is named twice"));
            }
        }
        None
    }

    fn divide(&self, mine: [u64; WORDS]) -> Result<Option<Self>> {
        let mut all = vec![0; WORDS * self.size() as usize];
        self.all_gather(&mine, &mut all)?;
        let (all, _) = all.as_chunks::<WORDS>();
        let differs = |rank: &usize| all[*rank][2] != mine[2];
        if mine[2] == REFUSED {
            // The others are told by this, or all refuse.
            return Ok(None);
        }
        if let Some(other) = (0..all.len()).find(differs) {
            let other = Rank::from_index(other);
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("rank {other} names other ranks than rank {}", self.rank()),
            )
            .blame_rank(other)
            .hint("all ranks give the same list, also those that are not in it"));
        }
        let members = members(all, mine[0]);
        let is_first = members.first() == Some(&self.rank());
        // All ranks hear of all roots, so that the exchange is the same for all.
        let listener = (is_first && mine[0] != NONE).then(|| self.listen(&members));
        let text = match &listener {
            None => String::new(),
            Some(Ok(listener)) => listener.info().to_string(),
            Some(Err(error)) => error.to_string(),
        };
        let failed = matches!(listener, Some(Err(_)));
        let length = text.len() as u64 + if failed { FAILED } else { 0 };
        let mut lengths = vec![0; all.len()];
        self.all_gather(&[length], &mut lengths)?;
        let counts: Vec<usize> = lengths.iter().map(|n| (n % FAILED) as usize).collect();
        let mut texts = vec![0; counts.iter().sum()];
        self.all_gather_v(text.as_bytes(), &mut texts, &counts)?;
        if mine[0] == NONE {
            return Ok(None);
        }
        if let Some(listener) = listener {
            let joined = listener.and_then(|listener| self.serve(listener, &members))?;
            joined.use_costs(&self.costs().0);
            return Ok(Some(joined));
        }
        let root = members[0].index();
        let start: usize = counts[..root].iter().sum();
        let text = String::from_utf8_lossy(&texts[start..start + counts[root]]);
        if lengths[root] >= FAILED {
            return Err(Error::new(
                ErrorKind::Refused,
                format!("rank {root} could not be the root of the new communicator: {text}"),
            )
            .blame_rank(Rank::from_index(root)));
        }
        let info: RootInfo = text.parse()?;
        let place = members.iter().position(|member| *member == self.rank());
        let rank = place.map_or(Rank(0), Rank::from_index);
        let joined = self.join(&info, rank, &members)?;
        joined.use_costs(&self.costs().0);
        Ok(Some(joined))
    }

    /// Listens where the other members reach this rank.
    fn listen(&self, members: &[Rank]) -> Result<RootListener> {
        let host = |rank: Rank| {
            let host = self.graph().instance_of(Layer::HOST, rank);
            host.map(|host| host.id)
        };
        let mine = host(self.rank());
        let stays_here = members.iter().all(|member| host(*member) == mine);
        RootListener::bind_picked(self.settings(), stays_here)
    }
}

/// The ranks of a color, by key and rank.
fn members(all: &[[u64; WORDS]], color: u64) -> Vec<Rank> {
    let mut members: Vec<usize> = (0..all.len())
        .filter(|rank| all[*rank][0] == color)
        .collect();
    members.sort_by_key(|rank| all[*rank][1]);
    members.into_iter().map(Rank::from_index).collect()
}

/// A number that two lists hardly have in common: FNV-1a over their bytes (Fowler, Noll, Vo).
fn digest(ranks: &[Rank]) -> u64 {
    let bytes = ranks.iter().flat_map(|rank| rank.0.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_by_key_and_then_by_rank() {
        let all = [[1, 5, 0], [2, 0, 0], [1, 5, 0], [NONE, 0, 0], [1, 2, 0]];
        assert_eq!(members(&all, 1), [4, 0, 2].map(Rank));
        assert_eq!(members(&all, 2), [Rank(1)]);
    }

    #[test]
    fn lists_in_another_order_are_other_lists() {
        assert_ne!(digest(&[Rank(0), Rank(1)]), digest(&[Rank(1), Rank(0)]));
        assert_ne!(digest(&[Rank(0)]), digest(&[Rank(0), Rank(0)]));
    }
}
