//! Ping-pong over iceoryx2 publish-subscribe between two processes, one a core. "loan": the sample is
//! loaned and sent, its payload not touched; "copy": the payload is copied in and, on the other side,
//! out, which is what a user of messages pays.

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, hint, process, thread};

use iceoryx2::prelude::*;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// One side's microseconds of a half round trip.
fn side(me: usize, size: usize, copy: bool, iterations: u64, tag: &str) -> Outcome<f64> {
    set_log_level(LogLevel::Fatal);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = |way: &str| -> Outcome<_> {
        Ok(node
            .service_builder(&format!("peers/{tag}/{way}").as_str().try_into()?)
            .publish_subscribe::<[u8]>()
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()?)
    };
    let services = [service("there")?, service("back")?];
    let (there, back) = (&services[me], &services[1 - me]);
    let publisher = there
        .publisher_builder()
        .initial_max_slice_len(size)
        .create()?;
    let subscriber = back.subscriber_builder().create()?;
    let source = vec![1u8; size];
    let mut target = vec![0u8; size];
    // iceoryx2 tells nobody when the other side has come.
    while there.dynamic_config().number_of_subscribers() < 1
        || back.dynamic_config().number_of_publishers() < 1
    {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(30));
    let send = || -> Outcome<()> {
        let sample = publisher.loan_slice_uninit(size)?;
        if copy {
            sample.write_from_slice(&source).send()?;
        } else {
            // SAFETY: any byte is a u8, and the segment's pages exist.
            unsafe { sample.assume_init() }.send()?;
        }
        Ok(())
    };
    let warmup = iterations / 10 + 2;
    let mut start = Instant::now();
    for round in 0..iterations + warmup {
        if round == warmup {
            start = Instant::now();
        }
        if me == 0 {
            send()?;
        }
        loop {
            if let Some(sample) = subscriber.receive()? {
                if copy {
                    target.copy_from_slice(sample.payload());
                }
                break;
            }
        }
        if me == 1 {
            send()?;
        }
    }
    let took = start.elapsed().as_secs_f64();
    if me == 1 {
        // The other side still reads the last sample.
        thread::sleep(Duration::from_millis(50));
    }
    hint::black_box(&target);
    Ok(took / iterations as f64 / 2.0 * 1e6)
}

fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().collect();
    if let [_, size, way, iterations, tag] = &words[..] {
        side(1, size.parse()?, way == "copy", iterations.parse()?, tag)?;
        return Ok(());
    }
    for size in [8usize, 64, 1024, 4096, 65536, 131_072, 1 << 20] {
        for way in ["loan", "copy"] {
            let copy = way == "copy";
            let per = 0.5e-6 + if copy { size as f64 / 4e9 } else { 0.0 };
            let iterations = ((0.05 / per) as u64).clamp(50, 200_000);
            let tag = format!("{}-{size}-{way}", process::id());
            // This process is bound to core 0 by who starts it.
            let mut other = Command::new("taskset")
                .args(["-c", "1"])
                .arg(env::current_exe()?)
                .args([&size.to_string(), way, &iterations.to_string(), &tag])
                .spawn()?;
            let micros = side(0, size, copy, iterations, &tag)?;
            other.wait()?;
            println!(
                "{{\"k\":\"iox2/{way}\",\"size\":{size},\"n\":2,\"v\":{micros:.6},\"u\":\"us\"}}"
            );
        }
    }
    Ok(())
}
