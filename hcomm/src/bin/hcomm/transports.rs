//! `hcomm transports`: every plugin that was looked at, and what became of it.

use std::fmt::Write as _;

use clap::Args;
use hcomm::{Options, Outcome, Source};
use hcomm_transport::{Capabilities, DeviceInfo};
use hcomm_types::Result;

use crate::{output, pair};

/// Shows each transport plugin: used, or refused because of what; and the devices, capabilities and
/// limits of those in use.
#[derive(Debug, Args)]
pub(crate) struct TransportsArgs {
    /// Names only: leave out devices, capabilities and limits
    #[arg(short, long)]
    short: bool,
}

/// Prints the report. The exit code is 1 if no transport can be used.
///
/// # Errors
/// If a transport that was asked for by name cannot be used.
pub(crate) fn transports(args: &TransportsArgs) -> Result<u8> {
    let transports = hcomm::load_transports(&Options::from_env()?)?;
    let mut report = String::new();
    let mut used = 0;
    for candidate in transports.candidates() {
        let source = match &candidate.source {
            Source::Linked => "linked in".to_owned(),
            Source::SharedObject(path) => path.display().to_string(),
        };
        let note = candidate
            .note
            .as_ref()
            .map_or_else(String::new, |note| format!("; {note}"));
        // Writing to a string cannot fail.
        let _ = match &candidate.outcome {
            Outcome::Used(plugin) => {
                used += 1;
                let (version, vendor) = (plugin.version(), plugin.vendor());
                writeln!(
                    report,
                    "{}: used, version {version} by {vendor}{note} [{source}]",
                    candidate.name
                )
            }
            Outcome::Refused(why) => {
                writeln!(
                    report,
                    "{}: not used: {why}{note} [{source}]",
                    candidate.name
                )
            }
        };
        if let (Outcome::Used(plugin), false) = (&candidate.outcome, args.short) {
            for device in plugin.devices()? {
                let capabilities: Vec<String> = device
                    .capabilities
                    .iter_names()
                    .map(|(name, _)| name.to_lowercase())
                    .collect();
                let _ = writeln!(
                    report,
                    "    {}: {} at {}, {} ns, {:.1} GB/s{}\n        can: {}\n        limits: {}, {}, {}, {}, {}",
                    device.name,
                    device.protocol,
                    device.address,
                    device.latency_ns,
                    device.bytes_per_s as f64 / 1e9,
                    device
                        .numa_node
                        .map_or(String::new(), |node| format!(", NUMA node {node}")),
                    capabilities.join(" "),
                    limit(device.max_transfer_bytes, "bytes a transfer"),
                    limit(device.max_batch.into(), "descriptors a post"),
                    limit(device.max_notifies.into(), "notifies a channel"),
                    limit(
                        device.max_notify_outstanding,
                        "records outstanding on one notify"
                    ),
                    limit(device.max_blob_bytes.into(), "bytes a blob"),
                );
                if let Some(how) = tried(&candidate.name, &device) {
                    let _ = writeln!(report, "        two processes here: {how}");
                }
            }
        }
    }
    if !args.short {
        let _ = writeln!(
            report,
            "reductions on this host use: {}",
            hcomm_data::vector_level()
        );
    }
    let _ = output::print(report.trim_end())?;
    Ok(u8::from(used == 0))
}

/// How two processes of this host move bytes over a device, found out by connecting two; `None` if
/// it goes to no other process, or its transport has nothing to tell.
pub(crate) fn tried(transport: &str, device: &DeviceInfo) -> Option<String> {
    if !device.capabilities.contains(Capabilities::CROSS_PROCESS) {
        return None;
    }
    match pair::describe(transport, &device.name) {
        Ok(words) => (!words.is_empty()).then_some(words),
        Err(error) => Some(error.to_string()),
    }
}

/// A limit in words. Transports without one give the largest number of a type.
fn limit(number: u64, of: &str) -> String {
    const UNREACHABLE: u64 = i64::MAX as u64;
    match number {
        UNREACHABLE.. => format!("no limit of {of}"),
        number => format!("{number} {of}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_nobody_reaches_is_no_limit() {
        assert_eq!(limit(64, "descriptors a post"), "64 descriptors a post");
        for number in [u64::MAX, i64::MAX as u64] {
            assert_eq!(limit(number, "bytes a blob"), "no limit of bytes a blob");
        }
    }
}
