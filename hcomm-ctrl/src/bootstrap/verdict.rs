//! Why start-up failed, in the words that every rank uses, and who is still missing.

use std::fmt::Write as _;

use hcomm_types::{Error, ErrorKind, Rank};

use crate::codec::{Malformed, Reader, Writer};

/// Longest text that travels, in bytes: what fits in a frame with room to spare.
const MAX_TEXT_BYTES: usize = 16 << 10;
const MAX_CULPRITS: usize = 4096;

/// A failure of start-up. It travels to every rank, so that all say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) kind: ErrorKind,
    pub(super) culprits: Vec<Rank>,
    pub(super) detail: String,
    pub(super) hint: String,
}

/// Kinds that travel, with their numbers.
const KINDS: [(u8, ErrorKind); 10] = [
    (1, ErrorKind::Mismatch),
    (2, ErrorKind::Timeout),
    (3, ErrorKind::PeerLost),
    (4, ErrorKind::Aborted),
    (5, ErrorKind::Refused),
    (6, ErrorKind::LimitReached),
    (7, ErrorKind::System),
    (8, ErrorKind::InvalidArgument),
    (9, ErrorKind::Unsupported),
    (10, ErrorKind::Plugin),
];

impl Verdict {
    pub(super) fn new(kind: ErrorKind, culprits: Vec<Rank>, detail: impl Into<String>) -> Self {
        Self {
            kind,
            culprits,
            detail: detail.into(),
            hint: String::new(),
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// What an error of one rank says to the others.
    pub(super) fn of(error: &Error) -> Self {
        Self {
            kind: error.kind(),
            culprits: error.culprits().to_vec(),
            detail: error.detail().to_owned(),
            hint: error.next_step().unwrap_or_default().to_owned(),
        }
    }

    /// The error that each rank returns.
    pub(super) fn to_error(&self) -> Error {
        let error = self
            .culprits
            .iter()
            .fold(Error::new(self.kind, &*self.detail), |error, &rank| {
                error.blame_rank(rank)
            });
        if self.hint.is_empty() {
            error
        } else {
            error.hint(&*self.hint)
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let number = KINDS
            .iter()
            .find(|(_, kind)| *kind == self.kind)
            .map_or(0, |(number, _)| *number);
        let mut writer = Writer::new();
        writer.u8(number);
        let culprits = &self.culprits[..self.culprits.len().min(MAX_CULPRITS)];
        writer.length(culprits.len());
        for rank in culprits {
            writer.u32(rank.0);
        }
        writer
            .text(shortened(&self.detail))
            .text(shortened(&self.hint));
        writer.into_bytes()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let number = reader.u8("failure")?;
        let kind = KINDS
            .iter()
            .find(|(known, _)| *known == number)
            .map_or(ErrorKind::Internal, |(_, kind)| *kind);
        let culprits = (0..reader.count(4, "failure")?)
            .map(|_| reader.u32("failure").map(Rank))
            .collect::<Result<_, _>>()?;
        let detail = reader.text("failure")?.to_owned();
        let hint = reader.text("failure")?.to_owned();
        reader.end("failure")?;
        Ok(Self {
            kind,
            culprits,
            detail,
            hint,
        })
    }
}

/// What a rank reports to the root: something has happened to it or to a rank below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// Whom it is about.
    pub(super) rank: Rank,
    /// Whether that one is gone; else it has said itself that it cannot go on.
    pub(super) is_lost: bool,
    pub(super) verdict: Verdict,
}

impl Trouble {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u32(self.rank.0).u8(self.is_lost.into());
        writer.raw(&self.verdict.encode());
        writer.into_bytes()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        Ok(Self {
            rank: Rank(reader.u32("trouble")?),
            is_lost: reader.u8("trouble")? != 0,
            verdict: Verdict::decode(reader.rest())?,
        })
    }
}

/// Ranks in ascending order, as runs.
pub(super) fn write_ranks(writer: &mut Writer, ranks: &[Rank]) {
    let runs = runs(ranks);
    writer.length(runs.len());
    for (first, last) in runs {
        writer.u32(first).u32(last);
    }
}

/// `size` bounds the ranks that can be named.
pub(super) fn read_ranks(
    reader: &mut Reader<'_>,
    size: u32,
    what: &'static str,
) -> Result<Vec<Rank>, Malformed> {
    let mut ranks = Vec::new();
    for _ in 0..reader.count(8, what)? {
        let first = reader.u32(what)?;
        let last = reader.u32(what)?;
        let in_order = ranks.last().is_none_or(|&Rank(before)| before < first);
        if first > last || last >= size || !in_order {
            return Err(Malformed(what));
        }
        ranks.extend((first..=last).map(Rank));
    }
    Ok(ranks)
}

/// The longest beginning that fits.
pub(crate) fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Who has not come yet, and what was seen that may explain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) missing: Vec<Rank>,
    pub(super) notes: Vec<String>,
}

impl Progress {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        write_ranks(&mut writer, &self.missing);
        writer.length(self.notes.len());
        for note in &self.notes {
            writer.text(shortened(note));
        }
        writer.into_bytes()
    }

    /// `size` bounds the ranks that can be missing.
    pub(super) fn decode(body: &[u8], size: u32) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let missing = read_ranks(&mut reader, size, "progress")?;
        let notes = (0..reader.count(4, "progress")?)
            .map(|_| reader.text("progress").map(str::to_owned))
            .collect::<Result<_, _>>()?;
        reader.end("progress")?;
        Ok(Self { missing, notes })
    }

    /// `ranks 3 and 5-7 have not come (…)`.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{} not come", name_ranks(&self.missing, "has", "have"));
        if !self.notes.is_empty() {
            text += &format!(" ({})", self.notes.join("; "));
        }
        text
    }
}

/// `rank 3 has`, `ranks 1, 3 and 5-7 have`.
pub(super) fn name_ranks(ranks: &[Rank], one: &str, many: &str) -> String {
    const SHOWN_RUNS: usize = 16;
    let runs = runs(ranks);
    let mut text = String::from(if ranks.len() == 1 { "rank " } else { "ranks " });
    let shown = runs.len().min(SHOWN_RUNS);
    for (position, &(first, last)) in runs[..shown].iter().enumerate() {
        text += match position {
            0 => "",
            _ if position + 1 == runs.len() => " and ",
            _ => ", ",
        };
        let _ = match last - first {
            0 => write!(text, "{first}"),
            _ => write!(text, "{first}-{last}"),
        };
    }
    if shown < runs.len() {
        let named: u32 = runs[..shown]
            .iter()
            .map(|(first, last)| last - first + 1)
            .sum();
        let _ = write!(text, " and {} more", ranks.len() - named as usize);
    }
    text + " " + if ranks.len() == 1 { one } else { many }
}

/// Consecutive ranks as first and last.
fn runs(ranks: &[Rank]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &Rank(rank) in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranks_are_named_in_runs() {
        let ranks = |list: &[u32]| list.iter().copied().map(Rank).collect::<Vec<_>>();
        assert_eq!(name_ranks(&ranks(&[3]), "has", "have"), "rank 3 has");
        assert_eq!(
            name_ranks(&ranks(&[1, 3, 5, 6, 7]), "has", "have"),
            "ranks 1, 3 and 5-7 have"
        );
        let even: Vec<u32> = (0..40).map(|i| 2 * i).collect();
        assert!(name_ranks(&ranks(&even), "has", "have").ends_with("30 and 24 more have"));
    }

    #[test]
    fn every_kind_that_travels_comes_back() {
        for (_, kind) in KINDS {
            let verdict = Verdict::new(kind, vec![Rank(2)], "detail").hint("hint");
            assert_eq!(Verdict::decode(&verdict.encode()), Ok(verdict.clone()));
            assert_eq!(Verdict::of(&verdict.to_error()), verdict);
            let trouble = Trouble {
                rank: Rank(7),
                is_lost: kind == ErrorKind::PeerLost,
                verdict,
            };
            assert_eq!(Trouble::decode(&trouble.encode()), Ok(trouble));
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "é".repeat(MAX_TEXT_BYTES);
        let verdict = Verdict::new(ErrorKind::Timeout, Vec::new(), format!("x{text}"));
        let back = Verdict::decode(&verdict.encode()).unwrap();
        assert!(back.detail.len() <= MAX_TEXT_BYTES && back.detail.starts_with("xé"));
    }

    #[test]
    fn progress_does_not_name_ranks_that_do_not_exist() {
        let progress = Progress {
            missing: vec![Rank(1), Rank(2), Rank(9)],
            notes: vec!["note".to_owned()],
        };
        let body = progress.encode();
        assert_eq!(Progress::decode(&body, 10), Ok(progress));
        assert_eq!(Progress::decode(&body, 9), Err(Malformed("progress")));
    }

    proptest! {
        #[test]
        fn random_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Verdict::decode(&body);
            let _ = Progress::decode(&body, 100);
            let _ = Trouble::decode(&body);
        }
    }
}
