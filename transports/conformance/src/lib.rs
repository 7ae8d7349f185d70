//! The suite that every transport must pass.
//!
//! A transport's own tests are a file `tests/conformance.rs` with one call of
//! [`conformance_tests!`]; it makes a test for each group and each door. A vendor runs the same on
//! a binary: `cargo test -p hcomm-transport-conformance -- --plugin /path/libhcomm_transport_x.so`.
//!
//! Each check runs in a process of its own, which may start another one for the far end of a
//! channel, so that a crash or a hang is the failure of one check. Checks adapt to what a device
//! promises; what is skipped is counted, with the missing capability.

mod case;
mod content;
mod groups;
mod kernel;
mod line;
mod logs;
mod memory;
mod pair;
mod raw;
mod report;
mod resources;
mod runner;
mod side;
mod subject;
mod verdict;

use std::fmt;
use std::str::FromStr;

pub use report::{Entry, Report};
pub use runner::{run, run_some};
pub use subject::Subject;
pub use verdict::Verdict;

/// Part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Headers, strings, lists, attributes.
    Shape,
    /// Every capability works, every missing one is refused, limits hold on both sides.
    Honesty,
    /// Bytes and notifies arrive where and in the order they should.
    Data,
    /// Full queues: nothing is lost.
    Pressure,
    /// Ends in any order; nothing is left behind.
    Lifetime,
    /// The peer goes away.
    Death,
    /// Calls from several threads, as far as the ABI allows them.
    Threads,
    /// Blobs that nobody made.
    Garbage,
}

impl Group {
    /// All groups, in the order in which they are best read.
    pub const ALL: [Self; 8] = [
        Self::Shape,
        Self::Honesty,
        Self::Data,
        Self::Pressure,
        Self::Lifetime,
        Self::Death,
        Self::Threads,
        Self::Garbage,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shape => "shape",
            Self::Honesty => "honesty",
            Self::Data => "data",
            Self::Pressure => "pressure",
            Self::Lifetime => "lifetime",
            Self::Death => "death",
            Self::Threads => "threads",
            Self::Garbage => "garbage",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|group| group.name() == text)
            .ok_or_else(|| {
                let known: Vec<&str> = Self::ALL.iter().map(|group| group.name()).collect();
                format!("unknown group `{text}`; known: {}", known.join(", "))
            })
    }
}

/// Makes the conformance tests of a transport: one for each group, on the linked table and on the
/// library that cargo has built beside the test program.
///
/// ```ignore
/// hcomm_transport_conformance::conformance_tests! {
///     linked: hcomm_transport_shm::transport_v1(),
///     shared_object: "shm",
/// }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    (linked: $table:expr, shared_object: $name:literal $(,)?) => {
        mod linked {
            fn subject(test: &str) -> $crate::Subject {
                $crate::Subject::linked($table, test)
            }
            $crate::group_tests! {}
        }

        mod built_so {
            fn subject(test: &str) -> $crate::Subject {
                $crate::Subject::built($name, test)
            }
            $crate::group_tests! {}
        }
    };
}

/// One test for each group, on the `subject` of the module it stands in.
#[doc(hidden)]
#[macro_export]
macro_rules! group_tests {
    () => {
        $crate::group_tests! {
            shape Shape, honesty Honesty, data Data, pressure Pressure,
            lifetime Lifetime, death Death, threads Threads, garbage Garbage
        }
    };
    ($($test:ident $group:ident),*) => {$(
        #[test]
        fn $test() {
            let subject = subject(concat!(module_path!(), "::", stringify!($test)));
            $crate::run(&subject, &[$crate::Group::$group]).expect_success();
        }
    )*};
}
