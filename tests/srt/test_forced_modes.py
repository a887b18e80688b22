"""What becomes of text that a grammar forces: appended, verified, or left to the masks."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import torch
from support.engines import collect, hash_engine
from support.hash_model import context_logits

from stolon.errors import InvalidRequest
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Delta,
    Gen,
    GenResult,
    GrammarSpec,
    Request,
    Sampling,
    SegmentDone,
    Text,
)
from stolon.srt.server.native_schemas import NativeSampling
from stolon.srt.server.openai_schemas import OpenAIBody

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]{1,6}$"},
        "kind": {"enum": ["a person", "a place", "nothing"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {
        "temperature": 0.8,
        "top_p": 0.9,
        "seed": 3,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
    },
]
PROMPT = "Somebody: "


@pytest.fixture(params=SAMPLINGS, ids=["greedy", "seeded", "filtered"])
def sampling(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(engine: Engine, mode: str, **options: Any) -> Any:
    options = {"json_schema": SCHEMA, "max_tokens": 200} | options
    output = engine.generate(PROMPT, jump_forward=mode, **options)
    engine.check_integrity()
    return output


def test_verify_is_masked_sampling_in_fewer_steps(sampling: dict[str, Any]) -> None:
    outputs, steps = [], []
    for mode in ("off", "verify"):
        with hash_engine(speculation="off") as engine:
            outputs.append(run(engine, mode, n=3, **sampling))
            steps.append(engine.stats().steps)
    for off, verified in zip(*outputs, strict=True):
        assert off.token_ids == verified.token_ids
        assert (off.text, off.finish) == (verified.text, verified.finish)
        json.loads(off.text)
        assert verified.usage.forced_tokens == off.usage.forced_tokens == 0
        assert verified.usage.accepted_tokens > 10
        assert verified.usage.accepted_tokens <= verified.usage.drafted_tokens
    assert steps[1] < 0.8 * steps[0]


def test_off_and_verify_with_log_probs(sampling: dict[str, Any]) -> None:
    results = []
    for mode in ("off", "verify"):
        with hash_engine() as engine:
            output = run(engine, mode, return_logprob=True, top_logprobs_num=2, **sampling)
            results.append((output.token_ids, output.logprobs))
    assert results[0] == results[1]


def test_forced_log_probs_take_no_further_steps(sampling: dict[str, Any]) -> None:
    """They are those of the model, from the rows that are computed anyhow."""
    with hash_engine(speculation="off") as engine:
        run(engine, "inject", **sampling)  # the grammar is compiled: nobody waits for it any more
        engine.flush_cache()
        before = engine.stats().steps
        plain = run(engine, "inject", **sampling)
        steps = engine.stats().steps - before
        engine.flush_cache()
        before = engine.stats().steps
        scored = run(engine, "inject", return_logprob=True, **sampling)
        # The last forced run ends the text, and is computed for its log-probs alone.
        assert engine.stats().steps - before <= steps + 1
        assert engine.stats().drafted_tokens == 0
    assert scored.token_ids == plain.token_ids
    assert scored.usage.forced_tokens == plain.usage.forced_tokens > 10
    context = list(scored.prompt_token_ids)
    for entry in scored.logprobs:
        expected = torch.log_softmax(context_logits(context, 288).double(), -1)[entry.token]
        assert entry.logprob == pytest.approx(float(expected), abs=1e-5)
        context.append(entry.token)
    assert context[len(scored.prompt_token_ids) :] == scored.token_ids


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("mode", ["inject", "verify", "off"])
def test_a_run_ends_at_a_stop_or_the_budget(mode: str, logprobs: bool) -> None:
    options = {"temperature": 0.0, "return_logprob": logprobs}
    with hash_engine() as engine:
        whole = run(engine, mode, **options)
        assert run(engine, mode, stop='nd":', **options).text == whole.text.split('nd":')[0]
        for budget in (1, 2, 5, 9):
            cut = run(engine, mode, max_tokens=budget, **options)
            assert cut.token_ids == whole.token_ids[:budget]
            assert cut.finish.kind == "length"
            assert cut.usage.completion_tokens == budget
            if logprobs:
                assert cut.logprobs == whole.logprobs[:budget]


@pytest.mark.parametrize("mode", ["inject", "verify", "off"])
def test_streams_add_up(mode: str) -> None:
    gen = Gen(
        sampling=Sampling(temperature=1.0, seed=4, max_tokens=200, jump_forward=mode),  # type: ignore[arg-type]
        grammar=GrammarSpec(kind="json_schema", text=json.dumps(SCHEMA)),
    )
    with hash_engine() as engine:
        events = collect(
            engine, Request(rid="r", segments=[Text(PROMPT), gen, Text("!")], stream=True)
        )
    result = next(e.result for e in events if isinstance(e, SegmentDone))
    assert isinstance(result, GenResult)
    deltas = [e for e in events if isinstance(e, Delta)]
    assert "".join(d.text for d in deltas) == result.text
    assert [t for d in deltas for t in d.token_ids] == result.token_ids


def test_an_unknown_mode_is_refused() -> None:
    with hash_engine() as engine, pytest.raises(InvalidRequest, match="jump_forward"):
        run(engine, "always")


def test_servers_take_the_modes_as_fields_of_their_own() -> None:
    body = msgspec.convert({"jump_forward": "verify", "speculation": "off"}, NativeSampling)
    sampling = body.sampling(288)
    assert (sampling.jump_forward, sampling.speculation) == ("verify", "off")
    chat = msgspec.convert({"jump_forward": "off", "speculation": "off"}, OpenAIBody)
    sampling = chat.sampling(5, 288)
    assert (sampling.jump_forward, sampling.speculation) == ("off", "off")
    assert msgspec.convert({}, OpenAIBody).sampling(5, 288).jump_forward == "inject"
    with pytest.raises(msgspec.ValidationError, match="jump_forward"):
        msgspec.convert({"jump_forward": "always"}, NativeSampling)
