//! Built plugins at work through the handles: the loop transport, and the one in C.

use std::fs;
use std::ptr::NonNull;
use std::task::Poll;

use hcomm_transport::{
    Capabilities, Channel, Descriptor, Device, Import, Lane, Posted, Region, Transports,
};
use hcomm_types::{DataType, ErrorKind, Protocol, ReduceOp, Result};

use crate::folder::{C_SOURCES, Folder, options};

/// One side: a device, a region in it, a channel end with two notifies.
struct Side {
    device: Device,
    region: Region,
    channel: Channel,
    lane: Lane,
}

const BYTES: usize = 5000;

impl Side {
    fn open(folder: &Folder, name: &str) -> Self {
        let transports = Transports::load(&options(&[folder])).unwrap();
        let devices = transports.plugin(name).unwrap().devices().unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].protocol, Protocol::Loop);
        let device = devices[0].open().unwrap();
        Self {
            region: device.allocate(BYTES).unwrap(),
            channel: device.create_channel(2, 16).unwrap(),
            lane: device.lane(),
            device,
        }
    }

    fn import(&self, region: &Region) -> Result<Import> {
        ready(self.channel.import(region.export()?).poll())
    }

    fn post(&self, batch: &[Descriptor<'_>]) -> Result<Posted> {
        // SAFETY: the memory of the tests' descriptors is that of regions and of live arrays, and
        // both sides are driven by this thread alone.
        unsafe { self.channel.post(&self.lane, batch) }
    }

    /// A copy of the region's bytes.
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the region has as many bytes, and nobody writes while a test looks at it.
        unsafe { std::slice::from_raw_parts(self.region.address().as_ptr(), BYTES) }.to_vec()
    }

    /// Writes bytes at the beginning of the region.
    fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= BYTES);
        // SAFETY: they fit, come from elsewhere, and nobody else touches the region meanwhile.
        unsafe {
            self.region
                .address()
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

fn ready<T>(poll: Poll<Result<T>>) -> Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("inside one process nothing is pending"),
    }
}

fn connect(one: &Channel, two: &Channel) {
    let (mut first, mut second) = (
        one.connect(two.blob().unwrap()),
        two.connect(one.blob().unwrap()),
    );
    assert!(first.poll().is_pending(), "the other end has not come yet");
    ready(second.poll()).unwrap();
    ready(first.poll()).unwrap();
}

/// Two connected sides of the plugin `name`, which is made by `put`.
fn pair(name: &str) -> (Folder, Side, Side) {
    let folder = Folder::new();
    match name {
        "mini" => {
            let source = fs::read_to_string(format!("{C_SOURCES}/mini.c")).unwrap();
            assert!(source.lines().count() < 200);
            folder.compile(name, &source, &[]);
        }
        name => drop(folder.copy(name, name)),
    }
    let (one, two) = (Side::open(&folder, name), Side::open(&folder, name));
    connect(&one.channel, &two.channel);
    (folder, one, two)
}

const PLUGINS: [&str; 2] = ["loop", "mini"];

/// Content that tells positions apart.
fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn a_write_with_notify_lands_and_a_read_brings_it_back() {
    for name in PLUGINS {
        let (_folder, one, two) = pair(name);
        assert!(two.bytes().iter().all(|&byte| byte == 0), "{name}: zeroed");
        let remote = one.import(&two.region).unwrap();
        assert_eq!(remote.bytes(), BYTES as u64);
        assert_eq!(
            remote.address(),
            Some(two.region.address()),
            "{name}: mapped"
        );
        one.fill(&pattern(1));

        let notify = two.channel.notify(1).unwrap();
        let other = two.channel.notify(0).unwrap();
        let posted = one
            .post(&[
                Descriptor::Write {
                    local: one.region.address(),
                    region: Some(&one.region),
                    remote: &remote,
                    offset: 3,
                    bytes: BYTES as u64 - 3,
                    notify: Some(1),
                },
                Descriptor::Notify {
                    notify: 1,
                    fingerprint: [0xfeed, 0xbeef],
                },
            ])
            .unwrap();
        assert_eq!((posted.accepted, posted.pending), (2, 0), "{name}");
        assert_eq!((notify.count(), other.count()), (2, 0), "{name}");
        assert_eq!(notify.fingerprint(), [0xfeed, 0xbeef], "{name}");
        assert_eq!(two.bytes()[..3], [0; 3], "{name}");
        assert_eq!(two.bytes()[3..], pattern(1)[..BYTES - 3], "{name}");
        assert!(one.channel.flush().unwrap());

        let mut back = vec![0u8; BYTES];
        one.post(&[Descriptor::Read {
            local: NonNull::new(back.as_mut_ptr()).unwrap(),
            region: None,
            remote: &remote,
            offset: 0,
            bytes: BYTES as u64,
        }])
        .unwrap();
        assert_eq!(back, two.bytes(), "{name}");
    }
}

#[test]
fn a_wrong_descriptor_stops_its_batch_and_has_no_effect() {
    for name in PLUGINS {
        let (_folder, one, two) = pair(name);
        let notify = two.channel.notify(0).unwrap();
        let record = |notify| Descriptor::Notify {
            notify,
            fingerprint: [0; 2],
        };
        let posted = one.post(&[record(0), record(2), record(0)]).unwrap();
        assert_eq!(posted.accepted, 1, "{name}");
        assert_eq!(notify.count(), 1, "{name}");
        let error = one.post(&[record(2)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}");
    }
}

#[test]
fn a_region_that_ended_is_stale_for_its_importer() {
    for name in PLUGINS {
        let (_folder, one, mut two) = pair(name);
        let key = two.region.export().unwrap();
        let remote = one.import(&two.region).unwrap();
        two.region = two.device.allocate(BYTES).unwrap();
        let error = one
            .post(&[Descriptor::Write {
                local: one.region.address(),
                region: None,
                remote: &remote,
                offset: 0,
                bytes: 8,
                notify: None,
            }])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{name}: {error}");
        let error = ready(one.channel.import(key).poll()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{name}: {error}");
    }
}

#[test]
fn a_region_of_a_third_party_is_not_the_peer_s() {
    for name in PLUGINS {
        let (folder, one, _two) = pair(name);
        let third = Side::open(&folder, name);
        let error = one.import(&third.region).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{name}: {error}");
    }
}

#[test]
fn an_end_whose_peer_is_gone_says_so() {
    for name in PLUGINS {
        let (_folder, one, two) = pair(name);
        one.channel.check().unwrap();
        drop(two);
        let error = one.channel.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{name}: {error}");
        let error = one.channel.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{name}: {error}");
    }
}

#[test]
fn an_end_that_is_not_connected_says_so() {
    for name in PLUGINS {
        let (folder, one, _two) = pair(name);
        let fresh = Side::open(&folder, name);
        let not_connected = |error: hcomm_types::Error| {
            assert!(
                error.to_string().contains("not connected"),
                "{name}: {error}"
            );
        };
        not_connected(fresh.channel.check().unwrap_err());
        not_connected(fresh.import(&one.region).unwrap_err());
        // Third parties get no answer from an end that has its peer.
        let error = ready(fresh.channel.connect(one.channel.blob().unwrap()).poll()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{name}: {error}");
        let error = ready(fresh.channel.connect(b"not a blob".to_vec()).poll()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{name}: {error}");
    }
}

#[test]
fn loop_reduces_on_both_sides_with_the_host_s_kernel() {
    let (_folder, one, two) = pair("loop");
    let remote = one.import(&two.region).unwrap();
    let numbers = |side: &Side, values: [i32; 3]| {
        side.fill(values.map(i32::to_ne_bytes).as_flattened());
    };
    let sums = |side: &Side| {
        [0, 1, 2].map(|i| i32::from_ne_bytes(side.bytes()[4 * i..4 * i + 4].try_into().unwrap()))
    };
    numbers(&one, [1, 20, 300]);
    numbers(&two, [4, 50, 600]);
    one.post(&[Descriptor::WriteReduce {
        local: one.region.address(),
        region: None,
        remote: &remote,
        offset: 0,
        count: 3,
        dtype: DataType::I32,
        redop: ReduceOp::Sum,
        notify: Some(0),
    }])
    .unwrap();
    assert_eq!(sums(&two), [5, 70, 900]);
    assert_eq!(two.channel.notify(0).unwrap().count(), 1);
    one.post(&[Descriptor::ReadReduce {
        local: one.region.address(),
        region: None,
        remote: &remote,
        offset: 0,
        count: 2,
        dtype: DataType::I32,
        redop: ReduceOp::Sum,
    }])
    .unwrap();
    assert_eq!(sums(&one), [6, 90, 300]);
    let counted = one.device.counters().unwrap();
    assert_eq!(
        (
            counted.descriptors,
            counted.bytes_written,
            counted.bytes_read
        ),
        (2, 12, 8)
    );
    assert_eq!(counted.notifies, 1);
}

#[test]
fn loop_reaches_memory_that_the_user_brings() {
    let (_folder, one, two) = pair("loop");
    assert!(
        two.device
            .info()
            .capabilities
            .contains(Capabilities::REGISTER)
    );
    let mut brought = vec![0u8; 64];
    // SAFETY: the array outlives the region, and is looked at only when nobody writes.
    let region = unsafe {
        two.device
            .register(NonNull::new(brought.as_mut_ptr()).unwrap(), brought.len())
    }
    .unwrap();
    let remote = one.import(&region).unwrap();
    one.fill(&pattern(9));
    one.post(&[Descriptor::Write {
        local: one.region.address(),
        region: None,
        remote: &remote,
        offset: 1,
        bytes: 63,
        notify: None,
    }])
    .unwrap();
    drop(region);
    assert_eq!(brought[0], 0);
    assert_eq!(brought[1..], pattern(9)[..63]);
}
