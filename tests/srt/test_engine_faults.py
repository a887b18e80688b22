"""Faults, aborts and ends: each ends its own requests with one clear error; the engine goes on (P3, P4)."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.engines import QUICK, collect, hash_engine, sound_engine
from support.hash_model import HashRunner

from stolon.errors import (
    EngineClosed,
    GrammarError,
    InternalError,
    InvalidRequest,
    StolonError,
)
from stolon.kernels import RaggedBatch
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Event,
    Failed,
    Gen,
    GenResult,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Text,
    Tokens,
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with sound_engine() as engine:
        yield engine


def test_a_fault_in_a_step_fails_what_ran_and_nothing_after() -> None:
    runner = HashRunner(num_slots=256, context=128)

    def explode(batch: RaggedBatch) -> None:
        raise RuntimeError("secret detail")

    with hash_engine(runner=runner) as engine:
        good = engine.generate("hello", max_tokens=4, temperature=0.0, ignore_eos=True)
        runner.before_forward = explode
        with pytest.raises(InternalError) as caught:
            engine.generate("hello", max_tokens=4)
        assert "secret" not in str(caught.value)
        runner.before_forward = lambda batch: None
        engine.check_integrity()
        assert (
            engine.generate("hello", max_tokens=4, temperature=0.0, ignore_eos=True).token_ids
            == good.token_ids
        )


def test_broken_logits_fail_one_request_only() -> None:
    runner = HashRunner(num_slots=512, context=128)
    forward = runner.forward

    def poisoned(batch: RaggedBatch) -> Any:
        logits = forward(batch)
        rows = batch.output_rows.tolist()
        for output, row in enumerate(rows):
            if int(batch.input_ids[row]) == ord("!"):
                logits[output] = math.nan
        return logits

    runner.forward = poisoned  # type: ignore[method-assign]
    with hash_engine(runner=runner) as engine:
        results: dict[str, list[Event]] = {}
        requests = [Request(rid=t, segments=[Text(t), Gen(sampling=QUICK)]) for t in ("a", "b!")]
        for request in requests:
            results[request.rid] = collect(engine, request)
        assert isinstance(results["a"][-1], SampleDone)
        assert isinstance(results["b!"][-1], Failed)
        engine.check_integrity()


def test_abort_keeps_what_there_is() -> None:
    runner = HashRunner(num_slots=512, context=256)
    runner.before_forward = lambda batch: time.sleep(0.005)
    with hash_engine(runner=runner) as engine:
        events: list[Event] = []
        sampling = Sampling(max_tokens=200, ignore_eos=True)
        request = Request(
            rid="r", segments=[Text("hello"), Gen(sampling=sampling)], n=3, stream=True
        )
        engine.submit(request, events.append)
        wait_for(lambda: len(events) > 12)
        engine.abort("r")
        wait_for(lambda: sum(isinstance(e, SampleDone) for e in events) == 3)
        done = [e.result for e in events if isinstance(e, SegmentDone)]
        assert {r.finish.kind for r in done if isinstance(r, GenResult)} == {"abort"}
        assert all(0 < len(r.token_ids) < 200 for r in done if isinstance(r, GenResult))
        engine.check_integrity()
        assert engine.stats().running == 0
        engine.abort("r")
        engine.abort("never heard of")


def test_abort_before_it_ran() -> None:
    with hash_engine() as engine:
        events: list[Event] = []
        for index in range(30):
            request = Request(rid=str(index), segments=[Text("hello"), Gen(sampling=QUICK)])
            engine.submit(request, events.append)
            engine.abort(str(index))
        wait_for(lambda: sum(isinstance(event, SampleDone) for event in events) == 30)
        engine.check_integrity()


def test_close_fails_what_is_under_way() -> None:
    runner = HashRunner(num_slots=512, context=256)
    runner.before_forward = lambda batch: time.sleep(0.01)
    engine = hash_engine(runner=runner)
    events: list[Event] = []
    sampling = Sampling(max_tokens=200, ignore_eos=True)
    engine.submit(Request(rid="r", segments=[Text("hi"), Gen(sampling=sampling)]), events.append)
    time.sleep(0.05)
    engine.close()
    engine.close()
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error(), EngineClosed)
    with pytest.raises(EngineClosed):
        engine.generate("hello")


def test_a_rid_can_not_be_used_twice_while_it_is_prepared(engine: Engine) -> None:
    events = collect(engine, Request(rid="same", segments=[Tokens([1, 2]), Gen(sampling=QUICK)]))
    assert isinstance(events[-1], SampleDone)
    events = collect(engine, Request(rid="same", segments=[Tokens([1, 2]), Gen(sampling=QUICK)]))
    assert isinstance(events[-1], SampleDone)


def test_a_block_that_outgrows_the_context_fails_alone(engine: Engine) -> None:
    long = Gen(sampling=Sampling(max_tokens=100, ignore_eos=True))
    request = Request(rid="s", segments=[Text("go "), long, Text("y" * 90), long])
    events = collect(engine, request)
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "context_length_exceeded"
    assert any(isinstance(event, SegmentDone) for event in events)


def wait_for(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    limit = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError
        time.sleep(0.002)


def test_every_error_is_of_the_tree() -> None:
    assert issubclass(GrammarError, InvalidRequest)
    assert issubclass(InvalidRequest, StolonError)


def test_an_engine_that_is_dropped_ends_its_threads() -> None:
    before = threading.active_count()
    engine = hash_engine()
    engine.generate("hello", max_tokens=2)
    assert threading.active_count() > before
    del engine
    gc.collect()
    assert threading.active_count() <= before


def test_a_fault_does_not_reach_a_request_that_is_finished() -> None:
    runner = HashRunner(num_slots=256, context=128)
    finished = threading.Event()
    events: list[Event] = []

    def fail(batch: RaggedBatch) -> None:
        if finished.is_set():
            runner.before_forward = lambda batch: None
            raise RuntimeError("broken")

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, SampleDone):
            finished.set()
            runner.before_forward = fail

    with hash_engine(runner=runner) as engine:
        long = Sampling(max_tokens=100, temperature=0.0, ignore_eos=True)
        failed = threading.Event()
        engine.submit(
            Request(rid="long", segments=[Text("ab"), Gen(sampling=long)], n=8),
            lambda event: failed.set() if isinstance(event, Failed) else None,
        )
        engine.submit(Request(rid="quick", segments=[Text("cd"), Gen(sampling=QUICK)]), on_event)
        assert failed.wait(30)
        assert isinstance(events[-1], SampleDone)
        # And its id is free again.
        again = collect(engine, Request(rid="quick", segments=[Text("c"), Gen(sampling=QUICK)]))
        assert isinstance(again[-1], SampleDone)
        engine.check_integrity()


def test_an_id_is_free_once_its_request_is_finished() -> None:
    """Also while another request has more samples than there are requests."""
    runner = HashRunner(num_slots=1024, context=512)
    with hash_engine(runner=runner) as engine:
        long = Sampling(max_tokens=400, temperature=0.0, ignore_eos=True)
        engine.submit(
            Request(rid="long", segments=[Text("ab"), Gen(sampling=long)], n=2), lambda event: None
        )
        for _ in range(3):
            quick = Request(rid="quick", segments=[Text("cd"), Gen(sampling=QUICK)])
            assert isinstance(collect(engine, quick)[-1], SampleDone)
        engine.abort("long")
