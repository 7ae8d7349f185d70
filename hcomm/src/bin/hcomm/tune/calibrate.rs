//! From times of plans to the numbers of the model.

use std::time::{SystemTime, UNIX_EPOCH};

use hcomm::Communicator;
use hcomm_coll::cost::{Machine, Site, predict};
use hcomm_coll::plan::Plan;
use hcomm_types::{DataType, Error, ErrorKind, Result};

use super::probe;
use super::stopwatch::Stopwatch;

/// Distances that are measured, in bytes.
const DISTANCES: [u64; 11] = [
    12 << 10,
    96 << 10,
    384 << 10,
    768 << 10,
    1536 << 10,
    3 << 20,
    6 << 20,
    12 << 20,
    24 << 20,
    48 << 20,
    96 << 20,
];

/// Everything but changes of ranks.
///
/// # Errors
/// If a plan does not run.
pub(super) fn all(comm: &Communicator, mut machine: Machine) -> Result<Machine> {
    let ranks = comm.size();
    let mut watch = Stopwatch::new(comm);
    // Notifies and tasks.
    let call = watch.plan(&probe::meetings(ranks, 0)?)?;
    let met = watch.plan(&probe::meetings(ranks, 64)?)?;
    let meeting = (met - call) / 64.0;
    let task = per_time(&mut watch, 512, |times| probe::small_copies(ranks, times))?.max(1.0);
    machine.task_ns = nanoseconds(task);
    machine.signals.alpha_ns = nanoseconds(meeting - 2.0 * task);
    machine.signals.late_ns = nanoseconds((meeting - 2.0 * task) / 2.0);
    let meets = f64::from(ranks - 1);
    machine.call_ns = nanoseconds(call - meeting - 2.0 * task * (meets - 1.0));
    // Packets: those of one line, and what each further one adds on both sides.
    let one_line = watch.plan(&probe::packets(ranks, 8)?)?;
    let lines = watch.plan(&probe::packets(ranks, 8 * 56)?)?;
    let known = f64::from(machine.call_ns) + task * (2.0 * meets + 1.0);
    machine.signals.packet_ns = nanoseconds(one_line - known);
    machine.signals.line_ns = nanoseconds((lines - one_line) / meets / 14.0);
    memory(comm, &mut watch, &mut machine, meeting, task)?;
    Ok(machine)
}

/// Costs a byte.
fn memory(
    comm: &Communicator,
    watch: &mut Stopwatch<'_>,
    machine: &mut Machine,
    meeting: f64,
    task: f64,
) -> Result<()> {
    let ranks = comm.size();
    let memory = &mut machine.memory;
    memory.distances = DISTANCES.to_vec();
    // What a copy costs a byte, and a combination.
    let (mut copies, mut combinations) = (Vec::new(), Vec::new());
    let (mut rounds, mut slower, mut written) = (Vec::new(), Vec::new(), Vec::new());
    // The first byte of what another core wrote.
    let line = per_time(watch, 32, |times| probe::exchanges(ranks, 64, times))?;
    let first = (line - 2.0 * meeting - 2.0 * task).max(0.0);
    machine.signals.fetch_ns = nanoseconds(first);
    for distance in DISTANCES {
        let times = repeats(distance);
        let bytes = distance / 2;
        let copy = per_time(watch, times, |times| probe::copies(ranks, bytes, times))?;
        copies.push((copy - task).max(0.0) * 1000.0 / bytes as f64);
        let count = distance / 3 / 4;
        let combination = per_time(watch, times, |times| {
            probe::combinations(ranks, count, DataType::F32, times)
        })?;
        combinations.push((combination - task).max(0.0) * 1000.0 / (4 * count) as f64);
        // Input, output, and what both ranks offer.
        let bytes = distance / 4 / 64 * 64;
        let a_byte = |time: f64| time.max(0.0) * 1000.0 / bytes as f64;
        let round = per_time(watch, times, |times| probe::exchanges(ranks, bytes, times))?;
        rounds.push(a_byte(round - 2.0 * meeting - 2.0 * task - first));
        let piece = per_time(watch, 2 * times, |times| probe::pieces(ranks, bytes, times))?;
        slower.push(a_byte(piece - 2.0 * task));
        let round = per_time(watch, times, |times| probe::puts(ranks, bytes, times))?;
        written.push(a_byte(round - meeting - task - first));
    }
    rise(&mut copies);
    rise(&mut combinations);
    // A combination loads twice. Noise must not make either side free.
    let mut read: Vec<f64> = copies
        .iter()
        .zip(&combinations)
        .map(|(copy, both)| (both - copy).clamp(copy / 3.0, copy * 2.0 / 3.0))
        .collect();
    rise(&mut read);
    let mut write: Vec<f64> = copies
        .iter()
        .zip(&read)
        .map(|(copy, read)| (copy - read).max(copy / 3.0))
        .collect();
    rise(&mut write);
    let (mut fetch, mut offer, mut put) = (Vec::new(), Vec::new(), Vec::new());
    machine.memory.read_ps = read.iter().map(|cost| picoseconds(*cost)).collect();
    machine.memory.write_ps = write.iter().map(|cost| picoseconds(*cost)).collect();
    for at in 0..DISTANCES.len() {
        let shared = (rounds[at] - read[at] - write[at]).max(0.0);
        // The slower of both sides is taken to be the one that fetches.
        let fetched = (slower[at] - write[at]).clamp(shared / 2.0, shared * 0.8);
        fetch.push(fetched);
        offer.push(shared - fetched);
        put.push((written[at] - read[at] - write[at] - fetched).max(write[at] / 2.0));
    }
    machine.memory.fetch_ps = fetch.iter().map(|cost| picoseconds(*cost)).collect();
    machine.memory.offer_ps = offer.iter().map(|cost| picoseconds(*cost)).collect();
    machine.memory.put_ps = put.iter().map(|cost| picoseconds(*cost)).collect();
    // Where nobody lends, the numbers that are built in stay: they are not used.
    if comm.costs().2.lends {
        let line = per_time(watch, 32, |times| probe::loans(ranks, 64, times))?;
        let first = (line - 2.0 * meeting - task).max(0.0);
        machine.signals.lent_ns = nanoseconds(first);
        let mut lent = Vec::new();
        for (at, distance) in DISTANCES.into_iter().enumerate() {
            // Input, output for both, and the peer's input.
            let bytes = distance / 4 / 64 * 64;
            let times = repeats(distance);
            let round = per_time(watch, times, |times| probe::loans(ranks, bytes, times))?;
            let cost = (round - 2.0 * meeting - task - first) * 1000.0 / bytes as f64;
            lent.push((cost - write[at]).max(write[at] / 2.0));
        }
        machine.memory.lent_ps = lent.iter().map(|cost| picoseconds(*cost)).collect();
    }
    // Arithmetic: what a combination takes longer than its loads and stores.
    for dtype in DataType::ALL {
        let bytes = DISTANCES[1] / 3 / 64 * 64;
        let count = bytes / dtype.size() as u64;
        let time = per_time(watch, repeats(DISTANCES[1]), |times| {
            probe::combinations(ranks, count, dtype, times)
        })?;
        let cost = (time - task) * 1000.0 / bytes as f64 - 2.0 * read[1] - write[1];
        machine
            .combine_ps
            .insert(dtype.name().to_owned(), picoseconds(cost));
    }
    Ok(())
}

/// Changes of ranks on a core, for which there must be more ranks than cores: the number with which
/// the model says of a barrier and of an exchange what was measured.
///
/// # Errors
/// If a plan does not run.
pub(super) fn switches(comm: &Communicator, mut machine: Machine) -> Result<Machine> {
    let mut watch = Stopwatch::new(comm);
    let site = comm.costs().1;
    let plans = [
        probe::meetings(comm.size(), 8)?,
        probe::exchanges(comm.size(), 4096, 4)?,
    ];
    let mut found = Vec::new();
    for plan in &plans {
        let measured = watch.plan(plan)?;
        // The more a change costs the longer the plan takes.
        let (mut low, mut high) = (0_u32, 1_000_000);
        while low < high {
            let middle = u32::midpoint(low, high);
            machine.switch_ns = middle;
            if predicted_ns(plan, &machine, &site)? < measured {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        found.push(low);
    }
    machine.switch_ns = u32::midpoint(found[0], found[1]);
    Ok(machine)
}

fn predicted_ns(plan: &Plan, machine: &Machine, site: &Site) -> Result<f64> {
    predict(plan, machine, site)
        .map(|found| found.total_ps as f64 / 1000.0)
        .map_err(|stuck| Error::new(ErrorKind::Internal, stuck.to_string()))
}

/// Nanoseconds that each time adds to a plan.
fn per_time(
    watch: &mut Stopwatch<'_>,
    times: u32,
    plan: impl Fn(u32) -> Result<Plan>,
) -> Result<f64> {
    let added = watch.added(&plan(0)?, &plan(times)?)?;
    Ok(added.max(0.0) / f64::from(times))
}

/// What is further away costs no less: where noise says so, the mean of both is taken.
fn rise(costs: &mut [f64]) {
    // Pools of neighbours, each with its sum and its length.
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for &cost in costs.iter() {
        let mut pool = (cost, 1);
        while let Some(&(sum, length)) = pools.last()
            && sum / length as f64 > pool.0 / pool.1 as f64
        {
            pools.pop();
            pool = (pool.0 + sum, pool.1 + length);
        }
        pools.push(pool);
    }
    let mut costs = costs.iter_mut();
    for (sum, length) in pools {
        for cost in costs.by_ref().take(length) {
            *cost = sum / length as f64;
        }
    }
}

/// How often a plan does something that touches so many bytes.
fn repeats(distance: u64) -> u32 {
    u32::try_from((8 << 20) / distance)
        .unwrap_or(4)
        .clamp(4, 64)
}

fn nanoseconds(value: f64) -> u32 {
    value.round().clamp(0.0, 1e9) as u32
}

fn picoseconds(value: f64) -> u32 {
    value.round().clamp(0.0, 1e6) as u32
}

/// Machine, ranks and date, for people.
///
/// # Errors
/// If the system has no clock of the day.
pub(super) fn when_and_where(comm: &Communicator) -> Result<String> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|error| Error::new(ErrorKind::System, format!("the clock: {error}")))?;
    let (year, month, day) = date(since.as_secs() / 86_400);
    let graph = comm.graph();
    let name = graph
        .rank(comm.rank())
        .map_or("unknown", |facts| &facts.host.name);
    let model = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    Ok(format!(
        "{name}, {model}, {} ranks on {} cores, {year}-{month:02}-{day:02}",
        comm.size(),
        comm.costs().1.cores
    ))
}

/// The day of the Gregorian calendar that is so many days after 1970-01-01.
const fn date(days: u64) -> (u64, u64, u64) {
    // Years from March to February: then the day that some years have is the last one.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_that_fall_are_made_level() {
        let mut costs = [1.0, 4.0, 2.0, 3.0, 9.0, 7.0];
        rise(&mut costs);
        assert_eq!(costs, [1.0, 3.0, 3.0, 3.0, 8.0, 8.0]);
    }

    #[test]
    fn days_become_dates() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_787, (2026, 11, 30)),
        ] {
            assert_eq!(date(days), expected);
        }
    }
}
