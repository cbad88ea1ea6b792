/* SPDX-License-Identifier: Apache-2.0
 *
 * A headless Chromium that is driven over two pipes, by its DevTools protocol: one browser, one page, as many looks as
 * a test wants. No call waits longer than half a minute. */
#ifndef KVD_E2E_BROWSER_H
#define KVD_E2E_BROWSER_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct browser {
    pid_t pid;
    int to, from;
    uint32_t last;       /* call */
    char session[64];    /* of the page */
    unsigned complaints; /* exceptions, and errors but those of the network; each was printed */
    char *text;          /* what came and is not taken yet */
    size_t n, room;
};

/* folder: for its profile. False: it does not start. */
bool browser_start(struct browser *browser, const char *program, const char *folder);
void browser_stop(struct browser *browser);
/* Size in pixels, and the colours that a reader prefers. */
bool browser_size(struct browser *browser, uint32_t width, uint32_t height, bool dark);
bool browser_open(struct browser *browser, const char *url);
/* The value of an expression in the page; to be deleted. NULL: it threw, or is undefined. */
cJSON *browser_value(struct browser *browser, const char *expression);
bool browser_is(struct browser *browser, const char *expression); /* true */
/* Until it is true, for at most so many seconds. */
bool browser_until(struct browser *browser, const char *expression, double seconds);
/* A PNG of the whole page. */
bool browser_picture(struct browser *browser, const char *path);

#endif
