#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# FlashInfer's paged decode as a baseline, from wheels in .whl (ignored by git): flashinfer-python, apache-tvm-ffi, nvidia-cudnn-frontend.
# Usage: sh tests/gpu/flashinfer_baseline.sh      exit: 0 measured, 77 not to be had here
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
site=$(mktemp -d) || exit 1
trap 'rm -rf "$site"' EXIT
if ls "$top"/.whl/*.whl >/dev/null 2>&1; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$top"/.whl/*.whl || exit 77
fi
cd "$top/tests/gpu" || exit 1
FLASHINFER_CUDA_ARCH_LIST=9.0a MAX_JOBS=$(nproc) PYTHONPATH=$site python3 -W ignore flashinfer_baseline.py
