// A transport in C, inside one process, written against hcomm_transport.h alone. A peer's memory
// is a plain pointer. Regions and ends are found by their numbers each time, under one lock, so
// nothing dangles; numbers are not used twice, so it serves OBJECTS of them and no more.

#include "hcomm_transport.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK HCOMM_STATUS_OK
enum { END = 1, REGION = 2, MAX_NOTIFIES = 1024, MAX_BATCH = 64, OBJECTS = 1 << 16 };

struct hcomm_device_t { uint32_t open; }; // regions, imports and channels
struct hcomm_region_t { uint64_t number, bytes; hcomm_device_t *device; char *base; };
struct hcomm_import_t { uint64_t region; };
struct hcomm_channel_t {
    uint64_t number, peer; // peer: 0 before connect
    hcomm_device_t *device;
    hcomm_notify_line_v1_t *lines;
    uint32_t notifies, connected;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const hcomm_host_v1_t *host;
static hcomm_region_t *regions[OBJECTS];
static hcomm_channel_t *ends[OBJECTS];
static uint64_t last_number; // of both
static _Thread_local const char *said = "";

static int32_t fail(int32_t status, const char *text) { return said = text, status; }
static int32_t unlock(int32_t status, const char *text) {
    return pthread_mutex_unlock(&lock), status < 0 ? fail(status, text) : status;
}

typedef struct { uint64_t kind, process, number; } blob_t;
static int32_t give(uint64_t kind, uint64_t number, uint8_t *out, uint32_t capacity, uint32_t *len) {
    blob_t blob = {kind, (uint64_t)getpid(), number};
    if (capacity < sizeof blob) return fail(HCOMM_STATUS_BUFFER_TOO_SMALL, "a blob has 24 bytes");
    return memcpy(out, &blob, *len = sizeof blob), OK;
}
static uint64_t take(uint64_t kind, const uint8_t *in, uint32_t len) { // 0: not a blob of ours
    blob_t blob = {0, 0, 0};
    if (len == sizeof blob) memcpy(&blob, in, len);
    return blob.kind == kind && blob.process == (uint64_t)getpid() && blob.number < OBJECTS ? blob.number : 0;
}

static int32_t init(const hcomm_host_v1_t *table) { return host = table, OK; }
static int32_t device_count(uint32_t *count) { return *count = 1, OK; }
static int32_t query_device(uint32_t index, hcomm_device_attr_v1_t *attr) {
    if (index != 0) return fail(HCOMM_STATUS_INVALID_ARGUMENT, "there is only device 0");
    *attr = (hcomm_device_attr_v1_t){
        .name = "mini0", .protocol = 9, .latency_ns = 100, .bytes_per_s = 5000000000,
        .capabilities = HCOMM_CAP_WRITE | HCOMM_CAP_READ | HCOMM_CAP_NOTIFY | HCOMM_CAP_WRITE_NOTIFY | HCOMM_CAP_MAP |
                        HCOMM_CAP_ALLOCATE | HCOMM_CAP_PASSIVE_MAPPED | HCOMM_CAP_LOCAL_ANY | HCOMM_CAP_SAME_PROCESS,
        .max_transfer_bytes = UINT64_C(1) << 47, .max_notify_outstanding = UINT64_MAX, .max_batch = MAX_BATCH,
        .max_notifies = MAX_NOTIFIES, .max_blob_bytes = sizeof(blob_t), .numa_node = -1};
    return OK;
}
static const hcomm_data_ops_v1_t data_ops;
static int32_t open_device(uint32_t index, hcomm_device_t **device, const hcomm_data_ops_v1_t **ops) {
    if (index != 0) return fail(HCOMM_STATUS_INVALID_ARGUMENT, "there is only device 0");
    *ops = &data_ops;
    return (*device = calloc(1, sizeof **device)) ? OK : fail(HCOMM_STATUS_LIMIT, "out of memory");
}
static int32_t close_device(hcomm_device_t *device) {
    pthread_mutex_lock(&lock);
    if (device->open) return unlock(HCOMM_STATUS_BUSY, "regions, imports or channels are open");
    return free(device), unlock(OK, "");
}

static int32_t allocate(hcomm_device_t *device, uint64_t bytes, hcomm_region_t **region, void **address) {
    size_t whole = bytes < SIZE_MAX - 4096 ? (bytes + 4095) & ~(size_t)4095 : SIZE_MAX & ~(size_t)4095;
    hcomm_region_t *made = malloc(sizeof *made);
    void *base = aligned_alloc(4096, whole);
    pthread_mutex_lock(&lock);
    if (!made || !base || last_number + 1 == OBJECTS)
        return free(made), free(base), unlock(HCOMM_STATUS_LIMIT, "out of memory or of numbers");
    *made = (hcomm_region_t){++last_number, bytes, device, *address = memset(base, 0, whole)};
    return *region = regions[made->number] = made, device->open++, unlock(OK, "");
}
static int32_t deregister(hcomm_device_t *device, hcomm_region_t *region) {
    pthread_mutex_lock(&lock);
    regions[region->number] = NULL;
    return free(region->base), free(region), device->open--, unlock(OK, "");
}
static int32_t export_region(hcomm_device_t *d, hcomm_region_t *region, uint8_t *blob, uint32_t room, uint32_t *len) {
    return (void)d, give(REGION, region->number, blob, room, len);
}
static int32_t state(const hcomm_channel_t *channel) { // with the lock held
    if (!channel->connected) return HCOMM_STATUS_NOT_CONNECTED;
    return ends[channel->peer] ? OK : HCOMM_STATUS_PEER_LOST;
}
static int32_t import_region(hcomm_channel_t *channel, const uint8_t *blob, uint32_t len, hcomm_import_t **import,
                             hcomm_import_attr_v1_t *attr) {
    uint64_t number = take(REGION, blob, len);
    if (!number) return fail(HCOMM_STATUS_BAD_BLOB, "not a region of this process");
    pthread_mutex_lock(&lock);
    if (state(channel) != OK) return unlock(state(channel), "not connected, or the peer is gone");
    hcomm_region_t *region = regions[number];
    if (!region || region->device != ends[channel->peer]->device) return unlock(HCOMM_STATUS_STALE_KEY, "stale key");
    if (!(*import = malloc(sizeof **import))) return unlock(HCOMM_STATUS_LIMIT, "out of memory");
    (*import)->region = number;
    *attr = (hcomm_import_attr_v1_t){region->bytes, region->base};
    return channel->device->open++, unlock(OK, "");
}
static int32_t release_import(hcomm_channel_t *channel, hcomm_import_t *import) {
    pthread_mutex_lock(&lock);
    return free(import), channel->device->open--, unlock(OK, "");
}

static int32_t create_channel(hcomm_device_t *device, const hcomm_channel_attr_v1_t *attr, hcomm_channel_t **out) {
    size_t bytes = (attr->notifies + (size_t)1) * sizeof(hcomm_notify_line_v1_t);
    if (attr->notifies > MAX_NOTIFIES) return fail(HCOMM_STATUS_INVALID_ARGUMENT, "at most 1024 notifies");
    hcomm_channel_t *made = malloc(sizeof *made);
    void *lines = aligned_alloc(64, bytes);
    pthread_mutex_lock(&lock);
    if (!made || !lines || last_number + 1 == OBJECTS)
        return free(made), free(lines), unlock(HCOMM_STATUS_LIMIT, "out of memory or of numbers");
    *made = (hcomm_channel_t){++last_number, 0, device, memset(lines, 0, bytes), attr->notifies, 0};
    return *out = ends[made->number] = made, device->open++, unlock(OK, "");
}
static int32_t local_blob(hcomm_channel_t *channel, uint8_t *blob, uint32_t capacity, uint32_t *len) {
    return give(END, channel->number, blob, capacity, len);
}
static int32_t connect_end(hcomm_channel_t *channel, const uint8_t *blob, uint32_t len) {
    uint64_t number = take(END, blob, len);
    if (!number) return fail(HCOMM_STATUS_BAD_BLOB, "not an end of this process");
    pthread_mutex_lock(&lock);
    hcomm_channel_t *peer = ends[number];
    if (!peer) return unlock(HCOMM_STATUS_PEER_LOST, "the peer's end is destroyed");
    if (peer == channel || (channel->peer && channel->peer != number))
        return unlock(HCOMM_STATUS_INVALID_ARGUMENT, "connects to itself, or to a second end");
    channel->peer = number;
    if (peer->peer && peer->peer != channel->number) return unlock(HCOMM_STATUS_REFUSED, "it has another peer");
    return unlock((channel->connected = peer->peer != 0) ? OK : HCOMM_STATUS_IN_PROGRESS, "");
}
static int32_t destroy_channel(hcomm_channel_t *channel) {
    pthread_mutex_lock(&lock);
    ends[channel->number] = NULL;
    channel->device->open--, free(channel->lines), free(channel);
    return host->ring(host->context), unlock(OK, "");
}
static uint32_t last_error(char *text, uint32_t capacity) {
    uint32_t len = (uint32_t)strlen(said);
    return memcpy(text, said, len = len < capacity ? len : capacity), len;
}

static int32_t carry_out(hcomm_channel_t *channel, const hcomm_descriptor_v1_t *d) { // with the lock held
    int notify = d->opcode == HCOMM_OP_NOTIFY || d->flags & HCOMM_FLAG_NOTIFY;
    if (state(channel) != OK) return state(channel);
    if (d->opcode > HCOMM_OP_NOTIFY) return HCOMM_STATUS_UNSUPPORTED;
    if (notify && d->notify >= ends[channel->peer]->notifies) return HCOMM_STATUS_INVALID_ARGUMENT;
    if (d->opcode != HCOMM_OP_NOTIFY) {
        if (!d->remote || (!d->local && d->bytes)) return HCOMM_STATUS_INVALID_ARGUMENT;
        hcomm_region_t *r = regions[d->remote->region];
        if (!r) return HCOMM_STATUS_STALE_KEY;
        if (d->remote_offset > r->bytes || d->bytes > r->bytes - d->remote_offset) return HCOMM_STATUS_OUT_OF_BOUNDS;
        char *far = r->base + d->remote_offset;
        if (d->bytes && d->opcode == HCOMM_OP_WRITE) memmove(far, d->local, d->bytes);
        if (d->bytes && d->opcode == HCOMM_OP_READ) memmove(d->local, far, d->bytes);
    }
    if (!notify) return OK;
    hcomm_notify_line_v1_t *line = &ends[channel->peer]->lines[d->notify];
    for (int half = 0; half < 2; half++)
        if (d->fingerprint[half]) __atomic_store_n(&line->fingerprint[half], d->fingerprint[half], __ATOMIC_RELAXED);
    __atomic_fetch_add(&line->count, 1, __ATOMIC_RELEASE);
    return host->ring(host->context), OK;
}
static int32_t post(hcomm_channel_t *channel, const hcomm_descriptor_v1_t *d, uint32_t count, uint32_t *accepted,
                    uint32_t *inline_done) {
    int32_t status = count <= MAX_BATCH ? OK : HCOMM_STATUS_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    for (*accepted = 0; status == OK && *accepted < count && (status = carry_out(channel, d)) == OK; d++) ++*accepted;
    *inline_done = *accepted;
    return unlock(status, "the descriptor is not acceptable, or the peer is gone");
}
static int32_t poll_device(hcomm_device_t *device, hcomm_completion_v1_t *out, uint32_t capacity, uint32_t *count) {
    return (void)device, (void)out, (void)capacity, *count = 0, OK;
}
static int32_t check(hcomm_channel_t *channel) { // and flush: what was accepted has landed
    pthread_mutex_lock(&lock);
    return unlock(state(channel), "not connected, or the peer is gone");
}
static int32_t progress(hcomm_device_t *device) { return (void)device, HCOMM_STATUS_IN_PROGRESS; }
static hcomm_notify_line_v1_t *notify_line(hcomm_channel_t *channel, uint32_t index) {
    return index < channel->notifies ? &channel->lines[index] : NULL;
}

#define HEADER(table) {HCOMM_MAGIC, HCOMM_MAJOR, HCOMM_MINOR, sizeof(table)}
static const hcomm_data_ops_v1_t data_ops = {
    .header = HEADER(hcomm_data_ops_v1_t), .post = post, .poll = poll_device, .flush = check, .progress = progress,
    .notify_line = notify_line, .check = check};
static const hcomm_transport_v1_t transport = {
    .header = HEADER(hcomm_transport_v1_t), .name = "mini", .vendor = "hcomm", .version = "1", .protocols = 1u << 9,
    .init = init, .device_count = device_count, .query_device = query_device, .open_device = open_device,
    .close_device = close_device, .allocate = allocate, .deregister = deregister, .export_region = export_region,
    .import_region = import_region, .release_import = release_import, .create_channel = create_channel,
    .local_blob = local_blob, .connect = connect_end, .destroy_channel = destroy_channel, .last_error = last_error};
const hcomm_transport_v1_t *hcomm_transport_v1(void) { return &transport; }
