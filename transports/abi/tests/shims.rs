//! The border from the host's side: every entry of the tables of a small transport, with what a
//! host may do wrong. `cargo xtask miri` runs it as well.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hcomm_transport_abi::shims::Tables;
use hcomm_transport_abi::{
    Channel, ChannelAttrV1, ChannelOptions, CompletionV1, Connect, CountersV1, DataOpsV1,
    DescriptorV1, Device, DeviceAttrV1, DeviceAttributes, Fault, Header, Host, HostV1, Import,
    ImportAttrV1, Imported, NotifyLineV1, OP_NOTIFY, PeerV1, Posted, Region, STATUS_BAD_BLOB,
    STATUS_BUFFER_TOO_SMALL, STATUS_BUSY, STATUS_IN_PROGRESS, STATUS_INTERNAL,
    STATUS_INVALID_ARGUMENT, STATUS_NO_RESOURCE, STATUS_NOT_CONNECTED, STATUS_OK, STATUS_STALE_KEY,
    STATUS_SYSTEM, STATUS_UNSUPPORTED, Transport, TransportV1,
};

/// Objects of the transport that live.
static LIVING: AtomicUsize = AtomicUsize::new(0);

/// One object of the transport.
struct Object(Arc<()>);

impl Object {
    fn new(holder: &Arc<()>) -> Self {
        LIVING.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(holder))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        LIVING.fetch_sub(1, Ordering::Relaxed);
    }
}

struct SmallRegion {
    of: Object,
    /// No box: to move one says that nobody else has a pointer into it.
    memory: Vec<u8>,
}

struct SmallImport {
    _of: Object,
    polls: u32,
    blob: Vec<u8>,
}

struct SmallChannel {
    of: Object,
    lines: Box<[NotifyLineV1]>,
}

// SAFETY: the lines are only counted and pointed to.
unsafe impl Sync for SmallChannel {}

/// Blobs with a meaning of their own.
const PANICS: u8 = 1;
const PANICS_LATER: u8 = 2;
const FAILS_LATER: u8 = 3;
const NO_STATUS: u8 = 4;

const BLOB: &[u8] = b"a blob";

/// A text with a letter of two bytes.
const TEXT: &str = "7 µs";

struct Small;

impl Transport for Small {
    const NAME: &'static CStr = c"small";
    const VENDOR: &'static CStr = c"hcomm";
    const VERSION: &'static CStr = c"1";
    const PROTOCOLS: u32 = 1;

    type Device = Object;
    type Region = SmallRegion;
    type Import = SmallImport;
    type Channel = SmallChannel;

    fn init(host: Host) -> Result<(), Fault> {
        host.log(1, TEXT);
        host.ring();
        if host.now_ns() != 77 {
            return Err(Fault::new(STATUS_SYSTEM, "no clock"));
        }
        Ok(())
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(1)
    }

    fn query_device(index: u32) -> Result<DeviceAttributes, Fault> {
        if index != 0 {
            return Err(Fault::invalid(format!("no device {index}: {TEXT}")));
        }
        Ok(DeviceAttributes {
            name: "n".repeat(100),
            attr: DeviceAttrV1 {
                name: [7; 64],
                protocol: 0,
                address_kind: 0,
                address: [0; 16],
                capabilities: 0,
                latency_ns: 1,
                bytes_per_s: 2,
                max_transfer_bytes: 3,
                max_notify_outstanding: 4,
                max_batch: 5,
                max_notifies: 6,
                max_blob_bytes: 7,
                numa_node: -1,
            },
        })
    }

    fn open_device(index: u32) -> Result<Object, Fault> {
        match index {
            0 => Ok(Object::new(&Arc::new(()))),
            _ => Err(Fault::invalid("no such device")),
        }
    }

    fn close_device(device: &Object) -> Result<(), Fault> {
        match Arc::strong_count(&device.0) {
            1 => Ok(()),
            more => Err(Fault::new(STATUS_BUSY, format!("{} are open", more - 1))),
        }
    }

    fn allocate(device: &Object, bytes: u64) -> Result<(SmallRegion, NonNull<u8>), Fault> {
        let mut memory = vec![0; bytes as usize];
        let address = NonNull::new(memory.as_mut_ptr()).ok_or_else(|| Fault::invalid("null"))?;
        let of = Object::new(&device.0);
        Ok((SmallRegion { of, memory }, address))
    }

    fn deregister(_: &Object, region: &SmallRegion) -> Result<(), Fault> {
        if Arc::strong_count(&region.of.0) > 10 || region.memory.is_empty() {
            return Err(Fault::new(STATUS_BUSY, "not now"));
        }
        Ok(())
    }

    fn export_region(_: &Object, _: &SmallRegion) -> Result<Vec<u8>, Fault> {
        Ok(BLOB.to_vec())
    }

    fn begin_import(channel: &SmallChannel, blob: &[u8]) -> Result<SmallImport, Fault> {
        match blob {
            [] => Err(Fault::new(STATUS_BAD_BLOB, "empty")),
            [PANICS] => panic!("asked to panic"),
            [NO_STATUS] => Err(Fault::new(STATUS_OK, "a fault without a status")),
            _ => Ok(SmallImport {
                _of: Object::new(&channel.of.0),
                polls: 0,
                blob: blob.to_vec(),
            }),
        }
    }

    fn poll_import(_: &SmallChannel, import: &mut SmallImport) -> Result<Option<Imported>, Fault> {
        import.polls += 1;
        match import.blob[..] {
            _ if import.polls < 3 => Ok(None),
            [PANICS_LATER] => panic!("asked to panic later"),
            [FAILS_LATER] => Err(Fault::new(STATUS_STALE_KEY, "stale")),
            _ => Ok(Some(Imported {
                bytes: import.blob.len() as u64,
                address: None,
            })),
        }
    }

    fn create_channel(device: &Object, options: &ChannelOptions) -> Result<SmallChannel, Fault> {
        let line = || NotifyLineV1 {
            count: 0,
            fingerprint: [0; 2],
            served: 0,
        };
        Ok(SmallChannel {
            of: Object::new(&device.0),
            lines: (0..options.notifies).map(|_| line()).collect(),
        })
    }

    fn local_blob(_: &SmallChannel) -> Result<Vec<u8>, Fault> {
        Ok(BLOB.to_vec())
    }

    fn connect(_: &SmallChannel, peer: &[u8]) -> Result<Connect, Fault> {
        match peer {
            BLOB => Ok(Connect::Connected),
            [] => Ok(Connect::InProgress),
            _ => Err(Fault::new(STATUS_BAD_BLOB, "another one's")),
        }
    }

    fn counters(_: &Object) -> CountersV1 {
        CountersV1 {
            descriptors: 9,
            ..CountersV1::default()
        }
    }

    fn describe(_: &SmallChannel) -> String {
        TEXT.to_owned()
    }

    fn post(channel: &SmallChannel, batch: &[DescriptorV1]) -> Posted {
        let is_there = |d: &&DescriptorV1| (d.notify as usize) < channel.lines.len();
        let accepted = batch.iter().take_while(is_there).count() as u32;
        Posted {
            accepted,
            inline_done: accepted,
            status: if accepted as usize == batch.len() {
                STATUS_OK
            } else {
                STATUS_NO_RESOURCE
            },
        }
    }

    fn poll(_: &Object, out: &mut [CompletionV1]) -> Result<usize, i32> {
        for completion in &mut *out {
            completion.cookie = 5;
        }
        Ok(out.len())
    }

    fn flush(_: &SmallChannel) -> Result<bool, i32> {
        Ok(false)
    }

    fn notify_line(channel: &SmallChannel, index: u32) -> Option<NonNull<NotifyLineV1>> {
        channel.lines.get(index as usize).map(NonNull::from)
    }

    fn check(_: &SmallChannel) -> Result<(), i32> {
        Err(STATUS_NOT_CONNECTED)
    }
}

static TABLE: TransportV1 = Tables::<Small>::TRANSPORT;

/// Entries of the table by name; none is null.
macro_rules! call {
    ($table:expr, $entry:ident, $($argument:expr),*) => {
        // SAFETY: the arguments are null, ours for as long as the call lasts, or handles that
        // were handed out and not given back.
        unsafe { ($table.$entry.unwrap())($($argument),*) }
    };
}

fn last_error(capacity: usize) -> String {
    let mut text = vec![0_u8; capacity];
    let len = call!(TABLE, last_error, text.as_mut_ptr().cast(), capacity as u32);
    text.truncate(len as usize);
    String::from_utf8(text).unwrap()
}

struct Opened {
    device: *mut Device,
    ops: &'static DataOpsV1,
}

fn open() -> Opened {
    let (mut device, mut ops) = (null_mut(), null());
    let status = call!(TABLE, open_device, 0, &raw mut device, &raw mut ops);
    assert_eq!(status, STATUS_OK);
    // SAFETY: a table that was given stays for ever.
    let ops = unsafe { &*ops };
    assert_eq!(ops.header, Header::of::<DataOpsV1>());
    Opened { device, ops }
}

fn create(device: *mut Device, notifies: u32) -> *mut Channel {
    let attr = ChannelAttrV1 {
        notifies,
        queue_depth: 1,
        traffic_class: 0,
        service_level: 0,
        reserved: [0; 4],
    };
    let mut channel = null_mut();
    let status = call!(
        TABLE,
        create_channel,
        device,
        &raw const attr,
        &raw mut channel
    );
    assert_eq!(status, STATUS_OK);
    channel
}

/// All in one test: the count of what lives is the process's.
#[test]
fn each_entry_does_its_part_and_nothing_is_left() {
    with_a_host();
    devices();
    regions();
    channels();
    imports();
    fast_calls();
    assert_eq!(LIVING.load(Ordering::Relaxed), 0);
}

static SAID: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn log(_: *mut c_void, level: u32, text: *const c_char, len: usize) {
    // SAFETY: the plugin's text lives as long as the call.
    let text = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) };
    assert_eq!((level, text), (1, TEXT.as_bytes()));
    SAID.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn now_ns(_: *mut c_void) -> u64 {
    77
}

unsafe extern "C" fn ring(_: *mut c_void) {
    SAID.fetch_add(1, Ordering::Relaxed);
}

/// A host whose table begins with `magic`.
const fn host(magic: u64) -> HostV1 {
    HostV1 {
        header: Header {
            magic,
            ..Header::of::<HostV1>()
        },
        context: null_mut(),
        log: Some(log),
        now_ns: Some(now_ns),
        reduce: None,
        ring: Some(ring),
        bell_memfd: -1,
        bell_offset: 0,
        bell_eventfd: -1,
        reserved: 0,
    }
}

fn with_a_host() {
    static STRANGE: HostV1 = host(1);
    static HOST: HostV1 = host(hcomm_transport_abi::MAGIC);
    assert_eq!(call!(TABLE, init, null()), STATUS_INVALID_ARGUMENT);
    assert_eq!(last_error(100), "host is null");
    assert_eq!(
        call!(TABLE, init, &raw const STRANGE),
        STATUS_INVALID_ARGUMENT
    );
    assert!(last_error(100).contains("magic 0x1"), "{}", last_error(100));
    assert_eq!(call!(TABLE, init, &raw const HOST), STATUS_OK);
    assert_eq!(SAID.load(Ordering::Relaxed), 2);
}

fn devices() {
    let mut count = 0;
    assert_eq!(call!(TABLE, device_count, &raw mut count), STATUS_OK);
    assert_eq!(count, 1);
    assert_eq!(
        call!(TABLE, device_count, null_mut()),
        STATUS_INVALID_ARGUMENT
    );
    let mut attr = Small::query_device(0).unwrap().attr;
    assert_eq!(call!(TABLE, query_device, 0, &raw mut attr), STATUS_OK);
    // Cut, and ended by a zero.
    assert_eq!(attr.name, {
        let mut name = [b'n' as c_char; 64];
        name[63] = 0;
        name
    });
    let status = call!(TABLE, query_device, 3, &raw mut attr);
    assert_eq!(status, STATUS_INVALID_ARGUMENT);
    // No letter is cut in two.
    assert_eq!(last_error(100), "no device 3: 7 µs");
    assert_eq!(last_error(16), "no device 3: 7 ");
    assert_eq!(last_error(0), "");
    assert_eq!(call!(TABLE, last_error, null_mut(), 100), 0);
    let (mut device, mut ops) = (null_mut(), null());
    let status = call!(TABLE, open_device, 1, &raw mut device, &raw mut ops);
    assert_eq!((status, device), (STATUS_INVALID_ARGUMENT, null_mut()));
    let status = call!(TABLE, open_device, 0, null_mut(), &raw mut ops);
    assert_eq!(status, STATUS_INVALID_ARGUMENT);
    let opened = open();
    let mut counters = CountersV1::default();
    let status = call!(TABLE, counters, opened.device, &raw mut counters);
    assert_eq!((status, counters.descriptors), (STATUS_OK, 9));
    assert_eq!(call!(TABLE, close_device, opened.device), STATUS_OK);
    assert_eq!(
        call!(TABLE, close_device, null_mut()),
        STATUS_INVALID_ARGUMENT
    );
    assert!(call!(TABLE, extension, 1).is_null());
}

fn regions() {
    let Opened { device, .. } = open();
    let (mut region, mut address) = (null_mut::<Region>(), null_mut());
    let status = call!(
        TABLE,
        allocate,
        device,
        100,
        &raw mut region,
        &raw mut address
    );
    assert_eq!(status, STATUS_OK);
    // SAFETY: the region's memory, which nobody else has.
    unsafe { address.cast::<u8>().write_bytes(7, 100) };
    assert_eq!(call!(TABLE, close_device, device), STATUS_BUSY);
    assert_eq!(last_error(100), "1 are open");
    let mut byte = 0_u8;
    let status = call!(
        TABLE,
        register,
        device,
        (&raw mut byte).cast(),
        1,
        &raw mut region
    );
    assert_eq!(status, STATUS_UNSUPPORTED);
    let export = |capacity: usize| {
        let (mut blob, mut len) = (vec![0; capacity], u32::MAX);
        let status = call!(
            TABLE,
            export_region,
            device,
            region,
            blob.as_mut_ptr(),
            capacity as u32,
            &raw mut len
        );
        (status, len, blob)
    };
    assert_eq!(export(6), (STATUS_OK, 6, BLOB.to_vec()));
    assert_eq!(export(5), (STATUS_BUFFER_TOO_SMALL, u32::MAX, vec![0; 5]));
    let status = call!(
        TABLE,
        export_region,
        device,
        region,
        null_mut(),
        0,
        null_mut()
    );
    assert_eq!(status, STATUS_INVALID_ARGUMENT);
    let status = call!(TABLE, deregister, device, null_mut());
    assert_eq!(status, STATUS_INVALID_ARGUMENT);
    assert_eq!(call!(TABLE, deregister, device, region), STATUS_OK);
    assert_eq!(call!(TABLE, close_device, device), STATUS_OK);
}

fn channels() {
    let Opened { device, .. } = open();
    let channel = create(device, 2);
    let status = call!(TABLE, create_channel, device, null(), null_mut());
    assert_eq!(status, STATUS_INVALID_ARGUMENT);
    let connect = |blob: &[u8]| call!(TABLE, connect, channel, blob.as_ptr(), blob.len() as u32);
    assert_eq!(connect(&[]), STATUS_IN_PROGRESS);
    assert_eq!(connect(b"b"), STATUS_BAD_BLOB);
    assert_eq!(connect(BLOB), STATUS_OK);
    let status = call!(TABLE, connect, channel, null(), 0);
    assert_eq!(status, STATUS_INVALID_ARGUMENT);
    let mut blob = [0; 10];
    let mut len = 0;
    let status = call!(
        TABLE,
        local_blob,
        channel,
        blob.as_mut_ptr(),
        10,
        &raw mut len
    );
    assert_eq!((status, &blob[..len as usize]), (STATUS_OK, BLOB));
    let mut peer = PeerV1 {
        lines: null_mut(),
        notifies: 0,
        stride: 0,
        bell: null(),
        state: null(),
    };
    let status = call!(TABLE, map_peer, channel, &raw mut peer);
    assert_eq!(status, STATUS_UNSUPPORTED);
    let describe = |capacity: usize| {
        let mut text = vec![0_u8; capacity];
        let len = call!(
            TABLE,
            describe,
            channel,
            text.as_mut_ptr().cast(),
            capacity as u32
        );
        text.truncate(len as usize);
        String::from_utf8(text).unwrap()
    };
    assert_eq!([describe(9), describe(3)], [TEXT, "7 "]);
    assert_eq!(call!(TABLE, describe, null_mut(), null_mut(), 0), 0);
    assert_eq!(call!(TABLE, destroy_channel, channel), STATUS_OK);
    assert_eq!(call!(TABLE, close_device, device), STATUS_OK);
}

fn imports() {
    let Opened { device, .. } = open();
    let channel = create(device, 0);
    let mut import = null_mut::<Import>();
    let mut attr = ImportAttrV1 {
        bytes: 0,
        address: null_mut(),
    };
    let mut poll = |blob: &[u8], import: &mut *mut Import| {
        call!(
            TABLE,
            import_region,
            channel,
            blob.as_ptr(),
            blob.len() as u32,
            &raw mut *import,
            &raw mut attr
        )
    };
    for (blob, status) in [
        (&[][..], STATUS_BAD_BLOB),
        (&[PANICS], STATUS_INTERNAL),
        (&[NO_STATUS], STATUS_INTERNAL),
    ] {
        assert_eq!(poll(blob, &mut import), status);
        assert!(import.is_null());
    }
    for (blob, end) in [
        (PANICS_LATER, STATUS_INTERNAL),
        (FAILS_LATER, STATUS_STALE_KEY),
        (9, STATUS_OK),
    ] {
        for _ in 0..2 {
            assert_eq!(poll(&[blob], &mut import), STATUS_IN_PROGRESS);
            assert!(!import.is_null());
        }
        assert_eq!(poll(&[blob], &mut import), end);
        // What has failed is taken back; the host forgets it.
        assert_eq!(import.is_null(), end != STATUS_OK);
    }
    assert_eq!(call!(TABLE, release_import, channel, import), STATUS_OK);
    import = null_mut();
    assert_eq!(poll(&[9], &mut import), STATUS_IN_PROGRESS);
    // Also one that is not there yet.
    assert_eq!(call!(TABLE, release_import, channel, import), STATUS_OK);
    assert_eq!((attr.bytes, attr.address), (1, null_mut()));
    assert_eq!(call!(TABLE, destroy_channel, channel), STATUS_OK);
    assert_eq!(call!(TABLE, close_device, device), STATUS_OK);
}

fn fast_calls() {
    let Opened { device, ops } = open();
    let channel = create(device, 2);
    let notify = |notify| DescriptorV1 {
        opcode: OP_NOTIFY,
        flags: 0,
        local: null_mut(),
        local_region: null_mut(),
        remote: null_mut(),
        remote_offset: 0,
        bytes: 0,
        notify,
        dtype: 0,
        redop: 0,
        reserved: 0,
        fingerprint: [0; 2],
        cookie: 0,
    };
    let batch = [notify(0), notify(1), notify(2)];
    let (mut accepted, mut inline_done) = (9, 9);
    let status = call!(
        ops,
        post,
        channel,
        batch.as_ptr(),
        3,
        &raw mut accepted,
        &raw mut inline_done
    );
    assert_eq!((status, accepted, inline_done), (STATUS_NO_RESOURCE, 2, 2));
    let mut completions = [CompletionV1 {
        cookie: 0,
        status: 0,
        reserved: 0,
    }; 3];
    let mut count = 9;
    let status = call!(
        ops,
        poll,
        device,
        completions.as_mut_ptr(),
        2,
        &raw mut count
    );
    assert_eq!((status, count), (STATUS_OK, 2));
    assert_eq!(completions.map(|c| c.cookie), [5, 5, 0]);
    assert_eq!(call!(ops, flush, channel), STATUS_IN_PROGRESS);
    assert_eq!(call!(ops, progress, device), STATUS_IN_PROGRESS);
    assert_eq!(call!(ops, check, channel), STATUS_NOT_CONNECTED);
    assert_eq!(call!(ops, wake_fd, device), -1);
    assert_eq!(call!(ops, arm, device), STATUS_OK);
    call!(ops, ring, channel);
    let lines = [0, 1, 2].map(|index| call!(ops, notify_line, channel, index));
    assert_eq!(lines.map(|line| line.is_null()), [false, false, true]);
    // SAFETY: there until the channel is destroyed; nobody writes.
    assert_eq!(unsafe { (*lines[1]).count }, 0);
    assert_eq!(call!(TABLE, destroy_channel, channel), STATUS_OK);
    assert_eq!(call!(TABLE, close_device, device), STATUS_OK);
}
