/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "kvt.h"

#define ARGUMENTS 32

static void arguments(const char *argv[ARGUMENTS], const char *path, va_list args) {
    int n = 1;
    argv[0] = path;
    while (n < ARGUMENTS - 1 && (argv[n] = va_arg(args, const char *))) n++;
    argv[n] = NULL;
}

static void slurp(FILE *file, char *ret_text, size_t bytes) {
    rewind(file);
    ret_text[fread(ret_text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

struct run *program_run(struct run *run, const char *path, uid_t uid, ...) {
    const char *argv[ARGUMENTS];
    va_list args;
    va_start(args, uid);
    arguments(argv, path, args);
    va_end(args);
    FILE *out = tmpfile(), *err = tmpfile();
    memset(run, 0, sizeof *run);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fileno(out), 1);
        dup2(fileno(err), 2);
        if (uid && setuid(uid) != 0) _exit(126);
        execv(path, (char **)(uintptr_t)argv);
        _exit(127);
    }
    int status = kvt_wait(pid);
    run->status = status < 0 ? -1 : status;
    slurp(out, run->out, sizeof run->out);
    slurp(err, run->err, sizeof run->err);
    return run;
}

/* Where there is none, /dev/null stands in, which says nothing: the test fails at once. */
static void open_terminal(int ends[2]) {
    struct winsize size = { .ws_row = 30, .ws_col = 120 };
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0)
        ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (!KVT_TRUE(ends[1] >= 0)) {
        printf("    no terminal: %s; is /dev/pts mounted?\n", strerror(errno));
        for (int i = 0; i < 2; i++) {
            if (ends[i] >= 0) close(ends[i]);
            ends[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
        }
        return;
    }
    ioctl(ends[1], TIOCSWINSZ, &size);
}

void program_start(struct live *live, bool terminal, const char *path, ...) {
    const char *argv[ARGUMENTS];
    int ends[2] = { -1, -1 };
    va_list args;
    va_start(args, path);
    arguments(argv, path, args);
    va_end(args);
    memset(live, 0, sizeof *live);
    if (terminal) open_terminal(ends);
    else KVT_OK(pipe2(ends, O_CLOEXEC));
    fflush(NULL);
    live->fd = ends[0];
    live->pid = fork();
    if (live->pid == 0) {
        setenv("TERM", "xterm", 1);
        if (terminal) dup2(ends[1], 0);
        dup2(ends[1], 1);
        execv(path, (char **)(uintptr_t)argv);
        _exit(127);
    }
    close(ends[1]);
}

bool program_says(struct live *live, const char *word) {
    for (;;) {
        char *at = strstr(live->text + live->seen, word);
        if (at) {
            live->seen = (size_t)(at - live->text) + strlen(word);
            return true;
        }
        struct pollfd p = { .fd = live->fd, .events = POLLIN };
        if (poll(&p, 1, 20000) != 1) break;
        ssize_t n = read(live->fd, live->text + live->n, sizeof live->text - 1 - live->n);
        if (n <= 0) break;
        live->n += (size_t)n;
        live->text[live->n] = 0;
    }
    printf("    \"%s\" does not come behind:\n%s\n", word, live->text);
    return false;
}

int program_end(struct live *live) {
    char rest[4096];
    struct pollfd p = { .fd = live->fd, .events = POLLIN };
    while (poll(&p, 1, 20000) == 1 && read(live->fd, rest, sizeof rest) > 0) continue;
    int status = kvt_wait(live->pid);
    close(live->fd);
    return status < 0 ? -1 : status;
}
