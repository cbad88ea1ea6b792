/* SPDX-License-Identifier: Apache-2.0
 *
 * kvdctl as a process against a scripted kvd: what it prints, and its exit status.
 */
#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvd.h"
#include "kvt.h"
#include "scripted.h"

#ifndef KVDCTL
#error "KVDCTL is the path of the program"
#endif

struct run { int status; char out[16384], err[4096]; };

static void slurp(FILE *file, char *ret_text, size_t bytes) {
    rewind(file);
    ret_text[fread(ret_text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

/* Runs kvdctl with the arguments up to NULL; as another user where uid is not 0. */
static struct run *ctl_as(uid_t uid, ...) {
    static struct run run;
    const char *argv[24] = { KVDCTL };
    int n = 1, status = -1;
    va_list args;
    va_start(args, uid);
    while (n < 23 && (argv[n] = va_arg(args, const char *))) n++;
    va_end(args);
    FILE *out = tmpfile(), *err = tmpfile();
    memset(&run, 0, sizeof run);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fileno(out), 1);
        dup2(fileno(err), 2);
        if (uid && setuid(uid) != 0) _exit(126);
        execv(argv[0], (char **)(uintptr_t)argv);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    slurp(out, run.out, sizeof run.out);
    slurp(err, run.err, sizeof run.err);
    return &run;
}
#define CTL(...) ctl_as(0, __VA_ARGS__, (const char *)NULL)

/* ---- a small store ---------------------------------------------------------------------------------- */

struct shop {
    _Atomic uint32_t violations, needed; /* the case changes and reads while the server's thread lives: kvdctl's exit orders them */
    uint32_t free;
    uint32_t owns[8]; /* pages of continuation i + 1 */
    _Atomic uint64_t released;
    _Atomic uint32_t refuse;  /* status of the next changing request */
    _Atomic bool draining;
};

static void plan(const struct shop *shop, const struct kvd_activation *want, struct kvd_plan *ret_plan) {
    uint32_t have = shop->free;
    for (uint32_t i = 0; i < want->n_victims; i++) have += shop->owns[want->victims[i].bits - 1];
    ret_plan->n_pools = 1;
    ret_plan->pages[0] = (struct kvd_need){ shop->needed, have, shop->needed > have ? shop->needed - have : 0 };
    ret_plan->rows = (struct kvd_need){ 1, 4, 0 };
    ret_plan->feasibility = shop->needed > 1000           ? KVD_INFEASIBLE
                            : ret_plan->pages[0].short_by ? KVD_BLOCKED
                                                          : KVD_READY;
}

static enum script_act shop_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    static struct kvd_store_info info;
    static struct kvd_audit audit;
    static struct kvd_continuation_info conts[8];
    static struct kvd_session_info session = { .session = { 0x100000007 },
                                               .role = KVD_ROLE_WORKER,
                                               .rank = 1,
                                               .pid = 321,
                                               .connected = true,
                                               .name = "worker-1" };
    static struct kvd_sequence_info sequence = {
        .sequence = { 0x200000003 },
        .state = 2,
        .ending = true,
        .prompt_tokens = 77,
        .n_pools = 1,
        .pool = { { .row = 5, .membership = 2, .entitlement = 9, .committed = 70 } }
    };
    struct shop *shop = user;
    if (shop->refuse && request->header.sequence) {
        reply->status = shop->refuse;
        snprintf(reply->message, sizeof reply->message, "scripted: no");
        return SCRIPT_ANSWER;
    }
    if (request->type == FRAME_DESCRIBE_STORE) {
        info = (struct kvd_store_info){ .name = "shop",
                                        .n_pools = 1,
                                        .max_context = 4096,
                                        .max_concurrency = 4,
                                        .row_entries = 64,
                                        .capacity_tokens = 6400,
                                        .pool = { { .storage = 2,
                                                    .n_layers = 3,
                                                    .n_kv_heads = 2,
                                                    .head_dim = 256,
                                                    .n_ranks = 1,
                                                    .pages = 100,
                                                    .page_bytes = 198144 } } };
        reply->u.store = &info;
    } else if (request->type == FRAME_STATS) {
        reply->u.stats =
            (struct kvd_stats){ .n_pools = 1,
                                .pool = { { .capacity = 100, .allocated = 60, .reserved = 15, .available = 25 } },
                                .sequences = 1,
                                .continuations = 3,
                                .continuation_limit = 50,
                                .epoch = 0xfedcba9876543210,
                                .requests = UINT64_C(1) << 60,
                                .uptime_ns = 3700000000000,
                                .version = "9.9" };
    } else if (request->type == FRAME_AUDIT) {
        audit.violations = shop->violations;
        snprintf(audit.text, sizeof audit.text, "%s", shop->violations ? "INV-4: page 7 leaks" : "");
        reply->u.audit = &audit;
    } else if (request->type == FRAME_PLAN) {
        plan(shop, &request->u.activation, &reply->u.plan);
    } else if (request->type == FRAME_LIST_CONTINUATIONS) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < 8; i++)
            if (shop->owns[i])
                conts[n++] = (struct kvd_continuation_info){ .continuation = { i + 1 },
                                                             .frontier = 64 * shop->owns[i],
                                                             .pages = { shop->owns[i] },
                                                             .exclusive_pages = { shop->owns[i] } };
        reply->u.continuations.n = n;
        reply->u.continuations.items = conts;
        reply->u.continuations.next_cursor = KVD_UNCHANGED;
    } else if (request->type == FRAME_LIST_SESSIONS) {
        reply->u.sessions.n = 1;
        reply->u.sessions.items = &session;
        reply->u.sessions.next_cursor = KVD_UNCHANGED;
    } else if (request->type == FRAME_LIST_SEQUENCES) {
        reply->u.sequences.n = 1;
        reply->u.sequences.items = &sequence;
        reply->u.sequences.next_cursor = KVD_UNCHANGED;
    } else if (request->type == FRAME_RELEASE) {
        shop->released = request->u.continuation.continuation.bits;
    } else if (request->type == FRAME_DRAIN) {
        shop->draining = request->u.drain;
    }
    return SCRIPT_ANSWER;
}

/* ---- cases ------------------------------------------------------------------------------------------- */

static void usage_is_1(void) {
    KVT_EQ(CTL("--help")->status, 0);
    KVT_HAS(CTL("--help")->out, "--json");
    KVT_HAS(CTL("--help")->out, "continuations");
    KVT_HAS(CTL("--version")->out, kvd_version());
    KVT_EQ(ctl_as(0, (const char *)NULL)->status, 1);
    KVT_EQ(CTL("frobnicate")->status, 1);
    KVT_HAS(CTL("frobnicate")->err, "frobnicate");
    KVT_EQ(CTL("--nonsense", "status")->status, 1);
    KVT_EQ(CTL("--timeout=-1", "status")->status, 1);
    KVT_EQ(CTL("--color=blue", "status")->status, 1);
    KVT_EQ(CTL("status", "more")->status, 1);
    KVT_EQ(CTL("release")->status, 1);
}

static void unreachable_is_3(void) {
    struct run *run = CTL("--socket=/nonexistent/kvd.sock", "status");
    KVT_EQ(run->status, 3);
    KVT_HAS(run->err, "/nonexistent/kvd.sock");
    KVT_HAS(run->err, "is the daemon running");
    KVT_EQ_STR(run->out, "");
    if (geteuid() != 0) return; /* as root: another user may not go there */
    struct script *s = script_start(shop_fn, NULL);
    KVT_EQ_I(chmod(script_path(s), 0600), 0);
    char dir[64];
    snprintf(dir, sizeof dir, "%s", script_path(s));
    *strrchr(dir, '/') = 0;
    KVT_EQ_I(chmod(dir, 0755), 0);
    if (ctl_as(65534, "--version", (const char *)NULL)->status == 0) { /* where that user may run it at all */
        run = ctl_as(65534, "--socket", script_path(s), "status", (const char *)NULL);
        KVT_EQ(run->status, 3);
        KVT_HAS(run->err, "permission denied");
    }
    script_stop(s);
}

static cJSON *json(const char *text) {
    cJSON *root = cJSON_Parse(text);
    if (!KVT_TRUE(root != NULL)) printf("%s\n", text);
    return root;
}

static const cJSON *at(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

static void looking(void) {
    struct shop shop = { .owns = { 10, 20 } };
    struct script *s = script_start(shop_fn, &shop);
    struct run *run = CTL("-s", script_path(s), "status");
    KVT_EQ(run->status, 0);
    KVT_HAS(run->out, "shop");
    KVT_HAS(run->out, "1 h 1 min");
    KVT_HAS(run->out, "RESERVED");
    KVT_FALSE(strchr(run->out, '\033')); /* no colours into a file */
    run = CTL("-s", script_path(s), "status", "--json");
    cJSON *root = json(run->out);
    const cJSON *pool = cJSON_GetArrayItem(at(root, "pools"), 0);
    KVT_NEAR(cJSON_GetNumberValue(at(pool, "reserved")), 15, 0);
    KVT_EQ_STR(cJSON_GetStringValue(at(at(root, "daemon"), "epoch")), "fedcba9876543210");
    KVT_EQ_STR(cJSON_GetStringValue(at(at(root, "daemon"), "requests")), "1152921504606846976"); /* exact, as text */
    cJSON_Delete(root);
    KVT_HAS(CTL("-s", script_path(s), "stores")->out, "fp8");
    KVT_HAS(CTL("-s", script_path(s), "sessions")->out, "worker-1");
    KVT_HAS(CTL("-s", script_path(s), "sequences")->out, "quarantined, ending");
    root = json(CTL("-s", script_path(s), "continuations", "--json")->out);
    KVT_EQ_I(cJSON_GetArraySize(at(root, "continuations")), 2);
    KVT_EQ_STR(cJSON_GetStringValue(at(cJSON_GetArrayItem(at(root, "continuations"), 1), "continuation")), "0x2");
    cJSON_Delete(root);
    KVT_HAS(CTL("-s", script_path(s), "--color=always", "status")->out, "\033[");
    script_stop(s);
}

static void audit_violations_are_4(void) {
    struct shop shop = { 0 };
    struct script *s = script_start(shop_fn, &shop);
    KVT_EQ(CTL("-s", script_path(s), "audit")->status, 0);
    shop.violations = 2;
    struct run *run = CTL("-s", script_path(s), "audit");
    KVT_EQ(run->status, 4);
    KVT_HAS(run->out, "INV-4");
    cJSON *root = json(CTL("-s", script_path(s), "audit", "--json")->out);
    KVT_TRUE(cJSON_IsFalse(at(root, "clean")));
    cJSON_Delete(root);
    script_stop(s);
}

static void doing(void) {
    struct shop shop = { 0 };
    struct script *s = script_start(shop_fn, &shop);
    KVT_EQ(CTL("-s", script_path(s), "drain")->status, 0);
    KVT_TRUE(shop.draining);
    KVT_EQ(CTL("-s", script_path(s), "drain", "on")->status, 1);
    KVT_EQ(CTL("-s", script_path(s), "drain", "off")->status, 0);
    KVT_FALSE(shop.draining);
    KVT_EQ(CTL("-s", script_path(s), "release", "0x55")->status, 0);
    KVT_EQ(shop.released, 0x55);
    KVT_EQ(CTL("-s", script_path(s), "release", "0x66", "rubbish")->status, 1);
    KVT_EQ(shop.released, 0x55); /* nothing, where one is wrong */
    shop.refuse = KVD_NOT_FOUND;
    struct run *run = CTL("-s", script_path(s), "fence", "0x9");
    KVT_EQ(run->status, 2);
    KVT_HAS(run->err, "scripted: no");
    cJSON *root = json(CTL("-s", script_path(s), "fence", "9", "--json")->out);
    KVT_EQ_STR(cJSON_GetStringValue(at(at(root, "error"), "status")), "NOT_FOUND");
    cJSON_Delete(root);
    script_stop(s);
}

static cJSON *sets_of(struct script *s, int *ret_n) {
    struct run *run = CTL("-s", script_path(s), "why", "-p", "640", "-o", "64", "--json");
    KVT_EQ(run->status, 2);
    cJSON *root = json(run->out);
    *ret_n = cJSON_GetArraySize(at(root, "sets"));
    return root;
}

static double size_of(const cJSON *root, int i) {
    return cJSON_GetNumberValue(at(cJSON_GetArrayItem(at(root, "sets"), i), "size"));
}

/* ACT-8 in an operator's hands: what is short, and the smallest sets that would do. */
static void act_8_plan_and_why(void) {
    struct shop shop = { .needed = 12, .free = 5, .owns = { 3, 8, 2, 9 } };
    struct script *s = script_start(shop_fn, &shop);
    int n;
    struct run *run = CTL("-s", script_path(s), "plan", "-p", "640", "-o", "64");
    KVT_EQ(run->status, 2);
    KVT_HAS(run->out, "blocked");
    KVT_HAS(run->out, "7"); /* short by */
    KVT_EQ(CTL("-s", script_path(s), "plan", "-p", "640", "-o", "64", "-v", "0x2")->status, 0);
    KVT_EQ(CTL("-s", script_path(s), "plan", "-p", "640")->status, 1);

    cJSON *root = sets_of(s, &n); /* either of two alone */
    KVT_EQ_I(n, 2);
    KVT_NEAR(size_of(root, 0), 1, 0);
    cJSON_Delete(root);
    shop.needed = 20; /* 15 short: 8 + 9 alone */
    root = sets_of(s, &n);
    KVT_EQ_I(n, 1);
    KVT_NEAR(size_of(root, 0), 2, 0);
    cJSON_Delete(root);
    shop.needed = 25; /* 20 short: three of them */
    root = sets_of(s, &n);
    KVT_EQ_I(n, 1);
    KVT_NEAR(size_of(root, 0), 3, 0);
    cJSON_Delete(root);
    shop.needed = 90;
    root = sets_of(s, &n);
    KVT_EQ_I(n, 0);
    KVT_HAS(cJSON_GetStringValue(at(root, "result")), "sequences that run");
    cJSON_Delete(root);
    shop.needed = 5000;
    run = CTL("-s", script_path(s), "why", "-p", "640", "-o", "64");
    KVT_EQ(run->status, 2);
    KVT_HAS(run->out, "infeasible");
    shop.needed = 5;
    KVT_EQ(CTL("-s", script_path(s), "why", "-p", "640", "-o", "64")->status, 0);
    script_stop(s);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(usage_is_1),
                                             KVT_CASE(unreachable_is_3),
                                             KVT_CASE(looking),
                                             KVT_CASE(audit_violations_are_4),
                                             KVT_CASE(doing),
                                             KVT_CASE(act_8_plan_and_why),
                                             { 0 } };
    return kvt_main("kvdctl", cases, argc, argv);
}
