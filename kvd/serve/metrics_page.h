/* SPDX-License-Identifier: Apache-2.0
 *
 * The figures of metrics.h and of the service as a page in the Prometheus text format.
 */
#ifndef KVD_METRICS_PAGE_H
#define KVD_METRICS_PAGE_H

#include <stddef.h>

struct service;

/* The page: text that the caller frees; NULL: no memory. Any thread; takes the core mutex for moments. */
char *metrics_page(struct service *service, size_t *ret_bytes);

#endif
