"""Every request counts once when it is submitted and once when it is over, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.engines import collect, hash_engine

from stolon.errors import StolonError
from stolon.srt import intake
from stolon.srt.client import EngineStats
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Delta,
    Event,
    Failed,
    Gen,
    GrammarSpec,
    Request,
    Sampling,
    Text,
    Tokens,
)
from stolon.srt.server.metrics import Metrics

Counts = tuple[int, int, int, int]


def request(rid: str, *segments: Any, **options: Any) -> Request:
    return Request(rid=rid, segments=list(segments), **options)


def gen(**options: Any) -> Gen:
    fields = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True} | options.pop("sampling", {})
    return Gen(sampling=Sampling(**fields), **options)


def counts(engine: Engine) -> Counts:
    stats = engine.stats()
    return stats.requests, stats.finished, stats.failed, stats.aborted


def finished(engine: Engine) -> None:
    collect(engine, request("a", Text("b"), gen(), n=3))


def refused_by_validation(engine: Engine) -> None:
    refusal(engine, request("a", Text("b"), gen(sampling={"top_p": 7.0})))


def refused_quickly(engine: Engine) -> None:
    refusal(engine, request("a", Tokens([1]), gen(), n=1000))


def refused_for_its_length(engine: Engine) -> None:
    refusal(engine, request("a", Text("b" * 513), gen()))


def refused_for_a_later_length(engine: Engine) -> None:
    sampling = {"max_tokens": None}
    refusal(engine, request("a", Text("b"), gen(sampling=sampling), Text("b"), n=2))


def refused_for_its_grammar(engine: Engine) -> None:
    grammar = GrammarSpec(kind="json_schema", text='{"enum": []}')
    refusal(engine, request("a", Text("b"), gen(grammar=grammar), n=2))


def refused_by_a_full_queue(engine: Engine) -> None:
    most = intake.MAX_QUEUE
    intake.MAX_QUEUE = 0
    try:
        refusal(engine, request("a", Text("b"), gen()))
    finally:
        intake.MAX_QUEUE = most


def failed(engine: Engine) -> None:
    def fault() -> None:
        raise RuntimeError("broken")

    runner: Any = engine._loop._runner
    runner.before_forward = fault
    refusal(engine, request("a", Text("b"), gen(), n=2))


def aborted(engine: Engine) -> None:
    events: list[Event] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Delta) and not events:
            engine._loop.abort("a")  # it is the loop's thread
        events.append(event)

    wanted = request("a", Text("b"), gen(sampling={"max_tokens": 400}), n=3, stream=True)
    engine.submit(wanted, on_event)
    while engine.stats().aborted + engine.stats().finished == 0:
        pass


def aborted_before_it_began(engine: Engine) -> None:
    admission: Any = engine._intake._admission
    prepare = admission.prepare

    def aborting(*given: Any) -> Any:
        engine.abort("a")
        return prepare(*given)

    admission.prepare = aborting
    collect(engine, request("a", Text("b"), gen(sampling={"max_tokens": 400}), n=3))


def refusal(engine: Engine, wanted: Request) -> None:
    assert isinstance(collect(engine, wanted)[-1], Failed)


ENDS: list[tuple[Callable[[Engine], None], Counts]] = [
    (finished, (1, 1, 0, 0)),
    (refused_by_validation, (1, 0, 1, 0)),
    (refused_quickly, (1, 0, 1, 0)),
    (refused_for_its_length, (1, 0, 1, 0)),
    (refused_for_a_later_length, (1, 0, 1, 0)),
    (refused_for_its_grammar, (1, 0, 1, 0)),
    (refused_by_a_full_queue, (1, 0, 1, 0)),
    (failed, (1, 0, 1, 0)),
    (aborted, (1, 0, 0, 1)),
    (aborted_before_it_began, (1, 0, 0, 1)),
]


@pytest.mark.parametrize(("end", "expected"), ENDS, ids=[end.__name__ for end, _ in ENDS])
def test_a_request_counts_once_however_it_ends(
    end: Callable[[Engine], None], expected: Counts
) -> None:
    with hash_engine(num_slots=1024, context=512) as engine:
        end(engine)
        assert counts(engine) == expected


def test_requests_that_a_closed_engine_cuts_off_failed() -> None:
    engine = hash_engine(num_slots=1024, context=512)
    ended: list[Event] = []
    sampling = {"max_tokens": 500}
    engine.submit(request("a", Text("b"), gen(sampling=sampling), n=2), ended.append)
    engine.close()
    with pytest.raises(StolonError):
        engine.submit(request("b", Text("b"), gen()), ended.append)  # raised: not submitted
    stats = engine.stats()
    assert stats.requests == stats.finished + stats.failed == 1


def test_the_metrics_are_the_same_counters() -> None:
    stats = EngineStats(requests=10, finished=5, failed=3, aborted=2)
    text = Metrics().render(stats).decode()
    for name, value in (("", 10), ("finished_", 5), ("failed_", 3), ("aborted_", 2)):
        assert f"stolon_engine_{name}requests_total {value}.0\n" in text
