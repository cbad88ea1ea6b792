# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers on kvd: generate() with KV that outlives the process.

    engine = kvd.transformers.Engine(model)
    model.generate(ids, **engine.cache(ids, max_new_tokens=200))

The K and V of every layer lie in kvd's pages. What a prompt has in common with anything that was computed before, in
this process or in one that was killed, is found to the token and not computed again. TRANSFORMERS.md says what to
install, what to expect and what it costs.

It needs transformers 5.17 or newer, and the store on the device of the model: host devices for one on a CPU, or its
GPU, where attention reads the pages in place by kvd.ops.
"""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from inspect import signature
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence as Seq

from . import types
from .client import Client, connect
from .errors import Aborted, Error, InvalidArgument, ResourceExhausted, Unimplemented
from .names import Domain, DomainLike
from .sequence import Sequence

try:
    import torch
    import transformers as _transformers  # noqa: F401

    from . import _pages
    from ._paged import ARGUMENT, Batch, CopiedMemory, PagedCache, Planes, Row
except ImportError as missing:
    raise Unimplemented(f"kvd.transformers needs torch and transformers 5.17 or newer: {missing}") from missing

__all__ = ["Arguments", "Engine", "PagedCache", "fingerprint", "model_section"]

_LAYERS = ("full_attention", "sliding_attention")
_ELEMENT_BYTES = 2  # of BF16, the profile whose bits kvd keeps as they are


class _Shape(NamedTuple):
    """Of a model's KV, in elements of its type."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: Any

    @property
    def elements(self) -> int:
        """head_dim in elements of BF16. kvd does not look at them: an FP32 is two."""
        return int(self.head_dim * self.dtype.itemsize // _ELEMENT_BYTES)


def _text_config(model: Any) -> Any:
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise Unimplemented(f"{type(model).__name__} has an encoder: kvd.transformers keeps decoders")
    return config.get_text_config(decoder=True)


def _shape_of(model: Any) -> _Shape:
    config = _text_config(model)
    others = set(getattr(config, "layer_types", None) or ()) - set(_LAYERS)
    if others:
        raise Unimplemented(f"this model has layers of {', '.join(sorted(others))}; kvd.transformers knows "
                            f"{' and '.join(_LAYERS)}")
    heads = config.num_attention_heads
    return _Shape(
        config.num_hidden_layers,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        model.dtype,
    )


def model_section(model: Any) -> str:
    """The lines of kvd's configuration, section [model], that hold this model's KV in its own type. max_context and
    max_concurrency are yours to add."""
    shape = _shape_of(model)
    return f"layers = {shape.layers}\nkv_heads = {shape.kv_heads}\nhead_dim = {shape.elements}\nprofile = bf16\n"


def fingerprint(model: Any) -> str:
    """A digest of the model's configuration and of 64 values of each weight: the default name of its KV. A change that
    leaves all of those as they are is not seen. Then, and to keep what is cached over a new version of transformers,
    name the model yourself: Engine(model, domain=...)."""
    digest = hashlib.blake2b(digest_size=16)
    said = {name: value for name, value in model.config.to_dict().items() if name not in _NO_PART_OF_KV}
    digest.update(json.dumps(said, sort_keys=True, default=str).encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // 64)][:64]
        digest.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_NO_PART_OF_KV = ("_name_or_path", "transformers_version", "use_cache", "output_attentions", "output_hidden_states")


class Arguments(Dict[str, Any]):
    """Of model.generate(). It holds the cache: drop it when generate() has returned."""

    def __init__(self, arguments: Dict[str, Any], reused: List[int]) -> None:
        super().__init__(arguments)
        self.reused = reused  #: tokens of each prompt that were found, and are not computed


class Engine:
    """A model whose KV lies in kvd. One a model; a context manager. Several threads may generate at once."""

    def __init__(
        self,
        model: Any,
        client: Optional[Client] = None,
        *,
        socket: Optional[str] = None,
        instance: Optional[str] = None,
        name: str = "transformers",
        timeout: float = 5.0,
        domain: Optional[DomainLike] = None,
        retention: int = 0,
        save_every: int = 64,
        attention: Optional[str] = None,
    ) -> None:
        """client: a scheduler's, or socket or instance as kvd.connect() takes them. domain: what KV depends on besides
        tokens (default: fingerprint()). retention: class of what is kept; smaller goes first. save_every: where kvd
        has an arena, what is complete is copied there each so many tokens and at the end, for the case that kvd itself
        is killed; 0: never. attention: "pages" reads them in place by kvd.ops, in BF16; "copies" has each layer's KV
        copied into one piece, for the attention that the model had before; None: pages on a GPU, copies on a CPU.
        """
        self.model, self.retention = model, retention
        self.domain: DomainLike = Domain("transformers:" + fingerprint(model)) if domain is None else domain
        self._shape, self._save_every = _shape_of(model), save_every
        self._own = client is None
        path = socket if client is None else client._session.path
        self._connect: Callable[[], Client] = lambda: connect(
            path, instance=instance, role="scheduler", name=name, timeout=timeout
        )
        self._attention = attention
        self._entry: Optional[_pages.Entry] = None
        self._lock = threading.Lock()
        self._ending: List[threading.Thread] = []
        self._attach(client or self._connect())
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, with_kwargs=True),
        ]
        if self._is_paged:
            self._entry = _pages.Entry(model)

    # ---- what generate() gets ----

    def cache(
        self,
        ids: Any,
        max_new_tokens: int,
        attention_mask: Any = None,
        *,
        domain: Optional[DomainLike] = None,
        timeout: Optional[float] = None,
    ) -> Arguments:
        """Arguments for model.generate(ids, ...): the cache with all that is known of the prompts, max_new_tokens, and
        the attention mask.

        ids: [prompts, tokens]. attention_mask: 0 where a prompt is padded, on the left (default: no padding).
        domain: instead of the engine's, for an adapter, a tenant or images (Domain.modality). Everything that
        the prompts can need is guaranteed, or a kvd.Error says what is short and nothing has changed. It waits for the
        ends of caches that were dropped, so that what they hold is found.
        """
        if domain is None and _text_config(self.model) is not self.model.config:
            raise Unimplemented(
                f"{type(self.model).__name__} takes more than text, and kvd names KV by tokens: name the rest in "
                "domain=kvd.Domain(model=..., modality=...), a digest of the images, or \"\" where there are none"
            )
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask
        pads = self._pads(ids, mask, attention_mask is None)
        self.flush()
        prompts = [tokens[pad:] for tokens, pad in zip(ids.tolist(), pads)]
        with self._lock:
            sequences = self._sequences(prompts, max_new_tokens, self.domain if domain is None else domain, timeout)
            client, memory_of = self._client, self._memory_of
        rows = [Row(sequence, pad) for sequence, pad in zip(sequences, pads)]
        self._level(client, memory_of, rows)
        batch = Batch(self, client, memory_of(rows), rows, self._eos(), self._saves)
        cache = PagedCache(batch)
        weakref.finalize(cache, self._drop, batch)
        return Arguments(
            {ARGUMENT: cache, "max_new_tokens": max_new_tokens, "attention_mask": mask}, [row.found for row in rows]
        )

    def _pads(self, ids: Any, mask: Any, is_guessed: bool) -> List[int]:
        if ids.ndim != 2 or mask.shape != ids.shape or not ids.numel():
            raise InvalidArgument(f"ids and attention mask are [prompts, tokens], not {list(ids.shape)} and "
                                  f"{list(mask.shape)}")
        pad_id = getattr(self.model.generation_config, "pad_token_id", None)
        if is_guessed and len(ids) > 1 and pad_id is not None and bool((ids[:, 0] == pad_id).any()):
            raise InvalidArgument("a prompt begins with the padding token: give the attention mask, too")
        columns = torch.arange(ids.shape[1])
        pads: List[int] = (ids.shape[1] - mask.sum(1)).tolist()
        for row, pad in zip(mask.cpu(), pads):
            if pad == len(row) or not torch.equal(row.bool(), columns >= pad):
                raise InvalidArgument("prompts are padded on the left, and have a token: padding_side=\"left\"")
        return pads

    def _sequences(
        self, prompts: Seq[List[int]], max_new_tokens: int, domain: DomainLike, timeout: Optional[float]
    ) -> List[Sequence]:
        try:
            self._current()
            return self._activate(prompts, max_new_tokens, domain, timeout)
        except Aborted:  # kvd is another instance since
            self._current()
            return self._activate(prompts, max_new_tokens, domain, timeout)

    def _level(self, client: Client, memory_of: Callable[[Seq[Row]], Any], rows: Seq[Row]) -> None:
        """generate() begins at the same column for all. Rows of which less was found are computed up to there, each by
        itself, so that nothing that was found is computed again."""
        column = max(row.pad + row.found for row in rows) if any(row.found for row in rows) else 0
        options = {"logits_to_keep": 1} if "logits_to_keep" in signature(self.model.forward).parameters else {}
        for row in rows:
            behind = row.sequence.tokens[row.found : max(row.found, column - row.pad)]
            if behind:
                one = [Row(row.sequence, 0)]
                alone = {ARGUMENT: PagedCache(Batch(self, client, memory_of(one), one, (), 0))}
                ids = torch.tensor([list(behind)], device=self.model.device)
                at = torch.arange(row.found, row.found + len(behind), device=self.model.device)
                with torch.no_grad():
                    self.model(input_ids=ids, position_ids=at[None], **alone, **options)

    def _activate(
        self, prompts: Seq[List[int]], max_new_tokens: int, domain: DomainLike, timeout: Optional[float]
    ) -> List[Sequence]:
        made: List[Sequence] = []
        try:
            for prompt in prompts:
                made.append(
                    self._client.activate(
                        prompt, max_new_tokens, domain=domain, retention=self.retention, timeout=timeout
                    )
                )
            self._map(made)
        except BaseException:
            for sequence in made:
                try:
                    sequence.finish(retain=False)
                except Error:  # the first one says more
                    pass
            raise
        return made

    def _map(self, sequences: Seq[Sequence]) -> None:
        """All places at once: they are guaranteed anyway, and the end of kvd cannot stop generate() then."""
        items = [types.RoundItem(sequence.handle, ensure=sequence.end - 1) for sequence in sequences]
        for sequence, result in zip(sequences, self._client.round(items)):
            end = sequence.end
            sequence.take(result)
            if sequence.bounded:
                raise ResourceExhausted(f"kvd can map {sequence.end} of {end} tokens for now: ask for fewer "
                                        "max_new_tokens, or wait for a sequence to end")

    def _eos(self) -> List[int]:
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        return list(eos) if isinstance(eos, (list, tuple)) else [] if eos is None else [eos]

    # ---- the connection ----

    @property
    def client(self) -> Client:
        """The session with kvd; another one after kvd was another instance."""
        return self._client

    def _current(self) -> None:
        """Connects and attaches anew where kvd is known to be another instance."""
        if not self._client._session.is_current():
            if self._own:
                self._client.close()
            self._own = True
            self._attach(self._connect())

    def _attach(self, client: Client) -> None:
        self._client = client
        store = client.attach()
        self._check(store.info)
        self._saves = self._save_every if client.stats().host_capacity else 0
        self._is_paged = _pages.is_paged(store, self._attention)
        if self._is_paged:
            layers = _pages.layers_of(store, self.model, store.info.pool[0])
            self._memory_of: Callable[[Seq[Row]], Any] = lambda rows: _pages.PagedMemory(layers, rows)
        else:
            planes = self._planes_of(store)
            self._memory_of = lambda rows: CopiedMemory(planes, rows)

    def _planes_of(self, store: Any) -> List[Planes]:
        if self.model.device.type != "cpu":
            raise InvalidArgument(f"the model is on {self.model.device}, and store {store.info.name} in main memory: "
                                  "give kvd a device.0 = cuda:N, or the model to the CPU")
        made = [[view.torch().view(self._shape.dtype) for view in views] for views in (store.k, store.v)]
        return [Planes(*(plane[..., : self._shape.head_dim] for plane in both)) for both in zip(*made)]

    def _check(self, info: types.StoreInfo) -> None:
        pool, shape = info.pool[0], self._shape
        there = (pool.n_layers, pool.n_kv_heads, pool.head_dim, pool.storage)
        if there != (shape.layers, shape.kv_heads, shape.elements, 0):
            raise InvalidArgument(
                f"store {info.name} has layers, kv_heads, head_dim = {', '.join(map(str, there[:3]))}; this model's "
                "section [model] is:\n" + model_section(self.model)
            )
        if len(info.pool) > 1 or pool.n_ranks > 1 or info.state_bytes:
            raise Unimplemented(
                f"store {info.name} has {len(info.pool)} pools, {pool.n_ranks} ranks and state images of "
                f"{info.state_bytes} bytes; kvd.transformers works with one pool, one rank and none: [backend] kind = off"
            )

    # ---- steps and ends ----

    def _begin(self, _: Any, args: Any, kwargs: Any) -> None:
        batch = self._of(kwargs)
        _pages.leave()
        if batch:
            batch.begin(args[0] if args else kwargs.get("input_ids"))

    def _end(self, _: Any, __: Any, kwargs: Any, ___: Any) -> None:
        batch = self._of(kwargs)
        _pages.leave()
        if batch:
            batch.end()

    def _of(self, kwargs: Any) -> Optional[Batch]:
        cache = kwargs.get(ARGUMENT, kwargs.get("past_key_values"))
        return cache.batch if isinstance(cache, PagedCache) and cache.batch.owner is self else None

    def _drop(self, batch: Batch) -> None:
        """In a thread of its own: the interpreter drops caches wherever it likes, in a call of the client, too."""
        if not threading.main_thread().is_alive():  # the interpreter ends, and waits for no thread
            batch.finish()
            return
        thread = threading.Thread(target=batch.finish, name="kvd-finish")
        thread.start()
        self._ending.append(thread)

    def flush(self) -> None:
        """Returns when all caches that were dropped have become continuations."""
        while self._ending:
            thread = self._ending[-1]
            thread.join()
            if thread in self._ending:
                self._ending.remove(thread)

    def close(self) -> None:
        """What is complete is kept. Caches that are still held can be read no more."""
        self.flush()
        for hook in self._hooks:
            hook.remove()
        if self._entry:
            self._entry.close()
        if self._own:
            self._client.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
