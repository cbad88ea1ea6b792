/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel says of this process, under the names that monitoring has for every process.
 */
#ifndef KVD_PROCESS_FIGURES_H
#define KVD_PROCESS_FIGURES_H

#include <stdint.h>

struct process_figures {
    uint64_t cpu_ns, started_ns /* since 1970 */;
    uint64_t resident_bytes, virtual_bytes;
    uint64_t open_files, most_files, threads;
};
/* Reads files of /proc; what cannot be read is 0. Any thread, without locks. */
void process_figures_read(struct process_figures *ret_figures);

#endif
