/* SPDX-License-Identifier: Apache-2.0 */
#include "worker.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvd.h"
#include "replay.h"

struct worker_order {
    kvd_sequence sequence;
    uint32_t tokens;
};

static void commit_order(kvd_client *client, const struct worker_order *order, struct worker_answer *ret_answer) {
    struct kvd_round_item item = { .sequence = order->sequence,
                                   .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = order->tokens } };
    struct kvd_round_result result;
    struct kvd_error error = { .message = "" };
    ret_answer->status = kvd_round(client, &item, 1, &result, &error);
    if (ret_answer->status == KVD_OK) ret_answer->status = (enum kvd_status)result.status;
    else memcpy(result.message, error.message, sizeof result.message);
    if (ret_answer->status != KVD_OK) memcpy(ret_answer->message, result.message, sizeof ret_answer->message);
}

_Noreturn void worker_run(const char *socket, int fd) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = socket,
                                           .role = KVD_ROLE_WORKER,
                                           .name = "replay-worker",
                                           .timeout_ms = REPLAY_TIMEOUT_MS };
    struct worker_answer answer = { .status = KVD_OK };
    struct worker_order order;
    struct kvd_error error = { .message = "" };
    kvd_client *client = NULL;
    answer.status = kvd_connect(&options, &client, &error);
    answer.session = kvd_client_session(client);
    memcpy(answer.message, error.message, sizeof answer.message);
    while (send(fd, &answer, sizeof answer, MSG_NOSIGNAL) == (ssize_t)sizeof answer &&
           recv(fd, &order, sizeof order, 0) == (ssize_t)sizeof order)
        commit_order(client, &order, &answer);
    _exit(0); /* its session ends as that of a dead process does */
}

bool worker_wait(int fd, struct worker_answer *ret_answer) {
    return recv(fd, ret_answer, sizeof *ret_answer, 0) == (ssize_t)sizeof *ret_answer;
}

bool worker_commit(int fd, kvd_sequence sequence, uint32_t tokens, struct worker_answer *ret_answer) {
    struct worker_order order = { sequence, tokens };
    return send(fd, &order, sizeof order, MSG_NOSIGNAL) == (ssize_t)sizeof order && worker_wait(fd, ret_answer);
}
