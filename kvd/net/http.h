/* SPDX-License-Identifier: Apache-2.0
 *
 * Monitoring over HTTP, by libmicrohttpd in one thread of its own. GET and HEAD:
 *
 *     /ui        the page of ui.h for people, which polls /ui/state.json and /ui/history.json; not with ui = no
 *     /metrics   the page of metrics.h; 503 while kvd starts
 *     /healthz   200 while the process serves: the core mutex is to be had
 *     /readyz    200 "ready"; 503 "starting", "draining" or "device lost"
 *
 * Anything else is 404, another method 405. It listens on a loopback address or a Unix socket, says how much is stored
 * and for whom, never what, and takes nothing: no request body is read.
 *
 * A flood costs the service nothing: metrics, lists (of HTTP_DOMAINS domains) and readiness are looked up HTTP_FRESH_NS
 * apart or less often, and are sent to all who ask meanwhile; connections are few, each one serves one request and is
 * closed after HTTP_LIFE_NS at the latest, the oldest at once where a newcomer finds no place. On a port only requests
 * are served whose Host header, if there is one, is a name of the loopback: a page in a browser cannot read there what
 * is shown.
 *
 * Threads: all functions from one thread.
 */
#ifndef KVD_HTTP_H
#define KVD_HTTP_H

#include "service.h"

#define HTTP_CONNECTIONS 32u
#define HTTP_CLOSING 8u /* of them: for those that were pushed out and are not closed yet */
#define HTTP_FRESH_NS UINT64_C(100000000)
#define HTTP_DOMAINS 4u
#define HTTP_LIFE_NS UINT64_C(5000000000)

struct http;

/* Listens where the configuration says; until http_serve everything is "starting". *ret_http is NULL where it listens
 * nowhere. 0, or 1 with a sentence and NULL. The caller holds the instance's lock. */
int http_open(const struct config *config, struct http **ret_http, char *err, size_t err_bytes);
/* From now on of this service, which must outlive http. NULL is fine, here and below. */
void http_serve(struct http *http, struct service *service);
/* About once a second: closes connections that have outlived their time. */
void http_tick(struct http *http, uint64_t now_ns);
/* Closes every connection, waits for the thread, unlinks the socket. Returns NULL. */
struct http *http_close(struct http *http);

#endif
