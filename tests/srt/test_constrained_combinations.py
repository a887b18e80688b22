"""A constrained text is the same alone or in company, streamed or not, drafted or not."""

from __future__ import annotations

import json
import random
import re
from itertools import product
from typing import Any

import jsonschema
import msgspec
import pytest
from support.engines import collect, hash_engine

from stolon.srt.protocol import (
    Delta,
    Event,
    Gen,
    GenResult,
    GrammarSpec,
    LogprobSpec,
    Request,
    Sampling,
    SegmentDone,
    Text,
    Usage,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a person", "a place"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 3},
    },
    "required": ["kind", "age"],
    "additionalProperties": False,
}
TAG = {
    "format": {
        "type": "sequence",
        "elements": [
            {
                "type": "tag",
                "begin": "<call>",
                "content": {"type": "json_schema", "json_schema": SCHEMA},
                "end": "</call>",
            },
            {"type": "const_string", "value": " done"},
        ],
    }
}


def _json(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


SPECS: dict[str, tuple[GrammarSpec, Any]] = {
    "schema": (GrammarSpec(kind="json_schema", text=json.dumps(SCHEMA)), _json),
    "regex": (
        GrammarSpec(kind="regex", text="(alpha|beta)-[0-9]{1,3} ok"),
        re.compile("(alpha|beta)-[0-9]{1,3} ok").fullmatch,
    ),
    "choice": (
        GrammarSpec(kind="choice", text='["red wine", "red", "white wine"]'),
        re.compile("red wine|red|white wine").fullmatch,
    ),
    "ebnf": (
        GrammarSpec(kind="ebnf", text='root ::= "(" root ")" | "leaf of the tree"'),
        lambda text: text.strip("()") == "leaf of the tree" and text.count("(") == text.count(")"),
    ),
    "structural tag": (
        GrammarSpec(kind="structural_tag", text=json.dumps(TAG)),
        lambda text: _json(text.removeprefix("<call>").removesuffix("</call> done")),
    ),
    "after reasoning": (
        GrammarSpec(kind="json_schema", text=json.dumps(SCHEMA), after="e"),
        lambda text: _json(text.partition("e")[2]),
    ),
}
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {
        "temperature": 0.9,
        "top_p": 0.95,
        "seed": 3,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "logit_bias": {101: 4.0},
    },
]
COMBINATIONS = list(product(SAMPLINGS, (1, 3), (False, True), ((), (":", "-")), (False, True)))


def _gen(kind: str, combination: tuple[Any, ...], **fields: Any) -> tuple[Gen, int]:
    sampling, n, logprobs, stop, healed = combination
    return (
        Gen(
            sampling=Sampling(**{"max_tokens": 150, "stop": stop, **sampling, **fields}),
            grammar=SPECS[kind][0],
            logprobs=LogprobSpec(top=2) if logprobs else None,
            heal=healed,
        ),
        n,
    )


def _run(gen: Gen, n: int, *, stream: bool = False, crowded: bool = False) -> list[Any]:
    """Results in the order of the samples, without what they cost."""
    room = {"num_slots": 500, "max_running": 3, "step_tokens": 20} if crowded else {}
    with hash_engine(context=400, **room) as engine:
        company = []
        if crowded:
            other = Gen(sampling=Sampling(max_tokens=120, seed=1, ignore_eos=True))
            for i in range(4):
                request = Request(rid=f"other {i}", segments=[Text(f"{i} " * 20), other], n=2)
                engine.submit(request, company.append)
        segments = [Text("Something about it: "), gen, Text(" end")]
        events = collect(engine, Request(rid="it", segments=segments, n=n, stream=stream))
        for i in range(4 if crowded else 0):
            engine.abort(f"other {i}")
        if stream:
            _check_deltas(events, n)
    done = [event for event in events if isinstance(event, SegmentDone)]
    results = [event.result for event in sorted(done, key=lambda event: event.sample)]
    return [msgspec.structs.replace(result, usage=Usage()) for result in results]


def _check_deltas(events: list[Event], n: int) -> None:
    for sample in range(n):
        deltas = [e for e in events if isinstance(e, Delta) and e.sample == sample]
        (result,) = [e.result for e in events if isinstance(e, SegmentDone) and e.sample == sample]
        assert isinstance(result, GenResult)
        assert "".join(delta.text for delta in deltas) == result.text


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("seed", range(3))
def test_all_ways_are_one(kind: str, seed: int) -> None:
    combination = random.Random(f"{kind} {seed}").choice(COMBINATIONS)
    matches = SPECS[kind][1]
    for modes in (("off", "verify"), ("inject",)):
        reference = None
        for mode, speculation in product(modes, ("off", "auto")):
            gen, n = _gen(kind, combination, jump_forward=mode, speculation=speculation)
            for way in ({}, {"stream": True}, {"crowded": True}):
                results = _run(gen, n, **way)
                if reference is None:
                    reference = results
                    for result in results:
                        if result.finish.kind == "stop" and result.finish.matched not in (":", "-"):
                            assert matches(result.text), result.text
                assert results == reference, (mode, speculation, way)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("mode", ["inject", "verify", "off"])
def test_log_probs_change_nothing(kind: str, mode: str) -> None:
    texts = []
    for logprobs in (False, True):
        gen, n = _gen(kind, (SAMPLINGS[1], 3, logprobs, (), False), jump_forward=mode)
        texts.append([(r.text, r.token_ids, r.finish) for r in _run(gen, n)])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", SPECS)
def test_closing_at_the_budget_holds_with_everything_else(kind: str) -> None:
    for combination in (COMBINATIONS[0], COMBINATIONS[-4], COMBINATIONS[9]):
        sampling, n, logprobs, _, healed = combination
        gen, n = _gen(
            kind,
            (sampling, n, logprobs, (), healed),
            max_tokens=110,
            close_at_budget=True,
        )
        for result in _run(gen, n):
            if kind == "after reasoning" and "e" not in result.text:
                assert result.finish.kind == "length"  # never a success
                continue
            assert result.finish.kind == "stop"
            assert SPECS[kind][1](result.text), result.text
