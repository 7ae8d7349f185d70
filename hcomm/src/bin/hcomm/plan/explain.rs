//! `hcomm plan explain`: what each way should take, which one is taken, and what would change that.

use clap::Args;
use hcomm_coll::cost::{Candidate, Change, Chooser, Comparison, Means, Terms, Turn};
use hcomm_coll::plan::Shape;
use hcomm_types::Result;
use serde_json::{Value, json};

use super::{PlanOp, ShapeArgs, SiteArgs};
use crate::output;
use crate::sizes::{self, Growth, parse_bytes};

/// Compares all ways of an operation by the cost model: predicted times and where they go, the way
/// that communicators take, why others cannot be, and what would change the choice. With -e a line a
/// size.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The operation
    #[arg(value_enum)]
    op: PlanOp,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// Last size, of a row that begins with that of -b
    #[arg(short = 'e', long = "end", value_parser = parse_bytes)]
    end: Option<u64>,
    /// Factor between sizes
    #[arg(short = 'f', long = "factor", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What was found for one size.
struct Found {
    shape: Shape,
    taken: Option<Means>,
    comparison: Comparison,
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<u8> {
    let chooser = args.site.chooser()?;
    let terms = args.shape.terms(args.op)?;
    let sizes = match args.end {
        Some(end) => sizes::rows(args.shape.bytes, end, Growth::Factor(args.factor)),
        None => vec![args.shape.bytes],
    };
    let mut found = Vec::with_capacity(sizes.len());
    for bytes in sizes {
        let shape = ShapeArgs {
            bytes,
            ..args.shape
        }
        .shape(args.op)?;
        found.push(Found {
            taken: chooser.choose(&shape, &terms),
            comparison: chooser.compare(&shape, &terms),
            shape,
        });
    }
    if args.json {
        let rows: Vec<Value> = found
            .iter()
            .map(|one| one.as_json(&chooser, &terms))
            .collect();
        let value = json!({ "costs": chooser.machine().measured, "cores": chooser.site().cores, "rows": rows });
        return output::print(&value.to_string()).map(|_| 0);
    }
    let text = match &found[..] {
        [one] => one.in_full(&chooser, &terms),
        rows => in_lines(rows, &chooser),
    };
    output::print(text.trim_end()).map(|_| 0)
}

impl Found {
    /// The prediction for what is taken. Where the choice stands for sizes up to a larger one, it
    /// need not be the fastest of this one.
    fn taken(&self) -> Option<&Candidate> {
        let mut all = self.comparison.candidates.iter();
        all.find(|candidate| Some(candidate.means) == self.taken)
            .or_else(|| {
                // Slices that make no difference are not told apart.
                let name = self.taken.map(|means| means.name);
                let mut all = self.comparison.candidates.iter();
                all.find(|candidate| Some(candidate.means.name) == name)
            })
    }

    fn in_full(&self, chooser: &Chooser, terms: &Terms) -> String {
        let mut text = format!(
            "{}, {} cores a host, costs: {}\n{:<7} {:<18} {:>8} {:>5} {:>12} {:>10} {:>7} {:>7} {:>9} {:>9} {:>7}\n",
            self.shape,
            chooser.site().cores,
            chooser.machine().measured,
            "",
            "algorithm",
            "slice",
            "flows",
            "time µs",
            "busbw GB/s",
            "waits",
            "moves",
            "combines",
            "switches",
            "calls"
        );
        let taken = self.taken().copied();
        for candidate in &self.comparison.candidates {
            let mark = if taken == Some(*candidate) {
                "taken"
            } else {
                ""
            };
            let prediction = candidate.prediction;
            let spent = prediction.spent;
            let parts = [
                spent.waiting_ps,
                spent.moving_ps,
                spent.combining_ps,
                spent.switching_ps,
                spent.calling_ps,
            ];
            let all = parts.iter().sum::<u64>().max(1);
            let [waits, moves, combines, switches, calls] =
                parts.map(|part| format!("{} %", part.saturating_mul(100) / all));
            text += &format!(
                "{mark:<7} {:<18} {:>8} {:>5} {:>12.3} {:>10.3} {waits:>7} {moves:>7} {combines:>9} {switches:>9} {calls:>7}\n",
                candidate.means.name,
                bytes(candidate.means.slice_bytes),
                candidate.means.flows,
                micros(candidate),
                bandwidth(&self.shape, candidate),
            );
        }
        for other in &self.comparison.excluded {
            text += &format!("{:<7} {:<18} {}\n", "no", other.name, other.why);
        }
        text += "\nWhat would change the choice:\n";
        let turns = chooser.turns(&self.shape, terms);
        for turn in &turns {
            text += &format!(
                "  {}: {}\n",
                words(&self.shape, turn.change),
                turn.means.name
            );
        }
        if turns.is_empty() {
            text += "  nothing that was tried: sizes, costs twice as high, cores, ranks\n";
        }
        text
    }

    fn as_json(&self, chooser: &Chooser, terms: &Terms) -> Value {
        let one = |candidate: &Candidate| {
            let spent = candidate.prediction.spent;
            json!({
                "algorithm": candidate.means.name,
                "slice_bytes": candidate.means.slice_bytes,
                "flows": candidate.means.flows,
                "time_us": micros(candidate),
                "busbw_gbps": bandwidth(&self.shape, candidate),
                "waiting_ps": spent.waiting_ps,
                "moving_ps": spent.moving_ps,
                "combining_ps": spent.combining_ps,
                "switching_ps": spent.switching_ps,
                "calling_ps": spent.calling_ps,
            })
        };
        let turn = |turn: &Turn| {
            json!({
                "change": words(&self.shape, turn.change),
                "algorithm": turn.means.name,
            })
        };
        let excluded = self.comparison.excluded.iter();
        json!({
            "shape": self.shape.to_string(),
            "taken": self.taken.map(|means| means.name),
            "slice_bytes": self.taken.map(|means| means.slice_bytes),
            "flows": self.taken.map(|means| means.flows),
            "candidates": self.comparison.candidates.iter().map(one).collect::<Vec<_>>(),
            "excluded": excluded
                .map(|other| json!({ "algorithm": other.name, "why": other.why }))
                .collect::<Vec<_>>(),
            "turns": chooser.turns(&self.shape, terms).iter().map(turn).collect::<Vec<_>>(),
        })
    }
}

/// A line a size: what is taken, and the best of the others.
fn in_lines(rows: &[Found], chooser: &Chooser) -> String {
    let mut text = format!(
        "{} cores a host, costs: {}\n{:>12}  {:<18} {:>8} {:>5} {:>12} {:>10}  next best\n",
        chooser.site().cores,
        chooser.machine().measured,
        "bytes",
        "taken",
        "slice",
        "flows",
        "time µs",
        "busbw GB/s",
    );
    for row in rows {
        let Some(taken) = row.taken() else {
            text += &format!("{:>12}  none\n", row.shape.total_bytes());
            continue;
        };
        let mut others = row.comparison.candidates.iter();
        let next = others
            .find(|other| other.means.name != taken.means.name)
            .map_or_else(String::new, |other| {
                format!("{} {:.3}", other.means.name, micros(other))
            });
        text += &format!(
            "{:>12}  {:<18} {:>8} {:>5} {:>12.3} {:>10.3}  {next}\n",
            row.shape.total_bytes(),
            taken.means.name,
            bytes(taken.means.slice_bytes),
            taken.means.flows,
            micros(taken),
            bandwidth(&row.shape, taken),
        );
    }
    text
}

fn micros(candidate: &Candidate) -> f64 {
    candidate.prediction.total_ps as f64 / 1e6
}

/// The bus bandwidth, as in `hcomm perf`.
fn bandwidth(shape: &Shape, candidate: &Candidate) -> f64 {
    let micros = micros(candidate);
    if micros > 0.0 {
        let factor = shape.operation.bus_factor(shape.ranks);
        shape.total_bytes() as f64 * factor / micros / 1e3
    } else {
        0.0
    }
}

/// A number of bytes, short.
fn bytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

fn words(shape: &Shape, change: Change) -> String {
    let size = |count: u64| {
        let other = Shape {
            count: count.into(),
            ..shape.clone()
        };
        other.total_bytes()
    };
    match change {
        Change::Fewer(count) => format!("{} bytes or a little more", size(count)),
        Change::More(count) => format!("{} bytes or a little less", size(count)),
        Change::SlowerNews(times) => format!("news that takes {times} times as long"),
        Change::SlowerMemory(times) => format!("bytes that take {times} times as long"),
        Change::Cores(cores) => format!("{cores} cores a host"),
        Change::Ranks(ranks) => format!("{ranks} ranks"),
    }
}
