"""One run of the eight programs: every engine in a process of its own, measured in turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stolon.benchmarks.machine import machine
from stolon.benchmarks.measure import Plan, Say
from stolon.benchmarks.peers import Starter, check_peers
from stolon.benchmarks.process import Worker, reason
from stolon.benchmarks.programs.constraints import CONSTRAINTS, asked, count_valid
from stolon.benchmarks.programs.inputs import ITEMS, inputs
from stolon.benchmarks.rows import MAX_SECONDS
from stolon.benchmarks.workload import PROMPT_TOKENS, token_prompts
from stolon.errors import InternalError

__all__ = ["ProgramsPlan", "measure_programs"]

LIMIT = 180.0
"""Seconds after which a batch is given up."""
ALONE = 2
"""How often one item alone is measured; the mean counts."""

Engines = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsPlan(Plan):
    """What to measure.

    Attributes:
        programs: names, in the order of the table.
        divisor: of the number of items in a batch.
    """

    programs: tuple[str, ...] = tuple(ITEMS)
    divisor: int = 1

    @classmethod
    def quick(cls, **fields: Any) -> ProgramsPlan:
        """A short run: smaller batches, measured once. For a look, not for a claim."""
        return cls(repeats=1, divisor=4, **fields)


def measure_programs(plan: ProgramsPlan, say: Say) -> dict[str, Any]:
    """Run the plan; returns plain data. A peer that can't be had is under ``missing`` with the reason."""
    check_peers(plan.peers)
    engines: Engines = {}
    with tempfile.TemporaryDirectory(prefix="stolon-bench-") as name:
        starter = Starter(plan.model, plan.threads, Path(name), plan.pythons)
        try:
            say("stolon: loading")
            ours, engines["stolon"] = starter.stolon()

            def tokenize(text: str) -> list[int]:
                ids: list[int] = ours.ask("tokenize", text=text)["ids"]
                return ids

            probe = token_prompts(tokenize, 8, PROMPT_TOKENS)
            peers, missing = starter.all_peers(plan.peers, probe, engines, say)
            for engine in engines.values():
                engine["programs"] = {}
            for program in plan.programs:
                _Program(plan, program, engines, say).measure([ours, *peers])
        finally:
            starter.close_all()
    return {
        "machine": machine(),
        "model": plan.model.name,
        "repeats": plan.repeats,
        "items": {program: ITEMS[program] // plan.divisor for program in plan.programs},
        "engines": engines,
        "missing": missing,
    }


class _Program:
    """One program on all engines: what they found goes to ``engines[...]["programs"]``."""

    def __init__(self, plan: ProgramsPlan, program: str, engines: Engines, say: Say) -> None:
        self.plan, self.program, self.engines, self.say = plan, program, engines, say
        self.items = ITEMS[program] // plan.divisor
        self._batch = 0
        self._variants: dict[str, str] = {}

    def measure(self, workers: list[Worker]) -> None:
        """Settings and warm-up, then the batch in turns, then single items."""
        spent = dict.fromkeys((worker.name for worker in workers), 0.0)
        for worker in workers:
            self._guarded(worker, self._warm_up)
        for repeat in range(self.plan.repeats):
            for worker in workers:
                if self._failed(worker) or spent[worker.name] > MAX_SECONDS:
                    continue
                self.say(f"{self.program}: {worker.name} {repeat + 1}/{self.plan.repeats}")
                start = time.perf_counter()
                self._guarded(worker, self._whole)
                spent[worker.name] += time.perf_counter() - start
        for worker in workers:
            if not self._failed(worker):
                self._guarded(worker, self._alone)
        rows = {name: engine["programs"][self.program] for name, engine in self.engines.items()}
        times = [
            f"{name} {row['seconds']:.2f} s" for name, row in rows.items() if "error" not in row
        ]
        self.say(f"{self.program}: {', '.join(times)}")

    def _warm_up(self, worker: Worker) -> None:
        """Choose the variant of the engine's settings that is fastest on a part of the batch."""
        self.say(f"{self.program}: {worker.name}, warm-up")
        variants = [""]
        if worker.name != "stolon":
            variants = worker.ask("calls", program="")["variants"]
        tried: dict[str, float] = {}
        for variant in variants:
            self._variants[worker.name] = variant
            self._ask(worker, 1)
            if len(variants) > 1:
                tried[variant] = self._ask(worker, max(2, self.items // 4))["seconds"]
        if tried:
            self._variants[worker.name] = min(tried, key=tried.__getitem__)

    def _whole(self, worker: Worker) -> None:
        rows = self.engines[worker.name]["programs"]
        row = self._ask(worker, self.items)
        counts = [count_valid(self.program, result) for result in row.pop("results")]
        row["valid"], row["constrained"] = (sum(column) for column in zip(*counts, strict=True))
        if row["seconds"] < rows.get(self.program, {"seconds": float("inf")})["seconds"]:
            rows[self.program] = row

    def _alone(self, worker: Worker) -> None:
        seconds = [self._ask(worker, 1)["seconds"] for _ in range(ALONE)]
        row = self.engines[worker.name]["programs"][self.program]
        row["alone_seconds"] = sum(seconds) / ALONE

    def _ask(self, worker: Worker, count: int) -> dict[str, Any]:
        """Run a batch of new items: nothing of them is in a cache."""
        self._batch += 1
        items = inputs(self.program, self._batch, count)
        if worker.name == "stolon":
            return worker.ask("run_program", program=self.program, items=items, seed=self._batch)
        return worker.ask(
            "calls",
            program=self.program,
            variant=self._variants[worker.name],
            items=items,
            constraints={name: asked(name) for name in CONSTRAINTS},
            limit=LIMIT,
        )

    def _guarded(self, worker: Worker, action: Callable[[Worker], None]) -> None:
        """A peer's failure is its row; this engine's is raised."""
        try:
            action(worker)
        except InternalError as error:
            if worker.name == "stolon":
                raise
            self.engines[worker.name]["programs"][self.program] = {"error": reason(error)}

    def _failed(self, worker: Worker) -> bool:
        return "error" in self.engines[worker.name]["programs"].get(self.program, {})
