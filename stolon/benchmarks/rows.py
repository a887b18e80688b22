"""The measures that every engine takes part in, one after the other in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stolon.benchmarks.process import Worker, reason
from stolon.benchmarks.workload import (
    BATCHES,
    PREFILL_TOKENS,
    PROMPT_TOKENS,
    SHARED_CONTEXT,
    SHARED_NEW_TOKENS,
    SHARED_TOKENS,
    shared_prompts,
    token_prompts,
)
from stolon.errors import InternalError

MAX_SECONDS = 25.0
"""An engine that has spent so long on a row is not asked again for it."""

Engines = dict[str, dict[str, Any]]


class Rows:
    """Runs rows on a list of workers, this engine's first, and collects the best of each.

    Args:
        engines: what is known of each engine, by the worker's name; a row adds its label there.
            A peer that fails in a row gets ``{"error": reason}``; this engine's failure is raised.
        probe: measures the memory's bandwidth, in bytes per second.

    Attributes:
        bandwidth: the fastest that memory was beside the decoding of one sequence, which it limits. On
            shared machines it is twice as fast in one second as in another, so each engine's turn at that row
            has its own: the mean of before and after.
    """

    def __init__(
        self,
        workers: list[Worker],
        engines: Engines,
        *,
        new_tokens: int,
        repeats: int,
        say: Callable[[str], None],
        probe: Callable[[], float],
    ) -> None:
        self.workers, self.engines = workers, engines
        self.new_tokens, self.repeats, self.say = new_tokens, repeats, say
        self.probe, self.bandwidth = probe, 0.0

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.workers[0].ask("tokenize", text=text)["ids"]
        return ids

    def prefill_and_decode(self) -> None:
        """A prompt of PREFILL_TOKENS; then BATCHES of prompts of PROMPT_TOKENS continued."""
        prompt = token_prompts(self.tokenize, 1, PREFILL_TOKENS)[0]
        prompts = token_prompts(self.tokenize, max(BATCHES), PROMPT_TOKENS)
        self._in_turns("prefill", "prefill", PREFILL_TOKENS, ids=prompt)
        for batch in BATCHES:
            self._in_turns(
                f"decode_{batch}",
                "decode",
                batch * self.new_tokens,
                beside=self._probe if batch == 1 else None,
                prompts=prompts[:batch],
                new_tokens=self.new_tokens,
            )

    def _probe(self) -> float:
        self.say("memory bandwidth")
        found = self.probe()
        self.bandwidth = max(self.bandwidth, found)
        return found

    def shared(self) -> None:
        """Long contexts that have most of their tokens in common. Workers repeat it themselves: it
        is the prompts that take long, and those stay computed."""
        room = self.engines[self.workers[0].name].get("context_length")
        tokens = min(self.new_tokens, SHARED_NEW_TOKENS)
        if room is not None and room < SHARED_CONTEXT + tokens:
            return
        prompts = shared_prompts(self.tokenize)
        self._in_turns(
            "shared",
            "shared",
            len(prompts) * tokens,
            once=True,
            prompts=prompts,
            shared=SHARED_TOKENS,
            new_tokens=tokens,
            repeats=self.repeats,
        )

    def agreement(self) -> None:
        """Replace the generated ids by the share of greedy tokens before an engine first differs
        from this one.

        Engines round differently, so long greedy texts part at some point; a share near zero would
        mean that one of them computes something else.
        """
        labels = {label for engine in self.engines.values() for label in engine}
        for label in labels:
            rows = {
                name: engine[label].pop("ids")
                for name, engine in self.engines.items()
                if isinstance(engine.get(label), dict) and "ids" in engine[label]
            }
            ours = rows.pop(self.workers[0].name, None)
            if ours is None:
                continue
            for name, theirs in rows.items():
                same = sum(_common(x, y) for x, y in zip(ours, theirs, strict=True))
                self.engines[name][label]["same_as_stolon"] = same / sum(map(len, ours))

    def _in_turns(
        self,
        label: str,
        do: str,
        tokens: int,
        *,
        once: bool = False,
        beside: Callable[[], float] | None = None,
        **arguments: Any,
    ) -> None:
        """Best time of each engine, as tokens per second under `label`; with the bandwidth of memory at that
        time, which `beside` measures between the turns."""
        spent = {worker.name: 0.0 for worker in self.workers}
        for repeat in range(1 if once else self.repeats):
            before = beside() if beside is not None else 0.0
            for worker in self.workers:
                engine = self.engines[worker.name]
                if spent[worker.name] > MAX_SECONDS or "error" in engine.get(label, {}):
                    continue
                self.say(f"{label}: {worker.name} {repeat + 1}/{self.repeats}")
                start = time.perf_counter()
                try:
                    answer = worker.ask(do, **arguments)
                except InternalError as error:
                    if worker is self.workers[0]:
                        raise
                    engine[label] = {"error": reason(error)}
                    continue
                spent[worker.name] += time.perf_counter() - start
                if answer["seconds"] <= 0:
                    raise InternalError(f"{worker.name}, {label}: no time went by")
                answer["tokens_per_second"] = tokens / answer["seconds"]
                if beside is not None:
                    after = beside()
                    answer["bandwidth"] = (before + after) / 2
                    before = after
                best = engine.get(label, {"seconds": float("inf")})
                if answer["seconds"] < best["seconds"]:
                    engine[label] = answer


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
