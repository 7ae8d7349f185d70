//! Which collective call each rank is in: the flight recorder, and what ranks tell each other of it.
//!
//! Every collective notes its number and itself in a ring of fixed size; that is a few stores. Ranks
//! of one communicator number their collectives alike, so two ranks whose calls of one number
//! differ do not agree. Who waits for long tells its linked peers over the control links which call
//! it is in, and compares what they tell: so ranks find out even if nothing that goes between them
//! carries a fingerprint, and whoever times out knows who has come how far.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hcomm_types::{Error, ErrorKind, Nanos, Rank, Result};

use crate::codec::{Malformed, Reader, Writer};

/// Calls remembered.
const KEPT: usize = 64;

/// Calls told: where calls by messages do not wait for each other, ranks may come apart some calls
/// before they find out.
const TOLD: u64 = 16;

/// How long a rank waits in one call before it tells the others which.
const PATIENCE: Duration = Duration::from_millis(100);

/// A collective call, in three words of which only the layer above knows the meaning. Ranks in the
/// same call have the same last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number, from 1 on.
    pub number: u64,
    /// What it is.
    pub words: [u64; 3],
}

impl Call {
    fn is_as(&self, other: &Self) -> bool {
        self.words[2] == other.words[2]
    }
}

/// Calls as they go over a control link.
pub(crate) fn encode(calls: &[Call]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.length(calls.len());
    for call in calls {
        writer.u64(call.number);
        for word in call.words {
            writer.u64(word);
        }
    }
    writer.into_bytes()
}

/// What [`encode`] has written.
pub(crate) fn decode(body: &[u8]) -> Result<Vec<Call>, Malformed> {
    let what = "calls";
    let mut reader = Reader::new(body);
    let calls = (0..reader.count(size_of::<Call>(), what)?)
        .map(|_| {
            let number = reader.u64(what)?;
            let words = [reader.u64(what)?, reader.u64(what)?, reader.u64(what)?];
            Ok(Call { number, words })
        })
        .collect::<Result<_, _>>()?;
    reader.end(what)?;
    Ok(calls)
}

/// The calls of one rank. One OS thread notes, any may look.
#[derive(Debug)]
pub(crate) struct Calls {
    ring: Box<[Entry; KEPT]>,
    latest: AtomicU64,
    describe: OnceLock<fn([u64; 3]) -> String>,
    /// The call that the peers were last told of, or since when it stands, in two words.
    standing: Standing,
}

#[derive(Debug, Default)]
struct Standing {
    number: AtomicU64,
    /// When it was first seen, plus one; zero once it was told.
    since: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    number: AtomicU64,
    words: [AtomicU64; 3],
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            number: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; 3],
        }
    }
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            ring: Box::new(std::array::from_fn(|_| Entry::default())),
            latest: AtomicU64::new(0),
            describe: OnceLock::new(),
            standing: Standing::default(),
        }
    }

    /// How calls are put into words.
    pub(crate) fn describe_by(&self, describe: fn([u64; 3]) -> String) {
        self.describe.get_or_init(|| describe);
    }

    /// Notes a call, with a number larger than all before.
    #[inline]
    pub(crate) fn note(&self, number: u64, words: [u64; 3]) {
        let entry = &self.ring[number as usize % KEPT];
        // Who reads meanwhile sees another number before or after, and takes it for no call.
        entry.number.store(0, Ordering::Relaxed);
        for (word, value) in entry.words.iter().zip(words) {
            word.store(value, Ordering::Release);
        }
        entry.number.store(number, Ordering::Release);
        self.latest.store(number, Ordering::Release);
    }

    /// The call of this number, unless it was too long ago or is yet to come.
    pub(crate) fn get(&self, number: u64) -> Option<Call> {
        let entry = &self.ring[number as usize % KEPT];
        let read = || entry.number.load(Ordering::Acquire);
        if number == 0 || read() != number {
            return None;
        }
        let words = [0, 1, 2].map(|word: usize| entry.words[word].load(Ordering::Acquire));
        (read() == number).then_some(Call { number, words })
    }

    /// The latest call.
    pub(crate) fn latest(&self) -> Option<Call> {
        self.get(self.latest.load(Ordering::Acquire))
    }

    /// A call in words.
    pub(crate) fn describe(&self, call: &Call) -> String {
        let what = self.describe.get().map_or_else(
            || format!("{:x?}", call.words),
            |describe| describe(call.words),
        );
        format!("{what} (collective {})", call.number)
    }

    /// The latest calls, the oldest of them first.
    pub(crate) fn recent(&self) -> Vec<Call> {
        let latest = self.latest.load(Ordering::Acquire);
        (latest.saturating_sub(TOLD - 1)..=latest)
            .filter_map(|number| self.get(number))
            .collect()
    }

    /// The calls to tell the peers of, if this rank has been in the latest for long and they were not
    /// told.
    pub(crate) fn to_tell(&self, now: Nanos) -> Option<Vec<Call>> {
        let call = self.latest()?;
        let Standing { number, since } = &self.standing;
        if number.swap(call.number, Ordering::Relaxed) != call.number {
            since.store(now.0 + 1, Ordering::Relaxed);
            return None;
        }
        let seen = since.load(Ordering::Relaxed);
        if seen == 0 || now.since(Nanos(seen - 1)) < PATIENCE {
            return None;
        }
        since.store(0, Ordering::Relaxed);
        Some(self.recent())
    }

    /// Refuses what a peer tells of its calls if one is not what this rank calls, or has called, under
    /// the same number.
    pub(crate) fn compare(&self, own: Rank, peer: Rank, theirs: &[Call]) -> Result<()> {
        let Some(number) = self.first_apart(theirs) else {
            return Ok(());
        };
        let call = |call: Option<Call>| call.map_or_else(String::new, |call| self.describe(&call));
        let mine = call(self.get(number));
        let theirs = call(find(theirs, number));
        Err(Error::new(
            ErrorKind::Mismatch,
            format!("rank {own} calls {mine}, rank {peer} {theirs}"),
        )
        .hint("all ranks have to call the same collectives in the same order")
        .blame_rank(own)
        .blame_rank(peer))
    }

    /// The number of the first call of a peer that is another one here.
    fn first_apart(&self, theirs: &[Call]) -> Option<u64> {
        theirs
            .iter()
            .filter(|call| self.get(call.number).is_some_and(|mine| !mine.is_as(call)))
            .map(|call| call.number)
            .min()
    }

    /// The error with what each rank that has said so calls where they came apart, if they did.
    pub(crate) fn list(&self, own: Rank, others: &[(Rank, Vec<Call>)], error: Error) -> Error {
        let apart = others
            .iter()
            .filter_map(|(_, theirs)| self.first_apart(theirs));
        let Some(number) = apart.min() else {
            return error;
        };
        let mut all: Vec<(Rank, Option<Call>)> = others
            .iter()
            .map(|(rank, theirs)| (*rank, find(theirs, number)))
            .collect();
        all.push((own, self.get(number)));
        all.sort_unstable_by_key(|(rank, _)| *rank);
        let calls: Vec<String> = all
            .iter()
            .map(|(rank, call)| match call {
                Some(call) => format!("rank {rank} calls {}", self.describe(call)),
                None => format!("rank {rank} has not said what it calls"),
            })
            .collect();
        error
            .reword(|_| calls.join(", "))
            .hint("all ranks have to call the same collectives in the same order")
    }

    /// Who holds up a rank that waits for `peer` in its latest call: of those that have not said that they
    /// wait in it, or in a later one, those that are furthest behind. A peer that waits itself is held
    /// up, too.
    pub(crate) fn who_holds_up(&self, peer: Rank, others: &[(Rank, Vec<Call>)]) -> Vec<Rank> {
        let Some(mine) = self.latest() else {
            return vec![peer];
        };
        let behind = others.iter().filter_map(|(rank, calls)| {
            let Some(last) = calls.last() else {
                return Some((0, *rank));
            };
            let is_same = last.number == mine.number && last.is_as(&mine);
            let waits = last.number > mine.number || is_same;
            (!waits).then_some((last.number, *rank))
        });
        let behind: Vec<(u64, Rank)> = behind.collect();
        let furthest = behind.iter().map(|(number, _)| *number).min();
        let furthest = behind
            .iter()
            .filter(|(number, _)| Some(*number) == furthest);
        let furthest: Vec<Rank> = furthest.map(|(_, rank)| *rank).collect();
        if furthest.is_empty() || furthest.contains(&peer) {
            vec![peer]
        } else {
            furthest
        }
    }

    /// Where each of the others is, compared with this rank, in words.
    pub(crate) fn arrivals(&self, others: &[(Rank, Vec<Call>)]) -> String {
        let Some(mine) = self.latest() else {
            return String::new();
        };
        let mut text = format!("the latest collective here: {}", self.describe(&mine));
        for (rank, theirs) in others {
            // Writing to a string does not fail.
            let _ = match theirs.last() {
                Some(theirs) if theirs.number == mine.number && theirs.is_as(&mine) => {
                    write!(text, "; rank {rank} waits in the same")
                }
                Some(theirs) => {
                    write!(
                        text,
                        "; rank {rank} last waited in {}",
                        self.describe(theirs)
                    )
                }
                None => write!(text, "; rank {rank} has not said that it waits"),
            };
        }
        text
    }
}

fn find(calls: &[Call], number: u64) -> Option<Call> {
    calls.iter().copied().find(|call| call.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(last: u64) -> [u64; 3] {
        [1, 2, last]
    }

    #[test]
    fn the_latest_calls_are_remembered_and_the_oldest_forgotten() {
        let calls = Calls::new();
        assert_eq!(calls.latest(), None);
        for number in 1..=100 {
            calls.note(number, words(number));
        }
        assert_eq!(calls.latest().unwrap().words, words(100));
        assert_eq!(calls.get(37).unwrap().number, 37);
        for gone in [0, 1, 36, 101] {
            assert_eq!(calls.get(gone), None, "{gone}");
        }
    }

    #[test]
    fn calls_travel_whole() {
        let calls = [7, 8].map(|number| Call {
            number,
            words: [u64::MAX, 0, number],
        });
        let bytes = encode(&calls);
        assert_eq!(decode(&bytes).unwrap(), calls);
        assert!(decode(&bytes[1..]).is_err());
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        assert_eq!(decode(&encode(&[])).unwrap(), []);
    }

    #[test]
    fn only_what_stands_for_long_is_told_and_once() {
        let calls = Calls::new();
        let at = |ms: u64| Nanos(ms * 1_000_000);
        assert_eq!(calls.to_tell(at(1)), None);
        calls.note(1, words(5));
        assert_eq!(calls.to_tell(at(2)), None);
        assert_eq!(calls.to_tell(at(101)), None);
        assert_eq!(calls.to_tell(at(102)).unwrap().last().unwrap().number, 1);
        assert_eq!(calls.to_tell(at(500)), None);
        calls.note(2, words(5));
        assert_eq!(calls.to_tell(at(501)), None);
        let told: Vec<u64> = calls
            .to_tell(at(601))
            .unwrap()
            .iter()
            .map(|c| c.number)
            .collect();
        assert_eq!(told, [1, 2]);
    }

    #[test]
    fn what_differs_under_one_number_is_refused_with_both_calls() {
        let calls = Calls::new();
        calls.describe_by(|[.., last]| format!("kind {last}"));
        calls.note(2, words(4));
        calls.note(3, words(5));
        let theirs = |number, last| Call {
            number,
            words: words(last),
        };
        let compare = |theirs: &[Call]| calls.compare(Rank(0), Rank(1), theirs);
        assert!(compare(&[theirs(3, 5)]).is_ok());
        assert!(
            compare(&[theirs(2, 4), theirs(4, 6)]).is_ok(),
            "not here yet"
        );
        let error = compare(&[theirs(2, 4), theirs(3, 6)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let text = error.to_string();
        assert!(text.contains("kind 5") && text.contains("kind 6"), "{text}");
        // Apart before the latest, which is the same.
        let error = compare(&[theirs(2, 8), theirs(3, 5)]).unwrap_err();
        assert!(
            error.to_string().contains("kind 8 (collective 2)"),
            "{error}"
        );
        // Rank 3 waits in the same call and rank 4 in the next one; rank 1 is behind them, and rank 2
        // has said nothing at all.
        let mut all = vec![
            (Rank(3), vec![theirs(2, 4), theirs(3, 5)]),
            (Rank(4), vec![theirs(4, 5)]),
        ];
        assert_eq!(calls.who_holds_up(Rank(3), &all), [Rank(3)]);
        all.push((Rank(1), vec![theirs(2, 4)]));
        assert_eq!(calls.who_holds_up(Rank(3), &all), [Rank(1)]);
        all.push((Rank(2), Vec::new()));
        assert_eq!(calls.who_holds_up(Rank(4), &all), [Rank(2)]);
        assert_eq!(calls.who_holds_up(Rank(2), &all), [Rank(2)]);
        let others = [(Rank(1), vec![theirs(2, 9)]), (Rank(2), Vec::new())];
        assert_eq!(
            calls.arrivals(&others),
            "the latest collective here: kind 5 (collective 3); rank 1 last waited in kind 9 \
             (collective 2); rank 2 has not said that it waits"
        );
    }
}
