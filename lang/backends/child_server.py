"""A `stolon serve` that belongs to this process: started, listened to, and stopped with it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from stolon.errors import EngineError
from stolon.lang.backends.http_options import checked_key

_READY = re.compile(r"serving .* at (http://\S+?)/v1\b")
_LINES_KEPT = 50
_LINE_CHARS = 1000
_STOP_SECONDS = 15.0


class ChildServer:
    """The process. It also ends when this one does, however that happens: its standard input closes.

    Attributes:
        url: where it serves.
    """

    def __init__(
        self, arguments: Sequence[str], *, api_key: str | None, timeout: float, show_log: bool
    ) -> None:
        """Start it and wait until it serves.

        Raises EngineError with its last words if it ends or does not serve within `timeout` seconds.
        """
        command = [sys.executable, "-m", "stolon.cli", "serve", "--stop-at-eof", *arguments]
        self.url = ""
        self._show = show_log
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._said = threading.Event()  # its address, or that it has ended
        with _key_file(api_key) as options:
            # A session of its own: Ctrl-C is for the program, which then stops the server.
            self.process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._stop = weakref.finalize(self, _end, self.process, os.getpid())
            self._reader = threading.Thread(
                target=_read, args=(self.process, weakref.ref(self)), daemon=True
            )
            self._reader.start()
            try:
                in_time = self._said.wait(timeout)
            except BaseException:
                self.stop()
                raise
        if not self.url:
            self.stop()
            raise EngineError(
                "the server ended before it served"
                if in_time
                else f"no server after {timeout:g} s",
                hint="it said: " + " | ".join(self._lines) if self._lines else None,
            )

    def stop(self) -> None:
        """Have it finish what runs, within its drain time, and wait for its end. Idempotent."""
        self._stop()

    def hear(self, line: str) -> None:
        """A line of its output."""
        self._lines.append(line)
        if self._show:
            print(line, file=sys.stderr)
        if not self.url and (ready := _READY.search(line)):
            self.url = ready[1]
            self._said.set()

    def hear_end(self) -> None:
        self._said.set()


def _read(process: subprocess.Popen[bytes], owner: weakref.ref[ChildServer]) -> None:
    """Keep the pipe empty for as long as the process lives, whether or not anyone listens."""
    assert process.stdout is not None
    with process.stdout as output:
        while line := output.readline(_LINE_CHARS):
            if (server := owner()) is not None:
                server.hear(line.decode("utf-8", "replace").rstrip())
            del server
    if (server := owner()) is not None:
        server.hear_end()


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a copy made by fork: the server is not its own
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.terminate()
    for seconds in (_STOP_SECONDS, None):
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            process.kill()


@contextlib.contextmanager
def _key_file(api_key: str | None) -> Iterator[list[str]]:
    """Options that give the key without showing it in a list of processes."""
    if api_key is None:
        yield []
        return
    checked_key(api_key)
    handle, name = tempfile.mkstemp(prefix="stolon-key-")
    try:
        os.write(handle, api_key.encode())
        os.close(handle)
        yield ["--api-key-file", name]
    finally:
        Path(name).unlink()
