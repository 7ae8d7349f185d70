//! What the model says beside what is measured, with numbers of the same run.

use hcomm::Communicator;
use hcomm_coll::cost::Machine;
use hcomm_coll::plan::{Operation, Shape};
use hcomm_types::{DataType, Rank, ReduceOp, Result};

use super::stopwatch::Stopwatch;
use crate::output;

/// Sizes of the larger buffer, in bytes. The largest come first, as calibration ends with them: how
/// fast the memory behind the caches is depends on what else runs on the host.
const SIZES: [u64; 14] = [
    64 << 20,
    32 << 20,
    16 << 20,
    8 << 20,
    4 << 20,
    2 << 20,
    1 << 20,
    512 << 10,
    256 << 10,
    128 << 10,
    64 << 10,
    32 << 10,
    16 << 10,
    8 << 10,
];

/// Runs collectives as these numbers choose them, and prints what was predicted beside it.
///
/// # Errors
/// If one does not run.
pub(super) fn check(comm: &Communicator, machine: &Machine) -> Result<()> {
    comm.use_costs(machine);
    let leads = comm.rank() == Rank(0);
    let say = |text: &str| {
        if leads {
            output::complain(text);
        }
    };
    say(&format!(
        "# {:<14} {:>10} {:<18} {:>13} {:>12} {:>8}",
        "operation", "bytes", "algorithm", "predicted µs", "measured µs", "error"
    ));
    let mut watch = Stopwatch::new(comm);
    let (mut worst, mut within, mut points) = (0.0_f64, 0, 0);
    let root = Rank(0);
    for bytes in SIZES {
        for operation in [
            Operation::AllReduce,
            Operation::AllGather,
            Operation::ReduceScatter,
            Operation::Broadcast { root },
            Operation::AllToAll,
        ] {
            let parts = operation.parts(comm.size());
            let shape = Shape {
                operation,
                ranks: comm.size(),
                count: (bytes / 4 / parts).into(),
                dtype: DataType::F32,
                redop: ReduceOp::Sum.into(),
                in_place: matches!(operation, Operation::Broadcast { .. }),
            };
            let algorithm = comm.algorithm(&shape)?;
            let predicted = comm.predicted_ns(&shape)?;
            let measured = watch.shape(&shape)?;
            let Some(predicted) = predicted else {
                say(&format!(
                    "# {operation} of {bytes} bytes cannot be predicted"
                ));
                continue;
            };
            let error = (predicted / measured - 1.0) * 100.0;
            say(&format!(
                "  {:<14} {:>10} {:<18} {:>13.2} {:>12.2} {:>7.0}%",
                operation.name(),
                bytes,
                algorithm,
                predicted / 1000.0,
                measured / 1000.0,
                error
            ));
            worst = worst.max(error.abs());
            points += 1;
            within += u32::from(error.abs() <= 25.0);
        }
    }
    say(&format!(
        "# {within} of {points} within 25 %, the worst {worst:.0} %"
    ));
    Ok(())
}
