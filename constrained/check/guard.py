"""Runs cases in a child process, so that one that hangs or crashes is counted and the rest go on."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import tempfile
import threading
from types import TracebackType

import msgspec

from stolon.constrained.check.cases import Case, Reply, Setup
from stolon.constrained.check.worker import READY
from stolon.errors import InternalError

__all__ = ["Guard"]

START_SECONDS = 120.0


class Guard:
    """One child at a time; a new one after each that had to be killed. A context manager.

    Args:
        command: starts a process that runs `serve`.
        setup: its first line.
        seconds: time for a case, start of the child apart.
    """

    def __init__(self, command: list[str], setup: Setup, *, seconds: float) -> None:
        self._command = command
        self._setup = msgspec.json.encode(setup) + b"\n"
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed on exit)

    def __enter__(self) -> Guard:
        try:
            self._start()
        except BaseException:
            self._errors.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()
        self._errors.close()

    def run(self, case: Case) -> Reply:
        """The reply of the child, or a fatal one."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(case) + b"\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self._seconds)
        except queue.Empty:
            self._kill()
            return Reply(fatal="timeout")
        except OSError:
            line = b""
        if not line:
            self._kill()
            return Reply(fatal="crash", refusal=self._last_words())
        return msgspec.json.decode(line, type=Reply)

    def _start(self) -> None:
        self._errors.seek(0)
        self._errors.truncate()
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._process = process
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lines = lines

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(b"")

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        try:
            assert process.stdin is not None
            process.stdin.write(self._setup)
            process.stdin.flush()
            line = lines.get(timeout=START_SECONDS)
        except (OSError, queue.Empty):
            line = b""
        if line.strip() != READY:
            self._kill()
            raise InternalError(f"the process that checks did not start: {self._last_words()}")

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if self._reader is not None:
            self._reader.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _last_words(self) -> str:
        """The end of what the child wrote to its standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no message"
