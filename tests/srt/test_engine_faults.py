"""Bad requests and faults: each ends its own request with one clear error; the engine goes on (P2–P4)."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engines import collect, hash_engine
from support.gguf_files import random_weights, tiny_config, write_gguf_model
from support.hash_model import HashRunner

from stolon.errors import (
    ContextLengthExceeded,
    EngineClosed,
    GrammarError,
    InternalError,
    InvalidRequest,
    ModelFileError,
    ModelNotFound,
    StolonError,
)
from stolon.kernels import RaggedBatch
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Event,
    Failed,
    Gen,
    GenResult,
    GrammarSpec,
    LogprobSpec,
    PromptLogprobs,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Select,
    Text,
    Tokens,
)

QUICK = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with hash_engine(num_slots=256, context=128) as engine:
        yield engine
        engine.check_integrity()
        assert engine.generate("still here", max_tokens=2, ignore_eos=True).token_ids
        engine.check_integrity()


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": math.inf}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2.0}, "min_p"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"min_tokens": 5, "regex": "a{2,4}"}, "min_tokens"),
    ({"min_tokens": 9, "json_schema": {"type": "boolean"}}, "min_tokens"),
    ({"prompt_logprobs": 99}, "prompt_logprobs"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-40}, "repetition_penalty"),
    ({"repetition_penalty": 101.0}, "repetition_penalty"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["x"] * 100}, "stop"),
    ({"stop_token_ids": [99_999]}, "stop_token_ids"),
    ({"logit_bias": {99_999: 1.0}}, "logit_bias"),
    ({"logit_bias": {5: math.nan}}, "logit_bias"),
    ({"logit_bias": {5: -math.inf}}, "logit_bias"),
    ({"logit_bias": {5: 1e39}}, "logit_bias"),
    ({"stop_regex": "("}, "stop_regex"),
    ({"stop_regex": "a*"}, "stop_regex"),
    ({"stop_regex": r"\bword\b"}, "stop_regex"),
    ({"n": 0}, "n"),
    ({"n": 100_000}, "n"),
    ({"n": 1.5}, "n"),
    ({"top_logprobs_num": 3, "return_logprob": False}, "top_logprobs_num"),
    ({"return_logprob": True, "top_logprobs_num": 10_000}, "top_logprobs"),
    ({"temprature": 1.0}, "temprature"),
    ({"regex": "a", "json_schema": {}}, "json_schema"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"stop": [3]}, "stop"),
    ({"stop": 3}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop": "\ud800"}, "stop"),
    ({"stop_regex": 1.5}, "stop_regex"),
    ({"stop_token_ids": 3}, "stop_token_ids"),
    ({"stop_token_ids": b"x"}, "stop_token_ids"),
    ({"max_tokens": "\ud800"}, "max_tokens"),
    ({"max_tokens": object()}, "max_tokens"),
    ({"temperature": b"x"}, "temperature"),
    ({"jump_forward": "never"}, "jump_forward"),
    ({"regex": 5}, "regex"),
    ({"regex": ["a"]}, "regex"),
    ({"ebnf": b"root"}, "ebnf"),
    ({"lark": {}}, "lark"),
    ({"json_schema": {"const": object()}}, "json_schema"),
    ({"structural_tag": {1, 2}}, "structural_tag"),
    ({"choices": "abc"}, "choices"),
    ({"choices": {"a": 1}}, "choices"),
    ({"choices": 3}, "choices"),
    ({"regex": "a", "after": 5}, "after"),
    ({"regex": "a", "after": "\ud800"}, "after"),
    ({"regex": "a", "after": "x" * 5000}, "after"),
    ({"return_logprob": "yes"}, "return_logprob"),
    ({"return_logprob": True, "logprob_mode": "sampled"}, "logprob_mode"),
    ({"logprob_mode": "tempered"}, "logprob_mode"),
    ({"return_logprob": True, "top_logprobs_num": 1.5}, "top_logprobs_num"),
    ({"prompt_logprobs": "x"}, "prompt_logprobs"),
    ({"prompt_logprobs": True}, "prompt_logprobs"),
    ({"salt": [1]}, "salt"),
]


@pytest.mark.parametrize(("options", "param"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_a_bad_option_is_named(engine: Engine, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate("hello", **options)
    assert caught.value.param == param
    assert caught.value.message


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-5, 100.0])
def test_the_ends_of_every_range_leave_logits_finite(engine: Engine, temperature: float) -> None:
    for end, penalty in ((1e6, 0.01), (-1e6, 100.0)):
        extremes: dict[str, Any] = {
            "logit_bias": dict.fromkeys(range(200), end),
            "repetition_penalty": penalty,
            "presence_penalty": math.copysign(10.0, end),
            "frequency_penalty": math.copysign(10.0, end),
        }
        out = engine.generate("hello", max_tokens=8, seed=1, temperature=temperature, **extremes)
        assert out.token_ids


def test_none_is_the_default_of_every_option(engine: Engine) -> None:
    names = ("regex", "json_schema", "choices", "ebnf", "lark", "structural_tag", "after", "stop")
    more = ("stop_token_ids", "stop_regex", "return_logprob", "top_logprobs_num", "logprob_mode")
    options: dict[str, Any] = dict.fromkeys((*names, *more, "prompt_logprobs", "salt"))
    plain = engine.generate("hello", max_tokens=8, seed=1)
    assert engine.generate("hello", max_tokens=8, seed=1, **options).text == plain.text
    options["regex"] = "[0-9]{3}"
    assert engine.generate("hello", max_tokens=8, seed=1, **options).text.isdigit()


WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"salt": [1]}, "salt"),
    ({"salt": b"x"}, "salt"),
    ({"n": 1.0}, "n"),
    ({"priority": "high"}, "priority"),
    ({"prompt_logprobs": PromptLogprobs(start="x")}, "prompt_logprobs"),  # type: ignore[arg-type]
    ({"segments": [Text(5), Gen()]}, "text"),  # type: ignore[arg-type]
    ({"segments": [Text("a"), Gen(grammar=GrammarSpec(kind="nope"))]}, "grammar"),  # type: ignore[arg-type]
    ({"segments": [Text("a"), Gen(logprobs=LogprobSpec(mode="x"))]}, "logprobs"),  # type: ignore[arg-type]
    ({"segments": [Text("a"), Select(choices=("a",), seed="x")]}, "seed"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("fields", "param"), WRONG_TYPES, ids=lambda value: str(value)[:40])
def test_a_request_of_wrong_types_fails_alone(
    engine: Engine, fields: dict[str, Any], param: str
) -> None:
    whole: dict[str, Any] = {"rid": "r", "segments": [Text("a"), Gen(sampling=QUICK)]}
    (failed,) = collect(engine, Request(**{**whole, **fields}))
    assert isinstance(failed, Failed)
    error = failed.error()
    assert isinstance(error, InvalidRequest), error
    assert error.param == param


def test_prompts_that_do_not_fit(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        engine.generate("")
    with pytest.raises(InvalidRequest, match="empty"):
        engine.generate(input_ids=[])
    with pytest.raises(ContextLengthExceeded, match="200 tokens"):
        engine.generate("x" * 200)
    with pytest.raises(ContextLengthExceeded, match="characters"):
        engine.generate("x" * 5_000_000)
    with pytest.raises(InvalidRequest, match="vocabulary"):
        engine.generate(input_ids=[1, 2, 288])
    with pytest.raises(InvalidRequest, match="vocabulary"):
        engine.generate(input_ids=[-1])
    with pytest.raises(InvalidRequest):
        engine.generate("a", input_ids=[1])
    with pytest.raises(InvalidRequest):
        engine.generate()


def test_max_tokens_is_clamped_to_the_context(engine: Engine) -> None:
    output = engine.generate("x" * 100, max_tokens=1000, ignore_eos=True)
    assert len(output.token_ids) == 28
    assert output.finish.kind == "length"


def test_max_tokens_zero_prefills_and_generates_nothing(engine: Engine) -> None:
    output = engine.generate("some words to cache", max_tokens=0)
    assert output.token_ids == []
    assert output.text == ""
    assert output.finish.kind == "length"
    again = engine.generate("some words to cache", max_tokens=1)
    assert again.usage.computed_tokens == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"prompt": 5},
        {"prompt": ["a", 5]},
        {"prompt": b"bytes"},
        {"input_ids": "abc"},
        {"input_ids": [1.5]},
        {"input_ids": [[1], 2]},
        {"input_ids": 3},
        {"prompt": ["a"], "input_ids": [1]},
    ],
    ids=str,
)
def test_prompts_of_a_wrong_type(engine: Engine, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(max_tokens=1, **arguments)
    assert caught.value.param in ("prompt", "input_ids")


def test_more_prompts_than_are_queued_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stolon.srt.engine.MAX_UNDER_WAY", 3)
    monkeypatch.setattr("stolon.srt.intake.MAX_QUEUE", 3)
    prompts = [f"prompt {i}" for i in range(10)]
    outputs = engine.generate(prompts, max_tokens=2, temperature=0.0, ignore_eos=True)
    assert [len(output.token_ids) for output in outputs] == [2] * 10
    again = asyncio.run(engine.agenerate(prompts, max_tokens=2, temperature=0.0, ignore_eos=True))
    assert [output.token_ids for output in again] == [output.token_ids for output in outputs]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"kv_tokens": 0}, "kv_tokens"),
        ({"kv_tokens": 10**12}, "kv_tokens"),
        ({"context_length": 10**6}, "context_length"),
        ({"max_running": 10**6}, "max_running"),
        ({"threads": "two"}, "threads"),
        ({"dtype": "int3"}, "dtype"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
    ],
    ids=str,
)
def test_engine_options_out_of_range(tmp_path: Path, options: dict[str, Any], param: str) -> None:
    path = tmp_path / "tiny.gguf"
    config = tiny_config("llama")
    write_gguf_model(path, config, random_weights(config))
    with pytest.raises(InvalidRequest) as caught:
        Engine(**{"model": path, **options})
    assert caught.value.param == param


def test_models_that_are_not_there(tmp_path: Path) -> None:
    for missing in ("", "no-such-model", tmp_path / "none.gguf"):
        with pytest.raises(ModelNotFound):
            Engine(missing)
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError):
        Engine(tmp_path / "empty.gguf")
    with pytest.raises(ModelFileError):
        Engine(tmp_path)


def test_a_grammar_that_is_refused(engine: Engine) -> None:
    for bad in ({"regex": "("}, {"json_schema": {"type": "nonsense"}}, {"lark": "start: absent"}):
        with pytest.raises(GrammarError):
            engine.generate("hello", **bad)


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


@pytest.mark.parametrize(
    "select",
    [
        Select(choices=()),
        Select(choices=("a", "")),
        Select(choices=("a", "a")),
        Select(choices=("x" * 4000, "y")),
    ],
)
def test_bad_selects(engine: Engine, select: Select) -> None:
    events = collect(engine, Request(rid="s", segments=[Text("pick "), select]))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error(), InvalidRequest)


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
