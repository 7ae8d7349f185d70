//! A transport inside one process that does nothing at once: `post` queues, and each `progress`
//! of the posting side does one descriptor, the latest one that no notify orders after others.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use hcomm_transport_abi::shims::Tables;
use hcomm_transport_abi::*;

pub(crate) struct Later;

static TABLE: TransportV1 = Tables::<Later>::TRANSPORT;

pub(crate) fn transport_v1() -> &'static TransportV1 {
    &TABLE
}

/// Descriptors that a device takes before it says that it is full.
pub(crate) const DEPTH: usize = 4;

/// While set, device 2 does nothing: descriptors stay where they are.
pub(crate) static STALLED: AtomicBool = AtomicBool::new(false);

static HOST: OnceLock<Host> = OnceLock::new();
static ENDS: Mutex<Option<HashMap<u64, Arc<End>>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Opening {
    queue: Mutex<VecDeque<Job>>,
    done: Mutex<VecDeque<CompletionV1>>,
    index: u32,
}

struct Job {
    descriptor: DescriptorV1,
    target: Arc<End>,
}

// SAFETY: the pointers are used under the queue's lock, by the rules of the ABI.
unsafe impl Send for Job {}

pub(crate) struct End {
    lines: Box<[Line]>,
    gone: AtomicBool,
}

#[derive(Default)]
#[repr(C, align(64))]
struct Line {
    count: AtomicU64,
    fingerprint: [AtomicU64; 2],
    reserved: [AtomicU64; 5],
}

pub(crate) struct Channel {
    number: u64,
    end: Arc<End>,
    peer: OnceLock<Arc<End>>,
    opening: Arc<Opening>,
}

pub(crate) struct Region(NonNull<u8>, u64);
pub(crate) struct Import(NonNull<u8>, u64);

// SAFETY: addresses of leaked memory.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}
// SAFETY: as above.
unsafe impl Send for Import {}
// SAFETY: as above.
unsafe impl Sync for Import {}

impl Transport for Later {
    const NAME: &'static CStr = c"later";
    const VENDOR: &'static CStr = c"tests";
    const VERSION: &'static CStr = c"0";
    const PROTOCOLS: u32 = 1 << 9;

    type Device = Arc<Opening>;
    type Region = Region;
    type Import = Import;
    type Channel = Channel;

    fn init(host: Host) -> Result<(), Fault> {
        let _ = HOST.set(host);
        Ok(())
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(3)
    }

    fn query_device(index: u32) -> Result<DeviceAttributes, Fault> {
        let more = if index != 1 {
            CAP_WRITE_NOTIFY | CAP_LOCAL_ANY
        } else {
            0
        };
        Ok(DeviceAttributes {
            name: format!("later{index}"),
            attr: DeviceAttrV1 {
                name: [0; 64],
                protocol: 9,
                address_kind: 0,
                address: [0; 16],
                capabilities: more
                    | CAP_WRITE
                    | CAP_READ
                    | CAP_NOTIFY
                    | CAP_WRITE_REDUCE
                    | CAP_READ_REDUCE
                    | CAP_ALLOCATE
                    | CAP_SAME_PROCESS,
                latency_ns: 1000,
                bytes_per_s: 1_000_000_000,
                max_transfer_bytes: 1000,
                max_notify_outstanding: u64::MAX,
                max_batch: 3,
                max_notifies: 64,
                max_blob_bytes: 16,
                numa_node: -1,
            },
        })
    }

    fn open_device(index: u32) -> Result<Arc<Opening>, Fault> {
        Ok(Arc::new(Opening {
            queue: Mutex::new(VecDeque::with_capacity(64)),
            done: Mutex::new(VecDeque::with_capacity(64)),
            index,
        }))
    }

    fn close_device(_: &Arc<Opening>) -> Result<(), Fault> {
        Ok(())
    }

    fn allocate(_: &Arc<Opening>, bytes: u64) -> Result<(Region, NonNull<u8>), Fault> {
        let memory = Box::leak(vec![0u8; bytes as usize].into_boxed_slice());
        let address = NonNull::from(memory).cast();
        Ok((Region(address, bytes), address))
    }

    fn deregister(_: &Arc<Opening>, _: &Region) -> Result<(), Fault> {
        Ok(())
    }

    fn export_region(_: &Arc<Opening>, region: &Region) -> Result<Vec<u8>, Fault> {
        let mut blob = (region.0.as_ptr() as u64).to_le_bytes().to_vec();
        blob.extend(region.1.to_le_bytes());
        Ok(blob)
    }

    fn begin_import(_: &Channel, blob: &[u8]) -> Result<Import, Fault> {
        let word = |i: usize| u64::from_le_bytes(blob[8 * i..8 * i + 8].try_into().unwrap());
        Ok(Import(NonNull::new(word(0) as *mut u8).unwrap(), word(1)))
    }

    fn poll_import(_: &Channel, import: &mut Import) -> Result<Option<Imported>, Fault> {
        Ok(Some(Imported {
            bytes: import.1,
            address: None,
        }))
    }

    fn create_channel(device: &Arc<Opening>, options: &ChannelOptions) -> Result<Channel, Fault> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let end = Arc::new(End {
            lines: (0..options.notifies).map(|_| Line::default()).collect(),
            gone: AtomicBool::new(false),
        });
        ENDS.lock()
            .unwrap()
            .get_or_insert_default()
            .insert(number, end.clone());
        Ok(Channel {
            number,
            end,
            peer: OnceLock::new(),
            opening: device.clone(),
        })
    }

    fn local_blob(channel: &Channel) -> Result<Vec<u8>, Fault> {
        Ok(channel.number.to_le_bytes().to_vec())
    }

    fn connect(channel: &Channel, peer: &[u8]) -> Result<Connect, Fault> {
        let number = u64::from_le_bytes(peer.try_into().unwrap());
        let end = ENDS.lock().unwrap().as_ref().unwrap()[&number].clone();
        let _ = channel.peer.set(end);
        Ok(Connect::Connected)
    }

    fn destroy_channel(channel: &Channel) {
        channel.end.gone.store(true, Ordering::Release);
    }

    fn post(channel: &Channel, batch: &[DescriptorV1]) -> Posted {
        let mut queue = channel.opening.queue.lock().unwrap();
        let mut accepted = 0;
        for descriptor in batch {
            if queue.len() == DEPTH {
                break;
            }
            if channel.opening.index == 1 {
                assert_eq!(descriptor.flags, 0);
                assert!(descriptor.opcode == OP_NOTIFY || !descriptor.local_region.is_null());
            }
            queue.push_back(Job {
                descriptor: *descriptor,
                target: channel.peer.get().unwrap().clone(),
            });
            accepted += 1;
        }
        Posted {
            accepted,
            inline_done: 0,
            status: if accepted as usize == batch.len() {
                STATUS_OK
            } else {
                STATUS_NO_RESOURCE
            },
        }
    }

    fn poll(device: &Arc<Opening>, out: &mut [CompletionV1]) -> Result<usize, i32> {
        let mut done = device.done.lock().unwrap();
        let count = done.len().min(out.len());
        for (slot, completion) in out.iter_mut().zip(done.drain(..count)) {
            *slot = completion;
        }
        Ok(count)
    }

    fn flush(channel: &Channel) -> Result<bool, i32> {
        Ok(channel.opening.queue.lock().unwrap().is_empty())
    }

    fn progress(device: &Arc<Opening>) -> Result<bool, i32> {
        if device.index == 2 && STALLED.load(Ordering::Acquire) {
            return Ok(false);
        }
        let mut queue = device.queue.lock().unwrap();
        let ordered = |job: &Job| {
            job.descriptor.opcode == OP_NOTIFY || job.descriptor.flags & FLAG_NOTIFY != 0
        };
        let free = queue.iter().position(ordered).unwrap_or(queue.len());
        let Some(job) = queue.remove(free.saturating_sub(1)) else {
            return Ok(false);
        };
        let Job { descriptor, target } = job;
        // SAFETY: the ABI's promises: both ranges exist, and only we touch them now.
        unsafe { run(&descriptor) };
        if descriptor.opcode == OP_NOTIFY || descriptor.flags & FLAG_NOTIFY != 0 {
            let line = &target.lines[descriptor.notify as usize];
            for (word, value) in line.fingerprint.iter().zip(descriptor.fingerprint) {
                if value != 0 {
                    word.store(value, Ordering::Relaxed);
                }
            }
            line.count.fetch_add(1, Ordering::Release);
        }
        device.done.lock().unwrap().push_back(CompletionV1 {
            cookie: descriptor.cookie,
            status: STATUS_OK,
            reserved: 0,
        });
        if let Some(host) = HOST.get() {
            host.ring();
        }
        Ok(true)
    }

    fn notify_line(channel: &Channel, index: u32) -> Option<NonNull<NotifyLineV1>> {
        let line = channel.end.lines.get(index as usize)?;
        Some(NonNull::from(line).cast())
    }

    fn check(channel: &Channel) -> Result<(), i32> {
        match channel.peer.get() {
            Some(peer) if peer.gone.load(Ordering::Acquire) => Err(STATUS_PEER_LOST),
            Some(_) => Ok(()),
            None => Err(STATUS_NOT_CONNECTED),
        }
    }
}

/// Does the bytes of a descriptor.
///
/// # Safety
/// The descriptor is valid.
unsafe fn run(descriptor: &DescriptorV1) {
    if descriptor.opcode == OP_NOTIFY {
        return;
    }
    let bytes = descriptor.bytes as usize;
    let local = descriptor.local.cast::<u8>();
    // SAFETY: an import that this plugin made, in the shell that the ABI crate puts around it.
    let remote = unsafe { &*descriptor.remote.cast::<Import>() }.0.as_ptr();
    // SAFETY: bounds were checked by the host.
    let remote = unsafe { remote.add(descriptor.remote_offset as usize) };
    let reduce = |dst: *mut u8, a: *const u8, b: *const u8| {
        let dtype = hcomm_types::DataType::from_number(descriptor.dtype).unwrap();
        // SAFETY: both ranges exist.
        unsafe {
            HOST.get()
                .unwrap()
                .reduce(
                    dst.cast(),
                    a.cast(),
                    b.cast(),
                    (bytes / dtype.size()) as u64,
                    descriptor.dtype,
                    descriptor.redop,
                )
                .unwrap();
        }
    };
    match descriptor.opcode {
        // SAFETY: both ranges exist.
        OP_WRITE => unsafe { std::ptr::copy(local, remote, bytes) },
        // SAFETY: as above.
        OP_READ => unsafe { std::ptr::copy(remote, local, bytes) },
        OP_WRITE_REDUCE => reduce(remote, remote, local),
        OP_READ_REDUCE => reduce(local, local, remote),
        opcode => panic!("opcode {opcode}"),
    }
}
