#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# FlashInfer's paged attention as a baseline, from .whl (ignored by git): wheels, or archives (*.txz) of unpacked ones, of
# flashinfer-python, apache-tvm-ffi, cuda-tile, tabulate, cuda-python. Where nvcc is, it compiles its kernels on first use.
# Usage: sh tests/gpu/flashinfer_baseline.sh [decode] [verify] [prefill] [prefill-all]     exit: 0 measured, 77 not to be had here
# The folder of the wheels is $KVD_WHEELS, by default .whl; what is unpacked stays in $KVD_SITE where that is set.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
wheels=${KVD_WHEELS:-$top/.whl}
site=${KVD_SITE:-}
if [ -z "$site" ]; then
    site=$(mktemp -d) || exit 1
    trap 'rm -rf "$site"' EXIT
fi
if [ ! -d "$site/flashinfer" ]; then
    mkdir -p "$site" || exit 1
    for archive in "$wheels"/*.txz; do
        [ ! -e "$archive" ] || tar xJf "$archive" -C "$site" || exit 77
    done
    if ls "$wheels"/*.whl >/dev/null 2>&1; then
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl || exit 77
    fi
fi
cd "$top/tests/gpu" || exit 1
FLASHINFER_CUDA_ARCH_LIST=9.0a MAX_JOBS=$(nproc) PYTHONPATH=$site python3 -W ignore flashinfer_baseline.py "$@"
