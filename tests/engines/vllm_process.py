# SPDX-License-Identifier: Apache-2.0
"""A vLLM in a process of its own, to be killed; it speaks as engine_process.py does.

Usage: vllm_process.py FOLDER BLOCKS [SOCKET]. FOLDER has the model, BLOCKS is the size of kvd's pool.
"""

import json
import os
import sys
import time

os.environ.update(
    VLLM_TARGET_DEVICE="cpu",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="WARNING",
    OMP_NUM_THREADS="1",
    TORCHDYNAMO_DISABLE="1",
)
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM writes to stdout

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402


def say(**what):
    print(json.dumps(what), file=out, flush=True)


def load(folder, blocks, socket):
    transfer = KVTransferConfig(
        kv_connector="KvdConnector",
        kv_connector_module_path="kvd.vllm",
        kv_role="kv_both",
        kv_connector_extra_config={"socket": socket, "domain": "test"},
    )
    return LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        block_size=64,
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=4,
        num_gpu_blocks_override=blocks,
        kv_transfer_config=transfer if socket else None,
    )


def answer(llm, number, ids, n, hold):
    engine, began, first, seen = llm.llm_engine, time.monotonic(), 0.0, 0
    params = SamplingParams(temperature=0, max_tokens=n, detokenize=False, ignore_eos=True)
    engine.add_request(str(number), {"prompt_token_ids": ids}, params)
    while engine.has_unfinished_requests():
        for made in engine.step():
            tokens = list(made.outputs[0].token_ids)
            for token in tokens[seen:]:
                first = first or time.monotonic()
                seen += 1
                say(token=[token])
                if seen == hold:
                    say(held=seen)
                    sys.stdin.readline()
            cached = made.num_cached_tokens
    say(end=True, reused=[cached or 0], first_ms=1e3 * (first - began))


def main():
    folder, blocks, socket = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    llm = load(folder, blocks, socket)
    say(ready=True)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        answer(llm, number, request["ids"], request["n"], request["hold"])


if __name__ == "__main__":
    main()
