"""Bad requests and options: each is refused by name, and the engine goes on (P2)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engines import QUICK, collect, sound_engine
from support.gguf_files import random_weights, tiny_config, write_gguf_model

from stolon.errors import (
    ContextLengthExceeded,
    GrammarError,
    InvalidRequest,
    ModelFileError,
    ModelNotFound,
)
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Failed,
    Gen,
    GrammarSpec,
    LogprobSpec,
    PromptLogprobs,
    Request,
    Select,
    Text,
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with sound_engine() as engine:
        yield engine


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
