"""Small engines for tests."""

from __future__ import annotations

import threading
from typing import Any

from support.byte_tokenizer import ByteTokenizer
from support.hash_model import HashRunner

from stolon.srt.engine import Engine
from stolon.srt.protocol import Event, Failed, Request, SampleDone


def hash_engine(**options: Any) -> Engine:
    """An engine over HashRunner; `step_tokens`, `speculation` and HashRunner's options."""
    step_tokens = options.pop("step_tokens", 512)
    speculation = options.pop("speculation", "auto")
    runner = options.pop("runner", None) or HashRunner(
        **{"num_slots": 1024, "context": 512, **options}
    )
    return Engine.from_runner(
        runner, ByteTokenizer(), step_tokens=step_tokens, speculation=speculation
    )


def collect(engine: Engine, request: Request, *, timeout: float = 30.0) -> list[Event]:
    """Submit a request and wait for all its events."""
    events: list[Event] = []
    done = threading.Event()
    missing = request.n

    def on_event(event: Event) -> None:
        nonlocal missing
        events.append(event)
        missing -= isinstance(event, SampleDone)
        if not missing or isinstance(event, Failed):
            done.set()

    engine.submit(request, on_event)
    if not done.wait(timeout):
        raise TimeoutError(f"no end of {request.rid}: {events}")
    return events
