/* SPDX-License-Identifier: Apache-2.0 */
#include "extent_runs.h"

static uint64_t run_priority(uint64_t offset) {
    uint64_t z = offset + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

void runs_init(struct runs *runs, struct run_node *nodes, uint32_t limit) {
    *runs = (struct runs){ .nodes = nodes, .limit = limit, .root = RUN_NONE, .unused = limit ? 0 : RUN_NONE };
    for (uint32_t i = 0; i < limit; i++) nodes[i].left = i + 1 < limit ? i + 1 : RUN_NONE;
}

static void refresh_longest(struct runs *runs, uint32_t t) {
    struct run_node *n = &runs->nodes[t];
    n->longest = n->bytes;
    if (n->left != RUN_NONE && runs->nodes[n->left].longest > n->longest) n->longest = runs->nodes[n->left].longest;
    if (n->right != RUN_NONE && runs->nodes[n->right].longest > n->longest) n->longest = runs->nodes[n->right].longest;
}

/* Nodes with offset < at go to *ret_low, the others to *ret_high. */
static void split_tree(struct runs *runs, uint32_t t, uint64_t at, uint32_t *ret_low, uint32_t *ret_high) {
    if (t == RUN_NONE) {
        *ret_low = *ret_high = RUN_NONE;
        return;
    }
    if (runs->nodes[t].offset < at) {
        split_tree(runs, runs->nodes[t].right, at, &runs->nodes[t].right, ret_high);
        *ret_low = t;
    } else {
        split_tree(runs, runs->nodes[t].left, at, ret_low, &runs->nodes[t].left);
        *ret_high = t;
    }
    refresh_longest(runs, t);
}

/* All of low lies before all of high. */
static uint32_t merge_trees(struct runs *runs, uint32_t low, uint32_t high) {
    if (low == RUN_NONE) return high;
    if (high == RUN_NONE) return low;
    if (run_priority(runs->nodes[low].offset) > run_priority(runs->nodes[high].offset)) {
        runs->nodes[low].right = merge_trees(runs, runs->nodes[low].right, high);
        refresh_longest(runs, low);
        return low;
    }
    runs->nodes[high].left = merge_trees(runs, low, runs->nodes[high].left);
    refresh_longest(runs, high);
    return high;
}

/* The last run that begins at or before offset; RUN_NONE if there is none. */
static uint32_t at_or_before(const struct runs *runs, uint64_t offset) {
    uint32_t found = RUN_NONE;
    for (uint32_t t = runs->root; t != RUN_NONE;) {
        if (runs->nodes[t].offset <= offset) {
            found = t;
            t = runs->nodes[t].right;
        } else t = runs->nodes[t].left;
    }
    return found;
}

static void insert_run(struct runs *runs, uint64_t offset, uint64_t bytes) {
    uint32_t low, high, t = runs->unused;
    runs->unused = runs->nodes[t].left;
    runs->nodes[t] = (struct run_node){ offset, bytes, bytes, RUN_NONE, RUN_NONE };
    split_tree(runs, runs->root, offset, &low, &high);
    runs->root = merge_trees(runs, merge_trees(runs, low, t), high);
    runs->used++;
}

static void erase_run(struct runs *runs, uint64_t offset) {
    uint32_t low, middle, high;
    split_tree(runs, runs->root, offset, &low, &high);
    split_tree(runs, high, offset + 1, &middle, &high);
    runs->root = merge_trees(runs, low, high);
    runs->nodes[middle].left = runs->unused;
    runs->unused = middle;
    runs->used--;
}

void runs_give(struct runs *runs, uint64_t offset, uint64_t bytes) {
    runs->free_bytes += bytes;
    uint32_t before = at_or_before(runs, offset), after = at_or_before(runs, offset + bytes);
    if (after != RUN_NONE && runs->nodes[after].offset == offset + bytes) {
        uint64_t more = runs->nodes[after].bytes;
        erase_run(runs, offset + bytes);
        bytes += more;
    }
    if (before != RUN_NONE && runs->nodes[before].offset + runs->nodes[before].bytes == offset) {
        uint64_t begin = runs->nodes[before].offset;
        bytes += runs->nodes[before].bytes;
        erase_run(runs, begin);
        offset = begin;
    }
    insert_run(runs, offset, bytes);
}

bool runs_take(struct runs *runs, uint64_t offset, uint64_t bytes) {
    uint32_t t = at_or_before(runs, offset);
    if (t == RUN_NONE) return false;
    uint64_t begin = runs->nodes[t].offset, end = begin + runs->nodes[t].bytes;
    if (bytes > end - begin || offset > end - bytes) return false;
    erase_run(runs, begin);
    if (offset > begin) insert_run(runs, begin, offset - begin);
    if (offset + bytes < end) insert_run(runs, offset + bytes, end - offset - bytes);
    runs->free_bytes -= bytes;
    return true;
}

bool runs_first_run(const struct runs *runs, uint64_t bytes, uint64_t *ret_offset, uint64_t *ret_bytes) {
    uint32_t t = runs->root;
    if (t == RUN_NONE || runs->nodes[t].longest < bytes) return false;
    for (;;) {
        const struct run_node *n = &runs->nodes[t];
        if (n->left != RUN_NONE && runs->nodes[n->left].longest >= bytes) t = n->left;
        else if (n->bytes >= bytes) break;
        else t = n->right;
    }
    *ret_offset = runs->nodes[t].offset;
    *ret_bytes = runs->nodes[t].bytes;
    return true;
}

bool runs_first_fit(const struct runs *runs, uint64_t bytes, uint64_t *ret_offset) {
    uint64_t run_bytes;
    return runs_first_run(runs, bytes, ret_offset, &run_bytes);
}

static uint32_t count_node(const struct runs *runs, uint32_t t, uint64_t bytes, uint32_t n) {
    uint32_t counted = 0;
    for (; t != RUN_NONE && runs->nodes[t].longest >= bytes && counted < n; t = runs->nodes[t].right) {
        counted += count_node(runs, runs->nodes[t].left, bytes, n - counted);
        uint64_t here = runs->nodes[t].bytes / bytes;
        counted += here < n - counted ? (uint32_t)here : n - counted;
    }
    return counted;
}

uint32_t runs_count(const struct runs *runs, uint64_t bytes, uint32_t n) {
    return count_node(runs, runs->root, bytes, n);
}

uint64_t runs_longest(const struct runs *runs) { return runs->root == RUN_NONE ? 0 : runs->nodes[runs->root].longest; }

bool runs_next(const struct runs *runs, uint64_t *cursor, uint64_t *ret_offset, uint64_t *ret_bytes) {
    uint32_t found = RUN_NONE;
    for (uint32_t t = runs->root; t != RUN_NONE;) {
        if (runs->nodes[t].offset >= *cursor) {
            found = t;
            t = runs->nodes[t].left;
        } else t = runs->nodes[t].right;
    }
    if (found == RUN_NONE) return false;
    *ret_offset = runs->nodes[found].offset;
    *ret_bytes = runs->nodes[found].bytes;
    *cursor = *ret_offset + 1;
    return true;
}

struct run_audit {
    uint32_t bad, nodes;
    uint64_t sum, last_end;
    bool any;
};

static uint64_t audit_run(const struct runs *runs, uint32_t t, struct run_audit *audit) {
    if (t == RUN_NONE) return 0;
    const struct run_node *n = &runs->nodes[t];
    uint64_t longest = audit_run(runs, n->left, audit);
    audit->bad += audit->any && n->offset <= audit->last_end; /* overlapping, out of order, or not joined */
    audit->bad += n->bytes == 0;
    audit->any = true;
    audit->last_end = n->offset + n->bytes;
    audit->sum += n->bytes;
    audit->nodes++;
    if (n->left != RUN_NONE) audit->bad += run_priority(runs->nodes[n->left].offset) > run_priority(n->offset);
    if (n->right != RUN_NONE) audit->bad += run_priority(runs->nodes[n->right].offset) > run_priority(n->offset);
    uint64_t right = audit_run(runs, n->right, audit);
    if (right > longest) longest = right;
    if (n->bytes > longest) longest = n->bytes;
    audit->bad += longest != n->longest;
    return longest;
}

uint32_t runs_audit(const struct runs *runs) {
    struct run_audit audit = { 0 };
    audit_run(runs, runs->root, &audit);
    return audit.bad + (audit.sum != runs->free_bytes) + (audit.nodes != runs->used);
}
