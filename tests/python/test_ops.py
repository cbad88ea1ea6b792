# SPDX-License-Identifier: Apache-2.0
"""kvd.ops: append and attention of libkvd-ops on numpy arrays, against attention written in numpy; on pages of a real
kvd; on torch tensors where torch is installed (VIEW-3, VIEW-4, VIEW-6, GEOM-6)."""

import doctest
import os
import subprocess
import sys
import unittest

import numpy as np

import codes
import kvd
import kvd.ops as ops
from support import KvdCase, tokens

try:
    import torch
except ImportError:
    torch = None

PAGES, ROWS, ENTRIES, HEADS = 24, 3, 6, 2
#: VIEW-6, relative L2 against FP64 on the stored codes.
LIMITS = {"bf16": 2.8e-3, "int8": 3.15e-3, "fp8": 1.2e-2, "nvfp4": 1.5e-2, "k8v4": 1.5e-2, "fp8-tensor": 1.2e-2}
HALVES = {"bf16": ("bf16",) * 2, "int8": ("int8",) * 2, "fp8": ("fp8",) * 2, "nvfp4": ("nvfp4",) * 2}
HALVES["k8v4"] = ("fp8", "nvfp4")
HALVES["fp8-tensor"] = ("fp8-tensor",) * 2
SCALES = 0.011, np.float32(0.007)  # of a layer, for K and V


def empty_planes(kind, head_dim, head_major):
    """Codes and scales [page, head, 64, element], filled with 0xFF: NaN as BF16, FP8 and FP16."""
    rows = {"bf16": ("<u2", head_dim), "int8": ("|i1", head_dim), "fp8": ("|u1", head_dim)}
    rows["nvfp4"], rows["fp8-tensor"] = ("|u1", head_dim // 2), ("|u1", head_dim)
    scales = {"int8": ("<f2", -(-head_dim // 64)), "fp8": ("<f2", 1), "nvfp4": ("|u1", head_dim // 16)}
    made = []
    for dtype, extent in (rows[kind], scales.get(kind, (None, 0))):
        shape = (HEADS, PAGES, 64, extent) if head_major else (PAGES, HEADS, 64, extent)
        plane = None if dtype is None else np.full(np.prod(shape) * np.dtype(dtype).itemsize, 0xFF, np.uint8)
        plane = None if plane is None else plane.view(dtype).reshape(shape)
        made.append(plane.swapaxes(0, 1) if plane is not None and head_major else plane)
    return made


def e4m3(codes):
    codes = codes.astype(np.int64)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.where(codes & 128, -value, value)


def e2m1(codes):
    return np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])[codes]


def decoded(kind, codes, scales):
    """Rows [..., element] as the format says, in FP64: a second statement of it."""
    if kind == "bf16":
        return ops.from_bf16(codes).astype(np.float64)
    if kind == "int8":
        return codes * scales.astype(np.float64).repeat(64, -1)[..., : codes.shape[-1]]
    if kind in ("fp8", "fp8-tensor"):
        return e4m3(codes) * scales.astype(np.float64)
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    return e2m1(nibbles) * e4m3(scales).repeat(16, -1)


def plain(q, k, v, scale, sinks=None, soft_cap=0.0):
    """[heads, D] over [n, kv heads, D]: softmax attention as in a textbook. A sink is one more column, then dropped."""
    group = q.shape[0] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    scores = np.einsum("hd,nhd->hn", q, k) * scale
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    if sinks is not None:
        scores = np.concatenate([scores, np.asarray(sinks, np.float64)[:, None]], 1)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights = (weights / weights.sum(1, keepdims=True))[:, : len(k)]
    return np.einsum("hn,nhd->hd", weights, v)


def seen(position, window=0, aligned=False):
    """Keys of a causal query, by their mask."""
    keys = np.arange(position + 1)
    if window:
        keys = keys[keys // window == position // window if aligned else position - keys < window]
    return keys


def error_of(got, want):
    return np.sqrt(((got - want) ** 2).sum() / (want**2).sum())


class Pages:
    """A layer whose pages stand in no order, with what was appended."""

    def __init__(self, profile, head_dim, head_major=False, seed=1, v_head_dim=None):
        self.random = np.random.default_rng(seed)
        self.profile, self.head_dim, self.v_head_dim = profile, head_dim, v_head_dim or head_dim
        self.k, self.k_scale = empty_planes(HALVES[profile][0], head_dim, head_major)
        self.v, self.v_scale = empty_planes(HALVES[profile][1], self.v_head_dim, head_major)
        self.table = self.random.permutation(PAGES)[: ROWS * ENTRIES].astype(np.int32).reshape(ROWS, ENTRIES)
        scales = SCALES if profile == "fp8-tensor" else (self.k_scale, self.v_scale)
        self.layer = ops.Layer(self.k, self.v, self.table, *scales)

    def draw(self, *shape):
        return ops.to_bf16(self.random.standard_normal(shape))

    def fill(self, row, n):
        k, v = self.draw(1, n, HEADS, self.head_dim), self.draw(1, n, HEADS, self.v_head_dim)
        ops.append(self.layer, k, v, [range(n)], rows=[row])
        return k[0], v[0]

    def read(self, row, n):
        """Keys and values [n, kv heads, D] of a row, decoded in numpy."""
        made = []
        planes = (self.k, self.k_scale, SCALES[0]), (self.v, self.v_scale, SCALES[1])
        for kind, (codes, scales, of_layer) in zip(HALVES[self.profile], planes):
            at = self.table[row][np.arange(n) // 64], slice(None), np.arange(n) % 64
            made.append(decoded(kind, codes[at], np.float32(of_layer) if scales is None else scales[at]))
        return made


class Append(unittest.TestCase):
    def test_bits_go_where_the_table_says_and_nowhere_else(self):
        """GEOM-4, GEOM-5, GEOM-6."""
        for head_major in (False, True):
            pages = Pages("bf16", 48, head_major)
            before = pages.k.copy(), pages.v.copy()
            k, v = pages.draw(2, 5, HEADS, 48), pages.draw(2, 5, HEADS, 48)
            ops.append(pages.layer, k, v, [range(62, 67), range(5)], rows=[2, 0], valid=[5, 3])
            for plane, new, old in ((pages.k, k, before[0]), (pages.v, v, before[1])):
                for b, row, start, n in ((0, 2, 62, 5), (1, 0, 0, 3)):
                    for w in range(n):
                        old[pages.table[row][(start + w) // 64], :, (start + w) % 64] = new[b, w]
                np.testing.assert_array_equal(plane, old)

    def test_codes_are_near_what_was_given(self):
        """GEOM-9: half a step of each format at most, by its scale."""
        steps = {"int8": 0.5, "fp8": 16, "nvfp4": 1.25}  # 6 rounded up to a scale that is 1/16 too small
        for profile in ("int8", "fp8", "nvfp4", "k8v4"):
            pages = Pages(profile, 256)
            given = pages.fill(1, 100)
            halves = zip(HALVES[profile], given, pages.read(1, 100), (pages.k_scale, pages.v_scale))
            for kind, want, got, scales in halves:
                scale = scales[pages.table[1][np.arange(100) // 64], :, np.arange(100) % 64]
                scale = e4m3(scale) if kind == "nvfp4" else scale.astype(np.float64)
                step = scale.repeat(256 // scale.shape[-1], -1) * steps[kind]
                self.assertLessEqual(np.max(np.abs(got - ops.from_bf16(want)) / step), 1.01, kind)


    def test_bytes_are_those_of_numpy(self):
        """GEOM-9: each profile at each head_dim, rows of all kinds, against the codecs of codes.py."""
        for head_dim in codes.HEAD_DIMS:
            x = codes.rows(head_dim, 120, 7)
            for profile in ("int8", "fp8", "nvfp4", "k8v4"):
                pages = Pages(profile, head_dim)
                k = x.reshape(1, 60, HEADS, head_dim)
                ops.append(pages.layer, k, k[:, ::-1], [range(60)], rows=[1])
                at = pages.table[1, 0], slice(None), slice(0, 60)
                planes = (pages.k, pages.k_scale), (pages.v, pages.v_scale)
                for kind, rows, (plane, scales) in zip(HALVES[profile], (k[0], k[0, ::-1]), planes):
                    want, want_scales = codes.ENCODERS[kind](rows.swapaxes(0, 1))
                    np.testing.assert_array_equal(plane[at], want, (profile, head_dim))
                    np.testing.assert_array_equal(scales[at].view(want_scales.dtype), want_scales, (profile, head_dim))

    def test_bytes_with_scales_of_the_layer_are_those_of_numpy(self):
        """GEOM-9: fp8-tensor, where any number of elements makes a row."""
        for head_dim in (1, 7, 64, 80, 256):
            x = codes.rows(head_dim, 120, 8)
            pages = Pages("fp8-tensor", head_dim)
            k = x.reshape(1, 60, HEADS, head_dim)
            ops.append(pages.layer, k, k[:, ::-1], [range(60)], rows=[1])
            at = pages.table[1, 0], slice(None), slice(0, 60)
            for rows, plane, scale in ((k[0], pages.k, SCALES[0]), (k[0, ::-1], pages.v, SCALES[1])):
                np.testing.assert_array_equal(plane[at], codes.fp8_tensor(rows.swapaxes(0, 1), scale), head_dim)

    def test_golden_rows_are_those_of_numpy(self):
        """What test_ops_codec.c reads has been made by this numpy."""
        with open(os.path.join(os.environ["KVD_SOURCE"], "tests", "unit", "golden_codes.inc")) as file:
            self.assertEqual(file.read(), codes.golden())


class Attention(unittest.TestCase):
    def check(self, pages, q_heads, starts, w, rows, valid=None, limit=None, **options):
        valid = [w] * len(rows) if valid is None else valid
        q = pages.draw(len(rows), w, q_heads, pages.head_dim)
        positions = [range(start, start + w) for start in starts]
        for oracle in (False, True):
            got = ops.from_bf16(ops.attention(pages.layer, q, positions, rows, valid, oracle=oracle, **options))
            want = np.zeros((*q.shape[:3], pages.v_head_dim))
            self.assertEqual(got.shape, want.shape)
            for b, (row, start) in enumerate(zip(rows, starts)):
                for c in range(valid[b]):
                    k, v = pages.read(row, start + c + 1)
                    keys = seen(start + c, options.get("window", 0), options.get("aligned", False))
                    rest = {name: options[name] for name in ("sinks", "soft_cap") if name in options}
                    scale = options.get("scale", pages.head_dim**-0.5)
                    want[b, c] = plain(ops.from_bf16(q[b, c]), k[keys], v[keys], scale, **rest)
                self.assertTrue((got[b, valid[b] :] == 0).all())
            self.assertLessEqual(error_of(got, want), LIMITS[pages.profile], (pages.profile, oracle))

    def test_every_profile(self):
        """VIEW-6: against numpy's FP64 on the stored codes, decoded in numpy."""
        for profile in LIMITS:
            pages = Pages(profile, 256, head_major=profile == "int8")
            for row in range(ROWS):
                pages.fill(row, 200)
            self.check(pages, 6, (130, 63, 190), 4, (2, 0, 1), valid=[4, 0, 2])
            self.check(pages, 2, (50,), 20, (1,))
        for profile in ("int8", "fp8", "nvfp4", "k8v4"):
            for head_dim in (64, 96, 128, 192):
                pages = Pages(profile, head_dim, head_major=head_dim == 96)
                pages.fill(1, 80)
                self.check(pages, 4, (70,), 3, (1,))

    def test_head_dims_and_scale(self):
        for head_dim in (8, 64, 80, 128):
            pages = Pages("bf16", head_dim)
            pages.fill(0, 150)
            self.check(pages, 8, (149,), 1, (0,), scale=0.3)

    def test_heads_of_v_that_differ(self):
        """GRP-1, VIEW-6: longer and shorter than those of K, also where what K lacks in V's tile is not finite."""
        for profile, head_dim, v_head_dim in (
            ("bf16", 192, 128),
            ("bf16", 3, 80),
            ("bf16", 80, 3),
            ("int8", 64, 256),
            ("fp8", 192, 128),
            ("nvfp4", 96, 64),
            ("k8v4", 128, 192),
            ("fp8-tensor", 192, 128),
            ("fp8-tensor", 3, 80),
        ):
            with self.subTest(profile=profile, head_dim=head_dim, v_head_dim=v_head_dim):
                pages = Pages(profile, head_dim, v_head_dim=v_head_dim)
                for row in range(ROWS):
                    pages.fill(row, 200)
                self.assertEqual((pages.layer.head_dim, pages.layer.v_head_dim), (head_dim, v_head_dim))
                self.check(pages, 6, (130, 63, 190), 4, (2, 0, 1), valid=[4, 0, 2])
        pages = Pages("bf16", 3, v_head_dim=80)
        pages.fill(0, 200)
        q = pages.draw(1, 1, 2, 3)
        want = ops.attention(pages.layer, q, [[70]], [0])
        pages.v[pages.table[0, 0], :, 5, 3:16] = 0x7F80  # of a key that is seen: its own elements alone are spoilt
        got = ops.attention(pages.layer, q, [[70]], [0])
        np.testing.assert_array_equal(np.delete(got, np.s_[3:16], -1), np.delete(want, np.s_[3:16], -1))

    def test_windows_sinks_and_soft_caps(self):
        """VIEW-6: heads, windows, chunks, sinks and soft caps of models that people serve, and all of them at once."""
        for head_dim, q_heads, options in (
            (64, 16, {"window": 128, "sinks": np.linspace(-2, 4, 16, dtype=np.float32)}),  # gpt-oss
            (64, 16, {"sinks": np.linspace(-2, 4, 16, dtype=np.float32)}),
            (256, 4, {"window": 100, "soft_cap": 50.0, "scale": 256**-0.5}),  # Gemma 2
            (128, 4, {"window": 200}),  # Gemma 3
            (128, 10, {"window": 192, "aligned": True}),  # Llama 4
            (80, 6, {"window": 1, "sinks": [0.5] * 6, "soft_cap": 0.7}),
            (128, 2, {"window": 2**32 - 1, "soft_cap": 3.0}),
        ):
            with self.subTest(head_dim=head_dim, **options):
                pages = Pages("bf16", head_dim)
                for row in range(ROWS):
                    pages.fill(row, 380)
                self.check(pages, q_heads, (250, 63, 0), 3, (2, 0, 1), **options)
                self.check(pages, q_heads, (370,), 8, (1,), **options)

    def test_a_hint_of_a_shared_prefix_changes_nothing(self):
        pages = Pages("bf16", 64)
        pages.fill(0, 200)
        pages.table[1, :2] = pages.table[0, :2]
        q = pages.draw(2, 1, 4, 64)
        want = ops.attention(pages.layer, q, [[150], [127]], [0, 1])
        np.testing.assert_array_equal(ops.attention(pages.layer, q, [[150], [127]], [0, 1], shared_prefix=128), want)

    def test_what_is_behind_a_window_is_not_read(self):
        """VIEW-3: entries behind may be -1; the page in which a window begins may hold anything before it."""
        pages = Pages("bf16", 64)
        pages.fill(0, 300)
        q = pages.draw(1, 4, 4, 64)
        for options in ({"window": 70}, {"window": 200, "aligned": True}):
            for oracle in (False, True):
                at, table = [range(290, 294)], pages.table.copy()
                want = ops.attention(pages.layer, q, at, [0], oracle=oracle, **options)
                first = seen(290, **options)[0]
                pages.k[table[0, first // 64], :, : first % 64] = 0x7FC0
                pages.v[table[0, first // 64], :, : first % 64] = 0x7F80
                pages.table[0, : first // 64] = -1
                np.testing.assert_array_equal(ops.attention(pages.layer, q, at, [0], oracle=oracle, **options), want)
                pages.table[0, first // 64] = -1
                with self.assertRaisesRegex(kvd.InvalidArgument, "map it"):
                    ops.attention(pages.layer, q, at, [0], oracle=oracle, **options)
                pages.table[:] = table

    def test_not_causal(self):
        pages = Pages("bf16", 64)
        pages.fill(1, 90)
        q = pages.draw(1, 8, 4, 64)
        got = ops.from_bf16(ops.attention(pages.layer, q, rows=[1], context=[70], valid=[6]))
        k, v = pages.read(1, 76)
        want = np.array([plain(ops.from_bf16(q[0, c]), k, v, 64**-0.5) for c in range(6)])
        self.assertLessEqual(error_of(got[0, :6], want), LIMITS["bf16"])
        self.assertTrue((got[0, 6:] == 0).all())

    def test_out_and_arrays_that_are_not_contiguous(self):
        pages = Pages("bf16", 64)
        pages.fill(0, 90)
        q, out = pages.draw(1, 2, 4, 64), np.zeros((1, 2, 4, 64), np.uint16)
        wide = np.zeros((1, 2, 8, 64), np.uint16)
        wide[:, :, ::2] = q
        first = ops.attention(pages.layer, q, [[80, 81]], [0], out=out)
        self.assertIs(first, out)
        np.testing.assert_array_equal(ops.attention(pages.layer, wide[:, :, ::2], np.array([[80, 81]]), [0]), out)


class Refusals(unittest.TestCase):
    def setUp(self):
        self.pages = Pages("bf16", 64)
        self.pages.fill(0, 100)
        self.q = self.pages.draw(1, 1, 4, 64)

    def refused(self, kind, words, call, *arguments, **options):
        with self.assertRaisesRegex(kind, words):
            call(*arguments, **options)

    def test_of_arrays(self):
        """VIEW-3: what is not an array of the right kind is named, with what it should be."""
        pages, layer, q, k = self.pages, self.pages.layer, self.q, self.q[:, :, :2]
        bad = kvd.InvalidArgument
        self.refused(bad, "no array", ops.attention, layer, [1], [[0]])
        self.refused(bad, r"q is float32\[1, 1, 4, 64\]", ops.attention, layer, q.astype(np.float32), [[0]])
        self.refused(bad, r"\[B, W, heads, 64\]", ops.attention, layer, q[0], [[0]])
        self.refused(bad, "one of them", ops.attention, layer, q)
        self.refused(bad, "one of them", ops.attention, layer, q, [[0]], context=[1])
        self.refused(bad, r"positions is \[1\]", ops.attention, layer, q, [0])
        self.refused(bad, r"valid is \[2\]: it is \[1\]", ops.attention, layer, q, [[0]], valid=[1, 1])
        self.refused(bad, "out is", ops.attention, layer, q, [[0]], out=np.zeros((1, 1, 4, 32), np.uint16))
        self.refused(bad, "out is", ops.attention, layer, q, [[0]], out=np.zeros((1, 1, 4, 128), np.uint16)[..., ::2])
        self.refused(bad, r"both are \[B, W, 2, head_dim\]", ops.append, layer, q, q, [[0]])
        self.refused(bad, "the table is int64", ops.Layer, pages.k, pages.v, pages.table.astype(np.int64))
        self.refused(bad, "plane v has 23 pages", ops.Layer, pages.k, pages.v[1:], pages.table)
        self.refused(bad, r"plane k is uint16\[24, 2, 32, 64\]", ops.Layer, pages.k[:, :, :32], pages.v, pages.table)
        self.refused(bad, "no profile", ops.Layer, pages.k.view("u1"), pages.v.view("u1"), pages.table)
        self.refused(bad, "no profile", ops.Layer, pages.k, pages.v.view("i1"), pages.table)
        self.refused(bad, "no profile", ops.Layer, pages.k, pages.v, pages.table, 1.0, 1.0)
        layer_of = ops.Layer(pages.k.view("u1"), pages.v.view("u1"), pages.table, 1.0, -1.0)
        wide = np.zeros((1, 1, 2, 128), np.uint16)
        self.refused(bad, "k_scale 1 and v_scale -1 .* positive", ops.append, layer_of, wide, wide, [[0]])
        ops.append(layer, k, k, [[0]])

    def test_of_the_library(self):
        """VIEW-3: its sentence is the exception's, and nothing has changed."""
        pages, layer = self.pages, self.pages.layer
        before = pages.k.copy()
        k = self.q[:, :, :2]
        pages.table[1, 1] = -1
        self.refused(kvd.InvalidArgument, "map it", ops.append, layer, k, k, [[70]], rows=[1])
        self.refused(kvd.InvalidArgument, "table row 3", ops.append, layer, k, k, [[70]], rows=[3])
        self.refused(kvd.InvalidArgument, "ordinals", ops.append, layer, k, k, [[ENTRIES * 64]])
        self.refused(kvd.InvalidArgument, "query heads", ops.attention, layer, self.q[:, :, :3], [[0]])
        self.refused(kvd.InvalidArgument, "scale", ops.attention, layer, self.q, [[0]], scale=-1)
        self.refused(kvd.InvalidArgument, "window", ops.attention, layer, self.q, context=[0], window=4)
        self.refused(kvd.InvalidArgument, "aligned", ops.attention, layer, self.q, [[0]], aligned=True)
        self.refused(kvd.InvalidArgument, "soft cap", ops.attention, layer, self.q, [[0]], soft_cap=-1)
        self.refused(kvd.InvalidArgument, r"sinks is \[2\]", ops.attention, layer, self.q, [[0]], sinks=[1, 2])
        np.testing.assert_array_equal(pages.k, before)

    def test_of_a_shape_without_a_kernel(self):
        """The CUDA calls are there in every build. A good call that no kernel serves is no bad argument."""
        pages = Pages("bf16", 1200)
        op = ops._attention(pages.layer, (1, 1, 4, 1200), True, None)
        aligned, at = np.zeros(32768, np.uint8), np.zeros(1, np.int32)
        start = aligned.ctypes.data + -aligned.ctypes.data % 16
        op.q, op.out, op.positions, op.table_rows = start, start + 9600, at.ctypes.data, at.ctypes.data
        call = ("kvd_ops_attention_cuda", op, ops.ctypes.c_uint32(64), None, ops.ctypes.c_size_t(0), None)
        self.refused(kvd.Unimplemented, "CUDA|kernel", ops._call, *call)
        op.scale = -1
        self.refused(kvd.InvalidArgument, "scale", ops._call, *call)

    def test_of_a_machine_without_the_library(self):
        done = subprocess.run(
            [sys.executable, "-c", "import kvd.ops; kvd.ops.version()"],
            env={**os.environ, "KVD_OPS_LIBRARY": "/nonexistent/libkvd-ops.so.1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertIn("UNIMPLEMENTED: kvd.ops needs libkvd-ops (package libkvd-ops1)", done.stderr)


class Documentation(unittest.TestCase):
    def test_examples_and_version(self):
        result = doctest.testmod(ops)
        self.assertEqual((result.failed, result.attempted > 5), (0, True))
        self.assertEqual(ops.version(), kvd.__version__)


class OfKvd(KvdCase):
    def test_pages_of_a_store(self):
        """VIEW-1, CONT-3: what one process appends is what the next one attends, found by its tokens."""
        random = np.random.default_rng(5)
        k, v = (ops.to_bf16(random.standard_normal((1, 300, 2, 64))) for _ in range(2))
        q = ops.to_bf16(random.standard_normal((1, 1, 4, 64)))
        prompt, results = tokens(7, 300), []
        for cached in (0, 299):
            with kvd.connect(self.kvd.socket, name="ops") as client, client.attach() as store:
                layers = [ops.Layer.of(store, i) for i in range(2)]
                with client.activate(prompt, max_new_tokens=10, domain="ops") as sequence:
                    self.assertEqual(sequence.cached, cached)
                    at = [range(cached, 300)]
                    for layer in layers:
                        ops.append(layer, k[:, cached:], v[:, cached:], at, rows=[sequence.row])
                    sequence.complete(300)
                    results.append([ops.attention(layer, q, [[299]], [sequence.row]) for layer in layers])
        np.testing.assert_array_equal(results[0], results[1])
        want = plain(ops.from_bf16(q[0, 0]), ops.from_bf16(k[0]), ops.from_bf16(v[0]), 0.125)
        self.assertLessEqual(error_of(ops.from_bf16(results[1][0])[0, 0], want), LIMITS["bf16"])


class OfKvdWithScalesOfTheLayer(KvdCase):
    settings = {"profile": "fp8-tensor", "head_dim": 80}

    def test_pages_of_a_store(self):
        """GEOM-1, VIEW-1: kvd gives codes alone, and the ops do not run without the scales."""
        random = np.random.default_rng(6)
        k, v, q = (ops.to_bf16(random.standard_normal((1, n, heads, 80))) for n, heads in ((100, 2), (100, 2), (1, 4)))
        with kvd.connect(self.kvd.socket, name="ops") as client, client.attach() as store:
            with self.assertRaisesRegex(kvd.InvalidArgument, "give k_scale and v_scale"):
                ops.Layer.of(store, 1)
            layer = ops.Layer.of(store, 1, k_scale=0.01, v_scale=0.02)
            with client.activate(tokens(8, 100), max_new_tokens=10, domain="ops") as sequence:
                ops.append(layer, k, v, [range(100)], rows=[sequence.row])
                got = ops.from_bf16(ops.attention(layer, q, [[99]], [sequence.row]))[0, 0]
                sequence.complete(100)
            k, v = (e4m3(codes.fp8_tensor(x[0], scale)) * scale for x, scale in ((k, 0.01), (v, 0.02)))
            self.assertLessEqual(error_of(got, plain(ops.from_bf16(q[0, 0]), k, v, 80**-0.5)), LIMITS["fp8-tensor"])


@unittest.skipIf(torch is None, "torch is not installed")
class Torch(unittest.TestCase):
    def test_tensors_on_the_cpu(self):
        """Tensors give the bits that arrays give."""
        pages = Pages("bf16", 64)
        k, v = pages.fill(0, 100)
        q = pages.draw(1, 3, 4, 64)

        def tensor(bits):
            return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)

        k2, v2 = torch.zeros(8, 2, 64, 64, dtype=torch.bfloat16), torch.zeros(8, 2, 64, 64, dtype=torch.bfloat16)
        layer = ops.Layer(k2, v2, torch.arange(8, dtype=torch.int32).flip(0).reshape(2, 4).contiguous())
        ops.append(layer, tensor(k[None]), tensor(v[None]), torch.arange(100)[None])
        got = ops.attention(layer, tensor(q), torch.arange(97, 100)[None], torch.tensor([0]))
        want = ops.attention(pages.layer, q, [range(97, 100)], [0])
        np.testing.assert_array_equal(got.view(torch.int16).numpy(), want.view(np.int16))

    def test_fp8_with_scales_of_the_layer(self):
        """GEOM-9: torch's own FP8 and its scales, by the plain and the ready call, give the bits that numpy's bytes do."""
        pages = Pages("fp8-tensor", 80)
        k2, v2 = (torch.zeros(PAGES, HEADS, 64, 80, dtype=torch.float8_e4m3fn) for _ in range(2))
        scales = torch.tensor(SCALES[0]), torch.tensor([SCALES[1]])
        layer = ops.Layer(k2, v2, torch.from_numpy(pages.table), *scales)
        at, rows = torch.arange(70, dtype=torch.int32)[None], torch.tensor([2], dtype=torch.int32)
        k, v, q = (pages.draw(1, n, heads, 80) for n, heads in ((70, HEADS), (70, HEADS), (1, 4)))
        ops.append(pages.layer, k, v, [range(70)], [2])
        k, v, query = (torch.from_numpy(each.view(np.int16)).view(torch.bfloat16) for each in (k, v, q))
        ops.ReadyAppend(layer, at, rows)(k, v)
        seen_rows = pages.table[2, 0], slice(None), slice(0, 64)
        for plane, given in ((k2, k), (v2, v)):
            bits = plane.view(torch.uint8).numpy()[seen_rows]
            np.testing.assert_array_equal(bits, (pages.k if plane is k2 else pages.v)[seen_rows])
            of_torch = (given[0, :64].float() / scales[0 if plane is k2 else 1]).clamp(-448, 448).to(torch.float8_e4m3fn)
            np.testing.assert_array_equal(bits, of_torch.view(torch.uint8).numpy().swapaxes(0, 1))
        want = ops.attention(pages.layer, q, [[69]], [2])
        got = ops.attention(layer, query, at[:, 69:], rows)
        again = ops.ReadyAttention(layer, at[:, 69:].contiguous(), rows, 4)(query)
        for each in (got, again):
            np.testing.assert_array_equal(each.view(torch.int16).numpy(), want.view(np.int16))

    def test_calls_that_are_ready(self):
        """VIEW-4: the bits of the plain calls, at positions that change in place; other shapes are refused."""
        pages, twin = (Pages("bf16", 64) for _ in range(2))
        k, v = (torch.from_numpy(each.view(np.int16)).view(torch.bfloat16) for each in (pages.k, pages.v))
        layer = ops.Layer(k, v, torch.from_numpy(pages.table))
        at, rows = torch.zeros(2, 1, dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
        sinks = [0.5, -1, 2, 0]
        append = ops.ReadyAppend(layer, at, rows)
        attend = ops.ReadyAttention(layer, at, rows, 4, scale=0.3, window=5, sinks=sinks, soft_cap=4.0)
        for position in range(60, 70):
            at.fill_(position)
            new = [pages.draw(2, 1, heads, 64) for heads in (2, 2, 4)]
            if position == 60:
                for row in (0, 2):
                    twin.fill(row, 60)
                pages.k[:], pages.v[:] = twin.k, twin.v
            ops.append(twin.layer, *new[:2], [[position]] * 2, [2, 0])
            want = ops.attention(
                twin.layer, new[2], [[position]] * 2, [2, 0], scale=0.3, window=5, sinks=sinks, soft_cap=4.0
            )
            k_new, v_new, q = (torch.from_numpy(each.view(np.int16)).view(torch.bfloat16) for each in new)
            append(k_new, v_new)
            got = attend(q)
            np.testing.assert_array_equal(pages.k, twin.k)
            np.testing.assert_array_equal(pages.v, twin.v)
            np.testing.assert_array_equal(got.view(torch.int16).numpy(), want.view(np.int16))
        for call, arguments, words in (
            (append, (k_new, v_new[:1]), r"v is torch.bfloat16\[1, 1, 2, 64\]"),
            (attend, (q.float(),), "made ready for"),
            (ops.ReadyAppend, (layer, at.long(), rows), "positions is int64"),
            (ops.ReadyAttention, (layer, at, rows[:1], 4), r"rows is int32\[1\]"),
        ):
            with self.assertRaisesRegex(kvd.InvalidArgument, words):
                call(*arguments)
        at.fill_(ENTRIES * 64)
        with self.assertRaisesRegex(kvd.InvalidArgument, "ordinals"):
            append(k_new, v_new)


def on_gpu(bits):
    """A tensor of BF16, or of int32, in GPU memory."""
    if bits.dtype == np.int32:
        return torch.from_numpy(bits).cuda()
    return torch.from_numpy(bits.view(np.int16).copy()).cuda().view(torch.bfloat16)


@unittest.skipIf(torch is None or not torch.cuda.is_available(), "torch and a GPU are not here")
class TorchOnGpu(unittest.TestCase):
    """The kernels from torch, against the reference on the same pages."""

    def twin(self, pages):
        """The layer in GPU memory."""
        k, v = on_gpu(pages.k), on_gpu(pages.v)
        return k, v, ops.Layer(k, v, on_gpu(pages.table))

    def near(self, got, want, valid):
        got = ops.from_bf16(got.cpu().view(torch.int16).numpy().view(np.uint16))
        for b, n in enumerate(valid):
            if n:
                self.assertLessEqual(error_of(got[b, :n], ops.from_bf16(want)[b, :n]), 2 * LIMITS["bf16"])

    def test_append_and_attention(self):
        """GEOM-9, VIEW-6: the same bytes, and sums as near as each form is to FP64; decoding, drafts, a chunk."""
        for head_dim, q_heads in ((64, 8), (128, 8), (256, 4)):
            for rows, starts, w, valid in (((2, 0, 1), (130, 63, 190), 1, (1, 1, 1)), ((0, 2), (70, 200), 4, (4, 2)),
                                           ((1,), (0,), 150, (150,))):
                with self.subTest(head_dim=head_dim, w=w):
                    pages = Pages("bf16", head_dim)
                    for row in range(ROWS):
                        pages.fill(row, 200)
                    k, v, layer = self.twin(pages)
                    new = [pages.draw(len(rows), w, HEADS, head_dim) for _ in range(2)]
                    q = pages.draw(len(rows), w, q_heads, head_dim)
                    at = np.array([range(start, start + w) for start in starts], np.int32)
                    ops.append(pages.layer, *new, at, rows, valid)
                    want = ops.attention(pages.layer, q, at, rows, valid)
                    ops.append(layer, *map(on_gpu, new), on_gpu(at), rows, valid)
                    got = ops.attention(layer, on_gpu(q), on_gpu(at), rows, valid)
                    if all(n == w for n in valid):
                        of = torch.tensor(rows, dtype=torch.int32, device="cuda")
                        ops.ReadyAppend(layer, on_gpu(at), of)(*map(on_gpu, new))
                        again = ops.ReadyAttention(layer, on_gpu(at), of, q_heads)(on_gpu(q))
                        self.assertTrue(torch.equal(again.view(torch.int16), got.view(torch.int16)))
                    for plane, reference in ((k, pages.k), (v, pages.v)):
                        self.assertTrue(torch.equal(plane.view(torch.int16), on_gpu(reference).view(torch.int16)))
                    self.near(got, want, valid)

    def test_a_graph(self):
        """VIEW-5: replayed with other positions, on memory of the caller's."""
        pages = Pages("bf16", 128)
        for row in range(ROWS):
            pages.fill(row, 300)
        _, _, layer = self.twin(pages)
        q = pages.draw(2, 1, 8, 128)
        at, rows, given = on_gpu(np.array([[10], [20]], np.int32)), on_gpu(np.array([0, 2], np.int32)), on_gpu(q)
        out = torch.empty_like(given)
        memory = torch.empty(ops.workspace_bytes(layer, 2, 1, 8, 384), dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.attention(layer, given, at, rows, out=out, max_context=384, workspace=memory)
        for starts in ((10, 20), (299, 130)):
            at.copy_(torch.tensor(starts, dtype=torch.int32)[:, None])
            graph.replay()
            torch.cuda.synchronize()
            self.near(out, ops.attention(pages.layer, q, [[start] for start in starts], [0, 2]), (1, 1))

    def test_refusals(self):
        """VIEW-3: what is not on the device of the pages is named."""
        pages = Pages("bf16", 128)
        _, _, layer = self.twin(pages)
        with self.assertRaisesRegex(kvd.InvalidArgument, "on cpu, the pages are on cuda:0"):
            ops.attention(layer, on_gpu(pages.draw(1, 1, 8, 128)).cpu(), [[0]])
        with self.assertRaisesRegex(kvd.Unimplemented, "oracle is for the CPU"):
            ops.attention(layer, on_gpu(pages.draw(1, 1, 8, 128)), [[0]], oracle=True)


@unittest.skipIf(torch is None, "torch is not installed")
class Latent(KvdCase):
    """GRP-1: rows of a latent group in the layout of the public MLA kernels, [latent 512 | rotary key 64] in BF16."""

    RANK, ROTARY, HEADS, NOPE, V = 512, 64, 4, 128, 128
    settings = {
        "layers": None,
        "more": "[pool.main]\ngroups = mla\n[group.mla]\nlayers = 2\nformat = latent\nbytes = 1152\n",
    }

    def setUp(self):
        super().setUp()
        self.random = torch.Generator().manual_seed(11)
        self.up_k, self.up_v = self.drawn(self.HEADS, self.NOPE, self.RANK), self.drawn(self.HEADS, self.V, self.RANK)
        self.scale = (self.NOPE + self.ROTARY) ** -0.5

    def drawn(self, *shape):
        return torch.randn(*shape, generator=self.random, dtype=torch.float64) * shape[-1] ** -0.25

    @staticmethod
    def pages_of(store, layer):
        """[page, 64, element], where kvd has them."""
        return torch.from_numpy(store.latent[layer].numpy()).view(torch.bfloat16)

    def decode(self, pages, table, keys, q_nope, q_rotary):
        """On latents alone: what brings a head's keys up goes to its query, what brings values up to its output."""
        blocks = torch.from_numpy(table[: -(-keys // 64)].astype(np.int64))
        rows = pages[blocks].flatten(0, 1)[:keys].double()
        latent, rotary = rows.split([self.RANK, self.ROTARY], -1)
        scores = torch.einsum("hd,hdr->hr", q_nope, self.up_k) @ latent.T + q_rotary @ rotary.T
        return torch.einsum("hr,hvr->hv", (scores * self.scale).softmax(-1) @ latent, self.up_v)

    def with_heads(self, rows, q_nope, q_rotary):
        """The same as plain attention: every head's keys and values in full, from rows that never were in pages."""
        latent, rotary = rows.double().split([self.RANK, self.ROTARY], -1)
        k = torch.cat([latent @ self.up_k.mT, rotary.expand(self.HEADS, -1, -1)], -1)
        q = torch.cat([q_nope, q_rotary], -1)[:, None]
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, latent @ self.up_v.mT, scale=self.scale)[:, 0]

    def test_decode_through_the_block_table(self):
        prompt, more, first = tokens(3, 200), tokens(4, 90), [self.drawn(200, 576).bfloat16() for _ in range(2)]
        queries = self.drawn(self.HEADS, self.NOPE), self.drawn(self.HEADS, self.ROTARY)
        for cached, text, rows in ((0, prompt, first), (200, prompt + more, None)):
            if rows is None:  # what another process wrote is there; the rest is new
                rows = [torch.cat([x, self.drawn(90, 576).bfloat16()]) for x in first]
            with kvd.connect(self.kvd.socket, name="mla") as client, client.attach() as store:
                with client.activate(text, max_new_tokens=10, domain="mla") as sequence:
                    self.assertEqual(sequence.cached, cached)
                    table = store.table.numpy()[sequence.row]
                    for layer in range(2):
                        pages = self.pages_of(store, layer)
                        for at in range(cached, len(text)):
                            pages[table[at // 64], at % 64] = rows[layer][at]
                        got = self.decode(pages, table, len(text), *queries)
                        want = self.with_heads(rows[layer], *queries)
                        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
                        del pages
                    sequence.complete(len(text))


if __name__ == "__main__":
    unittest.main()
