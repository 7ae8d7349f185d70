//! How many elements the ranks of an operation bring and get.

use std::fmt;
use std::sync::Arc;

use hcomm_types::Rank;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

/// Numbers of elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// The same for all: what exactly it counts depends on the operation, see
    /// [`Shape::count`](super::Shape::count).
    Even(u64),
    /// One for each rank, in rank order: the part that it contributes, or receives.
    Ranks(Arc<[u64]>),
    /// One for each ordered pair of ranks, row by row: what the first sends to the second.
    Pairs(Arc<[u64]>),
    /// The row and the column of one rank out of such a matrix: all that this rank knows, and all
    /// that it needs to plan its own part. Numbers of other pairs read as zero.
    Own {
        /// Who knows them.
        rank: Rank,
        /// What it sends to each rank.
        sends: Arc<[u64]>,
        /// What it receives from each rank.
        receives: Arc<[u64]>,
    },
}

impl Count {
    /// Numbers that differ from rank to rank.
    #[must_use]
    pub fn ranks(counts: &[u64]) -> Self {
        Self::Ranks(counts.into())
    }

    /// Numbers that differ from pair to pair, row by row.
    #[must_use]
    pub fn pairs(counts: &[u64]) -> Self {
        Self::Pairs(counts.into())
    }

    /// The number of a rank's part; 0 if there is none.
    #[must_use]
    pub fn of_rank(&self, rank: Rank) -> u64 {
        match self {
            Self::Even(count) => *count,
            Self::Ranks(counts) => counts.get(rank.index()).copied().unwrap_or(0),
            Self::Pairs(_) | Self::Own { .. } => 0,
        }
    }

    /// What one of `ranks` ranks sends to another; 0 if that is not known.
    #[must_use]
    pub fn of_pair(&self, ranks: u32, from: Rank, to: Rank) -> u64 {
        match self {
            Self::Even(count) => *count,
            Self::Ranks(_) => 0,
            Self::Pairs(counts) => counts
                .get(from.index() * ranks as usize + to.index())
                .copied()
                .unwrap_or(0),
            Self::Own {
                rank,
                sends,
                receives,
            } => {
                let number = if *rank == from {
                    sends.get(to.index())
                } else if *rank == to {
                    receives.get(from.index())
                } else {
                    None
                };
                number.copied().unwrap_or(0)
            }
        }
    }

    /// What one of `ranks` ranks sends to all those before another, as far as it is known.
    pub(super) fn sent_before(&self, ranks: u32, from: Rank, to: Rank) -> u64 {
        match self {
            Self::Even(count) => count * u64::from(to.0),
            Self::Pairs(counts) => {
                let row = from.index() * ranks as usize;
                counts.get(row..row + to.index()).map_or(0, add)
            }
            Self::Own { rank, sends, .. } if *rank == from => {
                sends.get(..to.index()).map_or(0, add)
            }
            Self::Ranks(_) | Self::Own { .. } => {
                let before = (0..to.0).map(Rank);
                before.map(|to| self.of_pair(ranks, from, to)).sum()
            }
        }
    }

    /// What one of `ranks` ranks gets from all those before another, as far as it is known.
    pub(super) fn received_before(&self, ranks: u32, from: Rank, to: Rank) -> u64 {
        match self {
            Self::Even(count) => count * u64::from(from.0),
            Self::Own { rank, receives, .. } if *rank == to => {
                receives.get(..from.index()).map_or(0, add)
            }
            _ => {
                let before = (0..from.0).map(Rank);
                before.map(|from| self.of_pair(ranks, from, to)).sum()
            }
        }
    }

    /// The largest of all numbers that are known.
    #[must_use]
    pub fn largest(&self) -> u64 {
        let largest = |counts: &[u64]| counts.iter().copied().max().unwrap_or(0);
        match self {
            Self::Even(count) => *count,
            Self::Ranks(counts) | Self::Pairs(counts) => largest(counts),
            Self::Own {
                sends, receives, ..
            } => largest(sends).max(largest(receives)),
        }
    }

    /// All numbers together, as far as they are known.
    #[must_use]
    pub fn total(&self) -> u64 {
        let sum = |counts: &[u64]| counts.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        match self {
            Self::Even(count) => *count,
            Self::Ranks(counts) | Self::Pairs(counts) => sum(counts),
            Self::Own {
                sends, receives, ..
            } => sum(sends).saturating_add(sum(receives)),
        }
    }

    /// Whether all numbers are known, so that the plan of every rank can be made.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        !matches!(self, Self::Own { .. })
    }

    /// Whether all ranks have the same number.
    #[must_use]
    pub const fn is_even(&self) -> bool {
        matches!(self, Self::Even(_))
    }
}

fn add(counts: &[u64]) -> u64 {
    counts.iter().sum()
}

impl From<u64> for Count {
    fn from(count: u64) -> Self {
        Self::Even(count)
    }
}

impl fmt::Display for Count {
    /// The number itself, or how many there are and what they add up to.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |counts: &[u64]| counts.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        match self {
            Self::Even(count) => write!(f, "{count}"),
            Self::Ranks(counts) => write!(f, "{} in {} parts", sum(counts), counts.len()),
            Self::Pairs(counts) => write!(f, "{} between {} pairs", sum(counts), counts.len()),
            Self::Own {
                rank,
                sends,
                receives,
            } => write!(
                f,
                "{} sent and {} received by rank {rank}",
                sum(sends),
                sum(receives)
            ),
        }
    }
}

/// A number; a list of numbers; or a list of lists.
impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Even(count) => serializer.serialize_u64(*count),
            Self::Ranks(counts) => serializer.collect_seq(counts.iter()),
            Self::Pairs(counts) => {
                let ranks = counts.len().isqrt();
                serializer.collect_seq(counts.chunks(ranks.max(1)))
            }
            Self::Own { rank, .. } => Err(ser::Error::custom(format!(
                "only what rank {rank} knows of the counts; a file holds all of them"
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a number, a list of numbers, or a list of lists of them"
        )]
        enum Form {
            Even(u64),
            Ranks(Vec<u64>),
            Pairs(Vec<Vec<u64>>),
        }
        Ok(match Form::deserialize(deserializer)? {
            Form::Even(count) => Self::Even(count),
            Form::Ranks(counts) => Self::Ranks(counts.into()),
            Form::Pairs(rows) => {
                if let Some(row) = rows.iter().position(|row| row.len() != rows.len()) {
                    return Err(de::Error::custom(format!(
                        "row {row} of {} has {} numbers",
                        rows.len(),
                        rows[row].len()
                    )));
                }
                Self::Pairs(rows.concat().into())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_as_it_was_written() {
        let matrix: Vec<u64> = (0..9).collect();
        for (count, text) in [
            (Count::Even(7), "7"),
            (Count::ranks(&[1, 0, 4]), "[1,0,4]"),
            (Count::pairs(&matrix), "[[0,1,2],[3,4,5],[6,7,8]]"),
        ] {
            assert_eq!(serde_json::to_string(&count).unwrap(), text);
            assert_eq!(serde_json::from_str::<Count>(text).unwrap(), count);
        }
        let own = Count::Own {
            rank: Rank(1),
            sends: [1, 2].into(),
            receives: [3, 2].into(),
        };
        assert!(serde_json::to_string(&own).is_err());
        for wrong in ["-1", "[[1,2],[3]]", "[[1,2,3]]", "\"7\"", "[1,[2]]"] {
            assert!(serde_json::from_str::<Count>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rank_knows_its_own_row_and_column() {
        let all = Count::pairs(&[0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let own = Count::Own {
            rank: Rank(1),
            sends: [3, 4, 5].into(),
            receives: [1, 4, 7].into(),
        };
        for (from, to) in [(1, 0), (1, 1), (1, 2), (0, 1), (2, 1)] {
            assert_eq!(
                own.of_pair(3, Rank(from), Rank(to)),
                all.of_pair(3, Rank(from), Rank(to))
            );
        }
        assert_eq!(own.of_pair(3, Rank(0), Rank(2)), 0);
        assert_eq!((own.largest(), all.largest()), (7, 8));
    }
}
