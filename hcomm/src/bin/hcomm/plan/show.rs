//! `hcomm plan show`: the plan of all ranks.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use hcomm_coll::algorithms::{self, Params};
use hcomm_coll::plan::{Plan, Shape};
use hcomm_coll::rule;
use hcomm_types::{Error, ErrorKind, Result};

use super::{PlanOp, ShapeArgs};
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
    /// Algorithm [default: the rule's choice where ranks map each other's memory]
    #[arg(long)]
    algo: Option<String>,
    /// Bytes under way at once on a rank
    #[arg(long, default_value = "512K", value_parser = parse_bytes)]
    slice: u64,
    /// The group of each rank, as 0,0,1,1 [default: all in one]
    #[arg(long, value_delimiter = ',')]
    groups: Vec<u32>,
    /// Write the plan as JSON to this file; `-` prints it
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn show(args: &ShowArgs) -> Result<u8> {
    let shape = args.shape.shape(args.op)?;
    let params = args.shape.params(args.op, Some(args.slice), &args.groups)?;
    let plan = made(args, &shape, &params)?;
    match &args.json {
        Some(path) if path.as_os_str() == "-" => output::print(&plan.to_json()?).map(|_| 0),
        Some(path) => fs::write(path, plan.to_json()? + "\n")
            .map(|()| 0)
            .map_err(|error| Error::system(format!("writing {}", path.display()), error)),
        None => output::print(text(&plan).trim_end()).map(|_| 0),
    }
}

fn made(args: &ShowArgs, shape: &Shape, params: &Params) -> Result<Plan> {
    /// Pieces that would take gigabytes to write down.
    const MOST: u64 = 2_000_000;
    let wrong = |what: String| Error::new(ErrorKind::InvalidArgument, what);
    let name = args
        .algo
        .as_deref()
        .unwrap_or_else(|| rule(shape, params, true));
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
