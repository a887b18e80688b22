"""close_at_budget: constrained text ends valid within max_tokens, whatever else is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.engines import hash_engine

from stolon.errors import InvalidRequest

TOKENIZER = ByteTokenizer()
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 1},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
LEAST = len(TOKENIZER.encode('{"name": "", "tags": [" the"]}'))


@pytest.fixture(scope="module")
def engine() -> Any:
    with hash_engine(num_slots=4096, context=400) as engine:
        yield engine


@pytest.mark.parametrize("budget", [LEAST, LEAST + 1, LEAST + 5, 60, 120])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 3},
        {"jump_forward": "verify"},
        {"jump_forward": "off"},
        {"return_logprob": True, "top_logprobs_num": 2},
        {"presence_penalty": 0.5, "min_tokens": 3},
    ],
    ids=str,
)
def test_the_text_is_whole(engine: Any, budget: int, options: dict[str, Any]) -> None:
    outputs = engine.generate(
        "x: ", json_schema=SCHEMA, max_tokens=budget, seed=5, close_at_budget=True, **options
    )
    for output in outputs if isinstance(outputs, list) else [outputs]:
        assert output.finish.kind == "stop", output.text
        assert len(output.token_ids) <= budget
        value = json.loads(output.text)
        assert set(value) == {"name", "tags"}
        assert value["tags"]
        assert output.usage.completion_tokens == len(output.token_ids)
        if output.logprobs is not None:
            assert [entry.token for entry in output.logprobs] == output.token_ids
    engine.check_integrity()


def test_without_it_the_text_is_cut(engine: Any) -> None:
    output = engine.generate("x: ", json_schema=SCHEMA, max_tokens=LEAST + 5, seed=5)
    assert output.finish.kind == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(output.text)


def test_what_can_not_be_completed_reports_length(engine: Any) -> None:
    output = engine.generate(
        "x: ", json_schema=SCHEMA, max_tokens=LEAST - 2, seed=5, close_at_budget=True
    )
    assert output.finish.kind == "length"


def test_with_room_nothing_changes(engine: Any) -> None:
    for seed in range(4):
        plain, closing = (
            engine.generate(
                "y: ",
                regex="[a-f]{1,40}",
                max_tokens=200,
                seed=seed,
                close_at_budget=close,
            )
            for close in (False, True)
        )
        assert closing.token_ids == plain.token_ids
        assert closing.finish == plain.finish


def test_a_text_that_may_end_at_the_budget_is_a_success(engine: Any) -> None:
    output = engine.generate("z: ", regex="[a-f]+", max_tokens=9, seed=1, close_at_budget=True)
    assert output.finish.kind == "stop"
    assert len(output.token_ids) <= 9


def test_it_means_nothing_without_a_grammar_and_must_be_a_flag(engine: Any) -> None:
    output = engine.generate("z: ", max_tokens=3, seed=1, ignore_eos=True, close_at_budget=True)
    assert output.finish.kind == "length"
    with pytest.raises(InvalidRequest, match="close_at_budget"):
        engine.generate("z: ", close_at_budget="yes")
