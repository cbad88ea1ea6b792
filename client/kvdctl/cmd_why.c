/* SPDX-License-Identifier: Apache-2.0
 *
 * why: what an activation lacks, and the smallest sets of continuations whose release would make it fit. Nothing is
 * computed here about pages: every set is tried by a plan with these victims.
 *
 * Single ones are tried among the TRIED_ONE that free most, pairs among the TRIED_TWO; where neither does, one set is
 * grown by those that free most and then thinned until each of its members is needed. Of sets of one size those come
 * first that lose least: lowest retention, fewest pages, longest unused.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "figures.h"

#define N(array) (sizeof(array) / sizeof *(array))
#define TRIED_ONE 64u
#define TRIED_TWO 16u
#define TRIED_LESS 64u /* members of the set that is thinned */

struct candidates {
    struct kvd_continuation_info *list; /* by pages freed, most first */
    uint32_t n, space;
};

#define MOST_SETS (TRIED_ONE + TRIED_TWO * TRIED_TWO)

struct set {
    uint32_t n, retention;
    uint64_t pages, used, idle_ns; /* of the member that was used last */
    struct kvd_victim *members;
};

struct search {
    struct ctl *ctl;
    struct kvd_activation want;
    struct candidates candidates;
    struct kvd_plan plan;       /* without victims */
    struct kvd_victim *victims; /* those that are tried, KVD_MAX_VICTIMS at most */
    struct set *sets;
    uint32_t found;
    enum kvd_status status;
    struct kvd_error error;
};

static void out_of_memory(struct search *s) {
    s->status = KVD_RESOURCE_EXHAUSTED;
    snprintf(s->error.message, sizeof s->error.message, "out of memory for the sets");
}

static uint64_t pages_freed(const struct kvd_continuation_info *info) {
    return (uint64_t)info->exclusive_pages[0] + figures_other_pages(info->exclusive_pages);
}

static int by_freed(const void *a, const void *b) {
    uint64_t x = pages_freed(a), y = pages_freed(b);
    if (x != y) return x < y ? 1 : -1;
    const struct kvd_continuation_info *p = a, *q = b;
    return p->used < q->used ? -1 : p->used > q->used;
}

static bool load_candidates(struct search *s) {
    struct candidates *c = &s->candidates;
    uint32_t cursor = 0, n;
    while (cursor != KVD_UNCHANGED) {
        if (c->n + KVD_MAX_LIST > c->space) {
            uint32_t space = c->space + 4 * KVD_MAX_LIST;
            struct kvd_continuation_info *list = realloc(c->list, space * sizeof *list);
            if (!list) {
                out_of_memory(s);
                return false;
            }
            c->list = list;
            c->space = space;
        }
        s->status = kvd_list_continuations(s->ctl->client, NULL, &cursor, c->list + c->n, KVD_MAX_LIST, &n, &s->error);
        if (s->status != KVD_OK) return false;
        for (uint32_t i = 0, end = c->n + n, from = c->n; i < n && from + i < end; i++) {
            const struct kvd_continuation_info *info = &c->list[from + i];
            if (!info->claimed && !info->live && info->continuation.bits != s->want.from.bits) c->list[c->n++] = *info;
        }
    }
    if (c->n) qsort(c->list, c->n, sizeof *c->list, by_freed);
    return true;
}

/* Whether the plan with these members (places in the list) is ready. A continuation that went meanwhile makes it not
 * ready. */
static bool works(struct search *s, const uint32_t *members, uint32_t n) {
    struct kvd_plan plan;
    s->want.n_victims = n;
    s->want.victims = s->victims;
    for (uint32_t i = 0; i < n; i++)
        s->victims[i] = (struct kvd_victim){ .continuation = s->candidates.list[members[i]].continuation };
    enum kvd_status status = kvd_plan_activation(s->ctl->client, &s->want, &plan, &s->error);
    if (status != KVD_OK && status != KVD_NOT_FOUND && status != KVD_ABORTED) s->status = status;
    return status == KVD_OK && plan.feasibility == KVD_READY;
}

static void record_set(struct search *s, const uint32_t *members, uint32_t n) {
    struct set *set = &s->sets[s->found++];
    *set = (struct set){ .n = n, .members = calloc(n, sizeof *set->members) };
    if (!set->members) {
        out_of_memory(s);
        s->found--;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct kvd_continuation_info *info = &s->candidates.list[members[i]];
        set->members[i].continuation = info->continuation;
        set->pages += info->pages[0];
        if (info->retention > set->retention) set->retention = info->retention;
        if (i > 0 && info->used <= set->used) continue;
        set->used = info->used;
        set->idle_ns = info->idle_ns;
    }
}

/* Whether demoting these to the host arena would do as well: then nothing is lost. */
static bool demoting_works(struct search *s, const struct set *set) {
    struct kvd_plan plan;
    struct kvd_activation want = s->want;
    want.n_victims = set->n;
    want.victims = set->members;
    for (uint32_t i = 0; i < set->n; i++) set->members[i].demote = true;
    return kvd_plan_activation(s->ctl->client, &want, &plan, NULL) == KVD_OK && plan.feasibility == KVD_READY;
}

static int by_loss(const void *a, const void *b) {
    const struct set *p = a, *q = b;
    if (p->retention != q->retention) return p->retention < q->retention ? -1 : 1;
    if (p->pages != q->pages) return p->pages < q->pages ? -1 : 1;
    return p->used < q->used ? -1 : p->used > q->used;
}

static cJSON *set_row(struct search *s, const struct set *set) {
    static char handles[KVD_MAX_VICTIMS * 24];
    char buf[24];
    size_t at = 0;
    cJSON *o = cJSON_CreateObject(), *array = cJSON_AddArrayToObject(o, "release");
    for (uint32_t i = 0; i < set->n; i++) {
        const char *handle = ctl_handle_text(set->members[i].continuation.bits, buf);
        at += (size_t)snprintf(handles + at, sizeof handles - at, "%s%s", at ? " " : "", handle);
        cJSON_AddItemToArray(array, cJSON_CreateString(handle));
    }
    out_put_u64(o, "size", set->n);
    out_put_u64(o, "pages", set->pages);
    out_put_u64(o, "retention", set->retention);
    out_put_u64(o, "used", set->used);
    figures_duration(o, "idle_text", (double)set->idle_ns / 1e9);
    cJSON_AddBoolToObject(o, "demoting_works", demoting_works(s, set));
    cJSON_AddStringToObject(o, "release_text", handles);
    return o;
}

static void try_ones(struct search *s) {
    for (uint32_t i = 0; i < s->candidates.n && i < TRIED_ONE && s->status == KVD_OK; i++)
        if (works(s, &i, 1)) record_set(s, &i, 1);
}

static void try_twos(struct search *s) {
    uint32_t n = s->candidates.n < TRIED_TWO ? s->candidates.n : TRIED_TWO;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = i + 1; k < n && s->status == KVD_OK; k++) {
            uint32_t pair[2] = { i, k };
            if (works(s, pair, 2)) record_set(s, pair, 2);
        }
    }
}

/* Leaves out who is not needed. */
static uint32_t thin(struct search *s, uint32_t *members, uint32_t n) {
    for (uint32_t i = n; i-- > 0 && s->status == KVD_OK && n > 1 && n <= TRIED_LESS;) {
        uint32_t without[TRIED_LESS];
        memcpy(without, members, i * sizeof *members);
        memcpy(without + i, members + i + 1, (n - i - 1) * sizeof *members);
        if (works(s, without, n - 1)) memcpy(members, without, --n * sizeof *members);
    }
    return n;
}

/* One set of which each member is needed. */
static void grow_and_thin(struct search *s) {
    uint32_t low = 2, high = s->candidates.n < KVD_MAX_VICTIMS ? s->candidates.n : KVD_MAX_VICTIMS;
    uint32_t *members = calloc(high + 1, sizeof *members);
    if (!members) {
        out_of_memory(s);
        return;
    }
    for (uint32_t i = 0; i < high; i++) members[i] = i;
    if (high > low && works(s, members, high)) {
        while (high - low > 1) {
            uint32_t middle = low + (high - low) / 2;
            if (works(s, members, middle)) high = middle;
            else low = middle;
        }
        high = thin(s, members, high);
        if (s->status == KVD_OK) record_set(s, members, high);
    }
    free(members);
}

/* No set would do: what holds what is short? */
static const char *holder(struct search *s) {
    struct kvd_activation want = s->want;
    struct kvd_stats stats = { 0 };
    if (s->plan.rows.short_by || s->plan.sequences.short_by)
        return "rows are short, and only sequences hold them; wait for one to end";
    if (want.from.bits && want.keep &&
        kvd_choose_victims(s->ctl->client, &want, s->victims, KVD_MAX_VICTIMS, NULL) == KVD_OK)
        return want.from.bits
                   ? "but it fits if the source is moved instead of forked (--move)"
                   : "but it fits if the source is released, too, and the prompt computed anew (without --from)";
    if ((s->status = kvd_stats(s->ctl->client, &stats, &s->error)) != KVD_OK) return "";
    if (stats.sequences) return "sequences that run hold what is short; wait for them, or ask for less";
    return "no sequence runs: copies under way, or continuations that are being taken, hold what is short; try again";
}

static void show_sets(struct search *s) {
    const char *reason = s->found ? "" : holder(s);
    if (s->status != KVD_OK) return;
    static const struct out_column columns[] = {
        { "size", "RELEASES", true, 0 },
        { "pages", "PAGES HELD", true, 0 },
        { "retention", "RETENTION", true, 3 },
        { "idle_text", "IDLE", true, 2 },
        { "demoting_works", "DEMOTING DOES", false, 1 },
        { "release_text", "CONTINUATIONS", false, 0 },
    };
    cJSON *rows = cJSON_CreateArray();
    qsort(s->sets, s->found, sizeof *s->sets, by_loss);
    for (uint32_t i = 0; i < s->found && i < s->ctl->options.sets; i++)
        cJSON_AddItemToArray(rows, set_row(s, &s->sets[i]));
    out_table(s->ctl->out, "sets", columns, N(columns), rows);
    if (s->found) out_say(s->ctl->out, "result", OUT_BAD, "blocked: each of these sets, released, makes it fit");
    else out_say(s->ctl->out, "result", OUT_BAD, "blocked, and releasing continuations does not help: %s", reason);
}

int cmd_why(struct ctl *ctl) {
    struct search s = { .ctl = ctl, .status = KVD_OK, .error = { .message = "" } };
    if (ctl->options.victims || ctl->options.demote) {
        fputs("kvdctl: why looks for victims itself: --victims and --demote are for plan\n", stderr);
        return CTL_USAGE;
    }
    int code = plan_target(ctl, &s.want);
    if (code != CTL_OK) return code;
    s.status = kvd_plan_activation(ctl->client, &s.want, &s.plan, &s.error);
    if (s.status != KVD_OK) return ctl_refused(ctl, s.status, &s.error);
    code = plan_show(ctl, &s.plan);
    if (code != CTL_OK) return code;
    out_flag(ctl->out, "ready", s.plan.feasibility == KVD_READY);
    if (s.plan.feasibility == KVD_READY) {
        out_say(ctl->out, "result", OUT_GOOD, "ready: it lacks nothing");
        return CTL_OK;
    }
    if (s.plan.feasibility != KVD_BLOCKED) {
        out_say(ctl->out, "result", OUT_BAD,
                "infeasible: it would not fit an empty store; shorten the prompt or the output");
        return CTL_REFUSED;
    }
    s.sets = calloc(MOST_SETS, sizeof *s.sets);
    s.victims = calloc(KVD_MAX_VICTIMS, sizeof *s.victims);
    if (!s.sets || !s.victims) {
        out_of_memory(&s);
    } else if (load_candidates(&s)) {
        try_ones(&s);
        if (!s.found && s.status == KVD_OK) try_twos(&s);
        if (!s.found && s.status == KVD_OK) grow_and_thin(&s);
    }
    if (s.status == KVD_OK) show_sets(&s);
    for (uint32_t i = 0; i < s.found; i++) free(s.sets[i].members);
    free(s.victims);
    free(s.sets);
    free(s.candidates.list);
    return s.status == KVD_OK ? CTL_REFUSED : ctl_refused(ctl, s.status, &s.error);
}
