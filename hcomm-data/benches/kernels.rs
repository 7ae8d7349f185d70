//! The local kernels beside the C library's `memcpy`, and ratios at the end.
//!
//! Bandwidth counts what is moved: twice the bytes of a copy, three times those of a reduction. A
//! ratio above one is faster than `memcpy`. Compare only within one run: on a machine whose cores
//! move, the same bytes take another time a minute later.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use hcomm_data::{Hint, copy, reduce, vector_level};
use hcomm_types::{DataType, ReduceOp};

const LARGEST: usize = 64 << 20;

/// Bytes from a page's begin to that of memory from `malloc`.
const AHEAD: usize = 16;

const REDUCTIONS: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, LARGEST];

const COPIES: [usize; 9] = [
    8,
    64,
    256,
    4 << 10,
    16 << 10,
    64 << 10,
    1 << 20,
    16 << 20,
    LARGEST,
];

/// Memory for the whole run, at the begin of a page, touched.
fn memory() -> *mut u8 {
    let layout = Layout::from_size_align(LARGEST + AHEAD, 4096).expect("a page is a power of two");
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    assert!(!memory.is_null(), "no memory for {LARGEST} bytes");
    // SAFETY: so many bytes were just allocated.
    unsafe { memory.write_bytes(1, LARGEST) };
    memory
}

/// Seconds of one run, by name and bytes: the best mean of all samples.
type Best = BTreeMap<(String, usize), f64>;

fn measure(
    criterion: &mut Criterion,
    best: &mut Best,
    name: &str,
    bytes: usize,
    ranges: usize,
    mut run: impl FnMut(),
) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes((ranges * bytes) as u64));
    group.bench_function(bytes.to_string(), |bencher| {
        bencher.iter_custom(|rounds| {
            let start = Instant::now();
            for _ in 0..rounds {
                run();
            }
            let elapsed = start.elapsed();
            let mean = elapsed.as_secs_f64() / rounds as f64;
            let known = best.entry((name.to_owned(), bytes)).or_insert(mean);
            *known = known.min(mean);
            elapsed
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300))
        .configure_from_args();
    let mut best = Best::new();
    let (d, a, b) = (memory(), memory(), memory());

    for bytes in COPIES {
        // SAFETY: two ranges of `LARGEST` bytes, in this closure and the next ones.
        measure(&mut criterion, &mut best, "memcpy", bytes, 2, || unsafe {
            black_box(a).copy_to_nonoverlapping(black_box(d), black_box(bytes));
        });
        // SAFETY: there are so many bytes more, here and in the next closure.
        measure(
            &mut criterion,
            &mut best,
            "memcpy, 16 on",
            bytes,
            2,
            || unsafe {
                black_box(a).copy_to_nonoverlapping(black_box(d.add(AHEAD)), black_box(bytes));
            },
        );
        // SAFETY: as above.
        measure(
            &mut criterion,
            &mut best,
            "copy, 16 on",
            bytes,
            2,
            || unsafe {
                copy(
                    black_box(d.add(AHEAD)),
                    black_box(a),
                    black_box(bytes),
                    Hint::Local,
                );
            },
        );
        for (name, hint) in [("copy", Hint::Local), ("hand over", Hint::HandOver)] {
            // SAFETY: as above.
            measure(&mut criterion, &mut best, name, bytes, 2, || unsafe {
                copy(black_box(d), black_box(a), black_box(bytes), hint);
            });
        }
    }
    for dtype in [DataType::F32, DataType::Bf16, DataType::F64, DataType::I32] {
        for bytes in REDUCTIONS {
            for (place, x) in [("", a), (" in place", d)] {
                let name = format!("{dtype} sum{place}");
                let count = bytes / dtype.size();
                // SAFETY: ranges of `LARGEST` bytes, apart or equal.
                measure(&mut criterion, &mut best, &name, bytes, 3, || unsafe {
                    let (d, x, b) = (black_box(d), black_box(x), black_box(b));
                    reduce(d, x, b, count, dtype, ReduceOp::Sum, Hint::Local);
                });
            }
        }
    }
    criterion.final_summary();

    println!(
        "\nlevel: {}; GB/s moved, and as a ratio to memcpy",
        vector_level()
    );
    for ((name, bytes), seconds) in &best {
        let ranges = if name.contains("sum") { 3.0 } else { 2.0 };
        let rate = |ranges: f64, seconds: f64| ranges * *bytes as f64 / seconds / 1e9;
        let ours = rate(ranges, *seconds);
        if let Some(theirs) = best.get(&("memcpy".to_owned(), *bytes)) {
            println!(
                "{name:>16} {bytes:>10} {ours:>8.1} {:>6.2}",
                ours / rate(2.0, *theirs)
            );
        }
    }
}
