/* SPDX-License-Identifier: Apache-2.0
 *
 * Which build of kvd this is.
 */
#ifndef KVD_BUILD_H
#define KVD_BUILD_H

/* "0.1.0 with CUDA (package 0.1.0+cuda, commit 0123456789ab)". */
const char *build_text(void);
/* The same as labels of kvd_build_info. */
const char *build_labels(void);

#endif
