//! Symbolic content of memory.
//!
//! A byte holds the element-wise combination of some ranks' inputs, all at one input offset. Which
//! ranks, and in which order they were combined, is an *expression*; equal expressions have equal
//! numbers, so comparing two values compares two numbers.

use hcomm_types::Rank;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Number of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ExpressionId(u32);

/// What the bytes of an interval hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Whatever was there before the operation.
    Unwritten,
    /// A combination of inputs. The byte at position *p* of its memory comes from input offset
    /// *p + shift* (wrapping).
    Inputs {
        expression: ExpressionId,
        shift: u64,
    },
}

/// Part of what an access has read, by offsets from the start of the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) content: Content,
}

/// A [`Value`] that has left its place: the byte at offset *x* of the access comes from input
/// offset *x + origin* (wrapping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Unwritten,
    Inputs {
        expression: ExpressionId,
        origin: u64,
    },
}

pub(super) type Pieces = SmallVec<[Piece; 2]>;

impl Value {
    pub(super) fn at(self, position: u64) -> Content {
        match self {
            Self::Unwritten => Content::Unwritten,
            Self::Inputs { expression, shift } => Content::Inputs {
                expression,
                origin: position.wrapping_add(shift),
            },
        }
    }
}

impl Content {
    pub(super) fn placed_at(self, position: u64) -> Value {
        match self {
            Self::Unwritten => Value::Unwritten,
            Self::Inputs { expression, origin } => Value::Inputs {
                expression,
                shift: origin.wrapping_sub(position),
            },
        }
    }
}

/// Why two contents cannot be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    Unwritten,
    /// Input offsets of the operands.
    Offsets(u64, u64),
    /// Elements that are not whole.
    Torn,
    Twice(Rank),
    /// Operands of two different operations.
    Rounds,
    /// An operand that is divided already.
    Averages,
}

#[derive(Debug)]
struct Expression {
    round: u32,
    ranks: SmallVec<[u64; 1]>,
    /// How many ranks, from the first on, are combined in rank order: each with all before it. Zero
    /// if it is anything else.
    in_order: u32,
    /// Whether it is divided by the number of ranks.
    is_average: bool,
}

/// All expressions that occur.
#[derive(Debug, Default)]
pub(super) struct Expressions {
    all: Vec<Expression>,
    inputs: FxHashMap<(u32, Rank), ExpressionId>,
    combined: FxHashMap<(ExpressionId, ExpressionId), ExpressionId>,
    averages: FxHashMap<ExpressionId, ExpressionId>,
}

impl Expressions {
    fn add(&mut self, expression: Expression) -> ExpressionId {
        let id = ExpressionId(self.all.len() as u32);
        self.all.push(expression);
        id
    }

    /// One rank's own input.
    pub(super) fn input(&mut self, round: u32, rank: Rank) -> ExpressionId {
        if let Some(&id) = self.inputs.get(&(round, rank)) {
            return id;
        }
        let mut ranks = SmallVec::from_elem(0, rank.index() / 64 + 1);
        ranks[rank.index() / 64] = 1 << (rank.index() % 64);
        let id = self.add(Expression {
            round,
            ranks,
            in_order: u32::from(rank == Rank(0)),
            is_average: false,
        });
        self.inputs.insert((round, rank), id);
        id
    }

    fn combine(&mut self, a: ExpressionId, b: ExpressionId) -> Result<ExpressionId, Misfit> {
        if let Some(&id) = self.combined.get(&(a, b)) {
            return Ok(id);
        }
        let (left, right) = (&self.all[a.0 as usize], &self.all[b.0 as usize]);
        if left.round != right.round {
            return Err(Misfit::Rounds);
        }
        if left.is_average || right.is_average {
            return Err(Misfit::Averages);
        }
        let round = left.round;
        let (mut ranks, other) = if left.ranks.len() >= right.ranks.len() {
            (left.ranks.clone(), &right.ranks)
        } else {
            (right.ranks.clone(), &left.ranks)
        };
        for (word, (mine, theirs)) in ranks.iter_mut().zip(other).enumerate() {
            let both = *mine & *theirs;
            if both != 0 {
                let rank = word * 64 + both.trailing_zeros() as usize;
                return Err(Misfit::Twice(Rank::from_index(rank)));
            }
            *mine |= *theirs;
        }
        // Operands may be swapped: every operation gives the same number either way.
        let next = |so_far: ExpressionId, one: ExpressionId| {
            let before = self.all[so_far.0 as usize].in_order;
            let follows = before > 0 && self.is_input(one, round, Rank(before));
            follows.then_some(before + 1)
        };
        let in_order = next(a, b).or_else(|| next(b, a)).unwrap_or(0);
        let id = self.add(Expression {
            round,
            ranks,
            in_order,
            is_average: false,
        });
        self.combined.insert((a, b), id);
        Ok(id)
    }

    /// The average that division by the number of ranks makes of a sum of all; `None` of anything
    /// else.
    pub(super) fn divide(
        &mut self,
        id: ExpressionId,
        round: u32,
        ranks: u32,
    ) -> Option<ExpressionId> {
        if let Some(&average) = self.averages.get(&id) {
            return Some(average);
        }
        if !self.is_complete(id, round, ranks, false) {
            return None;
        }
        let Expression {
            ref ranks,
            in_order,
            ..
        } = self.all[id.0 as usize];
        let ranks = ranks.clone();
        let average = self.add(Expression {
            round,
            ranks,
            in_order,
            is_average: true,
        });
        self.averages.insert(id, average);
        Some(average)
    }

    /// Combines what two accesses of one length have read, element by element.
    pub(super) fn combine_pieces(
        &mut self,
        a: &[Piece],
        b: &[Piece],
        element_bytes: u64,
    ) -> Result<Pieces, Misfit> {
        let mut result = Pieces::new();
        let (mut i, mut j, mut start) = (0, 0, 0);
        while let (Some(left), Some(right)) = (a.get(i), b.get(j)) {
            let end = left.end.min(right.end);
            let (
                Content::Inputs {
                    expression: first,
                    origin: from,
                },
                Content::Inputs {
                    expression: second,
                    origin: other,
                },
            ) = (left.content, right.content)
            else {
                return Err(Misfit::Unwritten);
            };
            if from != other {
                return Err(Misfit::Offsets(
                    from.wrapping_add(start),
                    other.wrapping_add(start),
                ));
            }
            // Elements must be whole: neither begin in the middle of an input element nor be
            // glued together from two pieces.
            if !from.is_multiple_of(element_bytes) || !end.is_multiple_of(element_bytes) {
                return Err(Misfit::Torn);
            }
            let expression = self.combine(first, second)?;
            push(
                &mut result,
                Piece {
                    start,
                    end,
                    content: Content::Inputs {
                        expression,
                        origin: from,
                    },
                },
            );
            start = end;
            i += usize::from(left.end == end);
            j += usize::from(right.end == end);
        }
        Ok(result)
    }

    /// The rank and operation whose untouched input this is, if it is one.
    pub(super) fn is_input(&self, id: ExpressionId, round: u32, rank: Rank) -> bool {
        self.inputs.get(&(round, rank)) == Some(&id)
    }

    /// Whether all of `ranks` ranks of an operation contribute (each once: see `combine`), and
    /// whether it is divided as it should be.
    pub(super) fn is_complete(
        &self,
        id: ExpressionId,
        round: u32,
        ranks: u32,
        is_average: bool,
    ) -> bool {
        let expression = &self.all[id.0 as usize];
        let present: u32 = expression.ranks.iter().map(|word| word.count_ones()).sum();
        expression.round == round && present == ranks && expression.is_average == is_average
    }

    /// Whether so many ranks are combined in rank order, and no more.
    pub(super) fn is_in_rank_order(&self, id: ExpressionId, ranks: u32) -> bool {
        self.all[id.0 as usize].in_order == ranks
    }

    /// An expression in words: which ranks contribute.
    pub(super) fn describe(&self, id: ExpressionId) -> String {
        let expression = &self.all[id.0 as usize];
        let ranks: Vec<usize> = (0..expression.ranks.len() * 64)
            .filter(|rank| expression.ranks[rank / 64] >> (rank % 64) & 1 == 1)
            .collect();
        match &ranks[..] {
            [rank] => format!("the input of rank {rank}"),
            many => {
                let names: Vec<String> = many.iter().map(ToString::to_string).collect();
                let what = if expression.is_average {
                    "average"
                } else {
                    "combined inputs"
                };
                format!("the {what} of ranks {}", names.join(", "))
            }
        }
    }
}

/// Appends a piece, joined with the one before it where they hold the same.
pub(super) fn push(pieces: &mut Pieces, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.content == piece.content && last.end == piece.start => {
            last.end = piece.end;
        }
        _ => pieces.push(piece),
    }
}
