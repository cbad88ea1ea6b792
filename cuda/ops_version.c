/* SPDX-License-Identifier: Apache-2.0 */
#include "kvd_ops.h"

const char *kvd_ops_version(void) { return KVD_OPS_VERSION; }
