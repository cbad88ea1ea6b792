/* SPDX-License-Identifier: Apache-2.0
 *
 * Attaching to a store of host devices, described by a scripted kvd: addresses, sharing, and every reason to refuse
 * (SRV-4).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "geometry.h"
#include "kvd.h"
#include "kvt.h"
#include "scripted.h"

#define PAGES 8u
#define CONTEXT 256u
#define ROWS 3u
#define SLOTS 5u
#define STATE_BYTES 1000u
#define STRIDE 1024u

/* ---- kvd's side of the socket of descriptors ------------------------------------------------------------------- */

enum counter_way {
    COUNTER_ANSWERS,
    COUNTER_WAITS_FOR_SIGNALS,
    COUNTER_SAYS_NOTHING,
    COUNTER_HANGS_UP,
    COUNTER_DENIES,
    COUNTER_IS_SHUT
};

#define REGIONS 3 /* planes, table, state */

struct counter {
    char path[64];
    int listener;
    const int *fds; /* [REGIONS], handed out by their numbers */
    enum counter_way way;
    pthread_t thread;
};

static sem_t signals;
static void count_signal(int number) {
    (void)number;
    sem_post(&signals);
}

static void hand_out(int to, uint32_t fd_index, int fd) {
    uint32_t answer[2] = { KVD_OK, fd_index };
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec part = { answer, sizeof answer };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    struct cmsghdr *h = CMSG_FIRSTHDR(&message);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    sendmsg(to, &message, MSG_NOSIGNAL);
}

/* One connection after another, until the listener is shut. */
static void *serve_counter(void *argument) {
    struct counter *c = argument;
    struct {
        uint64_t token;
        uint32_t fd_index, zero;
    } request;
    int fd;
    struct pollfd p = { .fd = c->listener, .events = POLLIN }; /* accept4 would hold a file's number while it waits */
    while (c->way != COUNTER_IS_SHUT && poll(&p, 1, -1) == 1 &&
           (fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        while (recv(fd, &request, sizeof request, 0) == (ssize_t)sizeof request && c->way != COUNTER_HANGS_UP) {
            if (c->way == COUNTER_WAITS_FOR_SIGNALS)
                for (int i = 0; i < 3; i++) sem_wait(&signals);
            if (c->way == COUNTER_DENIES)
                (void)!send(fd, &(uint32_t[]){ KVD_PERMISSION_DENIED, request.fd_index }, 8, MSG_NOSIGNAL);
            else if (c->way != COUNTER_SAYS_NOTHING && request.fd_index < REGIONS)
                hand_out(fd, request.fd_index, c->fds[request.fd_index]);
        }
        close(fd);
    }
    return NULL;
}

static bool open_counter(struct counter *c, const int *fds, enum counter_way way) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    memset(c, 0, sizeof *c);
    snprintf(c->path, sizeof c->path, "/tmp/kvd-attach-%d.fd", (int)getpid());
    memcpy(at.sun_path, c->path, sizeof c->path);
    unlink(c->path);
    c->way = way;
    c->fds = fds;
    c->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return c->listener >= 0 && !bind(c->listener, (const struct sockaddr *)&at, sizeof at) && !listen(c->listener, 0) &&
           !pthread_create(&c->thread, NULL, serve_counter, c);
}

static void close_counter(struct counter *c) {
    shutdown(c->listener, SHUT_RDWR);
    pthread_join(c->thread, NULL);
    close(c->listener);
    unlink(c->path);
}

/* ---- the bed --------------------------------------------------------------------------------------------------- */

struct bed {
    pid_t owner;  /* the process that holds the device; a region's own process would get no mapping */
    int leave;    /* closed: the owner goes */
    char *planes; /* the owner's memory, mapped here, too */
    int fds[REGIONS];
    struct counter counter;
    int32_t *table;
    size_t planes_bytes, table_bytes;
    struct kvd_region_info state; /* described only where a case says so */
    struct kvd_store_info info;
    unsigned left; /* the connection breaks at this description; 0: never */
    struct script *script;
    kvd_client *client;
};

static enum script_act describe(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct bed *bed = user;
    if (request->type != FRAME_DESCRIBE_STORE) return SCRIPT_ANSWER;
    if (bed->left && --bed->left == 0) return SCRIPT_DROP_UNRUN;
    reply->u.store = &bed->info;
    return SCRIPT_ANSWER;
}

static struct kvd_region_info region_info(const struct device_export *e, uint32_t fd_index) {
    struct kvd_region_info info = { .kind = e->kind,
                                    .fd_index = fd_index,
                                    .bytes = e->bytes,
                                    .owner_pid = e->owner_pid,
                                    .local_address = e->local_address };
    memcpy(info.uuid, e->uuid, sizeof info.uuid);
    return info;
}

/* Another process's descriptor, opened here. */
static int open_fd_of(const struct device_export *e) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)e->owner_pid, e->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void *map_fd(int fd, size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static struct geom_pool_spec spec_of(uint32_t layers, uint32_t kv_heads, uint32_t head_dim) {
    return (struct geom_pool_spec){ .storage = KVD_STORAGE_BF16,
                                    .order = GEOM_PAGE_MAJOR,
                                    .arrangement = GEOM_RECORD,
                                    .n_layers = layers,
                                    .n_kv_heads = kv_heads,
                                    .head_dim = head_dim,
                                    .n_ranks = 1 };
}

/* The owner: opens a device, tells its regions, stays until the pipe ends. */
static void own(int tell, int stay) {
    struct geom_pool_spec spec = spec_of(2, 2, 64);
    struct device_config config = { .kind = DEVICE_HOST, .memory_bytes = 64u << 20 };
    struct device *device;
    struct device_region *planes, *table, *state;
    struct device_export exported[3];
    char err[256], byte;
    if (device_open(&config, &device, err, sizeof err) ||
        device_region_new(device, "planes", geom_region_bytes(&spec, PAGES), 0, &planes, err, sizeof err) ||
        device_region_new(device, "table", ROWS * (CONTEXT / 64) * 4, 0xff, &table, err, sizeof err) ||
        device_region_new(device, "state", SLOTS * STRIDE, 0, &state, err, sizeof err))
        _exit(1);
    device_region_export(planes, &exported[0]);
    device_region_export(table, &exported[1]);
    device_region_export(state, &exported[2]);
    if (write(tell, exported, sizeof exported) != (ssize_t)sizeof exported) _exit(2);
    while (read(stay, &byte, 1) > 0) {
    }
    device_close(device);
    _exit(0);
}

static void seal(struct bed *bed) {
    struct kvd_pool_info *p = &bed->info.pool[0];
    struct geom_store_spec spec = { .backend = GEOM_OFF,
                                    .max_context = CONTEXT,
                                    .max_concurrency = ROWS,
                                    .state_bytes = bed->info.state_bytes,
                                    .main = spec_of(p->n_layers, p->n_kv_heads, p->head_dim) };
    struct geom_layout layout = { .n_pools = 1, .pages = { p->pages } };
    geom_digest(&spec, &layout, bed->info.geometry.bytes);
}

/* Owners are forked before this process has threads (what a sanitizer of threads insists on); each case takes one. */
#define OWNERS 14
static struct owner {
    pid_t pid;
    int told, leave;
} owners[OWNERS];
static int next_owner;

static bool fork_owners(void) {
    for (int i = 0; i < OWNERS; i++) {
        int tell[2], stay[2];
        if (pipe2(tell, O_CLOEXEC) != 0 || pipe2(stay, O_CLOEXEC) != 0) return false;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            for (int k = 0; k < i; k++) close(owners[k].leave); /* each owner ends with its own pipe */
            close(stay[1]);
            own(tell[1], stay[0]);
        }
        close(tell[1]);
        close(stay[0]);
        owners[i] = (struct owner){ pid, tell[0], stay[1] };
    }
    return true;
}

static void dismiss_owners(void) {
    for (; next_owner < OWNERS; next_owner++) {
        close(owners[next_owner].leave);
        kvt_wait(owners[next_owner].pid);
    }
}

static bool make_bed_with(struct bed *bed, enum counter_way way) {
    struct geom_pool_spec spec = spec_of(2, 2, 64);
    struct device_export exported[3];
    memset(bed, 0, sizeof *bed);
    if (next_owner == OWNERS) return false;
    const struct owner *owner = &owners[next_owner++];
    bed->owner = owner->pid;
    bed->leave = owner->leave;
    ssize_t got = read(owner->told, exported, sizeof exported);
    close(owner->told);
    if (got != (ssize_t)sizeof exported) return false;
    bed->planes_bytes = exported[0].bytes;
    bed->table_bytes = exported[1].bytes;
    for (int i = 0; i < REGIONS; i++)
        if ((bed->fds[i] = open_fd_of(&exported[i])) < 0) return false;
    bed->planes = map_fd(bed->fds[0], bed->planes_bytes);
    bed->table = map_fd(bed->fds[1], bed->table_bytes);
    if (!bed->planes || !bed->table || !open_counter(&bed->counter, bed->fds, way)) return false;
    bed->info = (struct kvd_store_info){ .name = "bed",
                                         .n_pools = 1,
                                         .max_context = CONTEXT,
                                         .max_concurrency = ROWS,
                                         .row_entries = CONTEXT / 64,
                                         .capacity_tokens = PAGES * 64,
                                         .pool = { { .storage = KVD_STORAGE_BF16,
                                                     .order = 0,
                                                     .arrangement = 1,
                                                     .n_layers = 2,
                                                     .n_kv_heads = 2,
                                                     .head_dim = 64,
                                                     .n_ranks = 1,
                                                     .pages = PAGES,
                                                     .page_bytes = geom_page_bytes(&spec) } } };
    bed->info.pool[0].planes[0] = region_info(&exported[0], 0);
    bed->info.pool[0].table[0] = region_info(&exported[1], 1);
    bed->state = region_info(&exported[2], 2);
    bed->info.fd_token = 1;
    memcpy(bed->info.fd_socket, bed->counter.path, sizeof bed->counter.path);
    seal(bed);
    bed->script = script_start(describe, bed);
    struct kvd_connect_options o = { .struct_size = sizeof o,
                                     .socket = script_path(bed->script),
                                     .role = KVD_ROLE_WORKER };
    return kvd_connect(&o, &bed->client, NULL) == KVD_OK;
}

static bool make_bed(struct bed *bed) { return make_bed_with(bed, COUNTER_ANSWERS); }

static void clear_bed(struct bed *bed) {
    kvd_disconnect(bed->client);
    script_stop(bed->script);
    close_counter(&bed->counter);
    for (int i = 0; i < REGIONS; i++) close(bed->fds[i]);
    munmap(bed->planes, bed->planes_bytes);
    munmap(bed->table, bed->table_bytes);
    close(bed->leave);
    kvt_wait(bed->owner);
}

static void view_1_addresses(void) {
    struct bed bed;
    struct kvd_error error = { .message = "" };
    kvd_store *store = NULL;
    PagedKVBatchLayerView batch;
    PagedKVLayerView one;
    KVT_NEED(make_bed(&bed));
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &store, &error), KVD_OK);
    KVT_EQ_STR(error.message, "");
    KVT_NEED(store);
    KVT_EQ_STR(kvd_store_describe(store)->name, "bed");
    KVT_EQ(kvd_store_batch_view(store, 0, 1, &batch, &error), KVD_OK);
    KVT_EQ(batch.n_rows, ROWS);
    KVT_EQ(batch.n_logical, 4);
    KVT_EQ(batch.n_pages, PAGES);
    KVT_EQ(batch.head_dim, 64);
    /* What is written through the view stands where geometry says, in the owner's memory. */
    struct geom_pool_spec spec = spec_of(2, 2, 64);
    struct geom_plane plane;
    KVT_OK(geom_plane(&spec, PAGES, 0, 1, GEOM_V, &plane, NULL, 0));
    uint16_t *there = (uint16_t *)(void *)((char *)batch.v.base + 3 * batch.v.stride_elem + 5 * batch.v.stride_token +
                                           batch.v.stride_head + 7 * batch.v.stride_page);
    *there = 0xbeef;
    const char *owner = bed.planes;
    uint16_t got;
    memcpy(&got, owner + plane.offset + 3 * plane.nb0 + 5 * plane.nb1 + plane.nb2 + 7 * plane.nb3, sizeof got);
    KVT_EQ(got, 0xbeef);

    int32_t *table = bed.table;
    KVT_EQ_I(batch.block_tables[2 * 4 + 1], -1);
    table[2 * 4 + 1] = 6;
    KVT_EQ(kvd_store_layer_view(store, 0, 0, 2, &one, &error), KVD_OK);
    KVT_EQ_I(one.block_table[1], 6);
    KVT_EQ(kvd_store_layer_view(store, 0, 0, ROWS, &one, &error), KVD_OUT_OF_RANGE);
    KVT_EQ(kvd_store_batch_view(store, 0, 2, &batch, &error), KVD_OUT_OF_RANGE);
    KVT_EQ(kvd_store_batch_view(store, 1, 0, &batch, &error), KVD_OUT_OF_RANGE);
    kvd_detach(store);
    clear_bed(&bed);
}

/* Tables are read-only for a worker: even the kernel may not write there. */
static void tables_are_read_only(void) {
    struct bed bed;
    kvd_store *store = NULL;
    PagedKVBatchLayerView batch;
    int ends[2];
    KVT_NEED(make_bed(&bed));
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &store, NULL), KVD_OK);
    KVT_NEED(store);
    KVT_EQ(kvd_store_batch_view(store, 0, 0, &batch, NULL), KVD_OK);
    KVT_NEED(pipe(ends) == 0);
    KVT_EQ_I(write(ends[1], "12345678", 8), 8);
    KVT_EQ_I(read(ends[0], (void *)(uintptr_t)batch.block_tables, 4), -1);
    KVT_EQ_I(errno, EFAULT);
    KVT_EQ_I(read(ends[0], batch.k.base, 4), 4); /* planes can be written */
    close(ends[0]);
    close(ends[1]);
    kvd_detach(store);
    clear_bed(&bed);
}

/* Two attachments share one mapping, and it lives until the last one goes, also past the client. */
static void mappings_are_shared_and_counted(void) {
    struct bed bed;
    kvd_store *a = NULL, *b = NULL;
    PagedKVBatchLayerView x, y;
    KVT_NEED(make_bed(&bed));
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &a, NULL), KVD_OK);
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &b, NULL), KVD_OK);
    KVT_NEED(a && b);
    KVT_EQ(kvd_store_batch_view(a, 0, 0, &x, NULL), KVD_OK);
    KVT_EQ(kvd_store_batch_view(b, 0, 0, &y, NULL), KVD_OK);
    KVT_TRUE(x.k.base == y.k.base);
    kvd_detach(a);
    clear_bed(&bed);
    *(volatile char *)y.k.base = 1;
    KVT_EQ_I(*(volatile char *)y.k.base, 1);
    kvd_detach(b);
}

static enum kvd_status attach_to(struct bed *bed, uint32_t rank, const uint8_t *uuid, struct kvd_error *error) {
    kvd_store *store = NULL;
    enum kvd_status status = kvd_attach(bed->client, rank, uuid, &store, error);
    if (status != KVD_OK) KVT_TRUE(store == NULL);
    kvd_detach(store);
    return status;
}

static void srv_4_refusals(void) {
    struct bed bed;
    struct kvd_error error;
    uint8_t uuid[16] = { 1, 2, 3 };
    KVT_NEED(make_bed(&bed));
    struct kvd_store_info good = bed.info;
    KVT_EQ(attach_to(&bed, 1, NULL, &error), KVD_OUT_OF_RANGE);
    KVT_HAS(error.message, "ranks 0 to 0");
    KVT_EQ(attach_to(&bed, 0, uuid, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "runs on 01020300");
    KVT_EQ(attach_to(&bed, 0, good.pool[0].planes[0].uuid, &error), KVD_OK);

    for (uint32_t byte = 0; byte < KVD_DIGEST_BYTES; byte++) {
        bed.info.geometry.bytes[byte] ^= 1;
        KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
        KVT_HAS(error.message, "digest");
        bed.info = good;
    }
    for (uint32_t byte = 0; byte < sizeof uuid; byte++) {
        memcpy(uuid, good.pool[0].planes[0].uuid, sizeof uuid);
        uuid[byte] ^= 1;
        KVT_EQ(attach_to(&bed, 0, uuid, &error), KVD_FAILED_PRECONDITION);
        KVT_HAS(error.message, "attach the rank of this device");
    }
    bed.info.pool[0].arrangement = 0; /* bytes elsewhere: the digest tells */
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "digest");
    bed.info = good;
    bed.info.pool[0].page_bytes++;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    bed.info = good;
    bed.info.row_entries--; /* of no digest: every row but the first would be read elsewhere */
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "4 entries");
    bed.info = good;
    int sealed = bed.fds[0]; /* SRV-8: memory that somebody could cut short is not mapped */
    bed.fds[0] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    KVT_OK(ftruncate(bed.fds[0], (off_t)bed.planes_bytes));
    KVT_FALSE(attach_to(&bed, 0, NULL, &error) == KVD_OK);
    KVT_HAS(error.message, "cannot be mapped");
    close(bed.fds[0]);
    bed.fds[0] = sealed;
    bed.info = good;
    bed.info.pool[0].table[0].bytes = 4;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "block tables");
    bed.info = good;
    bed.info.fd_socket[0] = 0; /* what an observer sees */
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_PERMISSION_DENIED);
    bed.info = good;
    bed.info.pool[0].planes[0].kind = 1;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_INVALID_ARGUMENT);
    KVT_HAS(error.message, "UUID");
    bed.info = good;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_OK);
    clear_bed(&bed);
}

static void describe_state(struct bed *bed) {
    bed->info.state_bytes = STATE_BYTES;
    bed->info.state_slots = SLOTS;
    bed->info.state_stride = STRIDE;
    bed->info.state[0] = bed->state;
    seal(bed);
}

/* Slots stand where the store says, can be written, are shared with other processes, and there are no others. */
static void state_slots(void) {
    struct bed bed;
    struct kvd_error error = { .message = "" };
    kvd_store *store = NULL;
    void *at, *first = NULL, *untouched = &bed;
    uint64_t bytes, same = 77;
    KVT_NEED(make_bed(&bed));
    describe_state(&bed);
    char *owner = map_fd(bed.fds[2], SLOTS * STRIDE);
    KVT_NEED(owner);
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &store, &error), KVD_OK);
    KVT_EQ_STR(error.message, "");
    KVT_NEED(store);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        KVT_EQ(kvd_store_state(store, slot, &at, &bytes, &error), KVD_OK);
        if (!slot) first = at;
        KVT_EQ(bytes, STATE_BYTES);
        KVT_EQ((uintptr_t)at % 256, 0);
        KVT_EQ((char *)at - (char *)first, slot * STRIDE);
        memset(at, (int)slot + 1, STATE_BYTES);
        KVT_EQ(owner[slot * STRIDE], slot + 1);
        KVT_EQ(owner[slot * STRIDE + STATE_BYTES - 1], slot + 1);
        KVT_EQ(owner[slot * STRIDE + STATE_BYTES], 0);
    }
    at = untouched, bytes = same;
    KVT_EQ(kvd_store_state(store, SLOTS, &at, &bytes, &error), KVD_OUT_OF_RANGE);
    KVT_HAS(error.message, "slots 0 to 4");
    KVT_EQ(kvd_store_state(store, KVD_UNCHANGED, &at, &bytes, &error), KVD_OUT_OF_RANGE);
    KVT_HAS(error.message, "none");
    KVT_EQ(kvd_store_state(store, 0, NULL, &bytes, &error), KVD_INVALID_ARGUMENT);
    KVT_EQ(kvd_store_state(store, 0, &at, NULL, &error), KVD_INVALID_ARGUMENT);
    KVT_EQ(kvd_store_state(NULL, 0, &at, &bytes, &error), KVD_INVALID_ARGUMENT);
    KVT_TRUE(at == untouched && bytes == same);
    kvd_detach(store);
    munmap(owner, SLOTS * STRIDE);
    clear_bed(&bed);
}

/* SRV-4 for state slots; a store without them, and a kvd that is too old to share them. */
static void srv_4_state_refusals(void) {
    struct bed bed;
    struct kvd_error error;
    kvd_store *store = NULL;
    void *at;
    uint64_t bytes;
    KVT_NEED(make_bed(&bed));
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &store, &error), KVD_OK);
    KVT_EQ(kvd_store_state(store, 0, &at, &bytes, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "state_bytes =");
    kvd_detach(store);
    describe_state(&bed);
    struct kvd_store_info good = bed.info;
    bed.info.state[0].kind = 0;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_PERMISSION_DENIED);
    KVT_HAS(error.message, "state slots");
    bed.info = good;
    bed.info.state[0].bytes = SLOTS * STRIDE - 1;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "state slots");
    bed.info = good;
    bed.info.state_stride = STATE_BYTES - 1;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    bed.info.state_stride = UINT64_MAX / 2;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    bed.info = good;
    bed.info.state[0].uuid[3] ^= 1; /* slots of another device than the planes */
    KVT_EQ(attach_to(&bed, 0, good.pool[0].planes[0].uuid, &error), KVD_FAILED_PRECONDITION);
    bed.info = good;
    bed.info.state_bytes++; /* the digest tells */
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "digest");
    bed.info = good;
    bed.info.state_slots = 0; /* an older kvd: pools serve, slots do not */
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &store, &error), KVD_OK);
    KVT_EQ(kvd_store_state(store, 0, &at, &bytes, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "later");
    kvd_detach(store);
    clear_bed(&bed);
}

/* ---- descriptors ----------------------------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static enum kvd_status attach_at(enum counter_way way, struct kvd_error *error) {
    struct bed bed;
    if (!KVT_TRUE(make_bed_with(&bed, way))) return KVD_UNKNOWN;
    kvd_client_set_timeout(bed.client, way == COUNTER_SAYS_NOTHING ? 200 : 10000);
    enum kvd_status status = attach_to(&bed, 0, NULL, error);
    clear_bed(&bed);
    return status;
}

/* An engine with a timer of its own (a profiler, a watchdog) attaches all the same. */
static void descriptors_among_signals(void) {
    struct kvd_error error = { .message = "" };
    struct sigaction act = { .sa_handler = count_signal }, before;
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
    sigset_t alarm_;
    sigemptyset(&alarm_);
    sigaddset(&alarm_, SIGALRM);
    struct bed bed;
    KVT_OK(sem_init(&signals, 0, 0));
    KVT_OK(pthread_sigmask(SIG_BLOCK, &alarm_, NULL)); /* threads that are made now take none: this one does */
    KVT_NEED(make_bed_with(&bed, COUNTER_WAITS_FOR_SIGNALS));
    KVT_OK(sigaction(SIGALRM, &act, &before));
    KVT_OK(setitimer(ITIMER_REAL, &often, NULL));
    KVT_OK(pthread_sigmask(SIG_UNBLOCK, &alarm_, NULL));
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_OK);
    KVT_EQ_STR(error.message, "");
    KVT_OK(setitimer(ITIMER_REAL, &never, NULL));
    KVT_OK(sigaction(SIGALRM, &before, NULL));
    for (int i = 0; i < 3; i++) sem_post(&signals); /* where the attachment failed the other side still waits */
    clear_bed(&bed);
    sem_destroy(&signals);
}

/* TRUE-1: who is replaced, or fenced, between the description and its descriptors is told that, and not that it may
 * not.
 */
static void denied_by_another_instance(void) {
    struct kvd_error error = { .message = "" };
    struct bed bed;
    KVT_NEED(make_bed_with(&bed, COUNTER_DENIES));
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_PERMISSION_DENIED);
    script_set_epoch(bed.script, 77);
    bed.left = 2;
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_ABORTED);
    printf("  %s\n", error.message);
    clear_bed(&bed);
}

/* SRV-7 from the other side: no call waits longer than its deadline, whatever kvd does not do. */
static void descriptors_until_the_deadline(void) {
    struct kvd_error error = { .message = "" };
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    struct bed bed;
    int filler[16], n = 0;
    KVT_EQ(attach_at(COUNTER_ANSWERS, &error), KVD_OK);
    KVT_EQ(attach_at(COUNTER_HANGS_UP, &error), KVD_UNAVAILABLE);
    KVT_HAS(error.message, "closed");
    double begin = seconds();
    KVT_EQ(attach_at(COUNTER_SAYS_NOTHING, &error), KVD_DEADLINE_EXCEEDED);
    KVT_HAS(error.message, "in time");
    KVT_TRUE(seconds() - begin < 3);
    /* Nobody accepts, and the backlog is full: connecting waits, too. */
    KVT_NEED(make_bed_with(&bed, COUNTER_IS_SHUT));
    memcpy(at.sun_path, bed.counter.path, sizeof bed.counter.path);
    for (bool full = false; !full && n < 16; n++) {
        filler[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        full = connect(filler[n], (const struct sockaddr *)&at, sizeof at) != 0;
    }
    KVT_TRUE(n < 16);
    kvd_client_set_timeout(bed.client, 200);
    begin = seconds();
    KVT_EQ(attach_to(&bed, 0, NULL, &error), KVD_DEADLINE_EXCEEDED);
    KVT_TRUE(seconds() - begin < 3);
    while (n-- > 0) close(filler[n]);
    clear_bed(&bed);
}

/* Two files can still be opened here, for the two ends of the connection: the descriptor itself finds no place. */
static void descriptors_without_room(void) {
    struct kvd_error error = { .message = "" };
    struct rlimit before, tight;
    struct bed bed;
    KVT_NEED(make_bed_with(&bed, COUNTER_ANSWERS));
    int first = dup(0), second = dup(0);
    close(first);
    close(second);
    KVT_OK(getrlimit(RLIMIT_NOFILE, &before));
    tight = (struct rlimit){ (rlim_t)second + 1, before.rlim_max };
    KVT_OK(setrlimit(RLIMIT_NOFILE, &tight));
    enum kvd_status status = attach_to(&bed, 0, NULL, &error);
    KVT_OK(setrlimit(RLIMIT_NOFILE, &before));
    if (!KVT_EQ(status, KVD_RESOURCE_EXHAUSTED)) printf("  %s\n", error.message);
    int again = dup(0);
    KVT_TRUE(again >= 0 && again <= second); /* none is left open on this side */
    close(again);
    clear_bed(&bed);
}

/* SRV-6: a fork's child gets no view. */
static void srv_6_store_of_a_parent(void) {
    struct bed bed;
    kvd_store *store = NULL;
    KVT_NEED(make_bed(&bed));
    describe_state(&bed);
    KVT_EQ(kvd_attach(bed.client, 0, NULL, &store, NULL), KVD_OK);
    KVT_NEED(store);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        PagedKVBatchLayerView view;
        void *at;
        uint64_t bytes;
        bool refused = kvd_store_batch_view(store, 0, 0, &view, NULL) == KVD_FAILED_PRECONDITION &&
                       kvd_store_state(store, 0, &at, &bytes, NULL) == KVD_FAILED_PRECONDITION;
        kvd_detach(store);
        _exit(refused ? 0 : 1);
    }
    KVT_EQ_I(kvt_wait(pid), 0);
    kvd_detach(store);
    clear_bed(&bed);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(descriptors_without_room), /* first: no earlier client's descriptors are closed beside it */
        KVT_CASE(view_1_addresses),
        KVT_CASE(tables_are_read_only),
        KVT_CASE(mappings_are_shared_and_counted),
        KVT_CASE(srv_4_refusals),
        KVT_CASE(srv_6_store_of_a_parent),
        KVT_CASE(state_slots),
        KVT_CASE(srv_4_state_refusals),
        KVT_CASE(descriptors_among_signals),
        KVT_CASE(denied_by_another_instance),
        KVT_CASE(descriptors_until_the_deadline),
        { 0 }
    };
    if (!fork_owners()) return 2;
    int status = kvt_main("client attach", cases, argc, argv);
    dismiss_owners();
    return status;
}
