/* SPDX-License-Identifier: Apache-2.0 */
#include "service_fixture.h"

#include "store.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"

static uint32_t or (uint32_t value, uint32_t otherwise) { return value ? value : otherwise; }

static bool start(struct fx *fx, const char *text, bool beside) {
    char err[2048], prefix[40];
    struct config config;
    memset(fx, 0, sizeof *fx);
    log_init(LOG_ERROR);
    fx->beside = beside;
    snprintf(prefix, sizeof prefix, "/kvd-test-%d%s-", (int)getpid(), beside ? "b" : "");
    if (config_parse("test", text, &config, err, sizeof err) ||
        service_new(&config, prefix, NULL, &fx->service, err, sizeof err)) {
        printf("    %s\n", err);
        return KVT_TRUE(false);
    }
    fx->epoch = fx->service->epoch;
    return true;
}

bool fx_start_large(struct fx *fx, uint32_t context, uint32_t concurrency) {
    char text[512];
    snprintf(text, sizeof text,
             "[kvd]\nlog_level = error\n[devices]\nmemory = 8GiB\n"
             "[model]\nlayers = 1\nkv_heads = 1\nhead_dim = 16\nmax_context = %u\n"
             "max_concurrency = %u\n[lease]\nmap_ahead = 0\n",
             context, concurrency);
    return start(fx, text, false);
}

bool fx_start(struct fx *fx, const struct fx_setup *setup) {
    static const struct fx_setup none;
    const struct fx_setup *s = setup ? setup : &none;
    char text[4096];
    size_t n = 0;
    n += (size_t)snprintf(text + n, sizeof text - n, "[kvd]\nlog_level = error\n[devices]\nmemory = %uMiB\n",
                          or (s->memory_mib, 256));
    for (uint32_t r = 0; r < or (s->ranks, 1); r++)
        n += (size_t)snprintf(text + n, sizeof text - n, "device.%u = host:%u\n", r, r);
    n += (size_t)snprintf(
        text + n, sizeof text - n,
        "[model]\nlayers = %u\nkv_heads = %u\nhead_dim = %u\nprofile = %s\nmax_context = %u\nmax_concurrency = %u\n",
        or (s->layers, 2), or (s->kv_heads, 2), or (s->head_dim, 64), s->profile ? s->profile : "bf16",
        or (s->context, 4096), or (s->concurrency, 8));
    n += (size_t)snprintf(text + n, sizeof text - n,
                          "[backend]\nkind = %s\n[capacity]\ntokens = %u\n[lease]\ngrowth = %s\nmap_ahead = %u\n%s\n",
                          s->backend ? s->backend : "off", or (s->capacity_tokens, 16384), s->growth ? "yes" : "no",
                          s->map_ahead, s->more ? s->more : "");
    return start(fx, text, s->beside);
}

void fx_stop(struct fx *fx) {
    if (fx->service) KVT_EQ(fx_audit(fx), 0);
    fx->service = service_free(fx->service);
    char arena[48];
    snprintf(arena, sizeof arena, "/kvd-arena-test-%d%s", (int)getpid(), fx->beside ? "b" : "");
    shm_unlink(arena); /* there may be none */
}

/* ---- peers ----------------------------------------------------------------------------------- */

static bool post(struct link *link, const uint8_t *frame, size_t bytes, bool event) {
    struct fx_peer *p = (struct fx_peer *)link;
    if (p->closed || (event && p->slow)) return false;
    if (p->n + bytes > p->room) {
        p->room = (p->n + bytes) * 2;
        p->bytes = realloc(p->bytes, p->room);
    }
    memcpy(p->bytes + p->n, frame, bytes);
    p->n += bytes;
    return true;
}
static void close_link(struct link *link) { ((struct fx_peer *)link)->closed = true; }
static void release(struct link *link) { ((struct fx_peer *)link)->released = true; }
static const struct groups *groups(struct link *link) {
    struct fx_peer *p = (struct fx_peer *)link;
    p->asked_groups++;
    return p->groups;
}
static const struct link_ops ops = { .post = post, .close = close_link, .release = release, .groups = groups };

static struct fx_peer *new_peer(struct fx *fx, pid_t pid) {
    struct fx_peer *p = calloc(1, sizeof *p);
    struct peer peer = {
        .uid = getuid(), .gid = getgid(), .pid = (uint64_t)pid, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0)
    };
    service_link_init(&p->link, &ops, &peer);
    p->fx = fx;
    p->pid = pid;
    p->arena = codec_arena_new();
    return p;
}

struct fx_peer *fx_peer_new(struct fx *fx) {
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        while (getppid() == parent) poll(NULL, 0, 1000); /* until killed, or left alone */
        _exit(0);
    }
    struct fx_peer *p = new_peer(fx, pid);
    p->own_process = true;
    return p;
}

struct fx_peer *fx_peer_again(struct fx_peer *peer) {
    return new_peer(peer->fx, peer->pid);
}

void fx_kill(struct fx_peer *p) {
    struct fx *fx = p->fx;
    kill(p->pid, SIGKILL);
    siginfo_t info;
    waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOWAIT);
    waitpid(p->pid, NULL, 0);
    p->own_process = false;
    struct pollfd f = { .fd = service_fd(fx->service), .events = POLLIN };
    KVT_EQ(poll(&f, 1, 1000), 1);
    service_run(fx->service);
}

void fx_cut(struct fx_peer *p) {
    if (!p->closed || !p->released) service_link_closed(p->fx->service, &p->link);
    p->closed = true;
}

void fx_peer_free(struct fx_peer *p) {
    if (!p) return;
    fx_cut(p);
    link_unref(&p->link);
    if (p->own_process) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        service_run(p->fx->service);
    }
    KVT_TRUE(p->released);
    service_link_fini(&p->link);
    codec_arena_free(p->arena);
    free(p->bytes);
    free(p);
}

/* ---- frames ----------------------------------------------------------------------------------- */

const kvd_digest fx_domain = { { 0xd0 } };

static void fill_domain(struct msg_request *request) {
    struct kvd_find *f = &request->u.find;
    if (request->type == FRAME_ACTIVATE && store_root_is_none(&request->u.activation.root.digest))
        request->u.activation.root.digest = fx_domain;
    if (request->type != FRAME_FIND || !store_root_is_none(&f->root)) return;
    f->root = fx_domain;
    if (f->prompt_tokens || f->first > 1000000) return;
    f->token_page = f->first + f->n;
    f->prompt_tokens = f->token_page * KVD_PAGE_TOKENS + KVD_TAIL_TOKENS;
}

void fx_send(struct fx_peer *p, struct msg_request *request) {
    static uint8_t frame[FRAME_LIMIT];
    char err[256];
    size_t bytes;
    codec_arena_reset(p->arena);
    if (!p->rootless) fill_domain(request);
    if (!KVT_OK(codec_encode_request(request, p->arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &bytes, err,
                                     sizeof err))) {
        printf("    %s\n", err);
        return;
    }
    frame_head_write(frame, request->type, 0, ++p->frame_id, bytes);
    if (!service_serve(p->fx->service, &p->link, frame, FRAME_HEADER + bytes)) p->closed = true;
}

uint8_t *fx_frame(struct fx_peer *p, size_t *ret_bytes) {
    struct frame_head head;
    if (frame_head_read(p->bytes, p->n, &head)) return NULL;
    size_t bytes = head.length + 4;
    uint8_t *copy = malloc(bytes);
    memcpy(copy, p->bytes, bytes);
    memmove(p->bytes, p->bytes + bytes, p->n - bytes);
    p->n -= bytes;
    *ret_bytes = bytes;
    return copy;
}

bool fx_reply(struct fx_peer *p, uint16_t type, struct msg_reply *ret_reply) {
    char err[256];
    size_t bytes;
    uint8_t *frame = fx_frame(p, &bytes);
    struct frame_head head;
    if (!frame || frame_head_read(frame, bytes, &head)) return false;
    bool ok = KVT_EQ(head.type, type) && KVT_EQ(head.flags, FRAME_F_REPLY);
    codec_arena_reset(p->arena);
    ok = ok && KVT_OK(codec_decode_reply(type, frame + FRAME_HEADER, bytes - FRAME_HEADER, p->arena, ret_reply, err,
                                         sizeof err));
    free(frame);
    return ok;
}

bool fx_event(struct fx_peer *p, struct kvd_event *ret_event) {
    char err[256];
    size_t bytes;
    uint8_t *frame = fx_frame(p, &bytes);
    struct frame_head head;
    if (!frame) return false;
    bool ok = !frame_head_read(frame, bytes, &head) && KVT_EQ(head.type, FRAME_EVENT) &&
              KVT_EQ(head.flags, FRAME_F_EVENT) &&
              KVT_OK(codec_decode_event(frame + FRAME_HEADER, bytes - FRAME_HEADER, ret_event, err, sizeof err));
    free(frame);
    return ok;
}

bool fx_call_as_is(struct fx_peer *p, struct msg_request *request, struct msg_reply *ret_reply) {
    fx_send(p, request);
    if (!p->n) fx_settle(p->fx, p);
    return KVT_TRUE(fx_reply(p, request->type, ret_reply));
}

bool fx_call(struct fx_peer *p, struct msg_request *request, struct msg_reply *ret_reply) {
    if (!request->header.session.bits) request->header.session = p->session;
    const struct frame_info *info = frame_info(request->type);
    if (!request->header.sequence && info && info->numbering >= FRAME_CHANGE) request->header.sequence = ++p->sequence;
    return fx_call_as_is(p, request, ret_reply);
}

void fx_settle(struct fx *fx, const struct fx_peer *peer) {
    struct pollfd f = { .fd = service_fd(fx->service), .events = POLLIN };
    while (!(peer && peer->n) && poll(&f, 1, peer ? 60000 : 0) == 1) service_run(fx->service);
}

/* ---- shorthands ---------------------------------------------------------------------------------- */

uint32_t fx_hello(struct fx_peer *p, uint32_t role, uint32_t rank) {
    struct msg_request q = {
        .type = FRAME_HELLO,
        .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = role, .name = "fx", .library = "test", .rank = rank }
    };
    struct msg_reply r;
    if (!fx_call_as_is(p, &q, &r)) return UINT32_MAX;
    if (r.status != KVD_OK) return r.status;
    p->session = r.u.hello.session;
    p->secret = r.u.hello.secret;
    p->sequence = 0;
    return KVD_OK;
}

struct fx_peer *fx_session(struct fx *fx, uint32_t role, uint32_t rank) {
    struct fx_peer *p = fx_peer_new(fx);
    KVT_EQ(fx_hello(p, role, rank), KVD_OK);
    return p;
}

uint32_t fx_activate(struct fx_peer *scheduler, kvd_session_id worker, uint32_t prompt, uint32_t output,
                     struct kvd_activated *ret_activated) {
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .worker = worker,
                                               .prompt_tokens = prompt,
                                               .max_output_tokens = output,
                                               .ensure = { prompt, prompt } } };
    struct msg_reply r = { 0 };
    if (!fx_call(scheduler, &q, &r)) return UINT32_MAX;
    if (r.status == KVD_OK) *ret_activated = r.u.activated;
    return r.status;
}

uint32_t fx_round(struct fx_peer *p, kvd_sequence sequence, uint32_t commit, uint32_t ensure,
                  struct kvd_round_result *ret_result) {
    struct kvd_round_item item = { .sequence = sequence };
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) item.pool[i] = round_pool(commit, KVD_NONE, KVD_NONE, ensure);
    struct msg_request q = { .type = FRAME_ROUND, .u.round = { 1, &item } };
    struct msg_reply r = { 0 };
    if (!fx_call(p, &q, &r)) return UINT32_MAX;
    if (r.status != KVD_OK) return r.status;
    if (!KVT_EQ(r.u.round.n, 1)) return UINT32_MAX;
    if (ret_result) *ret_result = r.u.round.items[0];
    return r.u.round.items[0].status;
}

uint32_t fx_finish(struct fx_peer *p, kvd_sequence sequence) {
    struct msg_request q = { .type = FRAME_FINISH, .u.finish = { .sequence = sequence } };
    struct msg_reply r = { 0 };
    return fx_call(p, &q, &r) ? r.status : UINT32_MAX;
}

struct kvd_stats fx_stats(struct fx_peer *p) {
    struct msg_request q = { .type = FRAME_STATS };
    struct msg_reply r = { 0 };
    if (!fx_call(p, &q, &r) || !KVT_EQ(r.status, KVD_OK)) memset(&r, 0, sizeof r);
    return r.u.stats;
}

uint32_t fx_audit(struct fx *fx) {
    struct fx_peer *p = fx_session(fx, KVD_ROLE_ADMIN, 0);
    struct msg_request q = { .type = FRAME_AUDIT };
    struct msg_reply r = { 0 };
    uint32_t violations = UINT32_MAX;
    if (fx_call(p, &q, &r) && KVT_EQ(r.status, KVD_OK)) violations = r.u.audit->violations;
    if (violations) printf("    audit: %s\n", violations == UINT32_MAX ? r.message : r.u.audit->text);
    fx_peer_free(p);
    return violations;
}
