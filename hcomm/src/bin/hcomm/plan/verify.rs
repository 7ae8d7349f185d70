//! `hcomm plan verify`: whether the plan in a file is right.

use std::path::PathBuf;

use clap::Args;
use hcomm_coll::plan::Plan;
use hcomm_coll::verify::{Finding, Proof, verify_all};
use hcomm_types::{Error, ErrorKind};
use serde_json::{Value, json};

use super::read::{name, read};
use crate::output;

/// Proves that the plan in a file computes what its shape asks for, in every interleaving, or says
/// everything that is wrong with it. The exit code is 0 if it is right, 1 if it is wrong, and 2 if
/// the file is no plan.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The plan file; `-` is stdin
    file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn verify(args: &VerifyArgs) -> hcomm_types::Result<u8> {
    let plan = match read(&args.file) {
        Ok(plan) => plan,
        Err(error) => {
            if args.json {
                print(&json!({ "right": null, "error": error.to_string() }))?;
            }
            return Err(error);
        }
    };
    let result = verify_all(&plan);
    if args.json {
        print(&as_json(&plan, &result)?)?;
    } else {
        let file = name(&args.file);
        let head = format!("{file}: {}, by {}", plan.shape, plan.algorithm);
        let text = match &result {
            Ok(proof) => format!("{head}: right\n{}", right(&plan, proof)),
            Err(findings) => format!("{head}: wrong\n{}", wrong(findings)),
        };
        let _ = output::print(text.trim_end())?;
    }
    Ok(u8::from(result.is_err()))
}

fn print(value: &Value) -> hcomm_types::Result<()> {
    output::print(&value.to_string()).map(|_| ())
}

fn as_json(plan: &Plan, result: &Result<Proof, Vec<Finding>>) -> hcomm_types::Result<Value> {
    let written =
        |error: serde_json::Error| Error::new(ErrorKind::Internal, format!("as JSON: {error}"));
    let mut value = json!({
        "right": result.is_ok(),
        "algorithm": plan.algorithm,
        "shape": serde_json::to_value(&plan.shape).map_err(written)?,
    });
    match result {
        Ok(proof) => value["proof"] = serde_json::to_value(proof).map_err(written)?,
        Err(findings) => {
            let one = |finding: &Finding| {
                json!({
                    "rank": finding.rank.map(|rank| rank.0),
                    "thread": finding.thread,
                    "task": finding.task,
                    "words": finding.words,
                    "fault": finding.fault.to_string(),
                })
            };
            value["findings"] = findings.iter().map(one).collect();
        }
    }
    Ok(value)
}

fn right(plan: &Plan, proof: &Proof) -> String {
    let yes = |is: bool| if is { "yes" } else { "no" };
    let mut lines = vec![
        format!("  synchronising: {}", yes(proof.synchronising)),
        format!("  quiescent: {}", yes(proof.quiescent)),
        format!("  same bits on all ranks: {}", yes(proof.same_bits)),
        format!("  combines in rank order: {}", yes(proof.rank_order)),
        format!(
            "  notifies: {} a channel, none above {} at any time",
            proof.notifies, proof.notify_capacity
        ),
        format!("  packets: {}", yes(plan.has_packets())),
        format!(
            "  touches input or output of other ranks: {}",
            yes(proof.touches_remote_user_buffers)
        ),
    ];
    for channel in &proof.channels {
        lines.push(format!(
            "  rank {} to rank {}: {} bytes written, {} bytes read, {} notifies, {} records",
            channel.from,
            channel.to,
            channel.bytes_written,
            channel.bytes_read,
            channel.notifies,
            channel.records
        ));
    }
    for (rank, own) in proof.ranks.iter().enumerate() {
        lines.push(format!(
            "  rank {rank}: {} tasks in {} threads, {} bytes of scratch memory, {} bytes moved in its \
             own memory",
            own.tasks, own.threads, own.scratch_bytes, own.local_bytes
        ));
    }
    lines.join("\n")
}

fn wrong(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings
        .iter()
        .map(|finding| format!("  {finding}"))
        .collect();
    lines.join("\n")
}
