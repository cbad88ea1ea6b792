/* SPDX-License-Identifier: Apache-2.0
 *
 * What the thread of the batches puts on its stream, in the forms of device_cuda_form.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda_internal.h"
#include "device_strip.h"

/* Room for n elements; what is there is kept. */
static bool make_room(void **array, size_t element, size_t n, size_t *room) {
    if (n <= *room) return true;
    size_t more = n < 64 ? 64 : 2 * n;
    void *grown = realloc(*array, more * element);
    if (!grown) return false;
    *array = grown;
    *room = more;
    return true;
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
static uint64_t layer_pitch(const struct cuda_copy *c, const struct geom_group_shape *g,
                            const struct geom_plane *first) {
    struct geom_plane next;
    return g->layers > 1 && plane_at(c, first->layer + 1, first->slot, &next) ? next.offset - first->offset : 0;
}

/* Records: the planes of a layer (or of a layer and head) stand side by side, padding between them goes along. Dense
 * planes: one slot at a time, and head-major ones are also cut along heads or along layers, whichever gives fewer
 * strips. */
static uint32_t strip_count(const struct cuda_copy *c, const struct geom_group_shape *g) {
    if (c->spec.arrangement == GEOM_RECORD) return 1;
    if (g->order == GEOM_PAGE_MAJOR) return g->slots;
    return g->slots * (g->heads < g->layers ? g->heads : g->layers);
}

static void place_strip(const struct cuda_copy *c, uint64_t offset, uint64_t stride, struct strip *strip) {
    strip->src = offset + c->src * stride;
    strip->dst = offset + c->dst * stride;
}

static bool record_strip(const struct cuda_copy *c, const struct geom_group_shape *g, struct strip *ret_strip) {
    struct geom_plane k, last;
    if (!plane_at(c, g->layer, GEOM_K, &k) || !plane_at(c, g->layer, g->slots - 1, &last)) return false;
    bool page_major = g->order == GEOM_PAGE_MAJOR;
    struct strip strip = { .width = last.offset - k.offset + (page_major ? last.page_bytes : last.head_bytes),
                           .pitch =
                               page_major ? layer_pitch(c, g, &k) : k.nb3, /* heads and layers follow at one pitch */
                           .rows = (uint64_t)g->layers * (page_major ? 1 : k.n_heads) };
    place_strip(c, k.offset, page_major ? k.nb3 : k.nb2, &strip);
    *ret_strip = strip;
    return true;
}

static bool dense_strip(const struct cuda_copy *c, const struct geom_group_shape *g, uint32_t i,
                        struct strip *ret_strip) {
    uint32_t slots = g->slots, layers = g->layers, heads = g->heads;
    struct geom_plane p;
    struct strip strip = { .rows = layers };
    if (g->order == GEOM_PAGE_MAJOR) {
        if (!plane_at(c, g->layer, i, &p)) return false;
        strip.width = p.page_bytes;
        strip.pitch = layer_pitch(c, g, &p);
        place_strip(c, p.offset, p.nb3, &strip);
    } else if (heads < layers) {
        if (!plane_at(c, g->layer, i % slots, &p)) return false;
        strip.width = p.head_bytes;
        strip.pitch = layer_pitch(c, g, &p);
        place_strip(c, p.offset + i / slots * p.nb3, p.nb2, &strip);
    } else {
        if (!plane_at(c, g->layer + i / slots, i % slots, &p)) return false;
        strip.width = p.head_bytes;
        strip.pitch = p.nb3;
        strip.rows = heads;
        place_strip(c, p.offset, p.nb2, &strip);
    }
    *ret_strip = strip;
    return true;
}

/* A page in work. As far as they fit the bounce buffer, all its pieces come to the host before the first one returns:
 * the two directions are two engines, and each change between them costs a hand-over. One stream orders everything; two
 * by turns gain a fifth for a page of 4 MiB and nothing for smaller ones. */
struct trip {
    struct cuda_device *d;
    uint64_t used; /* of the bounce buffer */
    size_t n;      /* pieces */
    char *err;
    size_t err_bytes;
};

/* What of the bounce buffer stands for the piece: its rows one after another. */
static struct move_strip piece_strip(const struct cuda_device *d, const struct cuda_piece *p) {
    return (struct move_strip){
        .region_pitch = p->pitch, .host = d->bounce + p->at, .host_pitch = p->width, .width = p->width, .rows = p->rows
    };
}

static int send_on(struct trip *t) {
    int r = 0;
    for (size_t i = 0; !r && i < t->n; i++) {
        const struct cuda_piece *p = &t->d->pieces[i];
        struct move_strip dense = piece_strip(t->d, p);
        r = cuda_to_device(t->d->stream, p->to, &dense, t->err, t->err_bytes);
    }
    t->n = t->used = 0;
    return r;
}

/* width * rows fits the buffer. */
static int fetch_piece(struct trip *t, CUdeviceptr from, const struct cuda_piece *piece) {
    uint64_t bytes = (piece->width * piece->rows + GEOM_ALIGN - 1) / GEOM_ALIGN * GEOM_ALIGN;
    struct cuda_device *d = t->d;
    int r = bytes > CUDA_BOUNCE_BYTES - t->used ? send_on(t) : 0;
    if (r) return r;
    if (!make_room((void **)&d->pieces, sizeof *d->pieces, t->n + 1, &d->room_pieces))
        return refuse_with(-ENOMEM, t->err, t->err_bytes, "no memory to copy a page");
    struct cuda_piece *p = &d->pieces[t->n++];
    *p = *piece;
    p->at = t->used;
    t->used += bytes;
    struct move_strip dense = piece_strip(d, p);
    return cuda_to_host(d->stream, from, &dense, t->err, t->err_bytes);
}

/* A row that is longer than the buffer, or has no neighbour at a pitch that the driver takes. */
static int copy_row(struct trip *t, CUdeviceptr dst, CUdeviceptr src, uint64_t bytes) {
    int r = 0;
    for (uint64_t at = 0, n; !r && at < bytes; at += n) {
        n = bytes - at < CUDA_BOUNCE_BYTES ? bytes - at : CUDA_BOUNCE_BYTES;
        r = fetch_piece(t, src + at, &(struct cuda_piece){ .to = dst + at, .width = n, .rows = 1 });
    }
    return r;
}

static int copy_strip(struct trip *t, CUdeviceptr base, const struct strip *s) {
    uint64_t most = s->pitch > t->d->pitch_limit ? 1 : CUDA_BOUNCE_BYTES / s->width;
    int r = 0;
    for (uint64_t row = 0, n; !r && row < s->rows; row += n) {
        CUdeviceptr src = base + s->src + row * s->pitch, dst = base + s->dst + row * s->pitch;
        n = s->rows - row < most ? s->rows - row : most;
        if (n > 1) {
            r = fetch_piece(t, src, &(struct cuda_piece){ .to = dst, .pitch = s->pitch, .width = s->width, .rows = n });
        } else {
            n = 1;
            r = copy_row(t, dst, src, s->width);
        }
    }
    return r;
}

static int copy_group(struct trip *t, const struct cuda_copy *copy, const struct geom_group_shape *g) {
    uint32_t count = strip_count(copy, g);
    int r = 0;
    for (uint32_t i = 0; !r && i < count; i++) {
        struct strip strip;
        bool ok =
            copy->spec.arrangement == GEOM_RECORD ? record_strip(copy, g, &strip) : dense_strip(copy, g, i, &strip);
        if (!ok) return refuse_with(-EINVAL, t->err, t->err_bytes, "a page copy has a spec without planes");
        r = copy_strip(t, copy->region->address, &strip);
    }
    return r;
}

int cuda_enqueue_copy(struct cuda_device *d, const struct cuda_copy *copy, char *err, size_t err_bytes) {
    struct trip trip = { .d = d, .err = err, .err_bytes = err_bytes };
    uint32_t groups = geom_group_count(&copy->spec);
    int r = 0;
    if (copy->src == copy->dst) return 0;
    for (uint32_t i = 0; !r && i < groups; i++) {
        struct geom_group_shape shape;
        geom_group_shape(&copy->spec, i, &shape);
        r = copy_group(&trip, copy, &shape);
    }
    return r ? r : send_on(&trip);
}

/* ---- table windows ------------------------------------------------------------------------ */

/* What is in the region now: known for a new one, and read from one that an earlier owner left. */
static int fill_mirror(struct cuda_device *d, const struct cuda_region *region, void *mirror, char *err,
                       size_t err_bytes) {
    if (!region->adopted) return memset(mirror, region->fill, region->bytes), 0;
    int r = CUDA_CALL(err, err_bytes, cuMemcpyDtoHAsync, mirror, region->address, region->bytes, d->stream);
    return r ? r : CUDA_CALL(err, err_bytes, cuStreamSynchronize, d->stream);
}

int cuda_mirror_new(struct cuda_device *d, struct cuda_region *region, char *err, size_t err_bytes) {
    void *mirror = NULL;
    int r = CUDA_CALL(err, err_bytes, cuMemHostAlloc, &mirror, region->bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (r) return r;
    r = fill_mirror(d, region, mirror, err, err_bytes);
    if (r) (void)cuda_driver.cuMemFreeHost(mirror);
    else region->mirror = mirror;
    return r;
}

int cuda_apply_write(struct cuda_device *d, const struct cuda_write *write, size_t n, char *err, size_t err_bytes) {
    struct cuda_region *region = write->region;
    uint64_t end = write->offset + (uint64_t)write->count * sizeof(int32_t);
    if (!make_room((void **)&d->windows, sizeof *d->windows, n + 1, &d->room_windows))
        return refuse_with(-ENOMEM, err, err_bytes, "no memory to publish %zu table slices", n + 1);
    int r = region->mirror ? 0 : cuda_mirror_new(d, region, err, err_bytes);
    if (r) return r;
    memcpy(region->mirror + write->offset, write->values, end - write->offset);
    /* An even number of entries, so that two rows hold them. The region is whole 2 MiB: its end is no limit. */
    d->windows[n] = (struct cuda_window){ .region = region, .begin = write->offset / 8 * 8, .end = (end + 7) / 8 * 8 };
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
        struct move_strip row = { .host = w.region->mirror + w.begin, .width = w.end - w.begin, .rows = 1 };
        r = cuda_to_device(d->stream, w.region->address + w.begin, &row, err, err_bytes);
    }
    return r;
}
