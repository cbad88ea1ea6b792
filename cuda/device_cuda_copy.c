/* SPDX-License-Identifier: Apache-2.0
 *
 * What the device's thread puts on its stream. Every copy here has one of three forms (device_cuda_internal.h): device
 * to host, host to device 2-D with two or more rows, host to device 1-D of CUDA_FLAT_COPY_BYTES and more.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda_internal.h"

/* ---- forms -------------------------------------------------------------------------------- */

static int to_host_2d(CUstream stream, uint8_t *to, CUdeviceptr from, uint64_t pitch, uint64_t width, uint64_t rows,
                      char *err, size_t err_bytes) {
    CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .srcPitch = pitch,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = to,
                           .dstPitch = width,
                           .WidthInBytes = width,
                           .Height = rows };
    return CUDA_CALL(err, err_bytes, cuMemcpy2DAsync, &copy, stream);
}

/* rows >= 2 */
static int to_device_2d(CUstream stream, CUdeviceptr to, uint64_t pitch, const uint8_t *from, uint64_t width,
                        uint64_t rows, char *err, size_t err_bytes) {
    CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = from,
                           .srcPitch = width,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = pitch,
                           .WidthInBytes = width,
                           .Height = rows };
    return CUDA_CALL(err, err_bytes, cuMemcpy2DAsync, &copy, stream);
}

/* A contiguous stretch of an even number of bytes: a short one goes as two dense rows. */
static int to_device(CUstream stream, CUdeviceptr to, const uint8_t *from, uint64_t bytes, char *err,
                     size_t err_bytes) {
    if (bytes < CUDA_FLAT_COPY_BYTES) return to_device_2d(stream, to, bytes / 2, from, bytes / 2, 2, err, err_bytes);
    return CUDA_CALL(err, err_bytes, cuMemcpyHtoDAsync, to, from, bytes, stream);
}

/* ---- page copies -------------------------------------------------------------------------- */

/* Equal stretches of a page at a constant pitch, seen from the start of the region. */
struct strip {
    uint64_t src, dst, width, pitch, rows;
};

static bool plane_at(const struct cuda_copy *c, uint32_t layer, uint32_t slot, struct geom_plane *ret_plane) {
    return geom_plane(&c->spec, c->n_pages, c->rank, layer, (enum geom_slot)slot, ret_plane, NULL, 0) == 0;
}

/* Bytes from a plane of one layer to the same of the next; any value where there is one layer. */
static uint64_t layer_pitch(const struct cuda_copy *c, const struct geom_plane *first) {
    struct geom_plane next;
    return c->spec.n_layers > 1 && plane_at(c, 1, first->slot, &next) ? next.offset - first->offset : 0;
}

static uint32_t slots_of(const struct cuda_copy *c) { return geom_plane_count(&c->spec) / c->spec.n_layers; }

/* Records: the planes of a layer (or of a layer and head) stand side by side, padding between them goes along. Dense
 * planes: one slot at a time, and head-major ones are also cut along heads or along layers, whichever gives fewer
 * strips. */
static uint32_t strip_count(const struct cuda_copy *c) {
    uint32_t slots = slots_of(c), heads = c->spec.n_kv_heads / c->spec.n_ranks;
    if (c->spec.arrangement == GEOM_RECORD) return 1;
    if (c->spec.order == GEOM_PAGE_MAJOR) return slots;
    return slots * (heads < c->spec.n_layers ? heads : c->spec.n_layers);
}

static void place_strip(const struct cuda_copy *c, uint64_t offset, uint64_t stride, struct strip *strip) {
    strip->src = offset + c->src * stride;
    strip->dst = offset + c->dst * stride;
}

static bool record_strip(const struct cuda_copy *c, struct strip *ret_strip) {
    struct geom_plane k, last;
    if (!plane_at(c, 0, GEOM_K, &k) || !plane_at(c, 0, slots_of(c) - 1, &last)) return false;
    bool page_major = c->spec.order == GEOM_PAGE_MAJOR;
    struct strip strip = { .width = last.offset - k.offset + (page_major ? last.page_bytes : last.head_bytes),
                           .pitch = page_major ? layer_pitch(c, &k) : k.nb3, /* heads and layers follow at one pitch */
                           .rows = (uint64_t)c->spec.n_layers * (page_major ? 1 : k.n_heads) };
    place_strip(c, k.offset, page_major ? k.nb3 : k.nb2, &strip);
    *ret_strip = strip;
    return true;
}

static bool dense_strip(const struct cuda_copy *c, uint32_t i, struct strip *ret_strip) {
    uint32_t slots = slots_of(c), layers = c->spec.n_layers, heads = c->spec.n_kv_heads / c->spec.n_ranks;
    struct geom_plane p;
    struct strip strip = { .rows = layers };
    if (c->spec.order == GEOM_PAGE_MAJOR) {
        if (!plane_at(c, 0, i, &p)) return false;
        strip.width = p.page_bytes;
        strip.pitch = layer_pitch(c, &p);
        place_strip(c, p.offset, p.nb3, &strip);
    } else if (heads < layers) {
        if (!plane_at(c, 0, i % slots, &p)) return false;
        strip.width = p.head_bytes;
        strip.pitch = layer_pitch(c, &p);
        place_strip(c, p.offset + i / slots * p.nb3, p.nb2, &strip);
    } else {
        if (!plane_at(c, i / slots, i % slots, &p)) return false;
        strip.width = p.head_bytes;
        strip.pitch = p.nb3;
        strip.rows = heads;
        place_strip(c, p.offset, p.nb2, &strip);
    }
    *ret_strip = strip;
    return true;
}

/* Pieces go by turns over two lanes, each with a bounce buffer of its own, so that one comes from the device while the
 * other returns to it; within a lane the stream's order keeps a piece from arriving before the one before it has left.
 * Pieces shorter than this are not worth a turn. */
#define LEAST_PIECE_BYTES (256u << 10)

static const struct cuda_lane *take_lane(struct cuda_device *d) { return &d->lane[d->next_lane++ % d->lanes_used]; }

static int copy_stretch(struct cuda_device *d, CUdeviceptr dst, CUdeviceptr src, uint64_t bytes, char *err,
                        size_t err_bytes) {
    int r = 0;
    for (uint64_t at = 0; !r && at < bytes; at += CUDA_BOUNCE_BYTES) {
        const struct cuda_lane *lane = take_lane(d);
        uint64_t n = bytes - at < CUDA_BOUNCE_BYTES ? bytes - at : CUDA_BOUNCE_BYTES;
        r = CUDA_CALL(err, err_bytes, cuMemcpyDtoHAsync, lane->bounce, src + at, n, lane->stream);
        if (!r) r = to_device(lane->stream, dst + at, lane->bounce, n, err, err_bytes);
    }
    return r;
}

/* Rows of a strip that make a piece: a quarter of it, at least LEAST_PIECE_BYTES, at most the bounce buffer. */
static uint64_t piece_rows(const struct cuda_device *d, const struct strip *s) {
    uint64_t most = CUDA_BOUNCE_BYTES / s->width, least = (LEAST_PIECE_BYTES + s->width - 1) / s->width,
             rows = (s->rows + 3) / 4;
    if (s->pitch > d->pitch_limit || most < 2) return 1;
    if (rows < least) rows = least;
    if (rows < 2) rows = 2;
    return rows < most ? rows : most;
}

static int copy_strip(struct cuda_device *d, CUdeviceptr base, const struct strip *s, char *err, size_t err_bytes) {
    uint64_t most = piece_rows(d, s), row = 0;
    int r = 0;
    while (!r && row < s->rows) {
        uint64_t n = s->rows - row < most ? s->rows - row : most;
        CUdeviceptr src = base + s->src + row * s->pitch, dst = base + s->dst + row * s->pitch;
        row += n;
        if (n == 1) {
            r = copy_stretch(d, dst, src, s->width, err, err_bytes);
            continue;
        }
        const struct cuda_lane *lane = take_lane(d);
        r = to_host_2d(lane->stream, lane->bounce, src, s->pitch, s->width, n, err, err_bytes);
        if (!r) r = to_device_2d(lane->stream, dst, s->pitch, lane->bounce, s->width, n, err, err_bytes);
    }
    return r;
}

/* A piece of the same place always takes the same lane: copies of one pool, where one makes what the next reads, follow
 * one another in each lane. Small pages do without the second one. */
int cuda_enqueue_copy(struct cuda_device *d, const struct cuda_copy *copy, char *err, size_t err_bytes) {
    uint32_t count = strip_count(copy);
    int r = 0;
    if (copy->src == copy->dst) return 0;
    d->next_lane = 0;
    d->lanes_used = geom_rank_page_bytes(&copy->spec) < 2 * LEAST_PIECE_BYTES ? 1 : CUDA_LANES;
    d->spread |= d->lanes_used > 1;
    for (uint32_t i = 0; !r && i < count; i++) {
        struct strip strip;
        bool ok = copy->spec.arrangement == GEOM_RECORD ? record_strip(copy, &strip) : dense_strip(copy, i, &strip);
        if (!ok) return device_refuse(-EINVAL, err, err_bytes, "a page copy has a spec without planes");
        r = copy_strip(d, copy->region->address, &strip, err, err_bytes);
    }
    return r;
}

int cuda_join_copies(struct cuda_device *d, char *err, size_t err_bytes) {
    int r = 0;
    for (uint32_t i = 1; d->spread && !r && i < CUDA_LANES; i++) {
        r = CUDA_CALL(err, err_bytes, cuEventRecord, d->lane[i].event, d->lane[i].stream);
        if (!r) r = CUDA_CALL(err, err_bytes, cuStreamWaitEvent, d->stream, d->lane[i].event, 0);
    }
    d->spread = false;
    return r;
}

/* ---- table windows ------------------------------------------------------------------------ */

int cuda_mirror_new(struct cuda_region *region, char *err, size_t err_bytes) {
    void *mirror = NULL;
    int r = CUDA_CALL(err, err_bytes, cuMemHostAlloc, &mirror, region->bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (r) return r;
    memset(mirror, region->fill, region->bytes);
    region->mirror = mirror;
    return 0;
}

static bool make_room(struct cuda_device *d, size_t n) {
    if (n <= d->room_windows) return true;
    size_t room = n < 64 ? 64 : 2 * n;
    struct cuda_window *grown = realloc(d->windows, room * sizeof *grown);
    if (!grown) return false;
    d->windows = grown;
    d->room_windows = room;
    return true;
}

int cuda_apply_write(struct cuda_device *d, const struct cuda_write *write, size_t n, char *err, size_t err_bytes) {
    struct cuda_region *region = write->region;
    uint64_t end = write->offset + (uint64_t)write->count * sizeof(int32_t);
    if (!make_room(d, n + 1))
        return device_refuse(-ENOMEM, err, err_bytes, "no memory to publish %zu table slices", n + 1);
    int r = region->mirror ? 0 : cuda_mirror_new(region, err, err_bytes);
    if (r) return r;
    memcpy(region->mirror + write->offset, write->values, end - write->offset);
    /* An even number of entries, so that two rows hold them. The region is whole 2 MiB: its end is no limit. */
    d->windows[n] = (struct cuda_window) { .region = region, .begin = write->offset / 8 * 8, .end = (end + 7) / 8 * 8 };
    return 0;
}

static int by_place(const void *a, const void *b) {
    const struct cuda_window *x = a, *y = b;
    if (x->region != y->region) return (uintptr_t)x->region < (uintptr_t)y->region ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* A copy costs about 2.5 us beside its bytes, and the bus moves 50 KB in 1 us: gaps shorter than this are sent along.
 */
#define MERGE_GAP_BYTES (96u << 10)

int cuda_enqueue_windows(struct cuda_device *d, size_t n, char *err, size_t err_bytes) {
    int r = 0;
    if (n > 1) qsort(d->windows, n, sizeof *d->windows, by_place);
    for (size_t i = 0, next; !r && i < n; i = next) {
        struct cuda_window w = d->windows[i];
        for (next = i + 1;
             next < n && d->windows[next].region == w.region && d->windows[next].begin <= w.end + MERGE_GAP_BYTES;
             next++)
            if (d->windows[next].end > w.end) w.end = d->windows[next].end;
        r = to_device(d->stream, w.region->address + w.begin, w.region->mirror + w.begin, w.end - w.begin, err,
                      err_bytes);
    }
    return r;
}
