/* SPDX-License-Identifier: Apache-2.0
 *
 * Log: plain sentences on stderr, one a line. Where that is the journal (JOURNAL_STREAM names it) each line begins with
 * its <N> priority. What a journal would not print is written as ?.
 *
 * Levels: what stops a start or the daemon is an error, what loses KV is a warning.
 *
 * A call site that says the same again and again is held to LOG_BURST lines in LOG_WINDOW seconds; what was left out is
 * counted and said with the next line; so is what nobody reads, as nothing waits for that. Never log secrets, IPC
 * handles or addresses.
 *
 * Threads: any. log_init is called once, before the others.
 */
#ifndef KVD_LOG_H
#define KVD_LOG_H

#include <stdatomic.h>
#include <stdint.h>

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTICE = 5, LOG_INFO = 6, LOG_DEBUG = 7 }; /* syslog(3) numbers */

#define LOG_BURST 10
#define LOG_WINDOW 10

struct log_site {
    atomic_uint_fast64_t window; /* begin, in seconds */
    atomic_uint said, hidden;
};

void log_init(enum log_level level);
void log_set_level(enum log_level level);
int log_wants(enum log_level level);
__attribute__((format(printf, 3, 4))) void log_say(struct log_site *site, enum log_level level, const char *format,
                                                   ...);
/* Every line of text, however many there are, whatever the level of the log. */
void log_text(enum log_level level, const char *text);

#define LOG(level, ...)                                                                                                \
    do {                                                                                                               \
        static struct log_site log_site_;                                                                              \
        if (log_wants(level)) log_say(&log_site_, (level), __VA_ARGS__);                                               \
    } while (0)

#endif
