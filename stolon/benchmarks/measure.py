"""One benchmark run of one model: every engine in a process of its own, measured in turns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stolon.benchmarks.bandwidth import bytes_per_token, measured_bandwidth
from stolon.benchmarks.machine import machine, usable_cores
from stolon.benchmarks.peers import Starter, check_peers
from stolon.benchmarks.process import Worker, reason
from stolon.benchmarks.quality import CONTEXT, CONTEXTS, measure_quality
from stolon.benchmarks.rows import Engines, Rows
from stolon.benchmarks.workload import (
    BATCHES,
    PREFILL_TOKENS,
    PROMPT_TOKENS,
    passage,
    token_prompts,
)
from stolon.errors import InternalError

__all__ = ["Plan", "machine", "measure", "usable_cores"]

Say = Callable[[str], None]

_TINY_PROGRAM = """\
@sl.function
def tiny(s):
    s += "The capital of France is" + sl.gen("city", max_tokens=1, temperature=0)

state = tiny.run(seed=1)
print(state["city"], flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure.

    Attributes:
        model: path of the model file; the peers get the same one, or its weights.
        peers: names of the engines to compare with.
        pythons: a Python that has the peer installed, by its name; default this one.
        threads: CPU threads of each engine.
        new_tokens: tokens generated per sequence.
        repeats: the best of this many counts.
        contexts: contexts of text that the quality is measured on.
    """

    model: Path
    peers: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    new_tokens: int = 64
    repeats: int = 3
    contexts: int = CONTEXTS

    @classmethod
    def quick(cls, **fields: Any) -> Plan:
        """A short run: fewer tokens, measured once. For a look, not for a claim."""
        return cls(new_tokens=16, repeats=1, contexts=1, **fields)


def measure(plan: Plan, say: Say) -> dict[str, Any]:
    """Run the plan; returns plain data: the machine, and what was measured for each engine.

    A peer that can't be had is under ``missing`` with the reason.
    """
    check_peers(plan.peers)
    engines: Engines = {}
    with tempfile.TemporaryDirectory(prefix="stolon-bench-") as name:
        folder = Path(name)
        _into_page_cache(plan.model)
        starter = Starter(plan.model, plan.threads, folder, plan.pythons)
        try:
            say("stolon: loading")
            ours, engines["stolon"] = starter.stolon()
            probe = token_prompts(_tokenizer(ours), 8, PROMPT_TOKENS)
            peers, missing = starter.all_peers(plan.peers, probe, engines, say)
            workers = [ours, *peers]
            bandwidth = _measure(plan, workers, engines, say)
            _quality(plan, starter, workers, engines, say)
        finally:
            starter.close_all()
        say("stolon: loading and cold start")
        mine = engines["stolon"]
        mine["load_seconds"] = min(
            mine["load_seconds"], *(_load_seconds(plan, folder) for _ in range(plan.repeats))
        )
        mine["cold_start_seconds"] = min(
            _cold_start(plan.model, folder) for _ in range(plan.repeats)
        )
    return {
        "machine": machine(),
        "bandwidth": bandwidth,
        "model": plan.model.name,
        "model_bytes": _bytes(plan.model),
        "bytes_per_token": bytes_per_token(plan.model),
        "prefill_tokens": PREFILL_TOKENS,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": plan.new_tokens,
        "repeats": plan.repeats,
        "engines": engines,
        "missing": missing,
    }


def _measure(plan: Plan, workers: list[Worker], engines: Engines, say: Say) -> float:
    """All rows; returns the bandwidth of memory beside the one that it limits."""
    rows = Rows(
        workers,
        engines,
        new_tokens=plan.new_tokens,
        repeats=plan.repeats,
        say=say,
        probe=lambda: measured_bandwidth(plan.threads),
    )
    rows.prefill_and_decode()
    for worker in workers:
        try:
            memory = worker.ask("memory")
        except InternalError as error:
            if worker is workers[0]:
                raise
            engines[worker.name]["memory"] = {"error": reason(error)}
            continue
        engines[worker.name]["rss_peak"] = memory["rss"]
        engines[worker.name]["kv_resident"] = memory["kv"]
    rows.shared()
    rows.agreement()
    ours = workers[0]
    say("cache and overhead")
    prompt = token_prompts(rows.tokenize, 1, PREFILL_TOKENS)[0]
    engines["stolon"]["cached_prompt"] = ours.ask("cached", ids=prompt)
    texts = [passage(i, 5) for i in range(max(BATCHES))]
    runs = [
        ours.ask("program", texts=texts, new_tokens=plan.new_tokens) for _ in range(plan.repeats)
    ]
    engines["stolon"]["program"] = min(runs, key=lambda run: run["seconds"] / run["engine_seconds"])
    return rows.bandwidth


def _quality(
    plan: Plan, starter: Starter, workers: list[Worker], engines: Engines, say: Say
) -> None:
    """Last, when the other engines and their memory are gone."""
    asked = [worker for worker in workers if worker.name in ("stolon", "llama.cpp")]
    for worker in workers:
        if worker not in asked:
            starter.close(worker)
    say("quality: loading the reference")
    exact, _ = starter.stolon(dtype="float32", kv_tokens=CONTEXT)
    found = measure_quality(
        exact,
        asked,
        _tokenizer(workers[0]),
        starter.folder,
        contexts=plan.contexts,
        say=say,
    )
    for name, divergence in found.items():
        engines[name]["quality"] = divergence


def _tokenizer(worker: Worker) -> Callable[[str], list[int]]:
    def tokenize(text: str) -> list[int]:
        ids: list[int] = worker.ask("tokenize", text=text)["ids"]
        return ids

    return tokenize


def _bytes(model: Path) -> int:
    files = [model] if model.is_file() else list(model.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files)


def _into_page_cache(model: Path) -> None:
    for file in [model] if model.is_file() else model.glob("*.safetensors"):
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass


def _load_seconds(plan: Plan, folder: Path) -> float:
    """Seconds for making an engine in a fresh process, imports excluded."""
    starter = Starter(plan.model, plan.threads, folder, {})
    try:
        seconds: float = starter.stolon()[1]["load_seconds"]
        return seconds
    finally:
        starter.close_all()


def _cold_start(model: Path, folder: Path) -> float:
    """Seconds from starting `stolon run` on a small program to its first token on stdout."""
    program = folder / "tiny.py"
    program.write_text(_TINY_PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "stolon.cli", "run", "--model", str(model), str(program)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        seconds = time.perf_counter() - start
        _, errors = process.communicate()
    if not first:
        raise InternalError(
            "`stolon run` wrote nothing", hint=errors.decode("utf-8", "replace").strip()[-200:]
        )
    return seconds
