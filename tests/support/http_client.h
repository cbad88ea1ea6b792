/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of HTTP/1.1 for tests: one request a connection, every byte of the answer kept.
 */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

struct http_answer {
    int status;      /* 0: closed without an answer */
    char head[1024]; /* status line and headers */
    char *body;      /* ends with 0; http_done frees */
    size_t bytes;    /* of the body */
    long announced;  /* Content-Length; -1: none */
};

/* at: a path, or an IPv4 address and port. -1: refused. */
int http_dial(const char *at);
/* Reads until the other side closes, 20 s at most (false). */
bool http_read(int fd, struct http_answer *ret_answer);
/* Sends these bytes on a new connection and reads. */
bool http_raw(const char *at, const char *bytes, size_t n, struct http_answer *ret_answer);
/* A request without a body. */
bool http_ask(const char *at, const char *method, const char *target, struct http_answer *ret_answer);
void http_done(struct http_answer *answer);
/* GET of a target: the status, and whether the body contains the word. 0: no answer. */
int http_status(const char *at, const char *target, const char *word, bool *ret_has);

#endif
