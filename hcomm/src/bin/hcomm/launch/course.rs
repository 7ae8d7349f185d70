//! The course of a job: what to do on each event. It knows neither processes nor the clock, so
//! that every order of events can be tried.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::output::NOBODY_READS;

/// How long the other ranks may go on after one has failed, so that they can report.
const GRACE: Duration = Duration::from_secs(5);
/// How long a rank may take to end after it was asked to; how long its output may still come after
/// its end, when a process that it has left behind holds the pipe.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the output of processes that were just killed may take to come to its end.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Two wishes to end that are closer than this are one: `timeout` signals its child, and then the
/// group that the child is in.
const ONE_WISH: Duration = Duration::from_millis(300);

/// What happens to a job.
#[derive(Debug)]
pub(super) enum Event {
    /// The launcher was sent this signal.
    Signal(i32),
    /// A rank has ended. Processes that it has left behind may go on.
    Exited(u32, End),
    /// A rank's output was passed on to its end.
    Drained(u32),
    /// Output cannot be passed on: nobody reads, or no room.
    Unheard(io::Error),
}

/// How a rank has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody can tell, because of this.
    Unknown(String),
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send this signal to all ranks and to what they have left behind.
    Send(Signal),
    /// Tell the user.
    Say(String),
}

/// Where a job stands.
#[derive(Debug)]
pub(super) struct Course {
    ranks: Vec<Rank>,
    failure: Option<u8>,
    limit: Option<(Instant, Next)>,
    /// When the user has asked for the end.
    asked: Option<Instant>,
    killed: bool,
    left: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    exited: bool,
    drained: bool,
}

/// What follows when the time is up.
#[derive(Clone, Copy, Debug)]
enum Next {
    Terminate,
    Kill,
    /// Nothing more can be done: a process that hangs in the kernel, or a stranger with our pipe.
    Leave,
}

impl Course {
    /// Of a job whose ranks have been started.
    pub(super) fn new(ranks: u32) -> Self {
        Self {
            ranks: vec![Rank::default(); ranks as usize],
            failure: None,
            limit: None,
            asked: None,
            killed: false,
            left: false,
        }
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.left || self.ranks.iter().all(|rank| rank.exited && rank.drained)
    }

    /// When [`at_limit`](Self::at_limit) is to be called.
    pub(super) fn limit(&self) -> Option<Instant> {
        self.limit.map(|(at, _)| at)
    }

    /// The exit code of the launcher: that of the first failure.
    pub(super) fn code(&self) -> u8 {
        self.failure.unwrap_or(0)
    }

    /// What to do on an event.
    pub(super) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Signal(number) => self.signalled(number, now),
            Event::Exited(number, end) => self.exited(number, &end, now),
            Event::Drained(number) => {
                if let Some(rank) = self.ranks.get_mut(number as usize) {
                    rank.drained = true;
                }
                Vec::new()
            }
            Event::Unheard(error) => self.unheard(&error, now),
        }
    }

    /// What to do when the time is up.
    pub(super) fn at_limit(&mut self, now: Instant) -> Vec<Action> {
        match self.limit.take() {
            None => Vec::new(),
            Some((_, Next::Terminate)) => {
                self.limit = Some((now + FAREWELL, Next::Kill));
                vec![Action::Send(Signal::TERM)]
            }
            Some((_, Next::Kill)) => self.kill(now),
            Some((_, Next::Leave)) => {
                self.left = true;
                self.last_words()
            }
        }
    }

    /// Ends a job that could not be started as a whole.
    pub(super) fn give_up(&mut self, now: Instant) -> Vec<Action> {
        // How the ranks end from here on is our doing.
        self.failure = Some(1);
        self.kill(now)
    }

    fn kill(&mut self, now: Instant) -> Vec<Action> {
        self.killed = true;
        self.limit = Some((now + self.patience_after_kill(), Next::Leave));
        vec![Action::Send(Signal::KILL)]
    }

    fn all_exited(&self) -> bool {
        self.ranks.iter().all(|rank| rank.exited)
    }

    fn patience_after_kill(&self) -> Duration {
        if self.all_exited() {
            LAST_WORDS
        } else {
            // Ending a process with much memory takes its time.
            2 * FAREWELL
        }
    }

    fn signalled(&mut self, number: i32, now: Instant) -> Vec<Action> {
        let ends = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&number);
        if ends {
            self.failure = self.failure.or_else(|| u8::try_from(128 + number).ok());
        }
        if number == SIGINT || number == SIGTERM {
            let impatient = self
                .asked
                .is_some_and(|first| now.saturating_duration_since(first) >= ONE_WISH);
            // With all ranks gone nobody can use the grace.
            if impatient || self.all_exited() {
                return self.kill(now);
            }
            self.asked = self.asked.or(Some(now));
        }
        if ends {
            self.limit = self.limit.or(Some((now + GRACE, Next::Terminate)));
        }
        Signal::from_named_raw(number)
            .map(Action::Send)
            .into_iter()
            .collect()
    }

    fn exited(&mut self, number: u32, end: &End, now: Instant) -> Vec<Action> {
        if let Some(rank) = self.ranks.get_mut(number as usize) {
            rank.exited = true;
        }
        let mut actions = Vec::new();
        if let Some((code, words)) = fault(end)
            && self.failure.is_none()
        {
            self.failure = Some(code);
            self.limit = Some((now + GRACE, Next::Terminate));
            actions.push(Action::Say(format!("rank {number} {words}")));
            let left = self.numbers(|rank| !rank.exited);
            if !left.is_empty() {
                let seconds = GRACE.as_secs();
                actions.push(Action::Say(format!(
                    "{left} {} {seconds} s to report and end",
                    if left.starts_with("ranks") {
                        "have"
                    } else {
                        "has"
                    },
                )));
            }
        }
        if self.all_exited() {
            self.limit = Some(if self.killed {
                (now + LAST_WORDS, Next::Leave)
            } else {
                (now + FAREWELL, Next::Kill)
            });
        }
        actions
    }

    /// As a pipe without a reader ends a single program, it ends the job.
    fn unheard(&mut self, error: &io::Error, now: Instant) -> Vec<Action> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.failure = Some(NOBODY_READS);
        } else {
            self.failure = Some(1);
            actions.push(Action::Say(format!(
                "output cannot be passed on: {error}; the job is ended"
            )));
        }
        if !self.all_exited() {
            self.limit = Some((now + FAREWELL, Next::Kill));
            actions.push(Action::Send(Signal::TERM));
        }
        actions
    }

    fn last_words(&self) -> Vec<Action> {
        let running = self.numbers(|rank| !rank.exited);
        let open = self.numbers(|rank| rank.exited && !rank.drained);
        let mut actions = Vec::new();
        if !running.is_empty() {
            actions.push(Action::Say(format!(
                "{running}: still there {} s after SIGKILL, perhaps stuck in a system call; left behind",
                (2 * FAREWELL).as_secs()
            )));
        }
        if !open.is_empty() {
            actions.push(Action::Say(format!(
                "{open}: a process that it has left behind still holds its output; no longer passed on"
            )));
        }
        actions
    }

    /// The ranks that are like this, for people; empty if there are none.
    fn numbers(&self, like: impl Fn(&Rank) -> bool) -> String {
        const SHOWN: usize = 16;
        let all: Vec<String> = (0..)
            .zip(&self.ranks)
            .filter(|(_, rank)| like(rank))
            .map(|(number, _): (u32, _)| number.to_string())
            .collect();
        match &all[..] {
            [] => String::new(),
            [one] => format!("rank {one}"),
            some if some.len() <= SHOWN => format!("ranks {}", some.join(", ")),
            many => format!(
                "ranks {} and {} more",
                many[..SHOWN].join(", "),
                many.len() - SHOWN
            ),
        }
    }
}

/// Exit code and words of a rank that failed; `None` if it did not.
fn fault(end: &End) -> Option<(u8, String)> {
    match end {
        End::Code(0) => None,
        End::Code(code) => Some((
            u8::try_from(*code).unwrap_or(1).max(1),
            format!("ended with exit code {code}"),
        )),
        End::Signal(signal) => Some((
            u8::try_from(128 + signal).unwrap_or(1),
            format!("was ended by signal {signal}{}", name_of(*signal)),
        )),
        End::Unknown(why) => Some((1, format!("has ended, nobody knows how: {why}"))),
    }
}

fn name_of(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return String::new(),
    };
    format!(" ({name})")
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGUSR1;

    use super::*;

    const TERM: Action = Action::Send(Signal::TERM);
    const KILL: Action = Action::Send(Signal::KILL);

    fn say(words: &str) -> Action {
        Action::Say(words.to_owned())
    }

    fn ok(rank: u32) -> Event {
        Event::Exited(rank, End::Code(0))
    }

    /// Goes on to the limit, and over it.
    fn time_is_up(course: &mut Course, now: &mut Instant) -> (Duration, Vec<Action>) {
        let limit = course.limit().unwrap();
        let spent = limit.duration_since(*now);
        *now = limit;
        (spent, course.at_limit(limit))
    }

    #[test]
    fn a_job_is_over_when_all_have_ended_and_said_everything() {
        let (mut course, now) = (Course::new(2), Instant::now());
        for event in [ok(0), Event::Drained(0), Event::Drained(1)] {
            assert!(course.on(event, now).is_empty());
            assert!(!course.is_over());
        }
        assert_eq!(course.limit(), None, "no hurry while all goes well");
        assert!(course.on(ok(1), now).is_empty());
        assert!(course.is_over());
        assert_eq!(course.code(), 0);
    }

    #[test]
    fn grace_starts_at_the_exit_though_output_is_still_held() {
        let (mut course, mut now) = (Course::new(3), Instant::now());
        let actions = course.on(Event::Exited(1, End::Code(3)), now);
        assert_eq!(
            actions,
            [
                say("rank 1 ended with exit code 3"),
                say("ranks 0, 2 have 5 s to report and end")
            ]
        );
        assert_eq!(time_is_up(&mut course, &mut now), (GRACE, vec![TERM]));
        assert_eq!(time_is_up(&mut course, &mut now), (FAREWELL, vec![KILL]));
        for rank in [0, 2] {
            let killed = Event::Exited(rank, End::Signal(9));
            assert!(course.on(killed, now).is_empty(), "that was us");
            course.on(Event::Drained(rank), now);
        }
        assert!(!course.is_over());
        let (spent, actions) = time_is_up(&mut course, &mut now);
        assert_eq!(spent, LAST_WORDS);
        assert!(matches!(&actions[..], [Action::Say(words)] if words.starts_with("rank 1: ")));
        assert!(course.is_over());
        assert_eq!(course.code(), 3);
    }

    #[test]
    fn what_a_rank_leaves_behind_is_killed_and_then_no_longer_waited_for() {
        let (mut course, mut now) = (Course::new(1), Instant::now());
        assert!(course.on(ok(0), now).is_empty());
        assert_eq!(time_is_up(&mut course, &mut now), (FAREWELL, vec![KILL]));
        assert_eq!(time_is_up(&mut course, &mut now).0, LAST_WORDS);
        assert!(course.is_over());
        assert_eq!(course.code(), 0, "the rank itself has ended well");
    }

    #[test]
    fn a_rank_that_even_sigkill_does_not_end_is_left() {
        let (mut course, mut now) = (Course::new(2), Instant::now());
        assert_eq!(
            course.on(Event::Signal(SIGTERM), now),
            [TERM],
            "passed on at once"
        );
        assert_eq!(time_is_up(&mut course, &mut now), (GRACE, vec![TERM]));
        assert_eq!(time_is_up(&mut course, &mut now), (FAREWELL, vec![KILL]));
        let (spent, actions) = time_is_up(&mut course, &mut now);
        assert_eq!(spent, 2 * FAREWELL);
        assert!(matches!(&actions[..], [Action::Say(words)] if words.starts_with("ranks 0, 1: ")));
        assert!(course.is_over());
        assert_eq!(course.code(), 143);
    }

    #[test]
    fn asked_a_second_time_it_kills_at_once() {
        for (first, second) in [(SIGINT, SIGINT), (SIGTERM, SIGINT), (SIGINT, SIGTERM)] {
            let (mut course, now) = (Course::new(2), Instant::now());
            course.on(Event::Signal(first), now);
            assert_eq!(
                course.on(Event::Signal(second), now + ONE_WISH),
                [KILL],
                "{first} {second}"
            );
            assert_eq!(i32::from(course.code()), 128 + first);
        }
    }

    #[test]
    fn the_two_signals_of_timeout_are_one_wish() {
        let (mut course, now) = (Course::new(2), Instant::now());
        course.on(Event::Signal(SIGTERM), now);
        let soon = now + ONE_WISH / 2;
        assert_eq!(course.on(Event::Signal(SIGTERM), soon), [TERM]);
        assert_eq!(course.limit(), Some(now + GRACE));
    }

    #[test]
    fn ranks_that_end_because_others_could_not_be_started_are_not_told_of() {
        let (mut course, now) = (Course::new(1), Instant::now());
        assert_eq!(course.give_up(now), [KILL]);
        assert!(course.on(Event::Exited(0, End::Signal(9)), now).is_empty());
        course.on(Event::Drained(0), now);
        assert!(course.is_over());
        // Nor is there anything to wait for if none was started.
        assert!(Course::new(0).is_over());
    }

    #[test]
    fn a_single_rank_has_and_many_are_counted() {
        let (mut course, now) = (Course::new(2), Instant::now());
        let actions = course.on(Event::Exited(0, End::Code(1)), now);
        assert_eq!(actions[1], say("rank 1 has 5 s to report and end"));
        let course = Course::new(20);
        let all = course.numbers(|_| true);
        assert!(all.ends_with(", 15 and 4 more"), "{all}");
    }

    #[test]
    fn a_hangup_may_come_twice() {
        let (mut course, now) = (Course::new(1), Instant::now());
        for wait in [0, 1] {
            let actions = course.on(Event::Signal(SIGHUP), now + Duration::from_secs(wait));
            assert_eq!(actions, [Action::Send(Signal::HUP)]);
        }
    }

    #[test]
    fn asked_while_only_output_is_awaited_it_kills() {
        let (mut course, mut now) = (Course::new(1), Instant::now());
        course.on(ok(0), now);
        assert_eq!(course.on(Event::Signal(SIGINT), now), [KILL]);
        assert_eq!(time_is_up(&mut course, &mut now).0, LAST_WORDS);
        assert!(course.is_over());
        assert_eq!(course.code(), 130);
    }

    #[test]
    fn other_signals_are_passed_on_and_change_nothing() {
        let (mut course, now) = (Course::new(1), Instant::now());
        assert_eq!(
            course.on(Event::Signal(SIGUSR1), now),
            [Action::Send(Signal::USR1)]
        );
        assert_eq!((course.limit(), course.code()), (None, 0));
    }

    #[test]
    fn without_a_reader_the_job_ends_quietly() {
        let (mut course, mut now) = (Course::new(2), Instant::now());
        let broken = || Event::Unheard(io::ErrorKind::BrokenPipe.into());
        assert_eq!(course.on(broken(), now), [TERM]);
        assert!(course.on(broken(), now).is_empty(), "once is enough");
        for rank in [0, 1] {
            let ended = Event::Exited(rank, End::Signal(15));
            assert!(course.on(ended, now).is_empty());
        }
        assert_eq!(time_is_up(&mut course, &mut now).1, [KILL]);
        assert_eq!(course.code(), NOBODY_READS);
        // After the end there is nobody to be ended.
        let (mut course, now) = (Course::new(1), Instant::now());
        course.on(ok(0), now);
        assert!(course.on(broken(), now).is_empty());
        assert_eq!(course.code(), NOBODY_READS);
    }

    #[test]
    fn output_without_room_is_told_and_ends_the_job() {
        let (mut course, now) = (Course::new(1), Instant::now());
        let actions = course.on(Event::Unheard(io::ErrorKind::StorageFull.into()), now);
        assert!(
            matches!(&actions[..], [Action::Say(_), Action::Send(Signal::TERM)]),
            "{actions:?}"
        );
        assert_eq!(course.code(), 1);
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(fault(&End::Code(0)), None);
        assert_eq!(fault(&End::Code(7)).unwrap().0, 7);
        let (code, words) = fault(&End::Signal(11)).unwrap();
        assert_eq!((code, &*words), (139, "was ended by signal 11 (SIGSEGV)"));
        assert_eq!(fault(&End::Unknown("x".to_owned())).unwrap().0, 1);
    }
}
