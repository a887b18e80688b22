"""What every worker runs: it loads one worker module and answers JSON lines (see process.py).

    python worker_main.py llama_cpp_worker

A worker module lies beside this file, imports nothing of Stolon where it drives a peer, and has a
class `Worker` whose methods are the questions. This file runs in the peer's Python, so it needs the
standard library only. A module that can't be imported is an answer too: the reason, to every
question.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def resident() -> int:
    """Resident memory of this process in bytes, without the files of shared libraries.

    How much of those is resident depends on what the system has read of them before, not on the engine.
    """
    kilobytes = 0
    library = False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            field, *rest = line.split()
            if not field.endswith(":"):  # the address, permissions, ..., path of a mapping
                library = re.search(r"\.so(\.|$)", rest[-1]) is not None
            elif field == "Rss:" and not library:
                kilobytes += int(rest[0])
    return kilobytes << 10


def beside(name: str) -> Any:
    """A module of this folder, or of one in it, by its path without ``.py``; loaded once."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Host:
    """A worker and what is measured of any worker alike: imports, loading, resident memory."""

    def __init__(self, name: str) -> None:
        self.worker: Any = None
        self.failure = ""
        self.name = name
        self.callers: dict[str, Any] = {}
        start = time.perf_counter()
        try:
            self.worker = beside(name).Worker()
        except Exception as error:
            traceback.print_exc()
            self.failure = f"{type(error).__name__}: {error}"
        self.import_seconds = time.perf_counter() - start
        self.rss_imported = resident()

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question; what goes wrong is an answer with `error`."""
        do = message.pop("do")
        try:
            if self.failure:
                return {"error": self.failure}
            if do == "memory":
                kv = self.worker.kv_bytes() if hasattr(self.worker, "kv_bytes") else None
                return {"rss": resident(), "kv": kv}
            if do == "load":
                return self._load(message)
            if do == "calls":
                return self._calls(**message)
            return dict(getattr(self.worker, do)(**message))
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}

    def _load(self, message: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        answer = dict(self.worker.load(**message))
        seconds = time.perf_counter() - start
        return {
            "load_seconds": seconds,
            "import_seconds": self.import_seconds,
            "rss_imported": self.rss_imported,
            "rss_loaded": resident(),
            **answer,
        }

    def _calls(self, program: str, variant: str = "", **arguments: Any) -> dict[str, Any]:
        """Run a program made of separate calls (programs/driver.py); without a program, the variants
        of the engine's settings that may be tried."""
        module = beside(self.name.replace("_worker", "_calls"))
        if not program:
            return {"variants": list(module.VARIANTS)}
        if variant not in self.callers:
            self.callers[variant] = module.Caller(self.worker, variant)
        caller = self.callers[variant]
        script = beside("programs/in_calls").SCRIPTS[program]
        answer = beside("programs/driver").run(caller, script, **arguments)
        return {**answer, "settings": caller.settings}

    def close(self) -> None:
        for closable in (*self.callers.values(), self.worker):
            if hasattr(closable, "close"):
                closable.close()


def main() -> None:
    # Whatever an engine prints goes to stderr; the answers get a stream of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # This folder's modules are not to be found under their bare names.
    sys.path.pop(0)
    host = Host(sys.argv[1])
    for line in sys.stdin:
        answers.write(json.dumps(host.answer(json.loads(line))) + "\n")
        answers.flush()
    host.close()


if __name__ == "__main__":
    main()
