//! What a plan must compute.

use std::fmt;
use std::ops::Range;

use hcomm_types::{DataType, Rank, Reduction};
use serde::{Deserialize, Serialize};

use super::{Buffer, Count};

/// A collective operation, or one between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Every rank gets the element-wise combination of all ranks' inputs.
    AllReduce,
    /// The root gets the element-wise combination of all ranks' inputs.
    Reduce {
        /// Who gets it.
        root: Rank,
    },
    /// Every rank gets all ranks' inputs, one after the other in rank order.
    AllGather,
    /// Rank *i* gets the *i*-th part of the element-wise combination of all ranks' inputs.
    ReduceScatter,
    /// Every rank gets the root's input.
    Broadcast {
        /// Whose input it is.
        root: Rank,
    },
    /// Rank *i* gets the *i*-th part of the root's input.
    Scatter {
        /// Whose input it is.
        root: Rank,
    },
    /// The root gets all ranks' inputs, one after the other in rank order.
    Gather {
        /// Who gets them.
        root: Rank,
    },
    /// Rank *i* gets the *i*-th part of every rank's input, one after the other in rank order.
    AllToAll,
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
            Self::Reduce { .. } => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast { .. } => "broadcast",
            Self::Scatter { .. } => "scatter",
            Self::Gather { .. } => "gather",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::SendRecv { .. } => "send_recv",
        }
    }

    /// Whether elements of several ranks are combined.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Self::AllReduce | Self::Reduce { .. } | Self::ReduceScatter
        )
    }

    /// Parts that the larger buffer has, each of a shape's count: one for each rank where ranks
    /// contribute or receive, else one.
    #[must_use]
    pub const fn parts(self, ranks: u32) -> u64 {
        if self.has_parts() { ranks as u64 } else { 1 }
    }

    const fn has_parts(self) -> bool {
        matches!(
            self,
            Self::AllGather
                | Self::ReduceScatter
                | Self::Scatter { .. }
                | Self::Gather { .. }
                | Self::AllToAll
        )
    }

    /// Bus bandwidth over algorithm bandwidth, as nccl-tests count them: the bytes of the larger buffer
    /// that have to cross a link of each rank at least.
    #[must_use]
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let share = (f64::from(ranks) - 1.0) / f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * share,
            _ if self.has_parts() => share,
            _ => 1.0,
        }
    }

    /// The rank that differs from the others, if one does.
    #[must_use]
    pub const fn root(self) -> Option<Rank> {
        match self {
            Self::Reduce { root }
            | Self::Broadcast { root }
            | Self::Scatter { root }
            | Self::Gather { root } => Some(root),
            _ => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reduce { root } => write!(f, "reduce to rank {root}"),
            Self::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Self::Scatter { root } => write!(f, "scatter from rank {root}"),
            Self::Gather { root } => write!(f, "gather to rank {root}"),
            Self::SendRecv { from, to } => write!(f, "send from rank {from} to rank {to}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// What a plan must compute: the operation, on how many ranks, on how much of what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The operation.
    pub operation: Operation,
    /// Number of ranks.
    pub ranks: u32,
    /// Elements: of the whole buffer for all_reduce, reduce, broadcast and send_recv; that each
    /// rank contributes for all_gather and gather; that each rank receives for reduce_scatter and
    /// scatter; that each rank sends to each for all_to_all; 0 for barrier. Where ranks contribute
    /// or receive, there may be a number for each rank; for all_to_all one for each pair.
    pub count: Count,
    /// Type of the elements.
    pub dtype: DataType,
    /// How elements are combined, for operations that do.
    pub redop: Reduction,
    /// Whether input and output share memory: the same buffer for all_reduce, broadcast, all_to_all
    /// and the root of reduce; the rank's own part of the output for all_gather and the root of
    /// gather, of the input for reduce_scatter and the root of scatter. Without meaning for the
    /// others.
    pub in_place: bool,
}

impl Shape {
    /// Checks that ranks named exist, that counts fit the operation, and that all sizes fit in 64
    /// bits. The other methods rely on it.
    ///
    /// # Errors
    /// What does not fit.
    pub fn validate(&self) -> Result<(), ShapeError> {
        if self.ranks == 0 {
            return Err(ShapeError::NoRanks);
        }
        let named = match self.operation {
            Operation::SendRecv { from, to } => [Some(from), Some(to)],
            operation => [operation.root(), None],
        };
        if let Some(rank) = named.into_iter().flatten().find(|r| r.0 >= self.ranks) {
            return Err(ShapeError::NoSuchRank {
                rank,
                ranks: self.ranks,
            });
        }
        self.validate_counts()
    }

    fn validate_counts(&self) -> Result<(), ShapeError> {
        let ranks = u64::from(self.ranks);
        let (takes, need, have) = match &self.count {
            Count::Even(_) => (true, 0, 0),
            Count::Ranks(counts) => (
                matches!(
                    self.operation,
                    Operation::AllGather
                        | Operation::ReduceScatter
                        | Operation::Scatter { .. }
                        | Operation::Gather { .. }
                ),
                ranks,
                counts.len() as u64,
            ),
            Count::Pairs(counts) => (
                self.operation == Operation::AllToAll,
                ranks * ranks,
                counts.len() as u64,
            ),
            Count::Own {
                rank,
                sends,
                receives,
            } => {
                if rank.0 >= self.ranks {
                    return Err(ShapeError::NoSuchRank {
                        rank: *rank,
                        ranks: self.ranks,
                    });
                }
                (
                    self.operation == Operation::AllToAll,
                    2 * ranks,
                    sends.len() as u64 + receives.len() as u64,
                )
            }
        };
        if !takes || need != have {
            return Err(ShapeError::Counts {
                operation: self.operation.name(),
                need: if takes { need } else { 1 },
                have,
            });
        }
        if self.in_place && self.operation == Operation::AllToAll && !self.count.is_even() {
            return Err(ShapeError::UnevenInPlace);
        }
        if let Count::Own {
            rank,
            sends,
            receives,
        } = &self.count
            && (sends.len() != receives.len() || sends[rank.index()] != receives[rank.index()])
        {
            return Err(ShapeError::Counts {
                operation: self.operation.name(),
                need,
                have,
            });
        }
        let total = match &self.count {
            Count::Even(count) => count.checked_mul(ranks),
            Count::Ranks(counts) | Count::Pairs(counts) => sum(counts),
            Count::Own {
                sends, receives, ..
            } => sum(sends)
                .zip(sum(receives))
                .and_then(|(a, b)| a.checked_add(b)),
        };
        match total.and_then(|total| total.checked_mul(self.element_bytes())) {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(()),
            _ => Err(ShapeError::TooLarge {
                count: self.count.clone(),
                dtype: self.dtype,
                ranks: self.ranks,
            }),
        }
    }

    /// Name of the operation, with `_v` where counts differ from rank to rank or are known of one
    /// rank only, and `_vc` where all of all pairs are.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match (self.operation, &self.count) {
            (operation, Count::Even(_)) => operation.name(),
            (Operation::AllGather, _) => "all_gather_v",
            (Operation::ReduceScatter, _) => "reduce_scatter_v",
            (Operation::Scatter { .. }, _) => "scatter_v",
            (Operation::Gather { .. }, _) => "gather_v",
            (Operation::AllToAll, Count::Pairs(_)) => "all_to_all_vc",
            (Operation::AllToAll, _) => "all_to_all_v",
            (operation, _) => operation.name(),
        }
    }

    /// Whether results are sums divided by the number of ranks.
    #[must_use]
    pub fn makes_averages(&self) -> bool {
        self.operation.reduces() && self.redop == Reduction::Avg && self.ranks > 1
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn element_bytes(&self) -> u64 {
        self.dtype.size() as u64
    }

    /// Bytes of `count` elements; of the largest count where there are several.
    #[must_use]
    pub fn count_bytes(&self) -> u64 {
        self.bytes_of(self.count.largest())
    }

    const fn bytes_of(&self, count: u64) -> u64 {
        count.saturating_mul(self.element_bytes())
    }

    /// Bytes of the larger buffer, of operations whose parts are alike.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let parts = self.operation.parts(self.ranks);
        self.count_bytes().saturating_mul(parts)
    }

    /// Whether everybody knows that no data moves.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        match &self.count {
            Count::Even(count) => *count == 0,
            Count::Ranks(counts) => counts.iter().all(|count| *count == 0),
            Count::Pairs(_) | Count::Own { .. } => false,
        }
    }

    /// Bytes that a rank's input has. Zero where the rank contributes none.
    #[must_use]
    pub fn input_bytes(&self, rank: Rank) -> u64 {
        match self.operation {
            Operation::AllReduce | Operation::Reduce { .. } => self.count_bytes(),
            Operation::AllGather | Operation::Gather { .. } => self.part_bytes(rank),
            Operation::ReduceScatter => self.parts_bytes(),
            Operation::Scatter { root } if rank == root => self.parts_bytes(),
            Operation::Broadcast { root: source } | Operation::SendRecv { from: source, .. }
                if rank == source =>
            {
                self.count_bytes()
            }
            Operation::AllToAll => self.sent_part(rank, Rank(self.ranks)).start,
            _ => 0,
        }
    }

    /// Bytes that a rank's output has. Zero where the rank receives none.
    #[must_use]
    pub fn output_bytes(&self, rank: Rank) -> u64 {
        match self.operation {
            Operation::AllReduce | Operation::Broadcast { .. } => self.count_bytes(),
            Operation::Reduce { root } if rank == root => self.count_bytes(),
            Operation::ReduceScatter | Operation::Scatter { .. } => self.part_bytes(rank),
            Operation::AllGather => self.parts_bytes(),
            Operation::Gather { root } if rank == root => self.parts_bytes(),
            Operation::SendRecv { to, .. } if rank == to => self.count_bytes(),
            Operation::AllToAll => self.received_part(Rank(self.ranks), rank).start,
            _ => 0,
        }
    }

    /// Where a buffer really lies: itself at offset 0, or inside another one when the operation
    /// is in place.
    #[must_use]
    pub fn home(&self, rank: Rank, buffer: Buffer) -> (Buffer, u64) {
        if !self.in_place {
            return (buffer, 0);
        }
        match (self.operation, buffer) {
            (
                Operation::AllReduce | Operation::Broadcast { .. } | Operation::AllToAll,
                Buffer::Input,
            ) => (Buffer::Output, 0),
            (Operation::Reduce { root }, Buffer::Input) if rank == root => (Buffer::Output, 0),
            (Operation::AllGather, Buffer::Input) => (Buffer::Output, self.part(rank).start),
            (Operation::Gather { root }, Buffer::Input) if rank == root => {
                (Buffer::Output, self.part(rank).start)
            }
            (Operation::ReduceScatter, Buffer::Output) => (Buffer::Input, self.part(rank).start),
            (Operation::Scatter { root }, Buffer::Output) if rank == root => {
                (Buffer::Input, self.part(rank).start)
            }
            _ => (buffer, 0),
        }
    }

    /// Bytes of a rank's part of the whole that is gathered or scattered.
    #[must_use]
    pub fn part_bytes(&self, rank: Rank) -> u64 {
        self.bytes_of(self.count.of_rank(rank))
    }

    /// Bytes of all parts together.
    fn parts_bytes(&self) -> u64 {
        self.part(Rank(self.ranks)).start
    }

    /// The part, in bytes, of the whole that is gathered or scattered that belongs to a rank. Parts
    /// follow each other in rank order.
    #[must_use]
    pub fn part(&self, rank: Rank) -> Range<u64> {
        let before = match &self.count {
            Count::Even(count) => count.saturating_mul(u64::from(rank.0)),
            Count::Ranks(counts) => counts.iter().take(rank.index()).sum(),
            Count::Pairs(_) | Count::Own { .. } => 0,
        };
        let start = self.bytes_of(before);
        start..start.saturating_add(self.part_bytes(rank))
    }

    /// Bytes that one rank sends to another in an all_to_all.
    #[must_use]
    pub fn pair_bytes(&self, from: Rank, to: Rank) -> u64 {
        self.bytes_of(self.count.of_pair(self.ranks, from, to))
    }

    /// Where in its input a rank has what it sends to another in an all_to_all.
    #[must_use]
    pub fn sent_part(&self, from: Rank, to: Rank) -> Range<u64> {
        let start = self.count.sent_before(self.ranks, from, to) * self.element_bytes();
        start..self.pair_bytes(from, to).saturating_add(start)
    }

    /// Where in its output a rank gets what another sends to it in an all_to_all.
    #[must_use]
    pub fn received_part(&self, from: Rank, to: Rank) -> Range<u64> {
        let start = self.count.received_before(self.ranks, from, to) * self.element_bytes();
        start..self.pair_bytes(from, to).saturating_add(start)
    }

    /// All ranks.
    pub fn all_ranks(&self) -> impl DoubleEndedIterator<Item = Rank> + use<> {
        (0..self.ranks).map(Rank)
    }
}

fn sum(counts: &[u64]) -> Option<u64> {
    counts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n))
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
    /// Counts that do not fit the operation.
    #[error("{operation} takes {need} counts (1: the same for all), {have} were given")]
    Counts {
        /// Name of the operation.
        operation: &'static str,
        /// How many it takes.
        need: u64,
        /// How many there are.
        have: u64,
    },
    /// What comes would overwrite what has not gone yet.
    #[error("all_to_all in place takes one count for all")]
    UnevenInPlace,
    /// All ranks' elements together exceed 63 bits of bytes.
    #[error("{count} elements of {dtype} on {ranks} ranks exceed 2^63 bytes")]
    TooLarge {
        /// Elements.
        count: Count,
        /// Their type.
        dtype: DataType,
        /// Number of ranks.
        ranks: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_whatever_their_sizes() {
        let mut uneven = shape(Operation::AllGather);
        uneven.count = Count::ranks(&[2, 0, 5]);
        assert_eq!(uneven.validate(), Ok(()));
        let parts = [0, 1, 2].map(|rank| uneven.part(Rank(rank)));
        assert_eq!(parts, [0..8, 8..8, 8..28]);
        assert_eq!(uneven.output_bytes(Rank(1)), 28);
        assert_eq!(uneven.home(Rank(2), Buffer::Input), (Buffer::Output, 8));
        let mut pairs = shape(Operation::AllToAll);
        pairs.count = Count::pairs(&[1, 2, 3, 0, 0, 4, 5, 6, 0]);
        assert_eq!(pairs.validate(), Err(ShapeError::UnevenInPlace));
        pairs.in_place = false;
        assert_eq!(pairs.validate(), Ok(()));
        assert_eq!(pairs.sent_part(Rank(0), Rank(2)), 12..24);
        assert_eq!(pairs.received_part(Rank(2), Rank(1)), 8..32);
        assert_eq!(
            (pairs.input_bytes(Rank(2)), pairs.output_bytes(Rank(0))),
            (44, 24)
        );
    }

    #[test]
    fn counts_that_do_not_fit_the_operation_are_refused() {
        let mut wrong = shape(Operation::AllGather);
        wrong.count = Count::ranks(&[1, 2]);
        let error = wrong.validate().unwrap_err().to_string();
        assert!(
            error.contains("takes 3 counts") && error.contains("2 were given"),
            "{error}"
        );
        wrong.operation = Operation::AllReduce;
        assert!(matches!(wrong.validate(), Err(ShapeError::Counts { .. })));
        wrong.operation = Operation::AllToAll;
        wrong.count = Count::Own {
            rank: Rank(1),
            sends: [1, 2, 3].into(),
            receives: [1, 9, 3].into(),
        };
        wrong.in_place = false;
        // What a rank sends to itself it receives.
        assert!(matches!(wrong.validate(), Err(ShapeError::Counts { .. })));
        wrong.count = Count::ranks(&[u64::MAX, 1, 1]);
        wrong.operation = Operation::AllGather;
        assert!(matches!(wrong.validate(), Err(ShapeError::TooLarge { .. })));
    }

    fn shape(operation: Operation) -> Shape {
        Shape {
            operation,
            ranks: 3,
            count: 5.into(),
            dtype: DataType::F32,
            redop: Reduction::Sum,
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
        wrong.count = Count::Even(u64::MAX / 8);
        assert!(matches!(wrong.validate(), Err(ShapeError::TooLarge { .. })));
        wrong.ranks = 0;
        assert_eq!(wrong.validate(), Err(ShapeError::NoRanks));
    }
}
