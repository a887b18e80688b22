"""Small engines for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.byte_tokenizer import ByteTokenizer
from support.hash_model import HashRunner

from stolon.srt.engine import Engine
from stolon.srt.protocol import Event, Failed, Request, SampleDone, Sampling

QUICK = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)


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


@contextmanager
def sound_engine() -> Iterator[Engine]:
    """A small engine that is whole and still generates when the block ends."""
    with hash_engine(num_slots=256, context=128) as engine:
        yield engine
        engine.check_integrity()
        assert engine.generate("still here", max_tokens=2, ignore_eos=True).token_ids
        engine.check_integrity()


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
