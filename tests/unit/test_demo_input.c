/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo's prompt list and its messages.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvt.h"
#include "prompts.h"
#include "wire.h"

static int load(const char *text, struct prompts *ret_prompts, char *err) {
    char path[] = "/tmp/kvd-prompts-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) return -EIO;
    close(fd);
    int r = prompts_load(path, ret_prompts, err, 512);
    unlink(path);
    return r;
}

#define DOC "/usr/share/common-licenses/BSD"

static void a_prompt_list_gives_turns_in_order(void) {
    char err[512] = "";
    struct prompts p;
    KVT_OK(load("# list\nsystem " DOC " 0 100\nask a " DOC " 10 20 5\n\nask b " DOC " 0 30 6 # b\nask a " DOC
                " 40 8 7\n",
                &p, err));
    KVT_EQ(p.n_conversations, 2);
    KVT_EQ_STR(p.conversation[0].name, "a");
    KVT_EQ(p.conversation[0].n_turns, 2);
    KVT_EQ(p.conversation[0].turn[1].output, 7);
    KVT_EQ_MEM(p.conversation[0].turn[0].text, "User: ", 6);
    KVT_EQ_MEM(p.conversation[0].turn[1].text, "\nUser: ", 7);
    KVT_EQ(prompts_length(&p, 0), p.n_system + p.conversation[0].turn[0].n + 5 + p.conversation[0].turn[1].n + 7);
    prompts_free(&p);
}

static void a_bad_prompt_list_is_refused_with_its_line(void) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "system " DOC " 0 100\nask a " DOC " 0 10\n", ":2: expected" },
        { "system " DOC " 0 100\nask a " DOC " 0 10 0\n", ":2: expected" },
        { "system " DOC " 0 100\nsystem " DOC " 0 100\n", ":2: expected" },
        { "system " DOC " 999999 100\n", "bytes of text" },
        { "system " DOC " 0 4294967295\n", "bytes of text" },
        { "system /nonexistent/file 0 100\n", "cannot open the document /nonexistent/file" },
        { "ask a " DOC " 0 10 5\n", "one 'system' line" },
        { "system " DOC " 0 100\n", "at least one 'ask'" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char err[512] = "";
        struct prompts p;
        KVT_TRUE(load(bad[i].text, &p, err) < 0);
        KVT_HAS(err, bad[i].says);
    }
}

static void last_words_survive_the_speaker(void) {
    int fd[2];
    static struct wire_message m, got;
    KVT_NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd) == 0);
    KVT_EQ_I(wire_receive(fd[0], false, &got), -EAGAIN);
    m.type = WIRE_START;
    m.n_tokens = 3;
    KVT_OK(wire_send(fd[0], &m)); /* stays unread: its death is a reset, not an end */
    m.type = WIRE_TOKENS;
    m.n_tokens = WIRE_MAX_TOKENS;
    m.tokens[WIRE_MAX_TOKENS - 1] = 42;
    KVT_OK(wire_send(fd[1], &m));
    close(fd[1]);
    KVT_EQ_I(wire_receive(fd[0], false, &got), 1);
    KVT_EQ(got.type, WIRE_TOKENS);
    KVT_EQ(got.tokens[WIRE_MAX_TOKENS - 1], 42);
    KVT_EQ_I(wire_receive(fd[0], false, &got), 0);
    KVT_EQ_I(wire_send(fd[0], &m), -EPIPE);
    close(fd[0]);
}

static void a_message_of_another_length_is_no_message(void) {
    int fd[2];
    static struct wire_message m, got;
    KVT_NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd) == 0);
    m.n_tokens = 5;
    KVT_TRUE(send(fd[1], &m, 20, 0) == 20);
    KVT_EQ_I(wire_receive(fd[0], false, &got), -EPROTO);
    KVT_TRUE(send(fd[1], &m, offsetof(struct wire_message, tokens) + 4, 0) > 0);
    KVT_EQ_I(wire_receive(fd[0], false, &got), -EPROTO);
    m.n_tokens = WIRE_MAX_TOKENS + 1;
    KVT_EQ_I(wire_send(fd[1], &m), -EMSGSIZE);
    close(fd[0]);
    close(fd[1]);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(a_prompt_list_gives_turns_in_order),
                                             KVT_CASE(a_bad_prompt_list_is_refused_with_its_line),
                                             KVT_CASE(last_words_survive_the_speaker),
                                             KVT_CASE(a_message_of_another_length_is_no_message),
                                             { 0 } };
    return kvt_main("demo_input", cases, argc, argv);
}
