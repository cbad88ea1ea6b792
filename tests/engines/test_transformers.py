# SPDX-License-Identifier: Apache-2.0
"""kvd.transformers in one process, with tiny models in FP32: generate() gives the tokens that it gives without kvd, and
finds what was computed before. table.py kills processes. CONT-2, ACT-4, VIEW-1, NAME-1, SRV-2."""

import os
import sys
import threading
import unittest

import models
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

import kvd
import kvd.transformers
from support import KvdCase, tokens

PROMPT = 200


def prompt(seed, n=PROMPT):
    return [2 + token % (models.VOCABULARY - 2) for token in tokens(seed, n)]


def padded(prompts):
    width = max(map(len, prompts))
    ids = [[0] * (width - len(each)) + each for each in prompts]
    return torch.tensor(ids), torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])


class Case(KvdCase):
    model_name, model_options, dtype, attention = "llama", {}, torch.float32, None

    def setUp(self):
        self.model = models.tiny(self.model_name, **self.model_options).to(self.dtype)
        lines = dict(line.split(" = ") for line in kvd.transformers.model_section(self.model).splitlines())
        self.settings = {**lines, "tokens": 16384, **type(self).settings}
        super().setUp()
        self.engine = kvd.transformers.Engine(self.model, socket=self.kvd.socket, attention=self.attention)
        self.addCleanup(self.engine.close)

    def plain(self, ids, mask, n, **options):
        return self.model.generate(ids, attention_mask=mask, max_new_tokens=n, **{"do_sample": False, **options})

    def cached(self, ids, mask, n, engine=None, domain=None, **options):
        """The tokens, and how many of each prompt were found."""
        engine = engine or self.engine
        arguments = engine.cache(ids, n, mask, domain=domain)
        made = engine.model.generate(ids, **{"do_sample": False, **options}, **arguments)
        reused = arguments.reused
        del arguments
        engine.flush()
        return made, reused

    def running(self):
        return self.engine.client.stats().sequences


class Equal(Case):
    def test_one_prompt_and_what_follows_it(self):
        ids, mask = padded([prompt(1)])
        expected = self.plain(ids, mask, 40)
        made, reused = self.cached(ids, mask, 40)
        self.assertTrue(torch.equal(made, expected))
        self.assertEqual(reused, [0])
        self.assertEqual([each.frontier for each in self.engine.client.continuations()], [PROMPT + 40 - 1])
        more = torch.cat([made, torch.tensor([prompt(2, 30)])], 1)  # the next turn: found to the token
        expected = self.plain(more, torch.ones_like(more), 20)
        made, reused = self.cached(more, None, 20)
        self.assertTrue(torch.equal(made, expected))
        self.assertEqual(reused, [PROMPT + 40 - 1])
        self.assertEqual(self.running(), 0)

    def test_a_padded_batch_of_which_some_is_known(self):
        self.cached(*padded([prompt(1)]), 40)
        ids, mask = padded([prompt(3, 150), prompt(1), prompt(2, 90)])
        expected = self.plain(ids, mask, 40)
        for known in ([0, 199, 0], [149, 199, 64]):  # to the token where a prompt ends in the tail of what is kept
            made, reused = self.cached(ids, mask, 40)
            self.assertTrue(torch.equal(made, expected))
            self.assertEqual(reused, known)

    def test_sampling_with_a_seed(self):
        ids, mask = padded([prompt(1), prompt(2, 120)])
        options = {"do_sample": True, "temperature": 0.9, "top_k": 20}
        torch.manual_seed(5)
        expected = self.plain(ids, mask, 40, **options)
        for _ in range(2):
            torch.manual_seed(5)
            made, _ = self.cached(ids, mask, 40, **options)
            self.assertTrue(torch.equal(made, expected))


class EqualQwen3(Equal):
    model_name = "qwen3"


class EqualGptOss(Equal):
    """Windows of 48 tokens in every other layer, and sinks."""

    model_name = "gpt-oss"


class EqualGemma3(Equal):
    model_name = "gemma3"


class Halves(Case):
    """KV of 16 bits keeps its bits, so that without reuse nothing differs."""

    def test_bf16_and_fp16(self):
        for dtype in (torch.bfloat16, torch.float16):
            self.kvd.free()
            model = models.tiny("llama").to(dtype)
            lines = dict(line.split(" = ") for line in kvd.transformers.model_section(model).splitlines())
            self.assertEqual(lines["head_dim"], "16")
            self.settings = lines
            KvdCase.setUp(self)
            with kvd.transformers.Engine(model, socket=self.kvd.socket) as engine:
                ids, mask = padded([prompt(1), prompt(2, 120)])
                expected = model.generate(ids, attention_mask=mask, max_new_tokens=30, do_sample=False)
                self.assertTrue(torch.equal(self.cached(ids, mask, 30, engine)[0], expected))
                self.assertEqual(self.cached(ids, mask, 30, engine)[1], [199, 64])


class InPlace(Case):
    """VIEW-1, VIEW-6: attention reads pages by kvd.ops, in BF16. The reference's sums are not torch's, and near them."""

    dtype, attention = torch.bfloat16, "pages"

    def logits(self, ids, mask, **arguments):
        """Of the first token, and of the second with the first one given."""
        made = self.model.generate(
            ids, attention_mask=mask, do_sample=False, output_logits=True, return_dict_in_generate=True, **arguments
        )
        return [each.float() for each in made.logits]

    def test_near_what_the_model_computes_without(self):
        """Padding, windows and sinks; a prompt of which some is known; and without kvd the model is what it was."""
        ids, mask = padded([prompt(2, 120), prompt(1)])
        expected = self.logits(ids, mask, max_new_tokens=1)
        for known in ([0, 0], [119, 199]):
            arguments = self.engine.cache(ids, 1, mask)
            self.assertEqual(arguments.reused, known)
            got = self.logits(ids, **{"mask": arguments.pop("attention_mask"), **arguments})
            del arguments
            for near, exact in zip(got, expected):
                self.assertLess((near - exact).norm() / exact.norm(), 0.1)
        again = self.logits(ids, mask, max_new_tokens=1)
        self.assertTrue(torch.equal(again[0], expected[0]))
        self.engine.flush()
        self.assertEqual(self.running(), 0)

    def test_what_is_found_gives_the_same_tokens(self):
        """CONT-2: 256 of 257 tokens are found, and the last one is computed as it was: nothing is rounded differently."""
        ids, mask = padded([prompt(1)])
        expected, _ = self.cached(ids, mask, 100)
        self.engine.client.release_domain(self.engine.domain)
        seen, _ = self.cached(ids, mask, 57)
        made, reused = self.cached(seen, None, 43)
        self.assertEqual(reused, [256])
        self.assertTrue(torch.equal(made, expected))


class InPlaceQwen3(InPlace):
    model_name = "qwen3"


class InPlaceGptOss(InPlace):
    """All experts, since the choice of some hangs on the last bit."""

    model_name, model_options = "gpt-oss", {"num_experts_per_tok": 4}


class InPlaceGemma3(InPlace):
    model_name = "gemma3"


class InPlaceRefusals(Case):
    def test_in_words(self):
        before = self.model.config._attn_implementation
        for attention, kind, words in (
            ("pages", kvd.Unimplemented, "model.to.torch.bfloat16"),
            ("flash", kvd.InvalidArgument, '"pages", "copies"'),
        ):
            with self.assertRaisesRegex(kind, words):
                kvd.transformers.Engine(self.model, socket=self.kvd.socket, attention=attention)
        self.assertEqual(self.model.config._attn_implementation, before)
        with self.assertRaisesRegex(kvd.Unimplemented, "asks K or V for shape"):
            kvd._pages.Pages(None, None).shape
        with self.assertRaisesRegex(kvd.Unimplemented, "without dropout"):
            kvd._pages._attend("eager", None, None, kvd._pages.Pages(None, None), None, None, dropout=0.1)


class Ends(Case):
    def test_what_follows_the_end_of_a_text_is_not_kept(self):
        """CONT-2: rows that end are filled up until the last one ends."""
        ids, mask = padded([prompt(1), prompt(2)])
        first, second = self.plain(ids, mask, 60)[:, PROMPT:].tolist()
        eos = next(token for token in first if token not in second)
        self.model.generation_config.eos_token_id = eos
        expected = self.plain(ids, mask, 60)
        at = expected[0].tolist().index(eos, PROMPT)
        made, _ = self.cached(ids, mask, 60)
        self.assertTrue(torch.equal(made, expected))
        again = expected[0, : at + 1].tolist() + prompt(3, 20)
        self.assertEqual(self.cached(*padded([again]), 5)[1], [at + 1])

    def test_an_exception_in_the_middle_of_a_step(self):
        """What was complete before is kept; the cache is not used again."""
        ids, mask = padded([prompt(1)])
        expected = self.plain(ids, mask, 40)
        broken = self.model.model.layers[2].register_forward_pre_hook(self._fails_at(100))
        arguments = self.engine.cache(ids, 150, mask)
        with self.assertRaises(ZeroDivisionError):
            self.model.generate(ids, do_sample=False, **arguments)
        broken.remove()
        with self.assertRaisesRegex(kvd.FailedPrecondition, "in the middle of a step"):
            self.model.generate(ids, do_sample=False, **arguments)
        del arguments
        self.engine.flush()
        self.assertEqual([each.frontier for each in self.engine.client.continuations()], [PROMPT + 100 - 2])
        made, reused = self.cached(expected[:, : PROMPT + 20], None, 20)
        self.assertTrue(torch.equal(made, expected))
        self.assertEqual(reused, [192])

    @staticmethod
    def _fails_at(step):
        calls = iter(range(step - 1, -1, -1))
        return lambda *_: 1 / next(calls) and None

    def test_threads(self):
        results = {}

        def run(seed):
            ids, mask = padded([prompt(seed)])
            results[seed] = torch.equal(self.cached(ids, mask, 40)[0], expected[seed])

        expected = {seed: self.plain(*padded([prompt(seed)]), 40) for seed in (1, 2, 3)}
        threads = [threading.Thread(target=run, args=(seed,)) for seed in expected]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        self.assertEqual(results, {1: True, 2: True, 3: True})


class Domains(Case):
    def test_other_weights_and_tenants_find_nothing(self):
        """NAME-1."""
        ids, mask = padded([prompt(1)])
        self.cached(ids, mask, 10)
        self.assertEqual(self.cached(ids, mask, 10)[1], [PROMPT - 1])
        self.assertEqual(self.cached(ids, mask, 10, domain=kvd.Domain("m", tenant="t"))[1], [0])
        with torch.no_grad():
            self.model.lm_head.weight.add_(1.0)
        with kvd.transformers.Engine(self.model, socket=self.kvd.socket) as tuned:
            self.assertEqual(self.cached(ids, mask, 10, tuned)[1], [0])
        with kvd.transformers.Engine(models.tiny("llama"), socket=self.kvd.socket) as equal:
            self.assertEqual(self.cached(ids, mask, 10, equal)[1], [PROMPT - 1])


class Refusals(Case):
    settings = {"max_concurrency": 2}

    def test_in_words(self):
        ids, mask = padded([prompt(1)])
        self.cached(ids, mask, 10)
        for options, words in (
            ({"num_beams": 2}, "beams"),
            ({"do_sample": True, "num_return_sequences": 2}, "repeat it in the ids"),
            ({"prompt_lookup_num_tokens": 2}, "no assisted decoding"),
        ):
            with self.subTest(options=options), self.assertRaisesRegex(Exception, words):
                self.cached(ids, mask, 10, **options)
        with self.assertRaisesRegex(kvd.InvalidArgument, "on the left"):
            self.engine.cache(ids, 10, torch.tensor([[1] * (PROMPT - 1) + [0]]))
        with self.assertRaisesRegex(kvd.InvalidArgument, "padding token"):
            self.engine.cache(padded([prompt(1), prompt(2, 90)])[0], 10)
        with self.assertRaisesRegex(kvd.InvalidArgument, "other tokens"):
            self.model.generate(ids + 1, do_sample=False, **self.engine.cache(ids, 10, mask))
        self.engine.flush()
        self.assertEqual(self.running(), 0)

    def test_chunks_of_a_prompt(self):
        """Versions of transformers that begin at the prompt's first token again are refused; others are equal."""
        ids, mask = padded([prompt(1)])
        expected = self.plain(ids, mask, 10)
        self.cached(ids, mask, 10)
        try:
            made, _ = self.cached(ids, mask, 10, prefill_chunk_size=64)
        except kvd.InvalidArgument as error:
            self.assertIn("no prefill_chunk_size", error.message)
        else:
            self.assertTrue(torch.equal(made, expected))

    def test_more_prompts_than_rows(self):
        """ACT-1: all prompts, or none."""
        with self.assertRaisesRegex(kvd.ResourceExhausted, "sequences"):
            self.engine.cache(*padded([prompt(1)] * 3)[:1], 10)
        self.assertEqual(self.running(), 0)

    def test_another_store(self):
        """SRV-4: what to configure instead."""
        with self.assertRaisesRegex(kvd.InvalidArgument, "layers = 2\nkv_heads = 2\nhead_dim = 32\nprofile = bf16"):
            kvd.transformers.Engine(models.tiny("llama", num_hidden_layers=2), socket=self.kvd.socket)


if __name__ == "__main__":
    unittest.main()
