//! What a plan must compute.

use std::fmt;
use std::ops::Range;

use hcomm_types::{DataType, Rank, ReduceOp};
use serde::{Deserialize, Serialize};

use super::Buffer;

/// A collective operation, or one between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Every rank gets the element-wise combination of all ranks' inputs.
    AllReduce,
    /// Every rank gets all ranks' inputs, one after the other in rank order.
    AllGather,
    /// Rank *i* gets the *i*-th part of the element-wise combination of all ranks' inputs.
    ReduceScatter,
    /// Every rank gets the root's input.
    Broadcast {
        /// Whose input it is.
        root: Rank,
    },
    /// No rank ends before every rank has begun. No data.
    Barrier,
    /// One rank gets another's input.
    SendRecv {
        /// Who sends.
        from: Rank,
        /// Who receives.
        to: Rank,
    },
}

impl Operation {
    /// Name in tables, files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
            Self::SendRecv { .. } => "send_recv",
        }
    }

    /// Whether elements of several ranks are combined.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Self::SendRecv { from, to } => write!(f, "send from rank {from} to rank {to}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// What a plan must compute: the operation, on how many ranks, on how much of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The operation.
    pub operation: Operation,
    /// Number of ranks.
    pub ranks: u32,
    /// Elements: of the whole buffer for all_reduce, broadcast and send_recv; that each rank
    /// contributes for all_gather; that each rank receives for reduce_scatter; 0 for barrier.
    pub count: u64,
    /// Type of the elements.
    pub dtype: DataType,
    /// How elements are combined, for operations that do.
    pub redop: ReduceOp,
    /// Whether input and output share memory: the same buffer for all_reduce and broadcast; the
    /// rank's own part of the output for all_gather, of the input for reduce_scatter. Without
    /// meaning for the others.
    pub in_place: bool,
}

impl Shape {
    /// Checks that ranks named exist and that all sizes fit in 64 bits. The other methods rely on
    /// it.
    ///
    /// # Errors
    /// What does not fit.
    pub fn validate(&self) -> Result<(), ShapeError> {
        if self.ranks == 0 {
            return Err(ShapeError::NoRanks);
        }
        let named: &[Rank] = match &self.operation {
            Operation::Broadcast { root } => &[*root],
            Operation::SendRecv { from, to } => &[*from, *to],
            _ => &[],
        };
        if let Some(&rank) = named.iter().find(|rank| rank.0 >= self.ranks) {
            return Err(ShapeError::NoSuchRank {
                rank,
                ranks: self.ranks,
            });
        }
        let all = self
            .count
            .checked_mul(self.element_bytes())
            .and_then(|bytes| bytes.checked_mul(u64::from(self.ranks)));
        match all {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(()),
            _ => Err(ShapeError::TooLarge {
                count: self.count,
                dtype: self.dtype,
                ranks: self.ranks,
            }),
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn element_bytes(&self) -> u64 {
        self.dtype.size() as u64
    }

    /// Bytes of `count` elements.
    #[must_use]
    pub const fn count_bytes(&self) -> u64 {
        self.count.saturating_mul(self.element_bytes())
    }

    /// Bytes that a rank's input has. Zero where the rank contributes none.
    #[must_use]
    pub fn input_bytes(&self, rank: Rank) -> u64 {
        let bytes = self.count_bytes();
        match self.operation {
            Operation::AllReduce | Operation::AllGather => bytes,
            Operation::ReduceScatter => bytes.saturating_mul(u64::from(self.ranks)),
            Operation::Broadcast { root: source } | Operation::SendRecv { from: source, .. } => {
                if rank == source {
                    bytes
                } else {
                    0
                }
            }
            Operation::Barrier => 0,
        }
    }

    /// Bytes that a rank's output has. Zero where the rank receives none.
    #[must_use]
    pub fn output_bytes(&self, rank: Rank) -> u64 {
        let bytes = self.count_bytes();
        match self.operation {
            Operation::AllReduce | Operation::ReduceScatter | Operation::Broadcast { .. } => bytes,
            Operation::AllGather => bytes.saturating_mul(u64::from(self.ranks)),
            Operation::SendRecv { to, .. } => {
                if rank == to {
                    bytes
                } else {
                    0
                }
            }
            Operation::Barrier => 0,
        }
    }

    /// Where a buffer really lies: itself at offset 0, or inside another one when the operation
    /// is in place.
    #[must_use]
    pub fn home(&self, rank: Rank, buffer: Buffer) -> (Buffer, u64) {
        let own_part = self.count_bytes().saturating_mul(u64::from(rank.0));
        match (self.in_place, self.operation, buffer) {
            (true, Operation::AllReduce | Operation::Broadcast { .. }, Buffer::Input) => {
                (Buffer::Output, 0)
            }
            (true, Operation::AllGather, Buffer::Input) => (Buffer::Output, own_part),
            (true, Operation::ReduceScatter, Buffer::Output) => (Buffer::Input, own_part),
            _ => (buffer, 0),
        }
    }

    /// The part of a rank's input or output, in bytes, that belongs to another rank: the
    /// `part`-th of `ranks` parts of `count` elements.
    #[must_use]
    pub fn part(&self, part: Rank) -> Range<u64> {
        let bytes = self.count_bytes();
        let start = bytes.saturating_mul(u64::from(part.0));
        start..start.saturating_add(bytes)
    }

    /// All ranks.
    pub fn all_ranks(&self) -> impl DoubleEndedIterator<Item = Rank> + use<> {
        (0..self.ranks).map(Rank)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {}", self.operation, self.count, self.dtype)?;
        if self.operation.reduces() {
            write!(f, " ({})", self.redop)?;
        }
        let place = if self.in_place {
            "in place"
        } else {
            "out of place"
        };
        write!(f, " on {} ranks, {place}", self.ranks)
    }
}

/// A shape that nobody can plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A communicator has at least one rank.
    #[error("an operation needs at least one rank")]
    NoRanks,
    /// The operation names a rank that is not there.
    #[error("the operation names rank {rank}, but ranks go from 0 to {}", .ranks - 1)]
    NoSuchRank {
        /// The rank named.
        rank: Rank,
        /// Number of ranks.
        ranks: u32,
    },
    /// All ranks' elements together exceed 63 bits of bytes.
    #[error("{count} elements of {dtype} for each of {ranks} ranks exceed 2^63 bytes")]
    TooLarge {
        /// Elements.
        count: u64,
        /// Their type.
        dtype: DataType,
        /// Number of ranks.
        ranks: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(operation: Operation) -> Shape {
        Shape {
            operation,
            ranks: 3,
            count: 5,
            dtype: DataType::F32,
            redop: ReduceOp::Sum,
            in_place: true,
        }
    }

    #[test]
    fn sizes_and_aliases_follow_the_operation() {
        let gather = shape(Operation::AllGather);
        assert_eq!(
            (gather.input_bytes(Rank(1)), gather.output_bytes(Rank(1))),
            (20, 60)
        );
        assert_eq!(gather.home(Rank(1), Buffer::Input), (Buffer::Output, 20));
        let scatter = shape(Operation::ReduceScatter);
        assert_eq!(
            (scatter.input_bytes(Rank(1)), scatter.output_bytes(Rank(1))),
            (60, 20)
        );
        assert_eq!(scatter.home(Rank(2), Buffer::Output), (Buffer::Input, 40));
        let broadcast = shape(Operation::Broadcast { root: Rank(1) });
        assert_eq!(
            (
                broadcast.input_bytes(Rank(0)),
                broadcast.input_bytes(Rank(1))
            ),
            (0, 20)
        );
    }

    #[test]
    fn impossible_shapes_are_refused_with_their_values() {
        let mut wrong = shape(Operation::Broadcast { root: Rank(3) });
        assert!(wrong.validate().unwrap_err().to_string().contains("rank 3"));
        wrong.operation = Operation::AllGather;
        assert_eq!(wrong.validate(), Ok(()));
        wrong.count = u64::MAX / 8;
        assert!(matches!(wrong.validate(), Err(ShapeError::TooLarge { .. })));
        wrong.ranks = 0;
        assert_eq!(wrong.validate(), Err(ShapeError::NoRanks));
    }
}
