"""One benchmark run: the engines are measured in turns, so that they see the same machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stolon.benchmarks.process import Worker
from stolon.benchmarks.workload import (
    BATCHES,
    PREFILL_TOKENS,
    PROMPT_TOKENS,
    passage,
    token_prompts,
)
from stolon.errors import InternalError, InvalidRequest

_HERE = Path(__file__).parent

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
        model: path of the model file; the peer gets the same one.
        peer: name of the engine to compare with, or None.
        peer_python: a Python that has the peer installed.
        threads: CPU threads of each engine.
        new_tokens: tokens generated per sequence.
        repeats: the best of this many counts.
    """

    model: Path
    peer: str | None = None
    peer_python: str = sys.executable
    threads: int = 1
    new_tokens: int = 64
    repeats: int = 3

    @classmethod
    def quick(cls, **fields: Any) -> Plan:
        """A short run: fewer tokens, measured once. For a look, not for a claim."""
        return cls(new_tokens=16, repeats=1, **fields)


def measure(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the plan; returns plain data: the machine, and what was measured for each engine."""
    if plan.peer not in (None, "llama.cpp"):
        raise InvalidRequest(f"there is no peer {plan.peer!r}", param="peer", hint="llama.cpp")
    with tempfile.TemporaryDirectory(prefix="stolon-bench-") as folder:
        commands = {"stolon": [sys.executable, str(_HERE / "stolon_worker.py")]}
        if plan.peer:
            commands[plan.peer] = [plan.peer_python, str(_HERE / "llama_cpp_worker.py")]
        workers: list[Worker] = []
        try:
            for name, command in commands.items():
                workers.append(Worker(name, command, log=Path(folder) / f"{name}.log"))
            engines = _measure(plan, workers, say)
        finally:
            for worker in workers:
                worker.close()
        say("cold start")
        engines["stolon"]["cold_start_seconds"] = min(
            _cold_start(plan.model, Path(folder)) for _ in range(plan.repeats)
        )
    return {
        "machine": machine(),
        "model": plan.model.name,
        "prefill_tokens": PREFILL_TOKENS,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": plan.new_tokens,
        "repeats": plan.repeats,
        "engines": engines,
    }


def _measure(
    plan: Plan, workers: list[Worker], say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    engines: dict[str, dict[str, Any]] = {}
    for worker in workers:
        say(f"{worker.name}: loading")
        answer = worker.ask("load", path=str(plan.model), threads=plan.threads)
        answer["rss_loaded"] = worker.ask("memory")["rss"]
        engines[worker.name] = answer

    def tokenize(text: str) -> list[int]:
        ids: list[int] = workers[0].ask("tokenize", text=text)["ids"]
        return ids

    def in_turns(label: str, do: str, tokens: int, **arguments: Any) -> None:
        """Best time of each engine, as tokens per second under `label`."""
        best: dict[str, dict[str, Any]] = {}
        for repeat in range(plan.repeats):
            for worker in workers:
                say(f"{label}: {worker.name} {repeat + 1}/{plan.repeats}")
                answer = worker.ask(do, **arguments)
                if answer["seconds"] < best.get(worker.name, {"seconds": float("inf")})["seconds"]:
                    best[worker.name] = answer
        for name, answer in best.items():
            answer["tokens_per_second"] = tokens / answer["seconds"]
            engines[name][label] = answer

    prompt = token_prompts(tokenize, 1, PREFILL_TOKENS)[0]
    prompts = token_prompts(tokenize, max(BATCHES), PROMPT_TOKENS)
    in_turns("prefill", "prefill", PREFILL_TOKENS, ids=prompt)
    for batch in BATCHES:
        tokens = batch * plan.new_tokens
        in_turns(
            f"decode_{batch}", "decode", tokens, prompts=prompts[:batch], new_tokens=plan.new_tokens
        )
    _agreement(engines)
    for worker in workers:
        memory = worker.ask("memory")
        engines[worker.name]["rss_peak"] = memory["rss"]
        engines[worker.name]["kv_in_use"] = memory.get("kv")
    ours = workers[0]
    say("cache and overhead")
    engines["stolon"]["cached_prompt"] = ours.ask("cached", ids=prompt)
    texts = [passage(i, 5) for i in range(max(BATCHES))]
    runs = [
        ours.ask("program", texts=texts, new_tokens=plan.new_tokens) for _ in range(plan.repeats)
    ]
    engines["stolon"]["program"] = min(runs, key=lambda run: run["seconds"] / run["engine_seconds"])
    return engines


def _agreement(engines: dict[str, dict[str, Any]]) -> None:
    """Replace the generated ids by the share of greedy tokens before the first difference.

    Engines round differently, so long greedy texts part at some point; a share near zero would mean
    that one of them computes something else.
    """
    for batch in BATCHES:
        label = f"decode_{batch}"
        ids = {name: engine[label].pop("ids") for name, engine in engines.items()}
        if len(ids) == 2:
            a, b = ids.values()
            same = sum(_common(x, y) for x, y in zip(a, b, strict=True))
            share = same / sum(map(len, a))
            for engine in engines.values():
                engine[label]["same_as_peer"] = share


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


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


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "cores": usable_cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def usable_cores() -> int:
    """Physical cores that this process may use; hyper-threads of one count once, if known."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    cores = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text(encoding="ascii").strip() if siblings.exists() else str(cpu))
    return len(cores) or os.cpu_count() or 1
