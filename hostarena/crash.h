/* SPDX-License-Identifier: Apache-2.0
 *
 * Crash points: places where a test kills the daemon to see what the next one finds. In ordinary builds they are
 * nothing. With KVD_CRASH_POINTS the process counts them, and dies by SIGKILL at the one whose number is in
 * $KVD_CRASH_AT (1 is the first); crash_reached tells how many it passed.
 */
#ifndef KVD_HOSTARENA_CRASH_H
#define KVD_HOSTARENA_CRASH_H

#ifdef KVD_CRASH_POINTS
#include <stdint.h>
/* where: a name for the log, "directory.page.host" */
void crash_point(const char *where);
uint64_t crash_reached(void);
/* Called at every point, before the process may die there; NULL: none. A test looks at what a kill would leave. Set it
 * while one thread runs. */
typedef void (*crash_hook_fn)(void *context, const char *where);
void crash_hook(crash_hook_fn fn, void *context);
#define CRASH_POINT(where) crash_point(where)
#else
#define CRASH_POINT(where) ((void)0)
#endif

#endif
