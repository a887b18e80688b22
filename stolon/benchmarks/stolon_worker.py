"""Stolon's side of the benchmark (see worker_main.py)."""

from __future__ import annotations

import os
import time
from typing import Any, get_args
from uuid import uuid4

import numpy as np
import torch
from msgspec import structs

import stolon as sl
from stolon.kernels import RaggedBatch
from stolon.lang import TokenCounts
from stolon.srt.client import EngineStats
from stolon.srt.collecting import Collector, Output
from stolon.srt.engine import Engine
from stolon.srt.model_runner import ModelRunner
from stolon.srt.protocol import (
    Gen,
    GrammarSpec,
    JumpForward,
    Request,
    Sampling,
    Speculation,
    Tokens,
)

PAGE = os.sysconf("SC_PAGE_SIZE")


class Worker:
    """Answers the questions of one benchmark run."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    @property
    def loaded(self) -> Engine:
        if self.engine is None:
            raise RuntimeError("no model is loaded")
        return self.engine

    def load(
        self, path: str, threads: int, dtype: str = "auto", kv_tokens: int | None = None, **_: Any
    ) -> dict[str, Any]:
        self.engine = Engine(path, threads=threads, dtype=dtype, kv_tokens=kv_tokens)
        info = self.engine.info
        return {
            "engine": "stolon",
            "version": sl.__version__,
            "parameters": info.parameters,
            "context_length": info.context_length,
            "settings": {"threads": threads, "dtype": info.dtype, "kv_slots": info.kv_slots},
        }

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()

    def tokenize(self, text: str) -> dict[str, Any]:
        return {"ids": self.loaded.tokenizer.encode(text)}

    def prefill(self, ids: list[int]) -> dict[str, Any]:
        """Seconds from nothing to the first token after `ids`."""
        self.loaded.flush_cache()
        start = time.perf_counter()
        self._generate([ids], 1)
        return {"seconds": time.perf_counter() - start}

    def decode(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Seconds for `new_tokens` greedy tokens each, all prompt tokens but the last computed."""
        self.loaded.flush_cache()
        self._generate(prompts, 1)
        return self._timed(prompts, new_tokens)

    def shared(
        self, prompts: list[list[int]], shared: int, new_tokens: int, repeats: int
    ) -> dict[str, Any]:
        """As `decode`; the prompts share their first tokens, which the prefix tree finds."""
        self.loaded.flush_cache()
        self._generate([prompts[0][:shared]], 1)
        self._generate(prompts, 1)
        runs = [self._timed(prompts, new_tokens) for _ in range(repeats)]
        return min(runs, key=lambda run: float(run["seconds"]))

    def program(self, texts: list[str], new_tokens: int) -> dict[str, Any]:
        """Seconds for the same generations, asked for by a program and of the engine itself."""

        @sl.function
        def write(s: sl.ProgramState, text: str) -> None:
            s += text
            s += sl.gen("out", max_tokens=new_tokens, ignore_eos=True, temperature=0)

        options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
        self.loaded.generate(texts, max_tokens=1, **options)
        start = time.perf_counter()
        plain = self.loaded.generate(texts, max_tokens=new_tokens, **options)
        engine_seconds = time.perf_counter() - start
        start = time.perf_counter()
        states = write.run_batch(
            [{"text": text} for text in texts], backend=self.loaded, num_threads=len(texts)
        )
        seconds = time.perf_counter() - start
        same = [state["out"] for state in states] == [out.text for out in _flat(plain)]
        return {"seconds": seconds, "engine_seconds": engine_seconds, "same_text": same}

    def run_program(self, program: str, items: list[dict[str, Any]], seed: int) -> dict[str, Any]:
        """Seconds for a batch of one of the eight programs, and where its tokens came from."""
        from stolon.benchmarks.programs.in_stolon import PROGRAMS

        start = time.perf_counter()
        states = PROGRAMS[program].run_batch(items, backend=self.loaded, seed=seed)
        seconds = time.perf_counter() - start
        calls = [call for state in states for call in state.trace.calls]
        tokens = sum((call.tokens for call in calls), TokenCounts())
        return {
            "seconds": seconds,
            "results": [state.ret_value for state in states],
            "texts": sum(call.samples for call in calls),
            "tokens": tokens.forced + tokens.sampled,
            "cached": tokens.cached,
            "computed": tokens.computed,
        }

    def extract(self, prompts: list[list[int]], schema: str, max_tokens: int) -> dict[str, Any]:
        """Seconds for a JSON text under the schema after each prompt, from an empty cache."""
        self.loaded.flush_cache()
        start = time.perf_counter()
        outputs = _flat(
            self.loaded.generate(
                input_ids=prompts, json_schema=schema, max_tokens=max_tokens, temperature=0
            )
        )
        return {
            "seconds": time.perf_counter() - start,
            "texts": [out.text for out in outputs],
            "tokens": sum(len(out.token_ids) for out in outputs),
            "forced": sum(out.usage.forced_tokens for out in outputs),
        }

    def constrained(
        self, prompts: list[list[int]], schema: str, max_tokens: int, repeats: int
    ) -> dict[str, Any]:
        """Tokens per second of texts under the schema, in each mode of forcing, and of free texts as long
        as these, one by one; all prompt tokens but the last computed, no drafts from the prompt."""
        spec = GrammarSpec(kind="json_schema", text=schema)

        def gens(mode: JumpForward) -> list[Gen]:
            sampling = Sampling(
                max_tokens=max_tokens, temperature=0, speculation="off", jump_forward=mode
            )
            return [Gen(sampling=sampling, grammar=spec)] * len(prompts)

        lengths = [len(one.token_ids) for one in self._together(prompts, gens("off"))]
        asked = {mode: gens(mode) for mode in get_args(JumpForward)}
        asked["free"] = [
            Gen(
                sampling=Sampling(
                    max_tokens=length, temperature=0, speculation="off", ignore_eos=True
                )
            )
            for length in lengths
        ]
        best = dict.fromkeys(asked, 0.0)
        for _ in range(2 * repeats):
            for mode, each in asked.items():
                start = time.perf_counter()
                results = self._together(prompts, each)
                seconds = time.perf_counter() - start
                tokens = sum(len(one.token_ids) for one in results)
                best[mode] = max(best[mode], tokens / seconds)
        return best

    def _together(self, prompts: list[list[int]], gens: list[Gen]) -> list[Output]:
        """One generation after each prompt, all at once."""
        futures = []
        for ids, gen in zip(prompts, gens, strict=True):
            collector = Collector(1, weights_version=self.loaded.info.weights_version)
            request = Request(rid=uuid4().hex, segments=[Tokens(ids), gen])
            self.loaded.submit(request, collector)
            futures.append(collector.future)
        return [future.result()[0] for future in futures]

    def drafts(self, prompts: list[list[int]], new_tokens: int, repeats: int) -> dict[str, Any]:
        """Tokens per second of one sequence at a time, with and without drafts from its own text."""
        rates: dict[Speculation, float] = {"off": 0.0, "auto": 0.0}
        for _ in range(repeats + 1):  # the first time computes the prompts
            for mode in rates:
                start = time.perf_counter()
                for ids in prompts:
                    self.loaded.generate(
                        input_ids=ids,
                        max_tokens=new_tokens,
                        temperature=0,
                        ignore_eos=True,
                        speculation=mode,
                    )
                rates[mode] = max(
                    rates[mode], len(prompts) * new_tokens / (time.perf_counter() - start)
                )
        return {"auto": rates["auto"], "off": rates["off"]}

    def cached(self, ids: list[int]) -> dict[str, Any]:
        """Tokens that are computed for a prompt whose tokens but the last are in the cache."""
        self.loaded.flush_cache()
        self._generate([ids[:-1]], 1)
        usage = self._generate([ids], 1)[0].usage
        return {"computed": usage.computed_tokens, "cached": usage.cached_tokens}

    def logits(self, ids: list[int], out: str, chunk: int) -> dict[str, Any]:
        """Write the logits after every token, float32 ``[tokens, vocab]``, as a .npy file.

        The engine's own model computes them, in the engine's thread, `chunk` tokens at a time.
        """
        engine = self.loaded
        engine.flush_cache()
        runner = self._runner()

        def compute() -> None:
            shape = (len(ids), runner.vocab_size)
            rows = np.lib.format.open_memmap(out, "w+", np.float32, shape)
            for start in range(0, len(ids), chunk):
                part = ids[start : start + chunk]
                rows[start : start + len(part)] = runner.forward(_rows(runner, part, start))
            rows.flush()

        # No request runs and nothing is cached: every slot and the first table row are free.
        engine._loop.call(compute)
        return {"settings": {"dtype": engine.info.dtype}}

    def kv_bytes(self) -> int:
        """Resident bytes of the KV cache: what was ever written, whoever holds it now."""
        kv = self._runner().kv
        return sum(_resident(part) for part in (*kv.k, *kv.v))

    def _runner(self) -> ModelRunner:
        runner = self.loaded._loop._runner
        if not isinstance(runner, ModelRunner):
            raise RuntimeError("the engine does not run a model of its own")
        return runner

    def _timed(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        before = structs.replace(self.loaded.stats())  # a copy: the counters go on
        start = time.perf_counter()
        outputs = self._generate(prompts, new_tokens)
        seconds = time.perf_counter() - start
        after = self.loaded.stats()
        if any(len(out.token_ids) != new_tokens for out in outputs):
            raise RuntimeError("a generation was shorter than asked for")
        return {
            "seconds": seconds,
            "ids": [out.token_ids for out in outputs],
            **_step_times(before, after),
        }

    def _generate(self, prompts: list[list[int]], tokens: int) -> list[Output]:
        outputs = self.loaded.generate(
            input_ids=prompts,
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            speculation="off",  # a step a token: it is the steps that are compared
        )
        return _flat(outputs)


def _rows(runner: ModelRunner, ids: list[int], start: int) -> RaggedBatch:
    """A step that extends one sequence at `start`, all logits wanted; slots are positions."""
    positions = np.arange(start, start + len(ids))
    runner.slot_table[0, start : start + len(ids)] = positions
    return RaggedBatch(
        input_ids=np.array(ids, np.int64),
        positions=positions,
        write_slots=positions,
        q_lens=np.array([len(ids)]),
        kv_lens=np.array([start + len(ids)]),
        slot_table=runner.slot_table,
        table_rows=np.array([0]),
        output_rows=np.arange(len(ids)),
    )


def _resident(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's memory that are resident, by this process's own page map."""
    first = tensor.data_ptr() // PAGE
    pages = -(-(tensor.data_ptr() + tensor.nbytes) // PAGE) - first
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(first * 8)
        entries = np.frombuffer(file.read(pages * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * PAGE


def _flat(outputs: Any) -> list[Output]:
    if not isinstance(outputs, list) or not all(isinstance(out, Output) for out in outputs):
        raise RuntimeError("the engine gave no list of outputs")
    return outputs


def _step_times(before: EngineStats, after: EngineStats) -> dict[str, float]:
    names = ("steps", "step_time", "forward_time", "sample_time")
    return {name: getattr(after, name) - getattr(before, name) for name in names}
