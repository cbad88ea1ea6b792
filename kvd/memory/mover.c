/* SPDX-License-Identifier: Apache-2.0 */
#include "mover.h"

#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "clock.h"
#include "mutant.h"

#define OUT DEVICE_TO_HOST
#define IN HOST_TO_DEVICE

/* For one device. A chunk is large enough for wide copies and small enough that jobs alternate often. The bytes in
 * flight hide the latency of a round trip. Each device has its own bus, so the totals grow with the number of ranks. */
#define CHUNK_BYTES (UINT64_C(8) << 20)
#define DEVICE_BYTES (UINT64_C(64) << 20)
#define CHUNKS 32u  /* of one direction, with those whose checksums are being computed */
#define PULLS 4096u /* copies that one mover_run takes from the store at most */

struct chunk {
    struct checksum_batch sums; /* first */
    struct chunk *next;         /* in the list of free chunks, or of chunks on the devices in order */
    struct mover_job *job;
    enum device_direction direction;
    uint32_t n;
    uint64_t bytes;
    uint64_t ticket[KVD_MAX_RANKS]; /* 0: done there */
    bool on_device, in_sums;
    struct store_copy copies[CHECKSUM_PAGES];
};

/* A job's position in the store's list of copies, for one direction. Copies of the other kinds are skipped. */
struct stream {
    uint64_t cursor;
    struct store_copy next;
    bool has, dry;
};

struct mover_job {
    struct mover_job *next; /* in the list of free jobs, or of ended ones */
    uint32_t tag, at;       /* at: index in mover.active */
    struct store_transition of;
    struct stream stream[2];
    uint32_t chunks, left;
    uint64_t begun_ns;
    bool cancelled, lost, works[2];
    struct mover_moved moved;
};

struct lane {                           /* one direction */
    struct chunk *free, *first, **last; /* on the devices */
    uint64_t bytes_on_device;
    uint32_t chunks, turn;
    uint64_t done[KVD_MAX_RANKS], since_ns;
    struct chunk chunk[CHUNKS];
};

struct mover {
    struct mover_config config;
    uint64_t chunk_bytes, device_bytes;
    struct checksum *checksum;
    struct lane lane[2];
    struct mover_job *jobs, **active, *free, *ended, **last_ended;
    uint32_t n_active;
    struct mover_stats stats;
};

/* ---- life ---------------------------------------------------------------------------------- */

int mover_new(const struct mover_config *config, struct mover **ret_mover) {
    struct mover *m = calloc(1, sizeof *m);
    if (!m) return 1;
    uint32_t threads = config->threads ? config->threads : checksum_threads(config->pools->n_ranks);
    m->config = *config;
    m->chunk_bytes = CHUNK_BYTES * config->pools->n_ranks;
    m->device_bytes = DEVICE_BYTES * config->pools->n_ranks;
    m->jobs = calloc(config->jobs, sizeof *m->jobs);
    m->active = calloc(config->jobs, sizeof(struct mover_job *));
    if (!m->jobs || !m->active || checksum_new(threads, &m->checksum)) {
        mover_free(m);
        return 1;
    }
    for (uint32_t i = 0; i < config->jobs; i++) {
        m->jobs[i].next = m->free;
        m->free = &m->jobs[i];
    }
    m->last_ended = &m->ended;
    for (int d = 0; d < 2; d++) {
        struct lane *lane = &m->lane[d];
        lane->last = &lane->first;
        for (uint32_t i = 0; i < CHUNKS; i++) {
            lane->chunk[i].direction = (enum device_direction)d;
            lane->chunk[i].next = lane->free;
            lane->free = &lane->chunk[i];
        }
    }
    *ret_mover = m;
    return 0;
}

struct mover *mover_free(struct mover *m) {
    if (!m) return NULL;
    checksum_free(m->checksum);
    free(m->active);
    free(m->jobs);
    free(m);
    return NULL;
}

int mover_event_fd(const struct mover *m) { return m ? checksum_event_fd(m->checksum) : -1; }
void mover_kick(struct mover *m) {
    if (m) checksum_kick(m->checksum);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

bool mover_start(struct mover *m, struct store_transition of, const struct store_work *work, uint32_t tag) {
    struct mover_job *job = m->free;
    if (!job) return false;
    m->free = job->next;
    *job = (struct mover_job){
        .tag = tag, .at = m->n_active, .of = of, .left = work->copies_out + work->copies_in, .begun_ns = clock_ns()
    };
    job->works[OUT] = work->copies_out > 0;
    job->works[IN] = work->copies_in > 0;
    job->stream[OUT].dry = !work->copies_out;
    job->stream[IN].dry = !work->copies_in;
    for (int d = 0; d < 2; d++) m->stats.jobs[d] += job->works[d];
    m->stats.pages_left += job->left;
    m->active[m->n_active++] = job;
    mover_run(m);
    if (m->ended) mover_kick(m);
    return true;
}

static void end_if_done(struct mover *m, struct mover_job *job) {
    bool stopped = job->cancelled || job->lost;
    if (job->chunks || (!stopped && !(job->stream[OUT].dry && job->stream[IN].dry))) return;
    struct mover_job *moved = m->active[--m->n_active];
    m->active[job->at] = moved;
    moved->at = job->at;
    for (int d = 0; d < 2; d++) {
        m->stats.jobs[d] -= job->works[d];
        if (job->works[d]) histogram_add(&m->stats.took[d], clock_ns() - job->begun_ns);
    }
    m->stats.pages_left -= job->left;
    job->next = NULL;
    *m->last_ended = job;
    m->last_ended = &job->next;
}

void mover_cancel(struct mover *m, uint32_t tag) {
    for (uint32_t i = 0; m && i < m->n_active; i++) {
        struct mover_job *job = m->active[i];
        if (job->tag != tag) continue;
        job->cancelled = true;
        end_if_done(m, job);
        mover_kick(m);
        return;
    }
}

bool mover_collect(struct mover *m, uint32_t *ret_tag, enum mover_result *ret_result, struct mover_moved *ret_moved) {
    struct mover_job *job = m ? m->ended : NULL;
    if (!job) return false;
    m->ended = job->next;
    if (!m->ended) m->last_ended = &m->ended;
    *ret_tag = job->tag;
    *ret_result = job->lost ? MOVER_LOST : job->left ? MOVER_CANCELLED : MOVER_DONE;
    *ret_moved = job->moved;
    job->next = m->free;
    m->free = job;
    return true;
}

/* ---- the end of a chunk ---------------------------------------------------------------------- */

static bool is_state(const struct store_copy *c) {
    return c->kind == STORE_COPY_STATE_OUT || c->kind == STORE_COPY_STATE_IN;
}

static void count_chunk(struct mover *m, struct chunk *chunk) {
    struct mover_job *job = chunk->job;
    enum device_direction d = chunk->direction;
    for (uint32_t i = 0; i < chunk->n; i++) {
        if (is_state(&chunk->copies[i])) continue;
        job->moved.pages[d][chunk->copies[i].pool]++;
        m->stats.pages[d]++;
    }
    job->moved.bytes[d] += chunk->bytes;
    m->stats.bytes[d] += chunk->bytes;
    job->left -= chunk->n;
    m->stats.pages_left -= chunk->n;
}

static void tell_store(struct mover *m, const struct chunk *chunk) {
    for (uint32_t i = 0; i < chunk->n; i++) {
        const struct store_copy *c = &chunk->copies[i];
        uint64_t sum = chunk->sums.page[i].sum;
        if (chunk->direction == OUT) store_copied_out(m->config.store, c->replica, sum);
        else if (sum != c->checksum) m->config.damaged(store_damaged(m->config.store, c->replica));
    }
}

static void free_chunk(struct mover *m, struct chunk *chunk) {
    struct lane *lane = &m->lane[chunk->direction];
    struct mover_job *job = chunk->job;
    if (--lane->chunks == 0) m->stats.busy_ns[chunk->direction] += clock_ns() - lane->since_ns;
    chunk->next = lane->free;
    lane->free = chunk;
    job->chunks--;
    end_if_done(m, job);
}

static void end_if_copied(struct mover *m, struct chunk *chunk) {
    if (chunk->on_device || chunk->in_sums) return;
    if (!chunk->job->lost) {
        tell_store(m, chunk);
        count_chunk(m, chunk);
    }
    free_chunk(m, chunk);
}

static void submit_sums(struct mover *m, struct chunk *chunk) {
    chunk->in_sums = true;
    checksum_submit(m->checksum, &chunk->sums, chunk->direction == IN);
}

static void off_device(struct mover *m, struct chunk *chunk) {
    chunk->on_device = false;
    m->lane[chunk->direction].bytes_on_device -= chunk->bytes;
    if (chunk->direction == OUT && !chunk->job->lost) submit_sums(m, chunk);
    end_if_copied(m, chunk);
}

/* ---- devices ----------------------------------------------------------------------------------- */

/* Submits one rank's part of a chunk. False: the device is lost. */
static bool submit_chunk_rank(struct mover *m, struct chunk *chunk, uint32_t rank) {
    const struct pools *p = m->config.pools;
    const struct store_copy *first = &chunk->copies[0];
    bool state = is_state(first), inline_done = false;
    const struct geom_pool_spec *spec = state ? &p->state_spec : &p->spec[first->pool];
    uint64_t part = rank * geom_packed_bytes(spec);
    struct device_move moves[CHECKSUM_PAGES];
    char why[320] = "";
    for (uint32_t i = 0; i < chunk->n; i++)
        moves[i] = (struct device_move){ .page = chunk->direction == OUT ? chunk->copies[i].src : chunk->copies[i].dst,
                                         .host = m->config.arena + chunk->copies[i].host + part };
    struct device_moves batch = { .spec = spec,
                                  .n_pages = state ? p->state_slots : p->pages[first->pool],
                                  .rank = state ? 0 : rank,
                                  .region = state ? p->state[rank] : p->planes[first->pool][rank],
                                  .direction = chunk->direction,
                                  .moves = moves,
                                  .n = chunk->n };
    if (device_move(p->device[rank], &batch, &chunk->ticket[rank], &inline_done, why, sizeof why)) {
        transfer_lose(m->config.transfer, rank, why);
        return false;
    }
    if (inline_done) chunk->ticket[rank] = 0;
    return true;
}

static bool is_copied(const struct mover *m, const struct chunk *chunk) {
    for (uint32_t r = 0; r < m->config.pools->n_ranks; r++)
        if (chunk->ticket[r] > m->lane[chunk->direction].done[r] && !(r && MUTANT(moves_of_rank_0_alone))) return false;
    return true;
}

static void submit_chunk(struct mover *m, struct chunk *chunk) {
    struct lane *lane = &m->lane[chunk->direction];
    memset(chunk->ticket, 0, sizeof chunk->ticket);
    if (lane->chunks++ == 0) lane->since_ns = clock_ns();
    lane->bytes_on_device += chunk->bytes;
    chunk->job->chunks++;
    chunk->on_device = true;
    for (uint32_t r = 0; r < m->config.pools->n_ranks; r++)
        if (!submit_chunk_rank(m, chunk, r)) chunk->job->lost = true;
    if (chunk->direction == IN) submit_sums(m, chunk);
    if (!lane->first && is_copied(m, chunk)) {
        off_device(m, chunk);
        return;
    }
    chunk->next = NULL;
    *lane->last = chunk;
    lane->last = &chunk->next;
}

static void poll_lane(struct mover *m, enum device_direction d) {
    struct lane *lane = &m->lane[d];
    char why[320] = "";
    for (uint32_t r = 0; lane->first && r < m->config.pools->n_ranks; r++)
        if (device_poll_moves(m->config.pools->device[r], d, &lane->done[r], why, sizeof why))
            transfer_lose(m->config.transfer, r, why);
    bool lost = transfer_lost(m->config.transfer);
    for (struct chunk *chunk; (chunk = lane->first) && (lost || is_copied(m, chunk));) {
        lane->first = chunk->next;
        if (!lane->first) lane->last = &lane->first;
        chunk->job->lost |= lost;
        off_device(m, chunk);
    }
}

/* ---- feeding -------------------------------------------------------------------------------------- */

static int direction_of(const struct store_copy *c) {
    switch (c->kind) {
    case STORE_COPY_PAGE_OUT:
    case STORE_COPY_STATE_OUT: return OUT;
    case STORE_COPY_PAGE_IN:
    case STORE_COPY_STATE_IN: return IN;
    case STORE_COPY_PAGE:
    case STORE_COPY_STATE: break;
    }
    return -1;
}

/* Another job found damage in this page, and the store has dropped its bytes. There is nothing to copy. */
static bool is_gone(const struct mover *m, const struct store_copy *c) {
    return c->host > m->config.arena_bytes || c->bytes > m->config.arena_bytes - c->host;
}

/* True when the job has a next copy in this direction. *pulls: copies that this mover_run may still take. */
static bool peek_copy(struct mover *m, struct mover_job *job, enum device_direction d, uint32_t *pulls) {
    struct stream *s = &job->stream[d];
    while (!s->has && !s->dry && *pulls) {
        --*pulls;
        if (!store_next_copies(m->config.store, job->of, &s->cursor, &s->next, 1)) {
            s->dry = true;
            break;
        }
        s->has = direction_of(&s->next) == (int)d;
        if (!s->has || !is_gone(m, &s->next)) continue;
        s->has = false;
        job->left--;
        m->stats.pages_left--;
    }
    return s->has;
}

static bool fits_chunk(const struct mover *m, const struct chunk *chunk, const struct store_copy *c) {
    if (!chunk->n) return true;
    return chunk->n < CHECKSUM_PAGES && chunk->bytes + c->bytes <= m->chunk_bytes && chunk->copies[0].kind == c->kind &&
           chunk->copies[0].pool == c->pool;
}

/* The store lists a space from its end. Devices merge copies whose addresses ascend, so the order is turned (HOST-6).
 */
static void in_order(struct chunk *chunk) {
    if (chunk->copies[0].host < chunk->copies[chunk->n - 1].host) return;
    for (uint32_t i = 0, j = chunk->n - 1; i < j; i++, j--) {
        struct store_copy swap = chunk->copies[i];
        chunk->copies[i] = chunk->copies[j];
        chunk->copies[j] = swap;
    }
}

/* Submits a chunk of this job. False: the job has nothing to copy now. */
static bool feed_job(struct mover *m, struct mover_job *job, enum device_direction d, uint32_t *pulls) {
    struct lane *lane = &m->lane[d];
    struct chunk *chunk = lane->free;
    struct stream *s = &job->stream[d];
    chunk->n = 0;
    chunk->bytes = 0;
    while (peek_copy(m, job, d, pulls) && fits_chunk(m, chunk, &s->next)) {
        chunk->copies[chunk->n++] = s->next;
        chunk->bytes += s->next.bytes;
        s->has = false;
    }
    if (!chunk->n) return false;
    in_order(chunk);
    for (uint32_t i = 0; i < chunk->n; i++) {
        chunk->sums.page[i].at = m->config.arena + chunk->copies[i].host;
        chunk->sums.page[i].bytes = chunk->copies[i].bytes;
    }
    chunk->sums.n = chunk->n;
    lane->free = chunk->next;
    chunk->job = job;
    submit_chunk(m, chunk);
    return true;
}

static void feed_lane(struct mover *m, enum device_direction d, uint32_t *pulls) {
    struct lane *lane = &m->lane[d];
    uint32_t idle = 0;
    while (idle < m->n_active && lane->free && *pulls && lane->bytes_on_device < m->device_bytes) {
        struct mover_job *job = m->active[lane->turn++ % m->n_active];
        bool fed = !job->cancelled && !job->lost && feed_job(m, job, d, pulls);
        idle = fed ? 0 : idle + 1;
        if (!fed) end_if_done(m, job);
    }
}

void mover_run(struct mover *m) {
    uint32_t pulls = PULLS;
    struct checksum_batch *sums;
    if (!m) return;
    if (transfer_lost(m->config.transfer))
        for (uint32_t i = m->n_active; i-- > 0;) {
            m->active[i]->lost = true;
            end_if_done(m, m->active[i]);
        }
    poll_lane(m, IN);
    poll_lane(m, OUT);
    while ((sums = checksum_collect(m->checksum))) {
        struct chunk *chunk = (struct chunk *)sums;
        chunk->in_sums = false;
        end_if_copied(m, chunk);
    }
    feed_lane(m, IN, &pulls);
    feed_lane(m, OUT, &pulls);
    if (!pulls) mover_kick(m); /* more is left: continue after other threads have had the mutex */
}

void mover_get_stats(const struct mover *m, struct mover_stats *ret_stats) {
    *ret_stats = m->stats;
    for (int d = 0; d < 2; d++)
        if (m->lane[d].chunks) ret_stats->busy_ns[d] += clock_ns() - m->lane[d].since_ns;
}
