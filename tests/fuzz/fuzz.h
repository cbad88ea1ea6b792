/* SPDX-License-Identifier: Apache-2.0
 *
 * What a fuzz target defines; called by libFuzzer or by replay.c.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
