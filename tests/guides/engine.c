/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine to look at while the operator's guide is tried: it leaves prefixes, keeps sequences running, says "ready"
 * and stays until its input ends. engine SOCKET PREFIXES TOKENS SEQUENCES PROMPT OUTPUT      engine SOCKET attach: maps
 * the store, that is all
 */
#include <stdlib.h>
#include <unistd.h>

#include "e2e.h"

static kvd_client *client;
static struct kvd_error error;

static void need(enum kvd_status status, const char *what) {
    if (status == KVD_OK) return;
    fprintf(stderr, "engine: %s: %s: %s\n", what, kvd_status_name(status), error.message);
    exit(1);
}

static kvd_sequence activate(uint32_t prompt, uint32_t output) {
    struct kvd_activation want = { .root = e2e_root(),
                                   .worker = kvd_client_session(client),
                                   .prompt_tokens = prompt,
                                   .max_output_tokens = output,
                                   .ensure = { prompt, prompt } };
    struct kvd_activated is;
    need(kvd_activate(client, &want, &is, &error), "activate");
    return is.sequence;
}

static void leave_prefix(uint64_t text, uint32_t tokens) {
    struct kvd_round_item item = { .sequence = activate(tokens, 1),
                                   .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = tokens } };
    struct kvd_round_result result;
    struct kvd_finish how = { .sequence = item.sequence, .retain = true };
    struct kvd_finished finished;
    kvd_chain *chain = e2e_chain(text, tokens);
    need(kvd_round(client, &item, 1, &result, &error), "round");
    need(kvd_name_pages(client, item.sequence, chain, 0, tokens / KVD_PAGE_TOKENS, &error), "name");
    e2e_tail(text, tokens, &how.tail);
    need(kvd_finish(client, &how, &finished, &error), "finish");
    kvd_chain_free(chain);
}

int main(int argc, char **argv) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .role = KVD_ROLE_SCHEDULER,
                                           .name = "engine" };
    char byte;
    if (argc != 7 && argc != 3) return 1;
    options.socket = argv[1];
    need(kvd_connect(&options, &client, &error), "connect");
    if (argc == 3) {
        kvd_store *store = NULL;
        need(kvd_attach(client, 0, NULL, &store, &error), "attach");
        kvd_detach(store);
        kvd_disconnect(client);
        return 0;
    }
    for (int i = 0; i < atoi(argv[2]); i++) leave_prefix(e2e_stream(1, 0, (uint16_t)i), (uint32_t)atoi(argv[3]));
    for (int i = 0; i < atoi(argv[4]); i++) (void)activate((uint32_t)atoi(argv[5]), (uint32_t)atoi(argv[6]));
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) continue;
    kvd_disconnect(client);
    return 0;
}
