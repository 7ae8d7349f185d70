//! How long start-up takes, up to the first result:
//! `hcomm run -n 4 -- target/release/examples/first_result`.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hcomm::prelude::*;

fn main() -> hcomm::Result<()> {
    let began = Instant::now();
    let comm = Communicator::from_env()?;
    let joined = began.elapsed();
    comm.all_reduce_in_place(&mut [1f32], ReduceOp::Sum)?;
    let first = began.elapsed();
    // For whoever knows when the processes were started.
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);

    println!(
        "{{\"rank\":{},\"ranks\":{},\"joined_ms\":{:.3},\"first_result_ms\":{:.3},\"unix_seconds\":{:.6}}}",
        comm.rank(),
        comm.size(),
        joined.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3,
        unix.map_or(0.0, |time| time.as_secs_f64()),
    );
    comm.close()
}
