//! Adds up a vector over all ranks: `hcomm run -n 4 -- target/release/examples/all_reduce`.

use hcomm::prelude::*;

fn main() -> hcomm::Result<()> {
    // Which rank am I? Told by `hcomm run`, torchrun, mpirun or srun.
    let comm = Communicator::from_env()?;
    let rank = comm.rank().0;

    // A Vec<f32> on every rank, different on each.
    let mine: Vec<f32> = (0..1000).map(|i| (rank * 1000 + i) as f32).collect();
    let mut sum = vec![0.0; mine.len()];

    // Element by element, over all ranks; every rank gets the result.
    comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;

    println!("rank {rank} of {}: sum[1] = {}", comm.size(), sum[1]);
    comm.close()
}
