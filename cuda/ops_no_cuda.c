/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA calls of a build without CUDA: the library has the same symbols, and says what it lacks.
 */
#include "ops.h"
#include "refuse.h"

static int refuse_cuda(char *err, size_t err_bytes) {
    return refuse_with(KVD_OPS_UNIMPLEMENTED, err, err_bytes,
                       "this libkvd-ops was built without CUDA: use the host form, or a build with KVD_CUDA=ON");
}

int kvd_ops_append_cuda(const struct kvd_ops_append *op, kvd_ops_stream stream, char *err, size_t err_bytes) {
    int r = ops_append_check(op, err, err_bytes);
    (void)stream;
    return r ? r : refuse_cuda(err, err_bytes);
}

size_t kvd_ops_attention_workspace(const struct kvd_ops_attention *op, uint32_t max_context) {
    (void)op;
    (void)max_context;
    return 0;
}

int kvd_ops_attention_cuda(const struct kvd_ops_attention *op, uint32_t max_context, void *workspace,
                           size_t workspace_bytes, kvd_ops_stream stream, char *err, size_t err_bytes) {
    int r = ops_attention_check(op, err, err_bytes);
    (void)max_context;
    (void)workspace;
    (void)workspace_bytes;
    (void)stream;
    return r ? r : refuse_cuda(err, err_bytes);
}
