//! What the plugin and the host's handles say while a check runs.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Collects from now on. Once a process.
pub(crate) fn collect() {
    // A program that has a subscriber already keeps it: then nothing is collected. The suite's own
    // processes have none.
    let _ = tracing::subscriber::set_global_default(Collector);
}

/// The lines at warning or above since the last call.
pub(crate) fn take() -> Vec<String> {
    std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds lines that another process has collected.
pub(crate) fn add(lines: Vec<String>) {
    LINES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend(lines);
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The plugin's own lines, and those of the handles: "a region did not end".
        *metadata.level() <= Level::WARN
            && (metadata.target() == "hcomm::plugin"
                || metadata.target().starts_with("hcomm_transport"))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LINES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
