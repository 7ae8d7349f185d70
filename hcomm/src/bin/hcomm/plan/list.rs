//! `hcomm plan list`: the algorithms.

use clap::{Args, ValueEnum};
use hcomm_coll::algorithms::algorithms;
use hcomm_coll::cost::STREAM;
use hcomm_coll::plan::Shape;
use hcomm_types::Result;

use super::{PlanOp, ShapeArgs, SiteArgs};
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
    #[command(flatten)]
    site: SiteArgs,
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
    let chooser = args.site.chooser()?;
    let packets = chooser.site().maps_all();
    let terms = args.shape.terms(op)?;
    let taken = chooser
        .choose(&shape, &terms)
        .map_or("none", |means| means.name);
    let mut text = format!("{shape}; the cost model takes {taken}\n");
    if taken == STREAM {
        text += "it goes by messages, which takes no plan\n";
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
