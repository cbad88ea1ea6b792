/* SPDX-License-Identifier: Apache-2.0
 *
 * Refusals and their sentences: what was asked, what there was, what to change (SRV-2).
 */
#include "store_internal.h"

#include <inttypes.h>
#include <stdio.h>

int store_refuse(struct store_refusal *refusal, enum store_code code, enum store_subject subject, uint32_t pool,
                 uint64_t asked, uint64_t had, uint64_t limit) {
    if (refusal) *refusal = (struct store_refusal){ code, subject, pool, asked, had, limit };
    return (int)code;
}

static const char *const subject_names[] = { [STORE_S_NONE] = "request",
                                             [STORE_S_PAGES] = "pages",
                                             [STORE_S_ROW] = "block-table rows",
                                             [STORE_S_SEQUENCE] = "sequence",
                                             [STORE_S_CONTINUATION] = "continuation",
                                             [STORE_S_PAGE_DESCRIPTOR] = "page descriptors",
                                             [STORE_S_MEMBERSHIP] = "membership entries",
                                             [STORE_S_STATE_SLOT] = "state slots",
                                             [STORE_S_ARENA] = "arena bytes",
                                             [STORE_S_COMMIT] = "commit",
                                             [STORE_S_TRUNCATE] = "truncate",
                                             [STORE_S_KEEP] = "keep",
                                             [STORE_S_ENSURE] = "ensure",
                                             [STORE_S_FRONTIER] = "frontier",
                                             [STORE_S_PROMPT] = "prompt tokens",
                                             [STORE_S_OUTPUT] = "output tokens",
                                             [STORE_S_DIGEST] = "page digests",
                                             [STORE_S_TAIL] = "tail tokens",
                                             [STORE_S_RECIPE] = "recipe",
                                             [STORE_S_STATE_FRONTIER] = "state frontier",
                                             [STORE_S_MOVE] = "copies between device and host",
                                             [STORE_S_DOMAIN] = "domains",
                                             [STORE_S_REPLICA] = "other replicas of pages",
                                             [STORE_S_LENT] = "lent pages",
                                             [STORE_S_BOUNDARY] = "checkpoints" };

/* asked, had and limit are put in by the caller in this order. */
static const char *sentence_of(enum store_code code) {
    switch (code) {
    case STORE_OK: return "nothing was refused";
    case STORE_E_STALE:
        return "handle 0x%" PRIx64
               " names nothing that exists now: it is of an older generation or was never given out; look it up again";
    case STORE_E_LEASE: return "lease 0x%" PRIx64 " does not drive this sequence: ask the process that it is leased to";
    case STORE_E_STATE:
        return "asked for an object in state %" PRIu64 ", it is in state %" PRIu64
               " (activating or quarantined): wait until it is active, or until its end is told";
    case STORE_E_BUSY:
        return "another request uses it at this moment (asked %" PRIu64 ", readers %" PRIu64 ", limit %" PRIu64
               "): an activation has claimed it, or its copies are under way; look again, then ask again";
    case STORE_E_RANGE:
        return "asked for %" PRIu64 ", had %" PRIu64 ", the limit is %" PRIu64 ": ask for a value inside the limit";
    case STORE_E_NEVER:
        return "asked for %" PRIu64 ", %" PRIu64 " are free, and an empty store has %" PRIu64
               ": shorten the prompt or the output budget, or configure a larger pool";
    case STORE_E_SHORT:
        return "asked for %" PRIu64 ", had %" PRIu64 " of %" PRIu64
               ": release continuations or wait for a sequence to finish";
    case STORE_E_ENTITLEMENT:
        return "asked for %" PRIu64 " pages, %" PRIu64 " are mapped and the entitlement is %" PRIu64
               ": ask for less, or activate with a larger output budget";
    case STORE_E_REVISION:
        return "planned at revision %" PRIu64 ", the store is at %" PRIu64
               " or a victim is claimed by another activation: plan again";
    case STORE_E_INCOMPLETE:
        return "asked to publish frontier %" PRIu64 ", had %" PRIu64
               ": every pool and the state image must stand at one committed frontier of at least one token; bring "
               "them there first";
    case STORE_E_UNNAMED:
    case STORE_E_NAME:
        return "asked about %" PRIu64 ", had %" PRIu64 " of %" PRIu64
               ": name every full page with its own digest, in order, and give the tail's tokens";
    case STORE_E_PROTECTED:
        return "asked to shorten to %" PRIu64 " tokens, a checkpoint or another sequence reads up to %" PRIu64
               ": keep that much, or fork below it";
    case STORE_E_TIER:
        return "there is no host arena (asked %" PRIu64 ", had %" PRIu64 ", limit %" PRIu64
               "): give it a size with arena = in section [host]";
    case STORE_E_DAMAGED:
        return "bytes in the host arena do not match their checksum, and there is no other copy: what held them is "
               "lost; "
               "compute it again, and look at the machine's memory";
    case STORE_MORE:
    case STORE_WAIT: return "nothing was refused: copies are still to be made";
    case STORE_E_ARGUMENT:
        return "argument %" PRIu64 " is malformed (had %" PRIu64 ", limit %" PRIu64 "): correct the request";
    }
    return "unknown refusal";
}

/* Of lent pages; asked and had are put in. */
static const char *lent_sentence(enum store_code code) {
    if (code == STORE_E_INCOMPLETE)
        return "kvd lends pages (%" PRIu64 ") where there is one pool, and no state image; there are %" PRIu64
               " pools: set backend = off in section [backend], and no state_bytes";
    if (code == STORE_E_ARGUMENT)
        return "page %" PRIu64 " is not lent by this sequence, or stands in the request twice (%" PRIu64
               "): send each of its own once";
    if (code == STORE_E_NAME)
        return "page %" PRIu64 " is complete up to column %" PRIu64
               " and has its name: return it with `again` before other bytes come into it, or, with more columns "
               "behind the same, name it from the continuation that ends in it";
    if (code == STORE_E_BUSY)
        return "page %" PRIu64 " is read by a running sequence, or by a copy (%" PRIu64 " of them): ask again";
    return "sequence 0x%" PRIx64 " (%" PRIu64 "): one that began from nothing and has committed nothing lends its "
           "pages, once (LendPages); from then on it "
           "names and returns those, and does nothing else";
}

const char *store_refusal_text(const struct store_refusal *refusal, char *buf, size_t bytes) {
    const char *subject = (size_t)refusal->subject < sizeof subject_names / sizeof *subject_names
                              ? subject_names[refusal->subject]
                              : "request";
    int n = refusal->pool == KVD_NONE ? snprintf(buf, bytes, "%s: ", subject)
                                      : snprintf(buf, bytes, "%s of pool %" PRIu32 ": ", subject, refusal->pool);
    if (n < 0 || (size_t)n >= bytes) return buf;
    if (refusal->code == STORE_E_STATE && refusal->subject == STORE_S_REPLICA) {
        snprintf(buf + n, bytes - (size_t)n,
                 "%" PRIu64 " have none: copy them first (Demote, Prefetch), and let nobody drop them meanwhile",
                 refusal->had);
    } else if (refusal->code == STORE_E_STALE && refusal->subject == STORE_S_FRONTIER) {
        snprintf(buf + n, bytes - (size_t)n,
                 "asked to start at %" PRIu64 ", the source has %" PRIu64
                 " tokens (it may have been shortened since it was found): look it up again",
                 refusal->asked, refusal->had);
    } else if (refusal->code == STORE_E_NAME && refusal->subject == STORE_S_FRONTIER) {
        snprintf(buf + n, bytes - (size_t)n,
                 "the tokens before %" PRIu64 " inside its page are not known: cut it at a page boundary (%" PRIu64
                 " is the one below), or inside a tail that has a name, behind %" PRIu64,
                 refusal->asked, refusal->had, refusal->limit);
    } else if (refusal->code == STORE_E_BUSY && refusal->subject == STORE_S_SEQUENCE) {
        snprintf(buf + n, bytes - (size_t)n,
                 "continuation 0x%" PRIx64 " is what a running sequence has named so far (%" PRIu64
                 " tokens): fork it with keep at a page boundary, or ask again when the sequence has finished",
                 refusal->asked, refusal->had);
    } else if (refusal->subject == STORE_S_BOUNDARY) {
        snprintf(buf + n, bytes - (size_t)n,
                 "every %" PRIu64 " tokens is no page boundary: ask for a multiple of %d, or for 0 (none)",
                 refusal->asked, KVD_PAGE_TOKENS);
    } else if (refusal->subject == STORE_S_LENT) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(buf + n, bytes - (size_t)n, lent_sentence(refusal->code), refusal->asked, refusal->had);
#pragma GCC diagnostic pop
    } else if (refusal->subject == STORE_S_DOMAIN) {
        snprintf(buf + n, bytes - (size_t)n,
                 "continuation 0x%" PRIx64
                 " is not of the domain of the request's root: KV is reused within one domain "
                 "only; start from a continuation that Find returns for this root",
                 refusal->asked);
    } else {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
        snprintf(buf + n, bytes - (size_t)n, sentence_of(refusal->code), refusal->asked, refusal->had, refusal->limit);
#pragma GCC diagnostic pop
    }
    return buf;
}
