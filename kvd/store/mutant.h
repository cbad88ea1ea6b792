/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults that the tests put into the store and the service on purpose, to show that they would see them:
 * tests/README.md. Always false in kvd, and no trace of it; in the variants that the tests build with KVD_MUTANTS, true
 * for the name that the test program chose.
 */
#ifndef KVD_STORE_MUTANT_H
#define KVD_STORE_MUTANT_H

#ifdef KVD_MUTANTS
#include <stdbool.h>
bool mutant_chosen(const char *name);
#define MUTANT(name)                                                                                                   \
    ({                                                                                                                 \
        static signed char chosen_ = -1;                                                                               \
        if (chosen_ < 0) chosen_ = mutant_chosen(#name);                                                               \
        chosen_ != 0;                                                                                                  \
    })
#else
#define MUTANT(name) false
#endif

#endif
