/* SPDX-License-Identifier: Apache-2.0
 *
 * The log never waits: some lines are said while everybody else waits for the core mutex. SRV-7.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
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

/* The bytes that are written while say runs; the variable names the pipe if journal is set. */
static const char *written(bool journal, void (*speak)(void)) {
    static char page[8192];
    char stream[64];
    struct stat st;
    int ends[2], before = dup(STDERR_FILENO);
    if (!KVT_OK(pipe2(ends, O_CLOEXEC | O_NONBLOCK)) || !KVT_OK(fstat(ends[1], &st))) return "";
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino + !journal);
    setenv("JOURNAL_STREAM", stream, 1);
    fflush(stderr);
    dup2(ends[1], STDERR_FILENO);
    log_init(LOG_INFO);
    speak();
    ssize_t n = read(ends[0], page, sizeof page - 1);
    dup2(before, STDERR_FILENO);
    unsetenv("JOURNAL_STREAM");
    log_init(LOG_INFO);
    page[n > 0 ? n : 0] = 0;
    close(before);
    close(ends[0]);
    close(ends[1]);
    return page;
}

static void say_names(void) {
    LOG(LOG_WARNING, "%s|%s|%s|%s", "a\x1b[0m\nb", "gr\xc3\xbc\xc3\x9f", "\xc3(\xff\xe2\x82", "\xc2\x9b\xed\xa0\x80");
}
static void say_text(void) { log_text(LOG_ERROR, "k.conf:1: one\nk.conf:2: \x01two"); }

/* SRV-7: a journal has each line with its level, and prints it whatever bytes a client or a file is called by. */
static void srv_7_lines_that_a_journal_prints(void) {
    KVT_EQ_STR(written(true, say_names), "<4>a?[0m?b|gr\xc3\xbc\xc3\x9f|?(???|?????\n");
    KVT_EQ_STR(written(false, say_names), "warning: a?[0m?b|gr\xc3\xbc\xc3\x9f|?(???|?????\n");
    KVT_EQ_STR(written(true, say_text), "<3>k.conf:1: one\n<3>k.conf:2: ?two\n");
    KVT_EQ_STR(written(false, say_text), "k.conf:1: one\nk.conf:2: ?two\n");
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_7_a_reader_that_has_stopped),
                                             KVT_CASE(srv_7_lines_that_a_journal_prints),
                                             { 0 } };
    log_init(LOG_INFO);
    return kvt_main("service log", cases, argc, argv);
}
