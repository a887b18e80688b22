"""What the HTTP process still waits for from the engine process: the engine, its events, its answers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future

from stolon.errors import EngineClosed, InvalidRequest, StolonError, error_from_code
from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.protocol import Event, Failed, Request, SampleDone
from stolon.srt.server import ipc


class _Open:
    """A request in flight: where its events go, and how many samples are still to end."""

    __slots__ = ("on_event", "samples")

    def __init__(self, on_event: Callable[[Event], None], samples: int) -> None:
        self.on_event = on_event
        self.samples = samples


class InFlight:
    """Requests and calls that are under way, each of which ends once. Thread-safe.

    Attributes:
        ready: set when the engine is, or with its error if it could not start.
    """

    def __init__(self) -> None:
        self.ready: Future[ModelInfo] = Future()
        self._open: dict[str, _Open] = {}
        self._calls: dict[int, Future[EngineStats | None]] = {}
        self._call_ids = itertools.count()
        self._lock = threading.Lock()  # guards the two tables, `_dead`, setting `ready`
        self._dead: StolonError | None = None

    def add_request(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Raises EngineClosed after `fail`, InvalidRequest if the id is in use."""
        with self._lock:
            self._check_alive()
            if request.rid in self._open:
                raise InvalidRequest(f"request id {request.rid!r} is in use", param="rid")
            self._open[request.rid] = _Open(on_event, request.n)

    def has_request(self, rid: str) -> bool:
        """Whether events of this request may still come."""
        with self._lock:
            return rid in self._open and self._dead is None

    def add_call(self) -> tuple[int, Future[EngineStats | None]]:
        """The number of a new call, and its answer. Raises EngineClosed after `fail`."""
        call = next(self._call_ids)
        answer: Future[EngineStats | None] = Future()
        with self._lock:
            self._check_alive()
            self._calls[call] = answer
        return call, answer

    def drop_call(self, call: int) -> None:
        """Nobody waits for this call any more."""
        with self._lock:
            self._calls.pop(call, None)

    def take(self, report: ipc.Report) -> None:
        """Hand what the engine process says to whoever waits for it."""
        match report:
            case ipc.Events(events):
                for event in events:
                    self._deliver(event)
            case ipc.Ready(info):
                with self._lock:
                    if not self.ready.done():  # closed meanwhile
                        self.ready.set_result(info)
            case ipc.Stats(call, stats):
                self._answer(call, stats)
            case ipc.Flushed(call):
                self._answer(call, None)
            case ipc.CallFailed(call, code, message):
                self._answer(call, error_from_code(code, message))
            case ipc.Dead(code, message, where, hint):
                self.fail(error_from_code(code, message, where=where, hint=hint))

    def fail(self, error: StolonError) -> None:
        """Fail everything in flight, and what comes later. The first error stays."""
        with self._lock:
            if self._dead is None:
                self._dead = error if isinstance(error, EngineClosed) else EngineClosed(str(error))
            requests, self._open = self._open, {}
            calls, self._calls = self._calls, {}
            dead = self._dead
            if not self.ready.done():
                self.ready.set_exception(error)
        for answer in calls.values():
            answer.set_exception(dead)
        for rid, entry in requests.items():
            entry.on_event(Failed.of(rid, dead))

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead

    def _deliver(self, event: Event) -> None:
        with self._lock:
            entry = self._open.get(event.rid)
            if entry is None:
                return
            if isinstance(event, SampleDone):
                entry.samples -= 1
            if isinstance(event, Failed) or entry.samples == 0:
                del self._open[event.rid]
        entry.on_event(event)

    def _answer(self, call: int, outcome: EngineStats | StolonError | None) -> None:
        with self._lock:
            answer = self._calls.pop(call, None)
        if answer is None:
            return
        if isinstance(outcome, StolonError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
