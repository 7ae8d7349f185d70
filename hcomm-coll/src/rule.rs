//! Which algorithm a shape gets when nobody asks for another one.
//!
//! A few numbers, measured where ranks map each other's memory, to be replaced by a cost model: two
//! ranks on two cores of a Zen 5 that share an L3, and four and eight ranks on the same cores.

use hcomm_data::packet_lines;

use crate::algorithms::Params;
use crate::plan::{Operation, Shape};

const KIB: u64 = 1 << 10;

/// Lines of a packet up to which packets beat writes with notifies, where the ranks map each
/// other's memory: measured with two ranks that share an L3. A reduction takes 25 ns a line, so that
/// it loses from five on; what is only copied won with ten, and more was not tried. A barrier, which
/// is all flags, is no faster in packets than with notifies.
const PACKET_LINES: u64 = 10;
const REDUCED_PACKET_LINES: u64 = 4;

/// Up to so many ranks it is tried: who has more gains nothing from a cache line less.
const PACKET_RANKS: u32 = 64;

/// Bytes up to which a broadcast goes by messages where ranks map each other's memory: the root need
/// not wait for the others, so what follows on each other costs a fraction of a hand-over, and a
/// fraction of a change of ranks where they share cores. Above, it is worth more that all read one
/// copy. Measured with 4 and 8 ranks on 2 cores: of 4 KiB 0.5 and 1.0 µs instead of 3.0 and 9.1, of
/// 64 KiB 4.3 and 10.8 instead of 5.5 and 12.6, of 256 KiB 18 and 54 instead of 12 and 28.
const STREAMED_BYTES: u64 = 64 << 10;

/// Bytes to all receivers together up to which one rank's copying holds nobody up.
const STREAMED_BYTES_TO_ALL: u64 = 512 << 10;

/// Name of that way in tables.
pub(crate) const STREAM: &str = "stream";

/// Name of the algorithm that communicators take for a shape when nobody asks for another one, where
/// it does not [go by messages](goes_by_messages).
/// `packets` says whether all ranks map each other's memory, so that they can send packets.
#[must_use]
pub fn algorithm(shape: &Shape, params: &Params, packets: bool) -> &'static str {
    let most = if shape.operation.reduces() {
        REDUCED_PACKET_LINES
    } else {
        PACKET_LINES
    };
    let in_packets =
        packets && shape.ranks <= PACKET_RANKS && packet_lines(shape.count_bytes()) <= most;
    match shape.operation {
        Operation::SendRecv { .. } => "pair",
        Operation::Barrier => "mesh_one_shot",
        // Each pair for itself, as a rank may know no others.
        Operation::AllToAll if !shape.count.is_even() => "pairwise",
        _ if in_packets => "mesh_packet",
        _ => by_size(shape, params),
    }
}

fn by_size(shape: &Shape, params: &Params) -> &'static str {
    let bytes = shape.count_bytes();
    let total = bytes.saturating_mul(shape.ranks.into());
    // One step with more bytes beats two steps with fewer.
    let one_shot = match (shape.operation, shape.ranks) {
        // With 8 ranks: of 8 KiB in all 7.9 µs by two shots and 10 by one.
        (Operation::AllGather, 5..) => 0,
        (Operation::AllGather, _) => 16 * KIB,
        (Operation::AllToAll, 2) => 32 * KIB,
        (Operation::ReduceScatter, 5..) => 32 * KIB,
        // Of 32 KiB, 4 ranks take 8 µs by two shots and 11 by one; 8 ranks 20 and 34.
        (Operation::AllReduce | Operation::Reduce { .. }, _) => 64 * KIB,
        _ => 128 * KIB,
    };
    if total <= one_shot.min(params.scratch() / 2) {
        return "mesh_one_shot";
    }
    // Between two ranks, of 64 KiB 2.47 µs instead of 2.63 by one and 3.28 by two shots; of 1 MiB 38
    // instead of 42.
    match (shape.operation, shape.ranks, bytes / KIB) {
        (Operation::AllReduce, 2, ..768) => "halving_doubling",
        (Operation::AllReduce, 2, ..3072) => "ring_bidirectional",
        _ => "mesh_two_shot",
    }
}

/// Whether a shape goes by messages between ranks that map each other's memory.
#[must_use]
pub fn goes_by_messages(shape: &Shape) -> bool {
    let receivers = u64::from(shape.ranks.saturating_sub(1));
    let bytes = shape.count_bytes();
    // One receiver copies as much either way.
    let fits = receivers == 1
        || bytes <= STREAMED_BYTES && bytes.saturating_mul(receivers) <= STREAMED_BYTES_TO_ALL;
    // Whether it is in place is the business of each rank.
    matches!(shape.operation, Operation::Broadcast { .. })
        && shape.ranks > 1
        && !shape.is_nothing()
        && fits
}
