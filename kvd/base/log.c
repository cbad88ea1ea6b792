/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static atomic_int the_level = LOG_INFO;
static bool journal;

/* The variable is inherited by programs that write elsewhere: it counts where it names this stderr. */
static bool stderr_is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    char name[48];
    struct stat st;
    if (!stream || fstat(STDERR_FILENO, &st)) return false;
    snprintf(name, sizeof name, "%" PRIuMAX ":%" PRIuMAX, (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    return strcmp(stream, name) == 0;
}

void log_init(enum log_level level) {
    journal = stderr_is_journal();
    log_set_level(level);
}

void log_set_level(enum log_level level) { atomic_store_explicit(&the_level, (int)level, memory_order_relaxed); }

int log_wants(enum log_level level) { return (int)level <= atomic_load_explicit(&the_level, memory_order_relaxed); }

/* Whether the site may speak now; *ret_hidden: lines left out since it last did. */
static bool site_may(struct log_site *site, unsigned *ret_hidden) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint_fast64_t begin = atomic_load(&site->window), second = (uint_fast64_t)now.tv_sec;
    *ret_hidden = 0;
    if (second - begin >= LOG_WINDOW && atomic_compare_exchange_strong(&site->window, &begin, second)) {
        atomic_store(&site->said, 0);
        *ret_hidden = atomic_exchange(&site->hidden, 0);
    }
    if (atomic_fetch_add(&site->said, 1) < LOG_BURST) return true;
    atomic_fetch_add(&site->hidden, 1);
    return false;
}

/* Bytes of the UTF-8 character at text; 0 where it is none, or one that steers a terminal. */
static size_t printable_bytes(const unsigned char *text) {
    static const uint32_t least[] = { 0, 0, 0xa0, 0x800, 0x10000 };
    size_t n = text[0] < 0x80   ? 1
               : text[0] < 0xc0 ? 0
               : text[0] < 0xe0 ? 2
               : text[0] < 0xf0 ? 3
               : text[0] < 0xf8 ? 4
                                : 0;
    uint32_t code = n > 1 ? text[0] & (0x7fu >> n) : text[0];
    if (n == 1) return code >= ' ' && code != 0x7f;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (text[i] & 0x3fu);
    }
    return n && code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

/* Names of clients and file names are whatever bytes somebody chose. */
static void make_printable(char *text) {
    for (size_t n; *text; text += n ? n : 1)
        if (!(n = printable_bytes((const unsigned char *)text))) *text = '?';
}

/* One write a line, and one after the other: lines of threads do not mix. Some are said under the core mutex: nobody
 * waits for a reader that has stopped. False: the line has no room. */
static bool put_line(const char *line, size_t bytes) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
    pthread_mutex_lock(&one);
    bool room = poll(&p, 1, 0) != 0;
    ssize_t written = room ? write(STDERR_FILENO, line, bytes) : 0;
    pthread_mutex_unlock(&one);
    (void)written;
    return room;
}

void log_say(struct log_site *site, enum log_level level, const char *format, ...) {
    static const char *const words[] = { [LOG_ERROR] = "error: ",
                                         [LOG_WARNING] = "warning: ",
                                         [LOG_NOTICE] = "",
                                         [LOG_INFO] = "",
                                         [LOG_DEBUG] = "debug: " };
    char line[1024];
    unsigned hidden;
    va_list arguments;
    if (!site_may(site, &hidden)) return;
    int n = journal ? snprintf(line, sizeof line, "<%d>", (int)level) : snprintf(line, sizeof line, "%s", words[level]);
    size_t at = n > 0 ? (size_t)n : 0;
    va_start(arguments, format);
    n = vsnprintf(line + at, sizeof line - at - 64, format, arguments);
    va_end(arguments);
    if (n > 0) at += (size_t)n < sizeof line - at - 64 ? (size_t)n : sizeof line - at - 65;
    if (hidden) {
        n = snprintf(line + at, sizeof line - at - 1, " (%u more such lines left out)", hidden);
        if (n > 0) at += (size_t)n;
    }
    make_printable(line);
    line[at++] = '\n';
    if (!put_line(line, at)) atomic_fetch_add(&site->hidden, hidden + 1);
}

void log_text(enum log_level level, const char *text) {
    char line[1024];
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        int most = n < sizeof line - 8 ? (int)n : (int)sizeof line - 8;
        size_t at = 0;
        if (journal) at = (size_t)snprintf(line, sizeof line, "<%d>", (int)level);
        at += (size_t)snprintf(line + at, sizeof line - at, "%.*s", most, text);
        make_printable(line);
        line[at++] = '\n';
        put_line(line, at);
    }
}
