//! `hcomm plan show`: the plan of all ranks.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use hcomm_coll::SLICE_BYTES;
use hcomm_coll::algorithms::{self, Params};
use hcomm_coll::plan::{Plan, Shape};
use hcomm_types::{Error, ErrorKind, Result};

use super::{PlanOp, ShapeArgs, SiteArgs};
use crate::output;
use crate::sizes::parse_bytes;

/// Shows what each rank does for an operation, task by task, or writes it as a plan file.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The operation
    #[arg(value_enum)]
    op: PlanOp,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// Algorithm [default: the choice of the cost model]
    #[arg(long)]
    algo: Option<String>,
    /// Bytes under way at once on a rank [default: 512K for an algorithm, else the model's choice]
    #[arg(long, value_parser = parse_bytes)]
    slice: Option<u64>,
    /// Threads that a large operation flows over [default: 1 for an algorithm, else the model's choice]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4))]
    flows: Option<u32>,
    /// Write the plan as JSON to this file; `-` prints it
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn show(args: &ShowArgs) -> Result<u8> {
    let shape = args.shape.shape(args.op)?;
    let plan = made(args, &shape)?;
    match &args.json {
        Some(path) if path.as_os_str() == "-" => output::print(&plan.to_json()?).map(|_| 0),
        Some(path) => fs::write(path, plan.to_json()? + "\n")
            .map(|()| 0)
            .map_err(|error| Error::system(format!("writing {}", path.display()), error)),
        None => output::print(text(&plan).trim_end()).map(|_| 0),
    }
}

fn made(args: &ShowArgs, shape: &Shape) -> Result<Plan> {
    /// Pieces that would take gigabytes to write down.
    const MOST: u64 = 2_000_000;
    let wrong = |what: String| Error::new(ErrorKind::InvalidArgument, what);
    let terms = args.shape.terms(args.op)?;
    let chooser = args.site.chooser()?;
    let (name, slice_bytes, flows) = match &args.algo {
        Some(name) => (name.as_str(), SLICE_BYTES, 1),
        None => chooser.plan_for(shape, &terms).map_or_else(
            || Err(wrong(format!("no algorithm can plan {shape}"))),
            |means| Ok((means.name, means.slice_bytes, means.flows)),
        )?,
    };
    let params = &Params {
        scratch_bytes: terms.scratch_bytes,
        slice_bytes: args.slice.unwrap_or(slice_bytes),
        groups: chooser.site().hosts.clone(),
        flows: args.flows.unwrap_or(flows),
    };
    let algorithm = algorithms::by_name(name).ok_or_else(|| {
        wrong(format!("no algorithm `{name}`")).hint("`hcomm plan list` names them all")
    })?;
    if !algorithm.supports(shape) {
        let op = shape.operation.name();
        return Err(wrong(format!("algorithm `{name}` cannot plan {shape}"))
            .hint(format!("`hcomm plan list {op}` says which can")));
    }
    let piece = params.slice_bytes.min(params.scratch_bytes).max(64);
    let pairs = u64::from(shape.ranks).pow(2);
    let pieces = (shape.count_bytes() / piece + 1).saturating_mul(pairs);
    if pieces > MOST {
        return Err(wrong(format!(
            "{shape} in pieces of {piece} bytes: a plan of up to {pieces} steps is too long to show"
        ))
        .hint("ask for fewer ranks or bytes, or a larger --slice and --scratch"));
    }
    algorithm
        .plan(shape, params)
        .map_err(|error| wrong(error.to_string()))
}

fn text(plan: &Plan) -> String {
    let mut text = format!("{}, by {}\n", plan.shape, plan.algorithm);
    for credit in &plan.initial_credits {
        text += &format!(
            "notify {} from rank {} to rank {} begins at {}\n",
            credit.notify, credit.recorder, credit.waiter, credit.count
        );
    }
    for (rank, own) in plan.ranks.iter().enumerate() {
        text += &format!(
            "rank {rank}: {} bytes of scratch memory\n",
            own.scratch_bytes
        );
        for (thread, tasks) in own.threads.iter().enumerate() {
            text += &format!("  thread {thread}\n");
            for (number, task) in tasks.iter().enumerate() {
                text += &format!("    {number:>4}  {task}\n");
            }
        }
    }
    text
}
