"""A worker process that is asked in JSON lines. Each engine is measured in a process of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from stolon.errors import InternalError, InvalidRequest, StolonError


class Worker:
    """A running worker. `ask` sends one JSON line and waits for the line that answers it.

    Raises InvalidRequest if the command can't be run.

    Attributes:
        name: of the engine.
        started: `time.perf_counter` of its start.
    """

    def __init__(self, name: str, command: Sequence[str], *, log: Path) -> None:
        self.name = name
        self._log_path = log
        self._log: IO[bytes] = log.open("wb")
        self.started = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._log.close()
            raise InvalidRequest(f"{name}: {command[0]} can't be run: {error.strerror}") from error

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One question and its answer. Raises InternalError if the worker fails or is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            raise InternalError(
                f"the {self.name} worker ended {_how(self._process.returncode)} while it did {do!r}",
                hint=self._last_words(),
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise InternalError(f"{self.name}, {do}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the worker: its input ends, and if that is not enough it is killed."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        self._log.flush()
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


def _how(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    known = {int(one): one.name for one in signal.Signals}
    return f"by {known.get(-status, f'signal {-status}')}"


def reason(error: StolonError) -> str:
    """Why there is no number, in one line."""
    return " ".join(str(error).split())
