/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product of the demo model. Each output is the sum over the inputs in their order, one multiply and one add
 * each, whatever the number of rows: a row's result does not depend on its neighbours, so that batches and chunks
 * cannot change a bit.
 */
#ifndef KVD_DEMO_MATMUL_H
#define KVD_DEMO_MATMUL_H

#include <stdint.h>

#define MATMUL_PANEL 16 /* output columns that stand together in memory */

/* y[rows][n_out] (+)= x[rows][n_in] * w.  w: panels of MATMUL_PANEL columns, [n_out / PANEL][n_in][PANEL]; n_out is a
 * multiple of it. */
void matmul(const float *x, uint32_t rows, uint32_t n_in, const float *w, uint32_t n_out, int add, float *y);

#endif
