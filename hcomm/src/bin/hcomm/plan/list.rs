//! `hcomm plan list`: the algorithms.

use clap::{Args, ValueEnum};
use hcomm_coll::algorithms::algorithms;
use hcomm_coll::plan::Shape;
use hcomm_coll::{goes_by_messages, rule};
use hcomm_types::Result;

use super::{PlanOp, ShapeArgs};
use crate::output;

/// Lists the algorithms: name, operations, and what each is for. With an operation it says which
/// can plan it and which one communicators take.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// An operation to be planned
    #[arg(value_enum)]
    op: Option<PlanOp>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Whether all ranks map each other's memory, so that they can send packets: 1 or 0
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    packets: u8,
}

pub(crate) fn list(args: &ListArgs) -> Result<u8> {
    let text = match args.op {
        None => all(&args.shape)?,
        Some(op) => of(args, op)?,
    };
    output::print(text.trim_end()).map(|_| 0)
}

/// A paragraph each.
fn all(args: &ShapeArgs) -> Result<String> {
    let mut text = String::new();
    // Of a shape that everybody can plan who can plan the operation at all.
    let small = ShapeArgs {
        ranks: 2,
        bytes: 8,
        root: 0,
        ..*args
    };
    let shapes = PlanOp::value_variants()
        .iter()
        .map(|op| small.shape(*op))
        .collect::<Result<Vec<Shape>>>()?;
    for algorithm in algorithms() {
        let names: Vec<&str> = shapes
            .iter()
            .filter(|shape| algorithm.supports(shape))
            .map(|shape| shape.operation.name())
            .collect();
        let (name, summary) = (algorithm.name(), algorithm.summary());
        text += &format!("{name}\n    {summary}\n    {}\n", names.join(", "));
    }
    Ok(text)
}

/// A line each.
fn of(args: &ListArgs, op: PlanOp) -> Result<String> {
    let shape = args.shape.shape(op)?;
    let params = args.shape.params(op, None, &[])?;
    let packets = args.packets == 1;
    let taken = rule(&shape, &params, packets);
    let mut text = format!("{shape}; the rule takes {taken}\n");
    if packets && goes_by_messages(&shape) {
        text += "by plan; communicators send it by messages, which takes none\n";
    }
    for algorithm in algorithms() {
        let can = if !algorithm.supports(&shape) {
            "no"
        } else if algorithm.has_packets() && !packets {
            "no packets"
        } else if algorithm.name() == taken {
            "taken"
        } else {
            "yes"
        };
        text += &format!(
            "{can:<10}  {:<18}  {}\n",
            algorithm.name(),
            algorithm.summary()
        );
    }
    Ok(text)
}
