/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether nng can be started. Its first call makes all of its threads, and where it cannot have one it crashes, aborts
 * or waits for ever: so they are tried before.
 */
#ifndef KVD_NNG_START_H
#define KVD_NNG_START_H

#include <stddef.h>

/* Before the first call into nng: makes as many threads as that would, opens files, takes memory, and gives all back.
 * Once it has succeeded it tries nothing any more. 0, or 1 with a sentence in err. Others may take what was free in the
 * moment between this call and nng's. Threads: any; those that it makes take no signals. */
int nng_start_check(char *err, size_t err_bytes);

#endif
