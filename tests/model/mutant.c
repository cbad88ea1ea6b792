/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault that this run has (kvd/store/mutant.h): the one that the environment names.
 */
#include "mutant.h"

#include <stdlib.h>
#include <string.h>

bool mutant_chosen(const char *name) {
    const char *chosen = getenv("KVD_MUTANT");
    return chosen && strcmp(chosen, name) == 0;
}
