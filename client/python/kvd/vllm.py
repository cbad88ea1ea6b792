# SPDX-License-Identifier: Apache-2.0
"""vLLM on kvd: its KV cache lies in kvd's memory, and outlives the process.

    vllm serve MODEL --block-size 64 --num-gpu-blocks-override PAGES --kv-transfer-config \\
      '{"kv_connector": "KvdConnector", "kv_connector_module_path": "kvd.vllm", "kv_role": "kv_both"}'

vLLM's block pool hands out pages that kvd lends it. Full blocks are named by kvd's digests, so that a vLLM that is
started again has them at once; what vLLM evicts goes to kvd's arena, and comes back from there. VLLM.md says how to
configure kvd, what to expect and what it costs.

It needs one vLLM process on host devices (tensor_parallel_size 1), one group of full-attention layers, block size 64.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import zlib
from hashlib import blake2b
from typing import Any, Dict, Iterator, List, Optional, Sequence as Seq, Tuple

from ._blocks import Blocks, Held
from .client import Client, connect
from .errors import Error, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unimplemented
from .names import DIGEST_BYTES, PAGE_TOKENS, Domain, tokens_of

try:
    import torch
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        KVConnectorRole,
        SupportsHMA,
    )
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import RequestStatus
except ImportError as missing:
    raise Unimplemented(f"kvd.vllm needs vLLM 0.32 or newer: {missing}") from missing

__all__ = ["KvdConnector", "model_section"]

_log = logging.getLogger("vllm.kvd")


# ---- names ----


def _names_of(root: bytes) -> Any:
    """What vLLM calls to hash a block: kvd's digest of the chain, whatever PYTHONHASHSEED is. Blocks with extra keys
    (an adapter, a salt, an image) get digests that no chain of tokens has."""

    def hash_block_tokens(_: Any, parent: Optional[bytes], tokens: Seq[int], extra: Any = None) -> bytes:
        page = tokens_of(list(tokens)).tobytes()
        digest = blake2b((parent or root) + page, digest_size=DIGEST_BYTES).digest()
        if extra is not None:
            digest = blake2b(digest + b"kvd.vllm.extra" + repr(extra).encode(), digest_size=DIGEST_BYTES).digest()
        return digest

    return hash_block_tokens


def _domain_of(config: Any, options: Dict[str, Any]) -> Domain:
    model = config.model_config
    name = options.get("domain") or f"vllm:{model.model}:{model.revision}:{model.dtype}"
    return Domain(name, label=options.get("label", ""))


# ---- one engine's kvd ----


class _Kvd:
    """The session, the memory and the blocks of this process: vLLM makes one connector for its scheduler and one for its
    worker, and both use this."""

    def __init__(self, config: Any, cache: Any) -> None:
        options = config.kv_transfer_config.kv_connector_extra_config
        self.domain = _domain_of(config, options)
        self.keeps = bool(options.get("keep", True))
        self.n_blocks, self.layers = cache.num_blocks, _layers_of(config, cache)
        self.bytes = {tensor.size for tensor in cache.kv_cache_tensors}.pop()
        timeout = float(options.get("timeout", 60.0))
        self.client = connect(options.get("socket"), role="scheduler", name="vllm", timeout=timeout)
        try:
            self.store = self.client.attach(device="cpu")
            self._check_store()
            self.memory = self._map()
            reserve = int(options.get("reserve_pages", 0)) or -(-config.model_config.max_model_len // PAGE_TOKENS)
            self.blocks = Blocks.of_all(self.client, self.domain, reserve, timeout)
        except BaseException:
            self.client.close()
            raise
        self.is_lost = False
        self.chains = self.blocks.adopt()
        if 0 not in self.blocks.lent.pages:
            raise FailedPrecondition("page 0 of kvd is in use, and vLLM writes into its block 0 whatever comes: free it first")
        self.blocks.reuse([0])
        self._sums = {block: self._sum(block) for block in self.blocks.lent.adopted if self.blocks.is_complete(block)}
        kv_cache_utils.hash_block_tokens = _names_of(self.domain.root())

    def _check_store(self) -> None:
        pool = self.client.describe().pool[0]
        planes = [plane for plane in self.client.describe_planes() if plane.slot == 0]
        per_block = self.bytes // (self.n_blocks * self.layers)
        if pool.pages != self.n_blocks:
            raise InvalidArgument(
                f"kvd's pool has {pool.pages} pages and vLLM {self.n_blocks} blocks: start vLLM with "
                f"--num-gpu-blocks-override {pool.pages}"
            )
        fits = [plane.offset == planes[0].offset + i * self.n_blocks * per_block for i, plane in enumerate(planes)]
        if len(planes) != self.layers or not all(fits) or any(plane.nb3 != per_block for plane in planes):
            raise InvalidArgument(
                f"kvd's pages ({pool.n_layers} layers, {pool.page_bytes} bytes) are not vLLM's blocks ({self.layers} layers, "
                f"{per_block * self.layers} bytes): kvd.vllm.model_section says what [model] must have"
            )

    def _map(self) -> Any:
        """All of vLLM's buffer: the planes of the first layer begin it."""
        address = self.store.k[0].numpy().__array_interface__["data"][0]
        return (ctypes.c_char * self.bytes).from_address(address)

    def _layer(self, layer: int) -> Any:
        import numpy

        n = self.bytes // self.layers
        return numpy.frombuffer(self.memory, numpy.uint8, n, layer * n).reshape(self.n_blocks, -1)

    def _sum(self, block: int) -> int:
        return zlib.crc32(self._layer(0)[block])

    def adopted(self) -> Iterator[Tuple[List[bytes], List[int]]]:
        """The chains, each as far as its blocks are what they were before vLLM warmed up, and wrote rows of its own."""
        spoilt = {block for block, before in self._sums.items() if self._sum(block) != before}
        for block in spoilt:
            _log.warning("kvd: vLLM's warm-up wrote into block %d; what it held is given up", block)
            self.blocks.spoil(block)
        for digests, blocks in self.chains:
            n = next((i for i, block in enumerate(blocks) if block in spoilt or block not in self._sums), len(blocks))
            yield digests[:n], blocks[:n]
        self.chains, self._sums = [], {}

    def copy(self, sources: Seq[int], targets: Seq[int]) -> None:
        for layer in range(self.layers):
            pages = self._layer(layer)
            pages[list(targets)] = pages[list(sources)]


def _layers_of(config: Any, cache: Any) -> int:
    """Refuses in words what does not fit kvd's one pool."""
    parallel, groups = config.parallel_config, cache.kv_cache_groups
    if parallel.world_size != 1:
        raise Unimplemented(f"kvd.vllm drives one device; this vLLM has {parallel.world_size}")
    if len(groups) != 1 or len({tensor.size for tensor in cache.kv_cache_tensors}) != 1:
        raise Unimplemented(f"kvd.vllm has one group of layers of one shape; this model has {len(groups)}")
    if groups[0].kv_cache_spec.block_size != PAGE_TOKENS:
        raise InvalidArgument(f"blocks of {groups[0].kv_cache_spec.block_size} tokens; start vLLM with --block-size 64")
    return len(groups[0].layer_names)


_process: List[_Kvd] = []  # one engine a process


def _kvd_of(config: Any, cache: Any) -> _Kvd:
    if not _process:
        _process.append(_Kvd(config, cache))
    return _process[0]


class _Step(KVConnectorMetadata):
    """What the worker does in a step."""

    def __init__(self) -> None:
        self.loads: List[Tuple[Held, List[int]]] = []  # before it
        self.full: List[Tuple[List[bytes], List[int]]] = []  # after it


class KvdConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._kvd = _kvd_of(vllm_config, kv_cache_config)
        self._next = _Step()
        self._held: Dict[str, Held] = {}
        self._pool: Any = None

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str:
        return "LBHNC"

    # ---- worker ----

    def get_mem_pool_context(self) -> Any:
        return self._allocation()

    @contextlib.contextmanager
    def _allocation(self) -> Iterator[None]:
        """vLLM asks torch for a zeroed buffer: it gets kvd's memory, as it is."""
        zeros = torch.zeros

        def instead(*arguments: Any, **named: Any) -> Any:
            if arguments and arguments[0] == self._kvd.bytes and named.get("dtype") == torch.int8:
                return torch.frombuffer(self._kvd.memory, dtype=torch.int8)
            return zeros(*arguments, **named)

        torch.zeros = instead
        try:
            yield
        finally:
            torch.zeros = zeros

    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        base = ctypes.addressof(self._kvd.memory)
        for name, tensor in kv_caches.items():
            if not base <= tensor.data_ptr() < base + self._kvd.bytes:
                raise Unimplemented(f"vLLM's buffer of {name} is not kvd's memory: this vLLM allocates it in another way")

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for held, blocks in self._get_connector_metadata().loads:
            self._kvd.copy(held.pages[-len(blocks) :], blocks)
            self._kvd.blocks.let_go(held)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        """The step has computed them."""
        for digests, blocks in self._get_connector_metadata().full:
            self._try(lambda: self._kvd.blocks.complete(digests, blocks))

    def _try(self, what: Any) -> None:
        """Without kvd vLLM goes on in its memory, which nobody takes away; what is computed has no names then."""
        if self._kvd.is_lost:
            return
        try:
            what()
        except Error as error:
            refused = (FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted)
            self._kvd.is_lost = not isinstance(error, refused)
            _log.warning("kvd: %s", error)

    # ---- scheduler ----

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Takes what is not lent out of vLLM's pool, and puts in what an earlier vLLM has named."""
        pool, blocks = gpu_block_pool, self._kvd.blocks
        self._pool = pool
        adopted = 0
        for digests, ids in self._kvd.adopted():
            adopted += self._insert(pool, digests, ids)
        for block in pool.blocks[1:]:
            if block.block_id not in blocks.lent.pages:
                pool.free_block_queue.remove(block)
        self._watch(pool)
        _log.info("kvd: %d of %d blocks are lent, %d of them adopted", len(blocks.lent.pages), self._kvd.n_blocks, adopted)

    @staticmethod
    def _insert(pool: Any, digests: Seq[bytes], ids: Seq[int]) -> int:
        """As if vLLM had computed them: the ends of chains are the first to be evicted, and all of them after blank ones."""
        new = 0
        for i in reversed(range(len(ids))):
            block = pool.blocks[ids[i]]
            if block.block_hash is not None:
                continue
            named = kv_cache_utils.make_block_hash_with_group_id(digests[i], 0)
            block.set_block_hash(named, num_tokens=(i + 1) * PAGE_TOKENS)
            pool.cached_block_hash_to_block.insert(named, block)
            pool.free_block_queue.remove(block)
            pool.free_block_queue.append(block)
            new += 1
        return new

    def _watch(self, pool: Any) -> None:
        """What vLLM hands out again is made blank before, and what becomes full is named when its step is over."""
        get_new_blocks, cache_full_blocks = pool.get_new_blocks, pool.cache_full_blocks

        def get_blank_blocks(num_blocks: int) -> Any:
            made = get_new_blocks(num_blocks)
            self._kvd.blocks.reuse([block.block_id for block in made])
            return made

        def note_full_blocks(
            request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *rest: Any, **named: Any
        ) -> None:
            cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, *rest, **named)
            if num_cached_blocks < num_full_blocks:
                ids = [block.block_id for block in blocks[:num_full_blocks]]
                self._next.full.append((list(request.block_hashes[:num_full_blocks]), ids))

        pool.get_new_blocks, pool.cache_full_blocks = get_blank_blocks, note_full_blocks

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[int, bool]:
        self._let_go(request.request_id)
        self._try(lambda: self._look(request, num_computed_tokens))
        held = self._held.get(request.request_id)
        return (held.tokens - num_computed_tokens if held else 0), False

    def _look(self, request: Any, computed: int) -> None:
        tokens = request.prompt_token_ids
        if not tokens or getattr(request, "lora_request", None) or request.mm_features or request.cache_salt:
            return  # its digests are vLLM's own
        hits = self._kvd.client.find(tokens, domain=self._kvd.domain, limit=1)
        usable = hits[0].usable if hits else 0
        if usable <= computed:
            return
        held = self._kvd.blocks.hold(hits[0], usable)
        if held is None:
            return
        if self._may_vanish(request, held, computed // PAGE_TOKENS):
            self._kvd.blocks.let_go(held)
        else:
            self._held[request.request_id] = held

    def _may_vanish(self, request: Any, held: Held, computed: int) -> bool:
        """vLLM may hand out a block again that the fork reads: one that nobody uses and that is not this request's own."""
        for i, page in enumerate(held.pages):
            if page not in self._kvd.blocks.lent.pages or self._pool.blocks[page].ref_cnt:
                continue
            own = self._pool.get_cached_block(request.block_hashes[i], [0]) if i < computed else None
            if not own or own[0].block_id != page:
                return True
        return False

    def _let_go(self, request_id: str) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._kvd.blocks.let_go(held)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        held = self._held.get(request.request_id)
        if held is None:
            return
        if not num_external_tokens:
            self._let_go(request.request_id)
            return
        first = (held.tokens - num_external_tokens) // PAGE_TOKENS
        ids = blocks.get_block_ids()[0][first : len(held.pages)]
        self._next.loads.append((self._held.pop(request.request_id), list(ids)))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        step, self._next = self._next, _Step()
        return step

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._let_go(request.request_id)
        if request.num_computed_tokens:
            self._try(lambda: self._end(request, block_ids))
        return False, None

    def _end(self, request: Any, block_ids: List[int]) -> None:
        """What it has computed is found to its last token, and kept."""
        tokens = request.all_token_ids
        known = min(request.num_computed_tokens, len(tokens) - 1)
        full = min(len(request.block_hashes), known // PAGE_TOKENS)
        digests, tail = list(request.block_hashes[:full]), list(tokens[full * PAGE_TOKENS : known])
        chain = None
        if 0 < len(tail) < PAGE_TOKENS and self._is_whole(request) and full < len(block_ids):
            chain = self._kvd.blocks.end(digests, tail, block_ids[full])
        if self._kvd.keeps and (digests or chain):
            self._kvd.blocks.keep(digests[-1] if digests else b"", chain)

    @staticmethod
    def _is_whole(request: Any) -> bool:
        """All columns before its last token are computed: no step was under way with it; and its names are of tokens alone."""
        ended = request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
        return ended and not (getattr(request, "lora_request", None) or request.mm_features or request.cache_salt)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return self.request_finished(request, block_ids[0])

    def shutdown(self) -> None:
        if _process and self._role == KVConnectorRole.WORKER:
            _process.pop().client.close()


def model_section(config: Any, element_bytes: int = 2) -> str:
    """The keys of [model] in kvd.conf for a Hugging Face configuration. element_bytes: of vLLM's KV. kvd does not look at
    the elements: an FP32 is two of its own."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        f"layers = {config.num_hidden_layers}\nkv_heads = {heads}\nhead_dim = {head_dim * element_bytes // 2}\n"
        "profile = bf16\narrangement = record\n"
    )
