"""Stolon's side of the benchmark: a process that answers JSON lines (see process.py)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from msgspec import structs

import stolon as sl
from stolon.srt.client import EngineStats
from stolon.srt.generate import Output


class Bench:
    """Answers the messages of one benchmark run."""

    def __init__(self) -> None:
        self.engine: sl.Engine | None = None

    @property
    def loaded(self) -> sl.Engine:
        if self.engine is None:
            raise RuntimeError("no model is loaded")
        return self.engine

    def load(self, path: str, threads: int, **options: Any) -> dict[str, Any]:
        self.engine = sl.Engine(path, threads=threads, **options)
        info = self.engine.info
        return {
            "engine": "stolon",
            "version": sl.__version__,
            "parameters": info.parameters,
            "settings": {"threads": threads, "dtype": info.dtype, "kv_slots": info.kv_slots},
        }

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

    def cached(self, ids: list[int]) -> dict[str, Any]:
        """Tokens that are computed for a prompt whose tokens but the last are in the cache."""
        self.loaded.flush_cache()
        self._generate([ids[:-1]], 1)
        usage = self._generate([ids], 1)[0].usage
        return {"computed": usage.computed_tokens, "cached": usage.cached_tokens}

    def memory(self) -> dict[str, Any]:
        with open("/proc/self/statm", encoding="ascii") as file:
            rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        kv = self.loaded.stats().kv_used * self.loaded.info.kv_token_bytes
        return {"rss": rss, "kv": kv}

    def _generate(self, prompts: list[list[int]], tokens: int) -> list[Output]:
        outputs = self.loaded.generate(
            input_ids=prompts, max_tokens=tokens, temperature=0, ignore_eos=True
        )
        return _flat(outputs)


def _flat(outputs: Any) -> list[Output]:
    if not isinstance(outputs, list) or not all(isinstance(out, Output) for out in outputs):
        raise RuntimeError("the engine gave no list of outputs")
    return outputs


def _step_times(before: EngineStats, after: EngineStats) -> dict[str, float]:
    names = ("steps", "step_time", "forward_time", "sample_time")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def main() -> None:
    # Whatever is printed goes to stderr; the answers get a stream of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    bench = Bench()
    handlers: dict[str, Callable[..., dict[str, Any]]] = {
        "load": bench.load,
        "tokenize": bench.tokenize,
        "prefill": bench.prefill,
        "decode": bench.decode,
        "program": bench.program,
        "cached": bench.cached,
        "memory": bench.memory,
    }
    for line in sys.stdin:
        message = json.loads(line)
        try:
            answer = handlers[message.pop("do")](**message)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if bench.engine is not None:
        bench.engine.close()


if __name__ == "__main__":
    main()
