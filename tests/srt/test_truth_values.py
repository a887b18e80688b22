"""True and False are no numbers: no token ids, and no values of integer options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import collect, hash_engine
from support.http_server import ask

from stolon.errors import InvalidRequest
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Failed,
    Gen,
    LogprobSpec,
    PromptLogprobs,
    Request,
    SampleDone,
    Sampling,
    Select,
    Tokens,
)
from stolon.srt.server import create_app

FEW = Gen(sampling=Sampling(max_tokens=1))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with hash_engine() as engine:
        yield engine


IDS: list[Any] = [
    [True],
    [5, False],
    [[5, True]],
    np.array([True]),
    [np.True_],
    torch.tensor([True]),
    [torch.tensor(False)],
]


@pytest.mark.parametrize("ids", IDS, ids=repr)
def test_token_ids(engine: Engine, ids: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(input_ids=ids, max_tokens=1)
    assert caught.value.param == "input_ids"


@pytest.mark.parametrize("ids", [np.array([5]), torch.tensor([5]), [np.int64(5)], (5,)], ids=repr)
def test_integers_of_other_libraries_are_token_ids(engine: Engine, ids: Any) -> None:
    assert engine.generate(input_ids=ids, max_tokens=1).prompt_token_ids == [5]


OPTIONS: list[tuple[str, Any]] = [
    ("n", True),
    ("seed", True),
    ("max_tokens", True),
    ("min_tokens", False),
    ("top_k", True),
    ("top_logprobs_num", True),
    ("top_logprobs_num", False),
    ("prompt_logprobs", False),
    ("temperature", True),
    ("stop_token_ids", [True]),
    ("stop_token_ids", False),
    ("stop", False),
    ("logit_bias", {True: 1.0}),
    ("logit_bias", {1: True}),
]


@pytest.mark.parametrize(("name", "value"), OPTIONS)
def test_options_of_generate(engine: Engine, name: str, value: Any) -> None:
    options: Any = {"max_tokens": 2, "return_logprob": True, name: value}
    with pytest.raises(InvalidRequest) as caught:
        engine.generate("a", **options)
    assert caught.value.param == name


@pytest.mark.parametrize(
    "name", ["kv_tokens", "context_length", "max_running", "step_tokens", "threads"]
)
def test_options_of_an_engine(name: str) -> None:
    options: Any = {name: True}
    with pytest.raises(InvalidRequest) as caught:
        Engine("a model that is not looked for", **options)
    assert caught.value.param == name


IN_A_MESSAGE: list[tuple[str, dict[str, Any]]] = [
    ("input_ids", {"segments": [Tokens([True]), FEW]}),
    ("input_ids", {"segments": [Tokens([1.0]), FEW]}),  # type: ignore[list-item]
    ("input_ids", {"segments": [Tokens(["a"]), FEW]}),  # type: ignore[list-item]
    ("input_ids", {"segments": [Tokens(np.array([1])), FEW]}),  # type: ignore[arg-type]
    ("n", {"n": True}),
    ("priority", {"priority": True}),
    ("prompt_logprobs", {"prompt_logprobs": PromptLogprobs(start=True)}),
    ("logprobs", {"segments": [Tokens([1]), Gen(logprobs=LogprobSpec(top=True))]}),
    ("seed", {"segments": [Tokens([1]), Select(choices=("a", "b"), seed=True)]}),
]


@pytest.mark.parametrize(("param", "fields"), IN_A_MESSAGE)
def test_messages_built_in_python(engine: Engine, param: str, fields: dict[str, Any]) -> None:
    steps = engine.stats().steps
    (failed,) = collect(engine, Request(**{"rid": "a", "segments": [Tokens([1]), FEW], **fields}))
    assert isinstance(failed, Failed)
    assert (failed.code, (failed.param or "").partition(".")[0]) == ("invalid_request", param)
    assert engine.stats().steps == steps  # nothing of it came to the loop
    assert isinstance(
        collect(engine, Request(rid="b", segments=[Tokens([1]), FEW]))[-1], SampleDone
    )


CHAT = {"messages": [{"role": "user", "content": "a"}]}
BODIES: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("/v1/chat/completions", CHAT | {name: True}, name)
        for name in ("n", "seed", "max_tokens", "max_completion_tokens", "top_k", "top_logprobs")
    ),
    ("/v1/chat/completions", CHAT | {"logit_bias": {"1": True}}, "logit_bias"),
    ("/v1/chat/completions", CHAT | {"logit_bias": {"true": 1}}, "logit_bias"),
    ("/v1/chat/completions", CHAT | {"stop_token_ids": [True]}, "stop_token_ids"),
    ("/v1/completions", {"prompt": [True]}, "prompt"),
    ("/v1/completions", {"prompt": [[1, True]]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "logprobs": True}, "logprobs"),
    ("/generate", {"input_ids": [True]}, "input_ids"),
    ("/generate", {"input_ids": [[True]]}, "input_ids"),
    ("/generate", {"text": "a", "top_logprobs_num": True}, "top_logprobs_num"),
    *(
        ("/generate", {"text": "a", "sampling_params": {name: True}}, "sampling_params")
        for name in ("n", "max_new_tokens", "sampling_seed", "top_k")
    ),
    ("/blocks", {"rid": "1", "segments": [{"type": "tokens", "ids": [True]}]}, "segments"),
    ("/detokenize", {"tokens": [True]}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "param"), BODIES)
def test_bodies_of_http(engine: Engine, path: str, body: dict[str, Any], param: str) -> None:
    app = create_app(engine, served_name="fake")
    answer = ask(app, "POST", path, content=json.dumps(body).encode())
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)
