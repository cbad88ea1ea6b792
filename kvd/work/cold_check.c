/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_check.h"

#include <stdio.h>

#include "clock.h"
#include "log.h"

void cold_check_note(struct cold_check *check, const struct cold_name *name, uint64_t bytes) {
    check->ring[check->n++ % COLD_CHECK_LIMIT] = (struct cold_written){ *name, bytes };
}

static void ask_once(const struct cold_check_means *m, struct cold_checked *checked) {
    struct cold_op op = { .verb = COLD_TOUCH, .key = "kvd1:ping" };
    uint64_t begin = clock_ns();
    op.deadline_ns = begin + m->timeout_ns;
    cold_engine_run(m->engine, &op, 1);
    uint64_t took = clock_ns() - begin;
    if (op.outcome == COLD_ABSENT || op.outcome == COLD_DONE) checked->ping_ns = took ? took : 1;
}

static void delete_wrong(const struct cold_check_means *m, const struct cold_written *written, enum cold_fault fault) {
    struct cold_op op = { .verb = COLD_DELETE, .deadline_ns = clock_ns() + m->timeout_ns };
    cold_key_of(&written->name, op.key);
    LOG(LOG_WARNING, "an object of the cold tier is not what was written (%s), and is deleted there: %s",
        cold_fault_name(fault), op.key);
    cold_engine_run(m->engine, &op, 1);
}

static void judge_object(const struct cold_check_means *m, const struct cold_written *written, const struct cold_op *op,
                         struct cold_checked *checked) {
    enum cold_fault fault = COLD_FAULT_LENGTH; /* it does not fit */
    if (op->outcome == COLD_ABSENT) {
        checked->objects[COLD_CHECK_ABSENT]++;
        return;
    }
    if (op->outcome == COLD_FAILED || op->outcome == COLD_DROPPED) {
        checked->objects[COLD_CHECK_UNANSWERED]++;
        return;
    }
    if (op->outcome == COLD_DONE)
        fault = cold_value_check(&written->name, written->bytes, m->secret, op->into, op->got);
    if (fault == COLD_FINE) {
        checked->objects[COLD_CHECK_RIGHT]++;
        return;
    }
    if (!checked->objects[COLD_CHECK_WRONG]++) checked->fault = fault;
    delete_wrong(m, written, fault);
}

void cold_check_run(const struct cold_check *check, const struct cold_check_means *m, uint32_t objects,
                    struct cold_checked *ret_checked) {
    const struct cold_written *at[COLD_CHECK_LIMIT];
    uint64_t known = check->n < COLD_CHECK_LIMIT ? check->n : COLD_CHECK_LIMIT;
    uint32_t want = objects < known ? objects : (uint32_t)known, begun = 0;
    *ret_checked = (struct cold_checked){ .fault = COLD_FINE };
    ask_once(m, ret_checked);
    while (begun < want) {
        uint64_t used = 0, deadline = clock_ns() + m->timeout_ns;
        uint32_t n = 0;
        for (; begun + n < want && n < m->n_ops; n++) {
            at[n] = &check->ring[(check->n - 1 - (begun + n) * known / want) % COLD_CHECK_LIMIT];
            uint64_t bytes = COLD_HEADER_BYTES + at[n]->bytes;
            if (used + bytes > m->buffer_bytes) break;
            m->ops[n] = (struct cold_op){
                .verb = COLD_GET, .into = m->buffer + used, .into_bytes = bytes, .deadline_ns = deadline
            };
            cold_key_of(&at[n]->name, m->ops[n].key);
            used += bytes;
        }
        cold_engine_run(m->engine, m->ops, n);
        for (uint32_t i = 0; i < n; i++) judge_object(m, at[i], &m->ops[i], ret_checked);
        begun += n;
    }
}
