//! Two-sided messages between the two ends of a channel whose memory is mapped.
//!
//! # Memory
//!
//! Each side has an inbox that only the other one writes:
//!
//! ```text
//! | credits | refusal, distance | beacon | exchange line | grant, offer | answer | blob
//! | cells, 64 bytes each | data ring |
//! ```
//!
//! **Cells** carry messages in order. A cell begins with its header ([`header`]) and has 56 bytes of
//! payload. The payload is stored first and the header last, so whoever sees the header of this lap
//! sees the payload. A message of some cells lies in the cells alone, and the receiver empties one
//! while the sender fills the next.
//!
//! **The exchange line** serves short messages that alternate: a line that both sides write and
//! look at changes hands once a message, two lines cost half as much again. Each side has a half of it,
//! a header ([`header::Exchanged`]) and 24 bytes, in the inbox of one of the two. A side writes
//! its half when the peer has said, in a message in the other half, that it has taken the one
//! before; otherwise its message goes into a cell. The header says before which cell it comes.
//!
//! **The data ring** carries longer messages, cut into pieces: while the receiver copies one out,
//! the sender copies the next one in. Each piece has a cell.
//!
//! **Grants.** A receiver that waits for a long message in memory that the peer can map lets it
//! write there; what is left of the message then needs no second copy. See [`direct`].
//!
//! **Credits** tell the sender how much of its cells and data was taken. They are stored into the
//! sender's inbox, a quarter of the ring late at most, and looked at only when the ring seems full: so they cost
//! no line of a message's way. Data is given back at the end of each message, so a message that is no longer
//! than the data ring never waits if all messages before it were received.
//!
//! **Distance.** Where the two cores share no cache, lines that lie in the cache of one cost the
//! other several times what lines in memory cost, so pieces are then handed over (`copy`). The
//! receiver measures now and then how long a line takes to come that the sender has just
//! written (the beacon), and tells the sender.
//!
//! # Mismatch
//!
//! The first header of a message has its length and data type. A receive of another length or type
//! takes nothing, is an error, and stores a refusal into the sender's inbox, which the sender finds
//! while it waits or in its next call.
//!
//! # Trust
//!
//! A peer may write anything into this side's inbox at any time. Positions are this side's own, and
//! lengths are checked against what is expected here and against the ring before they are used.
//!
//! # Threads
//!
//! One OS thread at a time sends on a link, and one receives. Messages of one direction are in
//! order; a queue that finds another one in the middle of a message waits for it.

mod direct;
mod exchange;
pub(crate) mod header;
#[allow(unsafe_code)]
mod inbox;
mod link;
pub(crate) mod ring;
#[cfg(test)]
mod tests;

pub use header::Label;
pub use link::MessageLink;
pub(crate) use link::Step;
