// The plugin ABI of hcomm, for transports written in C or C++.
//
// Generated from transports/abi/src/tables.rs by `cargo xtask abi`; do not edit.
//
// A transport is a shared library named libhcomm_transport_<name>.so that exports one
// function, hcomm_transport_v1 (at the end of this file). To build one:
//
//     cc -std=c11 -O2 -shared -fPIC -fvisibility=hidden -I <folder of this file>
//        -o libhcomm_transport_<name>.so <name>.c        (one line)
//
// Put it into a folder that HCOMM_TRANSPORT_PATH names (not world-writable) and look at
// it with `hcomm transports`.
//
// The tables, field by field. Everything here crosses the border between host and plugin.
//
// Rules that hold for every call, unless its own text says otherwise:
//
// * Nothing unwinds across the border and nothing blocks. A call that has to wait returns
//   `HCOMM_STATUS_IN_PROGRESS` and is called again.
// * Slow calls (those of `hcomm_transport_v1_t`) may come from any OS thread, also while a fast call on
//   the same channel runs on another; the plugin serialises them where it must. Fast calls (those
//   of `hcomm_data_ops_v1_t`) on one channel come from one OS thread at a time; `progress`, `poll` and
//   `arm` on one device come from one OS thread at a time.
// * Whoever allocates frees. Strings and blobs are copied into the caller's buffer.
// * After a negative status, `last_error` on the same OS thread gives the text to it.
// * Names of peers, ranks and hosts are not known here: a channel is the only identity.
// * Once `check` or a completion has reported that a channel is lost or its link down, the plugin
//   touches no local memory of its descriptors any more.

#ifndef HCOMM_TRANSPORT_H
#define HCOMM_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_MSC_VER)
#define HCOMM_ALIGNED(bytes) __declspec(align(bytes))
#else
#define HCOMM_ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif

// Puts hcomm_transport_v1 among the symbols of a library built with -fvisibility=hidden.
#if defined(_MSC_VER)
#define HCOMM_EXPORT __declspec(dllexport)
#else
#define HCOMM_EXPORT __attribute__((visibility("default")))
#endif

// An open device. Made and understood by the plugin alone.
typedef struct hcomm_device_t hcomm_device_t;

// Registered or allocated memory of this side. Made and understood by the plugin alone.
typedef struct hcomm_region_t hcomm_region_t;

// A peer's region as seen from this side. Made and understood by the plugin alone.
typedef struct hcomm_import_t hcomm_import_t;

// One end of a connection. Made and understood by the plugin alone.
typedef struct hcomm_channel_t hcomm_channel_t;

// First eight bytes of every table: "hcommTP" and a zero, little end first.
#define HCOMM_MAGIC UINT64_C(0x0050546d6d6f6368)

// Major version. Hosts and plugins with different majors refuse each other. 0 until V1 freezes.
#define HCOMM_MAJOR UINT16_C(0)

// Minor version, for print-outs only.
#define HCOMM_MINOR UINT16_C(1)

// Done.
#define HCOMM_STATUS_OK 0

// Not done yet: call again.
#define HCOMM_STATUS_IN_PROGRESS 1

// An argument is not acceptable. (-1 to -99 concern the call alone.)
#define HCOMM_STATUS_INVALID_ARGUMENT (-1)

// This plugin or device cannot do that.
#define HCOMM_STATUS_UNSUPPORTED (-2)

// Back-pressure: queue or ring full. Not an error; call `progress` and post again. When room
// appears for a channel that has said so, the plugin rings the bell or makes `wake_fd` readable.
#define HCOMM_STATUS_NO_RESOURCE (-3)

// A range lies outside its region.
#define HCOMM_STATUS_OUT_OF_BOUNDS (-4)

// The caller's buffer is too small.
#define HCOMM_STATUS_BUFFER_TOO_SMALL (-5)

// The blob was not made by this kind of plugin, or not by this version of it.
#define HCOMM_STATUS_BAD_BLOB (-6)

// The region behind a key does not exist any more, or the key is wrong.
#define HCOMM_STATUS_STALE_KEY (-7)

// A system limit was reached; the text says which, with need and limit.
#define HCOMM_STATUS_LIMIT (-8)

// The operating system said no.
#define HCOMM_STATUS_SYSTEM (-9)

// More notifies outstanding on one index than the link can hold.
#define HCOMM_STATUS_NOTIFY_OVERFLOW (-10)

// Still in use: regions or channels of it are open.
#define HCOMM_STATUS_BUSY (-11)

// The peer is gone. (-100 to -199 concern the channel.)
#define HCOMM_STATUS_PEER_LOST (-100)

// The channel is not connected.
#define HCOMM_STATUS_NOT_CONNECTED (-101)

// The link failed.
#define HCOMM_STATUS_LINK_DOWN (-102)

// The peer did not prove who it is.
#define HCOMM_STATUS_REFUSED (-103)

// The device cannot be used any more. (-200 to -299 concern the device.)
#define HCOMM_STATUS_DEVICE_BROKEN (-200)

// The vendor library is not on this system. (-300 to -399 concern the plugin.)
#define HCOMM_STATUS_MISSING_LIBRARY (-300)

// The vendor library lacks a function.
#define HCOMM_STATUS_MISSING_SYMBOL (-301)

// There is no device of this kind on this system.
#define HCOMM_STATUS_NO_DEVICE (-302)

// A promise inside the plugin was broken (a panic, in Rust).
#define HCOMM_STATUS_INTERNAL (-900)

// Capability: `HCOMM_OP_WRITE`.
#define HCOMM_CAP_WRITE (UINT64_C(1) << 0)

// Capability: `HCOMM_OP_READ`.
#define HCOMM_CAP_READ (UINT64_C(1) << 1)

// Capability: `HCOMM_OP_NOTIFY`.
#define HCOMM_CAP_NOTIFY (UINT64_C(1) << 2)

// Capability: `HCOMM_FLAG_NOTIFY` on writes.
#define HCOMM_CAP_WRITE_NOTIFY (UINT64_C(1) << 3)

// Capability: `HCOMM_OP_WRITE_REDUCE` for all data types and operations.
#define HCOMM_CAP_WRITE_REDUCE (UINT64_C(1) << 4)

// Capability: `HCOMM_OP_READ_REDUCE` for all data types and operations.
#define HCOMM_CAP_READ_REDUCE (UINT64_C(1) << 5)

// Capability: `allocate`.
#define HCOMM_CAP_ALLOCATE (UINT64_C(1) << 6)

// Capability: `register` of memory that the user brings.
#define HCOMM_CAP_REGISTER (UINT64_C(1) << 7)

// Promise: an import of allocated memory has an address, and loads and stores through it work.
#define HCOMM_CAP_MAP (UINT64_C(1) << 8)

// Promise: writes and reads of mapped memory, and all notifies, land without any call by the
// target's side.
#define HCOMM_CAP_PASSIVE_MAPPED (UINT64_C(1) << 9)

// Promise: the same for registered memory that is not mapped.
#define HCOMM_CAP_PASSIVE_REGISTERED (UINT64_C(1) << 10)

// Promise: the local side of a descriptor may be any memory of this process (`local_region` null).
#define HCOMM_CAP_LOCAL_ANY (UINT64_C(1) << 11)

// Promise: ends of a channel may be in one process.
#define HCOMM_CAP_SAME_PROCESS (UINT64_C(1) << 12)

// Promise: ends of a channel may be in different processes of one host.
#define HCOMM_CAP_CROSS_PROCESS (UINT64_C(1) << 13)

// Promise: ends of a channel may be on different hosts.
#define HCOMM_CAP_CROSS_HOST (UINT64_C(1) << 14)

// Demand: who sleeps for data must watch `wake_fd`, because arrivals do not ring the bell.
#define HCOMM_CAP_WAKE_FD (UINT64_C(1) << 15)

// Opcode: bytes from local to remote.
#define HCOMM_OP_WRITE UINT32_C(0)

// Opcode: bytes from remote to local.
#define HCOMM_OP_READ UINT32_C(1)

// Opcode: add one to a notify of the peer, no bytes.
#define HCOMM_OP_NOTIFY UINT32_C(2)

// Opcode: remote = remote op local, element by element.
#define HCOMM_OP_WRITE_REDUCE UINT32_C(3)

// Opcode: local = local op remote, element by element.
#define HCOMM_OP_READ_REDUCE UINT32_C(4)

// Flag of a write: add one to notify `notify` of the peer, after this and all earlier
// descriptors of the channel have landed.
#define HCOMM_FLAG_NOTIFY (UINT32_C(1) << 0)

// Log level: something an operator must see.
#define HCOMM_LOG_ERROR UINT32_C(1)

// Log level: something is not as it should be.
#define HCOMM_LOG_WARN UINT32_C(2)

// Log level: a step in the life of a device or channel.
#define HCOMM_LOG_INFO UINT32_C(3)

// Log level: for whoever looks for a cause.
#define HCOMM_LOG_DEBUG UINT32_C(4)

// First field of every table; read before anything else. Frozen for ever.
typedef struct hcomm_header_t {
    // `HCOMM_MAGIC`.
    uint64_t magic;
    // `HCOMM_MAJOR`.
    uint16_t major;
    // `HCOMM_MINOR`.
    uint16_t minor;
    // Bytes of the table that begins with this header.
    uint32_t size;
} hcomm_header_t;

// What a device is, can do, allows and costs.
typedef struct hcomm_device_attr_v1_t {
    // Name, ended by a zero: the same on every call, unique in the plugin.
    char name[64];
    // One of the protocol numbers of hcomm: 0 shm, 1 tcp, 2 roce, 3 hccs, 4 pcie, 5 ubc_tp,
    // 6 ubc_ctp, 7 ub_mem, 8 uboe, 9 loop.
    uint32_t protocol;
    // Kind of `address`: 0 number (first 8 bytes, little end first), 4 IPv4 (first 4 bytes),
    // 6 IPv6, 16 EID.
    uint32_t address_kind;
    // Address.
    uint8_t address[16];
    // `HCOMM_CAP_…` bits.
    uint64_t capabilities;
    // α: time of an empty transfer, in ns.
    uint64_t latency_ns;
    // β: bytes per second of a large transfer.
    uint64_t bytes_per_s;
    // Largest transfer of one descriptor, in bytes.
    uint64_t max_transfer_bytes;
    // Notifies that may be outstanding on one index.
    uint64_t max_notify_outstanding;
    // Descriptors that one `post` may carry.
    uint32_t max_batch;
    // Notifies (indices) of one channel and direction.
    uint32_t max_notifies;
    // Largest blob of `export_region` and `local_blob`, in bytes.
    uint32_t max_blob_bytes;
    // NUMA node the device is near to, or -1.
    int32_t numa_node;
} hcomm_device_attr_v1_t;

// What is asked of a new channel.
typedef struct hcomm_channel_attr_v1_t {
    // Notifies (indices) that this side can wait on.
    uint32_t notifies;
    // Descriptors that may be outstanding.
    uint32_t queue_depth;
    // Traffic class, where the link has one.
    uint32_t traffic_class;
    // Service level, where the link has one.
    uint32_t service_level;
    // Zero.
    uint32_t reserved[4];
} hcomm_channel_attr_v1_t;

// What an import is.
typedef struct hcomm_import_attr_v1_t {
    // Bytes of the peer's region.
    uint64_t bytes;
    // Address of the peer's memory in this process, or null where the link cannot map it.
    void *address;
} hcomm_import_attr_v1_t;

// One piece of work.
typedef struct hcomm_descriptor_v1_t {
    // `HCOMM_OP_…`.
    uint32_t opcode;
    // `HCOMM_FLAG_…` bits.
    uint32_t flags;
    // Local memory.
    void *local;
    // Region that holds `local`; null where the device promises `HCOMM_CAP_LOCAL_ANY`.
    hcomm_region_t *local_region;
    // The peer's region; null for `HCOMM_OP_NOTIFY`.
    hcomm_import_t *remote;
    // Offset in the peer's region, in bytes.
    uint64_t remote_offset;
    // Bytes to move.
    uint64_t bytes;
    // Notify to add to, for `HCOMM_OP_NOTIFY` and `HCOMM_FLAG_NOTIFY`.
    uint32_t notify;
    // Data type of reductions: 0..3 signed 8..64 bit, 4..7 unsigned, 8 f16, 9 bf16, 10 f32, 11 f64.
    uint32_t dtype;
    // Operation of reductions: 0 sum, 1 prod, 2 max, 3 min.
    uint32_t redop;
    // Zero.
    uint32_t reserved;
    // Travels with the notify into its line, before the count changes; a word that is zero leaves
    // what is there.
    uint64_t fingerprint[2];
    // Comes back in the completion.
    uint64_t cookie;
} hcomm_descriptor_v1_t;

// The end of a descriptor that was not done inside `post`.
typedef struct hcomm_completion_v1_t {
    // The descriptor's cookie.
    uint64_t cookie;
    // `HCOMM_STATUS_OK` or what went wrong.
    int32_t status;
    // Zero.
    uint32_t reserved;
} hcomm_completion_v1_t;

// Where a notify arrives, written by one recorder and read by one waiter: half a cache line, so that
// a link on which both ends look at the same memory can put a notify and the one of the same
// index that goes the other way into one line. Whoever answers on it then has it already.
//
// How often it was recorded is the sum of `count` and `served`: two words, so that each has one
// writer, which need not add in one atomic step.
typedef struct HCOMM_ALIGNED(32) hcomm_notify_line_v1_t {
    // How often the peer's side recorded the notify since the channel was made. The waiter keeps
    // to itself how many it has taken. Read and written as one atomic word.
    uint64_t count;
    // Of each word, that of the latest record that carried one: not zero.
    uint64_t fingerprint[2];
    // How often the transport's own side, the waiter's, recorded it on behalf of the peer, from
    // `progress`. Read and written as one atomic word.
    uint64_t served;
} hcomm_notify_line_v1_t;

// The bell's words. To ring: full fence; if `sleepers` is not zero, add one to `sequence` and
// wake all futex waiters on it; if `pollers` is not zero, write to the eventfd.
typedef struct HCOMM_ALIGNED(64) hcomm_bell_v1_t {
    // Futex word.
    uint32_t sequence;
    // Threads that sleep on `sequence`, or are about to.
    uint32_t sleepers;
    // Threads that sleep on the eventfd, or are about to.
    uint32_t pollers;
    // 1 if whoever sleeps here runs, between announcing it and the last look, the barrier of
    // `membarrier(2)` on all processes that are registered for the global expedited one. Ringers
    // of such a process may leave their fence out.
    uint32_t barrier;
    // Zero.
    uint32_t reserved[12];
} hcomm_bell_v1_t;

// Where the peer of a connected channel waits, for links on which this process can store there
// itself. The host then records without a call, as `post` would: words of the fingerprint that are
// not zero, and then one more in `count` of the line, as a release store; it does so only while nothing that it has
// posted on the channel is unfinished, and from the thread whose turn the fast calls are. It
// looks at the bell afterwards and calls `ring` if somebody sleeps.
typedef struct hcomm_peer_v1_t {
    // The first of the peer's notify lines, writable until the channel is destroyed.
    struct hcomm_notify_line_v1_t *lines;
    // How many there are.
    uint32_t notifies;
    // Bytes from one to the next.
    uint32_t stride;
    // Words of the peer's bell, readable until the channel is destroyed; null if the peer is in
    // this process, whose bell the host knows.
    const struct hcomm_bell_v1_t *bell;
    // `HCOMM_STATUS_OK` as long as the channel works, then why it does not: in memory of this process,
    // valid until the channel is destroyed, changed by the plugin at any time. Read as one atomic
    // word. Once it is not `HCOMM_STATUS_OK` the host calls `post`, which says so.
    const int32_t *state;
} hcomm_peer_v1_t;

// Counters of a device since it was opened.
typedef struct hcomm_counters_v1_t {
    // Descriptors accepted.
    uint64_t descriptors;
    // Bytes written to peers.
    uint64_t bytes_written;
    // Bytes read from peers.
    uint64_t bytes_read;
    // Notifies recorded at peers.
    uint64_t notifies;
    // Bytes that went through a buffer in between.
    uint64_t bytes_staged;
    // Control messages that the link itself does not need for moving bytes.
    uint64_t control_messages;
    // Retransmissions, where the link has them.
    uint64_t retransmissions;
    // Packets or descriptors dropped, where the link has them.
    uint64_t drops;
} hcomm_counters_v1_t;

// What the host offers. Given at init; stays valid for ever.
typedef struct hcomm_host_v1_t {
    // Header of this table.
    struct hcomm_header_t header;
    // First argument of the functions below.
    void *context;
    // Takes a log line of `level` (`HCOMM_LOG_…`); `text` is `len` bytes of UTF-8. Any thread.
    void (*log)(void *context, uint32_t level, const char *text, size_t len);
    // Now, in nanoseconds of the host's clock. Any thread.
    uint64_t (*now_ns)(void *context);
    // `dst[i] = a[i] op b[i]` for `count` elements; `dst` may be `a` or `b`. Any thread.
    // Returns a status.
    int32_t (*reduce)(void *dst,
                      const void *a,
                      const void *b,
                      uint64_t count,
                      uint32_t dtype,
                      uint32_t redop);
    // Wakes whoever of this process sleeps in the host's waiter. Any thread.
    void (*ring)(void *context);
    // Descriptor of the memory (a memfd of one page) in which the bell's words lie, to be handed
    // to peers of this host, or -1. The words are those of `hcomm_bell_v1_t`.
    int32_t bell_memfd;
    // Offset of the `hcomm_bell_v1_t` in it.
    uint32_t bell_offset;
    // Event descriptor to write to when `hcomm_bell_v1_t.pollers` is not zero, or -1.
    int32_t bell_eventfd;
    // Zero.
    uint32_t reserved;
} hcomm_host_v1_t;

// The fast calls of a device. None blocks, none allocates. Entries marked *optional* may be null.
typedef struct hcomm_data_ops_v1_t {
    // Header of this table.
    struct hcomm_header_t header;
    // Takes a batch of `count` descriptors; accepts a prefix and writes its length. Descriptors
    // of a batch are unordered among themselves, but that one with a notify comes after all
    // earlier ones. `HCOMM_STATUS_OK` when all were accepted, `HCOMM_STATUS_NO_RESOURCE` when the queue is
    // full, otherwise what is wrong with the first one that was not accepted. Descriptors done
    // inside the call have no completion; `inline_done` says how many of the accepted were.
    //
    // More than `max_batch` descriptors are refused with `HCOMM_STATUS_INVALID_ARGUMENT`, or accepted
    // up to that many. Zero bytes are legal, also at the very end of a region. A record on a
    // notify that the peer does not have is refused with `HCOMM_STATUS_INVALID_ARGUMENT` or
    // `HCOMM_STATUS_OUT_OF_BOUNDS`. After the loss of the peer, descriptors that were accepted and
    // have not completed get a completion with the error.
    int32_t (*post)(hcomm_channel_t *channel,
                    const struct hcomm_descriptor_v1_t *descriptors,
                    uint32_t count,
                    uint32_t *accepted,
                    uint32_t *inline_done);
    // Fills in completions of the whole device, at most `capacity`; `count` says how many.
    int32_t (*poll)(hcomm_device_t *device,
                    struct hcomm_completion_v1_t *completions,
                    uint32_t capacity,
                    uint32_t *count);
    // `HCOMM_STATUS_OK` when everything accepted on the channel is visible at the peer, else
    // `HCOMM_STATUS_IN_PROGRESS`.
    int32_t (*flush)(hcomm_channel_t *channel);
    // Moves everything on: serves peers, sends what waits. `HCOMM_STATUS_OK` when something was done,
    // `HCOMM_STATUS_IN_PROGRESS` when there was nothing to do.
    int32_t (*progress)(hcomm_device_t *device);
    // The line on which notify `index` of this side arrives; null if there is no such index or the
    // channel was never connected. Valid until the channel is destroyed.
    struct hcomm_notify_line_v1_t *(*notify_line)(hcomm_channel_t *channel, uint32_t index);
    // State of the channel: `HCOMM_STATUS_OK`, `HCOMM_STATUS_NOT_CONNECTED`, `HCOMM_STATUS_PEER_LOST`,
    // `HCOMM_STATUS_LINK_DOWN`. Called now and then while somebody waits; may make a system call.
    int32_t (*check)(hcomm_channel_t *channel);
    // A descriptor that becomes readable when `progress` or a `connect` has something to do, or
    // -1. *Optional.*
    int32_t (*wake_fd)(hcomm_device_t *device);
    // Asks for `wake_fd` to report the next arrival. `HCOMM_STATUS_IN_PROGRESS` if something has
    // arrived already: do not sleep. *Optional.*
    int32_t (*arm)(hcomm_device_t *device);
    // Wakes who sleeps at the peer: the host has recorded by itself (see `hcomm_peer_v1_t`) and seen in
    // the peer's bell that somebody does. *Optional.*
    void (*ring)(hcomm_channel_t *channel);
    // Copies `bytes` bytes at `address` of the peer's process to `local`, without the peer. The
    // peer lends that memory and keeps it as it is meanwhile, or says that it did not: the host
    // looks before and after. `HCOMM_STATUS_UNSUPPORTED` where the peer's process cannot be read from
    // here, also for zero bytes, which ask just that; `HCOMM_STATUS_SYSTEM` if there is no such memory,
    // `HCOMM_STATUS_PEER_LOST` if there is no such process any more. *Optional.*
    int32_t (*fetch)(hcomm_channel_t *channel, void *local, uint64_t address, uint64_t bytes);
} hcomm_data_ops_v1_t;

// The slow calls of a plugin. Entries marked *optional* may be null.
typedef struct hcomm_transport_v1_t {
    // Header of this table.
    struct hcomm_header_t header;
    // Short name: the `<name>` of `libhcomm_transport_<name>.so`. Ended by a zero.
    const char *name;
    // Who made it. Ended by a zero.
    const char *vendor;
    // Its own version. Ended by a zero.
    const char *version;
    // Protocols served, one bit a protocol number.
    uint32_t protocols;
    // Zero.
    uint32_t reserved;
    // Called once, before everything else but `last_error`. A plugin that cannot work here says
    // which of `HCOMM_STATUS_MISSING_LIBRARY`, `HCOMM_STATUS_MISSING_SYMBOL`, `HCOMM_STATUS_NO_DEVICE` it is.
    int32_t (*init)(const struct hcomm_host_v1_t *host);
    // Writes how many devices there are now.
    int32_t (*device_count)(uint32_t *count);
    // Fills in what device `index` is.
    int32_t (*query_device)(uint32_t index, struct hcomm_device_attr_v1_t *attr);
    // Opens device `index`; gives the device and the table of its fast calls, which stays valid
    // for ever. One device may be opened many times; the openings know nothing of each other.
    int32_t (*open_device)(uint32_t index,
                           hcomm_device_t **device,
                           const struct hcomm_data_ops_v1_t **ops);
    // Closes a device. `HCOMM_STATUS_BUSY` while regions, imports or channels of it are open.
    int32_t (*close_device)(hcomm_device_t *device);
    // Registers memory that the caller brings and keeps until deregistration. *Optional.*
    int32_t (*register_)(hcomm_device_t *device,
                         void *address,
                         uint64_t bytes,
                         hcomm_region_t **region);
    // Allocates zeroed memory, page-aligned, that peers can reach in the best way the link
    // has. *Optional.*
    int32_t (*allocate)(hcomm_device_t *device,
                        uint64_t bytes,
                        hcomm_region_t **region,
                        void **address);
    // Ends a registration, or frees allocated memory. Peers' imports of it become stale.
    int32_t (*deregister)(hcomm_device_t *device, hcomm_region_t *region);
    // Writes what a peer needs to import the region: at most `capacity` bytes, `len` says how many.
    int32_t (*export_region)(hcomm_device_t *device,
                             hcomm_region_t *region,
                             uint8_t *blob,
                             uint32_t capacity,
                             uint32_t *len);
    // Imports a region of the peer of a connected channel. May be in progress until the peer's
    // side has called `progress`; it is called again with the same blob, and `import` then
    // carries what was begun (null at first).
    int32_t (*import_region)(hcomm_channel_t *channel,
                             const uint8_t *blob,
                             uint32_t len,
                             hcomm_import_t **import,
                             struct hcomm_import_attr_v1_t *attr);
    // Forgets an import, also one in progress.
    int32_t (*release_import)(hcomm_channel_t *channel, hcomm_import_t *import);
    // Makes one end of a channel.
    int32_t (*create_channel)(hcomm_device_t *device,
                              const struct hcomm_channel_attr_v1_t *attr,
                              hcomm_channel_t **channel);
    // Writes what the peer's end needs: at most `capacity` bytes, `len` says how many.
    int32_t (*local_blob)(hcomm_channel_t *channel, uint8_t *blob, uint32_t capacity, uint32_t *len);
    // Connects with the end that made the blob; both sides call it, again and again while it is
    // in progress.
    int32_t (*connect)(hcomm_channel_t *channel, const uint8_t *blob, uint32_t len);
    // Fills in where the peer of a connected channel waits. `HCOMM_STATUS_UNSUPPORTED` where it cannot
    // be reached by stores of this process. *Optional.*
    int32_t (*map_peer)(hcomm_channel_t *channel, struct hcomm_peer_v1_t *peer);
    // Destroys an end. What was accepted and not completed is dropped without a completion; the
    // peer's end reports `HCOMM_STATUS_PEER_LOST` from `check`.
    int32_t (*destroy_channel)(hcomm_channel_t *channel);
    // Fills in the counters of a device. *Optional.*
    int32_t (*counters)(hcomm_device_t *device, struct hcomm_counters_v1_t *out);
    // Says, for people, in which way a connected channel moves bytes, and why in that way: writes
    // at most `capacity` bytes of UTF-8 without a closing zero; returns how many. *Optional.*
    uint32_t (*describe)(hcomm_channel_t *channel, char *text, uint32_t capacity);
    // Writes the text to the latest negative status on this OS thread: at most `capacity` bytes
    // without a closing zero; returns how many.
    uint32_t (*last_error)(char *text, uint32_t capacity);
    // A later ability by its number, or null. *Optional.*
    const void *(*extension)(uint32_t id);
} hcomm_transport_v1_t;

#ifdef __cplusplus
extern "C" {
#endif

// The door: every transport exports this function. The table it returns stays valid for
// ever.
HCOMM_EXPORT const hcomm_transport_v1_t *hcomm_transport_v1(void);

#ifdef __cplusplus
}
#endif

#endif // HCOMM_TRANSPORT_H
