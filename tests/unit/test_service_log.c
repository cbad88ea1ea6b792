/* SPDX-License-Identifier: Apache-2.0
 *
 * The log never waits: some lines are said while everybody else waits for the core mutex. SRV-7.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "kvt.h"
#include "log.h"

static void say(const char *text) { LOG(LOG_ERROR, "%s", text); }

/* stderr is a pipe that nobody reads. */
static void srv_7_a_reader_that_has_stopped(void) {
    int ends[2], before = dup(STDERR_FILENO);
    char page[4096] = "";
    KVT_NEED(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    while (write(ends[1], page, sizeof page) == (ssize_t)sizeof page) continue;
    KVT_EQ_I(errno, EAGAIN);
    fcntl(ends[1], F_SETFL, 0); /* as it is for kvd */
    fflush(stderr);
    dup2(ends[1], STDERR_FILENO);
    say("while it is full");
    while (read(ends[0], page, sizeof page) == (ssize_t)sizeof page) continue;
    say("when it is read again");
    ssize_t n = read(ends[0], page, sizeof page - 1);
    dup2(before, STDERR_FILENO);
    page[n > 0 ? n : 0] = 0;
    KVT_EQ_STR(page, "error: when it is read again\n");
    close(before);
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_7_a_reader_that_has_stopped), { 0 } };
    log_init(LOG_INFO);
    return kvt_main("service log", cases, argc, argv);
}
