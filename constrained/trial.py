"""Costly specs are compiled in a child process first, so that a hang or a flood ends there."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time

import msgspec

from stolon.constrained.compile_cache import NotCached
from stolon.constrained.limits import CompileLimits
from stolon.constrained.spec import GrammarSpec
from stolon.errors import EngineClosed, GrammarError, InternalError, error_from_code

__all__ = ["READY", "Job", "Trial", "Verdict"]

log = logging.getLogger("stolon.constrained")

READY = b"ready"
START_SECONDS = 30.0
"""Until a new process must be ready; it imports what this process has imported already."""
MAX_REPLY = 64 << 20


class Job(msgspec.Struct):
    """What the process is to compile."""

    spec: GrammarSpec
    prefix: bytes = b""


class Verdict(msgspec.Struct, omit_defaults=True):
    """What came of it.

    Attributes:
        source: llguidance's form of the grammar, if it has one.
        refusal, where, hint, code: of the GrammarError, if it was refused.
        out_of_memory: it wanted more memory than it may have.
        fault: name of an exception that was not meant to happen.
        retiring: the process ends after this answer.
    """

    source: str | None = None
    refusal: str | None = None
    where: str | None = None
    hint: str | None = None
    code: str = GrammarError.code
    out_of_memory: bool = False
    fault: str | None = None
    retiring: bool = False


class Trial:
    """One child process, started when it is first needed and again after it died. Thread-safe.

    The child of a fork gets a process of its own.
    """

    def __init__(self, limits: CompileLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._closed = False

    def run(self, spec: GrammarSpec, prefix: bytes) -> str | None:
        """Compile a spec in the process. Returns llguidance's form of the grammar, if it has one.

        Raises:
            GrammarError: it is refused; it needs more memory than the limit, or crashes the process.
            NotCached: it took longer than the limits.
            InternalError: the process can't be started, or was killed by somebody else.
        """
        with self._lock:
            process = self._ready_process()
            deadline = time.monotonic() + self._limits.trial_wall
            try:
                _write(process, msgspec.json.encode(Job(spec, prefix)) + b"\n", deadline)
                verdict = msgspec.json.decode(_read_line(process, deadline), type=Verdict)
            except TimeoutError:
                self._discard()
                raise self._too_slow(spec) from None
            except OSError:
                raise self._death(spec) from None
            except BaseException:
                self._discard()
                raise
            if verdict.retiring:
                self._discard()
        if verdict.out_of_memory:
            raise self._too_big(spec)
        if verdict.fault is not None:
            raise InternalError(f"compiling the {spec.kind} failed ({verdict.fault})")
        if verdict.refusal is not None:
            raise error_from_code(
                verdict.code, verdict.refusal, where=verdict.where, hint=verdict.hint
            )
        return verdict.source

    def close(self) -> None:
        """End the process. Later calls of `run` raise EngineClosed."""
        self._closed = True
        process = self._process
        if process is not None and self._owner == os.getpid():
            # Without the lock: whoever waits for an answer is told by the end of the process.
            process.kill()
        with self._lock:
            self._discard()

    def after_fork(self) -> None:
        """In the child of a fork: the process belongs to the parent, and so may the lock's holder."""
        self._lock = threading.Lock()
        self._process = None
        self._owner = os.getpid()

    def _ready_process(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise EngineClosed("the grammar compiler is closed")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._discard()
        try:
            self._process = _start(self._limits)
            line = _read_line(self._process, time.monotonic() + START_SECONDS)
        except (OSError, TimeoutError) as error:
            self._discard()
            log.error("the process that tries costly grammars can't be started: %s", error)
            raise InternalError(
                "the process that tries costly grammars can't be started",
                hint="a shorter grammar is compiled without it",
            ) from None
        if line != READY:
            self._discard()
            raise InternalError("the process that tries costly grammars began with nonsense")
        return self._process

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _death(self, spec: GrammarSpec) -> GrammarError | InternalError | EngineClosed:
        """The process is gone: say why."""
        assert self._process is not None
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = 0
        self._discard()
        if self._closed:
            return EngineClosed("the grammar compiler was closed")
        if code == -signal.SIGPROF:
            return self._too_slow(spec)
        if code == -signal.SIGABRT:  # how Rust ends when it gets no memory
            return self._too_big(spec)
        if code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL):
            # A stack that gets no memory to grow into ends like this, too.
            return GrammarError(
                f"the {spec.kind} crashes the grammar engine, or takes more than "
                f"{self._limits.trial_bytes >> 20} MiB"
            )
        return InternalError("the process that tries costly grammars died", hint="try again")

    def _too_slow(self, spec: GrammarSpec) -> NotCached:
        return NotCached(
            f"compiling the {spec.kind} takes longer than {self._limits.trial_cpu:g} s",
            hint="simplify it: fewer alternatives, repetitions and combinations",
        )

    def _too_big(self, spec: GrammarSpec) -> GrammarError:
        return GrammarError(
            f"compiling the {spec.kind} takes more than {self._limits.trial_bytes >> 20} MiB",
            hint="simplify it: fewer alternatives, repetitions and combinations",
        )


def _start(limits: CompileLimits) -> subprocess.Popen[bytes]:
    """The modules are found where this process finds them, and never in the current folder by chance."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONSAFEPATH": "1",
        # Each thread of these would reserve address space, of which there is a limit.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
    }
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "stolon.constrained.worker",
            msgspec.json.encode(limits).decode(),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdin.fileno(), False)
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _write(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    assert process.stdin is not None
    fd = process.stdin.fileno()
    rest = memoryview(data)
    while rest:
        _wait(fd, select.POLLOUT, deadline)
        rest = rest[os.write(fd, rest[:65536]) :]


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """A line without its end. Raises OSError when the process is gone, TimeoutError when it is late."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    pieces: list[bytes] = []
    size = 0
    while True:
        _wait(fd, select.POLLIN, deadline)
        piece = os.read(fd, 1 << 20)
        size += len(piece)
        if not piece or size > MAX_REPLY:
            raise BrokenPipeError("no answer")
        pieces.append(piece)
        if piece.endswith(b"\n"):
            return b"".join(pieces)[:-1]


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError
